//! Ordinary memory with a callback for every access.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evermap_pm::medium::{Dram, Medium, Pages};
use evermap_pm::{PmU64, Result};

use super::delays;

/// The callbacks.
pub(crate) trait Hook: Send + Sync + 'static {
    /// Called before the word with this number is loaded, or compared and swapped.
    fn before_load(&self, word: u64);
    /// Called before a word is stored.
    fn before_store(&self);
    /// Called before a fence.
    fn before_fence(&self) {}
}

/// [`Dram`] with a `Hook`. Not generic over the hook, because every index is compiled once for
/// each type of medium.
pub struct Hooked {
    memory: Dram,
    hook: Arc<dyn Hook>,
}

impl Hooked {
    /// Creates blank memory.
    pub(crate) fn reserve(capacity: u64, hook: Arc<dyn Hook>) -> Result<Self> {
        Ok(Hooked { memory: Dram::reserve(capacity, Pages::Base)?, hook })
    }

    #[inline(always)]
    fn before_load(&self, cell: &PmU64) {
        self.hook.before_load(self.memory.offset_of(cell) / 8);
    }
}

/// Counts accesses, records the words that were loaded, and ends a run that exceeds its limit.
pub(crate) struct Budget {
    steps: AtomicU64,
    most: u64,
    /// One bit for each word that was loaded.
    loaded: Box<[AtomicU64]>,
}

impl Budget {
    /// Creates a budget of `most` loads and stores in a medium of `capacity` bytes. One more access
    /// panics.
    pub(crate) fn new(most: u64, capacity: u64) -> Self {
        let words = capacity.next_multiple_of(4096) / 8;
        let loaded = (0..words.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Budget { steps: AtomicU64::new(0), most, loaded }
    }

    /// Resets the counts.
    pub(crate) fn reset(&self) {
        self.steps.store(0, Relaxed);
        self.loaded.iter().for_each(|bits| bits.store(0, Relaxed));
    }

    /// Returns the number of loads and stores so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Returns the offsets of the words that were loaded.
    pub(crate) fn loaded(&self) -> Vec<u64> {
        let bit = |word: u64| self.loaded[word as usize / 64].load(Relaxed) >> (word % 64) & 1 == 1;
        (0..self.loaded.len() as u64 * 64).filter(|&word| bit(word)).map(|word| word * 8).collect()
    }
}

impl Hook for Budget {
    fn before_load(&self, word: u64) {
        self.loaded[word as usize / 64].fetch_or(1 << (word % 64), Relaxed);
        self.before_store();
    }

    fn before_store(&self) {
        let steps = self.steps.fetch_add(1, Relaxed);
        assert!(steps < self.most, "no end after {steps} loads and stores");
    }
}

/// Lets the threads of a group pause at any access.
pub(crate) struct Stops;

impl Hook for Stops {
    fn before_load(&self, _word: u64) {
        delays::step();
    }

    fn before_store(&self) {
        delays::step();
    }
}

// SAFETY: base, length and capacity are those of `Dram`, which keeps the promises. All accesses go
// through it.
unsafe impl Medium for Hooked {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.memory.grow(len)
    }

    fn discard(&self, range: Range<u64>) {
        self.memory.discard(range);
    }

    fn sync(&self) -> Result<()> {
        self.memory.sync()
    }

    fn name(&self) -> &'static str {
        "hooked"
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.memory.flush_bytes(addr, len);
    }

    fn fence(&self) {
        self.hook.before_fence();
        self.memory.fence();
    }

    fn load(&self, cell: &PmU64) -> u64 {
        self.before_load(cell);
        self.memory.load(cell)
    }

    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        self.before_load(cell);
        self.memory.load_relaxed(cell)
    }

    fn store(&self, cell: &PmU64, value: u64) {
        self.hook.before_store();
        self.memory.store(cell, value);
    }

    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.hook.before_store();
        self.memory.store_transient(cell, value);
    }

    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.before_load(cell);
        self.memory.cas(cell, old, new)
    }

    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.before_load(cell);
        self.memory.cas_transient(cell, old, new)
    }
}
