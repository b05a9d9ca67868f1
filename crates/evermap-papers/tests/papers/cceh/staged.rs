//! Two threads, of which one is stopped at a chosen access until the other has finished or waits.
//!
//! What a thread has stored is visible to others before it is durable. To find out whether another
//! thread acts on it too early, one thread is stopped at each of its accesses in turn, another runs
//! meanwhile, and everything that both did is recorded by the simulator and crashed.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use evermap_pm::sim::{Access, Observer};

/// Accesses of the second thread after which it counts as waiting for the first.
const PATIENCE: u64 = 3000;
/// How long the first thread waits at most: the second may wait in a lock of the system, which is
/// not noticed here.
const LONGEST: Duration = Duration::from_millis(100);

/// What a thread is in a [`run`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    First,
    Second,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::None) };
}

/// Accesses at which the first thread may stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stops {
    /// Those that change, flush or fence something.
    Changes,
    /// All.
    Accesses,
}

/// Which thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    First,
    /// The first thread is stopped.
    Second,
    /// The second thread has ended, or waits for the first.
    FirstAgain,
    /// The first thread has ended.
    Both,
}

struct State {
    turn: Turn,
    /// At which accesses the first thread may stop.
    stops: Stops,
    /// The number of them that remain before it stops.
    left: u64,
    /// Accesses of the second thread in its turn.
    taken: u64,
    /// Whether the first thread was stopped at all.
    stopped: bool,
}

/// Observes a medium, and stops a thread at its accesses.
pub(crate) struct Staged {
    stage: (Mutex<State>, Condvar),
}

impl Staged {
    pub(crate) fn new() -> Self {
        let state =
            State { turn: Turn::Both, stops: Stops::Changes, left: 0, taken: 0, stopped: false };
        Staged { stage: (Mutex::new(state), Condvar::new()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.stage.0.lock().unwrap()
    }

    fn wait_while(&self, wait: impl Fn(Turn) -> bool) {
        let state = self.state();
        drop(self.stage.1.wait_while(state, |state| wait(state.turn)).unwrap());
    }

    /// Runs `first` up to number `stop` of those accesses, then `second` until it has ended or
    /// waits for `first`, then both. Returns `false` if `first` ended before.
    pub(crate) fn run(
        &self,
        stops: Stops,
        stop: u64,
        first: impl FnOnce() + Send,
        second: impl FnOnce() + Send,
    ) -> bool {
        *self.state() = State { turn: Turn::First, stops, left: stop, taken: 0, stopped: false };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _leaves = Leaves(self);
                ROLE.set(Role::First);
                first();
            });
            threads.spawn(|| {
                self.wait_while(|turn| turn == Turn::First);
                let _leaves = Leaves(self);
                ROLE.set(Role::Second);
                second();
            });
        });
        self.state().stopped
    }

    /// Notes an access. `changes` says whether it changes, flushes or fences something.
    fn step(&self, changes: bool) {
        match ROLE.get() {
            Role::First => {
                let mut state = self.state();
                let counts = changes || state.stops == Stops::Accesses;
                if state.turn != Turn::First || !counts {
                    return;
                }
                if state.left > 0 {
                    state.left -= 1;
                    return;
                }
                (state.turn, state.stopped) = (Turn::Second, true);
                self.stage.1.notify_all();
                let waiting = |state: &mut State| state.turn == Turn::Second;
                let (mut state, _) =
                    self.stage.1.wait_timeout_while(state, LONGEST, waiting).unwrap();
                state.turn = Turn::FirstAgain;
            }
            Role::Second => {
                let mut state = self.state();
                if state.turn == Turn::Second {
                    state.taken += 1;
                    if state.taken < PATIENCE {
                        return;
                    }
                    state.turn = Turn::FirstAgain;
                    self.stage.1.notify_all();
                }
                drop(state);
                // Deterministic from here on: it continues when the first thread has ended.
                self.wait_while(|turn| turn == Turn::FirstAgain);
            }
            Role::None => {}
        }
    }
}

/// Ends a thread's part, also after a panic: the other must not wait for ever.
struct Leaves<'a>(&'a Staged);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.turn = match (ROLE.replace(Role::None), state.turn) {
            (Role::First, _) => Turn::Both,
            (_, Turn::Second) => Turn::FirstAgain,
            (_, turn) => turn,
        };
        self.0.stage.1.notify_all();
    }
}

impl Observer for Staged {
    fn observe(&self, access: Access) {
        match access {
            Access::Load(_) => self.step(false),
            Access::Store(..)
            | Access::StoreTransient(_)
            | Access::Swap(_)
            | Access::Flush(..)
            | Access::Fence => self.step(true),
            Access::Swapped(_) | Access::Prefetch(_) | Access::ReadAhead | Access::Note(_) => {}
        }
    }
}
