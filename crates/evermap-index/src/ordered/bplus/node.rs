//! Nodes: the range of keys that a node serves, and its slots.
//!
//! The range of a node never changes; if a range has to change, other nodes replace the node. So
//! after publication only the slots, their count and the version of a node are written.

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

/// A node with slots for `N` pairs of a key and a word, in order. In a leaf, words are those of the
/// tree's pairs. In other nodes they are children, each with the least key that it serves.
///
/// Inserting a slot moves the heads and places of the slots after it, and leaves their rests where
/// they are: so two or three cache lines change instead of ten.
#[repr(C)]
pub(super) struct Node<const N: usize> {
    pub(super) version: Version,
    count: AtomicU32,
    /// The height above the leaves.
    pub(super) level: u32,
    range: KeyRange,
    /// The index of each slot's rest. While the node is not locked, these are a permutation of all
    /// indexes: slots that are not in use have those of the free rests.
    places: [AtomicU8; N],
    heads: [AtomicU64; N],
    rests: [Rest<N>; N],
}

/// The rest of a slot: its tail and its word, which are always in one cache line.
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

/// The range of keys that a node serves: from `low` up to and excluding `high`.
pub(super) struct KeyRange {
    /// The low key followed by the high key. A high key is never empty, so nothing follows the low
    /// key if there is no upper end.
    bytes: Box<[u8]>,
    low_length: u32,
    prefix: u32,
}

impl KeyRange {
    /// Creates a range.
    ///
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
            // Every key of the range begins with the bytes that both ends share.
            prefix: high.map_or(0, |high| shared(low, high)) as u32,
        })
    }

    pub(super) fn low(&self) -> &[u8] {
        &self.bytes[..self.low_length as usize]
    }

    /// Returns the first key beyond the range, or `None` if there is no upper end.
    pub(super) fn high(&self) -> Option<&[u8]> {
        let high = &self.bytes[self.low_length as usize..];
        (!high.is_empty()).then_some(high)
    }

    /// Returns the number of bytes that all keys of the range begin with.
    #[inline(always)]
    pub(super) fn prefix(&self) -> usize {
        self.prefix as usize
    }
}

/// Returns the length of the longest common prefix of two keys.
pub(super) fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The position of a key, or the position at which it would be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) at: usize,
    pub(super) exists: bool,
}

/// The target of a descent.
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

/// The content of a slot beside the key.
#[derive(Clone, Copy)]
pub(super) enum Content<'c, const N: usize> {
    /// The word of a pair, in a leaf.
    Word(u64),
    /// A child, in any other node.
    Child(&'c Node<N>),
}

impl<const N: usize> Content<'_, N> {
    fn raw(self, leaf: bool) -> *mut Node<N> {
        match self {
            Content::Word(word) if leaf => ptr::without_provenance_mut(word as usize),
            Content::Child(child) if !leaf => ptr::from_ref(child).cast_mut(),
            // A word in a node that is no leaf would be followed as an address.
            _ => unreachable!("words are for leaves, children for others"),
        }
    }
}

/// A node that is not published. Freed when dropped; what its slots name is not.
pub(super) struct OwnedNode<const N: usize> {
    node: NonNull<Node<N>>,
    arena: Arc<Arena<Node<N>>>,
}

// SAFETY: it owns memory that no other thread knows; the fields of a node are atomics, numbers and
// a box.
unsafe impl<const N: usize> Send for OwnedNode<N> {}
// SAFETY: it gives only shared references to a node, which is `Sync`.
unsafe impl<const N: usize> Sync for OwnedNode<N> {}

