//! Merging two sibling segments with few records into a new one; and splits that are refused if
//! they would make the directory too large.
//!
//! A merge is committed by the first entry of the *right* sibling's range: a segment with the
//! parent's prefix there cannot be mistaken for an unfinished split.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::extendible::Extendible;
use super::split::{Directed, Split, allocate_segment, split};
use super::{SegmentHeader, SegmentLayout, prefix_of};
use crate::hash::hash_prefix::HashPrefix;

/// An index with a directory that merges segments.
pub trait Merging: Directed {
    /// The greatest number of records that two siblings may hold together to be merged.
    const MERGE_BELOW: usize;
    /// The least depth of a segment.
    const DEPTH_MIN: u32;
    /// The number of bytes up to which the directory may always grow.
    const FREE_DIRECTORY: u64;

    /// Returns the directory with its counts.
    fn extendible(&self) -> &Extendible<Self::Medium>;

    /// Returns the segment that a directory entry refers to. Returns `None` if this opener has not
    /// recovered it.
    ///
    /// # Errors
    /// `Damaged` if the segment would end outside the region.
    fn segment_for(&self, entry: u64) -> Result<Option<&Self::Segment>>;

    /// Returns the number of records in a segment; approximate if the segment is not locked.
    fn count(&self, segment: &Self::Segment) -> usize;

    /// Writes the records of two locked siblings into a new segment with this prefix, locked, and
    /// flushes it without a fence. Returns `None` if there are more than
    /// [`MERGE_BELOW`](Self::MERGE_BELOW) records, or if there is no room for them.
    fn build_merged(
        &self,
        block: u64,
        parent: HashPrefix,
        siblings: [&Self::Segment; 2],
    ) -> Option<Self::Rebuilt<'_>>;

    /// Stores `entry` in the range of the right half of `parent`, and then in the whole range of
    /// `parent`, durably.
    fn publish_merged(&self, parent: HashPrefix, entry: u64);

    /// Retires the chain of a segment that was merged away.
    fn retire_chain(&self, segment: &Self::Segment, guard: &Guard<'_>);
}

/// Splits a segment that serves `hash`. Refuses if the directory would have to double and would
/// become too large for the number of segments.
///
/// # Errors
/// `NoSpace`; nothing has changed then.
#[cold]
pub fn split_in_proportion<T: Merging>(
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
    let doubles = prefix.depth >= index.directory().depth();
    let bytes = size_of::<T::Segment>() as u64;
    if doubles && !index.extendible().may_double(bytes, T::FREE_DIRECTORY) {
        return Ok(Split::Refused);
    }
    split(index, m.offset_of(segment), hash, prefix, guard)
}

/// Merges a segment, which serves `hash`, with its sibling if together they hold few records, and
/// halves the directory if that has become possible. Called after removals.
///
/// # Errors
/// `Damaged`, `Poisoned`.
#[cold]
pub fn merge_if_sparse<T: Merging>(
    index: &T,
    segment: &T::Segment,
    hash: u64,
    guard: &Guard<'_>,
) -> Result<()> {
    // Before the sweep is complete, segments may be stale and directory ranges unfinished.
    if !index.core().pool.is_swept() {
        return Ok(());
    }
    let m = index.core().medium();
    let Some(prefix) = prefix_of(m, segment) else { return Ok(()) };
    let Some(parent) = prefix.parent() else { return Ok(()) };
    if parent.depth < T::DEPTH_MIN || !prefix.covers(hash) {
        return Ok(());
    }
    let firsts = [parent.half(0).first_hash(), parent.half(1).first_hash()];
    let [left, right] = firsts.map(|first| index.directory().locate(first));
    if left == right {
        return Ok(());
    }
    let (left, right) = (index.segment_for(left)?, index.segment_for(right)?);
    let (Some(left), Some(right)) = (left, right) else { return Ok(()) };
    if index.count(left) + index.count(right) > T::MERGE_BELOW {
        return Ok(());
    }
    let block = match allocate_segment(index) {
        Ok(block) => block,
        // Merging only saves space. If there is not enough for the new segment, the siblings stay.
        Err(error) if error.is_no_space() => return Ok(()),
        Err(error) => return Err(error),
    };
    let merged = merge_siblings(index, parent, [left, right], block, guard);
    if !matches!(merged, Ok(true)) {
        index.core().pool.free_unpublished(block);
    }
    match merged? {
        true => index.extendible().halve_if_worthwhile(T::DEPTH_MIN, guard),
        false => Ok(()),
    }
}

/// Merges two segments into `block`. Returns `false`, with nothing changed, if the segments were
/// changed meanwhile, or if their records do not fit.
fn merge_siblings<T: Merging>(
    index: &T,
    parent: HashPrefix,
    siblings: [&T::Segment; 2],
    block: u64,
    guard: &Guard<'_>,
) -> Result<bool> {
    let m = index.core().medium();
    let [left, right] = [0, 1].map(|i| (m.offset_of(siblings[i]), parent.half(i as u64)));
    // Every merge locks segments in the order of their hashes, so that there is no deadlock.
    let Some(first) = index.lock_whole(left.0, left.1.first_hash())? else { return Ok(false) };
    let second = match index.lock_whole(right.0, right.1.first_hash()) {
        Ok(Some(second)) => second,
        other => {
            index.unlock_unchanged(first);
            return other.map(|_| false);
        }
    };
    let are_siblings = siblings
        .iter()
        .zip([left, right])
        .all(|(segment, (_, prefix))| m.load(segment.header().prefix()) == prefix.encode());
    let built = are_siblings.then(|| index.build_merged(block, parent, siblings)).flatten();
    let Some(built) = built else {
        index.unlock_unchanged(first);
        index.unlock_unchanged(second);
        return Ok(false);
    };
    m.fence();
    m.note(Note::Scope("merge"));
    index.publish_merged(parent, index.entry_for(block));
    index.extendible().count_merge();
    index.unlock_rebuilt(index.segment(block)?, built);
    // Both siblings stay locked: no entry refers to them any more.
    for segment in siblings {
        index.core().refusals.forget(m.offset_of(segment));
        index.retire_chain(segment, guard);
        let bytes = size_of::<T::Segment>() as u64;
        index.core().pool.retire(m.offset_of(segment), bytes, guard);
    }
    Ok(true)
}
