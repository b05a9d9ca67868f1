//! Writing the contents of a node anew, and splitting it.
//!
//! None of this is needed for the change that caused it, and any of it can be done by any thread
//! later. So if there is no space, or another thread was faster, it is left undone.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use evermap_index::fresh::Fresh;
use evermap_index::ordered::leaf::LeafRef;
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, PmU64, Result};

use super::access::Node;
use super::layout::{INTENT_BYTES, Link, RECORD_HEADER};
use super::node::{BaseRef, Bounds, Entry, base_bytes};
use super::table::LOST_IDS;
use super::{BwTree, mistakes};

/// What is to be done in the structure: something at a level, for the node with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Write the node anew, and complete the merge of a child.
    Consolidate(u8, u64),
    /// Tell the level above of the node, which was split off.
    Post(u8, u64),
    /// Merge the node into its left neighbour.
    Merge(u8, u64),
}

/// More than one change of structure can cause, unless it is caused by damage.
const WORK_MAX: usize = 256;

/// If the keys of a leaf node have this many bits in common before their heads end up, other heads
/// are chosen.
const MANY_BITS: u64 = 6;

/// The bytes of a record that are prefetched: all of the leaf of a key of eight bytes.
const KNOWN_BYTES: u64 = 32;

/// The contents of a node.
pub(super) struct Contents {
    /// In the order of their keys, which differ.
    pub(super) entries: Vec<Entry>,
    /// The records that were deltas.
    inserted: Vec<u64>,
    /// `true` if there were deltas whose keys are not between the bounds: they were left out.
    pub(super) has_others: bool,
    /// Records that have been removed, and for whose keys there are newer ones.
    gone: Vec<u64>,
}

