//! One segment: where a record can be, and where a new one goes.
//!
//! A record belongs to its *home* line. It sits there, or as a *foreign* record in the other line
//! that its tag leads to, or in the segment's chain. A thread that moves or changes a record holds
//! the lock of its home line, wherever the record sits: so a reader needs to validate the home
//! line's version and nothing else. A thread that fills or clears a slot holds the lock of the
//! slot's line too.

use evermap_pm::{Medium, PmU64, Result};

use super::LineHash;
use super::bucket::{
    Held, Probe, Record, clear, find, free_slot, is_foreign, is_record_of, is_unchanged, keys_of,
    matching_seen, note_away, place, tag_of, try_lock, valid,
};
use super::layout::{
    CHAINED, FOREIGN, Geometry, LINK_SLOTS, Line, Link, META, Segment, VALID, filter_bit, link_bit,
    valid_in,
};
use crate::hash::segmented::apply::{Chain, HeldBucket, MakeRoom, OtherLocks, Place, Room};
use crate::hash::segmented::waiting::Waiting;
use crate::hash::segmented::{chain, prefix_of};
use crate::key::Quotient;

/// What a look without locks found.
pub(super) enum Look {
    Found(u64),
    Absent,
    /// A glance does not tell.
    Unsure,
    /// Something changed meanwhile, or is being changed: look again.
    Again,
}

/// Looks for a key in its home line, without a lock or a store. Tells of nearly all keys: of those
/// that are there, and of those that are nowhere.
///
/// How many lookups a processor overlaps is decided by how few instructions each takes, so this is
/// short.
#[inline(always)]
pub(super) fn glance<K: Quotient, M: Medium, const L: usize, const N: usize>(
    m: &M,
    home: &Line,
    probe: &Probe<'_, K>,
) -> Look {
    let seen = m.load_four(&home.keys);
    let tag = Geometry::<L, N>::tag(probe.image);
    let alike = seen.matching_upper((tag >> 32) as u32);
    if alike != 0 {
        // Half of a tag says which slot; whether it is the one says all of it. Were two alike, or
        // one free, `look` would decide.
        let slot = alike.trailing_zeros() as usize & 3;
        let word = m.load_relaxed(&home.words[slot]);
        let is_it = m.load_relaxed(&home.keys[slot]) ^ (tag | VALID) <= META
            && is_record_of::<K, M, L, N>(m, home, slot, word, probe);
        let sure = is_it && is_unchanged(m, home, &seen);
        return if sure { Look::Found(word) } else { Look::Unsure };
    }
    if may_be_elsewhere(seen.word::<2>(), tag) {
        return Look::Unsure;
    }
    // Checked after a miss too: a record may have moved behind the search.
    if is_unchanged(m, home, &seen) { Look::Absent } else { Look::Again }
}

/// Returns whether a record with this tag, of the line with this third key word, may be somewhere
/// else.
#[inline(always)]
pub(super) fn may_be_elsewhere(key: u64, tag: u64) -> bool {
    key & filter_bit(tag) != 0
}

/// Brings a line towards the cache.
#[inline(always)]
pub(super) fn prefetch_line(line: &Line) {
    evermap_pm::medium::prefetch(std::ptr::from_ref(line).cast());
}

/// A slot for a record.
#[derive(Clone, Copy)]
pub(crate) enum Spot<'a> {
    /// In its home line.
    Home(&'a Line, usize),
    /// In the other line.
    Away(&'a Line, usize),
    /// In a link of the segment's chain.
    Chain(&'a Link, usize),
}

/// Locks held beside the home line's.
#[derive(Default)]
pub(crate) struct Locks<'a> {
    /// The other line.
    other: Option<Held<'a>>,
    /// The line that took a displaced record.
    beyond: Option<Held<'a>>,
    /// The lock of the chain.
    chain: Option<&'a PmU64>,
}

impl Locks<'_> {
    /// Returns whether making room has moved a record, whose old slot must be flushed before these
    /// locks are released.
    pub(super) fn displaced(&self) -> bool {
        self.beyond.is_some()
    }
}

