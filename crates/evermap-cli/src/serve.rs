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
use evermap_server::{Config, Port, Server};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::open::{SuspectArguments, parse_size};
use crate::watch::{ServedFile, watch};

/// Serve a store over the memcached protocol
///
/// Whatever is answered with STORED is there again after any end of the process, kill -9 included, as soon
/// as the server is started again. SIGINT and SIGTERM stop it in order; a second one stops it at once.
/// SIGHUP does nothing.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// File that keeps the items [default: /dev/shm/evermap-UID.map where that is in memory and has room,
    /// otherwise ./evermap.map]
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:11211", value_parser = parse_address)]
    listen: SocketAddr,
    /// Most memory that items may take, as 512M or 4G; beyond it, items are refused [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Worker threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = number(THREADS_MAX))]
    threads: Option<usize>,
    /// What the items are to survive
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    durability: Durability,
    /// Kind of index for a new store: dash-eh, ...; one that exists keeps its own
    #[arg(long, value_name = "NAME", default_value_t)]
    index: IndexKind,
    /// Keep the keys in order too, for what scans the store in this process; costs memory, see `stats`
    #[arg(long)]
    ordered: bool,
    #[command(flatten)]
    suspect: SuspectArguments,
    /// Largest item, 1K to 64M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_item_size)]
    max_item_size: usize,
    /// Most clients at a time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number(usize::MAX))]
    max_connections: usize,
    /// Most clients that wait to be connected; the system has a limit too, net.core.somaxconn
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number(i32::MAX as usize))]
    backlog: usize,
    /// Most memory that values may take while parts of them have not arrived, for all clients
    /// together
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    upload_memory: u64,
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
enum Durability {
    /// The death of the process at any instruction
    #[default]
    Process,
    /// Nothing: memory without a file
    Volatile,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let config = self.config()?;
        let path = self.store_path()?;
        // Before the store is opened: a stop while it is being opened is an orderly one too.
        let mut signals = listen_to_signals()?;
        raise_descriptor_limit(&config);
        let port = take_port(self.listen, path.as_deref())?;
        let began = Instant::now();
        let db = self.open(path.as_deref())?;
        let took = began.elapsed();
        let file = path.as_deref().and_then(ServedFile::opened);
        let port = port.map_or_else(|| take_port_of_predecessor(self.listen), Ok)?;
        let server =
            Server::start_on(port, Arc::new(db.default_map()), config).map_err(port_failed)?;
        // Nobody may be listening, and the server goes on without.
        let _ = writeln!(io::stdout(), "{}", ready(&db.stat(), server.local_addr(), took));
        std::thread::scope(|scope| {
            let (stop, stopped) = channel();
            let server = &server;
            scope.spawn(move || watch(server, file, &stopped));
            // There is nothing to read again, and a terminal that closes is no reason to stop.
            signals.forever().find(|&signal| signal != SIGHUP);
            drop(stop);
            server.stop();
            server.join();
        });
        drop(server);
        Ok(db.close()?)
    }

    fn config(&self) -> Result<Config, Failure> {
        let defaults = Config::default();
        let upload_limit = usize::try_from(self.upload_memory).unwrap_or(usize::MAX);
        if upload_limit < self.max_item_size {
            return Err(Failure::other("--upload-memory: must be at least --max-item-size"));
        }
        Ok(Config {
            listen: self.listen,
            threads: self.threads.unwrap_or(defaults.threads),
            max_connections: self.max_connections,
            backlog: self.backlog.try_into().unwrap_or(u32::MAX),
            item_size_max: self.max_item_size,
            upload_limit,
            ..defaults
        })
    }

    /// The file that keeps the items; none for a store in memory.
    fn store_path(&self) -> Result<Option<PathBuf>, Failure> {
        match (self.durability, &self.path) {
            (Durability::Volatile, None) => Ok(None),
            (Durability::Volatile, Some(_)) => Err(Failure::other(
                "--durability volatile keeps nothing in a file: leave out --path, or ask for process",
            )),
            (Durability::Process, Some(path)) => Ok(Some(path.clone())),
            (Durability::Process, None) => default_path().map(Some),
        }
    }

    fn open(&self, path: Option<&Path>) -> Result<Evermap, Failure> {
        let mut options =
            self.suspect.apply(Options::new()).index(self.index).ordered(self.ordered);
        if let Some(memory) = self.memory {
            options = options.max_bytes(memory);
        }
        Ok(match path {
            Some(path) => Evermap::open(path, options)?,
            None => Evermap::in_memory(options)?,
        })
    }
}

/// Whoever starts a server without saying where wants it fast, and warm when it is started again: a file in
/// memory.
fn default_path() -> Result<PathBuf, Failure> {
    let user = getuid();
    let shared = Path::new("/dev/shm");
    if !is_roomy_memory(shared) {
        return Ok("evermap.map".into());
    }
    let path = shared.join(format!("evermap-{}.map", user.as_raw()));
    // Anybody can make files there, and could have made this one for us.
    match rustix::fs::lstat(&path) {
        Ok(file) if file.st_uid != user.as_raw() => Err(Failure::Other(format!(
            "{}: belongs to another user; choose a file with --path",
            path.display()
        ))),
        _ => Ok(path),
    }
}

