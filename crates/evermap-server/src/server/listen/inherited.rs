//! Sockets that another program created, as service managers do.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, getsockname};

use super::{Listener, Security};
use crate::server::address::ListenAddress;

impl Listener {
    /// Takes a socket on which the program that created it listens already, as a service manager
    /// does that passes sockets to this process. Its backlog is unchanged, and its file is not
    /// removed.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a listening stream socket of IPv4, IPv6 or the file system;
    /// otherwise the error of the system.
    pub fn inherited(socket: OwnedFd) -> io::Result<Listener> {
        let invalid = |what| Err(io::Error::new(ErrorKind::InvalidInput, what));
        match socket_type(&socket) {
            Ok(SocketType::STREAM) => {}
            Ok(_) => return invalid("it is not a stream socket"),
            Err(rustix::io::Errno::NOTSOCK) => return invalid("it is not a socket"),
            Err(error) => return Err(error.into()),
        }
        if !socket_acceptconn(&socket)? {
            return invalid("it is a socket that does not listen");
        }
        let name = getsockname(&socket)?;
        let address = match name.address_family() {
            AddressFamily::UNIX => {
                let name = SocketAddrUnix::try_from(name)?;
                let path =
                    name.path_bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                ListenAddress::Unix(PathBuf::from(path.unwrap_or_default()))
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                ListenAddress::Tcp(SocketAddr::try_from(name)?)
            }
            _ => return invalid("it is not a socket of IPv4, IPv6 or the file system"),
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Listener { address, socket, security: Security::Plain, listening: true, file: None })
    }
}
