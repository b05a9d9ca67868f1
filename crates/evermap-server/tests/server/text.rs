//! The replies of the text protocol to each request.

use std::collections::HashSet;

use crate::common::{NOW, TestSession};
use evermap_server::CacheError;
use evermap_server::cache::{BATCH_KEYS, Cache};
use evermap_server::protocol::{
    Budget, KEY_LIST_MAX, KEY_MAX, KEY_SIZE_LIMIT, LINE_MAX, Reservation,
};
use evermap_server::stats::Count;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// Converts each `|` to a line end and appends one.
fn lines(text: &str) -> Vec<u8> {
    if text.is_empty() { Vec::new() } else { (text.replace('|', "\r\n") + "\r\n").into_bytes() }
}

/// Checks the replies of a new session to some lines. `$F` and `$D` stand for the errors about the
/// format of a command.
#[track_caller]
fn check(request: &str, reply: &str) {
    let mut session = TestSession::default();
    let (request, reply) =
        (lines(request), lines(&reply.replace("$F", BAD_FORMAT).replace("$D", BAD_DELETE)));
    let replied = session.send(&request);
    let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
    assert_eq!(show(&replied), show(&reply), "to {}", show(&request));
    assert!(!session.is_closed());
    assert_eq!(session.held_bytes(), 0);
}

/// Checks that a new session closes without a reply after `request`.
#[track_caller]
fn check_closes(request: &str) {
    let mut session = TestSession::default();
    assert_eq!(session.send(&lines(request)), b"", "{request}");
    assert!(session.is_closed(), "{request}");
    assert_eq!(session.held_bytes(), 0);
}

#[test]
fn storage() {
    for (request, reply) in [
        ("set a 0 0 1|x|get a", "STORED|VALUE a 0 1|x|END"),
        ("set a 4294967295 0 0||get a", "STORED|VALUE a 4294967295 0||END"),
        ("set a 0 0 2|\r\n|get a", "STORED|VALUE a 0 2|\r\n|END"),
        ("set a 0 0 1 noreply|x|get a", "VALUE a 0 1|x|END"),
        ("set a 0 0 1  noreply |x|get a", "VALUE a 0 1|x|END"),
        ("set a +3 +0 +1|x|get a", "STORED|VALUE a 3 1|x|END"),
        ("set a 03 00 01|x|get a", "STORED|VALUE a 3 1|x|END"),
        ("set a 3\t9 0 1\t|x|get a", "STORED|VALUE a 3 1|x|END"),
        ("set a 0 2147483648 1|x|get a", "STORED|VALUE a 0 1|x|END"),
        ("set a\tb\x01 0 0 1|x|get a\tb\x01", "STORED|VALUE a\tb\x01 0 1|x|END"),
        ("  set  a  0  0  1  |x", "STORED"),
        ("add a 0 0 1|x|add a 0 0 1|y|get a", "STORED|NOT_STORED|VALUE a 0 1|x|END"),
        ("replace a 0 0 1|x", "NOT_STORED"),
        ("set a 0 0 1|x|replace a 7 0 2|yy|get a", "STORED|STORED|VALUE a 7 2|yy|END"),
        ("append a 0 0 1|x", "NOT_STORED"),
        ("prepend a 0 0 1|x", "NOT_STORED"),
        (
            "set a 5 0 2|bc|append a 9 0 1|d|prepend a 8 0 1|a|get a",
            "STORED|STORED|STORED|VALUE a 5 4|abcd|END",
        ),
        ("add a 0 0 1 noreply|x|replace b 0 0 1 noreply|y|append c 0 0 1 noreply|z", ""),
    ] {
        check(request, reply);
    }
}

#[test]
fn cas() {
    for (request, reply) in [
        ("cas a 0 0 1 1|x", "NOT_FOUND"),
        ("set a 0 0 1|x|gets a", "STORED|VALUE a 0 1 1|x|END"),
        ("set a 0 0 1|x|cas a 0 0 1 1|y|gets a", "STORED|STORED|VALUE a 0 1 2|y|END"),
        ("set a 0 0 1|x|cas a 0 0 1 2|y|gets a", "STORED|EXISTS|VALUE a 0 1 1|x|END"),
        ("set a 0 0 1|x|cas a 0 0 1 0|y", "STORED|EXISTS"),
        ("set a 0 0 1|x|cas a 0 0 1 18446744073709551615|y", "STORED|EXISTS"),
        ("set a 0 0 1|x|cas a 0 0 1 1 noreply|y|gets a", "STORED|VALUE a 0 1 2|y|END"),
        ("set a 0 0 1|x|append a 0 0 1|y|gets a", "STORED|STORED|VALUE a 0 2 2|xy|END"),
        ("set a 0 0 1|1|incr a 1|gets a", "STORED|2|VALUE a 0 1 2|2|END"),
        ("set a 0 0 1|1|touch a 9|gets a", "STORED|TOUCHED|VALUE a 0 1 1|1|END"),
    ] {
        check(request, reply);
    }
}

#[test]
fn retrieval() {
    for (request, reply) in [
        ("get a", "END"),
        ("gets a b c", "END"),
        ("set a 0 0 1|x|get b a a c", "STORED|VALUE a 0 1|x|VALUE a 0 1|x|END"),
        (
            "set a 0 0 1|x|get b|get a|gets a|get c",
            "STORED|END|VALUE a 0 1|x|END|VALUE a 0 1 1|x|END|END",
        ),
        ("set a 0 0 1|x|get  a |get\ta", "STORED|VALUE a 0 1|x|END|ERROR"),
        ("set \u{e9} 0 0 1|x|get \u{e9}", "STORED|VALUE \u{e9} 0 1|x|END"),
        ("get a noreply", "END"),
        ("gat 0 a", "END"),
        ("set a 3 0 1|x|gat 9 b a|gats 9 a", "STORED|VALUE a 3 1|x|END|VALUE a 3 1 1|x|END"),
        ("set a 0 0 1|x|gat -1 a|get a", "STORED|VALUE a 0 1|x|END|END"),
        (
            "set a 0 0 1|x|get a|gats -1 a a|get a",
            "STORED|VALUE a 0 1|x|END|VALUE a 0 1 1|x|END|END",
        ),
    ] {
        check(request, reply);
    }
}

