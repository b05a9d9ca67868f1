//! Changing the binding of one key.
//!
//! Every change is one store of a reference: to a leaf, or to a node that has been written and
//! flushed. What it replaces is locked: the node that has the reference, and if that node itself is
//! replaced, then its parent as well. A thread that finds something else than it saw without the
//! lock starts again.

use evermap_pm::{Error, Guard, Medium, PmU64, Result};

use super::access::Locked;
use super::layout::{Child, Kind};
use super::node::Node;
use super::{Art, mistakes};
use crate::fresh::Fresh;
use crate::index::{Action, Change, MutateMode};
use crate::node_lock::LastObsolete;
use crate::ordered::leaf::{LeafRef, leaf_bytes};
use crate::recipe;

/// Where the search for a key ended.
struct End<'m> {
    /// The node above `node`.
    parent: Option<Node<'m>>,
    node: Node<'m>,
    /// The child of `node` for the key, and its cell.
    child: Option<(&'m PmU64, Child)>,
    /// Whether the stored bytes of the nodes show that `key` begins as all keys below `node` do.
    verified: bool,
}

/// What has to be done for a key.
enum Place<'m> {
    /// The key is present.
    Leaf(LeafRef<'m>),
    /// The node has no child for the key's symbol.
    Free,
    /// The child of the node has to be replaced by a node at this level, which the child and the
    /// key's leaf become the children of. `symbol` is that of the child.
    Above { level: usize, symbol: Option<u8> },
    /// The place is further up, above this level.
    NotBelow(usize),
}

/// A search begins again where a comparison has shown that it has to end further up. More often
/// than a few times in a row only if other nodes were inserted each time.
const DETOURS_MAX: u32 = 1000;

