//! The files of one directory, as the redo log uses them.

use std::path::Path;

use crate::Result;

/// An open file of a [`Storage`]. It remains the same file if its name changes or is removed.
pub trait File: Send + Sync {
    /// Returns the path under which it was opened, for messages.
    fn path(&self) -> &Path;

    /// Returns its length, bytes.
    fn size(&self) -> Result<u64>;

    /// Reads from `offset` until `buffer` is full or the file ends. Returns the number of bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Writes all of `bytes` at `offset`. Durable after the next [`sync`](File::sync).
    ///
    /// # Errors
    ///
    /// `NoSpace`, or `Io`. Part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes the bytes from `offset` on zero, and returns their space to the file system if it can.
    /// The length is unchanged.
    fn punch(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Changes the length. New bytes are zero, and need not have space.
    fn set_len(&self, bytes: u64) -> Result<()>;

    /// Makes the file at least `bytes` bytes long, with zeros that are really written: writing over
    /// them later needs no space, and its sync makes no metadata durable.
    ///
    /// # Errors
    ///
    /// `NoSpace`, or `Io`. The file has its old length then.
    fn allocate(&self, bytes: u64) -> Result<()>;

    /// Waits until all that was written to the file, and its length, is durable.
    ///
    /// # Errors
    ///
    /// `Io`. What was written since the last sync may be lost then, although it can still be read,
    /// and a later sync may succeed nevertheless.
    fn sync(&self) -> Result<()>;
}

/// The files of one directory, by name.
pub trait Storage: Send + Sync {
    /// Returns the path of a name, for messages.
    fn path_of(&self, name: &str) -> std::path::PathBuf;

    /// Opens the file `name` for reading and, if the storage is not read-only, for writing. Returns
    /// `None` if there is none.
    fn open(&self, name: &str) -> Result<Option<Box<dyn File>>>;

    /// Opens the file `name`, which is empty then: a new one, or the old one truncated.
    fn create(&self, name: &str) -> Result<Box<dyn File>>;

    /// Gives the file `from` the name `to`, in one step. A file that has that name is removed.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes the file `name`, if there is one.
    fn remove(&self, name: &str) -> Result<()>;

    /// Returns all names, in any order.
    fn list(&self) -> Result<Vec<String>>;

    /// Waits until all creations, renamings and removals are durable.
    fn sync(&self) -> Result<()>;
}
