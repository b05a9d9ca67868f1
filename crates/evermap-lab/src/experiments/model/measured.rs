//! What the model is made from: time alone on emulated memory, and blocks counted.

use evermap_pm::medium::Speed;

use super::cost::Cost;
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::report::Output;
use crate::subject::MediumKind;
use crate::workload::{Blend, Mix, Phase, Zipf};

/// The hash tables, with and without what Dash adds.
const TABLES: [&str; 7] = [
    "dash-eh",
    "dash-lh",
    "cceh-paper",
    "level-paper",
    "dash-eh-no-fingerprints",
    "dash-eh-no-metadata",
    "dash-eh-locked-reads",
];
/// Level hashing, whose resize excludes all other threads.
const BLOCKING: &str = "level-paper";
/// The trees of RECIPE's first figure.
const TREES: [&str; 3] = ["p-hot", "fast-fair", "fast-fair-paper"];
/// Its mixes.
const MIXES: [&str; 4] = ["recipe-a", "recipe-b", "recipe-c", "recipe-e"];
/// Phases whose costs the model needs.
const PHASES: [Phase; 4] = [Phase::Insert, Phase::Positive, Phase::Negative, Phase::Delete];

/// Everything that was measured and counted.
pub(super) struct Measured {
    drives: Vec<DriveReport>,
    /// Nanoseconds of an insertion into the blocking table in which it is resized.
    resizing_ns: Option<f64>,
}

impl Measured {
    /// Measures with one thread. `base` says with how many keys and rounds.
    pub(super) fn take(base: &Config, out: &mut dyn Output) -> Result<Self, LabError> {
        let base = Config {
            threads: 1,
            medium: MediumKind::Emulated,
            // One thread does not use up the bandwidth.
            speed: Speed { read_mb_s: 0, write_mb_s: 0, ..base.speed },
            latency: false,
            limits: false,
            counts: true,
            ..base.clone()
        };
        let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let tables =
            Config { indexes: named(&TABLES), plan: Plan::Phases(PHASES.to_vec()), ..base.clone() };
        let mut drives = vec![drive(&tables, out)?];
        let presized = Config {
            indexes: named(&[BLOCKING]),
            plan: Plan::Phases(vec![Phase::Insert]),
            presize: true,
            ..base.clone()
        };
        let presized = drive(&presized, out)?;
        for name in MIXES {
            let mix: Mix = name.parse()?;
            let blend = Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: base.keys };
            let trees = Config { indexes: named(&TREES), plan: Plan::Blend(blend), ..base.clone() };
            drives.push(drive(&trees, out)?);
        }
        let insertion = |driven| Some(Cost::in_phase(driven, BLOCKING, "insert")?.alone_ns);
        let resizing_ns = insertion(&drives[0])
            .zip(insertion(&presized))
            .map(|(growing, presized)| (growing - presized).max(0.0));
        Ok(Measured { drives, resizing_ns })
    }

    /// Returns what an operation of a table costs in a phase or mix.
    pub(super) fn cost(&self, index: &str, phase: &str) -> Option<Cost> {
        let find = |one: &DriveReport| Some(one.subject(index)?.phase(phase)?.summary.clone());
        let record = self.drives.iter().find_map(find)?;
        let mut cost = Cost::of(&record)?;
        if index == BLOCKING {
            // Its locks are few, and stay in the processors' caches (section 6.4 of the Dash
            // paper), so that only what it flushes is written.
            cost.blocks_written = record.flushes_per_op?;
            if phase == Phase::Insert.name() {
                cost.exclusive_ns = self.resizing_ns.unwrap_or(0.0);
            }
        }
        Some(cost)
    }

    /// Returns every table and phase with its cost.
    pub(super) fn all(&self) -> Vec<(&'static str, &'static str, Cost)> {
        let subjects = self.drives.iter().flat_map(|one| &one.subjects);
        let phases = subjects.flat_map(|one| one.phases.iter().map(|phase| (one.name, phase.name)));
        phases.filter_map(|(index, phase)| Some((index, phase, self.cost(index, phase)?))).collect()
    }
}
