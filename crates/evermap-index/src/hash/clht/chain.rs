//! Chains: a home bucket and its overflow buckets.
//!
//! A pair is in its home bucket or in an overflow bucket, and stays in its bucket until it is
//! removed. So a reader that follows the chain, and finds each bucket consistent, misses no pair
//! that was present all the time. New buckets are inserted directly after the home bucket, so links
//! lead from newer buckets to older ones, even those of buckets that were removed.

use std::sync::atomic::Ordering;

use evermap_pm::{Error, Guard, Medium, Result};

use super::Clht;
use super::bucket::{LockedChain, Locking, View, find, recover, try_lock, view};
use super::layout::{BUCKET_BYTES, Bucket, Control, Link, SlotMask, Table, free_slot};
use crate::Key;
use crate::hash::probe::Probe;
use crate::lock_wait::LockWait;

/// A pair that was found in a chain.
pub(super) struct PairRef<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) slot: usize,
    pub(super) word: u64,
    /// The predecessor of the bucket in the chain, or `None` for the home bucket.
    pub(super) before: Option<&'a Bucket>,
}

/// The result of searching a locked chain.
pub(super) enum SearchResult<'a> {
    Present(PairRef<'a>),
    /// The key is absent. Contains a free slot of the chain, if there is one.
    Absent(Option<(&'a Bucket, usize)>),
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// Returns the home bucket with this number.
    #[inline(always)]
    pub(super) fn home(&self, table: Table, number: u64) -> Result<&Bucket> {
        self.bucket(table.home(number))
    }

    /// Returns the bucket at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there can be no bucket.
    #[inline(always)]
    pub(super) fn bucket(&self, offset: u64) -> Result<&Bucket> {
        match self.medium().at(offset) {
            Some(bucket) => Ok(bucket),
            None => Err(outside(offset)),
        }
    }

    /// Searches for a key without a lock or a store.
    #[inline(always)]
    pub(super) fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        // The table need not be read again afterwards: a table that is being replaced is complete,
        // and does not change any more, until the new one takes its place. So the result was right
        // when the lookup began, or later.
        let table = self.table();
        let home = self.home(table, table.home_of(probe.hash))?;
        match view(m, home, probe, self.generation) {
            View::Found(word) => Ok(Some(word)),
            View::Absent(link) if link.is_last() => Ok(None),
            seen => self.lookup_slow(home, seen, probe),
        }
    }

    /// Continues a lookup after the home bucket.
    fn lookup_slow<'a>(
        &'a self,
        home: &'a Bucket,
        seen: View,
        probe: &Probe<'_, K>,
    ) -> Result<Option<u64>> {
        let m = self.medium();
        let (mut bucket, mut seen) = (home, seen);
        let mut lock_wait = LockWait::default();
        let mut cycle = CycleDetector::default();
        loop {
            match seen {
                View::Found(word) => return Ok(Some(word)),
                View::Absent(link) if link.is_last() => return Ok(None),
                View::Absent(link) => {
                    let next = link.next()?;
                    cycle.visit(next)?;
                    bucket = self.bucket(next)?;
                }
                // Some writer has made progress meanwhile, so this is not repeated for ever.
                View::Again => {}
                View::Overwritten => lock_wait.wait_at(&self.region, m.offset_of(bucket))?,
                View::Stale if std::ptr::eq(bucket, home) => self.recover(bucket),
                View::Stale => self.recover_overflow(home, bucket)?,
            }
            seen = view(m, bucket, probe, self.generation);
        }
    }

    /// Recovers a bucket of an earlier opener.
    #[cold]
    pub(super) fn recover(&self, bucket: &Bucket) {
        if recover(self.medium(), bucket, self.generation) {
            self.count_recovered();
        }
    }

    /// Recovers an overflow bucket of an earlier opener.
    ///
    /// # Errors
    /// `Damaged` if it is not recognised: damage has led to something else. That must not be
    /// stored to.
    #[cold]
    fn recover_overflow(&self, home: &Bucket, bucket: &Bucket) -> Result<()> {
        let (m, table) = (self.medium(), self.table());
        let number = m.offset_of(home).wrapping_sub(table.offset) / BUCKET_BYTES;
        let recognised = self.is_recognised(bucket, table, number);
        // A chain of a table that was replaced has another number.
        if !recognised && self.table() == table && number < table.buckets() {
            let what = "a chain of buckets leads to something else";
            return Err(Error::damaged(m.offset_of(bucket), what));
        }
        self.recover(bucket);
        Ok(())
    }

    /// Returns `true` if a bucket has a pair of the chain with this number, or had one: what was
    /// removed stays in its slot. An overflow bucket begins with a pair.
    pub(super) fn is_recognised(&self, bucket: &Bucket, table: Table, number: u64) -> bool {
        let m = self.medium();
        bucket.pairs.iter().any(|pair| self.is_in(m.load_relaxed(&pair.key), table, number))
    }

    /// Returns `true` if the chain with this number is that of a key.
    pub(super) fn is_in(&self, slot_key: u64, table: Table, number: u64) -> bool {
        table.home_of(K::slot_hash(slot_key, self.seed)) == number
    }

    /// Locks the chain of a hash in the current table. Helps to replace the table if that is in
    /// progress.
    #[inline(always)]
    pub(super) fn lock(&self, hash: u64, guard: &Guard<'_>) -> Result<LockedChain<'_, M>> {
        let table = self.table();
        let home = self.home(table, table.home_of(hash))?;
        // The table has not been replaced if the lock is taken: the home buckets of an old table
        // stay frozen for ever.
        match try_lock(self.medium(), home, self.generation) {
            Locking::Locked(chain) => Ok(chain),
            _ => self.lock_slow(hash, guard),
        }
    }

    #[cold]
    fn lock_slow(&self, hash: u64, guard: &Guard<'_>) -> Result<LockedChain<'_, M>> {
        let mut lock_wait = LockWait::default();
        loop {
            let table = self.table();
            let offset = table.home(table.home_of(hash));
            let home = self.bucket(offset)?;
            match try_lock(self.medium(), home, self.generation) {
                Locking::Locked(chain) => return Ok(chain),
                Locking::Stale => self.recover(home),
                Locking::Busy => lock_wait.wait_at(&self.region, offset)?,
                Locking::Frozen => {
                    self.help(guard)?;
                    lock_wait.wait_at(&self.region, offset)?;
                }
            }
        }
    }

    /// Searches a locked chain for a key.
    #[inline(always)]
    pub(super) fn search<'a>(
        &'a self,
        chain: &LockedChain<'a, M>,
        probe: &Probe<'_, K>,
    ) -> Result<SearchResult<'a>> {
        let (m, bucket) = (self.medium(), chain.home);
        let link = Link(m.load_relaxed(&bucket.link));
        let taken = link.taken();
        if let Some((slot, word)) = find(m, bucket, taken, probe) {
            return Ok(SearchResult::Present(PairRef { bucket, slot, word, before: None }));
        }
        let free = free_slot_in(bucket, taken);
        if link.is_last() {
            Ok(SearchResult::Absent(free))
        } else {
            self.search_overflow(bucket, free, probe)
        }
    }

    /// Searches the overflow buckets of a locked chain.
    fn search_overflow<'a>(
        &'a self,
        home: &'a Bucket,
        mut free_found: Option<(&'a Bucket, usize)>,
        probe: &Probe<'_, K>,
    ) -> Result<SearchResult<'a>> {
        let m = self.medium();
        let mut before = home;
        for bucket in self.overflow(home) {
            let bucket = bucket?;
            let taken = Link(m.load_relaxed(&bucket.link)).taken();
            if let Some((slot, word)) = find(m, bucket, taken, probe) {
                return Ok(SearchResult::Present(PairRef {
                    bucket,
                    slot,
                    word,
                    before: Some(before),
                }));
            }
            free_found = free_found.or_else(|| free_slot_in(bucket, taken));
            before = bucket;
        }
        Ok(SearchResult::Absent(free_found))
    }

    /// Returns the overflow buckets of a home bucket, recovered. The chain is not changed
    /// concurrently.
    pub(super) fn overflow<'a>(
        &'a self,
        home: &'a Bucket,
    ) -> impl Iterator<Item = Result<&'a Bucket>> + 'a {
        let m = self.medium();
        let mut link = Link(m.load(&home.link));
        let mut cycle = CycleDetector::default();
        std::iter::from_fn(move || {
            if link.is_last() {
                return None;
            }
            let next = link.next().and_then(|next| {
                cycle.visit(next)?;
                let bucket = self.bucket(next)?;
                if !Control(m.load(&bucket.control)).is_of(self.generation) {
                    self.recover_overflow(home, bucket)?;
                }
                Ok(bucket)
            });
            // An error ends the chain.
            link = next.as_ref().map_or(Link::default(), |bucket| Link(m.load(&bucket.link)));
            Some(next)
        })
    }

    /// Removes a pair, and its bucket if that becomes empty and is no home bucket.
    pub(super) fn remove_at(
        &self,
        chain: &mut LockedChain<'_, M>,
        pair: &PairRef<'_>,
        guard: &Guard<'_>,
    ) {
        let left = chain.remove(pair.bucket, pair.slot);
        if let Some(before) = pair.before
            && left.taken() == 0
        {
            // A separate step: a reader that does not come to this bucket any more must not miss
            // what a crash could bring back. A crash in between leaves an empty bucket, which the
            // next pair fills.
            chain.unlink(before, pair.bucket);
            self.events.overflow.fetch_sub(1, Ordering::Relaxed);
            self.pool.retire(self.medium().offset_of(pair.bucket), BUCKET_BYTES, guard);
        }
    }
}

