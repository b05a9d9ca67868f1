//! Opening a store with a log, checking it, and changing it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evermap::{Durability, Evermap, MapOptions, Options, Order};

use crate::changes::{Change, SECONDS, THREADS};
use crate::check::{Counts, check};
use crate::ends::{End, Moment};
use crate::result::Result;

/// Small, so that there are checkpoints all the time.
const CHECKPOINT_BYTES: u64 = 128 << 10;

/// Where a store is.
pub(crate) struct Place {
    /// The working copy.
    pub(crate) copy: PathBuf,
    /// The folder of the log.
    pub(crate) folder: PathBuf,
}

impl Place {
    pub(crate) fn new(copy: impl Into<PathBuf>, folder: impl Into<PathBuf>) -> Self {
        Place { copy: copy.into(), folder: folder.into() }
    }

    /// Opens or creates the store.
    pub(crate) fn open(&self) -> Result<Evermap> {
        let options = Options::new()
            .capacity(1 << 30)
            .extent_size(64 << 10)
            .ordered(Order::Persistent)
            .durability(Durability::Log)
            .log_in_memory(true)
            .checkpoint_bytes(CHECKPOINT_BYTES)
            .log_folder(&self.folder)
            .lock_wait(Duration::from_secs(60));
        Ok(Evermap::open(&self.copy, options)?)
    }
}

/// How long a store is changed.
pub(crate) struct Until {
    /// The number of changes of each thread, if it does not go on for ever.
    pub(crate) changes: Option<u64>,
    /// How many changes of a thread are acknowledged by one line.
    pub(crate) per_line: u64,
}

/// Opens a store, checks it, and changes it until it was changed enough or everything has ended.
pub(crate) fn run(place: &Place, until: &Until) -> Result<()> {
    let mut end = End::from_environment()?;
    if let Some(end) = end.take_if(|end| end.is_in(Moment::Rebuild)) {
        end.when_changed(vec![beside(&place.copy, ".rebuilt")]);
    }
    let db = place.open()?;
    println!("FIRST {} records", db.default_map().records().value);
    let found = check(&db, [0; THREADS])?;
    drop(db.map(SECONDS, MapOptions::new())?);
    found.iter().enumerate().for_each(|(thread, count)| println!("CHECKED {thread} {count}"));
    if let Some(end) = end.take_if(|end| end.is_in(Moment::Commit)) {
        end.in_commit(&db);
    }
    if let Some(end) = end.take_if(|end| end.is_in(Moment::Checkpoint)) {
        let files = ["image", "sums", "control"];
        end.when_changed(files.map(|name| place.folder.join(name)).into());
    }
    change(&db, found, until)?;
    println!("CLOSING");
    if let Some(end) = end {
        end.after_rounds();
    }
    db.close()?;
    println!("CLOSED");
    Ok(())
}

fn change(db: &Evermap, found: Counts, until: &Until) -> Result<()> {
    let has_failed = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = found.iter().enumerate().map(|(thread, &first)| {
            scope.spawn(move || {
                let last = until.changes.map_or(u64::MAX, |changes| first + changes);
                let result = (first..last)
                    .take_while(|_| !has_failed.load(Ordering::Relaxed))
                    .try_for_each(|number| one(db, thread, number, until));
                has_failed.fetch_or(Result::is_err(&result), Ordering::Relaxed);
                // Errors of other threads cannot be sent to this one.
                result.map_err(|error: Box<dyn std::error::Error>| error.to_string())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(())
}

fn one(db: &Evermap, thread: usize, number: u64, until: &Until) -> Result<()> {
    Change::new(thread, number).make(db)?;
    if (number + 1).is_multiple_of(until.per_line) {
        println!("ACK {thread} {}", number + 1);
    }
    Ok(())
}

/// Returns the path with something after its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes a backup of a store.
pub(crate) fn backup(place: &Place, to: &Path) -> Result<()> {
    let db = place.open()?;
    db.backup(&mut File::create(to)?)?;
    Ok(db.close()?)
}

/// Makes a store at `to` of a log, if `from` is a folder, or of a backup.
pub(crate) fn restore(from: &Path, to: &Path) -> Result<()> {
    if let Some(end) = End::from_environment()? {
        end.when_changed(vec![beside(to, &format!(".restore-{}", std::process::id())), to.into()]);
    }
    match from.is_dir() {
        true => _ = evermap::restore_log(from, to, None)?,
        false => _ = evermap::restore(&mut [&mut File::open(from)?], to)?,
    }
    Ok(())
}
