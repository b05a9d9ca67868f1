//! Numbers, ids and names of threads.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Once, TryLockError};

use crate::sync::{Backoff, Mutex, MutexGuard, Rank};

/// Number of slots that belong to one thread each.
pub(super) const OWN_SLOTS: usize = 256;

thread_local! {
    /// The number of this thread, or `usize::MAX` until it has one.
    pub(super) static ORDINAL: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The system's id of this thread, or 0 until it is needed.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// Where this thread starts its search for a shared slot.
    pub(super) static NEXT_SHARED: Cell<usize> = const { Cell::new(0) };
    static RETURN_ORDINAL: ReturnOrdinal = const { ReturnOrdinal };
}

/// Thread numbers from this one on were never assigned.
pub(super) static ORDINALS: AtomicUsize = AtomicUsize::new(0);

/// The system's ids of the threads that have slots of their own, by their numbers.
pub(super) static OWNERS: [AtomicU32; OWN_SLOTS] = [const { AtomicU32::new(0) }; OWN_SLOTS];

/// Numbers of threads that have ended.
static RETURNED: Mutex<Vec<usize>> = Mutex::ranked(Rank::Leaf, Vec::new());

/// In a forked child, the id that the forking thread had in the parent, if it had asked for it. It
/// goes on under this id.
static FORKED_BY: AtomicU32 = AtomicU32::new(0);

/// The number of that thread, if it had one.
static FORKED_BY_NUMBER: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Returns the number of a thread when the thread ends.
struct ReturnOrdinal;

impl Drop for ReturnOrdinal {
    fn drop(&mut self) {
        // A guard that outlives its thread keeps the slot busy, which the next owner notices.
        let number = ORDINAL.replace(usize::MAX);
        if let Some(mut returned) = lock_returned() {
            returned.push(number);
        }
    }
}

/// Returns a small number that no other living thread has.
#[inline]
pub fn thread_ordinal() -> usize {
    let number = ORDINAL.get();
    if number == usize::MAX { new_ordinal() } else { number }
}

#[cold]
fn new_ordinal() -> usize {
    let returned = lock_returned().and_then(|mut returned| returned.pop());
    // SeqCst: before any announcement under this number; see `Domain::slots`.
    let number = returned.unwrap_or_else(|| ORDINALS.fetch_add(1, SeqCst));
    ORDINAL.set(number);
    register_owner(number);
    // Late in the destruction of a thread its number can no longer be returned. It is then never
    // reused.
    let _ = RETURN_ORDINAL.try_with(|_| {});
    number
}

/// Acquires the lock of the returned numbers. Gives up if that takes long: in a forked child, the
/// lock may have been copied while a thread held it that does not exist there. The child then
/// reuses no numbers.
fn lock_returned() -> Option<MutexGuard<'static, Vec<usize>>> {
    const ATTEMPTS: u32 = 1000;
    let mut backoff = Backoff::new();
    loop {
        match RETURNED.try_lock() {
            Ok(returned) => return Some(returned),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if backoff.wait() >= ATTEMPTS => return None,
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// Records which thread has this number now, and spreads the searches of different threads for
/// shared slots.
fn register_owner(number: usize) {
    NEXT_SHARED.set(number);
    if let Some(owner) = OWNERS.get(number) {
        // Relaxed: a domain that has been forked asks again if it sees the previous owner.
        owner.store(thread_id(), Relaxed);
    }
}

/// Returns the system's id of the calling thread, which no other living thread of this process has.
pub(super) fn thread_id() -> u32 {
    if THREAD.get() == 0 {
        // SAFETY: this system call has no arguments and touches no memory.
        THREAD.set(unsafe { libc::gettid() } as u32);
    }
    THREAD.get()
}

/// Remembers in forked children, from now on, which thread has forked.
pub(super) fn watch_forks() {
    extern "C" fn in_child() {
        FORKED_BY.store(THREAD.get(), Relaxed);
        FORKED_BY_NUMBER.store(ORDINAL.get(), Relaxed);
    }
    static REGISTER: Once = Once::new();
    // The interpreter has no fork.
    if !cfg!(miri) {
        // If there is no memory to register it, a child waits for no guard of the forking thread.
        // SAFETY: the handler only accesses atomic words, and words of this thread, which have no
        // destructors.
        REGISTER.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    }
}

/// Returns `true` if the thread with this number exists in this process.
pub(super) fn number_lives_here(number: usize) -> bool {
    number == FORKED_BY_NUMBER.load(Relaxed)
        || OWNERS.get(number).is_some_and(|owner| lives_here(owner.load(Relaxed)))
}

/// Returns `true` if the thread with this id exists in this process. In a forked child that is the
/// forking thread, and those that the child has created.
pub(super) fn lives_here(thread: u32) -> bool {
    thread != 0 && (thread == FORKED_BY.load(Relaxed) || can_signal(thread))
}

/// Returns `true` if the kernel would send a signal to this thread of this process.
fn can_signal(thread: u32) -> bool {
    let (process, thread) = (std::process::id() as libc::pid_t, thread as libc::pid_t);
    // SAFETY: this system call takes only numbers and touches no memory. Signal 0 is not sent.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
}

/// Returns the name of a living thread of this process.
pub(super) fn name_of(thread: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Runs `body` while the calling thread has the given number. No other thread that uses the same
/// domains may have this number in the meantime.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn with_ordinal<R>(number: usize, body: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            ORDINAL.set(self.0);
        }
    }
    // Its slot must be among those that are scanned; see `Domain::slots`.
    ORDINALS.fetch_max(number + 1, SeqCst);
    let _restore = Restore(ORDINAL.replace(number));
    register_owner(number);
    body()
}
