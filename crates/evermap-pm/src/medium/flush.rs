//! Cache line flushes: the instruction that writes a stored line back to memory, and its fence.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::LINE;

/// How this processor writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushInstruction {
    /// Writes the line back and may keep it cached. The cheapest.
    Clwb,
    /// Writes the line back and evicts it, unordered.
    ClflushOpt,
    /// Writes the line back and evicts it, ordered with other stores. Available on every x86-64.
    Clflush,
    /// None that this crate uses. Stores are ordered, but not written back on request.
    None,
}

impl fmt::Display for FlushInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FlushInstruction::Clwb => "clwb",
            FlushInstruction::ClflushOpt => "clflushopt",
            FlushInstruction::Clflush => "clflush",
            FlushInstruction::None => "none",
        })
    }
}

/// Returns the instruction that [`flush_lines`] uses: the cheapest one available, chosen once per
/// process.
#[inline]
pub fn line_flush() -> FlushInstruction {
    #[cfg(target_arch = "x86_64")]
    {
        // Cached, because CPUID leaves a virtual machine, which costs microseconds.
        static CHOSEN: std::sync::OnceLock<FlushInstruction> = std::sync::OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
            match (features >> 24 & 1, features >> 23 & 1) {
                (1, _) => FlushInstruction::Clwb,
                (_, 1) => FlushInstruction::ClflushOpt,
                _ => FlushInstruction::Clflush,
            }
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    FlushInstruction::None
}

/// Starts to write back every line that the `len` bytes at `addr` touch. [`fence`] waits for
/// completion.
///
/// Changes no byte. An address that is not mapped raises SIGSEGV, as reading it would.
#[inline]
pub fn flush_lines(addr: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! each_with {
            ($instruction:literal) => {
                each_line(addr, len, |line| {
                    // Without `nomem`: the compiler must not move a store across its flush.
                    // SAFETY: a flush changes no byte and no register; at worst it faults.
                    unsafe {
                        std::arch::asm!(
                            $instruction,
                            in(reg) line,
                            options(nostack, preserves_flags),
                        );
                    }
                })
            };
        }
        match line_flush() {
            FlushInstruction::Clwb => each_with!("clwb [{0}]"),
            FlushInstruction::ClflushOpt => each_with!("clflushopt [{0}]"),
            _ => each_with!("clflush [{0}]"),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (addr, len);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn each_line(addr: *const u8, len: usize, flush: impl Fn(*const u8)) {
    if len == 0 {
        return;
    }
    let into_line = addr.addr() % LINE as usize;
    let first = addr.wrapping_sub(into_line);
    for line in 0..(into_line + len).div_ceil(LINE as usize) {
        flush(first.wrapping_add(line * LINE as usize));
    }
}

/// Orders all earlier stores and line flushes of this thread before all its later stores.
#[inline(always)]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE; a store fence has no effect other than on ordering.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[repr(align(64))]
    struct Aligned([u8; 256]);

    fn lines_of(at: usize, len: usize) -> Vec<usize> {
        let bytes = Aligned([0; 256]);
        let seen = RefCell::new(Vec::new());
        let base = bytes.0.as_ptr();
        each_line(base.wrapping_add(at), len, |line| {
            seen.borrow_mut().push(line.addr() - base.addr());
        });
        seen.into_inner()
    }

    #[test]
    fn every_line_touched_is_flushed_once() {
        assert_eq!(lines_of(0, 0), []);
        assert_eq!(lines_of(8, 8), [0]);
        assert_eq!(lines_of(0, 64), [0]);
        assert_eq!(lines_of(56, 16), [0, 64]);
        assert_eq!(lines_of(63, 2), [0, 64]);
        assert_eq!(lines_of(64, 129), [64, 128, 192]);
    }

    #[test]
    fn the_chosen_instruction_runs_here_and_keeps_the_bytes() {
        assert_ne!(line_flush(), FlushInstruction::None);
        let mut bytes = Aligned([0; 256]);
        bytes.0.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        flush_lines(bytes.0.as_ptr(), 256);
        fence();
        assert!(bytes.0.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    }
}
