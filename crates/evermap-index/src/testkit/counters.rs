//! The costs of operations, as counts that do not depend on the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evermap_pm::Error;
use evermap_pm::medium::Counter;
use evermap_pm::sim::Sim;

use super::erased::AnyPoolSubject;
use super::keys::Numbered;
use super::persistence::{PoolInstance, PoolSubject, create, new_word, retire_word, spread_keys};
use super::{Config, Failure};

/// A kind of operation, with the state of its key before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// A get of a key that is present.
    Hit,
    /// A get of a key that is absent.
    Miss,
    /// An insert of an absent key.
    Insert,
    /// An update of a present key.
    Update,
    /// A remove of a present key.
    Remove,
}

/// The counts of one operation on the region, without ordinary memory and without writing records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Distinct 64-byte lines read.
    pub lines_read: u64,
    /// Distinct 64-byte lines written.
    pub lines_written: u64,
    /// Lines flushed, counted each time.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
}

impl Cost {
    fn within(&self, most: &Cost) -> bool {
        self.lines_read <= most.lines_read
            && self.lines_written <= most.lines_written
            && self.lines_flushed <= most.lines_flushed
            && self.fences <= most.fences
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { lines_read, lines_written, lines_flushed, fences } = self;
        write!(
            f,
            "{lines_read} lines read, {lines_written} written, {lines_flushed} flushed, \
             {fences} fences"
        )
    }
}

/// A promise that `percent` of the operations of a kind cost at most `most`. The others may be
/// structural changes.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The kind of operation.
    pub kind: OperationKind,
    /// The largest cost.
    pub most: Cost,
    /// The percentage of operations that must not exceed it.
    pub percent: usize,
}

/// The number of operations with each cost, by kind.
pub type Costs = BTreeMap<OperationKind, BTreeMap<Cost, usize>>;

/// Counts the costs of 1000 operations of each kind, one kind after another, on an index of `keys`
/// keys or slightly more.
///
/// # Errors
/// An operation that did not have its effect.
pub fn measure<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    config: &Config,
    keys: usize,
) -> Result<Costs, Failure> {
    count_all::<K>(subject, config.seed, keys).map_err(|what| fail::<K>(config, &what))
}

fn fail<K: Numbered>(config: &Config, what: &str) -> Failure {
    Failure::new::<K>("counters", "spread", config.seed, what)
}

/// The number of operations of each kind.
const EACH: usize = 1000;

fn count_all<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    seed: u64,
    keys: usize,
) -> Result<Costs, String> {
    let filled = keys.max(EACH);
    let text = |error: Error| error.to_string();
    let counter = Arc::new(Counter::default());
    let medium = Sim::in_memory(256 << 20).map_err(text)?;
    let instance = create(subject, medium.observed_by(counter.clone())).map_err(text)?;
    let keys: Vec<u64> = spread_keys::<K>(seed).take(filled + 2 * EACH).collect();
    let (before, others) = keys.split_at(filled);
    let (fresh, absent) = others.split_at(EACH);
    let mut tags = 1..;
    let mut count = |kind, keys: &[u64]| -> Result<BTreeMap<Cost, usize>, String> {
        let mut costs = BTreeMap::new();
        for &key in keys {
            let tag = tags.next().expect("endless");
            let cost = count_one(&instance, &counter, kind, key, tag)
                .map_err(|what| format!("{kind:?} of key {key}: {what}"))?;
            *costs.entry(cost).or_default() += 1;
        }
        Ok(costs)
    };
    count(OperationKind::Insert, before)?;
    let plan = [
        (OperationKind::Hit, &before[..EACH]),
        (OperationKind::Miss, absent),
        (OperationKind::Insert, fresh),
        (OperationKind::Update, &before[..EACH]),
        (OperationKind::Remove, &before[..EACH]),
    ];
    plan.into_iter().map(|(kind, keys)| Ok((kind, count(kind, keys)?))).collect()
}

/// Executes one operation, and returns its cost.
fn count_one<K: Numbered>(
    instance: &PoolInstance<K>,
    counter: &Counter,
    kind: OperationKind,
    number: u64,
    tag: u64,
) -> Result<Cost, String> {
    let text = |error: Error| error.to_string();
    let PoolInstance { pool, index } = instance;
    let owned = K::owned(number, pool.seed());
    let (key, guard) = (K::lend(&owned), pool.pin());
    let puts = matches!(kind, OperationKind::Insert | OperationKind::Update);
    let word = if puts { new_word::<K>(pool, key, tag).map_err(text)? } else { 0 };
    counter.reset();
    counter.begin_op();
    let done = match kind {
        OperationKind::Hit => index.get(key, &guard).map(|found| found.is_some()),
        OperationKind::Miss => index.get(key, &guard).map(|found| found.is_none()),
        OperationKind::Insert => index.insert(key, word, &guard).map(|change| change.inserted()),
        OperationKind::Update => index
            .update(key, word, &guard)
            .map(|change| change.old.inspect(|&old| retire_word::<K>(pool, old, &guard)).is_some()),
        OperationKind::Remove => index
            .remove(key, &guard)
            .map(|change| change.old.inspect(|&old| retire_word::<K>(pool, old, &guard)).is_some()),
    };
    counter.end_op();
    let counts = counter.counts();
    match done {
        Ok(true) => Ok(Cost {
            lines_read: counts.lines_read,
            lines_written: counts.lines_written,
            lines_flushed: counts.lines_flushed,
            fences: counts.fences,
        }),
        Ok(false) => Err("had no effect".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that an index of `keys` keys keeps its promises about costs.
///
/// # Errors
/// A promise that is not kept, and the most frequent costs.
pub fn counters<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    config: &Config,
    keys: usize,
    promises: &[Promise],
) -> Result<(), Failure> {
    let costs = measure::<K, P>(subject, config, keys)?;
    compare(costs, promises).map_err(|what| fail::<K>(config, &what))
}

/// Describes the promises that are not kept.
fn compare(costs: Costs, promises: &[Promise]) -> Result<(), String> {
    let broken = promises.iter().filter_map(|promise| {
        let seen = &costs[&promise.kind];
        let kept: usize = seen
            .iter()
            .filter(|(cost, _)| cost.within(&promise.most))
            .map(|(_, times)| times)
            .sum();
        if kept * 100 >= promise.percent * EACH {
            return None;
        }
        let mut often: Vec<_> = seen.iter().collect();
        often.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let often = often.iter().take(5);
        let lines: Vec<_> =
            often.map(|(cost, times)| format!("\n    {times} times {cost}")).collect();
        Some(format!(
            "{:?}: {kept} of {EACH} within {}, promised {} %; most often{}",
            promise.kind,
            promise.most,
            promise.percent,
            lines.concat()
        ))
    });
    let broken: Vec<String> = broken.collect();
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}
