//! Unix sockets.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::{ListenAddress, Listener, Security, listen_error};

impl Listener {
    /// Binds a socket to a path, and gives its file the permissions `mode`. Connecting needs the
    /// permission to write. A socket at that path on which no process listens is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens on the path; `AlreadyExists` if there is a file that is
    /// not a socket; otherwise the error of the system. The message contains the path.
    pub fn unix(path: &Path, mode: u32) -> io::Result<Listener> {
        // The process may change its directory later.
        let path = std::path::absolute(path)?;
        let address = ListenAddress::Unix(path.clone());
        let (socket, file) = bind(path, mode).map_err(|error| listen_error(&address, error))?;
        Ok(Listener {
            address,
            socket,
            security: Security::Plain,
            listening: false,
            file: Some(file),
        })
    }
}

fn bind(path: PathBuf, mode: u32) -> io::Result<(OwnedFd, SocketFile)> {
    let address = SocketAddrUnix::new(&path).map_err(|error| match error {
        // The structure of the system has an array for the path.
        Errno::NAMETOOLONG => io::Error::other("the path is too long for a socket: 107 bytes"),
        error => error.into(),
    })?;
    remove_stale(&path, &address)?;
    let socket = new_socket()?;
    // The file gets the permissions of the socket, less the mask of the process. So it never has
    // more than requested.
    fchmod(&socket, Mode::from_raw_mode(mode & 0o777))?;
    rustix::net::bind(&socket, &address)?;
    let file = SocketFile::of(path)?;
    std::fs::set_permissions(&file.path, PermissionsExt::from_mode(mode & 0o777))?;
    Ok((socket, file))
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket that a process left at `path` when it ended.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(file) if file.file_type().is_socket() => {}
        Ok(_) => {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "there is a file that is not a socket",
            ));
        }
    }
    match rustix::net::connect(new_socket()?, address) {
        // No process listens.
        Err(Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        // A process listens; its queue may be full.
        Ok(()) | Err(Errno::AGAIN) => Err(Errno::ADDRINUSE.into()),
        Err(error) => Err(error.into()),
    }
}

/// The file of a unix socket. It is removed when dropped, unless another one has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: PathBuf) -> io::Result<Self> {
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

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}
