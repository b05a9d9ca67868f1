//! The implementation of [`Cache`] for the store.
//!
//! Every method is one operation of the store, and as atomic and durable as that operation. Nothing
//! is evicted: a full store rejects items that do not fit.

use std::fmt::Display;
use std::ops::ControlFlow;

use evermap::{Edit, Error, Evermap, Meta, Outcome, UnreadRecord};
use evermap_pm::ErrorKind;

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Side, StoreMode, StoreOutcome, Value, apply_delta,
};

impl Cache for Evermap {
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
        let hit = (**self).get_and_touch(key, expiry, |item| with_item(&item, hit))?;
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
        let meta = Meta { flags, expires_at: expiry };
        let outcome = match mode {
            StoreMode::Set => self.put_with(key, value, meta),
            StoreMode::Add => self.insert(key, value, meta),
            StoreMode::Replace => self.update(key, value, meta),
            StoreMode::Cas(cas) => self.compare_exchange(key, cas, value, meta),
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
        let mut too_large = false;
        let outcome = self.modify(key, |item| {
            // The closure is called again if another thread changes the item in between. Only the
            // last call counts.
            too_large = false;
            let Some(item) = item else { return Edit::Keep };
            if item.value.len() + data.len() > value_max {
                too_large = true;
                return Edit::Keep;
            }
            Edit::Value(match side {
                Side::Append => [item.value, data].concat(),
                Side::Prepend => [data, item.value].concat(),
            })
        })?;
        match outcome {
            _ if too_large => Err(CacheError::TooLarge),
            Outcome::Updated { .. } => Ok(StoreOutcome::Stored),
            _ => Ok(StoreOutcome::NotStored),
        }
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError> {
        let mut result = Arithmetic::NotFound;
        let _ = self.modify(key, |item| {
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
        Ok((**self).touch(key, expiry)?)
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        Ok((**self).flush_all(at)?)
    }

    /// The names are memcached's where it has them. `limit_maxbytes` is 0 if there is no limit.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let summary = self.summary();
        each("curr_items", &summary.records.value);
        each("bytes", &summary.record_bytes.value);
        each("limit_maxbytes", &summary.max_bytes.unwrap_or(0));
        each("evictions", &0);
        each("evermap_file_bytes", &summary.file_bytes);
        each("evermap_durability", &summary.durability);
        each("evermap_generation", &summary.generation);
        each("evermap_clean_open", &u8::from(summary.clean_open));
        each("evermap_counts_exact", &u8::from(summary.records.exact));
        each("evermap_sweep", &summary.sweep);
        each("evermap_damage_met", &summary.damage_met);
        if let Some(ordered) = &summary.ordered {
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
                Some(ErrorKind::Poisoned) => CacheError::Poisoned,
                _ => CacheError::Other(error.to_string()),
            },
        }
    }
}
