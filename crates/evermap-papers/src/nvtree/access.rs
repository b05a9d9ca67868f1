//! Finding leaves, and lookups.

use evermap_index::lock_wait::LockWait;
use evermap_index::node_lock::LastObsolete;
use evermap_pm::{Medium, Result};

use super::leaf::{Leaf, Locked};
use super::upper::{Place, Upper};
use super::{Form, NvTree};
use crate::search::Search;

/// The leaf that a search leads to, and what is beside it.
pub(super) struct Spot<'m> {
    pub(super) leaf: Leaf<'m>,
    /// The next leaf, if it has the same parent.
    pub(super) next: Option<u64>,
}

impl<M: Medium, F: Form> NvTree<M, F> {
    /// Calls `read` with what is above the leaves. The calling thread has a guard.
    #[inline]
    pub(super) fn with_upper<T>(&self, read: impl FnOnce(&Upper) -> T) -> T {
        self.upper.with(self.memory.pool.epoch(), read)
    }

    /// Returns the leaf at an offset.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn leaf(&self, offset: u64) -> Result<Leaf<'_>> {
        Leaf::at(self.medium(), offset, F::LEAF)
    }

    /// Returns what `read` finds at the entry that a search leads to. The entry may be outdated
    /// soon, and its leaf obsolete.
    #[inline]
    fn descend<T>(
        &self,
        search: &Search<'_>,
        read: impl Fn(&Upper, Place) -> T + Copy,
    ) -> Result<T> {
        let m = self.medium();
        let mut wait = LockWait::default();
        loop {
            let found = self
                .with_upper(|upper| upper.read(|upper| Ok(read(upper, upper.find(m, search)?))));
            match found {
                Some(found) => return found,
                None => wait.wait_at(&self.memory.region, self.memory.root)?,
            }
        }
    }

    /// Returns the leaf that a search leads to. It may be obsolete soon.
    #[inline]
    pub(super) fn leaf_of(&self, search: &Search<'_>) -> Result<Leaf<'_>> {
        self.leaf(self.descend(search, |upper, place| upper.leaf(place))?)
    }

    /// Returns the same with what is beside it.
    pub(super) fn spot_of(&self, search: &Search<'_>) -> Result<Spot<'_>> {
        let both = |upper: &Upper, place| (upper.leaf(place), upper.next_in_parent(place));
        let (leaf, next) = self.descend(search, both)?;
        Ok(Spot { leaf: self.leaf(leaf)?, next })
    }

    /// Locks a leaf. Returns `None` if it is obsolete.
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`.
    pub(super) fn lock<'m>(&self, leaf: Leaf<'m>) -> Result<Option<Locked<'m>>> {
        Locked::acquire(&self.memory.region, leaf, &leaf.header.lock, false)
    }

    /// Returns what `read` reads of the leaf that a search leads to. It is passed the number of
    /// entries. What it returns was so at one moment.
    ///
    /// # Errors
    /// Those of `read`; `Damaged`, `Poisoned`.
    #[inline]
    pub(super) fn read_leaf<'m, T>(
        &'m self,
        search: &Search<'_>,
        read: impl Fn(&Leaf<'m>, usize) -> Result<T>,
    ) -> Result<T> {
        let m = self.medium();
        let (mut wait, mut obsolete) = (LockWait::default(), LastObsolete::default());
        loop {
            let leaf = self.leaf_of(search)?;
            let visible = leaf.visible(m)?;
            let result = read(&leaf, visible.count());
            if leaf.is_unchanged(m, visible) {
                return result;
            }
            obsolete.meet(m, [&leaf.header.lock])?;
            wait.wait_at(&self.memory.region, leaf.offset)?;
        }
    }

    /// Returns the word that a key is bound to. The caller has a guard.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<u64>> {
        let search = Search::at(key);
        let m = self.medium();
        let found = self.read_leaf(&search, |leaf, count| leaf.newest(m, count, &search))?;
        Ok(found.and_then(|found| found.bound()))
    }

    /// Returns how many entries a lookup of a key looks at. The caller has a guard.
    pub(super) fn count_entries(&self, key: &[u8]) -> Result<usize> {
        let search = Search::at(key);
        let m = self.medium();
        self.read_leaf(&search, |leaf, count| {
            let found = leaf.newest(m, count, &search)?;
            Ok(found.map_or(count, |found| count - found.at))
        })
    }
}
