//! The map as an [`Index`] of words, for the conformance kit.

use std::hash::BuildHasher;

use evermap_index::{Action, Change, Index, Key, MutateMode, Stats};
use evermap_pm::{Guard, Result};

use crate::map::VolatileMap;
use crate::shard::{Decision, Subject};

/// A [`VolatileMap`] behind the trait of the indexes. Guards must be those of the map's domain.
pub(super) struct VolatileWords<S>(VolatileMap<u64, u64, S>);

impl<S> VolatileWords<S> {
    /// Wraps a map.
    pub(super) fn new(map: VolatileMap<u64, u64, S>) -> Self {
        VolatileWords(map)
    }

    /// Returns the map.
    pub(super) fn map(&self) -> &VolatileMap<u64, u64, S> {
        &self.0
    }
}

impl<K, S> Index<K> for VolatileWords<S>
where
    K: for<'a> Key<Ref<'a> = u64>,
    S: BuildHasher + Send + Sync,
{
    #[inline]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        Ok(self.0.with_guard(guard).get(&key).copied())
    }

    fn lookup_batch(&self, keys: &[u64], out: &mut [Option<u64>], guard: &Guard<'_>) -> Result<()> {
        let map = self.0.with_guard(guard);
        keys.iter().for_each(|key| map.prefetch(key));
        for (key, out) in keys.iter().zip(out) {
            *out = map.get(key).copied();
        }
        Ok(())
    }

    fn prefetch_bucket(&self, key: u64) {
        self.0.pin().prefetch(&key);
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (map, hash) = (self.0.with_guard(guard), self.0.hashing.hash(&key));
        let subject: Subject<'_, u64, u64> = Subject::Owned(key);
        let change = map.modify(subject, hash, |current| match current {
            None if mode == MutateMode::ExistingOnly => Decision::Keep,
            current => match decide(current.map(|entry| entry.value)) {
                Action::Keep => Decision::Keep,
                Action::Put(word) => Decision::Put(word),
                Action::Remove => Decision::Remove,
            },
        });
        Ok(Change {
            old: change.old.map(|entry| entry.value),
            new: change.new.map(|entry| entry.value),
        })
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.0.with_guard(guard).iter().all(|(&key, &word)| each(key, word));
        Ok(())
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let stats = self.0.stats();
        Ok(Stats {
            len: stats.len as u64,
            capacity: stats.slots as u64,
            segments: self.0.shards.len() as u64,
            dram_bytes: stats.bytes as u64,
            splits: stats.resizes as u64,
            ..Stats::default()
        })
    }
}
