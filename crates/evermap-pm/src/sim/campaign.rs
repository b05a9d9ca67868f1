//! Runs a structure, crashes it everywhere, and crashes its recovery too.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::coverage::{PairSearch, Pruner, Pruning, look_of};
use super::frontier::Frontier;
use super::image::{Choice, CrashPoint, Image, ImageConfig, Plan, Walk, fair_share};
use super::medium::Sim;
use super::mutation::Mutation;
use super::replay::{Replay, Step};
use super::report::{Report, Violation};
use super::rng::{Rng, fold};
use super::schedule::{Schedule, Strategy, is_governed};
use super::shrink;
use super::subject::{Subject, Wrong};
use super::trace::{Event, Record, Site, Trace};
use crate::medium::Note;

/// How much to try.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes that the structure's medium can grow to.
    pub capacity: u64,
    /// Which images to build.
    pub images: ImageConfig,
    /// Whether recovery may be let loose on undecided memory where there are many images, so that those which it
    /// cannot tell apart are tried once. Else all are built, or a choice of them.
    pub undecided: bool,
    /// Which crash points to treat in full.
    pub pruning: Pruning,
    /// Crashes of recoveries.
    pub nested: Nested,
    /// Most images verified for one seed. The crash points of the workload share one half of it evenly (all
    /// of it without nested crashes); crashes of recoveries get the rest.
    pub max_images: u64,
    /// Images that failed after which to stop.
    pub max_failed: u64,
    /// Accesses after which a recovery with its probe counts as hanging.
    pub steps: u64,
    /// How threads take turns that a workload starts [in parallel](Sim::in_parallel).
    pub strategy: Strategy,
    /// Whether the workload of a violation is made as short as possible, which takes up to some thousand images.
    pub shrink: bool,
    /// A deliberate mistake.
    pub mutation: Option<Mutation>,
}

/// Which recoveries to crash in turn: the first eight of each shape (the call sites of their stores,
/// flushes and fences, whatever the order), and a sample of the rest.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    /// How many crashes may follow on the first.
    pub depth: usize,
    /// Most images at one point.
    pub per_point: u64,
    /// One in so many recoveries of a known shape.
    pub every: u64,
    /// Crash points after each recovery, in the probe.
    pub probe_points: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            capacity: 256 << 10,
            images: ImageConfig::default(),
            undecided: true,
            pruning: Pruning::default(),
            nested: Nested { depth: 1, per_point: 4, every: 64, probe_points: 16 },
            max_images: 100_000,
            max_failed: 4,
            steps: 1_000_000,
            strategy: Strategy::default(),
            shrink: false,
            mutation: None,
        }
    }
}

/// Recoveries of one shape that are all crashed.
const FIRST_OF_SHAPE: u64 = 8;
/// Recoveries that are crashed in one walk through the recording that they follow on.
const TOGETHER: usize = 64;
/// Where there are no more images than this, building them costs less than deciding them.
const FEW_IMAGES: u64 = 8;

/// Runs the workloads of `seeds` and verifies the structure after every crash.
///
/// Panics of the subject are caught and reported; the process's panic hook sees them first, unless
/// [`keep_panics_quiet`] was called.
pub fn run<S: Subject>(subject: &S, config: &Config, seeds: Range<u64>) -> Report {
    let mut report = Report::default();
    for seed in seeds {
        if report.failed_images >= config.max_failed {
            break;
        }
        let mut found = run_calls(subject, config, seed, &subject.workload(seed));
        if config.shrink
            && let Some(violation) = found.violations.first()
        {
            found.violations[0] = shrink::shrink(subject, config, seed, violation.clone());
        }
        report.merge(found);
    }
    report
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

/// The same for the workload of a seed; violations come without their story.
pub(crate) fn run_quickly<S: Subject>(subject: &S, config: &Config, seed: u64) -> Report {
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
        Err(wrong) => {
            report.failed_images += 1;
            report.violations.push(campaign.uncrashed(wrong));
        }
    }
    report
}

