//! An index as a subject of the simulator: running a workload, recovering, and judging the result.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evermap_pm::pool::Pool;
use evermap_pm::region::{Identity, OnSuspect, Opened, Region, RegionConfig};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, Failure, Sim};
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Medium, PmU64};

use super::oracle;
use super::workload::{Call, TAGS, Verb, Workload};
use crate::testkit::erased::AnyPoolSubject;
use crate::testkit::keys::Numbered;
use crate::testkit::persistence::{PoolInstance, PoolSubject, ROOT};
use crate::testkit::{Instance, chance};
use crate::{Action, Change, MutateMode, Result};

/// The calls on an index with their results, and the boots of the machine.
pub struct History {
    map: MapHistory<u64>,
    /// The first operation after each restart of the machine, and the number of restarts so far.
    boots: Mutex<Vec<(u64, u64)>>,
}

impl History {
    /// Creates a history for an index with these pairs, on a machine that has restarted `boot`
    /// times.
    fn new(pairs: Vec<(u64, u64)>, boot: u64) -> Self {
        History { map: MapHistory::new(pairs), boots: Mutex::new(vec![(0, boot)]) }
    }

    fn restarted(&self, op: u64) -> u64 {
        let mut boots = self.boots.lock().expect("no panics while held");
        let boot = boots.last().expect("never empty").1 + 1;
        boots.push((op, boot));
        boot
    }

    /// Returns the number of restarts before the crash.
    fn boot_at(&self, point: &CrashPoint) -> u64 {
        let boots = self.boots.lock().expect("no panics while held");
        let begun = boots.iter().rev().find(|(op, _)| *op < point.begun());
        begun.unwrap_or(&boots[0]).1
    }
}

/// Returns the identity of the machine and the file that the region stores.
fn identity(boot: u64) -> Identity {
    Identity { boot: [0xb007, boot], device: 1, inode: 2, birth: 3 }
}

/// A workload on an index, as a subject for the simulator.
pub struct Crashed<'s, K: Numbered> {
    subject: Shared<'s, K>,
    workload: Workload,
    /// Whether recovery runs after a restart of the machine.
    other_boot: bool,
    scrutiny: Scrutiny,
}

/// A subject of any type that several campaigns share.
pub(super) type Shared<'s, K> = Arc<dyn AnyPoolSubject<K> + Send + 's>;

/// How thoroughly a recovered index is examined. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scrutiny {
    /// All keys are looked up, and the index checks its invariants.
    Lookups,
    /// The index is used further, and must behave like a map.
    Probe,
    /// The index is swept, so that exactly the reachable blocks are allocated. The sweep, growth,
    /// or operations happen before any key is looked up.
    Everything,
}

/// An open pool and its index.
pub struct Live<K: Numbered> {
    instance: PoolInstance<K>,
    workload: Workload,
    boot: u64,
    /// The possible words of keys that have not been looked up since recovery.
    possible: Vec<(u64, BTreeSet<Option<u64>>)>,
}

fn error_of(error: Error) -> Failure {
    Failure::new(oracle::ERRORS, error.to_string())
}

fn wrong<T>(oracle: &'static str, what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(oracle, what))
}

impl<'s, K: Numbered> Crashed<'s, K> {
    /// Creates a subject that runs `workload` on the index of `subject`.
    pub fn new(subject: impl PoolSubject<K> + Send + 's, workload: Workload) -> Self {
        Crashed::of(Arc::new(subject), workload)
    }

    /// Creates a subject like [`Crashed::new`].
    pub(super) fn of(subject: Shared<'s, K>, workload: Workload) -> Self {
        Crashed { subject, workload, other_boot: false, scrutiny: Scrutiny::Everything }
    }

    /// Sets how thoroughly a recovered index is examined.
    pub fn with_scrutiny(self, scrutiny: Scrutiny) -> Self {
        Crashed { scrutiny, ..self }
    }

    /// Makes every crash one of the machine, whose memory loses pages of the file.
    pub fn on_another_boot(self) -> Self {
        Crashed { other_boot: true, ..self }
    }

