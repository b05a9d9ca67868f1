//! Mutants: drops and delays every flush, drops every fence, and tears every commit, one at a time.
//! If a campaign does not detect one of these, it has a gap, or what was dropped was not needed.
//!
//! Such a mutation changes nothing that the program does, only what a crash may leave behind. So
//! workloads run once, and of each changed recording only those crashes are tried that the correct
//! program cannot have.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

use super::choice::Choice;
use super::config::Config;
use super::crashes::{Attempt, Passing, Run, run_quick};
use super::durable::{Durability, Model};
use super::image::{ImageConfig, UndecidedGranule, Walk};
use super::mutation::Mutation;
use super::recovery::{Campaign, Level, Recorded};
use super::replay::Step;
use super::report::Report;
use super::rng::{Rng, fold};
use super::subject::Subject;
use super::trace::{Site, Trace};

/// Maximum number of images at one crash point.
const PER_POINT: u64 = 12;
/// Maximum number of crash points in one recording.
const POINTS: usize = 160;
/// Number of different uses of a recovered structure.
const PROBES: u64 = 3;
/// Of points that look the same, this number are tried first.
const FIRST_OF_LOOK: usize = 6;

/// The result of trying a mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was detected.
    Killed(Kill),
    /// It was not detected after this number of images.
    Survived(u64),
    /// It changes no crash of any recording.
    NoChange,
}

/// How a mutation was detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The rule that was violated.
    pub oracle: &'static str,
    /// The failure.
    pub message: String,
    /// The seed of the workload.
    pub seed: u64,
    /// The number of images until then.
    pub images: u64,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Killed(Kill { oracle, message, seed, images }) => {
                write!(f, "killed by {oracle}, seed {seed}, {images} images: {message}")
            }
            Fate::Survived(images) => write!(f, "SURVIVED {images} images"),
            Fate::NoChange => write!(f, "changes nothing"),
        }
    }
}

/// Workloads that survive every crash, to be tried with mutations.
pub struct MutantSweep<'s, S: Subject> {
    subject: &'s S,
    config: Config,
    workloads: Vec<RecordedWorkload<S::History>>,
    report: Report,
}

/// One workload, and for each site crashes whose recovery executes it.
struct RecordedWorkload<H> {
    seed: u64,
    recorded: Recorded<H>,
    passing: HashMap<Site, Passing>,
}

impl<'s, S: Subject> MutantSweep<'s, S> {
    /// Runs the workloads of `seeds` without a mutation, and crashes them.
    ///
    /// # Errors
    ///
    /// The report, if something fails without any mutation.
    pub fn new(subject: &'s S, config: &Config, seeds: Range<u64>) -> Result<Self, Box<Report>> {
        let config = Config { mutation: None, max_failed: 1, ..*config };
        let mut sweep =
            MutantSweep { subject, config, workloads: Vec::new(), report: Report::default() };
        for seed in seeds {
            let campaign = &Campaign { subject, config: &sweep.config, seed };
            let mut report = Report { seeds: 1, ..Report::default() };
            match campaign.record(&subject.workload(seed)) {
                Ok(recorded) => {
                    report.schedules.insert(recorded.order);
                    let root = recorded.root(seed);
                    let mut run = Run::new(campaign, &root, &mut report);
                    run.passing = Some(HashMap::new());
                    run.crash_all();
                    let passing = run.passing.take().unwrap_or_default();
                    sweep.workloads.push(RecordedWorkload { seed, recorded, passing });
                }
                Err(failure) => {
                    report.failed_images += 1;
                    report.violations.push(campaign.uncrashed(failure));
                }
            }
            sweep.report.merge(report);
        }
        if sweep.report.is_clean() { Ok(sweep) } else { Err(Box::new(sweep.report)) }
    }

    /// Returns the report of crashing the correct program.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns every possible mutation of these workloads and their recoveries.
    pub fn mutations(&self) -> BTreeSet<Mutation> {
        let Report { flush_sites, fence_sites, commit_sites, .. } = &self.report;
        let flushes = flush_sites.iter().copied();
        let drops = flushes.clone().map(Mutation::DropFlush);
        let delays = flushes.map(Mutation::DelayFlush);
        let fences = fence_sites.iter().copied().map(Mutation::DropFence);
        let torn = commit_sites.iter().copied().map(Mutation::TearStore);
        drops.chain(delays).chain(fences).chain(torn).collect()
    }

