//! Storing several records together.

use evermap_index::BATCH_KEYS;
use evermap_index::key::BytesRef;
use evermap_index::record::HEAD;
use evermap_pm::Medium;

use crate::ops::write::Condition;
use crate::record::Draft;
use crate::{Error, Map, Meta, Result};

/// Values that are longer than this are stored one by one: writing them takes longer than what a
/// group saves.
const VALUE_MAX: usize = 16 << 10;

/// A record that is to be stored: see [`CacheMap::set_many`](crate::cache::CacheMap::set_many).
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// What is stored beside the value.
    pub meta: Meta,
}

/// # Storing many records
impl<M: Medium> Map<M> {
    /// Binds each key to its value, whether or not it is present. Does what a [`put`](Map::put) for
    /// each pair does, in their order, in less time: the cache misses of 32 keys overlap, and where
    /// changes are flushed they are flushed together. With a [log](crate::Durability::Log) there is
    /// one wait for all. Expected O(n).
    ///
    /// Each pair is stored by itself: readers and a crash can meet any part of them. A
    /// [`Batch`](crate::Batch) stores all or nothing.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put_many(&[("ant", "6"), ("spider", "8"), ("snake", "0")])?;
    /// assert_eq!(map.get("spider")?.as_deref(), Some(&b"8"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]. The pairs before the one with the error are stored, and some of those after it
    /// may be.
    pub fn put_many<K, V>(&self, pairs: &[(K, V)]) -> Result<()>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let mut result = Ok(());
        for pairs in pairs.chunks(BATCH_KEYS) {
            let nothing = NewRecord { key: &[], value: &[], meta: Meta::new() };
            let mut records = [nothing; BATCH_KEYS];
            for (record, (key, value)) in records.iter_mut().zip(pairs) {
                (record.key, record.value) = (key.as_ref(), value.as_ref());
            }
            self.store_many(&records[..pairs.len()], &mut |_, stored| {
                if let (Err(error), Ok(())) = (stored, &result) {
                    result = Err(error);
                }
            });
            if result.is_err() {
                break;
            }
        }
        self.db.settle()?;
        result
    }

    /// Stores records, of which some may not be durable with a log: see
    /// [`settle`](crate::Evermap::sync). Calls `each` with the place of each record and its CAS id.
    pub(crate) fn store_many(
        &self,
        records: &[NewRecord<'_>],
        each: &mut dyn FnMut(usize, Result<u64>),
    ) {
        let mut at = 0;
        while at < records.len() {
            let mut keys = [BytesRef { bytes: &[], hash: 0 }; BATCH_KEYS];
            let count = self.begin_group(&records[at..], &mut keys);
            let mut stored = [const { None }; BATCH_KEYS];
            if count > 1 {
                self.store_group(&keys[..count], &records[at..at + count], &mut stored);
            }
            for (stored, record) in stored.into_iter().zip(&records[at..at + count.max(1)]) {
                each(at, stored.unwrap_or_else(|| self.store_alone(record)));
                at += 1;
            }
        }
    }

    /// Finds out how many of the first records can be stored together, and their keys.
    fn begin_group<'r>(
        &self,
        records: &[NewRecord<'r>],
        keys: &mut [BytesRef<'r>; BATCH_KEYS],
    ) -> usize {
        for (at, record) in records.iter().enumerate().take(BATCH_KEYS) {
            let key = match self.begin_change(record.key) {
                // In a group, a later record of a key could overtake an earlier one.
                Ok(key) if keys[..at].iter().all(|other| other.hash != key.hash) => key,
                _ => return at,
            };
            if record.value.len() > VALUE_MAX {
                return at;
            }
            keys[at] = key;
        }
        records.len().min(BATCH_KEYS)
    }

    /// Stores as many of the records as it can. Leaves `None` for those that are to be stored
    /// alone.
    fn store_group(
        &self,
        keys: &[BytesRef<'_>],
        records: &[NewRecord<'_>],
        stored: &mut [Option<Result<u64>>; BATCH_KEYS],
    ) {
        let Ok(guard) = self.enter_writing() else { return };
        let index = &self.inner.index;
        keys.iter().for_each(|key| index.prefetch_bucket(*key));
        let mut drafts: Vec<Draft<'_, M>> = Vec::with_capacity(keys.len());
        for (key, record) in keys.iter().zip(records) {
            // What lacks space is stored alone, which makes some.
            let Ok(draft) = self.draft(*key, record.value, record.meta) else { break };
            draft.flush();
            drafts.push(draft);
        }
        let keys = &keys[..drafts.len()];
        self.db.file.pool.medium().fence();
        keys.iter().for_each(|key| index.prefetch_record(*key, HEAD));
        let bound = self.commit_many(keys, &drafts, &guard);
        for ((stored, bound), draft) in stored.iter_mut().zip(bound).zip(&drafts) {
            *stored = match bound {
                Ok(true) => Some(Ok(draft.cas())),
                Ok(false) => None,
                Err(Error::Full { .. }) => None,
                Err(Error::Storage(error)) if error.is_no_space() => None,
                Err(error) => Some(Err(error)),
            };
        }
    }

    fn store_alone(&self, record: &NewRecord<'_>) -> Result<u64> {
        let key = self.begin_change(record.key)?;
        let outcome = self
            .with_space(|| self.try_store(key, record.value, record.meta, Condition::Any, None))?;
        Ok(outcome.cas().expect("something was stored"))
    }
}