    fn create_pool(&self, sim: &Sim) -> Result<Arc<Pool<Sim>>> {
        let Workload { capacity, extent_size, .. } = self.workload;
        let config = RegionConfig { extent_size, capacity, seed: Some(7) };
        Pool::create(sim.clone(), &config, identity(0))
    }

    /// Fills the space of extents with data, as if it had been used before.
    fn fill_space(&self, sim: &Sim) -> Result<()> {
        sim.pause();
        let first = self.create_pool(sim)?.region().unit_offset(0);
        sim.grow(sim.capacity())?;
        for offset in (first..sim.len()).step_by(8) {
            let cell: &PmU64 = sim.at(offset).expect("within the medium");
            sim.store(cell, Rng::new(offset).draw());
        }
        sim.checkpoint();
        Ok(())
    }

    fn create(&self, pool: Arc<Pool<Sim>>) -> Result<Live<K>> {
        let index = self.subject.create(pool.clone())?;
        let instance = PoolInstance { pool, index };
        Ok(Live { instance, workload: self.workload, boot: 0, possible: Vec::new() })
    }

    /// Opens the index. Returns `None` if the crash came before its creation was complete.
    fn open(
        &self,
        sim: &Sim,
        boot: u64,
        on_suspect: OnSuspect,
    ) -> Result<Option<(Live<K>, Opened)>> {
        if Region::is_blank(sim) {
            return Ok(None);
        }
        let (pool, opened) = Pool::open(sim.clone(), identity(boot), on_suspect)?;
        if sim.load(pool.root(ROOT)) == 0 {
            return Ok(None);
        }
        let index = self.subject.open(pool.clone())?;
        let instance = PoolInstance { pool, index };
        let live = Live { instance, workload: self.workload, boot, possible: Vec::new() };
        Ok(Some((live, opened)))
    }

    fn reopen(&self, sim: &Sim, boot: u64) -> Result<Live<K>, Failure> {
        let open = self.open(sim, boot, OnSuspect::Refuse).map_err(error_of)?;
        open.map(|(live, _)| live).ok_or_else(|| Failure::new(oracle::CREATED, "the index is gone"))
    }

    /// Recovers after a restart of the machine. A file that was closed holds what it did then; any
    /// other is refused, and may be opened for salvage.
    fn recover_on_another_boot(
        &self,
        sim: &Sim,
        history: &History,
        point: &CrashPoint,
    ) -> Result<Option<Live<K>>, Failure> {
        const OTHER: u64 = 1 << 32;
        match self.open(sim, OTHER, OnSuspect::Refuse) {
            Ok(Some((live, opened))) => {
                if !opened.clean {
                    return wrong(oracle::SUSPECT, "a file that was not closed is trusted");
                }
                for key in 0..self.workload.universe {
                    let found = live.find(key)?;
                    history.map.check_synced(&key, point, found).map_err(linearizable)?;
                }
                Ok(Some(live))
            }
            Ok(None) => {
                for key in 0..self.workload.universe {
                    history.map.check_synced(&key, point, None).map_err(linearizable)?;
                }
                Ok(None)
            }
            Err(_) => {
                // Whatever can be read may be shown; nothing else is promised.
                if let Ok(Some((live, _))) = self.open(sim, OTHER, OnSuspect::Salvage) {
                    for key in 0..self.workload.universe {
                        let _ = live.find(key);
                    }
                    let _ = live.instance.index.check();
                }
                Ok(None)
            }
        }
    }
}

fn linearizable(what: String) -> Failure {
    Failure::new(oracle::LINEARIZABLE, what)
}

impl<K: Numbered> Live<K> {
    fn instance(&self) -> &dyn Instance<K> {
        &self.instance
    }

    fn medium(&self) -> &Sim {
        self.instance.pool.medium()
    }

    fn sweep(&self) -> Result<(), Failure> {
        self.instance().sweep().map_err(error_of)
    }

    /// Checks every invariant of the index.
    fn check(&self) -> Result<(), Failure> {
        let problems = self.instance.index.check();
        if problems.is_empty() { Ok(()) } else { wrong(oracle::STRUCTURE, problems.join("; ")) }
    }

    /// Checks every invariant of the index, and that exactly the reachable blocks are allocated.
    fn verify(&self) -> Result<(), Failure> {
        self.check()?;
        match self.instance().audit() {
            problems if problems.is_empty() => Ok(()),
            problems => wrong(oracle::SPACE, problems.join("; ")),
        }
    }

