//! Items with a prefix that are counted, limited and flushed apart from the others.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use evermap::{Evermap, MapOptions, Options};
use evermap_server::protocol::Restricted;
use evermap_server::{Config, Namespace, Namespaces, Server, WhenFull};

struct Client {
    server: Server,
    stream: BufReader<TcpStream>,
}

fn serve(db: &Evermap, namespaces: &[(&str, u64)], refused: Vec<Restricted>) -> Client {
    serve_with(db, namespaces, WhenFull::Refuse, refused)
}

fn serve_with(
    db: &Evermap,
    namespaces: &[(&str, u64)],
    when_full: WhenFull,
    refused: Vec<Restricted>,
) -> Client {
    let space = |&(prefix, limit): &(&str, u64)| Namespace { prefix: prefix.into(), limit };
    let namespaces = namespaces.iter().map(space).collect();
    let cache = Namespaces::open(db, namespaces, when_full).unwrap();
    let listen = ([127, 0, 0, 1], 0).into();
    let config = Config { listen, threads: 2, refused, ..Config::default() };
    let server = Server::start(cache, config).unwrap();
    let stream = BufReader::new(TcpStream::connect(server.local_addr()).unwrap());
    Client { server, stream }
}

impl Client {
    /// Sends lines, and returns the lines of the reply, up to that of a command that follows.
    fn ask(&mut self, request: &str) -> String {
        let request = format!("{}\r\nmn\r\n", request.replace('|', "\r\n"));
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            match line.trim_end() {
                "MN" => return lines.join("|"),
                line => lines.push(line.to_owned()),
            }
        }
    }

    fn check(&mut self, request: &str, reply: &str) {
        assert_eq!(self.ask(request), reply, "{request}");
    }

    fn stats(&mut self, which: &str) -> BTreeMap<String, String> {
        let all = self.ask(which);
        let all = all.split('|').filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.server.stop();
        self.server.join();
    }
}

#[test]
fn a_namespace_is_counted_and_flushed_apart() {
    let db = Evermap::in_memory(Options::new()).unwrap();
    let mut client = serve(&db, &[("user:", 1 << 20), ("user:a:", 1 << 20)], Vec::new());
    client.check("set user:1 0 0 1|x|set other 0 0 1|y", "STORED|STORED");
    client.check("set user:a:1 7 0 1|z|set use 0 0 1|u", "STORED|STORED");
    client.check(
        "get other user:1 absent user:a:1 user:9 use",
        "VALUE other 0 1|y|VALUE user:1 0 1|x|VALUE user:a:1 7 1|z|VALUE use 0 1|u|END",
    );
    client.check("incr user:1 1", "CLIENT_ERROR cannot increment or decrement non-numeric value");
    client.check("append user:1 0 0 1|y|mg user:1 v|ma user:n N0 J5 v", "STORED|VA 2|xy|VA 1|5");
    client.check("touch user:a:1 100|gat 0 user:a:1", "TOUCHED|VALUE user:a:1 7 1|z|END");
    let stats = client.stats("stats namespaces");
    for (name, value) in [
        ("evermap_namespaces", "2"),
        ("evermap_namespaces_items:user:", "2"),
        ("evermap_namespaces_items:user:a:", "1"),
        ("evermap_namespaces_limit:user:", "1048576"),
    ] {
        assert_eq!(stats[name], value, "{name}");
    }
    assert_ne!(stats["evermap_namespaces_bytes:user:"], "0");
    let general = client.stats("stats");
    assert_eq!((&general["curr_items"][..], &general["evermap_namespaces"][..]), ("5", "2"));
    // All of them are listed.
    let listed = client.ask("lru_crawler metadump all");
    for key in ["user%3A1", "user%3An", "user%3Aa%3A1", "other", "use"] {
        assert!(listed.contains(&format!("key={key} ")), "{listed}");
    }
    assert!(listed.ends_with("END"));

    client.check("flush_namespace user:", "OK");
    client.check("get user:1 user:a:1 other", "VALUE user:a:1 7 1|z|VALUE other 0 1|y|END");
    client.check("flush_namespace us|flush_namespace other", "NOT_FOUND|NOT_FOUND");
    client.check("flush_namespace user:a: noreply|get user:a:1", "END");
    client.check("flush_namespace", "CLIENT_ERROR bad command line format");
    client.check("flush_namespace a b", "CLIENT_ERROR bad command line format");
    client.check("set user:1 0 0 1|x|flush_all|get user:1 other", "STORED|OK|END");
}

#[test]
fn a_limit_concerns_its_namespace_only() {
    let db = Evermap::in_memory(Options::new()).unwrap();
    let mut client = serve(&db, &[("little:", 20_000)], Vec::new());
    let value = "v".repeat(1000);
    let stored = |client: &mut Client, prefix: &str| {
        let replies =
            (0..100).map(|number| client.ask(&format!("set {prefix}{number} 0 0 1000|{value}")));
        replies.filter(|reply| reply == "STORED").count()
    };
    let fit = stored(&mut client, "little:");
    assert!((10..20).contains(&fit), "{fit}");
    let refused = client.ask(&format!("set little:99 0 0 1000|{value}"));
    assert_eq!(refused, "SERVER_ERROR out of memory storing object");
    assert_eq!(stored(&mut client, "large:"), 100);
    client.check("flush_namespace little:", "OK");
    assert!(stored(&mut client, "little:") > 0);
}

