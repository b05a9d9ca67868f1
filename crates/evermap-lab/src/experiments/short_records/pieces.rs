//! What growth in pieces costs single operations: latencies of insertions, and of lookups beside
//! them, in a table that grows and in one that has space for all.
//!
//! A million insertions begin in a second, or as many as possible. Without a pace, insertions fill
//! the table as fast as another thread grows it, and it depends on that thread how many do a part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::LabError;
use crate::driver::latency::{clock_cost, histogram, sample};
use crate::driver::workers::Workers;
use crate::driver::{Config, GET_IN_ANOTHER};
use crate::experiments::load_factor::insertion;
use crate::experiments::tables::mark;
use crate::registry::subject;
use crate::report::interval::median;
use crate::report::{Grid, Output, Record, duration};
use crate::subject::{Entry, Place, Setup, Subject, Work};
use crate::workload::bytes::draw;
use crate::workload::{Phase, Stream, Workload};

/// The number of lookups after which a thread looks whether the other one is done.
const PORTION: usize = 1 << 12;
/// The same, of pieces of growth.
const PIECES: u64 = 64;
/// Its pause when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(100);
/// The time from the beginning of an insertion to that of the next one, if it takes less.
const PACE: Duration = Duration::from_micros(1);
/// Quantiles that are shown.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// What is done beside the insertions of one thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Growth,
    Lookups,
}

/// One way to insert the second half of the keys.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Whether there is space for all keys from the beginning.
    presize: bool,
    beside: Beside,
}

const CASES: [Case; 5] = [
    Case { name: "insert, space for all", presize: true, beside: Beside::Nothing },
    Case { name: "insert, which grows", presize: false, beside: Beside::Nothing },
    Case { name: "insert, a thread grows", presize: false, beside: Beside::Growth },
    Case { name: "get, space for all", presize: true, beside: Beside::Lookups },
    Case { name: "get, inserts grow", presize: false, beside: Beside::Lookups },
];

/// Inserts half of the keys into each table that grows in pieces, and measures the other half in
/// every case.
pub(super) fn measure(
    names: &[String],
    config: &Config,
    out: &mut dyn Output,
) -> Result<Grid, LabError> {
    let mut columns: Vec<_> = QUANTILES.map(|(name, _)| name).to_vec();
    columns.push("longest");
    let title = "8/8 bytes: latency while a million records are inserted a second";
    let mut grid = Grid::new(title, &columns);
    for name in names {
        let bench = Bench::new(name, config)?;
        let table = bench.build(false)?;
        if table.grow_ahead(0)?.is_none() {
            continue;
        }
        let place = table.place();
        drop(table);
        let mut found: [Vec<Round>; CASES.len()] = Default::default();
        for _ in 0..config.rounds {
            for (case, rounds) in CASES.iter().zip(&mut found) {
                out.step(&format!("short-records: {name}, {}", case.name));
                rounds.push(bench.quiet_round(*case, out)?);
            }
        }
        for (case, rounds) in CASES.iter().zip(found) {
            let record = bench.record(*case, &rounds, place.clone());
            let shown = |ns: Option<u64>| {
                ns.map_or("-".into(), |ns| duration(ns as f64)) + mark(record.void)
            };
            let quantiles =
                [record.p50_ns, record.p95_ns, record.p99_ns, record.p999_ns, record.p9999_ns];
            let cells = quantiles.into_iter().chain([record.max_ns]).map(shown).collect();
            grid.push(format!("{name}, {}", case.name), cells);
            out.record(&record)?;
        }
    }
    Ok(grid)
}

/// Latencies of one round.
struct Round {
    latencies: Histogram<u64>,
    void: bool,
}

/// A table, and what is done with it.
struct Bench<'c> {
    entry: Entry,
    config: &'c Config,
    workload: Workload,
    workers: Workers,
}

impl<'c> Bench<'c> {
    fn new(name: &str, config: &'c Config) -> Result<Self, LabError> {
        let workload = Workload { keys: config.keys, threads: 1, seed: config.seed };
        Ok(Bench { entry: subject(name)?, config, workload, workers: Workers::start(2)? })
    }

    fn build(&self, presize: bool) -> Result<Box<dyn Subject>, LabError> {
        let Config { medium, location, pages, keys, .. } = self.config;
        let setup = Setup::new(*medium, location.clone(), *pages, *keys, None)?;
        self.entry.build(&Setup { presize, ..setup })
    }

    /// Measures a round, and again as long as other programs disturb it and the settings allow.
    fn quiet_round(&self, case: Case, out: &mut dyn Output) -> Result<Round, LabError> {
        Ok(self.config.quiet.measure(out, |_| self.round(case), |round| round.void)?.0)
    }

