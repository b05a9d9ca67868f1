//! Lists of all items, which are written as fast as the client reads them.

use std::io::Write;

use crate::cache::size_class::{class_of, item_bytes};
use crate::cache::{CacheError, Item};
use crate::protocol::{Context, meta};

/// The greatest number of a size class of memcached, whether or not it has items.
pub(super) const CLASSES_MAX: usize = 63;

/// A list that is being written, one [page](crate::Cache::page) of items after the other.
///
/// Nothing but this is kept between two pages, so a client that stops reading keeps nothing in the
/// cache from being changed or freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dump {
    format: Format,
    /// The size classes whose items are listed, as a set of bits.
    classes: u64,
    /// The part that is listed, and its next page.
    part: usize,
    position: u64,
    /// How often damage had been met when the list began.
    damage: u64,
}

/// The end of a list during which damage was met.
const LACKS_ITEMS: &[u8] = b"SERVER_ERROR damage was met, so the list may lack items\r\n";

/// What is written of each item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A line of `lru_crawler metadump`.
    Metadata,
    /// The mg command for the item, as `lru_crawler mgdump` writes it.
    Get,
}

impl Dump {
    pub(super) fn new(format: Format, classes: u64) -> Self {
        Dump { format, classes, part: 0, position: 0, damage: 0 }
    }

    /// Returns the reply if the operator has refused lists of all items.
    pub(super) fn refusal(&self) -> &'static [u8] {
        match self.format {
            Format::Metadata => b"ERROR metadump not allowed\r\n",
            Format::Get => b"ERROR key dump not allowed\r\n",
        }
    }

    /// Appends the lines for the next page. Returns what is left to do, or `None` after the last
    /// page and the line that ends the list.
    ///
    /// # Errors
    /// If the cache cannot be read. The list ends with the error, as does one that lacks items
    /// which cannot be read.
    pub(super) fn next_page(
        mut self,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Self>, CacheError> {
        if (self.part, self.position) == (0, 0) {
            self.damage = context.cache.damage_met();
        }
        let next = context.cache.page_of(self.part, self.position, &mut |key, item| {
            let bytes = item_bytes(key.len(), item.value.len(), item.flags);
            // Programs that use the store without a server may have longer keys, which no client
            // can ask for.
            if key.len() > context.key_size_max || self.classes & 1 << class_of(bytes) == 0 {
                return;
            }
            match self.format {
                Format::Metadata => append_metadata(key, &item, bytes, context.now, out),
                Format::Get => append_get(key, out),
            }
        })?;
        let next_part = self.part + 1;
        let next = match next {
            Some(position) => Some((self.part, position)),
            None => (next_part < context.cache.parts()).then_some((next_part, 0)),
        };
        if next.is_none() {
            out.extend_from_slice(match self.format {
                _ if context.cache.damage_met() > self.damage => LACKS_ITEMS,
                Format::Metadata => b"END\r\n",
                Format::Get => b"EN\r\n",
            });
        }
        Ok(next.map(|(part, position)| Dump { part, position, ..self }))
    }
}

/// Appends a line of `lru_crawler metadump`. memcached ends these lines with a line feed alone.
fn append_metadata(key: &[u8], item: &Item<'_>, bytes: u64, now: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"key=");
    append_encoded(key, out);
    let expiry = match item.expiry {
        0 => -1,
        expiry => i64::from(expiry),
    };
    let accessed = now.saturating_sub(item.idle);
    let fetched = if item.fetched { "yes" } else { "no" };
    let (cas, flags, class) = (item.cas, item.flags, class_of(bytes));
    write!(out, " exp={expiry} la={accessed} cas={cas} fetch={fetched} cls={class} size={bytes}")
        .and_then(|()| writeln!(out, " flags={flags}"))
        .expect("writing to a vector cannot fail");
}

/// Appends the mg command for a key.
fn append_get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if meta::append_key(key, out) {
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a key with all bytes but letters, digits and `-._~` as `%` and two hexadecimal digits.
fn append_encoded(key: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            let digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
            out.push(b'%');
            out.extend_from_slice(&digits);
        }
    }
}

/// Appends lines with the keys of a size class, as `stats cachedump` writes them: at most `limit`,
/// unless that is 0, and at most about 2 MB, which is memcached's limit too.
pub(super) fn append_keys(
    class: usize,
    limit: u64,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) -> Result<(), CacheError> {
    const BYTES_MAX: usize = 2 << 20;
    /// The number of pages that are searched, so that a class without items takes no longer.
    const PAGES_MAX: usize = 256;
    let limit = if limit == 0 { u64::MAX } else { limit };
    let (start, mut count, mut next) = (out.len(), 0, Some(0));
    for _ in 0..PAGES_MAX {
        let Some(position) = next.filter(|_| count < limit && out.len() - start < BYTES_MAX) else {
            break;
        };
        next = context.cache.page(position, &mut |key, item| {
            let (len, expiry) = (item.value.len(), item.expiry);
            let bytes = item_bytes(key.len(), len, item.flags);
            if count < limit && key.len() <= context.key_size_max && class_of(bytes) == class {
                count += 1;
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                write!(out, " [{len} b; {expiry} s]\r\n").expect("writing to a vector cannot fail");
            }
        })?;
    }
    Ok(())
}
