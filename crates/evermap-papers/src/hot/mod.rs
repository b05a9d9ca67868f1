//! P-HOT: a height optimized trie in persistent memory.
//!
//! After "HOT: A Height Optimized Trie Index for Main-Memory Database Systems" (Binna, Zangerle,
//! Pichl, Specht, Leis; SIGMOD 2018), its variant ROWEX, and "RECIPE" (Lee, Mohan, Kashyap, Kim,
//! Chidambaram; SOSP 2019). The layout is in [`layout`].
//!
//! A binary trie has a node for each bit at which keys below it differ, and only for these. Here up
//! to 31 such nodes make one node of the tree, with up to 32 entries. They are put together so that
//! the tree has the least possible height, whatever the distribution of keys is.
//!
//! ```text
//!           bit 2                        ┌ bits 2 4 ┐       height 2
//!         ┌───┴───┐                      │ 00 10 11 │
//!       bit 7   bit 4                    └─┬──┬──┬──┘
//!       a   b   ┌─┴─┐     becomes    ┌─────┘  c  └─────┐
//!               c bit 5              ▼                 ▼
//!                 d   e          ┌ bit 7 ┐         ┌ bit 5 ┐   height 1
//!                                │ 0   1 │         │ 0   1 │
//!                                └─┬───┬─┘         └─┬───┬─┘
//!                                  a   b             d   e
//! ```
//!
//! A node has for each entry a *partial key*: of the bits at which entries of the node differ,
//! those that are on the way to the entry and are set. A search takes the bits of its key at these
//! places, and goes to the last entry that has no other bits set. It compares keys only in the
//! leaf.
//!
//! Nodes are immutable but for their references to children. Lookups take no lock and store
//! nothing. Writers lock the nodes that they replace, and the one above. All changes are made by
//! the first condition of [`recipe`](evermap_index::recipe):
//!
//! | change | the store that commits it |
//! |---|---|
//! | a key is added | the reference to the node that replaces one, or to a new one between two |
//! | a full node is split | the same, as high up as nodes are replaced for it |
//! | a key is bound to another word | the state of its leaf |
//! | a key is removed | the reference to the smaller node, or to the entry that is left |
//! | a key is removed without space for a smaller node | the reference to the leaf |
//!
//! What is different from the published code, and why:
//!
//! * **A node is changed as a list of bits**: those at which neighbouring entries differ. They
//!   determine the node's trie, so the code that moves bits within masks and partial keys, for each
//!   of eight kinds of nodes, is not needed.
//! * **Nodes are written when a change is complete in ordinary memory.** The published code stores
//!   a reference to a node that was flushed before.
//! * **Readers see what is durable.** A reference is stored with a mark, which is removed once it
//!   is durable. In the published code only the reference to the root has one.
//! * **The root is no special case**: the block that names it has a lock and one reference, like a
//!   node with one entry.
//! * **Keys can be removed**, and nodes that are left with few entries are put together.
//! * **Any byte string is a key**, of up to 64 KiB, and a key may be the beginning of others.
//! * **No wide vector instructions**: partial keys are compared eight bytes at a time, those of
//!   eight bits sixteen at a time on x86. `pext` is used where there is one.
//! * **Locks contain the generation**, so none is held after a crash.
//!
//! Scans read a page of pairs and validate the versions of the nodes that they have used.

use std::ops::Bound;

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::node_lock::{Lock, Seen};
use evermap_index::ordered::memory::TreeMemory;
use evermap_index::ordered::tree::{PersistentTree, Show};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

mod access;
mod bits;
mod change;
mod check;
mod contents;
mod draft;
pub mod layout;
pub mod mistakes;
mod node;
mod place;
mod scan;
mod shrink;
#[cfg(test)]
mod tests;
mod walk;

use bits::Search;
use layout::{Child, ENTRIES_MAX, Root};
pub use mistakes::{MUTANTS, NOTICED_ELSEWHERE};

/// P-HOT in medium `M`, whose nodes have up to `ENTRIES` entries. See the [module](self).
pub struct Hot<M: Medium, const ENTRIES: usize = ENTRIES_MAX> {
    memory: TreeMemory<M>,
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    #[inline(always)]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    #[inline(always)]
    fn root_block(&self) -> Result<&Root> {
        self.memory.root_block()
    }
}

impl<const ENTRIES: usize, M: Medium> PersistentTree for Hot<M, ENTRIES> {
    type Medium = M;
    type Root = Root;

    const KIND: u64 = {
        assert!(ENTRIES >= 2 && ENTRIES <= ENTRIES_MAX);
        u64::from_le_bytes(*b"P-HOT\0\0\x01") | (ENTRIES as u64) << 48
    };
    const PAGE: usize = scan::PAGE;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        Ok(Hot { memory })
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, _: &mut Fresh<'_, M>) -> Result<Self> {
        let m = memory.medium();
        m.store(&root.lock, Lock::fresh(memory.generation).0);
        m.store(&root.tree, Child::NONE.0);
        Ok(Hot { memory })
    }

    fn make_stale(&self) -> Result<()> {
        let m = self.medium();
        let stale = Lock::stale(self.memory.generation);
        let mut left = vec![self.root_node()?];
        while let Some(node) = left.pop() {
            m.store_transient(node.lock, stale.0);
            for at in 0..node.children.len() {
                let child = Child(m.load(&node.children[at]));
                if !child.is_leaf() && !child.is_none() {
                    left.push(self.node_as_it_is(child, node.height)?);
                }
            }
        }
        Ok(())
    }

    fn recover_root(&self) -> Result<()> {
        let root = self.root_node()?;
        match Lock(self.medium().load(root.lock)).is_of(self.memory.generation) {
            true => Ok(()),
            false => self.recover(&root),
        }
    }

    fn lookup(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.find(&Search::new(key))?.map(|leaf| leaf.word(self.medium())))
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
