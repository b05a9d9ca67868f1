//! Several listeners, unix sockets, idle connections and too many of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_server::server::WhenFull;
use evermap_server::{Config, ListenAddress, Listener, ModelCache, Server};

fn serve(listeners: Vec<Listener>, adjust: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config { threads: 2, ..Config::default() };
    adjust(&mut config);
    Server::start_on(listeners, Arc::new(ModelCache::new(1_800_000_000)), config).unwrap()
}

fn loopback() -> Listener {
    Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap()
}

#[track_caller]
fn ask(stream: &mut (impl Read + Write), request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut read = vec![0; reply.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), reply);
}

fn stat(stream: &mut (impl Read + Write), command: &str, name: &str) -> String {
    let (text, prefix) = (stats(stream, command), format!("STAT {name} "));
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

fn stats(stream: &mut (impl Read + Write), command: &str) -> String {
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut piece = [0; 4096];
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "closed");
        text.extend_from_slice(&piece[..len]);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn all_listeners_serve_the_same_items() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut listeners = vec![loopback(), loopback(), Listener::unix(&path, 0o700).unwrap()];
    // A machine may have no IPv6.
    listeners.extend(Listener::tcp("[::1]:0".parse().unwrap()));
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.address().clone()).collect();
    let server = serve(listeners, |_| {});
    assert_eq!(server.addresses(), addresses);
    assert_eq!(Some(server.local_addr()), addresses[0].tcp());

    let mut unix = UnixStream::connect(&path).unwrap();
    ask(&mut unix, "set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for address in addresses.iter().filter_map(ListenAddress::tcp) {
        let mut stream = TcpStream::connect(address).unwrap();
        ask(&mut stream, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    assert_eq!(stat(&mut unix, "stats", "total_connections"), addresses.len().to_string());
    let inter: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(stat(&mut unix, "stats settings", "inter"), inter.join(","));
    assert_eq!(stat(&mut unix, "stats settings", "domain_socket"), path.to_str().unwrap());
    // The path that clients know, not the one that the socket had while it was created.
    let line = format!(":listen_addr unix:{}\r\n", path.display());
    assert!(stats(&mut unix, "stats conns").contains(&line));
    server.stop();
    server.join();
    for address in addresses.iter().filter_map(ListenAddress::tcp) {
        assert!(TcpStream::connect(address).is_err());
    }
}

/// The same port of both families, which would be in use if IPv6 included IPv4.
#[test]
fn an_address_of_ipv6_stands_for_itself() {
    let Ok(six) = Listener::tcp("[::]:0".parse().unwrap()) else {
        return;
    };
    let port = six.address().tcp().unwrap().port();
    let four = Listener::tcp(([0, 0, 0, 0], port).into()).unwrap();
    assert!(!four.address().is_local() && !six.address().is_local());
    let server = serve(vec![four, six], |_| {});
    for address in ["127.0.0.1", "[::1]"] {
        let address: SocketAddr = format!("{address}:{port}").parse().unwrap();
        ask(&mut TcpStream::connect(address).unwrap(), "get a\r\n", "END\r\n");
    }
    drop(server);
}

#[test]
fn a_unix_socket_has_the_requested_permissions_and_is_removed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    for mode in [0o700, 0o770, 0o666] {
        let server = serve(vec![Listener::unix(&path, mode).unwrap()], |_| {});
        let file = std::fs::symlink_metadata(&path).unwrap();
        assert!(file.file_type().is_socket());
        assert_eq!(file.permissions().mode() & 0o777, mode);
        ask(&mut UnixStream::connect(&path).unwrap(), "get a\r\n", "END\r\n");
        drop(server);
        assert!(!path.exists());
    }
}

