//! What commands write beside records: lines, and how far they are.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// Writes a line to standard output.
pub(crate) fn print_line(text: &dyn Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Creates a progress bar on standard error, if that is a terminal.
pub(crate) fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (progress, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{bar:30} {bytes}/{total_bytes} [{elapsed}, {eta} left] {msg}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} [{elapsed}] {msg}"),
    };
    progress.enable_steady_tick(Duration::from_millis(100));
    progress.with_style(ProgressStyle::with_template(template).expect("a valid template"))
}
