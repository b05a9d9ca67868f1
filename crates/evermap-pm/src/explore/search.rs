//! In which order actors go on: every order once, or orders by chance.

use std::collections::VecDeque;

use super::fibers::Stacks;
use super::group::{Event, Kind, Step, run};

/// A set of actors, one bit each.
type Actors = u32;

/// A search through the orders of steps.
#[derive(Default)]
pub(crate) struct Search {
    /// The choices of the current run. Those of the next one begin with them.
    nodes: Vec<Node>,
    last: usize,
    /// The number of events that were the same in the run before.
    known: usize,
    /// Whether the current run is the same as an earlier one from here on.
    is_repeated: bool,
    /// Chooses a number below the given one by chance.
    random: Option<Box<dyn FnMut(u64) -> u64>>,
    /// Runs that are left of those by chance.
    left: u64,
    is_over: bool,
    runs: u64,
    stacks: Stacks,
}

/// A choice.
struct Node {
    enabled: Actors,
    /// To be chosen.
    wanted: Actors,
    /// Chosen earlier.
    done: Actors,
    /// Need not be chosen: what follows is the same as after an earlier choice.
    asleep: Actors,
    chosen: usize,
    /// The next step of each actor.
    steps: Vec<Option<Step>>,
}

impl Search {
    /// Searches all orders.
    pub(crate) fn all() -> Self {
        Search::default()
    }

    /// Tries this many orders. `below` returns numbers below the given one by chance.
    pub(crate) fn random(runs: u64, below: impl FnMut(u64) -> u64 + 'static) -> Self {
        Search { random: Some(Box::new(below)), left: runs, ..Search::default() }
    }

    /// Returns whether there is another order to try.
    pub(crate) fn has_next(&self) -> bool {
        !self.is_over
    }

    /// Returns the number of runs so far.
    pub(crate) fn runs(&self) -> u64 {
        self.runs
    }

