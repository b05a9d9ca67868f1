//! What a server listens on: TCP ports and unix sockets, with and without TLS.

mod inherited;
mod socket_file;
mod tcp;
mod unix;

use std::io;
use std::os::fd::OwnedFd;

use socket_file::SocketFile;

use super::address::ListenAddress;
use super::socket::AcceptingSocket;
use super::tls::ClientCertificates;

/// A socket that is bound to an address but does not listen yet.
///
/// Connections are refused until a [`Server`](super::Server) starts on it; those to a unix socket
/// wait. So a program can reserve its addresses before it prepares what the server needs. Dropping
/// it releases the address, and removes the file of a unix socket.
#[derive(Debug)]
pub struct Listener {
    address: ListenAddress,
    socket: OwnedFd,
    security: Security,
    /// Whether the program that created the socket listens already, with a backlog of its choice.
    listening: bool,
    /// The file of a unix socket that this process created.
    file: Option<SocketFile>,
}

/// Whether the connections of a [`Listener`] use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// They do not.
    #[default]
    Plain,
    /// They do, with the certificates of [`Config::tls`](super::Config::tls).
    Tls {
        /// What clients have to present here, or `None` for what the settings say.
        clients: Option<ClientCertificates>,
    },
}

impl Listener {
    /// Sets whether connections use TLS. Without a call they do not.
    pub fn with_security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Returns the address. Its port is the one that the system chose, if port 0 was requested.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns whether connections use TLS.
    pub fn security(&self) -> Security {
        self.security
    }

    /// Starts to listen. At most `backlog` connections wait to be accepted, or fewer if the system
    /// has a lower limit.
    pub(super) fn listen(self, backlog: u32) -> io::Result<Listening> {
        if !self.listening {
            let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
            rustix::net::listen(&self.socket, backlog)
                .map_err(|error| listen_error(&self.address, error.into()))?;
        }
        let socket = match &self.address {
            ListenAddress::Tcp(_) => {
                AcceptingSocket::Tcp(mio::net::TcpListener::from_std(self.socket.into()))
            }
            ListenAddress::Unix(path) => {
                let socket = mio::net::UnixListener::from_std(self.socket.into());
                AcceptingSocket::Unix(socket, path.as_path().into())
            }
        };
        Ok(Listening { socket, _file: self.file })
    }
}

/// A socket that accepts connections, until it is dropped.
pub(super) struct Listening {
    pub(super) socket: AcceptingSocket,
    /// Removed with the socket.
    _file: Option<SocketFile>,
}

fn listen_error(address: &ListenAddress, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
}
