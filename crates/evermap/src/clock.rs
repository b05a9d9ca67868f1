//! The time, as far as expiry is concerned.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use evermap_pm::clock;

/// Where a store gets the time from: the system, or a manual clock for tests and simulations.
///
/// The clock of the system is the time of the process: the wall clock as it was when the process
/// first asked for it, and what has passed since, with the time for which the machine was suspended
/// (`CLOCK_BOOTTIME` of Linux). So records expire after the time that was asked for, although the
/// wall clock is set meanwhile, and the time does not go back. The next process begins with the
/// wall clock as it is then. A program that computes an expiry itself does so from
/// [`Clock::now`] or [`Map::now`](crate::Map::now).
///
/// A manual clock may be set back. What has expired stays absent then: an open store keeps the
/// latest time that it has seen, until a purge has removed what had expired; from then on it
/// follows the clock again. A record that is stored meanwhile with an expiry before that time
/// counts as expired. On a file, a thread in the background purges about every second.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// Returns the clock of the system, which passes as the wall clock does and is never set.
    pub fn system() -> Self {
        Clock(None)
    }

    /// Returns a clock that shows `seconds` since 1970 until it is [set](Clock::set). Clones share
    /// it.
    ///
    /// ```
    /// use evermap::{Clock, Evermap, Meta, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let clock = Clock::manual(1_000);
    /// let map = Evermap::open(path, Options::new().clock(clock.clone()))?.default_map();
    /// map.put_with(b"session", b"alice", Meta::new().with_expiry(1_060))?;
    /// clock.set(1_060);
    /// assert_eq!(map.get(b"session")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn manual(seconds: u64) -> Self {
        Clock(Some(Arc::new(AtomicU64::new(seconds))))
    }

    /// Sets a manual clock. Does nothing to the clock of the system.
    pub fn set(&self, seconds: u64) {
        if let Some(hand) = &self.0 {
            hand.store(seconds, SeqCst);
        }
    }

    /// Returns the seconds since 1970, at least 1, so that there is a time before every other.
    /// Takes about 25 ns for the clock of the system.
    pub fn now(&self) -> u64 {
        let seconds = match &self.0 {
            Some(hand) => hand.load(SeqCst),
            None => clock::seconds(),
        };
        seconds.max(1)
    }

    /// Returns what [`now`](Clock::now) returns, or the second before if that has just ended. Takes
    /// a fraction of the time. The time for which the machine was suspended may be missing until
    /// the next call of [`Time::now`].
    fn coarse(&self) -> u64 {
        match &self.0 {
            Some(hand) => hand.load(SeqCst),
            None => clock::coarse_seconds(),
        }
    }

    /// Returns the time as expiries are stored: from the year 2106 on it stands still.
    fn stored(&self) -> u32 {
        u32::try_from(self.now()).unwrap_or(u32::MAX)
    }
}

/// The time of an open file: that of its clock, except that it does not go back until it is
/// [released](Time::release).
pub(crate) struct Time {
    clock: Clock,
    /// The latest time that was returned.
    latest: AtomicU32,
}

impl Time {
    pub(crate) fn new(clock: Clock) -> Self {
        Time { clock, latest: AtomicU32::new(0) }
    }

    /// Returns the seconds since 1970, as [`Clock::now`] does.
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        let now = self.clock.stored();
        // Relaxed, here and below: the order of the changes of this one word is all that matters.
        // It changes once a second, so that the cache line stays shared.
        if now == self.latest.load(Relaxed) { now } else { self.advance(now) }
    }

    #[cold]
    fn advance(&self, now: u32) -> u32 {
        if self.clock.0.is_none() {
            clock::follow_suspension();
        }
        self.latest.fetch_max(now, Relaxed).max(now)
    }

    /// Returns the seconds since 1970 by the clock as it is now, for what need not be exact: they
    /// may go back, and be a little late.
    #[inline]
    pub(crate) fn coarse(&self) -> u32 {
        u32::try_from(self.clock.coarse()).unwrap_or(u32::MAX)
    }

    /// Returns the time that is held since the clock went back behind it.
    pub(crate) fn held(&self) -> Option<u32> {
        let latest = self.latest.load(Relaxed);
        (self.clock.stored() < latest).then_some(latest)
    }

    /// Follows the clock again. All records that had expired by the time `held` are removed.
    pub(crate) fn release(&self, held: u32) {
        // A later time that was returned meanwhile stays.
        let _ = self.latest.compare_exchange(held, self.clock.stored(), Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_back_only_when_it_is_released() {
        let clock = Clock::manual(100);
        let time = Time::new(clock.clone());
        assert_eq!((time.now(), time.held()), (100, None));
        clock.set(90);
        assert_eq!((time.now(), time.held()), (100, Some(100)));
        clock.set(110);
        assert_eq!((time.now(), time.held()), (110, None));
        clock.set(95);
        time.release(100);
        assert_eq!(time.now(), 110, "what was held is another time now");
        time.release(110);
        assert_eq!((time.now(), time.held()), (95, None));
    }
}
