//! Records as lines of text, for other programs.
//!
//! Both formats hold any bytes. Flags and expiry are left out where they are 0.

mod jsonl;
mod lines;
mod tsv;

use std::path::Path;

use clap::ValueEnum;
use evermap::{Item, Meta};

pub(crate) use lines::{Line, Lines};

/// A format with one record in each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Key, value, and if needed flags and expiry (seconds since 1970), with tabs between them. Backslash
    /// escapes: \t \n \r \\ \xNN
    Tsv,
    /// {"key": K, "value": V, "flags": N, "expires_at": SECONDS}, the last two as needed; K and V are
    /// strings, or {"base64": "..."} where they are no text
    Jsonl,
}

/// A record that was read.
#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) meta: Meta,
}

impl Format {
    /// The format that a file's name suggests.
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

    /// Reads a record from a line without its end.
    ///
    /// # Errors
    /// What is wrong with the line, in words.
    pub(crate) fn parse(self, line: &[u8]) -> Result<Record, String> {
        match self {
            Format::Tsv => tsv::parse(line),
            Format::Jsonl => jsonl::parse(line),
        }
    }

    /// Appends a record as a line, with its end.
    pub(crate) fn append(self, item: &Item<'_>, out: &mut Vec<u8>) {
        match self {
            Format::Tsv => tsv::append(item, out),
            Format::Jsonl => jsonl::append(item, out),
        }
    }
}

/// Text in one line, with the escapes of [`Format::Tsv`].
pub(crate) fn in_one_line(text: &str) -> String {
    let mut line = Vec::new();
    tsv::escape(text.as_bytes(), &mut line);
    String::from_utf8(line).expect("escapes are text")
}

/// Returns metadata as the formats have it: an expiry of 0 is never.
fn meta(flags: u32, expires_at: u32) -> Meta {
    Meta::new().with_flags(flags).with_expiry((expires_at != 0).then_some(u64::from(expires_at)))
}

/// Returns when a record expires as the formats have it: 0 is never.
fn expiry(item: &Item<'_>) -> u32 {
    item.expires_at.map_or(0, |at| u32::try_from(at).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Any bytes, with those that mean something more often than chance would have it, and text.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let special = prop::sample::select(b"\t\n\r\\\0\x7fxn\"{}0\x80\xc3\xa9".to_vec());
        prop_oneof![
            vec(any::<u8>(), 0..50),
            vec(special, 0..50),
            ".{0,50}".prop_map(String::into_bytes)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_can_be_read(
            key in bytes(),
            value in bytes(),
            flags in prop_oneof![Just(0), any::<u32>()],
            expires_at in prop_oneof![Just(0), any::<u32>()],
        ) {
            let item = Item::new(&key, &value, 1, meta(flags, expires_at));
            for format in [Format::Tsv, Format::Jsonl] {
                let mut text = Vec::new();
                format.append(&item, &mut text);
                prop_assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 1);
                prop_assert_eq!(text.pop(), Some(b'\n'));
                prop_assert!(std::str::from_utf8(&text).is_ok());
                let record = format.parse(&text);
                let meta = meta(flags, expires_at);
                prop_assert_eq!(record, Ok(Record { key: key.clone(), value: value.clone(), meta }));
            }
        }

        #[test]
        fn reading_anything_is_safe(line in bytes(), start in "\\{\"key\":|\\{\"key\":\"a\",\"value\":|") {
            for format in [Format::Tsv, Format::Jsonl] {
                let _ = format.parse(&line);
                let _ = format.parse(&[start.as_bytes(), &line].concat());
            }
        }
    }

    #[test]
    fn names_suggest_formats() {
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
