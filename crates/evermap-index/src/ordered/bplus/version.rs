//! The version of a node: a lock for writers, and a validation for readers.
//!
//! A reader remembers the version, reads the node, and then validates that the version is
//! unchanged. If it is, nothing has changed meanwhile; if not, what was read is discarded. A writer
//! locks the version, and releases it incremented. A node that was replaced stays locked for ever,
//! as *obsolete*.
//!
//! ```text
//! bit 0      obsolete   other nodes serve its keys now
//! bit 1      locked
//! bit 2..64  number of changes
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use evermap_pm::sync::Backoff;

use super::step;

const OBSOLETE: u64 = 1;
const LOCKED: u64 = 2;
const ONE: u64 = 4;

/// The version of a node. See the [module](self).
pub(super) struct Version(AtomicU64);

/// A version at which a node was neither locked nor obsolete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen(u64);

/// The node has changed: discard what was read, and start again at the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Restart;

impl Version {
    pub(super) fn new() -> Self {
        Version(AtomicU64::new(0))
    }

    /// Returns the version to validate with later. Waits while the node is locked.
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

    /// Checks that nothing has changed since `seen`.
    #[inline(always)]
    pub(super) fn validate(&self, seen: Seen) -> Result<(), Restart> {
        step();
        // Acquire: pairs with the release fence of a writer, so that if we have read one of its
        // stores, the load below sees its lock.
        fence(Acquire);
        if self.0.load(Relaxed) == seen.0 { Ok(()) } else { Err(Restart) }
    }

    /// Takes the lock if nothing has changed since `seen`.
    #[inline(always)]
    pub(super) fn upgrade(&self, seen: Seen) -> Result<Locked<'_>, Restart> {
        step();
        // Acquire: the stores of the last holder are visible.
        match self.0.compare_exchange(seen.0, seen.0 | LOCKED, Acquire, Relaxed) {
            Ok(_) => {
                // Release: a reader that sees one of our stores also sees the lock, if it validates
                // after an acquire fence.
                fence(Release);
                Ok(Locked { version: self, end: seen.0 })
            }
            Err(_) => Err(Restart),
        }
    }

    /// Takes the lock if it is free.
    pub(super) fn try_lock(&self) -> Result<Locked<'_>, Restart> {
        step();
        let word = self.0.load(Relaxed);
        if word & (LOCKED | OBSOLETE) == 0 { self.upgrade(Seen(word)) } else { Err(Restart) }
    }

    /// Takes the lock, and waits for it if necessary. Fails if the node is obsolete.
    pub(super) fn lock(&self) -> Result<Locked<'_>, Restart> {
        loop {
            if let Ok(locked) = self.upgrade(self.read()?) {
                return Ok(locked);
            }
        }
    }
}

/// The lock of a node, which is released when this is dropped.
pub(super) struct Locked<'v> {
    version: &'v Version,
    /// The version after the release.
    end: u64,
}

impl Locked<'_> {
    /// Records that the node is changed, so that readers fail to validate. Called before the first
    /// change.
    #[inline(always)]
    pub(super) fn mark_changed(&mut self) {
        self.end = self.end.wrapping_add(ONE);
    }

    /// Makes the node obsolete: other nodes serve its keys.
    pub(super) fn obsolete(mut self) {
        self.mark_changed();
        self.end |= OBSOLETE;
    }
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        step();
        // Release: a thread that sees this version sees our changes.
        self.version.0.store(self.end, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_invalidates_and_a_lock_alone_does_not() {
        let version = Version::new();
        let seen = version.read().unwrap();
        drop(version.lock().unwrap());
        assert_eq!(version.validate(seen), Ok(()), "a lock without a change");
        let mut locked = version.upgrade(seen).unwrap();
        assert_eq!(version.validate(seen), Err(Restart), "a locked node is never valid");
        assert!(version.try_lock().is_err());
        locked.mark_changed();
        drop(locked);
        assert_eq!(version.validate(seen), Err(Restart));
        assert!(version.upgrade(seen).is_err(), "the lock is not taken if the node has changed");
    }

    #[test]
    fn an_obsolete_node_stays_obsolete() {
        let version = Version::new();
        let seen = version.read().unwrap();
        version.upgrade(seen).unwrap().obsolete();
        assert_eq!(version.read(), Err(Restart));
        assert!(version.lock().is_err() && version.try_lock().is_err());
        assert_eq!(version.validate(seen), Err(Restart));
    }
}
