//! The heterogeneous table in a file, for tables that are larger than memory. The same table in
//! persistent memory, with its design, is the module `tranche` of `evermap-papers`.
//!
//! A [`TrancheFile`] has tranches of 32 KiB, each read and written as a whole with `O_DIRECT`, many
//! at a time through `io_uring`. It keeps nothing of them in memory but a bounded cache: where a
//! key is follows from its hash and the number of groups. So a lookup of a present key reads one
//! tranche, or one more if the record is long or displaced, which few are; one of an absent key
//! hardly ever reads more than one.
//!
//! ```text
//! file       header | header | journal | group 0 | group 1 | ...
//!
//! group      [ tranche 0 | tranche 1 | ... | tranche 7 ]
//!            a search begins at its home and wraps around; a counter in each tranche says whether
//!            it has to go on
//!
//! file .long records that are longer than a thirty-second part of a tranche, one behind the other
//! ```
//!
//! The layout of a tranche is drawn at `Page`, that of the header at `Header`.
//!
//! Changes are collected in memory. When there are enough of them, each further one writes a
//! *portion*: some of them, tranche by tranche, or a step of growth. [`sync`](TrancheFile::sync)
//! writes all of them. The table belongs to one thread, as in the talk; shards are several tables.
//!
//! Memory is what the cache and the collected changes may have, and up to two portions while
//! one is written. The space of long records that were replaced or removed is not used again:
//! walk over the table with [`for_each`](TrancheFile::for_each) and load another one to get it
//! back.
//!
//! # Growth
//!
//! Linear hashing in rounds. A round begins when the tranches are 0.9 full, or a group is nearly
//! full, and splits every group, one after the other in the order of the file, some in a portion.
//! It is spread over the changes that come meanwhile, and ends when they have made the groups that
//! wait by a fiftieth of their space fuller; so these do not become full. If one of them does all
//! the same, its changes stay in memory, and the portions that follow split all groups up to it.
//!
//! # The longest operation
//!
//! [`put`](TrancheFile::put) and [`remove`](TrancheFile::remove) write at most one portion: they
//! read at most twice as many tranches as [it may have](Options::portion_bytes), write each of
//! these to the journal and in place, and append as many bytes of long records and one record more.
//! `sync` takes as long as the changes that were collected, and if a group is full before its turn,
//! as the rest of the round up to it.
//!
//! # What survives a crash
//!
//! * Until the first `sync` of a new table returns, nothing: the file says that it is incomplete,
//!   and is refused. So a table is loaded without writing anything twice.
//! * Afterwards, everything that was changed before the last `sync`, whatever happens: the death of
//!   the process, of the system, or power loss, if the disk carries out its flushes.
//! * Of later changes, for each key the old value or the new one. They are written in portions, and
//!   a portion survives as a whole or not at all, because it is written to a journal before any of
//!   it is written in place.
//! * A tranche that is torn or damaged all the same has a wrong checksum. Lookups that read it
//!   return `Damaged`, others are not affected.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use evermap_pm::{Error, ErrorKind, Result};

mod cache;
mod changes;
mod check;
mod grow;
mod header;
mod pace;
mod page;
mod queue;
mod read;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(test)]
mod tests;
mod write;

use cache::Cache;
use changes::{Changes, Order};
use header::{Groups, Header, damaged, not_a_store};
use pace::Pace;
use page::{Hash, Page, STRIP_BYTES};
use queue::{Buffer, Direction, Queue, Target, Transfer};

/// Tranches in a group.
const GROUP: u64 = 8;
/// The fill that a new table is expected to reach.
const FILL_EXPECTED: f64 = 0.86;

