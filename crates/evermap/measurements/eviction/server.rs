//! A server that speaks memcached's text protocol, as a policy.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::policies::Policy;
use super::trace::Request;

/// Requests that are sent before the first answer is read.
const BATCH: usize = 32;
/// How long a server that was just started may take until it accepts a connection.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    address: String,
    stream: BufReader<TcpStream>,
    output: Vec<u8>,
    line: Vec<u8>,
    value: Vec<u8>,
    /// Requests in a second; `None`: as fast as the server answers.
    pace: Option<f64>,
    /// When the first request after connecting was sent, and which one it was.
    begin: Option<(Instant, u64)>,
    /// How far a request was behind its time, at most.
    pub(crate) late: Duration,
    /// Items that the server did not store.
    pub(crate) refused: u64,
}

impl Server {
    pub(crate) fn new(address: &str, pace: Option<f64>) -> io::Result<Self> {
        Ok(Server {
            address: address.into(),
            stream: connect(address)?,
            output: Vec::new(),
            line: Vec::new(),
            value: vec![b'v'; 1 << 20],
            pace,
            begin: None,
            late: Duration::ZERO,
            refused: 0,
        })
    }

    /// Connects again, because the server was started again.
    pub(crate) fn reconnect(&mut self) -> io::Result<()> {
        self.stream = connect(&self.address)?;
        self.begin = None;
        Ok(())
    }

    /// Stores items and then looks keys up, in one round trip. Returns which keys were found.
    pub(crate) fn exchange(&mut self, puts: &[Request], gets: &[Request]) -> io::Result<Vec<bool>> {
        self.output.clear();
        for Request { key, len, ttl } in puts {
            write!(self.output, "set {key:016x} 0 {ttl} {len}\r\n")?;
            self.output.extend_from_slice(&self.value[..*len as usize]);
            self.output.extend_from_slice(b"\r\n");
        }
        for Request { key, .. } in gets {
            write!(self.output, "get {key:016x}\r\n")?;
        }
        self.stream.get_mut().write_all(&self.output)?;
        for _ in puts {
            self.read_line()?;
            self.refused += u64::from(self.line != b"STORED\r\n");
        }
        gets.iter().map(|_| self.read_found()).collect()
    }

    /// Reads the answer to a lookup.
    fn read_found(&mut self) -> io::Result<bool> {
        self.read_line()?;
        if self.line == b"END\r\n" {
            return Ok(false);
        }
        let text = std::str::from_utf8(&self.line).ok().filter(|text| text.starts_with("VALUE "));
        let len = text.and_then(|text| text.split_whitespace().nth(3)?.parse::<u64>().ok());
        let len = len.ok_or_else(|| self.unexpected())?;
        io::copy(&mut self.stream.by_ref().take(len + 2), &mut io::sink())?;
        self.read_line()?;
        if self.line == b"END\r\n" { Ok(true) } else { Err(self.unexpected()) }
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn unexpected(&self) -> io::Error {
        io::Error::other(format!("the server answered {:?}", String::from_utf8_lossy(&self.line)))
    }

    /// Waits until it is time for a request.
    fn wait_for(&mut self, now: u64) {
        let (begin, first) = *self.begin.get_or_insert_with(|| (Instant::now(), now));
        let Some(pace) = self.pace else { return };
        let due = Duration::from_secs_f64((now - first) as f64 / pace);
        match due.checked_sub(begin.elapsed()) {
            Some(early) => std::thread::sleep(early),
            None => self.late = self.late.max(begin.elapsed() - due),
        }
    }

    fn serve(&mut self, requests: &[Request], now: u64) -> io::Result<u64> {
        let (mut hits, mut at) = (0, 0);
        let mut puts = Vec::new();
        while at < requests.len() {
            let batch = batch(&requests[at..]);
            self.wait_for(now + at as u64);
            let found = self.exchange(&puts, batch)?;
            hits += found.iter().filter(|hit| **hit).count() as u64;
            puts.clear();
            puts.extend(batch.iter().zip(&found).filter(|(_, hit)| !**hit).map(|(it, _)| *it));
            at += batch.len();
        }
        self.exchange(&puts, &[])?;
        Ok(hits)
    }
}

fn connect(address: &str) -> io::Result<BufReader<TcpStream>> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(BufReader::with_capacity(256 << 10, stream));
            }
            Err(error) if begin.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Returns the first requests that can be sent together: a key that comes again has to find what
/// was stored when it came first.
fn batch(requests: &[Request]) -> &[Request] {
    let mut keys = HashSet::new();
    let fresh = requests.iter().take(BATCH).take_while(|request| keys.insert(request.key));
    &requests[..fresh.count()]
}

impl Policy for Server {
    fn name(&self) -> &'static str {
        "server"
    }

    fn get(&mut self, request: &Request, now: u64) -> bool {
        self.wait_for(now);
        self.exchange(&[], &[*request]).expect("the server answers")[0]
    }

    fn put(&mut self, request: &Request, _: u64) {
        self.exchange(&[*request], &[]).expect("the server answers");
    }

    fn run(&mut self, requests: &[Request], now: u64) -> u64 {
        self.serve(requests, now).expect("the server answers")
    }
}
