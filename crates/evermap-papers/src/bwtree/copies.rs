//! Copies of keys of eight bytes and of their words, in the leaf nodes.
//!
//! A scan of such keys reads them in the order in which they lie in memory, and spares the records,
//! each of which is somewhere else; a lookup spares one. What counts is the record. Copies are never
//! flushed, and belong to the opener that has made them: the header of the base node has its
//! generation.
//!
//! Each entry has a bit that says whether its copy may be used. These rules keep it from being used
//! when the record says something else:
//!
//! 1. A copy is made by a thread that holds the lock of the key, or taken over from the base node
//!    before, where it may be used. It never changes while its bit is set.
//! 2. A bit is set at most once after other threads can find the base node, and only for entries
//!    for which it was not set before.
//! 3. Who changes a record holds the lock of its key, clears the bit first, and then looks whether
//!    the base node is still that of the node. If it is not, the bit of the new one is cleared as
//!    well.
//! 4. Copies that were taken over are not used before the bits of the old base node were looked at
//!    again, after it was replaced: if one was cleared meanwhile, none is used. So a thread that has
//!    changed a record either has found the new base node, or it is noticed here.
//!
//! By 1 to 4, a copy is what the record says at each moment at which its bit is set in the base node
//! of a node. By 2, a bit that is set after something was read was set all the time since it was
//! first seen.
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

/// Returns the size of a base node of a level with this number of entries, which takes `bytes`
/// without copies.
pub(super) const fn with_copies(level: u8, entries: usize, bytes: u64) -> u64 {
    match level {
        0 => bytes.next_multiple_of(16) + (8 * BIT_WORDS + 16 * entries) as u64,
        _ => bytes,
    }
}

/// The copies of a leaf node.
#[derive(Clone, Copy)]
pub(super) struct CopiesRef<'m> {
    bits: &'m [PmU64; BIT_WORDS],
    pairs: &'m [[PmU64; 2]],
}

impl<'m> CopiesRef<'m> {
    /// Returns where a leaf node has its copies.
    #[inline(always)]
    fn of<M: Medium>(m: &'m M, base: &BaseRef<'_>) -> Option<Self> {
        let at = (base.offset + base.durable_bytes()).next_multiple_of(16);
        let bits = m.at(at).filter(|_| base.level == 0)?;
        let pairs = m.slice(at + size_of::<[PmU64; BIT_WORDS]>() as u64, base.len() as u64)?;
        Some(CopiesRef { bits, pairs })
    }

    /// Returns for which entries there are copies that may be used.
    #[inline(always)]
    pub(super) fn bits<M: Medium>(&self, m: &M) -> Bits {
        // Acquire: the copies are read next.
        self.bits.each_ref().map(|cell| m.load(cell))
    }

    /// Returns the copy of an entry, which may only be used if its bit was set.
    #[inline(always)]
    pub(super) fn pair<M: Medium>(&self, m: &M, position: usize) -> (u64, u64) {
        let [key, word] = &self.pairs[position];
        // Acquire: bits are looked at again afterwards.
        (m.load(key), m.load(word))
    }

    /// Returns the copy of an entry if it may be used.
    #[inline(always)]
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

/// Which copies are taken over from a base node that is being replaced.
pub(super) struct Carrying<'c, 'm> {
    /// The base node, and the records that were deltas.
    old: Option<(BaseRef<'m>, &'c [u64])>,
    /// The entries of the base node before this one were looked at.
    position: usize,
}

impl<'c, 'm> Carrying<'c, 'm> {
    pub(super) fn new(node: &Node<'m>, inserted: Option<&'c [u64]>) -> Self {
        Carrying { old: inserted.map(|inserted| (node.base, inserted)), position: 0 }
    }

    /// Returns the position in the old base node of the next entry of the new one, which has the
    /// record at an offset.
    fn position_of<M: Medium>(&mut self, m: &M, at: u64) -> Option<usize> {
        let (old, inserted) = self.old?;
        let is_at = |position: usize| old.entry(m, position).at == at;
        if self.position < old.len() && !is_at(self.position) {
            if inserted.contains(&at) {
                return None;
            }
            // Those in between were dropped.
            self.position += (self.position..old.len()).take_while(|&here| !is_at(here)).count();
        }
        let found = self.position;
        self.position += 1;
        (found < old.len()).then_some(found)
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
    #[inline(always)]
    pub(super) fn copies_of<'m>(&'m self, base: &BaseRef<'m>) -> Option<CopiesRef<'m>> {
        let m = self.medium();
        // Acquire: the bits are read next.
        let is_made = self.copies && m.load(&base.header.copied_by) == self.memory.generation;
        if is_made { CopiesRef::of(m, base) } else { None }
    }

    /// Takes copies over to a new base node with these entries, which other threads cannot find
    /// yet.
    pub(super) fn begin_copying(
        &self,
        block: u64,
        entries: &[Entry],
        carrying: &mut Carrying<'_, '_>,
    ) -> Option<Copying<'_>> {
        let m = self.medium();
        let base = BaseRef::find(m, block, Some(0)).filter(|_| self.copies)?;
        let copies = CopiesRef::of(m, &base)?;
        let old = carrying.old.and_then(|(old, _)| self.copies_of(&old));
        let usable = old.map_or(Bits::default(), |old| old.bits(m));
        let (mut bits, mut taken) = (Bits::default(), Bits::default());
        let mut missing = Vec::with_capacity(MADE_MAX);
        for (position, entry) in entries.iter().enumerate().take(64 * BIT_WORDS) {
            let before = carrying.position_of(m, entry.at);
            match old.zip(before.filter(|&before| has(&usable, before))) {
                Some((old, before)) => {
                    copies.store(m, position, old.pair(m, before));
                    bits[position / 64] |= 1 << (position % 64);
                    taken[before / 64] |= 1 << (before % 64);
                }
                None if missing.len() < MADE_MAX => missing.push((position as u8, entry.at)),
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
        for (position, at) in missing {
            // What cannot be read is left to those who look for it.
            let Ok(leaf) = self.record(at) else { continue };
            if leaf.key_len() != WHOLE {
                continue;
            }
            let key = leaf.prefix(m);
            // Others may be waiting for what this thread does.
            let Ok(_lock) = self.lock_of(&key.to_be_bytes()).try_lock() else { continue };
            if let Some(word) = self.binding(&leaf) {
                copies.store(m, usize::from(position), (key, word));
                copies.change(m, usize::from(position), true);
            }
        }
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
            // Copies of a frozen node are not used, nor taken over.
            if end.frozen.is_some() {
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
#[inline(always)]
pub(super) fn has(bits: &Bits, position: usize) -> bool {
    bits.get(position / 64).is_some_and(|bits| bits >> (position % 64) & 1 == 1)
}
