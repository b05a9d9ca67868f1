//! What can go wrong, and in which words openraft is told of it.

use std::fmt;

use openraft::{AnyError, NodeId, StorageError, StorageIOError};

/// Result of everything that can fail in this crate and is not called by openraft.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why storage could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store said so.
    Store(evermap::Error),
    /// Reading or writing the file of a snapshot failed.
    Io(std::io::Error),
    /// What is stored is not of the type that is expected there.
    Codec(postcard::Error),
    /// What was read is not what was written.
    Damaged(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store(error) => error.fmt(f),
            Error::Io(error) => write!(f, "the file of a snapshot: {error}"),
            Error::Codec(error) => write!(f, "a value cannot be encoded or decoded: {error}"),
            Error::Damaged(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<evermap::Error> for Error {
    fn from(error: evermap::Error) -> Self {
        Error::Store(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::Io(error)
    }
}

impl From<postcard::Error> for Error {
    fn from(error: postcard::Error) -> Self {
        Error::Codec(error)
    }
}

impl From<Error> for AnyError {
    fn from(error: Error) -> Self {
        AnyError::new(&error)
    }
}

/// Tells openraft in which operation an error occurred: one of the constructors of
/// [`StorageIOError`].
#[expect(clippy::result_large_err, reason = "the type is openraft's")]
pub(crate) trait During<T> {
    fn during<N: NodeId>(
        self,
        operation: impl FnOnce(Error) -> StorageIOError<N>,
    ) -> std::result::Result<T, StorageError<N>>;
}

impl<T> During<T> for Result<T> {
    fn during<N: NodeId>(
        self,
        operation: impl FnOnce(Error) -> StorageIOError<N>,
    ) -> std::result::Result<T, StorageError<N>> {
        self.map_err(|error| operation(error).into())
    }
}
