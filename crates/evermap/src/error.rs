//! What can go wrong, said so that a person can act on it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use evermap_pm::Medium;
use evermap_pm::epoch::Backlog;
use evermap_pm::heap::{MEMORY_LIMIT, NEIGHBOURS};
use evermap_pm::region::Region;

use crate::clock::seconds_of;

/// Result of everything that can fail in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What happened, to which file, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A key is longer than [`KEY_MAX`](crate::KEY_MAX).
    KeyTooLong {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A value is longer than [`VALUE_MAX`](crate::VALUE_MAX).
    ValueTooLong {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A record is to expire later than [`Expiry::MAX`](crate::Expiry::MAX). Nothing was changed.
    ExpiryTooLate {
        /// The expiry.
        at: SystemTime,
        /// The limit.
        max: SystemTime,
    },
    /// A value that is written piece by piece has another length than was announced. Nothing was
    /// changed.
    ValueLength {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// The length that was announced, bytes.
        expected: usize,
        /// The number of bytes that came, including those that were too many.
        written: usize,
    },
    /// Reading a value from its source failed. Nothing was changed.
    Source {
        /// The number of bytes that had been read before.
        read: usize,
        /// Why.
        source: std::io::Error,
    },
    /// What is stored under a key is not of the type as which a [typed map](crate::TypedMap) reads
    /// it.
    #[cfg(feature = "serde")]
    Undecodable {
        /// The key as bytes, up to 64 of them, with unprintable ones escaped.
        key: String,
        /// `key` or `value`.
        what: &'static str,
        /// The type that it should be.
        type_name: &'static str,
        /// Why it is not.
        why: String,
    },
    /// A value of a [typed map](crate::TypedMap) refuses to be serialized. Nothing was changed.
    #[cfg(feature = "serde")]
    Unencodable {
        /// The key as bytes, up to 64 of them, with unprintable ones escaped.
        key: String,
        /// The type of the value.
        type_name: &'static str,
        /// Why.
        why: String,
    },
    /// There is no store at this path, and [`Options::create`](crate::Options::create) was off.
    NotFound {
        /// Where it was looked for; `None` for a medium without a path.
        path: Option<PathBuf>,
    },
    /// The limit set by [`Options::max_bytes`](crate::Options::max_bytes) is reached, or the record
    /// is larger than eviction can make space for under a
    /// [`memory_limit`](crate::Options::memory_limit). Nothing was changed.
    Full {
        /// The limit, bytes.
        limit: u64,
        /// Bytes that were asked for.
        needed: u64,
    },
    /// The record of this key does not verify. Its value is lost; other keys are not affected.
    Damaged {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// Where the record is, bytes from the start of the file.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A walk over all records of a map did not meet as many as there are: what leads to the others
    /// is damaged. All that could be read was shown before.
    Incomplete {
        /// The number of records that could be read, including those that have expired and are not
        /// removed yet.
        readable: u64,
        /// The number of records that the map has.
        records: u64,
    },
    /// The value is no counter: those have 8 bytes. Nothing was changed.
    NotACounter {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// Length of the value, bytes.
        len: usize,
    },
    /// A counter would leave the range of an `i64`. Nothing was changed.
    Overflow {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// What the counter is.
        value: i64,
        /// What was to be added, or the nearest number that an `i64` can hold.
        delta: i64,
    },
    /// A batch names more keys than [`BATCH_MAX`](crate::BATCH_MAX). Nothing was changed.
    BatchTooLarge {
        /// Keys in it.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A batch names the map that it is applied to. Nothing was changed.
    BatchMap {
        /// The name of the map.
        name: String,
    },
    /// Something that a [transaction](crate::Evermap::transaction) has read was changed before its
    /// own changes were made, in each of its attempts. Nothing was changed.
    Conflict {
        /// The name of the map; `None` for the default one.
        map: Option<String>,
        /// The key that was found changed last, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// A transaction was given a handle of a map of another store, or of a snapshot. Nothing was
    /// changed.
    OtherStore {
        /// The name of the map; `None` for a default one.
        map: Option<String>,
    },
    /// The operation waits for guards to end, and the calling thread holds one itself: it has a
    /// [`Reader`](crate::Reader), a borrowed [`ValueRef`](crate::ValueRef) or a
    /// [`ValueReader`](crate::ValueReader), or is in a closure of `get_many`, `get_together`,
    /// `modify` or `Scan::visit`. Nothing was done.
    GuardHeld {
        /// What was called.
        operation: &'static str,
    },
    /// A closure of [`modify`](crate::Map::modify) was changing the key that it was called for.
    /// Nothing was changed by that call.
    BeingModified {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
    },
    /// More memory than [`Options::reader_backlog`](crate::Options::reader_backlog) allows waits
    /// for a reader to end before it can be used again. Nothing was changed.
    HeldUp(Box<Backlog>),
    /// The store was opened without [`Options::ordered`](crate::Options::ordered).
    NotOrdered,
    /// The ordered index could not be built or kept up to date. Everything but scans works.
    OrderedFailed {
        /// What went wrong.
        why: String,
    },
    /// The name of a map is empty or longer than [`MAP_NAME_MAX`](crate::MAP_NAME_MAX).
    MapName {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// There is no map of this name, and [`MapOptions::create`](crate::MapOptions::create) was off.
    NoSuchMap {
        /// The name that was asked for.
        name: String,
    },
    /// The map exists with another kind of index than was asked for.
    OtherIndex {
        /// Its name.
        name: String,
        /// What it has.
        found: crate::IndexKind,
        /// What was asked for.
        asked: crate::IndexKind,
    },
    /// The map was dropped. A map of the same name is another one.
    Dropped {
        /// Its name.
        name: String,
    },
    /// What leads to the map does not verify. The default map and other named maps are not
    /// affected.
    MapDamaged {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The store was opened [read-only](crate::Options::read_only). Nothing was changed.
    ReadOnly,
    /// The [snapshot](crate::Snapshot) has taken the memory that it may take. Take another one.
    SnapshotTooOld {
        /// That limit, bytes.
        limit: u64,
    },
    /// The store was closed through another handle.
    Closed,
    /// The file, the memory or the operating system underneath reported an error.
    Storage(StorageError),
}

/// What the storage underneath advises after saying what is damaged. Useless to who is checking.
pub(crate) const CHECK_ADVICE: &str = "; run `evermap check` on the file";

/// Formats a number of things.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::KeyTooLong { len, max } => {
                write!(f, "key of {len} bytes is too long; the limit is {max}")
            }
            Error::ValueTooLong { len, max } => {
                write!(f, "value of {len} bytes is too long; the limit is {max}")
            }
            Error::ExpiryTooLate { at, max } => {
                let (at, max) = (seconds_of(*at).0, seconds_of(*max).0);
                write!(f, "expiry {at} is too late; the latest is {max} seconds since 1970")
            }
            Error::ValueLength { key, expected, written } => write!(
                f,
                "value of key \"{key}\" has {} instead of {expected}; nothing was stored",
                counted(*written as u64, "byte")
            ),
            Error::Source { read, source } => write!(
                f,
                "reading the value failed after {} ({source}); nothing was stored",
                counted(*read as u64, "byte")
            ),
            #[cfg(feature = "serde")]
            Error::Undecodable { key, what, type_name, why } => write!(
                f,
                "{what} of key \"{key}\" is no {type_name} ({why}); \
                 read it as the type that was stored"
            ),
            #[cfg(feature = "serde")]
            Error::Unencodable { key, type_name, why } => {
                write!(f, "value of key \"{key}\" of type {type_name} cannot be serialized ({why})")
            }
            Error::NotFound { path } => write!(
                f,
                "{}no store here; open it with create to make one",
                prefix(path.as_deref())
            ),
            Error::Full { limit, needed } => write!(
                f,
                "memory limit of {limit} bytes reached (needs {needed} more); \
                 remove something or raise it"
            ),
            Error::Damaged { key, offset, what } if key.is_empty() => write!(
                f,
                "record of an unknown or empty key at offset {offset:#x} is damaged ({what}); \
                 dump what can be read, and load it into a new file"
            ),
            Error::Damaged { key, offset, what } => write!(
                f,
                "record of key \"{key}\" at offset {offset:#x} is damaged ({what}); \
                 put or remove the key to repair it"
            ),
            Error::Incomplete { readable, records } => write!(
                f,
                "{readable} of {} could be read{CHECK_ADVICE}",
                counted(*records, "record")
            ),
            Error::NotACounter { key, len } => {
                let bytes = counted(*len as u64, "byte");
                write!(f, "value of key \"{key}\" is no counter: it has {bytes} instead of 8")
            }
            Error::Overflow { key, value, delta } => write!(
                f,
                "counter under key \"{key}\" is {value}: adding {delta} leaves the range of 64 bits"
            ),
            Error::BatchTooLarge { len, max } => {
                write!(f, "batch of {len} keys is too large; the limit is {max}")
            }
            Error::BatchMap { name } => write!(
                f,
                "batch names the map \"{name}\", to which it is applied; \
                 leave out in_map for that part"
            ),
            Error::Conflict { map, key, attempts } => write!(
                f,
                "transaction was overtaken in {}: {} was changed meanwhile; try again",
                counted(u64::from(*attempts), "attempt"),
                described(map.as_deref(), &format!("key \"{key}\""))
            ),
            Error::OtherStore { map } => write!(
                f,
                "{} is not in the store of the transaction; use a handle from that store",
                map.as_ref().map_or("a default map".to_owned(), |name| format!("map \"{name}\""))
            ),
            Error::GuardHeld { operation } => write!(
                f,
                "{operation} would wait for itself: this thread holds a guard of the store \
                 (it has a Reader, ValueRef or ValueReader, or is in a closure of get_many, \
                 get_together, modify or Scan::visit); \
                 call it after that has ended"
            ),
            Error::BeingModified { key } => write!(
                f,
                "key \"{key}\" is being modified by this thread; \
                 let the closure return the change instead of making it"
            ),
            Error::HeldUp(backlog) => {
                write!(f, "{backlog}; end it, or raise Options::reader_backlog")
            }
            Error::NotOrdered => write!(
                f,
                "the store was opened without an ordered index; open it with Options::ordered(true)"
            ),
            Error::OrderedFailed { why } => {
                write!(f, "there is no ordered index ({why}); open the store again to build it")
            }
            Error::MapName { len, max } => {
                write!(f, "name of {len} bytes for a map; it must have 1 to {max}")
            }
            Error::NoSuchMap { name } => {
                write!(f, "no map \"{name}\" here; open it with create to make one")
            }
            Error::OtherIndex { name, found, asked } => write!(
                f,
                "map \"{name}\" has the index {found}, not {asked}; open it without naming one"
            ),
            Error::Dropped { name } => {
                write!(f, "map \"{name}\" was dropped; open it by its name to make a new one")
            }
            Error::MapDamaged { name, why } => {
                write!(f, "map \"{name}\" cannot be opened ({why}); use `drop_map` to discard it")
            }
            Error::ReadOnly => {
                write!(f, "the store was opened read-only; open it for writing to change it")
            }
            Error::SnapshotTooOld { limit } => write!(
                f,
                "the snapshot has taken the {limit} bytes that it may take, because so much of \
                 the store was changed; take another one, or allow more"
            ),
            Error::Closed => write!(f, "the store was closed"),
            Error::Storage(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Storage(error) => error.source(),
            Error::Source { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The kinds of [`Error`]: what a program decides by.
///
/// ```
/// use evermap::{ErrorKind, Evermap, Options};
/// let missing = Evermap::open("/no/such/file", Options::new().create(false)).unwrap_err();
/// assert_eq!(missing.kind(), ErrorKind::NotFound);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A key, a value, a batch, the name of a map or an expiry is outside of its limits, or a batch
    /// names the map that it is applied to, or a transaction one of another store.
    InvalidInput,
    /// There is no file, or no map of this name.
    NotFound,
    /// The disk, the file's capacity, the memory limit or memory itself is full. Nothing was
    /// changed.
    NoSpace,
    /// Something in the file does not verify.
    Damaged,
    /// The value is no counter, or the counter would overflow.
    Counter,
    /// Others have changed what a transaction has read.
    Conflict,
    /// The calling thread would wait for itself.
    WouldDeadlock,
    /// Too much memory waits for a reader to end.
    HeldUp,
    /// There is no ordered index.
    NotOrdered,
    /// The map has another kind of index.
    OtherIndex,
    /// The map was dropped.
    Dropped,
    /// The snapshot has taken the memory that it may take.
    SnapshotTooOld,
    /// The store was closed, or is being closed.
    Closed,
    /// Another process has the file open, or this one has: the message says which, or where.
    InUse,
    /// The store was opened read-only.
    ReadOnly,
    /// A value cannot be encoded, or stored bytes cannot be decoded as the type that was asked for.
    Encoding,
    /// The file holds something else.
    NotAStore,
    /// The file was written by a later version of Evermap.
    NewerFormat,
    /// The pages of the file may be of different ages: see
    /// [`Options::on_suspect`](crate::Options::on_suspect).
    Suspect,
    /// A setting cannot be met, or contradicts what the file was created with.
    Config,
    /// The file system cannot keep the promise.
    FileSystem,
    /// The operating system refused something.
    Io,
    /// A thread panicked in the middle of a change. Opening the file again recovers the store.
    Poisoned,
    /// The process was forked after it opened the file.
    Forked,
    /// Another kind of error of the storage underneath.
    Other,
}

/// An error of the file, the memory or the operating system underneath.
pub struct StorageError {
    source: evermap_pm::Error,
    /// The file that was being opened.
    path: Option<Box<Path>>,
}

impl StorageError {
    /// Returns what kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        use evermap_pm::ErrorKind as Storage;
        match self.source.kind() {
            Storage::NotAStore { .. } => ErrorKind::NotAStore,
            Storage::NewerFormat { .. } => ErrorKind::NewerFormat,
            Storage::Damaged { .. } => ErrorKind::Damaged,
            Storage::InUse { .. } | Storage::OpenReadOnly { .. } | Storage::OpenHere { .. } => {
                ErrorKind::InUse
            }
            Storage::ReadOnly { .. } => ErrorKind::ReadOnly,
            Storage::NoSpace { .. } => ErrorKind::NoSpace,
            Storage::KeyTooLong { .. } => ErrorKind::InvalidInput,
            Storage::Io { .. } => ErrorKind::Io,
            Storage::FileSystem { .. } => ErrorKind::FileSystem,
            Storage::Suspect { .. } => ErrorKind::Suspect,
            Storage::Config(_) => ErrorKind::Config,
            Storage::Forked => ErrorKind::Forked,
            Storage::Poisoned => ErrorKind::Poisoned,
            _ => ErrorKind::Other,
        }
    }

    /// Returns why the contents of the file cannot be trusted, if that is what the error says: for
    /// [`ErrorKind::Suspect`] and [`ErrorKind::Damaged`].
    pub fn evidence(&self) -> Option<String> {
        use evermap_pm::ErrorKind as Storage;
        match self.source.kind() {
            Storage::Suspect { why, .. } => Some(why.clone()),
            Storage::Damaged { offset, what, .. } => {
                Some(format!("it is damaged at offset {offset:#x}: {what}"))
            }
            _ => None,
        }
    }

    pub(crate) fn is_no_space(&self) -> bool {
        self.source.is_no_space()
    }

    /// Returns what was lacking, if that is what failed.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        let evermap_pm::ErrorKind::NoSpace { needed, what } = self.source.kind() else {
            return None;
        };
        Some(match what.as_str() {
            MEMORY_LIMIT => Shortage::Limit { missing: *needed },
            NEIGHBOURS => Shortage::Neighbours { needed: *needed },
            _ => Shortage::Disk { missing: *needed },
        })
    }
}

/// What an allocation lacked, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The memory limit does not allow as much.
    Limit { missing: u64 },
    /// As much is free, but not in one place.
    Neighbours { needed: u64 },
    /// The disk is full, or the file cannot become longer.
    Disk { missing: u64 },
}

impl fmt::Debug for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageError")
            .field("source", &self.source)
            .field("path", &self.path)
            .finish()
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.source.to_string();
        match &self.path {
            // The text names the file already.
            Some(path) if text.starts_with(&*path.to_string_lossy()) => f.write_str(&text),
            // Errors of a region without a path leave the place for it empty.
            Some(_) => {
                write!(f, "{}{}", prefix(self.path.as_deref()), text.trim_start_matches(": "))
            }
            None => f.write_str(text.trim_start_matches(": ")),
        }
    }
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}

