//! Splitting a segment under a directory.
//!
//! Only the reachable structure refers to blocks: a new segment is complete and durable before the
//! directory refers to it, and after an earlier crash its block is free. A later crash can only
//! leave the other entries of the directory range, the old segment's prefix, and its moved records
//! as they were. [Recovery](super::recover) detects this from the first entry of the range and from
//! the prefix.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Pool, Result};

use super::core::HasCore;
use super::extendible::Extendible;
use super::map::Split;
use super::{SegmentHeader, SegmentLayout, Segmented, prefix_of};
use crate::hash::directory::{Directory, OFFSET, Reserved};
use crate::hash::hash_prefix::HashPrefix;
use crate::hash::mistakes;

/// An index whose segments a directory names: the steps of a split and of a merge.
pub trait Directed: Segmented<Map = Extendible<<Self as HasCore>::Medium>> {
    /// The records of a segment, divided into those that stay and those that move.
    type Halves;
    /// The state of a new or rewritten segment that [`unlock_rebuilt`](Self::unlock_rebuilt) needs.
    type Rebuilt<'a>
    where
        Self: 'a;

    /// Whether segments are merged, as well as split.
    const MERGES: bool;
    /// Whether directory entries contain the generation of the opener that recovered the segment,
    /// above the offset.
    const ENTRIES_ARE_STAMPED: bool = false;
    /// The least depth of a segment.
    const DEPTH_MIN: u32 = 0;
    /// The number of bytes up to which the directory may always grow.
    const FREE_DIRECTORY: u64;

    /// Divides the records of a locked segment with this prefix. Returns
    /// [`Refused`](Split::Refused) or [`Inseparable`](Split::Inseparable) as an error if a split
    /// would gain too little for a new segment.
    ///
    /// That one half is empty is no reason: records that are inserted in the order of their hashes
    /// have equal leading bits until enough of them were inserted, and are separated by no more
    /// splits than in any other order. But it is one if the records cannot be
    /// separated at all.
    fn divide(
        &self,
        locked: &Self::Locked<'_>,
        prefix: HashPrefix,
    ) -> std::result::Result<Self::Halves, Split>;

    /// Writes a segment with this prefix and the records that move into a new block, locked, and
    /// flushes it without a fence.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then except `block`, which the caller may use otherwise.
    fn build_upper(
        &self,
        block: u64,
        upper: HashPrefix,
        locked: &Self::Locked<'_>,
        halves: &mut Self::Halves,
    ) -> Result<Self::Rebuilt<'_>>;

    /// Makes a locked segment the lower half, durably. The directory refers to the upper half
    /// already.
    fn settle_lower<'a>(
        &'a self,
        locked: Self::Locked<'a>,
        lower: HashPrefix,
        halves: Self::Halves,
        guard: &Guard<'_>,
    ) -> Self::Rebuilt<'a>;

    /// Releases a locked segment that was built or rewritten.
    fn unlock_rebuilt(&self, segment: &Self::Segment, rebuilt: Self::Rebuilt<'_>);

    /// Stores the prefix of a segment: the last step of a split that a crash has interrupted after
    /// it was committed.
    fn store_finished_prefix(&self, segment: &Self::Segment, prefix: HashPrefix);

    /// Returns whether two siblings hold so few records that they are to be merged. Approximate:
    /// they need not be locked.
    fn are_sparse(&self, _siblings: [&Self::Segment; 2]) -> bool {
        false
    }

    /// Writes the records of two locked siblings into a new segment with this prefix, locked, and
    /// flushes it without a fence. Returns `None` if they are not [sparse](Self::are_sparse) after
    /// all, or if there is no room for them.
    fn build_merged(
        &self,
        _block: u64,
        _parent: HashPrefix,
        _siblings: [&Self::Segment; 2],
    ) -> Option<Self::Rebuilt<'_>> {
        None
    }

    /// Stores `entry` in the range of the right half of `parent`, and then in the whole range of
    /// `parent`, durably.
    fn publish_merged(&self, parent: HashPrefix, entry: u64) {
        let (m, directory) = (self.core().medium(), &self.map().directory);
        let latch = directory.share();
        let mut ranges = [parent.half(1), parent];
        if m.mutant(mistakes::MERGE_LEFT_FIRST) {
            ranges.reverse();
        }
        for range in ranges {
            directory.point(range, entry, &latch);
            m.fence();
        }
    }

    /// Returns the bits above the offset in directory entries of the opener with this generation.
    #[inline(always)]
    fn stamp(generation: u64) -> u64 {
        if Self::ENTRIES_ARE_STAMPED { generation << OFFSET.count_ones() } else { 0 }
    }

    /// Returns the directory entry for the segment at `offset`.
    fn entry_for(&self, offset: u64) -> u64 {
        offset | Self::stamp(self.core().generation)
    }

    /// Returns the offset of the segment that a directory entry refers to.
    #[inline(always)]
    fn offset_in(entry: u64) -> u64 {
        if Self::ENTRIES_ARE_STAMPED { entry & OFFSET } else { entry }
    }
}

