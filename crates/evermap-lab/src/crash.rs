//! Crash campaigns on everything that persists, by name.
//!
//! Each structure is crashed by all campaigns of its battery: one thread and several, power loss in persistent memory,
//! death of the process, power loss above the page cache. Then mistakes are made in it, one at a time, which a
//! campaign must notice.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use evermap_index::hash::cceh::{Locking, Recovery};
use evermap_index::hash::dash;
use evermap_index::hash::level::Resize;
use evermap_index::testkit::crash::{battery, costs, oracle};
use evermap_index::testkit::tiny;
use evermap_pm::parallel;
use evermap_pm::sim::battery::Battery;
use evermap_pm::sim::keep_panics_quiet;
use evermap_pm::sim::mutants::Fate;
use evermap_pm::sim::{Mutation, Report, Violation};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::LabError;

/// A structure that can be crashed.
pub struct Crashable {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    battery: fn() -> Battery,
    costs: fn(u64) -> Battery,
}

/// Everything that can be crashed, each with its heap and its region.
pub const CRASHABLE: [Crashable; 6] = [
    Crashable {
        name: "dash-eh",
        about: "Dash-EH with segments of 4 buckets",
        battery: || battery("dash-eh", dash::EH_MUTANTS, tiny::DashEh),
        costs: |images| costs("dash-eh", tiny::DashEh, images),
    },
    Crashable {
        name: "dash-lh",
        about: "Dash-LH with segments of 4 buckets",
        battery: || battery("dash-lh", dash::LH_MUTANTS, tiny::DashLh),
        costs: |images| costs("dash-lh", tiny::DashLh, images),
    },
    Crashable {
        name: "cceh",
        about: "CCEH with tiny segments, optimistic locks, lazy recovery",
        battery: || battery("cceh", &[], tiny::Cceh(Locking::Optimistic, Recovery::Lazy)),
        costs: |images| costs("cceh", tiny::Cceh(Locking::Optimistic, Recovery::Lazy), images),
    },
    Crashable {
        name: "level",
        about: "Level hashing with levels of four and two buckets, incremental resizing",
        battery: || battery("level", &[], tiny::Level(Resize::Incremental)),
        costs: |images| costs("level", tiny::Level(Resize::Incremental), images),
    },
    Crashable {
        name: "p-clht",
        about: "P-CLHT with four buckets",
        battery: || battery("p-clht", &[], tiny::PClht),
        costs: |images| costs("p-clht", tiny::PClht, images),
    },
    Crashable {
        name: "line",
        about: "the line hash, beginning with one segment",
        battery: || battery("line", &[], tiny::Line),
        costs: |images| costs("line", tiny::Line, images),
    },
];

/// What to crash, and how much.
#[derive(Clone, Debug)]
pub struct CrashConfig {
    /// Names of structures; all if there is none.
    pub indexes: Vec<String>,
    /// Seeds of each campaign; campaigns of parallel threads take 25 or more for one.
    pub seeds: u64,
    /// Seeds to leave out before these: for campaigns that run in pieces.
    pub skip: u64,
    /// Whether to make mistakes.
    pub mutants: bool,
    /// Whether to measure what it costs to ask more of a recovered structure.
    pub rates: bool,
    /// Threads that share the work.
    pub threads: usize,
}

/// Who wants to know how far it is.
pub trait Watch: Sync {
    /// So many more steps are to be done.
    fn more(&self, _steps: u64) {}

    /// A step is done; this is what is next, or came of it.
    fn done(&self, _what: &str) {}
}

/// A violation, in short.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// By which rule.
    pub oracle: &'static str,
    /// What was wrong.
    pub message: String,
    /// The whole story.
    pub story: String,
    /// What `cargo test` replays, if it is put into a folder of replays.
    pub replay: String,
}

impl From<&Violation> for Found {
    fn from(violation: &Violation) -> Self {
        Found {
            oracle: violation.oracle,
            message: violation.message.clone(),
            story: violation.story.clone(),
            replay: violation.replay.to_string(),
        }
    }
}

/// A mistake that no campaign noticed.
#[derive(Clone, Debug, Serialize)]
pub struct Survivor {
    /// The mistake.
    pub mutant: String,
    /// Why it makes no difference, if that is known.
    pub explanation: Option<String>,
}

/// How many images are verified in a second of a processor.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// What was asked of a recovered structure, besides what is asked in the rows above.
    pub asked: String,
    /// Images, in pools of 64 KiB.
    pub images: u64,
    /// Seconds of one processor.
    pub seconds: f64,
}

