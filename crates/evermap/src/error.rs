//! What can go wrong, said so that a person can act on it.

use std::path::{Path, PathBuf};

use evermap_pm::ErrorKind;
use evermap_pm::epoch::Backlog;

/// Result of everything that can fail in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What happened, to which file, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key is longer than [`KEY_MAX`](crate::KEY_MAX).
    #[error("key of {len} bytes is too long; the limit is {max}")]
    KeyTooLong {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A value is longer than [`VALUE_MAX`](crate::VALUE_MAX).
    #[error("value of {len} bytes is too long; the limit is {max}")]
    ValueTooLong {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A value that is written piece by piece has another length than was announced. Nothing was changed.
    #[error("value of key \"{key}\" has {written} bytes instead of {expected}; nothing was stored")]
    ValueLength {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// The length that was announced, bytes.
        expected: usize,
        /// Bytes that came, those included that were too many.
        written: usize,
    },
    /// What a value was to be read from failed. Nothing was changed.
    #[error("reading the value failed after {read} bytes ({source}); nothing was stored")]
    Source {
        /// Bytes that had been read before.
        read: usize,
        /// Why.
        source: std::io::Error,
    },
    /// There is no store at this path, and [`Options::create`](crate::Options::create) was off.
    #[error("{}: no store here; open it with create to make one", path.display())]
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The limit set by [`Options::max_bytes`](crate::Options::max_bytes) is reached. Nothing was changed.
    #[error(
        "memory limit of {limit} bytes reached (needs {needed} more); remove something or raise it"
    )]
    Full {
        /// The limit, bytes.
        limit: u64,
        /// Bytes that were asked for.
        needed: u64,
    },
    /// The record of this key does not verify. Its value is lost; other keys are not affected.
    #[error(
        "record of key \"{key}\" at offset {offset:#x} is damaged ({what}); put or remove the key to repair it"
    )]
    Damaged {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// Where the record is, bytes from the start of the file.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The value is no counter: those have 8 bytes. Nothing was changed.
    #[error("value of key \"{key}\" is no counter: it has {len} bytes instead of 8")]
    NotACounter {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// Length of the value, bytes.
        len: usize,
    },
    /// A counter would leave the range of an `i64`. Nothing was changed.
    #[error("counter under key \"{key}\" is {value}: adding {delta} leaves the range of 64 bits")]
    Overflow {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
        /// What the counter is.
        value: i64,
        /// What was to be added, or the nearest number that an `i64` can hold.
        delta: i64,
    },
    /// A batch names more keys than [`BATCH_MAX`](crate::BATCH_MAX). Nothing was changed.
    #[error("batch of {len} keys is too large; the limit is {max}")]
    BatchTooLarge {
        /// Keys in it.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A batch names the map that it is applied to. Nothing was changed.
    #[error(
        "batch names the map \"{name}\", to which it is applied; say that part without naming it"
    )]
    BatchMap {
        /// The name of the map.
        name: String,
    },
    /// The operation waits for guards to end, and the calling thread holds one itself: it has a
    /// [`Reader`](crate::Reader), or is in a closure of `get_many`, `get_together`, `modify` or
    /// `Scan::visit`. Nothing was done.
    #[error(
        "{operation} would wait for itself: this thread holds a guard of the store (it has a Reader, or is in a closure of get_many, get_together, modify or Scan::visit); call it after that has ended"
    )]
    GuardHeld {
        /// What was called.
        operation: &'static str,
    },
    /// A closure of [`modify`](crate::Store::modify) was changing the key that it was called for.
    /// Nothing was changed by that call.
    #[error(
        "key \"{key}\" is being modified by this thread; let the closure return the change instead of making it"
    )]
    BeingModified {
        /// The key, up to 64 bytes, with unprintable bytes escaped.
        key: String,
    },
    /// More memory than [`Options::reader_backlog`](crate::Options::reader_backlog) allows waits
    /// for a reader to end before it can be used again. Nothing was changed.
    #[error("{0}; end it, or raise Options::reader_backlog")]
    HeldUp(Box<Backlog>),
    /// The store was opened without [`Options::ordered`](crate::Options::ordered).
    #[error("the store was opened without an ordered index; open it with Options::ordered(true)")]
    NotOrdered,
    /// The ordered index could not be built or kept up to date. Everything but scans works.
    #[error("there is no ordered index ({why}); open the store again to build it")]
    OrderedFailed {
        /// What went wrong.
        why: String,
    },
    /// The name of a map is empty or longer than [`MAP_NAME_MAX`](crate::MAP_NAME_MAX).
    #[error("name of {len} bytes for a map; it must have 1 to {max}")]
    MapName {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// There is no map of this name, and [`MapOptions::create`](crate::MapOptions::create) was off.
    #[error("no map \"{name}\" here; open it with create to make one")]
    NoSuchMap {
        /// The name that was asked for.
        name: String,
    },
    /// The map exists with another kind of index than was asked for.
    #[error("map \"{name}\" has the index {found}, not {asked}; open it without naming one")]
    OtherIndex {
        /// Its name.
        name: String,
        /// What it has.
        found: crate::IndexKind,
        /// What was asked for.
        asked: crate::IndexKind,
    },
    /// The map was dropped. A map of the same name is another one.
    #[error("map \"{name}\" was dropped; open it by its name to make a new one")]
    Dropped {
        /// Its name.
        name: String,
    },
    /// What leads to the map does not verify. The default map and other named maps are not affected.
    #[error("map \"{name}\" cannot be opened ({why}); drop it to be rid of it")]
    MapDamaged {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The store was opened [read-only](crate::Options::read_only). Nothing was changed.
    #[error("the store was opened read-only; open it for writing to change it")]
    ReadOnly,
    /// The store was to be opened [read-only](crate::Options::read_only), but was not closed in order, so that it
    /// has to be recovered.
    #[error(
        "{}: the store was not closed; open it for writing once, to recover it, and close it", path.display()
    )]
    NotClosed {
        /// The file.
        path: PathBuf,
    },
    /// The store was closed through another handle.
    #[error("the store was closed")]
    Closed,
    /// The file could not be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: evermap_pm::Error,
    },
    /// The memory underneath answered an error.
    #[error(transparent)]
    Storage(evermap_pm::Error),
}

