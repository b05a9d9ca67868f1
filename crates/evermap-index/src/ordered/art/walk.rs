//! Showing all parts of the tree.

use std::ops::Bound;

use evermap_pm::{Medium, Result};

use super::Art;
use super::layout::Kind;
use super::scan::{Each, Item, Walk};
use crate::ordered::tree::{Part, Show};
use crate::ordered::{Direction, leaf};

impl<M: Medium> Art<M> {
    /// Shows every part, with a guard for some leaves at a time.
    ///
    /// Between two guards the walk is at the key of a leaf. The nodes above that were shown before
    /// it; those that were put there since are new. Every other node is shown when the walk comes
    /// to it. A node that is replaced meanwhile keeps its children as they were, so what is
    /// reachable throughout is found below it.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        if !each(Part::Node { offset: self.tree, bytes: Kind::N256.bytes(), height: 1 }) {
            return Ok(());
        }
        self.walk(&mut |item, height| {
            each(match item {
                Item::Node(child) => Part::Node {
                    offset: child.offset(),
                    bytes: child.kind().bytes(),
                    height: height as u32,
                },
                Item::Leaf(leaf) => Part::Leaf(leaf),
            })
        })
    }

    /// Calls `each` with every node but the root and every leaf, until it returns `false`.
    pub(super) fn walk(&self, each: &mut Each<'_>) -> Result<()> {
        let start = |from: Bound<&[u8]>| Walk::new(self, from, Direction::Ascending);
        leaf::walk_all(&self.memory.pool, start, |walk| walk.next_leaf(each))
    }
}
