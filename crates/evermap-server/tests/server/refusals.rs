//! The refusal of a request that has data behind it follows the data.
//!
//! A client that does not wait, or a proxy whose clients share a connection, takes what it receives
//! for the reply to the oldest request that it has sent completely. A refusal that comes before the
//! data would be dropped, or answer another request, and so would every reply after it.

use std::sync::Arc;

use crate::common::TestSession;
use crate::common::packet::opcode::*;
use crate::common::packet::{Packet, request};
use evermap_server::cache::Cache;
use evermap_server::protocol::{Budget, Credentials, Reservation};

const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad authentication token format\r\n";

/// Looks like requests, none of which may be executed. It is larger than an item may be.
fn data() -> Vec<u8> {
    b"flush_all\r\nset a 0 0 1\r\nx\r\n".repeat(6)
}

/// A request that is refused, cut in front of each byte, with requests before and behind it.
struct Refused {
    /// The request with all its data, and the reply.
    request: Vec<u8>,
    reply: Vec<u8>,
    /// A request that is not refused, and its reply.
    other: Vec<u8>,
    answer: Vec<u8>,
}

impl Refused {
    fn text(line: &str, reply: &str) -> Self {
        let data = data();
        let line = line.replace("LEN", &data.len().to_string()).replace('K', &"k".repeat(251));
        Refused {
            request: [line.as_bytes(), b"\r\n", &data, b"\r\n"].concat(),
            reply: reply.into(),
            other: b"get key\r\n".to_vec(),
            answer: b"END\r\n".to_vec(),
        }
    }

    fn binary(refused: &Packet, reply: &[u8]) -> Self {
        Refused {
            request: refused.bytes(),
            reply: reply.to_vec(),
            other: request(NOOP, "", "").bytes(),
            answer: vec![0x81, NOOP].into_iter().chain([0; 22]).collect(),
        }
    }

    /// Checks the replies of a session to the request.
    #[track_caller]
    fn check(&self, new_session: &dyn Fn() -> TestSession) {
        let Refused { request, reply, other, answer } = self;
        for cut in 0..request.len() {
            let mut session = new_session();
            let (before, behind) = request.split_at(cut);
            let first = session.send(&[other, before].concat());
            assert_eq!(
                first.escape_ascii().to_string(),
                answer.escape_ascii().to_string(),
                "{cut}"
            );
            assert!(session.held_bytes() < 600, "{}", session.held_bytes());
            let second = session.send(&[behind, other].concat());
            let expected = [&reply[..], answer].concat();
            assert_eq!(second.escape_ascii().to_string(), expected.escape_ascii().to_string());
            assert!(!session.is_closed() && session.held_bytes() == 0);
        }
        let mut session = new_session();
        let pipeline = [&other[..], request, request, other, request].concat();
        let replies = [&answer[..], reply, reply, answer, reply].concat();
        for piece in [1, 7, 64, usize::MAX] {
            assert_eq!(session.send_in_pieces(&pipeline, piece), replies, "{piece}");
        }
    }
}

/// Returns a session whose items are smaller than the data.
fn small_items() -> TestSession {
    TestSession::new(150, 1 << 16)
}

/// Returns a session without memory for the data.
fn small_budget() -> TestSession {
    let mut session = TestSession::default();
    session.uploads = Budget::new(100);
    session
}

/// Returns a session whose client has not authenticated.
fn unknown_client() -> TestSession {
    let mut session = TestSession::default();
    session.credentials = Some(Arc::new(Credentials::from_text(b"ann:one\n").unwrap()));
    session
}

#[test]
fn a_value_that_is_too_large() {
    for line in [
        "set a 0 0 LEN",
        "add a 0 0 LEN",
        "replace a 0 0 LEN",
        "append a 0 0 LEN",
        "prepend a 0 0 LEN",
        "cas a 0 0 LEN 1",
        "ms a LEN",
        "ms a LEN ME q",
        "ms a LEN MA C1 O1",
    ] {
        Refused::text(line, TOO_LARGE).check(&small_items);
    }
    Refused::text("set a 0 0 LEN noreply", "").check(&small_items);
    Refused::text("add a 0 0 LEN noreply", "").check(&small_items);
}

#[test]
fn a_line_that_is_malformed() {
    for (line, reply) in [
        ("set a x 0 LEN", BAD_FORMAT),
        ("set a 0 abc LEN", BAD_FORMAT),
        ("set a 4294967296 0 LEN", BAD_FORMAT),
        ("set K 0 0 LEN", BAD_FORMAT),
        ("cas a 0 0 LEN x", BAD_FORMAT),
        ("append a -1 0 LEN", BAD_FORMAT),
        ("set a x 0 LEN noreply", ""),
        ("ms K LEN", BAD_FORMAT),
        ("ms a LEN Fx", BAD_FORMAT),
        ("ms a LEN z", "CLIENT_ERROR invalid flag\r\n"),
        ("ms a LEN v v", "CLIENT_ERROR duplicate flag\r\n"),
        ("ms a LEN MX", "CLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ms a LEN T q", "CLIENT_ERROR bad token in command line format\r\n"),
        ("ms * LEN b", "CLIENT_ERROR error decoding key\r\n"),
    ] {
        Refused::text(line, reply).check(&TestSession::default);
    }
}

