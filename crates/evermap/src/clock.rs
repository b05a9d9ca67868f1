//! The time, as far as expiry is concerned.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, SystemTime};

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

    /// Returns a clock that shows `time`, in whole seconds, until it is [set](Clock::set) or
    /// [advanced](Clock::advance). Clones share it.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use evermap::{Clock, Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let clock = Clock::manual(SystemTime::now());
    /// let map = Evermap::open(path, Options::new().clock(clock.clone()))?.default_map();
    /// map.set("session").expires(map.now() + Duration::from_secs(60)).put("alice")?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(map.get("session")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn manual(time: SystemTime) -> Self {
        Clock(Some(Arc::new(AtomicU64::new(seconds_of(time).0))))
    }

    /// Sets a manual clock. Does nothing to the clock of the system.
    pub fn set(&self, time: SystemTime) {
        if let Some(hand) = &self.0 {
            hand.store(seconds_of(time).0, SeqCst);
        }
    }

    /// Advances a manual clock, by whole seconds. Does nothing to the clock of the system.
    pub fn advance(&self, time: Duration) {
        if let Some(hand) = &self.0 {
            hand.fetch_add(time.as_secs(), SeqCst);
        }
    }

    /// Returns the time, in whole seconds. Takes about 25 ns for the clock of the system.
    pub fn now(&self) -> SystemTime {
        time_of(self.seconds())
    }

    /// Returns the seconds since 1970, at least 1, so that there is a time before every other.
    pub(crate) fn seconds(&self) -> u64 {
        let seconds = match &self.0 {
            Some(hand) => hand.load(SeqCst),
            None => clock::seconds(),
        };
        seconds.max(1)
    }

    /// Returns what [`seconds`](Clock::seconds) returns, or the second before if that has just
    /// ended. Takes a fraction of the time. The time for which the machine was suspended may be
    /// missing until the next call of [`Time::now`].
    fn coarse(&self) -> u64 {
        match &self.0 {
            Some(hand) => hand.load(SeqCst),
            None => clock::coarse_seconds(),
        }
    }

    /// Returns the time as expiries are stored: from the year 2106 on it stands still.
    fn stored(&self) -> u32 {
        u32::try_from(self.seconds()).unwrap_or(u32::MAX)
    }
}

/// Returns the time that is this number of seconds after the beginning of 1970, or the latest that
/// there is.
pub(crate) fn time_of(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(i64::MAX as u64))
}

/// Returns the whole seconds from the beginning of 1970 to a time, and whether the time is later
/// than that. A time before 1970 counts as its beginning.
pub(crate) fn seconds_of(time: SystemTime) -> (u64, bool) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_nanos() > 0)
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

    /// Returns the seconds since 1970, as [`Clock::seconds`] does.
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
        let clock = Clock::manual(time_of(100));
        let time = Time::new(clock.clone());
        assert_eq!((time.now(), time.held()), (100, None));
        clock.set(time_of(90));
        assert_eq!((time.now(), time.held()), (100, Some(100)));
        clock.set(time_of(110));
        assert_eq!((time.now(), time.held()), (110, None));
        clock.set(time_of(95));
        time.release(100);
        assert_eq!(time.now(), 110, "what was held is another time now");
        time.release(110);
        assert_eq!((time.now(), time.held()), (95, None));
    }
}
