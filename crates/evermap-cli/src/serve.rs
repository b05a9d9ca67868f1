//! `evermap serve`

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use evermap::{Evermap, IndexKind, Options, Stat};
use evermap_server::server::{ITEM_SIZE_LIMIT, ITEM_SIZE_MIN, THREADS_MAX};
use evermap_server::{BoundPort, Config, Server};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::monitor::{ServedFile, monitor};
use crate::open::{index_kind, parse_size};
use crate::rejoin::RejoinArguments;

/// Serve a store over the memcached protocol
///
/// Every item that the server acknowledged with STORED is available again when the server is
/// restarted, however its process ended, including kill -9. SIGINT and SIGTERM shut the server down
/// cleanly; a second one stops it immediately. SIGHUP is ignored.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// File of the store [default: /dev/shm/evermap-UID.map if /dev/shm is a tmpfs of at least 1
    /// GiB, otherwise ./evermap.map]
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,
    /// Address and port to listen on
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:11211",
        value_parser = parse_address
    )]
    listen: SocketAddr,
    /// Maximum memory of all items, for example 512M or 4G; further items are rejected [default: no
    /// limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Number of worker threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = number(THREADS_MAX))]
    threads: Option<usize>,
    /// What the items survive
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    durability: Durability,
    /// Kind of index, if this command creates the store
    #[arg(long, value_name = "NAME", default_value_t, value_parser = index_kind())]
    index: IndexKind,
    /// Also maintain an ordered index, to measure its cost: no command of the protocol uses it
    #[arg(long)]
    ordered: bool,
    #[command(flatten)]
    rejoin: RejoinArguments,
    /// Maximum size of an item, from 1K to 64M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_item_size)]
    max_item_size: usize,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number(usize::MAX))]
    max_connections: usize,
    /// Maximum number of connections that wait to be accepted; the system limits it too
    /// (net.core.somaxconn)
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number(i32::MAX as usize))]
    backlog: usize,
    /// Maximum memory of all values that have not arrived completely
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    upload_memory: u64,
    /// Also answer requests for metrics of Prometheus at http://ADDRESS/metrics [without an
    /// address: 127.0.0.1:9150]
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9150",
        value_parser = parse_address
    )]
    metrics: Option<SocketAddr>,
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
enum Durability {
    /// The end of the process at any instruction
    #[default]
    Process,
    /// Nothing: the items are in memory without a file
    Volatile,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut config = self.config()?;
        let path = self.store_path()?;
        // Install the handlers first, so that a signal while the store is opened leads to a clean
        // shutdown too.
        let mut signals = install_signal_handlers()?;
        raise_descriptor_limit(&config);
        let port = bind_port(self.listen, path.as_deref())?;
        let began = Instant::now();
        let db = self.open(path.as_deref())?;
        let duration = began.elapsed();
        let file = path.as_deref().and_then(ServedFile::opened);
        let mut history = self.rejoin.begin(&db, duration)?;
        config.earlier = history.counters();
        let port = port.map_or_else(|| bind_port_after_predecessor(self.listen), Ok)?;
        let server =
            Server::start_on_port(port, Arc::new(db.default_map()), config).map_err(port_error)?;
        history.announce(&server);
        // The server runs even if standard output is closed.
        let _ = writeln!(io::stdout(), "{}", ready_line(&db.stat(), server.local_addr(), duration));
        std::thread::scope(|scope| {
            let (stop, stopped) = channel();
            let (server, history) = (&server, &mut history);
            scope.spawn(move || monitor(server, file, history, &stopped));
            // SIGHUP is ignored: there is no configuration to reload, and the server outlives its
            // terminal.
            signals.forever().find(|&signal| signal != SIGHUP);
            drop(stop);
            server.stop();
            server.join();
        });
        history.end(&server);
        drop(server);
        Ok(db.close()?)
    }

    fn config(&self) -> Result<Config, Failure> {
        let defaults = Config::default();
        let upload_limit = usize::try_from(self.upload_memory).unwrap_or(usize::MAX);
        if upload_limit < self.max_item_size {
            return Err(Failure::other("--upload-memory must be at least --max-item-size"));
        }
        Ok(Config {
            listen: self.listen,
            threads: self.threads.unwrap_or(defaults.threads),
            max_connections: self.max_connections,
            backlog: self.backlog.try_into().unwrap_or(u32::MAX),
            item_size_max: self.max_item_size,
            upload_limit,
            metrics: self.metrics,
            ..defaults
        })
    }

    /// Returns the file of the store, or `None` for a store in memory.
    fn store_path(&self) -> Result<Option<PathBuf>, Failure> {
        match (self.durability, &self.path) {
            (Durability::Volatile, None) => Ok(None),
            (Durability::Volatile, Some(_)) => Err(Failure::other(
                "--durability volatile does not use a file: remove --path, or use \
                 --durability process",
            )),
            (Durability::Process, Some(path)) => Ok(Some(path.clone())),
            (Durability::Process, None) => default_path().map(Some),
        }
    }

    fn open(&self, path: Option<&Path>) -> Result<Evermap, Failure> {
        let mut options = Options::new().index(self.index).ordered(self.ordered);
        if let Some(memory) = self.memory {
            options = options.max_bytes(memory);
        }
        Ok(match path {
            Some(path) => self.rejoin.open(path, options)?,
            None => Evermap::in_memory(options)?,
        })
    }
}

