//! The file under a mapping: opening, growing, discarding, and syncing.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, fallocate, ftruncate, open};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};

use super::filesystem::FileSystem;
use super::mapping::Mapping;
use super::{lock, round_down};
use crate::sync::{Mutex, Rank};
use crate::{Error, ErrorKind, Result};

/// Maximum number of bytes that one system call allocates. On tmpfs a signal makes the call start
/// over, so a single large call might never finish under a profiler.
const PIECE: u64 = 64 << 20;
/// Lower limit of the size of a piece when it is halved.
const SMALLEST_PIECE: u64 = 2 << 20;

/// What is done with a file, and so which lock it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads and writes it, alone.
    Write,
    /// Reads it, beside others that do no more.
    Read,
}

/// An open, locked file.
pub(super) struct File {
    fd: OwnedFd,
    access: Access,
    path: PathBuf,
    filesystem: FileSystem,
    /// The unit of the file's length: 4096, or the size of a huge page on hugetlbfs.
    granule: u64,
    /// Length in the file system. Locked while the file grows.
    size: Mutex<u64>,
    /// Whether a new length is durable before it is used. Words that name what is beyond the old
    /// one can be durable from then on, so the file system must not forget it.
    has_durable_length: bool,
    /// The first failure of a write-back. Locked while syncing.
    sync_failure: Mutex<Option<Errno>>,
    /// Whether this opening has created it.
    is_new: bool,
}

impl File {
    /// Opens or creates `path` and takes the writer's lock.
    pub(super) fn open(path: &Path, create: bool, lock_wait: Duration) -> Result<Self> {
        Self::open_for(path, Access::Write, create, lock_wait)
    }

    /// Opens `path`, takes a reader's lock, and leaves the file as it is.
    ///
    /// # Errors
    /// `FileSystem` on hugetlbfs, where a private page may find no memory.
    pub(super) fn open_read_only(path: &Path, lock_wait: Duration) -> Result<Self> {
        Self::open_for(path, Access::Read, false, lock_wait)?.with_private_pages()
    }

    fn open_for(path: &Path, access: Access, create: bool, lock_wait: Duration) -> Result<Self> {
        let mut is_absent = false;
        let fd = match open_existing(path, access) {
            Err(Errno::NOENT) if create => {
                is_absent = true;
                create_new(path)
            }
            Err(Errno::ISDIR) => Err(not_a_store(path, FileType::Directory)),
            opened => opened.map_err(|errno| Error::io("opening", path, errno)),
        }?;
        let kind = FileType::from_raw_mode(status(&fd, path)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(not_a_store(path, kind));
        }
        let filesystem = FileSystem::of(&fd, path)?;
        lock::acquire(&fd, path, access, lock_wait)?;
        let file = Self::of_locked(fd, path, filesystem, access)?;
        // Another process may have created it too, and have filled it before it was locked.
        let is_new = is_absent && file.bytes() == 0;
        Ok(File { is_new, ..file })
    }

    /// Creates a `File` from a descriptor whose lock this process holds.
    fn of_locked(fd: OwnedFd, path: &Path, filesystem: FileSystem, access: Access) -> Result<Self> {
        // The previous holder of the lock may have replaced the file: then a deleted file is
        // locked.
        let (ours, named) = (status(&fd, path)?, rustix::fs::stat(path));
        if !named.is_ok_and(|named| (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)) {
            let replaced =
                std::io::Error::other("the file was replaced in the meantime; open it again");
            return Err(Error::io("opening", path, replaced));
        }
        let size = ours.st_size as u64;
        let granule =
            if filesystem == FileSystem::Hugetlbfs { ours.st_blksize as u64 } else { 4096 };
        Ok(File {
            fd,
            access,
            path: path.to_owned(),
            filesystem,
            granule,
            size: Mutex::ranked(Rank::File, size),
            has_durable_length: false,
            sync_failure: Mutex::ranked(Rank::Leaf, None),
            is_new: false,
        })
    }

    /// Changes whether a new length is durable before it is used.
    pub(super) fn with_durable_length(self, has_durable_length: bool) -> Self {
        File { has_durable_length, ..self }
    }

