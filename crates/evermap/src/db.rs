//! A store in a file, with the maintenance in the background.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use evermap_pm::fork::ForkDetector;
use evermap_pm::medium::{FlushKind, Mapped, MappedOptions, Pages};
use evermap_pm::region::{self, Identity, OnSuspect};
use evermap_pm::sync::Mutex;
use evermap_pm::{ErrorKind, Medium};

use crate::error::storage;
use crate::ordered;
use crate::{Durability, Error, MapOptions, Options, Result, Store};

/// A map in a file that outlives the process: a handle to be cloned and shared between threads.
///
/// Its operations are those of [`Store`]. A thread in the background sweeps after an unclean stop and
/// removes expired records; the first request is answered without waiting for it.
///
/// Dropping the last handle closes the store, but cannot say whether that went well:
/// [`close`](Evermap::close) can.
///
/// ```
/// use evermap::{Evermap, Options};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("map");
/// let map = Evermap::open(&path, Options::new())?;
/// map.put(b"apple", b"red")?;
/// map.close()?;
///
/// let map = Evermap::open(&path, Options::new().create(false))?;
/// assert_eq!(map.get(b"apple")?.as_deref(), Some(&b"red"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Evermap {
    owner: Arc<Owner>,
    store: Store<Mapped>,
}

struct Owner {
    /// The default map.
    store: Store<Mapped>,
    /// Threads in the background.
    threads: Mutex<Vec<JoinHandle<()>>>,
    fork: ForkDetector,
}

impl Evermap {
    /// Opens the store at `path`, or makes one. About a millisecond, whatever its size and however it was
    /// stopped; longer while a previous process is dying.
    ///
    /// # Errors
    /// * [`Error::NotFound`] if there is none and [`Options::create`] is off;
    /// * [`Error::Storage`] or [`Error::Open`] with `InUse` while another process has it, `NotAStore`,
    ///   `NewerFormat`, `Damaged`, `Suspect` (see [`Options::on_suspect`]), `FileSystem`, `Config`, `NoSpace`
    ///   or `Io`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let mut store = open_store(path, &options).map_err(|error| match error {
            Error::NotFound { .. } => Error::NotFound { path: path.to_owned() },
            error => error.at(path),
        })?;
        let file = Arc::get_mut(&mut store.file).expect("nobody else has it yet");
        let medium = file.pool.medium();
        file.origin.path = medium.path().map(Path::to_owned);
        file.origin.file_system = medium.filesystem().to_owned();
        let fork = ForkDetector::new()?;
        let owner = Owner { store: store.clone(), threads: Mutex::default(), fork };
        let started = owner.start_threads();
        started.map_err(|source| evermap_pm::Error::io("starting a thread", path, source))?;
        Ok(Evermap { owner: Arc::new(owner), store })
    }

    /// The map called `name`, opened or made: as [`Store::map`], and this handle of it keeps the store open like any
    /// other.
    ///
    /// ```
    /// use evermap::{Evermap, MapOptions, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let users = Evermap::open(&path, Options::new())?.map("users", MapOptions::new())?;
    /// users.put(b"1", b"ann")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store::map`].
    pub fn map(&self, name: &str, options: MapOptions) -> Result<Evermap> {
        let store = self.store.map(name, options)?;
        Ok(Evermap { owner: self.owner.clone(), store })
    }

    /// Closes the store for all handles, those of named maps too: waits for running operations and for [readers](crate::Reader), and
    /// leaves everything in order. Later operations through other handles answer [`Error::Closed`]. The
    /// file can be opened again as soon as the last handle is dropped.
    ///
    /// # Errors
    /// See [`Store::close`].
    pub fn close(self) -> Result<()> {
        self.owner.close()
    }
}

impl Deref for Evermap {
    type Target = Store<Mapped>;

    #[inline(always)]
    fn deref(&self) -> &Store<Mapped> {
        &self.store
    }
}

impl std::fmt::Debug for Evermap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evermap")
            .field("path", &self.file.origin.path)
            .field("map", &self.name())
            .finish_non_exhaustive()
    }
}

impl Owner {
    fn start_threads(&self) -> std::io::Result<()> {
        let is_read_only = self.store.file.read_only;
        if !is_read_only {
            self.store.file.maintenance.set_kept();
            self.start("evermap-keeper", Store::run_maintenance)?;
        }
        if self.store.wants_ordered_built() {
            self.start("evermap-order", |store| {
                // Whatever goes wrong is in `stat`, and every scan says so.
                let _ = store.build_ordered(ordered::default_threads());
            })?;
        }
        // Without changes there are no notices.
        let workers = if is_read_only { 0 } else { self.store.recruit() };
        for number in 0..workers {
            self.start("evermap-notices", move |store| store.work_on_notices(number))?;
        }
        Ok(())
    }

