//! The locks of nodes of trees.

use evermap_pm::region::{self, Region};
use evermap_pm::{Error, Medium, PmU64, Result};

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

    /// Returns a word that makes a node [stale](region::stale) for the opener with this generation
    /// and for all later ones.
    pub fn stale(generation: u64) -> Self {
        Self::fresh(region::stale(generation))
    }

    /// Returns `true` if the opener with this generation has created or recovered the node.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 & (Self::GENERATION | Self::RECOVERING) == generation & Self::GENERATION
    }

    /// Returns `true` if, in addition, the node is not locked.
    #[inline(always)]
    pub fn is_free_of(self, generation: u64) -> bool {
        self.0 & (Self::GENERATION | Self::RECOVERING | Self::LOCKED)
            == generation & Self::GENERATION
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

/// The locks of the obsolete nodes that the last attempt of an operation met.
///
/// What refers to a node is replaced before the node is obsolete, so an attempt that begins later
/// does not get to it any more. If it does, the tree is damaged, and would never let it pass.
#[derive(Default)]
pub struct LastObsolete<'m>(Vec<&'m PmU64>);

impl<'m> LastObsolete<'m> {
    /// Records which nodes that another attempt used are obsolete. `locks` are those of all nodes
    /// that it used.
    ///
    /// # Errors
    /// `Damaged` if one was for the attempt before, too.
    pub fn meet<M: Medium>(
        &mut self,
        m: &M,
        locks: impl IntoIterator<Item = &'m PmU64>,
    ) -> Result<()> {
        let is_obsolete = |cell: &&PmU64| Lock(m.load(cell)).is_obsolete();
        let now: Vec<_> = locks.into_iter().filter(is_obsolete).collect();
        let again = |cell: &&&PmU64| self.0.iter().any(|other| std::ptr::eq(*other, **cell));
        if let Some(cell) = now.iter().find(again) {
            let what = "a tree leads to a node that is not part of it";
            return Err(Error::damaged(m.offset_of(*cell), what));
        }
        self.0 = now;
        Ok(())
    }
}

/// The number of locks that [`Seen`] holds without allocating memory: more than most pages need.
const FEW: usize = 16;

/// The locks of the nodes that an operation has read, as they were before.
#[derive(Default)]
pub struct Seen<'m> {
    /// The first ones.
    few: [Option<(&'m PmU64, Lock)>; FEW],
    /// The number of those.
    count: usize,
    /// The others.
    more: Vec<(&'m PmU64, Lock)>,
}

impl<'m> Seen<'m> {
    /// Adds the lock of a node, as it was before anything of the node was read.
    #[inline]
    pub fn add(&mut self, cell: &'m PmU64, lock: Lock) {
        match self.few.get_mut(self.count) {
            Some(place) => {
                *place = Some((cell, lock));
                self.count += 1;
            }
            None => self.more.push((cell, lock)),
        }
    }

    /// Returns the locks, as they were.
    fn all(&self) -> impl Iterator<Item = (&'m PmU64, Lock)> {
        self.few[..self.count].iter().flatten().chain(&self.more).copied()
    }

    /// Returns `true` if no node has changed since: then all that was read was in the tree at this
    /// moment.
    pub fn is_unchanged<M: Medium>(&self, m: &M) -> bool {
        let is_in_use = |lock: Lock| !lock.is_locked() && !lock.is_obsolete();
        self.all().all(|(cell, then)| m.load(cell) == then.0 && is_in_use(then))
    }

    /// Returns the locks.
    pub fn locks(&self) -> impl Iterator<Item = &'m PmU64> {
        self.all().map(|(cell, _)| cell)
    }
}

/// A node that this thread has locked. It must be released.
#[must_use = "the node stays locked"]
pub struct Locked<'m, N> {
    /// The node.
    pub node: N,
    cell: &'m PmU64,
    lock: Lock,
}

impl<'m, N> Locked<'m, N> {
    /// Locks a node by its lock word. Returns `None` as [`acquire`] does.
    ///
    /// # Errors
    /// As [`acquire`].
    pub fn acquire<M: Medium>(
        region: &Region<M>,
        node: N,
        cell: &'m PmU64,
        ignores_obsolete: bool,
    ) -> Result<Option<Self>> {
        let lock = acquire(region, cell, ignores_obsolete)?;
        Ok(lock.map(|lock| Locked { node, cell, lock }))
    }

    /// Releases the lock of a node that was not changed.
    pub fn release<M: Medium>(self, m: &M) {
        m.store_transient(self.cell, self.lock.unchanged().0);
    }

    /// Releases the lock of a node that was changed.
    pub fn changed<M: Medium>(self, m: &M) {
        m.store_transient(self.cell, self.lock.changed().0);
    }

    /// Releases the lock of a node that is not part of the tree any more.
    pub fn obsolete<M: Medium>(self, m: &M) {
        m.store_transient(self.cell, self.lock.obsolete().0);
    }

    /// Releases the lock after work under it, which has returned its result and whether it has
    /// changed the node. If it failed, it has changed nothing.
    pub fn end<M: Medium, T>(self, m: &M, worked: Result<(T, bool)>) -> Result<T> {
        match worked {
            Ok((_, true)) => self.changed(m),
            _ => self.release(m),
        }
        Ok(worked?.0)
    }
}

/// Returns the lock word of a node as soon as it is not locked.
///
/// # Errors
/// As [`acquire`].
#[inline(always)]
pub fn unlocked<M: Medium>(region: &Region<M>, cell: &PmU64) -> Result<Lock> {
    let m = region.medium();
    let mut wait = LockWait::default();
    loop {
        let found = Lock(m.load(cell));
        if !found.is_locked() {
            return Ok(found);
        }
        wait.wait_at(region, m.offset_of(cell))?;
    }
}

/// Returns the result of `read`, which reads a node while no thread changes it, and the lock word
/// of the node at that time.
///
/// # Errors
/// Those of `read`, and those of [`acquire`].
#[inline(always)]
pub fn read<M: Medium, T>(
    region: &Region<M>,
    cell: &PmU64,
    read: impl Fn() -> Result<T>,
) -> Result<(Lock, T)> {
    loop {
        let before = unlocked(region, cell)?;
        let result = read();
        // Acquire: all words of the node have been loaded before.
        if region.medium().load(cell) == before.0 {
            return Ok((before, result?));
        }
    }
}

/// Locks a node by its lock word. Returns `None` if it is obsolete, unless the caller ignores that.
///
/// # Errors
/// `Poisoned`, `Damaged`: the lock is never released.
pub fn acquire<M: Medium>(
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
pub fn try_acquire<M: Medium>(m: &M, cell: &PmU64) -> Option<Lock> {
    let found = Lock(m.load(cell));
    let is_free = !found.is_locked() && !found.is_obsolete();
    let locked = found.locked();
    (is_free && m.cas_transient(cell, found.0, locked.0).is_ok()).then_some(locked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_changes() {
        let fresh = Lock::fresh(0x1_0005);
        assert!(fresh.is_of(5) && !fresh.is_locked() && !fresh.is_obsolete());
        let locked = fresh.locked();
        assert!(fresh.is_free_of(5) && !fresh.is_free_of(6) && !locked.is_free_of(5));
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