/// Runs the workload of `seed` without crashing it.
///
/// # Errors
/// What the subject says, or its panic.
pub fn record<S: Subject>(
    subject: &S,
    config: &Config,
    seed: u64,
) -> Result<(Trace, S::History), Wrong> {
    let campaign = Campaign { subject, config, seed };
    let recorded = campaign.record(&subject.workload(seed))?;
    Ok((recorded.trace, recorded.history))
}

/// Crashes as `replay` says. Returns what goes wrong then, if anything still does.
///
/// # Errors
/// If the program no longer does what it did when the replay was written.
pub fn replay<S: Subject>(
    subject: &S,
    config: &Config,
    replay: &Replay,
) -> Result<Option<Violation>, String> {
    let images = ImageConfig { model: replay.model, length: replay.length, ..config.images };
    let strategy = replay.schedule.map_or(config.strategy, |schedule| schedule.strategy);
    let config = &Config { images, strategy, ..*config };
    let campaign = Campaign { subject, config, seed: replay.seed };
    campaign.replay(&calls_of(subject, replay)?, replay)
}

/// Runs the workload of a replay and verifies the structure after every crash.
///
/// # Errors
/// If it has calls that are none.
pub fn run_replayed<S: Subject>(
    subject: &S,
    config: &Config,
    replay: &Replay,
) -> Result<Report, String> {
    Ok(run_calls(subject, config, replay.seed, &calls_of(subject, replay)?))
}

/// The calls of a replay.
pub(crate) fn calls_of<S: Subject>(subject: &S, replay: &Replay) -> Result<Vec<S::Call>, String> {
    let read = |call: &String| call.parse().map_err(|_| format!("not a call: {call:?}"));
    match &replay.calls {
        Some(calls) => calls.iter().map(read).collect(),
        None => Ok(subject.workload(replay.seed)),
    }
}

/// A workload that ran.
pub(crate) struct Recorded<H> {
    pub(crate) trace: Trace,
    pub(crate) history: H,
    /// Tells orders of threads apart.
    pub(crate) order: u64,
}

impl<H> Recorded<H> {
    pub(crate) fn root(&self, seed: u64) -> Level<'_, H> {
        Level::root(seed, &self.trace, &self.history)
    }
}

/// What a recovery has to achieve.
pub(crate) struct Owed<'l, H> {
    history: &'l H,
    point: &'l CrashPoint,
    /// Equal only for equal obligations.
    id: u64,
}

/// One recording that is crashed: of the workload, or of a recovery and the probe after it.
pub(crate) struct Level<'l, H> {
    pub(crate) trace: &'l Trace,
    history: &'l H,
    id: u64,
    /// Of a recovery: the record at which it was complete, and what it owed until then.
    recovery: Option<(usize, &'l Owed<'l, H>)>,
    probe_seed: u64,
    /// The crashes that led here.
    path: &'l [Step],
}

impl<'l, H> Level<'l, H> {
    pub(crate) fn root(seed: u64, trace: &'l Trace, history: &'l H) -> Self {
        Level { trace, history, id: seed, recovery: None, probe_seed: seed, path: &[] }
    }

