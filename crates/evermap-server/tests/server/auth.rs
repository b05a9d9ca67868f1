//! Authentication in both protocols.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::packet::opcode::*;
use crate::common::packet::{Packet, request};
use crate::common::{NOW, TestSession};
use evermap_server::protocol::{Binding, Budget, Credentials};
use evermap_server::stats::Count;
use evermap_server::{Config, ModelCache, Server};

const FILE: &[u8] = b"ann:one\nbob:two words:and more\n";

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated|";
const FAILURE: &str = "CLIENT_ERROR authentication failure|";
const BAD_TOKEN: &str = "CLIENT_ERROR bad authentication token format|";
const BAD_END: &str = "CLIENT_ERROR bad command line termination|";

fn session() -> TestSession {
    session_with(1 << 20, 1 << 16)
}

/// Returns a session with these limits, in bytes.
fn session_with(item_size_max: usize, output_limit: usize) -> TestSession {
    let mut session = TestSession::new(item_size_max, output_limit);
    session.credentials = Some(Arc::new(Credentials::from_text(FILE).unwrap()));
    session
}

/// Sends lines, written with `|` for each line end, and returns the replies in the same form.
fn send(session: &mut TestSession, lines: &str) -> String {
    let replies = session.send(lines.replace('|', "\r\n").as_bytes());
    String::from_utf8(replies).unwrap().replace("\r\n", "|")
}

#[test]
fn a_text_client_sends_its_user_and_password_as_a_value() {
    for (request, reply) in [
        ("set auth 0 0 7|ann one|get a|", "STORED|END|"),
        ("set auth 0 0 22|bob two words:and more|get a|", "STORED|END|"),
        // Only the length matters, and words behind it do not.
        ("set x y z 7|ann one|get a|", "STORED|END|"),
        ("set auth 0 0 7 noreply|ann one|get a|", "STORED|END|"),
        (" set  auth 0 0 +7 more words|ann one|get a|", "STORED|END|"),
        // Failures leave the client where it was.
        ("set auth 0 0 7|ann two|get a|", &[FAILURE, UNAUTHENTICATED].concat()),
        ("set auth 0 0 7|ANN one|", FAILURE),
        ("set auth 0 0 8|ann  one|", FAILURE),
        ("set auth 0 0 4|ann ||", &[FAILURE, UNAUTHENTICATED].concat()),
        ("set auth 0 0 1| |", FAILURE),
        ("set auth 0 0 0||", BAD_TOKEN),
        ("set auth 0 0 3|ann|", BAD_TOKEN),
        ("set auth 0 0 6|ann one|", &[BAD_END, UNAUTHENTICATED].concat()),
        (
            "set auth 0 0 7|ann two|set auth 0 0 7|ann one|get a|",
            &[FAILURE, "STORED|END|"].concat(),
        ),
        ("set auth 0 0 x|", UNAUTHENTICATED),
        ("set auth 0 0|", UNAUTHENTICATED),
        ("set auth 0 0 -1|", UNAUTHENTICATED),
        ("set auth 0 0 4294967296|", UNAUTHENTICATED),
        ("add auth 0 0 7|ann one|get a|", &UNAUTHENTICATED.repeat(2)),
        ("ms auth 7|ann one|get a|", &UNAUTHENTICATED.repeat(2)),
        ("|", UNAUTHENTICATED),
    ] {
        for piece in [usize::MAX, 1] {
            let mut session = session();
            let bytes = request.replace('|', "\r\n");
            let replies = session.send_in_pieces(bytes.as_bytes(), piece.min(bytes.len()));
            let replies = String::from_utf8(replies).unwrap().replace("\r\n", "|");
            assert_eq!(replies, reply, "{request}");
            assert!(!session.is_closed() && session.held_bytes() == 0);
        }
    }
}