    /// Runs `bodies`, each as a thread, in the next order. Returns their results, and all events.
    ///
    /// # Errors
    ///
    /// If a thread panics, or all wait for each other.
    pub(crate) fn run<'env, R>(
        &mut self,
        bodies: Vec<Box<dyn FnOnce() -> R + 'env>>,
    ) -> Result<(Vec<R>, Vec<Event>), String> {
        (self.is_repeated, self.last, self.known) = (false, 0, self.nodes.len().saturating_sub(1));
        let mut stacks = std::mem::take(&mut self.stacks);
        let result = run(self, &mut stacks, bodies);
        self.stacks = stacks;
        self.runs += 1;
        match &result {
            Ok((_, events)) if self.random.is_none() => self.advance(events),
            _ => {
                self.left = self.left.saturating_sub(1);
                self.is_over = self.left == 0;
            }
        }
        result
    }

    /// Chooses one of the enabled actors, after `depth` steps.
    pub(super) fn choose(
        &mut self,
        depth: usize,
        enabled: Actors,
        step: impl Fn(usize) -> Option<Step>,
    ) -> usize {
        self.last = self.pick(depth, enabled, step);
        self.last
    }

    fn pick(
        &mut self,
        depth: usize,
        enabled: Actors,
        step: impl Fn(usize) -> Option<Step>,
    ) -> usize {
        let first = |actors: Actors| match actors >> self.last & 1 {
            0 => actors.trailing_zeros() as usize,
            _ => self.last,
        };
        if let Some(below) = &mut self.random {
            let stays = enabled >> self.last & 1 != 0 && below(6) > 0;
            let any = below(u64::from(enabled.count_ones())) as usize;
            return if stays { self.last } else { each(enabled).nth(any).expect("one of them") };
        }
        if let Some(node) = self.nodes.get(depth) {
            assert!(enabled >> node.chosen & 1 != 0, "the threads are not deterministic");
            return node.chosen;
        }
        let asleep = self.nodes.last().map_or(0, Node::asleep_after);
        let awake = enabled & !asleep;
        if self.is_repeated || awake == 0 {
            self.is_repeated = true;
            return first(enabled);
        }
        let chosen = first(awake);
        let steps = (0..Actors::BITS as usize - enabled.leading_zeros() as usize).map(step);
        self.nodes.push(Node {
            enabled,
            wanted: 1 << chosen,
            done: 0,
            asleep,
            chosen,
            steps: steps.collect(),
        });
        chosen
    }

    /// Finds which other orders of the run's events may make a difference, and chooses the next.
    fn advance(&mut self, events: &[Event]) {
        self.want_reversals(events);
        while let Some(node) = self.nodes.last_mut() {
            node.done |= 1 << node.chosen;
            let left = node.wanted & !node.done & !node.asleep;
            if left != 0 {
                node.chosen = left.trailing_zeros() as usize;
                return;
            }
            self.nodes.pop();
        }
        self.is_over = true;
    }

    /// For each event, wants it to be tried before those that it depends on and that do not happen
    /// before it for another reason.
    fn want_reversals(&mut self, events: &[Event]) {
        let order = Order::of(events);
        for (at, event) in events.iter().enumerate().skip(self.known) {
            let mut before = order.threads[at];
            for earlier in (0..at.min(self.nodes.len())).rev() {
                let other = &events[earlier];
                if before.has(other.actor, earlier)
                    || is_only_order(other.step.kind, event.step.kind)
                    || !depends(other.as_step(), event.as_step())
                {
                    continue;
                }
                before.join(&order.clocks[earlier]);
                self.nodes[earlier].want_one(order.firsts(events, earlier, at));
            }
        }
        for wait in events.iter().filter(|event| event.step.kind == Kind::Await) {
            self.want_other_ends(events, &order, wait);
        }
    }

    /// Wants whatever could have ended a wait in place of what has ended it.
    fn want_other_ends(&mut self, events: &[Event], order: &Order, wait: &Event) {
        let Some(end) = ends_wait(events, wait) else { return };
        for (at, event) in events.iter().enumerate().skip(end + 1) {
            let is_after = order.clocks[at].has(events[end].actor, end);
            if ends(event, wait) && !is_after && end < self.nodes.len() {
                self.nodes[end].want_one(order.firsts(events, end, at));
            }
        }
    }
}

impl Node {
    /// Wants one of these actors.
    fn want_one(&mut self, actors: Actors) {
        let actors = actors & self.enabled;
        if actors == 0 {
            self.wanted = self.enabled;
        } else if actors & self.wanted == 0 {
            self.wanted |= 1 << actors.trailing_zeros();
        }
    }

    /// Returns the actors that need not be chosen after the choice.
    fn asleep_after(&self) -> Actors {
        let chosen = (self.chosen, self.steps[self.chosen].as_ref().expect("it was enabled"));
        let is_independent = |&actor: &usize| {
            self.steps[actor].as_ref().is_some_and(|step| !depends((actor, step), chosen))
        };
        let all = (self.asleep | self.done) & !(1 << self.chosen);
        each(all).filter(is_independent).fold(0, |all, actor| all | 1 << actor)
    }
}

fn each(actors: Actors) -> impl Iterator<Item = usize> {
    (0..Actors::BITS as usize).filter(move |at| actors >> at & 1 != 0)
}

/// Returns whether exchanging two steps that can both be next may make a difference. Actor `2t` is
/// thread `t`, and `2t + 1` its buffer.
fn depends((actor, step): (usize, &Step), (other, earlier): (usize, &Step)) -> bool {
    use Kind::{Await, Begin, Drain, Fence, Load, LockShared, Store, UnlockShared};
    if actor / 2 == other / 2 {
        return false;
    }
    match (step.kind, earlier.kind) {
        (Begin | Await, _) | (_, Begin | Await) => false,
        (Fence, Store | Drain | Fence) | (Store | Drain, Fence) => true,
        (Fence | Store, _) | (_, Fence | Store) => false,
        (Load | LockShared | UnlockShared, Load | LockShared | UnlockShared) => false,
        _ => step.place.start < earlier.place.end && earlier.place.start < step.place.end,
    }
}

