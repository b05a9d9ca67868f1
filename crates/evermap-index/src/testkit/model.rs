//! Sequences of operations, compared with an ordered map of the standard library.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::call::{Call, Driver, InWords, Records, Verb};
use super::erased::{AnyInstance, AnySubject};
use super::keys::{Numbered, Universe};
use super::{Config, Failure, Instance, Stop, Subject, chance};
use crate::Change;
use evermap_pm::sim::rng::Rng;

/// Runs random sequences over each of the [universes](Numbered::universes) of the kind: growth,
/// churn and shrinkage in turn, with every operation of the trait, reopening and sweeping, and
/// comparisons of the whole contents.
///
/// # Errors
/// The shortest failing sequence that was found, as code.
pub fn model<K: Numbered, S: Subject<K>>(subject: &S, config: &Config) -> Result<(), Failure> {
    model_of::<K>(subject, config)
}

fn model_of<K: Numbered>(subject: &dyn AnySubject<K>, config: &Config) -> Result<(), Failure> {
    for universe in config.universes::<K>() {
        for round in 0..config.scale {
            let seed = config.seed_of(round);
            let steps = generate(&mut Rng::new(seed), &universe, K::WORDS_ARE_RECORDS);
            let fails = |steps: &[ModelStep]| run(subject, &universe, steps).err();
            if let Some(first) = fails(&steps) {
                let text = report(&steps, first, fails);
                return Err(Failure::new::<K>("model", universe.name, seed, text));
            }
        }
    }
    Ok(())
}

/// One line of a sequence.
#[derive(Clone, Debug, PartialEq)]
enum ModelStep {
    Call(Call),
    GetMany(Vec<u64>),
    /// A `mutate_many`.
    ChangeMany(Vec<Call>),
    /// A walk that stops after this number of pairs.
    Walk(usize),
    /// A comparison of the whole contents, and an audit.
    Compare,
    Reopen(Stop),
    Sweep,
}

impl fmt::Display for ModelStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelStep::Call(call) => write!(f, "{call};"),
            ModelStep::GetMany(keys) => write!(f, "get_many({keys:?});"),
            ModelStep::ChangeMany(calls) => {
                let calls: Vec<_> = calls.iter().map(Call::to_string).collect();
                write!(f, "mutate_many([{}]);", calls.join(", "))
            }
            ModelStep::Walk(pairs) => write!(f, "for_each(stop after {pairs});"),
            ModelStep::Compare => f.write_str("compare();"),
            ModelStep::Reopen(stop) => write!(f, "reopen({stop:?});"),
            ModelStep::Sweep => f.write_str("sweep();"),
        }
    }
}

/// The percentage of verbs that may add keys, and the number of steps for each key of the universe.
const PHASES: [(u64, f64); 3] = [(85, 2.5), (45, 0.5), (8, 3.5)];
/// The number of repetitions of all phases: growth after shrinkage differs from the first growth.
const CYCLES: usize = 2;
/// The smallest number of steps in a phase.
const PHASE_MIN: usize = 200;

fn generate(random: &mut Rng, universe: &Universe, unique_words: bool) -> Vec<ModelStep> {
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut steps = Vec::new();
    let mut words = 0;
    let mut word = |random: &mut Rng| {
        words += 1;
        match random.below(8) {
            _ if unique_words => words,
            0 => 0,
            1 => u64::MAX,
            2 => random.draw(),
            _ => words % 5,
        }
    };
    for (grow, steps_per_key) in [PHASES; CYCLES].concat() {
        let count = PHASE_MIN.max((universe.keys.len() as f64 * steps_per_key) as usize);
        let pause = count / 5;
        for at in 0..count {
            if at % pause == pause - 1 {
                steps.extend(maintenance(random));
            }
            if chance(random, 3) {
                let keys = (0..random.below(40)).map(|_| *random.pick(&universe.keys)).collect();
                steps.push(ModelStep::GetMany(keys));
                continue;
            }
            let mut draw = |random: &mut Rng| {
                let key = choose(random, universe, |key| model.contains_key(&key) == (grow < 50));
                let current = model.get(&key).copied();
                let call = Call { key, verb: Verb::random(random, current, grow, &mut word) };
                bind(&mut model, key, call.verb.apply(current).new);
                call
            };
            steps.push(match chance(random, 2) {
                true => {
                    ModelStep::ChangeMany((0..random.below(40)).map(|_| draw(random)).collect())
                }
                false => ModelStep::Call(draw(random)),
            });
        }
    }
    steps.push(ModelStep::Compare);
    steps
}

