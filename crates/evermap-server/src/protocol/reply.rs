//! Replies of the text protocol.

use std::fmt::Display;
use std::io::Write;

use crate::cache::{CacheError, Item};
use crate::number;
use crate::watch::PrefixCounts;

/// Appends a found item: the line `VALUE key flags length [cas]`, then the value.
///
/// # Errors
///
/// If the value is damaged, or there is no memory for the reply. `out` may have a part of the line
/// then, which the caller removes.
pub(super) fn value(
    key: &[u8],
    item: &Item<'_>,
    with_cas: bool,
    out: &mut Vec<u8>,
) -> Result<(), CacheError> {
    // An upper bound of the length of the words, numbers and line ends around key and value.
    const FRAME_MAX: usize = 64;
    let len = item.value.len();
    // The length is not verified yet, so this must not end the process if there is no memory.
    out.try_reserve(len.saturating_add(key.len() + FRAME_MAX))
        .map_err(|_| CacheError::Other("out of memory for a reply".into()))?;
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
    item.value.append_to(out)?;
    debug_assert_eq!(out.len(), end, "`append_to` appends `len` bytes");
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends the line `STAT name value`.
pub(super) fn stat(name: &str, value: &dyn Display, out: &mut Vec<u8>) {
    write!(out, "STAT {name} {value}\r\n").expect("writing to a vector cannot fail");
}

/// Appends the line of a prefix in `stats detail dump`.
pub(super) fn prefix(prefix: &[u8], counts: PrefixCounts, out: &mut Vec<u8>) {
    let PrefixCounts { gets, hits, sets, deletes } = counts;
    out.extend_from_slice(b"PREFIX ");
    out.extend_from_slice(prefix);
    write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n")
        .expect("writing to a vector cannot fail");
}

/// Appends the reply to a request that failed in the store: one line, whatever the text of the
/// error contains.
pub(super) fn cache_error(error: &CacheError, out: &mut Vec<u8>) {
    const TEXT_MAX: usize = 512;
    out.extend_from_slice(b"SERVER_ERROR ");
    let text = error.to_string();
    let printable = text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte });
    out.extend(printable.take(TEXT_MAX));
    out.extend_from_slice(b"\r\n");
}