/// What came of crashing one structure.
#[derive(Clone, Debug, Serialize)]
pub struct CrashReport {
    /// Always `crash`.
    pub experiment: &'static str,
    /// Name of the structure.
    pub index: &'static str,
    /// Workloads.
    pub seeds: u64,
    /// Operations in them.
    pub operations: u64,
    /// Points at which they were crashed.
    pub crash_points: u64,
    /// How many of these were enumerated exhaustively, 0 to 1.
    pub exhaustive: f64,
    /// Images recovered and verified, nested ones included.
    pub images: u64,
    /// Images of crashes of recoveries.
    pub nested_images: u64,
    /// Pairs of stores of which the later one was there and the earlier one lost.
    pub pairs_tried: u64,
    /// All pairs of stores for which that is possible.
    pub pairs: u64,
    /// Structure changes in the workloads, by name.
    pub work: BTreeMap<&'static str, u64>,
    /// What recovery did, by name: after the first crash, and after a nested one.
    pub recovery: BTreeMap<&'static str, [u64; 2]>,
    /// Orders in which threads ran.
    pub schedules: u64,
    /// The rules by which images were judged.
    pub oracles: Vec<&'static str>,
    /// Images after which something was wrong.
    pub violations: u64,
    /// What was wrong, each kind once.
    pub found: Vec<Found>,
    /// Mistakes that were made.
    pub mutants: u64,
    /// Mistakes that were noticed.
    pub killed: u64,
    /// How many were noticed by each rule.
    pub killed_by: BTreeMap<&'static str, u64>,
    /// Mistakes that leave no recording with another crash.
    pub unchanged: Vec<String>,
    /// Mistakes that were not noticed.
    pub survivors: Vec<Survivor>,
    /// Seconds for the campaigns, over all threads together.
    pub seconds: f64,
    /// Seconds for the mistakes, over all threads together.
    pub mutant_seconds: f64,
    /// What it costs to ask more, where that was measured.
    pub rates: Vec<Rate>,
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.index)?;
        let mut row = |name: &str, value: String| writeln!(f, "  {name:<22}{value}");
        row("workloads", format!("{}, {} operations", self.seeds, self.operations))?;
        let exhaustive = 100.0 * self.exhaustive;
        row("crash points", format!("{}, {exhaustive:.1} % exhausted", self.crash_points))?;
        row("images", format!("{}, {} of them nested", self.images, self.nested_images))?;
        row("pairs reversed", format!("{} of {}", self.pairs_tried, self.pairs))?;
        row("orders of threads", self.schedules.to_string())?;
        for (name, [first, nested]) in &self.recovery {
            row("recovery", format!("{name}: {first}, nested {nested}"))?;
        }
        row("judged by", self.oracles.join(", "))?;
        row("images a second", format!("{:.0} a thread", self.images as f64 / self.seconds))?;
        for Rate { asked, images, seconds } in &self.rates {
            let rate = *images as f64 / seconds;
            row("images a second", format!("{rate:.0} of a processor: {asked} ({images})"))?;
        }
        row("violations", self.violations.to_string())?;
        for found in &self.found {
            row("", format!("{} [{}]", found.message, found.oracle))?;
        }
        if self.mutants > 0 {
            let changing = self.mutants - self.unchanged.len() as u64;
            row("mistakes", format!("{} of {changing} noticed", self.killed))?;
            for (oracle, times) in &self.killed_by {
                row("", format!("{times} by {oracle}"))?;
            }
            for mutant in &self.unchanged {
                row("  change nothing", mutant.clone())?;
            }
            for Survivor { mutant, explanation } in &self.survivors {
                let why = explanation.as_deref().unwrap_or("unexplained");
                row("  not noticed", format!("{mutant}: {why}"))?;
            }
        }
        writeln!(f)
    }
}

/// Crashes what `config` says.
///
/// # Errors
/// `UnknownIndex`, `Config`.
pub fn run_crash(config: &CrashConfig, watch: &dyn Watch) -> Result<Vec<CrashReport>, LabError> {
    if config.seeds == 0 || config.threads == 0 {
        return Err(LabError::Config("at least one seed and one thread".into()));
    }
    let chosen: Vec<&Crashable> = if config.indexes.is_empty() {
        CRASHABLE.iter().collect()
    } else {
        config.indexes.iter().map(|name| find(name)).collect::<Result<_, _>>()?
    };
    keep_panics_quiet();
    Ok(chosen.into_iter().map(|crashable| crash(crashable, config, watch)).collect())
}

fn find(name: &str) -> Result<&'static Crashable, LabError> {
    let known = || CRASHABLE.iter().map(|crashable| crashable.name).collect();
    CRASHABLE
        .iter()
        .find(|crashable| crashable.name == name)
        .ok_or_else(|| LabError::UnknownIndex { name: name.to_owned(), known: known() })
}