#[test]
fn no_command_is_executed_before_the_client_has_authenticated() {
    for command in [
        "get a",
        "gets a",
        "gat 0 a",
        "delete a",
        "incr a 1",
        "touch a 0",
        "flush_all",
        "version",
        "verbosity 1",
        "stats",
        "stats reset",
        "shutdown",
        "quit",
        "mg a v",
        "md a",
        "ma a",
        "mn",
        "me a",
        "cache_memlimit 1",
        "watch",
        "lru_crawler metadump all",
        "nonsense",
        "GET / HTTP/1.1",
    ] {
        let mut session = session();
        assert_eq!(send(&mut session, &format!("{command}|")), UNAUTHENTICATED, "{command}");
        assert!(!session.is_closed());
        for count in [Count::CmdGet, Count::CmdFlush, Count::CmdTouch, Count::DeleteMisses] {
            assert_eq!(session.counters.get(count), 0, "{command}");
        }
    }
    // Storage commands too: their data is not executed, and a set is only a wrong password.
    let mut session = session();
    let replies = send(&mut session, "set a 0 0 11|flush_all 0|set a 0 0 5|x y z|");
    assert_eq!(replies, [FAILURE, FAILURE].concat());
    assert_eq!(send(&mut session, "set auth 0 0 7|ann one|get a|"), "STORED|END|");
    assert_eq!(session.counters.get(Count::CmdSet), 0);
    assert_eq!(session.counters.get(Count::CmdFlush), 0);
}

#[test]
fn what_an_unknown_client_sends_costs_little_memory() {
    // Data that is too long to be a user and a password is skipped.
    let mut session = session();
    assert_eq!(send(&mut session, "set auth 0 0 1000000|"), "");
    let data = b"set auth 0 0 7\r\nann one\r\n".repeat(40_000);
    for piece in data[..1_000_000].chunks(10_000) {
        assert_eq!(session.send(piece), b"");
        assert!(session.held_bytes() < 100);
    }
    let replies = send(&mut session, "|set auth 0 0 7|ann one|");
    assert_eq!(replies, [BAD_TOKEN, "STORED|"].concat());

    // A line without an end.
    let mut session = self::session();
    assert_eq!(session.send(&[b'x'; 2048]), b"");
    assert_eq!(session.send(b"y"), b"CLIENT_ERROR line too long\r\n");
    assert!(session.is_closed() && session.held_bytes() == 0);

    // Many lines, whose replies are longer than they are.
    let mut session = session_with(300, 100);
    assert_eq!(session.send(&b"\n".repeat(10_000)).len(), 10_000 * (UNAUTHENTICATED.len() + 1));
    assert!(session.resumed > 1000);

    // The memory counts as that of other uploads.
    let mut session = self::session();
    session.uploads = Budget::new(10);
    assert_eq!(send(&mut session, "set auth 0 0 20|ann |"), "");
    assert_eq!(
        send(&mut session, "more than ten bytes|"),
        ["SERVER_ERROR out of memory reading request|", UNAUTHENTICATED].concat()
    );
}

/// Sends requests and returns the replies as text.
fn ask(session: &mut TestSession, requests: &[Packet]) -> Vec<String> {
    let sent: Vec<u8> = requests.iter().flat_map(Packet::bytes).collect();
    Packet::replies(&session.send(&sent)).iter().map(Packet::show).collect()
}

fn plain(message: &str) -> Packet {
    request(SASL_AUTH, "PLAIN", message)
}

const SUCCESS: &str = "21 00 =Authenticated";

#[test]
fn a_binary_client_authenticates_by_sasl_plain() {
    let noop = request(NOOP, "", "");
    for (message, known) in [
        ("\0ann\0one", true),
        ("ann\0ann\0one", true),
        ("\0bob\0two words:and more", true),
        ("bob\0ann\0one", false),
        ("\0ann\0two", false),
        ("\0ann\0", false),
        ("\0\0", false),
        ("\0ann", false),
        ("ann\0one", false),
        ("\0ann\0one\0", false),
        ("x", false),
    ] {
        for piece in [usize::MAX, 1] {
            let mut session = session();
            let sent = [plain(message).bytes(), noop.bytes()].concat();
            let replies = Packet::replies(&session.send_in_pieces(&sent, piece.min(sent.len())));
            let shown: Vec<_> = replies.iter().map(Packet::show).collect();
            if known {
                assert_eq!(shown, [SUCCESS, "0a 00"], "{message:?}");
            } else {
                assert_eq!(shown, ["21 20 =Auth failure.", "0a 20 =Auth failure."], "{message:?}");
            }
            assert_eq!(session.is_closed(), !known);
            assert_eq!(session.counters.get(Count::AuthCmds), 1);
            assert_eq!(session.counters.get(Count::AuthErrors), u64::from(!known));
        }
    }
}

