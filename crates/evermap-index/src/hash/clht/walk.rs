//! Going through the whole table, beside changes and while it is replaced.
//!
//! Chains are visited in the order of their reversed hashes. A table of any size is a division of these into equal
//! stretches, one for each chain, so a walk that has come to some reversed hash goes on there whatever the table is
//! by then: what lies below was shown, and what lies above was not.

use evermap_pm::{Medium, Result};

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
            let (table, read) = self.read_chain(from, &mut chain, &guard);
            cursor = behind(from, table);
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

    /// Reads the chain of the reversed hash `from`, as far as its pairs are not below that, in the table that
    /// is answered.
    fn read_chain(
        &self,
        from: u64,
        chain: &mut Chain,
        guard: &evermap_pm::Guard<'_>,
    ) -> (Table, Result<()>) {
        chain.pairs.clear();
        chain.behind.clear();
        let held = match self.lock(from.reverse_bits(), guard) {
            Ok(held) => held,
            Err(error) => return (self.table(), Err(error)),
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
        (table, read)
    }

    /// Makes every bucket one of an earlier opener. Nobody else uses the index.
    pub(super) fn make_stale(&self) -> Result<()> {
        let (m, table) = (self.medium(), self.table());
        let stale = Control::fresh(self.generation.wrapping_sub(1), 0).0;
        for number in 0..table.len() {
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
