//! One bucket: its lock, finding, placing and erasing records.

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::layout::{Bucket, HEADER_LINE_SLOTS, Meta, Version};
use crate::hash::probe::Probe;
use crate::hash::segmented::apply::HeldBucket;
use crate::{Key, fingerprint};

/// The hash byte that slots are told apart by.
#[inline(always)]
pub(super) fn fingerprint_of(hash: u64) -> u8 {
    hash as u8
}

/// A record on its way into a slot.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(super) hash: u64,
    pub(super) slot_key: u64,
    pub(super) word: u64,
}

/// A bucket that the calling thread has locked. Its version word changes in here until it is
/// released.
#[must_use = "a bucket stays locked until it is released"]
pub(crate) struct Held<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) version: Version,
}

/// What an attempt to lock a bucket found.
pub(super) enum Locking<'a> {
    Held(Held<'a>),
    /// Another thread holds it.
    Busy,
    /// It was not recovered since the region was opened.
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

/// Which of a bucket's records a search is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Belonging {
    /// Those that belong to it.
    Native,
    /// Those that belong to the bucket before it.
    Member,
}

/// The record with the probe's key, as slot and word.
///
/// Without the lock this is a guess, to be validated by the home bucket's version.
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

/// Slots with this fingerprint, allocated or not.
#[inline(always)]
pub(super) fn matching_slots<M: Medium>(m: &M, bucket: &Bucket, fingerprint: u8) -> u32 {
    let words = [m.load_relaxed(&bucket.fingerprints[0]), m.load_relaxed(&bucket.fingerprints[1])];
    fingerprint::matches(words, fingerprint) & 0x3fff
}

#[inline(always)]
pub(super) fn meta_of<M: Medium>(m: &M, bucket: &Bucket) -> Meta {
    Meta(m.load(&bucket.meta))
}

/// The lowest free slot of the first `slots`.
#[inline(always)]
pub(super) fn free_slot(meta: Meta, slots: usize) -> Option<usize> {
    let slot = meta.allocated().trailing_ones() as usize;
    (slot < slots).then_some(slot)
}

/// Puts a record into a free slot of a locked bucket, durably.
///
/// One flush and fence where the slot shares the header's line, which persists in program order;
/// two elsewhere.
#[inline(always)]
pub(super) fn place<M: Medium>(m: &M, bucket: &Bucket, slot: usize, record: Record, member: bool) {
    let cells = &bucket.slots[slot];
    m.store(&cells.word, record.word);
    m.store(&cells.key, record.slot_key);
    if slot >= HEADER_LINE_SLOTS {
        // The record must be durable before the header that declares it valid.
        m.persist(cells);
    }
    set_fingerprint(m, bucket, slot, fingerprint_of(record.hash));
    // The commit.
    m.store(&bucket.meta, meta_of(m, bucket).with(slot, member).0);
    m.persist(&bucket.meta);
}

/// Binds the key in a slot of a locked bucket to another word, durably: one store, so that it is
/// atomic.
#[inline(always)]
pub(super) fn overwrite<M: Medium>(m: &M, bucket: &Bucket, slot: usize, word: u64) {
    let cell = &bucket.slots[slot].word;
    m.store(cell, word);
    m.persist(cell);
}

/// Takes the record out of a slot of a locked bucket, durably. The slot may be reused afterwards.
#[inline(always)]
pub(super) fn erase<M: Medium>(m: &M, bucket: &Bucket, slot: usize) {
    m.note(Note::Harmless(
        "torn, one of the slot's two bits goes before the other: recovery goes by the first alone",
    ));
    m.store(&bucket.meta, meta_of(m, bucket).without(slot).0);
    // Durable before anyone writes into the slot: otherwise a crash could find the slot valid,
    // under its old fingerprint, with the new contents.
    if !m.mutant("DA-11") {
        m.persist(&bucket.meta);
    }
}

/// Overwrites the fingerprint of a slot.
#[inline(always)]
pub(super) fn set_fingerprint<M: Medium>(m: &M, bucket: &Bucket, slot: usize, fingerprint: u8) {
    let cell = &bucket.fingerprints[slot / 8];
    m.store(cell, with_byte(m.load_relaxed(cell), slot % 8, fingerprint));
}

/// `word` with byte `index` replaced.
#[inline(always)]
pub(super) fn with_byte(word: u64, index: usize, byte: u8) -> u64 {
    word & !(0xff << (index * 8)) | u64::from(byte) << (index * 8)
}

/// Overflow fingerprint `i`: 0 and 1 are behind the slots' fingerprints, 2 and 3 at the top of
/// `meta`.
pub(super) fn overflow_fingerprint(fingerprints: [u64; 2], meta: Meta, i: usize) -> u8 {
    match i {
        0 | 1 => (fingerprints[1] >> (48 + 8 * i)) as u8,
        _ => (meta.0 >> (48 + 8 * (i - 2))) as u8,
    }
}

/// Announces a record in stash bucket `place` by a free overflow fingerprint of a locked bucket, if
/// there is one.
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
    // Only the parts that are rebuilt change, so this need not persist.
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

/// Undoes one [`list`]; `false` if no entry announces such a record.
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
