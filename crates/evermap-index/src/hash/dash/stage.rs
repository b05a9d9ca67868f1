//! Changes that are made durable together with others: see `hash/segmented/group`.

use evermap_pm::{Medium, PmU64};

use super::Dash;
use super::bucket::{Held, Record, allocate, fingerprint_of, free_slot, meta_of, vacate};
use super::layout::{Bucket, Geometry, HEADER_LINE_SLOTS};
use super::segment::{Kind, Locks, Spot};
use crate::Key;
use crate::hash::probe::Probe;
use crate::hash::segmented::apply::{Operation, OtherLocks, Staged};
use crate::hash::segmented::map::SegmentMap;
use crate::index::{Action, Change, MutateMode};

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    /// Stores the change that `decide` chooses for a key whose home bucket is locked. See
    /// [`BucketLocked::stage`](crate::hash::segmented::apply::BucketLocked::stage).
    #[inline]
    pub(super) fn stage_in<'a>(
        &'a self,
        segment: &'a G::Segment,
        home: &mut Held<'a>,
        operation: Operation<'_, Probe<'_, K>>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Option<Staged<'a, Self>> {
        let probe = operation.probe;
        if let Some((spot, word)) = self.find_under_lock(segment, home, probe) {
            if matches!(spot.kind, Kind::Stash(_) | Kind::Chain) {
                return None;
            }
            // A removal needs it.
            let locks = self.lock_beside(segment, probe.hash, spot.kind).ok()??;
            return Some(self.stage_at(spot, word, decide(Some(word)), locks));
        }
        if operation.mode == MutateMode::ExistingOnly {
            return Some(Staged::unchanged(None));
        }
        let (spot, locks) = self.room_to_stage(segment, home, probe.hash)?;
        let Action::Put(word) = decide(None) else {
            return Some(Staged { locks, ..Staged::unchanged(None) });
        };
        let record = Record { hash: probe.hash, slot_key: probe.slot_key, word };
        let unflushed = self.stage_new(&spot, record);
        if spot.kind == Kind::Next {
            home.version.note_next(probe.hash);
        }
        Some(Staged { change: Change { old: None, new: Some(word) }, locks, unflushed })
    }

    /// Stores what an action changes in the record with this word.
    #[inline]
    fn stage_at<'a>(
        &'a self,
        spot: Spot<'a>,
        word: u64,
        action: Action,
        locks: Locks<'a>,
    ) -> Staged<'a, Self> {
        let (m, cell) = (self.medium(), &spot.bucket.slots[spot.slot].word);
        let unflushed = match action {
            Action::Keep => return Staged { locks, ..Staged::unchanged(Some(word)) },
            Action::Put(word) => {
                m.store(cell, word);
                cell
            }
            // As for a single removal, the filter keeps its bit.
            Action::Remove => {
                vacate(m, spot.bucket, spot.slot);
                &spot.bucket.meta
            }
        };
        let change = Change::of(Some(word), action);
        Staged { change, locks, unflushed: [Some(unflushed), None] }
    }

    /// Finds a slot in the home bucket or the next one that a record with this hash can be stored
    /// in without waiting: see [`store_record`](Self::store_record). Also returns the locks of the
    /// next bucket.
    fn room_to_stage<'a>(
        &'a self,
        segment: &'a G::Segment,
        home: &Held<'a>,
        hash: u64,
    ) -> Option<(Spot<'a>, Locks<'a>)> {
        let m = self.medium();
        let fits = |bucket: &Bucket, slot: usize| {
            slot < HEADER_LINE_SLOTS || self.is_noticed(bucket, slot, fingerprint_of(hash))
        };
        let here = meta_of(m, home.bucket);
        if let Some(slot) = free_slot(here, Self::HOME_FIRST) {
            let spot = Spot::new(home.bucket, slot, Kind::Home);
            return fits(home.bucket, slot).then(|| (spot, Locks::default()));
        }
        let locks = self.lock_beside(segment, hash, Kind::Next).ok()??;
        let next = locks.next.as_ref()?.bucket;
        match self.roomier(here, meta_of(m, next)) {
            Some((slot, Kind::Home)) if fits(home.bucket, slot) => {
                Some((Spot::new(home.bucket, slot, Kind::Home), locks))
            }
            Some((slot, Kind::Next)) if fits(next, slot) => {
                Some((Spot::new(next, slot, Kind::Next), locks))
            }
            _ => {
                locks.release(m, false);
                None
            }
        }
    }

    /// Stores a record in a free slot. Returns words in the lines that must be flushed.
    #[inline]
    fn stage_new<'a>(&self, spot: &Spot<'a>, record: Record) -> [Option<&'a PmU64>; 2] {
        let (m, cells) = (self.medium(), &spot.bucket.slots[spot.slot]);
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
        let fingerprint = fingerprint_of(record.hash);
        allocate(m, spot.bucket, spot.slot, fingerprint, spot.kind == Kind::Next);
        let apart = spot.slot >= HEADER_LINE_SLOTS;
        [Some(&spot.bucket.meta), apart.then_some(&cells.key)]
    }
}
