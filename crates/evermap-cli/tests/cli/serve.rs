//! The server as a process that is started, stopped and killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::common::{CommandOutput, evermap, json, run, run_on, run_with_input};

pub(crate) struct Server {
    pub(crate) child: Child,
    /// Kept open, so that the server can write to it.
    _out: BufReader<ChildStdout>,
    pub(crate) ready: String,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(path: &Path, listen: &str, more: &[&str]) -> Self {
        let mut child = evermap(["serve", "--listen", listen, "--threads", "2", "--path"])
            .arg(path)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        out.read_line(&mut ready).unwrap();
        let address = ready.strip_prefix("ready on ").and_then(|rest| rest.split_once(": "));
        let Some((address, _)) = address else {
            panic!("{ready:?}, {:?}", CommandOutput::new(child.wait_with_output().unwrap()))
        };
        let address = address.parse().unwrap();
        Server { child, _out: out, ready, address }
    }

    pub(crate) fn connect(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.address).unwrap()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Suspends the server and waits until all its threads are stopped. Until then they accept
    /// connections.
    fn pause(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Waits until the server has ended.
    pub(crate) fn output(mut self) -> CommandOutput {
        let mut stderr = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        CommandOutput::new(Output { status, stdout: Vec::new(), stderr })
    }
}

impl Drop for Server {
    /// A process does not outlive its test.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn send(&mut self, request: &str) {
        self.try_send(request).unwrap();
    }

    fn try_send(&mut self, request: &str) -> io::Result<()> {
        self.0.get_mut().write_all(request.as_bytes())
    }

    /// Returns the next line, or `None` if the connection is closed.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(1..) => line.strip_suffix("\r\n").map(str::to_owned),
            _ => None,
        }
    }

    /// Requests one statistic.
    pub(crate) fn stat(&mut self, name: &str) -> Option<String> {
        self.send("stats\r\n");
        let lines = std::iter::from_fn(|| self.line().filter(|line| line != "END"));
        let stats: Vec<_> = lines.collect();
        stats.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")).map(str::to_owned))
    }

    /// Requests one statistic that is a number.
    #[track_caller]
    fn number(&mut self, name: &str) -> u64 {
        self.stat(name).unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    /// Waits until a statistic has a value that `is_right` accepts.
    pub(crate) fn wait_for_stat(&mut self, name: &str, is_right: impl Fn(&str) -> bool) {
        wait_for(name, || self.stat(name).is_some_and(|value| is_right(&value)));
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, request: &str, reply: &str) {
        self.send(request);
        let mut read = vec![0; reply.len()];
        self.0.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8_lossy(&read), reply);
    }
}

/// Waits until a condition holds, long enough for a busy machine.
#[track_caller]
pub(crate) fn wait_for(what: &str, happened: impl FnMut() -> bool) {
    const TRIES: usize = 1200;
    let mut tries = std::iter::repeat_with(happened).take(TRIES);
    let found = tries.any(|happened| {
        if !happened {
            std::thread::sleep(Duration::from_millis(50));
        }
        happened
    });
    assert!(found, "timeout while waiting for {what}");
}

/// Returns the value that is stored under a key in a round. The sizes vary.
fn value(key: usize, round: usize) -> String {
    format!("value of {key} in {round} ").repeat(1 + (key * 7 + round * 13) % 40)
}

