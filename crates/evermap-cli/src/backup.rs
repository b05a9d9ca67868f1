//! `evermap backup` and `evermap restore`

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap::{Backup as Written, BackupId, ErrorKind, fetch_backup};

use crate::failure::Failure;
use crate::open::StoreArguments;

const BUFFER: usize = 1 << 20;

/// Write a copy of a store, which may be in use
///
/// The copy has the state of one moment: what was acknowledged before it, and of a batch everything
/// or nothing. If another process has the store open, that process makes the copy: `evermap serve`
/// does, and programs that set `Options::offers_copies`.
#[derive(clap::Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// File to write, or `-` for standard output; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write only what was changed since this backup, if the store has not been closed since then
    #[arg(long, value_name = "FILE")]
    since: Option<PathBuf>,
}

/// Make a store of a backup and of those that add to it, or of the log of a store
///
/// The store is a new one. It opens like one whose process was killed at that moment.
#[derive(clap::Args)]
pub(crate) struct Restore {
    /// File of the new store; it must not exist
    #[arg(value_name = "STORE")]
    path: PathBuf,
    /// The backups in their order: a whole one, then those that add to it; `-` is standard input
    #[arg(value_name = "FILE", required_unless_present = "log", conflicts_with = "log")]
    files: Vec<PathBuf>,
    /// Folder of a log, of a store with --durability log
    #[arg(long, value_name = "FOLDER")]
    log: Option<PathBuf>,
    /// With --log: the time whose state is restored, in seconds since 1970, as 1800000000.5
    /// [default: the end of the log]
    #[arg(long, value_name = "SECONDS", requires = "log", value_parser = parse_time)]
    until: Option<SystemTime>,
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds
        .and_then(|since| UNIX_EPOCH.checked_add(since))
        .ok_or_else(|| "a time is a number of seconds since 1970, as `date +%s` prints it".into())
}

impl Backup {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let since = self.since.as_deref().map(id_of).transpose()?;
        let written = match self.file.as_os_str() == "-" {
            true => self.write_to_output(since)?,
            false => self.write_to_file(since)?,
        };
        let kind = if written.is_incremental() { "what was changed" } else { "everything" };
        let (bytes, whole) = (written.bytes(), written.store_bytes());
        if self.since.is_some() && !written.is_incremental() {
            crate::failure::warn("the store was closed since that backup; this one is a whole one");
        }
        if self.file.as_os_str() != "-" {
            println!("wrote {kind}: {bytes} bytes of a store of {whole}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write_to_output(&self, since: Option<BackupId>) -> Result<Written, Failure> {
        let out = io::stdout().lock();
        if out.is_terminal() {
            return Err(Failure::other("a backup is no text; redirect it, or name a file"));
        }
        self.write(since, &mut BufWriter::with_capacity(BUFFER, out))
    }

    fn write_to_file(&self, since: Option<BackupId>) -> Result<Written, Failure> {
        let path = &self.file;
        let failed = |source| Failure::Io { what: path.display().to_string(), source };
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let mut out = BufWriter::with_capacity(BUFFER, file);
        let written = self.write(since, &mut out).and_then(|written| {
            out.get_ref().sync_all().map_err(failed)?;
            Ok(written)
        });
        if written.is_err() {
            // A part of a backup is of no use.
            let _ = std::fs::remove_file(path);
        }
        written
    }

    fn write(&self, since: Option<BackupId>, out: &mut dyn Write) -> Result<Written, Failure> {
        let path = self.store.path();
        match self.store.open_unshared() {
            Ok(db) => Ok(db.backup_since(since, out)?),
            Err(Failure::Store(error)) if error.kind() == ErrorKind::InUse => {
                fetch_backup(path, since, out).map_err(|source| match source.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        Failure::other(format!("{error}; and that process offers no copies"))
                    }
                    _ => Failure::Io { what: "copying a store that is in use".into(), source },
                })
            }
            Err(failure) => Err(failure),
        }
    }
}

impl Restore {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        if let Some(folder) = &self.log {
            let time = evermap::restore_log(folder, &self.path, self.until)?;
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            println!("restored the state of {}.{:03}", since.as_secs(), since.subsec_millis());
            return Ok(ExitCode::SUCCESS);
        }
        let mut files = self.files.iter().map(|file| open(file)).collect::<Result<Vec<_>, _>>()?;
        let mut copies: Vec<&mut dyn Read> = Vec::new();
        files.iter_mut().for_each(|file| copies.push(file));
        let restored = evermap::restore(&mut copies, &self.path)?;
        println!("restored a store of {} bytes", restored.store_bytes());
        Ok(ExitCode::SUCCESS)
    }
}

/// Opens a backup; `-` is standard input.
fn open(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::with_capacity(BUFFER, io::stdin().lock())));
    }
    let failed = |source| Failure::Io { what: path.display().to_string(), source };
    Ok(Box::new(BufReader::with_capacity(BUFFER, File::open(path).map_err(failed)?)))
}

/// Returns which state a backup has.
fn id_of(path: &Path) -> Result<BackupId, Failure> {
    let failed = |source| Failure::Io { what: path.display().to_string(), source };
    Written::read_id(&mut *open(path)?).map_err(failed)
}
