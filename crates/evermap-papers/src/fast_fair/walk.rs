//! Showing all parts of the tree.

use evermap_index::ordered::leaf::LeafRef;
use evermap_index::ordered::tree::{Part, Show};
use evermap_pm::{Medium, Result};

use super::access::NodeRef;
use super::layout::{self, NodeBlock, Rest};
use super::{FastFair, Form};

/// What a node refers to, at one moment.
pub(super) struct Snapshot {
    pub(super) leftmost: u64,
    pub(super) records: Vec<u64>,
    pub(super) sibling: u64,
}

impl<M: Medium, F: Form> FastFair<M, F> {
    /// Returns what a node refers to.
    pub(super) fn snapshot(&self, node: &NodeRef<'_, F>) -> Result<Snapshot> {
        let m = self.medium();
        self.read(node, || {
            let records = node.records().iter().map(|record| m.load(&record.at));
            Ok(Snapshot {
                leftmost: m.load(&node.node.low().at),
                records: records.take_while(|&at| at != 0).collect(),
                sibling: m.load(&node.header().sibling),
            })
        })
    }

    /// Calls `each` with every node and what it refers to, level by level from the top, and from
    /// left to right, until it returns `false`.
    ///
    /// Records only ever move to the right, and into nodes that are new. After each node the walk
    /// goes on to the one that was next to it at the same moment, so it comes to every leaf that is
    /// in the tree throughout, and to none twice. Nodes are never freed, so the caller needs a
    /// guard only for the leaves.
    pub(super) fn each_node(
        &self,
        each: &mut dyn FnMut(&NodeRef<'_, F>, &Snapshot) -> Result<bool>,
    ) -> Result<()> {
        let mut first = self.root_node()?;
        loop {
            let (mut node, mut below) = (first, None);
            loop {
                let _guard = self.memory.pool.pin();
                let snapshot = self.snapshot(&node)?;
                below.get_or_insert(snapshot.leftmost);
                if !each(&node, &snapshot)? {
                    return Ok(());
                }
                if snapshot.sibling == 0 {
                    break;
                }
                node = self.next_node(&node, snapshot.sibling)?;
            }
            let (Some(below), Some(level)) = (below, first.level.checked_sub(1)) else {
                return Ok(());
            };
            first = self.node(below, Some(level))?;
        }
    }

    /// Shows every part.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        let m = self.medium();
        self.each_node(&mut |node, snapshot| {
            let (offset, bytes) =
                (node.offset, layout::node_bytes::<_, F>(&self.memory.pool, node.level));
            let mut goes_on = each(Part::Node { offset, bytes, height: u32::from(node.level) + 1 });
            if node.level > 0 {
                return Ok(goes_on);
            }
            if let Rest::Leaf(leaf) = Rest::from_word(m.load(&node.header().low_rest)) {
                goes_on = goes_on && each(Part::Block(leaf, LeafRef::at(m, leaf)?.bytes()));
            }
            for &leaf in &snapshot.records {
                goes_on = goes_on && each(Part::Leaf(LeafRef::at(m, leaf)?));
            }
            Ok(goes_on)
        })
    }
}
