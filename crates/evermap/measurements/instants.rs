//! Measures snapshots, backups and logs: `instants FOLDER [RECORDS [VALUE_BYTES [LOG_FOLDER]]]`.
//!
//! Fills a store in `FOLDER`, takes snapshots of it, puts beside one, and backs it up. With a
//! folder for the log, fills another store with a log there, loses its file, and opens it again:
//! once with all of it in the image, which is copied with `cp` too, and once with all of it in the
//! log.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use evermap::{Acknowledge, Durability, Evermap, Map, Options};

mod keys;

use keys::key;

/// Puts that are measured at a time.
const PUTS: u64 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        arguments.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let usage = "usage: instants FOLDER [RECORDS [VALUE_BYTES [LOG_FOLDER]]]";
    let folder = Path::new(arguments.first().ok_or(usage)?);
    let (records, value) = (number(1, 1_000_000)?, vec![7; number(2, 256)? as usize]);
    measure_copies(folder, records, &value)?;
    match arguments.get(3) {
        Some(log) => {
            measure_log(folder, Path::new(log), records, &value)?;
            measure_redo(folder, Path::new(log), records, &value)
        }
        None => Ok(()),
    }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    println!("{what:<44} {:>10.3} ms", began.elapsed().as_secs_f64() * 1e3);
    result
}

/// Returns puts a second to keys in an order without a pattern.
fn put_rate(map: &Map, records: u64, value: &[u8], from: u64) -> f64 {
    let began = Instant::now();
    for number in from..from + PUTS {
        map.put(key(number.wrapping_mul(7_919) % records), value).expect("put");
    }
    PUTS as f64 / began.elapsed().as_secs_f64()
}

fn fill(map: &Map, records: u64, value: &[u8]) {
    (0..records).for_each(|number| map.put(key(number), value).expect("put"));
}

fn measure_copies(folder: &Path, records: u64, value: &[u8]) -> Result<(), Box<dyn Error>> {
    let path = folder.join("instants.store");
    let db = Evermap::open(&path, Options::new())?;
    let map = db.default_map();
    fill(&map, records, value);
    println!("store of {:.2} GiB", db.stat().file_bytes as f64 / f64::from(1 << 30));
    let rates: Vec<f64> =
        (0..5).map(|round| put_rate(&map, records, value, round * PUTS)).collect();
    println!("puts/s before any snapshot: {rates:.0?}");
    for _ in 0..5 {
        let snapshot = timed("snapshot", || db.snapshot())?;
        timed("first get of it", || snapshot.default_map().get(key(1)))?;
    }
    let snapshot = db.snapshot()?;
    // The same keys again and again, so that later rounds meet pages that were changed.
    let rates: Vec<f64> = (0..8).map(|_| put_rate(&map, records, value, 0)).collect();
    println!("puts/s beside a snapshot: {rates:.0?}");
    println!("memory of it: {:.1} MiB", snapshot.memory_bytes() as f64 / f64::from(1 << 20));
    drop(snapshot);
    let rates: Vec<f64> = (0..5).map(|_| put_rate(&map, records, value, 0)).collect();
    println!("puts/s after it: {rates:.0?}");
    let whole = timed("backup", || db.backup(&mut std::io::sink()))?;
    for number in 0..records / 100 {
        map.put(key(number * 100), value)?;
    }
    let next = timed("incremental backup of 1 % of the records", || {
        db.backup_since(Some(whole.id()), &mut std::io::sink())
    })?;
    println!("bytes: {} and {}", whole.bytes(), next.bytes());
    drop(map);
    db.close()?;
    Ok(std::fs::remove_file(path)?)
}

/// The options of a store with a log in that folder, and of one that acknowledges at once.
fn logged(log: &Path) -> (Options, Options) {
    let options = Options::new().durability(Durability::Log).log_folder(log).log_in_memory(true);
    (options.clone(), options.acknowledge(Acknowledge::Async(Duration::from_millis(10))))
}

fn cp(arguments: &[&str], from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let status = Command::new("cp").args(arguments).args([from, to]).status()?;
    if status.success() { Ok(()) } else { Err("cp failed".into()) }
}

fn measure_log(
    folder: &Path,
    log: &Path,
    records: u64,
    value: &[u8],
) -> Result<(), Box<dyn Error>> {
    let (path, log) = (folder.join("instants.logged"), log.join("instants.log"));
    let (options, later) = logged(&log);
    let db = Evermap::open(&path, later)?;
    let map = db.default_map();
    timed("fill with a log, async(10 ms)", || fill(&map, records, value));
    let rates: Vec<f64> =
        (0..5).map(|round| put_rate(&map, records, value, round * PUTS)).collect();
    println!("puts/s, async(10 ms): {rates:.0?}");
    timed("sync", || db.sync())?;
    println!("{:?}", db.log_stat());
    drop(map);
    db.close()?;
    timed("open after closing", || Evermap::open(&path, options.clone()))
        .and_then(Evermap::close)?;
    for _ in 0..3 {
        let copy = folder.join("instants.copy");
        timed("cp of the image", || cp(&["--sparse=always"], &log.join("image"), &copy))?;
        std::fs::remove_file(copy)?;
        std::fs::remove_file(&path)?;
        let db = timed("open after the file was lost", || Evermap::open(&path, options.clone()))?;
        timed("first get", || db.default_map().get(key(1)))?;
        db.close()?;
    }
    std::fs::remove_file(path)?;
    Ok(std::fs::remove_dir_all(log)?)
}

/// Rebuilds a store of which nothing is in the image.
fn measure_redo(
    folder: &Path,
    log: &Path,
    records: u64,
    value: &[u8],
) -> Result<(), Box<dyn Error>> {
    let path = folder.join("instants.logged");
    let [log, lost]: [PathBuf; 2] = ["instants.log", "instants.lost"].map(|name| log.join(name));
    let db = Evermap::open(&path, logged(&log).1.checkpoint_bytes(1 << 40))?;
    fill(&db.default_map(), records, value);
    db.sync()?;
    println!("{:?}", db.log_stat());
    // Until the next segment is ready.
    std::thread::sleep(Duration::from_secs(2));
    cp(&["-r"], &log, &lost)?;
    db.close()?;
    std::fs::remove_dir_all(&log)?;
    std::fs::rename(&lost, &log)?;
    std::fs::remove_file(&path)?;
    let began = Instant::now();
    let db = timed("open with all in the log", || Evermap::open(&path, logged(&log).0))?;
    println!("million records/s: {:.2}", records as f64 / began.elapsed().as_secs_f64() / 1e6);
    assert_eq!(db.default_map().get(key(records - 1))?.as_deref(), Some(value));
    db.close()?;
    std::fs::remove_file(path)?;
    Ok(std::fs::remove_dir_all(log)?)
}
