//! The records of the log: what is in them, and how they are verified.
//!
//! A record starts at a multiple of 4096 bytes in its segment. All numbers are little endian.
//!
//! ```text
//! byte  0  magic, "EVREDO01"
//! byte  8  check: CRC32C of the log's uuid, bytes 12..80, and the payload
//! byte 12  number of pages
//! byte 16  first half of the log's uuid
//! byte 24  sequence number, from 1
//! byte 32  number of the segment
//! byte 40  offset in the segment
//! byte 48  length of the region, bytes
//! byte 56  length of the payload, bytes
//! byte 64  time, nanoseconds since 1970
//! byte 72  zero
//! byte 80  payload; for each page:
//!            page number | mask of changed lines | mask of those that are not zero (8 bytes each),
//!            then each line that is not zero (64 bytes), in their order
//! ```
//!
//! Segment and offset are part of the record so that it is valid only where it was written: neither
//! in a segment that is used again, nor where a device has written it by mistake.

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Bytes of a line.
const LINE: usize = 64;
/// Bytes before the payload.
pub(super) const HEADER: usize = 80;
/// Bytes before the lines of a page.
const PAGE_HEADER: usize = 24;
const MAGIC: &[u8; 8] = b"EVREDO01";

/// Builds the payload of one record: the contents of the lines that were stored to.
///
/// Keep one and [`clear`](RecordBuilder::clear) it after each record: it allocates only while it
/// grows.
#[derive(Default)]
pub struct RecordBuilder {
    payload: Vec<u8>,
    pages: u32,
    /// The page number behind the last page.
    end: u64,
}

impl RecordBuilder {
    /// Creates an empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        self.payload.clear();
        (self.pages, self.end) = (0, 0);
    }

    /// Adds the lines of `page` whose bits are set in `lines` (bit 0 is the first line). `read` is
    /// called for each of them in order, with its number in the page and 64 zero bytes to copy it
    /// to. If a page is added twice, the later lines are in effect.
    ///
    /// Takes 24 bytes for the page and 64 bytes for each line that is not zero.
    pub fn page(&mut self, page: u64, lines: u64, read: &mut dyn FnMut(u32, &mut [u8; 64])) {
        if lines == 0 {
            return;
        }
        let head = self.payload.len();
        self.payload.resize(head + PAGE_HEADER, 0);
        let mut nonzero = 0;
        for line in bits(lines) {
            let at = self.payload.len();
            self.payload.resize(at + LINE, 0);
            let (_, bytes) = self.payload.split_last_chunk_mut().expect("a line was added");
            read(line, bytes);
            match *bytes == [0; LINE] {
                true => self.payload.truncate(at),
                false => nonzero |= 1 << line,
            }
        }
        for (index, number) in [page, lines, nonzero].into_iter().enumerate() {
            put(&mut self.payload[head..], index * 8, number);
        }
        self.pages += 1;
        self.end = self.end.max(page + 1);
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the bytes that the record takes in the log: a multiple of 4096.
    pub fn log_bytes(&self) -> u64 {
        log_bytes(self.payload.len() as u64)
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the page number behind the last page.
    pub(super) fn end(&self) -> u64 {
        self.end
    }
}

/// Returns the bytes that a record takes in the log.
pub(super) fn log_bytes(payload: u64) -> u64 {
    (HEADER as u64 + payload).next_multiple_of(PAGE as u64)
}

/// A position in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// What a record is besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u64,
    pub(super) position: Position,
    pub(super) region_len: u64,
    pub(super) payload: u64,
    pub(super) pages: u32,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
}

