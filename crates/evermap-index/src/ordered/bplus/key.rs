//! How a slot holds a key, and how it is compared with a key that is searched.
//!
//! All keys that a node serves begin with the same bytes, the node's *prefix*, which its slots
//! leave out. The remaining bytes of a key are its *rest*. The first 8 bytes of the rest are the
//! slot's *head*, which decides most comparisons. The *tail* is a second word:
//!
//! ```text
//! rest of up to 15 bytes   bytes 8 to 14 of the rest | 2 x length + 1
//! longer rest              the address of a block that holds the rest, or more of the key: even
//! ```
//!
//! Bytes are padded with zeros and read as big-endian numbers. So two rests of up to 15 bytes
//! compare as (head, tail) do: if all 15 bytes are equal, one rest is the other followed by zeros,
//! and the shorter comes first.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use evermap_pm::medium::prefetch;
use evermap_pm::{Guard, Result};

use super::block::{Block, Header, OwnedBlock};
use super::step;

/// The length of the longest rest that needs no block, bytes.
pub(super) const INLINE_MAX: usize = 15;
/// The number of bytes in a head.
const HEAD: usize = 8;

const _: () =
    assert!(usize::BITS == 64, "tails hold 7 bytes and a length where others hold an address");

/// A key that is searched for.
pub(super) struct Probe<'k> {
    pub(super) key: &'k [u8],
    /// The last 8 bytes as a number. Of a shorter key, all of it, padded with zeros.
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

    /// Returns the 8 bytes from `at` on as a number, padded with zeros.
    #[inline(always)]
    fn number(&self, at: usize) -> u64 {
        let length = self.key.len();
        if let Some(bytes) = self.key.get(at..).and_then(<[u8]>::first_chunk) {
            u64::from_be_bytes(*bytes)
        } else if at >= length {
            0
        } else {
            // `at` is among the last 8 bytes: shifts out those before it.
            self.edge << (8 * (at - length.saturating_sub(HEAD)))
        }
    }

    /// Returns the head of a slot for this key in a node with a prefix of this length.
    #[inline(always)]
    pub(super) fn head(&self, prefix: usize) -> u64 {
        self.number(prefix)
    }

    /// Returns the tail of a slot for this key in a node with a prefix of this length, or `None` if
    /// it needs a block.
    #[inline(always)]
    pub(super) fn inline_tail(&self, prefix: usize) -> Option<Tail<'static>> {
        let rest = self.key.len().saturating_sub(prefix);
        (rest <= INLINE_MAX).then(|| Tail::inline(self.number(prefix + HEAD), rest))
    }

    /// Returns a tail for a new slot with this key.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn tail(&self, prefix: usize) -> Result<NewTail> {
        match self.inline_tail(prefix) {
            Some(tail) => Ok(NewTail::Inline(tail)),
            None => Ok(NewTail::Block(OwnedBlock::new(prefix, &self.key[prefix..])?)),
        }
    }

    /// Compares the key in a slot whose head is equal with this key. Both begin with the prefix.
    #[inline]
    pub(super) fn compare_tail(&self, head: u64, tail: Tail<'_>, prefix: usize) -> Ordering {
        let mut buffer = [0; INLINE_MAX];
        let theirs = tail.rest(head, prefix, &mut buffer);
        let ours = self.key.get(prefix..).unwrap_or_default();
        // The heads are equal including their padding.
        let beyond = |rest: &[u8]| rest.len().min(HEAD);
        let rests = theirs[beyond(theirs)..].cmp(&ours[beyond(ours)..]);
        rests.then(theirs.len().cmp(&ours.len()))
    }
}

/// Returns up to 7 bytes as a big-endian number, padded with zeros.
#[inline]
fn padded(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(number)
}

/// The second word of a slot. A block that it names is not freed during `'g`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail<'g> {
    word: *mut Header,
    life: PhantomData<&'g Header>,
}

impl<'g> Tail<'g> {
    /// The tail of an empty rest, and of a slot that is not in use.
    pub(super) const EMPTY: Tail<'static> = Tail::inline(0, 0);

