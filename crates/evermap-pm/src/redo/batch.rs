//! Records that are applied to the image together.

use super::mistakes::{Mistake, planted};
use super::record::{PageLines, Position, log_bytes, pages};
use super::scan::{LogReader, Record};
use crate::Result;

/// The payloads of consecutive records, and their pages in order.
#[derive(Default)]
pub(super) struct Batch {
    payloads: Vec<u8>,
    /// Page numbers with places in `payloads`.
    pages: Vec<(u64, usize)>,
    /// The sequence number of the last record, or of the one before the first if there is none.
    pub(super) sequence: u64,
    /// Length of the region after it, bytes.
    pub(super) region_len: u64,
    /// Its time, nanoseconds since 1970.
    pub(super) time: u64,
    /// Bytes that the records take in the log.
    pub(super) log_bytes: u64,
    /// Where the last one ends.
    pub(super) end: Position,
}

/// The changes of one page, in the order of their records.
#[derive(Clone, Copy)]
pub(super) struct Changes<'a> {
    payloads: &'a [u8],
    places: &'a [(u64, usize)],
}

impl Batch {
    /// Reads records up to the sequence number `last`. Ends earlier with the one with which the
    /// payloads take `limit` bytes or more.
    ///
    /// # Errors
    ///
    /// `DamagedFile` if a record up to `last` is missing.
    pub(super) fn read(reader: &mut LogReader<'_>, last: u64, limit: usize) -> Result<Self> {
        let mut batch = Batch { sequence: reader.sequence(), ..Batch::default() };
        while batch.sequence < last && batch.payloads.len() < limit {
            match reader.next()? {
                Some(record) => {
                    let header = record.header;
                    if !batch.push(&record) {
                        return Err(reader.impossible(&header));
                    }
                }
                None if planted(Mistake::CheckpointAhead) => break,
                None => return Err(reader.lost("it was durable before")),
            }
            batch.end = reader.position();
        }
        batch.sort();
        Ok(batch)
    }

    /// Returns the bytes of all payloads.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payloads.len()
    }

    /// Has the pages in order, after records were [added](Batch::push).
    pub(super) fn sort(&mut self) {
        self.pages.sort_unstable();
    }

    /// Adds a record. Returns `false` if its payload is impossible.
    pub(super) fn push(&mut self, record: &Record<'_>) -> bool {
        let base = self.payloads.len();
        for page in pages(record.payload) {
            match page {
                Some((at, page)) if page.is_in(record.header.region_len) => {
                    self.pages.push((page.page, base + at));
                }
                _ => return false,
            }
        }
        self.payloads.extend_from_slice(record.payload);
        self.sequence = record.header.sequence;
        self.region_len = record.header.region_len;
        self.time = record.header.time;
        self.log_bytes += log_bytes(record.header.payload);
        true
    }

    /// Returns whether there is no record.
    pub(super) fn is_empty(&self) -> bool {
        self.log_bytes == 0
    }

    /// Returns the numbers of the pages with their changes, in ascending order.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u64, Changes<'_>)> {
        self.pages
            .chunk_by(|one, other| one.0 == other.0)
            .map(|places| (places[0].0, Changes { payloads: &self.payloads, places }))
    }
}

impl Changes<'_> {
    /// Copies the changed lines into the contents of the page.
    pub(super) fn apply(&self, page: &mut [u8]) {
        for (_, at) in self.places {
            if let Some((lines, _)) = PageLines::parse(&self.payloads[*at..]) {
                lines.apply(page);
            }
        }
    }
}
