//! Base nodes: sorted entries that never change.

use std::cmp::Ordering;
use std::ops::Range;

use evermap_index::ordered::leaf::{LeafRef, compare_key, prefix};
use evermap_index::record::KEY_MAX;
use evermap_pm::{Error, Medium, PmU64, Result};

use super::copies::with_copies;
use super::layout::{Base, Child, Delta, LeafEntry, Meta, entry_words};

/// An entry of a base node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What orders the keys of the node, but for those of which it is the same: the head of the key
    /// in leaf nodes, its first eight bytes in others.
    pub(super) head: u64,
    /// The offset of the record; 0 in the first entry of a level that is not the lowest.
    pub(super) at: u64,
    /// The id of the child, in nodes that are not leaf nodes. In others, while they are
    /// consolidated, from 1 on the number of the entry in the base node; 0 for a delta.
    pub(super) child: u64,
    /// The offset at which its base node may be.
    pub(super) base: u64,
}

/// What belongs into a node, and what is next to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The least key that belongs into the node: the empty one in the first node of a level.
    pub(super) low: Vec<u8>,
    /// The key at which the next node begins, which there is if there is a sibling.
    pub(super) high: Vec<u8>,
    /// The id of the next node of the level, or 0.
    pub(super) sibling: u64,
    /// The number of bits of a key before its head.
    pub(super) skip: u64,
}

impl Bounds {
    /// Returns the number of bits that all keys between the bounds have in common, roughly.
    pub(super) fn common_bits(&self) -> u64 {
        if self.sibling == 0 {
            return 0;
        }
        let longest = self.low.len().max(self.high.len());
        let differ = |at: usize| word_of(&self.low, at) ^ word_of(&self.high, at);
        let first = (0..longest.div_ceil(8)).find(|&at| differ(at) != 0);
        first.map_or(0, |at| at as u64 * 64 + u64::from(differ(at).leading_zeros()))
    }

    /// Returns the head of a key of a leaf node with these bounds.
    pub(super) fn head(&self, key: &[u8]) -> u64 {
        LeafEntry::head_of(|at| word_of(key, at), self.skip)
    }

    /// Returns the head of the key of a record.
    pub(super) fn head_of<M: Medium>(&self, m: &M, leaf: &LeafRef<'_>) -> u64 {
        LeafEntry::head_of(|at| leaf.word_of_key(m, at), self.skip)
    }

    /// Returns `true` if the key of a record is between the bounds.
    pub(super) fn contain<M: Medium>(&self, m: &M, leaf: &LeafRef<'_>) -> bool {
        leaf.compare(m, &self.low).is_ge()
            && (self.sibling == 0 || leaf.compare(m, &self.high).is_lt())
    }
}

/// Returns the eight bytes of a key from byte `8 * at` on, as a number.
#[inline(always)]
fn word_of(key: &[u8], at: usize) -> u64 {
    prefix(key.get(at.saturating_mul(8)..).unwrap_or_default())
}

/// A base node. Its words are loaded without ordering: they were stored before the word that led
/// here, which was loaded with acquire.
#[derive(Clone, Copy)]
pub(super) struct BaseRef<'m> {
    pub(super) offset: u64,
    pub(super) header: &'m Base,
    pub(super) level: u8,
    pub(super) sibling: u64,
    pub(super) skip: u64,
    /// Whether there is space for copies.
    pub(super) has_copies: bool,
    /// The number of entries.
    count: usize,
    /// The words of the entries, and of the two keys behind them.
    words: &'m [PmU64],
    /// The lengths of the two keys in bytes.
    low: usize,
    high: usize,
}

/// The bit of [`Base::count`] that says whether there is space for copies.
const HAS_COPIES: u64 = 1 << 32;

/// Returns the number of words of a key with this number of bytes.
fn key_words(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(8)
}

/// Returns the size of a base node in bytes, without copies.
fn durable_bytes(level: u8, entries: usize, bounds: &Bounds) -> u64 {
    let words = (entries * entry_words(level)) as u64;
    let keys = key_words(bounds.low.len()) + key_words(bounds.high.len());
    size_of::<Base>() as u64 + 8 * (words + keys)
}

