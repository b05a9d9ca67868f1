//! How a slot holds a key, and how a key that is searched compares with it.
//!
//! A node serves keys that all begin with the same bytes, its *prefix*, which its slots leave out. Of what is left of
//! a key, its *rest*, the first 8 bytes are the slot's *head*; they decide most comparisons. The *tail* is a second
//! word:
//!
//! ```text
//! rest of up to 15 bytes   bytes 8 to 14 of the rest | 2 x length + 1
//! longer                   the address of a block that holds the rest, or more of the key: even
//! ```
//!
//! Bytes are padded with zeros and read as big-endian numbers. So two rests that both fit compare as (head, tail) do:
//! where all 15 bytes are equal, one rest is the other and some zeros, and the shorter comes first.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use evermap_pm::medium::prefetch;
use evermap_pm::{Guard, Result};

use super::block::{Block, Header, OwnedBlock};
use super::step;

/// Longest rest that needs no block, bytes.
pub(super) const INLINE_MAX: usize = 15;
/// Bytes in a head.
const HEAD: usize = 8;

const _: () =
    assert!(usize::BITS == 64, "tails hold 7 bytes and a length where others hold an address");

/// A key that is searched.
pub(super) struct Probe<'k> {
    pub(super) key: &'k [u8],
    /// The last 8 bytes as a number; of a shorter key all of it, padded with zeros.
    edge: u64,
}

impl<'k> Probe<'k> {
    #[inline]
    pub(super) fn new(key: &'k [u8]) -> Self {
        let edge = match key.last_chunk() {
            Some(last) => u64::from_be_bytes(*last),
            None => padded(key),
        };
        Probe { key, edge }
    }

    /// The 8 bytes from `at` on as a number, padded with zeros.
    #[inline(always)]
    fn number(&self, at: usize) -> u64 {
        let length = self.key.len();
        if let Some(bytes) = self.key.get(at..).and_then(<[u8]>::first_chunk) {
            u64::from_be_bytes(*bytes)
        } else if at >= length {
            0
        } else {
            // `at` is among the last 8 bytes: as many of those go as lie before it.
            self.edge << (8 * (at - length.saturating_sub(HEAD)))
        }
    }

    /// The head of a slot for this key in a node with such a prefix.
    #[inline(always)]
    pub(super) fn head(&self, prefix: usize) -> u64 {
        self.number(prefix)
    }

    /// The tail of a slot for this key in a node with such a prefix, if it needs no block.
    #[inline(always)]
    pub(super) fn inline_tail(&self, prefix: usize) -> Option<Tail<'static>> {
        let rest = self.key.len().saturating_sub(prefix);
        (rest <= INLINE_MAX).then(|| Tail::inline(self.number(prefix + HEAD), rest))
    }

    /// What a new slot needs to hold this key.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn tail(&self, prefix: usize) -> Result<NewTail> {
        match self.inline_tail(prefix) {
            Some(tail) => Ok(NewTail::Inline(tail)),
            None => Ok(NewTail::Block(OwnedBlock::new(prefix, &self.key[prefix..])?)),
        }
    }

    /// How the key in a slot with an equal head compares with this one. Both begin with the prefix.
    #[inline]
    pub(super) fn compare_tail(&self, head: u64, tail: Tail<'_>, prefix: usize) -> Ordering {
        let mut room = [0; INLINE_MAX];
        let theirs = tail.rest(head, prefix, &mut room);
        let ours = self.key.get(prefix..).unwrap_or_default();
        // The heads, with their padding, are equal.
        let beyond = |rest: &[u8]| rest.len().min(HEAD);
        let rests = theirs[beyond(theirs)..].cmp(&ours[beyond(ours)..]);
        rests.then(theirs.len().cmp(&ours.len()))
    }
}

/// Up to 7 bytes as a big-endian number, padded with zeros.
#[inline]
fn padded(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(number)
}

/// The second word of a slot. What it names is there during `'g`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail<'g> {
    word: *mut Header,
    life: PhantomData<&'g Header>,
}

impl<'g> Tail<'g> {
    /// Of an empty rest; also what a slot holds that is not in use.
    pub(super) const EMPTY: Tail<'static> = Tail::inline(0, 0);

    #[inline(always)]
    const fn inline(bytes: u64, length: usize) -> Tail<'static> {
        let word = bytes & !0xff | (length as u64) << 1 | 1;
        Tail { word: ptr::without_provenance_mut(word as usize), life: PhantomData }
    }

    pub(super) fn of_block(block: Block<'g>) -> Self {
        Tail { word: block.as_ptr(), life: PhantomData }
    }

    /// The head and the tail of the same key behind a prefix that is `by` bytes longer, if neither needs a block.
    #[inline(always)]
    pub(super) fn behind(self, head: u64, by: usize) -> Option<(u64, Tail<'static>)> {
        let word = self.word.addr() as u64;
        if word & 1 == 0 {
            return None;
        }
        let rest = u128::from(head) << 64 | u128::from(word & !0xff);
        let rest = rest.checked_shl(8 * by as u32).unwrap_or(0);
        let length = (word as usize & 0xff) >> 1;
        Some(((rest >> 64) as u64, Tail::inline(rest as u64, length.saturating_sub(by))))
    }

    #[inline(always)]
    pub(super) fn block(self) -> Option<Block<'g>> {
        if self.word.addr() & 1 == 1 {
            return None;
        }
        let header = NonNull::new(self.word)?;
        // SAFETY: an even tail was made by `of_block` from a block that is there during `'g`, in this thread or in
        // one that published it with the release that `TailCell::load` acquired.
        Some(unsafe { Block::from_ptr(header) })
    }

    /// Asks for the block, if there is one.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        if self.word.addr() & 1 == 0 {
            prefetch(self.word.cast());
        }
    }

    /// What is left of the key behind the prefix. `room` is for a rest that has no memory of its own.
    #[inline]
    pub(super) fn rest<'r>(
        self,
        head: u64,
        prefix: usize,
        room: &'r mut [u8; INLINE_MAX],
    ) -> &'r [u8]
    where
        'g: 'r,
    {
        if let Some(block) = self.block() {
            // The prefix of its node covers what a block leaves out.
            return block.bytes().get(prefix.wrapping_sub(block.skip())..).unwrap_or_default();
        }
        let word = self.word.addr() as u64;
        room[..HEAD].copy_from_slice(&head.to_be_bytes());
        room[HEAD..].copy_from_slice(&word.to_be_bytes()[..INLINE_MAX - HEAD]);
        &room[..(word as usize & 0xff) >> 1]
    }
}

