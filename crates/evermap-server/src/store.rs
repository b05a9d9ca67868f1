//! The implementation of [`Cache`] for the store.
//!
//! Every method is one operation of the store, and as atomic and durable as that operation. A store
//! that is a cache evicts items where another one rejects those that do not fit.

use std::fmt::Display;
use std::ops::ControlFlow;

use evermap::{Edit, Error, ErrorKind, Map, Meta, Outcome, UnreadRecord};

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Side, StoreMode, StoreOutcome, Value, apply_delta,
};

impl Cache for Map {
    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> Hit,
    ) -> Result<(), CacheError> {
        let mut result = Ok(());
        self.find_many(keys, |i, record| {
            let hit = record.map_err(CacheError::from).and_then(|record| {
                hit(i, Item { flags: record.flags(), cas: record.cas(), value: &record })
            });
            hit.unwrap_or_else(|error| {
                result = Err(error);
                ControlFlow::Break(())
            })
        })?;
        result
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let hit = Map::get_and_touch(self, key, expiry_of(expiry), |item| with_item(&item, hit))?;
        Ok(hit.transpose()?.is_some())
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
            // The closure is called again if another thread changes the item in between. Only the
            // last call counts.
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
        let mut result = Arithmetic::NotFound;
        self.modify(key, |item| {
            let Some(item) = item else {
                result = Arithmetic::NotFound;
                return Edit::Keep;
            };
            let mut value = Vec::new();
            match apply_delta(item.value, delta, up, &mut value) {
                Some(number) => {
                    result = Arithmetic::Value(number);
                    Edit::Value(value)
                }
                None => {
                    result = Arithmetic::NonNumeric;
                    Edit::Keep
                }
            }
        })?;
        Ok(result)
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

    /// The names are memcached's where it has them. `limit_maxbytes` is 0 if there is no limit.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let stat = self.stat();
        each("curr_items", &stat.records.value);
        each("bytes", &stat.record_bytes.value);
        each("limit_maxbytes", &stat.memory_limit.or(stat.max_bytes).unwrap_or(0));
        each("evictions", &stat.evictions);
        each("evicted_unfetched", &stat.evicted_unfetched);
        each("expired_unfetched", &stat.expired_unfetched);
        each("reclaimed", &stat.purged);
        each("evermap_memory_used", &stat.memory_used);
        each("evermap_eviction_age", &stat.eviction_age);
        each("evermap_evicted_bytes", &stat.evicted_bytes);
        each("evermap_evicted_directly", &stat.evicted_directly);
        each("evermap_moved_for_space", &stat.moved_for_space);
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

impl Value for UnreadRecord<'_> {
    fn len(&self) -> usize {
        self.value_len()
    }

    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), CacheError> {
        Ok(UnreadRecord::append_to(self, out)?)
    }
}

/// Converts an expiry of the protocol, where 0 means never, to one of the store.
fn expiry_of(expiry: u32) -> Option<u64> {
    (expiry != 0).then_some(u64::from(expiry))
}

/// Calls `f` with a record of the store as an item of the cache.
fn with_item<R>(item: &evermap::Item<'_>, f: impl FnOnce(Item<'_>) -> R) -> R {
    f(Item { flags: item.flags, cas: item.cas, value: &item.value })
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
