//! The life of a server process, from its settings to its end.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use evermap::{DamageMark, Durability, Evermap, Evicted, IndexKind, Options, Order};
use evermap_server::protocol::Credentials;
use evermap_server::server::{ClientCertificates, Tls, TlsSettings};
use evermap_server::{
    Cache, Config, ListenAddress, Listener, METRICS_CONNECTIONS_MAX, Namespace, Namespaces, Server,
    WhenFull,
};
use rustix::process::getuid;

use super::activation;
use super::daemon::Daemon;
use super::default_path::{default_path, name_of};
use super::endpoints::{Encryption, Endpoint};
use super::listeners::{Addresses, exposure, without_inherited};
use super::log::LogArguments;
use super::memory_bounds::{Bound, Limits, bounds, fit};
use super::notify::Manager;
use super::pid_file::PidFile;
use super::privileges::{
    DescriptorNeeds, User, allow_core_dumps, allow_locked_memory, lock_memory,
    raise_descriptor_limit,
};
use super::ready::{ready_line, write_ports};
use super::signals::{Request, ServerSignals};
use crate::failure::Failure;
use crate::monitor::{ServedFile, monitor};
use crate::rejoin::{History, RejoinArguments};

/// A server that is to run, and how.
pub(super) struct Service {
    pub(super) store: StoreSettings,
    pub(super) config: Config,
    pub(super) endpoints: Vec<Endpoint>,
    /// Where to listen if there are no endpoints and a service manager passes no sockets.
    pub(super) default_endpoint: Endpoint,
    pub(super) tls: Option<TlsSettings>,
    /// The file of users and passwords.
    pub(super) auth_file: Option<PathBuf>,
    /// The user to become, if the process is root's.
    pub(super) user: Option<String>,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) daemonize: bool,
    pub(super) lock_memory: bool,
    pub(super) core_dumps: bool,
    pub(super) announcement: Announcement,
    /// The name with which messages begin.
    pub(super) program: &'static str,
    /// The options that choose addresses.
    pub(super) address_options: &'static str,
}

/// The store that a server opens.
pub(super) struct StoreSettings {
    pub(super) place: Place,
    pub(super) durability: Durability,
    pub(super) log: LogArguments,
    pub(super) index: IndexKind,
    pub(super) order: Order,
    pub(super) rejoin: RejoinArguments,
    /// The maximum of bytes of memory, or `None` for no limit.
    pub(super) memory: Option<u64>,
    pub(super) namespaces: Vec<Namespace>,
    /// Whether items are removed to make space for others.
    pub(super) evict: bool,
}

/// Where the items are.
pub(super) enum Place {
    File(PathBuf),
    /// A file of the user, with a name that distinguishes it from those of other servers.
    DefaultFile(Naming),
    /// Nowhere but in the process.
    Memory,
}

/// How the file of a server is named after its first address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    /// The port of the server whose file needs no distinction.
    pub(super) plain_port: Option<u16>,
    /// Whether a server has a file whose port the system chooses. The next one has another port,
    /// but finds the file.
    pub(super) any_port: bool,
}

impl Naming {
    /// Returns the name, or `None` if there is no file.
    pub(super) fn name(self, first: Option<&ListenAddress>) -> Option<String> {
        let first = first?;
        let is_any = first.tcp().is_some_and(|address| address.port() == 0);
        (self.any_port || !is_any).then(|| name_of(first, self.plain_port))
    }
}

/// Where a server says that clients can connect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Announcement {
    StandardOutput,
    StandardError,
    Nowhere,
}

