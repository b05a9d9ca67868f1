//! `evermap serve`

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use evermap::{Evermap, IndexKind, Options, Summary};
use evermap_server::server::ITEM_SIZE_LIMIT;
use evermap_server::{Config, Server};
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::open::{SuspectArguments, parse_size};

/// How long a predecessor may take to let go of the port.
const PORT_WAIT: Duration = Duration::from_secs(5);

/// Serve a store over the memcached protocol
///
/// Whatever is answered with STORED is there again after any end of the process, kill -9 included, as soon
/// as the server is started again. SIGINT and SIGTERM stop it in order; a second one stops it at once.
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
    #[arg(long, value_name = "N")]
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
    /// Largest item, up to 64M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    max_item_size: u64,
    /// Most clients at a time
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
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
        // Before the store is opened: whoever stops us while we start gets an orderly stop too.
        let mut signals = listen_to_signals()?;
        raise_descriptor_limit(&config);
        let began = Instant::now();
        let map = self.open()?;
        let took = began.elapsed();
        let server = start(&map, &config)?;
        // Nobody may be listening, and the server goes on without.
        let _ = writeln!(io::stdout(), "{}", ready(&map.summary(), server.local_addr(), took));
        signals.forever().next();
        server.stop();
        server.join();
        drop(server);
        Ok(map.close()?)
    }

    fn config(&self) -> Result<Config, Failure> {
        let too_large = format!("--max-item-size: at most {ITEM_SIZE_LIMIT} bytes");
        let defaults = Config::default();
        Ok(Config {
            listen: self.listen,
            threads: self.threads.unwrap_or(defaults.threads),
            max_connections: self.max_connections,
            item_size_max: usize::try_from(self.max_item_size)
                .ok()
                .filter(|&size| size <= ITEM_SIZE_LIMIT)
                .ok_or(Failure::Other(too_large))?,
            ..defaults
        })
    }

    fn open(&self) -> Result<Evermap, Failure> {
        let mut options =
            self.suspect.apply(Options::new()).index(self.index).ordered(self.ordered);
        if let Some(memory) = self.memory {
            options = options.max_bytes(memory);
        }
        if self.durability == Durability::Volatile {
            if self.path.is_some() {
                return Err(Failure::other(
                    "--durability volatile keeps nothing in a file: leave out --path, or ask for process",
                ));
            }
            let options = options.durability(evermap::Durability::Volatile);
            return Ok(Evermap::open("", options)?);
        }
        let path = match &self.path {
            Some(path) => path.clone(),
            None => default_path()?,
        };
        Ok(Evermap::open(path, options)?)
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

/// Starts to serve, as soon as the port is free.
///
/// The store is open, so whoever had it before is gone or going, and a port in use may be free in a moment.
fn start(map: &Evermap, config: &Config) -> Result<Server, Failure> {
    const PAUSE: Duration = Duration::from_millis(1);
    let began = Instant::now();
    loop {
        match Server::start(Arc::new(map.clone()), config.clone()) {
            Ok(server) => return Ok(server),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(Failure::Other(error.to_string()));
            }
            Err(error) if began.elapsed() >= PORT_WAIT => {
                return Err(Failure::Other(format!(
                    "{error}; stop what listens there, or choose another port with --listen"
                )));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// What is said when clients can come.
fn ready(store: &Summary, address: SocketAddr, took: Duration) -> String {
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
        Signals::new([SIGINT, SIGTERM])
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

/// A host and a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let addresses = text.to_socket_addrs().map_err(|error| {
        format!("{error}; an address is a host and a port, as 127.0.0.1:11211 or [::1]:11211")
    })?;
    addresses.into_iter().next().ok_or_else(|| "the host has no address".to_owned())
}
