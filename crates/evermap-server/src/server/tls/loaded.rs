//! Certificates that can be loaded again while connections use them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ServerConnection;

use super::certificates::Configurations;
use super::failures::Failures;
use super::settings::{ClientCertificates, TlsSettings};
use super::stream::TlsStream;
use crate::server::socket::Socket;

/// Loaded certificates. Clones share them.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: TlsSettings,
    /// What the next handshake uses. Connections keep what they began with.
    current: Mutex<Current>,
    failures: Arc<Failures>,
}

#[derive(Debug)]
struct Current {
    configurations: Configurations,
    loaded: Instant,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The message names the file and says what is wrong with it: it cannot be read, it has no
    /// certificate or key, the key is not that of the certificate, or of a kind that is not
    /// supported.
    ///
    /// Without an authority that issues the certificates of clients, every certificate that one
    /// presents is refused.
    pub fn load(settings: TlsSettings) -> io::Result<Tls> {
        let current = Current::load(&settings)?;
        Ok(Tls(Arc::new(Inner {
            settings,
            current: Mutex::new(current),
            failures: Arc::default(),
        })))
    }

    /// Reads the files again. Open connections are not affected; later ones use what was read.
    ///
    /// # Errors
    /// As [`load`](Tls::load). What was loaded before stays in use.
    pub fn reload(&self) -> io::Result<()> {
        let current = Current::load(&self.0.settings)?;
        *self.current() = current;
        Ok(())
    }

    /// Returns the settings.
    pub fn settings(&self) -> &TlsSettings {
        &self.0.settings
    }

    /// Returns the time since the certificates were loaded.
    pub fn age(&self) -> Duration {
        self.current().loaded.elapsed()
    }

    /// Begins to communicate over a new connection.
    pub(in crate::server) fn accept(
        &self,
        socket: Socket,
        clients: ClientCertificates,
    ) -> io::Result<TlsStream> {
        let configuration = self.current().configurations.of(clients).clone();
        let connection = ServerConnection::new(configuration).map_err(io::Error::other)?;
        Ok(TlsStream::new(socket, connection, self.0.failures.clone()))
    }

    /// Returns a word that says why the last handshake failed that did.
    pub(in crate::server) fn last_failure(&self) -> Option<&'static str> {
        self.0.failures.last()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn load(settings: &TlsSettings) -> io::Result<Self> {
        let configurations = Configurations::load(settings)?;
        Ok(Current { configurations, loaded: Instant::now() })
    }
}
