//! Hardware transactions: a lock that is not taken as long as threads do not disturb each other.
//!
//! HiKV and FPTree keep their trees in ordinary memory consistent by such transactions (Intel's
//! RTM: "restricted transactional memory"). A transaction that another thread disturbs is undone by
//! the processor. After [`ATTEMPTS`] of them, the lock is taken, which undoes all others.
//!
//! Only some processors have transactions, and some of those always undo them: see
//! [`are_supported`]. Elsewhere the lock is taken every time, which is correct, and slow.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use evermap_pm::sync::{Backoff, Mutex};
use evermap_pm::{ErrorKind, Result};

/// Transactions that are tried before the lock is taken.
pub const ATTEMPTS: u32 = 3;

/// Waits for the holder of the lock before a transaction is given up.
const WAITS_MAX: u32 = 100;

/// Why a transaction of a [`Elided`] value was not made by hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The processor has none, or is of another architecture.
    Processor,
    /// The processor has them, and undoes every one: so do many since updates of their microcode.
    AlwaysUndone,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Missing::Processor => "this processor has no hardware transactions (RTM)",
            Missing::AlwaysUndone => "this processor undoes every hardware transaction",
        })
    }
}

/// Tries whether this processor commits transactions.
///
/// # Errors
/// Why not.
pub fn are_supported() -> std::result::Result<(), Missing> {
    /// Empty transactions that are tried.
    const PROBES: usize = 1000;
    if !rtm::exists() {
        return Err(Missing::Processor);
    }
    let commits = (0..PROBES).any(|_| {
        let is_begun = rtm::begin();
        if is_begun {
            rtm::commit();
        }
        is_begun
    });
    if commits { Ok(()) } else { Err(Missing::AlwaysUndone) }
}

/// How often something was done by a transaction, and how often under the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that were committed.
    pub committed: u64,
    /// Times that the lock was taken.
    pub locked: u64,
}

/// A value that threads use one after the other, or so that it looks like that.
pub struct Elided<T> {
    value: UnsafeCell<T>,
    /// Whether transactions are tried.
    transactional: bool,
    lock: Mutex<()>,
    /// Whether the lock is held. Every transaction reads it, so that it is undone as soon as the
    /// lock is taken. It stays set if the holder panics.
    held: AtomicBool,
    committed: AtomicU64,
    locked: AtomicU64,
}

// SAFETY: invariant: the value is only accessed in `with`, which never lets two threads see each
// other's accesses: either the thread holds `lock`, or it is in a transaction that has read `held`
// as false. The processor makes transactions appear one after the other, and undoes one in which
// another thread's store meets what it has read, such as the store to `held` of the thread that
// takes the lock. So the value only has to be one that may be used by any thread.
unsafe impl<T: Send> Sync for Elided<T> {}

impl<T> Elided<T> {
    /// Creates a value that is used by transactions if this processor has them.
    pub fn new(value: T) -> Self {
        Elided {
            value: UnsafeCell::new(value),
            transactional: are_supported().is_ok(),
            lock: Mutex::new(()),
            held: AtomicBool::new(false),
            committed: AtomicU64::new(0),
            locked: AtomicU64::new(0),
        }
    }

    /// Calls `work` with the value. It may be called several times, but all except the last are
    /// undone, with everything that they have stored anywhere. System calls undo it too.
    ///
    /// # Errors
    /// `Poisoned` if `work` has panicked before.
    pub fn with<R>(&self, mut work: impl FnMut(&mut T) -> R) -> Result<R> {
        if self.transactional
            && let Some(result) = self.transaction(&mut work)
        {
            self.committed.fetch_add(1, Relaxed);
            return Ok(result);
        }
        let _lock = self.lock.lock().map_err(|_| ErrorKind::Poisoned)?;
        // SeqCst: no access to the value comes before it.
        self.held.store(true, SeqCst);
        // SAFETY: this thread holds the lock, and transactions that began before were undone by the
        // store to `held`, or committed before it.
        let result = work(unsafe { &mut *self.value.get() });
        // Release: transactions that begin now see what this thread has stored.
        self.held.store(false, Release);
        self.locked.fetch_add(1, Relaxed);
        Ok(result)
    }

