//! Growing ahead of the records.

use evermap_pm::{Medium, Result};

use super::geometry::Geometry;
use super::table::{Format, Table};

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
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
        while self.advance_if(|| self.total_capacity() < wanted, u64::MAX)? > 0 {}
        Ok(())
    }

    /// Returns the bytes of records that all groups hold.
    pub(super) fn total_capacity(&self) -> f64 {
        let state = self.arrays.state();
        let groups = state.target() as f64 + state.share_moved(Self::DIVISION);
        groups * Self::CAPACITY as f64
    }
}
