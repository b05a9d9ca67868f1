//! Walks over all records, concurrent with changes.
//!
//! A walk proceeds through the bit-reversed hashes in ascending order. A group holds the keys that
//! agree in some low bits of their hashes, which reversed are the top bits: one range of this
//! order. A split divides the range of a group in two and changes no other. So between two groups
//! the state of a walk is one number, where the next range begins, and it can pause for any time.

use evermap_pm::{Medium, Result};

use super::arrays::Group;
use super::table::{Format, Table};
use crate::hash::hash_prefix::top_bits;

impl<F: Format, M: Medium, const T: usize, const G: usize, const C: u32> Table<F, M, T, G, C> {
    /// Calls `read` with the group whose range contains `from`, while it is locked. Returns where
    /// the next range begins, or `None` after the last one.
    ///
    /// # Errors
    /// `Damaged` if the group cannot be read, in addition to the next range; `Poisoned`, `Forked`.
    pub(super) fn read_unit(
        &self,
        from: u64,
        read: impl FnOnce(Group<'_>) -> Result<()>,
    ) -> (Result<()>, Option<u64>) {
        if let Err(unusable) = self.region.ensure_writable() {
            return (Err(unusable), None);
        }
        let locked = self.lock(from.reverse_bits());
        // While the group is locked, its range does not change.
        let state = self.arrays.state();
        let depth = state.depth_of(state.group_of(from.reverse_bits()));
        let next = top_bits(from, depth) + 1;
        let next = (next >> depth == 0).then(|| next << (64 - depth));
        let result = locked.and_then(|locked| read(locked.group));
        match self.region.ensure_writable() {
            Ok(()) => (result, next),
            Err(unusable) => (Err(unusable), None),
        }
    }

    /// Calls `read` with every group, locked, and then `shown`, under a guard but without the lock,
    /// until that returns `false`. Groups that cannot be read are skipped, and the first error is
    /// returned at the end.
    pub(super) fn walk(
        &self,
        mut read: impl FnMut(Group<'_>) -> Result<()>,
        mut shown: impl FnMut() -> bool,
    ) -> Result<()> {
        let (mut from, mut result) = (Some(0), Ok(()));
        while let Some(here) = from {
            // The guard keeps what records name valid while the caller uses it.
            let _guard = self.pool.pin();
            let (done, next) = self.read_unit(here, &mut read);
            if done.is_err() {
                self.region.ensure_writable()?;
            }
            result = result.and(done);
            if !shown() {
                break;
            }
            from = next;
        }
        result
    }
}
