//! The leaves of trees: blocks with a key and the word that it is bound to.

use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow};

use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, PmU64, Pool, Result, pod};

use super::{Direction, Page, Run};
use crate::recipe::{self, Preparation};
use crate::record::{KEY_MAX, bytes_equal};

pod! {
    /// The fixed part of a leaf. The bytes of the key follow, padded with zeros to 8 bytes. They
    /// are immutable, and so is the length.
    pub struct Leaf: 24 {
        /// See [`LeafState`].
        pub state: PmU64,
        /// The word that the key is bound to, and the place for the next one.
        pub words: [PmU64; 2],
    }
}

/// The first word of a leaf. Its store commits another word for the key.
///
/// ```text
/// bit  0..17  length of the key in bytes
/// bit 17      this word may not be durable yet: see `recipe::help`
/// bit 18..63  version: counts changes; its lowest bit chooses the word
/// bit 63      the key is not bound any more, and will not be by this leaf
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafState(pub u64);

impl LeafState {
    /// The bit of a word that may not be durable yet.
    pub const MARK: u64 = 1 << 17;
    const ONE: u64 = 1 << 18;
    const REMOVED: u64 = 1 << 63;

    /// Returns the word of a new leaf.
    pub fn new(length: usize) -> Self {
        LeafState(length as u64)
    }

    /// Returns the length of the key in bytes.
    #[inline(always)]
    pub fn length(self) -> usize {
        (self.0 & (Self::MARK - 1)) as usize
    }

    /// Returns the position of the word that the key is bound to.
    #[inline(always)]
    pub fn current(self) -> usize {
        usize::from(self.0 & Self::ONE != 0)
    }

    /// Returns the state after the next change.
    pub fn next(self) -> Self {
        LeafState((self.0 & !Self::MARK).wrapping_add(Self::ONE))
    }

    /// Returns the state once the key is not bound any more.
    pub fn removed(self) -> Self {
        LeafState(self.0 & !Self::MARK | Self::REMOVED)
    }

    /// Returns `true` if the key is not bound any more.
    #[inline(always)]
    pub fn is_removed(self) -> bool {
        self.0 & Self::REMOVED != 0
    }
}

/// A leaf.
#[derive(Clone, Copy)]
pub struct LeafRef<'m> {
    /// The leaf.
    pub leaf: &'m Leaf,
    /// Its offset.
    pub offset: u64,
    length: usize,
    /// The words of the key.
    cells: &'m [PmU64],
}

