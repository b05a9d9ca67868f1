//! A bucket: one cache line.
//!
//! ```text
//! byte  0  state   bit 0: forwarded; bits 1..9: the marks of entries in overflow buckets;
//!                  bits 9..32: the overflow bucket, or 0
//! byte  4  12 tags, a byte each: 0 for a free slot, otherwise bits of the hash
//! byte 16  12 references to entries, 4 bytes each: bits 0..28: the id of the entry, or 0;
//!          bits 28..32: further bits of its hash
//! ```
//!
//! The marks of the first bucket of a chain are a filter: a search goes on in overflow buckets only
//! if the bit is set that the hash chooses. Without it, each search of a bucket that has overflowed
//! would wait for another line.
//!
//! State and tags are two words, which are read and written as such. A reference is written before
//! the tag of its slot, and cleared after it.
//!
//! With the further bits of the hash, and those that chose the bucket, three of four doublings find
//! the new buckets of entries without reading them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::slab::Id;
use crate::step;

/// The number of slots of a bucket.
pub(crate) const SLOTS: usize = 12;
/// The number of bytes before the tags.
const STATE_BYTES: usize = 4;
/// Set if the entries of this bucket, and its overflow buckets, are in the next table.
const FORWARDED: u64 = 1;
/// The position of the marks in the first word.
const MARKS_SHIFT: u32 = 1;
/// The number of marks.
pub(crate) const MARKS: u64 = 8;
/// The position of the overflow bucket in the first word, and its bits.
const OVERFLOW_SHIFT: u32 = 9;
const OVERFLOW: u64 = 0xffff_fe00;
/// The number of bits of a reference that hold bits of the hash.
pub(crate) const SPLIT_BITS: u32 = 4;
/// The position of these bits in a reference.
const SPLIT_SHIFT: u32 = u32::BITS - SPLIT_BITS;
/// Ids of entries are below this.
pub(crate) const ENTRY_LIMIT: u32 = 1 << SPLIT_SHIFT;
/// Ids of overflow buckets are below this.
pub(crate) const OVERFLOW_LIMIT: u32 = 1 << (32 - OVERFLOW_SHIFT);

/// A bucket of a table, or an overflow bucket. Zeroed memory is an empty bucket.
#[repr(C, align(64))]
pub(crate) struct Bucket {
    words: [AtomicU64; 2],
    references: [AtomicU32; SLOTS],
}

const _: () = assert!(size_of::<Bucket>() == 64 && STATE_BYTES + SLOTS == 16);

/// State and tags of a bucket, as they were loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Words([u64; 2]);

/// A set of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots(u16);

impl Bucket {
    /// An empty bucket.
    pub(crate) const fn new() -> Self {
        Bucket {
            words: [const { AtomicU64::new(0) }; 2],
            references: [const { AtomicU32::new(0) }; SLOTS],
        }
    }

    /// Loads state and tags.
    #[inline(always)]
    pub(crate) fn load(&self) -> Words {
        step();
        // Acquire: a reference whose tag is seen is seen too; and a thread that sees that the
        // bucket is forwarded sees its entries in the next table. The words may be of different
        // moments. Entries never move within a chain, so one that is present throughout is in one
        // of them.
        let first = self.words[0].load(Acquire);
        step();
        Words([first, self.words[1].load(Acquire)])
    }

    /// Returns the reference in a slot, or `None` if the slot became free.
    #[inline(always)]
    pub(crate) fn reference(&self, slot: usize) -> Option<Id> {
        step();
        // Acquire: pairs with the release in `set_reference`, so that the entry is complete.
        Id::new(self.references[slot].load(Acquire) % ENTRY_LIMIT)
    }

    /// Returns the reference in a slot if the bits of the hash that are stored there are these, or
    /// `None` if they are others or the slot became free. So a search reads few entries of other
    /// keys with the same tag.
    #[inline(always)]
    pub(crate) fn reference_if(&self, slot: usize, split: u32) -> Option<Id> {
        step();
        // Acquire: as in `reference`.
        let reference = self.references[slot].load(Acquire);
        if reference >> SPLIT_SHIFT == split { Id::new(reference % ENTRY_LIMIT) } else { None }
    }

    /// Returns the bits of the hash that are stored in a slot that is in use. The caller holds the
    /// lock.
    #[inline(always)]
    pub(crate) fn split(&self, slot: usize) -> u32 {
        self.references[slot].load(Relaxed) >> SPLIT_SHIFT
    }

