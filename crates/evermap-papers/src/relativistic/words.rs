//! Tables as indexes of words.

use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use evermap_index::{Action, Change, Index, Key, MutateMode, Stats};
use evermap_pm::{Domain, Guard, Result};

use super::{Allowed, Decision, ResizableTable};

/// An index of words over a table, for kinds of keys that are numbers.
///
/// The guards that its operations take have to be of the [domain](Words::domain) of the table.
pub struct Words<K, T> {
    table: T,
    keys: PhantomData<fn(K) -> K>,
}

impl<K, T: ResizableTable<u64, u64>> Words<K, T> {
    /// Makes an index of a table. Its hasher should be [`KeyHash`], so that keys are where their
    /// kind says.
    pub fn new(table: T) -> Self {
        Words { table, keys: PhantomData }
    }

    /// Returns the table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Returns the domain whose guards protect readers.
    pub fn domain(&self) -> &Arc<Domain> {
        self.table.domain()
    }

    /// Makes a change, and returns the word before and after it.
    fn apply(
        &self,
        key: u64,
        allowed: Allowed,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let mut change = Change::default();
        self.table.change(&key, allowed, guard, &mut |old| {
            let old = old.copied();
            let action = decide(old);
            change = Change::of(old, action);
            match action {
                Action::Keep => Decision::Keep,
                Action::Put(word) => Decision::Put(word),
                Action::Remove => Decision::Remove,
            }
        })?;
        Ok(change)
    }
}

impl<K, T> Index<K> for Words<K, T>
where
    K: for<'a> Key<Ref<'a> = u64>,
    T: ResizableTable<u64, u64>,
{
    #[inline]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        Ok(self.table.get_copied(&key, guard))
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let allowed = match mode {
            MutateMode::MayInsert => Allowed::Anything,
            MutateMode::ExistingOnly => Allowed::Existing,
        };
        self.apply(key, allowed, guard, decide)
    }

    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<Change> {
        self.apply(key, Allowed::Removal, guard, &mut |_| Action::Remove)
    }

    fn remove_if(&self, key: u64, expected: u64, guard: &Guard<'_>) -> Result<Change> {
        self.apply(key, Allowed::Removal, guard, &mut |old| match old {
            Some(word) if word == expected => Action::Remove,
            _ => Action::Keep,
        })
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.table.for_each(guard, &mut |&key, &word| each(key, word));
        Ok(())
    }

    /// O(locks). `segments` and `capacity` are the number of buckets.
    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let stats = self.table.stats();
        Ok(Stats {
            len: stats.pairs,
            capacity: stats.buckets,
            segments: stats.buckets,
            dram_bytes: stats.bytes,
            depth: stats.buckets.trailing_zeros(),
            splits: stats.expansions,
            merges: stats.shrinks,
            ..Stats::default()
        })
    }
}

/// Hashes numbers as a kind of keys does: `KeyHash<u64>` is the hash of all indexes, under a seed.
#[derive(Debug)]
pub struct KeyHash<K> {
    seed: u64,
    keys: PhantomData<fn(K) -> K>,
}

impl<K> KeyHash<K> {
    /// Creates the hash with this seed.
    pub fn new(seed: u64) -> Self {
        KeyHash { seed, keys: PhantomData }
    }
}

impl<K> Clone for KeyHash<K> {
    fn clone(&self) -> Self {
        Self::new(self.seed)
    }
}

/// The hasher of [`KeyHash`].
#[derive(Debug)]
pub struct KeyHasher<K> {
    seed: u64,
    hash: u64,
    keys: PhantomData<fn(K) -> K>,
}

impl<K: for<'a> Key<Ref<'a> = u64>> BuildHasher for KeyHash<K> {
    type Hasher = KeyHasher<K>;

    #[inline(always)]
    fn build_hasher(&self) -> KeyHasher<K> {
        KeyHasher { seed: self.seed, hash: 0, keys: PhantomData }
    }
}

impl<K: for<'a> Key<Ref<'a> = u64>> Hasher for KeyHasher<K> {
    fn write(&mut self, bytes: &[u8]) {
        let fold = |hash, &byte| K::hash(hash ^ u64::from(byte), self.seed);
        self.hash = bytes.iter().fold(self.hash, fold);
    }

    #[inline(always)]
    fn write_u64(&mut self, number: u64) {
        self.hash = K::hash(number, self.seed);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.hash
    }
}
