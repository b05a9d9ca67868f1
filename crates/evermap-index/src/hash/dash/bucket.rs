//! One bucket: its lock; finding, inserting and removing records. For implementers of a
//! [`SegmentMap`](crate::hash::segmented::map::SegmentMap).

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::layout::{Bucket, Meta, Version};
use crate::hash::mistakes;
use crate::hash::probe::Probe;
use crate::hash::segmented::apply::HeldBucket;
use crate::{Key, fingerprint};

/// Returns the fingerprint of a hash: one of its bytes.
#[inline(always)]
pub(super) fn fingerprint_of(hash: u64) -> u8 {
    hash as u8
}

/// A record, with its hash.
#[derive(Clone, Copy)]
pub struct Record {
    /// The hash of the key.
    pub hash: u64,
    /// The slot key.
    pub slot_key: u64,
    /// The word.
    pub word: u64,
}

/// A bucket that the calling thread has locked. Changes of its version word are collected here and
/// stored when it is released.
#[must_use = "a bucket stays locked until it is released"]
pub struct Held<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) version: Version,
}

/// The outcome of an attempt to lock a bucket.
pub(super) enum Locking<'a> {
    Held(Held<'a>),
    /// Another thread has locked the bucket.
    Busy,
    /// The bucket was not recovered since the region was opened.
    Stale,
}

#[inline(always)]
pub(super) fn try_lock<'a, M: Medium>(m: &M, bucket: &'a Bucket, generation: u64) -> Locking<'a> {
    let version = Version(m.load(&bucket.version));
    if version.is_readable(generation)
        && m.cas_transient(&bucket.version, version.0, version.locked().0).is_ok()
    {
        return Locking::Held(Held { bucket, version });
    }
    if version.is_of(generation) { Locking::Busy } else { Locking::Stale }
}

impl HeldBucket for Held<'_> {
    #[inline(always)]
    fn release_changed<M: Medium>(self, m: &M) {
        m.store_transient(&self.bucket.version, self.version.advanced().0);
    }

    #[inline(always)]
    fn release<M: Medium>(self, m: &M) {
        m.store_transient(&self.bucket.version, self.version.released().0);
    }
}

/// The records of a bucket among which a search looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Belonging {
    /// Those that belong to this bucket.
    Native,
    /// Those that belong to the bucket before it.
    Member,
}

/// Finds the record with the probe's key. Returns its slot and its word.
///
/// If the caller does not hold the lock, it must validate the result by the home bucket's version.
#[inline(always)]
pub(super) fn find<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    probe: &Probe<'_, K>,
    belonging: Belonging,
) -> Option<(usize, u64)> {
    let meta = Meta(m.load_relaxed(&bucket.meta));
    let slots = match belonging {
        Belonging::Native => meta.natives(),
        Belonging::Member => meta.allocated() & meta.members(),
    };
    let mut candidates = slots;
    if !K::WITHOUT.fingerprints {
        candidates &= matching_slots(m, bucket, fingerprint_of(probe.hash));
    }
    while candidates != 0 {
        let slot = candidates.trailing_zeros() as usize;
        let cells = &bucket.slots[slot];
        if m.load_relaxed(&cells.key) == probe.slot_key {
            let word = m.load_relaxed(&cells.word);
            if K::matches(m, word, probe.key) {
                return Some((slot, word));
            }
        }
        candidates &= candidates - 1;
    }
    None
}

/// Returns the slots with this fingerprint, allocated or not.
#[inline(always)]
pub(super) fn matching_slots<M: Medium>(m: &M, bucket: &Bucket, fingerprint: u8) -> u32 {
    let words = [m.load_relaxed(&bucket.fingerprints[0]), m.load_relaxed(&bucket.fingerprints[1])];
    fingerprint::matches(words, fingerprint) & 0x3fff
}

/// Returns the [`Meta`] word of a bucket.
#[inline(always)]
pub fn meta_of<M: Medium>(m: &M, bucket: &Bucket) -> Meta {
    Meta(m.load(&bucket.meta))
}

/// Returns the lowest free slot among the first `slots`.
#[inline(always)]
pub(super) fn free_slot(meta: Meta, slots: usize) -> Option<usize> {
    let slot = meta.allocated().trailing_ones() as usize;
    (slot < slots).then_some(slot)
}

/// Stores which record a slot of a locked bucket holds: the commit of an insertion, once the
/// header is durable.
#[inline]
pub(super) fn allocate<M: Medium>(
    m: &M,
    bucket: &Bucket,
    slot: usize,
    fingerprint: u8,
    member: bool,
) {
    // Before the slot is marked as allocated, in the same line: a durable mark has its fingerprint.
    set_fingerprint(m, bucket, slot, fingerprint);
    m.store(&bucket.meta, meta_of(m, bucket).with(slot, member).0);
}

