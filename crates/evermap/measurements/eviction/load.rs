//! Loads of a server for measurements that need no trace.

use std::f64::consts::TAU;
use std::io;
use std::time::{Duration, Instant};

use super::server::Server;
use super::trace::{Random, Request, Zipf, mix, usual_len};

/// Seconds in which the lengths of values rise and fall once.
const PERIOD: f64 = 60.0;
/// The shortest and longest usual values of a churn.
const LENGTHS: (f64, f64) = (100.0, 12_000.0);

/// Stores each of this number of keys once.
pub(crate) fn fill(server: &mut Server, keys: u64) -> io::Result<()> {
    let all: Vec<_> = (0..keys).map(item).collect();
    for some in all.chunks(32) {
        server.exchange(some, &[])?;
    }
    Ok(())
}

/// Stores keys at random, one at a time. Returns how long each took, in ascending order.
pub(crate) fn sets(
    server: &mut Server,
    keys: u64,
    count: usize,
    seed: u64,
) -> io::Result<Vec<Duration>> {
    let mut random = Random::new(seed);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let item = item(random.below(keys));
        let begin = Instant::now();
        server.exchange(&[item], &[])?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn item(number: u64) -> Request {
    let key = mix(number);
    Request { key, len: usual_len(key), ttl: 0 }
}

/// Looks up keys that come and go, and stores what is not found, for this long. The lengths of the
/// values rise and fall. Returns the number of requests and of hits.
pub(crate) fn churn(server: &mut Server, seconds: f64) -> io::Result<(u64, u64)> {
    let (draws, mut random) = (Zipf::new(100_000, 0.9), Random::new(7));
    let (mut requests, mut hits) = (0, 0);
    let (begin, mut puts) = (Instant::now(), Vec::new());
    loop {
        let time = begin.elapsed().as_secs_f64();
        if time >= seconds {
            return Ok((requests, hits));
        }
        let height = (1.0 - (time / PERIOD * TAU).cos()) / 2.0;
        let usual = LENGTHS.0 * (LENGTHS.1 / LENGTHS.0).powf(height);
        let gets: Vec<_> = (0..16)
            .map(|_| {
                // With every eighth request, the most popular key is replaced by the next.
                let key = mix(draws.draw(&mut random) + requests / 8);
                let len = (usual * (0.8 + (key % 400) as f64 / 1000.0)) as u32;
                Request { key, len, ttl: 0 }
            })
            .collect();
        let found = server.exchange(&puts, &gets)?;
        requests += gets.len() as u64;
        hits += found.iter().filter(|hit| **hit).count() as u64;
        puts = gets.into_iter().zip(found).filter(|(_, hit)| !hit).map(|(it, _)| it).collect();
    }
}
