//! A node: the range of keys that it serves, and its slots.
//!
//! What a node serves never changes. When a range has to, other nodes are made and take its place, so nothing in a
//! node but its slots, their count and its version is ever written again once others know it.

use std::cmp::Ordering;
use std::mem::{ManuallyDrop, offset_of};
use std::ops::Deref;
use std::ops::Range;
use std::ptr::{self, NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use evermap_pm::medium::prefetch;
use evermap_pm::{Guard, Result};

use super::arena::Arena;
use super::block::no_memory;
use super::key::{INLINE_MAX, Probe, Tail, TailCell};
use super::step;
use super::version::Version;

/// A node with slots for `N` pairs of a key and a word, in order. In a leaf, words are the tree's. Elsewhere they are
/// children, each with the least key that it serves.
///
/// Who inserts a slot moves the heads and places of those behind it, and leaves their rests where they are: that is two
/// or three lines of the cache that change, and not ten.
#[repr(C)]
pub(super) struct Node<const N: usize> {
    pub(super) version: Version,
    count: AtomicU32,
    /// Levels below this one.
    pub(super) level: u32,
    range: KeyRange,
    /// Where each slot has its rest. A permutation of all places, whenever nobody has the lock: slots that are not in use
    /// have the free ones.
    places: [AtomicU8; N],
    heads: [AtomicU64; N],
    rests: [Rest<N>; N],
}

/// What belongs to a head: one line of the cache has both.
#[repr(align(16))]
struct Rest<const N: usize> {
    tail: TailCell,
    /// A word, or the address of a child. Null in a slot that is not in use.
    word: AtomicPtr<Node<N>>,
}

impl<const N: usize> Rest<N> {
    const fn free() -> Self {
        Rest { tail: TailCell::new(), word: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// The keys that a node serves: from `low` on to below `high`.
pub(super) struct KeyRange {
    /// Both, one behind the other. Where there is no high key, nothing is behind the low one: a high key is never empty.
    bytes: Box<[u8]>,
    low_length: u32,
    prefix: u32,
}

impl KeyRange {
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(low: &[u8], high: Option<&[u8]>) -> Result<Self> {
        let mut bytes = Vec::new();
        let size = low.len() + high.map_or(0, <[u8]>::len);
        bytes.try_reserve_exact(size).map_err(|_| no_memory(size))?;
        bytes.extend_from_slice(low);
        bytes.extend_from_slice(high.unwrap_or_default());
        Ok(KeyRange {
            bytes: bytes.into_boxed_slice(),
            low_length: low.len() as u32,
            // Every key between two begins as both do.
            prefix: high.map_or(0, |high| shared(low, high)) as u32,
        })
    }

    pub(super) fn low(&self) -> &[u8] {
        &self.bytes[..self.low_length as usize]
    }

    /// The first key beyond, if there is one.
    pub(super) fn high(&self) -> Option<&[u8]> {
        let high = &self.bytes[self.low_length as usize..];
        (!high.is_empty()).then_some(high)
    }

    /// Bytes that all keys of the range begin with.
    #[inline(always)]
    pub(super) fn prefix(&self) -> usize {
        self.prefix as usize
    }
}

/// How many bytes two keys have in common at their beginning.
pub(super) fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Where a key is, or would be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) at: usize,
    pub(super) exists: bool,
}

/// What a descent looks for.
#[derive(Clone, Copy)]
pub(super) enum Target<'k> {
    /// The node that serves this key.
    At(&'k Probe<'k>),
    /// The node that serves the keys just below this one, which is not empty.
    Below(&'k Probe<'k>),
    /// The first node.
    First,
    /// The last node.
    Last,
}

/// What goes with a key.
#[derive(Clone, Copy)]
pub(super) enum Content<'c, const N: usize> {
    /// In a leaf.
    Word(u64),
    /// Elsewhere.
    Child(&'c Node<N>),
}

impl<const N: usize> Content<'_, N> {
    fn raw(self, leaf: bool) -> *mut Node<N> {
        match self {
            Content::Word(word) if leaf => ptr::without_provenance_mut(word as usize),
            Content::Child(child) if !leaf => ptr::from_ref(child).cast_mut(),
            // A word that is taken for a child would be followed.
            _ => unreachable!("words are for leaves, children for others"),
        }
    }
}

/// A node that no other names yet. Freed when dropped, and what its slots name is not.
pub(super) struct OwnedNode<const N: usize> {
    node: NonNull<Node<N>>,
    home: Arc<Arena<Node<N>>>,
}

