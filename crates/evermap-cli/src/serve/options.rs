//! The options of `evermap serve`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use evermap::{IndexKind, Order};
use evermap_server::protocol::{Binding, KEY_MAX, KEY_SIZE_LIMIT, Restricted};
use evermap_server::server::{
    ClientCertificates, ITEM_SIZE_LIMIT, ITEM_SIZE_MIN, THREADS_MAX, TlsSettings, TlsVersion,
    WhenFull,
};
use evermap_server::{Config, Namespace};

use super::endpoints::Endpoint;
use super::log::LogArguments;
use super::service::{Announcement, Naming, Place, Service, StoreSettings};
use crate::failure::Failure;
use crate::open::{Durability, index_kind, parse_size};
use crate::rejoin::RejoinArguments;

/// The port of memcached.
pub(super) const PORT: u16 = 11211;

/// Serve a store over the memcached protocol
///
/// Every item that the server acknowledged with STORED is available again when the server is
/// restarted, however its process ended, including kill -9. SIGINT, SIGTERM and SIGUSR1 shut the
/// server down cleanly; a second SIGINT or SIGTERM stops it immediately. SIGHUP makes it read its
/// certificates and passwords again.
///
/// Called through a link with the name memcached, this program has the options of memcached.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// File of the store [default: /dev/shm/evermap-UID.map if /dev/shm is a tmpfs of at least 1
    /// GiB, otherwise ./evermap.map; the name of a server with another first address than the
    /// default one, or 0.0.0.0:11211, contains that address]
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,
    /// Address and port to listen on; can be repeated, or be a list with commas. The prefix notls:
    /// means without TLS, btls: with TLS but without certificates of clients, mtls: with both
    /// [default: 127.0.0.1:11211, if there is no --socket]
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        value_parser = Endpoint::parse
    )]
    listen: Vec<Endpoint>,
    /// Path of a unix socket to listen on; can be repeated
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Permissions of the unix sockets, in octal
    #[arg(long, value_name = "MODE", default_value = "700", value_parser = parse_mode)]
    socket_mode: u32,
    /// Certificate of the server and the certificates that lead to its authority, in PEM format.
    /// With it, connections use TLS, except those of unix sockets
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificates of the authorities that issue the certificates of clients, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Whether clients have to present a certificate [default: require if there is --tls-client-ca]
    #[arg(long, value_enum, value_name = "WHAT", requires = "tls_client_ca")]
    tls_verify: Option<Verify>,
    /// Oldest version of TLS that is accepted
    #[arg(long, value_enum, value_name = "VERSION", default_value_t, requires = "tls_cert")]
    tls_min_version: MinVersion,
    /// File with lines user:password. Clients have to name one of them before anything else, by
    /// SASL in the binary protocol, or as the data of a `set` in the text protocol. SIGHUP reads it
    /// again
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Protocols that clients may speak
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    protocol: Protocol,
    /// Command that is refused to all clients; can be repeated
    #[arg(long, value_enum, value_name = "COMMAND")]
    refuse: Vec<Refusable>,
    /// Let clients end the server with the command `shutdown`
    #[arg(long)]
    allow_shutdown: bool,
    /// Maximum memory of the file with its index, for example 512M or 4G. What is unlikely to be
    /// read again makes space for further items [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Reject items that exceed --memory, and keep all others
    #[arg(long, requires = "memory")]
    no_evict: bool,
    /// Number of worker threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = number(THREADS_MAX))]
    threads: Option<usize>,
    /// What the items survive
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    durability: Durability,
    #[command(flatten)]
    log: LogArguments,
    /// Kind of index, if this command creates the store; tranche is the heterogeneous table
    #[arg(long, value_name = "NAME", default_value_t, value_parser = index_kind())]
    index: IndexKind,
    /// Also keep the keys in order, for `evermap scan` or to measure the cost: no command of the
    /// protocol uses it
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    ordered: Ordered,
    #[command(flatten)]
    rejoin: RejoinArguments,
    /// Maximum size of an item, from 1K to 64M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_item_size)]
    max_item_size: usize,
    /// Maximum length of a key in bytes, from 250, which is memcached's limit, to 65535
    #[arg(long, value_name = "N", default_value_t = KEY_MAX, value_parser = key_size())]
    max_key_size: usize,
    /// Prefix of keys whose items are counted, limited and flushed apart from others, and the
    /// maximum memory of these items, for example user:=64M; can be repeated. With --memory, what
    /// is unlikely to be read again makes space for further items of its own namespace
    #[arg(long, value_name = "PREFIX=SIZE", value_parser = parse_namespace)]
    namespace: Vec<Namespace>,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number(usize::MAX))]
    max_connections: usize,
    /// What happens to further connections
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_max_connections: OnMaxConnections,
    /// Seconds after which a connection is closed that has not exchanged a byte [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = number(u32::MAX as usize))]
    idle_timeout: Option<usize>,
    /// Maximum number of connections that wait to be accepted; the system limits it too
    /// (net.core.somaxconn)
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number(i32::MAX as usize))]
    backlog: usize,
    /// Maximum memory of all values that have not arrived completely
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    upload_memory: u64,
    /// Maximum memory of all replies that clients have not read; beyond it those are disconnected
    /// that have read nothing for the longest time
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    reply_memory: u64,
    /// Also answer requests for metrics of Prometheus at http://ADDRESS/metrics [without an
    /// address: 127.0.0.1:9150]
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9150",
        value_parser = parse_metrics_address
    )]
    metrics: Option<SocketAddr>,
    /// User to become after the ports are taken, if the server is started by root
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File that says which process is the server, while it runs
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Run in the background; the command ends when clients can connect
    #[arg(long)]
    daemonize: bool,
    /// Keep the memory of the server from being swapped out
    #[arg(long)]
    lock_memory: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Ordered {
    /// Only if the store was opened with `persistent` before
    #[default]
    None,
    /// In memory
    Volatile,
    /// In the file: from then on, always
    Persistent,
}

