//! The options that a file is opened with.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use evermap_pm::medium::FlushKind;
use evermap_pm::region::{OnSuspect, RegionConfig};

use crate::error::storage;
use crate::{Acknowledge, Clock, Error, IndexKind, Order, OrderedUpdates};

/// The default of [`Options::reader_backlog`]: far more than ever waits for short operations.
const READER_BACKLOG: u64 = 64 << 20;

/// The default of [`Options::checkpoint_bytes`].
const CHECKPOINT_BYTES: u64 = 256 << 20;

/// What a store survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: memory without a file, gone at exit.
    Volatile,
    /// Every acknowledged write survives the death of the process at any instruction. After a crash
    /// of the operating system the store knows that its pages may be of different ages, and says
    /// so.
    #[default]
    Process,
    /// As `Process`, and crashes of the operating system and loss of power: every store is written
    /// back to persistent memory, which keeps what has reached its controller. The file must be on
    /// a file system that is mounted for direct access (DAX).
    Adr,
    /// As `Adr`, on a machine that also keeps the contents of its processors' caches, so that
    /// nothing has to be written back.
    Eadr,
    /// As `Process`, and crashes of the operating system and loss of power, on any disk: changes
    /// are appended to a log, and [acknowledged](Options::acknowledge) when that is durable. After
    /// a crash of the machine the file is rebuilt from the log. See [`Evermap::sync`].
    ///
    /// [`Evermap::sync`]: crate::Evermap::sync
    Log,
}

impl Durability {
    fn as_str(self) -> &'static str {
        match self {
            Durability::Volatile => "volatile",
            Durability::Process => "process",
            Durability::Adr => "adr",
            Durability::Eadr => "eadr",
            Durability::Log => "log",
        }
    }

    /// Returns what flushes and fences do in a file.
    pub(crate) fn flush_kind(self) -> FlushKind {
        match self {
            Durability::Volatile | Durability::Process | Durability::Log => FlushKind::Process,
            Durability::Adr => FlushKind::Adr,
            Durability::Eadr => FlushKind::Eadr,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        use Durability::{Adr, Eadr, Log, Process, Volatile};
        [Volatile, Process, Adr, Eadr, Log]
            .into_iter()
            .find(|level| level.as_str() == name)
            .ok_or_else(|| {
                let known = "volatile, process, adr, eadr or log";
                storage(evermap_pm::ErrorKind::Config(format!(
                    "durability `{name}` is unknown; use {known}"
                )))
            })
    }
}

/// How to open a store.
///
/// ```
/// use evermap::{Evermap, Options};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("map");
/// let map = Evermap::open(path, Options::new().capacity(64 << 30))?.default_map();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    pub(crate) durability: Durability,
    pub(crate) capacity: u64,
    pub(crate) extent_size: u64,
    pub(crate) max_bytes: u64,
    pub(crate) memory_limit: u64,
    pub(crate) evict: bool,
    pub(crate) on_suspect: OnSuspect,
    pub(crate) verify_reads: bool,
    pub(crate) assumes_exclusive_file: bool,
    pub(crate) lock_wait: Duration,
    pub(crate) allocate_holes: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) index: IndexKind,
    pub(crate) clock: Clock,
    pub(crate) ordered: Order,
    pub(crate) ordered_updates: OrderedUpdates,
    pub(crate) reader_backlog: u64,
    pub(crate) offers_copies: bool,
    pub(crate) beside_writers: bool,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) log_folder: Option<PathBuf>,
    pub(crate) log_in_memory: bool,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) keep_log: bool,
    pub(crate) on_progress: Progress,
}

/// Is told how far a store is rebuilt.
#[derive(Clone)]
pub(crate) struct Progress(Arc<dyn Fn(u64, u64) + Send + Sync>);

