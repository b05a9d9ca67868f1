//! The thread that accepts connections.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};

use super::config::WhenFull;
use super::connections::{Peer, Registered, State};
use super::listen::{Listener, Listening, Security};
use super::mailbox::Mailbox;
use super::permits::ConnectionPermit;
use super::shared::Shared;
use super::socket::Socket;
use super::stream::Stream;
use super::tls::{ClientCertificates, Tls};

const WAKER: Token = Token(usize::MAX);

/// The delay before the next attempt after the system had no descriptor or memory for a connection.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The number of connections that one listener accepts before it is the turn of the next.
const ACCEPTS_MAX: usize = 64;

/// Accepts connections and assigns each to a worker.
pub(super) struct Acceptor {
    shared: Arc<Shared>,
    poll: Poll,
    /// The listeners, indexed by token.
    listeners: Vec<OpenListener>,
    mailboxes: Vec<Arc<Mailbox>>,
    pub(super) waker: Arc<Waker>,
}

struct OpenListener {
    listening: Listening,
    /// The certificates, and what clients have to present, if connections use TLS.
    tls: Option<(Tls, ClientCertificates)>,
    /// Whether there may be connections in its queue.
    ready: bool,
    /// Lists it in `stats conns`.
    _registered: Registered,
}

/// What the acceptor waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// An event.
    Event,
    /// A listener has more connections.
    Nothing,
    /// The system has no descriptors or memory for more connections.
    Retry,
}

/// Why a listener stops accepting for the time being.
enum Pause {
    /// Its queue is empty.
    Empty,
    /// There are as many connections as are allowed. The thread is woken when one is closed.
    Full,
    /// The system has no descriptors or memory.
    Exhausted,
}

impl Acceptor {
    /// Starts to listen.
    pub(super) fn new(
        shared: Arc<Shared>,
        listeners: Vec<Listener>,
        mailboxes: Vec<Arc<Mailbox>>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let open = |(index, listener): (usize, Listener)| {
            let tls = tls_of(&shared, listener.security())?;
            let peer = Peer::of_listener(listener.address());
            let mut listening = listener.listen(shared.config.backlog)?;
            listening.socket.register(poll.registry(), Token(index))?;
            let number = listening.socket.number();
            let registered = shared.open.add(number, peer, State::Listening, shared.cache.now());
            Ok(OpenListener { listening, tls, ready: false, _registered: registered })
        };
        let listeners: io::Result<Vec<_>> = listeners.into_iter().enumerate().map(open).collect();
        Ok(Acceptor { listeners: listeners?, shared, poll, mailboxes, waker })
    }

    /// Accepts connections until the server stops. Then closes the listeners.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(16);
        let mut wait = Wait::Event;
        while !self.shared.is_stopping() {
            let timeout = match wait {
                Wait::Event => None,
                Wait::Nothing => Some(Duration::ZERO),
                Wait::Retry => Some(RETRY_DELAY),
            };
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue failed and cannot be repaired. Connected clients are not
                // affected.
                return;
            }
            for event in &events {
                if let Some(listener) = self.listeners.get_mut(event.token().0) {
                    listener.ready = true;
                }
            }
            wait = self.accept_ready();
        }
    }

    /// Accepts connections that wait.
    fn accept_ready(&mut self) -> Wait {
        let mut wait = Wait::Event;
        for index in 0..self.listeners.len() {
            if !self.listeners[index].ready {
                continue;
            }
            match self.accept_some(index) {
                // It stays ready, and no event says so again.
                None => wait = Wait::Nothing,
                Some(Pause::Empty) => self.listeners[index].ready = false,
                Some(Pause::Full) => return Wait::Event,
                Some(Pause::Exhausted) => {
                    self.shared.permits.count_pause();
                    return Wait::Retry;
                }
            }
        }
        wait
    }

    /// Accepts connections of one listener, up to a limit. Returns why it stopped before.
    fn accept_some(&self, index: usize) -> Option<Pause> {
        let listener = &self.listeners[index];
        for _ in 0..ACCEPTS_MAX {
            if self.shared.is_stopping() {
                return Some(Pause::Empty);
            }
            let mut permit = None;
            if self.shared.config.when_full == WhenFull::Wait {
                permit = self.shared.permits.give_or_wait();
                if permit.is_none() {
                    return Some(Pause::Full);
                }
            }
            match listener.listening.socket.accept() {
                Ok(socket) => self.admit(listener, socket, permit),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Some(Pause::Empty),
                    // This client is gone, but others may be waiting.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    // No descriptors or memory: the connection stays in the queue and would be
                    // offered again immediately, so wait until others are closed.
                    _ => return Some(Pause::Exhausted),
                },
            }
        }
        None
    }

    /// Assigns a connection to a worker, or rejects it if there are too many.
    fn admit(&self, listener: &OpenListener, socket: Socket, permit: Option<ConnectionPermit>) {
        self.shared.accepted.fetch_add(1, Relaxed);
        match permit.or_else(|| self.shared.permits.try_give()) {
            Some(permit) => self.assign(listener, socket, permit),
            None => {
                self.shared.rejected.fetch_add(1, Relaxed);
                reject(socket, listener.tls.is_some());
            }
        }
    }

    /// Assigns a connection to the worker that has the fewest.
    fn assign(&self, listener: &OpenListener, socket: Socket, permit: ConnectionPermit) {
        if let Socket::Tcp(socket) = &socket {
            // Nagle's algorithm would only delay replies, which are written in one piece.
            // Keep-alive probes detect clients that disappeared. The connection also works without
            // these options.
            let _ = socket.set_nodelay(true);
            let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
        }
        let stream = match &listener.tls {
            None => Stream::Plain(socket),
            Some((tls, clients)) => match tls.accept(socket, *clients) {
                Ok(stream) => Stream::Tls(Box::new(stream)),
                // There is no memory for the connection.
                Err(_) => return,
            },
        };
        if let Some(mailbox) = self.mailboxes.iter().min_by_key(|mailbox| mailbox.load()) {
            mailbox.deliver(stream, permit);
        }
    }
}

/// Returns the certificates for the connections of a listener, if they use TLS.
#[cfg_attr(
    not(feature = "tls"),
    expect(
        unreachable_code,
        unused_variables,
        reason = "there are no certificates in a build without TLS"
    )
)]
fn tls_of(shared: &Shared, security: Security) -> io::Result<Option<(Tls, ClientCertificates)>> {
    let Security::Tls { clients } = security else {
        return Ok(None);
    };
    let Some(tls) = &shared.config.tls else {
        let what = "a listener with TLS needs a certificate";
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    };
    Ok(Some((tls.clone(), clients.unwrap_or(tls.settings().client_certificates))))
}

/// Closes a connection because there are too many.
fn reject(mut socket: Socket, encrypted: bool) {
    // A client that has begun a handshake would not understand the message.
    if !encrypted {
        // The send buffer of a new socket has space for this. If the write fails, the client still
        // sees that the connection is closed.
        let _ = socket.write(b"ERROR Too many open connections\r\n");
    }
}