    /// Returns the result of `work` if a transaction is committed.
    fn transaction<R>(&self, work: &mut impl FnMut(&mut T) -> R) -> Option<R> {
        for _ in 0..ATTEMPTS {
            let mut backoff = Backoff::new();
            // One that begins while the lock is held would be undone. After a long wait the
            // lock itself is waited for, because its holder may have panicked.
            while self.held.load(Acquire) {
                if backoff.wait() > WAITS_MAX {
                    return None;
                }
            }
            if rtm::begin() {
                if self.held.load(Relaxed) {
                    rtm::undo();
                }
                // SAFETY: this thread is in a transaction that has read `held` as false: see the
                // invariant at `Sync`.
                let result = work(unsafe { &mut *self.value.get() });
                rtm::commit();
                return Some(result);
            }
        }
        None
    }

    /// Returns how the value was used so far.
    pub fn counts(&self) -> Counts {
        Counts { committed: self.committed.load(Relaxed), locked: self.locked.load(Relaxed) }
    }
}

impl<V> Elided<BTreeMap<Vec<u8>, V>> {
    /// Returns the bytes of the keys and entries of a map. Those of its nodes are the standard
    /// library's own, and not known. O(n).
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn bytes(&self) -> Result<u64> {
        let entry = size_of::<(Vec<u8>, V)>() as u64;
        self.with(|map| map.keys().map(|key| entry + key.capacity() as u64).sum())
    }
}

/// The instructions.
#[cfg(target_arch = "x86_64")]
mod rtm {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    /// What the register has if a transaction has begun; no reason to undo one has this value.
    const BEGUN: u32 = u32::MAX;

    /// Returns `true` if the processor has the instructions.
    pub(super) fn exists() -> bool {
        /// Leaf 7, register EBX.
        const RTM: u32 = 1 << 11;
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ebx & RTM != 0
    }

    /// Begins a transaction. Returns `false` if it was undone: then the thread is here again, as it
    /// was before. Call only if the instructions [exist](exists).
    #[inline]
    pub(super) fn begin() -> bool {
        let mut status = BEGUN;
        // SAFETY: invariant: only called where `exists` has returned true. If the transaction is
        // undone, the processor restores all memory and registers to what they were at `xbegin`,
        // stores the reason in `eax`, and continues at the label, which is the next instruction. So
        // to the compiler this returns once.
        unsafe { asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
        status == BEGUN
    }

    /// Commits the transaction of this thread.
    #[inline]
    pub(super) fn commit() {
        // SAFETY: invariant: only called after `begin` has returned true.
        unsafe { asm!("xend", options(nostack)) };
    }

    /// Undoes the transaction of this thread, which continues where that began.
    #[inline]
    pub(super) fn undo() {
        // SAFETY: invariant: only called after `begin` has returned true.
        unsafe { asm!("xabort 1", options(nostack)) };
    }
}

/// Other processors have none of them.
#[cfg(not(target_arch = "x86_64"))]
mod rtm {
    pub(super) fn exists() -> bool {
        false
    }

    pub(super) fn begin() -> bool {
        false
    }

    pub(super) fn commit() {}

    pub(super) fn undo() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By transactions where there are some, and under the lock elsewhere: nothing is lost, and
    /// nothing half done is seen.
    #[test]
    fn threads_do_not_see_each_other() {
        const EACH: u64 = 20_000;
        let both = Elided::new((BTreeMap::new(), 0u64));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let both = &both;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let sum = both.with(|(map, sum)| {
                            *map.entry(number % 100).or_insert(0u64) += thread + 1;
                            *sum += thread + 1;
                            (map.values().sum::<u64>(), *sum)
                        });
                        let (map, sum) = sum.unwrap();
                        assert_eq!(map, sum);
                    }
                });
            }
        });
        let (_, sum) = both.with(|both| both.clone()).unwrap();
        assert_eq!(sum, EACH * (1 + 2 + 3));
        let Counts { committed, locked } = both.counts();
        assert_eq!(committed + locked, 3 * EACH + 1);
        assert!(are_supported().is_ok() || committed == 0);
    }

    #[test]
    fn a_panic_poisons_the_value() {
        let value = Elided::new(1);
        let panics = || value.with(|_| -> () { std::panic::resume_unwind(Box::new("quietly")) });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(value.with(|value| *value).unwrap_err().to_string().contains("panicked"));
    }

    #[test]
    fn what_is_missing_is_explained() {
        assert!(Missing::Processor.to_string().contains("has no hardware transactions"));
        assert!(Missing::AlwaysUndone.to_string().contains("undoes every"));
        assert!(are_supported().is_ok() || !Elided::new(()).transactional);
    }
}
