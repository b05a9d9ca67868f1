//! Changing the binding of one key.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_pm::{Guard, Medium, Result};

use super::access::{Locked, Place, Search};
use super::copies::WHOLE;
use super::{FastFair, Form};

impl<M: Medium, F: Form> FastFair<M, F> {
    /// Carries out what `decide` returns for a key.
    pub(super) fn change_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, search) = (self.medium(), Search::new(key));
        let end = self.descend(&search, 0)?;
        if mode == MutateMode::ExistingOnly && end.place.found.is_none() {
            return Ok(Change::default());
        }
        let (locked, place) = self.lock(end.node, &search)?;
        let (change, split) = match place.found {
            Some(leaf) => (self.change_leaf(locked, &place, leaf, guard, decide)?, None),
            // It was removed in the meantime.
            None if mode == MutateMode::ExistingOnly => {
                locked.release(m);
                return Ok(Change::default());
            }
            None => self.add(&search, locked, &place, decide)?,
        };
        if let Some(node) = split.or(end.passed) {
            // The change is complete without. If this fails, the next operation there reports why.
            let _ = self.add_to_level_above(node);
        }
        Ok(change)
    }

    /// Binds an absent key. Also returns the offset of a node that was split off.
    fn add(
        &self,
        search: &Search<'_>,
        locked: Locked<'_, F>,
        place: &Place,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(Change, Option<u64>)> {
        let (m, node) = (self.medium(), locked.node);
        let mut blocks = Fresh::new(&self.memory.pool);
        let mut allocate = || {
            let leaf = blocks.allocate_fixed(leaf_bytes(search.key.len()))?;
            let is_full = node.count(m) >= F::FULL;
            let space = is_full.then(|| self.space_for_split(&node, &mut blocks));
            Ok((leaf, space.transpose()?))
        };
        let (leaf, space) = match allocate() {
            Ok(allocated) => allocated,
            Err(error) => {
                locked.release(m);
                return Err(error);
            }
        };
        let Action::Put(word) = decide(None) else {
            locked.release(m);
            return Ok((Change::default(), None));
        };
        let (mut half, mut position, mut new) = (node, place.position, None);
        if let Some(space) = space {
            let split = match self.split(&locked, position, space) {
                Ok(split) => split,
                Err(error) => {
                    locked.release(m);
                    return Err(error);
                }
            };
            (half, position) = split.1;
            new = Some(split.0.offset);
        }
        blocks.keep();
        LeafRef::write(m, leaf, search.key, word);
        self.insert_record(&half, position, search.prefix, leaf);
        if let Some(copies) = half.copies(m) {
            let copied = (search.key.len() == WHOLE).then_some(word);
            copies.insert(m, position, half.count(m), copied);
        }
        locked.changed(m);
        Ok((Change { old: None, new: Some(word) }, new))
    }

    /// Carries out what `decide` returns for a key that is present.
    fn change_leaf(
        &self,
        locked: Locked<'_, F>,
        place: &Place,
        leaf: u64,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let m = self.medium();
        let leaf = match LeafRef::at(m, leaf) {
            Ok(leaf) => leaf,
            Err(error) => {
                locked.release(m);
                return Err(error);
            }
        };
        let (copies, old) = (locked.node.copies(m), leaf.word(m));
        let new = match decide(Some(old)) {
            Action::Keep => Some(old),
            Action::Put(word) => {
                leaf.put(m, word);
                if let Some(copies) = copies {
                    copies.replace(m, place.position, word);
                }
                Some(word)
            }
            Action::Remove => {
                self.remove_record(&locked.node, place.position);
                if let Some(copies) = copies {
                    copies.remove(m, place.position, locked.node.count(m));
                }
                self.memory.pool.retire(leaf.offset, leaf.bytes(), guard);
                None
            }
        };
        // A scan shows pairs of one moment, so it has to know.
        if new == Some(old) {
            locked.release(m);
        } else {
            locked.changed(m);
        }
        Ok(Change { old: Some(old), new })
    }
}
