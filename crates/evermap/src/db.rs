//! The file that maps are stored in.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use evermap_pm::medium::Mapped;
use evermap_pm::region::{
    DamageMark, Identity, OnSuspect, Opened, Region, RegionConfig, WIDE_DAMAGE,
};
use evermap_pm::{Medium, Pool};

use crate::batch::intent;
use crate::batch::reservations::KeyReservations;
use crate::clock::Time;
use crate::close::CloseOnDrop;
use crate::error::storage;
use crate::index::PrimaryIndex;
use crate::log::StoreLog;
use crate::maintenance::Maintenance;
use crate::map::catalog::Maps;
use crate::map::header::MapHeader;
use crate::map::inner::{MapInner, OpenContext};
use crate::record::cas::CasCounter;
use crate::record::partial::PartialBlocks;
use crate::record::tombstone_of;
use crate::{Durability, Error, IndexKind, Map, Options, Result, trace};

/// A file with maps in it: a handle, to be cloned and shared between threads.
///
/// Records are read and written through a [`Map`]: the [default map](Evermap::default_map), or one
/// with a [name](Evermap::map). Threads in the background sweep after an unclean shutdown, remove
/// expired records and move records together; no request waits for them.
///
/// Dropping the last handle of the file and of its maps closes the file, but cannot report whether
/// that succeeded: [`close`](Evermap::close) can.
///
/// ```
/// use evermap::{Evermap, Options};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("map");
/// let db = Evermap::open(&path, Options::new())?;
/// db.default_map().put(b"apple", b"red")?;
/// db.close()?;
///
/// let map = Evermap::open(&path, Options::new().create(false))?.default_map();
/// assert_eq!(map.get(b"apple")?.as_deref(), Some(&b"red"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Other media
///
/// `Evermap<M>` runs on any [`Medium`], for instance on a simulator that crashes it. Such a file is
/// opened with [`open_medium`](Evermap::open_medium), and has no threads in the background: its
/// caller does [what they do elsewhere](#without-threads-in-the-background). Dropping it does not
/// close it.
pub struct Evermap<M: Medium = Mapped> {
    pub(crate) file: Arc<FileInner<M>>,
    /// Closes the file when the last handle is dropped. `None` on a medium of the caller's, and in
    /// the handles of the background threads, which must not keep the file open.
    pub(crate) closer: Option<Arc<CloseOnDrop<M>>>,
    /// Whether operations wait until they are durable, if the store has a log.
    pub(crate) waits: bool,
}

impl<M: Medium> Clone for Evermap<M> {
    fn clone(&self) -> Self {
        Evermap { file: self.file.clone(), closer: self.closer.clone(), waits: self.waits }
    }
}

// After a panic in the middle of a change, every operation fails with `Poisoned`.
impl<M: Medium> std::panic::UnwindSafe for Evermap<M> {}
impl<M: Medium> std::panic::RefUnwindSafe for Evermap<M> {}

impl<M: Medium> std::fmt::Debug for Evermap<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evermap").field("path", &self.file.origin.path).finish_non_exhaustive()
    }
}

/// An open file, or memory that is used like one: what its maps have in common.
pub(crate) struct FileInner<M: Medium> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) cas_counter: CasCounter,
    pub(crate) reservations: KeyReservations,
    pub(crate) clock: Time,
    /// Whether nothing may be changed.
    pub(crate) read_only: bool,
    pub(crate) verify: bool,
    /// Whether values may be borrowed from where they are: nothing outside of this store changes a
    /// byte, and no two records overlap.
    pub(crate) lends: bool,
    /// The control word of records that are unbound in this opening.
    pub(crate) tombstone: u64,
    pub(crate) maintenance: Maintenance,
    /// Whether every change is noted for copies.
    pub(crate) is_tracked: AtomicBool,
    /// The log, if the store has one.
    pub(crate) log: OnceLock<Arc<StoreLog>>,
    /// A file that has to stay open: the lock of the log, or the memory that a copy is in.
    pub(crate) kept: OnceLock<File>,
    /// Values that are being written piece by piece.
    pub(crate) partial: PartialBlocks,
    pub(crate) origin: Origin,
    /// Whether the last shutdown was clean.
    pub(crate) clean: bool,
    /// Whether the pages of the file may be of different ages.
    pub(crate) suspect: bool,
    pub(crate) options: Options,
    pub(crate) closed: AtomicBool,
    pub(crate) default: Arc<MapInner<M>>,
    pub(crate) maps: Maps<M>,
}

