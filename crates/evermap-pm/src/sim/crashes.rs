//! Runs through the crashes of one workload, and through those of the recoveries from them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use super::choice::Choice;
use super::config::Config;
use super::coverage::{PairSearch, Pruner};
use super::deviation::least_deviation;
use super::frontier::Frontier;
use super::image::{CrashPoint, Image, ImageConfig, ImagePlan, Walk, fair_share};
use super::medium::Sim;
use super::recovery::{Campaign, Level, Recovery};
use super::replay::Step;
use super::report::{Report, Violation};
use super::rng::{Rng, fold};
use super::subject::{Failure, Subject};
use super::trace::{Event, Site, Trace, TraceRecord, look_of};
use crate::medium::Note;

/// Number of recoveries of one kind that are all crashed.
const FIRST_OF_KIND: u64 = 8;
/// Number of recoveries that are crashed in one walk through the recording that they follow.
const TOGETHER: usize = 64;
/// If there are no more images than this, building them costs less than deciding them.
const FEW_IMAGES: u64 = 8;

/// A medium per depth, which is reused for each image.
#[derive(Default)]
struct Sandbox {
    sim: Option<Sim>,
    /// Offsets where the next image may differ from the one that `sim` was created from.
    stale: Vec<u64>,
    /// Whether `stale` contains all such offsets.
    follows: bool,
}

impl Sandbox {
    fn load(&mut self, image: &Image<'_>, capacity: u64) -> &Sim {
        let changed = self.follows.then_some(&self.stale[..]);
        let reusable = self.sim.as_mut().is_some_and(|sim| sim.reload(image.bytes, changed));
        if !reusable {
            // The first image, or the subject has kept a handle of the previous one.
            let fresh = Sim::from_image(image.bytes, capacity);
            self.sim = Some(fresh.expect("an image fits the medium of its recording"));
        }
        self.stale.clear();
        self.follows = true;
        self.sim.as_ref().expect("just set")
    }
}

/// Which choices at one crash point are known to make no difference.
///
/// A recovery that succeeded without reading some of the undecided granules would do the same
/// whatever they hold.
#[derive(Default)]
struct ReadFilter {
    /// For each set of granules that a recovery has read: hashes of the choices made there.
    seen: Vec<(Vec<bool>, HashSet<u64>)>,
}

impl ReadFilter {
    fn covers(&self, image: &Image<'_>) -> bool {
        self.seen.iter().any(|(read, choices)| choices.contains(&project(image, read)))
    }

    fn add(&mut self, image: &Image<'_>, sim: &Sim) {
        let read: Vec<bool> = image.items().iter().map(|item| sim.was_read(item.range())).collect();
        let choice = project(image, &read);
        match self.seen.iter_mut().find(|(other, _)| *other == read) {
            Some((_, choices)) => {
                choices.insert(choice);
            }
            None => self.seen.push((read, HashSet::from([choice]))),
        }
    }
}

/// Hashes the choices of `image` for the granules that are `read`.
fn project(image: &Image<'_>, read: &[bool]) -> u64 {
    let choices = image.choices.iter().zip(read).filter(|(_, read)| **read);
    choices.fold(0, |hash, (choice, _)| {
        fold(hash, u64::from(choice.taken) << 8 | u64::from(choice.partial))
    })
}

/// The crashes of one workload.
pub(crate) struct Run<'r, S: Subject> {
    pub(crate) campaign: &'r Campaign<'r, S>,
    root: &'r Level<'r, S::History>,
    pub(crate) report: &'r mut Report,
    sandboxes: Vec<Sandbox>,
    /// Images that were verified, with their requirements.
    seen: HashSet<u64>,
    /// Number of recoveries of each kind.
    kinds: HashMap<u64, u64>,
    /// Decides which crashes of recoveries look new.
    nested: Pruner,
    /// For each place where a recovery flushes, fences or stores, crashes whose recovery executes
    /// it.
    pub(crate) passing: Option<HashMap<Site, Passing>>,
    rng: Rng,
    /// Number of verified images.
    images: u64,
    /// Whether it is enough to know that something is wrong.
    pub(crate) quick: bool,
}

/// Crashes whose recovery executes some place: the first ones, while the structure is created, and
/// a random selection of all others.
#[derive(Default)]
pub(crate) struct Passing {
    pub(crate) steps: Vec<Step>,
    /// The number of crashes passed to `add`.
    count: u64,
}

