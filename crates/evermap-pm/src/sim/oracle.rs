//! What a map may hold after a crash: durable linearizability, key by key.
//!
//! Acknowledged operations must have taken effect, in an order that agrees with their times and
//! with their results; operations in flight may have taken effect or not. Linearizability is local:
//! each key can be checked alone. This is the search of Wing and Gong (1993), per key, with the
//! undecided operations optional.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::image::CrashPoint;
use crate::Medium;
use crate::medium::Note;

/// An operation on one key of a map from keys to words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapOp {
    /// Reads the word.
    Get,
    /// Binds the key to this word if it is absent.
    Insert(u64),
    /// Binds the key to this word if it is present.
    Update(u64),
    /// Binds the key to this word.
    Upsert(u64),
    /// Unbinds the key.
    Remove,
    /// Binds the key to `new` if it is bound to `expected`.
    CompareExchange {
        /// The expected word.
        expected: u64,
        /// The new word.
        new: u64,
    },
    /// Unbinds the key if it is bound to this word.
    RemoveIf(u64),
}

impl MapOp {
    /// Returns the state of the key after this operation on state `old`.
    pub fn apply(self, old: Option<u64>) -> Option<u64> {
        match self {
            MapOp::Insert(word) => old.or(Some(word)),
            MapOp::Update(word) => old.map(|_| word),
            MapOp::Upsert(word) => Some(word),
            MapOp::Remove => None,
            MapOp::CompareExchange { expected, new } if old == Some(expected) => Some(new),
            MapOp::RemoveIf(expected) if old == Some(expected) => None,
            MapOp::Get | MapOp::CompareExchange { .. } | MapOp::RemoveIf(_) => old,
        }
    }
}

/// The calls of a map, with their results. Shared by all threads of a workload.
#[derive(Debug)]
pub struct MapHistory<K> {
    /// The states that each key may have had at the beginning. A key that is missing here was
    /// absent.
    start: HashMap<K, BTreeSet<Option<u64>>>,
    calls: Mutex<Calls<K>>,
}

#[derive(Debug)]
struct Calls<K> {
    /// Key and position in the key's list, by operation number.
    positions: Vec<(K, usize)>,
    /// Number of begins and ends so far.
    ticks: usize,
    by_key: HashMap<K, Vec<Call>>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    number: u64,
    op: MapOp,
    outcome: Outcome,
    /// When it began and returned, in ticks.
    begin: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It did not return, or did not tell the state that it found.
    Open,
    /// It returned, and found this state.
    Saw(Option<u64>),
    /// It returned an error: nothing changed.
    Failed,
}

/// A call as the search uses it: its times are indexes of records.
#[derive(Clone, Copy, Debug)]
struct Interval {
    begin: usize,
    /// `usize::MAX` while it is in flight.
    end: usize,
    op: MapOp,
    outcome: Outcome,
}

impl<K> Calls<K> {
    fn tick(&mut self) -> usize {
        self.ticks += 1;
        self.ticks
    }
}

impl<K: Hash + Eq + Clone + Debug> MapHistory<K> {
    /// Creates the history of a map that holds these pairs when it begins.
    pub fn new(start: impl IntoIterator<Item = (K, u64)>) -> Self {
        Self::allowing(start.into_iter().map(|(key, word)| (key, BTreeSet::from([Some(word)]))))
    }

    /// Creates the history of a map whose keys may have any of these states when it begins.
    pub fn allowing(start: impl IntoIterator<Item = (K, BTreeSet<Option<u64>>)>) -> Self {
        let calls = Calls { positions: Vec::new(), ticks: 0, by_key: HashMap::new() };
        MapHistory { start: start.into_iter().collect(), calls: Mutex::new(calls) }
    }

    /// Records that the calling thread begins `op` on `key`. Returns the operation's number.
    #[track_caller]
    pub fn begin<M: Medium>(&self, medium: &M, key: K, op: MapOp) -> u64 {
        let number = {
            let mut calls = self.calls();
            let number = calls.positions.len() as u64;
            let begin = calls.tick();
            let list = calls.by_key.entry(key.clone()).or_default();
            list.push(Call { number, op, outcome: Outcome::Open, begin, end: usize::MAX });
            let position = list.len() - 1;
            calls.positions.push((key, position));
            number
        };
        medium.note(Note::Begin(number));
        number
    }

    /// Records that operation `number` returned, and found the key in state `seen`.
    ///
    /// # Panics
    ///
    /// If there is no such operation.
    #[track_caller]
    pub fn end<M: Medium>(&self, medium: &M, number: u64, seen: Option<u64>) {
        self.returned(number, Outcome::Saw(seen));
        medium.note(Note::End(number));
    }

