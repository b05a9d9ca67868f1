//! Calls that wait for a grace period.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem::{self, MaybeUninit};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicUsize, fence};

use super::{COLLECT_AT, Domain, SHARDS, SMALL, thread_ordinal};
use crate::sync::{Backoff, Mutex, MutexGuard, Rank};

thread_local! {
    /// Whether this thread is executing a deferred call.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// The space for what a call captures, if it is small.
type Captured = MaybeUninit<[*mut (); 3]>;

/// A function that is called once, with what it captures. Small ones need no allocation.
struct Call {
    run: unsafe fn(Captured),
    captured: Captured,
}

// SAFETY: the caller of `Call::new` ensures that it may be executed on any thread.
unsafe impl Send for Call {}

impl Call {
    /// # Safety
    ///
    /// 1. `call` may be sent to other threads.
    /// 2. What it borrows lives until it is executed.
    unsafe fn new<F: FnOnce()>(call: F) -> Self {
        let mut captured = Captured::uninit();
        if fits::<F>() {
            // SAFETY: the space is large enough and aligned for an `F`, and is our own.
            unsafe { captured.as_mut_ptr().cast::<F>().write(call) };
            Call { run: run_inline::<F>, captured }
        } else {
            let boxed: *mut () = Box::into_raw(Box::new(call)).cast();
            captured.write([boxed; 3]);
            Call { run: run_boxed::<F>, captured }
        }
    }

    fn run(self) {
        // SAFETY: `new` stored a value of the type that `run` takes, and this consumes it. What it
        // borrows still lives, as the caller of `new` ensures.
        unsafe { (self.run)(self.captured) }
    }
}

/// Returns `true` if a value of this type fits into [`Captured`].
const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Captured>() && align_of::<F>() <= align_of::<Captured>()
}

/// # Safety
///
/// `captured` holds an `F`, which is not used again.
unsafe fn run_inline<F: FnOnce()>(captured: Captured) {
    // SAFETY: by the contract.
    let call = unsafe { captured.as_ptr().cast::<F>().read() };
    call();
}

/// # Safety
///
/// `captured` begins with a pointer from `Box::<F>::into_raw`, which is not used again.
unsafe fn run_boxed<F: FnOnce()>(captured: Captured) {
    // SAFETY: by the contract.
    let call = unsafe { Box::from_raw(captured.assume_init()[0].cast::<F>()) };
    call();
}

/// Calls that wait for the end of their grace period.
#[repr(align(128))]
pub(super) struct CallList {
    list: Mutex<Calls>,
    /// Bytes of all calls in the list. Only changed while the list is locked.
    pub(super) bytes: AtomicUsize,
    /// Locked by the thread that executes calls of this list.
    runner: Mutex<()>,
}

/// Calls that wait, oldest first.
#[derive(Default)]
pub(super) struct Calls {
    waiting: VecDeque<Waiting>,
    /// Bytes since the last attempt to execute calls, where each counts for at least [`SMALL`].
    since_run: usize,
}

struct Waiting {
    call: Call,
    bytes: usize,
    epoch: u64,
}

impl CallList {
    pub(super) fn new() -> Self {
        CallList {
            list: Mutex::ranked(Rank::Retired, Calls::default()),
            bytes: AtomicUsize::new(0),
            runner: Mutex::ranked(Rank::Calls, ()),
        }
    }

    /// Acquires the lock of the list, as [`Domain::lock`] does.
    pub(super) fn lock(&self, domain: &Domain) -> Option<MutexGuard<'_, Calls>> {
        self.list.try_lock().ok().or_else(|| {
            domain.ensure_not_forked().ok()?;
            Some(self.list.lock().expect("no panics while locked"))
        })
    }

    /// Takes the oldest call, if its grace period is over in `epoch`.
    fn take(&self, domain: &Domain, epoch: u64) -> Option<Waiting> {
        let mut calls = self.lock(domain)?;
        let taken = calls.waiting.pop_front_if(|first| first.epoch + 2 <= epoch)?;
        self.count(|waiting| waiting - taken.bytes);
        Some(taken)
    }

    /// Changes the count of bytes. The caller holds the lock of the list.
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        // Relaxed, and no atomic exchange: as in `Shard::count`.
        self.bytes.store(change(self.bytes.load(Relaxed)), Relaxed);
    }

    /// Returns `true` if a thread is changing the list.
    pub(super) fn is_locked(&self) -> bool {
        self.list.try_lock().is_err()
    }
}

/// Marks that this thread is executing a deferred call, as long as it lives.
struct InCall;

impl InCall {
    /// Returns `None` if the thread is executing one already.
    fn begin() -> Option<Self> {
        (!IN_CALL.replace(true)).then_some(InCall)
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        IN_CALL.set(false);
    }
}