impl Progress {
    pub(crate) fn report(&self, done: u64, total: u64) {
        (self.0)(done, total);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl Default for Options {
    fn default() -> Self {
        Options::new()
    }
}

impl Options {
    /// Changes whether other processes of the same user may ask for [copies] of the store while it
    /// is open: at a socket beside the file, `<file>.sock`. The default is not to; `evermap serve`
    /// does. If no socket can be made there, none are offered. Otherwise `evermap backup`, and
    /// everything that opens the store [read-only](Options::read_only), works while it is in use.
    ///
    /// [copies]: crate::Evermap::backup
    pub fn offers_copies(mut self, offers_copies: bool) -> Self {
        self.offers_copies = offers_copies;
        self
    }

    /// Changes whether a store that is opened [read-only](Options::read_only) may be a copy: if
    /// another process has it open and [offers copies](Options::offers_copies), the newest instant
    /// is copied into the memory of this process and read there. The default is that it may;
    /// [`Evermap::instant`](crate::Evermap::instant) tells. O(length of the file).
    pub fn beside_writers(mut self, beside_writers: bool) -> Self {
        self.beside_writers = beside_writers;
        self
    }

    /// Changes when an operation of a store with a [log](Durability::Log) returns. The default is
    /// [`Acknowledge::Each`].
    pub fn acknowledge(mut self, acknowledge: Acknowledge) -> Self {
        self.acknowledge = acknowledge;
        self
    }

    /// Changes the folder of the [log](Durability::Log). The default is `<file>.log`. If the file
    /// is in memory (tmpfs), the log must be elsewhere.
    pub fn log_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_folder = Some(folder.into());
        self
    }

    /// Changes whether the folder of the [log](Durability::Log) may be in memory (tmpfs), where a
    /// loss of power takes it too: for tests. The default is that it is refused.
    pub fn log_in_memory(mut self, is_allowed: bool) -> Self {
        self.log_in_memory = is_allowed;
        self
    }

    /// Changes after how many bytes of [log](Durability::Log) the image is brought up to date and
    /// the log before it is freed. The default is 256 MiB. The log takes about twice that on the
    /// disk, and after loss of power up to that must be read besides the image.
    pub fn checkpoint_bytes(mut self, bytes: u64) -> Self {
        self.checkpoint_bytes = bytes;
        self
    }

    /// Changes whether the [log](Durability::Log) is kept when it is not needed any more, for
    /// [restoring](crate::restore_log) what a moment had. The default is not to. Its files have
    /// to be removed by other means then.
    pub fn keep_log(mut self, keep_log: bool) -> Self {
        self.keep_log = keep_log;
        self
    }

    /// Changes what is told how far the store is rebuilt from its [log](Durability::Log) after loss
    /// of power, or [repaired](crate::Repair): the bytes that were read, and an upper limit of
    /// those that are to be.
    pub fn on_progress(mut self, report: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.on_progress = Progress(Arc::new(report));
        self
    }

    /// Returns the default options: the file is opened, or created if it does not exist.
    pub fn new() -> Self {
        let RegionConfig { extent_size, capacity, seed } = RegionConfig::default();
        Options {
            create: true,
            read_only: false,
            durability: Durability::default(),
            capacity,
            extent_size,
            max_bytes: u64::MAX,
            memory_limit: 0,
            evict: false,
            on_suspect: OnSuspect::Refuse,
            verify_reads: true,
            assumes_exclusive_file: false,
            lock_wait: Duration::from_secs(30),
            allocate_holes: false,
            seed,
            index: IndexKind::default(),
            clock: Clock::system(),
            ordered: Order::None,
            ordered_updates: OrderedUpdates::default(),
            reader_backlog: READER_BACKLOG,
            offers_copies: false,
            beside_writers: true,
            acknowledge: Acknowledge::default(),
            log_folder: None,
            log_in_memory: false,
            checkpoint_bytes: CHECKPOINT_BYTES,
            keep_log: false,
            on_progress: Progress(Arc::new(|_, _| {})),
        }
    }

    /// Returns options for a new file of up to `bytes`, at least 64 KiB (128 KiB with an index
    /// other than Dash-EH), which takes space in units of 4 KiB instead of 16 KiB.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(&path, Options::small(256 << 10))?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert!(std::fs::metadata(&path)?.len() <= 256 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn small(bytes: u64) -> Self {
        Options::new().capacity(bytes).extent_size(4096)
    }
}

