//! A deterministic scheduler: threads run one at a time, and switch at accesses to persistent
//! memory, in an order that follows from a seed.
//!
//! [`Sim::in_parallel`](super::Sim::in_parallel) runs threads under it. Each is a thread of the
//! operating system, but only the one whose turn it is runs. It hands over where a [`Strategy`]
//! says so, and where it would wait: for a lock of [`sync`](crate::sync), or in a
//! [`Backoff`](crate::sync::Backoff). If threads share anything else, they must synchronize by
//! persistent memory, or access it between two accesses to persistent memory.
//!
//! Structures in ordinary memory can be tested in the same way: [`run`] runs the threads, and the
//! structure calls [`after`] at its accesses to shared words.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use super::rng::{Rng, fold};
use crate::epoch::with_ordinal;
use crate::sync::{is_simulated, set_simulated_wait};

/// Which thread runs next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// A random thread, at random moments.
    Random,
    /// The thread with the highest priority. Priorities are drawn at the start, and drop to the
    /// lowest at a few random moments: probabilistic concurrency testing after Burckhardt and
    /// others (2010).
    Priority,
    /// A random thread; but a thread whose stores are visible to others and not yet durable is
    /// often paused until others have completed an operation: their results are lost if the stores
    /// are.
    Gap,
    /// A random thread; but a thread that has loaded something, or begins a named part of an
    /// operation, is often paused until others have completed some operations, so that what it has
    /// loaded is out of date.
    Stall,
    /// One of the others, depending on the seed. Each finds bugs that the others hardly find:
    /// `Priority` lets a thread do much while another one is paused anywhere.
    #[default]
    Mixed,
}

/// A strategy with the seed of its choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// How to choose.
    pub strategy: Strategy,
    /// The seed of all choices.
    pub seed: u64,
}

/// What a controlled thread has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It loaded a word.
    Load,
    /// It stored something that must persist.
    Store,
    /// It stored something else: a lock, usually.
    Transient,
    /// Everything that it stored and flushed is durable.
    Fence,
    /// It began an operation.
    Begin,
    /// It began a named part of an operation.
    Scope,
    /// It completed an operation.
    End,
}

thread_local! {
    static MEMBER: RefCell<Option<(Arc<ThreadGroup>, usize)>> = const { RefCell::new(None) };
}

/// Lets other threads run first. Does nothing in a thread that is not controlled.
#[cold]
fn wait() {
    with_member(|group, me| group.hand_over(me, |state| state.wait(me)));
}

/// Tells the scheduler what the calling thread did, so that it may switch to another one. Does
/// nothing in a thread that is not controlled.
#[inline(always)]
pub fn after(what: Progress) {
    if is_simulated() {
        note(what);
    }
}

#[cold]
fn note(what: Progress) {
    with_member(|group, me| group.hand_over(me, |state| state.after(me, what)));
}

fn with_member(act: impl FnOnce(&ThreadGroup, usize)) {
    let member = MEMBER.with_borrow(|member| member.clone());
    if let Some((group, me)) = member {
        act(&group, me);
    }
}

/// A group of threads that take turns.
struct ThreadGroup {
    state: Mutex<State>,
    /// The thread whose turn it is.
    turn: AtomicUsize,
    threads: Box<[OnceLock<Thread>]>,
}

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    Ready,
    /// It waits for something that only other threads can do.
    Waiting,
    /// It is paused until this number of operations have been completed.
    Parked(u64),
    Ended,
}

struct State {
    rng: Rng,
    strategy: Strategy,
    states: Vec<ThreadState>,
    /// Whether each thread has stored something that is not durable yet.
    has_undurable: Vec<bool>,
    priorities: Vec<u64>,
    /// The step of the next drop of a priority.
    next_drop: u64,
    completed: u64,
    /// Number of consecutive steps in which threads only waited.
    idle_steps: u64,
    /// A number that depends on which thread ran when.
    order: u64,
    steps: u64,
}

