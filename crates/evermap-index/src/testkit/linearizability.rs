//! Checks whether the results that concurrent callers got can be explained.
//!
//! A history is linearizable if its calls can be put in one order that respects real time (a call
//! that returned before another began comes first) and in which every result is correct. Maps are
//! local: a history is linearizable if and only if its part for each key is, so each key is checked
//! separately.
//!
//! The search follows Wing and Gong (1993) with the memory of Lowe (2017): it walks over
//! *configurations* (the calls that have been ordered, and what the key is bound to then) and
//! visits each once. Three measures keep it small: calls are distributed over *lanes* within which
//! they do not overlap, so that a configuration is one position for each lane; the history is cut
//! wherever no call was in progress; and a call that fits and changes nothing is ordered
//! immediately, because putting it first can never invalidate an existing order.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::call::{Call, InWords};
use crate::Change;

/// Assigns the times of a history, which increase and are unique.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Returns the next time.
    pub fn tick(&self) -> u64 {
        // SeqCst: the order of ticks of different threads is the real time of the search.
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A call, its times, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The calling thread, for reports only.
    pub thread: usize,
    /// The call.
    pub call: Call,
    /// The time of the call.
    pub begin: u64,
    /// The time of the result. Without a result, the time at which the caller died: the call took
    /// effect before then or never. [`NEVER`] if it may still take effect.
    pub end: u64,
    /// The result.
    pub answer: Option<Change>,
}

/// The end of a call that is still in progress.
pub const NEVER: u64 = u64::MAX;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.end == NEVER { "never".into() } else { self.end.to_string() };
        write!(f, "[{:>5} ..{end:>6}]  thread {}  {}", self.begin, self.thread, self.call)?;
        match self.answer {
            Some(change) => write!(f, " -> {}", InWords(change)),
            None => f.write_str(" has not returned"),
        }
    }
}

/// Calls on one key that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: u64,
    /// The possible states of the key before the calls.
    pub before: Vec<Option<u64>>,
    /// A minimal set of calls that shows the violation, sorted by their beginnings.
    pub events: Vec<Event>,
    /// A largest set of the calls that can be ordered, in such an order, as indexes of `events`.
    pub ordered: Vec<usize>,
    /// The state of the key after those.
    pub state: Option<u64>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        let before: Vec<_> = self.before.iter().map(|&word| InWords(word).to_string()).collect();
        writeln!(f, "key {}: no order of these calls explains their results", self.key)?;
        writeln!(f, "  before them: {}", before.join(" or "))?;
        let hidden = self.events.len().saturating_sub(SHOWN);
        if hidden > 0 {
            writeln!(f, "  ... {hidden} earlier calls ...")?;
        }
        for event in &self.events[hidden..] {
            writeln!(f, "  {event}")?;
        }
        let rest: Vec<String> = (0..self.events.len())
            .filter(|place| !self.ordered.contains(place))
            .map(|place| self.events[place].call.to_string())
            .collect();
        write!(
            f,
            "  {} of the {} calls can be ordered, then the key is bound to: {}; \
             what cannot follow: {}",
            self.ordered.len(),
            self.events.len(),
            InWords(self.state),
            rest.join(", ")
        )
    }
}

/// Searches for an order of the calls on each key. At first the keys are bound as in `initial`, and
/// all others are absent.
///
/// Time and memory grow with the number of calls, and exponentially only with the number of calls
/// that overlap.
///
/// # Errors
/// A key for which there is no such order.
pub fn check(history: &[Event], initial: &BTreeMap<u64, u64>) -> Result<(), Box<Violation>> {
    let mut by_key: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for event in history {
        by_key.entry(event.call.key).or_default().push(*event);
    }
    for (key, mut events) in by_key {
        events.sort_by_key(|event| (event.begin, event.end));
        let mut states = BTreeSet::from([initial.get(&key).copied()]);
        for window in windows(&events) {
            match explore(window, &states) {
                Ok(after) => states = after,
                Err(_) => return Err(Box::new(explain(key, window, &states))),
            }
        }
    }
    Ok(())
}

/// Divides events, sorted by their beginnings, wherever no call was in progress.
fn windows(events: &[Event]) -> Vec<&[Event]> {
    let mut windows = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (place, event) in events.iter().enumerate() {
        if place > start && end < event.begin {
            windows.push(&events[start..place]);
            start = place;
        }
        end = end.max(event.end);
    }
    windows.push(&events[start..]);
    windows
}

