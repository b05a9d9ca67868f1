//! Concurrent tables in ordinary memory: ours, and those of other authors to measure it beside.
//!
//! All use the hash function of Evermap's indexes, so that the tables are compared and not the
//! hashes. They are stored in ordinary memory whatever medium is requested, on the pages that the
//! allocator provides (with glibc, `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment makes
//! these huge).

pub(crate) mod alone;
#[cfg(feature = "rivals")]
mod dashmap;
pub(crate) mod hash;
#[cfg(feature = "rivals")]
mod hashbrown;
#[cfg(feature = "rivals")]
mod papaya;
pub(crate) mod reference;
#[cfg(feature = "rivals")]
mod rivals;
#[cfg(feature = "rivals")]
mod scc;
#[cfg(feature = "rivals")]
mod skiplist;
mod strings;
pub(crate) mod volatile;

use crate::subject::view::Entry;

/// The tables of other crates, if they are compiled in.
#[cfg(feature = "rivals")]
pub(crate) const RIVALS: &[Entry] = &rivals::ENTRIES;
/// The tables of other crates, if they are compiled in.
#[cfg(not(feature = "rivals"))]
pub(crate) const RIVALS: &[Entry] = &[];
