//! A responder to HTTP requests for one resource.
//!
//! It has a thread of its own, so that it answers while all workers are busy, and disturbs none of
//! them. A connection is closed after one reply. The number of connections, the size of a request
//! and the time for all of it are limited. If there are too many connections, those make space that
//! send no request.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::text::MEDIA_TYPE;
use super::{Source, render};

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// The maximum number of connections of clients that read metrics. Each needs a file descriptor.
pub const METRICS_CONNECTIONS_MAX: usize = 32;
/// The maximum length of a request with its headers, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// The time that a client has to send its request, and to read the reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers requests for `/metrics`.
pub(crate) struct Responder {
    listener: TcpListener,
    address: SocketAddr,
    poll: Poll,
    stopper: Arc<Stopper>,
}

/// The connections that wait to be accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Empty,
    /// There may be more.
    More,
    /// The system has no descriptors. The next event, or the end of another connection, is the
    /// occasion to try again.
    Stuck,
}

/// Stops a [`Responder`].
pub(crate) struct Stopper {
    stopping: AtomicBool,
    waker: Waker,
}

impl Stopper {
    /// Makes [`Responder::run`] return.
    pub(crate) fn stop(&self) {
        // Release pairs with the acquire in `run`.
        self.stopping.store(true, Release);
        // Waking fails only if the event queue is closed, and then the responder has ended.
        let _ = self.waker.wake();
    }
}

impl Responder {
    /// Listens on an address. Port 0 stands for any free port.
    ///
    /// # Errors
    /// If the system cannot listen on it, or cannot create an event queue.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Responder> {
        let listen_error = |error: io::Error| {
            let text = format!("cannot listen on {address} for metrics: {error}");
            io::Error::new(error.kind(), text)
        };
        let mut listener = TcpListener::bind(address).map_err(listen_error)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stopper = Arc::new(Stopper { stopping: AtomicBool::new(false), waker });
        Ok(Responder { listener, address, poll, stopper })
    }

    /// Returns the address that the responder listens on.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns what stops the responder.
    pub(crate) fn stopper(&self) -> Arc<Stopper> {
        self.stopper.clone()
    }

    /// Serves requests until it is stopped.
    pub(crate) fn run(mut self, source: &dyn Source) {
        let mut events = Events::with_capacity(METRICS_CONNECTIONS_MAX + 2);
        let mut connections: [Option<Connection>; METRICS_CONNECTIONS_MAX] = Default::default();
        let mut queue = Queue::More;
        // Acquire pairs with the release in `stop`.
        while !self.stopper.stopping.load(Acquire) {
            let deadlines = connections.iter().flatten().map(|connection| connection.deadline);
            let timeout = match queue {
                Queue::More => Some(Duration::ZERO),
                _ => deadlines.min().map(|at| at.saturating_duration_since(Instant::now())),
            };
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue failed and cannot be repaired.
                return;
            }
            for event in &events {
                match event.token() {
                    LISTENER => queue = Queue::More,
                    WAKER => {}
                    Token(token) => serve(&mut connections[token], source),
                }
            }
            let now = Instant::now();
            for slot in &mut connections {
                slot.take_if(|connection| connection.deadline <= now);
            }
            if queue != Queue::Empty {
                queue = self.accept(&mut connections, source);
            }
        }
    }

    /// Accepts some connections.
    fn accept(
        &mut self,
        connections: &mut [Option<Connection>; METRICS_CONNECTIONS_MAX],
        source: &dyn Source,
    ) -> Queue {
        // Those that are open get their turn in between.
        for _ in 0..METRICS_CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    let token = make_space(connections);
                    let both = Interest::READABLE | Interest::WRITABLE;
                    let registered = self.poll.registry().register(&mut stream, Token(token), both);
                    if registered.is_ok() {
                        connections[token] = Some(Connection::new(stream));
                        serve(&mut connections[token], source);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Queue::Empty,
                    _ => return Queue::Stuck,
                },
            }
        }
        Queue::More
    }
}

/// Returns the index of an unused slot. If there is none, closes the connection that is of least
/// use, and of those the oldest.
fn make_space(connections: &mut [Option<Connection>; METRICS_CONNECTIONS_MAX]) -> usize {
    // An unused slot is the least.
    let use_of = |slot: &Option<Connection>| {
        slot.as_ref().map(|connection| (connection.state.rank(), connection.deadline))
    };
    let least =
        (0..METRICS_CONNECTIONS_MAX).min_by_key(|&token| use_of(&connections[token])).unwrap_or(0);
    connections[least] = None;
    least
}

/// Continues with a connection, and closes it at its end.
fn serve(slot: &mut Option<Connection>, source: &dyn Source) {
    slot.take_if(|connection| !connection.turn(source));
}

struct Connection {
    stream: TcpStream,
    deadline: Instant,
    state: State,
}

enum State {
    /// The bytes of a request that has not arrived completely.
    Request(Vec<u8>),
    /// A reply of which some bytes were sent.
    Reply { bytes: Vec<u8>, sent: usize },
    /// The reply was sent. What the client still sends is dropped until it closes the connection:
    /// to close it with unread bytes could destroy the reply.
    Closing,
}

