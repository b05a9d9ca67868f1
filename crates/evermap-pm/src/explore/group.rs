//! One run: threads that take turns, and their buffers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::fibers::{self, Fibers, Stacks};
use super::search::Search;
use crate::sync::set_simulated_wait;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A thread begins.
    Begin,
    Load,
    /// A store enters the buffer of its thread.
    Store,
    /// The oldest store of a buffer reaches memory.
    Drain,
    /// Reads and writes at once.
    Swap,
    /// A fence of all threads.
    Fence,
    Lock,
    Unlock,
    LockShared,
    UnlockShared,
    /// Ends when a word has changed that the thread has read.
    Await,
}

/// A step of an actor: a thread, or the buffer of one.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) place: Range<usize>,
    /// For `Await`: words, and the number of events before each was read.
    pub(super) watched: Vec<(usize, usize)>,
}

/// A step that was executed.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Twice the number of the thread, and for its buffer one more.
    pub(super) actor: usize,
    pub(super) step: Step,
    /// The thread, also of a buffer.
    pub(crate) thread: usize,
    /// What was read.
    pub(crate) read: u64,
    /// What was written.
    pub(crate) written: u64,
}

impl Event {
    pub(crate) fn kind(&self) -> Kind {
        self.step.kind
    }

    pub(super) fn as_step(&self) -> (usize, &Step) {
        (self.actor, &self.step)
    }

    /// Returns whether memory has changed.
    pub(super) fn writes(&self) -> bool {
        self.step.kind == Kind::Drain || self.step.kind == Kind::Swap && self.written != self.read
    }

    pub(crate) fn place(&self) -> &Range<usize> {
        &self.step.place
    }
}

/// Stores bits to a word at an address.
pub(super) type Write = fn(usize, u64);

/// A store in a buffer.
struct Stored {
    place: Range<usize>,
    bits: u64,
    write: Write,
}

/// A thread that waits has read at most this many words in a round of its loop.
const WATCHED: usize = 6;

/// The panic of a thread that is ended because another one has failed.
struct Ended;

struct State {
    search: Search,
    threads: usize,
    pending: Vec<Option<Step>>,
    ended: usize,
    buffers: Vec<VecDeque<Stored>>,
    /// Locks that are held: by how many, or -1 if not shared.
    locks: BTreeMap<usize, i32>,
    /// The number of events up to the last write of each word.
    written: BTreeMap<usize, usize>,
    /// The words that each thread has read last, and the number of events before that.
    recent: Vec<VecDeque<(usize, usize)>>,
    /// Addresses at which a store copies a page, and the address of the first page.
    copies: Vec<(Range<usize>, usize)>,
    events: Vec<Event>,
    failure: Option<String>,
}

impl State {
    /// Returns the range whose bytes a step to `place` depends on: for pages that are copied, that
    /// of the file.
    fn in_file(&self, place: Range<usize>) -> Range<usize> {
        let copied = self.copies.iter().find(|(range, _)| range.contains(&place.start));
        copied.map_or(place.clone(), |(range, first)| {
            let page = first + (place.start - range.start) / 4096 * 4096;
            page..page + 4096
        })
    }

    fn is_enabled(&self, actor: usize) -> bool {
        let thread = &self.buffers[actor / 2];
        if actor % 2 == 1 {
            return !thread.is_empty();
        }
        let Some(Step { kind, place, watched }) = &self.pending[actor / 2] else { return false };
        let held = self.locks.get(&place.start).copied().unwrap_or(0);
        match kind {
            Kind::Begin | Kind::Load | Kind::Store | Kind::Drain => true,
            Kind::Fence => self.buffers.iter().all(VecDeque::is_empty),
            Kind::Swap | Kind::Unlock | Kind::UnlockShared => thread.is_empty(),
            Kind::Lock => thread.is_empty() && held == 0,
            Kind::LockShared => thread.is_empty() && held >= 0,
            Kind::Await => watched.iter().any(|&(word, read)| {
                self.written.get(&word).is_some_and(|&written| written > read)
            }),
        }
    }

    /// Returns what an actor will do next.
    fn next_step(&self, actor: usize) -> Option<Step> {
        if actor.is_multiple_of(2) {
            return self.pending[actor / 2].clone();
        }
        let stored = self.buffers[actor / 2].front()?;
        Some(Step { kind: Kind::Drain, place: stored.place.clone(), watched: Vec::new() })
    }

