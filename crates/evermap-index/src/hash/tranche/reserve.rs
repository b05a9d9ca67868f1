//! Growing ahead of the records.

use std::sync::atomic::Ordering;

use evermap_pm::{Medium, Result};

use super::table::{Format, Table};

impl<F: Format, M: Medium, const T: usize, const G: usize, const C: u32> Table<F, M, T, G, C> {
    /// The share of the space that is taken when the reserved records are there. No round begins
    /// before it is.
    const RESERVED_FILL: f64 = 0.75;

    /// Splits groups until there is space for records that take `bytes` bytes in tranches, and to
    /// the end of the round. Other threads can use the table between two splits.
    ///
    /// # Errors
    /// `NoSpace`; then the round goes on when there is space.
    pub(super) fn reserve(&self, bytes: u64) -> Result<()> {
        let taken = self.fill.ratio(Self::CAPACITY) * self.total_capacity();
        let wanted = (taken + bytes as f64) / Self::RESERVED_FILL;
        loop {
            // A panic under the lock poisons the region, which every caller checks.
            let growth = self.growth.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if self.arrays.state().split == 0 && self.total_capacity() >= wanted {
                return Ok(());
            }
            // Pinned anew for each split, so that what it gives up can be used again.
            let guard = self.pool.pin();
            self.split_next(&guard).inspect_err(|_| self.round.store(true, Ordering::Relaxed))?;
            drop(growth);
        }
    }

    /// Returns the bytes of records that all groups hold.
    fn total_capacity(&self) -> f64 {
        self.arrays.state().groups() as f64 * Self::CAPACITY as f64
    }
}
