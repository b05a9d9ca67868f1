//! The arithmetic of linear hashing: the number of the segment for a hash, and the array that
//! contains a segment.
//!
//! Segments are numbered, and those below some *count* are in use. The *number bits* of a hash are
//! those from bit 24 up. With `2^N <= count < 2^(N+1)`, a hash belongs to the segment whose number
//! is the low `N + 1` number bits if that segment is in use, and otherwise to the one whose number
//! is the low `N` number bits. So records move to a new segment `2^N + i` only from segment `i`,
//! its *origin*.

use evermap_index::hash::dash::layout::HashPrefix;

/// The number of low hash bits that are not number bits: fingerprint, bucket and filter use them.
const NUMBER_SHIFT: u32 = 24;
/// The greatest number of segments: one for each value of the number bits, which are as many as a
/// [`HashPrefix`] can have.
pub(super) const SEGMENTS_MAX: u64 = 1 << (64 - NUMBER_SHIFT);

/// Returns the number of the segment that a hash belongs to if `count` segments, at least one, are
/// in use.
#[inline(always)]
pub(super) fn number_of(hash: u64, count: u64) -> u64 {
    let bits = hash >> NUMBER_SHIFT;
    // As many bits as the largest number has; at least one, because a shift by 64 would overflow.
    let mask = u64::MAX >> ((count - 1) | 1).leading_zeros();
    let number = bits & mask;
    if number < count { number } else { bits & (mask >> 1) }
}

/// Returns the least hash that belongs to a segment, whatever the count is.
pub(super) fn hash_of(number: u64) -> u64 {
    number << NUMBER_SHIFT
}

/// Returns the origin of segment `number`, which is not 0: the number without its top bit.
pub(super) fn origin(number: u64) -> u64 {
    number & !(1 << number.ilog2())
}

/// Returns the least depth of a segment: the number of low number bits that distinguish it from its
/// origin.
pub(super) fn least_depth(number: u64) -> u32 {
    64 - number.leading_zeros()
}

/// Returns the rank of a hash: its number bits in reverse order. In this order, a segment serves
/// neighbouring hashes, and so do both halves of a split.
pub(super) fn rank(hash: u64) -> u64 {
    (hash >> NUMBER_SHIFT).reverse_bits()
}

/// Returns the least hash with this rank. Ignores the bits of `rank` that no rank has.
pub(super) fn unrank(rank: u64) -> u64 {
    rank.reverse_bits() << NUMBER_SHIFT
}

/// Returns the number of the segment with this prefix: the low number bits of the hashes that it
/// serves.
pub(super) fn number_of_prefix(prefix: HashPrefix) -> u64 {
    if prefix.depth == 0 { 0 } else { prefix.pattern.reverse_bits() >> (64 - prefix.depth) }
}

/// Returns the array that contains segment `number`, if the first `stride` arrays have `first`
/// segments each, the next `stride` twice as many, and so on. Every search calls this, so it must
/// take few instructions.
#[inline(always)]
pub(super) fn array_of(number: u64, first: u64, stride: u64) -> usize {
    // A unit is `first` segments. Group g has `stride` arrays of 2^g units each, and begins at unit
    // stride * (2^g - 1). Adding `stride` to all units, it begins at stride * 2^g, and its arrays
    // at multiples of 2^g.
    let unit = number / first + stride;
    let group = (unit / stride).ilog2();
    (stride * u64::from(group) + (unit >> group) - stride) as usize
}

/// Returns the number of segments in array `array`.
pub(super) fn array_len(array: usize, first: u64, stride: u64) -> u64 {
    first << (array as u64 / stride)
}

/// Returns the number of segments in the first `arrays` arrays, at most [`SEGMENTS_MAX`].
pub(super) const fn segments_in(arrays: usize, first: u64, stride: u64) -> u64 {
    let (groups, rest) = (arrays as u64 / stride, arrays as u64 % stride);
    if groups >= 40 {
        return SEGMENTS_MAX;
    }
    let segments = first * (stride * ((1 << groups) - 1) + (rest << groups));
    if segments < SEGMENTS_MAX { segments } else { SEGMENTS_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that follow from the paper's parameters: a stride of 8, and 64 segments in the
    /// first arrays.
    #[test]
    fn positions_are_those_of_hybrid_expansion() {
        for (number, array, within) in [
            (0, 0, 0),
            (63, 0, 63),
            (64, 1, 0),
            (511, 7, 63),
            (512, 8, 0),
            (639, 8, 127),
            (640, 9, 0),
            (1536, 16, 0),
        ] {
            assert_eq!(array_of(number, 64, 8), array, "segment {number}");
            assert_eq!(number - segments_in(array, 64, 8), within, "segment {number}");
        }
    }

    #[test]
    fn arrays_are_filled_one_after_the_other() {
        for (first, stride) in [(64, 8), (61, 16), (2, 2), (1, 1), (3, 5)] {
            let mut number = 0;
            for array in 0..stride as usize * 4 {
                assert_eq!(segments_in(array, first, stride), number);
                for _ in 0..array_len(array, first, stride) {
                    assert_eq!(array_of(number, first, stride), array);
                    number += 1;
                }
            }
        }
    }

    /// Positions are correct for numbers of more than 32 bits.
    #[test]
    fn the_last_segment_has_a_place() {
        let last = array_of(SEGMENTS_MAX - 1, 61, 16);
        assert!(last < 512 && segments_in(last, 61, 16) < SEGMENTS_MAX, "{last}");
        assert_eq!(segments_in(512, 61, 16), SEGMENTS_MAX);
    }

    #[test]
    fn a_new_segment_takes_from_its_origin_only() {
        for count in 1..200 {
            for bits in 0..1024 {
                let hash = bits << NUMBER_SHIFT | 0x00ff_ffff;
                let (before, after) = (number_of(hash, count), number_of(hash, count + 1));
                assert!(before < count);
                assert!(before == after || after == count && before == origin(count));
            }
        }
    }

    /// The paper's rule, with separate N and Next.
    #[test]
    fn the_count_says_what_n_and_next_do() {
        for count in 1u64..300 {
            let (n, next) = (count.ilog2(), count - (1 << count.ilog2()));
            for bits in 0..2048u64 {
                let short = bits % (1 << n);
                let expected = if short < next { bits % (2 << n) } else { short };
                assert_eq!(number_of(bits << NUMBER_SHIFT, count), expected);
            }
        }
    }

    fn prefix_of(number: u64, depth: u32) -> HashPrefix {
        let pattern = if depth == 0 { 0 } else { number.reverse_bits() >> (64 - depth) };
        HashPrefix { depth, pattern }
    }

    #[test]
    fn prefixes_identify_segments() {
        for number in 0..100 {
            for depth in least_depth(number)..12 {
                let prefix = prefix_of(number, depth);
                assert_eq!(number_of_prefix(prefix), number);
                assert!(prefix.covers(rank(hash_of(number))));
                assert_eq!(prefix.half(0), prefix_of(number, depth + 1));
                assert_eq!(prefix.half(1), prefix_of(number | 1 << depth, depth + 1));
                assert_eq!(number_of(unrank(prefix.first_hash()), u64::MAX >> 1), number);
            }
        }
    }
}
