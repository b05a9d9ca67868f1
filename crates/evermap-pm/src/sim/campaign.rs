//! Runs a structure, crashes it everywhere, and crashes its recovery too.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::image::{CrashPoint, Image, ImageConfig, Walk, explore, fair_share};
use super::medium::{Mutation, Sim};
use super::report::{Replay, Report, Step, Violation};
use super::rng::{Rng, fold};
use super::trace::{Event, Record, Trace};

/// A structure under test.
///
/// Must be deterministic: the same seed, or the same memory, must lead to the same accesses. A workload
/// with several free-running threads still works, but its violations may not replay.
pub trait Subject {
    /// What the users of the structure asked and were told: usually a
    /// [`MapHistory`](super::oracle::MapHistory).
    type History;

    /// The open structure. It may own a clone of the medium.
    type Live;

    /// Builds the structure on the empty medium `sim` and runs the workload of `seed`, noting the begin and
    /// the end of every operation. Crashes happen from the first access on, unless it calls
    /// [`Sim::checkpoint`] later.
    ///
    /// # Errors
    /// Whatever goes wrong without a crash, in words.
    fn run(&self, sim: &Sim, seed: u64) -> Result<Self::History, String>;

    /// Opens the structure that a crash at `point` left on `sim`, recovers it, and verifies that it holds
    /// what
    /// `history` allows. Notes no operations. Where the crash came before the structure was complete, there
    /// may be nothing to open.
    ///
    /// # Errors
    /// What is wrong, in words. A panic counts as well.
    fn recover(
        &self,
        sim: &Sim,
        history: &Self::History,
        point: &CrashPoint,
    ) -> Result<Self::Live, String>;

    /// Goes on using the recovered structure, as `seed` says: changes it, verifies it. Returns the history
    /// since recovery, which begins with the state that was found then; its operations are numbered from
    /// zero again.
    ///
    /// # Errors
    /// What is wrong, in words. A panic counts as well.
    fn probe(&self, live: Self::Live, seed: u64) -> Result<Self::History, String>;

    /// An operation in words.
    fn op_name(&self, _history: &Self::History, op: u64) -> String {
        format!("operation {op}")
    }
}

/// How much to try.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes that the structure's medium can grow to.
    pub capacity: u64,
    /// Which images to build.
    pub images: ImageConfig,
    /// Crashes of recoveries.
    pub nested: Nested,
    /// Most images verified for one seed. The crash points of the workload share one half of it evenly (all
    /// of it without nested crashes); crashes of recoveries get the rest.
    pub max_images: u64,
    /// Images that failed after which to stop.
    pub max_failed: u64,
    /// Accesses after which a recovery with its probe counts as hanging.
    pub steps: u64,
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
            nested: Nested { depth: 1, per_point: 4, every: 64, probe_points: 16 },
            max_images: 100_000,
            max_failed: 4,
            steps: 1_000_000,
            mutation: None,
        }
    }
}

/// Recoveries of one shape that are all crashed.
const FIRST_OF_SHAPE: u64 = 8;
/// Recoveries that are crashed in one walk through the recording that they follow on.
const TOGETHER: usize = 64;

/// Runs the workloads of `seeds` and verifies the structure after every crash.
///
/// Panics of the subject are caught and reported; the process's panic hook sees them first.
pub fn run<S: Subject>(subject: &S, config: &Config, seeds: Range<u64>) -> Report {
    let mut report = Report::default();
    for seed in seeds {
        if report.failed_images >= config.max_failed {
            break;
        }
        let campaign = &Campaign { subject, config, seed };
        report.seeds += 1;
        match record(subject, config, seed) {
            Ok((trace, history)) => {
                let root = Level::root(seed, &trace, &history);
                Run::new(campaign, &root, &mut report).crash_all();
            }
            Err(message) => {
                let (story, replay) =
                    ("without any crash\n".into(), Replay { seed, steps: vec![] });
                report.failed_images += 1;
                report.violations.push(Violation { message, story, replay });
            }
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
) -> Result<(Trace, S::History), String> {
    let sim = Sim::new(config.capacity).map_err(|error| error.to_string())?;
    sim.mutate(config.mutation);
    let history = catch("the workload", || subject.run(&sim, seed))?;
    Ok((sim.trace(), history))
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
    let seed = replay.seed;
    let campaign = Campaign { subject, config, seed };
    match record(subject, config, seed) {
        Ok((trace, history)) => {
            campaign.follow(&Level::root(seed, &trace, &history), &replay.steps)
        }
        Err(message) => {
            let (story, replay) = ("without any crash\n".into(), replay.clone());
            Ok(Some(Violation { message, story, replay }))
        }
    }
}

/// What a recovery has to achieve.
struct Owed<'l, H> {
    history: &'l H,
    point: &'l CrashPoint,
    /// Equal only for equal obligations.
    id: u64,
}

/// One recording that is crashed: of the workload, or of a recovery and the probe after it.
struct Level<'l, H> {
    trace: &'l Trace,
    history: &'l H,
    id: u64,
    /// Of a recovery: the record at which it was complete, and what it owed until then.
    recovery: Option<(usize, &'l Owed<'l, H>)>,
    probe_seed: u64,
    /// The crashes that led here.
    path: &'l [Step],
}

