//! What a server keeps of its predecessor: items, times of expiry, CAS ids and counters.

use std::collections::HashSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;

use crate::common::{CommandOutput, json, run, run_on};
use crate::packed;
use crate::serve::{Client, Server, wait_for};

/// Starts a server on a free port.
fn start(store: &Path, more: &[&str]) -> Server {
    Server::start(store, "127.0.0.1:0", more)
}

fn stop(server: Server) -> CommandOutput {
    server.signal(Signal::TERM);
    let output = server.output();
    assert_eq!(output.code, 0, "{output:?}");
    output
}

fn kill(server: Server) {
    server.signal(Signal::KILL);
    server.output();
}

/// Returns statistics that must exist.
fn stats<const N: usize>(client: &mut Client, names: [&str; N]) -> [String; N] {
    names.map(|name| client.stat(name).unwrap_or_else(|| panic!("no statistic {name}")))
}

/// Waits until the server has saved its counters: it does so between two changes of its age.
fn wait_until_saved(client: &mut Client) {
    for _ in 0..2 {
        let age = client.stat("evermap_age").unwrap();
        client.wait_for_stat("evermap_age", |now| now != age);
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Makes the last sign of life of a store older.
fn age(store: &Path, seconds: u64) {
    let record = run_on("get", store, &["state", "--map", "server"]).success();
    let record = String::from_utf8(record).unwrap();
    let alive = record.lines().find_map(|line| line.strip_prefix("alive ")).unwrap();
    let older = alive.parse::<u64>().unwrap() - seconds;
    let record = record.replace(&format!("alive {alive}\n"), &format!("alive {older}\n"));
    run_on("put", store, &["state", &record, "--map", "server"]).success();
}

#[test]
fn counters_go_on_after_kills_and_stops_until_they_are_reset() {
    const NAMES: [&str; 4] = ["cmd_set", "get_hits", "get_misses", "total_connections"];
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = start(&store, &[]);
    let mut client = server.connect();
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("get a b\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    wait_until_saved(&mut client);
    kill(server);

    let server = start(&store, &[]);
    let mut client = server.connect();
    client.ask("get a b\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(stats(&mut client, NAMES), ["1", "2", "2", "2"]);
    assert_eq!(stop(server).stderr, "");

    let server = start(&store, &[]);
    let mut client = server.connect();
    assert_eq!(stats(&mut client, NAMES), ["1", "2", "2", "3"]);
    client.ask("stats reset\r\n", "RESET\r\n");
    client.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(stats(&mut client, NAMES), ["0", "1", "0", "0"]);
    stop(server);

    let server = start(&store, &[]);
    let mut client = server.connect();
    assert_eq!(stats(&mut client, NAMES), ["0", "1", "0", "1"]);
    stop(server);
}

/// The record may be damaged, or its map may hold something of another program.
#[test]
fn counters_begin_at_0_if_their_record_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    run_on("put", &store, &["a", "x"]).success();
    for (record, reason) in [(None, "no server has left any"), (Some("nonsense"), "\"nonsense\"")] {
        if let Some(record) = record {
            run_on("put", &store, &["state", record, "--map", "server"]).success();
        }
        let server = start(&store, &[]);
        let mut client = server.connect();
        client.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
        assert_eq!(
            stats(&mut client, ["get_hits", "evermap_away_seconds"]),
            ["1", "unknown"],
            "{record:?}"
        );
        let stderr = stop(server).stderr;
        let line = "the counters in `stats` begin at 0: ";
        assert!(stderr.contains(line) && stderr.contains(reason), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let server = start(&store, &[]);
    assert_eq!(stats(&mut server.connect(), ["get_hits"]), ["1"]);
    assert_eq!(stop(server).stderr, "");
}

#[test]
fn rejoin_decides_what_becomes_of_the_items() {
    const STATS: [&str; 3] = ["evermap_rejoin", "evermap_flushed_at_start", "evermap_away_seconds"];
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let set = |server: &Server| server.connect().ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let server = start(&store, &["--rejoin", "flush"]);
    set(&server);
    assert_eq!(stats(&mut server.connect(), STATS), ["flush", "0", "0"]);
    assert_eq!(stop(server).stderr, "", "a new store has nothing to flush");
    for (policy, away, flushed, line) in [
        (None, 5_000, false, None),
        (Some("keep"), 5_000, false, None),
        (Some("flush-after=10000"), 5_000, false, Some("all items are kept, because of --rejoin")),
        (Some("flush-after=1000"), 5_000, true, Some("all items are flushed, because of")),
        (Some("flush-after=1000"), 0, false, Some("all items are kept, because of --rejoin")),
        (Some("flush"), 0, true, Some("all items are flushed, because of --rejoin flush\n")),
    ] {
        age(&store, away);
        let arguments: Vec<&str> = policy.into_iter().flat_map(|it| ["--rejoin", it]).collect();
        let server = start(&store, &arguments);
        let mut client = server.connect();
        let found = if flushed { "END\r\n" } else { "VALUE a 0 1\r\nx\r\nEND\r\n" };
        client.ask("get a\r\n", found);
        let [rejoin, flushed_at_start, seconds] = stats(&mut client, STATS);
        assert_eq!(rejoin, policy.unwrap_or("keep"));
        assert_eq!(flushed_at_start, if flushed { "1" } else { "0" });
        assert!(seconds.parse::<u64>().unwrap() >= away, "{seconds}");
        set(&server);
        let stderr = stop(server).stderr;
        assert_eq!(stderr.lines().count(), usize::from(line.is_some()), "{policy:?}: {stderr}");
        assert!(stderr.contains(line.unwrap_or_default()), "{policy:?}: {stderr}");
    }
    for wrong in ["", "flush-after", "flush-after=1h"] {
        let output = run(["serve", "--rejoin", wrong, "--path", store.to_str().unwrap()]);
        assert!(output.stderr.contains("for example flush-after=60"), "{}", output.stderr);
    }
}

/// A copy of a file that was open stands for a file that was open when the machine was restarted.
#[test]
fn a_server_starts_empty_if_the_contents_cannot_be_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (store, copy) = (dir.path().join("map"), dir.path().join("copy"));
    let server = start(&store, &[]);
    server.connect().ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    kill(server);

    std::fs::copy(&store, &copy).unwrap();
    let path = copy.to_str().unwrap();
    run(["serve", "--listen", "127.0.0.1:0", "--path", path, "--on-suspect", "refuse"])
        .failure("contents are suspect");
    let server = start(&copy, &["--on-suspect", "salvage"]);
    let mut client = server.connect();
    client.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(stats(&mut client, ["evermap_opened"]), ["salvaged"]);
    assert_eq!(stop(server).stderr, "");

    for damage in [false, true] {
        std::fs::copy(&store, &copy).unwrap();
        if damage {
            let file = std::fs::File::options().write(true).open(&copy).unwrap();
            file.set_len(std::fs::metadata(&copy).unwrap().len() / 2).unwrap();
        }
        let server = start(&copy, &[]);
        assert!(server.ready.contains("created in"), "{}", server.ready);
        let mut client = server.connect();
        client.ask("get a\r\n", "END\r\n");
        client.ask("set b 0 0 1\r\nx\r\n", "STORED\r\n");
        let names = ["evermap_opened", "evermap_generation", "evermap_recovered_records"];
        assert_eq!(stats(&mut client, names), ["created", "1", "0"]);
        let stderr = stop(server).stderr;
        let begin = format!("evermap: {path}: starting empty, because the old contents cannot be");
        assert!(stderr.starts_with(&begin), "{stderr}");
        assert!(stderr.ends_with("use --on-suspect salvage\n"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(run_on("get", &copy, &["b"]).success(), b"x");
    }

    std::fs::write(&copy, "a letter, not a store").unwrap();
    run(["serve", "--listen", "127.0.0.1:0", "--path", path]).failure("not an Evermap store");
    assert_eq!(std::fs::read(&copy).unwrap(), b"a letter, not a store");
}

#[test]
fn the_statistics_say_how_the_store_was_opened() {
    const STATS: [&str; 3] = ["evermap_opened", "evermap_recovered_records", "evermap_generation"];
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = start(&store, &[]);
    let mut client = server.connect();
    assert_eq!(stats(&mut client, STATS), ["created", "0", "1"]);
    for key in 0..100 {
        client.ask(&format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    kill(server);
    let server = start(&store, &[]);
    let mut client = server.connect();
    client.ask("set new 0 0 1\r\nx\r\n", "STORED\r\n");
    client.wait_for_stat("evermap_counts_exact", |exact| exact == "1");
    wait_until_saved(&mut client);
    assert_eq!(stats(&mut client, STATS), ["recovered", "100", "2"]);
    assert!(client.stat("evermap_open_ms").unwrap().parse::<f64>().unwrap() > 0.0);
    let age: u64 = client.stat("evermap_age").unwrap().parse().unwrap();
    stop(server);
    let server = start(&store, &[]);
    let mut client = server.connect();
    assert_eq!(stats(&mut client, STATS), ["clean", "101", "3"]);
    assert!(client.stat("evermap_age").unwrap().parse::<u64>().unwrap() >= age);
    stop(server);
}

#[test]
fn times_of_expiry_go_on_while_no_server_is_running() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let server = start(&store, &[]);
    let mut client = server.connect();
    client.ask("set short 0 1 1\r\nx\r\n", "STORED\r\n");
    client.ask("set touched 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("touch touched 1\r\n", "TOUCHED\r\n");
    client.ask("set long 0 1000 1\r\nx\r\n", "STORED\r\n");
    let expired = unix_seconds() + 2;
    kill(server);
    wait_for("the end of a second", || unix_seconds() >= expired);
    let server = start(&store, &[]);
    let mut client = server.connect();
    client.ask("get short touched long\r\n", "VALUE long 0 1\r\nx\r\nEND\r\n");
    client.ask("add short 0 0 1\r\ny\r\n", "STORED\r\n");
    stop(server);
}

/// The ids that a killed server has given to clients must not be given to other versions later.
#[test]
fn cas_ids_are_never_repeated_across_kills() {
    const KILLS: usize = 6;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let mut ids = HashSet::new();
    for round in 0..KILLS {
        let server = start(&store, &[]);
        let mut client = server.connect();
        for key in 0..20 * (round + 1) {
            client.ask(&format!("set {} 0 0 1\r\nx\r\n", key % 7), "STORED\r\n");
            client.send(&format!("gets {}\r\n", key % 7));
            let line = client.line().unwrap();
            assert_eq!(
                (client.line().as_deref(), client.line().as_deref()),
                (Some("x"), Some("END"))
            );
            let id: u64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
            assert!(ids.insert(id), "round {round}: {id} was given twice");
        }
        if round % 2 == 0 {
            kill(server);
        } else {
            stop(server);
        }
    }
}

/// The file is of a version that knew neither eviction nor the record of the server. The server is
/// stopped and killed in between.
#[test]
fn a_server_goes_on_with_a_file_of_an_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let file = include_bytes!("../../../evermap/tests/fixtures/format-8.words");
    std::fs::write(&store, packed::unpacked(file)).unwrap();
    for (round, arguments) in
        [&[][..], &[], &["--memory", "64M"], &["--memory", "64M"]].into_iter().enumerate()
    {
        let server = start(&store, arguments);
        let mut client = server.connect();
        for number in 0..100_u8 {
            let key = BASE64_STANDARD.encode(format!("key {number}"));
            let value = char::from(number).to_string().repeat(usize::from(number) * 3);
            let reply = match number % 7 {
                0 => "EN\r\n".to_owned(),
                _ => format!("VA {} f{number}\r\n{value}\r\n", value.len()),
            };
            client.ask(&format!("mg {key} v f b\r\n"), &reply);
        }
        client.ask("get batch\r\n", "VALUE batch 0 5\r\nwhole\r\nEND\r\n");
        let found = if round == 0 { "END\r\n" } else { "VALUE new 0 1\r\nx\r\nEND\r\n" };
        client.ask("get new\r\n", found);
        client.ask("set new 0 0 1\r\nx\r\n", "STORED\r\n");
        if round % 2 == 0 {
            kill(server)
        } else {
            drop(stop(server))
        };
    }
    assert_eq!(run_on("get", &store, &["2", "--map", "users"]).success(), b"bob");
    let report = json(run_on("check", &store, &["--deep", "--json"]));
    assert_eq!(report["sound"], true, "{report}");
}
