//! One connection: a socket and a session.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::buffers::{ReadBuffer, ReadResult, ReplyBuffer};
use super::connections::{Registered, State};
use super::permits::ConnectionPermit;
use super::stream::Stream;
use super::unread::Held;
use crate::protocol::{Context, Next, Session};
use crate::stats::Count;
use crate::watch::{CloseReason, Streams};

/// A connected client.
///
/// It is in one of three states: it waits until the socket takes more replies (and nothing is read
/// meanwhile), or its session waits until its replies are sent, or it waits for bytes.
pub(super) struct Client {
    pub(super) stream: Stream,
    session: Session,
    /// Replies that the socket has not taken.
    unsent: Unsent,
    /// What the session needs next, once `unsent` is empty.
    next: Next,
    /// Whether the socket may have bytes to read.
    readable: bool,
    /// Whether the peer has closed its side, so that the worker has to read to the end.
    peer_closed: bool,
    /// Whether the client is in the worker's queue for another turn.
    pub(super) queued: bool,
    /// Whether bytes were exchanged since the last call of [`is_idle`](Client::is_idle).
    active: bool,
    /// A time since which no bytes were exchanged, unless `active` is set.
    idle_since: Instant,
    /// The time from which the next turn is measured, if it continues with what arrived before.
    waiting_since: Option<Instant>,
    pub(super) registered: Registered,
    permit: ConnectionPermit,
}

/// What the worker does with a client after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing until the socket is ready again.
    Wait,
    /// Gives it another turn after the other clients.
    Again,
    /// Closes it.
    Close(CloseReason),
    /// Makes it a watcher of these events.
    Watch(Streams),
    /// Makes changes durable, together with those of other clients, and then gives it another turn,
    /// which begins with the replies.
    Settle,
}

/// The times after which a client without activity is disconnected.
pub(super) struct IdleLimits {
    /// Without a byte in either direction. `None` stands for never.
    pub(super) idle: Option<Duration>,
    /// From the connection to the end of the TLS handshake, whatever arrives meanwhile.
    pub(super) handshake: Duration,
}

/// Buffers that the clients of a worker share.
pub(super) struct Buffers {
    pub(super) read: ReadBuffer,
    pub(super) replies: ReplyBuffer,
}

/// Replies of one client that wait until its socket takes them.
struct Unsent {
    bytes: Vec<u8>,
    /// The number of bytes that the socket has taken.
    sent: usize,
    /// Accounts for the memory of `bytes`, and of what is encrypted.
    held: Held,
}

impl Client {
    /// Creates a client whose unsent replies are accounted for by `held`.
    pub(super) fn new(
        stream: Stream,
        registered: Registered,
        permit: ConnectionPermit,
        held: Held,
    ) -> Self {
        Client {
            stream,
            session: Session::new(),
            unsent: Unsent { bytes: Vec::new(), sent: 0, held },
            next: Next::Receive,
            readable: false,
            peer_closed: false,
            queued: false,
            active: false,
            idle_since: Instant::now(),
            waiting_since: None,
            registered,
            permit,
        }
    }

    /// Records the readiness that an event reports.
    pub(super) fn set_ready(&mut self, readable: bool, peer_closed: bool) {
        self.readable |= readable;
        self.peer_closed |= peer_closed;
    }

    /// Returns `true` if the socket has taken all replies.
    pub(super) fn is_drained(&self) -> bool {
        self.unsent.bytes.is_empty() && self.stream.unsent_len() == 0
    }

    /// Returns `true` if the client has to go, because all clients hold too much memory and this
    /// one has read nothing for the longest time.
    pub(super) fn holds_too_much(&self) -> bool {
        self.unsent.held.is_disconnected()
    }

    /// Returns `true` if the client has been idle for too long. Has to be called a few times within
    /// the limits, because it compares the state of the client with that at the last call.
    pub(super) fn is_idle(&mut self, now: Instant, limits: &IdleLimits) -> bool {
        let limit = match self.stream.is_handshaking() {
            true => Some(limits.handshake),
            false if std::mem::take(&mut self.active) => {
                self.idle_since = now;
                None
            }
            false => limits.idle,
        };
        limit.is_some_and(|limit| now.saturating_duration_since(self.idle_since) >= limit)
    }

