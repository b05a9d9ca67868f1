//! The replies of the binary protocol to each request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::packet::opcode::*;
use crate::common::packet::{Packet, delta, request};
use crate::common::{NOW, TestSession};
use evermap_server::cache::{BATCH_KEYS, Cache};
use evermap_server::protocol::{Binding, Budget, KEY_SIZE_LIMIT, Reservation, Restricted};
use evermap_server::stats::Count;
use evermap_server::{CacheError, Config, ModelCache, Server};

/// Returns the bytes of requests whose opaque numbers count from 1.
fn bytes_of(requests: &[Packet]) -> Vec<u8> {
    let numbered = requests.iter().zip(1..);
    numbered.flat_map(|(request, opaque)| request.clone().opaque(opaque).bytes()).collect()
}

/// Sends requests and returns the replies as text.
#[track_caller]
fn ask<C: Cache>(session: &mut TestSession<C>, requests: &[Packet]) -> Vec<String> {
    let replies = Packet::replies(&session.send(&bytes_of(requests)));
    for reply in &replies {
        let at = reply.opaque as usize - 1;
        assert_eq!(reply.opcode, requests[at].opcode, "the opaque number of another request");
    }
    assert!(replies.is_sorted_by_key(|reply| reply.opaque), "in order");
    replies.iter().map(Packet::show).collect()
}

/// Checks the replies of a new session to some requests.
#[track_caller]
fn check(requests: &[Packet], replies: &[&str]) {
    let mut session = TestSession::default();
    assert_eq!(ask(&mut session, requests), replies, "to {requests:?}");
    assert!(!session.is_closed());
    assert_eq!(session.held_bytes(), 0);
}

fn set(key: &str, value: &str) -> Packet {
    request(SETQ, key, value)
}

fn get(key: &str) -> Packet {
    request(GET, key, "")
}

#[test]
fn lookups() {
    check(&[get("a"), request(GETK, "a", "")], &["00 01 =Not found", "0c 01 a="]);
    check(&[request(GETQ, "a", ""), request(GETKQ, "a", "")], &[]);
    let found = [GET, GETQ, GETK, GETKQ].map(|opcode| request(opcode, "a", ""));
    check(
        &[&[set("a", "x")], &found[..]].concat(),
        &[
            "00 00 #1 [00000007] =x",
            "09 00 #1 [00000007] =x",
            "0c 00 #1 [00000007] a=x",
            "0d 00 #1 [00000007] a=x",
        ],
    );
    check(&[set("a", ""), get("a")], &["00 00 #1 [00000007]"]);
    // The replies of a pipeline are in the order of the requests.
    check(
        &[
            set("b", "x"),
            request(GETK, "a", ""),
            request(GETQ, "c", ""),
            request(GETKQ, "b", ""),
            get("c"),
            request(NOOP, "", ""),
        ],
        &["0c 01 a=", "0d 00 #1 [00000007] b=x", "00 01 =Not found", "0a 00"],
    );
}

#[test]
fn storage() {
    check(
        &[
            request(SET, "a", "x"),
            request(ADD, "a", "y"),
            request(ADD, "b", "y"),
            request(REPLACE, "a", "z"),
            request(REPLACE, "c", "z"),
            get("a"),
            get("b"),
            get("c"),
        ],
        &[
            "01 00 #1",
            "02 02 =Data exists for key.",
            "02 00 #2",
            "03 00 #3",
            "03 01 =Not found",
            "00 00 #3 [00000007] =z",
            "00 00 #2 [00000007] =y",
            "00 01 =Not found",
        ],
    );
    // Quiet commands answer failures only.
    check(
        &[
            request(SETQ, "a", "x"),
            request(ADDQ, "a", "y"),
            request(ADDQ, "b", "y"),
            request(REPLACEQ, "a", "z"),
            request(REPLACEQ, "c", "z"),
            get("a"),
        ],
        &["12 02 =Data exists for key.", "13 01 =Not found", "00 00 #3 [00000007] =z"],
    );
    let flags = Packet::new(SET).extras([0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0]).key("a");
    check(&[flags, get("a")], &["01 00 #1", "00 00 #1 [deadbeef]"]);
    // Keys and values are any bytes.
    let key = "\0 \r\n\u{e9}";
    check(
        &[set(key, "\r\n\0"), request(GETK, key, "")],
        &["0c 00 #1 [00000007] \\x00 \\r\\n\\xc3\\xa9=\\r\\n\\x00"],
    );
}

#[test]
fn a_cas_id_makes_a_storage_command_a_comparison() {
    for opcode in [SET, ADD, REPLACE] {
        let op = format!("{opcode:02x}");
        check(
            &[
                request(opcode, "a", "y").cas(1),
                set("a", "x"),
                request(opcode, "a", "y").cas(2),
                request(opcode, "a", "y").cas(1),
                get("a"),
            ],
            &[
                &format!("{op} 01 =Not found"),
                &format!("{op} 02 =Data exists for key."),
                &format!("{op} 00 #2"),
                "00 00 #2 [00000007] =y",
            ],
        );
    }
    check(
        &[set("a", "x"), request(SETQ, "a", "y").cas(9), request(SETQ, "a", "z").cas(1), get("a")],
        &["11 02 =Data exists for key.", "00 00 #2 [00000007] =z"],
    );
}

