//! A single bucket: what readers see of it, its lock, and changes of its pairs.
//!
//! Two words say which slots hold pairs. `link` is what recovery follows, and is changed first.
//! `control` is what readers follow, and is updated once the change is durable. So no crash takes
//! back what a reader has found or not found, and no reader waits for a flush, with one exception:
//! see [`LockedChain::replace`].

use std::sync::atomic::{Ordering, fence};

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::layout::{Bucket, Control, Link, PAIRS, Pair, SlotMask, free_slot};
use crate::Key;
use crate::hash::probe::Probe;
use crate::recipe::{self, Preparation};

/// A pair as it is stored in a slot.
#[derive(Clone, Copy)]
pub(super) struct StoredPair {
    pub(super) slot_key: u64,
    pub(super) word: u64,
}

/// The result of reading a bucket without its lock.
pub(super) enum View {
    Found(u64),
    /// The key is not in this bucket. The link leads to the rest of the chain.
    Absent(Link),
    /// A pair was removed or changed meanwhile: read the bucket again.
    Again,
    /// The word is being replaced.
    Overwritten,
    /// The bucket has not been recovered since the region was opened.
    Stale,
}

/// Searches one bucket for a key, without a lock or a store.
#[inline(always)]
pub(super) fn view<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    probe: &Probe<'_, K>,
    generation: u64,
) -> View {
    // Acquire: the visible pairs were stored before the control word.
    let control = Control(m.load(&bucket.control));
    if !control.is_of(generation) {
        return View::Stale;
    }
    let found = find(m, bucket, control.visible(), probe);
    // Acquire: the next bucket was initialised before the link was stored.
    let link = Link(m.load(&bucket.link));
    // Acquire: a writer that frees or changes a slot changes `control` before anything is stored to
    // the slot. So if a key or word read above is newer than `control`, the change of `control` is
    // seen below.
    fence(Ordering::Acquire);
    if !control.has_same_pairs(Control(m.load_relaxed(&bucket.control))) {
        return View::Again;
    }
    match found {
        Some((slot, _)) if control.is_overwritten(slot) => View::Overwritten,
        Some((_, word)) => View::Found(word),
        None => View::Absent(link),
    }
}

/// Returns the slot and the word of the pair with the probe's key among the pairs in `slots`, or
/// `None` if there is none.
#[inline(always)]
pub(super) fn find<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    slots: SlotMask,
    probe: &Probe<'_, K>,
) -> Option<(usize, u64)> {
    let mut candidates = matching(m, bucket, probe.slot_key) & slots;
    while candidates != 0 {
        let slot = candidates.trailing_zeros() as usize;
        let word = m.load_relaxed(&bucket.pairs[slot].word);
        if K::matches(m, word, probe.key) {
            return Some((slot, word));
        }
        candidates &= candidates - 1;
    }
    None
}

/// Returns the slots with this slot key, whether or not they hold a pair.
#[inline(always)]
pub(super) fn matching<M: Medium>(m: &M, bucket: &Bucket, slot_key: u64) -> SlotMask {
    (0..PAIRS).fold(0, |slots, slot| {
        slots | SlotMask::from(m.load_relaxed(&bucket.pairs[slot].key) == slot_key) << slot
    })
}

/// Returns the pairs in a bucket that is not changed concurrently.
pub(super) fn pairs_in<'a, M: Medium>(
    m: &'a M,
    bucket: &'a Bucket,
) -> impl Iterator<Item = StoredPair> + 'a {
    let taken = Link(m.load(&bucket.link)).taken();
    (0..PAIRS).filter(move |slot| taken >> slot & 1 == 1).map(|slot| {
        let Pair { key, word } = &bucket.pairs[slot];
        StoredPair { slot_key: m.load_relaxed(key), word: m.load_relaxed(word) }
    })
}

/// Recovers a bucket of an earlier opener, and returns `true` if this call did it. Any thread that
/// reaches the bucket may call this, readers too; the result is the same.
#[cold]
pub(super) fn recover<M: Medium>(m: &M, bucket: &Bucket, generation: u64) -> bool {
    let stale = Control(m.load(&bucket.control));
    if stale.is_of(generation) {
        return false;
    }
    let taken = Link(m.load(&bucket.link)).taken();
    // The process that stored the link may have died before the flush.
    m.note(Note::Harmless(
        "redundant by chance: `what_recovery_finds_is_durable_before_it_is_used` fails without it",
    ));
    m.persist(bucket);
    // Only the first CAS succeeds. The link is unchanged, because a writer recovers the bucket
    // before it changes the link.
    m.cas_transient(&bucket.control, stale.0, Control::fresh(generation, taken).0).is_ok()
}

/// The result of an attempt to lock a chain.
pub(super) enum Locking<'m, M: Medium> {
    Locked(LockedChain<'m, M>),
    /// Another thread holds the lock.
    Busy,
    /// The table is being replaced, or has been.
    Frozen,
    /// The home bucket has not been recovered since the region was opened.
    Stale,
}

/// A chain that the calling thread has locked, by the lock in its home bucket.
#[must_use = "a chain stays locked until it is released"]
pub(super) struct LockedChain<'m, M: Medium> {
    m: &'m M,
    pub(super) home: &'m Bucket,
    /// The home bucket's control word after the release, without the lock bits.
    control: Control,
}

