//! Items: a key and its value in the medium, in one block.
//!
//! ```text
//! byte 0  lengths   key length (low half) | value length (high half), bytes
//! byte 8  key, then value, padded with zeros to 8 bytes
//! ```
//!
//! An item never changes. It is visible to other threads as soon as an entry of the hash index
//! names its position, and is retired when neither the hash index nor the tree names it.

use evermap_index::key::BytesRef;
use evermap_index::record::{KEY_MAX, bytes_equal, lengths};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

/// The number of bytes before the key.
const HEADER: u64 = 8;

/// Returns the number of words that lengths, key and value take.
fn words(key: u64, value: u64) -> u64 {
    HEADER / 8 + (key + value).div_ceil(8)
}

/// A block for an item that no index names yet. Dropping it frees the block, unless it was
/// [kept](Draft::keep).
pub(super) struct Draft<'p, M: Medium> {
    pool: &'p Pool<M>,
    position: u64,
    kept: bool,
}

impl<'p, M: Medium> Draft<'p, M> {
    /// Allocates a block for a key and a value of these lengths.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn allocate(pool: &'p Pool<M>, key: usize, value: usize) -> Result<Self> {
        if value as u64 > u64::from(u32::MAX) {
            return Err(Error::no_space("the longest value", value as u64 - u64::from(u32::MAX)));
        }
        let position = pool.allocate(words(key as u64, value as u64) * 8)?;
        Ok(Draft { pool, position, kept: false })
    }

    /// Returns the position, which is never 0.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Writes the item. Returns its words, for the caller to make durable.
    pub(super) fn write(&self, key: &[u8], value: &[u8]) -> &'p [PmU64] {
        let m = self.pool.medium();
        let words = words(key.len() as u64, value.len() as u64);
        let cells = m.slice::<PmU64>(self.position, words).expect("just allocated");
        m.store(&cells[0], key.len() as u64 | (value.len() as u64) << 32);
        m.write_bytes(&cells[1..], &[key, value].concat());
        cells
    }

    /// Leaves the block to the index that names it. Returns its position.
    pub(super) fn keep(mut self) -> u64 {
        self.kept = true;
        self.position
    }
}

impl<M: Medium> Drop for Draft<'_, M> {
    fn drop(&mut self) {
        if !self.kept {
            self.pool.free_unpublished(self.position);
        }
    }
}

/// An item at a position that an index has named.
#[derive(Clone, Copy)]
pub(super) struct Item<'m, M> {
    medium: &'m M,
    position: u64,
    lengths: u64,
    cells: &'m [PmU64],
}

impl<'m, M: Medium> Item<'m, M> {
    /// Returns the item at `position`. The caller holds a guard from before it learned the
    /// position.
    ///
    /// # Errors
    ///
    /// `Damaged` if there can be none.
    #[inline]
    pub(super) fn at(medium: &'m M, position: u64) -> Result<Self> {
        let found = || {
            let lengths = medium.load_relaxed(medium.at::<PmU64>(position)?);
            let (key, value) = self::lengths(lengths);
            let cells = medium.slice::<PmU64>(position.checked_add(HEADER)?, {
                // Both are less than 2^33.
                (key + value).div_ceil(8)
            })?;
            Some(Item { medium, position, lengths, cells })
        };
        found().ok_or_else(|| Error::damaged(position, "no item where an index names one"))
    }

    /// Returns the number of words of the key, and of the bytes in it.
    fn key_bytes(&self) -> usize {
        lengths(self.lengths).0 as usize
    }

    /// Returns `true` if this is the item of `key`.
    #[inline]
    pub(super) fn has_key(&self, key: &[u8]) -> bool {
        let cells = &self.cells[..self.key_bytes().div_ceil(8)];
        self.key_bytes() == key.len() && bytes_equal(self.medium, cells, key)
    }

    /// Replaces the contents of `out` with the key.
    pub(super) fn read_key(&self, out: &mut Vec<u8>) {
        out.resize(self.key_bytes(), 0);
        self.medium.read_bytes(self.cells, out);
    }

    /// Replaces the contents of `out` with the key, if that can be a key with this hash.
    pub(super) fn read_key_of(&self, signature: u64, seed: u64, out: &mut Vec<u8>) -> bool {
        if self.key_bytes() > KEY_MAX {
            return false;
        }
        self.read_key(out);
        BytesRef::new(out, seed).hash == signature
    }

    /// Replaces the contents of `out` with the value.
    pub(super) fn read_value(&self, out: &mut Vec<u8>) {
        let (key, value) = lengths(self.lengths);
        // The word in which the key ends may start with the last bytes of the key.
        let (skipped, rest) = ((key / 8) as usize, (key % 8) as usize);
        out.resize(rest + value as usize, 0);
        self.medium.read_bytes(&self.cells[skipped..], out);
        out.drain(..rest);
    }

    /// Returns the value as a word.
    ///
    /// # Errors
    ///
    /// `Damaged` if it has not 8 bytes.
    pub(super) fn word(&self, buffer: &mut Vec<u8>) -> Result<u64> {
        let wrong = || Error::damaged(self.position, "a value that is no word");
        if lengths(self.lengths).1 != 8 {
            return Err(wrong());
        }
        self.read_value(buffer);
        Ok(u64::from_le_bytes(buffer[..].try_into().map_err(|_| wrong())?))
    }

    /// Returns the size of the item in bytes.
    pub(super) fn bytes(&self) -> u64 {
        HEADER + self.cells.len() as u64 * 8
    }

    /// Retires the item, which no index names any more.
    pub(super) fn retire(&self, pool: &Pool<M>, guard: &Guard<'_>) {
        pool.retire(self.position, self.bytes(), guard);
    }
}
