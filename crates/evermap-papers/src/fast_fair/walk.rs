//! Showing all blocks of the tree, and counting them.

use evermap_index::index::{Stats, Visitor};
use evermap_index::node_lock::Lock;
use evermap_index::ordered::leaf::LeafRef;
use evermap_index::ordered::memory;
use evermap_pm::{Medium, Result};

use super::FastFair;
use super::access::NodeRef;
use super::layout::{self, Rest, Root};

/// What a node refers to, at one moment.
pub(super) struct Snapshot {
    pub(super) leftmost: u64,
    pub(super) records: Vec<u64>,
    pub(super) sibling: u64,
}

impl<M: Medium, const FULL: usize> FastFair<M, FULL> {
    /// Returns what a node refers to.
    pub(super) fn snapshot(&self, node: &NodeRef<'_>) -> Result<Snapshot> {
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
        each: &mut dyn FnMut(&NodeRef<'_>, &Snapshot) -> Result<bool>,
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

    /// Makes all nodes stale that a search can come to, so that they are recovered when they are
    /// first used. No other thread uses the index.
    ///
    /// In a file whose pages are of different ages, the node above may have references to nodes
    /// that are not in the list of their level yet.
    pub(super) fn make_stale(&self) -> Result<()> {
        let m = self.medium();
        let stale = Lock::stale(self.memory.generation);
        let root = self.node_as_it_is(m.load(&self.root_block()?.tree), None)?;
        memory::for_each_reachable(
            root,
            |node| node.offset,
            |node, left| {
                m.store_transient(&node.header().lock, stale.0);
                // Searches that come to a reference which is damaged return that.
                let mut refers =
                    |at: u64, level| left.extend(self.node_as_it_is(at, Some(level)).ok());
                refers(m.load(&node.header().sibling), node.level);
                if let Some(below) = node.level.checked_sub(1) {
                    let children =
                        node.node.low_and_records.iter().map(|record| m.load(&record.at));
                    children.take_while(|&at| at != 0).for_each(|at| refers(at, below));
                }
            },
        );
        Ok(())
    }

    /// Shows every block and word.
    pub(super) fn visit_all(&self, visitor: &mut dyn Visitor) -> Result<()> {
        let m = self.medium();
        visitor.block(self.memory.root);
        self.each_node(&mut |node, snapshot| {
            visitor.block(node.offset);
            if node.level > 0 {
                return Ok(!visitor.is_done());
            }
            if let Rest::Leaf(leaf) = Rest::from_word(m.load(&node.header().low_rest)) {
                visitor.block(leaf);
            }
            for &leaf in &snapshot.records {
                if visitor.is_done() {
                    return Ok(false);
                }
                visitor.block(leaf);
                visitor.word(LeafRef::at(m, leaf)?.word(m));
            }
            Ok(!visitor.is_done())
        })
    }

    /// Counts pairs and nodes: O(n).
    pub(super) fn measure(&self) -> Result<Stats> {
        let m = self.medium();
        let mut stats = Stats {
            pm_bytes: size_of::<Root>() as u64,
            dram_bytes: size_of::<Self>() as u64,
            ..Stats::default()
        };
        self.each_node(&mut |node, snapshot| {
            stats.segments += 1;
            stats.pm_bytes += layout::node_bytes(&self.memory.pool, node.level);
            stats.depth = stats.depth.max(u32::from(node.level) + 1);
            if node.level > 0 {
                return Ok(true);
            }
            if let Rest::Leaf(leaf) = Rest::from_word(m.load(&node.header().low_rest)) {
                stats.pm_bytes += LeafRef::at(m, leaf)?.bytes();
            }
            stats.len += snapshot.records.len() as u64;
            for &leaf in &snapshot.records {
                stats.pm_bytes += LeafRef::at(m, leaf)?.bytes();
            }
            Ok(true)
        })?;
        Ok(stats)
    }
}
