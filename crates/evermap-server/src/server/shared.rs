//! The state that all threads of a server share.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::address::ListenAddress;
use super::config::{Config, WhenFull};
use super::connections::Connections;
use super::permits::Permits;
use super::tls::{ClientCertificates, TlsSettings, TlsVersion};
use super::unread::Unread;
use crate::cache::Cache;
use crate::cumulative::{Cumulative, Offsets};
use crate::latency::{Command, Latencies, LatencyTotals};
use crate::metrics;
use crate::protocol::{Budget, Host, Restricted};
use crate::stats::{Counters, Totals};
use crate::watch::{Hub, HubStats, PrefixCounts, SAMPLING, Settings, encode_uri};

/// The state of a server.
pub(super) struct Shared {
    pub(super) cache: Arc<dyn Cache>,
    pub(super) config: Config,
    pub(super) addresses: Vec<ListenAddress>,
    started: Instant,
    stopping: AtomicBool,
    /// The counters of each worker, which only that worker writes.
    pub(super) counters: Box<[Counters]>,
    /// Accounts for the memory of unfinished requests.
    pub(super) uploads: Arc<Budget>,
    /// Accounts for the memory of unsent replies.
    pub(super) unread: Arc<Unread>,
    /// Statistics that the program around the server adds to `stats`.
    extra_stats: Mutex<BTreeMap<&'static str, String>>,
    /// The sums of the counters at the last `stats reset`.
    baseline: Mutex<Totals>,
    /// What the cumulative statistics have beyond those of this process.
    offsets: Offsets,
    pub(super) permits: Arc<Permits>,
    /// What the last `verbosity` command has set.
    verbosity: AtomicU32,
    pub(super) accepted: AtomicU64,
    pub(super) rejected: AtomicU64,
    /// The open connections.
    pub(super) open: Arc<Connections>,
    /// Sends events to watchers.
    pub(super) hub: Arc<Hub>,
    /// The latencies of each worker, which only that worker writes.
    pub(super) latencies: Box<[Latencies]>,
    /// The sums of the latencies at the last `stats reset`.
    latency_baseline: Mutex<Option<LatencyTotals>>,
}

impl Shared {
    pub(super) fn new(
        cache: Arc<dyn Cache>,
        config: Config,
        addresses: Vec<ListenAddress>,
    ) -> io::Result<Self> {
        let settings = Settings {
            watchers_max: config.watchers_max,
            watcher_bytes: config.watcher_buffer,
            worker_bytes: config.worker_log_buffer,
        };
        let hub = Hub::new(config.threads, config.prefix_delimiter, settings)?;
        hub.set_detail(config.detail);
        let latencies = (0..config.threads).map(|_| Latencies::default()).collect();
        let uploads = Budget::new(config.upload_limit);
        let unread = Unread::new(config.reply_limit);
        let verbosity = config.verbosity;
        let permits = Permits::new(config.max_connections);
        let counters = (0..config.threads).map(|_| Counters::default()).collect();
        let offsets = Offsets::new(config.earlier.clone());
        Ok(Shared {
            cache,
            config,
            addresses,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            counters,
            uploads,
            unread,
            extra_stats: Mutex::default(),
            baseline: Mutex::default(),
            offsets,
            permits,
            verbosity: AtomicU32::new(verbosity),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            open: Arc::default(),
            hub,
            latencies,
            latency_baseline: Mutex::default(),
        })
    }

