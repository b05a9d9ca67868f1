//! Where the server listens.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

/// A port that is taken. Clients are refused there until a [`Server`](super::Server) starts on it,
/// so it can be taken before what the server needs is ready.
#[derive(Debug)]
pub struct Port {
    asked: SocketAddr,
    socket: OwnedFd,
}

impl Port {
    /// Takes a port; port 0 takes a free one.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there; otherwise what the system says.
    pub fn take(address: SocketAddr) -> io::Result<Port> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let take = || -> rustix::io::Result<OwnedFd> {
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            // Connections of a server before this one may linger; they do not matter.
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address)?;
            Ok(socket)
        };
        let socket = take().map_err(|error| refused(address, error.into()))?;
        Ok(Port { asked: address, socket })
    }

    /// Lets clients come. At most `backlog` of them wait to be accepted, or fewer where the system
    /// says so.
    pub(super) fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        listen(&self.socket, backlog).map_err(|error| refused(self.asked, error.into()))?;
        Ok(self.socket.into())
    }
}

fn refused(address: SocketAddr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
}
