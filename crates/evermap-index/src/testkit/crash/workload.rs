//! The calls that a crash campaign makes.

use std::fmt;
use std::str::FromStr;

use evermap_pm::sim::oracle::MapOp;
use evermap_pm::sim::rng::Rng;

use crate::testkit::keys::Numbered;

/// The number of foreign keys, which no history contains, unless keys are their own hashes.
const FOREIGN_KEYS: u64 = 160;
/// The number of foreign keys in each cluster if keys are their own hashes.
const CLUSTER: u64 = 16;
/// The lowest of the hash bits by which linear hashing distinguishes segments.
const LOW_SHIFT: u64 = 24;
/// The number of these bits.
const LOW_BITS: u64 = 5;
/// The number of values of these bits.
const LOWS: u64 = 1 << LOW_BITS;
/// The tags of foreign keys are less than this.
pub(super) const TAGS: u64 = 1 << 20;

/// The parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The number of distinct keys.
    pub universe: u64,
    /// If keys are their own hashes: whether most hashes are near zero, with the nearest first, so
    /// that a directory becomes deep while many of its entries name few segments.
    pub skewed: bool,
    /// Whether the first calls make a directory deep, and are not crashed.
    pub prepared: bool,
    /// The number of operations.
    pub ops: u64,
    /// Whether the pool is closed and reopened meanwhile, both cleanly and uncleanly, and swept.
    pub reopen: bool,
    /// The number of threads that run in parallel at the end, each with a few operations; less than
    /// two means none. If there are any, only this part is crashed.
    pub threads: u64,
    /// Whether consecutive changes are made as groups.
    pub grouped: bool,
    /// Whether these threads seldom use the same keys, but insert new ones, so that their
    /// structural changes coincide.
    pub fresh: bool,
    /// Whether all space was used before and contains old data. Then the creation of the pool is
    /// not crashed.
    pub reused: bool,
    /// The size of the pool, bytes.
    pub capacity: u64,
    /// The size of an extent, bytes.
    /// Bytes of an extent.
    pub extent_size: u64,
}

impl Workload {
    /// Many keys, so that ranges of several directory entries are split, and not only directories
    /// doubled.
    pub const GROWING: Workload = Workload {
        universe: 300,
        skewed: false,
        prepared: false,
        ops: 700,
        reopen: false,
        threads: 0,
        grouped: false,
        fresh: false,
        reused: false,
        capacity: 256 << 10,
        extent_size: 4096,
    };
    /// Clean and unclean shutdowns, with sweeps in between.
    pub const REOPENING: Workload =
        Workload { universe: 200, ops: 500, reopen: true, ..Workload::GROWING };
    /// Few keys, so that every crash point gets many images.
    pub const FEW_KEYS: Workload =
        Workload { universe: 40, ops: 160, capacity: 128 << 10, ..Workload::REOPENING };
    /// Wide ranges of a directory, whose entries are in several cache lines.
    pub const SKEWED: Workload = Workload { universe: 160, skewed: true, ..Workload::GROWING };
    /// The same as [`SKEWED`](Self::SKEWED), in reused space.
    pub const USED: Workload = Workload { reused: true, ..Workload::SKEWED };
    /// Mostly splits of wide ranges, crashed up to three times in succession. After each crash one
    /// half grows until it is split in turn, before the other half is used.
    pub const ONE_SIDED: Workload =
        Workload { universe: 240, ops: 80, prepared: true, ..Workload::SKEWED };
    /// Threads whose operations use few common keys, concurrent with structural changes and
    /// recovery.
    pub const PARALLEL: Workload =
        Workload { universe: 40, ops: 60, threads: 3, reopen: false, ..Workload::FEW_KEYS };
    /// Changes in groups.
    pub const GROUPED: Workload =
        Workload { universe: 120, ops: 400, grouped: true, ..Workload::GROWING };
    /// Threads that make changes in groups with common keys.
    pub const PARALLEL_GROUPS: Workload = Workload { grouped: true, ..Workload::PARALLEL };
    /// Threads whose structural changes coincide.
    pub const CROWDED: Workload =
        Workload { universe: 240, ops: 60, fresh: true, ..Workload::PARALLEL };
}

/// One call of a workload. Its text form is `upsert 3 17`, `remove 3`, `die`, ..., or `2: upsert 3
/// 17` in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread that makes the call, 0 for the main thread. Consecutive calls of other threads
    /// run in parallel.
    pub thread: u64,
    /// The action of the call.
    pub verb: Verb,
}

