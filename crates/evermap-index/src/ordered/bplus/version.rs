//! The version of a node: a lock for those who change it, proof for those who only read it.
//!
//! A reader remembers the version, reads what it likes, and then asks whether the version is still the same. If it
//! is, nothing has changed meanwhile; if not, nothing that was read counts. A writer takes the version as a lock, and
//! gives it back one higher. A node that was replaced keeps its lock for ever, as *obsolete*.
//!
//! ```text
//! bit 0      obsolete   another node serves its keys now
//! bit 1      locked
//! bit 2..64  count of changes
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use evermap_pm::sync::Backoff;

use super::step;

const OBSOLETE: u64 = 1;
const LOCKED: u64 = 2;
const ONE: u64 = 4;

/// See the [module](self).
pub(super) struct Version(AtomicU64);

/// A version at which a node was neither locked nor obsolete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen(u64);

/// What was read does not count: begin again at the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Restart;

impl Version {
    pub(super) fn new() -> Self {
        Version(AtomicU64::new(0))
    }

    /// The version to validate with later. Waits while the node is locked.
    #[inline(always)]
    pub(super) fn read(&self) -> Result<Seen, Restart> {
        step();
        // Acquire: what is read from now on is at least as new as this version.
        let word = self.0.load(Acquire);
        if word & (LOCKED | OBSOLETE) == 0 { Ok(Seen(word)) } else { self.read_slowly() }
    }

    #[cold]
    fn read_slowly(&self) -> Result<Seen, Restart> {
        let mut backoff = Backoff::new();
        loop {
            let word = self.0.load(Acquire);
            match (word & OBSOLETE, word & LOCKED) {
                (0, 0) => return Ok(Seen(word)),
                (0, _) => backoff.wait(),
                _ => return Err(Restart),
            };
        }
    }

    /// Says that nothing has changed since `seen`.
    #[inline(always)]
    pub(super) fn validate(&self, seen: Seen) -> Result<(), Restart> {
        step();
        // Acquire: pairs with the release fence of a writer one of whose stores we may have read, so that its lock
        // is seen by the load below.
        fence(Acquire);
        if self.0.load(Relaxed) == seen.0 { Ok(()) } else { Err(Restart) }
    }

    /// Takes the lock, provided that nothing has changed since `seen`.
    #[inline(always)]
    pub(super) fn upgrade(&self, seen: Seen) -> Result<Locked<'_>, Restart> {
        step();
        // Acquire: we see what the last writer left.
        match self.0.compare_exchange(seen.0, seen.0 | LOCKED, Acquire, Relaxed) {
            Ok(_) => {
                // Release: whoever reads one of our stores sees the lock too, if it looks after an acquire fence.
                fence(Release);
                Ok(Locked { version: self, end: seen.0 })
            }
            Err(_) => Err(Restart),
        }
    }

    /// Takes the lock if nobody has it.
    pub(super) fn try_lock(&self) -> Result<Locked<'_>, Restart> {
        step();
        let word = self.0.load(Relaxed);
        if word & (LOCKED | OBSOLETE) == 0 { self.upgrade(Seen(word)) } else { Err(Restart) }
    }

    /// Takes the lock, however long that takes. An obsolete node has none.
    pub(super) fn lock(&self) -> Result<Locked<'_>, Restart> {
        loop {
            if let Ok(locked) = self.upgrade(self.read()?) {
                return Ok(locked);
            }
        }
    }
}

/// The lock of a node; given back at the end of its life.
pub(super) struct Locked<'v> {
    version: &'v Version,
    /// What the version becomes.
    end: u64,
}

impl Locked<'_> {
    /// To be called before the first change: readers of these moments are told.
    #[inline(always)]
    pub(super) fn changing(&mut self) {
        self.end = self.end.wrapping_add(ONE);
    }

    /// Gives the node up for ever: others serve its keys.
    pub(super) fn obsolete(mut self) {
        self.changing();
        self.end |= OBSOLETE;
    }
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        step();
        // Release: whoever sees this version sees our changes.
        self.version.0.store(self.end, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_noticed_and_a_look_is_not() {
        let version = Version::new();
        let seen = version.read().unwrap();
        drop(version.lock().unwrap());
        assert_eq!(version.validate(seen), Ok(()), "a lock without a change");
        let mut locked = version.upgrade(seen).unwrap();
        assert_eq!(version.validate(seen), Err(Restart), "under the lock nothing can be trusted");
        assert!(version.try_lock().is_err());
        locked.changing();
        drop(locked);
        assert_eq!(version.validate(seen), Err(Restart));
        assert!(version.upgrade(seen).is_err(), "a lock is not taken over a change");
    }

    #[test]
    fn what_is_obsolete_stays_so() {
        let version = Version::new();
        let seen = version.read().unwrap();
        version.upgrade(seen).unwrap().obsolete();
        assert_eq!(version.read(), Err(Restart));
        assert!(version.lock().is_err() && version.try_lock().is_err());
        assert_eq!(version.validate(seen), Err(Restart));
    }
}
