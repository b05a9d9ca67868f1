//! `evermap serve` under a service manager: sockets that are passed, messages, privileges, signals.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{CommandOutput, evermap, run};
use crate::memcached::{reply, wait_for_text};

/// A server that has said that it is ready.
pub(crate) struct Server {
    child: Child,
    _out: BufReader<ChildStdout>,
    ready: String,
}

impl Server {
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        out.read_line(&mut ready).unwrap();
        if !ready.starts_with("ready on ") {
            panic!("{ready:?}, {:?}", CommandOutput::new(child.wait_with_output().unwrap()));
        }
        Server { child, _out: out, ready }
    }

    /// Returns the addresses of the ready line.
    pub(crate) fn addresses(&self) -> Vec<&str> {
        let rest = self.ready.strip_prefix("ready on ").unwrap();
        rest.split_once(": ").unwrap().0.split(", ").collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the server. Returns what it has written to standard error.
    #[track_caller]
    pub(crate) fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        let mut errors = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut errors).unwrap();
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status:?}, {errors}");
        errors
    }
}

impl Drop for Server {
    /// A process does not outlive its test.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = evermap(["serve", "--threads", "2", "--path"]);
    command.arg(directory.join("map")).args(arguments);
    command
}

#[track_caller]
fn is_served(mut stream: impl std::io::Read + std::io::Write) {
    assert_eq!(reply(&mut stream, "get a\r\n", "END\r\n"), "END\r\n");
}

/// Makes the child pass `sockets` from descriptor 3 on, as a service manager does.
fn pass(command: &mut Command, sockets: &[RawFd], names: &str) {
    let sockets = sockets.to_vec();
    command.env("LISTEN_FDS", sockets.len().to_string()).env("LISTEN_FDNAMES", names);
    // The number of the process is known only to itself.
    // SAFETY: the closure calls only functions that may be called between `fork` and `exec`:
    // `dup2`, `getpid`, and `setenv` for a process with one thread that has no lock.
    unsafe {
        command.pre_exec(move || {
            for (target, &socket) in (3..).zip(&sockets) {
                // A descriptor that is where it should be would be closed by `exec`.
                assert_ne!(socket, target);
                if libc::dup2(socket, target) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

/// Starts the command through a shell, which sets the number of the process that it becomes.
fn with_own_number(command: &Command, variable: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("export {variable}=$$; exec \"$@\"")).arg("sh");
    shell.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    shell
}

/// Returns descriptors that are far from those that are passed.
fn far(socket: &impl AsRawFd) -> RawFd {
    // SAFETY: `fcntl` with `F_DUPFD` accesses no memory.
    let descriptor = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, 100) };
    assert!(descriptor >= 100);
    descriptor
}

#[test]
fn sockets_that_are_passed_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let address = tcp.local_addr().unwrap();
    // Clients can connect before there is a server.
    let early = TcpStream::connect(address).unwrap();
    let mut command = with_own_number(&serve(dir.path(), &[]), "LISTEN_PID");
    pass(&mut command, &[far(&tcp), far(&unix)], "memcached:local");
    let server = Server::start(command);
    assert_eq!(server.addresses(), [&address.to_string(), path.to_str().unwrap()]);
    is_served(early);
    is_served(UnixStream::connect(&path).unwrap());
    assert_eq!(server.stop(), "");
    assert!(path.exists(), "the file belongs to the service manager");

    // An address that is asked for and passed is one and the same.
    let more = ["--listen", &address.to_string(), "--listen", "127.0.0.1:0"];
    let mut command = with_own_number(&serve(dir.path(), &more), "LISTEN_PID");
    pass(&mut command, &[far(&tcp)], "");
    let server = Server::start(command);
    assert_eq!(server.addresses().len(), 2);
    assert_eq!(server.addresses()[0], address.to_string());
    is_served(TcpStream::connect(server.addresses()[1]).unwrap());
    server.stop();
}

#[test]
fn sockets_for_another_process_mean_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(dir.path(), &["--listen", "127.0.0.1:0"]);
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let server = Server::start(command);
    is_served(TcpStream::connect(server.addresses()[0]).unwrap());
    server.stop();
}

#[test]
fn what_is_passed_must_be_a_listening_socket() {
    let dir = tempfile::tempdir().unwrap();
    let command = serve(dir.path(), &[]);
    let attempt = |count: &str, file: Option<&std::fs::File>| {
        let mut command = with_own_number(&command, "LISTEN_PID");
        let files: Vec<RawFd> = file.iter().map(|file| far(*file)).collect();
        pass(&mut command, &files, "memcached");
        command.env("LISTEN_FDS", count);
        CommandOutput::new(command.output().unwrap())
    };
    let null = std::fs::File::open("/dev/null").unwrap();
    attempt("1", Some(&null)).failure("descriptor 3 (\"memcached\"): it is not a socket");
    attempt("2000", None).failure("LISTEN_FDS=2000");
    assert!(!dir.path().join("map").exists());
}

/// The other side of the messages: the service manager.
struct Manager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Manager {
    fn new(directory: &Path) -> Self {
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { socket, path }
    }

