//! Waiting for grace periods, and asking whether they are over.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use super::report::{Stall, Watch};
use super::slots::schedule_point;
use super::{Advance, Domain};
use crate::sync::{Backoff, expect_to_wait_for_readers};
use crate::{Error, ErrorKind};

/// A grace period that a thread has [started](Domain::start), and can ask for its end.
///
/// # Examples
///
/// A change in two steps, of which no reader may see only the second, by an event loop that must
/// not wait:
///
/// ```
/// let domain = evermap_pm::Domain::new(Box::new(|_| {}));
/// // The first step is published here.
/// let period = domain.start();
/// let mut rounds = 0;
/// while !domain.is_over(period) {
///     // Other work.
///     rounds += 1;
/// }
/// // The second step.
/// assert_eq!(rounds, 0, "there are no readers");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracePeriod {
    /// Which domain it is of.
    domain: u64,
    /// It is over when the domain has reached this epoch.
    over_in: u64,
}

/// Why a thread cannot wait for a grace period.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The calling thread holds a guard of the domain, or is an online reader of it, and so would
    /// wait for itself.
    HoldsGuard,
    /// The process was forked while other threads used the domain. They do not exist in this
    /// process, but what they had announced remains.
    Forked,
    /// The kernel refuses the fence of all threads, which it had agreed to execute when the domain
    /// was created. A filter of system calls that is installed later must allow `membarrier`.
    FenceRefused,
    /// The time is over.
    Stalled(Stall),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::HoldsGuard => {
                f.write_str("the thread holds a guard, or is online, and would wait for itself")
            }
            WaitError::Forked => {
                f.write_str("the process was forked while other threads used the domain")
            }
            WaitError::FenceRefused => {
                f.write_str("membarrier, which was available at first, is refused now")
            }
            WaitError::Stalled(stall) => stall.fmt(f),
        }
    }
}

impl std::error::Error for WaitError {}

impl From<WaitError> for Error {
    #[cold]
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Forked => ErrorKind::Forked.into(),
            error => Error::io("waiting for readers", "memory".as_ref(), io::Error::other(error)),
        }
    }
}

impl Domain {
    /// Starts a grace period: it is over when every guard that exists now has been dropped, and
    /// every thread that is online now has announced a quiescent state, or gone offline. Never
    /// waits.
    ///
    /// Grace periods that are started in the same epoch are one. A started one costs nothing until
    /// a thread asks for [its end](Domain::is_over), or waits.
    pub fn start(&self) -> GracePeriod {
        let epochs = if self.mutant("grace.one-epoch-too-few") { 1 } else { 2 };
        schedule_point();
        // A read-modify-write, although nothing changes: a reader that loads a later epoch
        // synchronizes with this, and so sees everything that the caller has stored before. What
        // has announced this epoch or an earlier one is gone two epochs later.
        let epoch = self.global.fetch_add(0, AcqRel);
        GracePeriod { domain: self.id, over_in: epoch + epochs }
    }

    /// Returns `true` if the grace period is over. Whatever was unlinked before its start can then
    /// be freed or reused. Never waits: O(slots) if the epoch can advance, otherwise less.
    ///
    /// Grace periods advance when a thread asks, waits or retires, so a caller that wants the end
    /// of one must ask more than once.
    ///
    /// # Panics
    ///
    /// If the grace period is one of another domain.
    pub fn is_over(&self, period: GracePeriod) -> bool {
        assert_eq!(period.domain, self.id, "a grace period of another domain");
        loop {
            // Acquire: the accesses of readers that are gone happen before what the caller does
            // next.
            let epoch = self.global.load(Acquire);
            if epoch >= period.over_in {
                return true;
            }
            if self.advance_from(epoch) != Ok(Advance::Done) {
                return false;
            }
        }
    }

    /// Waits for a grace period: until every guard that exists now has been dropped, and every
    /// thread that is online now has announced a quiescent state, or gone offline. Concurrent
    /// callers share grace periods.
    ///
    /// A thread that waits first spins, then yields, then sleeps for at most a millisecond at a
    /// time. The caller must not hold a lock that a reader may wait for in a section.
    ///
    /// # Errors
    ///
    /// [`HoldsGuard`](WaitError::HoldsGuard), if the calling thread would wait for itself;
    /// [`Forked`](WaitError::Forked); [`FenceRefused`](WaitError::FenceRefused).
    pub fn synchronize(&self) -> Result<(), WaitError> {
        self.wait_for(self.start(), None)
    }

    /// Waits for a grace period, like [`synchronize`](Domain::synchronize), for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As of `synchronize`, or [`Stalled`](WaitError::Stalled) with the thread that holds up the
    /// grace period.
    pub fn synchronize_within(&self, timeout: Duration) -> Result<(), WaitError> {
        self.wait_for(self.start(), Some(timeout))
    }

    pub(super) fn wait_for(
        &self,
        period: GracePeriod,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        if self.is_pinned() {
            return Err(WaitError::HoldsGuard);
        }
        expect_to_wait_for_readers();
        let (began, mut backoff, mut watch) = (Instant::now(), Backoff::new(), Watch::new(self));
        loop {
            // Acquire: as in `is_over`.
            let epoch = self.global.load(Acquire);
            if epoch >= period.over_in {
                return Ok(());
            }
            if self.advance_from(epoch)? == Advance::Done {
                continue;
            }
            let waited = began.elapsed();
            if timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(WaitError::Stalled(self.stall(waited)));
            }
            watch.waited(waited);
            backoff.wait_long();
        }
    }
}
