//! Shows how much a store with a log takes while it is changed for a long time: `churn FOLDER
//! LOG_FOLDER [MINUTES [CHANGES_PER_SECOND [RECORDS]]]`.
//!
//! Two threads put values of 16 bytes to 8 KiB, and remove a third of what they meet, each change
//! durable before the next. Prints a line of comma-separated values every five seconds, of which
//! `docs/pictures/churn.py` makes a picture.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evermap::{Durability, Evermap, Map, Options};

mod keys;

use keys::key;

const THREADS: u64 = 2;
const VALUE_MAX: u64 = 8 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        arguments.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let usage = "usage: churn FOLDER LOG_FOLDER [MINUTES [CHANGES_PER_SECOND [RECORDS]]]";
    let [folder, log_folder, ..] = &arguments[..] else { return Err(usage.into()) };
    let (path, log) = (Path::new(folder).join("churn.store"), Path::new(log_folder));
    let (minutes, rate, records) = (number(2, 60)?, number(3, 4000)?, number(4, 100_000)?);
    let options = Options::new().durability(Durability::Log).log_folder(log).log_in_memory(true);
    let db = Evermap::open(&path, options)?;
    let map = db.default_map();
    let (changes, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    println!("seconds,changes,records,file_mib,log_mib,image_mib,checkpoints");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, changes, stop) = (&map, &changes, &stop);
            scope.spawn(move || {
                change(map, thread, records, rate / THREADS, changes, stop).expect("a change");
            });
        }
        let began = Instant::now();
        let shown = (0..=minutes * 12).try_for_each(|line| {
            let due = began + Duration::from_secs(line * 5);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            show(&db, log, began.elapsed(), changes.load(Relaxed))
        });
        stop.store(true, Relaxed);
        shown
    })?;
    drop(map);
    db.close()?;
    std::fs::remove_file(&path)?;
    Ok(std::fs::remove_dir_all(log)?)
}

/// Changes the keys of one thread, at `rate` changes a second at most.
fn change(
    map: &Map,
    thread: u64,
    records: u64,
    rate: u64,
    changes: &AtomicU64,
    stop: &AtomicBool,
) -> evermap::Result<()> {
    let value = vec![7; VALUE_MAX as usize];
    let began = Instant::now();
    let mut random = 0x9e37_79b9_7f4a_7c15 + thread;
    for done in 1.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let key = key((random >> 32) % (records / THREADS) * THREADS + thread);
        if !random.is_multiple_of(3) || map.remove(key)?.is_none() {
            // Most values are short: each length is half as frequent as half of it.
            let most = VALUE_MAX >> (random % 7);
            map.put(key, &value[..(16 + (random >> 8) % most).min(VALUE_MAX) as usize])?;
        }
        changes.fetch_add(1, Relaxed);
        if stop.load(Relaxed) {
            break;
        }
        let due = began + Duration::from_secs(1) * done / rate as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn show(db: &Evermap, log: &Path, time: Duration, changes: u64) -> Result<(), Box<dyn Error>> {
    let (mut segments, mut image) = (0, 0);
    for entry in std::fs::read_dir(log)? {
        let entry = entry?;
        let Ok(stat) = entry.metadata() else { continue };
        let bytes = std::os::unix::fs::MetadataExt::blocks(&stat) * 512;
        let is_segment = entry.path().extension().is_some_and(|end| end == "redo");
        *(if is_segment { &mut segments } else { &mut image }) += bytes;
    }
    let stat = db.stat();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{:.0},{changes},{},{:.1},{:.1},{:.1},{}",
        time.as_secs_f64(),
        db.default_map().len(),
        mib(stat.file_bytes),
        mib(segments),
        mib(image),
        db.log_stat().map_or(0, |stat| stat.checkpoints),
    );
    Ok(())
}
