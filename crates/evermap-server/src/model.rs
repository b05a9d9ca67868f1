//! A cache in plain memory that does what [`Cache`] says in the most obvious way.
//!
//! It is the oracle that other implementations are compared with, and what the protocols are tested on.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::{
    Arithmetic, Cache, CacheError, Item, Side, StoreMode, StoreOutcome, apply_delta,
};

/// A map behind one lock, with a clock that is set by hand.
#[derive(Default)]
pub struct ModelCache {
    now: AtomicU32,
    items: Mutex<Items>,
}

#[derive(Default)]
struct Items {
    map: HashMap<Vec<u8>, Stored>,
    /// The last CAS id given out; also counts everything ever stored.
    last_cas: u64,
    /// When everything goes: whatever is here at the first operation from then on was stored before.
    flush_at: Option<u32>,
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
    /// An empty cache whose clock stands at `now`, seconds since 1970.
    pub fn new(now: u32) -> Self {
        ModelCache { now: AtomicU32::new(now), ..Default::default() }
    }

    /// Sets the clock.
    pub fn set_now(&self, now: u32) {
        self.now.store(now, Relaxed);
    }

    /// Lets keys and values together take no more than this many bytes; more is `OutOfMemory`.
    pub fn limit_bytes(&self, bytes: usize) {
        self.items().bytes_max = Some(bytes);
    }

    /// Makes every operation fail with `error` until told otherwise.
    pub fn fail_with(&self, error: Option<CacheError>) {
        self.items().failure = error;
    }

    /// How many times [`Cache::get_many`] was called.
    pub fn lookups(&self) -> u64 {
        self.items().lookups
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        // A panic of a caller's closure leaves the map whole.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The items, with due flushes carried out, unless told to fail.
    fn usable(&self) -> Result<(MutexGuard<'_, Items>, u32), CacheError> {
        let now = self.now.load(Relaxed);
        let mut items = self.items();
        if let Some(error) = &items.failure {
            return Err(error.clone());
        }
        items.flush_if_due(now);
        Ok((items, now))
    }
}

impl Items {
    fn flush_if_due(&mut self, now: u32) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.map.clear();
            self.flush_at = None;
        }
    }

    fn alive(&mut self, key: &[u8], now: u32) -> Option<&mut Stored> {
        self.map.get_mut(key).filter(|item| item.expiry == 0 || item.expiry > now)
    }

    fn fresh_cas(&mut self) -> u64 {
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
        let cas = self.fresh_cas();
        self.map.insert(key.to_vec(), Stored { value, flags, expiry, cas });
        Ok(StoreOutcome::Stored)
    }
}

impl Stored {
    fn show(&self, show: impl FnOnce(Item<'_>) -> bool) -> bool {
        show(Item { flags: self.flags, cas: self.cas, value: &self.value.as_slice() })
    }
}

impl Cache for ModelCache {
    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> bool,
    ) -> Result<(), CacheError> {
        let (mut items, now) = self.usable()?;
        items.lookups += 1;
        for (i, key) in keys.iter().enumerate() {
            if let Some(item) = items.alive(key, now)
                && !item.show(|item| hit(i, item))
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
        hit: &mut dyn FnMut(Item<'_>),
    ) -> Result<bool, CacheError> {
        let (mut items, now) = self.usable()?;
        let Some(item) = items.alive(key, now) else {
            return Ok(false);
        };
        item.expiry = expiry;
        item.show(|item| {
            hit(item);
            true
        });
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
        let (mut items, now) = self.usable()?;
        let old_cas = items.alive(key, now).map(|item| item.cas);
        match (mode, old_cas) {
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => Ok(StoreOutcome::NotStored),
            (StoreMode::Cas(_), None) => Ok(StoreOutcome::NotFound),
            (StoreMode::Cas(asked), Some(cas)) if asked != cas => Ok(StoreOutcome::Exists),
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
        let (mut items, now) = self.usable()?;
        let Some(old) = items.alive(key, now) else {
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
        let (mut items, now) = self.usable()?;
        let Some(old) = items.alive(key, now) else {
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
        let (mut items, now) = self.usable()?;
        let alive = items.alive(key, now).is_some();
        items.map.remove(key);
        Ok(alive)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        let (mut items, now) = self.usable()?;
        Ok(items.alive(key, now).map(|item| item.expiry = expiry).is_some())
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        let (mut items, now) = self.usable()?;
        items.flush_at = Some(at.unwrap_or(now));
        items.flush_if_due(now);
        Ok(())
    }

    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let items = self.items();
        each("curr_items", &items.map.len());
        each("total_items", &items.last_cas);
        each("bytes", &items.bytes());
    }
}
