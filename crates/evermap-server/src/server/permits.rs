//! Permits for connections, of which there is a limited number.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use mio::Waker;

/// The permits of a server.
pub(super) struct Permits {
    max: usize,
    given: AtomicUsize,
    /// Whether the acceptor waits until a connection is closed.
    waits_for_close: AtomicBool,
    /// Wakes the acceptor.
    acceptor: OnceLock<Arc<Waker>>,
    /// The number of times that accepting paused, because all permits were given, or the system had
    /// no descriptors or memory.
    pauses: AtomicU64,
}

/// A permit for one open connection. It is returned when dropped.
pub(super) struct ConnectionPermit(Arc<Permits>);

impl Permits {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Permits {
            max,
            given: AtomicUsize::new(0),
            waits_for_close: AtomicBool::new(false),
            acceptor: OnceLock::new(),
            pauses: AtomicU64::new(0),
        })
    }

    /// Sets what wakes the acceptor. Only the first call has an effect.
    pub(super) fn set_acceptor(&self, waker: Arc<Waker>) {
        let _ = self.acceptor.set(waker);
    }

    /// Returns the number of permits that are given, which is that of open connections.
    pub(super) fn given(&self) -> usize {
        self.given.load(Relaxed)
    }

    /// Returns a permit for a new connection, or `None` if there are too many.
    pub(super) fn try_give(self: &Arc<Self>) -> Option<ConnectionPermit> {
        // Sequentially consistent, for `give_or_wait`.
        let given =
            self.given.fetch_update(SeqCst, SeqCst, |now| (now < self.max).then_some(now + 1));
        given.ok().map(|_| ConnectionPermit(self.clone()))
    }

    /// Returns a permit for a new connection, or `None` if there are too many. Then the acceptor is
    /// woken when one is closed.
    pub(super) fn give_or_wait(self: &Arc<Self>) -> Option<ConnectionPermit> {
        if let Some(permit) = self.try_give() {
            return Some(permit);
        }
        // A thread that closes a connection changes the number and then reads this flag. Here it is
        // the other way round. All four are sequentially consistent, so that one of the two
        // threads sees what the other did.
        if !self.waits_for_close.swap(true, SeqCst) {
            self.count_pause();
        }
        let permit = self.try_give()?;
        self.waits_for_close.store(false, SeqCst);
        Some(permit)
    }

    /// Returns `true` while the acceptor waits until a connection is closed.
    pub(super) fn is_exhausted(&self) -> bool {
        self.waits_for_close.load(Relaxed)
    }

    /// Returns the number of times that accepting paused since the last reset.
    pub(super) fn pauses(&self) -> u64 {
        self.pauses.load(Relaxed)
    }

    pub(super) fn count_pause(&self) {
        self.pauses.fetch_add(1, Relaxed);
    }

    pub(super) fn reset_pauses(&self) {
        self.pauses.store(0, Relaxed);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        // Sequentially consistent, for `give_or_wait`.
        self.0.given.fetch_sub(1, SeqCst);
        if self.0.waits_for_close.load(SeqCst)
            && self.0.waits_for_close.swap(false, SeqCst)
            && let Some(waker) = self.0.acceptor.get()
        {
            // Waking fails only if the event queue is closed, and then the acceptor has ended.
            let _ = waker.wake();
        }
    }
}
