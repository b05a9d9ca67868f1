//! The state that all threads of a server share.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Config;
use crate::cache::Cache;
use crate::protocol::{Budget, Host};
use crate::stats::{Counters, Totals};

/// The state of a server.
pub(super) struct Shared {
    pub(super) cache: Arc<dyn Cache>,
    pub(super) config: Config,
    pub(super) local_addr: SocketAddr,
    started: Instant,
    stopping: AtomicBool,
    /// The counters of each worker, which only that worker writes.
    pub(super) counters: Box<[Counters]>,
    /// Accounts for the memory of unfinished requests.
    pub(super) uploads: Arc<Budget>,
    /// Accounts for the memory of unsent replies. There is no limit beyond that of each client.
    pub(super) unsent: Arc<Budget>,
    /// Statistics that the program around the server adds to `stats`.
    extra_stats: Mutex<BTreeMap<&'static str, String>>,
    /// The sums of the counters at the last `stats reset`.
    baseline: Mutex<Totals>,
    connections: AtomicUsize,
    /// What the last `verbosity` command has set.
    verbosity: AtomicU32,
    pub(super) accepted: AtomicU64,
    pub(super) rejected: AtomicU64,
    /// The number of times that accepting paused because the system had no descriptors or memory.
    pub(super) accept_pauses: AtomicU64,
}

impl Shared {
    pub(super) fn new(cache: Arc<dyn Cache>, config: Config, local_addr: SocketAddr) -> Self {
        let uploads = Budget::new(config.upload_limit);
        let counters = (0..config.threads).map(|_| Counters::default()).collect();
        Shared {
            cache,
            config,
            local_addr,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            counters,
            uploads,
            unsent: Budget::new(usize::MAX),
            extra_stats: Mutex::default(),
            baseline: Mutex::default(),
            connections: AtomicUsize::new(0),
            verbosity: AtomicU32::new(0),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            accept_pauses: AtomicU64::new(0),
        }
    }

    pub(super) fn stop(&self) {
        // Release pairs with Acquire below: a thread that sees the flag sees what happened before
        // it was set.
        self.stopping.store(true, Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Returns a permit for a new connection, or `None` if there are too many.
    pub(super) fn try_admit(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let max = self.config.max_connections;
        let admitted =
            self.connections.fetch_update(Relaxed, Relaxed, |now| (now < max).then_some(now + 1));
        admitted.ok().map(|_| ConnectionPermit(self.clone()))
    }

    pub(super) fn set_stat(&self, name: &'static str, value: String) {
        self.extra_stats.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
    }

    fn totals(&self) -> Totals {
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(&self.counters).since(&baseline)
    }
}

/// A permit for one open connection. It is returned when dropped.
pub(super) struct ConnectionPermit(Arc<Shared>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Host for Shared {
    fn version(&self) -> &str {
        &self.config.version
    }

    fn general(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("pid", &std::process::id());
        each("uptime", &self.started.elapsed().as_secs());
        each("time", &unix_seconds());
        each("version", &self.version());
        each("pointer_size", &usize::BITS);
        if let Some((user, system)) = cpu_times() {
            each("rusage_user", &Seconds(user));
            each("rusage_system", &Seconds(system));
        }
        each("max_connections", &self.config.max_connections);
        each("curr_connections", &self.connections());
        each("total_connections", &self.accepted.load(Relaxed));
        each("rejected_connections", &self.rejected.load(Relaxed));
        self.totals().each(each);
        each("accepting_conns", &1);
        each("listen_disabled_num", &self.accept_pauses.load(Relaxed));
        each("threads", &self.config.threads);
        // There is one object for each connection, and it exists as long as the connection.
        each("connection_structures", &self.connections());
        each("evermap_upload_bytes", &self.uploads.reserved());
        each("evermap_unsent_bytes", &self.unsent.reserved());
        for (name, value) in &*self.extra_stats.lock().unwrap_or_else(PoisonError::into_inner) {
            each(name, value);
        }
    }

    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("maxconns", &self.config.max_connections);
        each("tcp_backlog", &self.config.backlog);
        each("tcpport", &self.local_addr.port());
        each("udpport", &0);
        each("inter", &self.local_addr.ip());
        each("verbosity", &self.verbosity.load(Relaxed));
        each("num_threads", &self.config.threads);
        each("cas_enabled", &"yes");
        each("binding_protocol", &"ascii");
        each("item_size_max", &self.config.item_size_max);
        each("maxconns_fast", &"yes");
        each("flush_enabled", &"yes");
        each("shutdown_command", &if self.config.shutdown_command { "yes" } else { "no" });
        each("output_limit", &self.config.output_limit);
        each("upload_limit", &self.config.upload_limit);
    }

    fn reset(&self) {
        let mut baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        *baseline = Totals::of(&self.counters);
        self.accepted.store(0, Relaxed);
        self.rejected.store(0, Relaxed);
        self.accept_pauses.store(0, Relaxed);
    }

    fn set_verbosity(&self, level: u32) {
        // Relaxed: it orders nothing else.
        self.verbosity.store(level, Relaxed);
    }

    /// Sends SIGINT to the process, as memcached does. Both ways end in order: a store keeps its
    /// items in any case.
    fn shutdown(&self, _graceful: bool) -> bool {
        self.config.shutdown_command && {
            use rustix::process::{Signal, getpid, kill_process};
            kill_process(getpid(), Signal::INT).is_ok()
        }
    }

    fn refresh_certs(&self) -> Option<Result<(), String>> {
        None
    }
}

/// Formats a duration as seconds and microseconds.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

/// Returns the processor time of this process in user and system mode, or `None` if the system does
/// not report it.
fn cpu_times() -> Option<(Duration, Duration)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name of the program in parentheses and may contain any characters.
    // `utime` and `stime` are the 12th and 13th fields after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut time = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_millis(ticks.saturating_mul(1000) / per_second))
    };
    Some((time()?, time()?))
}

/// Returns the current time in seconds since 1970.
pub(super) fn unix_seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(u32::MAX)
}
