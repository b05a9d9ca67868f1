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

use std::ops::Bound;
use std::sync::Arc;

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode, Stats, Visitor};
use evermap_index::ordered::memory::TreeMemory;
use evermap_index::ordered::{Direction, OrderedIndex, Page, PersistentOrdered};
use evermap_index::root;
use evermap_pm::{Medium, PmU64, Pool, Result};

mod access;
mod change;
mod check;
mod copies;
pub mod layout;
pub mod mistakes;
mod scan;
mod shift;
mod split;
#[cfg(test)]
mod tests;
mod walk;

use access::{NodeRef, Search};
use layout::{NO_CHILD, RECORDS_MAX, Rest, Root};
pub use mistakes::MUTANTS;

/// FAST & FAIR in medium `M`, with up to `FULL` records in a node, which is from 4 to
/// [`RECORDS_MAX`]. See the [module](self).
pub struct FastFair<M: Medium, const FULL: usize = RECORDS_MAX> {
    memory: TreeMemory<M>,
}

/// The first word of the root.
const KIND: u64 = u64::from_le_bytes(*b"FASTFAI\x04");

impl<M: Medium, const FULL: usize> FastFair<M, FULL> {
    #[inline(always)]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    /// Returns the pool of the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.memory.pool
    }

    const SHAPE: () = assert!(4 <= FULL && FULL <= RECORDS_MAX);

    fn assemble(pool: Arc<Pool<M>>, root: u64) -> Self {
        let () = Self::SHAPE;
        FastFair { memory: TreeMemory::new(pool, root) }
    }

    #[inline(always)]
    fn root_block(&self) -> Result<&Root> {
        self.memory.root_block()
    }

    /// Recovers a node that an earlier process used.
    #[cold]
    fn recover(&self, node: &NodeRef<'_>) -> Result<()> {
        self.memory.recover(&node.header().lock, || self.repair(node))
    }
}

impl<M: Medium, const FULL: usize> OrderedIndex for FastFair<M, FULL> {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        let _guard = self.memory.pool.pin();
        self.find(&Search::new(key))
    }

    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.memory.change(key, mode, || {
            let guard = self.memory.pool.pin();
            self.change(key, mode, &guard, decide)
        })
    }

    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()> {
        let _guard = self.memory.pool.pin();
        self.read_page(from, direction, page)
    }

    /// Counts the pairs: O(n).
    fn len(&self) -> u64 {
        self.stats().len
    }

    fn stats(&self) -> Stats {
        let stats = self.measure().unwrap_or_default();
        Stats { recovered: self.memory.recovered(), ..stats }
    }

    fn check(&self) -> Vec<String> {
        self.check_all()
    }
}

impl<M: Medium, const FULL: usize> PersistentOrdered<M> for FastFair<M, FULL> {
    fn create(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        pool.region().ensure_writable()?;
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate_fixed(size_of::<Root>() as u64)?;
        let tree = fresh.allocate_fixed(layout::node_bytes(&pool, 0))?;
        fresh.keep();
        let index = Self::assemble(pool.clone(), block);
        let m = pool.medium();
        m.flush(index.write_node(tree, 0, (0, Rest::None.word()), NO_CHILD).node);
        let header = m.at::<Root>(block).expect("just allocated");
        m.store(&header.tree, tree);
        m.flush(header);
        root::publish(&pool, root, block, KIND);
        Ok(index)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, KIND)
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let block = root::block_of(&pool, root, KIND)?;
        let index = Self::assemble(pool.clone(), block);
        if pool.region().must_recover_all() {
            // Generations of an earlier opener could equal the current one.
            index.make_stale()?;
        }
        index.root_node()?;
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.visit_all(visitor)
    }
}
