//! Keys as strings of bits.
//!
//! The bits of a key are numbered from the most significant one of its first byte on. All keys have
//! the same number of bits: a key is followed by zeros up to the length of the longest one, and
//! then comes its length, in 64 bits. So they are ordered as the keys are: of two keys that differ
//! only in zeros at the end, the shorter one is first. And no key is the beginning of another one,
//! which a tree of bits requires.

use evermap_index::ordered::leaf::LeafRef;
use evermap_index::record::KEY_MAX;
use evermap_pm::Medium;

/// The index of the word of a key that has its length.
pub(super) const LENGTH: usize = KEY_MAX / 8;

/// A key to search for.
#[derive(Clone, Copy)]
pub(super) struct Search<'k> {
    pub(super) key: &'k [u8],
    /// The first eight bytes, which most nodes look at.
    first: u64,
}

impl<'k> Search<'k> {
    #[inline(always)]
    pub(super) fn new(key: &'k [u8]) -> Self {
        Search { key, first: word_from(key) }
    }

    /// Returns the 64 bits of the key from bit `64 * at` on.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u64 {
        if at == 0 { self.first } else { self.later_word(at) }
    }

    fn later_word(&self, at: usize) -> u64 {
        match at {
            LENGTH => self.key.len() as u64,
            _ => self.key.get(8 * at..).map_or(0, word_from),
        }
    }

    /// Returns the first bit at which the key differs from the one of a leaf, and its value in this
    /// key. Returns `None` if the keys are equal.
    pub(super) fn difference<M: Medium>(&self, m: &M, leaf: &LeafRef<'_>) -> Option<(u32, bool)> {
        let words = self.key.len().max(leaf.key_len()).div_ceil(8);
        (0..words).chain([LENGTH]).find_map(|at| {
            let other = match at {
                LENGTH => leaf.key_len() as u64,
                _ => leaf.word_of_key(m, at),
            };
            let differ = self.word(at) ^ other;
            let bit = differ.leading_zeros();
            (bit < 64).then(|| (64 * at as u32 + bit, self.word(at) << bit >> 63 == 1))
        })
    }
}

/// Returns the first eight bytes as a number that is ordered as they are. Missing ones are zero.
#[inline(always)]
fn word_from(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    match bytes.first_chunk() {
        Some(first) => word = *first,
        None => word[..bytes.len()].copy_from_slice(bytes),
    }
    u64::from_be_bytes(word)
}

/// Returns the bits of `word` that are set in `mask`, side by side and in order.
#[inline(always)]
pub(super) fn extract(word: u64, mask: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("bmi2") {
        // SAFETY: the processor has these instructions, as was just determined.
        return unsafe { extract_in_one_step(word, mask) };
    }
    extract_one_by_one(word, mask)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi2")]
fn extract_in_one_step(word: u64, mask: u64) -> u64 {
    std::arch::x86_64::_pext_u64(word, mask)
}

fn extract_one_by_one(word: u64, mut mask: u64) -> u64 {
    let mut bits = 0;
    for at in 0..mask.count_ones() {
        let lowest = mask & mask.wrapping_neg();
        bits |= u64::from(word & lowest != 0) << at;
        mask ^= lowest;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::sim::{Sim, rng::Rng};

    #[test]
    fn both_ways_of_extracting_agree() {
        let random = &mut Rng::new(1);
        assert_eq!(extract(0b1011_0010, 0b1111_0000), 0b1011);
        for _ in 0..1000 {
            let (word, mask) = (random.draw(), random.draw() & random.draw());
            assert_eq!(extract(word, mask), extract_one_by_one(word, mask));
        }
        assert_eq!(extract(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(extract(u64::MAX, 0), 0);
    }

    /// Among others, keys that differ only in zeros at the end.
    #[test]
    fn bits_are_ordered_as_keys() {
        let mut keys: Vec<Vec<u8>> = (0..20).map(|length| vec![0; length]).collect();
        keys.extend((0..20).map(|length| vec![7; length]));
        keys.extend([&b"a"[..], b"a\0b", b"ab", b"abcdefgh", b"abcdefghi"].map(<[u8]>::to_vec));
        keys.sort();
        keys.dedup();
        let sim = Sim::new(4096).unwrap();
        sim.grow(4096).unwrap();
        for (at, key) in keys.iter().enumerate() {
            LeafRef::write(&sim, 0, key, 0);
            let leaf = LeafRef::at(&sim, 0).unwrap();
            for (other_at, other) in keys.iter().enumerate() {
                let search = Search::new(other);
                match search.difference(&sim, &leaf) {
                    None => assert_eq!(at, other_at),
                    Some((bit, value)) => {
                        assert_eq!(value, other_at > at, "{key:?} {other:?} differ at {bit}");
                    }
                }
            }
        }
    }
}
