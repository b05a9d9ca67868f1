//! Sequences of operations on byte strings, compared with an ordered map of the standard library.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::OrderedSubject;
use super::encoded::Encoding;
use crate::ordered::{Cursor, Direction, OrderedIndex};
use crate::testkit::call::{Call, InWords, Verb};
use crate::testkit::erased::AnyOrderedSubject;
use crate::testkit::model::{choose, mismatch, panicked, report};
use crate::testkit::{Config, Failure, Universe, chance};
use crate::{Action, Change};
use evermap_pm::Result;
use evermap_pm::sim::rng::Rng;

/// Runs random sequences over byte strings that are hard to order: growth, churn and shrinkage in
/// turn, with scans of ranges in both directions, some of which are interrupted and resumed.
///
/// # Errors
/// The shortest failing sequence that was found, as code. Keys are numbered in their order.
pub fn ranges<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    ranges_of(subject, config)
}

fn ranges_of(subject: &dyn AnyOrderedSubject, config: &Config) -> Result<(), Failure> {
    for (name, keys) in key_sets() {
        let indexes = (0..keys.len() as u64).collect();
        let universe = Universe { name, keys: indexes, hostile: false };
        for round in 0..config.scale {
            let seed = config.seed_of(round);
            let steps = generate(&mut Rng::new(seed), &universe, &keys);
            let fails = |steps: &[ScanStep]| run(subject, &keys, steps).err();
            if let Some(first) = fails(&steps) {
                let text = report(&steps, first, fails);
                return Err(Failure::new::<[u8]>("ranges", name, seed, text));
            }
        }
    }
    Ok(())
}

/// Returns sets of keys, each of which is sorted.
pub fn key_sets() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let encoded = |encoding: Encoding, count| (0..count).map(|n| encoding.encode(n)).collect();
    let bits = (0..64).flat_map(|bit| [1u64 << bit, !(1 << bit), (1 << bit) - 1, u64::MAX]);
    let mut sets: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("counting", encoded(Encoding::Numbers, 1500)),
        ("single bits", bits.map(|n| n.to_be_bytes().to_vec()).collect()),
        ("words", encoded(Encoding::Words, 1000)),
        ("strings of three letters", strings(&[0, 1, 0xff], 5)),
        ("one letter", (0..200).map(|length| vec![0; length]).collect()),
        (
            "a long common prefix",
            strings(b"\0a", 6).iter().map(|end| with_prefix(300, end)).collect(),
        ),
        (
            "lengths of about 8 and 15",
            (0..40).flat_map(|n| [with_prefix(n, b"\x01"), with_prefix(n, b"x")]).collect(),
        ),
        (
            "longest",
            (0..12)
                .flat_map(|n| [with_prefix(65_535 - n, b"1"), with_prefix(65_535, &[n as u8])])
                .collect(),
        ),
    ];
    for (_, keys) in &mut sets {
        keys.sort();
        keys.dedup();
    }
    sets
}

fn with_prefix(length: usize, end: &[u8]) -> Vec<u8> {
    let mut key = vec![b'p'; length];
    key.extend_from_slice(end);
    key
}

/// Returns all strings of up to `length` of these letters.
fn strings(letters: &[u8], length: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = vec![Vec::new()];
    let mut start = 0;
    for _ in 0..length {
        let longer = |string: &Vec<u8>| {
            letters.iter().map(|&letter| [&string[..], &[letter]].concat()).collect::<Vec<_>>()
        };
        let next: Vec<Vec<u8>> = all[start..].iter().flat_map(longer).collect();
        start = all.len();
        all.extend(next);
    }
    all
}

/// A bound that owns its key.
type Edge = Bound<Vec<u8>>;

/// One line of a sequence.
#[derive(Clone, Debug)]
enum ScanStep {
    Call(Call),
    /// A scan of a range that shows up to `most` pairs. A new cursor continues after every
    /// `resumed` pairs.
    Walk {
        from: Edge,
        to: Edge,
        direction: Direction,
        resumed: usize,
        most: usize,
    },
    Prefix(Vec<u8>, Direction),
    /// A comparison of the whole contents, and an audit.
    Compare,
}

impl fmt::Display for ScanStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScanStep::Call(call) => write!(f, "{call};"),
            ScanStep::Walk { from, to, direction, resumed, most } => write!(
                f,
                "walk({:?}, {:?}, {direction:?}, resumed after {resumed}, {most} at most);",
                from.as_ref().map(|key| Short(key)),
                to.as_ref().map(|key| Short(key)),
            ),
            ScanStep::Prefix(prefix, direction) => {
                write!(f, "prefix({:?}, {direction:?});", Short(prefix))
            }
            ScanStep::Compare => f.write_str("compare();"),
        }
    }
}

/// A key in readable form.
pub(super) struct Short<'k>(pub(super) &'k [u8]);

