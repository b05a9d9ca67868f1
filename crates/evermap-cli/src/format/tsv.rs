//! Tab-separated values with backslash escapes.

use std::io::Write;

use evermap::Item;

use super::Record;

/// Parses `key TAB value [TAB flags [TAB expiry [TAB marks]]]`. A carriage return at the end is
/// part of the line end.
pub(super) fn parse(line: &[u8]) -> Result<Record, String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields = line.split(|&byte| byte == b'\t');
    let key = unescape(fields.next().unwrap_or_default())?;
    let Some(value) = fields.next() else { return Err("no tab after the key".into()) };
    let mut number = |name| fields.next().map_or(Ok(0), |field| parse_number(name, field));
    let meta = super::meta(number("flags")?, number("expiry")?);
    let meta = meta.with_marks(super::marks(number("marks")?)?);
    if fields.next().is_some() {
        return Err("extra field after the marks; a tab in a value must be written as \\t".into());
    }
    Ok(Record { key, value: unescape(value)?, meta })
}

fn parse_number(name: &str, field: &[u8]) -> Result<u32, String> {
    let number = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let excerpt = excerpt(field);
        format!(
            "{name} `{excerpt}` is not a number below 2^32; a tab in a value must be written as \\t"
        )
    })
}

/// Appends a record as a line.
pub(super) fn append(item: &Item<'_>, out: &mut Vec<u8>) {
    escape(item.key, out);
    out.push(b'\t');
    escape(item.value, out);
    let mut number = |number| write!(out, "\t{number}").expect("writing to a vector cannot fail");
    let numbers = [item.flags, super::expiry(item), u32::from(item.meta().marks().bits())];
    let last = numbers.iter().rposition(|&number| number != 0).map_or(0, |last| last + 1);
    numbers[..last].iter().for_each(|&written| number(written));
    out.push(b'\n');
}

/// Appends `bytes` with control characters, backslashes and invalid UTF-8 escaped.
pub(super) fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            match byte {
                b'\t' => out.extend_from_slice(b"\\t"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\\' => out.extend_from_slice(b"\\\\"),
                0..0x20 | 0x7f => escape_byte(byte, out),
                _ => out.push(byte),
            }
        }
        chunk.invalid().iter().for_each(|&byte| escape_byte(byte, out));
    }
}

fn escape_byte(byte: u8, out: &mut Vec<u8>) {
    write!(out, "\\x{byte:02x}").expect("writing to a vector cannot fail");
}

fn unescape(field: &[u8]) -> Result<Vec<u8>, String> {
    let mut pieces = field.split(|&byte| byte == b'\\');
    let mut bytes = pieces.next().unwrap_or_default().to_vec();
    while let Some(piece) = pieces.next() {
        let rest = match piece.split_first() {
            Some((b't', rest)) => (b'\t', rest),
            Some((b'n', rest)) => (b'\n', rest),
            Some((b'r', rest)) => (b'\r', rest),
            Some((b'x', rest)) => parse_byte(rest)?,
            // An empty piece comes from two backslashes. The piece after it has no escape.
            None => (
                b'\\',
                pieces.next().ok_or(
                    "single backslash at the end of the field; write \\\\ for a backslash",
                )?,
            ),
            Some(_) => {
                let excerpt = excerpt(piece);
                return Err(format!("unknown escape `\\{excerpt}`; write \\\\ for a backslash"));
            }
        };
        bytes.push(rest.0);
        bytes.extend_from_slice(rest.1);
    }
    Ok(bytes)
}

/// Parses a byte from two hexadecimal digits. Returns it with the rest of the text.
fn parse_byte(text: &[u8]) -> Result<(u8, &[u8]), String> {
    let digit = |at: usize| text.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    match (digit(0), digit(1)) {
        (Some(high), Some(low)) => Ok(((16 * high + low) as u8, &text[2..])),
        _ => Err(format!("`\\x{}` must have two hexadecimal digits", excerpt(text))),
    }
}

/// Returns the beginning of `bytes` as printable text, for messages.
fn excerpt(bytes: &[u8]) -> String {
    const LEN_MAX: usize = 20;
    let mut excerpt = bytes[..bytes.len().min(LEN_MAX)].escape_ascii().to_string();
    if bytes.len() > LEN_MAX {
        excerpt.push_str("...");
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &[u8], flags: u32, expires_at: u32) -> Result<Record, String> {
        Ok(Record {
            key: key.into(),
            value: value.into(),
            meta: crate::format::meta(flags, expires_at),
        })
    }

    #[test]
    fn valid_lines() {
        for (line, expected) in [
            ("k\tv", record("k", b"v", 0, 0)),
            ("k\tv\r", record("k", b"v", 0, 0)),
            ("k\tv\t7", record("k", b"v", 7, 0)),
            ("k\tv\t0\t4294967295", record("k", b"v", 0, u32::MAX)),
            ("\t", record("", b"", 0, 0)),
            ("k\t\\t\\n\\r\\\\\\x00\\xFf", record("k", b"\t\n\r\\\0\xff", 0, 0)),
            ("k\t\\\\n", record("k", b"\\n", 0, 0)),
            ("k\t\\\\\\\\", record("k", b"\\\\", 0, 0)),
            ("k\u{e9}\tv\u{2019}", record("k\u{e9}", "v\u{2019}".as_bytes(), 0, 0)),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn invalid_lines() {
        for (line, reason) in [
            ("", "no tab"),
            ("key", "no tab"),
            ("k\tv\tx", "flags `x` is not a number"),
            ("k\tv\t4294967296", "not a number below 2^32"),
            ("k\tv\t1\t-1", "expiry `-1` is not a number"),
            ("k\tv\t1\t2\t9", "marks 9: must be 0 to 7"),
            ("k\tv\t1\t2\t3\t4", "extra field after the marks"),
            ("k\t\\", "single backslash at the end"),
            ("k\t\\\\\\", "single backslash at the end"),
            ("k\t\\q", "unknown escape `\\q`"),
            ("k\t\\x0", "`\\x0` must have two"),
            ("k\t\\xg0", "must have two"),
            ("\\x\tv", "must have two"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{line:?}: {error}");
        }
    }

    #[test]
    fn text_is_not_escaped() {
        let mut out = Vec::new();
        let value = b"caf\xc3\xa9 \xff\x1b\n";
        append(&Item::new(b"k", value, 1, crate::format::meta(0, 9)), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "k\tcaf\u{e9} \\xff\\x1b\\n\t0\t9\n");
    }
}
