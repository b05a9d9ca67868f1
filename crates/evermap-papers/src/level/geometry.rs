//! The sizes of which a table is made. They are part of its type, and of its persistent format.

use super::layout::SLOTS_MAX;

/// The sizes of a kind of table: constants, so that what is computed from them is constant too.
pub trait Geometry: 'static {
    /// The number of slots of each bucket that are used: 1 to [`SLOTS_MAX`].
    const SLOTS: usize;
    /// Binary logarithm of the greatest number of buckets that are allocated in one piece, a chunk:
    /// 1 to 13.
    const CHUNK_LOG: u32;
}

/// The geometry with `N` slots in each bucket, and levels in chunks of `2^C` buckets: by default,
/// the one for production use.
pub enum Sizes<const N: usize = SLOTS_MAX, const C: u32 = 13> {}

impl<const N: usize, const C: u32> Geometry for Sizes<N, C> {
    const SLOTS: usize = N;
    const CHUNK_LOG: u32 = C;
}
