//! Crash campaigns: an index, its heap and its region, crashed everywhere by the simulator.
//!
//! A workload runs once on the simulated medium, on a geometry so small that some hundred calls lead through every
//! structural change. At every point where a crash could matter, the images that it could leave are opened,
//! judged by every rule in [`oracle`], used further, and crashed again.
//!
//! [`crash_campaign!`](crate::crash_campaign) gives all of it to an index in one line.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use evermap_pm::pool::Pool;
use evermap_pm::region::{Identity, OnSuspect, Opened, Region, RegionConfig};
use evermap_pm::sim::battery::{Battery, On, Trial};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, ImageConfig, Model, Nested, Report, Sim, Wrong};
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Medium, PmU64};

use super::erased::Erased;
use super::keys::{Numbered, Plain};
use super::persistence::{PoolInstance, PoolSubject, ROOT};
use super::{Instance, chance};
use crate::{Bytes, Change, Index, Persistent, Result};

/// The rules by which a recovered index is judged.
pub mod oracle {
    /// What was acknowledged is there, what was not is there wholly or not at all, key by key.
    pub const LINEARIZABLE: &str = "durable linearizability";
    /// Whoever was told that the index exists finds it.
    pub const CREATED: &str = "creation is durable";
    /// Looking up every key shows what going through all pairs shows.
    pub const SCAN: &str = "lookups and scans agree";
    /// The index finds nothing wrong with itself.
    pub const STRUCTURE: &str = "structure";
    /// What is allocated is what can be reached, once.
    pub const SPACE: &str = "no leak";
    /// Further operations answer as those of a map do.
    pub const MODEL: &str = "answers of further operations";
    /// What is removed is gone.
    pub const REMOVED: &str = "removal";
    /// A second recovery shows what the first one did.
    pub const TWICE: &str = "recovery is idempotent";
    /// An opener is told whether it can trust what it finds.
    pub const SUSPECT: &str = "suspect files are refused";
    /// Every error says that something is wrong.
    pub const ERRORS: &str = "answers";
    /// Nothing panics.
    pub const PANIC: &str = "no panic";
    /// Nothing goes on for ever.
    pub const STEPS: &str = "bounded steps";
    /// All of them.
    pub const ALL: [&str; 12] = [
        LINEARIZABLE,
        CREATED,
        SCAN,
        STRUCTURE,
        SPACE,
        MODEL,
        REMOVED,
        TWICE,
        SUSPECT,
        ERRORS,
        PANIC,
        STEPS,
    ];
}

/// Keys that no history speaks of, unless keys are their own hashes.
const STRANGERS: u64 = 160;
/// The same in each corner where keys are their own hashes.
const CROWD: u64 = 16;
/// From this bit of hashes on, so many bits are those by which linear hashing tells segments apart.
const LOW_AT: u64 = 24;
/// See [`LOW_AT`].
const LOW_BITS: u64 = 5;
/// What these bits can be.
const LOWS: u64 = 1 << LOW_BITS;
/// Tags of such keys are less.
const TAGS: u64 = 1 << 20;

/// How a workload is shaped.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Distinct keys.
    pub universe: u64,
    /// Whether there are the more hashes the nearer to zero, where keys are their own hashes, and
    /// the nearest come first: so a directory gets deep while much of it names few segments.
    pub skewed: bool,
    /// Whether the first calls make a directory deep, and are not crashed.
    pub prepared: bool,
    /// Operations.
    pub ops: u64,
    /// Whether the pool is closed and opened in between, with and without order, and swept.
    pub reopen: bool,
    /// Threads that run in parallel in the end, each with a few operations; none if it is less than two. Only that
    /// part is crashed then.
    pub threads: u64,
    /// Whether these threads hardly ever meet on a key, but insert new ones, so that their structure changes meet.
    pub fresh: bool,
    /// Whether all space has been used before, and is full of what was there; creating the pool is not crashed then.
    pub littered: bool,
    /// Bytes of the pool.
    pub capacity: u64,
    /// Bytes of an extent.
    pub extent_size: u64,
}

impl Workload {
    /// So many keys that ranges of several directory entries are split, not only directories doubled.
    pub const GROWING: Workload = Workload {
        universe: 300,
        skewed: false,
        prepared: false,
        ops: 700,
        reopen: false,
        threads: 0,
        fresh: false,
        littered: false,
        capacity: 256 << 10,
        extent_size: 4096,
    };
    /// Lives that end in and out of order, with sweeps in between.
    pub const REOPENING: Workload =
        Workload { universe: 200, ops: 500, reopen: true, ..Workload::GROWING };
    /// So few keys that every crash point gets its share of images.
    pub const FEW_KEYS: Workload =
        Workload { universe: 40, ops: 160, capacity: 128 << 10, ..Workload::REOPENING };
    /// Wide ranges of a directory, whose entries lie in several lines.
    pub const SKEWED: Workload = Workload { universe: 160, skewed: true, ..Workload::GROWING };
    /// The same, in space that was used before.
    pub const USED: Workload = Workload { littered: true, ..Workload::SKEWED };
    /// Splits of wide ranges and little else, crashed up to three times in a row; after each crash
    /// one half grows until it is split in turn, before anybody comes by the other.
    pub const ONE_SIDED: Workload =
        Workload { universe: 240, ops: 80, prepared: true, ..Workload::SKEWED };
    /// Threads whose operations meet on few keys, beside structural changes and recovery.
    pub const PARALLEL: Workload =
        Workload { universe: 40, ops: 60, threads: 3, reopen: false, ..Workload::FEW_KEYS };
    /// Threads whose structure changes meet.
    pub const CROWDED: Workload =
        Workload { universe: 240, ops: 60, fresh: true, ..Workload::PARALLEL };
}

