//! The errors of the command.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

/// The exit code after a failure. The exit code 1 is a negative result: there is no such key, or a
/// check found problems.
pub(crate) const EXIT_CODE: u8 = 2;

/// Writes a line to standard error about something that does not end the command.
pub(crate) fn warn(message: impl Display) {
    // If standard error is closed, the message is lost.
    let _ = writeln!(io::stderr(), "evermap: {message}");
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", name_options(.0))]
    Store(#[source] evermap::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub(crate) fn other(text: impl Into<String>) -> Self {
        Failure::Other(text.into())
    }

    /// Returns `true` if a store is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Failure::Store(error) if error.is_damaged())
    }

    /// Returns `true` if the reader of standard output has closed it.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Failure::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What the library says about a store that can be opened.
const ADVICE: &str = "run `evermap check` on the file";

/// Returns the message of the library, with the names of its settings replaced by the options of
/// the command.
fn name_options(error: &evermap::Error) -> String {
    error.to_string().replace("on_suspect = ", "--on-suspect ")
}

/// Returns a message of the library with the path in its advice.
pub(crate) fn advise(text: &str, path: &Path) -> String {
    text.replace(ADVICE, &format!("run `evermap check {}`", path.display()))
}

/// Returns the message of the library about the store at `path`, which it names.
pub(crate) fn describe(error: &evermap::Error, path: &Path) -> String {
    let text = match error {
        evermap::Error::NotFound { .. } => {
            "there is no store; `evermap put`, `load` or `serve` creates one".to_owned()
        }
        evermap::Error::NoSuchMap { name } => format!(
            "there is no map \"{}\"; `evermap put --map` or `load --map` creates one, and `maps` \
             lists the existing ones",
            name.escape_debug()
        ),
        error => advise(&name_options(error), path),
    };
    let path = path.display();
    match text.starts_with(&path.to_string()) {
        true => text,
        false => format!("{path}: {text}"),
    }
}

impl Failure {
    /// Returns the failure of a command that used the store at `path`.
    pub(crate) fn at(self, path: &Path) -> Self {
        match self {
            Failure::Store(error) => Failure::Other(describe(&error, path)),
            failure => failure,
        }
    }
}

impl From<evermap::Error> for Failure {
    fn from(error: evermap::Error) -> Self {
        Failure::Store(error)
    }
}
