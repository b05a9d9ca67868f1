//! The driver of the micro experiment: one operation at a time, or one batch, on random `u64` keys.
//!
//! Machines are noisy, so figures are only compared within a run: the tables take turns (A B C, A B C, ...),
//! a ratio is taken within each round, and its median and a distribution-free interval are reported.
//! Threads are pinned. What everybody else on the machine used meanwhile is measured, and a phase that was
//! disturbed is void and repeated. Every answer of a table is checked while the clock runs, and the whole
//! content afterwards.
//!
//! Latencies and counters come from passes of their own, since reading a clock or counting lines costs more
//! than some operations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_pm::medium::Pages;
use hdrhistogram::Histogram;

use crate::LabError;
use crate::interval::{Interval, median, median_interval};
use crate::limits::{Limits, Probe};
use crate::machine::{self, CpuUse, Resident};
use crate::output::{Output, Record};
use crate::subject::{Counts, Entry, MediumKind, Setup, Size, Subject, Work, subject};
use crate::workers::Workers;
use crate::workload::{Phase, Stream, Workload};

/// Most threads that an experiment may have.
const THREADS_MAX: usize = 256;
/// In the latency pass, one operation of this many is timed: reading the clock twice would slow all of them.
const SAMPLE_EVERY: usize = 16;
/// Foreign processor time is known in scheduler ticks, so a shorter phase is judged by its whole round.
const JUDGED_ALONE: f64 = 0.25;
/// Probability with which intervals should hold the true median.
const CONFIDENCE: f64 = 0.9;

/// What to measure.
#[derive(Clone, Debug)]
pub struct MicroConfig {
    /// Names of tables; see [`subjects`](crate::subject::subjects).
    pub indexes: Vec<String>,
    /// Keys that are inserted. Every phase has as many operations.
    pub keys: u64,
    /// Threads that share the operations.
    pub threads: usize,
    /// What all keys and orders follow from.
    pub seed: u64,
    /// Where indexes that can persist live.
    pub medium: MediumKind,
    /// The directory for their files; see [`Setup::new`].
    pub location: Option<std::path::PathBuf>,
    /// Page size to ask for. Files have the pages that their file system gives.
    pub pages: Pages,
    /// On the emulated medium, nanoseconds that a fence after a flush takes at least.
    pub persist_ns: u64,
    /// On the emulated medium, nanoseconds that a line from outside a small cache takes. 0: as it is.
    pub read_ns: u64,
    /// How often every table is measured. Fewer than five cannot give an interval of 90 %.
    pub rounds: usize,
    /// Phases to report. `Insert` always runs; they run in the order of [`Phase::ALL`].
    pub phases: Vec<Phase>,
    /// Keys in one call of `get_many`.
    pub batch: usize,
    /// Whether tables begin at their final size, where they can.
    pub presize: bool,
    /// Processors that others may keep busy before a phase is void. Infinite: nothing is void.
    pub foreign_limit: f64,
    /// How long to wait before each run for others to leave the machine.
    pub patience: Duration,
    /// How often a round with a void phase is repeated before its figures are taken as they are, marked.
    pub retries: usize,
    /// Whether to measure latencies.
    pub latency: bool,
    /// Whether to count flushes, fences and lines, where the medium can.
    pub counts: bool,
    /// Whether to measure the machine's own limits in the same rounds.
    pub limits: bool,
}

impl Default for MicroConfig {
    fn default() -> Self {
        MicroConfig {
            indexes: Vec::new(),
            keys: 10_000_000,
            threads: 1,
            seed: 1,
            medium: MediumKind::Dram,
            location: None,
            pages: Pages::Base,
            persist_ns: 600,
            read_ns: 0,
            rounds: 5,
            phases: Phase::ALL.to_vec(),
            batch: 32,
            presize: false,
            foreign_limit: 0.2,
            patience: Duration::from_secs(10),
            retries: 3,
            latency: true,
            counts: true,
            limits: true,
        }
    }
}