#[test]
fn append_and_prepend() {
    check(
        &[
            request(APPEND, "a", "x"),
            request(PREPENDQ, "a", "x"),
            set("a", "b"),
            request(APPEND, "a", "c"),
            request(PREPEND, "a", "a"),
            request(APPENDQ, "a", "d"),
            request(PREPENDQ, "a", "_"),
            get("a"),
        ],
        &[
            "0e 05 =Not stored.",
            "1a 05 =Not stored.",
            "0e 00 #2",
            "0f 00 #3",
            "00 00 #5 [00000007] =_abcd",
        ],
    );
    check(
        &[
            request(APPEND, "a", "x").cas(1),
            set("a", "b"),
            request(APPEND, "a", "c").cas(2),
            request(APPEND, "a", "c").cas(1),
            request(PREPEND, "a", "a").cas(1),
            request(PREPEND, "a", "a").cas(2),
            get("a"),
        ],
        &[
            "0e 05 =Not stored.",
            "0e 02 =Data exists for key.",
            "0e 00 #2",
            "0f 02 =Data exists for key.",
            "0f 00 #3",
            "00 00 #3 [00000007] =abc",
        ],
    );
}

#[test]
fn delete() {
    check(
        &[
            request(DELETE, "a", ""),
            request(DELETEQ, "a", ""),
            set("a", "x"),
            request(DELETE, "a", "").cas(2),
            request(DELETE, "a", ""),
            get("a"),
            set("a", "x"),
            request(DELETEQ, "a", "").cas(1),
            request(DELETEQ, "a", "").cas(2),
            get("a"),
            request(DELETE, "a", "").cas(2),
        ],
        &[
            "04 01 =Not found",
            "14 01 =Not found",
            "04 02 =Data exists for key.",
            "04 00",
            "00 01 =Not found",
            "14 02 =Data exists for key.",
            "00 01 =Not found",
            "04 01 =Not found",
        ],
    );
}

/// Returns the reply to an increment or decrement as text.
fn number(opcode: u8, cas: u64, number: u64) -> String {
    let value = number.to_be_bytes().to_vec();
    Packet { opcode, cas, value, ..Packet::default() }.show()
}

#[test]
fn increment_and_decrement() {
    let change = |opcode, by, initial, expiry| {
        Packet::new(opcode).extras(delta(by, initial, expiry)).key("n")
    };
    check(
        &[
            change(INCREMENT, 1, 5, u32::MAX),
            change(DECREMENTQ, 1, 5, u32::MAX),
            change(INCREMENT, 3, 10, 0),
            change(INCREMENT, 3, 10, 0),
            change(DECREMENT, 5, 10, u32::MAX),
            change(DECREMENT, 50, 10, 0),
            change(INCREMENTQ, 41, 10, 0),
            change(DECREMENTQ, 1, 10, 0),
            get("n"),
        ],
        &[
            "05 01 =Not found",
            "16 01 =Not found",
            &number(INCREMENT, 1, 10),
            &number(INCREMENT, 2, 13),
            &number(DECREMENT, 3, 8),
            &number(DECREMENT, 4, 0),
            "00 00 #6 [00000000] =40",
        ],
    );
    // The value wraps around at 2^64, and keeps its length when it becomes smaller.
    check(
        &[
            set("n", "18446744073709551615"),
            change(INCREMENT, 2, 0, 0),
            get("n"),
            change(DECREMENT, 1, u64::MAX, 0).key("m"),
            change(INCREMENT, u64::MAX, 0, 0).key("m"),
        ],
        &[
            &number(INCREMENT, 2, 1),
            "00 00 #2 [00000007] =1                   ",
            &number(DECREMENT, 3, u64::MAX),
            &number(INCREMENT, 4, u64::MAX - 1),
        ],
    );
    let text = "Non-numeric server-side value for incr or decr";
    check(
        &[set("n", "x"), change(INCREMENT, 1, 0, 0), change(DECREMENTQ, 1, 0, u32::MAX)],
        &[&format!("05 06 ={text}"), &format!("16 06 ={text}")],
    );
    // With a CAS id.
    check(
        &[
            change(INCREMENT, 1, 0, u32::MAX).cas(1),
            set("n", "5"),
            change(INCREMENT, 1, 0, u32::MAX).cas(9),
            change(INCREMENT, 1, 0, 0).cas(9),
            change(INCREMENT, 1, 0, u32::MAX).cas(1),
            change(DECREMENT, 1, 7, 0).cas(3).key("m"),
            set("m", "x"),
            change(DECREMENT, 1, 7, 0).cas(4).key("m"),
        ],
        &[
            "05 01 =Not found",
            "05 02 =Data exists for key.",
            "05 02 =Data exists for key.",
            &number(INCREMENT, 2, 6),
            &number(DECREMENT, 3, 7),
            &format!("06 06 ={text}"),
        ],
    );
}

