//! The families of indexes, and how an index of each is created.

use std::marker::PhantomData;
use std::sync::Arc;

use evermap_index::hash::{clht, dash};
use evermap_index::key::Quotient;
use evermap_index::{Clht, DashEh, Index, Persistent, Result};
use evermap_papers::cceh::{self, Locking, Recovery};
use evermap_papers::tranche::Geometry;
use evermap_papers::{Cceh, DashLh, Level, LineHash, Tranche};
use evermap_papers::{level, line, tranche};
use evermap_pm::{Medium, Pool};

use evermap_lab_core::subject::facts::Placement;
use evermap_lab_core::subject::setup::Setup;
use evermap_lab_core::workload::bytes::KeyValueLengths;

/// The root slot of the index in its pool.
pub(super) const ROOT: usize = 0;

/// A family of indexes: a function from keys and media to types.
pub trait Family {
    /// The index over these keys on a medium.
    type On<K: Quotient, M: Medium>: Index<K> + Persistent<M> + 'static;

    /// Creates an empty index.
    fn create<K: Quotient, M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup)
    -> Result<Self::On<K, M>>;

    /// Returns how the pairs are spread, if the index has tranches. May walk the whole index.
    ///
    /// # Errors
    ///
    /// The index's own.
    fn placement<K: Quotient, M: Medium>(_index: &Self::On<K, M>) -> Result<Option<Placement>> {
        Ok(None)
    }

    /// Does up to `pieces` pieces of growth ahead, if the index grows piece by piece. Returns how
    /// many it did.
    ///
    /// # Errors
    ///
    /// The index's own.
    fn grow_ahead<K: Quotient, M: Medium>(
        _index: &Self::On<K, M>,
        _pieces: u64,
    ) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Dash-EH with this many stash buckets, and this many buckets in a segment.
pub(crate) struct Dash<const STASHES: usize, const BUCKETS: usize = 64>;

impl<const STASHES: usize, const BUCKETS: usize> Family for Dash<STASHES, BUCKETS> {
    type On<K: Quotient, M: Medium> = DashEh<K, M, dash::Sizes<BUCKETS, STASHES>>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        DashEh::create(pool.clone(), pool.root(ROOT), dash_config(setup, BUCKETS))
    }
}

/// Dash-EH that looks up and changes as its paper describes.
pub(super) struct DashPaper;

impl Family for DashPaper {
    type On<K: Quotient, M: Medium> = DashEh<K, M, dash::Paper>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        DashEh::create(pool.clone(), pool.root(ROOT), dash_config(setup, 64))
    }
}

/// Dash-LH.
pub(super) struct LinearDash;

impl Family for LinearDash {
    type On<K: Quotient, M: Medium> = DashLh<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        DashLh::create(pool.clone(), pool.root(ROOT), dash_config(setup, 64))
    }
}

/// Returns the configuration with segments for all keys, about two thirds full, if that is
/// requested.
fn dash_config(setup: &Setup, buckets: usize) -> dash::Config {
    dash::Config { initial_depth: initial_depth(setup, buckets as u64 * 600 / 64) }
}

/// CCEH, with or without lookups that lock.
pub(super) struct CcehOf<const PAPER: bool>;

impl<const PAPER: bool> Family for CcehOf<PAPER> {
    type On<K: Quotient, M: Medium> = Cceh<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs in a segment of 1024 slots with the usual load.
        const PAIRS_PER_SEGMENT: u64 = 400;
        let initial_depth = initial_depth(setup, PAIRS_PER_SEGMENT);
        let (locking, recovery) = match PAPER {
            true => (Locking::Pessimistic, Recovery::Eager),
            false => (Locking::Optimistic, Recovery::Lazy),
        };
        let config = cceh::Config { initial_depth, locking, recovery };
        Cceh::create(pool.clone(), pool.root(ROOT), config)
    }
}

