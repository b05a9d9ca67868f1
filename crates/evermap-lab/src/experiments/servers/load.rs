//! The client: one thread that keeps every connection busy, and compares every reply with the only
//! right one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use evermap_pm::sim::rng::Rng;

use super::process::{Cpu, Server};
use crate::LabError;
use crate::machine::CpuClock;

/// The number of connections.
pub(super) const CONNECTIONS: usize = 16;

/// The length of a key, in bytes.
pub(super) const KEY_BYTES: u32 = 20;

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A `get` of one key; this number of them together.
    Get { pipelined: usize },
    /// A `set`; this number of them together.
    Set { pipelined: usize },
    /// One `get` of several keys.
    MultiGet { keys: usize },
    /// A `get` of one key, always the same.
    Hot,
}

impl Act {
    /// Returns the number of operations that are sent together.
    pub(super) fn ops(self) -> usize {
        match self {
            Act::Get { pipelined: ops }
            | Act::Set { pipelined: ops }
            | Act::MultiGet { keys: ops } => ops,
            Act::Hot => 1,
        }
    }
}

/// Keys, each with the only value that it ever has.
#[derive(Clone, Copy)]
pub(super) struct Items {
    pub(super) keys: u64,
    pub(super) value_bytes: usize,
}

/// Requests that are sent together, and the reply that is right.
#[derive(Default)]
struct Exchange {
    request: Vec<u8>,
    expected: Vec<u8>,
    reply: Vec<u8>,
}

fn put_key(into: &mut Vec<u8>, number: u64) {
    // Writing to a vector cannot fail.
    let _ = write!(into, "key:{number:016x}");
}

impl Items {
    /// Appends a key, the numbers that follow it, and its value.
    fn put_item(&self, into: &mut Vec<u8>, number: u64, numbers: &str) {
        put_key(into, number);
        // Writing to a vector cannot fail.
        let _ = write!(into, " {numbers} {}\r\n", self.value_bytes);
        self.put_value(into, number);
        into.extend_from_slice(b"\r\n");
    }

    fn put_value(&self, into: &mut Vec<u8>, number: u64) {
        let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        into.extend(word.iter().cycle().take(self.value_bytes));
    }

    /// Returns the value of a key.
    pub(super) fn value(&self, number: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes);
        self.put_value(&mut value, number);
        value
    }

    fn put_set(&self, exchange: &mut Exchange, number: u64) {
        let Exchange { request, expected, .. } = exchange;
        request.extend_from_slice(b"set ");
        self.put_item(request, number, "0 0");
        expected.extend_from_slice(b"STORED\r\n");
    }

    fn put_get(&self, exchange: &mut Exchange, numbers: impl Iterator<Item = u64>) {
        let Exchange { request, expected, .. } = exchange;
        request.extend_from_slice(b"get");
        for number in numbers {
            request.push(b' ');
            put_key(request, number);
            expected.extend_from_slice(b"VALUE ");
            self.put_item(expected, number, "0");
        }
        request.extend_from_slice(b"\r\n");
        expected.extend_from_slice(b"END\r\n");
    }

    /// Replaces `exchange` by another for the next random keys.
    fn next(&self, exchange: &mut Exchange, act: Act, random: &mut Rng) {
        exchange.request.clear();
        exchange.expected.clear();
        let mut number = || random.below(self.keys);
        match act {
            Act::Get { pipelined } => {
                (0..pipelined).for_each(|_| self.put_get(exchange, std::iter::once(number())));
            }
            Act::Set { pipelined } => {
                (0..pipelined).for_each(|_| self.put_set(exchange, number()));
            }
            Act::MultiGet { keys } => {
                self.put_get(exchange, std::iter::repeat_with(&mut number).take(keys));
            }
            Act::Hot => self.put_get(exchange, std::iter::once(0)),
        }
    }
}

