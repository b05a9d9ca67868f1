//! Crash campaigns: an index, its heap and its region, crashed everywhere by the simulator.
//!
//! A workload runs once on the simulated medium, on a geometry so small that some hundred operations lead
//! through every structural change. At every point where a crash could matter, the images that it could leave
//! are opened, judged by durable linearizability, used further, audited for leaks, and crashed again.

use evermap_pm::pool::Pool;
use evermap_pm::region::{Identity, OnSuspect, Region, RegionConfig};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, ImageConfig, Model, Report, Sim};
use evermap_pm::{Error, Medium};

use super::Instance;
use super::keys::Numbered;
use super::persistence::{PoolInstance, PoolSubject, ROOT};
use crate::{Change, Index, Persistent, Result};

/// How the workload is shaped.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Distinct keys.
    pub universe: u64,
    /// Operations.
    pub ops: u64,
    /// Whether the pool is closed and opened in between, with and without order, and swept.
    pub reopen: bool,
    /// Bytes of the pool.
    pub capacity: u64,
    /// Bytes of an extent.
    pub extent_size: u64,
}

impl Workload {
    /// So many keys that ranges of several directory entries are split, not only directories doubled.
    pub const GROWING: Workload =
        Workload { universe: 300, ops: 700, reopen: false, capacity: 256 << 10, extent_size: 4096 };
    /// Lives that end in and out of order, with sweeps in between.
    pub const REOPENING: Workload =
        Workload { universe: 200, ops: 500, reopen: true, ..Workload::GROWING };
    /// So few keys that every crash point gets its share of images.
    pub const FEW_KEYS: Workload =
        Workload { universe: 40, ops: 160, capacity: 128 << 10, ..Workload::REOPENING };
}

/// The workload on an index, as a subject of the simulator.
#[derive(Clone, Copy, Debug)]
pub struct Crashed<'a, K, P> {
    subject: &'a P,
    workload: Workload,
    keys: std::marker::PhantomData<fn() -> K>,
}

impl<'a, K: Numbered, P: PoolSubject<K>> Crashed<'a, K, P> {
    /// Workload `workload` on the index that `subject` makes.
    pub fn new(subject: &'a P, workload: Workload) -> Self {
        Crashed { subject, workload, keys: std::marker::PhantomData }
    }

    /// Crashes the workloads of `seeds` under `model`, with at most `max_images` images for each.
    pub fn run(&self, model: Model, seeds: std::ops::Range<u64>, max_images: u64) -> Report {
        let config = sim::Config {
            capacity: self.workload.capacity,
            images: ImageConfig { per_point: 64, ..ImageConfig::of(model) },
            max_images,
            ..sim::Config::default()
        };
        sim::campaign::run(self, &config, seeds)
    }

    fn create(&self, sim: &Sim) -> Result<Live<K, P>> {
        let Workload { capacity, extent_size, universe, .. } = self.workload;
        let config = RegionConfig { extent_size, capacity, seed: Some(7) };
        let pool = Pool::create(sim.clone(), &config, Identity::default())?;
        let index = Persistent::create(pool.clone(), ROOT, self.subject.config::<Sim>())?;
        Ok(Live { instance: PoolInstance { pool, index }, universe })
    }

    /// The index, or nothing where the crash came before its creation was complete.
    fn open(&self, sim: &Sim) -> Result<Option<Live<K, P>>> {
        if Region::is_blank(sim) {
            return Ok(None);
        }
        let (pool, _) = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse)?;
        if sim.load(pool.root(ROOT)) == 0 {
            return Ok(None);
        }
        let index = Persistent::open(pool.clone(), ROOT)?;
        Ok(Some(Live { instance: PoolInstance { pool, index }, universe: self.workload.universe }))
    }

    fn reopen(&self, sim: &Sim) -> Result<Live<K, P>, String> {
        self.open(sim).map_err(text)?.ok_or_else(|| "the index is gone".to_owned())
    }
}

/// A workload's pool and index while they are open.
pub struct Live<K: Numbered, P: PoolSubject<K>> {
    instance: PoolInstance<Sim, P::Index<Sim>>,
    universe: u64,
}

fn text(error: Error) -> String {
    error.to_string()
}

impl<K: Numbered, P: PoolSubject<K>> Live<K, P> {
    fn instance(&self) -> &dyn Instance<K> {
        &self.instance
    }

    fn medium(&self) -> &Sim {
        self.instance.pool.medium()
    }

    fn sweep(&self) -> Result<(), String> {
        self.instance().sweep().map_err(text)
    }

