//! The bytes of records: in a tranche, or in a block of the heap.
//!
//! Records that are too long for a tranche are in blocks of the heap, one each, which the table
//! names. There is no separate file for them: what is allocated follows from what the table names,
//! as for everything in the heap.

use std::ops::Deref;

use evermap_index::record::bytes_equal;
use evermap_pm::{Error, Medium, PmU64, Result, pod};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::geometry::Geometry;
use super::group::{Stored, direct_words};
use super::layout::{Kind, Named};
use super::table::{Format, Table};
use super::value::{Block, Copied, Found};

pod! {
    /// The first words of the block of an indirect record. Key and value follow, padded with zeros.
    struct Header: 16 {
        /// The length of the key (low half), and of the value.
        lengths: PmU64,
        /// XXH3 of key and value, with the lengths as the seed.
        check: PmU64,
    }
}

/// The words of a record that is to be stored. No memory is allocated for a short one.
pub(super) enum Payload {
    Short([u64; Payload::SHORT], usize),
    Long(Vec<u64>),
}

impl Payload {
    const SHORT: usize = 8;

    /// Packs bytes in words, one part behind the other, padded with zeros.
    fn of(parts: [&[u8]; 3]) -> Self {
        let words = parts.iter().map(|part| part.len()).sum::<usize>().div_ceil(8);
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        if words > Self::SHORT {
            return Payload::Long(parts.concat().chunks(8).map(word).collect());
        }
        let (mut bytes, mut end) = ([0; 8 * Self::SHORT], 0);
        for part in parts {
            bytes[end..][..part.len()].copy_from_slice(part);
            end += part.len();
        }
        Payload::Short(std::array::from_fn(|at| word(&bytes[8 * at..][..8])), words)
    }
}

impl Deref for Payload {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Payload::Short(words, len) => &words[..*len],
            Payload::Long(words) => words,
        }
    }
}

/// A record that is to be stored.
pub(super) struct Encoded {
    pub(super) kind: Kind,
    pub(super) payload: Payload,
    /// The block of an indirect record, which nothing refers to yet.
    pub(super) block: Option<u64>,
}

/// Key and value of a record, as words.
struct Content<'a> {
    key: usize,
    value: usize,
    cells: &'a [PmU64],
    check: Option<u64>,
}

