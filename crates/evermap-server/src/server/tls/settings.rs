//! What the operator decides about encrypted connections.

use std::path::PathBuf;

/// The files and rules of encrypted connections.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// A PEM file with the certificate of the server, followed by those that lead to a known
    /// authority.
    pub certificates: PathBuf,
    /// A PEM file with the private key of the certificate: PKCS #8, PKCS #1 or SEC 1, not
    /// encrypted. RSA of 2048 to 8192 bits, ECDSA over P-256 or P-384, or Ed25519.
    pub key: PathBuf,
    /// A PEM file with the certificates of the authorities that issue the certificates of clients.
    /// Without it, a client that presents a certificate is refused.
    pub client_ca: Option<PathBuf>,
    /// What clients have to present.
    pub client_certificates: ClientCertificates,
    /// The oldest version of the protocol that is accepted.
    pub min_version: TlsVersion,
    /// Whether a client that connects again may continue an earlier session, which saves both
    /// sides the public-key operations. Sessions end when the certificates are loaded again.
    pub session_cache: bool,
}

/// Whether clients have to present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    Ignored,
    /// They may connect without one. If they present one, it must be valid.
    Requested,
    /// They must present one that is valid.
    Required,
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}
