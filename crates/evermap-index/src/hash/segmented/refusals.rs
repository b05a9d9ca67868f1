//! Segments for which a split was refused.
//!
//! A full segment whose records a split would not separate gets a chain. Each later insertion finds
//! it full again, and would read all of it to learn that nothing has changed. So a refusal is
//! remembered, in ordinary memory, until the segment has grown by half, or gets a record of another
//! kind.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use evermap_pm::sync::{Mutex, MutexGuard, Rank};

use crate::hash::hash_prefix::are_separable;

/// The refusals of an index. Used only by changes of full segments.
pub struct Refusals {
    /// The number of refusals. Lets the others, which are nearly all, pass without the lock.
    count: AtomicUsize,
    /// By the offset of the segment.
    refusals: Mutex<HashMap<u64, Refusal>>,
}

/// A refused split.
struct Refusal {
    /// The number of blocks that the chain may get before the next attempt.
    blocks_left: usize,
    /// The rank of a record that no split separates from the others, if that was the reason.
    like: Option<u64>,
}

impl Default for Refusals {
    fn default() -> Self {
        Refusals { count: AtomicUsize::new(0), refusals: Mutex::ranked(Rank::Leaf, HashMap::new()) }
    }
}

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Refusal>> {
        // Only a hint: whatever a panicked thread has left is good enough.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_none(&self) -> bool {
        // Relaxed: only a hint, as a split can be attempted at any time.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Remembers that a split of the segment at `offset` was refused. The next attempt is due when
    /// its chain needs more than `blocks_left` additional blocks; or for a record that can be
    /// separated from one with the rank `like`, if the split was refused for such a record because
    /// none would separate the others.
    pub fn remember(&self, offset: u64, blocks_left: usize, like: Option<u64>) {
        let mut refusals = self.lock();
        refusals.insert(offset, Refusal { blocks_left, like });
        self.count.store(refusals.len(), Ordering::Relaxed);
    }

    /// Forgets a refusal: the segment at `offset` was split or merged away.
    pub fn forget(&self, offset: u64) {
        if self.are_none() {
            return;
        }
        let mut refusals = self.lock();
        refusals.remove(&offset);
        self.count.store(refusals.len(), Ordering::Relaxed);
    }

    /// Returns whether a split of the segment at `offset` was refused, and would be for a record
    /// with this rank.
    pub fn contain(&self, offset: u64, rank: u64) -> bool {
        let is_like = |like| !are_separable([like, rank].into_iter());
        !self.are_none()
            && self.lock().get(&offset).is_some_and(|refusal| refusal.like.is_none_or(is_like))
    }

    /// Called when the chain of the segment at `offset` needs another block. Returns whether the
    /// segment should be split instead, if possible.
    pub fn is_attempt_due(&self, offset: u64) -> bool {
        if self.are_none() {
            return true;
        }
        match self.lock().get_mut(&offset) {
            Some(refusal) if refusal.blocks_left > 0 => {
                refusal.blocks_left -= 1;
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
        assert!(!refusals.contain(64, 0) && refusals.is_attempt_due(64));
        refusals.remember(64, 2, None);
        assert!(refusals.contain(64, 0) && !refusals.contain(128, 0));
        assert!(refusals.is_attempt_due(128));
        assert!(!refusals.is_attempt_due(64) && !refusals.is_attempt_due(64));
        assert!(refusals.is_attempt_due(64) && refusals.contain(64, 0));
        refusals.forget(64);
        assert!(!refusals.contain(64, 0) && refusals.is_attempt_due(64));
    }

    #[test]
    fn an_attempt_is_due_for_a_record_of_another_kind() {
        let refusals = Refusals::default();
        refusals.remember(64, 2, Some(7));
        assert!(refusals.contain(64, 8) && !refusals.contain(64, 1 << 50));
    }
}
