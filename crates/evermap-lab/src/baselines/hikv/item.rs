//! Items: a key and its value in the medium, in one block.
//!
//! ```text
//! byte 0  lengths   key length (low half) | value length (high half), bytes
//! byte 8  key, then value, padded with zeros to 8 bytes
//! ```
//!
//! An item never changes. It is visible to other threads as soon as an entry of the hash index
//! names its position, and is retired when neither the hash index nor the tree names it.

use evermap_index::record::{bytes_equal, lengths};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use crate::indexes::records::read_value;

/// The number of bytes before the key.
const HEADER: u64 = 8;

/// Returns the number of words that lengths, key and value take.
fn words(key: u64, value: u64) -> u64 {
    HEADER / 8 + (key + value).div_ceil(8)
}

/// Writes an item and makes it durable with one persist. Returns its position, which is never 0.
pub(super) fn write<M: Medium>(pool: &Pool<M>, key: &[u8], value: &[u8]) -> Result<u64> {
    let m = pool.medium();
    let (key_bytes, value_bytes) = (key.len() as u64, value.len() as u64);
    let words = words(key_bytes, value_bytes);
    let position = pool.allocate(words * 8)?;
    let cells = m.slice::<PmU64>(position, words).expect("just allocated");
    m.store(&cells[0], key_bytes | value_bytes << 32);
    m.write_bytes(&cells[1..], &[key, value].concat());
    m.persist(cells);
    Ok(position)
}

/// An item at a position that an index has named.
pub(super) struct Item<'m, M> {
    medium: &'m M,
    position: u64,
    lengths: u64,
    key: &'m [PmU64],
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
            let fits = medium.contains(position, words(key, value).checked_mul(8)?, 8);
            let key = medium.slice::<PmU64>(position + HEADER, key.div_ceil(8))?;
            fits.then_some(Item { medium, position, lengths, key })
        };
        found().ok_or_else(|| Error::damaged(position, "no item where an index names one"))
    }

    /// Returns `true` if this is the item of `key`.
    #[inline]
    pub(super) fn has_key(&self, key: &[u8]) -> bool {
        lengths(self.lengths).0 == key.len() as u64 && bytes_equal(self.medium, self.key, key)
    }

    /// Replaces the contents of `out` with the key.
    pub(super) fn read_key(&self, out: &mut Vec<u8>) {
        out.resize(lengths(self.lengths).0 as usize, 0);
        self.medium.read_bytes(self.key, out);
    }

    /// Replaces the contents of `out` with the value.
    pub(super) fn read_value(&self, out: &mut Vec<u8>) {
        read_value(self.medium, self.position + HEADER, self.lengths, out)
            .expect("found inside the medium, which never shrinks");
    }

    /// Retires the item, which no index names any more.
    pub(super) fn retire(&self, pool: &Pool<M>, guard: &Guard<'_>) {
        let (key, value) = lengths(self.lengths);
        pool.retire(self.position, words(key, value) * 8, guard);
    }
}
