//! Encrypted connections.
//!
//! With the feature `tls`, connections are encrypted by `rustls`. Without it, loading certificates
//! is an error, so that there are no encrypted connections.

#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "tls")]
mod failures;
#[cfg(feature = "tls")]
mod keys;
#[cfg(feature = "tls")]
mod loaded;
#[cfg(feature = "tls")]
mod nobody;
mod settings;
#[cfg(feature = "tls")]
mod stream;
#[cfg(feature = "tls")]
mod supported;
#[cfg(not(feature = "tls"))]
mod without;

#[cfg(feature = "tls")]
pub use loaded::Tls;
pub use settings::{ClientCertificates, TlsSettings, TlsVersion};
#[cfg(feature = "tls")]
pub(super) use stream::TlsStream;
#[cfg(not(feature = "tls"))]
pub use without::Tls;
#[cfg(not(feature = "tls"))]
pub(super) use without::TlsStream;