    /// The recording of what was done after the crash that left the image with this hash.
    pub(crate) fn nested<'n>(
        &'n self,
        (trace, survived): (&'n Trace, &'n Survived<H>),
        owed: &'n Owed<'n, H>,
        image: u64,
        path: &'n [Step],
    ) -> Level<'n, H> {
        Level {
            trace,
            history: &survived.history,
            id: fold(image, owed.id),
            recovery: Some((survived.recovered, owed)),
            probe_seed: self.probe_seed(owed.point),
            path,
        }
    }

    /// The same with another use of what is recovered.
    pub(crate) fn salted(&self, salt: u64) -> Self {
        Level { probe_seed: self.probe_seed ^ salt, ..*self }
    }

    /// The same of another recording of the same.
    pub(crate) fn with<'n>(&'n self, trace: &'n Trace) -> Level<'n, H> {
        Level { trace, ..*self }
    }

    /// A crash before recovery was complete leaves what was owed as it was; a later one must respect
    /// what the recovered structure has shown, and what it did since.
    fn owed<'p>(&'p self, point: &'p CrashPoint) -> Owed<'p, H> {
        match self.recovery {
            Some((_, owed)) if !self.is_after_recovery(point) => {
                Owed { history: owed.history, point: owed.point, id: owed.id }
            }
            _ => {
                let id = fold(self.id, point.promises());
                Owed { history: self.history, point, id }
            }
        }
    }

    /// The same for all images of one point, so that images which differ only where nothing reads behave
    /// alike.
    fn probe_seed(&self, point: &CrashPoint) -> u64 {
        fold(self.probe_seed, point.record() as u64)
    }

    /// The crashes that led here and one more.
    pub(crate) fn path_with(&self, step: &Step) -> Vec<Step> {
        self.path.iter().chain([step]).cloned().collect()
    }

    /// Whether a crash at `point` hits the probe after a recovery.
    fn is_after_recovery(&self, point: &CrashPoint) -> bool {
        self.recovery.is_some_and(|(complete, _)| point.record() > complete)
    }

    /// What was running when the crash at `point` came, for the story.
    fn phase(&self, point: &CrashPoint) -> &'static str {
        match self.recovery {
            None => "",
            Some(_) if self.is_after_recovery(point) => "after recovering: ",
            Some(_) => "while recovering: ",
        }
    }
}

/// A recovery that succeeded.
pub(crate) struct Survived<H> {
    /// Records when it was complete; what follows is the probe.
    recovered: usize,
    /// What happened since.
    history: H,
}

/// What came of a recovery.
pub(crate) type Recovery<S> = Result<Survived<<S as Subject>::History>, Wrong>;

/// The workload of one seed and how to recover from its crashes.
pub(crate) struct Campaign<'c, S> {
    pub(crate) subject: &'c S,
    pub(crate) config: &'c Config,
    pub(crate) seed: u64,
}