/// More consecutive waits than this are a deadlock.
const DEADLOCK: u64 = 1 << 16;

impl State {
    fn new(schedule: Schedule, count: usize) -> Self {
        let mut rng = Rng::new(fold(schedule.seed, count as u64));
        let mut priorities: Vec<u64> = (0..count as u64).map(|number| number + (1 << 32)).collect();
        rng.shuffle(&mut priorities);
        let strategy = match schedule.strategy {
            Strategy::Mixed => {
                *rng.pick(&[Strategy::Gap, Strategy::Stall, Strategy::Priority, Strategy::Random])
            }
            strategy => strategy,
        };
        let mut state = State {
            rng,
            strategy,
            states: vec![ThreadState::Ready; count],
            has_undurable: vec![false; count],
            priorities,
            next_drop: 0,
            completed: 0,
            idle_steps: 0,
            order: 0,
            steps: 0,
        };
        state.draw_drop();
        state
    }

    /// Workloads differ much in length, so the magnitude is drawn first.
    fn draw_drop(&mut self) {
        let magnitude = self.rng.below(12);
        self.next_drop = self.steps + 1 + self.rng.below(2 << magnitude);
    }

    /// Returns the thread whose turn it is after thread `me` did `what`.
    fn after(&mut self, me: usize, what: Progress) -> usize {
        self.steps += 1;
        self.idle_steps = 0;
        // The condition of a waiting thread may hold now.
        if matches!(what, Progress::Store | Progress::Transient | Progress::Fence | Progress::End) {
            self.wake();
        }
        match what {
            Progress::Store => self.has_undurable[me] = true,
            Progress::Fence => self.has_undurable[me] = false,
            Progress::End => self.completed += 1,
            Progress::Load | Progress::Transient | Progress::Begin | Progress::Scope => {}
        }
        match self.strategy {
            Strategy::Gap
                if self.has_undurable[me] && what != Progress::Load && self.rng.one_in(3) =>
            {
                self.park(me, 2)
            }
            Strategy::Stall if what == Progress::Load && self.rng.one_in(40) => self.park(me, 6),
            Strategy::Stall if what == Progress::Scope && self.rng.one_in(2) => self.park(me, 12),
            Strategy::Random | Strategy::Gap | Strategy::Stall | Strategy::Mixed => {
                let one_in = if what == Progress::Load { 32 } else { 8 };
                if self.rng.one_in(one_in) { self.any() } else { me }
            }
            Strategy::Priority => {
                if self.steps >= self.next_drop {
                    self.priorities[me] = u64::from(u32::MAX).saturating_sub(self.steps);
                    self.draw_drop();
                }
                self.any()
            }
        }
    }

    /// Pauses a thread until others have completed at most `most` operations. Returns the thread
    /// whose turn it is.
    fn park(&mut self, me: usize, most: u64) -> usize {
        self.states[me] = ThreadState::Parked(self.completed + 1 + self.rng.below(most));
        self.any()
    }

    /// Returns the thread whose turn it is while thread `me` waits.
    fn wait(&mut self, me: usize) -> usize {
        self.steps += 1;
        self.idle_steps += 1;
        assert!(self.idle_steps < DEADLOCK, "deadlock: all threads wait for each other");
        self.states[me] = ThreadState::Waiting;
        self.any()
    }

    fn end(&mut self, me: usize) -> usize {
        self.states[me] = ThreadState::Ended;
        self.has_undurable[me] = false;
        self.completed += 1;
        self.wake();
        self.any()
    }

    fn wake(&mut self) {
        let completed = self.completed;
        for state in &mut self.states {
            match *state {
                ThreadState::Waiting => *state = ThreadState::Ready,
                ThreadState::Parked(until) if until <= completed => *state = ThreadState::Ready,
                _ => {}
            }
        }
    }

