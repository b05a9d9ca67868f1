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
mod layer;
pub mod layout;
pub mod mistakes;
mod scan;
mod short;
mod split;
#[cfg(test)]
mod tests;
mod walk;

use access::NodeRef;
use layout::{Below, Node, Root};
pub use mistakes::MUTANTS;

/// P-Masstree in medium `M`. See the [module](self).
pub struct Masstree<M: Medium> {
    memory: TreeMemory<M>,
}

impl<M: Medium> Masstree<M> {
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
    fn recover(&self, node: &NodeRef<'_>) -> Result<()> {
        self.memory.recover(&node.header().lock, || self.repair(node))
    }
}

impl<M: Medium> PersistentTree for Masstree<M> {
    type Medium = M;
    type Root = Root;

    const KIND: u64 = u64::from_le_bytes(*b"P-MASST\x01");
    const PAGE: usize = scan::PAGE;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        Ok(Masstree { memory })
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, fresh: &mut Fresh<'_, M>) -> Result<Self> {
        let (tree, node) = (Masstree { memory }, fresh.allocate_fixed(size_of::<Node>() as u64)?);
        tree.write_root(node, 0, &[]);
        tree.medium().store(&root.tree, node);
        Ok(tree)
    }

    /// Makes those stale that a search can come to. In a file whose pages are of different ages, a
    /// node above may have references to nodes that are not in the list of their level yet.
    fn make_stale(&self) -> Result<()> {
        let m = self.medium();
        let stale = Lock::stale(self.memory.generation);
        let root = self.node_as_it_is(m.load(&self.root_block()?.tree), None, 0)?;
        memory::for_each_reachable(
            root,
            |node| node.offset,
            |node, left| {
                let (header, level, depth) = (node.header(), node.level(), node.depth());
                m.store_transient(&header.lock, stale.0);
                // Searches that come to a reference which is damaged return that.
                let mut refers = |at: u64, level: Option<u8>, depth| {
                    left.extend(self.node_as_it_is(at, level, depth).ok());
                };
                refers(m.load(&header.next), Some(level), depth);
                let below = level.checked_sub(1);
                if below.is_some() {
                    refers(m.load(&header.leftmost), below, depth);
                }
                let order = node.permutation(m);
                for entry in
                    (0..order.len()).filter_map(|rank| node.entry(order.position(rank)).ok())
                {
                    let word = m.load(&entry.value);
                    match (below, Below::from_word(word)) {
                        (Some(_), _) => refers(word, below, depth),
                        (None, Below::Layer(root)) => refers(root, None, depth + 1),
                        (None, Below::Leaf(_)) => {}
                    }
                }
            },
        );
        Ok(())
    }

    fn recover_root(&self) -> Result<()> {
        self.root_node().map(drop)
    }

    fn lookup(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.find(key)?.map(|found| found.word(self.medium())))
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
        self.read_page(from, direction, most, page).map(Some)
    }

    fn show(&self, each: &mut Show<'_>) -> Result<()> {
        self.show_parts(each)
    }

    fn check_all(&self, problems: &mut Vec<String>) -> Result<()> {
        self.check_parts(problems)
    }
}
