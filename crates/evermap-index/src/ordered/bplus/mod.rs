//! A B+tree in ordinary memory with optimistic lock coupling.
//!
//! The store keeps it beside a hash index: the hash index serves lookups, the tree serves scans in
//! key order. The tree is not persistent; it is [loaded](BPlus::load) again after a restart.
//!
//! ```text
//! node, N slots     version | count, level | range: low key, high key, length of the prefix
//!                   N places       which rest belongs to each slot
//!                   N heads        8 bytes of each key after the prefix
//!                   N rests        (tail, word or child), in any order
//!
//!   root   [ ""      | "d"     | "m"     ]           each child with the least key that it serves
//!             |         |         |
//!   leaf   [ ant bee ] [ dog ]   [ mouse owl rat ]   pairs, sorted
//!             1   2      3         4     5   6
//! ```
//!
//! Readers store nothing: a node's version validates what they read. The range of keys that a node
//! serves never changes. Nodes that are split or merged are replaced, and freed after a grace
//! period. So a leaf needs no link to its neighbour: a scan that continues from the end of a leaf
//! by a new descent misses nothing, in either direction.

use std::ops::Bound;
use std::ptr;
use std::sync::Arc;

use evermap_pm::epoch::EpochStats;
use evermap_pm::{Domain, Result};

use self::arena::Arena;
use self::key::Tail;
pub use self::load::{PartitionBuffers, Partitioner};
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

/// A point at which a test can delay a thread: before it reads or writes what other threads may
/// write or read concurrently.
#[inline(always)]
fn step() {
    #[cfg(any(test, feature = "testkit"))]
    crate::testkit::delays::step();
}

/// Limits of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The largest number of bytes that nodes and keys may take. Insertions beyond it return
    /// `NoSpace`. Threads that insert at the same moment, and memory that waits for its grace
    /// period, may exceed it slightly.
    pub bytes_max: u64,
}

impl Default for Config {
    /// No limit but the memory of the system.
    fn default() -> Self {
        Config { bytes_max: u64::MAX }
    }
}

/// A volatile ordered index of nodes with `N` slots. See the [module](self).
pub struct BPlus<const N: usize = 40> {
    /// The node above the root, which it names in its only slot. Its version is the lock of that
    /// slot.
    anchor: OwnedNode<N>,
    nodes: Arc<Arena<Node<N>>>,
    epoch: Domain,
    tally: Tally,
}

impl<const N: usize> BPlus<N> {
    /// Splitting and merging need at least 4 slots; positions of slots are bytes.
    const LEGAL: () = assert!(N >= 4 && N <= 256, "a node has 4 to 256 slots");

    /// Creates an empty index without limits.
    ///
    /// # Panics
    /// If there is no memory for two nodes.
    pub fn new() -> Self {
        Self::with_config(Config::default()).expect("memory for two nodes")
    }

    /// Creates an empty index.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn with_config(config: Config) -> Result<Self> {
        let tree = Self::bare(config)?;
        let root = Draft::new(&tree.nodes, 0, &[], None)?;
        tree.tally.allow(root.size())?;
        let guard = tree.epoch.pin();
        tree.set_root(root.publish(&tree, &mut Vec::new(), &guard));
        drop(guard);
        Ok(tree)
    }

    /// Creates a tree without a root.
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

    /// Binds each key that has a word unless the key is bound already, and removes each key that
    /// has none, in order. Equivalent to as many [inserts](OrderedIndex::insert) and
    /// [removes](OrderedIndex::remove), but with the cache misses of the descents overlapped.
    ///
    /// # Errors
    /// The errors of those operations. Keys before the one that failed have been changed.
    pub fn set_many(&self, pairs: &[(&[u8], Option<u64>)]) -> Result<()> {
        pairs.chunks(tree::SET_BATCH).try_for_each(|pairs| self.set_batch(pairs))
    }

    /// Returns the word of the greatest key up to a bound, or of the greatest of all. O(log n);
    /// takes no lock and stores to no shared memory, like [`get`](OrderedIndex::get).
    #[inline]
    pub fn floor(&self, to: Bound<&[u8]>) -> Option<u64> {
        self.floor_word(to)
    }

    /// Returns what waits for its grace period, and which thread delays it.
    /// [`stats`](OrderedIndex::stats) does not count these bytes.
    pub fn reclamation(&self) -> EpochStats {
        self.epoch.stats()
    }

    /// Sets the root of a tree that has none.
    fn set_root(&self, root: &Node<N>) {
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
                // SAFETY: 1. the anchor names the root, so the root was published and is not
                // retired; the same holds for all nodes below. 2. the tree is dropped, so no other
                // thread uses it. 3. the guard is of this domain.
                unsafe { free_all(&self.nodes, root, &guard) };
            }
        }
        // Frees what is retired already, unless that must be left to the end of the process: see
        // the errors.
        let _ = self.epoch.try_drain();
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

    /// O(1). `segments` is the number of nodes, `capacity` the number of slots in leaves.
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
