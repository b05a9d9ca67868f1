//! Servers of the memcached protocol, as child processes.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::LabError;

/// Names in reports.
pub(super) const EVERMAP: &str = "evermap-serve";
pub(super) const MEMCACHED: &str = "memcached";

/// The threads of each server.
pub(super) const THREADS: usize = 2;
/// How long a server may take until it accepts connections.
const START: Duration = Duration::from_secs(20);

/// A program that can be measured.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    path: PathBuf,
    /// What it says about its version.
    pub(super) version: String,
}

impl Program {
    /// Returns those of the servers that are here: Evermap's beside this program, and the memcached
    /// that the shell would find.
    pub(super) fn find(own: Option<&Path>) -> Vec<Program> {
        let beside = own.map(|own| own.with_file_name("evermap"));
        let programs = [(EVERMAP, beside), (MEMCACHED, Some("memcached".into()))];
        let version = |(name, path): (&'static str, Option<PathBuf>)| {
            let path = path?;
            let told = Command::new(&path).arg("--version").stdin(Stdio::null()).output().ok()?;
            let version = String::from_utf8_lossy(&told.stdout).trim().to_owned();
            told.status.success().then_some(Program { name, path, version })
        };
        programs.into_iter().filter_map(version).collect()
    }

    /// Returns the server over an engine, which `own`, this program, can be.
    pub(super) fn engine(name: &'static str, own: &Path) -> Program {
        Program { name, path: own.to_owned(), version: String::new() }
    }

    /// Starts the server with its files in `directory`, and waits until it accepts connections.
    pub(super) fn start(&self, directory: &Path, threads: usize) -> Result<Server, LabError> {
        let address = free_address().map_err(|source| io_error("finding a free port", source))?;
        let mut command = Command::new(&self.path);
        let threads = threads.to_string();
        match self.name {
            EVERMAP => {
                let listen = address.to_string();
                command.arg("serve").args(["--listen", &listen, "--threads", &threads]);
                command.arg("--path").arg(directory.join("servers.evermap"));
            }
            MEMCACHED => {
                command.args(["-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
                // It refuses to run as root unless it is told to.
                command.args(["-t", &threads, "-U", "0", "-m", "4096", "-u", "root"]);
            }
            engine => {
                command.args(["serve-engine", engine, &address.to_string(), &threads]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|source| io_error("starting a server", source))?;
        let mut server = Server { name: self.name, child, address };
        server.wait_until_ready()?;
        Ok(server)
    }
}

fn io_error(action: &'static str, source: io::Error) -> LabError {
    LabError::Io { action, path: None, source }
}

/// Returns an address at which nothing listened a moment ago.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A server that runs. It is killed on drop.
pub(super) struct Server {
    pub(super) name: &'static str,
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let begin = Instant::now();
        loop {
            if self.connect().is_ok() {
                return Ok(());
            }
            let ended = self.child.try_wait().map_err(|source| self.failed(source))?;
            if ended.is_some() || begin.elapsed() > START {
                let what = "it does not accept connections; see its message on standard error";
                return Err(self.failed(what));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn connect(&self) -> Result<TcpStream, LabError> {
        let connect = || {
            let stream = TcpStream::connect(self.address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        connect().map_err(|source: io::Error| self.failed(source))
    }

    pub(super) fn failed(&self, source: impl Into<crate::Failure>) -> LabError {
        LabError::index(self.name, source)
    }

    /// Returns the processor time that the server has used.
    pub(super) fn cpu(&self) -> Result<Cpu, LabError> {
        let path = PathBuf::from(format!("/proc/{}/stat", self.child.id()));
        let stat = fs::read_to_string(&path).map_err(|source| self.failed(source))?;
        Cpu::parse(&stat).ok_or_else(|| self.failed(format!("{} is unreadable", path.display())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor seconds of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cpu {
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Cpu {
    /// Parses the text of `/proc/PID/stat`.
    fn parse(stat: &str) -> Option<Cpu> {
        // The name of the program, in parentheses, may contain anything.
        let after_name = &stat[stat.rfind(')')? + 1..];
        let mut fields = after_name.split_whitespace().skip(11);
        let mut seconds = || {
            let ticks: u64 = fields.next()?.parse().ok()?;
            Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
        };
        Some(Cpu { user: seconds()?, system: seconds()? })
    }

    pub(super) fn since(self, earlier: Cpu) -> Cpu {
        Cpu { user: self.user - earlier.user, system: self.system - earlier.system }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_follow_the_name() {
        let per_second = rustix::param::clock_ticks_per_second();
        let (user, system) = (3 * per_second, 7 * per_second);
        let stat = format!("42 (a) 1 2) S 1 2 3 4 5 6 7 8 9 10 {user} {system} 0 0 20 0\n");
        assert_eq!(Cpu::parse(&stat), Some(Cpu { user: 3.0, system: 7.0 }));
        assert_eq!(Cpu::parse("42 (a) S 1 2"), None);
        assert_eq!(Cpu::parse(""), None);
    }
}
