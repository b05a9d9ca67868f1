//! Which process keeps a file locked, and whether it lives.
//!
//! The kernel does not say who holds a lock of an open file description, because several processes
//! may share one. The writer stores its id in the file, but that id alone proves little: the
//! process may be gone and a child that it forked may hold the lock, or the id may belong to
//! another process by now, or to one in another container. So the holder is looked for in `/proc`:
//! the locks of a descriptor are listed with it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::panic::Location;

use super::address;
use super::lock::WRITER_BYTE;
use crate::medium::HOLDER_PID_OFFSET;

/// Who keeps a file locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// This process, since the call at this place if it is known. It is not if the process was
    /// forked from the one that made the call.
    ThisProcess {
        place: Option<&'static Location<'static>>,
    },
    Living {
        pid: u32,
    },
    /// A process that is exiting, and releases the lock soon; or one that has ended, and something
    /// that cannot be seen from here holds the lock.
    Ending {
        pid: u32,
    },
    Unknown,
}

/// Returns who seems to hold the lock, by the id that is stored in the file. Readers store none.
pub(super) fn glance(file: &OwnedFd, by_readers: bool) -> Holder {
    if let Some(holder) = this_process(file) {
        return holder;
    }
    match stored_id(file).filter(|_| !by_readers) {
        None => Holder::Unknown,
        Some(pid) if liveness(pid) == Liveness::Alive => living(pid),
        Some(pid) => Holder::Ending { pid },
    }
}

fn living(pid: u32) -> Holder {
    match pid == std::process::id() {
        true => Holder::ThisProcess { place: None },
        false => Holder::Living { pid },
    }
}

/// Returns who holds the lock, as far as it can be seen. Reads the descriptors of all processes
/// unless the first guess is right: milliseconds for hundreds of processes.
pub(super) fn search(file: &OwnedFd, by_readers: bool) -> Holder {
    let guess = glance(file, by_readers);
    let named = match guess {
        Holder::ThisProcess { place: Some(_) } => return guess,
        // The kernel closes its descriptors soon.
        Holder::Ending { pid } if liveness(pid) == Liveness::Exiting => return guess,
        Holder::ThisProcess { place: None } => Some(std::process::id()),
        Holder::Living { pid } => Some(pid),
        Holder::Ending { .. } | Holder::Unknown => None,
    };
    match named.map(|pid| holds(pid, file)) {
        Some(Some(true)) => guess,
        // The id is that of another process, or of one in another container.
        Some(Some(false)) => found(file).unwrap_or(Holder::Unknown),
        Some(None) | None => found(file).unwrap_or(guess),
    }
}

/// Returns this process if it has opened the file.
fn this_process(file: &OwnedFd) -> Option<Holder> {
    let place = address::opened_at(identity(file)?)?;
    Some(Holder::ThisProcess { place: Some(place) })
}

/// Looks for a process that holds the lock; one that lives rather than one that is exiting.
fn found(file: &OwnedFd) -> Option<Holder> {
    let processes = || {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let mut ending = None;
    for pid in processes().filter(|&pid| holds(pid, file) == Some(true)) {
        match liveness(pid) {
            Liveness::Alive => return Some(living(pid)),
            _ => ending = Some(Holder::Ending { pid }),
        }
    }
    // A process may have closed the descriptor and kept the mapping, which holds the lock too.
    let mapping = || processes().find(|&pid| maps(pid, file) && liveness(pid) == Liveness::Alive);
    ending.or_else(|| mapping().map(living))
}

/// Returns whether a process has a descriptor with a lock on the writer's byte of the file, or
/// `None` if that cannot be seen.
fn holds(pid: u32, file: &OwnedFd) -> Option<bool> {
    let file = identity(file)?;
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let holds = descriptors.flatten().any(|entry| {
        // Follows the link, also to a file that was removed.
        std::fs::metadata(entry.path()).is_ok_and(|found| (found.dev(), found.ino()) == file)
            && is_locked(pid, &entry.file_name().to_string_lossy())
    });
    Some(holds)
}

/// Returns whether a descriptor of a process carries the lock.
fn is_locked(pid: u32, descriptor: &str) -> bool {
    let byte = WRITER_BYTE.to_string();
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"));
    info.unwrap_or_default().lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.next() == Some("lock:")
            && words.any(|word| word == "OFDLCK")
            && words.any(|word| word == byte)
    })
}