/// One call of a workload. As text: `upsert 3 17`, `remove 3`, `die`, ...; in parallel `2: upsert 3 17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread that makes it, 0 for the one that is alone. Neighbouring calls of other threads run in parallel.
    pub thread: u64,
    /// What it does.
    pub verb: Verb,
}

/// What a [`Call`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// An operation on the key with this number.
    Op(u64, MapOp),
    /// The process dies, and another one opens the pool.
    Die,
    /// The pool is closed; then the machine restarts, and the pool is opened.
    Close,
    /// What an unclean stop left behind is found out.
    Sweep,
    /// Only what is done from here on is crashed.
    Checkpoint,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.thread > 0 {
            write!(f, "{}: ", self.thread)?;
        }
        match self.verb {
            Verb::Op(key, MapOp::Get) => write!(f, "get {key}"),
            Verb::Op(key, MapOp::Insert(tag)) => write!(f, "insert {key} {tag}"),
            Verb::Op(key, MapOp::Update(tag)) => write!(f, "update {key} {tag}"),
            Verb::Op(key, MapOp::Upsert(tag)) => write!(f, "upsert {key} {tag}"),
            Verb::Op(key, MapOp::Remove) => write!(f, "remove {key}"),
            Verb::Op(key, MapOp::CompareExchange { expected, new }) => {
                write!(f, "compare_exchange {key} {expected} {new}")
            }
            Verb::Op(key, MapOp::RemoveIf(tag)) => write!(f, "remove_if {key} {tag}"),
            Verb::Die => write!(f, "die"),
            Verb::Close => write!(f, "close"),
            Verb::Sweep => write!(f, "sweep"),
            Verb::Checkpoint => write!(f, "checkpoint"),
        }
    }
}

impl FromStr for Call {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read_call(text).ok_or_else(|| format!("not a call: {text:?}"))
    }
}

fn read_call(text: &str) -> Option<Call> {
    let (thread, text) = text.split_once(": ").unwrap_or(("0", text));
    let words: Vec<&str> = text.split_whitespace().collect();
    let numbers: Vec<u64> =
        words.iter().skip(1).map(|word| word.parse()).collect::<Result<_, _>>().ok()?;
    let verb = match (*words.first()?, &numbers[..]) {
        ("get", &[key]) => Verb::Op(key, MapOp::Get),
        ("insert", &[key, tag]) => Verb::Op(key, MapOp::Insert(tag)),
        ("update", &[key, tag]) => Verb::Op(key, MapOp::Update(tag)),
        ("upsert", &[key, tag]) => Verb::Op(key, MapOp::Upsert(tag)),
        ("remove", &[key]) => Verb::Op(key, MapOp::Remove),
        ("compare_exchange", &[key, expected, new]) => {
            Verb::Op(key, MapOp::CompareExchange { expected, new })
        }
        ("remove_if", &[key, tag]) => Verb::Op(key, MapOp::RemoveIf(tag)),
        ("die", []) => Verb::Die,
        ("close", []) => Verb::Close,
        ("sweep", []) => Verb::Sweep,
        ("checkpoint", []) => Verb::Checkpoint,
        _ => return None,
    };
    Some(Call { thread: thread.parse().ok()?, verb })
}

impl Workload {
    /// The calls of a seed.
    pub fn calls(&self, seed: u64) -> Vec<Call> {
        let mut rng = Rng::new(seed);
        let mut calls = Vec::new();
        let mut alone = |verb| calls.push(Call { thread: 0, verb });
        if self.threads > 1 {
            self.draw_parallel(&mut rng, &mut calls);
            return calls;
        }
        if self.prepared {
            let insert = |key| Verb::Op(key, MapOp::Insert(key << 32 | TAGS | 1));
            (0..self.universe / 2).map(insert).for_each(&mut alone);
            alone(Verb::Checkpoint);
            // The others, spread over its wide ranges.
            let wide = Workload { universe: self.universe / 2, ..*self };
            for verb in wide.draw(&mut rng, self.ops, 90) {
                let Verb::Op(key, op) = verb else { continue };
                alone(Verb::Op(self.universe / 2 + key, op));
            }
            return calls;
        }
        let part = self.ops / 4;
        if self.skewed {
            let narrow = Workload { universe: self.universe / 2, ..*self };
            narrow.draw(&mut rng, self.ops / 2, 90).for_each(&mut alone);
        }
        self.draw(&mut rng, part, 80).for_each(&mut alone);
        if self.reopen {
            alone(Verb::Die);
            self.draw(&mut rng, part / 2, 60).for_each(&mut alone);
            alone(Verb::Sweep);
            self.draw(&mut rng, part / 2, 60).for_each(&mut alone);
            alone(Verb::Close);
        } else {
            self.draw(&mut rng, part, 70).for_each(&mut alone);
        }
        self.draw(&mut rng, part, 10).for_each(&mut alone);
        if self.universe <= 64 {
            // Until nothing is left.
            (0..self.universe).map(|key| Verb::Op(key, MapOp::Remove)).for_each(&mut alone);
        }
        self.draw(&mut rng, part, 50).for_each(&mut alone);
        calls
    }

