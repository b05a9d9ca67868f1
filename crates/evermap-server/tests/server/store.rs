//! The store gives the same replies as the model.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{NOW, TestSession};
use evermap::{Clock, Evermap, Options};
use evermap_server::cache::{Cache, StoreMode, StoreRequest};
use evermap_server::{CacheError, Config, ModelCache, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const ITEM_SIZE_MAX: usize = 1100;

/// The next action of a client.
#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    /// A cas command with the id from the last reply to gets for the key.
    Cas {
        key: &'static str,
        value: Vec<u8>,
    },
    /// A command of the meta protocol that compares that id.
    Compare {
        line: &'static str,
        key: &'static str,
    },
    /// Advances the clock by this number of seconds.
    Wait(u32),
}

fn key() -> impl Strategy<Value = &'static str> {
    select(&["a", "b", "c", "d", "e"][..])
}

/// Any bytes, numbers, and values that are too long when joined, or even on their own.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let number = any::<u64>().prop_map(|n| n.to_string().into_bytes());
    let near_wrap = Just(u64::MAX.to_string().into_bytes());
    prop_oneof![
        4 => vec(any::<u8>(), 0..40),
        4 => (0u64..200).prop_map(|n| n.to_string().into_bytes()),
        1 => number,
        1 => near_wrap,
        1 => vec(any::<u8>(), 400..700),
        1 => vec(any::<u8>(), 1000..1100),
    ]
}

fn exptime() -> impl Strategy<Value = i64> {
    let absolute = i64::from(NOW);
    select(vec![0, 0, 0, 0, -1, 1, 2, 5, 1_000_000, absolute + 3, absolute - 3])
}

fn send(text: String) -> Step {
    Step::Send(text.into_bytes())
}

/// Commands that compare a CAS id, which follows them, with that of the key that replaces `K`.
const COMPARING: &[&str] = &["ms K 1 I C", "ms K 1 C", "md K C", "md K I C", "ma K C", "mg K v C"];

fn step() -> impl Strategy<Value = Step> {
    let verb = select(&["set", "set", "set", "add", "replace", "append", "prepend"][..]);
    let noreply = select(&["", "", "", " noreply"][..]);
    let store = (verb, key(), 0u32..5, exptime(), value(), noreply).prop_map(
        |(verb, key, flags, exptime, value, noreply)| {
            let line = format!("{verb} {key} {flags} {exptime} {}{noreply}\r\n", value.len());
            Step::Send([line.as_bytes(), &value, b"\r\n"].concat())
        },
    );
    let delta = prop_oneof![0u64..300, Just(u64::MAX)];
    prop_oneof![
        10 => store,
        4 => (key(), value()).prop_map(|(key, value)| Step::Cas { key, value }),
        4 => key().prop_map(|key| send(format!("gets {key}\r\n"))),
        14 => meta(),
        4 => (key(), select(COMPARING)).prop_map(|(key, line)| Step::Compare { line, key }),
        6 => vec(key(), 1..40).prop_map(|keys| send(format!("get {}\r\n", keys.join(" ")))),
        2 => (key(), exptime()).prop_map(|(key, t)| send(format!("gats {t} {key}\r\n"))),
        2 => (key(), exptime()).prop_map(|(key, t)| send(format!("touch {key} {t}\r\n"))),
        3 => (key(), delta, select(&["incr", "decr"][..]))
            .prop_map(|(key, delta, verb)| send(format!("{verb} {key} {delta}\r\n"))),
        3 => key().prop_map(|key| send(format!("delete {key}\r\n"))),
        1 => select(&["", " 0", " 2", " 4", " -1"][..])
            .prop_map(|delay| send(format!("flush_all{delay}\r\n"))),
        2 => (0u32..4).prop_map(Step::Wait),
    ]
}

/// A flag of the meta protocol whose reply is the same in both caches.
fn flag() -> impl Strategy<Value = String> {
    let plain = "fkqstuvxI".chars().map(String::from).collect::<Vec<_>>();
    let modes = select(&["MS", "ME", "MR", "MA", "MP", "MI", "MD"][..]).prop_map(String::from);
    let number = |flag: &'static str, numbers: std::ops::Range<u64>| {
        numbers.prop_map(move |number| format!("{flag}{number}"))
    };
    prop_oneof![
        9 => select(plain),
        2 => modes,
        2 => (select(&["T", "N", "R"][..]), exptime()).prop_map(|(flag, t)| format!("{flag}{t}")),
        1 => number("F", 0..5),
        1 => number("J", 0..200),
        1 => number("D", 0..300),
        // Greater than any id that the caches choose.
        1 => number("E", 1 << 40..(1 << 40) + 3),
        1 => number("C", 1 << 40..(1 << 40) + 3),
    ]
}

