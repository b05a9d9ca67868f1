//! Workloads, rivals, experiments and crash campaigns for Evermap's indexes.
//!
//! * [`experiments`]: what can be measured, by name;
//! * [`subject`]: what it is measured of, by name: [tables of words](table) and [stores of byte strings](store)
//!   behind one object-safe view, [plugins](plugin) among them;
//! * [`workload`]: seeded keys, the phases they are used in, and mixes such as YCSB's;
//! * [`drive()`]: the driver: interleaved rounds, pinned threads, every answer checked;
//! * [`compare`]: medians, and ratios within rounds;
//! * [`changes`]: what repeats from run to run, and what does not;
//! * [`crash`]: crash campaigns, and mistakes that they must notice;
//! * [`limits`]: what the machine itself can do, as a yardstick;
//! * [`report`]: what came out, as tables, plots, and a paper's figures beside ours;
//! * [`output`], [`html`]: the same for people and programs.

mod ablated;
pub mod crash;
mod error;
mod evermap;
mod hash;
mod hikv;
mod indexed;
mod latency;
mod library;
mod machine;
mod media;
mod ordered;
mod records;
mod reference;
#[cfg(feature = "rivals")]
mod rivals;
#[cfg(feature = "stores")]
mod stores;
mod tables;
#[cfg(test)]
mod testing;
mod workers;

pub mod changes;
pub mod compare;
pub mod drive;
pub mod experiments;
pub mod html;
pub mod interval;
pub mod limits;
pub mod output;
pub mod plugin;
pub mod report;
pub mod store;
pub mod subject;
pub mod table;
pub mod workload;

pub use crash::{CrashConfig, run_crash};
pub use drive::{Config, drive, drive_on};
pub use error::{Failure, LabError};
pub use experiments::{EXPERIMENTS, Experiment, Settings, experiment};
pub use output::Output;
pub use report::Report;
pub use subject::subjects;
