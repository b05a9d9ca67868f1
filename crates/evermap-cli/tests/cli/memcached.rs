//! The program under the name memcached, with the options of memcached.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use crate::common::{CommandOutput, evermap};

/// Returns the program under the name memcached.
fn memcached<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = evermap(arguments);
    command.arg0("/usr/bin/memcached");
    command
}

#[track_caller]
fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> CommandOutput {
    CommandOutput::new(memcached(arguments).output().unwrap())
}

/// A process that does not outlive its test.
struct Process(Child);

impl Process {
    fn spawn(mut command: Command) -> Self {
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that is no child, and does not outlive its test.
struct Background(OwnedFd);

impl Drop for Background {
    fn drop(&mut self) {
        // Normally it has ended before. The descriptor stands for it even then, and not for another
        // process with the same number.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// A server on a free port of the loopback interface, with a file in a directory of its own.
struct Memcached {
    child: Option<Child>,
    port: u16,
    dir: TempDir,
}

/// Waits until a file exists and has text.
pub(crate) fn wait_for_text(path: &Path, mut is_alive: impl FnMut() -> bool) -> String {
    for _ in 0..2400 {
        match std::fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return text,
            _ => assert!(is_alive(), "the server has ended"),
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{}: no text", path.display());
}

impl Memcached {
    fn start(more: &[&str]) -> Self {
        Memcached::start_in(tempfile::tempdir().unwrap(), more)
    }

    fn start_in(dir: TempDir, more: &[&str]) -> Self {
        let ports = dir.path().join("ports");
        let _ = std::fs::remove_file(&ports);
        let mut command = memcached(["-u", "root", "-l", "127.0.0.1", "-p", "-1", "-e"]);
        command.arg(dir.path().join("items")).args(more).env("MEMCACHED_PORT_FILENAME", &ports);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let text = wait_for_text(&ports, || child.try_wait().unwrap().is_none());
        let line = text.lines().next().unwrap();
        let port = line.strip_prefix("TCP INET: ").unwrap().parse().unwrap();
        Memcached { child: Some(child), port, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    fn settings(&self) -> String {
        reply(&mut self.connect(), "stats settings\r\n", "END\r\n")
    }

    fn stats(&self) -> String {
        reply(&mut self.connect(), "stats\r\n", "END\r\n")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    /// Stops the server. Returns what it has written to standard error.
    #[track_caller]
    fn stop(mut self) -> (TempDir, String) {
        self.signal(Signal::TERM);
        let output = CommandOutput::new(self.child.take().unwrap().wait_with_output().unwrap());
        assert_eq!(output.code, 0, "{output:?}");
        assert_eq!(output.stdout, b"", "memcached writes nothing there");
        (std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap()), output.stderr)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a request and returns the reply up to its end.
pub(crate) fn reply(stream: &mut (impl Read + Write), request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut piece = [0; 4096];
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&piece[..len]).unwrap());
    }
    text
}

/// Checks that arguments are refused with one line that has `message`.
#[track_caller]
fn refused<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>, message: &str) {
    let output = run(arguments);
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.starts_with("memcached: "), "{}", output.stderr);
    assert!(output.stderr.contains(message), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

#[test]
fn a_link_named_memcached_has_the_options_of_memcached() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("memcached");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_evermap"), &link).unwrap();
    let output = CommandOutput::new(Command::new(&link).arg("-V").output().unwrap());
    assert!(output.success().starts_with(b"memcached 1.6."));
    // And only such a link.
    let other = dir.path().join("memcached-tool");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_evermap"), &other).unwrap();
    let output = CommandOutput::new(Command::new(&other).arg("--version").output().unwrap());
    assert!(output.success().starts_with(b"evermap "));
}

#[test]
fn help_version_and_license() {
    for option in ["-h", "--help"] {
        let help = String::from_utf8(run([option]).success()).unwrap();
        // Every option has a line.
        for letter in "pUsaAldrumMckvhiVPfnLDtRCbBISFXWYeo".chars() {
            let line = |line: &str| line.starts_with(&format!("-{letter}"));
            assert!(help.lines().any(line), "-{letter}");
        }
        assert!(help.lines().all(|line| line.len() <= 100));
    }
    assert!(run(["-V"]).success().starts_with(b"memcached 1.6."));
    assert!(run(["-i"]).success().starts_with(b"Evermap is free software"));
}

#[test]
fn wrong_options_are_refused_with_one_line() {
    for (arguments, message) in [
        (&["-q"][..], "-q"),
        (&["--nonsense"], "--nonsense"),
        (&["stray"], "\"stray\" belongs to no option"),
        (&["-m"], "-m"),
        (&["-m", "x"], "-m x: must be a number of megabytes"),
        (&["-m", "64m"], "-m 64m: must be a number of megabytes"),
        (&["-m", "99999999999999999"], "must be a number of megabytes"),
        (&["-c", "0"], "-c 0: must be a number from 1"),
        (&["-t", "0"], "-t 0: must be a number from 1 to 1024"),
        (&["-t", "1025"], "from 1 to 1024"),
        (&["-R", "0"], "-R 0"),
        (&["-b", "0"], "-b 0"),
        (&["-p", "65536"], "-p 65536: must be a number from 0 to 65535"),
        (&["-p", "-2"], "-p -2"),
        (&["-p", "0"], "nothing to listen on"),
        (&["-I", "1023"], "-I 1023: must be a size from 1k to 64m"),
        (&["-I", "65m"], "-I 65m: must be a size"),
        (&["-I", "x"], "-I x"),
        (&["-I", "40m"], "at most half of the memory of -m"),
        (&["-a", "800"], "-a: permissions are an octal number"),
        (&["-B", "morse"], "-B morse: must be auto, ascii or binary"),
        (&["-f", "1"], "-f 1: the factor must be greater than 1"),
        (&["-n", "0"], "-n 0"),
        (&["-D", "ab"], "-D ab: must be one character"),
        (&["-o", "nonsense"], "there is no option -o nonsense"),
        (&["-o", "modern,idle_timeout=x"], "-o idle_timeout x: must be a number"),
        (&["-o", "proxy_config=x"], "there is no proxy"),
        (&["-S"], "-S needs a file of user:password lines"),
        (&["-Z"], "-Z needs -o ssl_chain_cert=FILE and -o ssl_key=FILE"),
        (&["-l", "127.0.0.1:x", "-u", "root"], "-l 127.0.0.1:x: the port is a number"),
    ] {
        refused(arguments, message);
    }
}

#[test]
fn udp_is_refused_with_the_reason() {
    refused(["-U", "11211"], "2018");
    assert!(Memcached::start(&["-U", "0"]).stop().1.is_empty());
}

#[test]
fn root_has_to_say_which_user_the_server_is() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    refused(["-p", "-1", "-l", "127.0.0.1"], "-u NAME");
    let output = run(["-p", "-1", "-l", "127.0.0.1", "-u", "nobody-of-this-name"]);
    assert_eq!(output.code, 71);
    assert!(output.stderr.contains("there is no user \"nobody-of-this-name\""), "{output:?}");
}

#[test]
fn items_survive_a_kill() {
    let server = Memcached::start(&[]);
    assert_eq!(reply(&mut server.connect(), "set a 0 0 1\r\nx\r\n", "\r\n"), "STORED\r\n");
    let mut server = server;
    server.signal(Signal::KILL);
    server.child.take().unwrap().wait().unwrap();
    let dir = std::mem::replace(&mut server.dir, tempfile::tempdir().unwrap());
    let server = Memcached::start_in(dir, &[]);
    assert_eq!(reply(&mut server.connect(), "get a\r\n", "END\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    let (dir, errors) = server.stop();
    assert_eq!(errors, "");
    // SIGUSR1 asks for an orderly end too.
    let mut server = Memcached::start_in(dir, &[]);
    server.signal(Signal::USR1);
    assert!(server.child.take().unwrap().wait().unwrap().success());
}

#[test]
fn settings_are_applied_and_reported() {
    let server = Memcached::start(&[
        "-m",
        "100",
        "-c",
        "50",
        "-t",
        "3",
        "-R",
        "7",
        "-b",
        "99",
        "-I",
        "2m",
        "-vv",
        "-k",
        "-r",
        "-o",
        "modern,no_maxconns_fast,idle_timeout=60,hashpower=20,slab_automove=2",
        "-o",
        "relaxed_privileges",
        "-f",
        "1.5",
        "-n",
        "64",
        "-C",
        "-L",
        "-D",
        ":",
        "-A",
        "-F",
        "-X",
        "-W",
        "-B",
        "auto",
    ]);
    let settings = server.settings();
    for (name, value) in [
        ("maxconns", "50"),
        ("num_threads", "3"),
        ("reqs_per_event", "7"),
        ("tcp_backlog", "99"),
        ("item_size_max", "2097152"),
        ("verbosity", "2"),
        ("binding_protocol", "auto-negotiate"),
        ("shutdown_command", "yes"),
        ("flush_enabled", "no"),
        ("dump_enabled", "no"),
        ("watch_enabled", "no"),
        ("maxconns_fast", "no"),
        ("idle_timeout", "60"),
        ("hashpower", "20"),
        ("slab_automove", "2"),
        ("growth_factor", "1.5"),
        ("chunk_size", "64"),
        ("udpport", "0"),
    ] {
        assert!(settings.contains(&format!("STAT {name} {value}\r\n")), "{name}: {settings}");
    }
    assert!(settings.contains(&format!("STAT tcpport {}\r\n", server.port)), "{settings}");
    assert!(server.stats().contains(&format!("STAT limit_maxbytes {}\r\n", 100 << 20)));
    let (_, errors) = server.stop();
    let note = errors.lines().find(|line| line.contains("without effect")).unwrap();
    for option in ["-C", "-L", "-f", "-n", "-o hashpower", "-o slab_automove"] {
        assert!(note.contains(option), "{option}: {note}");
    }
    assert!(!note.contains("modern") && !note.contains("relaxed_privileges"), "{note}");
    assert_eq!(errors.lines().filter(|line| line.contains("without effect")).count(), 1);
}

#[test]
fn the_defaults_are_those_of_memcached() {
    let server = Memcached::start(&[]);
    let settings = server.settings();
    for (name, value) in [
        ("maxconns", "1024"),
        ("num_threads", "4"),
        ("item_size_max", "1048576"),
        ("tcp_backlog", "1024"),
        ("maxconns_fast", "yes"),
        ("idle_timeout", "0"),
        ("verbosity", "0"),
    ] {
        assert!(settings.contains(&format!("STAT {name} {value}\r\n")), "{name}: {settings}");
    }
    assert!(server.stats().contains(&format!("STAT limit_maxbytes {}\r\n", 64 << 20)));
    assert_eq!(server.stop().1, "");
}

#[test]
fn long_options_and_options_in_one_word() {
    let server = Memcached::start(&[
        "--memory-limit=10",
        "--conn-limit",
        "20",
        "--threads=2",
        "--verbose=2",
        "--max-item-size=512k",
        "--listen=127.0.0.1:0",
        "-b77",
        "-vo",
        "idle_timeout=5",
    ]);
    let settings = server.settings();
    for (name, value) in [
        ("maxconns", "20"),
        ("num_threads", "2"),
        ("tcp_backlog", "77"),
        ("item_size_max", "524288"),
        ("idle_timeout", "5"),
        ("verbosity", "3"),
    ] {
        assert!(settings.contains(&format!("STAT {name} {value}\r\n")), "{name}: {settings}");
    }
    assert!(settings.contains("STAT inter 127.0.0.1:"), "{settings}");
}

#[test]
fn a_unix_socket_instead_of_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    // Nobody listens on this one.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut command = memcached(["-u", "root", "-a", "0770", "-s"]);
    command.arg(&socket).arg("-e").arg(dir.path().join("items"));
    let mut child = Process::spawn(command);
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(_) => assert!(child.0.try_wait().unwrap().is_none()),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(reply(&mut stream, "get a\r\n", "END\r\n"), "END\r\n");
    let settings = reply(&mut stream, "stats settings\r\n", "END\r\n");
    assert!(settings.contains("STAT tcpport 0\r\n"), "{settings}");
    assert!(settings.contains("STAT umask 770\r\n"), "{settings}");
    assert!(settings.contains(&format!("STAT domain_socket {}\r\n", socket.display())));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o770);
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn a_listener_that_other_machines_reach_is_warned_about() {
    let server = Memcached::start(&["-l", "0.0.0.0:0"]);
    let (_, errors) = server.stop();
    assert!(errors.starts_with("memcached: warning: 0.0.0.0:"), "{errors}");
    assert!(errors.contains("without TLS or a password"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn commands_are_refused_or_allowed_as_the_options_say() {
    let mut server = Memcached::start(&["-A", "-F", "-X"]);
    let mut stream = server.connect();
    for (request, expected) in [
        ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("flush_all\r\n", "CLIENT_ERROR flush_all not allowed\r\n"),
        ("stats cachedump 1 0\r\n", "CLIENT_ERROR stats cachedump not allowed\r\n"),
        ("lru_crawler metadump all\r\n", "ERROR metadump not allowed\r\n"),
        ("lru_crawler mgdump all\r\n", "ERROR key dump not allowed\r\n"),
    ] {
        assert_eq!(reply(&mut stream, request, "\r\n"), expected);
    }
    // A flush of the binary protocol, and its status.
    let mut binary = server.connect();
    binary.write_all(&[&[0x80, 0x08][..], &[0; 22]].concat()).unwrap();
    let mut header = [0; 24];
    binary.read_exact(&mut header).unwrap();
    assert_eq!(header[..8], [0x81, 0x08, 0, 0, 0, 0, 0, 0x20]);
    assert_eq!(reply(&mut stream, "get a\r\n", "END\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    stream.write_all(b"shutdown\r\n").unwrap();
    assert!(server.child.take().unwrap().wait().unwrap().success());

    let server = Memcached::start(&[]);
    let mut stream = server.connect();
    assert_eq!(
        reply(&mut stream, "shutdown\r\n", "\r\n"),
        "SERVER_ERROR: shutdown not enabled\r\n"
    );
    assert_eq!(reply(&mut stream, "flush_all\r\n", "\r\n"), "OK\r\n");
}

#[test]
fn passwords_are_demanded_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    std::fs::write(&file, "anna:first\n").unwrap();
    let mut server = Memcached::start(&["-Y", file.to_str().unwrap(), "-l", "0.0.0.0:0"]);
    let login = |server: &Memcached, token: &str| {
        let mut stream = server.connect();
        let request = format!("set x 0 0 {}\r\n{token}\r\n", token.len());
        reply(&mut stream, &request, "\r\n") == "STORED\r\n"
            && reply(&mut stream, "get a\r\n", "\r\n") == "END\r\n"
    };
    assert!(reply(&mut server.connect(), "get a\r\n", "\r\n").contains("unauthenticated"));
    assert!(login(&server, "anna first") && !login(&server, "anna second"));
    let mut errors = std::io::BufReader::new(server.child.as_mut().unwrap().stderr.take().unwrap());
    let mut hangup = |text: &str| {
        std::fs::write(&file, text).unwrap();
        server.signal(Signal::HUP);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
        line
    };
    // There are passwords, so a listener that other machines reach is no reason for a warning.
    assert_eq!(hangup("anna:second\n"), "memcached: the passwords were read again\n");
    assert!(login(&server, "anna second") && !login(&server, "anna first"));
    let line = hangup("sesame\n");
    assert!(line.starts_with("memcached: the passwords are unchanged, because"), "{line}");
    assert!(!line.contains("sesame"), "a line may have a password: {line}");
    assert!(login(&server, "anna second"));

    let output = run(["-u", "root", "-p", "-1", "-Y", "/nonexistent"]);
    assert_eq!(output.code, 71);
    assert!(output.stderr.contains("/nonexistent"), "{output:?}");
}

#[test]
fn sasl_takes_its_passwords_from_the_environment_too() {
    let dir = tempfile::tempdir().unwrap();
    let (file, ports) = (dir.path().join("users"), dir.path().join("ports"));
    std::fs::write(&file, "anna:first\n").unwrap();
    let mut command = memcached(["-S", "-u", "root", "-l", "127.0.0.1", "-p", "-1"]);
    command.env("MEMCACHED_SASL_PWDB", &file).env("MEMCACHED_PORT_FILENAME", &ports);
    let mut child = Process::spawn(command);
    let text = wait_for_text(&ports, || child.0.try_wait().unwrap().is_none());
    let port: u16 = text.trim().strip_prefix("TCP INET: ").unwrap().parse().unwrap();
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let ask = |stream: &mut TcpStream, packet: &[u8]| {
        stream.write_all(packet).unwrap();
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes(header[8..12].try_into().unwrap());
        stream.read_exact(&mut vec![0; len as usize]).unwrap();
        u16::from_be_bytes([header[6], header[7]])
    };
    let get = [&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 12], b"a"].concat();
    assert_eq!(ask(&mut connect(), &get), 0x20, "not authenticated");
    let token = b"PLAIN\0anna\0first";
    let auth = [&[0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, 16][..], &[0; 12], token].concat();
    assert_eq!(token.len(), 16);
    let mut stream = connect();
    assert_eq!(ask(&mut stream, &auth), 0);
    assert_eq!(ask(&mut stream, &get), 1, "not found");
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn the_protocol_can_be_chosen() {
    for (name, text_is_served) in [("ascii", true), ("binary", false), ("auto", true)] {
        let server = Memcached::start(&["-B", name]);
        let mut stream = server.connect();
        stream.write_all(b"get a\r\n").unwrap();
        let mut text = [0; 5];
        assert_eq!(stream.read_exact(&mut text).is_ok(), text_is_served, "{name}");
        let mut stream = server.connect();
        stream.write_all(&[&[0x80, 0x0a][..], &[0; 22]].concat()).unwrap();
        assert_eq!(stream.read_exact(&mut [0; 24]).is_ok(), name != "ascii", "{name}");
    }
}

/// Writes a certificate and its key. Returns the options that name them.
#[cfg(feature = "tls")]
fn certificate(dir: &Path) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["cache.test".into()]).unwrap();
    let (cert_path, key_path) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert_path, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&key_path, key.serialize_pem()).unwrap();
    format!("ssl_chain_cert={},ssl_key={}", cert_path.display(), key_path.display())
}

#[cfg(feature = "tls")]
#[test]
fn certificates_are_read_again_by_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let files = certificate(dir.path());
    let server = Memcached::start(&[
        "-Z",
        "-o",
        &files,
        "-o",
        "ssl_min_version=3",
        "-l",
        "notls:127.0.0.1:0",
    ]);
    // The port without TLS is the second one.
    let ports = std::fs::read_to_string(server.path("ports")).unwrap();
    let port: u16 = ports.lines().nth(1).unwrap().split(' ').nth(2).unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let settings = reply(&mut stream, "stats settings\r\n", "END\r\n");
    for line in ["ssl_enabled yes", "ssl_min_version tlsv1.3", "ssl_verify_mode 0"] {
        assert!(settings.contains(&format!("STAT {line}\r\n")), "{line}: {settings}");
    }
    assert_eq!(reply(&mut stream, "refresh_certs\r\n", "\r\n"), "OK\r\n");
    std::fs::write(dir.path().join("cert.pem"), "nonsense").unwrap();
    let error = reply(&mut stream, "refresh_certs\r\n", "\r\n");
    assert!(error.contains("cert.pem: there is no certificate"), "{error}");
    let plain = Memcached::start(&[]);
    assert_eq!(reply(&mut plain.connect(), "refresh_certs\r\n", "\r\n"), "ERROR\r\n");
}

/// memcached starts, too. Clients with certificates are refused then, or all.
#[cfg(feature = "tls")]
#[test]
fn certificates_can_be_asked_for_without_an_authority() {
    let dir = tempfile::tempdir().unwrap();
    let files = certificate(dir.path());
    for (mode, shown, said) in [
        ("1", "1", "a client that presents one is refused"),
        ("2", "2", "no client can connect"),
        ("3", "2", "no client can connect"),
    ] {
        let mode = format!("{files},ssl_verify_mode={mode}");
        let server = Memcached::start(&["-Z", "-o", &mode, "-l", "notls:127.0.0.1:0"]);
        let ports = std::fs::read_to_string(server.path("ports")).unwrap();
        let port: u16 = ports.lines().nth(1).unwrap().split(' ').nth(2).unwrap().parse().unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let settings = reply(&mut stream, "stats settings\r\n", "END\r\n");
        assert!(settings.contains(&format!("STAT ssl_verify_mode {shown}\r\n")), "{settings}");
        let (_, errors) = server.stop();
        assert!(errors.contains("no authority is given") && errors.contains(said), "{errors}");
    }
}

#[test]
fn the_background() {
    let dir = tempfile::tempdir().unwrap();
    let (pid_file, ports) = (dir.path().join("pid"), dir.path().join("ports"));
    let command = || {
        let mut command = memcached(["-d", "-u", "root", "-l", "127.0.0.1", "-p", "-1", "-P"]);
        // A path that is relative to the directory that the server leaves.
        command.arg(&pid_file).args(["-e", "items"]).current_dir(dir.path());
        command.env("MEMCACHED_PORT_FILENAME", &ports);
        command
    };
    // The first process ends when the server is ready.
    CommandOutput::new(command().output().unwrap()).success();
    let text = std::fs::read_to_string(&ports).unwrap();
    let port: u16 = text.trim().strip_prefix("TCP INET: ").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let stats = reply(&mut stream, "stats\r\n", "END\r\n");
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    assert!(stats.contains(&format!("STAT pid {}\r\n", pid.trim())), "{pid}");
    assert!(dir.path().join("items").exists());
    let process = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let _background = Background(pidfd_open(process, PidfdFlags::empty()).unwrap());
    let session = rustix::process::getsid(Some(process)).unwrap();
    assert_eq!(session, process, "it has no terminal");
    let directory = std::fs::read_link(format!("/proc/{}/cwd", pid.trim())).unwrap();
    assert_eq!(directory, Path::new("/"));

    // A failure is reported by the first process.
    let mut second = command();
    second.args(["-l", &format!("127.0.0.1:{port}"), "-e", "other"]);
    let output = CommandOutput::new(second.output().unwrap());
    assert_eq!(output.code, 71, "{output:?}");
    assert!(output.stderr.contains("Address already in use"), "{output:?}");
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap(), pid, "the file is that of the first");
    let output = CommandOutput::new(command().output().unwrap());
    assert!(output.stderr.contains("items: in use by process"), "{output:?}");
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap(), pid, "the file is that of the first");

    kill_process(process, Signal::TERM).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    for _ in 0..1200 {
        if !pid_file.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("the file of the process is not removed");
}

/// The privileges are dropped before the file is created, so it belongs to the user.
#[test]
fn the_server_becomes_another_user() {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let Some(user) = users.lines().find(|line| line.starts_with("nobody:")) else {
        return;
    };
    let uid: u32 = user.split(':').nth(2).unwrap().parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(uid), None).unwrap();
    let server = Memcached::start_in(dir, &["-u", "nobody"]);
    let process = server.child.as_ref().unwrap().id();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("Uid:"), vec![uid.to_string(); 4]);
    assert!(!line("Gid:").contains(&"0".to_owned()), "{status}");
    assert!(!line("Groups:").contains(&"0".to_owned()), "{status}");
    assert_eq!(line("CapEff:"), ["0000000000000000"]);
    assert_eq!(std::fs::metadata(server.path("items")).unwrap().uid(), uid);
    server.stop();
}
