//! Crash campaigns on the store: the workloads, and what is asked of every image. The tests are in
//! [`power_loss`] and [`process_death`].

mod evict;
mod power_loss;
mod process_death;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Mutex;

use crate::common::{self, value_of};
use crate::ordered;
use crate::persistent_order;
use evermap::cache::{CacheEdit, Marks, NewRecord};
use evermap::{
    Applied, Batch, Clock, DamageMark, Edit, Error, IndexKind, Item, Map, MapOptions, Meta,
    Options, Order, Outcome, counter,
};
use evermap_index::testkit::tier;
use evermap_pm::Medium;
use evermap_pm::region::{Identity, Region};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, Failure, ImageConfig, Model, Mutation, Sim, Subject};

/// A workload on a store.
struct Workload {
    keys: u64,
    /// The number of named maps that are created and dropped, each with some keys.
    maps: u64,
    ops: u64,
    index: IndexKind,
    order: Order,
    /// The memory limit of a cache, in bytes; 0 if it is none.
    limit: u64,
    /// Whether two threads use it.
    parallel: bool,
    /// What eviction has done in runs.
    work: evict::Work,
}

impl Workload {
    fn new(keys: u64, maps: u64, index: IndexKind) -> Self {
        Workload {
            keys,
            maps,
            ops: 120,
            index,
            order: Order::Volatile,
            limit: 0,
            parallel: false,
            work: evict::Work::default(),
        }
    }
}

/// The operations, and every CAS id that was assigned, by operation.
struct History {
    map: MapHistory<u64>,
    ids: Mutex<HashMap<u64, u64>>,
    batches: Mutex<Vec<BatchOps>>,
    /// In a cache: the version that a key was bound to with a value of this length.
    versions: Mutex<HashMap<(u64, usize), u64>>,
}

impl History {
    /// Creates the history of a store that holds these keys and versions when it begins.
    fn new(before: impl IntoIterator<Item = (u64, u64)>) -> Self {
        History {
            map: MapHistory::new(before),
            ids: Mutex::default(),
            batches: Mutex::default(),
            versions: Mutex::default(),
        }
    }
}

/// The operations of a batch.
struct BatchOps {
    /// Its first operation; the others follow.
    number: u64,
    version: u64,
    puts: Vec<u64>,
    removals: Vec<u64>,
}

