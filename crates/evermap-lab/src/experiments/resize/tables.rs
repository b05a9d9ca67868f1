//! The tables of the benchmark, and what one thread does with them.
//!
//! The loops are compiled once for each table, so that a lookup is not called through a pointer.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_papers::relativistic::{
    Config, Ddds, Identity, KeyHash, ResizableTable, Rp, RpSorted, RwLockTable,
};
use evermap_pm::sim::rng::Rng;
use evermap_pm::{Domain, Guard};
use evermap_volatile::VolatileMap;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::trace::{self, Trace};
use crate::LabError;
use crate::error::Failure;

/// Lookups between two quiescent states, or between two looks at the clock.
const BATCH: u64 = 64;
/// The number of batches between two looks at the clock.
const BATCHES: u64 = 16;
/// The keys that each thread of the mix inserts and removes.
const PRIVATE: u64 = 1024;
/// The names of the tables.
pub(super) const NAMES: [&str; 5] = ["rp", "rp-sorted", "ddds", "rwlock", "volatile-map"];

/// How the hash of a key follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// It is the key, as in the paper: all chains are equally long.
    Identity,
    /// It is random, so chains are as long as in use.
    Random,
}

impl Hash {
    pub(super) fn name(self) -> &'static str {
        match self {
            Hash::Identity => "identity",
            Hash::Random => "random",
        }
    }
}

/// How readers are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// They announce quiescent states between lookups, which cost nothing, as in a kernel.
    Quiescent,
    /// They create a guard for each lookup.
    Guards,
}

/// What the threads do that are not the resizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// They look up random keys.
    Lookups(Protection),
    /// 90 % lookups, 9 % insertions and 1 % removals.
    Mixed,
    /// They look up random keys, and read the clock after each.
    Latencies,
    /// They replace the values of random keys.
    Updates,
}

/// How long a thread works, and with which keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) keys: u64,
    pub(super) length: Duration,
    pub(super) seed: u64,
    /// The number of the thread.
    pub(super) thread: u64,
}

/// What one thread did. Nobody else writes to it, so counting costs no shared line.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) ops: u64,
    /// Wrong answers: present keys that were not found, and others.
    pub(super) misses: u64,
    pub(super) seconds: f64,
    /// Processor time of the thread.
    pub(super) cpu_seconds: f64,
    /// Nanoseconds of each lookup, if they were measured.
    pub(super) latencies: Option<Histogram<u64>>,
    /// What a resizer did.
    pub(super) resizes: Resizes,
}

/// What resizes took, in all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resizes {
    pub(super) expansions: u64,
    pub(super) shrinks: u64,
    pub(super) expansion_seconds: f64,
    pub(super) shrink_seconds: f64,
    /// Grace periods of all expansions, and the most of one.
    pub(super) grace_periods: u64,
    pub(super) grace_periods_max: u64,
}

