//! One connection: a socket and a session.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

use mio::net::TcpStream;

use super::room::{Arrived, ReadRoom, ReplyRoom};
use super::shared::Admission;
use crate::protocol::{Budget, Context, Next, Session, Share};
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
    /// Replies that the socket has not taken.
    unsent: Unsent,
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

/// Memory that the clients of a worker use in turn.
pub(super) struct Rooms {
    pub(super) read: ReadRoom,
    pub(super) replies: ReplyRoom,
}

/// Replies of one client that wait for its socket.
struct Unsent {
    bytes: Vec<u8>,
    /// How many of them the socket has taken.
    sent: usize,
    /// Counts the memory.
    share: Share,
}

impl Client {
    /// A client whose unsent replies are counted in `unsent`.
    pub(super) fn new(stream: TcpStream, admission: Admission, unsent: &Arc<Budget>) -> Self {
        Client {
            stream,
            session: Session::new(),
            unsent: Unsent { bytes: Vec::new(), sent: 0, share: Share::of(unsent) },
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
        self.unsent.bytes.is_empty()
    }

    /// Reads, answers and writes as far as the socket goes, within bounds.
    pub(super) fn turn(&mut self, rooms: &mut Rooms, context: &Context<'_>) -> Turn {
        match self.try_turn(rooms, context) {
            Ok(turn) => turn,
            // The connection is broken; there is nobody to tell.
            Err(_) => Turn::Close,
        }
    }

    fn try_turn(&mut self, rooms: &mut Rooms, context: &Context<'_>) -> io::Result<Turn> {
        self.send_unsent(context)?;
        for _ in 0..ROUNDS {
            if !self.is_drained() {
                return Ok(Turn::Wait);
            }
            // The replies of this round are its own. Where it ends early, they are dropped with the
            // buffer.
            let mut replies;
            match self.next {
                Next::Close => {
                    self.discard_input(&mut rooms.read);
                    return Ok(Turn::Close);
                }
                Next::Receive if !self.readable => return Ok(Turn::Wait),
                Next::Receive => {
                    replies = rooms.replies.take();
                    if self.receive(&mut rooms.read, context, &mut replies)? == Input::Ended {
                        return Ok(Turn::Close);
                    }
                }
                Next::Resume => {
                    replies = rooms.replies.take();
                    self.next = self.session.resume(context, &mut replies);
                }
            }
            rooms.replies.take_back(self.send(replies, context)?);
        }
        let busy = self.next != Next::Receive || self.readable;
        if !(busy && self.is_drained()) {
            return Ok(Turn::Wait);
        }
        context.counters.add(Count::ConnYields, 1);
        Ok(Turn::Again)
    }

    /// Reads once and lets the session answer.
    fn receive(
        &mut self,
        room: &mut ReadRoom,
        context: &Context<'_>,
        replies: &mut Vec<u8>,
    ) -> io::Result<Input> {
        match room.read(&mut self.stream)? {
            Arrived::End => return Ok(Input::Ended),
            Arrived::Nothing => self.readable = false,
            Arrived::Bytes { bytes, emptied } => {
                // There will be an event when more comes to a socket that is empty. Only the end of
                // the stream needs a read of its own, and its event may have come already.
                if emptied && !self.peer_closed {
                    self.readable = false;
                }
                context.counters.add(Count::BytesRead, bytes.len() as u64);
                self.next = self.session.receive(bytes, context, replies);
            }
        }
        Ok(Input::Open)
    }

    /// Sends `replies` and keeps what the socket does not take. Returns memory that is not needed
    /// any more.
    fn send(&mut self, replies: Vec<u8>, context: &Context<'_>) -> io::Result<Vec<u8>> {
        let sent = write_some(&mut self.stream, &replies, context)?;
        let left = &replies[sent..];
        if left.is_empty() {
            return Ok(replies);
        }
        let (unsent, spare) = if left.len() <= ReplyRoom::KEPT {
            // A client that waits holds what it waits for, not all the room there was.
            ((left.to_vec(), 0), replies)
        } else {
            ((replies, sent), Vec::new())
        };
        (self.unsent.bytes, self.unsent.sent) = unsent;
        self.unsent.share.count(self.unsent.bytes.capacity());
        Ok(spare)
    }

    /// Sends what the socket did not take before.
    pub(super) fn send_unsent(&mut self, context: &Context<'_>) -> io::Result<()> {
        let unsent = &mut self.unsent;
        if unsent.bytes.is_empty() {
            return Ok(());
        }
        unsent.sent += write_some(&mut self.stream, &unsent.bytes[unsent.sent..], context)?;
        if unsent.sent == unsent.bytes.len() {
            (unsent.bytes, unsent.sent) = (Vec::new(), 0);
            unsent.share.count(0);
        }
        Ok(())
    }

    /// Reads and forgets what the client has sent meanwhile, within bounds: closing a socket that holds
    /// unread bytes would reset the connection, and the client might lose the last replies.
    pub(super) fn discard_input(&mut self, room: &mut ReadRoom) {
        const READS: usize = 16;
        for _ in 0..READS {
            match room.read(&mut self.stream) {
                Ok(Arrived::Bytes { .. }) => {}
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

/// Writes `bytes` as far as the socket takes them. Returns how many it took.
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
