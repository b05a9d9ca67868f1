//! Lists of retired blocks.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{Mutex, MutexGuard, Rank};

#[repr(align(128))]
pub(super) struct Shard {
    list: Mutex<RetiredList>,
    /// Bytes of all blocks in the list. Only changed while the list is locked.
    pub(super) bytes: AtomicUsize,
}

/// Retired blocks that wait for the end of their grace period, oldest first.
#[derive(Default)]
pub(super) struct RetiredList {
    pub(super) blocks: VecDeque<Retired>,
    /// Bytes retired since the last attempt to reclaim, where each block counts for at least
    /// [`SMALL`](super::SMALL).
    pub(super) since_collect: usize,
}

pub(super) struct Retired {
    pub(super) token: u64,
    pub(super) bytes: usize,
    pub(super) epoch: u64,
}

impl Shard {
    pub(super) fn new() -> Self {
        let list = Mutex::ranked(Rank::Retired, RetiredList::default());
        Shard { list, bytes: AtomicUsize::new(0) }
    }

    /// Acquires the lock if it is free.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, RetiredList>> {
        self.list.try_lock().ok()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RetiredList> {
        self.list.lock().expect("no panics while locked")
    }

    /// Changes the count of bytes. The caller holds the lock of the list.
    pub(super) fn count(&self, change: impl FnOnce(usize) -> usize) {
        // Relaxed, and no atomic exchange: no other thread changes it, and readers only need a sum.
        self.bytes.store(change(self.bytes.load(Relaxed)), Relaxed);
    }
}
