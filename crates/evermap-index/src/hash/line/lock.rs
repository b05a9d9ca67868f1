//! Locking whole segments.

use evermap_pm::{Medium, Result};

use super::LineHash;
use super::bucket::{Held, try_lock};
use super::layout::{Line, Segment};
use crate::hash::segmented::apply::HeldBucket;
use crate::hash::segmented::waiting::Waiting;
use crate::key::Quotient;

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Locks every line of a segment that served `image`. Returns `false`, holding nothing, if it
    /// no longer does.
    ///
    /// Lines are locked in order, and a thread that holds a line only ever tries to lock others, so
    /// this cannot deadlock. A segment that was merged away stays locked, which the
    /// directory tells.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    pub(super) fn lock_all(&self, segment: &Segment<L>, image: u64) -> Result<bool> {
        for at in 0..L {
            match self.lock_in_turn(segment, at, image) {
                Ok(true) => {}
                other => {
                    self.unlock_lines(&segment.lines[..at]);
                    return other;
                }
            }
        }
        Ok(true)
    }

    /// Waits for one line. Returns `false`, not holding it, if the segment no longer serves
    /// `image`.
    fn lock_in_turn(&self, segment: &Segment<L>, at: usize, image: u64) -> Result<bool> {
        let m = self.medium();
        let serves = || self.locate(image) == m.offset_of(segment);
        let line = &segment.lines[at];
        // Most are free; only the first tells whether the segment is still the one.
        if at > 0
            && let Some(Held { .. }) = try_lock(m, line)
        {
            return Ok(true);
        }
        let mut waiting = Waiting::default();
        loop {
            if let Some(held) = try_lock(m, line) {
                // Stays locked until the caller unlocks all. The thread that holds a line keeps the
                // segment in the directory.
                let serves = at > 0 || serves();
                if !serves {
                    held.release(m);
                }
                return Ok(serves);
            }
            if at == 0 && !serves() {
                return Ok(false);
            }
            waiting.wait(self, segment)?;
        }
    }

    /// Releases lines as they were.
    pub(super) fn unlock_lines(&self, lines: &[Line]) {
        lines.iter().for_each(|line| Held { line }.release(self.medium()));
    }

    /// Releases every line after changes.
    pub(super) fn unlock_changed(&self, segment: &Segment<L>) {
        segment.lines.iter().for_each(|line| Held { line }.release_changed(self.medium()));
    }
}