/// A tail and the block that it names, which nobody else knows yet.
pub(super) enum NewTail {
    Inline(Tail<'static>),
    Block(OwnedBlock),
}

// SAFETY: an inline tail is a number.
unsafe impl Send for NewTail {}

impl NewTail {
    #[inline(always)]
    pub(super) fn get(&self) -> Tail<'_> {
        match self {
            NewTail::Inline(tail) => *tail,
            NewTail::Block(block) => Tail::of_block(block.get()),
        }
    }

    /// Bytes of memory beside the slot.
    pub(super) fn size(&self) -> usize {
        match self {
            NewTail::Inline(_) => 0,
            NewTail::Block(block) => block.get().size(),
        }
    }

    /// Leaves the block to the slot that names it now.
    #[inline(always)]
    pub(super) fn give_away(self) {
        if let NewTail::Block(block) = self {
            block.give_away();
        }
    }
}

/// A tail that other threads may read and write.
pub(super) struct TailCell(AtomicPtr<Header>);

impl TailCell {
    pub(super) const fn new() -> Self {
        TailCell(AtomicPtr::new(Tail::EMPTY.word))
    }

    /// The guard is one of the tree's own domain: what was named when it began is not freed while it lives.
    #[inline(always)]
    pub(super) fn load<'g>(&self, _guard: &'g Guard<'_>) -> Tail<'g> {
        step();
        // Acquire: the block that it may name is complete.
        Tail { word: self.0.load(Acquire), life: PhantomData }
    }

    #[inline(always)]
    pub(super) fn store(&self, tail: Tail<'_>) {
        step();
        // Release: see `load`.
        self.0.store(tail.word, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::sim::rng::Rng;

    fn keys() -> Vec<Vec<u8>> {
        let mut random = Rng::new(7);
        let mut keys: Vec<Vec<u8>> = (0..40).map(|length| vec![0; length]).collect();
        for length in 0..40 {
            for _ in 0..6 {
                keys.push((0..length).map(|_| *random.pick(&[0, 0, 0, 1, 0xff])).collect());
            }
        }
        keys.sort();
        keys.dedup();
        keys
    }

    /// Every two keys, with every prefix that they share.
    #[test]
    fn slots_compare_as_keys_do() {
        let keys = keys();
        for one in &keys {
            for other in &keys {
                let shared = one.iter().zip(other).take_while(|(a, b)| a == b).count();
                for prefix in [0, shared / 2, shared] {
                    let (slot, probe) = (Probe::new(one), Probe::new(other));
                    let (head, tail) = (slot.head(prefix), slot.tail(prefix).unwrap());
                    let order = head.cmp(&probe.head(prefix));
                    let order = order.then_with(|| probe.compare_tail(head, tail.get(), prefix));
                    assert_eq!(order, one.cmp(other), "{one:?} {other:?} behind {prefix}");
                    if let (NewTail::Inline(tail), Some(other)) = (&tail, probe.inline_tail(prefix))
                    {
                        let equal = head == probe.head(prefix) && *tail == other;
                        assert_eq!(equal, order.is_eq(), "words of equal keys are equal");
                    }
                }
            }
        }
    }

    #[test]
    fn a_slot_gives_its_key_back() {
        for key in keys() {
            for prefix in 0..=key.len() {
                let probe = Probe::new(&key);
                let (head, tail) = (probe.head(prefix), probe.tail(prefix).unwrap());
                assert_eq!(tail.size() == 0, key.len() - prefix <= INLINE_MAX);
                assert_eq!(tail.get().rest(head, prefix, &mut [0; INLINE_MAX]), &key[prefix..]);
            }
        }
    }

    /// The words for a longer prefix follow from those for a shorter one.
    #[test]
    fn a_longer_prefix_shifts() {
        for key in keys() {
            let probe = Probe::new(&key);
            for prefix in 0..=key.len() {
                let tail = probe.tail(prefix).unwrap();
                for longer in prefix..=key.len() {
                    let behind = tail.get().behind(probe.head(prefix), longer - prefix);
                    assert_eq!(behind.is_some(), tail.size() == 0);
                    let due = (probe.head(longer), probe.inline_tail(longer));
                    assert!(behind.is_none_or(|(head, tail)| (head, Some(tail)) == due));
                }
            }
        }
    }

    /// A block serves nodes whose prefix is longer than when it was made.
    #[test]
    fn a_block_outlives_a_split() {
        let key: Vec<u8> = (0..60).collect();
        let probe = Probe::new(&key);
        let tail = probe.tail(5).unwrap();
        for prefix in 5..44 {
            let head = probe.head(prefix);
            assert_eq!(tail.get().rest(head, prefix, &mut [0; INLINE_MAX]), &key[prefix..]);
            assert!(probe.compare_tail(head, tail.get(), prefix).is_eq());
        }
    }
}