/// # What most programs set
impl Options {
    /// Sets whether the file is created if it does not exist. The default is `true`.
    ///
    /// ```
    /// use evermap::{Error, Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let opened = Evermap::open(&path, Options::new().create(false));
    /// assert!(matches!(opened, Err(Error::NotFound { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether the file is only read: it does not change, and need not be writable. Off by default.
    ///
    /// Any number of openings can read a file at a time, in this process and in others. Meanwhile
    /// it cannot be opened for writing; and while it is open for writing, it cannot be opened to be
    /// read.
    ///
    /// All mutations fail with [`Error::ReadOnly`](crate::Error::ReadOnly). What has expired is
    /// absent, but is not removed. Nothing runs in the background but the building of an
    /// [ordered](Options::ordered) index.
    ///
    /// What an opening and an index usually store in the file while it is read stays in the memory
    /// of this process, in copies of pages. If the last shutdown was clean, these are the pages of
    /// the index that are looked at, at most. If it was unclean, the store is recovered there, as
    /// far as it is read: counts are bounds until [`recover`](crate::Evermap::recover) is called,
    /// which may copy the whole index. The next opening finds the file as it was, and recovers it
    /// again.
    ///
    /// Only for [`Evermap::open`](crate::Evermap::open). Contradicts
    /// [`OnSuspect::Discard`]. Not possible on hugetlbfs.
    ///
    /// ```
    /// use evermap::{Error, Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let db = Evermap::open(&path, Options::new())?;
    /// db.default_map().put(b"key", b"value")?;
    /// db.close()?;
    ///
    /// let map = Evermap::open(&path, Options::new().read_only(true))?.default_map();
    /// let other = Evermap::open(&path, Options::new().read_only(true))?.default_map();
    /// assert_eq!(map.get(b"key")?, other.get(b"key")?);
    /// assert!(matches!(map.delete(b"key"), Err(Error::ReadOnly)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the maximum size of a new file, bytes: address space, not memory or space on disk. The
    /// default is 256 GiB, the minimum 64 KiB, or 128 KiB with an index other than Dash-EH. A file
    /// cannot outgrow the capacity that it was created with.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(&path, Options::new().capacity(64 << 30))?.default_map();
    /// map.put("key", "value")?;
    /// assert!(std::fs::metadata(&path)?.len() < 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets what the file survives. The default is [`Durability::Process`]. What the machine or the
    /// file does not provide is refused, and never replaced by something weaker. A file on
    /// persistent memory is open at once after a loss of power too; one that was used with
    /// `Process` there has to be closed before it can be opened with `Adr` or `Eadr`.
    ///
    /// Only for [`Evermap::open`](crate::Evermap::open), which refuses [`Durability::Volatile`]:
    /// [`Evermap::in_memory`](crate::Evermap::in_memory) is for that. A file that is
    /// [only read](Options::read_only) can be on anything.
    ///
    /// ```
    /// use evermap::{Durability, ErrorKind, Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// match Evermap::open(&path, Options::new().durability(Durability::Adr)) {
    ///     Ok(db) => assert_eq!(db.stat().durability, Durability::Adr),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Config), // no persistent memory
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether the maps of the file also have an index of the keys in order, so that they can
    /// be [scanned](crate::Map::scan), and where: `true` is [`Order::Volatile`]. The default is
    /// [`Order::None`].
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// map.put(b"b", b"2")?;
    /// map.put(b"a", b"1")?;
    /// let first = map.scan(..)?.next().unwrap()?;
    /// assert_eq!(first, (b"a".to_vec(), b"1".to_vec()));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn ordered(mut self, order: impl Into<Order>) -> Self {
        self.ordered = order.into();
        self
    }

    /// Sets what to do with a file whose contents cannot be trusted: after a crash of the operating
    /// system, or if the file was copied while it was open, was cut off, or is damaged. The default
    /// is [`OnSuspect::Refuse`].
    ///
    /// Which to choose: a store that was killed before a *normal* shutdown of the machine is whole,
    /// but it cannot know that; [`OnSuspect::Salvage`] loses nothing then. After a crash or a power
    /// cut it keeps all that verifies: records may be missing, or be older than what was last
    /// acknowledged. A cache may rather start empty, with [`OnSuspect::Discard`]. Files that are
    /// not stores are never overwritten.
    ///
    /// ```
    /// use evermap::{Evermap, OnSuspect, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// // A cache, which can be filled again.
    /// let options = Options::new().memory_limit(64 << 20).evict(true);
    /// let options = options.on_suspect(OnSuspect::Discard);
    /// let cache = Evermap::open(path, options)?.default_map();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_suspect(mut self, on_suspect: OnSuspect) -> Self {
        self.on_suspect = on_suspect;
        self
    }

    /// Sets how long to wait for another process that has the file open but is dying. The default
    /// is 30 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use evermap::{Evermap, ErrorKind, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let options = Options::new().lock_wait(Duration::ZERO);
    /// let db = Evermap::open(&path, options.clone())?;
    /// let second = Evermap::open(&path, options);
    /// assert_eq!(second.unwrap_err().kind(), ErrorKind::InUse);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Sets where the time comes from. The default is the clock of the system.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use evermap::{Clock, Evermap, Options};
    /// let clock = Clock::manual(SystemTime::now());
    /// let map = Evermap::in_memory(Options::new().clock(clock.clone()))?.default_map();
    /// map.set("session").expires(map.now() + Duration::from_secs(60)).put("alice")?;
    /// clock.advance(Duration::from_secs(60));
    /// assert!(!map.contains("session")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