impl<'m> LeafRef<'m> {
    /// Returns the leaf at an offset.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub fn at<M: Medium>(m: &'m M, offset: u64) -> Result<Self> {
        let damaged = || Error::damaged(offset, "there is no such leaf of a tree");
        let leaf = m.at::<Leaf>(offset).ok_or_else(damaged)?;
        let length = LeafState(m.load_relaxed(&leaf.state)).length();
        if length > KEY_MAX {
            return Err(damaged());
        }
        let from = offset + size_of::<Leaf>() as u64;
        let cells = m.slice(from, (length as u64).div_ceil(8)).ok_or_else(damaged)?;
        Ok(LeafRef { leaf, offset, length, cells })
    }

    /// Writes a leaf to a new block of [`leaf_bytes`], where nobody can find it yet, and flushes
    /// it.
    #[track_caller]
    pub fn write<M: Medium>(m: &M, block: u64, key: &[u8], word: u64) {
        m.flush(Self::store(m, block, key, word));
    }

    /// Does the same, and leaves it to the caller to flush what it returns.
    #[track_caller]
    pub fn store<'a, M: Medium>(m: &'a M, block: u64, key: &[u8], word: u64) -> &'a [PmU64] {
        let leaf = m.at::<Leaf>(block).expect("just allocated");
        let all: &[PmU64] = m.slice(block, leaf_bytes(key.len()) / 8).expect("just allocated");
        m.store(&leaf.words[0], word);
        m.store(&leaf.state, LeafState::new(key.len()).0);
        m.write_bytes(&all[size_of::<Leaf>() / 8..], key);
        all
    }

    /// Returns the word of the leaf, once it is durable.
    #[inline(always)]
    pub fn word<M: Medium>(&self, m: &M) -> u64 {
        self.read(m).1
    }

    /// Returns the state of the leaf and its word, once they are durable.
    #[inline(always)]
    pub fn read<M: Medium>(&self, m: &M) -> (LeafState, u64) {
        let mut now = self.state(m);
        loop {
            // Acquire: the state is loaded again after the word.
            let word = m.load(&self.leaf.words[now.current()]);
            let then = self.state(m);
            if then == now {
                return (now, word);
            }
            // The place of the word may have been used for a newer one, which is not durable.
            now = then;
        }
    }

    /// Returns the state of the leaf, once it is durable.
    #[inline(always)]
    pub fn state<M: Medium>(&self, m: &M) -> LeafState {
        let (cell, word) = (&self.leaf.state, m.load(&self.leaf.state));
        if word & LeafState::MARK != 0 {
            m.note(Note::Harmless(
                "needed while a writer is at its fence: `a_lookup_makes_durable_what_it_acts_on`",
            ));
        }
        LeafState(recipe::help(m, cell, word, LeafState::MARK))
    }

    /// Binds the key to another word, durably. No other thread does so at the same time.
    #[track_caller]
    pub fn put<M: Medium>(&self, m: &M, word: u64) {
        let state = LeafState(m.load(&self.leaf.state)).next();
        let mut change = Preparation::new(m, &self.leaf.state);
        m.note(Note::Harmless("torn, it is complete before the state refers to it"));
        change.store(&self.leaf.words[state.current()], word);
        change.commit_marked(state.0, LeafState::MARK);
    }

    /// Unbinds the key for good, durably. No other thread changes the leaf at the same time.
    #[track_caller]
    pub fn remove<M: Medium>(&self, m: &M) {
        let state = LeafState(m.load(&self.leaf.state)).removed();
        recipe::commit_marked(m, &self.leaf.state, state.0, LeafState::MARK);
    }

    /// Returns the [`prefix`] of the key.
    #[inline(always)]
    pub fn prefix<M: Medium>(&self, m: &M) -> u64 {
        self.cells.first().map_or(0, |cell| m.load_relaxed(cell).swap_bytes())
    }

    /// Returns the number of bytes of the block.
    pub fn bytes(&self) -> u64 {
        leaf_bytes(self.length)
    }

    /// Returns the length of the key in bytes.
    pub fn key_len(&self) -> usize {
        self.length
    }

    /// Compares the key with another one.
    pub fn compare<M: Medium>(&self, m: &M, key: &[u8]) -> Ordering {
        compare_key(m, self.cells, self.length, key)
    }

    /// Compares the key with that of another leaf.
    pub fn compare_leaf<M: Medium>(&self, m: &M, other: &LeafRef<'_>) -> Ordering {
        // The words are padded with zeros, which no byte is less than.
        let load = |cell: &PmU64| m.load_relaxed(cell).swap_bytes();
        let words = self.cells.iter().map(load).cmp(other.cells.iter().map(load));
        words.then(self.length.cmp(&other.length))
    }

    /// Returns `true` if this is the leaf of `key`.
    #[inline(always)]
    pub fn is_of<M: Medium>(&self, m: &M, key: &[u8]) -> bool {
        match (key.try_into(), self.eight_bytes(m)) {
            (Ok(key), Some(own)) => u64::from_le_bytes(key) == u64::from_le_bytes(own),
            _ => self.length == key.len() && bytes_equal(m, self.cells, key),
        }
    }

    /// Returns the key if it has eight bytes.
    #[inline]
    fn eight_bytes<M: Medium>(&self, m: &M) -> Option<[u8; 8]> {
        // A word of the medium has the bytes in little-endian order.
        self.cells
            .first()
            .filter(|_| self.length == 8)
            .map(|cell| m.load_relaxed(cell).to_le_bytes())
    }

    /// Appends the key and a word that was read from the leaf to `pairs`.
    #[inline]
    pub fn append_to<M: Medium>(&self, m: &M, word: u64, pairs: &mut Run) {
        match self.eight_bytes(m) {
            Some(key) => pairs.push(&key, word),
            None => pairs.push_with(word, |bytes| self.append_key(m, bytes)),
        }
    }

    /// Appends the key of the leaf at an offset and its word, once that is durable, to `pairs`.
    /// Returns the number of bytes of the leaf.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    fn copy<M: Medium>(m: &M, offset: u64, pairs: &mut Run) -> Result<u64> {
        // As most leaves are, with a key of eight bytes.
        if let Some([state_cell, words @ .., key]) = m.at::<[PmU64; 4]>(offset) {
            let state = LeafState(m.load(state_cell));
            // Acquire: the state is loaded again after the word.
            let word = m.load(&words[state.current()]);
            let is_plain = state.0 & (LeafState::MARK | (LeafState::MARK - 1)) == 8;
            if is_plain && m.load(state_cell) == state.0 {
                pairs.push(&m.load_relaxed(key).to_le_bytes(), word);
                return Ok(leaf_bytes(8));
            }
        }
        let leaf = LeafRef::at(m, offset)?;
        leaf.append_to(m, leaf.word(m), pairs);
        Ok(leaf.bytes())
    }

    /// Appends the key to `out`.
    pub fn append_key<M: Medium>(&self, m: &M, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.length, 0);
        m.read_bytes(self.cells, &mut out[start..]);
    }

    /// Returns the key.
    pub fn key<M: Medium>(&self, m: &M) -> Vec<u8> {
        let mut key = Vec::new();
        self.append_key(m, &mut key);
        key
    }

    /// Returns the number of bytes that the key and `other` begin with both.
    pub fn common<M: Medium>(&self, m: &M, other: &[u8]) -> usize {
        common_bytes(m, self.cells, self.length, other)
    }

    /// Returns the eight bytes of the key from byte `8 * at` on, as a number that is ordered as
    /// they are. Behind the end of the key there are zeros.
    pub fn word_of_key<M: Medium>(&self, m: &M, at: usize) -> u64 {
        self.cells.get(at).map_or(0, |cell| m.load_relaxed(cell).swap_bytes())
    }

    /// Returns the symbol that the key has at `level`, or `None` if it ends there.
    pub fn symbol<M: Medium>(&self, m: &M, level: usize) -> Option<u8> {
        (level < self.length)
            .then(|| m.load_relaxed(&self.cells[level / 8]).to_le_bytes()[level % 8])
    }
}