/// How a [`TrancheFile`] is used. The file does not depend on it, except for `expected`.
#[derive(Clone, Debug)]
pub struct Options {
    cache_bytes: usize,
    buffer_bytes: usize,
    portion_bytes: usize,
    queue_depth: usize,
    io_uring: bool,
    expected: (u64, u64),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache_bytes: 4 << 20,
            buffer_bytes: 64 << 20,
            portion_bytes: 4 << 20,
            queue_depth: 32,
            io_uring: true,
            expected: (0, 0),
        }
    }
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the cache of tranches: 4 MiB by default.
    pub fn cache_bytes(self, cache_bytes: usize) -> Self {
        Options { cache_bytes, ..self }
    }

    /// Sets how many bytes of memory collected changes may take before some are written: 64 MiB by
    /// default. The larger it is, the more of them meet in one tranche.
    pub fn buffer_bytes(self, buffer_bytes: usize) -> Self {
        Options { buffer_bytes, ..self }
    }

    /// Sets how many bytes of tranches are written as a whole, and so how long a single change can
    /// take: 4 MiB by default, at least 16 tranches, and at most what the journal has (32 MiB with
    /// tranches of 32 KiB, 2 MiB with 4 KiB). With less, the longest change takes less time, and
    /// all of them may take more, because each portion waits several times until the disk has
    /// written it.
    pub fn portion_bytes(self, portion_bytes: usize) -> Self {
        Options { portion_bytes, ..self }
    }

    /// Sets the greatest number of transfers at a time: 32 by default.
    pub fn queue_depth(self, queue_depth: usize) -> Self {
        Options { queue_depth, ..self }
    }

    /// Sets whether `io_uring` is used if the system permits that, which is the default. Without
    /// it, transfers are done one after the other.
    pub fn io_uring(self, io_uring: bool) -> Self {
        Options { io_uring, ..self }
    }

    /// Sets how many records a new table is expected to have, and how many bytes of keys and values
    /// without those of long records, so that it need not grow before: none by default.
    pub fn expected(self, records: u64, bytes: u64) -> Self {
        Options { expected: (records, bytes), ..self }
    }

    fn check(&self) -> Result<()> {
        if (1..=4096).contains(&self.queue_depth) {
            return Ok(());
        }
        let what = format!("a queue of {} transfers: it must be 1 to 4096", self.queue_depth);
        Err(ErrorKind::Config(what).into())
    }
}

/// What a [`TrancheFile`] has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tranches read from the file.
    pub tranche_reads: u64,
    /// Tranches found in the cache.
    pub cache_hits: u64,
    /// Long records read from their file.
    pub long_reads: u64,
    /// Tranches written in their places.
    pub tranche_writes: u64,
    /// Pages written to the journal.
    pub journal_writes: u64,
    /// Groups split.
    pub splits: u64,
}

/// A map from byte strings to byte strings in a file of tranches of `T` bytes, a multiple of 4096
/// up to 32 KiB.
///
/// See the [module](self).
///
/// # Errors
///
/// Every operation can return `Io`, `Damaged` (a checksum differs, or a tranche is impossible) and,
/// after a change has failed, `Poisoned`: then the table has to be opened again. Changes can also
/// return `NoSpace`.
pub struct TrancheFile<const T: usize = { 32 << 10 }> {
    path: PathBuf,
    queue: Queue,
    header: Header,
    buffer_bytes: usize,
    /// The most tranches that are written in a portion.
    portion: u64,
    cache: Cache<T>,
    /// Buffers of tranches that are not used.
    spare: Vec<Buffer>,
    changes: Changes<T>,
    pace: Pace,
    /// Until the first `sync`, which tranches were written.
    written: Option<Vec<bool>>,
    counters: Counters,
    direct: bool,
    /// Whether a change is incomplete.
    failed: bool,
}

impl<const T: usize> TrancheFile<T> {
    /// The number of tranches in the journal: as many as a page has numbers of, up to 1024.
    const JOURNAL: u64 = {
        let listed = (T as u64 - 24) / 8;
        if listed < 1024 { listed } else { 1024 }
    };
    /// The page of the list of the journal.
    const LIST: u64 = 2;
    /// The page of tranche 0.
    const FIRST: u64 = Self::LIST + 1 + Self::JOURNAL;
    /// Bytes of records for which there is space in a group.
    const CAPACITY: u64 = GROUP * Page::<T>::capacity() as u64;

