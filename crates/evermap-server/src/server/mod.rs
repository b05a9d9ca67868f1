//! Sockets and threads.
//!
//! One thread accepts connections and assigns each to the worker that has the fewest. Each worker
//! serves its connections with an event loop and shares only the [`Cache`] with the others. This
//! keeps the workers evenly loaded even if there are few clients. The two usual alternatives do
//! not. Sockets that share a port (`SO_REUSEPORT`) distribute connections by a hash, so that one of
//! several workers may get four of eight clients; they also let a second server take half of the
//! clients unnoticed. A listener in every event loop wakes all workers for each client and favours
//! the idle ones.

mod accept;
mod address;
mod buffers;
mod client;
mod config;
mod connections;
mod idle;
mod listen;
mod mailbox;
mod permits;
mod shared;
mod socket;
mod stream;
mod tls;
mod unread;
mod worker;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mio::Waker;

use crate::cache::Cache;
use crate::cumulative::Cumulative;
use crate::metrics::{Responder, Stopper};
use crate::protocol::Host;
use crate::watch::Hub;
use accept::Acceptor;
pub use address::ListenAddress;
pub use config::{
    Config, IDLE_TIMEOUT_MIN, ITEM_SIZE_LIMIT, ITEM_SIZE_MIN, LOG_BUFFER_LIMIT, LOG_BUFFER_MIN,
    THREADS_MAX, WhenFull,
};
pub use listen::{Listener, Security};
use mailbox::Mailbox;
use shared::Shared;
pub use tls::{ClientCertificates, Tls, TlsSettings, TlsVersion};
use worker::Worker;

