//! Counters of changes of structure since opening.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Stats;

/// Counts splits and the leaves that were taken out.
#[derive(Default)]
pub(super) struct Tally {
    splits: AtomicU64,
    merges: AtomicU64,
}

impl Tally {
    /// Counts a split.
    pub(super) fn split(&self) {
        // Relaxed, here and below: counts for information.
        self.splits.fetch_add(1, Relaxed);
    }

    /// Counts a leaf that was taken out.
    pub(super) fn merge(&self) {
        self.merges.fetch_add(1, Relaxed);
    }

    /// Adds the counts to statistics.
    pub(super) fn add_to(&self, stats: &mut Stats) {
        stats.splits += self.splits.load(Relaxed);
        stats.merges += self.merges.load(Relaxed);
    }
}
