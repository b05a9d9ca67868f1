//! Ports.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use super::{Listener, Security, listen_error};
use crate::server::address::ListenAddress;

impl Listener {
    /// Binds a socket to `address`. Port 0 stands for any free port. An IPv6 address stands for
    /// itself: `[::]` does not include the addresses of IPv4.
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens on the port; otherwise the error of the system.
    pub fn tcp(address: SocketAddr) -> io::Result<Listener> {
        let (family, is_v6) = match address {
            SocketAddr::V4(_) => (AddressFamily::INET, false),
            SocketAddr::V6(_) => (AddressFamily::INET6, true),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let bound = || -> rustix::io::Result<(OwnedFd, SocketAddr)> {
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            // Connections of an earlier server may still be closing, which must not matter.
            set_socket_reuseaddr(&socket, true)?;
            if is_v6 {
                // The same port of IPv4 may be another listener of this server.
                set_ipv6_v6only(&socket, true)?;
            }
            bind(&socket, &address)?;
            let address = SocketAddr::try_from(getsockname(&socket)?)?;
            Ok((socket, address))
        };
        let (socket, address) =
            bound().map_err(|error| listen_error(&ListenAddress::Tcp(address), error.into()))?;
        Ok(Listener {
            address: ListenAddress::Tcp(address),
            socket,
            security: Security::Plain,
            listening: false,
            file: None,
        })
    }
}
