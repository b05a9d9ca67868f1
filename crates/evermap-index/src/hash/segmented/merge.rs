//! Splits that keep the directory in proportion to the segments, and merging two segments that are
//! nearly empty into a new one.
//!
//! The commit of a merge is the first entry of the *right* sibling's range: a prefix of the
//! parent's depth there cannot be mistaken for a split that was not finished.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::extendible::Extendible;
use super::split::{Directed, Split, allocate_segment, split};
use super::{SegmentHeader, SegmentLayout, prefix_of};
use crate::hash::hash_prefix::HashPrefix;

/// An index with a directory that merges segments.
pub(crate) trait Merging: Directed {
    /// The number of records in two siblings up to which they are merged.
    const MERGE_BELOW: usize;
    /// The least depth of a segment.
    const DEPTH_MIN: u32;
    /// The bytes that a directory may always have.
    const FREE_DIRECTORY: u64;

    /// Returns the directory with its counts.
    fn extendible(&self) -> &Extendible<Self::Medium>;

    /// Returns the segment that a directory entry names. Returns `None` if this opener has not
    /// recovered it.
    ///
    /// # Errors
    /// `Damaged` if there cannot be one.
    fn segment_for(&self, entry: u64) -> Result<Option<&Self::Segment>>;

    /// Returns the number of records in a segment, roughly if it is not locked.
    fn count(&self, segment: &Self::Segment) -> usize;

    /// Writes the records of two locked siblings, if they are at most
    /// [`MERGE_BELOW`](Self::MERGE_BELOW), into a new segment with this prefix, flushed without a
    /// fence, and locked. Returns `None` if there is no room for them.
    fn build_merged(
        &self,
        block: u64,
        parent: HashPrefix,
        siblings: [&Self::Segment; 2],
    ) -> Option<Self::Rebuilt<'_>>;

    /// Points the ranges of the right half and then of all of `parent` to `entry`, durably.
    fn publish_merged(&self, parent: HashPrefix, entry: u64);

    /// Retires the chain of a segment that was merged away.
    fn retire_chain(&self, segment: &Self::Segment, guard: &Guard<'_>);
}

/// Splits a segment that serves `hash`, unless a directory that doubles would be out of proportion.
///
/// # Errors
/// `NoSpace`; nothing has changed then.
#[cold]
pub(crate) fn split_in_proportion<T: Merging>(
    index: &T,
    segment: &T::Segment,
    hash: u64,
    guard: &Guard<'_>,
) -> Result<Split> {
    let m = index.core().medium();
    let Some(prefix) = prefix_of(m, segment) else {
        // Damaged: the next access decides.
        return Ok(Split::Done);
    };
    let doubles = prefix.depth >= index.directory().depth();
    let bytes = size_of::<T::Segment>() as u64;
    if doubles && !index.extendible().may_double(bytes, T::FREE_DIRECTORY) {
        return Ok(Split::Refused);
    }
    split(index, m.offset_of(segment), hash, prefix, guard)
}

/// Merges a segment, which serves `hash`, with its sibling if together they would be nearly empty,
/// and halves the directory if that has become possible. Called after removals.
///
/// # Errors
/// `Damaged`, `Poisoned`.
#[cold]
pub(crate) fn merge_if_sparse<T: Merging>(
    index: &T,
    segment: &T::Segment,
    hash: u64,
    guard: &Guard<'_>,
) -> Result<()> {
    // Before the sweep is complete, segments may be stale and ranges unfinished.
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
        // Merging is for saving space; without any, things stay as they are.
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

/// Merges two segments into `block`. Returns `false`, with nothing changed, if they have changed
/// meanwhile.
fn merge_siblings<T: Merging>(
    index: &T,
    parent: HashPrefix,
    siblings: [&T::Segment; 2],
    block: u64,
    guard: &Guard<'_>,
) -> Result<bool> {
    let m = index.core().medium();
    let [left, right] = [0, 1].map(|i| (m.offset_of(siblings[i]), parent.half(i as u64)));
    // In the order of their hashes, as every merge does: no deadlock.
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
    // Both siblings stay locked: no entry leads there any more.
    for segment in siblings {
        index.retire_chain(segment, guard);
        let bytes = size_of::<T::Segment>() as u64;
        index.core().pool.retire(m.offset_of(segment), bytes, guard);
    }
    Ok(true)
}
