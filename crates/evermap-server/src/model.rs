//! A cache in ordinary memory that implements [`Cache`] in the simplest way.
//!
//! Tests compare other implementations with it, and test the protocols on it.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Side, StoreMode, StoreOutcome, apply_delta,
};

/// A map behind one lock, with a clock that advances only by [`set_now`](ModelCache::set_now).
#[derive(Default)]
pub struct ModelCache {
    now: AtomicU32,
    items: Mutex<Items>,
}

#[derive(Default)]
struct Items {
    map: HashMap<Vec<u8>, Stored>,
    /// The last CAS id that was assigned; this is also the number of items ever stored.
    last_cas: u64,
    /// The time of a pending `flush_all`. The first operation from then on clears the map: what it
    /// holds was stored before.
    flush_all_at: Option<u32>,
    bytes_max: Option<usize>,
    failure: Option<CacheError>,
    lookups: u64,
}

struct Stored {
    value: Vec<u8>,
    flags: u32,
    expiry: u32,
    cas: u64,
}

impl ModelCache {
    /// Creates an empty cache whose clock shows `now`, in seconds since 1970.
    pub fn new(now: u32) -> Self {
        ModelCache { now: AtomicU32::new(now), ..Default::default() }
    }

    /// Sets the clock.
    pub fn set_now(&self, now: u32) {
        self.now.store(now, Relaxed);
    }

    /// Limits the total length of all keys and values. Operations that would exceed it fail with
    /// `OutOfMemory`.
    pub fn limit_bytes(&self, bytes: usize) {
        self.lock().bytes_max = Some(bytes);
    }

    /// Makes every operation fail with `error`, until this is called with `None`.
    pub fn fail_with(&self, error: Option<CacheError>) {
        self.lock().failure = error;
    }

    /// Returns the number of calls of [`Cache::get_many`].
    pub fn lookups(&self) -> u64 {
        self.lock().lookups
    }

    fn lock(&self) -> MutexGuard<'_, Items> {
        // A panic in a caller's closure leaves the map consistent.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the items, carries out a `flush_all` that is due, and returns them with the time.
    ///
    /// # Errors
    /// The error that was set with [`fail_with`](ModelCache::fail_with).
    fn lock_at_now(&self) -> Result<(MutexGuard<'_, Items>, u32), CacheError> {
        let now = self.now.load(Relaxed);
        let mut items = self.lock();
        if let Some(error) = &items.failure {
            return Err(error.clone());
        }
        items.flush_all_if_due(now);
        Ok((items, now))
    }
}

impl Items {
    fn flush_all_if_due(&mut self, now: u32) {
        if self.flush_all_at.is_some_and(|at| at <= now) {
            self.map.clear();
            self.flush_all_at = None;
        }
    }

    fn live(&mut self, key: &[u8], now: u32) -> Option<&mut Stored> {
        self.map.get_mut(key).filter(|item| item.expiry == 0 || item.expiry > now)
    }

    fn next_cas(&mut self) -> u64 {
        self.last_cas += 1;
        self.last_cas
    }

    fn bytes(&self) -> usize {
        self.map.iter().map(|(key, item)| key.len() + item.value.len()).sum()
    }

    fn put(
        &mut self,
        key: &[u8],
        value: Vec<u8>,
        flags: u32,
        expiry: u32,
    ) -> Result<StoreOutcome, CacheError> {
        if let Some(bytes_max) = self.bytes_max {
            let old = self.map.get(key).map_or(0, |old| key.len() + old.value.len());
            if self.bytes() - old + key.len() + value.len() > bytes_max {
                return Err(CacheError::OutOfMemory);
            }
        }
        let cas = self.next_cas();
        self.map.insert(key.to_vec(), Stored { value, flags, expiry, cas });
        Ok(StoreOutcome::Stored)
    }
}

impl Stored {
    fn with_item<R>(&self, f: impl FnOnce(Item<'_>) -> R) -> R {
        f(Item { flags: self.flags, cas: self.cas, value: &self.value.as_slice() })
    }
}

impl Cache for ModelCache {
    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> Hit,
    ) -> Result<(), CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        items.lookups += 1;
        for (i, key) in keys.iter().enumerate() {
            if let Some(item) = items.live(key, now)
                && item.with_item(|item| hit(i, item))?.is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let Some(item) = items.live(key, now) else {
            return Ok(false);
        };
        item.expiry = expiry;
        item.with_item(hit)?;
        Ok(true)
    }

    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: u32,
        mode: StoreMode,
    ) -> Result<StoreOutcome, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let old_cas = items.live(key, now).map(|item| item.cas);
        match (mode, old_cas) {
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => Ok(StoreOutcome::NotStored),
            (StoreMode::Cas(_), None) => Ok(StoreOutcome::NotFound),
            (StoreMode::Cas(expected), Some(cas)) if expected != cas => Ok(StoreOutcome::Exists),
            _ => items.put(key, value.to_vec(), flags, expiry),
        }
    }

    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<StoreOutcome, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let Some(old) = items.live(key, now) else {
            return Ok(StoreOutcome::NotStored);
        };
        if old.value.len() + data.len() > value_max {
            return Err(CacheError::TooLarge);
        }
        let value = match side {
            Side::Append => [&old.value, data].concat(),
            Side::Prepend => [data, &old.value].concat(),
        };
        let (flags, expiry) = (old.flags, old.expiry);
        items.put(key, value, flags, expiry)
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let Some(old) = items.live(key, now) else {
            return Ok(Arithmetic::NotFound);
        };
        let mut value = Vec::new();
        let Some(number) = apply_delta(&old.value, delta, up, &mut value) else {
            return Ok(Arithmetic::NonNumeric);
        };
        let (flags, expiry) = (old.flags, old.expiry);
        items.put(key, value, flags, expiry)?;
        Ok(Arithmetic::Value(number))
    }

    fn delete(&self, key: &[u8]) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let live = items.live(key, now).is_some();
        items.map.remove(key);
        Ok(live)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        Ok(items.live(key, now).map(|item| item.expiry = expiry).is_some())
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        items.flush_all_at = Some(at.unwrap_or(now));
        items.flush_all_if_due(now);
        Ok(())
    }

    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let items = self.lock();
        each("curr_items", &items.map.len());
        each("total_items", &items.last_cas);
        each("bytes", &items.bytes());
    }
}
