//! A mapped file: words that survive the process, and power loss if the hardware keeps them.
//!
//! The address space is reserved once, so the base address never moves. The file grows inside it,
//! and every page is allocated in the file system before it may be touched. Only one writer has a
//! file open at a time.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};

use super::{Medium, OFFSET_LIMIT, Pages, flush};
use crate::explore::overwrite;
use crate::medium::Identity;
use crate::{Error, ErrorKind, PmU64, Quad, Result};

mod address;
mod file;
pub(crate) mod filesystem;
mod holder;
mod identity;
mod lock;
mod mapping;
mod pages;
mod persistent;
mod prefault;
mod recording;
mod sigbus;
mod snapshot;
mod tracker;

pub use address::describe_address;
pub use pages::PageReport;
pub use sigbus::explain_bus_errors;
pub use snapshot::memory_file;
pub use tracker::{Marks, PageChange};

use address::{Named, Opened};
use file::File;
pub(crate) use file::size_limit;
use mapping::{HUGE_PAGE, Mapping};
use persistent::PersistentMemory;
use prefault::Prefaulter;
#[cfg(any(test, feature = "sim"))]
pub(crate) use tracker::MarkedStore;
pub(crate) use tracker::Tracker;
use tracker::{Mistake, planted};

/// A reservation that the system refuses is halved and tried again, down to this size.
const SMALLEST_CAPACITY: u64 = 1 << 30;

/// What flushes and fences do, and therefore which failures a written-back store survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushKind {
    /// Only compiler ordering. Stores survive the death of the process at any instruction.
    #[default]
    Process,
    /// Lines are written back to a memory controller that survives power loss. Needs DAX.
    Adr,
    /// Caches survive power loss, so stores only need ordering. Needs DAX and batteries.
    Eadr,
    /// Lines are written back as with `Adr`, on any memory. Stores survive the same failures as
    /// with `Process`. For measurements.
    Forced,
}

impl FlushKind {
    fn as_str(self) -> &'static str {
        match self {
            FlushKind::Process => "process",
            FlushKind::Adr => "adr",
            FlushKind::Eadr => "eadr",
            FlushKind::Forced => "forced",
        }
    }

    #[inline(always)]
    fn writes_lines_back(self) -> bool {
        matches!(self, FlushKind::Adr | FlushKind::Forced)
    }

    /// Returns `true` if the mapping must prove that its pages are persistent memory.
    fn needs_dax(self) -> bool {
        matches!(self, FlushKind::Adr | FlushKind::Eadr)
    }
}

impl fmt::Display for FlushKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for FlushKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        [FlushKind::Process, FlushKind::Adr, FlushKind::Eadr, FlushKind::Forced]
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| {
                let known = "process, adr, eadr or forced";
                ErrorKind::Config(format!("flush kind `{name}` is unknown; use {known}")).into()
            })
    }
}

/// Options for opening a [`Mapped`] file.
#[derive(Clone, Debug)]
pub struct MappedOptions {
    /// Maximum size that the file can grow to, in bytes. Reserves address space, not memory. If the
    /// system refuses the reservation (`ulimit -v`), a smaller one is made, down to 1 GiB. The
    /// default is 256 GiB.
    pub capacity: u64,
    /// What flushes and fences do. Checked when the file is opened, and never silently lowered.
    pub flush: FlushKind,
    /// Whether a missing file is created. It is created empty and readable only by its owner.
    pub create: bool,
    /// How long to wait for a writer that is exiting. The default is 30 s.
    pub lock_wait: Duration,
    /// Whether holes in the file are allocated when it is opened, so that no later store can find
    /// the disk full. Otherwise discarded ranges must be [claimed](Medium::claim) before use.
    pub allocate_holes: bool,
    /// Whether the file is only read. It is opened without the right to write, so one that may not
    /// be written will do, and locked together with others that only read it. Its pages are mapped
    /// privately: what is stored to them stays in the memory of this process, and the file does not
    /// change and cannot grow. `create`, `flush` and `allocate_holes` have no meaning then.
    pub read_only: bool,
}

