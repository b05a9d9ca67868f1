//! Why a command did not do what it was asked.

use std::io;

/// What the process answers after a failure. 1 is a plain "no": no such key, problems found.
pub(crate) const EXIT_CODE: u8 = 2;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", name_options(.0))]
    Store(#[source] evermap::Error),
    /// Standard output did not take what was written.
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

    /// Whether the reader of our standard output has left.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Failure::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The message of the library, which names its settings, with the options of the command in their
/// place.
fn name_options(error: &evermap::Error) -> String {
    error.to_string().replace("on_suspect = ", "--on-suspect ")
}

impl From<evermap::Error> for Failure {
    fn from(error: evermap::Error) -> Self {
        match error {
            evermap::Error::NotFound { path: Some(path) } => Failure::Other(format!(
                "{}: no store here; `evermap put`, `load` or `serve` makes one",
                path.display()
            )),
            evermap::Error::NoSuchMap { name } => Failure::Other(format!(
                "no map \"{name}\" here; `evermap put --map` or `load --map` makes one, `maps` names those there are"
            )),
            error => Failure::Store(error),
        }
    }
}
