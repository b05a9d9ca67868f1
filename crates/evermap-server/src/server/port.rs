//! The port that a server listens on.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

/// A socket that is bound to a port but does not listen yet.
///
/// Connections are refused until a [`Server`](super::Server) starts on it. So a program can reserve
/// the port before it prepares what the server needs.
#[derive(Debug)]
pub struct BoundPort {
    address: SocketAddr,
    socket: OwnedFd,
}

impl BoundPort {
    /// Binds a socket to `address`. Port 0 stands for any free port.
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens on the port; otherwise the error of the system.
    pub fn bind(address: SocketAddr) -> io::Result<BoundPort> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let bound = || -> rustix::io::Result<OwnedFd> {
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            // Connections of an earlier server may still be closing, which must not matter.
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address)?;
            Ok(socket)
        };
        let socket = bound().map_err(|error| listen_error(address, error.into()))?;
        Ok(BoundPort { address, socket })
    }

    /// Starts to listen. At most `backlog` connections wait to be accepted, or fewer if the system
    /// has a lower limit.
    pub(super) fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        listen(&self.socket, backlog).map_err(|error| listen_error(self.address, error.into()))?;
        Ok(self.socket.into())
    }
}

fn listen_error(address: SocketAddr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
}