    /// Returns the tag of the word that a key is bound to.
    fn find(&self, key: u64) -> Result<Option<u64>, Failure> {
        let owned = K::owned(self.workload.number(key), self.instance().seed());
        let guard = self.instance.pool.pin();
        let found = self.instance.index.get(K::lend(&owned), &guard).map_err(error_of)?;
        Ok(found.map(|word| self.instance().tag(word)))
    }

    /// Returns a history that begins with the possible states of the keys.
    fn possible_history(&self) -> Result<History, Failure> {
        let mut start: HashMap<u64, BTreeSet<Option<u64>>> =
            self.possible.iter().cloned().collect();
        for key in 0..self.workload.universe {
            if let Entry::Vacant(unknown) = start.entry(key) {
                unknown.insert(BTreeSet::from([self.find(key)?]));
            }
        }
        let boots = Mutex::new(vec![(0, self.boot)]);
        Ok(History { map: MapHistory::allowing(start), boots })
    }

    /// Returns the pairs, and checks that a walk shows no others.
    fn contents(&self) -> Result<Vec<(u64, u64)>, Failure> {
        let mut pairs = Vec::new();
        for number in 0..self.workload.universe {
            pairs.extend(self.find(number)?.map(|tag| (number, tag)));
        }
        let (mut shown, mut foreign) = (0, BTreeSet::new());
        let guard = self.instance.pool.pin();
        let mut show = |_, word| {
            match self.instance().tag(word) {
                // Recovery may have died before foreign keys were removed.
                tag if tag < TAGS && foreign.insert(tag >> 1) => {}
                _ => shown += 1,
            }
            true
        };
        self.instance.index.for_each(&guard, &mut show).map_err(error_of)?;
        for place in foreign {
            if self.find(place)? != Some(place << 1 | 1) {
                return wrong(oracle::SCAN, format!("key {place} is shown, but not found"));
            }
        }
        match pairs.len() {
            found if found == shown => Ok(pairs),
            found => {
                wrong(oracle::SCAN, format!("{found} keys are found, but {shown} pairs shown"))
            }
        }
    }