/// Every acknowledged item is available after every kill, whatever the server was doing.
#[test]
fn acknowledged_items_survive_kills() {
    const KEYS: usize = 3000;
    const ROUNDS: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let mut address = "127.0.0.1:0".to_owned();
    // The last round in which each key was acknowledged, and the last one in which it was sent.
    let (mut acknowledged, mut sent) = (vec![None; KEYS], vec![None; KEYS]);
    for round in 0..ROUNDS {
        let server = Server::start(&store, &address, &[]);
        // The same port again, which the previous server may have released just now.
        address = server.address.to_string();
        if round > 0 {
            assert!(
                server.ready.contains("recovered after an unclean shutdown"),
                "{}",
                server.ready
            );
        }
        let mut client = server.connect();
        for key in 0..KEYS {
            client.send(&format!("get key-{key}\r\n"));
            let found = match client.line().unwrap().as_str() {
                "END" => None,
                _ => {
                    let value = client.line().unwrap();
                    assert_eq!(client.line().unwrap(), "END");
                    Some(value)
                }
            };
            let allowed: Vec<_> = [acknowledged[key], sent[key]]
                .into_iter()
                .map(|round| round.map(|round| value(key, round)))
                .collect();
            assert!(allowed.contains(&found), "key {key}: {found:?}");
            // A request that was sent but not acknowledged may have been executed. Now it is known.
            if found != allowed[0] {
                acknowledged[key] = sent[key];
            }
            sent[key] = acknowledged[key];
        }
        // The server is killed while requests are in flight, at a time that depends on the round.
        let order: Vec<usize> = (0..KEYS).map(|i| (i * 1009 + round * 331) % KEYS).collect();
        for (done, batch) in order.chunks(50).enumerate() {
            for &key in batch {
                let value = value(key, round);
                sent[key] = Some(round);
                let set = format!("set key-{key} 0 0 {}\r\n{value}\r\n", value.len());
                // The kill may close the connection before the batch is written. Replies that
                // arrived before it still count.
                if client.try_send(&set).is_err() {
                    break;
                }
            }
            if done == 5 + 6 * round {
                server.signal(Signal::KILL);
            }
            let answered = batch.iter().take_while(|_| client.line().as_deref() == Some("STORED"));
            let answered = answered.count();
            batch[..answered].iter().for_each(|&key| acknowledged[key] = Some(round));
            if answered < batch.len() {
                break;
            }
        }
        assert_eq!(server.output().stderr, "");
    }
    let report = json(run_on("check", &store, &["--deep", "--json"]));
    assert_eq!(report["sound"], true, "{report}");
}

#[test]
fn the_first_signal_shuts_the_server_down_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    for (round, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let server = Server::start(&store, "127.0.0.1:0", &[]);
        let expected = ["created in", "1 record, opened after a clean shutdown in"][round];
        assert!(server.ready.contains(expected), "{}", server.ready);
        let mut idle = server.connect();
        idle.ask("get a\r\n", ["END\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"][round]);
        server.connect().ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        server.signal(signal);
        assert_eq!(
            server.output(),
            CommandOutput { code: 0, stdout: Vec::new(), stderr: String::new() }
        );
        assert_eq!(idle.line(), None);
    }
    let stat = json(run_on("stat", &store, &["--json"]));
    let figures =
        ["records", "clean_open", "counts_exact", "generation"].map(|name| stat[name].to_string());
    assert_eq!(figures, ["1", "true", "true", "3"]);
}

/// A client that does not read its replies delays the stop by two seconds, but not after a second
/// signal.
#[test]
fn a_second_signal_stops_the_server_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &[]);
    let value = "x".repeat(1_000_000);
    let (mut slow, mut idle) = (server.connect(), server.connect());
    slow.ask(&format!("set a 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    slow.send(&"get a\r\n".repeat(100));
    slow.0.read_exact(&mut [0; 1]).unwrap();
    server.signal(Signal::TERM);
    assert_eq!(idle.line(), None, "the server is stopping");
    server.signal(Signal::TERM);
    assert_eq!(server.output().code, 128 + 15);
}

#[test]
fn other_commands_cannot_change_the_store_of_a_running_server() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    let in_use = format!("map: in use by process {}", server.child.id());
    run_on("put", &store, &["a", "b"]).failure(&in_use);
    run_on("recover", &store, &[]).failure(&in_use);
    // Those that read get a copy.
    let read = run_on("get", &store, &["a"]);
    assert!(read.code == 1 && read.stderr.contains("reading a copy of the store"), "{read:?}");
    run_with_input("load", &store, &[], b"a\tb\n").failure(&in_use);
    run(["serve", "--listen", "127.0.0.1:0", "--path", store.to_str().unwrap()]).failure(&in_use);

    let address = server.address.to_string();
    let other = dir.path().join("other");
    run(["serve", "--listen", &address, "--path", other.to_str().unwrap()])
        .failure(&format!("cannot listen on {address}: Address already in use"));
    assert!(!other.exists(), "the port is bound before the store is created");
    server.connect().ask("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    server.signal(Signal::TERM);
    server.output().success();
    assert_eq!(run_on("get", &store, &["a"]).success(), b"x");
}

#[test]
fn limits_are_enforced_and_shown_in_stats() {
    let dir = tempfile::tempdir().unwrap();
    let limits =
        ["--memory", "4M", "--no-evict", "--max-item-size", "512K", "--max-connections", "2"];
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &limits);
    let mut client = server.connect();
    let set = |key: usize, len: usize| format!("set {key} 0 0 {len}\r\n{}\r\n", "x".repeat(len));
    let stored = (0..200).take_while(|&key| {
        client.send(&set(key, 50_000));
        let reply = client.line().unwrap();
        assert!(["STORED", "SERVER_ERROR out of memory storing object"].contains(&&*reply));
        reply == "STORED"
    });
    let stored = stored.count();
    assert!((40..=83).contains(&stored), "{stored}");
    client.ask("get 0\r\n", &format!("VALUE 0 0 50000\r\n{}\r\nEND\r\n", "x".repeat(50_000)));
    client.ask("delete 0\r\n", "DELETED\r\n");
    // The space is free once no reader can see the deleted item any more.
    wait_for("space", || {
        client.send(&set(200, 50_000));
        client.line().unwrap() == "STORED"
    });
    client.ask(&set(1, 600_000), "SERVER_ERROR object too large for cache\r\n");
    let _second = server.connect();
    let mut third = server.connect();
    assert_eq!(third.line().as_deref(), Some("ERROR Too many open connections"));
    client.send("stats\r\n");
    let stats: Vec<String> =
        std::iter::from_fn(|| client.line().filter(|line| line != "END")).collect();
    assert!(stats.contains(&"STAT limit_maxbytes 4194304".to_owned()), "{stats:?}");
    assert!(stats.contains(&"STAT threads 2".to_owned()), "{stats:?}");
    server.signal(Signal::TERM);
    server.output().success();
}

