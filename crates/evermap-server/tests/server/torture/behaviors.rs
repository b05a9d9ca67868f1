//! The behaviors of the clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};

use super::Totals;
use super::script::{Protocol, Replies, Reply, Script};
use super::values::{LARGE, Random, SHARED, Values, shared};

/// What a client does with a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Behavior {
    /// Sends pipelines, reads the replies, and sends `quit`.
    Quits,
    /// Sends pipelines, reads the replies, and closes the connection.
    Closes,
    /// Sends a pipeline, shuts down its sending side, and reads to the end.
    HalfCloses,
    /// Sends a pipeline, reads some of the replies or none, and resets the connection.
    Resets,
    /// Sends a pipeline, reads some of the replies or none, and closes the connection.
    LeavesUnread,
    /// Requests large values and reads them in small pieces.
    ReadsSlowly,
    /// Requests several large values and disconnects in the middle of one.
    LeavesInAValue,
    /// Stores large values.
    Uploads,
    /// Announces a large value, sends a part of it, and disconnects.
    LeavesInAnUpload,
    /// Sends a pipeline a few bytes at a time.
    SendsSlowly,
    /// Sends random bytes.
    SendsGarbage,
}

pub(crate) const BEHAVIORS: [Behavior; 11] = [
    Behavior::Quits,
    Behavior::Closes,
    Behavior::HalfCloses,
    Behavior::Resets,
    Behavior::LeavesUnread,
    Behavior::ReadsSlowly,
    Behavior::LeavesInAValue,
    Behavior::Uploads,
    Behavior::LeavesInAnUpload,
    Behavior::SendsSlowly,
    Behavior::SendsGarbage,
];

pub(crate) struct Client<'t> {
    number: usize,
    address: SocketAddr,
    values: &'t Values,
    totals: &'t Totals,
    random: Random,
    connections: usize,
}

impl<'t> Client<'t> {
    pub(crate) fn new(
        number: usize,
        address: SocketAddr,
        values: &'t Values,
        totals: &'t Totals,
    ) -> Self {
        let random = Random::new(number);
        Client { number, address, values, totals, random, connections: 0 }
    }

    /// Opens a connection, behaves in a random way, and closes it.
    pub(crate) fn connect_and_behave(&mut self) {
        let random = &mut self.random;
        // Favours the behaviors with small requests, because large values would take all the time.
        let behavior = match random.below(16) {
            few @ 0..11 => few,
            _ => random.below(5),
        };
        self.totals.connections[behavior].fetch_add(1, Relaxed);
        match BEHAVIORS[behavior] {
            behavior @ (Behavior::Quits | Behavior::Closes) => {
                self.converse(behavior == Behavior::Quits)
            }
            Behavior::HalfCloses => self.half_close(),
            behavior @ (Behavior::Resets | Behavior::LeavesUnread) => {
                self.leave_unread(behavior == Behavior::Resets);
            }
            Behavior::ReadsSlowly => self.read_slowly(),
            Behavior::LeavesInAValue => self.leave_in_a_value(),
            Behavior::Uploads => self.upload(),
            Behavior::LeavesInAnUpload => self.leave_in_an_upload(),
            Behavior::SendsSlowly => self.send_slowly(),
            Behavior::SendsGarbage => self.send_garbage(),
        }
    }

    /// Opens a connection for either protocol.
    fn connect(&mut self) -> (Replies, Script<'t>) {
        let binary = self.random.one_in(3);
        self.connect_for(if binary { Protocol::Binary } else { Protocol::Text })
    }

    fn connect_for(&mut self, protocol: Protocol) -> (Replies, Script<'t>) {
        self.connections += 1;
        let name = format!("{}-{}", self.number, self.connections);
        let script = Script::new(self.values, protocol, name);
        let stream = loop {
            match TcpStream::connect(self.address) {
                Ok(stream) => break stream,
                // The system does not reuse the ports of recently closed connections immediately.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("{error}"),
            }
        };
        stream.set_nodelay(true).unwrap();
        // Long enough for a busy machine: it expires only if a reply never arrives.
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        (Replies::new(stream), script)
    }

