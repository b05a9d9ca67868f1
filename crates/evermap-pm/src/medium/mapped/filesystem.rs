//! The file systems that can hold a mapped store, and the reasons why others cannot.

use std::os::fd::AsFd;
use std::path::Path;

use crate::{Error, ErrorKind, Result};

/// A supported file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Tmpfs,
    Hugetlbfs,
    /// ext2, ext3 and ext4, which have the same number. Only ext4 can allocate space ahead of use.
    Ext,
    Xfs,
    /// The file system below the overlay decides what is possible, and cannot be seen from here.
    Overlay,
}

impl FileSystem {
    /// Returns the file system of an open file or directory.
    ///
    /// # Errors
    ///
    /// `FileSystem` with the reason if it is not supported, `Io` if the system does not say which
    /// it is.
    pub(crate) fn of(fd: impl AsFd, path: &Path) -> Result<Self> {
        let stat = rustix::fs::fstatfs(fd)
            .map_err(|errno| Error::io("reading its file system", path, errno))?;
        // The numbers are 32 bits; some systems sign-extend them.
        let magic = stat.f_type as u32;
        if let Some((_, accepted)) = ACCEPTED.iter().find(|(number, _)| *number == magic) {
            return Ok(*accepted);
        }
        let (name, why) = match REFUSED.iter().find(|(number, ..)| *number == magic) {
            Some((_, name, why)) => (name.to_string(), *why),
            None => {
                (format!("{magic:#x}"), "it is not known which crashes its mapped pages survive")
            }
        };
        Err(ErrorKind::FileSystem { path: path.to_owned(), name, why }.into())
    }

    /// Returns `true` if files are in memory only, so that there is nothing to write back.
    pub(crate) fn in_memory(self) -> bool {
        matches!(self, FileSystem::Tmpfs | FileSystem::Hugetlbfs)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            FileSystem::Tmpfs => "tmpfs",
            FileSystem::Hugetlbfs => "hugetlbfs",
            FileSystem::Ext => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Overlay => "overlayfs",
        }
    }
}

const ACCEPTED: [(u32, FileSystem); 5] = [
    (0x0102_1994, FileSystem::Tmpfs),
    (0x9584_58f6, FileSystem::Hugetlbfs),
    (0x0000_ef53, FileSystem::Ext),
    (0x5846_5342, FileSystem::Xfs),
    (0x794c_7630, FileSystem::Overlay),
];

const NETWORK: &str =
    "pages mapped from a server can change, vanish or fail at any time; use a local disk or tmpfs";
const DAEMON: &str =
    "what survives a crash depends on the program behind it; use ext4, xfs or tmpfs";
const COPIES: &str =
    "it writes every change to a new place, so that a full disk kills the process; use ext4 or xfs";
const NO_ALLOCATION: &str = "space cannot be allocated ahead of use on it; use ext4, xfs or tmpfs";
const KERNEL: &str = "its files are a view of the kernel";

const REFUSED: [(u32, &str, &str); 17] = [
    (0x0000_6969, "nfs", NETWORK),
    (0xff53_4d42, "cifs", NETWORK),
    (0xfe53_4d42, "smb", NETWORK),
    (0x0102_1997, "9p", NETWORK),
    (0x00c3_6400, "ceph", NETWORK),
    (0x6573_5546, "fuse", DAEMON),
    (0x9123_683e, "btrfs", COPIES),
    (0x2fc1_2fc1, "zfs", COPIES),
    (0xca45_1a4e, "bcachefs", COPIES),
    (0xf2f5_2010, "f2fs", COPIES),
    (0x0000_3434, "nilfs2", COPIES),
    (0x8584_58f6, "ramfs", NO_ALLOCATION),
    (0x0000_4d44, "vfat", NO_ALLOCATION),
    (0x2011_bab0, "exfat", NO_ALLOCATION),
    (0x0000_9fa0, "proc", KERNEL),
    (0x6265_6572, "sysfs", KERNEL),
    (0x6367_7270, "cgroup2", KERNEL),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_files_are_refused_by_name() {
        let path = Path::new("/proc/self/status");
        let file = std::fs::File::open(path).unwrap();
        let error = FileSystem::of(&file, path).unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::FileSystem { name, why, .. } if name == "proc" && *why == KERNEL
            ),
            "{error}"
        );
    }

    #[test]
    fn no_number_is_both_accepted_and_refused_or_listed_twice() {
        let mut numbers: Vec<u32> = ACCEPTED.iter().map(|(number, _)| *number).collect();
        numbers.extend(REFUSED.iter().map(|(number, ..)| *number));
        let listed = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), listed);
    }
}