impl<M: Medium> Art<M> {
    /// Carries out what `decide` returns for a key.
    pub(super) fn change_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (mut below, mut detours) = (usize::MAX, 0);
        let mut obsolete = LastObsolete::default();
        loop {
            let end = self.descend(key, below)?;
            let place = self.place(key, &end)?;
            let done = match place {
                Place::NotBelow(level) => {
                    below = level;
                    detours += 1;
                    if detours > DETOURS_MAX {
                        let offset = self.medium().offset_of(end.node.header);
                        return Err(Error::damaged(
                            offset,
                            "keys are in the wrong place of a tree",
                        ));
                    }
                    continue;
                }
                Place::Leaf(leaf) => self.change_leaf(key, &end, leaf, guard, decide)?,
                _ if mode == MutateMode::ExistingOnly => return Ok(Change::default()),
                Place::Free => self.add(key, &end, guard, decide)?,
                Place::Above { level, symbol } => self.split(key, &end, (level, symbol), decide)?,
            };
            if let Some(change) = done {
                return Ok(change);
            }
            // Another thread was here in the meantime.
            obsolete.meet(self.medium(), [&end.node.header.lock])?;
            (below, detours) = (usize::MAX, 0);
        }
    }

    /// Follows `key` without comparing it: to a leaf, to where there is no child, or to the last
    /// node whose level is not greater than `below`.
    fn descend(&self, key: &[u8], below: usize) -> Result<End<'_>> {
        let m = self.medium();
        let mut end = End { parent: None, node: self.root_node()?, child: None, verified: true };
        loop {
            let node = end.node;
            // A key that ends before the level has no symbol here; the place for it is above.
            if key.len() < node.level {
                end.verified = false;
                end.child = None;
                return Ok(end);
            }
            end.verified &= node.prefix(m).admits(key, node.level);
            end.child = self.child(m, &node, key.get(node.level).copied());
            let Some((_, child)) = end.child.filter(|(_, child)| !child.is_leaf()) else {
                return Ok(end);
            };
            let next = self.node(child, Some(node.level))?;
            if next.level > below {
                return Ok(end);
            }
            // Bytes that the node does not store were not compared.
            end.verified &= next.prefix(m).count() >= next.level - node.level - 1;
            (end.parent, end.node) = (Some(node), next);
        }
    }

    /// Decides what has to be done for `key`, by comparing it with a key that is there.
    fn place<'m>(&'m self, key: &[u8], end: &End<'m>) -> Result<Place<'m>> {
        let (m, level) = (self.medium(), end.node.level);
        if end.child.is_none() && end.verified {
            return Ok(Place::Free);
        }
        let leaf = match end.child {
            Some((_, child)) => self.any_leaf(child)?,
            None => self.any_leaf_below(end.node)?,
        };
        // Only the root is ever empty.
        let Some(leaf) = leaf else {
            return Ok(if end.parent.is_none() {
                Place::Free
            } else {
                Place::NotBelow(usize::MAX)
            });
        };
        if leaf.is_of(m, key) {
            let found = end.child.is_some_and(|(_, child)| child.is_leaf());
            // Otherwise it was inserted in the meantime.
            return Ok(if found { Place::Leaf(leaf) } else { Place::NotBelow(usize::MAX) });
        }
        let common = leaf.common(m, key);
        Ok(match end.child {
            _ if common < level => Place::NotBelow(common),
            None => Place::Free,
            Some((_, child)) => {
                let inside = !child.is_leaf() && self.node(child, Some(level))?.level <= common;
                if common == level {
                    let what = "a leaf of a tree is below another symbol than its key has";
                    return Err(Error::damaged(leaf.offset, what));
                }
                // Keys that have more in common with this one were inserted in the meantime.
                if inside {
                    return Ok(Place::NotBelow(usize::MAX));
                }
                Place::Above { level: common, symbol: leaf.symbol(m, common) }
            }
        })
    }

    /// Locks the node in which a search ended. Returns `None` if anything has changed since.
    fn lock_end<'m>(&'m self, key: &[u8], end: &End<'m>) -> Result<Option<Locked<'m>>> {
        let m = self.medium();
        let Some(locked) = self.lock(end.node)? else { return Ok(None) };
        let now = self.child(m, &end.node, key.get(end.node.level).copied());
        let same = match (now, end.child) {
            (None, None) => true,
            (Some((_, now)), Some((_, then))) => now == then,
            _ => false,
        };
        if same {
            return Ok(Some(locked));
        }
        locked.release(m);
        Ok(None)
    }

    /// Locks the parent of a node that is locked, and so stays in the tree. Returns the cell that
    /// refers to the node. Waits for the lock of a parent only with that of a child, so no two
    /// threads wait for each other.
    fn lock_parent<'m>(
        &'m self,
        key: &[u8],
        end: &End<'m>,
    ) -> Result<(Locked<'m>, &'m PmU64, Child)> {
        let m = self.medium();
        let here = m.offset_of(end.node.header);
        let mut parent = end.parent.expect("the root is never replaced");
        let mut obsolete = LastObsolete::default();
        loop {
            if let Some(locked) = self.lock(parent)? {
                match self.child(m, &parent, key.get(parent.level).copied()) {
                    Some((cell, child)) if child.offset() == here => {
                        return Ok((locked, cell, child));
                    }
                    _ => locked.release(m),
                }
            }
            // Another node was inserted between them, or replaced the parent.
            obsolete.meet(m, [&parent.header.lock])?;
            parent = self.parent_of(key, here)?;
        }
    }

    /// Returns the node that refers to the one at `offset`, which is on the way of `key`.
    fn parent_of(&self, key: &[u8], offset: u64) -> Result<Node<'_>> {
        let m = self.medium();
        let mut node = self.root_node()?;
        loop {
            match self.child(m, &node, key.get(node.level).copied()) {
                Some((_, child)) if child.offset() == offset => return Ok(node),
                Some((_, child)) if !child.is_leaf() => {
                    node = self.node(child, Some(node.level))?
                }
                _ => return Err(Error::damaged(offset, "a node of a tree has no parent")),
            }
        }
    }

    /// Stores a reference durably. Readers who find it before it is durable make it so.
    #[track_caller]
    fn publish(&self, cell: &PmU64, child: Child, symbol: Option<u8>) {
        recipe::commit_marked(self.medium(), cell, child.with(symbol).0, Child::MARK);
    }

    /// Binds an absent key whose symbol has no child in the node.
    fn add(
        &self,
        key: &[u8],
        end: &End<'_>,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let m = self.medium();
        let mut blocks = Fresh::new(&self.memory.pool);
        let block = blocks.allocate_fixed(leaf_bytes(key.len()))?;
        let Some(locked) = self.lock_end(key, end)? else { return Ok(None) };
        let (node, symbol) = (end.node, key.get(end.node.level).copied());
        let free = node.claim(m, symbol);
        let mut larger = None;
        if free.is_none() {
            let kind = Kind::for_symbols(node.len(m) + 1);
            let block = blocks.allocate_fixed(kind.bytes());
            match block.and_then(|block| Ok((block, kind, self.lock_parent(key, end)?))) {
                Ok(prepared) => larger = Some(prepared),
                Err(error) => {
                    locked.release(m);
                    return Err(error);
                }
            }
        }
        let Action::Put(word) = decide(None) else {
            locked.release(m);
            if let Some((_, _, (parent, ..))) = larger {
                parent.release(m);
            }
            return Ok(Some(Change::default()));
        };
        blocks.keep();
        LeafRef::write(m, block, key, word);
        let leaf = Child::leaf(block);
        match (free, larger) {
            (Some(cell), _) => {
                if !m.mutant(mistakes::PUBLISH_EARLY) {
                    m.fence();
                }
                self.publish(cell, leaf, symbol);
                locked.changed(m);
            }
            (None, Some((block, kind, parent))) => {
                let children = node.all(m).chain([(symbol, leaf)]);
                self.replace(locked, (block, kind), children, parent, key, guard);
            }
            (None, None) => unreachable!("a node is full, and there is no larger one"),
        }
        Ok(Some(Change { old: None, new: Some(word) }))
    }

    /// Replaces a node by one of another kind at `block`, with these children.
    fn replace<'m>(
        &self,
        old: Locked<'m>,
        (block, kind): (u64, Kind),
        children: impl Iterator<Item = (Option<u8>, Child)>,
        (parent, cell, child): (Locked<'m>, &'m PmU64, Child),
        key: &[u8],
        guard: &Guard<'_>,
    ) {
        let (m, node) = (self.medium(), old.node);
        Node::write(m, block, (kind, node.level), key, self.memory.generation, children);
        m.fence();
        self.publish_at(&parent, cell, Child::node(block, kind), child);
        parent.changed(m);
        old.obsolete(m);
        self.memory.pool.retire(child.offset(), node.kind.bytes(), guard);
    }

    /// Stores another child durably where `before` was.
    #[track_caller]
    fn publish_at(&self, locked: &Locked<'_>, cell: &PmU64, child: Child, before: Child) {
        let is_end = std::ptr::eq(cell, &raw const locked.node.header.end);
        self.publish(cell, child, (!is_end).then(|| before.symbol()));
    }

    /// Binds an absent key: replaces the child of the node by a new node at this level, whose
    /// children are the former child and the key's leaf.
    fn split(
        &self,
        key: &[u8],
        end: &End<'_>,
        (level, symbol): (usize, Option<u8>),
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let m = self.medium();
        let mut blocks = Fresh::new(&self.memory.pool);
        let leaf = blocks.allocate_fixed(leaf_bytes(key.len()))?;
        let block = blocks.allocate_fixed(Kind::N4.bytes())?;
        let Some(locked) = self.lock_end(key, end)? else { return Ok(None) };
        let Action::Put(word) = decide(None) else {
            locked.release(m);
            return Ok(Some(Change::default()));
        };
        blocks.keep();
        let (cell, child) = end.child.expect("a child is replaced");
        LeafRef::write(m, leaf, key, word);
        let leaf = Child::leaf(leaf);
        let children = [(symbol, child), (key.get(level).copied(), leaf)];
        let shape = (Kind::N4, level);
        Node::write(m, block, shape, key, self.memory.generation, children.into_iter());
        m.fence();
        self.publish_at(&locked, cell, Child::node(block, Kind::N4), child);
        locked.changed(m);
        Ok(Some(Change { old: None, new: Some(word) }))
    }

    /// Carries out what `decide` returns for a key that is present. Returns `None` if another
    /// thread has changed it.
    fn change_leaf(
        &self,
        key: &[u8],
        end: &End<'_>,
        leaf: LeafRef<'_>,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let m = self.medium();
        let Some(locked) = self.lock_end(key, end)? else { return Ok(None) };
        let old = leaf.word(m);
        let new = match decide(Some(old)) {
            Action::Keep => Some(old),
            Action::Put(word) => {
                leaf.put(m, word);
                Some(word)
            }
            Action::Remove => {
                self.remove(key, end, locked, guard)?;
                self.memory.pool.retire(leaf.offset, leaf.bytes(), guard);
                return Ok(Some(Change { old: Some(old), new: None }));
            }
        };
        // A scan shows pairs of one moment, so it has to know.
        if new == Some(old) {
            locked.release(m)
        } else {
            locked.changed(m)
        }
        Ok(Some(Change { old: Some(old), new }))
    }

    /// Removes the child in which a search ended, durably. A node that is left with one child is
    /// replaced by that; one with few children by a smaller one, if there is space.
    fn remove(
        &self,
        key: &[u8],
        end: &End<'_>,
        locked: Locked<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let (m, node) = (self.medium(), end.node);
        let (cell, gone) = end.child.expect("the leaf is a child");
        let left = || node.all(m).filter(move |(_, child)| !child.is(gone));
        let count = left().count();
        if end.parent.is_some() && (count == 1 || count <= node.kind.shrinks_at()) {
            let kind = Kind::for_symbols(count);
            let smaller = (count != 1).then(|| self.memory.pool.allocate_fixed(kind.bytes()));
            let parent = match self.lock_parent(key, end) {
                Ok(parent) => parent,
                Err(error) => {
                    smaller
                        .into_iter()
                        .flatten()
                        .for_each(|it| self.memory.pool.free_unpublished(it));
                    locked.release(m);
                    return Err(error);
                }
            };
            match smaller {
                Some(Ok(block)) => {
                    self.replace(locked, (block, kind), left(), parent, key, guard);
                    return Ok(());
                }
                // There is no space for a smaller node.
                Some(Err(_)) => parent.0.release(m),
                None => {
                    let (_, only) = left().next().expect("one is left");
                    let (parent, cell, child) = parent;
                    self.publish_at(&parent, cell, only, child);
                    parent.changed(m);
                    locked.obsolete(m);
                    self.memory.pool.retire(child.offset(), node.kind.bytes(), guard);
                    return Ok(());
                }
            }
        }
        self.publish_at(&locked, cell, Child(0), gone);
        locked.changed(m);
        Ok(())
    }
}