/// Returns a random key, in most cases one for which `suits` is `true`.
pub(super) fn choose(random: &mut Rng, universe: &Universe, suits: impl Fn(u64) -> bool) -> u64 {
    let tries = if chance(random, 70) { 20 } else { 1 };
    let mut key = *random.pick(&universe.keys);
    for _ in 1..tries {
        if suits(key) {
            break;
        }
        key = *random.pick(&universe.keys);
    }
    key
}

fn maintenance(random: &mut Rng) -> Vec<ModelStep> {
    let stop = *random.pick(&[Stop::Clean, Stop::Unclean]);
    match random.below(5) {
        0 => vec![ModelStep::Walk(random.below(20) as usize), ModelStep::Compare],
        1 => vec![ModelStep::Reopen(stop), ModelStep::Compare],
        2 => vec![ModelStep::Reopen(stop), ModelStep::Sweep, ModelStep::Compare],
        // The space of an unclean shutdown is not swept yet when the index is stopped again.
        3 => vec![ModelStep::Reopen(Stop::Unclean), ModelStep::Reopen(stop)],
        _ => vec![ModelStep::Sweep, ModelStep::Compare],
    }
}

fn bind(model: &mut BTreeMap<u64, u64>, key: u64, word: Option<u64>) {
    match word {
        Some(word) => model.insert(key, word),
        None => model.remove(&key),
    };
}

