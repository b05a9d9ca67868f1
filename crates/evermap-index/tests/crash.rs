//! Crashes Dash-EH, its heap and its region everywhere.
//!
//! The geometry is so small that a workload of some hundred operations splits, doubles, displaces, uses the
//! stash, merges, halves, sweeps and reclaims.

use std::collections::BTreeSet;
use std::sync::Arc;

use evermap_index::hash::dash::{Config, Tiny};
use evermap_index::{Index, Persistent, Visitor};
use evermap_pm::Pool;
use evermap_pm::region::{Identity, OnSuspect, Region, RegionConfig};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, ImageConfig, Model, Sim, Subject};

type Index64 = Tiny<u64, Sim>;

/// A workload on Dash-EH.
struct Dash {
    /// Distinct keys.
    universe: u64,
    ops: u64,
    /// Closes and reopens in between, with and without order.
    reopen: bool,
    /// Bytes of the pool.
    capacity: u64,
}

struct Live {
    pool: Arc<Pool<Sim>>,
    index: Index64,
    universe: u64,
}

fn text(error: evermap_pm::Error) -> String {
    error.to_string()
}

impl Live {
    fn create(sim: &Sim, dash: &Dash) -> Result<Live, String> {
        let config = RegionConfig { extent_size: 4096, capacity: dash.capacity, seed: Some(7) };
        let pool = Pool::create(sim.clone(), &config, Identity::default()).map_err(text)?;
        let index = Index64::create(pool.clone(), 0, Config { initial_depth: 0 }).map_err(text)?;
        Ok(Live { pool, index, universe: dash.universe })
    }

    fn open(sim: &Sim, universe: u64) -> Result<Live, String> {
        let (pool, _) =
            Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).map_err(text)?;
        let index = Index64::open(pool.clone(), 0).map_err(text)?;
        Ok(Live { pool, index, universe })
    }

    /// Finishes recovery: everything is visited, and what nobody names becomes free.
    fn sweep(&self) -> Result<(), String> {
        struct Marks<'a>(&'a mut dyn FnMut(u64));
        impl Visitor for Marks<'_> {
            fn block(&mut self, offset: u64) {
                (self.0)(offset);
            }
            fn word(&mut self, _word: u64) {}
        }
        self.pool.sweep(|mark| self.index.visit(&mut Marks(mark))).map_err(text)
    }

    /// Every invariant, and that what is taken is what can be reached.
    fn verify(&self) -> Result<(), String> {
        struct Blocks(BTreeSet<u64>);
        impl Visitor for Blocks {
            fn block(&mut self, offset: u64) {
                assert!(self.0.insert(offset), "block {offset:#x} is named twice");
            }
            fn word(&mut self, _word: u64) {}
        }
        let problems = self.index.check();
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let mut reachable = Blocks(BTreeSet::new());
        self.index.visit(&mut reachable).map_err(text)?;
        self.pool.epoch().drain();
        let taken: BTreeSet<u64> = self.pool.allocated().into_iter().collect();
        if taken != reachable.0 {
            let lost: Vec<_> = taken.difference(&reachable.0).collect();
            let missing: Vec<_> = reachable.0.difference(&taken).collect();
            return Err(format!("leaked {lost:x?}, not taken {missing:x?}"));
        }
        match self.pool.heap_stats().faults {
            0 => Ok(()),
            faults => Err(format!("{faults} faults in the heap")),
        }
    }

    fn contents(&self) -> Result<Vec<(u64, u64)>, String> {
        let guard = self.pool.pin();
        let mut pairs = Vec::new();
        self.index
            .for_each(&guard, &mut |key, word| {
                pairs.push((key, word));
                true
            })
            .map_err(text)?;
        Ok(pairs)
    }

    fn step(&self, history: &MapHistory<u64>, rng: &mut Rng, inserts: u64) -> Result<(), String> {
        let medium = self.pool.medium();
        let key = rng.below(self.universe);
        let word = rng.draw() | 1;
        let op = match rng.below(100) {
            n if n < inserts => match rng.below(3) {
                0 => MapOp::Insert(word),
                _ => MapOp::Upsert(word),
            },
            n if n < 90 => MapOp::Remove,
            n if n < 95 => MapOp::Update(word),
            _ => MapOp::Get,
        };
        let guard = self.pool.pin();
        let number = history.begin(medium, key, op);
        let result = match op {
            MapOp::Insert(word) => self.index.insert(key, word, &guard),
            MapOp::Upsert(word) => self.index.upsert(key, word, &guard),
            MapOp::Update(word) => self.index.update(key, word, &guard),
            MapOp::Remove => self.index.remove(key, &guard),
            _ => self.index.get(key, &guard).map(|old| evermap_index::Change { old, new: old }),
        };
        match result {
            Ok(change) => history.end(medium, number, change.old),
            Err(error) if error.is_no_space() => history.fail(medium, number),
            Err(error) => return Err(text(error)),
        }
        Ok(())
    }

    fn steps(
        &self,
        history: &MapHistory<u64>,
        rng: &mut Rng,
        ops: u64,
        inserts: u64,
    ) -> Result<(), String> {
        (0..ops).try_for_each(|_| self.step(history, rng, inserts))
    }
}

