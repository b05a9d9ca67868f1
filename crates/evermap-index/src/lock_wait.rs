//! Waiting for a lock, and detecting that it will never be released.

use std::time::{Duration, Instant};

use evermap_pm::region::Region;
use evermap_pm::sync::Backoff;
use evermap_pm::{Error, Medium, Result};

/// The time after which a lock is taken to be damaged: no thread holds a lock for as long.
const LIMIT: Duration = Duration::from_secs(20);
/// The time after which a thread sleeps between its checks instead of competing for the processor:
/// holders of locks need microseconds.
const PATIENT: Duration = Duration::from_secs(1);
const SLEEP: Duration = Duration::from_millis(10);
/// The number of waits after which the caller checks, each time, whether the lock can have a
/// holder.
const LONG: u32 = 1024;

/// The wait of one thread for one lock.
#[derive(Default)]
pub struct LockWait {
    backoff: Backoff,
    /// The time of the first call of `go_on`.
    since: Option<Instant>,
}

impl LockWait {
    /// Waits briefly. Returns `true` once in many calls: the caller then checks whether the lock
    /// can have a holder, and if so calls [`go_on`](Self::go_on).
    ///
    /// # Errors
    /// `Poisoned`: the holder may have panicked.
    pub fn wait<M: Medium>(&mut self, region: &Region<M>) -> Result<bool> {
        region.ensure_sound()?;
        Ok(self.backoff.wait().is_multiple_of(LONG))
    }

    /// Waits briefly for the lock at `offset`, which must have a holder.
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`.
    #[cold]
    pub fn wait_at<M: Medium>(&mut self, region: &Region<M>, offset: u64) -> Result<()> {
        if self.wait(region)? { self.go_on(region, offset) } else { Ok(()) }
    }

    /// Returns `Ok` if the caller shall go on waiting for the lock at `offset`.
    ///
    /// # Errors
    /// `Damaged` after 20 seconds: the lock was overwritten. Also poisons the region, so that no
    /// other thread waits as long. Reopening the region repairs the lock.
    pub fn go_on<M: Medium>(&mut self, region: &Region<M>, offset: u64) -> Result<()> {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < LIMIT {
            if waited >= PATIENT {
                std::thread::sleep(SLEEP);
            }
            return Ok(());
        }
        drop(region.poison_on_panic());
        Err(Error::damaged(offset, "a lock is never released"))
    }
}
