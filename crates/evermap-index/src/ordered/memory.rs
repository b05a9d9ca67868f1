//! What all trees in persistent memory have.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::region::Region;
use evermap_pm::{Error, Medium, PmU64, Pod, Pool, Result};

use super::refuse_too_long;
use crate::index::{Change, MutateMode};
use crate::recipe;

/// The memory of a tree, and where its root block is.
pub struct TreeMemory<M: Medium> {
    /// The pool that contains the tree.
    pub pool: Arc<Pool<M>>,
    /// The pool's region, which every operation needs, to save an indirection.
    pub region: Arc<Region<M>>,
    /// The region's generation: of this opener.
    pub generation: u64,
    /// The offset of the root block.
    pub root: u64,
    /// Nodes that were recovered since opening.
    recovered: AtomicU64,
}

impl<M: Medium> TreeMemory<M> {
    /// Creates the memory of a tree whose root block is at `root`.
    pub fn new(pool: Arc<Pool<M>>, root: u64) -> Self {
        TreeMemory {
            region: pool.share_region(),
            generation: pool.generation(),
            root,
            recovered: AtomicU64::new(0),
            pool,
        }
    }

    /// Returns the medium that holds the tree.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        self.region.medium()
    }

    /// Returns the root block, which is an `R`.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub fn root_block<R: Pod>(&self) -> Result<&R> {
        let root = self.medium().at::<R>(self.root);
        root.ok_or_else(|| Error::damaged(self.root, "there is no root of a tree"))
    }

    /// Calls `change`, which changes the key by [`mutate`](super::OrderedIndex::mutate), unless no
    /// tree can do that.
    ///
    /// # Errors
    /// `KeyTooLong`, `Poisoned` or `Forked`, before `change` is called; those of
    /// `change`.
    #[inline(always)]
    pub fn change(
        &self,
        key: &[u8],
        mode: MutateMode,
        change: impl FnOnce() -> Result<Change>,
    ) -> Result<Change> {
        self.region.ensure_writable()?;
        if let Some(refused) = refuse_too_long(key, mode) {
            return refused;
        }
        let poison = self.region.poison_on_panic();
        let change = change();
        poison.disarm();
        change
    }

    /// Recovers a node that an earlier process used and whose lock is at `lock`, by `repair`: see
    /// [`recipe::resume`].
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`.
    pub fn recover(&self, lock: &PmU64, repair: impl FnOnce()) -> Result<()> {
        recipe::resume(&self.region, lock, self.generation, || {
            repair();
            // Relaxed: a count for information.
            self.recovered.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Returns how many nodes were recovered since opening.
    pub fn recovered(&self) -> u64 {
        self.recovered.load(Ordering::Relaxed)
    }
}

/// Calls `each` once with `first` and with each node to which references lead from there. `each`
/// adds those that a node refers to.
pub fn for_each_reachable<N>(
    first: N,
    offset: impl Fn(&N) -> u64,
    mut each: impl FnMut(&N, &mut Vec<N>),
) {
    let (mut seen, mut left) = (HashSet::new(), vec![first]);
    while let Some(node) = left.pop() {
        if seen.insert(offset(&node)) {
            each(&node, &mut left);
        }
    }
}