#[test]
fn only_a_socket_without_listener_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    // A process that was killed leaves its socket.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = serve(vec![Listener::unix(&path, 0o700).unwrap()], |_| {});

    let error = Listener::unix(&path, 0o700).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    ask(&mut UnixStream::connect(&path).unwrap(), "get a\r\n", "END\r\n");

    // The file of another server is not removed.
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.exists());
    drop(other);

    let file = dir.path().join("file");
    std::fs::write(&file, b"precious").unwrap();
    let error = Listener::unix(&file, 0o700).unwrap_err().to_string();
    assert!(error.contains(file.to_str().unwrap()) && error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

/// A script that waits for the path can connect, although no server has started yet.
#[test]
fn a_unix_socket_listens_as_soon_as_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::unix(&path, 0o640).unwrap();
    let mut early = UnixStream::connect(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    // Its temporary name is gone.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // Another server does not take it for the rest of one that was killed.
    assert_eq!(Listener::unix(&path, 0o700).unwrap_err().kind(), ErrorKind::AddrInUse);
    let server = serve(vec![listener], |_| {});
    ask(&mut early, "get a\r\n", "END\r\n");
    drop(server);
    assert!(!path.exists());
    drop(Listener::unix(&path, 0o700).unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The longest path that the system has, with too little space for a temporary name.
#[test]
fn a_unix_socket_may_have_the_longest_path() {
    const LEN_MAX: usize = 107;
    let dir = tempfile::tempdir().unwrap();
    let len = LEN_MAX - dir.path().as_os_str().len() - "//x".len();
    let folder = dir.path().join("d".repeat(len));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("x");
    assert_eq!(path.as_os_str().len(), LEN_MAX);
    let server = serve(vec![Listener::unix(&path, 0o700).unwrap()], |_| {});
    ask(&mut UnixStream::connect(&path).unwrap(), "get a\r\n", "END\r\n");
    drop(server);
}

#[test]
fn a_unix_socket_can_be_given_to_another_user() {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = Listener::unix_of(&path, 0o700, Some((11211, 11212))).unwrap();
    let file = std::fs::metadata(&path).unwrap();
    assert_eq!((file.uid(), file.gid()), (11211, 11212));
}

#[test]
fn errors_of_unix_sockets_name_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("x".repeat(108));
    let error = Listener::unix(&long, 0o700).unwrap_err().to_string();
    assert!(error.contains(long.to_str().unwrap()) && error.contains("too long"), "{error}");
    let missing = dir.path().join("missing/socket");
    let error = Listener::unix(&missing, 0o700).unwrap_err().to_string();
    assert!(error.contains(missing.to_str().unwrap()), "{error}");
}

/// A socket on which the program that created it listens, as service managers do.
#[test]
fn an_inherited_socket_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    // This client waits in the queue of the socket before there is a server.
    let mut early = TcpStream::connect(address).unwrap();
    early.write_all(b"get a\r\n").unwrap();
    let unix = UnixListener::bind(&path).unwrap();
    let listeners = [tcp.into(), unix.into()].map(|socket| Listener::inherited(socket).unwrap());
    assert_eq!(listeners[0].address(), &ListenAddress::Tcp(address));
    assert_eq!(listeners[1].address(), &ListenAddress::Unix(path.clone()));
    let server = serve(listeners.into(), |_| {});
    ask(&mut early, "", "END\r\n");
    ask(&mut UnixStream::connect(&path).unwrap(), "get a\r\n", "END\r\n");
    drop(server);
    assert!(path.exists(), "the file belongs to the program that created it");

    let refused = |socket: std::os::fd::OwnedFd| Listener::inherited(socket).unwrap_err();
    assert!(
        refused(std::fs::File::open("/dev/null").unwrap().into()).to_string().contains("socket")
    );
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(refused(datagrams.into()).to_string().contains("stream"));
    let (one, _other) = UnixStream::pair().unwrap();
    assert!(refused(one.into()).to_string().contains("does not listen"));
}

#[test]
fn a_server_needs_a_listener_and_valid_limits() {
    let start = |listeners, adjust: fn(&mut Config)| {
        let mut config = Config::default();
        adjust(&mut config);
        let server = Server::start_on(listeners, Arc::new(ModelCache::new(0)), config);
        server.err().expect("refused").to_string()
    };
    assert!(start(vec![], |_| {}).contains("no listener"));
    let zero: fn(&mut Config) = |config| config.idle_timeout = Some(Duration::ZERO);
    assert!(start(vec![loopback()], zero).contains("idle_timeout"));
    assert!(start(vec![loopback()], |config| config.reads_per_turn = 0).contains("reads_per_turn"));
}

#[test]
fn an_idle_connection_is_closed_and_counted() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    let server = serve(vec![loopback()], |config| config.idle_timeout = Some(TIMEOUT));
    let mut idle = TcpStream::connect(server.local_addr()).unwrap();
    // It has sent a part of a request, and nothing after that.
    let mut unfinished = TcpStream::connect(server.local_addr()).unwrap();
    unfinished.write_all(b"set a 0 0 10\r\nx").unwrap();
    let began = Instant::now();
    let mut active = TcpStream::connect(server.local_addr()).unwrap();
    let mut closed = [false; 2];
    while closed != [true; 2] {
        ask(&mut active, "get a\r\n", "END\r\n");
        for (stream, closed) in [&mut idle, &mut unfinished].into_iter().zip(&mut closed) {
            stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            match stream.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => *closed = true,
            }
        }
    }
    assert!(began.elapsed() >= TIMEOUT / 2, "{:?}", began.elapsed());
    // This one has exchanged bytes all the time.
    assert_eq!(stat(&mut active, "stats", "idle_kicks"), "2");
    // The socket is closed a moment before the connection is not counted any more.
    while stat(&mut active, "stats", "curr_connections") != "1" {}
}