    /// Lets buffers go on until it is the turn of a thread, and returns that, or the number of
    /// threads if everything has ended.
    fn choose(&mut self) -> usize {
        while self.failure.is_none() {
            let enabled: u32 =
                (0..2 * self.threads).filter(|&at| self.is_enabled(at)).map(|at| 1 << at).sum();
            if enabled == 0 {
                if self.ended < self.threads {
                    self.failure = Some("all threads wait for each other".into());
                }
                break;
            }
            let mut search = std::mem::take(&mut self.search);
            let actor = search.choose(self.events.len(), enabled, |actor| self.next_step(actor));
            self.search = search;
            match actor % 2 {
                0 => return actor / 2,
                _ => self.drain(actor / 2),
            }
        }
        // Failed threads end one after the other.
        self.pending.iter().position(Option::is_some).unwrap_or(self.threads)
    }

    fn drain(&mut self, thread: usize) {
        let step = self.next_step(2 * thread + 1).expect("it is enabled");
        let stored = self.buffers[thread].pop_front().expect("it is enabled");
        (stored.write)(stored.place.start, stored.bits);
        self.note_write(thread, stored.place.start);
        self.add(2 * thread + 1, step, 0, stored.bits);
    }

    fn note_write(&mut self, thread: usize, place: usize) {
        let now = self.events.len() + 1;
        self.written.insert(place, now);
        // What a thread has written itself ends no wait.
        self.recent[thread].iter_mut().filter(|(word, _)| *word == place).for_each(|w| w.1 = now);
    }

    fn note_read(&mut self, thread: usize, place: usize) {
        let recent = &mut self.recent[thread];
        recent.retain(|(word, _)| *word != place);
        recent.push_back((place, self.events.len()));
        if recent.len() > WATCHED {
            recent.pop_front();
        }
    }

    fn add(&mut self, actor: usize, step: Step, read: u64, written: u64) {
        self.events.push(Event { actor, step, thread: actor / 2, read, written });
    }
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// The explored thread that runs.
pub(super) struct Member(usize);

/// Calls `act`, unless the calling thread is not explored, or ends because of a panic.
pub(super) fn with_member<T>(act: impl FnOnce(&Member) -> T) -> Option<T> {
    let me = fibers::current().filter(|_| !std::thread::panicking())?;
    Some(act(&Member(me)))
}

/// Calls `act` with the state of the run.
fn with_state<T>(act: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(|state| act(state.as_mut().expect("a thread is explored")))
}

impl Member {
    /// Waits for the turn of this thread to do what `kind` says, and does it: `act` returns what
    /// was read and written, too.
    fn step<T>(
        &self,
        kind: Kind,
        place: Range<usize>,
        act: impl FnOnce(&mut State) -> (T, u64, u64),
    ) -> T {
        let next = with_state(|state| {
            let place = state.in_file(place);
            let watched = match kind {
                Kind::Await => state.recent[self.0].drain(..).collect(),
                _ => Vec::new(),
            };
            state.pending[self.0] = Some(Step { kind, place, watched });
            state.choose()
        });
        fibers::switch(next);
        if with_state(|state| state.failure.is_some()) {
            resume_unwind(Box::new(Ended));
        }
        with_state(|state| {
            let step = state.pending[self.0].take().expect("it has its turn");
            let (result, read, written) = act(state);
            state.add(2 * self.0, step, read, written);
            result
        })
    }

    pub(super) fn load(&self, place: usize, bytes: usize, load: impl FnOnce() -> u64) -> u64 {
        self.step(Kind::Load, place..place + bytes, |state| {
            state.note_read(self.0, place);
            let mut own = state.buffers[self.0].iter().rev();
            let own = own.find(|stored| stored.place.start == place);
            let value = own.map_or_else(load, |stored| stored.bits);
            (value, value, 0)
        })
    }

    pub(super) fn store(&self, (place, bytes): (usize, usize), bits: u64, write: Write) {
        let place = place..place + bytes;
        self.step(Kind::Store, place.clone(), |state| {
            state.buffers[self.0].push_back(Stored { place, bits, write });
            ((), 0, bits)
        });
    }

