//! What is the same in all trees in persistent memory. A tree that implements [`PersistentTree`] is
//! an [`OrderedIndex`] and a [`PersistentOrdered`].

use std::ops::Bound;
use std::sync::Arc;

use evermap_pm::{Medium, PmU64, Pod, Pool, Result};

use super::leaf::LeafRef;
use super::memory::TreeMemory;
use super::{Direction, OrderedIndex, Page, PersistentOrdered};
use crate::fresh::Fresh;
use crate::index::{Action, Change, MutateMode, Stats, Visitor};
use crate::lock_wait::LockWait;
use crate::node_lock::{LastObsolete, Seen};
use crate::root;

/// A tree in persistent memory: what is its own.
///
/// The functions that take a tree are called with a guard of its pool, except those that say
/// otherwise. Their errors are those of an [`Index`](crate::Index).
pub trait PersistentTree: Send + Sync + Sized {
    /// The medium that contains the tree.
    type Medium: Medium;
    /// The root block. Its first word is [`KIND`](Self::KIND).
    type Root: Pod;

    /// The first word of the root block.
    const KIND: u64;
    /// The usual number of pairs in a page.
    const PAGE: usize;

    /// Returns the memory of the tree.
    fn memory(&self) -> &TreeMemory<Self::Medium>;

    /// Returns the tree that is in this memory.
    fn assemble(memory: TreeMemory<Self::Medium>) -> Result<Self>;

    /// Writes an empty tree, whose root block is `root`, and whose other blocks are `fresh`.
    /// Flushes those, and leaves the root block to the caller.
    fn write_empty(
        memory: TreeMemory<Self::Medium>,
        root: &Self::Root,
        fresh: &mut Fresh<'_, Self::Medium>,
    ) -> Result<Self>;

    /// Makes all nodes stale, so that they are recovered when they are first used. Called at
    /// opening, without a guard, if generations of an earlier opener could equal the current one.
    ///
    /// Does nothing unless implemented: for trees whose nodes have no locks, or are all found by
    /// [`assemble`](Self::assemble).
    fn make_stale(&self) -> Result<()> {
        Ok(())
    }

    /// Recovers the root node, if that is due.
    ///
    /// Does nothing unless implemented: for trees whose root is in ordinary memory.
    fn recover_root(&self) -> Result<()> {
        Ok(())
    }

    /// See [`OrderedIndex::get`].
    fn lookup(&self, key: &[u8]) -> Result<Option<u64>>;