#[inline(always)]
pub(super) fn try_lock<'m, M: Medium>(
    m: &'m M,
    home: &'m Bucket,
    generation: u64,
) -> Locking<'m, M> {
    let control = Control(m.load(&home.control));
    if control.is_lockable(generation)
        && m.cas_transient(&home.control, control.0, control.locked().0).is_ok()
    {
        return Locking::Locked(LockedChain { m, home, control });
    }
    if !control.is_of(generation) {
        Locking::Stale
    } else if control.is_frozen() {
        Locking::Frozen
    } else {
        Locking::Busy
    }
}

impl<'m, M: Medium> LockedChain<'m, M> {
    #[inline(always)]
    pub(super) fn release(self) {
        self.m.store_transient(&self.home.control, self.control.0);
    }

    /// Leaves the chain locked, because the table is being replaced.
    pub(super) fn freeze(self) {
        self.m.store_transient(&self.home.control, self.control.frozen().0);
    }

    /// Updates the control word of a bucket after a change has become durable, so that readers see
    /// it.
    #[inline(always)]
    fn publish(&mut self, bucket: &Bucket, change: impl Fn(Control) -> Control) {
        if std::ptr::eq(bucket, self.home) {
            // Stored when the chain is released.
            self.control = change(self.control);
        } else {
            let control = Control(self.m.load_relaxed(&bucket.control));
            self.m.store_transient(&bucket.control, change(control).0);
        }
    }

    /// Stores a pair durably in a free slot of a bucket of the chain: one flush and one fence.
    #[inline(always)]
    pub(super) fn put(&mut self, bucket: &Bucket, slot: usize, pair: StoredPair) {
        let link = Link(self.m.load_relaxed(&bucket.link));
        self.write(bucket, slot, pair, link.with(slot));
        self.publish(bucket, |control| control.with(slot));
    }

    /// Replaces the word of a pair durably: one flush and one fence.
    ///
    /// The pair moves to a free slot of its bucket, so that readers see the old word until the new
    /// one is durable. If no slot is free, the word is replaced in place, and readers of this pair
    /// wait meanwhile.
    #[inline(always)]
    pub(super) fn replace(&mut self, bucket: &Bucket, slot: usize, pair: StoredPair) {
        let link = Link(self.m.load_relaxed(&bucket.link));
        if let Some(free) = free_slot(link.taken()) {
            // A single store frees the old slot and takes the new one, first for recovery and then
            // for readers.
            self.write(bucket, free, pair, link.with(free).without(slot));
            self.publish(bucket, |control| control.with(free).without(slot));
        } else {
            self.replace_in_place(bucket, slot, pair.word);
        }
    }

    fn replace_in_place(&mut self, bucket: &Bucket, slot: usize, word: u64) {
        let m = self.m;
        // Stored immediately even in the home bucket, because the word is visible as soon as it is
        // stored.
        let control = Control(m.load_relaxed(&bucket.control)).overwriting(slot);
        m.store_transient(&bucket.control, control.0);
        recipe::commit(m, &bucket.pairs[slot].word, word);
        self.publish(bucket, |control| control.overwritten(slot));
    }

    /// Writes a pair to a slot that no reader sees, and commits it by storing `link`.
    #[inline(always)]
    #[track_caller]
    fn write(&self, bucket: &Bucket, slot: usize, pair: StoredPair, link: Link) {
        let cells = &bucket.pairs[slot];
        let mut change = Preparation::new(self.m, &bucket.link);
        change.store(&cells.word, pair.word);
        change.store(&cells.key, pair.slot_key);
        change.commit(link.0);
    }

    /// Removes a pair durably from a bucket of the chain: one flush and one fence. Returns the new
    /// link of the bucket.
    #[inline(always)]
    pub(super) fn remove(&mut self, bucket: &Bucket, slot: usize) -> Link {
        let link = Link(self.m.load_relaxed(&bucket.link)).without(slot);
        recipe::commit(self.m, &bucket.link, link.0);
        self.publish(bucket, |control| control.without(slot));
        link
    }

    /// Inserts a new bucket with one pair durably after the home bucket: two flushes and two
    /// fences.
    pub(super) fn append(&mut self, bucket: &Bucket, pair: StoredPair, generation: u64) {
        let m = self.m;
        let link = Link(m.load_relaxed(&self.home.link));
        // Readers can reach the bucket before the link to it is durable, but see no pair in it.
        m.store_transient(&bucket.control, Control::fresh(generation, 0).0);
        let mut change = Preparation::new(m, &self.home.link);
        change.store(&bucket.pairs[0].word, pair.word);
        change.store(&bucket.pairs[0].key, pair.slot_key);
        change.store(&bucket.link, Link::default().with(0).followed_by(link.rest()).0);
        change.commit(link.followed_by(m.offset_of(bucket)).0);
        self.publish(bucket, |control| control.with(0));
    }

    /// Removes the empty bucket `gone` durably from the chain. `before` is its predecessor. Readers
    /// that are in `gone` can continue from there as long as their guards live.
    pub(super) fn unlink(&self, before: &Bucket, gone: &Bucket) {
        let m = self.m;
        let rest = Link(m.load_relaxed(&gone.link)).rest();
        let link = Link(m.load_relaxed(&before.link)).followed_by(rest);
        recipe::commit(m, &before.link, link.0);
    }
}
