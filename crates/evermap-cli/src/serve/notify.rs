//! Messages to the service manager.
//!
//! `NOTIFY_SOCKET` is the address of a datagram socket that takes lines like `READY=1`. Without the
//! variable nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use evermap_server::Server;
use rustix::time::{ClockId, clock_gettime};

/// Where messages go.
pub(super) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// Returns what the environment says.
    pub(super) fn from_environment() -> Self {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            use std::os::unix::ffi::OsStrExt;
            match name.as_bytes() {
                // A name that does not belong to a file system.
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
                [b'/', ..] => SocketAddr::from_pathname(&name).ok(),
                _ => None,
            }
        });
        let socket = || UnixDatagram::unbound().ok();
        Manager(address.and_then(|address| Some((socket()?, address))))
    }

    /// Sends lines. A manager that does not receive them acts as if the process had not spoken.
    fn send(&self, lines: &str) {
        if let Manager(Some((socket, address))) = self {
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }

    /// Says that clients can connect.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// Says that files are being read again. [`ready`](Self::ready) says that this is done.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\n"));
    }

    /// Says that the process will end.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    /// Tells the manager in intervals that the server works, if it has asked for that, until the
    /// sender of `stop` is dropped. A manager that hears nothing restarts the server.
    pub(super) fn keep_informed(&self, server: &Server, stop: &Receiver<()>) {
        let Some(interval) = watchdog_interval() else {
            return;
        };
        // Twice, so that a delay of one message does not matter.
        while stop.recv_timeout(interval / 2) == Err(RecvTimeoutError::Timeout) {
            if server.is_responsive() {
                self.send("WATCHDOG=1\n");
            }
        }
    }
}

/// Returns the interval in which the service manager expects messages, or `None` if it expects
/// none from this process.
fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_for_another =
        number("WATCHDOG_PID").is_some_and(|process| process != u64::from(std::process::id()));
    let interval = Duration::from_micros(number("WATCHDOG_USEC")?);
    (!is_for_another && !interval.is_zero()).then_some(interval)
}