impl MicroConfig {
    /// Finds what is impossible, and what a factory must know.
    fn check(&self, subjects: usize) -> Result<Setup, LabError> {
        let at_least_one = [
            ("index", subjects),
            ("round", self.rounds),
            ("phase", self.phases.len()),
            ("thread", self.threads),
            ("key in a batch", self.batch),
        ];
        for (what, count) in at_least_one {
            if count == 0 {
                return Err(LabError::Config(format!("there must be at least one {what}")));
            }
        }
        if self.threads > THREADS_MAX {
            return Err(LabError::Config(format!("at most {THREADS_MAX} threads are supported")));
        }
        let setup = Setup::new(self.medium, self.location.clone(), self.pages, self.keys)?;
        let MicroConfig { presize, persist_ns, read_ns, .. } = *self;
        Ok(Setup { presize, persist_ns, read_ns, ..setup })
    }
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct MicroReport {
    /// The tables, in the order of the configuration.
    pub subjects: Vec<SubjectReport>,
    /// Our tables against the rivals, phase by phase; where there are none of ours, the first against the others.
    pub ratios: Vec<Ratio>,
    /// The machine's own limits, if asked for: medians over the rounds.
    pub limits: Option<Limits>,
}

/// What was measured of one table.
#[derive(Clone, Debug)]
pub struct SubjectReport {
    /// Its name.
    pub name: &'static str,
    /// Whether it is somebody else's.
    pub rival: bool,
    /// Rounds that were repeated because others used the machine.
    pub repeated: usize,
    /// The phases, in the order in which they ran.
    pub phases: Vec<PhaseReport>,
}

/// What was measured of one table in one phase.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// The phase.
    pub phase: Phase,
    /// Medians over the rounds that are not void (over all where all are), with latencies and counters.
    pub summary: Record,
    /// Each round's figures.
    pub rounds: Vec<Record>,
}

/// How much faster one table is than another in one phase.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// The table in question.
    pub of: &'static str,
    /// What it is compared with.
    pub to: &'static str,
    /// The phase.
    pub phase: Phase,
    /// Median over the rounds of the ratio of operations per second.
    pub median: f64,
    /// Where the true median lies.
    pub interval: Interval,
    /// Rounds it stands on.
    pub rounds: usize,
    /// Whether these rounds were disturbed, for want of others.
    pub void: bool,
}

/// Measures the tables that `config` names.
///
/// # Errors
/// `UnknownIndex`, `Config` for impossible settings, `WrongAnswer` or `WrongLength` where a table is not
/// right, `Index` where one fails, `Io` where `out` cannot be written.
pub fn run_micro(config: &MicroConfig, out: &mut dyn Output) -> Result<MicroReport, LabError> {
    let entries = config.indexes.iter().map(|name| subject(name)).collect::<Result<Vec<_>, _>>()?;
    run_micro_on(&entries, config, out)
}

/// Measures `entries`, which need not be in the registry; the names in `config` are not used.
///
/// # Errors
/// As [`run_micro`].
pub fn run_micro_on(
    entries: &[Entry],
    config: &MicroConfig,
    out: &mut dyn Output,
) -> Result<MicroReport, LabError> {
    let setup = config.check(entries.len())?;
    let mut phases = config.phases.clone();
    phases.sort();
    phases.dedup();
    let workers = Workers::start(config.threads)?;
    let workload = Workload { keys: config.keys, threads: config.threads, seed: config.seed };
    let driver = Driver { config, setup, phases, workers, workload };
    driver.measure(entries, out)
}

struct Driver<'a> {
    config: &'a MicroConfig,
    setup: Setup,
    phases: Vec<Phase>,
    workers: Workers,
    workload: Workload,
}

