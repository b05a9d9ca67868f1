//! The server over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use crate::common::hooked_cache::HookedCache;
use evermap_server::cache::{Cache, StoreMode, StoreRequest};
use evermap_server::{Config, Cumulative, ModelCache, Server};

/// Starts a server over a model cache, on a free port.
fn serve(adjust: impl FnOnce(&mut Config)) -> (Server, Arc<ModelCache>) {
    let cache = Arc::new(ModelCache::new(1_800_000_000));
    let mut config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 2, ..Config::default() };
    adjust(&mut config);
    (Server::start(cache.clone(), config).unwrap(), cache)
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends a request and checks the reply.
#[track_caller]
fn ask(stream: &mut TcpStream, request: impl AsRef<[u8]>, reply: impl AsRef<[u8]>) {
    stream.write_all(request.as_ref()).unwrap();
    expect(stream, reply);
}

#[track_caller]
fn expect(stream: &mut TcpStream, reply: impl AsRef<[u8]>) {
    let mut read = vec![0; reply.as_ref().len()];
    stream.read_exact(&mut read).unwrap();
    assert!(read == reply.as_ref(), "{}", read[..read.len().min(200)].escape_ascii());
}

/// Reads to the end of the stream.
fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Requests one statistic over a new connection.
fn stat(server: &Server, name: &str) -> u64 {
    stat_over(&mut connect(server), name)
}

/// Requests one statistic.
fn stat_over(stream: &mut TcpStream, name: &str) -> u64 {
    stream.write_all(b"stats\r\n").unwrap();
    let prefix = format!("STAT {name} ");
    let lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    let stats: Vec<_> = lines.take_while(|line| line != "END").collect();
    let value = stats.iter().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no {name} in stats")).parse().unwrap()
}

#[test]
fn short_requests() {
    let (server, _) = serve(|_| {});
    let mut one = connect(&server);
    let mut two = connect(&server);
    ask(&mut one, "set a 1 0 1\r\nx\r\n", "STORED\r\n");
    ask(&mut two, "gets a\r\n", "VALUE a 1 1 1\r\nx\r\nEND\r\n");
    ask(&mut two, "cas a 2 0 1 1\r\ny\r\n", "STORED\r\n");
    ask(&mut one, "cas a 3 0 1 1\r\nz\r\n", "EXISTS\r\n");
    ask(&mut one, "delete a noreply\r\nget a\r\n", "END\r\n");
    ask(&mut one, "set n 0 0 1 noreply\r\n5\r\nincr n 7 noreply\r\ndecr n 2\r\n", "10\r\n");
    ask(&mut one, "nonsense\r\n", "ERROR\r\n");
    ask(&mut one, "version\r\n", format!("VERSION {}\r\n", Config::default().version));
    for byte in b"set a 0 0 3\r\nxyz\r\nget a\r\n" {
        one.write_all(&[*byte]).unwrap();
    }
    expect(&mut one, "STORED\r\nVALUE a 0 3\r\nxyz\r\nEND\r\n");
    one.write_all(b"quit\r\n").unwrap();
    assert_eq!(read_to_end(one), b"");
    ask(&mut two, "get a\r\n", "VALUE a 0 3\r\nxyz\r\nEND\r\n");
}

