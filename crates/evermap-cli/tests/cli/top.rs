//! `evermap top`, and what it reads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;

use crate::common::run;
use crate::serve::Server;

fn start(more: &[&str]) -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("store"), "127.0.0.1:0", more);
    (server, directory)
}

#[test]
fn a_table_is_printed_without_a_terminal() {
    let (server, _directory) = start(&["--memory", "64M"]);
    server.connect().ask("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let address = server.address.to_string();
    for more in [&["--once"][..], &[]] {
        let output = run([&["top", &address, "--interval", "0.1"], more].concat());
        let table = String::from_utf8(output.success()).unwrap();
        assert!(table.starts_with(&format!("{address}, 1.6.45-evermap-")), "{table}");
        for line in
            ["command         per second    hits", "items           1\n", "file            "]
        {
            assert!(table.contains(line), "{line:?} in {table}");
        }
        assert!(table.contains(" of 64.0 MiB ("), "{table}");
    }
    server.signal(Signal::TERM);
    server.output().success();
}

#[test]
fn a_server_that_cannot_be_reached_is_reported() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    run(["top", &closed, "--once"]).failure(&format!("{closed}: Connection refused"));
    let wrong = run(["top", &closed, "--interval", "0"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("from 0.1 to 3600"), "{wrong:?}");
}

/// A server that knows only `stats`, and tries to control the terminal.
#[test]
fn a_memcached_without_latencies_is_shown_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut gets = 0;
        let mut line = String::new();
        while stream.read_line(&mut line).unwrap() > 0 {
            let reply = match line.as_str() {
                "stats\r\n" => {
                    gets += 1000;
                    format!("STAT version \x1b[2J1.6.18\r\nSTAT cmd_get {gets}\r\nEND\r\n")
                }
                _ => "ERROR\r\n".to_owned(),
            };
            stream.get_mut().write_all(reply.as_bytes()).unwrap();
            line.clear();
        }
    });
    let output = run(["top", &address, "--interval", "0.1"]);
    serving.join().unwrap();
    let table = String::from_utf8(output.success()).unwrap();
    assert!(table.starts_with(&format!("{address}, ?[2J1.6.18, up ")), "{table}");
    assert!(!table.contains("hot key") && !table.contains("meta_get"), "{table}");
    let get = table.lines().find(|line| line.starts_with("get ")).unwrap();
    let cells: Vec<&str> = get.split_whitespace().collect();
    assert!(cells[1].ends_with('k') && cells[2] == "0.0%" && cells[3] == "-", "{get}");
}

#[test]
fn metrics_are_served_on_an_optional_port() {
    let (server, _directory) = start(&["--metrics", "127.0.0.1:0"]);
    let mut client = server.connect();
    // The thread that looks after the file may begin after the first client is served.
    client.wait_for_stat("evermap_file_in_place", |in_place| in_place == "1");
    client.send("stats settings\r\n");
    let lines = std::iter::from_fn(|| client.line().filter(|line| line != "END"));
    let lines: Vec<String> = lines.collect();
    let address = lines.iter().find_map(|line| line.strip_prefix("STAT metrics ")).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    for line in [
        "memcached_up 1",
        "memcached_limit_bytes 0",
        "evermap_generation 1",
        "evermap_file_in_place 1",
        "memcached_current_items 0",
    ] {
        assert!(reply.lines().any(|found| found == line), "{line} in {reply}");
    }
    let info = reply.lines().find(|line| line.starts_with("evermap_info{")).unwrap();
    assert!(info.contains("durability=\"process\""), "{info}");
    server.signal(Signal::TERM);
    let output = server.output();
    assert!(!output.stderr.contains("metrics"), "{output:?}");

    let (server, _directory) = start(&["--metrics", "0.0.0.0:0"]);
    server.signal(Signal::TERM);
    let output = server.output();
    let warning = "the metrics at 0.0.0.0:0 can be read from other machines";
    assert!(output.stderr.contains(warning), "{output:?}");
}