    fn start(
        &self,
        name: &str,
        work: impl FnOnce(&Store<Mapped>) + Send + 'static,
    ) -> std::io::Result<()> {
        let store = self.store.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&store))?;
        self.threads.lock().expect("no panics while held").push(thread);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        // Before the threads are waited for: they may be waiting for the guard.
        if !self.store.is_closed() {
            self.store.ensure_no_guard("close")?;
        }
        self.stop_threads();
        self.store.close()
    }

    fn stop_threads(&self) {
        self.store.file.maintenance.stop();
        let threads = std::mem::take(&mut *self.threads.lock().expect("no panics while held"));
        if self.fork.is_child() {
            // The threads do not exist here, and waiting for them would never end.
            return;
        }
        for thread in threads {
            thread.thread().unpark();
            // A panic in one has poisoned the store, which says so itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What the panic interrupted is unknown: let the next opening recover.
            self.stop_threads();
        } else if self.close().is_err() {
            // Of a reader that was leaked, for one: then nobody can wait for the threads, but they
            // end.
            self.store.file.maintenance.stop();
        }
    }
}

fn open_store(path: &Path, options: &Options) -> Result<Store<Mapped>> {
    if options.read_only {
        return open_read_only(path, options);
    }
    let mapped = mapped_options(options);
    let medium = open_medium(path, &mapped, options)?;
    let identity = medium.identity();
    let held = match options.on_suspect {
        OnSuspect::Discard => medium.hold()?,
        OnSuspect::Refuse | OnSuspect::Salvage => None,
    };
    let Some(held) = held else { return open_whole(path, medium, identity, options) };
    // Opened as if it were to be refused, so that a store that can be trusted is kept. The lock is held from
    // the judgement to the end, so that it is about the same contents.
    let refusing = options.clone().on_suspect(OnSuspect::Refuse);
    match open_whole(path, medium, identity, &refusing) {
        Err(error) if is_untrusted(&error) => {
            Store::create(held.emptied(&mapped)?, identity, options)
        }
        opened => opened,
    }
}

/// Opens what is in the file, and leaves the file as it is.
fn open_read_only(path: &Path, options: &Options) -> Result<Store<Mapped>> {
    let contradiction = match options {
        Options { durability: Durability::Volatile, .. } => Some("a store in memory"),
        Options { on_suspect: OnSuspect::Discard, .. } => Some("on_suspect = discard"),
        _ => None,
    };
    if let Some(what) = contradiction {
        let text = format!("read_only contradicts {what}; leave one of them out");
        return Err(storage(ErrorKind::Config(text)));
    }
    let options = options.clone().create(false);
    let medium = open_medium(path, &mapped_options(&options), &options)?;
    let identity = medium.identity();
    let store = open_whole(path, medium, identity, &options)?;
    if !store.file.origin.clean {
        return Err(Error::NotClosed { path: path.to_owned() });
    }
    Ok(store)
}

/// Whether the file is a store whose contents cannot be trusted.
fn is_untrusted(error: &Error) -> bool {
    error.is_damaged() || matches!(error.kind(), Some(ErrorKind::Suspect { .. }))
}

/// Opens what is in `medium`, unless that is but a part of what is in the file.
fn open_whole(
    path: &Path,
    medium: Mapped,
    identity: Identity,
    options: &Options,
) -> Result<Store<Mapped>> {
    // A file of less than a page looks empty to the medium.
    if medium.len() == 0 && medium.path().is_some() {
        let io = |source| evermap_pm::Error::io("reading", path, source);
        let bytes = std::fs::read(path).map_err(io)?;
        if region::begins_as_region(&bytes) {
            return Err(region::cut_off(bytes.len() as u64).into());
        }
        if !bytes.is_empty() {
            let why = format!("it has only {} bytes", bytes.len());
            return Err(storage(ErrorKind::NotAStore { path: path.to_owned(), why }));
        }
    }
    Store::open(medium, identity, options)
}

fn mapped_options(options: &Options) -> MappedOptions {
    MappedOptions {
        capacity: options.capacity,
        flush: FlushKind::Process,
        create: options.create,
        lock_wait: options.lock_wait,
        allocate_holes: options.allocate_holes,
        read_only: options.read_only,
    }
}

fn open_medium(path: &Path, mapped: &MappedOptions, options: &Options) -> Result<Mapped> {
    if options.durability == Durability::Volatile {
        return Ok(Mapped::anonymous(options.capacity, Pages::Huge, FlushKind::Process)?);
    }
    Mapped::open(path, mapped).map_err(|error| match error.kind() {
        ErrorKind::Io { source, .. }
            if !options.create && source.kind() == std::io::ErrorKind::NotFound =>
        {
            Error::NotFound { path: path.to_owned() }
        }
        _ => error.into(),
    })
}