/// Whether files in this directory are in memory, and more than the few MiB that containers get.
fn is_roomy_memory(directory: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const ROOM: u64 = 1 << 30;
    rustix::fs::statfs(directory).is_ok_and(|system| {
        // No blocks: no limit.
        let bytes = system.f_blocks.saturating_mul(system.f_bsize as u64);
        system.f_type as u32 == TMPFS && (bytes == 0 || bytes >= ROOM)
    })
}

/// How long to sleep before the port is tried again.
const PORT_PAUSE: Duration = Duration::from_millis(2);

/// Takes the port before the store is touched, so that a port in use is told soon and no file is
/// made.
///
/// Returns nothing if the port is in use and the store is too: both may belong to a server that is
/// dying, for which opening the store waits.
fn take_port(address: SocketAddr, path: Option<&Path>) -> Result<Option<Port>, Failure> {
    // A process that dies lets go of its file a moment before it lets go of its port.
    const MOMENT: Duration = Duration::from_millis(500);
    let began = Instant::now();
    loop {
        match Port::take(address) {
            Ok(port) => return Ok(Some(port)),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(port_failed(error));
            }
            Err(_) if path.is_some_and(is_locked) => return Ok(None),
            Err(error) if began.elapsed() >= MOMENT => return Err(port_failed(error)),
            Err(_) => std::thread::sleep(PORT_PAUSE),
        }
    }
}

/// Takes the port of a server that is gone or going: the store was opened after it.
fn take_port_of_predecessor(address: SocketAddr) -> Result<Port, Failure> {
    const WAIT: Duration = Duration::from_secs(5);
    let began = Instant::now();
    loop {
        match Port::take(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < WAIT => {
                std::thread::sleep(PORT_PAUSE);
            }
            taken => return taken.map_err(port_failed),
        }
    }
}

fn port_failed(error: io::Error) -> Failure {
    Failure::Other(match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{error}; stop what listens there, or choose another port with --listen")
        }
        _ => error.to_string(),
    })
}

/// Whether another process has the store at `path` open.
fn is_locked(path: &Path) -> bool {
    // A lock that is got is given up with the file, at the end of the expression.
    File::open(path).is_ok_and(|file| {
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared)
            .is_err_and(|error| matches!(error, Errno::AGAIN | Errno::ACCESS))
    })
}

/// What is said when clients can come.
fn ready(store: &Stat, address: SocketAddr, took: Duration) -> String {
    let took = took.as_secs_f64() * 1e3;
    let Some(path) = &store.path else {
        return format!("ready on {address}: an empty store in memory, gone at exit");
    };
    let records = match (store.records.exact, store.records.value) {
        (true, 1) => "1 record".to_owned(),
        (true, count) => format!("{count} records"),
        (false, _) => "records being counted".to_owned(),
    };
    let opened = match (store.generation, store.clean_open, store.suspect) {
        (..=1, ..) => "made",
        (_, true, _) => "opened after an orderly stop",
        (_, false, false) => "opened after an unclean stop",
        (_, false, true) => "salvaged after a crash of the system",
    };
    let (path, system) = (path.display(), &store.file_system);
    format!("ready on {address}: {path} ({system}), {records}, {opened} in {took:.1} ms")
}

/// Signals that stop the server in order. The second one, of either kind, ends the process at once, which
/// loses nothing.
fn listen_to_signals() -> Result<Signals, Failure> {
    let stopping = Arc::new(AtomicBool::new(false));
    let register = || -> io::Result<Signals> {
        for signal in [SIGINT, SIGTERM] {
            // In this order: at the first signal the flag is not set yet.
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, stopping.clone())?;
            signal_hook::flag::register(signal, stopping.clone())?;
        }
        Signals::new([SIGINT, SIGTERM, SIGHUP])
    };
    register().map_err(|source| Failure::Io { what: "cannot handle signals".into(), source })
}

/// Lets the process have as many descriptors as its clients need, as far as the system allows.
fn raise_descriptor_limit(config: &Config) {
    /// The store's file, standard streams, listener, signals.
    const OWN: usize = 64;
    /// An event queue and its waker.
    const PER_THREAD: usize = 4;
    let needed = config.max_connections.saturating_add(PER_THREAD * config.threads + OWN) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let current = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
        // Refused, the server pauses accepting while there are none, as it says in `stats`.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

/// A number from 1 to `most`.
fn number(most: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most as u64)
}

fn parse_item_size(text: &str) -> Result<usize, String> {
    usize::try_from(parse_size(text)?)
        .ok()
        .filter(|size| (ITEM_SIZE_MIN..=ITEM_SIZE_LIMIT).contains(size))
        .ok_or_else(|| format!("must be {}K to {}M", ITEM_SIZE_MIN >> 10, ITEM_SIZE_LIMIT >> 20))
}

/// A host and a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let addresses = text.to_socket_addrs().map_err(|error| {
        format!("{error}; an address is a host and a port, as 127.0.0.1:11211 or [::1]:11211")
    })?;
    addresses.into_iter().next().ok_or_else(|| "the host has no address".to_owned())
}