/// What a server has done, and what it has cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) ops: u64,
    pub(super) seconds: f64,
    pub(super) server: Cpu,
    /// The average number of processors that neither the client nor the server kept busy, but
    /// other programs; `None` if the system does not report it.
    pub(super) foreign: Option<f64>,
}

/// The connections to one server.
pub(super) struct Client<'s> {
    server: &'s Server,
    connections: Vec<(TcpStream, Exchange)>,
}

impl<'s> Client<'s> {
    /// Opens this number of connections.
    pub(super) fn connect(server: &'s Server, connections: usize) -> Result<Self, LabError> {
        let connect = |_| Ok((server.connect()?, Exchange::default()));
        let connections = (0..connections).map(connect).collect::<Result<_, LabError>>()?;
        Ok(Client { server, connections })
    }

    /// Stores every key.
    pub(super) fn fill(&mut self, items: &Items) -> Result<(), LabError> {
        const AT_ONCE: u64 = 64;
        let server = self.server;
        let (stream, exchange) = &mut self.connections[0];
        for first in (0..items.keys).step_by(AT_ONCE as usize) {
            exchange.request.clear();
            exchange.expected.clear();
            let numbers = first..items.keys.min(first + AT_ONCE);
            numbers.for_each(|number| items.put_set(exchange, number));
            send(server, stream, exchange)?;
            receive(server, stream, exchange)?;
        }
        Ok(())
    }

    /// Keeps all connections busy for `least`, and measures.
    pub(super) fn run(
        &mut self,
        items: &Items,
        act: Act,
        random: &mut Rng,
        least: Duration,
    ) -> Result<Ran, LabError> {
        measure(self.server, || self.keep_busy(items, act, random, least))
    }

    /// Keeps all connections busy for `least`, and returns the number of operations. The
    /// connections take turns, so all but one have a request under way at any time.
    pub(super) fn keep_busy(
        &mut self,
        items: &Items,
        act: Act,
        random: &mut Rng,
        least: Duration,
    ) -> Result<u64, LabError> {
        let server = self.server;
        let begin = Instant::now();
        for (stream, exchange) in &mut self.connections {
            items.next(exchange, act, random);
            send(server, stream, exchange)?;
        }
        let mut exchanges = 0;
        while begin.elapsed() < least {
            for (stream, exchange) in &mut self.connections {
                receive(server, stream, exchange)?;
                items.next(exchange, act, random);
                send(server, stream, exchange)?;
            }
            exchanges += self.connections.len();
        }
        for (stream, exchange) in &mut self.connections {
            receive(server, stream, exchange)?;
        }
        exchanges += self.connections.len();
        Ok((exchanges * act.ops()) as u64)
    }
}

/// Measures what `work` does, which returns a number of operations, and what it costs the server.
pub(super) fn measure(
    server: &Server,
    work: impl FnOnce() -> Result<u64, LabError>,
) -> Result<Ran, LabError> {
    let (clock, before) = (CpuClock::now(), server.cpu()?);
    let ops = work()?;
    let (used, cpu) = (clock.elapsed(), server.cpu()?.since(before));
    // To other programs than this one belongs what the server has used.
    let foreign = used.foreign.map(|all| (all - cpu.user - cpu.system).max(0.0) / used.seconds);
    Ok(Ran { ops, seconds: used.seconds, server: cpu, foreign })
}

fn send(server: &Server, stream: &mut TcpStream, exchange: &Exchange) -> Result<(), LabError> {
    stream.write_all(&exchange.request).map_err(|source| server.failed(source))
}

fn receive(
    server: &Server,
    stream: &mut TcpStream,
    exchange: &mut Exchange,
) -> Result<(), LabError> {
    let Exchange { request, expected, reply } = exchange;
    reply.resize(expected.len(), 0);
    stream.read_exact(reply).map_err(|source| server.failed(source))?;
    if reply == expected {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    Err(server.failed(format!(
        "wrong answer: {:?} to {:?}, which should be {:?}",
        text(reply),
        text(request),
        text(expected)
    )))
}
