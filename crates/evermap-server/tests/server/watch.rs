//! Log streams, and the statistics that need to see keys and connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use evermap_server::protocol::Restricted;
use evermap_server::watch::Hub;
use evermap_server::{Config, ModelCache, Server};

use crate::common::packet::{Packet, opcode};

/// Starts a server over a model cache, on a free port.
fn serve(adjust: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 2, ..Config::default() };
    adjust(&mut config);
    Server::start(Arc::new(ModelCache::new(0)), config).unwrap()
}

/// A connection that is read by lines.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    /// Connects a watcher and waits until it receives events.
    fn watch(server: &Server, streams: &str) -> Self {
        let mut watcher = Client::connect(server);
        watcher.ask(&format!("watch {streams}\r\n"), "OK\r\n");
        watcher
    }

    fn send(&mut self, request: &str) {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    #[track_caller]
    fn ask(&mut self, request: &str, reply: &str) {
        self.send(request);
        let mut read = vec![0; reply.len()];
        self.0.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8_lossy(&read), reply);
    }

    /// Returns the next line without its end, or `None` at the end of the stream.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.strip_suffix('\n')?;
        Some(line.strip_suffix('\r').unwrap_or(line).to_owned())
    }

    /// Returns the lines of a reply before `END`.
    fn list(&mut self, request: &str) -> Vec<String> {
        self.send(request);
        let lines = std::iter::from_fn(|| self.line());
        lines.take_while(|line| line != "END").collect()
    }

    /// Returns a statistic.
    fn stat(&mut self, request: &str, name: &str) -> Option<String> {
        let prefix = format!("STAT {name} ");
        let lines = self.list(request);
        lines.iter().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
    }

    fn number(&mut self, name: &str) -> u64 {
        self.stat("stats\r\n", name).unwrap().parse().unwrap()
    }

    /// Returns the next log line, without its time and number, and with `#` for the numbers of
    /// connections and ports.
    #[track_caller]
    fn event(&mut self) -> String {
        let line = self.line().expect("the stream continues");
        let words: Vec<&str> = line.split(' ').collect();
        let time: f64 = words[0].strip_prefix("ts=").unwrap().parse().unwrap();
        assert!(time > 1e9, "{line}");
        assert!(words[1].strip_prefix("gid=").unwrap().parse::<u64>().unwrap() > 0, "{line}");
        let plain = words[2..].iter().map(|word| match word.split_once('=') {
            Some((name @ ("cfd" | "rport"), number)) => {
                assert!(number.parse::<u16>().unwrap() > 0, "{line}");
                format!("{name}=#")
            }
            _ => (*word).to_owned(),
        });
        plain.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn watchers_see_what_they_asked_for() {
    let server = serve(|_| {});
    let mut items = Client::watch(&server, "mutations fetchers deletions");
    let mut fetches = Client::watch(&server, "");
    let mut connections = Client::watch(&server, "connevents");
    // The watcher that came last sees nothing of its own connection.
    let mut client = Client::connect(&server);
    client.ask("set a 0 60 4\r\nabcd\r\n", "STORED\r\n");
    client.ask("get a b,\r\n", "VALUE a 0 4\r\nabcd\r\nEND\r\n");
    client.ask("gat 0 a c\r\n", "VALUE a 0 4\r\nabcd\r\nEND\r\n");
    client.ask("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    client.ask("cas d 0 0 1 7 noreply\r\nx\r\nincr n 1\r\n", "NOT_FOUND\r\n");
    client.ask(
        "append a 0 0 1\r\n9\r\nset n 0 0 1\r\n9\r\nincr n 1\r\n",
        "STORED\r\nSTORED\r\n10\r\n",
    );
    client.send("set a 0 0 9999999\r\n");
    let reply = "SERVER_ERROR object too large for cache\r\n";
    client.ask(&format!("{}\r\n", " ".repeat(9_999_999)), reply);
    client.ask("delete a\r\ndelete n\r\n", "NOT_FOUND\r\nDELETED\r\n");
    client.send("quit\r\n");
    assert_eq!(client.line(), None);
    let fetched = [
        "item_get key=a status=found clsid=1 cfd=# size=4",
        "item_get key=b%2C status=not_found clsid=0 cfd=# size=0",
        "item_get key=a status=found clsid=1 cfd=# size=4",
        "item_get key=c status=not_found clsid=0 cfd=# size=0",
    ];
    let mutated = [
        "item_store key=a status=not_stored cmd=add ttl=0 clsid=1 cfd=# size=1",
        "item_store key=d status=not_found cmd=cas ttl=0 clsid=1 cfd=# size=1",
        "item_store key=a status=stored cmd=append ttl=0 clsid=1 cfd=# size=5",
        "item_store key=n status=stored cmd=set ttl=0 clsid=1 cfd=# size=1",
        "item_store key=n status=stored cmd=incr ttl=0 clsid=1 cfd=# size=2",
        "item_store key=a status=too_large cmd=set ttl=0 clsid=39 cfd=# size=9999999",
        "deleted key=n cmd=delete clsid=1 size=2",
    ];
    let first = items.event();
    assert!(first.starts_with("type=item_store key=a status=stored cmd=set ttl="), "{first}");
    for line in fetched.iter().chain(&mutated) {
        assert_eq!(items.event(), format!("type={line}"));
    }
    for line in fetched {
        assert_eq!(fetches.event(), format!("type={line}"));
    }
    let peer = "rip=127.0.0.1 rport=# transport=tcp";
    assert_eq!(connections.event(), format!("type=conn_new {peer} cfd=#"));
    assert_eq!(connections.event(), format!("type=conn_close {peer} reason=normal cfd=#"));
    let mut client = Client::connect(&server);
    client.send("GET / HTTP/1.1\r\n");
    assert_eq!(client.line(), None);
    assert_eq!(connections.event(), format!("type=conn_new {peer} cfd=#"));
    assert_eq!(connections.event(), format!("type=conn_close {peer} reason=error cfd=#"));
    drop(items);
    assert_eq!(connections.event(), format!("type=conn_close {peer} reason=normal cfd=#"));
    // The watchers stay connections.
    let mut client = Client::connect(&server);
    while client.number("curr_connections") != 3 {
        std::thread::yield_now();
    }
}

#[test]
fn commands_of_the_meta_protocol_are_reported() {
    let server = serve(|_| {});
    let mut watcher = Client::watch(&server, "mutations fetchers deletions");
    let mut client = Client::connect(&server);
    client.ask("ms a 2\r\nab\r\nms a 1 ME\r\nx\r\nms d 1 C7\r\nx\r\n", "HD\r\nNS\r\nNF\r\n");
    client.ask("mg a v\r\nmg b\r\nmg a T0\r\nmg b T0\r\n", "VA 2\r\nab\r\nEN\r\nHD\r\nEN\r\n");
    client.ask("mg c N0\r\nmg c\r\n", "HD W\r\nHD Z\r\n");
    client.ask("ms a 1 MA\r\nc\r\nms a 1 MP\r\nz\r\nms a 1 MR\r\n9\r\n", &"HD\r\n".repeat(3));
    client.ask("ma a\r\nma a MD D2\r\nma b\r\n", "HD\r\nHD\r\nNF\r\n");
    client.ask("md a I\r\nmg a\r\nmd a\r\nmd a\r\n", "HD\r\nHD X W\r\nHD\r\nNF\r\n");
    let lines = [
        "item_store key=a status=stored cmd=set ttl=0 clsid=1 cfd=# size=2",
        "item_store key=a status=not_stored cmd=add ttl=0 clsid=1 cfd=# size=1",
        "item_store key=d status=not_found cmd=cas ttl=0 clsid=1 cfd=# size=1",
        "item_get key=a status=found clsid=1 cfd=# size=2",
        "item_get key=b status=not_found clsid=0 cfd=# size=0",
        "item_get key=a status=found clsid=1 cfd=# size=2",
        "item_get key=b status=not_found clsid=0 cfd=# size=0",
        "item_get key=c status=not_found clsid=0 cfd=# size=0",
        "item_get key=c status=found clsid=1 cfd=# size=0",
        "item_store key=a status=stored cmd=append ttl=0 clsid=1 cfd=# size=3",
        "item_store key=a status=stored cmd=prepend ttl=0 clsid=1 cfd=# size=4",
        "item_store key=a status=stored cmd=replace ttl=0 clsid=1 cfd=# size=1",
        "item_store key=a status=stored cmd=incr ttl=0 clsid=1 cfd=# size=2",
        "item_store key=a status=stored cmd=decr ttl=0 clsid=1 cfd=# size=1",
        // A smaller number is followed by a space.
        "item_get key=a status=found clsid=1 cfd=# size=2",
        "deleted key=a cmd=md clsid=1 size=2",
    ];
    for line in lines {
        assert_eq!(watcher.event(), format!("type={line}"));
    }
}

/// Returns the replies of a server to packets, after which it closes the connection.
fn ask_in_packets(server: &Server, packets: &[Packet]) -> Vec<Packet> {
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    let quit = [Packet::new(opcode::QUIT)];
    for packet in packets.iter().chain(&quit) {
        stream.write_all(&packet.bytes()).unwrap();
    }
    let mut replies = Vec::new();
    stream.read_to_end(&mut replies).unwrap();
    Packet::replies(&replies)
}

#[test]
fn commands_of_the_binary_protocol_are_reported() {
    let server = serve(|_| {});
    let mut watcher = Client::watch(&server, "mutations fetchers deletions");
    let mut connections = Client::watch(&server, "connevents");
    let request = |opcode, key: &str| Packet::new(opcode).key(key);
    let count = [&1u64.to_be_bytes()[..], &0u64.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    let packets = [
        request(opcode::SET, "a").extras([0; 8]).value("9"),
        request(opcode::ADD, "a").extras([0; 8]).value("xy"),
        request(opcode::REPLACEQ, "b").extras([0; 8]).value("xy"),
        request(opcode::SET, "b").cas(7).extras([0; 8]).value("x"),
        request(opcode::GET, "a"),
        request(opcode::GETKQ, "b"),
        request(opcode::GAT, "a").extras([0; 4]),
        request(opcode::GAT, "b").extras([0; 4]),
        request(opcode::INCREMENT, "a").extras(&count),
        request(opcode::DECREMENTQ, "a").extras(&count),
        request(opcode::APPEND, "a").value("xyz"),
        request(opcode::PREPENDQ, "a").value("xyz"),
        request(opcode::DELETE, "a"),
        request(opcode::DELETEQ, "a"),
    ];
    ask_in_packets(&server, &packets);
    let lines = [
        "item_store key=a status=stored cmd=set ttl=0 clsid=1 cfd=# size=1",
        "item_store key=a status=not_stored cmd=add ttl=0 clsid=1 cfd=# size=2",
        "item_store key=b status=not_stored cmd=replace ttl=0 clsid=1 cfd=# size=2",
        "item_store key=b status=not_found cmd=cas ttl=0 clsid=1 cfd=# size=1",
        "item_get key=a status=found clsid=1 cfd=# size=1",
        "item_get key=b status=not_found clsid=0 cfd=# size=0",
        "item_get key=a status=found clsid=1 cfd=# size=1",
        "item_get key=b status=not_found clsid=0 cfd=# size=0",
        "item_store key=a status=stored cmd=incr ttl=0 clsid=1 cfd=# size=2",
        "item_store key=a status=stored cmd=decr ttl=0 clsid=1 cfd=# size=1",
        "item_store key=a status=stored cmd=append ttl=0 clsid=1 cfd=# size=5",
        "item_store key=a status=stored cmd=prepend ttl=0 clsid=1 cfd=# size=8",
        "deleted key=a cmd=delete clsid=1 size=8",
    ];
    for line in lines {
        assert_eq!(watcher.event(), format!("type={line}"));
    }
    let peer = "rip=127.0.0.1 rport=# transport=tcp";
    assert_eq!(connections.event(), format!("type=conn_new {peer} cfd=#"));
    assert_eq!(connections.event(), format!("type=conn_close {peer} reason=normal cfd=#"));
}

#[test]
fn statistics_are_the_same_in_both_protocols() {
    let server = serve(|config| config.threads = 1);
    let stat = |key: &str| -> Vec<(String, String)> {
        let replies = ask_in_packets(&server, &[Packet::new(opcode::STAT).key(key)]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        // The last two are the end of the list and the reply to the quit.
        let stats = replies[..replies.len() - 2].iter();
        assert!(replies.iter().all(|reply| reply.status == 0), "{key} {replies:?}");
        stats.map(|reply| (text(&reply.key), text(&reply.value))).collect()
    };
    for (key, name) in [("", "curr_items"), ("", "moves_to_cold"), ("settings", "maxbytes")] {
        assert!(stat(key).contains(&(name.into(), "0".into())), "{name}");
    }
    assert_eq!(stat("detail on"), []);
    let hot = [("hotkeys_sampling", "64"), ("hotkeys_samples", "0")];
    assert_eq!(stat("hotkeys"), hot.map(|(name, value)| (name.into(), value.into())));
    ask_in_packets(&server, &[Packet::new(opcode::GET).key("foo:1")]);
    let dump = "PREFIX foo get 1 hit 0 set 0 del 0\r\nEND\r\n";
    assert_eq!(stat("detail dump"), [("detailed".into(), dump.into())]);
    assert_eq!(stat("detail off"), []);
    ask_in_packets(&server, &[Packet::new(opcode::GET).key("foo:1")]);
    assert_eq!(stat("detail dump"), [("detailed".into(), dump.into())]);
    assert!(stat("latency").contains(&("get:count".into(), "2".into())));
    let states = stat("conns");
    let states: Vec<_> = states.iter().filter(|(name, _)| name.ends_with(":state")).collect();
    assert_eq!(states.len(), 2, "{states:?}");
    assert!(states.iter().any(|(_, state)| state == "conn_listening"), "{states:?}");
}

#[test]
fn requests_around_a_watch_are_answered() {
    let server = serve(|config| config.watchers_max = 2);
    let mut client = Client::connect(&server);
    client.ask("watch fetchers nonsense\r\nget a\r\n", "ERROR\r\nEND\r\n");
    client.ask("get a\r\nget b\r\nwatch evictions\r\n", "END\r\nEND\r\nOK\r\n");
    let mut other = Client::watch(&server, "evictions");
    let mut third = Client::connect(&server);
    let refused = "WATCHER_TOO_MANY log watcher limit reached\r\n";
    third.ask("get a\r\nwatch\r\nget b\r\n", &format!("END\r\n{refused}END\r\n"));
    third.ask("watch\r\n", refused);
    assert_eq!(third.number("log_watchers"), 2);
    other.send("quit\r\n");
    assert_eq!(other.line(), None);
    while third.number("log_watchers") > 1 {
        std::thread::yield_now();
    }
    third.ask("watch\r\n", "OK\r\n");

    let server = serve(|config| config.refused = vec![Restricted::Watch]);
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    Client::connect(&server).ask("watch\r\nget a\r\n", &format!("{refused}END\r\n"));
}

#[test]
fn evictions_are_reported_by_any_thread() {
    const THREADS: usize = 4;
    const EACH: u64 = 50;
    let server = serve(|_| {});
    let evict =
        |hub: &Hub, i: u64| hub.evicted(b"n,foo", 11_000, Some(i as u32), 7, i.is_multiple_of(2));
    evict(server.hub(), 0);
    let mut watcher = Client::watch(&server, "evictions");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (1..=EACH).for_each(|i| evict(server.hub(), i)));
        }
    });
    server.hub().evicted(b"last", 1, None, 0, false);
    let events: Vec<String> = std::iter::from_fn(|| Some(watcher.event()))
        .take_while(|event| !event.contains("key=last"))
        .collect();
    let dropped = server.hub().stats().dropped;
    assert_eq!(events.len() as u64 + dropped, THREADS as u64 * EACH);
    for event in events {
        let ttl: u32 =
            event.split_once("ttl=").unwrap().1.split(' ').next().unwrap().parse().unwrap();
        assert!(ttl > 0, "the first was reported before anyone watched");
        let fetch = if ttl.is_multiple_of(2) { "yes" } else { "no" };
        let expected = format!("type=eviction key=n%2Cfoo fetch={fetch} ttl={ttl} la=7 clsid=");
        assert!(event.starts_with(&expected), "{event}");
    }
}