#[test]
fn touch_and_get_and_touch() {
    for opcode in [TOUCH, GAT, GATQ, GATK, GATKQ] {
        let op = format!("{opcode:02x}");
        let touch = |expiry: u32| Packet::new(opcode).extras(expiry.to_be_bytes()).key("a");
        let mut session = TestSession::default();
        let missing = match opcode {
            GATQ | GATKQ => vec![],
            GATK => vec![format!("{op} 01 a=")],
            _ => vec![format!("{op} 01 =Not found")],
        };
        assert_eq!(ask(&mut session, &[touch(0)]), missing);
        let found = match opcode {
            TOUCH => format!("{op} 00 #1 [00000007]"),
            GATK | GATKQ => format!("{op} 00 #1 [00000007] a=x"),
            _ => format!("{op} 00 #1 [00000007] =x"),
        };
        ask(&mut session, &[set("a", "x")]);
        for (expiry, live) in [(0, u32::MAX), (10, NOW + 9), (NOW + 20, NOW + 19)] {
            session.cache.set_now(NOW);
            assert_eq!(ask(&mut session, &[touch(expiry)]), [&*found]);
            session.cache.set_now(live);
            assert_eq!(ask(&mut session, &[get("a")]), ["00 00 #1 [00000007] =x"]);
        }
        session.cache.set_now(NOW + 20);
        assert_eq!(ask(&mut session, &[get("a")]), ["00 01 =Not found"]);
        assert_eq!(session.counters.get(Count::TouchHits), 3);
        assert_eq!(session.counters.get(Count::TouchMisses), 1);
    }
}

#[test]
fn expiries_of_stored_items() {
    for (expiry, seconds_live) in [
        (0, None),
        (1, Some(1)),
        (2_592_000, Some(2_592_000)),
        (2_592_001, Some(0)),
        (NOW + 5, Some(5)),
        (NOW, Some(0)),
        (u32::MAX, Some(u32::MAX - NOW)),
    ] {
        let mut session = TestSession::default();
        let extras = [[0; 4], expiry.to_be_bytes()].concat();
        ask(&mut session, &[Packet::new(SET).extras(extras).key("a")]);
        let mut live = |now| {
            session.cache.set_now(now);
            ask(&mut session, &[request(GETQ, "a", "")]).len() == 1
        };
        match seconds_live {
            None => assert!(live(u32::MAX), "{expiry}"),
            Some(0) => assert!(!live(NOW), "{expiry}"),
            Some(seconds) => {
                assert!(live(NOW + (seconds - 1)), "{expiry}");
                assert!(!live(NOW + seconds), "{expiry}");
            }
        }
    }
}

#[test]
fn other_commands() {
    check(
        &[request(NOOP, "", ""), request(VERSION, "", ""), request(VERBOSITY, "", "")],
        &["0a 00", "0b 00 =1.2.3 test", "1b 00"],
    );
    check(&[set("a", "x"), request(FLUSH, "", ""), get("a")], &["08 00", "00 01 =Not found"]);
    check(
        &[set("a", "x"), request(FLUSHQ, "", "").extras([0; 4]), get("a")],
        &["00 01 =Not found"],
    );
    // Authentication is unknown to a server without credentials.
    check(
        &[
            request(SASL_LIST, "", ""),
            request(SASL_AUTH, "PLAIN", "\0user\0password"),
            request(SASL_STEP, "PLAIN", "\0user\0password"),
            request(NOOP, "", ""),
        ],
        &["20 81 =Unknown command", "21 81 =Unknown command", "22 81 =Unknown command", "0a 00"],
    );
}

#[test]
fn a_delayed_flush_keeps_items_that_are_stored_later() {
    let mut session = TestSession::default();
    let flush = request(FLUSH, "", "").extras(10u32.to_be_bytes());
    assert_eq!(ask(&mut session, &[set("a", "x"), flush]), ["08 00"]);
    session.cache.set_now(NOW + 9);
    assert_eq!(ask(&mut session, &[get("a")]), ["00 00 #1 [00000007] =x"]);
    session.cache.set_now(NOW + 10);
    assert_eq!(
        ask(&mut session, &[set("b", "y"), get("a"), get("b")]),
        ["00 01 =Not found", "00 00 #2 [00000007] =y"]
    );
    assert_eq!(session.counters.get(Count::CmdFlush), 1);
}

#[test]
fn statistics() {
    let mut session = TestSession::default();
    let stats = ask(&mut session, &[set("a", "x"), request(STAT, "", "")]);
    assert!(stats.contains(&"10 00 threads=1".to_owned()), "{stats:?}");
    assert!(stats.contains(&"10 00 curr_items=1".to_owned()), "{stats:?}");
    assert_eq!(stats.last().unwrap(), "10 00");
    for absent in ["10 00 moves_to_cold=0", "10 00 hash_bytes=0"] {
        assert!(stats.contains(&absent.to_owned()), "{stats:?}");
    }
    let settings = ask(&mut session, &[request(STAT, "settings", "")]);
    assert_eq!(settings[..2], ["10 00 maxconns=1024", "10 00 maxbytes=0"]);
    assert!(settings.contains(&"10 00 growth_factor=1.25".to_owned()), "{settings:?}");
    assert_eq!(settings.last().unwrap(), "10 00");
    for empty in ["reset", "conns", "detail on", "detail off", "latency", "cost"] {
        check(&[request(STAT, empty, "")], &["10 00"]);
    }
    check(&[request(STAT, "detail dump", "")], &["10 00 detailed=END\\r\\n", "10 00"]);
    check(&[request(STAT, "sizes", "")], &["10 00 sizes_status=disabled", "10 00"]);
    for (key, one) in [("items", "10 00 items:1:number=1"), ("slabs", "10 00 1:used_chunks=1")] {
        let mut session = TestSession::default();
        let stats = ask(&mut session, &[set("a", "x"), request(STAT, key, "")]);
        assert!(stats.contains(&one.to_owned()), "{stats:?}");
        assert_eq!(stats.last().unwrap(), "10 00");
        session.cache.fail_with(Some(CacheError::ReadOnly));
        let failed = ask(&mut session, &[request(STAT, key, "")]);
        assert_eq!(failed, ["10 84 =the store is read-only"]);
    }
    check(&[request(STAT, "nonsense", ""), request(NOOP, "", "")], &["10 01 =Not found", "0a 00"]);
}

