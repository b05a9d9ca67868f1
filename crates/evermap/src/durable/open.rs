//! Opening a store that has a log.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap_pm::Medium;
use evermap_pm::medium::{Mapped, MappedOptions, Marks, memory_file};
use evermap_pm::redo::{Directory, LogPosition, PageTarget, Reader, RedoLog, RedoOptions, rebuild};
use evermap_pm::region::copy::Peeked;
use evermap_pm::region::{OnSuspect, Region};

use crate::db::Origin;
use crate::error::storage;
use crate::file::{mapped_options, open_mapped, open_plain, open_view};
use crate::holder::with_suffix;
use crate::instants::make_store;
use crate::log::StoreLog;
use crate::{Durability, Error, ErrorKind, Evermap, Options, Result};

const MARKS: &str = "marks";
const LOCK: &str = "lock";
const CONTROL: &str = "control";

/// Returns the folder of the log of the store at `path`.
fn folder_of(path: &Path, options: &Options) -> PathBuf {
    options.log_folder.clone().unwrap_or_else(|| with_suffix(path, ".log"))
}

/// Refuses to write to a store beside its log, which would not know of it.
pub(crate) fn ensure_without_log(path: &Path, options: &Options) -> Result<()> {
    let folder = folder_of(path, options);
    match folder.join(CONTROL).exists() {
        true => Err(config(format!(
            "the store has a log, in {}: open it with durability `log`; or remove that folder, if \
             the store survives loss of power no more",
            folder.display()
        ))),
        false => Ok(()),
    }
}

/// Opens the store at `path` with its log.
pub(crate) fn open_logged(path: &Path, options: &Options) -> Result<Evermap> {
    // A file that cannot be trusted is rebuilt.
    let options = &options.clone().on_suspect(OnSuspect::Refuse);
    let opening = Opening { path, options, folder: folder_of(path, options) };
    opening.open()
}

struct Opening<'a> {
    path: &'a Path,
    options: &'a Options,
    folder: PathBuf,
}

/// What is wrong with a working copy.
enum Unusable {
    /// It is not what the last process left: the log has more. It is the store with this uuid, if
    /// that can be read.
    Outdated(Option<[u64; 2]>),
    /// It was changed by a process that did not write to the log: it has more than the log.
    Unlogged,
}

