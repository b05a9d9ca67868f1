//! Splitting full nodes, and rebalancing sparse ones.
//!
//! Nodes are not rebuilt in place; new nodes replace them. Both operations proceed upwards:
//!
//! 1. Lock the node, and build its replacements, which no other thread sees yet.
//! 2. Lock its parent. The node is among the parent's children as long as neither is obsolete.
//! 3. Store the replacements in the parent's slots, and unlock the parent.
//! 4. Make the node obsolete, so that threads that still read it start again, and retire it.
//!
//! A thread that holds a lock waits only for the lock of a parent, so there is no deadlock. A
//! neighbour's lock is taken only if it is free. Everything that can fail is done before step 3.

use std::ops::Range;
use std::sync::Arc;

use evermap_pm::{Error, Guard, Result};

use super::BPlus;
use super::arena::Arena;
use super::block::{Block, OwnedBlock};
use super::key::{INLINE_MAX, NewTail, Probe, Tail};
use super::node::{Content, KeyRange, Node, OwnedNode, Target, shared};
use super::reclaim::{retire_block, retire_node};
use super::tally::Count;
use super::tree::{ANCHOR, Attempts};
use super::version::{Locked, Restart};

/// A node that is being built.
pub(super) struct Draft<'g, const N: usize> {
    pub(super) node: OwnedNode<N>,
    /// Blocks that only its slots name.
    fresh: Vec<OwnedBlock>,
    /// Blocks of slots that were copied into it, and that its own slots do not name.
    dropped: Vec<Block<'g>>,
}

impl<'g, const N: usize> Draft<'g, N> {
    /// Creates an empty node of this level, for the keys from `low` up to and excluding `high`.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(
        arena: &Arc<Arena<Node<N>>>,
        level: u32,
        low: &[u8],
        high: Option<&[u8]>,
    ) -> Result<Self> {
        let node = OwnedNode::new(arena, level, KeyRange::new(low, high)?)?;
        Ok(Draft { node, fresh: Vec::new(), dropped: Vec::new() })
    }

    /// Appends a key and its content. There must be a free slot.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn push(&mut self, key: &[u8], content: Content<'_, N>) -> Result<()> {
        let (probe, prefix) = (Probe::new(key), self.node.prefix());
        let tail = probe.tail(prefix)?;
        self.node.insert(self.node.count(), probe.head(prefix), tail.get(), content);
        self.keep(tail);
        Ok(())
    }

    /// Appends slots of a locked node.
    fn take(&mut self, from: &Node<N>, slots: Range<usize>, guard: &'g Guard<'_>) -> Result<()> {
        let (mut key, mut at) = (Vec::new(), slots.start);
        while at < slots.end {
            at += self.node.append_all(from, at..slots.end, guard);
            if at == slots.end {
                break;
            }
            // The prefix differs too much for this slot: it is encoded again.
            let tail = from.tail(at, guard);
            key.clear();
            from.append_key(at, &mut key, guard);
            let probe = Probe::new(&key);
            let (head, new) = (probe.head(self.node.prefix()), self.fit(&probe, tail)?);
            self.node.append_from(from, at, head, new.as_ref().map_or(tail, NewTail::get));
            new.into_iter().for_each(|new| self.keep(new));
            at += 1;
        }
        Ok(())
    }

    /// Returns a new tail for a key that `tail` holds in another node, or `None` if `tail` can be
    /// used here too.
    fn fit(&mut self, probe: &Probe<'_>, tail: Tail<'g>) -> Result<Option<NewTail>> {
        let prefix = self.node.prefix();
        let Some(block) = tail.block() else { return Ok(Some(probe.tail(prefix)?)) };
        if block.skip() <= prefix && probe.key.len() - prefix > INLINE_MAX {
            return Ok(None);
        }
        let new = probe.tail(prefix)?;
        self.dropped.push(block);
        Ok(Some(new))
    }

    fn keep(&mut self, tail: NewTail) {
        if let NewTail::Block(block) = tail {
            self.fresh.push(block);
        }
    }

    /// Returns the bytes that publishing it adds to the tree.
    pub(super) fn size(&self) -> usize {
        self.node.size() + self.fresh.iter().map(|block| block.get().size()).sum::<usize>()
    }

    /// Publishes the node. The blocks that it does not take over are added to `dropped`; they are
    /// to be retired when no current node names them.
    pub(super) fn publish<'n>(
        self,
        tree: &BPlus<N>,
        dropped: &mut Vec<Block<'g>>,
        guard: &'n Guard<'_>,
    ) -> &'n Node<N> {
        tree.tally.add(Count::Bytes, self.size());
        tree.tally.add(kind(&self.node), 1);
        self.fresh.into_iter().for_each(OwnedBlock::publish);
        dropped.extend(self.dropped);
        self.node.publish(guard)
    }
}

