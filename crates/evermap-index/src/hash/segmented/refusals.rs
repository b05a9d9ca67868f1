//! Segments for which a split was refused.
//!
//! A full segment whose records a split would not separate gets a chain. Each later insertion finds
//! it full again, and would read all of it to learn that nothing has changed. So a refusal is
//! remembered, in ordinary memory, until the segment has grown by half.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use evermap_pm::sync::{Mutex, MutexGuard};

/// The refusals of an index. Used only by changes of full segments.
#[derive(Default)]
pub(crate) struct Refusals {
    /// The number of refusals. Lets the others, which are nearly all, pass without the lock.
    count: AtomicUsize,
    /// By the offset of the segment: the number of blocks that its chain may get before the next
    /// attempt to split it.
    blocks_left: Mutex<HashMap<u64, usize>>,
}

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        // Only a hint: whatever a panicked thread has left is good enough.
        self.blocks_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_none(&self) -> bool {
        // Relaxed: only a hint, as a split can be attempted at any time.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Remembers that a split of the segment at `offset` was refused. The next attempt is due when
    /// its chain needs more than `blocks` additional blocks.
    pub(crate) fn remember(&self, offset: u64, blocks: usize) {
        let mut refusals = self.lock();
        refusals.insert(offset, blocks);
        self.count.store(refusals.len(), Ordering::Relaxed);
    }

    /// Forgets a refusal: the segment at `offset` was split or merged away.
    pub(crate) fn forget(&self, offset: u64) {
        if self.are_none() {
            return;
        }
        let mut refusals = self.lock();
        refusals.remove(&offset);
        self.count.store(refusals.len(), Ordering::Relaxed);
    }

    /// Returns whether a split of the segment at `offset` was refused.
    pub(crate) fn contain(&self, offset: u64) -> bool {
        !self.are_none() && self.lock().contains_key(&offset)
    }

    /// Called when the chain of the segment at `offset` needs another block. Returns whether the
    /// segment should be split instead, if possible.
    pub(crate) fn is_attempt_due(&self, offset: u64) -> bool {
        if self.are_none() {
            return true;
        }
        match self.lock().get_mut(&offset) {
            Some(blocks) if *blocks > 0 => {
                *blocks -= 1;
                false
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_due_after_some_blocks() {
        let refusals = Refusals::default();
        assert!(!refusals.contain(64) && refusals.is_attempt_due(64));
        refusals.remember(64, 2);
        assert!(refusals.contain(64) && !refusals.contain(128) && refusals.is_attempt_due(128));
        assert!(!refusals.is_attempt_due(64) && !refusals.is_attempt_due(64));
        assert!(refusals.is_attempt_due(64) && refusals.contain(64));
        refusals.forget(64);
        assert!(!refusals.contain(64) && refusals.is_attempt_due(64));
    }
}
