//! Threads that stop in the middle of an operation until others have got something done.
//!
//! Races need a thread to be held up between two particular steps. An operating system on few cores seldom does
//! that, so the threads of the kit hold themselves up: now and then one stops at a random access to the
//! medium, and goes on when others have completed some operations.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use evermap_pm::sim::rng::Rng;
use evermap_pm::sync::{Condvar, Mutex};

use super::chance;

/// Operations in which a thread may stop, of 100.
const STOPS: u64 = 30;
/// Operations of others that it waits for, at most.
const PATIENCE: u64 = 6;
/// Who holds up all others, because it holds a lock, goes on after this.
const LONGEST: Duration = Duration::from_micros(200);

/// Threads that work on the same index.
#[derive(Default)]
pub(crate) struct Crowd {
    /// Operations completed.
    done: AtomicU64,
    members: AtomicUsize,
    waiting: AtomicUsize,
    /// How many times in a row, roughly, stopping was in vain: others waited for a lock.
    vain: AtomicU64,
    lock: Mutex<()>,
    progress: Condvar,
}

/// What a thread knows of its crowd.
struct Member {
    crowd: Arc<Crowd>,
    random: Rng,
}

thread_local! {
    /// Accesses until the thread stops.
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
}

impl Crowd {
    /// Makes the calling thread a member, for as long as the answer lives.
    pub(crate) fn join(self: &Arc<Self>, seed: u64) -> Membership {
        self.members.fetch_add(1, SeqCst);
        let member = Member { crowd: self.clone(), random: Rng::new(seed) };
        MEMBER.set(Some(member));
        Membership
    }

    /// Waits until others have completed `operations`.
    fn wait(&self, operations: u64) {
        // Somebody has to work. And where operations lock out each other, stopping only costs time.
        let alone = self.waiting.fetch_add(1, SeqCst) + 1 >= self.members.load(SeqCst);
        if !alone {
            let target = self.done.load(SeqCst) + operations;
            let held = self.lock.lock().expect("no panics while held");
            let (_held, result) = self
                .progress
                .wait_timeout_while(held, LONGEST, |()| self.done.load(SeqCst) < target)
                .expect("no panics while held");
            let vain = self.vain.load(Relaxed);
            self.vain.store(if result.timed_out() { (vain + 1).min(8) } else { vain / 2 }, Relaxed);
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn note_progress(&self) {
        self.done.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            // Under the lock, so that nobody falls asleep between looking and waiting.
            let _held = self.lock.lock().expect("no panics while held");
            self.progress.notify_all();
        }
    }
}

/// Ends with the membership of its thread.
pub(crate) struct Membership;

impl Drop for Membership {
    fn drop(&mut self) {
        LEFT.set(u32::MAX);
        if let Some(member) = MEMBER.take() {
            member.crowd.members.fetch_sub(1, SeqCst);
            member.crowd.note_progress();
        }
    }
}

/// An operation of the calling thread, which ends with this.
pub(crate) struct Operation(());

impl Operation {
    /// Decides whether, and where, the thread stops in this operation.
    pub(crate) fn begin() -> Self {
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
        LEFT.set(u32::MAX);
        MEMBER.with_borrow(|member| {
            if let Some(member) = member {
                member.crowd.note_progress();
            }
        });
    }
}

impl Member {
    /// Draws after how many accesses to stop. Short and long operations deserve the same attention, so the order
    /// of magnitude is drawn first.
    fn arm(&mut self) {
        let vain = self.crowd.vain.load(Relaxed);
        let stops = chance(&mut self.random, STOPS) && self.random.below(1 << vain) == 0;
        let magnitude = self.random.below(12);
        LEFT.set(if stops { self.random.below(2 << magnitude) as u32 } else { u32::MAX });
    }
}

/// An access: where a thread may stop.
#[inline(always)]
pub(crate) fn step() {
    let left = LEFT.get();
    LEFT.set(left.wrapping_sub(1));
    if left == 0 {
        stop();
    }
}

#[cold]
fn stop() {
    MEMBER.with_borrow_mut(|member| {
        if let Some(member) = member {
            let operations = 1 + member.random.below(PATIENCE);
            member.crowd.wait(operations);
            // A long operation may be held up more than once.
            member.arm();
        }
    });
}
