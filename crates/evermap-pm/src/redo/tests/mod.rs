//! Tests of the redo log: on real files, and under simulated crashes.

mod model;
mod real;