impl Default for MappedOptions {
    fn default() -> Self {
        MappedOptions {
            capacity: 256 << 30,
            flush: FlushKind::Process,
            create: false,
            lock_wait: Duration::from_secs(30),
            allocate_holes: false,
            read_only: false,
        }
    }
}

/// A file mapped into memory, held by one writer or by [readers](MappedOptions::read_only); or
/// anonymous memory with the same interface.
///
/// The address space is reserved once, so the base address never moves. The file grows inside it,
/// and every page is allocated in the file system before it may be touched.
///
/// This does *not* guard against another program that truncates the file or writes to it, against a
/// bad sector, or, on xfs, against a reflink copy of the file, whose pages need new space when they
/// are next stored to. All of these except foreign writes raise SIGBUS: [`explain_bus_errors`]
/// prints a message for it, and [`describe_address`] names the file and offset.
///
/// On a disk the kernel writes changed pages back at any moment and in any order. Only what a
/// [`sync`](Medium::sync) has covered, with no store since, survives a crash of the machine, unless
/// the file is on DAX.
///
/// Dropping it neither syncs nor truncates the file. A forked child inherits the mapping and keeps
/// the lock as long as it lives, even if this process is gone: until then the file cannot be opened
/// for writing, and the error names the child. See [`ForkDetector`](crate::fork::ForkDetector).
pub struct Mapped {
    // Fields are dropped in this order: the helper thread stops touching pages, the addresses are
    // unregistered, a view is, the pages are unmapped, and finally the file is closed, which
    // releases the lock.
    prefaulter: Prefaulter,
    _name: Option<Named>,
    tracker: Tracker,
    mapping: Mapping,
    file: Option<File>,
    len: AtomicU64,
    flush: FlushKind,
    identity: Identity,
}

impl Mapped {
    /// Returns the addresses of the bytes at these offsets.
    fn addresses(&self, bytes: &Range<u64>) -> Range<usize> {
        let base = self.mapping.base().as_ptr().expose_provenance();
        base + bytes.start as usize..base + bytes.end as usize
    }

