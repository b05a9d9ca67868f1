//! FAIR: splitting a node, and telling the level above.
//!
//! A split is two stores, each of which is durable before anything is stored that builds on it: the
//! reference to the new node, which holds the upper half of the records, and the new end of the old
//! node. In between, both have them, and searches may find them in either. The node above is told
//! afterwards, without any lock of the two; until then searches reach the new node from the old
//! one. If that never happens (the process dies, there is no space), the next thread that changes
//! something there and has to go right does it: the second condition of
//! [`recipe`](evermap_index::recipe). The published code leaves the node where it is for ever.

use evermap_index::FOUND_LATE;
use evermap_index::fresh::Fresh;
use evermap_index::node_lock::Lock;
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, Result};

use super::access::{Locked, NodeRef, Search};
use super::layout::{self, Meta, NO_CHILD, NodeBlock, Record, Rest, VACANT};
use super::shift::BEHIND_THE_END;
use super::{FastFair, Form, mistakes};

/// The blocks for a split.
pub(super) struct Space {
    node: u64,
    /// For the least key of the new node, if that is longer than its prefix.
    low: Option<u64>,
}

/// A node and a position in it.
type Position<'m, F> = (NodeRef<'m, F>, usize);

impl<M: Medium, F: Form> FastFair<M, F> {
    /// The position of the record at which a full node is split.
    const MIDDLE: usize = F::FULL / 2;