impl<'l, H> Level<'l, H> {
    fn root(seed: u64, trace: &'l Trace, history: &'l H) -> Self {
        Level { trace, history, id: seed, recovery: None, probe_seed: seed, path: &[] }
    }

    /// The recording of what `sim` did after the crash at `point` that left the image with this hash.
    fn nested<'n>(
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
    fn path_with(&self, step: &Step) -> Vec<Step> {
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
struct Survived<H> {
    /// Records when it was complete; what follows is the probe.
    recovered: usize,
    /// What happened since.
    history: H,
}

/// What came of a recovery.
type Recovery<S> = Result<Survived<<S as Subject>::History>, String>;

/// The workload of one seed and how to recover from its crashes.
struct Campaign<'c, S> {
    subject: &'c S,
    config: &'c Config,
    seed: u64,
}

impl<S: Subject> Campaign<'_, S> {
    /// Recovers what is on `sim` and goes on using it.
    fn recover(&self, sim: &Sim, owed: &Owed<'_, S::History>, probe_seed: u64) -> Recovery<S> {
        sim.mutate(self.config.mutation);
        sim.set_budget(self.config.steps);
        let live = catch("recovery", || self.subject.recover(sim, owed.history, owed.point))?;
        let recovered = sim.recorded();
        let history = catch("after recovery", || self.subject.probe(live, probe_seed))?;
        Ok(Survived { recovered, history })
    }

    fn describe(&self, level: &Level<'_, S::History>, image: &Image<'_>) -> String {
        let name = |op| self.subject.op_name(level.history, op);
        format!("{}{}", level.phase(image.point), image.describe(&name))
    }

