//! Operations that wait, against each other: for space, for a walk through all records, for each
//! other's locks. None may keep another from ending.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common;
use evermap::{Batch, Error, Evermap, MapOptions, Options, Result};
use evermap_index::testkit::{Tier, tier};

/// How long an operation may take before it counts as stuck: far longer than any waits for space.
const STUCK: Duration = Duration::from_secs(60);
/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(5);
/// How long a thread pauses after a call, because locks are not handed over in turn.
const PAUSE: Duration = Duration::from_millis(1);

/// An operation, and the number of the call.
type Operation = fn(&Evermap, u64) -> Result<()>;

const OPERATIONS: &[(&str, Operation)] = &[
    ("put", put),
    ("put under a reader", put_under_a_reader),
    ("clear", |db, _| db.default_map().clear()),
    ("purge", |db, _| db.purge().map(drop)),
    ("expire", expire),
    ("check", |db, _| db.check(false).map(drop)),
    ("compact", |db, _| db.compact().map(drop)),
    ("reclaim", |db, _| db.reclaim_dropped().map(drop)),
    ("create and drop", create_and_drop),
    ("batch", batch),
    ("scan", scan),
    ("stat", |db, _| {
        db.stat();
        db.default_map().space().map(drop)
    }),
    ("evict", |db, _| db.evict_if_due().map(drop)),
    ("limit", |db, number| db.set_memory_limit(number % 2 * (1 << 19) + (1 << 19))),
];

fn put(db: &Evermap, number: u64) -> Result<()> {
    let map = db.default_map();
    let put = map.put(&number.to_be_bytes(), &[7; 500]);
    if put.is_err() && number.is_multiple_of(3) {
        map.clear()?;
    }
    put
}

fn put_under_a_reader(db: &Evermap, number: u64) -> Result<()> {
    let map = db.default_map();
    let _reader = map.reader()?;
    map.put(&number.to_le_bytes(), &[8; 300])
}

fn expire(db: &Evermap, number: u64) -> Result<()> {
    let map = db.default_map();
    map.set(&number.to_be_bytes()).expires(common::at(1)).put(&[9; 100])?;
    db.purge_if_due().map(drop)
}

fn create_and_drop(db: &Evermap, number: u64) -> Result<()> {
    let name = format!("map {}", number % 3);
    let made = db.map(&name, MapOptions::new()).and_then(|map| map.put(b"key", b"value"));
    db.drop_map(&name)?;
    made
}

fn batch(db: &Evermap, number: u64) -> Result<()> {
    db.map("kept", MapOptions::new())?;
    let mut batch = Batch::new();
    batch.put(&number.to_be_bytes(), &[1; 200]);
    batch.in_map("kept").put(b"key", &[2; 200]);
    db.apply(&batch).map(drop)
}

fn scan(db: &Evermap, number: u64) -> Result<()> {
    db.default_map().scan(..)?.take(10).try_for_each(|pair| pair.map(drop))?;
    let name = format!("map {}", number % 3);
    db.map(&name, MapOptions::new().create(false))?.scan(..)?.try_for_each(|pair| pair.map(drop))
}

/// The stores that the operations run on: one that is full when it is full, and a cache.
fn stores() -> [Options; 2] {
    let small = || common::small(1 << 20).ordered(true);
    [small(), common::small(4 << 20).ordered(true).evict(true).memory_limit(1 << 20)]
}

/// A thread that repeats an operation.
struct Worker {
    name: &'static str,
    calls: Arc<AtomicU64>,
    thread: JoinHandle<()>,
    /// The number of calls when it was last seen to have risen, and when that was.
    seen: (u64, Instant),
}

