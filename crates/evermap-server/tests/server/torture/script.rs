//! Requests and the expected replies.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use super::packets::PacketReply;
use super::values::{LARGE, Random, SHARED, Values, check, shared};
use crate::common::packet::opcode::{GET, QUITQ, SET};
use crate::common::packet::request;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// An expected reply.
pub(crate) enum Reply {
    /// A valid value of each of these keys, then the end.
    Values(Vec<String>),
    /// This value of a key, then the end.
    Exactly(String, Vec<u8>),
    /// A valid value of this key, as mg returns it.
    Meta(String),
    /// This value, as mg returns it.
    MetaExactly(Vec<u8>),
    /// One line.
    Line(String),
    /// A packet of the binary protocol.
    Packet(PacketReply),
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The text protocol, with the commands of the meta protocol in between.
    Text,
    Binary,
}

/// Requests of one connection, in order.
pub(crate) struct Script<'v> {
    values: &'v Values,
    protocol: Protocol,
    /// A part of the names of this connection's own keys.
    name: String,
    /// The values of the connection's own keys.
    own: HashMap<String, Vec<u8>>,
    pub(super) counter: Option<u64>,
    /// The opaque number of the last packet.
    opaque: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) requests: u64,
}

impl<'v> Script<'v> {
    pub(crate) fn new(values: &'v Values, protocol: Protocol, name: String) -> Self {
        Script {
            values,
            protocol,
            name,
            opaque: 0,
            own: HashMap::new(),
            counter: None,
            bytes: Vec::new(),
            replies: Vec::new(),
            requests: 0,
        }
    }

    /// Removes the requests and replies, but keeps the own values.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.replies.clear();
        self.requests = 0;
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value of one of the connection's own keys.
    pub(super) fn own(&self, key: &str) -> Option<Vec<u8>> {
        self.own.get(key).cloned()
    }

    pub(super) fn next_opaque(&mut self) -> u32 {
        self.opaque += 1;
        self.opaque
    }

    /// Returns a request to end the connection, and one that must not be executed any more.
    pub(crate) fn quit(&self) -> Vec<u8> {
        match self.protocol {
            Protocol::Text => b"quit\r\nget shared-0\r\n".to_vec(),
            Protocol::Binary => {
                [request(QUITQ, "", ""), request(GET, "shared-0", "")].map(|p| p.bytes()).concat()
            }
        }
    }

    /// Returns the beginning of a request.
    pub(crate) fn unfinished(&self, random: &mut Random) -> Vec<u8> {
        match self.protocol {
            Protocol::Text => {
                [&b"get shared-0"[..], b"set shared-0 0 0 5\r\nabc"][random.below(2)].to_vec()
            }
            Protocol::Binary => {
                let mut bytes = request(SET, "shared-0", "abcde").bytes();
                bytes.truncate(1 + random.below(bytes.len() - 1));
                bytes
            }
        }
    }