    /// Reads, processes and writes as far as the socket allows, for a limited number of rounds:
    /// in each of them it reads or resumes once. `ready_at` is the time at which the system
    /// reported that the socket is ready.
    pub(super) fn turn(
        &mut self,
        rounds_max: usize,
        buffers: &mut Buffers,
        context: &Context<'_>,
        ready_at: Instant,
    ) -> Turn {
        self.registered.set_state(State::Execute, context.now);
        let context = Context { connection: self.registered.connection().number, ..*context };
        let turn = match self.try_turn(rounds_max, buffers, &context, ready_at) {
            Ok(turn) => turn,
            // The connection failed, so the client cannot receive an error of the protocol. But the
            // reason why a handshake failed may be on its way.
            Err(_) => {
                if self.stream.is_handshaking() {
                    context.counters.add(Count::SslHandshakeErrors, 1);
                }
                buffers.read.discard(self.stream.socket_mut());
                Turn::Close(CloseReason::Error)
            }
        };
        self.registered.end_turn(match self.next {
            _ if !self.is_drained() => State::Write,
            Next::Receive if self.session.held_bytes() > 0 => State::Waiting,
            Next::Receive => State::Read,
            _ => State::Execute,
        });
        turn
    }

    fn try_turn(
        &mut self,
        rounds_max: usize,
        buffers: &mut Buffers,
        context: &Context<'_>,
        ready_at: Instant,
    ) -> io::Result<Turn> {
        let mut since = self.waiting_since.take().unwrap_or(ready_at);
        let mut replied = 0;
        self.send_unsent(context)?;
        for _ in 0..rounds_max {
            if !self.is_drained() {
                return Ok(Turn::Wait);
            }
            // The buffer belongs to this round. If the round ends early, the replies are dropped
            // together with the buffer.
            let mut replies;
            match self.next {
                Next::Close => {
                    self.end(&mut buffers.read);
                    return Ok(Turn::Close(context.watch.take_reason()));
                }
                Next::Watch(streams) => return Ok(Turn::Watch(streams)),
                Next::Receive if !self.readable => return Ok(Turn::Wait),
                Next::Receive => {
                    replies = buffers.replies.take();
                    if self.receive(&mut buffers.read, context, &mut replies)? == Input::Ended {
                        self.stream.send_end();
                        return Ok(Turn::Close(CloseReason::Normal));
                    }
                }
                Next::Resume => {
                    replies = buffers.replies.take();
                    self.next = self.session.resume(context, &mut replies);
                }
            }
            replied += replies.len();
            if context.cache.is_unsettled() && !replies.is_empty() {
                self.waiting_since = Some(since);
                self.hold(replies);
                return Ok(Turn::Settle);
            }
            buffers.replies.put_back(self.send(replies, context)?);
            context.latencies.record(|| {
                let began = std::mem::replace(&mut since, Instant::now());
                since.saturating_duration_since(began)
            });
            // Other clients wait for their turn, and may ask for less.
            if replied >= context.output_limit {
                break;
            }
        }
        let has_work = self.next != Next::Receive || self.readable;
        if !(has_work && self.is_drained()) {
            return Ok(Turn::Wait);
        }
        context.counters.add(Count::ConnYields, 1);
        self.waiting_since = Some(since);
        Ok(Turn::Again)
    }

    /// Replies that the client cannot become a watcher, and continues with its session in the next
    /// turn.
    pub(super) fn refuse_watch(&mut self, reply: &[u8]) {
        self.unsent.bytes = reply.to_vec();
        self.account_for_unsent(true);
        self.next = Next::Resume;
    }

    /// Returns what remains of the client when its connection becomes a watcher's.
    pub(super) fn into_watcher(self) -> (Stream, Registered, ConnectionPermit) {
        (self.stream, self.registered, self.permit)
    }