    /// Creates an empty table. There must be no file at `path`, nor one with `.long` behind its
    /// name.
    ///
    /// # Errors
    /// `Io`, `Config`.
    pub fn create(path: &Path, options: Options) -> Result<Self> {
        options.check()?;
        let table = open(path, true)?;
        let long = open(&long_path(path), true)?;
        let (records, bytes) = options.expected;
        let bytes = (bytes + records * (STRIP_BYTES + 1)) as f64 / FILL_EXPECTED;
        let base = (bytes as u64).div_ceil(Self::CAPACITY).max(1);
        let header = Header {
            sequence: 1,
            base,
            groups: base,
            seed: RandomState::new().hash_one(0u64),
            records: 0,
            bytes: 0,
            long_end: 0,
            journal: None,
        };
        let mut file = Self::assemble(path, table, long, header, options)?;
        file.written = Some(vec![false; (base * GROUP) as usize]);
        file.extend()?;
        file.write_header(header)?;
        Ok(file)
    }

    /// Opens a table. If the process or the system died while a portion of changes was being
    /// written, that is completed.
    ///
    /// # Errors
    /// `NotAStore` if the file is no table, a table with tranches of another size, or one that was
    /// never synchronised; `NewerFormat`, `Damaged`, `InUse`, `Io`, `Config`.
    pub fn open(path: &Path, options: Options) -> Result<Self> {
        options.check()?;
        let table = open(path, false)?;
        let header = read_header::<T>(&table.0, path)?;
        if header.journal.is_none() {
            let why = "it was never synchronised, so not all of it was written: delete it and load \
                       it again";
            return Err(not_a_store(path, why));
        }
        let long = open(&long_path(path), false)?;
        let mut file = Self::assemble(path, table, long, header, options)?;
        file.check_lengths()?;
        file.finish_portion()?;
        Ok(file)
    }

    fn assemble(
        path: &Path,
        (table, direct): (File, bool),
        (long, _): (File, bool),
        header: Header,
        options: Options,
    ) -> Result<Self> {
        match table.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let path = path.to_owned();
                return Err(ErrorKind::InUse { path, pid: 0, is_ending: false }.into());
            }
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(Error::io("locking", path, error));
            }
        }
        Ok(TrancheFile {
            path: path.to_owned(),
            queue: Queue::new(table, long, options.queue_depth, options.io_uring),
            header,
            buffer_bytes: options.buffer_bytes,
            portion: ((options.portion_bytes / T) as u64).clamp(2 * GROUP, Self::JOURNAL),
            cache: Cache::new(options.cache_bytes / T),
            spare: Vec::new(),
            changes: Changes::default(),
            pace: Pace::default(),
            written: None,
            counters: Counters::default(),
            direct,
            failed: false,
        })
    }

    /// Returns whether transfers bypass the page cache of the system: file systems can refuse that.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns whether `io_uring` is used.
    pub fn uses_io_uring(&self) -> bool {
        self.queue.overlaps()
    }

    /// Returns the number of records that are written. O(1).
    pub fn written_records(&self) -> u64 {
        self.header.records
    }

    /// Returns the share of the space for records in tranches that is taken, 0 to 1. O(1).
    pub fn fill(&self) -> f64 {
        self.header.bytes as f64 / (self.header.groups * Self::CAPACITY) as f64
    }

    /// Returns the length of both files together, in bytes. O(1).
    pub fn file_bytes(&self) -> u64 {
        Self::offset_of(self.header.groups * GROUP) + self.header.long_end
    }

    /// Returns what was done since the table was opened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Stores a value for a key, in memory at first. Writes at most one portion.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() + value.len() >= 1 << 28 {
            let bytes = (key.len() + value.len()) as u64;
            return Err(Error::no_space("key and value of less than 256 MiB", bytes));
        }
        self.change(key, Some(value.into()))
    }

    /// Removes a key, in memory at first. Writes at most one portion.
    pub fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.change(key, None)
    }

    fn change(&mut self, key: &[u8], value: Option<Box<[u8]>>) -> Result<()> {
        self.ensure_whole()?;
        let order = self.order(self.hash(key));
        self.changes.insert(order, key, value);
        if self.changes.bytes() > self.buffer_bytes { self.step() } else { Ok(()) }
    }

    /// Makes all changes durable.
    pub fn sync(&mut self) -> Result<()> {
        self.ensure_whole()?;
        self.flush()?;
        if self.written.is_some() { self.complete() } else { Ok(()) }
    }

    fn ensure_whole(&self) -> Result<()> {
        if self.failed { Err(ErrorKind::Poisoned.into()) } else { Ok(()) }
    }

    fn groups(&self) -> Groups {
        Groups { base: self.header.base, count: self.header.groups }
    }

    fn hash(&self, key: &[u8]) -> Hash {
        Hash::of(key, self.header.seed)
    }

    fn order(&self, hash: Hash) -> Order {
        Order::of(hash, self.header.base)
    }

    /// Returns the tranche at which a search arrives after `step` steps.
    fn place(&self, hash: Hash, step: u64) -> u64 {
        self.groups().of(hash.first) * GROUP + (home(hash) + step) % GROUP
    }

    /// Returns the position of a tranche in the file.
    fn offset_of(place: u64) -> u64 {
        (Self::FIRST + place) * T as u64
    }

    fn io(&self, action: &'static str, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::StorageFull {
            return Error::no_space("the file system of a table of tranches", T as u64);
        }
        Error::io(action, &self.path, error)
    }

    /// Returns a buffer for a tranche.
    fn buffer(&mut self) -> Buffer {
        self.spare.pop().unwrap_or_else(|| Buffer::new(T))
    }

    /// Makes the file long enough for all groups.
    fn extend(&mut self) -> Result<()> {
        let end = Self::offset_of(self.header.groups * GROUP);
        self.queue.set_len(Target::Table, end).map_err(|error| self.io("growing", error))
    }

    fn check_lengths(&self) -> Result<()> {
        let expected = [
            (Target::Table, Self::offset_of(self.header.groups * GROUP)),
            (Target::Long, self.header.long_end),
        ];
        for (target, end) in expected {
            let len = self.queue.len(target).map_err(|error| self.io("reading", error))?;
            if len < end {
                let what = format!("the {target:?} file has {len} bytes instead of {end}");
                return Err(damaged(len, what));
            }
        }
        Ok(())
    }

    /// Writes a header, not yet durable.
    fn write_header(&mut self, header: Header) -> Result<()> {
        let (buffer, copy) = header.encode::<T>(self.buffer());
        let buffer = self.write_once(Target::Table, copy * T as u64, buffer)?;
        self.spare.push(buffer);
        self.header = header;
        Ok(())
    }

    fn write_once(&mut self, target: Target, offset: u64, buffer: Buffer) -> Result<Buffer> {
        let direction = Direction::Write;
        let transfer = Transfer { direction, target, offset, token: 0, buffer };
        self.queue.once(transfer).map_err(|error| self.io("writing", error))
    }

    fn sync_file(&mut self, target: Target) -> Result<()> {
        self.queue.sync(target).map_err(|error| self.io("synchronising", error))
    }
}

