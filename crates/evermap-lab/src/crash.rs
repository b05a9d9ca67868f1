//! Crash campaigns on everything persistent, by name.
//!
//! Each structure is crashed by all campaigns of its battery: one thread and several, power loss in
//! persistent memory, death of the process, power loss above the page cache. Then mutants of it are
//! made, one at a time, which a campaign must detect.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use evermap_index::hash::dash;
use evermap_index::testkit::crash::oracle;
use evermap_papers::names::canonical;
pub use evermap_papers::testkit::{CRASHABLE, Crashable};
use evermap_papers::{bwtree, dash_lh, hikv, hot};
use evermap_pm::parallel;
use evermap_pm::sim::battery::Battery;
use evermap_pm::sim::keep_panics_quiet;
use evermap_pm::sim::mutants::Fate;
use evermap_pm::sim::{Mutation, Report, Violation};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::LabError;

/// What to crash, and how much.
#[derive(Clone, Debug)]
pub struct CrashConfig {
    /// The names of structures; all if there are none.
    pub indexes: Vec<String>,
    /// The number of seeds of each campaign; campaigns of parallel threads take 25 or more for one.
    pub seeds: u64,
    /// The number of seeds to skip before these, for campaigns that run in pieces.
    pub skip: u64,
    /// Whether to test mutants.
    pub mutants: bool,
    /// Whether to measure the cost of each kind of check of a recovered structure.
    pub rates: bool,
    /// The number of threads that share the work.
    pub threads: usize,
}

/// Receives the progress of campaigns.
pub trait Progress: Sync {
    /// Adds this number of steps.
    fn more(&self, _steps: u64) {}

    /// Ends a step; `what` describes the next one, or the result.
    fn done(&self, _what: &str) {}
}

/// A violation, in short.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rule that was violated.
    pub oracle: &'static str,
    /// What is wrong.
    pub message: String,
    /// All details.
    pub story: String,
    /// What `cargo test` replays, if it is put into a folder of replays.
    pub replay: String,
}

impl From<&Violation> for Finding {
    fn from(violation: &Violation) -> Self {
        Finding {
            oracle: violation.oracle,
            message: violation.message.clone(),
            story: violation.story.clone(),
            replay: violation.replay.to_string(),
        }
    }
}

/// A mutant that no campaign detected.
#[derive(Clone, Debug, Serialize)]
pub struct Survivor {
    /// The mutant.
    pub mutant: String,
    /// Why it makes no difference, if that is known.
    pub explanation: Option<String>,
}

/// The number of images that are verified per second of a processor.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// What is checked of a recovered structure, besides what the rows above check.
    pub asked: String,
    /// The number of images, in pools of 64 KiB.
    pub images: u64,
    /// Seconds of one processor.
    pub seconds: f64,
}

/// The results of crashing one structure.
#[derive(Clone, Debug, Serialize)]
pub struct CrashReport {
    /// Always `crash`.
    pub experiment: &'static str,
    /// The name of the structure.
    pub index: &'static str,
    /// The number of workloads.
    pub seeds: u64,
    /// The number of operations in them.
    pub operations: u64,
    /// The number of points at which they were crashed.
    pub crash_points: u64,
    /// The share of these points that were enumerated exhaustively, 0 to 1.
    pub exhaustive: f64,
    /// The number of images that were recovered and verified, including nested ones.
    pub images: u64,
    /// The number of images of crashes of recoveries.
    pub nested_images: u64,
    /// The number of pairs of stores of which the later one was kept and the earlier one lost.
    pub pairs_tried: u64,
    /// The number of pairs of stores for which that is possible.
    pub pairs: u64,
    /// Structure changes in the workloads, by name.
    pub work: BTreeMap<&'static str, u64>,
    /// Actions of recovery, by name: after the first crash, and after a nested one.
    pub recovery: BTreeMap<&'static str, [u64; 2]>,
    /// The number of orders in which threads ran.
    pub schedules: u64,
    /// The rules that images were checked by.
    pub oracles: Vec<&'static str>,
    /// The number of images with a violation.
    pub violations: u64,
    /// The violations, one of each kind.
    pub found: Vec<Finding>,
    /// The number of mutants.
    pub mutants: u64,
    /// The number of detected mutants.
    pub killed: u64,
    /// The number of mutants detected by each rule.
    pub killed_by: BTreeMap<&'static str, u64>,
    /// Mutants that change no recording with another crash.
    pub unchanged: Vec<String>,
    /// Mutants that were not detected.
    pub survivors: Vec<Survivor>,
    /// Seconds for the campaigns, over all threads together.
    pub seconds: f64,
    /// Seconds for the mutants, over all threads together.
    pub mutant_seconds: f64,
    /// The cost of each kind of check, if it was measured.
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
            row("mutants", format!("{} of {changing} detected", self.killed))?;
            for (oracle, times) in &self.killed_by {
                row("", format!("{times} by {oracle}"))?;
            }
            for mutant in &self.unchanged {
                row("  change nothing", mutant.clone())?;
            }
            for Survivor { mutant, explanation } in &self.survivors {
                let why = explanation.as_deref().unwrap_or("unexplained");
                row("  not detected", format!("{mutant}: {why}"))?;
            }
        }
        writeln!(f)
    }
}

