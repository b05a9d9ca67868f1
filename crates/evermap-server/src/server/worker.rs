//! The threads that serve connections.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::client::{Client, Rooms, Turn};
use super::room::{ReadRoom, ReplyRoom};
use super::shared::{Admission, Shared, unix_seconds};
use crate::protocol::Context;

const WAKER: Token = Token(usize::MAX);

/// How long a stopping server waits for clients to read their last replies.
const GRACE: Duration = Duration::from_secs(2);

/// Serves its connections with one event loop.
pub(super) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    poll: Poll,
    desk: Arc<Desk>,
    /// By token.
    clients: Vec<Option<Client>>,
    /// Tokens that are free.
    free: Vec<usize>,
    /// Tokens of clients that wait for another turn.
    again: Vec<usize>,
    rooms: Rooms,
}

/// Where the acceptor leaves connections for a worker.
pub(super) struct Desk {
    /// Nothing once the worker is gone.
    inbox: Mutex<Option<Vec<(TcpStream, Admission)>>>,
    /// Connections that the worker has or will find here.
    load: AtomicUsize,
    pub(super) waker: Arc<Waker>,
}

impl Desk {
    pub(super) fn load(&self) -> usize {
        self.load.load(Relaxed)
    }

    /// Leaves a connection. It is closed at once if the worker is gone.
    pub(super) fn hand_over(&self, stream: TcpStream, admission: Admission) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inbox) = &mut *inbox {
            inbox.push((stream, admission));
            self.load.fetch_add(1, Relaxed);
            // A waker fails only when its event queue is gone, and then the worker is too.
            let _ = self.waker.wake();
        }
    }

    fn take(&self) -> Vec<(TcpStream, Admission)> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn close(&self) {
        // The most loaded desk is never chosen while there is another.
        self.load.store(usize::MAX, Relaxed);
        *self.inbox.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Worker {
    /// Also when the worker panics: its clients are closed, and no more are sent to it.
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl Worker {
    /// A worker, and the desk where connections for it are left.
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> io::Result<(Self, Arc<Desk>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let inbox = Mutex::new(Some(Vec::new()));
        let desk = Arc::new(Desk { inbox, load: AtomicUsize::new(0), waker });
        let worker = Worker {
            shared,
            number,
            poll,
            desk: desk.clone(),
            clients: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            rooms: Rooms { read: ReadRoom::new(), replies: ReplyRoom::default() },
        };
        Ok((worker, desk))
    }

    /// Serves until the server stops.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let shared = self.shared.clone();
        while !shared.is_stopping() {
            let timeout = (!self.again.is_empty()).then_some(Duration::ZERO);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue is broken, which has no remedy.
                return;
            }
            let context = context(&shared, self.number);
            let waiting = std::mem::take(&mut self.again);
            for event in &events {
                match event.token() {
                    WAKER => self.take_in(),
                    Token(token) => self.ready(token, event, &context),
                }
            }
            for token in waiting {
                self.turn(token, &context);
            }
        }
        self.finish(&mut events, &context(&shared, self.number));
    }

    /// Takes the connections from the desk.
    fn take_in(&mut self) {
        for (mut stream, admission) in self.desk.take() {
            let token = self.free.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.clients.len() - 1
            });
            // Both, once: an edge-triggered queue tells each change of either, so nothing has to be changed when
            // a client begins or stops to wait for room.
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, Token(token), interest).is_err() {
                // The system has no memory to watch this connection, so it cannot be served.
                self.release(token);
                continue;
            }
            self.clients[token] = Some(Client::new(stream, admission, &self.shared.unsent));
        }
    }

    fn ready(&mut self, token: usize, event: &Event, context: &Context<'_>) {
        // An event of a connection that was closed after the events were fetched finds nobody, or another
        // client to whom a needless turn does no harm.
        if let Some(Some(client)) = self.clients.get_mut(token) {
            let closed = event.is_read_closed() || event.is_error();
            client.ready(event.is_readable() || closed, closed);
            if !client.queued {
                self.turn(token, context);
            }
        }
    }

    fn turn(&mut self, token: usize, context: &Context<'_>) {
        let Some(Some(client)) = self.clients.get_mut(token) else {
            return;
        };
        let turn = client.turn(&mut self.rooms, context);
        client.queued = turn == Turn::Again;
        match turn {
            Turn::Wait => {}
            Turn::Again => self.again.push(token),
            Turn::Close => {
                self.clients[token] = None;
                self.release(token);
            }
        }
    }

    /// A connection is gone.
    fn release(&mut self, token: usize) {
        self.desk.load.fetch_sub(1, Relaxed);
        self.free.push(token);
    }

    /// Sends the replies that are ready and closes every connection.
    fn finish(&mut self, events: &mut Events, context: &Context<'_>) {
        let deadline = Instant::now() + GRACE;
        loop {
            for slot in &mut self.clients {
                if let Some(client) = slot {
                    let sent = client.send_unsent(context);
                    if client.is_drained() || sent.is_err() {
                        client.discard_input(&mut self.rooms.read);
                        *slot = None;
                    }
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.clients.iter().all(Option::is_none) || left.is_zero() {
                return;
            }
            if self.poll.poll(events, Some(left)).is_err_and(|e| e.kind() != ErrorKind::Interrupted)
            {
                return;
            }
        }
    }
}

/// What sessions need of the server while they work.
fn context(shared: &Shared, worker: usize) -> Context<'_> {
    Context {
        cache: &*shared.cache,
        counters: &shared.counters[worker],
        uploads: &shared.uploads,
        host: shared,
        now: unix_seconds(),
        item_size_max: shared.config.item_size_max,
        output_limit: shared.config.output_limit,
    }
}
