//! The changes that wait for one consumer.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use evermap_pm::sync::{Condvar, Mutex, MutexGuard, Rank};

use crate::watch::{ChangeKind, WatchEvent};

/// What a queue holds at most, unless the consumer asks for something else.
const EVENTS: usize = 8192;
/// The most that is kept of the memory of a queue that was full.
const KEPT: usize = 64;

/// Changes of keys with one prefix, in order. Writers add to it and never wait for the consumer:
/// from the first change on that it has no room for, only a summary is kept.
pub(crate) struct Queue {
    prefix: Box<[u8]>,
    state: Mutex<State>,
    ready: Condvar,
}

struct State {
    events: VecDeque<WatchEvent>,
    /// Bytes of the keys in it.
    key_bytes: usize,
    /// The most of both.
    events_max: usize,
    key_bytes_max: usize,
    /// What it had no room for. Once there is something, everything that follows belongs to it,
    /// until the consumer takes it.
    missed: Option<Missed>,
    /// The number of events that were added, a summary counted as one.
    added: u64,
}

/// A summary of changes.
#[derive(Clone, Copy, Default)]
struct Missed {
    /// The smallest CAS id of a record that was stored or touched.
    from: Option<u64>,
    /// The number of removals.
    removals: u64,
}

impl Missed {
    fn add(&mut self, event: &WatchEvent) {
        match *event {
            WatchEvent::Changed { kind: ChangeKind::Stored | ChangeKind::Touched, cas, .. } => {
                self.from = Some(self.from.map_or(cas, |from| from.min(cas)));
            }
            _ => self.removals += 1,
        }
    }
}

impl Queue {
    pub(crate) fn new(prefix: &[u8]) -> Self {
        let state = State {
            events: VecDeque::new(),
            key_bytes: 0,
            events_max: EVENTS,
            key_bytes_max: EVENTS * 128,
            missed: None,
            added: 0,
        };
        Queue {
            prefix: prefix.into(),
            state: Mutex::ranked(Rank::Leaf, state),
            ready: Condvar::new(),
        }
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Has it hold at most these numbers of changes and of bytes of their keys.
    pub(crate) fn set_limits(&self, events: usize, key_bytes: usize) {
        let mut state = self.lock();
        (state.events_max, state.key_bytes_max) = (events, key_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, or adds it to the summary of those that it has no room for.
    pub(crate) fn push(&self, event: WatchEvent) {
        let mut state = self.lock();
        let bytes = event.key_len();
        let has_room =
            state.events.len() < state.events_max && state.key_bytes + bytes <= state.key_bytes_max;
        match &mut state.missed {
            Some(missed) => return missed.add(&event),
            None if has_room => {
                state.key_bytes += bytes;
                state.events.push_back(event);
            }
            missed @ None => missed.insert(Missed::default()).add(&event),
        }
        state.added += 1;
        self.ready.notify_one();
    }

    /// Takes the next event. What is added after a summary was taken is in the queue again.
    pub(crate) fn pop(&self) -> Option<WatchEvent> {
        let mut state = self.lock();
        if let Some(event) = state.events.pop_front() {
            state.key_bytes -= event.key_len();
            return Some(event);
        }
        state.events.shrink_to(KEPT);
        let Missed { from, removals } = state.missed.take()?;
        Some(WatchEvent::Missed { from, removals })
    }

    /// The number of events that were added so far.
    pub(crate) fn added(&self) -> u64 {
        self.lock().added
    }

    /// Waits until there is an event, the map `is_open` no more, or the time is over.
    pub(crate) fn wait(&self, timeout: Option<Duration>, is_open: &dyn Fn() -> bool) {
        let is_idle =
            |state: &mut State| state.events.is_empty() && state.missed.is_none() && is_open();
        let state = self.lock();
        match timeout {
            None => drop(self.ready.wait_while(state, is_idle)),
            Some(timeout) => drop(self.ready.wait_timeout_while(state, timeout, is_idle)),
        }
    }

    /// Has a consumer that waits look again whether the map is open.
    pub(crate) fn wake(&self) {
        // The lock, so that it is not between looking and waiting.
        let _held = self.lock();
        self.ready.notify_all();
    }
}
