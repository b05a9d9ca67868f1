//! Copies of keys of eight bytes and of their words, in the leaf nodes.
//!
//! A scan of such keys reads them in the order in which they lie in memory, and spares the records,
//! each of which is somewhere else; a lookup spares one. What counts is the record. Copies are
//! never flushed, and belong to the opener that has made them: the header of the base node has its
//! generation.
//!
//! The first scan that comes to a node consolidates it, with space for copies, and consolidations
//! keep them from then on. So a tree that is not scanned has none: its nodes are small, and its
//! writers spend no time on them. The first scan after an opening makes them again.
//!
//! Each entry has a bit that says whether its copy may be used. These rules keep it from being used
//! when the record says something else:
//!
//! 1. A copy is made by a thread that holds the lock of the key, or taken over from the base node
//!    before, where it may be used. It never changes while its bit is set.
//! 2. A bit is set at most once after others may use copies of the base node, and only for entries
//!    for which it was not set before.
//! 3. Who changes a record holds the lock of its key, clears the bit first, and then looks whether
//!    the base node is still that of the node. If it is not, the bit of the new one is cleared as
//!    well.
//! 4. Copies that were taken over are not used before the bits of the old base node were looked at
//!    again, after it was replaced: if one was cleared meanwhile, none is used. So a thread that
//!    has changed a record either has found the new base node, or it is noticed here.
//!
//! By 1 to 4, a copy is what the record says at each moment at which its bit is set in the base
//! node of a node. By 2, a bit that is set after something was read was set all the time since it
//! was first seen.
//!
//! ```text
//! byte  0  bits   for each entry, whether its copy may be used
//! byte 32  pairs  for each entry, the key as a number, and its word
//! ```

use std::sync::atomic::{Ordering, fence};

use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Medium, PmU64, Result};

use super::BwTree;
use super::access::{End, Node, Search};
use super::layout::RECORD_HEADER;
use super::node::{BaseRef, Entry};

/// The words with the bits: as many as the most entries need.
const BIT_WORDS: usize = 4;

/// The most copies that are made for a new base node, besides those that are taken over. Usually
/// those of its deltas are all.
const MADE_MAX: usize = 32;

/// The length of keys that are copied.
const WHOLE: usize = 8;

/// A set of entries.
pub(super) type Bits = [u64; BIT_WORDS];

/// Returns the size of a base node with this number of entries, which takes `bytes` without copies.
pub(super) fn with_copies(has_copies: bool, entries: usize, bytes: u64) -> u64 {
    match has_copies {
        true => bytes.next_multiple_of(16) + (8 * BIT_WORDS + 16 * entries) as u64,
        false => bytes,
    }
}

/// The copies of a leaf node.
#[derive(Clone, Copy)]
pub(super) struct CopiesRef<'m> {
    bits: &'m [PmU64; BIT_WORDS],
    pairs: &'m [[PmU64; 2]],
}

impl<'m> CopiesRef<'m> {
    /// Returns where a leaf node has its copies, if it has space for them.
    #[inline]
    fn of<M: Medium>(m: &'m M, base: &BaseRef<'_>) -> Option<Self> {
        let at = (base.offset + base.durable_bytes()).next_multiple_of(16);
        let bits = m.at(at).filter(|_| base.has_copies && base.level == 0)?;
        let pairs = m.slice(at + size_of::<[PmU64; BIT_WORDS]>() as u64, base.len() as u64)?;
        Some(CopiesRef { bits, pairs })
    }

    /// Returns for which entries there are copies that may be used.
    #[inline]
    pub(super) fn bits<M: Medium>(&self, m: &M) -> Bits {
        // Acquire: the copies are read next.
        self.bits.each_ref().map(|cell| m.load(cell))
    }

    /// Returns the copy of an entry, which may only be used if its bit was set.
    #[inline]
    pub(super) fn pair<M: Medium>(&self, m: &M, position: usize) -> (u64, u64) {
        let [key, word] = &self.pairs[position];
        // Acquire: bits are looked at again afterwards.
        (m.load(key), m.load(word))
    }

    /// Returns the copy of an entry if it may be used.
    #[inline]
    pub(super) fn get<M: Medium>(&self, m: &M, position: usize) -> Option<(u64, u64)> {
        let bits = m.load(self.bits.get(position / 64)?);
        (bits >> (position % 64) & 1 == 1).then(|| self.pair(m, position))
    }

