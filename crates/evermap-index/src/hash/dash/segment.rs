//! One segment: finding records, and choosing slots for new ones.
//!
//! A record belongs to its *home* bucket. It is stored there, or in the *next* bucket as a member,
//! or in the stash or its chain. A thread that moves or changes a record holds the lock of the
//! record's home bucket, even if the record is stored elsewhere. So a reader has to validate only
//! the home bucket's version.

use std::sync::atomic::{Ordering, fence};

use evermap_pm::medium::prefetch;
use evermap_pm::{Guard, Medium, Result};

use super::Dash;
use super::bucket::{
    Belonging, Held, Locking, Record, allocate, erase, find, fingerprint_in, fingerprint_of,
    free_slot, list, lists_any, meta_of, overflow_fingerprint, try_lock, unlist, vacate,
};
use super::layout::{Bucket, Buckets, Geometry, HEADER_LINE_SLOTS, Meta, Version};
use crate::Key;
use crate::hash::mistakes;
use crate::hash::probe::Probe;
use crate::hash::segmented::SegmentLayout;
use crate::hash::segmented::apply::{FreeSlot, HeldBucket, OtherLocks};
use crate::hash::segmented::chain::{self, Chain};
use crate::hash::segmented::map::SegmentMap;
use crate::hash::segmented::waiting::Waiting;

/// The outcome of a search without locks.
pub(super) enum SearchResult {
    Found(u64),
    Absent,
    /// The home bucket changed meanwhile: the caller searches again.
    Again,
    /// The home bucket is locked.
    Busy,
    /// The segment was not recovered since the region was opened.
    Stale,
}

/// The location of a slot.
pub struct Spot<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) slot: usize,
    pub(super) kind: Kind,
    /// Whether the slot holds a record whose removal is not durable yet.
    pub(super) vacated: bool,
}

impl<'a> Spot<'a> {
    pub(super) fn new(bucket: &'a Bucket, slot: usize, kind: Kind) -> Self {
        Spot { bucket, slot, kind, vacated: false }
    }
}

/// A free slot of a bucket.
#[derive(Clone, Copy)]
struct Room {
    slot: usize,
    /// See [`Spot::vacated`].
    vacated: bool,
}

/// The place of a record's bucket relative to its home bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Home,
    Next,
    /// The stash bucket with this index.
    Stash(usize),
    /// A bucket of the chain.
    Chain,
}

/// Locks held in addition to that of the home bucket.
#[derive(Default)]
pub struct Locks<'a> {
    pub(super) next: Option<Held<'a>>,
    pub(super) stash: Option<Held<'a>>,
}

impl OtherLocks for Locks<'_> {
    #[inline(always)]
    fn release<M: Medium>(self, m: &M, changed: bool) {
        for held in [self.stash, self.next].into_iter().flatten() {
            if changed { held.release_changed(m) } else { held.release(m) }
        }
    }
}