impl Service {
    /// Serves until a signal asks for the end.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.make_paths_absolute()?;
        let user = self.user_to_become()?;
        let inherited = activation::take(self.tls.is_some())?;
        self.config.tls = self.load_certificates()?;
        self.warn_of_missing_authority();
        self.config.credentials = self.load_credentials()?;
        let path = self.store.path(user.as_ref(), self.first_address(&inherited).as_ref())?;
        let asked = self.store.memory;
        let bound = self.fit_memory(path.as_deref());
        let daemon = if self.daemonize { Some(Daemon::detach()?) } else { None };
        // Install the handlers first, so that a signal while the store is opened leads to a clean
        // shutdown too.
        let signals = ServerSignals::install()?;
        self.set_limits(inherited.len())?;
        let addresses = self.addresses(&inherited, user.as_ref());
        let listeners = addresses.take(path.as_deref())?;
        let mut pid_file = self.pid_file.as_deref().map(PidFile::open).transpose()?;
        if let Some(user) = &user {
            user.assume()?;
        }
        let began = Instant::now();
        let db = self.store.open(path.as_deref())?;
        let duration = began.elapsed();
        self.watch_for_damage(&db);
        let file = path.as_deref().and_then(ServedFile::opened);
        let listeners = listeners.map_or_else(|| addresses.take_after_predecessor(), Ok)?;
        let listeners = inherited.into_iter().chain(listeners).collect();
        if self.lock_memory
            && let Err(error) = lock_memory()
        {
            self.say(&format!("warning: the memory cannot be locked: {error}"));
        }
        let mut history = self.store.rejoin.begin(&db, duration)?;
        self.config.earlier = history.counters();
        let server = self.start(listeners, &db, &addresses)?;
        history.announce(&server);
        Service::show_memory(&server, asked, bound.as_ref());
        if let Some(pid_file) = &mut pid_file {
            pid_file.write()?;
        }
        let line = ready_line(&db.stat(), server.addresses(), duration);
        self.announce(&line, &server)?;
        let manager = Manager::from_environment();
        manager.ready(&line);
        if let Some(daemon) = daemon {
            daemon.ready(self.announcement == Announcement::StandardError);
        }
        self.serve(&server, file, &mut history, &manager, signals);
        history.end(&server);
        drop(server);
        db.close()?;
        drop(pid_file);
        Ok(())
    }

    /// Serves until a signal asks for the end, and stops the server.
    fn serve(
        &self,
        server: &Server,
        file: Option<ServedFile>,
        history: &mut History,
        manager: &Manager,
        mut signals: ServerSignals,
    ) {
        std::thread::scope(|scope| {
            let (stop, stopped) = channel::<()>();
            let (stop_informing, informing_stopped) = channel::<()>();
            scope.spawn(move || monitor(server, file, history, &stopped));
            scope.spawn(move || manager.keep_informed(server, &informing_stopped));
            while signals.next() == Request::Reload {
                self.reload(server, manager);
            }
            manager.stopping();
            drop(stop);
            drop(stop_informing);
            server.stop();
            server.join();
        });
    }

    /// Reads the certificates and the passwords again.
    fn reload(&self, server: &Server, manager: &Manager) {
        manager.reloading();
        let mut said = Vec::new();
        if self.tls.is_some() {
            said.push(reload_line("certificates", server.refresh_certificates()));
        }
        if let Some(credentials) = &self.config.credentials {
            let reloaded = credentials.reload().map_err(|error| error.to_string());
            said.push(reload_line("passwords", reloaded));
        }
        said.iter().for_each(|line| self.say(line));
        match said.is_empty() {
            true => manager.ready("there is nothing to read again"),
            false => manager.ready(&said.join("; ")),
        }
    }

    fn start(
        &self,
        listeners: Vec<Listener>,
        db: &Evermap,
        addresses: &Addresses,
    ) -> Result<Server, Failure> {
        if let Some(warning) = exposure(&listeners, self.config.credentials.is_some()) {
            self.say(&warning);
        }
        if let Some(address) = self.config.metrics.filter(|address| !address.ip().is_loopback()) {
            self.say(&format!("warning: the metrics at {address} can be read from other machines"));
        }
        let server = Server::start_on(listeners, self.store.cache(db)?, self.config.clone())
            .map_err(|error| addresses.failure(error))?;
        if self.store.evict {
            let hub = server.hub().clone();
            db.on_evict(Some(Box::new(move |evicted| {
                let Evicted { key, value_len, ttl, idle, fetched, .. } = *evicted;
                let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
                hub.evicted(key, value_len, ttl.map(seconds), seconds(idle), fetched);
            })));
        }
        Ok(server)
    }

    /// Says that clients can connect.
    fn announce(&self, line: &str, server: &Server) -> Result<(), Failure> {
        match self.announcement {
            // The server runs even if standard output is closed.
            Announcement::StandardOutput => {
                let _ = writeln!(io::stdout(), "{line}");
            }
            Announcement::StandardError => self.say(line),
            Announcement::Nowhere => {}
        }
        write_ports(server.addresses())
            .map_err(|source| Failure::Io { what: "cannot write the ports".into(), source })
    }

    /// Reports damage of the file: what is known of it, and what will be found.
    fn watch_for_damage(&self, db: &Evermap) {
        let before = db.stat().damage;
        if before > DamageMark::None {
            self.say(
                "warning: the file is marked as damaged; `evermap recover` describes the damage, \
                 and takes the mark away if there is none",
            );
        }
        let program = self.program;
        db.on_damage(move |mark, what| {
            let consequence = match mark {
                DamageMark::Widespread => "there is much damage: the next start refuses the file",
                _ => "the file is marked as damaged; `evermap check --deep` describes the damage",
            };
            let _ = writeln!(io::stderr(), "{program}: warning: {what}; {consequence}");
        });
    }

    /// Writes a line to standard error. If that is closed, the line is lost.
    fn say(&self, line: &str) {
        let _ = writeln!(io::stderr(), "{}: {line}", self.program);
    }

    /// Returns the user to become, or `None` if the process stays what it is. Only root can become
    /// another user.
    fn user_to_become(&self) -> Result<Option<User>, Failure> {
        let is_root = rustix::process::geteuid().is_root();
        self.user.as_deref().filter(|_| is_root).map(User::find).transpose()
    }

    fn load_certificates(&self) -> Result<Option<Tls>, Failure> {
        let load = |settings: &TlsSettings| {
            Tls::load(settings.clone()).map_err(|error| Failure::Other(error.to_string()))
        };
        self.tls.as_ref().map(load).transpose()
    }

    /// Says if certificates of clients are asked for that nobody can have.
    fn warn_of_missing_authority(&self) {
        let Some(tls) = self.tls.as_ref().filter(|tls| tls.client_ca.is_none()) else {
            return;
        };
        let mutual = |endpoint: &Endpoint| {
            matches!(endpoint, Endpoint::Tcp { encryption: Encryption::Mutual, .. })
        };
        let refused = match tls.client_certificates {
            _ if self.endpoints.iter().any(mutual) => "no client can connect there",
            ClientCertificates::Ignored => return,
            ClientCertificates::Requested => "a client that presents one is refused",
            ClientCertificates::Required => "no client can connect",
        };
        self.say(&format!(
            "warning: clients are asked for certificates, but no authority is given that issues \
             them: {refused}"
        ));
    }

    fn load_credentials(&self) -> Result<Option<Arc<Credentials>>, Failure> {
        let load = |path: &PathBuf| {
            let loaded = Credentials::load(path);
            loaded.map(Arc::new).map_err(|error| Failure::Other(error.to_string()))
        };
        self.auth_file.as_ref().map(load).transpose()
    }

    /// Makes paths independent of the current directory, which a process in the background leaves.
    fn make_paths_absolute(&mut self) -> Result<(), Failure> {
        let mut paths: Vec<&mut PathBuf> = Vec::new();
        if let Place::File(path) = &mut self.store.place {
            paths.push(path);
        }
        if let Some(tls) = &mut self.tls {
            paths.extend([&mut tls.certificates, &mut tls.key]);
            paths.extend(&mut tls.client_ca);
        }
        paths.extend(&mut self.pid_file);
        paths.extend(&mut self.auth_file);
        for endpoint in &mut self.endpoints {
            if let Endpoint::Unix { path, .. } = endpoint {
                paths.push(path);
            }
        }
        for path in paths {
            *path = std::path::absolute(&*path)
                .map_err(|source| Failure::Io { what: format!("{}", path.display()), source })?;
        }
        Ok(())
    }

    /// Raises the limits of the process as far as needed. Lowers the number of connections if there
    /// cannot be as many, and says so.
    fn set_limits(&mut self, inherited: usize) -> Result<(), Failure> {
        // Those that read metrics keep no others out.
        let metrics = self.config.metrics.map_or(0, |_| 1 + METRICS_CONNECTIONS_MAX);
        let fixed = inherited + self.endpoints.len().max(1) + metrics;
        let needs = DescriptorNeeds { threads: self.config.threads, fixed };
        let asked = self.config.max_connections;
        let available = raise_descriptor_limit(needs.all(asked) as u64);
        self.config.max_connections = needs.connections(asked, available).ok_or_else(|| {
            Failure::Other(format!(
                "the limit of open files, {available}, is too low: with {} threads this server \
                 needs at least {} (ulimit -n, or LimitNOFILE of a unit)",
                needs.threads,
                needs.least() + 1
            ))
        })?;
        if self.config.max_connections < asked {
            let settings = &mut self.config.settings;
            settings.insert("maxconns_asked".into(), asked.to_string());
            self.say(&format!(
                "warning: at most {} connections instead of {asked}, because the limit of open \
                 files is {available} and cannot be raised (ulimit -n, or LimitNOFILE of a unit)",
                self.config.max_connections
            ));
        }
        if self.lock_memory {
            allow_locked_memory();
        }
        if self.core_dumps
            && let Err(error) = allow_core_dumps()
        {
            self.say(&format!("warning: memory dumps are not possible: {error}"));
        }
        Ok(())
    }

    /// Returns the address after which the file of the store is named.
    pub(super) fn first_address(&self, inherited: &[Listener]) -> Option<ListenAddress> {
        match inherited.first().map(Listener::address) {
            // Service managers include IPv4 in it.
            Some(ListenAddress::Tcp(SocketAddr::V6(address))) if address.ip().is_unspecified() => {
                Some(ListenAddress::Tcp((Ipv4Addr::UNSPECIFIED, address.port()).into()))
            }
            Some(address) => Some(address.clone()),
            None => self.endpoints.first().unwrap_or(&self.default_endpoint).first_address(),
        }
    }

    /// Lowers the limits to what the system allows, and says so. Returns the lowest bound.
    fn fit_memory(&mut self, path: Option<&Path>) -> Option<Bound> {
        let config = &mut self.config;
        let asked = Limits {
            items: self.store.memory,
            uploads: config.upload_limit as u64,
            replies: config.reply_limit as u64,
        };
        let item = config.item_size_max as u64;
        let least = Limits {
            items: Some(2 * item),
            uploads: item,
            replies: 4 * item.max(config.output_limit as u64),
        };
        let fitted = fit(asked, least, &bounds(path.and_then(Path::parent)));
        self.store.memory = fitted.limits.items;
        config.upload_limit = fitted.limits.uploads.try_into().unwrap_or(usize::MAX);
        config.reply_limit = fitted.limits.replies.try_into().unwrap_or(usize::MAX);
        if let Some(warning) = &fitted.warning {
            self.say(warning);
        }
        fitted.bound
    }

    /// Adds to `stats` what the system allows.
    fn show_memory(server: &Server, asked: Option<u64>, bound: Option<&Bound>) {
        server.set_stat("evermap_memory_asked", asked.unwrap_or(0));
        server.set_stat("evermap_memory_bound", bound.map_or(0, |bound| bound.bytes));
        server.set_stat("evermap_memory_bound_by", bound.map_or("none", |bound| bound.by.word()));
    }

    /// Returns the addresses to take, which are not those that were passed to the process.
    fn addresses(&self, inherited: &[Listener], user: Option<&User>) -> Addresses {
        let mut endpoints = self.endpoints.clone();
        if endpoints.is_empty() && inherited.is_empty() {
            endpoints.push(self.default_endpoint.clone());
        }
        without_inherited(&mut endpoints, inherited);
        Addresses {
            endpoints,
            has_certificate: self.tls.is_some(),
            owner: user.map(|user| (user.uid, user.gid)),
            program: self.program,
            hint: self.address_options,
        }
    }
}

