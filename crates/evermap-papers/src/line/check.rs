//! Checking the invariants of a segment of a line hash.

use evermap_index::hash::segmented::chain;
use evermap_index::hash::segmented::check::SeenRecords;
use evermap_index::key::Quotient;
use evermap_pm::Medium;

use super::bucket::{is_foreign, keys_of, tag_of};
use super::layout::{CHAINED, Geometry, Link, Segment};
use super::segment::may_be_elsewhere;
use super::{HashPrefix, LineHash};

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Describes the violated invariants of a segment with this prefix, which the caller has
    /// locked.
    pub(super) fn check_contents(
        &self,
        segment: &Segment<L>,
        prefix: HashPrefix,
        problems: &mut Vec<String>,
    ) {
        let m = self.medium();
        let offset = m.offset_of(segment);
        let mut seen = SeenRecords::new(prefix, K::WORDS_ARE_RECORDS);
        self.for_each_slot(segment, |at, slot, key, record| {
            let mut wrong = |what: &str| {
                problems.push(format!("segment {offset:#x} line {at} slot {slot}: {what}"));
            };
            let home = &segment.lines[Geometry::<L, N>::home(record.image)];
            if is_foreign(key) && !may_be_elsewhere(keys_of(m, home)[2], tag_of(key)) {
                wrong("the filter excludes it");
            }
            seen.check(record.image, (record.image, record.word), &mut wrong);
        });
        let links = chain::links(m, &segment.header.chain);
        for (_, record) in links.flat_map(|link: &Link| self.records_in(link)) {
            let mut wrong = |what: &str| {
                problems.push(format!("segment {offset:#x} chain: {what}"));
            };
            let home = &segment.lines[Geometry::<L, N>::home(record.image)];
            if keys_of(m, home)[2] & CHAINED != CHAINED {
                wrong("its home line is not marked as chained");
            }
            seen.check(record.image, (record.image, record.word), &mut wrong);
        }
    }
}
