//! Measures what rebuilding the ordered index costs readers: `rebuild PATH [RECORDS [ROUNDS]]`.
//!
//! A child process fills a store and is killed. Then, in each round, the store is opened with an
//! ordered index and without; each time after a kill, and once after a clean shutdown. One thread
//! looks keys up while the index is built, and measures each lookup; without an ordered index it
//! does so for the same time. Building is also timed without readers.

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evermap::{Evermap, Map, Options, OrderedState, SweepState};

mod keys;

use keys::key;

/// What the child prints when all records are stored.
const FILLED: &str = "filled";
/// The length of a value, bytes.
const VALUE: usize = 256;

/// The child: stores all records, reports that, and waits to be killed.
fn fill(path: &str, records: u64) -> Result<(), Box<dyn Error>> {
    let map = Evermap::open(path, Options::new())?.default_map();
    for number in map.len()..records {
        map.put(key(number), [7; VALUE])?;
    }
    map.put(key(0), [8; VALUE])?;
    println!("{FILLED}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Lets a child fill the store, and kills it.
fn kill(path: &str, records: u64) -> Result<(), Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["fill", path, &records.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = child.stdout.take().and_then(|out| BufReader::new(out).lines().next());
    child.kill()?;
    child.wait()?;
    match said {
        Some(Ok(line)) if line == FILLED => Ok(()),
        _ => Err("the child did not fill the store".into()),
    }
}

/// Waits until the ordered index is built, and returns how long that took. Uses only statistics
/// that need no walk over the index.
fn built(map: &Map) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    loop {
        match map.stat().ordered.map(|ordered| ordered.state) {
            Some(OrderedState::Ready(took)) => return Ok(took),
            Some(OrderedState::Failed(why)) => return Err(why.into()),
            Some(_) => std::thread::sleep(Duration::from_millis(10)),
            None => return Err("there is no ordered index".into()),
        }
    }
}

/// Looks up keys in random order until `over`. Returns the lookups per second, and how long each
/// took, in nanoseconds.
fn read(map: &Map, records: u64, over: &AtomicBool) -> evermap::Result<(f64, Vec<u32>)> {
    let mut nanos = Vec::with_capacity(1 << 24);
    let (mut state, mut value) = (1u64, Vec::new());
    let began = Instant::now();
    while !over.load(Relaxed) && nanos.len() < nanos.capacity() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let number = ((u128::from(state) * u128::from(records)) >> 64) as u64;
        value.clear();
        let start = Instant::now();
        let found = map.get_into(key(number), &mut value)?;
        nanos.push(start.elapsed().as_nanos().try_into().unwrap_or(u32::MAX));
        assert!(found, "record {number} is missing");
        black_box(&value);
    }
    Ok((nanos.len() as f64 / began.elapsed().as_secs_f64(), nanos))
}

fn show(what: &str, speed: f64, mut nanos: Vec<u32>) {
    nanos.sort_unstable();
    let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize];
    println!(
        "{what:28} {:9.3} million/s  median {:6} ns  p99 {:7} ns  p99.9 {:8} ns  longest {:9} ns",
        speed / 1e6,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        arguments.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    if let [command, path, records] = &arguments[..]
        && command == "fill"
    {
        return fill(path, records.parse()?);
    }
    let path = arguments.first().ok_or("usage: rebuild PATH [RECORDS [ROUNDS]]")?;
    let (records, rounds) = (number(1, 5_000_000)?, number(2, 3)?);
    for round in 0..rounds {
        kill(path, records)?;
        let map = Evermap::open(path, Options::new().ordered(true))?.default_map();
        let alone = built(&map).map_err(|error| error.to_string())?;
        println!("round {}: building without readers: {}", round + 1, rate(records, alone));

        let began = Instant::now();
        map.into_db().close()?;
        println!("a clean shutdown, which saves the keys: {:.2} s", began.elapsed().as_secs_f64());
        let map = Evermap::open(path, Options::new().ordered(true))?.default_map();
        let loaded = built(&map).map_err(|error| error.to_string())?;
        println!("building from those: {}", rate(records, loaded));
        drop(map);

        kill(path, records)?;
        let map = Evermap::open(path, Options::new().ordered(true))?.default_map();
        let over = AtomicBool::new(false);
        let (took, reads) = std::thread::scope(|scope| {
            let building = scope.spawn(|| {
                let took = built(&map);
                over.store(true, Relaxed);
                took
            });
            let reads = read(&map, records, &over);
            (building.join().expect("no panic"), reads)
        });
        let (took, (speed, nanos)) = (took.map_err(|error| error.to_string())?, reads?);
        println!("building beside a reader: {}", rate(records, took));
        show("reads while it is built", speed, nanos);
        timed(&map, records, took, "reads when it is built")?;
        drop(map);

        kill(path, records)?;
        let map = Evermap::open(path, Options::new())?.default_map();
        timed(&map, records, took, "reads without an index")?;
        while matches!(map.stat().sweep, SweepState::Pending | SweepState::Running) {
            std::thread::sleep(Duration::from_millis(10));
        }
        timed(&map, records, took, "the same, later")?;
    }
    std::fs::remove_file(path)?;
    Ok(())
}

/// Formats the keys per second. The store builds with half of the cores.
fn rate(records: u64, took: Duration) -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
    let each = records as f64 / took.as_secs_f64() / threads as f64 / 1e6;
    format!("{:.2} s, {each:.2} million keys per second and thread", took.as_secs_f64())
}

/// Reads for the duration `long`, and prints the result.
fn timed(map: &Map, records: u64, long: Duration, what: &str) -> Result<(), Box<dyn Error>> {
    let over = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(long);
            over.store(true, Relaxed);
        });
        read(map, records, &over)
    });
    let (speed, nanos) = reads?;
    show(what, speed, nanos);
    Ok(())
}
