//! What is above the leaves, in ordinary memory: their parents, and the inner nodes.
//!
//! Inner nodes are in one array, level by level, and have keys only: child `j` of node `i` has
//! number `i * fanout + 1 + j`. Numbers behind those of the inner nodes are those of the parents of
//! leaves, which are in another array. So all levels but the lowest have space for all nodes that
//! there can be.
//!
//! ```text
//! inner nodes   0: [ k1 k2 ]
//!               1: [ k1 k2 ]   2: [ k1 k2 ]   3: [ k1 k2 ]
//! parents       4 5 6          7 8 9          10 11 .
//! ```
//!
//! Some parents are spare: they have no leaves. The key that separates a spare parent from the one
//! before it is that of the next parent with leaves, so no search ends at a spare one. If the
//! parent beside it is full, it takes half of the leaves; that changes one key.
//!
//! One thread at a time changes these arrays. Searches take no lock: they begin again if the
//! version has changed meanwhile.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use evermap_pm::{Error, Medium, Result};

use super::form::Form;
use super::key::Brief;
use super::layout::Rest;
use crate::search::Search;

/// The words of a key in an inner node.
const KEY: usize = 3;
/// The words of an entry of a parent: the least key of a leaf, and its offset. The header of a
/// parent is as long.
const ENTRY: usize = KEY + 1;

/// The numbers of leaves and children in a node.
#[derive(Clone, Copy)]
struct Shape {
    parent: usize,
    fanout: usize,
    filled: usize,
    spares: bool,
}

/// All that is above the leaves.
pub(super) struct Upper {
    /// Odd while the arrays are being changed.
    version: AtomicU64,
    shape: Shape,
    /// The number of levels of inner nodes.
    height: u32,
    /// The number of inner nodes.
    nodes: usize,
    /// `fanout - 1` keys for each inner node.
    inner: Box<[AtomicU64]>,
    /// For each parent, a header and `parent` entries. The header has the number of entries and the
    /// [`Growth`].
    parents: Box<[AtomicU64]>,
    /// The number of parents, with the spare ones.
    slots: usize,
}

/// Where the entry of a leaf is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the parent among the parents.
    slot: usize,
    /// The number of the entry in it.
    at: usize,
}

/// A leaf and what separates it from the one before it.
pub(super) type LeafEntry = (Brief, u64);

/// Where and how much a parent grows.
#[derive(Clone, Copy, Default)]
struct Growth {
    /// The leaves that were added since the last rebuild, half of those before it, and so on.
    added: u64,
    /// The place behind the leaf that was split last, or 0.
    behind: usize,
    /// Whether that one was behind the one before it.
    ascends: bool,
}

impl Growth {
    /// Returns this after the leaf at place `at` was split. If keys ascend, that is the one that
    /// was added last; if they descend, it is the one that was split last itself.
    fn after_split_of(&self, at: usize) -> Self {
        Growth { added: self.added + 1, behind: at + 1, ascends: at >= self.behind }
    }
}

/// Where leaves are divided, and spare parents left.
struct Cut {
    /// The number of the leaf behind it.
    at: usize,
    growth: Growth,
}

/// A parent of a new array.
struct Planned {
    leaves: Range<usize>,
    growth: Growth,
    /// The number of spare parents behind it.
    spares: usize,
}

/// What there is above the leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Levels of inner nodes.
    pub height: u32,
    /// Inner nodes, whether or not they are used.
    pub inner_nodes: u64,
    /// Parents of leaves, with the spare ones.
    pub parents: u64,
    /// Parents that have leaves.
    pub used_parents: u64,
    /// Leaves.
    pub leaves: u64,
    /// Bytes of ordinary memory.
    pub bytes: u64,
}

fn array(words: usize) -> Box<[AtomicU64]> {
    std::iter::repeat_with(AtomicU64::default).take(words).collect()
}

impl Upper {
    /// Builds all that is above these leaves.
    pub(super) fn build<F: Form>(leaves: &[LeafEntry]) -> Self {
        let shape =
            Shape { parent: F::PARENT, fanout: F::FANOUT, filled: F::FILLED, spares: F::SPARES };
        Upper::fill(shape, leaves, &[])
    }