impl OtherLocks for Locks<'_> {
    // Changed or not: making room may have moved a record.
    #[inline(always)]
    fn release<M: Medium>(self, m: &M, _changed: bool) {
        for held in [self.beyond, self.other].into_iter().flatten() {
            held.release_changed(m);
        }
        if let Some(lock) = self.chain {
            m.store_transient(lock, 0);
        }
    }
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Looks for a key without a lock or a store, wherever it may be.
    pub(super) fn look(&self, segment: &Segment<L>, probe: &Probe<'_, K>) -> Look {
        let m = self.medium();
        let home = &segment.lines[Geometry::<L, N>::home(probe.image)];
        let seen = m.load_four(&home.keys);
        let matching = matching_seen(&seen, Geometry::<L, N>::tag(probe.image), 0);
        let found = match find::<K, M, L, N>(m, home, matching, probe) {
            Some((_, word)) => Some(word),
            None => {
                let elsewhere = self.find_elsewhere(segment, seen.word::<2>(), probe);
                elsewhere.map(|place| place.word)
            }
        };
        match found {
            _ if !is_unchanged(m, home, &seen) => Look::Again,
            Some(word) => Look::Found(word),
            // Checked after a miss too: a record may have moved behind the search.
            None => Look::Absent,
        }
    }

    /// Looks for a key that is not in its home line, whose third key word is given. Under the home
    /// line's lock the answer is certain, without it a guess. The other line's lock does not
    /// matter: no other thread touches this record.
    pub(super) fn find_elsewhere<'a>(
        &'a self,
        segment: &'a Segment<L>,
        key: u64,
        probe: &Probe<'_, K>,
    ) -> Option<Place<Spot<'a>>> {
        let m = self.medium();
        let tag = Geometry::<L, N>::tag(probe.image);
        if key & filter_bit(tag) != 0 {
            let line = &segment.lines[Geometry::<L, N>::other_of(probe.image)];
            let matching = matching_seen(&m.load_four(&line.keys), tag, FOREIGN);
            if let Some((slot, word)) = find::<K, M, L, N>(m, line, matching, probe) {
                return Some(Place { word, spot: Spot::Away(line, slot) });
            }
        }
        if key & CHAINED == CHAINED { self.find_in_chain(segment, probe) } else { None }
    }

    #[cold]
    fn find_in_chain<'a>(
        &'a self,
        segment: &'a Segment<L>,
        probe: &Probe<'_, K>,
    ) -> Option<Place<Spot<'a>>> {
        let m = self.medium();
        chain::links(m, &segment.header.chain).find_map(|link: &Link| {
            self.records_in(link).find_map(|(slot, record)| {
                let is_it = record.image == probe.image && K::matches(m, record.word, probe.key);
                is_it.then_some(Place { word: record.word, spot: Spot::Chain(link, slot) })
            })
        })
    }

    /// The records in a link, with their slots.
    pub(super) fn records_in<'a>(
        &'a self,
        link: &'a Link,
    ) -> impl Iterator<Item = (usize, Record)> + 'a {
        let m = self.medium();
        let valid = valid_in(m.load(&link.next));
        (0..LINK_SLOTS).filter(move |slot| valid >> slot & 1 == 1).map(move |slot| {
            let image = m.load_relaxed(&link.images[slot]);
            (slot, Record { image, word: m.load_relaxed(&link.words[slot]) })
        })
    }

    /// Takes the locks that removing a record takes beside its home's. Returns `None` if another
    /// thread holds one.
    pub(super) fn lock_beside<'a>(
        &'a self,
        segment: &'a Segment<L>,
        spot: Spot<'a>,
    ) -> Result<Option<Locks<'a>>> {
        let mut locks = Locks::default();
        match spot {
            Spot::Home(..) => {}
            Spot::Away(line, _) => match try_lock(self.medium(), line) {
                Some(held) => locks.other = Some(held),
                None => return Ok(None),
            },
            Spot::Chain(..) => locks.chain = Some(self.lock_chain(segment)?),
        }
        Ok(Some(locks))
    }

    /// Waits for the lock of the chain. Its holders wait for nothing else, so this cannot deadlock.
    fn lock_chain<'a>(&'a self, segment: &'a Segment<L>) -> Result<&'a PmU64> {
        let mut waiting = Waiting::default();
        let lock = &segment.header.chain_lock;
        while self.medium().cas_transient(lock, 0, 1).is_err() {
            waiting.wait(self, segment)?;
        }
        Ok(lock)
    }

    /// Binds the key of a record to another word, durably: one store, so that it is atomic. Needs
    /// its home's lock.
    #[inline(always)]
    pub(super) fn store_word(&self, spot: Spot<'_>, word: u64) {
        let m = self.medium();
        let cell = match spot {
            Spot::Home(line, slot) | Spot::Away(line, slot) => &line.words[slot],
            Spot::Chain(link, slot) => &link.words[slot],
        };
        m.store(cell, word);
        m.persist(cell);
    }

    /// Takes a record away, durably, under its home's lock and those of
    /// [`lock_for_removal`](Self::lock_for_removal).
    ///
    /// What the home line says about records elsewhere stays: others may have caused it.
    #[inline(always)]
    pub(super) fn erase(&self, spot: Spot<'_>) {
        let m = self.medium();
        match spot {
            Spot::Home(line, slot) | Spot::Away(line, slot) => {
                clear(m, line, slot);
                m.persist(&line.keys[slot]);
            }
            Spot::Chain(link, slot) => {
                m.store(&link.next, m.load(&link.next) & !link_bit(slot));
                m.persist(&link.next);
            }
        }
    }

    /// Finds a free slot for a record whose home line, which is full, the caller has locked.
    ///
    /// In the other line; else by moving one record of either line to where it may be beside; then,
    /// where `chain` allows it because the segment cannot be split, in the chain.
    pub(super) fn find_room<'a>(
        &'a self,
        segment: &'a Segment<L>,
        image: u64,
        chain: &mut Chain,
    ) -> Result<MakeRoom<Spot<'a>, Locks<'a>>> {
        let m = self.medium();
        let (at, beside) = (Geometry::<L, N>::home(image), Geometry::<L, N>::other_of(image));
        let (home, other) = (&segment.lines[at], &segment.lines[beside]);
        let Some(held) = try_lock(m, other) else { return Ok(MakeRoom::Busy) };
        let mut locks = Locks { other: Some(held), ..Locks::default() };
        let keys = keys_of(m, home);
        // Another thread may have made room since the caller looked: not in the home line, which it
        // has locked.
        if let Some(slot) = free_slot::<N>(&keys) {
            return Ok(MakeRoom::Room(Room { spot: Spot::Home(home, slot), locks }));
        }
        if let Some(slot) = free_slot::<N>(&keys_of(m, other)) {
            return Ok(MakeRoom::Room(Room { spot: Spot::Away(other, slot), locks }));
        }
        if let Some((slot, beyond)) = self.displace(segment, at) {
            locks.beyond = Some(beyond);
            return Ok(MakeRoom::Room(Room { spot: Spot::Home(home, slot), locks }));
        }
        if let Some((slot, beyond)) = self.displace(segment, beside) {
            locks.beyond = Some(beyond);
            return Ok(MakeRoom::Room(Room { spot: Spot::Away(other, slot), locks }));
        }
        if *chain != Chain::Avoid {
            locks.chain = Some(self.lock_chain(segment)?);
            if let Some((link, slot)) = self.room_in_chain(segment, chain) {
                return Ok(MakeRoom::Room(Room { spot: Spot::Chain(link, slot), locks }));
            }
        }
        locks.release(m, false);
        Ok(MakeRoom::Full)
    }

    /// Frees a slot of the full, locked line `at` by moving a record to the other line where it may
    /// be. Returns the slot, and that line, locked.
    ///
    /// The copy is durable, the clearing of the slot only once the line is flushed: until then a
    /// crash finds both, which recovery resolves. So the line with the copy must stay locked until
    /// then: otherwise another thread could remove the copy, and a crash bring the original back.
    fn displace<'a>(&self, segment: &'a Segment<L>, at: usize) -> Option<(usize, Held<'a>)> {
        let m = self.medium();
        let from = &segment.lines[at];
        let keys = keys_of(m, from);
        let top = self.top_of(segment);
        let to = |slot: usize| &segment.lines[Geometry::<L, N>::other(at, tag_of(keys[slot]))];
        // All of them first: one wait for memory instead of one each.
        (0..N).for_each(|slot| prefetch_line(to(slot)));
        (0..N).find_map(|slot| {
            let to = to(slot);
            // Looked at before it is locked: most are full.
            free_slot::<N>(&keys_of(m, to))?;
            let held = try_lock(m, to)?;
            let Some(free) = free_slot::<N>(&keys_of(m, to)) else {
                held.release(m);
                return None;
            };
            // One of the two lines is the record's home, and both are locked.
            let record = self.record_in(from, at, slot, keys[slot], top);
            let leaves_home = !is_foreign(keys[slot]);
            place::<M, L, N>(m, to, free, record, if leaves_home { FOREIGN } else { 0 });
            if leaves_home {
                note_away(m, from, tag_of(keys[slot]));
            }
            clear(m, from, slot);
            Some((slot, held))
        })
    }

    /// The bits of an image that all records of a segment share, in a geometry where they do.
    pub(super) fn top_of(&self, segment: &Segment<L>) -> u64 {
        let prefix = prefix_of(self.medium(), segment);
        let depth_min = Geometry::<L, N>::DEPTH_MIN;
        prefix.map_or(0, |prefix| prefix.pattern >> prefix.depth.saturating_sub(depth_min))
    }

    /// The record in a slot of line `at`, whose key word is `key`. `top` is that of the segment.
    #[inline(always)]
    pub(super) fn record_in(
        &self,
        line: &Line,
        at: usize,
        slot: usize,
        key: u64,
        top: u64,
    ) -> Record {
        let m = self.medium();
        let tag = tag_of(key);
        let home = if is_foreign(key) { Geometry::<L, N>::other(at, tag) } else { at };
        let top = if N == 4 {
            top
        } else {
            Geometry::<L, N>::top_in(m.load_relaxed(&line.words[3]), slot)
        };
        let image = Geometry::<L, N>::image(top, tag, home);
        Record { image, word: m.load_relaxed(&line.words[slot]) }
    }

    /// Calls `each` with line, slot, key word and content of every record in the lines of a segment
    /// that the caller holds.
    #[inline(always)]
    pub(super) fn for_each_slot(
        &self,
        segment: &Segment<L>,
        mut each: impl FnMut(usize, usize, u64, Record),
    ) {
        let (m, top) = (self.medium(), self.top_of(segment));
        for (at, line) in segment.lines.iter().enumerate() {
            let keys = keys_of(m, line);
            for slot in super::bucket::slots(valid(&keys) & Geometry::<L, N>::SLOTS) {
                each(at, slot, keys[slot], self.record_in(line, at, slot, keys[slot], top));
            }
        }
    }

    /// A free slot in the chain, which `chain` may lengthen by one link. Needs the chain's lock.
    fn room_in_chain<'a>(
        &'a self,
        segment: &'a Segment<L>,
        chain: &mut Chain,
    ) -> Option<(&'a Link, usize)> {
        let m = self.medium();
        chain::find_room(m, &segment.header.chain, chain, |link: &Link| {
            let slot = valid_in(m.load(&link.next)).trailing_ones() as usize;
            (slot < LINK_SLOTS).then_some(slot)
        })
    }

    /// Puts a record into the room that was made, durably, and notes in the home line where it
    /// went.
    #[inline(always)]
    pub(super) fn place_in(&self, home: &Line, spot: Spot<'_>, record: Record) {
        let m = self.medium();
        match spot {
            Spot::Home(line, slot) => place::<M, L, N>(m, line, slot, record, 0),
            Spot::Away(line, slot) => {
                place::<M, L, N>(m, line, slot, record, FOREIGN);
                note_away(m, home, Geometry::<L, N>::tag(record.image));
            }
            Spot::Chain(link, slot) => {
                m.store(&link.words[slot], record.word);
                m.store(&link.images[slot], record.image);
                // The commit, in the same line.
                m.store(&link.next, m.load(&link.next) | link_bit(slot));
                m.persist(link);
                let key = m.load_relaxed(&home.keys[2]);
                m.store_transient(&home.keys[2], key | CHAINED);
            }
        }
    }

    /// Makes durable that a displaced record has left the slot of `spot`, where nothing follows it.
    #[cold]
    pub(super) fn settle_displacement(&self, spot: Spot<'_>) {
        if let Spot::Home(line, _) | Spot::Away(line, _) = spot {
            self.medium().persist(line);
        }
    }
}