    /// Opens `path`, takes the writer's lock, or a shared one for reading only, and maps the file.
    ///
    /// The usable length is the length of the file, rounded down to whole pages. Takes about a
    /// millisecond, or longer while a previous writer is exiting.
    ///
    /// # Errors
    ///
    /// * `Io` if the file cannot be opened; `NotAStore` for a directory or a device;
    /// * `FileSystem` if its file system cannot guarantee durability;
    /// * `OpenHere` if this process has the file open, unless both are readers;
    /// * `InUse` while another process writes, or lives as a forked child of a writer. A holder in
    ///   another process id namespace cannot be distinguished from one that is exiting, so it is
    ///   waited for;
    /// * `OpenReadOnly` if readers hold the file, and it is to be opened for writing;
    /// * `Config` if `flush` needs something that this machine or file does not have, or the
    ///   capacity is impossible;
    /// * `Damaged` if `flush` is for persistent memory, and blocks of the file are bad there;
    /// * `NoSpace` if there is not enough address space, or `allocate_holes` finds the disk full.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, options: &MappedOptions) -> Result<Self> {
        let path = path.as_ref();
        if options.read_only {
            let file = File::open_read_only(path, options.lock_wait)?;
            // It does not grow, and a system that does not overcommit memory counts all addresses
            // of a private mapping.
            let capacity = options.capacity.min(file.whole_bytes().max(file.granule()));
            let reading = MappedOptions {
                flush: FlushKind::Process,
                allocate_holes: false,
                capacity,
                ..*options
            };
            return Self::map(file, &reading);
        }
        persistent::check(options.flush)?;
        let file = File::open(path, options.create, options.lock_wait)?;
        let created = file.is_new().then(|| file.share()).transpose()?;
        Self::map(file, options).inspect_err(|_| {
            if let Some(created) = &created {
                // The error says more than that an empty file could not be removed.
                let _ = File::remove(created, path);
            }
        })
    }

    #[track_caller]
    fn map(file: File, options: &MappedOptions) -> Result<Self> {
        let path = &file.path().to_owned();
        let len = file.whole_bytes();
        let mapping = map_file(&file, len, options)?;
        let memory = options
            .flush
            .needs_dax()
            .then(|| PersistentMemory::under(file.fd(), path, options.flush))
            .transpose()?;
        mapping.advise(Advice::LinuxDontDump);
        if options.allocate_holes {
            file.claim(0..len)?;
        }
        let opened =
            Opened { path, identity: holder::identity(file.fd()), place: Location::caller() };
        let name = Named::new(mapping.base().addr().get(), mapping.bytes() as usize, &opened);
        let shutdowns = memory.as_ref().map(PersistentMemory::unsafe_shutdowns);
        let identity = identity::of(file.fd(), path, file.filesystem(), shutdowns)?;
        Ok(Mapped {
            prefaulter: Prefaulter::default(),
            _name: Some(name),
            tracker: Tracker::default(),
            mapping,
            file: Some(file.with_durable_length(memory.is_some())),
            len: AtomicU64::new(len),
            flush: options.flush,
            identity,
        })
    }

    /// Creates memory without a file, for stores that need not persist. It is freed when dropped.
    /// Its [name](Medium::name) is `volatile`.
    ///
    /// # Errors
    ///
    /// `Config` if `capacity` is zero or above 48 bits, or `flush` is for persistent memory;
    /// `NoSpace` if the system refuses the reservation.
    pub fn anonymous(capacity: u64, pages: Pages, flush: FlushKind) -> Result<Self> {
        if flush.needs_dax() {
            let why = format!("flush kind `{flush}` needs a file; use `process` or `forced`");
            return Err(ErrorKind::Config(why).into());
        }
        let capacity = checked_capacity(capacity, 4096)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::reserve(capacity, HUGE_PAGE, access)
            .map_err(|_| Error::no_space("address space", capacity))?;
        mapping.advise(match pages {
            Pages::Base => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        });
        mapping.advise(Advice::LinuxDontDump);
        Ok(Mapped {
            prefaulter: Prefaulter::default(),
            _name: None,
            tracker: Tracker::default(),
            mapping,
            file: None,
            len: AtomicU64::new(0),
            flush,
            identity: Identity::default(),
        })
    }

    /// Returns a handle that keeps the writer's lock after this is dropped, so that a decision
    /// about the contents of the file stays valid. Returns `None` for anonymous memory.
    ///
    /// # Errors
    ///
    /// `Io` if there are no more descriptors.
    pub fn keep_lock(&self) -> Result<Option<LockedFile>> {
        let Some(file) = &self.file else { return Ok(None) };
        Ok(Some(LockedFile { fd: file.share()?, path: file.path().to_owned() }))
    }

    /// Returns whether this opening has created the file.
    pub fn is_new_file(&self) -> bool {
        self.file.as_ref().is_some_and(File::is_new)
    }

    /// Returns what flushes and fences do.
    pub fn flush_kind(&self) -> FlushKind {
        self.flush
    }

    /// Returns the path that the file was opened with, or `None` for anonymous memory.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(File::path)
    }

    /// Returns the identity of the file, which was read when it was opened. All zeros for anonymous
    /// memory.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the name of the file system: `tmpfs`, `hugetlbfs`, `ext4` (also for ext2 and ext3),
    /// `xfs`, `overlayfs`, or `memory` if there is no file.
    pub fn filesystem(&self) -> &'static str {
        self.file.as_ref().map_or("memory", |file| file.filesystem().name())
    }

    /// Returns which kinds of pages back the mapping now. Walks the page tables of the process,
    /// which takes milliseconds per GiB.
    pub fn page_report(&self) -> PageReport {
        let base = self.mapping.base().addr().get();
        pages::report(base..base + self.mapping.bytes() as usize)
    }

    fn granule(&self) -> u64 {
        self.file.as_ref().map_or(4096, File::granule)
    }

    fn discard_untracked(&self, range: &Range<u64>) {
        if let Some(file) = &self.file {
            return file.discard(range.clone());
        }
        let start = range.start.next_multiple_of(4096);
        let end = round_down(range.end, 4096);
        if start < end {
            let bytes = (end - start) as usize;
            // SAFETY: whole pages of our own mapping, which read as zero afterwards.
            let _ = unsafe { madvise(self.mapping.address(start), bytes, Advice::LinuxDontNeed) };
        }
    }

    #[inline(never)]
    fn store_tracked(&self, cell: &PmU64, value: u64) {
        self.track(cell, || cell.atomic().store(value, Ordering::Release));
    }

    #[inline(never)]
    fn cas_tracked(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.track(cell, || exchange(cell, old, new))
    }

    #[inline(never)]
    fn write_bytes_tracked(&self, cells: &[PmU64], bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        // Words that are stored after an instant, although they were marked before it, may be in
        // the cut or not: nothing refers to them yet.
        let (offset, count) = (self.offset_of(&cells[0]), bytes.len() as u64);
        let _marked = self.tracker.begin_store(offset, count);
        super::copy::fill(cells, bytes);
    }

    /// Calls `store`, which stores to `cell`, with what is needed around it.
    fn track<T>(&self, cell: &PmU64, store: impl FnOnce() -> T) -> T {
        let offset = self.offset_of(cell);
        let _marked = self.tracker.begin_store(offset, 8);
        store()
    }
}

