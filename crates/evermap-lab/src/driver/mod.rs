//! The driver: runs the phases of an experiment on tables, and measures them.
//!
//! Machines are noisy, so figures are only compared within a run: the tables take turns, a ratio is
//! taken within each round, and its median and a distribution-free interval are reported. Each
//! round has a different order, because a table runs in the memory that the one before it has
//! freed. Threads are pinned. The processor time that other programs use is measured, and a phase
//! that was disturbed is void and repeated. Every answer of a table is checked while the clock
//! runs, and the whole content afterwards.
//!
//! Latencies and counters come from separate passes, because reading a clock or counting lines
//! costs more than some operations.

use evermap_pm::sim::rng::Rng;

use crate::LabError;
use crate::machine::{self, CpuUse};
use crate::report::output::Output;
use crate::report::record::Record;
use crate::subject::facts::MediumKind;
use crate::subject::view::Entry;
use crate::workload::Workload;

pub mod config;
mod context;
pub(crate) mod latency;
pub mod limits;
mod quiet;
pub mod results;
mod run;
mod step;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod verify;
pub(crate) mod workers;

pub use config::{Config, GET_AGAIN, GET_IN_ANOTHER, GET_IN_ORDER, HALF_PUTS, LOAD, Plan};
pub use quiet::Quiet;
pub use results::DriveReport;

use context::Driver;
use latency::{Latency, clock_cost, sample};
use limits::{Limits, Probe};
use results::{PhaseReport, SubjectReport, summary};
use run::{Footprint, Run};
use step::Step;
use workers::Workers;

/// Bytes that most tables take for a key while they grow.
const WARM_BYTES: u64 = 64;
/// Phases shorter than this many seconds are judged by their whole round, because the processor
/// time of other programs is only known in scheduler ticks.
const JUDGED_ALONE: f64 = 0.25;

/// Measures `entries`, which need not be registered. The names in `config` are not used.
///
/// # Errors
///
/// `Config` for impossible settings, `WrongAnswer`, `WrongEnd` or `WrongLength` if a table is
/// wrong, `Unordered` if it should scan and cannot, `Index` if one fails, `Io` if `out` cannot be
/// written.
pub fn drive(
    entries: &[Entry],
    config: &Config,
    out: &mut dyn Output,
) -> Result<DriveReport, LabError> {
    let setup = config.check(entries.len())?;
    let workers = Workers::start(config.threads)?;
    let workload = Workload { keys: config.keys, threads: config.threads, seed: config.seed };
    Driver { config, setup, steps: config.steps(), workers, workload }.measure(entries, out)
}

