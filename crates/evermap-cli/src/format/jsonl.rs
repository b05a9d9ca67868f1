//! One JSON object per line.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evermap::Item;
use serde::{Deserialize, Serialize};

use super::Record;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    key: Bytes<'a>,
    value: Bytes<'a>,
    #[serde(default, skip_serializing_if = "is_zero")]
    flags: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    expires_at: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    marks: u32,
}

/// Bytes, which are a JSON string only if they are valid UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a key or value is a string, or {\"base64\": \"...\"}")]
enum Bytes<'a> {
    Text(Cow<'a, str>),
    Base64 { base64: Cow<'a, str> },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl<'a> Bytes<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Bytes::Text(text.into()),
            Err(_) => Bytes::Base64 { base64: STANDARD.encode(bytes).into() },
        }
    }

    fn decode(self) -> Result<Vec<u8>, String> {
        match self {
            Bytes::Text(text) => Ok(text.into_owned().into_bytes()),
            Bytes::Base64 { base64 } => {
                STANDARD.decode(&*base64).map_err(|error| format!("base64: {error}"))
            }
        }
    }
}

/// Parses a line.
pub(super) fn parse(line: &[u8]) -> Result<Record, String> {
    let line: Line<'_> = serde_json::from_slice(line).map_err(|error| {
        // The line number of the error is always 1, because the input is one line.
        error.to_string().replace(" at line 1 column ", " at column ")
    })?;
    let meta = super::meta(line.flags, line.expires_at).with_marks(super::marks(line.marks)?);
    Ok(Record { key: line.key.decode()?, value: line.value.decode()?, meta })
}

/// Appends a record as a line.
pub(super) fn append(item: &Item<'_>, out: &mut Vec<u8>) {
    let Item { key, value, flags, .. } = *item;
    let (expires_at, marks) = (super::expiry(item), u32::from(item.meta().marks().bits()));
    let line = Line { key: Bytes::new(key), value: Bytes::new(value), flags, expires_at, marks };
    serde_json::to_writer(&mut *out, &line)
        .expect("writing strings and numbers to a vector cannot fail");
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_lines() {
        for (line, key, value, meta) in [
            (r#"{"key":"k","value":"v"}"#, &b"k"[..], &b"v"[..], (0, 0)),
            (r#" { "value" : "v\n\u00e9" , "key" : "" } "#, b"", "v\n\u{e9}".as_bytes(), (0, 0)),
            (r#"{"key":{"base64":"/w=="},"value":{"base64":""}}"#, b"\xff", b"", (0, 0)),
            (r#"{"key":"k","value":"v","flags":7,"expires_at":9}"#, b"k", b"v", (7, 9)),
        ] {
            let meta = crate::format::meta(meta.0, meta.1);
            let expected = Record { key: key.into(), value: value.into(), meta };
            assert_eq!(parse(line.as_bytes()), Ok(expected), "{line}");
        }
    }

    #[test]
    fn invalid_lines() {
        for (line, reason) in [
            ("", "EOF"),
            ("k\tv", "expected"),
            (r#"{"key":"k"}"#, "missing field `value`"),
            (r#"{"key":1,"value":"v"}"#, "a string, or {\"base64\""),
            (r#"{"key":"k","value":{"base64":"?"}}"#, "base64: "),
            (r#"{"key":"k","value":{"base32":"A"}}"#, "a string, or {\"base64\""),
            (r#"{"key":"k","value":"v","flag":1}"#, "unknown field `flag`"),
            (r#"{"key":"k","value":"v","flags":-1}"#, "invalid value"),
            (r#"{"key":"k","value":"v","marks":8}"#, "marks 8: must be 0 to 7"),
            (r#"{"key":"k","value":"v"} {}"#, "trailing characters at column"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
        assert!(parse(b"{\"key\":\"\xff\",\"value\":\"\"}").is_err());
    }

    #[test]
    fn bytes_that_are_not_utf8_are_base64() {
        let mut out = Vec::new();
        append(&Item::new(b"k", b"\xff", 1, crate::format::meta(1, 0)), &mut out);
        let expected = "{\"key\":\"k\",\"value\":{\"base64\":\"/w==\"},\"flags\":1}\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
