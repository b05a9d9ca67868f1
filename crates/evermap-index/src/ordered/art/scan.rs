//! Walking the tree in the order of its keys.

use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow};

use evermap_pm::{Error, ErrorKind, Medium, PmU64, Result};

use super::Art;
use super::layout::Child;
use super::node::{Node, RANKS, rank};
use crate::node_lock::{Lock, Seen};
use crate::ordered::leaf::{self, LeafRef};
use crate::ordered::{Direction, Page};

/// The largest number of pairs in a page.
pub(super) const PAGE: usize = 128;

/// The most children that are prefetched, if they are nodes, before a walk comes to them.
const NODES_AHEAD: usize = 8;

/// The number of leaves that a node is expected to have, for how many are worth to be prefetched.
const USUAL: usize = 12;

/// The number of leaves that are prefetched beside the one at which a walk begins.
const LEAVES_AHEAD: usize = 16;

/// A walk in one direction.
pub(super) struct Walk<'m, M: Medium> {
    tree: &'m Art<M>,
    direction: Direction,
    /// The nodes from the root down.
    stack: Vec<Entered<'m>>,
    /// Children of the nodes on the stack that were not shown, the next one last, with the words
    /// that refer to them.
    waiting: Vec<(&'m PmU64, Child)>,
    /// The locks of all nodes that were used.
    seen: Seen<'m>,
    /// The number of children that are prefetched, at least 1.
    ahead: usize,
    /// Whether it goes on beside what cannot be read.
    passes_over: bool,
    /// Where the first part is that it has passed over.
    unreadable: Option<u64>,
}

/// A node on the stack of a walk.
struct Entered<'m> {
    node: Node<'m>,
    /// In ascending order the least rank whose child does not wait yet and was not shown, in
    /// descending order the last that does or was.
    edge: u16,
    /// The number of children that wait for the nodes above to continue.
    below: usize,
    /// Whether it has shown no child, although it began before the first.
    is_empty: bool,
}

/// What a walk shows.
pub(super) enum Item<'m> {
    /// A node, before everything below it.
    Node(Child),
    /// A leaf.
    Leaf(LeafRef<'m>),
}

/// What is called with everything that a walk shows, and the number of nodes on the way to it, a
/// node included. Returns `false` to end the walk.
pub(super) type Each<'f> = dyn FnMut(Item<'_>, usize) -> bool + 'f;

impl<'m, M: Medium> Walk<'m, M> {
    /// Begins a walk at a bound.
    pub(super) fn new(tree: &'m Art<M>, from: Bound<&[u8]>, direction: Direction) -> Result<Self> {
        // As many as most pages need.
        let (stack, seen) = (Vec::with_capacity(8), Seen::default());
        let waiting = Vec::with_capacity(64);
        let (passes_over, unreadable) = (false, None);
        let ahead = NODES_AHEAD;
        let mut walk =
            Walk { tree, direction, stack, waiting, seen, ahead, passes_over, unreadable };
        walk.enter(tree.root_node()?);
        walk.start(from)?;
        Ok(walk)
    }

    /// Begins a walk to about `most` leaves, that goes on beside what cannot be read, and notes
    /// where that is.
    fn passing_over(
        tree: &'m Art<M>,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
    ) -> Result<Self> {
        let mut walk = Walk::new(tree, Bound::Unbounded, direction)?;
        (walk.passes_over, walk.ahead) = (true, (most / USUAL + 1).min(NODES_AHEAD));
        walk.start(from)?;
        Ok(walk)
    }