    /// Returns whether this opening has created the file: there was none, and nobody else has
    /// stored anything in it.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Removes the file at `path`, whose lock this process holds by `fd`, unless another is there
    /// now. A symbolic link is left where it is.
    pub(super) fn remove(fd: &OwnedFd, path: &Path) -> Result<()> {
        let (ours, named) = (status(fd, path)?, rustix::fs::lstat(path));
        match named {
            Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => {
                rustix::fs::unlink(path).map_err(|errno| Error::io("removing", path, errno))?;
                match FileSystem::of(fd, path)?.in_memory() {
                    true => Ok(()),
                    false => sync_directory(&open_directory(parent_of(path))?, path),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns another descriptor of the same open file description, which shares the lock.
    pub(super) fn share(&self) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
            .map_err(|errno| Error::io("sharing the descriptor", &self.path, errno))
    }

    /// Returns the same file for a view of its pages, which must not change it. The lock is shared:
    /// it is held as long as one of the two is.
    ///
    /// # Errors
    /// `Io`; `FileSystem` on hugetlbfs, where a private page may find no memory.
    pub(super) fn for_view(&self) -> Result<Self> {
        let file = File {
            fd: self.share()?,
            access: Access::Read,
            path: self.path.clone(),
            filesystem: self.filesystem,
            granule: self.granule,
            size: Mutex::ranked(Rank::File, self.bytes()),
            has_durable_length: false,
            sync_failure: Mutex::ranked(Rank::Leaf, None),
            is_new: false,
        };
        file.with_private_pages()
    }

    /// Refuses a file system that has no pages for private changes.
    fn with_private_pages(self) -> Result<Self> {
        if self.filesystem != FileSystem::Hugetlbfs {
            return Ok(self);
        }
        let (path, name) = (self.path, self.filesystem.name().into());
        let why = "it has no pages for what a reader changes in its own memory; open it for \
                   writing, without snapshots";
        Err(ErrorKind::FileSystem { path, name, why }.into())
    }

    /// Truncates a file whose lock this process holds to zero bytes, and opens it again.
    pub(super) fn truncate(fd: OwnedFd, path: &Path) -> Result<Self> {
        let filesystem = FileSystem::of(&fd, path)?;
        let io = |errno| Error::io("truncating", path, errno);
        ftruncate(&fd, 0).map_err(io)?;
        if !filesystem.in_memory() {
            rustix::fs::fsync(&fd).map_err(io)?;
        }
        Self::of_locked(fd, path, filesystem, Access::Write)
    }

    /// Returns whether the file may not be changed.
    pub(super) fn is_read_only(&self) -> bool {
        self.access == Access::Read
    }

    /// Refuses a change of a file that is only read.
    fn ensure_writable(&self) -> Result<()> {
        match self.access {
            Access::Write => Ok(()),
            Access::Read => Err(ErrorKind::ReadOnly { path: self.path.clone() }.into()),
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn filesystem(&self) -> FileSystem {
        self.filesystem
    }

    pub(super) fn granule(&self) -> u64 {
        self.granule
    }

    /// Returns the length in the file system.
    pub(super) fn bytes(&self) -> u64 {
        *self.size.lock().expect("no panics while held")
    }

    /// Returns the length in whole granules. A partial granule at the end is not usable yet.
    pub(super) fn whole_bytes(&self) -> u64 {
        round_down(*self.size.lock().expect("no panics while held"), self.granule)
    }

    /// Makes the file `target` bytes long, allocates all its new space, and then calls `publish`.
    ///
    /// `target` must be a multiple of the granule. Does nothing if the file is already that long.
    /// If it fails, the file is unchanged.
    pub(super) fn grow(&self, target: u64, publish: impl FnOnce(u64)) -> Result<()> {
        self.ensure_writable()?;
        let mut size = self.size.lock().expect("no panics while held");
        let usable = round_down(*size, self.granule);
        if target <= usable {
            return Ok(());
        }
        self.check_size_limit(target, target - usable)?;
        self.allocate(usable..target, FallocateFlags::empty()).inspect_err(|_| {
            // Part of it may have been allocated before the disk was full. It is not in use yet.
            let _ = ftruncate(&self.fd, *size);
        })?;
        if *size > usable {
            // The file was truncated inside a page: the rest of that page has old contents, not
            // zeros.
            let remains = *size - usable;
            fallocate(&self.fd, PUNCH, usable, remains).map_err(|errno| {
                Error::io("zeroing the end of a truncated file", &self.path, errno)
            })?;
        }
        if self.has_durable_length {
            rustix::fs::fdatasync(&self.fd)
                .map_err(|errno| Error::io("making its length durable", &self.path, errno))?;
        }
        *size = target;
        publish(target);
        Ok(())
    }

    /// Makes an empty file one granule long, starting with `word`, and then calls `publish`.
    /// Durable on return. Returns `false` and does nothing if the file is not empty, or its file
    /// system does not support writes, so that it cannot be done in one step.
    pub(super) fn begin(&self, word: u64, publish: impl FnOnce(u64)) -> Result<bool> {
        self.ensure_writable()?;
        let mut size = self.size.lock().expect("no panics while held");
        if *size > 0 || !self.begins_atomically() {
            return Ok(false);
        }
        let mut page = vec![0; self.granule as usize];
        page[..8].copy_from_slice(&word.to_le_bytes());
        self.check_size_limit(self.granule, self.granule)?;
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, &page, 0));
        let written = written.map_err(|errno| self.allocation_error(errno, self.granule));
        if !matches!(&written, Ok(count) if *count == page.len()) {
            let _ = ftruncate(&self.fd, 0);
            return Err(written.map_or_else(
                |error| error,
                |_| self.allocation_error(Errno::NOSPC, self.granule),
            ));
        }
        if !self.filesystem.in_memory() {
            rustix::fs::fsync(&self.fd).map_err(|errno| Error::io("syncing", &self.path, errno))?;
        }
        *size = self.granule;
        publish(self.granule);
        Ok(true)
    }

    /// Returns `true` if [`begin`](File::begin) is atomic. Files on hugetlbfs can only be mapped,
    /// not written.
    pub(super) fn begins_atomically(&self) -> bool {
        self.filesystem != FileSystem::Hugetlbfs
    }

    /// Checks the file size limit. The kernel would end the process with a signal if it were
    /// exceeded.
    fn check_size_limit(&self, target: u64, needed: u64) -> Result<()> {
        match target > size_limit() {
            true => Err(self.no_space("would pass the file size limit (ulimit -f)", needed)),
            false => Ok(()),
        }
    }

    /// Returns the number of bytes of the file that have no space allocated, and that this opening
    /// could allocate.
    pub(super) fn hole_bytes(&self) -> u64 {
        if self.is_read_only() {
            return 0;
        }
        // If the call fails, assume that there are no holes: claims then find out.
        let blocks = rustix::fs::fstat(&self.fd).map_or(u64::MAX, |stat| stat.st_blocks as u64);
        self.whole_bytes().saturating_sub(blocks.saturating_mul(512))
    }

    /// Allocates space for `range`, so that storing to it cannot fail. Existing bytes are kept.
    pub(super) fn claim(&self, range: Range<u64>) -> Result<()> {
        if self.is_read_only() {
            // Pages that are stored to are taken from memory, not from the file system.
            return Ok(());
        }
        self.allocate(range, FallocateFlags::KEEP_SIZE).map_err(|error| match error.kind() {
            // Part of the range may already be allocated.
            ErrorKind::NoSpace { what, needed } => {
                Error::no_space(what.as_str(), (*needed).min(self.hole_bytes()))
            }
            _ => error,
        })
    }

    fn allocate(&self, range: Range<u64>, flags: FallocateFlags) -> Result<()> {
        let mut piece = PIECE.max(self.granule);
        let mut at = range.start;
        while at < range.end {
            let bytes = piece.min(range.end - at);
            match fallocate(&self.fd, flags, at, bytes) {
                Ok(()) => at += bytes,
                Err(Errno::INTR) => piece = (piece / 2).max(SMALLEST_PIECE).max(self.granule),
                Err(errno) => return Err(self.allocation_error(errno, range.end - at)),
            }
        }
        Ok(())
    }

    fn allocation_error(&self, errno: Errno, needed: u64) -> Error {
        match errno {
            Errno::NOSPC | Errno::NOMEM => self.no_space("file system is full", needed),
            Errno::DQUOT => self.no_space("disk quota is used up", needed),
            Errno::FBIG => self.no_space("too large for the file system", needed),
            _ => Error::io("allocating space", &self.path, errno),
        }
    }

    fn no_space(&self, why: &str, needed: u64) -> Error {
        let (path, filesystem) = (self.path.display(), self.filesystem.name());
        Error::no_space(format!("{path} on {filesystem}: {why}"), needed)
    }

    /// Returns the whole granules inside `range` to the file system.
    pub(super) fn discard(&self, range: Range<u64>) {
        let start = range.start.next_multiple_of(self.granule);
        let end = round_down(range.end, self.granule);
        if start < end && !self.is_read_only() {
            // If the system refuses, the bytes are unchanged, which the caller must expect anyway.
            let _ = fallocate(&self.fd, PUNCH, start, end - start);
        }
    }

    /// Waits until the first `bytes` bytes of the mapping are on the device.
    pub(super) fn sync(&self, mapping: &Mapping, bytes: u64) -> Result<()> {
        if self.filesystem.in_memory() || self.is_read_only() {
            return Ok(());
        }
        // Locked throughout: the kernel reports a failed write once, and drops the data. A sync
        // that ran beside the failing one would find nothing left to write and succeed.
        let mut failure = self.sync_failure.lock().expect("no panics while held");
        if let Some(errno) = *failure {
            let action = "syncing (an earlier sync failed, so data is lost; reopen the store)";
            return Err(Error::io(action, &self.path, errno));
        }
        // On Linux this is an `fdatasync` of the range: the file's length and its block list become
        // durable too, with one flush of the device. SAFETY: writes pages of our own mapping to its
        // file and changes no byte of them.
        unsafe { msync(mapping.address(0), bytes as usize, MsyncFlags::SYNC) }.map_err(|errno| {
            *failure = Some(errno);
            Error::io("syncing", &self.path, errno)
        })
    }
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn open_existing(path: &Path, access: Access) -> Result<OwnedFd, Errno> {
    let access = match access {
        Access::Write => OFlags::RDWR,
        Access::Read => OFlags::RDONLY,
    };
    // NONBLOCK and NOCTTY: opening a device by mistake must neither block nor acquire a terminal.
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    open(path, flags, Mode::empty())
}

/// Creates a file that survives a crash of the machine, if the file system is supported.
fn create_new(path: &Path) -> Result<OwnedFd> {
    let directory = open_directory(parent_of(path))?;
    // Checked before anything is created, so that a refusal leaves nothing behind.
    let filesystem = FileSystem::of(&directory, path)?;
    // Not exclusive: if two processes create it at the same time, the lock decides.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| Error::io("creating", path, errno))?;
    if !filesystem.in_memory() {
        sync_directory(&directory, path)?;
    }
    Ok(fd)
}

/// Makes durable which file `path` names: a file is durable only together with its directory entry.
fn sync_directory(directory: &OwnedFd, path: &Path) -> Result<()> {
    rustix::fs::fsync(directory)
        .map_err(|errno| Error::io("syncing the directory", parent_of(path), errno))
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io("opening the directory", path, errno))
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns how long this process may make a file.
///
/// By `libc`: with the feature that has this call, `rustix` takes a quarter longer to compile.
pub(crate) fn size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is a variable of our own. If the call fails, there is none.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

fn status(fd: &OwnedFd, path: &Path) -> Result<rustix::fs::Stat> {
    rustix::fs::fstat(fd).map_err(|errno| Error::io("reading its status", path, errno))
}

fn not_a_store(path: &Path, kind: FileType) -> Error {
    let why = match kind {
        FileType::Directory => "it is a directory; name a file inside it",
        FileType::CharacterDevice | FileType::BlockDevice => "it is a device; name a regular file",
        _ => "it is not a regular file",
    };
    ErrorKind::NotAStore { path: path.to_owned(), why: why.into() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::ProtFlags;

    /// After a failed write-back the kernel marks the lost pages as clean, so a retry would
    /// succeed.
    #[test]
    fn a_failed_sync_is_not_forgotten() {
        let file = File {
            fd: tempfile::tempfile().unwrap().into(),
            access: Access::Write,
            path: "file".into(),
            filesystem: FileSystem::Ext,
            granule: 4096,
            size: Mutex::ranked(Rank::File, 0),
            has_durable_length: false,
            sync_failure: Mutex::ranked(Rank::Leaf, None),
            is_new: false,
        };
        let mapping = Mapping::reserve(4096, 4096, ProtFlags::empty()).unwrap();
        file.sync(&mapping, 4096).unwrap();
        // No mapping is that long, so the kernel refuses.
        let first = file.sync(&mapping, u64::MAX - 4095).unwrap_err();
        assert!(!first.to_string().contains("earlier"), "{first}");
        for _ in 0..2 {
            let later = file.sync(&mapping, 4096).unwrap_err();
            assert!(later.to_string().contains("an earlier sync failed"), "{later}");
        }
    }
}