    /// Records that operation `number` returned without telling the state that it found.
    ///
    /// # Panics
    ///
    /// If there is no such operation.
    #[track_caller]
    pub fn end_unseen<M: Medium>(&self, medium: &M, number: u64) {
        self.returned(number, Outcome::Open);
        medium.note(Note::End(number));
    }

    /// Records that operation `number` returned an error, which guarantees that it changed nothing.
    ///
    /// # Panics
    ///
    /// If there is no such operation.
    #[track_caller]
    pub fn fail<M: Medium>(&self, medium: &M, number: u64) {
        self.returned(number, Outcome::Failed);
        medium.note(Note::End(number));
    }

    /// Records that operation `number`, which has not returned yet, also does `op` to another
    /// `key`, and finds that in the state `seen`. It takes effect at some time from the begin of
    /// the operation on, and before it returns.
    ///
    /// For what a caller learns of only while or after it happens, such as an eviction. It must be
    /// recorded before [`end`](Self::end) and [`fail`](Self::fail).
    ///
    /// # Panics
    ///
    /// If there is no such operation.
    pub fn also(&self, number: u64, key: K, op: MapOp, seen: Option<u64>) {
        let mut calls = self.calls();
        let end = calls.tick();
        let (main, at) = &calls.positions[number as usize];
        let begin = calls.by_key[main][*at].begin;
        let call = Call { number, op, outcome: Outcome::Saw(seen), begin, end };
        calls.by_key.entry(key).or_default().push(call);
    }

    /// Returns the keys of the history.
    pub fn keys(&self) -> Vec<K> {
        let calls = self.calls();
        let touched = calls.by_key.keys().filter(|key| !self.start.contains_key(key));
        self.start.keys().chain(touched).cloned().collect()
    }

    /// Returns the key of operation `number`, if there is such an operation.
    pub fn key_of(&self, number: u64) -> Option<K> {
        self.calls().positions.get(number as usize).map(|(key, _)| key.clone())
    }

    /// Describes operation `number`.
    pub fn name(&self, number: u64) -> String {
        let calls = self.calls();
        match calls.positions.get(number as usize) {
            Some((key, at)) => {
                format!("operation {number}, {:?} of key {key:?}", calls.by_key[key][*at].op)
            }
            None => format!("operation {number}"),
        }
    }

    /// Returns the states in which a crash at `point` may leave `key`. Empty if the results of the
    /// operations are already contradictory.
    pub fn allowed(&self, key: &K, point: &CrashPoint) -> BTreeSet<Option<u64>> {
        self.outcomes(key, point, false)
    }

    fn outcomes(&self, key: &K, point: &CrashPoint, synced: bool) -> BTreeSet<Option<u64>> {
        let calls = self.calls();
        let list = calls.by_key.get(key).map_or(&[][..], |list| list);
        let mut intervals: Vec<Interval> = list
            .iter()
            .filter(|call| !synced || point.synced(call.number))
            .filter_map(|call| {
                let span = point.op(call.number)?;
                let end = span.end.filter(|end| *end < point.record()).unwrap_or(usize::MAX);
                Some(Interval { begin: span.begin, end, op: call.op, outcome: call.outcome })
            })
            .collect();
        intervals.sort_by_key(|interval| interval.begin);
        self.states_after(key, &intervals)
    }

    fn states_after(&self, key: &K, intervals: &[Interval]) -> BTreeSet<Option<u64>> {
        match self.start.get(key) {
            Some(states) => states.iter().flat_map(|&state| outcomes(state, intervals)).collect(),
            None => outcomes(None, intervals),
        }
    }

    /// Checks that `key` may be in the state `found` now, without any crash.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check).
    pub fn check_now(&self, key: &K, found: Option<u64>) -> Result<(), String> {
        let calls = self.calls();
        let list = calls.by_key.get(key).map_or(&[][..], |list| list);
        let interval =
            |&Call { begin, end, op, outcome, .. }: &Call| Interval { begin, end, op, outcome };
        let mut intervals: Vec<Interval> = list.iter().map(interval).collect();
        // What an operation has also done is in the list after calls that began later.
        intervals.sort_by_key(|interval| interval.begin);
        check_state(key, self.states_after(key, &intervals), found)
    }

    /// Checks that `key` may be in the state `found` after the crash at `point` if only synced
    /// operations survived.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check).
    pub fn check_synced(
        &self,
        key: &K,
        point: &CrashPoint,
        found: Option<u64>,
    ) -> Result<(), String> {
        check_state(key, self.outcomes(key, point, true), found)
    }

    /// Checks that a crash at `point` may leave `key` in the state `found`.
    ///
    /// # Errors
    ///
    /// A description of the state that was found and of those allowed.
    pub fn check(&self, key: &K, point: &CrashPoint, found: Option<u64>) -> Result<(), String> {
        check_state(key, self.allowed(key, point), found)
    }

