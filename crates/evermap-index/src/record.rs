//! Variable-length keys in the heap.
//!
//! ```text
//! byte  0  control      changed in place by the owner of the record (expiry, state)
//! byte  8  cas          the CAS id: a number that no other version of a record has
//! byte 16  check        CRC32C of the map, bytes 8..16, 20..end (low half) | flags (high half)
//! byte 24  lengths      key length (17 bits) | state of the owner (15) | value length (32), bytes
//! byte 32  key, then value, padded with zeros to 8 bytes
//! ```
//!
//! The index uses only the key and its length; the other fields belong to the owner of the record.
//! Everything except `control` and the owner's state in `lengths` is immutable once the record is
//! published. The checksum covers the lengths without that state.

use evermap_pm::{Medium, PmU64, pod};

/// The length of the longest key, bytes.
pub const KEY_MAX: usize = 65_536;
/// The bits of a word that are an offset. The high 16 bits are free for the owner of the words.
pub const OFFSET_MASK: u64 = (1 << 48) - 1;
/// The number of bytes before the key.
pub const HEADER: u64 = 32;
/// The number of bytes of a record that a comparison with a short key reads.
pub const HEAD: u64 = HEADER + 16;

pod! {
    /// The fixed part of a record.
    pub struct Header: 32 {
        /// The owner's mutable state.
        pub control: PmU64,
        /// A number that no other version of a record has.
        pub cas: PmU64,
        /// Checksum and flags.
        pub check: PmU64,
        /// Key length (17 bits), state of the owner (15 bits), value length (32 bits).
        pub lengths: PmU64,
    }
}

/// Where the owner's state begins in a `lengths` word, after the bits of the key length.
const STATE_SHIFT: u32 = KEY_MAX.ilog2() + 1;
/// The bits of the owner's state in a `lengths` word.
const STATE_MASK: u64 = (1 << 32) - (1 << STATE_SHIFT);

/// Returns the key length and the value length of a `lengths` word.
#[inline(always)]
pub fn lengths(word: u64) -> (u64, u64) {
    (word & ((1 << STATE_SHIFT) - 1), word >> 32)
}

/// Returns the owner's state in a `lengths` word: 15 bits.
#[inline(always)]
pub fn state(word: u64) -> u16 {
    ((word & STATE_MASK) >> STATE_SHIFT) as u16
}

/// Returns a `lengths` word with this state instead of its own. Of the state, 15 bits are used.
#[inline(always)]
pub fn with_state(word: u64, state: u16) -> u64 {
    word & !STATE_MASK | u64::from(state) << STATE_SHIFT & STATE_MASK
}

/// Returns `true` if `word` names a record whose key is `key`.
///
/// Any word is accepted: one that names no record is unequal to every key.
#[inline]
pub fn key_equals<M: Medium>(medium: &M, word: u64, key: &[u8]) -> bool {
    let offset = word & OFFSET_MASK;
    let Some(header) = medium.at::<Header>(offset) else {
        return false;
    };
    if lengths(medium.load(&header.lengths)).0 != key.len() as u64 {
        return false;
    }
    let Some(cells) = medium.slice::<PmU64>(offset + HEADER, (key.len() as u64).div_ceil(8)) else {
        return false;
    };
    bytes_equal(medium, cells, key)
}

/// Returns `true` if the bytes in `cells`, little-endian, begin with `bytes`. `cells` must have
/// exactly the words that `bytes` takes.
#[inline]
pub fn bytes_equal<M: Medium>(medium: &M, cells: &[PmU64], bytes: &[u8]) -> bool {
    let mut words = bytes.chunks_exact(8);
    let mut cells = cells.iter();
    for (word, cell) in (&mut words).zip(&mut cells) {
        if medium.load_relaxed(cell) != u64::from_le_bytes(word.try_into().expect("8 bytes")) {
            return false;
        }
    }
    let rest = words.remainder();
    let Some(cell) = cells.next() else {
        return true;
    };
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mask = (1u64 << (8 * rest.len())) - 1;
    medium.load_relaxed(cell) & mask == u64::from_le_bytes(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_state_share_a_word() {
        for key in [0, 1, 250, KEY_MAX as u64] {
            for value in [0, 1, 1 << 30, u64::from(u32::MAX)] {
                let word = key | value << 32;
                assert_eq!((lengths(word), state(word)), ((key, value), 0));
                for bits in [0, 1, 0x2aaa, 0x7fff] {
                    let with = with_state(word, bits);
                    assert_eq!((lengths(with), state(with)), ((key, value), bits));
                    assert_eq!(with_state(with, 0), word);
                }
            }
        }
    }
}