#[test]
fn delete_arithmetic_and_touch() {
    for (request, reply) in [
        ("delete a", "NOT_FOUND"),
        ("set a 0 0 1|x|delete a|get a", "STORED|DELETED|END"),
        ("set a 0 0 1|x|delete a 0", "STORED|DELETED"),
        (
            "set a 0 0 1|x|delete a 10|delete a b c d e|delete a 1 noreply|get a",
            "STORED|$D|$D|VALUE a 0 1|x|END",
        ),
        ("set a 0 0 1|x|delete a noreply|get a", "STORED|END"),
        ("set a 0 0 1|x|delete a 0 noreply|get a", "STORED|END"),
        (
            "set a 0 0 1|x|delete a +0|delete a 0 0 0|delete a 0|delete a 0",
            "STORED|$D|DELETED|NOT_FOUND|NOT_FOUND",
        ),
        ("incr a 1|decr a 1", "NOT_FOUND|NOT_FOUND"),
        ("set a 0 0 1|5|incr a +1|incr a 1 extra|incr a \t1|incr a 1\tx", "STORED|6|7|8|9"),
        ("set a 0 0 2| 5|incr a 1|get a", "STORED|6|VALUE a 0 2|6 |END"),
        ("set a 0 0 2|+5|incr a 1|get a", "STORED|6|VALUE a 0 2|6 |END"),
        ("set a 0 0 5|5 abc|incr a 1|get a", "STORED|6|VALUE a 0 5|6    |END"),
        ("set a 0 0 5|5\tabc|decr a 1|get a", "STORED|4|VALUE a 0 5|4    |END"),
        ("set a 0 0 5|5\0abc|incr a 1|get a", "STORED|6|VALUE a 0 5|6    |END"),
        ("set a 0 0 5|5\x0babc|incr a 1|get a", "STORED|6|VALUE a 0 5|6    |END"),
        ("set a 0 0 3|5\r\n|incr a 1|get a", "STORED|6|VALUE a 0 3|6  |END"),
        ("touch a +5|touch a 2147483648|gat +5 a|flush_all +1", "NOT_FOUND|NOT_FOUND|END|OK"),
        ("set a 7 0 2|10|incr a 1|decr a 2|get a", "STORED|11|9|VALUE a 7 2|9 |END"),
        ("set a 0 0 2|99|incr a 1|incr a 1 noreply|get a", "STORED|100|VALUE a 0 3|101|END"),
        ("set a 0 0 1|5|decr a 9|get a", "STORED|0|VALUE a 0 1|0|END"),
        ("set a 0 0 20|18446744073709551615|incr a 3", "STORED|2"),
        ("set a 0 0 1|1|incr a 18446744073709551615", "STORED|0"),
        ("touch a 0", "NOT_FOUND"),
        (
            "set a 0 0 1|x|touch a 10|get a|touch a -1|get a",
            "STORED|TOUCHED|VALUE a 0 1|x|END|TOUCHED|END",
        ),
        ("set a 0 0 1|x|touch a -1 noreply|get a", "STORED|END"),
    ] {
        check(request, reply);
    }
    for value in ["x", "", "-1", "1x", "18446744073709551616"] {
        let request =
            format!("set a 0 0 {}|{value}|incr a 1|decr a 1|incr a 1 noreply|get a", value.len());
        check(
            &request,
            &format!("STORED|{NON_NUMERIC}|{NON_NUMERIC}|VALUE a 0 {}|{value}|END", value.len()),
        );
    }
}

#[test]
fn other_commands() {
    for (request, reply) in [
        ("set a 0 0 1|x|flush_all|get a", "STORED|OK|END"),
        ("set a 0 0 1|x|flush_all 0|get a", "STORED|OK|END"),
        ("set a 0 0 1|x|flush_all -1|get a", "STORED|OK|END"),
        ("set a 0 0 1|x|flush_all noreply|get a", "STORED|END"),
        ("set a 0 0 1|x|flush_all 0 noreply|get a", "STORED|END"),
        ("set a 0 0 1|x|flush_all 5|get a", "STORED|OK|VALUE a 0 1|x|END"),
        ("flush_all x", "CLIENT_ERROR invalid exptime argument"),
        ("flush_all x noreply", ""),
        // A word at the wrong place, and not a delay that can be ignored.
        (
            "set a 0 0 1|x|flush_all noreply 5|get a",
            "STORED|CLIENT_ERROR invalid exptime argument|VALUE a 0 1|x|END",
        ),
        ("set a 0 0 1|x|flush_all noreply noreply|get a", "STORED|VALUE a 0 1|x|END"),
        ("version", "VERSION 1.2.3 test"),
        ("version x", "VERSION 1.2.3 test"),
        ("verbosity 1", "OK"),
        ("verbosity 1 noreply", ""),
        ("verbosity noreply", ""),
        ("verbosity", "$F"),
        ("verbosity x", "$F"),
        ("stats reset", "RESET"),
        ("stats sizes", "STAT sizes_status disabled|END"),
        (
            "stats items|stats slabs|stats conns",
            "END|STAT active_slabs 0|STAT total_malloced 0|END|END",
        ),
        // The model does not know.
        ("stats cost", "END"),
        ("stats noreply|stats foo", "ERROR|ERROR"),
        ("stats extstore|stats proxy", "END|END"),
        // This host allows only a graceful end.
        (
            "shutdown|shutdown now",
            "SERVER_ERROR: shutdown not enabled|CLIENT_ERROR invalid shutdown mode",
        ),
        ("refresh_certs", "SERVER_ERROR no such  file"),
    ] {
        check(request, reply);
    }
    for request in ["quit", "quit noreply", "quit|get a", "shutdown graceful|get a"] {
        check_closes(request);
    }
    for method in ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"] {
        check_closes(&format!("{method} / HTTP/1.1|Host: a||set a 0 0 1|x|"));
    }
    check("get / HTTP/1.1", "END");
}

