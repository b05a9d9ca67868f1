//! A cache in ordinary memory that implements [`Cache`](crate::Cache) in the simplest way.
//!
//! Tests compare other implementations with it, and test the protocols on it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::CacheError;
use crate::memory::{Decision, Entry, MemoryCache, Table, each_found};

/// A map behind one lock, with a clock that advances only by [`set_now`](MemoryCache::set_now).
pub type ModelCache = MemoryCache<Ordered>;

/// The map of a [`ModelCache`], which can be made to fail.
#[derive(Debug, Default)]
pub struct Ordered {
    map: Mutex<BTreeMap<Vec<u8>, Entry>>,
    failure: Mutex<Option<CacheError>>,
    lookups: AtomicU64,
}

impl MemoryCache<Ordered> {
    /// Creates an empty cache whose clock shows `now`, in seconds since 1970.
    pub fn new(now: u32) -> Self {
        Self::over_at(Ordered::default(), now)
    }

    /// Makes every operation fail with `error`, until this is called with `None`.
    pub fn fail_with(&self, error: Option<CacheError>) {
        *self.table().failure.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Returns the number of lookups; those of several keys together count once.
    pub fn lookups(&self) -> u64 {
        self.table().lookups.load(Relaxed)
    }
}

impl Ordered {
    /// Locks the map.
    ///
    /// # Errors
    /// The error that was set with [`fail_with`](MemoryCache::fail_with).
    fn lock(&self) -> Result<MutexGuard<'_, BTreeMap<Vec<u8>, Entry>>, CacheError> {
        // A panic in a caller's closure leaves map and failure consistent.
        if let Some(error) = &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(error.clone());
        }
        Ok(self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Table for Ordered {
    fn read_many(
        &self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        let map = self.lock()?;
        self.lookups.fetch_add(1, Relaxed);
        each_found(keys, |key| map.get(key), each);
        Ok(())
    }

    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Entry>) -> Decision,
    ) -> Result<(), CacheError> {
        let mut map = self.lock()?;
        match decide(map.get(key)) {
            Decision::Keep => {}
            Decision::Put(entry) => {
                map.insert(key.to_vec(), entry);
            }
            Decision::Remove => {
                map.remove(key);
            }
        }
        Ok(())
    }

    fn for_each(
        &self,
        each: &mut dyn FnMut(&[u8], &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        for (key, entry) in &*self.lock()? {
            if each(key, entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}