/// A running server. It stops when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    /// Of the workers.
    mailboxes: Vec<Arc<Mailbox>>,
    /// How often each worker had waited for events at the last call of
    /// [`is_responsive`](Server::is_responsive).
    waits: Mutex<Vec<u64>>,
    /// The wakers of the acceptor and the workers, used to stop them.
    wakers: Vec<Arc<Waker>>,
    /// Stops the thread of the metrics.
    metrics: Option<Arc<Stopper>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Listens on [`Config::listen`] and starts to serve `cache`.
    ///
    /// # Errors
    /// `InvalidInput` if a setting is invalid; otherwise the error of the system if it cannot
    /// listen, or cannot create a thread or an event queue.
    pub fn start(cache: Arc<dyn Cache>, config: Config) -> io::Result<Server> {
        config.check()?;
        Server::start_on(vec![Listener::tcp(config.listen)?], cache, config)
    }

    /// Listens on `listeners` instead of [`Config::listen`] and starts to serve `cache`.
    ///
    /// # Errors
    /// As [`start`](Server::start); and `InvalidInput` if there is no listener, or one uses TLS
    /// and [`Config::tls`] has no certificates.
    pub fn start_on(
        listeners: Vec<Listener>,
        cache: Arc<dyn Cache>,
        mut config: Config,
    ) -> io::Result<Server> {
        config.check()?;
        if listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no listener"));
        }
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let metrics = config.metrics.map(Responder::bind).transpose()?;
        config.metrics = metrics.as_ref().map(Responder::local_addr);
        let shared = Arc::new(Shared::new(cache, config, addresses)?);
        let mut server = Server {
            shared: shared.clone(),
            mailboxes: Vec::new(),
            waits: Mutex::default(),
            wakers: Vec::new(),
            metrics: metrics.as_ref().map(Responder::stopper),
            threads: Mutex::default(),
        };
        let hub = shared.hub.clone();
        server.spawn("evermap-watch".into(), move || hub.run())?;
        if let Some(metrics) = metrics {
            let shared = shared.clone();
            server.spawn("evermap-metrics".into(), move || metrics.run(&*shared))?;
        }
        for index in 0..shared.config.threads {
            let (worker, mailbox) = Worker::new(shared.clone(), index)?;
            server.wakers.push(mailbox.waker.clone());
            server.mailboxes.push(mailbox);
            server.spawn(format!("evermap-worker-{index}"), || worker.run())?;
        }
        let acceptor = Acceptor::new(shared, listeners, server.mailboxes.clone())?;
        server.wakers.push(acceptor.waker.clone());
        server.shared.permits.set_acceptor(acceptor.waker.clone());
        server.spawn("evermap-accept".into(), || acceptor.run())?;
        Ok(server)
    }

    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        self.threads().push(thread);
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first address and port that the server listens on.
    ///
    /// # Panics
    /// If it listens only on unix sockets. [`addresses`](Server::addresses) returns all kinds.
    pub fn local_addr(&self) -> SocketAddr {
        let address = self.addresses().iter().find_map(ListenAddress::tcp);
        address.expect("the server listens on unix sockets only")
    }

    /// Returns the addresses that the server listens on.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.shared.addresses
    }

    /// Loads the certificates of TLS again, as the command `refresh_certs` does. Open connections
    /// are not affected.
    ///
    /// # Errors
    /// The reason why they cannot be used, or that no listener uses TLS. Those that were loaded
    /// before stay in use.
    pub fn refresh_certificates(&self) -> Result<(), String> {
        self.shared.refresh_certs().unwrap_or_else(|| Err("no listener uses TLS".into()))
    }

    /// Wakes all workers and returns `true` if each of them has run since the last call, or if
    /// this is the first.
    ///
    /// A worker that has panicked does not run any more. A watchdog can call this in intervals
    /// that no request exceeds.
    pub fn is_responsive(&self) -> bool {
        let mut before = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let now: Vec<u64> =
            self.mailboxes.iter().map(|worker| worker.waits.load(Relaxed)).collect();
        let all_ran = before.iter().zip(&now).all(|(before, now)| before != now);
        *before = now;
        for worker in &self.mailboxes {
            // Waking fails only if the worker has ended, and then it does not run.
            let _ = worker.waker.wake();
        }
        all_ran
    }

    /// Returns the address of the metrics, if there are any.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.shared.config.metrics
    }

    /// Returns what sends events to watchers, so that others than the server can report evictions.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.shared.hub
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.permits.given()
    }

    /// Returns the total number of bytes that were allocated for unfinished requests and unsent
    /// replies and have been freed since the start.
    ///
    /// Allocators tend to keep such memory. A program can use this number to decide when to ask the
    /// allocator to return it to the system.
    pub fn freed_bytes(&self) -> u64 {
        self.shared.uploads.released() + self.shared.unread.freed()
    }

    /// Adds a statistic to the reply of `stats`, or replaces the one with the same name.
    pub fn set_stat(&self, name: &'static str, value: impl Display) {
        self.shared.set_stat(name, value.to_string());
    }

    /// Returns the cumulative statistics of this process and its predecessors
    /// ([`Config::earlier`]) since the last `stats reset`.
    pub fn cumulative(&self) -> Cumulative {
        self.shared.cumulative()
    }

    /// Tells the server to stop, and returns immediately; [`join`](Server::join) waits for the end.
    ///
    /// The server accepts and reads nothing more, sends the replies to the requests that it has
    /// executed, and closes all connections.
    pub fn stop(&self) {
        self.shared.stop();
        for waker in &self.wakers {
            // Waking fails only if the event queue is closed, and then the thread has ended.
            let _ = waker.wake();
        }
        self.shared.hub.stop();
        if let Some(metrics) = &self.metrics {
            metrics.stop();
        }
    }

    /// Waits until the server has stopped, after a call of [`stop`](Server::stop). Clients have two
    /// seconds to read their last replies.
    ///
    /// # Panics
    /// If a thread of the server panicked.
    pub fn join(&self) {
        loop {
            // The lock is not held while waiting, so that several threads can wait.
            let Some(thread) = self.threads().pop() else {
                return;
            };
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads().drain(..) {
            // A panic was reported when it happened. Dropping must not panic again.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::ModelCache;
    use crate::stats::Count;

    /// Each worker has its own counters, so they show which worker served a request.
    #[test]
    fn connections_are_assigned_evenly() {
        const THREADS: usize = 4;
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config { listen, threads: THREADS, ..Config::default() };
        let server = Server::start(Arc::new(ModelCache::new(0)), config).unwrap();
        let mut clients = Vec::new();
        for round in 1..=5 {
            for _ in 0..THREADS {
                clients.push(TcpStream::connect(server.local_addr()).unwrap());
            }
            for client in &mut clients {
                client.write_all(b"get a\r\n").unwrap();
                client.read_exact(&mut [0; 5]).unwrap();
            }
            let gets: u64 = (1..=round).sum();
            for counters in &server.shared.counters {
                assert_eq!(counters.get(Count::CmdGet), gets);
            }
        }
    }
}
