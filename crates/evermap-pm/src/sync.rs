//! The one place where threads wait.
//!
//! Everything that spins or locks in Evermap goes through here, so that the simulator's
//! [scheduler](crate::sim::schedule) can take the place of the operating system's: a thread that it governs
//! hands over instead of waiting. Elsewhere these locks are those of the standard library, and cost the same.

use std::sync::{LockResult, TryLockError, TryLockResult};

pub use std::sync::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

use crate::sim::schedule;

/// [`std::sync::Mutex`], under whichever scheduler there is.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// What it protects.
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock).
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    ///
    /// # Errors
    /// The guard, if a thread panicked while it held the lock.
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        acquire(|| self.0.try_lock(), || self.0.lock())
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// Somebody has it, or a thread panicked while it had.
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// [`std::sync::RwLock`], under whichever scheduler there is.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes.
    ///
    /// # Errors
    /// The guard, if a thread panicked while it held the lock for writing.
    #[inline]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        acquire(|| self.0.try_read(), || self.0.read())
    }

    /// Waits until nobody reads or writes.
    ///
    /// # Errors
    /// As [`read`](RwLock::read).
    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        acquire(|| self.0.try_write(), || self.0.write())
    }
}

/// Tries, and waits in the way that the scheduler wants.
#[inline]
fn acquire<G>(
    attempt: impl Fn() -> TryLockResult<G>,
    wait: impl FnOnce() -> LockResult<G>,
) -> LockResult<G> {
    loop {
        match attempt() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(error)) => return Err(error),
            // Only the holder can release it, and runs only if we hand over.
            Err(TryLockError::WouldBlock) if schedule::is_governed() => schedule::wait(),
            Err(TryLockError::WouldBlock) => return wait(),
        }
    }
}

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
        if schedule::is_governed() {
            schedule::wait();
        } else if self.rounds < SPINS {
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
