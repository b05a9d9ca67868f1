//! Evermap's own indexes as subjects, on every medium.

use std::sync::Arc;

use evermap_index::hash::dash;
use evermap_index::{DashEh, Index, Persistent, Result};
use evermap_pm::medium::{Dram, Note};
use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::{Guard, Medium, Pool};

use crate::LabError;
use crate::subject::{Entry, Found, Guards, Measured, Place, Setup, Size, Subject, Table};

/// Every index of ours.
pub(crate) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "dash-eh",
        about: "Dash-EH: extendible hashing, optimistic lookups; a guard for each operation",
        rival: false,
        build: |setup| build::<Dash>("dash-eh", Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-eh-batch",
        about: "Dash-EH with one guard for 1024 operations",
        rival: false,
        build: |setup| build::<Dash>("dash-eh-batch", Guards::PerBatch(1024), setup),
    },
];

/// An index, as a function from media to types.
trait Kind {
    /// The index on a medium.
    type On<M: Medium>: Index<u64> + 'static;

    /// Builds an empty one.
    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>>;
}

struct Dash;

impl Kind for Dash {
    type On<M: Medium> = DashEh<u64, M>;

    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>> {
        /// Pairs in a segment of the usual geometry that is about two thirds full.
        const PAIRS_PER_SEGMENT: u64 = 600;
        let segments = if setup.presize { setup.keys / PAIRS_PER_SEGMENT } else { 0 };
        let initial_depth = segments.next_power_of_two().ilog2().max(1);
        DashEh::create(pool.clone(), ROOT, dash::Config { initial_depth })
    }
}

/// Root slot of the index in its pool.
const ROOT: usize = 0;
/// Address space for a key, bytes. Memory is taken only when it is used.
const ADDRESSES_PER_KEY: u64 = 256;
/// Address space for an empty index, bytes.
const ADDRESSES_MIN: u64 = 1 << 30;

fn build<K: Kind>(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    let capacity = ADDRESSES_MIN.saturating_add(setup.keys.saturating_mul(ADDRESSES_PER_KEY));
    on::<K, Dram>(Dram::reserve(capacity, setup.pages), setup)
        .map(|table| Box::new(Measured { name, table, guards }) as Box<dyn Subject>)
        .map_err(|source| LabError::Index { index: name, source })
}

/// Puts an empty index into `medium`.
fn on<K: Kind, M: Medium>(medium: Result<M>, setup: &Setup) -> Result<Indexed<M, K::On<M>>> {
    let medium = medium?;
    // The rivals hash without a seed, too.
    let config = RegionConfig { capacity: medium.capacity(), seed: Some(0), ..Default::default() };
    let pool = Pool::create(medium, &config, Identity::default())?;
    let index = K::create(&pool, setup)?;
    Ok(Indexed { pool, index })
}

/// An index in a pool of its own.
///
/// Each operation is announced to the medium, which costs nothing on media that do not listen: that is how a
/// counting medium knows which lines belong together.
pub(crate) struct Indexed<M: Medium, I> {
    /// The pool that the index lives in.
    pub(crate) pool: Arc<Pool<M>>,
    /// The index.
    pub(crate) index: I,
}

impl<M: Medium, I: Index<u64>> Indexed<M, I> {
    #[inline(always)]
    fn announced<R>(&self, operation: impl FnOnce(&I) -> R) -> R {
        self.pool.medium().note(Note::Begin(0));
        let result = operation(&self.index);
        self.pool.medium().note(Note::End(0));
        result
    }
}

impl<M: Medium, I: Index<u64> + 'static> Table for Indexed<M, I> {
    type Guard<'a> = Guard<'a>;

    #[inline(always)]
    fn guard(&self) -> Guard<'_> {
        self.pool.pin()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        Ok(self.announced(|index| index.insert(key, word, guard))?.old.into())
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        self.announced(|index| index.get(key, guard))
    }

    #[inline(always)]
    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], guard: &Guard<'_>) -> Result<()> {
        self.announced(|index| index.get_many(keys, out, guard))
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        Ok(self.announced(|index| index.update(key, word, guard))?.old.into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<Found> {
        Ok(self.announced(|index| index.remove(key, guard))?.old.into())
    }

    fn size(&self) -> Result<Size> {
        let stats = self.index.stats(&self.pool.pin())?;
        Ok(Size {
            len: Some(stats.len),
            load_factor: Some(stats.load_factor()),
            dram_bytes: Some(stats.dram_bytes),
            pm_bytes: Some(stats.pm_bytes),
        })
    }

    fn place(&self) -> Place {
        Place { medium: self.pool.medium().name().to_owned(), ..Place::default() }
    }
}