/// A file that is locked but not mapped. See [`Mapped::keep_lock`].
pub struct LockedFile {
    fd: OwnedFd,
    path: PathBuf,
}

impl LockedFile {
    /// Truncates the file to zero bytes, atomically, and maps it again. The previous mapping must
    /// have been dropped.
    ///
    /// # Errors
    ///
    /// The same as [`Mapped::open`].
    #[track_caller]
    pub fn truncate_and_map(self, options: &MappedOptions) -> Result<Mapped> {
        Mapped::map(File::truncate(self.fd, &self.path)?, options)
    }

    /// Removes the file, unless another has its name now. A process that waits for the lock sees
    /// that it is gone.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn remove(self) -> Result<()> {
        File::remove(&self.fd, &self.path)
    }
}

/// Reserves as much of the requested capacity as the system grants, and maps `file` there.
fn map_file(file: &File, len: u64, options: &MappedOptions) -> Result<Mapping> {
    let granule = file.granule();
    let mut capacity = checked_capacity(options.capacity, granule)?;
    if capacity < len {
        return Err(ErrorKind::Config(format!(
            "{} has {len} bytes, more than the capacity of {capacity}; raise the capacity",
            file.path().display()
        ))
        .into());
    }
    let least = SMALLEST_CAPACITY.min(capacity).max(len).next_multiple_of(granule);
    let mut mapping = loop {
        match Mapping::reserve(capacity, HUGE_PAGE.max(granule), ProtFlags::empty()) {
            Ok(mapping) => break mapping,
            Err(_) if capacity > least => {
                capacity = (capacity / 2).next_multiple_of(granule).max(least);
            }
            Err(_) => return Err(Error::no_space("address space (ulimit -v)", least)),
        }
    };
    let flags = if options.read_only {
        MapFlags::PRIVATE | MapFlags::NORESERVE
    } else if options.flush.needs_dax() {
        MapFlags::SHARED_VALIDATE | MapFlags::SYNC
    } else {
        MapFlags::SHARED | MapFlags::NORESERVE
    };
    mapping.attach(file.fd(), flags).map_err(|errno| match errno {
        Errno::OPNOTSUPP | Errno::INVAL if options.flush.needs_dax() => ErrorKind::Config(format!(
            "flush kind `{}`: {} on {} refused MAP_SYNC ({errno}); \
             mount a DAX file system or use `process`",
            options.flush,
            file.path().display(),
            file.filesystem().name(),
        ))
        .into(),
        _ => Error::io("mapping", file.path(), errno),
    })?;
    Ok(mapping)
}

