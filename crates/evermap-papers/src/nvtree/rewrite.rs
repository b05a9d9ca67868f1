//! Replacing a full leaf: by one, by two, or, with its right neighbour, by one.
//!
//! New leaves are durable, with their references to the next ones, before the leaf before them, or
//! the root block, refers to the first of them. The store of that reference commits everything. A
//! crash before it leaves the old leaves in the list, and the new blocks are free because nothing
//! refers to them; a crash after it does the same with old and new exchanged.
//!
//! Leaves are locked from left to right: the one before the full one, whose reference will be
//! changed and which must not be replaced itself meanwhile, the full one, and its right neighbour
//! if they may be merged.

use std::time::Instant;

use evermap_index::fresh::Fresh;
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Guard, Medium, PmU64, Result};

use super::counters::Counted;
use super::key::Brief;
use super::layout::{self, Rest};
use super::leaf::{Item, Leaf, Locked};
use super::upper::{LeafEntry, Place};
use super::{Form, NvTree, mistakes, recover};
use crate::search::Search;

/// The leaves that come in place of a full one.
struct Draft<'m> {
    /// One or two leaves. The first has the least key of the full one.
    leaves: Vec<LeafEntry>,
    /// The right neighbour of the full one, if they are merged. They have the same parent as long
    /// as no other thread changes what is above the leaves.
    merged: Option<(Locked<'m>, MutexGuard<'m, ()>)>,
    /// The blocks of keys that are not bound any more.
    dropped: Vec<LeafRef<'m>>,
}

/// The items of a leaf whose keys are bound, and the blocks of the others.
fn partition<'m>(items: Vec<Item<'m>>) -> (Vec<Item<'m>>, Vec<LeafRef<'m>>) {
    let (live, dead): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.is_live);
    (live, dead.into_iter().filter_map(|item| item.block).collect())
}

impl<M: Medium, F: Form> NvTree<M, F> {
    /// A leaf with up to this many bound keys is merged with another such leaf.
    const SMALL: usize = F::LEAF / 4;

    /// Replaces the leaf that a search leads to, if it is full. If another thread changes something
    /// there meanwhile, does nothing, and the caller tries again.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`, `Poisoned`; nothing has changed then.
    pub(super) fn make_room(&self, search: &Search<'_>, guard: &Guard<'_>) -> Result<()> {
        let m = self.medium();
        let spot = self.spot_of(search)?;
        let Some(low) = spot.leaf.low(m).key(m)? else {
            return self.replace_at(&self.root_block()?.head, spot.leaf, spot.next, guard);
        };
        let before = self.leaf_of(&Search::before(&low))?;
        let Some(before) = self.lock(before)? else { return Ok(()) };
        let cell = &before.node.header.sibling;
        let replaced = self.replace_at(cell, spot.leaf, spot.next, guard);
        before.release(m);
        replaced
    }

    /// Replaces a leaf, if it is full and `cell` refers to it. The calling thread has locked what
    /// `cell` is in.
    pub(super) fn replace_at(
        &self,
        cell: &PmU64,
        leaf: Leaf<'_>,
        next: Option<u64>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let m = self.medium();
        let Some(locked) = self.lock(leaf)? else { return Ok(()) };
        let mut fresh = Fresh::new(&self.memory.pool);
        let draft = match self.draft(cell, &leaf, next, &mut fresh) {
            Ok(Some(draft)) => draft,
            nothing => {
                locked.release(m);
                return nothing.map(drop);
            }
        };
        fresh.keep();
        let new = draft.leaves[0].1;
        // Together with the keys and leaves that were written.
        if !m.mutant(mistakes::LINK_FIRST) {
            m.fence();
        }
        if m.mutant(mistakes::COMMIT_LATE) {
            m.store(cell, new);
        } else {
            m.note(Note::Harmless(
                "needed where another thread uses the new leaf: \
                 `a_leaf_is_durably_replaced_before_another_one_is_used`",
            ));
            recipe::commit(m, cell, new);
        }
        let right = draft.merged.as_ref().map(|(locked, _)| locked.node);
        self.relink(locked, draft.merged, &draft.leaves);
        let (pool, bytes) = (&self.memory.pool, layout::block_bytes(&self.memory.pool, F::LEAF));
        pool.retire(leaf.offset, bytes, guard);
        let low = right.and_then(|right| {
            pool.retire(right.offset, bytes, guard);
            right.low(m).rest.block()
        });
        let low = low.and_then(|block| LeafRef::at(m, block).ok());
        for block in draft.dropped.into_iter().chain(low) {
            pool.retire(block.offset, block.bytes(), guard);
        }
        Ok(())
    }