/// The action of a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// An operation on the key with this number.
    Op(u64, MapOp),
    /// The process dies, and another one opens the pool.
    Die,
    /// The pool is closed; then the machine other_boot, and the pool is opened.
    Close,
    /// A sweep after an unclean shutdown.
    Sweep,
    /// Only later calls are crashed.
    Checkpoint,
}

/// The largest number of calls that are made as one group.
const GROUP: usize = 7;

impl Verb {
    /// Returns the key and the operation, if it can be part of a group.
    fn in_group(self) -> Option<(u64, MapOp)> {
        match self {
            Verb::Op(key, op @ (MapOp::Insert(_) | MapOp::Upsert(_) | MapOp::Update(_))) => {
                Some((key, op))
            }
            Verb::Op(key, MapOp::Remove) => Some((key, MapOp::Remove)),
            _ => None,
        }
    }

    /// Returns how many of these verbs, from the first on, are one group: changes of different
    /// keys.
    pub(super) fn group(verbs: &[Verb]) -> Vec<(u64, MapOp)> {
        let mut group: Vec<(u64, MapOp)> = Vec::new();
        for change in verbs.iter().map_while(|verb| verb.in_group()).take(GROUP) {
            if group.iter().any(|other| other.0 == change.0) {
                break;
            }
            group.push(change);
        }
        group
    }
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
    /// Returns the calls of a seed.
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
            // The other half, spread over its wide ranges.
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
            // Until no key is left.
            (0..self.universe).map(|key| Verb::Op(key, MapOp::Remove)).for_each(&mut alone);
        }
        self.draw(&mut rng, part, 50).for_each(&mut alone);
        calls
    }

    /// Returns random verbs, of which `inserts` percent are insertions.
    pub(super) fn draw<'r>(
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

    /// Returns the number of the key with index `place`. The indexes from `universe` on are foreign
    /// keys.
    pub(super) fn number(&self, place: u64) -> u64 {
        if !self.skewed {
            return place;
        }
        let spread = Rng::new(place).draw();
        let Some(foreign) = place.checked_sub(self.universe) else {
            let nearer = if place < self.universe / 2 { 6 } else { 3 };
            return (spread | 1 << 63) >> (place % nearer);
        };
        let cluster = foreign / CLUSTER;
        let (prefix, low) = (cluster / LOWS, cluster % LOWS);
        // First the bits of the prefix after its highest, then a one, then zeros up to the twelfth.
        let begin = (prefix << 1 | 1) << (63 - prefix.ilog2());
        begin | spread >> 12 & !((LOWS - 1) << LOW_SHIFT) | low << LOW_SHIFT
    }

    /// Returns foreign keys in one part of the index near a key: their hashes agree in three bits
    /// at either end.
    ///
    /// If keys are their own hashes, they agree in all bits that a directory of this size uses, and
    /// belong to the first entry of an upper half that the segment of the near key may have been
    /// split into: the one entry that a crash during the split cannot have lost. Their numbers for
    /// linear hashing also agree, and differ from that of the near key in one bit.
    pub(super) fn cluster<K: Numbered>(&self, near: u64, choice: u64, seed: u64) -> Vec<u64> {
        if self.skewed {
            let near = self.number(near);
            let depth = u64::from(near.leading_zeros().min(5)) + 1 + choice % 2;
            let prefix = 1 << depth | near >> (64 - depth);
            let other_bit = 1 << (choice / 2 % LOW_BITS);
            let cluster = prefix * LOWS + ((near >> LOW_SHIFT ^ other_bit) & (LOWS - 1));
            return (0..CLUSTER).map(|number| self.universe + cluster * CLUSTER + number).collect();
        }
        let part_of = |place: u64| {
            let hash = K::hash(K::lend(&K::owned(self.number(place), seed)), seed);
            if choice & 2 == 0 { hash >> 61 } else { hash >> 24 & 7 }
        };
        let part = part_of(near) ^ choice & 1;
        let foreign = self.universe..self.universe + FOREIGN_KEYS;
        foreign.filter(|&place| part_of(place) == part).collect()
    }

    /// Adds calls that lead to some state, and then a few calls of each thread. Half of the
    /// operations of these threads are on three keys.
    fn draw_parallel(&self, rng: &mut Rng, calls: &mut Vec<Call>) {
        let before = if self.fresh { 0 } else { self.ops / 2 } + rng.below(self.ops);
        let mut alone = |verb| calls.push(Call { thread: 0, verb });
        self.draw(rng, before, 85).for_each(&mut alone);
        if !self.fresh && rng.one_in(3) {
            self.draw(rng, self.ops / 2, 10).for_each(&mut alone);
        }
        // The calls of a single thread are crashed by other workloads.
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
