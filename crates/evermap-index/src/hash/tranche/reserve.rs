//! Growing ahead of the records.

use std::sync::PoisonError;

use evermap_pm::{Medium, Result};

use super::table::{Format, Table};

impl<F: Format, M: Medium, const T: usize, const G: usize, const C: u32> Table<F, M, T, G, C> {
    /// The share of the space that is taken when the reserved records are there, so that the table
    /// does not grow before they are.
    const RESERVED: f64 = 0.95 * Self::FULL;

    /// Adds groups until there is space for records that take `bytes` bytes in tranches. Other
    /// threads can use the table between two pieces of that work. Removals can make the table
    /// shrink again.
    ///
    /// # Errors
    /// `NoSpace`; then the groups that were added remain.
    pub(super) fn reserve(&self, bytes: u64) -> Result<()> {
        let taken = self.ratio() * self.total_capacity();
        let wanted = (taken + bytes as f64) / Self::RESERVED;
        while self.total_capacity() < wanted {
            // A panic under the lock poisons the region, which every caller checks.
            let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
            // Pinned anew for each piece, so that what it gives up can be used again.
            let guard = self.pool.pin();
            self.advance(&guard)?;
        }
        Ok(())
    }

    /// Returns the bytes of records that all groups hold.
    pub(super) fn total_capacity(&self) -> f64 {
        let state = self.arrays.state();
        let groups = state.target() as f64 + state.share_moved(Self::GEOMETRY);
        groups * Self::CAPACITY as f64
    }
}