impl fmt::Debug for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0..=40 => write!(f, "b\"{}\"", self.0.escape_ascii()),
            length => write!(
                f,
                "b\"{}[{} bytes]{}\"",
                self.0[..8].escape_ascii(),
                length - 16,
                self.0[length - 8..].escape_ascii()
            ),
        }
    }
}

/// The percentage of verbs that may add keys, and the number of steps for each key.
const PHASES: [(u64, f64); 3] = [(85, 2.5), (45, 0.5), (8, 3.5)];
/// The number of repetitions of all phases.
const CYCLES: usize = 2;

fn generate(random: &mut Rng, universe: &Universe, keys: &[Vec<u8>]) -> Vec<ScanStep> {
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    // An empty index contains none of the keys, not even the empty one.
    let mut steps = vec![ScanStep::Compare];
    let mut words = 0;
    let mut word = |random: &mut Rng| {
        words += 1;
        *random.pick(&[words, words, 0, u64::MAX, words % 5])
    };
    for (grow, steps_per_key) in [PHASES; CYCLES].concat() {
        let count = (200.max((keys.len() as f64 * steps_per_key) as usize)).min(6000);
        for at in 0..count {
            if at % (count / 4) == count / 8 {
                steps.push(ScanStep::Compare);
            }
            if chance(random, 4) {
                steps.push(walk(random, keys));
            }
            let key = choose(random, universe, |key| model.contains_key(&key) == (grow < 50));
            let current = model.get(&key).copied();
            let call = Call { key, verb: Verb::random(random, current, grow, &mut word) };
            match call.verb.apply(current).new {
                Some(word) => model.insert(key, word),
                None => model.remove(&key),
            };
            steps.push(ScanStep::Call(call));
        }
    }
    steps.push(ScanStep::Compare);
    steps
}

fn walk(random: &mut Rng, keys: &[Vec<u8>]) -> ScanStep {
    let direction = *random.pick(&[Direction::Ascending, Direction::Descending]);
    if chance(random, 20) {
        let mut prefix = near(random, keys);
        prefix.truncate(random.below(prefix.len() as u64 + 1) as usize);
        return ScanStep::Prefix(prefix, direction);
    }
    let mut edge = || match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(near(random, keys)),
        _ => Bound::Excluded(near(random, keys)),
    };
    let (from, to) = (edge(), edge());
    let resumed = *random.pick(&[1, 2, 7, 1000, 1000]);
    ScanStep::Walk { from, to, direction, resumed, most: *random.pick(&[1, 10, 10, 100, 5000]) }
}

/// Returns a key, or a string between a key and its neighbours.
fn near(random: &mut Rng, keys: &[Vec<u8>]) -> Vec<u8> {
    let mut key = random.pick(keys).clone();
    match random.below(6) {
        0 => key.push(0),
        1 => key.push(0xff),
        2 => drop(key.pop()),
        _ => {}
    }
    key
}

/// Runs a sequence on a new index. Returns the step that failed, and why.
fn run(
    subject: &dyn AnyOrderedSubject,
    keys: &[Vec<u8>],
    steps: &[ScanStep],
) -> Result<(), (usize, String)> {
    let mut at = 0;
    // A panic is a failure like others: its report needs the sequence too.
    let result = catch_unwind(AssertUnwindSafe(|| -> Result<(), String> {
        let index = subject.fresh().map_err(|error| format!("cannot be made: {error}"))?;
        let mut state = State { index: &*index, keys, model: BTreeMap::new() };
        for step in steps {
            state.step(step)?;
            at += 1;
        }
        Ok(())
    }));
    match result {
        Ok(done) => done.map_err(|what| (at, what)),
        Err(panic) => Err((at, panicked(panic))),
    }
}

/// The index and its expected contents.
struct State<'w> {
    index: &'w dyn OrderedIndex,
    keys: &'w [Vec<u8>],
    model: BTreeMap<Vec<u8>, u64>,
}

/// Pairs in the order in which they were shown.
type Pairs = Vec<(Vec<u8>, u64)>;