impl Opening<'_> {
    fn open(&self) -> Result<Evermap> {
        self.complete_replacement()?;
        self.ensure_durable()?;
        Directory::create(&self.folder)?;
        let lock = self.lock()?;
        if !self.has_log()? {
            self.create_store()?;
            self.create_log(&self.folder)?;
        }
        let (opened, log) = match self.open_working_copy()? {
            Ok(opened) => {
                let place = opened.file.pool.medium().durable_place();
                let log = self.open_log(place.map(LogPosition::from_words))?;
                (opened, log)
            }
            Err(Unusable::Outdated(found)) => {
                let log = self.open_log(None)?;
                match found {
                    Some(uuid) => self.ensure_same(uuid, &log)?,
                    None => self.set_aside()?,
                }
                self.rebuild()?;
                let opened = self.open_working_copy()?.map_err(|_| {
                    config("the store that was rebuilt from the log is not usable".into())
                })?;
                (opened, log)
            }
            Err(Unusable::Unlogged) => {
                self.replace_log()?;
                drop(lock);
                return self.open();
            }
        };
        self.ensure_same(opened.file.pool.region().uuid(), &log)?;
        let store_log = StoreLog::new(opened.file.pool.clone(), log, self.options.acknowledge);
        let _ = opened.file.log.set(Arc::new(store_log));
        let _ = opened.file.kept.set(lock);
        Ok(opened)
    }

    /// Refuses a folder in memory, where the log would be lost with the power.
    fn ensure_durable(&self) -> Result<()> {
        let exists = self.folder.exists();
        let parent = self.folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        let place = if exists { &self.folder } else { parent.unwrap_or(Path::new(".")) };
        if self.options.log_in_memory || !Directory::open(place)?.is_in_memory() {
            return Ok(());
        }
        Err(config(format!(
            "{} would be in memory, where a loss of power takes the log too: choose a folder on a \
             disk for the log (`log_folder`, `--log-folder`), or the durability `process`",
            self.folder.display()
        )))
    }

    /// Refuses a log that is not that of the store with this uuid.
    fn ensure_same(&self, uuid: [u64; 2], log: &RedoLog) -> Result<()> {
        match uuid == log.uuid() {
            true => Ok(()),
            false => Err(config(format!(
                "the log in {} is that of another store; move one of the two away",
                self.folder.display()
            ))),
        }
    }

    /// Renames a file that is about to be replaced, and of which it is not known what it is.
    fn set_aside(&self) -> Result<()> {
        if std::fs::metadata(self.path).is_ok_and(|file| file.len() > 0) {
            let aside = with_suffix(self.path, ".replaced");
            std::fs::rename(self.path, aside).map_err(self.io("renaming an unreadable store"))?;
        }
        Ok(())
    }

    fn io(&self, action: &'static str) -> impl Fn(io::Error) -> Error {
        let folder = self.folder.clone();
        move |source| evermap_pm::Error::io(action, &folder, source).into()
    }

    /// Takes the lock of the log, which is there even if the working copy is not.
    fn lock(&self) -> Result<File> {
        let path = self.folder.join(LOCK);
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(self.io("opening the lock of the log"))?;
        let until = std::time::Instant::now() + self.options.lock_wait;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(std::fs::TryLockError::WouldBlock) if std::time::Instant::now() < until => {
                    // A process that was killed releases it when its memory is gone.
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    let path = self.path.to_owned();
                    return Err(storage(evermap_pm::ErrorKind::InUse {
                        path,
                        pid: 0,
                        is_ending: false,
                    }));
                }
                Err(std::fs::TryLockError::Error(error)) => {
                    return Err(self.io("locking the log")(error));
                }
            }
        }
    }

    fn has_log(&self) -> Result<bool> {
        Ok(RedoLog::exists(&Directory::open(&self.folder)?)?)
    }

    /// Opens the log, which is durable up to where it is `known`.
    fn open_log(&self, known: Option<LogPosition>) -> Result<RedoLog> {
        let storage = Arc::new(Directory::open(&self.folder)?);
        Ok(RedoLog::open_after(storage, self.redo_options(), known)?)
    }

    fn redo_options(&self) -> RedoOptions {
        RedoOptions {
            checkpoint_bytes: self.options.checkpoint_bytes,
            segment_bytes: (self.options.checkpoint_bytes / 16)
                .clamp(1 << 20, 64 << 20)
                .next_multiple_of(4096),
            keep_log: self.options.keep_log,
        }
    }

    /// Creates the store, unless there is one, and leaves it whole.
    fn create_store(&self) -> Result<()> {
        let plain = self.options.clone().durability(Durability::Process);
        open_plain(self.path, &plain)?.close()
    }

    /// Creates a log of the store, which is whole, in a folder that exists.
    fn create_log(&self, folder: &Path) -> Result<()> {
        let options = mapped_options(&self.options.clone().create(false));
        let medium = open_mapped(self.path, &options, self.options)?;
        let Peeked { uuid, .. } = Region::peek(&medium, medium.identity())?;
        let copy = |offset: u64, bytes: &mut [u8]| {
            let cells = medium.slice(offset, bytes.len() as u64 / 8).expect("inside the file");
            medium.read_bytes(cells, bytes);
        };
        let storage = Arc::new(Directory::open(folder)?);
        // Before there is a log, so that there is none with the marks of another one.
        make_marks(folder, &medium)?;
        RedoLog::create(storage, uuid, medium.len(), self.redo_options(), copy)?;
        Ok(())
    }

    /// Replaces a log that lacks what the store has. There is a whole one at any moment.
    fn replace_log(&self) -> Result<()> {
        let (new, old) = (with_suffix(&self.folder, ".new"), with_suffix(&self.folder, ".old"));
        let io = self.io("replacing a log that is outdated");
        for left in [&new, &old] {
            remove_folder(left).map_err(&io)?;
        }
        Directory::create(&new)?;
        self.create_log(&new)?;
        std::fs::rename(&self.folder, &old).map_err(&io)?;
        std::fs::rename(&new, &self.folder).map_err(&io)?;
        // Makes the names durable.
        Directory::create(&self.folder)?;
        remove_folder(&old).map_err(&io)
    }

    /// Completes a replacement of the log that was interrupted between its two renames.
    fn complete_replacement(&self) -> Result<()> {
        let new = with_suffix(&self.folder, ".new");
        if !self.folder.exists() && new.join(CONTROL).exists() {
            let io = self.io("replacing a log that is outdated");
            std::fs::rename(&new, &self.folder).map_err(io)?;
        }
        Ok(())
    }

    /// Opens the working copy, if it has what the last process left.
    fn open_working_copy(&self) -> Result<std::result::Result<Evermap, Unusable>> {
        let options = self.options.clone().create(false);
        let medium = match open_mapped(self.path, &mapped_options(&options), &options) {
            Err(Error::NotFound { .. }) => return Ok(Err(Unusable::Outdated(None))),
            opened => opened?,
        };
        if Region::is_blank(&medium) {
            return Ok(Err(Unusable::Outdated(None)));
        }
        let peeked = match Region::peek(&medium, medium.identity()) {
            Err(error) if is_unusable(&error) => return Ok(Err(Unusable::Outdated(None))),
            peeked => peeked?,
        };
        let Peeked { uuid, openings: opening, is_whole } = peeked;
        let path = self.folder.join(MARKS);
        let Some(marks) = Marks::open(&path, uuid, opening, medium.capacity())? else {
            return Ok(Err(match Marks::opening(&path, uuid)? {
                // Only if it is whole: loss of power leaves older marks than headers, too.
                Some(marked) if marked < opening && is_whole => Unusable::Unlogged,
                _ => Unusable::Outdated(Some(uuid)),
            }));
        };
        medium.record_changes(marks)?;
        let identity = medium.identity();
        let origin = Origin::of_mapped(&medium, Durability::Log);
        match Evermap::open_at(medium, identity, &options, origin) {
            Err(error) if error.is_damaged() || error.kind() == ErrorKind::Suspect => {
                Ok(Err(Unusable::Outdated(Some(uuid))))
            }
            Err(error) => Err(error),
            Ok(opened) => {
                let pool = &opened.file.pool;
                pool.medium().set_marks_opening(pool.generation());
                // Before anything is acknowledged: with the old ones, an older working copy that
                // was closed would seem to be the one that loss of power has left.
                pool.medium().sync_marks()?;
                Ok(Ok(opened))
            }
        }
    }

    /// Replaces the working copy by what image and log have.
    fn rebuild(&self) -> Result<()> {
        let temporary = with_suffix(self.path, ".rebuilt");
        let io = |source| evermap_pm::Error::io("rebuilding", &temporary, source);
        let file = create_private(&temporary).map_err(io)?;
        let storage = Directory::open(&self.folder)?;
        let mut progress = |done, total| self.options.on_progress.report(done, total);
        rebuild(&storage, &mut Target(&file), None, &mut progress)?;
        let medium =
            Mapped::open(&temporary, &mapped_options(&self.options.clone().create(false)))?;
        Region::adopt(&medium, medium.identity(), false)?;
        // The marks of a process that power loss has ended mean nothing.
        make_marks(&self.folder, &medium)?;
        drop(medium);
        std::fs::rename(&temporary, self.path).map_err(io)?;
        Ok(())
    }
}

