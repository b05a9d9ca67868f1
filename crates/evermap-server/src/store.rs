//! The store as a cache.
//!
//! Every operation of [`Cache`] is one operation of the store, so each is atomic and durable as that one is.
//! Nothing is evicted: a full store refuses what would not fit.

use std::fmt::Display;
use std::ops::ControlFlow;

use evermap::{Edit, Error, ErrorKind, Map, Meta, Outcome};

use crate::cache::{
    Arithmetic, Cache, CacheError, Item, Side, StoreMode, StoreOutcome, apply_delta,
};

impl Cache for Map {
    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> bool,
    ) -> Result<(), CacheError> {
        let mut failed = None;
        Map::get_many(self, keys, |i, found| match found {
            Ok(item) => match show(&item, |item| hit(i, item)) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            },
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>),
    ) -> Result<bool, CacheError> {
        Ok(Map::get_and_touch(self, key, expiry_of(expiry), |item| show(&item, hit))?.is_some())
    }

    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: u32,
        mode: StoreMode,
    ) -> Result<StoreOutcome, CacheError> {
        let meta = Meta::new().with_flags(flags).with_expiry(expiry_of(expiry));
        let outcome = match mode {
            StoreMode::Set => {
                self.put_with(key, value, meta)?;
                return Ok(StoreOutcome::Stored);
            }
            StoreMode::Add => self.try_insert_with(key, value, meta),
            StoreMode::Replace => self.replace_with(key, value, meta),
            StoreMode::Cas(cas) => self.compare_exchange_with(key, cas, value, meta),
        }?;
        Ok(match (outcome, mode) {
            (Outcome::Inserted { .. } | Outcome::Updated { .. }, _) => StoreOutcome::Stored,
            (Outcome::Kept { .. }, StoreMode::Cas(_)) => StoreOutcome::Exists,
            (_, StoreMode::Cas(_)) => StoreOutcome::NotFound,
            _ => StoreOutcome::NotStored,
        })
    }

    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<StoreOutcome, CacheError> {
        let mut outcome = Ok(StoreOutcome::NotStored);
        self.modify(key, |item| {
            // Called again if another thread was faster, so what an earlier call decided means nothing.
            outcome = Ok(StoreOutcome::NotStored);
            let Some(item) = item else { return Edit::Keep };
            if item.value.len() + data.len() > value_max {
                outcome = Err(CacheError::TooLarge);
                return Edit::Keep;
            }
            outcome = Ok(StoreOutcome::Stored);
            Edit::Value(match side {
                Side::Append => [item.value, data].concat(),
                Side::Prepend => [data, item.value].concat(),
            })
        })?;
        outcome
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError> {
        let mut answer = Arithmetic::NotFound;
        self.modify(key, |item| {
            let Some(item) = item else {
                answer = Arithmetic::NotFound;
                return Edit::Keep;
            };
            let mut value = Vec::new();
            match apply_delta(item.value, delta, up, &mut value) {
                Some(number) => {
                    answer = Arithmetic::Value(number);
                    Edit::Value(value)
                }
                None => {
                    answer = Arithmetic::NonNumeric;
                    Edit::Keep
                }
            }
        })?;
        Ok(answer)
    }

    fn delete(&self, key: &[u8]) -> Result<bool, CacheError> {
        Ok(self.remove(key)?)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        Ok(Map::touch(self, key, expiry_of(expiry))?)
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        Ok(Map::flush_all(self, at.map(u64::from))?)
    }

    /// Under memcached's names where it has them; `limit_maxbytes` is 0 where there is no limit.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let stat = self.stat();
        each("curr_items", &stat.records.value);
        each("bytes", &stat.record_bytes.value);
        each("limit_maxbytes", &stat.max_bytes.unwrap_or(0));
        each("evictions", &0);
        each("evermap_file_bytes", &stat.file_bytes);
        each("evermap_durability", &stat.durability);
        each("evermap_generation", &stat.generation);
        each("evermap_clean_open", &u8::from(stat.clean_open));
        each("evermap_counts_exact", &u8::from(stat.records.exact));
        each("evermap_sweep", &stat.sweep);
        each("evermap_damage_met", &stat.damage_met);
        if let Some(ordered) = &stat.ordered {
            each("evermap_ordered", &ordered.state);
            each("evermap_ordered_keys", &ordered.keys);
            each("evermap_ordered_bytes", &ordered.bytes);
            each("evermap_ordered_keys_read", &ordered.keys_read);
            each("evermap_ordered_notices_waiting", &ordered.notices_waiting);
        }
    }
}

/// When a record expires, given what the protocol says: 0 is never.
fn expiry_of(expiry: u32) -> Option<u64> {
    (expiry != 0).then_some(u64::from(expiry))
}

/// Shows a record of the store as an item of the cache.
fn show<R>(item: &evermap::Item<'_>, show: impl FnOnce(Item<'_>) -> R) -> R {
    show(Item { flags: item.flags, cas: item.cas, value: &item.value })
}

impl From<Error> for CacheError {
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            Error::KeyTooLong { .. } | Error::ValueTooLong { .. } => CacheError::TooLarge,
            error if error.is_no_space() => CacheError::OutOfMemory,
            error => match error.kind() {
                ErrorKind::Poisoned => CacheError::Poisoned,
                _ => CacheError::Other(error.to_string()),
            },
        }
    }
}