    /// Crashes `level` exactly as `step` says, recovers, and shows `then` the image, what was owed, the
    /// medium and the result. `walk` is one through `level`, not past the step.
    ///
    /// An error if `level` has no such crash.
    fn crash_at<R>(
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

    /// Crashes `level` at the first of `steps`, the recovery from it at the second, and so on.
    /// Answers what goes wrong after the last, or an error where the steps do not fit the recordings.
    fn follow(
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
                Err(message) => {
                    let replay = Replay { seed: self.seed, steps: path };
                    Ok(Some(Violation { message, story, replay }))
                }
                Ok(survived) => {
                    let trace = sim.trace();
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
    record: usize,
    /// For each set of granules that a recovery has read: the choices made there, hashed.
    seen: Vec<(Vec<bool>, HashSet<u64>)>,
}

impl ReadFilter {
    fn covers(&mut self, image: &Image<'_>) -> bool {
        if self.record != image.point.record() {
            self.record = image.point.record();
            self.seen.clear();
        }
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
struct Run<'r, S: Subject> {
    campaign: &'r Campaign<'r, S>,
    root: &'r Level<'r, S::History>,
    report: &'r mut Report,
    sandboxes: Vec<Sandbox>,
    /// Images that were verified, with what was owed.
    seen: HashSet<u64>,
    /// Recoveries of each shape.
    shapes: HashMap<u64, u64>,
    /// Images verified.
    images: u64,
}

impl<'r, S: Subject> Run<'r, S> {
    fn new(
        campaign: &'r Campaign<'r, S>,
        root: &'r Level<'r, S::History>,
        report: &'r mut Report,
    ) -> Self {
        let sandboxes = (0..=campaign.config.nested.depth).map(|_| Sandbox::default()).collect();
        let (seen, shapes) = Default::default();
        Run { campaign, root, report, sandboxes, seen, shapes, images: 0 }
    }

    fn crash_all(mut self) {
        let (config, trace) = (self.campaign.config, self.root.trace);
        self.count(trace);
        // Crashes of recoveries get what is left over, at least half.
        let halves = if config.nested.depth > 0 { 2 } else { 1 };
        let per_point = fair_share(trace, &config.images, config.max_images / halves);
        let seed = fold(config.images.seed, self.campaign.seed);
        let images = ImageConfig { per_point, seed, ..config.images };
        self.crash(self.root, &images);
    }

    fn count(&mut self, trace: &Trace) {
        self.report.ops += trace.ops().len() as u64;
        for record in trace.records() {
            match record.event {
                Event::Store { .. } => self.report.stores += 1,
                Event::Flush { .. } => self.report.flushes += 1,
                Event::Fence => self.report.fences += 1,
                _ => {}
            }
        }
        self.see_sites(trace);
    }

    fn see_sites(&mut self, trace: &Trace) {
        self.report.flush_sites.extend(trace.flush_sites());
        self.report.fence_sites.extend(trace.fence_sites());
    }

    /// Crashes one recording at all its points, and then the recoveries that are worth it.
    fn crash(&mut self, level: &Level<'_, S::History>, images: &ImageConfig) {
        let depth = level.path.len();
        self.sandboxes[depth].follows = false;
        let mut seen = std::mem::take(&mut self.seen);
        let (mut filter, mut chosen) = (ReadFilter::default(), Vec::new());
        let owed = |point: &CrashPoint| level.owed(point).id;
        let mut probed = BTreeSet::new();
        let stats = explore(level.trace, images, &mut seen, &owed, &mut |image| {
            if level.is_after_recovery(image.point) {
                probed.insert(image.point.record());
                if probed.len() as u64 > self.campaign.config.nested.probe_points {
                    return ControlFlow::Break(());
                }
            }
            self.visit(level, image, &mut filter, &mut chosen)
        });
        self.seen = seen;
        self.report.repeated += stats.repeated;
        if depth == 0 {
            self.report.points += stats.points;
            self.report.exhaustive_points += stats.exhaustive;
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

    /// Recovers and verifies one image; `chosen` learns of recoveries that are worth a crash.
    fn visit(
        &mut self,
        level: &Level<'_, S::History>,
        image: &Image<'_>,
        filter: &mut ReadFilter,
        chosen: &mut Vec<Step>,
    ) -> ControlFlow<()> {
        let (depth, config) = (level.path.len(), self.campaign.config);
        self.sandboxes[depth].stale.extend_from_slice(image.changed);
        if filter.covers(image) {
            self.report.unread += 1;
            return ControlFlow::Continue(());
        }
        if self.images >= config.max_images {
            self.report.truncated |= depth == 0;
            return ControlFlow::Break(());
        }
        self.images += 1;
        self.report.images += 1;
        self.report.nested_images += u64::from(depth > 0);
        let sim = self.sandboxes[depth].load(image, config.capacity).clone();
        let owed = level.owed(image.point);
        match self.campaign.recover(&sim, &owed, level.probe_seed(image.point)) {
            Err(message) => {
                let violation = self.violation(level, image, message);
                self.report.failed_images += 1;
                // Several crashes often come down to the same one.
                if !self.report.violations.contains(&violation) {
                    self.report.violations.push(violation);
                }
            }
            Ok(survived) => {
                filter.add(image, &sim);
                if depth < config.nested.depth && self.is_sample(&sim, survived.recovered) {
                    chosen.push(Step::of(image));
                }
            }
        }
        self.flow()
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
        let path = level.path_with(step);
        let done = self.campaign.crash_at(level, walk, step, |image, owed, sim, result| {
            // It has succeeded before; only a subject that is not deterministic fails now.
            let Ok(survived) = result else { return };
            let trace = sim.trace();
            let nested = level.nested((&trace, &survived), owed, image.hash, &path);
            let config = self.campaign.config;
            let (per_point, seed) = (config.nested.per_point, fold(config.images.seed, image.hash));
            self.report.nested_traces += 1;
            self.see_sites(&trace);
            self.crash(&nested, &ImageConfig { per_point, seed, ..config.images });
        });
        done.expect("the step came from this recording");
        ControlFlow::Continue(())
    }

    /// Reports what recovery from `image` said, for the crash that loses as little as possible.
    fn violation(
        &self,
        level: &Level<'_, S::History>,
        image: &Image<'_>,
        message: String,
    ) -> Violation {
        const TRIES: usize = 64;
        let seed = self.campaign.seed;
        let mut steps = level.path_with(&Step::of(image));
        let Ok(Some(mut found)) = self.campaign.follow(self.root, &steps) else {
            let message =
                format!("{message} (did not happen again: the subject is not deterministic)");
            let story = self.campaign.describe(level, image);
            return Violation { message, story, replay: Replay { seed, steps } };
        };
        let lossy = image
            .items()
            .iter()
            .enumerate()
            .filter(|(at, _)| image.choices[*at] != image.whole(*at));
        for (at, item) in lossy.take(TRIES) {
            let mut fewer = steps.clone();
            let last = fewer.last_mut().expect("at least this crash");
            last.set(item.offset, image.whole(at));
            if let Ok(Some(violation)) = self.campaign.follow(self.root, &fewer) {
                (found, steps) = (violation, fewer);
            }
        }
        found
    }
}

/// Hashes the set of places that the records come from.
fn shape(records: &[Record]) -> u64 {
    let changes = records.iter().filter(|record| !matches!(record.event, Event::Note(_)));
    let sites =
        changes.map(|record| u64::from(record.site.line()) << 32 | u64::from(record.site.column()));
    sites.collect::<BTreeSet<_>>().into_iter().fold(0, fold)
}

/// Runs `code`; a panic in it is an error in words.
fn catch<R>(what: &str, code: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    let result = catch_unwind(AssertUnwindSafe(code));
    let result = result.unwrap_or_else(|payload| Err(format!("panicked: {}", said(&*payload))));
    result.map_err(|message| format!("{what}: {message}"))
}

/// What a panic said.
fn said(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("something that is no text")
}
