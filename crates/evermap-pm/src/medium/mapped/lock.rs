//! The lock that allows one writer at a time.
//!
//! The writer holds a byte-range lock that belongs to its open file description. It conflicts with
//! every other open of the file, also in the same process, and is released when the last descriptor
//! and the last mapping are closed. That takes time: the kernel needs tens of milliseconds per GiB
//! to tear down the mapping of a killed process. So an opener that finds the file locked checks
//! whether the holder is exiting, and waits for it if so.
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
use crate::medium::HOLDER_PID_OFFSET;
use crate::{Error, ErrorKind, Result};

/// The byte that the writer locks.
const WRITER_BYTE: i64 = 1 << 62;

/// How long to wait for a holder that is not exiting: one that was asked to stop is often just
/// closing the file, and one that has closed it may just have forked a child, which keeps the lock
/// until it calls exec.
const ALIVE_WAIT: Duration = Duration::from_millis(100);

/// Takes the lock for `access`, and waits up to `wait` for a writer that is exiting.
///
/// # Errors
///
/// `InUse` if there is a writer that is not exiting, or still holds the lock after `wait`;
/// `OpenReadOnly` if `access` is to write and readers hold the file.
pub(super) fn acquire(file: &OwnedFd, path: &Path, access: Access, wait: Duration) -> Result<()> {
    let start = Instant::now();
    let mut alive_since = None;
    let mut pause = Duration::from_millis(1);
    loop {
        if try_lock(file, path, access)? {
            return Ok(());
        }
        let has_readers = is_held_by_readers(file);
        // Readers store no id. The one in the file is that of an earlier writer.
        let pid = if has_readers { None } else { holder(file) };
        let timed_out = if pid.is_some_and(is_dying) {
            alive_since = None;
            start.elapsed() >= wait
        } else {
            // Alive, or unknown: a writer that has just started has not stored its process id yet.
            alive_since.get_or_insert_with(Instant::now).elapsed() >= ALIVE_WAIT.min(wait)
        };
        if timed_out && has_readers {
            return Err(ErrorKind::OpenReadOnly { path: path.to_owned() }.into());
        }
        if timed_out {
            let pid = pid.unwrap_or(0);
            return Err(ErrorKind::InUse { path: path.to_owned(), pid }.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
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

/// Returns the process id stored in the file, or `None` if it is not a valid one.
fn holder(file: &OwnedFd) -> Option<u32> {
    let mut word = [0; 8];
    match rustix::io::pread(file, &mut word, HOLDER_PID_OFFSET) {
        Ok(8) => u32::try_from(u64::from_le_bytes(word))
            .ok()
            .filter(|&pid| pid != 0 && i32::try_from(pid).is_ok()),
        _ => None,
    }
}

/// Returns `true` if a process has ended or is exiting.
fn is_dying(pid: u32) -> bool {
    // Signal 0 only checks for existence, and works where /proc hides the processes of others.
    // SAFETY: sends nothing.
    let missing = unsafe { libc::kill(pid as i32, 0) } != 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    missing || stat_says_dying(&read("stat")) || status_says_dying(&read("status"))
}

/// Returns `true` if `/proc/PID/stat` shows a zombie or an exiting process.
fn stat_says_dying(stat: &str) -> bool {
    const PF_EXITING: u64 = 0x4;
    // The second field is the program's name in parentheses, which may contain parentheses itself.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().unwrap_or_default();
    // The state is followed by parent, group, session, terminal and its group, and then the flags.
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(state, "Z" | "X" | "x") || flags & PF_EXITING != 0
}

/// Returns `true` if `/proc/PID/status` shows a pending SIGKILL or a core dump being written.
fn status_says_dying(status: &str) -> bool {
    const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);
    status.lines().filter_map(|line| line.split_once(':')).any(|(name, value)| match name {
        "SigPnd" | "ShdPnd" => {
            u64::from_str_radix(value.trim(), 16).is_ok_and(|pending| pending & SIGKILL_BIT != 0)
        }
        "CoreDumping" => value.trim() == "1",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_read_behind_its_name() {
        let alive = "7 (a) Z 4) (b) S 1 7 7 0 -1 4194560 100 0 0 0 1 2";
        assert!(!stat_says_dying(alive));
        assert!(stat_says_dying(&alive.replace(" S 1", " Z 1")));
        assert!(stat_says_dying(&alive.replace(" S 1", " X 1")));
        assert!(stat_says_dying(&alive.replace("4194560", "4194564")));
        for damaged in ["", "7 (a", "7 (a)", "7 (a) S 1 7", "7 (a) S 1 7 7 0 -1 x"] {
            assert!(!stat_says_dying(damaged), "{damaged:?}");
        }
    }

    #[test]
    fn a_pending_kill_or_a_core_dump_is_death() {
        let alive =
            "Name:\ta\nCoreDumping:\t0\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004002\n";
        assert!(!status_says_dying(alive));
        assert!(status_says_dying(&alive.replace("4002", "4102")));
        assert!(status_says_dying(
            &alive.replace("SigPnd:\t0000000000000000", "SigPnd:\t0000000000000100")
        ));
        assert!(status_says_dying(&alive.replace("Dumping:\t0", "Dumping:\t1")));
        assert!(!status_says_dying("SigPnd\nSigPnd:\nShdPnd:\tzz\n"));
    }

    #[test]
    fn this_process_lives_and_a_reaped_one_does_not() {
        assert!(!is_dying(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(is_dying(pid));
    }
}
