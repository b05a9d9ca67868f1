//! The file of a server that was not told one.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Returns a file in memory, if possible, which is fast and survives a restart of the server.
/// `name` distinguishes servers of the same user.
///
/// # Errors
/// If the file belongs to another user.
pub(super) fn default_path(uid: u32, name: &str) -> Result<PathBuf, Failure> {
    let shared = Path::new("/dev/shm");
    if !is_large_tmpfs(shared) {
        return Ok(format!("evermap{name}.map").into());
    }
    let path = shared.join(format!("evermap-{uid}{name}.map"));
    // Any user can create files there, and another one may have created this file.
    match rustix::fs::lstat(&path) {
        Ok(file) if file.st_uid != uid => Err(Failure::Other(format!(
            "{}: the file belongs to another user; choose another one with --path (memcached: -e)",
            path.display()
        ))),
        _ => Ok(path),
    }
}

/// Returns `true` if the directory is a tmpfs with more than the few MiB that containers get.
pub(super) fn is_large_tmpfs(directory: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const SIZE_MIN: u64 = 1 << 30;
    rustix::fs::statfs(directory).is_ok_and(|system| {
        // A tmpfs with 0 blocks has no limit.
        let bytes = system.f_blocks.saturating_mul(system.f_bsize as u64);
        system.f_type as u32 == TMPFS && (bytes == 0 || bytes >= SIZE_MIN)
    })
}
