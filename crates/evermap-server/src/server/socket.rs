//! Sockets of both kinds: of a port, and of the file system.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

use super::address::ListenAddress;
use super::connections::Peer;

/// A socket that accepts connections.
pub(super) enum AcceptingSocket {
    Tcp(TcpListener),
    /// With its path: the system may know it by another one, that it had while it was created.
    Unix(UnixListener, Arc<Path>),
}

/// A connected socket.
pub(super) enum Socket {
    Tcp(TcpStream),
    /// With the path of the listener.
    Unix(UnixStream, Arc<Path>),
}

/// What a read brought.
pub(super) struct Received {
    /// The number of bytes. 0 is the end of the stream.
    pub(super) len: usize,
    /// Whether the socket has no more bytes, so that an event follows when some arrive.
    pub(super) emptied: bool,
}

impl AcceptingSocket {
    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            AcceptingSocket::Tcp(socket) => Ok(Socket::Tcp(socket.accept()?.0)),
            AcceptingSocket::Unix(socket, path) => {
                Ok(Socket::Unix(socket.accept()?.0, path.clone()))
            }
        }
    }

    /// Returns the file descriptor, as the number of the socket in statistics.
    pub(super) fn number(&self) -> u32 {
        let descriptor = match self {
            AcceptingSocket::Tcp(socket) => socket.as_raw_fd(),
            AcceptingSocket::Unix(socket, _) => socket.as_raw_fd(),
        };
        descriptor.try_into().unwrap_or(0)
    }

    /// Registers the socket for events that say that there are connections.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            AcceptingSocket::Tcp(socket) => socket.register(registry, token, Interest::READABLE),
            AcceptingSocket::Unix(socket, _) => {
                socket.register(registry, token, Interest::READABLE)
            }
        }
    }
}

impl Socket {
    /// Registers the socket for events of both kinds.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(socket) => socket.register(registry, token, interest),
            Socket::Unix(socket, _) => socket.register(registry, token, interest),
        }
    }
}

impl Socket {
    /// Removes the registration.
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.deregister(registry),
            Socket::Unix(socket, _) => socket.deregister(registry),
        }
    }

    /// Returns the file descriptor, as the number of the connection in statistics.
    pub(super) fn number(&self) -> u32 {
        let descriptor = match self {
            Socket::Tcp(socket) => socket.as_raw_fd(),
            Socket::Unix(socket, _) => socket.as_raw_fd(),
        };
        descriptor.try_into().unwrap_or(0)
    }

    /// Makes the system drop what the peer has not read when the socket is closed, and reset the
    /// connection. Otherwise it would keep those bytes until a peer takes them that does not read.
    pub(super) fn reset_on_close(&self) {
        // What was written to a unix socket is the peer's already.
        if let Socket::Tcp(socket) = self {
            // If this fails, the system drops the bytes later.
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    /// Returns the other side of the connection.
    pub(super) fn peer(&self) -> io::Result<Peer> {
        match self {
            Socket::Tcp(socket) => {
                let listener = ListenAddress::Tcp(socket.local_addr()?);
                Ok(Peer::of(socket.peer_addr()?).connected_to(&listener))
            }
            Socket::Unix(_, path) => {
                Ok(Peer::local().connected_to(&ListenAddress::Unix(path.to_path_buf())))
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket, _) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket, _) => socket.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write_vectored(pieces),
            Socket::Unix(socket, _) => socket.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
