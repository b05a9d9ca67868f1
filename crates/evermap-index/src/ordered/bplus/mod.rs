//! A B+tree in ordinary memory with optimistic lock coupling.
//!
//! The ordered side of the store: a hash index answers who knows the key, this one who asks what comes next. It does
//! not persist; after a restart it is [loaded](BPlus::load) anew.
//!
//! ```text
//! node, N slots     version | count, level | range: low key, high key, length of the prefix
//!                   N places       where each slot has its rest
//!                   N heads        8 bytes each of the keys behind the prefix
//!                   N rests        (tail, word or child), wherever there was room
//!
//!   root   [ ""      | "d"     | "m"     ]           each child with the least key that it serves
//!             |         |         |
//!   leaf   [ ant bee ] [ dog ]   [ mouse owl rat ]   pairs, sorted
//!             1   2      3         4     5   6
//! ```
//!
//! Readers store nothing: a node's version proves what they read. What a node serves never changes; nodes
//! that are split or merged are replaced, and freed when nobody can see them any more. So a leaf needs
//! no link to the next: who goes on from its upper end by a new descent misses nothing, in either direction.

use std::ops::Bound;
use std::ptr;
use std::sync::Arc;

use evermap_pm::epoch::EpochStats;
use evermap_pm::{Domain, Result};

use self::arena::Arena;
use self::key::Tail;
pub use self::load::{Division, Hand};
use self::node::{Content, KeyRange, Node, OwnedNode};
use self::reclaim::{free_all, reclaimer};
use self::restructure::Draft;
use self::tally::{Count, Tally};
use self::tree::ANCHOR;
use super::{Direction, OrderedIndex, Page};
use crate::{Action, Change, MutateMode, Stats};

mod arena;
mod block;
mod check;
mod key;
mod load;
mod node;
mod reclaim;
mod restructure;
mod tally;
mod tree;
mod version;

/// Where a test may hold up a thread: before it reads or writes what others may be writing or reading.
#[inline(always)]
fn step() {
    #[cfg(any(test, feature = "testkit"))]
    crate::testkit::crowd::step();
}

/// Limits of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most bytes that nodes and keys may take. Insertions beyond it are answered `NoSpace`; a few more may be
    /// taken by threads that insert at the same moment, and by what awaits its grace period.
    pub bytes_max: u64,
}

impl Default for Config {
    /// As much as the system gives.
    fn default() -> Self {
        Config { bytes_max: u64::MAX }
    }
}

/// A volatile ordered index of nodes with `N` slots. See the [module](self).
pub struct BPlus<const N: usize = 40> {
    /// Stands above the root and names it in its only slot. Its version is the lock of that slot.
    anchor: OwnedNode<N>,
    nodes: Arc<Arena<Node<N>>>,
    epoch: Domain,
    tally: Tally,
}

impl<const N: usize> BPlus<N> {
    /// Fewer slots could not be split and merged as described.
    const LEGAL: () = assert!(N >= 4 && N <= 256, "a node has 4 to 256 slots");

    /// An empty index without limits.
    ///
    /// # Panics
    /// If there is no memory for two nodes.
    pub fn new() -> Self {
        Self::with_config(Config::default()).expect("memory for two nodes")
    }

    /// An empty index.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn with_config(config: Config) -> Result<Self> {
        let tree = Self::bare(config)?;
        let root = Draft::new(&tree.nodes, 0, &[], None)?;
        tree.tally.allow(root.size())?;
        let guard = tree.epoch.pin();
        tree.plant(root.publish(&tree, &mut Vec::new(), &guard));
        drop(guard);
        Ok(tree)
    }

    /// A tree without a root.
    fn bare(config: Config) -> Result<Self> {
        let () = Self::LEGAL;
        let nodes = Arc::new(Arena::new());
        Ok(BPlus {
            anchor: OwnedNode::new(&nodes, ANCHOR, KeyRange::new(&[], None)?)?,
            epoch: Domain::new(reclaimer(nodes.clone())),
            nodes,
            tally: Tally::new(config.bytes_max),
        })
    }

    /// Binds each key to its word unless it is bound already, or unbinds it where there is no word; in this order, each
    /// by itself. As so many [inserts](OrderedIndex::insert) and [removes](OrderedIndex::remove), but with the cache
    /// misses of the ways down overlapped.
    ///
    /// # Errors
    /// As there; keys before the one that met it are changed.
    pub fn set_many(&self, pairs: &[(&[u8], Option<u64>)]) -> Result<()> {
        pairs.chunks(tree::TOGETHER).try_for_each(|pairs| self.set_together(pairs))
    }

    /// What awaits its grace period, and what holds it up. [`stats`](OrderedIndex::stats) does not count those bytes.
    pub fn reclamation(&self) -> EpochStats {
        self.epoch.stats()
    }

    /// Gives a bare tree a root.
    fn plant(&self, root: &Node<N>) {
        self.anchor.insert(0, 0, Tail::EMPTY, Content::Child(root));
    }
}

impl<const N: usize> Default for BPlus<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Drop for BPlus<N> {
    fn drop(&mut self) {
        {
            let guard = self.epoch.pin();
            if let Some(root) = self.anchor.child(0, &guard).map(|root| ptr::from_ref(root).addr())
            {
                // SAFETY: 1. the root was published and is not retired, for the anchor names it, and so on downwards.
                // 2. nobody else has the tree. 3. it is.
                unsafe { free_all(&self.nodes, root, &guard) };
            }
        }
        // What is retired already.
        self.epoch.drain();
    }
}

impl<const N: usize> OrderedIndex for BPlus<N> {
    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.get_word(key))
    }

    #[inline]
    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.change(key, mode, decide)
    }

    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()> {
        self.read_page(from, direction, page);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.tally.sum(Count::Pairs)
    }

    /// O(1). `segments` are nodes, `capacity` counts the slots of leaves.
    fn stats(&self) -> Stats {
        let leaves = self.tally.sum(Count::Leaves);
        Stats {
            len: self.len(),
            capacity: leaves * N as u64,
            segments: leaves + self.tally.sum(Count::Inner),
            dram_bytes: self.tally.sum(Count::Bytes),
            depth: self.root(&self.epoch.pin()).level + 1,
            splits: self.tally.sum(Count::Splits),
            merges: self.tally.sum(Count::Merges),
            ..Stats::default()
        }
    }

    fn check(&self) -> Vec<String> {
        self.violations()
    }
}
