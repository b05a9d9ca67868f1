//! Checking the invariants of a segment of a line hash.

use evermap_index::hash::segmented::chain;
use evermap_index::hash::segmented::check::SeenRecords;
use evermap_index::hash::vacancy::Vacancy;
use evermap_index::key::Quotient;
use evermap_pm::Medium;

use super::bucket::{is_foreign, keys_of, tag_of, valid};
use super::layout::{CHAINED, Geometry, Link, Segment, holds_tops};
use super::segment::may_be_elsewhere;
use super::{HashPrefix, LineHash};

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
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
            let home = &segment.lines[Geometry::<L, SMALL>::home(record.image)];
            if is_foreign(key) && !may_be_elsewhere(keys_of(m, home)[2], tag_of(key)) {
                wrong("the filter excludes it");
            }
            seen.check(record.image, (record.image, record.word), &mut wrong);
        });
        let is_shallow = Geometry::<L, SMALL>::is_shallow(prefix.depth);
        let mut vacancy = Vacancy::default();
        for (at, line) in segment.lines.iter().enumerate() {
            let keys = keys_of(m, line);
            let records = valid(&keys).count_ones() as usize;
            vacancy.count(m, m.offset_of(line), records, line.words.iter());
            if holds_tops(keys[3]) != is_shallow {
                problems.push(format!(
                    "segment {offset:#x} line {at}: its fourth slot is not what its depth demands"
                ));
            }
        }
        vacancy.describe(problems);
        let links = chain::links(m, &segment.header.chain);
        for (_, record) in links.flat_map(|link: &Link| self.records_in(link)) {
            let mut wrong = |what: &str| {
                problems.push(format!("segment {offset:#x} chain: {what}"));
            };
            let home = &segment.lines[Geometry::<L, SMALL>::home(record.image)];
            if keys_of(m, home)[2] & CHAINED != CHAINED {
                wrong("its home line is not marked as chained");
            }
            seen.check(record.image, (record.image, record.word), &mut wrong);
        }
    }
}
