//! A scheduler that the simulator can repeat: threads that run one at a time, and change at accesses to
//! persistent memory, in an order that follows from a seed.
//!
//! [`Sim::in_parallel`](super::Sim::in_parallel) runs threads under it. Each is a thread of the operating system,
//! but only the one whose turn it is runs; it hands over where a [`Strategy`] says so, and where it would wait:
//! for a lock of [`sync`](crate::sync), or in a [`Backoff`](crate::sync::Backoff). What else threads
//! share, they must share by persistent memory, or between two accesses to it.

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
    /// Any, now and then.
    Random,
    /// The one with the highest priority, which is drawn at the start, and drops to the lowest at a few
    /// random moments: probabilistic concurrency testing after Burckhardt and others (2010).
    Priority,
    /// Any; but a thread whose stores others can see already, while they are not durable yet, is often held up
    /// until others have completed an operation: what these were told is lost if the stores are.
    Gap,
    /// Any; but a thread is often held up where it has read something, or begins a named piece of work, until others
    /// have completed some operations: what it knows is old then.
    Stall,
    /// One of these, as the seed says. Each finds what the others hardly do: `Priority` lets a thread do much while
    /// another one stands still anywhere.
    #[default]
    Mixed,
}

/// A strategy with the seed of its choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// How to choose.
    pub strategy: Strategy,
    /// What all choices follow from.
    pub seed: u64,
}

/// What a governed thread has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    /// It loaded a word.
    Load,
    /// It stored something that must persist.
    Store,
    /// It stored something else: a lock, usually.
    Transient,
    /// All that it stored and flushed is durable.
    Fence,
    /// It began an operation.
    Begin,
    /// It began a named piece of one.
    Scope,
    /// It completed an operation.
    End,
}

thread_local! {
    static MEMBER: RefCell<Option<(Arc<Crew>, usize)>> = const { RefCell::new(None) };
}

/// Lets others run first. Does nothing in a thread that is not governed.
#[cold]
fn wait() {
    with_member(|crew, me| crew.hand_over(me, |state| state.wait(me)));
}

/// Tells the scheduler what the calling thread did, so that it may choose another. Does nothing in a thread
/// that is not governed.
#[inline(always)]
pub(crate) fn did(what: Did) {
    if is_simulated() {
        note(what);
    }
}

#[cold]
fn note(what: Did) {
    with_member(|crew, me| crew.hand_over(me, |state| state.did(me, what)));
}

fn with_member(act: impl FnOnce(&Crew, usize)) {
    let member = MEMBER.with_borrow(|member| member.clone());
    if let Some((crew, me)) = member {
        act(&crew, me);
    }
}

/// Threads that take turns.
struct Crew {
    state: Mutex<State>,
    /// Whose turn it is.
    turn: AtomicUsize,
    threads: Box<[OnceLock<Thread>]>,
}

/// How a thread is getting on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Ready,
    /// It waits for something that only others can bring about.
    Waiting,
    /// It is held up until so many operations were completed.
    Parked(u64),
    Ended,
}

struct State {
    rng: Rng,
    strategy: Strategy,
    lives: Vec<Life>,
    /// Whether a thread has stored what is not durable yet.
    gaps: Vec<bool>,
    priorities: Vec<u64>,
    /// Steps before the next drop of a priority.
    next_drop: u64,
    completed: u64,
    /// How often in a row threads only waited.
    vain: u64,
    /// Depends on which thread ran when.
    order: u64,
    steps: u64,
}

/// Nobody waits so often in vain.
const DEADLOCK: u64 = 1 << 16;

