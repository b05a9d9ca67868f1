//! What insertions cost in orders that an index itself produces, compared to a random order.
//!
//! A program copies an index by inserting what a walk shows, so the order of walks must suit the
//! same kind of index, of any size, with the same seed. Costs are counts of accesses, which do not
//! depend on the machine.

use std::collections::HashSet;
use std::sync::Arc;

use evermap_pm::Error;
use evermap_pm::medium::{Counter, Counts};
use evermap_pm::sim::Sim;
use evermap_pm::sim::rng::Rng;

use super::erased::AnyPoolSubject;
use super::keys::Plain;
use super::persistence::{PoolInstance, PoolSubject, create};
use super::{Config, Failure};
use crate::Visitor;

/// Whether an index is filled in the order in which it stores its records, too. No walk shows that,
/// but those of earlier versions did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderOfPlaces {
    /// It is.
    Include,
    /// It is not: the index refuses such insertions.
    Leave,
}

/// What insertions may cost at most, as a multiple of what they cost in a random order.
const FACTOR: f64 = 2.0;
/// The same for the bytes of the index: it may have begun to grow to twice its size.
const BYTES_FACTOR: f64 = 2.5;
const BYTES: &str = "bytes";
/// The capacity of the pools: for each key and in addition, bytes.
const CAPACITY: [u64; 2] = [600, 64 << 20];

/// Inserts `keys` keys in the orders of walks, of hashes, and of places, and compares the costs to
/// those of the same insertions in a random order. Keys are their own hashes.
///
/// # Errors
/// The insertions or lookups that cost more than twice as much, or failed.
pub fn order<P: PoolSubject<Plain>>(
    subject: &P,
    config: &Config,
    keys: usize,
    places: OrderOfPlaces,
) -> Result<(), Failure> {
    let found = Orders { subject, keys, places }.compare(config.seed);
    let found = found.map(|orders| {
        orders.into_iter().filter_map(|order| order.problem()).collect::<Vec<String>>()
    });
    match found {
        Ok(problems) if problems.is_empty() => Ok(()),
        Ok(problems) => Err(problems.join("\n")),
        Err(error) => Err(error),
    }
    .map_err(|what| Failure::new::<Plain>("order", "uniform hashes", config.seed, what))
}

/// Inserts `keys` keys whose hashes begin with the same `common` bits, so that no directory in
/// proportion to the index separates them, and checks that the last insertions cost about as much
/// as lookups of absent keys: that they follow the chain, but do not try again each time what was
/// refused before. Keys are their own hashes.
///
/// # Errors
/// Insertions that cost more, or failed.
pub fn crowd<P: PoolSubject<Plain>>(
    subject: &P,
    config: &Config,
    keys: usize,
    common: u32,
) -> Result<(), Failure> {
    (Orders { subject, keys, places: OrderOfPlaces::Leave })
        .insert_crowd(config.seed, common)
        .map_err(|what| Failure::new::<Plain>("crowd", "equal prefixes", config.seed, what))
}

/// Returns a table of the costs that [`order`] compares, as multiples of those of a random order.
pub fn report<P: PoolSubject<Plain>>(
    subject: &P,
    seed: u64,
    keys: usize,
    places: OrderOfPlaces,
) -> String {
    match (Orders { subject, keys, places }).compare(seed) {
        Ok(orders) => orders.iter().map(Compared::describe).collect::<Vec<_>>().join("\n"),
        Err(error) => error,
    }
}

/// The cost of one order, compared to that of a random order of the same keys.
struct Compared {
    name: &'static str,
    cost: Result<Cost, String>,
    random: Cost,
}

