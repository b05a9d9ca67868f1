//! From files to what a handshake needs.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};

use super::settings::{ClientCertificates, TlsSettings, TlsVersion};

/// What handshakes need, for each of the things that clients may have to present.
#[derive(Debug)]
pub(super) struct Configurations {
    ignored: Arc<ServerConfig>,
    /// `None` if no authority is known that issues the certificates of clients.
    verified: Option<Verified>,
}

#[derive(Debug)]
struct Verified {
    requested: Arc<ServerConfig>,
    required: Arc<ServerConfig>,
}

impl Configurations {
    /// Reads the files.
    ///
    /// # Errors
    /// The message names the file and says what is wrong with it.
    pub(super) fn load(settings: &TlsSettings) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let identity = Identity::read(settings)?;
        let build = |verifier| identity.configuration(settings, &provider, verifier);
        let verified = match &settings.client_ca {
            None => None,
            Some(path) => {
                let authorities = Arc::new(read_authorities(path)?);
                Some(Verified {
                    requested: build(Some(verifier(path, &authorities, &provider, false)?))?,
                    required: build(Some(verifier(path, &authorities, &provider, true)?))?,
                })
            }
        };
        let configurations = Configurations { ignored: build(None)?, verified };
        configurations.of(settings.client_certificates)?;
        Ok(configurations)
    }

    /// Returns what a handshake needs.
    ///
    /// # Errors
    /// `InvalidInput` if certificates cannot be verified, because no authority is known.
    pub(super) fn of(&self, clients: ClientCertificates) -> io::Result<&Arc<ServerConfig>> {
        match (clients, &self.verified) {
            (ClientCertificates::Ignored, _) => Ok(&self.ignored),
            (ClientCertificates::Requested, Some(verified)) => Ok(&verified.requested),
            (ClientCertificates::Required, Some(verified)) => Ok(&verified.required),
            (_, None) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the certificates of clients cannot be verified without the certificate of the \
                 authority that issues them",
            )),
        }
    }
}

/// The certificates and the key of the server.
struct Identity {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn read(settings: &TlsSettings) -> io::Result<Self> {
        let certificates = read_certificates(&settings.certificates)?;
        let key = read(&settings.key)
            .and_then(|text| PrivateKeyDer::from_pem_slice(&text).map_err(pem_error("private key")))
            .map_err(|error| name(&settings.key, error))?;
        Ok(Identity { certificates, key })
    }

    fn configuration(
        &self,
        settings: &TlsSettings,
        provider: &Arc<CryptoProvider>,
        verifier: Option<Arc<dyn ClientCertVerifier>>,
    ) -> io::Result<Arc<ServerConfig>> {
        let versions = match settings.min_version {
            TlsVersion::V1_2 => &[&TLS13, &TLS12][..],
            TlsVersion::V1_3 => &[&TLS13][..],
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut configuration = builder
            .with_single_cert(self.certificates.clone(), self.key.clone_key())
            .map_err(|error| {
                let files = (settings.certificates.display(), settings.key.display());
                io::Error::other(format!("{} with the key {}: {error}", files.0, files.1))
            })?;
        if !settings.session_cache {
            configuration.session_storage = Arc::new(NoServerSessionStorage {});
            configuration.send_tls13_tickets = 0;
        }
        Ok(Arc::new(configuration))
    }
}

fn verifier(
    path: &Path,
    authorities: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    required: bool,
) -> io::Result<Arc<dyn ClientCertVerifier>> {
    let builder =
        WebPkiClientVerifier::builder_with_provider(authorities.clone(), provider.clone());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| name(path, io::Error::other(error)))
}

fn read_authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        authorities.add(certificate).map_err(|error| name(path, io::Error::other(error)))?;
    }
    Ok(authorities)
}

fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let parse = |text: Vec<u8>| {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match certificates.map_err(pem_error("certificate"))? {
            none if none.is_empty() => Err(pem_error("certificate")(pem::Error::NoItemsFound)),
            certificates => Ok(certificates),
        }
    };
    read(path).and_then(parse).map_err(|error| name(path, error))
}

/// Reads a file of certificates or keys, which are small.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    const LEN_MAX: u64 = 4 << 20;
    let file = std::fs::File::open(path)?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LEN_MAX), &mut text)?;
    Ok(text)
}

/// Returns a function that explains that the text has no usable `what`.
fn pem_error(what: &str) -> impl Fn(pem::Error) -> io::Error {
    move |error| match error {
        pem::Error::NoItemsFound => io::Error::other(format!("there is no {what} in PEM format")),
        error => io::Error::other(format!("cannot be read as PEM: {error}")),
    }
}

fn name(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
