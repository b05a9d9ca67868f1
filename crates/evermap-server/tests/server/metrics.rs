//! The metrics of Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use evermap_server::{Config, ModelCache, Server};

fn serve() -> Server {
    let listen = ([127, 0, 0, 1], 0).into();
    let config = Config { listen, metrics: Some(listen), threads: 2, ..Config::default() };
    Server::start(Arc::new(ModelCache::new(0)), config).unwrap()
}

/// Sends bytes to the metrics port and returns everything that it sends.
fn exchange(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.metrics_addr().unwrap()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Returns the head and the content of a reply.
#[track_caller]
fn split(reply: &str) -> (&str, &str) {
    let (head, content) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 ") && head.contains("\r\nConnection: close"), "{head}");
    (head, content)
}

fn metrics(server: &Server) -> Metrics {
    let reply = exchange(server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, content) = split(&reply);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", content.len())), "{head}");
    Metrics::parse(content)
}

/// Parsed metrics: the type of each family, and the value of each sample by its name and labels.
#[derive(Default)]
struct Metrics {
    types: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

type Labels = Vec<(String, String)>;

impl Metrics {
    /// Parses the text format. Panics at everything that the format does not allow.
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let mut metrics = Metrics::default();
        let mut lines = text.lines().peekable();
        let mut families = BTreeSet::new();
        while let Some(line) = lines.next() {
            let (family, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            assert!(!help.is_empty() && is_name(family), "{line}");
            assert!(families.insert(family), "{family} is there twice");
            let line = lines.next().unwrap();
            let (name, kind) = line.strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
            assert_eq!(name, family);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            metrics.types.insert(family.to_owned(), kind.to_owned());
            let mut samples = 0;
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (name, labels, value) = parse_sample(line);
                let suffix = name.strip_prefix(family).unwrap();
                let histogram = kind == "histogram";
                let suffixes: &[&str] =
                    if histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(suffixes.contains(&suffix), "{line} in {family}");
                let replaced = metrics.samples.insert((name.to_owned(), labels), value);
                assert_eq!(replaced, None, "{line} is there twice");
                samples += 1;
            }
            assert!(samples > 0, "{family} has no samples");
        }
        metrics
    }

    #[track_caller]
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: Labels =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let key = (name.to_owned(), labels);
        *self.samples.get(&key).unwrap_or_else(|| panic!("no {key:?}"))
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn parse_sample(line: &str) -> (&str, Labels, f64) {
    let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    let mut rest = rest;
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            let (value, after) = parse_quoted(after);
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
            assert!(after.starts_with([',', '}']), "{line}");
        }
        rest = rest.strip_prefix('}').unwrap();
    }
    let value = rest.strip_prefix(' ').unwrap().parse().unwrap();
    (name, labels, value)
}

/// Returns the text up to the closing quotation mark, and what follows it.
fn parse_quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, next)) = chars.next() {
        match next {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().unwrap().1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                other => panic!("escaped {other:?}"),
            }),
            plain => value.push(plain),
        }
    }
    panic!("no closing quotation mark in {text}");
}

fn ask(stream: &mut TcpStream, request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut read = vec![0; reply.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), reply);
}

#[test]
fn the_names_and_values_are_those_of_the_exporter() {
    let server = serve();
    let mut client = TcpStream::connect(server.local_addr()).unwrap();
    ask(&mut client, "set foo 0 0 3\r\nbar\r\n", "STORED\r\n");
    ask(&mut client, "set foo 0 0 3\r\nbar\r\n", "STORED\r\n");
    ask(&mut client, "get foo\r\nget qux\r\n", "VALUE foo 0 3\r\nbar\r\nEND\r\nEND\r\n");
    ask(&mut client, "gets foo\r\n", "VALUE foo 0 3 2\r\nbar\r\nEND\r\n");
    ask(&mut client, "cas foo 0 0 6 2\r\nbanana\r\n", "STORED\r\n");
    // A turn is measured after its replies were sent, and before the next one.
    ask(&mut client, "nonsense\r\n", "ERROR\r\n");
    let metrics = metrics(&server);
    for (name, labels, value) in [
        ("memcached_up", &[][..], 1.0),
        ("memcached_version", &[("version", &*Config::default().version)], 1.0),
        ("memcached_commands_total", &[("command", "get"), ("status", "hit")], 2.0),
        ("memcached_commands_total", &[("command", "get"), ("status", "miss")], 1.0),
        ("memcached_commands_total", &[("command", "set"), ("status", "hit")], 2.0),
        ("memcached_commands_total", &[("command", "cas"), ("status", "hit")], 1.0),
        ("memcached_commands_total", &[("command", "cas"), ("status", "badval")], 0.0),
        ("memcached_current_items", &[], 1.0),
        ("memcached_items_total", &[], 3.0),
        ("memcached_current_connections", &[], 1.0),
        ("memcached_connections_total", &[], 1.0),
        ("memcached_connections_rejected_total", &[], 0.0),
        ("memcached_max_connections", &[], 1024.0),
        ("evermap_command_seconds_count", &[("command", "set")], 3.0),
        ("evermap_command_seconds_count", &[("command", "meta_get")], 0.0),
    ] {
        assert_eq!(metrics.value(name, labels), value, "{name} {labels:?}");
    }
    for name in [
        "memcached_current_bytes",
        "memcached_read_bytes_total",
        "memcached_written_bytes_total",
        "memcached_time_seconds",
        "memcached_process_cpu_seconds_total",
        "memcached_process_resident_memory_bytes",
        "memcached_process_virtual_memory_bytes",
        "memcached_process_open_fds",
        "memcached_process_start_time_seconds",
    ] {
        assert!(metrics.value(name, &[]) >= 0.0, "{name}");
    }
    let kinds = ["memcached_items_total", "memcached_up", "evermap_command_seconds"];
    let kinds = kinds.map(|name| metrics.types[name].as_str());
    assert_eq!(kinds, ["counter", "gauge", "histogram"]);
}