/// A full namespace takes new items, and the others lose none, before and after kills. Without
/// eviction it refuses them.
#[test]
fn a_full_namespace_evicts_its_own_items() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let value = "x".repeat(1_000);
    let set = |key: &str| format!("set {key} 0 0 1000\r\n{value}\r\n");
    let hit = |key: &str| format!("VALUE {key} 0 1000\r\n{value}\r\nEND\r\n");
    let namespaces = ["--namespace", "a:=200000", "--namespace", "b:=200000", "--memory", "16M"];
    for round in 0..4 {
        let mut server = Server::start(&path, "127.0.0.1:0", &namespaces);
        let mut client = server.connect();
        if round == 0 {
            for number in 0..150 {
                client.ask(&set(&format!("b:{number}")), "STORED\r\n");
                client.ask(&set(&format!("{number}")), "STORED\r\n");
            }
        }
        for number in 0..500 {
            client.ask(&set(&format!("a:{}", round * 500 + number)), "STORED\r\n");
        }
        let last = format!("a:{}", round * 500 + 499);
        client.ask(&format!("get {last}\r\n"), &hit(&last));
        for number in 0..150 {
            for key in [format!("b:{number}"), format!("{number}")] {
                client.ask(&format!("get {key}\r\n"), &hit(&key));
            }
        }
        client.send("stats namespaces\r\n");
        let stats: Vec<_> =
            std::iter::from_fn(|| client.line().filter(|line| line != "END")).collect();
        assert!(stats.contains(&"STAT evermap_namespaces_evictions:b: 0".to_owned()), "{stats:?}");
        let evictions = "STAT evermap_namespaces_evictions:a: ";
        let evictions = stats.iter().find_map(|line| line.strip_prefix(evictions)).unwrap();
        assert!(evictions.parse::<u64>().unwrap() > 300, "{stats:?}");
        server.child.kill().unwrap();
        server.child.wait().unwrap();
    }
    let refusing = [&namespaces[..], &["--no-evict"]].concat();
    let server = Server::start(&path, "127.0.0.1:0", &refusing);
    let mut client = server.connect();
    let refused = (0..10).filter(|number| {
        client.send(&set(&format!("a:new{number}")));
        client.line().unwrap() == "SERVER_ERROR out of memory storing object"
    });
    assert!(refused.count() >= 5);
    client.ask("get b:7\r\n", &hit("b:7"));
    client.ask(&set("more"), "STORED\r\n");
    server.signal(Signal::TERM);
    server.output().success();
}

