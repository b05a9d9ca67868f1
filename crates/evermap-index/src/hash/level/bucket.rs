//! One bucket: its lock, finding, writing and erasing records.

use evermap_pm::Medium;

use super::layout::{Bucket, LINE_SLOTS, Meta, Slot, Version};
use super::levels::Site;
use crate::{Key, fingerprint};

/// Where the two hash functions send a key, and the byte that slots are told apart by.
///
/// The functions are multiplications of the key's one hash, so that keys which share part of that hash still part
/// ways. Of each product the top bits count: so the keys of one bucket have two first buckets in the next level, and
/// two second ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) fingerprint: u8,
}

impl Spot {
    #[inline(always)]
    pub(super) fn of(hash: u64) -> Self {
        let first = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let second = hash.rotate_left(32).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        Spot { first, second, fingerprint: ((first ^ second) >> 16) as u8 }
    }
}

/// A key on its way through the index.
pub(super) struct Probe<'a, K: Key> {
    pub(super) key: K::Ref<'a>,
    pub(super) slot_key: u64,
    pub(super) spot: Spot,
}

impl<'a, K: Key> Probe<'a, K> {
    #[inline(always)]
    pub(super) fn new(key: K::Ref<'a>, seed: u64) -> Self {
        let hash = K::hash(key, seed);
        Probe { key, slot_key: K::slot_key(key, hash), spot: Spot::of(hash) }
    }
}

/// A record on its way into a slot, or out of one.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) slot_key: u64,
    pub(super) word: u64,
    pub(super) spot: Spot,
}

/// A bucket that the calling thread has locked. Its version word changes in here until it is released.
pub(super) struct Held<'a> {
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

/// The locks of one operation. Released together; until then nobody may wait for a further one.
#[must_use = "buckets stay locked until they are released"]
pub(super) struct Locks<'a> {
    few: [Option<Held<'a>>; Locks::FEW],
    /// Those beyond; emptying a bucket takes up to 13.
    more: Vec<Held<'a>>,
    /// Whether anything was changed that readers must notice.
    pub(super) changed: bool,
    /// A bucket that another thread holds, for which something possible was left out.
    pub(super) passed_over: Option<Site<'a>>,
}

impl<'a> Locks<'a> {
    /// As many as an ordinary operation takes.
    const FEW: usize = 4;

    #[inline(always)]
    pub(super) fn new() -> Self {
        Locks {
            few: [const { None }; Locks::FEW],
            more: Vec::new(),
            changed: false,
            passed_over: None,
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, held: Held<'a>) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(held),
            None => self.more.push(held),
        }
    }

    /// The lock of this bucket, if it is among them.
    #[inline(always)]
    pub(super) fn of(&mut self, bucket: &Bucket) -> Option<&mut Held<'a>> {
        let all = self.few.iter_mut().flatten().chain(&mut self.more);
        all.into_iter().find(|held| std::ptr::eq(held.bucket, bucket))
    }

    /// Releases all buckets, with new versions if anything was changed.
    #[inline(always)]
    pub(super) fn release<M: Medium>(self, m: &M) {
        for held in self.few.into_iter().flatten().chain(self.more) {
            let version =
                if self.changed { held.version.advanced() } else { held.version.released() };
            m.store_transient(&held.bucket.version, version.0);
        }
    }
}

#[inline(always)]
pub(super) fn meta_of<M: Medium>(m: &M, bucket: &Bucket) -> Meta {
    Meta(m.load(&bucket.meta))
}

#[inline(always)]
pub(super) fn slot_of(bucket: &Bucket, slot: usize) -> &Slot {
    match slot.checked_sub(LINE_SLOTS) {
        None => &bucket.near[slot],
        Some(far) => &bucket.far[far],
    }
}

/// The record with the probe's key, as slot and word.
///
/// Without the lock of the key's home this is a guess, to be validated by that bucket's version.
#[inline(always)]
pub(super) fn find<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    probe: &Probe<'_, K>,
) -> Option<(usize, u64)> {
    let meta = meta_of(m, bucket);
    let mut candidates = matching_slots(meta, probe.spot.fingerprint);
    while candidates != 0 {
        let slot = candidates.trailing_zeros() as usize;
        let cells = slot_of(bucket, slot);
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

/// Slots that hold a record with this fingerprint.
#[inline(always)]
pub(super) fn matching_slots(meta: Meta, fingerprint: u8) -> u32 {
    fingerprint::matches([meta.fingerprints(), 0], fingerprint) & meta.taken()
}

/// Writes a record into a slot of a locked bucket, in place of what was there; durable at the next fence.
///
/// All of it is in one cache line, which persists in program order: at every moment a crash finds the old record,
/// none, or the new one.
#[inline(always)]
pub(super) fn write<M: Medium>(m: &M, bucket: &Bucket, slot: usize, record: Record) {
    let (meta, cells) = (meta_of(m, bucket), slot_of(bucket, slot));
    let (cleared, set) = (meta.without(slot), meta.with(slot, record.spot.fingerprint));
    if slot < LINE_SLOTS {
        if meta != cleared {
            m.store(&bucket.meta, cleared.0);
        }
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
        // The commit.
        m.store(&bucket.meta, set.0);
        m.flush(&bucket.meta);
    } else {
        let (tokens, token) = (m.load_relaxed(&bucket.tokens), token_of(slot));
        if tokens & token != 0 {
            m.store(&bucket.tokens, tokens & !token);
        }
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
        // The commit.
        m.store(&bucket.tokens, tokens | token);
        m.flush(&bucket.tokens);
        m.store_transient(&bucket.meta, set.0);
    }
}

/// Takes the record out of a slot of a locked bucket; durable at the next fence, and not to be reused before.
#[inline(always)]
pub(super) fn erase<M: Medium>(m: &M, bucket: &Bucket, slot: usize) {
    let cleared = meta_of(m, bucket).without(slot);
    if slot < LINE_SLOTS {
        m.store(&bucket.meta, cleared.0);
        m.flush(&bucket.meta);
    } else {
        m.store(&bucket.tokens, m.load_relaxed(&bucket.tokens) & !token_of(slot));
        m.flush(&bucket.tokens);
        m.store_transient(&bucket.meta, cleared.0);
    }
}

/// Binds the key in a slot to another word, durably: one store, so that it is atomic.
#[inline(always)]
pub(super) fn overwrite<M: Medium>(m: &M, bucket: &Bucket, slot: usize, word: u64) {
    let cell = &slot_of(bucket, slot).word;
    m.store(cell, word);
    m.persist(cell);
}

/// The token of a slot in the second line.
#[inline(always)]
fn token_of(slot: usize) -> u64 {
    1 << (slot - LINE_SLOTS)
}

/// What the tokens that persist say, recovered or not.
#[inline(always)]
pub(super) fn persistent_tokens<M: Medium>(m: &M, bucket: &Bucket) -> u32 {
    const LINE: u64 = (1 << LINE_SLOTS) - 1;
    let (near, far) = (m.load(&bucket.meta) & LINE, m.load(&bucket.tokens) & LINE);
    (near | far << LINE_SLOTS) as u32
}