impl From<Ordered> for Order {
    fn from(ordered: Ordered) -> Self {
        match ordered {
            Ordered::None => Order::None,
            Ordered::Volatile => Order::Volatile,
            Ordered::Persistent => Order::Persistent,
        }
    }
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Protocol {
    /// All; the first byte of a connection says which
    #[default]
    Auto,
    /// The text protocol with its meta commands
    Ascii,
    /// The binary protocol
    Binary,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Refusable {
    /// In both protocols
    FlushAll,
    /// Lists of all items: stats cachedump, lru_crawler metadump and mgdump
    Dump,
    /// Log streams
    Watch,
}

#[derive(Clone, Copy, ValueEnum)]
enum Verify {
    /// Clients are not asked for a certificate
    None,
    /// A client may connect without one, but one that it presents must be valid
    Request,
    /// A client must present a valid one
    Require,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum MinVersion {
    #[default]
    #[value(name = "1.2")]
    V1_2,
    #[value(name = "1.3")]
    V1_3,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum OnMaxConnections {
    /// They receive an error and are closed
    #[default]
    Reject,
    /// They wait until others are closed
    Wait,
}

impl From<Refusable> for Restricted {
    fn from(command: Refusable) -> Self {
        match command {
            Refusable::FlushAll => Restricted::FlushAll,
            Refusable::Dump => Restricted::Dump,
            Refusable::Watch => Restricted::Watch,
        }
    }
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.service()?.run()
    }

    fn service(self) -> Result<Service, Failure> {
        let (tls, endpoints, config) = (self.tls(), self.endpoints(), self.config()?);
        let store = StoreSettings {
            place: self.place()?,
            durability: self.durability.into(),
            log: self.log.clone(),
            index: self.index,
            order: self.ordered.into(),
            rejoin: self.rejoin,
            memory: self.memory,
            namespaces: self.namespaces()?,
            // Without a limit, a full disk is an error that the operator has to know of.
            evict: self.memory.is_some() && !self.no_evict,
        };
        Ok(Service {
            tls,
            auth_file: self.auth_file,
            endpoints,
            default_endpoint: Endpoint::loopback(PORT),
            config,
            store,
            user: self.user,
            pid_file: self.pid_file,
            daemonize: self.daemonize,
            lock_memory: self.lock_memory,
            core_dumps: false,
            announcement: Announcement::StandardOutput,
            program: "evermap",
            address_options: "--listen or --socket",
        })
    }

    /// Returns the namespaces, each of them once.
    fn namespaces(&self) -> Result<Vec<Namespace>, Failure> {
        let mut prefixes: Vec<_> = self.namespace.iter().map(|space| &space.prefix).collect();
        prefixes.sort();
        if let Some(twice) = prefixes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Failure::other(format!("--namespace {} is given twice", twice[0])));
        }
        let all = self.namespace.iter().fold(0_u64, |sum, space| sum.saturating_add(space.limit));
        if self.memory.is_some_and(|memory| all >= memory) {
            return Err(Failure::other(
                "the limits of all namespaces together must be less than --memory",
            ));
        }
        Ok(self.namespace.clone())
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let socket = |path: &PathBuf| Endpoint::Unix { path: path.clone(), mode: self.socket_mode };
        self.listen.iter().cloned().chain(self.socket.iter().map(socket)).collect()
    }

    fn tls(&self) -> Option<TlsSettings> {
        let client_certificates = match (self.tls_verify, &self.tls_client_ca) {
            (None, None) | (Some(Verify::None), _) => ClientCertificates::Ignored,
            (Some(Verify::Request), _) => ClientCertificates::Requested,
            (Some(Verify::Require), _) | (None, Some(_)) => ClientCertificates::Required,
        };
        Some(TlsSettings {
            certificates: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.tls_client_ca.clone(),
            client_certificates,
            min_version: match self.tls_min_version {
                MinVersion::V1_2 => TlsVersion::V1_2,
                MinVersion::V1_3 => TlsVersion::V1_3,
            },
            session_cache: true,
        })
    }

    fn config(&self) -> Result<Config, Failure> {
        let defaults = Config::default();
        let upload_limit = usize::try_from(self.upload_memory).unwrap_or(usize::MAX);
        if upload_limit < self.max_item_size {
            return Err(Failure::other("--upload-memory must be at least --max-item-size"));
        }
        let reply_limit = usize::try_from(self.reply_memory).unwrap_or(usize::MAX);
        if reply_limit < self.max_item_size.max(defaults.output_limit).saturating_mul(4) {
            return Err(Failure::other(
                "--reply-memory must be at least 1M and four times --max-item-size",
            ));
        }
        Ok(Config {
            threads: self.threads.unwrap_or(defaults.threads),
            max_connections: self.max_connections,
            when_full: match self.on_max_connections {
                OnMaxConnections::Reject => WhenFull::Reject,
                OnMaxConnections::Wait => WhenFull::Wait,
            },
            idle_timeout: self.idle_timeout.map(|seconds| Duration::from_secs(seconds as u64)),
            backlog: self.backlog.try_into().unwrap_or(u32::MAX),
            item_size_max: self.max_item_size,
            key_size_max: self.max_key_size,
            upload_limit,
            reply_limit,
            metrics: self.metrics,
            binding: match self.protocol {
                Protocol::Auto => Binding::Auto,
                Protocol::Ascii => Binding::Ascii,
                Protocol::Binary => Binding::Binary,
            },
            shutdown_command: self.allow_shutdown,
            refused: self.refuse.iter().map(|&command| command.into()).collect(),
            ..defaults
        })
    }

    fn place(&self) -> Result<Place, Failure> {
        match (self.durability, &self.path) {
            (Durability::Volatile, None) => Ok(Place::Memory),
            (Durability::Volatile, Some(_)) => Err(Failure::other(
                "--durability volatile does not use a file: remove --path, or use \
                 --durability process",
            )),
            (
                Durability::Process | Durability::Adr | Durability::Eadr | Durability::Log,
                Some(path),
            ) => Ok(Place::File(path.clone())),
            (Durability::Log, None) => Err(Failure::other(
                "--durability log needs --path: a file, beside which the log is",
            )),
            (Durability::Adr | Durability::Eadr, None) => Err(Failure::other(
                "--durability adr and eadr need --path: a file on persistent memory",
            )),
            (Durability::Process, None) => {
                Ok(Place::DefaultFile(Naming { plain_port: Some(PORT), any_port: true }))
            }
        }
    }
}

/// Returns a parser for a number from 1 to `max`.
fn number(max: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max as u64)
}

