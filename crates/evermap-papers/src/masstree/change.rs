//! Changing the binding of one key.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe::{self, Preparation};
use evermap_pm::{Guard, Medium, Result};

use super::access::{Locked, NodeRef, Place, Target};
use super::layout::{Below, Classes, Node, Slice};
use super::{Masstree, mistakes};

/// Decides what is done with a key, given its current word.
pub(super) type Decide<'f> = dyn FnMut(Option<u64>) -> Action + 'f;

/// Where the word of a key is.
pub(super) enum Found<'m> {
    /// In the entry of the key.
    Word(u64),
    /// In a leaf.
    Leaf(LeafRef<'m>),
}

impl Found<'_> {
    /// Returns the word of the key.
    #[inline(always)]
    pub(super) fn word<M: Medium>(&self, m: &M) -> u64 {
        match self {
            Found::Word(word) => *word,
            Found::Leaf(leaf) => leaf.word(m),
        }
    }
}

/// What has come of a change in one layer.
enum Done {
    /// The change is made. A node with this offset was split off for it.
    Here(Change, Option<u64>),
    /// The key belongs into the layer below, whose root node has this offset.
    Below(u64),
}

/// The result of work in a node, and whether the node was changed.
pub(super) type Worked<T> = Result<(T, bool)>;