impl Subject for Dash {
    type History = MapHistory<u64>;
    type Live = Option<Live>;

    fn run(&self, sim: &Sim, seed: u64) -> Result<MapHistory<u64>, String> {
        let history = MapHistory::new([]);
        let mut rng = Rng::new(seed);
        let mut live = Live::create(sim, self)?;
        let part = self.ops / 4;
        live.steps(&history, &mut rng, part, 80)?;
        if self.reopen {
            // As if the process had died: nothing is closed.
            drop(live);
            live = Live::open(sim, self.universe)?;
            live.steps(&history, &mut rng, part / 2, 60)?;
            live.sweep()?;
            live.steps(&history, &mut rng, part / 2, 60)?;
            live.pool.close().map_err(text)?;
            drop(live);
            live = Live::open(sim, self.universe)?;
        } else {
            live.steps(&history, &mut rng, part, 70)?;
        }
        live.steps(&history, &mut rng, part, 10)?;
        live.steps(&history, &mut rng, part, 50)?;
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &MapHistory<u64>,
        point: &CrashPoint,
    ) -> Result<Option<Live>, String> {
        let owed = |found: &dyn Fn(&u64) -> Option<u64>| {
            (0..self.universe).try_for_each(|key| history.check(&key, point, found(&key)))
        };
        // Nobody was told that the store exists before its creation was complete.
        if Region::is_blank(sim) {
            owed(&|_| None)?;
            return Ok(None);
        }
        let (pool, _) =
            Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).map_err(text)?;
        if evermap_pm::Medium::load(sim, pool.root(0)) == 0 {
            owed(&|_| None)?;
            return Ok(None);
        }
        let index = Index64::open(pool.clone(), 0).map_err(text)?;
        let live = Live { pool, index, universe: self.universe };
        // Half of the crashes meet lookups first, half the sweep.
        if point.record().is_multiple_of(2) {
            live.sweep()?;
        }
        let guard = live.pool.pin();
        for key in 0..self.universe {
            history.check(&key, point, live.index.get(key, &guard).map_err(text)?)?;
        }
        drop(guard);
        Ok(Some(live))
    }

    fn probe(&self, live: Option<Live>, seed: u64) -> Result<MapHistory<u64>, String> {
        let Some(live) = live else { return Ok(MapHistory::new([])) };
        let mut rng = Rng::new(seed ^ 0x70726f6265);
        let before = live.contents()?;
        let mut model: std::collections::HashMap<u64, u64> = before.iter().copied().collect();
        let history = MapHistory::new(before);
        live.steps(&history, &mut rng, 6, 70)?;
        if !live.pool.is_swept() {
            live.sweep()?;
        }
        live.verify()?;
        // Everything can be overwritten and removed.
        model.clear();
        for key in (0..self.universe).step_by(3) {
            let guard = live.pool.pin();
            let number = history.begin(live.pool.medium(), key, MapOp::Remove);
            let change = live.index.remove(key, &guard).map_err(text)?;
            history.end(live.pool.medium(), number, change.old);
            if live.index.get(key, &guard).map_err(text)?.is_some() {
                return Err(format!("key {key} is still there after its removal"));
            }
        }
        live.verify()?;
        Ok(history)
    }

    fn op_name(&self, history: &MapHistory<u64>, op: u64) -> String {
        history.name(op)
    }
}

fn campaign(dash: &Dash, model: Model, seeds: std::ops::Range<u64>, max_images: u64) {
    let config = sim::Config {
        capacity: dash.capacity,
        images: ImageConfig { per_point: 64, ..ImageConfig::of(model) },
        max_images,
        ..sim::Config::default()
    };
    let report = sim::campaign::run(dash, &config, seeds);
    println!("{report}");
    report.assert_clean();
    assert!(report.images > 1000);
}

/// So many keys that ranges of several entries are split, not only directories doubled.
#[test]
fn adr_growing_and_shrinking() {
    let dash = Dash { universe: 300, ops: 700, reopen: false, capacity: 256 << 10 };
    campaign(&dash, Model::Adr, 0..3, 12_000);
}

#[test]
fn adr_with_reopening_and_sweeps() {
    let dash = Dash { universe: 200, ops: 500, reopen: true, capacity: 256 << 10 };
    campaign(&dash, Model::Adr, 100..103, 12_000);
}

/// So few keys that every crash point gets its share of images.
#[test]
fn adr_with_few_keys() {
    let dash = Dash { universe: 40, ops: 160, reopen: true, capacity: 128 << 10 };
    campaign(&dash, Model::Adr, 300..304, 12_000);
}

#[test]
fn process_death_at_every_store() {
    let dash = Dash { universe: 200, ops: 400, reopen: true, capacity: 256 << 10 };
    campaign(&dash, Model::ProcessDeath, 200..202, 12_000);
}
