//! Locking whole segments.

use evermap_index::hash::segmented::apply::HeldBucket;
use evermap_index::hash::segmented::waiting::Waiting;
use evermap_index::key::Quotient;
use evermap_pm::{Medium, Result};

use super::LineHash;
use super::bucket::{Held, try_lock};
use super::layout::{Line, Segment};

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    /// Locks every line of a segment. Returns `false`, with nothing locked, if the segment no
    /// longer serves `image`.
    ///
    /// Only a thread that locks a whole segment waits for a line while it holds others, and such
    /// threads lock lines in the same order, so this cannot deadlock. A segment that was merged
    /// away stays locked, but the directory no longer refers to it.
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

    /// Waits for one line and locks it. Returns `false`, with the line unlocked, if the segment no
    /// longer serves `image`.
    fn lock_in_turn(&self, segment: &Segment<L>, at: usize, image: u64) -> Result<bool> {
        let m = self.medium();
        let serves = || self.locate(image) == m.offset_of(segment);
        let line = &segment.lines[at];
        // Most lines are not locked. Whether the segment still serves the image is checked only for
        // the first.
        if at > 0
            && let Some(Held { .. }) = try_lock(m, line)
        {
            return Ok(true);
        }
        let mut waiting = Waiting::default();
        loop {
            if let Some(held) = try_lock(m, line) {
                // The line stays locked until the caller unlocks all lines. While a thread holds
                // the first line, no other thread splits or merges the segment.
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

    /// Releases lines that were not changed.
    pub(super) fn unlock_lines(&self, lines: &[Line]) {
        lines.iter().for_each(|line| Held { line }.release(self.medium()));
    }

    /// Releases every line after changes.
    pub(super) fn unlock_changed(&self, segment: &Segment<L>) {
        segment.lines.iter().for_each(|line| Held { line }.release_changed(self.medium()));
    }
}