    /// Reads once and passes the bytes to the session.
    fn receive(
        &mut self,
        buffer: &mut ReadBuffer,
        context: &Context<'_>,
        replies: &mut Vec<u8>,
    ) -> io::Result<Input> {
        match buffer.read(&mut self.stream)? {
            ReadResult::End => return Ok(Input::Ended),
            // If bytes have to be sent first, no event says that there may be others to read.
            ReadResult::WouldBlock => self.readable = self.stream.unsent_len() > 0,
            ReadResult::Bytes { bytes, emptied } => {
                // An event follows when more bytes arrive at an empty socket. Only the end of the
                // stream needs another read, because its event may have been received already.
                if emptied && !self.peer_closed {
                    self.readable = false;
                }
                self.active = true;
                context.counters.add(Count::BytesRead, bytes.len() as u64);
                self.next = self.session.receive(bytes, context, replies);
            }
        }
        Ok(Input::Open)
    }

    /// Sends `replies` and keeps the bytes that the socket does not take. Returns a buffer for the
    /// next use.
    fn send(&mut self, replies: Vec<u8>, context: &Context<'_>) -> io::Result<Vec<u8>> {
        let sent = write_some(&mut self.stream, &replies, context)?;
        self.active |= sent > 0;
        let left = &replies[sent..];
        if left.is_empty() {
            self.account_for_unsent(true);
            return Ok(replies);
        }
        let (unsent, spare) = if left.len() <= ReplyBuffer::RETAINED_MAX {
            // A waiting client holds only the bytes that it waits for, not the whole buffer.
            ((left.to_vec(), 0), replies)
        } else {
            ((replies, sent), Vec::new())
        };
        (self.unsent.bytes, self.unsent.sent) = unsent;
        // These replies are new, so the time begins now.
        self.account_for_unsent(true);
        Ok(spare)
    }

    /// Keeps `replies` until the next turn.
    fn hold(&mut self, replies: Vec<u8>) {
        (self.unsent.bytes, self.unsent.sent) = (replies, 0);
        self.account_for_unsent(true);
    }

    /// Drops replies that must not be sent.
    pub(super) fn drop_unsent(&mut self) {
        (self.unsent.bytes, self.unsent.sent) = (Vec::new(), 0);
        self.account_for_unsent(true);
    }

    /// Sends the bytes that the socket did not take before.
    pub(super) fn send_unsent(&mut self, context: &Context<'_>) -> io::Result<()> {
        if self.is_drained() {
            return Ok(());
        }
        let encrypted = self.stream.unsent_len();
        self.stream.send_taken()?;
        let unsent = &mut self.unsent;
        let sent = write_some(&mut self.stream, &unsent.bytes[unsent.sent..], context)?;
        let has_read = sent > 0 || self.stream.unsent_len() < encrypted;
        self.active |= has_read;
        unsent.sent += sent;
        if unsent.sent == unsent.bytes.len() {
            (unsent.bytes, unsent.sent) = (Vec::new(), 0);
        }
        self.account_for_unsent(has_read);
        Ok(())
    }

    /// Accounts for the memory of the bytes that the socket has not taken. `has_read` says whether
    /// it has taken some since the last call, or the bytes are new.
    fn account_for_unsent(&mut self, has_read: bool) {
        let bytes = self.unsent.bytes.capacity() + self.stream.unsent_len();
        self.unsent.held.resize(bytes, has_read);
    }

    /// Prepares to close a connection whose client has not read its replies. It gets no more of
    /// them than it has received.
    pub(super) fn abandon_unsent(&mut self) {
        if !self.is_drained() {
            self.stream.socket_mut().reset_on_close();
        }
    }

    /// Tells the client that nothing follows, before the connection is closed.
    pub(super) fn end(&mut self, buffer: &mut ReadBuffer) {
        self.stream.send_end();
        buffer.discard(self.stream.socket_mut());
    }
}

/// Whether more bytes may follow.
#[derive(PartialEq, Eq)]
enum Input {
    Open,
    Ended,
}

/// Writes `bytes` until the socket takes no more. Returns the number of bytes written.
fn write_some(stream: &mut Stream, bytes: &[u8], context: &Context<'_>) -> io::Result<usize> {
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
