//! Tests of the redo log: on real files, and under simulated crashes.

mod campaign;
mod format;
mod mistakes;
mod model;
mod real;
mod simfs;