    /// Adds a pipeline of 1 to `max` small requests to the script.
    fn pipeline(&mut self, script: &mut Script<'_>, max: usize) {
        for _ in 0..1 + self.random.below(max) {
            script.add_small(&mut self.random);
        }
    }

    /// Counts the requests of a script.
    fn sent(&self, script: &Script<'_>) {
        self.totals.requests.fetch_add(script.requests, Relaxed);
    }

    fn checked(&self, replies: &Replies) {
        self.totals.checked.fetch_add(replies.checked, Relaxed);
    }

    /// Sends the script, reads the replies, and clears it.
    fn exchange(&self, replies: &mut Replies, script: &mut Script<'_>) {
        replies.stream().write_all(&script.bytes).unwrap();
        script.replies.iter().for_each(|reply| replies.expect(reply));
        self.sent(script);
        script.clear();
    }

    fn converse(&mut self, quit: bool) {
        let (mut replies, mut script) = self.connect();
        for _ in 0..1 + self.random.below(20) {
            let max = if self.random.one_in(10) { 100 } else { 20 };
            self.pipeline(&mut script, max);
            self.exchange(&mut replies, &mut script);
        }
        if quit {
            replies.stream().write_all(&script.quit()).unwrap();
            assert_eq!(replies.next_line(), None);
        }
        self.checked(&replies);
    }

    fn half_close(&mut self) {
        let (mut replies, mut script) = self.connect();
        self.pipeline(&mut script, 60);
        // An unfinished request.
        script.bytes.extend(script.unfinished(&mut self.random));
        replies.stream().write_all(&script.bytes).unwrap();
        replies.stream().shutdown(Shutdown::Write).unwrap();
        self.sent(&script);
        script.replies.iter().for_each(|reply| replies.expect(reply));
        assert_eq!(replies.next_line(), None);
        self.checked(&replies);
    }

    fn leave_unread(&mut self, reset: bool) {
        let (mut replies, mut script) = self.connect();
        if self.random.one_in(2) {
            self.pipeline(&mut script, 10);
            self.exchange(&mut replies, &mut script);
        }
        self.pipeline(&mut script, 100);
        replies.stream().write_all(&script.bytes).unwrap();
        self.sent(&script);
        let some = self.random.below(script.replies.len() + 1);
        let some = if self.random.one_in(2) { 0 } else { some };
        script.replies[..some].iter().for_each(|reply| replies.expect(reply));
        self.checked(&replies);
        if reset {
            reset_at_drop(replies.stream());
        }
    }

    fn read_slowly(&mut self) {
        let (mut replies, mut script) = self.connect();
        // A small buffer, so that the server has to wait.
        set_socket_recv_buffer_size(replies.stream(), 64 << 10).unwrap();
        script.get_large(&mut self.random);
        self.pipeline(&mut script, 40);
        script.get_large(&mut self.random);
        replies.stream().write_all(&script.bytes).unwrap();
        self.sent(&script);
        for reply in &script.replies {
            std::thread::yield_now();
            replies.expect(reply);
        }
        self.checked(&replies);
    }

    fn leave_in_a_value(&mut self) {
        let (mut replies, mut script) = self.connect();
        for _ in 0..1 + self.random.below(10) {
            script.get_large(&mut self.random);
        }
        self.pipeline(&mut script, 10);
        replies.stream().write_all(&script.bytes).unwrap();
        self.sent(&script);
        let mut part = vec![0; 1 + self.random.below(50_000)];
        replies.stream().read_exact(&mut part).unwrap();
        let expected = script.start_of_value();
        let start = &part[..part.len().min(expected.len())];
        assert!(expected.starts_with(start), "{}", start.escape_ascii());
        if self.random.one_in(2) {
            reset_at_drop(replies.stream());
        }
    }

