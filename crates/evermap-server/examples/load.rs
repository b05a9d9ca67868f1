//! Sends gets (or sets) to a memcached server and prints the processor time per operation.
//!
//! ```text
//! cargo run --release -p evermap-server --example load -- \
//!     127.0.0.1:11211 PID [SECONDS] [CONNECTIONS] [VALUE_BYTES] [get|set]
//! ```
//!
//! One thread keeps a number of requests in flight on every connection: 1, then 16, then 64. The
//! processor time of the server process is read from the system before and after, so it does not
//! include the client or other programs.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const KEYS: u64 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &'static str| {
        arguments.get(at).map_or(default, |argument| argument.as_str())
    };
    let (address, pid) = (argument(0, "127.0.0.1:11211"), argument(1, "0"));
    let seconds: f64 = argument(2, "5").parse()?;
    let connections: usize = argument(3, "16").parse()?;
    let value = vec![b'v'; argument(4, "32").parse()?];
    let storing = argument(5, "get") == "set";

    let mut clients = Vec::new();
    for _ in 0..connections {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        clients.push(stream);
    }
    fill(&mut clients[0], &value)?;
    println!(
        "{:>8} {:>12} {:>14} {:>10} {:>10}",
        "pipeline", "ops/s", "server us/op", "user", "system"
    );
    for depth in [1, 16, 64] {
        let mut load = Load { value: &value, storing, depth, random: 1, buffer: vec![0; 1 << 20] };
        let before = processor_times(pid)?;
        let started = Instant::now();
        let mut operations = 0;
        while started.elapsed().as_secs_f64() < seconds {
            operations += load.round(&mut clients)?;
        }
        let elapsed = started.elapsed().as_secs_f64();
        let after = processor_times(pid)?;
        let [user, system] =
            [0, 1].map(|i| (after[i] - before[i]).as_secs_f64() * 1e6 / operations as f64);
        println!(
            "{depth:>8} {:>12.0} {:>14.3} {user:>10.3} {system:>10.3}",
            operations as f64 / elapsed,
            user + system
        );
    }
    Ok(())
}

/// Stores every key.
fn fill(stream: &mut TcpStream, value: &[u8]) -> Result<(), Box<dyn Error>> {
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(100) {
        let mut requests = Vec::new();
        for key in keys {
            write!(requests, "set key:{key:012} 0 0 {}\r\n", value.len())?;
            requests.extend_from_slice(value);
            requests.extend_from_slice(b"\r\n");
        }
        stream.write_all(&requests)?;
        let mut replies = vec![0; keys.len() * "STORED\r\n".len()];
        stream.read_exact(&mut replies)?;
    }
    Ok(())
}

struct Load<'a> {
    value: &'a [u8],
    storing: bool,
    depth: usize,
    random: u64,
    buffer: Vec<u8>,
}

impl Load<'_> {
    /// Sends `depth` requests on every connection, then reads all replies. Returns the number of
    /// requests.
    fn round(&mut self, clients: &mut [TcpStream]) -> Result<usize, Box<dyn Error>> {
        let mut requests = Vec::new();
        for client in &mut *clients {
            requests.clear();
            for _ in 0..self.depth {
                self.request(&mut requests)?;
            }
            client.write_all(&requests)?;
        }
        let reply = match self.storing {
            true => "STORED\r\n".len(),
            false => {
                let first = format!("VALUE key:{:012} 0 {}\r\n", 0, self.value.len());
                first.len() + self.value.len() + "\r\nEND\r\n".len()
            }
        };
        for client in &mut *clients {
            let mut missing = self.depth * reply;
            while missing > 0 {
                let len = missing.min(self.buffer.len());
                match client.read(&mut self.buffer[..len])? {
                    0 => return Err("the server closed the connection".into()),
                    len => missing -= len,
                }
            }
        }
        Ok(self.depth * clients.len())
    }

    fn request(&mut self, requests: &mut Vec<u8>) -> std::io::Result<()> {
        // Marsaglia's xorshift, because the quality of the distribution does not matter.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let key = self.random % KEYS;
        if self.storing {
            write!(requests, "set key:{key:012} 0 0 {}\r\n", self.value.len())?;
            requests.extend_from_slice(self.value);
            requests.extend_from_slice(b"\r\n");
            Ok(())
        } else {
            write!(requests, "get key:{key:012}\r\n")
        }
    }
}

/// Returns the user and system time of a process.
fn processor_times(pid: &str) -> Result<[Duration; 2], Box<dyn Error>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').ok_or("no process times")?.1;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second();
    let mut time = || -> Result<Duration, Box<dyn Error>> {
        let ticks: u64 = fields.next().ok_or("no process times")?.parse()?;
        Ok(Duration::from_micros(ticks * 1_000_000 / per_second))
    };
    Ok([time()?, time()?])
}
