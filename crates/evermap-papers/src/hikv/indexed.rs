//! The store as an ordered index, whose words are values of 8 bytes.

use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use evermap_index::ordered::{Direction, OrderedIndex, Page, PersistentOrdered};
use evermap_index::{Action, Change, MutateMode, Stats, Visitor};
use evermap_pm::{Medium, PmU64, Pool, Result};

use super::{Backends, Config, HiKv};

/// How an index of this type is configured.
pub trait Settings: 'static {
    /// Returns the configuration, whose keys have one range.
    fn config() -> Config;
}

/// As the paper describes it.
pub enum Usual {}

impl Settings for Usual {
    fn config() -> Config {
        Config::default()
    }
}

/// The same without threads: the threads that need the tree build it and update it.
pub enum Alone {}

impl Settings for Alone {
    fn config() -> Config {
        Config { backends: Some(Backends::Fixed(0)), rebuild_threads: 0, ..Config::default() }
    }
}

/// So small that a few dozen keys cause everything: without threads, and with queues of few
/// requests. With a log if `LOG`.
pub enum Tiny<const LOG: bool> {}

impl<const LOG: bool> Settings for Tiny<LOG> {
    fn config() -> Config {
        Config {
            partition_bits: 1,
            base: 1,
            spares: 2,
            requests: 8,
            logs: if LOG { 2 } else { 0 },
            log_bytes: 1 << 10,
            ..Alone::config()
        }
    }
}

/// HiKV in medium `M` as an ordered index, whose words are values of 8 bytes.
///
/// A page is what one tree holds at one moment, after the tree shows what was acknowledged when
/// the page was asked for. The changes of different keys may reach the tree in another order than
/// they were made. So a page never misses what was acknowledged before it was asked for, but of two
/// changes made meanwhile it may show only the later one.
pub struct Indexed<M: Medium, S> {
    store: HiKv<M>,
    settings: PhantomData<fn() -> S>,
}

impl<M: Medium, S: Settings> Indexed<M, S> {
    fn new(store: HiKv<M>) -> Self {
        Indexed { store, settings: PhantomData }
    }

    /// Returns the store.
    pub fn store(&self) -> &HiKv<M> {
        &self.store
    }
}

impl<M: Medium, S: Settings> OrderedIndex for Indexed<M, S> {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        self.store.core.word(key)
    }

    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.store.core.mutate(key, (mode, true), decide)
    }

    fn remove(&self, key: &[u8]) -> Result<Change> {
        let mode = (MutateMode::ExistingOnly, false);
        self.store.core.mutate(key, mode, &mut |_| Action::Remove)
    }

    fn remove_if(&self, key: &[u8], expected: u64) -> Result<Change> {
        let mode = (MutateMode::ExistingOnly, false);
        self.store.core.mutate(key, mode, &mut |old| match old {
            Some(word) if word == expected => Action::Remove,
            _ => Action::Keep,
        })
    }

    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()> {
        self.store.core.page(from, direction, page)
    }

    /// Walks over the hash index: O(n).
    fn len(&self) -> u64 {
        self.stats().len
    }

    /// Walks over the hash index: O(n). `segments` is the number of buckets, with chained ones.
    fn stats(&self) -> Stats {
        let Ok(stats) = self.store.stats() else { return Stats::default() };
        let census = stats.census;
        Stats {
            len: census.keys,
            capacity: census.entries,
            segments: census.buckets + census.chained,
            pm_bytes: census.bytes,
            dram_bytes: stats.dram_bytes,
            ..Stats::default()
        }
    }

    fn check(&self) -> Vec<String> {
        self.store.check()
    }
}

impl<M: Medium, S: Settings> PersistentOrdered<M> for Indexed<M, S> {
    fn create(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(Self::new(HiKv::create(pool, root, S::config())?))
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        HiKv::is_at(pool, root)
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(Self::new(HiKv::open(pool, root, S::config())?))
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.store.core.visit(visitor, true)
    }

    fn close(&self) -> Result<()> {
        self.store.close()
    }
}
