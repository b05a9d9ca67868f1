//! What is measured, cell by cell: a table, a hash, a case, what threads do, and how many.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use super::tables::{self, Hash, Job, Protection, Span, Tally};
use crate::LabError;
use crate::driver::results::summary;
use crate::driver::workers::Workers;
use crate::driver::{Quiet, turns};
use crate::machine;
use crate::report::interval::median;
use crate::report::{Output, Record, counted};

/// The name of the experiment.
pub(super) const NAME: &str = "resize";

/// Whether the table keeps its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// It has this number of buckets.
    Fixed(u64),
    /// One thread resizes it without a pause.
    Resizing,
}

impl Case {
    pub(super) fn name(self) -> String {
        match self {
            Case::Fixed(buckets) => format!("fixed-{buckets}"),
            Case::Resizing => "resizing".to_owned(),
        }
    }
}

/// One combination that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) table: &'static str,
    pub(super) hash: Hash,
    pub(super) case: Case,
    pub(super) job: Job,
    /// The number of threads besides the resizer.
    pub(super) readers: usize,
}

impl Cell {
    /// Returns the number of threads, with the resizer.
    pub(super) fn threads(self) -> usize {
        self.readers + usize::from(self.case == Case::Resizing)
    }

    pub(super) fn is_oversubscribed(self) -> bool {
        self.threads() > machine::processors().len().max(1)
    }
}

impl Job {
    /// Returns the name of the phase.
    pub(super) fn name(self) -> &'static str {
        match self {
            Job::Lookups(Protection::Quiescent) => "lookups",
            Job::Lookups(Protection::Guards) => "lookups-guards",
            Job::Mixed => "mixed-90-9-1",
            Job::Latencies => "latencies",
            Job::Updates => "updates",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) tables: Vec<&'static str>,
    pub(super) keys: u64,
    /// The two numbers of buckets.
    pub(super) sizes: [u64; 2],
    pub(super) readers: Vec<usize>,
    /// How long each cell takes.
    pub(super) length: Duration,
    pub(super) rounds: usize,
    pub(super) latencies: bool,
    /// The number of lookups whose instructions are counted.
    pub(super) traced: u64,
    pub(super) seed: u64,
    pub(super) quiet: Quiet,
}

impl Plan {
    pub(super) fn cases(&self) -> [Case; 3] {
        [Case::Fixed(self.sizes[0]), Case::Fixed(self.sizes[1]), Case::Resizing]
    }

    /// Returns what is measured of one table.
    fn cells(&self, table: &'static str) -> Vec<Cell> {
        let processors = machine::processors().len().max(1);
        let few = self.readers.iter().copied().filter(|&readers| readers <= processors);
        let few: Vec<_> = few.collect();
        let one = [1];
        let mut all = Vec::new();
        let mut add = |hash, job, counts: &[usize]| {
            for case in self.cases() {
                all.extend(counts.iter().map(|&readers| Cell { table, hash, case, job, readers }));
            }
        };
        for hash in [Hash::Identity, Hash::Random] {
            add(hash, Job::Lookups(Protection::Quiescent), &self.readers);
            if self.latencies {
                add(hash, Job::Latencies, &one);
            }
        }
        add(Hash::Identity, Job::Lookups(Protection::Guards), &few);
        add(Hash::Identity, Job::Mixed, &few);
        add(Hash::Identity, Job::Updates, &one);
        all
    }
}

/// A cell with its summary, and the figures of each round.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) summary: Record,
    pub(super) rounds: Vec<Record>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Results(pub(super) Vec<Measured>);

impl Results {
    pub(super) fn find(&self, cell: Cell) -> Option<&Measured> {
        self.0.iter().find(|one| one.cell == cell)
    }
}

