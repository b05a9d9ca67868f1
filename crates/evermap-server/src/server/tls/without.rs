//! A build without encryption: there are no certificates, and so no encrypted connections.

use std::io;
use std::time::Duration;

use super::settings::{ClientCertificates, TlsSettings};
use crate::server::socket::{Received, Socket};

/// Loaded certificates, of which there are none.
#[derive(Clone, Debug)]
pub enum Tls {}

impl Tls {
    /// Returns an error, because this build has no encryption.
    ///
    /// # Errors
    /// Always `Unsupported`.
    pub fn load(_settings: TlsSettings) -> io::Result<Tls> {
        let what = "this program was built without TLS: build it with the feature `tls`";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Loads the certificates again.
    ///
    /// # Errors
    /// Never, because there is no value of this type.
    pub fn reload(&self) -> io::Result<()> {
        match *self {}
    }

    /// Returns the settings.
    pub fn settings(&self) -> &TlsSettings {
        match *self {}
    }

    /// Returns the time since the certificates were loaded.
    pub fn age(&self) -> Duration {
        match *self {}
    }

    pub(in crate::server) fn last_failure(&self) -> Option<&'static str> {
        match *self {}
    }

    pub(in crate::server) fn accept(
        &self,
        _socket: Socket,
        _clients: ClientCertificates,
    ) -> io::Result<TlsStream> {
        match *self {}
    }
}

/// An encrypted connection, of which there are none.
pub(in crate::server) enum TlsStream {}

impl TlsStream {
    pub(in crate::server) fn read(&mut self, _buffer: &mut [u8]) -> io::Result<Received> {
        match *self {}
    }

    pub(in crate::server) fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(in crate::server) fn send_taken(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub(in crate::server) fn unsent_len(&self) -> usize {
        match *self {}
    }

    pub(in crate::server) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(in crate::server) fn send_end(&mut self) {
        match *self {}
    }

    pub(in crate::server) fn socket_mut(&mut self) -> &mut Socket {
        match *self {}
    }
}
