//! The threads that serve connections.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Token, Waker};

use super::buffers::{ReadBuffer, ReplyBuffer};
use super::client::{Buffers, Client, IdleLimits, Turn};
use super::connections::{Connection, Peer, Registered, State};
use super::idle::IdleCheck;
use super::mailbox::Mailbox;
use super::permits::ConnectionPermit;
use super::shared::Shared;
use super::unread::Held;
use crate::protocol::Context;
use crate::stats::Count;
use crate::watch::{CloseReason, Hub, Streams, Topic};

const WAKER: Token = Token(usize::MAX);

/// The time for which a stopping server waits until clients have read their last replies.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves its connections with an event loop.
pub(super) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    poll: Poll,
    mailbox: Arc<Mailbox>,
    /// The clients, indexed by token.
    clients: Vec<Option<Client>>,
    /// Unused tokens.
    free: Vec<usize>,
    /// Tokens of the clients that wait for another turn.
    run_queue: Vec<usize>,
    /// Tokens of the clients whose replies wait until what they have changed is durable.
    unsettled: Vec<usize>,
    buffers: Buffers,
    idle_check: Option<IdleCheck>,
}

impl Drop for Worker {
    /// Runs also when the worker panics. Its clients are closed, and it gets no more.
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

impl Worker {
    /// Creates a worker and its mailbox.
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> io::Result<(Self, Arc<Mailbox>)> {
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(Waker::new(poll.registry(), WAKER)?));
        let idle_check = IdleCheck::new(&shared.config);
        let worker = Worker {
            shared,
            index,
            poll,
            mailbox: mailbox.clone(),
            clients: Vec::new(),
            free: Vec::new(),
            run_queue: Vec::new(),
            unsettled: Vec::new(),
            buffers: Buffers { read: ReadBuffer::new(), replies: ReplyBuffer::default() },
            idle_check,
        };
        Ok((worker, mailbox))
    }