/// Measures everything, in turns.
///
/// # Errors
///
/// `Missed` if a table gives a wrong answer, `Index` if it fails, `Io`.
pub(super) fn measure(plan: &Plan, out: &mut dyn Output) -> Result<Results, LabError> {
    let cells: Vec<_> = plan.tables.iter().map(|table| plan.cells(table)).collect();
    out.begin((cells.iter().map(Vec::len).sum::<usize>() * plan.rounds) as u64);
    let mut bench = Bench { plan, workers: BTreeMap::new() };
    let mut rounds: Vec<Vec<Vec<Record>>> =
        cells.iter().map(|cells| vec![Vec::new(); cells.len()]).collect();
    for round in 0..plan.rounds {
        for table in turns(cells.len(), plan.seed, round) {
            machine::trim();
            plan.quiet.wait(out);
            for (at, &cell) in cells[table].iter().enumerate() {
                out.step(&step(cell, round));
                let record = Record { round: Some(round), ..bench.cell(cell, out)? };
                out.record(&record)?;
                refuse_misses(cell, &record)?;
                rounds[table][at].push(record);
            }
        }
    }
    let mut results = Vec::new();
    for (cell, rounds) in cells.into_iter().flatten().zip(rounds.into_iter().flatten()) {
        let summary = conclude(&rounds);
        out.record(&summary)?;
        results.push(Measured { cell, summary, rounds });
    }
    Ok(Results(results))
}

/// Announces what comes next.
fn step(cell: Cell, round: usize) -> String {
    let Cell { table, hash, case, job, readers } = cell;
    let (hash, case, job) = (hash.name(), case.name(), job.name());
    let readers = counted(readers, "thread");
    format!("{NAME}: {table}, {case}, {hash} hash, {job}, {readers}, round {}", round + 1)
}

/// Fails if there was a wrong answer, because then no figure means anything.
pub(super) fn refuse_misses(cell: Cell, record: &Record) -> Result<(), LabError> {
    match record.misses {
        None | Some(0) => Ok(()),
        Some(misses) => Err(LabError::Missed {
            index: cell.table,
            case: cell.case.name(),
            phase: cell.job.name(),
            misses,
            ops: record.ops,
        }),
    }
}

/// Returns medians over the rounds, the longest gap of all, and the number of all misses.
fn conclude(rounds: &[Record]) -> Record {
    let clean: Vec<_> = rounds.iter().filter(|record| !record.void).collect();
    let used = if clean.is_empty() { rounds.iter().collect() } else { clean };
    let over = |figure: fn(&Record) -> Option<f64>| {
        median(&used.iter().filter_map(|record| figure(record)).collect::<Vec<_>>())
    };
    let ns = |figure: fn(&Record) -> Option<u64>| {
        let all = used.iter().filter_map(|record| figure(record)).map(|ns| ns as f64);
        median(&all.collect::<Vec<_>>()).map(|ns| ns.round() as u64)
    };
    let most =
        |figure: fn(&Record) -> Option<u64>| used.iter().filter_map(|record| figure(record)).max();
    Record {
        p50_ns: ns(|record| record.p50_ns),
        p99_ns: ns(|record| record.p99_ns),
        p999_ns: ns(|record| record.p999_ns),
        p9999_ns: ns(|record| record.p9999_ns),
        max_ns: most(|record| record.max_ns),
        gap_ns: most(|record| record.gap_ns),
        misses: rounds.iter().map(|record| record.misses).sum(),
        resizes: rounds.iter().map(|record| record.resizes).sum(),
        grace_periods: over(|record| record.grace_periods),
        grace_periods_max: most(|record| record.grace_periods_max),
        expansion_ms: over(|record| record.expansion_ms),
        shrink_ms: over(|record| record.shrink_ms),
        ..summary(rounds)
    }
}

/// Threads, by their number, so that none is started while a clock runs.
struct Bench<'a> {
    plan: &'a Plan,
    workers: BTreeMap<usize, Workers>,
}

