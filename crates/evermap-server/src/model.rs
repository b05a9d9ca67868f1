//! A cache in ordinary memory that implements [`Cache`] in the simplest way.
//!
//! Tests compare other implementations with it, and test the protocols on it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Marks, Side, StoreMode, StoreOutcome, StoreRequest,
    Stored, Update, apply_delta,
};

/// The number of items that [`Cache::page`] shows at a time.
const PAGE: usize = 100;

/// A map behind one lock, with a clock that advances only by [`set_now`](ModelCache::set_now).
#[derive(Default)]
pub struct ModelCache {
    now: AtomicU32,
    items: Mutex<Items>,
}

#[derive(Default)]
struct Items {
    map: BTreeMap<Vec<u8>, Entry>,
    /// The last CAS id that was assigned; this is also the number of items ever stored.
    last_cas: u64,
    /// The time of a pending `flush_all`. The first operation from then on clears the map: what it
    /// holds was stored before.
    flush_all_at: Option<u32>,
    bytes_max: Option<usize>,
    failure: Option<CacheError>,
    lookups: u64,
}

#[derive(Clone)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    expiry: u32,
    marks: Marks,
    cas: u64,
    fetched: bool,
    accessed_at: u32,
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

    fn live(&mut self, key: &[u8], now: u32) -> Option<&mut Entry> {
        self.map.get_mut(key).filter(|entry| entry.is_live(now))
    }

    fn next_cas(&mut self) -> u64 {
        self.last_cas += 1;
        self.last_cas
    }

    fn bytes(&self) -> usize {
        self.map.iter().map(|(key, entry)| key.len() + entry.value.len()).sum()
    }

    /// Stores an entry with the CAS id `cas`, or with a new one, and returns the id.
    fn put(&mut self, key: &[u8], entry: Entry, cas: Option<u64>) -> Result<u64, CacheError> {
        if let Some(bytes_max) = self.bytes_max {
            let old = self.map.get(key).map_or(0, |old| key.len() + old.value.len());
            if self.bytes() - old + key.len() + entry.value.len() > bytes_max {
                return Err(CacheError::OutOfMemory);
            }
        }
        let own = self.next_cas();
        let cas = cas.unwrap_or(own);
        self.map.insert(key.to_vec(), Entry { cas, ..entry });
        Ok(cas)
    }
}

impl Entry {
    fn new(value: Vec<u8>, flags: u32, expiry: u32, marks: Marks, now: u32) -> Self {
        Entry { value, flags, expiry, marks, cas: 0, fetched: false, accessed_at: now }
    }

    fn is_live(&self, now: u32) -> bool {
        self.expiry == 0 || self.expiry > now
    }