impl Passing {
    fn add(&mut self, step: &Step, rng: &mut Rng) {
        const FIRST: usize = 16;
        const OTHERS: usize = 32;
        self.count += 1;
        if self.steps.len() < FIRST + OTHERS {
            self.steps.push(step.clone());
            return;
        }
        let choice = rng.below(self.count - FIRST as u64) as usize;
        if let Some(place) = self.steps[FIRST..].get_mut(choice) {
            *place = step.clone();
        }
    }
}

/// Crashes whose recovery is worth crashing, each with the number of recoveries of its kind so far.
pub(crate) type Chosen = Vec<(u64, Step)>;

/// The images of one crash point.
pub(crate) struct Attempt<'a> {
    /// Maximum number of images.
    pub(crate) most: u64,
    /// Preferred contents of the granules in the first images on undecided memory.
    pub(crate) preferred: Vec<Vec<Choice>>,
    /// Whether to leave all decisions open, even if there are only few.
    pub(crate) undecided: bool,
    /// What the crash looks like, combined with the crashes before it.
    pub(crate) look: u64,
    /// Receives the crashes whose recovery is worth crashing, each with the number of recoveries of
    /// its kind so far.
    pub(crate) chosen: &'a mut Chosen,
}

impl<'r, S: Subject> Run<'r, S> {
    pub(crate) fn new(
        campaign: &'r Campaign<'r, S>,
        root: &'r Level<'r, S::History>,
        report: &'r mut Report,
    ) -> Self {
        // Mutants are tried on recoveries even if those are not crashed otherwise.
        let depth = campaign.config.nested.depth.max(1);
        let sandboxes = (0..=depth).map(|_| Sandbox::default()).collect();
        let (seen, kinds) = Default::default();
        let nested = Pruner::new(campaign.config.nested.pruning);
        let rng = Rng::new(fold(campaign.config.images.seed, campaign.seed));
        let (passing, images, quick) = (None, 0, false);
        Run { campaign, root, report, sandboxes, seen, kinds, nested, passing, rng, images, quick }
    }

    pub(crate) fn crash_all(&mut self) {
        let (config, trace) = (self.campaign.config, self.root.trace);
        self.count(trace);
        // Crashes of recoveries get the rest, which is at least half.
        let halves = if config.nested.depth > 0 { 2 } else { 1 };
        let wanted = self.wanted(trace);
        let share = fair_share(wanted, config.max_images / halves);
        let per_point = share.unwrap_or(config.images.per_point);
        let seed = fold(config.images.seed, self.campaign.seed);
        let images = ImageConfig { per_point, seed, ..config.images };
        self.crash(self.root, &images, 0);
    }

    /// Returns the number of images that each crash point is worth.
    fn wanted(&self, trace: &Trace) -> Vec<u64> {
        let config = self.campaign.config;
        let mut walk = Walk::new(trace, &config.images);
        let mut pruner = Pruner::new(config.pruning);
        let mut wanted = Vec::new();
        while walk.next_point().is_some() {
            let most = pruner.most(walk.look(), config.images.per_point);
            wanted.push(walk.images().min(most));
        }
        wanted
    }

    fn count(&mut self, trace: &Trace) {
        self.report.ops += trace.ops().len() as u64;
        for record in trace.records() {
            match record.event {
                Event::Store { .. } => self.report.stores += 1,
                Event::Flush { .. } => self.report.flushes += 1,
                Event::Fence => self.report.fences += 1,
                Event::Note(Note::Scope(name)) => {
                    *self.report.work.entry(name).or_default() += 1;
                }
                _ => {}
            }
        }
        self.record_sites(trace);
    }

    fn record_sites(&mut self, trace: &Trace) {
        self.report.flush_sites.extend(trace.flush_sites());
        self.report.fence_sites.extend(trace.fence_sites());
        self.report.commit_sites.extend(trace.commit_sites());
        self.report.harmless.extend(trace.harmless());
    }

