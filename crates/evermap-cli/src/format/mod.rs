//! Records as lines of text, for other programs.
//!
//! Both formats can represent any bytes. They omit flags, expiry and marks if these are 0.

mod jsonl;
mod lines;
mod tsv;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use evermap::cache::Marks;
use evermap::{Item, Meta};

pub(crate) use lines::{Line, Lines};

/// A format with one record per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Key, value, and optional flags, expiry (seconds since 1970) and marks, separated by tabs.
    /// Escapes: \t \n \r \\ \xNN
    Tsv,
    /// {"key": K, "value": V, "flags": N, "expires_at": SECONDS, "marks": N}, with the last three
    /// optional. K and V are strings, or {"base64": "..."} if they are not valid UTF-8
    Jsonl,
}

/// A record that was parsed.
#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) meta: Meta,
}

impl Format {
    /// Returns the format for a file name.
    pub(crate) fn of(path: &Path) -> Self {
        match path.extension() {
            Some(extension)
                if ["jsonl", "ndjson", "json"].iter().any(|json| extension == *json) =>
            {
                Format::Jsonl
            }
            _ => Format::Tsv,
        }
    }

    /// Parses a record from a line without its line end.
    ///
    /// # Errors
    /// A description of what is invalid.
    pub(crate) fn parse(self, line: &[u8]) -> Result<Record, String> {
        match self {
            Format::Tsv => tsv::parse(line),
            Format::Jsonl => jsonl::parse(line),
        }
    }

    /// Appends a record as a line, including the line end.
    pub(crate) fn append(self, item: &Item<'_>, out: &mut Vec<u8>) {
        match self {
            Format::Tsv => tsv::append(item, out),
            Format::Jsonl => jsonl::append(item, out),
        }
    }
}

/// Escapes text with the escapes of [`Format::Tsv`], so that it is one line.
pub(crate) fn escape_line(text: &str) -> String {
    let mut line = Vec::new();
    tsv::escape(text.as_bytes(), &mut line);
    String::from_utf8(line).expect("escaped text is valid UTF-8")
}

/// Returns the metadata of a record. In both formats an expiry of 0 means never.
fn meta(flags: u32, expires_at: u32) -> Meta {
    let expiry = (expires_at != 0).then(|| UNIX_EPOCH + Duration::from_secs(expires_at.into()));
    Meta::new().with_flags(flags).with_expiry(expiry)
}

/// Returns the marks that are written as this number.
///
/// # Errors
/// A description of what is invalid.
fn marks(number: u32) -> Result<Marks, String> {
    let marks = Marks::from_bits_truncate(number as u8);
    match u32::from(marks.bits()) == number {
        true => Ok(marks),
        false => Err(format!("marks {number}: must be 0 to {}", Marks::ALL.bits())),
    }
}

/// Returns the expiry of a record in the form of both formats.
fn expiry(item: &Item<'_>) -> u32 {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    item.expires_at().map_or(0, |at| u32::try_from(seconds(at)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Any bytes, bytes with a special meaning, and text.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let special = prop::sample::select(b"\t\n\r\\\0\x7fxn\"{}0\x80\xc3\xa9".to_vec());
        prop_oneof![
            vec(any::<u8>(), 0..50),
            vec(special, 0..50),
            ".{0,50}".prop_map(String::into_bytes)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

        #[test]
        fn a_written_record_is_parsed_unchanged(
            key in bytes(),
            value in bytes(),
            flags in prop_oneof![Just(0), any::<u32>()],
            expires_at in prop_oneof![Just(0), any::<u32>()],
            marks in prop_oneof![Just(0), 0..8u32],
        ) {
            let meta = meta(flags, expires_at).with_marks(super::marks(marks).unwrap());
            let item = Item::new(&key, &value, 1, meta);
            for format in [Format::Tsv, Format::Jsonl] {
                let mut text = Vec::new();
                format.append(&item, &mut text);
                prop_assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 1);
                prop_assert_eq!(text.pop(), Some(b'\n'));
                prop_assert!(std::str::from_utf8(&text).is_ok());
                let record = format.parse(&text);
                let expected = Record { key: key.clone(), value: value.clone(), meta };
                prop_assert_eq!(record, Ok(expected));
            }
        }

        #[test]
        fn parsing_any_bytes_does_not_panic(
            line in bytes(),
            start in "\\{\"key\":|\\{\"key\":\"a\",\"value\":|",
        ) {
            for format in [Format::Tsv, Format::Jsonl] {
                let _ = format.parse(&line);
                let _ = format.parse(&[start.as_bytes(), &line].concat());
            }
        }
    }

    #[test]
    fn the_format_depends_on_the_file_name() {
        for (name, format) in [
            ("a.tsv", Format::Tsv),
            ("a", Format::Tsv),
            ("a.jsonl", Format::Jsonl),
            ("b.ndjson", Format::Jsonl),
            ("jsonl", Format::Tsv),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }
}