struct Live {
    store: Map<Sim>,
    sim: Sim,
    keys: u64,
    maps: u64,
    clock: Clock,
    /// CAS ids that were assigned before the crash.
    ids: HashSet<u64>,
    limit: u64,
    parallel: bool,
    /// What was evicted and is not in the history yet.
    evicted: evict::Evictions,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Accounts between which batches transfer, and the value that pieces are appended to.
const ACCOUNTS: u64 = 4;
const LOG: &[u8] = b"log";
/// The maps that have them if there are named maps. None of them is ever flushed.
const BANKS: [&str; 2] = ["bank 0", "bank 1"];

fn account(number: u64) -> Vec<u8> {
    format!("account {number}").into_bytes()
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

/// From here on, keys belong to named maps, this number to each.
const NAMED: u64 = 1000;
const KEYS_OF_A_MAP: u64 = 3;

/// Returns the name of the map of a key, or `None` for the default map.
fn map_name(key: u64) -> Option<String> {
    (key >= NAMED).then(|| name_of((key - NAMED) / KEYS_OF_A_MAP))
}

fn name_of(map: u64) -> String {
    format!("map {map}")
}

fn keys_of(map: u64) -> std::ops::Range<u64> {
    let first = NAMED + map * KEYS_OF_A_MAP;
    first..first + KEYS_OF_A_MAP
}

fn is_no_map(error: &Error) -> bool {
    matches!(error, Error::NoSuchMap { .. })
}

impl Live {
    fn open(sim: &Sim, workload: &Workload) -> Result<Live, String> {
        let clock = Clock::manual(common::at(1000));
        let options = Options::small(sim.capacity())
            .index(workload.index)
            .seed(7)
            .clock(clock.clone())
            .memory_limit(workload.limit)
            .evict(workload.limit > 0)
            .ordered(workload.order);
        let store =
            common::open_medium(sim.clone(), Identity::default(), &options).map_err(text)?;
        let &Workload { keys, maps, limit, parallel, .. } = workload;
        let (sim, ids, evicted) = (sim.clone(), HashSet::new(), evict::listen(store.db()));
        Ok(Live { store, sim, keys, maps, clock, ids, limit, parallel, evicted })
    }

    /// Returns all keys, including those of named maps.
    fn all_keys(&self) -> impl Iterator<Item = u64> {
        (0..self.keys).chain((0..self.maps).flat_map(keys_of))
    }

    /// Returns the map of a key, or `None` if it does not exist.
    fn map_of(&self, key: u64) -> Result<Option<Map<Sim>>, String> {
        let Some(name) = map_name(key) else { return Ok(Some(self.store.clone())) };
        match self.store.db().map(&name, MapOptions::new().create(false)) {
            Err(error) if is_no_map(&error) => Ok(None),
            opened => opened.map(Some).map_err(text),
        }
    }

    /// Returns the version that is stored under a key, changed by its marks, so that a version with
    /// other marks is another one. Anything but a complete version is an error.
    fn version(&self, key: u64) -> Result<Option<u64>, String> {
        let name = key_of(key);
        let Some(map) = self.map_of(key)? else { return Ok(None) };
        // Without counting as an access.
        let found = map.cache().peek(&name, |item| (item.value.to_vec(), item.meta().marks()));
        let Some((value, marks)) = found.map_err(text)? else { return Ok(None) };
        if !common::is_value_of(&name, &value) {
            return Err(format!("key {key} has a value that was never stored: {value:x?}"));
        }
        let version = value[name.len()..].first_chunk().expect("checked");
        Ok(Some(u64::from_le_bytes(*version) ^ u64::from(marks.bits())))
    }

    /// Returns a history that begins with what is stored.
    fn history(&self) -> Result<History, String> {
        let mut before = Vec::new();
        for key in self.all_keys() {
            before.extend(self.version(key)?.map(|version| (key, version)));
        }
        let history = History::new(before);
        self.note_versions(&history)?;
        Ok(history)
    }

    fn use_id(&self, history: &History, number: u64, stored: Option<u64>) -> Result<(), String> {
        let Some(cas) = stored else { return Ok(()) };
        let again = history.ids.lock().unwrap().insert(cas, number);
        if again.is_some() || self.ids.contains(&cas) {
            return Err(format!("CAS id {cas} was assigned twice"));
        }
        Ok(())
    }

    fn step(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        if self.maps > 0 && rng.below(3) == 0 {
            return self.step_in_map(history, rng);
        }
        if self.limit > 0 && rng.below(3) == 0 {
            return self.step_in_cache(history, rng);
        }
        let (key, version) = (rng.below(self.keys), rng.draw());
        let before = self.version(key)?;
        let name = &key_of(key)[..];
        let value = self.value(history, key, version, rng);
        let meta = Meta::default();
        let store = &self.store;
        let cas = store.cache().peek(name, |item| item.cas).map_err(text)?.unwrap_or(1);
        let choice = rng.below(35);
        let op = match choice {
            0..=7 | 14 | 15 => MapOp::Upsert(version),
            16 => return self.mark(history, rng),
            8 | 9 => MapOp::Insert(version),
            10 => MapOp::Update(version),
            11 => MapOp::CompareExchange { expected: before.unwrap_or(0), new: version },
            12 | 13 | 17..=19 => MapOp::Remove,
            // It would be empty for long.
            20 | 21 if self.limit > 0 && !rng.one_in(4) => return self.put_some(history, rng),
            20 => return self.flush(history, None),
            21 => return self.flush(history, Some(1000)),
            22 => {
                store.db().purge().map_err(text)?;
                return Ok(());
            }
            23 if version.is_multiple_of(2) => {
                return match store.arrange() {
                    Err(error) if !error.is_no_space() => Err(text(error)),
                    _ => Ok(()),
                };
            }
            23 => {
                store.db().compact().map_err(text)?;
                return Ok(());
            }
            24..=28 => return self.batch(history, rng, version),
            // The accounts and the log may not be evicted.
            29..=31 if self.limit > 0 => return self.put_some(history, rng),
            29 | 30 => return self.transfer(rng),
            31 => return self.append(),
            32 => return self.expire(history, rng),
            34 if self.limit == 0 => return self.put_many(history, rng),
            _ if version.is_multiple_of(2) => return ordered::scan_agrees(store),
            _ => MapOp::Get,
        };
        let number = history.map.begin(&self.sim, key, op);
        let outcome = match choice {
            0..=4 => store.set(name).meta(meta).put(&value).map(Some),
            5 | 6 => self.put_by_pieces(name, &value, choice == 6).map(Some),
            7 => store.set(name).meta(meta).insert(&value).map(|_| None),
            8 | 9 => store.set(name).meta(meta).try_insert(&value).map(Outcome::stored),
            10 => store.set(name).meta(meta).replace(&value).map(Outcome::stored),
            11 => store.set(name).meta(meta).compare_exchange(cas, &value).map(Outcome::stored),
            12 => store.remove_if(name, cas).map(Outcome::stored),
            13 => store.remove(name).map(|_| None),
            // Without the marks that it may have: it is to be this version.
            14 | 15 => {
                store.cache().modify(name, |_| CacheEdit::MarkedValue(value.clone(), Marks::NONE))
            }
            17 => store.modify(name, |_| Edit::Remove),
            18 => store.delete(name).map(|_| None),
            // Expired by its new expiry, which counts as removed.
            19 => store.touch(name, common::at(999)).map(|_| None),
            _ => store.get(name).map(|_| None),
        };
        self.answered(history, number, before, outcome)
    }

    /// Returns a value for this version of a key.
    fn value(&self, history: &History, key: u64, version: u64, rng: &mut Rng) -> Vec<u8> {
        if self.limit > 0 {
            return self.value_in_cache(history, key, version, rng);
        }
        let long = if rng.below(12) == 0 { 5000 } else { 120 };
        value_of(&key_of(key), version, rng.below(long) as usize)
    }

    /// Changes the marks of a key in place.
    fn mark(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let (key, marks) = (rng.below(self.keys), Marks::from_bits_truncate(rng.draw() as u8));
        let name = &key_of(key)[..];
        let Some(before) = self.version(key)? else { return Ok(()) };
        let read = |item: Item<'_>| (item.cas, item.meta().marks(), item.value.len());
        let (cas, old, len) =
            self.store.get_with(name, read).map_err(text)?.ok_or("it was there")?;
        let marked = before ^ u64::from(old.bits() ^ marks.bits());
        let number = history.map.begin(&self.sim, key, MapOp::Update(marked));
        let edit = CacheEdit::Mark { expiry: evermap::Expiry::NEVER, marks };
        match self.store.cache().modify(name, |_| edit.clone()) {
            Ok(Some(same)) if same == cas => {
                history.versions.lock().unwrap().insert((key, len), marked);
                self.answered(history, number, Some(before), Ok(None))
            }
            Ok(other) => Err(format!("a mark has changed the id from {cas} to {other:?}")),
            Err(error) => Err(text(error)),
        }
    }

    /// Writes a value in two pieces, while another one is being written that is discarded, in part
    /// or `whole`.
    fn put_by_pieces(&self, name: &[u8], value: &[u8], whole: bool) -> evermap::Result<u64> {
        let (store, meta) = (&self.store, Meta::default());
        let (first, second) = value.split_at(value.len() / 2);
        let mut discarded = store.set(name).meta(meta).value_writer(100)?;
        discarded.write_all(&[1; 60]).expect("not too long");
        let mut writer = store.set(name).meta(meta).value_writer(value.len())?;
        writer.write_all(first).expect("not too long");
        if whole {
            discarded.write_all(&[1; 40]).expect("not too long");
        }
        drop(discarded);
        writer.write_all(second).expect("not too long");
        writer.finish()
    }

    /// Closes the store while a value is being written.
    fn close_while_writing(&self) -> Result<(), String> {
        let close = || self.store.db().clone().close().map_err(text);
        let mut writer = match self.store.value_writer(LOG, 3000) {
            Err(error) if error.is_no_space() => return close(),
            writer => writer.map_err(text)?,
        };
        writer.write_all(&[1; 2000]).map_err(text)?;
        close()?;
        match writer.write_all(&[1; 1000]) {
            Err(_) => Ok(()),
            Ok(()) => Err("a closed store was written to".into()),
        }
    }

    /// Records the result of a call.
    fn answered(
        &self,
        history: &History,
        number: u64,
        before: Option<u64>,
        stored: evermap::Result<Option<u64>>,
    ) -> Result<(), String> {
        let evicted = self.attribute(history, number)?;
        let key = history.map.key_of(number).expect("it has begun");
        let before = before.filter(|_| !evicted.contains(&key));
        match stored {
            Ok(stored) => {
                history.map.end(&self.sim, number, before);
                self.use_id(history, number, stored)
            }
            Err(error) if error.is_no_space() => {
                history.map.fail(&self.sim, number);
                Ok(())
            }
            Err(error) => Err(text(error)),
        }
    }

    /// Makes a change in a named map, which is created if it does not exist, or drops it.
    fn step_in_map(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let (map, version) = (rng.below(self.maps), rng.draw());
        match rng.below(16) {
            0 | 1 => return self.drop_map(history, map),
            2 => return self.store.db().reclaim_dropped().map(drop).map_err(text),
            3 => return self.flush_map(history, map),
            _ => {}
        }
        let key = keys_of(map).start + rng.below(KEYS_OF_A_MAP);
        let before = self.version(key)?;
        let name = &key_of(key)[..];
        let value = value_of(name, version, rng.below(200) as usize);
        let choice = rng.below(8);
        let op = if choice < 6 { MapOp::Upsert(version) } else { MapOp::Remove };
        let number = history.map.begin(&self.sim, key, op);
        let done =
            self.store.db().map(&name_of(map), MapOptions::new()).and_then(|map| match choice {
                0..=3 => map.set(name).put(&value).map(Some),
                4 | 5 => match map.apply(Batch::new().put(name, &value).add(b"count", 1))? {
                    Applied::Done(outcomes) => Ok(outcomes[0].stored()),
                    refused => panic!("{refused:?}"),
                },
                _ => map.delete(name).map(|_| None),
            });
        self.answered(history, number, before, done)
    }

    /// Dropping a map is the removal of every key in it, all at once.
    fn drop_map(&self, history: &History, map: u64) -> Result<(), String> {
        self.remove_all(history, keys_of(map), |live| {
            live.store.db().drop_map(&name_of(map)).map(drop)
        })
    }

    fn flush_map(&self, history: &History, map: u64) -> Result<(), String> {
        let Some(store) = self.map_of(keys_of(map).start)? else { return Ok(()) };
        self.remove_all(history, keys_of(map), |_| store.clear())
    }

    /// Calls `remove`, which removes these keys together.
    fn remove_all(
        &self,
        history: &History,
        keys: std::ops::Range<u64>,
        remove: impl FnOnce(&Self) -> evermap::Result<()>,
    ) -> Result<(), String> {
        let before: Vec<_> = keys.clone().map(|key| self.version(key)).collect::<Result<_, _>>()?;
        let begin = |key| history.map.begin(&self.sim, key, MapOp::Remove);
        let numbers: Vec<_> = keys.clone().map(begin).collect();
        let ops =
            BatchOps { number: numbers[0], version: 0, puts: Vec::new(), removals: keys.collect() };
        history.batches.lock().unwrap().push(ops);
        remove(self).map_err(text)?;
        for (number, before) in numbers.into_iter().zip(before) {
            history.map.end(&self.sim, number, before);
        }
        Ok(())
    }

    /// Changes some keys of all existing maps in one batch.
    fn batch(&self, history: &History, rng: &mut Rng, version: u64) -> Result<(), String> {
        let mut batch = Batch::new();
        let all: Vec<_> = self.all_keys().collect();
        let mut keys = Vec::new();
        for _ in 0..1 + rng.below(4) {
            let key = all[rng.below(all.len() as u64) as usize];
            keys.extend(self.map_of(key)?.map(|_| key));
        }
        keys.sort_unstable();
        keys.dedup();
        let (removals, puts): (Vec<_>, Vec<_>) = keys.into_iter().partition(|_| rng.below(3) == 0);
        let mut ops = Vec::new();
        for &key in &puts {
            let value = self.value(history, key, version, rng);
            let _ = batch.in_map(map_name(key).as_deref()).put(&key_of(key), &value);
            ops.push((key, MapOp::Upsert(version)));
        }
        for &key in &removals {
            let _ = batch.in_map(map_name(key).as_deref()).remove(&key_of(key));
            ops.push((key, MapOp::Remove));
        }
        let unmet = rng.below(8) == 0;
        if unmet {
            let _ = batch.in_map(None).expect(&key_of(rng.below(self.keys)), Some(u64::MAX));
        }
        let keys: Vec<_> = ops.iter().map(|&(key, _)| key).collect();
        let mut before: Vec<_> =
            keys.iter().map(|&key| self.version(key)).collect::<Result<_, _>>()?;
        let numbers: Vec<_> =
            ops.into_iter().map(|(key, op)| history.map.begin(&self.sim, key, op)).collect();
        if let Some(&number) = numbers.first() {
            let ops = BatchOps { number, version, puts, removals };
            history.batches.lock().unwrap().push(ops);
        }
        let done = self.store.apply(&batch);
        if let Some(&number) = numbers.first() {
            let evicted = self.attribute(history, number)?;
            let mut batches = history.batches.lock().unwrap();
            let ops = batches.last_mut().expect("just added");
            // What was evicted before it began is not absent because of it.
            ops.removals.retain(|key| !evicted.contains(key));
            let keys = keys.into_iter().zip(&mut before);
            keys.filter(|(key, _)| evicted.contains(key)).for_each(|(_, before)| *before = None);
        }
        match done {
            Ok(Applied::Done(outcomes)) if !unmet => {
                for ((&number, before), outcome) in numbers.iter().zip(before).zip(outcomes) {
                    history.map.end(&self.sim, number, before);
                    self.use_id(history, number, outcome.stored())?;
                }
                Ok(())
            }
            Ok(Applied::Refused { .. }) if unmet => {
                numbers.iter().for_each(|&number| history.map.fail(&self.sim, number));
                Ok(())
            }
            Err(error) if error.is_no_space() => {
                numbers.iter().for_each(|&number| history.map.fail(&self.sim, number));
                Ok(())
            }
            other => Err(format!("{other:?} where unmet is {unmet}")),
        }
    }

    /// Stores several records in one call, each by itself.
    fn put_many(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let mut keys: Vec<_> = (0..2 + rng.below(6)).map(|_| rng.below(self.keys)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut puts = Vec::new();
        for key in keys {
            let (before, version) = (self.version(key)?, rng.draw());
            let value = self.value(history, key, version, rng);
            let number = history.map.begin(&self.sim, key, MapOp::Upsert(version));
            puts.push((number, before, key_of(key), value));
        }
        let records: Vec<_> = puts
            .iter()
            .map(|(_, _, key, value)| NewRecord { key, value, meta: Meta::new() })
            .collect();
        let mut answers = Vec::new();
        self.store.cache().set_many(&records, |at, stored| answers.push((at, stored.map(Some))));
        let mut places = 0..;
        for (at, stored) in answers {
            if places.next() != Some(at) {
                return Err(format!("an answer about record {at} is out of order"));
            }
            let (number, before, ..) = &puts[at];
            self.answered(history, *number, *before, stored)?;
        }
        Ok(())
    }

    fn transfer(&self, rng: &mut Rng) -> Result<(), String> {
        let from = rng.below(ACCOUNTS);
        let to = (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + rng.below(100) as i64;
        let mut batch = Batch::new();
        batch.in_map(self.bank_of(from)?).add(&account(from), -amount);
        batch.in_map(self.bank_of(to)?).add(&account(to), amount);
        match self.store.apply(&batch) {
            Err(error) if !error.is_no_space() => Err(text(error)),
            _ => Ok(()),
        }
    }

    /// Returns the map of an account, or `None` for the default map.
    fn bank_of(&self, account: u64) -> Result<Option<&'static str>, String> {
        if self.maps == 0 {
            return Ok(None);
        }
        let bank = BANKS[account as usize % 2];
        self.store.db().map(bank, MapOptions::new()).map(|_| Some(bank)).map_err(text)
    }

    /// Appends the number of pieces that are present.
    fn append(&self) -> Result<(), String> {
        let pieces = self.log()?;
        match self.store.append(LOG, &pieces.to_le_bytes()) {
            Err(error) if !error.is_no_space() => Err(text(error)),
            _ => Ok(()),
        }
    }

    /// Stores a record that expires a second later, and purges it.
    fn expire(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let key = rng.below(self.keys);
        let before = self.version(key)?;
        let number = history.map.begin(&self.sim, key, MapOp::Remove);
        let meta = Meta::expiring(self.clock.now());
        let stored = self.store.set(&key_of(key)).meta(meta).put(b"expired from the beginning");
        self.answered(history, number, before, stored.map(|_| None))?;
        self.store.db().purge_if_due().map(drop).map_err(text)
    }

    /// Returns how many pieces were appended. Each must be its own number, once.
    fn log(&self) -> Result<u64, String> {
        let log = self.store.get(LOG).map_err(text)?.unwrap_or_default();
        let pieces: Vec<_> = log.chunks(8).collect();
        let whole = pieces.iter().zip(0u64..).all(|(piece, at)| **piece == at.to_le_bytes());
        if whole { Ok(pieces.len() as u64) } else { Err(format!("the log is {log:?}")) }
    }

    /// No batch is present in part: neither a transfer nor the one that was running.
    fn verify_batches(&self, history: &History, point: &CrashPoint) -> Result<(), String> {
        let mut sum = 0;
        for number in 0..ACCOUNTS {
            let value = match self.bank_of(number)? {
                None => self.store.get(&account(number)),
                Some(bank) => self
                    .store
                    .db()
                    .map(bank, MapOptions::new())
                    .and_then(|bank| bank.get(&account(number))),
            };
            let value = value.map_err(text)?;
            sum += value.map_or(0, |value| counter(&value).expect("a counter"));
        }
        if sum != 0 {
            return Err(format!("the accounts add up to {sum}"));
        }
        self.log()?;
        for batch in history.batches.lock().unwrap().iter() {
            if !point.in_flight(batch.number) {
                continue;
            }
            let mut happened = Vec::new();
            for &key in &batch.puts {
                happened.push(self.version(key)? == Some(batch.version));
            }
            for &key in &batch.removals {
                let absent = self.version(key)?.is_none();
                // A key that was absent before shows nothing.
                let was = history.map.allowed(&key, point).iter().any(Option::is_some);
                happened.extend(was.then_some(absent));
            }
            if happened.contains(&true) && happened.contains(&false) {
                return Err(format!("only a part of the batch is present: {happened:?}"));
            }
        }
        Ok(())
    }

    /// A flush is the removal of every key, all at once.
    fn flush(&self, history: &History, at: Option<u64>) -> Result<(), String> {
        self.remove_all(history, 0..self.keys, |live| match at {
            None => live.store.clear(),
            Some(at) => live.store.expire_all_at(common::at(at)),
        })
    }

    fn steps(&self, history: &History, rng: &mut Rng, ops: u64) -> Result<(), String> {
        if self.parallel {
            return self.steps_in_parallel(history, rng, ops);
        }
        (0..ops).try_for_each(|_| self.step(history, rng))
    }

    fn verify(&self) -> Result<(), String> {
        // What a crash leaves is never taken for damage, which a check would take away.
        self.store.db().recover().map_err(text)?;
        let stat = self.store.stat();
        if stat.damage > DamageMark::None {
            return Err(format!("a crash was taken for damage: {stat}"));
        }
        let report = self.store.db().check(true).map_err(text)?;
        ordered::scan_agrees(&self.store)?;
        self.limit_holds()?;
        if report.is_sound() && self.store.records().exact { Ok(()) } else { Err(text(report)) }
    }
}

impl Subject for Workload {
    /// A seed, from which the whole workload follows: it cannot be divided.
    type Call = u64;
    type History = History;
    type Live = Option<Live>;

    fn workload(&self, seed: u64) -> Vec<u64> {
        vec![seed]
    }

    fn run(&self, sim: &Sim, calls: &[u64]) -> Result<History, Failure> {
        let seed = calls[0];
        let mut rng = Rng::new(seed);
        let part = self.ops / 3;
        let live = Live::open(sim, self)?;
        let history = live.begun(&mut rng)?;
        live.steps(&history, &mut rng, part)?;
        // As if the process had been killed: nothing is closed.
        self.work.add(&live.store);
        drop(live);
        let live = Live::open(sim, self)?;
        live.steps(&history, &mut rng, part / 2)?;
        live.store.db().recover().map_err(text)?;
        live.steps(&history, &mut rng, part / 2)?;
        self.work.add(&live.store);
        live.evicting(&history, || live.close_while_writing())?;
        drop(live);
        let live = Live::open(sim, self)?;
        live.steps(&history, &mut rng, part)?;
        live.agrees(&history)?;
        self.work.add(&live.store);
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &History,
        point: &CrashPoint,
    ) -> Result<Option<Live>, Failure> {
        if Region::is_blank(sim) {
            // The creation of the store was not acknowledged.
            let named = (0..self.maps).flat_map(keys_of);
            (0..self.keys).chain(named).try_for_each(|key| history.map.check(&key, point, None))?;
            return Ok(None);
        }
        let mut live = Live::open(sim, self)?;
        let acknowledged = |(cas, number): (&u64, &u64)| point.completed(*number).then_some(*cas);
        live.ids = history.ids.lock().unwrap().iter().filter_map(acknowledged).collect();
        if point.record().is_multiple_of(2) {
            live.store.db().recover().map_err(text)?;
        }
        for key in live.all_keys() {
            history.map.check(&key, point, live.version(key)?)?;
        }
        live.verify_batches(history, point)?;
        Ok(Some(live))
    }

    fn probe(&self, live: Option<Live>, seed: u64) -> Result<History, Failure> {
        let Some(live) = live else { return Ok(History::new([])) };
        let mut rng = Rng::new(seed);
        let history = live.history()?;
        live.steps(&history, &mut rng, 5)?;
        live.verify()?;
        live.steps(&history, &mut rng, 5)?;
        if self.limit > 0 {
            if rng.one_in(4) {
                live.goes_on(&history, &mut rng)?;
            }
            live.agrees(&history)?;
        }
        if self.maps == 0 {
            live.store.into_db().close().map_err(text)?;
            return Ok(history);
        }
        // Closed before the blocks of the map are freed: none may stay allocated for ever.
        live.drop_map(&history, rng.below(self.maps))?;
        let expected: Vec<_> =
            live.all_keys().map(|key| live.version(key)).collect::<Result<_, _>>()?;
        live.store.into_db().close().map_err(text)?;
        let live = Live::open(&live.sim, self)?;
        for (key, expected) in live.all_keys().zip(expected) {
            if live.version(key)? != expected {
                return Err(format!("key {key} is not what it was before a clean shutdown").into());
            }
        }
        live.verify()?;
        Ok(history)
    }

    fn op_name(&self, history: &History, op: u64) -> String {
        history.map.name(op)
    }
}

const KEYS: u64 = 12;

fn config(model: Model, max_images: u64) -> sim::Config {
    sim::Config {
        capacity: 256 << 10,
        images: ImageConfig { per_point: 32, ..ImageConfig::of(model) },
        max_images,
        ..sim::Config::default()
    }
}

/// Returns the factor by which the campaigns have more workloads than usual.
fn times() -> u64 {
    let times = std::env::var("EVERMAP_CRASH_TIMES");
    times.map_or(1, |times| times.parse().expect("EVERMAP_CRASH_TIMES is a number"))
}

fn campaign(index: IndexKind, model: Model, seeds: std::ops::Range<u64>, max_images: u64) {
    let workload = Workload::new(KEYS, 0, index);
    let max_images = tier().choose(600.min(max_images), max_images);
    let length = tier().choose(1, seeds.end - seeds.start);
    let seeds = seeds.start..seeds.start + length * times();
    let report = sim::campaign::run(&workload, &config(model, max_images), seeds);
    println!("{report}");
    report.assert_clean();
    assert!(report.images > max_images / 4);
}

/// Two named maps are created and dropped beside the default map.
fn campaign_with_maps(model: Model, seed: u64) {
    let workload = |index| Workload::new(4, 2, index);
    campaign_over_indexes(workload, model, seed, 1, tier().choose(300, 1_500));
}

/// The keys are in order in the file, of the default map and of two named ones.
fn campaign_in_order(model: Model, seed: u64) {
    let workload = |index| Workload { order: Order::Persistent, ..Workload::new(6, 2, index) };
    campaign_over_indexes(workload, model, seed, tier().choose(1, 4), tier().choose(400, 4_000));
}

/// Crashes a workload with named maps over each index, `length` seeds with up to `images` images.
fn campaign_over_indexes(
    workload: impl Fn(IndexKind) -> Workload,
    model: Model,
    seed: u64,
    length: u64,
    images: u64,
) {
    for (index, seed) in common::campaign_indexes().into_iter().zip(seed..) {
        let config = sim::Config { capacity: 1 << 20, ..config(model, images) };
        let seeds = seed..seed + length * times();
        let report = sim::campaign::run(&workload(index), &config, seeds);
        println!("{index}: {report}");
        report.assert_clean();
        assert!(report.images > images / 3);
    }
}

/// A store whose order lacks keys, which a recovery enters: crashes in the middle of that.
struct LackingOrder {
    /// Whether the order cannot be read either, so that the opening after that replaces it.
    given_up: bool,
}

impl LackingOrder {
    const KEYS: std::ops::Range<u64> = 0..60;

    fn open(&self, sim: &Sim) -> Result<Map<Sim>, Failure> {
        let options = common::small(1 << 20).ordered(Order::Persistent);
        Ok(common::open_medium(sim.clone(), Identity::default(), &options).map_err(text)?)
    }

    fn put(&self, store: &Map<Sim>) -> Result<(), Failure> {
        for key in Self::KEYS {
            store.put(&key_of(key), &value_of(&key_of(key), key, 20)).map_err(text)?;
        }
        Ok(())
    }
}

impl Subject for LackingOrder {
    type Call = String;
    type History = ();
    type Live = Map<Sim>;

    fn workload(&self, _: u64) -> Vec<String> {
        vec!["recover".into()]
    }

    fn run(&self, sim: &Sim, _: &[String]) -> Result<(), Failure> {
        let store = self.open(sim)?;
        sim.mutate(Some(Mutation::Planted("OR-1")));
        self.put(&store)?;
        sim.mutate(None);
        store.put(b"in order", b"").map_err(text)?;
        drop(store);
        if self.given_up {
            persistent_order::break_tree(sim);
            let store = self.open(sim)?;
            if store.db().recover().is_ok() {
                return Err("the sweep reads what cannot be read".to_owned().into());
            }
        }
        sim.checkpoint();
        let store = self.open(sim)?;
        store.db().recover().map_err(text)?;
        store.build_ordered(1).map_err(text)?;
        Ok(())
    }

    fn recover(&self, sim: &Sim, (): &(), _: &CrashPoint) -> Result<Map<Sim>, Failure> {
        let store = self.open(sim)?;
        store.db().recover().map_err(text)?;
        ordered::scan_agrees(&store)?;
        for key in Self::KEYS {
            let value = store.get(&key_of(key)).map_err(text)?;
            if value != Some(value_of(&key_of(key), key, 20)) {
                return Err(format!("key {key} is lost").into());
            }
        }
        let report = store.db().check(true).map_err(text)?;
        if report.is_sound() { Ok(store) } else { Err(text(report).into()) }
    }

    fn probe(&self, store: Map<Sim>, _: u64) -> Result<(), Failure> {
        self.put(&store)?;
        ordered::scan_agrees(&store)?;
        let report = store.db().check(true).map_err(text)?;
        if report.is_sound() { Ok(()) } else { Err(text(report).into()) }
    }
}

/// Crashes the recovery that enters what an order lacks.
fn campaign_of_a_recovery(model: Model) {
    for given_up in [false, true] {
        let most = tier().choose(100, 4_000);
        let config = sim::Config { capacity: 1 << 20, ..config(model, most) };
        let report = sim::campaign::run(&LackingOrder { given_up }, &config, 0..1);
        println!("{report}");
        report.assert_clean();
        assert!(report.images > most / 3);
    }
}

/// A cache, from which records are evicted, and moved out of sparse extents, throughout.
fn campaign_in_a_cache(workload: &Workload, model: Model, seed: u64) {
    // Taking turns is slow.
    let most = tier().choose(if workload.parallel { 120 } else { 250 }, 1_500);
    let config = sim::Config { capacity: evict::CAPACITY, ..config(model, most) };
    let length = tier().choose(1, 8);
    let report = sim::campaign::run(workload, &config, seed..seed + length * times());
    println!("{report}{}", workload.work);
    report.assert_clean();
    assert!(report.images > most / 2);
}
