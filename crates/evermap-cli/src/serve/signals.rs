//! The signals that stop a server and make it read files again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The signals that arrive.
pub(super) struct ServerSignals(Signals);

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// To stop: SIGINT, SIGTERM, and SIGUSR1 as in memcached.
    Stop,
    /// To read certificates and passwords again: SIGHUP.
    Reload,
}

impl ServerSignals {
    /// Installs the handlers. The first SIGINT or SIGTERM shuts the server down cleanly; the second
    /// one, of either kind, ends the process immediately, which loses no acknowledged item.
    pub(super) fn install() -> Result<Self, Failure> {
        let stopping = Arc::new(AtomicBool::new(false));
        let register = || -> io::Result<Signals> {
            for signal in [SIGINT, SIGTERM] {
                // The order matters: at the first signal the flag must not be set yet.
                let code = 128 + signal;
                signal_hook::flag::register_conditional_shutdown(signal, code, stopping.clone())?;
                signal_hook::flag::register(signal, stopping.clone())?;
            }
            Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGHUP])
        };
        let signals = register();
        signals
            .map(ServerSignals)
            .map_err(|source| Failure::Io { what: "cannot handle signals".into(), source })
    }

    /// Waits for the next signal. Returns [`Request::Stop`] if none can arrive any more.
    pub(super) fn next(&mut self) -> Request {
        match self.0.forever().next() {
            Some(SIGHUP) => Request::Reload,
            _ => Request::Stop,
        }
    }
}