impl<M: Medium> Masstree<M> {
    /// Finds a key. The caller has a guard.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<Found<'_>>> {
        let m = self.medium();
        let (mut root, mut depth) = (self.root_node()?, 0);
        loop {
            let target = Target::new(key, depth);
            let place = self.descend(root, &target, 0)?.place;
            match (place.below(target.slice), place.found) {
                (Some(Below::Layer(offset)), _) => {
                    depth += 1;
                    root = self.node(offset, None, depth)?;
                }
                (Some(Below::Leaf(offset)), _) => {
                    let leaf = LeafRef::at(m, offset)?;
                    return Ok(leaf.is_of(m, key).then_some(Found::Leaf(leaf)));
                }
                (None, found) => return Ok(found.map(|(_, word)| Found::Word(word))),
            }
        }
    }

    /// Carries out what `decide` returns for a key.
    pub(super) fn change_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Change> {
        let (mut root, mut depth) = (self.root_node()?, 0);
        loop {
            let target = Target::new(key, depth);
            let end = self.descend(root, &target, 0)?;
            if mode == MutateMode::ExistingOnly && end.place.found.is_none() {
                return Ok(Change::default());
            }
            let done = match end.place.below(target.slice) {
                Some(Below::Layer(offset)) => Done::Below(offset),
                _ => self.change_in(end.node, &target, mode, guard, decide)?,
            };
            let split = if let Done::Here(_, split) = done { split } else { None };
            if let Some(node) = split.or(end.passed) {
                // The change is complete without. If this fails, the next operation there reports
                // why.
                let _ = self.add_to_level_above(key, depth, node);
            }
            match done {
                Done::Here(change, _) => return Ok(change),
                Done::Below(offset) => {
                    depth += 1;
                    root = self.node(offset, None, depth)?;
                }
            }
        }
    }

    /// Carries out what `decide` returns for a key in a leaf node, or one to the right of it.
    fn change_in(
        &self,
        node: NodeRef<'_>,
        target: &Target<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut Decide<'_>,
    ) -> Result<Done> {
        let (locked, place) = self.lock(node, target)?;
        let worked = self.work(&locked, &place, target, mode, guard, decide);
        locked.end(self.medium(), worked)
    }

    /// Carries out what `decide` returns for a key in a node that this thread has locked.
    fn work(
        &self,
        Locked { node, .. }: &Locked<'_>,
        place: &Place,
        target: &Target<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut Decide<'_>,
    ) -> Worked<Done> {
        let m = self.medium();
        let changed = |(change, changed)| (Done::Here(change, None), changed);
        let found = match (place.below(target.slice), place.found) {
            // Another thread has made a layer in the meantime.
            (Some(Below::Layer(offset)), _) => return Ok((Done::Below(offset), false)),
            (Some(Below::Leaf(offset)), Some((position, _))) => {
                let leaf = LeafRef::at(m, offset)?;
                if !leaf.is_of(m, target.key) {
                    return match mode {
                        MutateMode::ExistingOnly => Ok(changed((Change::default(), false))),
                        MutateMode::MayInsert => {
                            let entry = &node.node.entries[position];
                            self.add_layer(entry, target, leaf, guard, decide).map(changed)
                        }
                    };
                }
                Found::Leaf(leaf)
            }
            (_, Some((_, word))) => Found::Word(word),
            // It was removed in the meantime.
            (_, None) if mode == MutateMode::ExistingOnly => {
                return Ok(changed((Change::default(), false)));
            }
            (_, None) => {
                let ((change, split), changed) = self.add(node, place.rank, target, decide)?;
                return Ok((Done::Here(change, split), changed));
            }
        };
        Ok(changed(self.change_found(node, place, &found, guard, decide)))
    }

    /// Binds an absent key, which gets an entry with this rank. Also returns the offset of a node
    /// that was split off.
    fn add(
        &self,
        node: &NodeRef<'_>,
        rank: usize,
        target: &Target<'_>,
        decide: &mut Decide<'_>,
    ) -> Worked<(Change, Option<u64>)> {
        let m = self.medium();
        let Target { key, slice, .. } = *target;
        let mut blocks = Fresh::new(&self.memory.pool);
        let leaf = slice.goes_on().then(|| blocks.allocate_fixed(leaf_bytes(key.len())));
        let leaf = leaf.transpose()?;
        let full = node.permutation(m).is_full().then(|| self.contents(node)).transpose()?;
        let half = full.is_some().then(|| blocks.allocate_fixed(size_of::<Node>() as u64));
        let half = half.transpose()?;
        let Action::Put(word) = decide(None) else {
            return Ok(((Change::default(), None), false));
        };
        blocks.keep();
        let value = leaf.map_or(word, |block| {
            LeafRef::write(m, block, key, word);
            Below::Leaf(block).word()
        });
        match full.zip(half) {
            None => self.insert_entry(node, rank, (slice, value)),
            Some((full, half)) => self.split(node, full, rank, (slice, value), half),
        }
        Ok(((Change { old: None, new: Some(word) }, half), true))
    }

    /// Inserts an entry with this rank into a node that this thread has locked, and that has room.
    /// What the entry refers to is flushed already.
    #[track_caller]
    pub(super) fn insert_entry(&self, node: &NodeRef<'_>, rank: usize, entry: (Slice, u64)) {
        let (m, header) = (self.medium(), node.header());
        let (slice, value) = entry;
        let order = node.permutation(m);
        let (free, inserted) = (order.free(), order.with_inserted(rank));
        let classes = Classes(m.load(&header.classes)).with(free, slice.class);
        let entry = &node.node.entries[free];
        if m.mutant(mistakes::COUNT_EARLY) {
            m.store(&entry.key, slice.bytes);
            m.store(&entry.value, value);
            m.store(&header.classes, classes.0);
            return recipe::commit(m, &header.permutation, inserted.0);
        }
        let mut change = Preparation::new(m, &header.permutation);
        change.store(&entry.key, slice.bytes);
        change.store(&entry.value, value);
        change.store(&header.classes, classes.0);
        change.commit(inserted.0);
    }

    /// Carries out what `decide` returns for a key that is present.
    fn change_found(
        &self,
        node: &NodeRef<'_>,
        place: &Place,
        found: &Found<'_>,
        guard: &Guard<'_>,
        decide: &mut Decide<'_>,
    ) -> (Change, bool) {
        let m = self.medium();
        let (position, _) = place.found.expect("it was found there");
        let old = found.word(m);
        let new = match decide(Some(old)) {
            Action::Keep => Some(old),
            Action::Put(word) => {
                match found {
                    Found::Word(_) => recipe::commit(m, &node.node.entries[position].value, word),
                    Found::Leaf(leaf) => leaf.put(m, word),
                }
                Some(word)
            }
            Action::Remove => {
                let order = node.permutation(m).without(place.rank);
                recipe::commit(m, &node.header().permutation, order.0);
                if let Found::Leaf(leaf) = found {
                    self.memory.pool.retire(leaf.offset, leaf.bytes(), guard);
                }
                None
            }
        };
        // A scan shows pairs of one moment, so it has to know.
        (Change { old: Some(old), new }, new != Some(old))
    }
}
