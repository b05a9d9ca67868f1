//! One line: its lock; finding, inserting and removing records.

use std::sync::atomic::{Ordering, fence};

use evermap_index::hash::segmented::apply::HeldBucket;
use evermap_index::key::Quotient;
use evermap_pm::{Medium, Quad};

use super::layout::{
    FOREIGN, Geometry, LOCKED, Line, META, TAG, TAKEN, VALID, VERSION_LOW, VERSION_MORE,
    filter_bit, holds_tops,
};

/// A key to look for, with its image.
pub struct Probe<'a, K: Quotient> {
    pub(super) key: K::Ref<'a>,
    pub(super) image: u64,
}

impl<'a, K: Quotient> Probe<'a, K> {
    #[inline(always)]
    pub(super) fn new(key: K::Ref<'a>, seed: u64) -> Self {
        Probe { key, image: K::image(key, seed) }
    }
}

/// A record, with its image.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(super) image: u64,
    pub(super) word: u64,
}

/// The key words of a line, as they were read.
pub(super) type Keys = [u64; 4];

/// Reads the key words of a line. They are consistent only if the caller has locked the line.
#[inline(always)]
pub(super) fn keys_of<M: Medium>(m: &M, line: &Line) -> Keys {
    // Acquire: the word with the lock and the version is read first, so that the others are not
    // older.
    let first = m.load(&line.keys[0]);
    let rest = |slot: usize| m.load_relaxed(&line.keys[slot]);
    [first, rest(1), rest(2), rest(3)]
}

/// Returns whether a line, and all records that belong to it, are unchanged since its key words
/// were `seen`, and no thread has locked the line.
#[inline(always)]
pub(super) fn is_unchanged<M: Medium>(m: &M, line: &Line, seen: &Quad) -> bool {
    // Acquire: everything read above is read before the version is read again. A thread that
    // changes a record of this line locks the line first, so an unchanged version means that
    // nothing changed. If another thread had locked the line when it was read, and released it
    // without a change, the words that were read are correct, too.
    fence(Ordering::Acquire);
    seen.is_current(&m.load_four(&line.keys), LOCKED)
}

/// Returns, as a bit set, the valid slots with this tag and this mark ([`FOREIGN`] or 0).
///
/// Has no branches: which slot holds a key is random, and a mispredicted branch discards the
/// lookups that the processor has begun meanwhile.
#[inline(always)]
pub(super) fn matching(keys: &Keys, tag: u64, mark: u64) -> u32 {
    let wanted = tag | VALID | mark;
    let is = |slot: usize| u32::from(keys[slot] ^ wanted <= META) << slot;
    is(0) | is(1) | is(2) | is(3)
}

/// Does what [`matching`] does for key words that were seen without the lock.
#[inline(always)]
pub(super) fn matching_seen(seen: &Quad, tag: u64, mark: u64) -> u32 {
    seen.matching(!META, tag | VALID | mark)
}

/// Returns, as a bit set, the slots that hold a record.
#[inline(always)]
pub(super) fn valid(keys: &Keys) -> u32 {
    let is = |slot: usize| u32::from(keys[slot] & VALID != 0) << slot;
    is(0) | is(1) | is(2) | is(3)
}

/// Returns, as a bit set, the slots that hold a record of another line.
#[inline(always)]
pub(super) fn foreign(keys: &Keys) -> u32 {
    let is = |slot: usize| u32::from(keys[slot] & (VALID | FOREIGN) == VALID | FOREIGN) << slot;
    is(0) | is(1) | is(2) | is(3)
}

/// Returns the lowest free slot.
#[inline(always)]
pub(super) fn free_slot(keys: &Keys) -> Option<usize> {
    let is = |slot: usize| u32::from(keys[slot] & TAKEN != 0) << slot;
    let slot = (is(0) | is(1) | is(2) | is(3)).trailing_ones() as usize;
    (slot < 4).then_some(slot)
}

/// Does what [`free_slot`] does for key words that were loaded together.
#[inline]
pub(super) fn free_slot_seen(seen: &Quad) -> Option<usize> {
    let slot = seen.matching(TAKEN, 0).trailing_zeros() as usize;
    (slot < 4).then_some(slot)
}

/// Returns the slots whose bits are set in `bits`.
#[inline(always)]
pub(super) fn slots(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = bits.trailing_zeros() as usize;
        bits &= bits.checked_sub(1)?;
        // A line has four slots.
        Some(slot & 3)
    })
}

/// Finds the record with the probe's key among the slots of a line that [match](matching). Returns
/// its slot and its word.
///
/// If the caller does not hold the lock, it must validate the result by the home line's version.
#[inline(always)]
pub(super) fn find<K: Quotient, M: Medium, const L: usize, const SMALL: bool>(
    m: &M,
    line: &Line,
    matching: u32,
    probe: &Probe<'_, K>,
) -> Option<(usize, u64)> {
    if !SMALL && !K::WORDS_ARE_RECORDS {
        // No two keys have the same image, so at most one slot matches.
        return (matching != 0).then(|| {
            let slot = matching.trailing_zeros() as usize & 3;
            (slot, m.load_relaxed(&line.words[slot]))
        });
    }
    slots(matching).find_map(|slot| {
        let word = m.load_relaxed(&line.words[slot]);
        is_record_of::<K, M, L, SMALL>(m, line, slot, word, probe).then_some((slot, word))
    })
}