    /// Random operations, so many percent of them insertions.
    fn draw<'r>(
        &self,
        rng: &'r mut Rng,
        ops: u64,
        inserts: u64,
    ) -> impl Iterator<Item = Verb> + use<'r> {
        let universe = self.universe;
        (0..ops).map(move |_| {
            let key = rng.below(universe);
            let tag = rng.draw() >> 16 | 1;
            let op = match rng.below(100) {
                n if n < inserts => match rng.below(3) {
                    0 => MapOp::Insert(tag),
                    _ => MapOp::Upsert(tag),
                },
                n if n < 90 => MapOp::Remove,
                n if n < 95 => MapOp::Update(tag),
                _ => MapOp::Get,
            };
            Verb::Op(key, op)
        })
    }

    /// The number of the key at this place of the universe, or behind it, where strangers are.
    fn number(&self, place: u64) -> u64 {
        if !self.skewed {
            return place;
        }
        let spread = Rng::new(place).draw();
        let Some(stranger) = place.checked_sub(self.universe) else {
            let nearer = if place < self.universe / 2 { 6 } else { 3 };
            return (spread | 1 << 63) >> (place % nearer);
        };
        let crowd = stranger / CROWD;
        let (prefix, low) = (crowd / LOWS, crowd % LOWS);
        // First the bits of the prefix below its highest, then a one, then zeros up to the twelfth.
        let begin = (prefix << 1 | 1) << (63 - prefix.ilog2());
        begin | spread >> 12 & !((LOWS - 1) << LOW_AT) | low << LOW_AT
    }

    /// Strangers, keys that no history speaks of, which crowd into one corner of the index near the
    /// key at a place: their hashes agree in three bits at either end.
    ///
    /// Where keys are their own hashes they agree in all that a directory of this size goes by, and
    /// belong to the first entry of an upper half that the segment of that key may have been split
    /// into: the one entry that a crash in the split cannot have lost. Their numbers for linear
    /// hashing agree too, and differ from that key's in one bit.
    fn crowd<K: Numbered>(&self, near: u64, choice: u64, seed: u64) -> Vec<u64> {
        if self.skewed {
            let near = self.number(near);
            let depth = u64::from(near.leading_zeros().min(5)) + 1 + choice % 2;
            let prefix = 1 << depth | near >> (64 - depth);
            let other_bit = 1 << (choice / 2 % LOW_BITS);
            let crowd = prefix * LOWS + ((near >> LOW_AT ^ other_bit) & (LOWS - 1));
            return (0..CROWD).map(|stranger| self.universe + crowd * CROWD + stranger).collect();
        }
        let corner = |place: u64| {
            let hash = K::hash(K::lend(&K::owned(self.number(place), seed)), seed);
            if choice & 2 == 0 { hash >> 61 } else { hash >> 24 & 7 }
        };
        let corner_near = corner(near) ^ choice & 1;
        let strangers = self.universe..self.universe + STRANGERS;
        strangers.filter(|&place| corner(place) == corner_near).collect()
    }

    /// First some calls that lead to any state, then a few of each thread. Half of the threads' operations meet on
    /// three keys.
    fn draw_parallel(&self, rng: &mut Rng, calls: &mut Vec<Call>) {
        let before = if self.fresh { 0 } else { self.ops / 2 } + rng.below(self.ops);
        let mut alone = |verb| calls.push(Call { thread: 0, verb });
        self.draw(rng, before, 85).for_each(&mut alone);
        if !self.fresh && rng.one_in(3) {
            self.draw(rng, self.ops / 2, 10).for_each(&mut alone);
        }
        // What one thread does alone is crashed elsewhere.
        alone(Verb::Checkpoint);
        let dies = rng.one_in(2);
        if dies {
            alone(Verb::Die);
        }
        let hot: Vec<u64> = (0..3).map(|_| rng.below(self.universe)).collect();
        let inserts = if self.fresh { 90 } else { *rng.pick(&[30, 60, 90]) };
        let rounds = if self.fresh { 12 } else { 3 };
        for _ in 0..rounds + rng.below(5) {
            for thread in 1..=self.threads {
                let drawn = self.draw(rng, 1, inserts).next().expect("one");
                let verb = match drawn {
                    Verb::Op(key, _) if rng.one_in(5) => Verb::Op(key, MapOp::Get),
                    Verb::Op(_, op) if !self.fresh && rng.one_in(2) => {
                        Verb::Op(*rng.pick(&hot), op)
                    }
                    verb => verb,
                };
                calls.push(Call { thread, verb });
            }
        }
        if dies && rng.one_in(2) {
            calls.push(Call { thread: self.threads + 1, verb: Verb::Sweep });
        }
    }
}