impl Driver<'_> {
    fn measure(&self, entries: &[Entry], out: &mut dyn Output) -> Result<DriveReport, LabError> {
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
                self.round(table, round, out)?;
                for record in &table.rounds[round] {
                    out.record(record)?;
                }
            }
            if let Some(probe) = &probe {
                out.step(&format!("the machine, round {} of {}", round + 1, config.rounds));
                limits.push(probe.measure(&self.workers, config.quiet)?);
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
        Ok(DriveReport { subjects, limits })
    }

    /// Announces what comes next.
    fn announce(&self, entry: &Entry, what: &str, out: &mut dyn Output) {
        let mix = match &self.config.plan {
            Plan::Blend(blend) => format!("{}, ", blend.mix.name),
            Plan::Phases(_) | Plan::Orders(_) => String::new(),
            Plan::Parts(_) => format!("{} keys, ", self.config.keys),
        };
        out.step(&format!("{}: {mix}{}, {what}", self.config.experiment, entry.name));
    }

    /// Measures one table once, repeats that if it was disturbed, and keeps the best of each phase.
    fn round(
        &self,
        table: &mut Rounds,
        round: usize,
        out: &mut dyn Output,
    ) -> Result<(), LabError> {
        let once = |out: &mut dyn Output| self.throughput(&table.entry, out);
        let (mut best, repeated) = self.config.quiet.best_of_each(out, once)?;
        table.repeated += repeated;
        best.iter_mut().for_each(|record| record.round = Some(round));
        table.rounds.push(best);
        Ok(())
    }

    /// Runs all phases once at full speed.
    fn throughput(&self, entry: &Entry, out: &mut dyn Output) -> Result<Vec<Record>, LabError> {
        machine::trim();
        self.config.quiet.wait(out);
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
            // Some stores walk all keys to compute their size, so they are not asked after each of
            // many small parts.
            if step.resizes() {
                footprint = Footprint::of(run)?;
            }
            if step.reported {
                let mut record = self.record(run, step);
                record.time(race.seconds, race.used.own);
                record.serving(race.serving);
                footprint.write(&mut record);
                records.push(record);
                uses.push(race.used);
            }
            Ok(())
        })?;
        run.verify()?;
        for (record, share) in records.iter_mut().zip(foreign_shares(&uses)) {
            record.foreign_cpu = share;
            record.void = self.config.quiet.is_exceeded(share);
        }
        Ok(records)
    }

    /// Runs the passes that are run once, and summarises the rounds.
    fn conclude(&self, table: Rounds, out: &mut dyn Output) -> Result<SubjectReport, LabError> {
        let Rounds { entry, mut repeated, rounds } = table;
        let latencies = if self.config.latency {
            self.announce(&entry, "latencies", out);
            let (latencies, again) = self.undisturbed_latencies(&entry, out)?;
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
            let counted = counts.get(at);
            let mut summary = match (rounds.is_empty(), counted) {
                (true, Some(counted)) => counted.clone(),
                _ => summary(&rounds),
            };
            if let Some(latency) = latencies.get(at) {
                latency.write(&mut summary);
            }
            if let Some(counted) = counted {
                summary.copy_counts(counted);
            }
            out.record(&summary)?;
            phases.push(PhaseReport { name: step.name, summary, rounds });
        }
        Ok(SubjectReport { name: entry.name, rival: entry.rival, repeated, phases })
    }

    /// Repeats the latency pass while other programs use the machine, as often as a round. Returns
    /// the number of repetitions too.
    fn undisturbed_latencies(
        &self,
        entry: &Entry,
        out: &mut dyn Output,
    ) -> Result<(Vec<Latency>, usize), LabError> {
        let is_void = |latencies: &Vec<Latency>| latencies.iter().any(|latency| latency.void);
        self.config.quiet.measure(out, |out| self.latencies(entry, out), is_void)
    }

    /// Runs all phases once and times single operations.
    fn latencies(&self, entry: &Entry, out: &mut dyn Output) -> Result<Vec<Latency>, LabError> {
        let clock = clock_cost();
        self.config.quiet.wait(out);
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
            latency.void = self.config.quiet.is_exceeded(share);
        }
        Ok(latencies)
    }

    /// Runs all phases once on a counting medium. Returns an empty list if the table has none.
    fn counts(&self, entry: &Entry) -> Result<Vec<Record>, LabError> {
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
                let mut record = self.record(run, step);
                record.count(run.subject.counts().unwrap_or_default().since(before));
                counts.push(record);
            }
            Ok(())
        })?;
        run.verify()?;
        Ok(counts)
    }

    fn record(&self, run: &Run<'_>, step: &Step) -> Record {
        let config = self.config;
        let speed = Some(config.speed).filter(|_| config.medium == MediumKind::Emulated);
        Record {
            experiment: config.experiment,
            index: run.name.to_owned(),
            threads: step.workload(self.workload).threads,
            keys: config.keys,
            phase: step.name.to_owned(),
            ops: step.ops(config.keys),
            distribution: step.blend.map(|blend| blend.keys.name()),
            theta: step.blend.map(|blend| blend.theta),
            key_bytes: Some(config.lengths.map_or("8".into(), |lengths| lengths.keys.to_string())),
            value_bytes: Some(
                config.lengths.map_or("8".into(), |lengths| lengths.values.to_string()),
            ),
            persist_ns: speed.map(|speed| speed.persist_ns),
            read_ns: speed.map(|speed| speed.read_ns),
            near_read_ns: speed.map(|speed| speed.near_read_ns),
            read_mb_s: speed.map(|speed| speed.read_mb_s),
            write_mb_s: speed.map(|speed| speed.write_mb_s),
            seed: config.seed,
            ..Record::at(run.subject.place())
        }
    }
}

/// Returns the order in which the tables run in a round.
pub(crate) fn turns(tables: usize, seed: u64, round: usize) -> Vec<usize> {
    let mut turns: Vec<_> = (0..tables).collect();
    // The first round has the requested order.
    if round > 0 {
        Rng::new(seed.wrapping_add(round as u64)).shuffle(&mut turns);
    }
    turns
}

/// The rounds of one table so far. Each has a record for every reported step.
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

/// Returns the number of processors that other programs kept busy in each phase. Short phases get
/// the share of all phases together.
pub(crate) fn foreign_shares(phases: &[CpuUse]) -> Vec<Option<f64>> {
    let mut total = CpuUse { foreign: Some(0.0), ..CpuUse::default() };
    phases.iter().for_each(|used| total += *used);
    let judged = phases.iter().map(|used| if used.seconds < JUDGED_ALONE { &total } else { used });
    judged.map(CpuUse::foreign_share).collect()
}
