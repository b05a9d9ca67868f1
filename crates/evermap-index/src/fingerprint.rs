//! Comparing one byte with up to 16 bytes in parallel.
//!
//! Buckets keep one byte of the hash of each slot in two words, so that a lookup reads a slot only
//! if its byte matches: with 14 slots, on average 0.05 slots that hold another key.

/// Returns the set of bytes that equal `byte` among the 16 bytes in two little-endian words: bit i
/// for byte i.
#[inline(always)]
pub fn matches(words: [u64; 2], byte: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        sse2(words, byte)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        scalar(words, byte)
    }
}

/// SSE2 is part of x86-64, so no dispatch is needed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sse2(words: [u64; 2], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is always available on x86-64, and the operands are registers, not memory.
    unsafe {
        let bytes = _mm_set_epi64x(words[1] as i64, words[0] as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8))) as u32
    }
}

/// Implements [`matches`] by ordinary arithmetic: for other processors, and to test `sse2`.
#[cfg_attr(all(target_arch = "x86_64", not(test)), allow(dead_code))]
#[inline(always)]
fn scalar(words: [u64; 2], byte: u8) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW7: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let zero_bytes = |word: u64| {
        // A byte is zero if and only if neither its low seven bits carry into the eighth when 0x7f
        // is added, nor its eighth bit is set. This is exact, unlike the shorter test with a
        // subtraction.
        let difference = word ^ (ONES * u64::from(byte));
        let marks = !(((difference & LOW7) + LOW7) | difference | LOW7);
        // Gathers the eight marks, at bits 7, 15, ..., into the top byte.
        (marks >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    (zero_bytes(words[0]) | zero_bytes(words[1]) << 8) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_and_scalar_agree_with_a_loop() {
        let mut state = 1u64;
        for round in 0..20_000 {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state.rotate_left(17)
            };
            // Few distinct bytes, so that matches and near misses are frequent.
            let mask = if round % 2 == 0 { 0x8181_8181_8181_8181 } else { u64::MAX };
            let words = [next() & mask, next() & mask];
            let byte = next() as u8 & mask as u8;
            let byte_at = |i: usize| (words[i / 8] >> (i % 8 * 8)) as u8;
            let expected = (0..16).filter(|&i| byte_at(i) == byte).fold(0, |bits, i| bits | 1 << i);
            assert_eq!(scalar(words, byte), expected, "{words:x?} {byte:x}");
            assert_eq!(matches(words, byte), expected);
        }
    }
}
