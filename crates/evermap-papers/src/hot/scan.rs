//! Walking the tree in the order of its keys.

use std::ops::{Bound, ControlFlow};

use evermap_index::node_lock::{Lock, Seen};
use evermap_index::ordered::leaf::{self, LeafRef};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

use super::Hot;
use super::access::{AHEAD, Step};
use super::bits::Search;
use super::layout::Child;
use super::node::Node;
use super::place::Place;

/// The largest number of pairs in a page.
pub(super) const PAGE: usize = 128;

/// The number of children that are nodes, or leaves, and that are prefetched before a walk comes to
/// them.
const NODES_AHEAD: usize = 2;
const LEAVES_AHEAD: usize = 12;

/// A walk in one direction.
pub(super) struct Walk<'m, const ENTRIES: usize, M: Medium> {
    tree: &'m Hot<M, ENTRIES>,
    direction: Direction,
    /// The nodes from the root block down, and the edge in each: in ascending order the position of
    /// the first child that was not shown, in descending order of the last one that was.
    stack: Vec<(Node<'m>, usize)>,
    /// The locks of all nodes that were used.
    seen: Seen<'m>,
}

/// What a walk shows.
pub(super) enum Item<'m> {
    /// A node, before everything below it.
    Node(Node<'m>),
    /// A leaf.
    Leaf(LeafRef<'m>),
    /// A leaf that is dead.
    Dead(LeafRef<'m>),
}

/// What is called with everything that a walk shows, and the number of nodes above it. Returns
/// `false` to end the walk.
pub(super) type Each<'f> = dyn FnMut(Item<'_>, usize) -> bool + 'f;

impl<'m, const ENTRIES: usize, M: Medium> Walk<'m, ENTRIES, M> {
    /// Begins a walk at a bound.
    pub(super) fn new(
        tree: &'m Hot<M, ENTRIES>,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Self> {
        // As many as most trees need.
        let (stack, seen) = (Vec::with_capacity(12), Seen::default());
        let mut walk = Walk { tree, direction, stack, seen };
        match from {
            Bound::Unbounded => walk.enter(tree.root_node()?),
            Bound::Included(key) => walk.seek(key, true)?,
            Bound::Excluded(key) => walk.seek(key, false)?,
        }
        Ok(walk)
    }

    fn is_ascending(&self) -> bool {
        self.direction == Direction::Ascending
    }

    fn enter(&mut self, node: Node<'m>) {
        let edge = if self.is_ascending() { 0 } else { node.children.len() };
        // Before any child is loaded.
        self.seen.add(node.lock, Lock(self.tree.medium().load(node.lock)));
        self.stack.push((node, edge));
    }

    /// Enters the nodes that have keys on both sides of `key`, and puts the edge of each at `key`.
    fn seek(&mut self, key: &[u8], included: bool) -> Result<()> {
        let (m, search) = (self.tree.medium(), Search::new(key));
        let seen = &mut self.seen;
        let enter = |node: &Node<'m>| seen.add(node.lock, Lock(m.load(node.lock)));
        let path = self.tree.descend(&search, enter)?;
        self.prefetch_beside(&path);
        let (depth, edge) = match self.tree.place(&search, &path)? {
            Place::Empty => (0, 0),
            Place::Gap(gap) => (gap.depth, if gap.after { gap.below.end } else { gap.below.start }),
            Place::Leaf(_) => {
                let depth = path.len() - 1;
                (depth, path[depth].at + usize::from(included != self.is_ascending()))
            }
        };
        // The nodes on the way have been entered, and are not shown.
        let after = usize::from(self.is_ascending());
        self.stack.extend(path[..depth].iter().map(|step| (step.node, step.at + after)));
        self.stack.push((path[depth].node, edge));
        Ok(())
    }

    /// Prefetches what comes after the end of a path, beside the leaf to which that leads.
    fn prefetch_beside(&self, path: &[Step<'m>]) {
        let (m, Some(last)) = (self.tree.medium(), path.last()) else { return };
        if !self.is_ascending() {
            return;
        }
        let leaves = last.node.children[last.at..].iter().take(LEAVES_AHEAD);
        let leaves = leaves.map(|cell| Child(m.load_relaxed(cell)));
        leaves.filter(|child| child.is_leaf()).for_each(|child| m.prefetch(child.offset()));
        if let Some(above) = path.len().checked_sub(2).map(|at| &path[at]) {
            (1..=NODES_AHEAD).for_each(|ahead| self.prefetch_node(&above.node, above.at + ahead));
        }
    }

    /// Prefetches the child at a position, if it is a node.
    #[inline]
    fn prefetch_node(&self, node: &Node<'m>, at: usize) {
        let m = self.tree.medium();
        if let Some(cell) = node.children.get(at) {
            let child = Child(m.load_relaxed(cell));
            if !child.is_leaf() {
                m.prefetch_bytes(child.offset(), AHEAD);
            }
        }
    }

    /// Returns what comes next: a leaf, or a node, which is entered.
    fn next(&mut self) -> Result<Option<Child>> {
        while let Some((node, edge)) = self.stack.last_mut() {
            let at = match self.direction {
                Direction::Ascending => (*edge < node.children.len()).then_some(*edge),
                Direction::Descending => edge.checked_sub(1),
            };
            let Some(at) = at else {
                self.stack.pop();
                continue;
            };
            *edge = at + usize::from(self.direction == Direction::Ascending);
            let child = self.tree.child(node, at);
            if child.is_none() {
                if node.is_root() {
                    continue;
                }
                return Err(node.damaged());
            }
            if !child.is_leaf() {
                let node = *node;
                if self.is_ascending() {
                    self.prefetch_node(&node, at + NODES_AHEAD);
                }
                let next = self.tree.node(child, node.height)?;
                self.enter(next);
            }
            return Ok(Some(child));
        }
        Ok(None)
    }

    /// Goes on to the next leaf. Calls `each` with what comes before it and with the leaf, until it
    /// returns `false`.
    pub(super) fn next_leaf(
        &mut self,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<(), Option<LeafRef<'m>>>> {
        while let Some(child) = self.next()? {
            let leaf = child.is_leaf().then(|| self.tree.leaf(child)).transpose()?;
            let (node, _) = self.stack.last().expect("the one of the child");
            let item = match leaf {
                None => Item::Node(*node),
                Some(leaf) if child.is_dead() => Item::Dead(leaf),
                Some(leaf) => Item::Leaf(leaf),
            };
            // Without the root block, and without the node itself.
            let above = self.stack.len() - 1 - usize::from(leaf.is_none());
            if !each(item, above) {
                return Ok(ControlFlow::Break(()));
            }
            if leaf.is_some() {
                return Ok(ControlFlow::Continue(leaf));
            }
        }
        Ok(ControlFlow::Continue(None))
    }
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Reads a page of up to `most` pairs, and returns the locks of the nodes that it has used.
    pub(super) fn read_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<Seen<'_>> {
        let mut walk = Walk::new(self, from, direction)?;
        leaf::fill_page(self.medium(), page, (from, direction), (most, PAGE), || {
            while let Some(child) = walk.next()? {
                if child.is_leaf() && !child.is_dead() {
                    return Ok(Some(child.offset()));
                }
            }
            Ok(None)
        })?;
        Ok(walk.seen)
    }
}