#[test]
fn the_message_can_follow_in_a_second_step() {
    let step = |message| request(SASL_STEP, "PLAIN", message);
    let noop = request(NOOP, "", "");
    let mut session = session();
    assert_eq!(
        ask(&mut session, &[plain(""), step("\0ann\0one"), noop.clone()]),
        ["21 21", "22 00 =Authenticated", "0a 00"]
    );
    let mut session = self::session();
    assert_eq!(
        ask(&mut session, &[plain(""), step("\0ann\0two"), step("\0ann\0one"), noop.clone()]),
        ["21 21", "22 20 =Auth failure.", "22 20 =Auth failure.", "0a 20 =Auth failure."]
    );
    // A step needs a start.
    let mut session = self::session();
    assert_eq!(ask(&mut session, &[step("\0ann\0one")]), ["22 20 =Auth failure."]);
    // A client that begins again is unknown until it succeeds.
    let mut session = self::session();
    assert_eq!(
        ask(&mut session, &[plain("\0ann\0one"), plain(""), noop]),
        [SUCCESS, "21 21", "0a 20 =Auth failure."]
    );
}

#[test]
fn mechanisms() {
    let mut session = session();
    let long = "X".repeat(33);
    assert_eq!(
        ask(
            &mut session,
            &[
                request(SASL_LIST, "", ""),
                request(SASL_AUTH, "CRAM-MD5", ""),
                request(SASL_AUTH, "plain", "\0ann\0one"),
                request(SASL_AUTH, &long, "\0ann\0one"),
                request(SASL_AUTH, "PLAIN", "x".repeat(2049)),
                plain("\0ann\0one"),
            ]
        ),
        [
            "20 00 =PLAIN",
            "21 20 =Auth failure.",
            "21 20 =Auth failure.",
            "21 04 =Invalid arguments",
            "21 20 =Auth failure.",
            SUCCESS
        ]
    );
    assert_eq!(session.counters.get(Count::AuthErrors), 3);
}

/// An unknown client may only ask for the version and authenticate. Anything else closes the
/// connection, as in memcached.
#[test]
fn every_other_opcode_needs_authentication() {
    for opcode in 0..=0xff {
        let packet = match opcode {
            VERSION => {
                let mut session = session();
                assert_eq!(ask(&mut session, &[request(VERSION, "", "")]).len(), 1);
                assert!(!session.is_closed());
                continue;
            }
            SASL_LIST..=SASL_STEP => continue,
            NOOP | QUIT | QUITQ | FLUSH | FLUSHQ | STAT | VERBOSITY => request(opcode, "", ""),
            _ => request(opcode, "a", ""),
        };
        let mut session = session();
        let replies = ask(&mut session, &[packet, plain("\0ann\0one")]);
        assert_eq!(replies, [format!("{opcode:02x} 20 =Auth failure.")]);
        assert!(session.is_closed());
        assert_eq!(session.counters.get(Count::AuthCmds), 0);
        assert_eq!(session.counters.get(Count::CmdSet), 0);
    }
}

