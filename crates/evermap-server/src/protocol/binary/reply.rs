//! The layout of reply packets.

use std::fmt::Display;

use super::packet::{HEADER_LEN, REPLY, Tag};
use crate::cache::{CacheError, Item};

/// The outcome that a reply reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Success = 0x00,
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    InvalidArguments = 0x04,
    NotStored = 0x05,
    NonNumeric = 0x06,
    AuthFailure = 0x20,
    AuthContinue = 0x21,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
    InternalError = 0x84,
}

impl Status {
    /// Returns the text that is the body of a reply with this status, if the command has no other.
    /// The texts are memcached's.
    fn text(self) -> &'static str {
        match self {
            Status::Success | Status::AuthContinue => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NonNumeric => "Non-numeric server-side value for incr or decr",
            Status::AuthFailure => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::InternalError => "Internal error",
        }
    }
}

/// Returns a header, for a body of these lengths.
fn header(tag: Tag, status: Status, lens: &Lens, cas: u64) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = REPLY;
    header[1] = tag.opcode;
    header[2..4].copy_from_slice(&lens.key.to_be_bytes());
    header[4] = lens.extras;
    header[6..8].copy_from_slice(&(status as u16).to_be_bytes());
    header[8..12].copy_from_slice(&lens.body.to_be_bytes());
    header[12..16].copy_from_slice(&tag.opaque);
    header[16..].copy_from_slice(&cas.to_be_bytes());
    header
}

/// The lengths in a header, in bytes.
#[derive(Default)]
struct Lens {
    extras: u8,
    key: u16,
    /// Extras, key and value together.
    body: u32,
}

/// Appends a reply whose body has only a value, which is short.
pub(super) fn body(tag: Tag, status: Status, value: &[u8], cas: u64, out: &mut Vec<u8>) {
    let lens = Lens { body: value.len() as u32, ..Lens::default() };
    out.extend_from_slice(&header(tag, status, &lens, cas));
    out.extend_from_slice(value);
}

/// Appends a reply without a body: the command succeeded.
pub(super) fn success(tag: Tag, cas: u64, out: &mut Vec<u8>) {
    body(tag, Status::Success, b"", cas, out);
}

/// Appends a reply with a status, and its text as the body.
pub(super) fn error(tag: Tag, status: Status, out: &mut Vec<u8>) {
    body(tag, status, status.text().as_bytes(), 0, out);
}

/// Appends the reply that a key was not found, with the key as the body.
pub(super) fn missing_key(tag: Tag, key: &[u8], out: &mut Vec<u8>) {
    let lens = Lens { key: key.len() as u16, body: key.len() as u32, extras: 0 };
    out.extend_from_slice(&header(tag, Status::NotFound, &lens, 0));
    out.extend_from_slice(key);
}

/// Appends a found item: its flags, `key` (empty if the client does not want it) and the value.
///
/// # Errors
///
/// If the value is damaged, or there is no memory for the reply. `out` may have a part of the reply
/// then, which the caller removes.
pub(super) fn item(
    tag: Tag,
    key: &[u8],
    item: &Item<'_>,
    out: &mut Vec<u8>,
) -> Result<(), CacheError> {
    const FLAGS_LEN: usize = 4;
    let len = item.value.len();
    let body = len.saturating_add(FLAGS_LEN + key.len());
    // The length is not verified yet, so this must not end the process if there is no memory.
    let memory = out.try_reserve(body.saturating_add(HEADER_LEN));
    let (Ok(()), Ok(body)) = (memory, u32::try_from(body)) else {
        return Err(CacheError::Other("out of memory for a reply".into()));
    };
    let lens = Lens { extras: FLAGS_LEN as u8, key: key.len() as u16, body };
    out.extend_from_slice(&header(tag, Status::Success, &lens, item.cas));
    out.extend_from_slice(&item.flags.to_be_bytes());
    out.extend_from_slice(key);
    let end = out.len() + len;
    item.value.append_to(out)?;
    debug_assert_eq!(out.len(), end, "`append_to` appends `len` bytes");
    Ok(())
}

/// Appends the reply to a touch: the flags of the item.
pub(super) fn touched(tag: Tag, flags: u32, cas: u64, out: &mut Vec<u8>) {
    let lens = Lens { extras: 4, key: 0, body: 4 };
    out.extend_from_slice(&header(tag, Status::Success, &lens, cas));
    out.extend_from_slice(&flags.to_be_bytes());
}

/// Appends one statistic.
pub(super) fn stat(tag: Tag, name: &str, value: &dyn Display, out: &mut Vec<u8>) {
    stat_bytes(tag, name.as_bytes(), value.to_string().as_bytes(), out);
}

/// Appends one statistic, whose value may be any bytes.
pub(super) fn stat_bytes(tag: Tag, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let (key, body) = (name.len() as u16, (name.len() + value.len()) as u32);
    let lens = Lens { extras: 0, key, body };
    out.extend_from_slice(&header(tag, Status::Success, &lens, 0));
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

/// Appends the reply to a request that failed in the store.
pub(super) fn cache_error(tag: Tag, failure: &CacheError, out: &mut Vec<u8>) {
    const TEXT_MAX: usize = 512;
    match failure {
        CacheError::TooLarge => error(tag, Status::TooLarge, out),
        CacheError::OutOfMemory => error(tag, Status::OutOfMemory, out),
        // memcached has no such errors. The text says more than the one of the status.
        _ => {
            let text = failure.to_string();
            let text = &text.as_bytes()[..text.len().min(TEXT_MAX)];
            body(tag, Status::InternalError, text, 0, out);
        }
    }
}
