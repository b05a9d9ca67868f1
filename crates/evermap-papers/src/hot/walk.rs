//! Showing all parts of the tree.

use std::ops::Bound;

use evermap_index::ordered::tree::{Part, Show};
use evermap_index::ordered::{Direction, leaf};
use evermap_pm::{Medium, Result};

use super::Hot;
use super::scan::{Each, Item, Walk};

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Shows every part, with a guard for some leaves at a time.
    ///
    /// Between two guards the walk is at the key of a leaf. It then enters the nodes that have keys
    /// on both sides of that key: each was shown when it was first entered, or is new. Every other
    /// node is shown when the walk comes to it. A node that is replaced meanwhile keeps its
    /// children as they were, so what is reachable throughout is found below it.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        self.walk(&mut |item, above| {
            each(match item {
                Item::Node(node) => Part::Node {
                    offset: node.offset,
                    bytes: node.bytes(),
                    height: above as u32 + 1,
                },
                Item::Leaf(leaf) => Part::Leaf(leaf),
                Item::Dead(leaf) => Part::Block(leaf.offset, leaf.bytes()),
            })
        })
    }

    /// Calls `each` with every node and every leaf, and the number of nodes above it, until it
    /// returns `false`.
    pub(super) fn walk(&self, each: &mut Each<'_>) -> Result<()> {
        let start = |from: Bound<&[u8]>| Walk::new(self, from, Direction::Ascending);
        leaf::walk_all(&self.memory.pool, start, |walk| walk.next_leaf(each))
    }
}
