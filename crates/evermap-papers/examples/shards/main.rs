//! A sharded map whose owners are threads, or processes with a file each.
//!
//! ```sh
//! cargo run --release -p evermap-papers --example shards -- threads /dev/shm/shards 2 1000000
//! cargo run --release -p evermap-papers --example shards -- processes /dev/shm/shards 2 1000000
//! ```
//!
//! The arguments are a directory, the number of shards, and a number of records, which are stored
//! and read in batches. A directory that has shards is used further: by the same number of owners,
//! of either kind.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evermap_index::Visitor;
use evermap_papers::tranche::Config;
use evermap_pm::Pool;
use evermap_pm::medium::{Mapped, MappedOptions, Medium};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};

mod sharded;
#[cfg(test)]
mod tests;

use sharded::{Driver, Link, Owners, Place, Reply, Request, Shard, StreamLink, serve};

/// Records in a batch.
const BATCH: u64 = 1024;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, directory, rest @ ..] = &arguments[..] else {
        return Err("usage: shards threads|processes DIRECTORY SHARDS RECORDS".into());
    };
    let directory = Path::new(directory);
    let numbers = rest.iter().map(|number| number.parse()).collect::<Result<Vec<u64>, _>>()?;
    let (shards, records) = match (kind.as_str(), &numbers[..]) {
        // What this program starts for each shard.
        ("owner", &[number, shards]) => return own(directory, number as u16, shards as u16),
        ("threads" | "processes", &[shards, records]) => (u16::try_from(shards)?, records),
        _ => return Err("threads or processes; a number of shards, and one of records".into()),
    };
    std::fs::create_dir_all(directory)?;
    match kind.as_str() {
        "threads" => {
            let shards: Outcome<Vec<_>> =
                (0..shards).map(|number| open(directory, number, shards)).collect();
            let owners = Owners::start(shards?)?;
            run(&mut owners.driver(), records)?;
            for shard in owners.stop() {
                shard.ok_or("an owner has panicked")?.map().pool().close()?;
            }
        }
        _ => {
            let processes: Outcome<Vec<_>> =
                (0..shards).map(|number| start(directory, number, shards)).collect();
            let (children, links): (Vec<_>, Vec<_>) = processes?.into_iter().unzip();
            let mut driver = Driver::new(links)?;
            run(&mut driver, records)?;
            // The owners end when nobody can send them anything.
            drop(driver);
            for mut child in children {
                if !child.wait()?.success() {
                    return Err("an owner has failed".into());
                }
            }
        }
    }
    Ok(())
}

/// Stores and reads records, and prints how long that takes.
fn run<L: Link>(driver: &mut Driver<L>, records: u64) -> Outcome<()> {
    let put = |number: u64| Request::Put {
        key: number.to_le_bytes().to_vec(),
        value: (!number).to_le_bytes().to_vec(),
    };
    let get = |number: u64| Request::Get { key: number.to_le_bytes().to_vec() };
    let stored = exchange(driver, records, put, |_, reply| matches!(reply, Reply::Done { .. }))?;
    let read = exchange(driver, records, get, |number, reply| {
        *reply == Reply::Value(Some((!number).to_le_bytes().to_vec()))
    })?;
    let each = |took: Duration| took.as_nanos() as f64 / records.max(1) as f64;
    println!(
        "{records} records: {:.0} ns to store one, {:.0} ns to read it",
        each(stored),
        each(read)
    );
    Ok(())
}

fn exchange<L: Link>(
    driver: &mut Driver<L>,
    records: u64,
    request: impl Fn(u64) -> Request,
    expected: impl Fn(u64, &Reply) -> bool,
) -> Outcome<Duration> {
    let start = Instant::now();
    for first in (0..records).step_by(BATCH as usize) {
        let numbers = first..records.min(first + BATCH);
        let replies = driver.execute(numbers.clone().map(&request).collect())?;
        for (number, reply) in numbers.zip(&replies) {
            if !expected(number, reply) {
                return Err(format!("record {number}: {reply:?}").into());
            }
        }
    }
    Ok(start.elapsed())
}

/// Starts a process that owns a shard.
fn start(
    directory: &Path,
    number: u16,
    shards: u16,
) -> Outcome<(Child, StreamLink<ChildStdout, ChildStdin>)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("owner")
        .arg(directory)
        .args([number.to_string(), shards.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let streams = child.stdout.take().zip(child.stdin.take());
    let (replies, requests) = streams.ok_or("no pipes")?;
    Ok((child, StreamLink::new(replies, requests)))
}

/// The program of a process that owns a shard.
fn own(directory: &Path, number: u16, shards: u16) -> Outcome<()> {
    let mut shard = open(directory, number, shards)?;
    serve(&mut shard, &mut io::stdin().lock(), &mut io::stdout().lock())?;
    shard.map().pool().close()?;
    Ok(())
}

struct Marks<'a>(&'a mut dyn FnMut(u64));

impl Visitor for Marks<'_> {
    fn block(&mut self, offset: u64) {
        (self.0)(offset);
    }
    fn word(&mut self, _word: u64) {}
}

/// Opens the file of a shard, or creates it.
fn open(directory: &Path, number: u16, shards: u16) -> Outcome<Shard<Mapped>> {
    let path: PathBuf = directory.join(format!("shard-{number}"));
    let options = MappedOptions { create: true, ..MappedOptions::default() };
    let medium = Mapped::open(&path, &options)?;
    let capacity = medium.capacity();
    let place = Place { number, shards };
    if medium.len() == 0 {
        let config = RegionConfig { extent_size: 2 << 20, capacity, seed: None };
        let pool = Pool::create(medium, &config, Identity::default())?;
        let (root, label) = (pool.root(0), pool.root(1));
        return Ok(Shard::create(pool.clone(), root, label, place, Config::default())?);
    }
    let (pool, _) = Pool::open(medium, Identity::default(), OnSuspect::Refuse)?;
    let mut shard = Shard::open(pool.clone(), pool.root(0), pool.root(1))?;
    if shard.place() != place {
        return Err(format!("{} is {:?}, not {place:?}", path.display(), shard.place()).into());
    }
    if !pool.is_swept() {
        pool.sweep(|mark| shard.map().visit(&mut Marks(mark)))?;
    }
    Ok(shard)
}
