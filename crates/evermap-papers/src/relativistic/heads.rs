//! The array of a table: the heads of its chains, and the mask that goes with it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use evermap_pm::medium::{Dram, Pages};
use evermap_pm::{Error, Medium, Result};

use super::node::Link;
use super::steps::{Kept, load_step, store_step};

/// Heads of chains, and the mask that takes a hash to its chain. Both are reached through one word,
/// so a reader cannot combine the mask of one array with another array.
pub(super) struct Heads<K, V> {
    /// The number of buckets minus one. Changes only if the table is resized in place.
    mask: AtomicU64,
    links: NonNull<Link<K, V>>,
    capacity: usize,
    memory: Memory,
    kept: Kept,
}

enum Memory {
    Allocated,
    /// Whole pages, so that a part can be returned to the system, and added again, in place.
    Reserved(Dram),
}

// SAFETY: it owns memory that consists of atomics. It lends links to nodes, whose keys and values
// are then shared and dropped by other threads.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Heads<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Heads<K, V> {}

impl<K, V> Heads<K, V> {
    /// Creates `buckets` empty chains.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(buckets: u64) -> Result<Box<Self>> {
        Self::allocate(buckets, buckets)
    }

    fn allocate(buckets: u64, capacity: u64) -> Result<Box<Self>> {
        let capacity = usize::try_from(capacity).map_err(|_| no_memory(capacity))?;
        let layout = Self::layout(capacity)?;
        // SAFETY: the size is not zero, because there is at least one bucket.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let links = memory.ok_or_else(|| no_memory(layout.size() as u64))?.cast();
        Ok(Self::with(buckets, links, capacity, Memory::Allocated))
    }

    /// Creates `buckets` empty chains in an array that can grow in place to `capacity` chains, and
    /// return its upper half to the system. Memory is taken from the system when it is first used.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn reserve(buckets: u64, capacity: u64) -> Result<Box<Self>> {
        if cfg!(miri) {
            // The interpreter maps no memory.
            return Self::allocate(buckets, capacity);
        }
        let bytes = capacity.checked_mul(size_of::<Link<K, V>>() as u64);
        let bytes = bytes.ok_or_else(|| no_memory(u64::MAX))?;
        let dram = Dram::reserve(bytes, Pages::Base)?;
        dram.grow(bytes)?;
        let links = dram.base().cast();
        Ok(Self::with(buckets, links, capacity as usize, Memory::Reserved(dram)))
    }

    fn with(
        buckets: u64,
        links: NonNull<Link<K, V>>,
        capacity: usize,
        memory: Memory,
    ) -> Box<Self> {
        debug_assert!(buckets.is_power_of_two() && buckets as usize <= capacity);
        let mask = AtomicU64::new(buckets - 1);
        Box::new(Heads { mask, links, capacity, memory, kept: Kept::default() })
    }

    fn layout(capacity: usize) -> Result<Layout> {
        Layout::array::<Link<K, V>>(capacity).map_err(|_| no_memory(u64::MAX))
    }

    /// Returns the mask.
    #[inline(always)]
    pub(super) fn mask(&self) -> u64 {
        load_step();
        self.kept.assert_alive("array");
        // Relaxed: a new array is initialised before the word that names it is published; and when
        // the mask of an array changes, a grace period separates that from what was stored before.
        self.mask.load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn buckets(&self) -> u64 {
        self.mask() + 1
    }

    #[inline(always)]
    fn links(&self) -> &[Link<K, V>] {
        // SAFETY: `capacity` links, in memory that lives as long as `self` and that was zeroed,
        // which makes each a link to nothing. They are atomics.
        unsafe { std::slice::from_raw_parts(self.links.as_ptr(), self.capacity) }
    }

    /// Returns the head of the chain where a key with this hash is.
    #[inline(always)]
    pub(super) fn entry(&self, hash: u64) -> &Link<K, V> {
        // Loaded once: the chain follows from one mask.
        self.head(hash & self.mask())
    }

    /// Returns the head of one chain.
    ///
    /// # Panics
    /// If the array is not that large.
    #[inline(always)]
    pub(super) fn head(&self, bucket: u64) -> &Link<K, V> {
        self.kept.assert_alive("array");
        &self.links()[bucket as usize]
    }

    /// Returns the head of one chain, or `None` if the array is not that large.
    pub(super) fn get(&self, bucket: u64) -> Option<&Link<K, V>> {
        self.links().get(bucket as usize)
    }

    /// Returns `true` if the array has space for this number of buckets.
    pub(super) fn has_space(&self, buckets: u64) -> bool {
        buckets as usize <= self.capacity
    }

    /// Changes the number of buckets in place.
    pub(super) fn set_buckets(&self, buckets: u64) {
        debug_assert!(buckets.is_power_of_two() && self.has_space(buckets));
        // Release: not needed for the order, which the grace periods around this store ensure, but
        // for the memory that they may not cover: what the caller itself stored.
        self.mask.store(buckets - 1, Release);
        store_step();
    }

    /// Clears the heads from bucket `from` up to bucket `to`, which no reader uses, and returns
    /// their memory to the system if it consists of whole pages.
    pub(super) fn discard(&self, from: u64, to: u64) {
        const PAGE_LINKS: u64 = 4096 / size_of::<*const ()>() as u64;
        let (first, end) = (from.next_multiple_of(PAGE_LINKS), to / PAGE_LINKS * PAGE_LINKS);
        let pages = match &self.memory {
            Memory::Reserved(dram) if first < end => {
                dram.discard(first * 8..end * 8);
                first..end
            }
            _ => to..to,
        };
        (from..pages.start)
            .chain(pages.end..to)
            .for_each(|bucket| self.head(bucket).point_to(None));
    }

    /// Returns the bytes of memory that the array takes.
    pub(super) fn bytes(&self) -> usize {
        let links = match &self.memory {
            Memory::Allocated => self.capacity,
            // Relaxed: a number for statistics.
            Memory::Reserved(_) => self.mask.load(Relaxed) as usize + 1,
        };
        links * size_of::<Link<K, V>>() + size_of::<Self>()
    }

    /// Marks it as freed, for planted mistakes.
    pub(super) fn mark_freed(&self) {
        self.kept.mark_freed();
    }
}

impl<K, V> Drop for Heads<K, V> {
    fn drop(&mut self) {
        if matches!(self.memory, Memory::Allocated) {
            let layout = Self::layout(self.capacity).expect("computed when it was allocated");
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.links.as_ptr().cast(), layout) };
        }
    }
}

#[cold]
fn no_memory(bytes: u64) -> Error {
    Error::no_space("memory of the process", bytes)
}
