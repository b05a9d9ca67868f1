//! Evermap's own indexes as subjects, on every medium.

use std::sync::Arc;

use evermap_index::hash::cceh::{self, Locking, Recovery};
use evermap_index::hash::{clht, dash, level, line};
use evermap_index::key::Quotient;
use evermap_index::{
    Bytes, Cceh, Clht, DashEh, DashLh, Index, Level, LineHash, Persistent, Result,
};
use evermap_pm::{Medium, Pool};

use super::builder::{IndexBuilder, ROOT};
use super::media::Memory;
use crate::LabError;
use crate::subject::facts::MediumKind;
use crate::subject::setup::Setup;
use crate::subject::view::{Entry, Subject};
use crate::subject::work::Guards;
use crate::workload::bytes::KeyValueLengths;

/// Every index of this project.
pub(crate) const ENTRIES: [Entry; 11] = [
    Entry {
        name: "dash-eh",
        about: "Dash-EH: extendible hashing, optimistic lookups; a guard for each operation",
        rival: false,
        factory: |name, setup| build::<Dash<2>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-eh-batch",
        about: "Dash-EH with one guard for 1024 operations",
        rival: false,
        factory: |name, setup| words::<Dash<2>>(name, Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "dash-eh-4-stash",
        about: "Dash-EH with four stash buckets a segment instead of two",
        rival: false,
        factory: |name, setup| words::<Dash<4>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-lh",
        about: "Dash-LH: linear hashing, the same segments; a guard for each operation",
        rival: false,
        factory: |name, setup| build::<LinearDash>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "cceh",
        about: "CCEH: extendible hashing, buckets of one line, optimistic lookups",
        rival: false,
        factory: |name, setup| build::<CcehOf<false>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "cceh-paper",
        about: "CCEH whose lookups share the segment's lock, as in the released codes",
        rival: false,
        factory: |name, setup| build::<CcehOf<true>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "level",
        about: "Level hashing, emptying its bottom level bucket by bucket",
        rival: false,
        factory: |name, setup| build::<Levels<false>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "level-paper",
        about: "Level hashing as in its paper: operations wait while a level is emptied",
        rival: false,
        factory: |name, setup| build::<Levels<true>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "line-hash",
        about: "Line hash: extendible hashing, buckets of one line; a guard for each operation",
        rival: false,
        factory: |name, setup| build::<Lines>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "line-hash-batch",
        about: "Line hash with one guard for 1024 operations",
        rival: false,
        factory: |name, setup| words::<Lines>(name, Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "p-clht",
        about: "P-CLHT: buckets of one cache line, lock-free lookups, one global table",
        rival: false,
        factory: |name, setup| build::<PClht>(name, Guards::PerOperation, setup),
    },
];

/// Dash-EH with segments of other sizes, for the experiment about segment sizes.
pub(crate) const SEGMENTS: [Entry; 4] = [
    Entry {
        name: "dash-eh-1k",
        about: "Dash-EH with segments of 4 buckets (1 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| plain::<Dash<2, 4>>(name, setup),
    },
    Entry {
        name: "dash-eh-2k",
        about: "Dash-EH with segments of 8 buckets (2 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| plain::<Dash<2, 8>>(name, setup),
    },
    Entry {
        name: "dash-eh-4k",
        about: "Dash-EH with segments of 16 buckets (4 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| plain::<Dash<2, 16>>(name, setup),
    },
    Entry {
        name: "dash-eh-8k",
        about: "Dash-EH with segments of 32 buckets (8 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| plain::<Dash<2, 32>>(name, setup),
    },
];

/// A family of indexes: a function from keys and media to types.
pub(crate) trait Family {
    /// The index over these keys on a medium.
    type On<K: Quotient, M: Medium>: Index<K> + Persistent<M> + 'static;

    /// Creates an empty index.
    fn create<K: Quotient, M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup)
    -> Result<Self::On<K, M>>;
}

/// Dash-EH with this many stash buckets, and this many buckets in a segment.
pub(crate) struct Dash<const STASHES: usize, const BUCKETS: usize = 64>;

impl<const STASHES: usize, const BUCKETS: usize> Family for Dash<STASHES, BUCKETS> {
    type On<K: Quotient, M: Medium> = DashEh<K, M, BUCKETS, STASHES>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        DashEh::create(pool.clone(), pool.root(ROOT), dash_config(setup, BUCKETS))
    }
}

/// Dash-LH.
struct LinearDash;

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

/// CCEH, with or without look-ups that lock.
struct CcehOf<const PAPER: bool>;

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

/// Level hashing that resizes all at once (as in the paper) or incrementally.
struct Levels<const BLOCKING: bool>;

impl<const BLOCKING: bool> Family for Levels<BLOCKING> {
    type On<K: Quotient, M: Medium> = Level<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs for each bucket of the top level when both levels are four fifths full.
        const PAIRS_PER_BUCKET: u64 = 7;
        let mut config = level::Config::default();
        if BLOCKING {
            // As in the runs of the paper and the released benchmark.
            config = level::Config { top_level: 13, resize: level::Resize::Blocking };
        }
        if setup.presize {
            let level = (setup.keys / PAIRS_PER_BUCKET).next_power_of_two().ilog2();
            config.top_level = level.max(config.top_level);
        }
        Level::create(pool.clone(), pool.root(ROOT), config)
    }
}

/// The line hash.
struct Lines;

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

/// P-CLHT.
struct PClht;

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

/// Builds an index over words or over byte strings, on any medium.
fn build<F: Family>(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    match setup.lengths {
        None => words::<F>(name, guards, setup),
        Some(lengths) => byte_strings::<F>(name, lengths, setup),
    }
}

/// Builds an index over words, on any medium.
fn words<F: Family>(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    let builder = IndexBuilder { name, guards, setup };
    let built = builder.memory().and_then(|memory| builder.table_in::<F, u64>(memory));
    built.map_err(|error| LabError::index(name, error))
}

/// Builds an index over words in anonymous memory, the only medium that it supports.
fn plain<F: Family>(name: &'static str, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    setup.media_only(name, &[MediumKind::Dram])?;
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.anonymous().and_then(|medium| builder.table::<F, u64, _>(medium, |_| None));
    built.map_err(|error| LabError::index(name, error))
}

/// Builds an index over byte strings, each pair a record in the heap.
fn byte_strings<F: Family>(
    name: &'static str,
    lengths: KeyValueLengths,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    // Nothing is counted of byte strings.
    let setup = &setup.uncounted();
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => builder.store::<F, Bytes, _>(medium, lengths),
        Memory::Watched(medium) => builder.store::<F, Bytes, _>(medium, lengths),
    });
    built.map_err(|error| LabError::index(name, error))
}