/// Returns the size of a base node in bytes.
pub(super) fn base_bytes(level: u8, entries: usize, bounds: &Bounds, has_copies: bool) -> u64 {
    with_copies(has_copies, entries, durable_bytes(level, entries, bounds))
}

impl<'m> BaseRef<'m> {
    /// Returns the base node at an offset.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn at<M: Medium>(m: &'m M, offset: u64, level: Option<u8>) -> Result<Self> {
        Self::find(m, offset, level)
            .ok_or_else(|| Error::damaged(offset, "there is no such node of a tree"))
    }

    /// Returns the base node at an offset, if there is one.
    #[inline(always)]
    pub(super) fn find<M: Medium>(m: &'m M, offset: u64, level: Option<u8>) -> Option<Self> {
        Self::parse(m, offset).filter(|found| level.is_none_or(|level| found.level == level))
    }

    #[inline(always)]
    fn parse<M: Medium>(m: &'m M, offset: u64) -> Option<Self> {
        let header = m.at::<Base>(offset).filter(|_| offset != 0)?;
        let level = Meta(m.load_relaxed(&header.meta)).level()?;
        let (count, skip) = (m.load_relaxed(&header.count), m.load_relaxed(&header.skip));
        if skip > 8 * KEY_MAX as u64 || count >= 2 * HAS_COPIES {
            return None;
        }
        let (has_copies, count) = (count & HAS_COPIES != 0, count & (HAS_COPIES - 1));
        let lengths = m.load_relaxed(&header.lengths);
        let (low, high) = (lengths as u32 as usize, (lengths >> 32) as usize);
        let words = count.checked_mul(entry_words(level) as u64)?;
        let words = words.checked_add(key_words(low) + key_words(high))?;
        Some(BaseRef {
            offset,
            header,
            level,
            sibling: m.load_relaxed(&header.sibling),
            skip,
            has_copies,
            count: count as usize,
            words: m.slice(offset + size_of::<Base>() as u64, words)?,
            low,
            high,
        })
    }

    /// Writes a base node to a new block of [`base_bytes`], where nobody can find it yet, and
    /// flushes it.
    #[track_caller]
    pub(super) fn write<M: Medium>(
        m: &M,
        block: u64,
        level: u8,
        (bounds, has_copies): (&Bounds, bool),
        entries: &[Entry],
    ) {
        let header = m.at::<Base>(block).expect("just allocated");
        m.store(&header.meta, Meta::new(level).0);
        let flag = if has_copies { HAS_COPIES } else { 0 };
        m.store(&header.count, entries.len() as u64 | flag);
        m.store(&header.sibling, bounds.sibling);
        let lengths = bounds.low.len() as u64 | (bounds.high.len() as u64) << 32;
        m.store(&header.lengths, lengths);
        m.store(&header.high_prefix, prefix(&bounds.high));
        m.store(&header.skip, bounds.skip);
        m.store_transient(&header.removed, 0);
        m.store_transient(&header.copied_by, 0);
        // Durable, unlike what is stored there later.
        header.deltas.iter().for_each(|cell| m.store(cell, 0));
        let bytes = durable_bytes(level, entries.len(), bounds);
        let all: &[PmU64] = m.slice(block, bytes / 8).expect("just allocated");
        let (words, keys) =
            all[size_of::<Base>() / 8..].split_at(entries.len() * entry_words(level));
        for (cells, entry) in words.chunks_exact(entry_words(level)).zip(entries) {
            if let [cell] = cells {
                m.store(cell, LeafEntry::new(entry.head, entry.at).0);
            } else {
                let values = [entry.head, entry.at, Child::new(entry.child, entry.base).0];
                cells.iter().zip(values).for_each(|(cell, value)| m.store(cell, value));
            }
        }
        let (low, high) = keys.split_at(key_words(bounds.low.len()) as usize);
        m.write_bytes(low, &bounds.low);
        m.write_bytes(high, &bounds.high);
        m.flush(all);
    }

    /// Returns the number of entries.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns what orders a key in the node: see [`Entry::head`].
    #[inline(always)]
    pub(super) fn head(&self, key: &[u8], prefix: u64) -> u64 {
        match self.level {
            0 => LeafEntry::head_of(|at| word_of(key, at), self.skip),
            _ => prefix,
        }
    }

    /// Returns the positions of the entries with a head. Those before them have lesser ones.
    #[inline(always)]
    pub(super) fn with_head<M: Medium>(&self, m: &M, head: u64) -> Range<usize> {
        let shift = if self.level == 0 { LeafEntry::HEAD_SHIFT } else { 0 };
        let words = entry_words(self.level);
        let head_at = |position: usize| m.load_relaxed(&self.words[position * words]) >> shift;
        let (mut low, mut size) = (0, self.count);
        while size > 0 {
            let half = size.div_ceil(2);
            // Both are computed: which one it is cannot be predicted.
            low = if head_at(low + half - 1) < head { low + half } else { low };
            size -= half;
        }
        let mut high = low;
        while high < self.count && head_at(high) == head {
            high += 1;
        }
        low..high
    }

    /// Returns an entry.
    #[inline(always)]
    pub(super) fn entry<M: Medium>(&self, m: &M, position: usize) -> Entry {
        let words = entry_words(self.level);
        let cells = &self.words[position * words..][..words];
        let first = m.load_relaxed(&cells[0]);
        let [_, at, child] = cells else {
            let entry = LeafEntry(first);
            return Entry { head: entry.head(), at: entry.record(), child: 0, base: 0 };
        };
        let child = Child(m.load_relaxed(child));
        Entry { head: first, at: m.load_relaxed(at), child: child.id(), base: child.base() }
    }

    /// Notes where the base node of the child of an entry is.
    pub(super) fn note_child<M: Medium>(&self, m: &M, position: usize, child: Child) {
        let words = entry_words(self.level);
        if let Some(cell) = self.words[position * words..][..words].get(2) {
            m.store_transient(cell, child.0);
        }
    }

    /// Returns all entries.
    pub(super) fn entries<M: Medium>(&self, m: &M) -> impl Iterator<Item = Entry> {
        (0..self.len()).map(|position| self.entry(m, position))
    }

    /// Returns the words of the least key and of the key at which the next node begins.
    #[inline(always)]
    fn keys(&self) -> (&'m [PmU64], &'m [PmU64]) {
        self.words[self.count * entry_words(self.level)..].split_at(key_words(self.low) as usize)
    }

    /// Returns the least key that belongs into the node.
    pub(super) fn low<M: Medium>(&self, m: &M) -> Vec<u8> {
        bytes(m, self.keys().0, self.low)
    }

    /// Returns the key at which the next node begins, if there is one.
    pub(super) fn high<M: Medium>(&self, m: &M) -> Option<Vec<u8>> {
        (self.sibling != 0).then(|| bytes(m, self.keys().1, self.high))
    }

    /// Returns `true` if this node begins where `other` ends, and after that begins.
    pub(super) fn follows<M: Medium>(&self, m: &M, other: &Self) -> bool {
        let load = |cell: &PmU64| m.load_relaxed(cell).swap_bytes();
        let (before, end) = other.keys();
        let low = || self.keys().0.iter().map(load);
        // The words are padded with zeros, which no byte is less than.
        other.sibling != 0
            && self.low == other.high
            && low().eq(end.iter().map(load))
            && before.iter().map(load).cmp(low()).then(other.low.cmp(&self.low)).is_lt()
    }

    /// Compares the key at which the next node begins with another one, whose prefix is `prefix`.
    #[inline(always)]
    pub(super) fn compare_high<M: Medium>(&self, m: &M, key: &[u8], prefix: u64) -> Ordering {
        match m.load_relaxed(&self.header.high_prefix).cmp(&prefix) {
            Ordering::Equal => compare_key(m, self.keys().1, self.high, key),
            order => order,
        }
    }

    /// Returns what is known of the delta with a number, of a leaf node.
    #[inline(always)]
    pub(super) fn delta<M: Medium>(&self, m: &M, number: usize) -> Delta {
        // Acquire: the record is read next.
        Delta(m.load(&self.header.deltas[number]))
    }

    /// Returns what is known of the delta with a number, of a node that is not a leaf node: the
    /// offset of the record, and its prefix.
    #[inline(always)]
    pub(super) fn separator<M: Medium>(&self, m: &M, number: usize) -> (u64, u64) {
        // Acquire: the prefix and the record are read next.
        let record = m.load(&self.header.deltas[2 * number]);
        (record, m.load_relaxed(&self.header.deltas[2 * number + 1]))
    }

    /// Returns the offset of the record that is the delta with a number, or 0 if that is not known.
    #[inline(always)]
    pub(super) fn record_of_delta<M: Medium>(&self, m: &M, number: usize) -> u64 {
        match (number < known_deltas(self.level), self.level) {
            (false, _) => 0,
            (true, 0) => self.delta(m, number).record(),
            (true, _) => self.separator(m, number).0,
        }
    }

    /// Returns `false` if what is known of the delta with a number is something else than these:
    /// see [`note_delta`](Self::note_delta).
    pub(super) fn knows<M: Medium>(&self, m: &M, number: usize, record: u64, tag: u64) -> bool {
        match self.level {
            _ if self.record_of_delta(m, number) == 0 => true,
            0 => self.delta(m, number) == Delta::new(record, tag),
            _ => self.separator(m, number) == (record, tag),
        }
    }

    /// Notes that a record is the delta with a number, which is durable. `tag` is the hash of its
    /// key in a leaf node, its prefix in another one.
    pub(super) fn note_delta<M: Medium>(&self, m: &M, number: usize, record: u64, tag: u64) {
        let deltas = &self.header.deltas;
        if number >= known_deltas(self.level) {
            return;
        }
        if self.level == 0 {
            m.store_transient(&deltas[number], Delta::new(record, tag).0);
        } else {
            // Both are in one line, so the second does not become durable before the first.
            m.store_transient(&deltas[2 * number + 1], tag);
            m.store_transient(&deltas[2 * number], record);
        }
    }

    /// Returns what belongs into the node, and what is next to it.
    pub(super) fn bounds<M: Medium>(&self, m: &M) -> Bounds {
        let high = bytes(m, self.keys().1, self.high);
        Bounds { low: self.low(m), high, sibling: self.sibling, skip: self.skip }
    }

    /// Returns the size of the node in bytes, without copies.
    #[inline]
    pub(super) fn durable_bytes(&self) -> u64 {
        (size_of::<Base>() + size_of_val(self.words)) as u64
    }

    /// Returns the size of the node in bytes.
    pub(super) fn bytes(&self) -> u64 {
        with_copies(self.has_copies, self.count, self.durable_bytes())
    }

    /// Returns the number of keys that were removed, roughly.
    pub(super) fn removed<M: Medium>(&self, m: &M) -> u64 {
        m.load_relaxed(&self.header.removed)
    }

    /// Adds to the number of keys that were removed. Returns the new number.
    pub(super) fn add_removed<M: Medium>(&self, m: &M, count: u64) -> u64 {
        let cell = &self.header.removed;
        loop {
            let before = m.load(cell);
            let after = before.saturating_add(count);
            if m.cas_transient(cell, before, after).is_ok() {
                return after;
            }
        }
    }
}

/// Returns the number of deltas of a node that its base node knows.
#[inline(always)]
pub(super) fn known_deltas(level: u8) -> usize {
    if level == 0 { 16 } else { 8 }
}

fn bytes<M: Medium>(m: &M, cells: &[PmU64], length: usize) -> Vec<u8> {
    let mut key = vec![0; length];
    m.read_bytes(cells, &mut key);
    key
}