    /// Allocates what a split of a node needs, which this thread has locked.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn space_for_split(
        &self,
        node: &NodeRef<'_, F>,
        blocks: &mut Fresh<'_, M>,
    ) -> Result<Space> {
        let m = self.medium();
        let at = m.load(&node.records()[Self::MIDDLE].at);
        let low = match node.level {
            0 => LeafRef::at(m, at)?.key_len(),
            // The least key of the child, which has its own place.
            _ => 0,
        };
        let low = (low > 8).then(|| blocks.allocate_fixed(leaf_bytes(low))).transpose()?;
        Ok(Space {
            node: blocks
                .allocate_fixed(layout::node_bytes::<_, F>(&self.memory.pool, node.level))?,
            low,
        })
    }

    /// Splits a full node that this thread has locked. Returns the new node, which no other thread
    /// reaches before the old one is released, and where the record belongs that had to be at
    /// `position`. The new end of the old node is durable when that is inserted.
    ///
    /// # Errors
    /// `Damaged`; nothing has changed then.
    pub(super) fn split<'m>(
        &'m self,
        locked: &Locked<'m, F>,
        position: usize,
        space: Space,
    ) -> Result<(NodeRef<'m, F>, Position<'m, F>)> {
        let (m, old) = (self.medium(), locked.node);
        let (middle, at) = (&old.records()[Self::MIDDLE], m.load(&old.records()[Self::MIDDLE].at));
        let (rest, leftmost, first) = match old.level {
            0 => {
                let leaf = LeafRef::at(m, at)?;
                let rest = space.low.map(|block| {
                    LeafRef::write(m, block, &leaf.key(m), 0);
                    Rest::Leaf(block).word()
                });
                (rest.unwrap_or(Rest::Length(leaf.key_len()).word()), NO_CHILD, Self::MIDDLE)
            }
            level => {
                let child = self.node_as_it_is(at, Some(level - 1))?;
                (m.load(&child.header().low_rest), at, Self::MIDDLE + 1)
            }
        };
        let new = self.write_node(space.node, old.level, (m.load(&middle.prefix), rest), leftmost);
        let moved = &old.records()[first..old.count(m)];
        for (to, from) in new.records().iter().zip(moved) {
            m.store(&to.prefix, m.load(&from.prefix));
            m.store(&to.at, m.load(&from.at));
        }
        if let Some((to, from)) = new.copies(m).zip(old.copies(m)) {
            to.take(m, &from, first);
        }
        new.set_count(m, moved.len());
        m.store(&new.header().next_prefix, m.load(&old.header().next_prefix));
        m.store(&new.header().sibling, m.load(&old.header().sibling));
        m.flush(new.node);
        m.fence();
        recipe::commit(m, &old.header().sibling, new.offset);
        m.store_transient(&old.header().next_prefix, m.load(&middle.prefix));
        if !m.mutant(mistakes::KEEP_UPPER_HALF) {
            m.store(&middle.at, 0);
            // The insertion that follows begins with a fence.
            m.note(Note::Harmless(BEHIND_THE_END));
            m.flush(middle);
            old.end_at(m, Self::MIDDLE);
        }
        let place = if position > Self::MIDDLE { (new, position - first) } else { (old, position) };
        Ok((new, place))
    }

    /// Writes a node without records and without sibling to a new block. Does not flush it.
    pub(super) fn write_node(
        &self,
        offset: u64,
        level: u8,
        (low_prefix, low_rest): (u64, u64),
        leftmost: u64,
    ) -> NodeRef<'_, F> {
        let m = self.medium();
        let node = m.at::<F::Node>(offset).expect("just allocated");
        let header = node.header();
        m.store(&header.lock, Lock::fresh(self.memory.generation).0);
        m.store(&header.meta, Meta::new(level).0);
        m.store(&header.sibling, 0);
        m.store(&node.low().prefix, low_prefix);
        m.store(&node.low().at, leftmost);
        m.store(&header.low_rest, low_rest);
        m.store(&header.count, 0);
        m.store(&header.next_prefix, u64::MAX);
        for record in node.records() {
            m.store(&record.prefix, VACANT);
            m.store(&record.at, 0);
        }
        NodeRef { offset, node, level }
    }

    /// Makes the level above refer to the node at an offset, and the levels above that to the nodes
    /// that are split for it. Does nothing if there is no space: the tree is complete without.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    pub(super) fn add_to_level_above(&self, mut offset: u64) -> Result<()> {
        let m = self.medium();
        loop {
            let node = self.node(offset, None)?;
            let Some(low) = self.low(&node)? else { return Ok(()) };
            let search = Search::new(&low);
            let root = self.root_node()?;
            if root.level == node.level && !self.grow(&root)? {
                return Ok(());
            }
            let above = self.descend(&search, node.level + 1)?.node;
            let (locked, place) = self.lock(above, &search)?;
            let above = locked.node;
            if above.level != node.level + 1 {
                locked.release(m);
                return Err(Error::damaged(offset, "a node of a tree is not below its root"));
            }
            // Another thread was faster.
            if place.child == offset {
                locked.release(m);
                return Ok(());
            }
            let prefix = search.prefix;
            if above.count(m) < F::FULL {
                self.insert_record(&above, place.position, prefix, offset);
                locked.changed(m);
                return Ok(());
            }
            let mut blocks = Fresh::new(&self.memory.pool);
            let new = self
                .space_for_split(&above, &mut blocks)
                .and_then(|space| self.split(&locked, place.position, space));
            let (new, (half, position)) = match new {
                Ok(split) => split,
                Err(error) => {
                    locked.release(m);
                    return if error.is_no_space() { Ok(()) } else { Err(error) };
                }
            };
            blocks.keep();
            self.insert_record(&half, position, prefix, offset);
            locked.changed(m);
            offset = new.offset;
        }
    }

    /// Puts a new root above a root that was split. Returns `false` if there is no space.
    fn grow(&self, root: &NodeRef<'_, F>) -> Result<bool> {
        let m = self.medium();
        let cell = &self.root_block()?.tree;
        let (locked, _) = self.lock(*root, &Search::before(b""))?;
        let sibling = m.load(&root.header().sibling);
        // Another thread was faster.
        if m.load(cell) != root.offset || sibling == 0 {
            locked.release(m);
            return Ok(true);
        }
        let grown = self.node_as_it_is(sibling, Some(root.level)).and_then(|sibling| {
            let level = root.level.checked_add(1);
            let level = level.ok_or_else(|| Error::damaged(root.offset, "a tree is too high"))?;
            let block = self
                .memory
                .pool
                .allocate_fixed(layout::node_bytes::<_, F>(&self.memory.pool, level))?;
            let new = self.write_node(block, level, (0, Rest::None.word()), root.offset);
            m.store(&new.records()[0].prefix, m.load(&sibling.node.low().prefix));
            m.store(&new.records()[0].at, sibling.offset);
            m.store(&new.header().count, 1);
            m.flush(new.node);
            m.fence();
            m.note(Note::Harmless(
                "without, a crash brings back the former root, which leads everywhere more slowly: \
                 `a_root_that_was_split_gets_one_above`",
            ));
            recipe::commit(m, cell, block);
            Ok(())
        });
        locked.release(m);
        match grown {
            Err(error) if error.is_no_space() => Ok(false),
            grown => grown.map(|()| true),
        }
    }

    /// Repairs a node that an earlier process used: makes durable what that has stored, and
    /// completes what it was doing.
    pub(super) fn repair(&self, node: &NodeRef<'_, F>) {
        let m = self.medium();
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(node.node);
        self.derive(node);
        let mut left = m.load(&node.node.low().at);
        for position in 0..NodeRef::<F>::RECORDS {
            let at = m.load(&node.records()[position].at);
            if at == 0 {
                break;
            }
            // A record was being inserted or removed: at most one.
            if at == left && !m.mutant(mistakes::LEAVE_SHIFT) {
                if node.count(m) < NodeRef::<F>::RECORDS {
                    self.close_gap(node, position);
                }
                break;
            }
            left = at;
        }
        if !m.mutant(mistakes::LEAVE_SPLIT) {
            self.end_before_sibling(node);
        }
        if !m.mutant(mistakes::TRUST_COPIES) {
            self.copy_words(node);
        }
    }

    /// Computes the words of a node that follow from others.
    fn derive(&self, node: &NodeRef<'_, F>) {
        let m = self.medium();
        let ends = |record: &Record| m.load(&record.at) == 0;
        node.end_at(m, node.records().iter().position(ends).unwrap_or(NodeRef::<F>::RECORDS));
        let next_prefix = match m.load(&node.header().sibling) {
            0 => u64::MAX,
            // If it is damaged, a search that comes to the end of this node returns that.
            sibling => self
                .node_as_it_is(sibling, Some(node.level))
                .map_or(0, |next| m.load(&next.node.low().prefix)),
        };
        m.store_transient(&node.header().next_prefix, next_prefix);
    }

    /// Completes a split: removes the records that the next node has too.
    fn end_before_sibling(&self, node: &NodeRef<'_, F>) {
        let m = self.medium();
        let sibling = m.load(&node.header().sibling);
        // If it is damaged, the search that goes there returns that.
        let Ok(next) = self.node_as_it_is(sibling, Some(node.level)) else { return };
        let Ok(Some(low)) = self.low(&next) else { return };
        let search = match node.level {
            0 => Search::new(&low),
            _ => Search::before(&low),
        };
        if let Ok(place) = self.place(node, &search) {
            let end = &node.records()[place.position].at;
            if m.load(end) != 0 {
                m.note(Note::Harmless(
                    "needed where a leaf behind the end was freed: \
                     `a_split_is_completed_after_a_crash`",
                ));
                recipe::commit(m, end, 0);
                node.end_at(m, place.position);
            }
        }
    }
}
