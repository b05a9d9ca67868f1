//! Locks and spinning: the only place where threads wait.
//!
//! All code of Evermap that spins or locks uses this module, so that a simulated scheduler can
//! replace the one of the operating system: a thread under its control hands over instead of
//! waiting. Otherwise these locks are those of the standard library, at the same cost.
//!
//! Each lock of a store has a [`Rank`], and tests check that they are acquired in the order of
//! their ranks.

mod rank;

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
use std::time::Duration;

pub(crate) use rank::expect_to_wait_for_readers;
use rank::{Held, OfLock, expect_alone, expect_order, expect_order_or_same};
pub use rank::{HeldRank, Rank};

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

/// A [`std::sync::Mutex`] that works under a simulated scheduler too, and can have a [`Rank`].
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    rank: OfLock,
    lock: std::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex without a rank, for what is no part of a store. Its order is not
    /// checked.
    pub const fn new(value: T) -> Self {
        Mutex { rank: OfLock::NONE, lock: std::sync::Mutex::new(value) }
    }

    /// Creates an unlocked mutex of this rank.
    pub const fn ranked(rank: Rank, value: T) -> Self {
        Mutex { rank: OfLock::new(rank), lock: std::sync::Mutex::new(value) }
    }

    /// Returns the protected value.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Mutex::lock).
    pub fn into_inner(self) -> LockResult<T> {
        self.lock.into_inner()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
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
        expect_order(self.rank);
        let acquired = acquire(|| self.lock.try_lock(), || self.lock.lock());
        map_guard(acquired, |guard| MutexGuard::new(self.rank, guard))
    }

    /// Acquires the lock as [`lock`](Mutex::lock) does, although the thread may hold others of the
    /// same rank. The caller acquires all locks of this rank in one order, as every other caller
    /// does.
    ///
    /// # Errors
    ///
    /// The same as `lock`.
    #[inline]
    pub fn lock_next(&self) -> LockResult<MutexGuard<'_, T>> {
        expect_order_or_same(self.rank);
        let acquired = acquire(|| self.lock.try_lock(), || self.lock.lock());
        map_guard(acquired, |guard| MutexGuard::new(self.rank, guard))
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    ///
    /// If another thread holds the lock, or a thread panicked while it held it.
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.lock.try_lock() {
            Ok(guard) => Ok(MutexGuard::new(self.rank, guard)),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(error)) => {
                let guard = MutexGuard::new(self.rank, error.into_inner());
                Err(TryLockError::Poisoned(PoisonError::new(guard)))
            }
        }
    }
}

/// The guard of a [`Mutex`].
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct MutexGuard<'a, T: ?Sized + 'a> {
    guard: std::sync::MutexGuard<'a, T>,
    held: Held,
    rank: OfLock,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    #[inline(always)]
    fn new(rank: OfLock, guard: std::sync::MutexGuard<'a, T>) -> Self {
        MutexGuard { guard, held: Held::new(rank), rank }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A [`std::sync::Condvar`] for a [`Mutex`]. If that has a rank, a thread that waits must hold no
/// other lock.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Creates one that no thread waits for.
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes one of the threads that wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a signal while `condition` returns `true`.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::lock`].
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        expect_alone(guard.rank);
        let MutexGuard { guard, held, rank } = guard;
        let waited = self.0.wait_while(guard, condition);
        map_guard(waited, |guard| MutexGuard { guard, held, rank })
    }

    /// Waits for a signal, for at most `timeout`.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::lock`].
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        expect_alone(guard.rank);
        let MutexGuard { guard, held, rank } = guard;
        let waited = self.0.wait_timeout(guard, timeout);
        map_guard(waited, |(guard, end)| (MutexGuard { guard, held, rank }, end))
    }

    /// Waits for a signal while `condition` returns `true`, for at most `timeout`.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::lock`].
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        expect_alone(guard.rank);
        let MutexGuard { guard, held, rank } = guard;
        let waited = self.0.wait_timeout_while(guard, timeout, condition);
        map_guard(waited, |(guard, end)| (MutexGuard { guard, held, rank }, end))
    }
}

/// A [`std::sync::RwLock`] that works under a simulated scheduler too, and can have a [`Rank`].
#[derive(Debug)]
pub struct RwLock<T: ?Sized> {
    rank: OfLock,
    lock: std::sync::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock without a rank, for what is no part of a store. Its order is not
    /// checked.
    pub const fn new(value: T) -> Self {
        RwLock { rank: OfLock::NONE, lock: std::sync::RwLock::new(value) }
    }

    /// Creates an unlocked lock of this rank.
    pub const fn ranked(rank: Rank, value: T) -> Self {
        RwLock { rank: OfLock::new(rank), lock: std::sync::RwLock::new(value) }
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
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
        expect_order(self.rank);
        let acquired = acquire(|| self.lock.try_read(), || self.lock.read());
        map_guard(acquired, |guard| RwLockReadGuard { guard, _held: Held::new(self.rank) })
    }

    /// Acquires the lock for writing, waiting until there are no readers and no writer.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read).
    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        expect_order(self.rank);
        let acquired = acquire(|| self.lock.try_write(), || self.lock.write());
        map_guard(acquired, |guard| RwLockWriteGuard { guard, _held: Held::new(self.rank) })
    }
}

/// The guard of a [`RwLock`] that is held for reading.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized + 'a> {
    guard: std::sync::RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

/// The guard of a [`RwLock`] that is held for writing.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized + 'a> {
    guard: std::sync::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Applies `wrap` to the guard in `acquired`, whether or not the lock is poisoned.
#[inline(always)]
fn map_guard<G, H>(acquired: LockResult<G>, wrap: impl FnOnce(G) -> H) -> LockResult<H> {
    match acquired {
        Ok(guard) => Ok(wrap(guard)),
        Err(error) => Err(PoisonError::new(wrap(error.into_inner()))),
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
