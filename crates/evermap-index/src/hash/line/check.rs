//! The invariants of a line hash, checked one by one.

use std::collections::HashMap;

use evermap_pm::Medium;

use super::bucket::{Record, is_foreign, keys_of, tag_of};
use super::layout::{CHAINED, Geometry, Header, OFFSET, Segment};
use super::segment::may_be_elsewhere;
use super::{HashPrefix, LineHash};
use crate::key::Quotient;

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    pub(super) fn check_everything(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut places: HashMap<u64, u64> = HashMap::new();
        let walked = self.walk(
            |segment, _| (self.medium().offset_of(segment), self.check_segment(segment)),
            |(offset, (found, shape))| {
                problems.extend(found);
                if let Some(first) = places.insert(offset, shape) {
                    problems.push(format!(
                        "segment {offset:#x} serves two places: {first:#x}, {shape:#x}"
                    ));
                }
                true
            },
        );
        if let Err(error) = walked {
            problems.push(error.to_string());
        }
        self.check_directory(&mut problems);
        problems
    }

    /// Every entry must name the segment whose shape covers it, with our stamp.
    fn check_directory(&self, problems: &mut Vec<String>) {
        let depth = self.directory.depth();
        let latch = self.directory.share();
        for pattern in 0..1u64 << depth {
            let place = HashPrefix { depth, pattern };
            let entry = self.directory.first(place, &latch);
            let named = entry & OFFSET;
            let covers = self.shape_at(named).is_some_and(|shape| shape.covers(place.first_hash()));
            if !covers {
                problems.push(format!(
                    "directory entry {pattern} names {named:#x}, which is elsewhere"
                ));
            }
            // Everything has been visited, so everything was recovered.
            if entry & !OFFSET != self.stamp {
                problems.push(format!("directory entry {pattern} is stale: {entry:#x}"));
            }
        }
    }

    fn check_segment(&self, segment: &Segment<L>) -> (Vec<String>, u64) {
        let m = self.medium();
        let offset = m.offset_of(segment);
        let mut problems = Vec::new();
        let shape = m.load(&segment.header.shape);
        let Some(covered) = HashPrefix::decode(shape) else {
            return (vec![format!("segment {offset:#x}: impossible shape")], shape);
        };
        if m.load(&segment.header.magic) != Header::MAGIC {
            problems.push(format!("segment {offset:#x}: no magic word"));
        }
        let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
        self.for_each_slot(segment, |at, slot, key, record| {
            let mut wrong = |what: &str| {
                problems.push(format!("segment {offset:#x} line {at} slot {slot}: {what}"));
            };
            let home = &segment.lines[Geometry::<L, N>::home(record.image)];
            if is_foreign(key) && !may_be_elsewhere(keys_of(m, home)[2], tag_of(key)) {
                wrong("the filter hides it");
            }
            self.check_record(record, covered, &mut seen, &mut wrong);
        });
        for record in self.chain(segment).flat_map(|link| self.records_in(link)).map(|(_, r)| r) {
            let mut wrong = |what: &str| {
                problems.push(format!("segment {offset:#x} chain: {what}"));
            };
            let home = &segment.lines[Geometry::<L, N>::home(record.image)];
            if keys_of(m, home)[2] & CHAINED != CHAINED {
                wrong("its home line does not lead to it");
            }
            self.check_record(record, covered, &mut seen, &mut wrong);
        }
        (problems, shape)
    }

    fn check_record(
        &self,
        record: Record,
        covered: HashPrefix,
        seen: &mut HashMap<(u64, u64), usize>,
        wrong: &mut impl FnMut(&str),
    ) {
        if !covered.covers(record.image) {
            wrong("belongs to another segment");
        }
        // Two records may share an image; two slots may not share a record.
        let identity = (record.image, if K::WORDS_ARE_RECORDS { record.word } else { 0 });
        let times = seen.entry(identity).or_default();
        *times += 1;
        if *times > 1 {
            wrong("the same record is in another slot too");
        }
    }
}