/// Everything is stored, what was read stays, and a watcher sees what goes.
#[test]
fn items_are_evicted_beyond_the_memory_limit() {
    const LIMIT: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &["--memory", "8M"]);
    let (mut client, mut watcher) = (server.connect(), server.connect());
    watcher.ask("watch evictions\r\n", "OK\r\n");
    let value = "x".repeat(10_000);
    let hot = format!("VALUE hot 0 10000\r\n{value}\r\nEND\r\n");
    client.ask(&format!("set hot 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
    for key in 0..3_000 {
        client.ask(&format!("set {key} 0 600 10000\r\n{value}\r\n"), "STORED\r\n");
        if key % 50 == 0 {
            client.ask("get hot\r\n", &hot);
            assert!(client.number("evermap_memory_used") <= LIMIT);
        }
    }
    let evictions = client.number("evictions");
    assert!((2_100..3_000).contains(&evictions), "{evictions}");
    // Nothing that was read goes, and more may have gone meanwhile.
    assert!(client.number("evicted_unfetched") >= evictions);
    assert_eq!(client.number("limit_maxbytes"), LIMIT);
    let mut line = String::new();
    watcher.0.read_line(&mut line).unwrap();
    let line = line.trim_end();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words[2], words[4]), ("type=eviction", "fetch=no"), "{line}");
    let ttl: u32 = words[5].strip_prefix("ttl=").unwrap().parse().unwrap();
    assert!((1..=600).contains(&ttl), "{line}");
    assert_eq!(words.last(), Some(&"size=10000"), "{line}");

    // A smaller limit takes effect at once for what is stored, and soon for what is there.
    client
        .ask("cache_memlimit 1\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n");
    client.ask("cache_memlimit 16\r\n", "OK\r\n");
    for key in 0..1_000 {
        client.ask(&format!("set more{key} 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
    }
    assert!(client.number("curr_items") > 1_200);
    client.ask("cache_memlimit 8\r\n", "OK\r\n");
    assert_eq!(client.number("limit_maxbytes"), LIMIT);
    client.wait_for_stat("evermap_memory_used", |used| used.parse::<u64>().unwrap() <= LIMIT);

    // How items were read is shown, and looking at that is no access.
    client.ask(
        "set seen 0 0 1\r\nx\r\nmg seen h u\r\nmg seen h u\r\n",
        "STORED\r\nHD h0\r\nHD h0\r\n",
    );
    client.ask("mg seen h\r\nmg seen h\r\n", "HD h0\r\nHD h1\r\n");
    server.signal(Signal::KILL);
    let _ = server.output();
    // It outlives the process.
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &["--memory", "8M"]);
    let mut client = server.connect();
    client.ask("mg seen h u\r\n", "HD h1\r\n");
    server.signal(Signal::TERM);
    server.output().success();
}

