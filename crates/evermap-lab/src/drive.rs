//! The driver: takes tables through phases, and measures.
//!
//! Machines are noisy, so figures are only compared within a run: the tables take turns, a ratio is taken within each
//! round, and its median and a distribution-free interval are reported. Each round has an order of its own, because
//! a table runs in the memory that the one before it has left.
//! Threads are pinned. What everybody else on the machine used meanwhile is measured, and a phase that was
//! disturbed is void and repeated. Every answer of a table is checked while the clock runs, and the whole
//! content afterwards.
//!
//! Latencies and counters come from passes of their own, since reading a clock or counting lines costs more
//! than some operations.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evermap_pm::medium::Pages;
use evermap_pm::sim::rng::Rng;

use crate::LabError;
use crate::compare::{Driven, PhaseReport, SubjectReport, summary};
use crate::latency::{Latency, clock_cost, sample};
use crate::limits::{Limits, Probe};
use crate::machine::{self, CpuUse, Resident};
use crate::output::{Output, Record};
use crate::subject::{Counts, Entry, MediumKind, Setup, Size, Subject, Work, subject};
use crate::workers::Workers;
use crate::workload::{
    Act, Blend, Part, Phase, Shape, Speller, Stream, Workload, Writer, version_of,
};

/// Most threads that an experiment may have.
const THREADS_MAX: usize = 256;
/// What most tables take for a key while they grow.
const WARM_BYTES: u64 = 64;
/// Foreign processor time is known in scheduler ticks, so a shorter phase is judged by its whole round.
const JUDGED_ALONE: f64 = 0.25;

/// What is done to each table, after its keys were inserted.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// These phases, in the order of [`Phase::ALL`]. `Insert` always runs, and is reported if it is among them.
    Phases(Vec<Phase>),
    /// A mix of operations. The insertion before it is not reported.
    Blend(Blend),
    /// These parts in this order, scans where there is an order, on a table that all threads have filled in batches; that is reported as [`LOAD`].
    Parts(Vec<Part>),
}

/// Name of the step before [`Plan::Parts`].
pub const LOAD: &str = "load";

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the experiment in records.
    pub experiment: &'static str,
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
    pub location: Option<PathBuf>,
    /// Page size to ask for. Files have the pages that their file system gives.
    pub pages: Pages,
    /// On the emulated medium, nanoseconds that a fence after a flush takes at least.
    pub persist_ns: u64,
    /// On the emulated medium, nanoseconds that a line from outside a small cache takes. 0: as it is.
    pub read_ns: u64,
    /// How often every table is measured. Fewer than five cannot give an interval of 90 %.
    pub rounds: usize,
    /// What is done to them.
    pub plan: Plan,
    /// Keys in one call of `get_many`.
    pub batch: usize,
    /// Nothing for keys and values of one word; otherwise how long they are.
    pub shape: Option<Shape>,
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

