//! The replies of the meta protocol to each request.

use std::sync::Barrier;

use crate::common::{NOW, TestSession};
use evermap::{Clock, Evermap, Options};
use evermap_server::stats::Count;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_FLAGS: &str = "CLIENT_ERROR invalid or duplicate flag";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Converts each `|` to a line end and appends one.
fn lines(text: &str) -> Vec<u8> {
    if text.is_empty() { Vec::new() } else { (text.replace('|', "\r\n") + "\r\n").into_bytes() }
}

/// Checks the replies of a new session to some lines, with whole and with single bytes.
#[track_caller]
fn check(request: &str, reply: &str) {
    let reply = reply.replace("$F", BAD_FORMAT).replace("$T", BAD_TOKEN);
    for piece in [usize::MAX, 1] {
        let mut session = TestSession::default();
        let replied = session.send_in_pieces(&lines(request), piece);
        let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(show(&replied), show(&lines(&reply)), "to {request}");
        assert!(!session.is_closed());
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn mg_returns_what_the_flags_ask_for_in_their_order() {
    for (request, reply) in [
        ("mg a", "EN"),
        ("mg a v", "EN"),
        ("mg a q|mg a v q|mn", "MN"),
        ("mg a k Oxyz s|mg a Oxyz k", "EN ka Oxyz|EN Oxyz ka"),
        ("set a 5 100 2|hi|mg a", "STORED|HD"),
        ("set a 5 100 2|hi|mg a v", "STORED|VA 2|hi"),
        ("set a 5 100 2|hi|mg a s t c f h l k O12", "STORED|HD s2 t100 c1 f5 h0 l0 ka O12"),
        ("set a 5 0 2|hi|mg a k t O12 v f", "STORED|VA 2 ka t-1 O12 f5|hi"),
        ("set a 0 0 0||mg a v s", "STORED|VA 0 s0|"),
        ("set a 0 0 1|x|mg a q|mg a v q", "STORED|HD|VA 1|x"),
        // Hints for proxies.
        ("set a 0 0 1|x|mg a L1 P v Px", "STORED|CLIENT_ERROR duplicate flag"),
        ("set a 0 0 1|x|mg a L1 Px v", "STORED|VA 1|x"),
        ("set a 0 0 1|x|  mg  a   v  ", "STORED|VA 1|x"),
        // The state before this access.
        ("set a 0 0 1|x|mg a h|mg a h|mg a u h", "STORED|HD h0|HD h1|HD h1"),
        ("set a 0 0 1|x|mg a h u|mg a h u|mg a h", "STORED|HD h0|HD h0|HD h0"),
        ("set a 0 0 1|x|get a|mg a h", "STORED|VALUE a 0 1|x|END|HD h1"),
        // Only a client that has another version gets the value.
        ("set a 0 0 1|x|mg a v c C1|mg a v c C2|mg a C1", "STORED|HD c1|VA 1 c1|x|HD"),
        ("mg a C1 v", "EN"),
        // Touching: `t` is the state at that place.
        ("set a 0 100 1|x|mg a t T30 t", "STORED|CLIENT_ERROR duplicate flag"),
        ("set a 0 100 1|x|mg a T30 t|mg a t T0|mg a t", "STORED|HD t30|HD t30|HD t-1"),
        ("set a 0 100 1|x|mg a T-1 v|mg a", "STORED|VA 1|x|EN"),
        ("mg a T30", "EN"),
    ] {
        check(request, reply);
    }
}

#[test]
fn the_time_since_the_last_access_is_that_before_this_one() {
    let mut session = TestSession::default();
    session.send(b"set a 0 0 1\r\nx\r\n");
    for (now, request, reply) in [
        (NOW + 5, "mg a l", "HD l5"),
        (NOW + 7, "mg a l", "HD l2"),
        (NOW + 8, "mg a u l", "HD l1"),
        (NOW + 9, "mg a l t", "HD l2 t-1"),
        (NOW + 9, "me a", "ME a exp=-1 la=0 cas=1 fetch=yes cls=1 size=61"),
    ] {
        session.cache.set_now(now);
        session.now = now;
        assert_eq!(session.send(&lines(request)), lines(reply), "{request}");
    }
}

#[test]
fn ms_stores_with_every_mode() {
    for (request, reply) in [
        ("ms a 2|hi|mg a v t f c", "HD|VA 2 t-1 f0 c1|hi"),
        ("ms a 2 T90 F5 c s k O9 I|hi|mg a t f v", "HD c1 s2 ka O9|VA 2 t90 f5|hi"),
        ("ms a 0||mg a v", "HD|VA 0|"),
        ("ms a 2 q|hi|ms a 2 q|yo|mg a v", "VA 2|yo"),
        ("ms a 1 MS|x|ms a 1 MSet|y|mg a v", "HD|HD|VA 1|y"),
        ("ms a 1 ME|x|ms a 1 ME q|y|mg a v", "HD|NS|VA 1|x"),
        ("ms a 1 MR k|x|ms a 1|x|ms a 2 MR F3|yy|mg a v f", "NS ka|HD|HD|VA 2 f3|yy"),
        ("ms a 1 MA|x|ms a 1 F4 T50|b|ms a 1 MA F9 T0|c|mg a v f t", "NS|HD|HD|VA 2 f4 t50|bc"),
        ("ms a 1 MP s|x|ms a 1|b|ms a 1 MP s c|a|mg a v", "NS s1|HD|HD s2 c2|VA 2|ab"),
        ("ms a 1 MA N30 F2 T5|x|mg a v t f", "HD|VA 1 t30 f2|x"),
        ("ms a 1|x|ms a 1 MP N30 s|y|mg a v t", "HD|HD s2|VA 2 t-1|yx"),
        // Comparing CAS ids.
        ("ms a 1 C1|x", "NF"),
        ("ms a 1 C1 q c O1|x", "NF c0 O1"),
        ("ms a 1|x|ms a 1 C2|y|ms a 1 C1 c|z|mg a v", "HD|EX|HD c2|VA 1|z"),
        ("ms a 1|x|ms a 1 C9 q|y", "HD|EX"),
        ("ms a 1|x|ms a 1 MR C9|y|ms a 1 MR C1|y", "HD|EX|HD"),
        ("ms a 1 MR C1|x", "NF"),
        ("ms a 1 ME C7|x|ms a 1 ME C1|x", "HD|NS"),
        ("ms a 1|x|ms a 1 MA C9|y|ms a 1 MA C1|y|mg a v", "HD|EX|HD|VA 2|xy"),
        ("ms a 1 MP C1|x", "NS"),
        // Choosing CAS ids.
        ("ms a 1 E77 c|x|mg a c v s", "HD c77|VA 1 c77 s1|x"),
        (
            "ms a 1 E77|x|ms a 1 C76|y|ms a 1 C77 c E78|y|gets a",
            "HD|EX|HD c78|VALUE a 0 1 78|y|END",
        ),
        ("ms a 1 E77|x|cas a 0 0 1 77|y|mg a v", "HD|STORED|VA 1|y"),
        ("ms a 1 E77|x|append a 0 0 1|y|mg a v c", "HD|STORED|VA 2 c2|xy"),
        ("ms a 1 E77|5|incr a 2|mg a v c", "HD|7|VA 1 c2|7"),
        ("ms a 1|x|ms a 1 MA E9 c|y|mg a c v", "HD|HD c9|VA 2 c9|xy"),
        ("ms a 1 E18446744073709551615|x|mg a c", "HD|HD c18446744073709551615"),
    ] {
        check(request, reply);
    }
}

#[test]
fn md_deletes_items_values_or_trust() {
    for (request, reply) in [
        ("md a|md a q|md a k O1", "NF|NF|NF ka O1"),
        ("ms a 1|x|md a|mg a", "HD|HD|EN"),
        ("ms a 1|x|md a q O1 k|mg a", "HD|EN"),
        ("ms a 1|x|md a O1 k|mg a", "HD|HD O1 ka|EN"),
        ("ms a 1|x|md a C2 q|md a C1|mg a", "HD|EX|HD|EN"),
        ("md a C1|md a I|md a x", "NF|NF|NF"),
        // The value is dropped, and the item stays.
        ("ms a 1 F5 T60|x|md a x|mg a v f t", "HD|HD|VA 0 f0 t60|"),
        ("ms a 1 F5|x|md a x F6 T9 E4|mg a v f t c", "HD|HD|VA 0 f6 t9 c4|"),
        ("ms a 1|x|md a x I|mg a v|mg a v", "HD|HD|VA 0 X W||VA 0 Z X|"),
        // The value is stale from now on.
        ("ms a 1 F5 T60|x|md a I T30|mg a v t f c", "HD|HD|VA 1 t30 f5 c2 X W|x"),
        ("ms a 1 T60|x|md a I|mg a t", "HD|HD|HD t60 X W"),
        ("ms a 1|x|md a I q E9|mg a c", "HD|HD c9 X W"),
        ("ms a 1|x|md a I C4|mg a", "HD|EX|HD"),
        ("ms a 1|x|md a T30|mg a", "HD|HD|EN"),
    ] {
        check(request, reply);
    }
}

#[test]
fn ma_changes_numbers() {
    for (request, reply) in [
        ("ma a|ma a q|ma a k O1 v t c", "NF|NF|NF ka O1"),
        ("ms a 1|5|ma a|mg a v", "HD|HD|VA 1|6"),
        ("ms a 1|5|ma a v|ma a v MI|ma a v M+", "HD|VA 1|6|VA 1|7|VA 1|8"),
        ("ms a 2|10|ma a v MD|ma a v M- D5|mg a v", "HD|VA 1|9|VA 1|4|VA 2|4 "),
        ("ms a 1|5|ma a D18446744073709551615 v", "HD|VA 1|4"),
        ("ms a 1|5|ma a MD D9 v", "HD|VA 1|0"),
        ("ms a 1|5|ma a q|ma a q v|mg a v", "HD|VA 1|7"),
        ("ms a 1 F3 T60|5|ma a c t k Oz b|mn", &format!("HD|{BAD_FLAGS}|MN")),
        ("ms a 1 F3 T60|5|ma a c t k Oz|mg a f", "HD|HD c2 t60 ka Oz|HD f3"),
        ("ms a 1 T60|5|ma a t T30|ma a T20 t v|mg a t", "HD|HD t60|VA 1 t20|7|HD t20"),
        ("ma a N90 t v|ma a v t", "VA 1 t90|0|VA 1 t90|1"),
        ("ma a t N90|mg a t", "HD t-1|HD t90"),
        ("ma a N0 J13 v c|ma a N0 J13 v", "VA 2 c1|13|VA 2|14"),
        ("ma a N0 J13 q|mg a v", "VA 2|13"),
        ("ma a J13", "NF"),
        ("ms a 1|5|ma a C2|ma a C1 c v|ma a C0", "HD|EX|VA 1 c2|6|HD"),
        ("ms a 1|5|ma a E99 c|mg a c v", "HD|HD c99|VA 1 c99|6"),
        ("ma a N0 E99 c", "HD c99"),
        // The id 0 asks for a new one.
        ("ms a 1|5|ma a E0 c|mg a c v", "HD|HD c2|VA 1 c2|6"),
        ("ms a 1 E0 c|5|mg a c|md a I E0|mg a c|mg b N9 E0 c", "HD c1|HD c1|HD|HD c2 X W|HD c3 W"),
        ("ms a 1|x|ma a|ma a t|ma a q", &format!("HD|{NON_NUMERIC}|{NON_NUMERIC}|{NON_NUMERIC}")),
    ] {
        check(request, reply);
    }
}

#[test]
fn other_meta_commands() {
    for (request, reply) in [
        ("mn|mn  |mn x|mn O1 q", "MN|MN|MN|MN"),
        // Only `b` means something to me.
        ("me a|me a q|me a z|me a v v", "EN|EN|EN|EN"),
        ("me Z b|me Z z b", &format!("{BAD_FORMAT}|{BAD_FORMAT}")),
        ("ms a 1 F1 T60|x|me a", "HD|ME a exp=60 la=0 cas=1 fetch=no cls=1 size=65"),
        ("ms a 1|x|me a|me a|mg a h", "HD|$M|$M|HD h0"),
        ("ms a 1|x|mg a|me YQ== b", "HD|HD|ME YQ== exp=-1 la=0 cas=1 fetch=yes cls=1 size=61"),
    ] {
        check(request, &reply.replace("$M", "ME a exp=-1 la=0 cas=1 fetch=no cls=1 size=61"));
    }
}

/// Keys that could not be words of a line are written in base64.
#[test]
fn binary_keys() {
    for (request, reply) in [
        // "a key\n", "foo".
        ("ms YSBrZXkK 2 b k|hi|mg YSBrZXkK b v k O1", "HD kYSBrZXkK b|VA 2 kYSBrZXkK b O1|hi"),
        ("set foo 0 0 1|x|mg Zm9v b v|mg foo v", "STORED|VA 1|x|VA 1|x"),
        ("mg Zm9v k b|mg Zm9v q b|md Zm9v b k|ma Zm9v k b", "EN kZm9v b|NF kZm9v b|NF kZm9v b"),
        ("ms Zm9v 1 b|5|ma Zm9v b k v|md Zm9v b k|mg foo", "HD|VA 1 kZm9v b|6|HD kZm9v b|EN"),
        ("mg Zm9 b|mg !!!! b|mg Zm9v= b", "$K|$K|$K"),
        ("ms Zm9 1 b|x|md ==== b|mg Z b", "$K|$K|$K"),
        // Pipelined with other keys.
        (
            "set foo 0 0 1|x|set a 0 0 1|y|mg a v|mg Zm9v b v|get foo|mg YQ== v b",
            "STORED|STORED|VA 1|y|VA 1|x|VALUE foo 0 1|x|END|VA 1|y",
        ),
    ] {
        check(request, &reply.replace("$K", "CLIENT_ERROR error decoding key"));
    }
}

#[test]
fn malformed_requests() {
    let long = "k".repeat(251);
    let opaque = "o".repeat(31);
    for (request, reply) in [
        ("mg|md|ma|me|mg ", "$F|$F|$F|$F|$F"),
        ("mg K|md K|ma K|me K|mg K v b", "$F|$F|$F|$F|$F"),
        ("mg a zz|mg a v z|md a z", "$I|$I|$I"),
        ("mg a 1|mg a v \x01", "$I|$I"),
        ("mg a \x7f|mg a \u{e9}", "$I|$I"),
        ("mg a v v|md a q q|mg a O1 O2|mg a s t s", "$D|$D|$D|$D"),
        ("mg a T|mg a Tx|mg a N|mg a Rx|mg a T1x", "$T|$T|$T|$T|$T"),
        ("md a Cx|md a C|md a Ex|md a C-1", "$T|$T|$T|$T"),
        ("mg a Jx|mg a J", "$J|$J"),
        ("mg a Dx|mg a D-1", "$L|$L"),
        // ma has one text for all of them.
        ("ma a z|ma a v v|ma a C-1|ma a Jx|ma a Dx|ma Z b", "$B|$B|$B|$B|$B|$B"),
        ("ma a b c f h k l q s t u v x I O1 L P F1 E1 D1", "$B"),
        ("ma a MX|ma a M", "$A|$A"),
        ("mg a Fx", "$F"),
        ("mg a OO", "EN OO"),
        ("mg a O$O|mg a O$Oo", "EN O$O|CLIENT_ERROR opaque token too long"),
        ("mg a b c f h k l q s t u v x I O1 L P F1 E1", "$V"),
        ("mg a b c f h k l q s t u v x I O1 L P F1 E1 D1", "$W"),
        ("md a b c f h k l q s t u v x I O1 L P F1 E1 D1", "$W"),
        ("MG a|m a|mx a", "ERROR|ERROR|ERROR"),
        // The data of ms is dropped, unless its length is not known.
        ("ms a 9 z|flush_all|mn", "$I|MN"),
        ("ms a 9 v v|flush_all|mn", "$D|MN"),
        ("ms a 9 T|flush_all|mn", "$T|MN"),
        ("ms a 9 Fx|flush_all|mn", "$F|MN"),
        ("ms a 9 MX|flush_all|mn", "CLIENT_ERROR invalid mode for ms M token|MN"),
        ("ms a 9 O$Oo|flush_all|mn", "CLIENT_ERROR opaque token too long|MN"),
        ("ms K 9|flush_all|mn", "$F|MN"),
        ("ms Z 9 b|flush_all|mn", "CLIENT_ERROR error decoding key|MN"),
        ("ms a 9 b c f h k l q s t u v x I O1 L P F1|flush_all|mn", "CLIENT_ERROR error|MN"),
        ("ms a 9 b c f h k l q s t u v x I O1 L P F1 E1|flush_all|mn", "$W|MN"),
        ("ms a 1|xyz|mn", "CLIENT_ERROR bad data chunk|$F|MN"),
        ("ms a 1 q|xyz|mn", "CLIENT_ERROR bad data chunk|$F|MN"),
    ] {
        let request = request.replace('K', &long).replace("$O", &opaque);
        let reply = reply
            .replace("$I", "CLIENT_ERROR invalid flag")
            .replace("$B", BAD_FLAGS)
            .replace("$D", "CLIENT_ERROR duplicate flag")
            .replace("$J", "CLIENT_ERROR invalid numeric initial value")
            .replace("$L", "CLIENT_ERROR invalid numeric delta value")
            .replace("$A", "CLIENT_ERROR invalid mode for ma M token")
            .replace("$V", "CLIENT_ERROR error decoding key")
            .replace("CLIENT_ERROR error|", "CLIENT_ERROR error decoding key|")
            .replace("$W", "CLIENT_ERROR options flags are too long")
            .replace("$O", &opaque);
        check(&request, &reply);
    }
}

#[test]
fn a_value_that_is_too_large_is_skipped_and_deletes_what_it_should_replace() {
    for (mode, deletes) in
        [("", true), (" MS", true), (" ME", false), (" MA", false), (" C1", false)]
    {
        let mut session = TestSession::new(1024, 1 << 16);
        session.send(b"ms a 1\r\nx\r\n");
        let data = vec![b'v'; 1024];
        let line = format!("ms a {}{mode} q\r\n", data.len());
        let replies = session.send(&[line.as_bytes(), &data, b"\r\nmg a\r\n"].concat());
        let after = if deletes { "EN" } else { "HD" };
        let expected = format!("SERVER_ERROR object too large for cache|{after}");
        assert_eq!(replies, lines(&expected), "{mode}");
    }
    let mut session = TestSession::new(1024, 1 << 16);
    let half = "v".repeat(600);
    session.send(&lines(&format!("ms a 600|{half}")));
    for mode in ["MA", "MA s", "MP N1"] {
        let replies = session.send(&lines(&format!("ms a 600 {mode}|{half}")));
        assert_eq!(replies, lines("SERVER_ERROR object too large for cache"), "{mode}");
    }
}

/// A client that finds nothing, or a value that is stale or expires soon, is told to store a new
/// one; the others are told that it was.
#[test]
fn exactly_one_of_several_clients_wins() {
    for (request, reply) in [
        // The item does not exist.
        ("mg a N30 v c t|mg a N30 v c t|mg a v", "VA 0 c1 t30 W||VA 0 c1 t30 Z||VA 0 Z|"),
        ("mg a t N30 E5 c|mg a N30 c", "HD t-1 c5 W|HD c5 Z"),
        ("mg a N30 q k O1|mg a q", "HD ka O1 W|HD Z"),
        ("mg a N30 v|ms a 2|hi|mg a N30 v", "VA 0 W||HD|VA 2|hi"),
        ("mg a N30 T60 t|mg a t", "HD t60 W|HD t60 Z"),
        ("mg a N30 T60|md a I|mg a", "HD W|HD|HD X W"),
        // It expires soon.
        ("ms a 1 T100|x|mg a R30 t|mg a R101|mg a R101|mg a", "HD|HD t100|HD W|HD Z|HD Z"),
        ("ms a 1 T100|x|mg a R100|mg a R101", "HD|HD|HD W"),
        ("ms a 1|x|mg a R30", "HD|HD"),
        ("ms a 1 T100|x|mg a R50 T20|mg a R50 t", "HD|HD|HD t20 W"),
        ("ms a 1 T100|x|mg a T20 R50", "HD|HD W"),
        ("ms a 1 T100|x|mg a R200|ms a 1 T100|y|mg a v", "HD|HD W|HD|VA 1|y"),
        ("ms a 1 T100|x|mg a R0|mg a R-1", "HD|HD|HD"),
        // It is stale.
        ("ms a 1|x|md a I|mg a v|mg a v|get a", "HD|HD|VA 1 X W|x|VA 1 Z X|x|VALUE a 0 1|x|END"),
        ("ms a 1|x|md a I|mg a u|mg a u", "HD|HD|HD X W|HD Z X"),
        ("ms a 1|x|md a I|mg YQ== b|mg a", "HD|HD|HD X W|HD Z X"),
        ("ms a 1|x|md a I|mg a|ms a 1|y|mg a v", "HD|HD|HD X W|HD|VA 1|y"),
        ("ms a 1|x|md a I|mg a|set a 0 0 1|y|mg a v", "HD|HD|HD X W|STORED|VA 1|y"),
        ("ms a 1|x|md a I|touch a 9|mg a t", "HD|HD|TOUCHED|HD t9 X W"),
        ("ms a 1|5|md a I|incr a 1|mg a v", "HD|HD|6|VA 1 X W|6"),
        // A value that was computed from an older version is stored as a stale one.
        (
            "ms a 1 T60|x|md a I T30|mg a c|ms a 1 C1|y|ms a 1 I C1 T90|z|mg a v t",
            "HD|HD|HD c2 X W|EX|HD|VA 1 t30 Z X|z",
        ),
        ("ms a 1|x|ms a 1 I C9|y|ms a 1 I C1|z|mg a v", "HD|EX|HD|VA 1|z"),
        ("ms a 1 I C1|x", "NF"),
        ("ms a 1|x|md a I|ms a 1 I C2 T90 c|y|mg a v t", "HD|HD|HD c3|VA 1 t90|y"),
        // In a pipeline.
        (
            "ms a 1|x|ms b 1|y|md a I|get b|mg a v|mg b v|mg a v|get a b",
            "HD|HD|HD|VALUE b 0 1|y|END|VA 1 X W|x|VA 1|y|VA 1 Z X|x|\
            VALUE a 0 1|x|VALUE b 0 1|y|END",
        ),
    ] {
        check(request, reply);
    }
}

/// The boring replies are left out, and the others can be told from each other.
#[test]
fn quiet_pipelines() {
    check(
        "ms a 1 q|x|ms b 1 q T5|y|ms c 1 ME q|5|ma c q|md b q O1|mg b q O2|mg a q O3 v|\
        md b q O4|ma b q O5|ms a 1 ME q O6|z|mn",
        "VA 1 O3|x|NF O4|NF O5|NS O6|MN",
    );
}

#[test]
fn meta_commands_are_counted() {
    let mut session = TestSession::default();
    session.send(&lines(
        "ms a 1|5|mg a|mg a v|mg b|mg a T0|mg b T0|md b|md a I|mg a|ma a|ma b MD|ms a 1 C9|x|mn|\
        me a|md a",
    ));
    for (count, n) in [
        (Count::CmdMeta, 15),
        (Count::CmdSet, 2),
        (Count::CmdGet, 4),
        (Count::GetHits, 3),
        (Count::GetMisses, 1),
        (Count::CmdTouch, 2),
        (Count::TouchHits, 1),
        (Count::TouchMisses, 1),
        (Count::DeleteHits, 1),
        (Count::DeleteMisses, 1),
        (Count::IncrHits, 1),
        (Count::DecrMisses, 1),
        (Count::CasBadval, 1),
    ] {
        assert_eq!(session.counters.get(count), n, "{}", count.name());
    }
}

/// Lookups of both protocols that follow each other are one lookup of the cache.
#[test]
fn consecutive_lookups_are_done_together() {
    let mut session = TestSession::default();
    session.send(b"set a 0 0 1\r\nx\r\n");
    for (requests, lookups) in [
        ("mg a v|mg b|get a b|mg a k s t O1|mg Yg== b", 1),
        ("mg a|mn|mg a", 2),
        ("mg a|mg a T0|mg a", 2),
        // One that notes no access is a lookup of its own.
        ("mg a|mg a u|mg a C1", 3),
    ] {
        let before = session.cache.lookups();
        session.send(&lines(requests));
        assert_eq!(session.cache.lookups() - before, lookups, "{requests}");
    }
    let before = session.cache.lookups();
    let many = vec!["mg a v"; 200].join("|");
    assert_eq!(session.send(&lines(&many)), lines(&vec!["VA 1|x"; 200].join("|")));
    assert_eq!(
        session.cache.lookups() - before,
        200u64.div_ceil(evermap_server::cache::BATCH_KEYS as u64)
    );
}

/// A full reply buffer neither loses nor repeats a reply, nor a win.
#[test]
fn replies_and_wins_survive_a_full_reply_buffer() {
    let mut session = TestSession::new(1 << 20, 100);
    let value = "v".repeat(60);
    let mut request = format!("ms a 60 q|{value}|md a I q");
    let mut expected = String::new();
    for number in 0..100 {
        request += &format!("|mg a v O{number}|mg b k|get a");
        let win = if number == 0 { "X W" } else { "Z X" };
        expected += &format!("VA 60 O{number} {win}|{value}|EN kb|VALUE a 0 60|{value}|END|");
    }
    assert_eq!(session.send(&lines(&request)), lines(expected.strip_suffix('|').unwrap()));
    assert!(session.resumed > 50, "{}", session.resumed);
}

#[test]
fn an_error_of_the_store_is_the_reply_to_each_command() {
    let mut session = TestSession::default();
    session.send(b"ms a 1\r\nx\r\n");
    session.cache.fail_with(Some(evermap_server::CacheError::Other("damaged".into())));
    for request in
        ["mg a", "mg a N1", "mg a u", "mg a C1", "md a q", "md a I", "ma a", "ma a t", "me a"]
    {
        assert_eq!(session.send(&lines(request)), lines("SERVER_ERROR damaged"), "{request}");
    }
    for mode in ["", "C1", "C1 I", "ME", "MA", "MA s", "q"] {
        let replies = session.send(&lines(&format!("ms a 1 {mode}|x")));
        assert_eq!(replies, lines("SERVER_ERROR damaged"), "{mode}");
    }
    let each = ["SERVER_ERROR damaged"; 3].join("|");
    assert_eq!(session.send(&lines("mg a|get a|mg a q")), lines(&each));
}

/// Of the clients that find nothing, or something stale, at the same time, one wins.
#[test]
fn concurrent_clients_do_not_win_twice() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 300;
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    let barrier = Barrier::new(CLIENTS);
    let wins: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (map, barrier) = (map.clone(), &barrier);
                scope.spawn(move || {
                    let mut session = TestSession::with(map, 1 << 20, 1 << 20);
                    let mut wins = 0;
                    for round in 0..ROUNDS {
                        // Some of the items are there and stale, and all of them can be read in a
                        // pipeline with others.
                        if barrier.wait().is_leader() && round % 2 == 0 {
                            session.send(&lines(&format!("ms {round} 1 q|x|md {round} I q")));
                        }
                        barrier.wait();
                        let request = format!("mg other|mg {round} N0|mg other");
                        let reply = session.send(&lines(&request));
                        wins += usize::from(reply.windows(2).any(|word| word == b" W"));
                    }
                    wins
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(wins, ROUNDS);
}

/// A store that evicts knows how its items were read; the times are those of units of 8 seconds.
#[test]
fn a_store_that_evicts_knows_the_accesses_before_this_one() {
    let clock = Clock::manual(crate::common::at(NOW));
    let options = Options::new().clock(clock.clone()).evict(true).memory_limit(64 << 20);
    let map = Evermap::in_memory(options).unwrap().default_map();
    let mut session = TestSession::with(map, 1 << 20, 1 << 20);
    session.send(&lines("ms a 1|x|ms b 1|y"));
    for (request, reply) in [
        ("me a", "ME a exp=-1 la=0 cas=1 fetch=no cls=1 size=61"),
        ("mg a h u|mg a h|mg a h u", "HD h0|HD h0|HD h1"),
        ("mg b h u|mg b h T9|mg b h u", "HD h0|HD h0|HD h1"),
    ] {
        assert_eq!(session.send(&lines(request)), lines(reply), "{request}");
    }
    clock.set(crate::common::at(NOW + 800));
    session.now = NOW + 800;
    let idle = session.send(&lines("mg a l u"));
    let idle = String::from_utf8(idle).unwrap();
    let seconds: u32 = idle.trim_end().strip_prefix("HD l").unwrap().parse().unwrap();
    assert!(seconds.abs_diff(800) <= 8, "{idle}");
    session.send(&lines("mg a"));
    let idle = String::from_utf8(session.send(&lines("mg a l u"))).unwrap();
    let seconds: u32 = idle.trim_end().strip_prefix("HD l").unwrap().parse().unwrap();
    assert!(seconds <= 8, "{idle}");
}

/// What clients were told is still known after the end of the process, however it ends.
#[test]
fn wins_stale_values_and_chosen_ids_survive_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let clock = Clock::manual(crate::common::at(NOW));
    let open = |path: &std::path::Path| {
        Evermap::open(path, Options::new().clock(clock.clone())).unwrap().default_map()
    };
    let requests = "ms stale 1 T60|x|md stale I q|mg won N30|ms both 1|y|md both I q|mg both|\
        ms id 1 E77|z|ms plain 1|p";
    let shown = "mg stale v t u|mg won u|mg both u v|mg id c v|mg plain v";
    let expected = "VA 1 t60 X W|x|HD Z|VA 1 Z X|y|VA 1 c77|z|VA 1|p";

    let mut session = TestSession::with(open(&path), 1 << 20, 1 << 20);
    session.send(&lines(requests));
    // A copy of the file as it is now is what an end without warning leaves.
    let copy = dir.path().join("killed");
    std::fs::copy(&path, &copy).unwrap();
    session.cache.into_db().close().unwrap();

    for path in [&path, &copy] {
        let options = Options::new().clock(clock.clone()).on_suspect(evermap::OnSuspect::Salvage);
        let map = Evermap::open(path, options).unwrap().default_map();
        let mut session = TestSession::with(map, 1 << 20, 1 << 20);
        assert_eq!(session.send(&lines(shown)), lines(expected), "{}", path.display());
        // The win that this has given is as durable.
        session.cache.into_db().close().unwrap();
        let mut session = TestSession::with(open(path), 1 << 20, 1 << 20);
        assert_eq!(session.send(&lines("mg stale")), lines("HD Z X"));
        let report = session.cache.into_db().check(true).unwrap();
        assert!(report.is_sound(), "{}: {report:?}", path.display());
    }
}
