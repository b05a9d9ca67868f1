//! The lock that allows one writer at a time.
//!
//! The writer holds a byte-range lock that belongs to its open file description. It conflicts with
//! every other open of the file, also in the same process, and is released when the last descriptor
//! and the last mapping are closed. That takes time: the kernel needs tens of milliseconds per GiB
//! to tear down the mapping of a killed process. So an opener that finds the file locked finds out
//! whether the [`holder`] is exiting, and waits for it if so.
//!
//! A forked child shares the description, and so the lock: while one lives, nobody else can write,
//! even if the process that opened the file is gone. Releasing the lock instead would let a writer
//! change what the child reads.
//!
//! A file that is opened read-only is locked in the same place by a shared lock: any number of
//! readers at a time, and no writer beside them.
//!
//! The lock covers one byte at 2^62, far beyond the end of any file. Readers that run beside the
//! writer may use the bytes after it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::file::Access;
use super::holder::{self, Holder};
use crate::{Error, ErrorKind, Result};

/// The byte that the writer locks.
pub(super) const WRITER_BYTE: i64 = 1 << 62;

/// How long to wait for a holder that is not exiting: one that was asked to stop is often just
/// closing the file, and one that has closed it may just have forked a child, which keeps the lock
/// until it calls exec.
const ALIVE_WAIT: Duration = Duration::from_millis(100);
/// How long to wait for a holder that cannot be seen. It may be a process of another user, but also
/// one that is exiting: its descriptors disappear shortly before its locks do.
const UNSEEN_WAIT: Duration = Duration::from_secs(1);
/// The longest time between two looks at who holds the lock, which read much of `/proc`.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Takes the lock for `access`, and waits up to `wait` for a holder that is exiting.
///
/// # Errors
///
/// `OpenHere` if this process has the file open; `InUse` if there is a writer that is not exiting,
/// or still holds the lock after `wait`; `OpenReadOnly` if `access` is to write and readers hold
/// the file.
pub(super) fn acquire(file: &OwnedFd, path: &Path, access: Access, wait: Duration) -> Result<()> {
    let start = Instant::now();
    // So long a holder has to be the same one before the opening is refused because of it.
    let patience = ALIVE_WAIT.min(wait);
    let (mut pause, mut look_after) = (Duration::from_millis(1), Duration::ZERO);
    let (mut next_look, mut seen) = (start, None);
    loop {
        if try_lock(file, path, access)? {
            return Ok(());
        }
        let now = Instant::now();
        if now >= next_look {
            let by_readers = is_held_by_readers(file);
            let is_last_look = seen.is_some() || patience.is_zero();
            let holder = if is_last_look {
                holder::search(file, by_readers)
            } else {
                holder::glance(file, by_readers)
            };
            let is_over = match holder {
                Holder::Ending { .. } => now - start >= wait,
                Holder::Unknown => now - start >= UNSEEN_WAIT.min(wait),
                _ => patience.is_zero() || seen.as_ref() == Some(&holder),
            };
            if is_over {
                return Err(refusal(path, by_readers, holder));
            }
            look_after = match holder {
                Holder::Ending { .. } => (look_after * 2).clamp(patience, LONGEST_LOOK),
                _ => patience,
            };
            (next_look, seen) = (now + look_after, Some(holder));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Returns the error of an opener that does not get the lock.
fn refusal(path: &Path, by_readers: bool, holder: Holder) -> Error {
    let path = path.to_owned();
    let (pid, is_ending) = match holder {
        Holder::ThisProcess { place } => {
            return ErrorKind::OpenHere { path, place, read_only: by_readers }.into();
        }
        Holder::Living { pid } => (pid, false),
        Holder::Ending { pid } => (pid, true),
        Holder::Unknown => (0, false),
    };
    match by_readers {
        true => ErrorKind::OpenReadOnly { path, pid }.into(),
        false => ErrorKind::InUse { path, pid, is_ending }.into(),
    }
}

fn try_lock(file: &OwnedFd, path: &Path, access: Access) -> Result<bool> {
    let (kind, action) = match access {
        Access::Write => (libc::F_WRLCK, "taking the writer's lock"),
        Access::Read => (libc::F_RDLCK, "taking a reader's lock"),
    };
    let lock = lock_of(kind);
    // SAFETY: `lock` is valid for the call, which only reads it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(Error::io(action, path, error)),
    }
}

/// Returns whether the lock that keeps a writer out is a shared one. Returns `false` if it has been
/// released.
fn is_held_by_readers(file: &OwnedFd) -> bool {
    let mut lock = lock_of(libc::F_WRLCK);
    // SAFETY: `lock` is valid for the call, which replaces it with the lock that is in the way.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    asked && i32::from(lock.l_type) == libc::F_RDLCK
}

/// Describes a lock of this kind on the writer's byte.
fn lock_of(kind: libc::c_int) -> libc::flock {
    // SAFETY: all fields are plain integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = WRITER_BYTE;
    lock.l_len = 1;
    lock
}
