//! The type of what can fail.

/// A result whose error is only shown.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