impl Default for Config {
    fn default() -> Self {
        Config {
            experiment: "micro",
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
            plan: Plan::Phases(Phase::ALL.to_vec()),
            batch: 32,
            shape: None,
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

impl Config {
    /// Finds what is impossible, and what a factory must know.
    pub(crate) fn check(&self, subjects: usize) -> Result<Setup, LabError> {
        let steps = match &self.plan {
            Plan::Phases(phases) => phases.len() as u64,
            Plan::Blend(blend) => blend.ops,
            Plan::Parts(parts) => parts.iter().map(|part| part.ops).min().unwrap_or(0),
        };
        let at_least_one = [
            ("index", subjects as u64),
            ("round", self.rounds as u64),
            ("phase", steps),
            ("thread", self.threads as u64),
            ("key in a batch", self.batch as u64),
        ];
        for (what, count) in at_least_one {
            if count == 0 {
                return Err(LabError::Config(format!("there must be at least one {what}")));
            }
        }
        if self.threads > THREADS_MAX {
            return Err(LabError::Config(format!("at most {THREADS_MAX} threads are supported")));
        }
        if let Plan::Blend(blend) = &self.plan
            && !(0.0..=10.0).contains(&blend.theta)
        {
            return Err(LabError::Config(format!(
                "a skew of {} is impossible: it lies between 0 (uniform) and 10",
                blend.theta
            )));
        }
        if let Plan::Parts(parts) = &self.plan {
            let most = Part::most_ops(self.keys);
            let threads = 1..=self.threads;
            if let Some(part) = parts.iter().find(|part| part.after + part.ops > most) {
                return Err(LabError::Config(format!(
                    "{} keys are too few for so many operations: at most {most} of a kind ({})",
                    self.keys, part.name
                )));
            }
            if !parts.iter().all(|part| threads.contains(&part.threads)) {
                return Err(LabError::Config("a part has more threads than there are".into()));
            }
        }
        let location = self.location.clone();
        let setup = Setup::new(self.medium, location, self.pages, self.keys, self.shape)?;
        let Config { presize, persist_ns, read_ns, .. } = *self;
        Ok(Setup { presize, persist_ns, read_ns, ..setup })
    }

    fn steps(&self) -> Vec<Step> {
        let of = |phase: Phase, reported| Step {
            name: phase.name(),
            phase,
            blend: None,
            part: None,
            reported,
            bulk: phase == Phase::Insert && !reported,
        };
        match &self.plan {
            Plan::Phases(phases) => Phase::ALL
                .into_iter()
                .map(|phase| of(phase, phases.contains(&phase)))
                .filter(|step| step.reported || step.phase == Phase::Insert)
                .collect(),
            Plan::Blend(blend) => {
                let mix =
                    Step { name: blend.mix.name, blend: Some(*blend), ..of(Phase::Mixed, true) };
                vec![of(Phase::Insert, false), mix]
            }
            Plan::Parts(parts) => {
                let load = Step { name: LOAD, bulk: true, ..of(Phase::Insert, true) };
                let parts = parts.iter().map(|&part| Step {
                    name: part.name,
                    part: Some(part),
                    ..of(part.phase(), true)
                });
                [load].into_iter().chain(parts).collect()
            }
        }
    }
}

/// A part of a plan.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    phase: Phase,
    /// Where the operations come from a mix.
    blend: Option<Blend>,
    /// Where they are on some of the keys.
    part: Option<Part>,
    /// Whether anybody wants to know.
    reported: bool,
    /// Whether a store may do them in batches.
    bulk: bool,
}

impl Step {
    fn ops(&self, keys: u64) -> u64 {
        let of_part = self.part.map(|part| part.ops);
        of_part.or(self.blend.map(|blend| blend.ops)).unwrap_or(keys)
    }

    /// The threads that share them are not always all.
    fn workload(&self, workload: Workload) -> Workload {
        self.part.map_or(workload, |part| part.workload(&workload))
    }

    /// Writes out what `thread` does.
    fn fill(&self, stream: &mut Stream, workload: &Workload, thread: usize) {
        match (&self.blend, &self.part) {
            (Some(blend), _) => stream.fill_mix(workload, blend, thread),
            (None, Some(part)) => stream.fill_part(workload, part, thread),
            (None, None) => stream.fill(workload, self.phase, thread),
        }
    }
}

/// Measures the tables that `config` names.
///
/// # Errors
/// `UnknownIndex`, `Config` for impossible settings, `WrongAnswer` or `WrongLength` where a table is not
/// right, `Unordered` where it should scan and cannot, `Index` where one fails, `Io` where `out` cannot be
/// written.
pub fn drive(config: &Config, out: &mut dyn Output) -> Result<Driven, LabError> {
    let entries = config.indexes.iter().map(|name| subject(name)).collect::<Result<Vec<_>, _>>()?;
    drive_on(&entries, config, out)
}

/// Measures `entries`, which need not be in the registry; the names in `config` are not used.
///
/// # Errors
/// As [`drive`].
pub fn drive_on(
    entries: &[Entry],
    config: &Config,
    out: &mut dyn Output,
) -> Result<Driven, LabError> {
    let setup = config.check(entries.len())?;
    let workers = Workers::start(config.threads)?;
    let workload = Workload { keys: config.keys, threads: config.threads, seed: config.seed };
    Driver { config, setup, steps: config.steps(), workers, workload }.measure(entries, out)
}

struct Driver<'a> {
    config: &'a Config,
    setup: Setup,
    steps: Vec<Step>,
    workers: Workers,
    workload: Workload,
}

impl Driver<'_> {
    fn measure(&self, entries: &[Entry], out: &mut dyn Output) -> Result<Driven, LabError> {
        let config = self.config;
        let passes = config.rounds + usize::from(config.latency) + usize::from(config.counts);
        out.begin((entries.len() * passes + usize::from(config.limits) * config.rounds) as u64);
        let probe = if config.limits { Some(Probe::new(config.keys, config.pages)?) } else { None };
        let mut limits = Vec::new();
        let mut tables: Vec<_> = entries.iter().map(|&entry| Rounds::new(entry)).collect();
        for round in 0..config.rounds {
            for at in turns(tables.len(), config.seed, round) {
                let table = &mut tables[at];
                self.announce(
                    &table.entry,
                    &format!("round {} of {}", round + 1, config.rounds),
                    out,
                );
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
        Ok(Driven { subjects, limits })
    }

    /// Says what comes next.
    fn announce(&self, entry: &Entry, what: &str, out: &mut dyn Output) {
        let mix = match &self.config.plan {
            Plan::Blend(blend) => format!("{}, ", blend.mix.name),
            Plan::Phases(_) => String::new(),
            Plan::Parts(_) => format!("{} keys, ", self.config.keys),
        };
        out.step(&format!("{}: {mix}{}, {what}", self.config.experiment, entry.name));
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
        machine::warm_up(WARM_BYTES * self.config.keys, self.config.pages);
        let mut run = Run::new(self, entry, false)?;
        let (mut records, mut uses) = (Vec::new(), Vec::new());
        let mut footprint = Footprint::default();
        run.steps(|run, step| {
            if !run.can(step) {
                records.push(self.record(run, step));
                uses.push(CpuUse { foreign: Some(0.0), ..CpuUse::default() });
                return Ok(());
            }
            let (subject, task) = (run.subject.clone(), run.task(step));
            let race =
                self.workers.race(move |thread, stream| subject.run(task.on(stream, thread)))?;
            // Some stores walk all keys to tell their size, so they are not asked after each of many small parts.
            if step.phase.resizes() && step.part.is_none() {
                footprint = Footprint::of(run)?;
            }
            if step.reported {
                let mut record = self.record(run, step);
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
            self.announce(&entry, "latencies", out);
            let (latencies, again) = self.undisturbed_latencies(&entry)?;
            repeated += again;
            latencies
        } else {
            Vec::new()
        };
        let counts = if self.config.counts {
            self.announce(&entry, "counters", out);
            self.counts(&entry)?
        } else {
            Vec::new()
        };
        let mut phases = Vec::new();
        for (at, step) in self.steps.iter().filter(|step| step.reported).enumerate() {
            let rounds: Vec<_> = rounds.iter().map(|round| round[at].clone()).collect();
            let mut summary = summary(&rounds);
            if let Some(latency) = latencies.get(at) {
                latency.write(&mut summary);
            }
            if let Some(counts) = counts.get(at) {
                summary.count(*counts);
            }
            out.record(&summary)?;
            phases.push(PhaseReport { name: step.name, summary, rounds });
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
        run.steps(|run, step| {
            let (subject, task, can) = (run.subject.clone(), run.task(step), run.can(step));
            let race = self.workers.race(move |thread, stream| {
                let work = task.on(stream, thread);
                if !can {
                    return Ok(None);
                }
                // A store that is filled in batches would be filled one by one.
                if work.bulk {
                    subject.run(work)?;
                    return Ok(None);
                }
                sample(&*subject, work, clock).map(Some)
            })?;
            if step.reported {
                latencies.push(Latency::of(race.results.into_iter().flatten().collect()));
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
        run.steps(|run, step| {
            let before = run.subject.counts().unwrap_or_default();
            let (subject, task) = (run.subject.clone(), run.task(step));
            if run.can(step) {
                self.workers.each(move |thread, stream| subject.run(task.on(stream, thread)))?;
            }
            if step.reported {
                counts.push(run.subject.counts().unwrap_or_default().since(before));
            }
            Ok(())
        })?;
        run.verify()?;
        Ok(counts)
    }

    fn record(&self, run: &Run<'_>, step: &Step) -> Record {
        let config = self.config;
        let emulated = config.medium == MediumKind::Emulated;
        Record {
            experiment: config.experiment,
            index: run.name.to_owned(),
            threads: step.workload(self.workload).threads,
            keys: config.keys,
            phase: step.name.to_owned(),
            ops: step.ops(config.keys),
            distribution: step.blend.map(|blend| blend.keys.name()),
            theta: step.blend.map(|blend| blend.theta),
            key_bytes: Some(config.shape.map_or("8".into(), |shape| shape.keys.to_string())),
            value_bytes: Some(config.shape.map_or("8".into(), |shape| shape.values.to_string())),
            persist_ns: emulated.then_some(config.persist_ns),
            read_ns: emulated.then_some(config.read_ns),
            seed: config.seed,
            ..Record::at(run.subject.place())
        }
    }
}

/// In which order so many tables run in a round.
fn turns(tables: usize, seed: u64, round: usize) -> Vec<usize> {
    let mut turns: Vec<_> = (0..tables).collect();
    // The first in the order that was asked for.
    if round > 0 {
        Rng::new(seed.wrapping_add(round as u64)).shuffle(&mut turns);
    }
    turns
}

/// The rounds of one table so far; in each, a record for every reported step.
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

/// One table on its way through the steps.
struct Run<'a> {
    driver: &'a Driver<'a>,
    name: &'static str,
    subject: Arc<dyn Subject>,
    speller: Option<Arc<Speller>>,
    /// What was resident before the table was built.
    before: Option<Resident>,
    /// Which words the keys are bound to.
    version: u64,
    mixed: bool,
    deleted: bool,
}

/// [`Work`] without the keys, which each thread has in its stream.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    name: &'static str,
    phase: Phase,
    blend: Option<Blend>,
    workload: Workload,
    version: u64,
    batch: usize,
    bulk: bool,
    /// See [`Writer::most`].
    most: u64,
}

impl Task {
    /// Plain look-ups or insertions, without a mix.
    pub(crate) fn of(phase: Phase, workload: Workload) -> Self {
        let name = phase.name();
        Task { name, phase, blend: None, workload, version: 0, batch: 1, bulk: false, most: 0 }
    }

    /// In batches that need not be durable one by one.
    pub(crate) fn in_bulk(self) -> Self {
        Task { bulk: true, ..self }
    }

    /// On keys of which some are one version further.
    pub(crate) fn beside_updates(self) -> Self {
        Task { most: 1, ..self }
    }

    /// On keys that are in this version.
    pub(crate) fn at(self, version: u64) -> Self {
        Task { version, ..self }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn on(self, stream: &Stream, thread: usize) -> Work<'_> {
        let Task { name, phase, version, batch, bulk, workload, most, .. } = self;
        let writer = match &self.blend {
            Some(blend) => blend.writer(&workload, thread),
            None => Writer { thread, threads: workload.threads, first: 0, most },
        };
        let (keys, ops, spelled) = (&stream.keys, &stream.ops, stream.spelled.all());
        Work { name, phase, keys, spelled, ops, version, batch, writer, bulk }
    }
}

impl<'a> Run<'a> {
    fn new(driver: &'a Driver<'a>, entry: &Entry, counted: bool) -> Result<Self, LabError> {
        let setup = Setup { counted, ..driver.setup.clone() };
        // The threads' streams must have their memory before the table's is measured.
        let (workload, first) = (driver.workload, driver.steps[0]);
        let spelled = setup.shape.map(Speller::new);
        driver.workers.each(move |thread, stream| {
            first.fill(stream, &workload, thread);
            spelled.iter().for_each(|speller| stream.spell(speller));
            Ok(())
        })?;
        let before = machine::resident();
        let subject: Arc<dyn Subject> = Arc::from((entry.build)(&setup)?);
        let speller = subject.speller().map(Arc::new);
        let name = entry.name;
        let (version, mixed, deleted) = (0, false, false);
        Ok(Run { driver, name, subject, speller, before, version, mixed, deleted })
    }

    /// Calls `each` with every step, its keys written out beforehand.
    fn steps(
        &mut self,
        mut each: impl FnMut(&Self, &Step) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        for step in &self.driver.steps {
            let filled = *step;
            self.each(move |stream, workload, thread| {
                filled.fill(stream, workload, thread);
            })?;
            each(self, step)?;
            match step.phase {
                // What each key is bound to is known without that.
                _ if step.part.is_some() => {}
                Phase::Update => self.version += 1,
                Phase::Mixed => self.mixed = true,
                Phase::Delete => self.deleted = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the table can do this at all: among tables with an order there may be some without.
    fn can(&self, step: &Step) -> bool {
        let scans = step.part.is_some_and(|part| matches!(part.act, Act::Scan(_)));
        !scans || self.subject.is_ordered()
    }

    fn task(&self, step: &Step) -> Task {
        Task {
            name: step.name,
            phase: step.phase,
            blend: step.blend,
            workload: step.workload(self.driver.workload),
            version: self.version,
            batch: self.driver.config.batch,
            bulk: step.bulk,
            // Scans meet keys that earlier parts have updated.
            most: u64::from(step.part.is_some()),
        }
    }

    /// Has every thread write out keys, also as byte strings where the table wants those.
    fn each<R: Send + 'static>(
        &self,
        fill: impl Fn(&mut Stream, &Workload, usize) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, LabError> {
        let (workload, speller) = (self.driver.workload, self.speller.clone());
        self.driver.workers.each(move |thread, stream| {
            let result = fill(stream, &workload, thread);
            speller.iter().for_each(|speller| stream.spell(speller));
            Ok(result)
        })
    }

    /// Compares the whole content with what the steps should have left.
    fn verify(&self) -> Result<(), LabError> {
        let added = match (
            self.driver.steps.iter().find_map(|step| step.blend),
            &self.driver.config.plan,
        ) {
            (Some(blend), _) => self.verify_blend(blend)?,
            (None, Plan::Parts(parts)) => self.verify_parts(parts)?,
            (None, _) => self.verify_phases()?,
        };
        let expected = added + if self.deleted { 0 } else { self.driver.workload.keys };
        match self.subject.size()?.len {
            Some(found) if found != expected => {
                Err(LabError::WrongLength { index: self.name, expected, found })
            }
            _ => Ok(()),
        }
    }

    /// After phases every key is bound to one word. Answers how many keys were added.
    fn verify_phases(&self) -> Result<u64, LabError> {
        let originals = if self.deleted { Phase::Negative } else { Phase::Positive };
        self.look_up(originals, |stream, workload, thread| {
            stream.fill(workload, Phase::Insert, thread);
        })?;
        if self.mixed {
            self.look_up(Phase::Positive, Stream::fill_added)?;
        }
        Ok(if self.mixed { self.driver.workload.added() } else { 0 })
    }

    /// After parts, what they wrote is there, and what they found absent still is. Answers how many keys were added.
    fn verify_parts(&self, parts: &[Part]) -> Result<u64, LabError> {
        let mut added = 0;
        for &part in parts {
            let (phase, version) = match part.act {
                Act::Update => (Phase::Positive, self.version + 1),
                Act::Negative => (Phase::Negative, self.version),
                Act::Insert | Act::Positive | Act::Scan(_) => (Phase::Positive, self.version),
            };
            added += if part.act == Act::Insert { part.ops } else { 0 };
            let looked_up = Part { threads: self.driver.workload.threads, ..part };
            self.look_up_at(version, phase, move |stream, workload, thread| {
                stream.fill_part(workload, &looked_up, thread);
            })?;
        }
        Ok(added)
    }

    fn look_up(
        &self,
        phase: Phase,
        fill: impl Fn(&mut Stream, &Workload, usize) + Send + Sync + 'static,
    ) -> Result<(), LabError> {
        self.look_up_at(self.version, phase, fill)
    }

    fn look_up_at(
        &self,
        version: u64,
        phase: Phase,
        fill: impl Fn(&mut Stream, &Workload, usize) + Send + Sync + 'static,
    ) -> Result<(), LabError> {
        self.each(fill)?;
        let subject = self.subject.clone();
        let task = Task::of(phase, self.driver.workload).at(version);
        self.driver.workers.each(move |thread, stream| subject.run(task.on(stream, thread)))?;
        Ok(())
    }

    /// After a mix a key may be bound to the last write of any thread, and to nothing else. Answers how many keys
    /// were added.
    fn verify_blend(&self, blend: Blend) -> Result<u64, LabError> {
        let writes = self.each(move |stream, workload, thread| {
            stream.fill_mix(workload, &blend, thread);
            stream.last_versions(blend.writer(workload, thread))
        })?;
        let mut writes = writes.concat();
        writes.sort_unstable();
        let (subject, name, workload) = (self.subject.clone(), self.name, self.driver.workload);
        let added = self.driver.workers.each(move |thread, stream| {
            let mut added = stream.inserted();
            let count = added.len() as u64;
            stream.fill(&workload, Phase::Insert, thread);
            added.extend_from_slice(&stream.keys);
            for key in added {
                let bound = subject.get(key)?;
                let beyond = bound.map(|bound| version_of(key, bound));
                let first = writes.partition_point(|write| write.0 < key);
                let mut last = writes[first..].iter().take_while(|write| write.0 == key).peekable();
                let untouched = last.peek().is_none();
                let is_right = beyond.is_some_and(|beyond| {
                    untouched && beyond == 0 || last.any(|write| write.1 == beyond)
                });
                if !is_right {
                    let found = bound.into();
                    return Err(LabError::WrongEnd {
                        index: name,
                        phase: blend.mix.name,
                        key,
                        found,
                    });
                }
            }
            Ok(count)
        })?;
        Ok(added.iter().sum())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Factory, subjects};
    use crate::testing::{Fault, Kept, faulty};
    use crate::workload::Distribution;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    /// Small, and without any judgement of the machine.
    fn config(threads: usize) -> Config {
        Config {
            keys: 10_000,
            threads,
            rounds: 2,
            foreign_limit: f64::INFINITY,
            patience: Duration::ZERO,
            limits: false,
            ..Config::default()
        }
    }

    fn run(fault: Fault, config: &Config) -> Result<(Driven, Kept), LabError> {
        let mut kept = Kept::default();
        let report = drive_on(&[faulty(fault)], config, &mut kept)?;
        Ok((report, kept))
    }

    /// All but other projects' stores, which have tests of their own: syncing takes its time.
    fn indexes() -> Vec<String> {
        let names = subjects().into_iter().map(|entry| entry.name);
        #[cfg(feature = "stores")]
        let names = names.filter(|name| crate::stores::ENTRIES.iter().all(|one| one.name != *name));
        names.map(str::to_owned).collect()
    }

    #[test]
    fn every_registered_table_passes_all_phases() {
        for threads in [1, 2, 3] {
            let indexes = indexes();
            // Enough for every table to grow several times.
            let config = Config { indexes, keys: 3000, rounds: 1, ..config(threads) };
            let report = drive(&config, &mut Kept::default()).unwrap();
            assert!(report.subjects.len() >= 8);
            for subject in report.subjects {
                for phase in subject.phases {
                    assert!(phase.summary.mops.unwrap() > 0.0, "{} {}", subject.name, phase.name);
                    assert!(phase.summary.cpu_ns_per_op.unwrap() > 0.0);
                }
            }
        }
    }

    #[test]
    fn presized_tables_pass_too() {
        let indexes = indexes();
        let config = Config { indexes, presize: true, keys: 3000, rounds: 1, ..config(2) };
        drive(&config, &mut Kept::default()).unwrap();
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
                        assert_eq!(phase, shows_in.name(), "{fault:?}");
                    }
                    other => panic!("{fault:?}: {:?}", other.map(|both| both.0)),
                }
            }
        }
    }

    /// Where no phase looks, the look at the whole content afterwards does.
    #[test]
    fn a_wrong_table_fails_the_run_whatever_the_phases() {
        let alone = |phase| Config { plan: Plan::Phases(vec![phase]), ..config(1) };
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
            assert_eq!(record.flushes_per_op, Some(1.0), "{}", phase.name);
            assert_eq!(record.fences_per_op, Some(2.0));
            assert_eq!(record.lines_read_per_op, Some(3.0));
            let written = match phase.name.parse().unwrap() {
                Phase::Insert => 1.0,
                Phase::Mixed => 0.2,
                _ => 0.0,
            };
            assert_eq!(record.lines_written_per_op, Some(written), "{}", phase.name);
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
    fn every_table_has_a_turn_and_every_round_an_order() {
        let orders: Vec<_> = (0..9).map(|round| turns(5, 1, round)).collect();
        assert_eq!(orders[0], [0, 1, 2, 3, 4]);
        for order in &orders {
            assert!((0..5).all(|at| order.contains(&at)), "{order:?}");
        }
        assert!(orders.windows(2).all(|two| two[0] != two[1]), "{orders:?}");
    }

    #[test]
    fn tables_take_turns() {
        let entries = [faulty(Fault::None), subject("reference").unwrap()];
        let config = Config { plan: Plan::Phases(vec![Phase::Insert, Phase::Delete]), ..config(1) };
        let mut kept = Kept::default();
        drive_on(&entries, &config, &mut kept).unwrap();
        let order: Vec<_> = kept
            .records
            .iter()
            .map(|record| (record.index.as_str(), record.phase.as_str(), record.round))
            .collect();
        let both = |index, round| [(index, "insert", round), (index, "delete", round)];
        let names = ["faulty", "reference"];
        let second = turns(2, config.seed, 1);
        let expected = [
            both(names[0], Some(0)),
            both(names[1], Some(0)),
            both(names[second[0]], Some(1)),
            both(names[second[1]], Some(1)),
            both(names[0], None),
            both(names[1], None),
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
        let config = Config {
            foreign_limit: -1.0,
            retries: 2,
            plan: Plan::Phases(vec![Phase::Insert, Phase::Positive]),
            ..config(1)
        };
        let report = drive_on(&[entry], &config, &mut Kept::default()).unwrap();
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
    fn short_phases_are_judged_together() {
        let used = |seconds, foreign| CpuUse { seconds, own: 0.0, foreign };
        let long = [used(1.0, Some(0.5)), used(0.1, Some(0.1)), used(0.9, Some(0.0))];
        // The second took ten ticks, which says little of itself: 0.6 s of 2 s together.
        assert_eq!(foreign_shares(&long), [Some(0.5), Some(0.3), Some(0.0)]);
        assert_eq!(foreign_shares(&[used(1.0, None), used(0.1, Some(0.0))]), [None, None]);
        assert_eq!(foreign_shares(&[]), []);
    }

    #[test]
    fn impossible_settings_are_explained() {
        let message = |config: Config| run(Fault::None, &config).map(drop).unwrap_err().to_string();
        let base = || config(1);
        assert!(message(Config { keys: 0, ..base() }).contains("at least one key"));
        let many = message(Config { keys: u64::MAX, ..base() });
        assert!(many.contains("MiB are free; take fewer keys"), "{many}");
        assert!(message(Config { threads: 0, ..base() }).contains("at least one thread"));
        assert!(message(Config { threads: 257, ..base() }).contains("at most 256 threads"));
        assert!(message(Config { rounds: 0, ..base() }).contains("at least one round"));
        assert!(message(Config { batch: 0, ..base() }).contains("at least one key in a batch"));
        assert!(
            message(Config { plan: Plan::Phases(vec![]), ..base() }).contains("at least one phase")
        );
        let parts = |keys, threads| {
            message(Config { keys, plan: Plan::Parts(parts(500)), ..config(threads) })
        };
        assert!(parts(1999, 2).contains("1999 keys are too few for so many operations"));
        assert!(parts(2000, 1).contains("more threads than there are"));
        let nowhere = Some("/no/such/place".into());
        let lost = Config { medium: MediumKind::Process, location: nowhere, ..base() };
        assert!(message(lost).contains("/no/such/place is no directory; medium `process`"));
        let none = drive(&base(), &mut Kept::default()).unwrap_err().to_string();
        assert!(none.contains("at least one index"), "{none}");
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        let config = Config { indexes: vec!["refernce".into()], ..config(1) };
        let error = drive(&config, &mut Kept::default()).unwrap_err().to_string();
        assert!(error.starts_with("unknown index `refernce`; known are: "), "{error}");
        for entry in subjects() {
            assert!(error.contains(entry.name), "{error}");
        }
        let medium = "drum".parse::<MediumKind>().unwrap_err().to_string();
        assert!(medium.contains("`drum`; known are: dram, process, forced, emulated"), "{medium}");
    }

    #[test]
    fn limits_are_measured_in_the_same_rounds() {
        let config = Config { limits: true, plan: Plan::Phases(vec![Phase::GetMany]), ..config(2) };
        let (report, kept) = run(Fault::None, &config).unwrap();
        let limits = report.limits.unwrap();
        assert!(limits.dependent_load_ns > 0.0 && limits.mlines(1).unwrap() > 0.0);
        let figures = &report.subjects[0].phases[0].summary;
        assert!(limits.share(figures).unwrap() > 0.0);
        assert!(kept.records.iter().any(|record| record.index == "machine"));
        assert_eq!(kept.steps, kept.stepped.len() as u64);
    }

    fn blend(name: &str, keys: Distribution, ops: u64) -> Plan {
        Plan::Blend(Blend { mix: name.parse().unwrap(), keys, theta: 0.99, ops })
    }

    #[test]
    fn every_table_passes_every_mix() {
        for mix in crate::workload::Mix::ALL {
            let indexes: Vec<_> = match mix.scans() {
                true => vec!["rwlock-btreemap".to_owned()],
                // A look-up there may miss a key that is being updated.
                false => indexes().into_iter().filter(|name| name != "scc-hashindex").collect(),
            };
            let plan = blend(mix.name, mix.keys, 6000);
            let config = Config { indexes, keys: 1000, rounds: 1, plan, ..config(3) };
            let driven = drive(&config, &mut Kept::default()).unwrap();
            for subject in driven.subjects {
                let summary = &subject.phases[0].summary;
                assert_eq!((subject.phases.len(), subject.phases[0].name), (1, mix.name));
                assert_eq!((summary.ops, summary.keys), (6000, 1000));
                assert_eq!(summary.distribution, Some(mix.keys.name()));
            }
        }
    }

    fn parts(ops: u64) -> Vec<Part> {
        let part = |name, act, threads| Part { name, act, ops, threads, after: 0 };
        let again = |name, act| Part { after: ops, ..part(name, act, 2) };
        vec![
            part("insert", Act::Insert, 1),
            part("get", Act::Positive, 1),
            part("miss", Act::Negative, 1),
            part("update", Act::Update, 1),
            again("insert", Act::Insert),
            again("update", Act::Update),
        ]
    }

    #[test]
    fn every_table_passes_all_parts() {
        let mut parts = parts(500);
        let scan = |threads| Part { name: "scan", act: Act::Scan(50), threads, ..parts[1] };
        parts.extend([scan(1), scan(2)]);
        let (indexes, plan) = (indexes(), Plan::Parts(parts.clone()));
        let config = Config { indexes, keys: 2000, rounds: 1, plan, ..config(2) };
        let mut ordered = Vec::new();
        for subject in drive(&config, &mut Kept::default()).unwrap().subjects {
            let (load, phases) = subject.phases.split_first().unwrap();
            assert_eq!((load.name, load.summary.ops, load.summary.threads), (LOAD, 2000, 2));
            let scanned = phases.last().unwrap().summary.mops.is_some();
            ordered.extend(scanned.then_some(subject.name));
            for (phase, part) in phases.iter().zip(&parts) {
                assert_eq!((phase.name, phase.summary.ops), (part.name, 500));
                assert_eq!(phase.summary.threads, part.threads);
                // What has no order is not asked to scan, and has no figures for that.
                let asked = scanned || part.name != "scan";
                assert_eq!(phase.summary.mops.is_some_and(|mops| mops > 0.0), asked);
                assert_eq!(phase.summary.p50_ns.is_some(), asked);
            }
        }
        assert!(ordered.contains(&"bplus") && !ordered.contains(&"dash-eh"), "{ordered:?}");
    }

    /// Whether it shows in a part, or when all parts are over.
    #[test]
    fn a_wrong_answer_fails_parts() {
        // A fault strikes one key in a thousand.
        let all = parts(5000);
        let of = |act| all.iter().copied().filter(|part| part.act == act).collect::<Vec<_>>();
        let faults = [
            (Fault::LosesInsert, all.clone()),
            (Fault::LosesInsert, of(Act::Insert)),
            (Fault::LosesUpdate, of(Act::Update)),
            (Fault::InventsKey, of(Act::Negative)),
            (Fault::WrongWord, of(Act::Positive)),
            (Fault::Miscounts, of(Act::Positive)),
        ];
        for (fault, parts) in faults {
            let config = Config { keys: 20_000, plan: Plan::Parts(parts), ..config(2) };
            let error = run(fault, &config).map(drop).unwrap_err();
            let expected =
                matches!(error, LabError::WrongAnswer { .. } | LabError::WrongLength { .. });
            assert!(expected, "{fault:?}: {error}");
        }
    }

    #[test]
    fn what_has_no_order_cannot_scan() {
        let plan = blend("e", Distribution::Zipfian, 100);
        let error = run(Fault::None, &Config { plan, ..config(1) });
        assert!(matches!(error, Err(LabError::Unordered { index: "faulty" })));
    }

    /// A lost update shows at the next read of the same thread, or at the end; whatever the keys' popularity.
    #[test]
    fn a_wrong_answer_fails_a_mix() {
        let faults = [
            (Fault::LosesInsert, "c"),
            (Fault::WrongWord, "c"),
            (Fault::LosesUpdate, "a"),
            (Fault::LosesUpdate, "f"),
            (Fault::LosesInsert, "d"),
            (Fault::Miscounts, "c"),
        ];
        for (fault, mix) in faults {
            for distribution in [Distribution::Uniform, Distribution::Scrambled] {
                for threads in [1, 3] {
                    let plan = blend(mix, distribution, 40_000);
                    let config = Config { plan, ..config(threads) };
                    let error = run(fault, &config).map(drop).unwrap_err();
                    let expected = matches!(
                        error,
                        LabError::WrongAnswer { .. }
                            | LabError::WrongEnd { .. }
                            | LabError::WrongLength { .. }
                    );
                    assert!(expected, "{fault:?} {mix} {distribution}: {error}");
                }
            }
        }
    }
}