/// Returns the number of bytes that a key in words, padded with zeros, and `other` begin with both.
fn common_bytes<M: Medium>(m: &M, cells: &[PmU64], length: usize, other: &[u8]) -> usize {
    let most = length.min(other.len());
    for (at, (cell, bytes)) in cells.iter().zip(other.chunks(8)).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let differ = m.load_relaxed(cell) ^ u64::from_le_bytes(word);
        if differ != 0 {
            return most.min(at * 8 + differ.trailing_zeros() as usize / 8);
        }
    }
    most
}

/// Compares a key in words, padded with zeros, with another one.
pub fn compare_key<M: Medium>(m: &M, cells: &[PmU64], length: usize, other: &[u8]) -> Ordering {
    let common = common_bytes(m, cells, length, other);
    let symbol =
        (common < length).then(|| m.load_relaxed(&cells[common / 8]).to_le_bytes()[common % 8]);
    symbol.cmp(&other.get(common).copied())
}

/// The number of leaves that [`walk_all`] shows under one guard.
const UNIT: usize = 1024;

/// Walks over all leaves in the order of their keys, with a guard for a thousand of them at a time.
/// `start` begins a walk at a bound, and `next` goes on to the next leaf, if there is one, unless
/// the walk is to end.
///
/// # Errors
/// Those of `start` and `next`. `Damaged` if the walk does not advance.
pub fn walk_all<'m, M: Medium, W>(
    pool: &'m Pool<M>,
    start: impl Fn(Bound<&[u8]>) -> Result<W>,
    mut next: impl FnMut(&mut W) -> Result<ControlFlow<(), Option<LeafRef<'m>>>>,
) -> Result<()> {
    let mut last: Option<Vec<u8>> = None;
    loop {
        let _guard = pool.pin();
        let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut walk = start(from)?;
        let mut shown = None;
        for _ in 0..UNIT {
            match next(&mut walk)? {
                ControlFlow::Continue(Some(leaf)) => shown = Some(leaf),
                ControlFlow::Continue(None) | ControlFlow::Break(()) => return Ok(()),
            }
        }
        let Some(leaf) = shown else { return Ok(()) };
        let key = leaf.key(pool.medium());
        // Otherwise a damaged key could lead the walk back, again and again.
        if last.is_some_and(|last| last >= key) {
            return Err(Error::damaged(leaf.offset, "a leaf of a tree is not in order"));
        }
        last = Some(key);
    }
}

