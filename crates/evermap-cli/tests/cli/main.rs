//! The command, run as a person or a script runs it.

mod common;
mod lab;
mod records;
mod serve;
