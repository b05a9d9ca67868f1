//! One segment: where a record can be, and where a new one goes.
//!
//! A record belongs to its *home* bucket. It sits there, or in the *next* bucket as a member, or in the stash
//! or its chain. Whoever moves or changes a record holds the lock of the record's home bucket, wherever the
//! record sits: so a reader needs to validate the home bucket's version and nothing else.

use std::sync::atomic::{Ordering, fence};

use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::bucket::{
    Belonging, Held, Locking, Record, erase, find, fingerprint_of, free_slot, list, lists_any,
    meta_of, overflow_fingerprint, place, try_lock, unlist,
};
use super::layout::{BUCKET_BYTES, Bucket, Meta, Segment, Version};
use super::{Dash, Expansion};
use crate::Key;
use crate::hash::probe::Probe;

/// Longest chain that is followed: a bound on what a damaged one can cost.
pub(super) const CHAIN_MAX: usize = 1 << 20;

/// What a look without locks found.
pub(super) enum Look {
    Found(u64),
    Absent,
    /// Something changed meanwhile: look again.
    Again,
    /// The home bucket is locked.
    Busy,
    /// The segment was not recovered since the region was opened.
    Stale,
}

/// Where a record sits.
pub(super) struct Place<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) slot: usize,
    pub(super) word: u64,
    pub(super) kind: Kind,
}

/// How a record's bucket relates to its home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Home,
    Next,
    /// The stash bucket with this index.
    Stash(usize),
    /// A bucket of the stash's chain.
    Chain,
}

/// What an insert may do with the chain of a segment that is otherwise full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chain {
    /// Nothing: the segment can be split instead.
    Avoid,
    /// Use the room in it.
    Fill,
    /// Use the room in it, or lengthen it by the block at this offset.
    Lengthen(u64),
    /// It was lengthened.
    Lengthened,
}

/// A free slot for a record, with the locks that protect it beside the home bucket's.
pub(super) struct Room<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) slot: usize,
    pub(super) kind: Kind,
    pub(super) locks: Locks<'a>,
}

/// Locks held beside the home bucket's.
#[derive(Default)]
pub(super) struct Locks<'a> {
    pub(super) next: Option<Held<'a>>,
    pub(super) stash: Option<Held<'a>>,
}

impl Locks<'_> {
    #[inline]
    pub(super) fn release<M: Medium>(self, m: &M, changed: bool) {
        for held in [self.stash, self.next].into_iter().flatten() {
            if changed { held.release_changed(m) } else { held.release(m) }
        }
    }
}

/// What the search for room found.
pub(super) enum MakeRoom<'a> {
    Room(Room<'a>),
    /// A neighbouring bucket is locked: release everything and try again.
    Busy,
    /// The segment must grow.
    Full,
}

