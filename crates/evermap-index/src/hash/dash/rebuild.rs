//! Writing whole segments: a new one from records, or an existing one from the contents of its
//! slots.
//!
//! No other thread can access the segment meanwhile. The bucket headers are computed in ordinary
//! memory and then stored.

use std::marker::PhantomData;

use evermap_pm::medium::Note;
use evermap_pm::{Medium, PmU64, Result};

use super::Dash;
use super::bucket::{Record, fingerprint_of, free_slot, meta_of, set_fingerprint, with_byte};
use super::layout::{
    BUCKET_BYTES, BUCKETS_MAX, Bucket, Buckets, Geometry, HEADER_LINE_SLOTS, HashPrefix, Header,
    Meta, STASHES_MAX, Version,
};
use super::segment::home_first;
use crate::Key;
use crate::hash::mistakes;
use crate::hash::segmented::map::SegmentMap;
use crate::hash::segmented::{SegmentHeader, SegmentLayout, Segmented, chain};

/// The headers of a segment's buckets, in arrays for the largest segments.
pub struct Headers<G: Geometry> {
    /// The version words of the normal buckets once they are released.
    pub(super) versions: [Version; BUCKETS_MAX],
    normal: [Lines; BUCKETS_MAX],
    stash: [Lines; STASHES_MAX],
    geometry: PhantomData<fn() -> G>,
}

/// The bucket in which a record is stored.
#[derive(Clone, Copy)]
pub(super) enum Site {
    Normal(u8),
    Stash(u8),
    Chain,
}

/// A record and its location.
#[derive(Clone, Copy)]
pub struct Placed {
    /// The record.
    pub record: Record,
    site: Site,
    slot: u8,
}

#[derive(Clone, Copy, Default)]
struct Lines {
    fingerprints: [u64; 2],
    meta: Meta,
}

impl Lines {
    fn put(&mut self, slot: usize, hash: u64, member: bool) {
        let word = &mut self.fingerprints[slot / 8];
        *word = with_byte(*word, slot % 8, fingerprint_of(hash));
        self.meta = self.meta.with(slot, member);
    }

    fn list(&mut self, hash: u64, place: usize, member: bool) -> bool {
        let Some(i) = (0..Meta::LISTED).find(|&i| !self.meta.is_listed(i)) else { return false };
        self.meta = self.meta.list(i, place, member);
        match i {
            0 | 1 => {
                self.fingerprints[1] = with_byte(self.fingerprints[1], 6 + i, fingerprint_of(hash));
            }
            _ => self.meta = Meta(with_byte(self.meta.0, 6 + i - 2, fingerprint_of(hash))),
        }
        true
    }

    fn store<M: Medium>(&self, m: &M, bucket: &Bucket) {
        self.store_in(m, bucket);
        m.flush(&bucket.meta);
    }

    /// Stores the lines without flushing them.
    fn store_in<M: Medium>(&self, m: &M, bucket: &Bucket) {
        store_changed(m, &bucket.fingerprints[0], self.fingerprints[0]);
        store_changed(m, &bucket.fingerprints[1], self.fingerprints[1]);
        store_changed(m, &bucket.meta, self.meta.0);
    }
}

fn store_changed<M: Medium>(m: &M, cell: &PmU64, value: u64) {
    if m.load_relaxed(cell) != value {
        m.note(Note::Harmless(
            "torn, some slots are as before: recovery drops what does not belong, and \
             computes fingerprints again",
        ));
        m.store(cell, value);
    }
}

impl<G: Geometry> Headers<G> {
    fn empty(generation: u64) -> Self {
        Headers {
            versions: [Version::fresh(generation); BUCKETS_MAX],
            normal: [Lines::default(); BUCKETS_MAX],
            stash: [Lines::default(); STASHES_MAX],
            geometry: PhantomData,
        }
    }

    fn native(&mut self, home: usize, slot: usize, hash: u64) {
        self.normal[home].put(slot, hash, false);
    }

    fn member(&mut self, home: usize, slot: usize, hash: u64) {
        self.normal[(home + 1) % G::BUCKETS].put(slot, hash, true);
        self.versions[home].note_next(hash);
    }

    fn stashed(&mut self, home: usize, stash: usize, slot: usize, hash: u64) {
        self.stash[stash].put(slot, hash, false);
        self.announce(home, Some(stash), hash);
    }