    fn receive(&self) -> String {
        let mut message = [0; 4096];
        let len = self.socket.recv(&mut message).expect("a message");
        String::from_utf8(message[..len].to_vec()).unwrap()
    }

    /// Receives messages until one has this line.
    fn wait_for(&self, line: &str) -> String {
        loop {
            let message = self.receive();
            if message.lines().any(|found| found == line) {
                return message;
            }
        }
    }
}

#[test]
fn the_service_manager_is_told_what_happens() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::new(dir.path());
    let mut command = serve(dir.path(), &["--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &manager.path);
    let server = Server::start(command);
    let message = manager.receive();
    assert!(message.starts_with("READY=1\nSTATUS=ready on 127.0.0.1:"), "{message}");
    is_served(TcpStream::connect(server.addresses()[0]).unwrap());
    server.signal(Signal::HUP);
    let message = manager.receive();
    let time = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("reloading").trim();
    assert!(time.parse::<u64>().unwrap() > 0);
    assert!(manager.receive().starts_with("READY=1\n"));
    server.stop();
    assert_eq!(manager.receive(), "STOPPING=1\n");
}

#[test]
fn a_watchdog_hears_from_a_server_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::new(dir.path());
    let command = serve(dir.path(), &["--listen", "127.0.0.1:0"]);
    let mut command = with_own_number(&command, "WATCHDOG_PID");
    command.env("NOTIFY_SOCKET", &manager.path).env("WATCHDOG_USEC", "200000");
    let server = Server::start(command);
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    server.stop();
    manager.wait_for("STOPPING=1");
    // Without the variable, or with one for another process, nothing is sent.
    let mut command = serve(dir.path(), &["--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &manager.path);
    command.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    let server = Server::start(command);
    manager.wait_for(&format!("STATUS={}", server.ready.trim()));
    manager.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let error = manager.socket.recv(&mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    server.stop();
}

#[test]
fn several_addresses_and_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server = Server::start(serve(
        dir.path(),
        &[
            "--listen",
            "127.0.0.1:0,127.0.0.1:0",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            socket.to_str().unwrap(),
            "--socket-mode",
            "770",
        ],
    ));
    let addresses = server.addresses();
    assert_eq!(addresses.len(), 4);
    for address in &addresses[..3] {
        is_served(TcpStream::connect(address).unwrap());
    }
    assert_eq!(addresses[3], socket.to_str().unwrap());
    is_served(UnixStream::connect(&socket).unwrap());
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o770);
    assert_eq!(server.stop(), "");
    assert!(!socket.exists());
    // A socket that a kill leaves is replaced.
    let only = ["--socket", socket.to_str().unwrap()];
    let mut server = Server::start(serve(dir.path(), &only));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(socket.exists());
    let server = Server::start(serve(dir.path(), &only));
    is_served(UnixStream::connect(&socket).unwrap());
    server.stop();
}

/// Returns the file of a server from its ready line. It is removed when this is dropped.
struct OwnFile(PathBuf);

impl OwnFile {
    #[track_caller]
    fn of(server: &Server) -> Self {
        let (_, rest) = server.ready.split_once(": ").unwrap();
        OwnFile(rest.split_once(" (").unwrap().0.into())
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Servers that are not told their file do not take each other's, and find their own again.
#[test]
fn servers_on_different_addresses_have_different_files() {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let sockets = ["a/b", "a-b"].map(|name| dir.path().join(name));
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let addresses = [format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")];
    let mut arguments: Vec<Vec<&str>> =
        addresses.iter().map(|address| vec!["--listen", address]).collect();
    arguments.extend(sockets.iter().map(|path| vec!["--socket", path.to_str().unwrap()]));
    let start = |arguments: &Vec<&str>| {
        let mut command = evermap(["serve", "--threads", "1"]);
        command.args(arguments).current_dir(dir.path());
        Server::start(command)
    };
    let servers: Vec<_> = arguments.iter().map(start).collect();
    let files: Vec<_> = servers.iter().map(OwnFile::of).collect();
    for server in servers {
        server.stop();
    }
    for (arguments, file) in arguments.iter().zip(&files) {
        let server = start(arguments);
        assert_eq!(OwnFile::of(&server).0, file.0);
        server.stop();
    }
}

/// As with memcached, the other addresses of the host are served.
#[test]
fn an_address_of_a_host_may_be_taken() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    if TcpListener::bind(("::", 0)).is_err() {
        println!("skipped: there is no IPv6");
        return;
    }
    let ports = dir.path().join("ports");
    let mut command = evermap(["-u", "root", "-l", &format!("*:{port}"), "-p", "0", "-e"]);
    command.arg0("/usr/bin/memcached").arg(dir.path().join("map"));
    command.env("MEMCACHED_PORT_FILENAME", &ports).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text = wait_for_text(&ports, || child.try_wait().unwrap().is_none());
    assert_eq!(text, format!("TCP INET6: {port}\n"));
    is_served(TcpStream::connect(("::1", port)).unwrap());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = CommandOutput::new(child.wait_with_output().unwrap());
    assert_eq!(output.code, 0);
    let expected = format!("memcached: warning: cannot listen on 0.0.0.0:{port}: ");
    assert!(output.stderr.contains(&expected), "{output:?}");
}

#[test]
fn errors_of_addresses_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let path = path.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(["serve", "--path", path, "--listen", "127.0.0.1:0", "--listen", &address]).failure(
        "Address already in use (os error 98); stop the program that uses it, or choose another \
         with --listen or --socket",
    );
    let more = ["--listen", "127.0.0.1:0", "--metrics", &address];
    run([&["serve", "--path", path][..], &more].concat())
        .failure("stop the program that uses it, or choose another with --metrics");
    let output = run(["serve", "--path", path, "--socket", path, "--socket-mode", "900"]);
    assert!(output.code == 2 && output.stderr.contains("octal"), "{output:?}");
    std::fs::write(path, "not a socket").unwrap();
    run(["serve", "--path", "/nonexistent/map", "--socket", path])
        .failure(&format!("cannot listen on {path}: there is a file that is not a socket"));
}

#[test]
fn a_pid_file_names_the_process_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    std::fs::write(&file, "something old").unwrap();
    let options = ["--listen", "127.0.0.1:0", "--pid-file", file.to_str().unwrap()];
    let server = Server::start(serve(dir.path(), &options));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}\n", server.child.id()));
    server.stop();
    assert!(!file.exists());
    let missing = dir.path().join("missing/pid");
    let path = missing.to_str().unwrap();
    run(["serve", "--durability", "volatile", "--listen", "127.0.0.1:0", "--pid-file", path])
        .failure(path);
}