/// # Caches, and limits
impl Options {
    /// Sets the maximum number of bytes of memory that the file may take, with its indexes and
    /// everything else that is in it. The default, 0, is no limit. It is not stored in the file,
    /// and can be [changed](crate::Evermap::set_memory_limit) while it is open.
    ///
    /// The limit holds at every moment, but while a file that took more is being reduced to it,
    /// which happens in the background and without eviction not at all. Where a mutation needs more
    /// space, records that are expired or flushed are removed; if that is not enough, records are
    /// [evicted](Options::evict), or the mutation fails with
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace).
    ///
    /// The length of the file may exceed the limit: memory that is free is returned to the file
    /// system, which leaves holes in the file. The file of a cache becomes a quarter longer than
    /// the limit, and by its largest value if that takes much of it. So its
    /// [capacity](Options::capacity) should be 1.25 times the limit at least, and more for large
    /// values; otherwise four fifths of the capacity are the limit, which
    /// [`stat`](crate::Map::stat) shows. Ordinary memory of the process does not count: an
    /// [ordered](Options::ordered) index, for example, and the times at which records expire, 12
    /// bytes for each that does.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().memory_limit(1 << 20))?.default_map();
    /// let refused = (0..1_000u32).find_map(|key| map.put(&key.to_le_bytes(), &[0; 10_000]).err());
    /// assert!(refused.is_some_and(|error| error.is_no_space()));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// Sets whether the default map is a cache: when the [memory limit](Options::memory_limit), the
    /// disk or the capacity of the file leaves no space for a record, others are removed that are
    /// unlikely to be read again. While the disk is full, what the file takes of it is the limit.
    /// The default is `false`. Named maps are not affected, although they share the space.
    ///
    /// A thread in the background evicts ahead of need, about a fiftieth of the limit. Reads
    /// through [`get`](crate::Map::get) and its relatives count as accesses, and so do changes in
    /// place; walks, scans and [`peek`](crate::cache::CacheMap::peek) do not. How often and when a
    /// record was read is stored with it, so that nothing about it is lost when the process dies;
    /// once in eight seconds, at most, a read stores to the record.
    ///
    /// The first opening with this raises the format of the file, so that older versions of this
    /// program refuse it.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let options = Options::new().memory_limit(4 << 20).evict(true);
    /// let map = Evermap::in_memory(options)?.default_map();
    /// for key in 0..1_000u32 {
    ///     map.put(&key.to_le_bytes(), &[0; 10_000])?;
    /// }
    /// assert!(map.len() < 420);
    /// assert!(map.stat().evictions > 0);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn evict(mut self, evict: bool) -> Self {
        self.evict = evict;
        self
    }

    /// Sets the maximum number of bytes that the records of the default map may take together;
    /// beyond it, mutations return [`Error::Full`]. The default is no limit. It may be exceeded by
    /// one record per thread.
    ///
    /// Records that are expired or flushed are removed when space is needed. After an unclean
    /// shutdown, until the sweep has counted, an upper bound stands in for what records take, which
    /// may be an eighth too high; a mutation that finds no space waits for a while for a sweep that
    /// is under way.
    ///
    /// ```
    /// use evermap::{Error, Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().max_bytes(1 << 20))?.default_map();
    /// let refused = (0..1_000u32).find_map(|key| map.put(key.to_le_bytes(), [0; 10_000]).err());
    /// assert!(matches!(refused, Some(Error::Full { .. })));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }
}

