//! Counters that every thread updates.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::epoch::thread_ordinal;
use evermap_pm::{Error, Result};

/// The number of copies of each counter, so that threads seldom share one.
const SHARDS: usize = 16;

/// The things that are counted.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Pairs,
    Leaves,
    Inner,
    Bytes,
    Splits,
    Merges,
}

const COUNTS: usize = Count::Merges as usize + 1;

#[repr(align(128))]
#[derive(Default)]
struct Shard([AtomicU64; COUNTS]);

/// Sharded counters. See the [module](self).
pub(super) struct Tally {
    shards: Box<[Shard]>,
    /// The largest number of bytes that the tree may take.
    limit: u64,
}

impl Tally {
    pub(super) fn new(limit: u64) -> Self {
        Tally { shards: (0..SHARDS).map(|_| Shard::default()).collect(), limit }
    }

    #[inline]
    fn cell(&self, count: Count) -> &AtomicU64 {
        &self.shards[thread_ordinal() % SHARDS].0[count as usize]
    }

    // Relaxed everywhere: a sum is exact only without concurrent updates, and a caller that knows
    // of none has synchronised with the updating threads.

    #[inline]
    pub(super) fn add(&self, count: Count, much: usize) {
        self.cell(count).fetch_add(much as u64, Relaxed);
    }

    #[inline]
    pub(super) fn subtract(&self, count: Count, much: usize) {
        // A single shard may wrap below zero; only the sum matters.
        self.cell(count).fetch_sub(much as u64, Relaxed);
    }

    /// Returns the sum of all shards, or 0 if subtractions are seen before their additions.
    pub(super) fn sum(&self, count: Count) -> u64 {
        let cells = self.shards.iter().map(|shard| shard.0[count as usize].load(Relaxed));
        let sum = cells.fold(0, u64::wrapping_add);
        if sum as i64 >= 0 { sum } else { 0 }
    }

    /// Checks that `bytes` more may be taken. Threads that call this at the same time may all be
    /// allowed the same bytes.
    ///
    /// # Errors
    /// `NoSpace` if the limit would be exceeded.
    #[inline]
    pub(super) fn allow(&self, bytes: usize) -> Result<()> {
        if self.limit == u64::MAX || bytes == 0 {
            return Ok(());
        }
        let wanted = self.sum(Count::Bytes).saturating_add(bytes as u64);
        if wanted <= self.limit { Ok(()) } else { Err(refusal(self.limit, wanted - self.limit)) }
    }
}

/// Creates the error for a limit that is exceeded by `missing` bytes.
#[cold]
pub(super) fn refusal(limit: u64, missing: u64) -> Error {
    Error::no_space(format!("the ordered index may take {limit} bytes"), missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_adds_another_may_subtract() {
        let tally = &Tally::new(100);
        tally.add(Count::Bytes, 60);
        assert!(tally.allow(40).is_ok() && tally.allow(41).is_err());
        std::thread::scope(|threads| {
            threads.spawn(|| tally.subtract(Count::Bytes, 50));
        });
        assert_eq!((tally.sum(Count::Bytes), tally.sum(Count::Pairs)), (10, 0));
        assert!(tally.allow(90).is_ok() && tally.allow(91).is_err());
    }
}
