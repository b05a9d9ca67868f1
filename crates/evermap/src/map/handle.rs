//! A handle of a map.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::clock::time_of;
use crate::maintenance::census::Count;
use crate::map::inner::MapInner;
use crate::{Error, Evermap, Result};

/// A map from keys to values in a file: a handle, to be cloned and shared between threads.
///
/// All operations take `&self` and may be called from any number of threads. Each is atomic, and
/// all operations on one key happen in a single order. A mutation is durable when it returns. Keys
/// have up to [`KEY_MAX`](crate::KEY_MAX) bytes, values up to [`VALUE_MAX`](crate::VALUE_MAX).
///
/// A file has a [default map](Evermap::default_map), which has no name, and any number of
/// [named](Evermap::map) ones. Operations on the file as a whole are methods of [`Evermap`];
/// [`db`](Map::db) returns it. A handle of a map keeps the file open, as a handle of the file does.
///
/// # Errors
///
/// Every operation can return:
/// * [`Error::KeyTooLong`];
/// * [`Error::Damaged`] if the record of the key does not verify: other keys are not affected;
/// * [`Error::Closed`] after [`close`](Evermap::close), and [`Error::Dropped`] after
///   [`drop_map`](Evermap::drop_map);
/// * [`Error::Storage`] with [`Poisoned`](crate::ErrorKind::Poisoned) after a thread panicked in
///   the middle of a change, or [`Damaged`](crate::ErrorKind::Damaged) if the index is damaged.
///   Mutations can return the latter although they have made their change, if the damage was met
///   afterwards.
///
/// Mutations can also return [`Error::ReadOnly`] if the file was opened
/// [read-only](crate::Options::read_only); [`Error::ValueTooLong`], [`Error::ExpiryTooLate`];
/// [`Error::Full`],
/// [`Error::HeldUp`] or [`Error::Storage`] with [`NoSpace`](crate::ErrorKind::NoSpace), and nothing
/// has changed then; [`Error::BeingModified`] inside [`modify`](Map::modify); and
/// [`Error::Storage`] with [`Forked`](crate::ErrorKind::Forked) in a forked child.
pub struct Map<M: Medium = Mapped> {
    pub(crate) db: Evermap<M>,
    pub(crate) inner: Arc<MapInner<M>>,
}

impl<M: Medium> Clone for Map<M> {
    fn clone(&self) -> Self {
        Map { db: self.db.clone(), inner: self.inner.clone() }
    }
}

// As for `Evermap`.
impl<M: Medium> std::panic::UnwindSafe for Map<M> {}
impl<M: Medium> std::panic::RefUnwindSafe for Map<M> {}

impl<M: Medium> std::fmt::Debug for Map<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").field("name", &self.name()).field("db", &self.db).finish()
    }
}

impl<M: Medium> Map<M> {
    /// Returns the time by which records expire, in whole seconds: that of
    /// [`Options::clock`](crate::Options::clock).
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use evermap::{Clock, Evermap, Options};
    /// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
    /// let map = Evermap::in_memory(Options::new().clock(Clock::manual(noon)))?.default_map();
    /// assert_eq!(map.now(), noon);
    /// map.set("key").expires(map.now() + Duration::from_secs(60)).put("value")?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn now(&self) -> SystemTime {
        time_of(self.db.file.clock.now().into())
    }

    /// Returns the file that this map is in.
    pub fn db(&self) -> &Evermap<M> {
        &self.db
    }

    /// Turns the handle of the map into one of its file, for example to close it.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(&path, Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// map.into_db().close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_db(self) -> Evermap<M> {
        self.db
    }

    /// Returns the number of records. Counts those that expired or were [cleared](Map::clear), or
    /// that a crash has left of a batch that did not take place, until they are removed in the
    /// background; and until a file is swept after an unclean shutdown only what was stored since:
    /// [`records`](Map::records) tells that. O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put("key", "value")?;
    /// assert_eq!(map.len(), 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    #[allow(clippy::len_without_is_empty)] // it can fail
    pub fn len(&self) -> u64 {
        self.records().value
    }

    /// Returns `true` if no key is present. O(1) in most maps; O(number of those) if there are
    /// records that expired or were cleared and are not removed yet.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert!(map.is_empty()?);
    /// map.put("key", "value")?;
    /// assert!(!map.is_empty()?);
    /// map.clear()?;
    /// assert!(map.is_empty()?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]. A damaged record is an error only if no other is found before it.
    pub fn is_empty(&self) -> Result<bool> {
        match self.keys().next() {
            Some(key) => key.map(|_| false),
            None => Ok(true),
        }
    }

    /// Returns the number of records, as [`len`](Map::len) does, and whether it is exact: whenever
    /// no mutation is running, unless the file was opened after an unclean shutdown and has not
    /// been swept yet. O(1).
    pub fn records(&self) -> Count {
        let (totals, exact) = self.inner.counters.totals();
        Count { value: totals.records, exact }
    }

    /// Returns the number of bytes in the blocks of all records. Exact when
    /// [`records`](Map::records) is. O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", &[0; 1000])?;
    /// assert!(map.bytes().value >= 1003);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn bytes(&self) -> Count {
        let (totals, exact) = self.inner.counters.totals();
        Count { value: totals.bytes, exact }
    }

    /// Notes that an operation met damage, which this error reports.
    #[cold]
    pub(crate) fn note_damage(&self, error: &Error) {
        self.inner.damage_met.fetch_add(1, Relaxed);
        error.note_damage(self.db.file.pool.region());
    }

    /// How often damage was met since opening, in records and in the index.
    pub(crate) fn damage_met(&self) -> u64 {
        self.inner.damage_met.load(Relaxed) + self.inner.index.damage_met()
    }
}
