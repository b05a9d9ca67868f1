//! What the laboratory measures, and what it does with it.
//!
//! * [`workload`]: seeded keys, the phases they are used in, and mixes such as YCSB's;
//! * [`subject`]: tables of words and stores of byte strings behind one object-safe view;
//! * [`machine`]: what the system says about this process and the whole machine;
//! * [`error`]: the errors of experiments.

pub mod error;
pub mod machine;
pub mod subject;
pub mod workload;

pub use error::{Failure, LabError};
