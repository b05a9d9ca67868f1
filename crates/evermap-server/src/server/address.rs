//! The addresses of listeners.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The address of a [`Listener`](super::Listener).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a unix socket. It is empty if the socket has no name in the file system.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns the address and port, or `None` for a unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        }
    }

    /// Returns `true` if only processes of this host can connect.
    pub fn is_local(&self) -> bool {
        match self {
            ListenAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
            ListenAddress::Unix(_) => true,
        }
    }
}

impl Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => path.display().fmt(f),
        }
    }
}
