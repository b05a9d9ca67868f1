//! Dash-EH: extendible hashing.
//!
//! ```text
//! root ── directory ─┬─ segment ── 64 buckets of 14 slots, 2 stash buckets (, chain)
//!                    ├─ segment
//!                    └─ ...          top hash bits pick the segment
//! ```
//!
//! A full segment is split at once. What differs from the paper:
//!
//! * **Splits are committed by the directory** and never redone. No persistent word names an uncommitted
//!   segment; moved records are cleared after the commit. The paper's protocol needs a state machine and a redo,
//!   in which its code loses data (see `recover`).
//! * **Keys with equal hashes** go to a chain behind the stash, instead of doubling the directory for ever.
//! * Merging happens below a quarter of a segment, and builds a new segment rather than changing one.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::{Error, Guard, Medium, Pool, Result};

use super::Dash;
use super::expansion::{Expansion, Found, Split};
use super::layout::{HashPrefix, Root, SLOTS_MAX, Segment};
use super::segment::Chain;
use crate::hash::directory::{self, Directory};
use crate::hash::fresh::Fresh;
use crate::{Bytes, Key, Stats, Visitor};

mod recover;
mod restructure;
#[cfg(test)]
mod tests;

/// Dash-EH over keys `K` in medium `M`, with segments of `B` buckets and `S` stash buckets, using `N` slots of each.
///
/// See the [module](super). The paper's geometry is the default; [`Tiny`] is for tests.
pub type DashEh<K, M, const B: usize = 64, const S: usize = 2, const N: usize = { SLOTS_MAX }> =
    Dash<K, M, Extendible<M>, B, S, N>;

/// Segments so small that a handful of keys makes every structural change happen.
pub type Tiny<K, M> = DashEh<K, M, 4, 2, 4>;
/// The geometry of the paper's runs at 90 % load: four stash buckets.
pub type WideStash<K, M> = DashEh<K, M, 64, 4>;
/// For stores: variable-length keys.
pub type DashBytes<M> = DashEh<Bytes, M>;

/// Growth by splitting whatever is full, with a directory that doubles.
pub struct Extendible<M: Medium> {
    directory: Directory<M>,
    /// An estimate until everything was visited.
    segments: AtomicU64,
    merges: AtomicU64,
}

impl<M: Medium> Extendible<M> {
    fn new(directory: Directory<M>, segments: u64) -> Self {
        Extendible { directory, segments: AtomicU64::new(segments), merges: AtomicU64::new(0) }
    }

    fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    fn count_split(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
    }

    fn count_merge(&self) {
        // An estimate until everything was visited: more may be merged away than it counts.
        let less = |segments: u64| Some(segments.saturating_sub(1));
        let _ = self.segments.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.merges.fetch_add(1, Ordering::Relaxed);
    }
}

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
        let size = size_of::<Segment<B, S>>() as u64;
        let mut fresh = Fresh::new(pool);
        let segments: Vec<u64> =
            (0..1 << depth).map(|_| fresh.allocate_exact(size)).collect::<Result<_>>()?;
        let cell = root + offset_of!(Root, directory) as u64;
        let directory = Directory::create(pool.clone(), cell, depth, &segments)?;
        fresh.keep();
        Ok((Extendible::new(directory, 1 << depth), segments))
    }

    fn open(pool: &Arc<Pool<M>>, root: u64) -> Result<Self> {
        pool.medium()
            .at::<Root>(root)
            .ok_or_else(|| Error::damaged(root, "the index's root ends outside"))?;
        let cell = root + offset_of!(Root, directory) as u64;
        let directory = Directory::open(pool.clone(), cell)?;
        // Exact once everything has been visited; low until then, which only postpones doubling.
        let estimate = (1u64 << directory.depth()).div_ceil(4);
        Ok(Extendible::new(directory, estimate))
    }

    #[inline(always)]
    fn find<'a>(&'a self, _m: &'a M, hash: u64) -> Result<directory::Found<'a>> {
        Ok(self.directory.find(hash))
    }

    #[inline(always)]
    fn holder<'a>(&'a self, _m: &'a M, hash: u64) -> Result<directory::Found<'a>> {
        // A segment has its records from the moment that the directory names it.
        Ok(self.directory.find(hash))
    }

    #[inline(always)]
    fn still(&self, m: &M, _hash: u64, found: &directory::Found<'_>) -> bool {
        self.directory.still(m, found)
    }

    fn depth(&self) -> u32 {
        self.directory.depth()
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
        shape: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        let finished = dash.finish_directory(offset, segment, shape);
        dash.expansion.directory.unless_gone(offset, finished)
    }

    fn split(
        dash: &DashEh<K, M, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<Split> {
        dash.split(offset, hash, guard)
    }

    fn lengthened(_dash: &DashEh<K, M, B, S, N>) -> Result<()> {
        Ok(())
    }

    fn emptied(
        dash: &DashEh<K, M, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<()> {
        dash.merge_if_sparse(offset, hash, guard)
    }

    fn make_all_stale(dash: &DashEh<K, M, B, S, N>) -> Result<()> {
        let mut cursor = Some(0u64);
        while let Some(hash) = cursor {
            if let Ok(segment) = dash.segment(dash.expansion.directory.locate(hash)) {
                dash.make_stale(segment);
            }
            let step = 1u64.checked_shl(64 - dash.expansion.directory.depth()).unwrap_or(0);
            cursor = hash.checked_add(step).filter(|_| step != 0);
        }
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.block(self.directory.block());
    }

    fn visited(&self, segments: u64) {
        self.segments.store(segments, Ordering::Relaxed);
    }

    fn complete(&self, segments: u64, stats: &mut Stats) {
        stats.depth = self.directory.depth();
        stats.segments = segments;
        stats.capacity += segments * ((B + S) * N) as u64;
        stats.pm_bytes += (8 << stats.depth) + segments * size_of::<Segment<B, S>>() as u64;
        stats.merges = self.merges.load(Ordering::Relaxed);
    }

    /// Every entry must name the segment whose shape covers it.
    fn check(dash: &DashEh<K, M, B, S, N>, problems: &mut Vec<String>) {
        let directory = &dash.expansion.directory;
        let depth = directory.depth();
        let latch = directory.share();
        for pattern in 0..1u64 << depth {
            let place = HashPrefix { depth, pattern };
            let named = directory.first(place, &latch);
            let covers = dash.shape_at(named).is_some_and(|shape| shape.covers(place.first_hash()));
            if !covers {
                problems.push(format!(
                    "directory entry {pattern} names {named:#x}, which is elsewhere"
                ));
            }
        }
    }
}