    /// Returns the parents of leaves that are divided at `cuts`, and the number of spare parents
    /// before the first of them. There are as many spare ones as necessary ones, in proportion to
    /// the growth.
    fn plan(shape: Shape, leaves: usize, cuts: &[Cut]) -> (usize, Vec<Planned>) {
        let all: u64 = cuts.iter().map(|cut| cut.growth.added).sum();
        let spares = (leaves / shape.filled).max(1) as u64;
        let (mut leading, mut plan, mut start) = (0, Vec::<Planned>::new(), 0);
        let mut descends = Growth::default();
        let end = Cut { at: leaves, growth: Growth::default() };
        for cut in cuts.iter().chain([&end]) {
            while start < cut.at.min(leaves) {
                let end = cut.at.min(leaves).min(start + shape.filled);
                let growth = std::mem::take(&mut descends);
                plan.push(Planned { leaves: start..end, growth, spares: 0 });
                start = end;
            }
            let share = (spares * cut.growth.added / all.max(1)) as usize;
            let added = cut.growth.added / 2;
            if !cut.growth.ascends {
                descends = Growth { added, behind: 1, ascends: false };
            }
            let Some(last) = plan.last_mut() else {
                leading += share;
                continue;
            };
            last.spares += share;
            if cut.growth.ascends {
                last.growth = Growth { added, behind: last.leaves.len() - 1, ascends: true };
            }
        }
        (leading, plan)
    }

    /// Builds the same for other leaves, with spare parents at these places.
    fn fill(shape: Shape, leaves: &[LeafEntry], cuts: &[Cut]) -> Self {
        let (leading, plan) = Upper::plan(shape, leaves.len(), cuts);
        let slots = leading + plan.iter().map(|parent| 1 + parent.spares).sum::<usize>();
        let mut height = 0;
        while shape.fanout.pow(height) < slots {
            height += 1;
        }
        let nodes = (shape.fanout.pow(height) - 1) / (shape.fanout - 1);
        let upper = Upper {
            version: AtomicU64::new(0),
            shape,
            height,
            nodes,
            inner: array(nodes * (shape.fanout - 1) * KEY),
            parents: array(slots * (1 + shape.parent) * ENTRY),
            slots,
        };
        let mut slot = leading;
        for Planned { leaves: places, growth, spares } in plan {
            upper.set_count(slot, places.len());
            upper.set_growth(slot, growth);
            for (at, leaf) in leaves[places].iter().enumerate() {
                upper.set_entry(Place { slot, at }, *leaf);
            }
            slot += 1 + spares;
        }
        upper.separate_all();
        upper
    }

    /// Stores all keys of the inner nodes.
    fn separate_all(&self) {
        let all = self.inner.len() / KEY;
        (0..all).for_each(|key| set_key(&self.inner, key * KEY, Brief::END));
        let mut next = Brief::END;
        for slot in (1..self.slots).rev() {
            if self.count(slot) > 0 {
                next = self.entry(Place { slot, at: 0 }).0;
            }
            self.separate(slot, next);
        }
    }

    /// Stores the key that separates a parent from the one before it.
    fn separate(&self, slot: usize, low: Brief) {
        let fanout = self.shape.fanout;
        let (mut node, mut level_start) = (slot, self.nodes);
        // The first child of a node has no key there, but the node has one above.
        while level_start > 0 {
            let child = node % fanout;
            node /= fanout;
            // The level above ends where this one starts, and is a `fanout`th of it.
            level_start = (level_start - 1) / fanout;
            if child > 0 {
                let key = (level_start + node) * (fanout - 1) + child - 1;
                return set_key(&self.inner, key * KEY, low);
            }
        }
    }

