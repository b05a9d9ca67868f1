//! The server as a process: started, stopped, killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Said, evermap, feed, json, on, run};

struct Server {
    child: Child,
    /// Kept open, so that the server can write what it likes.
    _out: BufReader<ChildStdout>,
    ready: String,
    address: SocketAddr,
}

impl Server {
    fn start(path: &Path, listen: &str, more: &[&str]) -> Self {
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
            panic!("{ready:?}, {:?}", Said::new(child.wait_with_output().unwrap()))
        };
        let address = address.parse().unwrap();
        Server { child, _out: out, ready, address }
    }

    fn connect(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.address).unwrap()))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn said(self) -> Said {
        Said::new(self.child.wait_with_output().unwrap())
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, request: &str) {
        self.try_send(request).unwrap();
    }

    fn try_send(&mut self, request: &str) -> io::Result<()> {
        self.0.get_mut().write_all(request.as_bytes())
    }

    /// The next line; nothing if the connection is gone.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(1..) => line.strip_suffix("\r\n").map(str::to_owned),
            _ => None,
        }
    }

    #[track_caller]
    fn ask(&mut self, request: &str, reply: &str) {
        self.send(request);
        let mut read = vec![0; reply.len()];
        self.0.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8_lossy(&read), reply);
    }
}

/// The value that a key has in the round in which it was written, of changing size.
fn value(key: usize, round: usize) -> String {
    format!("value of {key} in {round} ").repeat(1 + (key * 7 + round * 13) % 40)
}

/// Everything that was answered is there after every kill, whatever was going on.
#[test]
fn what_was_acknowledged_survives_kills() {
    const KEYS: usize = 3000;
    const ROUNDS: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let mut address = "127.0.0.1:0".to_owned();
    // The round in which each key was acknowledged last, and in which it was sent last.
    let (mut acknowledged, mut sent) = (vec![None; KEYS], vec![None; KEYS]);
    for round in 0..ROUNDS {
        let server = Server::start(&store, &address, &[]);
        // The same port again: the one before may hardly be gone.
        address = server.address.to_string();
        if round > 0 {
            assert!(server.ready.contains("opened after an unclean stop"), "{}", server.ready);
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
            // What was sent but not acknowledged may have been done; from here on it is known.
            if found != allowed[0] {
                acknowledged[key] = sent[key];
            }
            sent[key] = acknowledged[key];
        }
        // Somebody kills the server while requests are under way; when, depends on the round.
        let order: Vec<usize> = (0..KEYS).map(|i| (i * 1009 + round * 331) % KEYS).collect();
        for (done, batch) in order.chunks(50).enumerate() {
            for &key in batch {
                let value = value(key, round);
                sent[key] = Some(round);
                let set = format!("set key-{key} 0 0 {}\r\n{value}\r\n", value.len());
                // The kill may end the connection before the batch is written; replies before it still count.
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
        let output = server.child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
    let report = json(on("check", &store, &["--deep", "--json"]));
    assert_eq!(report["sound"], true, "{report}");
}

#[test]
fn signals_stop_it_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    for (round, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let server = Server::start(&store, "127.0.0.1:0", &[]);
        let expected = ["made in", "1 record, opened after an orderly stop in"][round];
        assert!(server.ready.contains(expected), "{}", server.ready);
        let mut idle = server.connect();
        idle.ask("get a\r\n", ["END\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"][round]);
        server.connect().ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        server.signal(signal);
        assert_eq!(server.said(), Said { code: 0, out: Vec::new(), err: String::new() });
        assert_eq!(idle.line(), None);
    }
    let stat = json(on("stat", &store, &["--json"]));
    let figures =
        ["records", "clean_open", "counts_exact", "generation"].map(|name| stat[name].to_string());
    assert_eq!(figures, ["1", "true", "true", "3"]);
}

/// A client that does not read its replies holds up the stop for two seconds, unless somebody insists.
#[test]
fn a_second_signal_stops_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &[]);
    let value = "x".repeat(1_000_000);
    let (mut lazy, mut idle) = (server.connect(), server.connect());
    lazy.ask(&format!("set a 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    lazy.send(&"get a\r\n".repeat(100));
    lazy.0.read_exact(&mut [0; 1]).unwrap();
    server.signal(Signal::TERM);
    assert_eq!(idle.line(), None, "the server is stopping");
    server.signal(Signal::TERM);
    assert_eq!(server.said().code, 128 + 15);
}

#[test]
fn others_have_to_wait_for_a_running_server() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    let in_use = format!("map: in use by process {}", server.child.id());
    on("get", &store, &["a"]).failed(&in_use);
    on("check", &store, &[]).failed(&in_use);
    feed("load", &store, &[], b"a\tb\n").failed(&in_use);
    run(["serve", "--listen", "127.0.0.1:0", "--path", store.to_str().unwrap()]).failed(&in_use);

    let address = server.address.to_string();
    let other = dir.path().join("other");
    run(["serve", "--listen", &address, "--path", other.to_str().unwrap()])
        .failed(&format!("cannot listen on {address}: Address already in use"));
    server.connect().ask("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    server.signal(Signal::TERM);
    server.said().well();
    assert_eq!(on("get", &store, &["a"]).well(), b"x");
}

#[test]
fn limits_are_kept_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ["--memory", "1M", "--max-item-size", "512K", "--max-connections", "2"];
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &limits);
    let mut client = server.connect();
    let set = |key: usize, len: usize| format!("set {key} 0 0 {len}\r\n{}\r\n", "x".repeat(len));
    let stored = (0..100).take_while(|&key| {
        client.send(&set(key, 50_000));
        let reply = client.line().unwrap();
        assert!(["STORED", "SERVER_ERROR out of memory storing object"].contains(&&*reply));
        reply == "STORED"
    });
    let stored = stored.count();
    assert!((15..=20).contains(&stored), "{stored}");
    client.ask("get 0\r\n", &format!("VALUE 0 0 50000\r\n{}\r\nEND\r\n", "x".repeat(50_000)));
    client.ask("delete 0\r\n", "DELETED\r\n");
    client.ask(&set(200, 40_000), "STORED\r\n");
    client.ask(&set(1, 600_000), "SERVER_ERROR object too large for cache\r\n");
    let _second = server.connect();
    let mut third = server.connect();
    assert_eq!(third.line().as_deref(), Some("ERROR Too many open connections"));
    client.send("stats\r\n");
    let stats: Vec<String> =
        std::iter::from_fn(|| client.line().filter(|line| line != "END")).collect();
    assert!(stats.contains(&"STAT limit_maxbytes 1048576".to_owned()), "{stats:?}");
    assert!(stats.contains(&"STAT threads 2".to_owned()), "{stats:?}");
    server.signal(Signal::TERM);
    server.said().well();
}

