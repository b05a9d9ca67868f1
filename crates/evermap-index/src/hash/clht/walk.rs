//! Going through the whole table, beside changes and while it is replaced.
//!
//! Chains are visited in the order of their reversed hashes. A table of any size is a division of these into equal
//! stretches, one for each chain, so a walk that has come to some reversed hash goes on there whatever the table is
//! by then: what lies below was shown, and what lies above was not.

use evermap_pm::{Guard, Medium, Result};

use super::Clht;
use super::bucket::{Stored, pairs_in};
use super::layout::{Bucket, Control, Table};
use crate::Key;

/// What one chain holds.
#[derive(Default)]
pub(super) struct Chain {
    /// Its pairs.
    pub(super) pairs: Vec<Stored>,
    /// Offsets of the buckets behind the home bucket.
    pub(super) behind: Vec<u64>,
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// Calls `each` with every chain, in the state of one moment, until it answers `false`; under a guard, but
    /// without a lock. Chains that cannot be read are passed over; the first error is answered at the end.
    pub(super) fn walk(&self, mut each: impl FnMut(&Chain) -> bool) -> Result<()> {
        let mut cursor = Some(0);
        let mut chain = Chain::default();
        let mut result = Ok(());
        while let Some(from) = cursor {
            // Buckets that are taken out of the chain meanwhile must stay what they are for `each`.
            let guard = self.pool.pin();
            let (read, next) = self.step(from, &mut chain, &guard);
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

    /// One step of a walk, under a guard of the caller: reads the chain of the reversed hash `from`, as far as its
    /// pairs are not below that. Answers the first reversed hash behind that chain too, if there is one.
    fn step(&self, from: u64, chain: &mut Chain, guard: &Guard<'_>) -> (Result<()>, Option<u64>) {
        chain.pairs.clear();
        chain.behind.clear();
        let held = match self.lock(from.reverse_bits(), guard) {
            Ok(held) => held,
            Err(error) => return (Err(error), behind(from, self.table())),
        };
        // As long as we hold a chain, its table is not replaced.
        let table = self.table();
        let shown = |pair: &Stored| K::slot_hash(pair.slot_key, self.seed).reverse_bits() >= from;
        let mut add = |bucket: &Bucket| {
            chain.pairs.extend(pairs_in(self.medium(), bucket).filter(shown));
        };
        add(held.home);
        let read = self.behind(held.home).try_for_each(|bucket| {
            let bucket = bucket?;
            add(bucket);
            chain.behind.push(self.medium().offset_of(bucket));
            Ok(())
        });
        held.release();
        (read, behind(from, table))
    }

    /// See [`Persistent::scan`](crate::Persistent::scan): a few chains.
    pub(super) fn scan_chains(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        /// So many that the call itself costs little.
        const CHAINS: usize = 64;
        let (mut cursor, mut chain) = (Some(from), Chain::default());
        for _ in 0..CHAINS {
            let Some(from) = cursor else { break };
            let (read, next) = self.step(from, &mut chain, guard);
            cursor = next;
            if read.is_err() {
                return (read, cursor);
            }
            chain.pairs.iter().for_each(|pair| each(pair.slot_key, pair.word));
        }
        (Ok(()), cursor)
    }

    /// Makes every bucket one of an earlier opener. Nobody else uses the index.
    pub(super) fn make_stale(&self) -> Result<()> {
        let (m, table) = (self.medium(), self.table());
        let stale = Control::fresh(self.generation.wrapping_sub(1), 0).0;
        for number in 0..table.buckets() {
            let home = self.home(table, number)?;
            m.store_transient(&home.control, stale);
            // A chain that cannot be read is found out again by whoever uses it.
            for bucket in self.behind(home).map_while(Result::ok) {
                m.store_transient(&bucket.control, stale);
            }
        }
        Ok(())
    }
}

/// The first reversed hash behind the chain of `from`, if there is one.
fn behind(from: u64, table: Table) -> Option<u64> {
    let width = 1u64 << (64 - table.bits);
    (from / width * width).checked_add(width)
}