/// Packs the lengths of key and value in a word.
fn lengths(key: &[u8], value: &[u8]) -> u64 {
    key.len() as u64 | (value.len() as u64) << 32
}

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    /// The greatest number of words of a record in a tranche: a fifth of that.
    pub(super) const DIRECT_WORDS: usize = G::TRANCHE_BYTES / 40;

    /// Chooses the kind of a record, and allocates and writes its block if it has one. The block is
    /// durable, and reachable only when the record is stored.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn encode(&self, key: &[u8], value: &[u8], hash: u64) -> Result<Encoded> {
        if key.len() >= 1 << 32 || value.len() >= 1 << 32 {
            let bytes = key.len() as u64 + value.len() as u64;
            return Err(Error::no_space("lengths of less than 4 GiB", bytes));
        }
        if key.len() == 8 && value.len() == 8 {
            let payload = Payload::of([key, value, &[]]);
            return Ok(Encoded { kind: Kind::Pair, payload, block: None });
        }
        let lengths = lengths(key, value);
        if direct_words(lengths).is_some_and(|words| words <= Self::DIRECT_WORDS) {
            let payload = Payload::of([&lengths.to_le_bytes(), key, value]);
            return Ok(Encoded { kind: Kind::Direct, payload, block: None });
        }
        let block = self.store_block(key, value, lengths)?;
        let named = Named::Item(hash).encode(block);
        let payload = Payload::of([&named.to_le_bytes(), &hash.to_le_bytes(), &[]]);
        Ok(Encoded { kind: Kind::Indirect, payload, block: Some(block) })
    }

    fn store_block(&self, key: &[u8], value: &[u8], lengths: u64) -> Result<u64> {
        let (m, bytes) = (self.medium(), [key, value].concat());
        let header_bytes = size_of::<Header>() as u64;
        let block = self.pool.allocate(header_bytes + bytes.len() as u64)?;
        let header: &Header = m.at(block).expect("just allocated");
        m.store(&header.lengths, lengths);
        m.store(&header.check, xxh3_64_with_seed(&bytes, lengths));
        let cells = m.slice(block + header_bytes, bytes.len().div_ceil(8) as u64);
        let cells = cells.expect("just allocated");
        m.write_bytes(cells, &bytes);
        m.flush(header);
        m.flush(cells);
        m.fence();
        Ok(block)
    }

    /// Returns the block of an indirect record.
    pub(super) fn block_of(&self, stored: &Stored<'_>) -> Option<u64> {
        let m = self.medium();
        match stored.entry.kind {
            Kind::Indirect => {
                Named::Item(m.load_relaxed(&stored.payload[1])).decode(m.load(&stored.payload[0]))
            }
            Kind::Pair | Kind::Direct => None,
        }
    }

    /// Returns the content of a record.
    fn content<'s>(&'s self, stored: &Stored<'s>) -> Option<Content<'s>> {
        let m = self.medium();
        let (lengths, check, cells) = match stored.entry.kind {
            Kind::Pair => {
                return Some(Content { key: 8, value: 8, cells: stored.payload, check: None });
            }
            Kind::Direct => {
                let (lengths, cells) = stored.payload.split_first()?;
                (m.load_relaxed(lengths), None, cells)
            }
            Kind::Indirect => {
                let block = self.block_of(stored)?;
                let header: &Header = m.at(block)?;
                let lengths = m.load_relaxed(&header.lengths);
                let words = direct_words(lengths)? as u64 - 1;
                let cells = m.slice(block + size_of::<Header>() as u64, words)?;
                (lengths, Some(m.load_relaxed(&header.check)), cells)
            }
        };
        let (key, value) = ((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
        let fits = (key + value).div_ceil(8) <= cells.len();
        fits.then_some(Content { key, value, cells, check })
    }

    /// Returns whether a record is that of a key.
    ///
    /// # Errors
    /// `Damaged` if an indirect record with the hash of the key cannot be read.
    #[inline(always)]
    pub(super) fn is_of(&self, stored: &Stored<'_>, key: &[u8], hash: u64) -> Result<bool> {
        let m = self.medium();
        // Without the hash, reading a record could take a third access to memory.
        if stored.entry.kind == Kind::Indirect && m.load_relaxed(&stored.payload[1]) != hash {
            return Ok(false);
        }
        let Some(content) = self.content(stored) else {
            return Err(self.groups().damaged(stored.tranche, "impossible record"));
        };
        let cells = &content.cells[..content.key.div_ceil(8)];
        Ok(content.key == key.len() && bytes_equal(m, cells, key))
    }

    /// Calls `read` with the key and the value of a record.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn bytes_of<R>(
        &self,
        stored: &Stored<'_>,
        read: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Result<R> {
        let (bytes, key) = self.copy_of(stored)?;
        let (key, value) = bytes.split_at(key);
        Ok(read(key, value))
    }

    /// Returns the key and the value of a record, one behind the other, and the length of the key.
    fn copy_of(&self, stored: &Stored<'_>) -> Result<(Vec<u8>, usize)> {
        let damaged = |what| Err(self.groups().damaged(stored.tranche, what));
        let Some(content) = self.content(stored) else {
            return damaged("impossible record");
        };
        let mut bytes = vec![0; content.key + content.value];
        self.medium().read_bytes(content.cells, &mut bytes);
        let lengths = content.key as u64 | (content.value as u64) << 32;
        if content.check.is_some_and(|check| check != xxh3_64_with_seed(&bytes, lengths)) {
            return damaged("the checksum of an indirect record differs");
        }
        Ok((bytes, content.key))
    }

    /// Returns the value of a record: copied, unless `lends` and the record is a long one.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn value_of(&self, stored: &Stored<'_>, lends: bool) -> Result<Found> {
        let Some(content) = self.content(stored) else {
            return Err(self.groups().damaged(stored.tranche, "impossible record"));
        };
        let (key, value) = (content.key, content.value);
        let check = match content.check {
            None => {
                let copied = Copied::read(self.medium(), content.cells, key, value);
                return Ok(Found::Copied(copied));
            }
            Some(check) => check,
        };
        match self.block_of(stored).filter(|_| lends) {
            Some(block) => {
                let offset = block + size_of::<Header>() as u64;
                Ok(Found::Block(Block { offset, key, value, check }))
            }
            None => {
                let (bytes, start) = self.copy_of(stored)?;
                Ok(Found::Copied(Copied::Long { bytes, start }))
            }
        }
    }

    /// Returns the length of the value of a record, if it can be read.
    pub(super) fn value_len(&self, stored: &Stored<'_>) -> Option<usize> {
        self.content(stored).map(|content| content.value)
    }

    /// Returns the key of a record, if it can be read.
    pub(super) fn key_of(&self, stored: &Stored<'_>) -> Option<Vec<u8>> {
        let content = self.content(stored)?;
        let mut key = vec![0; content.key];
        self.medium().read_bytes(content.cells, &mut key);
        Some(key)
    }

    /// Describes each key that several live records of a group have.
    pub(super) fn check_unique(&self, live: &[(u64, Stored<'_>)], wrong: &mut impl FnMut(String)) {
        let mut keys = std::collections::HashSet::new();
        for (hash, stored) in live {
            let m = self.medium();
            let identity = if F::WORDS_ARE_RECORDS {
                m.load(&stored.payload[1]).to_le_bytes().to_vec()
            } else {
                self.key_of(stored).unwrap_or_default()
            };
            if !keys.insert((*hash, identity)) {
                wrong(format!("tranche {}: record {} is a duplicate", stored.place, stored.at));
            }
        }
    }
}
