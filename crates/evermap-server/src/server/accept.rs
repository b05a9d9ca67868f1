//! The thread that accepts connections.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::connections::{Peer, Registered, State};
use super::shared::{ConnectionPermit, Shared, unix_seconds};
use super::worker::Mailbox;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// The delay before the next attempt after the system had no descriptor or memory for a connection.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Accepts connections and assigns each to a worker.
pub(super) struct Acceptor {
    shared: Arc<Shared>,
    poll: Poll,
    listener: TcpListener,
    mailboxes: Vec<Arc<Mailbox>>,
    pub(super) waker: Arc<Waker>,
    _registered: Registered,
}

/// Whether connections may be left in the queue of the listener.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AcceptQueue {
    Empty,
    Waiting,
}

impl Acceptor {
    pub(super) fn new(
        shared: Arc<Shared>,
        mut listener: TcpListener,
        mailboxes: Vec<Arc<Mailbox>>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let peer = Peer::of(listener.local_addr()?);
        let registered = shared.open.add(&listener, peer, State::Listening, unix_seconds());
        Ok(Acceptor { shared, poll, listener, mailboxes, waker, _registered: registered })
    }

    /// Accepts connections until the server stops. Then closes the listener.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(16);
        let mut queue = AcceptQueue::Empty;
        while !self.shared.is_stopping() {
            let timeout = (queue == AcceptQueue::Waiting).then_some(RETRY_DELAY);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue failed and cannot be repaired. Connected clients are not
                // affected.
                return;
            }
            queue = self.accept_all();
        }
    }

    /// Accepts all waiting connections.
    fn accept_all(&mut self) -> AcceptQueue {
        while !self.shared.is_stopping() {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return AcceptQueue::Empty,
                    // This client is gone, but others may be waiting.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    // No descriptors or memory: the connection stays in the queue and would be
                    // offered again immediately, so wait until others are closed.
                    _ => {
                        self.shared.accept_pauses.fetch_add(1, Relaxed);
                        return AcceptQueue::Waiting;
                    }
                },
            }
        }
        AcceptQueue::Empty
    }

    /// Assigns a connection to a worker, or rejects it if there are too many.
    fn admit(&mut self, stream: TcpStream) {
        self.shared.accepted.fetch_add(1, Relaxed);
        match self.shared.try_admit() {
            Some(permit) => self.assign(stream, permit),
            None => {
                self.shared.rejected.fetch_add(1, Relaxed);
                // The send buffer of a new socket has space for this. If the write fails, the
                // client still sees that the connection is closed.
                let _ = (&stream).write(b"ERROR Too many open connections\r\n");
            }
        }
    }

    /// Assigns a connection to the worker that has the fewest.
    fn assign(&mut self, stream: TcpStream, permit: ConnectionPermit) {
        // Nagle's algorithm would only delay replies, which are written in one piece. Keep-alive
        // probes detect clients that disappeared. The connection also works without these options.
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        if let Some(mailbox) = self.mailboxes.iter().min_by_key(|mailbox| mailbox.load()) {
            mailbox.deliver(stream, permit);
        }
    }
}