    /// Asks the memory for the copies of some entries.
    pub(super) fn prefetch<M: Medium>(&self, m: &M, positions: std::ops::Range<usize>) {
        let pairs = self.pairs.get(positions).unwrap_or_default();
        if let Some(first) = pairs.first() {
            m.prefetch_bytes(m.offset_of(&first[0]), size_of_val(pairs) as u64);
        }
    }

    /// Stores the copy of an entry whose bit is not set.
    fn store<M: Medium>(&self, m: &M, position: usize, (key, word): (u64, u64)) {
        let [key_cell, word_cell] = &self.pairs[position];
        m.store_transient(key_cell, key);
        m.store_transient(word_cell, word);
    }

    /// Sets or clears the bit of an entry.
    fn change<M: Medium>(&self, m: &M, position: usize, to: bool) {
        let Some(cell) = self.bits.get(position / 64) else { return };
        let bit = 1 << (position % 64);
        loop {
            let before = m.load(cell);
            let after = if to { before | bit } else { before & !bit };
            if before == after || m.cas_transient(cell, before, after).is_ok() {
                return;
            }
        }
    }
}

/// Copies of a base node that are being made.
pub(super) struct Copying<'m> {
    base: BaseRef<'m>,
    copies: CopiesRef<'m>,
    /// The copies of the old base node that were taken over.
    taken: Bits,
    /// Entries without copies: the position and the record.
    missing: Vec<(u8, u64)>,
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Returns the copies of a base node, if this opener has made them.
    #[inline]
    pub(super) fn copies_of<'m>(&'m self, base: &BaseRef<'_>) -> Option<CopiesRef<'m>> {
        let m = self.medium();
        // Acquire: the bits are read next.
        let is_made = self.copies && m.load(&base.header.copied_by) == self.memory.generation;
        if is_made { CopiesRef::of(m, base) } else { None }
    }

    /// Returns `true` if a node has no copies, and nobody has failed to make them.
    #[inline]
    pub(super) fn lacks_copies(&self, base: &BaseRef<'_>) -> bool {
        let by = self.medium().load(&base.header.copied_by);
        self.copies && by != self.memory.generation && by != !self.memory.generation
    }

    /// Makes copies for a node without space for them, as far as that is possible. Returns whether
    /// the node has got another base node.
    #[cold]
    pub(super) fn enlarge(&self, node: &Node<'_>) -> bool {
        let region = &self.memory.region;
        let (guard, mut todo) = (self.memory.pool.pin(), Vec::new());
        let poison = region.poison_on_panic();
        let made = region.ensure_writable().is_ok()
            && matches!(self.knows_ids(), Ok(true))
            && matches!(self.consolidate_with(0, node.id, true, &guard, &mut todo), Ok(true));
        self.work(todo, &guard);
        poison.disarm();
        if !made {
            // Not again, until it is consolidated for another reason.
            let cell = &node.base.header.copied_by;
            self.medium().store_transient(cell, !self.memory.generation);
        }
        made
    }

    /// Makes copies for a base node that has none, unless another thread does. Returns them.
    #[cold]
    pub(super) fn make_copies<'m>(&'m self, base: &BaseRef<'m>) -> Option<CopiesRef<'m>> {
        let (m, cell) = (self.medium(), &base.header.copied_by);
        let (made, being_made) = (self.memory.generation, !self.memory.generation);
        let before = m.load(cell);
        let copies = CopiesRef::of(m, base).filter(|_| self.copies && before != being_made)?;
        if before == made || m.cas_transient(cell, before, being_made).is_err() {
            return None;
        }
        copies.bits.iter().for_each(|cell| m.store_transient(cell, 0));
        let entries = || base.entries(m).take(64 * BIT_WORDS);
        entries().for_each(|entry| m.prefetch(entry.at + RECORD_HEADER));
        entries().enumerate().for_each(|(position, entry)| self.copy(&copies, position, entry.at));
        m.store_transient(cell, made);
        Some(copies)
    }

    /// Copies the key and the word of a record to an entry that has no copy, if that is possible
    /// now.
    fn copy(&self, copies: &CopiesRef<'_>, position: usize, at: u64) {
        let m = self.medium();
        // What cannot be read is left to those who look for it.
        let Some(leaf) = self.record(at).ok().filter(|leaf| leaf.key_len() == WHOLE) else {
            return;
        };
        let key = leaf.prefix(m);
        // Who holds it may wait for a page that this thread reads.
        let Ok(_lock) = self.lock_of(&key.to_be_bytes()).try_lock() else { return };
        if let Some(word) = self.binding(&leaf) {
            copies.store(m, position, (key, word));
            copies.change(m, position, true);
        }
    }

    /// Takes copies over to a new base node with these entries, which other threads cannot find
    /// yet, from the old one, if that is given and has some.
    pub(super) fn begin_copying(
        &self,
        block: u64,
        entries: &[Entry],
        old: Option<&BaseRef<'_>>,
    ) -> Option<Copying<'_>> {
        let m = self.medium();
        let base = BaseRef::find(m, block, Some(0))?;
        let copies = CopiesRef::of(m, &base).filter(|_| self.copies)?;
        let old = old.and_then(|old| self.copies_of(old));
        let usable = old.map_or(Bits::default(), |old| old.bits(m));
        // The first ones are all made.
        let most = if old.is_some() { MADE_MAX } else { entries.len() };
        let (mut bits, mut taken) = (Bits::default(), Bits::default());
        let mut missing = Vec::with_capacity(most);
        for (position, entry) in entries.iter().enumerate().take(64 * BIT_WORDS) {
            // Its number there, which a delta does not have.
            let before = (entry.child as usize).checked_sub(1);
            match old.zip(before.filter(|&before| has(&usable, before))) {
                Some((old, before)) => {
                    copies.store(m, position, old.pair(m, before));
                    bits[position / 64] |= 1 << (position % 64);
                    taken[before / 64] |= 1 << (before % 64);
                }
                None if missing.len() < most => missing.push((position as u8, entry.at)),
                None => {}
            }
        }
        copies.bits.iter().zip(bits).for_each(|(cell, bits)| m.store_transient(cell, bits));
        Some(Copying { base, copies, taken, missing })
    }

    /// Lets copies be used that were taken over, after `node` has got its new base node, and makes
    /// others.
    pub(super) fn end_copying(&self, node: &Node<'_>, copying: Copying<'_>) {
        let (m, Copying { base, copies, taken, missing }) = (self.medium(), copying);
        // Orders the exchange of the word of the node before these loads: see rule 4.
        fence(Ordering::SeqCst);
        let now = CopiesRef::of(m, &node.base).map_or(Bits::default(), |old| old.bits(m));
        if now.iter().zip(taken).any(|(now, taken)| now & taken != taken) {
            copies.bits.iter().for_each(|cell| m.store_transient(cell, 0));
        }
        m.store_transient(&base.header.copied_by, self.memory.generation);
        missing.iter().for_each(|&(_, at)| m.prefetch(at + RECORD_HEADER));
        missing.iter().for_each(|&(position, at)| self.copy(&copies, usize::from(position), at));
    }

    /// Forgets the copy of a record that is about to be changed by this thread, which has locked
    /// its key.
    pub(super) fn forget_copy(&self, end: &End<'_>, key: &[u8], leaf: &LeafRef<'_>) -> Result<()> {
        let m = self.medium();
        if !self.copies || key.len() != WHOLE {
            return Ok(());
        }
        let at = leaf.offset - RECORD_HEADER;
        let mut found = None;
        loop {
            let end = found.as_ref().unwrap_or(end);
            // Copies of a frozen node are not used, nor taken over. Where there are none, the next
            // base node gets that of this key from a thread that has locked it.
            if end.frozen.is_some() || !end.node.base.has_copies {
                return Ok(());
            }
            let (node, base) = (&end.node, &end.node.base);
            let position =
                base.with_head(m, base.head(key, 0)).find(|&here| base.entry(m, here).at == at);
            // A delta has none.
            let (Some(position), Some(copies)) = (position, CopiesRef::of(m, base)) else {
                return Ok(());
            };
            copies.change(m, position, false);
            // Orders the store before the load: see rule 3.
            fence(Ordering::SeqCst);
            let word = self.word_in(node.cell);
            if word == node.word
                || self.node_of(node.id, node.cell, word, Some(0))?.base.offset == base.offset
            {
                return Ok(());
            }
            found = Some(self.arrive(&Search::at(key), 0)?);
        }
    }
}

/// Returns `true` if a set has the entry at a position.
#[inline]
pub(super) fn has(bits: &Bits, position: usize) -> bool {
    bits.get(position / 64).is_some_and(|bits| bits >> (position % 64) & 1 == 1)
}
