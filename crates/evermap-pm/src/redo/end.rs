//! The end of the log, where it is continued.

use super::control::Control;
use super::mistakes::{Mistake, planted};
use super::record::{Position, log_bytes};
use super::scan::LogReader;
use super::segment::{self, Segment};
use super::storage::{File, Storage};
use crate::Result;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// The end of a durable record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// The sequence number of the record.
    pub sequence: u64,
    /// The segment that it is in.
    pub segment: u64,
    /// Where it ends there.
    pub offset: u64,
    /// When it was appended, nanoseconds since 1970.
    pub time: u64,
    /// Length of the region after it, bytes.
    pub region_len: u64,
}

impl LogPosition {
    /// Returns it as words.
    pub fn words(self) -> [u64; 5] {
        [self.sequence, self.segment, self.offset, self.time, self.region_len]
    }

    /// Returns the position with these words.
    pub fn from_words([sequence, segment, offset, time, region_len]: [u64; 5]) -> Self {
        LogPosition { sequence, segment, offset, time, region_len }
    }
}

/// The end of the log.
pub(super) struct End {
    pub(super) position: Position,
    /// The last record: its sequence number, its time, and the length of the region after it.
    pub(super) sequence: u64,
    pub(super) time: u64,
    pub(super) region_len: u64,
    /// Bytes of the records after `applied`.
    pub(super) bytes: u64,
    /// Where the last record is, if there is one after `applied`.
    last: Option<(Position, u64)>,
}

impl End {
    /// Reads the log to its end, from what is `known` to be durable on.
    pub(super) fn find(
        storage: &dyn Storage,
        control: &Control,
        known: Option<LogPosition>,
        segment_bytes: u64,
    ) -> Result<Self> {
        let mut end = End {
            position: control.start,
            sequence: control.applied,
            time: control.time,
            region_len: control.region_len,
            bytes: 0,
            last: None,
        };
        if let Some(known) = known {
            end.position = Position { segment: known.segment, offset: known.offset };
            (end.sequence, end.time) = (known.sequence, known.time);
            end.region_len = known.region_len;
            // About: segments may be longer.
            let segments = known.segment.saturating_sub(control.start.segment);
            let bytes = segments * segment_bytes + known.offset;
            end.bytes = bytes.saturating_sub(control.start.offset);
        }
        let mut reader = LogReader::new(storage, control.uuid, end.position, end.sequence + 1)?;
        loop {
            while let Some(record) = reader.next()? {
                let (header, bytes) = (record.header, log_bytes(record.header.payload));
                (end.sequence, end.time) = (header.sequence, header.time);
                (end.region_len, end.bytes) = (header.region_len, end.bytes + bytes);
                end.last = Some((header.position, bytes));
            }
            if reader.is_end()? {
                break;
            }
        }
        end.position = reader.position();
        if end.sequence < control.durable {
            return Err(reader.lost("it was durable before"));
        }
        Ok(end)
    }

    /// Writes the last record once more, and waits until it is durable. Those before it are: each
    /// was synced before the next was written.
    pub(super) fn confirm(&self, storage: &dyn Storage) -> Result<()> {
        let Some((position, bytes)) = self.last.filter(|_| !planted(Mistake::TailTrusted)) else {
            return Ok(());
        };
        let number = position.segment;
        let segment = Segment::open(storage, number)?;
        let file = segment.ok_or_else(|| segment::missing(storage, number))?.file;
        copy_in_place(&*file, position.offset, bytes)?;
        file.sync()
    }
}

fn copy_in_place(file: &dyn File, offset: u64, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; bytes.min(PIECE) as usize];
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(PIECE) as usize;
        let count = file.read_at(offset + at, &mut buffer[..piece])?;
        file.write_at(offset + at, &buffer[..count])?;
        at += piece as u64;
    }
    Ok(())
}