#[test]
fn quit() {
    let mut session = TestSession::default();
    let requests = [set("a", "x"), request(QUIT, "", ""), get("a")];
    assert_eq!(ask(&mut session, &requests), ["07 00"]);
    assert!(session.is_closed());
    let mut session = TestSession::default();
    assert_eq!(ask(&mut session, &[request(QUITQ, "", ""), get("a")]), [""; 0]);
    assert!(session.is_closed());
}

/// Every opcode with lengths that it does not take: the reply is an error, the connection is
/// closed, and nothing of the packet or behind it is executed.
#[test]
fn wrong_lengths_are_rejected_and_close_the_connection() {
    // The numbers of bytes of extras, whether there is a key, and whether there may be a value.
    let shapes = |opcode| -> (&[u8], bool, bool) {
        match opcode {
            GET | GETQ | GETK | GETKQ | DELETE | DELETEQ => (&[0], true, false),
            SET | SETQ | ADD | ADDQ | REPLACE | REPLACEQ => (&[8], true, true),
            INCREMENT | INCREMENTQ | DECREMENT | DECREMENTQ => (&[20], true, false),
            APPEND | APPENDQ | PREPEND | PREPENDQ => (&[0], true, true),
            TOUCH | GAT | GATQ | GATK | GATKQ => (&[4], true, false),
            FLUSH | FLUSHQ => (&[0, 4], false, false),
            VERBOSITY => (&[4], false, false),
            _ => (&[0], false, false),
        }
    };
    let opcodes = (GET..=GATQ).chain(GATK..=GATKQ);
    for opcode in opcodes.filter(|&opcode| opcode != STAT) {
        let (right_extras, has_key, may_have_value) = shapes(opcode);
        for extras in [0, 1, 4, 7, 8, 9, 19, 20, 21, 255] {
            for key in ["", "k"] {
                for value in ["", "v"] {
                    let right = right_extras.contains(&extras)
                        && has_key != key.is_empty()
                        && (may_have_value || value.is_empty());
                    let packet =
                        Packet::new(opcode).extras(vec![0; extras.into()]).key(key).value(value);
                    let mut session = TestSession::default();
                    let sent = [packet.bytes(), set("canary", "x").bytes()].concat();
                    let replies = Packet::replies(&session.send(&sent));
                    let rejected = replies.iter().any(|reply| reply.status == 4);
                    assert_eq!(rejected, !right, "{packet:?}");
                    if !right {
                        let shown: Vec<_> = replies.iter().map(Packet::show).collect();
                        assert_eq!(shown, [format!("{opcode:02x} 04 =Invalid arguments")]);
                        assert!(session.is_closed(), "{packet:?}");
                        assert_eq!(session.counters.get(Count::CmdSet), 0, "{packet:?}");
                    }
                }
            }
        }
    }
    let mut session = TestSession::default();
    assert_eq!(ask(&mut session, &[request(STAT, "", "v")]), ["10 04 =Invalid arguments"]);
    assert!(session.is_closed());
}

#[test]
fn keys_have_at_most_250_bytes() {
    let (long, longer) = ("k".repeat(250), "k".repeat(251));
    check(&[set(&long, "x"), request(GET, &long, "")], &["00 00 #1 [00000007] =x"]);
    for opcode in [GET, SET, DELETE, TOUCH, INCREMENT, APPEND, STAT, 0x77] {
        let mut session = TestSession::default();
        let replies = ask(&mut session, &[request(opcode, &longer, ""), set("a", "x")]);
        assert_eq!(replies, [format!("{opcode:02x} 04 =Invalid arguments")]);
        assert!(session.is_closed());
    }
}

#[test]
fn keys_may_be_longer_if_the_server_says_so() {
    for max in [251, 3000, KEY_SIZE_LIMIT] {
        let mut session = TestSession::default();
        session.key_size_max = max;
        let long = "k".repeat(max);
        let asked = [set(&long, "x"), request(GET, &long, ""), request(DELETE, &long, "")];
        let replies = ask(&mut session, &asked);
        assert_eq!(replies[0], "00 00 #1 [00000007] =x");
        let replies = ask(&mut session, &[set(&long, "y"), request(GETK, &long, "")]);
        assert!(replies[0].contains(&long) && replies[0].ends_with('y'));
        if max < KEY_SIZE_LIMIT {
            let replies = ask(&mut session, &[request(GET, "k".repeat(max + 1), "")]);
            assert_eq!(replies, ["00 04 =Invalid arguments"]);
            assert!(session.is_closed());
        }
    }
}