impl<const N: usize> OwnedNode<N> {
    /// Creates a node without pairs.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(arena: &Arc<Arena<Node<N>>>, level: u32, range: KeyRange) -> Result<Self> {
        let node = arena.allocate()?;
        let place = node.as_ptr();
        // SAFETY: allocated for a value of this type. All fields are initialised here, in place
        // because the node is large.
        // large.
        unsafe {
            (&raw mut (*place).version).write(Version::new());
            (&raw mut (*place).count).write(AtomicU32::new(0));
            (&raw mut (*place).level).write(level);
            (&raw mut (*place).range).write(range);
            (&raw mut (*place).places).write(std::array::from_fn(|at| AtomicU8::new(at as u8)));
            (&raw mut (*place).heads).write([const { AtomicU64::new(0) }; N]);
            (&raw mut (*place).rests).write([const { Rest::free() }; N]);
        }
        Ok(OwnedNode { node, arena: arena.clone() })
    }

    /// Passes the ownership to the node that names this one now. The node is valid for the life of
    /// the guard, which is of the tree's domain, even if it is retired meanwhile.
    pub(super) fn publish<'g>(self, _guard: &'g Guard<'_>) -> &'g Node<N> {
        // `reclaim` knows only the address.
        self.node.as_ptr().expose_provenance();
        let node = self.node;
        // Drops the reference to the arena, but not the node.
        let mut owned = ManuallyDrop::new(self);
        // SAFETY: the field is not used again.
        unsafe { ptr::drop_in_place(&mut owned.arena) };
        // SAFETY: initialised by `new`, and freed only after it was retired, so not before the
        // guard ends.
        unsafe { node.as_ref() }
    }

    /// Takes back the ownership of a [published](Self::publish) node.
    ///
    /// # Safety
    /// 1. A node of this type and arena at `address` was published and has not been reclaimed
    ///    since.
    /// 2. It is not used by others now or later.
    pub(super) unsafe fn reclaim(arena: &Arc<Arena<Node<N>>>, address: usize) -> Self {
        let node = NonNull::new(with_exposed_provenance_mut(address));
        OwnedNode { node: node.expect("no node is at address 0"), arena: arena.clone() }
    }
}

impl<const N: usize> Deref for OwnedNode<N> {
    type Target = Node<N>;

    #[inline(always)]
    fn deref(&self) -> &Node<N> {
        // SAFETY: initialised by `new`, and freed only by drop.
        unsafe { self.node.as_ref() }
    }
}

impl<const N: usize> Drop for OwnedNode<N> {
    fn drop(&mut self) {
        // SAFETY: initialised by `new` in memory of this arena, and owned by this value.
        unsafe {
            self.node.drop_in_place();
            self.arena.free(self.node);
        }
    }
}

impl<const N: usize> Node<N> {
    /// Returns the bytes of memory that the node takes, without blocks.
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

