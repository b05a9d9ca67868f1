//! The invariants of CCEH, checked one by one.

use std::collections::HashMap;

use evermap_pm::Medium;

use super::Cceh;
use super::layout::{Header, SLOTS};
use super::segment::{Held, Record};
use crate::Key;
use crate::hash::hash_prefix::HashPrefix;
use crate::hash::vacancy::Vacancy;

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    pub(super) fn check_everything(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut places: HashMap<u64, HashPrefix> = HashMap::new();
        let walked = self.walk(
            |held| (held.offset, held.shape, self.check_segment(held)),
            |(offset, shape, found)| {
                problems.extend(found);
                if let Some(first) = places.insert(offset, shape) {
                    problems.push(format!(
                        "segment {offset:#x} serves two places: {first:?}, {shape:?}"
                    ));
                }
                true
            },
        );
        if let Err(error) = walked {
            problems.push(error.to_string());
        }
        self.check_directory(&places, &mut problems);
        problems
    }

    /// Every entry must name the segment that the walk has found in its place, with the shape that it has there.
    fn check_directory(&self, places: &HashMap<u64, HashPrefix>, problems: &mut Vec<String>) {
        let depth = self.directory.depth();
        let latch = self.directory.share();
        for pattern in 0..1u64 << depth {
            let place = HashPrefix { depth, pattern };
            let named = self.directory.first(place, &latch);
            if !places.get(&named).is_some_and(|shape| shape.contains(place)) {
                problems.push(format!(
                    "directory entry {pattern} names {named:#x}, which is elsewhere"
                ));
            }
        }
    }

    fn check_segment(&self, held: &Held<'_, B>) -> Vec<String> {
        let m = self.medium();
        let mut problems = Vec::new();
        if m.load(&held.segment.header.magic) != Header::MAGIC {
            problems.push(format!("segment {:#x}: no magic word", held.offset));
        }
        // Two records may share a hash; two slots may not share a record.
        let mut seen: HashMap<Record, usize> = HashMap::new();
        let mut records = [0; B];
        self.for_each_record(held.segment, held.shape, |at, mut record| {
            records[at / SLOTS] += 1;
            if !K::WORDS_ARE_RECORDS {
                record.word = 0;
            }
            if let Some(other) = seen.insert(record, at) {
                problems.push(format!(
                    "segment {:#x} slot {at}: the same record is in slot {other} too",
                    held.offset
                ));
            }
        });
        let mut vacancy = Vacancy::default();
        for (bucket, records) in held.segment.buckets.iter().zip(records) {
            vacancy.count(m.offset_of(bucket), records);
        }
        vacancy.describe(&mut problems);
        problems
    }
}
