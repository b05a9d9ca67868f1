//! What the campaigns do in a cache, and what they ask of evictions.
//!
//! An eviction happens in the course of an operation on another key, and is known only when the
//! listener was called. So each one is recorded as something that the operation has done as well:
//! from its begin on the version that was evicted may be absent, and when it has ended it must be.
//! The listener does not say which version that was, but how long its value was; so no two versions
//! of a key have values of the same length.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use super::{History, Live, Workload, key_of, text};
use crate::common::{self, value_of};
use evermap::{Evermap, Map};
use evermap_index::testkit::tier;
use evermap_pm::sim::mutants::{Fate, fate_of_planted};
use evermap_pm::sim::oracle::MapOp;
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, Sim};

/// The size of the region and the limit of the caches. Their index takes half of the limit.
pub(super) const CAPACITY: u64 = 512 << 10;
const LIMIT: u64 = 128 << 10;
/// Their records would take several times the limit.
const KEYS: u64 = 64;
/// What values have at most. The sizes shift, so that extents become sparse.
const LENGTHS: [u64; 4] = [100, 400, 1500, 5000];
/// The same for two threads: so few that they meet, with values that are longer instead.
const SHARED_KEYS: u64 = 20;
const SHARED_LENGTHS: Range<u64> = 2_000..8_000;
/// The key of operations that change no key but those that they evict.
const NO_KEY: u64 = u64::MAX;
/// The number of times that some values are stored to fill a cache.
const FILLING: u64 = 40;

/// The keys that were evicted, and the lengths of their values, each with the thread that did it.
pub(super) type Evictions = Arc<Mutex<Vec<(ThreadId, Vec<u8>, usize)>>>;

/// Collects what is evicted from now on.
pub(super) fn listen(db: &Evermap<Sim>) -> Evictions {
    let evicted = Evictions::default();
    let seen = evicted.clone();
    db.on_evict(Some(Box::new(move |it| {
        let by = std::thread::current().id();
        seen.lock().unwrap().push((by, it.key.to_vec(), it.value_len));
    })));
    evicted
}

/// What eviction has done in the runs of a workload.
#[derive(Default)]
pub(super) struct Work {
    evicted: AtomicU64,
    /// Those of them by an operation that found no space.
    directly: AtomicU64,
    /// Records that were moved out of sparse extents.
    moved: AtomicU64,
}

impl Work {
    pub(super) fn add(&self, store: &Map<Sim>) {
        let stat = store.stat();
        self.evicted.fetch_add(stat.evictions, Relaxed);
        self.directly.fetch_add(stat.evicted_directly, Relaxed);
        self.moved.fetch_add(stat.moved_for_space, Relaxed);
    }

    /// Every way to make space was taken.
    pub(super) fn assert_done(&self) {
        let counts = [&self.evicted, &self.directly, &self.moved].map(|count| count.load(Relaxed));
        let [evicted, directly, moved] = counts;
        assert!(evicted > directly && directly > 0 && moved > 0, "{self}");
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work { evicted, directly, moved } = self;
        let (evicted, directly) = (evicted.load(Relaxed), directly.load(Relaxed));
        write!(f, "{evicted} evicted, {directly} of them directly, {} moved", moved.load(Relaxed))
    }
}

impl Workload {
    /// Returns a workload on a cache.
    pub(super) fn cache() -> Self {
        let ops = tier().choose(60, 120);
        Workload { limit: LIMIT, ops, ..Workload::new(KEYS, 0, common::index()) }
    }

    /// Returns one with two threads.
    pub(super) fn shared_cache() -> Self {
        Workload { keys: SHARED_KEYS, ops: 120, parallel: true, ..Workload::cache() }
    }
}

impl Live {
    /// Returns the history of a run that begins now. A cache is filled before, without crashes.
    pub(super) fn begun(&self, rng: &mut Rng) -> Result<History, String> {
        if self.limit == 0 {
            return Ok(History::new([]));
        }
        let filling = History::new([]);
        for _ in 0..FILLING {
            self.put_some(&filling, rng)?;
        }
        if self.store.stat().evictions == 0 {
            return Err("the cache is not full".into());
        }
        self.sim.checkpoint();
        let history = self.history()?;
        // As if the first operation had assigned them.
        let ids = filling.ids.into_inner().unwrap().into_keys().map(|cas| (cas, 0));
        history.ids.lock().unwrap().extend(ids);
        Ok(history)
    }

