//! Private keys under any label, and whether public ones can be used.

use std::io;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{Der, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;

use super::supported::SUPPORTED;

/// A private key, of which its own structure says what it is: tools write each of the three kinds
/// under each of the labels.
pub(super) struct PrivateKey(PrivateKeyDer<'static>);

impl PrivateKey {
    /// Reads the first private key of a text in PEM format.
    pub(super) fn parse(text: &[u8]) -> io::Result<Self> {
        let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').map(with_plain_label).collect();
        let text = lines.join(&b'\n');
        let is_in = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
        let is_encrypted = is_in(b"-----BEGIN ENCRYPTED PRIVATE KEY") || is_in(b",ENCRYPTED");
        match PrivatePkcs8KeyDer::from_pem_slice(&text) {
            Ok(_) | Err(_) if is_encrypted => Err(io::Error::other(
                "the private key is encrypted: decrypt it, for example with `openssl pkey`",
            )),
            Ok(key) => {
                let key = PrivateKeyDer::try_from(key.secret_pkcs8_der().to_vec());
                key.map(PrivateKey).map_err(|_| {
                    io::Error::other("the private key is none of PKCS #8, PKCS #1 and SEC 1")
                })
            }
            Err(error) => Err(pem_error("private key")(error)),
        }
    }

    /// Prepares to sign with the key.
    pub(super) fn load(self, provider: &CryptoProvider) -> io::Result<Arc<dyn SigningKey>> {
        provider.key_provider.load_private_key(self.0).map_err(|error| {
            io::Error::other(format!(
                "the private key cannot be used; supported are {SUPPORTED} ({error})"
            ))
        })
    }
}

/// Returns a function that explains that the text has no usable `what`.
pub(super) fn pem_error(what: &str) -> impl Fn(pem::Error) -> io::Error {
    move |error| match error {
        pem::Error::NoItemsFound => io::Error::other(format!("there is no {what} in PEM format")),
        error => io::Error::other(format!("cannot be read as PEM: {error}")),
    }
}

/// Returns the first or last line of a private key without what its label adds.
fn with_plain_label(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii_end();
    match line.strip_suffix(b" PRIVATE KEY-----") {
        Some(b"-----BEGIN ENCRYPTED" | b"-----END ENCRYPTED") => line,
        Some(rest) if rest.starts_with(b"-----BEGIN ") => b"-----BEGIN PRIVATE KEY-----",
        Some(rest) if rest.starts_with(b"-----END ") => b"-----END PRIVATE KEY-----",
        _ => line,
    }
}

/// Returns `true` if signatures of a key can be verified. `key` is the content of a
/// `SubjectPublicKeyInfo`.
pub(super) fn is_supported(key: &Der<'_>, provider: &CryptoProvider) -> bool {
    // The minimum and the maximum length of an RSA modulus, in bytes.
    const MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;
    let Some((SEQUENCE, algorithm, rest)) = element(key) else {
        return false;
    };
    let algorithms = provider.signature_verification_algorithms.all;
    if !algorithms.iter().any(|known| known.public_key_alg_id().as_ref() == algorithm) {
        return false;
    }
    // Only RSA keys are structures. Those of the others are points, and begin otherwise.
    let modulus = || {
        let (_, bits, _) = element(rest)?;
        let (tag, numbers, _) = element(bits.get(1..)?)?;
        let (_, modulus, _) = element(numbers).filter(|_| tag == SEQUENCE)?;
        Some(modulus.strip_prefix(&[0]).unwrap_or(modulus).len())
    };
    let is_rsa = algorithm.windows(RSA.len()).any(|window| window == RSA);
    !is_rsa || modulus().is_some_and(|len| MODULUS.contains(&len))
}

const SEQUENCE: u8 = 0x30;
/// The object identifier of RSA keys.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// Splits the first element of a DER encoding into its tag, its content and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length of the length. No key has 16 MiB.
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_split() {
        assert_eq!(element(&[0x30, 2, 1, 2, 3]), Some((0x30, &[1, 2][..], &[3][..])));
        let mut long = vec![4, 0x82, 1, 0];
        long.resize(4 + 256, 7);
        assert_eq!(element(&long), Some((4, &[7; 256][..], &[][..])));
        for bad in [&[][..], &[1], &[1, 1], &[1, 0x80], &[1, 0x82, 1], &[1, 0x84, 0, 0, 0, 0]] {
            assert_eq!(element(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn labels() {
        for label in ["", "RSA ", "EC ", "ANY "] {
            let line = format!("-----BEGIN {label}PRIVATE KEY-----\r");
            assert_eq!(with_plain_label(line.as_bytes()), b"-----BEGIN PRIVATE KEY-----");
        }
        for line in ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----", "x"] {
            assert_eq!(with_plain_label(line.as_bytes()), line.as_bytes());
        }
    }
}
