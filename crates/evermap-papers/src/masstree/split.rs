//! Splitting a node, and telling the level above.
//!
//! A full node is split by two stores to its header, which become durable in their order: the
//! reference to the new node, which has the upper half of the entries, and the permutation without
//! these. If only the first is durable when the process dies, both nodes have the upper half. Then
//! the first thread that comes to the old node completes the split, before it reads the node or
//! follows the reference: the third condition of [`recipe`](evermap_index::recipe). So nothing is
//! ever changed in the new node while the old one has copies.
//!
//! The level above is told afterwards, without any lock of the two; until then searches reach the
//! new node from the old one. If that never happens (the process dies, there is no space), the next
//! thread that changes something there and has to go right does it: the second condition. The same
//! holds for a new root above one that was split.

use evermap_index::FOUND_LATE;
use evermap_index::fresh::Fresh;
use evermap_index::node_lock::Lock;
use evermap_index::recipe::{self, Preparation};
use evermap_pm::medium::Note;
use evermap_pm::{Medium, PmU64, Result};

use super::access::{Contents, NodeRef, Target};
use super::layout::{self, Below, Classes, Meta, Permutation, Slice};
use super::{Masstree, mistakes};

/// What is written to a new node.
struct New<'e> {
    level: u8,
    depth: usize,
    low: Slice,
    leftmost: u64,
    next: u64,
    entries: &'e [(Slice, u64)],
}

impl<M: Medium> Masstree<M> {
    /// Splits a full node that this thread has locked, and inserts an entry that has to have this
    /// rank. `block` gets the new node. What the entry refers to is flushed already.
    pub(super) fn split(
        &self,
        old: &NodeRef<'_>,
        full: Contents,
        rank: usize,
        entry: (Slice, u64),
        block: u64,
    ) {
        let (m, header) = (self.medium(), old.header());
        let Contents { mut entries, next, .. } = full;
        let (count, half) = (entries.len(), entries.len().div_ceil(2));
        let goes_right = rank >= half;
        let middle = match goes_right {
            // Behind all others, as always if keys come in ascending order: the node stays full.
            true if rank == count && next == 0 => count,
            true => half,
            false => half - 1,
        };
        let mut moved = entries.split_off(middle);
        if goes_right {
            moved.insert(rank - middle, entry);
        }
        // The first key of a new node that is not a leaf node moves up.
        let (low, leftmost) = match old.level() {
            0 => (moved[0].0, 0),
            _ => moved.remove(0),
        };
        let (level, depth) = (old.level(), old.depth());
        self.write_node(block, &New { level, depth, low, leftmost, next, entries: &moved });
        if !m.mutant(mistakes::SPLIT_EARLY) {
            m.fence();
        }
        if middle == count || m.mutant(mistakes::KEEP_UPPER_HALF) {
            m.note(Note::Harmless(
                "late, it matters to other threads: \
                 `a_node_is_locked_until_its_change_is_durable`",
            ));
            recipe::commit(m, &header.next, block);
        } else {
            let mut change = Preparation::new(m, &header.permutation);
            change.store(&header.next, block);
            change.commit(old.permutation(m).truncated(middle).0);
        }
        if !goes_right {
            self.insert_entry(old, rank, entry);
        }
    }

    /// Writes the only node of a layer to a new block, and flushes it.
    pub(super) fn write_root(&self, block: u64, depth: usize, entries: &[(Slice, u64)]) {
        let (low, next) = (Slice::FIRST, 0);
        self.write_node(block, &New { level: 0, depth, low, leftmost: 0, next, entries });
    }

    /// Writes a node to a new block, and flushes it.
    fn write_node(&self, block: u64, new: &New<'_>) {
        let m = self.medium();
        let node = m.at::<layout::Node>(block).expect("just allocated");
        let (header, count) = (&node.header, new.entries.len());
        let mut classes = Classes(0);
        for (position, &(slice, value)) in new.entries.iter().enumerate() {
            m.store(&node.entries[position].key, slice.bytes);
            m.store(&node.entries[position].value, value);
            classes = classes.with(position, slice.class);
        }
        m.store(&header.lock, Lock::fresh(self.memory.generation).0);
        m.store(&header.meta, Meta::new(new.level, new.depth, new.low).0);
        m.store(&header.permutation, Permutation::identity(count).0);
        m.store(&header.classes, classes.0);
        m.store(&header.next, new.next);
        m.store(&header.leftmost, new.leftmost);
        m.store(&header.low, new.low.bytes);
        m.flush(header);
        if count > 0 {
            m.flush(&node.entries[..count]);
        }
    }

    /// Makes the level above refer to the node at an offset, in the layer at this depth in which
    /// `key` is, and the levels above that to the nodes that are split for it. Does nothing if that
    /// is so already, or if there is no space: the tree is complete without.
    pub(super) fn add_to_level_above(
        &self,
        key: &[u8],
        depth: usize,
        mut offset: u64,
    ) -> Result<()> {
        loop {
            let node = self.node(offset, None, depth)?;
            let low = node.low(self.medium());
            let root = self.layer_of(key, depth)?;
            // The first node of a level needs no entry.
            if low == Slice::FIRST {
                return Ok(());
            }
            if root.level() <= node.level() {
                if self.grow(key, &root)? {
                    continue;
                }
                return Ok(());
            }
            let target = Target::of_slice(low, depth);
            match self.add_child(root, &target, &node)? {
                Some(split) => offset = split,
                None => return Ok(()),
            }
        }
    }