    /// Adds the overflow metadata for a record of `home` in stash bucket `place`, or in the chain.
    fn announce(&mut self, home: usize, place: Option<usize>, hash: u64) {
        let listed = place.is_some_and(|place| {
            self.normal[home].list(hash, place, false)
                || self.normal[(home + 1) % G::BUCKETS].list(hash, place, true)
        });
        if !listed {
            self.versions[home].add_unlisted();
        }
        self.versions[home].set_overflowed(true);
    }

    /// Stores and flushes everything but the version words.
    fn store<M: Medium>(&self, m: &M, segment: &G::Segment) {
        self.normal.iter().zip(segment.normal()).for_each(|(lines, bucket)| lines.store(m, bucket));
        self.stash.iter().zip(segment.stash()).for_each(|(lines, bucket)| lines.store(m, bucket));
    }

    /// Stores everything but the version words, without flushing it.
    fn store_in<M: Medium>(&self, m: &M, segment: &G::Segment) {
        let normal = self.normal.iter().zip(segment.normal());
        let stash = self.stash.iter().zip(segment.stash());
        normal.chain(stash).for_each(|(lines, bucket)| lines.store_in(m, bucket));
    }
}

/// A slot for a record that is added to headers.
#[derive(Clone, Copy)]
struct Room {
    site: Site,
    slot: usize,
}

impl Room {
    /// Returns the bucket, which is not in the chain.
    fn bucket_of<G: Geometry>(self, segment: &G::Segment) -> &Bucket {
        match self.site {
            Site::Normal(at) => &segment.normal()[usize::from(at)],
            Site::Stash(i) => &segment.stash()[usize::from(i)],
            Site::Chain => unreachable!("headers have no slots for the chain"),
        }
    }
}

/// Headers that records are added to.
struct Filling<G: Geometry> {
    headers: Headers<G>,
    /// The number of records in each normal bucket.
    counts: [usize; BUCKETS_MAX],
}

impl<G: Geometry> Filling<G> {
    fn of(headers: Headers<G>) -> Self {
        let counts = headers.normal.map(|lines| lines.meta.count());
        Filling { headers, counts }
    }