    /// Returns what `read` reads, or `None` if that was changed meanwhile.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Self) -> T) -> Option<T> {
        let before = self.version.load(Acquire);
        if before % 2 == 1 {
            return None;
        }
        let result = read(self);
        // All loads of `read` are acquire ones, so they come before this one; and if one of them
        // has seen a store of a change, this one sees the version of that.
        (self.version.load(Acquire) == before).then_some(result)
    }

    /// Changes the arrays. No other thread does so at the same time.
    pub(super) fn write<T>(&self, write: impl FnOnce(&Self) -> T) -> T {
        let before = self.version.load(Acquire);
        // All stores are release ones, so this one comes before those of `write`.
        self.version.store(before + 1, Release);
        let result = write(self);
        self.version.store(before + 2, Release);
        result
    }

    fn header(&self, slot: usize) -> usize {
        slot * (1 + self.shape.parent) * ENTRY
    }

    /// Returns the number of leaves of a parent.
    fn count(&self, slot: usize) -> usize {
        (self.parents[self.header(slot)].load(Acquire) as usize).min(self.shape.parent)
    }

    fn set_count(&self, slot: usize, count: usize) {
        self.parents[self.header(slot)].store(count as u64, Release);
    }

    fn growth(&self, slot: usize) -> Growth {
        let header = self.header(slot);
        let load = |word: usize| self.parents[header + word].load(Acquire);
        Growth { added: load(1), behind: load(2) as usize, ascends: load(3) != 0 }
    }

    fn set_growth(&self, slot: usize, growth: Growth) {
        let header = self.header(slot);
        self.parents[header + 1].store(growth.added, Release);
        self.parents[header + 2].store(growth.behind as u64, Release);
        self.parents[header + 3].store(u64::from(growth.ascends), Release);
    }

    fn word_of(&self, place: Place) -> usize {
        self.header(place.slot) + (1 + place.at) * ENTRY
    }

    fn entry(&self, place: Place) -> LeafEntry {
        let word = self.word_of(place);
        (key_at(&self.parents, word), self.parents[word + KEY].load(Acquire))
    }

    fn set_entry(&self, place: Place, (low, leaf): LeafEntry) {
        set_key(&self.parents, self.word_of(place), low);
        self.set_leaf(place, leaf);
    }

    /// Replaces a leaf by one with the same least key.
    pub(super) fn set_leaf(&self, place: Place, leaf: u64) {
        self.parents[self.word_of(place) + KEY].store(leaf, Release);
    }

    /// Returns the offset of the leaf of an entry.
    pub(super) fn leaf(&self, place: Place) -> u64 {
        self.parents[self.word_of(place) + KEY].load(Acquire)
    }

    /// Returns the leaf behind this one that has the same parent.
    pub(super) fn next_in_parent(&self, place: Place) -> Option<u64> {
        let next = Place { at: place.at + 1, ..place };
        (next.at < self.count(place.slot)).then(|| self.leaf(next))
    }

    /// Finds the entry of the leaf that a search leads to. O(log leaves).
    ///
    /// # Errors
    /// `Damaged`. Also if the arrays are changed meanwhile.
    #[inline]
    pub(super) fn find<M: Medium>(&self, m: &M, search: &Search<'_>) -> Result<Place> {
        let fanout = self.shape.fanout;
        let mut node = 0;
        for _ in 0..self.height {
            let keys = node * (fanout - 1) * KEY;
            let child = partition_point(fanout - 1, |at| {
                search.admits(m, &key_at(&self.inner, keys + at * KEY))
            })?;
            node = node * fanout + 1 + child;
        }
        let slot = node - self.nodes;
        let lost = || Error::damaged(0, "a search in a tree leads to no leaf");
        if slot >= self.slots {
            return Err(lost());
        }
        let entries = self.word_of(Place { slot, at: 0 });
        let admitted = partition_point(self.count(slot), |at| {
            search.admits(m, &key_at(&self.parents, entries + at * ENTRY))
        })?;
        Ok(Place { slot, at: admitted.checked_sub(1).ok_or_else(lost)? })
    }

    /// Finds the entry of this leaf, wherever it is. O(leaves).
    pub(super) fn find_leaf(&self, leaf: u64) -> Option<Place> {
        self.places().find(|&place| self.leaf(place) == leaf)
    }

    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let of = |slot| (0..self.count(slot)).map(move |at| Place { slot, at });
        (0..self.slots).flat_map(of)
    }

    /// Returns all leaves in order.
    pub(super) fn leaves(&self) -> impl Iterator<Item = LeafEntry> + '_ {
        self.places().map(|place| self.entry(place))
    }

    /// Removes the entry behind the one at `place`, which has the same parent.
    pub(super) fn remove_after(&self, place: Place) {
        let count = self.count(place.slot);
        for at in place.at + 2..count {
            let entry = self.entry(Place { at, ..place });
            self.set_entry(Place { at: at - 1, ..place }, entry);
        }
        self.set_count(place.slot, count.saturating_sub(1).max(1));
    }

    /// Returns `true` if a parent has no space for another leaf.
    pub(super) fn is_full(&self, place: Place) -> bool {
        self.count(place.slot) == self.shape.parent
    }

    /// Adds a leaf behind the one at `place`, whose parent is not full.
    pub(super) fn insert_after(&self, place: Place, leaf: LeafEntry) {
        let Place { slot, at } = place;
        let count = self.count(slot);
        for at in (at + 1..count).rev() {
            self.set_entry(Place { slot, at: at + 1 }, self.entry(Place { slot, at }));
        }
        self.set_entry(Place { slot, at: at + 1 }, leaf);
        self.set_count(slot, count + 1);
        self.set_growth(slot, self.growth(slot).after_split_of(at));
    }

    /// Returns a spare parent beside a full one, if there is any: that on the side to which the
    /// parent grows, if there is a choice.
    fn spare(&self, place: Place) -> Option<usize> {
        let slot = place.slot;
        let right = Some(slot + 1).filter(|&right| right < self.slots && self.count(right) == 0);
        let left = slot.checked_sub(1).filter(|&left| self.count(left) == 0);
        let ascends = self.growth(slot).after_split_of(place.at).ascends;
        if ascends { right.or(left) } else { left.or(right) }
    }

    /// Gives half of the leaves of a full parent to a spare one beside it. Returns `false` if there
    /// is none. `place` is where the next leaf will be added.
    pub(super) fn split(&self, place: Place) -> bool {
        let (Some(spare), slot) = (self.spare(place), place.slot) else { return false };
        let (all, half, growth) = (self.count(slot), self.shape.parent / 2, self.growth(slot));
        let moved = if spare > slot { half..all } else { 0..half };
        self.copy(slot, moved.clone(), spare);
        self.set_count(spare, moved.len());
        if spare < slot {
            self.copy(slot, half..all, slot);
        }
        self.set_count(slot, all - moved.len());
        let (lower, upper) = (spare.min(slot), spare.max(slot));
        self.separate(upper, self.entry(Place { slot: upper, at: 0 }).0);
        let (grown, other, before) =
            if place.at < half { (lower, upper, 0) } else { (upper, lower, half) };
        let behind = growth.behind.saturating_sub(before);
        self.set_growth(grown, Growth { behind, ..growth });
        self.set_growth(other, Growth::default());
        true
    }

    /// Copies entries to the beginning of a parent: another one, or the same.
    fn copy(&self, from: usize, entries: Range<usize>, to: usize) {
        for (at, entry) in entries.enumerate() {
            let entry = self.entry(Place { slot: from, at: entry });
            self.set_entry(Place { slot: to, at }, entry);
        }
    }

    /// Builds everything anew because the parent at `place` is full, where the next leaf will be
    /// added. O(leaves).
    pub(super) fn rebuilt(&self, place: Place) -> Self {
        let leaves: Vec<LeafEntry> = self.leaves().collect();
        let (mut cuts, mut before) = (Vec::new(), 0);
        for slot in (0..self.slots).filter(|_| self.shape.spares) {
            let (mut growth, count) = (self.growth(slot), self.count(slot));
            if slot == place.slot {
                growth = growth.after_split_of(place.at);
            }
            // The leaf to which keys ascend was added behind the one that was split last. That of
            // `place` will be.
            let is_added = slot != place.slot;
            let cut = match growth.ascends {
                true => growth.behind + usize::from(is_added),
                false => growth.behind.saturating_sub(1),
            };
            if growth.added > 0 {
                cuts.push(Cut { at: before + cut.min(count), growth });
            }
            before += count;
        }
        Upper::fill(self.shape, &leaves, &cuts)
    }

    /// Returns how much there is. O(parents).
    pub(super) fn size(&self) -> Size {
        let counts = (0..self.slots).map(|slot| self.count(slot) as u64);
        let words = self.inner.len() + self.parents.len();
        Size {
            height: self.height,
            inner_nodes: self.nodes as u64,
            parents: self.slots as u64,
            used_parents: counts.clone().filter(|&count| count > 0).count() as u64,
            leaves: counts.sum(),
            bytes: (size_of::<Self>() + words * size_of::<AtomicU64>()) as u64,
        }
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.inner.len() + self.parents.len()) * size_of::<AtomicU64>()
    }
}

#[inline]
fn key_at(words: &[AtomicU64], at: usize) -> Brief {
    let words = &words[at..at + KEY];
    let [first, second, rest] = [0, 1, 2].map(|word| words[word].load(Acquire));
    Brief { head: [first, second], rest: Rest(rest) }
}

fn set_key(words: &[AtomicU64], at: usize, key: Brief) {
    let [first, second] = key.head;
    for (word, value) in words[at..at + KEY].iter().zip([first, second, key.rest.0]) {
        word.store(value, Release);
    }
}

/// Returns the first number below `end` for which `admits` returns `false`, or `end`. `admits` is
/// `true` for a prefix of the numbers.
#[inline]
fn partition_point(end: usize, admits: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low.midpoint(high);
        if admits(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}
