//! A single bucket: its lock, and finding, writing and erasing records.

use evermap_index::{Key, fingerprint};
use evermap_pm::{Medium, PmU64};

use super::layout::{Bucket, LINE_SLOTS, Meta, Slot, Version};
use super::levels::Site;
use super::stripe;

/// The two hashes of a key that choose its buckets, and its fingerprint.
///
/// The hashes are products of the key's one hash, so that keys that share part of that hash are
/// still separated. The top bits of each product count, so the keys of one bucket have two first
/// buckets in the next level, and two second ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyHashes {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) fingerprint: u8,
}

impl KeyHashes {
    #[inline(always)]
    pub(super) fn of(hash: u64) -> Self {
        let first = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let second = hash.rotate_left(32).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        KeyHashes { first, second, fingerprint: ((first ^ second) >> 16) as u8 }
    }
}

/// A key with its hashes, as operations pass it on.
pub(super) struct Probe<'a, K: Key> {
    pub(super) key: K::Ref<'a>,
    pub(super) slot_key: u64,
    pub(super) hashes: KeyHashes,
}

impl<'a, K: Key> Probe<'a, K> {
    #[inline(always)]
    pub(super) fn new(key: K::Ref<'a>, seed: u64) -> Self {
        let hash = K::hash(key, seed);
        Probe { key, slot_key: K::slot_key(key, hash), hashes: KeyHashes::of(hash) }
    }
}

/// The contents of a slot.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) slot_key: u64,
    pub(super) word: u64,
    pub(super) hashes: KeyHashes,
}

/// A bucket that the calling thread has locked. Its new version word is kept here until the
/// release.
pub(super) struct LockedBucket<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) version: Version,
}

/// The result of an attempt to lock a bucket.
pub(super) enum Taking<'a> {
    Locked(LockedBucket<'a>),
    /// Another thread holds the lock.
    Busy,
    /// The bucket has not been recovered since the region was opened.
    Stale,
}

#[inline(always)]
pub(super) fn try_lock<'a, M: Medium>(m: &M, bucket: &'a Bucket, generation: u64) -> Taking<'a> {
    let version = Version(m.load(&bucket.version));
    if version.is_readable(generation)
        && m.cas_transient(&bucket.version, version.0, version.locked().0).is_ok()
    {
        return Taking::Locked(LockedBucket { bucket, version });
    }
    if version.is_of(generation) { Taking::Busy } else { Taking::Stale }
}

/// The locks of one operation. They are released together; until then the operation must not wait
/// for another lock.
#[must_use = "buckets stay locked until they are released"]
pub(super) struct Locks<'a> {
    few: [Option<LockedBucket<'a>>; Locks::FEW],
    /// Further locks: emptying a bucket takes up to 13.
    more: Vec<LockedBucket<'a>>,
    /// The locks of stripes, if lookups share these.
    stripes: Vec<&'a PmU64>,
    /// `true` if anything was changed that readers must notice.
    pub(super) changed: bool,
    /// A bucket that another thread holds, because of which a possible slot was skipped.
    pub(super) skipped: Option<Site<'a>>,
}

impl<'a> Locks<'a> {
    /// The number of locks that an ordinary operation takes.
    const FEW: usize = 4;

    #[inline(always)]
    pub(super) fn new() -> Self {
        Locks {
            few: [const { None }; Locks::FEW],
            more: Vec::new(),
            stripes: Vec::new(),
            changed: false,
            skipped: None,
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, locked: LockedBucket<'a>) {
        match self.few.iter_mut().find(|lock| lock.is_none()) {
            Some(lock) => *lock = Some(locked),
            None => self.more.push(locked),
        }
    }

    /// Returns the lock of this bucket, or `None` if it is not among these locks.
    #[inline(always)]
    pub(super) fn of(&mut self, bucket: &Bucket) -> Option<&mut LockedBucket<'a>> {
        let all = self.few.iter_mut().flatten().chain(&mut self.more);
        all.into_iter().find(|locked| std::ptr::eq(locked.bucket, bucket))
    }

