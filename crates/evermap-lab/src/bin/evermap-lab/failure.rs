//! The errors of the program.

use std::io;

use evermap_lab::LabError;

/// The exit code of a failure. 1 means that a campaign has found a violation.
pub(crate) const EXIT_CODE: u8 = 2;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Standard output could not be written to.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Failure {
    /// Returns `true` if the reader of standard output has closed it.
    pub(crate) fn is_closed_output(&self) -> bool {
        match self {
            Failure::Output(source) | Failure::Lab(LabError::Io { source, .. }) => {
                source.kind() == io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }
}