    /// Tries a mutation. Stops at the first crash that detects it.
    pub fn fate(&self, mutation: Mutation) -> Fate {
        let mut report = Report::default();
        let mut changed = false;
        for workload in &self.workloads {
            changed |= self.try_workload(workload, mutation, &mut report);
            if let Some(kill) = kill_of(&report, workload.seed) {
                return Fate::Killed(kill);
            }
        }
        if changed { Fate::Survived(report.images) } else { Fate::NoChange }
    }

    /// Crashes a workload, and recoveries, where the mutation makes a difference. Returns `true` if
    /// it does anywhere.
    fn try_workload(
        &self,
        workload: &RecordedWorkload<S::History>,
        mutation: Mutation,
        report: &mut Report,
    ) -> bool {
        let campaign =
            &Campaign { subject: self.subject, config: &self.config, seed: workload.seed };
        let root = workload.recorded.root(workload.seed);
        let mut run = Run::new(campaign, &root, report);
        run.quick = true;
        let trace = mutation.apply(root.trace);
        let mut changed = try_changed(&mut run, &root.with(&trace), root.trace);
        let steps = mutation.site().and_then(|site| workload.passing.get(&site));
        let mut steps: Vec<&Step> = steps.into_iter().flat_map(|passing| &passing.steps).collect();
        steps.sort_by_key(|step| step.record);
        for salt in 0..PROBES {
            let salted = root.salted(salt);
            let mut walk = Walk::new(root.trace, &root.images(&self.config));
            for step in &steps {
                if !run.report.is_clean() {
                    return true;
                }
                let nested = campaign.crash_and_record(&salted, &mut walk, step, |nested| {
                    let trace = mutation.apply(nested.trace);
                    try_changed(&mut run, &nested.with(&trace), nested.trace)
                });
                changed |= nested.ok().flatten().unwrap_or(false);
            }
        }
        changed
    }
}

fn kill_of(report: &Report, seed: u64) -> Option<Kill> {
    let violation = report.violations.first()?;
    let (oracle, message) = (violation.oracle, violation.message.clone());
    Some(Kill { oracle, message, seed, images: report.images })
}

/// Tries a mutation on workloads with parallel threads. They are recorded again, because threads
/// are paused where the mutation has an effect.
pub fn fate_in_parallel<S: Subject>(
    subject: &S,
    config: &Config,
    mutation: Mutation,
    seeds: Range<u64>,
) -> Fate {
    let correct = Config { mutation: None, max_failed: 1, ..*config };
    let mut report = Report::default();
    let mut changed = false;
    for seed in seeds {
        let campaign = Campaign { subject, config: &correct, seed };
        match campaign.record_expecting(&subject.workload(seed), mutation) {
            Ok(recorded) => {
                let root = recorded.root(seed);
                let mut run = Run::new(&campaign, &root, &mut report);
                run.quick = true;
                let trace = mutation.apply(root.trace);
                changed |= try_changed(&mut run, &root.with(&trace), root.trace);
            }
            Err(failure) => {
                report.failed_images += 1;
                report.violations.push(campaign.uncrashed(failure));
            }
        }
        if let Some(kill) = kill_of(&report, seed) {
            return Fate::Killed(kill);
        }
    }
    if changed { Fate::Survived(report.images) } else { Fate::NoChange }
}

/// Tries a planted mistake, by running whole campaigns with it.
pub fn fate_of_planted<S: Subject>(
    subject: &S,
    config: &Config,
    name: &'static str,
    seeds: Range<u64>,
) -> Fate {
    let config = Config { mutation: Some(Mutation::Planted(name)), max_failed: 1, ..*config };
    let mut images = 0;
    for seed in seeds {
        let report = run_quick(subject, &config, seed);
        images += report.images;
        if let Some(kill) = kill_of(&report, seed) {
            return Fate::Killed(Kill { images, ..kill });
        }
    }
    Fate::Survived(images)
}

/// A granule of which the mutation leaves more undecided, and the contents that show that.
struct Change {
    granule: usize,
    shows: Choice,
}