/// Returns whether a process has a mapping of the file.
fn maps(pid: u32, file: &OwnedFd) -> bool {
    let Some((device, inode)) = identity(file) else { return false };
    let device = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|line| {
        // Addresses, access, offset, device, inode, and the path.
        let mut words = line.split_ascii_whitespace();
        words.nth(3) == Some(&device)
            && words.next().and_then(|word| word.parse().ok()) == Some(inode)
    })
}

/// Returns the device and the inode of a file.
pub(super) fn identity(file: &OwnedFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns the process id stored in the file, or `None` if it is not a valid one.
fn stored_id(file: &OwnedFd) -> Option<u32> {
    let mut word = [0; 8];
    match rustix::io::pread(file, &mut word, HOLDER_PID_OFFSET) {
        Ok(8) => u32::try_from(u64::from_le_bytes(word))
            .ok()
            .filter(|&pid| pid != 0 && i32::try_from(pid).is_ok()),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Liveness {
    Alive,
    /// The kernel is tearing it down, or is about to.
    Exiting,
    /// Nothing is left of it, or only its exit code.
    Gone,
}

/// Returns whether a process lives.
fn liveness(pid: u32) -> Liveness {
    // Signal 0 only checks for existence, and works where /proc hides the processes of others.
    // SAFETY: sends nothing.
    let missing = unsafe { libc::kill(pid as i32, 0) } != 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    match (missing, liveness_by_stat(&read("stat"))) {
        (true, _) => Liveness::Gone,
        (_, Liveness::Alive) if status_says_exiting(&read("status")) => Liveness::Exiting,
        (_, by_stat) => by_stat,
    }
}

/// Parses `/proc/PID/stat`, which shows zombies and exiting processes.
fn liveness_by_stat(stat: &str) -> Liveness {
    const PF_EXITING: u64 = 0x4;
    // The second field is the program's name in parentheses, which may contain parentheses itself.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().unwrap_or_default();
    let mut number = |skipped: usize| fields.nth(skipped).and_then(|field| field.parse().ok());
    // The state is followed by parent, group, session, terminal and its group, and then the flags.
    // Ten numbers of faults, times and priorities are between these and the number of threads.
    let (flags, threads): (u64, u64) = (number(5).unwrap_or(0), number(10).unwrap_or(0));
    match state {
        // Its first thread has ended, and others have not yet.
        "Z" if threads > 1 => Liveness::Exiting,
        "Z" | "X" | "x" => Liveness::Gone,
        _ if flags & PF_EXITING != 0 => Liveness::Exiting,
        _ => Liveness::Alive,
    }
}

/// Returns `true` if `/proc/PID/status` shows a pending SIGKILL or a core dump being written.
fn status_says_exiting(status: &str) -> bool {
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
        let alive = "7 (a) Z 4) (b) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 3 0 5";
        let of = |from, to| liveness_by_stat(&alive.replace(from, to));
        assert_eq!(liveness_by_stat(alive), Liveness::Alive);
        assert_eq!(of(" S 1", " Z 1"), Liveness::Exiting, "with three threads");
        assert_eq!(of("4194560", "4194564"), Liveness::Exiting);
        assert_eq!(of(" S 1", " X 1"), Liveness::Gone);
        let last = alive.replace(" 20 0 3 ", " 20 0 1 ").replace(" S 1", " Z 1");
        assert_eq!(liveness_by_stat(&last), Liveness::Gone);
        for damaged in ["", "7 (a", "7 (a)", "7 (a) S 1 7", "7 (a) S 1 7 7 0 -1 x"] {
            assert_eq!(liveness_by_stat(damaged), Liveness::Alive, "{damaged:?}");
        }
    }

    #[test]
    fn a_pending_kill_or_a_core_dump_is_death() {
        let alive =
            "Name:\ta\nCoreDumping:\t0\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004002\n";
        assert!(!status_says_exiting(alive));
        assert!(status_says_exiting(&alive.replace("4002", "4102")));
        assert!(status_says_exiting(
            &alive.replace("SigPnd:\t0000000000000000", "SigPnd:\t0000000000000100")
        ));
        assert!(status_says_exiting(&alive.replace("Dumping:\t0", "Dumping:\t1")));
        assert!(!status_says_exiting("SigPnd\nSigPnd:\nShdPnd:\tzz\n"));
    }

    #[test]
    fn this_process_lives_and_a_reaped_one_does_not() {
        assert_eq!(liveness(std::process::id()), Liveness::Alive);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(liveness(pid), Liveness::Gone);
    }
}