/// A table that can be in the benchmark.
pub(super) trait Table: Send + Sync + 'static {
    fn domain(&self) -> &Domain;
    fn get(&self, key: u64, guard: &Guard<'_>) -> Option<u64>;
    /// Binds a key to a word. Returns `true` if it was absent.
    fn put(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<bool, Failure>;
    /// Returns `true` if the key was present.
    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<bool, Failure>;
    fn resize(&self, buckets: u64) -> Result<(), Failure>;
    fn is_resizing(&self) -> bool;
    /// Returns the number of grace periods that the last expansion waited for.
    fn grace_periods(&self) -> u64;
}

impl<T: ResizableTable<u64, u64> + 'static> Table for T {
    fn domain(&self) -> &Domain {
        ResizableTable::domain(self)
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Option<u64> {
        self.get_copied(&key, guard)
    }

    fn put(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<bool, Failure> {
        Ok(self.upsert(&key, word, guard)?)
    }

    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<bool, Failure> {
        Ok(ResizableTable::remove(self, &key, guard)?)
    }

    fn resize(&self, buckets: u64) -> Result<(), Failure> {
        Ok(ResizableTable::resize(self, buckets)?)
    }

    fn is_resizing(&self) -> bool {
        self.stats().resizing.is_some()
    }

    fn grace_periods(&self) -> u64 {
        self.stats().last_expansion.grace_periods
    }
}

/// The product's map, which chooses its own number of buckets of 12 slots. The smaller size is the
/// one that fits its entries, the larger one has room for twice as many.
struct Volatile<S> {
    map: VolatileMap<u64, u64, S>,
    domain: Arc<Domain>,
    /// The number of buckets of the other tables that stands for the smaller size, and the number
    /// of entries for which there is room at the larger one.
    small: u64,
    entries: usize,
}

impl<S: BuildHasher> Volatile<S> {
    fn new(hasher: S, buckets: u64, [small, _]: [u64; 2], keys: u64) -> Self {
        let domain = Arc::new(Domain::new(Box::new(|_| {})));
        let map = VolatileMap::with_domain(hasher, domain.clone());
        let entries = keys as usize;
        if buckets != small {
            map.reserve(2 * entries);
        }
        Volatile { map, domain, small, entries }
    }
}

impl<S: BuildHasher + Send + Sync + 'static> Table for Volatile<S> {
    fn domain(&self) -> &Domain {
        &self.domain
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Option<u64> {
        self.map.with_guard(guard).get(&key).copied()
    }

    fn put(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<bool, Failure> {
        Ok(self.map.with_guard(guard).insert(key, word).is_none())
    }

    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<bool, Failure> {
        Ok(self.map.with_guard(guard).remove(&key).is_some())
    }

    fn resize(&self, buckets: u64) -> Result<(), Failure> {
        if buckets == self.small {
            self.map.shrink_to_fit();
        } else {
            self.map.reserve(self.entries);
        }
        Ok(())
    }

    fn is_resizing(&self) -> bool {
        self.map.stats().resizing > 0
    }

    /// None: what is copied is freed later.
    fn grace_periods(&self) -> u64 {
        0
    }
}

/// Distributes consecutive keys evenly by the high bits of their hashes, as [`Identity`] does by
/// the low bits.
#[derive(Clone, Copy, Default)]
struct Even(u64);

impl BuildHasher for Even {
    type Hasher = Even;

    #[inline(always)]
    fn build_hasher(&self) -> Even {
        Even(0)
    }
}

impl Hasher for Even {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 << 8 | u64::from(byte)));
    }

    #[inline(always)]
    fn write_u64(&mut self, number: u64) {
        // 2^64 over the golden ratio (Knuth).
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A table behind a pointer.
pub(super) trait Contender: Send + Sync {
    /// Inserts the keys below `keys`.
    fn fill(&self, keys: u64) -> Result<(), Failure>;
    /// Works for the time of the span, and for one batch at least.
    fn act(&self, job: Job, span: Span) -> Result<Tally, Failure>;
    /// Resizes between the two sizes without a pause, once up and down at least.
    fn resize_without_pause(&self, sizes: [u64; 2], span: Span) -> Result<Tally, Failure>;
    /// Executes `lookups` lookups instruction by instruction. Returns `None` where that is not
    /// possible.
    fn trace(&self, protection: Protection, keys: u64, lookups: u64) -> Option<Trace>;
    /// Calls `then` while the table is being resized to `buckets`, and no node was moved yet. If it
    /// is resized in one step, that is over when `then` is called.
    fn during_resize(&self, buckets: u64, then: &mut dyn FnMut()) -> Result<(), Failure>;
}

/// Creates an empty table with one of the two sizes, for this number of keys.
///
/// # Errors
///
/// `Config` for a name that is not one of [`NAMES`], and those of the table.
pub(super) fn build(
    name: &'static str,
    hash: Hash,
    buckets: u64,
    sizes: [u64; 2],
    keys: u64,
) -> Result<Arc<dyn Contender>, LabError> {
    macro_rules! with {
        ($table:ident, $hasher:ty, $new:expr) => {{
            let domain = Arc::new(Domain::new(Box::new(|_| {})));
            let made = $table::<u64, u64, $hasher>::new(
                domain,
                $new,
                Config { buckets_min: sizes[0], ..Config::paper(buckets) },
            );
            Arc::new(made.map_err(|error| LabError::index(name, error))?)
        }};
    }
    macro_rules! of {
        ($table:ident) => {
            match hash {
                Hash::Identity => with!($table, Identity, Identity) as Arc<dyn Contender>,
                Hash::Random => with!($table, KeyHash<u64>, KeyHash::new(7)),
            }
        };
    }
    match name {
        "rp" => Ok(of!(Rp)),
        "rp-sorted" => Ok(of!(RpSorted)),
        "ddds" => Ok(of!(Ddds)),
        "rwlock" => Ok(of!(RwLockTable)),
        "volatile-map" => Ok(match hash {
            Hash::Identity => Arc::new(Volatile::new(Even(0), buckets, sizes, keys)),
            Hash::Random => Arc::new(Volatile::new(KeyHash::<u64>::new(7), buckets, sizes, keys)),
        }),
        _ => Err(LabError::Config(format!(
            "unknown table `{name}`; resize knows {}",
            NAMES.join(", ")
        ))),
    }
}

/// Returns the word of a key.
fn word_of(key: u64) -> u64 {
    !key
}

impl<T: Table> Contender for T {
    fn fill(&self, keys: u64) -> Result<(), Failure> {
        for key in 0..keys {
            self.put(key, word_of(key), &self.domain().pin())?;
        }
        Ok(())
    }

    fn act(&self, job: Job, span: Span) -> Result<Tally, Failure> {
        let mut rng = Rng::new(span.seed.wrapping_add(span.thread));
        match job {
            Job::Lookups(Protection::Quiescent) => Ok(look_up(self, span, &mut rng)),
            Job::Lookups(Protection::Guards) => Ok(look_up_under_guards(self, span, &mut rng)),
            Job::Latencies => Ok(look_up_and_time(self, span, &mut rng)),
            Job::Mixed => mix(self, span, &mut rng),
            Job::Updates => update(self, span, &mut rng),
        }
    }

    fn resize_without_pause(&self, sizes: [u64; 2], span: Span) -> Result<Tally, Failure> {
        let (clock, mut resizes) = (Clock::start(), Resizes::default());
        loop {
            let begin = Instant::now();
            self.resize(sizes[1])?;
            let (expansion, waited) = (begin.elapsed(), self.grace_periods());
            let begin = Instant::now();
            self.resize(sizes[0])?;
            let shrink = begin.elapsed();
            // What ends after the readers did not wait for any of them.
            let alone = clock.is_over(span);
            if !alone || resizes.shrinks == 0 {
                resizes.expansions += 1;
                resizes.expansion_seconds += expansion.as_secs_f64();
                resizes.grace_periods += waited;
                resizes.grace_periods_max = resizes.grace_periods_max.max(waited);
                resizes.shrinks += 1;
                resizes.shrink_seconds += shrink.as_secs_f64();
            }
            if alone {
                break;
            }
        }
        Ok(Tally { resizes, ..clock.tally(resizes.expansions + resizes.shrinks, 0) })
    }

    fn trace(&self, protection: Protection, keys: u64, lookups: u64) -> Option<Trace> {
        let mut all = Trace::default();
        let reader = self.domain().register();
        // What a thread does once is not part of a lookup.
        drop(self.domain().pin());
        for nth in 0..lookups {
            // Any step that is odd visits keys of different chains.
            let key = nth * 0x9e37 % keys;
            all.add(trace::of(|| match protection {
                Protection::Quiescent => self.get(key, reader.section()),
                Protection::Guards => self.get(key, &self.domain().pin()),
            })?);
        }
        Some(all)
    }

    fn during_resize(&self, buckets: u64, then: &mut dyn FnMut()) -> Result<(), Failure> {
        std::thread::scope(|threads| {
            // While this thread announces no quiescent state, no resize gets past its first wait.
            let reader = self.domain().register();
            let resizer = threads.spawn(|| self.resize(buckets));
            while !self.is_resizing() && !resizer.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            then();
            drop(reader);
            resizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The wall-clock time and the processor time of a thread.
struct Clock {
    began: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Self {
        Clock { began: Instant::now(), cpu: thread_time() }
    }

    fn is_over(&self, span: Span) -> bool {
        self.began.elapsed() >= span.length
    }

    fn tally(&self, ops: u64, misses: u64) -> Tally {
        Tally {
            ops,
            misses,
            seconds: self.began.elapsed().as_secs_f64(),
            cpu_seconds: (thread_time() - self.cpu).as_secs_f64(),
            ..Tally::default()
        }
    }
}

/// Returns the processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Looks up a random key that is present. Returns `true` if the answer is wrong.
#[inline(always)]
fn misses<T: Table>(table: &T, keys: u64, rng: &mut Rng, guard: &Guard<'_>) -> bool {
    let key = rng.below(keys);
    table.get(key, guard) != Some(word_of(key))
}

fn look_up<T: Table>(table: &T, span: Span, rng: &mut Rng) -> Tally {
    let (clock, mut ops, mut missed) = (Clock::start(), 0, 0);
    let mut reader = table.domain().register();
    loop {
        for _ in 0..BATCHES {
            let section = reader.section();
            for _ in 0..BATCH {
                missed += u64::from(misses(table, span.keys, rng, section));
            }
            reader.quiescent();
        }
        ops += BATCH * BATCHES;
        if clock.is_over(span) {
            break;
        }
    }
    clock.tally(ops, missed)
}

fn look_up_under_guards<T: Table>(table: &T, span: Span, rng: &mut Rng) -> Tally {
    let (clock, mut ops, mut missed) = (Clock::start(), 0, 0);
    loop {
        for _ in 0..BATCH * BATCHES {
            missed += u64::from(misses(table, span.keys, rng, &table.domain().pin()));
        }
        ops += BATCH * BATCHES;
        if clock.is_over(span) {
            break;
        }
    }
    clock.tally(ops, missed)
}

/// Times each lookup from the end of the one before it, so the longest of these times is the
/// longest gap of the reader.
fn look_up_and_time<T: Table>(table: &T, span: Span, rng: &mut Rng) -> Tally {
    let bounds = Histogram::new_with_bounds(1, 100_000_000_000, 3);
    let mut latencies = bounds.expect("valid bounds");
    let cost = clock_cost();
    let (clock, mut missed) = (Clock::start(), 0);
    let mut reader = table.domain().register();
    let mut last = clock.began;
    loop {
        for _ in 0..BATCH {
            missed += u64::from(misses(table, span.keys, rng, reader.section()));
            let now = Instant::now();
            latencies.saturating_record(((now - last).saturating_sub(cost)).as_nanos() as u64);
            last = now;
        }
        reader.quiescent();
        if last - clock.began >= span.length {
            break;
        }
    }
    let tally = clock.tally(latencies.len(), missed);
    Tally { latencies: Some(latencies), ..tally }
}

/// Returns what reading the clock once costs.
fn clock_cost() -> Duration {
    const READS: u32 = 1000;
    let runs = (0..11).map(|_| {
        let begin = Instant::now();
        (1..READS).for_each(|_| {
            std::hint::black_box(Instant::now());
        });
        begin.elapsed() / READS
    });
    runs.min().unwrap_or_default()
}

/// The mix that section 2 of the paper's source for it, Herlihy and Shavit, calls typical. Each
/// thread inserts and removes keys of its own, so it knows every answer.
fn mix<T: Table>(table: &T, span: Span, rng: &mut Rng) -> Result<Tally, Failure> {
    let (clock, mut ops, mut wrong) = (Clock::start(), 0, 0);
    let mut present = vec![false; PRIVATE as usize];
    let first = span.keys + span.thread * PRIVATE;
    let mut reader = table.domain().register();
    loop {
        for _ in 0..BATCH {
            let section = reader.section();
            let kind = rng.below(100);
            if kind < 90 {
                wrong += u64::from(misses(table, span.keys, rng, section));
                continue;
            }
            let number = rng.below(PRIVATE);
            let (key, was) = (first + number, present[number as usize]);
            let inserts = kind < 99;
            let right = match inserts {
                true => table.put(key, word_of(key), section)? != was,
                false => table.remove(key, section)? == was,
            };
            present[number as usize] = inserts;
            wrong += u64::from(!right);
        }
        reader.quiescent();
        ops += BATCH;
        if clock.is_over(span) {
            break;
        }
    }
    drop(reader);
    // The next measurement, and other threads, find the table as it was.
    for number in 0..PRIVATE {
        table.remove(first + number, &table.domain().pin())?;
    }
    Ok(clock.tally(ops, wrong))
}

fn update<T: Table>(table: &T, span: Span, rng: &mut Rng) -> Result<Tally, Failure> {
    let (clock, mut ops, mut wrong) = (Clock::start(), 0, 0);
    let mut reader = table.domain().register();
    loop {
        for _ in 0..BATCH {
            let key = rng.below(span.keys);
            wrong += u64::from(table.put(key, word_of(key), reader.section())?);
        }
        reader.quiescent();
        ops += BATCH;
        if clock.is_over(span) {
            break;
        }
    }
    Ok(clock.tally(ops, wrong))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn span(keys: u64) -> Span {
        Span { keys, length: Duration::from_millis(1), seed: 1, thread: 0 }
    }

    /// A table that gives wrong answers to some operations.
    struct Faulty {
        table: Rp<u64, u64, Identity>,
        /// The lookups, and the one that is a miss.
        lookups: AtomicU64,
        missed: u64,
        /// Updates say the contrary of what is true.
        lies: bool,
    }

    impl Table for Faulty {
        fn domain(&self) -> &Domain {
            ResizableTable::domain(&self.table)
        }

        fn get(&self, key: u64, guard: &Guard<'_>) -> Option<u64> {
            let lost = self.lookups.fetch_add(1, Relaxed) == self.missed;
            Table::get(&self.table, key, guard).filter(|_| !lost)
        }

        fn put(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<bool, Failure> {
            Ok(self.table.put(key, word, guard)? != self.lies)
        }

        fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<bool, Failure> {
            Ok(Table::remove(&self.table, key, guard)? != self.lies)
        }

        fn resize(&self, buckets: u64) -> Result<(), Failure> {
            Table::resize(&self.table, buckets)
        }

        fn is_resizing(&self) -> bool {
            self.table.is_resizing()
        }

        fn grace_periods(&self) -> u64 {
            self.table.grace_periods()
        }
    }

    fn faulty(missed: u64, lies: bool) -> Faulty {
        let domain = Arc::new(Domain::new(Box::new(|_| {})));
        let table = Rp::new(domain, Identity, Config::paper(16)).unwrap();
        let faulty = Faulty { table, lookups: AtomicU64::new(0), missed, lies };
        faulty.fill(100).unwrap();
        faulty
    }

    const LOOKUPS: [Job; 3] =
        [Job::Lookups(Protection::Quiescent), Job::Lookups(Protection::Guards), Job::Latencies];

    /// One lost key among all lookups is found, whatever else the thread does.
    #[test]
    fn each_wrong_answer_is_counted() {
        for job in LOOKUPS.into_iter().chain([Job::Mixed]) {
            let tally = faulty(7, false).act(job, span(100)).unwrap();
            assert_eq!(tally.misses, 1, "{job:?}");
            assert!(tally.ops >= BATCH && tally.seconds >= 0.001);
            assert_eq!(faulty(u64::MAX, false).act(job, span(100)).unwrap().misses, 0, "{job:?}");
        }
        for job in [Job::Mixed, Job::Updates] {
            assert!(faulty(u64::MAX, true).act(job, span(100)).unwrap().misses > 1, "{job:?}");
        }
    }

    #[test]
    fn every_table_answers_under_every_job_and_hash() {
        for name in NAMES {
            for hash in [Hash::Identity, Hash::Random] {
                let table = build(name, hash, 16, [16, 32], 200).unwrap();
                table.fill(200).unwrap();
                for job in LOOKUPS.into_iter().chain([Job::Mixed, Job::Updates]) {
                    let tally = table.act(job, span(200)).unwrap();
                    assert_eq!((tally.misses, tally.ops % BATCH), (0, 0), "{name}, {job:?}");
                    assert_eq!(tally.latencies.is_some(), job == Job::Latencies);
                }
                let tally = table.resize_without_pause([16, 32], span(200)).unwrap();
                assert!(tally.resizes.expansions == tally.resizes.shrinks);
                assert!(tally.resizes.shrinks > 0 && tally.resizes.expansion_seconds > 0.0);
                let waits = !["rwlock", "volatile-map"].contains(&name);
                assert_eq!(tally.resizes.grace_periods > 0, waits, "{name}");
            }
        }
        assert!(build("btree", Hash::Random, 16, [16, 32], 9).is_err());
    }

    /// The lookups that are traced during a resize are those of a table that is being resized.
    #[test]
    fn a_resize_is_held_up() {
        for name in NAMES {
            let table = build(name, Hash::Identity, 16, [16, 32], 100).unwrap();
            table.fill(100).unwrap();
            let mut called = 0;
            let mut then = || {
                called += 1;
                assert!(table.act(LOOKUPS[0], span(100)).unwrap().misses == 0);
            };
            table.during_resize(32, &mut then).unwrap();
            assert_eq!(called, 1, "{name}");
        }
    }
}