/// Returns the line that reports whether files were read again.
fn reload_line(what: &str, reloaded: Result<(), String>) -> String {
    match reloaded {
        Ok(()) => format!("the {what} were read again"),
        Err(error) => format!("the {what} are unchanged, because the new ones failed: {error}"),
    }
}

impl StoreSettings {
    /// Returns the file of the store, or `None` for a store in memory.
    fn path(
        &self,
        user: Option<&User>,
        first: Option<&ListenAddress>,
    ) -> Result<Option<PathBuf>, Failure> {
        match &self.place {
            Place::Memory => Ok(None),
            Place::File(path) => Ok(Some(path.clone())),
            Place::DefaultFile(naming) => {
                let Some(name) = naming.name(first) else {
                    return Ok(None);
                };
                let uid = user.map_or_else(|| getuid().as_raw(), |user| user.uid);
                let path = default_path(uid, &name)?;
                std::path::absolute(&path)
                    .map(Some)
                    .map_err(|source| Failure::Io { what: format!("{}", path.display()), source })
            }
        }
    }

    /// Returns what clients are served from.
    fn cache(&self, db: &Evermap) -> Result<Arc<dyn Cache>, Failure> {
        let when_full = if self.evict { WhenFull::Evict } else { WhenFull::Refuse };
        Ok(Namespaces::open(&self.log.handle_of(db), self.namespaces.clone(), when_full)?)
    }

    fn open(&self, path: Option<&Path>) -> Result<Evermap, Failure> {
        let options = Options::new()
            .durability(self.durability)
            .offers_copies(path.is_some())
            .index(self.index)
            .ordered(self.order)
            .memory_limit(self.memory.unwrap_or(0))
            .evict(self.evict);
        let options = self.log.add_to(options);
        Ok(match path {
            Some(path) => self.rejoin.open(path, options)?,
            None => Evermap::in_memory(options)?,
        })
    }
}
