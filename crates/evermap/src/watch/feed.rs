//! The changes of one map, on their way to those who watch it.
//!
//! The order of the changes of one key is that in which they are made under the lock of its bucket,
//! which nobody else can be told from inside: a change that was reported before it is visible could
//! be missed by who then reads the key. So while a map is watched, a writer holds the *order* of
//! the key from before its change until it has reported it. The changes of a batch are reported
//! while their keys are reserved, when no other writer can change them.
//!
//! Nobody holds anything while a map is not watched. `watch` waits for a grace period: the writers
//! that began before it and may have found that nobody watches have then ended.

use std::array;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use evermap_index::key::BytesRef;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};

use crate::watch::queue::Queue;
use crate::watch::{ChangeKind, WatchEvent};

/// Writers of keys with different numbers do not wait for each other.
const ORDERS: usize = 16;

/// The watchers of one map.
pub(crate) struct Feed {
    is_watched: AtomicBool,
    orders: [Mutex<()>; ORDERS],
    queues: Mutex<Arc<[Arc<Queue>]>>,
}

/// Held while a key of a map that is watched is changed, until that is reported.
pub(crate) struct Turn<'f> {
    feed: &'f Feed,
    _held: MutexGuard<'f, ()>,
}

impl Default for Feed {
    fn default() -> Self {
        Feed {
            is_watched: AtomicBool::new(false),
            orders: array::from_fn(|_| Mutex::ranked(Rank::Watched, ())),
            queues: Mutex::ranked(Rank::Leaf, Arc::new([])),
        }
    }
}

impl Feed {
    /// Returns `true` if changes have to be reported, for a caller with a guard.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        // Relaxed: see above.
        self.is_watched.load(Relaxed)
    }

    /// Keeps changes of this key by other threads from being made and reported. Returns `None` if
    /// nobody watches. To be called under a guard that is held until the change is reported.
    #[inline]
    pub(crate) fn order(&self, key: BytesRef<'_>) -> Option<Turn<'_>> {
        if self.is_watched() { Some(self.lock_order(key.hash)) } else { None }
    }

    #[cold]
    fn lock_order(&self, hash: u64) -> Turn<'_> {
        // Bits that no index uses to choose a place.
        let order = &self.orders[(hash >> 20) as usize % ORDERS];
        // A panic of the medium has poisoned the store.
        let _held = order.lock().unwrap_or_else(PoisonError::into_inner);
        Turn { feed: self, _held }
    }

    fn queues(&self) -> MutexGuard<'_, Arc<[Arc<Queue>]>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports to `queue` too, from the next grace period on.
    pub(crate) fn add(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues();
        *queues = queues.iter().chain([queue]).cloned().collect();
        self.is_watched.store(true, Relaxed);
    }

    /// Reports no more to `queue`.
    pub(crate) fn remove(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues();
        *queues = queues.iter().filter(|other| !Arc::ptr_eq(other, queue)).cloned().collect();
        self.is_watched.store(!queues.is_empty(), Relaxed);
    }

    fn report(&self, key: &[u8], kind: ChangeKind, cas: u64) {
        let queues = self.queues().clone();
        for queue in queues.iter().filter(|queue| key.starts_with(queue.prefix())) {
            queue.push(WatchEvent::Changed { key: key.to_vec(), kind, cas });
        }
    }

    /// Reports that the records with a smaller CAS id than `below` are gone.
    pub(crate) fn report_cleared(&self, below: u64) {
        if self.is_watched() {
            let queues = self.queues().clone();
            queues.iter().for_each(|queue| queue.push(WatchEvent::Cleared { below }));
        }
    }

    /// Has all consumers look again whether the map is open.
    pub(crate) fn wake(&self) {
        if self.is_watched() {
            let queues = self.queues().clone();
            queues.iter().for_each(|queue| queue.wake());
        }
    }
}

impl Turn<'_> {
    /// Reports a change of the key, which was made.
    pub(crate) fn report(&self, key: BytesRef<'_>, kind: ChangeKind, cas: u64) {
        self.feed.report(key.bytes, kind, cas);
    }
}