fn meta() -> impl Strategy<Value = Step> {
    let verb = select(&["mg", "mg", "mg", "ms", "ms", "md", "ma"][..]);
    (verb, key(), vec(flag(), 0..6), value()).prop_map(|(verb, key, mut flags, value)| {
        flags.sort();
        flags.dedup_by_key(|flag| flag.chars().next());
        let flags = flags.join(" ");
        match verb {
            "ms" => {
                let line = format!("ms {key} {} {flags}\r\n", value.len());
                Step::Send([line.as_bytes(), &value, b"\r\n"].concat())
            }
            _ => send(format!("{verb} {key} {flags}\r\n")),
        }
    })
}

/// A client of one of the two caches that are compared.
struct Client<F> {
    /// Sends a request and returns the reply.
    ask: F,
    /// The CAS id from the last reply to gets or gats for a key.
    seen: HashMap<Vec<u8>, u64>,
    /// Numbers CAS ids in the order of their first appearance. The two caches need not assign the
    /// same ids, but ids must be equal or different at the same times.
    ordinals: HashMap<u64, usize>,
}

impl<F: FnMut(&[u8]) -> Vec<u8>> Client<F> {
    fn new(ask: F) -> Self {
        Client { ask, seen: HashMap::new(), ordinals: HashMap::new() }
    }

    fn step(&mut self, step: &Step) -> String {
        let reply = match step {
            Step::Send(request) => (self.ask)(request),
            Step::Cas { key, value } => {
                let id = self.seen.get(key.as_bytes()).copied().unwrap_or(0);
                let line = format!("cas {key} 9 0 {} {id}\r\n", value.len());
                (self.ask)(&[line.as_bytes(), value, b"\r\n"].concat())
            }
            Step::Compare { line, key } => {
                let id = self.seen.get(key.as_bytes()).copied().unwrap_or(0);
                let data = if line.starts_with("ms") { "\r\n7" } else { "" };
                (self.ask)(format!("{}{id}{data}\r\n", line.replace('K', key)).as_bytes())
            }
            Step::Wait(_) => return String::new(),
        };
        let shown = reply.escape_ascii().to_string();
        // VALUE key flags length id, in a reply to one key.
        let words: Vec<_> = reply.split(|&byte| byte == b' ' || byte == b'\r').take(5).collect();
        let id = match words[..] {
            [b"VALUE", key, _, _, id] if !id.starts_with(b"\n") => {
                let id: u64 = std::str::from_utf8(id).unwrap().parse().unwrap();
                self.seen.insert(key.to_vec(), id);
                id
            }
            _ => return shown,
        };
        let next = self.ordinals.len();
        let ordinal = *self.ordinals.entry(id).or_insert(next);
        shown.replacen(&format!(" {id}\\r"), &format!(" #{ordinal}\\r"), 1)
    }
}

fn ask<C: Cache>(session: &mut TestSession<C>, request: &[u8]) -> Vec<u8> {
    let reply = session.send(request);
    assert!(!session.is_closed());
    reply
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_store_replies_as_the_model_does(steps in vec(step(), 1..120)) {
        let clock = Clock::manual(crate::common::at(NOW));
        let options = Options::new().capacity(4 << 30).clock(clock.clone());
        let map = Evermap::in_memory(options).unwrap().default_map();
        let model = std::cell::RefCell::new(TestSession::new(ITEM_SIZE_MAX, 2000));
        let store = std::cell::RefCell::new(TestSession::with(map, ITEM_SIZE_MAX, 2000));
        let mut at_model = Client::new(|request| ask(&mut model.borrow_mut(), request));
        let mut at_store = Client::new(|request| ask(&mut store.borrow_mut(), request));
        for step in &steps {
            if let Step::Wait(seconds) = step {
                let now = model.borrow().now + seconds;
                model.borrow().cache.set_now(now);
                clock.set(crate::common::at(now));
                model.borrow_mut().now = now;
                store.borrow_mut().now = now;
            }
            prop_assert_eq!(at_store.step(step), at_model.step(step), "{:?}", step);
        }
    }
}

