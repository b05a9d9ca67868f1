//! Running the command.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

pub(crate) use crate::output::CommandOutput;

/// The name of the program, with which its errors begin.
pub(crate) const PROGRAM: &str = "evermap";

/// Returns the command, with an empty standard input.
pub(crate) fn evermap<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermap"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> CommandOutput {
    CommandOutput::new(evermap(arguments).output().unwrap())
}

/// Runs the command on a store.
#[track_caller]
pub(crate) fn run_on(command: &str, store: &Path, rest: &[&str]) -> CommandOutput {
    let mut arguments = vec![OsStr::new(command), store.as_os_str()];
    arguments.extend(rest.iter().map(OsStr::new));
    run(arguments)
}

/// Runs the command on a store, with `input` as its standard input.
#[track_caller]
pub(crate) fn run_with_input(
    command: &str,
    store: &Path,
    rest: &[&str],
    input: &[u8],
) -> CommandOutput {
    let mut child = evermap([command])
        .arg(store)
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    CommandOutput::new(child.wait_with_output().unwrap())
}

/// Parses the JSON output of `stat` or `check`.
#[track_caller]
pub(crate) fn json(output: CommandOutput) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}