fn checked_capacity(capacity: u64, granule: u64) -> Result<u64> {
    if capacity == 0 || capacity > OFFSET_LIMIT {
        return Err(ErrorKind::Config(format!("cannot reserve {capacity} bytes")).into());
    }
    Ok(capacity.next_multiple_of(granule))
}

fn round_down(bytes: u64, unit: u64) -> u64 {
    bytes - bytes % unit
}

// SAFETY: 1. The mapping is page-aligned and exists until drop. 2. `len` covers only bytes that the
// file had when it was opened or that `grow` has allocated; they are mapped readable and writable
// (privately if the file is only read), and other processes that respect the lock do not write
// them. 3. `grow` only raises `len`, up to `capacity`. 4. A mapping without a file is private.
unsafe impl Medium for Mapped {
    #[inline(always)]
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    #[inline(always)]
    fn len(&self) -> u64 {
        // Relaxed: a thread gets an offset from a word stored after the growth that made it usable.
        self.len.load(Ordering::Relaxed)
    }

    fn file_len(&self) -> u64 {
        self.file.as_ref().map_or_else(|| self.len(), File::bytes)
    }

    fn capacity(&self) -> u64 {
        self.mapping.bytes()
    }

    fn is_exclusive(&self) -> bool {
        self.file.is_none()
    }

    fn is_read_only(&self) -> bool {
        self.file.as_ref().is_some_and(File::is_read_only)
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len <= self.len() {
            return Ok(());
        }
        let capacity = self.capacity();
        if len > capacity && !self.is_read_only() {
            let what = self.path().map_or("memory".into(), |path| path.display().to_string());
            return Err(Error::no_space(format!("capacity of {what}"), len - capacity));
        }
        let target = len.next_multiple_of(self.granule());
        if let Some(live) = self.tracker.live() {
            live.marks().allocate(target)?;
        }
        match &self.file {
            Some(file) => file.grow(target, |grown| self.len.store(grown, Ordering::Release)),
            None => {
                self.len.fetch_max(target, Ordering::Release);
                Ok(())
            }
        }
    }

    fn begin(&self, word: u64) -> Result<()> {
        if let Some(file) = &self.file
            && file.begin(word, |grown| self.len.store(grown, Ordering::Release))?
        {
            return Ok(());
        }
        self.grow(8)?;
        let first: &PmU64 = self.at(0).expect("just grown");
        self.store(first, word);
        self.persist(first);
        // The page cache writes pages back in any order, and this page must be the first.
        self.sync()
    }

    fn begun_bytes(&self) -> u64 {
        match &self.file {
            Some(file) if file.begins_atomically() => 0,
            _ => self.granule(),
        }
    }