impl Compared {
    fn factors(&self) -> Result<[(&'static str, f64); 4], &String> {
        let (cost, random) = (self.cost.as_ref()?, &self.random);
        let factor = |cost: u64, random: u64| cost as f64 / random.max(1) as f64;
        Ok([
            ("words", factor(cost.words, random.words)),
            ("flushes and fences", factor(cost.persists, random.persists)),
            ("words of lookups", factor(cost.lookups, random.lookups)),
            (BYTES, factor(cost.bytes, random.bytes)),
        ])
    }

    /// Describes all factors.
    fn describe(&self) -> String {
        match self.factors() {
            Ok(factors) => {
                let parts = factors.map(|(what, factor)| format!("{factor:.2} {what}"));
                format!("{:40} {}", self.name, parts.join(", "))
            }
            Err(error) => format!("{:40} {error}", self.name),
        }
    }

    /// Describes the factors if one of them is too large.
    fn problem(&self) -> Option<String> {
        let is_fine = match self.factors() {
            Ok(factors) => factors
                .iter()
                .all(|&(what, factor)| factor <= if what == BYTES { BYTES_FACTOR } else { FACTOR }),
            Err(_) => false,
        };
        (!is_fine).then(|| self.describe())
    }
}

/// What insertions of some keys into an index cost, and lookups of them afterwards.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Words that the insertions loaded, stored, or compared and swapped.
    words: u64,
    /// Lines that they flushed, and fences.
    persists: u64,
    /// Words that the lookups loaded.
    lookups: u64,
    /// Bytes of the index.
    bytes: u64,
}

/// An index with the counter of its medium.
struct Counted {
    instance: PoolInstance<Plain>,
    counter: Arc<Counter>,
}

impl Counted {
    fn insert(&self, keys: &[u64]) -> Result<Counts, String> {
        let PoolInstance { pool, index } = &self.instance;
        self.counter.reset();
        for (count, &key) in keys.iter().enumerate() {
            let inserted = index.insert(key, key, &pool.pin());
            let inserted = inserted.map_err(|error| format!("after {count} keys: {error}"))?;
            if !inserted.inserted() {
                return Err(format!("key {key} was there already"));
            }
        }
        Ok(self.counter.counts())
    }

    /// Inserts `keys`, and looks them up.
    fn cost(&self, keys: &[u64]) -> Result<Cost, String> {
        let PoolInstance { pool, index } = &self.instance;
        let counts = self.insert(keys)?;
        self.counter.reset();
        for &key in keys {
            let found = index.get(key, &pool.pin()).map_err(|error| error.to_string())?;
            if found != Some(key) {
                return Err(format!("key {key} is not found"));
            }
        }
        let lookups = self.counter.counts().loads;
        let stats = index.stats(&pool.pin()).map_err(|error| error.to_string())?;
        Ok(Cost {
            words: counts.loads + counts.stores + counts.transient_stores + counts.cas,
            persists: counts.lines_flushed + counts.fences,
            lookups,
            bytes: stats.pm_bytes,
        })
    }

    fn remove(&self, keys: &[u64]) -> Result<(), String> {
        let PoolInstance { pool, index } = &self.instance;
        keys.iter().try_for_each(|&key| {
            let removed = index.remove(key, &pool.pin()).map_err(|error| error.to_string())?;
            if removed.removed() { Ok(()) } else { Err(format!("key {key} is not there")) }
        })
    }

    /// Returns the keys in the order of a walk over everything.
    fn shown(&self) -> Result<Vec<u64>, String> {
        let PoolInstance { pool, index } = &self.instance;
        let mut keys = Vec::new();
        let shown = index.for_each(&pool.pin(), &mut |key, _| {
            keys.push(key);
            true
        });
        shown.map(|()| keys).map_err(|error| error.to_string())
    }

    /// Returns the keys in the order in which the index stores them, as far as a visit shows it:
    /// that of walks in earlier versions, and so of what was copied from them.
    fn stored(&self) -> Result<Vec<u64>, String> {
        struct Words(Vec<u64>);
        impl Visitor for Words {
            fn block(&mut self, _offset: u64) {}
            fn word(&mut self, word: u64) {
                self.0.push(word);
            }
        }
        let mut words = Words(Vec::new());
        let visited = self.instance.index.visit(&mut words);
        // Each word is its key.
        visited.map(|()| words.0).map_err(|error| error.to_string())
    }

    /// Returns the keys in the order of a walk by units.
    fn scanned(&self) -> Result<Vec<u64>, String> {
        let PoolInstance { pool, index } = &self.instance;
        let (mut keys, mut from) = (Vec::new(), Some(0));
        while let Some(here) = from {
            let (shown, next) = index.scan(here, &pool.pin(), &mut |key, _| keys.push(key));
            shown.map_err(|error| error.to_string())?;
            from = next;
        }
        Ok(keys)
    }
}