/// Makes marks for the region in `medium`, by which nothing is to be logged.
fn make_marks(folder: &Path, medium: &Mapped) -> Result<Marks> {
    let Peeked { uuid, openings, .. } = Region::peek(medium, medium.identity())?;
    Ok(Marks::create(&folder.join(MARKS), uuid, openings, medium.capacity())?)
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_unusable(error: &evermap_pm::Error) -> bool {
    use evermap_pm::ErrorKind::{Damaged, NotAStore};
    matches!(error.kind(), Damaged { .. } | NotAStore { .. })
}

fn create_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// A file that a region is rebuilt in.
struct Target<'a>(&'a File);

impl PageTarget for Target<'_> {
    fn set_len(&mut self, bytes: u64) -> evermap_pm::Result<()> {
        let io = |source| evermap_pm::Error::io("rebuilding", "file".as_ref(), source);
        let before = self.0.metadata().map_err(io)?.len();
        // Shrunk first, because what is added must be zero.
        self.0.set_len(bytes.min(before)).and_then(|()| self.0.set_len(bytes)).map_err(io)
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> evermap_pm::Result<()> {
        self.0
            .read_exact_at(bytes, offset)
            .map_err(|source| evermap_pm::Error::io("rebuilding", "file".as_ref(), source))
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> evermap_pm::Result<()> {
        self.0
            .write_all_at(bytes, offset)
            .map_err(|source| evermap_pm::Error::io("rebuilding", "file".as_ref(), source))
    }
}

/// Opens what the log of the store at `path` has, in the memory of this process. Returns `None` if
/// there is no log. It may be that of a store that another process writes to.
pub(crate) fn read_logged(path: &Path, options: &Options) -> Result<Option<Evermap>> {
    let folder = folder_of(path, options);
    if !folder.join(CONTROL).exists() {
        return Ok(None);
    }
    let reader = Reader::open(Box::new(Directory::open_read_only(&folder)?))?;
    let (file, name) = memory_file()?;
    let mut progress = |done, total| options.on_progress.report(done, total);
    let rebuilt = reader.load(&mut Target(&file), &mut progress)?;
    let medium = Mapped::open(&name, &MappedOptions::default())?;
    Region::adopt(&medium, medium.identity(), false)?;
    drop(medium);
    let reading = MappedOptions { read_only: true, ..MappedOptions::default() };
    let medium = Mapped::open(&name, &reading)?;
    let origin = Origin {
        path: Some(path.to_owned()),
        file_system: medium.filesystem().to_owned(),
        durability: Durability::Log,
        instant: None,
    };
    let time = UNIX_EPOCH + Duration::from_nanos(rebuilt.time);
    let db = open_view(medium, options, origin, time)?;
    // Its path leads through the descriptor.
    let _ = db.file.kept.set(file);
    Ok(Some(db))
}

/// Makes a store at `path` of what the log in `folder` has: all of it, or what it had at the time
/// `until`. There must be no file at `path`. Returns the time of the last change in it.
///
/// The folder is not changed, and may be that of a store that is in use. The image in it is as old
/// as the last checkpoint: for an earlier time, take an earlier copy of the folder, and add the
/// segments that were [kept](Options::keep_log) since then.
///
/// # Errors
/// [`Error::Storage`] with `NotAStore` if there is no log, `Config` if the image is later than
/// `until`, `Damaged`, `Io` if there is a file at `path`, or writing fails. There is nothing at
/// `path` then.
pub fn restore_log(
    folder: impl AsRef<Path>,
    path: impl AsRef<Path>,
    until: Option<SystemTime>,
) -> Result<SystemTime> {
    let path = path.as_ref();
    let folder = Directory::open_read_only(folder.as_ref())?;
    let until = until.map(|time| {
        time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().min(u64::MAX.into()) as u64
    });
    let mut time = 0;
    make_store(path, &mut |file| {
        time = rebuild(&folder, &mut Target(file), until, &mut |_, _| {})?.time;
        Ok(())
    })?;
    Ok(UNIX_EPOCH + Duration::from_nanos(time))
}

fn config(text: String) -> crate::Error {
    storage(evermap_pm::ErrorKind::Config(text))
}
