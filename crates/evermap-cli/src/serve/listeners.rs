//! Taking the addresses of a server before its store is opened.
//!
//! So an address in use is reported early, and no file is created. But if the store is in use too,
//! both may belong to a server that is exiting. Opening the store waits for that one, and the
//! addresses are taken afterwards.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use evermap_server::{ListenAddress, Listener};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use super::endpoints::{Encryption, Endpoint};
use crate::failure::Failure;

/// The delay before the next attempt to take the addresses.
const RETRY_DELAY: Duration = Duration::from_millis(2);

/// The addresses that a server asks for.
pub(super) struct Addresses {
    pub(super) endpoints: Vec<Endpoint>,
    /// Whether there is a certificate, so that connections use TLS unless their address says
    /// otherwise.
    pub(super) has_certificate: bool,
    /// The user and the group to which unix sockets belong, if they are not those of the process.
    pub(super) owner: Option<(u32, u32)>,
    /// The name with which messages begin.
    pub(super) program: &'static str,
    /// How to choose other addresses.
    pub(super) hint: &'static str,
}

/// What becomes of an address that is in use, if its host has others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InUse {
    /// It is an error: a server that is exiting may have the address.
    Fails,
    /// The others are served, as by memcached.
    PassedOver,
}

impl Addresses {
    /// Takes the addresses before the store at `path` is opened.
    ///
    /// Returns `None` if both an address and the store are in use: they may belong to a server that
    /// is exiting, and opening the store waits for it.
    pub(super) fn take(&self, path: Option<&Path>) -> Result<Option<Vec<Listener>>, Failure> {
        // An exiting process releases its file shortly before its ports.
        const TIMEOUT: Duration = Duration::from_millis(500);
        let began = Instant::now();
        loop {
            match self.bind_all(InUse::Fails) {
                Ok(listeners) => return Ok(Some(listeners)),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    return Err(self.failure(error));
                }
                Err(_) if path.is_some_and(is_locked) => return Ok(None),
                Err(_) if began.elapsed() >= TIMEOUT => {
                    let taken = self.bind_all(InUse::PassedOver);
                    return taken.map(Some).map_err(|error| self.failure(error));
                }
                Err(_) => std::thread::sleep(RETRY_DELAY),
            }
        }
    }

    /// Takes the addresses after an exiting server released the store, and waits until it released
    /// them.
    pub(super) fn take_after_predecessor(&self) -> Result<Vec<Listener>, Failure> {
        const TIMEOUT: Duration = Duration::from_secs(5);
        let began = Instant::now();
        loop {
            let taken = match self.bind_all(InUse::Fails) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    if began.elapsed() < TIMEOUT {
                        std::thread::sleep(RETRY_DELAY);
                        continue;
                    }
                    self.bind_all(InUse::PassedOver)
                }
                taken => taken,
            };
            return taken.map_err(|error| self.failure(error));
        }
    }

    /// Takes addresses of all endpoints, or none.
    fn bind_all(&self, in_use: InUse) -> io::Result<Vec<Listener>> {
        let mut listeners = Vec::new();
        for endpoint in &self.endpoints {
            match endpoint {
                Endpoint::Tcp { addresses, encryption } => {
                    self.bind_host(addresses, *encryption, in_use, &mut listeners)?;
                }
                Endpoint::Unix { path, mode } => {
                    listeners.push(Listener::unix_of(path, *mode, self.owner)?);
                }
            }
        }
        Ok(listeners)
    }

    /// Takes every address of a host. An address whose family the machine does not have is passed
    /// over, if there is another one, and so may be one that is in use.
    fn bind_host(
        &self,
        addresses: &[SocketAddr],
        encryption: Encryption,
        in_use: InUse,
        listeners: &mut Vec<Listener>,
    ) -> io::Result<()> {
        let (mut port, mut missing, mut taken) = (None, None, Vec::new());
        for &address in addresses {
            // If the system chooses the port, it is the same for all addresses of the host.
            let address = match (port, address.port()) {
                (Some(port), 0) => SocketAddr::new(address.ip(), port),
                _ => address,
            };
            match Listener::tcp(address) {
                Ok(listener) => {
                    port = listener.address().tcp().map(|address| address.port());
                    listeners
                        .push(listener.with_security(encryption.security(self.has_certificate)));
                }
                Err(error) if is_without_family(&error) => missing = Some(error),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && in_use == InUse::PassedOver =>
                {
                    taken.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        if port.is_none()
            && let Some(error) = taken.pop().or(missing)
        {
            return Err(error);
        }
        for error in taken {
            let program = self.program;
            // If standard error is closed, `stats settings` lists what is served.
            let _ = writeln!(
                io::stderr(),
                "{program}: warning: {error}; only the other addresses of this host are served"
            );
        }
        Ok(())
    }

    /// Returns the failure to report, with what to do.
    pub(super) fn failure(&self, error: io::Error) -> Failure {
        Failure::Other(match error.kind() {
            io::ErrorKind::AddrInUse => {
                // The listeners are there before the metrics.
                let is_of_metrics = error.to_string().contains(" for metrics: ");
                let hint = if is_of_metrics { "--metrics" } else { self.hint };
                format!("{error}; stop the program that uses it, or choose another with {hint}")
            }
            _ => error.to_string(),
        })
    }
}

/// Returns `true` if the machine has no addresses of the family, as without IPv6.
fn is_without_family(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
}

/// Returns `true` if another process has the store at `path` open.
fn is_locked(path: &Path) -> bool {
    // If the lock is acquired, it is released with the file, at the end of the expression.
    File::open(path).is_ok_and(|file| {
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared)
            .is_err_and(|error| matches!(error, Errno::AGAIN | Errno::ACCESS))
    })
}

/// Returns the warning about listeners that anyone in the network can use, or `None` if there are
/// none.
pub(super) fn exposure(listeners: &[Listener], has_passwords: bool) -> Option<String> {
    use evermap_server::server::Security::Plain;
    let is_exposed =
        |listener: &&Listener| listener.security() == Plain && !listener.address().is_local();
    let exposed: Vec<String> = listeners
        .iter()
        .filter(is_exposed)
        .map(|listener| listener.address().to_string())
        .collect();
    (!has_passwords && !exposed.is_empty()).then(|| {
        format!(
            "warning: {} can be reached from other machines without TLS or a password: any \
             client there can read, change and flush all items",
            exposed.join(", ")
        )
    })
}

/// Removes the endpoints that are addresses of inherited listeners.
pub(super) fn without_inherited(endpoints: &mut Vec<Endpoint>, inherited: &[Listener]) {
    let is_inherited =
        |address: &ListenAddress| inherited.iter().any(|listener| listener.address() == address);
    endpoints.retain_mut(|endpoint| match endpoint {
        Endpoint::Tcp { addresses, .. } => {
            addresses.retain(|&address| !is_inherited(&ListenAddress::Tcp(address)));
            !addresses.is_empty()
        }
        Endpoint::Unix { path, .. } => !is_inherited(&ListenAddress::Unix(path.clone())),
    });
}