    /// Returns a thread that can run, chosen by the strategy, or the number of threads if all have
    /// ended.
    fn any(&mut self) -> usize {
        let ready = self.in_state(|state| state == ThreadState::Ready);
        let chosen = match self.strategy {
            Strategy::Priority if !ready.is_empty() => {
                ready.into_iter().max_by_key(|&at| self.priorities[at]).expect("not empty")
            }
            _ if !ready.is_empty() => *self.rng.pick(&ready),
            _ => {
                // No thread is ready, so a paused thread continues.
                let mut able = self.in_state(|state| matches!(state, ThreadState::Parked(_)));
                if able.is_empty() {
                    // A waiting thread may be able to continue: any of them, whatever its priority.
                    able = self.in_state(|state| state == ThreadState::Waiting);
                }
                if able.is_empty() {
                    return self.states.len();
                }
                *self.rng.pick(&able)
            }
        };
        self.states[chosen] = ThreadState::Ready;
        chosen
    }

    fn in_state(&self, wanted: impl Fn(ThreadState) -> bool) -> Vec<usize> {
        (0..self.states.len()).filter(|&at| wanted(self.states[at])).collect()
    }
}

impl ThreadGroup {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is that of a deadlock, after which every other thread panics
        // likewise.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the turn to the thread that `choose` returns, and waits for this thread's next turn.
    fn hand_over(&self, me: usize, choose: impl FnOnce(&mut State) -> usize) {
        let next = {
            let mut state = self.state();
            let next = choose(&mut state);
            if next != me {
                state.order = fold(fold(state.order, state.steps), next as u64);
            }
            next
        };
        if next != me {
            self.give_turn(next);
            self.await_turn(me);
        }
    }

    fn give_turn(&self, next: usize) {
        // Release: the next thread sees everything that this one did.
        self.turn.store(next, Release);
        if let Some(thread) = self.threads.get(next).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    fn await_turn(&self, me: usize) {
        // Acquire: pairs with `give_turn`.
        while self.turn.load(Acquire) != me {
            thread::park();
        }
    }

    /// Runs one thread from its first turn to its end.
    fn run<R>(self: &Arc<Self>, me: usize, body: impl FnOnce() -> R) -> thread::Result<R> {
        self.await_turn(me);
        MEMBER.set(Some((self.clone(), me)));
        set_simulated_wait(Some(wait));
        // The same numbers in every run, so that everything that depends on them repeats.
        let result = catch_unwind(AssertUnwindSafe(|| with_ordinal(me, body)));
        set_simulated_wait(None);
        MEMBER.set(None);
        let next = self.state().end(me);
        self.give_turn(next);
        result
    }
}

/// Runs `bodies`, each as a thread, one at a time. Returns their results and a number that depends
/// on the order in which they ran.
///
/// # Panics
///
/// If one of them does, or if they wait for each other forever.
pub fn run<'env, R: Send>(
    schedule: Schedule,
    bodies: Vec<Box<dyn FnOnce() -> R + Send + 'env>>,
) -> (Vec<R>, u64) {
    let count = bodies.len();
    let mut state = State::new(schedule, count);
    let first = state.any();
    let group = Arc::new(ThreadGroup {
        state: Mutex::new(state),
        // No thread, until all can be woken.
        turn: AtomicUsize::new(usize::MAX),
        threads: (0..count).map(|_| OnceLock::new()).collect(),
    });
    let results: Vec<thread::Result<R>> = thread::scope(|threads| {
        let group = &group;
        let handles: Vec<_> = bodies
            .into_iter()
            .enumerate()
            .map(|(me, body)| threads.spawn(move || group.run(me, body)))
            .collect();
        // Before any thread has a turn, so that it can wake the next one. A thread that starts to
        // wait later sees that it is its turn.
        for (slot, handle) in group.threads.iter().zip(&handles) {
            slot.set(handle.thread().clone()).expect("set once");
        }
        group.give_turn(first);
        handles.into_iter().map(|handle| handle.join().expect("its panics are caught")).collect()
    });
    let order = group.state().order;
    let results =
        results.into_iter().map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
    (results.collect(), order)
}
