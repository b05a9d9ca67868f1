//! What can go wrong in an experiment.

use std::fmt;
use std::path::PathBuf;

/// Why an operation of somebody's table or store failed.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

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
    /// There is no experiment of that name.
    #[error("unknown experiment `{name}`; known are: {}, and all", known.join(", "))]
    UnknownExperiment {
        /// The name that was asked for.
        name: String,
        /// Every name there is.
        known: Vec<&'static str>,
    },
    /// A shared library is no plugin that can be used.
    #[error("plugin {}: {why}", path.display())]
    Plugin {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A process that was to be killed ended by itself.
    #[error(
        "the process that fills {index} ended before it had filled it; it says why on standard error"
    )]
    NotFilled {
        /// The table.
        index: &'static str,
    },
    /// A setting is impossible.
    #[error("configuration: {0}")]
    Config(String),
    /// A table lost, invented or changed a value. No figure of it means anything.
    #[error(
        "{index} gave a wrong answer in {phase}: key {key:#018x} should be {expected}, but it was {found}"
    )]
    WrongAnswer {
        /// The table.
        index: &'static str,
        /// What was being done.
        phase: &'static str,
        /// The key.
        key: u64,
        /// What the key was bound to.
        expected: Found,
        /// What the table said.
        found: Found,
    },
    /// At the end of a mix of operations a key was bound to what no thread wrote last.
    #[error(
        "{index} lost or invented a change in {phase}: in the end key {key:#018x} was {found}, which no thread wrote last"
    )]
    WrongEnd {
        /// The table.
        index: &'static str,
        /// What had been done.
        phase: &'static str,
        /// The key.
        key: u64,
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
        source: Failure,
    },
    /// The experiment is about an order that the table does not have.
    #[error(
        "{index} keeps its keys in no order, so it cannot scan; leave out workloads with scans"
    )]
    Unordered {
        /// The table.
        index: &'static str,
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

impl LabError {
    /// An operation of `index` that failed.
    #[cold]
    pub fn index(index: &'static str, source: impl Into<Failure>) -> Self {
        LabError::Index { index, source: source.into() }
    }
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
    /// Bytes that are no value of the key.
    Garbled,
    /// The table does not say whether there was anything.
    Unsaid,
}

impl Found {
    /// Whether this answer is right where `truth` is what the key was bound to.
    #[inline(always)]
    pub fn agrees(self, truth: Option<u64>) -> bool {
        match self {
            Found::Absent => truth.is_none(),
            Found::Present => truth.is_some(),
            Found::Word(word) => truth == Some(word),
            Found::Garbled => false,
            Found::Unsaid => true,
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
            Found::Garbled => f.write_str("bound to bytes that are no value of it"),
            Found::Unsaid => f.write_str("unknown"),
        }
    }
}