impl Error {
    /// Returns what kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::KeyTooLong { .. }
            | Error::ValueTooLong { .. }
            | Error::ExpiryTooLate { .. }
            | Error::ValueLength { .. }
            | Error::BatchTooLarge { .. }
            | Error::BatchMap { .. }
            | Error::OtherStore { .. }
            | Error::MapName { .. } => ErrorKind::InvalidInput,
            Error::NotFound { .. } | Error::NoSuchMap { .. } => ErrorKind::NotFound,
            Error::Full { .. } => ErrorKind::NoSpace,
            Error::Damaged { .. } | Error::Incomplete { .. } | Error::MapDamaged { .. } => {
                ErrorKind::Damaged
            }
            Error::NotACounter { .. } | Error::Overflow { .. } => ErrorKind::Counter,
            Error::GuardHeld { .. } | Error::BeingModified { .. } => ErrorKind::WouldDeadlock,
            Error::Conflict { .. } => ErrorKind::Conflict,
            Error::HeldUp(_) => ErrorKind::HeldUp,
            Error::NotOrdered | Error::OrderedFailed { .. } => ErrorKind::NotOrdered,
            Error::OtherIndex { .. } => ErrorKind::OtherIndex,
            Error::Dropped { .. } => ErrorKind::Dropped,
            Error::SnapshotTooOld { .. } => ErrorKind::SnapshotTooOld,
            Error::Closed => ErrorKind::Closed,
            Error::ReadOnly => ErrorKind::ReadOnly,
            Error::Source { .. } => ErrorKind::Io,
            #[cfg(feature = "serde")]
            Error::Undecodable { .. } | Error::Unencodable { .. } => ErrorKind::Encoding,
            Error::Storage(error) => error.kind(),
        }
    }

    /// Returns `true` if something is full: the disk, the file's capacity or the memory limit.
    /// Nothing was changed.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().max_bytes(10_000))?.default_map();
    /// let error = map.put(b"key", &[0; 20_000]).unwrap_err();
    /// assert!(error.is_no_space());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn is_no_space(&self) -> bool {
        self.kind() == ErrorKind::NoSpace
    }

    /// Returns `true` if something in the file is damaged.
    pub fn is_damaged(&self) -> bool {
        self.kind() == ErrorKind::Damaged
    }

    /// Notes in the file that there is damage, if that is what this error reports.
    #[cold]
    pub(crate) fn note_damage<M: Medium>(&self, region: &Region<M>) {
        let offset = match self {
            Error::Damaged { offset, .. } => *offset,
            // What leads to a map, or led to records, has no place of its own.
            Error::MapDamaged { .. } | Error::Incomplete { .. } => 0,
            Error::Storage(error) => match error.source.kind() {
                evermap_pm::ErrorKind::Damaged { offset, .. } => *offset,
                _ => return,
            },
            _ => return,
        };
        region.note_damage(offset, || self.to_string());
    }

    /// Returns where damage is that this error reports, and what is wrong.
    pub(crate) fn damage(&self) -> (u64, String) {
        match self {
            Error::Damaged { key, offset, what } if key.is_empty() => {
                (*offset, format!("a record: {what}"))
            }
            Error::Damaged { key, offset, what } => {
                (*offset, format!("the record of key \"{key}\": {what}"))
            }
            Error::Storage(error) => match error.source.kind() {
                evermap_pm::ErrorKind::Damaged { offset, what, .. } => (*offset, what.clone()),
                kind => (0, kind.to_string()),
            },
            error => (0, error.to_string()),
        }
    }

    #[cold]
    pub(crate) fn damaged(key: &[u8], offset: u64, what: &'static str) -> Self {
        Error::Damaged { key: shown(key), offset, what }
    }

    #[cold]
    pub(crate) fn value_length(key: &[u8], expected: usize, written: usize) -> Self {
        Error::ValueLength { key: shown(key), expected, written }
    }

    #[cfg(feature = "serde")]
    #[cold]
    pub(crate) fn undecodable(
        key: &[u8],
        what: &'static str,
        type_name: &'static str,
        why: String,
    ) -> Self {
        Error::Undecodable { key: shown(key), what, type_name, why }
    }

    #[cfg(feature = "serde")]
    #[cold]
    pub(crate) fn unencodable(key: &[u8], type_name: &'static str, why: String) -> Self {
        Error::Unencodable { key: shown(key), type_name, why }
    }

    #[cold]
    pub(crate) fn not_a_counter(key: &[u8], len: usize) -> Self {
        Error::NotACounter { key: shown(key), len }
    }

    #[cold]
    pub(crate) fn overflow(key: &[u8], value: i64, delta: i128) -> Self {
        let delta = delta.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Error::Overflow { key: shown(key), value, delta }
    }

    #[cold]
    pub(crate) fn being_modified(key: &[u8]) -> Self {
        Error::BeingModified { key: shown(key) }
    }

    /// Something that a transaction has read was changed in its first attempt.
    #[cold]
    pub(crate) fn conflict(map: Option<&str>, key: &[u8]) -> Self {
        Error::Conflict { map: map.map(Into::into), key: shown(key), attempts: 1 }
    }

    /// Sets the number of attempts of a conflict.
    #[cold]
    pub(crate) fn after(mut self, total: u32) -> Self {
        if let Error::Conflict { attempts, .. } = &mut self {
            *attempts = total;
        }
        self
    }

    #[cold]
    pub(crate) fn held_up(backlog: Backlog) -> Self {
        Error::HeldUp(Box::new(backlog))
    }

    /// Adds the path of the file that was being opened, and what helps with a file that cannot be.
    #[cold]
    pub(crate) fn with_path(self, path: &Path) -> Self {
        match self {
            Error::Storage(StorageError { source, .. }) => {
                let source = source.at_opening();
                Error::Storage(StorageError { source, path: Some(path.into()) })
            }
            error => error,
        }
    }
}

