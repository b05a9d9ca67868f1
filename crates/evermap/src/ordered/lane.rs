//! Notices: which keys came or went, until somebody has told the tree.
//!
//! A notice says nothing but *look this key up again*. It is posted after the hash index was changed and before the
//! change is acknowledged, by a writer that holds no lock. Notices of one key go to one *lane*, and at any time at
//! most one thread works on the notices of a lane.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use evermap_index::key::BytesRef;
use evermap_index::ordered::Run;
use evermap_pm::sync::{Mutex, MutexGuard};

/// Notices in a batch: what one thread applies at a time.
pub(super) const BATCH: usize = 64;
/// A batch with so many bytes of keys is full too.
const BATCH_BYTES: usize = 64 << 10;
/// Most notices that a lane keeps while there is no tree to tell, and most bytes of their keys.
const KEPT: u64 = if cfg!(test) { 1 << 9 } else { 1 << 17 };
const KEPT_BYTES: usize = 4 << 20;

/// The notices of some keys, in order.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Lane {
    queue: Mutex<Queue>,
    /// Held by whoever works on notices of this lane.
    working: Mutex<()>,
    /// Notices posted so far: the ticket of the last.
    posted: AtomicU64,
    /// Notices of which the tree was told.
    applied: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Full batches, the oldest first, and the one that is being filled.
    full: VecDeque<Run>,
    filling: Run,
    /// Bytes of the keys in `filling`, and in all that is full.
    bytes: usize,
    full_bytes: usize,
    /// Whether notices were dropped, so that nothing is known of any key of this lane.
    dropped: bool,
}

/// What became of a notice.
pub(super) enum Posted {
    /// It waits, beside so many full batches; whether it has just completed one.
    Waiting { batches: usize, completed: bool },
    /// There is a tree now, and whoever posts is to tell it himself.
    Refused,
}

impl Lane {
    /// Posts a notice. `has_tree` says whether there is a tree to tell; it is asked while nobody else posts, so that
    /// whoever makes it true finds all notices in the queue that were posted before.
    pub(super) fn post(
        &self,
        key: BytesRef<'_>,
        at_once: bool,
        has_tree: impl Fn() -> bool,
    ) -> Posted {
        let mut queue = self.queue();
        let has_tree = has_tree();
        if at_once && has_tree {
            return Posted::Refused;
        }
        queue.filling.push(key.bytes, key.hash);
        queue.bytes += key.bytes.len();
        let completed = queue.filling.len() >= BATCH || queue.bytes >= BATCH_BYTES;
        if completed {
            queue.complete();
        }
        // Release: whoever sees the ticket finds the notice in the queue. Under the lock, so that a notice cannot be
        // applied before it counts as posted.
        let posted = self.posted.fetch_add(1, Release) + 1;
        if completed && !has_tree && self.is_too_much(&queue, posted) {
            queue.drop_all();
            // Nobody works on notices while there is no tree.
            self.applied.store(posted, Release);
        }
        Posted::Waiting { batches: queue.full.len(), completed }
    }

    fn is_too_much(&self, queue: &Queue, posted: u64) -> bool {
        posted - self.applied.load(Relaxed) >= KEPT || queue.full_bytes >= KEPT_BYTES
    }

    /// Waits until nobody works on this lane, and keeps it so.
    pub(super) fn work(&self) -> MutexGuard<'_, ()> {
        // Whoever panicked here has left a key of which a notice was lost, and poisoned the store.
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same without waiting: nothing if somebody works on it.
    pub(super) fn try_work(&self) -> Option<MutexGuard<'_, ()>> {
        self.working.try_lock().ok()
    }

    /// The oldest notices. The caller works on this lane, and says when they are [applied](Self::applied).
    pub(super) fn take(&self) -> Option<Run> {
        let mut queue = self.queue();
        if let Some(batch) = queue.full.pop_front() {
            queue.full_bytes -= bytes_of(&batch);
            return Some(batch);
        }
        queue.bytes = 0;
        Some(std::mem::take(&mut queue.filling)).filter(|batch| !batch.is_empty())
    }

    /// So many notices that were taken are applied.
    pub(super) fn applied(&self, notices: usize) {
        // Release: whoever sees the count sees the tree as it was told.
        self.applied.fetch_add(notices as u64, Release);
    }

    /// The ticket of the last notice.
    #[inline]
    pub(super) fn ticket(&self) -> u64 {
        self.posted.load(Acquire)
    }

    /// Whether the notice with this ticket, and all before it, are applied.
    #[inline]
    pub(super) fn has_passed(&self, ticket: u64) -> bool {
        self.applied.load(Acquire) >= ticket
    }

    /// Whether notices were dropped, for want of room.
    pub(super) fn has_dropped(&self) -> bool {
        self.queue().dropped
    }

    /// Notices applied so far, and those that wait.
    pub(super) fn counts(&self) -> (u64, u64) {
        let applied = self.applied.load(Acquire);
        (applied, self.posted.load(Relaxed).saturating_sub(applied))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panics while held")
    }
}

impl Queue {
    fn complete(&mut self) {
        let mut next = Run::new();
        next.reserve(BATCH);
        self.full.push_back(std::mem::replace(&mut self.filling, next));
        self.full_bytes += std::mem::take(&mut self.bytes);
    }

    fn drop_all(&mut self) {
        *self = Queue { dropped: true, ..Queue::default() };
    }
}

fn bytes_of(batch: &Run) -> usize {
    batch.iter().map(|(key, _)| key.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(lane: &Lane, number: u64) -> Posted {
        let key = number.to_be_bytes();
        lane.post(BytesRef { bytes: &key, hash: number }, false, || false)
    }

    #[test]
    fn notices_come_in_order_and_are_counted() {
        let lane = Lane::default();
        for number in 0..150 {
            let Posted::Waiting { batches, completed } = post(&lane, number) else { panic!() };
            assert_eq!(
                (batches, completed),
                ((number as usize + 1) / BATCH, (number + 1) % 64 == 0)
            );
        }
        let ticket = lane.ticket();
        assert_eq!((ticket, lane.counts()), (150, (0, 150)));
        let mut seen = 0u64;
        let _working = lane.work();
        assert!(lane.try_work().is_none());
        while let Some(batch) = lane.take() {
            assert!(!lane.has_passed(ticket));
            for (key, word) in batch.iter() {
                assert_eq!((key, word), (&seen.to_be_bytes()[..], seen));
                seen += 1;
            }
            lane.applied(batch.len());
        }
        assert_eq!((seen, lane.counts()), (150, (150, 0)));
        assert!(lane.has_passed(ticket));
        let refused = lane.post(BytesRef { bytes: b"", hash: 0 }, true, || true);
        assert!(matches!(refused, Posted::Refused) && lane.ticket() == ticket);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let lane = Lane::default();
        for number in 0..KEPT {
            post(&lane, number);
        }
        assert!(lane.has_dropped());
        assert!(lane.take().is_none() && lane.has_passed(lane.ticket()));
        // Keys of some length are bounded by their bytes.
        let lane = Lane::default();
        let long = vec![7; evermap_index::record::KEY_MAX];
        let most = KEPT_BYTES / long.len();
        for at in 0..most {
            assert!(!lane.has_dropped(), "{at}");
            lane.post(BytesRef { bytes: &long, hash: 7 }, false, || false);
        }
        assert!(lane.has_dropped());
    }
}
