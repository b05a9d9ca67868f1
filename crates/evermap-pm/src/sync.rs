//! The one place where threads wait.
//!
//! Everything that spins or locks in Evermap goes through here, so that a simulated scheduler can take the
//! place of the operating system's: a thread that one governs hands over instead of waiting.
//! Otherwise these locks are those of the standard library, and cost the same.

use std::cell::Cell;
use std::sync::{LockResult, TryLockError, TryLockResult};

pub use std::sync::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    /// How the calling thread waits, if a simulated scheduler governs it.
    static SIMULATED_WAIT: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Puts the calling thread under a simulated scheduler: `wait` runs wherever the thread would wait for another
/// one. `None` puts it back under the operating system's.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn govern(wait: Option<fn()>) {
    SIMULATED_WAIT.set(wait);
}

/// Whether a simulated scheduler governs the calling thread.
#[cfg(any(test, feature = "sim"))]
#[inline(always)]
pub(crate) fn is_governed() -> bool {
    SIMULATED_WAIT.get().is_some()
}

/// Waits as the simulated scheduler wants; returns `false` if there is none.
#[inline]
fn waited_as_simulated() -> bool {
    match SIMULATED_WAIT.get() {
        None => false,
        Some(wait) => {
            wait();
            true
        }
    }
}

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
            // A simulated holder runs, and so releases the lock, only after this thread hands over.
            Err(TryLockError::WouldBlock) if waited_as_simulated() => {}
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
        if !waited_as_simulated() {
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
}
