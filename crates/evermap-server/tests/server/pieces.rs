//! The replies do not depend on the pieces in which the bytes of the requests arrive.

use crate::common::TestSession;
use evermap_server::stats::Count;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Keys that repeat often, one of the maximum length, and one that is too long.
fn key() -> impl Strategy<Value = String> {
    let keys = ["a", "b", "c", "key", "noreply", "0"].map(String::from);
    let long = [250, 251].map(|len| "k".repeat(len));
    select([&keys[..], &keys, &keys, &long].concat())
}

fn number() -> impl Strategy<Value = String> {
    let odd = ["-1", "", "x", "99999999999", "18446744073709551616", "2592001", "noreply"];
    prop_oneof![
        4 => (0u64..20).prop_map(|n| n.to_string()),
        1 => select(odd.to_vec()).prop_map(String::from),
    ]
}

fn line_end() -> impl Strategy<Value = &'static str> {
    select(&["\r\n", "\r\n", "\r\n", "\n", "\r\r\n"][..])
}

fn tail() -> impl Strategy<Value = &'static str> {
    select(&["", "", "", " noreply", " ", " extra", " 0 noreply"][..])
}

/// A storage command, usually with the data block that it announces.
fn store() -> impl Strategy<Value = Vec<u8>> {
    let verb = select(&["set", "set", "add", "replace", "append", "prepend", "cas"][..]);
    let value =
        prop_oneof![vec(any::<u8>(), 0..40), Just(b"12".to_vec()), vec(any::<u8>(), 900..1100)];
    let data_end = select(&["\r\n", "\r\n", "\r\n", "\n", "xx", ""][..]);
    (verb, key(), number(), value, number(), (tail(), line_end(), data_end)).prop_map(
        |(verb, key, exptime, value, cas, (tail, line_end, data_end))| {
            let cas = if verb == "cas" { format!(" {cas}") } else { String::new() };
            let line = format!("{verb} {key} 7 {exptime} {}{cas}{tail}{line_end}", value.len());
            [line.as_bytes(), &value, data_end.as_bytes()].concat()
        },
    )
}

/// The line of a storage command, usually malformed. The test replaces `LEN` by the length of the
/// data block that follows.
fn malformed_store() -> impl Strategy<Value = String> {
    let odd = ["x", "-1", "-x", "99999999999", "18446744073709551616", "1x", "+", "key", "noreply"];
    let word = prop_oneof![2 => Just("0"), 1 => select(odd.to_vec())];
    let verb = select(&["set", "add", "replace", "append", "prepend", "cas", "ms"][..]);
    let len = select(&["LEN", "LEN", "LEN", "-1", "x", "99999999999", "+LEN"][..]);
    let tail = vec(select(&["noreply", "0", "7", "x", "-1"][..]), 0..4);
    (verb, key(), [word.clone(), word], len, tail).prop_map(
        |(verb, key, [flags, exptime], len, tail)| {
            let line = format!("{verb} {key} {flags} {exptime} {len} {}", tail.join(" "));
            if verb == "ms" { line.replacen(&format!(" {flags} {exptime}"), "", 1) } else { line }
        },
    )
}

fn lookup() -> impl Strategy<Value = Vec<u8>> {
    let verb = select(&["get", "get", "gets", "gat 0", "gats 5", "gat -1", "gat"][..]);
    let keys = prop_oneof![vec(key(), 0..4), vec(key(), 60..70), vec(Just("a".into()), 900..1200)];
    (verb, keys, line_end()).prop_map(|(verb, keys, line_end)| {
        format!("{verb} {}{line_end}", keys.join(" ")).into_bytes()
    })
}

fn other() -> impl Strategy<Value = Vec<u8>> {
    let verbs = [
        "delete",
        "incr",
        "decr",
        "touch",
        "flush_all",
        "verbosity",
        "version",
        "stats",
        "",
        "foo",
    ];
    (select(verbs.to_vec()), key(), number(), tail(), line_end()).prop_map(
        |(verb, key, number, tail, line_end)| {
            format!("{verb} {key} {number}{tail}{line_end}").into_bytes()
        },
    )
}

