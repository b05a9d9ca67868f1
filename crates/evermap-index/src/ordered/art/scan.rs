//! Walking the tree in the order of its keys.

use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow};

use evermap_pm::sync::Backoff;
use evermap_pm::{Medium, PmU64, Result};

use super::Art;
use super::layout::Child;
use super::node::{Node, RANKS, rank};
use crate::node_lock::{LastObsolete, Lock};
use crate::ordered::leaf::{LeafRef, fill_page, leaf_bytes};
use crate::ordered::{Direction, Page};

/// The number of pairs in a page, if no other thread changes the tree meanwhile.
const PAGE: usize = 64;

/// A walk in one direction.
pub(super) struct Walk<'m, M: Medium> {
    tree: &'m Art<M>,
    direction: Direction,
    /// The nodes from the root down.
    stack: Vec<Entered<'m>>,
    /// The children of the small nodes on the stack that were not shown, the next one last.
    waiting: Vec<Waiting<'m>>,
    /// The locks of all nodes that were used, as they were before.
    seen: Vec<(&'m PmU64, u64)>,
}

/// A node on the stack of a walk.
struct Entered<'m> {
    node: Node<'m>,
    /// In ascending order the least rank that was not shown, in descending order the last that was.
    /// Of a small node, the waiting children say that.
    edge: u16,
    /// The number of children that wait for the nodes above to continue.
    below: usize,
}

/// A child that was not shown.
struct Waiting<'m> {
    rank: u16,
    cell: &'m PmU64,
    child: Child,
}

/// What a walk shows.
pub(super) enum Item<'m> {
    /// A node, before everything below it.
    Node(Child),
    /// A leaf.
    Leaf(LeafRef<'m>),
}

/// What is called with everything that a walk shows, and the number of nodes above it.
pub(super) type Each<'f> = dyn FnMut(Item<'_>, usize) -> ControlFlow<()> + 'f;

impl<'m, M: Medium> Walk<'m, M> {
    /// Begins a walk at a bound.
    pub(super) fn new(tree: &'m Art<M>, from: Bound<&[u8]>, direction: Direction) -> Result<Self> {
        let mut walk =
            Walk { tree, direction, stack: Vec::new(), waiting: Vec::new(), seen: Vec::new() };
        walk.enter(tree.root_node()?);
        match from {
            Bound::Unbounded => {}
            Bound::Included(key) => walk.seek(key, true)?,
            Bound::Excluded(key) => walk.seek(key, false)?,
        }
        Ok(walk)
    }

    fn enter(&mut self, node: Node<'m>) {
        let edge = match self.direction {
            Direction::Ascending => 0,
            Direction::Descending => RANKS,
        };
        let m = self.tree.medium();
        // Before any child is loaded.
        self.seen.push((&node.header.lock, m.load(&node.header.lock)));
        let below = self.waiting.len();
        if node.is_small() {
            // Sorted once, because finding the next of them takes as long.
            let all = node.cells(m);
            self.waiting.extend(all.map(|(symbol, cell, child)| Waiting {
                rank: rank(symbol),
                cell,
                child,
            }));
            self.waiting[below..].sort_unstable_by_key(|waiting| match self.direction {
                Direction::Ascending => RANKS - waiting.rank,
                Direction::Descending => waiting.rank,
            });
        }
        self.stack.push(Entered { node, edge, below });
    }

