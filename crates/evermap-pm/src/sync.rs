//! Locks and spinning: the only place where threads wait.
//!
//! All code of Evermap that spins or locks uses this module, so that a simulated scheduler can
//! replace the one of the operating system: a thread under its control hands over instead of
//! waiting. Otherwise these locks are those of the standard library, at the same cost.

use std::cell::Cell;
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::Duration;

pub use std::sync::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    /// The wait function of the calling thread, if a simulated scheduler controls it.
    static SIMULATED_WAIT: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Puts the calling thread under a simulated scheduler: `wait` is called whenever the thread would
/// wait for another one. `None` returns control to the operating system's scheduler.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn set_simulated_wait(wait: Option<fn()>) {
    SIMULATED_WAIT.set(wait);
}

/// Returns `true` if a simulated scheduler controls the calling thread.
#[cfg(any(test, feature = "sim"))]
#[inline(always)]
pub(crate) fn is_simulated() -> bool {
    SIMULATED_WAIT.get().is_some()
}

/// Waits under the simulated scheduler. Returns `false` if there is none.
#[inline]
fn simulated_wait() -> bool {
    match SIMULATED_WAIT.get() {
        None => false,
        Some(wait) => {
            wait();
            true
        }
    }
}

/// A [`std::sync::Mutex`] that works under a simulated scheduler too.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Returns the protected value.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Mutex::lock).
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Acquires the lock, waiting for it if necessary.
    ///
    /// # Errors
    ///
    /// Contains the guard, if a thread panicked while it held the lock.
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        acquire(|| self.0.try_lock(), || self.0.lock())
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    ///
    /// If another thread holds the lock, or a thread panicked while it held it.
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// A [`std::sync::RwLock`] that works under a simulated scheduler too.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Acquires the lock for reading, waiting until there is no writer.
    ///
    /// # Errors
    ///
    /// Contains the guard, if a thread panicked while it held the lock for writing.
    #[inline]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        acquire(|| self.0.try_read(), || self.0.read())
    }

    /// Acquires the lock for writing, waiting until there are no readers and no writer.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read).
    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        acquire(|| self.0.try_write(), || self.0.write())
    }
}

/// Tries to acquire a lock, and waits as the scheduler of the thread requires.
#[inline]
fn acquire<G>(
    attempt: impl Fn() -> TryLockResult<G>,
    wait: impl FnOnce() -> LockResult<G>,
) -> LockResult<G> {
    loop {
        match attempt() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(error)) => return Err(error),
            // Under a simulated scheduler the holder runs, and so releases the lock, only after
            // this thread hands over.
            Err(TryLockError::WouldBlock) if simulated_wait() => {}
            Err(TryLockError::WouldBlock) => return wait(),
        }
    }
}

/// Waits for another thread, a little longer each time: first a few pauses, then the rest of the
/// time slice.
///
/// On a machine with few cores the holder of a lock may not be running at all, so it is important
/// to yield early.
#[derive(Default)]
pub struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// Creates a `Backoff` that has not waited yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits once. Returns the number of waits so far.
    #[inline]
    pub fn wait(&mut self) -> u32 {
        const SPINS: u32 = 6;
        if !simulated_wait() {
            if self.rounds < SPINS {
                for _ in 0..1 << self.rounds {
                    std::hint::spin_loop();
                }
            } else {
                std::thread::yield_now();
            }
        }
        self.rounds = self.rounds.saturating_add(1);
        self.rounds
    }

    /// Waits once for something that may take long: like [`wait`](Backoff::wait), but after some
    /// waits the thread sleeps, for a millisecond at most. Returns the number of waits so far.
    pub fn wait_long(&mut self) -> u32 {
        const YIELDS: u32 = 64;
        const SHORTEST: Duration = Duration::from_micros(32);
        const DOUBLINGS: u32 = 5;
        if self.rounds < YIELDS {
            return self.wait();
        }
        if !simulated_wait() {
            std::thread::sleep(SHORTEST * (1 << (self.rounds - YIELDS).min(DOUBLINGS)));
        }
        self.rounds = self.rounds.saturating_add(1);
        self.rounds
    }
}
