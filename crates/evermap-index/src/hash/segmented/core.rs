//! The fields in ordinary memory that every segmented index has, besides those that locate
//! segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::region::{PoisonOnPanic, Region};
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Guard, Medium, Pool, Result};

use super::refusals::Refusals;
use crate::Stats;

/// The number of locks for recovering segments.
const STRIPES: usize = 64;

/// The pool, with copies of the fields that operations need; locks for recovery; counters.
pub struct Core<M: Medium> {
    /// The pool that contains the index.
    pub pool: Arc<Pool<M>>,
    /// The pool's region.
    pub region: Arc<Region<M>>,
    /// The offset of the root block.
    pub root: u64,
    /// The region's generation: of this opener.
    pub generation: u64,
    /// The seed of the hash function.
    pub seed: u64,
    /// Locks for recovering segments, chosen by a hash of the segment's offset.
    recovering: Box<[Mutex<()>]>,
    /// Segments for which a split was refused.
    pub refusals: Refusals,
    splits: AtomicU64,
    recovered: AtomicU64,
}

/// An index with a [`Core`].
pub trait HasCore: Sized {
    /// The medium that holds the index.
    type Medium: Medium;

    /// Returns the fields that all segmented indexes have.
    fn core(&self) -> &Core<Self::Medium>;
}

impl<M: Medium> Core<M> {
    /// Creates the core of an index whose root block is at `root`.
    pub fn new(pool: Arc<Pool<M>>, root: u64) -> Self {
        Core {
            region: pool.share_region(),
            root,
            generation: pool.generation(),
            seed: pool.seed(),
            recovering: (0..STRIPES).map(|_| Mutex::ranked(Rank::Recovery, ())).collect(),
            refusals: Refusals::default(),
            splits: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            pool,
        }
    }

    /// Returns the medium that holds the index.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        self.region.medium()
    }

    /// Asserts, in debug builds, that the guard belongs to this pool.
    #[inline(always)]
    pub fn expect_own(&self, guard: &Guard<'_>) {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
    }

    /// Begins a change. A panic poisons the region unless the returned value was disarmed before.
    ///
    /// # Errors
    /// `Poisoned`, `Forked`.
    #[inline(always)]
    pub fn begin_change(&self, guard: &Guard<'_>) -> Result<PoisonOnPanic<'_>> {
        self.expect_own(guard);
        self.region.ensure_writable()?;
        Ok(self.region.poison_on_panic())
    }

    /// Waits until no other thread is recovering the segment at `offset`, and returns a lock that
    /// excludes other threads from doing so.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn begin_recovery(&self, offset: u64) -> Result<MutexGuard<'_, ()>> {
        self.region.ensure_sound()?;
        // Fibonacci hashing: the offsets of segments are multiples of their size, which differs
        // between the indexes.
        let hash = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let stripe = &self.recovering[hash as usize % STRIPES];
        Ok(stripe.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Counts a split, for statistics.
    pub fn count_split(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the recovery of a segment, for statistics.
    pub fn count_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counters, and the bytes that the locks occupy, to `stats`.
    pub fn complete_stats(&self, stats: &mut Stats) {
        stats.dram_bytes += size_of_val(&*self.recovering) as u64;
        stats.splits = self.splits.load(Ordering::Relaxed);
        stats.recovered = self.recovered.load(Ordering::Relaxed);
    }
}
