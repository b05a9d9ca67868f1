//! Memory that the clients of a worker use in turn, so that idle ones need none.
//!
//! What one client left there must never reach another. Neither kind of room can keep bytes from
//! one use to the next, whichever way a turn ends: [`ReadRoom`] only ever shows what the read
//! before brought, and [`ReplyRoom`] gives its memory away and takes it back empty.

use std::io::{self, ErrorKind, Read};

/// Memory for what is read from a socket.
pub(super) struct ReadRoom(Box<[u8]>);

/// What one read brought.
pub(super) enum Arrived<'a> {
    /// These bytes, and whether there was room for more: then the socket is empty.
    Bytes { bytes: &'a [u8], emptied: bool },
    /// Nothing now.
    Nothing,
    /// The end of the stream.
    End,
}

impl ReadRoom {
    pub(super) fn new() -> Self {
        // Holds a thousand pipelined requests, and stays in the second-level cache.
        const LEN: usize = 64 << 10;
        ReadRoom(vec![0; LEN].into())
    }

    /// Reads once.
    pub(super) fn read(&mut self, stream: &mut impl Read) -> io::Result<Arrived<'_>> {
        loop {
            match stream.read(&mut self.0) {
                Ok(0) => return Ok(Arrived::End),
                Ok(len) => {
                    let emptied = len < self.0.len();
                    return Ok(Arrived::Bytes { bytes: &self.0[..len], emptied });
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(Arrived::Nothing),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Memory for replies. Between two uses there is no byte in it, only capacity.
#[derive(Default)]
pub(super) struct ReplyRoom(Vec<u8>);

impl ReplyRoom {
    /// Most memory that is kept for the next use, bytes.
    pub(super) const KEPT: usize = 1 << 20;

    /// Gives the memory away, as an empty buffer that is the caller's own. A buffer that is not
    /// handed back is freed with whatever it holds.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Takes the memory of a buffer whose content has been dealt with; what a large value needed
    /// beyond [`KEPT`](Self::KEPT) is freed.
    pub(super) fn take_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(Self::KEPT);
        self.0 = buffer;
    }
}