    /// Writes a reference, with bits of the hash, and a tag to a free slot. The caller holds the
    /// lock.
    pub(crate) fn fill(&self, slot: usize, tag: u8, split: u32, id: Id) {
        self.set_reference(slot, split, id);
        self.set_tag(slot, tag);
    }

    /// Replaces the entry of a slot by one with the same key: who reads it finds the old entry or
    /// the new one. The caller holds the lock.
    pub(crate) fn replace(&self, slot: usize, id: Id) {
        self.set_reference(slot, self.split(slot), id);
    }

    fn set_reference(&self, slot: usize, split: u32, id: Id) {
        debug_assert!(split < 1 << SPLIT_BITS && id.get() < ENTRY_LIMIT);
        // Release: the entry was written before.
        self.references[slot].store(split << SPLIT_SHIFT | id.get(), Release);
        step();
    }

    /// Frees a slot. The caller holds the lock.
    pub(crate) fn free(&self, slot: usize) {
        self.set_tag(slot, 0);
        // Relaxed: a reader that sees the tag may still see the reference, which its guard
        // protects, or none.
        self.references[slot].store(0, Relaxed);
        step();
    }

    fn set_tag(&self, slot: usize, tag: u8) {
        let (word, shift) = ((slot + STATE_BYTES) / 8, (slot + STATE_BYTES) % 8 * 8);
        // Relaxed: only the holder of the lock changes it.
        let others = self.words[word].load(Relaxed) & !(0xff << shift);
        // Release: after the reference.
        self.words[word].store(others | u64::from(tag) << shift, Release);
        step();
    }

    /// Appends an overflow bucket to the last bucket of a chain. The caller holds the lock.
    pub(crate) fn append(&self, overflow: Id) {
        debug_assert!(overflow.get() < OVERFLOW_LIMIT);
        let word = self.words[0].load(Relaxed) & !OVERFLOW;
        // Release: the overflow bucket was initialised before.
        self.words[0].store(word | u64::from(overflow.get()) << OVERFLOW_SHIFT, Release);
        step();
    }

    /// Sets a mark of the first bucket of a chain, for an entry that was added to an overflow
    /// bucket. The caller holds the lock.
    pub(crate) fn mark(&self, mark: u64) {
        let word = self.words[0].load(Relaxed);
        // Release: who sees the mark finds the entry.
        self.words[0].store(word | 1 << (MARKS_SHIFT as u64 + mark), Release);
        step();
    }

    /// Marks the first bucket of a chain as forwarded. The caller holds the lock, and has copied
    /// all of its slots into the next table. They do not change any more.
    pub(crate) fn forward(&self) {
        let word = self.words[0].load(Relaxed);
        // Release: the copies, and the pointer to the next table, were written before.
        self.words[0].store(word | FORWARDED, Release);
        step();
    }

    /// Makes an overflow bucket empty that is not in use.
    pub(crate) fn clear(&self) {
        // Relaxed: it is published by `append`.
        self.words.iter().for_each(|word| word.store(0, Relaxed));
        self.references.iter().for_each(|reference| reference.store(0, Relaxed));
    }
}

impl Words {
    /// Returns `true` if the entries are in the next table.
    #[inline(always)]
    pub(crate) fn is_forwarded(self) -> bool {
        self.0[0] & FORWARDED != 0
    }

    /// Returns the next bucket of the chain.
    #[inline(always)]
    pub(crate) fn overflow(self) -> Option<Id> {
        Id::new(((self.0[0] & OVERFLOW) >> OVERFLOW_SHIFT) as u32)
    }

    /// Returns the next bucket of the chain that begins with this bucket, if an entry with this
    /// mark may be there.
    #[inline(always)]
    pub(crate) fn overflow_for(self, mark: u64) -> Option<Id> {
        if self.0[0] >> (MARKS_SHIFT as u64 + mark) & 1 == 0 { None } else { self.overflow() }
    }

    /// Returns the slots with this tag.
    #[inline(always)]
    pub(crate) fn matching(self, tag: u8) -> Slots {
        Slots(equal_bytes(self.0, tag) >> STATE_BYTES)
    }

    /// Returns the free slots.
    #[inline(always)]
    pub(crate) fn free(self) -> Slots {
        self.matching(0)
    }

