//! Pages and their states.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::explore::AtomicU64;
use crate::medium::LINE;

/// Bytes in a page: the unit in which contents are kept.
pub(crate) const PAGE: u64 = 4096;

/// In the number of a page: a thread changes its state.
pub(super) const LOCKED: u64 = 1 << 63;

/// Returns the lines of a page that `bytes` bytes from `at` on are in, one bit each.
pub(super) fn lines_of(at: u64, bytes: u64) -> u64 {
    let (first, last) = (at / LINE, (at + bytes - 1) / LINE);
    (u64::MAX >> (63 - (last - first))) << first
}

/// The state of a page: see the [module](super).
#[repr(C, align(16))]
pub(super) struct PageState {
    pub(super) number: AtomicU64,
    pub(super) lines: AtomicU64,
}

impl PageState {
    /// Locks the state, if its number is still `number`.
    pub(super) fn try_lock(&self, number: u64) -> bool {
        self.number.compare_exchange(number, number | LOCKED, AcqRel, Acquire).is_ok()
    }

    /// Unlocks the state.
    pub(super) fn unlock(&self, number: u64) {
        self.number.store(number, Release);
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Acquire)
    }

    /// Adds lines, and returns whether they were not all there.
    pub(super) fn add_lines(&self, lines: u64) {
        if self.lines.load(Relaxed) & lines != lines {
            self.lines.fetch_or(lines, AcqRel);
        }
    }
}
