//! The two jobs that need a faster client than a script: filling a store, and timing SETs.
//!
//! ```text
//! client fill ADDRESS RECORDS VALUE_BYTES
//! client sets ADDRESS RECORDS VALUE_BYTES SECONDS DEPTH
//! ```
//!
//! `fill` stores every record. `sets` stores random ones again, on two connections with DEPTH
//! requests under way on each, and prints one JSON object: how many a second, and how long the
//! answers took.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const CONNECTIONS: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["fill", address, records, bytes] => {
            let (records, bytes) = (records.parse()?, bytes.parse()?);
            on_all_connections(address, |stream, share| fill(stream, share, records, bytes))?;
        }
        ["sets", address, records, bytes, seconds, depth] => {
            let (records, bytes, depth) = (records.parse()?, bytes.parse()?, depth.parse()?);
            let time = Duration::from_secs_f64(seconds.parse()?);
            let started = Instant::now();
            let until = started + time;
            let took = on_all_connections(address, |stream, share| {
                sets(stream, share, records, bytes, until, depth)
            })?;
            let seconds = started.elapsed().as_secs_f64();
            print(took.into_iter().flatten().collect(), seconds);
        }
        _ => {
            let usage = "usage: client fill|sets ADDRESS RECORDS VALUE_BYTES [SECONDS DEPTH]";
            return Err(usage.into());
        }
    }
    Ok(())
}

/// Runs `job(stream, share)` on each connection in a thread of its own.
fn on_all_connections<T: Send>(
    address: &str,
    job: impl Fn(TcpStream, u64) -> Result<T, std::io::Error> + Sync,
) -> Result<Vec<T>, Box<dyn Error>> {
    std::thread::scope(|scope| {
        let connect = |share| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            job(stream, share)
        };
        let threads: Vec<_> =
            (0..CONNECTIONS).map(|share| scope.spawn(move || connect(share))).collect();
        threads.into_iter().map(|thread| Ok(thread.join().expect("no panic")?)).collect()
    })
}

fn fill(mut stream: TcpStream, share: u64, records: u64, bytes: usize) -> std::io::Result<()> {
    let mut requests = Vec::new();
    for record in (share..records).step_by(CONNECTIONS as usize) {
        append_set(&mut requests, record, bytes, " noreply");
        if requests.len() > 1 << 16 {
            stream.write_all(&requests)?;
            requests.clear();
        }
    }
    // Answered when everything before is done, and only if nothing was refused.
    requests.extend_from_slice(b"version\r\n");
    stream.write_all(&requests)?;
    expect(&mut stream, b"VERSION", &mut vec![0; 7])
}

/// Answers how long each SET took, nanoseconds.
fn sets(
    mut stream: TcpStream,
    share: u64,
    records: u64,
    bytes: usize,
    until: Instant,
    depth: usize,
) -> std::io::Result<Vec<u64>> {
    let mut took = Vec::with_capacity(1 << 20);
    let mut requests = Vec::new();
    let mut replies = vec![0; b"STORED\r\n".len() * depth];
    let expected = b"STORED\r\n".repeat(depth);
    let mut random = (share + 1) * 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()) << 20;
    while Instant::now() < until {
        requests.clear();
        for _ in 0..depth {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            append_set(&mut requests, random % records, bytes, "");
        }
        let sent = Instant::now();
        stream.write_all(&requests)?;
        expect(&mut stream, &expected, &mut replies)?;
        let nanoseconds = sent.elapsed().as_nanos() as u64;
        took.extend(std::iter::repeat_n(nanoseconds, depth));
    }
    Ok(took)
}

fn append_set(requests: &mut Vec<u8>, record: u64, bytes: usize, noreply: &str) {
    write!(requests, "set key:{record:012} 0 0 {bytes}{noreply}\r\n").expect("memory");
    let end = requests.len() + bytes;
    let unit = format!("{record}|");
    while requests.len() < end {
        requests.extend_from_slice(unit.as_bytes());
    }
    requests.truncate(end);
    requests.extend_from_slice(b"\r\n");
}

fn expect(stream: &mut TcpStream, expected: &[u8], buffer: &mut [u8]) -> std::io::Result<()> {
    stream.read_exact(buffer)?;
    if buffer != expected {
        let text = String::from_utf8_lossy(buffer);
        return Err(std::io::Error::other(format!("the server answered {text:?}")));
    }
    Ok(())
}

fn print(mut took: Vec<u64>, seconds: f64) {
    took.sort_unstable();
    let at = |part: f64| {
        let index = ((took.len() as f64 * part) as usize).min(took.len().saturating_sub(1));
        took.get(index).map_or(0.0, |&nanoseconds| nanoseconds as f64 / 1e3)
    };
    println!(
        "{{\"sets_per_second\": {:.0}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \
         \"p999_us\": {:.1}, \"max_us\": {:.1}}}",
        took.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
    );
}
