//! Checking the invariants of a segment of Dash.

use evermap_pm::Medium;

use super::Dash;
use super::bucket::{Record, fingerprint_of, matching_slots, meta_of};
use super::layout::{Bucket, Buckets, Geometry, HashPrefix, Version};
use crate::Key;
use crate::hash::segmented::check::SeenRecords;
use crate::hash::segmented::map::SegmentMap;
use crate::hash::segmented::{SegmentLayout, chain};
use crate::hash::vacancy::Vacancy;

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    /// Describes the violated invariants of a segment with this prefix, which the caller has
    /// locked.
    pub(super) fn check_contents(
        &self,
        segment: &G::Segment,
        prefix: HashPrefix,
        problems: &mut Vec<String>,
    ) {
        let mut seen = SeenRecords::new(prefix, K::WORDS_ARE_RECORDS);
        self.check_normal(segment, &mut seen, problems);
        let offset = self.medium().offset_of(segment);
        let stash = segment.stash().iter().enumerate().map(|(i, bucket)| (Some(i), bucket));
        let links = chain::links(self.medium(), &segment.header().chain);
        for (i, bucket) in stash.chain(links.map(|bucket: &Bucket| (None, bucket))) {
            for (slot, record) in self.records_of(bucket) {
                let mut wrong = |what: &str| {
                    problems.push(format!("segment {offset:#x} stash {i:?} slot {slot}: {what}"));
                };
                if !self.has_fingerprint(bucket, slot, record) {
                    wrong("the fingerprint is not that of the key");
                }
                if !self.finds_in_stash(segment, record) {
                    wrong("no overflow metadata refers to it");
                }
                seen.check(E::rank(record.hash), (record.slot_key, record.word), &mut wrong);
            }
        }
    }

    fn check_normal(
        &self,
        segment: &G::Segment,
        seen: &mut SeenRecords,
        problems: &mut Vec<String>,
    ) {
        let m = self.medium();
        let offset = m.offset_of(segment);
        let mut vacancy = Vacancy::default();
        for (at, bucket) in segment.normal().iter().enumerate() {
            let words = bucket.slots.iter().flat_map(|slot| [&slot.key, &slot.word]);
            vacancy.count(m, m.offset_of(bucket), meta_of(m, bucket).count(), words);
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
                if !self.has_fingerprint(bucket, slot, record) {
                    wrong("the fingerprint is not that of the key");
                }
                let version = Version(m.load(&segment.normal()[home].version));
                if member && !version.may_be_next(record.hash) {
                    wrong("the filter excludes it");
                }
                seen.check(E::rank(record.hash), (record.slot_key, record.word), &mut wrong);
            }
        }
        vacancy.describe(problems);
    }

    fn has_fingerprint(&self, bucket: &Bucket, slot: usize, record: Record) -> bool {
        let matching = matching_slots(self.medium(), bucket, fingerprint_of(record.hash));
        matching >> slot & 1 == 1
    }

    /// Returns whether a lookup would find this record in the stash or the chain.
    fn finds_in_stash(&self, segment: &G::Segment, record: Record) -> bool {
        let m = self.medium();
        let home = &segment.normal()[Self::home_of(record.hash)];
        let version = Version(m.load(&home.version));
        version.overflowed()
            && (version.unlisted() > 0
                || (0..G::STASHES).any(|i| {
                    self.announced_in(segment, record.hash) >> i & 1 == 1
                        && self.holds(&segment.stash()[i], record)
                }))
    }

    fn holds(&self, bucket: &Bucket, record: Record) -> bool {
        self.records_of(bucket)
            .any(|(_, other)| other.slot_key == record.slot_key && other.word == record.word)
    }
}
