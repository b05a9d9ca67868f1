//! Runs a structure, crashes it everywhere, and crashes its recovery too.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::image::{CrashPoint, Image, ImageConfig, ImageStats, Walk, explore};
use super::medium::{Mutation, Sim};
use super::report::{Replay, Report, Step, Violation};
use super::rng::fold;
use super::trace::{Event, Record, Trace};

/// A structure under test.
///
/// Must be deterministic: the same seed, or the same memory, must lead to the same accesses. A workload
/// with several free-running threads still works, but its violations may not replay.
pub trait Subject {
    /// What the users of the structure asked and were told: usually a [`MapHistory`](super::oracle::MapHistory).
    type History;

    /// The open structure. It may own a clone of the medium.
    type Live;

    /// Builds the structure on the empty medium `sim` and runs the workload of `seed`, noting the begin and the end of every operation.
    /// Crashes happen from the first access on, unless it calls [`Sim::checkpoint`] later.
    ///
    /// # Errors
    /// Whatever goes wrong without a crash, in words.
    fn run(&self, sim: &Sim, seed: u64) -> Result<Self::History, String>;

    /// Opens the structure that a crash at `point` left on `sim`, recovers it, and verifies that it holds what
    /// `history` allows. Notes no operations. Where the crash came before the structure was complete, there may be nothing to open.
    ///
    /// # Errors
    /// What is wrong, in words. A panic counts as well.
    fn recover(
        &self,
        sim: &Sim,
        history: &Self::History,
        point: &CrashPoint,
    ) -> Result<Self::Live, String>;

    /// Goes on using the recovered structure, as `seed` says: changes it, verifies it. Returns the history since
    /// recovery, which begins with the state that was found then; its operations are numbered from zero again.
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
    /// Most images verified for one seed. Crash points share it evenly.
    pub max_images: u64,
    /// Violations after which to stop.
    pub max_violations: usize,
    /// Accesses after which a recovery with its probe counts as hanging.
    pub steps: u64,
    /// A deliberate mistake.
    pub mutation: Option<Mutation>,
}

/// Which recoveries to crash in turn: the first eight of each shape (the call sites of its stores, flushes and
/// fences), and a sample of the rest. At most half of all images are of such crashes.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    /// How many crashes may follow on the first.
    pub depth: usize,
    /// Most images at one point.
    pub per_point: u64,
    /// One in so many recoveries of a known shape.
    pub every: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            capacity: 256 << 10,
            images: ImageConfig::default(),
            nested: Nested { depth: 1, per_point: 4, every: 64 },
            max_images: 100_000,
            max_violations: 4,
            steps: 1_000_000,
            mutation: None,
        }
    }
}

/// Recoveries of one shape that are all crashed.
const FIRST_OF_SHAPE: u64 = 8;