#[test]
fn the_statistics_include_the_ordered_index() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &["--ordered", "volatile"]);
    let mut client = server.connect();
    for key in 0..100 {
        client.ask(&format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    client.ask("delete 7\r\n", "DELETED\r\n");
    client.send("stats\r\n");
    let stats: Vec<String> =
        std::iter::from_fn(|| client.line().filter(|line| line != "END")).collect();
    let number = |name: &str| -> u64 {
        let found = stats.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        found.unwrap_or_else(|| panic!("{name}: {stats:?}")).parse().unwrap()
    };
    let (keys, waiting) =
        (number("evermap_ordered_keys"), number("evermap_ordered_notices_waiting"));
    assert!(keys <= 100 && keys + waiting >= 99, "{stats:?}");
    assert!(number("evermap_ordered_bytes") > 0);
    server.signal(Signal::TERM);
    server.output().success();
}

/// Killed with its keys in order in the file, which then has them in every run, and for every
/// command.
#[test]
fn a_persistent_order_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = Server::start(&store, "127.0.0.1:0", &["--ordered", "persistent"]);
    let mut client = server.connect();
    for key in ["b", "a", "d", "c"] {
        client.ask(&format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    client.ask("delete b\r\n", "DELETED\r\n");
    server.signal(Signal::KILL);
    drop(server.output());
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    let mut client = server.connect();
    assert!(client.stat("evermap_persistent_order").unwrap().starts_with("ready"));
    server.signal(Signal::TERM);
    server.output().success();
    let shown = String::from_utf8(run_on("scan", &store, &[]).success()).unwrap();
    let key = |line: &str| line.split('\t').next().unwrap().to_owned();
    assert_eq!(shown.lines().map(key).collect::<Vec<_>>(), ["a", "c", "d"]);
}

#[test]
fn invalid_settings_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let path = path.to_str().unwrap();
    run(["serve", "--durability", "volatile", "--path", path]).failure("remove --path");
    run(["serve", "--max-item-size", "2M", "--upload-memory", "1M", "--path", path])
        .failure("--upload-memory must be at least --max-item-size");
    run(["serve", "--max-item-size", "2M", "--reply-memory", "7M", "--path", path])
        .failure("--reply-memory must be at least 1M and four times --max-item-size");
    for wrong in [
        ["--listen", "nowhere"],
        ["--memory", "0"],
        ["--durability", "eternal"],
        ["--threads", "0"],
        ["--threads", "1025"],
        ["--max-connections", "0"],
        ["--backlog", "0"],
        ["--max-item-size", "1G"],
        ["--max-item-size", "1000"],
        ["--max-key-size", "249"],
        ["--max-key-size", "65536"],
    ] {
        let output = run(["serve", wrong[0], wrong[1], "--path", path]);
        assert_eq!(output.code, 2);
        let message = format!("invalid value '{}' for '{} <", wrong[1], wrong[0]);
        assert!(output.stderr.contains(&message), "{}", output.stderr);
    }
}

#[test]
fn a_volatile_store_needs_no_file() {
    let mut child = evermap(["serve", "--durability", "volatile", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("new store in memory, lost at exit"), "{ready}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    CommandOutput::new(child.wait_with_output().unwrap()).success();
}

/// Another program truncates the file. The server cannot continue, but it reports the reason.
#[test]
fn a_file_that_is_truncated_while_it_is_served_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    let mut client = server.connect();
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    File::options().write(true).open(&store).unwrap().set_len(0).unwrap();
    client.send("get a\r\n");
    let output = server.output();
    assert_eq!(output.code, 128 + 7, "{}", output.stderr);
    let message = format!("evermap: {}: cannot be read or written at offset 0x", store.display());
    assert!(output.stderr.starts_with(&message), "{}", output.stderr);
}

/// SIGHUP is sent when the terminal closes, and makes memcached reload its settings.
#[test]
fn sighup_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &[]);
    let mut client = server.connect();
    for _ in 0..3 {
        server.signal(Signal::HUP);
        client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    }
    server.connect().ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    server.signal(Signal::TERM);
    server.output().success();
}

/// While the server is suspended, as many clients as `--backlog` says can connect. Further ones
/// cannot.
#[test]
fn the_backlog_limits_the_connections_that_wait() {
    const MANY: usize = 400;
    let connect = |server: &Server, timeout| TcpStream::connect_timeout(&server.address, timeout);
    for (more, all_wait) in [(&[][..], true), (&["--backlog", "5"], false)] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", more);
        server.pause();
        let mut waiting = Vec::new();
        for _ in 0..MANY {
            // The kernel accepts the connection for the server, immediately or never.
            let timeout = Duration::from_secs(if all_wait { 60 } else { 1 });
            match connect(&server, timeout) {
                Ok(client) => waiting.push(client),
                Err(_) => break,
            }
        }
        if all_wait {
            assert_eq!(waiting.len(), MANY);
        } else {
            // Kernels accept one or a few more than requested.
            assert!((5..MANY).contains(&waiting.len()), "{}", waiting.len());
        }
        server.signal(Signal::CONT);
        for stream in waiting {
            Client(BufReader::new(stream)).ask("get a\r\n", "END\r\n");
        }
        server.signal(Signal::TERM);
        server.output().success();
    }
}

/// The server continues, but it reports that the next start will not find the items.
#[test]
fn a_file_that_is_removed_or_replaced_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (dir.path().join("map"), dir.path().join("other"));
    let remove: fn(&Path, &Path) = |store, _| std::fs::remove_file(store).unwrap();
    let replace: fn(&Path, &Path) = |store, other| {
        std::fs::write(other, b"something else").unwrap();
        std::fs::rename(other, store).unwrap();
    };
    for (act, message) in
        [(remove, "the file was removed or renamed"), (replace, "the file was replaced")]
    {
        let _ = std::fs::remove_file(&store);
        let server = Server::start(&store, "127.0.0.1:0", &[]);
        let mut client = server.connect();
        client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        client.wait_for_stat("evermap_file_in_place", |value| value == "1");
        act(&store, &other);
        client.wait_for_stat("evermap_file_in_place", |value| value == "0");
        client.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
        server.signal(Signal::TERM);
        let output = server.output();
        assert_eq!(output.code, 0, "{}", output.stderr);
        assert!(
            output.stderr.starts_with(&format!("evermap: {}: {message}", store.display())),
            "{}",
            output.stderr
        );
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
}