/// Returns whether the record with this word, in a slot that matches, is the one for the probe's
/// key.
#[inline(always)]
pub(super) fn is_record_of<K: Quotient, M: Medium, const L: usize, const SMALL: bool>(
    m: &M,
    line: &Line,
    slot: usize,
    word: u64,
    probe: &Probe<'_, K>,
) -> bool {
    // The segment determines the top bits, unless it is shallow.
    let has_top = !SMALL
        || !holds_tops(m.load_relaxed(&line.keys[3]))
        || Geometry::<L, SMALL>::top_in(m.load_relaxed(&line.words[3]), slot)
            == Geometry::<L, SMALL>::top(probe.image);
    has_top && K::matches(m, word, probe.key)
}

/// A line that the calling thread has locked.
#[must_use = "a line stays locked until it is released"]
pub struct Held<'a> {
    pub(super) line: &'a Line,
}

/// Locks a line. Returns `None` if another thread has locked it.
#[inline(always)]
pub(super) fn try_lock<'a, M: Medium>(m: &M, line: &'a Line) -> Option<Held<'a>> {
    let first = m.load(&line.keys[0]);
    let free = first & LOCKED == 0;
    (free && m.cas_transient(&line.keys[0], first, first | LOCKED).is_ok()).then_some(Held { line })
}

impl HeldBucket for Held<'_> {
    #[inline(always)]
    fn release_changed<M: Medium>(self, m: &M) {
        let first = m.load_relaxed(&self.line.keys[0]);
        if first & VERSION_LOW == VERSION_LOW {
            carry(m, self.line);
            m.store_transient(&self.line.keys[0], first & !(VERSION_LOW | LOCKED));
        } else {
            m.store_transient(&self.line.keys[0], (first & !LOCKED) + 1);
        }
    }

    #[inline(always)]
    fn release<M: Medium>(self, m: &M) {
        let first = m.load_relaxed(&self.line.keys[0]);
        m.store_transient(&self.line.keys[0], first & !LOCKED);
    }
}

/// Adds the carry to the higher bits of a line's version, before the lowest bits are set to zero.
#[cold]
fn carry<M: Medium>(m: &M, line: &Line) {
    for slot in [1, 3] {
        let key = m.load_relaxed(&line.keys[slot]);
        let next = (key + 1) & VERSION_MORE;
        m.store_transient(&line.keys[slot], key & !VERSION_MORE | next);
        if next != 0 {
            break;
        }
    }
}

/// Stores a record in a free slot of a locked line. Stores to one cache line persist in program
/// order, so a valid record has its word, also after a crash.
#[inline(always)]
pub(super) fn write<M: Medium, const L: usize, const SMALL: bool>(
    m: &M,
    line: &Line,
    slot: usize,
    record: Record,
    mark: u64,
) {
    m.store(&line.words[slot], record.word);
    if SMALL && holds_tops(m.load_relaxed(&line.keys[3])) {
        let tops = m.load_relaxed(&line.words[3]);
        let top = Geometry::<L, SMALL>::top(record.image);
        m.store(&line.words[3], Geometry::<L, SMALL>::with_top(tops, slot, top));
    }
    let meta = m.load_relaxed(&line.keys[slot]) & META;
    // The commit.
    let tag = Geometry::<L, SMALL>::tag(record.image);
    m.store(&line.keys[slot], tag | VALID | mark | meta);
}

/// Does what [`write`] does, durably: one flush and one fence.
#[inline(always)]
pub(super) fn place<M: Medium, const L: usize, const SMALL: bool>(
    m: &M,
    line: &Line,
    slot: usize,
    record: Record,
    mark: u64,
) {
    write::<M, L, SMALL>(m, line, slot, record, mark);
    m.persist(line);
}

/// Removes the record in a slot of a locked line. Durable once the line is flushed. The slot may be
/// reused at once, since later stores to the same line persist later.
#[inline(always)]
pub(super) fn clear<M: Medium>(m: &M, line: &Line, slot: usize) {
    m.store(&line.keys[slot], m.load_relaxed(&line.keys[slot]) & META);
}

/// Sets the filter bit of a locked line for one of its records that is in the other line.
#[inline(always)]
pub(super) fn note_away<M: Medium>(m: &M, line: &Line, tag: u64) {
    let key = m.load_relaxed(&line.keys[2]);
    m.store_transient(&line.keys[2], key | filter_bit(tag));
}

/// Replaces the filter, and the bit for the chain, of a locked line.
pub(super) fn set_filter<M: Medium>(m: &M, line: &Line, filter: u64) {
    let key = m.load_relaxed(&line.keys[2]);
    let with = key & !META | filter;
    if with != key {
        m.store_transient(&line.keys[2], with);
    }
}

/// Returns the tag in a key word.
#[inline(always)]
pub(super) fn tag_of(key: u64) -> u64 {
    key & TAG
}

/// Returns whether the record of a key word belongs to another line.
#[inline(always)]
pub(super) fn is_foreign(key: u64) -> bool {
    key & FOREIGN != 0
}

const _: () = assert!(super::layout::CHAINED < META);