    /// Writes and flushes what replaces a leaf that this thread has locked. Returns `None` if that
    /// is not to be replaced.
    fn draft<'m>(
        &'m self,
        cell: &PmU64,
        leaf: &Leaf<'m>,
        next: Option<u64>,
        fresh: &mut Fresh<'_, M>,
    ) -> Result<Option<Draft<'m>>> {
        let m = self.medium();
        let count = leaf.count(m)?;
        if m.load(cell) != leaf.offset || count < F::LEAF {
            return Ok(None);
        }
        let items = match m.mutant(mistakes::KEEP_ANY) {
            false => leaf.items(m, count)?,
            true => leaf.items_by(m, count, usize::cmp)?,
        };
        let (live, dropped) = partition(items);
        let sibling = m.load(&leaf.header.sibling);
        let low = leaf.low(m);
        if live.len() > F::LEAF / 2 {
            let leaves = self.write_halves(low, sibling, &live, fresh)?;
            Counted::count(&self.counted.splits);
            return Ok(Some(Draft { leaves, merged: None, dropped }));
        }
        let mut draft = Draft { leaves: Vec::new(), merged: None, dropped };
        let next = next.filter(|&next| next == sibling && live.len() <= Self::SMALL);
        if let Some(next) = next
            && let Some(right) = self.lock(self.leaf(next)?)?
        {
            let changing = self.changing.lock().expect("no panics while held");
            let written = match self.next_of(leaf) == Some(next) {
                true => self.write_both(low, &live, &right.node, fresh),
                false => Ok(None),
            };
            match written {
                Ok(Some((leaf, dropped))) => {
                    draft.leaves.push(leaf);
                    draft.dropped.extend(dropped);
                    draft.merged = Some((right, changing));
                    Counted::count(&self.counted.merges);
                    return Ok(Some(draft));
                }
                nothing => {
                    right.release(m);
                    nothing?;
                }
            }
        }
        draft.leaves.push(self.write_leaf(low, sibling, &live, fresh)?);
        Counted::count(&self.counted.replacements);
        Ok(Some(draft))
    }

    fn write_leaf(
        &self,
        low: Brief,
        sibling: u64,
        items: &[Item<'_>],
        fresh: &mut Fresh<'_, M>,
    ) -> Result<LeafEntry> {
        let bytes = layout::block_bytes(&self.memory.pool, F::LEAF);
        let block = fresh.allocate_fixed(bytes)?;
        recover::write::<M, F>(&self.memory, block, &low, sibling, items);
        Ok((low, block))
    }

    /// Writes two leaves with half of the items each.
    fn write_halves(
        &self,
        low: Brief,
        sibling: u64,
        items: &[Item<'_>],
        fresh: &mut Fresh<'_, M>,
    ) -> Result<Vec<LeafEntry>> {
        let m = self.medium();
        let (lower, upper) = items.split_at(items.len() / 2);
        let Item { key, block, .. } = &upper[0];
        let mut middle = *key;
        if let Some(leaf) = block {
            // The block of the key itself is freed when the key is not bound any more.
            let block = fresh.allocate_fixed(leaf_bytes(leaf.key_len()))?;
            LeafRef::write(m, block, &leaf.key(m), 0);
            middle.rest = Rest::of_block(block);
        }
        let right = self.write_leaf(middle, sibling, upper, fresh)?;
        let left = self.write_leaf(low, right.1, lower, fresh)?;
        Ok(vec![left, right])
    }

    /// Writes a leaf with these items and those of a leaf behind them, which this thread has
    /// locked, if that has few bound keys too. Also returns the blocks of the others.
    fn write_both<'m>(
        &'m self,
        low: Brief,
        items: &[Item<'m>],
        right: &Leaf<'m>,
        fresh: &mut Fresh<'_, M>,
    ) -> Result<Option<(LeafEntry, Vec<LeafRef<'m>>)>> {
        let m = self.medium();
        let (behind, dropped) = partition(right.items(m, right.count(m)?)?);
        if behind.len() > Self::SMALL {
            return Ok(None);
        }
        let all: Vec<Item<'m>> = items.iter().chain(&behind).copied().collect();
        let sibling = m.load(&right.header.sibling);
        Ok(Some((self.write_leaf(low, sibling, &all, fresh)?, dropped)))
    }

    /// Makes what is above the leaves refer to `leaves` in place of `locked`, and of the leaf
    /// behind it if that is `merged`. From the moment on at which a search can find the new leaves,
    /// the old ones are obsolete.
    fn relink(
        &self,
        locked: Locked<'_>,
        merged: Option<(Locked<'_>, MutexGuard<'_, ()>)>,
        leaves: &[LeafEntry],
    ) {
        let m = self.medium();
        let old = locked.node;
        let (merged, changing) = merged.unzip();
        let _changing =
            changing.unwrap_or_else(|| self.changing.lock().expect("no panics while held"));
        let place = self.place_with_room(&old, leaves.len() > 1);
        self.with_upper(|upper| {
            upper.write(|upper| {
                locked.obsolete(m);
                // If the tree is damaged, those who come to the old leaf notice it.
                let Some(place) = place else { return };
                upper.set_leaf(place, leaves[0].1);
                if let Some(&right) = leaves.get(1) {
                    upper.insert_after(place, right);
                }
                if let Some(merged) = merged {
                    merged.obsolete(m);
                    upper.remove_after(place);
                }
            });
        });
    }

    /// Returns where the entry of a leaf is, and if another one `is_added` behind it, makes room
    /// for that. The calling thread is the one that changes what is above the leaves.
    fn place_with_room(&self, leaf: &Leaf<'_>, is_added: bool) -> Option<Place> {
        loop {
            let place = self.place_of(leaf)?;
            if !is_added || !self.with_upper(|upper| upper.is_full(place)) {
                return Some(place);
            }
            if F::SPARES && self.with_upper(|upper| upper.write(|upper| upper.split(place))) {
                Counted::count(&self.counted.parent_splits);
            } else {
                self.rebuild(place);
            }
        }
    }

    /// Returns the leaf behind this one that has the same parent. The calling thread is the one
    /// that changes what is above the leaves.
    pub(super) fn next_of(&self, leaf: &Leaf<'_>) -> Option<u64> {
        let place = self.place_of(leaf)?;
        self.with_upper(|upper| upper.next_in_parent(place))
    }

    /// Returns where the entry of a leaf is.
    fn place_of(&self, leaf: &Leaf<'_>) -> Option<Place> {
        let m = self.medium();
        let low = leaf.low(m).key(m).ok()?.unwrap_or_default();
        self.with_upper(|upper| {
            let found = upper.find(m, &Search::at(&low)).ok();
            let found = found.filter(|&place| upper.leaf(place) == leaf.offset);
            found.or_else(|| upper.find_leaf(leaf.offset))
        })
    }

    /// Builds everything above the leaves anew, because the parent at `place` is full.
    fn rebuild(&self, place: Place) {
        let began = Instant::now();
        let (new, bytes) = self.with_upper(|upper| (upper.rebuilt(place), upper.bytes()));
        self.upper.replace(new, self.memory.pool.epoch(), bytes);
        self.counted.count_rebuild(began.elapsed());
    }
}
