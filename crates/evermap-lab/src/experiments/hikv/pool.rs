//! One pool of threads that serve and update the tree (section 3.2 of the paper): each does the one
//! or the other, and how many do what is fixed, or follows from what both take.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use evermap_papers::hikv::{Backends, Config as StoreConfig, HiKv};
use evermap_pm::Medium;

use super::model::{Demand, backends};
use crate::LabError;
use crate::driver::Config;
use crate::indexes::builder::IndexBuilder;
use crate::indexes::media::Memory;
use crate::subject::Guards;
use crate::workload::{Blend, KeyValueLengths, Kind, Mix, Phase, Speller, Stream, Workload, Zipf};

/// The root slot of the store.
const ROOT: usize = 0;
/// Operations between two looks at what a thread is to do.
const BURST: usize = 64;
/// How often the division may change, by one thread.
const WINDOW: Duration = Duration::from_millis(50);
/// The operations of a thread in a mix, which are repeated.
const OPERATIONS: u64 = 20_000;
/// The weight of the last window.
const WEIGHT: f64 = 0.5;
pub(super) const NAME: &str = "hikv";

/// What happened in a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The mix, by its number.
    pub(super) mix: usize,
    /// Seconds since the first mix began.
    pub(super) at: f64,
    pub(super) mops: f64,
    /// The threads that updated the tree.
    pub(super) backends: usize,
}

/// What a thread has done so far.
#[derive(Default)]
#[repr(align(128))]
struct Done {
    operations: AtomicU64,
    writes: AtomicU64,
    serving_ns: AtomicU64,
    applied: AtomicU64,
    applying_ns: AtomicU64,
}

/// The same of all threads.
#[derive(Clone, Copy, Default)]
struct Sum {
    operations: f64,
    writes: f64,
    serving_ns: f64,
    applied: f64,
    applying_ns: f64,
}

impl Sum {
    fn of(all: &[Done]) -> Self {
        let sum = |of: fn(&Done) -> &AtomicU64| {
            all.iter().map(|one| of(one).load(Relaxed)).sum::<u64>() as f64
        };
        Sum {
            operations: sum(|one| &one.operations),
            writes: sum(|one| &one.writes),
            serving_ns: sum(|one| &one.serving_ns),
            applied: sum(|one| &one.applied),
            applying_ns: sum(|one| &one.applying_ns),
        }
    }

    fn since(self, before: Sum) -> Self {
        Sum {
            operations: self.operations - before.operations,
            writes: self.writes - before.writes,
            serving_ns: self.serving_ns - before.serving_ns,
            applied: self.applied - before.applied,
            applying_ns: self.applying_ns - before.applying_ns,
        }
    }

    /// Returns what an operation takes of both sides, if that was seen.
    fn demand(self) -> Option<Demand> {
        if self.operations < 1.0 {
            return None;
        }
        let each = if self.applied > 0.0 { self.applying_ns / self.applied } else { 0.0 };
        let backend = each * self.writes / self.operations;
        Some(Demand { serving: self.serving_ns / self.operations, backend, ..Demand::default() })
    }
}

/// Runs mixes, one after the other, on one store with a pool of `threads` threads. `fixed` is the
/// number of those that update the tree, unless it adapts.
pub(super) fn run(
    config: &Config,
    threads: usize,
    fixed: Option<usize>,
    (mixes, each): (&[&str], Duration),
) -> Result<Vec<Window>, LabError> {
    let setup = config.check(1)?;
    let builder = IndexBuilder { name: NAME, guards: Guards::PerOperation, setup: &setup };
    let failed = |error| LabError::index(NAME, error);
    match builder.memory().map_err(failed)? {
        Memory::Plain(medium) => on(&builder, medium, config, (threads, fixed), (mixes, each)),
        Memory::Watched(medium) => on(&builder, medium, config, (threads, fixed), (mixes, each)),
    }
}

fn on<M: Medium>(
    builder: &IndexBuilder<'_>,
    medium: M,
    config: &Config,
    (threads, fixed): (usize, Option<usize>),
    (mixes, each): (&[&str], Duration),
) -> Result<Vec<Window>, LabError> {
    let workload = Workload { keys: config.keys, threads, seed: config.seed };
    let (store, speller) = loaded(builder, medium, workload)?;
    let bench = Pooled {
        store: &store,
        speller: &speller,
        workload,
        backends: AtomicUsize::new(fixed.unwrap_or(threads / 2).clamp(1, threads - 1)),
        adapts: fixed.is_none(),
        began: Instant::now(),
    };
    let mut windows = Vec::new();
    for (number, mix) in mixes.iter().enumerate() {
        bench.mix((number, mix.parse()?), each, &mut windows)?;
    }
    Ok(windows)
}

/// Creates a store with all keys, whose threads are the caller's.
pub(super) fn loaded<M: Medium>(
    builder: &IndexBuilder<'_>,
    medium: M,
    workload: Workload,
) -> Result<(HiKv<M>, Speller), LabError> {
    let failed = |error| LabError::index(NAME, error);
    let (pool, _) = builder.pool_in(medium).map_err(failed)?;
    let variant = StoreConfig { backends: Some(Backends::Fixed(0)), ..Default::default() };
    let variant = variant.presized_for(workload.keys);
    let store = HiKv::create(pool.clone(), pool.root(ROOT), variant).map_err(failed)?;
    let speller = Speller::new(builder.setup.lengths.unwrap_or(KeyValueLengths::WORDS));
    load(&store, workload, &speller)?;
    Ok((store, speller))
}