/// Returns a free slot of a bucket, or `None` if it is full.
#[inline(always)]
fn free_slot_in(bucket: &Bucket, taken: SlotMask) -> Option<(&Bucket, usize)> {
    free_slot(taken).map(|slot| (bucket, slot))
}

/// Detects a chain that damage has made a cycle, after at most three rounds.
///
/// Brent's method (1980): the last step whose number is a power of two is remembered.
#[derive(Default)]
struct CycleDetector {
    steps: u64,
    remembered: u64,
}

impl CycleDetector {
    fn visit(&mut self, offset: u64) -> Result<()> {
        if offset == self.remembered {
            return Err(Error::damaged(offset, "a chain of buckets is a cycle"));
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.remembered = offset;
        }
        Ok(())
    }
}

#[cold]
fn outside(offset: u64) -> Error {
    Error::damaged(offset, "a bucket outside the region")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_detected_and_chains_are_not() {
        let mut straight = CycleDetector::default();
        assert!((1..10_000u64).all(|step| straight.visit(step * 64).is_ok()));
        for (stem, round) in [(0, 1), (0, 2), (1, 1), (5, 3), (100, 7), (3, 1000)] {
            let mut cycle = CycleDetector::default();
            let offset = |step: u64| {
                64 * (1 + if step < stem { step } else { stem + (step - stem) % round })
            };
            let noticed = (0..).position(|step| cycle.visit(offset(step)).is_err()).unwrap() as u64;
            assert!(noticed <= 3 * (stem + round) + 1, "{stem} and {round}: {noticed}");
        }
    }
}
