//! The steps of splits, merges and recovery that are specific to segments of a line hash.
//! `hash/segmented` has the steps that all indexes with a directory share.

use evermap_index::hash::hash_prefix::are_separable;
use evermap_index::hash::segmented::map::Split;
use evermap_index::hash::segmented::split::Directed;
use evermap_index::hash::segmented::{Segmented, chain};
use evermap_index::key::Quotient;
use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::bucket::{Record, keys_of, valid};
use super::layout::{Geometry, Link, Segment};
use super::rebuild::SegmentBuffer;
use super::{HashPrefix, LineHash};

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    /// The number of records in a segment and its chain below which it is not split. If two of its
    /// lines are full while the others are nearly empty, the images are not random. Without this
    /// bound, keys whose images have equal low bits would need a segment for every few keys.
    const SPLIT_FROM: usize = Self::SLOTS / 4;

    /// The greatest number of records that two siblings may hold together to be merged.
    const MERGED_MAX: usize = Self::SLOTS / 4;
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> Directed
    for LineHash<K, M, L, SMALL>
{
    /// The records that stay, and those that move.
    type Halves = [SegmentBuffer<L, SMALL>; 2];
    type Rebuilt<'a> = ();

    const MERGES: bool = true;
    const ENTRIES_ARE_STAMPED: bool = true;
    const DEPTH_MIN: u32 = Geometry::<L, SMALL>::DEPTH_MIN;
    const FREE_DIRECTORY: u64 = if L < 64 { 256 } else { 1 << 20 };

    fn divide(
        &self,
        segment: &&Segment<L>,
        prefix: HashPrefix,
    ) -> std::result::Result<[SegmentBuffer<L, SMALL>; 2], Split> {
        let halves = self.copy_halves(segment, prefix.depth);
        let [stay, move_] = [0, 1].map(|half| halves[half].count());
        if stay > 0 && move_ > 0 && stay + move_ >= Self::SPLIT_FROM {
            return Ok(halves);
        }
        // With those in the chain.
        let records = self.all_records(segment);
        if records.len() < Self::SPLIT_FROM {
            return Err(Split::Refused);
        }
        let separable = are_separable(records.iter().map(|record| record.image));
        if separable { Ok(halves) } else { Err(Split::Inseparable) }
    }

    fn build_upper(
        &self,
        block: u64,
        upper: HashPrefix,
        segment: &&Segment<L>,
        halves: &mut [SegmentBuffer<L, SMALL>; 2],
    ) -> Result<()> {
        let chained: Vec<Record> = chain::links(self.medium(), &segment.header.chain)
            .flat_map(|link: &Link| self.records_in(link))
            .map(|(_, record)| record)
            .filter(|record| upper.covers(record.image))
            .collect();
        self.build_half(block, upper, &mut halves[1], &chained)
    }

    fn settle_lower<'a>(
        &'a self,
        segment: &'a Segment<L>,
        lower: HashPrefix,
        [staying, _]: [SegmentBuffer<L, SMALL>; 2],
        guard: &Guard<'_>,
    ) {
        let m = self.medium();
        m.store(&segment.header.prefix, lower.encode());
        m.note(Note::Harmless(
            "needed by other threads: `a_split_is_durable_whatever_comes_of_the_record`",
        ));
        m.persist(&segment.header.prefix);
        // The moved records are removed from this segment only now that the move is durable.
        self.settle(segment, lower, staying);
        chain::trim::<Link, M>(&self.core.pool, &segment.header.chain, guard);
    }

    fn unlock_rebuilt(&self, segment: &Segment<L>, (): ()) {
        self.unlock_changed(segment);
    }

    fn store_finished_prefix(&self, segment: &Segment<L>, prefix: HashPrefix) {
        // Made durable with the rest of the segment, before any record is dropped from it.
        self.medium().store(&segment.header.prefix, prefix.encode());
    }

    fn are_sparse(&self, siblings: [&Segment<L>; 2]) -> bool {
        let m = self.medium();
        let lines = siblings.iter().flat_map(|segment| &segment.lines);
        let records: usize = lines.map(|line| valid(&keys_of(m, line)).count_ones() as usize).sum();
        records <= Self::MERGED_MAX
    }

    fn build_merged(
        &self,
        block: u64,
        parent: HashPrefix,
        siblings: [&Segment<L>; 2],
    ) -> Option<()> {
        let records: Vec<_> =
            siblings.iter().flat_map(|segment| self.all_records(segment)).collect();
        let mut buffer = SegmentBuffer::empty(parent.depth);
        let fits = records.len() <= Self::MERGED_MAX
            && records.iter().all(|&record| buffer.put_anywhere(record));
        fits.then(|| self.build(block, parent, &buffer, &[]).ok()).flatten()
    }

    fn publish_merged(&self, parent: HashPrefix, entry: u64) {
        let (m, directory) = (self.medium(), &self.map.directory);
        let latch = directory.share();
        directory.point(parent.half(1), entry, &latch);
        directory.point(parent, entry, &latch);
        m.note(Note::Harmless(
            "needed once the blocks are reused: \
             `a_merge_is_durable_before_its_halves_are_retired`",
        ));
        m.fence();
    }
}
