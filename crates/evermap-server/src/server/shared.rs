//! What all threads of a server share.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Config;
use crate::cache::Cache;
use crate::protocol::{Budget, Host};
use crate::stats::{Counters, Totals};

pub(super) struct Shared {
    pub(super) cache: Arc<dyn Cache>,
    pub(super) config: Config,
    pub(super) local_addr: SocketAddr,
    started: Instant,
    stopping: AtomicBool,
    /// One for each worker, which alone writes it.
    pub(super) counters: Box<[Counters]>,
    /// Memory of requests of which a part is missing.
    pub(super) uploads: Arc<Budget>,
    /// Memory of replies that sockets have not taken. Each client's own limit is the only one.
    pub(super) unsent: Arc<Budget>,
    /// What the program that runs the server wants `stats` to show.
    notes: Mutex<BTreeMap<&'static str, String>>,
    /// What the counters were at the last `stats reset`.
    baseline: Mutex<Totals>,
    connections: AtomicUsize,
    pub(super) accepted: AtomicU64,
    pub(super) rejected: AtomicU64,
    /// Times that accepting had to pause for want of descriptors or memory.
    pub(super) pauses: AtomicU64,
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
            notes: Mutex::default(),
            baseline: Mutex::default(),
            connections: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
        }
    }

    pub(super) fn stop(&self) {
        // Release, and Acquire below: what happened before the stop is visible to the stopping threads.
        self.stopping.store(true, Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Counts a connection in, unless there are as many as there may be.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Admission> {
        let max = self.config.max_connections;
        let admitted =
            self.connections.fetch_update(Relaxed, Relaxed, |now| (now < max).then_some(now + 1));
        admitted.ok().map(|_| Admission(self.clone()))
    }

    pub(super) fn note(&self, name: &'static str, value: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
    }

    fn totals(&self) -> Totals {
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(&self.counters).since(&baseline)
    }
}

/// The right to be connected, given back when dropped.
pub(super) struct Admission(Arc<Shared>);

impl Drop for Admission {
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
        each("listen_disabled_num", &self.pauses.load(Relaxed));
        each("threads", &self.config.threads);
        each("evermap_upload_bytes", &self.uploads.held());
        each("evermap_unsent_bytes", &self.unsent.held());
        for (name, value) in &*self.notes.lock().unwrap_or_else(PoisonError::into_inner) {
            each(name, value);
        }
    }

    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("maxconns", &self.config.max_connections);
        each("tcp_backlog", &self.config.backlog);
        each("tcpport", &self.local_addr.port());
        each("udpport", &0);
        each("inter", &self.local_addr.ip());
        each("verbosity", &0);
        each("num_threads", &self.config.threads);
        each("cas_enabled", &"yes");
        each("binding_protocol", &"ascii");
        each("item_size_max", &self.config.item_size_max);
        each("maxconns_fast", &"yes");
        each("flush_enabled", &"yes");
        each("shutdown_command", &"no");
        each("output_limit", &self.config.output_limit);
        each("upload_limit", &self.config.upload_limit);
    }

    fn reset(&self) {
        let mut baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        *baseline = Totals::of(&self.counters);
        self.accepted.store(0, Relaxed);
        self.rejected.store(0, Relaxed);
        self.pauses.store(0, Relaxed);
    }
}

/// Prints as seconds and microseconds.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

/// Processor time of this process in user and system mode, where the system tells it.
fn cpu_times() -> Option<(Duration, Duration)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold anything; `utime` and `stime`
    // are the 12th and 13th after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut time = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_millis(ticks.saturating_mul(1000) / per_second))
    };
    Some((time()?, time()?))
}

/// The time, seconds since 1970.
pub(super) fn unix_seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(u32::MAX)
}
