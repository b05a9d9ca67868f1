//! Copying between ordinary bytes and words that other threads may be changing.

use std::sync::atomic::Ordering::Relaxed;

use crate::PmU64;

/// Stores bytes in words, little-endian, with the last word padded with zeros. Each word is stored
/// as a whole, and they may become visible in any order.
///
/// # Panics
/// If `bytes` is longer than `cells`.
#[inline]
pub(super) fn fill(cells: &[PmU64], bytes: &[u8]) {
    let cells = &cells[..bytes.len().div_ceil(8)];
    // SAFETY: the cells are at least as long as the bytes, and may be stored to through a shared
    // reference, because they are atomics.
    let whole =
        unsafe { copy_blocks(bytes.as_ptr(), cells.as_ptr().cast_mut().cast(), bytes.len()) };
    let (cells, (words, rest)) = (&cells[whole / 8..], bytes[whole..].as_chunks::<8>());
    for (cell, word) in cells.iter().zip(words) {
        cell.atomic().store(u64::from_le_bytes(*word), Relaxed);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        cells[words.len()].atomic().store(u64::from_le_bytes(word), Relaxed);
    }
}

/// Copies words, little-endian. Each word is loaded as a whole, and they may be of different
/// moments.
///
/// # Panics
/// If `out` is longer than `cells`.
#[inline]
pub(super) fn copy_out(cells: &[PmU64], out: &mut [u8]) {
    let cells = &cells[..out.len().div_ceil(8)];
    // SAFETY: the cells are at least as long as `out`.
    let whole = unsafe { copy_blocks(cells.as_ptr().cast(), out.as_mut_ptr(), out.len()) };
    let (cells, (words, rest)) = (&cells[whole / 8..], out[whole..].as_chunks_mut::<8>());
    for (word, cell) in words.iter_mut().zip(cells) {
        *word = cell.atomic().load(Relaxed).to_le_bytes();
    }
    if !rest.is_empty() {
        let word = cells[words.len()].atomic().load(Relaxed).to_le_bytes();
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

/// Appends bytes of words, as [`copy_out`] copies them.
///
/// # Panics
/// If `bytes` is more than there are in `cells`.
#[inline]
pub(super) fn append(cells: &[PmU64], bytes: usize, out: &mut Vec<u8>) {
    let cells = &cells[..bytes.div_ceil(8)];
    out.reserve(bytes);
    let to = out.spare_capacity_mut().as_mut_ptr().cast();
    // SAFETY: the cells are at least as long as `bytes`, and so is the spare capacity.
    let whole = unsafe { copy_blocks(cells.as_ptr().cast(), to, bytes) };
    let rest = out.len() + whole;
    // SAFETY: the bytes up to there have just been written.
    unsafe { out.set_len(rest) };
    out.resize(rest + bytes - whole, 0);
    copy_out(&cells[whole / 8..], &mut out[rest..]);
}

/// From this number of bytes on, one instruction that moves words is faster than a loop that moves
/// vectors: by a third for 64 KiB that are not in the cache, on AMD (Zen 4).
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG: usize = 2048;

/// Copies whole blocks of 64 bytes, and returns how many bytes it has copied: less than a block is
/// left.
///
/// # Safety
/// `bytes` bytes can be read at `from` and stored to at `to`. Words of shared memory are aligned.
#[inline]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, bytes: usize) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= LONG {
        // SAFETY: the caller guarantees the memory. The instruction consists of accesses to 8 bytes
        // each, of which those to words are aligned, and so atomic. The direction flag is clear.
        unsafe {
            std::arch::asm!(
                "rep movsq",
                inout("rsi") from => _,
                inout("rdi") to => _,
                inout("rcx") bytes / 8 => _,
                options(nostack, preserves_flags),
            );
        }
        return bytes / 8 * 8;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= 64 {
        // SAFETY: the caller guarantees the memory. Assembly is used because the compiler has no
        // atomic loads and stores of vectors, and must not assume that these words do not change.
        // Each half of such an access to words consists of aligned accesses of 8 bytes, which are
        // atomic on this processor.
        unsafe {
            std::arch::asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {blocks}",
                "jnz 2b",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                blocks = inout(reg) bytes / 64 => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
        return bytes / 64 * 64;
    }
    let _ = (from, to, bytes);
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::{Dram, Medium, Pages};

    fn memory() -> Dram {
        let medium = Dram::reserve(1 << 20, Pages::Base).unwrap();
        medium.grow(4096).unwrap();
        medium
    }

    #[test]
    fn what_is_copied_out_is_what_was_filled_in() {
        let bytes: Vec<u8> = (0..3_000_u32).map(|n| (n * 7 + n / 256) as u8).collect();
        let medium = memory();
        let cells: &[PmU64] = medium.slice(0, 400).unwrap();
        for first in [0, 1, 3] {
            for len in (0..300).chain([511, 512, 513, 960, 2047, 2048, 2049, 3000]) {
                fill(&cells[first..], &bytes[..len]);
                let mut out = vec![0xee; len + 2];
                copy_out(&cells[first..], &mut out[1..=len]);
                assert_eq!(&out[1..=len], &bytes[..len], "{len} bytes from word {first}");
                assert_eq!((out[0], out[len + 1]), (0xee, 0xee), "bytes beside {len}");
                let mut out = vec![0xee; first];
                append(&cells[first..], len, &mut out);
                assert_eq!(out.split_at(first), (&[0xee; 3][..first], &bytes[..len]));
            }
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn more_than_there_is_is_refused() {
        copy_out(memory().slice(0, 1).unwrap(), &mut [0; 9]);
    }
}
