//! Showing all blocks of the tree, and counting them.

use std::ops::{Bound, ControlFlow};

use evermap_pm::{Error, Medium, Result};

use super::Hot;
use super::layout::Root;
use super::scan::{Each, Item, Walk};
use crate::index::{Stats, Visitor};
use crate::ordered::Direction;

/// The number of leaves that are shown under one guard.
const UNIT: usize = 1024;

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Shows every block and word, with a guard for some leaves at a time.
    ///
    /// Between two guards the walk is at the key of a leaf. It then enters the nodes that have keys
    /// on both sides of that key: each was shown when it was first entered, or is new. Every other
    /// node is shown when the walk comes to it. A node that is replaced meanwhile keeps its
    /// children as they were, so what is reachable throughout is found below it.
    pub(super) fn visit_all(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
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
        let mut last: Option<Vec<u8>> = None;
        loop {
            let _guard = self.pool.pin();
            let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut walk = Walk::new(self, from, Direction::Ascending)?;
            let mut next = None;
            for leaves in 1.. {
                let ControlFlow::Continue(Some(leaf)) = walk.next_leaf(each)? else {
                    return Ok(());
                };
                if leaves == UNIT {
                    next = Some((leaf.offset, leaf.key(self.medium())));
                    break;
                }
            }
            let (offset, key) = next.expect("the loop ends there");
            // Otherwise a damaged key could lead the walk back, again and again.
            if last.is_some_and(|last| last >= key) {
                return Err(Error::damaged(offset, "a leaf of a tree is not in order"));
            }
            last = Some(key);
        }
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