/// What the file was opened from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) path: Option<PathBuf>,
    pub(crate) file_system: String,
    pub(crate) durability: Durability,
    /// The time of the instant that is read, if it is one of a store that is in use.
    pub(crate) instant: Option<SystemTime>,
}

impl Origin {
    /// A medium that was handed over by the caller.
    pub(crate) fn medium() -> Self {
        Origin {
            path: None,
            file_system: "memory".into(),
            durability: Durability::Process,
            instant: None,
        }
    }

    pub(crate) fn of_mapped(medium: &Mapped, durability: Durability) -> Self {
        Origin {
            path: medium.path().map(Path::to_owned),
            file_system: medium.filesystem().to_owned(),
            durability,
            instant: None,
        }
    }
}

impl<M: Medium> FileInner<M> {
    /// Begins a change.
    ///
    /// # Errors
    /// `ReadOnly`; `Storage` with `Forked` or `Poisoned`.
    #[inline]
    pub(crate) fn ensure_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if let Some(log) = self.log.get() {
            log.ensure_room()?;
        }
        Ok(self.pool.region().ensure_writable()?)
    }

    /// Returns what maps are opened with.
    pub(crate) fn open_context(&self) -> OpenContext<'_, M> {
        OpenContext {
            pool: &self.pool,
            cas_counter: &self.cas_counter,
            options: &self.options,
            clean: self.clean,
        }
    }
}

impl Evermap {
    /// Starts the threads in the background.
    pub(crate) fn with_background(db: Self) -> Result<Self> {
        let closer = CloseOnDrop::new(db.clone())?;
        closer.start_threads().map_err(|source| {
            let path = db.file.origin.path.clone().unwrap_or_default();
            evermap_pm::Error::io("starting a thread", &path, source)
        })?;
        let (file, origin) = (&db.file, &db.file.origin);
        let bytes = file.pool.medium().len();
        let generation = file.pool.generation();
        trace::opened(origin.path.as_deref(), generation, file.clean, file.read_only, bytes);
        Ok(Evermap { closer: Some(Arc::new(closer)), ..db })
    }
}

impl<M: Medium> Evermap<M> {
    pub(crate) fn open_at(
        medium: M,
        identity: Identity,
        options: &Options,
        origin: Origin,
    ) -> Result<Self> {
        if !Region::is_blank(&medium) {
            let (pool, opened) = Pool::open(medium, identity, options.on_suspect)?;
            return Self::assemble(pool, Some(opened), options, origin);
        }
        if !options.create {
            return Err(Error::NotFound { path: origin.path });
        }
        Self::create_at(medium, identity, options, origin)
    }

    pub(crate) fn create_at(
        medium: M,
        identity: Identity,
        options: &Options,
        origin: Origin,
    ) -> Result<Self> {
        let least = least_capacity(options.index);
        if options.capacity < least {
            let text = format!(
                "a store with the index {} needs a capacity of at least {least} bytes, not {}",
                options.index, options.capacity
            );
            return Err(storage(evermap_pm::ErrorKind::Config(text)));
        }
        let config = RegionConfig {
            extent_size: options.extent_size,
            capacity: options.capacity,
            seed: options.seed,
        };
        Self::assemble(Pool::create(medium, &config, identity)?, None, options, origin)
    }

