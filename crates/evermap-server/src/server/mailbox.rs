//! What other threads leave for a worker.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use super::permits::ConnectionPermit;
use super::stream::Stream;

/// The queues through which a worker receives connections from the acceptor, and learns from the
/// other workers which of its clients to disconnect.
pub(super) struct Mailbox {
    /// `None` after the worker has ended.
    queue: Mutex<Option<Vec<(Stream, ConnectionPermit)>>>,
    /// Tokens of clients that [hold too much](super::client::Client::holds_too_much).
    disconnected: Mutex<Vec<usize>>,
    /// The number of connections that the worker serves or that are in the queue.
    load: AtomicUsize,
    /// The number of times that the worker has waited for events.
    pub(super) waits: AtomicU64,
    pub(super) waker: Arc<Waker>,
}

impl Mailbox {
    /// Creates the mailbox of a worker that `waker` wakes.
    pub(super) fn new(waker: Waker) -> Self {
        Mailbox {
            queue: Mutex::new(Some(Vec::new())),
            disconnected: Mutex::default(),
            load: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            waker: Arc::new(waker),
        }
    }

    /// Returns the number of connections of the worker.
    pub(super) fn load(&self) -> usize {
        self.load.load(Relaxed)
    }

    /// Adds a connection. It is closed immediately if the worker has ended.
    pub(super) fn deliver(&self, stream: Stream, permit: ConnectionPermit) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = &mut *queue {
            queue.push((stream, permit));
            self.load.fetch_add(1, Relaxed);
            // Waking fails only if the event queue is closed, and then the worker has ended.
            let _ = self.waker.wake();
        }
    }

    /// Removes a connection that the worker does not serve any more from the load.
    pub(super) fn release(&self) {
        self.load.fetch_sub(1, Relaxed);
    }

    /// Removes and returns the queued connections.
    pub(super) fn take(&self) -> Vec<(Stream, ConnectionPermit)> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Makes the worker disconnect a client, if it
    /// [holds too much](super::client::Client::holds_too_much): the token may belong to another one
    /// by then.
    pub(super) fn disconnect(&self, token: usize) {
        self.disconnected.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        // Waking fails only if the event queue is closed, and then the worker has ended.
        let _ = self.waker.wake();
    }

    /// Removes and returns the tokens of clients to disconnect.
    pub(super) fn take_disconnected(&self) -> Vec<usize> {
        std::mem::take(&mut *self.disconnected.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes the queued connections and all that are delivered later.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        *queue = None;
        // The mailbox with the highest load is chosen only if there is no other. This is stored
        // under the lock, because a delivery at the same time would make the counter wrap to 0.
        self.load.store(usize::MAX, Relaxed);
    }
}