    /// See [`OrderedIndex::mutate`]. Called without a guard, and never with a key that is too long.
    fn change(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Reads a page of about `most` pairs: see [`OrderedIndex::page`]. Returns the locks of the
    /// nodes that it has read, for the caller to see whether other threads have changed these
    /// meanwhile, or `None` if it has seen that itself.
    fn try_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>>;

    /// Calls `each` with every part of the tree but the root block, until it returns `false`. Other
    /// threads may change the tree meanwhile: see [`Persistent::visit`](crate::Persistent::visit).
    /// Called without a guard.
    fn show(&self, each: &mut Show<'_>) -> Result<()>;

    /// Adds a description of each violated invariant to `problems`. Called without a guard.
    fn check_all(&self, problems: &mut Vec<String>) -> Result<()>;

    /// Adds what a walk does not show to statistics.
    fn add_stats(&self, _: &mut Stats) {}
}

/// What is called with every part of a tree. Returns `false` to end that.
pub type Show<'f> = dyn FnMut(Part<'_>) -> bool + 'f;

/// A part of a tree.
pub enum Part<'m> {
    /// The block of a node.
    Node {
        /// Where it is.
        offset: u64,
        /// Its size in bytes.
        bytes: u64,
        /// The number of nodes from the root to it, or from it to a leaf. The greatest is the
        /// height of the tree.
        height: u32,
    },
    /// A leaf, whose word is that of a pair.
    Leaf(LeafRef<'m>),
    /// Another block: its offset, and its size in bytes.
    Block(u64, u64),
    /// The word of a pair that has no leaf.
    Word(u64),
}

impl<T: PersistentTree> OrderedIndex for T {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        let _guard = self.memory().pool.pin();
        self.lookup(key)
    }

    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.memory().change(key, mode, || self.change(key, mode, decide))
    }

    /// If other threads change what the page is to show, it is read again, with fewer pairs.
    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()> {
        let (memory, m) = (self.memory(), self.memory().medium());
        let _guard = memory.pool.pin();
        let (mut most, mut wait) = (page.most(Self::PAGE), LockWait::default());
        let mut obsolete = LastObsolete::default();
        loop {
            let seen = self.try_page(from, direction, most, page)?;
            if seen.as_ref().is_some_and(|seen| seen.is_unchanged(m)) {
                return Ok(());
            }
            obsolete.meet(m, seen.iter().flat_map(Seen::locks))?;
            wait.wait_at(&memory.region, memory.root)?;
            most = (most / 2).max(1);
        }
    }

    /// Counts the pairs: O(n).
    fn len(&self) -> u64 {
        self.stats().len
    }

    /// Walks the whole tree: O(n).
    fn stats(&self) -> Stats {
        let mut stats = Stats {
            pm_bytes: size_of::<T::Root>() as u64,
            dram_bytes: size_of::<T>() as u64,
            ..Stats::default()
        };
        let shown = self.show(&mut |part| {
            match part {
                Part::Node { bytes, height, .. } => {
                    stats.segments += 1;
                    stats.pm_bytes += bytes;
                    stats.depth = stats.depth.max(height);
                }
                Part::Leaf(leaf) => {
                    stats.len += 1;
                    stats.pm_bytes += leaf.bytes();
                }
                Part::Block(_, bytes) => stats.pm_bytes += bytes,
                Part::Word(_) => stats.len += 1,
            }
            true
        });
        let mut stats = shown.map_or_else(|_| Stats::default(), |()| stats);
        stats.recovered = self.memory().recovered();
        self.add_stats(&mut stats);
        stats
    }

    fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let checked = self.check_all(&mut problems);
        problems.extend(checked.err().map(|error| error.to_string()));
        problems
    }
}

impl<T: PersistentTree> PersistentOrdered<T::Medium> for T {
    fn create(pool: Arc<Pool<T::Medium>>, root: &PmU64) -> Result<Self> {
        pool.region().ensure_writable()?;
        let m = pool.medium();
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate_fixed(size_of::<T::Root>() as u64)?;
        let header = m.at::<T::Root>(block).expect("just allocated");
        let tree = T::write_empty(TreeMemory::new(pool.clone(), block), header, &mut fresh)?;
        fresh.keep();
        m.flush(header);
        root::publish(&pool, root, block, T::KIND);
        Ok(tree)
    }

    fn is_at(pool: &Pool<T::Medium>, root: &PmU64) -> bool {
        root::is_of(pool, root, T::KIND)
    }

    fn open(pool: Arc<Pool<T::Medium>>, root: &PmU64) -> Result<Self> {
        let block = root::block_of(&pool, root, T::KIND)?;
        let tree = T::assemble(TreeMemory::new(pool.clone(), block))?;
        if pool.region().must_recover_all() {
            // Generations of an earlier opener could equal the current one.
            tree.make_stale()?;
        }
        let guard = pool.pin();
        tree.recover_root()?;
        drop(guard);
        Ok(tree)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        let m = self.memory().medium();
        visitor.block(self.memory().root);
        self.show(&mut |part| {
            match part {
                Part::Node { offset, .. } | Part::Block(offset, _) => visitor.block(offset),
                Part::Leaf(leaf) => {
                    visitor.block(leaf.offset);
                    visitor.word(leaf.word(m));
                }
                Part::Word(word) => visitor.word(word),
            }
            !visitor.is_done()
        })
    }
}
