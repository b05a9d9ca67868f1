//! Merging two sibling segments with few records into a new one.
//!
//! A merge is committed by the first entry of the *right* sibling's range: a segment with the
//! parent's prefix there cannot be mistaken for an unfinished split.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::split::{Directed, allocate_segment};
use super::{SegmentHeader, SegmentLayout, prefix_of};
use crate::hash::hash_prefix::HashPrefix;

/// Merges a segment, which serves `hash`, with its sibling if together they hold few records, and
/// halves the directory if that has become possible. Called after removals.
///
/// # Errors
/// `Damaged`, `Poisoned`.
#[cold]
pub fn merge_if_sparse<T: Directed>(
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
    let [left, right] = firsts.map(|first| index.map().directory.locate(first));
    let recovered = |&entry| entry == index.entry_for(T::offset_in(entry));
    if left == right || ![left, right].iter().all(recovered) {
        return Ok(());
    }
    let (left, right) = (index.segment(T::offset_in(left))?, index.segment(T::offset_in(right))?);
    if !index.are_sparse([left, right]) {
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
        true => index.map().halve_if_worthwhile(T::DEPTH_MIN, guard),
        false => Ok(()),
    }
}

/// Merges two segments into `block`. Returns `false`, with nothing changed, if the segments were
/// changed meanwhile, or if their records do not fit.
fn merge_siblings<T: Directed>(
    index: &T,
    parent: HashPrefix,
    siblings: [&T::Segment; 2],
    block: u64,
    guard: &Guard<'_>,
) -> Result<bool> {
    let m = index.core().medium();
    let [left, right] = [0, 1].map(|i| (m.offset_of(siblings[i]), parent.half(i as u64)));
    [left.0, right.0, block].into_iter().for_each(|offset| index.prefetch_segment(offset));
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
    index.map().count_merge();
    index.unlock_rebuilt(index.segment(block)?, built);
    let pool = &index.core().pool;
    // Both siblings stay locked: no entry refers to them any more.
    for segment in siblings {
        index.core().refusals.forget(m.offset_of(segment));
        for block in index.chain_blocks(segment) {
            pool.retire(block, T::LINK.1, guard);
        }
        pool.retire(m.offset_of(segment), size_of::<T::Segment>() as u64, guard);
    }
    Ok(true)
}