    /// Crashes one recording at all its points, and then the recoveries that are worth it. `path`
    /// is what the crashes before it look like.
    ///
    /// A recovery that does not touch what its crash has left half done does the same as all
    /// others, and so do crashes of it. It is relevant all the same: changes on top of the one half
    /// can go wrong when the other is reached. So a recovery is new if all the crashes together
    /// look new.
    fn crash(&mut self, level: &Level<'_, S::History>, images: &ImageConfig, path: u64) {
        let depth = level.path.len();
        let mut chosen = Vec::new();
        self.begin(level);
        let mut walk = Walk::new(level.trace, images);
        let mut pruner = Pruner::new(self.campaign.config.pruning);
        let every = self.stride(level, images);
        let mut probed = self.rng.below(every);
        while let Some(point) = walk.next_point() {
            if level.is_after_recovery(&point) {
                probed += 1;
                if !probed.is_multiple_of(every) {
                    continue;
                }
            }
            let look = fold(path, walk.look());
            let pruner = if depth == 0 { &mut pruner } else { &mut self.nested };
            let most = pruner.most(look, images.per_point);
            if most == 0 {
                continue;
            }
            let attempt = Attempt {
                most,
                preferred: Vec::new(),
                undecided: false,
                look,
                chosen: &mut chosen,
            };
            if self.crash_point(level, &mut walk, &point, images, attempt).is_break() {
                break;
            }
        }
        // In random order, so that a budget that runs out was spent on as many kinds as possible.
        Rng::new(images.seed).shuffle(&mut chosen);
        chosen.sort_by_key(|&(nth, _)| nth);
        if depth > 0 {
            // Otherwise all of the budget would be spent on recoveries that follow the first few.
            chosen.truncate(1);
        }
        self.report.nested_chosen += chosen.len() as u64;
        let mut steps: Vec<Step> = chosen.into_iter().map(|(_, step)| step).collect();
        for steps in steps.chunks_mut(TOGETHER) {
            steps.sort_by_key(|step| step.record);
            let mut walk = Walk::new(level.trace, images);
            let more = |step: &Step| self.crash_recovery(level, &mut walk, step, path);
            if steps.iter().try_for_each(more).is_break() {
                return;
            }
        }
    }

    /// Prepares for crashes of another recording.
    pub(crate) fn begin(&mut self, level: &Level<'_, S::History>) {
        self.sandboxes[level.path.len()].follows = false;
    }

    /// Returns n if one in n crash points in the probe after a recovery is tried.
    fn stride(&self, level: &Level<'_, S::History>, images: &ImageConfig) -> u64 {
        if level.recovery.is_none() {
            return 1;
        }
        let mut walk = Walk::new(level.trace, images);
        let points = std::iter::from_fn(|| walk.next_point());
        let after = points.filter(|point| level.is_after_recovery(point)).count() as u64;
        after.div_ceil(self.campaign.config.nested.probe_points.max(1)).max(1)
    }

    /// Crashes one recording at one point.
    pub(crate) fn crash_point(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        point: &CrashPoint,
        images: &ImageConfig,
        attempt: Attempt<'_>,
    ) -> ControlFlow<()> {
        let is_root = level.path.is_empty();
        let mut pairs = is_root.then(|| PairSearch::new(walk, &mut self.report.pairs));
        let undecided = (attempt.undecided || walk.images() > FEW_IMAGES)
            && self.campaign.config.undecided
            && walk.can_stay_undecided();
        self.report.points += u64::from(is_root);
        let (flow, exhaustive) = if undecided {
            self.crash_undecided(level, walk, point, attempt, &mut pairs)
        } else {
            let images = ImageConfig { per_point: attempt.most, ..*images };
            self.crash_decided(level, walk, point, &images, attempt, &mut pairs)
        };
        self.report.exhaustive_points += u64::from(is_root && exhaustive);
        flow
    }

    /// Builds the images of one point, or a selection of them. Also returns whether it was all of
    /// them.
    fn crash_decided(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        point: &CrashPoint,
        images: &ImageConfig,
        mut attempt: Attempt<'_>,
        pairs: &mut Option<PairSearch>,
    ) -> (ControlFlow<()>, bool) {
        let (depth, config) = (level.path.len(), self.campaign.config);
        let plan = ImagePlan::of(walk, images, &mut self.rng);
        let requirements = level.requirements(point);
        let mut filter = ReadFilter::default();
        let mut choices = Vec::new();
        for number in 0..plan.len() {
            plan.choose(number, walk, &mut self.rng, &mut choices);
            walk.apply(&choices);
            let mut flow = ControlFlow::Continue(());
            if self.seen.insert(fold(walk.hash(), requirements.id)) {
                let image = walk.image(point, &choices);
                self.sandboxes[depth].stale.extend_from_slice(image.changed);
                if filter.covers(&image) {
                    self.report.unread += 1;
                } else if self.spend(level).is_break() {
                    flow = ControlFlow::Break(());
                } else {
                    let sim = self.sandboxes[depth].load(&image, config.capacity).clone();
                    let step = || Step::new(point.record(), image.items(), image.choices);
                    let result =
                        self.campaign.recover(&sim, &requirements, level.probe_seed(point));
                    if result.is_ok() {
                        filter.add(&image, &sim);
                    }
                    flow = self.judge(level, &sim, result, step, &mut attempt);
                }
                if let Some(pairs) = pairs {
                    pairs.tried(&mut self.report.pairs, |at| (choices[at], choices[at]));
                }
                walk.mark_visited();
            } else {
                self.report.repeated += 1;
            }
            walk.revert();
            if flow.is_break() {
                return (flow, false);
            }
        }
        (ControlFlow::Continue(()), plan.is_exhaustive())
    }