/// Returns the path of the file for long records.
fn long_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".long");
    name.into()
}

/// Opens a file, or creates it. Returns whether transfers bypass the page cache.
fn open(path: &Path, create: bool) -> Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if create {
        // Created without `O_DIRECT`, which could fail behind the creation.
        options.create_new(true).open(path).map_err(|error| Error::io("creating", path, error))?;
        options.create_new(false);
    }
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let mut direct = options.clone();
        direct.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
        match direct.open(path) {
            Ok(file) => return Ok((file, true)),
            // The file system has no such transfers.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(Error::io("opening", path, error)),
        }
    }
    let file = options.open(path).map_err(|error| Error::io("opening", path, error))?;
    Ok((file, false))
}

/// Reads the header of a table that is to be opened.
fn read_header<const T: usize>(table: &File, path: &Path) -> Result<Header> {
    let len = table.metadata().map_err(|error| Error::io("reading", path, error))?.len();
    let mut copies = [Buffer::new(T), Buffer::new(T)];
    for (copy, buffer) in copies.iter_mut().enumerate() {
        let offset = (copy * T) as u64;
        if offset + T as u64 <= len {
            let read = table.read_exact_at(buffer.bytes_mut(), offset);
            read.map_err(|error| Error::io("reading", path, error))?;
        }
    }
    Header::choose::<T>(copies[0].bytes(), copies[1].bytes(), path)
}

/// Returns the tranche at which the search for a key begins, in its group.
fn home(hash: Hash) -> u64 {
    (hash.first >> 56) % GROUP
}
