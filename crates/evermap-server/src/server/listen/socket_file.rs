//! The files of unix sockets.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of a unix socket. It is removed when dropped, unless another one has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    pub(super) fn of(path: PathBuf) -> io::Result<Self> {
        let identity = identity(&path)?;
        Ok(SocketFile { path, identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // If the directory does not allow it, the next start replaces the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of a file.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}