    /// Returns how the reply to a get of a large value begins.
    pub(crate) fn start_of_value(&self) -> &'static [u8] {
        match self.protocol {
            Protocol::Text => b"VALUE shared-",
            Protocol::Binary => b"\x81\x0c",
        }
    }

    fn ask(&mut self, request: &str, reply: Reply) {
        self.ask_without_reply(request);
        self.replies.push(reply);
    }

    fn ask_without_reply(&mut self, request: &str) {
        self.bytes.extend_from_slice(request.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
        self.requests += 1;
    }

    fn line(&mut self, request: &str, reply: impl Into<String>) {
        self.ask(request, Reply::Line(reply.into()));
    }

    /// Adds a random request that is small and has a small reply.
    pub(crate) fn add_small(&mut self, random: &mut Random) {
        if self.protocol == Protocol::Binary {
            return self.add_small_packet(random);
        }
        match random.below(26) {
            0..8 => self.get(random, SHARED - LARGE),
            8..11 => self.set_shared(random.below(SHARED - LARGE), 20 + random.below(400)),
            11..14 => self.set_own(random),
            14..17 => self.get_own(random),
            17 => self.count(random),
            18 => self.rejected(random),
            20.. => self.meta(random),
            _ => self.unusual(random),
        }
    }

    /// Adds a request of the meta protocol.
    fn meta(&mut self, random: &mut Random) {
        let key = self.own_key(random);
        match random.below(6) {
            0..2 => {
                let key = shared(random.below(SHARED - LARGE));
                self.ask(&format!("mg {key} v"), Reply::Meta(key));
            }
            2 => {
                let value = self.values.make(&key, 20 + random.below(2000));
                let quiet = random.one_in(4);
                let flags = if quiet { " q" } else { "" };
                self.bytes.extend(format!("ms {key} {}{flags}\r\n", value.len()).into_bytes());
                self.bytes.extend_from_slice(&value);
                self.bytes.extend_from_slice(b"\r\n");
                self.requests += 1;
                if !quiet {
                    self.replies.push(Reply::Line("HD".into()));
                }
                self.own.insert(key, value);
            }
            3 => match self.own.get(&key).cloned() {
                Some(value) => self.ask(&format!("mg {key} v"), Reply::MetaExactly(value)),
                None => self.line(&format!("mg {key} k"), format!("EN k{key}")),
            },
            4 => match self.own.remove(&key) {
                Some(_) => {
                    self.line(&format!("md {key} O{}", self.name), format!("HD O{}", self.name))
                }
                None => self.line(&format!("md {key} q"), "NF"),
            },
            // Nothing is found, and the end of that is announced.
            _ => {
                for _ in 0..random.below(20) {
                    self.ask_without_reply(&format!("mg absent-{} v k q", self.name));
                }
                self.line("mn", "MN");
            }
        }
    }

    /// Adds a request with a large reply.
    pub(crate) fn get_large(&mut self, random: &mut Random) {
        if self.protocol == Protocol::Binary {
            return self.get_large_packet(random);
        }
        let key = shared(SHARED - 1 - random.below(LARGE));
        self.ask(&format!("get {key}"), Reply::Values(vec![key]));
    }

    fn get(&mut self, random: &mut Random, keys: usize) {
        let keys: Vec<_> = (0..1 + random.below(8)).map(|_| shared(random.below(keys))).collect();
        let verb = ["get", "get", "gets", "gat 0", "gats 0"][random.below(5)];
        self.ask(&format!("{verb} {}", keys.join(" ")), Reply::Values(keys));
    }

    fn set(&mut self, key: &str, value: &[u8], noreply: bool) {
        if self.protocol == Protocol::Binary {
            return self.set_packet(key, value, noreply);
        }
        let word = if noreply { " noreply" } else { "" };
        self.bytes.extend(format!("set {key} 0 0 {}{word}\r\n", value.len()).into_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.requests += 1;
        if !noreply {
            self.replies.push(Reply::Line("STORED".into()));
        }
    }

    pub(crate) fn set_shared(&mut self, number: usize, len: usize) {
        let key = shared(number);
        let value = self.values.make(&key, len);
        self.set(&key, &value, number.is_multiple_of(3));
    }

    /// Adds a request with a large value.
    pub(crate) fn set_large(&mut self, random: &mut Random) {
        self.set_shared(SHARED - 1 - random.below(LARGE), 50_000 + random.below(900_000));
    }

    pub(super) fn own_key(&self, random: &mut Random) -> String {
        format!("own-{}-{}", self.name, random.below(4))
    }

    pub(super) fn set_own(&mut self, random: &mut Random) {
        let key = self.own_key(random);
        let value = self.values.make(&key, 20 + random.below(2000));
        self.set(&key, &value, random.one_in(4));
        self.own.insert(key, value);
    }

    fn get_own(&mut self, random: &mut Random) {
        let key = self.own_key(random);
        let request = format!("get {key}");
        match self.own.get(&key).cloned() {
            Some(value) => self.ask(&request, Reply::Exactly(key, value)),
            None => self.line(&request, "END"),
        }
    }

    fn count(&mut self, random: &mut Random) {
        let key = format!("count-{}", self.name);
        let Some(count) = self.counter else {
            self.line(&format!("incr {key} 1"), "NOT_FOUND");
            self.set(&key, b"0", false);
            self.counter = Some(0);
            return;
        };
        let delta = random.below(1000) as u64;
        self.line(&format!("incr {key} {delta}"), (count + delta).to_string());
        self.counter = Some(count + delta);
    }

    /// Adds a storage command that is rejected, with commands that would do harm as its data.
    fn rejected(&mut self, random: &mut Random) {
        let victim = shared(random.below(SHARED));
        let data = format!("flush_all\r\ndelete {victim}\r\nset {victim} 0 0 1\r\nx\r\nquit");
        let len = data.len();
        let long = "k".repeat(251);
        let (line, reply) = match random.below(7) {
            0 => (format!("set {victim} x 0 {len}"), BAD_FORMAT),
            1 => (format!("set {victim} -1 0 {len}"), BAD_FORMAT),
            2 => (format!("set {victim} 0 soon {len}"), BAD_FORMAT),
            3 => (format!("cas {victim} 0 0 {len} id"), BAD_FORMAT),
            4 => (format!("set {long} 0 0 {len}"), BAD_FORMAT),
            5 => (format!("ms {victim} {len} T0 z"), "CLIENT_ERROR invalid flag"),
            _ => {
                return self
                    .ask_without_reply(&format!("set {victim} x 0 {len} noreply\r\n{data}"));
            }
        };
        self.line(&format!("{line}\r\n{data}"), reply);
    }

    fn unusual(&mut self, random: &mut Random) {
        match random.below(4) {
            0 => self.line("nonsense", "ERROR"),
            1 => self.line(&format!("delete absent-{}", self.name), "NOT_FOUND"),
            2 => self.line(&format!("touch absent-{} 0", self.name), "NOT_FOUND"),
            // The data is longer than announced.
            _ => {
                let key = format!("bad-{}", self.name);
                self.line(&format!("set {key} 0 0 3\r\nabcde"), "CLIENT_ERROR bad data chunk");
                let rest = "CLIENT_ERROR bad command line format";
                self.replies.push(Reply::Line(rest.into()));
            }
        }
    }
}

/// Reads replies and checks every byte.
pub(crate) struct Replies {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
    value: Vec<u8>,
    /// The number of bytes of values that were compared.
    pub(crate) checked: u64,
}

impl Replies {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let stream = BufReader::with_capacity(8 << 10, stream);
        Replies { stream, line: Vec::new(), value: Vec::new(), checked: 0 }
    }

    pub(super) fn reader(&mut self) -> &mut impl Read {
        &mut self.stream
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    /// Returns the next line without its line end, or `None` at the end of the stream.
    #[track_caller]
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        self.line.clear();
        match self.stream.read_until(b'\n', &mut self.line).expect("a line") {
            0 => None,
            _ => Some(self.line.strip_suffix(b"\r\n").expect("a complete line")),
        }
    }

    /// Returns the next line as text.
    #[track_caller]
    pub(crate) fn text(&mut self) -> String {
        self.next_line().expect("a line").escape_ascii().to_string()
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, reply: &Reply) {
        match reply {
            Reply::Line(expected) => {
                let line = self.text();
                assert_eq!(&line, expected);
            }
            Reply::Packet(expected) => self.expect_packet(expected),
            Reply::Values(keys) => {
                for key in keys {
                    self.read_value(key);
                    check(key, &self.value).unwrap_or_else(|wrong| panic!("{wrong}"));
                }
                assert_eq!(self.text(), "END");
            }
            Reply::Exactly(key, value) => {
                self.read_value(key);
                assert!(self.value == *value, "for {key}: {}", self.value.escape_ascii());
                assert_eq!(self.text(), "END");
            }
            Reply::Meta(key) => {
                self.read_meta_value();
                check(key, &self.value).unwrap_or_else(|wrong| panic!("{wrong}"));
            }
            Reply::MetaExactly(value) => {
                self.read_meta_value();
                assert!(self.value == *value, "{}", self.value.escape_ascii());
            }
        }
    }

    #[track_caller]
    fn read_meta_value(&mut self) {
        let line = self.text();
        let len = line.strip_prefix("VA ").unwrap_or_else(|| panic!("{line}"));
        self.read_block(len);
    }

    #[track_caller]
    fn read_value(&mut self, key: &str) {
        let line = self.text();
        let words: Vec<_> = line.split(' ').collect();
        let ["VALUE", found, "0", len, ..] = words[..] else { panic!("for {key}: {line}") };
        assert_eq!(found, key);
        self.read_block(len);
    }

    /// Reads a value of this length and the line end after it.
    #[track_caller]
    fn read_block(&mut self, len: &str) {
        self.value.resize(len.parse::<usize>().expect("a length") + 2, 0);
        self.stream.read_exact(&mut self.value).expect("a value");
        assert!(self.value.ends_with(b"\r\n"), "the value has no end");
        self.value.truncate(self.value.len() - 2);
        self.checked += self.value.len() as u64;
    }
}
