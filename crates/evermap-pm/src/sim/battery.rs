//! All campaigns on one structure, regardless of their types: to run them, their mutants and their
//! replays by name.

use std::collections::BTreeSet;
use std::ops::Range;

use super::campaign::{self, Config};
use super::durable::Model;
use super::mutants::{self, Fate, MutantSweep};
use super::mutation::Mutation;
use super::replay::Replay;
use super::report::{Report, Violation};
use super::subject::Subject;

/// All campaigns on one structure.
pub struct Battery {
    /// The structure's name.
    pub name: String,
    /// Its campaigns.
    pub trials: Vec<Box<dyn Trial>>,
    /// The names of its planted mistakes: see [`Medium::mutant`](crate::Medium::mutant).
    pub planted: &'static [&'static str],
}

/// One campaign on a structure.
pub trait Trial: Send + Sync {
    /// Returns the name, which is unique in its battery.
    fn name(&self) -> &str;

    /// Returns the configuration.
    fn config(&self) -> &Config;

    /// Returns the number of seeds that are worth one seed of another campaign.
    fn seeds_for_one(&self) -> u64;

    /// Crashes the workloads of these seeds, counted from the first seed of the campaign.
    fn run(&self, seeds: Range<u64>) -> Report;

    /// Prepares for mutants, with `seeds` seeds.
    ///
    /// # Errors
    ///
    /// The report, if something fails without any mutation.
    fn prepare(&self, seeds: u64) -> Result<Box<dyn Prepared + '_>, Box<Report>>;

    /// Tries a planted mistake with `seeds` seeds.
    fn fate_of_planted(&self, name: &'static str, seeds: u64) -> Fate;

    /// Replays a crash. See [`campaign::replay`].
    ///
    /// # Errors
    ///
    /// If the program no longer does what it did when the replay was written.
    fn replay(&self, replay: &Replay) -> Result<Option<Violation>, String>;

    /// Crashes the workload of a replay everywhere.
    ///
    /// # Errors
    ///
    /// If it contains text that is not a call.
    fn run_replayed(&self, replay: &Replay) -> Result<Report, String>;
}

/// A campaign that is prepared for mutants.
pub trait Prepared: Send + Sync {
    /// Returns the report of crashing the correct program.
    fn report(&self) -> &Report;

    /// Returns every possible mutation.
    fn mutations(&self) -> BTreeSet<Mutation>;

    /// Tries a mutation.
    fn fate(&self, mutation: Mutation) -> Fate;
}

/// A campaign on a subject.
pub struct SubjectTrial<S> {
    name: &'static str,
    subject: S,
    config: Config,
    first_seed: u64,
    /// If threads run in parallel: the number of seeds that are worth one seed of another campaign.
    parallel: Option<u64>,
}

impl<S: Subject> SubjectTrial<S> {
    /// Creates a campaign whose seeds start with `first_seed`.
    pub fn new(name: &'static str, subject: S, config: Config, first_seed: u64) -> Self {
        SubjectTrial { name, subject, config, first_seed, parallel: None }
    }

    /// Marks the subject as one whose threads run in parallel, where `seeds_for_one` seeds are
    /// worth one seed of another campaign. Mutants then run again, under schedules made for them.
    pub fn in_parallel(self, seeds_for_one: u64) -> Self {
        SubjectTrial { parallel: Some(seeds_for_one), ..self }
    }

    fn seeds(&self, count: u64) -> Range<u64> {
        self.first_seed..self.first_seed + count
    }
}

impl<S> Trial for SubjectTrial<S>
where
    S: Subject<Call: Sync, History: Send + Sync> + Send + Sync,
{
    fn name(&self) -> &str {
        self.name
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn seeds_for_one(&self) -> u64 {
        self.parallel.unwrap_or(1)
    }

    fn run(&self, seeds: Range<u64>) -> Report {
        let seeds = self.first_seed + seeds.start..self.first_seed + seeds.end;
        campaign::run(&self.subject, &self.config, seeds)
    }

    fn prepare(&self, seeds: u64) -> Result<Box<dyn Prepared + '_>, Box<Report>> {
        let sweep = MutantSweep::new(&self.subject, &self.config, self.seeds(seeds))?;
        Ok(Box::new(Ready { on: self, sweep, seeds: self.seeds(seeds) }))
    }

    fn fate_of_planted(&self, name: &'static str, seeds: u64) -> Fate {
        mutants::fate_of_planted(&self.subject, &self.config, name, self.seeds(seeds))
    }

    fn replay(&self, replay: &Replay) -> Result<Option<Violation>, String> {
        campaign::replay(&self.subject, &self.config, replay)
    }

    fn run_replayed(&self, replay: &Replay) -> Result<Report, String> {
        campaign::run_replayed(&self.subject, &self.config, replay)
    }
}

struct Ready<'t, S: Subject> {
    on: &'t SubjectTrial<S>,
    sweep: MutantSweep<'t, S>,
    seeds: Range<u64>,
}

