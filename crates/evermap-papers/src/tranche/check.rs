//! The invariants of a table.

use evermap_pm::{Medium, Result};

use super::arrays::Group;
use super::geometry::Geometry;
use super::image::fingerprint;
use super::layout::{GROUP_WORD, LINK, Shape, Version};
use super::table::{Format, Table};

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    /// Describes each violated invariant. Must not run concurrently with changes.
    pub(super) fn check_groups(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for index in 0..self.arrays.state().count() {
            // Recovers the group, and unlocks it.
            let group = self.lock_group(index).map(|locked| locked.group);
            let checked = group.and_then(|group| self.check_group(group, &mut problems));
            if let Err(error) = checked {
                problems.push(error.to_string());
            }
        }
        problems
    }

    fn check_group(&self, group: Group<'_>, problems: &mut Vec<String>) -> Result<()> {
        let (m, groups) = (self.medium(), self.groups());
        let mut wrong = |what: String| problems.push(format!("group {}: {what}", group.index));
        for (place, tranche) in group.words.chunks(Shape::<G>::WORDS).enumerate() {
            let version = Version(m.load(&tranche[GROUP_WORD]));
            if place != LINK && !version.is_readable(self.generation) {
                wrong(format!("tranche {place} is locked, or not recovered"));
            }
        }
        let due = groups.counted(group, |stored| self.hash_of(stored))?;
        for (place, (tranche, due)) in groups.tranches(group)?.into_iter().zip(due).enumerate() {
            let found = groups.commit(tranche)?;
            if found != due {
                wrong(format!("tranche {place} has {found:?}, must have {due:?}"));
            }
        }
        let mut live = Vec::new();
        let mut taken = vec![false; groups.tranches(group)?.len() * Shape::<G>::WORDS];
        groups.records(group, |stored| {
            let start = stored.place * Shape::<G>::WORDS + stored.entry.start;
            for word in &mut taken[start..][..stored.payload.len()] {
                if std::mem::replace(word, true) {
                    wrong(format!("tranche {}: record {} overlaps", stored.place, stored.at));
                }
            }
            if stored.entry.dead {
                return Ok(());
            }
            let hash = self.hash_of(&stored)?;
            if self.group_of(hash) != group.index {
                wrong(format!("tranche {}: record {} is elsewhere", stored.place, stored.at));
            }
            let word = m.load(&stored.tranche[Shape::<G>::fingerprint_word(stored.at)]);
            if (word >> (stored.at % 8 * 8)) as u8 != fingerprint(hash) {
                wrong(format!("tranche {}: fingerprint {} is wrong", stored.place, stored.at));
            }
            live.push((hash, stored));
            Ok(())
        })?;
        self.check_unique(&live, &mut wrong);
        Ok(())
    }
}
