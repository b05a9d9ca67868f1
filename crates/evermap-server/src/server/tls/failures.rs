//! Why handshakes failed.

use std::io::{self, Write};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use rustls::{CertificateError, Error};

use super::supported::{SUPPORTED, is_old_version};

/// The failures of all connections.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: Mutex<Option<Failure>>,
    /// The reasons that standard error has, as bits.
    explained: AtomicU32,
}

impl Failures {
    /// Notes why a handshake failed. Says so on standard error when a reason needs an explanation
    /// and occurs for the first time.
    pub(super) fn note(&self, error: &Error) {
        let failure = Failure::of(error);
        let bit = 1 << failure as u32;
        if let Some(explanation) = failure.explanation()
            && self.explained.fetch_or(bit, Relaxed) & bit == 0
        {
            // If standard error is closed, `stats` still has the reason.
            let _ = writeln!(io::stderr(), "evermap: {explanation}");
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }

    /// Returns a word for the last failure, if there was one.
    pub(super) fn last(&self) -> Option<&'static str> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).map(Failure::word)
    }
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
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
    fn of(error: &Error) -> Failure {
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
    fn word(self) -> &'static str {
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
    fn explanation(self) -> Option<String> {
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
