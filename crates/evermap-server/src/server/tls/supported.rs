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