fn kind<const N: usize>(node: &Node<N>) -> Count {
    if node.is_leaf() { Count::Leaves } else { Count::Inner }
}

/// Two nodes that replace one node or two neighbours, and the first key of the second.
struct Halves<'g, const N: usize> {
    left: Draft<'g, N>,
    right: Draft<'g, N>,
    separator: Vec<u8>,
}

/// The reason why a node was not split or rebalanced.
enum RestructureError {
    /// Another thread interfered.
    Restart,
    /// The parent must be split or rebalanced first.
    Parent,
    Error(Error),
}

impl From<Restart> for RestructureError {
    fn from(_: Restart) -> Self {
        RestructureError::Restart
    }
}

impl From<Error> for RestructureError {
    fn from(error: Error) -> Self {
        RestructureError::Error(error)
    }
}

/// The result of rebalancing a node.
enum Rebalanced {
    /// The levels above are unchanged, or need no rebalancing.
    Done,
    /// The parent has one child less, and may have become sparse.
    Merged,
}

impl<const N: usize> Node<N> {
    /// The largest number of slots in use of a merged node. More would let insertions split it
    /// again immediately.
    const MERGED: usize = N / 4 * 3;

    /// Returns `true` if it should be merged with a neighbour, or filled from it.
    pub(super) fn is_sparse(&self) -> bool {
        // An only child has no neighbour.
        self.count() < (N / 4).max(if self.is_leaf() { 1 } else { 2 })
    }
}