    /// Runs recovery on undecided memory, until every image that it can distinguish from the others
    /// was tried, or enough were. Also returns whether it was all of them.
    fn crash_undecided(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        point: &CrashPoint,
        mut attempt: Attempt<'_>,
        pairs: &mut Option<PairSearch>,
    ) -> (ControlFlow<()>, bool) {
        let (depth, config) = (level.path.len(), self.campaign.config);
        let count = walk.items().len();
        let newest: Vec<Choice> = (0..count).map(|at| walk.whole(at)).collect();
        let oldest = vec![Choice::default(); count];
        let any = (0..count).map(|at| walk.any_choice(at, &mut self.rng)).collect();
        let preferred = std::mem::take(&mut attempt.preferred)
            .into_iter()
            .chain([newest, oldest, any])
            .collect();
        let mut frontier = Frontier::new(preferred);
        let requirements = level.requirements(point);
        let image = walk.image(point, &[]);
        self.sandboxes[depth].stale.extend_from_slice(image.changed);
        let mut flow = ControlFlow::Continue(());
        for _ in 0..attempt.most {
            let Some(next) = frontier.next(&mut self.rng) else { break };
            flow = self.spend(level);
            if flow.is_break() {
                break;
            }
            let sim = self.sandboxes[depth].load(&image, config.capacity).clone();
            sim.leave_undecided(walk.undecided(next.script.clone(), frontier.preferred(&next)));
            let result = self.campaign.recover(&sim, &requirements, level.probe_seed(point));
            let outcome = sim.decisions();
            frontier.ran(&next, &outcome.made, &mut self.rng);
            let choices: Vec<Choice> = outcome.left.iter().map(|(_, newest)| *newest).collect();
            let step = || Step::new(point.record(), walk.items(), &choices);
            flow = self.judge(level, &sim, result, step, &mut attempt);
            if let Some(pairs) = pairs {
                pairs.tried(&mut self.report.pairs, |at| outcome.left[at]);
            }
            if flow.is_break() {
                break;
            }
        }
        let exhaustive = flow.is_continue() && frontier.is_done();
        walk.mark_visited();
        self.report.undecided_points += u64::from(depth == 0);
        (flow, exhaustive)
    }

    /// Takes one image from the budget.
    fn spend(&mut self, level: &Level<'_, S::History>) -> ControlFlow<()> {
        let depth = level.path.len();
        if self.images >= self.campaign.config.max_images {
            self.report.truncated |= depth == 0;
            return ControlFlow::Break(());
        }
        self.images += 1;
        self.report.images += 1;
        self.report.nested_images += u64::from(depth > 0);
        ControlFlow::Continue(())
    }

    /// Records the result of one image. Adds recoveries that are worth a crash to `attempt`.
    fn judge(
        &mut self,
        level: &Level<'_, S::History>,
        sim: &Sim,
        result: Recovery<S>,
        step: impl FnOnce() -> Step,
        attempt: &mut Attempt<'_>,
    ) -> ControlFlow<()> {
        let (depth, config) = (level.path.len(), self.campaign.config);
        self.record_actions(depth, sim);
        match result {
            Err(failure) => {
                let violation = self.violation(level, step(), failure);
                self.report.failed_images += 1;
                // Several crashes are often reduced to the same one.
                if !self.report.violations.contains(&violation) {
                    self.report.violations.push(violation);
                }
            }
            Ok(survived) => {
                let sample = (depth < config.nested.depth)
                    .then(|| self.sample(sim, survived.recovered, attempt.look))
                    .flatten();
                if sample.is_some() || self.passing.is_some() {
                    let step = step();
                    if depth == 0 {
                        self.record_passing(sim, &step);
                    }
                    attempt.chosen.extend(sample.map(|nth| (nth, step)));
                }
            }
        }
        self.flow()
    }

    /// Counts the named parts of a recovery.
    fn record_actions(&mut self, depth: usize, sim: &Sim) {
        let actions = &mut self.report.actions;
        sim.with_records(|records| {
            for record in records {
                if let Event::Note(Note::Scope(name)) = record.event {
                    actions.entry(name).or_default()[usize::from(depth > 0)] += 1;
                }
            }
        });
    }

