//! Unix sockets.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, RenameFlags, fchmod, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::socket_file::{SocketFile, identity};
use super::{Listener, Security, listen_error};
use crate::server::address::ListenAddress;

impl Listener {
    /// Creates a socket at a path, and gives its file the permissions `mode`. Connecting needs the
    /// permission to write. A socket at that path on which no process listens is replaced.
    ///
    /// The path appears when clients can connect: those that do so before a server starts wait.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens on the path; `AlreadyExists` if there is a file that is
    /// not a socket; otherwise the error of the system. The message contains the path.
    pub fn unix(path: &Path, mode: u32) -> io::Result<Listener> {
        Listener::unix_of(path, mode, None)
    }

    /// Does what [`unix`](Listener::unix) does, and gives the file to a user and a group, which
    /// root can do for a process that becomes this user later.
    ///
    /// # Errors
    /// As [`unix`](Listener::unix).
    pub fn unix_of(path: &Path, mode: u32, owner: Option<(u32, u32)>) -> io::Result<Listener> {
        // The process may change its directory later.
        let path = std::path::absolute(path)?;
        let address = ListenAddress::Unix(path.clone());
        let (socket, file) =
            create(path, Access { mode, owner }).map_err(|error| listen_error(&address, error))?;
        Ok(Listener {
            address,
            socket,
            security: Security::Plain,
            listening: false,
            file: Some(file),
        })
    }
}

/// Who can connect.
#[derive(Clone, Copy)]
struct Access {
    mode: u32,
    /// The user and the group, if they are not those of the process.
    owner: Option<(u32, u32)>,
}

/// Creates a listening socket. Its file is complete before it has its name.
fn create(path: PathBuf, access: Access) -> io::Result<(OwnedFd, SocketFile)> {
    let address = SocketAddrUnix::new(&path).map_err(|error| match error {
        // The structure of the system has an array for the path.
        Errno::NAMETOOLONG => io::Error::other("the path is too long for a socket: 107 bytes"),
        error => error.into(),
    })?;
    remove_stale(&path, &address)?;
    let Some((temporary, temporary_address)) = temporary_name(&path) else {
        return bind(path, &address, access);
    };
    let (socket, mut file) = bind(temporary, &temporary_address, access)?;
    rename_new(&file.path, &path)?;
    file.path = path;
    Ok((socket, file))
}

/// Binds a socket to a path and listens.
fn bind(
    path: PathBuf,
    address: &SocketAddrUnix,
    Access { mode, owner }: Access,
) -> io::Result<(OwnedFd, SocketFile)> {
    let socket = new_socket()?;
    // The file gets the permissions of the socket, less the mask of the process. So it never has
    // more than requested.
    fchmod(&socket, Mode::from_raw_mode(mode & 0o777))?;
    rustix::net::bind(&socket, address)?;
    let file = SocketFile::of(path)?;
    std::fs::set_permissions(&file.path, PermissionsExt::from_mode(mode & 0o777))?;
    if let Some((user, group)) = owner {
        std::os::unix::fs::lchown(&file.path, Some(user), Some(group))?;
    }
    // The server sets the backlog.
    rustix::net::listen(&socket, i32::MAX)?;
    Ok((socket, file))
}

/// Returns a name beside `path` that no file has, or `None` if it would be too long for a socket.
fn temporary_name(path: &Path) -> Option<(PathBuf, SocketAddrUnix)> {
    use std::hash::BuildHasher;
    let number = std::hash::RandomState::new().hash_one(std::process::id());
    let name = path.with_file_name(format!(".{:08x}", number as u32));
    let address = SocketAddrUnix::new(&name).ok()?;
    Some((name, address))
}

/// Renames a file, unless there is one with the new name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Another process was faster.
        Err(Errno::EXIST) => Err(Errno::ADDRINUSE.into()),
        // The file system cannot do that. There was no file a moment ago.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket that a process left at `path` when it ended.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(file) if file.file_type().is_socket() => (file.dev(), file.ino()),
        Ok(_) => {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "there is a file that is not a socket",
            ));
        }
    };
    match rustix::net::connect(new_socket()?, address) {
        // Another process has replaced it just now.
        Err(Errno::CONNREFUSED) if identity(path).is_ok_and(|now| now != found) => {
            Err(Errno::ADDRINUSE.into())
        }
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
