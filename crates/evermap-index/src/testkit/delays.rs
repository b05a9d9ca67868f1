//! Threads that pause in the middle of an operation until other threads have made progress.
//!
//! Races need a thread to be delayed between two particular steps. An operating system on few cores
//! seldom does that, so the threads of the kit delay themselves: in some operations a thread pauses
//! at a random access to the medium, and continues when others have completed some operations.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use evermap_pm::sim::rng::Rng;
use evermap_pm::sync::{Condvar, Mutex};

use super::chance;

/// The percentage of operations in which a thread may pause.
const STOP_PERCENT: u64 = 30;
/// The largest number of operations of others that it waits for.
const WAIT_MAX: u64 = 6;
/// A thread that blocks all others, because it holds a lock, continues after this time.
const TIMEOUT: Duration = Duration::from_micros(200);

/// Threads that use the same index.
#[derive(Default)]
pub struct ThreadGroup {
    /// The number of completed operations.
    done: AtomicU64,
    /// The smallest number of completed operations that a thread waits for, or less. Others wake
    /// the waiting threads only then.
    awaited: AtomicU64,
    members: AtomicUsize,
    waiting: AtomicUsize,
    /// Roughly the number of pauses in succession that ended by the timeout: then others wait for a
    /// lock.
    timeouts: AtomicU64,
    lock: Mutex<()>,
    progress: Condvar,
}

/// The state of a thread in its group.
struct Member {
    group: Arc<ThreadGroup>,
    random: Rng,
}

thread_local! {
    /// The number of accesses until the thread pauses.
    static STEPS_LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
}

impl ThreadGroup {
    /// Makes the calling thread a member while the result lives.
    pub fn join(self: &Arc<Self>, seed: u64) -> Membership {
        self.members.fetch_add(1, SeqCst);
        let member = Member { group: self.clone(), random: Rng::new(seed) };
        MEMBER.set(Some(member));
        Membership
    }

    /// Waits until others have completed `operations` operations.
    fn wait(&self, operations: u64) {
        // One thread has to continue.
        let alone = self.waiting.fetch_add(1, SeqCst) + 1 >= self.members.load(SeqCst);
        if !alone {
            let target = self.done.load(SeqCst) + operations;
            // Asks to be woken before it checks: one of both sees the other.
            let early = |(): &mut ()| {
                self.awaited.fetch_min(target, SeqCst);
                self.done.load(SeqCst) < target
            };
            let guard = self.lock.lock().expect("no panics while guard");
            let (_guard, result) = self
                .progress
                .wait_timeout_while(guard, TIMEOUT, early)
                .expect("no panics while guard");
            let timeouts = self.timeouts.load(Relaxed);
            self.timeouts.store(
                if result.timed_out() { (timeouts + 1).min(8) } else { timeouts / 2 },
                Relaxed,
            );
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn note_progress(&self) {
        let done = self.done.fetch_add(1, SeqCst) + 1;
        if self.awaited.load(SeqCst) <= done {
            // Under the lock, so that no thread misses the notification between its check and its
            // wait. Those who still wait ask again.
            let _guard = self.lock.lock().expect("no panics while guard");
            self.awaited.store(u64::MAX, SeqCst);
            self.progress.notify_all();
        }
    }
}

/// Ends the membership of its thread when dropped.
pub struct Membership;

impl Drop for Membership {
    fn drop(&mut self) {
        STEPS_LEFT.set(u32::MAX);
        if let Some(member) = MEMBER.take() {
            member.group.members.fetch_sub(1, SeqCst);
            member.group.note_progress();
        }
    }
}

/// An operation of the calling thread, which ends when this is dropped.
pub struct Operation(());

impl Operation {
    /// Decides whether, and where, the thread pauses in this operation.
    pub fn begin() -> Self {
        MEMBER.with_borrow_mut(|member| {
            if let Some(member) = member {
                member.arm();
            }
        });
        step();
        Operation(())
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        STEPS_LEFT.set(u32::MAX);
        MEMBER.with_borrow(|member| {
            if let Some(member) = member {
                member.group.note_progress();
            }
        });
    }
}

impl Member {
    /// Chooses the number of accesses until the next pause. The order of magnitude is chosen first,
    /// so that pauses in short operations are as frequent as in long ones. If pauses time out,
    /// operations exclude each other, and pauses become rare.
    fn arm(&mut self) {
        let timeouts = self.group.timeouts.load(Relaxed);
        let stops = chance(&mut self.random, STOP_PERCENT) && self.random.below(1 << timeouts) == 0;
        let magnitude = self.random.below(12);
        STEPS_LEFT.set(if stops { self.random.below(2 << magnitude) as u32 } else { u32::MAX });
    }
}

/// Called at each access: the thread may pause here.
#[inline(always)]
pub fn step() {
    // `get` and `set` would be two calls.
    if STEPS_LEFT.with(|left| left.replace(left.get().wrapping_sub(1))) == 0 {
        stop();
    }
}

#[cold]
fn stop() {
    MEMBER.with_borrow_mut(|member| {
        if let Some(member) = member {
            let operations = 1 + member.random.below(WAIT_MAX);
            member.group.wait(operations);
            // A long operation may be delayed more than once.
            member.arm();
        }
    });
}
