//! The hash prefix of a segment, encoded in one word.

/// The greatest valid depth: that of a directory with 2^40 entries.
pub const DEPTH_MAX: u32 = 40;

/// A set of hashes: those whose top `depth` bits are `pattern`. Each segment holds the records of
/// one such set.
///
/// ```text
/// bits  0..8   local depth, at most 40
/// bits  8..48  pattern
/// bits 48..64  check bits: recovery drops records outside of the prefix, so it must detect damage
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashPrefix {
    /// The local depth: the number of leading hash bits that the prefix fixes.
    pub depth: u32,
    /// The values of these bits.
    pub pattern: u64,
}

impl HashPrefix {
    const SALT: u64 = 0x5348_4150;

    /// Encodes the prefix in a word.
    pub fn encode(self) -> u64 {
        let fields = u64::from(self.depth) | self.pattern << 8;
        fields | check_bits(fields, Self::SALT) << 48
    }

    /// Decodes a word. Returns `None` if it is not a prefix.
    pub fn decode(word: u64) -> Option<Self> {
        let fields = word & ((1 << 48) - 1);
        let prefix = HashPrefix { depth: u32::from(fields as u8), pattern: fields >> 8 };
        let fits = prefix.depth <= DEPTH_MAX && prefix.pattern >> prefix.depth == 0;
        (fits && word >> 48 == check_bits(fields, Self::SALT)).then_some(prefix)
    }

    /// Returns whether this hash has the prefix.
    #[inline(always)]
    pub fn covers(self, hash: u64) -> bool {
        top_bits(hash, self.depth) == self.pattern
    }

    /// Returns whether this hash has the prefix that `word` encodes, without checking that `word`
    /// encodes a prefix.
    #[inline(always)]
    pub fn word_covers(word: u64, hash: u64) -> bool {
        HashPrefix { depth: u32::from(word as u8), pattern: word << 16 >> 24 }.covers(hash)
    }

    /// Returns whether every hash that has the prefix `other` has this prefix.
    pub fn contains(self, other: Self) -> bool {
        let deeper = other.depth.checked_sub(self.depth);
        deeper.is_some_and(|levels| other.pattern >> levels == self.pattern)
    }

    /// Returns the prefix of the lower half (0) or the upper half (1).
    pub fn half(self, upper: u64) -> Self {
        HashPrefix { depth: self.depth + 1, pattern: self.pattern << 1 | upper }
    }

    /// Returns the prefix of which this one is a half. Returns `None` if the depth is 0.
    pub fn parent(self) -> Option<Self> {
        (self.depth > 0).then(|| HashPrefix { depth: self.depth - 1, pattern: self.pattern >> 1 })
    }

    /// Returns the least hash that has the prefix.
    pub fn first_hash(self) -> u64 {
        if self.depth == 0 { 0 } else { self.pattern << (64 - self.depth) }
    }
}

/// Returns sixteen check bits for the fields of a word. Words of each kind have their own `salt`,
/// so the bits also distinguish a word from one of another kind.
pub fn check_bits(fields: u64, salt: u64) -> u64 {
    (fields ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
}

/// Returns the first hash after those of the segment of local depth `depth` that serves `hash`.
/// Returns `None` if it is the last segment.
pub fn first_hash_after(hash: u64, depth: u32) -> Option<u64> {
    let width = 1u64.checked_shl(64 - depth)?;
    (hash / width * width).checked_add(width)
}

/// Returns whether a segment can have a prefix with which it serves some of these hashes, but not
/// all.
pub fn are_separable(mut hashes: impl Iterator<Item = u64>) -> bool {
    let Some(first) = hashes.next() else { return false };
    hashes.any(|hash| (hash ^ first).leading_zeros() < DEPTH_MAX)
}

/// Returns the top `depth` (at most 63) bits of a hash.
#[inline(always)]
pub fn top_bits(hash: u64, depth: u32) -> u64 {
    (hash >> 1) >> (63 - (depth & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_split_and_rejoin() {
        let whole = HashPrefix { depth: 0, pattern: 0 };
        assert!(whole.covers(0) && whole.covers(u64::MAX) && whole.parent().is_none());
        let upper = whole.half(1).half(0);
        assert_eq!((upper.depth, upper.pattern), (2, 0b10));
        assert!(upper.covers(0b10 << 62) && !upper.covers(0b11 << 62));
        assert_eq!(upper.parent(), Some(whole.half(1)));
        assert_eq!(upper.first_hash(), 1 << 63);
        assert_eq!(HashPrefix::decode(upper.encode()), Some(upper));
        assert_eq!(HashPrefix::decode(u64::MAX), None);
        for hash in [0, 1, 1 << 62, 0b10 << 62, 0b101 << 61, 0b11 << 62, u64::MAX] {
            assert_eq!(
                HashPrefix::word_covers(upper.encode(), hash),
                upper.covers(hash),
                "{hash:#x}"
            );
        }
        assert!(whole.contains(upper) && upper.contains(upper) && upper.contains(upper.half(1)));
        assert!(!upper.contains(whole) && !upper.contains(whole.half(1).half(1).half(0)));
    }

    #[test]
    fn segments_follow_one_another() {
        assert_eq!(first_hash_after(5, 0), None);
        assert_eq!(first_hash_after(5, 1), Some(1 << 63));
        assert_eq!(first_hash_after(u64::MAX, 1), None);
        assert_eq!(first_hash_after(0b0110 << 60, 3), Some(0b1000 << 60));
    }
}
