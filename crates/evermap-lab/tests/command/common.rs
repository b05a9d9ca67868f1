//! Running the command.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

pub(crate) use crate::output::CommandOutput;

/// The name of the program, with which its errors begin.
pub(crate) const PROGRAM: &str = "evermap-lab";

/// Runs the command to its end, with an empty standard input.
#[track_caller]
pub(crate) fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermap-lab"));
    CommandOutput::new(command.args(arguments).stdin(Stdio::null()).output().unwrap())
}