/// Sends lookups until `done` returns `true`, and returns their number.
fn look_up_until(client: &mut Client, key: &str, mut done: impl FnMut(&mut Client) -> bool) -> u64 {
    const BATCH: usize = 500;
    let (requests, replies) = (format!("get {key}\r\n").repeat(BATCH), "END\r\n".repeat(BATCH));
    let mut lookups = 0;
    while !done(client) {
        client.ask(&requests, &replies);
        lookups += BATCH as u64;
    }
    lookups
}

/// Returns the number of events and the sum of the skipped lines, up to a last event with the key
/// `last`.
fn count_lines(watcher: &mut Client) -> (u64, u64) {
    let (mut events, mut skipped) = (0, 0);
    loop {
        let line = watcher.line().unwrap();
        match line.strip_prefix("skipped=") {
            Some(number) => skipped += number.parse::<u64>().unwrap(),
            None if line.contains(" key=last ") => return (events, skipped),
            None => {
                assert!(line.contains(" type=item_get key="), "{line}");
                events += 1;
            }
        }
    }
}

#[test]
fn a_slow_watcher_loses_lines_and_disturbs_nobody() {
    const BUFFER: usize = 8 << 10;
    let server = serve(|config| config.watcher_buffer = BUFFER);
    let mut slow = Client::watch(&server, "fetchers");
    let mut client = Client::connect(&server);
    let key = "k".repeat(240);
    let lookups = look_up_until(&mut client, &key, |_| {
        let stats = server.hub().stats();
        assert!(stats.buffered <= BUFFER, "{stats:?}");
        stats.skipped > 10_000
    });
    // Every record becomes a line that is sent or skipped.
    while {
        let stats = server.hub().stats();
        stats.sent + stats.skipped < stats.written
    } {
        std::thread::yield_now();
    }
    // A watcher that reads receives every line.
    let mut fast = Client::watch(&server, "fetchers");
    client.ask("get other\r\n", "END\r\n");
    assert_eq!(fast.event(), "type=item_get key=other status=not_found clsid=0 cfd=# size=0");

    // The slow one learns how many lines it has lost, as soon as there is space for a line.
    let reading = std::thread::spawn(move || count_lines(&mut slow));
    while !reading.is_finished() {
        client.ask("get last\r\n", "END\r\n");
    }
    let (events, skipped) = reading.join().unwrap();
    let stats = server.hub().stats();
    assert!(skipped > 10_000 && events > 0, "{events} {skipped}");
    assert!(events + skipped + stats.dropped >= lookups, "{events} {skipped} {stats:?} {lookups}");
    // Some of the last lines may have been skipped too.
    assert!(events <= lookups + 1);
}