/// What the callers of an index asked and were told, and on which machine.
pub struct History {
    map: MapHistory<u64>,
    /// The first operation after each restart of the machine, and how often that has restarted then.
    boots: Mutex<Vec<(u64, u64)>>,
}

impl History {
    /// Of an index that holds these pairs, on a machine that has restarted so often.
    fn new(pairs: Vec<(u64, u64)>, boot: u64) -> Self {
        History { map: MapHistory::new(pairs), boots: Mutex::new(vec![(0, boot)]) }
    }

    fn restarted(&self, op: u64) -> u64 {
        let mut boots = self.boots.lock().expect("no panics while held");
        let boot = boots.last().expect("never empty").1 + 1;
        boots.push((op, boot));
        boot
    }

    /// How often the machine had restarted before the crash.
    fn boot_at(&self, point: &CrashPoint) -> u64 {
        let boots = self.boots.lock().expect("no panics while held");
        let begun = boots.iter().rev().find(|(op, _)| *op < point.begun());
        begun.unwrap_or(&boots[0]).1
    }
}

/// The machine and the file, as the region remembers them.
fn identity(boot: u64) -> Identity {
    Identity { boot: [0xb007, boot], device: 1, inode: 2, birth: 3 }
}

/// A workload on an index, as a subject of the simulator.
#[derive(Debug)]
pub struct Crashed<K, P> {
    subject: P,
    workload: Workload,
    /// Whether recovery begins on another machine than the one that crashed.
    restarts: bool,
    care: Care,
    keys: std::marker::PhantomData<fn() -> K>,
}

/// How much is asked of a recovered index: each asks what those before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Care {
    /// All keys are looked up, and the index looks for faults in itself.
    Lookups,
    /// It is used further, and must answer as a map does.
    Probe,
    /// It is swept, so that what is allocated must be what can be reached; and it meets that, growth or operations
    /// before anybody has looked at a key.
    Everything,
}

/// A pool and an index while they are open.
pub struct Live<K: Numbered, P: PoolSubject<K>> {
    instance: PoolInstance<Sim, P::Index<Sim>>,
    workload: Workload,
    boot: u64,
    /// What keys that nobody has looked at since recovery began may be bound to.
    possible: Vec<(u64, BTreeSet<Option<u64>>)>,
}

fn text(error: Error) -> Wrong {
    Wrong::new(oracle::ERRORS, error.to_string())
}

fn wrong<T>(oracle: &'static str, what: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong::new(oracle, what))
}

impl<K: Numbered, P: PoolSubject<K>> Crashed<K, P> {
    /// Workload `workload` on the index that `subject` makes.
    pub fn new(subject: P, workload: Workload) -> Self {
        let keys = std::marker::PhantomData;
        Crashed { subject, workload, restarts: false, care: Care::Everything, keys }
    }

    /// The same; but of what is recovered no more is asked than this.
    pub fn asking(self, care: Care) -> Self {
        Crashed { care, ..self }
    }

    /// The same; but every crash is one of the machine, whose memory loses pages of the file.
    pub fn restarting(self) -> Self {
        Crashed { restarts: true, ..self }
    }

    fn create_pool(&self, sim: &Sim) -> Result<Arc<Pool<Sim>>> {
        let Workload { capacity, extent_size, .. } = self.workload;
        let config = RegionConfig { extent_size, capacity, seed: Some(7) };
        Pool::create(sim.clone(), &config, identity(0))
    }

    /// Fills the space of extents with something, as if it had been used before.
    fn litter(&self, sim: &Sim) -> Result<()> {
        sim.pause();
        let first = self.create_pool(sim)?.region().extent_offset(0);
        sim.grow(sim.capacity())?;
        for offset in (first..sim.len()).step_by(8) {
            let cell: &PmU64 = sim.at(offset).expect("within the medium");
            sim.store(cell, Rng::new(offset).draw());
        }
        sim.checkpoint();
        Ok(())
    }

    fn create(&self, pool: Arc<Pool<Sim>>) -> Result<Live<K, P>> {
        let index =
            Persistent::create(pool.clone(), pool.root(ROOT), self.subject.config::<Sim>())?;
        let instance = PoolInstance { pool, index };
        Ok(Live { instance, workload: self.workload, boot: 0, possible: Vec::new() })
    }

    /// The index, or nothing where the crash came before its creation was complete.
    fn open(
        &self,
        sim: &Sim,
        boot: u64,
        on_suspect: OnSuspect,
    ) -> Result<Option<(Live<K, P>, Opened)>> {
        if Region::is_blank(sim) {
            return Ok(None);
        }
        let (pool, opened) = Pool::open(sim.clone(), identity(boot), on_suspect)?;
        if sim.load(pool.root(ROOT)) == 0 {
            return Ok(None);
        }
        let index = Persistent::open(pool.clone(), pool.root(ROOT))?;
        let instance = PoolInstance { pool, index };
        let live = Live { instance, workload: self.workload, boot, possible: Vec::new() };
        Ok(Some((live, opened)))
    }

