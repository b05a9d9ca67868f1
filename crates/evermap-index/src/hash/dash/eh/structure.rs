//! The steps of splits, merges and recovery that are specific to segments of Dash-EH.
//! `hash/segmented` has the steps that all indexes with a directory share.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::{DashEh, Extendible};
use crate::Key;
use crate::hash::dash::layout::{Bucket, HashPrefix, Segment};
use crate::hash::dash::rebuild::{Headers, Placed};
use crate::hash::directory::Directory;
use crate::hash::hash_prefix::are_separable;
use crate::hash::segmented::merge::Merging;
use crate::hash::segmented::split::{Directed, Split};
use crate::hash::segmented::{Segmented, chain};

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> Directed
    for DashEh<K, M, B, S, N>
{
    /// The records that stay, and those that move.
    type Halves = [Vec<Placed>; 2];
    type Rebuilt<'a> = Headers<B, S>;

    const MERGES: bool = true;

    #[inline(always)]
    fn directory(&self) -> &Directory<M> {
        &self.expansion.directory
    }

    fn count_split(&self) {
        self.core.count_split();
        self.expansion.count_split();
    }

    fn lock_whole(&self, offset: u64, hash: u64) -> Result<Option<&Segment<B, S>>> {
        let segment = self.segment(offset)?;
        Ok(self.lock_all(offset, segment, hash)?.then_some(segment))
    }

    fn divide(
        &self,
        segment: &&Segment<B, S>,
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
        _: &&Segment<B, S>,
        [_, moving]: &mut [Vec<Placed>; 2],
    ) -> Result<Headers<B, S>> {
        self.build(block, Some(upper), moving.iter().map(|placed| placed.record))
    }

    fn free_unpublished(&self, segment: &Segment<B, S>) {
        chain::free_unpublished::<Bucket, M>(&self.core.pool, &segment.header.chain);
    }

    fn settle_lower<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        lower: HashPrefix,
        [staying, moving]: [Vec<Placed>; 2],
        guard: &Guard<'_>,
    ) -> Headers<B, S> {
        let m = self.medium();
        // The moved records are removed from this segment only now that the move is durable. Until
        // the prefix is stored, recovery sees from the directory that this segment is the lower
        // half.
        let remaining = self.settle(segment, lower, &staying, &moving);
        m.store(&segment.header.prefix, lower.encode());
        m.note(Note::Harmless("late, a crash finds the split in the directory, and finishes it"));
        m.flush(&segment.header.prefix);
        m.fence();
        self.trim_chain(segment, guard);
        remaining
    }

    fn unlock_rebuilt(&self, segment: &Segment<B, S>, headers: Headers<B, S>) {
        self.unlock_all(segment, &headers);
    }

    fn store_finished_prefix(&self, segment: &Segment<B, S>, prefix: HashPrefix) {
        let m = self.medium();
        m.store(&segment.header.prefix, prefix.encode());
        m.note(Note::Harmless(
            "late, a crash finds the split in the directory, and finishes it again",
        ));
        m.flush(&segment.header.prefix);
    }
}

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> Merging
    for DashEh<K, M, B, S, N>
{
    /// A quarter of one segment.
    const MERGE_BELOW: usize = (B + S) * N / 4;
    const DEPTH_MIN: u32 = 0;
    const FREE_DIRECTORY: u64 = if B < 64 { 256 } else { 1 << 20 };

    fn extendible(&self) -> &Extendible<M> {
        &self.expansion
    }

    fn segment_for(&self, entry: u64) -> Result<Option<&Segment<B, S>>> {
        self.segment(entry).map(Some)
    }

    fn count(&self, segment: &Segment<B, S>) -> usize {
        self.count_records(segment)
    }

    fn build_merged(
        &self,
        block: u64,
        parent: HashPrefix,
        siblings: [&Segment<B, S>; 2],
    ) -> Option<Headers<B, S>> {
        let records: Vec<_> =
            siblings.iter().flat_map(|segment| self.all_records(segment)).collect();
        let fits = records.len() <= Self::MERGE_BELOW;
        fits.then(|| self.build(block, Some(parent), records.into_iter()).ok()).flatten()
    }

    fn publish_merged(&self, parent: HashPrefix, entry: u64) {
        let (m, directory) = (self.medium(), self.directory());
        let latch = directory.share();
        let mut ranges = [parent.half(1), parent];
        if m.mutant("DA-4") {
            ranges.reverse();
        }
        for range in ranges {
            directory.point(range, entry, &latch);
            m.fence();
        }
    }

    fn retire_chain(&self, segment: &Segment<B, S>, guard: &Guard<'_>) {
        chain::retire::<Bucket, M>(&self.core.pool, &segment.header.chain, guard);
    }
}
