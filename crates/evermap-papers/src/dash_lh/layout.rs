//! The structures of Dash-LH in the region, besides segments.

use evermap_index::hash::hash_prefix::check_bits;
use evermap_pm::{PmU64, pod};

use super::numbers::SEGMENTS_MAX;

/// The greatest number of arrays: enough for as many segments as hash bits can number.
pub(super) const ARRAYS: usize = 512;

pod! {
    /// The block that the root cell refers to.
    ///
    /// ```text
    /// byte  0  kind      identifies the kind of index, the key format and the geometry of segments
    /// byte  8  geometry  segments in each of the first arrays | arrays of each size << 32
    /// byte 16  extent    see `Extent`; storing it commits an expansion or a merge
    /// byte 64  arrays    see `Array`; 0 for none
    /// ```
    pub struct Root: 4160 {
        /// The kind of index.
        pub kind: PmU64,
        /// The number of segments in each of the first arrays, and of arrays of each size.
        pub geometry: PmU64,
        /// The number of segments in use: see `Extent`.
        pub extent: PmU64,
        reserved: [PmU64; 5],
        /// The offsets of the arrays of segments: see `Array`.
        pub arrays: [PmU64; ARRAYS],
    }
}

/// The number of segments in use: the paper's `N` and `Next` in one number, `2^N + Next`.
///
/// ```text
/// bit  0..48  segments in use
/// bit 48..64  check bits: with a damaged number, keys would be searched in wrong segments
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent(pub(super) u64);

impl Extent {
    const SALT: u64 = u64::from_le_bytes(*b"EXTENT\0\0");

    pub(super) fn encode(self) -> u64 {
        self.0 | check_bits(self.0, Self::SALT) << 48
    }

    /// Decodes a word. Returns `None` if it is not an extent.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let extent = Extent(word & ((1 << 48) - 1));
        ((1..=SEGMENTS_MAX).contains(&extent.0) && extent.encode() == word).then_some(extent)
    }
}

/// The offset of an array of segments.
///
/// ```text
/// bit  0..48  offset
/// bit 48..64  check bits, computed from the offset and the array's number
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Array {
    pub(super) number: usize,
    pub(super) offset: u64,
}

impl Array {
    const SALT: u64 = u64::from_le_bytes(*b"ARRAY\0\0\0");

    pub(super) fn encode(self) -> u64 {
        self.offset | check_bits(self.offset, Self::SALT ^ (self.number as u64) << 56) << 48
    }

    /// Decodes the word of array `number`. Returns `None` if it is not the offset of this array.
    pub(super) fn decode(number: usize, word: u64) -> Option<Self> {
        let array = Array { number, offset: word & ((1 << 48) - 1) };
        (array.offset != 0 && array.encode() == word).then_some(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_valid_only_where_they_were_written() {
        for segments in [1, 2, 77, SEGMENTS_MAX] {
            assert_eq!(Extent::decode(Extent(segments).encode()), Some(Extent(segments)));
        }
        let array = Array { number: 3, offset: 0x1234_5600 };
        assert_eq!(Array::decode(3, array.encode()), Some(array));
        assert_eq!(Array::decode(4, array.encode()), None);
        for word in [0, u64::MAX, 1, 77, 0x1234_5600] {
            assert_eq!(Extent::decode(word), None);
            assert_eq!(Array::decode(3, word), None);
        }
        assert_eq!(Extent::decode(Extent(SEGMENTS_MAX + 1).encode()), None);
    }
}
