//! Showing all blocks of the tree, and counting them.

use std::ops::{Bound, ControlFlow};

use evermap_index::index::{Stats, Visitor};
use evermap_index::ordered::{Direction, leaf};
use evermap_pm::{Medium, Result};

use super::Hot;
use super::layout::Root;
use super::scan::{Each, Item, Walk};

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Shows every block and word, with a guard for some leaves at a time.
    ///
    /// Between two guards the walk is at the key of a leaf. It then enters the nodes that have keys
    /// on both sides of that key: each was shown when it was first entered, or is new. Every other
    /// node is shown when the walk comes to it. A node that is replaced meanwhile keeps its
    /// children as they were, so what is reachable throughout is found below it.
    pub(super) fn visit_all(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.memory.root);
        self.show(&mut |item, _| {
            match item {
                Item::Node(node) => visitor.block(node.offset),
                Item::Dead(leaf) => visitor.block(leaf.offset),
                Item::Leaf(leaf) => {
                    visitor.block(leaf.offset);
                    visitor.word(leaf.word(self.medium()));
                }
            }
            match visitor.is_done() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    }

    /// Calls `each` with every node and every leaf, and the number of nodes above it, until it
    /// returns `Break`.
    pub(super) fn show(&self, each: &mut Each<'_>) -> Result<()> {
        let start = |from: Bound<&[u8]>| Walk::new(self, from, Direction::Ascending);
        leaf::walk_all(&self.memory.pool, start, |walk| walk.next_leaf(each))
    }

    /// Counts pairs and nodes: O(n).
    pub(super) fn measure(&self) -> Result<Stats> {
        let mut stats = Stats {
            pm_bytes: size_of::<Root>() as u64,
            dram_bytes: size_of::<Self>() as u64,
            ..Stats::default()
        };
        self.show(&mut |item, above| {
            stats.depth = stats.depth.max(above as u32);
            match item {
                Item::Node(node) => {
                    stats.segments += 1;
                    stats.pm_bytes += node.bytes();
                }
                Item::Leaf(leaf) => {
                    stats.len += 1;
                    stats.pm_bytes += leaf.bytes();
                }
                Item::Dead(leaf) => stats.pm_bytes += leaf.bytes(),
            }
            ControlFlow::Continue(())
        })?;
        Ok(stats)
    }
}
