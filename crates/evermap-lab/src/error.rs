//! What can go wrong in an experiment.

use std::fmt;
use std::path::PathBuf;

use crate::workload::Phase;

/// Why an experiment did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// There is no index of that name.
    #[error("unknown index `{name}`; known are: {}", known.join(", "))]
    UnknownIndex {
        /// The name that was asked for.
        name: String,
        /// Every name there is.
        known: Vec<&'static str>,
    },
    /// A setting is impossible.
    #[error("configuration: {0}")]
    Config(String),
    /// A table lost, invented or changed a value. No figure of it means anything.
    #[error(
        "{index} gave a wrong answer in phase {phase}: key {key:#018x} should be {expected}, but it was {found}"
    )]
    WrongAnswer {
        /// The table.
        index: &'static str,
        /// What was being done.
        phase: Phase,
        /// The key.
        key: u64,
        /// What the key was bound to.
        expected: Found,
        /// What the table said.
        found: Found,
    },
    /// A table holds more or fewer pairs than were put into it.
    #[error("{index} says that it holds {found} pairs, but {expected} were left in it")]
    WrongLength {
        /// The table.
        index: &'static str,
        /// How many there are.
        expected: u64,
        /// How many the table says.
        found: u64,
    },
    /// An operation of the table failed.
    #[error("{index} failed: {source}")]
    Index {
        /// The table.
        index: &'static str,
        /// Its error.
        #[source]
        source: evermap_pm::Error,
    },
    /// The table cannot tell what the experiment is about.
    #[error("{index} does not report {what}, which this experiment measures")]
    Unreported {
        /// The table.
        index: &'static str,
        /// What it does not report.
        what: &'static str,
    },
    /// A thread of the experiment panicked; its message went to standard error.
    #[error("a thread panicked in the middle of the experiment")]
    Panicked,
    /// The system refused something.
    #[error("{action}{}: {source}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file, if one was involved.
        path: Option<PathBuf>,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// What a table said, or should have said, that a key was bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// Something; the table does not say what.
    Present,
    /// This word.
    Word(u64),
}

impl Found {
    /// Whether this answer is right where `truth` is what the key was bound to.
    #[inline(always)]
    pub fn agrees(self, truth: Option<u64>) -> bool {
        match self {
            Found::Absent => truth.is_none(),
            Found::Present => truth.is_some(),
            Found::Word(word) => truth == Some(word),
        }
    }
}

impl From<Option<u64>> for Found {
    #[inline(always)]
    fn from(word: Option<u64>) -> Self {
        word.map_or(Found::Absent, Found::Word)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Absent => f.write_str("absent"),
            Found::Present => f.write_str("present"),
            Found::Word(word) => write!(f, "bound to {word:#018x}"),
        }
    }
}