#[test]
fn a_client_that_shuts_down_its_sending_side_still_gets_its_replies() {
    let (server, _) = serve(|_| {});
    let mut stream = connect(&server);
    stream.write_all(b"set a 0 0 1\r\nx\r\nget a\r\nget a").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(stream), b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    while server.connections() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn ten_thousand_gets_in_a_row() {
    let (server, cache) = serve(|_| {});
    let mut stream = connect(&server);
    ask(&mut stream, "set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let mut writer = stream.try_clone().unwrap();
    let requests = b"get a\r\nget b\r\n".repeat(5000);
    let writing = std::thread::spawn(move || writer.write_all(&requests).unwrap());
    expect(&mut stream, b"VALUE a 0 1\r\nx\r\nEND\r\nEND\r\n".repeat(5000));
    writing.join().unwrap();
    assert_eq!(stat(&server, "cmd_get"), 10_000);
    assert_eq!(stat(&server, "get_hits"), 5_000);
    assert_eq!(stat(&server, "get_misses"), 5_000);
    // The number of keys in a lookup depends on how the bytes arrive, but some lookups are shared.
    assert!(cache.lookups() < 10_000, "{}", cache.lookups());
}

#[test]
fn large_values() {
    let (server, _) = serve(|config| config.item_size_max = 64 << 20);
    let mut stream = connect(&server);
    for len in [0, 1, 65_535, 65_536, 1 << 20, (64 << 20) - 51] {
        let value: Vec<u8> = (0..len).map(|i: usize| (i % 251) as u8).collect();
        let request = [format!("set a 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat();
        ask(&mut stream, request, "STORED\r\n");
        let reply = [format!("VALUE a 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        ask(&mut stream, "get a\r\n", reply);
    }
    let len = (64 << 20) - 50;
    let request =
        [format!("set a 0 0 {len}\r\n").as_bytes(), &vec![0; len], b"\r\nget a\r\n"].concat();
    ask(&mut stream, request, "SERVER_ERROR object too large for cache\r\nEND\r\n");
}

/// A client requests far more than it reads. The server must stop serving it, and only it.
#[test]
fn a_client_that_does_not_read_its_replies_is_not_served() {
    let (server, _) = serve(|config| config.threads = 1);
    let mut other = connect(&server);
    let value = "v".repeat(100_000);
    ask(&mut other, format!("set a 0 0 100000\r\n{value}\r\n"), "STORED\r\n");

    const GETS: usize = 2000;
    let mut slow = connect(&server);
    slow.write_all(&b"get a\r\n".repeat(GETS)).unwrap();
    let reply = format!("VALUE a 0 100000\r\n{value}\r\nEND\r\n");
    // The other client is still served, and sees that the counters do not change any more, because
    // the buffers of the sockets are full long before 200 MB have been sent.
    let mut gets = stat(&server, "cmd_get");
    loop {
        for _ in 0..100 {
            ask(&mut other, "get b\r\n", "END\r\n");
        }
        let now = stat(&server, "cmd_get");
        if now == gets + 100 {
            break;
        }
        gets = now;
    }
    let hits = stat(&server, "get_hits");
    assert!(hits < GETS as u64 / 2, "{hits}");
    // It receives everything when it reads.
    for _ in 0..GETS {
        expect(&mut slow, &reply);
    }
    assert_eq!(stat(&server, "get_hits"), GETS as u64);
}

/// One client asks for more in a turn than others should wait for: its turn ends, whatever the
/// number of rounds.
#[test]
fn a_turn_ends_when_enough_has_been_replied() {
    const GETS: usize = 200;
    let (server, _) = serve(|config| {
        (config.threads, config.reads_per_turn, config.output_limit) = (1, 1000, 1000);
    });
    let mut stream = connect(&server);
    let value = "v".repeat(1000);
    ask(&mut stream, format!("set a 0 0 1000\r\n{value}\r\n"), "STORED\r\n");
    let reply = format!("VALUE a 0 1000\r\n{value}\r\nEND\r\n");
    ask(&mut stream, b"get a\r\n".repeat(GETS), reply.repeat(GETS));
    // Each reply is more than is sent in one turn.
    let yields = stat_over(&mut stream, "conn_yields");
    assert!(yields > GETS as u64 / 2, "{yields}");
}

#[test]
fn endless_lines_and_http_requests_close_the_connection() {
    let (server, _) = serve(|_| {});
    let mut stream = connect(&server);
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let mut sent = 0usize;
        // Ends when the server has closed the connection.
        while writer.write_all(&[b'x'; 4096]).is_ok() {
            sent += 4096;
        }
        sent
    });
    expect(&mut stream, "CLIENT_ERROR line too long\r\n");
    assert!(writing.join().unwrap() >= 2048);

    let mut stream = connect(&server);
    stream.write_all(b"POST / HTTP/1.1\r\nset a 0 0 1\r\nx\r\n\r\n").unwrap();
    assert_eq!(read_to_end(stream), b"");
    ask(&mut connect(&server), "get a\r\n", "END\r\n");
}

#[test]
fn connections_beyond_the_limit_receive_an_error() {
    let (server, _) = serve(|config| config.max_connections = 3);
    let mut clients: Vec<_> = (0..3).map(|_| connect(&server)).collect();
    for client in &mut clients {
        ask(client, "get a\r\n", "END\r\n");
    }
    for _ in 0..5 {
        assert_eq!(read_to_end(connect(&server)), b"ERROR Too many open connections\r\n");
    }
    assert_eq!(stat_over(&mut clients[0], "rejected_connections"), 5);
    assert_eq!(stat_over(&mut clients[0], "curr_connections"), 3);
    assert_eq!(stat_over(&mut clients[0], "max_connections"), 3);
    drop(clients.pop());
    while server.connections() > 2 {
        std::thread::yield_now();
    }
    ask(&mut connect(&server), "get a\r\n", "END\r\n");
}

#[test]
fn many_connections_are_distributed_and_released() {
    const CLIENTS: usize = 200;
    let (server, _) = serve(|config| config.threads = 4);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&server)).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        ask(client, format!("set k{i} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    for (i, client) in clients.iter_mut().enumerate() {
        client.write_all(format!("get k{} k{i}\r\n", CLIENTS - 1 - i).as_bytes()).unwrap();
    }
    for (i, client) in clients.iter_mut().enumerate() {
        expect(
            client,
            format!("VALUE k{} 0 1\r\nx\r\nVALUE k{i} 0 1\r\nx\r\nEND\r\n", CLIENTS - 1 - i),
        );
    }
    assert_eq!(server.connections(), CLIENTS);
    assert_eq!(stat(&server, "total_connections"), CLIENTS as u64 + 1);
    drop(clients);
    while server.connections() > 0 {
        std::thread::yield_now();
    }
    ask(&mut connect(&server), "get k0\r\n", "VALUE k0 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn stats_reset_resets_the_counters() {
    let (server, _) = serve(|_| {});
    let mut stream = connect(&server);
    ask(&mut stream, "get a\r\nget b\r\nset a 0 0 1\r\nx\r\n", "END\r\nEND\r\nSTORED\r\n");
    assert_eq!(stat(&server, "get_misses"), 2);
    ask(&mut stream, "stats reset\r\n", "RESET\r\n");
    assert_eq!(stat(&server, "get_misses"), 0);
    assert_eq!((stat(&server, "total_items"), stat(&server, "curr_items")), (0, 1));
    ask(&mut stream, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(stat(&server, "get_hits"), 1);
    assert!(stat(&server, "bytes_written") > 0);
}

/// The counters of connections, workers and the cache go on from those of an earlier server.
#[test]
fn cumulative_statistics_go_on_from_an_earlier_server() {
    const NAMES: [&str; 4] = ["get_misses", "cmd_set", "total_items", "total_connections"];
    let mut earlier = Cumulative::default();
    for (name, value) in [("get_misses", 100), ("total_items", 10), ("total_connections", 1000)] {
        earlier.set(name, value);
    }
    // A count that this server does not have is kept for the next one.
    earlier.set("lrutail_reflocked", 5);
    let (server, _) = serve(|config| config.earlier = earlier);
    let mut stream = connect(&server);
    ask(&mut stream, "get a\r\nset a 0 0 1\r\nx\r\n", "END\r\nSTORED\r\n");
    assert_eq!(NAMES.map(|name| stat_over(&mut stream, name)), [101, 1, 11, 1001]);
    let kept = server.cumulative();
    assert_eq!(NAMES.map(|name| kept.get(name)), [101, 1, 11, 1001]);
    assert_eq!(kept.get("lrutail_reflocked"), 5);
    assert!(kept.iter().all(|(name, _)| name != "curr_items" && name != "uptime"));

    ask(&mut stream, "stats reset\r\nget b\r\n", "RESET\r\nEND\r\n");
    assert_eq!(NAMES.map(|name| stat_over(&mut stream, name)), [1, 0, 0, 0]);
    let kept = server.cumulative();
    assert_eq!(NAMES.map(|name| kept.get(name)), [1, 0, 0, 0]);
    assert_eq!(kept.get("lrutail_reflocked"), 0);
}

/// Every protocol counts what it stores, and not what it refuses.
#[test]
fn stored_items_are_counted() {
    let (server, _) = serve(|_| {});
    let mut text = connect(&server);
    ask(&mut text, "set a 0 0 1\r\nx\r\nadd a 0 0 1\r\ny\r\n", "STORED\r\nNOT_STORED\r\n");
    ask(&mut text, "append a 0 0 1\r\nz\r\nset n 0 0 1\r\n1\r\n", "STORED\r\nSTORED\r\n");
    ask(&mut text, "incr n 1\r\ntouch n 0\r\n", "2\r\nTOUCHED\r\n");
    assert_eq!(stat(&server, "total_items"), 3);
    ask(&mut text, "ms b 1\r\nx\r\nms b 1 ME\r\ny\r\n", "HD\r\nNS\r\n");
    assert_eq!(stat(&server, "total_items"), 4);
    // Set and add in the binary protocol: flags and expiry of 0, key `c`, value `x`.
    let mut binary = connect(&server);
    for (opcode, status) in [(0x01, 0), (0x02, 2)] {
        let mut request = [0; 34];
        request[..5].copy_from_slice(&[0x80, opcode, 0, 1, 8]);
        request[11] = 10;
        request[32..].copy_from_slice(b"cx");
        binary.write_all(&request).unwrap();
        let mut reply = [0; 24];
        binary.read_exact(&mut reply).unwrap();
        assert_eq!(reply[7], status);
        let rest = u32::from_be_bytes(reply[8..12].try_into().unwrap());
        binary.read_exact(&mut vec![0; rest as usize]).unwrap();
    }
    assert_eq!(stat(&server, "total_items"), 5);
}

#[test]
fn a_stop_sends_the_replies_to_executed_requests() {
    let (server, cache) = serve(|config| config.threads = 1);
    cache.store(b"a", &[b'v'; 1 << 20], &StoreRequest::new(StoreMode::Set)).unwrap();
    let mut idle = connect(&server);
    ask(&mut idle, "get b\r\n", "END\r\n");
    let mut reading = connect(&server);
    reading.write_all(&b"get a\r\n".repeat(100)).unwrap();
    // When replies arrive, the server is waiting for this client to read more.
    let mut first = [0; 1];
    reading.read_exact(&mut first).unwrap();
    server.stop();
    assert_eq!(read_to_end(idle), b"");
    let replies = [&first[..], &read_to_end(reading)].concat();
    let reply = [b"VALUE a 0 1048576\r\n", &[b'v'; 1 << 20][..], b"\r\nEND\r\n"].concat();
    assert!(replies.chunks(reply.len()).all(|chunk| chunk == reply), "replies are complete");
    server.join();
    assert!(TcpStream::connect(server.local_addr()).is_err());
}

#[test]
fn a_client_that_never_reads_does_not_block_the_stop() {
    let (server, cache) = serve(|_| {});
    cache.store(b"a", &[b'v'; 1 << 20], &StoreRequest::new(StoreMode::Set)).unwrap();
    let mut slow = connect(&server);
    slow.write_all(&b"get a\r\n".repeat(100)).unwrap();
    slow.read_exact(&mut [0; 1]).unwrap();
    server.stop();
    server.join();
}

#[test]
fn invalid_settings_are_reported_by_name() {
    let start = |adjust: fn(&mut Config)| {
        let mut config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
        adjust(&mut config);
        let cache = Arc::new(ModelCache::new(0));
        Server::start(cache, config).err().expect("refused").to_string()
    };
    assert!(start(|config| config.threads = 0).contains("threads"));
    assert!(start(|config| config.max_connections = 0).contains("max_connections"));
    assert!(start(|config| config.item_size_max = (64 << 20) + 1).contains("item_size_max"));
    assert!(start(|config| config.output_limit = 0).contains("output_limit"));
    assert!(start(|config| config.version = "a\r\nb".into()).contains("version"));
    let (server, cache) = serve(|_| {});
    let config = Config { listen: server.local_addr(), ..Config::default() };
    let error = Server::start(cache, config).err().expect("refused").to_string();
    assert!(error.contains(&server.local_addr().to_string()), "{error}");
}

/// Simulates a bug in the store.
fn bomb(keys: &[&[u8]]) {
    assert!(!keys.contains(&&b"bomb"[..]), "this panic is part of a test");
}

#[test]
fn a_panic_closes_only_the_clients_of_its_worker() {
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 2, ..Config::default() };
    let server = Server::start(
        Arc::new(HookedCache { cache: ModelCache::new(0), before_get: bomb }),
        config,
    )
    .unwrap();
    // Connections are assigned in turn: the first and the third have the same worker.
    let mut clients: Vec<_> = (0..4).map(|_| connect(&server)).collect();
    for client in &mut clients {
        ask(client, "set a 0 0 1\r\nx\r\n", "STORED\r\n");
    }
    clients[0].write_all(b"get bomb\r\n").unwrap();
    for client in [0, 2] {
        assert_eq!(clients[client].read(&mut [0]).unwrap_or(0), 0, "closed");
    }
    while server.connections() > 2 {
        std::thread::yield_now();
    }
    clients.extend((0..4).map(|_| connect(&server)));
    for client in [1, 3, 4, 5, 6, 7] {
        ask(&mut clients[client], "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    server.stop();
    let joined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.join()));
    assert!(joined.is_err(), "`join` reports the panic");
}