/// Runs a sequence on a new index. Returns the step that failed, and why.
fn run<K: Numbered>(
    subject: &dyn AnySubject<K>,
    universe: &Universe,
    steps: &[ModelStep],
) -> Result<(), (usize, String)> {
    let mut at = 0;
    // A panic is a failure like others: its report needs the sequence too, shortened.
    let result = catch_unwind(AssertUnwindSafe(|| -> Result<(), String> {
        let instance = subject.fresh().map_err(|error| format!("cannot be made: {error}"))?;
        let mut state = State {
            subject,
            universe,
            instance: Some(instance),
            records: Records::default(),
            model: BTreeMap::new(),
        };
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

/// Returns the text of a caught panic.
pub fn panicked(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a text"))
}

/// The index and its expected contents.
struct State<'s, K: Numbered> {
    subject: &'s dyn AnySubject<K>,
    universe: &'s Universe,
    /// Always `Some` between steps.
    instance: Option<Box<dyn AnyInstance<K> + 's>>,
    records: Records,
    model: BTreeMap<u64, u64>,
}

impl<K: Numbered> State<'_, K> {
    fn instance(&self) -> &dyn Instance<K> {
        self.instance.as_ref().expect("there between steps").instance()
    }

    fn driver(&self) -> Driver<'_, K> {
        Driver::new(self.instance(), &self.records)
    }

    fn step(&mut self, step: &ModelStep) -> Result<(), String> {
        match step {
            ModelStep::Call(call) => self.call(call),
            ModelStep::GetMany(keys) => self.get_many(keys),
            ModelStep::ChangeMany(calls) => self.change_many(calls),
            ModelStep::Walk(limit) => self.walk(*limit),
            ModelStep::Compare => self.compare(),
            ModelStep::Reopen(stop) => self.reopen(*stop),
            ModelStep::Sweep => self.instance().sweep().map_err(|error| error.to_string()),
        }
    }

    fn call(&mut self, call: &Call) -> Result<(), String> {
        let expected = call.verb.apply(self.model.get(&call.key).copied());
        match self.driver().call(call)? {
            Some(change) if change == expected => bind(&mut self.model, call.key, expected.new),
            Some(change) => return Err(mismatch(InWords(change), InWords(expected))),
            None if self.universe.hostile && self.model.len() >= self.subject.always_holds() => {
                // No space is a valid result here, provided that nothing has changed.
                let get = Call { key: call.key, verb: Verb::Get };
                let found = self.driver().call(&get)?;
                if found != Some(Change { old: expected.old, new: expected.old }) {
                    return Err("no space, but the key has changed".into());
                }
            }
            None => return Err(format!("no space for key {}", self.model.len() + 1)),
        }
        Ok(())
    }

    fn change_many(&mut self, calls: &[Call]) -> Result<(), String> {
        for (call, change) in calls.iter().zip(self.driver().change_many(calls)?) {
            let expected = call.verb.apply(self.model.get(&call.key).copied());
            match change {
                Some(change) if change == expected => {
                    bind(&mut self.model, call.key, expected.new);
                }
                Some(change) => {
                    let what = mismatch(InWords(change), InWords(expected));
                    return Err(format!("{call}: {what}"));
                }
                // That nothing has changed, later calls and comparisons show.
                None if self.universe.hostile
                    && self.model.len() + calls.len() >= self.subject.always_holds() => {}
                None => return Err(format!("{call}: no space")),
            }
        }
        Ok(())
    }

    fn get_many(&self, keys: &[u64]) -> Result<(), String> {
        let found = self.driver().get_many(keys)?;
        for (key, word) in keys.iter().zip(found) {
            let expected = self.model.get(key).copied();
            if word != expected {
                return Err(format!("key {key}: {}", mismatch(InWords(word), InWords(expected))));
            }
        }
        Ok(())
    }

    fn walk(&self, limit: usize) -> Result<(), String> {
        // A walk must show a pair before it can be stopped.
        let limit = limit.max(1);
        let shown = self.driver().pairs(limit)?;
        let expected = limit.min(self.model.len());
        if shown.len() != expected { Err(mismatch(shown.len(), expected)) } else { Ok(()) }
    }

    fn compare(&self) -> Result<(), String> {
        let driver = self.driver();
        let mut shown = driver.pairs(usize::MAX)?;
        let mut expected: Vec<_> =
            self.model.iter().map(|(&key, &word)| (driver.slot_key(key), word)).collect();
        shown.sort_unstable();
        expected.sort_unstable();
        if shown != expected {
            return Err(format!("for_each: {}", difference(&shown, &expected)));
        }
        let len = driver.stats()?.len;
        if len != expected.len() as u64 {
            return Err(format!("stats().len: {}", mismatch(len, expected.len())));
        }
        self.get_many(&self.universe.keys)?;
        for &key in &self.universe.keys {
            let (found, expected) = (driver.get(key)?, self.model.get(&key).copied());
            if found != expected {
                return Err(format!("get({key}): {}", mismatch(InWords(found), InWords(expected))));
            }
        }
        match self.instance().audit() {
            found if found.is_empty() => Ok(()),
            found => Err(format!("audit: {}", found.join("; "))),
        }
    }

    fn reopen(&mut self, stop: Stop) -> Result<(), String> {
        let instance = self.instance.take().expect("there between steps");
        let reopened = instance.reopen(stop);
        self.instance = Some(reopened.map_err(|error| format!("cannot be opened: {error}"))?);
        Ok(())
    }
}

pub(super) fn mismatch(found: impl fmt::Display, expected: impl fmt::Display) -> String {
    format!("returned {found}, must return {expected}")
}

/// Describes the first differences between two sorted lists of slot keys and words.
fn difference(shown: &[(u64, u64)], expected: &[(u64, u64)]) -> String {
    let mut counts: BTreeMap<(u64, u64), (usize, usize)> = BTreeMap::new();
    shown.iter().for_each(|&pair| counts.entry(pair).or_default().0 += 1);
    expected.iter().for_each(|&pair| counts.entry(pair).or_default().1 += 1);
    let wrong: Vec<String> = counts
        .into_iter()
        .filter(|(_, (shown, expected))| shown != expected)
        .take(5)
        .map(|((slot_key, word), (shown, expected))| {
            format!("slot key {slot_key} with word {word} shown {shown} times, must be {expected}")
        })
        .collect();
    wrong.join(", ")
}

/// The number of steps that a report shows. If more are needed, the failure depends on some number
/// of repetitions.
const SHOWN: usize = 60;
/// The largest number of runs for shortening.
const TRIALS: usize = 600;

/// Shortens a failing sequence and formats it, with the failure after its last line.
pub(super) fn report<T: Clone + fmt::Display>(
    steps: &[T],
    first: (usize, String),
    fails: impl Fn(&[T]) -> Option<(usize, String)>,
) -> String {
    let mut trials = 0;
    let (steps, what) = shorten(steps, first, |steps| {
        trials += 1;
        if trials <= TRIALS { fails(steps) } else { None }
    });
    let hidden = steps.len().saturating_sub(SHOWN);
    let mut lines: Vec<String> = steps[hidden..].iter().map(|step| format!("    {step}")).collect();
    if hidden > 0 {
        lines.insert(0, format!("    // ... {hidden} steps that the seed reproduces ..."));
    }
    format!("{} steps fail\n{}  // {what}", steps.len(), lines.join("\n"))
}

/// Delta debugging: removes halves, quarters and so on as long as the rest still fails.
fn shorten<T: Clone>(
    steps: &[T],
    (at, mut what): (usize, String),
    mut fails: impl FnMut(&[T]) -> Option<(usize, String)>,
) -> (Vec<T>, String) {
    let mut steps = steps[..steps.len().min(at + 1)].to_vec();
    let mut chunk = steps.len().div_ceil(2);
    loop {
        let before = steps.len();
        let mut start = 0;
        while start < steps.len() {
            let mut rest = steps.clone();
            rest.drain(start..(start + chunk).min(steps.len()));
            match fails(&rest) {
                Some((at, how)) => {
                    rest.truncate(at + 1);
                    (steps, what) = (rest, how);
                }
                None => start += chunk,
            }
        }
        if chunk > 1 {
            chunk = chunk.div_ceil(2);
        } else if steps.len() == before {
            return (steps, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sequences_reach_everything() {
        let universe = &u64::universes()[3];
        let steps = generate(&mut Rng::new(1), universe, false);
        let mut model = BTreeMap::new();
        let (mut most, mut verbs) = (0, BTreeSet::new());
        let mut least_after_most = usize::MAX;
        for step in &steps {
            let calls = match step {
                ModelStep::Call(call) => std::slice::from_ref(call),
                ModelStep::ChangeMany(calls) => calls,
                _ => continue,
            };
            for call in calls {
                let change = call.verb.apply(model.get(&call.key).copied());
                bind(&mut model, call.key, change.new);
                let name = call.to_string();
                verbs.insert((name[..4].to_string(), change.inserted(), change.removed()));
                if model.len() > most {
                    (most, least_after_most) = (model.len(), usize::MAX);
                }
                least_after_most = least_after_most.min(model.len());
            }
        }
        assert!(steps.iter().any(|step| matches!(step, ModelStep::ChangeMany(_))));
        assert!(most > 2700, "grows to {most} of 3000");
        assert!(least_after_most < 300, "shrinks to {least_after_most}");
        let names: BTreeSet<&str> = verbs.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names.len(), 7, "{names:?}"); // `remove` and `remove_if` have the same prefix
        assert!(verbs.contains(&("muta".into(), true, false)));
        assert!(verbs.contains(&("muta".into(), false, true)));
        assert!(
            steps.contains(&ModelStep::Reopen(Stop::Clean)) && steps.contains(&ModelStep::Sweep)
        );
    }

    /// Fails if a 3 comes after a 7: two steps are enough to show it.
    #[test]
    fn shortening_finds_the_minimal_sequence() {
        let fails = |steps: &[u32]| {
            let seven = steps.iter().position(|&step| step == 7)?;
            let three = steps[seven..].iter().position(|&step| step == 3)?;
            Some((seven + three, "3 after 7".to_string()))
        };
        let steps: Vec<u32> = (0..1000).map(|i| (i * 37) % 101).collect();
        let (core, what) = shorten(&steps, fails(&steps).unwrap(), fails);
        assert_eq!((core, what.as_str()), (vec![7, 3], "3 after 7"));
    }
}