impl Driver<'_> {
    fn measure(&self, entries: &[Entry], out: &mut dyn Output) -> Result<MicroReport, LabError> {
        let config = self.config;
        let passes = config.rounds + usize::from(config.latency) + usize::from(config.counts);
        out.begin((entries.len() * passes + usize::from(config.limits) * config.rounds) as u64);
        let probe = if config.limits { Some(Probe::new(config.keys, config.pages)?) } else { None };
        let mut limits = Vec::new();
        let mut tables: Vec<_> = entries.iter().map(|&entry| Rounds::new(entry)).collect();
        for round in 0..config.rounds {
            for table in &mut tables {
                let name = table.entry.name;
                out.step(&format!("{name}, round {} of {}", round + 1, config.rounds));
                self.round(table, round)?;
                for record in &table.rounds[round] {
                    out.record(record)?;
                }
            }
            if let Some(probe) = &probe {
                out.step(&format!("the machine, round {} of {}", round + 1, config.rounds));
                limits.push(probe.measure(&self.workers, config.foreign_limit)?);
            }
        }
        let mut subjects = Vec::new();
        for table in tables {
            subjects.push(self.conclude(table, out)?);
        }
        let limits = Limits::median(&limits);
        for record in limits.iter().flat_map(|limits| limits.records(config.keys, config.seed)) {
            out.record(&record)?;
        }
        let report = MicroReport { ratios: ratios(&subjects), subjects, limits };
        out.micro(&report)?;
        Ok(report)
    }

    /// Measures one table once, again where that was disturbed, and keeps the best of each phase.
    fn round(&self, table: &mut Rounds, round: usize) -> Result<(), LabError> {
        let mut best = self.throughput(&table.entry)?;
        for _ in 0..self.config.retries {
            if best.iter().all(|record| !record.void) {
                break;
            }
            table.repeated += 1;
            for (best, next) in best.iter_mut().zip(self.throughput(&table.entry)?) {
                if best.void && !next.void {
                    *best = next;
                }
            }
        }
        best.iter_mut().for_each(|record| record.round = Some(round));
        table.rounds.push(best);
        Ok(())
    }

    /// One run through all phases at full speed.
    fn throughput(&self, entry: &Entry) -> Result<Vec<Record>, LabError> {
        machine::trim();
        machine::wait_for_quiet(self.config.foreign_limit, self.config.patience);
        let mut run = Run::new(self, entry, false)?;
        let (mut records, mut uses) = (Vec::new(), Vec::new());
        let mut footprint = Footprint::default();
        run.phases(|run, phase| {
            let (subject, work) = (run.subject.clone(), run.work(phase));
            let race = self.workers.race(move |_, stream| subject.run(work.on(stream)))?;
            if phase.resizes() {
                footprint = Footprint::of(run)?;
            }
            if self.phases.contains(&phase) {
                let mut record = self.record(run, phase);
                record.time(race.seconds, race.used.own);
                footprint.write(&mut record);
                records.push(record);
                uses.push(race.used);
            }
            Ok(())
        })?;
        run.verify()?;
        for (record, share) in records.iter_mut().zip(foreign_shares(&uses)) {
            record.foreign_cpu = share;
            record.void = self.is_void(share);
        }
        Ok(records)
    }

    fn is_void(&self, foreign_share: Option<f64>) -> bool {
        foreign_share.is_some_and(|share| share > self.config.foreign_limit)
    }

    /// The passes that are run once, and the medians.
    fn conclude(&self, table: Rounds, out: &mut dyn Output) -> Result<SubjectReport, LabError> {
        let Rounds { entry, mut repeated, rounds } = table;
        let latencies = if self.config.latency {
            out.step(&format!("{}, latencies", entry.name));
            let (latencies, again) = self.undisturbed_latencies(&entry)?;
            repeated += again;
            latencies
        } else {
            Vec::new()
        };
        let counts = if self.config.counts {
            out.step(&format!("{}, counters", entry.name));
            self.counts(&entry)?
        } else {
            Vec::new()
        };
        let mut phases = Vec::new();
        for (at, &phase) in self.phases.iter().enumerate() {
            let rounds: Vec<_> = rounds.iter().map(|round| round[at].clone()).collect();
            let mut summary = summary(&rounds);
            if let Some(latency) = latencies.get(at) {
                latency.write(&mut summary);
            }
            if let Some(counts) = counts.get(at) {
                summary.count(*counts);
            }
            out.record(&summary)?;
            phases.push(PhaseReport { phase, summary, rounds });
        }
        Ok(SubjectReport { name: entry.name, rival: entry.rival, repeated, phases })
    }

    /// Repeats the latency pass while others use the machine, as often as a round; tells how often.
    fn undisturbed_latencies(&self, entry: &Entry) -> Result<(Vec<Latency>, usize), LabError> {
        let mut again = 0;
        loop {
            let latencies = self.latencies(entry)?;
            if latencies.iter().all(|latency| !latency.void) || again == self.config.retries {
                return Ok((latencies, again));
            }
            again += 1;
        }
    }

    /// One run through all phases that times single operations.
    fn latencies(&self, entry: &Entry) -> Result<Vec<Latency>, LabError> {
        let clock = clock_cost();
        machine::wait_for_quiet(self.config.foreign_limit, self.config.patience);
        let mut run = Run::new(self, entry, false)?;
        let (mut latencies, mut uses) = (Vec::new(), Vec::new());
        run.phases(|run, phase| {
            let (subject, work) = (run.subject.clone(), run.work(phase));
            let race =
                self.workers.race(move |_, stream| sample(&*subject, work.on(stream), clock))?;
            if self.phases.contains(&phase) {
                let mut all = histogram();
                for one in race.results {
                    all.add(one).expect("equal bounds");
                }
                latencies.push(Latency { all, void: false });
                uses.push(race.used);
            }
            Ok(())
        })?;
        run.verify()?;
        for (latency, share) in latencies.iter_mut().zip(foreign_shares(&uses)) {
            latency.void = self.is_void(share);
        }
        Ok(latencies)
    }

    /// One run through all phases with a counting medium. Empty where the table has none.
    fn counts(&self, entry: &Entry) -> Result<Vec<Counts>, LabError> {
        let mut run = Run::new(self, entry, true)?;
        let mut counts = Vec::new();
        if run.subject.counts().is_none() {
            return Ok(counts);
        }
        run.phases(|run, phase| {
            let before = run.subject.counts().unwrap_or_default();
            let (subject, work) = (run.subject.clone(), run.work(phase));
            self.workers.each(move |_, stream| subject.run(work.on(stream)))?;
            if self.phases.contains(&phase) {
                counts.push(run.subject.counts().unwrap_or_default().since(before));
            }
            Ok(())
        })?;
        run.verify()?;
        Ok(counts)
    }

    /// Has every thread write out its keys of a phase.
    fn fill(&self, phase: Phase) -> Result<(), LabError> {
        let workload = self.workload;
        self.workers.each(move |thread, stream| {
            stream.fill(&workload, phase, thread);
            Ok(())
        })?;
        Ok(())
    }

    fn record(&self, run: &Run<'_>, phase: Phase) -> Record {
        let place = run.subject.place();
        Record {
            experiment: "micro",
            index: run.name.to_owned(),
            medium: place.medium,
            threads: self.config.threads,
            keys: self.config.keys,
            phase: phase.name().to_owned(),
            ops: self.config.keys,
            seed: self.config.seed,
            flush_kind: place.flush_kind,
            location: place.location,
            ..Record::default()
        }
    }
}