    /// Returns the number of slots in use, at most `N`.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        step();
        // Relaxed: the version proves that the count belongs to the slots.
        self.count.load(Relaxed) as usize
    }

    fn set_count(&self, count: usize) {
        step();
        self.count.store(count as u32, Relaxed);
    }

    /// Prefetches the lines that a search reads first.
    #[inline(always)]
    pub(super) fn prefetch_heads(node: *const Self) {
        Self::prefetch_lines(node, offset_of!(Self, rests));
    }

    /// Prefetches all lines.
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

    /// Prefetches the rest that the next insertion will write.
    #[inline(always)]
    pub(super) fn prefetch_free(&self) {
        if let Some(place) = self.places.get(self.count()) {
            prefetch(ptr::from_ref(&self.rests[place.load(Relaxed) as usize]).cast());
        }
    }

    /// Returns the possibly outdated address of the child in a slot, for prefetching only.
    #[inline(always)]
    pub(super) fn child_hint(&self, at: usize) -> *const Self {
        // Relaxed: the address is not dereferenced.
        if at < N { self.rest(at).word.load(Relaxed) } else { ptr::null() }
    }

    /// Returns the index of a slot's rest.
    #[inline(always)]
    fn place(&self, at: usize) -> u8 {
        step();
        // Relaxed: any value is below `N`, and the version proves that it is the right one.
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

    /// Returns `true` if each rest belongs to exactly one slot.
    pub(super) fn is_permuted(&self) -> bool {
        let mut met = [false; N];
        (0..N).for_each(|at| met[self.place(at) as usize] = true);
        met == [true; N]
    }

    #[inline(always)]
    fn head(&self, at: usize) -> u64 {
        step();
        // Relaxed: the version proves the value.
        self.heads[at].load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn tail<'g>(&self, at: usize, guard: &'g Guard<'_>) -> Tail<'g> {
        self.rest(at).tail.load(guard)
    }

    /// Returns the word of a leaf's slot.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u64 {
        step();
        // Acquire: a thread that reads a word sees what was done before it was stored.
        self.rest(at).word.load(Acquire).addr() as u64
    }

    /// Replaces the content of a slot. The node is locked.
    #[inline(always)]
    pub(super) fn set_content(&self, at: usize, content: Content<'_, N>) {
        self.put(at, content.raw(self.is_leaf()));
    }

    #[inline(always)]
    fn put(&self, at: usize, word: *mut Node<N>) {
        step();
        // Release: a thread that finds a node here sees it initialised.
        self.rest(at).word.store(word, Release);
    }

    /// Returns the child in a slot. Returns `None` in a leaf, and if the slot has been removed.
    #[inline(always)]
    pub(super) fn child<'g>(&self, at: usize, _guard: &'g Guard<'_>) -> Option<&'g Node<N>> {
        if self.is_leaf() {
            return None;
        }
        step();
        // Acquire: pairs with the release in `put`, so that the child is initialised.
        let child = self.rest(at).word.load(Acquire);
        // SAFETY: in a node that is no leaf, words are null or name nodes, which were initialised
        // before. A retired node is named only by retired nodes. So the child was reachable when
        // this guard of the tree's domain began, or later, and is not freed while the guard lives.
        unsafe { child.as_ref() }
    }

    /// Searches for a key that begins with the prefix. Without the lock, the result counts only if
    /// the version is validated afterwards.
    #[inline(always)]
    pub(super) fn search(&self, probe: &Probe<'_>, guard: &Guard<'_>) -> Position {
        let (prefix, count) = (self.prefix(), self.count());
        let head = probe.head(prefix);
        let at = self.lower_bound(count, head);
        if at >= count || self.head(at) != head {
            return Position { at, exists: false };
        }
        // In most cases this is the only slot with this head.
        if let Some(tail) = probe.inline_tail(prefix)
            && self.tail(at, guard) == tail
        {
            return Position { at, exists: true };
        }
        self.search_equal(probe, head, at, count, guard)
    }

    /// Returns the first of `count` slots whose head is not less than `head`.
    #[inline(always)]
    fn lower_bound(&self, count: usize, head: u64) -> usize {
        let (mut at, mut size) = (0, count);
        while size > 1 {
            let half = size / 2;
            // A conditional move, because a branch could not be predicted.
            at = if self.head(at + half - 1) < head { at + half } else { at };
            size -= half;
        }
        at + usize::from(size == 1 && self.head(at) < head)
    }

    /// Searches among the slots with the head `head`, the first of which is at `low`.
    #[cold]
    #[inline(never)]
    fn search_equal(
        &self,
        probe: &Probe<'_>,
        head: u64,
        mut low: usize,
        count: usize,
        guard: &Guard<'_>,
    ) -> Position {
        let mut high = head.checked_add(1).map_or(count, |next| self.lower_bound(count, next));
        while low < high {
            let middle = low.midpoint(high);
            match probe.compare_tail(head, self.tail(middle, guard), self.prefix()) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Position { at: middle, exists: true },
                Ordering::Greater => high = middle,
            }
        }
        Position { at: low, exists: false }
    }

    /// Returns the slot whose child serves the target. See [`search`](Self::search) for the
    /// validity.
    #[inline(always)]
    pub(super) fn child_at(&self, target: Target<'_>, guard: &Guard<'_>) -> usize {
        match target {
            Target::At(probe) => {
                let Position { at, exists } = self.search(probe, guard);
                // A child serves the keys up to the next child's least key.
                if exists { at } else { at.saturating_sub(1) }
            }
            Target::Below(probe) => self.search(probe, guard).at.saturating_sub(1),
            Target::First => 0,
            Target::Last => self.count().saturating_sub(1),
        }
    }

    /// Appends the key in a slot to `bytes`. See [`search`](Self::search) for the validity.
    pub(super) fn append_key(&self, at: usize, bytes: &mut Vec<u8>, guard: &Guard<'_>) {
        let (mut buffer, prefix) = ([0; INLINE_MAX], self.prefix());
        bytes.extend_from_slice(&self.range.bytes[..prefix]);
        bytes.extend_from_slice(self.tail(at, guard).rest(self.head(at), prefix, &mut buffer));
    }

    /// Returns the head and the tail of a slot.
    pub(super) fn slot<'g>(&self, at: usize, guard: &'g Guard<'_>) -> (u64, Tail<'g>) {
        (self.head(at), self.tail(at, guard))
    }

    /// Replaces the key in a slot. The node is locked or not published.
    pub(super) fn set_key(&self, at: usize, head: u64, tail: Tail<'_>) {
        step();
        self.heads[at].store(head, Relaxed);
        self.rest(at).tail.store(tail);
    }

    /// Inserts a slot. The node is locked or not published, and not full.
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

    /// Appends a copy of another node's word or child, with a new encoding of its key. This node is
    /// not published.
    pub(super) fn append_from(&self, from: &Node<N>, at: usize, head: u64, tail: Tail<'_>) {
        assert_eq!(self.level, from.level, "contents are of different kinds");
        let word = from.rest(at).word.load(Relaxed);
        self.insert_raw(self.count(), head, tail, word);
    }

    /// Appends copies of another node's slots, until a slot has to be encoded again, and returns
    /// the number of copies. All slots can be copied if both nodes have the same prefix, and those
    /// without a block if the other's prefix is shorter. This node is not published.
    pub(super) fn append_all(
        &self,
        from: &Node<N>,
        slots: Range<usize>,
        guard: &Guard<'_>,
    ) -> usize {
        assert_eq!(self.level, from.level, "contents are of different kinds");
        let Some(by) = self.prefix().checked_sub(from.prefix()) else { return 0 };
        let (start, mut count) = (self.count(), self.count());
        for at in slots {
            let (head, tail) = from.slot(at, guard);
            let Some((head, tail)) =
                (if by == 0 { Some((head, tail)) } else { tail.skip_prefix(head, by) })
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

    /// Removes a slot. The node is locked.
    pub(super) fn remove(&self, at: usize) {
        let (last, free) = (self.count() - 1, self.place(at));
        let (heads, places) = (&self.heads[at..=last], &self.places[at..=last]);
        heads.windows(2).for_each(|pair| copy_head(&pair[1], &pair[0]));
        places.windows(2).for_each(|pair| copy_place(&pair[1], &pair[0]));
        self.set_place(last, free);
        // No slot may name what is retired, not even one that is not in use.
        self.set_key(last, 0, Tail::EMPTY);
        self.put(last, ptr::null_mut());
        self.set_count(last);
    }
}

#[inline(always)]
fn copy_head(from: &AtomicU64, to: &AtomicU64) {
    step();
    // Relaxed: the lock is held, so the value was stored by this thread or by an earlier holder.
    to.store(from.load(Relaxed), Relaxed);
}

#[inline(always)]
fn copy_place(from: &AtomicU8, to: &AtomicU8) {
    step();
    // Relaxed: as in `copy_head`.
    to.store(from.load(Relaxed), Relaxed);
}
