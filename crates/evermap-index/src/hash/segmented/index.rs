//! [`Index`] and [`Persistent`], for all indexes that are made of segments.

use std::sync::Arc;

use evermap_pm::{Guard, Medium, PmU64, Pool, Result};

use super::core::Core;
use super::map::SegmentMap;
use super::{Segmented, check, walk};
use crate::fresh::Fresh;
use crate::hash::hash_prefix::HashPrefix;
use crate::hash::{mistakes, walk_order};
use crate::index::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor};
use crate::{Key, changes_by_apply, root};

/// What each index made of segments has of its own in the operations of [`Index`] and
/// [`Persistent`], which it has through this trait.
pub trait SegmentedIndex: Segmented + Send + Sync {
    /// The kind of key.
    type Key: Key;
    /// See [`Persistent::Config`].
    type Config;

    /// Returns the first word of the root block, which encodes the kind of index, the key format
    /// and the geometry.
    fn kind() -> u64;

    /// Returns the first word of the root block of an index whose segments an earlier version may
    /// have written, if this one can use them. It becomes [`kind`](Self::kind) when such an index
    /// is opened, because that version could not use what this one writes.
    fn earlier_kind() -> Option<u64> {
        None
    }

    /// Returns the depth of the segments of a new index.
    ///
    /// # Errors
    /// `Config`.
    fn initial_depth(config: &Self::Config) -> Result<u32>;

    /// Returns the index that consists of these parts: a new one if there is a configuration, which
    /// is stored in the root block, or else one that is opened.
    ///
    /// # Errors
    /// `Damaged`.
    fn assemble(
        core: Core<Self::Medium>,
        map: Self::Map,
        config: Option<Self::Config>,
    ) -> Result<Self>;

    /// Writes a segment with this prefix and no records into a new block, flushed without a fence.
    ///
    /// # Errors
    /// `Damaged` if the segment would end outside the region.
    fn write_empty(&self, offset: u64, prefix: HashPrefix) -> Result<()>;

    /// Makes every segment stale, so that each is recovered before it is used.
    ///
    /// # Errors
    /// `Damaged`.
    fn make_all_stale(&self) -> Result<()> {
        Self::Map::make_all_stale(self)
    }

    /// Called when the index was opened.
    ///
    /// # Errors
    /// `Poisoned`.
    fn opened(&self) -> Result<()> {
        Ok(())
    }

    /// Implements [`Index::get`].
    ///
    /// # Errors
    /// See there.
    fn look_up(&self, key: <Self::Key as Key>::Ref<'_>) -> Result<Option<u64>>;

    /// Implements [`Index::lookup_batch`].
    ///
    /// # Errors
    /// See there.
    fn look_up_batch(
        &self,
        keys: &[<Self::Key as Key>::Ref<'_>],
        out: &mut [Option<u64>],
    ) -> Result<()>;

    /// Implements [`Index::prefetch_bucket`].
    #[inline]
    fn prefetch_home(&self, _key: <Self::Key as Key>::Ref<'_>) {}

    /// Implements [`Index::prefetch_record`].
    #[inline]
    fn prefetch_found(&self, _key: <Self::Key as Key>::Ref<'_>, _bytes: u64) {}

    /// Implements [`Index::mutate`].
    ///
    /// # Errors
    /// See there.
    fn apply(
        &self,
        key: <Self::Key as Key>::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Implements [`Index::mutate_batch`].
    fn apply_batch(
        &self,
        keys: &[<Self::Key as Key>::Ref<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        for (at, (&key, out)) in keys.iter().zip(out).enumerate() {
            *out = self.apply(key, mode, guard, |old| decide(at, old));
        }
    }
}

impl<K: Key, T: SegmentedIndex<Key = K>> Index<K> for T {
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        self.core().expect_own(guard);
        self.look_up(key)
    }

    fn lookup_batch(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        self.core().expect_own(guard);
        self.look_up_batch(keys, out)
    }

    #[inline]
    fn prefetch_bucket(&self, key: K::Ref<'_>) {
        self.prefetch_home(key);
    }

    #[inline]
    fn prefetch_record(&self, key: K::Ref<'_>, bytes: u64) {
        self.prefetch_found(key, bytes);
    }

    changes_by_apply!();

    fn mutate_batch(
        &self,
        keys: &[K::Ref<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        self.apply_batch(keys, mode, guard, decide, out);
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        walk_order::for_each(self, &self.core().pool, each)
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        walk::stats(self)
    }
}

impl<M: Medium, T: SegmentedIndex<Medium = M>> Persistent<M> for T {
    type Config = T::Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: T::Config) -> Result<T> {
        pool.region().ensure_writable()?;
        // Nothing is reachable until the root cell refers to it, so an error or a crash leaves no
        // index.
        let depth = T::initial_depth(&config)?;
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate(T::Map::ROOT_BYTES)?;
        let (map, segments) = T::Map::create(&pool, block, depth)?;
        fresh.keep();
        let index = T::assemble(Core::new(pool.clone(), block), map, Some(config))?;
        let m = pool.medium();
        if m.mutant(mistakes::ROOT_TOO_EARLY) {
            m.store(root, block);
            m.persist(root);
        }
        for (pattern, offset) in (0..).zip(segments) {
            index.write_empty(offset, HashPrefix { depth, pattern })?;
        }
        root::publish(&pool, root, block, T::kind());
        Ok(index)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        let is_of = |kind| root::is_of(pool, root, kind);
        is_of(T::kind()) || T::earlier_kind().is_some_and(is_of)
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<T> {
        if let Some(earlier) = T::earlier_kind()
            && root::is_of(&pool, root, earlier)
        {
            root::convert(&pool, root, earlier, T::kind())?;
        }
        let block = root::block_of(&pool, root, T::kind())?;
        let map = T::Map::open(&pool, block)?;
        let index = T::assemble(Core::new(pool, block), map, None)?;
        if index.core().region.must_recover_all() {
            // Stamps of an earlier opener could equal those of this one.
            index.make_all_stale()?;
        }
        index.opened()?;
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        walk::visit(self, visitor)
    }

    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        walk_order::scan(self, from, guard, each)
    }

    fn check(&self) -> Vec<String> {
        check::check(self)
    }
}
