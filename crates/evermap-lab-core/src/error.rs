//! The errors of experiments.

use std::fmt;
use std::path::PathBuf;

/// The reason why an operation of a table or store failed.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The reason why an experiment did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// There is no index of that name.
    #[error("unknown index `{name}`; known are: {}", known.join(", "))]
    UnknownIndex {
        /// The requested name.
        name: String,
        /// Every known name.
        known: Vec<&'static str>,
    },
    /// There is no experiment of that name.
    #[error("unknown experiment `{name}`; known are: {}, and all", known.join(", "))]
    UnknownExperiment {
        /// The requested name.
        name: String,
        /// Every known name.
        known: Vec<&'static str>,
    },
    /// A shared library is no usable plugin.
    #[error("plugin {}: {why}", path.display())]
    Plugin {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A child process that was to be killed ended before.
    #[error(
        "the process that fills {index} ended before it was done; see its message on standard error"
    )]
    NotFilled {
        /// The table.
        index: &'static str,
    },
    /// A setting is impossible.
    #[error("configuration: {0}")]
    Config(String),
    /// A table lost, invented or changed a value. None of its figures means anything.
    #[error(
        "{index} gave a wrong answer in {phase}: key {key:#018x} should be {expected}, \
         but it was {found}"
    )]
    WrongAnswer {
        /// The table.
        index: &'static str,
        /// The phase or mix.
        phase: &'static str,
        /// The key.
        key: u64,
        /// What the key was bound to.
        expected: Found,
        /// What the table returned.
        found: Found,
    },
    /// At the end of a mix a key was bound to a word that no thread wrote last.
    #[error(
        "{index} lost or invented a change in {phase}: at the end key {key:#018x} was {found}, \
         which no thread wrote last"
    )]
    WrongEnd {
        /// The table.
        index: &'static str,
        /// The mix.
        phase: &'static str,
        /// The key.
        key: u64,
        /// What the table returned.
        found: Found,
    },
    /// A table lost keys while it was resized or not. None of its figures means anything.
    #[error("{index} gave {misses} wrong answers of {ops} in {phase}, {case}")]
    Missed {
        /// The table.
        index: &'static str,
        /// Whether it was resized meanwhile.
        case: String,
        /// What was done.
        phase: &'static str,
        /// The number of wrong answers.
        misses: u64,
        /// The number of operations.
        ops: u64,
    },
    /// A table holds more or fewer pairs than were put into it.
    #[error("{index} says that it holds {found} pairs, but {expected} were left in it")]
    WrongLength {
        /// The table.
        index: &'static str,
        /// The right number of pairs.
        expected: u64,
        /// The number of pairs that the table reports.
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
    /// The experiment needs an order that the table does not keep.
    #[error(
        "{index} keeps its keys in no order, so it cannot scan; leave out workloads with scans"
    )]
    Unordered {
        /// The table.
        index: &'static str,
    },
    /// The table does not report what the experiment measures.
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
    #[error("{action}{}: {source}", after_space(path))]
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

/// Returns the path after a space, or nothing if there is none.
fn after_space(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default()
}

impl LabError {
    /// Creates the error of a failed operation of `index`.
    #[cold]
    pub fn index(index: &'static str, source: impl Into<Failure>) -> Self {
        LabError::Index { index, source: source.into() }
    }
}

/// What a table reported, or should have reported, for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key is absent.
    Absent,
    /// The key is present; the table does not report its word.
    Present,
    /// The key is bound to this word.
    Word(u64),
    /// The key is bound to bytes that are no value of it.
    Garbled,
    /// The table does not report whether the key was present.
    Unsaid,
}

impl Found {
    /// Returns `true` if this answer is right for a key that is bound to `expected`.
    #[inline(always)]
    pub fn agrees(self, expected: Option<u64>) -> bool {
        match self {
            Found::Absent => expected.is_none(),
            Found::Present => expected.is_some(),
            Found::Word(word) => expected == Some(word),
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