/// The space that a split has allocated before it locks a segment. Frees it when dropped.
struct Reservation<'a, M: Medium> {
    directory: &'a Directory<M>,
    pool: &'a Pool<M>,
    block: Option<u64>,
    doubled: Option<Reserved>,
}

impl<M: Medium> Drop for Reservation<'_, M> {
    fn drop(&mut self) {
        self.doubled.take().into_iter().for_each(|doubled| self.directory.cancel(doubled));
        self.block.take().into_iter().for_each(|block| self.pool.free_unpublished(block));
    }
}

/// Allocates a block for a segment.
///
/// # Errors
/// `NoSpace`.
pub fn allocate_segment<T: Segmented>(index: &T) -> Result<u64> {
    index.core().pool.allocate_exact(size_of::<T::Segment>() as u64)
}

/// Splits a segment that serves `hash`. Refuses if the directory would have to double and would
/// become too large for the number of segments.
///
/// # Errors
/// `NoSpace`; nothing has changed then.
#[cold]
pub fn split_in_proportion<T: Directed>(
    index: &T,
    segment: &T::Segment,
    hash: u64,
    guard: &Guard<'_>,
) -> Result<Split> {
    let m = index.core().medium();
    let Some(prefix) = prefix_of(m, segment) else {
        // Damaged: the next access reports it.
        return Ok(Split::Done);
    };
    let doubles = prefix.depth >= index.map().directory.depth();
    let bytes = size_of::<T::Segment>() as u64;
    if doubles && !index.map().may_double(bytes, T::FREE_DIRECTORY) {
        return Ok(Split::Refused);
    }
    split(index, m.offset_of(segment), hash, prefix, guard)
}

/// Splits the segment at `offset`, which serves `hash` and had this prefix. Does nothing if another
/// thread has changed the segment.
///
/// # Errors
/// `NoSpace`; nothing has changed then.
pub fn split<T: Directed>(
    index: &T,
    offset: u64,
    hash: u64,
    prefix: HashPrefix,
    guard: &Guard<'_>,
) -> Result<Split> {
    // All space is reserved before a segment is locked.
    let (directory, pool) = (&index.map().directory, &*index.core().pool);
    let block = Some(allocate_segment(index)?);
    let mut reservation = Reservation { directory, pool, block, doubled: None };
    if prefix.depth >= directory.depth() {
        reservation.doubled = Some(directory.reserve_double(prefix.depth)?);
    }
    index.prefetch_segment(offset);
    match index.lock_whole(offset, hash)? {
        Some(locked) => split_locked(index, locked, prefix, &mut reservation, guard),
        None => Ok(Split::Done),
    }
}

/// Splits a locked segment, and releases it.
fn split_locked<'a, T: Directed>(
    index: &'a T,
    locked: T::Locked<'a>,
    prefix: HashPrefix,
    reservation: &mut Reservation<'_, T::Medium>,
    guard: &Guard<'_>,
) -> Result<Split> {
    let m = index.core().medium();
    let segment = T::segment_in(&locked);
    if m.load(segment.header().prefix()) != prefix.encode() {
        // Another thread split or merged the segment before this one locked it.
        index.unlock_unchanged(locked);
        return Ok(Split::Done);
    }
    m.note(Note::Scope("split"));
    let (lower, upper) = (prefix.half(0), prefix.half(1));
    let mut halves = match index.divide(&locked, prefix) {
        Ok(halves) => halves,
        Err(refused) => {
            index.unlock_unchanged(locked);
            return Ok(refused);
        }
    };
    let block = reservation.block.take().expect("reserved");
    index.prefetch_segment(block);
    let built = match index.build_upper(block, upper, &locked, &mut halves) {
        Ok(built) => built,
        Err(error) => {
            reservation.block = Some(block);
            index.unlock_unchanged(locked);
            return Err(error);
        }
    };
    m.fence();
    // The new segment is complete, durable and locked: other threads can reach it as soon as the
    // directory refers to it, but can use it only once that is durable too.
    let (entry, doubled) = (index.entry_for(block), &mut reservation.doubled);
    let new = index.segment(block)?;
    if !index.map().directory.publish(upper, entry, doubled, guard) {
        // The directory was halved meanwhile, and no space is reserved for doubling it: begin
        // again.
        let pool = &index.core().pool;
        index.chain_blocks(new).into_iter().for_each(|block| pool.free_unpublished(block));
        reservation.block = Some(block);
        index.unlock_unchanged(locked);
        return Ok(Split::Done);
    }
    let remaining = index.settle_lower(locked, lower, halves, guard);
    index.core().count_split();
    index.map().count_split();
    index.core().refusals.forget(m.offset_of(segment));
    index.unlock_rebuilt(new, built);
    index.unlock_rebuilt(segment, remaining);
    Ok(Split::Done)
}
