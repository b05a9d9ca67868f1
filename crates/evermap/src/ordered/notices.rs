//! Notices of keys that were bound or unbound, until they are applied to the tree.
//!
//! A notice says *look this key up again*. It is posted after the hash index was changed and before
//! the change is acknowledged, by a writer that holds no lock. Notices of one key go to one
//! *shard*, and at any time at most one thread works on the notices of a shard.
//!
//! A notice that a key was bound is *certain*, so that no lookup is needed, if no key of its shard
//! was reported unbound since before it was bound. Any later removal posts its own notice.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use evermap_index::key::BytesRef;
use evermap_index::ordered::Run;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};

/// The number of notices in a batch, which one thread applies at a time.
pub(super) const BATCH: usize = 64;
/// A batch with this number of bytes of keys is full too.
const BATCH_BYTES: usize = 64 << 10;
/// Batches of a shard that are kept to be filled again.
const SPARE: usize = 4;
/// Most notices that a shard keeps while there is no tree to tell, and most bytes of their keys.
const KEPT: u64 = if cfg!(test) { 1 << 9 } else { 1 << 17 };
const KEPT_BYTES: usize = 4 << 20;

/// What a notice is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyEvent {
    /// The key was bound, and was not before, by a change that began when its shard had
    /// [this number of notices](NoticeShard::unbindings) keys that were unbound.
    Bound { since: u64 },
    /// It was unbound.
    Unbound,
    /// Anything else: it must be looked up.
    Unclear,
}

impl KeyEvent {
    /// Returns the event of a key that named `old` and names `new` since a change that began at
    /// [`since`](KeyEvent::Bound); `None` if the key was bound before and after. `was_hidden`: no
    /// reader could see the old record.
    #[inline]
    pub(crate) fn of(
        old: Option<u64>,
        new: Option<u64>,
        was_hidden: bool,
        since: u64,
    ) -> Option<KeyEvent> {
        match (old, new) {
            (_, None) => Some(KeyEvent::Unbound),
            (None, _) => Some(KeyEvent::Bound { since }),
            // The thread that built the ordered index may have been unable to read the key.
            _ => was_hidden.then_some(KeyEvent::Unclear),
        }
    }
}

/// Notices that are applied together, in order.
#[derive(Default)]
pub(super) struct NoticeBatch {
    /// Keys and their hashes.
    pub(super) keys: Run,
    /// A bit for each notice that is not certain.
    pub(super) doubts: u64,
}

const _: () = assert!(BATCH <= u64::BITS as usize);

/// The notices of some keys, in order.
#[repr(align(128))]
pub(super) struct NoticeShard {
    queue: Mutex<Queue>,
    /// Held by the thread that applies notices of this shard.
    working: Mutex<()>,
    /// Notices posted so far: the ticket of the last.
    posted: AtomicU64,
    /// The number of notices that were applied to the tree.
    applied: AtomicU64,
    /// Notices posted so far of keys that were unbound.
    unbindings: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Full batches, the oldest first, and the one that is being filled.
    full: VecDeque<NoticeBatch>,
    filling: NoticeBatch,
    /// Empty ones, with room.
    spare: Vec<NoticeBatch>,
    /// Bytes of the keys in `filling`, and in all that is full.
    bytes: usize,
    full_bytes: usize,
    /// Whether notices were dropped, so that nothing is known about the keys of this shard.
    dropped: bool,
}

/// What became of a notice.
pub(super) enum Posted {
    /// It waits. The number of full batches that wait, and whether this notice has completed one.
    Waiting { batches: usize, completed: bool },
    /// There is a tree now, and the thread that posts must apply the notice itself.
    Refused,
}

impl Default for NoticeShard {
    fn default() -> Self {
        NoticeShard {
            queue: Mutex::ranked(Rank::Queue, Queue::default()),
            working: Mutex::ranked(Rank::Notices, ()),
            posted: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            unbindings: AtomicU64::new(0),
        }
    }
}

impl NoticeShard {
    /// Posts a notice. `has_tree` returns whether there is a tree; it is called while no other
    /// thread posts, so that a thread that makes it true finds all notices in the queue that were
    /// posted before.
    pub(super) fn post(
        &self,
        key: BytesRef<'_>,
        event: KeyEvent,
        at_once: bool,
        has_tree: impl Fn() -> bool,
    ) -> Posted {
        let mut queue = self.queue();
        let has_tree = has_tree();
        if at_once && has_tree {
            return Posted::Refused;
        }
        // A notice that is applied immediately overtakes those that wait.
        let certain = !at_once && self.is_certain(event);
        queue.push(key, certain);
        let completed = queue.filling.keys.len() >= BATCH || queue.bytes >= BATCH_BYTES;
        if completed {
            queue.complete();
        }
        // Release: a thread that sees the ticket finds the notice in the queue. Under the lock, so
        // that a notice cannot be applied before it counts as posted.
        let posted = self.posted.fetch_add(1, Release) + 1;
        if completed && !has_tree && self.is_too_much(&queue, posted) {
            queue.drop_all();
            // No thread applies notices while there is no tree.
            self.applied.store(posted, Release);
        }
        Posted::Waiting { batches: queue.full.len(), completed }
    }

    /// Whether a notice that is being posted is certain. Under the lock of the queue, so that a
    /// notice of a key that was unbound meanwhile either comes later or is seen here.
    fn is_certain(&self, event: KeyEvent) -> bool {
        match event {
            KeyEvent::Bound { since } => self.unbindings.load(Relaxed) == since,
            KeyEvent::Unbound => {
                self.unbindings.fetch_add(1, Relaxed);
                false
            }
            KeyEvent::Unclear => false,
        }
    }

