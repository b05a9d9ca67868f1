//! Which file this is, and in which life of the machine it was opened.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, makedev, statx};

use crate::region::Identity;
use crate::{Error, Result};

/// The identity of an open file. What the system does not tell is zero.
pub(super) fn of(fd: impl AsFd, path: &Path) -> Result<Identity> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, wanted)
        .map_err(|errno| Error::io("asking for its identity", path, errno))?;
    let birth = if stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
        let seconds = u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0);
        seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_btime.tv_nsec))
    } else {
        0
    };
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(Identity {
        boot: boot_id(&text),
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        birth,
    })
}

/// The 32 hexadecimal digits of a boot id as two words; zeros for anything else.
fn boot_id(text: &str) -> [u64; 2] {
    let digits: String = text.trim().chars().filter(|&char| char != '-').collect();
    if digits.len() != 32 {
        return [0, 0];
    }
    u128::from_str_radix(&digits, 16).map_or([0, 0], |id| [(id >> 64) as u64, id as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_two_words_or_nothing() {
        assert_eq!(
            boot_id("01234567-89ab-cdef-fedc-ba9876543210\n"),
            [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]
        );
        for bad in ["", "01234567", "g1234567-89ab-cdef-fedc-ba9876543210", "é"] {
            assert_eq!(boot_id(bad), [0, 0], "{bad:?}");
        }
    }

    #[test]
    fn files_differ_and_one_file_stays_itself() {
        let (one, two) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let identity = |file| of(file, Path::new("file")).unwrap();
        assert_eq!(identity(&one), identity(&one));
        assert_ne!(identity(&one), identity(&two));
        assert_eq!(identity(&one).boot, identity(&two).boot);
    }
}
