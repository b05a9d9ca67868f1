//! One encrypted connection.
//!
//! It holds a bounded number of bytes: of a record that has not arrived completely, at most 64 KiB
//! of a handshake, and [`TAKEN_MAX`] that the socket has not taken. Nothing is read while encrypted
//! bytes wait, so a peer that does not read cannot make the server produce more.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::ServerConnection;

use super::failures::Failures;
use crate::server::socket::{Received, Socket};

/// The number of bytes that are encrypted before the socket has taken the ones before.
const TAKEN_MAX: usize = 64 << 10;

/// An encrypted connection.
pub(in crate::server) struct TlsStream {
    socket: Socket,
    connection: ServerConnection,
    /// The number of bytes that were encrypted when the socket had last taken everything.
    taken: usize,
    failures: Arc<Failures>,
}

impl TlsStream {
    pub(super) fn new(
        socket: Socket,
        mut connection: ServerConnection,
        failures: Arc<Failures>,
    ) -> Self {
        connection.set_buffer_limit(Some(TAKEN_MAX));
        TlsStream { socket, connection, taken: 0, failures }
    }

    /// Reads until the buffer is full or the socket has no more.
    pub(in crate::server) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut len = 0;
        let mut emptied = false;
        loop {
            match self.connection.reader().read(&mut buffer[len..]) {
                // The buffer has space, so the peer has ended the stream.
                Ok(0) => return Ok(Received { len, emptied: false }),
                Ok(more) => len += more,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => {}
                    // The peer has closed the connection without a word. No request is executed
                    // before it is complete, so this is an end like any other.
                    ErrorKind::UnexpectedEof => return Ok(Received { len, emptied: false }),
                    _ => return Err(error),
                },
            }
            if len == buffer.len() {
                return Ok(Received { len, emptied: false });
            }
            if len > 0 && emptied {
                return Ok(Received { len, emptied });
            }
            match self.receive_records() {
                Ok(has_no_more) => emptied = has_no_more,
                Err(error) if error.kind() == ErrorKind::WouldBlock && len > 0 => {
                    // Nothing is read while bytes wait to be sent, so there may be more.
                    return Ok(Received { len, emptied: self.unsent_len() == 0 });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads from the socket once, and decrypts. Returns `true` if the socket has no more.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has nothing, or bytes that have to be sent first.
    fn receive_records(&mut self) -> io::Result<bool> {
        if self.unsent_len() > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut observed = ObservedRead { socket: &mut self.socket, emptied: false };
        loop {
            match self.connection.read_tls(&mut observed) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let emptied = observed.emptied;
        let processed = self.connection.process_new_packets();
        if let Err(error) = &processed
            && self.connection.is_handshaking()
        {
            // Before the peer, which may ask for the reason on another connection, knows of it.
            self.failures.note(error);
        }
        // After an error there is an alert that tells the peer the reason.
        let sent = self.send_taken();
        processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        sent?;
        Ok(emptied)
    }

    /// Encrypts bytes and sends them as far as the socket takes them.
    pub(in crate::server) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_taken()?;
        if self.unsent_len() > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = self.connection.writer().write(bytes)?;
        self.taken = len;
        self.send_taken()?;
        Ok(len)
    }

    /// Sends what was encrypted, as far as the socket takes it.
    pub(in crate::server) fn send_taken(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        self.taken = 0;
        Ok(())
    }

    pub(in crate::server) fn unsent_len(&self) -> usize {
        match self.connection.wants_write() {
            true => self.taken.max(1),
            false => 0,
        }
    }

    pub(in crate::server) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Tells the peer that nothing follows, unless bytes before that wait.
    pub(in crate::server) fn send_end(&mut self) {
        self.connection.send_close_notify();
        // If it cannot be sent, the peer sees that the connection is closed.
        let _ = self.send_taken();
    }

    pub(in crate::server) fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }
}

/// A socket, and whether the last read has emptied it.
struct ObservedRead<'a> {
    socket: &'a mut Socket,
    emptied: bool,
}

impl Read for ObservedRead<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.socket.read(buffer)?;
        self.emptied = len < buffer.len();
        Ok(len)
    }
}
