//! Waiting for a lock inside a segment.

use evermap_pm::{Error, Medium, Result};

use super::Segmented;
use crate::hash::lock_wait::LockWait;

/// The number of recoveries of stale segments after which one change or lookup gives up.
const RECOVERIES_MAX: u32 = 100;

/// One operation's wait for segments that it cannot use yet. Notices when one may never be usable.
#[derive(Default)]
pub(crate) struct Waiting {
    lock_wait: LockWait,
    recoveries: u32,
}

impl Waiting {
    /// Waits a little for a lock in `segment` that another thread holds.
    ///
    /// # Errors
    /// `Poisoned` if the holder may have panicked; `Damaged` if the lock is never released.
    #[cold]
    pub(crate) fn wait<T: Segmented>(&mut self, index: &T, segment: &T::Segment) -> Result<()> {
        let region = &index.core().region;
        if !self.lock_wait.wait(region)? {
            return Ok(());
        }
        let offset = region.medium().offset_of(segment);
        // Damage can make a lock that nobody holds look like one of this opener. A segment that
        // nobody has recovered cannot have a holder.
        if !index.was_recovered(segment) {
            return self.recover(index, offset);
        }
        self.lock_wait.go_on(region, offset)
    }

    /// Recovers the stale segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there is no segment, or if recoveries do not help.
    #[cold]
    pub(crate) fn recover<T: Segmented>(&mut self, index: &T, offset: u64) -> Result<()> {
        self.count_recovery(offset)?;
        index.recover(offset)
    }

    /// Counts that the segment at `offset` was found stale.
    ///
    /// # Errors
    /// `Damaged` if that has happened too often.
    pub(crate) fn count_recovery(&mut self, offset: u64) -> Result<()> {
        self.recoveries += 1;
        if self.recoveries > RECOVERIES_MAX {
            let what = "a segment stays stale though it was recovered";
            return Err(Error::damaged(offset, what));
        }
        Ok(())
    }
}
