//! The memory limit in effect, and how long a file may become under it.
//!
//! A cache needs more addresses than memory: free units are in many places, and what is large
//! needs neighbours. With a quarter more, one unit in five is free, so that most records find
//! neighbouring ones, and otherwise little has to be moved out of the way. So a limit is in effect
//! only as far as the capacity of the file allows that.
//!
//! Where the *disk* has less space than the limit, what the file takes of it is the limit, for a
//! while: then it is raised step by step, because there may be space again.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use evermap_pm::Medium;

#[cfg(doc)]
use crate::Error;
use crate::{Evermap, Result};

/// The file may be longer than the limit by one part in this many of it.
const LONGER_PART: u64 = 4;
/// A file of a smaller capacity has so few units that one in five may be all that records have. The
/// limit is not lowered for it, and what lacks space evicts something.
const LEAST_CAPACITY: u64 = 1 << 20;
/// After a full disk, the limit is raised by one part in this many, at most this often.
const RAISE_PART: u64 = 16;
const RAISE_PAUSE: Duration = Duration::from_secs(5);

/// What the limit in effect follows from.
pub(super) struct Limits {
    /// The limit that was asked for; `u64::MAX` for none.
    asked: u64,
    /// When the limit in effect was lowered or raised because of the disk.
    changed: Option<Instant>,
}

impl Limits {
    pub(super) fn new() -> Self {
        Limits { asked: u64::MAX, changed: None }
    }
}

/// Returns the length of a file, but for its largest value, that is enough for a limit.
fn length_for(limit: u64) -> u64 {
    limit.saturating_add(limit / LONGER_PART)
}

/// Returns the largest limit for which a file of this length is enough.
fn limit_within(length: u64) -> u64 {
    length / (LONGER_PART + 1) * LONGER_PART
}

impl<M: Medium> Evermap<M> {
    /// Changes the [memory limit](crate::Options::memory_limit) from now on: bytes, or 0 for none.
    /// It is not stored in the file.
    ///
    /// If the file takes more than that, a cache is reduced to it in the background. Without
    /// eviction nothing is removed, and mutations fail that need more space.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let db = Evermap::in_memory(Options::new().evict(true).memory_limit(64 << 20))?;
    /// db.set_memory_limit(32 << 20)?;
    /// assert_eq!(db.stat().memory_limit, Some(32 << 20));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Storage`] with `Poisoned` or `Forked`.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<()> {
        self.file.ensure_writable()?;
        self.apply_memory_limit(bytes);
        self.file.maintenance.evictor.wake();
        Ok(())
    }

    pub(crate) fn apply_memory_limit(&self, bytes: u64) {
        let limits = &mut *self.limits();
        *limits = Limits { asked: if bytes == 0 { u64::MAX } else { bytes }, changed: None };
        self.put_into_effect(self.highest_limit(limits));
    }

    /// Returns the limit that was asked for, or `None` if there was none.
    pub(crate) fn asked_limit(&self) -> Option<u64> {
        Some(self.limits().asked).filter(|&asked| asked != u64::MAX)
    }

    fn limits(&self) -> evermap_pm::sync::MutexGuard<'_, Limits> {
        self.file.maintenance.evictor.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit that was asked for, as far as the capacity of the file allows it.
    fn highest_limit(&self, limits: &Limits) -> u64 {
        let capacity = self.file.pool.region().capacity();
        match self.evicts() && capacity >= LEAST_CAPACITY {
            true => limits.asked.min(limit_within(capacity)),
            false => limits.asked,
        }
    }

    fn put_into_effect(&self, limit: u64) {
        let heap = self.file.pool.heap();
        heap.set_limit(limit);
        if self.evicts() {
            heap.set_length_goal(length_for(limit));
            // Spent: the thread that evicts first sets one.
            heap.set_budget(Some(0));
        }
    }

    /// Takes what the file takes of the disk, which is full, as the limit for now.
    pub(super) fn take_what_there_is(&self) {
        let (limits, room) = (&mut *self.limits(), self.file.pool.heap().room());
        limits.changed = Some(Instant::now());
        self.put_into_effect(room.limit.min(room.held));
    }

    /// Raises a limit that was lowered because the disk was full.
    pub(super) fn raise_limit(&self) {
        let limits = &mut *self.limits();
        let Some(changed) = limits.changed.filter(|it| it.elapsed() >= RAISE_PAUSE) else { return };
        let (limit, highest) = (self.file.pool.heap().room().limit, self.highest_limit(limits));
        let raised = limit.saturating_add(highest / RAISE_PART).min(highest);
        limits.changed = Some(changed).filter(|_| raised < highest).map(|_| Instant::now());
        self.put_into_effect(raised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk lowers the limit for a while only.
    #[test]
    fn a_limit_that_was_lowered_is_raised_again() {
        let options = crate::Options::new().memory_limit(64 << 20).evict(true);
        let db = Evermap::in_memory(options).unwrap();
        let limit = || db.stat().memory_limit.unwrap();
        db.default_map().put(b"key", [1; 100_000]).unwrap();
        db.take_what_there_is();
        let lowered = limit();
        assert!(lowered < 8 << 20, "{lowered}");
        db.raise_limit();
        assert_eq!(limit(), lowered, "too early");
        for step in 1..=RAISE_PART {
            db.limits().changed = Instant::now().checked_sub(RAISE_PAUSE);
            db.raise_limit();
            assert_eq!(limit(), (lowered + step * (4 << 20)).min(64 << 20));
        }
        assert!(limit() == 64 << 20 && db.limits().changed.is_none());
    }

    #[test]
    fn a_limit_is_what_the_capacity_is_enough_for() {
        for capacity in (100_000..300 << 20).step_by(77_777).chain([1 << 38]) {
            let limit = limit_within(capacity);
            assert!(length_for(limit) <= capacity && length_for(limit + 8) > capacity);
        }
        assert_eq!(length_for(32 << 20), 40 << 20);
        assert_eq!(length_for(u64::MAX), u64::MAX);
    }
}
