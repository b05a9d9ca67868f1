//! The differences between Dash-EH and Dash-LH: which segment serves a hash, and how the index
//! grows. For implementers of another kind.

use std::collections::HashMap;
use std::sync::Arc;

use evermap_pm::{Guard, Medium, Pool, Result};

use super::Dash;
use super::layout::{HashPrefix, Segment};
use crate::hash::segmented::apply::Chain;
use crate::hash::segmented::split::Split;
use crate::{Key, Stats, Visitor};

/// The result of a search for a segment.
pub trait Found {
    /// Returns the offset of the segment.
    fn segment(&self) -> u64;
}

/// A way to locate segments and to grow, with its state in ordinary memory.
///
/// Segments are ordered by the *ranks* of their hashes: each serves the hashes whose ranks have its
/// [`HashPrefix`], and a split divides it into a lower and an upper half.
pub trait Expansion<K: Key, M: Medium, const B: usize, const S: usize, const N: usize>:
    Sized + Send + Sync + 'static
{
    /// The name of the kind of index, which is stored in the region.
    const NAME: [u8; 8];
    /// The number of bytes in the root block, whose first word is the kind.
    const ROOT_BYTES: u64;
    /// Whether each segment is a separate block.
    const SEGMENTS_ARE_BLOCKS: bool;
    /// How an insert may use the chain of a full segment before a split was tried.
    const CHAIN: Chain;

    /// The result of a search, with the state that it was based on.
    type Found<'a>: Found;

    /// Returns the position of a hash in the order of segments.
    fn rank(hash: u64) -> u64;

    /// Returns a hash with the greatest rank that is at most `rank`.
    fn unrank(rank: u64) -> u64;

    /// Allocates `2^depth` segments, and writes the other structures of an empty index, except the
    /// kind, flushed without a fence. `root` is the offset of a new root block. Also returns the
    /// offsets of the segments, in the order of their ranks.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then.
    fn create(pool: &Arc<Pool<M>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)>;

    /// Opens the structures of the root block at `root`.
    ///
    /// # Errors
    /// `Damaged`.
    fn open(pool: &Arc<Pool<M>>, root: u64) -> Result<Self>;

    /// Finds the segment that serves `hash`.
    ///
    /// # Errors
    /// `Damaged`.
    fn find<'a>(&'a self, m: &'a M, hash: u64) -> Result<Self::Found<'a>>;

    /// Finds the segment that holds the records of `hash` now, even if they are still to be moved
    /// to the segment that serves `hash`.
    ///
    /// # Errors
    /// `Damaged`.
    fn holder<'a>(&'a self, m: &'a M, hash: u64) -> Result<Self::Found<'a>>;

    /// Returns whether the search for `hash` that returned `found` would still return the same
    /// segment.
    fn is_current(&self, m: &M, hash: u64, found: &Self::Found<'_>) -> bool;

    /// Returns the depth of the deepest prefix that a segment can have: ranks with the same leading
    /// bits, of this number, belong to the same segment.
    fn depth(&self) -> u32;

    /// Returns the number of segments, or an estimate.
    fn segments(&self) -> u64;

    /// Makes the stale segment at `offset`, which serves `hash`, usable for changes. Returns
    /// `false` if there is not enough space for that: changes are then made in the segment that
    /// [holds](Self::holder) the records.
    ///
    /// # Errors
    /// `Damaged`.
    fn prepare(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<bool>;

    /// Finishes a structure change of the stale segment at `offset` that a crash has interrupted.
    /// Returns the prefix that the segment has afterwards. Returns `None` if the segment is no
    /// longer in use.
    ///
    /// # Errors
    /// `Damaged`.
    fn finish_structure(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        segment: &Segment<B, S>,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>>;

    /// Makes room in a full segment, which serves `hash`, by splitting it, if possible.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    fn split(
        dash: &Dash<K, M, Self, B, S, N>,
        segment: &Segment<B, S>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<Split>;

    /// Called after a block was appended to the chain of the segment that holds the records of
    /// `hash`.
    ///
    /// # Errors
    /// `Damaged`.
    fn lengthened(dash: &Dash<K, M, Self, B, S, N>, hash: u64) -> Result<()>;

    /// Called after this number of blocks was removed from a chain.
    fn shortened(&self, _blocks: u64) {}

    /// Called after a removal that left a bucket empty, in a segment that serves `hash`. Not called
    /// after every such removal.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn emptied(
        dash: &Dash<K, M, Self, B, S, N>,
        segment: &Segment<B, S>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<()>;

    /// Makes every segment stale.
    ///
    /// # Errors
    /// `Damaged`.
    fn make_all_stale(dash: &Dash<K, M, Self, B, S, N>) -> Result<()>;

    /// Passes to the visitor the blocks that are neither the root, nor segments, nor chain blocks.
    fn visit(&self, visitor: &mut dyn Visitor);

    /// Called when a visit has seen every segment, with the number of segments.
    fn visited(&self, segments: u64);

    /// Completes `stats`, which contain the sums over segments and chains. A walk has found
    /// `segments` segments.
    fn complete(&self, segments: u64, stats: &mut Stats);

    /// Describes the violated invariants outside of segments. `found` maps the offset of each
    /// segment that a walk has found to its prefix.
    fn check(
        dash: &Dash<K, M, Self, B, S, N>,
        found: &HashMap<u64, HashPrefix>,
        problems: &mut Vec<String>,
    );
}