    /// Returns the slots that are not free.
    #[inline(always)]
    pub(crate) fn used(self) -> Slots {
        Slots(!self.free().0 & ((1 << SLOTS) - 1))
    }

    /// Returns the tag of a slot.
    #[inline(always)]
    pub(crate) fn tag(self, slot: usize) -> u8 {
        let at = slot + STATE_BYTES;
        (self.0[at / 8] >> (at % 8 * 8)) as u8
    }
}

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        // Tells the compiler that no bounds have to be checked.
        Some(slot.min(SLOTS - 1))
    }
}

/// Returns a bit for each of the 16 bytes, from the lowest on, that equals `byte`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn equal_bytes(words: [u64; 2], byte: u8) -> u16 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        let bytes = _mm_set_epi64x(words[1] as i64, words[0] as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8))) as u16
    }
}

/// Returns a bit for each of the 16 bytes, from the lowest on, that equals `byte`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn equal_bytes(words: [u64; 2], byte: u8) -> u16 {
    portable_equal_bytes(words, byte)
}

#[cfg(any(test, miri, not(target_arch = "x86_64")))]
fn portable_equal_bytes(words: [u64; 2], byte: u8) -> u16 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const NOT_HIGH: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let equal = |word: u64| {
        let differences = word ^ (LOW * u64::from(byte));
        // The highest bit of each byte: set if the byte is zero. Exact, because no carry leaves a
        // byte.
        let zeros = !(((differences & NOT_HIGH) + NOT_HIGH) | differences | NOT_HIGH);
        // Gathers the highest bits in the highest byte.
        ((zeros >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u16
    };
    equal(words[0]) | equal(words[1]) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::sim::rng::Rng;

    fn id(number: u32) -> Id {
        Id::new(number).unwrap()
    }

    #[test]
    fn slots_are_filled_and_freed() {
        let bucket = Bucket::new();
        for slot in 0..SLOTS {
            assert_eq!(bucket.load().free().count(), SLOTS - slot);
            assert_eq!(bucket.load().free().next(), Some(slot));
            bucket.fill(slot, 7 + slot as u8 % 2, slot as u32, id(100 + slot as u32));
        }
        let words = bucket.load();
        assert_eq!(words.matching(7).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 10]);
        assert_eq!((words.free().count(), words.used().count()), (0, SLOTS));
        assert!((0..SLOTS).all(|slot| bucket.reference(slot) == Some(id(100 + slot as u32))));
        assert!((0..SLOTS).all(|slot| bucket.split(slot) == slot as u32));
        bucket.replace(11, id(ENTRY_LIMIT - 1));
        assert_eq!((bucket.reference(11), bucket.split(11)), (Some(id(ENTRY_LIMIT - 1)), 11));
        assert_eq!((words.overflow(), words.is_forwarded()), (None, false));
        bucket.append(id(OVERFLOW_LIMIT - 1));
        bucket.mark(3);
        bucket.forward();
        bucket.free(5);
        let words = bucket.load();
        assert_eq!((words.overflow(), words.is_forwarded()), (Some(id(OVERFLOW_LIMIT - 1)), true));
        assert_eq!((words.free().collect::<Vec<_>>(), bucket.reference(5)), (vec![5], None));
        for mark in 0..MARKS {
            assert_eq!(words.overflow_for(mark).is_some(), mark == 3);
        }
        assert_eq!((words.tag(0), words.tag(3), words.tag(5), words.tag(11)), (7, 8, 0, 8));
        bucket.clear();
        assert!(bucket.load() == Bucket::new().load());
    }

    #[test]
    fn both_ways_to_compare_agree() {
        let mut random = Rng::new(3);
        for _ in 0..10_000 {
            let bytes: [u8; 16] = std::array::from_fn(|_| {
                [0, 1, 0x7f, 0x80, 0x81, 0xff, 0xfe][random.below(7) as usize]
            });
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            for byte in [0, 1, 0x7f, 0x80, 0x81, 0xff] {
                let expected = (0..16).map(|at| u16::from(bytes[at] == byte) << at).sum::<u16>();
                assert_eq!(equal_bytes([word(0), word(8)], byte), expected);
                assert_eq!(portable_equal_bytes([word(0), word(8)], byte), expected);
            }
        }
    }
}