    /// Goes from the root to a bound.
    fn start(&mut self, from: Bound<&[u8]>) -> Result<()> {
        let (key, included) = match from {
            Bound::Unbounded => return Ok(()),
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        let sought = self.seek(key, included);
        sought.or_else(|error| self.pass_over(error))?;
        self.gather_neighbours();
        Ok(())
    }

    /// Notes that something cannot be read, if the walk is to go on beside it.
    #[cold]
    fn pass_over(&mut self, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Damaged { offset, .. } if self.passes_over => {
                self.unreadable.get_or_insert(*offset);
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn enter(&mut self, node: Node<'m>) {
        let edge = match self.direction {
            Direction::Ascending => 0,
            Direction::Descending => RANKS,
        };
        let m = self.tree.medium();
        // Before any child is loaded.
        self.seen.add(&node.header.lock, Lock(m.load(&node.header.lock)));
        self.stack.push(Entered { node, edge, below: self.waiting.len(), is_empty: true });
    }

    /// Makes children of a node wait, from its edge on: the nodes below it on the stack have none
    /// that wait. Returns `false` if there are none left.
    fn gather(&mut self, at: usize) -> bool {
        let (m, from) = (self.tree.medium(), self.waiting.len());
        let entered = &mut self.stack[at];
        entered.edge = entered.node.gather(m, entered.edge, self.direction, &mut self.waiting);
        let next = self.waiting[from..].iter().rev().take(self.ahead);
        next.for_each(|(_, child)| self.tree.prefetch_node(*child));
        self.waiting.len() > from
    }

    /// Asks the memory for what comes next beside the place to which a search has come, and which
    /// it has to wait for: the nodes beside the current one, and leaves of this.
    fn prefetch_beside(&mut self) {
        let (m, ascends) = (self.tree.medium(), self.direction == Direction::Ascending);
        let [.., above, here] = &self.stack[..] else { return };
        let edge = usize::from(above.edge);
        if ascends && self.ahead > 1 {
            let next = above.node.next_children(m, edge, self.ahead);
            next.for_each(|child| self.tree.prefetch_node(child));
        }
        let is_ahead =
            |child: &Child| child.is_leaf() && (rank(Some(child.symbol())) >= here.edge) == ascends;
        let leaves = here.node.all(m).map(|(_, child)| child).filter(is_ahead);
        leaves
            .take(LEAVES_AHEAD.min(USUAL * self.ahead))
            .for_each(|leaf| m.prefetch(leaf.offset()));
    }

    /// Makes the children of the node above the current one wait, so that the nodes beside it are
    /// prefetched before they are needed.
    fn gather_neighbours(&mut self) {
        if let Some(above) = self.stack.len().checked_sub(2) {
            self.gather(above);
            self.stack[above + 1].below = self.waiting.len();
        }
    }

    /// Enters the nodes on the way of `key`, and puts the edge of each at `key`.
    fn seek(&mut self, key: &[u8], included: bool) -> Result<()> {
        let m = self.tree.medium();
        loop {
            let node = self.stack.last().expect("the root was entered").node;
            let symbol = key.get(node.level).copied();
            let entered = self.stack.last_mut().expect("the root was entered");
            // If what is there cannot be read, the walk goes on behind it.
            let behind = self.direction == Direction::Ascending;
            (entered.edge, entered.is_empty) = (rank(symbol) + u16::from(behind), false);
            let mut on_the_way = None;
            let order = match self.tree.child(m, &node, symbol) {
                // Nothing is there, so any edge is right.
                None => Ordering::Less,
                Some((_, child)) if child.is_leaf() => {
                    self.prefetch_beside();
                    self.tree.leaf(child)?.compare(m, key)
                }
                Some((_, child)) => {
                    let next = self.tree.node(child, Some(node.level))?;
                    let order = self.order(&node, (child, &next), key)?;
                    on_the_way = (order == Ordering::Equal).then_some(next);
                    order
                }
            };
            // Whether the edge is before the child: then an ascending walk shows it, and a
            // descending one does not. A node on the way has been entered, and is not shown.
            let before = match order {
                Ordering::Greater => true,
                Ordering::Less => false,
                Ordering::Equal if on_the_way.is_some() => self.direction == Direction::Descending,
                Ordering::Equal => included == (self.direction == Direction::Ascending),
            };
            let entered = self.stack.last_mut().expect("the root was entered");
            entered.edge = rank(symbol) + u16::from(!before);
            match on_the_way {
                Some(next) => self.enter(next),
                None => return Ok(()),
            }
        }
    }

    /// Compares the keys below a child with `key`, which all begin with the same bytes up to the
    /// symbol of the node `above` as `key` does. They are equal if they do up to the level of the
    /// child too.
    fn order(
        &self,
        above: &Node<'m>,
        (child, node): (Child, &Node<'m>),
        key: &[u8],
    ) -> Result<Ordering> {
        let m = self.tree.medium();
        let rest = key.get(above.level + 1..node.level.min(key.len()));
        if let Some(rest) = rest
            && let Some(order) = node.prefix(m).compare(node.level - above.level - 1, rest)
        {
            return Ok(order);
        }
        let Some(leaf) = self.tree.any_leaf(child)? else { return Ok(Ordering::Equal) };
        let is_within = leaf.common(m, key) < node.level;
        Ok(if is_within { leaf.compare(m, key) } else { Ordering::Equal })
    }

    /// Returns what comes next: a leaf, or a node, which is entered.
    fn next(&mut self) -> Result<Option<Child>> {
        while let Some(entered) = self.stack.last() {
            let (node, below) = (entered.node, entered.below);
            if self.waiting.len() == below && !self.gather(self.stack.len() - 1) {
                self.leave();
                continue;
            }
            let Some((cell, child)) = self.waiting.pop() else { continue };
            if let Some(entered) = self.stack.last_mut() {
                entered.is_empty = false;
            }
            if let Some((_, ahead)) = self.waiting[below..].iter().nth_back(self.ahead - 1) {
                self.tree.prefetch_node(*ahead);
            }
            let child = self.tree.settled(cell, child);
            if !child.is_leaf() {
                match self.tree.node(child, Some(node.level)) {
                    Ok(next) => self.enter(next),
                    Err(error) => {
                        self.pass_over(error)?;
                        continue;
                    }
                }
            }
            return Ok(Some(child));
        }
        Ok(None)
    }

    /// Leaves the last node on the stack.
    fn leave(&mut self) {
        let left = self.stack.pop();
        // Only the root may have no child.
        if let Some(Entered { node, is_empty: true, .. }) = left
            && !self.stack.is_empty()
        {
            let offset = self.tree.medium().offset_of(&node.header.lock);
            self.unreadable.get_or_insert(offset);
        }
    }

    /// Goes on to the next leaf. Calls `each` with what comes before it and with the leaf, until it
    /// returns `false`.
    pub(super) fn next_leaf(
        &mut self,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<(), Option<LeafRef<'m>>>> {
        while let Some(child) = self.next()? {
            let leaf = child.is_leaf().then(|| self.tree.leaf(child)).transpose()?;
            let item = leaf.map_or(Item::Node(child), Item::Leaf);
            if !each(item, self.stack.len()) {
                return Ok(ControlFlow::Break(()));
            }
            if leaf.is_some() {
                return Ok(ControlFlow::Continue(leaf));
            }
        }
        Ok(ControlFlow::Continue(None))
    }
}

impl<M: Medium> Art<M> {
    /// Reads a page of up to `most` pairs, and returns the locks of the nodes that it has used.
    pub(super) fn read_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<Seen<'_>> {
        let mut walk = Walk::passing_over(self, from, direction, most)?;
        leaf::fill_page(self.medium(), page, (from, direction), (most, PAGE), || {
            while let Some(child) = walk.next()? {
                if child.is_leaf() {
                    return Ok(Some(child.offset()));
                }
            }
            Ok(None)
        })?;
        if let Some(offset) = walk.unreadable {
            page.pass_over(offset);
        }
        Ok(walk.seen)
    }
}
