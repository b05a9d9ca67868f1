//! Walks over the whole table, concurrent with changes and replacements of the table.
//!
//! The rank of a pair is its reversed hash. A table of any size divides the ranks into equal
//! intervals, one for each chain. So a walk that has reached some rank continues there, whatever
//! the table is by then: pairs below have been shown, and pairs above have not. Walks that show
//! pairs to callers visit the chains in the order of [`walk_order`](crate::hash::walk_order), which
//! is that of the table; others in the order of ranks.

use std::ops::RangeInclusive;

use evermap_pm::{Guard, Medium, Result, region};

use super::Clht;
use super::bucket::{StoredPair, pairs_in};
use super::layout::{Bucket, Control, Table};
use crate::Key;
use crate::hash::walk_order::Ranked;

/// The contents of one chain.
#[derive(Default)]
pub(super) struct Chain {
    /// Its pairs.
    pub(super) pairs: Vec<StoredPair>,
    /// The offsets of the overflow buckets.
    pub(super) overflow: Vec<u64>,
    /// The offsets of those that may be something else.
    pub(super) unrecognised: Vec<u64>,
}

impl<K: Key, M: Medium> Ranked for Clht<K, M> {
    /// Enough that the call itself costs little.
    const UNITS_TOGETHER: usize = 64;

    fn range_bits(&self) -> u32 {
        self.table().bits
    }

    fn show(
        &self,
        ranks: RangeInclusive<u64>,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let mut chain = Chain::default();
        let (read, next) = self.step(&ranks, &mut chain, guard);
        if read.is_ok() {
            chain.pairs.iter().for_each(|pair| each(pair.slot_key, pair.word));
        }
        (read, next)
    }

    fn ensure_usable(&self) -> Result<()> {
        self.region.ensure_sound()
    }
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// Calls `each` with the contents of every chain at one moment, until it returns `false`. It is
    /// called under a guard, but without a lock. Chains that cannot be read are skipped, and the
    /// first error is returned at the end.
    pub(super) fn walk(&self, mut each: impl FnMut(&Chain) -> bool) -> Result<()> {
        let mut cursor = Some(0);
        let mut chain = Chain::default();
        let mut result = Ok(());
        while let Some(from) = cursor {
            // The guard keeps buckets that are removed meanwhile unchanged for `each`.
            let guard = self.pool.pin();
            let (read, next) = self.step(&(from..=u64::MAX), &mut chain, &guard);
            cursor = next;
            match read {
                Ok(()) => {
                    if !each(&chain) {
                        break;
                    }
                }
                Err(error) => {
                    self.region.ensure_sound()?;
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Performs one step of a walk: reads the chain of the first of `ranks`, leaving out pairs with
    /// other ranks. Also returns the first rank after that chain, or `None` if it is the last.
    fn step(
        &self,
        ranks: &RangeInclusive<u64>,
        chain: &mut Chain,
        guard: &Guard<'_>,
    ) -> (Result<()>, Option<u64>) {
        let from = *ranks.start();
        chain.pairs.clear();
        chain.overflow.clear();
        chain.unrecognised.clear();
        let locked = match self.lock(from.reverse_bits(), guard) {
            Ok(locked) => locked,
            Err(error) => return (Err(error), next_position(from, self.table())),
        };
        // The table is not replaced while one of its chains is locked.
        let table = self.table();
        let number = table.home_of(from.reverse_bits());
        // Damage may lead to the buckets of another chain.
        let shown = |pair: &StoredPair| {
            ranks.contains(&K::slot_hash(pair.slot_key, self.seed).reverse_bits())
                && self.is_in(pair.slot_key, table, number)
        };
        let mut add = |bucket: &Bucket| {
            chain.pairs.extend(pairs_in(self.medium(), bucket).filter(shown));
        };
        add(locked.home);
        let read = self.overflow(locked.home).try_for_each(|bucket| {
            let bucket = bucket?;
            add(bucket);
            let blocks = match self.is_recognised(bucket, table, number) {
                true => &mut chain.overflow,
                false => &mut chain.unrecognised,
            };
            blocks.push(self.medium().offset_of(bucket));
            Ok(())
        });
        locked.release();
        (read, next_position(from, table))
    }

    /// Marks every bucket as one of an earlier opener. There must be no concurrent operations.
    pub(super) fn make_stale(&self) -> Result<()> {
        let (m, table) = (self.medium(), self.table());
        let stale = Control::fresh(region::stale(self.generation), 0).0;
        for number in 0..table.buckets() {
            let home = self.home(table, number)?;
            m.store_transient(&home.control, stale);
            // A chain that cannot be read is reported by the operation that uses it.
            for bucket in self.overflow(home).map_while(Result::ok) {
                m.store_transient(&bucket.control, stale);
            }
        }
        Ok(())
    }
}

/// Returns the first rank after the chain of `from`, or `None` if it is the last chain.
fn next_position(from: u64, table: Table) -> Option<u64> {
    let width = 1u64 << (64 - table.bits);
    (from / width * width).checked_add(width)
}