    /// Inserts an entry for a node into the level above it, unless there is one. Returns the offset
    /// of a node that was split off, which the next level has to be told.
    fn add_child(
        &self,
        root: NodeRef<'_>,
        target: &Target<'_>,
        child: &NodeRef<'_>,
    ) -> Result<Option<u64>> {
        let m = self.medium();
        let above = self.descend(root, target, child.level() + 1)?.node;
        let (locked, place) = self.lock(above, target)?;
        let above = locked.node;
        let work = || {
            // Another thread was faster.
            if place.child == child.offset {
                return Ok((None, false));
            }
            let mut blocks = Fresh::new(&self.memory.pool);
            let full = above.permutation(m).is_full().then(|| self.contents(&above)).transpose()?;
            let half =
                full.is_some().then(|| blocks.allocate_fixed(size_of::<layout::Node>() as u64));
            let half = match half.transpose() {
                Err(error) if error.is_no_space() => return Ok((None, false)),
                half => half?,
            };
            blocks.keep();
            let entry = (target.slice, child.offset);
            m.note(Note::Harmless(
                "not durable, it only costs the level: `a_root_that_was_split_gets_others_above`",
            ));
            match full.zip(half) {
                None => self.insert_entry(&above, place.rank, entry),
                Some((full, half)) => self.split(&above, full, place.rank, entry, half),
            }
            Ok((half, true))
        };
        let worked = work();
        locked.end(m, worked)
    }

    /// Puts a new root above the root of the layer in which `key` is, if it was split and is still
    /// the root. Returns `false` if there is no space.
    pub(super) fn grow(&self, key: &[u8], root: &NodeRef<'_>) -> Result<bool> {
        let m = self.medium();
        let locked = self.lock_node(*root)?;
        let grown = self.grow_locked(key, root);
        match locked.end(m, grown.map(|()| ((), false))) {
            Err(error) if error.is_no_space() => Ok(false),
            grown => grown.map(|()| true),
        }
    }

    /// Does the same under the lock of the root. That of the node which refers to the layer is
    /// waited for only with this one, so no two threads wait for each other.
    fn grow_locked(&self, key: &[u8], root: &NodeRef<'_>) -> Result<()> {
        let mut blocks = Fresh::new(&self.memory.pool);
        let block = blocks.allocate_fixed(size_of::<layout::Node>() as u64)?;
        let Some(depth) = root.depth().checked_sub(1) else {
            let cell = &self.root_block()?.tree;
            // Otherwise another thread was faster.
            if self.medium().load(cell) == root.offset {
                self.put_above(root, block, cell, block)?;
                blocks.keep();
            }
            return Ok(());
        };
        let target = Target::new(key, depth);
        let end = self.descend(self.layer_of(key, depth)?, &target, 0)?;
        let (locked, place) = self.lock(end.node, &target)?;
        let grown = match place.found {
            Some((position, word)) if word == Below::Layer(root.offset).word() => {
                let cell = &locked.node.node.entries[position].value;
                self.put_above(root, block, cell, Below::Layer(block).word())
                    .inspect(|()| blocks.keep())
                    .map(|()| ((), true))
            }
            _ => Ok(((), false)),
        };
        locked.end(self.medium(), grown)
    }

    /// Writes a new root, with a former one and the node to the right of it, to `block`, and stores
    /// `word`, which refers to it, in `cell`.
    fn put_above(&self, root: &NodeRef<'_>, block: u64, cell: &PmU64, word: u64) -> Result<()> {
        let m = self.medium();
        let next = m.load(&root.header().next);
        let right = self.node_as_it_is(next, Some(root.level()), root.depth())?;
        let level = root.level().checked_add(1);
        let level = level.ok_or_else(|| root.damaged("a tree is too high"))?;
        let entries = &[(right.low(m), right.offset)];
        let (depth, low, leftmost) = (root.depth(), Slice::FIRST, root.offset);
        self.write_node(block, &New { level, depth, low, leftmost, next: 0, entries });
        m.fence();
        m.note(Note::Harmless(
            "without, a crash brings back the former root, which leads everywhere more slowly: \
             `a_root_that_was_split_gets_others_above`",
        ));
        recipe::commit(m, cell, word);
        Ok(())
    }

    /// Repairs a node that an earlier process used: makes durable what that has stored, and
    /// completes a split.
    pub(super) fn repair(&self, node: &NodeRef<'_>) {
        let m = self.medium();
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(node.node);
        if !m.mutant(mistakes::LEAVE_SPLIT) {
            self.end_before_next(node);
        }
    }

    /// Completes a split: removes the entries that the next node has too.
    fn end_before_next(&self, node: &NodeRef<'_>) {
        let m = self.medium();
        let next = m.load(&node.header().next);
        // If it is damaged, the search that goes there returns that.
        let Ok(next) = self.node_as_it_is(next, Some(node.level()), node.depth()) else { return };
        let Ok(Contents { entries, .. }) = self.contents(node) else { return };
        let low = next.low(m);
        let kept = entries.partition_point(|&(slice, _)| slice < low);
        if kept < entries.len() {
            let order = node.permutation(m).truncated(kept);
            m.note(Note::Harmless(
                "late, the next process does it again: `a_split_is_completed_after_a_crash`",
            ));
            recipe::commit(m, &node.header().permutation, order.0);
        }
    }
}