/// The worker sends nothing, because the client does not read, and so the client is idle.
#[test]
fn a_client_that_does_not_read_is_idle() {
    let server = serve(vec![loopback()], |config| {
        config.idle_timeout = Some(Duration::from_millis(300));
    });
    let mut other = TcpStream::connect(server.local_addr()).unwrap();
    let value = "v".repeat(1_000_000);
    ask(&mut other, &format!("set a 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    let mut slow = TcpStream::connect(server.local_addr()).unwrap();
    slow.write_all(&b"get a\r\n".repeat(100)).unwrap();
    while stat(&mut other, "stats", "idle_kicks") != "1" {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stat(&mut other, "stats", "evermap_unsent_bytes"), "0");
}

/// Clients of all workers share the limit. Those that read nothing are disconnected, beginning with
/// the one that has done so for the longest time; a client that reads slowly is not.
#[test]
fn clients_that_hold_too_many_replies_are_disconnected() {
    const LIMIT: usize = 4 << 20;
    const GETS: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _server = serve(vec![Listener::unix(&path, 0o700).unwrap()], |config| {
        config.threads = 2;
        config.reply_limit = LIMIT;
    });
    let connect = || UnixStream::connect(&path).unwrap();
    let mut other = connect();
    let value = "v".repeat(1_000_000);
    ask(&mut other, &format!("set a 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    let reply = format!("VALUE a 0 {}\r\n{value}\r\nEND\r\n", value.len());
    let greedy = || {
        let mut stream = connect();
        stream.write_all(&b"get a\r\n".repeat(GETS)).unwrap();
        stream
    };
    // Returns the number of clients whose sockets are full.
    let full =
        |stream: &mut UnixStream| stats(stream, "stats conns").matches(" conn_mwrite\r\n").count();
    let mut reader = greedy();
    // The system takes a fifth of a value for each of these, so that only a few are within the
    // limit. The reader asks for twice as many values as it reads meanwhile.
    let mut holding = Vec::new();
    for _ in 0..GETS / 2 {
        holding.push(greedy());
        ask(&mut reader, "", &reply);
        // Until the server waits for all of them, so that they are in order.
        let total = (holding.len() + 2).to_string();
        while stat(&mut other, "stats", "total_connections") != total
            || stat(&mut other, "stats", "curr_connections") != (full(&mut other) + 1).to_string()
        {
            std::thread::yield_now();
        }
    }
    while stat(&mut other, "stats", "evermap_unread_kicks").parse::<usize>().unwrap() < 4 {
        std::thread::yield_now();
    }
    let unsent: usize = stat(&mut other, "stats", "evermap_unsent_bytes").parse().unwrap();
    assert!(unsent <= LIMIT, "{unsent}");
    ask(&mut reader, "", &reply.repeat(GETS - GETS / 2));
    // The last one that came is served completely, and the first one was disconnected.
    ask(&mut holding.pop().unwrap(), "", &reply.repeat(GETS));
    let mut first = Vec::new();
    let _ = holding.swap_remove(0).read_to_end(&mut first);
    assert!(first.len() < reply.len());
    drop(holding);
    while stat(&mut other, "stats", "evermap_unsent_bytes") != "0" {
        std::thread::yield_now();
    }
}

/// Returns the states of the connections from one port to another, as the system shows them.
fn states(from: u16, to: u16) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (from, to) = (format!(":{from:04X}"), format!(":{to:04X}"));
    let fields = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields[1].ends_with(&from) && fields[2].ends_with(&to))
        .map(|fields| fields[3].to_owned())
        .collect()
}

/// A client that does not read would otherwise leave what was sent to it in the system's memory.
#[test]
fn the_system_drops_the_replies_of_disconnected_clients() {
    const CLIENTS_MAX: usize = 100;
    for statistic in ["evermap_unread_kicks", "idle_kicks"] {
        let server = serve(vec![loopback()], |config| {
            (config.item_size_max, config.output_limit) = (100_000, 50_000);
            match statistic {
                "idle_kicks" => config.idle_timeout = Some(Duration::from_millis(300)),
                _ => config.reply_limit = 400_000,
            }
        });
        let mut other = TcpStream::connect(server.local_addr()).unwrap();
        let value = "v".repeat(90_000);
        ask(&mut other, &format!("set a 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
        let mut clients = Vec::new();
        while stat(&mut other, "stats", statistic) == "0" {
            if clients.len() < CLIENTS_MAX {
                let mut client = TcpStream::connect(server.local_addr()).unwrap();
                client.write_all(&b"get a\r\n".repeat(500)).unwrap();
                clients.push(client);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // 01 is an open connection, and every other state one with bytes for the client. A client
        // is counted shortly before it is disconnected.
        let port = server.local_addr().port();
        loop {
            let states: Vec<_> = clients
                .iter()
                .flat_map(|client| states(port, client.local_addr().unwrap().port()))
                .collect();
            assert!(states.iter().all(|state| state == "01"), "{statistic}: {states:?}");
            if states.len() < clients.len() {
                break;
            }
        }
    }
}

#[test]
fn connections_beyond_the_maximum_wait_if_asked_to() {
    let server = serve(vec![loopback()], |config| {
        config.max_connections = 2;
        config.when_full = WhenFull::Wait;
    });
    let connect = || TcpStream::connect(server.local_addr()).unwrap();
    let (mut one, mut two) = (connect(), connect());
    for stream in [&mut one, &mut two] {
        ask(stream, "get a\r\n", "END\r\n");
    }
    let mut waiting: Vec<_> = (0..4).map(|_| connect()).collect();
    for stream in &mut waiting {
        stream.write_all(b"get a\r\n").unwrap();
    }
    while stat(&mut one, "stats", "accepting_conns") != "0" {
        std::thread::yield_now();
    }
    let disabled: u64 = stat(&mut one, "stats", "listen_disabled_num").parse().unwrap();
    assert!(disabled >= 1, "{disabled}");
    assert_eq!(stat(&mut one, "stats", "curr_connections"), "2");
    // Each takes the place of the one before.
    drop(two);
    for mut stream in waiting {
        ask(&mut stream, "", "END\r\n");
    }
    ask(&mut connect(), "get a\r\n", "END\r\n");
    assert_eq!(stat(&mut one, "stats", "rejected_connections"), "0");
    assert_eq!(stat(&mut one, "stats settings", "maxconns_fast"), "no");
}

#[test]
fn settings_that_the_program_adds_replace_those_of_the_server() {
    let server = serve(vec![loopback()], |config| {
        config.settings.insert("growth_factor".into(), "1.25".into());
        config.settings.insert("verbosity".into(), "2".into());
    });
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    assert_eq!(stat(&mut stream, "stats settings", "growth_factor"), "1.25");
    assert_eq!(stat(&mut stream, "stats settings", "verbosity"), "2");
}

#[test]
fn workers_that_run_are_responsive() {
    let server = serve(vec![loopback()], |_| {});
    assert!(server.is_responsive(), "nothing is known yet");
    // Each call wakes the workers, so the next one finds that they have run.
    while !server.is_responsive() {
        std::thread::yield_now();
    }
    server.stop();
    server.join();
    server.is_responsive();
    assert!(!server.is_responsive(), "they have ended");
}

#[test]
fn addresses_know_whether_other_machines_can_reach_them() {
    assert!(ListenAddress::Unix(Path::new("/x").into()).is_local());
    assert!(ListenAddress::Tcp("127.1.2.3:1".parse().unwrap()).is_local());
    assert!(ListenAddress::Tcp("[::ffff:127.0.0.1]:1".parse().unwrap()).is_local());
    assert!(!ListenAddress::Tcp("192.0.2.1:1".parse().unwrap()).is_local());
}
