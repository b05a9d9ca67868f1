//! Crashes the store everywhere.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::common::{self, value_of};
use crate::ordered;
use evermap::{Clock, Edit, Meta, Options, Outcome, Store};
use evermap_pm::region::{Identity, Region};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, ImageConfig, Model, Sim, Subject, Wrong};

/// A workload on a store.
struct Workload {
    keys: u64,
    ops: u64,
}

/// What was done, and every CAS id that was given out, by operation.
struct History {
    map: MapHistory<u64>,
    ids: Mutex<HashMap<u64, u64>>,
}

struct Live {
    store: Store<Sim>,
    sim: Sim,
    keys: u64,
    /// CAS ids given out before the crash.
    ids: HashSet<u64>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options() -> Options {
    common::small(256 << 10).seed(7).clock(Clock::manual(1000)).ordered(true)
}

fn open(sim: &Sim) -> Result<Store<Sim>, String> {
    Store::open(sim.clone(), Identity::default(), &options()).map_err(text)
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

impl Live {
    fn open(sim: &Sim, keys: u64) -> Result<Live, String> {
        Ok(Live { store: open(sim)?, sim: sim.clone(), keys, ids: HashSet::new() })
    }

    /// The version that is stored under a key. Anything but a whole version is an error.
    fn version(&self, key: u64) -> Result<Option<u64>, String> {
        let name = key_of(key);
        let Some(value) = self.store.get(&name).map_err(text)? else { return Ok(None) };
        if !common::is_value_of(&name, &value) {
            return Err(format!("key {key} has a value that was never stored: {value:x?}"));
        }
        let version = value[name.len()..].first_chunk().expect("checked");
        Ok(Some(u64::from_le_bytes(*version)))
    }

    fn use_id(&self, history: &History, number: u64, outcome: Outcome) -> Result<(), String> {
        let Some(cas) = outcome.stored() else { return Ok(()) };
        let again = history.ids.lock().unwrap().insert(cas, number);
        if again.is_some() || self.ids.contains(&cas) {
            return Err(format!("CAS id {cas} was given out twice"));
        }
        Ok(())
    }

    fn step(&self, history: &History, rng: &mut Rng) -> Result<(), String> {
        let (key, version) = (rng.below(self.keys), rng.draw());
        let before = self.version(key)?;
        let name = &key_of(key)[..];
        let long = if rng.below(12) == 0 { 5000 } else { 120 };
        let value = value_of(name, version, rng.below(long) as usize);
        let meta = Meta::default();
        let store = &self.store;
        let cas = store.get_with(name, |item| item.cas).map_err(text)?.unwrap_or(1);
        let choice = rng.below(25);
        let op = match choice {
            0..=7 | 14..=16 => MapOp::Upsert(version),
            8 | 9 => MapOp::Insert(version),
            10 => MapOp::Update(version),
            11 => MapOp::CompareExchange { expected: before.unwrap_or(0), new: version },
            12 | 13 | 17..=19 => MapOp::Remove,
            20 => return self.flush(history, None),
            21 => return self.flush(history, Some(1000)),
            22 => {
                store.purge().map_err(text)?;
                return Ok(());
            }
            23 => {
                store.compact().map_err(text)?;
                return Ok(());
            }
            _ if version.is_multiple_of(2) => return ordered::scan_agrees(store),
            _ => MapOp::Get,
        };
        let number = history.map.begin(&self.sim, key, op);
        let outcome = match choice {
            0..=7 => store.put_with(name, &value, meta),
            8 | 9 => store.insert(name, &value, meta),
            10 => store.update(name, &value, meta),
            11 => store.compare_exchange(name, cas, &value, meta),
            12 | 13 => store.remove_if(name, cas),
            14..=16 => store.modify(name, |_| Edit::Value(value.clone())),
            17 => store.modify(name, |_| Edit::Remove),
            18 => store.remove(name).map(|_| Outcome::Absent),
            // Expired by its new expiry: as good as removed.
            19 => store.touch(name, 999).map(|_| Outcome::Absent),
            _ => store.get(name).map(|_| Outcome::Absent),
        };
        match outcome {
            Ok(outcome) => {
                history.map.end(&self.sim, number, before);
                self.use_id(history, number, outcome)
            }
            Err(error) if error.is_no_space() => {
                history.map.fail(&self.sim, number);
                Ok(())
            }
            Err(error) => Err(text(error)),
        }
    }

    /// A flush is the removal of every key, all at once.
    fn flush(&self, history: &History, at: Option<u32>) -> Result<(), String> {
        let before: Vec<_> =
            (0..self.keys).map(|key| self.version(key)).collect::<Result<_, _>>()?;
        let numbers: Vec<_> =
            (0..self.keys).map(|key| history.map.begin(&self.sim, key, MapOp::Remove)).collect();
        self.store.flush_all(at).map_err(text)?;
        for (number, before) in numbers.into_iter().zip(before) {
            history.map.end(&self.sim, number, before);
        }
        Ok(())
    }

    fn steps(&self, history: &History, rng: &mut Rng, ops: u64) -> Result<(), String> {
        (0..ops).try_for_each(|_| self.step(history, rng))
    }

    fn verify(&self) -> Result<(), String> {
        let report = self.store.check(true).map_err(text)?;
        ordered::scan_agrees(&self.store)?;
        if report.is_sound() && self.store.len().exact { Ok(()) } else { Err(text(report)) }
    }
}

impl Subject for Workload {
    /// The seed of everything: the workload is one piece.
    type Call = u64;
    type History = History;
    type Live = Option<Live>;

    fn workload(&self, seed: u64) -> Vec<u64> {
        vec![seed]
    }

    fn run(&self, sim: &Sim, calls: &[u64]) -> Result<History, Wrong> {
        let seed = calls[0];
        let history = History { map: MapHistory::new([]), ids: Mutex::default() };
        let mut rng = Rng::new(seed);
        let part = self.ops / 3;
        let live = Live::open(sim, self.keys)?;
        live.steps(&history, &mut rng, part)?;
        // As if the process had died: nothing is closed.
        drop(live);
        let live = Live::open(sim, self.keys)?;
        live.steps(&history, &mut rng, part / 2)?;
        live.store.recover().map_err(text)?;
        live.steps(&history, &mut rng, part / 2)?;
        live.store.close().map_err(text)?;
        drop(live);
        Live::open(sim, self.keys)?.steps(&history, &mut rng, part)?;
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &History,
        point: &CrashPoint,
    ) -> Result<Option<Live>, Wrong> {
        if Region::is_blank(sim) {
            // Nobody was told that the store exists.
            (0..self.keys).try_for_each(|key| history.map.check(&key, point, None))?;
            return Ok(None);
        }
        let mut live = Live::open(sim, self.keys)?;
        let acknowledged = |(cas, number): (&u64, &u64)| (*number < point.ended()).then_some(*cas);
        live.ids = history.ids.lock().unwrap().iter().filter_map(acknowledged).collect();
        if point.record().is_multiple_of(2) {
            live.store.recover().map_err(text)?;
        }
        for key in 0..self.keys {
            history.map.check(&key, point, live.version(key)?)?;
        }
        Ok(Some(live))
    }

    fn probe(&self, live: Option<Live>, seed: u64) -> Result<History, Wrong> {
        let empty = || History { map: MapHistory::new([]), ids: Mutex::default() };
        let Some(live) = live else { return Ok(empty()) };
        let mut rng = Rng::new(seed);
        let mut before = Vec::new();
        for key in 0..self.keys {
            before.extend(live.version(key)?.map(|version| (key, version)));
        }
        let history = History { map: MapHistory::new(before), ..empty() };
        live.steps(&history, &mut rng, 5)?;
        live.verify()?;
        live.steps(&history, &mut rng, 5)?;
        live.store.close().map_err(text)?;
        Ok(history)
    }

    fn op_name(&self, history: &History, op: u64) -> String {
        history.map.name(op)
    }
}

fn campaign(model: Model, seeds: std::ops::Range<u64>, max_images: u64) {
    let workload = Workload { keys: 12, ops: 90 };
    let config = sim::Config {
        capacity: 256 << 10,
        images: ImageConfig { per_point: 32, ..ImageConfig::of(model) },
        max_images,
        ..sim::Config::default()
    };
    let report = sim::campaign::run(&workload, &config, seeds);
    println!("{report}");
    report.assert_clean();
    assert!(report.images > 1000);
}

#[test]
fn power_loss_with_persistent_memory() {
    campaign(Model::Adr, 0..3, 3_000);
}

#[test]
fn process_death_at_every_store() {
    campaign(Model::ProcessDeath, 100..103, 3_000);
}
