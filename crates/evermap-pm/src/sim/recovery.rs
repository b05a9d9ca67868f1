//! Running one workload, and recovering from one of its crashes or of the crashes of recoveries.

use super::config::Config;
use super::durable::left_in_caches;
use super::image::{CrashPoint, Image, ImageConfig, Walk};
use super::medium::Sim;
use super::mutation::Mutation;
use super::panics::catch;
use super::replay::{Replay, Step};
use super::report::Violation;
use super::rng::fold;
use super::schedule::Schedule;
use super::subject::{Failure, Subject};
use super::trace::Trace;

/// Returns the calls of a replay.
pub(crate) fn calls_of<S: Subject>(subject: &S, replay: &Replay) -> Result<Vec<S::Call>, String> {
    let read = |call: &String| call.parse().map_err(|_| format!("not a call: {call:?}"));
    match &replay.calls {
        Some(calls) => calls.iter().map(read).collect(),
        None => Ok(subject.workload(replay.seed)),
    }
}

/// A workload that was recorded.
pub(crate) struct Recorded<H> {
    pub(crate) trace: Trace,
    pub(crate) history: H,
    /// A number that distinguishes orders of threads.
    pub(crate) order: u64,
}

impl<H> Recorded<H> {
    pub(crate) fn root(&self, seed: u64) -> Level<'_, H> {
        Level::root(seed, &self.trace, &self.history)
    }
}

/// What a recovery has to achieve.
pub(crate) struct Requirements<'l, H> {
    history: &'l H,
    point: &'l CrashPoint,
    /// Equal only for equal requirements.
    pub(crate) id: u64,
}

/// One recording that is crashed: of the workload, or of a recovery and the probe after it.
pub(crate) struct Level<'l, H> {
    pub(crate) trace: &'l Trace,
    history: &'l H,
    pub(crate) id: u64,
    /// For a recovery: the record at which it was complete, and its requirements until then.
    pub(crate) recovery: Option<(usize, &'l Requirements<'l, H>)>,
    probe_seed: u64,
    /// The crashes before this recording.
    pub(crate) path: &'l [Step],
}

impl<'l, H> Level<'l, H> {
    pub(crate) fn root(seed: u64, trace: &'l Trace, history: &'l H) -> Self {
        Level { trace, history, id: seed, recovery: None, probe_seed: seed, path: &[] }
    }

    /// Returns the recording of what was done after the crash that left the image with this hash.
    pub(crate) fn nested<'n>(
        &'n self,
        later: &'n Aftermath<H>,
        requirements: &'n Requirements<'n, H>,
        image: u64,
        path: &'n [Step],
    ) -> Level<'n, H> {
        Level {
            trace: &later.trace,
            history: &later.history,
            id: fold(image, requirements.id),
            recovery: Some((later.recovered, requirements)),
            probe_seed: self.probe_seed(requirements.point),
            path,
        }
    }

    /// Returns this recording with another probe seed.
    pub(crate) fn salted(&self, salt: u64) -> Self {
        Level { probe_seed: self.probe_seed ^ salt, ..*self }
    }

    /// Returns this level with another recording.
    pub(crate) fn with<'n>(&'n self, trace: &'n Trace) -> Level<'n, H> {
        Level { trace, ..*self }
    }

    /// Returns the requirements on a recovery from a crash at `point`. A crash before recovery was
    /// complete does not change the requirements; a later one must respect what the recovered
    /// structure has shown, and what it did afterwards.
    pub(crate) fn requirements<'p>(&'p self, point: &'p CrashPoint) -> Requirements<'p, H> {
        match self.recovery {
            Some((_, requirements)) if !self.is_after_recovery(point) => Requirements {
                history: requirements.history,
                point: requirements.point,
                id: requirements.id,
            },
            _ => {
                let id = fold(self.id, point.requirements());
                Requirements { history: self.history, point, id }
            }
        }
    }

    /// Returns the probe seed. It is the same for all images of one point, so that images which
    /// differ only in parts that are not read behave alike.
    pub(crate) fn probe_seed(&self, point: &CrashPoint) -> u64 {
        fold(self.probe_seed, point.record() as u64)
    }

    /// Returns the configuration of the images that its crashes leave.
    pub(crate) fn images(&self, config: &Config) -> ImageConfig {
        let ImageConfig { model, .. } = config.images;
        let model = if self.path.is_empty() { model } else { model.of_recoveries() };
        ImageConfig { model, ..config.images }
    }

    /// Returns the crashes before this recording and one more.
    pub(crate) fn path_with(&self, step: &Step) -> Vec<Step> {
        self.path.iter().chain([step]).cloned().collect()
    }

    /// Returns `true` if a crash at `point` hits the probe after a recovery.
    pub(crate) fn is_after_recovery(&self, point: &CrashPoint) -> bool {
        self.recovery.is_some_and(|(complete, _)| point.record() > complete)
    }

    /// Returns what was running at the crash at `point`, for the story.
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
    /// Number of records when it was complete. The probe follows.
    pub(crate) recovered: usize,
    /// The history since recovery.
    history: H,
}