    /// Returns the number of notices of keys that were unbound so far.
    ///
    /// Relaxed: what counts is that none is seen here that comes from a later change of the key,
    /// and none can be.
    #[inline]
    pub(super) fn unbindings(&self) -> u64 {
        self.unbindings.load(Relaxed)
    }

    fn is_too_much(&self, queue: &Queue, posted: u64) -> bool {
        posted - self.applied.load(Relaxed) >= KEPT || queue.full_bytes >= KEPT_BYTES
    }

    /// Waits until no thread applies notices of this shard, and keeps others from it until the
    /// guard is dropped.
    pub(super) fn work(&self) -> MutexGuard<'_, ()> {
        // A panic here has lost a notice, and poisoned the store.
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what [`work`](NoticeShard::work) does without waiting. Returns `None` if another thread
    /// is at it.
    pub(super) fn try_work(&self) -> Option<MutexGuard<'_, ()>> {
        self.working.try_lock().ok()
    }

    /// The oldest notices. The caller works on this shard, and says when they are
    /// [applied](Self::applied).
    pub(super) fn take(&self) -> Option<NoticeBatch> {
        let mut queue = self.queue();
        if let Some(batch) = queue.full.pop_front() {
            queue.full_bytes -= bytes_of(&batch.keys);
            return Some(batch);
        }
        queue.bytes = 0;
        (!queue.filling.keys.is_empty()).then(|| queue.next())
    }

    /// The notices of a batch that was taken are applied.
    pub(super) fn applied(&self, mut batch: NoticeBatch) {
        // Release: a thread that sees the count sees the changes of the tree.
        self.applied.fetch_add(batch.keys.len() as u64, Release);
        batch.keys.clear();
        batch.doubts = 0;
        let mut queue = self.queue();
        if queue.spare.len() < SPARE {
            queue.spare.push(batch);
        }
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
    fn push(&mut self, key: BytesRef<'_>, certain: bool) {
        self.filling.doubts |= u64::from(!certain) << self.filling.keys.len();
        self.filling.keys.push(key.bytes, key.hash);
        self.bytes += key.bytes.len();
    }

    fn complete(&mut self) {
        let batch = self.next();
        self.full.push_back(batch);
        self.full_bytes += std::mem::take(&mut self.bytes);
    }

    /// The batch that is being filled. Another one takes its place.
    fn next(&mut self) -> NoticeBatch {
        let next = self.spare.pop().unwrap_or_else(|| {
            let mut next = NoticeBatch::default();
            next.keys.reserve(BATCH);
            next
        });
        std::mem::replace(&mut self.filling, next)
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

    fn post(shard: &NoticeShard, number: u64) -> Posted {
        let key = number.to_be_bytes();
        shard.post(
            BytesRef { bytes: &key, hash: number },
            KeyEvent::Bound { since: 0 },
            false,
            || false,
        )
    }

    #[test]
    fn notices_come_in_order_and_are_counted() {
        let shard = NoticeShard::default();
        for number in 0..150 {
            let Posted::Waiting { batches, completed } = post(&shard, number) else { panic!() };
            assert_eq!(
                (batches, completed),
                ((number as usize + 1) / BATCH, (number + 1) % 64 == 0)
            );
        }
        let ticket = shard.ticket();
        assert_eq!((ticket, shard.counts()), (150, (0, 150)));
        let mut seen = 0u64;
        let _working = shard.work();
        assert!(shard.try_work().is_none());
        while let Some(batch) = shard.take() {
            assert!(!shard.has_passed(ticket));
            assert_eq!(batch.doubts, 0);
            for (key, word) in batch.keys.iter() {
                assert_eq!((key, word), (&seen.to_be_bytes()[..], seen));
                seen += 1;
            }
            shard.applied(batch);
        }
        assert_eq!((seen, shard.counts()), (150, (150, 0)));
        assert!(shard.has_passed(ticket));
        let refused =
            shard.post(BytesRef { bytes: b"", hash: 0 }, KeyEvent::Unbound, true, || true);
        assert!(matches!(refused, Posted::Refused) && shard.ticket() == ticket);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let shard = NoticeShard::default();
        for number in 0..KEPT {
            post(&shard, number);
        }
        assert!(shard.has_dropped());
        assert!(shard.take().is_none() && shard.has_passed(shard.ticket()));
        // Keys of some length are bounded by their bytes.
        let shard = NoticeShard::default();
        let long = vec![7; evermap_index::record::KEY_MAX];
        let most = KEPT_BYTES / long.len();
        for at in 0..most {
            assert!(!shard.has_dropped(), "{at}");
            shard.post(BytesRef { bytes: &long, hash: 7 }, KeyEvent::Unbound, false, || false);
        }
        assert!(shard.has_dropped());
    }

    /// A thread that was overtaken by one that unbinds a key, perhaps the same, must look it up.
    #[test]
    fn an_overtaken_notice_is_not_certain() {
        let shard = NoticeShard::default();
        let key = BytesRef { bytes: b"key", hash: 7 };
        let since = shard.unbindings();
        for (event, at_once) in [
            (KeyEvent::Bound { since }, false),
            (KeyEvent::Bound { since }, true),
            (KeyEvent::Unclear, false),
            (KeyEvent::Unbound, false),
            (KeyEvent::Bound { since }, false),
            (KeyEvent::Bound { since: since + 1 }, false),
        ] {
            shard.post(key, event, at_once, || false);
        }
        assert_eq!(shard.take().unwrap().doubts, 0b011110);
    }
}
