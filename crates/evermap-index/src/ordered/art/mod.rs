//! P-ART: an adaptive radix tree in persistent memory.
//!
//! After "The Adaptive Radix Tree" (Leis, Kemper, Neumann; ICDE 2013), "The ART of Practical
//! Synchronization" (Leis, Scheibner, Kemper, Neumann; DaMoN 2016: the variant ROWEX) and "RECIPE"
//! (Lee, Mohan, Kashyap, Kim, Chidambaram; SOSP 2019). The layout is in [`layout`].
//!
//! Each node looks at one byte of the key, its *symbol*, at the node's *level*. Bytes at which no
//! two keys differ have no node. The nodes have four sizes, for up to 4, 16, 48 and 256 symbols.
//!
//! ```text
//! level 0   root (256) ── 'a' ── leaf "ant"
//!                      └─ 'b' ── node (4), level 3, prefix "bee"
//!                                ├─ end ── leaf "bee"
//!                                └─ 't' ── leaf "beetle"
//! ```
//!
//! Lookups take no lock and store nothing. Writers lock the node whose reference to a child they
//! change, and its parent if the node is replaced. All changes are made by the first condition of
//! [`recipe`](crate::recipe):
//!
//! | change | the store that commits it |
//! |---|---|
//! | a key is added to a node with room | the reference to its leaf |
//! | a node is replaced by a larger or smaller one | the reference in its parent |
//! | two keys differ where there is no node | the reference in the node above |
//! | a key is bound to another word | the state of its leaf |
//! | a key is removed | the reference to its leaf, or the one to the node that had two |
//!
//! What is different from the paper, and why:
//!
//! * **There is no incomplete change.** In the paper a node stores how many bytes it skips and what
//!   they are, counted from its parent. So when a node is put between them, or taken out, a second
//!   store has to follow the first. A crash between them leaves a node whose level does not fit,
//!   which readers tolerate and writers repair: the third condition. Here a node stores the bytes
//!   before its level, whatever its parent is. They remain true, so the second store is not needed.
//! * **Readers see what is durable.** A reference is stored with a mark, which is removed once it
//!   is durable. Readers who find the mark flush the reference themselves, before they act on it.
//! * **Any byte string is a key**, and a key may be the beginning of others: each node has a place
//!   for the key that ends there.
//! * **A reference has the symbol** that leads to it. The lists of symbols need not be durable, and
//!   an insert flushes the leaf and one reference. Free places are used again.
//! * **Locks contain the generation**, so nothing is reset at opening. The first thread that comes
//!   to a node makes durable what an earlier process has stored there.
//! * **Words are changed in place**, so that needs no space.
//!
//! Scans read a page of pairs and validate the versions of the nodes that they have used.

use std::ops::Bound;

use evermap_pm::{Guard, Medium, Result};

use super::leaf::LeafRef;
use super::memory::TreeMemory;
use super::tree::{PersistentTree, Show};
use super::{Direction, Page};
use crate::fresh::Fresh;
use crate::index::{Action, Change, MutateMode};
use crate::node_lock::{Lock, Seen};

mod access;
mod change;
mod check;
pub mod layout;
pub mod mistakes;
mod node;
mod scan;
#[cfg(test)]
mod tests;
mod walk;

use layout::{Child, Kind, Root};
pub use mistakes::MUTANTS;
use node::Node;

/// P-ART in medium `M`. See the [module](self).
pub struct Art<M: Medium> {
    memory: TreeMemory<M>,
    /// The offset of the root node.
    tree: u64,
}

impl<M: Medium> Art<M> {
    #[inline(always)]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    /// Returns the leaf of a key. The caller has a guard.
    #[inline(always)]
    fn find(&self, key: &[u8]) -> Result<Option<LeafRef<'_>>> {
        let m = self.medium();
        let mut node = self.root_node()?;
        loop {
            if key.len() < node.level || !node.prefix(m).admits(key, node.level) {
                return Ok(None);
            }
            let Some((_, child)) = self.child(m, &node, key.get(node.level).copied()) else {
                return Ok(None);
            };
            if child.is_leaf() {
                let leaf = self.leaf(child)?;
                return Ok(leaf.is_of(m, key).then_some(leaf));
            }
            node = self.node(child, Some(node.level))?;
        }
    }

    /// As [`mutate`](super::OrderedIndex::mutate), for a caller that has a guard of the pool: a
    /// second one costs two atomic exchanges.
    ///
    /// # Errors
    ///
    /// Those of [`mutate`](super::OrderedIndex::mutate).
    pub fn mutate_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.memory.change(key, mode, || self.change_under(key, mode, guard, decide))
    }
}

impl<M: Medium> PersistentTree for Art<M> {
    type Medium = M;
    type Root = Root;

    const KIND: u64 = u64::from_le_bytes(*b"P-ART\0\0\x01");
    const PAGE: usize = scan::PAGE;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        let tree = memory.medium().load(&memory.root_block::<Root>()?.tree);
        Ok(Art { memory, tree })
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, fresh: &mut Fresh<'_, M>) -> Result<Self> {
        let (m, tree) = (memory.medium(), fresh.allocate_fixed(Kind::N256.bytes())?);
        Node::write(m, tree, (Kind::N256, 0), &[], memory.generation, std::iter::empty());
        m.store(&root.tree, tree);
        Ok(Art { memory, tree })
    }

    fn make_stale(&self) -> Result<()> {
        let m = self.medium();
        let stale = Lock::stale(self.memory.generation);
        let mut left = vec![(Child::node(self.tree, Kind::N256), None)];
        while let Some((child, above)) = left.pop() {
            let node = self.node_as_it_is(child, above)?;
            m.store_transient(&node.header.lock, stale.0);
            let below = node.all(m).filter(|(_, child)| !child.is_leaf());
            left.extend(below.map(|(_, child)| (child, Some(node.level))));
        }
        Ok(())
    }

    fn recover_root(&self) -> Result<()> {
        self.root_node().map(drop)
    }

    fn lookup(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.find(key)?.map(|leaf| leaf.word(self.medium())))
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