impl<S: Subject> Campaign<'_, S> {
    fn schedule(&self, seed: u64) -> Schedule {
        Schedule { strategy: self.config.strategy, seed }
    }

    /// Runs a workload without crashing it.
    pub(crate) fn record(&self, calls: &[S::Call]) -> Result<Recorded<S::History>, Wrong> {
        let (sim, history) = self.run(calls, None)?;
        Ok(Recorded { trace: self.trace_of(&sim), history, order: sim.order() })
    }

    /// The same, with threads held up where `mutation` shows; but it is not in the recording yet.
    pub(crate) fn record_unlike(
        &self,
        calls: &[S::Call],
        mutation: Mutation,
    ) -> Result<Recorded<S::History>, Wrong> {
        let (sim, history) = self.run(calls, Some(mutation))?;
        Ok(Recorded { trace: sim.trace(), history, order: sim.order() })
    }

    fn run(
        &self,
        calls: &[S::Call],
        expected: Option<Mutation>,
    ) -> Result<(Sim, S::History), Wrong> {
        let sim = Sim::new(self.config.capacity).map_err(|error| error.to_string())?;
        sim.mutate(self.config.mutation);
        expected.into_iter().for_each(|mutation| sim.expect(mutation));
        sim.set_schedule(self.schedule(self.seed));
        let history = catch("the workload", || self.subject.run(&sim, calls))?;
        Ok((sim, history))
    }

    /// What `sim` has recorded, mistakes included.
    fn trace_of(&self, sim: &Sim) -> Trace {
        let trace = sim.trace();
        match self.config.mutation {
            Some(mutation) => mutation.apply(&trace),
            None => trace,
        }
    }

    /// Recovers what is on `sim` and goes on using it.
    fn recover(&self, sim: &Sim, owed: &Owed<'_, S::History>, probe_seed: u64) -> Recovery<S> {
        sim.mutate(self.config.mutation);
        sim.set_budget(self.config.steps);
        sim.set_schedule(self.schedule(probe_seed));
        let live = catch("recovery", || self.subject.recover(sim, owed.history, owed.point))?;
        let recovered = sim.recorded();
        let history = catch("after recovery", || self.subject.probe(live, probe_seed))?;
        Ok(Survived { recovered, history })
    }

    fn describe(&self, level: &Level<'_, S::History>, image: &Image<'_>) -> String {
        let name = |op| self.subject.op_name(level.history, op);
        format!("{}{}", level.phase(image.point), image.describe(&name))
    }

    fn replay_of(&self, steps: Vec<Step>) -> Replay {
        let ImageConfig { model, length, .. } = self.config.images;
        let (subject, schedule, calls) = (None, None, None);
        Replay { subject, model, length, schedule, seed: self.seed, calls, steps }
    }

    /// Something went wrong in the workload itself.
    pub(crate) fn uncrashed(&self, wrong: Wrong) -> Violation {
        let (story, replay) = ("without any crash\n".into(), self.replay_of(Vec::new()));
        Violation { message: wrong.what, oracle: wrong.oracle, story, replay }
    }

    /// Runs a workload and crashes it as `replay` says.
    pub(crate) fn replay(
        &self,
        calls: &[S::Call],
        replay: &Replay,
    ) -> Result<Option<Violation>, String> {
        match self.record(calls) {
            Ok(recorded) => self.follow(&recorded.root(self.seed), &replay.steps),
            Err(wrong) => Ok(Some(self.uncrashed(wrong))),
        }
    }

    /// Crashes `level` exactly as `step` says, recovers, and shows `then` the image, what was owed, the
    /// medium and the result. `walk` is one through `level`, not past the step.
    ///
    /// An error if `level` has no such crash.
    pub(crate) fn crash_at<R>(
        &self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        step: &Step,
        then: impl FnOnce(&Image<'_>, &Owed<'_, S::History>, &Sim, Recovery<S>) -> R,
    ) -> Result<R, String> {
        let misfit = || format!("the recording has no such crash before record {}", step.record);
        let point = walk.go_to(step.record).ok_or_else(misfit)?;
        let choices: Vec<_> = walk.items().iter().map(|item| step.choice(item.offset)).collect();
        let known = |(offset, _): &(u64, _)| walk.items().iter().any(|item| item.offset == *offset);
        let possible = choices.iter().enumerate().all(|(at, &choice)| walk.allows(at, choice));
        if !possible || !step.choices.iter().all(known) {
            return Err(misfit());
        }
        walk.apply(&choices);
        let image = walk.image(&point, &choices);
        let sim = Sim::from_image(image.bytes, self.config.capacity).map_err(|e| e.to_string())?;
        let owed = level.owed(&point);
        let result = self.recover(&sim, &owed, level.probe_seed(&point));
        let answer = then(&image, &owed, &sim, result);
        walk.revert();
        Ok(answer)
    }

    /// Crashes `level` at `step` and shows `then` the recording of the recovery, if that succeeds.
    pub(crate) fn crash_and_record<R>(
        &self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        step: &Step,
        then: impl FnOnce(&Level<'_, S::History>) -> R,
    ) -> Result<Option<R>, String> {
        let path = level.path_with(step);
        self.crash_at(level, walk, step, |image, owed, sim, result| {
            let survived = result.ok()?;
            let trace = self.trace_of(sim);
            Some(then(&level.nested((&trace, &survived), owed, image.hash, &path)))
        })
    }

    /// Crashes `level` at the first of `steps`, the recovery from it at the second, and so on.
    /// Answers what goes wrong after the last, or an error where the steps do not fit the recordings.
    pub(crate) fn follow(
        &self,
        level: &Level<'_, S::History>,
        steps: &[Step],
    ) -> Result<Option<Violation>, String> {
        let Some((step, rest)) = steps.split_first() else { return Ok(None) };
        let path = level.path_with(step);
        let mut walk = Walk::new(level.trace, &self.config.images);
        self.crash_at(level, &mut walk, step, |image, owed, sim, result| {
            let story = self.describe(level, image);
            match result {
                Err(Wrong { oracle, what }) => {
                    let replay = self.replay_of(path);
                    Ok(Some(Violation { message: what, oracle, story, replay }))
                }
                Ok(survived) => {
                    let trace = self.trace_of(sim);
                    let nested = level.nested((&trace, &survived), owed, image.hash, &path);
                    let found = self.follow(&nested, rest)?;
                    Ok(found.map(|later| Violation { story: story + &later.story, ..later }))
                }
            }
        })?
    }
}