    fn upload(&mut self) {
        let (mut replies, mut script) = self.connect();
        for _ in 0..1 + self.random.below(3) {
            script.set_large(&mut self.random);
        }
        self.exchange(&mut replies, &mut script);
        self.pipeline(&mut script, 5);
        self.exchange(&mut replies, &mut script);
        self.checked(&replies);
    }

    fn leave_in_an_upload(&mut self) {
        let (mut replies, mut script) = self.connect();
        self.pipeline(&mut script, 5);
        self.exchange(&mut replies, &mut script);
        script.set_large(&mut self.random);
        let part = self.random.below(script.bytes.len());
        replies.stream().write_all(&script.bytes[..part]).unwrap();
        self.sent(&script);
        self.checked(&replies);
        if self.random.one_in(2) {
            reset_at_drop(replies.stream());
        }
    }

    fn send_slowly(&mut self) {
        let (mut replies, mut script) = self.connect();
        self.pipeline(&mut script, 10);
        let mut left = &script.bytes[..];
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(1 + self.random.below(300)));
            replies.stream().write_all(piece).unwrap();
            std::thread::yield_now();
            left = rest;
        }
        script.replies.iter().for_each(|reply| replies.expect(reply));
        self.sent(&script);
        self.checked(&replies);
    }

    fn send_garbage(&mut self) {
        let (mut replies, mut script) = self.connect_for(Protocol::Text);
        let mut bytes: Vec<u8> =
            (0..self.random.below(4000)).map(|_| self.random.below(256) as u8).collect();
        let binary = self.random.one_in(4);
        if binary {
            bytes.insert(0, 0x80);
        }
        script.requests = 1;
        self.sent(&script);
        // The server may close before it has read everything, which resets the connection.
        let _ = replies.stream().write_all(&bytes);
        let _ = replies.stream().shutdown(Shutdown::Write);
        let mut received = Vec::new();
        let _ = replies.stream().read_to_end(&mut received);
        if binary {
            assert!(received.is_empty() || received[0] == 0x81, "{}", received.escape_ascii());
            return;
        }
        for line in received.split(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\r")) {
            assert!(
                line.starts_with(b"ERROR") || line.starts_with(b"CLIENT_ERROR"),
                "unexpected reply to garbage: {}",
                line.escape_ascii()
            );
        }
    }

    pub(crate) fn store_all_shared_values(&mut self) {
        let (mut replies, mut script) = self.connect_for(Protocol::Text);
        for number in 0..SHARED {
            let len = if number < SHARED - LARGE { 100 } else { 500_000 };
            script.set_shared(number, len);
            self.exchange(&mut replies, &mut script);
        }
        // The last one may have no reply. A connection's requests are executed in order.
        replies.stream().write_all(b"mn\r\n").unwrap();
        replies.expect(&Reply::Line("MN".into()));
    }

    pub(crate) fn check_all_shared_values(&mut self) {
        let (mut replies, _) = self.connect_for(Protocol::Text);
        for number in 0..SHARED {
            let key = shared(number);
            replies.stream().write_all(format!("get {key}\r\n").as_bytes()).unwrap();
            replies.expect(&Reply::Values(vec![key]));
        }
    }

    /// Requests one statistic.
    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        let (mut replies, _) = self.connect_for(Protocol::Text);
        replies.stream().write_all(b"stats\r\n").unwrap();
        let prefix = format!("STAT {name} ");
        let mut found = None;
        loop {
            let line = replies.text();
            match line.strip_prefix(&prefix) {
                Some(value) => found = Some(value.parse().unwrap()),
                None if line == "END" => return found.expect("a statistic"),
                None => {}
            }
        }
    }
}

/// Makes the drop of the stream reset the connection.
fn reset_at_drop(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}