    fn with_item<R>(&self, now: u32, f: impl FnOnce(Item<'_>) -> R) -> R {
        let &Entry { flags, cas, expiry, marks, fetched, .. } = self;
        let idle = now.saturating_sub(self.accessed_at);
        f(Item { flags, cas, expiry, marks, fetched, idle, value: &self.value.as_slice() })
    }

    /// Calls `f` with the item, and records the access afterwards.
    fn access<R>(&mut self, now: u32, f: impl FnOnce(Item<'_>) -> R) -> R {
        let result = self.with_item(now, f);
        (self.fetched, self.accessed_at) = (true, now);
        result
    }

    /// Returns this entry with another value, as one that was not accessed.
    fn with_value(&self, value: Vec<u8>, now: u32) -> Self {
        Entry::new(value, self.flags, self.expiry, self.marks, now)
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
            if let Some(entry) = items.live(key, now)
                && entry.access(now, |item| hit(i, item))?.is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn peek(
        &self,
        key: &[u8],
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let hit = items.live(key, now).map(|entry| entry.with_item(now, hit));
        Ok(hit.transpose()?.is_some())
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let Some(entry) = items.live(key, now) else {
            return Ok(false);
        };
        entry.expiry = expiry;
        entry.access(now, hit)?;
        Ok(true)
    }

    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        request: &StoreRequest,
    ) -> Result<Stored, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let old_cas = items.live(key, now).map(|entry| entry.cas);
        let refused = match (request.mode, old_cas) {
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => StoreOutcome::NotStored,
            (StoreMode::Cas(_), None) => StoreOutcome::NotFound,
            (StoreMode::Cas(expected), Some(cas)) if expected != cas => StoreOutcome::Exists,
            _ => {
                let &StoreRequest { flags, expiry, cas, .. } = request;
                let entry = Entry::new(value.to_vec(), flags, expiry, Marks::default(), now);
                let cas = items.put(key, entry, cas)?;
                return Ok(Stored { outcome: StoreOutcome::Stored, cas });
            }
        };
        Ok(refused.into())
    }

    fn update(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Item<'_>>) -> Result<Update, CacheError>,
    ) -> Result<Option<u64>, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let live = items.live(key, now);
        let old_cas = live.as_ref().map(|entry| entry.cas);
        let update = match live {
            None => decide(None),
            Some(entry) => entry.access(now, |item| decide(Some(&item))),
        };
        match (update?, items.live(key, now)) {
            (Update::Keep, _) | (Update::Mark { .. }, None) => Ok(old_cas),
            (Update::Mark { expiry, marks }, Some(entry)) => {
                (entry.expiry, entry.marks) = (expiry, marks);
                Ok(old_cas)
            }
            (Update::Put { value, flags, expiry, marks, cas }, _) => {
                items.put(key, Entry::new(value, flags, expiry, marks, now), cas).map(Some)
            }
            (Update::Remove, _) => {
                items.map.remove(key);
                Ok(None)
            }
        }
    }

    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<Stored, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let Some(old) = items.live(key, now) else {
            return Ok(StoreOutcome::NotStored.into());
        };
        if old.value.len() + data.len() > value_max {
            return Err(CacheError::TooLarge);
        }
        let value = match side {
            Side::Append => [&old.value, data].concat(),
            Side::Prepend => [data, &old.value].concat(),
        };
        let entry = old.with_value(value, now);
        let cas = items.put(key, entry, None)?;
        Ok(Stored { outcome: StoreOutcome::Stored, cas })
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
        let entry = old.with_value(value, now);
        let cas = items.put(key, entry, None)?;
        Ok(Arithmetic::Changed { number, cas })
    }

    fn delete(&self, key: &[u8]) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        let live = items.live(key, now).is_some();
        items.map.remove(key);
        Ok(live)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        Ok(items.live(key, now).map(|entry| entry.expiry = expiry).is_some())
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        let (mut items, now) = self.lock_at_now()?;
        items.flush_all_at = Some(at.unwrap_or(now));
        items.flush_all_if_due(now);
        Ok(())
    }

    /// Shows the items in the order of their keys, and positions are numbers of items. So items may
    /// be shown twice or left out if others come or go between two calls.
    fn page(
        &self,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError> {
        let (items, now) = self.lock_at_now()?;
        let start = usize::try_from(position).unwrap_or(usize::MAX);
        for (key, entry) in items.map.iter().skip(start).take(PAGE) {
            if entry.is_live(now) {
                entry.with_item(now, |item| each(key, item));
            }
        }
        let end = start.saturating_add(PAGE);
        Ok((end < items.map.len()).then_some(end as u64))
    }

    fn memory_limit(&self) -> u64 {
        self.lock().bytes_max.map_or(0, |bytes| bytes as u64)
    }

    fn set_memory_limit(&self, bytes: u64) -> Result<(), CacheError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.lock().bytes_max = (bytes > 0).then_some(bytes);
        Ok(())
    }

    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let items = self.lock();
        each("curr_items", &items.map.len());
        each("bytes", &items.bytes());
        each("limit_maxbytes", &items.bytes_max.unwrap_or(0));
    }
}
