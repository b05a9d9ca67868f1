//! Telling the level above of a node that was split off.
//!
//! A node that was split off is found from its left neighbour at once. Its entry in the node above
//! is added by the thread that has split it, or by any writer that has come to it from the left.

use evermap_index::fresh::Fresh;
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes, prefix};
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, Result};

use super::access::{Node, Search};
use super::consolidate::Work;
use super::layout::{Link, Part, RECORD_HEADER, TREE_MARK};
use super::node::{BaseRef, Bounds, Entry, base_bytes};
use super::{BwTree, mistakes};

/// How often a change of structure is tried if other threads are faster.
pub(super) const ATTEMPTS: u32 = 8;

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Adds a node to the level above, unless it is there or is being merged.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn post(&self, level: u8, id: u64, todo: &mut Vec<Work>) -> Result<()> {
        let m = self.medium();
        for _ in 0..ATTEMPTS {
            let node = self.node(id, Some(level))?;
            let low = node.base.low(m);
            if low.is_empty() {
                return Ok(());
            }
            let root = self.root_node()?;
            if root.level() == level {
                self.grow(&root)?;
                continue;
            }
            let search = Search::at(&low);
            let above = self.arrive(&search, level + 1)?;
            let is_merged = above.node.intent.is_some_and(|(_, child)| child == id);
            // A node is only merged if it is in the level above, and that is changed first. So if
            // it is not frozen now, and `above` does not have it, then it will not be frozen unless
            // `above` is changed, and the exchange below fails.
            let is_frozen =
                self.word_in(node.cell).is_frozen() && !m.mutant(mistakes::TELL_OF_MERGED);
            if is_merged || is_frozen || self.child(&above, &search)?.0.id() == id {
                return Ok(());
            }
            if above.node.word.depth() >= Link::DEPTH_MAX / 2 {
                return Err(Error::no_space("a node of a tree", Self::NODE_BYTES));
            }
            let mut blocks = Fresh::new(&self.memory.pool);
            let block = blocks.allocate_fixed(RECORD_HEADER + leaf_bytes(low.len()))?;
            self.write_delta(&above.node, block, &low, id);
            if self.prepend(&above.node, Part::Insert, block, prefix(&low)) {
                blocks.keep();
                if above.node.word.depth() + 1 >= Self::chain(level + 1) {
                    todo.push(Work::Consolidate(level + 1, above.node.id));
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Puts a new root above a root that was split.
    fn grow(&self, root: &Node<'_>) -> Result<()> {
        let m = self.medium();
        // Another thread was faster.
        if root.base.sibling == 0 {
            return Ok(());
        }
        let sibling = self.next_node(root)?;
        let level = root.level().checked_add(1);
        let level = level.ok_or_else(|| Error::damaged(root.base.offset, "a tree is too high"))?;
        let low = sibling.base.low(m);
        let bounds = Bounds { low: Vec::new(), high: Vec::new(), sibling: 0, skip: 0 };
        let mut blocks = Fresh::new(&self.memory.pool);
        let at = blocks.allocate_fixed(RECORD_HEADER + leaf_bytes(low.len()))?;
        LeafRef::write(m, at + RECORD_HEADER, &low, sibling.id);
        let entries = [
            Entry { head: 0, at: 0, child: root.id, base: root.base.offset },
            Entry { head: prefix(&low), at, child: sibling.id, base: sibling.base.offset },
        ];
        let block =
            self.node_block(base_bytes(level, entries.len(), &bounds, false), &mut blocks)?;
        BaseRef::write(m, block, level, (&bounds, false), &entries);
        let new = self.new_node(block)?;
        m.fence();
        let cell = &self.root_block()?.tree;
        m.note(Note::Harmless("without it, all nodes are found from the first one of their level"));
        match recipe::exchange_marked(m, cell, root.id, new.id, TREE_MARK) {
            Ok(()) => {
                blocks.keep();
                self.clear_new(new.cell, new.word);
            }
            Err(_) => self.discard(&new),
        }
        Ok(())
    }
}