    /// Records which places this recovery executed.
    fn record_passing(&mut self, sim: &Sim, step: &Step) {
        let Some(passing) = &mut self.passing else { return };
        let rng = &mut self.rng;
        sim.with_records(|records| {
            let matters = |record: &&TraceRecord| {
                let event = record.event;
                matches!(event, Event::Flush { .. } | Event::Fence | Event::Store { .. })
            };
            let sites: BTreeSet<Site> = records.iter().filter(matters).map(|r| r.site).collect();
            for site in sites {
                passing.entry(site).or_default().add(step, rng);
            }
        });
    }

    /// Returns `Break` when enough images have failed.
    fn flow(&self) -> ControlFlow<()> {
        if self.report.failed_images < self.campaign.config.max_failed {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Returns the number of recoveries of this kind, after crashes that look like this and from
    /// the same places, if this is one of the first or in the sample of the others.
    fn sample(&mut self, sim: &Sim, recovered: usize, look: u64) -> Option<u64> {
        let sites = sim.with_records(|records| sites_hash(&records[..recovered]));
        let count = self.kinds.entry(fold(look, sites)).or_default();
        *count += 1;
        let every = self.campaign.config.nested.every.max(1);
        (*count <= FIRST_OF_KIND || count.is_multiple_of(every)).then_some(*count)
    }

    /// Records the recovery from the crash of `step` again, and crashes it.
    fn crash_recovery(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        step: &Step,
        path: u64,
    ) -> ControlFlow<()> {
        if self.images >= self.campaign.config.max_images {
            return ControlFlow::Break(());
        }
        self.flow()?;
        let config = self.campaign.config;
        walk.go_to(step.record).expect("the step came from this recording");
        let path = fold(path, walk.look());
        // Not from the contents of memory: they differ from run to run, by the number of a process
        // for example.
        let seed = fold(fold(config.images.seed, path), step.record as u64);
        let done = self.campaign.crash_and_record(level, walk, step, |nested| {
            let per_point = config.nested.per_point;
            self.report.nested_traces += 1;
            self.record_sites(nested.trace);
            self.crash(nested, &ImageConfig { per_point, seed, ..nested.images(config) }, path);
        });
        // It has succeeded before, so only a subject that is not deterministic fails now.
        done.expect("the step came from this recording");
        ControlFlow::Continue(())
    }

    /// Reports the failure for the crash that deviates as little as possible from one that loses
    /// nothing, or from one that loses everything.
    fn violation(&self, level: &Level<'_, S::History>, step: Step, failure: Failure) -> Violation {
        let steps = level.path_with(&step);
        if self.quick {
            let (story, replay) = (String::new(), self.campaign.replay_of(steps));
            return Violation { message: failure.what, oracle: failure.oracle, story, replay };
        }
        if let Ok(Some(found)) = self.campaign.follow(self.root, &steps) {
            return least_deviation(self.campaign, self.root, found);
        }
        Violation {
            message: format!(
                "{} (did not happen again: the subject is not deterministic)",
                failure.what
            ),
            oracle: failure.oracle,
            story: String::new(),
            replay: self.campaign.replay_of(steps),
        }
    }
}

/// Runs one workload and verifies the structure after every crash.
pub(crate) fn run_calls<S: Subject>(
    subject: &S,
    config: &Config,
    seed: u64,
    calls: &[S::Call],
) -> Report {
    crash_calls(subject, config, seed, calls, false)
}

/// Runs the workload of a seed and verifies the structure after every crash. Violations have no
/// story.
pub(crate) fn run_quick<S: Subject>(subject: &S, config: &Config, seed: u64) -> Report {
    crash_calls(subject, config, seed, &subject.workload(seed), true)
}

fn crash_calls<S: Subject>(
    subject: &S,
    config: &Config,
    seed: u64,
    calls: &[S::Call],
    quick: bool,
) -> Report {
    let mut report = Report { seeds: 1, ..Report::default() };
    let campaign = &Campaign { subject, config, seed };
    match campaign.record(calls) {
        Ok(recorded) => {
            report.schedules.insert(recorded.order);
            let root = recorded.root(seed);
            let mut run = Run::new(campaign, &root, &mut report);
            run.quick = quick;
            run.crash_all();
        }
        Err(failure) => {
            report.failed_images += 1;
            report.violations.push(campaign.uncrashed(failure));
        }
    }
    report
}

/// Hashes the set of places that the records come from.
fn sites_hash(records: &[TraceRecord]) -> u64 {
    let changes = records.iter().filter(|record| !matches!(record.event, Event::Note(_)));
    look_of(changes.map(|record| record.site))
}
