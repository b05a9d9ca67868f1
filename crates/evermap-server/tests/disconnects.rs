//! What was meant for a client that has left reaches nobody else.
//!
//! The worker is held in the middle of a lookup while a client sends its requests and leaves. So
//! the worker reads them when their sender is gone, and fails where it sends the replies.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::hooked_cache::HookedCache;
use evermap_server::cache::{Cache, StoreMode};
use evermap_server::{Config, ModelCache, Server};
use rustix::net::sockopt::set_socket_linger;

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Departure {
    /// Without a word to the kernel either: whatever is under way is void.
    Reset,
    /// As a process ends: what has arrived unread makes the kernel reset the connection.
    Close,
    /// Says that it sends no more, and reads no more either.
    HalfClose,
}

impl Departure {
    /// What is left of the connection.
    fn leave(self, stream: TcpStream) -> Option<TcpStream> {
        match self {
            Departure::Reset => set_socket_linger(&stream, Some(Duration::ZERO)).unwrap(),
            Departure::Close => {}
            Departure::HalfClose => {
                stream.shutdown(Shutdown::Write).unwrap();
                return Some(stream);
            }
        }
        None
    }
}

/// A server whose workers can be held up, one for each client that asks for the key `gate`.
struct Held {
    server: Server,
    /// Tells when a worker has arrived at the gate.
    arrived: Receiver<()>,
    /// Lets one worker pass.
    pass: Sender<()>,
}

const SECRET: &[u8] = b"secret of a client that has left";
const LARGE: usize = 4 << 20;

impl Held {
    fn serve(threads: usize) -> Held {
        let (arrive, arrived) = channel();
        let (pass, passed) = channel();
        let gate = Mutex::new((arrive, passed));
        let before_get = move |keys: &[&[u8]]| {
            if keys.contains(&&b"gate"[..]) {
                let gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
                gate.0.send(()).unwrap();
                gate.1.recv().unwrap();
            }
        };
        let cache = ModelCache::new(0);
        cache.store(b"secret", SECRET, 0, 0, StoreMode::Set).unwrap();
        cache.store(b"large", &vec![b's'; LARGE], 0, 0, StoreMode::Set).unwrap();
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            threads,
            item_size_max: 8 << 20,
            ..Config::default()
        };
        let server = Server::start(Arc::new(HookedCache { cache, before_get }), config).unwrap();
        Held { server, arrived, pass }
    }

    /// A client that its worker knows already.
    fn client(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.local_addr()).unwrap();
        ask(&mut stream, b"get nothing\r\n", b"END\r\n");
        stream
    }
}

#[track_caller]
fn ask(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).unwrap();
    expect(stream, reply);
}

#[track_caller]
fn expect(stream: &mut TcpStream, reply: &[u8]) {
    let mut read = vec![0; reply.len()];
    stream.read_exact(&mut read).unwrap();
    assert!(read == reply, "{} for {}", read.escape_ascii(), reply.escape_ascii());
}

/// A reply that comes once the gate is open, and nothing with it.
#[track_caller]
fn check_after(requests: &[u8], departure: Departure, threads: usize) {
    let held = Held::serve(threads);
    // Connections are dealt in turn, so each of the first clients has a worker of its own, and so
    // on.
    let mut staying: Vec<_> = (0..threads).map(|_| held.client()).collect();
    let leaving: Vec<_> = (0..threads).map(|_| held.client()).collect();
    let mut watching: Vec<_> = (0..threads).map(|_| held.client()).collect();

    // One worker after the other: a client of it is at the gate, and another one leaves meanwhile.
    let mut remains = Vec::new();
    for (at, mut leaving) in leaving.into_iter().enumerate() {
        staying[at].write_all(b"get gate\r\n").unwrap();
        held.arrived.recv().unwrap();
        leaving.set_nonblocking(true).unwrap();
        // As much of it as the sockets take: the worker does not read.
        let _ = leaving.write(requests).unwrap();
        leaving.set_nonblocking(false).unwrap();
        remains.extend(departure.leave(leaving));
        held.pass.send(()).unwrap();
        expect(&mut staying[at], b"END\r\n");
    }
    // The second round finds the workers done with those who left, whatever order they chose
    // before.
    for _ in 0..2 {
        for client in staying.iter_mut().chain(&mut watching) {
            ask(client, b"get mine\r\n", b"END\r\n");
            ask(client, b"set mine 0 0 1\r\nx\r\ndelete mine\r\n", b"STORED\r\nDELETED\r\n");
        }
    }
    let mut newcomer = held.client();
    ask(&mut newcomer, b"get mine\r\n", b"END\r\n");
    // One that only said that it sends no more still gets what it asked for, and then the end.
    for mut stream in remains {
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).unwrap();
        let secret = [b"VALUE secret 0 32\r\n", SECRET, b"\r\nEND\r\n"].concat();
        let large = [b"VALUE large 0 4194304\r\n", &vec![b's'; LARGE][..], b"\r\nEND\r\n"].concat();
        let mut left = &replies[..];
        while !left.is_empty() {
            let reply = if left.starts_with(&secret[..9]) { &secret } else { &large };
            left = left.strip_prefix(&reply[..]).expect("replies to this client, whole");
        }
    }
}

fn check_all_departures(requests: &[u8]) {
    for departure in [Departure::Reset, Departure::Close, Departure::HalfClose] {
        for threads in [1, 2] {
            check_after(requests, departure, threads);
        }
    }
}

#[test]
fn a_single_reply() {
    check_all_departures(b"get secret\r\n");
}

#[test]
fn a_pipeline() {
    check_all_departures(&b"get secret\r\n".repeat(30));
}

/// More than one read: the first replies are sent to a socket that then turns out to be closed.
#[test]
fn a_pipeline_of_many_reads() {
    check_all_departures(&b"get secret\r\n".repeat(30_000));
}

/// The socket takes a part of the replies; the rest waits, and the client leaves.
#[test]
fn large_values() {
    check_all_departures(&b"get large\r\nget secret\r\n".repeat(4));
}

/// A value of which a part has arrived.
#[test]
fn an_unfinished_upload() {
    check_all_departures(&[b"set mine 0 0 4000000\r\n", &vec![b's'; 100_000][..]].concat());
}