impl State {
    /// Returns how much it matters that a connection in this state stays open.
    fn rank(&self) -> u8 {
        match self {
            State::Closing => 0,
            State::Request(_) => 1,
            State::Reply { .. } => 2,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if matches!(self.state, State::Reply { .. }) {
            // The system would keep the rest of the reply for a client that does not read it. If
            // this fails, it does so for a while.
            let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        let deadline = Instant::now() + TIMEOUT;
        Connection { stream, deadline, state: State::Request(Vec::new()) }
    }

    /// Goes on as far as the socket allows. Returns `false` at the end of the connection.
    fn turn(&mut self, source: &dyn Source) -> bool {
        loop {
            let error = match &mut self.state {
                State::Request(request) => match read_request(&mut self.stream, request) {
                    Ok(Some(reply)) => {
                        self.state = State::Reply { bytes: reply.bytes(source), sent: 0 };
                        continue;
                    }
                    Ok(None) => return false,
                    Err(error) => error,
                },
                State::Reply { bytes, sent } => match self.stream.write(&bytes[*sent..]) {
                    Ok(0) => return false,
                    Ok(len) => {
                        *sent += len;
                        if *sent == bytes.len() {
                            // If this fails, the client is gone, which the next read tells.
                            let _ = self.stream.shutdown(std::net::Shutdown::Write);
                            self.state = State::Closing;
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                State::Closing => match self.stream.read(&mut [0; 4096]) {
                    Ok(0) => return false,
                    Ok(_) => continue,
                    Err(error) => error,
                },
            };
            match error.kind() {
                ErrorKind::WouldBlock => return true,
                ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
    }
}

/// Reads until the request is complete and returns the reply to it, or `None` if the client closes
/// the connection before.
fn read_request(stream: &mut TcpStream, request: &mut Vec<u8>) -> io::Result<Option<Reply>> {
    let mut buffer = [0; 1024];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(None);
        }
        request.extend_from_slice(&buffer[..len]);
        if let Some(reply) = Reply::to(request) {
            return Ok(Some(reply));
        }
    }
}

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    status: Status,
    /// Whether the request was HEAD, whose reply has no content.
    head: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLarge,
}

impl Reply {
    /// Returns the reply to a request, or `None` if it is not complete.
    fn to(request: &[u8]) -> Option<Reply> {
        let complete = ends_headers(request);
        if !complete && request.len() <= REQUEST_MAX {
            return None;
        }
        let error = |status| Some(Reply { status, head: false });
        if !complete || request.len() > REQUEST_MAX {
            return error(Status::TooLarge);
        }
        let line = request.split(|&byte| byte == b'\r' || byte == b'\n').next()?;
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let [method, target, version] = words[..] else { return error(Status::BadRequest) };
        if !version.starts_with(b"HTTP/1.") {
            return error(Status::BadRequest);
        }
        let head = method == b"HEAD";
        let path = target.split(|&byte| byte == b'?').next()?;
        let status = match path {
            b"/metrics" if head || method == b"GET" => Status::Ok,
            b"/metrics" => Status::MethodNotAllowed,
            _ => Status::NotFound,
        };
        Some(Reply { status, head })
    }

    fn bytes(self, source: &dyn Source) -> Vec<u8> {
        let (status, more) = match self.status {
            Status::Ok => ("200 OK", ""),
            Status::BadRequest => ("400 Bad Request", ""),
            Status::NotFound => ("404 Not Found", ""),
            Status::MethodNotAllowed => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
            Status::TooLarge => ("431 Request Header Fields Too Large", ""),
        };
        let (media_type, content) = match self.status {
            Status::Ok => (MEDIA_TYPE, render(source)),
            Status::NotFound => ("text/plain", "The metrics are at /metrics.\n".to_owned()),
            _ => ("text/plain", format!("{status}\n")),
        };
        let len = content.len();
        let mut reply = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len}\r\n\
             {more}Connection: close\r\n\r\n"
        );
        if !self.head {
            reply.push_str(&content);
        }
        reply.into_bytes()
    }
}

/// Returns `true` if the request has the empty line that ends its headers.
fn ends_headers(request: &[u8]) -> bool {
    let mut lines = request.split(|&byte| byte == b'\n');
    // What follows the last line feed is no line.
    lines.next_back();
    lines.skip(1).any(|line| line.is_empty() || line == b"\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_their_replies() {
        let reply = |request: &str| Reply::to(request.as_bytes());
        let ok = Some(Reply { status: Status::Ok, head: false });
        let error = |status| Some(Reply { status, head: false });
        assert_eq!(reply("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), ok);
        assert_eq!(reply("GET /metrics?x=1 HTTP/1.0\n\n"), ok);
        assert_eq!(
            reply("HEAD /metrics HTTP/1.1\r\n\r\n"),
            Some(Reply { status: Status::Ok, head: true })
        );
        for unfinished in ["", "GET", "GET /metrics HTTP/1.1\r\n", "\r\n", "a\r\nb\r\nc"] {
            assert_eq!(reply(unfinished), None, "{unfinished:?}");
        }
        assert_eq!(reply("GET / HTTP/1.1\r\n\r\n"), error(Status::NotFound));
        assert_eq!(reply("POST /metrics HTTP/1.1\r\n\r\n"), error(Status::MethodNotAllowed));
        for bad in
            ["\r\n\r\n", "GET /metrics\r\n\r\n", "GET  /metrics HTTP/1.1\r\n\r\n", "a b c\n\n"]
        {
            assert_eq!(reply(bad), error(Status::BadRequest), "{bad:?}");
        }
        let large = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(REQUEST_MAX));
        assert_eq!(reply(&large), error(Status::TooLarge));
    }
}