/// The rounds of one table so far; in each, a record for every phase.
struct Rounds {
    entry: Entry,
    repeated: usize,
    rounds: Vec<Vec<Record>>,
}

impl Rounds {
    fn new(entry: Entry) -> Self {
        Rounds { entry, repeated: 0, rounds: Vec::new() }
    }
}

/// One table on its way through the phases.
struct Run<'a> {
    driver: &'a Driver<'a>,
    name: &'static str,
    subject: Arc<dyn Subject>,
    /// What was resident before the table was built.
    before: Option<Resident>,
    /// Which words the keys are bound to.
    version: u64,
    mixed: bool,
    deleted: bool,
}

/// [`Work`] without the keys, which each thread has in its stream.
#[derive(Clone, Copy)]
struct Task {
    phase: Phase,
    version: u64,
    batch: usize,
}

impl Task {
    fn on(self, stream: &Stream) -> Work<'_> {
        let Task { phase, version, batch } = self;
        Work { phase, keys: &stream.keys, inserts: &stream.inserts, version, batch }
    }
}

impl<'a> Run<'a> {
    fn new(driver: &'a Driver<'a>, entry: &Entry, counted: bool) -> Result<Self, LabError> {
        let setup = Setup { counted, ..driver.setup.clone() };
        // The threads' streams must have their memory before the table's is measured.
        driver.fill(Phase::Insert)?;
        let before = machine::resident();
        let subject = Arc::from((entry.build)(&setup)?);
        let name = entry.name;
        Ok(Run { driver, name, subject, before, version: 0, mixed: false, deleted: false })
    }

