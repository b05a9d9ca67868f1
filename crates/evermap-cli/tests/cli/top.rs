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

/// Returns the names of the metrics that the dashboard in `packaging` shows.
fn dashboard_metrics() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana.json");
    let dashboard: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut names: Vec<_> = targets
        .flat_map(|target| {
            let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
            let words = target["expr"].as_str().unwrap().split(move |c| !is_of_name(c));
            let is_name = |w: &&str| w.starts_with("memcached_") || w.starts_with("evermap_");
            words.filter(is_name).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    names.sort();
    names.dedup();
    assert!(names.len() > 20, "{names:?}");
    names
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
    let log = ["evermap_log_bytes", "evermap_log_commits", "evermap_log_full"];
    for name in dashboard_metrics() {
        let is_there = |line: &str| {
            let rest = line.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
        };
        // Of a server with a log, and of one that evicts.
        let is_special = log.contains(&name.as_str()) || name == "evermap_eviction_age";
        assert!(is_special || reply.lines().any(is_there), "{name} in {reply}");
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

#[test]
fn a_server_with_passwords_is_shown_to_those_who_have_one() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let users = write("users", "ann:secret\nbob:other\n");
    let (server, _directory) = start(&["--auth-file", &users]);
    let address = server.address.to_string();
    let top =
        |more: &[&str]| run([&["top", &address, "--once", "--interval", "0.1"], more].concat());
    top(&[]).failure("the server requires authentication; use --auth-file");
    let table = String::from_utf8(top(&["--auth-file", &users]).success()).unwrap();
    assert!(table.contains("items           0\n"), "{table}");
    let wrong = write("wrong", "ann:guess");
    top(&["--auth-file", &wrong]).failure("does not accept the user or the password");
    let empty = write("empty", "nonsense\n");
    top(&["--auth-file", &empty]).failure("empty: has no line user:password");
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    /// Writes a certificate for `cache.test` that is signed by itself, and its key. It may be
    /// marked as that of an authority.
    fn install(directory: &std::path::Path, name: &str, is_authority: bool) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["cache.test".into()]).unwrap();
        if is_authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let texts = [params.self_signed(&key).unwrap().pem(), key.serialize_pem()];
        ["cert", "key"].map(|kind| {
            let path = directory.join(format!("{name}-{kind}.pem"));
            std::fs::write(&path, &texts[usize::from(kind == "key")]).unwrap();
            path.to_str().unwrap().to_owned()
        })
    }

    #[test]
    fn encrypted_servers_are_shown_if_they_are_who_they_should_be() {
        for is_authority in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let [certificate, key] = install(dir.path(), "server", is_authority);
            let [other, _] = install(dir.path(), "other", is_authority);
            let (server, _directory) = start(&["--tls-cert", &certificate, "--tls-key", &key]);
            let address = server.address.to_string();
            let top = |more: &[&str]| {
                run([&["top", &address, "--once", "--interval", "0.1"], more].concat())
            };
            let trusted = ["--tls", "--tls-ca", &certificate, "--tls-name", "cache.test"];
            let table = String::from_utf8(top(&trusted).success()).unwrap();
            assert!(table.contains("items           0\n"), "{table}");
            top(&[]).failure("if it uses TLS, use --tls");
            top(&["--tls", "--tls-ca", &other, "--tls-name", "cache.test"]).failure("certificate");
            top(&["--tls", "--tls-ca", &key]).failure("there is no certificate in PEM format");
            top(&["--tls", "--tls-ca", "/nonexistent"]).failure("/nonexistent: ");
            let without = top(&["--tls-ca", &certificate]);
            assert!(without.code == 2 && without.stderr.contains("--tls"), "{without:?}");
        }
    }

    #[test]
    fn the_name_is_verified_and_a_certificate_presented() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let authority_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = write("ca.pem", &params.self_signed(&authority_key).unwrap().pem());
        let issuer = Issuer::new(params, authority_key);
        let issued = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["cache.test".into()]).unwrap();
        let certificate = write("cert.pem", &params.signed_by(&issued, &issuer).unwrap().pem());
        let key = write("key.pem", &issued.serialize_pem());
        let files = ["--tls-cert", &certificate, "--tls-key", &key];
        let (server, _directory) = start(&[&files[..], &["--tls-client-ca", &authority]].concat());
        let address = server.address.to_string();
        let top = |more: &[&str]| {
            let common = ["top", &address, "--once", "--interval", "0.1", "--tls"];
            run([&common, &["--tls-ca", &authority][..], more].concat())
        };
        let name = ["--tls-name", "cache.test"];
        top(&[&name[..], &files].concat()).success();
        let output = top(&name);
        assert!(output.code == 2, "without a certificate: {output:?}");
        top(&files).failure("not valid for name");
        top(&[&["--tls-name", "other.test"][..], &files].concat()).failure("not valid for name");
    }
}
