//! Buffers that the clients of a worker share, so that an idle client needs none.
//!
//! Bytes of one client must never reach another. Neither buffer can keep bytes from one use to the
//! next, however a turn ends: [`ReadBuffer`] returns only the bytes of the latest read, and
//! [`ReplyBuffer`] gives its memory away and gets it back empty.

use std::io::{self, ErrorKind, Read};

use super::socket::{Received, Socket};
use super::stream::Stream;

/// A buffer for the bytes that are read from a socket.
pub(super) struct ReadBuffer(Box<[u8]>);

/// The result of one read.
pub(super) enum ReadResult<'a> {
    /// The bytes that were read. `emptied` is `true` if the socket has no more.
    Bytes { bytes: &'a [u8], emptied: bool },
    /// No bytes are available now, or others have to be sent first.
    WouldBlock,
    /// The end of the stream.
    End,
}

impl ReadBuffer {
    pub(super) fn new() -> Self {
        // Space for a thousand pipelined requests that still fits the second-level cache.
        const LEN: usize = 64 << 10;
        ReadBuffer(vec![0; LEN].into())
    }

    /// Reads once from `stream`.
    pub(super) fn read(&mut self, stream: &mut Stream) -> io::Result<ReadResult<'_>> {
        loop {
            match stream.read(&mut self.0) {
                Ok(Received { len: 0, .. }) => return Ok(ReadResult::End),
                Ok(Received { len, emptied }) => {
                    return Ok(ReadResult::Bytes { bytes: &self.0[..len], emptied });
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(ReadResult::WouldBlock),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Reads and drops bytes that a client has sent meanwhile, up to a limit. To close a socket
    /// with unread bytes would reset the connection, and the client could lose the last replies.
    pub(super) fn discard(&mut self, socket: &mut Socket) {
        const READS_MAX: usize = 16;
        for _ in 0..READS_MAX {
            match socket.read(&mut self.0) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }
}

/// Memory for replies. Between two uses it is empty and has only capacity.
#[derive(Default)]
pub(super) struct ReplyBuffer(Vec<u8>);

impl ReplyBuffer {
    /// The maximum capacity that is kept for the next use, in bytes.
    pub(super) const RETAINED_MAX: usize = 1 << 20;

    /// Returns the memory as an empty buffer that the caller owns. If the caller does not put it
    /// back, it is freed with its content.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Takes back the memory of a buffer whose content is no longer needed. Frees the capacity
    /// beyond [`RETAINED_MAX`](Self::RETAINED_MAX), which a large value needed.
    pub(super) fn put_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(Self::RETAINED_MAX);
        self.0 = buffer;
    }
}
