//! Keys, as a leaf has them.

use std::cmp::Ordering;

use evermap_index::ordered::leaf::compare_key;
use evermap_index::record::{KEY_MAX, bytes_equal};
use evermap_pm::{Error, Medium, PmU64, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::{INLINE_MAX, KeyField, key_bytes};
use crate::search::Search;

impl Search<'_> {
    /// Returns the fingerprint of the key: of a hash that no index uses for anything else.
    #[inline]
    pub(super) fn fingerprint(&self, seed: u64) -> u8 {
        xxh3_64_with_seed(self.key, seed) as u8
    }
}

/// A key in a leaf, as it was when it was read.
#[derive(Clone, Copy)]
pub(super) struct Stored<'m> {
    pub(super) length: usize,
    words: [u64; 2],
    /// All of a key that has a block.
    cells: &'m [PmU64],
}

impl<'m> Stored<'m> {
    /// Reads a key.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn read<M: Medium>(m: &'m M, field: &KeyField) -> Result<Self> {
        let length = m.load(&field.length) as usize;
        let words = [m.load(&field.words[0]), m.load(&field.words[1])];
        let cells = match length {
            0..=INLINE_MAX => &[][..],
            _ => cells(m, words[1], length)?,
        };
        Ok(Stored { length, words, cells })
    }

    /// Returns the first eight bytes as a number.
    pub(super) fn prefix(&self) -> u64 {
        self.words[0]
    }

    /// Returns the offset of the block and its size in bytes, if the key has one.
    pub(super) fn block(&self) -> Option<(u64, u64)> {
        (self.length > INLINE_MAX).then(|| (self.words[1], key_bytes(self.length)))
    }

    /// Appends the key to `out`.
    pub(super) fn append<M: Medium>(&self, m: &M, out: &mut Vec<u8>) {
        let start = out.len();
        if self.length > INLINE_MAX {
            out.resize(start + self.length, 0);
            m.read_bytes(self.cells, &mut out[start..]);
        } else {
            out.extend(self.words.iter().flat_map(|word| word.to_be_bytes()));
            out.truncate(start + self.length);
        }
    }

    /// Returns the key.
    pub(super) fn to_vec<M: Medium>(self, m: &M) -> Vec<u8> {
        let mut key = Vec::new();
        self.append(m, &mut key);
        key
    }

    /// Compares the key with one that is searched for.
    #[inline]
    pub(super) fn compare<M: Medium>(&self, m: &M, search: &Search<'_>) -> Ordering {
        let first = self.words[0].cmp(&search.head[0]);
        first.then_with(|| match self.length {
            // Padded with zeros they are equal only if one is the other followed by zeros.
            0..=INLINE_MAX => {
                self.words[1].cmp(&search.head[1]).then(self.length.cmp(&search.key.len()))
            }
            _ => compare_key(m, self.cells, self.length, search.key),
        })
    }

    /// Compares the key with another one in a leaf.
    pub(super) fn compare_stored<M: Medium>(&self, m: &M, other: &Self) -> Ordering {
        self.words[0].cmp(&other.words[0]).then_with(|| {
            if self.length.max(other.length) <= INLINE_MAX {
                return self.words[1].cmp(&other.words[1]).then(self.length.cmp(&other.length));
            }
            let other = other.to_vec(m);
            self.compare(m, &Search::at(&other))
        })
    }
}

/// Returns the words of the block of a key.
fn cells<M: Medium>(m: &M, offset: u64, length: usize) -> Result<&[PmU64]> {
    let words = (length as u64).div_ceil(8);
    let cells = (length <= KEY_MAX && offset != 0).then(|| m.slice(offset, words)).flatten();
    cells.ok_or_else(|| Error::damaged(offset, "there is no such key of a tree"))
}

impl KeyField {
    /// Returns `true` if this is the key that is searched for.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn is_of<M: Medium>(&self, m: &M, search: &Search<'_>) -> Result<bool> {
        let length = search.key.len();
        if m.load(&self.length) != length as u64 || m.load(&self.words[0]) != search.head[0] {
            return Ok(false);
        }
        let second = m.load(&self.words[1]);
        match length {
            0..=INLINE_MAX => Ok(second == search.head[1]),
            _ => Ok(bytes_equal(m, cells(m, second, length)?, search.key)),
        }
    }

    /// Stores a key, whose block is at `block` if it needs one. Does not flush it.
    pub(super) fn store<M: Medium>(&self, m: &M, search: &Search<'_>, block: Option<u64>) {
        m.store(&self.length, search.key.len() as u64);
        m.store(&self.words[0], search.head[0]);
        m.store(&self.words[1], block.unwrap_or(search.head[1]));
    }

    /// Stores a copy of a key that `from` has. Does not flush it.
    pub(super) fn copy<M: Medium>(&self, m: &M, from: &KeyField) {
        m.store(&self.length, m.load(&from.length));
        for (to, from) in self.words.iter().zip(&from.words) {
            m.store(to, m.load(from));
        }
    }
}

/// Fills the new block of a key, and returns it for the caller to flush.
pub(super) fn write_block<'m, M: Medium>(m: &'m M, block: u64, key: &[u8]) -> &'m [PmU64] {
    let cells: &[PmU64] = m.slice(block, key_bytes(key.len()) / 8).expect("just allocated");
    m.write_bytes(cells, key);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::sim::Sim;

    /// Keys of all lengths about that from which they have blocks, and with zeros at their ends.
    #[test]
    fn stored_keys_compare_as_keys_do() {
        let sim = Sim::new(1 << 16).unwrap();
        sim.grow(1 << 16).unwrap();
        let mut keys: Vec<Vec<u8>> = (0..20).map(|length| vec![0; length]).collect();
        for length in [1, 7, 8, 9, 15, 16, 17, 18, 30] {
            for end in 0..3u8 {
                keys.push([vec![1; length], vec![end]].concat());
                keys.push([vec![0; length], vec![end, end]].concat());
            }
        }
        keys.sort();
        keys.dedup();
        let stored = |at: usize| {
            let (field, block) = (4096 + 24 * at as u64, 8192 + 64 * at as u64);
            let (field, key) = (sim.at::<KeyField>(field).unwrap(), &keys[at]);
            let block = (key.len() > INLINE_MAX).then(|| {
                write_block(&sim, block, key);
                block
            });
            field.store(&sim, &Search::at(key), block);
            (field, Stored::read(&sim, field).unwrap())
        };
        for (one, key) in keys.iter().enumerate() {
            let (field, read) = stored(one);
            assert_eq!(read.to_vec(&sim), *key);
            assert_eq!(read.block().is_some(), key.len() > INLINE_MAX);
            for (other, key) in keys.iter().enumerate() {
                let (search, order) = (Search::at(key), one.cmp(&other));
                assert_eq!(read.compare(&sim, &search), order, "{one} {other}");
                assert_eq!(read.compare_stored(&sim, &stored(other).1), order, "{one} {other}");
                assert_eq!(field.is_of(&sim, &search).unwrap(), one == other);
            }
        }
    }

    #[test]
    fn a_key_that_cannot_be_is_damaged() {
        let sim = Sim::new(4096).unwrap();
        sim.grow(4096).unwrap();
        let field = sim.at::<KeyField>(64).unwrap();
        for (length, block) in [(KEY_MAX as u64 + 1, 128), (17, 0), (17, 4090), (u64::MAX, 128)] {
            sim.store(&field.length, length);
            sim.store(&field.words[1], block);
            assert!(Stored::read(&sim, field).is_err());
        }
    }
}