/// Crashes a changed recording where more is undecided than in the correct one. Returns `true` if
/// there is such a point.
fn try_changed<S: Subject>(
    run: &mut Run<'_, S>,
    level: &Level<'_, S::History>,
    correct: &Trace,
) -> bool {
    let images = &level.images(run.campaign.config);
    if images.model == Model::ProcessDeath {
        // The next process finds everything that was stored, flushed or not.
        return false;
    }
    let points = changed_points(level.trace, correct, images);
    let any = !points.is_empty();
    run.begin(level);
    let mut walk = Walk::new(level.trace, images);
    let mut before = Before::new(correct, images);
    for record in selection(points, images.seed) {
        let Some(point) = walk.go_to(record) else { break };
        let changes = before.changes(&walk);
        let preferred = preferences(&walk, &changes);
        let chosen = &mut Vec::new();
        let attempt = Attempt { most: PER_POINT, preferred, undecided: true, look: 0, chosen };
        if run.crash_point(level, &mut walk, &point, images, attempt).is_break() {
            break;
        }
    }
    any
}

/// Returns the points at which more is undecided, and what they look like.
fn changed_points(changed: &Trace, correct: &Trace, images: &ImageConfig) -> Vec<(usize, u64)> {
    let mut walk = Walk::new(changed, images);
    let mut before = Before::new(correct, images);
    let mut points = Vec::new();
    while let Some(point) = walk.next_point() {
        if !before.changes(&walk).is_empty() {
            points.push((point.record(), walk.look()));
        }
    }
    points
}

/// Selects some of many points: a few of each look, and any others.
fn selection(points: Vec<(usize, u64)>, seed: u64) -> Vec<usize> {
    let mut looks: HashMap<u64, usize> = HashMap::new();
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    for (record, look) in points {
        let seen = looks.entry(look).or_default();
        *seen += 1;
        if *seen <= FIRST_OF_LOOK { chosen.push(record) } else { rest.push(record) }
    }
    let mut rng = Rng::new(fold(seed, chosen.len() as u64));
    for points in [&mut chosen, &mut rest] {
        rng.shuffle(points);
    }
    chosen.extend(rest);
    chosen.truncate(POINTS);
    chosen.sort_unstable();
    chosen
}

/// The undecided granules of the correct program.
struct Before<'t> {
    state: Durability<'t>,
    correct: &'t Trace,
    at: usize,
}

impl<'t> Before<'t> {
    fn new(correct: &'t Trace, images: &ImageConfig) -> Self {
        let state = Durability::new(correct, images.model, images.growth);
        Before { state, correct, at: 0 }
    }

    /// Returns what the mutation has changed at the position of `walk`.
    fn changes(&mut self, walk: &Walk<'_>) -> Vec<Change> {
        while self.at < walk.next_record().min(self.correct.records().len()) {
            self.state.step(self.at, &mut |_| {});
            self.at += 1;
        }
        walk.items().iter().enumerate().filter_map(|at| self.change(walk, at)).collect()
    }

    fn change(
        &self,
        walk: &Walk<'_>,
        (granule, item): (usize, &UndecidedGranule),
    ) -> Option<Change> {
        let pending = self.state.pending().get(&(item.offset / self.state.granule_bytes()));
        let entries = walk.entries_of(item);
        let correct = pending.map_or(&[][..], |correct| correct);
        let is_correct = |first: u32| correct.iter().any(|entry| entry.first == first);
        // The halves of torn stores are stored after all words of the correct recording.
        let torn = entries.iter().position(|entry| entry.first >= self.correct.word_count());
        let shows = match torn {
            Some(at) => Choice { taken: at as u32, partial: 1 },
            None if entries.iter().all(|entry| is_correct(entry.first)) => return None,
            None => Choice::default(),
        };
        Some(Change { granule, shows })
    }
}

/// Returns preferred contents of granules so that a crash shows the changes: all changes with
/// everything else surviving, or lost; then one at a time.
fn preferences(walk: &Walk<'_>, changes: &[Change]) -> Vec<Vec<Choice>> {
    const SINGLE: usize = 4;
    let newest: Vec<Choice> = (0..walk.items().len()).map(|at| walk.whole(at)).collect();
    let oldest = vec![Choice::default(); newest.len()];
    let show = |mut choices: Vec<Choice>, changes: &[Change]| {
        for change in changes {
            choices[change.granule] = change.shows;
        }
        choices
    };
    let mut all = vec![show(newest.clone(), changes), show(oldest, changes)];
    if changes.len() > 1 {
        let single = changes.chunks(1).take(SINGLE);
        all.extend(single.map(|change| show(newest.clone(), change)));
    }
    all
}