/// The header alone shows that the rest cannot be read.
#[test]
fn a_body_that_is_shorter_than_extras_and_key_closes_the_connection() {
    for (key, extras, body) in [(1, 0, 0), (1, 8, 8), (0, 8, 7), (250, 255, 504), (65_535, 0, 1)] {
        let mut session = TestSession::default();
        let replies = Packet::replies(&session.send(&get("").with_lengths(key, extras, body)));
        let shown: Vec<_> = replies.iter().map(Packet::show).collect();
        assert_eq!(shown, ["00 81 =Unknown command"]);
        assert!(session.is_closed());
    }
}

#[test]
fn the_body_of_an_unknown_command_is_skipped() {
    for opcode in [0x1f, 0x25, 0x30, 0x80, 0xff] {
        let unknown = Packet::new(opcode)
            .extras([0x80; 3])
            .key("key")
            .value(request(FLUSH, "", "").bytes().repeat(100));
        for piece in [usize::MAX, 100, 1] {
            let mut session = TestSession::default();
            let sent = bytes_of(&[unknown.clone(), request(NOOP, "", "")]);
            let replies = Packet::replies(&session.send_in_pieces(&sent, piece.min(sent.len())));
            let shown: Vec<_> = replies.iter().map(Packet::show).collect();
            assert_eq!(shown, [&*format!("{opcode:02x} 81 =Unknown command"), "0a 00"]);
            assert_eq!(session.counters.get(Count::CmdFlush), 0);
            assert!(session.held_max < 200);
        }
    }
    // As much as a header can announce, which never arrives.
    let mut session = TestSession::default();
    session.send(&Packet::new(0x30).with_lengths(0, 0, u32::MAX));
    session.send(&vec![0x80; 1 << 20]);
    assert!(!session.is_closed());
    // Only the reply is kept.
    assert!(session.held_bytes() < 100);
}

#[test]
fn other_bytes_than_a_request_close_the_connection() {
    for first in [0, 0x81, b'g'] {
        let mut session = TestSession::default();
        let sent = [&get("a").bytes()[..], &[first], &set("a", "x").bytes()].concat();
        assert_eq!(Packet::replies(&session.send(&sent)).len(), 1);
        assert!(session.is_closed());
        assert_eq!(session.counters.get(Count::CmdSet), 0);
    }
}

#[test]
fn an_item_that_is_too_large_is_skipped_and_only_set_deletes_the_old_one() {
    let fits = "v".repeat(1024 - 50 - 1);
    let too_large = format!("{fits}v");
    for (opcode, cas, deletes) in [
        (SET, 0, true),
        (SETQ, 0, true),
        (SET, 1, false),
        (ADD, 0, false),
        (REPLACE, 0, false),
        (APPEND, 0, false),
        (PREPENDQ, 0, false),
    ] {
        let mut session = TestSession::new(1024, 1 << 16);
        let requests =
            [set("a", &fits), request(opcode, "a", &too_large).cas(cas), request(GETQ, "a", "")];
        let sent = bytes_of(&requests);
        let mut replies = Vec::new();
        for piece in sent.chunks(100) {
            replies.extend(session.send(piece));
            assert!(session.held_bytes() < 1200);
        }
        let replies = Packet::replies(&replies);
        assert_eq!(replies[0].show(), format!("{opcode:02x} 03 =Too large."));
        assert_eq!(replies.len(), if deletes { 1 } else { 2 }, "{opcode} {cas}");
        assert_eq!(session.counters.get(Count::StoreTooLarge), 1);
    }
    // A value cannot grow beyond the limit either.
    let mut session = TestSession::new(1024, 1 << 16);
    for cas in [0, 1] {
        let requests = [request(APPEND, "a", "x").cas(cas), request(PREPEND, "a", "x").cas(cas)];
        ask(&mut session, &[set("a", &fits)]);
        if cas == 0 {
            assert_eq!(ask(&mut session, &requests), ["0e 03 =Too large.", "0f 03 =Too large."]);
        } else {
            assert_eq!(ask(&mut session, &[requests[0].clone().cas(2)]), ["0e 03 =Too large."]);
        }
    }
}

#[test]
fn a_set_without_memory_deletes_the_old_item() {
    let mut session = TestSession::default();
    session.cache.limit_bytes(100);
    let large = "v".repeat(200);
    let requests = [
        set("a", "x"),
        set("b", "x"),
        request(SETQ, "a", &large),
        request(REPLACE, "b", &large),
        request(GETKQ, "a", ""),
        request(GETKQ, "b", ""),
    ];
    assert_eq!(
        ask(&mut session, &requests),
        ["11 82 =Out of memory", "03 82 =Out of memory", "0d 00 #2 [00000007] b=x"]
    );
    assert_eq!(session.counters.get(Count::StoreNoMemory), 2);
}

