//! What watches the accesses of an index to its medium.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evermap_pm::sim::{Access, Observer};

use super::delays;

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

impl Observer for Budget {
    fn observe(&self, access: Access) {
        match access {
            Access::Load(place) | Access::Swap(place) => {
                let word = place / 8;
                self.loaded[word as usize / 64].fetch_or(1 << (word % 64), Relaxed);
            }
            Access::Store(..) | Access::StoreTransient(_) => {}
            _ => return,
        }
        let steps = self.steps.fetch_add(1, Relaxed);
        assert!(steps < self.most, "no end after {steps} loads and stores");
    }
}

/// Lets the threads of a group pause at any access.
pub(crate) struct Stops;

impl Observer for Stops {
    fn observe(&self, access: Access) {
        if let Access::Load(_) | Access::Swap(_) | Access::Store(..) | Access::StoreTransient(_) =
            access
        {
            delays::step();
        }
    }
}
