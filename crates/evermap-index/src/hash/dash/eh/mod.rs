//! Dash-EH: extendible hashing.
//!
//! ```text
//! root ── directory ─┬─ segment ── 64 buckets of 14 slots, 2 stash buckets (, chain)
//!                    ├─ segment
//!                    └─ ...          the top hash bits select the segment
//! ```
//!
//! A full segment is split immediately. The differences from the paper:
//!
//! * **Splits are committed by the directory** and never redone. No persistent word refers to a
//!   segment that is not committed; moved records are removed from the old segment after the
//!   commit. The paper's protocol needs a state machine and a redo, in which its code loses data
//!   (see `docs/design/dash.md`).
//! * **Keys with equal hashes** are stored in a chain when the stash is full, instead of doubling
//!   the directory without end.
//! * Two sibling segments that together fill at most a quarter of one are merged into a new
//!   segment, without a change to either sibling.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::Dash;
use super::layout::{Geometry, HashPrefix, Sizes};
use super::rebuild::{Headers, Placed};
use crate::hash::hash_prefix::are_separable;
use crate::hash::segmented::map::Split;
use crate::hash::segmented::split::Directed;
use crate::hash::segmented::{SegmentLayout, Segmented};
use crate::{Bytes, Key};

#[cfg(test)]
mod tests;

pub use crate::hash::segmented::extendible::Extendible;

/// Dash-EH over keys `K` in medium `M`.
///
/// See the [module](super). The paper's geometry is the default; [`Tiny`] is for tests.
pub type DashEh<K, M, G = Sizes> = Dash<K, M, Extendible<M>, G>;

/// Segments so small that a few keys cause every kind of structure change.
pub type Tiny<K, M> = DashEh<K, M, Sizes<4, 2, 4>>;
/// The geometry of the paper's experiments at 90 % load: four stash buckets.
pub type WideStash<K, M> = DashEh<K, M, Sizes<64, 4>>;
/// Dash-EH over byte strings.
pub type DashBytes<M> = DashEh<Bytes, M>;

impl<K: Key, M: Medium, G: Geometry> DashEh<K, M, G> {
    /// The greatest number of records that two siblings may hold together to be merged.
    const MERGED_MAX: usize = Self::SLOTS / 4;
}

impl<K: Key, M: Medium, G: Geometry> Directed for DashEh<K, M, G> {
    /// The records that stay, and those that move.
    type Halves = [Vec<Placed>; 2];
    type Rebuilt<'a> = Headers<G>;

    const MERGES: bool = true;
    const FREE_DIRECTORY: u64 = if G::BUCKETS < 64 { 256 } else { 1 << 20 };

    fn divide(
        &self,
        segment: &&G::Segment,
        prefix: HashPrefix,
    ) -> std::result::Result<[Vec<Placed>; 2], Split> {
        let halves = self.halves_of(segment, prefix.half(1));
        let all = match &halves {
            [all, none] | [none, all] if none.is_empty() => all,
            _ => return Ok(halves),
        };
        let separable = are_separable(all.iter().map(|placed| placed.record.hash));
        if separable { Ok(halves) } else { Err(Split::Inseparable) }
    }

    fn build_upper(
        &self,
        block: u64,
        upper: HashPrefix,
        _: &&G::Segment,
        [_, moving]: &mut [Vec<Placed>; 2],
    ) -> Result<Headers<G>> {
        self.build(block, Some(upper), moving.iter().map(|placed| placed.record))
    }

    fn settle_lower<'a>(
        &'a self,
        segment: &'a G::Segment,
        lower: HashPrefix,
        [staying, moving]: [Vec<Placed>; 2],
        guard: &Guard<'_>,
    ) -> Headers<G> {
        let m = self.medium();
        // The moved records are removed from this segment only now that the move is durable. Until
        // the prefix is stored, recovery sees from the directory that this segment is the lower
        // half.
        let remaining = self.settle(segment, lower, &staying, &moving);
        m.store(&segment.header().prefix, lower.encode());
        m.note(Note::Harmless("late, a crash finds the split in the directory, and finishes it"));
        m.flush(&segment.header().prefix);
        m.fence();
        self.trim_chain(segment, guard);
        remaining
    }

    fn unlock_rebuilt(&self, segment: &G::Segment, headers: Headers<G>) {
        self.unlock_all(segment, &headers);
    }

    fn store_finished_prefix(&self, segment: &G::Segment, prefix: HashPrefix) {
        let m = self.medium();
        m.store(&segment.header().prefix, prefix.encode());
        m.note(Note::Harmless(
            "late, a crash finds the split in the directory, and finishes it again",
        ));
        m.flush(&segment.header().prefix);
    }

    fn are_sparse(&self, siblings: [&G::Segment; 2]) -> bool {
        let records: usize = siblings.map(|segment| self.count_records(segment)).iter().sum();
        records <= Self::MERGED_MAX
    }

    fn build_merged(
        &self,
        block: u64,
        parent: HashPrefix,
        siblings: [&G::Segment; 2],
    ) -> Option<Headers<G>> {
        let records: Vec<_> =
            siblings.iter().flat_map(|segment| self.all_records(segment)).collect();
        let fits = records.len() <= Self::MERGED_MAX;
        fits.then(|| self.build(block, Some(parent), records.into_iter()).ok()).flatten()
    }
}