/// A subject without its type, and what to do with it.
struct Orders<'s> {
    subject: &'s dyn AnyPoolSubject<Plain>,
    keys: usize,
    places: OrderOfPlaces,
}

impl Orders<'_> {
    fn fresh(&self) -> Result<Counted, String> {
        let text = |error: Error| error.to_string();
        let [each, more] = CAPACITY;
        let medium = Sim::in_memory(self.keys as u64 * each + more).map_err(text)?;
        let counter = Arc::new(Counter::default());
        let instance = create(self.subject, medium.observed_by(counter.clone())).map_err(text)?;
        Ok(Counted { instance, counter })
    }

    fn insert_crowd(&self, seed: u64, common: u32) -> Result<(), String> {
        /// The number of insertions and lookups that are compared.
        const LAST: usize = 100;
        /// What an insertion may cost in addition to four lookups, words.
        const MORE: u64 = 200;
        let mut random = Rng::new(seed);
        let (prefix, within) = (random.draw(), u64::MAX >> common);
        let mut draw = || prefix & !within | random.draw() & within;
        let distinct: HashSet<u64> =
            std::iter::repeat_with(&mut draw).take(self.keys + LAST).collect();
        let keys: Vec<u64> = distinct.into_iter().collect();
        let (absent, keys) = keys.split_at(LAST);
        let (first, last) = keys.split_at(keys.len() - LAST);
        let index = self.fresh()?;
        index.insert(first)?;
        let insertions = index.insert(last)?.loads / LAST as u64;
        index.counter.reset();
        for &key in absent {
            let PoolInstance { pool, index } = &index.instance;
            index.get(key, &pool.pin()).map_err(|error| error.to_string())?;
        }
        let misses = index.counter.counts().loads / LAST as u64;
        let limit = 4 * misses + MORE;
        if insertions <= limit {
            return Ok(());
        }
        Err(format!("insertions load {insertions} words, lookups of absent keys {misses}"))
    }

    fn compare(&self, seed: u64) -> Result<Vec<Compared>, String> {
        let mut random = Rng::new(seed);
        let mut distinct = HashSet::new();
        let mut draw = || loop {
            let key = random.draw();
            if distinct.insert(key) {
                return key;
            }
        };
        let keys: Vec<u64> = (0..self.keys).map(|_| draw()).collect();
        let others: Vec<u64> = (0..self.keys).map(|_| draw()).collect();
        let source = self.fresh()?;
        source.insert(&keys)?;
        let (at_once, by_units) = (source.shown()?, source.scanned()?);
        let stored = source.stored()?;
        let half = self.keys / 2;
        let mut orders = Vec::new();
        let mut compare = |name, cost, &random: &Cost| orders.push(Compared { name, cost, random });

        let random = self.fresh()?.cost(&keys)?;
        compare("a walk over everything", self.fresh()?.cost(&at_once), &random);
        compare("a walk by units", self.fresh()?.cost(&by_units), &random);
        if self.places == OrderOfPlaces::Include {
            compare("the order of places", self.fresh()?.cost(&stored), &random);
        }
        let mut ascending = keys.clone();
        ascending.sort_unstable();
        compare("ascending hashes", self.fresh()?.cost(&ascending), &random);
        let random = self.fresh()?.cost(&keys[..half])?;
        compare("the first half of a walk", self.fresh()?.cost(&by_units[..half]), &random);

        let [into, also_into] = [self.fresh()?, self.fresh()?];
        into.insert(&others)?;
        also_into.insert(&others)?;
        let random = into.cost(&keys)?;
        compare("into an index with other keys", also_into.cost(&by_units), &random);

        let again = self.fresh()?;
        again.insert(&keys)?;
        again.remove(&by_units)?;
        let random = again.cost(&keys)?;
        source.remove(&by_units)?;
        compare("into the index that was emptied", source.cost(&by_units), &random);
        Ok(orders)
    }
}