#[test]
fn histograms_are_cumulative() {
    let server = serve();
    let mut client = TcpStream::connect(server.local_addr()).unwrap();
    for _ in 0..100 {
        ask(&mut client, "get a b\r\n", "END\r\n");
    }
    let metrics = metrics(&server);
    let name = "evermap_command_seconds_bucket";
    let mut buckets: Vec<(f64, f64)> = metrics
        .samples
        .iter()
        .filter(|((sample, labels), _)| sample == name && labels[0].1 == "get")
        .map(|((_, labels), count)| {
            assert_eq!(labels[1].0, "le");
            (labels[1].1.parse().unwrap(), *count)
        })
        .collect();
    buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    assert!(buckets.len() > 10 && buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
    let labels = [("command", "get")];
    let count = metrics.value("evermap_command_seconds_count", &labels);
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)));
    // The last turn may not have been counted yet when its reply arrived.
    assert!((198.0..=200.0).contains(&count), "{count}");
    let sum = metrics.value("evermap_command_seconds_sum", &labels);
    assert!(sum > 0.0 && sum < 3600.0, "{sum}");
}

#[test]
fn other_requests_get_the_right_errors() {
    let server = serve();
    let status = |request: &str| {
        let reply = exchange(&server, request);
        let (head, content) = split(&reply);
        (head.split(' ').nth(1).unwrap().to_owned(), head.to_owned(), content.to_owned())
    };
    let (code, head, content) = status("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!((&*code, &*content), ("200", ""));
    assert!(!head.contains("Content-Length: 0"), "{head}");
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n").0, "404");
    let (code, head, _) = status("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(code, "405");
    assert!(head.contains("\r\nAllow: GET, HEAD\r\n"), "{head}");
    assert_eq!(status("nonsense\r\n\r\n").0, "400");
    assert_eq!(status(&format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(9000))).0, "431");
    // In small pieces.
    let mut stream = TcpStream::connect(server.metrics_addr().unwrap()).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "));
}

#[test]
fn many_connections_get_their_turn() {
    let server = serve();
    let address = server.metrics_addr().unwrap();
    let mut idle: Vec<_> = (0..15).map(|_| TcpStream::connect(address).unwrap()).collect();
    metrics(&server);
    idle.extend((0..50).map(|_| TcpStream::connect(address).unwrap()));
    let last = idle.split_off(60);
    // They end in any order, without a request.
    drop(idle);
    metrics(&server);
    drop(last);
    metrics(&server);
    server.stop();
    server.join();
    assert!(TcpStream::connect(address).is_err());
}

/// They make space one at a time, as it is needed, and long before their time is over.
#[test]
fn idle_connections_do_not_delay_the_metrics() {
    const IDLE: usize = 40;
    let server = serve();
    let address = server.metrics_addr().unwrap();
    let idle: Vec<_> = (0..IDLE).map(|_| TcpStream::connect(address).unwrap()).collect();
    metrics(&server);
    metrics(&server);
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open = idle.iter().filter(|&stream| is_open(stream)).count();
    assert!((IDLE / 2..IDLE).contains(&open), "{open}");
    // The newest ones are left.
    assert!(idle[IDLE - open..].iter().all(is_open));
}

#[test]
fn a_port_in_use_is_reported() {
    let server = serve();
    let listen = ([127, 0, 0, 1], 0).into();
    let config = Config { listen, metrics: server.metrics_addr(), ..Config::default() };
    let error = Server::start(Arc::new(ModelCache::new(0)), config).err().expect("refused");
    assert!(error.to_string().contains("metrics"), "{error}");
}
