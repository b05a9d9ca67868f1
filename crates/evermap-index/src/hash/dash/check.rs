//! The invariants of Dash, checked one by one.

use std::collections::HashMap;

use evermap_pm::Medium;

use super::bucket::{Record, fingerprint_of, matching_slots, meta_of};
use super::layout::{HashPrefix, Header, Segment, Version};
use super::{Dash, Expansion};
use crate::Key;
use crate::hash::vacancy::Vacancy;

impl<K, M, E, const B: usize, const S: usize, const N: usize> Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    pub(super) fn check_everything(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut places: HashMap<u64, u64> = HashMap::new();
        let walked = self.walk(
            |offset, segment, _| (offset, self.check_segment(offset, segment)),
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
        E::check(self, &mut problems);
        problems
    }

    fn check_segment(&self, offset: u64, segment: &Segment<B, S>) -> (Vec<String>, u64) {
        let m = self.medium();
        let mut problems = Vec::new();
        let shape = m.load(&segment.header.shape);
        let Some(covered) = HashPrefix::decode(shape) else {
            return (vec![format!("segment {offset:#x}: impossible shape")], shape);
        };
        if m.load(&segment.header.magic) != Header::MAGIC {
            problems.push(format!("segment {offset:#x}: no magic word"));
        }
        let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
        let mut vacancy = Vacancy::default();
        for (at, bucket) in segment.normal.iter().enumerate() {
            vacancy.count(m.offset_of(bucket), meta_of(m, bucket).count());
            let members = meta_of(m, bucket).members();
            for (slot, record) in self.records_of(bucket) {
                let member = members >> slot & 1 == 1;
                let home = if member { Self::previous_of(at) } else { at };
                let mut wrong = |what: &str| {
                    problems.push(format!("segment {offset:#x} bucket {at} slot {slot}: {what}"));
                };
                if Self::home_of(record.hash) != home {
                    wrong("in a bucket that its key does not belong to");
                }
                if matching_slots(m, bucket, fingerprint_of(record.hash)) >> slot & 1 == 0 {
                    wrong("fingerprint is not that of the key");
                }
                let version = Version(m.load(&segment.normal[home].version));
                if member && !version.may_be_next(record.hash) {
                    wrong("the filter hides it");
                }
                self.check_record(record, covered, &mut seen, &mut wrong);
            }
        }
        vacancy.describe(&mut problems);
        let stashed = segment.stash.iter().enumerate().map(|(i, bucket)| (Some(i), bucket));
        for (i, bucket) in stashed.chain(self.chain(segment).map(|bucket| (None, bucket))) {
            for (slot, record) in self.records_of(bucket) {
                let mut wrong = |what: &str| {
                    problems.push(format!("segment {offset:#x} stash {i:?} slot {slot}: {what}"));
                };
                if matching_slots(m, bucket, fingerprint_of(record.hash)) >> slot & 1 == 0 {
                    wrong("fingerprint is not that of the key");
                }
                if !self.finds_in_stash(segment, record) {
                    wrong("no overflow metadata leads to it");
                }
                self.check_record(record, covered, &mut seen, &mut wrong);
            }
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
        if !covered.covers(E::rank(record.hash)) {
            wrong("belongs to another segment");
        }
        // Two records may share a hash; two slots may not share a record.
        let identity = (record.slot_key, if K::WORDS_ARE_RECORDS { record.word } else { 0 });
        let times = seen.entry(identity).or_default();
        *times += 1;
        if *times > 1 {
            wrong("the same record is in another slot too");
        }
    }

    /// Whether a lookup would come to this stash record.
    fn finds_in_stash(&self, segment: &Segment<B, S>, record: Record) -> bool {
        let m = self.medium();
        let home = &segment.normal[Self::home_of(record.hash)];
        let version = Version(m.load(&home.version));
        version.overflowed()
            && (version.unlisted() > 0
                || (0..S).any(|i| {
                    self.announced_in(segment, record.hash) >> i & 1 == 1
                        && self.holds(&segment.stash[i], record)
                }))
    }

    fn holds(&self, bucket: &super::layout::Bucket, record: Record) -> bool {
        self.records_of(bucket)
            .any(|(_, other)| other.slot_key == record.slot_key && other.word == record.word)
    }
}