#[test]
fn a_watcher_that_disconnects_costs_nothing_any_more() {
    let server = serve(|_| {});
    let mut client = Client::connect(&server);
    client.ask("get a\r\n", "END\r\n");
    assert_eq!(client.number("log_worker_written"), 0);
    let mut watcher = Client::watch(&server, "fetchers");
    client.ask("get a\r\n", "END\r\n");
    assert_eq!(watcher.event(), "type=item_get key=a status=not_found clsid=0 cfd=# size=0");
    // It disappears while it has not read everything.
    look_up_until(&mut client, "a", |_| server.hub().stats().skipped > 0);
    drop(watcher);
    look_up_until(&mut client, "a", |client| client.number("log_watchers") == 0);
    loop {
        let before = server.hub().stats();
        client.ask("get a\r\n", "END\r\n");
        if server.hub().stats().written == before.written {
            break;
        }
    }
    while client.number("evermap_watcher_bytes") > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_hundred_watchers_see_the_same() {
    const WATCHERS: usize = 100;
    let server = serve(|_| {});
    let mut watchers: Vec<_> = (0..WATCHERS).map(|_| Client::watch(&server, "mutations")).collect();
    let mut client = Client::connect(&server);
    assert_eq!(client.number("log_watchers"), WATCHERS as u64);
    for i in 0..50 {
        client.ask(&format!("set k{i} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    for watcher in &mut watchers {
        for i in 0..50 {
            assert!(watcher.event().starts_with(&format!("type=item_store key=k{i} ")));
        }
    }
    assert_eq!(client.number("log_watcher_sent"), 50 * WATCHERS as u64);
    server.stop();
    server.join();
    for watcher in &mut watchers {
        assert_eq!(watcher.line(), None);
    }
}

#[test]
fn a_watcher_that_sends_endless_input_is_closed() {
    let server = serve(|_| {});
    let mut watcher = Client::watch(&server, "fetchers");
    while watcher.0.get_mut().write_all(&[b'x'; 64 << 10]).is_ok() {}
    let mut client = Client::connect(&server);
    while client.number("log_watchers") > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn accesses_are_counted_by_prefix() {
    let server = serve(|_| {});
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    let usage = "CLIENT_ERROR usage: stats detail on|off|dump\r\n";
    client.ask("stats detail\r\nstats detail x\r\n", &usage.repeat(2));
    client.ask("set foo:1 0 0 1\r\nx\r\nstats detail dump\r\n", "STORED\r\nEND\r\n");
    assert_eq!(client.stat("stats settings\r\n", "detail_enabled").unwrap(), "no");
    client.ask("stats detail on\r\n", "OK\r\n");
    assert_eq!(client.stat("stats settings\r\n", "detail_enabled").unwrap(), "yes");
    client.ask("set foo:1 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("get foo:1 foo:2 foo:1:3 plain\r\n", "VALUE foo:1 0 1\r\nx\r\nEND\r\n");
    // The connections have different workers.
    other.ask("delete foo:2\r\ndelete bar:\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n");
    client.ask("get :x\r\nget plain\r\n", "END\r\nEND\r\n");
    let dump = "PREFIX  get 1 hit 0 set 0 del 0\r\n\
                PREFIX bar get 0 hit 0 set 0 del 1\r\n\
                PREFIX foo get 3 hit 1 set 1 del 1\r\nEND\r\n";
    client.ask("stats detail dump\r\n", dump);
    client.ask("stats detail off\r\nget foo:1\r\n", "OK\r\nVALUE foo:1 0 1\r\nx\r\nEND\r\n");
    client.ask("stats detail dump\r\n", dump);
    client.ask("stats reset\r\nstats detail dump\r\n", "RESET\r\nEND\r\n");

    let server = serve(|config| (config.detail, config.prefix_delimiter) = (true, b'/'));
    let mut client = Client::connect(&server);
    client.ask("get a/b a:c\r\n", "END\r\n");
    client.ask("stats detail dump\r\n", "PREFIX a get 1 hit 0 set 0 del 0\r\nEND\r\n");
}

#[test]
fn connections_are_listed() {
    let server = serve(|_| {});
    let (mut idle, mut half) = (Client::connect(&server), Client::connect(&server));
    idle.ask("get a\r\n", "END\r\n");
    half.ask("get a\r\nset a 0 0 10\r\n12345", "END\r\n");
    let mut client = Client::connect(&server);
    let own = client.0.get_ref().local_addr().unwrap();
    let states = |client: &mut Client| -> Vec<String> {
        let lines = client.list("stats conns\r\n");
        let states = lines.iter().filter_map(|line| Some(line.split_once(":state ")?.1.to_owned()));
        let mut states: Vec<_> = states.collect();
        states.sort();
        states
    };
    let expected = ["conn_listening", "conn_parse_cmd", "conn_read", "conn_waiting"];
    while states(&mut client) != expected {
        std::thread::yield_now();
    }
    let lines = client.list("stats conns\r\n");
    // Three of the listener, and four of each client.
    assert_eq!(lines.len(), 15);
    let number = |address| {
        let end = format!(":addr tcp:{address}");
        let line = lines.iter().find_map(|line| line.strip_suffix(&end)).unwrap();
        line.strip_prefix("STAT ").unwrap()
    };
    let (fd, listener) = (number(own), number(server.local_addr()));
    assert!(lines.contains(&format!("STAT {fd}:secs_since_last_cmd 0")), "{lines:?}");
    let address = server.local_addr();
    assert!(lines.contains(&format!("STAT {fd}:listen_addr tcp:{address}")), "{lines:?}");
    assert!(lines.contains(&format!("STAT {listener}:state conn_listening")), "{lines:?}");
    // Log lines name connections by the same numbers.
    let mut watcher = Client::watch(&server, "fetchers");
    client.ask("get a\r\n", "END\r\n");
    assert!(watcher.line().unwrap().contains(&format!(" cfd={fd} ")));
    drop((idle, half));
    while states(&mut client) != ["conn_listening", "conn_parse_cmd", "conn_watch"] {
        std::thread::yield_now();
    }
}

#[test]
fn latencies_are_counted_by_command() {
    let server = serve(|_| {});
    let mut client = Client::connect(&server);
    client.ask("stats latency\r\n", "END\r\n");
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("get b c d\r\nget b\r\n", "END\r\nEND\r\n");
    client.ask("touch b 0\r\ngat 0 b\r\n", "NOT_FOUND\r\nEND\r\n");
    client.ask("incr b 1\r\ndelete b\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n");
    // The present turn is counted at its end.
    client.ask("version\r\n", &format!("VERSION {}\r\n", Config::default().version));
    let counts = [("get", "4"), ("set", "1"), ("touch", "2"), ("arithmetic", "1"), ("delete", "1")];
    for (command, count) in counts {
        let stat = |client: &mut Client, stat| {
            client.stat("stats latency\r\n", &format!("{command}:{stat}")).unwrap()
        };
        assert_eq!(stat(&mut client, "count"), count, "{command}");
        let quantiles = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
        let times = quantiles.map(|name| stat(&mut client, name).parse::<f64>().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
        let buckets = stat(&mut client, "histogram");
        let buckets = buckets.split(',').map(|bucket| bucket.split_once('=').unwrap());
        let sum: u64 = buckets.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
        assert_eq!(sum.to_string(), count);
    }
    client.ask("stats reset\r\nstats latency\r\n", "RESET\r\nEND\r\n");
}

#[test]
fn hot_keys_are_sampled_once_a_client_asks() {
    let server = serve(|_| {});
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    look_up_until(&mut client, "before", |client| client.number("cmd_get") >= 2_000);
    let hot = |client: &mut Client| client.list("stats hotkeys\r\n");
    assert_eq!(hot(&mut client), ["STAT hotkeys_sampling 64", "STAT hotkeys_samples 0"]);
    // The connections have different workers.
    for client in [&mut client, &mut other] {
        for (key, batches) in [("warm", 6), ("h,t", 60)] {
            let mut rounds = 0..batches;
            look_up_until(client, key, |_| rounds.next().is_none());
        }
    }
    let lines = hot(&mut client);
    assert!(lines[2].starts_with("STAT hotkey:h%2Ct "), "{lines:?}");
    assert!(lines[3].starts_with("STAT hotkey:warm "), "{lines:?}");
    assert_eq!(lines.len(), 4);
}