    /// Carries out `op` as a caller does: what was replaced is retired, and what was not put is
    /// discarded.
    fn apply(&self, key: u64, op: MapOp) -> Result<Option<u64>> {
        let owned = K::owned(self.workload.number(key), self.instance().seed());
        let (index, instance) = (&self.instance.index, self.instance());
        let key = || K::lend(&owned);
        let word = |tag| instance.word(key(), tag);
        let mut made = None;
        let guard = self.instance.pool.pin();
        // If words are records, the expected word is not the tag of the record.
        let current = |tag| -> Result<u64> {
            let found = index.get(key(), &guard)?;
            Ok(found.filter(|&word| instance.tag(word) == tag).unwrap_or(tag))
        };
        let change = match op {
            MapOp::Insert(tag) => index.insert(key(), *made.insert(word(tag)?), &guard),
            MapOp::Upsert(tag) => index.upsert(key(), *made.insert(word(tag)?), &guard),
            MapOp::Update(tag) => index.update(key(), *made.insert(word(tag)?), &guard),
            MapOp::Remove => index.remove(key(), &guard),
            MapOp::CompareExchange { expected, new } => {
                let expected = current(expected)?;
                index.compare_exchange(key(), expected, *made.insert(word(new)?), &guard)
            }
            MapOp::RemoveIf(expected) => index.remove_if(key(), current(expected)?, &guard),
            MapOp::Get => index.get(key(), &guard).map(|old| Change { old, new: old }),
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

    /// Carries out changes of different keys as one group.
    fn apply_group(&self, group: &[(u64, MapOp)]) -> Result<Vec<Result<Option<u64>>>> {
        let (index, instance) = (&self.instance.index, self.instance());
        let owned: Vec<K::Owned> = group
            .iter()
            .map(|&(key, _)| K::owned(self.workload.number(key), instance.seed()))
            .collect();
        let keys: Vec<K::Ref<'_>> = owned.iter().map(K::lend).collect();
        let guard = self.instance.pool.pin();
        let made: Vec<Option<u64>> = group
            .iter()
            .zip(&keys)
            .map(|(&(_, op), &key)| match op {
                MapOp::Insert(tag) | MapOp::Upsert(tag) | MapOp::Update(tag) => {
                    instance.word(key, tag).ok()
                }
                _ => None,
            })
            .collect();
        let mut out: Vec<Result<Change>> = group.iter().map(|_| Ok(Change::default())).collect();
        let decide = &mut |at: usize, old: Option<u64>| {
            let put = made[at].map_or(Action::Keep, Action::Put);
            match (group[at].1, old) {
                (MapOp::Insert(_), None) | (MapOp::Update(_), Some(_)) => put,
                (MapOp::Upsert(_), _) => put,
                (MapOp::Remove, Some(_)) => Action::Remove,
                _ => Action::Keep,
            }
        };
        index.mutate_many(&keys, MutateMode::MayInsert, &guard, decide, &mut out);
        let finish = |(change, made): (Result<Change>, Option<u64>)| {
            let put = change.as_ref().ok().and_then(|change| change.new);
            if let Some(made) = made.filter(|&made| put != Some(made)) {
                instance.discard(made);
            }
            let change = change?;
            let seen = change.old.map(|word| instance.tag(word));
            if let Some(old) = change.old.filter(|_| change.changed()) {
                instance.retire(old, &guard);
            }
            Ok(seen)
        };
        Ok(out.into_iter().zip(made.iter().copied()).map(finish).collect())
    }

    /// Runs changes of different keys as one group.
    fn run_group(&self, history: &History, group: &[(u64, MapOp)]) -> Result<(), Failure> {
        let m = self.medium();
        let begin = |&(key, op): &(u64, MapOp)| history.map.begin(m, key, op);
        let numbers: Vec<u64> = group.iter().map(begin).collect();
        let results = self.apply_group(group).map_err(error_of)?;
        for (number, result) in numbers.into_iter().zip(results) {
            match result {
                Ok(seen) => history.map.end(m, number, seen),
                Err(error) if error.is_no_space() => history.map.fail(m, number),
                Err(error) => return Err(error_of(error)),
            }
        }
        Ok(())
    }

    /// Runs verbs one after the other, as groups if the workload wants that.
    fn run_in_turn(&self, history: &History, mut verbs: &[Verb]) -> Result<(), Failure> {
        while let [verb, rest @ ..] = verbs {
            let group = if self.workload.grouped { Verb::group(verbs) } else { Vec::new() };
            verbs = match group.len() {
                0 | 1 => {
                    self.run_verb(history, *verb)?;
                    rest
                }
                count => {
                    self.run_group(history, &group)?;
                    &verbs[count..]
                }
            };
        }
        Ok(())
    }

    fn run_verb(&self, history: &History, verb: Verb) -> Result<(), Failure> {
        let Verb::Op(key, op) = verb else { return self.sweep() };
        let number = history.map.begin(self.medium(), key, op);
        match self.apply(key, op) {
            Ok(seen) => history.map.end(self.medium(), number, seen),
            Err(error) if error.is_no_space() => history.map.fail(self.medium(), number),
            Err(error) => return Err(error_of(error)),
        }
        Ok(())
    }

    /// Inserts or removes these foreign keys. That does not touch what a crash has left elsewhere.
    fn change_cluster(&self, foreign: &[u64], insert: bool) -> Result<(), Failure> {
        for &place in foreign {
            let op = if insert { MapOp::Insert(place << 1 | 1) } else { MapOp::Remove };
            match self.apply(place, op) {
                Err(error) if !error.is_no_space() => return Err(error_of(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs the calls of several threads in parallel, those of each thread in order.
    fn run_parallel(&self, history: &History, calls: &[Call]) -> Result<(), Failure> {
        let most = calls.iter().map(|call| call.thread).max().unwrap_or(0);
        let run = |thread: u64| -> Result<(), Failure> {
            let own = calls.iter().filter(|call| call.thread == thread);
            self.run_in_turn(history, &own.map(|call| call.verb).collect::<Vec<_>>())
        };
        let bodies =
            (1..=most).map(|thread| -> Box<dyn FnOnce() -> Result<(), Failure> + Send + '_> {
                Box::new(move || run(thread))
            });
        self.medium().in_parallel(bodies.collect()).into_iter().collect()
    }

    /// Runs verbs by one thread, or by two if the workload has several threads.
    fn run_verbs(
        &self,
        history: &History,
        verbs: impl Iterator<Item = Verb>,
    ) -> Result<(), Failure> {
        if self.workload.threads < 2 {
            return verbs.into_iter().try_for_each(|verb| self.run_verb(history, verb));
        }
        let call = |(at, verb)| Call { thread: at as u64 % 2 + 1, verb };
        self.run_parallel(history, &verbs.enumerate().map(call).collect::<Vec<_>>())
    }

    /// Checks that the index holds what it must after the operations of this history.
    fn agrees(&self, history: &History) -> Result<(), Failure> {
        let mut found: HashMap<u64, u64> = self.contents()?.into_iter().collect();
        (0..self.workload.universe).try_for_each(|key| {
            let now = history.map.check_now(&key, found.remove(&key));
            now.map_err(|what| Failure::new(oracle::MODEL, what))
        })
    }
}

impl<K: Numbered> Crashed<'_, K> {
    /// Makes a call of the main thread.
    fn call(
        &self,
        sim: &Sim,
        live: Live<K>,
        history: &History,
        verb: Verb,
    ) -> Result<Live<K>, Failure> {
        match verb {
            Verb::Op(..) | Verb::Sweep => {
                live.run_verb(history, verb)?;
                Ok(live)
            }
            // Irrelevant for the index.
            Verb::Checkpoint => Ok(live),
            Verb::Die => {
                let boot = live.boot;
                drop(live);
                self.reopen(sim, boot)
            }
            Verb::Close => {
                live.instance.close().map_err(error_of)?;
                drop(live);
                let opening = history.map.begin(sim, 0, MapOp::Get);
                let live = self.reopen(sim, history.restarted(opening))?;
                history.map.end(sim, opening, live.find(0)?);
                Ok(live)
            }
        }
    }
}

impl<K: Numbered> sim::Subject for Crashed<'_, K> {
    type Call = Call;
    type History = History;
    type Live = Option<Live<K>>;

    fn workload(&self, seed: u64) -> Vec<Call> {
        self.workload.calls(seed)
    }

    fn run(&self, sim: &Sim, calls: &[Call]) -> Result<History, Failure> {
        let mut history = History::new(Vec::new(), 0);
        if self.workload.reused {
            self.fill_space(sim).map_err(error_of)?;
        }
        // The creation is an operation too: after its end the index must exist.
        let created = history.map.begin(sim, 0, MapOp::Get);
        let pool = self.create_pool(sim).map_err(error_of)?;
        let mut live = self.create(pool).map_err(error_of)?;
        history.map.end(sim, created, None);
        let grouped = self.workload.grouped;
        let is_op = |call: &Call| call.thread == 0 && matches!(call.verb, Verb::Op(..));
        for calls in
            calls.chunk_by(|a, b| a.thread > 0 && b.thread > 0 || grouped && is_op(a) && is_op(b))
        {
            live = match calls {
                [first, _, ..] if is_op(first) => {
                    let verbs: Vec<_> = calls.iter().map(|call| call.verb).collect();
                    live.run_in_turn(&history, &verbs)?;
                    live
                }
                [Call { verb: Verb::Checkpoint, .. }] => {
                    history = History::new(live.contents()?, live.boot);
                    sim.checkpoint();
                    live
                }
                [Call { thread: 0, verb }] => self.call(sim, live, &history, *verb)?,
                calls => {
                    live.run_parallel(&history, calls)?;
                    live
                }
            }
        }
        if self.workload.threads > 1 {
            // The results of the threads must be consistent even without a crash.
            live.agrees(&history)?;
        }
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &History,
        point: &CrashPoint,
    ) -> Result<Option<Live<K>>, Failure> {
        if self.other_boot {
            return self.recover_on_another_boot(sim, history, point);
        }
        let boot = history.boot_at(point);
        let open = || -> Result<Option<Live<K>>, Failure> {
            let open = self.open(sim, boot, OnSuspect::Refuse).map_err(error_of)?;
            if open.is_none() && point.ended() > 0 {
                return wrong(oracle::CREATED, "the index is gone");
            }
            Ok(open.map(|(live, _)| live))
        };
        let mut live = open()?;
        let mut before = None;
        let first = if self.scrutiny < Scrutiny::Everything {
            First::Keys
        } else {
            First::of(point, &self.workload)
        };
        // In some cases the process dies again after all keys were looked up.
        if first == First::Lookups
            && let Some(first) = live
        {
            before = Some(first.contents()?);
            drop(first);
            live = open()?;
        }
        let cluster = match &live {
            Some(live) if first == First::Growth => {
                let last = point.begun().checked_sub(1).and_then(|op| history.map.key_of(op));
                let (near, choice) = (last.unwrap_or(0), point.record() as u64 / 4);
                self.workload.cluster::<K>(near, choice, live.instance().seed())
            }
            _ => Vec::new(),
        };
        match (&live, first) {
            (Some(live), First::Sweep) => live.sweep()?,
            (Some(live), First::Growth) => live.change_cluster(&cluster, true)?,
            _ => {}
        }
        let unchecked = |key: &u64| first == First::Operations && !key.is_multiple_of(8);
        for key in 0..self.workload.universe {
            if let Some(live) = live.as_mut().filter(|_| unchecked(&key)) {
                live.possible.push((key, history.map.allowed(&key, point)));
                continue;
            }
            // The index may be missing before its creation has returned.
            let found = live.as_ref().map_or(Ok(None), |live| live.find(key))?;
            history.map.check(&key, point, found).map_err(linearizable)?;
        }
        if let Some(live) = live.as_ref().filter(|_| first == First::Growth) {
            live.change_cluster(&cluster, false)?;
        }
        if let Some(live) = live.as_ref().filter(|_| self.scrutiny < Scrutiny::Everything) {
            live.check()?;
        }
        if let (Some(live), Some(before)) = (&live, before)
            && live.contents()? != before
        {
            return wrong(oracle::TWICE, "after a second recovery the index holds other pairs");
        }
        Ok(live)
    }

    fn probe(&self, live: Option<Live<K>>, seed: u64) -> Result<History, Failure> {
        let Some(live) = live.filter(|_| self.scrutiny > Scrutiny::Lookups) else {
            return Ok(History::new(Vec::new(), 0));
        };
        let mut rng = Rng::new(seed ^ 0x70726f6265);
        let history = if live.possible.is_empty() {
            History::new(live.contents()?, live.boot)
        } else {
            live.possible_history()?
        };
        // In some cases enough that the structure changes once more.
        let most = self.workload.universe.min(80);
        let ops = if chance(&mut rng, 15) { most } else { 6 };
        live.run_verbs(&history, self.workload.draw(&mut rng, ops, 75))?;
        if self.scrutiny == Scrutiny::Probe {
            live.agrees(&history)?;
            live.check()?;
            return Ok(history);
        }
        if !live.instance.pool.is_swept() {
            live.sweep()?;
        }
        live.agrees(&history)?;
        live.verify()?;
        // Any key can be removed.
        let third = || (0..live.workload.universe).step_by(3);
        live.run_verbs(&history, third().map(|key| Verb::Op(key, MapOp::Remove)))?;
        for key in third() {
            if live.find(key)?.is_some() {
                return wrong(
                    oracle::REMOVED,
                    format!("key {key} is still there after its removal"),
                );
            }
        }
        live.agrees(&history)?;
        live.verify()?;
        Ok(history)
    }

    fn op_name(&self, history: &History, op: u64) -> String {
        history.map.name(op)
    }
}

/// What is done first with a recovered index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Sweep,
    /// Growth in one part of the index.
    Growth,
    /// Operations on keys that have not been looked up.
    Operations,
    /// Lookups of all keys, twice.
    Lookups,
    /// Lookups of all keys.
    Keys,
}

impl First {
    fn of(point: &CrashPoint, workload: &Workload) -> Self {
        use First::{Growth, Lookups, Operations, Sweep};
        let firsts = if workload.prepared {
            [Growth, Growth, Growth, Lookups]
        } else {
            [Sweep, Growth, Operations, Lookups]
        };
        firsts[point.record() % 4]
    }
}
