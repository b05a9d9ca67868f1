//! What is wrong with an option.

use std::fmt::Display;
use std::str::FromStr;

/// An option that cannot be understood. The text is one line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Wrong(pub(super) String);

/// Parses a number within bounds.
pub(super) fn number<T: FromStr + PartialOrd + Display>(
    letter: impl Display,
    text: &str,
    min: T,
    max: T,
) -> Result<T, Wrong> {
    match text.parse::<T>() {
        Ok(number) if (&min..=&max).contains(&&number) => Ok(number),
        _ => Err(Wrong(format!("-{letter} {text}: must be a number from {min} to {max}"))),
    }
}
