//! One segment: finding records, and choosing slots for new ones.
//!
//! A record belongs to its *home* line. It is stored there, or as a *foreign* record in the other
//! line, which its tag determines, or in the segment's chain. A thread that moves or changes a
//! record holds the lock of its home line, even if the record is stored elsewhere. So a reader has
//! to validate only the home line's version. A thread that fills or clears a slot also holds the
//! lock of the slot's line.

use evermap_index::hash::segmented::apply::{FreeSlot, HeldBucket, OtherLocks};
use evermap_index::hash::segmented::chain::Chain;
use evermap_index::hash::segmented::waiting::Waiting;
use evermap_index::hash::segmented::{chain, prefix_of};
use evermap_index::key::Quotient;
use evermap_pm::{Medium, PmU64, Result};

use super::LineHash;
use super::bucket::{
    Held, Keys, Probe, Record, clear, find, free_slot, is_foreign, is_record_of, is_unchanged,
    keys_of, matching_seen, note_away, place, slots, tag_of, try_lock, valid,
};
use super::layout::{
    CHAINED, FOREIGN, Geometry, LINK_SLOTS, Line, Link, META, Segment, VALID, filter_bit,
    holds_tops, link_bit, valid_in,
};

/// The outcome of a search without locks.
pub(super) enum SearchResult {
    Found(u64),
    Absent,
    /// The home line alone does not decide.
    Unsure,
    /// The home line changed meanwhile, or is locked: the caller searches again.
    Again,
}

/// Searches for a key in its home line, without taking a lock or storing anything. This decides
/// nearly all lookups: of keys in their home lines, and of absent keys.
///
/// A processor overlaps more lookups if each takes fewer instructions, so this is short.
#[inline(always)]
pub(super) fn look_in_line<K: Quotient, M: Medium, const L: usize, const SMALL: bool>(
    m: &M,
    home: &Line,
    probe: &Probe<'_, K>,
) -> SearchResult {
    let seen = m.load_four(&home.keys);
    let tag = Geometry::<L, SMALL>::tag(probe.image);
    let alike = seen.matching_upper((tag >> 32) as u32);
    if alike != 0 {
        // Half of the tag selects a slot, and the complete tag confirms it. If it does not, because
        // several slots match or the slot is free, `look` decides.
        let slot = alike.trailing_zeros() as usize & 3;
        let word = m.load_relaxed(&home.words[slot]);
        let is_it = m.load_relaxed(&home.keys[slot]) ^ (tag | VALID) <= META
            && is_record_of::<K, M, L, SMALL>(m, home, slot, word, probe);
        let sure = is_it && is_unchanged(m, home, &seen);
        return if sure { SearchResult::Found(word) } else { SearchResult::Unsure };
    }
    if may_be_elsewhere(seen.word::<2>(), tag) {
        return SearchResult::Unsure;
    }
    // Checked if nothing was found, too: a record may have been moved meanwhile.
    if is_unchanged(m, home, &seen) { SearchResult::Absent } else { SearchResult::Again }
}

/// Returns whether a record with this tag may be outside of its home line, whose third key word is
/// `key`.
#[inline(always)]
pub(super) fn may_be_elsewhere(key: u64, tag: u64) -> bool {
    key & filter_bit(tag) != 0
}

/// Prefetches a line.
#[inline(always)]
pub(super) fn prefetch_line(line: &Line) {
    evermap_pm::medium::prefetch(std::ptr::from_ref(line).cast());
}

/// The location of a slot.
#[derive(Clone, Copy)]
pub enum Spot<'a> {
    /// In the home line of the record.
    Home(&'a Line, usize),
    /// In the other line.
    Away(&'a Line, usize),
    /// In a link of the segment's chain.
    Chain(&'a Link, usize),
}

/// The number of records that an insert moves at most before the segment is split. Each one more
/// fills segments more and makes inserts slower: see `docs/measured/hash-family.md`.
const DISPLACED_MAX: usize = 1;

/// Locked lines to which records were displaced.
#[derive(Default)]
struct Beyond<'a>([Option<Held<'a>>; DISPLACED_MAX]);

impl<'a> Beyond<'a> {
    /// Adds a line. There are no more than records that are moved.
    fn push(&mut self, held: Held<'a>) {
        let free = self.0.iter_mut().find(|held| held.is_none());
        *free.expect("one line for each move") = Some(held);
    }
}

