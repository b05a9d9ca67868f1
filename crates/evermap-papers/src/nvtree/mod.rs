//! NV-Tree: a B+tree whose leaves are in persistent memory and are only appended to.
//!
//! After "NV-Tree: Reducing Consistency Cost for NVM-based Single Level Systems" (Yang, Wei, Chen,
//! Wang, Yong, He; FAST 2015), and what HiKV (USENIX ATC 2017) says of the store on it, NVStore,
//! with which it compares itself. The layout of a leaf is in [`layout`], what is above the leaves
//! in `upper`. The laboratory compares trees to it.
//!
//! ```text
//! ordinary memory      inner nodes: one array, keys only
//!                      parents:     one array, least keys and offsets of leaves
//! ------------------------------------------------------------------------------
//! persistent memory    head ──▶ leaf ──sibling──▶ leaf ──sibling──▶ leaf
//! ```
//!
//! Only leaves have to be consistent. A change appends an entry to a leaf, makes it durable, counts
//! it, and makes the count durable: two ordered persists, for an insertion, an update and a removal
//! alike. Of two entries with the same key the later one counts. A full leaf is replaced by one
//! with the keys that are bound, by two, or, together with its right neighbour, by one; that is
//! committed by one store, to the sibling of the leaf before it. What is above the leaves is built
//! at opening; if a parent is full, it is built anew beside the old one.
//!
//! What is different from the paper, and why:
//!
//! * **Inner nodes and parents are in ordinary memory**, as in HiKV's version.
//! * **A change looks for the key first**, so that a key is not inserted twice.
//! * **Leaves have their least key.** With the greatest one, as published, keys that are greater
//!   than all have no leaf, and an empty leaf has no place.
//! * **Lookups take no lock**: they read as many entries as are durable, from the newest on, and
//!   begin again if the leaf was replaced. So nothing is returned that a crash could take back.
//! * **Searches take no lock either**: what is above the leaves has a version, and a rebuild builds
//!   aside.
//! * **A rebuild leaves spare parents** where the tree has grown, in the form [`HalfFull`]. So keys
//!   in ascending order do not cause a rebuild for each parent that they fill. In the form
//!   [`OneLeafPerParent`] it is as published.
//! * **If there is no space for another leaf**, keys are updated and removed in place.
//! * **Any byte string is a key.** An entry has the first 16 bytes; longer keys have a block.

use std::marker::PhantomData;
use std::ops::Bound;
use std::time::{Duration, Instant};

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode, Stats};
use evermap_index::node_lock::Seen;
use evermap_index::ordered::memory::TreeMemory;
use evermap_index::ordered::tree::{PersistentTree, Show};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Medium, Result};

mod access;
mod change;
mod check;
mod counters;
mod form;
mod key;
pub mod layout;
mod leaf;
pub mod mistakes;
mod published;
mod recover;
mod rewrite;
mod scan;
#[cfg(test)]
mod tests;
mod upper;
mod walk;

use counters::Counted;
pub use counters::Counters;
pub use form::{Form, HalfFull, OneLeafPerParent};
use layout::Root;
pub use mistakes::MUTANTS;
use published::Published;
pub use upper::Size;
use upper::Upper;

/// NV-Tree in medium `M`. See the [module](self).
pub struct NvTree<M: Medium, F: Form = HalfFull> {
    memory: TreeMemory<M>,
    upper: Published<Upper>,
    /// Held by the thread that changes what is above the leaves.
    changing: Mutex<()>,
    counted: Counted,
    form: PhantomData<fn() -> F>,
}

impl<M: Medium, F: Form> NvTree<M, F> {
    fn new(memory: TreeMemory<M>, upper: Upper) -> Self {
        NvTree {
            memory,
            upper: Published::new(upper),
            changing: Mutex::ranked(Rank::Resize, ()),
            counted: Counted::default(),
            form: PhantomData,
        }
    }

    #[inline]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    fn root_block(&self) -> Result<&Root> {
        self.memory.root_block()
    }

    /// Returns what was counted since the tree was opened, and what is above the leaves now.
    /// O(parents).
    pub fn counters(&self) -> Counters {
        let _guard = self.memory.pool.pin();
        self.counted.counters(self.with_upper(Upper::size))
    }

    /// Builds everything above the leaves anew, as an opening does, with up to `threads` threads.
    /// Returns how long that took. For measurements. O(leaves).
    ///
    /// # Errors
    /// Those of an opening.
    pub fn rebuild_by(&mut self, threads: usize) -> Result<Duration> {
        let began = Instant::now();
        let leaves = recover::leaves::<M, F>(&self.memory, Some(threads))?;
        self.upper = Published::new(Upper::build::<F>(&leaves));
        Ok(began.elapsed())
    }

    /// Returns how many entries of its leaf a lookup of `key` looks at. O(log n).
    ///
    /// # Errors
    /// Those of a lookup.
    pub fn entries_read(&self, key: &[u8]) -> Result<usize> {
        let _guard = self.memory.pool.pin();
        self.count_entries(key)
    }
}

impl<M: Medium, F: Form> PersistentTree for NvTree<M, F> {
    type Medium = M;
    type Root = Root;

    const KIND: u64 = {
        assert!(4 <= F::LEAF && F::LEAF <= 255 && F::PARENT >= 4 && F::FANOUT >= 2);
        assert!(1 <= F::FILLED && F::FILLED < F::PARENT);
        u64::from_le_bytes(*b"NVTREE\x01\0") | (F::LEAF as u64) << 56
    };
    const PAGE: usize = scan::PAGE;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        let leaves = recover::leaves::<M, F>(&memory, None)?;
        let tree = NvTree::new(memory, Upper::build::<F>(&leaves));
        tree.counted.count_recovered(leaves.len());
        Ok(tree)
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, fresh: &mut Fresh<'_, M>) -> Result<Self> {
        let leaf = recover::write_first::<M, F>(&memory, fresh)?;
        memory.medium().store(&root.head, leaf.1);
        Ok(NvTree::new(memory, Upper::build::<F>(&[leaf])))
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
            Direction::Ascending => self.try_ascending(from, most, page).map(Some),
            Direction::Descending => self.try_descending(from, page).map(Some),
        }
    }

    fn show(&self, each: &mut Show<'_>) -> Result<()> {
        self.show_parts(each)
    }

    fn check_all(&self, problems: &mut Vec<String>) -> Result<()> {
        self.check_parts(problems)
    }

    fn add_stats(&self, stats: &mut Stats) {
        let counters = self.counters();
        stats.capacity = stats.segments * F::LEAF as u64;
        stats.dram_bytes += counters.upper.bytes;
        stats.splits = counters.splits;
        stats.merges = counters.merges;
        stats.recovered = self.counted.recovered();
    }
}
