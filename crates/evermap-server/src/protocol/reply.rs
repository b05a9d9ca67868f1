//! Replies of the text protocol.

use std::fmt::Display;
use std::io::Write;

use crate::cache::{CacheError, Item};
use crate::number;

/// Appends the line and value of one hit: `VALUE key flags length [cas]`.
pub(super) fn value(key: &[u8], item: &Item<'_>, with_cas: bool, out: &mut Vec<u8>) {
    // Words, numbers and line ends around key and value take at most this many bytes.
    const AROUND: usize = 64;
    let len = item.value.len();
    out.reserve(key.len() + len + AROUND);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    number::append(u64::from(item.flags), out);
    out.push(b' ');
    number::append(len as u64, out);
    if with_cas {
        out.push(b' ');
        number::append(item.cas, out);
    }
    out.extend_from_slice(b"\r\n");
    let end = out.len() + len;
    item.value.append_to(out);
    debug_assert_eq!(out.len(), end, "a value appends as many bytes as it has");
    out.extend_from_slice(b"\r\n");
}

/// Appends `STAT name value`.
pub(super) fn stat(name: &str, value: &dyn Display, out: &mut Vec<u8>) {
    write!(out, "STAT {name} {value}\r\n").expect("a vector takes everything");
}

/// Appends what a client is told when the store fails: one line, whatever the error's text.
pub(super) fn cache_error(error: &CacheError, out: &mut Vec<u8>) {
    const TEXT_MAX: usize = 512;
    out.extend_from_slice(b"SERVER_ERROR ");
    let text = error.to_string();
    let printable = text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte });
    out.extend(printable.take(TEXT_MAX));
    out.extend_from_slice(b"\r\n");
}
