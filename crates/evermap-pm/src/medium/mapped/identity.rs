//! Finds out which file this is, and during which boot of the machine it was opened.
//!
//! A file that was not closed can be trusted if the kernel that was running then is still running,
//! and this is the same file: then every page has the contents that were last stored, whether or
//! not it was written back or the file system was unmounted in the meantime. On persistent memory,
//! where every store is written back, the kernel does not matter.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, fstatfs, fstatvfs, makedev, statx};

use super::filesystem::FileSystem;
use crate::medium::Identity;
use crate::{Error, Result};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the identity of an open file. Fields that the system does not provide are zero. If all
/// stores are written back to persistent memory, `unsafe_shutdowns` is the count of its modules.
pub(super) fn of(
    fd: impl AsFd,
    path: &Path,
    filesystem: FileSystem,
    unsafe_shutdowns: Option<u64>,
) -> Result<Identity> {
    let io = |errno| Error::io("reading its identity", path, errno);
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(&fd, c"", AtFlags::EMPTY_PATH, wanted).map_err(io)?;
    let birth = if stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
        let seconds = u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0);
        seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_btime.tv_nsec))
    } else {
        0
    };
    if let Some(count) = unsafe_shutdowns {
        let boot = Identity::persistent(count);
        return Ok(Identity { boot, device: 0, inode: stat.stx_ino, birth });
    }
    // An overlay gets a new device number with every mount, and a restarted container gets a new
    // overlay over the same files. The id of the overlay, or of the file system below, stays the
    // same.
    let device = match filesystem {
        FileSystem::Overlay => fstatvfs(&fd).map_err(io)?.f_fsid,
        _ => makedev(stat.stx_dev_major, stat.stx_dev_minor),
    };
    // The birth time cannot be set, so a file that was saved and restored is a different one.
    // Without it, the inode numbers of two boots can be equal.
    let boot = if filesystem.in_memory() && birth != 0 {
        Identity::MEMORY
    } else {
        boot_id(Path::new(BOOT_ID)).unwrap_or_else(Identity::unknown_boot)
    };
    Ok(Identity { boot, device, inode: stat.stx_ino, birth })
}

/// Returns the id of the running kernel, if `path` contains one that can be trusted.
///
/// A container may have put another file there. A file in memory was created during this boot of
/// the machine, so it is trusted: `systemd-nspawn` and LXC create a random one at every start. A
/// file on disk may be the same after a crash of the machine.
fn boot_id(path: &Path) -> Option<[u64; 2]> {
    const PROC: u32 = 0x0000_9fa0;
    const TMPFS: u32 = 0x0102_1994;
    let file = std::fs::File::open(path).ok()?;
    let magic = fstatfs(&file).ok()?.f_type as u32;
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    parse_boot_id(&text).filter(|_| [PROC, TMPFS].contains(&magic))
}

/// Parses the 32 hexadecimal digits of a boot id into two words. Returns `None` for anything else,
/// and for zeros.
fn parse_boot_id(text: &str) -> Option<[u64; 2]> {
    let digits: String = text.trim().chars().filter(|&char| char != '-').collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32 && id != 0).then_some([(id >> 64) as u64, id as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_two_words_or_none() {
        assert_eq!(
            parse_boot_id("01234567-89ab-cdef-fedc-ba9876543210\n"),
            Some([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210])
        );
        let zeros = "00000000-0000-0000-0000-000000000000";
        for bad in ["", "01234567", "g1234567-89ab-cdef-fedc-ba9876543210", "é", zeros] {
            assert_eq!(parse_boot_id(bad), None, "{bad:?}");
        }
    }

    /// A file on a disk can have the same contents after a crash of the machine.
    #[test]
    fn a_boot_id_that_can_outlive_the_kernel_is_not_trusted() {
        let text = "01234567-89ab-cdef-fedc-ba9876543210\n";
        let (in_memory, on_disk) =
            (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let write = |directory: &Path| {
            std::fs::write(directory.join("boot_id"), text).unwrap();
            boot_id(&directory.join("boot_id"))
        };
        assert!(write(in_memory.path()).is_some());
        assert_eq!(boot_id(&in_memory.path().join("none")), None);
        let directory = std::fs::File::open(on_disk.path()).unwrap();
        match FileSystem::of(directory, on_disk.path()) {
            Ok(FileSystem::Tmpfs) => {
                println!("skipped in part: temporary files are in memory here")
            }
            _ => assert_eq!(write(on_disk.path()), None),
        }
        assert!(boot_id(Path::new(BOOT_ID)).is_some());
    }

    #[test]
    fn different_files_differ_and_one_file_equals_itself() {
        let (one, two) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let identity = |file| of(file, Path::new("file"), FileSystem::Ext, None).unwrap();
        assert_eq!(identity(&one), identity(&one));
        assert_ne!(identity(&one), identity(&two));
        assert_eq!(identity(&one).boot, identity(&two).boot);
    }
}
