//! Waiting for a lock, with an eye on why it may never be free.

use std::time::{Duration, Instant};

use evermap_pm::region::Region;
use evermap_pm::sync::Backoff;
use evermap_pm::{Error, Medium, Result};

/// No thread holds a lock for longer.
const LIMIT: Duration = Duration::from_secs(20);
/// Waits that count as long: beyond them a holder is looked for.
const LONG: u32 = 1024;

/// One thread's wait for one lock.
#[derive(Default)]
pub(super) struct LockWait {
    backoff: Backoff,
    /// Since when, from the first long wait on.
    since: Option<Instant>,
}

impl LockWait {
    /// Waits a little. Returns `true` now and then when it has taken long: the caller then looks
    /// whether the lock can have a holder at all, and if so asks [`go_on`](Self::go_on).
    ///
    /// # Errors
    /// `Poisoned`: the holder may have panicked.
    pub(super) fn wait<M: Medium>(&mut self, region: &Region<M>) -> Result<bool> {
        region.ensure_sound()?;
        Ok(self.backoff.wait().is_multiple_of(LONG))
    }

    /// Waits a little for the lock at `offset`, which has a holder.
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`.
    #[cold]
    pub(super) fn wait_at<M: Medium>(&mut self, region: &Region<M>, offset: u64) -> Result<()> {
        if self.wait(region)? { self.go_on(region, offset) } else { Ok(()) }
    }

    /// Returns whether to wait on for the lock at `offset`.
    ///
    /// # Errors
    /// `Damaged` after 20 seconds: something has overwritten the lock. Reopening repairs it; until
    /// then the region is poisoned, so that no other thread waits for as long.
    pub(super) fn go_on<M: Medium>(&mut self, region: &Region<M>, offset: u64) -> Result<()> {
        if self.since.get_or_insert_with(Instant::now).elapsed() < LIMIT {
            return Ok(());
        }
        drop(region.poison_on_panic());
        Err(Error::damaged(offset, "a lock is never released"))
    }
}
