//! Errors, with messages that say what to do.

use std::fmt;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The result of operations that can fail in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. It is one pointer wide, so that results of hot operations stay in registers.
///
/// Match on [`Error::kind`].
pub struct Error(Box<ErrorKind>);

/// What failed, for which file, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file exists but holds something else.
    NotAStore {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        why: String,
    },
    /// The file was written by a later version of Evermap.
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Format version in the file.
        found: u32,
        /// Newest version that this program reads.
        known: u32,
    },
    /// A word, length or checksum in the region is impossible.
    Damaged {
        /// Offset in the region, bytes.
        offset: u64,
        /// What was wrong.
        what: String,
        /// What shows the extent of the damage.
        advice: &'static str,
    },
    /// A file beside the region has impossible contents.
    DamagedFile {
        /// The file.
        path: PathBuf,
        /// Offset in the file, bytes.
        offset: u64,
        /// What was wrong.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// Another process holds the writer's lock: one that opened the file, or a forked child of it.
    InUse {
        /// The file.
        path: PathBuf,
        /// Process id of the holder, or 0 if it is not known.
        pid: u32,
        /// Whether that process has ended or is exiting, and the lock is held nevertheless.
        is_ending: bool,
    },
    /// Another process has the file open read-only, which keeps a writer out.
    OpenReadOnly {
        /// The file.
        path: PathBuf,
        /// Process id of one of the readers, or 0 if it is not known.
        pid: u32,
    },
    /// This process has the file open already.
    OpenHere {
        /// The file.
        path: PathBuf,
        /// The call that opened it, if it is known. It is not if the process inherited the open
        /// file from one that forked it.
        place: Option<&'static Location<'static>>,
        /// Whether it is open read-only, which keeps only a writer out.
        read_only: bool,
    },
    /// A file that was opened read-only was to be changed. Nothing was changed.
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The medium, the file system or the configured limit is full. Nothing was changed.
    NoSpace {
        /// Which limit was reached.
        what: String,
        /// Number of bytes that were requested.
        needed: u64,
    },
    /// A key is longer than an index can hold. Nothing was changed.
    KeyTooLong {
        /// Length of the key, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A system call failed.
    Io {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is on a file system that cannot guarantee durability.
    FileSystem {
        /// The file.
        path: PathBuf,
        /// Name of the file system.
        name: String,
        /// Why it is refused.
        why: &'static str,
    },
    /// The machine may have crashed while the file was open, so its pages may have been written at
    /// different times. Nothing was changed. See [`OnSuspect`](crate::region::OnSuspect).
    Suspect {
        /// The file.
        path: PathBuf,
        /// The evidence for it.
        why: String,
    },
    /// A requested setting is not possible, or contradicts the settings that the file was created
    /// with.
    Config(String),
    /// The calling process is a forked child of the one that opened the store.
    Forked,
    /// A thread panicked while it was changing the store. Reopening recovers the store.
    Poisoned,
    /// A walk through the store was ended before its end, by the one who had begun it.
    Interrupted,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ErrorKind::*;
        if let Some(path) = self.path() {
            write!(f, "{}: ", path.display())?;
        }
        match self {
            NotAStore { why, .. } => write!(f, "not an Evermap store ({why})"),
            NewerFormat { found, known, .. } => write!(
                f,
                "format {found} is newer than the {known} that this program knows; use a newer \
                 evermap"
            ),
            Damaged { offset, what, advice } | DamagedFile { offset, what, advice, .. } => {
                write!(f, "damaged at offset {offset:#x}: {what}; {advice}")
            }
            InUse { pid: 0, .. } => f.write_str("in use by process 0 (unknown)"),
            InUse { pid, is_ending: false, .. } => {
                write!(f, "in use by process {pid} (stop it first)")
            }
            InUse { pid, is_ending: true, .. } => write!(
                f,
                "in use by process {pid}, which has ended or is exiting; if it is gone, another \
                 one holds the file for it, such as a forked child (`fuser -v FILE` as root names \
                 it)"
            ),
            OpenReadOnly { pid: 0, .. } => f.write_str(
                "opened read-only by others; open it for writing when they have closed it",
            ),
            OpenReadOnly { pid, .. } => write!(
                f,
                "opened read-only by others (process {pid}); open it for writing when they have \
                 closed it"
            ),
            OpenHere { place, read_only, .. } => {
                let how = if *read_only { " read-only" } else { "" };
                match place {
                    Some(place) => {
                        write!(f, "this process has it open{how} already (opened at {place})")?;
                    }
                    None => write!(
                        f,
                        "this process has it open{how} already, or inherited it from the one that \
                         forked it"
                    )?,
                }
                f.write_str("; use that handle, or drop it first")
            }
            ReadOnly { .. } => {
                f.write_str("it was opened read-only; open it for writing to change it")
            }
            NoSpace { what, needed } => {
                let bytes = if *needed == 1 { "byte" } else { "bytes" };
                write!(f, "no space: {what} (needs {needed} more {bytes}); existing data is intact")
            }
            KeyTooLong { len, max } => {
                write!(f, "key of {len} bytes is too long; the limit is {max}")
            }
            Io { action, source, .. } => write!(f, "{action}: {source}"),
            FileSystem { name, why, .. } => {
                write!(f, "file system {name} is not supported: {why}")
            }
            Suspect { why, .. } => write!(
                f,
                "contents are suspect: {why}. Nothing was changed. Open it with on_suspect = \
                 salvage to keep all that verifies, or on_suspect = discard to start empty"
            ),
            Config(what) => write!(f, "configuration: {what}"),
            Forked => f.write_str(
                "this process was forked after the store was opened, which belongs to its parent; \
                 open it after the fork, in one process only",
            ),
            Poisoned => f.write_str(
                "a thread panicked in the middle of a change; close and reopen the store to \
                 recover it",
            ),
            Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for ErrorKind {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ErrorKind::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl ErrorKind {
    /// Returns the file that the error is about, if it is about one.
    fn path(&self) -> Option<&Path> {
        use ErrorKind::*;
        match self {
            NotAStore { path, .. }
            | NewerFormat { path, .. }
            | DamagedFile { path, .. }
            | InUse { path, .. }
            | OpenReadOnly { path, .. }
            | OpenHere { path, .. }
            | ReadOnly { path }
            | Io { path, .. }
            | FileSystem { path, .. }
            | Suspect { path, .. } => Some(path),
            Damaged { .. }
            | NoSpace { .. }
            | KeyTooLong { .. }
            | Config(_)
            | Forked
            | Poisoned
            | Interrupted => None,
        }
    }
}

/// What helps with a store that can be opened.
const CHECK: &str = "run `evermap check` on the file";
/// What helps with one that can be opened without what is damaged.
const SALVAGE: &str =
    "restore the file from a copy, or open what is left of it with on_suspect = salvage";
/// What helps with one that cannot.
const RESTORE: &str =
    "restore the file from a copy, or start empty with on_suspect = discard, which loses all of it";

impl Error {
    /// Returns the kind of this error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Creates an error for a word or length at `offset` that is impossible.
    #[cold]
    pub fn damaged(offset: u64, what: impl Into<String>) -> Self {
        ErrorKind::Damaged { offset, what: what.into(), advice: CHECK }.into()
    }

    /// Creates an error for a word or length at `offset` that is impossible, and without which a
    /// store can be opened if that is asked for.
    #[cold]
    pub fn salvageable(offset: u64, what: impl Into<String>) -> Self {
        ErrorKind::Damaged { offset, what: what.into(), advice: SALVAGE }.into()
    }

    /// Creates an error for the contents of the file `path` at `offset`, which are impossible.
    #[cold]
    pub fn damaged_file(
        path: &Path,
        offset: u64,
        what: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        let (path, what) = (path.to_owned(), what.into());
        ErrorKind::DamagedFile { path, offset, what, advice }.into()
    }

    /// Returns the error of an opening that has failed with this one. A file that cannot be opened
    /// cannot be checked.
    #[cold]
    pub fn at_opening(self) -> Self {
        match *self.0 {
            ErrorKind::Damaged { offset, what, advice: CHECK } => {
                ErrorKind::Damaged { offset, what, advice: RESTORE }.into()
            }
            kind => kind.into(),
        }
    }

    /// Creates an error for a failed system call on `path`.
    #[cold]
    pub fn io(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        ErrorKind::Io { action, path: path.to_owned(), source: source.into() }.into()
    }

    /// Creates an error for a limit that was reached.
    #[cold]
    pub fn no_space(what: impl Into<String>, needed: u64) -> Self {
        ErrorKind::NoSpace { what: what.into(), needed }.into()
    }

    /// Returns `true` if this is [`ErrorKind::NoSpace`].
    pub fn is_no_space(&self) -> bool {
        matches!(self.kind(), ErrorKind::NoSpace { .. })
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
