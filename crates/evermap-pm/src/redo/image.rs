//! The files `image` and `sums`.
//!
//! Byte N of the region is byte N of the image. Bytes 4 N to 4 N + 3 of the sums belong to page N:
//! its CRC32C, exclusive-or the CRC32C of a page of zeros, little endian. So the sum of a page of
//! zeros is zero, and both files can have holes.

use std::ops::Range;

use super::batch::{Batch, Changes};
use super::mistakes::{Mistake, planted};
use super::record::PAGE;
use super::storage::{File, Storage};
use crate::{Error, Result};

const IMAGE: &str = "image";
const SUMS: &str = "sums";
/// Pages that are read, or written, together.
const WINDOW: usize = 2048;
/// Bytes of a sum.
const SUM: usize = 4;

/// The open files.
pub(super) struct Image {
    file: Box<dyn File>,
    sums: Box<dyn File>,
    zero_sum: u32,
}

/// Consecutive pages with their sums.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) first: u64,
    pub(super) bytes: Vec<u8>,
    sums: Vec<u8>,
}

impl Pages {
    /// Returns the numbers of the pages.
    pub(super) fn numbers(&self) -> Range<u64> {
        self.first..self.first + (self.bytes.len() / PAGE) as u64
    }
}

impl Image {
    /// Creates both files durably (but not their names), for a region of `region_len` bytes. `copy`
    /// is called with offsets and buffers to copy the region to.
    pub(super) fn create(
        storage: &dyn Storage,
        region_len: u64,
        mut copy: impl FnMut(u64, &mut [u8]),
    ) -> Result<Self> {
        let image = Self::of(storage.create(IMAGE)?, storage.create(SUMS)?);
        image.set_len(region_len)?;
        let mut pages = Pages::default();
        let all = region_len / PAGE as u64;
        while pages.first < all {
            let count = (WINDOW as u64).min(all - pages.first) as usize;
            pages.bytes.resize(count * PAGE, 0);
            pages.sums.resize(count * SUM, 0);
            copy(pages.first * PAGE as u64, &mut pages.bytes);
            for (page, sum) in pages.bytes.chunks_exact(PAGE).zip(pages.sums.chunks_exact_mut(SUM))
            {
                sum.copy_from_slice(&image.sum(page).to_le_bytes());
            }
            image.sums.write_at(pages.first * SUM as u64, &pages.sums)?;
            image.write_pages(&pages, false)?;
            pages.first += count as u64;
        }
        image.sums.sync()?;
        image.file.sync()?;
        Ok(image)
    }

    /// Opens both files.
    ///
    /// # Errors
    ///
    /// `DamagedFile` if one is missing.
    pub(super) fn open(storage: &dyn Storage) -> Result<Self> {
        let open = |name| {
            storage.open(name)?.ok_or_else(|| {
                let advice = "put the file back, or restore the directory from a copy";
                Error::damaged_file(&storage.path_of(name), 0, "the file is missing", advice)
            })
        };
        Ok(Self::of(open(IMAGE)?, open(SUMS)?))
    }

    fn of(file: Box<dyn File>, sums: Box<dyn File>) -> Self {
        Image { file, sums, zero_sum: crc32c::crc32c(&[0; PAGE]) }
    }

    fn sum(&self, page: &[u8]) -> u32 {
        crc32c::crc32c(page) ^ self.zero_sum
    }

    /// Checks that the image holds a region of `region_len` bytes.
    pub(super) fn check_len(&self, region_len: u64) -> Result<()> {
        let size = self.file.size()?;
        if size < region_len {
            let what = format!("it ends at {size:#x}, but should have {region_len:#x} bytes");
            return Err(Error::damaged_file(self.file.path(), size, what, RESTORE));
        }
        Ok(())
    }

    /// Reads `count` pages from `first` on, and then their sums: a checkpoint of another process
    /// writes them the other way round, so that the sum of a page that it has written is the new
    /// one. What the files do not have is zero.
    pub(super) fn read(&self, first: u64, count: usize, pages: &mut Pages) -> Result<()> {
        pages.first = first;
        pages.bytes.resize(count * PAGE, 0);
        pages.sums.resize(count * SUM, 0);
        let read = self.file.read_at(first * PAGE as u64, &mut pages.bytes)?;
        pages.bytes[read..].fill(0);
        let read = self.sums.read_at(first * SUM as u64, &mut pages.sums)?;
        pages.sums[read..].fill(0);
        Ok(())
    }