    /// Every invariant, and that what is taken is what can be reached.
    fn verify(&self) -> Result<(), String> {
        match self.instance().audit() {
            wrong if wrong.is_empty() => Ok(()),
            wrong => Err(wrong.join("; ")),
        }
    }

    /// The tag of the word that a key is bound to.
    fn find(&self, number: u64) -> Result<Option<u64>, String> {
        let owned = K::owned(number, self.instance().seed());
        let guard = self.instance.pool.pin();
        let found = self.instance.index.get(K::lend(&owned), &guard).map_err(text)?;
        Ok(found.map(|word| self.instance().tag(word)))
    }

    /// What the keys are bound to; and nothing else may be there.
    fn contents(&self) -> Result<Vec<(u64, u64)>, String> {
        let mut pairs = Vec::new();
        for number in 0..self.universe {
            pairs.extend(self.find(number)?.map(|tag| (number, tag)));
        }
        // Recovery may have died while strangers were there.
        let mut strangers = 0;
        for number in self.strangers() {
            strangers += usize::from(self.find(number)?.is_some());
        }
        let mut shown = 0;
        let guard = self.instance.pool.pin();
        let mut count = |_, _| {
            shown += 1;
            true
        };
        self.instance.index.for_each(&guard, &mut count).map_err(text)?;
        match pairs.len() + strangers {
            found if found == shown => Ok(pairs),
            found => Err(format!("{found} keys are found, but {shown} pairs shown")),
        }
    }

    /// Carries out `op`, as its caller would: what was replaced is retired, what was not put is taken back.
    fn apply(&self, number: u64, op: MapOp) -> Result<Option<u64>> {
        let owned = K::owned(number, self.instance().seed());
        let (index, instance) = (&self.instance.index, self.instance());
        let word = |tag| instance.word(K::lend(&owned), tag);
        let mut made = None;
        let guard = self.instance.pool.pin();
        let change = match op {
            MapOp::Insert(tag) => index.insert(K::lend(&owned), *made.insert(word(tag)?), &guard),
            MapOp::Upsert(tag) => index.upsert(K::lend(&owned), *made.insert(word(tag)?), &guard),
            MapOp::Update(tag) => index.update(K::lend(&owned), *made.insert(word(tag)?), &guard),
            MapOp::Remove => index.remove(K::lend(&owned), &guard),
            _ => index.get(K::lend(&owned), &guard).map(|old| Change { old, new: old }),
        };
        let put = change.as_ref().ok().and_then(|change| change.new);
        if let Some(made) = made.filter(|_| put != made) {
            instance.discard(made);
        }
        let change = change?;
        let seen = change.old.map(|word| instance.tag(word));
        if let Some(old) = change.old.filter(|_| change.changed()) {
            instance.retire(old, &guard);
        }
        Ok(seen)
    }

    fn step(&self, history: &MapHistory<u64>, key: u64, op: MapOp) -> Result<(), String> {
        let number = history.begin(self.medium(), key, op);
        match self.apply(key, op) {
            Ok(seen) => history.end(self.medium(), number, seen),
            Err(error) if error.is_no_space() => history.fail(self.medium(), number),
            Err(error) => return Err(text(error)),
        }
        Ok(())
    }

    /// Numbers of keys that no history speaks of.
    fn strangers(&self) -> std::ops::Range<u64> {
        self.universe..self.universe + 160
    }

    /// Strangers that crowd into one corner of the index: their hashes agree in three bits at either end.
    fn crowd(&self, corner: u64) -> Vec<u64> {
        let seed = self.instance().seed();
        let in_corner = |number: &u64| {
            let hash = K::hash(K::lend(&K::owned(*number, seed)), seed);
            hash >> 61 == corner % 8 || hash >> 24 & 7 == corner % 8
        };
        self.strangers().filter(in_corner).collect()
    }

    /// Fills one corner and empties it again, before and after `verify`. What a crash has left in other corners is not
    /// touched by the growth of this one.
    fn amid_growth(
        &self,
        corner: u64,
        verify: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let apply = |number, op| match self.apply(number, op) {
            Err(error) if !error.is_no_space() => Err(text(error)),
            _ => Ok(()),
        };
        let crowd = self.crowd(corner);
        for &number in &crowd {
            apply(number, MapOp::Insert(number | 1))?;
        }
        verify()?;
        crowd.into_iter().try_for_each(|number| apply(number, MapOp::Remove))
    }

    /// Random operations, so many percent of them insertions.
    fn steps(
        &self,
        history: &MapHistory<u64>,
        rng: &mut Rng,
        ops: u64,
        inserts: u64,
    ) -> Result<(), String> {
        for _ in 0..ops {
            let key = rng.below(self.universe);
            let tag = rng.draw() | 1;
            let op = match rng.below(100) {
                n if n < inserts => match rng.below(3) {
                    0 => MapOp::Insert(tag),
                    _ => MapOp::Upsert(tag),
                },
                n if n < 90 => MapOp::Remove,
                n if n < 95 => MapOp::Update(tag),
                _ => MapOp::Get,
            };
            self.step(history, key, op)?;
        }
        Ok(())
    }
}