    /// Adds the lock of a stripe.
    pub(super) fn add_stripe(&mut self, cell: &'a PmU64) {
        self.stripes.push(cell);
    }

    /// Returns `true` if the lock of this stripe is among these locks.
    pub(super) fn has_stripe(&self, cell: &PmU64) -> bool {
        self.stripes.iter().any(|held| std::ptr::eq(*held, cell))
    }

    /// Releases all buckets, with new versions if anything was changed.
    #[inline(always)]
    pub(super) fn release<M: Medium>(self, m: &M) {
        for locked in self.few.into_iter().flatten().chain(self.more) {
            let version =
                if self.changed { locked.version.advanced() } else { locked.version.released() };
            m.store_transient(&locked.bucket.version, version.0);
        }
        self.stripes.into_iter().for_each(|cell| stripe::unlock(m, cell));
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

/// Returns the slot and the word of the record with the probe's key, or `None` if it is not in this
/// bucket.
///
/// Without the lock of the key's home, the result must be validated by the version of that bucket.
#[inline(always)]
pub(super) fn find<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    probe: &Probe<'_, K>,
) -> Option<(usize, u64)> {
    let meta = meta_of(m, bucket);
    let mut candidates = matching_slots(meta, probe.hashes.fingerprint);
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

/// Returns the slots that hold a record with this fingerprint.
#[inline(always)]
pub(super) fn matching_slots(meta: Meta, fingerprint: u8) -> u32 {
    fingerprint::matches([meta.fingerprints(), 0], fingerprint) & meta.taken()
}

/// Writes a record to a slot of a locked bucket, replacing what was there. Durable at the next
/// fence.
///
/// All of it is in one cache line, which persists in program order: a crash leaves the old record,
/// no record, or the new one.
#[inline(always)]
pub(super) fn write<M: Medium>(m: &M, bucket: &Bucket, slot: usize, record: Record) {
    let (meta, cells) = (meta_of(m, bucket), slot_of(bucket, slot));
    let (cleared, set) = (meta.without(slot), meta.with(slot, record.hashes.fingerprint));
    if slot < LINE_SLOTS {
        if meta != cleared {
            m.store(&bucket.meta, cleared.0);
        }
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
        // Commits.
        m.store(&bucket.meta, set.0);
        m.flush(&bucket.meta);
    } else {
        let (tokens, token) = (m.load_relaxed(&bucket.tokens), token_of(slot));
        if tokens & token != 0 {
            m.store(&bucket.tokens, tokens & !token);
        }
        m.store(&cells.word, record.word);
        m.store(&cells.key, record.slot_key);
        // Commits.
        m.store(&bucket.tokens, tokens | token);
        m.flush(&bucket.tokens);
        m.store_transient(&bucket.meta, set.0);
    }
}

/// Removes the record from a slot of a locked bucket. Durable at the next fence; the slot must not
/// be reused before.
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

/// Replaces the word in a slot durably, by a single store, so that it is atomic.
#[inline(always)]
pub(super) fn overwrite<M: Medium>(m: &M, bucket: &Bucket, slot: usize, word: u64) {
    let cell = &slot_of(bucket, slot).word;
    m.store(cell, word);
    m.persist(cell);
}

/// Returns the token of a slot in the second line.
#[inline(always)]
fn token_of(slot: usize) -> u64 {
    1 << (slot - LINE_SLOTS)
}

/// Returns the tokens that persist, whether or not the bucket has been recovered.
#[inline(always)]
pub(super) fn persistent_tokens<M: Medium>(m: &M, bucket: &Bucket) -> u32 {
    const LINE: u64 = (1 << LINE_SLOTS) - 1;
    let (near, far) = (m.load(&bucket.meta) & LINE, m.load(&bucket.tokens) & LINE);
    (near | far << LINE_SLOTS) as u32
}
