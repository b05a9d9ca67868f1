//! The order in which iterators show entries: one that suits insertions.
//!
//! Buckets are in the order of hashes. If entries were shown in this order, and inserted into
//! another map, each part of the other table would be filled, and have long chains, before the next
//! part received an entry. So hashes are divided into `2^bits` equal ranges, which are shown in the
//! order of the numbers of their bits in reverse:
//!
//! ```text
//! ranges of an iterator, bits = 3     0 4 2 6 1 5 3 7
//! hashes                              |0  |1  |2  |3  |4  |5  |6  |7  |
//! ```
//!
//! Within a range hashes are shown upwards. The number of ranges is part of the position, so it
//! does not matter how many buckets the table has later: a hash is always in the same range, and a
//! range is shown like the whole would be.

use std::ops::RangeInclusive;

/// A position among the hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    /// The binary logarithm of the number of ranges, less than 64.
    bits: u32,
    /// The number of the range, in the order in which they are shown.
    number: u64,
    /// The position in the range: the hash without the bits that choose the range.
    within: u64,
}

impl Position {
    /// Returns the beginning, with `2^bits` ranges. There are fewer than 64 bits.
    pub(crate) fn first(bits: u32) -> Self {
        debug_assert!(bits < u64::BITS);
        Position { bits, number: 0, within: 0 }
    }

    /// Returns the hashes of the range that were not shown yet.
    pub(crate) fn hashes(self) -> RangeInclusive<u64> {
        let leading = match self.bits {
            0 => 0,
            bits => reversed(self.number, bits) << (u64::BITS - bits),
        };
        leading | self.within..=leading | self.mask()
    }

    /// Returns the position after a bucket of the range, given the least hash after that bucket,
    /// if there is any. Returns `None` after the last range.
    pub(crate) fn after(self, next: Option<u64>) -> Option<Self> {
        if let Some(next) = next.filter(|next| self.hashes().contains(next)) {
            return Some(Position { within: next & self.mask(), ..self });
        }
        let number = self.number + 1;
        (number >> self.bits == 0).then_some(Position { number, within: 0, ..self })
    }

    /// Returns the bits of a hash that do not choose the range.
    fn mask(self) -> u64 {
        u64::MAX >> self.bits
    }
}

/// Returns the last `bits` bits of a number in reverse order. There are fewer than 64 bits.
pub(crate) fn reversed(number: u64, bits: u32) -> u64 {
    match bits {
        0 => 0,
        bits => number.reverse_bits() >> (u64::BITS - bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes through buckets of which each has the hashes with the same `depth` leading bits, and
    /// returns their least hashes.
    fn least(bits: u32, depth: u32) -> Vec<u64> {
        let (mut here, mut least) = (Some(Position::first(bits)), Vec::new());
        while let Some(position) = here {
            let hash = *position.hashes().start();
            least.push(hash);
            let after = (hash | u64::MAX.checked_shr(depth).unwrap_or(0)).checked_add(1);
            here = position.after(after);
        }
        least
    }

    #[test]
    fn the_leading_bits_change_first() {
        let ranges = Vec::from_iter(least(3, 3).iter().map(|hash| hash >> 61));
        assert_eq!(ranges, [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(least(0, 0), [0]);
        // Within a range, upwards.
        assert_eq!(least(0, 2), [0, 1 << 62, 2 << 62, 3 << 62]);
        assert_eq!(least(1, 2), [0, 1 << 62, 2 << 62, 3 << 62]);
        // Buckets that are larger than ranges are met once for each range.
        assert_eq!(least(2, 1), [0, 2 << 62, 1 << 62, 3 << 62]);
        assert_eq!(least(2, 3).len(), 8);
    }

    #[test]
    fn ranges_divide_the_hashes() {
        for bits in 0..12 {
            let mut here = Some(Position::first(bits));
            let mut ranges = Vec::from_iter(std::iter::from_fn(|| {
                let hashes = here?.hashes();
                here = here?.after(None);
                Some(hashes)
            }));
            ranges.sort_unstable_by_key(|hashes| *hashes.start());
            assert_eq!(ranges.len(), 1 << bits);
            assert_eq!((*ranges[0].start(), *ranges.last().unwrap().end()), (0, u64::MAX));
            assert!(ranges.windows(2).all(|two| two[0].end() + 1 == *two[1].start()));
        }
    }
}
