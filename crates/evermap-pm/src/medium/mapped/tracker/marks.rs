//! Where the states of pages are stored.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Release};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::page::{PAGE, PageState};
use crate::medium::mapped::mapping::Mapping;
use crate::{Error, PmU64, Result};

/// Bytes before the states of the pages.
const HEADER_BYTES: u64 = PAGE;

/// Bytes in the state of a page.
const STATE_BYTES: u64 = size_of::<PageState>() as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"EVMARKS\0");

/// Says which lines of a mapped file were stored to: in memory of this process, or in a file that
/// survives it.
///
/// ```text
/// 0      "EVMARKS\0"
/// 8      two words: whose marks they are
/// 24     the opening of the region that they belong to
/// 32     the last interval whose changes are durable elsewhere
/// 40     five words about where they are, and a check of those
/// 4096   16 bytes for each page: the interval in which it changed last, and the lines
/// ```
///
/// In a file, what was marked by a process that was killed is not lost. Its opener must know that
/// the machine has not been restarted, and that nobody without these marks has written to the
/// mapped file since.
pub struct Marks {
    mapping: Mapping,
    file: Option<(OwnedFd, PathBuf)>,
}

impl Marks {
    /// Opens the marks at `path` for a mapped file of `capacity` bytes. Returns `None` if there are
    /// none of `owner`, whose mapped file was opened for the `opening`th time when they were made.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`.
    pub fn open(path: &Path, owner: [u64; 2], opening: u64, capacity: u64) -> Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = match open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Error::io("opening", path, errno)),
        };
        let io = |errno| Error::io("reading its status", path, errno);
        let bytes = rustix::fs::fstat(&fd).map_err(io)?.st_size as u64;
        if bytes < HEADER_BYTES {
            return Ok(None);
        }
        let marks = Self::map(fd, path, capacity)?;
        marks.allocate(0)?;
        let [magic, first, second, of, _] = marks.header();
        let found = [magic, first, second, of].map(|word| word.atomic().load(Acquire));
        Ok((found == [MAGIC, owner[0], owner[1], opening]).then_some(marks))
    }

    /// Returns the opening that the marks at `path` belong to, if there are any of `owner`.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn opening(path: &Path, owner: [u64; 2]) -> Result<Option<u64>> {
        let bytes = match std::fs::File::open(path).and_then(|file| {
            let mut bytes = [0; 32];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).map(|()| bytes)
        }) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(Error::io("reading", path, error)),
        };
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("8"));
        Ok(([word(0), word(1), word(2)] == [MAGIC, owner[0], owner[1]]).then(|| word(3)))
    }

    /// Creates the marks at `path`, or makes them empty.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`.
    pub fn create(path: &Path, owner: [u64; 2], opening: u64, capacity: u64) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| Error::io("creating", path, errno))?;
        let marks = Self::map(fd, path, capacity)?;
        marks.allocate(0)?;
        let words = [MAGIC, owner[0], owner[1], opening, 0];
        for (cell, word) in marks.header().into_iter().zip(words) {
            cell.atomic().store(word, Release);
        }
        Ok(marks)
    }

    /// Creates marks that end with this process.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is not enough address space.
    pub(crate) fn in_memory(capacity: u64) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Marks { mapping: Mapping::addresses(marked_bytes(capacity), access)?, file: None })
    }

    /// Maps the file, and addresses for the states that it does not have yet.
    fn map(fd: OwnedFd, path: &Path, capacity: u64) -> Result<Self> {
        let bytes = marked_bytes(capacity);
        let mut mapping = Mapping::addresses(bytes, ProtFlags::empty())?;
        mapping
            .attach(&fd, MapFlags::SHARED | MapFlags::NORESERVE)
            .map_err(|errno| Error::io("mapping", path, errno))?;
        mapping.advise(Advice::LinuxDontDump);
        Ok(Marks { mapping, file: Some((fd, path.to_owned())) })
    }

    /// Makes the file long enough for the states of the first `bytes` bytes of the mapped file, so
    /// that marking them cannot find the disk full.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<()> {
        let Some((fd, path)) = &self.file else { return Ok(()) };
        let needed = marked_bytes(bytes);
        fallocate(fd, FallocateFlags::empty(), 0, needed).map_err(|errno| match errno {
            Errno::NOSPC | Errno::DQUOT => {
                Error::no_space(format!("{}: file system is full", path.display()), needed)
            }
            _ => Error::io("allocating space", path, errno),
        })
    }

    /// Stores for which opening of the mapped file these are.
    pub(crate) fn set_opening(&self, opening: u64) {
        self.header()[3].atomic().store(opening, Release);
    }

    /// Returns the last interval whose changes are durable elsewhere.
    pub(super) fn durable(&self) -> u64 {
        self.header()[4].atomic().load(Acquire)
    }

    /// Stores the last interval whose changes are durable elsewhere.
    pub(crate) fn set_durable(&self, interval: u64) {
        self.header()[4].atomic().store(interval, Release);
    }

    /// Stores where the changes up to [`durable`](Marks::durable) are.
    pub(crate) fn set_place(&self, words: [u64; 5]) {
        let cells = self.place();
        // Not valid while it changes, in case that the process is killed meanwhile.
        cells[5].atomic().store(0, Release);
        for (cell, word) in cells.iter().zip(words) {
            cell.atomic().store(word, Release);
        }
        cells[5].atomic().store(check_of(words), Release);
    }

    /// Returns what [`set_place`](Marks::set_place) has stored.
    pub(crate) fn found_place(&self) -> Option<[u64; 5]> {
        let words = self.place().each_ref().map(|cell| cell.atomic().load(Acquire));
        let [a, b, c, d, e, check] = words;
        let place = [a, b, c, d, e];
        (check == check_of(place)).then_some(place)
    }

    fn place(&self) -> &[PmU64; 6] {
        // SAFETY: as in `header`: the words after it, inside its page.
        unsafe { self.mapping.base().add(40).cast().as_ref() }
    }

    /// Writes everything to the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        match &self.file {
            None => Ok(()),
            Some((fd, path)) => {
                rustix::fs::fdatasync(fd).map_err(|errno| Error::io("syncing", path, errno))
            }
        }
    }

    pub(super) fn state(&self, page: u64) -> &PageState {
        let at = HEADER_BYTES + page * STATE_BYTES;
        debug_assert!(at < self.mapping.bytes());
        // SAFETY: there is a state for every page of the mapped file's capacity, at multiples of 16
        // bytes, and every bit pattern is one. Callers pass pages of the file.
        unsafe { self.mapping.base().add(at as usize).cast().as_ref() }
    }

    fn header(&self) -> [&PmU64; 5] {
        let words = self.mapping.base().cast::<[PmU64; 5]>();
        // SAFETY: the mapping has the header, and holds nothing but words; it is only dropped with
        // this.
        unsafe { words.as_ref() }.each_ref()
    }
}

/// Returns a check of words, which is not zero.
fn check_of(words: [u64; 5]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    u64::from(crc32c::crc32c(&bytes)) | 1 << 32
}

/// Returns how many bytes hold the marks of a file of `bytes` bytes.
fn marked_bytes(bytes: u64) -> u64 {
    (HEADER_BYTES + bytes.div_ceil(PAGE) * STATE_BYTES).next_multiple_of(PAGE)
}
