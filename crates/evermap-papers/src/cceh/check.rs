//! Checking the invariants of a segment of CCEH.

use std::collections::HashMap;

use evermap_index::Key;
use evermap_index::hash::hash_prefix::HashPrefix;
use evermap_index::hash::vacancy::Vacancy;
use evermap_pm::Medium;

use super::Cceh;
use super::layout::{SLOTS, Segment};
use super::segment::Record;

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Describes the violated invariants of a segment with this prefix, which the caller has
    /// locked.
    pub(super) fn check_contents(
        &self,
        segment: &Segment<B>,
        prefix: HashPrefix,
        problems: &mut Vec<String>,
    ) {
        let m = self.medium();
        // Two records may have the same hash, but two slots must not hold the same record.
        let mut seen: HashMap<Record, usize> = HashMap::new();
        let mut records = [0; B];
        self.for_each_record(segment, prefix, |at, mut record| {
            records[at / SLOTS] += 1;
            if !K::WORDS_ARE_RECORDS {
                record.word = 0;
            }
            if let Some(other) = seen.insert(record, at) {
                problems.push(format!(
                    "segment {:#x} slot {at}: the same record is in slot {other} too",
                    m.offset_of(segment)
                ));
            }
        });
        let mut vacancy = Vacancy::default();
        for (bucket, records) in segment.buckets.iter().zip(records) {
            // The page of a bucket that was emptied or never used holds keys that make slots free.
            let words = bucket.slots.iter().flat_map(|slot| [&slot.key, &slot.word]);
            vacancy.count(m, m.offset_of(bucket), records, words);
        }
        vacancy.describe(problems);
    }
}
