//! A concurrent hash map in ordinary memory, whose lookups are wait-free: [`VolatileMap`].
//!
//! ```
//! use evermap_volatile::VolatileMap;
//!
//! let stock = VolatileMap::from([("apple", 3), ("plum", 5)]);
//! let stock = stock.pin();
//! let plums = stock.get("plum");
//! stock.update("plum", |count| count - 1);
//! // What was lent stays as it was.
//! assert_eq!((plums, stock.get("plum")), (Some(&5), Some(&4)));
//! ```
//!
//! It needs 64-bit Linux. The [guide] compares it with other concurrent maps.
//!
//! [guide]: https://github.com/evermap/evermap/blob/main/docs/use/volatile.md
//!
//! # How it works
//!
//! ```text
//!   hash   | shard | bucket            | ...            | tag |
//!              |        |                                  |
//!   shards [ ] [ ] [ ]  |    each has a lock for writers, and a pointer to its table
//!               |       |                                  |
//!   table    [ bucket 0 | bucket 1 | bucket 2 | ... ]      |       in the order of hashes
//!                            |                             |
//!   bucket   | state | tags, 12 bytes | 12 references |    64 bytes: a cache line
//!               |                           |
//!               v                           v
//!            overflow bucket            entries  | key value | key value | ...
//! ```
//!
//! A lookup loads a pointer that contains the size of the table, the line of the bucket, whose tags
//! it compares all at once, and an entry whose tag matches. So it waits for memory twice if the key
//! is present, and usually once if it is absent. A reference is the number of a place in the blocks
//! of the shard, half as long as a pointer, so a line has room for twelve; at a mean of up to ten
//! entries for each bucket, few are in an overflow bucket.
//!
//! Entries are immutable and never move. Replacing one is a single store of its reference, and the
//! old entry is dropped after a [grace period](Domain). Tables are replaced bucket by
//! bucket, by the writes that come anyway; see `shard.rs`. This is the resize of Triplett, McKenney
//! and Walpole, *Resizable, Scalable, Concurrent Hash Tables via Relativistic Programming* (2011),
//! with the difference that slots are copied into new buckets, as in the tables of David, Guerraoui
//! and Trigonakis (2015), instead of nodes being linked into two chains.
//!
//! Because buckets are in the order of hashes, whatever the size of the table, an iterator is a
//! position among the hashes, and survives every resize.

mod bucket;
mod garbage;
mod hashing;
mod iter;
mod map;
mod memory;
#[cfg(test)]
mod mistakes;
mod order;
mod pinned;
#[cfg(feature = "serde")]
mod serde;
mod shard;
mod slab;
mod table;
#[cfg(test)]
mod tests;
mod traits;

pub use evermap_pm::{Domain, Guard};
pub use iter::{IntoIter, Iter, Keys, Values};
pub use map::{VolatileMap, VolatileStats};
pub use pinned::{Compute, Occupied, Operation, Pinned, Protect};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/use/volatile.md")]
mod guide {}

/// A point between two accesses to what threads share, at which tests let another thread run.
#[inline(always)]
fn step() {
    #[cfg(test)]
    tests::step();
}
