//! Four neighbouring words that are loaded together and compared together.
//!
//! The number of lookups that a processor overlaps is limited by the number of instructions that
//! wait for a cache line. Comparing the four key words of a line takes about 24 instructions one by
//! one, and six with vectors.

use crate::PmU64;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_andnot_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32,
    _mm_cvtsi128_si64, _mm_loadu_si128, _mm_movemask_epi8, _mm_movemask_ps, _mm_packs_epi32,
    _mm_set_epi64x, _mm_set1_epi32, _mm_set1_epi64x, _mm_shuffle_ps, _mm_srli_si128,
    _mm_storeu_si128,
};

/// Four words that were loaded together.
#[derive(Clone, Copy, Debug)]
pub struct Quad(
    #[cfg(all(target_arch = "x86_64", not(miri)))] [__m128i; 2],
    #[cfg(not(all(target_arch = "x86_64", not(miri))))] [u64; 4],
);

impl Quad {
    /// Loads four words that other threads may be changing. Each word is whole, but they may be
    /// from different moments. Later loads are not older (acquire).
    #[inline(always)]
    pub fn load(cells: &[PmU64; 4]) -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let (low, high);
            // SAFETY: reads the 32 bytes of `cells`, and nothing else. Assembly is used because the
            // compiler has no atomic load of a vector, and must not assume that these words do not
            // change. Each half of such a load consists of aligned accesses of 8 bytes, which are
            // atomic on this processor, and loads are not reordered with later loads.
            unsafe {
                std::arch::asm!(
                    "movdqu {low}, [{cells}]",
                    "movdqu {high}, [{cells} + 16]",
                    cells = in(reg) cells.as_ptr(),
                    low = out(xmm_reg) low,
                    high = out(xmm_reg) high,
                    options(nostack, preserves_flags, readonly),
                );
            }
            Quad([low, high])
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            use std::sync::atomic::Ordering::Acquire;
            Quad([0, 1, 2, 3].map(|i| cells[i].atomic().load(Acquire)))
        }
    }

    /// Creates a `Quad` of these words.
    #[inline(always)]
    pub fn new(words: [u64; 4]) -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: reads the 32 bytes of `words`.
        unsafe {
            Quad([
                _mm_loadu_si128(words.as_ptr().cast()),
                _mm_loadu_si128(words[2..].as_ptr().cast()),
            ])
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Quad(words)
    }

    /// Returns the words.
    #[inline(always)]
    pub fn words(&self) -> [u64; 4] {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let mut words = [0; 4];
            // SAFETY: writes the 32 bytes of `words`.
            unsafe {
                _mm_storeu_si128(words.as_mut_ptr().cast(), self.0[0]);
                _mm_storeu_si128(words[2..].as_mut_ptr().cast(), self.0[1]);
            }
            words
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        self.0
    }

    /// Returns word `I` without going through memory.
    #[inline(always)]
    pub fn word<const I: usize>(&self) -> u64 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction set is part of x86-64.
        unsafe {
            let half = self.0[I / 2];
            _mm_cvtsi128_si64(if I.is_multiple_of(2) { half } else { _mm_srli_si128::<8>(half) })
                as u64
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        self.0[I]
    }

    /// Returns a bit for each word that equals `value` in the bits of `mask`.
    #[inline(always)]
    pub fn matching(&self, mask: u64, value: u64) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction set is part of x86-64.
        unsafe {
            let (mask, value) = (_mm_set1_epi64x(mask as i64), _mm_set1_epi64x(value as i64));
            let equal = |half| _mm_cmpeq_epi32(_mm_and_si128(half, mask), value);
            // Two comparisons of 32 bits per word, packed, so that a word matches if its 32 bits
            // are all set.
            let packed = _mm_packs_epi32(equal(self.0[0]), equal(self.0[1]));
            let whole = _mm_cmpeq_epi32(packed, _mm_set1_epi32(-1));
            _mm_movemask_ps(_mm_castsi128_ps(whole)) as u32
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        matching_one_by_one(&self.words(), mask, value)
    }

    /// Returns a bit for each word whose upper half equals `value`.
    #[inline(always)]
    pub fn matching_upper(&self, value: u32) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction set is part of x86-64.
        unsafe {
            let [low, high] = self.0.map(|half| _mm_castsi128_ps(half));
            let uppers = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(low, high));
            let equal = _mm_cmpeq_epi32(uppers, _mm_set1_epi32(value as i32));
            _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        matching_one_by_one(&self.words(), !0 << 32, u64::from(value) << 32)
    }

    /// Returns `true` if `now` holds the same words, where the first one has the bits in `cleared`
    /// cleared.
    #[inline(always)]
    pub fn is_current(&self, now: &Quad, cleared: u64) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction set is part of x86-64.
        unsafe {
            let first = _mm_andnot_si128(_mm_set_epi64x(0, cleared as i64), self.0[0]);
            let equal = _mm_and_si128(
                _mm_cmpeq_epi32(first, now.0[0]),
                _mm_cmpeq_epi32(self.0[1], now.0[1]),
            );
            _mm_movemask_epi8(equal) == 0xffff
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            let [first, rest @ ..] = self.words();
            now.words() == [first & !cleared, rest[0], rest[1], rest[2]]
        }
    }
}

/// Implements [`Quad::matching`] without vectors.
#[cfg(any(test, not(target_arch = "x86_64"), miri))]
fn matching_one_by_one(words: &[u64; 4], mask: u64, value: u64) -> u32 {
    words.iter().rev().fold(0, |bits, word| bits << 1 | u32::from(word & mask == value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Medium;
    use crate::medium::{Dram, Pages};

    fn some_words(seed: &mut u64) -> [u64; 4] {
        [(); 4].map(|()| {
            *seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Few values, so that words often agree, in whole or in one half.
            (*seed >> 62) << 40 | *seed >> 60 & 3
        })
    }

    #[test]
    fn vectors_agree_with_single_words() {
        let mut seed = 1;
        for _ in 0..10_000 {
            let (words, others) = (some_words(&mut seed), some_words(&mut seed));
            let (quad, other) = (Quad::new(words), Quad::new(others));
            assert_eq!(quad.words(), words);
            let each = [quad.word::<0>(), quad.word::<1>(), quad.word::<2>(), quad.word::<3>()];
            assert_eq!(each, words);
            for mask in [!0, !1, !0 << 40, 0] {
                let value = others[0] & mask;
                assert_eq!(quad.matching(mask, value), matching_one_by_one(&words, mask, value));
                let upper = (others[1] >> 32) as u32;
                let by_one = matching_one_by_one(&words, !0 << 32, u64::from(upper) << 32);
                assert_eq!(quad.matching_upper(upper), by_one);
                let mut current = words;
                current[0] &= !mask;
                assert!(quad.is_current(&Quad::new(current), mask));
                assert_eq!(quad.is_current(&other, mask), current == others);
                for (word, bit) in [(0, 0), (1, 31), (2, 32), (3, 63)] {
                    let mut changed = current;
                    changed[word] ^= 1 << bit;
                    assert!(!quad.is_current(&Quad::new(changed), mask));
                }
            }
        }
    }

    #[test]
    fn loads_read_the_words() {
        let memory = Dram::reserve(4096, Pages::Base).unwrap();
        memory.grow(4096).unwrap();
        let cells = memory.at::<[PmU64; 4]>(8).unwrap();
        for (cell, word) in cells.iter().zip([1, 2, 3, u64::MAX]) {
            memory.store(cell, word);
        }
        assert_eq!(memory.load_four(cells).words(), [1, 2, 3, u64::MAX]);
    }
}