impl<K: Numbered, P: PoolSubject<K>> sim::Subject for Crashed<'_, K, P> {
    type History = MapHistory<u64>;
    type Live = Option<Live<K, P>>;

    fn run(&self, sim: &Sim, seed: u64) -> Result<MapHistory<u64>, String> {
        let history = MapHistory::new([]);
        let mut rng = Rng::new(seed);
        let mut live = self.create(sim).map_err(text)?;
        let part = self.workload.ops / 4;
        live.steps(&history, &mut rng, part, 80)?;
        if self.workload.reopen {
            // As if the process had died: nothing is closed.
            drop(live);
            live = self.reopen(sim)?;
            live.steps(&history, &mut rng, part / 2, 60)?;
            live.sweep()?;
            live.steps(&history, &mut rng, part / 2, 60)?;
            live.instance.pool.close().map_err(text)?;
            drop(live);
            live = self.reopen(sim)?;
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
    ) -> Result<Option<Live<K, P>>, String> {
        let live = self.open(sim).map_err(text)?;
        let verify = || {
            (0..self.workload.universe).try_for_each(|key| {
                // Nobody was told that the index exists before its creation was complete.
                let found = live.as_ref().map_or(Ok(None), |live| live.find(key))?;
                history.check(&key, point, found)
            })
        };
        // A third of the crashes meet the sweep first, a third lookups, a third growth.
        match (&live, point.record() % 3) {
            (Some(live), 0) => live.sweep().and_then(|()| verify())?,
            (Some(live), 1) => live.amid_growth(point.record() as u64 / 3, verify)?,
            _ => verify()?,
        }
        Ok(live)
    }

    fn probe(&self, live: Option<Live<K, P>>, seed: u64) -> Result<MapHistory<u64>, String> {
        let Some(live) = live else { return Ok(MapHistory::new([])) };
        let mut rng = Rng::new(seed ^ 0x70726f6265);
        let history = MapHistory::new(live.contents()?);
        live.steps(&history, &mut rng, 6, 70)?;
        if !live.instance.pool.is_swept() {
            live.sweep()?;
        }
        live.verify()?;
        // Whatever is there can be removed.
        for key in (0..live.universe).step_by(3) {
            live.step(&history, key, MapOp::Remove)?;
            if live.find(key)?.is_some() {
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

/// One campaign of a battery: fails the test with the report unless it is clean.
///
/// # Panics
/// If a crash leads to a violation, or hardly any image was built.
pub fn assert_survives<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    workload: Workload,
    model: Model,
    seeds: std::ops::Range<u64>,
) {
    let report = Crashed::<K, P>::new(subject, workload).run(model, seeds, 12_000);
    println!("{report}");
    report.assert_clean();
    assert!(report.images > 1000);
}

/// Declares a module of crash campaigns: `crash_campaign!(name, subject)` for a
/// [`PoolSubject`] of `u64` and [`Bytes`](crate::Bytes).
///
/// `subject` is an expression that each test evaluates anew.
#[macro_export]
macro_rules! crash_campaign {
    ($name:ident, $subject:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            use $crate::testkit::crash::{Workload, assert_survives};

            #[test]
            fn growing_and_shrinking() {
                assert_survives::<u64, _>(
                    &$subject,
                    Workload::GROWING,
                    evermap_pm::sim::Model::Adr,
                    0..3,
                );
            }

            #[test]
            fn reopening_and_sweeping() {
                assert_survives::<u64, _>(
                    &$subject,
                    Workload::REOPENING,
                    evermap_pm::sim::Model::Adr,
                    100..103,
                );
            }

            #[test]
            fn few_keys() {
                assert_survives::<u64, _>(
                    &$subject,
                    Workload::FEW_KEYS,
                    evermap_pm::sim::Model::Adr,
                    300..304,
                );
            }

            #[test]
            fn byte_keys() {
                assert_survives::<$crate::Bytes, _>(
                    &$subject,
                    Workload::FEW_KEYS,
                    evermap_pm::sim::Model::Adr,
                    400..402,
                );
            }

            #[test]
            fn process_death_at_every_store() {
                assert_survives::<u64, _>(
                    &$subject,
                    Workload::REOPENING,
                    evermap_pm::sim::Model::ProcessDeath,
                    200..202,
                );
            }
        }
    };
}