impl<K, M, E, const B: usize, const S: usize, const N: usize> Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    /// Fills this many slots of the home bucket before spreading to the next one: a record at home is found, and
    /// placed, with one cache line less. What it costs in load factor, displacement brings back.
    pub(super) const HOME_FIRST: usize = N * 13 / 14;

    /// How often a displacement may push another one along. The paper moves one record only; two more are worth
    /// two points of load factor in a hundred.
    const STEPS: usize = 2;

    /// The bucket that a hash belongs to.
    #[inline(always)]
    pub(super) fn home_of(hash: u64) -> usize {
        (hash >> 8) as usize % B
    }

    #[inline(always)]
    pub(super) fn next_of(bucket: usize) -> usize {
        (bucket + 1) % B
    }

    #[inline(always)]
    pub(super) fn previous_of(bucket: usize) -> usize {
        (bucket + B - 1) % B
    }

    /// Looks for a key without a lock or a store.
    ///
    /// How many lookups a processor overlaps is decided by how few instructions each takes, so the common cases,
    /// a record at home and none at all, come first and are short.
    #[inline(always)]
    pub(super) fn look(&self, segment: &Segment<B, S>, probe: &Probe<'_, K>) -> Look {
        let m = self.medium();
        let home = &segment.normal[Self::home_of(probe.hash)];
        let version = Version(m.load(&home.version));
        let is_of_now = version.is_of(self.generation);
        if !(version.is_readable(self.generation) || m.mutant("DA-8") && is_of_now) {
            return if is_of_now { Look::Busy } else { Look::Stale };
        }
        if let Some((_, word)) = find(m, home, probe, Belonging::Native) {
            return if self.is_unchanged(home, version) { Look::Found(word) } else { Look::Again };
        }
        if version.may_be_elsewhere(probe.hash) || K::WITHOUT.overflow_metadata {
            return self.look_elsewhere(segment, version, probe);
        }
        // Checked after a miss too: a record may have moved behind the search.
        let verified = m.mutant("DA-14") || self.is_unchanged(home, version);
        if verified { Look::Absent } else { Look::Again }
    }

    /// Goes on looking in the next bucket and the stash.
    fn look_elsewhere(
        &self,
        segment: &Segment<B, S>,
        version: Version,
        probe: &Probe<'_, K>,
    ) -> Look {
        let m = self.medium();
        let at = Self::home_of(probe.hash);
        let mut found = None;
        if version.may_be_next(probe.hash) {
            let next = &segment.normal[Self::next_of(at)];
            found = find(m, next, probe, Belonging::Member).map(|(_, word)| word);
        }
        if found.is_none() && (version.overflowed() || K::WITHOUT.overflow_metadata) {
            found = self.find_in_stash(segment, version, probe).map(|place| place.word);
        }
        match found {
            None if m.mutant("DA-14") => Look::Absent,
            _ if !self.is_unchanged(&segment.normal[at], version) => Look::Again,
            Some(word) => Look::Found(word),
            None => Look::Absent,
        }
    }

    /// Whether nothing has changed in this bucket, and with the records that belong to it, since its version
    /// word was read.
    #[inline(always)]
    fn is_unchanged(&self, home: &Bucket, version: Version) -> bool {
        // Acquire: everything read above is read before the version is read again. Whoever changes a record of
        // this bucket locks the bucket first, so an unchanged version means that nothing changed.
        fence(Ordering::Acquire);
        self.medium().load_relaxed(&home.version) == version.0
    }

    /// Looks for a key in the stash and its chain. `home` is what the home bucket's version word says.
    #[cold]
    fn find_in_stash<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        home: Version,
        probe: &Probe<'_, K>,
    ) -> Option<Place<'a>> {
        let m = self.medium();
        let in_stash = |i: usize| {
            let bucket = &segment.stash[i];
            find(m, bucket, probe, Belonging::Native).map(|(slot, word)| Place {
                bucket,
                slot,
                word,
                kind: Kind::Stash(i),
            })
        };
        if home.unlisted() == 0 && !K::WITHOUT.overflow_metadata {
            let announced = self.announced_in(segment, probe.hash);
            return (0..S).filter(|i| announced >> i & 1 == 1).find_map(in_stash);
        }
        (0..S).find_map(in_stash).or_else(|| {
            self.chain(segment).find_map(|bucket| {
                find(m, bucket, probe, Belonging::Native).map(|(slot, word)| Place {
                    bucket,
                    slot,
                    word,
                    kind: Kind::Chain,
                })
            })
        })
    }

    /// Stash buckets that overflow fingerprints name for this hash, as bits.
    pub(super) fn announced_in(&self, segment: &Segment<B, S>, hash: u64) -> u32 {
        let m = self.medium();
        let home = Self::home_of(hash);
        let mut stashes = 0;
        for (at, member) in [(home, false), (Self::next_of(home), true)] {
            let bucket = &segment.normal[at];
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

    /// The buckets of the stash's chain.
    pub(super) fn chain<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
    ) -> impl Iterator<Item = &'a Bucket> + 'a {
        let m = self.medium();
        let mut link = m.load(&segment.header.chain);
        std::iter::from_fn(move || {
            let bucket = if link == 0 { None } else { m.at::<Bucket>(link) }?;
            link = m.load(&bucket.version);
            Some(bucket)
        })
        .take(CHAIN_MAX)
    }

    /// Makes sure that the chain of a segment leads to its end, so that [`chain`](Self::chain) shows all of it.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn ensure_chain_ends(&self, segment: &Segment<B, S>) -> Result<()> {
        let m = self.medium();
        let mut link = &segment.header.chain;
        // So many buckets, and the end.
        for _ in 0..=CHAIN_MAX {
            let offset = m.load(link);
            if offset == 0 {
                return Ok(());
            }
            let Some(bucket) = m.at::<Bucket>(offset) else { break };
            link = &bucket.version;
        }
        Err(Error::damaged(m.offset_of(link), "the chain of a segment does not end"))
    }

    /// Offsets of a segment's chain buckets.
    pub(super) fn chain_blocks(&self, segment: &Segment<B, S>) -> Vec<u64> {
        self.chain(segment).map(|bucket| self.medium().offset_of(bucket)).collect()
    }

    /// Unlinks the empty buckets of a segment's chain, durably, and retires them.
    pub(super) fn trim_chain(&self, segment: &Segment<B, S>, guard: &Guard<'_>) {
        let m = self.medium();
        let mut link = &segment.header.chain;
        for _ in 0..CHAIN_MAX {
            let offset = m.load(link);
            let Some(bucket) = (offset != 0).then(|| m.at::<Bucket>(offset)).flatten() else {
                return;
            };
            if meta_of(m, bucket).count() == 0 {
                m.store(link, m.load(&bucket.version));
                m.note(Note::Harmless(
                    "needed once the block is something else: `an_empty_bucket_of_a_chain_is_unlinked_for_good`",
                ));
                m.persist(link);
                self.pool.retire(offset, BUCKET_BYTES, guard);
            } else {
                link = &bucket.version;
            }
        }
    }

    /// Looks for a key whose home bucket is locked by the caller.
    #[inline(always)]
    pub(super) fn find_held<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        home: &Held<'a>,
        probe: &Probe<'_, K>,
    ) -> Option<Place<'a>> {
        let m = self.medium();
        if let Some((slot, word)) = find(m, home.bucket, probe, Belonging::Native) {
            return Some(Place { bucket: home.bucket, slot, word, kind: Kind::Home });
        }
        if home.version.may_be_next(probe.hash) {
            let bucket = &segment.normal[Self::next_of(Self::home_of(probe.hash))];
            if let Some((slot, word)) = find(m, bucket, probe, Belonging::Member) {
                return Some(Place { bucket, slot, word, kind: Kind::Next });
            }
        }
        if home.version.overflowed() || K::WITHOUT.overflow_metadata {
            return self.find_in_stash(segment, home.version, probe);
        }
        None
    }

    /// The locks that removing a record takes beside its home's; `None` if one is held by someone else.
    pub(super) fn lock_for_removal<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        hash: u64,
        kind: Kind,
    ) -> Result<Option<Locks<'a>>> {
        let mut locks = Locks::default();
        if kind != Kind::Home {
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

    fn try_lock_at<'a>(&'a self, segment: &'a Segment<B, S>, at: usize) -> Option<Held<'a>> {
        match try_lock(self.medium(), &segment.normal[at], self.generation) {
            Locking::Held(held) => Some(held),
            // A stale bucket beside a fresh one belongs to a recovery that is just ending.
            Locking::Busy | Locking::Stale => None,
        }
    }

    /// Waits for the lock of the stash. Its holders wait for nothing else, so this cannot deadlock.
    pub(super) fn lock_stash<'a>(&'a self, segment: &'a Segment<B, S>) -> Result<Held<'a>> {
        let mut waiting = self.waiting();
        loop {
            match try_lock(self.medium(), &segment.stash[0], self.generation) {
                Locking::Held(held) => return Ok(held),
                Locking::Busy | Locking::Stale => waiting.wait(segment)?,
            }
        }
    }

    /// Takes a record away, durably, under its home's lock and those of
    /// [`lock_for_removal`](Self::lock_for_removal).
    #[inline(always)]
    pub(super) fn remove_at(
        &self,
        segment: &Segment<B, S>,
        home: &mut Held<'_>,
        hash: u64,
        place: &Place<'_>,
    ) {
        erase(self.medium(), place.bucket, place.slot);
        match place.kind {
            // The filter keeps its bit: another record may have set it too.
            Kind::Home | Kind::Next => {}
            Kind::Stash(i) => self.unannounce(segment, home, hash, Some(i)),
            Kind::Chain => self.unannounce(segment, home, hash, None),
        }
    }

    /// Undoes the announcement of a record in stash bucket `place`, or in the chain.
    fn unannounce(
        &self,
        segment: &Segment<B, S>,
        home: &mut Held<'_>,
        hash: u64,
        place: Option<usize>,
    ) {
        let m = self.medium();
        let next = &segment.normal[Self::next_of(Self::home_of(hash))];
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

    /// Finds a free slot for a record with this hash, moving another record if that makes one.
    ///
    /// In the order of the paper (section 4.3): home bucket, next bucket, displacement to either side, stash;
    /// then, where `chain` allows it, the stash's chain.
    #[inline(always)]
    pub(super) fn make_room<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        home: &mut Held<'a>,
        hash: u64,
        chain: &mut Chain,
    ) -> Result<MakeRoom<'a>> {
        if let Some(slot) = free_slot(meta_of(self.medium(), home.bucket), Self::HOME_FIRST) {
            let (bucket, locks) = (home.bucket, Locks::default());
            return Ok(MakeRoom::Room(Room { bucket, slot, kind: Kind::Home, locks }));
        }
        self.make_room_further(segment, home, hash, chain)
    }

    fn make_room_further<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        home: &mut Held<'a>,
        hash: u64,
        chain: &mut Chain,
    ) -> Result<MakeRoom<'a>> {
        let m = self.medium();
        let at = Self::home_of(hash);
        let Some(mut next) = self.try_lock_at(segment, Self::next_of(at)) else {
            return Ok(MakeRoom::Busy);
        };
        let (here, there) = (meta_of(m, home.bucket), meta_of(m, next.bucket));
        let (room_here, room_there) = (free_slot(here, N), free_slot(there, N));
        let choice = match (room_here, room_there) {
            (Some(slot), Some(_)) if here.count() <= there.count() => Some((slot, Kind::Home)),
            (_, Some(slot)) => Some((slot, Kind::Next)),
            (Some(slot), None) => Some((slot, Kind::Home)),
            (None, None) => None,
        };
        let choice = match choice {
            Some(choice) => Some(choice),
            None => {
                let right = self.displace_right(segment, Self::next_of(at), &mut next, Self::STEPS);
                let left = || self.displace_left(segment, at, home, Self::STEPS);
                right.map(|slot| (slot, Kind::Next)).or_else(|| Some((left()?, Kind::Home)))
            }
        };
        if let Some((slot, kind)) = choice {
            let bucket = if kind == Kind::Home { home.bucket } else { next.bucket };
            let locks = Locks { next: Some(next), stash: None };
            return Ok(MakeRoom::Room(Room { bucket, slot, kind, locks }));
        }
        let locks = Locks { next: Some(next), stash: Some(self.lock_stash(segment)?) };
        match self.room_in_stash(segment, at, chain) {
            Some((bucket, slot, kind)) => Ok(MakeRoom::Room(Room { bucket, slot, kind, locks })),
            None => {
                locks.release(m, true);
                Ok(MakeRoom::Full)
            }
        }
    }

    /// Frees a slot of the locked bucket `at` by moving a record that belongs there on to the bucket after it;
    /// where that is full too, `steps` times the same there first.
    fn displace_right(
        &self,
        segment: &Segment<B, S>,
        at: usize,
        from: &mut Held<'_>,
        steps: usize,
    ) -> Option<usize> {
        let m = self.medium();
        let movable = meta_of(m, from.bucket).natives();
        let slot = (movable != 0).then(|| movable.trailing_zeros() as usize)?;
        let mut after = self.try_lock_at(segment, Self::next_of(at))?;
        let free = free_slot(meta_of(m, after.bucket), N).or_else(|| {
            let steps = steps.checked_sub(1)?;
            self.displace_right(segment, Self::next_of(at), &mut after, steps)
        });
        let Some(free) = free else {
            after.release(m);
            return None;
        };
        let record = self.record_in(from.bucket, slot);
        place(m, after.bucket, free, record, true);
        from.version.note_next(record.hash);
        // The copy is durable. Until the original is gone, durably, both are there, which recovery resolves;
        // nobody else can touch either, because we hold the record's home.
        erase(m, from.bucket, slot);
        after.release_changed(m);
        Some(slot)
    }

    /// Frees a slot of the locked bucket `at` by moving a member back to the bucket before it, where it belongs;
    /// where that is full too, `steps` times the same there first.
    fn displace_left(
        &self,
        segment: &Segment<B, S>,
        at: usize,
        from: &Held<'_>,
        steps: usize,
    ) -> Option<usize> {
        let m = self.medium();
        let meta = meta_of(m, from.bucket);
        let movable = meta.allocated() & meta.members();
        let slot = (movable != 0).then(|| movable.trailing_zeros() as usize)?;
        let before = self.try_lock_at(segment, Self::previous_of(at))?;
        let free = free_slot(meta_of(m, before.bucket), N).or_else(|| {
            let steps = steps.checked_sub(1)?;
            self.displace_left(segment, Self::previous_of(at), &before, steps)
        });
        let Some(free) = free else {
            before.release(m);
            return None;
        };
        let record = self.record_in(from.bucket, slot);
        place(m, before.bucket, free, record, false);
        erase(m, from.bucket, slot);
        before.release_changed(m);
        Some(slot)
    }

    #[inline(always)]
    pub(super) fn record_in(&self, bucket: &Bucket, slot: usize) -> Record {
        let m = self.medium();
        let slot_key = m.load_relaxed(&bucket.slots[slot].key);
        let word = m.load_relaxed(&bucket.slots[slot].word);
        Record { hash: K::slot_hash(slot_key, self.seed), slot_key, word }
    }

    /// A free slot in the stash, or in its chain, which `chain` may lengthen by one bucket.
    fn room_in_stash<'a>(
        &'a self,
        segment: &'a Segment<B, S>,
        at: usize,
        chain: &mut Chain,
    ) -> Option<(&'a Bucket, usize, Kind)> {
        let m = self.medium();
        for i in (0..S).map(|step| (at + step) % S) {
            let bucket = &segment.stash[i];
            if let Some(slot) = free_slot(meta_of(m, bucket), N) {
                return Some((bucket, slot, Kind::Stash(i)));
            }
        }
        if *chain == Chain::Avoid {
            return None;
        }
        let mut link = &segment.header.chain;
        for _ in 0..CHAIN_MAX {
            let offset = match m.load(link) {
                // The end: lengthen it by an empty bucket. A crash leaves it empty, and reachable.
                0 => {
                    let Chain::Lengthen(offset) = *chain else { return None };
                    self.append_chain_bucket(link, offset)?;
                    *chain = Chain::Lengthened;
                    offset
                }
                offset => offset,
            };
            let bucket = m.at::<Bucket>(offset)?;
            if let Some(slot) = free_slot(meta_of(m, bucket), N) {
                return Some((bucket, slot, Kind::Chain));
            }
            link = &bucket.version;
        }
        None
    }

    /// Initialises the block at `offset` as an empty bucket and links it.
    fn append_chain_bucket(&self, link: &evermap_pm::PmU64, offset: u64) -> Option<()> {
        let m = self.medium();
        let bucket = m.at::<Bucket>(offset)?;
        m.store(&bucket.version, 0);
        m.store(&bucket.fingerprints[0], 0);
        m.store(&bucket.fingerprints[1], 0);
        m.store(&bucket.meta, 0);
        m.persist(&bucket.meta);
        m.store(link, offset);
        m.note(Note::Harmless(
            "needed by whoever else uses the stash: `a_longer_chain_is_durable_whatever_comes_of_the_record`",
        ));
        m.persist(link);
        Some(())
    }

    /// Puts a record into the room that was made, durably, and notes in the home bucket where it went.
    #[inline(always)]
    pub(super) fn place_in(
        &self,
        segment: &Segment<B, S>,
        home: &mut Held<'_>,
        room: &Room<'_>,
        record: Record,
    ) {
        let m = self.medium();
        place(m, room.bucket, room.slot, record, room.kind == Kind::Next);
        match room.kind {
            Kind::Home => {}
            Kind::Next => home.version.note_next(record.hash),
            Kind::Stash(_) | Kind::Chain => {
                let listed = match room.kind {
                    Kind::Stash(i) => {
                        let next = &segment.normal[Self::next_of(Self::home_of(record.hash))];
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
