//! Changes that are made durable together with others: see `hash/segmented/group`.

use evermap_index::hash::segmented::apply::{Operation, OtherLocks, Staged};
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::key::Quotient;
use evermap_pm::Medium;

use super::LineHash;
use super::bucket::{
    Probe, Record, clear, find, free_slot, free_slot_seen, keys_of, matching_seen, note_away, write,
};
use super::layout::{FOREIGN, Geometry, Line, Segment};
use super::segment::{Locks, Spot, may_be_elsewhere};

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    /// Stores the change that `decide` chooses for a key whose home line is locked. See
    /// [`BucketLocked::stage`](evermap_index::hash::segmented::apply::BucketLocked::stage).
    #[inline]
    pub(super) fn stage_in<'a>(
        &'a self,
        segment: &'a Segment<L>,
        home: &'a Line,
        operation: Operation<'_, Probe<'_, K>>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Option<Staged<'a, Self>> {
        let (m, probe) = (self.medium(), operation.probe);
        let seen = m.load_four(&home.keys);
        let tag = Geometry::<L, SMALL>::tag(probe.image);
        let matching = matching_seen(&seen, tag, 0);
        if let Some((slot, word)) = find::<K, M, L, SMALL>(m, home, matching, probe) {
            let action = decide(Some(word));
            return Some(self.stage_at(home, slot, word, action, Locks::default()));
        }
        if may_be_elsewhere(seen.word::<2>(), tag)
            && let Some((spot, word)) = self.find_elsewhere(segment, seen.word::<2>(), probe)
        {
            let Spot::Away(line, slot) = spot else { return None };
            // A removal needs it.
            let locks = self.lock_beside(segment, spot).ok()??;
            return Some(self.stage_at(line, slot, word, decide(Some(word)), locks));
        }
        if operation.mode == MutateMode::ExistingOnly {
            return Some(Staged::unchanged(None));
        }
        if let Some(slot) = free_slot_seen(&seen) {
            return Some(self.stage_new(home, slot, 0, probe.image, Locks::default(), decide));
        }
        let other = &segment.lines[Geometry::<L, SMALL>::other_of(probe.image)];
        let locks = self.lock_beside(segment, Spot::Away(other, 0)).ok()??;
        let Some(slot) = free_slot(&keys_of(m, other)) else {
            locks.release(m, false);
            return None;
        };
        let staged = self.stage_new(other, slot, FOREIGN, probe.image, locks, decide);
        if staged.change.inserted() {
            note_away(m, home, tag);
        }
        Some(staged)
    }

    /// Stores what an action changes in the record with this word, in a slot of a locked line.
    #[inline]
    fn stage_at<'a>(
        &'a self,
        line: &'a Line,
        slot: usize,
        word: u64,
        action: Action,
        locks: Locks<'a>,
    ) -> Staged<'a, Self> {
        let m = self.medium();
        match action {
            Action::Keep => return Staged { locks, ..Staged::unchanged(Some(word)) },
            Action::Put(word) => m.store(&line.words[slot], word),
            Action::Remove => clear(m, line, slot),
        }
        let unflushed = [Some(&line.keys[0]), None];
        Staged { change: Change::of(Some(word), action), locks, unflushed }
    }

    /// Stores a record for an absent key in a free slot of a locked line, if `decide` puts one.
    #[inline]
    fn stage_new<'a>(
        &'a self,
        line: &'a Line,
        slot: usize,
        mark: u64,
        image: u64,
        locks: Locks<'a>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Staged<'a, Self> {
        let Action::Put(word) = decide(None) else {
            return Staged { locks, ..Staged::unchanged(None) };
        };
        write::<M, L, SMALL>(self.medium(), line, slot, Record { image, word }, mark);
        let change = Change { old: None, new: Some(word) };
        Staged { change, locks, unflushed: [Some(&line.keys[0]), None] }
    }
}
