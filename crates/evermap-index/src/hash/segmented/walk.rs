//! Visiting every segment once: in the order of ranks, or, for callers that may insert what they
//! are shown, in that of [`walk_order`](crate::hash::walk_order).

use std::ops::RangeInclusive;

use evermap_pm::{Error, Guard, Medium, Result};

use super::map::SegmentMap;
use super::{Segmented, prefix_of};
use crate::hash::hash_prefix::{HashPrefix, first_hash_after};
use crate::hash::walk_order::Ranked;
use crate::{Stats, Visitor};

/// A segment that a walk has locked.
pub struct Visited<'a, S> {
    /// Its offset.
    pub offset: u64,
    /// The segment.
    pub segment: &'a S,
    /// Its prefix.
    pub prefix: HashPrefix,
    /// The ranks that the walk visits now. The segment can also hold records with other ranks:
    /// after a merge, ranks that were visited already.
    pub ranks: &'a RangeInclusive<u64>,
}

/// Visits every segment once, in the order of ranks. Each is locked while `copy` is called; then
/// `each` is called with the result, without locks, but under a guard. Stops if `each` returns
/// `false`.
///
/// # Errors
/// The first error. Segments that cannot be read are skipped.
pub fn walk<T: Segmented, C>(
    index: &T,
    mut copy: impl FnMut(Visited<'_, T::Segment>) -> C,
    mut each: impl FnMut(C) -> bool,
) -> Result<()> {
    let mut cursor = Some(0);
    let mut result = Ok(());
    while let Some(from) = cursor {
        // The block of a segment that is merged away while this thread waits for it must not be
        // reused.
        let _guard = index.core().pool.pin();
        let (copied, next) = step(index, &(from..=u64::MAX), &mut copy);
        cursor = next;
        match copied {
            Ok((copied, whole)) => {
                result = result.and(whole);
                if !each(copied) {
                    break;
                }
            }
            Err(error) => {
                index.core().region.ensure_sound()?;
                result = result.and(Err(error));
            }
        }
    }
    result
}

/// Makes one step of a walk over `ranks`, under a guard of the caller. Returns the result of `copy`
/// for the segment that holds the records of the first of them, with the error if part of the
/// segment was not read; and the first rank after that segment, or `None` after the last segment.
fn step<T: Segmented, C>(
    index: &T,
    ranks: &RangeInclusive<u64>,
    copy: &mut impl FnMut(Visited<'_, T::Segment>) -> C,
) -> (Result<(C, Result<()>)>, Option<u64>) {
    let (m, from) = (index.core().medium(), *ranks.start());
    loop {
        let locked = match lock_holder(index, from) {
            Ok(Some(locked)) => locked,
            // The segment was split or merged before it was locked: try again.
            Ok(None) => continue,
            Err(error) => return (Err(error), first_hash_after(from, index.map().depth())),
        };
        let segment = T::segment_in(&locked);
        let offset = m.offset_of(segment);
        let prefix = prefix_of(m, segment).filter(|prefix| prefix.covers(from));
        let copied = prefix.map(|prefix| {
            let whole = index.ensure_chain_ends(segment);
            ((copy(Visited { offset, segment, prefix, ranks }), whole), prefix.depth)
        });
        index.unlock_unchanged(locked);
        return match copied {
            Some((copied, depth)) => (Ok(copied), first_hash_after(from, depth)),
            None => {
                let what = "a segment does not serve the hash that led to it";
                (Err(Error::damaged(offset, what)), first_hash_after(from, index.map().depth()))
            }
        };
    }
}

/// Locks the segment that holds the records of a rank. Returns `None` if the index changed while
/// this thread waited.
fn lock_holder<T: Segmented>(index: &T, rank: u64) -> Result<Option<T::Locked<'_>>> {
    let hash = T::Map::unrank(rank);
    let (offset, _) = index.map().holder(index.core().medium(), hash)?;
    index.lock_whole(offset, hash)
}

impl<T: Segmented> Ranked for T {
    fn range_bits(&self) -> u32 {
        self.map().segments().max(1).ilog2()
    }

    fn show(
        &self,
        ranks: RangeInclusive<u64>,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let copy = |at: Visited<'_, _>| self.pairs_within(at.segment, at.prefix, at.ranks);
        let (pairs, next) = step(self, &ranks, &mut { copy });
        let shown = pairs.and_then(|(pairs, whole)| {
            self.ensure_usable()?;
            pairs.into_iter().for_each(|(slot_key, word)| each(slot_key, word));
            whole
        });
        (shown, next)
    }

    fn ensure_usable(&self) -> Result<()> {
        self.core().region.ensure_sound()
    }
}

/// Implements [`Index::stats`](crate::Index::stats).
pub fn stats<T: Segmented>(index: &T) -> Result<Stats> {
    let (mut stats, mut segments, mut links) = (Stats::default(), 0, 0);
    walk(
        index,
        |at| {
            let records = index.pairs_within(at.segment, at.prefix, at.ranks).len() as u64;
            (records, index.chain_blocks(at.segment).len() as u64)
        },
        |(records, chained)| {
            segments += 1;
            links += chained;
            stats.len += records;
            true
        },
    )?;
    stats.dram_bytes = size_of::<T>() as u64;
    index.core().complete_stats(&mut stats);
    stats.capacity = links * T::LINK.0 as u64;
    stats.pm_bytes = links * T::LINK.1;
    index.map().complete_stats(segments, &mut stats);
    Ok(stats)
}

/// Implements [`Persistent::visit`](crate::Persistent::visit).
pub fn visit<T: Segmented>(index: &T, visitor: &mut dyn Visitor) -> Result<()> {
    visitor.block(index.core().root);
    {
        // A block that is replaced meanwhile must not be reused before the visitor has seen it.
        let _guard = index.core().pool.pin();
        index.map().visit(visitor);
    }
    let mut segments = 0;
    walk(
        index,
        |at| {
            let pairs = index.pairs_within(at.segment, at.prefix, at.ranks);
            (at.offset, index.chain_blocks(at.segment), pairs)
        },
        |(offset, chain, pairs)| {
            segments += 1;
            if T::Map::SEGMENTS_ARE_BLOCKS {
                visitor.block(offset);
            }
            chain.into_iter().for_each(|block| visitor.block(block));
            pairs.into_iter().for_each(|(_, word)| visitor.word(word));
            !visitor.is_done()
        },
    )?;
    if visitor.is_done() {
        return Ok(());
    }
    index.map().visited(segments);
    Ok(())
}
