//! Nodes that a change is going to put into the tree.
//!
//! A change is drafted while all nodes that it replaces are locked, and so is the node with the one
//! reference that commits it. Everything that can fail is done then. Afterwards the nodes are
//! written whole and flushed, one fence makes them durable, and the reference is stored.
//!
//! The published code splits a full node, flushes both halves, and then stores the reference to
//! another new node in one of them, which is never flushed. After a crash that can lead to a block
//! that was freed. Here no node is changed between being written and being found.

use evermap_index::fresh::Fresh;
use evermap_pm::{Error, Guard, Medium, Result};

use super::access::{Held, Step};
use super::contents::Contents;
use super::layout::{Child, Shape};
use super::node::Plan;
use super::{Hot, mistakes};

/// The nodes of a change.
pub(super) struct Draft<'t, const ENTRIES: usize, M: Medium> {
    tree: &'t Hot<M, ENTRIES>,
    /// The blocks of the nodes and of the leaf.
    pub(super) blocks: Fresh<'t, M>,
    /// Those that others refer to come first.
    plans: Vec<Plan>,
    /// The dead leaves that the new nodes do not have any more.
    dead: Vec<Child>,
}

/// Two children that differ at a bit: a node of the trie that belongs into a node of the tree.
pub(super) type Pair = (Child, u32, Child);

/// What remains to be done for an insertion.
#[allow(clippy::large_enum_variant)] // a box would be allocated for every insertion
pub(super) enum Work {
    /// The node at this depth of the path is to be replaced by one with these entries, which may be
    /// one too many.
    Node(usize, Contents),
    /// The child of the node at this depth is to be replaced by a pair, whose height this is.
    Pair(usize, Pair, u32),
}

impl<'t, const ENTRIES: usize, M: Medium> Draft<'t, ENTRIES, M> {
    pub(super) fn new(tree: &'t Hot<M, ENTRIES>) -> Self {
        let blocks = Fresh::new(&tree.memory.pool);
        Draft { tree, blocks, plans: Vec::new(), dead: Vec::new() }
    }

    /// Adds a node with these entries, and returns a reference to it. If there is only one entry,
    /// returns that. The node becomes no higher than `most`.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn node(&mut self, mut contents: Contents, most: u32) -> Result<Child> {
        self.dead.extend(contents.remove_dead());
        if let &[only] = contents.children() {
            return Ok(only);
        }
        let height = self.height_above(contents.children(), most)?;
        let plan = Plan::new(contents, height, |bytes| self.blocks.allocate_fixed(bytes))?;
        let child = Child::node(plan.block);
        self.plans.push(plan);
        Ok(child)
    }

    /// Returns the height of a node with these children, which is at most `most`.
    fn height_above(&self, children: &[Child], most: u32) -> Result<u32> {
        let mut height = 1;
        for &child in children {
            // Nearly always the first child that is a node decides it.
            if height == most {
                break;
            }
            height = height.max(1 + self.height(child, most)?);
        }
        match height {
            ..=Shape::HEIGHT_MAX => Ok(height),
            _ => Err(Error::damaged(self.tree.memory.root, "a tree is too high")),
        }
    }

    fn height(&self, child: Child, above: u32) -> Result<u32> {
        if child.is_leaf() {
            return Ok(0);
        }
        match self.plans.iter().find(|plan| plan.block == child.offset()) {
            Some(plan) => Ok(plan.height()),
            None => Ok(self.tree.node_as_it_is(child, above)?.height),
        }
    }

    /// Drafts the nodes for an insertion. Returns the depth of the step whose reference commits it,
    /// and the child that it is to refer to.
    ///
    /// A full node is split at the root of its trie, which becomes part of the node above if that
    /// is just one higher than the halves. If it is more than one higher, there is space for a node
    /// between them. So the tree becomes higher only if a full node is the highest one.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn grow(&mut self, path: &[Step<'_>], mut work: Work) -> Result<(usize, Child)> {
        let m = self.tree.medium();
        loop {
            work = match work {
                Work::Node(depth, contents) if contents.len() <= ENTRIES => {
                    let child = self.node(contents, path[depth].node.height)?;
                    return Ok((depth - 1, child));
                }
                Work::Node(depth, contents) => {
                    let most = path[depth].node.height;
                    let (left, bit, right) = contents.split();
                    let (left, right) = (self.node(left, most)?, self.node(right, most)?);
                    let height = self.height_above(&[left, right], most + 1)?;
                    Work::Pair(depth - 1, (left, bit, right), height)
                }
                Work::Pair(depth, pair, height) if height == path[depth].node.height => {
                    let mut contents = path[depth].node.contents(m)?;
                    contents.replace(path[depth].at, pair);
                    Work::Node(depth, contents)
                }
                Work::Pair(depth, (left, bit, right), height) => {
                    let child = self.node(Contents::pair(left, bit, right), height)?;
                    return Ok((depth, child));
                }
            }
        }
    }

    /// Writes the nodes, and stores the reference to them, durably. What else the change needs is
    /// flushed already, if `is_flushed`.
    #[track_caller]
    pub(super) fn commit(
        mut self,
        step: &Step<'_>,
        mut child: Child,
        held: Held<'_, '_, ENTRIES, M>,
        is_flushed: bool,
        guard: &Guard<'_>,
    ) {
        let (tree, m) = (self.tree, self.tree.medium());
        for plan in &self.plans {
            let cells = plan.write(m, tree.memory.generation);
            let refers =
                |other: &Plan| plan.contents.children().contains(&Child::node(other.block));
            if !(m.mutant(mistakes::LEAVE_NODE_UNFLUSHED) && self.plans.iter().any(refers)) {
                m.flush(cells);
            }
        }
        if (is_flushed || !self.plans.is_empty()) && !m.mutant(mistakes::PUBLISH_EARLY) {
            m.fence();
        }
        self.blocks.keep();
        if step.node.is_root() && child.is_dead() {
            self.dead.push(child);
            child = Child::NONE;
        }
        tree.publish(step, child);
        held.changed(&step.node, guard);
        self.dead.into_iter().for_each(|leaf| tree.retire_leaf(leaf, guard));
    }
}
