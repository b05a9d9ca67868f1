//! Snapshots and backups of a store that threads go on changing.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use evermap::{Durability, Evermap, MapOptions, Options, Order};

use crate::changes::{Change, SECONDS, THREADS};
use crate::check::{Counts, check};
use crate::result::Result;

/// How many snapshots, and backups, are taken.
const ROUNDS: usize = 3;

/// Changes the store at `path`, takes snapshots and backups meanwhile, and checks them. The store
/// must be a new one.
pub(crate) fn run(path: &Path, level: Durability) -> Result<()> {
    let db = open(path, level)?;
    drop(db.map(SECONDS, MapOptions::new())?);
    let (stops, made) = (&AtomicBool::new(false), &[const { AtomicU64::new(0) }; THREADS]);
    let result = std::thread::scope(|scope| {
        for (thread, made) in made.iter().enumerate() {
            let db = &db;
            scope.spawn(move || change(db, thread, made, stops));
        }
        let result = (0..ROUNDS).try_for_each(|round| copy(&db, path, level, round, made));
        stops.store(true, Relaxed);
        result
    });
    result?;
    let counts = check(&db, now(made))?;
    db.close()?;
    println!("COPIED {level} {}", counts.iter().sum::<u64>());
    Ok(())
}

fn open(path: &Path, level: Durability) -> Result<Evermap> {
    let options = Options::new().capacity(1 << 30).extent_size(64 << 10);
    Ok(Evermap::open(path, options.ordered(Order::Persistent).durability(level))?)
}

/// Changes the store until it is to stop.
fn change(db: &Evermap, thread: usize, made: &AtomicU64, stops: &AtomicBool) {
    for number in 0.. {
        if stops.load(Relaxed) {
            return;
        }
        Change::new(thread, number).make(db).expect("a change");
        made.store(number + 1, Release);
    }
}

fn now(made: &[AtomicU64; THREADS]) -> Counts {
    made.each_ref().map(|made| made.load(Acquire))
}

/// Waits until each thread has made some changes.
fn wait(made: &[AtomicU64; THREADS]) {
    let first = now(made);
    while now(made).iter().zip(first).any(|(now, first)| *now < first + 200) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes a snapshot and a backup.
fn copy(
    db: &Evermap,
    path: &Path,
    level: Durability,
    round: usize,
    made: &[AtomicU64; THREADS],
) -> Result<()> {
    wait(made);
    let before = now(made);
    let snapshot = db.snapshot()?;
    let counts = check(&snapshot, before)?;
    wait(made);
    // It stays as it is.
    if check(&snapshot, counts)? != counts {
        return Err("a snapshot has changed".into());
    }
    let (before, mut bytes) = (now(made), Vec::new());
    db.backup(&mut bytes)?;
    let mut to = path.as_os_str().to_owned();
    to.push(format!(".{round}"));
    let to = PathBuf::from(to);
    evermap::restore(&mut [&mut &bytes[..]], &to)?;
    let restored = open(&to, level)?;
    check(&restored, before)?;
    restored.close()?;
    Ok(std::fs::remove_file(to)?)
}