/// Runs the workloads of `seeds` and verifies the structure after every crash.
pub fn run<S: Subject>(subject: &S, config: &Config, seeds: Range<u64>) -> Report {
    let mut report = Report::default();
    for seed in seeds {
        if report.violations.len() >= config.max_violations {
            break;
        }
        let campaign = &Campaign { subject, config, seed };
        report.seeds += 1;
        match record(subject, config, seed) {
            Ok((trace, history)) => {
                let (root, report) = (&Level::root(seed, &trace, &history), &mut report);
                let sandboxes = (0..=config.nested.depth).map(|_| Sandbox::default()).collect();
                let (shapes, images, nested) = Default::default();
                Run { campaign, root, report, sandboxes, shapes, images, nested }.crash_all();
            }
            Err(message) => {
                let (story, replay) =
                    ("without any crash\n".into(), Replay { seed, steps: vec![] });
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
            Some((complete, owed)) if point.record() <= complete => {
                Owed { history: owed.history, point: owed.point, id: owed.id }
            }
            _ => {
                let id = fold(fold(self.id, point.begun()), point.ended());
                Owed { history: self.history, point, id }
            }
        }
    }

    /// The same for all images of one point, so that images which differ only where nothing reads behave alike.
    fn probe_seed(&self, point: &CrashPoint) -> u64 {
        fold(self.probe_seed, point.record() as u64)
    }

    /// The crashes that led here and one more.
    fn path_with(&self, step: Step) -> Vec<Step> {
        self.path.iter().cloned().chain([step]).collect()
    }

    /// What was running when the crash at `point` came, for the story.
    fn phase(&self, point: &CrashPoint) -> &'static str {
        match self.recovery {
            None => "",
            Some((complete, _)) if point.record() <= complete => "while recovering: ",
            Some(_) => "after recovering: ",
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

/// The workload of one seed and how to recover from its crashes.
struct Campaign<'c, S> {
    subject: &'c S,
    config: &'c Config,
    seed: u64,
}

impl<S: Subject> Campaign<'_, S> {
    /// Recovers what is on `sim` and goes on using it.
    fn recover(
        &self,
        sim: &Sim,
        owed: &Owed<'_, S::History>,
        probe_seed: u64,
    ) -> Result<Survived<S::History>, String> {
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

    /// Crashes `level` at the first of `steps`, the recovery from it at the second, and so on.
    /// Answers what goes wrong after the last, or an error where the steps do not fit the recordings.
    fn follow(
        &self,
        level: &Level<'_, S::History>,
        steps: &[Step],
    ) -> Result<Option<Violation>, String> {
        let Some((step, rest)) = steps.split_first() else { return Ok(None) };
        let mut walk = Walk::new(level.trace, &self.config.images);
        let misfit = || format!("the recording has no such crash before record {}", step.record);
        let point = loop {
            let point = walk.next_point().ok_or_else(misfit)?;
            if point.record() == step.record {
                break point;
            }
        };
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
        let story = self.describe(level, &image);
        let path = level.path_with(step.clone());
        match self.recover(&sim, &owed, level.probe_seed(&point)) {
            Err(message) => Ok(Some(Violation {
                message,
                story,
                replay: Replay { seed: self.seed, steps: path },
            })),
            Ok(survived) => {
                let trace = sim.trace();
                let nested = level.nested((&trace, &survived), &owed, image.hash, &path);
                let found = self.follow(&nested, rest)?;
                Ok(found
                    .map(|violation| Violation { story: story + &violation.story, ..violation }))
            }
        }
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
/// A recovery that succeeded without reading some of the undecided granules would do the same whatever they hold.
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
    /// Recoveries of each shape.
    shapes: HashMap<u64, u64>,
    /// Images of crashes of the workload.
    images: u64,
    /// Images of crashes of recoveries.
    nested: u64,
}

impl<S: Subject> Run<'_, S> {
    fn crash_all(mut self) {
        let (config, trace) = (self.campaign.config, self.root.trace);
        self.count(trace);
        let seed = fold(config.images.seed, self.campaign.seed);
        let per_point = fair_share(trace, &config.images, self.budget(0));
        let images = ImageConfig { per_point, seed, ..config.images };
        let stats = self.crash(self.root, &images, &mut HashSet::new());
        self.report.points += stats.points;
        self.report.exhaustive_points += stats.exhaustive;
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
        self.report.flush_sites.extend(trace.flush_sites());
        self.report.fence_sites.extend(trace.fence_sites());
    }

    /// Images that may be verified of the workload's crashes (depth 0) or of later ones.
    fn budget(&self, depth: usize) -> u64 {
        let Config { max_images, nested, .. } = self.campaign.config;
        let later = if nested.depth > 0 { max_images / 2 } else { 0 };
        if depth == 0 { max_images - later } else { later }
    }

    /// Counts an image against the budget, if there is any left.
    fn spend(&mut self, depth: usize) -> bool {
        let budget = self.budget(depth);
        let spent = if depth == 0 { &mut self.images } else { &mut self.nested };
        if *spent >= budget {
            self.report.truncated |= depth == 0;
            return false;
        }
        *spent += 1;
        self.report.images += 1;
        self.report.nested_images += u64::from(depth > 0);
        true
    }

    /// Crashes one recording at all its points.
    fn crash(
        &mut self,
        level: &Level<'_, S::History>,
        images: &ImageConfig,
        seen: &mut HashSet<u64>,
    ) -> ImageStats {
        self.sandboxes[level.path.len()].follows = false;
        let mut filter = ReadFilter::default();
        let owed = |point: &CrashPoint| level.owed(point).id;
        let stats = explore(level.trace, images, seen, &owed, &mut |seen, image| {
            self.visit(level, image, &mut filter, seen)
        });
        self.report.repeated += stats.repeated;
        stats
    }

    /// Recovers and verifies one image, and crashes that recovery if it is worth it.
    fn visit(
        &mut self,
        level: &Level<'_, S::History>,
        image: &Image<'_>,
        filter: &mut ReadFilter,
        seen: &mut HashSet<u64>,
    ) -> ControlFlow<()> {
        let depth = level.path.len();
        self.sandboxes[depth].stale.extend_from_slice(image.changed);
        if filter.covers(image) {
            self.report.unread += 1;
            return ControlFlow::Continue(());
        }
        if !self.spend(depth) {
            return ControlFlow::Break(());
        }
        let sim = self.sandboxes[depth].load(image, self.campaign.config.capacity).clone();
        let owed = level.owed(image.point);
        match self.campaign.recover(&sim, &owed, level.probe_seed(image.point)) {
            Err(message) => {
                let violation = self.violation(level, image, message);
                self.report.violations.push(violation);
            }
            Ok(survived) => {
                filter.add(image, &sim);
                if self.worth_crashing(depth, &sim, survived.recovered) {
                    self.crash_recovery(level, image, &owed, (&sim, &survived), seen);
                }
            }
        }
        if self.report.violations.len() < self.campaign.config.max_violations {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Whether this recovery is one of the first of its shape, or in the sample of the others.
    fn worth_crashing(&mut self, depth: usize, sim: &Sim, recovered: usize) -> bool {
        let Nested { depth: deepest, every, .. } = self.campaign.config.nested;
        if depth >= deepest || self.nested >= self.budget(depth + 1) {
            return false;
        }
        let shape = sim.with_records(|records| shape(&records[..recovered]));
        let count = self.shapes.entry(shape).or_default();
        *count += 1;
        *count <= FIRST_OF_SHAPE || count.is_multiple_of(every.max(1))
    }

    fn crash_recovery(
        &mut self,
        level: &Level<'_, S::History>,
        image: &Image<'_>,
        owed: &Owed<'_, S::History>,
        (sim, survived): (&Sim, &Survived<S::History>),
        seen: &mut HashSet<u64>,
    ) {
        let config = self.campaign.config;
        let trace = sim.trace();
        let path = level.path_with(Step::of(image));
        let nested = level.nested((&trace, survived), owed, image.hash, &path);
        let (per_point, seed) = (config.nested.per_point, fold(config.images.seed, image.hash));
        let images = ImageConfig { per_point, seed, ..config.images };
        self.report.nested_traces += 1;
        self.report.flush_sites.extend(trace.flush_sites());
        self.report.fence_sites.extend(trace.fence_sites());
        self.crash(&nested, &images, seen);
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
        let mut steps = level.path_with(Step::of(image));
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

/// Hashes where the records come from.
fn shape(records: &[Record]) -> u64 {
    let changes = records.iter().filter(|record| !matches!(record.event, Event::Note(_)));
    changes.fold(0, |hash, record| {
        let (line, column) = (record.site.line(), record.site.column());
        fold(hash, u64::from(line) << 32 | u64::from(column))
    })
}

/// The most images at one point with which all points together have no more than `budget`.
fn fair_share(trace: &Trace, config: &ImageConfig, budget: u64) -> u64 {
    let mut walk = Walk::new(trace, config);
    let mut wanted = Vec::new();
    while walk.next_point().is_some() {
        wanted.push(walk.possible().min(config.per_point));
    }
    wanted.sort_unstable();
    let mut left = budget;
    for (at, &images) in wanted.iter().enumerate() {
        let share = left / (wanted.len() - at) as u64;
        if images > share {
            return share.max(2);
        }
        left -= images;
    }
    config.per_point
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
