//! Opening a store: which way is taken.

use std::path::Path;

use evermap_pm::medium::{FlushKind, Mapped, Pages};
use evermap_pm::region::OnSuspect;

use crate::db::Origin;
use crate::durable::{ensure_without_log, open_logged, read_logged};
use crate::error::storage;
use crate::file::{mapped_options, open_mapped, open_plain, open_whole};
use crate::instants::open_beside;
use crate::{Durability, Error, ErrorKind, Evermap, Options, Result};

impl Evermap {
    /// Opens the file at `path`, or creates it. Takes about a millisecond, whatever the size of the
    /// file and however it was stopped; longer while a previous process is dying.
    ///
    /// ```
    /// use evermap::{Evermap, MapOptions, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let db = Evermap::open(&path, Options::new())?;
    /// let users = db.map("users", MapOptions::new())?;
    /// users.put(b"1", b"ann")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::NotFound`] if there is no file and [`Options::create`] is off;
    /// * [`Error::Storage`] with one of [`InUse`](ErrorKind::InUse) (another process has the file
    ///   open), [`NotAStore`](ErrorKind::NotAStore), [`NewerFormat`](ErrorKind::NewerFormat),
    ///   [`Damaged`](ErrorKind::Damaged), [`Suspect`](ErrorKind::Suspect) (see
    ///   [`Options::on_suspect`]), [`FileSystem`](ErrorKind::FileSystem),
    ///   [`Config`](ErrorKind::Config) (see [`Options::durability`]),
    ///   [`NoSpace`](ErrorKind::NoSpace) and [`Io`](ErrorKind::Io).
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        open_file(path, &options)
            .and_then(Self::with_background)
            .map_err(|error| error.with_path(path))
    }

    /// Creates an empty store in memory, without a file. It is gone when the last handle is
    /// dropped.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Storage`] with [`Config`](ErrorKind::Config), [`NoSpace`](ErrorKind::NoSpace) or
    /// [`Io`](ErrorKind::Io).
    pub fn in_memory(options: Options) -> Result<Self> {
        if let Durability::Adr | Durability::Eadr | Durability::Log = options.durability {
            let text = format!("durability `{}` needs a file; use `open`", options.durability);
            return Err(storage(evermap_pm::ErrorKind::Config(text)));
        }
        let medium = Mapped::anonymous(options.capacity, Pages::Huge, FlushKind::Process)?;
        let (identity, origin) =
            (medium.identity(), Origin::of_mapped(&medium, Durability::Volatile));
        Self::with_background(Evermap::create_at(medium, identity, &options, origin)?)
    }
}

#[track_caller]
fn open_file(path: &Path, options: &Options) -> Result<Evermap> {
    if options.durability == Durability::Volatile {
        let text = "durability `volatile` has no file; use `in_memory`".into();
        return Err(storage(evermap_pm::ErrorKind::Config(text)));
    }
    if options.read_only {
        return open_read_only(path, options);
    }
    if options.durability == Durability::Log {
        return open_logged(path, options);
    }
    ensure_without_log(path, options)?;
    open_plain(path, options)
}

/// Opens the store in a file, and leaves the file as it is.
#[track_caller]
fn open_read_only(path: &Path, options: &Options) -> Result<Evermap> {
    if options.on_suspect == OnSuspect::Discard {
        let text = "read_only contradicts on_suspect = discard; leave one of them out".into();
        return Err(storage(evermap_pm::ErrorKind::Config(text)));
    }
    let options = options.clone().create(false).durability(Durability::Process);
    let medium = match open_mapped(path, &mapped_options(&options), &options) {
        // The process that writes to it may offer copies.
        Err(error) if options.beside_writers && error.kind() == ErrorKind::InUse => {
            return match open_beside(path, &options)? {
                Some(copy) => Ok(copy),
                None => read_logged(path, &options)?.ok_or(error),
            };
        }
        Err(error @ Error::NotFound { .. }) => {
            return read_logged(path, &options)?.ok_or(error);
        }
        opened => opened?,
    };
    let identity = medium.identity();
    // What opening stores goes to private pages, and so does what is recovered on the way.
    match open_whole(path, medium, identity, &options) {
        Err(error) if error.is_damaged() || error.kind() == ErrorKind::Suspect => {
            read_logged(path, &options)?.ok_or(error)
        }
        opened => opened,
    }
}
