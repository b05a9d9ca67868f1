//! Evermap's own indexes as subjects, on every medium.

use evermap_index::{Bytes, Result};
use evermap_papers::names;
use evermap_papers::tranche::{Geometry, Sizes};

use super::builder::IndexBuilder;
use super::family::{CcehOf, Dash, DashPaper, Family, Levels, LinearDash, Lines, PClht, Tranches};
use super::heterogeneous;
use evermap_lab_core::LabError;
use evermap_lab_core::subject::setup::Setup;
use evermap_lab_core::subject::view::{Entry, Subject};
use evermap_lab_core::subject::work::Guards;
use evermap_lab_core::workload::bytes::KeyValueLengths;

/// Every index of this project.
pub static ENTRIES: [Entry; 16] = [
    Entry {
        name: names::DASH_EH,
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
        name: "dash-eh-paper",
        about: "Dash-EH as published: balanced insert, one displacement, versions of two buckets",
        rival: false,
        factory: |name, setup| build::<DashPaper>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: names::DASH_LH,
        about: "Dash-LH: linear hashing, the same segments; a guard for each operation",
        rival: false,
        factory: |name, setup| build::<LinearDash>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: names::CCEH,
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
        name: names::LEVEL,
        about: "Level hashing, emptying its bottom level bucket by bucket",
        rival: false,
        factory: |name, setup| build::<Levels<false>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "level-paper",
        about: "Level hashing as published: lookups share locks, and all wait for a resize",
        rival: false,
        factory: |name, setup| build::<Levels<true>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: names::LINE_HASH,
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
        name: names::P_CLHT,
        about: "P-CLHT: buckets of one cache line, lock-free lookups, one global table",
        rival: false,
        factory: |name, setup| build::<PClht>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: names::TRANCHE_256,
        about: "Heterogeneous table: growth by partial expansions, tranches of 256 bytes",
        rival: false,
        factory: |name, setup| tranches::<Sizes<256, 16, 7>>(name, setup),
    },
    Entry {
        name: "tranche-512",
        about: "Heterogeneous table: growth by partial expansions, tranches of 512 bytes",
        rival: false,
        factory: |name, setup| tranches::<Sizes<512, 16, 6>>(name, setup),
    },
    Entry {
        name: "tranche-4k",
        about: "Heterogeneous table: growth by partial expansions, tranches of 4 KiB",
        rival: false,
        factory: |name, setup| tranches::<Sizes<4096, 16, 3>>(name, setup),
    },
    Entry {
        name: "tranche-32k",
        about: "Heterogeneous table: growth by partial expansions, tranches of 32 KiB",
        rival: false,
        factory: |name, setup| tranches::<Sizes<32768, 4, 2>>(name, setup),
    },
];

/// Dash-EH with segments of other sizes, for the experiment about segment sizes.
pub static SEGMENTS: [Entry; 4] = [
    Entry {
        name: "dash-eh-1k",
        about: "Dash-EH with segments of 4 buckets (1 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| words::<Dash<2, 4>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-eh-2k",
        about: "Dash-EH with segments of 8 buckets (2 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| words::<Dash<2, 8>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-eh-4k",
        about: "Dash-EH with segments of 16 buckets (4 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| words::<Dash<2, 16>>(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-eh-8k",
        about: "Dash-EH with segments of 32 buckets (8 KiB) and two stash buckets",
        rival: false,
        factory: |name, setup| words::<Dash<2, 32>>(name, Guards::PerOperation, setup),
    },
];

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

/// Builds the heterogeneous table over words or over byte strings, on any medium. It stores byte
/// strings itself, and needs no records.
fn tranches<G: Geometry>(name: &'static str, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    match setup.lengths {
        None => words::<Tranches<G>>(name, Guards::PerOperation, setup),
        Some(lengths) => heterogeneous::build::<G>(name, lengths, setup),
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

/// Builds an index over byte strings, each pair a record in the heap.
fn byte_strings<F: Family>(
    name: &'static str,
    lengths: KeyValueLengths,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| builder.store_in::<F, Bytes>(memory, lengths));
    built.map_err(|error| LabError::index(name, error))
}
