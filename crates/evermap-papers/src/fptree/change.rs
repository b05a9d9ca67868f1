//! Changing the binding of one key.
//!
//! A change is committed by one store of the bitmap of a leaf. Everything that it refers to is
//! durable before: the entry, the block of a longer key, and what the caller has flushed for the
//! word to name. An update makes one bit of the bitmap 1 and another one 0 by the same store. If
//! all entries are in use it stores the word alone, so that it needs no space.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::recipe;
use evermap_pm::{Guard, Medium, Result};

use super::access::Node;
use super::key::{Stored, write_block};
use super::layout::{INLINE_MAX, LeafBlock, key_bytes};
use super::{Form, FpTree, mistakes};
use crate::search::Search;

/// A key that is searched for, with its fingerprint.
pub(super) struct Hashed<'k> {
    pub(super) search: Search<'k>,
    pub(super) fingerprint: u8,
}

/// What a change has done.
#[derive(Default)]
struct Done {
    change: Change,
    /// Whether the leaf has been changed.
    changed: bool,
    /// Whether the last entry of the leaf was removed.
    emptied: bool,
}

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Carries out what `decide` returns for a key.
    pub(super) fn change_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let search = Search::at(key);
        let key = Hashed { search, fingerprint: search.fingerprint(self.seed) };
        let locked = self.lock(&search)?;
        let node = locked.node;
        let done = self.change_locked(&node, &key, mode, guard, decide);
        let changed = done.as_ref().is_ok_and(|done| done.changed);
        let done = locked.end(self.medium(), done.map(|done| (done, changed)))?;
        if done.emptied {
            // The change is complete without. If this fails, the next operation there reports why.
            let _ = self.unlink_empty(&node, guard);
        }
        Ok(done.change)
    }

    /// Does the same in the leaf into which the key belongs, and which this thread has locked.
    fn change_locked(
        &self,
        node: &Node<'_, F>,
        key: &Hashed<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Done> {
        match self.find_in(node, &key.search, key.fingerprint)? {
            Some(found) => self.change_entry(node, key, found, guard, decide),
            None if mode == MutateMode::ExistingOnly => Ok(Done::default()),
            None => self.add(node, key, decide),
        }
    }

    /// Binds an absent key.
    fn add(
        &self,
        node: &Node<'_, F>,
        key: &Hashed<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Done> {
        let m = self.medium();
        let mut blocks = Fresh::new(&self.memory.pool);
        let length = key.search.key.len();
        let block = (length > INLINE_MAX).then(|| blocks.allocate_fixed(key_bytes(length)));
        let block = block.transpose()?;
        let is_full = node.bitmap(m) == F::Leaf::FULL;
        let split = is_full.then(|| self.plan_split(node, &mut blocks)).transpose()?;
        let Action::Put(word) = decide(None) else { return Ok(Done::default()) };
        blocks.keep();
        match split {
            None => self.put(node, key, block, word, 0),
            Some(split) => {
                let new = self.split(node, &split);
                let half = if split.has(&key.search) { &new } else { node };
                self.put(half, key, block, word, 0);
                self.complete_split(node, &new, &split);
            }
        }
        let change = Change { old: None, new: Some(word) };
        Ok(Done { change, changed: true, emptied: false })
    }

    /// Carries out what `decide` returns for a key that is present.
    fn change_entry(
        &self,
        node: &Node<'_, F>,
        key: &Hashed<'_>,
        (slot, old): (usize, u64),
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Done> {
        let m = self.medium();
        let block = Stored::read(m, &node.entry(slot).key)?.block();
        let action = decide(Some(old));
        // With the same word too, the key has another entry then.
        let changed = action != Action::Keep;
        let new = match action {
            Action::Keep => Some(old),
            Action::Put(word) => {
                if node.bitmap(m) == F::Leaf::FULL {
                    // Before it is durable that the entry names something, that itself has to be.
                    m.fence();
                    recipe::commit(m, &node.entry(slot).word, word);
                } else {
                    self.put(node, key, block.map(|block| block.0), word, 1 << slot);
                }
                Some(word)
            }
            Action::Remove => {
                recipe::commit(m, &node.line().bitmap, node.bitmap(m) & !(1 << slot));
                if let Some((block, bytes)) = block {
                    self.memory.pool.retire(block, bytes, guard);
                }
                None
            }
        };
        let change = Change { old: Some(old), new };
        let emptied = new.is_none() && node.bitmap(m) == 0;
        Ok(Done { change, changed, emptied })
    }

    /// Makes a free entry of a leaf the one of a key, instead of those in `replaced`. A longer key
    /// has a block, which is new unless another entry is replaced.
    fn put(
        &self,
        node: &Node<'_, F>,
        key: &Hashed<'_>,
        block: Option<u64>,
        word: u64,
        replaced: u64,
    ) {
        let (m, line, before) = (self.medium(), node.line(), node.bitmap(self.medium()));
        let slot = (!before).trailing_zeros() as usize;
        let after = before & !replaced | 1 << slot;
        if m.mutant(mistakes::BITMAP_FIRST) {
            recipe::commit(m, &line.bitmap, after);
        }
        if let Some(block) = block.filter(|_| replaced == 0) {
            m.flush(write_block(m, block, key.search.key));
        }
        let entry = node.entry(slot);
        entry.key.store(m, &key.search, block);
        m.store(&entry.word, word);
        // This fence is also for what the caller has flushed.
        m.persist(entry);
        let fingerprints = &line.fingerprints[slot / 8];
        let shift = slot % 8 * 8;
        let others = m.load(fingerprints) & !(0xff << shift);
        m.store(fingerprints, others | u64::from(key.fingerprint) << shift);
        if !F::FUSED {
            m.persist(fingerprints);
        }
        if m.mutant(mistakes::UPDATE_IN_TWO_STEPS) {
            recipe::commit(m, &line.bitmap, before | 1 << slot);
        }
        // The fingerprint is in the same line, and so durable whenever this is.
        recipe::commit(m, &line.bitmap, after);
    }
}