/// Returns the number of slots of the home bucket that are filled before the next bucket is used:
/// finding or inserting a record in its home bucket takes one cache line less. Displacement
/// compensates for the lower load factor.
pub(super) const fn home_first<G: Geometry>() -> usize {
    if G::PAPER { 0 } else { G::BUCKET_SLOTS * 13 / 14 }
}

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    /// See [`home_first`].
    pub(super) const HOME_FIRST: usize = home_first::<G>();

    /// The number of further displacements that a displacement may cause. The paper moves only one
    /// record; moving up to two more raises the load factor by two percentage points.
    const STEPS: usize = if G::PAPER { 0 } else { 2 };

    /// Returns the home bucket of a hash.
    #[inline(always)]
    pub(super) fn home_of(hash: u64) -> usize {
        (hash >> 8) as usize % G::BUCKETS
    }

    #[inline(always)]
    pub(super) fn next_of(bucket: usize) -> usize {
        (bucket + 1) % G::BUCKETS
    }

    #[inline(always)]
    pub(super) fn previous_of(bucket: usize) -> usize {
        (bucket + G::BUCKETS - 1) % G::BUCKETS
    }

    /// Searches for a key without taking a lock or storing anything.
    ///
    /// A processor overlaps more lookups if each takes fewer instructions. So the common cases, a
    /// record in its home bucket and no record at all, come first and are short.
    #[inline(always)]
    pub(super) fn look(&self, segment: &G::Segment, probe: &Probe<'_, K>) -> SearchResult {
        if G::PAPER {
            return self.look_in_both(segment, probe);
        }
        let m = self.medium();
        let home = &segment.normal()[Self::home_of(probe.hash)];
        let version = Version(m.load(&home.version));
        let is_of_now = version.is_of(self.core.generation);
        if !(version.is_readable(self.core.generation)
            || m.mutant(mistakes::LOCKED_BUCKET_READ) && is_of_now)
        {
            return if is_of_now { SearchResult::Busy } else { SearchResult::Stale };
        }
        if let Some((_, word)) = find(m, home, probe, Belonging::Native) {
            return if self.is_unchanged(home, version) {
                SearchResult::Found(word)
            } else {
                SearchResult::Again
            };
        }
        if version.may_be_elsewhere(probe.hash) || K::WITHOUT.overflow_metadata {
            return self.look_elsewhere(segment, version, probe);
        }
        // Checked if nothing was found, too: a record may have moved to a bucket that was already
        // searched.
        let verified = m.mutant(mistakes::MISS_UNVERIFIED) || self.is_unchanged(home, version);
        if verified { SearchResult::Absent } else { SearchResult::Again }
    }

    /// Does what [`look`](Self::look) does as the paper describes it (section 4.4): compares the
    /// versions of both buckets.
    fn look_in_both(&self, segment: &G::Segment, probe: &Probe<'_, K>) -> SearchResult {
        let (m, generation) = (self.medium(), self.core.generation);
        let at = Self::home_of(probe.hash);
        let (home, next) = (&segment.normal()[at], &segment.normal()[Self::next_of(at)]);
        let [of_home, of_next] = [home, next].map(|bucket| Version(m.load(&bucket.version)));
        if !of_home.is_of(generation) {
            return SearchResult::Stale;
        }
        // While another thread recovers the segment, the next bucket may still be stale.
        if !of_home.is_readable(generation) || !of_next.is_readable(generation) {
            return SearchResult::Busy;
        }
        let mut found = find(m, home, probe, Belonging::Native)
            .or_else(|| find(m, next, probe, Belonging::Member))
            .map(|(_, word)| word);
        if found.is_none() && (of_home.overflowed() || K::WITHOUT.overflow_metadata) {
            found = self.find_in_stash(segment, of_home, probe).map(|(_, word)| word);
        }
        match found {
            _ if !self.is_unchanged(home, of_home) || !self.is_unchanged(next, of_next) => {
                SearchResult::Again
            }
            Some(word) => SearchResult::Found(word),
            None => SearchResult::Absent,
        }
    }

    /// Continues a search in the next bucket and the stash.
    fn look_elsewhere(
        &self,
        segment: &G::Segment,
        version: Version,
        probe: &Probe<'_, K>,
    ) -> SearchResult {
        let m = self.medium();
        let at = Self::home_of(probe.hash);
        let mut found = None;
        if version.may_be_next(probe.hash) {
            let next = &segment.normal()[Self::next_of(at)];
            found = find(m, next, probe, Belonging::Member).map(|(_, word)| word);
        }
        if found.is_none() && (version.overflowed() || K::WITHOUT.overflow_metadata) {
            found = self.find_in_stash(segment, version, probe).map(|(_, word)| word);
        }
        match found {
            None if m.mutant(mistakes::MISS_UNVERIFIED) => SearchResult::Absent,
            _ if !self.is_unchanged(&segment.normal()[at], version) => SearchResult::Again,
            Some(word) => SearchResult::Found(word),
            None => SearchResult::Absent,
        }
    }

    /// Returns whether this bucket, and all records that belong to it, are unchanged since its
    /// version word was read.
    #[inline(always)]
    fn is_unchanged(&self, home: &Bucket, version: Version) -> bool {
        // Acquire: everything read above is read before the version is read again. A thread that
        // changes a record of this bucket locks the bucket first, so an unchanged version means
        // that nothing changed.
        fence(Ordering::Acquire);
        self.medium().load_relaxed(&home.version) == version.0
    }

    /// Searches for a key in the stash and its chain. `home` is the version word of the home
    /// bucket.
    #[cold]
    fn find_in_stash<'a>(
        &'a self,
        segment: &'a G::Segment,
        home: Version,
        probe: &Probe<'_, K>,
    ) -> Option<(Spot<'a>, u64)> {
        let m = self.medium();
        let in_stash = |i: usize| {
            let bucket = &segment.stash()[i];
            find(m, bucket, probe, Belonging::Native)
                .map(|(slot, word)| (Spot::new(bucket, slot, Kind::Stash(i)), word))
        };
        if home.unlisted() == 0 && !K::WITHOUT.overflow_metadata {
            let announced = self.announced_in(segment, probe.hash);
            return (0..G::STASHES).filter(|i| announced >> i & 1 == 1).find_map(in_stash);
        }
        (0..G::STASHES).find_map(in_stash).or_else(|| {
            chain::links(m, &segment.header().chain).find_map(|bucket: &Bucket| {
                find(m, bucket, probe, Belonging::Native)
                    .map(|(slot, word)| (Spot::new(bucket, slot, Kind::Chain), word))
            })
        })
    }

    /// Returns, as a bit set, the stash buckets in which overflow fingerprints announce a record
    /// with this hash.
    pub(super) fn announced_in(&self, segment: &G::Segment, hash: u64) -> u32 {
        let m = self.medium();
        let home = Self::home_of(hash);
        let mut stashes = 0;
        for (at, member) in [(home, false), (Self::next_of(home), true)] {
            let bucket = &segment.normal()[at];
            let meta = meta_of(m, bucket);
            let fingerprints =
                [m.load_relaxed(&bucket.fingerprints[0]), m.load_relaxed(&bucket.fingerprints[1])];
            for i in 0..Meta::LISTED {
                if meta.is_listed(i)
                    && meta.listed_member(i) == member
                    && overflow_fingerprint(fingerprints, meta, i) == fingerprint_of(hash)
                {
                    stashes |= 1 << meta.listed_where(i);
                }
            }
        }
        stashes
    }

    /// Unlinks the empty buckets of a segment's chain, durably, and retires them. Returns how many.
    pub fn trim_chain(&self, segment: &G::Segment, guard: &Guard<'_>) -> u64 {
        chain::trim::<Bucket, M>(&self.core.pool, &segment.header().chain, guard)
    }

    /// Searches for a key whose home bucket the caller has locked.
    #[inline(always)]
    pub(super) fn find_under_lock<'a>(
        &'a self,
        segment: &'a G::Segment,
        home: &Held<'a>,
        probe: &Probe<'_, K>,
    ) -> Option<(Spot<'a>, u64)> {
        let m = self.medium();
        if let Some((slot, word)) = find(m, home.bucket, probe, Belonging::Native) {
            return Some((Spot::new(home.bucket, slot, Kind::Home), word));
        }
        if G::PAPER || home.version.may_be_next(probe.hash) {
            let bucket = &segment.normal()[Self::next_of(Self::home_of(probe.hash))];
            if let Some((slot, word)) = find(m, bucket, probe, Belonging::Member) {
                return Some((Spot::new(bucket, slot, Kind::Next), word));
            }
        }
        if home.version.overflowed() || K::WITHOUT.overflow_metadata {
            return self.find_in_stash(segment, home.version, probe);
        }
        None
    }

    /// Takes the locks that are needed, besides that of the home bucket, to remove a record.
    /// Returns `None` if another thread holds one of them.
    pub(super) fn lock_beside<'a>(
        &'a self,
        segment: &'a G::Segment,
        hash: u64,
        kind: Kind,
    ) -> Result<Option<Locks<'a>>> {
        let mut locks = Locks::default();
        if G::PAPER || kind != Kind::Home {
            // The next bucket holds the record, or may hold its overflow fingerprint.
            match self.try_lock_at(segment, Self::next_of(Self::home_of(hash))) {
                Some(held) => locks.next = Some(held),
                None => return Ok(None),
            }
        }
        if matches!(kind, Kind::Stash(_) | Kind::Chain) {
            locks.stash = Some(self.lock_stash(segment)?);
        }
        Ok(Some(locks))
    }

    fn try_lock_at<'a>(&'a self, segment: &'a G::Segment, at: usize) -> Option<Held<'a>> {
        match try_lock(self.medium(), &segment.normal()[at], self.core.generation) {
            Locking::Held(held) => Some(held),
            // A stale bucket next to one that is not stale: another thread is about to complete the
            // recovery of the segment.
            Locking::Busy | Locking::Stale => None,
        }
    }

    /// Waits for the lock of the stash. A thread that holds it never waits, so this cannot
    /// deadlock.
    pub(super) fn lock_stash<'a>(&'a self, segment: &'a G::Segment) -> Result<Held<'a>> {
        let mut waiting = Waiting::default();
        loop {
            match try_lock(self.medium(), &segment.stash()[0], self.core.generation) {
                Locking::Held(held) => return Ok(held),
                Locking::Busy | Locking::Stale => waiting.wait(self, segment)?,
            }
        }
    }

    /// Removes a record, durably, under the lock of its home bucket and those of
    /// [`lock_for_removal`](Self::lock_for_removal).
    #[inline(always)]
    pub(super) fn remove_at(
        &self,
        segment: &G::Segment,
        home: &mut Held<'_>,
        hash: u64,
        spot: &Spot<'_>,
    ) {
        erase(self.medium(), spot.bucket, spot.slot);
        match spot.kind {
            // The filter keeps its bit: another record may have set it too.
            Kind::Home | Kind::Next => {}
            Kind::Stash(i) => self.unannounce(segment, home, hash, Some(i)),
            Kind::Chain => self.unannounce(segment, home, hash, None),
        }
    }

    /// Removes the overflow metadata for a record in stash bucket `place`, or in the chain.
    fn unannounce(
        &self,
        segment: &G::Segment,
        home: &mut Held<'_>,
        hash: u64,
        place: Option<usize>,
    ) {
        let m = self.medium();
        let next = &segment.normal()[Self::next_of(Self::home_of(hash))];
        let unlisted = place.is_some_and(|i| {
            unlist(m, home.bucket, hash, i, false) || unlist(m, next, hash, i, true)
        });
        if !unlisted {
            home.version.drop_unlisted();
        }
        let overflowed = home.version.unlisted() > 0
            || lists_any(meta_of(m, home.bucket), false)
            || lists_any(meta_of(m, next), true);
        home.version.set_overflowed(overflowed);
    }

    /// Finds a free slot for a record with this hash, if necessary by moving other records.
    ///
    /// Tries, in the order of the paper (section 4.3), the home bucket, the next bucket,
    /// displacement to either side, and the stash; then, if `chain` allows it, the chain.
    #[inline(always)]
    pub(super) fn find_room<'a>(
        &'a self,
        segment: &'a G::Segment,
        home: &mut Held<'a>,
        hash: u64,
        chain: &mut Chain,
    ) -> Result<FreeSlot<Spot<'a>, Locks<'a>>> {
        if let Some(slot) = free_slot(meta_of(self.medium(), home.bucket), Self::HOME_FIRST) {
            let (bucket, locks) = (home.bucket, Locks::default());
            let spot = Spot::new(bucket, slot, Kind::Home);
            return Ok(FreeSlot::Free(spot, locks));
        }
        self.find_room_further(segment, home, hash, chain)
    }

    fn find_room_further<'a>(
        &'a self,
        segment: &'a G::Segment,
        home: &mut Held<'a>,
        hash: u64,
        chain: &mut Chain,
    ) -> Result<FreeSlot<Spot<'a>, Locks<'a>>> {
        let m = self.medium();
        let at = Self::home_of(hash);
        let Some(mut next) = self.try_lock_at(segment, Self::next_of(at)) else {
            return Ok(FreeSlot::Busy);
        };
        let (here, there) = (meta_of(m, home.bucket), meta_of(m, next.bucket));
        let choice = match self.roomier(here, there) {
            Some((slot, kind)) => Some((Room { slot, vacated: false }, kind)),
            None => self.displace(segment, at, home, &mut next),
        };
        if let Some((Room { slot, vacated }, kind)) = choice {
            let bucket = if kind == Kind::Home { home.bucket } else { next.bucket };
            let locks = Locks { next: Some(next), stash: None };
            return Ok(FreeSlot::Free(Spot { bucket, slot, kind, vacated }, locks));
        }
        let locks = Locks { next: Some(next), stash: Some(self.lock_stash(segment)?) };
        match self.room_in_stash(segment, at, chain) {
            Some((bucket, slot, kind)) => Ok(FreeSlot::Free(Spot::new(bucket, slot, kind), locks)),
            None => {
                locks.release(m, true);
                Ok(FreeSlot::Full)
            }
        }
    }

    /// Returns a free slot of the home bucket or the next one, whichever has more of them.
    pub(super) fn roomier(&self, here: Meta, there: Meta) -> Option<(usize, Kind)> {
        match (free_slot(here, G::BUCKET_SLOTS), free_slot(there, G::BUCKET_SLOTS)) {
            (Some(slot), Some(_)) if here.count() <= there.count() => Some((slot, Kind::Home)),
            (_, Some(slot)) => Some((slot, Kind::Next)),
            (Some(slot), None) => Some((slot, Kind::Home)),
            (None, None) => None,
        }
    }

    /// Frees a slot of the full home bucket `at` or of the full bucket after it, both of which are
    /// locked, by moving other records.
    fn displace<'a>(
        &'a self,
        segment: &'a G::Segment,
        at: usize,
        home: &mut Held<'a>,
        next: &mut Held<'a>,
    ) -> Option<(Room, Kind)> {
        // Most attempts find no room, so all headers that may show some are read first, and their
        // cache misses overlap.
        for step in 1..=Self::STEPS + 1 {
            for beyond in [at + 1 + step, at + G::BUCKETS - step] {
                prefetch(std::ptr::from_ref(&segment.normal()[beyond % G::BUCKETS]).cast());
            }
        }
        segment.stash().iter().for_each(|bucket| prefetch(std::ptr::from_ref(bucket).cast()));
        let (after, steps) = (Self::next_of(at), Self::STEPS);
        // Without locks, so these are only guesses.
        let has_room = |at: usize| self.room_in(&segment.normal()[at % G::BUCKETS]).is_some();
        if (1..=steps + 1).any(|step| has_room(after + step))
            && let Some(room) = self.displace_right(segment, after, next, steps)
        {
            return Some((room, Kind::Next));
        }
        if !(1..=steps + 1).any(|step| has_room(at + G::BUCKETS - step)) {
            return None;
        }
        Some((self.displace_left(segment, at, home, steps)?, Kind::Home))
    }

    /// Frees a slot of the locked bucket `at` by moving a record that belongs there to the bucket
    /// after it. If that bucket is full too, first does the same there, up to `steps` times.
    ///
    /// The copy is durable. The removal of the original becomes durable together with what is
    /// stored in its slot: until then the bucket must stay locked, so that no thread can change the
    /// copy. After a crash before that, recovery finds both and drops one.
    fn displace_right(
        &self,
        segment: &G::Segment,
        at: usize,
        from: &mut Held<'_>,
        steps: usize,
    ) -> Option<Room> {
        let m = self.medium();
        let movable = meta_of(m, from.bucket).natives();
        let slot = (movable != 0).then(|| movable.trailing_zeros() as usize)?;
        let mut after = self.try_lock_at(segment, Self::next_of(at))?;
        let room = self.room_in(after.bucket).or_else(|| {
            let steps = steps.checked_sub(1)?;
            self.displace_right(segment, Self::next_of(at), &mut after, steps)
        });
        let Some(room) = room else {
            after.release(m);
            return None;
        };
        let record = self.record_in(from.bucket, slot);
        self.place_in_room(after.bucket, room, record, true);
        from.version.note_next(record.hash);
        let vacated = !G::PAPER;
        if vacated {
            vacate(m, from.bucket, slot)
        } else {
            erase(m, from.bucket, slot)
        }
        after.release_changed(m);
        Some(Room { slot, vacated })
    }

    /// Frees a slot of the locked bucket `at` by moving a member to its home bucket, the one before
    /// `at`. If that bucket is full too, first does the same there, up to `steps` times.
    fn displace_left(
        &self,
        segment: &G::Segment,
        at: usize,
        from: &Held<'_>,
        steps: usize,
    ) -> Option<Room> {
        let m = self.medium();
        let meta = meta_of(m, from.bucket);
        let movable = meta.allocated() & meta.members();
        let slot = (movable != 0).then(|| movable.trailing_zeros() as usize)?;
        let before = self.try_lock_at(segment, Self::previous_of(at))?;
        let room = self.room_in(before.bucket).or_else(|| {
            let steps = steps.checked_sub(1)?;
            self.displace_left(segment, Self::previous_of(at), &before, steps)
        });
        let Some(room) = room else {
            before.release(m);
            return None;
        };
        let record = self.record_in(from.bucket, slot);
        self.place_in_room(before.bucket, room, record, false);
        // Durable before the record's home bucket is released: otherwise another thread could
        // remove the copy, and the original could reappear after a crash.
        erase(m, from.bucket, slot);
        before.release_changed(m);
        Some(Room { slot, vacated: false })
    }

    fn room_in(&self, bucket: &Bucket) -> Option<Room> {
        let slot = free_slot(meta_of(self.medium(), bucket), G::BUCKET_SLOTS)?;
        Some(Room { slot, vacated: false })
    }

    /// Does what [`store_record`](Self::store_record) does.
    ///
    /// Takes one fence, except in the paper's form, and one flush if the slot shares the header's
    /// cache line, in which stores persist in program order. Otherwise the slot and the header
    /// become durable in any order. A crash between them leaves a slot that is allocated and holds
    /// what it held before, which recovery [notices](Self::is_whole) by its fingerprint: so that
    /// has to be another one. One insertion in 256 has to wait for the slot first.
    #[inline(always)]
    fn place_in_room(&self, bucket: &Bucket, room: Room, record: Record, member: bool) {
        let (m, slot, fingerprint) = (self.medium(), room.slot, fingerprint_of(record.hash));
        let cells = &bucket.slots[slot];
        let apart = G::PAPER || slot >= HEADER_LINE_SLOTS;
        let noticed = apart && self.prepare_slot(bucket, room, fingerprint);
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
        if apart {
            if noticed { m.flush(cells) } else { m.persist(cells) }
        }
        allocate(m, bucket, slot, fingerprint, member);
        m.persist(&bucket.meta);
    }

    /// Stores a record in a free slot of a locked bucket, durably. If it is a `member`, it belongs
    /// to the bucket before.
    #[inline]
    pub fn store_record(&self, bucket: &Bucket, slot: usize, record: Record, member: bool) {
        self.place_in_room(bucket, Room { slot, vacated: false }, record, member);
    }

    /// Prepares a free slot for a record with this fingerprint. Returns whether the header may
    /// become durable before the slot.
    #[inline]
    fn prepare_slot(&self, bucket: &Bucket, room: Room, fingerprint: u8) -> bool {
        let noticed = self.is_noticed(bucket, room.slot, fingerprint);
        if room.vacated {
            return self.prepare_vacated(bucket, room.slot, fingerprint, noticed);
        }
        noticed
    }

    /// Returns whether recovery notices that a free slot does not hold a record with this
    /// fingerprint yet.
    #[inline]
    pub(super) fn is_noticed(&self, bucket: &Bucket, slot: usize, fingerprint: u8) -> bool {
        let before = self.medium().load_relaxed(&bucket.slots[slot].key);
        !G::PAPER && fingerprint_of(K::slot_hash(before, self.core.seed)) != fingerprint
    }

    /// Prepares a slot whose removal is not durable yet. Until it is, the slot is allocated with
    /// the fingerprint of the record that was there: so it must never hold that key and another
    /// word. A key of neither fingerprint comes in between.
    #[cold]
    fn prepare_vacated(
        &self,
        bucket: &Bucket,
        slot: usize,
        fingerprint: u8,
        noticed: bool,
    ) -> bool {
        let m = self.medium();
        let before = fingerprint_in(m, bucket, slot);
        let strange = (0..8).find(|&key| {
            let other = fingerprint_of(K::slot_hash(key, self.core.seed));
            other != fingerprint && other != before
        });
        match strange {
            Some(key) if noticed => m.store(&bucket.slots[slot].key, key),
            _ => {
                m.persist(&bucket.meta);
                return false;
            }
        }
        true
    }

    /// Returns whether an allocated slot holds its record. If not, a crash came before both the
    /// slot and the header were durable, so the record was not committed.
    pub(super) fn is_whole(&self, bucket: &Bucket, slot: usize, record: Record) -> bool {
        fingerprint_in(self.medium(), bucket, slot) == fingerprint_of(record.hash)
    }

    #[inline(always)]
    pub(super) fn record_in(&self, bucket: &Bucket, slot: usize) -> Record {
        let m = self.medium();
        let slot_key = m.load_relaxed(&bucket.slots[slot].key);
        let word = m.load_relaxed(&bucket.slots[slot].word);
        Record { hash: K::slot_hash(slot_key, self.core.seed), slot_key, word }
    }

    /// Finds a free slot in the stash, or in the chain, if `chain` allows it.
    fn room_in_stash<'a>(
        &'a self,
        segment: &'a G::Segment,
        at: usize,
        chain: &mut Chain,
    ) -> Option<(&'a Bucket, usize, Kind)> {
        let m = self.medium();
        for i in (0..G::STASHES).map(|step| (at + step) % G::STASHES) {
            let bucket = &segment.stash()[i];
            if let Some(slot) = free_slot(meta_of(m, bucket), G::BUCKET_SLOTS) {
                return Some((bucket, slot, Kind::Stash(i)));
            }
        }
        if *chain == Chain::Avoid {
            return None;
        }
        let free = |bucket: &Bucket| free_slot(meta_of(m, bucket), G::BUCKET_SLOTS);
        let (bucket, slot) = chain::find_room(m, &segment.header().chain, chain, free)?;
        Some((bucket, slot, Kind::Chain))
    }

    /// Stores a record in a free slot, durably, and updates the metadata in its home bucket.
    #[inline(always)]
    pub(super) fn place_in(
        &self,
        segment: &G::Segment,
        home: &mut Held<'_>,
        room: &Spot<'_>,
        record: Record,
    ) {
        let m = self.medium();
        let Spot { bucket, slot, kind, vacated } = *room;
        self.place_in_room(bucket, Room { slot, vacated }, record, kind == Kind::Next);
        match kind {
            Kind::Home => {}
            Kind::Next => home.version.note_next(record.hash),
            Kind::Stash(_) | Kind::Chain => {
                let listed = match kind {
                    Kind::Stash(i) => {
                        let next = &segment.normal()[Self::next_of(Self::home_of(record.hash))];
                        list(m, home.bucket, record.hash, i, false)
                            || list(m, next, record.hash, i, true)
                    }
                    _ => false,
                };
                if !listed {
                    home.version.add_unlisted();
                }
                home.version.set_overflowed(true);
            }
        }
    }
}