    /// Notes which version each value belongs to that is stored.
    pub(super) fn note_versions(&self, history: &History) -> Result<(), String> {
        if self.limit == 0 {
            return Ok(());
        }
        let mut versions = history.versions.lock().unwrap();
        for key in 0..self.keys {
            let len =
                self.store.cache().peek(&key_of(key), |item| item.value.len()).map_err(text)?;
            let version = self.version(key)?;
            versions.extend(len.zip(version).map(|(len, version)| ((key, len), version)));
        }
        Ok(())
    }

    /// Returns the length of a value.
    fn length(&self, rng: &mut Rng) -> usize {
        let lengths = match self.parallel {
            true => SHARED_LENGTHS,
            false => 0..LENGTHS[rng.below(LENGTHS.len() as u64) as usize],
        };
        (lengths.start + rng.below(lengths.end - lengths.start)) as usize
    }

    /// Returns a value for this version of a key that no other version of it is as long as.
    pub(super) fn value_in_cache(
        &self,
        history: &History,
        key: u64,
        version: u64,
        rng: &mut Rng,
    ) -> Vec<u8> {
        self.value_from(history, key, version, self.length(rng))
    }

    /// Returns such a value of `len` bytes, or as few more as possible.
    fn value_from(&self, history: &History, key: u64, version: u64, len: usize) -> Vec<u8> {
        let mut versions = history.versions.lock().unwrap();
        let mut value = value_of(&key_of(key), version, len);
        while versions.contains_key(&(key, value.len())) {
            value = value_of(&key_of(key), version, value.len() + 1);
        }
        versions.insert((key, value.len()), version);
        value
    }

    /// Does what is special about a cache.
    pub(super) fn step_in_cache(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        match rng.below(10) {
            0..=3 => self.evict(history),
            4 => self.shift_sizes(history, rng),
            5 | 6 => (0..8).try_for_each(|_| {
                self.store.get(&key_of(rng.below(self.keys))).map(drop).map_err(text)
            }),
            _ => self.put_some(history, rng),
        }
    }

    fn evict(&self, history: &History) -> Result<(), String> {
        self.evicting(history, || self.store.db().evict_if_due().map(drop).map_err(text))
    }

    /// Leaves extents sparse whose blocks are in demand no more.
    fn shift_sizes(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let first = rng.below(self.keys);
        let keys = || (first..first + 16).map(|key| key % self.keys);
        keys().try_for_each(|key| self.put(history, key, rng.draw(), 300))?;
        for key in keys().filter(|key| key % 4 != first % 4) {
            let before = self.version(key)?;
            let number = history.map.begin(&self.sim, key, MapOp::Remove);
            let removed = self.store.delete(&key_of(key));
            self.answered(history, number, before, removed.map(|_| None))?;
        }
        if rng.one_in(2) {
            self.evict(history)?;
        }
        (0..2).try_for_each(|_| self.put(history, rng.below(self.keys), rng.draw(), 5_000))
    }

