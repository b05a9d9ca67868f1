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
mod buffers;
mod client;
mod connections;
mod idle;
mod listen;
mod shared;
mod socket;
mod stream;
mod tls;
mod unread;
mod worker;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;

use crate::cache::Cache;
use crate::cumulative::Cumulative;
use crate::metrics::{Responder, Stopper};
use crate::protocol::{Binding, Credentials, Host, Restricted};
use crate::watch::Hub;
use accept::Acceptor;
pub use listen::{ListenAddress, Listener, Security};
use shared::Shared;
pub use tls::{ClientCertificates, Tls, TlsSettings, TlsVersion};
use worker::{Mailbox, Worker};

/// The configuration of a [`Server`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that [`Server::start`] listens on. Port 0 stands for any free port;
    /// [`Server::local_addr`] returns it.
    pub listen: SocketAddr,
    /// The number of worker threads.
    pub threads: usize,
    /// The maximum number of open connections.
    pub max_connections: usize,
    /// What happens to further connections.
    pub when_full: WhenFull,
    /// The time after which a connection is closed that has not exchanged a byte, or `None` for
    /// never. It also limits the duration of a TLS handshake; without it that limit is a minute.
    pub idle_timeout: Option<Duration>,
    /// The number of times that the server reads from one connection before others get their turn.
    /// Each read brings at most 64 KiB.
    pub reads_per_turn: usize,
    /// The certificates of the listeners that use TLS.
    pub tls: Option<Tls>,
    /// The maximum number of connections that wait to be accepted. The system limits it too
    /// (`net.core.somaxconn`), and the lower limit applies.
    pub backlog: u32,
    /// The maximum size of an item (key, value and 50 bytes), in bytes. From [`ITEM_SIZE_MIN`] to
    /// [`ITEM_SIZE_LIMIT`].
    pub item_size_max: usize,
    /// The number of bytes of unread replies at which a connection is not served until the client
    /// reads them. One value may exceed it.
    pub output_limit: usize,
    /// The maximum memory of the unfinished requests of all connections, in bytes. At least
    /// `item_size_max`. An upload that would exceed it fails as if the store were full.
    pub upload_limit: usize,
    /// The maximum memory of the replies that clients have not read, of all connections, in bytes.
    /// If they need more, those clients are disconnected that have read nothing for the longest
    /// time. At least four times `item_size_max` and four times `output_limit`, so that it is never
    /// exceeded by one client alone.
    pub reply_limit: usize,
    /// The version that the `version` command replies with.
    pub version: String,
    /// Settings that `stats settings` shows, by name, in addition to those that the server knows
    /// or instead of them.
    pub settings: BTreeMap<String, String>,
    /// The protocols that clients may speak.
    pub binding: Binding,
    /// The users and passwords of which a client must name one before it may send commands; `None`
    /// if any client may. They can be [reloaded](Credentials::reload) while the server runs.
    pub credentials: Option<Arc<Credentials>>,
    /// What the cumulative statistics begin with: what [`Server::cumulative`] of an earlier process
    /// returned. Nothing by default.
    pub earlier: Cumulative,
    /// Whether clients may end the server with the `shutdown` command. It sends SIGINT to the
    /// process, which has to handle that.
    pub shutdown_command: bool,
    /// The address of the metrics of Prometheus, or `None` if there shall be none. Port 0 stands
    /// for any free port; [`Server::metrics_addr`] returns it.
    pub metrics: Option<SocketAddr>,
    /// The maximum number of watchers.
    pub watchers_max: usize,
    /// The maximum number of bytes of log lines that wait for one watcher. Further lines are
    /// skipped. At least [`LOG_BUFFER_MIN`].
    pub watcher_buffer: usize,
    /// The size of the queue of log records of each worker, in bytes. It is allocated when the
    /// first watcher comes. At least [`LOG_BUFFER_MIN`].
    pub worker_log_buffer: usize,
    /// The byte before which the prefix of a key ends, for `stats detail`.
    pub prefix_delimiter: u8,
    /// Whether accesses are counted by prefix from the start on.
    pub detail: bool,
    /// The commands that are refused.
    pub refused: Vec<Restricted>,
    /// How much the server reports about what it does at first: 0, nothing; 1 or more, more.
    pub verbosity: u32,
}

/// What happens to a connection that exceeds [`Config::max_connections`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It receives an error, unless it uses TLS, and is closed.
    #[default]
    Reject,
    /// It waits in the queue of the system until another one is closed.
    Wait,
}