/// Locks held in addition to that of the home line.
#[derive(Default)]
pub struct Locks<'a> {
    /// The other line.
    other: Option<Held<'a>>,
    /// The lines to which records were displaced.
    beyond: Beyond<'a>,
    /// The lock of the chain.
    chain: Option<&'a PmU64>,
}

impl Locks<'_> {
    /// Returns whether making room has moved a record, whose old slot must be flushed before these
    /// locks are released.
    pub(super) fn displaced(&self) -> bool {
        self.beyond.0[0].is_some()
    }
}

impl OtherLocks for Locks<'_> {
    // Released as changed in any case: making room may have moved a record.
    #[inline(always)]
    fn release<M: Medium>(self, m: &M, _changed: bool) {
        for held in self.beyond.0.into_iter().chain([self.other]).flatten() {
            held.release_changed(m);
        }
        if let Some(lock) = self.chain {
            m.store_transient(lock, 0);
        }
    }
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    /// Searches for a key in all places, without taking a lock or storing anything.
    pub(super) fn look(&self, segment: &Segment<L>, probe: &Probe<'_, K>) -> SearchResult {
        let m = self.medium();
        let home = &segment.lines[Geometry::<L, SMALL>::home(probe.image)];
        let seen = m.load_four(&home.keys);
        let matching = matching_seen(&seen, Geometry::<L, SMALL>::tag(probe.image), 0);
        let found = match find::<K, M, L, SMALL>(m, home, matching, probe) {
            Some((_, word)) => Some(word),
            None => {
                let elsewhere = self.find_elsewhere(segment, seen.word::<2>(), probe);
                elsewhere.map(|(_, word)| word)
            }
        };
        match found {
            _ if !is_unchanged(m, home, &seen) => SearchResult::Again,
            Some(word) => SearchResult::Found(word),
            // Checked if nothing was found, too: a record may have been moved meanwhile.
            None => SearchResult::Absent,
        }
    }

    /// Searches for a key outside of its home line, whose third key word is `key`. If the caller
    /// does not hold the home line's lock, it must validate the result. The lock of the other line
    /// is not needed, since no thread changes this record without the home line's lock.
    pub(super) fn find_elsewhere<'a>(
        &'a self,
        segment: &'a Segment<L>,
        key: u64,
        probe: &Probe<'_, K>,
    ) -> Option<(Spot<'a>, u64)> {
        let m = self.medium();
        let tag = Geometry::<L, SMALL>::tag(probe.image);
        if key & filter_bit(tag) != 0 {
            let line = &segment.lines[Geometry::<L, SMALL>::other_of(probe.image)];
            let matching = matching_seen(&m.load_four(&line.keys), tag, FOREIGN);
            if let Some((slot, word)) = find::<K, M, L, SMALL>(m, line, matching, probe) {
                return Some((Spot::Away(line, slot), word));
            }
        }
        if key & CHAINED == CHAINED { self.find_in_chain(segment, probe) } else { None }
    }

    #[cold]
    fn find_in_chain<'a>(
        &'a self,
        segment: &'a Segment<L>,
        probe: &Probe<'_, K>,
    ) -> Option<(Spot<'a>, u64)> {
        let m = self.medium();
        chain::links(m, &segment.header.chain).find_map(|link: &Link| {
            self.records_in(link).find_map(|(slot, record)| {
                let is_it = record.image == probe.image && K::matches(m, record.word, probe.key);
                is_it.then_some((Spot::Chain(link, slot), record.word))
            })
        })
    }

    /// Returns the records in a link, with their slots.
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

    /// Takes the locks that are needed, besides that of the home line, to remove a record. Returns
    /// `None` if another thread holds one of them.
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

    /// Waits for the lock of the chain. A thread that holds it never waits, so this cannot
    /// deadlock.
    fn lock_chain<'a>(&'a self, segment: &'a Segment<L>) -> Result<&'a PmU64> {
        let mut waiting = Waiting::default();
        let lock = &segment.header.chain_lock;
        while self.medium().cas_transient(lock, 0, 1).is_err() {
            waiting.wait(self, segment)?;
        }
        Ok(lock)
    }

    /// Replaces the word of a record, durably. It is a single store, so it is atomic. The caller
    /// must hold the lock of the home line.
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

    /// Removes a record, durably, under the lock of its home line and those of
    /// [`lock_for_removal`](Self::lock_for_removal).
    ///
    /// The home line's filter stays as it is: other records may have set the same bits.
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

    /// Finds a free slot for a record whose home line the caller has locked.
    ///
    /// Tries the home line and the other line; then moving one record of either line to its second
    /// line, and so on for that line; then, if `chain` allows it, the chain.
    pub(super) fn find_room<'a>(
        &'a self,
        segment: &'a Segment<L>,
        image: u64,
        chain: &mut Chain,
    ) -> Result<FreeSlot<Spot<'a>, Locks<'a>>> {
        let m = self.medium();
        let (at, beside) =
            (Geometry::<L, SMALL>::home(image), Geometry::<L, SMALL>::other_of(image));
        let (home, other) = (&segment.lines[at], &segment.lines[beside]);
        let Some(held) = try_lock(m, other) else { return Ok(FreeSlot::Busy) };
        let mut locks = Locks { other: Some(held), ..Locks::default() };
        let keys = keys_of(m, home);
        // The caller has locked the home line, but may not have searched it for a free slot.
        if let Some(slot) = free_slot(&keys) {
            return Ok(FreeSlot::Free(Spot::Home(home, slot), locks));
        }
        if let Some(slot) = free_slot(&keys_of(m, other)) {
            return Ok(FreeSlot::Free(Spot::Away(other, slot), locks));
        }
        // All lines that a record could be moved to, so that their cache misses overlap.
        self.prefetch_others(segment, at);
        self.prefetch_others(segment, beside);
        for moves in 1..=DISPLACED_MAX {
            if let Some(slot) = self.displace(segment, at, moves, &mut locks.beyond) {
                return Ok(FreeSlot::Free(Spot::Home(home, slot), locks));
            }
            if let Some(slot) = self.displace(segment, beside, moves, &mut locks.beyond) {
                return Ok(FreeSlot::Free(Spot::Away(other, slot), locks));
            }
        }
        if *chain != Chain::Avoid {
            locks.chain = Some(self.lock_chain(segment)?);
            if let Some((link, slot)) = self.room_in_chain(segment, chain) {
                return Ok(FreeSlot::Free(Spot::Chain(link, slot), locks));
            }
        }
        locks.release(m, false);
        Ok(FreeSlot::Full)
    }

    /// Prefetches the second lines of the records in line `at`.
    fn prefetch_others(&self, segment: &Segment<L>, at: usize) {
        let keys = keys_of(self.medium(), &segment.lines[at]);
        for slot in slots(valid(&keys)) {
            prefetch_line(&segment.lines[Geometry::<L, SMALL>::other(at, tag_of(keys[slot]))]);
        }
    }

    /// Frees a slot of the full, locked line `at` by moving a record to its second line. If that is
    /// full too, a record is moved from there first, up to `moves` records in all. Returns the
    /// slot. Adds to `beyond` the second lines, locked.
    ///
    /// The copies are durable. The removal of the original from the line `at` is durable only once
    /// that line is flushed: after an earlier crash, recovery finds both and drops one. The line
    /// with the copy must stay locked until then: otherwise another thread could remove the copy,
    /// and the original could reappear after a crash.
    fn displace<'a>(
        &self,
        segment: &'a Segment<L>,
        at: usize,
        moves: usize,
        beyond: &mut Beyond<'a>,
    ) -> Option<usize> {
        let m = self.medium();
        let keys = keys_of(m, &segment.lines[at]);
        let mut all = slots(valid(&keys));
        all.find(|&slot| {
            let to = Geometry::<L, SMALL>::other(at, tag_of(keys[slot]));
            // Checked before locking, because most lines are full.
            if !self.can_make_room(segment, to, moves) {
                return false;
            }
            let Some(held) = try_lock(m, &segment.lines[to]) else { return false };
            let free = free_slot(&keys_of(m, held.line));
            let free = match free {
                None if moves > 1 => self.displace(segment, to, moves - 1, beyond),
                free => free,
            };
            let Some(free) = free else {
                held.release(m);
                return false;
            };
            self.move_away(segment, (at, slot), (held.line, free));
            beyond.push(held);
            true
        })
    }

    /// Returns whether the line `at` seems to have a free slot, or to get one by fewer than `moves`
    /// moves of records to their second lines. If the line is not locked, other threads may be
    /// changing it.
    fn can_make_room(&self, segment: &Segment<L>, at: usize, moves: usize) -> bool {
        let keys = keys_of(self.medium(), &segment.lines[at]);
        free_slot(&keys).is_some()
            || moves > 1
                && slots(valid(&keys)).any(|slot| {
                    let to = Geometry::<L, SMALL>::other(at, tag_of(keys[slot]));
                    self.can_make_room(segment, to, moves - 1)
                })
    }

    /// Moves the record in a slot of line `at` to a free slot of its second line. Both lines are
    /// locked, and one of them is the record's home. See [`displace`](Self::displace).
    fn move_away(
        &self,
        segment: &Segment<L>,
        (at, slot): (usize, usize),
        (to, free): (&Line, usize),
    ) {
        let (m, from) = (self.medium(), &segment.lines[at]);
        let keys = keys_of(m, from);
        let record = self.record_in(from, at, slot, &keys, self.top_of(segment));
        let leaves_home = !is_foreign(keys[slot]);
        place::<M, L, SMALL>(m, to, free, record, if leaves_home { FOREIGN } else { 0 });
        if leaves_home {
            note_away(m, from, tag_of(keys[slot]));
        }
        clear(m, from, slot);
    }

    /// Returns the top bits of the images of a segment's records. Meaningful only if the segment is
    /// not shallow.
    pub(super) fn top_of(&self, segment: &Segment<L>) -> u64 {
        prefix_of(self.medium(), segment).map_or(0, Geometry::<L, SMALL>::top_of)
    }

    /// Returns the record in a slot of line `at`, whose key words are `keys`. `top` is the result
    /// of [`top_of`](Self::top_of).
    ///
    /// The line decides whether it holds the top bits itself, because recovery can find lines of a
    /// shallow segment in one that is not shallow any more.
    #[inline(always)]
    pub(super) fn record_in(
        &self,
        line: &Line,
        at: usize,
        slot: usize,
        keys: &Keys,
        top: u64,
    ) -> Record {
        let m = self.medium();
        let tag = tag_of(keys[slot]);
        let home = if is_foreign(keys[slot]) { Geometry::<L, SMALL>::other(at, tag) } else { at };
        let top = if SMALL && holds_tops(keys[3]) {
            Geometry::<L, SMALL>::top_in(m.load_relaxed(&line.words[3]), slot)
        } else {
            top
        };
        let image = Geometry::<L, SMALL>::image(top, tag, home);
        Record { image, word: m.load_relaxed(&line.words[slot]) }
    }

    /// Calls `each` with the line, the slot, the key word and the record of every valid slot in the
    /// lines of a segment that the caller has locked.
    #[inline(always)]
    pub(super) fn for_each_slot(
        &self,
        segment: &Segment<L>,
        mut each: impl FnMut(usize, usize, u64, Record),
    ) {
        let (m, top) = (self.medium(), self.top_of(segment));
        for (at, line) in segment.lines.iter().enumerate() {
            let keys = keys_of(m, line);
            for slot in slots(valid(&keys)) {
                each(at, slot, keys[slot], self.record_in(line, at, slot, &keys, top));
            }
        }
    }

    /// Finds a free slot in the chain, appending a link if necessary and if `chain` allows it. The
    /// caller must hold the chain's lock.
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

    /// Stores a record in a free slot, durably, and updates the filter in its home line.
    #[inline(always)]
    pub(super) fn place_in(&self, home: &Line, spot: Spot<'_>, record: Record) {
        let m = self.medium();
        match spot {
            Spot::Home(line, slot) => place::<M, L, SMALL>(m, line, slot, record, 0),
            Spot::Away(line, slot) => {
                place::<M, L, SMALL>(m, line, slot, record, FOREIGN);
                note_away(m, home, Geometry::<L, SMALL>::tag(record.image));
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

    /// Makes it durable that a displaced record was removed from the slot `spot`, if no record is
    /// stored there.
    #[cold]
    pub(super) fn settle_displacement(&self, spot: Spot<'_>) {
        if let Spot::Home(line, _) | Spot::Away(line, _) = spot {
            self.medium().persist(line);
        }
    }
}