impl Worker {
    /// Starts to repeat `operation` until `stop` says so, or the store is closed.
    fn start(
        db: &Evermap,
        (name, operation): (&'static str, Operation),
        stop: &Arc<AtomicBool>,
    ) -> Self {
        let (db, stop, calls) = (db.clone(), stop.clone(), Arc::new(AtomicU64::new(0)));
        let counted = calls.clone();
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                match operation(&db, number) {
                    Err(Error::Closed) => return,
                    Err(error @ Error::Storage(_)) if !error.is_no_space() => {
                        panic!("{name}: {error}")
                    }
                    _ => {}
                }
                counted.fetch_add(1, Relaxed);
                if stop.load(Relaxed) {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        });
        Worker { name, calls, thread, seen: (0, Instant::now()) }
    }

    /// Returns `true` if it has made a call or ended since it was last asked, or lately.
    fn makes_progress(&mut self) -> bool {
        let calls = self.calls.load(Relaxed);
        if calls != self.seen.0 || self.thread.is_finished() {
            self.seen = (calls, Instant::now());
        }
        self.seen.1.elapsed() < STUCK
    }
}

/// Waits until `is_over` returns `true` and every worker has made a call, then until all have
/// ended after `stop`. Panics with the names of those that are stuck.
fn watch(mut workers: Vec<Worker>, stop: impl Fn(), is_over: impl Fn() -> bool) {
    let mut stopped = false;
    while !workers.iter().all(|worker| worker.thread.is_finished()) {
        std::thread::sleep(LOOK);
        let all: Vec<_> = workers.iter().map(|worker| worker.name).collect();
        let stuck = workers.iter_mut().filter(|worker| !worker.thread.is_finished());
        let stuck: Vec<_> =
            stuck.filter_map(|it| (!it.makes_progress()).then_some(it.name)).collect();
        assert!(stuck.is_empty(), "of {all:?}, these make no progress: {stuck:?}");
        let begun = |worker: &Worker| worker.calls.load(Relaxed) > 0 || worker.thread.is_finished();
        if !stopped && is_over() && workers.iter().all(begun) {
            stop();
            stopped = true;
        }
    }
    for worker in workers {
        let name = worker.name;
        worker.thread.join().unwrap_or_else(|_| panic!("\"{name}\" panicked"));
    }
}

/// Runs operations against each other for a while, in each store.
fn run(operations: &[(&'static str, Operation)], time: Duration) {
    for options in stores() {
        let db = Evermap::in_memory(options).unwrap();
        let (flag, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let start = |operation: &_| Worker::start(&db, *operation, &flag);
        let workers = operations.iter().map(start).collect();
        watch(workers, || flag.store(true, Relaxed), || began.elapsed() >= time);
        let report = db.check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        db.close().unwrap();
    }
}

fn operation(name: &str) -> (&'static str, Operation) {
    *OPERATIONS.iter().find(|operation| operation.0 == name).unwrap()
}

/// A put that lacks space waits for a walk, which the thread does that reclaims dropped maps.
#[test]
fn a_put_without_space_and_a_drop_end() {
    run(&[operation("put"), operation("create and drop")], Duration::from_millis(300));
}

#[test]
fn all_operations_end_beside_each_other() {
    run(OPERATIONS, Duration::from_millis(300));
}

#[test]
fn each_pair_of_operations_ends() {
    if tier() != Tier::Full {
        return;
    }
    for (at, &one) in OPERATIONS.iter().enumerate() {
        for &other in &OPERATIONS[at..] {
            run(&[one, other], Duration::from_millis(250));
        }
    }
}

/// Closing waits for operations of other threads, and those that wait for space notice it.
#[test]
fn closing_ends_beside_each_operation() {
    let step = if tier() == Tier::Full { 1 } else { 4 };
    for (number, options) in stores().into_iter().enumerate() {
        for &operation in OPERATIONS.iter().skip(number).step_by(step) {
            let db = Evermap::in_memory(options.clone()).unwrap();
            let (flag, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
            let workers = vec![Worker::start(&db, operation, &flag)];
            let close = || {
                let (db, flag) = (db.clone(), flag.clone());
                std::thread::spawn(move || {
                    db.close().unwrap();
                    // Not every operation minds that.
                    flag.store(true, Relaxed);
                });
            };
            watch(workers, close, || began.elapsed() >= Duration::from_millis(20));
        }
    }
}
