//! The files of a real directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, ftruncate, openat};
use rustix::io::{Errno, retry_on_intr};

use super::storage::{File, Storage};
use crate::medium::{FileSystem, size_limit};
use crate::{Error, ErrorKind, Result};

/// Maximum number of bytes that are allocated by one system call. On some file systems a signal
/// makes the call start over.
const PIECE: u64 = 64 << 20;
/// Number of zeros that are written at once.
const ZEROS: usize = 1 << 20;

/// A directory of a file system, as [`Storage`]. Files are created with mode 0600.
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    is_read_only: bool,
}

impl Directory {
    /// Opens the directory `path`, for reading and writing.
    ///
    /// # Errors
    ///
    /// `Io` if there is none, or it is not accessible.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = open_directory(path)?;
        Ok(Directory { fd, path: path.to_owned(), is_read_only: false })
    }

    /// Opens the directory `path`, only for reading: files are opened read-only, and every change
    /// is an error.
    ///
    /// # Errors
    ///
    /// As [`open`](Directory::open).
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Ok(Directory { is_read_only: true, ..Self::open(path)? })
    }

    /// Creates the directory `path` durably, with mode 0700, unless there is one, and opens it.
    ///
    /// # Errors
    ///
    /// `Io` if it cannot be created or opened.
    pub fn create(path: &Path) -> Result<Self> {
        match retry_on_intr(|| rustix::fs::mkdir(path, Mode::RWXU)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::io("creating the directory", path, errno)),
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // Also if it exists: its creation may not be durable yet.
        Self::open(parent.unwrap_or(Path::new(".")))?.sync()?;
        Self::open(path)
    }

    /// Returns `true` if files are in memory only, so that nothing of them survives a loss of
    /// power.
    pub fn is_in_memory(&self) -> bool {
        // Of those that cannot hold a mapped store, none is known to be.
        FileSystem::of(&self.fd, &self.path).is_ok_and(FileSystem::in_memory)
    }

    fn ensure_writable(&self) -> Result<()> {
        match self.is_read_only {
            true => Err(ErrorKind::ReadOnly { path: self.path.clone() }.into()),
            false => Ok(()),
        }
    }

    fn open_file(&self, name: &str, flags: OFlags) -> Result<RealFile, Errno> {
        // NONBLOCK and NOCTTY: opening a device by mistake must neither block nor acquire a
        // terminal.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let fd = retry_on_intr(|| openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR))?;
        Ok(RealFile { fd, path: self.path.join(name) })
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
        .map_err(|errno| Error::io("opening the directory", path, errno))
}

impl Storage for Directory {
    fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn File>>> {
        let access = if self.is_read_only { OFlags::RDONLY } else { OFlags::RDWR };
        match self.open_file(name, access) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("opening", &self.path_of(name), errno)),
        }
    }

    fn create(&self, name: &str) -> Result<Box<dyn File>> {
        self.ensure_writable()?;
        match self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC) {
            Ok(file) => Ok(Box::new(file)),
            Err(errno) => Err(failure("creating", &self.path_of(name), errno, 0)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.ensure_writable()?;
        retry_on_intr(|| rustix::fs::renameat(&self.fd, from, &self.fd, to))
            .map_err(|errno| failure("renaming", &self.path_of(from), errno, 0))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.ensure_writable()?;
        match retry_on_intr(|| rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("removing", &self.path_of(name), errno)),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let io = |errno| Error::io("listing the directory", &self.path, errno);
        let entries = rustix::fs::Dir::read_from(&self.fd).map_err(io)?;
        let mut names = Vec::new();
        for entry in entries {
            // A name that is not UTF-8 is none of the log's.
            names.extend(entry.map_err(io)?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| rustix::fs::fsync(&self.fd))
            .map_err(|errno| Error::io("syncing the directory", &self.path, errno))
    }
}

struct RealFile {
    fd: OwnedFd,
    path: PathBuf,
}

impl RealFile {
    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        let zeros = vec![0; bytes.min(ZEROS as u64) as usize];
        let mut at = 0;
        while at < bytes {
            let piece = (bytes - at).min(zeros.len() as u64);
            self.write_at(offset + at, &zeros[..piece as usize])?;
            at += piece;
        }
        Ok(())
    }

    /// Reserves space, so that a full disk is noticed before zeros are written. File systems that
    /// cannot do that notice it while they are.
    fn reserve(&self, offset: u64, bytes: u64) -> Result<()> {
        let (mut at, mut piece) = (offset, PIECE);
        while at < offset + bytes {
            let len = piece.min(offset + bytes - at);
            match fallocate(&self.fd, FallocateFlags::empty(), at, len) {
                Ok(()) => at += len,
                Err(Errno::INTR) => piece = (piece / 2).max(ZEROS as u64),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(errno) => {
                    let needed = offset + bytes - at;
                    return Err(failure("allocating space", &self.path, errno, needed));
                }
            }
        }
        Ok(())
    }

    /// The kernel would end the process with a signal if the limit were exceeded.
    fn check_size_limit(&self, target: u64) -> Result<()> {
        match target > size_limit() {
            true => Err(failure("allocating space", &self.path, Errno::FBIG, target)),
            false => Ok(()),
        }
    }
}

impl File for RealFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.fd)
            .map_err(|errno| Error::io("reading its length", &self.path, errno))?;
        Ok(stat.st_size as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let at = offset + done as u64;
            match retry_on_intr(|| rustix::io::pread(&self.fd, &mut *rest, at)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(errno) => return Err(Error::io("reading", &self.path, errno)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (rest, at) = (&bytes[done..], offset + done as u64);
            let failed = |errno| failure("writing", &self.path, errno, rest.len() as u64);
            match retry_on_intr(|| rustix::io::pwrite(&self.fd, rest, at)) {
                Ok(0) => return Err(failed(Errno::IO)),
                Ok(count) => done += count,
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(&self.fd, flags, offset, bytes)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, bytes),
            Err(errno) => Err(Error::io("returning space", &self.path, errno)),
        }
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.check_size_limit(bytes)?;
        retry_on_intr(|| ftruncate(&self.fd, bytes))
            .map_err(|errno| failure("changing its length", &self.path, errno, bytes))
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        let old = self.size()?;
        let Some(new) = bytes.checked_sub(old) else { return Ok(()) };
        self.check_size_limit(bytes)?;
        self.reserve(old, new).and_then(|()| self.write_zeros(old, new)).inspect_err(|_| {
            // Best effort: nothing beyond the old length is in use.
            let _ = ftruncate(&self.fd, old);
        })
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| rustix::fs::fdatasync(&self.fd))
            .map_err(|errno| Error::io("syncing", &self.path, errno))
    }
}

#[cold]
fn failure(action: &'static str, path: &Path, errno: Errno, needed: u64) -> Error {
    let why = match errno {
        Errno::NOSPC => "file system is full",
        Errno::DQUOT => "disk quota is used up",
        Errno::FBIG => "would pass the file size limit",
        _ => return Error::io(action, path, errno),
    };
    Error::no_space(format!("{}: {why}", path.display()), needed)
}
