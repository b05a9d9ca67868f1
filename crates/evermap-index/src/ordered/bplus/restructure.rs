//! Splitting full nodes, and mending sparse ones.
//!
//! Nodes are not rebuilt: new ones take their place. Both changes go up the tree:
//!
//! 1. Lock the node, and make its successors, which nobody else sees.
//! 2. Lock its parent, which has the node among its children for as long as neither is obsolete.
//! 3. Put the successors into the parent's slots, and let go of the parent.
//! 4. Give the node up as obsolete, so that whoever still reads it begins again, and retire it.
//!
//! A thread that holds a lock waits for that of a parent only, so there is no circle. A neighbour's lock is taken if
//! it is free, and not waited for. Whatever can fail comes before step 3.

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

/// A node in the making.
pub(super) struct Draft<'g, const N: usize> {
    pub(super) node: OwnedNode<N>,
    /// Blocks that its slots name and no others.
    fresh: Vec<OwnedBlock>,
    /// Blocks that slots it took over name and its own do not.
    dropped: Vec<Block<'g>>,
}

impl<'g, const N: usize> Draft<'g, N> {
    /// A node of this level, for the keys from `low` on to below `high`.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(
        home: &Arc<Arena<Node<N>>>,
        level: u32,
        low: &[u8],
        high: Option<&[u8]>,
    ) -> Result<Self> {
        let node = OwnedNode::new(home, level, KeyRange::new(low, high)?)?;
        Ok(Draft { node, fresh: Vec::new(), dropped: Vec::new() })
    }

    /// Appends a key and what goes with it. There is room.
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

    /// Appends slots of a node that is locked.
    fn take(&mut self, from: &Node<N>, slots: Range<usize>, guard: &'g Guard<'_>) -> Result<()> {
        let (mut key, mut at) = (Vec::new(), slots.start);
        while at < slots.end {
            at += self.node.append_all(from, at..slots.end, guard);
            if at == slots.end {
                break;
            }
            // A slot that has to be written in another way.
            let tail = from.tail(at, guard);
            key.clear();
            from.spell(at, &mut key, guard);
            let probe = Probe::new(&key);
            let (head, new) = (probe.head(self.node.prefix()), self.fit(&probe, tail)?);
            self.node.append_from(from, at, head, new.as_ref().map_or(tail, NewTail::get));
            new.into_iter().for_each(|new| self.keep(new));
            at += 1;
        }
        Ok(())
    }

    /// What holds the key here that `tail` holds elsewhere; nothing where that can go on doing so.
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

    /// Bytes that it adds.
    pub(super) fn size(&self) -> usize {
        self.node.size() + self.fresh.iter().map(|block| block.get().size()).sum::<usize>()
    }

    /// Makes it a node that others may see. The blocks that it does not take over go to `dropped`, to be retired when no
    /// current node names them.
    pub(super) fn publish<'n>(
        self,
        tree: &BPlus<N>,
        dropped: &mut Vec<Block<'g>>,
        guard: &'n Guard<'_>,
    ) -> &'n Node<N> {
        tree.tally.add(Count::Bytes, self.size());
        tree.tally.add(kind(&self.node), 1);
        self.fresh.into_iter().for_each(OwnedBlock::give_away);
        dropped.extend(self.dropped);
        self.node.publish(guard)
    }
}

fn kind<const N: usize>(node: &Node<N>) -> Count {
    if node.is_leaf() { Count::Leaves } else { Count::Inner }
}

/// Two nodes that take the place of one or two, and the first key of the second.
struct Halves<'g, const N: usize> {
    left: Draft<'g, N>,
    right: Draft<'g, N>,
    separator: Vec<u8>,
}

/// Why a node was not split or mended.
enum Hindrance {
    /// Others were in the way.
    Restart,
    /// The parent must be split or mended before.
    Parent,
    Error(Error),
}

impl From<Restart> for Hindrance {
    fn from(_: Restart) -> Self {
        Hindrance::Restart
    }
}

impl From<Error> for Hindrance {
    fn from(error: Error) -> Self {
        Hindrance::Error(error)
    }
}

/// How a node was mended.
enum Mended {
    /// The nodes above are as they were, or need no look.
    Below,
    /// Its parent has one child less.
    Merged,
}

impl<const N: usize> Node<N> {
    /// Most slots in use of a node that two were merged into: insertions shall not split it at once.
    const MERGED: usize = N / 4 * 3;

    /// Whether it should have a neighbour's slots too.
    pub(super) fn is_sparse(&self) -> bool {
        // One child alone has no neighbour.
        self.count() < (N / 4).max(if self.is_leaf() { 1 } else { 2 })
    }
}