/// Returns the fingerprint that the header has for a slot, allocated or not.
#[inline]
pub(super) fn fingerprint_in<M: Medium>(m: &M, bucket: &Bucket, slot: usize) -> u8 {
    (m.load_relaxed(&bucket.fingerprints[slot / 8]) >> (slot % 8 * 8)) as u8
}

/// Replaces the word in a slot of a locked bucket, durably. It is a single store, so it is atomic.
#[inline(always)]
pub(super) fn overwrite<M: Medium>(m: &M, bucket: &Bucket, slot: usize, word: u64) {
    let cell = &bucket.slots[slot].word;
    m.store(cell, word);
    m.persist(cell);
}

/// Removes the record in a slot of a locked bucket. Durable once the header is flushed.
#[inline]
pub(super) fn vacate<M: Medium>(m: &M, bucket: &Bucket, slot: usize) {
    m.note(Note::Harmless(
        "torn, one of the slot's two bits is cleared first: recovery reads only the allocated bit",
    ));
    m.store(&bucket.meta, meta_of(m, bucket).without(slot).0);
}

/// Removes the record in a slot of a locked bucket, durably. The slot may be reused afterwards.
#[inline(always)]
pub(super) fn erase<M: Medium>(m: &M, bucket: &Bucket, slot: usize) {
    vacate(m, bucket, slot);
    // Durable before the slot is reused: otherwise it could, after a crash, be allocated and
    // contain a new record that was not committed.
    if !m.mutant(mistakes::REMOVAL_UNFLUSHED) {
        m.persist(&bucket.meta);
    }
}

/// Overwrites the fingerprint of a slot.
#[inline(always)]
pub(super) fn set_fingerprint<M: Medium>(m: &M, bucket: &Bucket, slot: usize, fingerprint: u8) {
    let cell = &bucket.fingerprints[slot / 8];
    m.store(cell, with_byte(m.load_relaxed(cell), slot % 8, fingerprint));
}

/// Returns `word` with byte `index` replaced.
#[inline(always)]
pub(super) fn with_byte(word: u64, index: usize, byte: u8) -> u64 {
    word & !(0xff << (index * 8)) | u64::from(byte) << (index * 8)
}

/// Returns overflow fingerprint `i`: 0 and 1 follow the slots' fingerprints, 2 and 3 are at the top
/// of `meta`.
pub(super) fn overflow_fingerprint(fingerprints: [u64; 2], meta: Meta, i: usize) -> u8 {
    match i {
        0 | 1 => (fingerprints[1] >> (48 + 8 * i)) as u8,
        _ => (meta.0 >> (48 + 8 * (i - 2))) as u8,
    }
}

/// Announces a record in stash bucket `place` by a free overflow fingerprint of a locked bucket.
/// Returns `false` if none is free.
pub(super) fn list<M: Medium>(
    m: &M,
    bucket: &Bucket,
    hash: u64,
    place: usize,
    member: bool,
) -> bool {
    let meta = meta_of(m, bucket);
    let Some(i) = (0..Meta::LISTED).find(|&i| !meta.is_listed(i)) else { return false };
    let mut meta = meta.list(i, place, member);
    // Recovery rebuilds the parts that change, so they need not be persisted.
    if i < 2 {
        let cell = &bucket.fingerprints[1];
        let word = with_byte(m.load_relaxed(cell), 6 + i, fingerprint_of(hash));
        m.store_transient(cell, word);
    } else {
        meta = Meta(with_byte(meta.0, 6 + i - 2, fingerprint_of(hash)));
    }
    m.store_transient(&bucket.meta, meta.0);
    true
}

/// Undoes one [`list`]. Returns `false` if no overflow fingerprint announces such a record.
pub(super) fn unlist<M: Medium>(
    m: &M,
    bucket: &Bucket,
    hash: u64,
    place: usize,
    member: bool,
) -> bool {
    let meta = meta_of(m, bucket);
    let fingerprints =
        [m.load_relaxed(&bucket.fingerprints[0]), m.load_relaxed(&bucket.fingerprints[1])];
    let found = (0..Meta::LISTED).find(|&i| {
        meta.is_listed(i)
            && meta.listed_member(i) == member
            && meta.listed_where(i) == place
            && overflow_fingerprint(fingerprints, meta, i) == fingerprint_of(hash)
    });
    let Some(i) = found else { return false };
    m.store_transient(&bucket.meta, meta.unlist(i).0);
    true
}

/// Returns whether any overflow fingerprint announces a record of this bucket (`member` false) or
/// the one before it.
pub(super) fn lists_any(meta: Meta, member: bool) -> bool {
    (0..Meta::LISTED).any(|i| meta.is_listed(i) && meta.listed_member(i) == member)
}
