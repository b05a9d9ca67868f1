//! Segments of the log: their files, and those that are ready for records to come.

use std::collections::VecDeque;

use super::mistakes::{Mistake, planted};
use super::storage::{File, Storage};
use crate::Result;

/// The name of a file that is to become a segment.
pub(super) const NEW: &str = "segment.new";
const SUFFIX: &str = ".redo";

/// Returns the name of the segment with this number.
pub(super) fn name(number: u64) -> String {
    format!("{number:016}{SUFFIX}")
}

/// Returns the number of the segment with this name. `None` if it is not one of a segment.
fn number_of(file: &str) -> Option<u64> {
    let number = file.strip_suffix(SUFFIX)?.parse().ok()?;
    (name(number) == file).then_some(number)
}

/// Returns the numbers of all segments, in ascending order.
pub(super) fn numbers(storage: &dyn Storage) -> Result<Vec<u64>> {
    let mut numbers: Vec<_> = storage.list()?.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The open file of a segment.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Box<dyn File>,
    pub(super) size: u64,
}

impl Segment {
    /// Opens the segment with this number. `None` if there is none.
    pub(super) fn open(storage: &dyn Storage, number: u64) -> Result<Option<Self>> {
        let Some(file) = storage.open(&name(number))? else { return Ok(None) };
        let size = file.size()?;
        Ok(Some(Segment { number, file, size }))
    }

    /// Creates the segment with this number durably, of zeros that are written.
    ///
    /// It gets its name only when it is complete, so that every segment can be used.
    pub(super) fn create(storage: &dyn Storage, number: u64, size: u64) -> Result<Self> {
        let create = || {
            let file = storage.create(NEW)?;
            file.allocate(size)?;
            file.sync()?;
            Ok(())
        };
        if let Err(error) = create() {
            // Best effort: the next creation truncates it.
            let _ = storage.remove(NEW);
            return Err(error);
        }
        storage.rename(NEW, &name(number))?;
        sync_names(storage)?;
        let file = storage.open(&name(number))?;
        let file = file.ok_or_else(|| missing(storage, number))?;
        Ok(Segment { number, file, size })
    }

    /// Makes the segment at least `size` bytes long, durably.
    pub(super) fn extend(&mut self, size: u64) -> Result<()> {
        if size > self.size {
            self.file.allocate(size)?;
            self.file.sync()?;
            self.size = size;
        }
        Ok(())
    }
}

/// Makes the names of segments durable.
pub(super) fn sync_names(storage: &dyn Storage) -> Result<()> {
    match planted(Mistake::NamesUnsynced) {
        true => Ok(()),
        false => storage.sync(),
    }
}

/// Returns the error for a segment that is needed and not there.
#[cold]
pub(super) fn missing(storage: &dyn Storage, number: u64) -> crate::Error {
    let advice = "put the file back, or restore the directory from a copy";
    let path = storage.path_of(&name(number));
    crate::Error::damaged_file(&path, 0, "the segment is missing", advice)
}

/// Segments that are complete and durable, and in which no record was written yet.
pub(super) struct Pool {
    ready: VecDeque<Segment>,
    /// The number of the next segment that becomes ready.
    next: u64,
}

impl Pool {
    /// Creates a pool whose first segment has the number `next`.
    pub(super) fn new(next: u64) -> Self {
        Pool { ready: VecDeque::new(), next }
    }

    /// Returns the number of segments that are ready.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Returns the number of the next segment that becomes ready.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds the segment with the number [`next`](Pool::next).
    pub(super) fn push(&mut self, segment: Segment) {
        debug_assert_eq!(segment.number, self.next);
        self.next += 1;
        self.ready.push_back(segment);
    }

    /// Takes the segment with the lowest number.
    pub(super) fn pop(&mut self) -> Option<Segment> {
        self.ready.pop_front()
    }

    /// Puts a segment back that was just taken.
    pub(super) fn put_back(&mut self, segment: Segment) {
        self.ready.push_front(segment);
    }
}