impl Bench<'_> {
    /// Measures a cell, again if it was disturbed.
    fn cell(&mut self, cell: Cell, out: &mut dyn Output) -> Result<Record, LabError> {
        let quiet = self.plan.quiet;
        Ok(quiet.measure(out, |_| self.once(cell), |record| record.void)?.0)
    }

    fn once(&mut self, cell: Cell) -> Result<Record, LabError> {
        let plan = self.plan;
        let buckets = match cell.case {
            Case::Fixed(buckets) => buckets,
            Case::Resizing => plan.sizes[0],
        };
        let failed = move |error| LabError::index(cell.table, error);
        let contender = tables::build(cell.table, cell.hash, buckets, plan.sizes, plan.keys)?;
        contender.fill(plan.keys).map_err(failed)?;
        if let Entry::Vacant(place) = self.workers.entry(cell.threads()) {
            place.insert(Workers::start(cell.threads())?);
        }
        let (sizes, keys, length, seed) = (plan.sizes, plan.keys, plan.length, plan.seed);
        let race = self.workers[&cell.threads()].race(move |thread, _| {
            let span = Span { keys, length, seed, thread: thread as u64 };
            if thread < cell.readers {
                contender.act(cell.job, span).map_err(failed)
            } else {
                contender.resize_without_pause(sizes, span).map_err(failed)
            }
        })?;
        let foreign = race.used.foreign_share();
        let (readers, resizer) = race.results.split_at(cell.readers);
        let mut record = Record {
            foreign_cpu: foreign,
            void: plan.quiet.is_exceeded(foreign),
            seed: plan.seed,
            ..describe(cell, plan.keys)
        };
        write(&mut record, readers);
        resizer.iter().for_each(|tally| write_resizes(&mut record, tally));
        Ok(record)
    }
}

/// Returns a record without figures.
pub(super) fn describe(cell: Cell, keys: u64) -> Record {
    Record {
        experiment: NAME,
        index: cell.table.to_owned(),
        medium: "dram".to_owned(),
        survives: "nothing",
        threads: cell.threads(),
        keys,
        phase: cell.job.name().to_owned(),
        readers: Some(cell.readers),
        case: Some(cell.case.name()),
        hash: Some(cell.hash.name()),
        oversubscribed: Some(cell.is_oversubscribed()),
        key_bytes: Some("8".to_owned()),
        value_bytes: Some("8".to_owned()),
        ..Record::default()
    }
}

/// Writes what the readers counted, each for itself, and measured.
fn write(record: &mut Record, readers: &[Tally]) {
    let sum = |figure: fn(&Tally) -> f64| readers.iter().map(figure).sum::<f64>();
    record.ops = readers.iter().map(|one| one.ops).sum();
    record.misses = Some(readers.iter().map(|one| one.misses).sum());
    record.seconds = readers.iter().map(|one| one.seconds).max_by(f64::total_cmp);
    // Each by its own clock: they do not end at the same moment.
    record.mops = Some(sum(|one| one.ops as f64 / one.seconds.max(f64::MIN_POSITIVE)) / 1e6);
    record.cpu_ns_per_op = Some(sum(|one| one.cpu_seconds) * 1e9 / (record.ops.max(1) as f64));
    for latencies in readers.iter().filter_map(|one| one.latencies.as_ref()) {
        record.p50_ns = Some(latencies.value_at_quantile(0.5));
        record.p99_ns = Some(latencies.value_at_quantile(0.99));
        record.p999_ns = Some(latencies.value_at_quantile(0.999));
        record.p9999_ns = Some(latencies.value_at_quantile(0.9999));
        record.max_ns = Some(latencies.max());
        record.gap_ns = Some(latencies.max());
    }
}

fn write_resizes(record: &mut Record, tally: &Tally) {
    let resizes = tally.resizes;
    let mean = |sum: f64, count: u64| Some(sum / count.max(1) as f64);
    record.resizes = Some(resizes.expansions + resizes.shrinks);
    record.grace_periods = mean(resizes.grace_periods as f64, resizes.expansions);
    record.grace_periods_max = Some(resizes.grace_periods_max);
    record.expansion_ms = mean(resizes.expansion_seconds * 1e3, resizes.expansions);
    record.shrink_ms = mean(resizes.shrink_seconds * 1e3, resizes.shrinks);
}