    fn hole_bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, File::hole_bytes)
    }

    fn discard(&self, range: Range<u64>) {
        if range.start >= range.end || range.end > self.len() {
            return;
        }
        // Touched afterwards, they would take memory again.
        self.prefaulter.withdraw(self.addresses(&range));
        let (start, bytes) = (range.start, range.end - range.start);
        let discard = || overwrite(self.addresses(&range), || self.discard_untracked(&range));
        if planted(Mistake::DiscardUnmarked) {
            return discard();
        }
        let _marked = self.tracker.begin_store(start, bytes);
        discard();
    }

    fn claim(&self, range: Range<u64>) -> Result<()> {
        let range = range.start..range.end.min(self.len());
        match &self.file {
            Some(file) if range.start < range.end => file.claim(range),
            _ => Ok(()),
        }
    }

    fn prefault(&self, range: Range<u64>) {
        let page = rustix::param::page_size() as u64;
        let start = round_down(range.start, page);
        let end = range.end.min(self.len()).next_multiple_of(page).min(self.capacity());
        // A private page is copied when it is made writable: not ahead of the first store.
        if start < end && !self.is_read_only() {
            self.prefaulter.request(self.addresses(&(start..end)));
        }
    }

    fn read_ahead(&self, range: Range<u64>) {
        let on_disk = self.file.as_ref().is_some_and(|file| !file.filesystem().in_memory());
        let page = rustix::param::page_size() as u64;
        let range = round_down(range.start, page)..round_down(range.end.min(self.len()), page);
        if !on_disk || range.start >= range.end {
            return;
        }
        let bytes = (range.end - range.start) as usize;
        // Starts reading the whole range, then waits until all of it is present.
        for advice in [Advice::WillNeed, Advice::LinuxPopulateRead] {
            // SAFETY: whole pages of our own mapping; reading them changes no byte. If the system
            // refuses, later loads only take longer.
            let _ = unsafe { madvise(self.mapping.address(range.start), bytes, advice) };
        }
    }

    fn sync(&self) -> Result<()> {
        match &self.file {
            Some(file) => file.sync(&self.mapping, self.len()),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn load_four(&self, cells: &[PmU64; 4]) -> Quad {
        Quad::load(cells)
    }

    #[inline(always)]
    fn store(&self, cell: &PmU64, value: u64) {
        match self.tracker.is_off() {
            true => cell.atomic().store(value, Ordering::Release),
            false => self.store_tracked(cell, value),
        }
    }

    #[inline(always)]
    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.store(cell, value);
    }

    #[inline(always)]
    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        match self.tracker.is_off() || planted(Mistake::CasUnmarked) {
            true => exchange(cell, old, new),
            false => self.cas_tracked(cell, old, new),
        }
    }

    #[inline(always)]
    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.cas(cell, old, new)
    }

    #[inline]
    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        match self.tracker.is_off() || planted(Mistake::FillUnmarked) {
            true => super::copy::fill(cells, bytes),
            false => self.write_bytes_tracked(cells, bytes),
        }
    }

    #[inline]
    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        super::copy::copy_out(cells, out);
    }

    #[inline]
    fn append_bytes(&self, cells: &[PmU64], bytes: usize, out: &mut Vec<u8>) {
        super::copy::append(cells, bytes, out);
    }

    fn name(&self) -> &'static str {
        if self.file.is_some() { self.flush.as_str() } else { "volatile" }
    }

    #[inline(always)]
    fn flush_bytes(&self, addr: *const u8, len: usize) {
        if self.flush.writes_lines_back() {
            flush::flush_lines(addr, len);
        }
    }

    #[inline(always)]
    fn fence(&self) {
        if self.flush == FlushKind::Process {
            // The kernel keeps every store of the process in program order, so it is enough that
            // the compiler keeps that order.
            compiler_fence(Ordering::Release);
        } else {
            flush::fence();
        }
    }
}

#[inline(always)]
fn exchange(cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
    cell.atomic().compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with persistent memory `persistent::check` passes, so the mapping itself must
    /// fail.
    #[test]
    fn a_file_outside_persistent_memory_cannot_be_mapped_as_such() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("file");
        let file = File::open(&path, true, Duration::ZERO).unwrap();
        for flush in [FlushKind::Adr, FlushKind::Eadr] {
            let options = MappedOptions { flush, ..MappedOptions::default() };
            let error = map_file(&file, 0, &options).map(|_| ()).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Config(why) if why.contains("refused MAP_SYNC")),
                "{error}"
            );
        }
        map_file(&file, 0, &MappedOptions::default()).map(|_| ()).unwrap();
    }
}