    /// Brings the page with this index among `pages` to the state after `changes`, and verifies it.
    ///
    /// Its sum is that of the page as it was, or, if a checkpoint that applies the same changes was
    /// interrupted, as it will be.
    ///
    /// # Errors
    ///
    /// `DamagedFile` if its sum is neither.
    pub(super) fn redo(
        &self,
        pages: &mut Pages,
        index: usize,
        changes: Option<Changes<'_>>,
    ) -> Result<()> {
        let page = &mut pages.bytes[index * PAGE..][..PAGE];
        let sum = &mut pages.sums[index * SUM..][..SUM];
        let mut found = self.sum(page).to_le_bytes();
        let mut verifies = *sum == found;
        if let Some(changes) = changes {
            changes.apply(page);
            found = self.sum(page).to_le_bytes();
            verifies |= *sum == found;
        }
        if !verifies {
            let offset = (pages.first + index as u64) * PAGE as u64;
            return Err(Error::damaged_file(self.file.path(), offset, WRONG_SUM, RESTORE));
        }
        sum.copy_from_slice(&found);
        Ok(())
    }

    /// Applies the records of a batch. The pages are durable on return.
    ///
    /// Each page is read, verified and written once. The new sum of a page is durable before the
    /// page is written: so whatever a crash leaves of it, applying the batch again gives a page
    /// that verifies, and damage is always noticed.
    ///
    /// # Errors
    ///
    /// `DamagedFile`, `NoSpace`, `Io`. The batch can be applied again, if no sync has failed.
    pub(super) fn apply(&self, batch: &Batch) -> Result<()> {
        self.set_len(batch.region_len)?;
        let mut runs: Vec<Pages> = Vec::new();
        let mut pages = batch.pages().peekable();
        while pages.peek().is_some() {
            runs.clear();
            let mut window: Vec<_> = Vec::new();
            window.extend(pages.by_ref().take(WINDOW));
            for run in window.chunk_by(|one, other| one.0 + 1 == other.0) {
                let mut read = Pages::default();
                self.read(run[0].0, run.len(), &mut read)?;
                for (index, (_, changes)) in run.iter().enumerate() {
                    self.redo(&mut read, index, Some(*changes))?;
                }
                runs.push(read);
            }
            self.write(&runs)?;
        }
        match planted(Mistake::SyncRetried) {
            true => self.file.sync().or_else(|_| self.file.sync()),
            false if planted(Mistake::ControlBeforeImage) => Ok(()),
            false => self.file.sync(),
        }
    }

    fn write(&self, runs: &[Pages]) -> Result<()> {
        for run in runs {
            self.sums.write_at(run.first * SUM as u64, &run.sums)?;
        }
        if !planted(Mistake::ImageBeforeSums) {
            self.sums.sync()?;
        }
        runs.iter().try_for_each(|run| self.write_pages(run, true))?;
        match planted(Mistake::ImageBeforeSums) {
            true => self.sums.sync(),
            false => Ok(()),
        }
    }

    /// Writes pages. Those of zeros become holes, if something may be in their place.
    fn write_pages(&self, pages: &Pages, punch: bool) -> Result<()> {
        let mut offset = pages.first * PAGE as u64;
        let each: Vec<_> = pages.bytes.chunks_exact(PAGE).map(is_zero).collect();
        for run in each.chunk_by(|one, other| one == other) {
            let bytes = run.len() * PAGE;
            let start = (offset - pages.first * PAGE as u64) as usize;
            match run[0] {
                false => self.file.write_at(offset, &pages.bytes[start..start + bytes])?,
                true if punch => self.file.punch(offset, bytes as u64)?,
                true => {}
            }
            offset += bytes as u64;
        }
        Ok(())
    }

    /// Makes both files long enough for a region of `region_len` bytes.
    fn set_len(&self, region_len: u64) -> Result<()> {
        let sums = region_len / PAGE as u64 * SUM as u64;
        for (file, bytes) in [(&self.file, region_len), (&self.sums, sums)] {
            // Also if it seems to be: a length can be lost by a sync that has failed.
            if file.size()? <= bytes {
                file.set_len(bytes)?;
            }
        }
        Ok(())
    }
}

const WRONG_SUM: &str = "the page does not have the contents that were written";
const RESTORE: &str = "restore the directory from a copy; if the region is still in use, create a \
                       new log of it";

/// Returns whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|line| *line == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
