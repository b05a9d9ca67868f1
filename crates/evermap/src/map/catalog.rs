//! The catalogue of named maps: opening, creating and dropping them.
//!
//! A root slot names the descriptor of the *catalogue*, a map like the others that binds the name
//! of each to the offset of its [descriptor](crate::map::header). So the change of one word of the
//! catalogue's index creates a map, and of another drops it; before the one and after the other,
//! everything of the map is unreachable. The steps, and why each of them is right, are described in
//! `docs/design/maps.md`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};

use evermap_pm::region::OnSuspect;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Medium, Pool};

use crate::map::header::MapHeader;
use crate::map::inner::{MapInner, MapState, free_everything};
use crate::ops::write::Condition;
use crate::record::cas::lost;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::{Error, Evermap, IndexKind, Map, Meta, Outcome, Result, mistakes};

/// The maximum length of the name of a map, bytes.
pub const MAP_NAME_MAX: usize = 250;
/// Root slot that names the catalogue's descriptor.
const ROOT: usize = 14;
/// Format of a region in which a named map was created. Programs that know only the formats before
/// 7 would treat the blocks of named maps as free, and those that know only the formats before this
/// one would not find the keys of maps that have a seed of their own.
const FORMAT: u32 = 11;

/// How a named map is opened.
///
/// ```
/// use evermap::{Evermap, MapOptions, Options};
/// let db = Evermap::in_memory(Options::new())?;
/// assert!(db.map("users", MapOptions::new().create(false)).is_err());
/// let users = db.map("users", MapOptions::new())?;
/// # Ok::<(), evermap::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct MapOptions {
    create: bool,
    index: Option<IndexKind>,
    max_bytes: Option<u64>,
    evict: Option<bool>,
}

impl Default for MapOptions {
    fn default() -> Self {
        MapOptions::new()
    }
}

impl MapOptions {
    /// Opens the map, or creates it if it does not exist.
    pub fn new() -> Self {
        MapOptions { create: true, index: None, max_bytes: None, evict: None }
    }

    /// Sets whether the map is created if it does not exist. The default is `true`.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets which kind of index the map must have. A map that exists with another kind is not
    /// opened. The default is that of [`Options::index`](crate::Options::index) for a new map, and
    /// any for one that exists.
    ///
    /// ```
    /// use evermap::{Error, Evermap, IndexKind, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// db.map("users", MapOptions::new().index(IndexKind::Clht))?;
    /// let other = db.map("users", MapOptions::new().index(IndexKind::Level));
    /// assert!(matches!(other.unwrap_err(), Error::OtherIndex { .. }));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn index(mut self, kind: IndexKind) -> Self {
        self.index = Some(kind);
        self
    }

    /// Sets the maximum number of bytes that the records of this map may take together, from now
    /// on; beyond it, mutations return [`Error::Full`]. The default is no limit. It is not stored
    /// in the file.
    ///
    /// ```
    /// # use evermap::{Error, Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let little = db.map("little", MapOptions::new().max_bytes(10_000))?;
    /// assert!(matches!(little.put(b"key", &[0; 20_000]), Err(Error::Full { .. })));
    /// db.default_map().put(b"key", &[0; 20_000])?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets whether this map evicts its own records, from now on, where
    /// [`max_bytes`](MapOptions::max_bytes) would be exceeded: those that are unlikely to be read
    /// again, while other maps keep theirs. So a mutation returns [`Error::Full`] only for a record
    /// that is larger than the limit. The default is `false`, and to leave it as it is if the map
    /// is open. It is not stored in the file; without a limit it has no effect, and in a file that
    /// is read-only neither.
    ///
    /// In a file that is a [cache](crate::Options::evict), the default map is what makes space for
    /// all maps; if it has next to nothing left, the map does that is nearest to its own limit.
    ///
    /// ```
    /// # use evermap::{Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let little = db.map("little", MapOptions::new().max_bytes(10_000).evict(true))?;
    /// for number in 0..1000_u32 {
    ///     little.put(number.to_le_bytes(), &[0; 500])?;
    /// }
    /// assert!(little.bytes().value <= 10_000);
    /// assert!(little.contains(999_u32.to_le_bytes())?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn evict(mut self, evict: bool) -> Self {
        self.evict = Some(evict);
        self
    }
}