/// Returns whether the second step is never possible before the first one.
fn is_only_order(first: Kind, second: Kind) -> bool {
    use Kind::{Drain, Fence, Lock, LockShared, Unlock, UnlockShared};
    matches!((first, second), (Unlock | UnlockShared, Lock | LockShared) | (Drain, Fence))
}

/// What happens before what.
struct Order {
    /// For each event, the last events before it, and itself.
    clocks: Vec<Clock>,
    /// The same, as far as it follows from the order of the steps of its thread.
    threads: Vec<Clock>,
    /// The last event of each actor.
    last: [Option<usize>; ACTORS],
    /// The stores in each buffer.
    stores: [VecDeque<usize>; ACTORS / 2],
}

/// The largest number of actors.
const ACTORS: usize = 8;

#[derive(Clone, Copy, Default)]
struct Clock([usize; ACTORS]);

impl Clock {
    fn has(&self, actor: usize, event: usize) -> bool {
        self.0[actor] > event
    }

    fn join(&mut self, other: &Clock) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(other);
        }
    }
}

impl Order {
    fn of(events: &[Event]) -> Self {
        let (clocks, threads) = (Vec::new(), Vec::new());
        let mut order = Order { clocks, threads, last: [None; ACTORS], stores: Default::default() };
        for at in 0..events.len() {
            order.add(&events[..=at]);
        }
        order
    }

    /// Adds the last of these events.
    fn add(&mut self, events: &[Event]) {
        let (at, event) = (events.len() - 1, &events[events.len() - 1]);
        let Event { actor, thread, .. } = *event;
        let of_buffer = match event.step.kind {
            Kind::Begin | Kind::Load | Kind::Store | Kind::Await => None,
            Kind::Drain => self.stores[thread].pop_front(),
            // It has waited until the buffer was empty.
            _ => self.last[2 * thread + 1],
        };
        let mut clock = Clock::default();
        for before in [self.last[actor], of_buffer].into_iter().flatten() {
            clock.join(&self.clocks[before]);
        }
        self.threads.push(clock);
        let end = match event.step.kind {
            Kind::Await => ends_wait(&events[..at], event),
            _ => None,
        };
        for earlier in (0..at).rev() {
            let other = &events[earlier];
            if !clock.has(other.actor, earlier)
                && (end == Some(earlier) || depends(other.as_step(), event.as_step()))
            {
                clock.join(&self.clocks[earlier]);
            }
        }
        clock.0[actor] = at + 1;
        self.clocks.push(clock);
        self.last[actor] = Some(at);
        if event.step.kind == Kind::Store {
            self.stores[thread].push_back(at);
        }
    }

    /// Returns the actors that can be first, if event `at` and what happens before it are to come
    /// before event `after`.
    fn firsts(&self, events: &[Event], after: usize, at: usize) -> Actors {
        let is_late = |k: usize| k != at && self.clocks[k].has(events[after].actor, after);
        let moved: Vec<usize> = (after + 1..=at).filter(|&k| !is_late(k)).collect();
        let (mut seen, mut firsts) = (0, 0);
        for (place, &k) in moved.iter().enumerate() {
            let actor = events[k].actor;
            if seen >> actor & 1 == 0
                && !moved[..place].iter().any(|&m| self.clocks[k].has(events[m].actor, m))
            {
                firsts |= 1 << actor;
            }
            seen |= 1 << actor;
        }
        firsts
    }
}

/// Returns the event that ended a wait: the first one that wrote what had been read.
fn ends_wait(events: &[Event], wait: &Event) -> Option<usize> {
    (0..events.len()).find(|&at| {
        ends(&events[at], wait)
            && wait
                .step
                .watched
                .iter()
                .any(|&(word, read)| at >= read && events[at].step.place.contains(&word))
    })
}

/// Returns whether an event writes to a word that a wait watches.
fn ends(event: &Event, wait: &Event) -> bool {
    event.thread != wait.thread
        && event.writes()
        && wait.step.watched.iter().any(|(word, _)| event.step.place.contains(word))
}