fn parse_namespace(text: &str) -> Result<Namespace, String> {
    let (prefix, size) = text.rsplit_once('=').ok_or("a namespace is PREFIX=SIZE")?;
    if prefix.is_empty() || prefix.len() > Namespace::PREFIX_MAX {
        return Err(format!("a prefix has 1 to {} bytes", Namespace::PREFIX_MAX));
    }
    if prefix.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        return Err("a prefix has no spaces, as keys".into());
    }
    Ok(Namespace { prefix: prefix.into(), limit: parse_size(size)? })
}

/// Returns a parser for the maximum length of a key.
fn key_size() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(KEY_MAX as u64..=KEY_SIZE_LIMIT as u64)
}

/// Parses the host and the port of the metrics.
pub(super) fn parse_metrics_address(text: &str) -> Result<SocketAddr, String> {
    let mut addresses = text.to_socket_addrs().map_err(|error| {
        format!("{error}; an address has a host and a port, for example 127.0.0.1:9150")
    })?;
    addresses.next().ok_or_else(|| "the host has no address".to_owned())
}

fn parse_item_size(text: &str) -> Result<usize, String> {
    usize::try_from(parse_size(text)?)
        .ok()
        .filter(|size| (ITEM_SIZE_MIN..=ITEM_SIZE_LIMIT).contains(size))
        .ok_or_else(|| {
            format!("must be from {}K to {}M", ITEM_SIZE_MIN >> 10, ITEM_SIZE_LIMIT >> 20)
        })
}

/// Parses the permissions of a file.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|&mode| mode <= 0o777 && !text.starts_with('+'))
        .ok_or_else(|| "permissions are an octal number up to 777, for example 700".to_owned())
}