    fn reopen(&self, sim: &Sim, boot: u64) -> Result<Live<K, P>, Wrong> {
        let open = self.open(sim, boot, OnSuspect::Refuse).map_err(text)?;
        open.map(|(live, _)| live).ok_or_else(|| Wrong::new(oracle::CREATED, "the index is gone"))
    }

    /// Recovery after a restart of the machine: a file that was closed holds what it did then; any other is
    /// refused, and may be asked for what is left of it.
    fn recover_restarted(
        &self,
        sim: &Sim,
        history: &History,
        point: &CrashPoint,
    ) -> Result<Option<Live<K, P>>, Wrong> {
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
                // Whatever can be read is shown, and nothing else is promised.
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

fn linearizable(what: String) -> Wrong {
    Wrong::new(oracle::LINEARIZABLE, what)
}

impl<K: Numbered, P: PoolSubject<K>> Live<K, P> {
    fn instance(&self) -> &dyn Instance<K> {
        &self.instance
    }

    fn medium(&self) -> &Sim {
        self.instance.pool.medium()
    }

    fn sweep(&self) -> Result<(), Wrong> {
        self.instance().sweep().map_err(text)
    }

    /// Every invariant.
    fn check(&self) -> Result<(), Wrong> {
        let problems = self.instance.index.check();
        if problems.is_empty() { Ok(()) } else { wrong(oracle::STRUCTURE, problems.join("; ")) }
    }

    /// Every invariant, and that what is taken is what can be reached.
    fn verify(&self) -> Result<(), Wrong> {
        self.check()?;
        match self.instance().audit() {
            problems if problems.is_empty() => Ok(()),
            problems => wrong(oracle::SPACE, problems.join("; ")),
        }
    }

    /// The tag of the word that a key is bound to.
    fn find(&self, key: u64) -> Result<Option<u64>, Wrong> {
        let owned = K::owned(self.workload.number(key), self.instance().seed());
        let guard = self.instance.pool.pin();
        let found = self.instance.index.get(K::lend(&owned), &guard).map_err(text)?;
        Ok(found.map(|word| self.instance().tag(word)))
    }

    /// A history that begins with what is known of the keys.
    fn unlooked(&self) -> Result<History, Wrong> {
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

    /// What the keys are bound to; and nothing else may be there.
    fn contents(&self) -> Result<Vec<(u64, u64)>, Wrong> {
        let mut pairs = Vec::new();
        for number in 0..self.workload.universe {
            pairs.extend(self.find(number)?.map(|tag| (number, tag)));
        }
        let (mut shown, mut strangers) = (0, BTreeSet::new());
        let guard = self.instance.pool.pin();
        let mut show = |_, word| {
            match self.instance().tag(word) {
                // Recovery may have died while strangers were there.
                tag if tag < TAGS && strangers.insert(tag >> 1) => {}
                _ => shown += 1,
            }
            true
        };
        self.instance.index.for_each(&guard, &mut show).map_err(text)?;
        for place in strangers {
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

    /// Carries out `op`, as its caller would: what was replaced is retired, what was not put is taken back.
    fn apply(&self, key: u64, op: MapOp) -> Result<Option<u64>> {
        let owned = K::owned(self.workload.number(key), self.instance().seed());
        let (index, instance) = (&self.instance.index, self.instance());
        let key = || K::lend(&owned);
        let word = |tag| instance.word(key(), tag);
        let mut made = None;
        let guard = self.instance.pool.pin();
        // Where words are records, the tag of one is not what it is compared with.
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

    fn step(&self, history: &History, verb: Verb) -> Result<(), Wrong> {
        let Verb::Op(key, op) = verb else { return self.sweep() };
        let number = history.map.begin(self.medium(), key, op);
        match self.apply(key, op) {
            Ok(seen) => history.map.end(self.medium(), number, seen),
            Err(error) if error.is_no_space() => history.map.fail(self.medium(), number),
            Err(error) => return Err(text(error)),
        }
        Ok(())
    }

    /// Inserts these strangers, or removes them again. What a crash has left elsewhere is not
    /// touched by that.
    fn crowd_in(&self, strangers: &[u64], insert: bool) -> Result<(), Wrong> {
        for &place in strangers {
            let op = if insert { MapOp::Insert(place << 1 | 1) } else { MapOp::Remove };
            match self.apply(place, op) {
                Err(error) if !error.is_no_space() => return Err(text(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs calls of several threads, each thread's in their order.
    fn together(&self, history: &History, calls: &[Call]) -> Result<(), Wrong> {
        let most = calls.iter().map(|call| call.thread).max().unwrap_or(0);
        let run = |thread: u64| -> Result<(), Wrong> {
            for call in calls.iter().filter(|call| call.thread == thread) {
                self.step(history, call.verb)?;
            }
            Ok(())
        };
        let bodies =
            (1..=most).map(|thread| -> Box<dyn FnOnce() -> Result<(), Wrong> + Send + '_> {
                Box::new(move || run(thread))
            });
        self.medium().in_parallel(bodies.collect()).into_iter().collect()
    }

    /// Runs operations: by one thread, or where the workload has several by two of them.
    fn steps(&self, history: &History, verbs: impl Iterator<Item = Verb>) -> Result<(), Wrong> {
        if self.workload.threads < 2 {
            return verbs.into_iter().try_for_each(|verb| self.step(history, verb));
        }
        let call = |(at, verb)| Call { thread: at as u64 % 2 + 1, verb };
        self.together(history, &verbs.enumerate().map(call).collect::<Vec<_>>())
    }

    /// Whether the index holds what it must after the operations of this history.
    fn agrees(&self, history: &History) -> Result<(), Wrong> {
        let mut found: HashMap<u64, u64> = self.contents()?.into_iter().collect();
        (0..self.workload.universe).try_for_each(|key| {
            let now = history.map.check_now(&key, found.remove(&key));
            now.map_err(|what| Wrong::new(oracle::MODEL, what))
        })
    }
}

impl<K: Numbered, P: PoolSubject<K>> Crashed<K, P> {
    /// Makes a call alone.
    fn call(
        &self,
        sim: &Sim,
        live: Live<K, P>,
        history: &History,
        verb: Verb,
    ) -> Result<Live<K, P>, Wrong> {
        match verb {
            Verb::Op(..) | Verb::Sweep => {
                live.step(history, verb)?;
                Ok(live)
            }
            // What is to be crashed is no concern of the index.
            Verb::Checkpoint => Ok(live),
            Verb::Die => {
                let boot = live.boot;
                drop(live);
                self.reopen(sim, boot)
            }
            Verb::Close => {
                live.instance.pool.close().map_err(text)?;
                drop(live);
                let opening = history.map.begin(sim, 0, MapOp::Get);
                let live = self.reopen(sim, history.restarted(opening))?;
                history.map.end(sim, opening, live.find(0)?);
                Ok(live)
            }
        }
    }
}

impl<K: Numbered, P: PoolSubject<K>> sim::Subject for Crashed<K, P> {
    type Call = Call;
    type History = History;
    type Live = Option<Live<K, P>>;

    fn workload(&self, seed: u64) -> Vec<Call> {
        self.workload.calls(seed)
    }

    fn run(&self, sim: &Sim, calls: &[Call]) -> Result<History, Wrong> {
        let mut history = History::new(Vec::new(), 0);
        if self.workload.littered {
            self.litter(sim).map_err(text)?;
        }
        // Whoever is told that this has ended relies on the index.
        let created = history.map.begin(sim, 0, MapOp::Get);
        let pool = self.create_pool(sim).map_err(text)?;
        let mut live = self.create(pool).map_err(text)?;
        history.map.end(sim, created, None);
        for calls in calls.chunk_by(|a, b| a.thread > 0 && b.thread > 0) {
            live = match calls {
                [Call { verb: Verb::Checkpoint, .. }] => {
                    history = History::new(live.contents()?, live.boot);
                    sim.checkpoint();
                    live
                }
                [Call { thread: 0, verb }] => self.call(sim, live, &history, *verb)?,
                calls => {
                    live.together(&history, calls)?;
                    live
                }
            }
        }
        if self.workload.threads > 1 {
            // What threads were told must make sense even if nothing crashes.
            live.agrees(&history)?;
        }
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &History,
        point: &CrashPoint,
    ) -> Result<Option<Live<K, P>>, Wrong> {
        if self.restarts {
            return self.recover_restarted(sim, history, point);
        }
        let boot = history.boot_at(point);
        let open = || -> Result<Option<Live<K, P>>, Wrong> {
            let open = self.open(sim, boot, OnSuspect::Refuse).map_err(text)?;
            if open.is_none() && point.ended() > 0 {
                return wrong(oracle::CREATED, "the index is gone");
            }
            Ok(open.map(|(live, _)| live))
        };
        let mut live = open()?;
        let mut before = None;
        let first = if self.care < Care::Everything {
            First::Keys
        } else {
            First::of(point, &self.workload)
        };
        // Now and then the process dies again just after somebody looked.
        if first == First::Lookups
            && let Some(first) = live
        {
            before = Some(first.contents()?);
            drop(first);
            live = open()?;
        }
        let crowd = match &live {
            Some(live) if first == First::Growth => {
                let last = point.begun().checked_sub(1).and_then(|op| history.map.key_of(op));
                let (near, choice) = (last.unwrap_or(0), point.record() as u64 / 4);
                self.workload.crowd::<K>(near, choice, live.instance().seed())
            }
            _ => Vec::new(),
        };
        match (&live, first) {
            (Some(live), First::Sweep) => live.sweep()?,
            (Some(live), First::Growth) => live.crowd_in(&crowd, true)?,
            _ => {}
        }
        let spared = |key: &u64| first == First::Operations && !key.is_multiple_of(8);
        for key in 0..self.workload.universe {
            if let Some(live) = live.as_mut().filter(|_| spared(&key)) {
                live.possible.push((key, history.map.allowed(&key, point)));
                continue;
            }
            // Nobody was told that the index exists before its creation was complete.
            let found = live.as_ref().map_or(Ok(None), |live| live.find(key))?;
            history.map.check(&key, point, found).map_err(linearizable)?;
        }
        if let Some(live) = live.as_ref().filter(|_| first == First::Growth) {
            live.crowd_in(&crowd, false)?;
        }
        if let Some(live) = live.as_ref().filter(|_| self.care < Care::Everything) {
            live.check()?;
        }
        if let (Some(live), Some(before)) = (&live, before)
            && live.contents()? != before
        {
            return wrong(oracle::TWICE, "recovered again, the index holds something else");
        }
        Ok(live)
    }

    fn probe(&self, live: Option<Live<K, P>>, seed: u64) -> Result<History, Wrong> {
        let Some(live) = live.filter(|_| self.care > Care::Lookups) else {
            return Ok(History::new(Vec::new(), 0));
        };
        let mut rng = Rng::new(seed ^ 0x70726f6265);
        let history = if live.possible.is_empty() {
            History::new(live.contents()?, live.boot)
        } else {
            live.unlooked()?
        };
        // Now and then so many that the structure changes once more.
        let most = self.workload.universe.min(80);
        let ops = if chance(&mut rng, 15) { most } else { 6 };
        live.steps(&history, self.workload.draw(&mut rng, ops, 75))?;
        if self.care == Care::Probe {
            live.agrees(&history)?;
            live.check()?;
            return Ok(history);
        }
        if !live.instance.pool.is_swept() {
            live.sweep()?;
        }
        live.agrees(&history)?;
        live.verify()?;
        // Whatever is there can be removed.
        let third = || (0..live.workload.universe).step_by(3);
        live.steps(&history, third().map(|key| Verb::Op(key, MapOp::Remove)))?;
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

/// What a recovered index meets first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Sweep,
    /// Growth in one corner.
    Growth,
    /// Operations on keys that nobody has looked at.
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

/// How much a campaign tries: `EVERMAP_TESTKIT_SCALE` multiplies it.
fn config(workload: Workload, model: Model) -> sim::Config {
    let config = sim::Config {
        capacity: workload.capacity,
        images: ImageConfig { per_point: 64, ..ImageConfig::of(model) },
        max_images: 4_000 * super::Config::from_env().scale as u64,
        shrink: true,
        ..sim::Config::default()
    };
    match (workload.threads, model) {
        // What matters is the order of threads: it shows in most images or in none.
        (2.., _) if workload.fresh => sim::Config {
            images: ImageConfig { per_point: 2, ..config.images },
            nested: Nested { depth: 0, ..config.nested },
            max_images: 20,
            ..config
        },
        // There are many orders of threads; each gets few images.
        (2.., _) => sim::Config {
            images: ImageConfig { per_point: 8, ..config.images },
            nested: Nested { per_point: 2, every: 512, ..config.nested },
            max_images: 240,
            ..config
        },
        // What is refused is not recovered, so it is not crashed again either.
        (_, Model::PageCache { .. }) => sim::Config {
            images: ImageConfig { per_point: 16, ..config.images },
            nested: Nested { depth: 0, ..config.nested },
            max_images: 3_000,
            ..config
        },
        _ if workload.prepared => {
            sim::Config { nested: Nested { depth: 2, ..config.nested }, ..config }
        }
        _ => config,
    }
}

/// A campaign on `crashed`, whose type it forgets.
fn on<S>(
    name: &'static str,
    crashed: S,
    config: sim::Config,
    first_seed: u64,
) -> On<Erased<Call, History>>
where
    S: sim::Subject<Call = Call, History = History, Live: 'static> + Send + Sync + 'static,
{
    On::new(name, Erased::new(crashed), config, first_seed)
}

/// The same as a trial. Not generic, so that campaigns are compiled with this crate.
fn boxed(campaign: On<Erased<Call, History>>) -> Box<dyn Trial> {
    Box::new(campaign)
}

/// All campaigns on the index that `subject` makes.
pub fn battery<P>(name: &str, planted: &'static [&'static str], subject: P) -> Battery
where
    P: PoolSubject<u64> + PoolSubject<Plain> + PoolSubject<Bytes> + Send + 'static,
{
    let subject = Arc::new(subject);
    let numbers = |name, workload, model, seed| {
        let crashed = Crashed::<u64, _>::new(subject.clone(), workload);
        boxed(on(name, crashed, config(workload, model), seed))
    };
    let page = |name, granule| {
        let (workload, model) = (Workload::FEW_KEYS, Model::PageCache { granule });
        let crashed = Crashed::<u64, _>::new(subject.clone(), workload).restarting();
        boxed(on(name, crashed, config(workload, model), 500))
    };
    let skewed = Crashed::<Plain, _>::new(subject.clone(), Workload::SKEWED);
    let skewed = on("skewed", skewed, config(Workload::SKEWED, Model::Adr), 600);
    let one_sided = Crashed::<Plain, _>::new(subject.clone(), Workload::ONE_SIDED);
    let one_sided = on("one-sided", one_sided, config(Workload::ONE_SIDED, Model::Adr), 700);
    let used = Crashed::<Plain, _>::new(subject.clone(), Workload::USED);
    let used = on("used-space", used, config(Workload::USED, Model::Adr), 600);
    let bytes = Crashed::<Bytes, _>::new(subject.clone(), Workload::FEW_KEYS);
    let bytes = on("byte-keys", bytes, config(Workload::FEW_KEYS, Model::Adr), 400);
    let parallel = Crashed::<u64, _>::new(subject.clone(), Workload::PARALLEL);
    let parallel = on("parallel", parallel, config(Workload::PARALLEL, Model::Adr), 1000);
    let together = Crashed::<Bytes, _>::new(subject.clone(), Workload::PARALLEL);
    let together = on("parallel-byte-keys", together, config(Workload::PARALLEL, Model::Adr), 2000);
    let crowded = Crashed::<u64, _>::new(subject.clone(), Workload::CROWDED);
    let crowded = on("crowded", crowded, config(Workload::CROWDED, Model::Adr), 3000);
    let trials = vec![
        numbers("few-keys", Workload::FEW_KEYS, Model::Adr, 300),
        boxed(one_sided),
        numbers("reopening", Workload::REOPENING, Model::Adr, 100),
        numbers("growing", Workload::GROWING, Model::Adr, 0),
        boxed(skewed),
        boxed(used),
        boxed(bytes),
        boxed(parallel.in_parallel(25)),
        boxed(together.in_parallel(25)),
        boxed(crowded.in_parallel(400)),
        numbers("process-death", Workload::REOPENING, Model::ProcessDeath, 200),
        page("page-cache", 4096),
        page("torn-pages", 512),
    ];
    Battery { name: name.replace('_', "-"), trials, planted }
}

/// Campaigns that show what it costs to ask more of a recovered index: in a pool of 64 KiB, so many images of each
/// seed.
pub fn costs<P>(name: &str, subject: P, max_images: u64) -> Battery
where
    P: PoolSubject<u64> + Send + 'static,
{
    let subject = Arc::new(subject);
    let workload = Workload { universe: 32, capacity: 64 << 10, ..Workload::FEW_KEYS };
    let config = sim::Config { max_images, ..config(workload, Model::Adr) };
    let flat = sim::Config { nested: Nested { depth: 0, ..config.nested }, ..config };
    let asking = |name, care, config| {
        let crashed = Crashed::<u64, _>::new(subject.clone(), workload).asking(care);
        boxed(on(name, crashed, config, 300))
    };
    let trials = vec![
        asking("lookups and check", Care::Lookups, flat),
        asking("and a probe", Care::Probe, flat),
        asking("and a sweep", Care::Everything, flat),
        asking("and nested crashes", Care::Everything, config),
    ];
    Battery { name: name.to_owned(), trials, planted: &[] }
}

/// Crashes the workloads of `seeds` under `model`.
///
/// # Panics
/// With the report if a crash leads to a violation, or hardly any image was built.
pub fn assert_survives<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    workload: Workload,
    model: Model,
    seeds: Range<u64>,
) {
    let crashed = Crashed::<K, &P>::new(subject, workload);
    assert_clean(&sim::campaign::run(&crashed, &config(workload, model), seeds));
}

/// Runs one campaign of a battery.
///
/// # Panics
/// As [`assert_survives`]; also if there is no such campaign.
pub fn assert_trial(battery: &Battery, trial: &str, seeds: u64) {
    let trial =
        battery.trials.iter().find(|other| other.name() == trial).expect("a known campaign");
    assert_clean(&battery.run(&**trial, 0..seeds));
}

fn assert_clean(report: &Report) {
    println!("{report}");
    report.assert_clean();
    assert!(report.images > 1000, "only {} images", report.images);
}

/// Declares a module of crash campaigns: `crash_campaign!(name, subject)` for a [`PoolSubject`] of `u64` and
/// [`Bytes`](crate::Bytes).
///
/// `subject` is an expression that each test evaluates anew. The campaigns are short, some ten seconds of a processor
/// altogether; `EVERMAP_TESTKIT_SCALE` makes them longer.
#[macro_export]
macro_rules! crash_campaign {
    ($name:ident, $subject:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            use $crate::testkit::crash::{assert_trial, battery};

            fn survives(trial: &str, seeds: u64) {
                assert_trial(&battery(stringify!($name), &[], $subject), trial, seeds);
            }

            #[test]
            fn growing_and_shrinking() {
                survives("growing", 2);
            }

            #[test]
            fn reopening_and_sweeping() {
                survives("reopening", 2);
            }

            #[test]
            fn few_keys() {
                survives("few-keys", 2);
            }

            #[test]
            fn skewed_hashes() {
                survives("skewed", 1);
            }

            #[test]
            fn one_sided_growth() {
                survives("one-sided", 1);
            }

            #[test]
            fn used_space() {
                survives("used-space", 1);
            }

            #[test]
            fn byte_keys() {
                survives("byte-keys", 1);
            }

            #[test]
            fn threads_in_parallel() {
                survives("parallel", 30);
                survives("parallel-byte-keys", 20);
                survives("crowded", 60);
            }

            #[test]
            fn process_death_at_every_store() {
                survives("process-death", 1);
            }

            #[test]
            fn power_loss_above_the_page_cache() {
                survives("page-cache", 1);
                survives("torn-pages", 1);
            }
        }
    };
}