    /// Serves connections until the server stops.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let shared = self.shared.clone();
        while !shared.is_stopping() {
            let timeout = match &self.idle_check {
                _ if !self.run_queue.is_empty() => Some(Duration::ZERO),
                Some(check) if self.free.len() < self.clients.len() => Some(check.time_left()),
                _ => None,
            };
            // Read only to see that the worker runs.
            self.mailbox.waits.fetch_add(1, Relaxed);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue failed and cannot be repaired.
                return;
            }
            let ready_at = Instant::now();
            let context = context(&shared, self.index);
            let waiting = std::mem::take(&mut self.run_queue);
            for event in &events {
                match event.token() {
                    WAKER => {
                        self.adopt_connections(&context);
                        self.disconnect_holding(&context);
                    }
                    Token(token) => self.ready(token, event, &context, ready_at),
                }
            }
            for token in waiting {
                self.turn(token, &context, ready_at);
            }
            self.settle(&context);
            if let Some(limits) = self.idle_check.as_mut().and_then(IdleCheck::limits_if_due) {
                self.disconnect_idle(&limits, &context);
            }
            if context.watch.take_pushed() {
                shared.hub.notify();
            }
        }
        self.finish(&mut events, &context(&shared, self.index));
    }

    /// Registers the connections in the mailbox.
    fn adopt_connections(&mut self, context: &Context<'_>) {
        for (mut stream, permit) in self.mailbox.take() {
            let token = self.free.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.clients.len() - 1
            });
            // Registers once. The edge-triggered event queue reports every change, so the
            // registration need not change when the send buffer is full.
            if stream.register(self.poll.registry(), Token(token)).is_err() {
                // The system has no memory to monitor this connection, so it cannot be served.
                self.release(token);
                continue;
            }
            let socket = stream.socket_mut();
            let Ok(peer) = socket.peer() else {
                // The connection has failed already.
                self.release(token);
                continue;
            };
            let number = socket.number();
            let registered = self.shared.open.add(number, peer, State::Read, context.now);
            report_opened(context, registered.connection());
            let held = Held::new(&self.shared.unread, &self.mailbox, token);
            self.clients[token] = Some(Client::new(stream, registered, permit, held));
        }
    }

    /// Handles an event of a connection.
    fn ready(&mut self, token: usize, event: &Event, context: &Context<'_>, ready_at: Instant) {
        // If the connection was closed after the events were fetched, the token is unused, or
        // belongs to another client. An unnecessary turn of that client is harmless.
        if let Some(Some(client)) = self.clients.get_mut(token) {
            let closed = event.is_read_closed() || event.is_error();
            client.set_ready(event.is_readable() || closed, closed);
            if !client.queued {
                self.turn(token, context, ready_at);
            }
        }
    }

    /// Gives a client its turn.
    fn turn(&mut self, token: usize, context: &Context<'_>, ready_at: Instant) {
        let Some(Some(client)) = self.clients.get_mut(token) else {
            return;
        };
        let rounds_max = self.shared.config.reads_per_turn;
        let turn = client.turn(rounds_max, &mut self.buffers, context, ready_at);
        client.queued = turn == Turn::Again;
        match turn {
            Turn::Wait => {}
            Turn::Again => self.run_queue.push(token),
            Turn::Close(reason) => self.close(token, reason, context),
            Turn::Watch(streams) => self.start_watch(token, streams),
            Turn::Settle => {
                client.queued = true;
                self.unsettled.push(token);
            }
        }
    }

    /// Makes durable what clients have changed, with one sync for all of them, and gives them their
    /// replies. If that fails, they are disconnected instead: their replies are not true.
    fn settle(&mut self, context: &Context<'_>) {
        if self.unsettled.is_empty() {
            return;
        }
        let settled = context.cache.settle();
        for token in std::mem::take(&mut self.unsettled) {
            let Some(Some(client)) = self.clients.get_mut(token) else { continue };
            if settled.is_err() {
                client.drop_unsent();
                self.close(token, CloseReason::Error, context);
            } else if client.send_unsent(context).is_err() {
                self.close(token, CloseReason::Error, context);
            } else {
                self.run_queue.push(token);
            }
        }
    }

    /// Disconnects clients of this worker because all clients hold too many unread replies.
    fn disconnect_holding(&mut self, context: &Context<'_>) {
        for token in self.mailbox.take_disconnected() {
            if self.clients[token].as_ref().is_some_and(Client::holds_too_much) {
                self.close(token, CloseReason::Unread, context);
            }
        }
    }

    /// Disconnects the clients that have been idle for too long.
    fn disconnect_idle(&mut self, limits: &IdleLimits, context: &Context<'_>) {
        let now = Instant::now();
        for token in 0..self.clients.len() {
            let client = self.clients[token].as_mut();
            if client.is_some_and(|client| client.is_idle(now, limits)) {
                context.counters.add(Count::IdleKicks, 1);
                self.close(token, CloseReason::IdleTimeout, context);
            }
        }
    }

    /// Hands the connection of a client over to the hub, or refuses to.
    fn start_watch(&mut self, token: usize, streams: Streams) {
        let hub = &self.shared.hub;
        let slot = hub.reserve();
        let Some(Some(client)) = self.clients.get_mut(token) else {
            return;
        };
        match slot {
            None => {
                client.refuse_watch(b"WATCHER_TOO_MANY log watcher limit reached\r\n");
                client.queued = true;
                self.run_queue.push(token);
            }
            Some(slot) => {
                if let Some(client) = self.clients[token].take() {
                    let (mut stream, registered, permit) = client.into_watcher();
                    // If this fails, so does the registration with the hub, which closes it.
                    let _ = stream.deregister(self.poll.registry());
                    registered.end_turn(State::Watch);
                    let held = Watcher { hub: hub.clone(), registered, _permit: permit };
                    hub.adopt(Box::new(stream), streams, slot, Box::new(held));
                }
                self.release(token);
            }
        }
    }

    /// Closes a connection.
    fn close(&mut self, token: usize, reason: CloseReason, context: &Context<'_>) {
        if let Some(mut client) = self.clients[token].take() {
            client.abandon_unsent();
            report_closed(context, client.registered.connection(), reason);
        }
        self.release(token);
    }

    /// Frees the token of a closed connection.
    fn release(&mut self, token: usize) {
        self.mailbox.release();
        self.free.push(token);
    }

    /// Sends the replies that are complete and closes every connection.
    fn finish(&mut self, events: &mut Events, context: &Context<'_>) {
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            for slot in &mut self.clients {
                if let Some(client) = slot {
                    let sent = client.send_unsent(context);
                    if client.is_drained() || sent.is_err() {
                        client.end(&mut self.buffers.read);
                        let connection = client.registered.connection();
                        report_closed(context, connection, CloseReason::Shutdown);
                        *slot = None;
                    }
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.clients.iter().all(Option::is_none) || left.is_zero() {
                self.clients.iter_mut().flatten().for_each(Client::abandon_unsent);
                return;
            }
            if self.poll.poll(events, Some(left)).is_err_and(|e| e.kind() != ErrorKind::Interrupted)
            {
                return;
            }
        }
    }
}

/// What a watcher has of the connection that it was.
struct Watcher {
    hub: Arc<Hub>,
    registered: Registered,
    _permit: ConnectionPermit,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Connection { number, ref peer, .. } = **self.registered.connection();
        self.hub.closed(number, peer.address.as_bytes(), peer.transport, peer.port);
    }
}

fn report_opened(context: &Context<'_>, connection: &Connection) {
    if context.watch.wants(Topic::CONNECTIONS) {
        let Peer { transport, ref address, port, .. } = connection.peer;
        context.watch.connected(connection.number, address.as_bytes(), transport, port);
    }
}

fn report_closed(context: &Context<'_>, connection: &Connection, reason: CloseReason) {
    if context.watch.wants(Topic::CONNECTIONS) {
        let Peer { transport, ref address, port, .. } = connection.peer;
        context.watch.closed(connection.number, address.as_bytes(), transport, port, reason);
    }
}

/// Returns the context for the sessions of a worker.
fn context(shared: &Shared, worker: usize) -> Context<'_> {
    Context {
        cache: &*shared.cache,
        counters: &shared.counters[worker],
        uploads: &shared.uploads,
        host: shared,
        now: shared.cache.now(),
        item_size_max: shared.config.item_size_max,
        key_size_max: shared.config.key_size_max,
        output_limit: shared.config.output_limit,
        binding: shared.config.binding,
        credentials: shared.config.credentials.as_deref(),
        watch: shared.hub.worker(worker),
        latencies: &shared.latencies[worker],
        connection: 0,
    }
}