impl<const N: usize> BPlus<N> {
    /// Makes room in the node of a level that serves a key.
    ///
    /// # Errors
    /// `NoSpace`.
    #[cold]
    pub(super) fn split(&self, probe: &Probe<'_>, level: u32, guard: &Guard<'_>) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            match self.try_split(probe, level, guard) {
                Ok(()) => return Ok(()),
                Err(Hindrance::Restart) => attempts.again(),
                Err(Hindrance::Parent) => self.split(probe, level + 1, guard)?,
                Err(Hindrance::Error(error)) => return Err(error),
            }
        }
    }

    fn try_split(&self, probe: &Probe<'_>, level: u32, guard: &Guard<'_>) -> Result<(), Hindrance> {
        let Some(path) = self.descend(Target::At(probe), level, guard)? else {
            // The tree is lower now.
            return Ok(());
        };
        let (node, parent) = (path.node, path.parent);
        let locked = node.version.lock()?;
        if node.count() < N {
            return Ok(());
        }
        let halves = self.halves(&[node], cut(node, probe, guard), guard)?;
        let parent_locked = parent.version.lock()?;
        let dropped = if parent.level == ANCHOR {
            self.grow(node.level + 1, halves, parent_locked, guard)?
        } else {
            self.put_halves(parent, parent_locked, probe, halves, guard)?
        };
        locked.obsolete();
        self.tally.add(Count::Splits, 1);
        // SAFETY: the node was found in the tree and is obsolete only now: its successors have its place.
        unsafe { self.retire(&[node], &dropped, guard) };
        Ok(())
    }

    /// Puts a new root above the halves of the old one.
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
        anchor_locked.changing();
        self.anchor.set_content(0, Content::Child(root));
        Ok(dropped)
    }

    /// Puts the halves of a child into its place.
    fn put_halves<'g>(
        &self,
        parent: &Node<N>,
        mut parent_locked: Locked<'_>,
        probe: &Probe<'_>,
        halves: Halves<'g, N>,
        guard: &'g Guard<'_>,
    ) -> Result<Vec<Block<'g>>, Hindrance> {
        if parent.count() == N {
            return Err(Hindrance::Parent);
        }
        let Halves { left, right, separator } = halves;
        let separator = Probe::new(&separator);
        let tail = separator.tail(parent.prefix())?;
        self.tally.allow(left.size() + right.size() + tail.size())?;
        let mut dropped = Vec::new();
        let left = left.publish(self, &mut dropped, guard);
        let right = right.publish(self, &mut dropped, guard);
        let at = parent.child_at(Target::At(probe), guard);
        parent_locked.changing();
        parent.set_content(at, Content::Child(left));
        let head = separator.head(parent.prefix());
        parent.insert(at + 1, head, tail.get(), Content::Child(right));
        self.tally.add(Count::Bytes, tail.size());
        tail.give_away();
        Ok(dropped)
    }

    /// Distributes the slots of one node or two neighbours, which are locked: the first `cut` to one, the rest to
    /// another.
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

    /// Merges the node of a level that serves a key with a neighbour, or fills it from there, if it is sparse; and so on
    /// with its parent. Where there is no memory for that it stays sparse, which costs nothing but room.
    #[cold]
    pub(super) fn mend(&self, probe: &Probe<'_>, level: u32, guard: &Guard<'_>) {
        // Nothing that was asked for depends on it.
        let _ = self.mend_from(probe, level, guard);
    }

    fn mend_from(&self, probe: &Probe<'_>, mut level: u32, guard: &Guard<'_>) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            match self.try_mend(probe, level, guard) {
                Ok(Mended::Below) => return Ok(()),
                Ok(Mended::Merged) => level += 1,
                Err(Hindrance::Restart) => attempts.again(),
                Err(Hindrance::Parent) => self.mend_from(probe, level + 1, guard)?,
                Err(Hindrance::Error(error)) => return Err(error),
            }
        }
    }

    fn try_mend(
        &self,
        probe: &Probe<'_>,
        level: u32,
        guard: &Guard<'_>,
    ) -> Result<Mended, Hindrance> {
        let Some(path) = self.descend(Target::At(probe), level, guard)? else {
            return Ok(Mended::Below);
        };
        let (node, parent) = (path.node, path.parent);
        if !node.is_sparse() {
            return Ok(Mended::Below);
        }
        let locked = node.version.lock()?;
        if parent.level == ANCHOR {
            return self.lower(node, locked, guard);
        }
        if !node.is_sparse() {
            return Ok(Mended::Below);
        }
        let parent_locked = parent.version.lock()?;
        if parent.count() < 2 {
            return Err(Hindrance::Parent);
        }
        let at = parent.child_at(Target::At(probe), guard);
        let pair = if at + 1 < parent.count() { at } else { at - 1 };
        let child = |at| parent.child(at, guard).expect("a slot in use of a locked parent");
        let (left, right) = (child(pair), child(pair + 1));
        let neighbour = if pair == at { right } else { left };
        let neighbour_locked = neighbour.version.try_lock()?;
        let (mended, dropped) = self.join(parent, parent_locked, pair, [left, right], guard)?;
        locked.obsolete();
        neighbour_locked.obsolete();
        self.tally.add(Count::Merges, 1);
        // SAFETY: both were in the tree and are obsolete only now: their successors have their places.
        unsafe { self.retire(&[left, right], &dropped, guard) };
        Ok(mended)
    }

    /// Puts one node, or two equally full ones, into the places `pair` and the next of a parent. All are locked.
    fn join<'g>(
        &self,
        parent: &Node<N>,
        mut parent_locked: Locked<'_>,
        pair: usize,
        nodes: [&Node<N>; 2],
        guard: &'g Guard<'_>,
    ) -> Result<(Mended, Vec<Block<'g>>)> {
        let (total, [left, right]) = (nodes[0].count() + nodes[1].count(), nodes);
        let mut dropped = Vec::from_iter(parent.tail(pair + 1, guard).block());
        if total <= Node::<N>::MERGED {
            let mut merged =
                Draft::new(&self.nodes, left.level, left.range().low(), right.range().high())?;
            merged.take(left, 0..left.count(), guard)?;
            merged.take(right, 0..right.count(), guard)?;
            let merged = merged.publish(self, &mut dropped, guard);
            parent_locked.changing();
            parent.set_content(pair, Content::Child(merged));
            parent.remove(pair + 1);
            return Ok((Mended::Merged, dropped));
        }
        let Halves { left, right, separator } = self.halves(&nodes, total / 2, guard)?;
        let separator = Probe::new(&separator);
        let tail = separator.tail(parent.prefix())?;
        let left = left.publish(self, &mut dropped, guard);
        let right = right.publish(self, &mut dropped, guard);
        parent_locked.changing();
        parent.set_content(pair, Content::Child(left));
        parent.set_key(pair + 1, separator.head(parent.prefix()), tail.get());
        parent.set_content(pair + 1, Content::Child(right));
        self.tally.add(Count::Bytes, tail.size());
        tail.give_away();
        Ok((Mended::Below, dropped))
    }

    /// Makes the only child of the root the root.
    fn lower(
        &self,
        root: &Node<N>,
        locked: Locked<'_>,
        guard: &Guard<'_>,
    ) -> Result<Mended, Hindrance> {
        // A root may be sparse otherwise.
        if root.is_leaf() || root.count() > 1 {
            return Ok(Mended::Below);
        }
        let mut anchor_locked = self.anchor.version.lock()?;
        let child = root.child(0, guard).expect("a slot in use of a locked node");
        anchor_locked.changing();
        self.anchor.set_content(0, Content::Child(child));
        drop(anchor_locked);
        locked.obsolete();
        // SAFETY: the anchor named it and does not now. Its only key is the empty one, which has no block.
        unsafe { self.retire(&[root], &[], guard) };
        Ok(Mended::Below)
    }

    /// Gives up nodes and blocks.
    ///
    /// # Safety
    /// 1. The nodes are obsolete, were in the tree, and no current node names them.
    /// 2. The blocks were named by them or by a slot of their parent, and no current node names them.
    /// 3. The guard is one of this tree's domain.
    unsafe fn retire(&self, nodes: &[&Node<N>], blocks: &[Block<'_>], guard: &Guard<'_>) {
        for &node in nodes {
            self.tally.subtract(Count::Bytes, node.size());
            self.tally.subtract(kind(node), 1);
            // SAFETY: 1. what is in the tree was published; it was made obsolete once. 2. and 3. promised.
            unsafe { retire_node(node, guard) };
        }
        for &block in blocks {
            self.tally.subtract(Count::Bytes, block.size());
            // SAFETY: 1. what slots name was given away; one slot named it, and is gone. 2. and 3. promised.
            unsafe { retire_block(block, guard) };
        }
    }
}

/// How many slots of a full node go to its first half.
fn cut<const N: usize>(node: &Node<N>, probe: &Probe<'_>, guard: &Guard<'_>) -> usize {
    // Where keys only grow, nothing is ever added to the first half again: it is left nearly full.
    let appending = node.range().high().is_none() && node.search(probe, guard).at == N;
    if appending { N - (N / 8).max(2) } else { N / 2 }
}

/// A key above slot `cut - 1` of some neighbouring nodes and not above slot `cut`: short in leaves, where there is a
/// choice.
fn separator<const N: usize>(nodes: &[&Node<N>], cut: usize, guard: &Guard<'_>) -> Vec<u8> {
    let mut first = key_at(nodes, cut, guard);
    if nodes[0].is_leaf() {
        let last = key_at(nodes, cut - 1, guard);
        first.truncate(shared(&last, &first) + 1);
    }
    first
}

/// The key in slot `at` of some neighbouring nodes.
fn key_at<const N: usize>(nodes: &[&Node<N>], mut at: usize, guard: &Guard<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    for node in nodes {
        if at < node.count() {
            node.spell(at, &mut key, guard);
            break;
        }
        at -= node.count();
    }
    key
}
