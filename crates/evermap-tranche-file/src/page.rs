//! A tranche in a file: its layout, and the changes of its content.

use std::ops::Range;

use evermap_pm::Result;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::header::damaged;
use super::queue::Buffer;

/// The number of records in a block of the strip.
const LANES: usize = 64;
/// Bytes in a block of the strip.
const BLOCK: usize = LANES * 3;
/// Bytes before the strip.
const HEADER: usize = 24;

const CHECKSUM: Range<usize> = 0..8;
const COUNT: Range<usize> = 8..12;
const LOW: Range<usize> = 12..16;
const PASS: Range<usize> = 16..20;

/// The half byte that says that a length follows.
const FOLLOWS: u8 = 15;
/// The half byte for the length of a value that says that the record is elsewhere.
const ELSEWHERE: u8 = 14;
/// Bytes that a record takes besides its payload.
pub(super) const STRIP_BYTES: u64 = 3;
/// Bytes of the payload of a record that is elsewhere.
pub(super) const ELSEWHERE_BYTES: usize = 29;

/// A tranche of `T` bytes, in memory.
///
/// ```text
/// byte  0  checksum   XXH3 of everything behind it, with the number of the tranche in the seed
/// byte  8  count      records in the strip
/// byte 12  low        first byte of the payloads
/// byte 16  pass       records that a search finds behind this tranche
/// byte 20  reserved   0
/// byte 24  strip, which grows upwards: blocks of 64 records
///            64 fingerprints, 1 byte each
///            64 positions of payloads, 2 bytes each
///          ...
///          free
///          ...
///          payloads, which grow downwards from the end, without gaps
///
/// payload  byte 0      length of the key (high half) and of the value, if they are short
///                      high half 15: the length of the key follows
///                      low half 15: the length of the value follows; 14: see below
///          then        the lengths that follow, 7 bits in a byte, low ones first
///          then        key, value
///
///          low half 14, high half 0: the record is in the file for long records
///          byte  1     offset there, 8 bytes
///          byte  9     length there, 4 bytes
///          byte 13     both hashes of the key, 8 bytes each
/// ```
///
/// Numbers are little-endian. A record with key and value of 8 bytes takes 20 bytes.
pub(super) struct Page<const T: usize>(Buffer);

/// The lengths of key and value that the first bytes of a payload tell, or where the record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    /// The key begins after this number of bytes.
    Here {
        start: usize,
        key: usize,
        value: usize,
    },
    Elsewhere(Elsewhere),
}

/// Where a long record is, and the hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) hash: Hash,
}

/// The hashes of a key, which are independent. The first one decides where the key is. Only long
/// records are recognised by both without their keys, which would take another access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash {
    pub(super) first: u64,
    pub(super) second: u64,
}

impl Hash {
    pub(super) fn of(key: &[u8], seed: u64) -> Self {
        let both = xxh3_128_with_seed(key, seed);
        Hash { first: both as u64, second: (both >> 64) as u64 }
    }

    /// Returns the fingerprint of the key.
    pub(super) fn fingerprint(self) -> u8 {
        (self.first >> 44) as u8
    }
}

/// A record of a page.
#[derive(Clone, Copy)]
pub(super) enum Record<'p> {
    Here { key: &'p [u8], value: &'p [u8] },
    Elsewhere(Elsewhere),
}

fn number<const N: usize>(bytes: &[u8], range: Range<usize>) -> Option<[u8; N]> {
    bytes.get(range)?.try_into().ok()
}

fn word(bytes: &[u8], range: Range<usize>) -> u32 {
    number(bytes, range).map_or(0, u32::from_le_bytes)
}

/// Appends a length, 7 bits in a byte.
fn append_length(mut length: usize, out: &mut Vec<u8>) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

/// Reads a length of up to 4 bytes at `at`. Returns it with the position behind it.
fn read_length(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let byte = *bytes.get(at)?;
        at += 1;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((length, at));
        }
    }
    None
}