/// Distributes events, sorted by their beginnings, over lanes within which they do not overlap.
fn lanes(events: &[Event]) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    for (place, event) in events.iter().enumerate() {
        let free =
            |lane: &&mut Vec<usize>| lane.last().is_none_or(|&p| events[p].end < event.begin);
        match lanes.iter_mut().find(free) {
            Some(lane) => lane.push(place),
            None => lanes.push(vec![place]),
        }
    }
    lanes
}

/// The ordered calls, as a position in each lane, and the state of the key after them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration {
    positions: Box<[u32]>,
    state: Option<u64>,
}

/// The configuration with the most ordered calls, if a search finds no order.
struct Stuck {
    ordered: Vec<usize>,
    state: Option<u64>,
}

/// Returns all possible states of the key after `events`, or the best incomplete order.
fn explore(
    events: &[Event],
    initial: &BTreeSet<Option<u64>>,
) -> Result<BTreeSet<Option<u64>>, Stuck> {
    let lanes = lanes(events);
    let mut after = BTreeSet::new();
    let mut seen: HashSet<Configuration> = HashSet::new();
    let mut open: Vec<Configuration> = initial
        .iter()
        .map(|&state| Configuration { positions: vec![0; lanes.len()].into(), state })
        .collect();
    let (mut best, mut deepest) = (0, open[0].clone());
    while let Some(at) = open.pop() {
        let ordered: u32 = at.positions.iter().sum();
        if ordered > best {
            (best, deepest) = (ordered, at.clone());
        }
        if ordered as usize == events.len() {
            after.insert(at.state);
            continue;
        }
        for next in successors(events, &lanes, &at) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    if !after.is_empty() {
        return Ok(after);
    }
    let done = lanes.iter().zip(&deepest.positions).flat_map(|(lane, &n)| &lane[..n as usize]);
    Err(Stuck { ordered: done.copied().collect(), state: deepest.state })
}

/// Returns the configurations with one more call.
fn successors(events: &[Event], lanes: &[Vec<usize>], at: &Configuration) -> Vec<Configuration> {
    let next = |lane: usize| lanes[lane].get(at.positions[lane] as usize).map(|&p| &events[p]);
    let advance = |lane: usize, state| {
        let mut positions = at.positions.clone();
        positions[lane] += 1;
        Configuration { positions, state }
    };
    let soonest = (0..lanes.len()).filter_map(next).map(|event| event.end).min();
    let mut found = Vec::new();
    for lane in 0..lanes.len() {
        // A call may be next unless a call that is not ordered yet returned before it began.
        let Some(event) = next(lane).filter(|event| Some(event.begin) < soonest) else {
            continue;
        };
        let change = event.call.verb.apply(at.state);
        match event.answer {
            Some(answer) if answer != change => {}
            Some(_) if !change.changed() => return vec![advance(lane, at.state)],
            Some(_) => found.push(advance(lane, change.new)),
            None => found.extend([advance(lane, at.state), advance(lane, change.new)]),
        }
    }
    found
}

/// Reduces a window without an order as far as possible without changing what it shows.
fn explain(key: u64, window: &[Event], before: &BTreeSet<Option<u64>>) -> Violation {
    let fails = |events: &[Event]| explore(events, before).is_err();
    // What was known at a moment is a history of its own, in which some calls have not returned
    // yet. A history that fails still fails when it gets longer, so the first such moment can be
    // found by bisection.
    let mut ends: Vec<u64> = window.iter().map(|event| event.end).collect();
    ends.sort_unstable();
    let first = ends.partition_point(|&moment| !fails(&until(window, moment)));
    let mut events = until(window, ends[first.min(ends.len() - 1)]);
    // Removing a call that changed nothing never makes an order impossible, so what fails without
    // it also fails with it.
    for place in (0..events.len()).rev() {
        if events[place].answer.is_some_and(|answer| !answer.changed()) {
            let removed = events.remove(place);
            if !fails(&events) {
                events.insert(place, removed);
            }
        }
    }
    let stuck = explore(&events, before).expect_err("every step kept the failure");
    Violation {
        key,
        before: before.iter().copied().collect(),
        events,
        ordered: stuck.ordered,
        state: stuck.state,
    }
}

/// Returns what was known of a history at a moment.
fn until(events: &[Event], moment: u64) -> Vec<Event> {
    let begun = events.iter().filter(|event| event.begin <= moment);
    begun
        .map(|event| match event.end > moment {
            true => Event { end: NEVER, answer: None, ..*event },
            false => *event,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::call::Verb;
    use super::*;
    use evermap_pm::sim::rng::Rng;

    fn event(thread: usize, begin: u64, end: u64, verb: Verb, answer: Change) -> Event {
        Event { thread, call: Call { key: 7, verb }, begin, end, answer: Some(answer) }
    }

    fn change(old: Option<u64>, new: Option<u64>) -> Change {
        Change { old, new }
    }

    fn got(thread: usize, begin: u64, end: u64, word: Option<u64>) -> Event {
        event(thread, begin, end, Verb::Get, change(word, word))
    }

    fn unanswered(thread: usize, begin: u64, end: u64, verb: Verb) -> Event {
        Event { answer: None, ..event(thread, begin, end, verb, Change::default()) }
    }

    fn accepts(history: &[Event]) -> bool {
        check(history, &BTreeMap::new()).is_ok()
    }

    #[test]
    fn accepts_linearizable_histories() {
        let insert = event(0, 0, 9, Verb::Insert(1), change(None, Some(1)));
        assert!(accepts(&[]));
        // While the insert runs, reads may see it or not, but not stop seeing it.
        assert!(accepts(&[
            insert,
            got(1, 1, 2, None),
            got(1, 3, 4, Some(1)),
            got(1, 5, 6, Some(1))
        ]));
        assert!(!accepts(&[insert, got(1, 1, 2, Some(1)), got(1, 3, 4, None)]));
        // Overlapping reads of different threads may disagree.
        assert!(accepts(&[insert, got(1, 1, 4, Some(1)), got(2, 2, 3, None)]));
        // A later insert may have come first.
        let second = event(1, 1, 2, Verb::Insert(2), change(None, Some(2)));
        let late = event(0, 0, 9, Verb::Insert(1), change(Some(2), Some(2)));
        assert!(accepts(&[late, second]));
        // Keys are independent of each other.
        let other = Event { call: Call { key: 8, verb: Verb::Get }, ..got(1, 10, 11, None) };
        assert!(accepts(&[insert, other]));
        // A given initial state.
        assert!(check(&[got(0, 0, 1, Some(5))], &BTreeMap::from([(7, 5)])).is_ok());
    }

    #[test]
    fn rejects_the_classic_violations() {
        let insert = event(0, 0, 1, Verb::Insert(1), change(None, Some(1)));
        let update = |thread, begin, end, old, new| {
            event(thread, begin, end, Verb::Update(new), change(Some(old), Some(new)))
        };
        // A stale read.
        assert!(!accepts(&[insert, update(1, 2, 3, 1, 2), got(0, 4, 5, Some(1))]));
        // A lost insert.
        assert!(!accepts(&[insert, got(1, 2, 3, None)]));
        // A lost update: two replaced the same word.
        assert!(!accepts(&[insert, update(0, 2, 5, 1, 2), update(1, 3, 4, 1, 3)]));
        // Two inserts of one key that both succeeded.
        let twice = event(1, 0, 2, Verb::Insert(2), change(None, Some(2)));
        assert!(!accepts(&[insert, twice]));
        // Two removes that both removed the word.
        let remove =
            |thread, begin, end| event(thread, begin, end, Verb::Remove, change(Some(1), None));
        assert!(accepts(&[insert, remove(0, 2, 5)]));
        assert!(!accepts(&[insert, remove(0, 2, 5), remove(1, 3, 4)]));
        // A word that was never put, and an exchange that ignored the expected word.
        assert!(!accepts(&[got(0, 0, 1, Some(9))]));
        let exchange = Verb::CompareExchange { expected: 5, new: 2 };
        assert!(!accepts(&[insert, event(0, 2, 3, exchange, change(Some(1), Some(2)))]));
    }

    #[test]
    fn calls_without_result_may_have_taken_effect_or_not() {
        let insert = event(0, 0, 1, Verb::Insert(1), change(None, Some(1)));
        let pending = unanswered(1, 2, NEVER, Verb::Remove);
        assert!(accepts(&[insert, pending, got(0, 10, 11, Some(1)), got(0, 12, 13, None)]));
        assert!(!accepts(&[insert, pending, got(0, 10, 11, None), got(0, 12, 13, Some(1))]));
        // Not before the call began.
        assert!(!accepts(&[insert, got(0, 3, 4, None), unanswered(1, 5, NEVER, Verb::Remove)]));
        // The caller died: not after that moment either.
        let died = unanswered(1, 2, 9, Verb::Remove);
        assert!(accepts(&[insert, died, got(0, 10, 11, None), got(0, 12, 13, None)]));
        assert!(accepts(&[insert, died, got(0, 10, 11, Some(1)), got(0, 12, 13, Some(1))]));
        assert!(!accepts(&[insert, died, got(0, 10, 11, Some(1)), got(0, 12, 13, None)]));
    }

    #[test]
    fn a_report_shows_only_what_is_relevant() {
        let mut history = vec![event(0, 0, 1, Verb::Insert(1), change(None, Some(1)))];
        history.extend((1..20).map(|i| got(2, 2 * i, 2 * i + 1, Some(1))));
        history.push(event(1, 50, 60, Verb::Update(2), change(Some(1), Some(2))));
        history.push(got(0, 51, 52, Some(2)));
        history.push(got(2, 53, 54, Some(2)));
        history.push(got(2, 55, 56, Some(1)));
        history.push(got(2, 57, 58, Some(2)));
        let violation = check(&history, &BTreeMap::new()).expect_err("a read went back in time");
        assert_eq!(
            violation.to_string(),
            "key 7: no order of these calls explains their results\n  \
             before them: 1\n  \
             [   50 .. never]  thread 1  update(7, 2) has not returned\n  \
             [   51 ..    52]  thread 0  get(7) -> 2\n  \
             [   55 ..    56]  thread 2  get(7) -> 1\n  \
             2 of the 3 calls can be ordered, then the key is bound to: 2; \
             what cannot follow: get(7)"
        );
    }

    /// Returns a history that `threads` callers of a correct map could have seen: each call takes
    /// effect at some time between its beginning and its end.
    fn simulate(random: &mut Rng, threads: usize, calls: usize, keys: usize) -> Vec<Event> {
        let (mut map, mut next_word, mut time) = (BTreeMap::new(), 0, 0);
        let mut running: Vec<Option<Event>> = vec![None; threads];
        let mut history = Vec::new();
        while history.len() < calls {
            time += 1;
            let thread = random.below(threads as u64) as usize;
            match running[thread] {
                None => {
                    let key = random.below(keys as u64);
                    let verb = Verb::random(random, map.get(&key).copied(), 50, &mut |_| {
                        next_word += 1;
                        next_word
                    });
                    running[thread] = Some(unanswered(thread, time, NEVER, verb));
                    running[thread].as_mut().expect("just set").call.key = key;
                }
                Some(Event { call, answer: None, .. }) => {
                    let change = call.verb.apply(map.get(&call.key).copied());
                    match change.new {
                        Some(word) => map.insert(call.key, word),
                        None => map.remove(&call.key),
                    };
                    running[thread].as_mut().expect("is some").answer = Some(change);
                }
                Some(event) => {
                    history.push(Event { end: time, ..event });
                    running[thread] = None;
                }
            }
        }
        // What is in progress may have taken effect, but has not returned.
        history.extend(running.iter().flatten().map(|event| Event { answer: None, ..*event }));
        history
    }

    #[test]
    fn accepts_every_history_of_a_correct_map() {
        let mut random = Rng::new(1);
        for round in 0..300 {
            let (threads, keys) = (1 + random.below(6) as usize, 1 + random.below(3) as usize);
            let history = simulate(&mut random, threads, 200, keys);
            if let Err(violation) = check(&history, &BTreeMap::new()) {
                panic!("round {round}: {violation}");
            }
        }
    }

    /// One result in a correct history is replaced by another plausible one.
    #[test]
    fn rejects_nearly_every_history_with_one_wrong_answer() {
        let mut random = Rng::new(2);
        let (mut tried, mut rejected) = (0, 0);
        while tried < 1000 {
            let mut history = simulate(&mut random, 4, 60, 2);
            let place = random.below(60) as usize;
            let key = history[place].call.key;
            let words: Vec<Option<u64>> = history
                .iter()
                .filter(|event| event.call.key == key)
                .flat_map(|event| event.answer.map_or([None; 2], |change| [change.old, change.new]))
                .collect();
            let old = *random.pick(&words);
            if history[place].answer.is_some_and(|answer| answer.old == old) {
                continue;
            }
            history[place].answer = Some(history[place].call.verb.apply(old));
            tried += 1;
            rejected += u32::from(!accepts(&history));
        }
        // The others are possible histories: for example, a read overlaps the change that it now
        // sees.
        assert!(rejected > 900, "{rejected} of {tried}");
    }
}
