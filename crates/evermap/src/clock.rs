//! What time it is, as far as expiry is concerned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a store gets the time from: the system, or a hand-set clock for tests and simulations.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// The system's wall clock.
    pub fn system() -> Self {
        Clock(None)
    }

    /// A clock that stands at `seconds` since 1970 until it is [set](Clock::set). Clones share it.
    ///
    /// ```
    /// use evermap::{Clock, Evermap, Meta, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let clock = Clock::manual(1_000);
    /// let map = Evermap::open(path, Options::new().clock(clock.clone()))?;
    /// map.put_with(b"session", b"alice", Meta { expires_at: 1_060, ..Meta::default() })?;
    /// clock.set(1_060);
    /// assert_eq!(map.get(b"session")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn manual(seconds: u32) -> Self {
        Clock(Some(Arc::new(AtomicU64::new(u64::from(seconds)))))
    }

    /// Sets a manual clock. Nothing for the system's.
    pub fn set(&self, seconds: u32) {
        if let Some(hand) = &self.0 {
            hand.store(u64::from(seconds), Ordering::SeqCst);
        }
    }

    /// Seconds since 1970, at least 1, so that there is a time before every other. About 25 ns for the system's clock.
    pub fn now(&self) -> u32 {
        let seconds = match &self.0 {
            Some(hand) => hand.load(Ordering::SeqCst),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
        };
        u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
    }
}
