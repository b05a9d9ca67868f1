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

use std::collections::HashMap;
use std::sync::Arc;

use evermap_pm::{Guard, Medium, Pool, Result};

use super::Dash;
use super::expansion::{Expansion, Found};
use super::layout::{HashPrefix, Root, SLOTS_MAX, Segment};
use crate::hash::directory;
use crate::hash::segmented::Segmented;
use crate::hash::segmented::apply::Chain;
use crate::hash::segmented::check::check_directory;
use crate::hash::segmented::merge::{merge_if_sparse, split_in_proportion};
use crate::hash::segmented::recover::{finish_structure, for_each_named};
use crate::hash::segmented::split::Split;
use crate::{Bytes, Key, Stats, Visitor};

mod structure;
#[cfg(test)]
mod tests;

pub use crate::hash::segmented::extendible::Extendible;

/// Dash-EH over keys `K` in medium `M`, with segments of `B` buckets and `S` stash buckets, using
/// `N` slots of each.
///
/// See the [module](super). The paper's geometry is the default; [`Tiny`] is for tests.
pub type DashEh<K, M, const B: usize = 64, const S: usize = 2, const N: usize = { SLOTS_MAX }> =
    Dash<K, M, Extendible<M>, B, S, N>;

/// Segments so small that a few keys cause every kind of structure change.
pub type Tiny<K, M> = DashEh<K, M, 4, 2, 4>;
/// The geometry of the paper's experiments at 90 % load: four stash buckets.
pub type WideStash<K, M> = DashEh<K, M, 64, 4>;
/// Dash-EH over byte strings.
pub type DashBytes<M> = DashEh<Bytes, M>;

impl Found for directory::Found<'_> {
    #[inline(always)]
    fn segment(&self) -> u64 {
        self.segment
    }
}

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> Expansion<K, M, B, S, N>
    for Extendible<M>
{
    const NAME: [u8; 8] = *b"DASHEH\0\0";
    const ROOT_BYTES: u64 = size_of::<Root>() as u64;
    const SEGMENTS_ARE_BLOCKS: bool = true;
    const CHAIN: Chain = Chain::Avoid;

    type Found<'a> = directory::Found<'a>;

    #[inline(always)]
    fn rank(hash: u64) -> u64 {
        hash
    }

    fn unrank(rank: u64) -> u64 {
        rank
    }

    fn create(pool: &Arc<Pool<M>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)> {
        Extendible::create(pool, root, depth, size_of::<Segment<B, S>>() as u64, 0)
    }

    fn open(pool: &Arc<Pool<M>>, root: u64) -> Result<Self> {
        Extendible::open(pool, root)
    }

    #[inline(always)]
    fn find<'a>(&'a self, _m: &'a M, hash: u64) -> Result<directory::Found<'a>> {
        Ok(self.directory.find(hash))
    }

    #[inline(always)]
    fn holder<'a>(&'a self, _m: &'a M, hash: u64) -> Result<directory::Found<'a>> {
        // A segment holds all of its records as soon as the directory refers to it.
        Ok(self.directory.find(hash))
    }

    #[inline(always)]
    fn is_current(&self, m: &M, _hash: u64, found: &directory::Found<'_>) -> bool {
        self.directory.is_current(m, found)
    }

    fn depth(&self) -> u32 {
        self.directory.depth()
    }

    fn segments(&self) -> u64 {
        self.segments()
    }

    fn prepare(
        dash: &DashEh<K, M, B, S, N>,
        offset: u64,
        _hash: u64,
        _guard: &Guard<'_>,
    ) -> Result<bool> {
        dash.recover(offset).map(|()| true)
    }

    fn finish_structure(
        dash: &DashEh<K, M, B, S, N>,
        offset: u64,
        segment: &Segment<B, S>,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        finish_structure(dash, offset, segment, prefix)
    }

    #[cold]
    fn split(
        dash: &DashEh<K, M, B, S, N>,
        segment: &Segment<B, S>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<Split> {
        split_in_proportion(dash, segment, hash, guard)
    }

    fn lengthened(_dash: &DashEh<K, M, B, S, N>, _hash: u64) -> Result<()> {
        Ok(())
    }

    fn emptied(
        dash: &DashEh<K, M, B, S, N>,
        segment: &Segment<B, S>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<()> {
        merge_if_sparse(dash, segment, hash, guard)
    }

    fn make_all_stale(dash: &DashEh<K, M, B, S, N>) -> Result<()> {
        for_each_named(dash, |offset| {
            if let Ok(segment) = dash.segment(offset) {
                dash.make_stale(segment);
            }
        });
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.block(self.directory.block());
    }

    fn visited(&self, segments: u64) {
        self.count_all(segments);
    }

    fn complete(&self, segments: u64, stats: &mut Stats) {
        let segment = (((B + S) * N) as u64, size_of::<Segment<B, S>>() as u64);
        self.complete_stats(segments, segment, stats);
    }

    fn check(
        dash: &DashEh<K, M, B, S, N>,
        found: &HashMap<u64, HashPrefix>,
        problems: &mut Vec<String>,
    ) {
        check_directory(dash, found, problems);
    }
}
