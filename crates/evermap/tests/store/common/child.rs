//! Running a part of a test in a process of its own.

use std::process::{Child, Command, Stdio};

/// Names the part that the child is to run, with its module.
const PART: &str = "EVERMAP_TEST_PART";
/// What the part is told.
const ARGUMENT: &str = "EVERMAP_TEST_ARGUMENT";

/// In a child that was started for `part`: what it is told.
pub(crate) fn asked_for(part: &str) -> Option<String> {
    let argument = (std::env::var(PART).as_deref() == Ok(part)).then(|| std::env::var(ARGUMENT));
    // What follows begins on a line of its own, not behind what the test harness says.
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
