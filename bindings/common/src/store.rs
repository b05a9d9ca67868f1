//! Handles of a file and of its maps.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use evermap::{CheckReport, ErrorKind, Evermap, Map, MapOptions, Snapshot};

use crate::Settings;

/// Result of everything that can fail here.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

/// Why something failed.
#[derive(Debug)]
pub enum Fault {
    /// The store says so.
    Store(evermap::Error),
    /// An argument is wrong.
    Usage(String),
    /// The call would wait for values that are held, perhaps by the thread that makes it.
    Held {
        /// What was called.
        operation: &'static str,
        /// How many values are held.
        values: usize,
    },
}

impl Fault {
    /// Returns what kind of fault it is, in the terms of the store.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Fault::Store(error) => error.kind(),
            Fault::Usage(_) => ErrorKind::InvalidInput,
            Fault::Held { .. } => ErrorKind::WouldDeadlock,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Store(error) => error.fmt(f),
            Fault::Usage(text) => f.write_str(text),
            Fault::Held { operation, values } => write!(
                f,
                "{operation} would wait for {values} value{} that this program holds without a \
                 copy; release what was read first",
                if *values == 1 { "" } else { "s" }
            ),
        }
    }
}

impl std::error::Error for Fault {}

impl From<evermap::Error> for Fault {
    fn from(error: evermap::Error) -> Self {
        Fault::Store(error)
    }
}

/// A store, or a snapshot of one.
pub struct Store {
    opened: Opened,
    /// The number of values that are held without a copy. What waits for guards would wait for
    /// them, and the thread that calls may be the one that has to release them.
    pub(crate) held: AtomicUsize,
}

enum Opened {
    Store(Evermap),
    Snapshot(Snapshot),
}

/// A map of a store, which it keeps open.
pub struct StoreMap {
    map: Map,
    store: Arc<Store>,
}

impl Store {
    /// Opens the store at `path`, or one in memory if there is none.
    ///
    /// # Errors
    /// Those of [`Evermap::open`] and [`Evermap::in_memory`].
    pub fn open(path: Option<&Path>, settings: &Settings) -> Result<Arc<Self>> {
        let options = settings.options();
        let db = match path {
            Some(path) => Evermap::open(path, options)?,
            None => Evermap::in_memory(options)?,
        };
        Ok(Store::new(Opened::Store(db)))
    }

    fn new(opened: Opened) -> Arc<Self> {
        Arc::new(Store { opened, held: AtomicUsize::new(0) })
    }

    /// Returns the store as the library knows it.
    pub fn db(&self) -> &Evermap {
        match &self.opened {
            Opened::Store(db) => db,
            Opened::Snapshot(snapshot) => snapshot,
        }
    }

    /// Returns the map of this name, or the default map.
    ///
    /// # Errors
    /// Those of [`Evermap::map`].
    pub fn map(self: &Arc<Self>, name: Option<&str>, create: bool) -> Result<Arc<StoreMap>> {
        let map = match name {
            None => self.db().default_map(),
            Some(name) => self.db().map(name, MapOptions::new().create(create))?,
        };
        Ok(Arc::new(StoreMap { map, store: self.clone() }))
    }

    /// Refuses `operation`, which waits for guards, while values are held.
    ///
    /// Another thread may read a value between this and the waiting; but then that thread is not
    /// the one that waits, so the wait ends when it releases the value.
    fn ensure_none_held(&self, operation: &'static str) -> Result<()> {
        match self.held.load(SeqCst) {
            0 => Ok(()),
            values => Err(Fault::Held { operation, values }),
        }
    }

    /// Closes the store for all handles: see [`Evermap::close`]. A snapshot is closed when its last
    /// handle is dropped, so this does nothing to one.
    ///
    /// # Errors
    /// `Held`, and nothing is closed then; those of [`Evermap::close`].
    pub fn close(&self) -> Result<()> {
        match &self.opened {
            Opened::Store(db) => {
                self.ensure_none_held("close")?;
                Ok(db.clone().close()?)
            }
            Opened::Snapshot(_) => Ok(()),
        }
    }

    /// Returns the store as it is at one moment, to be read: see [`Evermap::snapshot_within`].
    ///
    /// # Errors
    /// `Held`; those of [`Evermap::snapshot`].
    pub fn snapshot(&self, limit: Option<u64>) -> Result<Arc<Self>> {
        self.ensure_none_held("snapshot")?;
        let snapshot = self.db().snapshot_within(limit.unwrap_or(u64::MAX))?;
        Ok(Store::new(Opened::Snapshot(snapshot)))
    }

    /// Writes a copy of the store to a new file at `path`, and makes it durable. Returns its bytes.
    /// A copy that could not be finished is removed.
    ///
    /// # Errors
    /// `Held`; those of [`Evermap::backup`].
    pub fn backup(&self, path: &Path) -> Result<u64> {
        self.ensure_none_held("backup")?;
        let mut file = File::create_new(path).map_err(|error| unwritten(path, &error))?;
        let written = self.db().backup(&mut file).map_err(Fault::from);
        let synced = written.and_then(|backup| {
            file.sync_all().map_err(|error| unwritten(path, &error))?;
            Ok(backup.bytes())
        });
        if synced.is_err() {
            // The error says more than that a part of a copy could not be removed.
            let _ = std::fs::remove_file(path);
        }
        synced
    }

    /// Makes a store at `path` of a backup and of those that add to it: see [`evermap::restore`].
    ///
    /// # Errors
    /// `Usage` for a backup that cannot be read; those of [`evermap::restore`].
    pub fn restore<P: AsRef<Path>>(backups: &[P], path: &Path) -> Result<()> {
        let open = |path: &P| {
            let path = path.as_ref();
            let unread = |error| Fault::Usage(format!("{}: {error}", path.display()));
            File::open(path).map_err(unread)
        };
        let mut files = backups.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut parts: Vec<&mut dyn std::io::Read> = Vec::new();
        parts.extend(files.iter_mut().map(|file| file as &mut dyn std::io::Read));
        evermap::restore(&mut parts, path)?;
        Ok(())
    }

    /// Checks the store: see [`Evermap::check`].
    ///
    /// # Errors
    /// `Held`; those of [`Evermap::check`].
    pub fn check(&self, deep: bool) -> Result<CheckReport> {
        self.ensure_none_held("check")?;
        Ok(self.db().check(deep)?)
    }

    /// Recovers after an unclean shutdown, and counts records: see [`Evermap::recover`].
    ///
    /// # Errors
    /// `Held`; those of [`Evermap::recover`].
    pub fn recover(&self) -> Result<()> {
        self.ensure_none_held("counting records")?;
        Ok(self.db().recover()?)
    }

    /// Moves records out of sparse extents, and returns the bytes that were given back: see
    /// [`Evermap::compact`].
    ///
    /// # Errors
    /// `Held`; those of [`Evermap::compact`].
    pub fn compact(&self) -> Result<u64> {
        self.ensure_none_held("compact")?;
        Ok(self.db().compact()?)
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Fault {
    Fault::Usage(format!("{}: {error}", path.display()))
}

impl StoreMap {
    /// Returns the map as the library knows it.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Returns the store that the map is in.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
}