impl State {
    fn new(schedule: Schedule, count: usize) -> Self {
        let mut rng = Rng::new(fold(schedule.seed, count as u64));
        let mut priorities: Vec<u64> = (0..count as u64).map(|place| place + (1 << 32)).collect();
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
            lives: vec![Life::Ready; count],
            gaps: vec![false; count],
            priorities,
            next_drop: 0,
            completed: 0,
            vain: 0,
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

    /// Whose turn it is after thread `me` did `what`.
    fn did(&mut self, me: usize, what: Did) -> usize {
        self.steps += 1;
        self.vain = 0;
        // What waited may find what it waits for.
        if matches!(what, Did::Store | Did::Transient | Did::Fence | Did::End) {
            self.wake();
        }
        match what {
            Did::Store => self.gaps[me] = true,
            Did::Fence => self.gaps[me] = false,
            Did::End => self.completed += 1,
            Did::Load | Did::Transient | Did::Begin | Did::Scope => {}
        }
        match self.strategy {
            Strategy::Gap if self.gaps[me] && what != Did::Load && self.rng.one_in(3) => {
                self.park(me, 2)
            }
            Strategy::Stall if what == Did::Load && self.rng.one_in(40) => self.park(me, 6),
            Strategy::Stall if what == Did::Scope && self.rng.one_in(2) => self.park(me, 12),
            Strategy::Random | Strategy::Gap | Strategy::Stall | Strategy::Mixed => {
                let one_in = if what == Did::Load { 32 } else { 8 };
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

    /// Holds a thread up until others have completed so many operations at most. Answers whose turn it is.
    fn park(&mut self, me: usize, most: u64) -> usize {
        self.lives[me] = Life::Parked(self.completed + 1 + self.rng.below(most));
        self.any()
    }

    /// Whose turn it is while thread `me` cannot go on.
    fn wait(&mut self, me: usize) -> usize {
        self.steps += 1;
        self.vain += 1;
        assert!(self.vain < DEADLOCK, "deadlock: all threads wait for each other");
        self.lives[me] = Life::Waiting;
        self.any()
    }

    fn end(&mut self, me: usize) -> usize {
        self.lives[me] = Life::Ended;
        self.gaps[me] = false;
        self.completed += 1;
        self.wake();
        self.any()
    }

    fn wake(&mut self) {
        let completed = self.completed;
        for life in &mut self.lives {
            match *life {
                Life::Waiting => *life = Life::Ready,
                Life::Parked(until) if until <= completed => *life = Life::Ready,
                _ => {}
            }
        }
    }

    /// A thread that can run, as the strategy chooses. The number of threads if all have ended.
    fn any(&mut self) -> usize {
        let ready = self.those(|life| life == Life::Ready);
        let chosen = match self.strategy {
            Strategy::Priority if !ready.is_empty() => {
                ready.into_iter().max_by_key(|&at| self.priorities[at]).expect("not empty")
            }
            _ if !ready.is_empty() => *self.rng.pick(&ready),
            _ => {
                // Who was held up for the others' sake holds them up now.
                let mut able = self.those(|life| matches!(life, Life::Parked(_)));
                if able.is_empty() {
                    // Nobody said so, but what one of them waits for may be there: any, whatever its priority.
                    able = self.those(|life| life == Life::Waiting);
                }
                if able.is_empty() {
                    return self.lives.len();
                }
                *self.rng.pick(&able)
            }
        };
        self.lives[chosen] = Life::Ready;
        chosen
    }

    fn those(&self, wanted: impl Fn(Life) -> bool) -> Vec<usize> {
        (0..self.lives.len()).filter(|&at| wanted(self.lives[at])).collect()
    }
}

impl Crew {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is that of a deadlock, after which every other thread panics likewise.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the turn to the thread that `choose` names, and waits for its own next one.
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
            self.give(next);
            self.await_turn(me);
        }
    }

    fn give(&self, next: usize) {
        // Release: the next thread sees all that this one did.
        self.turn.store(next, Release);
        if let Some(thread) = self.threads.get(next).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    fn await_turn(&self, me: usize) {
        // Acquire: pairs with `give`.
        while self.turn.load(Acquire) != me {
            thread::park();
        }
    }

    /// The life of one thread.
    fn run<R>(self: &Arc<Self>, me: usize, body: impl FnOnce() -> R) -> thread::Result<R> {
        self.await_turn(me);
        MEMBER.set(Some((self.clone(), me)));
        set_simulated_wait(Some(wait));
        // The same numbers in every run, so that whatever goes by them repeats.
        let result = catch_unwind(AssertUnwindSafe(|| with_ordinal(me, body)));
        set_simulated_wait(None);
        MEMBER.set(None);
        let next = self.state().end(me);
        self.give(next);
        result
    }
}

/// Runs `bodies`, each as a thread, one at a time. Answers what they answer and a number that depends on the
/// order in which they ran.
pub(crate) fn run<'env, R: Send>(
    schedule: Schedule,
    bodies: Vec<Box<dyn FnOnce() -> R + Send + 'env>>,
) -> (Vec<R>, u64) {
    let count = bodies.len();
    let mut state = State::new(schedule, count);
    let first = state.any();
    let crew = Arc::new(Crew {
        state: Mutex::new(state),
        // Nobody's, until all can be woken.
        turn: AtomicUsize::new(usize::MAX),
        threads: (0..count).map(|_| OnceLock::new()).collect(),
    });
    let results: Vec<thread::Result<R>> = thread::scope(|threads| {
        let crew = &crew;
        let handles: Vec<_> = bodies
            .into_iter()
            .enumerate()
            .map(|(me, body)| threads.spawn(move || crew.run(me, body)))
            .collect();
        // Before anyone has a turn, so that whoever gives it on can wake the next. A thread that comes to wait only
        // later sees that it has it.
        for (place, handle) in crew.threads.iter().zip(&handles) {
            place.set(handle.thread().clone()).expect("set once");
        }
        crew.give(first);
        handles.into_iter().map(|handle| handle.join().expect("its panics are caught")).collect()
    });
    let order = crew.state().order;
    let results =
        results.into_iter().map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
    (results.collect(), order)
}