    /// Calls `each` with `Insert` and every phase that was asked for, its keys written out beforehand.
    fn phases(
        &mut self,
        mut each: impl FnMut(&Self, Phase) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        for phase in Phase::ALL {
            if phase != Phase::Insert && !self.driver.phases.contains(&phase) {
                continue;
            }
            self.driver.fill(phase)?;
            each(self, phase)?;
            match phase {
                Phase::Update => self.version += 1,
                Phase::Mixed => self.mixed = true,
                Phase::Delete => self.deleted = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn work(&self, phase: Phase) -> Task {
        Task { phase, version: self.version, batch: self.driver.config.batch }
    }

    /// Compares the whole content with what the phases should have left.
    fn verify(&self) -> Result<(), LabError> {
        let originals = if self.deleted { Phase::Negative } else { Phase::Positive };
        self.look_up(originals, |stream, workload, thread| {
            stream.fill(workload, Phase::Insert, thread);
        })?;
        if self.mixed {
            self.look_up(Phase::Positive, Stream::fill_added)?;
        }
        let workload = self.driver.workload;
        let added = if self.mixed { workload.added() } else { 0 };
        let expected = added + if self.deleted { 0 } else { workload.keys };
        match self.subject.size()?.len {
            Some(found) if found != expected => {
                Err(LabError::WrongLength { index: self.name, expected, found })
            }
            _ => Ok(()),
        }
    }

    fn look_up(
        &self,
        phase: Phase,
        fill: impl Fn(&mut Stream, &Workload, usize) + Send + Sync + 'static,
    ) -> Result<(), LabError> {
        let (workload, subject, work) =
            (self.driver.workload, self.subject.clone(), self.work(phase));
        self.driver.workers.each(move |thread, stream| {
            fill(stream, &workload, thread);
            subject.run(work.on(stream))
        })?;
        Ok(())
    }
}

/// Processors that others kept busy in each phase. Short phases are given the share of all phases together.
fn foreign_shares(phases: &[CpuUse]) -> Vec<Option<f64>> {
    let mut total = CpuUse { foreign: Some(0.0), ..CpuUse::default() };
    phases.iter().for_each(|used| total += *used);
    let judged = phases.iter().map(|used| if used.seconds < JUDGED_ALONE { &total } else { used });
    judged.map(CpuUse::foreign_share).collect()
}

/// Space that a table takes.
#[derive(Clone, Copy, Default)]
struct Footprint {
    size: Size,
    page_size: Option<u64>,
}

impl Footprint {
    /// What a table cannot tell about its memory is taken from the growth of the process since it was built.
    fn of(run: &Run<'_>) -> Result<Self, LabError> {
        let mut size = run.subject.size()?;
        let growth = machine::growth(run.before);
        if size.dram_bytes.is_none() && size.pm_bytes.is_none() {
            size.dram_bytes = growth.map(|growth| growth.bytes);
        }
        let page_size = growth.map(machine::page_size);
        Ok(Footprint { size, page_size })
    }

    fn write(&self, record: &mut Record) {
        record.load_factor = self.size.load_factor;
        record.dram_bytes = self.size.dram_bytes;
        record.pm_bytes = self.size.pm_bytes;
        record.page_size = self.page_size;
    }
}

/// Latencies of one phase, nanoseconds.
struct Latency {
    all: Histogram<u64>,
    void: bool,
}

impl Latency {
    fn write(&self, record: &mut Record) {
        record.p50_ns = Some(self.all.value_at_quantile(0.5));
        record.p99_ns = Some(self.all.value_at_quantile(0.99));
        record.p999_ns = Some(self.all.value_at_quantile(0.999));
        record.void |= self.void;
    }
}

/// From 1 ns to 100 s, three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("valid bounds")
}

/// Does all of `work` and times one operation, or one batch of `get_many`, of [`SAMPLE_EVERY`].
fn sample(
    subject: &dyn Subject,
    work: Work<'_>,
    clock: Duration,
) -> Result<Histogram<u64>, LabError> {
    let mut histogram = histogram();
    let unit = if work.phase == Phase::GetMany { work.batch } else { 1 };
    let (len, mut at) = (work.keys.len(), 0);
    while at < len {
        let timed = (at + unit * (SAMPLE_EVERY - 1)).min(len);
        let end = (timed + unit).min(len);
        subject.run(work.part(at, timed))?;
        if timed < end {
            let begin = Instant::now();
            subject.run(work.part(timed, end))?;
            histogram.saturating_record((begin.elapsed().saturating_sub(clock)).as_nanos() as u64);
        }
        at = end;
    }
    Ok(histogram)
}

/// What reading the clock twice costs, which is subtracted from every latency.
fn clock_cost() -> Duration {
    let mut costs: Vec<_> = (0..1001).map(|_| Instant::now().elapsed()).collect();
    costs.sort();
    costs[costs.len() / 2]
}

/// Medians over the rounds that are not void; over all, and void, where all are.
fn summary(rounds: &[Record]) -> Record {
    let clean: Vec<_> = rounds.iter().filter(|record| !record.void).collect();
    let used = if clean.is_empty() { rounds.iter().collect() } else { clean };
    let over = |figure: fn(&Record) -> Option<f64>| {
        median(&used.iter().filter_map(|record| figure(record)).collect::<Vec<_>>())
    };
    let Some(&last) = used.last() else {
        return Record::default();
    };
    Record {
        round: None,
        seconds: over(|record| record.seconds),
        mops: over(|record| record.mops),
        cpu_ns_per_op: over(|record| record.cpu_ns_per_op),
        foreign_cpu: over(|record| record.foreign_cpu),
        ..last.clone()
    }
}

/// Ratios between tables, taken within rounds.
fn ratios(subjects: &[SubjectReport]) -> Vec<Ratio> {
    let own: Vec<_> = subjects.iter().filter(|subject| !subject.rival).collect();
    let rivals: Vec<_> = subjects.iter().filter(|subject| subject.rival).collect();
    let (own, others) = match (own.is_empty(), &subjects) {
        (false, _) => (own, rivals),
        (true, [first, rest @ ..]) => (vec![first], rest.iter().collect()),
        (true, []) => (own, rivals),
    };
    let mut ratios = Vec::new();
    for of in own {
        for to in &others {
            for (one, other) in of.phases.iter().zip(&to.phases) {
                ratios.extend(ratio(of.name, to.name, one, other));
            }
        }
    }
    ratios
}

fn ratio(
    of: &'static str,
    to: &'static str,
    one: &PhaseReport,
    other: &PhaseReport,
) -> Option<Ratio> {
    let pairs = || one.rounds.iter().zip(&other.rounds);
    let values = |keep: fn(&(&Record, &Record)) -> bool| {
        let kept = pairs().filter(keep);
        kept.filter_map(|(one, other)| Some(one.mops? / other.mops?)).collect::<Vec<_>>()
    };
    let clean = values(|(one, other)| !one.void && !other.void);
    let void = clean.is_empty();
    let values = if void { values(|_| true) } else { clean };
    Some(Ratio {
        of,
        to,
        phase: one.phase,
        median: median(&values)?,
        interval: median_interval(&values, CONFIDENCE)?,
        rounds: values.len(),
        void,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Factory, Measured, subjects};
    use crate::testing::{Fault, Faulty, Kept, faulty};
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    /// Small, and without any judgement of the machine.
    fn config(threads: usize) -> MicroConfig {
        MicroConfig {
            keys: 10_000,
            threads,
            rounds: 2,
            foreign_limit: f64::INFINITY,
            patience: Duration::ZERO,
            limits: false,
            ..MicroConfig::default()
        }
    }

    fn run(fault: Fault, config: &MicroConfig) -> Result<(MicroReport, Kept), LabError> {
        let mut kept = Kept::default();
        let report = run_micro_on(&[faulty(fault)], config, &mut kept)?;
        Ok((report, kept))
    }

    #[test]
    fn every_registered_table_passes_all_phases() {
        for threads in [1, 2, 3] {
            let indexes = subjects().iter().map(|entry| entry.name.to_owned()).collect();
            let config = MicroConfig { indexes, ..config(threads) };
            let report = run_micro(&config, &mut Kept::default()).unwrap();
            assert_eq!(report.subjects.len(), subjects().len());
            for subject in report.subjects {
                for phase in subject.phases {
                    assert!(phase.summary.mops.unwrap() > 0.0, "{} {}", subject.name, phase.phase);
                    assert!(phase.summary.cpu_ns_per_op.unwrap() > 0.0);
                }
            }
        }
    }

    #[test]
    fn presized_tables_pass_too() {
        let indexes = subjects().iter().map(|entry| entry.name.to_owned()).collect();
        let config = MicroConfig { indexes, presize: true, rounds: 1, ..config(2) };
        run_micro(&config, &mut Kept::default()).unwrap();
    }

    #[test]
    fn a_wrong_answer_fails_the_run_in_the_phase_where_it_shows() {
        let faults = [
            (Fault::LosesInsert, Phase::Positive),
            (Fault::WrongWord, Phase::Positive),
            (Fault::InventsKey, Phase::Negative),
            (Fault::MixesBatch, Phase::GetMany),
            (Fault::LosesUpdate, Phase::Mixed),
            (Fault::KeepsRemoved, Phase::Negative),
        ];
        for (fault, shows_in) in faults {
            for threads in [1, 2] {
                match run(fault, &config(threads)) {
                    Err(LabError::WrongAnswer { index: "faulty", phase, .. }) => {
                        assert_eq!(phase, shows_in, "{fault:?}");
                    }
                    other => panic!("{fault:?}: {:?}", other.map(|both| both.0)),
                }
            }
        }
    }

    /// Where no phase looks, the look at the whole content afterwards does.
    #[test]
    fn a_wrong_table_fails_the_run_whatever_the_phases() {
        let alone = |phase| MicroConfig { phases: vec![phase], ..config(1) };
        for (fault, phase) in [
            (Fault::LosesInsert, Phase::Insert),
            (Fault::LosesUpdate, Phase::Update),
            (Fault::KeepsRemoved, Phase::Delete),
        ] {
            let error = run(fault, &alone(phase)).unwrap_err();
            assert!(matches!(error, LabError::WrongAnswer { .. }), "{fault:?}: {error}");
        }
        let error = run(Fault::Miscounts, &alone(Phase::Insert)).unwrap_err().to_string();
        assert_eq!(error, "faulty says that it holds 10001 pairs, but 10000 were left in it");
    }

    #[test]
    fn a_failing_operation_names_the_table_and_keeps_the_reason() {
        let error = run(Fault::Fails, &config(2)).unwrap_err().to_string();
        assert!(error.starts_with("faulty failed: damaged at offset"), "{error}");
        assert!(error.contains("the test's doing"), "{error}");
    }

    #[test]
    fn counters_are_divided_by_operations() {
        let (report, _) = run(Fault::None, &config(2)).unwrap();
        for phase in &report.subjects[0].phases {
            let record = &phase.summary;
            assert_eq!(record.flushes_per_op, Some(1.0), "{}", phase.phase);
            assert_eq!(record.fences_per_op, Some(2.0));
            assert_eq!(record.lines_read_per_op, Some(3.0));
            let written = match phase.phase {
                Phase::Insert => 1.0,
                Phase::Mixed => 0.2,
                _ => 0.0,
            };
            assert_eq!(record.lines_written_per_op, Some(written), "{}", phase.phase);
        }
    }

    #[test]
    fn space_is_reported_as_it_is_after_the_phase() {
        let (report, _) = run(Fault::None, &config(1)).unwrap();
        let of = |at: usize| {
            let record = &report.subjects[0].phases[at].summary;
            (record.load_factor.unwrap(), record.pm_bytes.unwrap())
        };
        // 10,000 pairs in 16,384 places, 12,000 after the mixed phase, and the 2,000 it added after deletion.
        assert_eq!(of(0), (10_000.0 / 16_384.0, 16 * 16_384));
        assert_eq!(of(4), of(0));
        assert_eq!(of(5), (12_000.0 / 16_384.0, 16 * 16_384));
        assert_eq!(of(6), (2_000.0 / 2_048.0, 16 * 2_048));
    }

    #[test]
    fn tables_take_turns() {
        let entries = [faulty(Fault::None), subject("reference").unwrap()];
        let config = MicroConfig { phases: vec![Phase::Insert, Phase::Delete], ..config(1) };
        let mut kept = Kept::default();
        run_micro_on(&entries, &config, &mut kept).unwrap();
        let order: Vec<_> = kept
            .records
            .iter()
            .map(|record| (record.index.as_str(), record.phase.as_str(), record.round))
            .collect();
        let both = |index, round| [(index, "insert", round), (index, "delete", round)];
        let expected = [
            both("faulty", Some(0)),
            both("reference", Some(0)),
            both("faulty", Some(1)),
            both("reference", Some(1)),
            both("faulty", None),
            both("reference", None),
        ];
        assert_eq!(order, expected.concat());
        assert_eq!(kept.steps, kept.stepped.len() as u64);
    }

    /// Nothing can be quieter than this limit wants, so every attempt is void, and there are not too many.
    #[test]
    fn disturbed_rounds_are_repeated_and_then_marked() {
        static BUILT: AtomicUsize = AtomicUsize::new(0);
        let build: Factory = |setup| {
            BUILT.fetch_add(1, Relaxed);
            (faulty(Fault::None).build)(setup)
        };
        let entry = Entry { build, ..faulty(Fault::None) };
        let config = MicroConfig {
            foreign_limit: -1.0,
            retries: 2,
            phases: vec![Phase::Insert, Phase::Positive],
            ..config(1)
        };
        let report = run_micro_on(&[entry], &config, &mut Kept::default()).unwrap();
        // Two rounds and the latencies, three times each; the counters once.
        assert_eq!(BUILT.load(Relaxed), 3 * 3 + 1);
        let subject = &report.subjects[0];
        assert_eq!(subject.repeated, 3 * 2);
        for phase in &subject.phases {
            assert!(phase.summary.void && phase.rounds.iter().all(|record| record.void));
            assert!(phase.summary.mops.is_some());
        }
    }

    #[test]
    fn latencies_come_from_one_operation_in_sixteen() {
        let subject = Measured {
            name: "faulty",
            table: Faulty::new(Fault::None),
            guards: crate::subject::Guards::PerOperation,
        };
        let count = |phase, keys: &[u64]| {
            let work = Work { phase, keys, inserts: &[], version: 0, batch: 10 };
            sample(&subject, work, Duration::ZERO).unwrap().len()
        };
        let keys: Vec<_> = (0..1000).collect();
        assert_eq!(count(Phase::Insert, &keys), 62);
        assert_eq!(count(Phase::Positive, &keys[..15]), 0);
        assert_eq!(count(Phase::Positive, &keys[..16]), 1);
        // Batches of ten: 150 keys untimed, then one batch, whole or not.
        assert_eq!(count(Phase::GetMany, &keys), 6);
        assert_eq!(count(Phase::GetMany, &keys[..155]), 1);
        assert_eq!(count(Phase::GetMany, &keys[..150]), 0);
    }

    #[test]
    fn short_phases_are_judged_together() {
        let used = |seconds, foreign| CpuUse { seconds, own: 0.0, foreign };
        let long = [used(1.0, Some(0.5)), used(0.1, Some(0.1)), used(0.9, Some(0.0))];
        // The second took ten ticks, which says little of itself: 0.6 s of 2 s together.
        assert_eq!(foreign_shares(&long), [Some(0.5), Some(0.3), Some(0.0)]);
        assert_eq!(foreign_shares(&[used(1.0, None), used(0.1, Some(0.0))]), [None, None]);
        assert_eq!(foreign_shares(&[]), []);
    }

    #[test]
    fn quantiles_by_hand() {
        let mut all = histogram();
        (1..=1000).for_each(|ns| all.saturating_record(ns));
        let mut record = Record::default();
        Latency { all, void: true }.write(&mut record);
        assert_eq!(
            (record.p50_ns, record.p99_ns, record.p999_ns),
            (Some(500), Some(990), Some(999))
        );
        assert!(record.void);
    }

    fn rounds(figures: &[(f64, bool)]) -> Vec<Record> {
        let record = |&(mops, void)| Record { mops: Some(mops), void, ..Record::default() };
        figures.iter().map(record).collect()
    }

    #[test]
    fn medians_leave_out_void_rounds() {
        let all = rounds(&[(1.0, false), (100.0, true), (3.0, false), (2.0, false)]);
        let clean = summary(&all);
        assert_eq!((clean.mops, clean.void, clean.round), (Some(2.0), false, None));
        let void = summary(&rounds(&[(1.0, true), (5.0, true)]));
        assert_eq!((void.mops, void.void), (Some(3.0), true));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let phase = |figures: &[(f64, bool)]| PhaseReport {
            phase: Phase::Insert,
            summary: Record::default(),
            rounds: rounds(figures),
        };
        let one = phase(&[(4.0, false), (9.0, false), (8.0, true), (5.0, false), (2.0, false)]);
        let other = phase(&[(2.0, false), (3.0, false), (1.0, false), (1.0, false), (1.0, true)]);
        // Rounds of both that are clean: 4/2, 9/3, 5/1.
        let clean = ratio("a", "b", &one, &other).unwrap();
        assert_eq!((clean.median, clean.rounds, clean.void), (3.0, 3, false));
        assert_eq!(clean.interval, Interval { low: 2.0, high: 5.0, coverage: 0.75 });
        let void = phase(&[(1.0, true); 5]);
        let marked = ratio("a", "b", &one, &void).unwrap();
        assert_eq!((marked.median, marked.rounds, marked.void), (5.0, 5, true));
    }

    #[test]
    fn ours_are_compared_with_rivals_or_the_first_with_the_others() {
        let subject = |name, rival| SubjectReport {
            name,
            rival,
            repeated: 0,
            phases: vec![PhaseReport {
                phase: Phase::Insert,
                summary: Record::default(),
                rounds: rounds(&[(1.0, false)]),
            }],
        };
        let pairs = |subjects: &[SubjectReport]| {
            ratios(subjects).iter().map(|ratio| (ratio.of, ratio.to)).collect::<Vec<_>>()
        };
        let mixed = [subject("r", true), subject("a", false), subject("b", false)];
        assert_eq!(pairs(&mixed), [("a", "r"), ("b", "r")]);
        assert_eq!(pairs(&[subject("r", true), subject("s", true)]), [("r", "s")]);
        assert_eq!(pairs(&[]), []);
    }

    #[test]
    fn impossible_settings_are_explained() {
        let message =
            |config: MicroConfig| run(Fault::None, &config).map(drop).unwrap_err().to_string();
        let base = || config(1);
        assert!(message(MicroConfig { keys: 0, ..base() }).contains("at least one key"));
        let many = message(MicroConfig { keys: u64::MAX, ..base() });
        assert!(many.contains("MiB are free; take fewer keys"), "{many}");
        assert!(message(MicroConfig { threads: 0, ..base() }).contains("at least one thread"));
        assert!(message(MicroConfig { threads: 257, ..base() }).contains("at most 256 threads"));
        assert!(message(MicroConfig { rounds: 0, ..base() }).contains("at least one round"));
        assert!(
            message(MicroConfig { batch: 0, ..base() }).contains("at least one key in a batch")
        );
        assert!(message(MicroConfig { phases: vec![], ..base() }).contains("at least one phase"));
        let nowhere = Some("/no/such/place".into());
        let lost = MicroConfig { medium: MediumKind::Process, location: nowhere, ..base() };
        assert!(message(lost).contains("/no/such/place is no directory; medium `process`"));
        let none = run_micro(&base(), &mut Kept::default()).unwrap_err().to_string();
        assert!(none.contains("at least one index"), "{none}");
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        let config = MicroConfig { indexes: vec!["refernce".into()], ..config(1) };
        let error = run_micro(&config, &mut Kept::default()).unwrap_err().to_string();
        assert!(error.starts_with("unknown index `refernce`; known are: "), "{error}");
        for entry in subjects() {
            assert!(error.contains(entry.name), "{error}");
        }
        let medium = "drum".parse::<MediumKind>().unwrap_err().to_string();
        assert!(medium.contains("`drum`; known are: dram, process, forced, emulated"), "{medium}");
    }

    #[test]
    fn limits_are_measured_in_the_same_rounds() {
        let config = MicroConfig { limits: true, phases: vec![Phase::GetMany], ..config(2) };
        let (report, kept) = run(Fault::None, &config).unwrap();
        let limits = report.limits.unwrap();
        assert!(limits.dependent_load_ns > 0.0 && limits.mlines(1).unwrap() > 0.0);
        let figures = &report.subjects[0].phases[0].summary;
        assert!(limits.share(Phase::GetMany, figures).unwrap() > 0.0);
        assert!(kept.records.iter().any(|record| record.index == "machine"));
        assert_eq!(kept.steps, kept.stepped.len() as u64);
    }
}
