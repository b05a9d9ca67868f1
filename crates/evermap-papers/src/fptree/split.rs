//! Splitting a leaf, taking an empty one out of the list, and completing that after a crash.
//!
//! A split is two stores, each of which is durable before anything is stored that builds on it: the
//! reference to the new leaf, which holds the upper half of the entries, and the bitmap of the old
//! one without them. In between both leaves have them. The reference says that ([`Link`]), so that
//! the next opener removes them from the old leaf. The paper has a log for that, which is
//! written and cleared by stores of their own.
//!
//! An empty leaf is taken out by one store. No log is needed for that either: what it leaves is a
//! block that nothing refers to, and the heap frees such blocks.

use evermap_index::FOUND_LATE;
use evermap_index::fresh::Fresh;
use evermap_index::node_lock::Lock;
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::access::{Locked, Node, Slots};
use super::inner::Inner;
use super::key::{Stored, write_block};
use super::layout::{FINGERPRINT_WORDS, INLINE_MAX, LeafBlock, Link, key_bytes, leaf_bytes};
use super::{Form, FpTree, mistakes};
use crate::search::Search;

/// A split of a full leaf, and the blocks for it.
pub(super) struct Split {
    /// The entries that go into the new leaf, in the order of their keys.
    upper: Vec<usize>,
    /// The least key of the new leaf.
    low: Vec<u8>,
    /// The block for the new leaf.
    leaf: u64,
    /// The block for its least key, if that needs one.
    key: Option<u64>,
}