/// Returns how a thing in a map is called.
fn described(map: Option<&str>, thing: &str) -> String {
    map.map_or_else(|| thing.to_owned(), |map| format!("{thing} of map \"{map}\""))
}

/// The path of a file before a message about it.
fn prefix(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("{}: ", path.display()))
}

/// A key as messages show it.
pub(crate) fn shown(key: &[u8]) -> String {
    const SHOWN: usize = 64;
    let mut shown = key[..key.len().min(SHOWN)].escape_ascii().to_string();
    if key.len() > SHOWN {
        shown.push_str("...");
    }
    shown
}

/// So that functions which return [`std::io::Result`] can use `?`.
///
/// ```
/// use std::io;
/// fn stored() -> io::Result<()> {
///     let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
///     Ok(map.put("key", "value")?)
/// }
/// # stored().unwrap();
/// let missing = evermap::Evermap::open("/no/file", evermap::Options::new().create(false));
/// let error = io::Error::from(missing.unwrap_err());
/// assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// ```
impl From<Error> for std::io::Error {
    #[cold]
    fn from(error: Error) -> Self {
        use std::io::ErrorKind as Kind;
        let kind = match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Config => Kind::InvalidInput,
            ErrorKind::NotFound => Kind::NotFound,
            ErrorKind::NoSpace => Kind::StorageFull,
            ErrorKind::Damaged
            | ErrorKind::Counter
            | ErrorKind::Encoding
            | ErrorKind::NotAStore
            | ErrorKind::Suspect => Kind::InvalidData,
            ErrorKind::WouldDeadlock => Kind::Deadlock,
            ErrorKind::Conflict | ErrorKind::HeldUp | ErrorKind::InUse => Kind::ResourceBusy,
            ErrorKind::ReadOnly => Kind::ReadOnlyFilesystem,
            ErrorKind::NewerFormat | ErrorKind::FileSystem | ErrorKind::NotOrdered => {
                Kind::Unsupported
            }
            _ => Kind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

impl From<evermap_pm::Error> for Error {
    #[cold]
    fn from(source: evermap_pm::Error) -> Self {
        Error::Storage(StorageError { source, path: None })
    }
}

/// Returns an error of the storage underneath.
#[cold]
pub(crate) fn storage(kind: evermap_pm::ErrorKind) -> Error {
    evermap_pm::Error::from(kind).into()
}