impl<const N: usize> BPlus<N> {
    /// Splits the node of a level that serves a key.
    ///
    /// # Errors
    /// `NoSpace`.
    #[cold]
    pub(super) fn split(&self, probe: &Probe<'_>, level: u32, guard: &Guard<'_>) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            match self.try_split(probe, level, guard) {
                Ok(()) => return Ok(()),
                Err(RestructureError::Restart) => attempts.retry(),
                Err(RestructureError::Parent) => self.split(probe, level + 1, guard)?,
                Err(RestructureError::Error(error)) => return Err(error),
            }
        }
    }

    fn try_split(
        &self,
        probe: &Probe<'_>,
        level: u32,
        guard: &Guard<'_>,
    ) -> Result<(), RestructureError> {
        let Some(path) = self.descend(Target::At(probe), level, guard)? else {
            // The tree has become lower meanwhile.
            return Ok(());
        };
        let (node, parent) = (path.node, path.parent);
        let locked = node.version.lock()?;
        if node.count() < N {
            return Ok(());
        }
        let halves = self.halves(&[node], split_position(node, probe, guard), guard)?;
        let parent_locked = parent.version.lock()?;
        let dropped = if parent.level == ANCHOR {
            self.grow(node.level + 1, halves, parent_locked, guard)?
        } else {
            self.put_halves(parent, parent_locked, probe, halves, guard)?
        };
        locked.obsolete();
        self.tally.add(Count::Splits, 1);
        // SAFETY: the node was in the tree and has just become obsolete; its replacements are in
        // its place.
        unsafe { self.retire(&[node], &dropped, guard) };
        Ok(())
    }

    /// Adds a new root above the halves of the old one.
    fn grow<'g>(
        &self,
        level: u32,
        halves: Halves<'g, N>,
        mut anchor_locked: Locked<'_>,
        guard: &'g Guard<'_>,
    ) -> Result<Vec<Block<'g>>> {
        let Halves { left, right, separator } = halves;
        let mut root = Draft::new(&self.nodes, level, &[], None)?;
        root.push(&[], Content::Child(&left.node))?;
        root.push(&separator, Content::Child(&right.node))?;
        self.tally.allow(left.size() + right.size() + root.size())?;
        let mut dropped = Vec::new();
        left.publish(self, &mut dropped, guard);
        right.publish(self, &mut dropped, guard);
        let root = root.publish(self, &mut dropped, guard);
        anchor_locked.mark_changed();
        self.anchor.set_content(0, Content::Child(root));
        Ok(dropped)
    }

    /// Replaces a child by its halves.
    fn put_halves<'g>(
        &self,
        parent: &Node<N>,
        mut parent_locked: Locked<'_>,
        probe: &Probe<'_>,
        halves: Halves<'g, N>,
        guard: &'g Guard<'_>,
    ) -> Result<Vec<Block<'g>>, RestructureError> {
        if parent.count() == N {
            return Err(RestructureError::Parent);
        }
        let Halves { left, right, separator } = halves;
        let separator = Probe::new(&separator);
        let tail = separator.tail(parent.prefix())?;
        self.tally.allow(left.size() + right.size() + tail.size())?;
        let mut dropped = Vec::new();
        let left = left.publish(self, &mut dropped, guard);
        let right = right.publish(self, &mut dropped, guard);
        let at = parent.child_at(Target::At(probe), guard);
        parent_locked.mark_changed();
        parent.set_content(at, Content::Child(left));
        let head = separator.head(parent.prefix());
        parent.insert(at + 1, head, tail.get(), Content::Child(right));
        self.tally.add(Count::Bytes, tail.size());
        tail.publish();
        Ok(dropped)
    }

    /// Distributes the slots of one locked node or two locked neighbours: the first `cut` slots to
    /// one node, the rest to another.
    fn halves<'g>(
        &self,
        nodes: &[&Node<N>],
        cut: usize,
        guard: &'g Guard<'_>,
    ) -> Result<Halves<'g, N>> {
        let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
        let separator = separator(nodes, cut, guard);
        let mut left = Draft::new(&self.nodes, first.level, first.range().low(), Some(&separator))?;
        let mut right = Draft::new(&self.nodes, first.level, &separator, last.range().high())?;
        let mut before = 0;
        for node in nodes {
            let count = node.count();
            let middle = cut.saturating_sub(before).min(count);
            left.take(node, 0..middle, guard)?;
            right.take(node, middle..count, guard)?;
            before += count;
        }
        Ok(Halves { left, right, separator })
    }

    /// Rebalances the node of a level that serves a key, if it is sparse: merges it with a
    /// neighbour, or fills it from there. Then does the same with its parent if necessary. If there
    /// is no memory for that the node stays sparse, which only costs space.
    #[cold]
    pub(super) fn rebalance(&self, probe: &Probe<'_>, level: u32, guard: &Guard<'_>) {
        // The operation that made the node sparse does not depend on this.
        let _ = self.rebalance_from(probe, level, guard);
    }

    fn rebalance_from(&self, probe: &Probe<'_>, mut level: u32, guard: &Guard<'_>) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            match self.try_rebalance(probe, level, guard) {
                Ok(Rebalanced::Done) => return Ok(()),
                Ok(Rebalanced::Merged) => level += 1,
                Err(RestructureError::Restart) => attempts.retry(),
                Err(RestructureError::Parent) => self.rebalance_from(probe, level + 1, guard)?,
                Err(RestructureError::Error(error)) => return Err(error),
            }
        }
    }

    fn try_rebalance(
        &self,
        probe: &Probe<'_>,
        level: u32,
        guard: &Guard<'_>,
    ) -> Result<Rebalanced, RestructureError> {
        let Some(path) = self.descend(Target::At(probe), level, guard)? else {
            return Ok(Rebalanced::Done);
        };
        let (node, parent) = (path.node, path.parent);
        if !node.is_sparse() {
            return Ok(Rebalanced::Done);
        }
        let locked = node.version.lock()?;
        if parent.level == ANCHOR {
            return self.lower(node, locked, guard);
        }
        if !node.is_sparse() {
            return Ok(Rebalanced::Done);
        }
        let parent_locked = parent.version.lock()?;
        if parent.count() < 2 {
            return Err(RestructureError::Parent);
        }
        let at = parent.child_at(Target::At(probe), guard);
        let pair = if at + 1 < parent.count() { at } else { at - 1 };
        let child = |at| parent.child(at, guard).expect("a slot in use of a locked parent");
        let (left, right) = (child(pair), child(pair + 1));
        let neighbour = if pair == at { right } else { left };
        let neighbour_locked = neighbour.version.try_lock()?;
        let (rebalanced, dropped) = self.join(parent, parent_locked, pair, [left, right], guard)?;
        locked.obsolete();
        neighbour_locked.obsolete();
        self.tally.add(Count::Merges, 1);
        // SAFETY: both were in the tree and have just become obsolete; their replacements are in
        // their places.
        unsafe { self.retire(&[left, right], &dropped, guard) };
        Ok(rebalanced)
    }

    /// Replaces the children at `pair` and `pair + 1` of a parent by one node, or by two equally
    /// full ones. All are locked.
    fn join<'g>(
        &self,
        parent: &Node<N>,
        mut parent_locked: Locked<'_>,
        pair: usize,
        nodes: [&Node<N>; 2],
        guard: &'g Guard<'_>,
    ) -> Result<(Rebalanced, Vec<Block<'g>>)> {
        let (total, [left, right]) = (nodes[0].count() + nodes[1].count(), nodes);
        let mut dropped = Vec::from_iter(parent.tail(pair + 1, guard).block());
        if total <= Node::<N>::MERGED {
            let mut merged =
                Draft::new(&self.nodes, left.level, left.range().low(), right.range().high())?;
            merged.take(left, 0..left.count(), guard)?;
            merged.take(right, 0..right.count(), guard)?;
            let merged = merged.publish(self, &mut dropped, guard);
            parent_locked.mark_changed();
            parent.set_content(pair, Content::Child(merged));
            parent.remove(pair + 1);
            return Ok((Rebalanced::Merged, dropped));
        }
        let Halves { left, right, separator } = self.halves(&nodes, total / 2, guard)?;
        let separator = Probe::new(&separator);
        let tail = separator.tail(parent.prefix())?;
        let left = left.publish(self, &mut dropped, guard);
        let right = right.publish(self, &mut dropped, guard);
        parent_locked.mark_changed();
        parent.set_content(pair, Content::Child(left));
        parent.set_key(pair + 1, separator.head(parent.prefix()), tail.get());
        parent.set_content(pair + 1, Content::Child(right));
        self.tally.add(Count::Bytes, tail.size());
        tail.publish();
        Ok((Rebalanced::Done, dropped))
    }

    /// Makes the only child of the root the new root.
    fn lower(
        &self,
        root: &Node<N>,
        locked: Locked<'_>,
        guard: &Guard<'_>,
    ) -> Result<Rebalanced, RestructureError> {
        // Otherwise a root may be sparse.
        if root.is_leaf() || root.count() > 1 {
            return Ok(Rebalanced::Done);
        }
        let mut anchor_locked = self.anchor.version.lock()?;
        let child = root.child(0, guard).expect("a slot in use of a locked node");
        anchor_locked.mark_changed();
        self.anchor.set_content(0, Content::Child(child));
        drop(anchor_locked);
        locked.obsolete();
        // SAFETY: the anchor named it and does not any more. Its only key is the empty key, which
        // has no block.
        unsafe { self.retire(&[root], &[], guard) };
        Ok(Rebalanced::Done)
    }

    /// Retires nodes and blocks.
    ///
    /// # Safety
    /// 1. The nodes were in the tree and are obsolete, and no current node names them.
    /// 2. The blocks were named by them or by a slot of their parent, and no current node names
    ///    them.
    /// 3. The guard is of this tree's domain.
    unsafe fn retire(&self, nodes: &[&Node<N>], blocks: &[Block<'_>], guard: &Guard<'_>) {
        for &node in nodes {
            self.tally.subtract(Count::Bytes, node.size());
            self.tally.subtract(kind(node), 1);
            // SAFETY: 1. nodes in the tree were published, and become obsolete only once. 2. and 3.
            // are promised by the caller.
            unsafe { retire_node(node, guard) };
        }
        for &block in blocks {
            self.tally.subtract(Count::Bytes, block.size());
            // SAFETY: 1. a block that a slot names was published; the one slot that named it is
            // gone. 2. and 3. are promised by the caller.
            unsafe { retire_block(block, guard) };
        }
    }
}

/// Returns the number of slots of a full node that go to its first half.
fn split_position<const N: usize>(node: &Node<N>, probe: &Probe<'_>, guard: &Guard<'_>) -> usize {
    // If keys only grow, nothing is added to the first half any more: it is left nearly full.
    let appending = node.range().high().is_none() && node.search(probe, guard).at == N;
    if appending { N - (N / 8).max(2) } else { N / 2 }
}

/// Returns a key that is greater than the key in slot `cut - 1` of some neighbouring nodes and not
/// greater than the one in slot `cut`. In leaves, where any such key will do, it is the shortest.
fn separator<const N: usize>(nodes: &[&Node<N>], cut: usize, guard: &Guard<'_>) -> Vec<u8> {
    let mut first = key_at(nodes, cut, guard);
    if nodes[0].is_leaf() {
        let last = key_at(nodes, cut - 1, guard);
        first.truncate(shared(&last, &first) + 1);
    }
    first
}

/// Returns the key in slot `at` of some neighbouring nodes.
fn key_at<const N: usize>(nodes: &[&Node<N>], mut at: usize, guard: &Guard<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    for node in nodes {
        if at < node.count() {
            node.append_key(at, &mut key, guard);
            break;
        }
        at -= node.count();
    }
    key
}