impl Header {
    /// Returns the bytes before the payload.
    pub(super) fn encode(&self, uuid: [u64; 2], payload: &[u8]) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..16].copy_from_slice(&self.pages.to_le_bytes());
        let numbers = [
            uuid[0],
            self.sequence,
            self.position.segment,
            self.position.offset,
            self.region_len,
            self.payload,
            self.time,
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            put(&mut bytes, 16 + index * 8, number);
        }
        let check = checksum(uuid, &bytes, payload);
        bytes[8..12].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Returns the header at the start of `bytes`, if it is one of the log `uuid`. The checksum is
    /// not verified.
    pub(super) fn decode(bytes: &[u8], uuid: [u64; 2]) -> Option<Self> {
        let bytes = bytes.get(..HEADER)?;
        let header = Header {
            sequence: get(bytes, 24),
            position: Position { segment: get(bytes, 32), offset: get(bytes, 40) },
            region_len: get(bytes, 48),
            payload: get(bytes, 56),
            pages: u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")),
            time: get(bytes, 64),
        };
        (bytes[..8] == *MAGIC && get(bytes, 16) == uuid[0]).then_some(header)
    }
}

/// Returns whether the header and payload at the start of `bytes` have the right checksum.
pub(super) fn verifies(bytes: &[u8], payload: u64, uuid: [u64; 2]) -> bool {
    let stored = bytes.get(8..12).map(|check| check.try_into().expect("four bytes"));
    let payload = bytes.get(HEADER..HEADER + payload as usize);
    match (stored, payload) {
        (Some(stored), Some(payload)) => {
            u32::from_le_bytes(stored) == checksum(uuid, &bytes[..HEADER], payload)
        }
        _ => false,
    }
}

fn checksum(uuid: [u64; 2], header: &[u8], payload: &[u8]) -> u32 {
    let seed =
        crc32c::crc32c_append(crc32c::crc32c(&uuid[0].to_le_bytes()), &uuid[1].to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &header[12..]), payload)
}

/// The changed lines of one page in a record.
#[derive(Clone, Copy)]
pub(super) struct PageLines<'a> {
    pub(super) page: u64,
    lines: u64,
    nonzero: u64,
    bytes: &'a [u8],
}

impl<'a> PageLines<'a> {
    /// Returns the first page of `payload`, and the bytes that it takes. `None` if it is not one.
    pub(super) fn parse(payload: &'a [u8]) -> Option<(Self, usize)> {
        let (head, rest) = payload.split_at_checked(PAGE_HEADER)?;
        let (page, lines, nonzero) = (get(head, 0), get(head, 8), get(head, 16));
        let bytes = rest.get(..nonzero.count_ones() as usize * LINE)?;
        let parsed = PageLines { page, lines, nonzero, bytes };
        (lines != 0 && nonzero & !lines == 0).then_some((parsed, PAGE_HEADER + bytes.len()))
    }

    /// Returns whether the page is inside of a region of this length.
    pub(super) fn is_in(&self, region_len: u64) -> bool {
        self.page < region_len / PAGE as u64
    }

    /// Copies the lines into the contents of the page.
    pub(super) fn apply(&self, page: &mut [u8]) {
        for line in bits(self.lines & !self.nonzero) {
            page[line as usize * LINE..][..LINE].fill(0);
        }
        for (line, bytes) in bits(self.nonzero).zip(self.bytes.chunks_exact(LINE)) {
            page[line as usize * LINE..][..LINE].copy_from_slice(bytes);
        }
    }
}

/// Returns the pages of a payload with their places in it. Ends with `None` before one that is
/// impossible.
pub(super) fn pages(payload: &[u8]) -> impl Iterator<Item = Option<(usize, PageLines<'_>)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = payload.get(at..).filter(|rest| !rest.is_empty())?;
        let start = at;
        match PageLines::parse(rest) {
            Some((page, bytes)) => {
                at += bytes;
                Some(Some((start, page)))
            }
            None => {
                at = payload.len();
                Some(None)
            }
        }
    })
}

/// Returns the numbers of the bits that are set, in ascending order.
fn bits(mask: u64) -> impl Iterator<Item = u32> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros())?;
        rest &= rest - 1;
        Some(bit)
    })
}

/// Returns the number at `at`.
pub(super) fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Stores a number at `at`.
pub(super) fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}