/// What was done after a crash, to be crashed again.
pub(crate) struct Aftermath<H> {
    trace: Trace,
    /// Number of records when recovery was complete.
    recovered: usize,
    history: H,
}

/// The result of a recovery.
pub(crate) type Recovery<S> = Result<Survived<<S as Subject>::History>, Failure>;

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
    pub(crate) fn record(&self, calls: &[S::Call]) -> Result<Recorded<S::History>, Failure> {
        let (sim, history) = self.run(calls, None)?;
        Ok(Recorded { trace: self.trace_of(&sim), history, order: sim.order() })
    }

    /// Runs a workload with threads paused where `mutation` has an effect. The recording does not
    /// contain the mutation yet.
    pub(crate) fn record_expecting(
        &self,
        calls: &[S::Call],
        mutation: Mutation,
    ) -> Result<Recorded<S::History>, Failure> {
        let (sim, history) = self.run(calls, Some(mutation))?;
        Ok(Recorded { trace: sim.trace(), history, order: sim.order() })
    }

    fn run(
        &self,
        calls: &[S::Call],
        expected: Option<Mutation>,
    ) -> Result<(Sim, S::History), Failure> {
        let sim = Sim::new(self.config.capacity).map_err(|error| error.to_string())?;
        sim.mutate(self.config.mutation);
        expected.into_iter().for_each(|mutation| sim.expect(mutation));
        sim.set_schedule(self.schedule(self.seed));
        let history = catch("the workload", || self.subject.run(&sim, calls))?;
        Ok((sim, history))
    }

    /// Returns the recording of `sim`, with mutations applied.
    fn trace_of(&self, sim: &Sim) -> Trace {
        let trace = sim.trace();
        match self.config.mutation {
            Some(mutation) => mutation.apply(&trace),
            None => trace,
        }
    }

    /// Returns what was done on `sim` after the crash of `level` that left `image`.
    fn later(
        &self,
        level: &Level<'_, S::History>,
        image: &Image<'_>,
        sim: &Sim,
        survived: Survived<S::History>,
    ) -> Aftermath<S::History> {
        let Survived { recovered, history } = survived;
        let trace = self.trace_of(sim);
        let model = level.images(self.config).model;
        if model == model.of_recoveries() {
            return Aftermath { trace, recovered, history };
        }
        let left = left_in_caches(level.trace, image.point.record(), image.bytes);
        let recovered = recovered + left.len();
        Aftermath { trace: trace.after_stores(left), recovered, history }
    }

    /// Recovers the structure on `sim` and continues to use it.
    pub(crate) fn recover(
        &self,
        sim: &Sim,
        requirements: &Requirements<'_, S::History>,
        probe_seed: u64,
    ) -> Recovery<S> {
        sim.mutate(self.config.mutation);
        sim.set_budget(self.config.steps);
        sim.set_schedule(self.schedule(probe_seed));
        let live = catch("recovery", || {
            self.subject.recover(sim, requirements.history, requirements.point)
        })?;
        let recovered = sim.recorded();
        let history = catch("after recovery", || self.subject.probe(live, probe_seed))?;
        Ok(Survived { recovered, history })
    }

    fn describe(&self, level: &Level<'_, S::History>, image: &Image<'_>) -> String {
        let name = |op| self.subject.op_name(level.history, op);
        format!("{}{}", level.phase(image.point), image.describe(&name))
    }

    pub(crate) fn replay_of(&self, steps: Vec<Step>) -> Replay {
        let ImageConfig { model, growth, .. } = self.config.images;
        let (subject, schedule, calls) = (None, None, None);
        Replay { subject, model, growth, schedule, seed: self.seed, calls, steps }
    }

    /// Returns the violation for a failure of the workload itself.
    pub(crate) fn uncrashed(&self, failure: Failure) -> Violation {
        let (story, replay) = ("without any crash\n".into(), self.replay_of(Vec::new()));
        Violation { message: failure.what, oracle: failure.oracle, story, replay }
    }

    /// Runs a workload and crashes it as `replay` says.
    pub(crate) fn replay(
        &self,
        calls: &[S::Call],
        replay: &Replay,
    ) -> Result<Option<Violation>, String> {
        match self.record(calls) {
            Ok(recorded) => self.follow(&recorded.root(self.seed), &replay.steps),
            Err(failure) => Ok(Some(self.uncrashed(failure))),
        }
    }

    /// Crashes `level` exactly as `step` says, recovers, and calls `then` with the image, the
    /// requirements, the medium and the result. `walk` is one through `level` that has not passed
    /// the step.
    ///
    /// # Errors
    ///
    /// If `level` has no such crash.
    pub(crate) fn crash_at<R>(
        &self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        step: &Step,
        then: impl FnOnce(&Image<'_>, &Requirements<'_, S::History>, &Sim, Recovery<S>) -> R,
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
        let requirements = level.requirements(&point);
        let result = self.recover(&sim, &requirements, level.probe_seed(&point));
        let result = then(&image, &requirements, &sim, result);
        walk.revert();
        Ok(result)
    }

    /// Crashes `level` at `step` and calls `then` with the recording of the recovery, if that
    /// succeeds.
    pub(crate) fn crash_and_record<R>(
        &self,
        level: &Level<'_, S::History>,
        walk: &mut Walk<'_>,
        step: &Step,
        then: impl FnOnce(&Level<'_, S::History>) -> R,
    ) -> Result<Option<R>, String> {
        let path = level.path_with(step);
        self.crash_at(level, walk, step, |image, requirements, sim, result| {
            let later = self.later(level, image, sim, result.ok()?);
            Some(then(&level.nested(&later, requirements, image.hash, &path)))
        })
    }

    /// Crashes `level` at the first of `steps`, the recovery from it at the second, and so on.
    /// Returns the violation after the last one, if there is one.
    ///
    /// # Errors
    ///
    /// If the steps do not fit the recordings.
    pub(crate) fn follow(
        &self,
        level: &Level<'_, S::History>,
        steps: &[Step],
    ) -> Result<Option<Violation>, String> {
        let Some((step, rest)) = steps.split_first() else { return Ok(None) };
        let path = level.path_with(step);
        let mut walk = Walk::new(level.trace, &level.images(self.config));
        self.crash_at(level, &mut walk, step, |image, requirements, sim, result| {
            let story = self.describe(level, image);
            match result {
                Err(Failure { oracle, what }) => {
                    let replay = self.replay_of(path);
                    Ok(Some(Violation { message: what, oracle, story, replay }))
                }
                Ok(survived) => {
                    let later = self.later(level, image, sim, survived);
                    let nested = level.nested(&later, requirements, image.hash, &path);
                    let found = self.follow(&nested, rest)?;
                    Ok(found.map(|later| Violation { story: story + &later.story, ..later }))
                }
            }
        })?
    }
}