/// The two protocols share the users, and each session needs its own authentication.
#[test]
fn over_real_sockets_and_a_file_that_changes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    std::fs::write(&file, FILE).unwrap();
    let credentials = Arc::new(Credentials::load(&file).unwrap());
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        threads: 1,
        credentials: Some(credentials.clone()),
        ..Config::default()
    };
    let server = Server::start(Arc::new(ModelCache::new(NOW)), config).unwrap();
    let connect = || TcpStream::connect(server.local_addr()).unwrap();
    let ask = |stream: &mut TcpStream, sent: &[u8], reply: &[u8]| {
        stream.write_all(sent).unwrap();
        let mut read = vec![0; reply.len()];
        stream.read_exact(&mut read).unwrap();
        assert!(read == reply, "{}", read.escape_ascii());
    };
    let ann = b"set x 0 0 7\r\nann one\r\n";
    let mut text = connect();
    ask(&mut text, b"get a\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    ask(&mut text, ann, b"STORED\r\n");
    ask(&mut text, b"get a\r\n", b"END\r\n");
    let mut binary = connect();
    binary
        .write_all(&[plain("\0ann\0one").bytes(), request(QUIT, "", "").bytes()].concat())
        .unwrap();
    let mut replies = Vec::new();
    binary.read_to_end(&mut replies).unwrap();
    let shown: Vec<_> = Packet::replies(&replies).iter().map(Packet::show).collect();
    assert_eq!(shown, [SUCCESS, "07 00"]);
    ask(&mut connect(), b"get a\r\n", b"CLIENT_ERROR unauthenticated\r\n");

    // After a change, only new attempts need the new password.
    std::fs::write(&file, "ann:new\n").unwrap();
    credentials.reload().unwrap();
    ask(&mut text, b"get a\r\n", b"END\r\n");
    let mut other = connect();
    ask(&mut other, ann, b"CLIENT_ERROR authentication failure\r\n");
    ask(&mut other, b"set x 0 0 7\r\nann new\r\n", b"STORED\r\n");
    std::fs::write(&file, "broken\n").unwrap();
    assert!(credentials.reload().is_err());
    ask(&mut connect(), b"set x 0 0 7\r\nann new\r\n", b"STORED\r\n");
}

#[test]
fn the_binding_still_decides_about_the_protocols() {
    let mut session = session();
    session.binding = Binding::Binary;
    assert_eq!(send(&mut session, "set x 0 0 7|ann one|"), "");
    assert!(session.is_closed());
    let mut session = self::session();
    session.binding = Binding::Ascii;
    assert_eq!(ask(&mut session, &[plain("\0ann\0one")]), [""; 0]);
    assert!(session.is_closed());
}

/// Lines and packets of clients that try to authenticate.
fn attempts() -> impl Strategy<Value = Vec<u8>> {
    let lines = [
        "set auth 0 0 7\r\nann one\r\n",
        "set auth 0 0 7\r\nann two\r\n",
        "set a 0 0 3\r\nann\r\n",
        "set a 0 0 3\r\nann two\r\n",
        "set a 0 0 3000\r\n",
        "get a\r\n",
        "set b 0 0 1\r\nx\r\n",
        "\n",
        "set a 0 0 0\r\n\r\n",
        "set a 0 0",
        "quit\r\n",
        "gets a b\n",
    ];
    let line = select(lines.map(|line| line.as_bytes().to_vec()).to_vec());
    let packets = [
        plain("\0ann\0one"),
        plain("\0ann\0two"),
        plain(""),
        plain(&"x".repeat(3000)),
        request(SASL_STEP, "PLAIN", "\0ann\0one"),
        request(SASL_LIST, "", ""),
        request(SASL_AUTH, "X".repeat(40), "\0ann\0one"),
        request(SASL_AUTH, "X", ""),
        request(VERSION, "", ""),
        request(NOOP, "", ""),
        request(SET, "a", "x"),
        request(GETK, "a", ""),
        request(QUIT, "", ""),
    ];
    let packet = select(packets.map(|packet| packet.bytes()).to_vec());
    prop_oneof![
        vec(prop_oneof![20 => line, 1 => vec(any::<u8>(), 0..30)], 1..20),
        vec(packet, 1..20),
    ]
    .prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn replies_do_not_depend_on_the_pieces(
        bytes in attempts(),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut whole = session_with(1000, usize::MAX / 2);
        let expected = whole.send(&bytes);

        let mut bytewise = session_with(1000, 100);
        prop_assert_eq!(&bytewise.send_in_pieces(&bytes, 1), &expected);
        prop_assert_eq!(bytewise.is_closed(), whole.is_closed());

        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut cut = session_with(1000, 1);
        let replies: Vec<u8> =
            cuts.windows(2).flat_map(|cuts| cut.send(&bytes[cuts[0]..cuts[1]])).collect();
        prop_assert_eq!(&replies, &expected);
        prop_assert_eq!(cut.is_closed(), whole.is_closed());
        prop_assert_eq!(cut.held_bytes() == 0, whole.held_bytes() == 0);
        // Only a client that has named a password stores anything.
        if whole.counters.get(Count::CmdSet) > 0 {
            let succeeded =
                whole.counters.get(Count::AuthCmds) > whole.counters.get(Count::AuthErrors);
            prop_assert!(succeeded);
        }
    }
}
