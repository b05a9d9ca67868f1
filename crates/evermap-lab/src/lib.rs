//! Workloads, rivals, experiments and crash campaigns for Evermap's indexes.
//!
//! * [`subject`]: what is measured: any table, behind one object-safe view, with a registry by name;
//! * [`workload`]: seeded keys and the phases they are used in;
//! * [`micro`]: the driver: interleaved rounds, pinned threads, every answer checked;
//! * [`load_factor`]: load factor and space while a table grows;
//! * [`crash`]: crash campaigns, and mistakes that they must notice;
//! * [`limits`]: what the machine itself can do, as a yardstick;
//! * [`output`]: JSON lines for programs, tables for people.

pub mod crash;
mod error;
mod hash;
mod indexed;
mod machine;
mod reference;
#[cfg(feature = "rivals")]
mod rivals;
#[cfg(test)]
mod testing;
mod workers;

pub mod interval;
pub mod limits;
pub mod load_factor;
pub mod micro;
pub mod output;
pub mod subject;
pub mod workload;

pub use crash::{CrashConfig, run_crash};
pub use error::LabError;
pub use load_factor::{LoadFactorConfig, LoadFactorReport, run_load_factor};
pub use micro::{MicroConfig, MicroReport, run_micro, run_micro_on};
pub use output::Output;
pub use subject::subjects;
