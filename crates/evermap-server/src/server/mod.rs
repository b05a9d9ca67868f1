//! Sockets and threads.
//!
//! One thread accepts connections and deals each to the worker that has the fewest; each worker serves
//! its connections with one event loop and shares nothing with the others but the [`Cache`]. Dealing keeps
//! the workers evenly loaded however few clients there are. The two usual alternatives do not: sockets
//! that share a port (`SO_REUSEPORT`) spread connections by a hash, so that of eight clients four may meet
//! on one worker, and let a second server take half of the clients unnoticed; and a listener in every
//! event loop wakes all of them for each client and favours whichever is idle.

mod accept;
mod client;
mod port;
mod room;
mod shared;
mod worker;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mio::Waker;
use mio::net::TcpListener;

use crate::cache::Cache;
use accept::Acceptor;
pub use port::Port;
use shared::Shared;
use worker::Worker;

/// How a [`Server`] is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Port 0 takes a free one, which [`Server::local_addr`] tells.
    pub listen: SocketAddr,
    /// Worker threads.
    pub threads: usize,
    /// Connections at once. One more is told so and closed.
    pub max_connections: usize,
    /// Connections that may wait to be accepted. The system has a limit of its own
    /// (`net.core.somaxconn`), and the lower one counts.
    pub backlog: u32,
    /// Largest item (key, value and 50 bytes), from 1 KiB to [`ITEM_SIZE_LIMIT`], bytes.
    pub item_size_max: usize,
    /// Replies that one connection may leave unread before it is served no more, bytes. One value may
    /// exceed it.
    pub output_limit: usize,
    /// Memory that requests of all connections may take while parts of them are missing, at least
    /// `item_size_max`, bytes. An upload beyond it is refused as when the store is full.
    pub upload_limit: usize,
    /// What the `version` command answers.
    pub version: String,
}

/// Smallest [`Config::item_size_max`], bytes.
pub const ITEM_SIZE_MIN: usize = 1 << 10;
/// Largest [`Config::item_size_max`], bytes.
pub const ITEM_SIZE_LIMIT: usize = 64 << 20;
/// Most [`Config::threads`].
pub const THREADS_MAX: usize = 1024;

impl Default for Config {
    /// What memcached does by default: port 11211 (of this host only), one worker a core, 1024 connections,
    /// as many that wait, items of 1 MiB. Unfinished requests may take 256 MiB.
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 11211)),
            threads: std::thread::available_parallelism().map_or(1, NonZero::get),
            max_connections: 1024,
            backlog: 1024,
            item_size_max: 1 << 20,
            output_limit: 256 << 10,
            upload_limit: 256 << 20,
            // Clients and test suites look at this to know how a server behaves, so it begins with the version of
            // memcached whose replies ours follow.
            version: concat!("1.6.45 evermap-", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

impl Config {
    /// # Errors
    /// `InvalidInput` naming the setting that cannot be met.
    fn check(&self) -> io::Result<()> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return refuse(format!("threads = {}: must be 1 to {THREADS_MAX}", self.threads));
        }
        if self.max_connections == 0 {
            return refuse("max_connections = 0: must be at least 1".into());
        }
        if !(ITEM_SIZE_MIN..=ITEM_SIZE_LIMIT).contains(&self.item_size_max) {
            return refuse(format!(
                "item_size_max = {}: must be {ITEM_SIZE_MIN} to {ITEM_SIZE_LIMIT} bytes",
                self.item_size_max
            ));
        }
        if self.output_limit == 0 {
            return refuse("output_limit = 0: must be at least 1 byte".into());
        }
        if self.backlog == 0 {
            return refuse("backlog = 0: must be at least 1".into());
        }
        if self.upload_limit < self.item_size_max {
            return refuse(format!(
                "upload_limit = {}: must be at least item_size_max, {} bytes",
                self.upload_limit, self.item_size_max
            ));
        }
        if self.version.is_empty() || self.version.bytes().any(|byte| byte.is_ascii_control()) {
            return refuse(format!("version = {:?}: must be one line of text", self.version));
        }
        Ok(())
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    /// Wake the acceptor and the workers, so that they see that they have to stop.
    wakers: Vec<Arc<Waker>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Listens on [`Config::listen`], and starts to serve `cache`.
    ///
    /// # Errors
    /// `InvalidInput` for a setting that cannot be met; otherwise what the system said when it refused to
    /// listen or to make a thread or an event queue.
    pub fn start(cache: Arc<dyn Cache>, config: Config) -> io::Result<Server> {
        config.check()?;
        Server::start_on(Port::take(config.listen)?, cache, config)
    }

    /// Like [`start`](Server::start), on a port that was taken before.
    pub fn start_on(port: Port, cache: Arc<dyn Cache>, config: Config) -> io::Result<Server> {
        config.check()?;
        let listener = TcpListener::from_std(port.listen(config.backlog)?);
        let local_addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(cache, config, local_addr));
        let mut server = Server {
            local_addr,
            shared: shared.clone(),
            wakers: Vec::new(),
            threads: Mutex::default(),
        };
        let mut desks = Vec::new();
        for number in 0..shared.config.threads {
            let (worker, desk) = Worker::new(shared.clone(), number)?;
            server.wakers.push(desk.waker.clone());
            desks.push(desk);
            server.spawn(format!("evermap-worker-{number}"), || worker.run())?;
        }
        let acceptor = Acceptor::new(shared, listener, desks)?;
        server.wakers.push(acceptor.waker.clone());
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

    /// The address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Clients connected now.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Memory that was held for unfinished requests and unsent replies and has been freed, since
    /// the start, bytes. Allocators tend to keep such memory: whoever owns the process can tell
    /// from this when it is worth asking for it.
    pub fn freed_bytes(&self) -> u64 {
        self.shared.uploads.returned() + self.shared.unsent.returned()
    }

    /// Shows `name` with `value` in `stats`, in place of an earlier value of that name.
    pub fn note(&self, name: &'static str, value: impl Display) {
        self.shared.note(name, value.to_string());
    }

    /// Tells the server to stop: it accepts and reads no more, sends the replies to what it has already
    /// done, and closes. Returns at once; [`join`](Server::join) waits for the end.
    pub fn stop(&self) {
        self.shared.stop();
        for waker in &self.wakers {
            // A waker fails only when its event queue is gone, and then so is the thread.
            let _ = waker.wake();
        }
    }

    /// Waits until the server has stopped, which only [`stop`](Server::stop) makes it do. Clients that do
    /// not read their last replies are given two seconds.
    ///
    /// # Panics
    /// If a thread of the server panicked.
    pub fn join(&self) {
        loop {
            // The lock is not held while waiting, so that others can wait too.
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
            // Its panic was reported when it happened; dropping must not add another.
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

    /// Each worker counts for itself, so the counters tell who served whom.
    #[test]
    fn connections_are_dealt_evenly() {
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
