//! One connection: a socket and a session.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;

use super::shared::Admission;
use crate::protocol::{Context, Next, Session};
use crate::stats::Count;

/// Times that one connection may read or resume before others get their turn.
const ROUNDS: usize = 4;

/// A connected client.
///
/// It is in one of three states: replies are waiting for the socket to take them (then nothing is read),
/// or the session is waiting for its replies to leave, or it is waiting for bytes.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    session: Session,
    /// Replies that the socket has not taken, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// How the session goes on once `unsent` is empty.
    next: Next,
    /// Whether the socket may have bytes for us.
    readable: bool,
    /// Whether the peer has closed its side, so that reading has to go on to the end.
    peer_closed: bool,
    /// Whether it waits in line for another turn.
    pub(super) queued: bool,
    _admission: Admission,
}

/// What to do with a client after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing until its socket is ready again.
    Wait,
    /// Another turn after the others had theirs.
    Again,
    /// Drop it.
    Close,
}

/// Buffers that the clients of a worker use in turn, so that idle ones need none.
pub(super) struct Buffers {
    read: Box<[u8]>,
    replies: Vec<u8>,
}

impl Buffers {
    pub(super) fn new() -> Self {
        // Holds a thousand pipelined requests, and stays in the second-level cache.
        const READ: usize = 64 << 10;
        Buffers { read: vec![0; READ].into(), replies: Vec::new() }
    }
}

impl Client {
    pub(super) fn new(stream: TcpStream, admission: Admission) -> Self {
        Client {
            stream,
            session: Session::new(),
            unsent: Vec::new(),
            sent: 0,
            next: Next::Receive,
            readable: false,
            peer_closed: false,
            queued: false,
            _admission: admission,
        }
    }

    /// Notes what an event said.
    pub(super) fn ready(&mut self, readable: bool, peer_closed: bool) {
        self.readable |= readable;
        self.peer_closed |= peer_closed;
    }

    /// Whether the socket has taken all replies.
    pub(super) fn is_drained(&self) -> bool {
        self.sent == self.unsent.len()
    }

    /// Reads, answers and writes as far as the socket goes, within bounds.
    pub(super) fn turn(&mut self, buffers: &mut Buffers, context: &Context<'_>) -> Turn {
        match self.try_turn(buffers, context) {
            Ok(turn) => turn,
            // The connection is broken; there is nobody to tell.
            Err(_) => Turn::Close,
        }
    }

    fn try_turn(&mut self, buffers: &mut Buffers, context: &Context<'_>) -> io::Result<Turn> {
        self.send_unsent(context)?;
        for _ in 0..ROUNDS {
            if !self.is_drained() {
                return Ok(Turn::Wait);
            }
            match self.next {
                Next::Close => {
                    self.discard_input(buffers);
                    return Ok(Turn::Close);
                }
                Next::Resume => self.next = self.session.resume(context, &mut buffers.replies),
                Next::Receive if !self.readable => return Ok(Turn::Wait),
                Next::Receive => {
                    if self.receive(buffers, context)? == Input::Ended {
                        return Ok(Turn::Close);
                    }
                }
            }
            self.send(&mut buffers.replies, context)?;
        }
        let busy = self.next != Next::Receive || self.readable;
        if !(busy && self.is_drained()) {
            return Ok(Turn::Wait);
        }
        context.counters.add(Count::ConnYields, 1);
        Ok(Turn::Again)
    }
    /// Reads once and lets the session answer.
    fn receive(&mut self, buffers: &mut Buffers, context: &Context<'_>) -> io::Result<Input> {
        match self.stream.read(&mut buffers.read) {
            Ok(0) => return Ok(Input::Ended),
            Ok(len) => {
                // A read that leaves room has emptied the socket: there will be an event when more comes. Only
                // the end of the stream needs a read of its own, and its event may have come already.
                if len < buffers.read.len() && !self.peer_closed {
                    self.readable = false;
                }
                context.counters.add(Count::BytesRead, len as u64);
                let bytes = &buffers.read[..len];
                self.next = self.session.receive(bytes, context, &mut buffers.replies);
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => self.readable = false,
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
        Ok(Input::Open)
    }

    /// Sends `replies`, which are left empty, and keeps what the socket does not take.
    fn send(&mut self, replies: &mut Vec<u8>, context: &Context<'_>) -> io::Result<()> {
        // Room that one large value needed is given back; this much is kept for the next client.
        const KEPT: usize = 1 << 20;
        let sent = write_some(&mut self.stream, replies, context)?;
        if sent < replies.len() {
            self.unsent = std::mem::take(replies);
            self.sent = sent;
        }
        replies.clear();
        replies.shrink_to(KEPT);
        Ok(())
    }

    /// Sends what the socket did not take before.
    pub(super) fn send_unsent(&mut self, context: &Context<'_>) -> io::Result<()> {
        if self.is_drained() {
            return Ok(());
        }
        self.sent += write_some(&mut self.stream, &self.unsent[self.sent..], context)?;
        if self.is_drained() {
            self.unsent = Vec::new();
            self.sent = 0;
        }
        Ok(())
    }

    /// Reads and forgets what the client has sent meanwhile, within bounds: closing a socket that holds
    /// unread bytes would reset the connection, and the client might lose the last replies.
    pub(super) fn discard_input(&mut self, buffers: &mut Buffers) {
        const READS: usize = 16;
        for _ in 0..READS {
            match self.stream.read(&mut buffers.read) {
                Ok(1..) => {}
                _ => return,
            }
        }
    }
}

/// Whether there may be more to read.
#[derive(PartialEq, Eq)]
enum Input {
    Open,
    Ended,
}

/// Writes `bytes` as far as the socket takes them; answers how many it took.
fn write_some(stream: &mut TcpStream, bytes: &[u8], context: &Context<'_>) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => sent += len,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    context.counters.add(Count::BytesWritten, sent as u64);
    Ok(sent)
}