    /// `opened` is `None` for a new pool.
    fn assemble(
        pool: Arc<Pool<M>>,
        opened: Option<Opened>,
        options: &Options,
        origin: Origin,
    ) -> Result<Self> {
        let (region, header) = (pool.region(), MapHeader::of_default(&pool));
        let root = header.root(&pool);
        let is_new = pool.medium().load(root) == 0;
        if is_new && pool.medium().is_read_only() {
            return Err(Error::NotFound { path: origin.path });
        }
        let index = if is_new {
            // Either a new region, or its creation was interrupted before the root was stored:
            // everything that the root vouches for is written first.
            if !CasCounter::is_unused(region) {
                let at = pool.medium().offset_of(root);
                return Err(evermap_pm::Error::damaged(at, "the root of the index is lost").into());
            }
            CasCounter::create(region);
            header.create_flush(region);
            PrimaryIndex::create(options.index, false, &pool, root)?
        } else {
            PrimaryIndex::open(&pool, root)?
        };
        let cas_counter = CasCounter::open(region, options.on_suspect)?;
        pool.epoch().set_backlog_limit(options.reader_backlog);
        // Before anything else is done to any index, and before the sweep visits what they name.
        let damage_met = intent::resume(&pool, &index, options.on_suspect)?;
        let was_created = opened.is_none();
        let clean = opened.is_none_or(|opened| opened.clean);
        let suspect = opened.is_some_and(|opened| opened.suspect);
        let distrusted = suspect || opened.is_some_and(|opened| opened.damage > DamageMark::None);
        let context = OpenContext { pool: &pool, cas_counter: &cas_counter, options, clean };
        let default = Arc::new(context.assemble(header, index, None, None, is_new)?);
        default.damage_met.store(damage_met, Relaxed);
        default.max_bytes.store(options.max_bytes, Relaxed);
        let needs_sweep = !pool.is_swept() || default.counters.is_counting();
        let file = FileInner {
            maintenance: Maintenance::new(needs_sweep, is_new),
            is_tracked: AtomicBool::new(false),
            log: OnceLock::new(),
            kept: OnceLock::new(),
            partial: PartialBlocks::default(),
            cas_counter,
            reservations: KeyReservations::new(),
            clock: Time::new(options.clock.clone()),
            read_only: pool.medium().is_read_only(),
            verify: options.verify_reads || distrusted,
            // What was created here is what this process has stored. Everything else needs a
            // promise, which cannot be meant for pages that may be of different ages.
            lends: !distrusted
                && (options.assumes_exclusive_file || was_created && pool.medium().is_exclusive()),
            tombstone: tombstone_of(pool.generation()),
            origin,
            clean,
            suspect,
            options: options.clone(),
            closed: AtomicBool::new(false),
            default,
            maps: Maps::new(),
            pool,
        };
        let db = Evermap { file: Arc::new(file), closer: None, waits: true };
        let is_known = db.file.clean && db.file.pool.is_swept();
        if !is_known && options.on_suspect != OnSuspect::Salvage {
            db.ensure_not_widely_damaged()?;
        }
        if options.evict && !db.file.read_only {
            // Before anything is stored that older programs would not understand.
            db.file.pool.region().raise_format(ACCESS_FORMAT)?;
            let evictor = db.file.maintenance.evictor.clone();
            db.file.pool.heap().on_budget_spent(Box::new(move || evictor.wake()));
        }
        db.apply_memory_limit(options.memory_limit);
        Ok(db)
    }

    /// Refuses a file that was not closed, or whose state that was saved then cannot be read, if a
    /// sample of its index shows that it cannot be what the process left that had it open.
    fn ensure_not_widely_damaged(&self) -> Result<()> {
        if !self.default_map().is_widely_damaged()? {
            return Ok(());
        }
        let why = "much of its index cannot be read, or leads to nothing";
        self.file.pool.region().mark_damage(DamageMark::Widespread, why);
        let before = match self.file.clean {
            true => "what was saved when the store was closed cannot be used",
            false => "the store was not closed",
        };
        let why = format!("{before}, and {why}. {WIDE_DAMAGE}");
        Err(storage(evermap_pm::ErrorKind::Suspect { path: "".into(), why }))
    }

    /// Returns the default map, which every file has and which has no name. O(1).
    ///
    /// A program that needs one map needs no other:
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(&path, Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn default_map(&self) -> Map<M> {
        self.handle_of(&self.file.default)
    }

    /// Returns a handle of a map of this file.
    pub(crate) fn handle_of(&self, inner: &Arc<MapInner<M>>) -> Map<M> {
        Map { db: self.clone(), inner: inner.clone() }
    }
}

/// The format from which on records keep how they were read.
const ACCESS_FORMAT: u32 = 9;

/// Smallest capacity of a new store: below it, there is no room for records beside the index.
const fn least_capacity(index: IndexKind) -> u64 {
    match index {
        IndexKind::DashEh => 64 << 10,
        #[cfg(feature = "more-indexes")]
        IndexKind::LineHash => 64 << 10,
        // Those begin with more buckets.
        _ => 128 << 10,
    }
}