impl Domain {
    /// Calls `call` after a grace period: when every guard that exists now has been dropped, and
    /// every thread that is online now has announced a quiescent state, or gone offline.
    ///
    /// The call happens on any thread that defers, retires or [flushes](Domain::flush), or when the
    /// domain is dropped. So it must not wait for a lock that such a thread may hold. It may use
    /// the domain, except that in a call, of any domain, [`drain`](Domain::drain) does not wait for
    /// calls. If it panics, so does the thread that executes it. Calls that are deferred by one
    /// thread are executed in their order, but for those that other threads are executing.
    ///
    /// `bytes` is the size of what the call frees. It counts towards [the limit of waiting
    /// bytes](Domain::set_backlog_limit), together with the space that the call itself occupies,
    /// so a caller that observes the [limit](Domain::is_backed_up) needs bounded memory even if
    /// calls free nothing. A function that captures at most three words is not allocated.
    pub fn defer(&self, bytes: usize, call: impl FnOnce() + Send + 'static) {
        // SAFETY: it can be sent, and borrows nothing.
        unsafe { self.defer_unchecked(bytes, call) }
    }

    /// Calls `call` after a grace period, like [`defer`](Domain::defer), although it may borrow, or
    /// contain what cannot be sent.
    ///
    /// # Safety
    ///
    /// 1. It is sound to execute `call` on any thread that uses or drops this domain.
    /// 2. What `call` borrows lives until it is executed: at the latest when the domain is dropped.
    ///    So it must not borrow the domain itself.
    pub unsafe fn defer_unchecked<F: FnOnce()>(&self, bytes: usize, call: F) {
        let list = &self.calls[thread_ordinal() % SHARDS];
        let heap = if fits::<F>() { 0 } else { size_of::<F>() };
        let bytes = bytes + heap + size_of::<Waiting>();
        // SAFETY: by the contract.
        let call = unsafe { Call::new(call) };
        let (epoch, waits) = {
            // In a forked child the call may be lost, like a block.
            let Some(mut calls) = list.lock(self) else { return };
            // As in `retire_with_total`.
            fence(SeqCst);
            let epoch = self.global.load(Relaxed);
            calls.waiting.push_back(Waiting { call, bytes, epoch });
            list.count(|waiting| waiting + bytes);
            calls.since_run += bytes.max(SMALL);
            if (calls.since_run as u64) < *COLLECT_AT.start() {
                return;
            }
            calls.since_run = 0;
            (epoch, calls.waiting.front().is_some_and(|first| first.epoch + 2 > epoch))
        };
        if waits {
            let _ = self.advance_from(epoch);
        }
        // Twice what is deferred until the next attempt, so that a backlog shrinks, but one thread
        // does not pay for all of it.
        self.run_calls(list, 2 * *COLLECT_AT.start() as usize);
        self.update_backed_up();
    }

    /// Executes calls of one list whose grace period is over, until they have reclaimed `most`
    /// bytes. Leaves them to another thread that is already doing it.
    pub(super) fn run_calls(&self, list: &CallList, most: usize) {
        // Relaxed: a call that another thread is deferring is executed later.
        if list.bytes.load(Relaxed) == 0 {
            return;
        }
        // Under the lock, so that a thread that has locked it since then knows that no call taken
        // from this list is still being executed. A thread never waits for it, so that a call that
        // waits for another thread cannot hold up a third.
        let Some(_runner) = try_lock(&list.runner) else { return };
        self.run_locked(list, most);
    }

    fn run_locked(&self, list: &CallList, most: usize) {
        // Otherwise calls that defer calls would be executed in each other, without a bound.
        let Some(_in_call) = InCall::begin() else { return };
        // Acquire: the accesses of readers that are gone happen before the calls.
        let epoch = self.global.load(Acquire);
        let epoch = if self.mutant("defer.one-epoch-too-early") { epoch + 1 } else { epoch };
        let mut reclaimed = 0;
        while reclaimed < most {
            // One at a time, so that a call that panics leaves the others in the list.
            let Some(Waiting { call, bytes, .. }) = list.take(self, epoch) else { return };
            reclaimed += bytes.max(SMALL);
            call.run();
        }
    }

    /// Executes all calls whose grace period is over, and waits for those that other threads are
    /// executing. In a deferred call, it does neither.
    pub(super) fn finish_calls(&self) {
        if IN_CALL.get() {
            return;
        }
        for list in &self.calls {
            let mut backoff = Backoff::new();
            let _runner = loop {
                match try_lock(&list.runner) {
                    Some(runner) => break runner,
                    None => backoff.wait_long(),
                };
            };
            self.run_locked(list, usize::MAX);
        }
    }
}

/// Acquires a lock that is free, even if a call panicked while it was held.
fn try_lock(mutex: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    use std::sync::TryLockError::{Poisoned, WouldBlock};
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(Poisoned(error)) => Some(error.into_inner()),
        Err(WouldBlock) => None,
    }
}

impl Drop for Domain {
    /// Executes the calls that are still waiting: a guard or reader would borrow the domain, so
    /// there are none.
    fn drop(&mut self) {
        let lists = mem::take(&mut self.calls);
        if lists.iter().any(CallList::is_locked) {
            // In a forked child: a thread that does not exist here was changing the list.
            mem::forget(lists);
            return;
        }
        for list in lists {
            let Ok(mut calls) = list.list.into_inner() else { continue };
            calls.waiting.drain(..).for_each(|waiting| waiting.call.run());
        }
    }
}
