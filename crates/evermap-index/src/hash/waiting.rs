//! Waiting for a lock, with an eye on why it may never come free.

use std::time::{Duration, Instant};

use evermap_pm::region::Region;
use evermap_pm::sync::Backoff;
use evermap_pm::{Error, Medium, Result};

/// Nobody holds a lock for so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for a lock in a region.
pub(crate) struct Waiting<'a, M: Medium> {
    region: &'a Region<M>,
    backoff: Backoff,
    /// Since when, from the first long wait on.
    since: Option<Instant>,
}

impl<'a, M: Medium> Waiting<'a, M> {
    pub(crate) fn new(region: &'a Region<M>) -> Self {
        Waiting { region, backoff: Backoff::new(), since: None }
    }

    /// Waits a little, for a lock near `offset`.
    ///
    /// # Errors
    /// `Poisoned` if its holder may have panicked, `Damaged` if it was held for longer than anybody would.
    #[cold]
    pub(crate) fn wait(&mut self, offset: u64) -> Result<()> {
        const LONG: u32 = 1024;
        self.region.ensure_sound()?;
        if !self.backoff.wait().is_multiple_of(LONG)
            || self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE
        {
            return Ok(());
        }
        // Something has overwritten the lock. Reopening repairs it; until then nobody else is to wait so long.
        drop(self.region.poison_on_panic());
        Err(Error::damaged(offset, "a lock is never released"))
    }
}