/// Makes a page of up to `most` leaves, whose offsets `next` returns in the order of the scan. A
/// page usually has `usual` pairs. The next page begins beyond the last one, unless the tree ends
/// there.
///
/// Leaves that are damaged are passed over.
///
/// # Errors
/// Those of `next`, and the first of a leaf that is not damage.
pub fn fill_page<M: Medium>(
    m: &M,
    page: &mut Page,
    (from, direction): (Bound<&[u8]>, Direction),
    (most, usual): (usize, usize),
    mut next: impl FnMut() -> Result<Option<u64>>,
) -> Result<()> {
    // One more, to see where the last one belongs, unless a short scan will end with it.
    let wanted = if most < usual { most } else { most + 1 };
    let mut leaves = std::mem::take(&mut page.places);
    leaves.clear();
    let bytes = page.leaf_bytes;
    let mut ended = false;
    while leaves.len() < wanted && !ended {
        match next()? {
            Some(leaf) => {
                prefetch_of(m, leaf, bytes);
                leaves.push(leaf);
            }
            None => ended = true,
        }
    }
    ended &= leaves.len() <= most;
    page.clear();
    page.pairs.reserve(leaves.len());
    // Each leaf is somewhere else, so they are read when the memory has been asked for all of them.
    let push = |offset: &u64| -> Result<()> {
        match LeafRef::copy(m, *offset, &mut page.pairs) {
            Ok(bytes) => page.leaf_bytes = bytes,
            Err(error) => return page.pass_over_damage(error),
        }
        Ok(())
    };
    match direction {
        Direction::Ascending => leaves.iter().try_for_each(push)?,
        Direction::Descending => leaves.iter().rev().try_for_each(push)?,
    }
    page.places = leaves;
    page.keep_ordered(from, direction, most);
    if !ended {
        page.continue_beyond_pairs(from, direction);
    }
    Ok(())
}

/// Prefetches a leaf whose key has up to 24 bytes.
pub fn prefetch<M: Medium>(m: &M, leaf: u64) {
    m.prefetch_bytes(leaf, leaf_bytes(24));
}

/// Prefetches a leaf that probably has this number of bytes: few lines more than are needed, of
/// many leaves at a time, would keep the memory busy.
#[inline]
pub fn prefetch_of<M: Medium>(m: &M, leaf: u64, bytes: u64) {
    const LINE: u64 = 64;
    m.prefetch(leaf);
    if leaf % LINE + bytes > LINE {
        m.prefetch(leaf.wrapping_add(LINE));
    }
}

/// Returns the size in bytes of a leaf whose key has this length.
pub fn leaf_bytes(length: usize) -> u64 {
    size_of::<Leaf>() as u64 + (length as u64).next_multiple_of(8)
}

/// Returns the first eight bytes of a key as a number, so that numbers are ordered as the keys are.
/// A shorter key is padded with zeros.
#[inline(always)]
pub fn prefix(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    match key.first_chunk() {
        Some(first) => bytes = *first,
        None => bytes[..key.len()].copy_from_slice(key),
    }
    u64::from_be_bytes(bytes)
}
