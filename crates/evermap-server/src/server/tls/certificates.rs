//! Reads certificates, keys and authorities from files, for the handshakes of TLS.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};

use super::keys::{PrivateKey, is_supported, pem_error};
use super::nobody::Nobody;
use super::settings::{ClientCertificates, TlsSettings, TlsVersion};
use super::supported::{SUPPORTED, is_old_version};

/// What handshakes need, for each of the things that clients may have to present.
#[derive(Debug)]
pub(super) struct Configurations {
    ignored: Arc<ServerConfig>,
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
        let identity = Identity::read(settings, &provider)?;
        let authorities = match &settings.client_ca {
            None => None,
            Some(path) => Some((path.as_path(), Arc::new(read_authorities(path, &provider)?))),
        };
        let verified = |required| {
            let verifier = match &authorities {
                Some((path, authorities)) => verifier(path, authorities, &provider, required)?,
                None => Arc::new(Nobody::new(&provider, required)),
            };
            identity.configuration(settings, &provider, Some(verifier))
        };
        Ok(Configurations {
            ignored: identity.configuration(settings, &provider, None)?,
            requested: verified(false)?,
            required: verified(true)?,
        })
    }

    /// Returns what a handshake needs.
    pub(super) fn of(&self, clients: ClientCertificates) -> &Arc<ServerConfig> {
        match clients {
            ClientCertificates::Ignored => &self.ignored,
            ClientCertificates::Requested => &self.requested,
            ClientCertificates::Required => &self.required,
        }
    }
}

/// The certificates and the key of the server.
struct Identity(Arc<CertifiedKey>);

impl Identity {
    fn read(settings: &TlsSettings, provider: &CryptoProvider) -> io::Result<Self> {
        let certificates = read_certificates(&settings.certificates)?;
        let key = read(&settings.key)
            .and_then(|text| PrivateKey::parse(&text)?.load(provider))
            .map_err(|error| name(&settings.key, error))?;
        let identity = CertifiedKey::new(certificates, key);
        match identity.keys_match() {
            // What the library does not read, clients may.
            Err(error) if !is_old_version(&error) => {
                let files = (settings.certificates.display(), settings.key.display());
                Err(io::Error::other(format!("{} with the key {}: {error}", files.0, files.1)))
            }
            _ => Ok(Identity(Arc::new(identity))),
        }
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
        let resolver = SingleCertAndKey::from(self.0.clone());
        let mut configuration = builder.with_cert_resolver(Arc::new(resolver));
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

fn read_authorities(path: &Path, provider: &CryptoProvider) -> io::Result<RootCertStore> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        authorities.add(certificate).map_err(|error| name(path, io::Error::other(error)))?;
    }
    // A bundle may contain others too.
    let mut keys = authorities.roots.iter().map(|root| &root.subject_public_key_info);
    if !keys.any(|key| is_supported(key, provider)) {
        let what = format!("no certificate has a key that can be used; supported are {SUPPORTED}");
        return Err(name(path, io::Error::other(what)));
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

fn name(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
