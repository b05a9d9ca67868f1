//! Concurrent tables by other authors, to measure ours beside them.
//!
//! All hash with the function that Evermap's indexes use, so that the tables are compared and not the hashes.
//! They live in ordinary memory whatever medium is asked for, on the pages that the allocator gives
//! (with glibc, `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment makes these huge).

use crate::LabError;
use crate::subject::{Entry, Guards, Measured, Setup, Subject, Table};

mod dashmap;
mod hashbrown;
mod papaya;
mod scc;

/// Every rival.
pub(crate) const ENTRIES: [Entry; 6] = [
    Entry {
        name: "papaya",
        about: "papaya: lock-free, nodes on the heap, hyaline reclamation; a guard for each operation",
        rival: true,
        build: |setup| papaya::build("papaya", Guards::PerOperation, setup),
    },
    Entry {
        name: "papaya-batch",
        about: "papaya with one guard for 1024 operations",
        rival: true,
        build: |setup| papaya::build("papaya-batch", Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "dashmap",
        about: "dashmap: hashbrown tables behind sharded reader-writer locks",
        rival: true,
        build: |setup| locking("dashmap", dashmap::DashMap::new, setup),
    },
    Entry {
        name: "scc-hashmap",
        about: "scc HashMap: a lock in each bucket",
        rival: true,
        build: |setup| locking("scc-hashmap", scc::HashMap::new, setup),
    },
    Entry {
        name: "scc-hashindex",
        about: "scc HashIndex: reads without locks, updates by copies",
        rival: true,
        build: |setup| locking("scc-hashindex", scc::HashIndex::new, setup),
    },
    Entry {
        name: "rwlock-hashbrown",
        about: "one hashbrown table behind one reader-writer lock",
        rival: true,
        build: |setup| locking("rwlock-hashbrown", hashbrown::Locked::new, setup),
    },
];

/// The size to begin with.
fn capacity(setup: &Setup) -> usize {
    if setup.presize { setup.keys as usize } else { 0 }
}

/// A table without guards.
fn locking<T: Table>(
    name: &'static str,
    new: fn(usize) -> T,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    Ok(Box::new(Measured { name, table: new(capacity(setup)), guards: Guards::PerOperation }))
}