/// Returns the payload of a record with this key and value.
pub(super) fn payload_of(key: &[u8], value: &[u8]) -> Vec<u8> {
    let key_half = if key.len() < usize::from(FOLLOWS) { key.len() as u8 } else { FOLLOWS };
    let value_half = if value.len() < usize::from(ELSEWHERE) { value.len() as u8 } else { FOLLOWS };
    let mut payload = Vec::with_capacity(9 + key.len() + value.len());
    payload.push(key_half << 4 | value_half);
    if key_half == FOLLOWS {
        append_length(key.len(), &mut payload);
    }
    if value_half == FOLLOWS {
        append_length(value.len(), &mut payload);
    }
    payload.extend_from_slice(key);
    payload.extend_from_slice(value);
    payload
}

impl Elsewhere {
    /// Returns the payload of the record.
    pub(super) fn payload(self) -> Vec<u8> {
        let mut payload = vec![ELSEWHERE];
        payload.extend_from_slice(&self.offset.to_le_bytes());
        payload.extend_from_slice(&self.bytes.to_le_bytes());
        payload.extend_from_slice(&self.hash.first.to_le_bytes());
        payload.extend_from_slice(&self.hash.second.to_le_bytes());
        payload
    }
}

/// Returns what the first bytes of a payload tell, or `None` if they tell something impossible.
fn head(payload: &[u8]) -> Option<Head> {
    let (first, mut start) = (*payload.first()?, 1);
    let (mut key, mut value) = (usize::from(first >> 4), usize::from(first & 15));
    if first == ELSEWHERE {
        return Some(Head::Elsewhere(Elsewhere {
            offset: u64::from_le_bytes(number(payload, 1..9)?),
            bytes: u32::from_le_bytes(number(payload, 9..13)?),
            hash: Hash {
                first: u64::from_le_bytes(number(payload, 13..21)?),
                second: u64::from_le_bytes(number(payload, 21..29)?),
            },
        }));
    }
    if first & 15 == ELSEWHERE {
        return None;
    }
    if key == usize::from(FOLLOWS) {
        (key, start) = read_length(payload, start)?;
    }
    if value == usize::from(FOLLOWS) {
        (value, start) = read_length(payload, start)?;
    }
    (start + key + value <= payload.len()).then_some(Head::Here { start, key, value })
}

impl<const T: usize> Page<T> {
    /// The greatest number of bytes that a record may take in a tranche: longer ones are elsewhere.
    /// A group then has room for 256 of them, so that chance does not fill one group long before
    /// the others.
    pub(super) const RECORD_MAX: usize = T / 32;

    /// Turns a buffer into an empty page.
    pub(super) fn empty(mut buffer: Buffer) -> Self {
        const { assert!(T.is_multiple_of(4096) && T <= 1 << 15) };
        buffer.bytes_mut().fill(0);
        let mut page = Page(buffer);
        page.set(LOW, T as u32);
        page
    }

