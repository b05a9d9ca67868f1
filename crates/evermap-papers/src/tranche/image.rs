//! The content of a group, composed anew in ordinary memory.

use std::marker::PhantomData;

use evermap_pm::{Medium, PmU64};

use super::geometry::Geometry;
use super::group::{Stored, Wanted};
use super::layout::{COMMIT, Commit, Entry, GROUP_WORD, Kind, LINK, Named, OVERFLOWS_MAX, Shape};

/// A live record.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) hash: u64,
    pub(super) kind: Kind,
    pub(super) payload: &'a [PmU64],
}

impl<'a> Item<'a> {
    /// Returns a record of a tranche as an item; `hash` is that of its key.
    pub(super) fn of(stored: &Stored<'a>, hash: u64) -> Self {
        Item { hash, kind: stored.entry.kind, payload: stored.payload }
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted { hash: self.hash, kind: self.kind, words: self.payload.len() }
    }
}

/// Returns the number of bytes that a record with a payload of `words` words takes in a tranche.
pub(super) const fn bytes_of(words: usize) -> u64 {
    words as u64 * 8 + 3
}

/// Returns the tranche of a group at which the search for a key begins: its home.
#[inline(always)]
pub(super) fn home<G: Geometry>(hash: u64) -> usize {
    home_of(hash, G::TRANCHES.ilog2()) as usize
}

/// Returns the home in a group of `2^homes` tranches.
#[inline(always)]
pub(super) fn home_of(hash: u64, homes: u32) -> u64 {
    hash >> 56 & ((1 << homes) - 1)
}

/// Returns the fingerprint of a key.
#[inline(always)]
pub(super) fn fingerprint(hash: u64) -> u8 {
    (hash >> 44) as u8
}

/// Returns the tranche at which a search arrives after `step` steps. Those behind the group's
/// own are in overflow blocks.
#[inline(always)]
pub(super) fn nth<G: Geometry>(home: usize, step: usize) -> usize {
    if step < G::TRANCHES { (home + step) % G::TRANCHES } else { step }
}

/// Returns the number of steps after which a search arrives at a tranche.
#[inline(always)]
pub(super) fn steps_to<G: Geometry>(home: usize, tranche: usize) -> usize {
    let count = G::TRANCHES;
    if tranche < count { (tranche + count - home) % count } else { tranche }
}

/// The words of a group and its overflow blocks.
pub(super) struct Image<G: Geometry> {
    words: Vec<u64>,
    geometry: PhantomData<fn() -> G>,
}

impl<G: Geometry> Image<G> {
    /// Words in a group, or in an overflow block.
    pub(super) const BLOCK: usize = G::TRANCHE_BYTES * G::TRANCHES / 8;
    const WORDS: usize = Shape::<G>::WORDS;

    /// Places records in an empty group. Returns `None` if they do not fit into that and the
    /// greatest number of overflow blocks.
    pub(super) fn compose<M: Medium>(m: &M, items: &[Item<'_>]) -> Option<Self> {
        let mut image = Image { words: Vec::new(), geometry: PhantomData };
        image.add_block();
        for item in items {
            image.place(m, item)?;
        }
        Some(image)
    }

    /// Reads the image of a group without overflow blocks. Returns `None` if it is impossible.
    pub(super) fn read<M: Medium>(m: &M, words: &[PmU64]) -> Option<Self> {
        let words = words.iter().map(|word| m.load(word)).collect();
        let image = Image { words, geometry: PhantomData };
        let possible = |tranche| Commit::decode::<G>(image.words[image.at(tranche, COMMIT)]);
        (0..G::TRANCHES).all(|tranche| possible(tranche).is_some()).then_some(image)
    }

    fn add_block(&mut self) {
        let first = self.words.len() / Self::WORDS;
        self.words.resize(self.words.len() + Self::BLOCK, 0);
        (first..first + G::TRANCHES).for_each(|at| self.set_commit(at, Commit::empty(Self::WORDS)));
    }

    /// Returns the number of overflow blocks.
    pub(super) fn overflows(&self) -> usize {
        self.words.len() / Self::BLOCK - 1
    }

    fn at(&self, tranche: usize, word: usize) -> usize {
        tranche * Self::WORDS + word
    }

    fn commit(&self, tranche: usize) -> Commit {
        let word = self.words[self.at(tranche, COMMIT)];
        Commit::decode::<G>(word).expect("composed here, or checked when read")
    }

    fn set_commit(&mut self, tranche: usize, commit: Commit) {
        let at = self.at(tranche, COMMIT);
        self.words[at] = commit.encode();
    }

    fn place<M: Medium>(&mut self, m: &M, item: &Item<'_>) -> Option<()> {
        let home = home::<G>(item.hash);
        for step in 0.. {
            let tranche = nth::<G>(home, step);
            if tranche * Self::WORDS == self.words.len() {
                if self.overflows() == OVERFLOWS_MAX {
                    return None;
                }
                self.add_block();
            }
            let commit = self.commit(tranche);
            if commit.has_room::<G>(item.payload.len()) {
                self.append(m, tranche, commit, item);
                break;
            }
            self.set_commit(tranche, commit.passed());
        }
        Some(())
    }

    fn append<M: Medium>(&mut self, m: &M, tranche: usize, commit: Commit, item: &Item<'_>) {
        let (at, start) = (commit.count, commit.low - item.payload.len());
        let entry = Entry { start, kind: item.kind, dead: false };
        let fingerprints = self.at(tranche, Shape::<G>::fingerprint_word(at));
        let entries = self.at(tranche, Shape::<G>::entry_word(at));
        self.words[fingerprints] |= u64::from(fingerprint(item.hash)) << (at % 8 * 8);
        self.words[entries] |= u64::from(entry.encode()) << (at % 4 * 16);
        for (place, word) in item.payload.iter().enumerate() {
            let at = self.at(tranche, start + place);
            self.words[at] = m.load(word);
        }
        self.set_commit(tranche, Commit { count: at + 1, low: start, ..commit });
    }

    /// Records the offsets of the overflow blocks of the group with this number.
    pub(super) fn link(&mut self, group: u64, blocks: &[u64]) {
        for (place, &block) in blocks.iter().enumerate() {
            let at = self.at(place * G::TRANCHES + LINK, GROUP_WORD);
            self.words[at] = Named::Overflow(group, place).encode(block);
        }
    }

    /// Stores block `block` of the image (0 is the group itself) and flushes it, without a fence.
    /// The words for versions are left out.
    pub(super) fn store<M: Medium>(&self, m: &M, block: usize, target: &[PmU64]) {
        for tranche in 0..G::TRANCHES {
            let commit = self.commit(block * G::TRANCHES + tranche);
            let first = if tranche == LINK { GROUP_WORD } else { COMMIT };
            for range in [first..Shape::<G>::strip_end(commit.count), commit.low..Self::WORDS] {
                let from = self.at(block * G::TRANCHES + tranche, range.start);
                let cells = &target[self.at(tranche, range.start)..][..range.len()];
                for (cell, &word) in cells.iter().zip(&self.words[from..]) {
                    m.store(cell, word);
                }
                m.flush(cells);
            }
        }
    }
}
