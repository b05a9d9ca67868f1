//! The thread that accepts connections.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::shared::{Admission, Shared};
use super::worker::Desk;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// How long to wait before trying again after the system had no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections and deals them to the workers.
pub(super) struct Acceptor {
    shared: Arc<Shared>,
    poll: Poll,
    listener: TcpListener,
    desks: Vec<Arc<Desk>>,
    pub(super) waker: Arc<Waker>,
}

/// Whether connections may be waiting that were not accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Empty,
    Waiting,
}

impl Acceptor {
    pub(super) fn new(
        shared: Arc<Shared>,
        mut listener: TcpListener,
        desks: Vec<Arc<Desk>>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok(Acceptor { shared, poll, listener, desks, waker })
    }

    /// Accepts until the server stops. Closes the listener at the end.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(16);
        let mut queue = Queue::Empty;
        while !self.shared.is_stopping() {
            let timeout = (queue == Queue::Waiting).then_some(PAUSE);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue is broken, which has no remedy: leave the connected clients in peace.
                return;
            }
            queue = self.accept_all();
        }
    }

    /// Accepts whatever is waiting.
    fn accept_all(&mut self) -> Queue {
        while !self.shared.is_stopping() {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Queue::Empty,
                    // That client is gone; the next may not be.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    // Out of descriptors or memory: the client stays in the queue and would be offered again
                    // at once, so wait for others to leave.
                    _ => {
                        self.shared.pauses.fetch_add(1, Relaxed);
                        return Queue::Waiting;
                    }
                },
            }
        }
        Queue::Empty
    }

    fn admit(&mut self, stream: TcpStream) {
        self.shared.accepted.fetch_add(1, Relaxed);
        match self.shared.admit() {
            Some(admission) => self.deal(stream, admission),
            None => {
                self.shared.rejected.fetch_add(1, Relaxed);
                // A fresh socket has room for this; if not, the client sees the close all the same.
                let _ = (&stream).write(b"ERROR Too many open connections\r\n");
            }
        }
    }

    /// Gives a connection to the worker that has the fewest.
    fn deal(&mut self, stream: TcpStream, admission: Admission) {
        // Replies are written whole, so waiting to fill a packet would only delay them. Probes find clients
        // that vanished without a word. Where a socket refuses, it works without.
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        if let Some(desk) = self.desks.iter().min_by_key(|desk| desk.load()) {
            desk.hand_over(stream, admission);
        }
    }
}