impl<S> Prepared for Ready<'_, S>
where
    S: Subject<History: Send + Sync> + Send + Sync,
{
    fn report(&self) -> &Report {
        self.sweep.report()
    }

    fn mutations(&self) -> BTreeSet<Mutation> {
        self.sweep.mutations()
    }

    fn fate(&self, mutation: Mutation) -> Fate {
        match self.sweep.fate(mutation) {
            Fate::Survived(images) if self.on.parallel.is_some() => {
                let SubjectTrial { subject, config, .. } = self.on;
                let again =
                    mutants::fate_in_parallel(subject, config, mutation, self.seeds.clone());
                if again == Fate::NoChange { Fate::Survived(images) } else { again }
            }
            fate => fate,
        }
    }
}

/// Campaigns of one battery that are prepared for mutants.
pub struct Mutants<'b> {
    ready: Vec<(&'b str, Box<dyn Prepared + 'b>)>,
}

impl Mutants<'_> {
    /// Returns every possible mutation of any of the campaigns.
    pub fn mutations(&self) -> BTreeSet<Mutation> {
        self.ready.iter().flat_map(|(_, ready)| ready.mutations()).collect()
    }

    /// Tries a mutation. Also returns the name of the campaign that detects it.
    pub fn fate(&self, mutation: Mutation) -> (Fate, Option<&str>) {
        let mut fate = Fate::NoChange;
        for (name, ready) in &self.ready {
            match (ready.fate(mutation), &mut fate) {
                (Fate::NoChange, _) => {}
                (Fate::Survived(more), Fate::Survived(images)) => *images += more,
                (Fate::Survived(images), fate) => *fate = Fate::Survived(images),
                (killed, _) => return (killed, Some(name)),
            }
        }
        (fate, None)
    }
}

impl Battery {
    /// Prepares all campaigns to which mutations apply, each with `seeds` times its number of
    /// seeds.
    ///
    /// # Errors
    ///
    /// The report, if something fails without any mutation.
    pub fn mutants(&self, seeds: u64) -> Result<Mutants<'_>, Box<Report>> {
        let concerned = self.trials.iter().filter(|trial| {
            let model = trial.config().images.model;
            model.of_recoveries() == Model::Adr
        });
        let ready = concerned.map(|trial| {
            let seeds = seeds * trial.seeds_for_one();
            trial.prepare(seeds).map(|ready| (trial.name(), ready))
        });
        Ok(Mutants { ready: ready.collect::<Result<_, Box<Report>>>()? })
    }

    /// Tries a planted mistake. Also returns the name of the campaign that detects it.
    pub fn fate_of_planted(&self, name: &'static str, seeds: u64) -> (Fate, Option<&str>) {
        let mut images = 0;
        for trial in &self.trials {
            match trial.fate_of_planted(name, seeds * trial.seeds_for_one()) {
                Fate::Survived(more) => images += more,
                fate => return (fate, Some(trial.name())),
            }
        }
        (Fate::Survived(images), None)
    }

    /// Returns the full name of a campaign, as used in files.
    pub fn name_of(&self, trial: &dyn Trial) -> String {
        format!("{}/{}", self.name, trial.name())
    }

    /// Runs one of the campaigns, so that violations contain its name.
    pub fn run(&self, trial: &dyn Trial, seeds: Range<u64>) -> Report {
        let mut report = trial.run(seeds);
        for violation in &mut report.violations {
            violation.replay.subject = Some(self.name_of(trial));
        }
        report
    }

    /// Replays the text of a file: first exactly, if the program still does the same, and then by
    /// crashing its workload everywhere.
    ///
    /// # Errors
    ///
    /// The failure, or a message that the text is not a replay of this battery.
    pub fn replay(&self, text: &str) -> Result<(), String> {
        let replay: Replay = text.parse()?;
        let name = replay.subject.as_deref().unwrap_or_default();
        let trial = self.trials.iter().find(|trial| self.name_of(&***trial) == name);
        let Some(trial) = trial else {
            let known: Vec<&str> = self.trials.iter().map(|trial| trial.name()).collect();
            let known = known.join(", ");
            return Err(format!("unknown subject `{name}`; {} has: {known}", self.name));
        };
        // A repaired program seldom has the same crash.
        if let Ok(Some(violation)) = trial.replay(&replay) {
            return Err(violation.to_string());
        }
        let report = trial.run_replayed(&replay)?;
        if report.is_clean() { Ok(()) } else { Err(report.to_string()) }
    }
}