/// The named maps of a file.
pub(crate) struct Maps<M: Medium>(Mutex<Table<M>>);

/// What is known of the named maps. A thread that creates, opens or drops one holds the lock of
/// this; while it does, it never waits for a guard to end.
pub(crate) struct Table<M: Medium> {
    catalogue: Option<Arc<MapInner<M>>>,
    open: BTreeMap<Box<str>, Arc<MapInner<M>>>,
    /// Dropped, and not reclaimed yet.
    pending_drops: Vec<Arc<MapInner<M>>>,
}

impl<M: Medium> Maps<M> {
    pub(crate) fn new() -> Self {
        let (catalogue, open, pending_drops) = (None, BTreeMap::new(), Vec::new());
        Maps(Mutex::ranked(Rank::Maps, Table { catalogue, open, pending_drops }))
    }

    fn lock(&self) -> MutexGuard<'_, Table<M>> {
        // A panic under it has poisoned the region.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `each` with the open maps that have a name, and keeps others from being opened.
    /// Returns `false` if another thread uses the table.
    pub(crate) fn try_each(&self, each: impl Fn(&MapInner<M>)) -> bool {
        let Ok(table) = self.0.try_lock() else { return false };
        table.catalogue.iter().chain(table.open.values()).for_each(|map| each(map));
        true
    }
}

/// Returns the words of the catalogue, if the file has one.
///
/// # Errors
/// `Damaged`.
pub(crate) fn catalogue_of<M: Medium>(pool: &Pool<M>) -> Result<Option<MapHeader>> {
    let root = pool.root(ROOT);
    let word = pool.medium().load(root);
    if word == 0 {
        return Ok(None);
    }
    let header = decode_checked(WordKind::Catalogue, word)
        .and_then(|offset| MapHeader::described(pool, offset));
    let lost = || lost(pool.medium().offset_of(root), "the catalogue of the named maps").into();
    header.map(Some).ok_or_else(lost)
}

impl<M: Medium> Evermap<M> {
    /// Opens or creates the map called `name`: another map in the same file, with its own keys.
    ///
    /// Creation is crash-safe: the map exists completely or not at all, and durably when this
    /// returns. An empty map takes less than 64 KiB. Any number of handles of one map may be open;
    /// they are the same map. Opening is O(1).
    ///
    /// ```
    /// use evermap::{Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let users = db.map("users", MapOptions::new())?;
    /// users.put(b"1", b"ann")?;
    /// assert_eq!(db.default_map().get(b"1")?, None, "the default map is another one");
    /// assert_eq!(db.map("users", MapOptions::new())?.get(b"1")?, Some(b"ann".to_vec()));
    /// assert_eq!(db.maps()?, ["users"]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MapName`] unless the name has 1 to [`MAP_NAME_MAX`] bytes; [`Error::NoSuchMap`],
    /// [`Error::OtherIndex`], [`Error::MapDamaged`], [`Error::Closed`]; [`Error::Storage`] with
    /// `NoSpace`, `Damaged`, `Poisoned` or `Forked`.
    pub fn map(&self, name: &str, options: MapOptions) -> Result<Map<M>> {
        if name.is_empty() || name.len() > MAP_NAME_MAX {
            return Err(Error::MapName { len: name.len(), max: MAP_NAME_MAX });
        }
        let mut is_new = false;
        let map = self.with_space(&|_| false, || {
            let mut table = self.table()?;
            let store = match self.find_map(&mut table, name)? {
                Some(store) => store,
                None if !options.create => return Err(Error::NoSuchMap { name: name.into() }),
                None => {
                    is_new = true;
                    self.make_map(&mut table, name, options)?
                }
            };
            let found = store.inner.index.kind();
            if let Some(asked) = options.index.filter(|&asked| asked != found) {
                return Err(Error::OtherIndex { name: name.into(), found, asked });
            }
            if let Some(bytes) = options.max_bytes {
                store.inner.max_bytes.store(bytes, Relaxed);
            }
            if let Some(evict) = options.evict {
                store.inner.set_evicts(evict && !self.file.read_only);
            }
            Ok(store)
        })?;
        if is_new {
            self.settle()?;
        }
        Ok(map)
    }