    /// Takes a page that was read as tranche `place`, after its checksum was verified.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn check(buffer: Buffer, place: u64, seed: u64, offset: u64) -> Result<Self> {
        let page = Page(buffer);
        let stored = number(page.0.bytes(), CHECKSUM).map_or(0, u64::from_le_bytes);
        if stored != page.checksum(place, seed) {
            let what = format!("tranche {place} is torn, or another one: its checksum differs");
            return Err(damaged(offset, what));
        }
        let low = page.low();
        if low > T || Self::strip_end(page.count()) > low {
            return Err(damaged(offset, format!("tranche {place} has an impossible state")));
        }
        Ok(page)
    }

    /// Takes a page back that was just written.
    pub(super) fn written(buffer: Buffer) -> Self {
        Page(buffer)
    }

    /// Stores the checksum, and returns the bytes to be written as tranche `place`.
    pub(super) fn seal(mut self, place: u64, seed: u64) -> Buffer {
        let checksum = self.checksum(place, seed);
        self.0.bytes_mut()[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        self.0
    }

    /// Gives up the content.
    pub(super) fn into_buffer(self) -> Buffer {
        self.0
    }

    fn checksum(&self, place: u64, seed: u64) -> u64 {
        xxh3_64_with_seed(&self.0.bytes()[CHECKSUM.end..], seed.wrapping_add(place))
    }

    fn set(&mut self, range: Range<usize>, value: u32) {
        self.0.bytes_mut()[range].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the number of records.
    pub(super) fn count(&self) -> usize {
        word(self.0.bytes(), COUNT) as usize
    }

    fn low(&self) -> usize {
        word(self.0.bytes(), LOW) as usize
    }

    /// Returns the number of records that a search finds behind this tranche.
    pub(super) fn pass(&self) -> u32 {
        word(self.0.bytes(), PASS)
    }

    /// Counts a record that has passed this tranche, or one less.
    pub(super) fn passed(&mut self, one_more: bool) {
        let pass = self.pass();
        self.set(PASS, if one_more { pass + 1 } else { pass.saturating_sub(1) });
    }

    /// Returns the bytes of the strip and what is before it, with this number of records.
    fn strip_end(count: usize) -> usize {
        match count.checked_sub(1) {
            None => HEADER,
            Some(last) => (HEADER + last / LANES * BLOCK + LANES)
                .saturating_add((last % LANES + 1).saturating_mul(2)),
        }
    }

    /// Returns the number of bytes that records of these payloads could take in an empty tranche,
    /// if there are many of this length.
    pub(super) const fn capacity() -> usize {
        T - HEADER
    }

    fn fingerprint_at(at: usize) -> usize {
        HEADER + at / LANES * BLOCK + at % LANES
    }

    fn position_at(at: usize) -> usize {
        HEADER + at / LANES * BLOCK + LANES + at % LANES * 2
    }

    fn position(&self, at: usize) -> usize {
        let place = Self::position_at(at);
        number(self.0.bytes(), place..place + 2).map_or(0, |bytes| u16::from_le_bytes(bytes).into())
    }

    fn set_position(&mut self, at: usize, position: usize) {
        let place = Self::position_at(at);
        // Positions are below `T`, which is at most 2^15.
        self.0.bytes_mut()[place..place + 2].copy_from_slice(&(position as u16).to_le_bytes());
    }

    /// Returns the bytes from the start of a payload, and what its first ones tell.
    fn payload(&self, at: usize) -> Result<(&[u8], Head)> {
        let position = self.position(at);
        let payload = self.0.bytes().get(position..).filter(|_| position >= self.low());
        payload
            .and_then(|payload| Some((payload, head(payload)?)))
            .ok_or_else(|| damaged(position as u64, "impossible record in a tranche"))
    }

    /// Returns a record.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn record(&self, at: usize) -> Result<Record<'_>> {
        let (payload, head) = self.payload(at)?;
        Ok(match head {
            Head::Elsewhere(elsewhere) => Record::Elsewhere(elsewhere),
            Head::Here { start, key, value } => {
                let (key, rest) = payload[start..].split_at(key);
                Record::Here { key, value: &rest[..value] }
            }
        })
    }

    /// Returns the bytes of the payload of a record.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn payload_bytes(&self, at: usize) -> Result<&[u8]> {
        let (payload, head) = self.payload(at)?;
        Ok(match head {
            Head::Elsewhere(_) => &payload[..ELSEWHERE_BYTES],
            Head::Here { start, key, value } => &payload[..start + key + value],
        })
    }

    /// Looks for the record of a key.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn find(&self, hash: Hash, key: &[u8]) -> Result<Option<usize>> {
        let (count, fingerprint) = (self.count(), hash.fingerprint());
        for first in (0..count).step_by(LANES) {
            let strip = &self.0.bytes()[Self::fingerprint_at(first)..];
            let lanes = &strip[..LANES.min(count - first)];
            for (lane, _) in lanes.iter().enumerate().filter(|(_, found)| **found == fingerprint) {
                let is_it = match self.record(first + lane)? {
                    Record::Here { key: found, .. } => found == key,
                    Record::Elsewhere(elsewhere) => elsewhere.hash == hash,
                };
                if is_it {
                    return Ok(Some(first + lane));
                }
            }
        }
        Ok(None)
    }

    /// Returns whether another record with a payload of this length fits, after one was removed
    /// whose payload has the length `without`, if there is one.
    pub(super) fn has_room(&self, bytes: usize, without: Option<usize>) -> bool {
        let count = self.count() + 1 - usize::from(without.is_some());
        Self::strip_end(count) + bytes <= self.low() + without.unwrap_or(0)
    }

    /// Appends a record, for which there is room.
    pub(super) fn append(&mut self, hash: Hash, payload: &[u8]) {
        let (at, low) = (self.count(), self.low() - payload.len());
        self.0.bytes_mut()[low..low + payload.len()].copy_from_slice(payload);
        self.0.bytes_mut()[Self::fingerprint_at(at)] = hash.fingerprint();
        self.set_position(at, low);
        self.set(COUNT, at as u32 + 1);
        self.set(LOW, low as u32);
    }

    /// Replaces the payload of a record by one of the same length.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn overwrite(&mut self, at: usize, payload: &[u8]) -> Result<()> {
        debug_assert_eq!(self.payload_bytes(at)?.len(), payload.len());
        let position = self.position(at);
        self.0.bytes_mut()[position..position + payload.len()].copy_from_slice(payload);
        Ok(())
    }

    /// Removes a record: the payloads below its own move up, and the last record takes its place
    /// in the strip.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn remove(&mut self, at: usize) -> Result<()> {
        let bytes = self.payload_bytes(at)?.len();
        let (position, low, last) = (self.position(at), self.low(), self.count() - 1);
        self.0.bytes_mut().copy_within(low..position, low + bytes);
        self.0.bytes_mut()[low..low + bytes].fill(0);
        for other in 0..=last {
            let found = self.position(other);
            if found < position {
                self.set_position(other, found + bytes);
            }
        }
        let fingerprint = self.0.bytes()[Self::fingerprint_at(last)];
        let moved = self.position(last);
        self.0.bytes_mut()[Self::fingerprint_at(at)] = fingerprint;
        self.set_position(at, moved);
        self.0.bytes_mut()[Self::fingerprint_at(last)] = 0;
        self.set_position(last, 0);
        self.set(COUNT, last as u32);
        self.set(LOW, (low + bytes) as u32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Small = Page<4096>;

    /// Returns hashes with this fingerprint.
    fn hash(fingerprint: u8) -> Hash {
        Hash { first: u64::from(fingerprint) << 44, second: 5 }
    }

    fn empty() -> Small {
        Small::empty(Buffer::new(4096))
    }

    fn here(page: &Small, at: usize) -> (Vec<u8>, Vec<u8>) {
        match page.record(at).unwrap() {
            Record::Here { key, value } => (key.to_vec(), value.to_vec()),
            Record::Elsewhere(_) => panic!("it is here"),
        }
    }

    #[test]
    fn payloads_of_all_lengths_are_read_as_written() {
        for key in [0, 1, 8, 14, 15, 16, 127, 128, 300] {
            for value in [0, 1, 8, 13, 14, 15, 127, 128, 700] {
                let (key, value) = (vec![7; key], vec![9; value]);
                let mut page = empty();
                page.append(hash(1), &payload_of(&key, &value));
                assert_eq!(here(&page, 0), (key.clone(), value));
                assert_eq!(page.find(hash(1), &key).unwrap(), Some(0));
                assert_eq!(page.find(hash(2), &key).unwrap(), None);
            }
        }
        assert_eq!(payload_of(&[0; 8], &[0; 8]).len(), 17);
        let elsewhere = Elsewhere { offset: 1 << 40, bytes: 70_000, hash: hash(3) };
        let mut page = empty();
        page.append(hash(3), &elsewhere.payload());
        assert_eq!(page.find(hash(3), b"key").unwrap(), Some(0));
        assert_eq!(page.find(Hash { second: 6, ..hash(3) }, b"key").unwrap(), None);
        let Record::Elsewhere(found) = page.record(0).unwrap() else { panic!("it is elsewhere") };
        assert_eq!(found, elsewhere);
    }

    /// A page is filled to the last byte, then emptied in another order; what is left is always
    /// what should be.
    #[test]
    fn what_is_removed_leaves_the_others() {
        let mut page = empty();
        let record = |number: u32| {
            let key = number.to_le_bytes();
            (key, vec![number as u8; number as usize % 40])
        };
        let mut number = 0;
        loop {
            let (key, value) = record(number);
            let payload = payload_of(&key, &value);
            if !page.has_room(payload.len(), None) {
                assert!(page.has_room(payload.len(), Some(payload.len())));
                break;
            }
            page.append(hash(number as u8), &payload);
            number += 1;
        }
        assert!(number > 100);
        let mut left: Vec<u32> = (0..number).collect();
        for round in 0..number as usize {
            let gone = left.remove((round * 37 + 11) % left.len());
            let (key, _) = record(gone);
            let at = page.find(hash(gone as u8), &key).unwrap().unwrap();
            page.remove(at).unwrap();
            assert_eq!(page.count(), left.len());
            for &other in &left {
                let (key, value) = record(other);
                let at = page.find(hash(other as u8), &key).unwrap().unwrap();
                assert_eq!(here(&page, at), (key.to_vec(), value));
            }
        }
        assert_eq!(page.low(), 4096);
    }

    #[test]
    fn a_page_is_accepted_in_its_place_only() {
        let page = |count: u8| {
            let mut page = empty();
            (0..count).for_each(|at| page.append(hash(at), &payload_of(&[at], b"value")));
            page
        };
        let sealed = page(9).seal(5, 1);
        let bytes = sealed.bytes().to_vec();
        let of = |bytes: &[u8]| {
            let mut buffer = Buffer::new(4096);
            buffer.bytes_mut().copy_from_slice(bytes);
            buffer
        };
        assert_eq!(Small::check(of(&bytes), 5, 1, 0).unwrap().count(), 9);
        for (place, seed) in [(4, 1), (5, 2)] {
            assert!(Small::check(of(&bytes), place, seed, 0).is_err());
        }
        // A tranche that was never written, or only in part.
        assert!(Small::check(Buffer::new(4096), 5, 1, 0).is_err());
        let other = page(10).seal(5, 1);
        let torn = [&other.bytes()[..512], &bytes[512..]].concat();
        assert!(Small::check(of(&torn), 5, 1, 0).is_err());
    }

    /// Bytes that say anything about a page are errors, and never more.
    #[test]
    fn impossible_pages_are_damage() {
        let mut page = empty();
        page.append(hash(1), &payload_of(b"key", b"value"));
        for (at, byte) in [(13, 0xff), (9, 0xff), (11, 0xff)] {
            let mut buffer = Buffer::new(4096);
            buffer.bytes_mut().copy_from_slice(page.0.bytes());
            buffer.bytes_mut()[at] = byte;
            let sealed = Page::<4096>(buffer).seal(0, 0);
            assert!(Small::check(sealed, 0, 0, 0).is_err(), "{at}");
        }
        let position = page.position(0);
        for head in [0xff, 0xf3, 0x3f, 0x1e] {
            page.0.bytes_mut()[position] = head;
            page.0.bytes_mut()[position + 1..].fill(0xff);
            assert!(page.find(hash(1), b"key").is_err(), "{head:x}");
        }
        for wrong in [0, 30, 4095] {
            page.set_position(0, wrong);
            assert!(page.record(0).is_err(), "{wrong}");
        }
    }
}