#[test]
fn errors_of_the_store_are_replies() {
    let all = [
        get("a"),
        request(GETQ, "a", ""),
        request(GATK, "a", ""),
        request(TOUCH, "a", ""),
        set("a", "x"),
        request(SET, "a", "x").cas(1),
        request(APPENDQ, "a", "x"),
        request(APPEND, "a", "x").cas(1),
        request(DELETEQ, "a", ""),
        request(DELETE, "a", "").cas(1),
        request(INCREMENT, "a", ""),
        request(INCREMENT, "a", "").cas(1),
        request(FLUSHQ, "", ""),
    ];
    for (error, status, text) in [
        (CacheError::OutOfMemory, 0x82, "Out of memory"),
        (CacheError::TooLarge, 3, "Too large."),
        (CacheError::ReadOnly, 0x84, "the store is read-only"),
        (CacheError::Other("a\nb".into()), 0x84, "a\\nb"),
    ] {
        let mut session = TestSession::default();
        session.cache.fail_with(Some(error));
        let expected: Vec<_> = all
            .iter()
            .map(|request| format!("{:02x} {status:02x} ={text}", request.opcode))
            .collect();
        assert_eq!(ask(&mut session, &all), expected);
        session.cache.fail_with(None);
        assert_eq!(ask(&mut session, &[get("a")]), ["00 01 =Not found"]);
    }
}

#[test]
fn consecutive_gets_share_lookups() {
    let mut session = TestSession::default();
    ask(&mut session, &[set("a", "x")]);
    let lookups = session.cache.lookups();
    let gets = [get("a"), request(GETKQ, "b", ""), request(GETQ, "a", "")];
    let replies = session.send(&bytes_of(&gets).repeat(100));
    assert_eq!(Packet::replies(&replies).len(), 200);
    assert_eq!(session.cache.lookups() - lookups, 300u64.div_ceil(BATCH_KEYS as u64));
    // Another command ends the batch, so the order of execution is kept.
    assert_eq!(
        ask(&mut session, &[get("a"), request(DELETE, "a", ""), get("a")]),
        ["00 00 #1 [00000007] =x", "04 00", "00 01 =Not found"]
    );
}

/// Sets that arrive together are executed together, and are answered as if each came alone: also
/// those between them that are not stored, and reads before and after.
#[test]
fn sets_in_a_pipeline_are_answered_in_their_order() {
    let requests = (0..400).flat_map(|round| {
        let key = format!("key-{}", round % 70);
        let value = format!("value {round}");
        let between = match round % 8 {
            0 => request(SET, &key, "x".repeat(2 << 20)),
            1 => request(ADD, &key, "x"),
            2 => request(SETQ, &key, "x").cas(1),
            3 => request(DELETE, &key, ""),
            4 => request(APPEND, &key, "x"),
            5 => request(GETKQ, &key, ""),
            _ => get(&key),
        };
        [request(SET, &key, &value), request(SETQ, format!("{key}-quiet"), value), between]
    });
    let requests: Vec<Packet> = requests.collect();
    let mut alone = TestSession::default();
    let one_by_one = requests
        .iter()
        .zip(1..)
        .flat_map(|(request, opaque)| alone.send(&request.clone().opaque(opaque).bytes()));
    let expected: Vec<u8> = one_by_one.collect();
    let mut session = TestSession::default();
    let bytes = bytes_of(&requests);
    assert!(session.send(&bytes) == expected);
    assert_eq!(session.held_bytes(), 0);
    assert!(TestSession::default().send_in_pieces(&bytes, 7000) == expected);
    let sets = |session: &TestSession| session.counters.get(Count::CmdSet);
    assert_eq!(sets(&session), sets(&alone));
}

#[test]
fn requests_are_counted() {
    let mut session = TestSession::new(1024, 50);
    let requests = [
        set("a", "123456789"),
        get("a"),
        request(GETQ, "b", ""),
        request(GETK, "c", ""),
        request(GAT, "a", ""),
        request(TOUCH, "b", ""),
        request(DELETE, "b", ""),
        request(INCREMENT, "a", ""),
        request(INCREMENT, "b", ""),
        request(DECREMENT, "a", ""),
        request(DECREMENT, "b", ""),
        request(SET, "b", "").cas(1),
        request(SET, "a", "").cas(100),
        request(SET, "a", "").cas(3),
        request(DELETE, "a", "").cas(100),
        request(DELETE, "a", ""),
        request(FLUSH, "", ""),
    ];
    ask(&mut session, &requests);
    assert!(session.resumed > 0, "the replies should exceed the limit");
    for (count, expected) in [
        (Count::CmdGet, 3),
        (Count::GetHits, 1),
        (Count::GetMisses, 2),
        (Count::CmdTouch, 2),
        (Count::TouchHits, 1),
        (Count::TouchMisses, 1),
        (Count::CmdSet, 4),
        (Count::IncrHits, 1),
        (Count::IncrMisses, 1),
        (Count::DecrHits, 1),
        (Count::DecrMisses, 1),
        (Count::CasHits, 1),
        (Count::CasMisses, 1),
        (Count::CasBadval, 1),
        (Count::DeleteHits, 1),
        (Count::DeleteMisses, 1),
        (Count::CmdFlush, 1),
    ] {
        assert_eq!(session.counters.get(count), expected, "{}", count.name());
    }
}