/// A medium per depth, used again for each image.
#[derive(Default)]
struct Sandbox {
    sim: Option<Sim>,
    /// Offsets where the next image may differ from the one that `sim` was made of.
    stale: Vec<u64>,
    /// Whether `stale` knows of all such offsets.
    follows: bool,
}

impl Sandbox {
    fn load(&mut self, image: &Image<'_>, capacity: u64) -> &Sim {
        let changed = self.follows.then_some(&self.stale[..]);
        let reusable = self.sim.as_mut().is_some_and(|sim| sim.reload(image.bytes, changed));
        if !reusable {
            // The first image, or the subject has kept a handle of the last one.
            let fresh = Sim::from_image(image.bytes, capacity);
            self.sim = Some(fresh.expect("an image fits where it came from"));
        }
        self.stale.clear();
        self.follows = true;
        self.sim.as_ref().expect("just set")
    }
}

/// Which choices at one crash point are known to make no difference.
///
/// A recovery that succeeded without reading some of the undecided granules would do the same whatever they
/// hold.
#[derive(Default)]
struct ReadFilter {
    /// For each set of granules that a recovery has read: the choices made there, hashed.
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
    campaign: &'r Campaign<'r, S>,
    root: &'r Level<'r, S::History>,
    pub(crate) report: &'r mut Report,
    sandboxes: Vec<Sandbox>,
    /// Images that were verified, with what was owed.
    pub(crate) seen: HashSet<u64>,
    /// Recoveries of each shape.
    shapes: HashMap<u64, u64>,
    /// For each place where a recovery flushes, fences or stores, some crashes whose recovery comes by there.
    pub(crate) passing: Option<HashMap<Site, Vec<Step>>>,
    rng: Rng,
    /// Images verified.
    pub(crate) images: u64,
    /// Whether it is enough to know that something is wrong.
    pub(crate) quick: bool,
}

/// The images of one crash point.
pub(crate) struct Attempt<'a> {
    /// The most images.
    pub(crate) most: u64,
    /// What the granules are to hold rather than anything else, in the first images on undecided memory.
    pub(crate) preferred: Vec<Vec<Choice>>,
    /// Whether to leave all decisions open, however few there are.
    pub(crate) undecided: bool,
    /// Receives the crashes whose recovery is worth a crash in turn.
    pub(crate) chosen: &'a mut Vec<Step>,
}

impl<'r, S: Subject> Run<'r, S> {
    pub(crate) fn new(
        campaign: &'r Campaign<'r, S>,
        root: &'r Level<'r, S::History>,
        report: &'r mut Report,
    ) -> Self {
        let sandboxes = (0..=campaign.config.nested.depth).map(|_| Sandbox::default()).collect();
        let (seen, shapes) = Default::default();
        let rng = Rng::new(fold(campaign.config.images.seed, campaign.seed));
        let (passing, images, quick) = (None, 0, false);
        Run { campaign, root, report, sandboxes, seen, shapes, passing, rng, images, quick }
    }