    /// Moves the edge of the last node.
    fn set_edge(&mut self, edge: u16) {
        let entered = self.stack.last_mut().expect("the root was entered");
        entered.edge = edge;
        let kept = |waiting: &Waiting<'_>| match self.direction {
            Direction::Ascending => waiting.rank >= edge,
            Direction::Descending => waiting.rank < edge,
        };
        while self.waiting.len() > entered.below && !self.waiting.last().is_some_and(kept) {
            self.waiting.pop();
        }
    }

    /// Enters the nodes on the way of `key`, and puts the edge of each at `key`.
    fn seek(&mut self, key: &[u8], included: bool) -> Result<()> {
        let m = self.tree.medium();
        loop {
            let node = self.stack.last().expect("the root was entered").node;
            let symbol = key.get(node.level).copied();
            let mut on_the_way = None;
            let order = match self.tree.child(m, &node, symbol) {
                // Nothing is there, so any edge is right.
                None => Ordering::Less,
                Some((_, child)) if child.is_leaf() => self.tree.leaf(child)?.compare(m, key),
                Some((_, child)) => {
                    let next = self.tree.node(child, Some(node.level))?;
                    let order = self.order(child, &next, key)?;
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
            self.set_edge(rank(symbol) + u16::from(!before));
            match on_the_way {
                Some(next) => self.enter(next),
                None => return Ok(()),
            }
        }
    }

    /// Compares the keys below a node with `key`. They are equal if they all begin with the same
    /// bytes up to the level of the node as `key` does.
    fn order(&self, child: Child, node: &Node<'m>, key: &[u8]) -> Result<Ordering> {
        let m = self.tree.medium();
        let Some(leaf) = self.tree.any_leaf(child)? else { return Ok(Ordering::Equal) };
        let is_within = leaf.common(m, key) < node.level;
        Ok(if is_within { leaf.compare(m, key) } else { Ordering::Equal })
    }

    /// Returns what comes next: a leaf, or a node, which is entered.
    fn next(&mut self) -> Result<Option<Child>> {
        let m = self.tree.medium();
        while let Some(entered) = self.stack.last_mut() {
            let node = entered.node;
            let found = if node.is_small() {
                let next = (self.waiting.len() > entered.below).then(|| self.waiting.pop());
                next.flatten().map(|Waiting { rank, cell, child }| (rank, cell, child))
            } else {
                match self.direction {
                    Direction::Ascending => node.first_from(m, entered.edge),
                    Direction::Descending => node.last_before(m, entered.edge),
                }
            };
            let Some((rank, cell, child)) = found else {
                self.stack.pop();
                continue;
            };
            entered.edge = rank + u16::from(self.direction == Direction::Ascending);
            let child = self.tree.settled(cell, child);
            if !child.is_leaf() {
                let next = self.tree.node(child, Some(node.level))?;
                self.enter(next);
            }
            return Ok(Some(child));
        }
        Ok(None)
    }

    /// Goes on to the next leaf. Calls `each` with what comes before it and with the leaf, until it
    /// returns `Break`.
    pub(super) fn next_leaf(
        &mut self,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<(), Option<LeafRef<'m>>>> {
        while let Some(child) = self.next()? {
            let leaf = child.is_leaf().then(|| self.tree.leaf(child)).transpose()?;
            let item = leaf.map_or(Item::Node(child), Item::Leaf);
            if each(item, self.stack.len()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if leaf.is_some() {
                return Ok(ControlFlow::Continue(leaf));
            }
        }
        Ok(ControlFlow::Continue(None))
    }

    /// Returns `true` if no node that was used has changed since: then all that was shown was in
    /// the tree at this moment.
    ///
    /// # Errors
    /// `Damaged` if a node was obsolete for the last attempt too.
    fn is_valid(&self, last: &mut LastObsolete<'m>) -> Result<bool> {
        let m = self.tree.medium();
        last.meet(m, self.seen.iter().map(|&(cell, _)| cell))?;
        Ok(self.seen.iter().all(|&(cell, then)| {
            let lock = Lock(then);
            m.load(cell) == then && !lock.is_locked() && !lock.is_obsolete()
        }))
    }
}

impl<M: Medium> Art<M> {
    /// See [`OrderedIndex::page`](crate::OrderedIndex::page). If other threads change what a page
    /// is to show, it is read again, with fewer pairs.
    pub(super) fn read_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<()> {
        let mut backoff = Backoff::default();
        let (mut most, mut last) = (PAGE, LastObsolete::default());
        while !self.try_page(from, direction, most, page, &mut last)? {
            self.region.ensure_sound()?;
            most = (most / 2).max(1);
            backoff.wait();
        }
        Ok(())
    }

    /// Reads a page of up to `most` pairs. Returns `false` if the tree changed meanwhile.
    fn try_page<'m>(
        &'m self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
        last: &mut LastObsolete<'m>,
    ) -> Result<bool> {
        let m = self.medium();
        let mut walk = Walk::new(self, from, direction)?;
        let mut children = Vec::with_capacity(most);
        let mut ended = false;
        while children.len() < most && !ended {
            match walk.next()? {
                Some(child) if child.is_leaf() => {
                    // As for a key of up to 24 bytes.
                    m.prefetch_bytes(child.offset(), leaf_bytes(24));
                    children.push(child);
                }
                Some(_) => {}
                None => ended = true,
            }
        }
        // Each leaf is somewhere else, so they are read when the memory has been asked for all of
        // them.
        let read = |child| self.leaf(child).map(|leaf| (leaf, leaf.word(self.medium())));
        let leaves = children.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        if !walk.is_valid(last)? {
            return Ok(false);
        }
        fill_page(m, page, leaves, direction, ended);
        Ok(true)
    }
}