/// With eviction, a full namespace takes new items, and its old ones go, from one server to the
/// next.
#[test]
fn a_full_namespace_evicts_its_own_items_only() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("map");
    let options = Options::new().memory_limit(32 << 20).evict(true);
    let value = "v".repeat(1000);
    let (namespaces, mut stored) = ([("little:", 100_000), ("other:", 100_000)], 0);
    for round in 0..3 {
        let db = Evermap::open(&path, options.clone()).unwrap();
        let mut client = serve_with(&db, &namespaces, WhenFull::Evict, Vec::new());
        let set = |client: &mut Client, key: &str| {
            client.check(&format!("set {key} 0 0 1000|{value}"), "STORED");
        };
        if round == 0 {
            (0..80).for_each(|number| set(&mut client, &format!("other:{number}")));
            (0..80).for_each(|number| set(&mut client, &format!("rest{number}")));
        }
        for _ in 0..1000 {
            set(&mut client, &format!("little:{stored}"));
            stored += 1;
        }
        let stats = client.stats("stats namespaces");
        let figure = |name: &str| stats[&format!("evermap_namespaces_{name}:")[..]].parse::<u64>();
        let (items, evictions) = (figure("items:little").unwrap(), figure("evictions:little"));
        assert!((70..100).contains(&items), "{items}");
        // 1000 were added to what was there.
        assert!(evictions.unwrap() > 900 && figure("bytes:little").unwrap() <= 100_000);
        assert_eq!(figure("evictions:other").unwrap(), 0);
        assert_eq!(
            client.stats("stats")["evictions"],
            stats["evermap_namespaces_evictions:little:"]
        );
        let there = |client: &mut Client, key: String| client.ask(&format!("mg {key}")) == "HD";
        let last = (stored - 20..stored).filter(|it| there(&mut client, format!("little:{it}")));
        assert!(last.count() >= 18);
        for number in 0..80 {
            assert!(there(&mut client, format!("other:{number}")));
            assert!(there(&mut client, format!("rest{number}")));
        }
        drop(client);
        db.close().unwrap();
    }
}

#[test]
fn flushing_a_namespace_can_be_refused() {
    let db = Evermap::in_memory(Options::new()).unwrap();
    let mut client = serve(&db, &[("user:", 1 << 20)], vec![Restricted::FlushAll]);
    client.check("set user:1 0 0 1|x", "STORED");
    client.check("flush_namespace user:", "CLIENT_ERROR flush_namespace not allowed");
    client.check("get user:1", "VALUE user:1 0 1|x|END");
}

/// Without namespaces, nothing is made for them.
#[test]
fn a_server_without_namespaces_has_none() {
    let db = Evermap::in_memory(Options::new()).unwrap();
    let mut client = serve(&db, &[], Vec::new());
    client.check("set user:1 0 0 1|x|flush_namespace user:", "STORED|NOT_FOUND");
    client.check("stats namespaces", "STAT evermap_namespaces 0|END");
    assert!(!client.stats("stats").contains_key("evermap_namespaces"));
    assert_eq!(db.maps().unwrap(), Vec::<String>::new());
}

/// Items keep their place from one server to the next. What would be out of reach is removed when
/// the namespaces change, so that it cannot come back.
#[test]
fn nothing_out_of_date_comes_back() {
    let db = Evermap::in_memory(Options::new()).unwrap();
    let rounds: [(&[(&str, u64)], &str); 6] = [
        (&[], "END"),
        (&[("user:", 1 << 20)], "END"),
        (&[("user:", 1 << 21)], "VALUE user:a 0 1|2|END"),
        (&[("user:", 1 << 20), ("user:a", 1 << 20)], "END"),
        (&[("u", 1 << 20)], "END"),
        (&[], "END"),
    ];
    for (number, (namespaces, found)) in rounds.into_iter().enumerate() {
        let mut client = serve(&db, namespaces, Vec::new());
        client.check("get user:a", found);
        client.check("get keep", if number == 0 { "END" } else { "VALUE keep 0 1|k|END" });
        let value = (number + 1).min(9);
        client.check(&format!("set user:a 0 0 1|{value}|set keep 0 0 1|k"), "STORED|STORED");
    }
    assert!(!db.maps().unwrap().iter().any(|name| name.starts_with("namespace/")));
}

/// A server that was killed in the middle of the change is followed by one that completes it.
#[test]
fn an_interrupted_change_is_made_again() {
    let db = Evermap::in_memory(Options::new()).unwrap();
    let wanted: &[(&str, u64)] = &[("user:", 1 << 20)];
    drop(serve(&db, wanted, Vec::new()));
    // As if it had been killed before it removed this.
    db.default_map().put("user:1", "old").unwrap();
    db.map("namespaces", MapOptions::new()).unwrap().put("prefixes", "  ").unwrap();
    drop(serve(&db, wanted, Vec::new()));
    assert!(!db.default_map().contains("user:1").unwrap());
}
