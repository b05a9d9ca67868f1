//! What is measured, and how.

use std::path::PathBuf;

use evermap_pm::medium::{Pages, Speed};

use super::quiet::Quiet;
use super::step::Step;
use crate::LabError;
use crate::subject::facts::MediumKind;
use crate::subject::setup::Setup;
use crate::workload::Phase;
use crate::workload::bytes::KeyValueLengths;
use crate::workload::mix::Blend;
use crate::workload::part::Part;

/// The largest number of threads of an experiment.
const THREADS_MAX: usize = 256;
/// The name of the step before [`Plan::Parts`].
pub const LOAD: &str = "load";
/// The step of [`Plan::Orders`] that looks up all keys in the order of their insertion.
pub const GET_IN_ORDER: &str = "same order";
/// The step after [`GET_IN_ORDER`], which does the same.
pub const GET_AGAIN: &str = "again";
/// The step of [`Plan::Orders`] that looks up all keys in an order of its own.
pub const GET_IN_ANOTHER: &str = "other order";
/// The step of [`Plan::Orders`] with the mix.
pub const HALF_PUTS: &str = "half puts";

/// What is done to each table after its keys were inserted.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// These phases, in the order of [`Phase::ALL`]. `Insert` always runs, and is reported if it is
    /// one of them.
    Phases(Vec<Phase>),
    /// A mix of operations. The insertion before it is not reported.
    Blend(Blend),
    /// Insertion, which is reported; lookups of all keys in the order of their insertion, in that
    /// order again, and in another; lookups of absent keys; and a mix of operations.
    Orders(Blend),
    /// These parts in this order, on a table that all threads have filled in batches, which is
    /// reported as [`LOAD`]. Scans are skipped for tables that keep no order.
    Parts(Vec<Part>),
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the experiment in records.
    pub experiment: &'static str,
    /// The names of tables; see [`subjects`](crate::registry::subjects).
    pub indexes: Vec<String>,
    /// The number of keys that are inserted. Every phase has as many operations.
    pub keys: u64,
    /// The number of threads that share the operations.
    pub threads: usize,
    /// The seed of all keys and orders.
    pub seed: u64,
    /// Where persistent indexes are stored.
    pub medium: MediumKind,
    /// The directory for their files; see [`Setup::new`].
    pub location: Option<PathBuf>,
    /// The requested page size. Files have the pages that their file system provides.
    pub pages: Pages,
    /// The speed of the emulated medium.
    pub speed: Speed,
    /// The number of times that every table is measured. Fewer than five cannot give an interval of
    /// 90 %; none is enough for counts.
    pub rounds: usize,
    /// What is done to the tables.
    pub plan: Plan,
    /// The number of keys in one call of `get_many`.
    pub batch: usize,
    /// Lengths of keys and values; `None` for keys and values of one word.
    pub lengths: Option<KeyValueLengths>,
    /// Whether tables start at their final size, if they can.
    pub presize: bool,
    /// Whether anonymous memory has its pages before a table uses them.
    pub populate: bool,
    /// How much other programs may use the machine.
    pub quiet: Quiet,
    /// Whether to measure latencies.
    pub latency: bool,
    /// Whether to count flushes, fences and lines, if the medium can.
    pub counts: bool,
    /// Whether to measure the limits of the machine in the same rounds.
    pub limits: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            experiment: "micro",
            indexes: Vec::new(),
            keys: 10_000_000,
            threads: 1,
            seed: 1,
            medium: MediumKind::Dram,
            location: None,
            pages: Pages::Base,
            speed: Speed::CUSTOMARY,
            rounds: 5,
            plan: Plan::Phases(Phase::ALL.to_vec()),
            batch: 32,
            lengths: None,
            presize: false,
            populate: false,
            quiet: Quiet::default(),
            latency: true,
            counts: true,
            limits: true,
        }
    }
}

impl Config {
    /// Checks the settings, and returns what a factory needs.
    pub(crate) fn check(&self, subjects: usize) -> Result<Setup, LabError> {
        let steps = match &self.plan {
            Plan::Phases(phases) => phases.len() as u64,
            Plan::Blend(blend) | Plan::Orders(blend) => blend.ops,
            Plan::Parts(parts) => parts.iter().map(|part| part.ops).min().unwrap_or(0),
        };
        let at_least_one = [
            ("index", subjects as u64),
            ("round", self.rounds as u64 + u64::from(self.counts)),
            ("phase", steps),
            ("thread", self.threads as u64),
            ("key in a batch", self.batch as u64),
        ];
        for (what, count) in at_least_one {
            if count == 0 {
                return Err(LabError::Config(format!("there must be at least one {what}")));
            }
        }
        if self.threads > THREADS_MAX {
            return Err(LabError::Config(format!("at most {THREADS_MAX} threads are supported")));
        }
        if let Plan::Blend(blend) | Plan::Orders(blend) = &self.plan
            && !(0.0..=10.0).contains(&blend.theta)
        {
            return Err(LabError::Config(format!(
                "a skew of {} is impossible: it must be between 0 (uniform) and 10",
                blend.theta
            )));
        }
        if let Plan::Parts(parts) = &self.plan {
            let most = Part::most_ops(self.keys);
            let threads = 1..=self.threads;
            if let Some(part) = parts.iter().find(|part| part.after + part.ops > most) {
                return Err(LabError::Config(format!(
                    "{} keys are too few for this number of operations: at most {most} of a \
                     kind ({})",
                    self.keys, part.name
                )));
            }
            if !parts.iter().all(|part| threads.contains(&part.threads)) {
                return Err(LabError::Config("a part has more threads than there are".into()));
            }
        }
        let location = self.location.clone();
        let setup = Setup::new(self.medium, location, self.pages, self.keys, self.lengths)?;
        let Config { presize, populate, speed, .. } = *self;
        Ok(Setup { presize, populate, speed, ..setup })
    }

    /// Returns the steps of the plan.
    pub(super) fn steps(&self) -> Vec<Step> {
        let of = |phase: Phase, reported| Step {
            name: phase.name(),
            phase,
            blend: None,
            part: None,
            in_order: false,
            reported,
            bulk: phase == Phase::Insert && !reported,
        };
        match &self.plan {
            Plan::Phases(phases) => Phase::ALL
                .into_iter()
                .map(|phase| of(phase, phases.contains(&phase)))
                .filter(|step| step.reported || step.phase == Phase::Insert)
                .collect(),
            Plan::Blend(blend) => {
                let mix =
                    Step { name: blend.mix.name, blend: Some(*blend), ..of(Phase::Mixed, true) };
                vec![of(Phase::Insert, false), mix]
            }
            Plan::Orders(blend) => {
                let get = of(Phase::Positive, true);
                vec![
                    of(Phase::Insert, true),
                    Step { name: GET_IN_ORDER, in_order: true, ..get },
                    Step { name: GET_AGAIN, in_order: true, ..get },
                    Step { name: GET_IN_ANOTHER, ..get },
                    of(Phase::Negative, true),
                    Step { name: HALF_PUTS, blend: Some(*blend), ..of(Phase::Mixed, true) },
                ]
            }
            Plan::Parts(parts) => {
                let load = Step { name: LOAD, bulk: true, ..of(Phase::Insert, true) };
                let parts = parts.iter().map(|&part| Step {
                    name: part.name,
                    part: Some(part),
                    ..of(part.phase(), true)
                });
                [load].into_iter().chain(parts).collect()
            }
        }
    }
}
