//! A store in a file, with the upkeep in the background.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use evermap_pm::fork::ForkDetector;
use evermap_pm::medium::{FlushKind, Mapped, MappedOptions, Pages};
use evermap_pm::region::OnSuspect;
use evermap_pm::sync::Mutex;
use evermap_pm::{ErrorKind, Medium};

use crate::error::pm;
use crate::ordered::{self, Crew};
use crate::store::Origin;
use crate::{Durability, Error, Options, Result, Store};

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
pub struct Evermap(Arc<Owner>);

struct Owner {
    store: Arc<Store<Mapped>>,
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
    /// * [`Error::Pm`] or [`Error::Open`] with `InUse` while another process has it, `NotAStore`,
    ///   `NewerFormat`, `Damaged`, `Suspect` (see [`Options::on_suspect`]), `FileSystem`, `Config`, `NoSpace`
    ///   or `Io`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let mut store = open_store(path, &options).map_err(|error| match error {
            Error::NotFound { .. } => Error::NotFound { path: path.to_owned() },
            error => error.at(path),
        })?;
        let medium = store.pool.medium();
        store.origin = Origin {
            path: medium.path().map(Path::to_owned),
            file_system: medium.filesystem().to_owned(),
            ..store.origin
        };
        let (store, fork) = (Arc::new(store), ForkDetector::new()?);
        let owner = Owner { store, threads: Mutex::default(), fork };
        let started = owner.start_threads();
        started.map_err(|source| evermap_pm::Error::io("starting a thread", path, source))?;
        Ok(Evermap(Arc::new(owner)))
    }

    /// Closes the store for all handles: waits for running operations and for [readers](crate::Reader), and
    /// leaves everything in order. Later operations through other handles answer [`Error::Closed`]. The
    /// file can be opened again as soon as the last handle is dropped.
    ///
    /// The calling thread must not hold a reader of another handle: it would wait for itself.
    ///
    /// # Errors
    /// See [`Store::close`].
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl Deref for Evermap {
    type Target = Store<Mapped>;

    #[inline(always)]
    fn deref(&self) -> &Store<Mapped> {
        &self.0.store
    }
}

impl std::fmt::Debug for Evermap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evermap").field("path", &self.origin.path).finish_non_exhaustive()
    }
}

impl Owner {
    fn start_threads(&self) -> std::io::Result<()> {
        self.store.upkeep.set_kept();
        self.start("evermap-keeper", Store::keep_up)?;
        if self.store.wants_ordered_built() {
            self.start("evermap-order", |store| {
                // Whatever goes wrong is in `stat`, and every scan says so.
                let _ = store.build_ordered(ordered::usual_threads());
            })?;
        }
        if self.store.wants_crew() {
            let crew = Arc::new(Crew::new());
            for number in 0..crew.size() {
                let crew = crew.clone();
                self.start("evermap-notices", move |store| store.work_on_notices(&crew, number))?;
            }
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
        self.stop_threads();
        self.store.close()
    }

    fn stop_threads(&self) {
        self.store.upkeep.stop();
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
        } else {
            let _ = self.close();
        }
    }
}

fn open_store(path: &Path, options: &Options) -> Result<Store<Mapped>> {
    let medium = open_medium(path, options)?;
    let identity = medium.identity();
    if options.on_suspect != OnSuspect::Discard {
        return Store::open(medium, identity, options);
    }
    // Opened as if suspect files were refused, so that those alone are started anew.
    let refusing = options.clone().on_suspect(OnSuspect::Refuse);
    match Store::open(medium, identity, &refusing) {
        Err(error) if matches!(error.kind(), Some(ErrorKind::Suspect { .. })) => {
            Store::create(open_medium(path, options)?, identity, options)
        }
        opened => opened,
    }
}

fn open_medium(path: &Path, options: &Options) -> Result<Mapped> {
    if options.durability == Durability::Volatile {
        return Ok(Mapped::anonymous(options.capacity, Pages::Huge, FlushKind::Process)?);
    }
    let mapped = MappedOptions {
        capacity: options.capacity,
        flush: FlushKind::Process,
        create: options.create,
        lock_wait: options.lock_wait,
        ..Default::default()
    };
    let medium = Mapped::open(path, &mapped).map_err(|error| match error.kind() {
        ErrorKind::Io { source, .. }
            if !options.create && source.kind() == std::io::ErrorKind::NotFound =>
        {
            Error::NotFound { path: path.to_owned() }
        }
        _ => error.into(),
    })?;
    // A file of less than a page looks empty to the medium.
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    if medium.len() == 0 && bytes > 0 {
        let why = format!("it has only {bytes} bytes");
        return Err(pm(ErrorKind::NotAStore { path: path.to_owned(), why }));
    }
    Ok(medium)
}
