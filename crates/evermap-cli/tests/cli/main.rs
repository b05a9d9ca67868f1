//! The `evermap` command, run as a user or a script runs it.

mod common;
mod lab;
mod output;
mod records;
mod restart;
mod serve;
mod top;
