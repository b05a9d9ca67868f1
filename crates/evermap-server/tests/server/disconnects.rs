//! Replies to a client that has disconnected never reach another client.
//!
//! A worker is blocked in the middle of a lookup while a client sends its requests and disconnects.
//! So the worker reads them when the client is gone, and fails when it sends the replies.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::common::hooked_cache::HookedCache;
use evermap_server::cache::{Cache, StoreMode, StoreRequest};
use evermap_server::{Config, ModelCache, Server};
use rustix::net::sockopt::set_socket_linger;

/// How a client disconnects.
#[derive(Clone, Copy, Debug)]
enum Disconnect {
    /// It resets the connection, which drops all bytes in transit.
    Reset,
    /// It closes the socket as a process that ends does: the kernel resets the connection if unread
    /// bytes have arrived.
    Close,
    /// It shuts down its sending side, and reads only after the other clients were checked.
    HalfClose,
}

impl Disconnect {
    /// Disconnects. Returns the stream if it can still be read.
    fn apply(self, stream: TcpStream) -> Option<TcpStream> {
        match self {
            Disconnect::Reset => set_socket_linger(&stream, Some(Duration::ZERO)).unwrap(),
            Disconnect::Close => {}
            Disconnect::HalfClose => {
                stream.shutdown(Shutdown::Write).unwrap();
                return Some(stream);
            }
        }
        None
    }
}

/// A server that blocks a worker when a client asks for the key `gate`.
struct GatedServer {
    server: Server,
    /// Receives a message when a worker blocks at the gate.
    blocked: Receiver<()>,
    /// Unblocks one worker.
    unblock: Sender<()>,
}

const SECRET: &[u8] = b"secret of a client that is gone!";
const LARGE: usize = 4 << 20;

impl GatedServer {
    fn serve(threads: usize) -> GatedServer {
        let (block, blocked) = channel();
        let (unblock, unblocked) = channel();
        let gate = Mutex::new((block, unblocked));
        let before_get = move |keys: &[&[u8]]| {
            if keys.contains(&&b"gate"[..]) {
                let gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
                gate.0.send(()).unwrap();
                gate.1.recv().unwrap();
            }
        };
        let cache = ModelCache::new(0);
        cache.store(b"secret", SECRET, &StoreRequest::new(StoreMode::Set)).unwrap();
        cache.store(b"large", &vec![b's'; LARGE], &StoreRequest::new(StoreMode::Set)).unwrap();
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            threads,
            item_size_max: 8 << 20,
            ..Config::default()
        };
        let server = Server::start(Arc::new(HookedCache { cache, before_get }), config).unwrap();
        GatedServer { server, blocked, unblock }
    }

    /// Connects a client and waits until its worker serves it.
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

/// Checks that the other clients receive only their own replies when a client disconnects.
#[track_caller]
fn check_disconnect(requests: &[u8], disconnect: Disconnect, threads: usize) {
    let gated = GatedServer::serve(threads);
    // Connections are assigned in turn, so the clients of each group have different workers.
    let mut staying: Vec<_> = (0..threads).map(|_| gated.client()).collect();
    let disconnecting: Vec<_> = (0..threads).map(|_| gated.client()).collect();
    let mut watching: Vec<_> = (0..threads).map(|_| gated.client()).collect();

    // For one worker after the other: a client blocks it at the gate, and another one disconnects.
    let mut half_closed = Vec::new();
    for (at, mut disconnecting) in disconnecting.into_iter().enumerate() {
        staying[at].write_all(b"get gate\r\n").unwrap();
        gated.blocked.recv().unwrap();
        disconnecting.set_nonblocking(true).unwrap();
        // Writes as much as the sockets take, because the worker does not read.
        let _ = disconnecting.write(requests).unwrap();
        disconnecting.set_nonblocking(false).unwrap();
        half_closed.extend(disconnect.apply(disconnecting));
        gated.unblock.send(()).unwrap();
        expect(&mut staying[at], b"END\r\n");
    }
    // In the second round the workers have processed the disconnects, in whatever order they
    // handled the events.
    for _ in 0..2 {
        for client in staying.iter_mut().chain(&mut watching) {
            ask(client, b"get mine\r\n", b"END\r\n");
            ask(client, b"set mine 0 0 1\r\nx\r\ndelete mine\r\n", b"STORED\r\nDELETED\r\n");
        }
    }
    let mut newcomer = gated.client();
    ask(&mut newcomer, b"get mine\r\n", b"END\r\n");
    // A client that only shut down its sending side receives its replies, and then the end.
    for mut stream in half_closed {
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).unwrap();
        let secret = [b"VALUE secret 0 32\r\n", SECRET, b"\r\nEND\r\n"].concat();
        let large = [b"VALUE large 0 4194304\r\n", &vec![b's'; LARGE][..], b"\r\nEND\r\n"].concat();
        let mut left = &replies[..];
        while !left.is_empty() {
            let reply = if left.starts_with(&secret[..9]) { &secret } else { &large };
            left = left.strip_prefix(&reply[..]).expect("complete replies to this client");
        }
    }
}

fn check_all_disconnects(requests: &[u8]) {
    for disconnect in [Disconnect::Reset, Disconnect::Close, Disconnect::HalfClose] {
        for threads in [1, 2] {
            check_disconnect(requests, disconnect, threads);
        }
    }
}

#[test]
fn a_single_reply() {
    check_all_disconnects(b"get secret\r\n");
}

#[test]
fn a_pipeline() {
    check_all_disconnects(&b"get secret\r\n".repeat(30));
}

/// Needs more than one read: the first replies go to a socket that then turns out to be closed.
#[test]
fn a_pipeline_of_many_reads() {
    check_all_disconnects(&b"get secret\r\n".repeat(30_000));
}

/// The socket takes a part of the replies, and the client disconnects before it reads the rest.
#[test]
fn large_values() {
    check_all_disconnects(&b"get large\r\nget secret\r\n".repeat(4));
}

/// The client disconnects when a part of a value has arrived.
#[test]
fn an_unfinished_upload() {
    check_all_disconnects(&[b"set mine 0 0 4000000\r\n", &vec![b's'; 100_000][..]].concat());
}