/// Returns the file that a server uses without --path: a file in memory, if possible, which is fast
/// and survives a restart of the server.
fn default_path() -> Result<PathBuf, Failure> {
    let user = getuid();
    let shared = Path::new("/dev/shm");
    if !is_large_tmpfs(shared) {
        return Ok("evermap.map".into());
    }
    let path = shared.join(format!("evermap-{}.map", user.as_raw()));
    // Any user can create files there, and another one may have created this file.
    match rustix::fs::lstat(&path) {
        Ok(file) if file.st_uid != user.as_raw() => Err(Failure::Other(format!(
            "{}: the file belongs to another user; use --path to choose another file",
            path.display()
        ))),
        _ => Ok(path),
    }
}

/// Returns `true` if the directory is a tmpfs with more than the few MiB that containers get.
fn is_large_tmpfs(directory: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const SIZE_MIN: u64 = 1 << 30;
    rustix::fs::statfs(directory).is_ok_and(|system| {
        // A tmpfs with 0 blocks has no limit.
        let bytes = system.f_blocks.saturating_mul(system.f_bsize as u64);
        system.f_type as u32 == TMPFS && (bytes == 0 || bytes >= SIZE_MIN)
    })
}

/// The delay before the next attempt to bind the port.
const RETRY_DELAY: Duration = Duration::from_millis(2);

/// Binds the port before the store is opened, so that a port in use is reported early and no file
/// is created.
///
/// Returns `None` if both the port and the store are in use: they may belong to a server that is
/// exiting, and opening the store waits for it.
fn bind_port(address: SocketAddr, path: Option<&Path>) -> Result<Option<BoundPort>, Failure> {
    // An exiting process releases its file shortly before its port.
    const TIMEOUT: Duration = Duration::from_millis(500);
    let began = Instant::now();
    loop {
        match BoundPort::bind(address) {
            Ok(port) => return Ok(Some(port)),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(port_error(error));
            }
            Err(_) if path.is_some_and(is_locked) => return Ok(None),
            Err(error) if began.elapsed() >= TIMEOUT => return Err(port_error(error)),
            Err(_) => std::thread::sleep(RETRY_DELAY),
        }
    }
}

/// Binds the port after an exiting server released the store, and waits until it released the port.
fn bind_port_after_predecessor(address: SocketAddr) -> Result<BoundPort, Failure> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let began = Instant::now();
    loop {
        match BoundPort::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < TIMEOUT => {
                std::thread::sleep(RETRY_DELAY);
            }
            taken => return taken.map_err(port_error),
        }
    }
}

fn port_error(error: io::Error) -> Failure {
    Failure::Other(match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "{error}; stop the program that uses the port, or choose another one with --listen"
            )
        }
        _ => error.to_string(),
    })
}

/// Returns `true` if another process has the store at `path` open.
fn is_locked(path: &Path) -> bool {
    // If the lock is acquired, it is released with the file, at the end of the expression.
    File::open(path).is_ok_and(|file| {
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared)
            .is_err_and(|error| matches!(error, Errno::AGAIN | Errno::ACCESS))
    })
}

/// Returns the line that reports that the server accepts connections.
fn ready_line(store: &Stat, address: SocketAddr, duration: Duration) -> String {
    let duration = duration.as_secs_f64() * 1e3;
    let Some(path) = &store.path else {
        return format!("ready on {address}: new store in memory, lost at exit");
    };
    let records = match (store.records.exact, store.records.value) {
        (true, 1) => "1 record".to_owned(),
        (true, count) => format!("{count} records"),
        (false, _) => "records being counted".to_owned(),
    };
    let opened = match (store.generation, store.clean_open, store.suspect) {
        (..=1, ..) => "created",
        (_, true, _) => "opened after a clean shutdown",
        (_, false, false) => "recovered after an unclean shutdown",
        (_, false, true) => "salvaged after a system crash",
    };
    let (path, system) = (path.display(), &store.file_system);
    format!("ready on {address}: {path} ({system}), {records}, {opened} in {duration:.1} ms")
}

/// Installs handlers for the signals that stop the server. The first one shuts it down cleanly; the
/// second one, of either kind, ends the process immediately, which loses no acknowledged item.
fn install_signal_handlers() -> Result<Signals, Failure> {
    let stopping = Arc::new(AtomicBool::new(false));
    let register = || -> io::Result<Signals> {
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal the flag must not be set yet.
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, stopping.clone())?;
            signal_hook::flag::register(signal, stopping.clone())?;
        }
        Signals::new([SIGINT, SIGTERM, SIGHUP])
    };
    register().map_err(|source| Failure::Io { what: "cannot handle signals".into(), source })
}

/// Raises the limit of open file descriptors to the number that the connections need, as far as the
/// system allows.
fn raise_descriptor_limit(config: &Config) {
    /// The file of the store, standard streams, listener and signals.
    const OWN: usize = 64;
    /// An event queue and its waker.
    const PER_THREAD: usize = 4;
    let needed = config.max_connections.saturating_add(PER_THREAD * config.threads + OWN) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let current = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
        // If this fails, the server pauses accepting while there are no descriptors, and counts the
        // pauses in `stats`.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

/// Returns a parser for a number from 1 to `max`.
fn number(max: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max as u64)
}

fn parse_item_size(text: &str) -> Result<usize, String> {
    usize::try_from(parse_size(text)?)
        .ok()
        .filter(|size| (ITEM_SIZE_MIN..=ITEM_SIZE_LIMIT).contains(size))
        .ok_or_else(|| {
            format!("must be from {}K to {}M", ITEM_SIZE_MIN >> 10, ITEM_SIZE_LIMIT >> 20)
        })
}

/// Parses a host and a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let addresses = text.to_socket_addrs().map_err(|error| {
        format!("{error}; an address has a host and a port, for example 127.0.0.1:11211")
    })?;
    addresses.into_iter().next().ok_or_else(|| "the host has no address".to_owned())
}
