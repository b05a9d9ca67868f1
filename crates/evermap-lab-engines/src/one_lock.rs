//! One table behind one lock, as memcached was in 2011.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evermap_server::CacheError;
use evermap_server::memory::{Decision, Entry, Table};

use crate::keys::{Hash, OwnedKey};

/// A table behind one lock.
///
/// A look-up takes it for each key twice, as `item_get` and `item_remove` of memcached 1.4 took the
/// cache lock: to find the item and count a reference to it, and to give the reference back. In
/// between the item is copied without the lock. A change takes it to allocate, to link, and to give
/// its reference back, as `item_alloc`, `store_item` and `item_remove` did.
#[derive(Debug, Default)]
pub struct OneLock(Mutex<Items>);

type Items = HashMap<OwnedKey, Arc<Entry>, Hash>;

impl OneLock {
    fn lock(&self) -> MutexGuard<'_, Items> {
        // A panic in a closure of the cache leaves the table as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table for OneLock {
    fn read_many(
        &self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        for (i, &key) in keys.iter().enumerate() {
            let Some(entry) = self.lock().get(key).cloned() else { continue };
            let next = each(i, &entry);
            let lock = self.lock();
            drop(entry);
            drop(lock);
            if next.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Entry>) -> Decision,
    ) -> Result<(), CacheError> {
        // To allocate.
        drop(self.lock());
        let mut items = self.lock();
        let old = match decide(items.get(key).map(|entry| &**entry)) {
            Decision::Keep => None,
            Decision::Put(entry) => {
                let entry = Arc::new(entry);
                match items.get_mut(key) {
                    Some(old) => Some(std::mem::replace(old, entry)),
                    None => items.insert(key.into(), entry),
                }
            }
            Decision::Remove => items.remove(key),
        };
        drop(items);
        let lock = self.lock();
        drop(old);
        drop(lock);
        Ok(())
    }

    fn for_each(
        &self,
        each: &mut dyn FnMut(&[u8], &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        for (key, entry) in &*self.lock() {
            if each(key, entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.lock().len() as u64
    }
}