    /// Two threads change, read and evict.
    pub(super) fn steps_in_parallel(
        &self,
        history: &History,
        rng: &mut Rng,
        ops: u64,
    ) -> Result<(), String> {
        let seeds = [rng.draw(), rng.draw()];
        let bodies = seeds.map(|seed| -> Box<dyn FnOnce() -> Result<(), String> + Send + '_> {
            let mut rng = Rng::new(seed);
            Box::new(move || (0..ops).try_for_each(|_| self.use_shared(history, &mut rng)))
        });
        self.sim.in_parallel(bodies.into()).into_iter().collect()
    }

    /// Changes or reads a key that may be evicted at any time.
    fn use_shared(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let (key, version) = (rng.below(self.keys), rng.draw());
        let name = &key_of(key)[..];
        let choice = rng.below(12);
        if choice > 8 {
            return self.evict(history);
        }
        let value = self.value_in_cache(history, key, version, rng);
        let op = match choice {
            0..=4 => MapOp::Upsert(version),
            5 => MapOp::Remove,
            _ => MapOp::Get,
        };
        let number = history.map.begin(&self.sim, key, op);
        let done = match choice {
            0..=4 => self.store.set(name).put(&value).map(Some),
            5 => self.store.delete(name).map(|_| None),
            _ => self.store.get(name).map(|_| None),
        };
        self.attribute(history, number)?;
        match done {
            Ok(stored) => {
                history.map.end_unseen(&self.sim, number);
                self.use_id(history, number, stored)
            }
            Err(error) if error.is_no_space() => {
                history.map.fail(&self.sim, number);
                Ok(())
            }
            Err(error) => Err(text(error)),
        }
    }

    /// Stores some values of similar lengths.
    pub(super) fn put_some(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let len = self.length(rng);
        (0..4).try_for_each(|_| self.put(history, rng.below(self.keys), rng.draw(), len))?;
        if rng.one_in(2) { self.evict(history) } else { Ok(()) }
    }

    fn put(&self, history: &History, key: u64, version: u64, len: usize) -> Result<(), String> {
        let value = self.value_from(history, key, version, len);
        let before = self.version(key)?;
        let number = history.map.begin(&self.sim, key, MapOp::Upsert(version));
        let stored = self.store.set(&key_of(key)).put(&value);
        self.answered(history, number, before, stored.map(Some))
    }

    /// Makes a call that changes no key but those that it evicts.
    pub(super) fn evicting(
        &self,
        history: &History,
        call: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        if self.limit == 0 {
            return call();
        }
        let number = history.map.begin(&self.sim, NO_KEY, MapOp::Get);
        call()?;
        self.answered(history, number, None, Ok(None))
    }

    /// Records what was evicted in the course of operation `number`, which has not ended. Returns
    /// the keys.
    pub(super) fn attribute(&self, history: &History, number: u64) -> Result<HashSet<u64>, String> {
        let versions = history.versions.lock().unwrap();
        let (mut keys, own) = (HashSet::new(), std::thread::current().id());
        for (_, name, len) in self.evicted.lock().unwrap().extract_if(.., |it| it.0 == own) {
            let key = (0..self.keys).find(|&key| key_of(key) == name);
            let found = key.and_then(|key| Some((key, *versions.get(&(key, len))?)));
            let (key, version) =
                found.ok_or_else(|| format!("{name:x?} was evicted, {len} bytes long"))?;
            history.map.also(number, key, MapOp::RemoveIf(version), Some(version));
            keys.insert(key);
        }
        Ok(keys)
    }

    /// Stores values until records have to go for them.
    pub(super) fn goes_on(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let evictions = || self.store.stat().evictions;
        let (before, most) = (evictions(), 2 * self.keys);
        for number in 0..most {
            let (key, version) = (number % self.keys, rng.draw());
            self.put(history, key, version, 8_000)?;
            if self.version(key)? != Some(version) {
                return Err("there is no space although records can be evicted".into());
            }
            if evictions() > before {
                return Ok(());
            }
        }
        Err(format!("{most} values of 8,000 bytes, and nothing was evicted"))
    }

    /// What is stored agrees with what was returned, and with what the listener was told.
    pub(super) fn agrees(&self, history: &History) -> Result<(), String> {
        self.all_keys().try_for_each(|key| history.map.check_now(&key, self.version(key)?))
    }

    pub(super) fn limit_holds(&self) -> Result<(), String> {
        let used = self.store.stat().memory_used;
        match self.limit {
            limit if limit > 0 && used > limit => Err(format!("{used} of {limit} bytes are used")),
            _ => Ok(()),
        }
    }
}

/// The campaign on this workload notices a planted mistake.
pub(super) fn assert_found(
    workload: &Workload,
    config: &sim::Config,
    mistake: &'static str,
    seeds: Range<u64>,
) {
    let config = sim::Config { capacity: CAPACITY, ..*config };
    let fate = fate_of_planted(workload, &config, mistake, seeds);
    println!("{mistake}: {fate:?}");
    assert!(matches!(fate, Fate::Killed(_)), "{mistake} {fate:?}");
}