/// The minimum of [`Config::item_size_max`], in bytes.
pub const ITEM_SIZE_MIN: usize = 1 << 10;
/// The maximum of [`Config::item_size_max`], in bytes.
pub const ITEM_SIZE_LIMIT: usize = 64 << 20;
/// The minimum of [`Config::watcher_buffer`] and [`Config::worker_log_buffer`], in bytes.
pub const LOG_BUFFER_MIN: usize = 4 << 10;
/// The maximum of [`Config::watcher_buffer`] and [`Config::worker_log_buffer`], in bytes.
pub const LOG_BUFFER_LIMIT: usize = 64 << 20;
/// The minimum of [`Config::idle_timeout`].
pub const IDLE_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// The maximum of [`Config::threads`].
pub const THREADS_MAX: usize = 1024;

impl Default for Config {
    /// Returns memcached's defaults: port 11211 (of this host only), one worker for each core, 1024
    /// connections, a backlog of 1024, items of 1 MiB. Unfinished requests may use 256 MiB.
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 11211)),
            threads: std::thread::available_parallelism().map_or(1, NonZero::get),
            max_connections: 1024,
            when_full: WhenFull::Reject,
            idle_timeout: None,
            reads_per_turn: 4,
            tls: None,
            backlog: 1024,
            item_size_max: 1 << 20,
            output_limit: 256 << 10,
            upload_limit: 256 << 20,
            reply_limit: 1 << 30,
            // Clients and test suites use this to learn how a server behaves, so it begins with the
            // version of memcached whose replies this server follows.
            version: concat!("1.6.45-evermap-", env!("CARGO_PKG_VERSION")).into(),
            settings: BTreeMap::new(),
            binding: Binding::Auto,
            credentials: None,
            earlier: Cumulative::default(),
            shutdown_command: false,
            metrics: None,
            watchers_max: 128,
            watcher_buffer: 256 << 10,
            worker_log_buffer: 64 << 10,
            prefix_delimiter: b':',
            detail: false,
            refused: Vec::new(),
            verbosity: 0,
        }
    }
}

impl Config {
    /// Checks every setting.
    ///
    /// # Errors
    /// `InvalidInput` with the name of the invalid setting.
    fn check(&self) -> io::Result<()> {
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return invalid(format!("threads = {}: must be 1 to {THREADS_MAX}", self.threads));
        }
        if self.max_connections == 0 {
            return invalid("max_connections = 0: must be at least 1".into());
        }
        if !(ITEM_SIZE_MIN..=ITEM_SIZE_LIMIT).contains(&self.item_size_max) {
            return invalid(format!(
                "item_size_max = {}: must be {ITEM_SIZE_MIN} to {ITEM_SIZE_LIMIT} bytes",
                self.item_size_max
            ));
        }
        if self.idle_timeout.is_some_and(|timeout| timeout < IDLE_TIMEOUT_MIN) {
            return invalid("idle_timeout: must be at least a millisecond".into());
        }
        if self.reads_per_turn == 0 {
            return invalid("reads_per_turn = 0: must be at least 1".into());
        }
        if self.output_limit == 0 {
            return invalid("output_limit = 0: must be at least 1 byte".into());
        }
        if self.backlog == 0 {
            return invalid("backlog = 0: must be at least 1".into());
        }
        if self.upload_limit < self.item_size_max {
            return invalid(format!(
                "upload_limit = {}: must be at least item_size_max, {} bytes",
                self.upload_limit, self.item_size_max
            ));
        }
        let reply_limit_min = self.item_size_max.max(self.output_limit).saturating_mul(4);
        if self.reply_limit < reply_limit_min {
            return invalid(format!(
                "reply_limit = {}: must be at least {reply_limit_min} bytes, which is four times \
                 item_size_max and output_limit",
                self.reply_limit
            ));
        }
        let buffers = [
            ("watcher_buffer", self.watcher_buffer),
            ("worker_log_buffer", self.worker_log_buffer),
        ];
        for (name, bytes) in buffers {
            if !(LOG_BUFFER_MIN..=LOG_BUFFER_LIMIT).contains(&bytes) {
                return invalid(format!(
                    "{name} = {bytes}: must be {LOG_BUFFER_MIN} to {LOG_BUFFER_LIMIT} bytes"
                ));
            }
        }
        if self.version.is_empty() || self.version.bytes().any(|byte| byte.is_ascii_control()) {
            return invalid(format!("version = {:?}: must be one line of text", self.version));
        }
        Ok(())
    }
}

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
        // It is set only here.
        let _ = server.shared.acceptor.set(acceptor.waker.clone());
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
        self.shared.connections()
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