/// Sends a request and returns the reply. A `version` command after it marks the end of the reply.
fn ask_socket(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    let end = format!("VERSION {}\r\n", Config::default().version);
    stream.write_all(&[request, b"version\r\n"].concat()).unwrap();
    let (mut reply, mut piece) = (Vec::new(), [0; 4096]);
    while !reply.ends_with(end.as_bytes()) {
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "closed after {}", reply.escape_ascii());
        reply.extend_from_slice(&piece[..len]);
    }
    reply.truncate(reply.len() - end.len());
    reply
}

#[test]
fn the_store_replies_as_the_model_does_over_sockets() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        threads: 2,
        item_size_max: ITEM_SIZE_MAX,
        output_limit: 2000,
        ..Config::default()
    };
    let store = Server::start(Arc::new(map), config.clone()).unwrap();
    let model = Server::start(Arc::new(ModelCache::new(now)), config).unwrap();
    let connect = |server: &Server| TcpStream::connect(server.local_addr()).unwrap();
    let (mut to_store, mut to_model) = (connect(&store), connect(&model));
    let mut at_store = Client::new(|request| ask_socket(&mut to_store, request));
    let mut at_model = Client::new(|request| ask_socket(&mut to_model, request));
    // The test above covers requests whose replies depend on the time.
    let timeless = step().prop_filter("seconds do not matter", |step| match step {
        Step::Send(request) => {
            let line: &[u8] = request.split(|&byte| byte == b'\r').next().unwrap();
            let line = std::str::from_utf8(line).unwrap();
            let verb = line.split(' ').next().unwrap();
            match verb {
                "get" | "gets" | "delete" | "incr" | "decr" => true,
                "touch" | "gats" => false,
                "flush_all" => !line.ends_with(['2', '4']),
                "mg" | "ms" | "md" | "ma" => {
                    !line.split(' ').any(|word| word.starts_with(['T', 'N', 'R']))
                }
                _ => matches!(line.split(' ').nth(3), Some("0" | "-1" | "1000000")),
            }
        }
        Step::Cas { .. } | Step::Compare { .. } => true,
        Step::Wait(_) => false,
    });
    let mut runner = TestRunner::deterministic();
    for step in vec(timeless, 3000).new_tree(&mut runner).unwrap().current() {
        assert_eq!(at_store.step(&step), at_model.step(&step), "{step:?}");
    }
}

/// Relative times begin at the time by which the store decides what has expired, whatever the wall
/// clock shows: here it is decades away.
#[test]
fn the_time_of_the_store_is_that_of_its_clients() {
    let clock = Clock::manual(crate::common::at(1_000_000));
    let options = Options::new().capacity(1 << 30).clock(clock.clone());
    let map = Evermap::in_memory(options).unwrap().default_map();
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 1, ..Config::default() };
    let server = Server::start(Arc::new(map), config).unwrap();
    let mut client = TcpStream::connect(server.local_addr()).unwrap();
    let mut ask =
        |request: &str| String::from_utf8(ask_socket(&mut client, request.as_bytes())).unwrap();
    assert_eq!(ask("set minute 0 60 1\r\na\r\n"), "STORED\r\n");
    // More than 30 days is a date, by the same clock.
    assert_eq!(ask("set date 0 5000000 1\r\na\r\n"), "STORED\r\n");
    assert_eq!(ask("mg minute t\r\n"), "HD t60\r\n");
    assert_eq!(ask("mg date t\r\n"), "HD t4000000\r\n");
    assert!(ask("stats\r\n").contains("STAT time 1000000\r\n"));
    clock.set(crate::common::at(1_000_059));
    assert_eq!(ask("mg minute t\r\n"), "HD t1\r\n");
    clock.set(crate::common::at(1_000_060));
    assert_eq!(ask("mg minute t\r\n"), "EN\r\n");
}

#[test]
fn a_full_store_rejects_items_and_deletes_the_ones_they_should_replace() {
    let options = Options::new().capacity(4 << 30).max_bytes(100_000);
    let map = Evermap::in_memory(options).unwrap().default_map();
    let mut session = TestSession::with(map, 1 << 20, 1 << 20);
    let set = |key: &str, len: usize| {
        [format!("set {key} 0 0 {len}\r\n").as_bytes(), &vec![b'x'; len], b"\r\n"].concat()
    };
    assert_eq!(ask(&mut session, &set("a", 60_000)), b"STORED\r\n");
    let full = b"SERVER_ERROR out of memory storing object\r\n";
    assert_eq!(ask(&mut session, &set("b", 60_000)), full);
    assert_eq!(ask(&mut session, &set("c", 10)), b"STORED\r\n");
    assert_eq!(ask(&mut session, &set("a", 90_000)), full);
    assert_eq!(ask(&mut session, b"get a b c\r\n"), b"VALUE c 0 10\r\nxxxxxxxxxx\r\nEND\r\n");
    assert_eq!(ask(&mut session, &set("b", 60_000)), b"STORED\r\n");
    let stats = ask(&mut session, b"stats\r\n");
    let stats = String::from_utf8(stats).unwrap();
    for line in ["curr_items 2", "limit_maxbytes 100000", "evictions 0", "evermap_clean_open 1"] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} in {stats}");
    }
}

