//! FAST & FAIR: a B+tree in persistent memory whose nodes are changed in place.
//!
//! After "Endurable Transient Inconsistency in Byte-Addressable Persistent B+-Tree" (Hwang, Kim,
//! Won, Nam; FAST 2018), with the repairs of RECIPE and those below. The layout is in [`layout`].
//! The laboratory compares trees to it.
//!
//! ```text
//! level 1                     ┌ "" ─ "kiwi" ┐ ──sibling──▶ ...
//!                             ▼             ▼
//! level 0    ┌ "apple" ─ "fig" ┐ ──▶ ┌ "kiwi" ─ "pear" ┐ ──▶ ...
//!                 ▼        ▼              ▼        ▼
//!               leaf     leaf           leaf     leaf
//! ```
//!
//! Records are shifted one word at a time, so that after each store a node holds the
//! records before or those after the change. A node is split by two stores. Nodes are
//! never merged, as in the published code: keys that are removed leave nodes with free places.
//!
//! What is different from the published code, and why:
//!
//! * **The header takes a cache line.** With 56 bytes, a key and its reference can be in two
//!   lines, and become durable in any order.
//! * **Each node has its least key**, which does not change. If it is taken from the first record
//!   instead, a removal there moves it, and records come into the wrong node.
//! * **A split that the level above was not told of is completed** by the next change that comes
//!   there; a root that was split gets a new root above it. Otherwise the tree would turn into a
//!   list.
//! * **A version instead of a parity.** Searches that meet a shift read the node again; with the
//!   parity of a counter they can take a reference whose key was moved. So searches take no lock
//!   and store nothing, but they wait for writers of the same node.
//! * **Readers see what is durable**, as writers release a node when their change is durable.
//! * **References differ**, because each key has a leaf of its own. The published code stores the
//!   values themselves, and loses records next to one with the same value, and those with 0. Nodes
//!   have copies of the values of keys of eight bytes, which spare the leaves (`copies`).
//! * **The first record can be inserted and removed like others**: its left neighbour is not the
//!   word that ends a node ([`NO_CHILD`]).
//! * **The first thread that comes to a node after a crash repairs it**: it ends a shift, and a
//!   split. The published code leaves a record that was being inserted where it is, and a removal
//!   of it does nothing.
//! * **Searches need not find the end of a node, nor read the next one**: what is behind the last
//!   record has the greatest prefix, and the header has that of the next node. The published code
//!   compares one record after the other, and looks at the next node if it comes to the end.
//! * **Locks contain the generation**, so none is held after a crash.
//! * **Any byte string is a key.** Records have the first eight bytes.
//!
//! What only makes it faster is in the form [`Improved`]; [`Paper`] has nodes of the published
//! size, and searches them as published. Both have the repairs.

use std::marker::PhantomData;
use std::ops::Bound;

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::node_lock::{Lock, Seen};
use evermap_index::ordered::memory::{self, TreeMemory};
use evermap_index::ordered::tree::{PersistentTree, Show};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

mod access;
mod change;
mod check;
mod copies;
mod form;
pub mod layout;
pub mod mistakes;
mod scan;
mod shift;
mod split;
#[cfg(test)]
mod tests;
mod walk;

use access::{NodeRef, Search};
pub use form::{Form, Improved, Paper};
use layout::{NO_CHILD, NodeBlock, Rest, Root};
pub use mistakes::MUTANTS;

/// FAST & FAIR in medium `M`. See the [module](self).
pub struct FastFair<M: Medium, F: Form = Improved> {
    memory: TreeMemory<M>,
    form: PhantomData<fn() -> F>,
}

impl<M: Medium, F: Form> FastFair<M, F> {
    #[inline(always)]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    #[inline(always)]
    fn root_block(&self) -> Result<&Root> {
        self.memory.root_block()
    }

    /// Recovers a node that an earlier process used.
    #[cold]
    fn recover(&self, node: &NodeRef<'_, F>) -> Result<()> {
        self.memory.recover(&node.header().lock, || self.repair(node))
    }
}

impl<M: Medium, F: Form> PersistentTree for FastFair<M, F> {
    type Medium = M;
    type Root = Root;

    const KIND: u64 = {
        assert!(4 <= F::FULL && F::FULL <= Self::RECORDS_MAX);
        F::KIND
    };
    const PAGE: usize = scan::PAGE;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        Ok(FastFair { memory, form: PhantomData })
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, fresh: &mut Fresh<'_, M>) -> Result<Self> {
        let node = fresh.allocate_fixed(layout::node_bytes::<_, F>(&memory.pool, 0))?;
        let tree = FastFair { memory, form: PhantomData };
        let m = tree.medium();
        m.flush(tree.write_node(node, 0, (0, Rest::None.word()), NO_CHILD).node);
        m.store(&root.tree, node);
        Ok(tree)
    }

    /// Makes those stale that a search can come to. In a file whose pages are of different ages, a
    /// node above may have references to nodes that are not in the list of their level yet.
    fn make_stale(&self) -> Result<()> {
        let m = self.medium();
        let stale = Lock::stale(self.memory.generation);
        let root = self.node_as_it_is(m.load(&self.root_block()?.tree), None)?;
        memory::for_each_reachable(
            root,
            |node| node.offset,
            |node, left| {
                m.store_transient(&node.header().lock, stale.0);
                // Searches that come to a reference which is damaged return that.
                let mut refers =
                    |at: u64, level| left.extend(self.node_as_it_is(at, Some(level)).ok());
                refers(m.load(&node.header().sibling), node.level);
                if let Some(below) = node.level.checked_sub(1) {
                    let children =
                        node.node.low_and_records().iter().map(|record| m.load(&record.at));
                    children.take_while(|&at| at != 0).for_each(|at| refers(at, below));
                }
            },
        );
        Ok(())
    }

    fn recover_root(&self) -> Result<()> {
        self.root_node().map(drop)
    }

    fn lookup(&self, key: &[u8]) -> Result<Option<u64>> {
        self.find(&Search::new(key))
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
}
