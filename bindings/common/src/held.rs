//! Values that are held where they are stored.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use evermap::{Map, ValueRef};

use crate::{Result, StoreMap};

/// A value of a map: where it is stored, if the store lends its values, and otherwise a copy.
///
/// It keeps the record, the map and the file until it is dropped, by any thread. A record that is
/// held is not used again, so a value should not be held for long: see
/// [`Options::reader_backlog`](evermap::Options::reader_backlog).
pub struct Held {
    /// Dropped before `map`, from which it borrows.
    value: ManuallyDrop<ValueRef<'static>>,
    map: Arc<StoreMap>,
}

// SAFETY: a `ValueRef` is bytes that nobody changes, and the guard that keeps them. A guard is not
// `Send` so that a thread can tell whether it holds one, and refuse to wait for itself; `Store`
// counts what is held instead, and refuses in every thread. Its end is one store with release
// ordering to a slot that is read with acquire ordering before it is used again, by whichever
// thread, also by the thread that the slot belongs to.
unsafe impl Send for Held {}
// SAFETY: through a shared reference the bytes are read, and nothing else.
unsafe impl Sync for Held {}

impl Held {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.value
    }

    /// Returns whether the bytes are those in the store, and not a copy.
    pub fn is_borrowed(&self) -> bool {
        self.value.is_borrowed()
    }

    /// Returns the value with what is stored beside it.
    pub fn value(&self) -> &ValueRef<'_> {
        &self.value
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let is_borrowed = self.value.is_borrowed();
        // SAFETY: not used afterwards, and `map` still lives.
        unsafe { ManuallyDrop::drop(&mut self.value) };
        if is_borrowed {
            // After the guard has ended, so that who finds zero does not wait for it.
            self.map.store().held.fetch_sub(1, SeqCst);
        }
    }
}

impl StoreMap {
    /// Returns the value of `key`, held, or `None` if the key is absent. O(1), and O(length) to
    /// verify its checksum.
    ///
    /// # Errors
    /// Those of [`Map::get_ref`].
    pub fn hold(self: &Arc<Self>, key: &[u8]) -> Result<Option<Held>> {
        // Counted before there is a guard, so that who finds zero finds no guard either.
        let held = &self.store().held;
        held.fetch_add(1, SeqCst);
        // SAFETY: the `Held` that the value is put into keeps the map, at the same address, until
        // the value was dropped.
        let map: &'static Map = unsafe { &*std::ptr::from_ref(self.map()) };
        match map.get_ref(key) {
            Ok(Some(value)) => {
                if !value.is_borrowed() {
                    held.fetch_sub(1, SeqCst);
                }
                Ok(Some(Held { value: ManuallyDrop::new(value), map: self.clone() }))
            }
            absent_or_failed => {
                held.fetch_sub(1, SeqCst);
                absent_or_failed.map(|_| None).map_err(Into::into)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evermap::ErrorKind;

    use crate::{Settings, Store, StoreMap};

    fn in_memory() -> (Arc<Store>, Arc<StoreMap>) {
        let store = Store::open(None, &Settings::new()).unwrap();
        let map = store.map(None, true).unwrap();
        (store, map)
    }

    #[test]
    fn a_held_value_stays_while_it_is_replaced_and_may_end_anywhere() {
        let (store, map) = in_memory();
        map.map().put("key", [7; 10_000]).unwrap();
        let held = map.hold(b"key").unwrap().unwrap();
        assert!(held.is_borrowed());
        for round in 0..1000_u32 {
            map.map().put("key", round.to_le_bytes().repeat(2500)).unwrap();
        }
        assert_eq!(held.bytes(), [7; 10_000]);
        let refused = store.close().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldDeadlock);
        assert!(refused.to_string().contains("1 value "), "{refused}");
        std::thread::spawn(move || drop(held)).join().unwrap();
        store.close().unwrap();
    }

    #[test]
    fn a_thread_that_has_given_its_value_away_goes_on() {
        let (store, map) = in_memory();
        map.map().put("key", "value").unwrap();
        let reader = map.clone();
        // The guard is in the slot of a thread that has ended.
        let held = std::thread::spawn(move || reader.hold(b"key").unwrap().unwrap());
        let held = held.join().unwrap();
        for round in 0..100_000_u32 {
            map.map().put("key", round.to_le_bytes()).unwrap();
        }
        assert_eq!(held.bytes(), b"value");
        assert!(store.check(true).is_err());
        drop(held);
        assert!(store.check(true).unwrap().is_sound());
    }

    #[test]
    fn what_is_absent_holds_nothing() {
        let (store, map) = in_memory();
        assert!(map.hold(b"key").unwrap().is_none());
        assert!(map.hold(&[0; 1 << 17]).is_err());
        store.close().unwrap();
        assert!(map.hold(b"key").is_err());
    }

    #[test]
    fn a_value_outlives_all_other_handles() {
        let (store, map) = in_memory();
        map.map().put("key", "value").unwrap();
        let held = map.hold(b"key").unwrap().unwrap();
        drop((store, map));
        assert_eq!(held.bytes(), b"value");
    }
}