fn crash(crashable: &Crashable, config: &CrashConfig, watch: &dyn Watch) -> CrashReport {
    let battery = &(crashable.battery)();
    let trials = &battery.trials;
    watch.more(trials.len() as u64);
    let reports = parallel(config.threads, trials.len(), |at| {
        let trial = &*trials[at];
        let start = Instant::now();
        let each = trial.seeds_for_one();
        let seeds = config.skip * each..(config.skip + config.seeds) * each;
        let report = battery.run(trial, seeds);
        watch.done(&format!("{}: {} images", battery.name_of(trial), report.images));
        (report, start.elapsed().as_secs_f64())
    });
    let seconds = reports.iter().map(|(_, seconds)| seconds).sum();
    let mut all = Report::default();
    reports.into_iter().for_each(|(report, _)| all.merge(report));
    let mut report = summary(crashable.name, &all, seconds);
    if config.mutants && all.is_clean() {
        make_mistakes(battery, config, watch, &all, &mut report);
    }
    if config.rates {
        measure_rates(&(crashable.costs)(RATED_IMAGES), watch, &mut report);
    }
    report
}

/// Images of each seed that rates are measured with.
const RATED_IMAGES: u64 = 20_000;

/// One campaign after the other, by the time that this thread was given.
fn measure_rates(costs: &Battery, watch: &dyn Watch, report: &mut CrashReport) {
    watch.more(costs.trials.len() as u64);
    for trial in &costs.trials {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        let found = costs.run(&**trial, 0..2);
        let end = clock_gettime(ClockId::ThreadCPUTime);
        let seconds =
            (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 / 1e9;
        watch.done(&format!("{}: {} images", costs.name_of(&**trial), found.images));
        report.violations += found.failed_images;
        report.found.extend(found.violations.iter().map(Found::from));
        report.rates.push(Rate { asked: trial.name().to_owned(), images: found.images, seconds });
    }
}

fn summary(index: &'static str, all: &Report, seconds: f64) -> CrashReport {
    let (pairs_tried, pairs) = all.pairs();
    CrashReport {
        experiment: "crash",
        index,
        seeds: all.seeds,
        operations: all.ops,
        crash_points: all.points,
        exhaustive: all.exhaustive_points as f64 / all.points.max(1) as f64,
        images: all.images,
        nested_images: all.nested_images,
        pairs_tried,
        pairs,
        work: all.work.clone(),
        recovery: all.actions.clone(),
        schedules: all.schedules.iter().filter(|&&order| order != 0).count() as u64,
        oracles: oracle::ALL.to_vec(),
        violations: all.failed_images,
        found: all.violations.iter().map(Found::from).collect(),
        mutants: 0,
        killed: 0,
        killed_by: BTreeMap::new(),
        unchanged: Vec::new(),
        survivors: Vec::new(),
        seconds,
        mutant_seconds: 0.0,
        rates: Vec::new(),
    }
}

/// What notices a mistake that campaigns do not.
fn elsewhere(mistake: &str) -> Option<&'static str> {
    let known = dash::NOTICED_ELSEWHERE.iter().find(|(name, _)| *name == mistake);
    known.map(|(_, test)| *test)
}

fn make_mistakes(
    battery: &Battery,
    config: &CrashConfig,
    watch: &dyn Watch,
    all: &Report,
    report: &mut CrashReport,
) {
    // The campaigns were clean; with fewer seeds they are too.
    let Ok(mutants) = battery.mutants(config.seeds.min(2)) else { return };
    let planted = battery.planted.iter().map(|&name| Mutation::Planted(name));
    let mutations: Vec<Mutation> = mutants.mutations().into_iter().chain(planted).collect();
    watch.more(mutations.len() as u64);
    let fates = parallel(config.threads, mutations.len(), |at| {
        let start = Instant::now();
        let (fate, trial) = match mutations[at] {
            Mutation::Planted(name) => battery.fate_of_planted(name, config.seeds),
            mutation => mutants.fate(mutation),
        };
        let by = trial.map_or(String::new(), |trial| format!(" ({trial})"));
        watch.done(&format!("{}: {fate}{by}", mutations[at]));
        (fate, start.elapsed().as_secs_f64())
    });
    report.mutants = mutations.len() as u64;
    for (mutation, (fate, seconds)) in mutations.into_iter().zip(fates) {
        report.mutant_seconds += seconds;
        match fate {
            Fate::Killed(kill) => {
                report.killed += 1;
                *report.killed_by.entry(kill.oracle).or_default() += 1;
            }
            Fate::NoChange => report.unchanged.push(mutation.to_string()),
            Fate::Survived(_) => {
                let explanation = match mutation {
                    Mutation::Planted(name) => elsewhere(name),
                    _ => mutation.site().and_then(|site| all.harmless.get(&site)).copied(),
                };
                let explanation = explanation.map(ToString::to_string);
                report.survivors.push(Survivor { mutant: mutation.to_string(), explanation });
            }
        }
    }
}