#[test]
fn an_ordered_server_tells_of_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("map"), "127.0.0.1:0", &["--ordered"]);
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
    server.said().well();
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let path = path.to_str().unwrap();
    run(["serve", "--durability", "volatile", "--path", path]).failed("leave out --path");
    run(["serve", "--threads", "0", "--listen", "127.0.0.1:0", "--path", path])
        .failed("threads = 0");
    run(["serve", "--max-item-size", "1G", "--path", path]).failed("--max-item-size: at most");
    for wrong in [["--listen", "nowhere"], ["--memory", "0"], ["--durability", "eternal"]] {
        let said = run(["serve", wrong[0], wrong[1], "--path", path]);
        assert_eq!(said.code, 2);
        assert!(said.err.contains(&format!("invalid value '{}'", wrong[1])), "{}", said.err);
    }
}

#[test]
fn without_a_file_nothing_stays() {
    let mut child = evermap(["serve", "--durability", "volatile", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("an empty store in memory, gone at exit"), "{ready}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    Said::new(child.wait_with_output().unwrap()).well();
}

/// Another program cuts the file off. Nothing can be saved then, but the reason can be told.
#[test]
fn a_file_that_vanishes_under_the_server_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = Server::start(&store, "127.0.0.1:0", &[]);
    let mut client = server.connect();
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    File::options().write(true).open(&store).unwrap().set_len(0).unwrap();
    client.send("get a\r\n");
    let said = server.said();
    assert_eq!(said.code, 128 + 7, "{}", said.err);
    let told = format!("evermap: {}: cannot be read or written at offset 0x", store.display());
    assert!(said.err.starts_with(&told), "{}", said.err);
}
