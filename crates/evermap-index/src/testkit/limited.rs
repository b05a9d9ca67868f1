//! Plain memory that counts accesses, and ends a run that makes too many.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evermap_pm::medium::{Dram, Medium, Pages};
use evermap_pm::{PmU64, Result};

/// [`Dram`] with a budget of loads and stores: a loop over damaged words panics instead of running forever.
pub(crate) struct Limited {
    memory: Dram,
    steps: AtomicU64,
    budget: u64,
    /// A bit for each word that was loaded.
    loaded: Box<[AtomicU64]>,
}

impl Limited {
    /// Blank memory. The budget is in loads and stores.
    pub(crate) fn reserve(capacity: u64, budget: u64) -> Result<Self> {
        let memory = Dram::reserve(capacity, Pages::Base)?;
        let loaded = (0..memory.capacity() / 8 / 64).map(|_| AtomicU64::new(0)).collect();
        Ok(Limited { memory, steps: AtomicU64::new(0), budget, loaded })
    }

    /// Starts counting anew.
    pub(crate) fn forget_effort(&self) {
        self.steps.store(0, Relaxed);
        self.loaded.iter().for_each(|bits| bits.store(0, Relaxed));
    }

    /// Loads and stores so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Offsets of the words that were loaded.
    pub(crate) fn loaded(&self) -> Vec<u64> {
        let bit = |word: u64| self.loaded[word as usize / 64].load(Relaxed) >> (word % 64) & 1 == 1;
        (0..self.memory.len() / 8).filter(|&word| bit(word)).map(|word| word * 8).collect()
    }

    fn step(&self) {
        let steps = self.steps.fetch_add(1, Relaxed);
        assert!(steps < self.budget, "still not through after {steps} loads and stores");
    }

    fn note_load(&self, cell: &PmU64) {
        self.step();
        let word = self.memory.offset_of(cell) / 8;
        self.loaded[word as usize / 64].fetch_or(1 << (word % 64), Relaxed);
    }
}

// SAFETY: base, length and capacity are those of `Dram`, which keeps the promises; all accesses go through it.
unsafe impl Medium for Limited {
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
        "limited"
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.memory.flush_bytes(addr, len);
    }

    fn fence(&self) {
        self.memory.fence();
    }

    fn load(&self, cell: &PmU64) -> u64 {
        self.note_load(cell);
        self.memory.load(cell)
    }

    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        self.note_load(cell);
        self.memory.load_relaxed(cell)
    }

    fn store(&self, cell: &PmU64, value: u64) {
        self.step();
        self.memory.store(cell, value);
    }

    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.step();
        self.memory.store_transient(cell, value);
    }

    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.note_load(cell);
        self.memory.cas(cell, old, new)
    }

    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.note_load(cell);
        self.memory.cas_transient(cell, old, new)
    }
}
