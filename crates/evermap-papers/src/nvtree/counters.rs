//! What the tree counts, for those who measure it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::upper::Size;

/// What was counted since a tree was opened, and the size of what is above its leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Leaves that were split.
    pub splits: u64,
    /// Leaves that were merged with their right neighbour.
    pub merges: u64,
    /// Leaves that were replaced by one with the keys that are bound.
    pub replacements: u64,
    /// Full parents that gave half of their leaves to a spare one.
    pub parent_splits: u64,
    /// How often everything above the leaves was built anew.
    pub rebuilds: u64,
    /// The time that rebuilds took, in all.
    pub rebuild_time: Duration,
    /// What is above the leaves now.
    pub upper: Size,
}

/// What is being counted. Relaxed throughout: counts for information.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) splits: AtomicU64,
    pub(super) merges: AtomicU64,
    pub(super) replacements: AtomicU64,
    pub(super) parent_splits: AtomicU64,
    recovered: AtomicU64,
    rebuilds: AtomicU64,
    rebuild_nanos: AtomicU64,
}

impl Counted {
    /// Counts one more.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a rebuild that took this long.
    pub(super) fn count_rebuild(&self, time: Duration) {
        Self::count(&self.rebuilds);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.rebuild_nanos.fetch_add(nanos, Relaxed);
    }

    /// Counts the leaves that were recovered at opening.
    pub(super) fn count_recovered(&self, leaves: usize) {
        self.recovered.store(leaves as u64, Relaxed);
    }

    /// Returns the number of leaves that were recovered at opening.
    pub(super) fn recovered(&self) -> u64 {
        self.recovered.load(Relaxed)
    }

    pub(super) fn counters(&self, upper: Size) -> Counters {
        Counters {
            splits: self.splits.load(Relaxed),
            merges: self.merges.load(Relaxed),
            replacements: self.replacements.load(Relaxed),
            parent_splits: self.parent_splits.load(Relaxed),
            rebuilds: self.rebuilds.load(Relaxed),
            rebuild_time: Duration::from_nanos(self.rebuild_nanos.load(Relaxed)),
            upper,
        }
    }
}
