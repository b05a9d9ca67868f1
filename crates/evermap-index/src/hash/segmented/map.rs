//! What names the segments of an index: a directory, or the arrays of linear hashing.

use std::collections::HashMap;
use std::sync::Arc;

use evermap_pm::{Guard, Pool, Result};

use super::Segmented;
use super::chain::Chain;
use crate::hash::hash_prefix::HashPrefix;
use crate::{Stats, Visitor};

/// The outcome of an attempt to split a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// The segment was split or otherwise changed, by this thread or another one: the caller tries
    /// again.
    Done,
    /// A split would not help, or would make the directory too large: the caller uses the chain.
    Refused,
    /// The same, because no split would separate the records of the segment.
    Inseparable,
}

/// What names the segments of the index `T`, and brings further ones into use. Its state is in
/// ordinary memory, and its structures in the region.
pub trait SegmentMap<T: Segmented>: Sized + Send + Sync + 'static {
    /// Distinguishes indexes that differ only in this: part of the first word of the root block.
    const NAME: [u8; 4];
    /// The number of bytes in the root block, whose first word is the kind of index.
    const ROOT_BYTES: u64;
    /// Whether each segment is a separate block.
    const SEGMENTS_ARE_BLOCKS: bool;
    /// How an insert may use the chain of a full segment before a split was tried.
    const CHAIN: Chain;

    /// What a search for a segment was based on.
    type Found<'a>;

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
    fn create(pool: &Arc<Pool<T::Medium>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)>;

    /// Opens the structures of the root block at `root`.
    ///
    /// # Errors
    /// `Damaged`.
    fn open(pool: &Arc<Pool<T::Medium>>, root: u64) -> Result<Self>;

    /// Returns the offset of the segment that serves `hash`.
    ///
    /// # Errors
    /// `Damaged`.
    fn find<'a>(&'a self, m: &'a T::Medium, hash: u64) -> Result<(u64, Self::Found<'a>)>;

    /// Returns the offset of the segment that holds the records of `hash` now, even if they are
    /// still to be moved to the segment that serves `hash`.
    ///
    /// # Errors
    /// `Damaged`.
    fn holder<'a>(&'a self, m: &'a T::Medium, hash: u64) -> Result<(u64, Self::Found<'a>)>;

    /// Returns whether the search for `hash` that returned `found` would still return the same
    /// segment.
    fn is_current(&self, m: &T::Medium, hash: u64, found: &Self::Found<'_>) -> bool;

    /// Returns the depth of the deepest prefix that a segment can have: ranks with the same leading
    /// bits, of this number, belong to the same segment.
    fn depth(&self) -> u32;

    /// Returns the number of segments, or an estimate.
    fn segments(&self) -> u64;

    /// Makes the stale segment at `offset`, which serves `rank`, usable for changes. Returns
    /// `false` if there is not enough space for that: changes are then made in the segment that
    /// [holds](Self::holder) the records.
    ///
    /// # Errors
    /// `Damaged`.
    fn prepare(index: &T, offset: u64, rank: u64, guard: &Guard<'_>) -> Result<bool>;

    /// Finishes a structure change of the stale segment at `offset` that a crash has interrupted.
    /// Returns the prefix that the segment has afterwards. Returns `None` if the segment is no
    /// longer in use.
    ///
    /// # Errors
    /// `Damaged`.
    fn finish_structure(
        index: &T,
        offset: u64,
        segment: &T::Segment,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>>;

    /// Makes room in a full segment, which serves `rank`, by splitting it, if possible.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    fn split(index: &T, segment: &T::Segment, rank: u64, guard: &Guard<'_>) -> Result<Split>;

    /// Called after a block was appended to the chain of the segment that holds the records of
    /// `rank`.
    ///
    /// # Errors
    /// `Damaged`.
    fn lengthened(_index: &T, _rank: u64) -> Result<()> {
        Ok(())
    }

    /// Called after a removal that took this number of blocks out of a chain.
    fn shortened(&self, _blocks: u64) {}

    /// Returns whether [`emptied`](Self::emptied) is to be called after every removal: it could not
    /// do all at once that it had to do.
    #[inline]
    fn is_behind(&self) -> bool {
        false
    }

    /// Called after a removal that left a bucket empty, in a segment that serves `rank`, with no
    /// lock held. Not called after every such removal.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn emptied(_index: &T, _segment: &T::Segment, _rank: u64, _guard: &Guard<'_>) -> Result<()> {
        Ok(())
    }

    /// Makes every segment stale.
    ///
    /// # Errors
    /// `Damaged`.
    fn make_all_stale(index: &T) -> Result<()>;

    /// Passes to the visitor the blocks that are neither the root, nor segments, nor chain blocks.
    fn visit(&self, visitor: &mut dyn Visitor);

    /// Called when a visit has seen every segment, with the number of segments.
    fn visited(&self, _segments: u64) {}

    /// Completes statistics that already contain the sums over segments and chains. A walk has
    /// found `segments` segments.
    fn complete_stats(&self, segments: u64, stats: &mut Stats);

    /// Describes the violated invariants outside of segments. `found` maps the offset of each
    /// segment that a walk has found to its prefix.
    fn check(index: &T, found: &HashMap<u64, HashPrefix>, problems: &mut Vec<String>);
}
