//! The tables of other crates, by name.

use super::strings::{InMemory, Strings};
use super::{dashmap, hashbrown, papaya, scc, skiplist};
use crate::LabError;
use crate::subject::setup::Setup;
use crate::subject::store::Stored;
use crate::subject::table::{Measured, Table};
use crate::subject::view::{Entry, Subject};
use crate::subject::work::Guards;

/// Every table.
pub(crate) const ENTRIES: [Entry; 7] = [
    Entry {
        name: "papaya",
        about: "papaya: lock-free, nodes on the heap, hyaline reclamation; a guard an operation",
        rival: true,
        factory: |name, setup| papaya::build(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "papaya-batch",
        about: "papaya with one guard for 1024 operations",
        rival: true,
        factory: |name, setup| papaya::build(name, Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "dashmap",
        about: "dashmap: hashbrown tables behind sharded reader-writer locks",
        rival: true,
        factory: |name, setup| locking(name, dashmap::DashMap::new, dashmap::DashMap::new, setup),
    },
    Entry {
        name: "scc-hashmap",
        about: "scc HashMap: a lock in each bucket",
        rival: true,
        factory: |name, setup| locking(name, scc::HashMap::new, scc::HashMap::new, setup),
    },
    Entry {
        name: "scc-hashindex",
        about: "scc HashIndex: reads without locks, updates by copies",
        rival: true,
        factory: |name, setup| locking(name, scc::HashIndex::new, scc::HashIndex::new, setup),
    },
    Entry {
        name: "rwlock-hashbrown",
        about: "one hashbrown table behind one reader-writer lock",
        rival: true,
        factory: |name, setup| locking(name, hashbrown::Locked::new, hashbrown::Locked::new, setup),
    },
    Entry {
        name: "skiplist",
        about: "crossbeam-skiplist: a lock-free skip list in ordinary memory",
        rival: true,
        factory: skiplist::build,
    },
];

/// Returns the number of keys that a new table has room for.
pub(super) fn capacity(setup: &Setup) -> usize {
    if setup.presize { setup.keys as usize } else { 0 }
}

/// Builds a table whose operations take no guard.
fn locking<T: Table, S: Strings>(
    name: &'static str,
    of_words: fn(usize) -> T,
    of_strings: fn(usize) -> S,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    let (capacity, guards) = (capacity(setup), Guards::PerOperation);
    Ok(match setup.lengths {
        None => Box::new(Measured { name, table: of_words(capacity), guards }),
        Some(lengths) => Box::new(Stored::new(name, InMemory(of_strings(capacity)), lengths)),
    })
}