    /// Returns the names of all named maps in the file, in order. O(maps).
    ///
    /// ```
    /// # use evermap::{Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// for name in ["users", "orders"] {
    ///     db.map(name, MapOptions::new())?;
    /// }
    /// assert_eq!(db.maps()?, ["orders", "users"]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Damaged`] or [`Error::Storage`] with `Damaged` where a name
    /// cannot be read.
    pub fn maps(&self) -> Result<Vec<String>> {
        let (names, unreadable) = self.names(&mut *self.table()?)?;
        unreadable.map_or(Ok(names), Err)
    }

    /// Drops the map called `name` with everything in it. Returns `true` if it existed. Crash-safe:
    /// the map exists completely or not at all, and durably not when this returns. O(1).
    ///
    /// Its handles return [`Error::Dropped`] from now on; a new map of the same name can be created
    /// immediately. The space is reclaimed in the background, once no thread reads there any more,
    /// or by [`reclaim_dropped`](Evermap::reclaim_dropped).
    ///
    /// ```
    /// # use evermap::{Error, Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let users = db.map("users", MapOptions::new())?;
    /// users.put(b"1", b"ann")?;
    /// assert!(db.drop_map("users")?);
    /// assert!(matches!(users.get(b"1"), Err(Error::Dropped { .. })));
    /// assert!(db.map("users", MapOptions::new())?.iter().next().is_none());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Storage`] with `Damaged`, `Poisoned` or `Forked`.
    pub fn drop_map(&self, name: &str) -> Result<bool> {
        let is_dropped = self.try_drop(name)?;
        self.settle()?;
        Ok(is_dropped)
    }

    /// [`drop_map`](Evermap::drop_map), which may not be durable.
    fn try_drop(&self, name: &str) -> Result<bool> {
        let (file, region) = (&self.file, self.file.pool.region());
        file.ensure_writable()?;
        let mut table = self.table()?;
        let map = match self.find_map(&mut table, name) {
            Ok(None) => return Ok(false),
            Ok(Some(map)) => Some(map.inner),
            // A map that cannot be opened can be dropped all the same.
            Err(error) if error.is_damaged() => None,
            Err(error) => return Err(error),
        };
        let Some(catalogue) = self.catalogue(&mut table)? else { return Ok(false) };
        let poison = region.poison_on_panic();
        // No batch runs meanwhile, and those that wait check again whether the map is open: so no
        // intent names a map that is gone.
        let turn = file.reservations.permit();
        // First, so that no operation is acknowledged that began after the map was gone.
        map.iter().for_each(|map| map.set_state(MapState::Dropped));
        if let Some(map) =
            map.as_ref().filter(|_| file.pool.medium().mutant(mistakes::DROPPED_TOO_EARLY))
        {
            free_everything(&file.pool, map);
        }
        // Without waiting for readers, even if much memory waits for them: one of them may be
        // waiting for the table.
        let removed =
            catalogue.key(name.as_bytes()).and_then(|name| catalogue.unbind(name, None, None));
        // An error may mean that only tidying up failed.
        let is_gone = removed.is_ok() || matches!(catalogue.contains(name.as_bytes()), Ok(false));
        drop(turn);
        if is_gone {
            table.open.remove(name);
            match map {
                Some(map) => {
                    table.pending_drops.push(map);
                    file.maintenance.want_reclaim();
                }
                // Its contents cannot be walked through: the next opening sweeps.
                None => file.pool.require_sweep(),
            }
        } else {
            map.iter().for_each(|map| map.set_state(MapState::Open));
        }
        poison.disarm();
        if is_gone { Ok(true) } else { removed.map(|_| false) }
    }

