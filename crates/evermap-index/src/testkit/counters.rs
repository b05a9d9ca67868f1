//! What operations cost, in counts that no noisy machine can change.

use std::collections::BTreeMap;
use std::fmt;

use evermap_pm::medium::{Counted, Dram, Pages};

use super::keys::Numbered;
use super::persistence::{PoolInstance, PoolSubject, create, spread_keys};
use super::{Config, Failure, Instance};
use crate::{Index, Persistent};

/// A kind of operation, and what was true before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
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

/// Counts of one operation on the region. Ordinary memory, and the writing of records, are not in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Distinct 64-byte lines read.
    pub lines_read: u64,
    /// Distinct 64-byte lines written.
    pub lines_written: u64,
    /// Lines flushed; twice if flushed twice.
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
            "{lines_read} lines read, {lines_written} written, {lines_flushed} flushed, {fences} fences"
        )
    }
}

/// A promise: `percent` of the operations of this kind cost no more than `most`. The rest may be structural
/// changes.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Which operations.
    pub kind: Kind,
    /// What they may cost.
    pub most: Cost,
    /// How many of 100 must keep to it.
    pub percent: usize,
}

/// How often each cost was seen, by kind.
pub type Costs = BTreeMap<Kind, BTreeMap<Cost, usize>>;

/// Counts what 1000 operations of each kind cost, one kind after another, on an index of `keys` keys or a few more.
///
/// # Errors
/// An operation that did not do what it had to.
pub fn measure<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    config: &Config,
    keys: usize,
) -> Result<Costs, Failure> {
    let fail = |what| Failure::new::<K>("counters", "spread", config.seed, what);
    count_all::<K, P>(subject, config.seed, keys).map_err(fail)
}

/// Operations of each kind.
const EACH: usize = 1000;

fn count_all<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    seed: u64,
    keys: usize,
) -> Result<Costs, String> {
    let filled = keys.max(EACH);
    let text = |error: evermap_pm::Error| error.to_string();
    let memory = Dram::reserve(256 << 20, Pages::Base).map_err(text)?;
    let instance = create::<K, P, _>(subject, Counted::new(memory)).map_err(text)?;
    let keys: Vec<u64> = spread_keys::<K>(seed).take(filled + 2 * EACH).collect();
    let (before, others) = keys.split_at(filled);
    let (fresh, strangers) = others.split_at(EACH);
    let mut tags = 1..;
    let mut count = |kind, keys: &[u64]| -> Result<BTreeMap<Cost, usize>, String> {
        let mut costs = BTreeMap::new();
        for &key in keys {
            let tag = tags.next().expect("endless");
            let cost = count_one::<K, _>(&instance, kind, key, tag)
                .map_err(|what| format!("{kind:?} of key {key}: {what}"))?;
            *costs.entry(cost).or_default() += 1;
        }
        Ok(costs)
    };
    count(Kind::Insert, before)?;
    let plan = [
        (Kind::Hit, &before[..EACH]),
        (Kind::Miss, strangers),
        (Kind::Insert, fresh),
        (Kind::Update, &before[..EACH]),
        (Kind::Remove, &before[..EACH]),
    ];
    plan.into_iter().map(|(kind, keys)| Ok((kind, count(kind, keys)?))).collect()
}

/// Carries out one operation, and answers what it cost.
fn count_one<K: Numbered, I: Index<K> + Persistent<Counted<Dram>>>(
    instance: &PoolInstance<Counted<Dram>, I>,
    kind: Kind,
    number: u64,
    tag: u64,
) -> Result<Cost, String> {
    let text = |error: evermap_pm::Error| error.to_string();
    let owned = K::owned(number, instance.pool.seed());
    let (key, guard, index) = (K::lend(&owned), instance.pool.pin(), &instance.index);
    let puts = matches!(kind, Kind::Insert | Kind::Update);
    let word = if puts { Instance::<K>::word(instance, key, tag).map_err(text)? } else { 0 };
    let counted = instance.pool.medium();
    counted.reset();
    counted.begin_op();
    let done = match kind {
        Kind::Hit => index.get(key, &guard).map(|found| found.is_some()),
        Kind::Miss => index.get(key, &guard).map(|found| found.is_none()),
        Kind::Insert => index.insert(key, word, &guard).map(|change| change.inserted()),
        Kind::Update => index.update(key, word, &guard).map(|change| {
            change.old.inspect(|&old| Instance::<K>::retire(instance, old, &guard)).is_some()
        }),
        Kind::Remove => index.remove(key, &guard).map(|change| {
            change.old.inspect(|&old| Instance::<K>::retire(instance, old, &guard)).is_some()
        }),
    };
    counted.end_op();
    let counts = counted.counts();
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

/// Holds an index of `keys` keys to promises about what it costs.
///
/// # Errors
/// A promise that is not kept, and what was seen instead.
pub fn counters<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    config: &Config,
    keys: usize,
    promises: &[Promise],
) -> Result<(), Failure> {
    let costs = measure::<K, P>(subject, config, keys)?;
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
    if broken.is_empty() {
        return Ok(());
    }
    Err(Failure::new::<K>("counters", "spread", config.seed, broken.join("\n")))
}