    pub(super) fn swap<T>(
        &self,
        place: usize,
        bytes: usize,
        load: impl Fn() -> u64,
        act: impl FnOnce() -> T,
    ) -> T {
        self.step(Kind::Swap, place..place + bytes, |state| {
            // If it fails, what the thread has loaded before decides whether it goes on.
            if state.recent[self.0].iter().all(|&(word, _)| word != place) {
                state.note_read(self.0, place);
            }
            let read = load();
            let result = act();
            let written = load();
            if written != read {
                state.note_write(self.0, place);
            }
            (result, read, written)
        })
    }

    pub(super) fn lock(&self, place: usize, kind: Kind) {
        self.step(kind, place..place + 1, |state| {
            let held = state.locks.entry(place).or_default();
            match kind {
                Kind::Lock => *held = -1,
                Kind::LockShared => *held += 1,
                Kind::UnlockShared => *held -= 1,
                _ => *held = 0,
            }
            ((), 0, 0)
        });
    }
}

/// Runs a thread to its end, and goes on with another one.
fn run_thread<R>(me: usize, body: Box<dyn FnOnce() -> R + '_>, result: &Cell<Option<R>>) {
    with_state(|state| {
        let step = state.pending[me].take().expect("it begins");
        state.add(2 * me, step, 0, 0);
    });
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(returned) => result.set(Some(returned)),
        Err(panic) if panic.is::<Ended>() => {}
        Err(panic) => with_state(|state| state.failure = Some(describe(&*panic))),
    }
    let next = with_state(|state| {
        state.pending[me] = None;
        state.ended += 1;
        state.choose()
    });
    fibers::switch(next);
}

fn describe(panic: &dyn std::any::Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a thread has panicked").into()
}

fn wait() {
    with_member(|member| member.step(Kind::Await, 0..0, |_| ((), 0, 0)));
}

/// Executes a fence of all threads, unless the calling thread is not explored.
pub(crate) fn fence_all_threads() -> bool {
    with_member(|member| member.step(Kind::Fence, 0..0, |_| ((), 0, 0))).is_some()
}

/// Says that a first store to a page of `bytes` bytes from `at` on copies that of `from`.
pub(crate) fn copies_pages(at: usize, bytes: usize, from: usize) {
    with_member(|_| with_state(|state| state.copies.push((at..at + bytes, from))));
}

/// Calls `act`, which makes a range of bytes zero.
pub(crate) fn overwrite(range: Range<usize>, act: impl Fn()) {
    let before = Cell::new(1);
    with_member(|member| member.swap(range.start, range.len(), || before.replace(0), &act))
        .unwrap_or_else(&act);
}

/// Runs `bodies`, each as a thread, in the order that `search` says. Returns their results and all
/// events.
pub(super) fn run<'env, R>(
    search: &mut Search,
    stacks: &mut Stacks,
    bodies: Vec<Box<dyn FnOnce() -> R + 'env>>,
) -> Result<(Vec<R>, Vec<Event>), String> {
    let threads = bodies.len();
    let begin = Step { kind: Kind::Begin, place: 0..0, watched: Vec::new() };
    let mut state = State {
        search: std::mem::take(search),
        threads,
        pending: vec![Some(begin); threads],
        ended: 0,
        buffers: (0..threads).map(|_| VecDeque::new()).collect(),
        locks: BTreeMap::new(),
        written: BTreeMap::new(),
        recent: vec![VecDeque::new(); threads],
        copies: Vec::new(),
        events: Vec::new(),
        failure: None,
    };
    let first = state.choose();
    STATE.set(Some(state));
    set_simulated_wait(Some(wait));
    let results: Vec<Cell<Option<R>>> = (0..threads).map(|_| Cell::new(None)).collect();
    let bodies = bodies.into_iter().zip(&results).enumerate();
    let bodies = bodies.map(|(me, (body, result))| -> Box<dyn FnOnce() + '_> {
        Box::new(move || run_thread(me, body, result))
    });
    Fibers::run(stacks, bodies.collect(), first);
    set_simulated_wait(None);
    let mut state = STATE.take().expect("set above");
    *search = std::mem::take(&mut state.search);
    match state.failure {
        Some(failure) => Err(failure),
        None => Ok((results.into_iter().filter_map(Cell::into_inner).collect(), state.events)),
    }
}
