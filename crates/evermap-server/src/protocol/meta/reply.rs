//! The flags of replies.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::request::Plan;
use crate::number;

/// Appends ` ` and a flag with a number.
pub(super) fn append_number(flag: u8, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', flag]);
    number::append(number, out);
}

/// Appends the remaining time of an item that expires at `expiry`, in seconds, or -1 if it never
/// does.
pub(super) fn append_ttl(expiry: u32, now: u32, out: &mut Vec<u8>) {
    match expiry {
        0 => out.extend_from_slice(b" t-1"),
        _ => append_number(b't', u64::from(expiry.saturating_sub(now)), out),
    }
}

/// Appends a flag that repeats a part of the request, if this is one.
pub(super) fn append_repeated(plan: &Plan<'_>, flag: u8, token: &[u8], out: &mut Vec<u8>) {
    match flag {
        b'O' => {
            out.extend_from_slice(b" O");
            out.extend_from_slice(token);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            out.extend_from_slice(plan.key_word);
            if plan.has(b'b') {
                out.extend_from_slice(b" b");
            }
        }
        _ => {}
    }
}

/// Appends a reply that says nothing of an item: a code, the flags that repeat parts of the
/// request, and the line end.
pub(super) fn append_code(code: &[u8], plan: &Plan<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(code);
    for (flag, token) in plan.flags() {
        append_repeated(plan, flag, token, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a key, in base64 if it could not be a word of a line. Returns `true` if it is.
pub(in crate::protocol) fn append_key(key: &[u8], out: &mut Vec<u8>) -> bool {
    let is_word = key.iter().all(|&byte| byte > b' ' && byte != 0x7f);
    let text = if is_word { Cow::Borrowed(key) } else { STANDARD.encode(key).into_bytes().into() };
    out.extend_from_slice(&text);
    !is_word
}
