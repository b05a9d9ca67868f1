//! The one place where threads wait.
//!
//! Everything that spins or locks in Evermap goes through here, so that a deterministic scheduler can
//! take the place of the operating system's.

pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock};

/// Waits for another thread a little longer each time: a few pauses, then the rest of the time slice.
///
/// On a machine with few cores the holder of a lock may not be running at all, so yielding early matters.
#[derive(Default)]
pub struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// A fresh one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits once; returns how often it has waited so far.
    #[inline]
    pub fn wait(&mut self) -> u32 {
        const SPINS: u32 = 6;
        if self.rounds < SPINS {
            for _ in 0..1 << self.rounds {
                std::hint::spin_loop();
            }
        } else {
            std::thread::yield_now();
        }
        self.rounds = self.rounds.saturating_add(1);
        self.rounds
    }
}