/// A file that is renamed and moved back is in place again. It is reported again when it is renamed
/// again.
#[test]
fn a_file_that_is_moved_back_is_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let (store, aside) = (dir.path().join("map"), dir.path().join("aside"));
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    let mut client = server.connect();
    for _ in 0..2 {
        std::fs::rename(&store, &aside).unwrap();
        client.wait_for_stat("evermap_file_in_place", |value| value == "0");
        std::fs::rename(&aside, &store).unwrap();
        client.wait_for_stat("evermap_file_in_place", |value| value == "1");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.output().stderr.lines().count(), 2);
}

/// Many clients send half of a large value each, and most disconnect. The memory of these is
/// returned to the system.
#[test]
fn the_memory_of_unfinished_uploads_is_returned() {
    const CLIENTS: usize = 200;
    const HALF: usize = 500_000;
    const PIECE: usize = 50_000;
    const STAYING: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &[]);
    let anonymous = || -> usize {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    };
    let mut client = server.connect();
    // Allocators keep the memory of large blocks after they have freed some.
    let large = "v".repeat(2 * HALF);
    for _ in 0..3 {
        client.ask(&format!("set a 0 0 {}\r\n{large}\r\n", large.len()), "STORED\r\n");
    }
    let before = anonymous();
    let mut uploads: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    for (number, upload) in uploads.iter_mut().enumerate() {
        upload.send(&format!("set a{number} 0 0 {}\r\n", 2 * HALF));
    }
    for _ in 0..HALF / PIECE {
        uploads.iter_mut().for_each(|upload| upload.send(&large[..PIECE]));
    }
    let sent = CLIENTS * HALF;
    client.wait_for_stat("bytes_read", |read| read.parse::<usize>().unwrap() > sent);
    assert!(anonymous() > before + sent / 10 * 9);
    // The last ones stay, so the end of the allocator's memory is in use.
    uploads.drain(..CLIENTS - STAYING);
    wait_for("the return of the memory", || anonymous() < before + sent / 10);
    client.ask("get a1\r\n", "END\r\n");
    server.signal(Signal::TERM);
    server.output().success();
}

/// Unfinished uploads cannot use more memory than `--upload-memory`.
#[test]
fn unfinished_uploads_stay_within_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ["--upload-memory", "4M"];
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &limits);
    let half = "v".repeat(500_000);
    let mut uploads: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for (number, upload) in uploads.iter_mut().enumerate() {
        upload.send(&format!("set a{number} 0 0 1000000\r\n{half}"));
    }
    let mut client = server.connect();
    client.wait_for_stat("store_no_memory", |refused| refused.parse::<usize>().unwrap() >= 30);
    assert!(client.stat("evermap_upload_bytes").unwrap().parse::<usize>().unwrap() <= 4 << 20);
    // Each of them receives one reply and is still served.
    let mut stored = 0;
    for upload in &mut uploads {
        upload.send(&format!("{half}\r\nget b\r\n"));
        match upload.line().as_deref() {
            Some("STORED") => stored += 1,
            Some("SERVER_ERROR out of memory storing object") => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(upload.line().as_deref(), Some("END"));
    }
    assert!(stored <= 10, "{stored}");
    assert_eq!(client.stat("evermap_upload_bytes").as_deref(), Some("0"));
    server.signal(Signal::TERM);
    server.output().success();
}

/// The messages of the library name its settings; those of the command name its options.
#[test]
fn the_error_for_a_suspect_file_names_the_option_that_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, copy) = (dir.path().join("map"), dir.path().join("copy"));
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    server.connect().ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    server.signal(Signal::KILL);
    server.output();
    std::fs::copy(&store, &copy).unwrap();
    run_on("get", &copy, &["a"]).failure("with --on-suspect salvage");
    assert_eq!(run_on("get", &copy, &["a", "--on-suspect", "salvage"]).success(), b"x");
}
