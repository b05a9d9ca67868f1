//! Reading the records of the log in their order.

use super::mistakes::{Mistake, planted};
use super::record::{HEADER, Header, PAGE, Position, log_bytes, verifies};
use super::segment::{Segment, missing, name, numbers};
use super::storage::Storage;
use crate::{Error, Result};

/// Number of bytes that are read at once.
const READ_AHEAD: u64 = 1 << 20;

const RESTORE: &str = "restore the directory from a copy, or rebuild the region as of an earlier \
                       time, which loses all later changes";

/// A reader of records.
///
/// A record is where the one before it ends, or at the start of the next segment. Each is durable
/// before the next is written. So if a record is not valid, it is the last one, torn by a crash:
/// unless there is a valid one after it, which only damage explains.
pub(super) struct LogReader<'a> {
    storage: &'a dyn Storage,
    uuid: [u64; 2],
    /// Where the last record ended.
    position: Position,
    /// The next sequence number.
    sequence: u64,
    segment: Option<Segment>,
    /// Bytes of the segment, from `start` on.
    buffer: Vec<u8>,
    start: u64,
}

/// A record that was verified.
pub(super) struct Record<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
}

impl<'a> LogReader<'a> {
    /// Creates a reader of the log `uuid` whose first record has the sequence number `sequence` and
    /// is at `position` or in the next segment.
    ///
    /// # Errors
    ///
    /// `DamagedFile` if the segment is missing.
    pub(super) fn new(
        storage: &'a dyn Storage,
        uuid: [u64; 2],
        position: Position,
        sequence: u64,
    ) -> Result<Self> {
        let (buffer, start) = (Vec::new(), 0);
        let segment = Some(
            Segment::open(storage, position.segment)?
                .ok_or_else(|| missing(storage, position.segment))?,
        );
        Ok(LogReader { storage, uuid, position, sequence, segment, buffer, start })
    }