/// The names that the exporter for Prometheus reads, each once. What this server does not have is
/// 0.
#[test]
fn statistics_have_the_names_that_exporters_read() {
    let mut session = TestSession::default();
    session.send(b"set a 0 0 3\r\nxyz\r\n");
    for (request, names) in [
        (
            "stats",
            "libevent slab_reassign_rescues slab_reassign_chunk_rescues slab_reassign_busy_nomem \
            slab_reassign_last_busy_status \
            slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_deletes \
            slab_reassign_evictions_nomem \
            threads curr_items total_items bytes limit_maxbytes evictions reclaimed \
            direct_reclaims crawler_reclaimed crawler_items_checked lru_crawler_starts \
            moves_to_cold moves_to_warm moves_within_lru lru_maintainer_juggles malloc_fails \
            expired_unfetched evicted_unfetched evicted_active lrutail_reflocked hash_bytes \
            hash_power_level hash_is_expanding slab_global_page_pool slabs_moved idle_kicks \
            auth_cmds auth_errors get_expired get_flushed time_in_listen_disabled_us",
        ),
        (
            "stats settings",
            "evictions umask num_threads_per_udp hashpower_init slab_chunk_max \
            slab_automove_ratio slab_automove_window slab_automove_freeratio tail_repair_time \
            hash_algorithm temporary_ttl read_buf_mem_limit track_sizes inline_ascii_response \
            ext_item_size ext_item_age ext_low_ttl ext_recache_rate ext_wbuf_size \
            ext_compact_under ext_drop_under ext_max_sleep ext_max_frag ext_drop_unread \
            drop_privileges ssl_chain_cert ssl_key ssl_verify_mode ssl_keyformat ssl_ciphers \
            ssl_ca_cert ssl_wbuf_size ssl_session_cache ssl_kernel_tls ssl_min_version \
            proxy_enabled proxy_uring_enabled num_napi_ids memory_file client_flags_size \
            maxconns maxbytes lru_crawler lru_crawler_sleep lru_crawler_tocrawl hot_lru_pct \
            warm_lru_pct hot_max_factor warm_max_factor lru_maintainer_thread growth_factor",
        ),
    ] {
        let reply = String::from_utf8(session.send(&lines(request))).unwrap();
        for name in names.split_whitespace() {
            let count = reply.matches(&format!("STAT {name} ")).count();
            assert_eq!(count, 1, "{name} in {reply}");
        }
        assert!(reply.ends_with("\r\nEND\r\n"));
        // Exporters take a line that has not three words for the end of the list, or leave it out.
        let mut stats = reply.lines().filter(|line| *line != "END");
        assert!(stats.all(|line| line.split(' ').count() == 3), "{reply}");
        let all = reply.lines().count();
        let distinct = reply.lines().map(|line| line.split(' ').nth(1)).collect::<HashSet<_>>();
        assert_eq!(distinct.len(), all, "{reply}");
    }
    let stats = String::from_utf8(session.send(b"stats\r\n")).unwrap();
    for line in ["curr_items 1", "bytes 4", "threads 1", "evictions 0"] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} in {stats}");
    }
}

