//! The configuration of a server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use super::tls::Tls;
use crate::cumulative::Cumulative;
use crate::protocol::{Binding, Credentials, KEY_MAX, KEY_SIZE_LIMIT, Restricted};

/// The configuration of a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that [`Server::start`](super::Server::start) listens on. Port 0 stands for any
    /// free port; [`Server::local_addr`](super::Server::local_addr) returns it.
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
    /// The maximum length of a key, in bytes. From [`KEY_MAX`], which is memcached's limit, to
    /// [`KEY_SIZE_LIMIT`].
    pub key_size_max: usize,
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
    /// What the cumulative statistics begin with: what
    /// [`Server::cumulative`](super::Server::cumulative) of an earlier process returned. Nothing by
    /// default.
    pub earlier: Cumulative,
    /// Whether clients may end the server with the `shutdown` command. It sends SIGINT to the
    /// process, which has to handle that.
    pub shutdown_command: bool,
    /// The address of the metrics of Prometheus, or `None` if there shall be none. Port 0 stands
    /// for any free port; [`Server::metrics_addr`](super::Server::metrics_addr) returns it.
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
            key_size_max: KEY_MAX,
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
    pub(super) fn check(&self) -> io::Result<()> {
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
        if !(KEY_MAX..=KEY_SIZE_LIMIT).contains(&self.key_size_max) {
            return invalid(format!(
                "key_size_max = {}: must be {KEY_MAX} to {KEY_SIZE_LIMIT} bytes",
                self.key_size_max
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
