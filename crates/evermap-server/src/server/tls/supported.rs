//! What certificates and keys can be used.

use rustls::{CertificateError, Error};

/// The text for errors.
pub(super) const SUPPORTED: &str = "certificates of X.509 version 3, and keys of RSA with 2048 to \
                                    8192 bits, ECDSA over P-256 or P-384, and Ed25519";

/// Returns `true` if a certificate is of X.509 version 1 or 2.
pub(super) fn is_old_version(error: &Error) -> bool {
    // The type of the error is that of a library below.
    matches!(error, Error::InvalidCertificate(CertificateError::Other(other))
        if format!("{other:?}").contains("UnsupportedCertVersion"))
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The client presented none and has to.
    NoCertificate,
    /// No known authority has issued it.
    UnknownIssuer,
    /// It is not valid now.
    Expired,
    OldVersion,
    UnsupportedKey,
    /// Another reason, about the certificate of the client.
    Certificate,
    /// Another reason.
    Protocol,
}

impl Failure {
    pub(super) fn of(error: &Error) -> Failure {
        use CertificateError as C;
        match error {
            Error::NoCertificatesPresented => Failure::NoCertificate,
            _ if is_old_version(error) => Failure::OldVersion,
            Error::InvalidCertificate(error) => match error {
                C::UnknownIssuer => Failure::UnknownIssuer,
                C::Expired | C::ExpiredContext { .. } => Failure::Expired,
                C::NotValidYet | C::NotValidYetContext { .. } => Failure::Expired,
                // A key that is too short looks like a wrong signature.
                C::BadSignature => Failure::UnsupportedKey,
                C::UnsupportedSignatureAlgorithmContext { .. }
                | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                    Failure::UnsupportedKey
                }
                _ => Failure::Certificate,
            },
            _ => Failure::Protocol,
        }
    }

    /// Returns the word that `stats` shows.
    pub(super) fn word(self) -> &'static str {
        match self {
            Failure::NoCertificate => "no_certificate",
            Failure::UnknownIssuer => "unknown_issuer",
            Failure::Expired => "not_valid_now",
            Failure::OldVersion => "old_certificate_version",
            Failure::UnsupportedKey => "unsupported_key",
            Failure::Certificate => "certificate",
            Failure::Protocol => "protocol",
        }
    }

    /// Returns what to say once, because a client that presents a good certificate is refused.
    pub(super) fn explanation(self) -> Option<String> {
        let what = match self {
            Failure::OldVersion => "is of an old version",
            Failure::UnsupportedKey => {
                "has a key or a signature that cannot be verified, or that of its authority has"
            }
            _ => return None,
        };
        Some(format!(
            "a client was refused because its certificate {what}; supported are {SUPPORTED}"
        ))
    }
}