    fn returned(&self, number: u64, outcome: Outcome) {
        let mut calls = self.calls();
        let end = calls.tick();
        let Calls { positions, by_key, .. } = &mut *calls;
        let (key, at) = &positions[number as usize];
        let call = &mut by_key.get_mut(key).expect("begun")[*at];
        (call.outcome, call.end) = (outcome, end);
    }

    fn calls(&self) -> MutexGuard<'_, Calls<K>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_state<K: Debug>(
    key: &K,
    allowed: BTreeSet<Option<u64>>,
    found: Option<u64>,
) -> Result<(), String> {
    if allowed.contains(&found) {
        return Ok(());
    }
    let allowed: Vec<String> = allowed.into_iter().map(show).collect();
    let found = show(found);
    Err(match allowed.len() {
        0 => format!("key {key:?}: its operations contradict each other already before the crash"),
        _ => format!("key {key:?}: found {found}, allowed: {}", allowed.join(" or ")),
    })
}

fn show(state: Option<u64>) -> String {
    state.map_or("absent".into(), |word| format!("{word:#x}"))
}

/// Returns the final states of all legal orders of the completed intervals and any of the others.
/// `intervals` are sorted by their begin.
fn outcomes(mut start: Option<u64>, mut intervals: &[Interval]) -> BTreeSet<Option<u64>> {
    // An interval that ended before everything else began needs no search.
    while let [first, rest @ ..] = intervals {
        if first.end == usize::MAX || rest.first().is_some_and(|next| next.begin <= first.end) {
            break;
        }
        let Some(next) = first.take(start) else { return BTreeSet::new() };
        (start, intervals) = (next, rest);
    }
    let mut search = Search { intervals, visited: HashSet::new(), results: BTreeSet::new() };
    search.visit(vec![false; intervals.len()], start);
    search.results
}

struct Search<'a> {
    intervals: &'a [Interval],
    visited: HashSet<(Vec<bool>, Option<u64>)>,
    results: BTreeSet<Option<u64>>,
}

impl Search<'_> {
    /// Continues from a set of intervals that have taken effect and the state after them.
    fn visit(&mut self, mut done: Vec<bool>, mut state: Option<u64>) {
        // An interval that begins after another completed interval has ended cannot come before
        // that one.
        loop {
            let undone = |(at, _): &(usize, &Interval)| !done[*at];
            let horizon =
                self.intervals.iter().enumerate().filter(undone).map(|(_, i)| i.end).min();
            let horizon = horizon.unwrap_or(usize::MAX);
            if horizon == usize::MAX {
                // Every completed interval has taken effect; those in flight may follow.
                self.results.insert(state);
            }
            let ready = self.intervals.iter().enumerate().filter(undone);
            let ready: Vec<usize> =
                ready.take_while(|(_, i)| i.begin <= horizon).map(|(at, _)| at).collect();
            match ready[..] {
                [] => return,
                [only] if self.intervals[only].end != usize::MAX => {
                    let Some(next) = self.intervals[only].take(state) else { return };
                    done[only] = true;
                    state = next;
                }
                _ => {
                    if !self.visited.insert((done.clone(), state)) {
                        return;
                    }
                    for at in ready {
                        if let Some(next) = self.intervals[at].take(state) {
                            let mut done = done.clone();
                            done[at] = true;
                            self.visit(done, next);
                        }
                    }
                    return;
                }
            }
        }
    }
}

