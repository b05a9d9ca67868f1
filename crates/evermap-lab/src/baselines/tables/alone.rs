//! The standard library's map, which is for one thread and has no lock of its own.
//!
//! Of words, a thread keeps the map for a whole run of operations, as a program with one thread
//! does. Of byte strings, each operation takes the lock that makes them a store.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evermap_pm::Result;

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::{InMemory, Owned, Strings};
use crate::subject::{Entry, Found, Guards, Measured, Setup, Size, Stored, Subject, Table};

/// The entries of the registry.
pub(crate) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "std-hashmap",
        about: "std HashMap with its own hasher, SipHash; one thread, no lock but for byte strings",
        rival: true,
        factory: build::<RandomState>,
    },
    Entry {
        name: "std-hashmap-fold",
        about: "std HashMap with the hash of Evermap's indexes; otherwise as std-hashmap",
        rival: true,
        factory: build::<BuildFold>,
    },
];

type Map<K, V, S> = HashMap<K, V, S>;

/// A map that one thread after the other has for itself.
struct Alone<K, V, S>(Mutex<RefCell<Map<K, V, S>>>);

fn build<S: BuildHasher + Default + Send + 'static>(
    name: &'static str,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    let capacity = if setup.presize { setup.keys as usize } else { 0 };
    Ok(match setup.lengths {
        None => {
            let table = Alone::<u64, u64, S>::new(capacity);
            Box::new(Measured { name, table, guards: Guards::PerBatch(usize::MAX) })
        }
        Some(lengths) => {
            let map = Alone::<Owned, Owned, S>::new(capacity);
            Box::new(Stored::new(name, InMemory(map), lengths))
        }
    })
}

impl<K, V, S: BuildHasher + Default> Alone<K, V, S> {
    fn new(capacity: usize) -> Self {
        let map = HashMap::with_capacity_and_hasher(capacity, S::default());
        Alone(Mutex::new(RefCell::new(map)))
    }

    fn take(&self) -> MutexGuard<'_, RefCell<Map<K, V, S>>> {
        // A run that panicked ends the experiment, and nothing here is half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: BuildHasher + Default + Send + 'static> Table for Alone<u64, u64, S> {
    type Guard<'a> = MutexGuard<'a, RefCell<Map<u64, u64, S>>>;

    fn guard(&self) -> Self::Guard<'_> {
        self.take()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, map: &Self::Guard<'_>) -> Result<Found> {
        use std::collections::hash_map::Entry::{Occupied, Vacant};
        Ok(match map.borrow_mut().entry(key) {
            Occupied(old) => Found::Word(*old.get()),
            Vacant(place) => {
                place.insert(word);
                Found::Absent
            }
        })
    }

    #[inline(always)]
    fn get(&self, key: u64, map: &Self::Guard<'_>) -> Result<Option<u64>> {
        Ok(map.borrow().get(&key).copied())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, map: &Self::Guard<'_>) -> Result<Found> {
        let mut map = map.borrow_mut();
        Ok(map.get_mut(&key).map(|old| std::mem::replace(old, word)).into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, map: &Self::Guard<'_>) -> Result<Found> {
        Ok(map.borrow_mut().remove(&key).into())
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.take().borrow().len() as u64), ..Size::default() })
    }
}

impl<S: BuildHasher + Default + Send + 'static> Strings for Alone<Owned, Owned, S> {
    type Reader<'a> = ();

    #[inline(always)]
    fn reader(&self) {}

    #[inline(always)]
    fn get(&self, key: &[u8], (): &(), each: impl FnOnce(&[u8])) -> bool {
        self.take().borrow().get(key).map(|value| each(value)).is_some()
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        self.take().borrow_mut().insert(key, value).is_some()
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.take().borrow_mut().remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.take().borrow().len()
    }
}