    /// [`reclaim_dropped`](Evermap::reclaim_dropped).
    pub(crate) fn reclaim_drops(&self) -> Result<u64> {
        self.ensure_no_guard("reclaim_dropped")?;
        self.file.pool.region().ensure_writable()?;
        // A sweep must see a dropped map completely or not at all: what it does not mark is free
        // afterwards, and would be freed a second time.
        let _sweeping = self.file.maintenance.sweeping();
        if self.is_closed() || self.file.maps.lock().pending_drops.is_empty() {
            return Ok(0);
        }
        // Operations that began before the drop may still be running, and what they have retired is
        // reclaimed too. Maps that are dropped from here on wait for the next call.
        let pending_drops = std::mem::take(&mut self.file.maps.lock().pending_drops);
        if let Err(error) = self.file.pool.epoch().try_drain() {
            self.file.maps.lock().pending_drops.extend(pending_drops);
            return Err(evermap_pm::Error::from(error).into());
        }
        self.reclaim(&pending_drops);
        Ok(pending_drops.len() as u64)
    }

    /// Does what [`reclaim_dropped`](Evermap::reclaim_dropped) does, for a caller that has waited
    /// for all operations to end and keeps sweeps from running.
    pub(crate) fn reclaim_pending_drops(&self) {
        let pending_drops = std::mem::take(&mut self.file.maps.lock().pending_drops);
        self.reclaim(&pending_drops);
    }

    fn reclaim(&self, pending_drops: &[Arc<MapInner<M>>]) {
        let (file, poison) = (&self.file, self.file.pool.region().poison_on_panic());
        for map in pending_drops {
            if !free_everything(&file.pool, map) {
                file.pool.require_sweep();
            }
        }
        poison.disarm();
        file.maintenance.set_reclaimed(file.maps.lock().pending_drops.is_empty());
    }

