//! P-Masstree: a trie of B+trees in persistent memory.
//!
//! After "Cache Craftiness for Fast Multicore Key-Value Storage" (Mao, Kohler, Morris; EuroSys
//! 2012) and "RECIPE" (Lee, Mohan, Kashyap, Kim, Chidambaram; SOSP 2019). The layout is in
//! [`layout`].
//!
//! Each layer of the trie looks at eight bytes of the key, a *slice*, and is a B+tree of slices
//! whose nodes are linked to the right on every level (a B-link tree). Keys that go on after the
//! same slice are in a layer of their own; one that is alone has a leaf.
//!
//! ```text
//! layer 0, level 1                ┌ ─ "kiwi" ┐
//!                                 ▼          ▼
//! layer 0, level 0   ┌ "fig" ─ "grapefru.." ┐ ──next──▶ ┌ "kiwi" ─ "pomegran.." ┐
//!                       3         │                        7         │
//!                                 ▼                                  ▼
//! layer 1, level 0           ┌ "it" ─ "it tree" ┐                  leaf "pomegranate", 9
//!                               4        5
//! ```
//!
//! The entries of a node are in any order, and a word, its *permutation*, has the order and says
//! which of them count. So nearly every change is one store:
//!
//! | change | the store that commits it | [condition](evermap_index::recipe) |
//! |---|---|---|
//! | a key is added to a node with room | the permutation | 1 |
//! | a key is bound to another word | the word in its entry, or the state of its leaf | 1 |
//! | a key is removed | the permutation | 1 |
//! | two keys get a layer | the reference in the entry | 1 |
//! | a node is split | the reference to the new node, then the permutation | 3 |
//! | the level above is told | the permutation there, or the reference to the root | 2 |
//!
//! What is different from the published code, and why:
//!
//! * **A slice has a class**, the number of its bytes. The published code pads slices with zeros;
//!   for two keys of which one is the other with zeros behind it, it makes layer below layer
//!   without end.
//! * **A split that a crash has interrupted is completed by the first thread that comes to the
//!   node**, before it follows the reference to the new one. The published code tries that only if
//!   a change goes right there and both locks happen to be free, and drops the new node when the
//!   old one is split again, with the keys that it has got since.
//! * **A level may be behind by any number of nodes, and a root by any number of levels.** The
//!   thread that changes something and has to go right tells the level above, and makes one if
//!   there is none. The published code returns with locks held if the root is behind.
//! * **Readers see what is durable**, as writers release a node when their change is durable. Every
//!   release after a change counts as a version, so a scan knows that it has not missed one.
//! * **Locks contain the generation**, so none is held after a crash.
//! * **Blocks are allocated before anything changes**, and freed if nothing does.
//! * **Any byte string is a key, and any word a value.**
//!
//! Nodes and layers are never removed, so no lock order, search or scan has to expect that; keys
//! that are removed leave nodes with free places.

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
mod layer;
pub mod layout;
pub mod mistakes;
mod scan;
mod split;
#[cfg(test)]
mod tests;
mod walk;

use access::NodeRef;
use layout::Root;
pub use mistakes::MUTANTS;

/// P-Masstree in medium `M`. See the [module](self).
pub struct Masstree<M: Medium> {
    memory: TreeMemory<M>,
}

/// The first word of the root.
const KIND: u64 = u64::from_le_bytes(*b"P-MASST\x01");

impl<M: Medium> Masstree<M> {
    #[inline(always)]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    /// Returns the pool of the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.memory.pool
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64) -> Self {
        Masstree { memory: TreeMemory::new(pool, root) }
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

impl<M: Medium> OrderedIndex for Masstree<M> {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        let _guard = self.memory.pool.pin();
        Ok(self.find(key)?.map(|found| found.word(self.medium())))
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

impl<M: Medium> PersistentOrdered<M> for Masstree<M> {
    fn create(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        pool.region().ensure_writable()?;
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate_fixed(size_of::<Root>() as u64)?;
        let tree = fresh.allocate_fixed(size_of::<layout::Node>() as u64)?;
        fresh.keep();
        let index = Self::assemble(pool.clone(), block);
        index.write_root(tree, 0, &[]);
        let m = pool.medium();
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
