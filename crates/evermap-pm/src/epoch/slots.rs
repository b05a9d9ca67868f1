//! The slots where guards announce the epoch that they saw.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use super::threads::NEXT_SHARED;

/// Number of shared slots in the first chunk. Each further chunk has twice as many as the previous
/// one.
pub(super) const FIRST_CHUNK: usize = if cfg!(test) { 2 } else { 256 };

/// Maximum number of chunks of shared slots: more than fit in any memory.
const CHUNKS: usize = 32;

/// The value of a slot without a guard. Epochs are larger.
pub(super) const IDLE: u64 = 0;

/// Number of bits of an announcement that hold the epoch. In a shared slot the others hold the
/// thread id; the system's thread ids are below 2^22. Announcements are only compared for equality,
/// and a guard stops the epoch, so it does not matter that these bits wrap.
pub(super) const EPOCH_BITS: u32 = 42;

/// Mask of the bits of an announcement that hold the epoch.
pub(super) const EPOCHS: u64 = (1 << EPOCH_BITS) - 1;

/// A slot where a guard announces the epoch that it saw.
#[repr(align(128))]
pub(super) struct GuardSlot {
    /// [`IDLE`], or the epoch that was seen.
    pub(super) announced: AtomicU64,
    /// Whether it is of an online reader, if it is not idle.
    pub(super) online: AtomicBool,
}

/// Slots that any guard can use.
pub(super) struct SharedSlots {
    chunks: [OnceLock<Box<[GuardSlot]>>; CHUNKS],
    /// Slots `0..created` exist.
    pub(super) created: AtomicUsize,
    /// Slots `0..used` may hold a guard; the others never did.
    pub(super) used: AtomicUsize,
}

/// Creates idle slots.
pub(super) fn slots(count: usize) -> Box<[GuardSlot]> {
    let idle = || GuardSlot { announced: AtomicU64::new(IDLE), online: AtomicBool::new(false) };
    (0..count).map(|_| idle()).collect()
}

impl SharedSlots {
    pub(super) fn new() -> Self {
        SharedSlots {
            chunks: [const { OnceLock::new() }; CHUNKS],
            created: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        }
    }

    /// Returns the chunk of slot `index`, and its position there.
    pub(super) fn locate(index: usize) -> (usize, usize) {
        let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
        (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
    }

    /// Returns slot `index`, if it exists.
    fn get(&self, index: usize) -> Option<&GuardSlot> {
        let (chunk, offset) = Self::locate(index);
        self.chunks[chunk].get()?.get(offset)
    }

    /// Creates more slots after the first `created`, unless another thread has done so.
    #[cold]
    fn grow(&self, created: usize) {
        let (chunk, _) = Self::locate(created);
        let more = self.chunks[chunk].get_or_init(|| slots(FIRST_CHUNK << chunk)).len();
        // Release: a thread that sees the new count also finds the slots.
        self.created.fetch_max(created + more, Release);
    }

    /// Takes an idle slot for this announcement.
    pub(super) fn take(&self, announcement: impl Fn() -> u64) -> &GuardSlot {
        let mut from = NEXT_SHARED.get();
        loop {
            // Acquire: pairs with the release in `grow`.
            let created = self.created.load(Acquire);
            for step in 0..created {
                let at = (from + step) % created;
                let Some(slot) = self.get(at) else { continue };
                if at >= self.used.load(Relaxed) {
                    // Before anything is announced in it, so that scans include it.
                    self.used.fetch_max(at + 1, SeqCst);
                }
                schedule_point();
                // Acquire: the previous guard in this slot has been dropped.
                let taken = slot.announced.compare_exchange(IDLE, announcement(), Acquire, Relaxed);
                if taken.is_ok() {
                    // Where this thread starts its next search: here if this guard has been dropped
                    // by then, and otherwise after the slots that it holds.
                    NEXT_SHARED.set(at);
                    return slot;
                }
            }
            // All of them hold guards.
            self.grow(created);
            from = created;
        }
    }

    /// Returns the slots that may hold a guard.
    pub(super) fn used(&self) -> impl Iterator<Item = &GuardSlot> {
        // SeqCst: see `Domain::slots`.
        (0..self.used.load(SeqCst)).filter_map(|at| self.get(at))
    }
}

/// Marks a point between two steps of the protocol, at which tests let the simulated scheduler
/// switch to another thread.
#[inline(always)]
pub(super) fn schedule_point() {
    #[cfg(test)]
    crate::sim::schedule::after(crate::sim::schedule::Progress::Transient);
}
