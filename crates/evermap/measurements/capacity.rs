//! Runs caches whose files may become 2, 4, 8 and 16 times as long as their memory limit, while
//! keys come and go and the lengths of their values drift.
//!
//! `cargo run --release -p evermap --example capacity [-- SECONDS [LIMIT_MIB [THREADS [FOLDER]]]]`
//!
//! The seconds, 60 by default, are divided among the four capacities. A line is printed 15 times
//! for each, or once a minute if that is less often: the hit ratio since the last one, the limit in
//! effect, length and blocks of the file, and what was refused. It fails if the file is longer than
//! a quarter above the limit, or takes more than the limit, or if a put is refused.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use evermap::{Evermap, Map, Options};

const MIB: u64 = 1 << 20;
/// The capacities, as multiples of the limit.
const CAPACITIES: [u64; 4] = [2, 4, 8, 16];
/// The keys of a cache; half of the lookups are for a thirtieth of them.
const KEYS: u64 = 300_000;
/// Seconds in which the usual length of values rises and falls again.
const PERIOD: f64 = 20.0;

#[derive(Default)]
struct Counts {
    gets: AtomicU64,
    hits: AtomicU64,
    refused: AtomicU64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let (seconds, limit, threads) = (number(0, 60)?, number(1, 32)? * MIB, number(2, 2)?);
    let folder = words.get(3).map_or("/dev/shm", String::as_str);
    let path = PathBuf::from(folder).join(format!("evermap-capacity-{}", std::process::id()));
    let time = Duration::from_secs(seconds.max(4)) / CAPACITIES.len() as u32;
    let mut sound = true;
    for times in CAPACITIES {
        println!("capacity {} MiB, limit {} MiB", times * limit / MIB, limit / MIB);
        let options = Options::new().capacity(times * limit).memory_limit(limit).evict(true);
        let map = Evermap::open(&path, options)?.default_map();
        let done = run(&map, &path, limit, time, threads);
        map.into_db().close()?;
        std::fs::remove_file(&path)?;
        sound &= done?;
    }
    if sound { Ok(()) } else { Err("a bound does not hold".into()) }
}

/// Runs one cache for a time. Returns whether all bounds held.
fn run(
    map: &Map,
    path: &Path,
    limit: u64,
    time: Duration,
    threads: u64,
) -> Result<bool, Box<dyn Error>> {
    let (counts, stop, begin) = (Counts::default(), AtomicBool::new(false), Instant::now());
    let pause = (time / 15).min(Duration::from_secs(60));
    thread::scope(|scope| {
        for seed in 0..threads {
            let (counts, stop) = (&counts, &stop);
            scope.spawn(move || ask(map, seed, begin, counts, stop));
        }
        let mut sound = true;
        while sound && begin.elapsed() < time {
            thread::sleep(pause);
            sound = report(map, path, limit, begin, &counts).unwrap_or(false);
        }
        stop.store(true, Relaxed);
        Ok(sound)
    })
}

fn report(
    map: &Map,
    path: &Path,
    limit: u64,
    begin: Instant,
    counts: &Counts,
) -> Result<bool, Box<dyn Error>> {
    let (file, stat) = (std::fs::metadata(path)?, map.stat());
    let (gets, hits) = (counts.gets.swap(0, Relaxed), counts.hits.swap(0, Relaxed));
    let (refused, blocks) = (counts.refused.load(Relaxed), file.blocks() * 512);
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "{:>6.0} s: {:>9} gets, {:>6.2} % hits, limit {:.2} MiB, file {:.2} MiB long, {:.2} MiB of \
         blocks, {:.2} MiB of records, {} evicted, {} moved, {refused} refused",
        begin.elapsed().as_secs_f64(),
        gets,
        hits as f64 * 100.0 / gets.max(1) as f64,
        mib(stat.memory_limit.unwrap_or(0)),
        mib(file.len()),
        mib(blocks),
        mib(stat.record_bytes.value),
        stat.evictions,
        stat.moved_for_space,
    );
    let bounded = stat.memory_limit == Some(limit) && file.len() <= limit + limit / 4;
    Ok(bounded && blocks <= limit && refused == 0)
}

/// Looks up keys, and stores what is not found, until it is to stop.
fn ask(map: &Map, seed: u64, begin: Instant, counts: &Counts, stop: &AtomicBool) {
    let (mut random, mut asked) = (seed + 1, 0u64);
    let mut below = |n: u64| {
        // SplitMix64.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % n
    };
    while !stop.load(Relaxed) {
        let keys = if below(2) == 0 { KEYS } else { KEYS / 30 };
        let key = (below(keys) + asked / 64).to_be_bytes();
        asked += 1;
        counts.gets.fetch_add(1, Relaxed);
        if map.get_with(key, |_| ()).is_ok_and(|found| found.is_some()) {
            counts.hits.fetch_add(1, Relaxed);
            continue;
        }
        let phase = begin.elapsed().as_secs_f64() / PERIOD * std::f64::consts::TAU;
        let usual = 20.0 * 60.0_f64.powf((1.0 - phase.cos()) / 2.0);
        let len = match below(100) {
            0..=6 => below(9_000),
            7..=9 => 20_000 + below(3) * 17_000,
            _ => below(2 * usual as u64),
        };
        if map.put(key, vec![2; len as usize]).is_err() {
            counts.refused.fetch_add(1, Relaxed);
        }
    }
}