#[test]
fn errors_of_the_store_are_errors_of_the_cache() {
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    let other = map.clone();
    assert_eq!(
        Cache::store(&map, &[0; evermap::KEY_MAX + 1], b"", &StoreRequest::new(StoreMode::Set)),
        Err(CacheError::TooLarge)
    );
    other.into_db().close().unwrap();
    let closed = CacheError::Other("the store was closed".into());
    assert_eq!(
        Cache::get_many(&map, &[b"a"], &mut |_, _| Ok(ControlFlow::Continue(()))),
        Err(closed.clone())
    );
    assert_eq!(Cache::delete(&map, b"a"), Err(closed));
}

/// The first command has a damaged value between two intact ones, so its reply is the error alone.
/// The commands that share its lookup are not affected.
#[test]
fn a_damaged_value_fails_only_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let map = Evermap::open(&path, Options::new()).unwrap().default_map();
    for (key, value) in [("a", "1"), ("b", "this value gets damaged"), ("c", "3")] {
        map.put(key.as_bytes(), value.as_bytes()).unwrap();
    }
    map.into_db().close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let value = b"gets damaged";
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[at] = b'G';
    std::fs::write(&path, bytes).unwrap();

    let map = Evermap::open(&path, Options::new()).unwrap().default_map();
    let mut session = TestSession::with(map, 1 << 20, 1 << 20);
    let replies = ask(&mut session, b"get a b c\r\nget c\r\nget a x\r\n");
    let replies = String::from_utf8(replies).unwrap();
    let (error, rest) = replies.split_once("\r\n").unwrap();
    assert!(error.starts_with("SERVER_ERROR ") && error.contains("checksum"), "{error}");
    assert_eq!(rest, "VALUE c 0 1\r\n3\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
}

/// A list that lacks what cannot be read ends with an error.
#[test]
fn a_list_of_items_says_what_it_lacks() {
    const PAGE: usize = 4096;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let map = Evermap::open(&path, Options::new()).unwrap().default_map();
    (0..3000).for_each(|key| map.put(format!("key-{key}").as_bytes(), b"value").unwrap());
    map.into_db().close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = 0;
    for page in (0..whole.len() / PAGE).step_by(4) {
        let mut bytes = whole.clone();
        bytes[page * PAGE..][..PAGE].fill(0);
        std::fs::write(&path, bytes).unwrap();
        let Ok(db) = Evermap::open(&path, Options::new()) else { continue };
        let map = db.default_map();
        let unread = map.iter().filter_map(Result::err);
        let fails = unread.filter(|error| !matches!(error, evermap::Error::Incomplete { .. }));
        let fails = fails.count() > 0;
        let mut session = TestSession::with(map, 1 << 20, 1 << 30);
        for (list, end) in [("metadump", "END\r\n"), ("mgdump", "EN\r\n")] {
            let list = ask(&mut session, format!("lru_crawler {list} all\r\n").as_bytes());
            let list = String::from_utf8(list).unwrap();
            let last = list.lines().last().unwrap();
            assert_eq!((list.ends_with(end), last.starts_with("SERVER_ERROR")), (!fails, fails));
        }
        damaged += u32::from(fails);
    }
    assert!(damaged > 0);
}

/// A client that stops reading a list of all items keeps nothing in the store.
#[test]
fn a_list_of_items_holds_nothing_while_the_client_does_not_read() {
    const KEYS: usize = 20_000;
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    for key in 0..KEYS {
        map.put(format!("key-{key}").as_bytes(), b"value").unwrap();
    }
    let mut session = TestSession::with(map.clone(), 1 << 20, 1000);
    let (mut list, mut out) = (Vec::new(), Vec::new());
    session.receive(b"lru_crawler metadump all\r\nmn\r\n", &mut out);
    for pauses in 0.. {
        assert!(out.len() < 1 << 20, "{}", out.len());
        list.append(&mut out);
        // These are refused while the thread holds a guard.
        if pauses < 3 {
            map.db().purge().unwrap();
            assert!(map.db().check(false).unwrap().is_sound());
        }
        if pauses == 1 {
            // What is removed is not shown any more.
            (0..KEYS).for_each(|key| drop(map.delete(format!("key-{key}").as_bytes())));
        }
        if !session.resume(&mut out) {
            break;
        }
    }
    list.append(&mut out);
    let list = String::from_utf8(list).unwrap();
    assert!(list.ends_with("END\r\nMN\r\n"), "{}", &list[list.len() - 100..]);
    let shown = list.lines().filter(|line| line.starts_with("key=key-")).count();
    assert!(shown > 100 && shown < KEYS / 2, "{shown}");
}

