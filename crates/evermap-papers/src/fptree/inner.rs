//! The inner nodes, in ordinary memory: the least key of each leaf, and its offset.

use std::collections::BTreeMap;
use std::ops::Bound;

use evermap_index::ordered::bplus::{BPlus, Config};
use evermap_index::ordered::{OrderedIndex, Run};
use evermap_pm::Result;

use crate::htm::Elided;

/// Inner nodes of some kind. Threads use them at the same time.
pub trait Inner: Send + Sync + Sized + 'static {
    /// Makes the inner nodes of leaves in the order of their keys, with up to `threads` threads.
    /// O(leaves).
    ///
    /// # Errors
    /// `NoSpace`.
    fn load(leaves: &[Run], threads: usize) -> Result<Self>;

    /// Returns the leaf with the greatest least key up to a bound. O(log leaves).
    ///
    /// # Errors
    /// `Poisoned`.
    fn floor(&self, to: Bound<&[u8]>) -> Result<Option<u64>>;

    /// Adds a leaf, or replaces the one with the same least key.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`.
    fn add(&self, low: &[u8], leaf: u64) -> Result<()>;

    /// Removes a leaf, if this one has that least key.
    ///
    /// # Errors
    /// `Poisoned`.
    fn remove(&self, low: &[u8], leaf: u64) -> Result<()>;

    /// Returns the number of leaves.
    ///
    /// # Errors
    /// `Poisoned`.
    fn leaves(&self) -> Result<u64>;

    /// Returns the height, and bytes of ordinary memory.
    fn size(&self) -> (u32, u64);

    /// Describes each violated invariant.
    fn check(&self) -> Vec<String>;
}

/// A B+tree whose readers take no lock.
impl Inner for BPlus {
    fn load(leaves: &[Run], threads: usize) -> Result<Self> {
        if leaves.iter().all(Run::is_empty) {
            return BPlus::with_config(Config::default());
        }
        BPlus::load(Config::default(), leaves, threads)
    }

    #[inline]
    fn floor(&self, to: Bound<&[u8]>) -> Result<Option<u64>> {
        Ok(BPlus::floor(self, to))
    }

    fn add(&self, low: &[u8], leaf: u64) -> Result<()> {
        self.upsert(low, leaf).map(drop)
    }

    fn remove(&self, low: &[u8], leaf: u64) -> Result<()> {
        self.remove_if(low, leaf).map(drop)
    }

    fn leaves(&self) -> Result<u64> {
        Ok(OrderedIndex::len(self))
    }

    fn size(&self) -> (u32, u64) {
        let stats = self.stats();
        (stats.depth, stats.dram_bytes)
    }

    fn check(&self) -> Vec<String> {
        OrderedIndex::check(self)
    }
}

/// A B-tree for one thread at a time, which hardware transactions use as if it were theirs alone.
pub type Transactional = Elided<BTreeMap<Vec<u8>, u64>>;

impl Inner for Transactional {
    fn load(leaves: &[Run], _threads: usize) -> Result<Self> {
        let leaves = leaves.iter().flat_map(Run::iter);
        Ok(Elided::new(leaves.map(|(low, leaf)| (low.to_vec(), leaf)).collect()))
    }

    fn floor(&self, to: Bound<&[u8]>) -> Result<Option<u64>> {
        self.with(|leaves| {
            leaves.range::<[u8], _>((Bound::Unbounded, to)).next_back().map(|(_, &leaf)| leaf)
        })
    }

    fn add(&self, low: &[u8], leaf: u64) -> Result<()> {
        self.with(|leaves| leaves.insert(low.to_vec(), leaf)).map(drop)
    }

    fn remove(&self, low: &[u8], leaf: u64) -> Result<()> {
        self.with(|leaves| {
            if leaves.get(low) == Some(&leaf) {
                leaves.remove(low);
            }
        })
    }

    fn leaves(&self) -> Result<u64> {
        self.with(|leaves| leaves.len() as u64)
    }

    /// The height is not known.
    fn size(&self) -> (u32, u64) {
        (0, self.bytes().unwrap_or(0))
    }

    fn check(&self) -> Vec<String> {
        Vec::new()
    }
}