    #[inline(always)]
    const fn inline(bytes: u64, length: usize) -> Tail<'static> {
        let word = bytes & !0xff | (length as u64) << 1 | 1;
        Tail { word: ptr::without_provenance_mut(word as usize), life: PhantomData }
    }

    pub(super) fn of_block(block: Block<'g>) -> Self {
        Tail { word: block.as_ptr(), life: PhantomData }
    }

    /// Returns the head and the tail of the same key after a prefix that is `by` bytes longer, or
    /// `None` if the key is in a block.
    #[inline(always)]
    pub(super) fn skip_prefix(self, head: u64, by: usize) -> Option<(u64, Tail<'static>)> {
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
        // SAFETY: an even tail was made by `of_block` from a block that is not freed during `'g`,
        // either by this thread or by one whose release store `TailCell::load` has acquired.
        Some(unsafe { Block::from_ptr(header) })
    }

    /// Prefetches the block, if there is one.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        if self.word.addr() & 1 == 0 {
            prefetch(self.word.cast());
        }
    }

    /// Returns the rest of the key. A rest that is in the slot itself is written to `buffer`.
    #[inline]
    pub(super) fn rest<'r>(
        self,
        head: u64,
        prefix: usize,
        buffer: &'r mut [u8; INLINE_MAX],
    ) -> &'r [u8]
    where
        'g: 'r,
    {
        if let Some(block) = self.block() {
            // What the block leaves out is part of the node's prefix.
            return block.bytes().get(prefix.wrapping_sub(block.skip())..).unwrap_or_default();
        }
        let word = self.word.addr() as u64;
        buffer[..HEAD].copy_from_slice(&head.to_be_bytes());
        buffer[HEAD..].copy_from_slice(&word.to_be_bytes()[..INLINE_MAX - HEAD]);
        &buffer[..(word as usize & 0xff) >> 1]
    }
}

/// A tail for a new slot, and the block that it names, which is not published.
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

    /// Returns the bytes of memory in addition to the slot.
    pub(super) fn size(&self) -> usize {
        match self {
            NewTail::Inline(_) => 0,
            NewTail::Block(block) => block.get().size(),
        }
    }

    /// Passes the ownership of the block to the slot that names it now.
    #[inline(always)]
    pub(super) fn publish(self) {
        if let NewTail::Block(block) = self {
            block.publish();
        }
    }
}

/// A tail that several threads may read and write.
pub(super) struct TailCell(AtomicPtr<Header>);

impl TailCell {
    pub(super) const fn new() -> Self {
        TailCell(AtomicPtr::new(Tail::EMPTY.word))
    }

    /// Loads the tail. The guard is of the tree's own domain, so what is named during its life is
    /// not freed before it ends.
    #[inline(always)]
    pub(super) fn load<'g>(&self, _guard: &'g Guard<'_>) -> Tail<'g> {
        step();
        // Acquire: pairs with `store`, so that a block that is named is initialised.
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

    /// Compares every two keys, with several prefixes that they share.
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
    fn a_slot_returns_its_key() {
        for key in keys() {
            for prefix in 0..=key.len() {
                let probe = Probe::new(&key);
                let (head, tail) = (probe.head(prefix), probe.tail(prefix).unwrap());
                assert_eq!(tail.size() == 0, key.len() - prefix <= INLINE_MAX);
                assert_eq!(tail.get().rest(head, prefix, &mut [0; INLINE_MAX]), &key[prefix..]);
            }
        }
    }

    /// The words for a longer prefix can be computed from those for a shorter one.
    #[test]
    fn a_longer_prefix_shifts() {
        for key in keys() {
            let probe = Probe::new(&key);
            for prefix in 0..=key.len() {
                let tail = probe.tail(prefix).unwrap();
                for longer in prefix..=key.len() {
                    let behind = tail.get().skip_prefix(probe.head(prefix), longer - prefix);
                    assert_eq!(behind.is_some(), tail.size() == 0);
                    let due = (probe.head(longer), probe.inline_tail(longer));
                    assert!(behind.is_none_or(|(head, tail)| (head, Some(tail)) == due));
                }
            }
        }
    }

    /// A block can be used in nodes whose prefix is longer than when it was made.
    #[test]
    fn a_block_is_kept_by_a_split() {
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
