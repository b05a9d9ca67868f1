//! Connections, with and without TLS.

use std::io::{self, Read, Write};

use mio::{Registry, Token};

use super::socket::{Received, Socket};
use super::tls::TlsStream;
use crate::watch::Sink;

/// The bytes that a client and the server exchange.
pub(super) enum Stream {
    /// They are those of the socket.
    Plain(Socket),
    /// They are encrypted.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Reads once.
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes now; otherwise the connection failed.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self {
            Stream::Plain(socket) => {
                let len = socket.read(buffer)?;
                Ok(Received { len, emptied: len < buffer.len() })
            }
            Stream::Tls(stream) => stream.read(buffer),
        }
    }

    /// Takes bytes to send. Returns how many it took.
    ///
    /// # Errors
    /// `WouldBlock` if it takes none now; otherwise the connection failed.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    /// Sends bytes that were taken but that the socket did not take, as far as it does now.
    pub(super) fn send_taken(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(stream) => stream.send_taken(),
        }
    }

    /// Returns the number of bytes that were taken and are not sent, as far as they are known: at
    /// least 1 if there are any.
    pub(super) fn unsent_len(&self) -> usize {
        match self {
            Stream::Plain(_) => 0,
            Stream::Tls(stream) => stream.unsent_len(),
        }
    }

    /// Returns `true` until the peers have agreed on how they communicate.
    pub(super) fn is_handshaking(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.is_handshaking(),
        }
    }

    /// Tells the peer that nothing follows, if the protocol of the stream has a message for that
    /// and the socket takes it.
    pub(super) fn send_end(&mut self) {
        if let Stream::Tls(stream) = self {
            stream.send_end();
        }
    }

    /// Registers the socket for events of both kinds.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket_mut().register(registry, token)
    }

    /// Removes the registration.
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.socket_mut().deregister(registry)
    }

    /// Returns the socket.
    pub(super) fn socket_mut(&mut self) -> &mut Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.socket_mut(),
        }
    }
}

impl Sink for Stream {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        Stream::register(self, registry, token)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Stream::read(self, buffer).map(|received| received.len)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Stream::write(self, bytes)
    }

    fn send_taken(&mut self) -> io::Result<()> {
        Stream::send_taken(self)
    }
}
