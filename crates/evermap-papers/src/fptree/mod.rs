//! FPTree: a B+tree whose leaves are in persistent memory and whose inner nodes are not.
//!
//! After "FPTree: A Hybrid SCM-DRAM Persistent and Concurrent B-Tree for Storage Class Memory"
//! (Oukid, Lasperas, Nica, Willhalm, Lehner; SIGMOD 2016). The layout is in [`layout`]. The
//! laboratory compares trees to it.
//!
//! ```text
//! ordinary memory              ┌ "" ─ "k" ─ "p" ┐            least keys: see `inner`
//!                              ▼      ▼     ▼
//! persistent memory   ┌ fig apple ┐ ─▶ ┌ kiwi ┐ ─▶ ┌ plum pear quince ┐
//! ```
//!
//! A leaf has 56 entries in any order, a bitmap of those that are valid, and a byte of the hash of
//! each key, the *fingerprint*. A lookup compares the fingerprints of all entries at once, and then
//! about one key. A change writes a free entry and commits it by one store of the bitmap; nothing
//! is moved. The inner nodes are made again when the index is opened, in time that is proportional
//! to the number of leaves.
//!
//! What is different from the paper, and why:
//!
//! * **No transactional memory**, except in the form [`Transactions`]. The inner nodes are a
//!   [`BPlus`](evermap_index::ordered::bplus::BPlus), whose readers take no lock; it maps the least
//!   key of each leaf to the leaf. A leaf is read under a version. A search that
//!   comes to a leaf which was split meanwhile goes right.
//! * **No log.** The reference to a new leaf says that the old one may still have its entries; and
//!   each leaf has its least key, so recovery knows which ones these are.
//! * **No groups of leaves.** The heap of the pool allocates blocks from extents, and frees what
//!   nothing refers to after a crash, which is what the groups are for.
//! * **Readers see what is durable**, as writers release a leaf when their change is durable, and
//!   readers wait for them.
//! * **Locks contain the generation**, so none is held after a crash.
//! * **Any byte string is a key.** Keys longer than 16 bytes have blocks of their own.
//! * **The least key of a leaf is any key between two leaves**, as short as possible.
//! * **An update in a full leaf stores the word alone**, instead of splitting the leaf first. So it
//!   needs no space.
//!
//! An index must not be open twice at the same time, because each value of [`FpTree`] has inner
//! nodes of its own.

use std::marker::PhantomData;
use std::ops::Bound;

use evermap_index::Stats;
use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::node_lock::Seen;
use evermap_index::ordered::memory::TreeMemory;
use evermap_index::ordered::tree::{PersistentTree, Show};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

mod access;
mod change;
mod check;
mod form;
pub mod inner;
mod key;
pub mod layout;
pub mod mistakes;
mod recover;
mod scan;
mod split;
mod tally;
#[cfg(test)]
mod tests;
mod walk;

use access::Node;
pub use form::{Form, Fused, Paper, Transactions};
use inner::Inner;
use layout::{LeafBlock, Root};
pub use mistakes::MUTANTS;
pub use recover::Rebuilt;
use tally::Tally;

/// FPTree in medium `M`. See the [module](self).
pub struct FpTree<M: Medium, F: Form = Fused> {
    memory: TreeMemory<M>,
    /// The least key of each leaf, and its offset.
    inner: F::Inner,
    /// The seed of the hash that fingerprints are of.
    seed: u64,
    rebuilt: Rebuilt,
    tally: Tally,
    form: PhantomData<fn() -> F>,
}

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Returns a tree without inner nodes.
    fn bare(memory: TreeMemory<M>) -> Result<Self> {
        Ok(FpTree {
            inner: F::Inner::load(&[], 1)?,
            seed: memory.pool.seed(),
            memory,
            rebuilt: Rebuilt::default(),
            tally: Tally::default(),
            form: PhantomData,
        })
    }

    #[inline]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    #[inline]
    fn root_block(&self) -> Result<&Root> {
        self.memory.root_block()
    }

    /// Returns the size of the block of a leaf, bytes.
    fn leaf_bytes(&self) -> u64 {
        layout::leaf_bytes::<_, F::Leaf>(&self.memory.pool)
    }

    /// Recovers a leaf that an earlier process used.
    #[cold]
    fn recover(&self, node: &Node<'_, F>) -> Result<()> {
        self.memory.recover(&node.header().lock, || self.repair(node))
    }
}

impl<M: Medium, F: Form> PersistentTree for FpTree<M, F> {
    type Medium = M;
    type Root = Root;

    const KIND: u64 = layout::KIND | (F::Leaf::SLOTS as u64) << 48;
    const PAGE: usize = scan::PAGE;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    /// Makes the inner nodes: O(leaves).
    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        let mut tree = Self::bare(memory)?;
        tree.rebuild()?;
        Ok(tree)
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, fresh: &mut Fresh<'_, M>) -> Result<Self> {
        let tree = Self::bare(memory)?;
        let m = tree.medium();
        let offset = fresh.allocate_fixed(tree.leaf_bytes())?;
        let node = tree.write_node(offset, &[], None);
        m.flush(node.line());
        m.flush(node.header());
        m.store(&root.first, offset);
        tree.inner.add(&[], offset)?;
        Ok(tree)
    }

    fn lookup(&self, key: &[u8]) -> Result<Option<u64>> {
        self.find(key)
    }

    fn change(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.change_under(key, mode, &self.memory.pool.pin(), decide)
    }

    fn try_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        match direction {
            Direction::Ascending => self.try_ascending(from, most, page),
            Direction::Descending => self.try_descending(from, page),
        }
    }

    fn show(&self, each: &mut Show<'_>) -> Result<()> {
        self.show_parts(each)
    }

    fn check_all(&self, problems: &mut Vec<String>) -> Result<()> {
        self.check_parts(problems)
    }

    fn add_stats(&self, stats: &mut Stats) {
        let (height, bytes) = self.inner.size();
        stats.capacity = stats.segments * F::Leaf::SLOTS as u64;
        stats.depth += height;
        stats.dram_bytes += bytes;
        self.tally.add_to(stats);
    }
}
