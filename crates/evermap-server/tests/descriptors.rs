//! A process that has no file descriptors left. This is the only test of its binary, because the
//! limit applies to the process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_server::{Config, ModelCache, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Requests one statistic over an open connection.
fn stat(stream: &mut TcpStream, name: &str) -> u64 {
    stream.write_all(b"stats\r\n").unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"END\r\n") {
        let mut piece = [0; 4096];
        let len = stream.read(&mut piece).unwrap();
        reply.extend_from_slice(&piece[..len]);
    }
    let prefix = format!("STAT {name} ");
    let reply = String::from_utf8(reply).unwrap();
    reply.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().parse().unwrap()
}

#[test]
fn accepting_pauses_while_there_are_no_descriptors() {
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 1, ..Config::default() };
    let server = Server::start(Arc::new(ModelCache::new(0)), config).unwrap();
    let mut early = TcpStream::connect(server.local_addr()).unwrap();
    assert_eq!(stat(&mut early, "listen_disabled_num"), 0);

    let before = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 200), ..before }).unwrap();
    // Take every descriptor but one, which the client's end of the next connection needs.
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.pop();
    let started = Instant::now();
    let mut late = TcpStream::connect(server.local_addr()).unwrap();
    while stat(&mut early, "listen_disabled_num") < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Each attempt but the first was preceded by a delay of 100 ms: the server did not spin.
    let attempts = stat(&mut early, "listen_disabled_num");
    assert!(u128::from(attempts) <= started.elapsed().as_millis() / 100 + 2, "{attempts}");

    drop(taken);
    late.write_all(b"set a 0 0 1\r\nx\r\n").unwrap();
    let mut reply = [0; 8];
    late.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"STORED\r\n");
    setrlimit(Resource::Nofile, before).unwrap();
}