/// Crashes the structures that `config` names.
///
/// # Errors
///
/// `UnknownIndex`, `Config`.
pub fn run_crash(
    config: &CrashConfig,
    progress: &dyn Progress,
) -> Result<Vec<CrashReport>, LabError> {
    if config.seeds == 0 || config.threads == 0 {
        return Err(LabError::Config("there must be at least one seed and one thread".into()));
    }
    let chosen: Vec<&Crashable> = if config.indexes.is_empty() {
        CRASHABLE.iter().collect()
    } else {
        config.indexes.iter().map(|name| find(name)).collect::<Result<_, _>>()?
    };
    keep_panics_quiet();
    Ok(chosen.into_iter().map(|crashable| crash(crashable, config, progress)).collect())
}

fn find(name: &str) -> Result<&'static Crashable, LabError> {
    let known = || CRASHABLE.iter().map(|crashable| crashable.name).collect();
    CRASHABLE
        .iter()
        .find(|crashable| crashable.name == canonical(name))
        .ok_or_else(|| LabError::UnknownIndex { name: name.to_owned(), known: known() })
}

fn crash(crashable: &Crashable, config: &CrashConfig, progress: &dyn Progress) -> CrashReport {
    let battery = &(crashable.battery)();
    let trials = &battery.trials;
    progress.more(trials.len() as u64);
    let reports = parallel(config.threads, trials.len(), |at| {
        let trial = &*trials[at];
        let start = Instant::now();
        let each = trial.seeds_for_one();
        let seeds = config.skip * each..(config.skip + config.seeds) * each;
        let report = battery.run(trial, seeds);
        progress.done(&format!("{}: {} images", battery.name_of(trial), report.images));
        (report, start.elapsed().as_secs_f64())
    });
    let seconds = reports.iter().map(|(_, seconds)| seconds).sum();
    let mut all = Report::default();
    reports.into_iter().for_each(|(report, _)| all.merge(report));
    let mut report = summary(crashable.name, &all, seconds);
    if config.mutants && all.is_clean() {
        test_mutants(battery, config, progress, &all, &mut report);
    }
    if config.rates {
        measure_rates(&(crashable.costs)(RATED_IMAGES), progress, &mut report);
    }
    report
}

/// The number of images of each seed that rates are measured with.
const RATED_IMAGES: u64 = 20_000;

/// Runs one campaign after the other, and measures the processor time of this thread.
fn measure_rates(costs: &Battery, progress: &dyn Progress, report: &mut CrashReport) {
    progress.more(costs.trials.len() as u64);
    for trial in &costs.trials {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        let found = costs.run(&**trial, 0..2);
        let end = clock_gettime(ClockId::ThreadCPUTime);
        let seconds =
            (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 / 1e9;
        progress.done(&format!("{}: {} images", costs.name_of(&**trial), found.images));
        report.violations += found.failed_images;
        report.found.extend(found.violations.iter().map(Finding::from));
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
        found: all.violations.iter().map(Finding::from).collect(),
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

/// Returns the test that detects a mutant which campaigns do not.
fn detected_elsewhere(mistake: &str) -> Option<&'static str> {
    let all = [
        dash::NOTICED_ELSEWHERE,
        dash_lh::NOTICED_ELSEWHERE,
        hot::NOTICED_ELSEWHERE,
        bwtree::NOTICED_ELSEWHERE,
        hikv::NOTICED_ELSEWHERE,
    ];
    let mut all = all.into_iter().flatten();
    all.find(|(name, _)| *name == mistake).map(|(_, test)| *test)
}

fn test_mutants(
    battery: &Battery,
    config: &CrashConfig,
    progress: &dyn Progress,
    all: &Report,
    report: &mut CrashReport,
) {
    // The campaigns were clean, so they are clean with fewer seeds too.
    let Ok(mutants) = battery.mutants(config.seeds.min(2)) else { return };
    let planted = battery.planted.iter().map(|&name| Mutation::Planted(name));
    let mutations: Vec<Mutation> = mutants.mutations().into_iter().chain(planted).collect();
    progress.more(mutations.len() as u64);
    let fates = parallel(config.threads, mutations.len(), |at| {
        let start = Instant::now();
        let (fate, trial) = match mutations[at] {
            Mutation::Planted(name) => battery.fate_of_planted(name, config.seeds),
            mutation => mutants.fate(mutation),
        };
        let by = trial.map_or(String::new(), |trial| format!(" ({trial})"));
        progress.done(&format!("{}: {fate}{by}", mutations[at]));
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
                    Mutation::Planted(name) => detected_elsewhere(name),
                    _ => mutation.site().and_then(|site| all.harmless.get(&site)).copied(),
                };
                let explanation = explanation.map(ToString::to_string);
                report.survivors.push(Survivor { mutant: mutation.to_string(), explanation });
            }
        }
    }
}