/// A node that is being split off: no other node refers to it yet.
pub(super) struct NewNode<'m> {
    pub(super) id: u64,
    pub(super) cell: &'m PmU64,
    pub(super) word: Link,
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Does what is to be done, and what follows from it. Returns `false` if not all of it was
    /// done. The next change that comes there tries again, and if there is damage, reports it.
    pub(super) fn work(&self, mut todo: Vec<Work>, guard: &Guard<'_>) -> bool {
        let mut done = true;
        for _ in 0..WORK_MAX {
            let Some(next) = todo.pop() else { return done };
            let result = match (self.knows_ids(), next) {
                (Ok(true), Work::Consolidate(level, id)) => {
                    self.consolidate(level, id, guard, &mut todo).map(|_| ())
                }
                (Ok(true), Work::Post(level, id)) => self.post(level, id, &mut todo),
                (Ok(true), Work::Merge(level, id)) => self.merge(level, id, guard, &mut todo),
                (Ok(false), _) => return false,
                (Err(error), _) => Err(error),
            };
            done &= result.is_ok();
        }
        false
    }

    /// Returns the contents of base nodes that are next to each other, with those of deltas in
    /// front of some nodes, the newest first, as entries of a node with these bounds.
    pub(super) fn gather<'n, 'm: 'n>(
        &'m self,
        bases: impl IntoIterator<Item = &'n BaseRef<'m>>,
        without: Option<u64>,
        nodes: impl IntoIterator<Item = &'n Node<'m>>,
        bounds: &Bounds,
    ) -> Result<Contents> {
        let m = self.medium();
        let mut entries = Vec::with_capacity(ITEMS + Self::chain(0) as usize);
        for base in bases {
            let first = entries.len();
            entries.extend(base.entries(m).filter(|entry| Some(entry.child) != without));
            if base.level == 0 {
                let numbered = (1..).zip(&mut entries[first..]);
                numbered.for_each(|(number, entry)| entry.child = number);
            }
            if base.level == 0 && base.skip != bounds.skip {
                self.set_heads(&mut entries[first..], bounds)?;
            }
        }
        let nodes = nodes.into_iter().inspect(|node| {
            let depth = node.word.depth() as usize;
            let known = (0..depth).map(|number| node.base.record_of_delta(m, number));
            known.for_each(|at| m.prefetch_bytes(at.wrapping_add(RECORD_HEADER), KNOWN_BYTES));
        });
        let mut has_others = false;
        let (mut inserted, mut gone) = (Vec::with_capacity(Self::chain(0) as usize), Vec::new());
        let mut inserts = Vec::with_capacity(Self::chain(0) as usize);
        for node in nodes {
            for insert in self.inserts(node) {
                let (at, leaf) = insert?;
                if !bounds.contain(m, &leaf) {
                    has_others = true;
                    continue;
                }
                let (head, child) = match node.level() {
                    0 => (bounds.head_of(m, &leaf), 0),
                    _ => (leaf.prefix(m), leaf.word(m)),
                };
                inserted.push(at);
                inserts.push((Entry { head, at, child, base: 0 }, leaf));
            }
        }
        let inserts = self.sort_inserts(inserts, &mut gone)?;
        let entries = self.merge_inserts(entries, &inserts, &mut gone)?;
        Ok(Contents { entries, inserted, has_others, gone })
    }

    /// Puts deltas, the newest of which is first, into the order of their keys. Adds the records to
    /// `gone` for whose keys there are newer ones.
    fn sort_inserts<'m>(
        &'m self,
        inserts: Vec<(Entry, LeafRef<'m>)>,
        gone: &mut Vec<u64>,
    ) -> Result<Vec<(Entry, LeafRef<'m>)>> {
        let mut sorted: Vec<(Entry, LeafRef<'_>)> = Vec::with_capacity(inserts.len());
        for (entry, leaf) in inserts {
            let (position, is_present) =
                find(&sorted, |(other, _)| self.compare_entries(other, &entry, &leaf))?;
            if is_present {
                gone.push(entry.at);
            } else {
                sorted.insert(position, (entry, leaf));
            }
        }
        Ok(sorted)
    }

    /// Merges the entries of deltas, which are in order, into those of base nodes. Adds the records
    /// of the latter for whose keys there are deltas to `gone`.
    fn merge_inserts(
        &self,
        entries: Vec<Entry>,
        inserts: &[(Entry, LeafRef<'_>)],
        gone: &mut Vec<u64>,
    ) -> Result<Vec<Entry>> {
        if inserts.is_empty() {
            return Ok(entries);
        }
        let (mut left, mut merged) =
            (&entries[..], Vec::with_capacity(entries.len() + inserts.len()));
        for (entry, leaf) in inserts {
            let (position, is_present) =
                find(left, |other| self.compare_entries(other, entry, leaf))?;
            merged.extend_from_slice(&left[..position]);
            merged.push(*entry);
            left = &left[position..];
            if is_present {
                gone.push(left[0].at);
                left = &left[1..];
            }
        }
        merged.extend_from_slice(left);
        Ok(merged)
    }

    /// Makes the heads of entries those of a leaf node with these bounds.
    fn set_heads(&self, entries: &mut [Entry], bounds: &Bounds) -> Result<()> {
        let m = self.medium();
        entries.iter().for_each(|entry| m.prefetch(entry.at));
        for entry in entries {
            entry.head = bounds.head_of(m, &self.record(entry.at)?);
        }
        Ok(())
    }

    /// Chooses which bits of the keys of a leaf node are their heads, if others tell them apart
    /// better than those that they have.
    fn choose_heads(&self, entries: &mut [Entry], bounds: &mut Bounds) -> Result<()> {
        let common = bounds.common_bits();
        let are_equal = || entries.windows(2).any(|pair| pair[0].head == pair[1].head);
        if common >= bounds.skip + MANY_BITS || common > bounds.skip && are_equal() {
            bounds.skip = common;
            self.set_heads(entries, bounds)?;
        }
        Ok(())
    }

    /// Returns the position of the first entry of a leaf node whose key is not before `key`, and
    /// whether it is that key. `head` is that of the key.
    pub(super) fn position(
        &self,
        entries: &[Entry],
        head: u64,
        key: &[u8],
    ) -> Result<(usize, bool)> {
        find(entries, |entry| match entry.head.cmp(&head) {
            Order::Equal => self.compare(entry, key),
            order => Ok(order),
        })
    }

    /// Compares the keys of two entries, of which the second one has a record.
    fn compare_entries(&self, one: &Entry, other: &Entry, leaf: &LeafRef<'_>) -> Result<Order> {
        Ok(match one.head.cmp(&other.head) {
            Order::Equal if one.at == 0 => 0.cmp(&leaf.key_len()),
            Order::Equal => self.record(one.at)?.compare_leaf(self.medium(), leaf),
            order => order,
        })
    }

    /// Writes the contents of a node to a new base node, or to two if there are too many. Also
    /// takes over those of the right neighbour if that is being merged into the node, and leaves
    /// out a child that was merged. Returns `false` if that was not possible now.
    pub(super) fn consolidate(
        &self,
        level: u8,
        id: u64,
        guard: &Guard<'_>,
        todo: &mut Vec<Work>,
    ) -> Result<bool> {
        self.consolidate_with(level, id, false, guard, todo)
    }

    /// Does so, with space for copies if `wants_copies` or if there was some before.
    pub(super) fn consolidate_with(
        &self,
        level: u8,
        id: u64,
        wants_copies: bool,
        guard: &Guard<'_>,
        todo: &mut Vec<Work>,
    ) -> Result<bool> {
        let m = self.medium();
        let node = self.node(id, Some(level))?;
        // Its neighbour takes it over.
        if node.is_frozen() {
            return Ok(false);
        }
        let merged = match node.intent {
            Some((_, child)) if !self.complete(&node, child, guard, todo)? => return Ok(false),
            Some((_, child)) => Some(child),
            None => None,
        };
        self.copies_of(&node.base).inspect(|copies| copies.prefetch(m, 0..node.base.len()));
        let frozen = self.frozen_sibling(&node)?;
        let nodes = || std::iter::once(&node).chain(&frozen);
        let counted: u64 = nodes().map(|node| node.base.removed(m)).sum();
        let last = frozen.as_ref().unwrap_or(&node);
        let mut bounds = Bounds { low: node.base.low(m), ..last.base.bounds(m) };
        if level == 0 && frozen.is_some() {
            bounds.skip = bounds.common_bits();
        }
        let bases = nodes().map(|node| &node.base);
        let mut contents = self.gather(bases, merged, nodes(), &bounds)?;
        if contents.has_others {
            let what = "a node of a tree has keys that belong into another one";
            return Err(Error::damaged(node.base.offset, what));
        }
        if level == 0 {
            self.drop_removed(&mut contents, counted > 0)?;
        }
        // Otherwise the numbers of entries are those of two base nodes.
        let carries = level == 0 && frozen.is_none();
        let has_copies = wants_copies || nodes().any(|node| node.base.has_copies);
        let replaced = self.replace(&node, (bounds, has_copies), &mut contents.entries, carries)?;
        let Some((block, new)) = replaced else { return Ok(false) };
        self.retire_parts(nodes(), guard);
        contents.gone.iter().for_each(|&at| self.retire_record(at, guard));
        if let Some(child) = merged {
            self.retire_child(&node, child, guard);
        }
        if frozen.is_some() {
            self.events.merges.fetch_add(1, Ordering::Relaxed);
        }
        // Keys may have been removed while the contents were copied.
        let missed = nodes().map(|node| node.base.removed(m)).sum::<u64>().saturating_sub(counted);
        if missed > 0 {
            BaseRef::at(m, block, Some(level))?.add_removed(m, missed);
        }
        match new {
            Some(new) => todo.push(Work::Post(level, new)),
            None if Self::is_small(level, contents.entries.len()) => {
                todo.push(Work::Merge(level, id));
            }
            None => {}
        }
        self.refill_reserve()?;
        Ok(true)
    }

    /// Takes the entries out whose keys were removed: of those that were deltas, or of `all`.
    fn drop_removed(&self, contents: &mut Contents, all: bool) -> Result<()> {
        let m = self.medium();
        let is_removed = |at: u64| self.record(at).map(|leaf| leaf.state(m).is_removed());
        let mut removed = Vec::new();
        if all {
            let records = || contents.entries.iter().map(|entry| entry.at);
            records().for_each(|at| m.prefetch(at));
            for at in records() {
                removed.extend(is_removed(at)?.then_some(at));
            }
        } else {
            for &at in &contents.inserted {
                // Those for whose keys there are newer ones are gone in any case.
                removed.extend((is_removed(at)? && !contents.gone.contains(&at)).then_some(at));
            }
        }
        if !removed.is_empty() {
            contents.entries.retain(|entry| !removed.contains(&entry.at));
            contents.gone.append(&mut removed);
        }
        Ok(())
    }

    /// Replaces a node by a base node with these entries, or by two. Returns the offset of the
    /// first one and the id of the second, or `None` if another thread was faster. `carries` says
    /// whether copies are taken over from the base node that is replaced.
    fn replace(
        &self,
        node: &Node<'_>,
        (mut bounds, has_copies): (Bounds, bool),
        entries: &mut [Entry],
        carries: bool,
    ) -> Result<Option<(u64, Option<u64>)>> {
        let (m, level) = (self.medium(), node.level());
        let mut blocks = Fresh::new(&self.memory.pool);
        let (mut left, mut new) = (entries, None);
        let (mut right, mut split_at) = (None, 0);
        let (mut copying, old) = (Vec::with_capacity(2), carries.then_some(&node.base));
        if left.len() > Self::capacity(level) {
            let half;
            (left, half) = left.split_at_mut(left.len() / 2);
            right = Some(half);
            let right = right.as_deref_mut().expect("just made");
            let low = self.separator(level, left, right)?;
            let mut beyond = Bounds { low: low.clone(), ..bounds.clone() };
            if level == 0 {
                self.choose_heads(right, &mut beyond)?;
            }
            let split_off = self.split_off(level, (&beyond, has_copies), right, &mut blocks)?;
            split_at = split_off.word.offset();
            bounds = Bounds { high: low, sibling: split_off.id, ..bounds };
            new = Some(split_off);
        }
        let chosen = if level == 0 { self.choose_heads(left, &mut bounds) } else { Ok(()) };
        let space = chosen
            .and_then(|()| self.space_for(level, left.len(), (&bounds, has_copies), &mut blocks));
        let (block, has_copies) = match space {
            Ok(space) => space,
            Err(error) => {
                new.iter().for_each(|new| self.discard(new));
                return Err(error);
            }
        };
        BaseRef::write(m, block, level, (&bounds, has_copies), left);
        copying.extend(self.begin_copying(block, left, old));
        if let Some(right) = &right {
            copying.extend(self.begin_copying(split_at, right, old));
        }
        m.fence();
        let word = Link::base(block).0;
        m.note(Note::Harmless(
            "late, it matters where blocks of the old node are used soon: \
             `every_word_is_durable_when_a_change_returns`",
        ));
        if recipe::exchange_marked(m, node.cell, node.word.0, word, Link::MARK).is_err() {
            new.iter().for_each(|new| self.discard(new));
            return Ok(None);
        }
        blocks.keep();
        copying.into_iter().for_each(|copying| self.end_copying(node, copying));
        if let Some(new) = &new {
            self.clear_new(new.cell, new.word);
            self.events.splits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some((block, new.map(|new| new.id))))
    }

    /// Returns the least key of a node that is to begin between two halves. In leaf nodes that is
    /// the shortest one there is.
    fn separator(&self, level: u8, left: &[Entry], right: &[Entry]) -> Result<Vec<u8>> {
        let first = right.first().map(|entry| self.key_of(entry)).transpose()?.unwrap_or_default();
        match left.last() {
            Some(last) if level == 0 => {
                let common = self.record(last.at)?.common(self.medium(), &first);
                Ok(first[..first.len().min(common + 1)].to_vec())
            }
            _ => Ok(first),
        }
    }

    /// Writes a node to which no other one refers yet.
    fn split_off(
        &self,
        level: u8,
        (bounds, has_copies): (&Bounds, bool),
        entries: &[Entry],
        blocks: &mut Fresh<'_, M>,
    ) -> Result<NewNode<'_>> {
        let m = self.medium();
        let (block, has_copies) =
            self.space_for(level, entries.len(), (bounds, has_copies), blocks)?;
        m.note(Note::Harmless("late, it still comes before the fence: no node refers to it yet"));
        BaseRef::write(m, block, level, (bounds, has_copies), entries);
        self.new_node(block)
    }

    /// Gives a base node that is flushed an id.
    pub(super) fn new_node(&self, block: u64) -> Result<NewNode<'_>> {
        let (m, id) = (self.medium(), self.new_id()?);
        let (cell, word) = (self.cell(id)?, Link(Link::base(block).0 | Link::NEW));
        m.store(cell, word.0);
        if !m.mutant(mistakes::SPLIT_EARLY) {
            m.flush(cell);
        }
        Ok(NewNode { id, cell, word })
    }

    /// Gives back the id of a node to which no other one will refer.
    pub(super) fn discard(&self, new: &NewNode<'_>) {
        let m = self.medium();
        m.store(new.cell, 0);
        m.note(Note::Harmless(LOST_IDS));
        m.flush(new.cell);
        self.discard_id(new.id);
    }

    /// Retires the base nodes of some nodes that were replaced, and their intents. Records stay.
    fn retire_parts<'n, 'm: 'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n Node<'m>>,
        guard: &Guard<'_>,
    ) {
        for node in nodes {
            self.memory.pool.retire(node.base.offset, node.base.bytes(), guard);
            if let Some((intent, _)) = node.intent {
                self.memory.pool.retire(intent, INTENT_BYTES, guard);
            }
        }
    }

    /// Retires what only belonged to a child that was merged: its record in the node above, and its
    /// id.
    fn retire_child(&self, above: &Node<'_>, child: u64, guard: &Guard<'_>) {
        let entry = above.base.entries(self.medium()).find(|entry| entry.child == child);
        entry.into_iter().for_each(|entry| self.retire_record(entry.at, guard));
        self.retire_id(child);
    }

    /// Retires a record that no node refers to any more.
    fn retire_record(&self, at: u64, guard: &Guard<'_>) {
        if let Ok(leaf) = self.record(at) {
            self.memory.pool.retire(at, RECORD_HEADER + leaf.bytes(), guard);
        }
    }

    /// Allocates the block of a base node with this number of entries. Also returns whether it has
    /// space for copies: not if there is only space without.
    fn space_for(
        &self,
        level: u8,
        entries: usize,
        (bounds, has_copies): (&Bounds, bool),
        blocks: &mut Fresh<'_, M>,
    ) -> Result<(u64, bool)> {
        if has_copies {
            let bytes = base_bytes(level, entries, bounds, true);
            if let Ok(block) = blocks.allocate_fixed(bytes.max(Self::NODE_BYTES)) {
                return Ok((block, true));
            }
        }
        let bytes = base_bytes(level, entries, bounds, false);
        Ok((self.node_block(bytes, blocks)?, false))
    }

    /// Allocates the block of a base node. If there is no space, takes the reserve.
    pub(super) fn node_block(&self, bytes: u64, blocks: &mut Fresh<'_, M>) -> Result<u64> {
        let usual = Self::NODE_BYTES;
        let allocated = blocks.allocate_fixed(bytes.max(usual));
        match &allocated {
            Err(error) if error.is_no_space() && bytes <= usual => match self.take_reserve()? {
                Some(block) => Ok(blocks.adopt(block)),
                None => allocated,
            },
            _ => allocated,
        }
    }

    /// Takes the block that is kept in reserve.
    fn take_reserve(&self) -> Result<Option<u64>> {
        // A sweep that runs now would not come to the block where it is used.
        if !self.memory.pool.is_swept() {
            return Ok(None);
        }
        let (m, cell) = (self.medium(), &self.root_block()?.reserve);
        let block = m.load(cell);
        let bytes = Some(self.memory.pool.block_size(Self::NODE_BYTES));
        if block == 0
            || self.memory.pool.block_size_at(block) != bytes
            || m.cas(cell, block, 0).is_err()
        {
            return Ok(None);
        }
        // Before the block is part of the tree.
        m.persist(cell);
        Ok(Some(block))
    }

    /// Keeps a block in reserve again, if there is space.
    fn refill_reserve(&self) -> Result<()> {
        let (m, cell) = (self.medium(), &self.root_block()?.reserve);
        if m.load(cell) != 0 {
            return Ok(());
        }
        let Ok(block) = self.memory.pool.allocate_fixed(Self::NODE_BYTES) else { return Ok(()) };
        match m.cas(cell, 0, block) {
            Ok(_) => m.persist(cell),
            Err(_) => self.memory.pool.free_unpublished(block),
        }
        Ok(())
    }
}

/// Returns the position of the first entry that is not less, and whether it is equal.
fn find<E>(entries: &[E], mut compare: impl FnMut(&E) -> Result<Order>) -> Result<(usize, bool)> {
    let (mut low, mut high, mut is_present) = (0, entries.len(), false);
    while low < high {
        let middle = low.midpoint(high);
        match compare(&entries[middle])? {
            Order::Less => low = middle + 1,
            order => {
                is_present = order.is_eq();
                high = middle;
            }
        }
    }
    Ok((low, is_present))
}