/// Every item is shown by a complete list, with what is known of it.
#[test]
fn a_list_of_items_is_complete() {
    const KEYS: usize = 10_000;
    let clock = Clock::manual(crate::common::at(NOW));
    let options = Options::new().capacity(4 << 30).clock(clock);
    let map = Evermap::in_memory(options).unwrap().default_map();
    let mut session = TestSession::with(map, 1 << 20, 1000);
    for key in 0..KEYS {
        let request = format!("ms key-{key} 1 q T{key} E{}\r\nx\r\n", key + 1_000_000);
        assert_eq!(ask(&mut session, request.as_bytes()), b"");
    }
    let list = String::from_utf8(ask(&mut session, b"lru_crawler metadump hash\r\n")).unwrap();
    let lines: std::collections::HashSet<_> = list.lines().collect();
    for key in 0..KEYS {
        let expiry = if key == 0 { -1 } else { i64::from(NOW) + key as i64 };
        let cas = key + 1_000_000;
        let start = format!("key=key-{key} exp={expiry} la={NOW} cas={cas} fetch=no cls=1 ");
        assert!(lines.iter().any(|line| line.starts_with(&start)), "{start}");
        if key > 100 {
            break;
        }
    }
    // With the first line and the last.
    assert_eq!(lines.len(), KEYS + 2);
    let items = String::from_utf8(ask(&mut session, b"stats items\r\n")).unwrap();
    // A sample is scaled to the number of all items.
    assert!(items.contains("STAT items:1:number 10000\r\n"), "{items}");
    let cost = String::from_utf8(ask(&mut session, b"stats cost\r\n")).unwrap();
    for line in ["evermap_item_header_bytes 32.0", "evermap_index dash-eh"] {
        assert!(cost.contains(&format!("STAT {line}\r\n")), "{line} in {cost}");
    }
    assert!(cost.contains("STAT evermap_index_bytes:p-clht ") && cost.ends_with("END\r\n"));
}

/// The limit is that of the store.
#[test]
fn the_memory_limit_of_the_store_can_be_changed() {
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    let mut session = TestSession::with(map, 1 << 20, 1 << 20);
    assert_eq!(session.cache.memory_limit(), 0);
    assert_eq!(ask(&mut session, b"cache_memlimit 8\r\n"), b"OK\r\n");
    assert_eq!(session.cache.memory_limit(), 8 << 20);
    let value = vec![b'v'; 1 << 19];
    let mut stored = 0;
    for key in 0..20 {
        let line = format!("set {key} 0 0 {}\r\n", value.len());
        let reply = ask(&mut session, &[line.as_bytes(), &value, b"\r\n"].concat());
        stored += usize::from(reply == b"STORED\r\n");
    }
    assert!((12..16).contains(&stored), "{stored}");
}

/// Each client changes one number and one list. No change may be lost.
#[test]
fn changes_of_one_item_by_many_clients_are_atomic() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 500;
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    for (key, value) in [("number", "0"), ("list", "")] {
        map.put(key.as_bytes(), value.as_bytes()).unwrap();
    }
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let map = &map;
            scope.spawn(move || {
                let mut session = TestSession::with(map.clone(), 1 << 20, 1 << 20);
                for _ in 0..ROUNDS {
                    let reply = ask(&mut session, b"incr number 1\r\n");
                    assert!(reply[0].is_ascii_digit(), "{}", reply.escape_ascii());
                    let append = format!("append list 0 0 1\r\n{client}\r\n");
                    assert_eq!(ask(&mut session, append.as_bytes()), b"STORED\r\n");
                }
            });
        }
    });
    let number = map.get(b"number").unwrap().unwrap();
    assert_eq!(number, (CLIENTS * ROUNDS).to_string().as_bytes());
    let list = map.get(b"list").unwrap().unwrap();
    for client in 0..CLIENTS {
        let digit = b'0' + client as u8;
        assert_eq!(list.iter().filter(|&&byte| byte == digit).count(), ROUNDS);
    }
}
