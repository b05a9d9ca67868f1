//! The stores that threads are executing now.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use crate::explore::{self, AtomicU64, RwLock, RwLockReadGuard};
use crate::sync::Backoff;

/// Number of threads that have a word of their own. Others share a lock.
const OWN: usize = if cfg!(test) { 4 } else { 256 };

/// The word of a thread that is not storing.
const IDLE: u64 = 0;

/// Says which threads are storing, for those who [wait](RunningStores::wait) for these stores.
///
/// A thread that stores changes only memory of its own, without a fence: the fence of all threads
/// at each instant shows what it has announced before that.
pub(super) struct RunningStores {
    own: [Word; OWN],
    /// Of the others, for intervals of even and of odd numbers: those of the interval before the
    /// current one can be waited for, and not those of this one.
    others: [RwLock<()>; 2],
}

/// [`IDLE`], or the number of the interval of a store, which is not less.
#[derive(Default)]
#[repr(align(64))]
struct Word(AtomicU64);

/// A store that a thread executes, until this is dropped.
pub(super) enum RunningStore<'a> {
    Own(&'a AtomicU64),
    Other { _lock: RwLockReadGuard<'a, ()> },
}

impl Default for RunningStores {
    fn default() -> Self {
        RunningStores { own: std::array::from_fn(|_| Word::default()), others: Default::default() }
    }
}

impl RunningStores {
    /// Announces a store in interval `now`, or in a later one if `current` says so, and returns
    /// which.
    #[inline]
    pub(super) fn begin(&self, mut now: u64, current: &AtomicU64) -> (RunningStore<'_>, u64) {
        let Some(Word(word)) = self.own.get(explore::thread_ordinal()) else {
            return self.begin_other(now, current);
        };
        loop {
            word.store(now, Relaxed);
            compiler_fence(SeqCst);
            // Only a store that was announced before its number was loaded is waited for.
            match current.load(Acquire) {
                number if number == now => return (RunningStore::Own(word), now),
                number => now = number,
            }
        }
    }

    /// [`begin`](RunningStores::begin), for a thread that has no word of its own.
    #[cold]
    fn begin_other(&self, mut now: u64, current: &AtomicU64) -> (RunningStore<'_>, u64) {
        loop {
            let lock = self.others_of(now).read().unwrap_or_else(PoisonError::into_inner);
            match current.load(Acquire) {
                number if number == now => return (RunningStore::Other { _lock: lock }, now),
                number => now = number,
            }
        }
    }

    fn others_of(&self, number: u64) -> &RwLock<()> {
        &self.others[number as usize % 2]
    }

    /// Waits until all stores have ended that had loaded a number below `number` before the last
    /// fence of all threads: as long as a thread needs for one, if it is not interrupted.
    pub(super) fn wait(&self, number: u64) {
        for Word(word) in &self.own {
            let mut backoff = Backoff::new();
            while (IDLE + 1..number).contains(&word.load(Acquire)) {
                backoff.wait_long();
            }
        }
        // Those of earlier intervals were waited for before.
        let others = self.others_of(number.wrapping_sub(1));
        drop(others.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for RunningStore<'_> {
    #[inline]
    fn drop(&mut self) {
        if let RunningStore::Own(word) = self {
            // Release: who sees it also sees how the store is marked.
            word.store(IDLE, Release);
        }
    }
}