/// One small request can have a large reply. The reply buffer stays small.
#[test]
fn replies_never_exceed_the_limit_by_more_than_a_value() {
    let mut session = TestSession::new(1 << 20, 10_000);
    ask(&mut session, &[set("a", &"v".repeat(100_000))]);
    for opcode in [GET, GETQ, GETK, GETKQ, GAT, GATKQ] {
        let resumed = session.resumed;
        // `send` checks the bounds.
        let replies = session.send(&bytes_of(&vec![request(opcode, "a", ""); 200]));
        let replies = Packet::replies(&replies);
        assert!(replies.len() == 200 && replies.iter().all(|reply| reply.value.len() == 100_000));
        assert!(replies.is_sorted_by(|one, next| one.opaque < next.opaque));
        assert!(session.resumed >= resumed + 199);
    }
    // Misses with long keys fill the buffer too.
    let mut session = TestSession::new(1024, 1);
    let replies = session.send(&request(GETK, "k".repeat(250), "").bytes().repeat(1000));
    assert_eq!(Packet::replies(&replies).len(), 1000);
    assert!(session.resumed >= 999);
    assert_eq!(session.counters.get(Count::GetMisses), 1000);
    assert_eq!(session.held_bytes(), 0);
}

#[test]
fn the_memory_of_an_upload_grows_as_bytes_arrive_and_stays_within_the_budget() {
    let mut session = TestSession::new(64 << 20, 1 << 16);
    let len = 60 << 20;
    let head = request(SET, "a", "").with_lengths(1, 8, len as u32 + 9);
    assert_eq!(session.send(&head), b"");
    assert!(session.held_bytes() < 1024);
    let piece = vec![b'v'; 64 << 10];
    for arrived in (1..len / piece.len()).map(|pieces| pieces * piece.len()) {
        assert_eq!(session.send(&piece), b"");
        assert!(session.held_bytes() <= (2 * arrived).min(len) + 1024, "{arrived}");
    }
    assert_eq!(Packet::replies(&session.send(&piece))[0].show(), "01 00 #1");
    assert_eq!(session.held_bytes(), 0);

    // An upload beyond the budget fails as soon as that is known, and the old item is deleted.
    let budget = Budget::new(1 << 20);
    let mut other = Reservation::new(&budget);
    assert!(other.try_grow_to((1 << 20) - 100_000));
    let mut session = TestSession::default();
    session.uploads = budget.clone();
    ask(&mut session, &[set("a", "old")]);
    session.send(&request(SET, "a", "").with_lengths(1, 8, 200_009));
    let mut replies = Vec::new();
    for piece in request(FLUSH, "", "").bytes().repeat(10_000)[..200_000].chunks(30_000) {
        replies.extend(session.send(piece));
    }
    assert_eq!(Packet::replies(&replies)[0].show(), "01 82 =Out of memory");
    assert_eq!(budget.reserved(), (1 << 20) - 100_000);
    assert_eq!(ask(&mut session, &[get("a")]), ["00 01 =Not found"]);
    assert_eq!(session.counters.get(Count::CmdFlush), 0);
}

#[test]
fn the_binding_decides_which_protocols_are_spoken() {
    for (binding, binary, text) in
        [(Binding::Auto, true, true), (Binding::Ascii, false, true), (Binding::Binary, true, false)]
    {
        let served = |bytes: &[u8]| {
            let mut session = TestSession::default();
            session.binding = binding;
            let replies = session.send(bytes);
            assert_eq!(replies.is_empty(), session.is_closed());
            !session.is_closed()
        };
        assert_eq!(served(&get("a").bytes()), binary, "{binding:?}");
        assert_eq!(served(b"get a\r\n"), text, "{binding:?}");
    }
    // The first byte decides for the whole connection.
    let mut session = TestSession::default();
    session.send(b"get a\r\n");
    session.send(&set("a", "x").bytes());
    assert!(session.is_closed());
    assert_eq!(session.counters.get(Count::CmdSet), 0);
}

/// A request of any opcode, usually with lengths that it takes.
fn any_request() -> impl Strategy<Value = Packet> {
    let keys = ["a", "b", "c", "n", ""].map(String::from);
    let key = select([&keys[..4], &keys, &[250, 251].map(|len| "k".repeat(len))].concat());
    let value = prop_oneof![
        4 => Just(Vec::new()),
        2 => Just(b"12".to_vec()),
        1 => vec(any::<u8>(), 0..40),
        1 => vec(any::<u8>(), 900..1100),
    ];
    let opcode = prop_oneof![20 => 0u8..0x25, 1 => any::<u8>()];
    let tampered = prop_oneof![
        20 => Just(None),
        1 => vec(any::<u8>(), 0..24).prop_map(Some),
    ];
    (opcode, key, value, 0u64..4, any::<u32>(), tampered).prop_map(
        |(opcode, key, value, cas, opaque, extras)| {
            let mut packet = request(opcode, key, value).opaque(opaque).cas(cas * (cas / 2));
            let takes_no_value = !matches!(opcode, 1..=3 | 0x0e..=0x0f | 0x11..=0x13 | 0x19..=0x1a);
            if takes_no_value && packet.value.len() < 40 {
                packet.value.clear();
            }
            if matches!(opcode, 7 | 8 | 0x0a..=0x0b | 0x17..=0x18 | 0x1b | 0x20) && opaque % 8 > 0 {
                packet.key.clear();
            }
            if let Some(extras) = extras {
                packet.extras = extras;
            }
            packet
        },
    )
}