    /// Returns where the last record ended.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Returns the sequence number of the last record, or of the one before the first.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence - 1
    }

    /// Returns the next record, or `None` if there is no valid one.
    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>> {
        let Some(header) = self.locate()? else { return Ok(None) };
        let bytes = log_bytes(header.payload);
        self.position =
            Position { segment: header.position.segment, offset: header.position.offset + bytes };
        self.sequence += 1;
        let at = (header.position.offset - self.start) as usize + HEADER;
        let payload = &self.buffer[at..at + header.payload as usize];
        Ok(Some(Record { header, payload }))
    }

    /// Returns whether the log ends here, after [`next`](LogReader::next) has returned `None`. It
    /// does not if a writer has appended the record in the meantime.
    ///
    /// # Errors
    ///
    /// `DamagedFile` if there is a later record.
    pub(super) fn is_end(&mut self) -> Result<bool> {
        let Some(later) = self.find_later()? else { return Ok(true) };
        if self.locate()?.is_some() {
            return Ok(false);
        }
        let Position { segment, offset } = later;
        Err(self.lost(&format!("there is a later one at {offset:#x} of {}", name(segment))))
    }

    /// Returns the error that says that the next record is not valid, although it must be there.
    #[cold]
    pub(super) fn lost(&self, evidence: &str) -> Error {
        let Position { segment, offset } = self.position;
        let what = format!(
            "record {} is lost or damaged (here, or at the start of the next segment): {evidence}",
            self.sequence
        );
        Error::damaged_file(&self.storage.path_of(&name(segment)), offset, what, RESTORE)
    }

    /// Returns the error for a record that verifies, and whose payload is impossible.
    #[cold]
    pub(super) fn impossible(&self, header: &Header) -> Error {
        let Position { segment, offset } = header.position;
        let what = format!("the payload of record {} is impossible", header.sequence);
        Error::damaged_file(&self.storage.path_of(&name(segment)), offset, what, RESTORE)
    }

    /// Finds the next record, and has its bytes in the buffer.
    fn locate(&mut self) -> Result<Option<Header>> {
        let next_segment = Position { segment: self.position.segment + 1, offset: 0 };
        for position in [self.position, next_segment] {
            if let Some(header) = self.find(position)? {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Returns the header of the next record if it is at `position`.
    fn find(&mut self, position: Position) -> Result<Option<Header>> {
        if !self.enter(position.segment)? {
            return Ok(None);
        }
        let header = self.verified(position)?;
        if header.is_some() || self.buffer.is_empty() {
            return Ok(header);
        }
        // It may have been written since the buffer was read.
        self.buffer.clear();
        self.verified(position)
    }

    fn verified(&mut self, position: Position) -> Result<Option<Header>> {
        let sequence = self.sequence;
        let found = self.record_at(position.offset)?;
        // What is in a segment that is used again is of other numbers.
        let is_next = |found: &Header| found.position == position && found.sequence == sequence;
        let found = found.filter(|found| is_next(found) || planted(Mistake::IdentityUnchecked));
        Ok(found.map(|header| Header { position, sequence, ..header }))
    }

    /// Finds a valid record of at least the next sequence number after the position. The one after
    /// the next is in the same segment or in the one after it; if that begins with neither, later
    /// ones begin with others. A record that is not where it says was misdirected by a device.
    fn find_later(&mut self) -> Result<Option<Position>> {
        let Position { segment, offset } = self.position;
        for number in numbers(self.storage)?.into_iter().filter(|number| *number >= segment) {
            let mut offset = if number == segment { offset } else { 0 };
            self.buffer.clear();
            // It may have been removed since.
            while self.enter(number)? && offset < self.size() {
                if self.is_later(offset)? && self.record_at(offset)?.is_some() {
                    return Ok(Some(Position { segment: number, offset }));
                }
                if number > segment + 1 {
                    break;
                }
                offset += PAGE as u64;
            }
        }
        Ok(None)
    }

    /// Returns whether there is, at this offset of the segment, what looks like a record of at
    /// least the next sequence number. The rest of a segment that is used again has many older
    /// ones, which need not be verified.
    fn is_later(&mut self, offset: u64) -> Result<bool> {
        let uuid = self.uuid;
        let header = Header::decode(self.bytes(offset, PAGE as u64)?, uuid);
        Ok(header.is_some_and(|header| header.sequence >= self.sequence))
    }

    /// Returns the header of the record at this offset of the segment, if one verifies.
    fn record_at(&mut self, offset: u64) -> Result<Option<Header>> {
        let uuid = self.uuid;
        let Some(header) = Header::decode(self.bytes(offset, PAGE as u64)?, uuid) else {
            return Ok(None);
        };
        // With a wrong length there are too few bytes to verify.
        let bytes = self.bytes(offset, log_bytes(header.payload.min(u64::MAX / 2)))?;
        Ok(verifies(bytes, header.payload, uuid).then_some(header))
    }

    /// Opens the segment, if it is not the open one. Returns whether there is one.
    fn enter(&mut self, number: u64) -> Result<bool> {
        if self.segment.as_ref().is_none_or(|open| open.number != number) {
            self.buffer.clear();
            self.segment = Segment::open(self.storage, number)?;
        }
        Ok(self.segment.is_some())
    }

    fn size(&self) -> u64 {
        self.segment.as_ref().map_or(0, |open| open.size)
    }

    /// Returns `bytes` bytes of the segment from `offset` on, or fewer if it ends before.
    fn bytes(&mut self, offset: u64, bytes: u64) -> Result<&[u8]> {
        let Some(segment) = &self.segment else { return Ok(&[]) };
        let end = offset.saturating_add(bytes).min(segment.size);
        let buffered = self.start..self.start + self.buffer.len() as u64;
        if offset >= end {
            return Ok(&[]);
        }
        if offset < buffered.start || end > buffered.end {
            let wanted = (end - offset).max(READ_AHEAD).min(segment.size - offset);
            self.buffer.resize(wanted as usize, 0);
            self.start = offset;
            let count = segment.file.read_at(offset, &mut self.buffer)?;
            self.buffer.truncate(count);
        }
        let at = (offset - self.start) as usize;
        let end = ((end - self.start) as usize).min(self.buffer.len());
        Ok(self.buffer.get(at..end).unwrap_or_default())
    }
}