/// Commands about memory that this server has no use for are accepted as memcached does.
#[test]
fn commands_that_tune_memory() {
    const BAD_CLASS: &str = "BADCLASS invalid class id";
    const BAD_CLASSES: &str = "BADCLASS invalid src or dst class id";
    for (request, reply) in [
        ("slabs reassign 1 2|slabs reassign -1 5", "$S|$S"),
        ("slabs reassign 3 3", "SAME src and dst class are identical"),
        ("slabs reassign 0 1|slabs reassign 1 64|slabs reassign 1 -1", "$R|$R|$R"),
        ("slabs reassign|slabs reassign 1|slabs reassign a b", "ERROR|ERROR|$F"),
        ("slabs automove 0|slabs automove 1|slabs automove 2", "OK|OK|OK"),
        ("slabs automove 3|slabs automove|slabs automove x", "ERROR|ERROR|$F"),
        ("slabs|slabs x", "ERROR|ERROR"),
        ("lru tune 10 25 0.1 2.0", "OK"),
        ("lru tune 50 31 1 1", "ERROR hot and warm pcts must not exceed 80"),
        ("lru tune 50 30 0 1", "ERROR hot/warm age factors must be greater than 0"),
        ("lru tune 4294967295 30 1 1", "ERROR hot and warm pcts must not exceed 80"),
        ("lru tune|lru tune 1 2 3|lru tune a 2 1 1", "ERROR|ERROR|$F"),
        ("lru mode flat|lru mode segmented|lru mode x|lru mode", "OK|OK|ERROR|ERROR"),
        ("lru temp_ttl 60|lru temp_ttl -1|lru temp_ttl x|lru", "OK|OK|ERROR|ERROR"),
        ("lru_crawler enable|lru_crawler disable", "OK|OK"),
        ("lru_crawler crawl all|lru_crawler crawl 1,2,39", "OK|OK"),
        ("lru_crawler crawl 0|lru_crawler crawl 1,,2|lru_crawler crawl 64", "$B|$B|$B"),
        ("lru_crawler tocrawl 100|lru_crawler tocrawl x", "OK|$F"),
        ("lru_crawler sleep 1000000|lru_crawler sleep x", "OK|$F"),
        ("lru_crawler sleep 1000001", "CLIENT_ERROR sleep must be one second or less"),
        ("lru_crawler metadump x|lru_crawler mgdump 0", "$B|$B"),
        ("lru_crawler|lru_crawler metadump|lru_crawler x", "ERROR|ERROR|ERROR"),
        ("cache_memlimit|cache_memlimit x", "ERROR|ERROR"),
        ("cache_memlimit 7", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
        ("cache_memlimit 1000000001", "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"),
        ("cache_memlimit 7 noreply|cache_memlimit x noreply", ""),
        (
            "stats cachedump|stats cachedump 1",
            "CLIENT_ERROR bad command line|CLIENT_ERROR bad command line",
        ),
        ("stats cachedump x 1|stats cachedump 1 x", "$F|$F"),
        ("stats cachedump 0 1", "CLIENT_ERROR Illegal slab id"),
        ("stats cachedump 1 0", "END"),
    ] {
        let reply = reply.replace("$B", BAD_CLASS).replace("$R", BAD_CLASSES);
        check(request, &reply.replace("$S", "NOSPARE source class has no spare pages"));
    }
}

#[test]
fn the_memory_limit_can_be_changed() {
    let mut session = TestSession::default();
    assert_eq!(session.send(b"cache_memlimit 9 noreply\r\n"), b"");
    assert_eq!(session.cache.memory_limit(), 9 << 20);
    assert_eq!(session.send(b"cache_memlimit 8\r\n"), lines("OK"));
    assert_eq!(session.cache.memory_limit(), 8 << 20);
    let value = vec![b'v'; 1 << 19];
    let mut set = |key: usize| {
        let line = format!("set {key} 0 0 {}\r\n", value.len());
        session.send(&[line.as_bytes(), &value, b"\r\n"].concat())
    };
    assert!((0..15).all(|key| set(key) == lines("STORED")));
    assert_eq!(set(15), lines("SERVER_ERROR out of memory storing object"));
}

/// What exporters read about sizes.
#[test]
fn items_are_counted_by_the_size_classes_of_memcached() {
    let mut session = TestSession::default();
    let value = "v".repeat(500_000);
    for (key, value) in [("a", "1"), ("b", "2"), ("c", &value)] {
        let set = format!("set {key} 0 0 {}|{value}", value.len());
        assert_eq!(session.send(&lines(&set)), lines("STORED"));
    }
    let items = String::from_utf8(session.send(b"stats items\r\n")).unwrap();
    for line in ["items:1:number 2", "items:39:number 1", "items:1:mem_requested 122"] {
        assert!(items.contains(&format!("STAT {line}\r\n")), "{line} in {items}");
    }
    let slabs = String::from_utf8(session.send(b"stats slabs\r\n")).unwrap();
    for line in [
        "1:chunk_size 96",
        "1:used_chunks 2",
        "1:chunks_per_page 10922",
        "39:chunk_size 524288",
        "39:total_pages 1",
        "active_slabs 2",
        "total_malloced 2097152",
    ] {
        assert!(slabs.contains(&format!("STAT {line}\r\n")), "{line} in {slabs}");
    }
    assert_eq!(
        session.send(b"stats cachedump 1 1\r\nstats cachedump 1 0\r\nstats cachedump 39 9\r\n"),
        lines(
            "ITEM a [1 b; 0 s]|END|ITEM a [1 b; 0 s]|ITEM b [1 b; 0 s]|END|\
            ITEM c [500000 b; 0 s]|END"
        )
    );
}

#[test]
fn lists_of_all_items() {
    let mut session = TestSession::default();
    assert_eq!(session.send(b"lru_crawler metadump all\r\n"), lines("OK|END"));
    assert_eq!(session.send(b"lru_crawler mgdump hash\r\n"), lines("OK|EN"));
    session.send(&lines("set a 0 0 1|x|set b%\x01/ 7 10 2|yy|set old 0 -1 1|z|get a"));
    session.cache.set_now(NOW + 4);
    session.now = NOW + 4;
    let (expiry, stored, now) = (NOW + 10, NOW, NOW);
    let expected = format!(
        "OK\r\nkey=a exp=-1 la={now} cas=1 fetch=yes cls=1 size=61 flags=0\n\
        key=b%25%01%2F exp={expiry} la={stored} cas=2 fetch=no cls=1 size=69 flags=7\nEND\r\n"
    );
    for classes in ["all", "hash", "1", "1,39"] {
        let dump = session.send(format!("lru_crawler metadump {classes}\r\n").as_bytes());
        assert_eq!(String::from_utf8(dump).unwrap(), expected, "{classes}");
    }
    assert_eq!(session.send(b"lru_crawler metadump 2\r\n"), lines("OK|END"));
    let dump = session.send(b"lru_crawler mgdump all\r\nget a\r\n");
    let dump = String::from_utf8(dump).unwrap();
    assert_eq!(dump.as_bytes(), lines("OK|mg a|mg YiUBLw== b|EN|VALUE a 0 1|x|END"));
    // What is listed can be sent back.
    assert_eq!(session.send(&lines("mg YiUBLw== b v")), lines("VA 2|yy"));
}

/// A long list is written page by page, while the client reads, and commands behind it wait.
#[test]
fn a_list_pauses_when_the_reply_buffer_is_full() {
    let mut session = TestSession::new(1 << 20, 1000);
    for key in 0..1000 {
        session.send(format!("set key-{key:04} 0 0 1\r\nx\r\n").as_bytes());
    }
    session.resumed = 0;
    let dump = session.send(b"lru_crawler metadump all\r\nversion\r\n");
    let dump = String::from_utf8(dump).unwrap();
    assert_eq!(dump.matches("key=key-").count(), 1000);
    assert!(dump.ends_with("END\r\nVERSION 1.2.3 test\r\n"));
    assert!(session.resumed >= 9, "{}", session.resumed);
    let error = CacheError::Other("damaged".into());
    session.cache.fail_with(Some(error));
    let list = session.send(&lines("lru_crawler metadump all"));
    assert_eq!(list, lines("OK|SERVER_ERROR damaged"));
    for list in ["stats items", "stats slabs", "stats cachedump 1 1"] {
        assert_eq!(session.send(&lines(list)), lines("SERVER_ERROR damaged"), "{list}");
    }
}

#[test]
fn malformed_lines() {
    for (request, reply) in [
        ("|", "$F|$F"),
        (" |x|  |xy", "$F|$F|ERROR|ERROR"),
        (
            "foo|foo noreply|noreply|GET a|Get a|getx a|ge",
            "ERROR|ERROR|ERROR|ERROR|ERROR|ERROR|ERROR",
        ),
        ("get|get |gets", "$F|$F|$F"),
        ("gat|gat 0|gats 10", "$F|$F|$F"),
        ("gat x a", "CLIENT_ERROR invalid exptime argument"),
        ("delete", "$F"),
        ("incr|incr a", "$F|$F"),
        (
            "incr a x|decr a -1",
            "CLIENT_ERROR invalid numeric delta argument|\
            CLIENT_ERROR invalid numeric delta argument",
        ),
        ("incr a 18446744073709551616", "CLIENT_ERROR invalid numeric delta argument"),
        ("incr a x noreply", ""),
        ("touch|touch a", "$F|$F"),
        ("touch a x", "CLIENT_ERROR invalid exptime argument"),
        ("touch a x noreply", ""),
        // The data block does not end after the announced length.
        ("set a 0 0 1|xyz|get a", "CLIENT_ERROR bad data chunk|$F|END"),
        (
            "set a 0 0 1|x|set a 0 0 1|xyz|get a",
            "STORED|CLIENT_ERROR bad data chunk|$F|VALUE a 0 1|x|END",
        ),
        ("set a 0 0 1 noreply|xyz", "$F"),
        ("set a 0 0 3|x|et a", "CLIENT_ERROR bad data chunk|ERROR"),
    ] {
        check(request, reply);
    }
}

/// The data block of a rejected storage command is never executed, whatever it contains.
#[test]
fn the_data_of_a_rejected_command_is_not_executed() {
    let long = "k".repeat(251);
    // The line and the reply. The length is known, so the block is skipped and the next command is
    // executed.
    for (line, reply) in [
        ("set a x 0 9", "$F"),
        ("set a -1 0 9", "$F"),
        ("set a 4294967296 0 9", "$F"),
        ("set a 99999999999999999999 0 9", "$F"),
        ("set a 0x1 0 9", "$F"),
        ("set a 0 abc 9", "$F"),
        ("set a 0 -x 9", "$F"),
        ("set a 0 99999999999999999999 9", "$F"),
        ("set a 0 abc +9", "$F"),
        ("set a 0 abc 9 noreply", ""),
        ("set a -1 0 9 noreply", ""),
        ("add a x 0 9", "$F"),
        ("replace a 0 abc 9", "$F"),
        ("append a -1 0 9", "$F"),
        ("prepend a 0 abc 9 noreply", ""),
        ("cas a x 0 9 1", "$F"),
        ("cas a 0 abc 9 1 noreply", ""),
        ("cas a 0 0 9 x", "$F"),
        ("cas a 0 0 9 -1", "$F"),
        ("cas a 0 0 9 18446744073709551616", "$F"),
        ("cas a 0 0 9 noreply", "$F"),
        ("set K 0 0 9", "$F"),
        ("set K 0 0 9 noreply", ""),
        ("set K x abc 9", "$F"),
        ("cas K 0 0 9 1", "$F"),
        ("append K 0 0 9", "$F"),
        ("ms a 9 z", "CLIENT_ERROR invalid flag"),
        ("ms a 9 T0 Fx", "$F"),
        ("ms K 9 T0", "$F"),
    ] {
        let line = line.replace('K', &long);
        let reply = if reply.is_empty() { String::new() } else { format!("|{reply}") };
        check(
            &format!("set b 0 0 1|x|{line}|flush_all|get b|version"),
            &format!("STORED{reply}|VALUE b 0 1|x|END|VERSION 1.2.3 test"),
        );
    }
    // The length is unknown, so the connection is closed, even if the line may end with `noreply`.
    for line in [
        "set",
        "set a",
        "set a 0",
        "set a 0 0",
        "set a 0 0 noreply",
        "set a 0 0 x",
        "set a 0 0 -1",
        "set a 0 0 -1 noreply",
        "set a 0 0 9x",
        "set a 0 0 2147483646",
        "set a 0 0 99999999999999999999",
        // An extra word: it is unknown which of them is the length.
        "set my key 0 3600 9",
        "set user 17 0 0 9",
        "set user 17 0 0 9 noreply",
        "set a 0 0 9 more",
        "set a 0 0 9 noreply more",
        "set a 0 0 9 more noreply",
        "cas a 0 0",
        "cas a 0 0 9",
        "cas a 0 0 9 1 more",
        "cas my key 0 0 9 1",
        "cas a 0 0 -1 1",
        "append a",
        "prepend a 0 0 -9 noreply",
    ] {
        let mut session = TestSession::default();
        session.send(b"set b 0 0 1\r\nx\r\n");
        assert_eq!(
            session.send(&lines(&format!("{line}|flush_all|get b"))),
            lines(BAD_FORMAT),
            "{line}"
        );
        assert!(session.is_closed(), "{line}");
        assert_eq!(session.held_bytes(), 0);
        assert_eq!(session.counters.get(Count::CmdFlush), 0, "{line}");
    }
    for line in ["ms", "ms a", "ms a S9", "ms a -1"] {
        let mut session = TestSession::default();
        assert_eq!(session.send(&lines(&format!("{line}|flush_all"))), lines(BAD_FORMAT), "{line}");
        assert!(session.is_closed() && session.counters.get(Count::CmdFlush) == 0, "{line}");
    }
}

/// A client of the binary protocol learns immediately that this server does not support it.
#[test]
fn packets_of_the_binary_protocol_are_not_read_as_lines() {
    let mut session = TestSession::default();
    assert_eq!(session.send(b"get a\r\n"), lines("END"));
    assert_eq!(session.send(b"\x80\x01\0\x01\x08\0\0\0\nflush_all\r\n"), b"");
    assert!(session.is_closed());
    assert_eq!(session.counters.get(Count::CmdFlush), 0);
}

#[test]
fn line_feeds_alone_end_lines_but_not_data() {
    let mut session = TestSession::default();
    assert_eq!(
        session.send(b"set a 0 0 1\nx\r\nget a\nfoo\n\n"),
        lines(&format!("STORED|VALUE a 0 1|x|END|ERROR|{BAD_FORMAT}"))
    );
    assert_eq!(
        session.send(b"set a 0 0 1\nx\nget a\n"),
        lines("CLIENT_ERROR bad data chunk|ERROR")
    );
}

#[test]
fn keys_have_at_most_250_bytes() {
    let (long, longer) = ("k".repeat(250), "k".repeat(251));
    check(&format!("set {long} 0 0 1|x|get {long}"), &format!("STORED|VALUE {long} 0 1|x|END"));
    check(&format!("delete {long}|touch {long} 0|incr {long} 1"), "NOT_FOUND|NOT_FOUND|NOT_FOUND");
    for request in ["get K", "gets a K b", "gat 0 K", "delete K", "incr K 1", "touch K 1"] {
        check(
            &format!("set a 0 0 1|x|{}|get a", request.replace('K', &longer)),
            "STORED|$F|VALUE a 0 1|x|END",
        );
    }
    for request in ["set K 0 0 3|get", "cas K 0 0 3 1|get", "append K 0 0 3|get"] {
        check(&format!("{}|get a", request.replace('K', &longer)), "$F|END");
    }
    check(&format!("set {longer} 0 0 1 noreply|x|delete {longer} noreply|get a"), "END");
}

/// A server may allow longer keys. What is longer than these is refused as ever.
#[test]
fn keys_may_be_longer_if_the_server_says_so() {
    for max in [251, 3000, KEY_SIZE_LIMIT] {
        for piece in [1 << 20, 777] {
            let mut session = TestSession::default();
            session.key_size_max = max;
            let mut ask = |request: &str| session.send_in_pieces(&lines(request), piece);
            let (long, longer) = ("k".repeat(max), "k".repeat(max + 1));
            for (request, reply) in [
                ("set K 0 0 1|x|get K", "STORED|VALUE K 0 1|x|END"),
                ("get a K K b", "VALUE K 0 1|x|VALUE K 0 1|x|END"),
                ("gat 0 K|touch K 0", "VALUE K 0 1|x|END|TOUCHED"),
                ("append K 0 0 1|y|get K", "STORED|VALUE K 0 2|xy|END"),
                ("set K 0 0 1 noreply|7|incr K 1|decr K 2", "8|6"),
                ("mg K v k|ma K|md K|mg K v", "VA 1 kK|6|HD|HD|EN"),
                ("ms K 1 k|z|delete K|get K", "HD kK|DELETED|END"),
            ] {
                let (request, reply) = (request.replace('K', &long), reply.replace('K', &long));
                assert!(ask(&request) == lines(&reply), "{max} {piece} {}", &request[..20]);
            }
            let failed = lines("CLIENT_ERROR bad command line format");
            for request in ["get K", "gets a K b", "delete K", "incr K 1", "touch K 1", "mg K v"] {
                assert_eq!(ask(&request.replace('K', &longer)), failed, "{request}");
            }
            for request in ["set K 0 0 9|flush_all", "ms K 9|flush_all"] {
                assert_eq!(ask(&request.replace('K', &longer)), failed, "{request}");
            }
            assert_eq!(ask("get a"), lines("END"));
        }
    }
}

/// The longest line is longer by what keys may be longer.
#[test]
fn a_line_with_a_long_key_has_a_limit_too() {
    for max in [KEY_MAX, 4000] {
        for (more, closes) in [(0, false), (1, true)] {
            let mut session = TestSession::default();
            session.key_size_max = max;
            let spaces = " ".repeat(LINE_MAX - KEY_MAX - 8 + more);
            let line = format!("incr {}{spaces}77\r\n", "k".repeat(max));
            let reply = session.send(line.as_bytes());
            assert_eq!(session.is_closed(), closes, "{max} {more}: {}", line.len());
            assert_eq!(reply.starts_with(b"CLIENT_ERROR line too long"), closes);
        }
    }
}

#[test]
fn exptimes() {
    for (exptime, seconds_live) in [
        ("0", None),
        ("-1", Some(0)),
        ("-9223372036854775808", Some(0)),
        ("1", Some(1)),
        ("2592000", Some(2_592_000)),
        ("2592001", Some(0)),
        (&(NOW + 5).to_string(), Some(5)),
        (&NOW.to_string(), Some(0)),
        ("9223372036854775807", Some(u32::MAX - NOW)),
    ] {
        for storing in ["set a 0 E 1|x", "set a 0 0 1|x|touch a E", "set a 0 0 1|x|gat E a"] {
            let mut session = TestSession::default();
            session.send(&lines(&storing.replace('E', exptime)));
            let mut live = |now| {
                session.cache.set_now(now);
                session.send(b"get a\r\n") == lines("VALUE a 0 1|x|END")
            };
            match seconds_live {
                None => assert!(live(u32::MAX), "{storing} {exptime}"),
                Some(0) => assert!(!live(NOW), "{storing} {exptime}"),
                Some(seconds) => {
                    assert!(live(NOW + (seconds - 1)), "{storing} {exptime}");
                    assert!(!live(NOW + seconds), "{storing} {exptime}");
                }
            }
        }
    }
}

#[test]
fn a_delayed_flush_all_keeps_items_that_are_stored_later() {
    let mut session = TestSession::default();
    session.send(b"set a 0 0 1\r\nx\r\nflush_all 10\r\n");
    session.cache.set_now(NOW + 9);
    assert_eq!(session.send(b"get a\r\n"), lines("VALUE a 0 1|x|END"));
    session.cache.set_now(NOW + 10);
    assert_eq!(session.send(b"set b 0 0 1\r\ny\r\nget a b\r\n"), lines("STORED|VALUE b 0 1|y|END"));
}

#[test]
fn an_item_that_is_too_large_is_skipped_and_only_set_deletes_the_old_one() {
    let mut session = TestSession::new(1024, 1 << 16);
    let value = "v".repeat(1024 - 50 - 1);
    let fits = format!("set a 0 0 {}|{value}", value.len());
    let too_large = format!("C a 0 0 {}|{value}v|get b", value.len() + 1);
    for (command, deletes) in
        [("set", true), ("add", false), ("replace", false), ("append", false), ("prepend", false)]
    {
        assert_eq!(session.send(&lines(&fits)), lines("STORED"));
        let request = too_large.replacen('C', command, 1);
        assert_eq!(session.send(&lines(&request)), lines(&format!("{TOO_LARGE}|END")), "{request}");
        let hit = format!("VALUE a 0 {}|{value}|END", value.len());
        let left = if deletes { "END" } else { &hit };
        assert_eq!(session.send(b"get a\r\n"), lines(left), "{command}");
    }
    assert_eq!(session.counters.get(Count::StoreTooLarge), 5);
    // `noreply` suppresses only the reply.
    session.send(b"set a 0 0 1\r\nx\r\n");
    assert_eq!(session.send(b"set a 0 0 9999 noreply\r\n"), b"");
    assert_eq!(session.send(&lines(&"v".repeat(9999))), b"");
    assert_eq!(session.send(b"get a\r\n"), lines("END"));
    // append cannot make a value larger than the limit either.
    session.send(&lines(&fits));
    assert_eq!(session.send(b"append a 0 0 1\r\nx\r\n"), lines(TOO_LARGE));
}

#[test]
fn errors_of_the_store_are_replies() {
    let all =
        "get a|gat 0 a b|set a 0 0 1|x|append a 0 0 1|x|delete a|incr a 1|touch a 0|flush_all";
    let silent = "set a 0 0 1 noreply|x|delete a noreply|incr a 1 noreply|\
        touch a 0 noreply|flush_all noreply";
    for (error, text) in [
        (CacheError::OutOfMemory, "out of memory storing object"),
        (CacheError::TooLarge, "object too large for cache"),
        (CacheError::ReadOnly, "the store is read-only"),
        (
            CacheError::Poisoned,
            "a failed change left the store unusable; restart the server to recover it",
        ),
        (CacheError::Other("a\r\nSTORED\r\nb".into()), "a  STORED  b"),
    ] {
        let mut session = TestSession::default();
        session.cache.fail_with(Some(error));
        let reply = [&*format!("SERVER_ERROR {text}"); 8].join("|");
        assert_eq!(session.send(&lines(all)), lines(&reply));
        assert_eq!(session.send(&lines(silent)), b"");
        session.cache.fail_with(None);
        assert_eq!(session.send(b"get a\r\n"), lines("END"));
    }
}

#[test]
fn a_set_without_memory_deletes_the_old_item() {
    let mut session = TestSession::default();
    session.cache.limit_bytes(100);
    session.send(b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\n");
    let large = "v".repeat(200);
    let no_memory = lines("SERVER_ERROR out of memory storing object");
    assert_eq!(session.send(&lines(&format!("set a 0 0 200|{large}"))), no_memory);
    assert_eq!(session.send(&lines(&format!("replace b 0 0 200|{large}"))), no_memory);
    assert_eq!(session.send(b"get a b\r\n"), lines("VALUE b 0 1|x|END"));
    assert_eq!(session.counters.get(Count::StoreNoMemory), 2);
}

#[test]
fn after_a_failed_lookup_only_the_rest_of_its_line_is_skipped() {
    // With 100 keys, the first batch fails in the middle of the line.
    let mut session = TestSession::default();
    session.cache.fail_with(Some(CacheError::ReadOnly));
    let keys = " k".repeat(100);
    let error = "SERVER_ERROR the store is read-only";
    assert_eq!(
        session.send(&lines(&format!("get{keys}|version"))),
        lines(&format!("{error}|VERSION 1.2.3 test"))
    );
    assert_eq!(
        session.send(&lines(&format!("get a|get{keys}|get b"))),
        lines(&[error; 3].join("|"))
    );
    assert_eq!(session.send(&lines(&format!("gat 0{keys}|gets b"))), lines(&[error; 2].join("|")));
}

#[test]
fn lines_that_are_too_long_are_rejected_and_key_lists_may_be_longer() {
    let too_long = lines("CLIENT_ERROR line too long");
    for piece in [usize::MAX, 1000] {
        let mut session = TestSession::default();
        let line = [&vec![b'a'; LINE_MAX][..], b"\n"].concat();
        assert_eq!(session.send_in_pieces(&line, piece), lines("ERROR"));
        let line = [&vec![b'a'; LINE_MAX + 1][..], b"\n"].concat();
        assert_eq!(session.send_in_pieces(&line, piece), too_long);
        assert!(session.is_closed());
        for command in ["get ", "  gets ", "gat 0 ", "gats 0 "] {
            let line = [command.as_bytes(), &b"k ".repeat(10_000), b"\n"].concat();
            let mut session = TestSession::default();
            assert_eq!(session.send_in_pieces(&line, piece), lines("END"), "{command}");
        }
        // With too many spaces in front, a line does not count as a list of keys.
        let mut session = TestSession::default();
        let line = [" ".repeat(101), "get".into(), " k".repeat(LINE_MAX), "\n".into()].concat();
        assert_eq!(session.send_in_pieces(line.as_bytes(), piece), too_long);
    }
}

/// memcached has no limit, and clients that collect keys send long lists. A list costs the memory
/// of its line, however the pieces and the replies are.
#[test]
fn a_list_of_keys_may_have_megabytes() {
    let key = "k".repeat(250);
    let (mut line, mut found) = (b"get".to_vec(), Vec::new());
    while line.len() + key.len() < KEY_LIST_MAX {
        line.extend(format!(" {key}").bytes());
    }
    line[KEY_LIST_MAX / 2..][..251].copy_from_slice(&b" a".repeat(126)[..251]);
    line.push(b'\n');
    let mut session = TestSession::new(1 << 20, 100_000);
    session.send(&lines(&format!("set a 0 0 20000|{}", "v".repeat(20_000))));
    for _ in 0..125 {
        found.extend(lines(&format!("VALUE a 0 20000|{}", "v".repeat(20_000))));
    }
    found.extend(b"END\r\n");
    for piece in [1 << 16, usize::MAX] {
        assert!(session.send_in_pieces(&line, piece.min(line.len())) == found);
        assert!(!session.is_closed() && session.held_bytes() == 0);
    }
    let mut too_long = vec![b' '; KEY_LIST_MAX + 1];
    too_long[..4].copy_from_slice(b"get ");
    assert_eq!(session.send_in_pieces(&too_long, 1 << 16), lines("CLIENT_ERROR line too long"));
    assert!(session.is_closed());
}

#[test]
fn consecutive_gets_share_lookups() {
    let mut session = TestSession::default();
    session.send(b"set a 0 0 1\r\nx\r\n");
    let lookups = session.cache.lookups();
    let replies = session.send(&b"get a\r\ngets b a\r\n".repeat(100));
    assert_eq!(replies, lines("VALUE a 0 1|x|END|VALUE a 0 1 1|x|END").repeat(100));
    assert_eq!(session.cache.lookups() - lookups, 300u64.div_ceil(BATCH_KEYS as u64));
    // Another command ends the batch, so the order of execution is kept.
    let replies = session.send(b"get a\r\ndelete a\r\nget a\r\n");
    assert_eq!(replies, lines("VALUE a 0 1|x|END|DELETED|END"));
}

/// The first batch ends the first command and fills the reply buffer while keys of the second
/// command are collected.
#[test]
fn a_full_reply_buffer_does_not_lose_collected_keys() {
    let mut session = TestSession::new(1024, 1);
    let requests = format!("get a|get{}|get a", " a".repeat(100));
    assert_eq!(session.send(&lines(&requests)), lines("END|END|END"));
}

#[test]
fn lookups_are_counted_by_key() {
    let mut session = TestSession::new(1024, 50);
    session.send(b"set a 0 0 9\r\n123456789\r\n");
    session.send(b"get a b a\r\nget c\r\ngat 0 a b\r\ngets a\r\ntouch a 0\r\ntouch b 0\r\n");
    assert!(session.resumed > 0, "the replies should exceed the limit");
    for (count, expected) in [
        (Count::CmdGet, 5),
        (Count::GetHits, 3),
        (Count::GetMisses, 2),
        (Count::CmdTouch, 4),
        (Count::TouchHits, 2),
        (Count::TouchMisses, 2),
        (Count::CmdSet, 1),
    ] {
        assert_eq!(session.counters.get(count), expected, "{}", count.name());
    }
    session.send(b"delete a\r\ndelete a\r\nincr a 1\r\ndecr a 1\r\n");
    session.send(b"set a 0 0 1\r\n1\r\nincr a 1\r\ndecr a 1\r\n");
    session.send(b"cas b 0 0 1 9\r\nx\r\ncas a 0 0 1 9\r\nx\r\nset c 0 0 1\r\nx\r\nflush_all\r\n");
    for count in [
        Count::DeleteHits,
        Count::DeleteMisses,
        Count::IncrHits,
        Count::IncrMisses,
        Count::DecrHits,
        Count::DecrMisses,
        Count::CasMisses,
        Count::CasBadval,
        Count::CmdFlush,
    ] {
        assert_eq!(session.counters.get(count), 1, "{}", count.name());
    }
}

#[test]
fn the_memory_of_an_upload_grows_as_bytes_arrive() {
    let mut session = TestSession::new(64 << 20, 1 << 16);
    let len = 60 << 20;
    assert_eq!(session.send(&lines(&format!("set a 0 0 {len}"))), b"");
    assert!(session.held_bytes() < 1024);
    let piece = vec![b'v'; 64 << 10];
    for arrived in (1..=len / piece.len()).map(|pieces| pieces * piece.len()) {
        assert_eq!(session.send(&piece), b"");
        assert!(session.held_bytes() <= (2 * arrived).min(len + 1024), "{arrived}");
    }
    assert_eq!(session.send(b"\r\n"), lines("STORED"));
    assert_eq!(session.held_bytes(), 0);
    assert_eq!(session.send(b"get a\r\n").len(), len + "VALUE a 0 62914560\r\n\r\nEND\r\n".len());
}

#[test]
fn unfinished_requests_stay_within_the_budget() {
    const LIMIT: usize = 1 << 20;
    let no_memory = lines("SERVER_ERROR out of memory storing object");
    // Another client holds most of the budget.
    let budget = Budget::new(LIMIT);
    let mut other = Reservation::new(&budget);
    assert!(other.try_grow_to(LIMIT - 100_000));
    let mut session = TestSession::default();
    session.uploads = budget.clone();
    session.send(b"set a 0 0 3\r\nold\r\n");

    // This upload fits. Its memory is reserved while it is unfinished, and released when it is
    // stored.
    assert_eq!(session.send(b"set b 0 0 90000\r\n"), b"");
    assert_eq!(session.send(&[b'v'; 90_000]), b"");
    assert_eq!(budget.reserved(), LIMIT - 100_000 + 90_000);
    assert_eq!(session.send(b"\r\n"), lines("STORED"));
    assert_eq!(budget.reserved(), LIMIT - 100_000);

    // This upload does not fit. It is rejected as soon as that is known, all its data is skipped,
    // and the item that it should replace is deleted.
    assert_eq!(session.send(b"set a 0 0 200000\r\n"), b"");
    let block = b"flush_all\r\n".repeat(20_000);
    let mut replies = Vec::new();
    for piece in block[..200_002].chunks(30_000) {
        replies.extend(session.send(piece));
    }
    assert_eq!(replies, no_memory);
    assert_eq!(budget.reserved(), LIMIT - 100_000);
    assert!(session.held_bytes() < 1024);
    assert_eq!(session.send(b"get a\r\nget c\r\n"), lines("END|END"));
    assert_eq!(session.counters.get(Count::StoreNoMemory), 1);
    assert_eq!(session.counters.get(Count::CmdFlush), 0);

    // A list of keys without an end is an unfinished request too.
    let mut replies = session.send(b"get");
    for _ in 0..10 {
        replies.extend(session.send(&b" key".repeat(5000)));
    }
    assert_eq!(replies, lines("SERVER_ERROR out of memory reading request"));
    assert!(session.is_closed());
    assert_eq!(session.held_bytes(), 0);

    // A dropped session releases its reservations.
    drop(other);
    let mut session = TestSession::default();
    session.uploads = budget.clone();
    session.send(b"set a 0 0 500000\r\n");
    session.send(&[b'v'; 300_000]);
    assert!(budget.reserved() >= 300_000);
    drop(session);
    assert_eq!(budget.reserved(), 0);
}

/// Sets that arrive together are executed together, and are answered as if each came alone: also
/// those between them that are not stored, and reads before and after.
#[test]
fn sets_in_a_pipeline_are_answered_in_their_order() {
    let mut session = TestSession::new(1 << 20, 1 << 20);
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    let mut pipeline = |request: &str, reply: &str| {
        requests.extend(lines(request));
        replies.extend(if reply.is_empty() { Vec::new() } else { lines(reply) });
    };
    for round in 0..100 {
        let key = format!("key-{}", round % 70);
        pipeline(&format!("set {key} {round} 0 3|{round:03}"), "STORED");
        pipeline(&format!("set {key}-quiet 0 0 1 noreply|q"), "");
        pipeline(&format!("ms {key} 2 F{round}|mm"), "HD");
        match round % 10 {
            0 => {
                pipeline(&format!("set {key} 0 0 1|too long"), "CLIENT_ERROR bad data chunk|ERROR")
            }
            1 => pipeline(&format!("get {key}"), &format!("VALUE {key} {round} 2|mm|END")),
            2 => pipeline(&format!("add {key} 0 0 1|x"), "NOT_STORED"),
            3 => pipeline(&format!("mg {key} v q"), "VA 2|mm"),
            4 => pipeline(&format!("set {key} 0 -1 1|x|get {key}"), "STORED|END"),
            5 => pipeline(&format!("delete {key}-quiet"), "DELETED"),
            _ => {}
        }
    }
    let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
    assert_eq!(show(&session.send(&requests)), show(&replies));
    assert_eq!(session.held_bytes(), 0);
    let pieces = TestSession::new(1 << 20, 1 << 20).send_in_pieces(&requests, 7);
    assert_eq!(show(&pieces), show(&replies));
}

/// One small request can have replies of any total length. The reply buffer stays small.
#[test]
fn replies_never_exceed_the_limit_by_more_than_a_value() {
    let mut session = TestSession::new(1 << 20, 10_000);
    let value = "v".repeat(100_000);
    session.send(&lines(&format!("set a 0 0 100000|{value}")));
    let hit = lines(&format!("VALUE a 0 100000|{value}"));
    for (request, cas) in [("get", ""), ("gets", " 1"), ("gat 0", ""), ("gats 0", " 1")] {
        let request = format!("{request}{}\r\n", " a".repeat(200));
        let hit = lines(&format!("VALUE a 0 100000{cas}|{value}"));
        let expected = [hit.repeat(200), lines("END")].concat();
        let resumed = session.resumed;
        // `send` checks the bounds.
        assert!(session.send(request.as_bytes()) == expected);
        assert!(session.resumed >= resumed + 199);
    }
    let expected = [hit, lines("END")].concat().repeat(100);
    assert!(session.send(&b"get a\r\n".repeat(100)) == expected);
    assert_eq!(session.held_bytes(), 0);
}