/// A flag of the meta protocol, seldom without the token that it needs or unknown.
fn flag() -> impl Strategy<Value = String> {
    let plain = "bcfhklqstuvxI".chars().map(String::from).collect::<Vec<_>>();
    let others = ["O", "O12", "Labc", "P1", "MA", "ME", "MI", "MD", "MX", "z", "1", "Fx", "T", "N"];
    let numbers = select(&["T", "N", "R", "C", "E", "F", "J", "D"][..]);
    prop_oneof![
        6 => select(plain),
        4 => (numbers, 0u64..70).prop_map(|(flag, number)| format!("{flag}{number}")),
        1 => select(others.to_vec()).prop_map(String::from),
    ]
}

/// A line of the meta protocol, with a data block if it is ms.
fn meta() -> impl Strategy<Value = Vec<u8>> {
    let verb = select(&["mg", "mg", "mg", "ms", "ms", "md", "ma", "me", "mn"][..]);
    let keys = prop_oneof![4 => key(), 1 => Just("YQ==".to_owned())];
    (verb, keys, vec(flag(), 0..5), vec(any::<u8>(), 0..40), line_end()).prop_map(
        |(verb, key, flags, value, line_end)| {
            let flags = flags.join(" ");
            match verb {
                "mn" => format!("mn{line_end}").into_bytes(),
                "ms" => {
                    let line = format!("ms {key} {} {flags}{line_end}", value.len());
                    [line.as_bytes(), &value, b"\r\n"].concat()
                }
                _ => format!("{verb} {key} {flags}{line_end}").into_bytes(),
            }
        },
    )
}

fn rare() -> impl Strategy<Value = Vec<u8>> {
    let line = |bytes: &[u8]| bytes.to_vec();
    prop_oneof![
        vec(any::<u8>(), 0..60),
        Just(line(b"stats\r\nstats settings\nstats reset\n")),
        Just(line(b"stats items\r\nstats slabs\r\nstats cachedump 1 2\n")),
        Just(line(b"lru_crawler metadump all\r\nlru_crawler mgdump hash\r\n")),
        Just(line(b"flush_all\r\n")),
        Just(line(b"quit\r\n")),
        Just(line(b"GET / HTTP/1.1\r\n")),
        (2040usize..2060).prop_map(|len| [vec![b'x'; len], b"\n".to_vec()].concat()),
    ]
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![10 => store(), 10 => lookup(), 6 => other(), 15 => meta(), 1 => rare()];
    vec(one, 1..30).prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn replies_do_not_depend_on_the_pieces(
        bytes in requests(),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut whole = TestSession::new(1000, usize::MAX / 2);
        let expected = whole.send(&bytes);

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

    /// The data block of a malformed storage command is not executed: the session continues after
    /// the block, or is closed.
    #[test]
    fn the_data_of_a_rejected_command_is_never_executed(
        line in malformed_store(),
        end in line_end(),
        before in vec(any::<u8>(), 0..30),
        piece in 1usize..50,
    ) {
        let harmful = b"\r\nflush_all\r\nset canary 0 0 1\r\ny\r\ndelete canary\r\n";
        let block = [&before[..], harmful].concat();
        let line = line.replace("LEN", &block.len().to_string());
        let mut session = TestSession::new(1000, 1 << 16);
        session.send(b"set canary 0 0 1\r\nx\r\n");
        let sent = [line.as_bytes(), end.as_bytes(), &block, b"\r\n"].concat();
        session.send_in_pieces(&sent, piece);
        if !session.is_closed() {
            let expected = b"VALUE canary 0 1\r\nx\r\nEND\r\n".as_slice();
            prop_assert_eq!(session.send(b"get canary\r\n"), expected, "{}", line);
        }
        prop_assert_eq!(session.counters.get(Count::CmdFlush), 0, "{}", line);
        prop_assert_eq!(session.counters.get(Count::DeleteHits), 0, "{}", line);
    }
}
