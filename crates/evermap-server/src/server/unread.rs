//! Replies that clients have not read, limited over all workers.
//!
//! Each client holds little more than [`output_limit`](super::Config::output_limit), or one value,
//! but there may be thousands. When all of them hold more than the limit, those are disconnected
//! that have read nothing for the longest time, until the others are within it. A client that
//! reads, however slowly, is newer with each byte, so those that only hold memory go first.
//!
//! A client takes part only while its socket is full, so a client that reads its replies in time
//! never takes the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::mailbox::Mailbox;

/// The unread replies of all clients.
pub(super) struct Unread {
    limit: usize,
    clients: Mutex<Clients>,
    /// The number of bytes that were held and have been freed.
    freed: AtomicU64,
    /// The number of clients that were disconnected.
    kicks: AtomicU64,
}

#[derive(Default)]
struct Clients {
    /// Those that hold replies, from the one that has read nothing for the longest time to the one
    /// that has read last. The number distinguishes clients with the same time.
    by_time: BTreeMap<(Instant, u64), Holding>,
    /// The sum of the bytes of `by_time`.
    bytes: usize,
    /// The number of the next client.
    next: u64,
}

struct Holding {
    bytes: usize,
    /// The worker that serves the client, and its token there.
    mailbox: Arc<Mailbox>,
    token: usize,
}

/// The unread replies of one client. They do not count any more after this is dropped.
pub(super) struct Held {
    unread: Arc<Unread>,
    mailbox: Arc<Mailbox>,
    token: usize,
    bytes: usize,
    /// The key in [`Clients::by_time`]; `None` while the client holds nothing.
    key: Option<(Instant, u64)>,
}

impl Unread {
    /// Creates an account of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let (freed, kicks) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Unread { limit, clients: Mutex::default(), freed, kicks })
    }

    /// Returns the number of bytes that clients hold, without those of clients that are about to be
    /// disconnected.
    pub(super) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Returns the number of bytes that clients have held and do not hold any more.
    pub(super) fn freed(&self) -> u64 {
        self.freed.load(Relaxed)
    }

    /// Returns the number of clients that were disconnected because all held too much.
    pub(super) fn kicks(&self) -> u64 {
        self.kicks.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Creates an account of a client that holds nothing.
    pub(super) fn new(unread: &Arc<Unread>, mailbox: &Arc<Mailbox>, token: usize) -> Self {
        let (unread, mailbox) = (unread.clone(), mailbox.clone());
        Held { unread, mailbox, token, bytes: 0, key: None }
    }

    /// Records that the client holds `bytes` now, and whether its socket has taken some since the
    /// last call. Tells workers to disconnect clients if that is too much.
    pub(super) fn resize(&mut self, bytes: usize, has_read: bool) {
        if bytes == 0 && self.key.is_none() {
            return;
        }
        let mut clients = self.unread.lock();
        let known = self.key.and_then(|key| clients.remove(key));
        if self.key.is_some() && known.is_none() {
            // It is about to be disconnected, and does not count any more.
            return;
        }
        if let Some(less) = self.bytes.checked_sub(bytes) {
            self.unread.freed.fetch_add(less as u64, Relaxed);
        }
        self.bytes = bytes;
        self.key = (bytes > 0).then(|| match self.key {
            Some(key) if !has_read => key,
            _ => clients.new_key(),
        });
        if let Some(key) = self.key {
            let (mailbox, token) = (self.mailbox.clone(), self.token);
            clients.insert(key, Holding { bytes, mailbox, token });
            while clients.bytes > self.unread.limit && clients.disconnect_first() {
                self.unread.kicks.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns `true` if the client is to be disconnected.
    pub(super) fn is_disconnected(&self) -> bool {
        self.key.is_some_and(|key| !self.unread.lock().by_time.contains_key(&key))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.unread.lock().remove(key);
            self.unread.freed.fetch_add(self.bytes as u64, Relaxed);
        }
    }
}

impl Clients {
    fn new_key(&mut self) -> (Instant, u64) {
        self.next += 1;
        (Instant::now(), self.next)
    }

    fn insert(&mut self, key: (Instant, u64), holding: Holding) {
        self.bytes += holding.bytes;
        self.by_time.insert(key, holding);
    }

    fn remove(&mut self, key: (Instant, u64)) -> Option<Holding> {
        let holding = self.by_time.remove(&key)?;
        self.bytes -= holding.bytes;
        Some(holding)
    }

    /// Removes the client that has read nothing for the longest time, and tells its worker to
    /// disconnect it. Returns `false` if there is none.
    fn disconnect_first(&mut self) -> bool {
        let Some((_, Holding { bytes, mailbox, token })) = self.by_time.pop_first() else {
            return false;
        };
        self.bytes -= bytes;
        mailbox.disconnect(token);
        true
    }
}