    pub(crate) fn crash_all(&mut self) {
        let (config, trace) = (self.campaign.config, self.root.trace);
        self.count(trace);
        // Crashes of recoveries get what is left over, at least half.
        let halves = if config.nested.depth > 0 { 2 } else { 1 };
        let wanted = self.wanted(trace);
        let share = fair_share(wanted, config.max_images / halves);
        let per_point = share.unwrap_or(config.images.per_point);
        let seed = fold(config.images.seed, self.campaign.seed);
        let images = ImageConfig { per_point, seed, ..config.images };
        self.crash(self.root, &images);
    }

    /// How many images each crash point is worth.
    fn wanted(&self, trace: &Trace) -> Vec<u64> {
        let config = self.campaign.config;
        let mut walk = Walk::new(trace, &config.images);
        let mut pruner = Pruner::new(config.pruning);
        let mut wanted = Vec::new();
        while walk.next_point().is_some() {
            let most = pruner.most(&walk, config.images.per_point);
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
        self.see_sites(trace);
    }

    fn see_sites(&mut self, trace: &Trace) {
        self.report.flush_sites.extend(trace.flush_sites());
        self.report.fence_sites.extend(trace.fence_sites());
        self.report.commit_sites.extend(trace.commit_sites());
        self.report.harmless.extend(trace.harmless());
    }

    /// Crashes one recording at all its points, and then the recoveries that are worth it.
    fn crash(&mut self, level: &Level<'_, S::History>, images: &ImageConfig) {
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
            let mut most = images.per_point;
            if depth == 0 {
                most = pruner.most(&walk, most);
            }
            let attempt =
                Attempt { most, preferred: Vec::new(), undecided: false, chosen: &mut chosen };
            if self.crash_point(level, &mut walk, &point, images, attempt).is_break() {
                break;
            }
        }
        // Should the budget run out, what it was spent on has no pattern.
        Rng::new(images.seed).shuffle(&mut chosen);
        self.report.nested_chosen += chosen.len() as u64;
        for steps in chosen.chunks_mut(TOGETHER) {
            steps.sort_by_key(|step| step.record);
            let mut walk = Walk::new(level.trace, images);
            let more = |step: &Step| self.crash_recovery(level, &mut walk, step);
            if steps.iter().try_for_each(more).is_break() {
                return;
            }
        }
    }

    /// Prepares for crashes of another recording.
    pub(crate) fn begin(&mut self, level: &Level<'_, S::History>) {
        self.sandboxes[level.path.len()].follows = false;
    }