impl Split {
    /// Returns `true` if a key belongs into the new leaf.
    pub(super) fn has(&self, search: &Search<'_>) -> bool {
        search.key >= self.low.as_slice()
    }
}

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Returns the valid entries of a leaf that are to be kept, with their keys, in the order of
    /// these.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn sorted(
        &self,
        node: &Node<'_, F>,
        is_kept: impl Fn(&Stored<'_>) -> bool,
    ) -> Result<Vec<(Stored<'_>, usize)>> {
        let m = self.medium();
        let mut entries = Vec::with_capacity(F::Leaf::SLOTS);
        // Small, because sorting moves them; most keys differ in their first eight bytes.
        let mut order = Vec::with_capacity(F::Leaf::SLOTS);
        for slot in Slots(node.bitmap(m)) {
            let key = node.key(m, slot)?;
            if is_kept(&key) {
                order.push((key.prefix(), entries.len()));
                entries.push((key, slot));
            }
        }
        order.sort_unstable_by(|one, other| {
            let rests = || entries[one.1].0.compare_stored(m, &entries[other.1].0);
            one.0.cmp(&other.0).then_with(rests)
        });
        Ok(order.into_iter().map(|(_, at)| entries[at]).collect())
    }

    /// Decides how a full leaf is split, which this thread has locked, and allocates what that
    /// takes.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn plan_split(
        &self,
        node: &Node<'_, F>,
        blocks: &mut Fresh<'_, M>,
    ) -> Result<Split> {
        let m = self.medium();
        let entries = self.sorted(node, |_| true)?;
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let low = match (lower.last(), upper.first()) {
            (Some((last, _)), Some((first, _))) => separator(&last.to_vec(m), &first.to_vec(m)),
            _ => None,
        };
        let damaged = || Error::damaged(node.offset, "a leaf of a tree has keys of other leaves");
        let low = low.ok_or_else(damaged)?;
        let search = Search::at(&low);
        let is_after = node.low(m)?.compare(m, &search).is_lt();
        if !is_after || self.next_admits(node, &search)?.is_some() {
            return Err(damaged());
        }
        let key = (low.len() > INLINE_MAX).then(|| blocks.allocate_fixed(key_bytes(low.len())));
        let key = key.transpose()?;
        let leaf = blocks.allocate_fixed(leaf_bytes::<_, F::Leaf>(&self.memory.pool))?;
        Ok(Split { upper: upper.iter().map(|&(_, slot)| slot).collect(), low, leaf, key })
    }

    /// Splits a full leaf that this thread has locked. Returns the new leaf, which no other thread
    /// reaches before the split is [complete](Self::complete_split).
    pub(super) fn split<'m>(&'m self, node: &Node<'m, F>, split: &Split) -> Node<'m, F> {
        let (m, header) = (self.medium(), node.header());
        m.note(Note::Scope("split of a leaf"));
        let new = self.write_node(split.leaf, &split.low, split.key);
        let mut fingerprints = [0; FINGERPRINT_WORDS];
        for (to, &from) in split.upper.iter().enumerate() {
            let (entry, old) = (new.entry(to), node.entry(from));
            entry.key.copy(m, &old.key);
            m.store(&entry.word, m.load(&old.word));
            let byte = m.load(&node.line().fingerprints[from / 8]) >> (from % 8 * 8) & 0xff;
            fingerprints[to / 8] |= byte << (to % 8 * 8);
        }
        for (cell, word) in new.line().fingerprints.iter().zip(fingerprints) {
            m.store(cell, word);
        }
        m.store(&new.line().bitmap, (1 << split.upper.len()) - 1);
        m.store(&new.header().next, node.next(m).finished().0);
        m.store(&new.header().next_prefix, m.load(&header.next_prefix));
        m.flush(new.line());
        m.flush(new.header());
        m.flush(&new.leaf.entries()[..split.upper.len()]);
        if !m.mutant(mistakes::LINK_EARLY) {
            m.fence();
        }
        recipe::commit(m, &header.next, Link::unfinished(split.leaf).0);
        self.remove_upper(node, &split.upper);
        new
    }

    /// Removes what a new leaf has from the one that was split. That is durable before the entries
    /// are used for others.
    fn remove_upper(&self, node: &Node<'_, F>, upper: &[usize]) {
        let m = self.medium();
        let removed = match m.mutant(mistakes::KEEP_UPPER_HALF) {
            // So there is space for another entry.
            true => &upper[..1],
            false => upper,
        };
        let removed = removed.iter().fold(0, |bits, slot| bits | 1 << slot);
        m.store(&node.line().bitmap, node.bitmap(m) & !removed);
        m.flush(node.line());
        if !m.mutant(mistakes::REUSE_EARLY) {
            m.fence();
        }
    }

    /// Completes a split: makes the new leaf known to other threads, once it is durable that the
    /// old one has no entries of it.
    pub(super) fn complete_split(&self, node: &Node<'_, F>, new: &Node<'_, F>, split: &Split) {
        let (m, header) = (self.medium(), node.header());
        // If a crash takes this back, recovery finds nothing to remove.
        m.store_transient(&header.next, new.offset);
        m.store_transient(&header.next_prefix, Search::at(&split.low).head[0]);
        // Without, searches come to it from the old leaf: if there is no memory.
        let _ = self.inner.add(&split.low, new.offset);
        self.tally.split();
    }

    /// Writes a leaf without entries and without next leaf to a new block. Does not flush it, but
    /// the block of its least key.
    pub(super) fn write_node(&self, offset: u64, low: &[u8], key: Option<u64>) -> Node<'_, F> {
        let m = self.medium();
        let leaf = m.at::<F::Leaf>(offset).expect("just allocated");
        let header = leaf.header();
        if let Some(block) = key {
            m.flush(write_block(m, block, low));
        }
        leaf.line().fingerprints.iter().for_each(|word| m.store(word, 0));
        m.store(&leaf.line().bitmap, 0);
        m.store(&header.lock, Lock::fresh(self.memory.generation).0);
        m.store(&header.magic, F::Leaf::MAGIC);
        m.store(&header.next, 0);
        header.low.store(m, &Search::at(low), key);
        m.store(&header.next_prefix, u64::MAX);
        Node { offset, leaf }
    }

    /// Takes a leaf out of the list if it is empty and not the first.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    pub(super) fn unlink_empty(&self, node: &Node<'_, F>, guard: &Guard<'_>) -> Result<()> {
        let m = self.medium();
        let low = node.low(m)?;
        let (key, block) = (low.to_vec(m), low.block());
        if key.is_empty() {
            return Ok(());
        }
        // Locks are taken from left to right.
        let left = self.lock(&Search::before(&key))?;
        let cell = &node.header().lock;
        let is_next = left.node.next(m).offset() == Some(node.offset);
        let locked = match is_next {
            true => Locked::acquire(&self.memory.region, *node, cell, false),
            // Another thread was faster.
            false => Ok(None),
        };
        match locked {
            Ok(Some(locked)) if node.bitmap(m) == 0 => {
                self.unlink(left, locked, &key);
                self.memory.pool.retire(node.offset, self.leaf_bytes(), guard);
                if let Some((block, bytes)) = block {
                    self.memory.pool.retire(block, bytes, guard);
                }
                Ok(())
            }
            locked => {
                let locked = locked.map(|locked| locked.into_iter().for_each(|l| l.release(m)));
                left.release(m);
                locked
            }
        }
    }

    /// Takes an empty leaf out of the list, whose least key is `low`.
    fn unlink(&self, left: Locked<'_, F>, node: Locked<'_, F>, low: &[u8]) {
        let m = self.medium();
        m.note(Note::Scope("unlinking of a leaf"));
        let (header, gone) = (left.node.header(), node.node.header());
        let next = node.node.next(m).finished().0;
        if m.mutant(mistakes::RETIRE_EARLY) {
            m.store(&header.next, next);
        } else {
            recipe::commit(m, &header.next, next);
        }
        m.store_transient(&header.next_prefix, m.load(&gone.next_prefix));
        // Searches that begin from now on do not come to it any more. Another leaf that begins with
        // the same key is added under the lock of the one before.
        let _ = self.inner.remove(low, node.node.offset);
        self.tally.merge();
        node.obsolete(m);
        left.changed(m);
    }

    /// Repairs a leaf that an earlier process used: makes durable what that has stored, and
    /// completes a split.
    pub(super) fn repair(&self, node: &Node<'_, F>) {
        let (m, header) = (self.medium(), node.header());
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(node.leaf);
        let next = node.next(m);
        let next_node = next.offset().map(|offset| self.node_as_it_is(offset));
        let low = next_node.map(|node| node.and_then(|node| node.low(m)));
        let prefix = match &low {
            None => u64::MAX,
            Some(Ok(low)) => low.prefix(),
            // A search that goes there returns what is wrong.
            Some(Err(_)) => 0,
        };
        m.store_transient(&header.next_prefix, prefix);
        if let Some(Ok(low)) = low
            && next.is_unfinished()
            && !m.mutant(mistakes::LEAVE_SPLIT)
        {
            self.remove_from(node, &low);
            m.store_transient(&header.next, next.finished().0);
        }
    }

    /// Removes the entries whose keys are not less than `low`, which the next leaf has.
    fn remove_from(&self, node: &Node<'_, F>, low: &Stored<'_>) {
        let m = self.medium();
        let is_upper =
            |slot: &usize| node.key(m, *slot).is_ok_and(|key| key.compare_stored(m, low).is_ge());
        let upper = Slots(node.bitmap(m)).filter(is_upper).fold(0, |bits, slot| bits | 1 << slot);
        if upper != 0 {
            recipe::commit(m, &node.line().bitmap, node.bitmap(m) & !upper);
        }
    }
}

/// Returns the shortest key that is greater than `last` and not greater than `first`, or `None` if
/// `first` is not greater.
fn separator(last: &[u8], first: &[u8]) -> Option<Vec<u8>> {
    let common = last.iter().zip(first).take_while(|(one, other)| one == other).count();
    (last < first).then(|| first[..common + 1].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_is_short() {
        let between = |last: &str, first: &str| separator(last.as_bytes(), first.as_bytes());
        assert_eq!(between("apple", "bee").unwrap(), b"b");
        assert_eq!(between("apple", "apricot").unwrap(), b"apr");
        assert_eq!(between("ab", "abc").unwrap(), b"abc");
        assert_eq!(between("", "abc").unwrap(), b"a");
        assert_eq!((between("ab", "ab"), between("b", "ab")), (None, None));
    }
}