/// Binds all keys.
fn load<M: Medium>(store: &HiKv<M>, workload: Workload, speller: &Speller) -> Result<(), LabError> {
    let alone = Workload { threads: 1, ..workload };
    let mut stream = Stream::default();
    stream.fill(&alone, Phase::Insert, 0);
    stream.spell(speller);
    let (all, mut value) = (stream.spelled.all(), Vec::new());
    for (place, &key) in stream.keys.iter().enumerate() {
        value.clear();
        speller.append_value(key, 0, &mut value);
        store.put(all.at(place), &value).map_err(|error| LabError::index(NAME, error))?;
    }
    store.settle(1).map_err(|error| LabError::index(NAME, error))
}

/// A store with its pool of threads.
struct Pooled<'s, M: Medium> {
    store: &'s HiKv<M>,
    speller: &'s Speller,
    workload: Workload,
    /// Threads with smaller numbers update the tree, the others serve.
    backends: AtomicUsize,
    adapts: bool,
    began: Instant,
}

impl<M: Medium> Pooled<'_, M> {
    /// Runs a mix for a time.
    fn mix(
        &self,
        (number, mix): (usize, Mix),
        time: Duration,
        windows: &mut Vec<Window>,
    ) -> Result<(), LabError> {
        let threads = self.workload.threads;
        let blend =
            Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: OPERATIONS * threads as u64 };
        let streams: Vec<Stream> = (0..threads)
            .map(|thread| {
                let mut stream = Stream::default();
                stream.fill_mix(&self.workload, &blend, thread);
                stream.spell(self.speller);
                stream
            })
            .collect();
        let done: Vec<Done> = (0..threads).map(|_| Done::default()).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working: Vec<_> = streams
                .iter()
                .zip(&done)
                .enumerate()
                .map(|(thread, (stream, done))| {
                    let stop = &stop;
                    scope.spawn(move || self.work(thread, stream, done, stop))
                })
                .collect();
            self.watch(number, &done, time, windows);
            stop.store(true, Relaxed);
            let joined =
                working.into_iter().map(|one| one.join().unwrap_or(Err(LabError::Panicked)));
            // All have ended before the first error is returned.
            joined.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Notes what happens in each window, and changes the division.
    fn watch(&self, mix: usize, done: &[Done], time: Duration, windows: &mut Vec<Window>) {
        let (begin, mut before) = (Instant::now(), Sum::default());
        let mut share = None;
        while begin.elapsed() < time {
            let start = Instant::now();
            std::thread::sleep(WINDOW.min(time));
            let now = Sum::of(done);
            let seen = now.since(before);
            before = now;
            let backends = self.backends.load(Relaxed);
            windows.push(Window {
                mix,
                at: self.began.elapsed().as_secs_f64(),
                mops: seen.operations / start.elapsed().as_secs_f64() / 1e6,
                backends,
            });
            if let Some(demand) = seen.demand().filter(|_| self.adapts) {
                let smooth = |last: Option<Demand>| match last {
                    None => demand,
                    Some(last) => Demand {
                        serving: WEIGHT * demand.serving + (1.0 - WEIGHT) * last.serving,
                        backend: WEIGHT * demand.backend + (1.0 - WEIGHT) * last.backend,
                        ..Demand::default()
                    },
                };
                let demand = smooth(share);
                share = Some(demand);
                self.step(backends, demand);
            }
        }
    }

    /// Moves one thread to the side that needs it.
    fn step(&self, now: usize, demand: Demand) {
        let wanted = backends(demand, self.workload.threads);
        let next = match wanted.cmp(&now) {
            std::cmp::Ordering::Less => now - 1,
            std::cmp::Ordering::Equal => now,
            std::cmp::Ordering::Greater => now + 1,
        };
        self.backends.store(next, Relaxed);
    }

    /// Does what this thread is there for, until it is stopped.
    fn work(
        &self,
        thread: usize,
        stream: &Stream,
        done: &Done,
        stop: &AtomicBool,
    ) -> Result<(), LabError> {
        let failed = |error| LabError::index(NAME, error);
        let mut next = 0;
        let mut value = Vec::new();
        while !stop.load(Relaxed) {
            let backends = self.backends.load(Relaxed);
            let start = Instant::now();
            if thread < backends {
                let applied = self.store.update_tree(thread, backends).map_err(failed)?;
                if applied == 0 {
                    std::thread::yield_now();
                    continue;
                }
                add(&done.applied, applied);
                add(&done.applying_ns, start.elapsed().as_nanos() as u64);
            } else {
                let mut writes = 0;
                for _ in 0..BURST {
                    let wrote = operate(self.store, self.speller, stream, next, &mut value);
                    writes += u64::from(wrote.map_err(failed)?);
                    next = (next + 1) % stream.keys.len();
                }
                add(&done.operations, BURST as u64);
                add(&done.writes, writes);
                add(&done.serving_ns, start.elapsed().as_nanos() as u64);
            }
        }
        Ok(())
    }
}

/// Does the operation of a stream at a place. Returns whether it has written.
pub(super) fn operate<M: Medium>(
    store: &HiKv<M>,
    speller: &Speller,
    stream: &Stream,
    at: usize,
    value: &mut Vec<u8>,
) -> evermap_pm::Result<bool> {
    let (number, key) = (stream.keys[at], stream.spelled.all().at(at));
    let kind = stream.ops[at].kind;
    if matches!(kind, Kind::Read | Kind::ReadModifyWrite) {
        store.get(key, value)?;
    }
    if let Kind::Scan(length) = kind {
        store.scan(key, usize::from(length), &mut |_, _| {})?;
    }
    let writes = matches!(kind, Kind::Update | Kind::Insert | Kind::ReadModifyWrite);
    if writes {
        value.clear();
        speller.append_value(number, 1, value);
        store.put(key, value)?;
    }
    Ok(writes)
}

/// Adds to a counter that only this thread changes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}