    pub(super) fn stop(&self) {
        // Release pairs with Acquire below: a thread that sees the flag sees what happened before
        // it was set.
        self.stopping.store(true, Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    pub(super) fn set_stat(&self, name: &'static str, value: String) {
        self.extra_stats.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
    }

    fn latency_baseline(&self) -> MutexGuard<'_, Option<LatencyTotals>> {
        self.latency_baseline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn totals(&self) -> Totals {
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(&self.counters).since(&baseline)
    }

    pub(super) fn cumulative(&self) -> Cumulative {
        self.offsets.sums(|each| {
            self.own_general(each);
            self.cache.stats(each);
        })
    }

    /// Calls `each` with the statistics of this process alone.
    fn own_general(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("pid", &std::process::id());
        each("uptime", &self.started.elapsed().as_secs());
        each("time", &self.cache.now());
        each("version", &self.version());
        each("pointer_size", &usize::BITS);
        if let Some((user, system)) = cpu_times() {
            each("rusage_user", &Seconds(user));
            each("rusage_system", &Seconds(system));
        }
        each("max_connections", &self.config.max_connections);
        each("curr_connections", &self.permits.given());
        each("total_connections", &self.accepted.load(Relaxed));
        each("rejected_connections", &self.rejected.load(Relaxed));
        self.totals().each(each);
        each("accepting_conns", &u8::from(!self.permits.is_exhausted()));
        each("listen_disabled_num", &self.permits.pauses());
        each("threads", &self.config.threads);
        // There is one object for each connection, and it exists as long as the connection.
        each("connection_structures", &self.permits.given());
        if let Some(tls) = &self.config.tls {
            each("time_since_server_cert_refresh", &tls.age().as_secs());
            each("evermap_tls_last_failure", &tls.last_failure().unwrap_or("none"));
        }
        let HubStats { watchers, written, dropped, sent, skipped, buffered } = self.hub.stats();
        each("log_worker_dropped", &dropped);
        each("log_worker_written", &written);
        each("log_watcher_skipped", &skipped);
        each("log_watcher_sent", &sent);
        each("log_watchers", &watchers);
        each("evermap_watcher_bytes", &buffered);
        each("evermap_upload_bytes", &self.uploads.reserved());
        each("evermap_unsent_bytes", &self.unread.bytes());
        each("evermap_unread_kicks", &self.unread.kicks());
        for (name, value) in &*self.extra_stats.lock().unwrap_or_else(PoisonError::into_inner) {
            each(name, value);
        }
    }
}

impl Shared {
    /// Calls `each` with the name and value of each setting that the server knows itself.
    fn own_settings(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let config = &self.config;
        each("maxconns", &config.max_connections);
        each("tcp_backlog", &config.backlog);
        let port = |address: &ListenAddress| address.tcp().map(|address| address.port());
        each("tcpport", &self.addresses.iter().find_map(port).unwrap_or(0));
        each("udpport", &0);
        let names: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        each("inter", &names.join(","));
        let socket = self.addresses.iter().find(|address| address.tcp().is_none());
        each("domain_socket", &socket.map_or_else(|| "NULL".into(), ToString::to_string));
        each("verbosity", &self.verbosity.load(Relaxed));
        each("num_threads", &config.threads);
        each("cas_enabled", &"yes");
        each("binding_protocol", &config.binding.name());
        each("item_size_max", &config.item_size_max);
        each("evermap_key_size_max", &config.key_size_max);
        each("maxconns_fast", &yes_no(config.when_full == WhenFull::Reject));
        each("idle_timeout", &config.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
        each("reqs_per_event", &config.reads_per_turn);
        each("flush_enabled", &yes_no(self.allows(Restricted::FlushAll)));
        each("dump_enabled", &yes_no(self.allows(Restricted::Dump)));
        each("watch_enabled", &yes_no(self.allows(Restricted::Watch)));
        each("shutdown_command", &yes_no(config.shutdown_command));
        each("auth_enabled_sasl", &yes_no(config.credentials.is_some()));
        each("auth_enabled_ascii", &yes_no(config.credentials.is_some()));
        if let Some(metrics) = config.metrics {
            each("metrics", &metrics);
        }
        each("detail_enabled", &yes_no(self.hub.detail()));
        each("watcher_logbuf_size", &config.watcher_buffer);
        each("worker_logbuf_size", &config.worker_log_buffer);
        each("output_limit", &config.output_limit);
        each("upload_limit", &config.upload_limit);
        each("reply_limit", &config.reply_limit);
        each("ssl_enabled", &yes_no(config.tls.is_some()));
        if let Some(tls) = &config.tls {
            tls_settings(tls.settings(), each);
        }
    }
}

/// Calls `each` with the settings of TLS, under memcached's names.
fn tls_settings(settings: &TlsSettings, each: &mut dyn FnMut(&str, &dyn Display)) {
    each("ssl_chain_cert", &settings.certificates.display());
    each("ssl_key", &settings.key.display());
    let mode = match settings.client_certificates {
        ClientCertificates::Ignored => 0,
        ClientCertificates::Requested => 1,
        ClientCertificates::Required => 2,
    };
    each("ssl_verify_mode", &mode);
    each("ssl_keyformat", &1);
    match &settings.client_ca {
        Some(path) => each("ssl_ca_cert", &path.display()),
        None => each("ssl_ca_cert", &"NULL"),
    }
    each("ssl_session_cache", &yes_no(settings.session_cache));
    each("ssl_kernel_tls", &"no");
    let version = match settings.min_version {
        TlsVersion::V1_2 => "tlsv1.2",
        TlsVersion::V1_3 => "tlsv1.3",
    };
    each("ssl_min_version", &version);
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

impl Host for Shared {
    fn version(&self) -> &str {
        &self.config.version
    }

    fn general(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        self.offsets.add_to(|each| self.own_general(each), each);
    }

    fn items(&self, cache: &dyn Cache, each: &mut dyn FnMut(&str, &dyn Display)) {
        self.offsets.add_to(|each| cache.stats(each), each);
    }

    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let config = &self.config;
        let mut unless_given = |name: &str, value: &dyn Display| {
            if !config.settings.contains_key(name) {
                each(name, value);
            }
        };
        self.own_settings(&mut unless_given);
        for (name, value) in &config.settings {
            each(name, value);
        }
    }

    fn reset(&self) {
        let mut baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        *baseline = Totals::of(&self.counters);
        self.accepted.store(0, Relaxed);
        self.rejected.store(0, Relaxed);
        self.permits.reset_pauses();
        drop(baseline);
        self.offsets.reset(|each| {
            self.own_general(each);
            self.cache.stats(each);
        });
        self.hub.reset_prefixes();
        *self.latency_baseline() = Some(LatencyTotals::of(&self.latencies));
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
        let tls = self.config.tls.as_ref()?;
        Some(tls.reload().map_err(|error| error.to_string()))
    }

    fn allows(&self, command: Restricted) -> bool {
        !self.config.refused.contains(&command)
    }

    fn connections(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        self.open.stats(self.cache.now(), each);
    }

    fn latencies(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let totals = LatencyTotals::of(&self.latencies);
        let totals = match &*self.latency_baseline() {
            Some(baseline) => totals.since(baseline),
            None => totals,
        };
        for command in Command::ALL {
            latency_of(&totals, command, each);
        }
    }

    fn hot_keys(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        /// The number of keys in the reply.
        const KEYS_MAX: usize = 50;
        let (samples, keys) = self.hub.hot_keys(KEYS_MAX);
        each("hotkeys_sampling", &SAMPLING);
        each("hotkeys_samples", &samples);
        for (key, count) in keys {
            let mut name = b"hotkey:".to_vec();
            encode_uri(&key, &mut name);
            each(&String::from_utf8_lossy(&name), &count);
        }
    }

    fn set_detail(&self, on: bool) {
        self.hub.set_detail(on);
    }

    fn prefixes(&self, each: &mut dyn FnMut(&[u8], PrefixCounts)) {
        let (prefixes, others) = self.hub.prefixes();
        for (prefix, counts) in &prefixes {
            each(prefix, *counts);
        }
        if others != PrefixCounts::default() {
            // No prefix contains the delimiter.
            let name = [&[self.config.prefix_delimiter], &b"others"[..]].concat();
            each(&name, others);
        }
    }
}

/// Calls `each` with the statistics of the latencies of a command, unless there was none. Times
/// are in microseconds.
fn latency_of(totals: &LatencyTotals, command: Command, each: &mut dyn FnMut(&str, &dyn Display)) {
    const QUANTILES: [(&str, f64); 5] =
        [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];
    let (name, count) = (command.name(), totals.count(command));
    if count == 0 {
        return;
    }
    let micros = |duration: Duration| format!("{:.1}", duration.as_nanos() as f64 / 1e3);
    each(&format!("{name}:count"), &count);
    let mean = totals.sum(command).as_nanos() as f64 / 1e3 / count as f64;
    each(&format!("{name}:mean_us"), &format!("{mean:.1}"));
    // All of it, so that a client can compute quantiles of what happened between two requests.
    let buckets: Vec<String> = totals
        .buckets(command)
        .map(|(duration, count)| format!("{}={count}", duration.as_nanos()))
        .collect();
    each(&format!("{name}:histogram"), &buckets.join(","));
    for (quantile, part) in QUANTILES {
        if let Some(duration) = totals.quantile(command, part) {
            each(&format!("{name}:{quantile}_us"), &micros(duration));
        }
    }
}

impl metrics::Source for Shared {
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        self.general(each);
        self.items(&*self.cache, each);
    }

    fn latencies(&self) -> LatencyTotals {
        LatencyTotals::of(&self.latencies)
    }

    fn slabs(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        // If that fails, the metrics of size classes are missing.
        let _ = self.cache.slab_stats(each);
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