    /// Chooses a free slot for a record of bucket `home`, and adds the record there. Returns `None`
    /// if only the chain has room.
    fn add(&mut self, home: usize, hash: u64) -> Option<Room> {
        let (next, counts) = ((home + 1) % G::BUCKETS, &mut self.counts);
        let balanced = counts[home] < G::BUCKET_SLOTS
            && (counts[home] <= counts[next] || counts[next] == G::BUCKET_SLOTS);
        if counts[home] < home_first::<G>() || balanced {
            counts[home] += 1;
            let slot = free_slot(self.headers.normal[home].meta, G::BUCKET_SLOTS)?;
            self.headers.native(home, slot, hash);
            return Some(Room { site: Site::Normal(home as u8), slot });
        }
        if counts[next] < G::BUCKET_SLOTS {
            counts[next] += 1;
            let slot = free_slot(self.headers.normal[next].meta, G::BUCKET_SLOTS)?;
            self.headers.member(home, slot, hash);
            return Some(Room { site: Site::Normal(next as u8), slot });
        }
        let stashes = (0..G::STASHES).map(|step| (home + step) % G::STASHES);
        let free =
            |i: usize| free_slot(self.headers.stash[i].meta, G::BUCKET_SLOTS).map(|slot| (i, slot));
        let (i, slot) = stashes.into_iter().find_map(free)?;
        self.headers.stashed(home, i, slot, hash);
        Some(Room { site: Site::Stash(i as u8), slot })
    }
}

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    /// Writes a segment with these records into new space, with every normal bucket locked, and
    /// flushes it without a fence. Without a prefix, the segment is not valid yet. Returns its
    /// headers, for [`unlock_all`](Self::unlock_all).
    ///
    /// # Errors
    /// `NoSpace` if a chain is needed and cannot be allocated; nothing is allocated then.
    pub fn build(
        &self,
        offset: u64,
        prefix: Option<HashPrefix>,
        records: impl Iterator<Item = Record>,
    ) -> Result<Headers<G>> {
        let m = self.medium();
        let segment = self.segment(offset)?;
        let mut filling = Filling::<G>::of(Headers::empty(self.core.generation));
        let mut chained = Vec::new();
        for record in records {
            let home = Self::home_of(record.hash);
            match filling.add(home, record.hash) {
                Some(room) => self.write_slot(room.bucket_of::<G>(segment), room.slot, record),
                None => {
                    filling.headers.announce(home, None, record.hash);
                    chained.push(record);
                }
            }
        }
        let headers = filling.headers;
        let chain = self.build_chain(&chained)?;
        m.store(&segment.header().magic, Header::MAGIC);
        m.store(&segment.header().prefix, prefix.map_or(0, HashPrefix::encode));
        m.store(&segment.header().chain, chain);
        m.store_transient(&segment.header().generation, self.core.generation);
        for (bucket, version) in segment.normal().iter().zip(&headers.versions) {
            m.store_transient(&bucket.version, version.locked().0);
        }
        for bucket in segment.stash() {
            m.store_transient(&bucket.version, Version::fresh(self.core.generation).0);
        }
        headers.store_in(m, segment);
        // With the free slots: what they hold must be durable before they are used, because
        // recovery compares it with the headers.
        m.note(Note::Harmless(
            "late, a prefix that is stored later is in the same line, which is persisted then",
        ));
        m.flush(segment);
        Ok(headers)
    }

    /// Writes a record, without flushing it.
    #[inline]
    fn write_slot(&self, bucket: &Bucket, slot: usize, record: Record) {
        let (m, cells) = (self.medium(), &bucket.slots[slot]);
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
    }

    /// Writes records into the buckets of a new chain and flushes them without a fence. Returns the
    /// offset of the first bucket, or 0 if there are no records.
    fn build_chain(&self, records: &[Record]) -> Result<u64> {
        let (m, pool) = (self.medium(), &self.core.pool);
        let allocate = || pool.allocate_fixed(BUCKET_BYTES);
        chain::build(pool, records, G::BUCKET_SLOTS, allocate, |bucket: &Bucket, records, next| {
            let mut lines = Lines::default();
            for (slot, &record) in records.iter().enumerate() {
                self.write_slot(bucket, slot, record);
                lines.put(slot, record.hash, false);
            }
            m.store(&bucket.version, next);
            lines.store_in(m, bucket);
            m.flush(bucket);
        })
    }

    /// Computes a segment's headers from its slots, without the records that do not have this
    /// prefix, stores them, and flushes them without a fence. The version words are not stored: the
    /// returned headers contain the values to release them with.
    ///
    /// Recovery does no more than this. It relies only on the slots, the persistent bits of `meta`,
    /// and the fingerprints of the slots.
    pub(super) fn rebuild(&self, segment: &G::Segment, prefix: HashPrefix) -> Headers<G> {
        let m = self.medium();
        let mut headers = Headers::empty(self.core.generation);
        for (at, bucket) in segment.normal().iter().enumerate() {
            for (slot, record) in self.whole_records_of(segment, bucket) {
                let home = Self::home_of(record.hash);
                if !prefix.covers(E::rank(record.hash)) {
                    continue;
                }
                if home == at {
                    headers.native(home, slot, record.hash);
                } else if Self::next_of(home) == at && !self.is_copy(segment, home, record) {
                    headers.member(home, slot, record.hash);
                }
            }
        }
        for (i, bucket) in segment.stash().iter().enumerate() {
            for (slot, record) in self.whole_records_of(segment, bucket) {
                let home = Self::home_of(record.hash);
                if !prefix.covers(E::rank(record.hash)) || self.is_copy(segment, home, record) {
                    continue;
                }
                if m.mutant(mistakes::STASH_UNANNOUNCED) {
                    headers.stash[i].put(slot, record.hash, false);
                    continue;
                }
                headers.stashed(home, i, slot, record.hash);
            }
        }
        self.rebuild_chain(segment, prefix, &mut headers);
        headers.store(m, segment);
        headers
    }

    /// The end of a split: stores a segment's headers for the records `staying` without the records
    /// `gone`, and flushes them without a fence. It must be durable already that the segment no
    /// longer holds `gone`.
    ///
    /// Also moves records from the next bucket or the stash into their home bucket, to slots of
    /// `gone`, but not in the paper's form. Such a slot is marked as allocated already, so the copy
    /// survives a crash without a change of the header. Once it is durable, the new headers drop
    /// the original together with `gone`. A crash in between leaves two copies, as during a
    /// displacement.
    pub fn settle(
        &self,
        segment: &G::Segment,
        prefix: HashPrefix,
        staying: &[Placed],
        gone: &[Placed],
    ) -> Headers<G> {
        let m = self.medium();
        let mut headers = Headers::empty(self.core.generation);
        let mut left = [0u32; BUCKETS_MAX];
        let mut copies = Vec::new();
        for gone in gone {
            if let Site::Normal(at) = gone.site {
                left[usize::from(at)] |= 1 << gone.slot;
            }
        }
        // Records in the stash, which come last in the list, are moved first: searching there costs
        // most.
        for &Placed { record, site, slot } in staying.iter().rev() {
            let (hash, home, slot) = (record.hash, Self::home_of(record.hash), usize::from(slot));
            match site {
                Site::Normal(at) if usize::from(at) == home => headers.native(home, slot, hash),
                _ if left[home] != 0 && !G::PAPER => {
                    let free = left[home].trailing_zeros() as usize;
                    left[home] &= left[home] - 1;
                    let bucket = &segment.normal()[home];
                    self.write_slot(bucket, free, record);
                    // Also the fingerprint, so that recovery finds the copy whole.
                    set_fingerprint(m, bucket, free, fingerprint_of(hash));
                    copies.push((bucket, free));
                    headers.native(home, free, hash);
                }
                Site::Normal(_) => headers.member(home, slot, hash),
                Site::Stash(i) => headers.stashed(home, usize::from(i), slot, hash),
                Site::Chain => {}
            }
        }
        for (bucket, slot) in copies {
            m.flush(&bucket.slots[slot]);
            if slot >= HEADER_LINE_SLOTS {
                m.flush(&bucket.meta);
            }
        }
        // The copies must be durable before a header drops an original.
        m.fence();
        self.rebuild_chain(segment, prefix, &mut headers);
        headers.store(m, segment);
        headers
    }

    /// A part of a merge: adds records to a locked segment, and flushes it without a fence. From
    /// then on it has this prefix, which the caller stores. Returns its headers, for
    /// [`unlock_all`](Self::unlock_all). Returns `None`, with nothing changed, if only the chain
    /// has room for some of the records.
    ///
    /// As long as the prefix of the segment does not cover these records, or recovery finds that it
    /// must not, a crash undoes the addition: recovery drops them.
    pub fn absorb(
        &self,
        segment: &G::Segment,
        prefix: HashPrefix,
        records: &[Record],
    ) -> Option<Headers<G>> {
        let mut headers = Headers::empty(self.core.generation);
        self.for_each_placed(segment, |Placed { record, site, slot }| {
            let (hash, home, slot) = (record.hash, Self::home_of(record.hash), usize::from(slot));
            match site {
                Site::Normal(at) if usize::from(at) == home => headers.native(home, slot, hash),
                Site::Normal(_) => headers.member(home, slot, hash),
                Site::Stash(i) => headers.stashed(home, usize::from(i), slot, hash),
                Site::Chain => {}
            }
        });
        let mut filling = Filling::of(headers);
        let rooms: Option<Vec<Room>> = records
            .iter()
            .map(|record| filling.add(Self::home_of(record.hash), record.hash))
            .collect();
        for (room, &record) in rooms?.into_iter().zip(records) {
            let bucket = room.bucket_of::<G>(segment);
            self.write_slot(bucket, room.slot, record);
            self.medium().flush(&bucket.slots[room.slot]);
        }
        // The slots may contain records that were removed. They must be durable before a header
        // marks them as allocated.
        self.medium().fence();
        self.rebuild_chain(segment, prefix, &mut filling.headers);
        filling.headers.store(self.medium(), segment);
        Some(filling.headers)
    }

    /// Calls `each` with every record of a segment that the caller has locked, in this order: the
    /// normal buckets, the stash, the chain.
    #[inline(always)]
    pub(super) fn for_each_placed(&self, segment: &G::Segment, mut each: impl FnMut(Placed)) {
        let mut visit = |site, bucket| {
            for (slot, record) in self.records_of(bucket) {
                each(Placed { record, site, slot: slot as u8 });
            }
        };
        for (at, bucket) in segment.normal().iter().enumerate() {
            visit(Site::Normal(at as u8), bucket);
        }
        for (i, bucket) in segment.stash().iter().enumerate() {
            visit(Site::Stash(i as u8), bucket);
        }
        chain::links(self.medium(), &segment.header().chain)
            .for_each(|bucket| visit(Site::Chain, bucket));
    }

    /// Returns every record of a segment that the caller has locked.
    pub fn all_records(&self, segment: &G::Segment) -> Vec<Record> {
        let mut records = Vec::with_capacity(Self::SLOTS);
        self.for_each_placed(segment, |placed| records.push(placed.record));
        records
    }

    /// Returns the records of a segment that the caller has locked: those that stay in its lower
    /// half, and those that belong to `upper`.
    pub fn halves_of(&self, segment: &G::Segment, upper: HashPrefix) -> [Vec<Placed>; 2] {
        // Enough capacity for all records of a segment without a chain.
        let [mut staying, mut moving] = [0, 1].map(|_| Vec::with_capacity(Self::SLOTS));
        self.for_each_placed(segment, |placed: Placed| {
            let moves = upper.covers(E::rank(placed.record.hash));
            let half = if moves { &mut moving } else { &mut staying };
            half.push(placed);
        });
        [staying, moving]
    }

    /// Returns the number of records in a segment without those in the chain; approximate if the
    /// segment is not locked.
    pub fn count_records(&self, segment: &G::Segment) -> usize {
        let buckets = segment.normal().iter().chain(segment.stash());
        buckets.map(|bucket| meta_of(self.medium(), bucket).count()).sum()
    }

    /// Returns the records of a bucket, with their slots.
    #[inline(always)]
    pub(super) fn records_of<'a>(
        &'a self,
        bucket: &'a Bucket,
    ) -> impl Iterator<Item = (usize, Record)> + 'a {
        let mut slots = meta_of(self.medium(), bucket).allocated() & ((1 << G::BUCKET_SLOTS) - 1);
        std::iter::from_fn(move || {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots.checked_sub(1)?;
            Some((slot, self.record_in(bucket, slot)))
        })
    }

    /// Returns the records of a bucket that are [whole](Self::is_whole), with their slots: all of
    /// them, if an [earlier](Header::EARLIER) version wrote the segment.
    fn whole_records_of<'a>(
        &'a self,
        segment: &'a G::Segment,
        bucket: &'a Bucket,
    ) -> impl Iterator<Item = (usize, Record)> + 'a {
        let earlier = self.medium().load(&segment.header().magic) == Header::EARLIER;
        self.records_of(bucket)
            .filter(move |&(slot, record)| earlier || self.is_whole(bucket, slot, record))
    }

    /// Returns whether a record that is not in its home bucket has a copy there: a crash
    /// interrupted a displacement, or [`settle`](Self::settle). The two are identical, since no
    /// thread could change the record meanwhile. Recovery keeps the one in the home bucket.
    fn is_copy(&self, segment: &G::Segment, home: usize, record: Record) -> bool {
        if self.medium().mutant(mistakes::BOTH_COPIES_KEPT) {
            return false;
        }
        let is_copy = self.whole_records_of(segment, &segment.normal()[home]).any(|(_, other)| {
            other.slot_key == record.slot_key
                && (other.word == record.word || !K::WORDS_ARE_RECORDS)
        });
        if is_copy {
            self.medium().note(Note::Scope("copy dropped"));
        }
        is_copy
    }

    /// Does for the chain what [`rebuild`](Self::rebuild) does for the buckets. Ends the chain at a
    /// word that refers to no bucket, or to an earlier one of the chain.
    fn rebuild_chain(&self, segment: &G::Segment, prefix: HashPrefix, headers: &mut Headers<G>) {
        let m = self.medium();
        chain::rebuild(m, &segment.header().chain, |bucket: &Bucket| {
            let mut lines = Lines::default();
            for (slot, record) in self.whole_records_of(segment, bucket) {
                let home = Self::home_of(record.hash);
                if prefix.covers(E::rank(record.hash)) && !self.is_copy(segment, home, record) {
                    lines.put(slot, record.hash, false);
                    headers.announce(home, None, record.hash);
                }
            }
            lines.store(m, bucket);
        });
    }

    /// Releases every normal bucket of a segment that the caller has locked, with the version words
    /// of its new headers.
    pub fn unlock_all(&self, segment: &G::Segment, headers: &Headers<G>) {
        let m = self.medium();
        for (bucket, version) in segment.normal().iter().zip(&headers.versions) {
            // The version continues from its previous value, so that concurrent readers notice the
            // change.
            let before = Version(m.load(&bucket.version)).advanced();
            m.store_transient(&bucket.version, version.following(before).0);
        }
    }
}
