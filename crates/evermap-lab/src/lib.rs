//! Workloads, baselines, experiments and crash campaigns for Evermap's indexes.
//!
//! * [`experiments`]: what can be measured, by name;
//! * [`registry`]: the tables and stores that can be measured, by name;
//! * [`subject`]: tables of words and stores of byte strings behind one object-safe view;
//! * [`workload`]: seeded keys, the phases they are used in, and mixes such as YCSB's;
//! * [`driver`]: interleaved rounds, pinned threads, every answer checked;
//! * [`report`]: tables, plots and a paper's figures beside those measured here, as text, JSON and
//!   HTML, and the comparison of two runs;
//! * [`crash`]: crash campaigns, and mutants that they must detect.
//!
//! Modules depend on each other in one direction: `workload` and `subject` (of the crate
//! `evermap-lab-core`), `report`, `driver`, then the indexes (`evermap-lab-indexes`) and the
//! baselines, the registry, and the experiments.

mod baselines;
pub mod crash;
pub mod driver;
pub mod experiments;
pub mod registry;
pub mod report;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use crash::{CrashConfig, run_crash};
use evermap_lab_core::error;
pub use evermap_lab_core::machine;
pub use evermap_lab_core::{Failure, LabError, subject, workload};
use evermap_lab_indexes as indexes;
pub use experiments::{EXPERIMENTS, Experiment, Settings, experiment};
pub use registry::{load_plugin, subjects};
pub use report::output::Output;

/// The revision of the source from which this was built; `unknown` unless it was built to measure.
pub const REVISION: &str = env!("EVERMAP_REVISION");
