//! The invariants of Level hashing.

use std::collections::HashMap;

use evermap_index::Key;
use evermap_pm::{Medium, Result};

use super::bucket::{meta_of, persistent_tokens};
use super::layout::Version;
use super::levels::{Site, View};
use super::{Geometry, Level};

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    pub(super) fn check_everything(&self) -> Vec<String> {
        let mut problems = Vec::new();
        // Recovers all buckets, and drops duplicates.
        if let Err(error) = self.walk(|_| true) {
            problems.push(error.to_string());
        }
        let (view, mut seen) = (self.levels.view(), HashMap::new());
        for level in view.lowest()..=view.highest() {
            for index in 0..1 << level {
                let site = self.levels.site(level, index);
                let checked =
                    site.and_then(|site| self.check_bucket(view, site, &mut seen, &mut problems));
                if let Err(error) = checked {
                    problems.push(error.to_string());
                }
            }
        }
        problems
    }

    fn check_bucket(
        &self,
        view: View,
        site: Site<'_>,
        seen: &mut HashMap<(u64, u64), u64>,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        self.levels.ensure_named(site)?;
        let m = self.medium();
        let mut wrong = |slot: usize, what: &str| {
            let (level, index) = (site.level, site.index);
            problems.push(format!("level {level} bucket {index} slot {slot}: {what}"));
        };
        let (version, meta) = (Version(m.load(&site.bucket.version)), meta_of(m, site.bucket));
        if persistent_tokens(m, site.bucket) != meta.taken() {
            wrong(G::SLOTS, "the tokens and their copy differ");
        }
        if !version.is_readable(self.generation) {
            wrong(G::SLOTS, "locked, or not recovered");
        }
        if version.is_drained()
            && (!view.growing || site.level != view.lowest() || meta.count() > 0)
        {
            wrong(G::SLOTS, "marked as emptied, but not in a level that is being emptied");
        }
        for (slot, record) in self.records_of(site) {
            if !self.belongs(site, record.hashes) {
                wrong(slot, "its key does not belong to this bucket");
            }
            if meta.fingerprints() >> (8 * slot) as u32 & 0xff
                != u64::from(record.hashes.fingerprint)
            {
                wrong(slot, "the fingerprint is not that of the key");
            }
            // Two records may share a hash; two slots may not share a record.
            let identity = (record.slot_key, if K::WORDS_ARE_RECORDS { record.word } else { 0 });
            if let Some(first) = seen.insert(identity, site.position()) {
                wrong(slot, &format!("the same record is also at position {first:#x}"));
            }
        }
        Ok(())
    }
}
