//! Runs a part of a test in a separate process.

use std::process::{Child, Command, Stdio};

/// The environment variable with the function that the child runs, with its module.
const PART: &str = "EVERMAP_TEST_PART";
/// The environment variable with the argument of the part.
const ARGUMENT: &str = "EVERMAP_TEST_ARGUMENT";

/// Returns the argument in a child that was started for `part`, otherwise `None`.
pub(crate) fn asked_for(part: &str) -> Option<String> {
    let argument = (std::env::var(PART).as_deref() == Ok(part)).then(|| std::env::var(ARGUMENT));
    // So that the output begins on a new line, and not after what the test harness has printed.
    argument.is_some().then(|| println!());
    argument?.ok()
}

/// Starts this program again to run the test function `part`, and nothing else. Its output is
/// piped.
pub(crate) fn start(part: &str, argument: impl ToString) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", part, "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .env(ARGUMENT, argument.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}
