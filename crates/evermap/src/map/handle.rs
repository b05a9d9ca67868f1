//! A handle of a map.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_index::record::KEY_MAX;
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::clock::time_of;
use crate::maintenance::census::Count;
use crate::map::inner::MapInner;
use crate::record::access::AccessState;
use crate::record::control::Control;
use crate::record::{Draft, VALUE_MAX, record_bytes};
use crate::{Error, Evermap, Meta, Result};

/// A map from keys to values in a file: a handle, to be cloned and shared between threads.
///
/// All operations take `&self` and may be called from any number of threads. Each is atomic, and
/// all operations on one key happen in a single order. A mutation is durable when it returns. Keys
/// have up to [`KEY_MAX`] bytes, values up to [`VALUE_MAX`] bytes.
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

    /// Returns the number of records. Counts those that expired or were [cleared](Map::clear) until
    /// they are removed in the background, and until a file is swept after an unclean shutdown only
    /// what was stored since: [`records`](Map::records) tells that. O(1).
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

    /// The key with its hash.
    #[inline]
    pub(crate) fn key<'k>(&self, key: &'k [u8]) -> Result<BytesRef<'k>> {
        if key.len() > KEY_MAX {
            return Err(Error::KeyTooLong { len: key.len(), max: KEY_MAX });
        }
        Ok(BytesRef::new(key, self.inner.header.seed()))
    }

    /// Begins an operation.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>> {
        let (file, map) = (&*self.db.file, &*self.inner);
        let guard = file.pool.pin();
        if !map.is_open() {
            return Err(map.refusal());
        }
        if map.flush.flush_if_due(file.pool.region(), &file.cas_counter, &file.clock) {
            self.request_purge();
        }
        Ok(guard)
    }

    /// Asks for a purge: a flush has left something to remove.
    pub(crate) fn request_purge(&self) {
        self.inner.expiries.owe_walk();
        self.db.file.maintenance.want_purge();
    }

    /// Begins a mutation.
    #[inline]
    pub(crate) fn enter_writing(&self) -> Result<Guard<'_>> {
        // Before anything is allocated: in a forked child even a block is not ours to write.
        self.db.file.ensure_writable()?;
        self.enter()
    }

    /// Takes the space of a record, if the map has room for it; to be written before it is
    /// published.
    pub(crate) fn draft<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        meta: Meta,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        if self.inner.max_bytes.load(Relaxed) != u64::MAX {
            let bytes = record_bytes(key.bytes.len(), value.len());
            self.ensure_room(self.db.file.pool.block_size(bytes))?;
        }
        self.reserve(key, value, meta.flags(), Control::of(&meta)?.encode())
    }

    /// The same whether or not there is room for it, and with a control word that may differ from
    /// what it is to be.
    pub(crate) fn reserve<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        flags: u32,
        control: u64,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        let cas = self.db.file.cas_counter.take(self.db.file.pool.region())?;
        let (pool, owner) = (&self.db.file.pool, self.inner.header.owner());
        let draft = Draft::reserve(pool, owner, key.bytes, value, flags, control, cas)?;
        draft.set_access(self.new_access());
        Ok(draft)
    }

    /// Returns the access state of a record that is stored now.
    #[inline]
    pub(crate) fn new_access(&self) -> AccessState {
        match self.inner.evicts {
            true => AccessState::new(self.db.file.clock.coarse()),
            false => AccessState::default(),
        }
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

/// Whether a value is short enough.
pub(crate) fn ensure_length(value: &[u8]) -> Result<()> {
    match value.len() {
        len if len > VALUE_MAX => Err(Error::ValueTooLong { len, max: VALUE_MAX }),
        _ => Ok(()),
    }
}
