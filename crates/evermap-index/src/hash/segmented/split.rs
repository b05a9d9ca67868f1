//! Splitting a segment under a directory.
//!
//! No persistent word outside of the reachable structure ever names a block: a new segment is
//! complete and durable before the directory names it, and a crash before that forgets it. What a
//! crash can leave unfinished is only the other entries of a directory range, and records that no
//! longer belong: [recovery](super::recover) sees both from the first entry of the range and from
//! the segment's prefix.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::{SegmentHeader, SegmentLayout, Segmented};
use crate::hash::directory::{Directory, Reserved};
use crate::hash::hash_prefix::HashPrefix;

/// How an attempt to split a segment ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// It was split, by this thread or another one: try again.
    Done,
    /// A split would not help, or would be out of proportion: use the chain.
    Refused,
}

/// An index whose segments are found by a [`Directory`].
pub(crate) trait Directed: Segmented {
    /// The records of a segment, divided into those that stay and those that move.
    type Halves;
    /// What [`unlock_rebuilt`](Self::unlock_rebuilt) needs to know of a segment.
    type Rebuilt<'a>
    where
        Self: 'a;

    /// Whether segments are merged, too.
    const MERGES: bool;

    /// Returns the directory.
    fn directory(&self) -> &Directory<Self::Medium>;

    /// Returns the directory entry for the segment at `offset`.
    #[inline(always)]
    fn entry_for(&self, offset: u64) -> u64 {
        offset
    }

    /// Returns the offset of the segment that a directory entry names.
    #[inline(always)]
    fn offset_in(entry: u64) -> u64 {
        entry
    }

    /// Counts a split.
    fn count_split(&self);

    /// Locks the segment at `offset` as a whole. Returns `None` if it no longer serves `hash`.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn lock_whole(&self, offset: u64, hash: u64) -> Result<Option<Self::Locked<'_>>>;

    /// Divides the records of a locked segment with this prefix. Returns `None` if a split would
    /// not be worth a new segment, or, if `doubles`, a directory of twice the size.
    fn divide(
        &self,
        locked: &Self::Locked<'_>,
        prefix: HashPrefix,
        doubles: bool,
    ) -> Option<Self::Halves>;

    /// Writes a segment with this prefix and the records that move into a new block, flushed
    /// without a fence, and locked.
    ///
    /// # Errors
    /// `NoSpace`; the block is free for another use then, and nothing else was taken.
    fn build_upper(
        &self,
        block: u64,
        upper: HashPrefix,
        locked: &Self::Locked<'_>,
        halves: &mut Self::Halves,
    ) -> Result<Self::Rebuilt<'_>>;

    /// Frees what a segment that was built, but never named, has beside its own block.
    fn free_unpublished(&self, _segment: &Self::Segment) {}

    /// Makes a locked segment the lower half, durably, once the directory names the upper one.
    fn settle_lower<'a>(
        &'a self,
        locked: Self::Locked<'a>,
        lower: HashPrefix,
        halves: Self::Halves,
        guard: &Guard<'_>,
    ) -> Self::Rebuilt<'a>;

    /// Releases a locked segment that was written anew.
    fn unlock_rebuilt(&self, segment: &Self::Segment, rebuilt: Self::Rebuilt<'_>);

    /// Makes a segment say that it serves `prefix`: the end of a split that a crash has interrupted
    /// after it was committed.
    fn store_finished_prefix(&self, segment: &Self::Segment, prefix: HashPrefix);
}

/// What a split allocated before it locked anything. Gives it back when it is dropped.
struct Reservation<'a, M: Medium> {
    directory: &'a Directory<M>,
    pool: &'a evermap_pm::Pool<M>,
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
pub(crate) fn allocate_segment<T: Segmented>(index: &T) -> Result<u64> {
    index.core().pool.allocate_exact(size_of::<T::Segment>() as u64)
}

/// Splits the segment at `offset`, which serves `hash` and had this prefix, unless another thread
/// has changed that.
///
/// # Errors
/// `NoSpace`; nothing has changed then.
pub(crate) fn split<T: Directed>(
    index: &T,
    offset: u64,
    hash: u64,
    prefix: HashPrefix,
    guard: &Guard<'_>,
) -> Result<Split> {
    // Everything is reserved before anything is locked.
    let (directory, pool) = (index.directory(), &*index.core().pool);
    let block = Some(allocate_segment(index)?);
    let mut reservation = Reservation { directory, pool, block, doubled: None };
    if prefix.depth >= directory.depth() {
        reservation.doubled = Some(directory.reserve_double(prefix.depth)?);
    }
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
        // Another thread split or merged it before this one had locked it.
        index.unlock_unchanged(locked);
        return Ok(Split::Done);
    }
    m.note(Note::Scope("split"));
    let (lower, upper) = (prefix.half(0), prefix.half(1));
    let Some(mut halves) = index.divide(&locked, prefix, reservation.doubled.is_some()) else {
        index.unlock_unchanged(locked);
        return Ok(Split::Refused);
    };
    let block = reservation.block.take().expect("reserved");
    let built = match index.build_upper(block, upper, &locked, &mut halves) {
        Ok(built) => built,
        Err(error) => {
            reservation.block = Some(block);
            index.unlock_unchanged(locked);
            return Err(error);
        }
    };
    m.fence();
    // The new segment is complete and durable, and locked: others may reach it as soon as the
    // directory names it, but act on it only once that is durable too.
    let (entry, doubled) = (index.entry_for(block), &mut reservation.doubled);
    let new = index.segment(block)?;
    if !index.directory().publish(upper, entry, doubled, guard) {
        // The directory was halved meanwhile, and there is no room for doubling it: begin again.
        index.free_unpublished(new);
        reservation.block = Some(block);
        index.unlock_unchanged(locked);
        return Ok(Split::Done);
    }
    let remaining = index.settle_lower(locked, lower, halves, guard);
    index.count_split();
    index.unlock_rebuilt(new, built);
    index.unlock_rebuilt(segment, remaining);
    Ok(Split::Done)
}