#[test]
fn idle_connections_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["--listen", "127.0.0.1:0", "--idle-timeout", "1"];
    let server = Server::start(serve(dir.path(), &options));
    let mut idle = TcpStream::connect(server.addresses()[0]).unwrap();
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0);
    let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
    let stats = reply(&mut stream, "stats\r\n", "END\r\n");
    assert!(stats.contains("STAT idle_kicks 1\r\n"), "{stats}");
    server.stop();
}

#[test]
fn locked_memory_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve(dir.path(), &["--listen", "127.0.0.1:0", "--lock-memory"]));
    is_served(TcpStream::connect(server.addresses()[0]).unwrap());
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let locked: u64 = locked.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let errors = server.stop();
    // A user may lack the permission, and is told so.
    assert_eq!(locked == 0, errors.contains("the memory cannot be locked"), "{locked}, {errors}");
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;

    use rcgen::{CertificateParams, KeyPair};

    fn install(directory: &Path) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["cache.test".into()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
    }

    fn files(directory: &Path) -> [String; 2] {
        ["cert.pem", "key.pem"].map(|name| directory.join(name).to_str().unwrap().to_owned())
    }

    /// Reads what the server says about its certificates, from standard error.
    #[test]
    fn a_hangup_loads_the_certificates_again() {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path());
        let [certificate, key] = files(dir.path());
        let options = [
            "--listen",
            "127.0.0.1:0,notls:127.0.0.1:0",
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
        ];
        let mut server = Server::start(serve(dir.path(), &options));
        let mut errors = BufReader::new(server.child.stderr.take().unwrap());
        let mut hangup = || {
            server.signal(Signal::HUP);
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            line
        };
        assert_eq!(hangup(), "evermap: the certificates were read again\n");
        std::fs::write(&key, "nonsense").unwrap();
        let line = hangup();
        assert!(line.contains("are unchanged") && line.contains("key.pem"), "{line}");
        install(dir.path());
        assert_eq!(hangup(), "evermap: the certificates were read again\n");
        let plain = TcpStream::connect(server.addresses()[1]).unwrap();
        is_served(plain);
        // The other one does not understand what is not encrypted.
        let mut encrypted = TcpStream::connect(server.addresses()[0]).unwrap();
        std::io::Write::write_all(&mut encrypted, b"get a\r\n").unwrap();
        let mut replies = Vec::new();
        let _ = encrypted.read_to_end(&mut replies);
        assert!(!replies.starts_with(b"END"), "{}", replies.escape_ascii());
        server.stop();
    }

    #[test]
    fn certificates_that_cannot_be_used_are_reported_before_the_store_is_created() {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path());
        let [certificate, key] = files(dir.path());
        let path = dir.path().join("map");
        let attempt = |more: &[&str]| {
            let path = path.to_str().unwrap();
            let mut arguments = vec!["serve", "--path", path, "--listen", "127.0.0.1:0"];
            arguments.extend(more);
            run(arguments)
        };
        let output = attempt(&["--tls-cert", &certificate]);
        assert!(output.code == 2 && output.stderr.contains("--tls-key"), "{output:?}");
        attempt(&["--tls-cert", "/nonexistent", "--tls-key", &key])
            .failure("/nonexistent: No such");
        attempt(&["--tls-cert", &key, "--tls-key", &key]).failure("there is no certificate");
        let verify = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-verify", "require"];
        let output = attempt(&verify);
        assert!(output.code == 2 && output.stderr.contains("--tls-client-ca"), "{output:?}");
        assert!(!path.exists());
        attempt(&["--listen", "mtls:127.0.0.1:0"]).failure("needs a certificate");
    }
}