/// # Tuning
impl Options {
    /// Sets whether every read verifies the checksum of the record, so that a wrong value is never
    /// returned from a damaged file. The default is `true`. When off, records are verified by
    /// [`check`](crate::Evermap::check) only, and on reads where the file was suspect when it was
    /// opened.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().verify_reads(false))?.default_map();
    /// map.put("key", [7; 1_000_000])?;
    /// assert_eq!(map.get_ref("key")?.unwrap().len(), 1_000_000);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn verify_reads(mut self, verify: bool) -> Self {
        self.verify_reads = verify;
        self
    }

    /// Promises that nothing else changes the file, so that values can be borrowed from it:
    /// [`get_ref`](crate::Map::get_ref) and [`Reader`](crate::Reader) then lend values where they
    /// are, instead of copies. Stores in memory lend values without it.
    ///
    /// A store whose contents are suspect, and that was opened nevertheless, lends nothing.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// // SAFETY: the file is in a directory of this program, which nothing else writes to.
    /// let options = unsafe { Options::new().assume_exclusive_file() };
    /// let map = Evermap::open(path, options)?.default_map();
    /// map.put(b"key", &[7; 1_000_000])?;
    /// assert!(map.get_ref(b"key")?.unwrap().is_borrowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// A borrowed value is a slice of a mapping of the file. As long as the store is open, the
    /// caller has to make sure that:
    /// * no other program writes to the file or cuts it off. Programs that open it as a store keep
    ///   to its lock; editors, copying tools and synchronizing services do not;
    /// * a forked child does not use what was borrowed before the fork;
    /// * the file is not damaged in such a way that another record or a part of an index overlaps a
    ///   value, which would be changed with it. Nothing but a failing disk or a foreign write does
    ///   that; checksums make it very unlikely that such a value is found, but cannot rule it out.
    pub unsafe fn assume_exclusive_file(mut self) -> Self {
        self.assumes_exclusive_file = true;
        self
    }

    /// Sets which threads update the ordered index when keys are bound and unbound. The default is
    /// [`OrderedUpdates::Background`].
    ///
    /// ```
    /// use evermap::{Evermap, Options, OrderedUpdates};
    /// // No threads of the store's own: writers do all of it.
    /// let options = Options::new().ordered(true).ordered_updates(OrderedUpdates::Batched);
    /// let map = Evermap::in_memory(options)?.default_map();
    /// map.put("key", "value")?;
    /// assert_eq!(map.scan(..)?.count(), 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn ordered_updates(mut self, ordered_updates: OrderedUpdates) -> Self {
        self.ordered_updates = ordered_updates;
        self
    }

    /// Sets the number of bytes that may wait for readers to end before mutations are held up, or a
    /// quarter of the file if that is more. The default is 64 MiB.
    ///
    /// What is replaced or removed cannot be used again while a [`Reader`](crate::Reader) lives
    /// that could see it. Beyond this limit, mutations wait up to a second for readers to end, and
    /// then fail with [`Error::HeldUp`], which names the thread; those of the thread that holds the
    /// reader fail immediately. So a reader that is forgotten does not make the file grow without
    /// end.
    ///
    /// ```
    /// use evermap::{Error, Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().reader_backlog(1 << 20))?.default_map();
    /// let reader = map.reader()?;
    /// let refused = (0..1_000_000u32).find_map(|_| map.put(b"key", &[0; 10_000]).err());
    /// assert!(matches!(refused, Some(Error::HeldUp(_))));
    /// drop(reader);
    /// map.put(b"key", &[0; 10_000])?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn reader_backlog(mut self, bytes: u64) -> Self {
        self.reader_backlog = bytes;
        self
    }

    /// Sets whether the whole length of the file gets space on disk from the beginning, so that no
    /// later use of that length can find the file system full: opening returns `NoSpace` if there
    /// is too little. The default is `false`: the space of what is in use is allocated in any case,
    /// also if a sparse copy has left holes, but free space that was returned to the system is
    /// allocated again when it is needed.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(path, Options::new().allocate_holes(true))?.default_map();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_holes(mut self, allocate: bool) -> Self {
        self.allocate_holes = allocate;
        self
    }

    /// Sets the maximum number of bytes that a *new* file takes at a time for records of similar
    /// size: a power of two from 4 KiB to 1 GiB; the default is 2 MiB. Space is taken in units of a
    /// 128th of that, but at least 4 KiB and at most 16 KiB: a few for the first records of each
    /// size, more as they become many, and as many as are needed for each large value. Small units
    /// suit files of less than a megabyte: see [`small`](Options::small).
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().extent_size(64 << 10))?.default_map();
    /// assert_eq!(map.stat().extent_size, 64 << 10);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn extent_size(mut self, bytes: u64) -> Self {
        self.extent_size = bytes;
        self
    }

    /// Sets which kind of index a *new* file has, and new maps in it. The default is Dash-EH; maps
    /// that exist keep the one that they were created with.
    ///
    /// ```
    /// use evermap::{Evermap, IndexKind, Options};
    /// for &kind in IndexKind::ALL {
    ///     let map = Evermap::in_memory(Options::new().index(kind))?.default_map();
    ///     map.put(b"key", b"value")?;
    ///     assert_eq!(map.stat().index, kind);
    /// }
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn index(mut self, kind: IndexKind) -> Self {
        self.index = kind;
        self
    }

    /// Sets the seed of the hash function of a new file, from which those of its named maps follow.
    /// The default is a random one for each. Fixed seeds make runs repeatable, but an attacker that
    /// knows the seed can choose keys that collide.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let keys = || -> evermap::Result<Vec<_>> {
    ///     let map = Evermap::in_memory(Options::new().seed(7))?.default_map();
    ///     (0..100u32).try_for_each(|key| map.put(key.to_le_bytes(), ""))?;
    ///     map.keys().collect()
    /// };
    /// assert_eq!(keys()?, keys()?, "the same order");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}
