//! Waiting for a lock inside a segment.

use evermap_pm::{Error, Medium, Result};

use super::Segmented;
use crate::lock_wait::LockWait;

/// The number of recoveries after which one operation fails.
const RECOVERIES_MAX: u32 = 100;

/// The waits of one operation for segments that it cannot use yet. Detects segments that never
/// become usable.
#[derive(Default)]
pub struct Waiting {
    lock_wait: LockWait,
    recoveries: u32,
}

impl Waiting {
    /// Waits a little for a lock in `segment` that another thread holds.
    ///
    /// # Errors
    /// `Poisoned` if the holder may have panicked; `Damaged` if the lock is never released.
    #[cold]
    pub fn wait<T: Segmented>(&mut self, index: &T, segment: &T::Segment) -> Result<()> {
        let region = &index.core().region;
        if !self.lock_wait.wait(region)? {
            return Ok(());
        }
        let offset = region.medium().offset_of(segment);
        // Damage can set a lock that no thread holds. No thread can hold a lock of a segment that
        // was not recovered.
        if !index.was_recovered(segment) {
            return self.recover(index, offset);
        }
        self.lock_wait.go_on(region, offset)
    }

    /// Recovers the stale segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there is no segment at `offset`, or if it stays stale.
    #[cold]
    pub fn recover<T: Segmented>(&mut self, index: &T, offset: u64) -> Result<()> {
        self.count_recovery(offset)?;
        index.recover(offset)
    }

    /// Counts one more recovery, of the segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if this operation has seen too many recoveries.
    pub fn count_recovery(&mut self, offset: u64) -> Result<()> {
        self.recoveries += 1;
        if self.recoveries > RECOVERIES_MAX {
            let what = "a segment stays stale after its recovery";
            return Err(Error::damaged(offset, what));
        }
        Ok(())
    }
}
