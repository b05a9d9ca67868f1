//! Encrypted connections to a server.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};

use super::connection::Stream;
use crate::failure::Failure;

/// Where systems keep the authorities that they trust.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How connections to a server are encrypted.
#[derive(clap::Args)]
pub(super) struct TlsArguments {
    /// Use TLS; the system's authorities must have issued the certificate of the server, or those
    /// of --tls-ca
    #[arg(long)]
    tls: bool,
    /// Certificates of the authorities that issue the certificate of the server, or that
    /// certificate itself, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// Name in the certificate of the server, if it is not the host in ADDRESS
    #[arg(long, value_name = "NAME", requires = "tls")]
    tls_name: Option<String>,
    /// Certificate to present to the server, with those that lead to its authority, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate to present, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// What a handshake needs.
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsArguments {
    /// Reads the files. Returns `None` if connections are not encrypted.
    pub(super) fn read(&self, address: &str) -> Result<Option<Tls>, Failure> {
        if !self.tls {
            return Ok(None);
        }
        if address.contains('/') {
            return Err(Failure::other("unix sockets do not use TLS; leave out --tls"));
        }
        let host = self.tls_name.as_deref().unwrap_or_else(|| host_of(address));
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Failure::other(format!("\"{host}\" is no name of a server")))?;
        Ok(Some(Tls { config: Arc::new(self.configuration()?), name }))
    }

    fn configuration(&self) -> Result<ClientConfig, Failure> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::other(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.verifier(&provider)?));
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let parsed = PrivateKeyDer::from_pem_file(key).map_err(|error| named(key, error))?;
        builder
            .with_client_auth_cert(read_certificates(certificate)?, parsed)
            .map_err(|error| named(certificate, error))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Verifier, Failure> {
        let system = || SYSTEM.iter().map(Path::new).find(|path| path.exists());
        let path = self.tls_ca.as_deref().or_else(system).ok_or_else(|| {
            Failure::other("this system has no list of authorities; name one with --tls-ca")
        })?;
        let mut certificates = read_certificates(path)?;
        let mut roots = RootCertStore::empty();
        // A list of the system may have some that are too old to be understood.
        roots.add_parsable_certificates(certificates.iter().cloned());
        let issued = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .map_err(|error| named(path, error))?;
        if self.tls_ca.is_none() {
            certificates.clear();
        }
        Ok(Verifier { issued, pinned: certificates })
    }
}

impl Tls {
    /// Prepares a handshake, which takes place at the first request.
    pub(super) fn connect(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let connection = ClientConnection::new(self.config.clone(), self.name.clone())
            .map_err(io::Error::other)?;
        Ok(Box::new(StreamOwned::new(connection, stream)))
    }
}

/// Returns the host in a host and port.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    match read().map_err(|error| named(path, error))? {
        none if none.is_empty() => Err(Failure::other(format!(
            "{}: there is no certificate in PEM format",
            path.display()
        ))),
        certificates => Ok(certificates),
    }
}

fn named(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::other(format!("{}: {error}", path.display()))
}

/// Accepts certificates that an authority has issued, and those that are known themselves: one
/// that is signed by itself is often marked as that of an authority, which no server may present.
#[derive(Debug)]
struct Verifier {
    issued: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        status: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.pinned.iter().any(|pinned| pinned == certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        self.issued.verify_server_cert(certificate, others, name, status, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.issued.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.issued.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn the_host_is_what_is_before_the_port() {
        for (address, host) in
            [("cache.test:11211", "cache.test"), ("[::1]:1", "::1"), ("10.0.0.1:1", "10.0.0.1")]
        {
            assert_eq!(host_of(address), host);
        }
    }
}