impl State<'_> {
    fn step(&mut self, step: &ScanStep) -> Result<(), String> {
        match step {
            ScanStep::Call(call) => self.call(call),
            ScanStep::Walk { from, to, direction, resumed, most } => {
                let (from, to) = (from.as_ref(), to.as_ref());
                let range = (from.map(Vec::as_slice), to.map(Vec::as_slice));
                let expected = self.expected(|key| range.contains(key), *direction, *most);
                self.expect(self.shown(range, *direction, *resumed, *most)?, expected)
            }
            ScanStep::Prefix(prefix, direction) => {
                let expected = self.expected(|key| key.starts_with(prefix), *direction, usize::MAX);
                let mut cursor = Cursor::with_prefix(self.index, prefix, *direction);
                self.expect(collect(&mut cursor, usize::MAX)?, expected)
            }
            ScanStep::Compare => self.compare(),
        }
    }

    fn call(&mut self, call: &Call) -> Result<(), String> {
        let key = &self.keys[call.key as usize];
        let expected = call.verb.apply(self.model.get(key).copied());
        let change = apply(self.index, key, call.verb)?;
        if change != expected {
            return Err(mismatch(InWords(change), InWords(expected)));
        }
        match expected.new {
            Some(word) => self.model.insert(key.clone(), word),
            None => self.model.remove(key),
        };
        Ok(())
    }

    /// Returns the pairs that a scan must show.
    fn expected(&self, inside: impl Fn(&[u8]) -> bool, direction: Direction, most: usize) -> Pairs {
        let pairs = self.model.iter().filter(|(key, _)| inside(key));
        let pairs = pairs.map(|(key, &word)| (key.clone(), word));
        match direction {
            Direction::Ascending => pairs.take(most).collect(),
            Direction::Descending => pairs.rev().take(most).collect(),
        }
    }

    fn shown(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        resumed: usize,
        most: usize,
    ) -> Result<Pairs, String> {
        let (mut from, mut to) = (range.0.map(<[u8]>::to_vec), range.1.map(<[u8]>::to_vec));
        let mut pairs = Pairs::new();
        loop {
            let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let mut cursor = Cursor::new(self.index, range, direction);
            let wanted = resumed.min(most - pairs.len());
            let part = collect(&mut cursor, wanted)?;
            let (ended, position) = (part.len() < wanted, cursor.position().map(<[u8]>::to_vec));
            pairs.extend(part);
            if ended || pairs.len() == most {
                return Ok(pairs);
            }
            match direction {
                Direction::Ascending => from = position,
                Direction::Descending => to = position,
            }
        }
    }

    fn expect(&self, shown: Pairs, expected: Pairs) -> Result<(), String> {
        if shown == expected {
            return Ok(());
        }
        let at =
            shown.iter().zip(&expected).take_while(|(shown, expected)| shown == expected).count();
        let describe = |pairs: &Pairs| match pairs.get(at) {
            Some((key, word)) => format!("{:?} with word {word}", Short(key)),
            None => "the end".into(),
        };
        Err(format!("pair {at} shown is {}, must be {}", describe(&shown), describe(&expected)))
    }

    fn compare(&self) -> Result<(), String> {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut cursor = Cursor::new(self.index, .., direction);
            let shown = collect(&mut cursor, usize::MAX)?;
            self.expect(shown, self.expected(|_| true, direction, usize::MAX))?;
        }
        for (at, key) in self.keys.iter().enumerate() {
            let found = self.index.get(key).map_err(|error| error.to_string())?;
            let expected = self.model.get(key).copied();
            if found != expected {
                return Err(format!("get({at}): {}", mismatch(InWords(found), InWords(expected))));
            }
        }
        let (len, expected) = (self.index.len(), self.model.len() as u64);
        if len != expected
            || self.index.stats().len != expected
            || self.index.is_empty() != (expected == 0)
        {
            return Err(format!("len: {}", mismatch(len, expected)));
        }
        match self.index.check() {
            found if found.is_empty() => Ok(()),
            found => Err(format!("check: {}", found.join("; "))),
        }
    }
}

/// Returns up to `most` pairs of a cursor.
fn collect(cursor: &mut Cursor<'_>, most: usize) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    while pairs.len() < most {
        match cursor.next().map_err(|error| error.to_string())? {
            Some((key, word)) => pairs.push((key.to_vec(), word)),
            None => break,
        }
    }
    Ok(pairs)
}

/// Executes an operation. The result of a get is a change that changes nothing.
fn apply(index: &dyn OrderedIndex, key: &[u8], verb: Verb) -> Result<Change, String> {
    let change = match verb {
        Verb::Get => index.get(key).map(|word| Change { old: word, new: word }),
        Verb::Insert(word) => index.insert(key, word),
        Verb::Update(word) => index.update(key, word),
        Verb::Upsert(word) => index.upsert(key, word),
        Verb::CompareExchange { expected, new } => index.compare_exchange(key, expected, new),
        Verb::Remove => index.remove(key),
        Verb::RemoveIf(word) => index.remove_if(key, word),
        Verb::Mutate { mode, absent, present } => {
            let decide =
                &mut |old: Option<u64>| -> Action { if old.is_some() { present } else { absent } };
            index.mutate(key, mode, decide)
        }
    };
    change.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_keys_are_sorted_and_include_the_extremes() {
        for (name, keys) in key_sets() {
            assert!(keys.len() >= 20 && keys.is_sorted_by(|a, b| a < b), "{name}: {}", keys.len());
        }
        let all: Vec<Vec<u8>> = key_sets().into_iter().flat_map(|(_, keys)| keys).collect();
        assert!(all.iter().any(Vec::is_empty), "the empty key");
        assert!(all.iter().any(|key| key.len() == crate::record::KEY_MAX), "the longest key");
    }
}