// SAFETY: it is memory that nobody else knows; the node's own fields are atomics, numbers and a box.
unsafe impl<const N: usize> Send for OwnedNode<N> {}
// SAFETY: as shared references to nodes, which is what it gives.
unsafe impl<const N: usize> Sync for OwnedNode<N> {}

impl<const N: usize> OwnedNode<N> {
    /// A node without pairs.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(home: &Arc<Arena<Node<N>>>, level: u32, range: KeyRange) -> Result<Self> {
        let node = home.take()?;
        let room = node.as_ptr();
        // SAFETY: given to us for a value of this type, all fields of which are written here, where they shall be: it is
        // large.
        unsafe {
            (&raw mut (*room).version).write(Version::new());
            (&raw mut (*room).count).write(AtomicU32::new(0));
            (&raw mut (*room).level).write(level);
            (&raw mut (*room).range).write(range);
            (&raw mut (*room).places).write(std::array::from_fn(|at| AtomicU8::new(at as u8)));
            (&raw mut (*room).heads).write([const { AtomicU64::new(0) }; N]);
            (&raw mut (*room).rests).write([const { Rest::free() }; N]);
        }
        Ok(OwnedNode { node, home: home.clone() })
    }

    /// Leaves it to the node that names it now. It is there for as long as the guard, which is one of the tree's
    /// domain, and until it is retired.
    pub(super) fn publish<'g>(self, _guard: &'g Guard<'_>) -> &'g Node<N> {
        // Who takes it back knows its address only.
        self.node.as_ptr().expose_provenance();
        let node = self.node;
        // All of it but what dropping does to the node.
        let mut owned = ManuallyDrop::new(self);
        // SAFETY: it is not used again.
        unsafe { ptr::drop_in_place(&mut owned.home) };
        // SAFETY: initialised by `new`; freed after it was retired only, and so not before the guard ends.
        unsafe { node.as_ref() }
    }

    /// Takes back what was [published](Self::publish).
    ///
    /// # Safety
    /// 1. A node of this type and home at `address` was published and not taken back since.
    /// 2. Nobody uses it any more, nor will.
    pub(super) unsafe fn take_back(home: &Arc<Arena<Node<N>>>, address: usize) -> Self {
        let node = NonNull::new(with_exposed_provenance_mut(address));
        OwnedNode { node: node.expect("no node is at address 0"), home: home.clone() }
    }
}

impl<const N: usize> Deref for OwnedNode<N> {
    type Target = Node<N>;

    #[inline(always)]
    fn deref(&self) -> &Node<N> {
        // SAFETY: initialised by `new`, and freed by drop only.
        unsafe { self.node.as_ref() }
    }
}

impl<const N: usize> Drop for OwnedNode<N> {
    fn drop(&mut self) {
        // SAFETY: initialised by `new` in room of this arena, and nobody else knows it.
        unsafe {
            self.node.drop_in_place();
            self.home.give_back(self.node);
        }
    }
}