    /// One in so many crash points in the probe after a recovery is tried.
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
            self.crash_decided(level, walk, point, &images, attempt.chosen, &mut pairs)
        };
        self.report.exhaustive_points += u64::from(is_root && exhaustive);
        flow
    }

    /// Builds the images of one point, or a choice of them. Answers also whether it was all of them.
    fn crash_decided(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        point: &CrashPoint,
        images: &ImageConfig,
        chosen: &mut Vec<Step>,
        pairs: &mut Option<PairSearch>,
    ) -> (ControlFlow<()>, bool) {
        let (depth, config) = (level.path.len(), self.campaign.config);
        let plan = Plan::of(walk, images, &mut self.rng);
        let owed = level.owed(point);
        let mut filter = ReadFilter::default();
        let mut choices = Vec::new();
        for number in 0..plan.len() {
            plan.choose(number, walk, &mut self.rng, &mut choices);
            walk.apply(&choices);
            let mut flow = ControlFlow::Continue(());
            if self.seen.insert(fold(walk.hash(), owed.id)) {
                let image = walk.image(point, &choices);
                self.sandboxes[depth].stale.extend_from_slice(image.changed);
                if filter.covers(&image) {
                    self.report.unread += 1;
                } else if self.spend(level).is_break() {
                    flow = ControlFlow::Break(());
                } else {
                    let sim = self.sandboxes[depth].load(&image, config.capacity).clone();
                    let step = || Step::new(point.record(), image.items(), image.choices);
                    let result = self.campaign.recover(&sim, &owed, level.probe_seed(point));
                    if result.is_ok() {
                        filter.add(&image, &sim);
                    }
                    flow = self.judge(level, &sim, result, step, chosen);
                }
                if let Some(pairs) = pairs {
                    pairs.tried(&mut self.report.pairs, |at| (choices[at], choices[at]));
                }
                walk.shown();
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

    /// Lets recovery loose on memory that is undecided, until every image was shown that it can tell apart from
    /// the others, or enough were. Answers also whether it was all of them.
    fn crash_undecided(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        point: &CrashPoint,
        attempt: Attempt<'_>,
        pairs: &mut Option<PairSearch>,
    ) -> (ControlFlow<()>, bool) {
        let (depth, config) = (level.path.len(), self.campaign.config);
        let count = walk.items().len();
        let newest: Vec<Choice> = (0..count).map(|at| walk.whole(at)).collect();
        let oldest = vec![Choice::default(); count];
        let any = (0..count).map(|at| walk.any_choice(at, &mut self.rng)).collect();
        let preferred = attempt.preferred.into_iter().chain([newest, oldest, any]).collect();
        let mut frontier = Frontier::new(preferred);
        let owed = level.owed(point);
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
            let result = self.campaign.recover(&sim, &owed, level.probe_seed(point));
            let outcome = sim.decisions();
            frontier.ran(&next, &outcome.made, &mut self.rng);
            let choices: Vec<Choice> = outcome.left.iter().map(|(_, newest)| *newest).collect();
            let step = || Step::new(point.record(), walk.items(), &choices);
            flow = self.judge(level, &sim, result, step, attempt.chosen);
            if let Some(pairs) = pairs {
                pairs.tried(&mut self.report.pairs, |at| outcome.left[at]);
            }
            if flow.is_break() {
                break;
            }
        }
        let exhaustive = flow.is_continue() && frontier.is_done();
        walk.shown();
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

    /// Takes notice of what came of one image. `chosen` learns of recoveries that are worth a crash.
    fn judge(
        &mut self,
        level: &Level<'_, S::History>,
        sim: &Sim,
        result: Recovery<S>,
        step: impl FnOnce() -> Step,
        chosen: &mut Vec<Step>,
    ) -> ControlFlow<()> {
        let (depth, config) = (level.path.len(), self.campaign.config);
        self.see_actions(depth, sim);
        match result {
            Err(wrong) => {
                let violation = self.violation(level, step(), wrong);
                self.report.failed_images += 1;
                // Several crashes often come down to the same one.
                if !self.report.violations.contains(&violation) {
                    self.report.violations.push(violation);
                }
            }
            Ok(survived) => {
                let sample = depth < config.nested.depth && self.is_sample(sim, survived.recovered);
                if sample || self.passing.is_some() {
                    let step = step();
                    if depth == 0 {
                        self.see_passing(sim, &step);
                    }
                    if sample {
                        chosen.push(step);
                    }
                }
            }
        }
        self.flow()
    }

    /// Counts the named pieces of work of a recovery.
    fn see_actions(&mut self, depth: usize, sim: &Sim) {
        let actions = &mut self.report.actions;
        sim.with_records(|records| {
            for record in records {
                if let Event::Note(Note::Scope(name)) = record.event {
                    actions.entry(name).or_default()[usize::from(depth > 0)] += 1;
                }
            }
        });
    }

    /// Remembers which places this recovery came by.
    fn see_passing(&mut self, sim: &Sim, step: &Step) {
        const ENOUGH: usize = 48;
        let Some(passing) = &mut self.passing else { return };
        sim.with_records(|records| {
            let matters = |record: &&Record| {
                let event = record.event;
                matches!(event, Event::Flush { .. } | Event::Fence | Event::Store { .. })
            };
            let sites: BTreeSet<Site> = records.iter().filter(matters).map(|r| r.site).collect();
            for site in sites {
                let steps = passing.entry(site).or_default();
                if steps.len() < ENOUGH {
                    steps.push(step.clone());
                }
            }
        });
    }

    /// Stops when enough has gone wrong.
    fn flow(&self) -> ControlFlow<()> {
        if self.report.failed_images < self.campaign.config.max_failed {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Whether this recovery is one of the first of its shape, or in the sample of the others.
    fn is_sample(&mut self, sim: &Sim, recovered: usize) -> bool {
        let shape = sim.with_records(|records| shape(&records[..recovered]));
        let count = self.shapes.entry(shape).or_default();
        *count += 1;
        let every = self.campaign.config.nested.every.max(1);
        *count <= FIRST_OF_SHAPE || count.is_multiple_of(every)
    }

    /// Records the recovery from the crash that `step` tells once more, and crashes it.
    fn crash_recovery(
        &mut self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        step: &Step,
    ) -> ControlFlow<()> {
        if self.images >= self.campaign.config.max_images {
            return ControlFlow::Break(());
        }
        self.flow()?;
        let config = self.campaign.config;
        let done = self.campaign.crash_and_record(level, walk, step, |nested| {
            let (per_point, seed) = (config.nested.per_point, fold(config.images.seed, nested.id));
            self.report.nested_traces += 1;
            self.see_sites(nested.trace);
            self.crash(nested, &ImageConfig { per_point, seed, ..config.images });
        });
        // It has succeeded before; only a subject that is not deterministic fails now.
        done.expect("the step came from this recording");
        ControlFlow::Continue(())
    }

    /// Reports what recovery said, for the crash that deviates as little as possible from one that loses nothing,
    /// or from one that loses everything.
    fn violation(&self, level: &Level<'_, S::History>, step: Step, wrong: Wrong) -> Violation {
        let steps = level.path_with(&step);
        if self.quick {
            let (story, replay) = (String::new(), self.campaign.replay_of(steps));
            return Violation { message: wrong.what, oracle: wrong.oracle, story, replay };
        }
        if let Ok(Some(found)) = self.campaign.follow(self.root, &steps) {
            return shrink::least_deviation(self.campaign, self.root, found);
        }
        Violation {
            message: format!(
                "{} (did not happen again: the subject is not deterministic)",
                wrong.what
            ),
            oracle: wrong.oracle,
            story: String::new(),
            replay: self.campaign.replay_of(steps),
        }
    }
}

thread_local! {
    /// Whether a panic of this thread is about to be caught.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the process's panic hook from seeing panics that campaigns catch and report: for programs that run many of
/// them. Others it sees as before.
pub fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !CATCHING.get() && !is_governed() {
                before(panic);
            }
        }));
    });
}

/// Hashes the set of places that the records come from.
fn shape(records: &[Record]) -> u64 {
    let changes = records.iter().filter(|record| !matches!(record.event, Event::Note(_)));
    look_of(changes.map(|record| record.site))
}

/// Runs `code`; a panic in it is an error in words.
fn catch<R>(what: &str, code: impl FnOnce() -> Result<R, Wrong>) -> Result<R, Wrong> {
    CATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(code));
    CATCHING.set(false);
    let result = result.unwrap_or_else(|payload| {
        let said = said(&*payload);
        let oracle = if said.contains("stuck") { "bounded steps" } else { "no panic" };
        Err(Wrong::new(oracle, format!("panicked: {said}")))
    });
    result.map_err(|wrong| Wrong { what: format!("{what}: {}", wrong.what), ..wrong })
}

/// What a panic said.
fn said(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("something that is no text")
}
