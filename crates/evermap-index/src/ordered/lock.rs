//! The locks of nodes of trees.

use evermap_pm::medium::Note;
use evermap_pm::region::Region;
use evermap_pm::{Medium, PmU64, Result};

use crate::lock_wait::LockWait;

/// The lock word of a node.
///
/// ```text
/// bit  0..16  low bits of the generation of the opener that wrote it: if they are not those of
///             the current one, the node is stale, and what follows means nothing
/// bit 16      the node is being recovered, and still counts as stale
/// bit 17      locked
/// bit 18      obsolete: the node is not part of the tree any more
/// bit 19..64  version: counts changes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock(pub u64);

impl Lock {
    const GENERATION: u64 = 0xffff;
    const RECOVERING: u64 = 1 << 16;
    const LOCKED: u64 = 1 << 17;
    const OBSOLETE: u64 = 1 << 18;
    const ONE: u64 = 1 << 19;

    /// Returns the word of a new node.
    pub fn fresh(generation: u64) -> Self {
        Lock(generation & Self::GENERATION)
    }

    /// Returns the word of a node that an opener with this generation recovers.
    pub fn recovering(generation: u64) -> Self {
        Lock(Self::fresh(generation).0 | Self::RECOVERING)
    }

    /// Returns a word that makes a node stale for the opener with this generation and for all later
    /// ones: generations only grow, and before they repeat, everything is made stale again. If it
    /// were a later generation, the opener with that one would take the node for recovered.
    pub fn stale(generation: u64) -> Self {
        Self::fresh(generation.wrapping_sub(1))
    }

    /// Returns `true` if the opener with this generation has created or recovered the node.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 & (Self::GENERATION | Self::RECOVERING) == generation & Self::GENERATION
    }

    /// Returns `true` if the node is locked.
    #[inline(always)]
    pub fn is_locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }

    /// Returns `true` if the node is obsolete.
    #[inline(always)]
    pub fn is_obsolete(self) -> bool {
        self.0 & Self::OBSOLETE != 0
    }

    /// Returns the word of the same node, locked.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Lock(self.0 | Self::LOCKED)
    }

    /// Returns the word after the holder has released a lock without having changed anything.
    #[inline(always)]
    pub fn unchanged(self) -> Self {
        Lock(self.0 & !Self::LOCKED)
    }

    /// Returns the word after the holder has changed the node and released the lock.
    #[inline(always)]
    pub fn changed(self) -> Self {
        Lock((self.0 & !Self::LOCKED).wrapping_add(Self::ONE))
    }

    /// Returns the word after the holder has taken the node out of the tree.
    #[inline(always)]
    pub fn obsolete(self) -> Self {
        Lock(self.changed().0 | Self::OBSOLETE)
    }
}

/// Locks a node by its lock word. Returns `None` if it is obsolete, unless the caller ignores that.
///
/// # Errors
/// `Poisoned`, `Damaged`: the lock is never released.
pub(crate) fn acquire<M: Medium>(
    region: &Region<M>,
    cell: &PmU64,
    ignores_obsolete: bool,
) -> Result<Option<Lock>> {
    let m = region.medium();
    let mut wait = LockWait::default();
    loop {
        let found = Lock(m.load(cell));
        if found.is_obsolete() && !ignores_obsolete {
            return Ok(None);
        }
        let locked = found.locked();
        if !found.is_locked() && m.cas_transient(cell, found.0, locked.0).is_ok() {
            return Ok(Some(locked));
        }
        wait.wait_at(region, m.offset_of(cell))?;
    }
}

/// Locks a node by its lock word, if that takes no waiting. Returns `None` if another thread has
/// locked it, or if it is obsolete.
pub(crate) fn try_acquire<M: Medium>(m: &M, cell: &PmU64) -> Option<Lock> {
    let found = Lock(m.load(cell));
    let is_free = !found.is_locked() && !found.is_obsolete();
    let locked = found.locked();
    (is_free && m.cas_transient(cell, found.0, locked.0).is_ok()).then_some(locked)
}

/// Calls `repair` for a node whose lock word is of an earlier opener, in one thread, and makes it
/// one of the current opener. Other threads wait for that.
///
/// # Errors
/// As [`acquire`].
pub(crate) fn recover<M: Medium>(
    region: &Region<M>,
    cell: &PmU64,
    generation: u64,
    repair: impl FnOnce(),
) -> Result<()> {
    let m = region.medium();
    let recovering = Lock::recovering(generation);
    let mut wait = LockWait::default();
    loop {
        let found = Lock(m.load(cell));
        if found.is_of(generation) {
            return Ok(());
        }
        if found != recovering && m.cas_transient(cell, found.0, recovering.0).is_ok() {
            m.note(Note::Scope("recovery of a node"));
            repair();
            m.store_transient(cell, Lock::fresh(generation).0);
            return Ok(());
        }
        wait.wait_at(region, m.offset_of(cell))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_changes() {
        let fresh = Lock::fresh(0x1_0005);
        assert!(fresh.is_of(5) && !fresh.is_locked() && !fresh.is_obsolete());
        let locked = fresh.locked();
        assert!(locked.is_locked() && locked.unchanged() == fresh);
        assert!(locked.changed() != fresh && !locked.changed().is_locked());
        let gone = locked.obsolete();
        assert!(gone.is_obsolete() && !gone.is_locked() && gone.is_of(5));
        assert!(!gone.is_of(6) && !Lock::recovering(6).is_of(6));
    }

    #[test]
    fn a_stale_lock_is_of_no_later_opener() {
        for generation in [1, 2, 5, 0x1_0001] {
            // Up to where the low bits of generations repeat, and all locks become stale again.
            let later = (generation..).take_while(|later| later - generation < 0xffff);
            assert!(later.map(|later| Lock::stale(generation).is_of(later)).all(|is_of| !is_of));
        }
    }
}