impl Interval {
    /// Returns the state after this took effect on `state`, or `None` if its result contradicts
    /// that.
    fn take(&self, state: Option<u64>) -> Option<Option<u64>> {
        match self.outcome {
            Outcome::Failed => Some(state),
            // The result of an operation in flight was not returned.
            Outcome::Saw(seen) if self.end != usize::MAX && seen != state => None,
            Outcome::Saw(_) | Outcome::Open => Some(self.op.apply(state)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::*;

    const OPEN: usize = usize::MAX;

    fn call(begin: usize, end: usize, op: MapOp, seen: Option<u64>) -> Interval {
        Interval { begin, end, op, outcome: Outcome::Saw(seen) }
    }

    fn states(from: &[Option<u64>]) -> BTreeSet<Option<u64>> {
        from.iter().copied().collect()
    }

    #[test]
    fn one_thread_is_before_or_after() {
        use MapOp::*;
        let done = [call(0, 1, Insert(5), None), call(2, 3, Update(6), Some(5))];
        assert_eq!(outcomes(None, &done), states(&[Some(6)]));
        let open = [done[0], done[1], call(4, OPEN, Remove, None)];
        assert_eq!(outcomes(None, &open), states(&[None, Some(6)]));
        assert_eq!(outcomes(Some(1), &done), states(&[]), "the insert cannot have seen nothing");
    }

    #[test]
    fn overlapping_writes_may_end_either_way_unless_a_result_decides() {
        use MapOp::*;
        let free = [call(0, 9, Upsert(1), None), call(1, 8, Upsert(2), Some(1))];
        assert_eq!(outcomes(None, &free), states(&[Some(2)]));
        let open = [call(0, OPEN, Upsert(1), None), call(1, OPEN, Upsert(2), None)];
        assert_eq!(outcomes(None, &open), states(&[None, Some(1), Some(2)]));
    }

    #[test]
    fn a_read_that_returned_pins_the_write_that_it_saw() {
        use MapOp::*;
        let read = [call(0, OPEN, Insert(7), None), call(1, 2, Get, Some(7))];
        assert_eq!(outcomes(None, &read), states(&[Some(7)]));
        let unread = [call(0, OPEN, Insert(7), None), call(1, 2, Get, None)];
        assert_eq!(outcomes(None, &unread), states(&[None, Some(7)]));
    }

    #[test]
    fn a_failed_operation_has_no_effect() {
        let failed = Interval { begin: 0, end: 1, op: MapOp::Upsert(3), outcome: Outcome::Failed };
        assert_eq!(outcomes(Some(1), &[failed]), states(&[Some(1)]));
    }

    /// Another key is changed in the course of an operation: not before, not after, and only from
    /// the state that was found.
    #[test]
    fn an_operation_can_change_another_key() {
        use MapOp::*;
        let sim = crate::sim::Sim::new(4096).unwrap();
        let history = MapHistory::new([(1, 10), (2, 20)]);
        let number = history.begin(&sim, 1, Upsert(11));
        history.also(number, 2, RemoveIf(20), Some(20));
        history.end_unseen(&sim, number);
        assert_eq!(history.check_now(&2, None), Ok(()));
        assert!(history.check_now(&2, Some(20)).is_err() && history.check_now(&1, None).is_err());
        let number = history.begin(&sim, 2, Upsert(21));
        history.end(&sim, number, None);
        assert_eq!(history.check_now(&2, Some(21)), Ok(()));
        // It is recorded after operations on that key that began later.
        let number = history.begin(&sim, 1, Get);
        let other = history.begin(&sim, 2, Upsert(22));
        history.end_unseen(&sim, other);
        let read = history.begin(&sim, 2, Get);
        history.end_unseen(&sim, read);
        history.also(number, 2, RemoveIf(21), Some(21));
        history.end_unseen(&sim, number);
        assert_eq!(history.check_now(&2, Some(22)), Ok(()));
        // That was gone already.
        let number = history.begin(&sim, 1, Get);
        history.also(number, 2, RemoveIf(20), Some(20));
        history.end_unseen(&sim, number);
        for state in [None, Some(20), Some(22)] {
            assert!(history.check_now(&2, state).unwrap_err().contains("contradict"));
        }
    }

    /// Compares with trying every order of every subset.
    #[test]
    fn agrees_with_brute_force() {
        let mut rng = Rng::new(11);
        let mut undecided = 0;
        for _ in 0..3000 {
            let mut intervals: Vec<Interval> = (0..1 + rng.below(5))
                .map(|_| {
                    let begin = rng.below(12) as usize;
                    let end = if rng.one_in(3) { OPEN } else { begin + 1 + rng.below(6) as usize };
                    let word = 1 + rng.below(2);
                    let op = match rng.below(5) {
                        0 => MapOp::Get,
                        1 => MapOp::Insert(word),
                        2 => MapOp::Upsert(word),
                        3 => MapOp::Remove,
                        _ => MapOp::CompareExchange { expected: word, new: 3 - word },
                    };
                    call(begin, end, op, rng.one_in(2).then_some(word))
                })
                .collect();
            intervals.sort_by_key(|interval| interval.begin);
            let mut expected = BTreeSet::new();
            brute(None, &intervals, &mut vec![], &mut expected);
            let found = outcomes(None, &intervals);
            assert_eq!(found, expected, "{intervals:?}");
            undecided += usize::from(found.len() > 1);
        }
        assert!(undecided > 300, "only {undecided} cases had more than one outcome");
    }

    fn brute(
        state: Option<u64>,
        intervals: &[Interval],
        order: &mut Vec<usize>,
        results: &mut BTreeSet<Option<u64>>,
    ) {
        let complete = |at: &usize| intervals[*at].end == OPEN || order.contains(at);
        if (0..intervals.len()).all(|at| complete(&at)) {
            results.insert(state);
        }
        for at in (0..intervals.len()).filter(|at| !order.contains(at)).collect::<Vec<_>>() {
            // No interval that ended before this one began may be missing.
            let late = (0..intervals.len())
                .any(|other| !order.contains(&other) && intervals[other].end < intervals[at].begin);
            if let (false, Some(next)) = (late, intervals[at].take(state)) {
                order.push(at);
                brute(next, intervals, order, results);
                order.pop();
            }
        }
    }
}