impl<const N: usize> Node<N> {
    /// Bytes of memory, blocks not counted.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.range.bytes.len()
    }

    pub(super) fn range(&self) -> &KeyRange {
        &self.range
    }

    #[inline(always)]
    pub(super) fn prefix(&self) -> usize {
        self.range.prefix()
    }

    #[inline(always)]
    pub(super) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Slots in use, at most `N`.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        step();
        // Relaxed: what a count goes with is proved by the version.
        self.count.load(Relaxed) as usize
    }

    fn set_count(&self, count: usize) {
        step();
        self.count.store(count as u32, Relaxed);
    }

    /// Asks for the lines that a search reads first.
    #[inline(always)]
    pub(super) fn prefetch_heads(node: *const Self) {
        Self::prefetch_lines(node, offset_of!(Self, rests));
    }

    /// Asks for all lines.
    #[inline(always)]
    pub(super) fn prefetch(node: *const Self) {
        Self::prefetch_lines(node, size_of::<Self>());
    }

    #[inline(always)]
    fn prefetch_lines(node: *const Self, bytes: usize) {
        for at in (0..bytes).step_by(64) {
            prefetch(node.cast::<u8>().wrapping_add(at));
        }
    }

    /// Asks for what the next slot that is inserted will change beside the heads.
    #[inline(always)]
    pub(super) fn prefetch_free(&self) {
        if let Some(place) = self.places.get(self.count()) {
            prefetch(ptr::from_ref(&self.rests[place.load(Relaxed) as usize]).cast());
        }
    }

    /// The address of the child in a slot, whatever it is by now. For prefetching.
    #[inline(always)]
    pub(super) fn hint(&self, at: usize) -> *const Self {
        // Relaxed: it is not followed.
        if at < N { self.rest(at).word.load(Relaxed) } else { ptr::null() }
    }

    /// Where a slot has its rest.
    #[inline(always)]
    fn place(&self, at: usize) -> u8 {
        step();
        // Relaxed: a number below `N`, which the version proves to be the right one.
        self.places[at].load(Relaxed)
    }

    fn set_place(&self, at: usize, place: u8) {
        step();
        self.places[at].store(place, Relaxed);
    }

    #[inline(always)]
    fn rest(&self, at: usize) -> &Rest<N> {
        &self.rests[self.place(at) as usize]
    }

    /// Whether each place is some slot's.
    pub(super) fn is_permuted(&self) -> bool {
        let places: std::collections::BTreeSet<u8> = (0..N).map(|at| self.place(at)).collect();
        places.len() == N
    }

    #[inline(always)]
    fn head(&self, at: usize) -> u64 {
        step();
        // Relaxed: a number, which the version proves.
        self.heads[at].load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn tail<'g>(&self, at: usize, guard: &'g Guard<'_>) -> Tail<'g> {
        self.rest(at).tail.load(guard)
    }

    /// The word of a leaf's slot.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u64 {
        step();
        // Acquire: whoever gets a word sees what was done before it was put.
        self.rest(at).word.load(Acquire).addr() as u64
    }

    /// Replaces what goes with the key in a slot, under the lock.
    #[inline(always)]
    pub(super) fn set_content(&self, at: usize, content: Content<'_, N>) {
        self.put(at, content.raw(self.is_leaf()));
    }

    #[inline(always)]
    fn put(&self, at: usize, word: *mut Node<N>) {
        step();
        // Release: a node is complete for whoever finds it here.
        self.rest(at).word.store(word, Release);
    }

    /// The child in a slot. Nothing in a leaf, and in a slot that was in use just now.
    #[inline(always)]
    pub(super) fn child<'g>(&self, at: usize, _guard: &'g Guard<'_>) -> Option<&'g Node<N>> {
        if self.is_leaf() {
            return None;
        }
        step();
        // Acquire: the child is complete.
        let child = self.rest(at).word.load(Acquire);
        // SAFETY: in a node that is no leaf, words are null or name nodes, which were complete when they were put. One
        // that is retired is named by no node that is not retired itself. So it was reachable when this guard of the
        // tree's domain began, or later, and is not freed while the guard lives.
        unsafe { child.as_ref() }
    }

    /// Finds a key that begins with the prefix. Under a version or the lock: otherwise the answer is any place.
    #[inline(always)]
    pub(super) fn search(&self, probe: &Probe<'_>, guard: &Guard<'_>) -> Spot {
        let (prefix, count) = (self.prefix(), self.count());
        let head = probe.head(prefix);
        let at = self.lower_bound(count, head);
        if at >= count || self.head(at) != head {
            return Spot { at, exists: false };
        }
        // Most often the only slot with this head.
        if let Some(tail) = probe.inline_tail(prefix)
            && self.tail(at, guard) == tail
        {
            return Spot { at, exists: true };
        }
        self.search_equal(probe, head, at, count, guard)
    }

    /// The first slot with at least this head, of `count`.
    #[inline(always)]
    fn lower_bound(&self, count: usize, head: u64) -> usize {
        let (mut at, mut size) = (0, count);
        while size > 1 {
            let half = size / 2;
            // A conditional move: which way it goes is not to be guessed.
            at = if self.head(at + half - 1) < head { at + half } else { at };
            size -= half;
        }
        at + usize::from(size == 1 && self.head(at) < head)
    }

    /// Finds a key among slots with its head, of which the first is at `low`.
    #[cold]
    #[inline(never)]
    fn search_equal(
        &self,
        probe: &Probe<'_>,
        head: u64,
        mut low: usize,
        count: usize,
        guard: &Guard<'_>,
    ) -> Spot {
        let mut high = head.checked_add(1).map_or(count, |next| self.lower_bound(count, next));
        while low < high {
            let middle = low.midpoint(high);
            match probe.compare_tail(head, self.tail(middle, guard), self.prefix()) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Spot { at: middle, exists: true },
                Ordering::Greater => high = middle,
            }
        }
        Spot { at: low, exists: false }
    }

    /// The slot whose child serves what is looked for. As [`search`](Self::search).
    #[inline(always)]
    pub(super) fn child_at(&self, target: Target<'_>, guard: &Guard<'_>) -> usize {
        match target {
            Target::At(probe) => {
                let Spot { at, exists } = self.search(probe, guard);
                // The first child serves what is below the second one's keys.
                if exists { at } else { at.saturating_sub(1) }
            }
            Target::Below(probe) => self.search(probe, guard).at.saturating_sub(1),
            Target::First => 0,
            Target::Last => self.count().saturating_sub(1),
        }
    }

    /// Appends the key in a slot to `bytes`. As [`search`](Self::search).
    pub(super) fn spell(&self, at: usize, bytes: &mut Vec<u8>, guard: &Guard<'_>) {
        let mut room = [0; INLINE_MAX];
        bytes.extend_from_slice(&self.range.bytes[..self.prefix()]);
        bytes.extend_from_slice(self.tail(at, guard).rest(self.head(at), self.prefix(), &mut room));
    }

    /// A slot as it is, for a node with the same prefix.
    pub(super) fn slot<'g>(&self, at: usize, guard: &'g Guard<'_>) -> (u64, Tail<'g>) {
        (self.head(at), self.tail(at, guard))
    }

    /// Replaces the key in a slot. Under the lock, or before others know the node.
    pub(super) fn set_key(&self, at: usize, head: u64, tail: Tail<'_>) {
        step();
        self.heads[at].store(head, Relaxed);
        self.rest(at).tail.store(tail);
    }

    /// Inserts a slot, under the lock or before others know the node. There is room.
    pub(super) fn insert(&self, at: usize, head: u64, tail: Tail<'_>, content: Content<'_, N>) {
        self.insert_raw(at, head, tail, content.raw(self.is_leaf()));
    }

    fn insert_raw(&self, at: usize, head: u64, tail: Tail<'_>, word: *mut Node<N>) {
        let count = self.count();
        let free = self.place(count);
        let (heads, places) = (&self.heads[at..=count], &self.places[at..=count]);
        heads.windows(2).rev().for_each(|pair| copy_head(&pair[0], &pair[1]));
        places.windows(2).rev().for_each(|pair| copy_place(&pair[0], &pair[1]));
        self.set_place(at, free);
        self.set_key(at, head, tail);
        self.put(at, word);
        self.set_count(count + 1);
    }

    /// Appends a copy of another node's word or child to a node that others do not know yet, with a key of its own.
    pub(super) fn append_from(&self, from: &Node<N>, at: usize, head: u64, tail: Tail<'_>) {
        assert_eq!(self.level, from.level, "words stay words, and children children");
        let word = from.rest(at).word.load(Relaxed);
        self.insert_raw(self.count(), head, tail, word);
    }

    /// Appends copies of another node's slots to a node that others do not know yet, as many as follow from what
    /// they are there: all where both nodes have the same prefix; those without a block where the other's is shorter.
    /// Answers how many.
    pub(super) fn append_all(
        &self,
        from: &Node<N>,
        slots: Range<usize>,
        guard: &Guard<'_>,
    ) -> usize {
        assert_eq!(self.level, from.level, "words stay words, and children children");
        let Some(by) = self.prefix().checked_sub(from.prefix()) else { return 0 };
        let (start, mut count) = (self.count(), self.count());
        for at in slots {
            let (head, tail) = from.slot(at, guard);
            let Some((head, tail)) =
                (if by == 0 { Some((head, tail)) } else { tail.behind(head, by) })
            else {
                break;
            };
            let rest = self.rest(count);
            self.heads[count].store(head, Relaxed);
            rest.tail.store(tail);
            rest.word.store(from.rest(at).word.load(Relaxed), Relaxed);
            count += 1;
        }
        self.set_count(count);
        count - start
    }

    /// Removes a slot, under the lock.
    pub(super) fn remove(&self, at: usize) {
        let (last, free) = (self.count() - 1, self.place(at));
        let (heads, places) = (&self.heads[at..=last], &self.places[at..=last]);
        heads.windows(2).for_each(|pair| copy_head(&pair[1], &pair[0]));
        places.windows(2).for_each(|pair| copy_place(&pair[1], &pair[0]));
        self.set_place(last, free);
        // No slot may go on naming what is retired, not even one that is out of use.
        self.set_key(last, 0, Tail::EMPTY);
        self.put(last, ptr::null_mut());
        self.set_count(last);
    }
}

#[inline(always)]
fn copy_head(from: &AtomicU64, to: &AtomicU64) {
    step();
    // Relaxed: under the lock, what we load was stored by us or by who had the lock before.
    to.store(from.load(Relaxed), Relaxed);
}

#[inline(always)]
fn copy_place(from: &AtomicU8, to: &AtomicU8) {
    step();
    // Relaxed: as in `copy_head`.
    to.store(from.load(Relaxed), Relaxed);
}