/// The bytes of requests, of which a few announce other lengths than they have.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let lengths = (any::<u8>(), any::<u8>(), 0u32..600);
    let broken = (any_request(), lengths)
        .prop_map(|(packet, (key, extras, body))| packet.with_lengths(key.into(), extras, body));
    let one = prop_oneof![
        30 => any_request().prop_map(|packet| packet.bytes()),
        1 => broken,
        1 => vec(any::<u8>(), 0..60),
    ];
    vec(one, 1..30).prop_map(|all| [get("first").bytes(), all.concat()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn replies_do_not_depend_on_the_pieces(
        bytes in any_bytes(),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut whole = TestSession::new(1000, usize::MAX / 2);
        let expected = whole.send(&bytes);
        Packet::replies(&expected);

        let mut bytewise = TestSession::new(1000, 100);
        prop_assert_eq!(&bytewise.send_in_pieces(&bytes, 1), &expected);
        prop_assert_eq!(bytewise.is_closed(), whole.is_closed());

        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut cut = TestSession::new(1000, 1);
        let replies: Vec<u8> =
            cuts.windows(2).flat_map(|cuts| cut.send(&bytes[cuts[0]..cuts[1]])).collect();
        prop_assert_eq!(&replies, &expected);
        prop_assert_eq!(cut.is_closed(), whole.is_closed());
        prop_assert_eq!(cut.held_bytes() == 0, whole.held_bytes() == 0);
    }
}

fn serve() -> Server {
    serve_without(Vec::new())
}

/// Starts a server that refuses some commands.
fn serve_without(refused: Vec<Restricted>) -> Server {
    let listen = ([127, 0, 0, 1], 0).into();
    let config = Config { listen, threads: 2, refused, ..Config::default() };
    Server::start(Arc::new(ModelCache::new(NOW)), config).unwrap()
}

/// Reads one reply from a socket.
fn read_reply(stream: &mut TcpStream) -> Packet {
    let mut reply = vec![0; 24];
    stream.read_exact(&mut reply).unwrap();
    let body = u32::from_be_bytes(reply[8..12].try_into().unwrap());
    reply.resize(24 + body as usize, 0);
    stream.read_exact(&mut reply[24..]).unwrap();
    Packet::replies(&reply).remove(0)
}

#[test]
fn both_protocols_on_one_port() {
    let server = serve();
    let connect = || TcpStream::connect(server.local_addr()).unwrap();
    let (mut text, mut binary) = (connect(), connect());
    for byte in request(SET, "a", "x").bytes() {
        binary.write_all(&[byte]).unwrap();
    }
    assert_eq!(read_reply(&mut binary).show(), "01 00 #1");
    text.write_all(b"gets a\r\nset b 9 0 1\r\ny\r\n").unwrap();
    let expected = b"VALUE a 7 1 1\r\nx\r\nEND\r\nSTORED\r\n";
    let mut read = vec![0; expected.len()];
    text.read_exact(&mut read).unwrap();
    assert_eq!(read, expected);
    binary.write_all(&request(GETK, "b", "").bytes()).unwrap();
    assert_eq!(read_reply(&mut binary).show(), "0c 00 #2 [00000009] b=y");
    binary.write_all(&bytes_of(&[request(QUITQ, "", ""), get("a")])).unwrap();
    assert_eq!(binary.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_flush_can_be_refused() {
    let server = serve_without(vec![Restricted::FlushAll]);
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    let requests = [set("a", "x"), request(FLUSH, "", ""), request(FLUSHQ, "", ""), get("a")];
    stream.write_all(&bytes_of(&requests)).unwrap();
    let replies = [(); 3].map(|()| read_reply(&mut stream).show());
    assert_eq!(replies, ["08 20 =Auth failure.", "18 20 =Auth failure.", "00 00 #1 [00000007] =x"]);
}

/// A pipeline of quiet gets whose replies are far larger than the buffers of the sockets.
#[test]
fn a_long_pipeline_of_quiet_gets() {
    const GETS: u32 = 5000;
    let server = serve();
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.write_all(&set("a", &"v".repeat(10_000)).bytes()).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let gets = (0..GETS).flat_map(|at| {
            let key = if at % 2 == 0 { "a" } else { "missing" };
            request(GETKQ, key, "").opaque(at).bytes()
        });
        writer.write_all(&gets.collect::<Vec<_>>()).unwrap();
        writer.write_all(&request(NOOP, "", "").opaque(GETS).bytes()).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    for at in (0..GETS).step_by(2) {
        let reply = read_reply(&mut stream);
        assert_eq!((reply.opaque, &reply.key[..], reply.value.len()), (at, &b"a"[..], 10_000));
    }
    assert_eq!(read_reply(&mut stream).opaque, GETS);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    writing.join().unwrap();
}
