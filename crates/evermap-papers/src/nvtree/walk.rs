//! Showing all parts of the tree.

use evermap_index::ordered::leaf::LeafRef;
use evermap_index::ordered::tree::{Part, Show};
use evermap_pm::{Error, Medium, Result};

use super::layout;
use super::leaf::{Item, Leaf};
use super::{Form, NvTree};
use crate::search::Search;

/// A leaf at one moment.
pub(super) struct Snapshot<'m> {
    pub(super) leaf: Leaf<'m>,
    /// What it says about each of its keys.
    pub(super) items: Vec<Item<'m>>,
    /// The least key of the next leaf.
    pub(super) next: Option<Vec<u8>>,
}

impl<M: Medium, F: Form> NvTree<M, F> {
    /// Calls `each` with every leaf, in order, until it returns `false`, with a guard for each of
    /// them.
    ///
    /// The keys that belong into a leaf are those that belonged into the leaves that it replaced.
    /// So a walk that goes on where a leaf ends comes to all leaves, keys and blocks that are in
    /// the tree throughout.
    pub(super) fn each_leaf(
        &self,
        each: &mut dyn FnMut(&Snapshot<'_>) -> Result<bool>,
    ) -> Result<()> {
        let m = self.medium();
        let mut from = Vec::new();
        loop {
            let _guard = self.memory.pool.pin();
            let snapshot = self.read_leaf(&Search::at(&from), |leaf, count| {
                let next = match m.load(&leaf.header.sibling) {
                    0 => None,
                    next => Some(self.leaf(next)?.low(m).key(m)?.unwrap_or_default()),
                };
                Ok(Snapshot { leaf: *leaf, items: leaf.items(m, count)?, next })
            })?;
            if !each(&snapshot)? {
                return Ok(());
            }
            let Some(next) = snapshot.next else { return Ok(()) };
            // Otherwise a damaged key could lead the walk back, again and again.
            if next <= from {
                let what = "a leaf of a tree is not behind the one before it";
                return Err(Error::damaged(snapshot.leaf.offset, what));
            }
            from = next;
        }
    }

    /// Shows every part.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        let m = self.medium();
        let bytes = layout::block_bytes(&self.memory.pool, F::LEAF);
        let height = {
            let _guard = self.memory.pool.pin();
            // A parent and a leaf, below the inner nodes.
            self.with_upper(|upper| upper.size().height) + 2
        };
        self.each_leaf(&mut |snapshot| {
            let leaf = &snapshot.leaf;
            let mut goes_on = each(Part::Node { offset: leaf.offset, bytes, height });
            let low = leaf.low(m).rest.block().map(|block| LeafRef::at(m, block)).transpose()?;
            let blocks = snapshot.items.iter().filter_map(|item| item.block);
            for block in low.into_iter().chain(blocks) {
                goes_on = goes_on && each(Part::Block(block.offset, block.bytes()));
            }
            for item in snapshot.items.iter().filter(|item| item.is_live) {
                goes_on = goes_on && each(Part::Word(item.word));
            }
            Ok(goes_on)
        })
    }
}