/// Without memory, a value of which a part has arrived is refused too: nothing of it is kept.
#[test]
fn a_value_without_memory() {
    for (line, reply) in [
        ("set a 0 0 LEN", NO_MEMORY),
        ("add a 0 0 LEN", NO_MEMORY),
        ("cas a 0 0 LEN 1", NO_MEMORY),
        ("ms a LEN q", NO_MEMORY),
        ("set a 0 0 LEN noreply", ""),
    ] {
        let Refused { request, reply, other, answer } = Refused::text(line, reply);
        for cut in 0..request.len() - 101 {
            let mut session = small_budget();
            assert_eq!(session.send(&request[..cut]), b"");
            // More than the budget allows.
            let last = request.len() - 1;
            assert_eq!(session.send(&request[cut..last]), b"", "{line} {cut}");
            assert_eq!(session.uploads.reserved(), 0);
            let replies = session.send(&[&request[last..], &other].concat());
            assert_eq!(replies, [&reply[..], &answer].concat(), "{line} {cut}");
            assert!(!session.is_closed() && session.held_bytes() == 0);
        }
    }
    let mut session = small_budget();
    let refused = request(SET, "a", "v".repeat(200)).bytes();
    assert_eq!(session.send(&refused[..refused.len() - 1]), b"");
    let replies =
        session.send(&[&refused[refused.len() - 1..], &request(NOOP, "", "").bytes()].concat());
    let replies: Vec<_> = Packet::replies(&replies).iter().map(Packet::show).collect();
    assert_eq!(replies, ["01 82 =Out of memory", "0a 00"]);
}

#[test]
fn data_of_a_client_that_has_not_authenticated() {
    // `get` is refused too, and the client stays where it is.
    let other = b"get key\r\n".to_vec();
    let answer: Vec<u8> = UNAUTHENTICATED.into();
    for (line, reply) in [
        ("set a 0 0 3000", BAD_TOKEN),
        ("add a 0 0 3000", UNAUTHENTICATED),
        ("cas a 0 0 3000 1", UNAUTHENTICATED),
        ("append a x 0 3000", UNAUTHENTICATED),
        ("ms a 3000 T1", UNAUTHENTICATED),
        ("ms a 3000 z", UNAUTHENTICATED),
    ] {
        let request = format!("{line}\r\n{}\r\n", "set auth 0 0 7\r\nann one\r\n".repeat(120));
        let request = [&request.as_bytes()[..line.len() + 3002], b"\r\n"].concat();
        let reply = reply.as_bytes().to_vec();
        let (other, answer) = (other.clone(), answer.clone());
        Refused { request, reply, other, answer }.check(&unknown_client);
    }
}

#[test]
fn a_packet_of_the_binary_protocol() {
    let value = String::from_utf8(data()).unwrap();
    let replies = |session: &mut TestSession, packet: &Packet| {
        let sent = session.send(&packet.bytes());
        Packet::replies(&sent).iter().map(Packet::show).collect::<Vec<_>>()
    };
    for (opcode, text) in [
        (SET, "01 03 =Too large."),
        (SETQ, "11 03 =Too large."),
        (ADD, "02 03 =Too large."),
        (REPLACE, "03 03 =Too large."),
        (APPEND, "0e 03 =Too large."),
        (PREPENDQ, "1a 03 =Too large."),
    ] {
        let refused = request(opcode, "a", &value);
        assert_eq!(replies(&mut small_items(), &refused), [text]);
        let reply = small_items().send(&refused.bytes());
        Refused::binary(&refused, &reply).check(&small_items);
    }
    // A command that does not exist.
    let unknown = request(0x50, "a", &value);
    let reply = TestSession::default().send(&unknown.bytes());
    assert_eq!(Packet::replies(&reply)[0].show(), "50 81 =Unknown command");
    Refused::binary(&unknown, &reply).check(&TestSession::default);
    // A message of an authentication that is too long.
    let long = request(SASL_AUTH, "PLAIN", "x".repeat(3000));
    let reply = unknown_client().send(&long.bytes());
    assert_eq!(Packet::replies(&reply)[0].show(), "21 20 =Auth failure.");
    let mut session = unknown_client();
    let bytes = long.bytes();
    for byte in &bytes[..bytes.len() - 1] {
        assert_eq!(session.send(&[*byte]), b"");
    }
    assert_eq!(session.send(&bytes[bytes.len() - 1..]), reply);
}

/// A client that disconnects in the middle of the data, or keeps sending it, costs no memory.
#[test]
fn the_data_is_not_kept() {
    let budget = Budget::new(1 << 20);
    let mut session = TestSession::default();
    session.uploads = budget.clone();
    session.send(b"set a 0 0 1\r\nx\r\nset a 0 0 2000000000\r\n");
    let piece = vec![b'v'; 64 << 10];
    for _ in 0..1000 {
        assert_eq!(session.send(&piece), b"");
        assert!(session.held_bytes() < 100 && budget.reserved() == 0);
    }
    // The old item is gone as soon as the request is refused.
    assert_eq!(session.cache.peek(b"a", &mut |_| Ok(())), Ok(false));
    assert!(Reservation::new(&budget).try_grow_to(1 << 20));
}