    fn round(&self, case: Case) -> Result<Round, LabError> {
        let table: Arc<dyn Subject> = self.build(case.presize)?.into();
        let (workload, clock) = (self.workload, clock_cost());
        let half = workload.keys / 2;
        let mut first = Stream::default();
        first.keys.extend((0..half).map(|at| workload.key(at)));
        table.run(insertion(&first))?;
        let done = AtomicBool::new(false);
        let race = self.workers.race(move |thread, stream| {
            if thread == 0 {
                stream.keys.clear();
                stream.keys.extend((half..workload.keys).map(|at| workload.key(at)));
                let latencies = insert_all(&*table, stream, clock);
                done.store(true, Ordering::Relaxed);
                return latencies;
            }
            match case.beside {
                Beside::Nothing => Ok(histogram()),
                Beside::Growth => grow(&*table, &done).map(|()| histogram()),
                Beside::Lookups => {
                    stream.keys.clear();
                    let place = |number| draw(workload.seed, half, number) % half.max(1);
                    stream.keys.extend((0..half).map(|number| workload.key(place(number))));
                    look_up(&*table, stream, &done, clock)
                }
            }
        })?;
        let [inserts, beside] = <[_; 2]>::try_from(race.results).expect("two threads");
        let latencies = if case.beside == Beside::Lookups { beside } else { inserts };
        let foreign = race.used.foreign_share();
        let void = self.config.quiet.is_exceeded(foreign);
        Ok(Round { latencies, void })
    }

    /// Returns the record of a case: medians of the rounds that were not disturbed, or of all,
    /// marked as void, if all were.
    fn record(&self, case: Case, rounds: &[Round], place: Place) -> Record {
        let void = rounds.iter().all(|round| round.void);
        let used: Vec<_> = rounds.iter().filter(|round| void || !round.void).collect();
        let over = |of: &dyn Fn(&Histogram<u64>) -> u64| {
            let values: Vec<_> = used.iter().map(|round| of(&round.latencies) as f64).collect();
            median(&values).map(|ns| ns as u64)
        };
        let [p50_ns, p95_ns, p99_ns, p999_ns, p9999_ns] =
            QUANTILES.map(|(_, share)| over(&|latencies| latencies.value_at_quantile(share)));
        let phase = match case.beside {
            Beside::Lookups => GET_IN_ANOTHER,
            _ => Phase::Insert.name(),
        };
        let ops = used.iter().map(|round| round.latencies.len()).sum();
        Record {
            experiment: "short-records",
            index: self.entry.name.to_owned(),
            threads: 1,
            keys: self.config.keys,
            phase: phase.to_owned(),
            ops,
            p50_ns,
            p95_ns,
            p99_ns,
            p999_ns,
            p9999_ns,
            max_ns: over(&Histogram::max),
            key_bytes: Some("8".into()),
            value_bytes: Some("8".into()),
            case: Some(case.name.into()),
            seed: self.config.seed,
            void,
            ..Record::at(place)
        }
    }
}

/// Inserts all keys, and times each.
fn insert_all(
    table: &dyn Subject,
    stream: &Stream,
    clock: Duration,
) -> Result<Histogram<u64>, LabError> {
    let (work, mut latencies) = (insertion(stream), histogram());
    let mut due = Instant::now();
    for at in 0..stream.keys.len() {
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let begin = Instant::now();
        table.run(work.part(at, at + 1))?;
        latencies.saturating_record(begin.elapsed().saturating_sub(clock).as_nanos() as u64);
        due += PACE;
    }
    Ok(latencies)
}

/// Grows the table ahead of the insertions of another thread.
fn grow(table: &dyn Subject, done: &AtomicBool) -> Result<(), LabError> {
    while !done.load(Ordering::Relaxed) {
        if table.grow_ahead(PIECES)?.is_none_or(|pieces| pieces < PIECES) {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Looks up keys beside the insertions of another thread.
fn look_up(
    table: &dyn Subject,
    stream: &Stream,
    done: &AtomicBool,
    clock: Duration,
) -> Result<Histogram<u64>, LabError> {
    let name = Phase::Positive.name();
    let work = Work { name, phase: Phase::Positive, ..insertion(stream) };
    let mut latencies = histogram();
    let mut from = 0;
    while !done.load(Ordering::Relaxed) {
        let until = stream.keys.len().min(from + PORTION);
        latencies.add(sample(table, work.part(from, until), clock)?).expect("equal bounds");
        from = if until == stream.keys.len() { 0 } else { until };
    }
    Ok(latencies)
}