    /// Locks the table of named maps, unless the file is closed.
    fn table(&self) -> Result<MutexGuard<'_, Table<M>>> {
        // In a forked child, a thread that does not exist there may hold the lock.
        self.file.pool.region().ensure_writable()?;
        let table = self.file.maps.lock();
        // Checked under the lock: see `close_maps`.
        if self.file.closed.load(SeqCst) { Err(Error::Closed) } else { Ok(table) }
    }

    /// Returns the catalogue, if there is one.
    ///
    /// # Errors
    /// `Damaged`; never with [`OnSuspect::Salvage`], which goes on without it and so drops all
    /// named maps.
    fn catalogue(&self, table: &mut Table<M>) -> Result<Option<Map<M>>> {
        if let Some(map) = &table.catalogue {
            return Ok(Some(self.handle_of(map)));
        }
        let (file, m) = (&self.file, self.file.pool.medium());
        let root = file.pool.root(ROOT);
        let Some(header) = catalogue_of(&file.pool).transpose() else { return Ok(None) };
        match header.and_then(|header| file.open_context().open(header, None)) {
            Err(error) if error.is_damaged() && file.options.on_suspect == OnSuspect::Salvage => {
                file.pool.require_sweep();
                m.store(root, 0);
                m.persist(root);
                Ok(None)
            }
            opened => {
                let map = self.counted(opened?);
                table.catalogue = Some(map.clone());
                Ok(Some(self.handle_of(&map)))
            }
        }
    }

    /// Returns a map that was just opened, with its census requested if it needs one.
    fn counted(&self, map: MapInner<M>) -> Arc<MapInner<M>> {
        if map.counters.is_counting() {
            self.file.maintenance.want_census();
        }
        Arc::new(map)
    }

    /// Creates the catalogue. Crash-safe: the root slot names it when all of it is durable.
    fn make_catalogue(&self, table: &mut Table<M>) -> Result<Map<M>> {
        let (file, m) = (&self.file, self.file.pool.medium());
        // The kind that is smallest when empty.
        let map = Arc::new(file.open_context().create(IndexKind::Clht, None)?);
        m.fence();
        let root = file.pool.root(ROOT);
        m.store(root, encode_checked(WordKind::Catalogue, map.header.descriptor()));
        m.persist(root);
        table.catalogue = Some(map.clone());
        Ok(self.handle_of(&map))
    }

    /// Returns the map called `name`, if there is one.
    fn find_map(&self, table: &mut Table<M>, name: &str) -> Result<Option<Map<M>>> {
        if let Some(map) = table.open.get(name) {
            return Ok(Some(self.handle_of(map)));
        }
        let count = |error: &Error| {
            if error.is_damaged() {
                self.default_map().note_damage(error);
            }
        };
        let catalogue = self.catalogue(table).inspect_err(count)?;
        let Some(catalogue) = catalogue else { return Ok(None) };
        let damaged = |error: Error| match error.is_damaged() {
            true => {
                let error = Error::MapDamaged { name: name.into(), why: error.to_string() };
                self.default_map().met(error)
            }
            false => error,
        };
        let Some(value) = catalogue.get(name.as_bytes()).map_err(damaged)? else {
            return Ok(None);
        };
        let map = self.counted(self.open_described(name, &value).map_err(damaged)?);
        table.open.insert(name.into(), map.clone());
        Ok(Some(self.handle_of(&map)))
    }

    /// Opens the map that the catalogue binds to `value`.
    fn open_described(&self, name: &str, value: &[u8]) -> Result<MapInner<M>> {
        let file = &self.file;
        let offset = value.try_into().map_or(0, u64::from_le_bytes);
        file.open_context().open(MapHeader::at(&file.pool, offset)?, Some(name))
    }

    /// Creates the map called `name`, which does not exist.
    fn make_map(&self, table: &mut Table<M>, name: &str, options: MapOptions) -> Result<Map<M>> {
        let (file, region) = (&self.file, self.file.pool.region());
        file.ensure_writable()?;
        region.raise_format(FORMAT)?;
        let poison = region.poison_on_panic();
        let made = (|| {
            let catalogue = match self.catalogue(table)? {
                Some(catalogue) => catalogue,
                None => self.make_catalogue(table)?,
            };
            let map = file
                .open_context()
                .create(options.index.unwrap_or(file.options.index), Some(name))?;
            let value = map.header.descriptor().to_le_bytes();
            match catalogue.insert_name(name.as_bytes(), &value) {
                Ok(()) => {}
                // An error may mean that only tidying up failed. If that cannot be known, nothing
                // is freed.
                Err(error) => match catalogue.contains(name.as_bytes()) {
                    Ok(true) => {}
                    Ok(false) => {
                        if !free_everything(&file.pool, &map) {
                            file.pool.require_sweep();
                        }
                        return Err(error);
                    }
                    Err(_) => {
                        file.pool.require_sweep();
                        return Err(error);
                    }
                },
            }
            let map = Arc::new(map);
            table.open.insert(name.into(), map.clone());
            Ok(self.handle_of(&map))
        })();
        poison.disarm();
        made
    }

    /// Returns the names in the catalogue, in order, and the error of one that could not be read.
    fn names(&self, table: &mut Table<M>) -> Result<(Vec<String>, Option<Error>)> {
        let (mut names, mut unreadable) = (Vec::new(), None);
        if let Some(catalogue) = self.catalogue(table)? {
            catalogue.for_each(|item| {
                let name = item.and_then(|item| {
                    let not_text = |_| Error::MapDamaged {
                        name: item.key.escape_ascii().to_string(),
                        why: "its name is not UTF-8".into(),
                    };
                    String::from_utf8(item.key.to_vec()).map_err(not_text)
                });
                match name {
                    Ok(name) => names.push(name),
                    Err(error) => unreadable = Some(error),
                }
                ControlFlow::Continue(())
            })?;
        }
        names.sort_unstable();
        Ok((names, unreadable))
    }

    /// Returns all maps of the file, including the catalogue, and opens those that are not open;
    /// and the error of one that could not be opened. A map that is created later is not among
    /// them; one that is dropped meanwhile returns [`Error::Dropped`].
    ///
    /// # Errors
    /// [`Error::Closed`], `Forked`.
    pub(crate) fn all_maps(&self) -> Result<(Vec<Map<M>>, Option<Error>)> {
        Ok(self.list_maps(&mut *self.table()?))
    }

    fn list_maps(&self, table: &mut Table<M>) -> (Vec<Map<M>>, Option<Error>) {
        let mut stores = vec![self.handle_of(&self.file.default)];
        let listed = self.catalogue(table).and_then(|catalogue| {
            stores.extend(catalogue);
            self.names(table)
        });
        let (names, mut problem) = listed.unwrap_or_else(|error| (Vec::new(), Some(error)));
        for name in names {
            match self.find_map(table, &name) {
                Ok(found) => stores.extend(found),
                Err(error) => problem = Some(error),
            }
        }
        (stores, problem)
    }

    /// Returns all maps as [`all_maps`](Evermap::all_maps) does, and those that were dropped and
    /// not reclaimed yet: everything that may name blocks, except maps that are created later.
    pub(crate) fn all_maps_and_dropped(&self) -> Result<(Vec<Map<M>>, Option<Error>)> {
        let mut table = self.table()?;
        let (mut stores, problem) = self.list_maps(&mut table);
        stores.extend(table.pending_drops.iter().map(|map| self.handle_of(map)));
        Ok((stores, problem))
    }

    /// Returns the number of named maps, as far as that is known.
    pub(crate) fn map_count(&self) -> u64 {
        let Ok(mut table) = self.table() else { return 0 };
        let catalogue = self.catalogue(&mut table);
        catalogue.ok().flatten().map_or(0, |catalogue| catalogue.len())
    }

    /// Makes all maps refuse operations. If the last shutdown was unclean, returns the headers of
    /// the maps that were not opened since: they may have changed since their counts were saved.
    /// The file is marked closed, so that no map is opened or created later.
    pub(crate) fn close_maps(&self) -> Vec<MapHeader> {
        let file = &self.file;
        let mut table = file.maps.lock();
        let mut uncounted = Vec::new();
        if !file.clean
            && let Ok(Some(catalogue)) = self.catalogue(&mut table)
        {
            // A map whose name cannot be read cannot be opened later either.
            let _ = catalogue.for_each(|item| {
                let value = item.map_or(&[][..], |item| item.value);
                let offset = value.try_into().map_or(0, u64::from_le_bytes);
                uncounted.extend(MapHeader::described(&file.pool, offset));
                ControlFlow::Continue(())
            });
        }
        for map in table.catalogue.iter().chain(table.open.values()) {
            map.set_state(MapState::Closed);
        }
        uncounted.retain(|header| {
            let is_it = |map: &Arc<MapInner<M>>| map.header.descriptor() == header.descriptor();
            !table.open.values().any(is_it)
        });
        uncounted
    }

    /// Returns all maps that are open now.
    pub(crate) fn open_maps(&self) -> Vec<Map<M>> {
        let table = self.file.maps.lock();
        let named = table.catalogue.iter().chain(table.open.values());
        std::iter::once(&self.file.default).chain(named).map(|map| self.handle_of(map)).collect()
    }
}

impl<M: Medium> Map<M> {
    /// Returns the name of this map; `None` for the default one.
    ///
    /// ```
    /// # use evermap::{Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// assert_eq!(db.default_map().name(), None);
    /// assert_eq!(db.map("users", MapOptions::new())?.name(), Some("users"));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    /// Binds a name in the catalogue. The caller knows that it is free, and must not wait for
    /// space.
    fn insert_name(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let name = self.key(name)?;
        match self.try_store(name, value, Meta::default(), Condition::Absent, None)? {
            Outcome::Inserted { .. } => Ok(()),
            _ => unreachable!("the table is locked"),
        }
    }
}