/// Returns the depth at which a directory names about one segment for `pairs_per_segment` of the
/// expected keys, or 1 if the table does not start at its final size.
fn initial_depth(setup: &Setup, pairs_per_segment: u64) -> u32 {
    let segments = if setup.presize { setup.keys / pairs_per_segment } else { 0 };
    segments.next_power_of_two().ilog2().max(1)
}

/// Level hashing that resizes all at once and whose lookups share locks (as in the paper), or not.
pub(super) struct Levels<const PAPER: bool>;

impl<const PAPER: bool> Family for Levels<PAPER> {
    type On<K: Quotient, M: Medium> = Level<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs for each bucket of the top level when both levels are four fifths full.
        const PAIRS_PER_BUCKET: u64 = 7;
        let mut config = level::Config::default();
        if PAPER {
            // As in the runs of the paper and the released benchmark.
            config = level::Config {
                top_level: 13,
                resize: level::Resize::Blocking,
                locking: level::Locking::Striped,
            };
        }
        if setup.presize {
            let level = (setup.keys / PAIRS_PER_BUCKET).next_power_of_two().ilog2();
            config.top_level = level.max(config.top_level);
        }
        Level::create(pool.clone(), pool.root(ROOT), config)
    }
}

/// The line hash.
pub(super) struct Lines;

impl Family for Lines {
    type On<K: Quotient, M: Medium> = LineHash<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs in a segment of 1024 slots that is about two thirds full.
        const PAIRS_PER_SEGMENT: u64 = 650;
        let initial_depth = initial_depth(setup, PAIRS_PER_SEGMENT);
        LineHash::create(pool.clone(), pool.root(ROOT), line::Config { initial_depth })
    }
}

/// The heterogeneous table with this geometry.
pub(super) struct Tranches<G: Geometry>(PhantomData<G>);

impl<G: Geometry> Family for Tranches<G> {
    type On<K: Quotient, M: Medium> = Tranche<K, M, G>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        Tranche::create(pool.clone(), pool.root(ROOT), tranche_config::<G>(setup))
    }

    fn placement<K: Quotient, M: Medium>(index: &Self::On<K, M>) -> Result<Option<Placement>> {
        Ok(Some(placement_of(index.placement()?)))
    }

    fn grow_ahead<K: Quotient, M: Medium>(
        index: &Self::On<K, M>,
        pieces: u64,
    ) -> Result<Option<u64>> {
        index.rehash_step(pieces).map(Some)
    }
}

/// Returns the configuration with groups for all records, about three quarters full, if that is
/// requested.
pub(super) fn tranche_config<G: Geometry>(setup: &Setup) -> tranche::Config {
    /// Bytes besides key and value that a record takes at most.
    const OVERHEAD: u64 = 18;
    let mut config = tranche::Config::default();
    if setup.presize {
        let bytes = setup.lengths.map_or(16, KeyValueLengths::most_bytes) + OVERHEAD;
        let group = (G::TRANCHE_BYTES * G::TRANCHES) as u64;
        let groups = setup.keys * bytes * 4 / 3 / group;
        config.initial_depth = groups.next_power_of_two().ilog2();
    }
    config
}

/// Returns what the laboratory reports of how records are spread.
pub(super) fn placement_of(found: tranche::Placement) -> Placement {
    let tranche::Placement { displaced, tranches_per_hit, tranches_per_miss, .. } = found;
    Placement { displaced, tranches_per_hit, tranches_per_miss }
}

/// P-CLHT.
pub(super) struct PClht;

impl Family for PClht {
    type On<K: Quotient, M: Medium> = Clht<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs for each home bucket of three slots: between this number and half of it, because
        /// the sizes of tables are powers of two.
        const PAIRS_PER_BUCKET: u64 = 2;
        let presized = setup.keys / PAIRS_PER_BUCKET;
        let default = clht::Config::default().initial_buckets;
        let initial_buckets = if setup.presize { presized.max(default) } else { default };
        Clht::create(pool.clone(), pool.root(ROOT), clht::Config { initial_buckets })
    }
}