impl Error {
    /// Whether something is full: the disk, the file's capacity or the memory limit. Nothing was changed.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::open("", Options::volatile().max_bytes(10_000))?;
    /// let error = map.put(b"key", &[0; 20_000]).unwrap_err();
    /// assert!(error.is_no_space());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::Full { .. }) || matches!(self.kind(), Some(ErrorKind::NoSpace { .. }))
    }

    /// Whether something in the file is damaged.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Error::Damaged { .. } | Error::MapDamaged { .. })
            || matches!(self.kind(), Some(ErrorKind::Damaged { .. }))
    }

    /// The kind of error that the memory underneath answered, if it was that.
    pub fn kind(&self) -> Option<&ErrorKind> {
        match self {
            Error::Storage(error) | Error::Open { source: error, .. } => Some(error.kind()),
            _ => None,
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

    #[cold]
    pub(crate) fn held_up(backlog: Backlog) -> Self {
        Error::HeldUp(Box::new(backlog))
    }

    /// Names the file in an error from below that does not.
    #[cold]
    pub(crate) fn at(self, file: &Path) -> Self {
        let Error::Storage(source) = self else { return self };
        let path = file.to_owned();
        let named = match source.kind() {
            ErrorKind::NotAStore { path: empty, why } if empty.as_os_str().is_empty() => {
                ErrorKind::NotAStore { path, why: why.clone() }
            }
            ErrorKind::NewerFormat { path: empty, found, known }
                if empty.as_os_str().is_empty() =>
            {
                ErrorKind::NewerFormat { path, found: *found, known: *known }
            }
            ErrorKind::Suspect { path: empty, why } if empty.as_os_str().is_empty() => {
                ErrorKind::Suspect { path, why: why.clone() }
            }
            ErrorKind::Damaged { .. } | ErrorKind::NoSpace { .. } | ErrorKind::Config(_) => {
                return Error::Open { path, source };
            }
            _ => return Error::Storage(source),
        };
        Error::Storage(named.into())
    }
}

/// A key as messages show it.
fn shown(key: &[u8]) -> String {
    const SHOWN: usize = 64;
    let mut shown = key[..key.len().min(SHOWN)].escape_ascii().to_string();
    if key.len() > SHOWN {
        shown.push_str("...");
    }
    shown
}

impl From<evermap_pm::Error> for Error {
    #[cold]
    fn from(error: evermap_pm::Error) -> Self {
        Error::Storage(error)
    }
}

/// The memory under a store answered this.
pub(crate) fn storage(kind: ErrorKind) -> Error {
    Error::Storage(kind.into())
}
