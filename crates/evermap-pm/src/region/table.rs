//! The table of extents: finding its parts, reading its entries, and growing it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::entry::TableEntry;
use super::{OnSuspect, Region};
use crate::medium::Medium;
use crate::{Error, PmU64, Result};

/// Offset of the first part of the table.
pub(super) const TABLE: u64 = 12288;

/// Offset of the first unit.
pub(super) const HEADER_BYTES: u64 = 16384;

/// Number of units that the first part of the table describes.
const FIRST_PART: u64 = (HEADER_BYTES - TABLE) / 8;

/// Number of parts that the table can have in addition to the first.
pub(super) const PARTS: usize = 16;

/// Bits of the offset in a word that refers to a part of the table. The upper bits are a check.
const PART_BITS: u32 = 48;

/// What an opening finds in the table about units beyond the end of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beyond {
    /// The number of units that were cut off.
    cut: u64,
    /// The first unit that was never in the file. Entries from this one on are damage.
    end: u64,
}

impl<M: Medium> Region<M> {
    /// Finds the later parts of the table. If the file is too short for one, it was truncated. If
    /// it is opened nevertheless, nothing that this part describes is left.
    ///
    /// Returns the words that should refer to them.
    ///
    /// # Errors
    ///
    /// `Damaged`; if the file was truncated, unless `on_suspect` allows it.
    pub(super) fn find_parts(&mut self, on_suspect: OnSuspect) -> Result<[u64; PARTS]> {
        let m = &self.medium;
        let mut found = [0; PARTS];
        let (mut last, mut cut) = (false, false);
        for part in 1..=PARTS {
            let copies = self.part_words(part);
            let words = copies.map(|word| m.load(word));
            let valid = |word: &&u64| part_word(part, *word % (1 << PART_BITS)) == **word;
            let Some(&word) = words.iter().find(valid) else {
                if words != [0, 0] {
                    let at = m.offset_of(copies[0]);
                    return Err(Error::damaged(
                        at,
                        "both words that refer to a part of the extent table",
                    ));
                }
                last = true;
                continue;
            };
            let (at, entries) = (word % (1 << PART_BITS), self.part_entries(part));
            if last
                || entries.is_empty()
                || at < HEADER_BYTES
                || !(at - HEADER_BYTES).is_multiple_of(self.unit())
            {
                return Err(Error::damaged(at, "the parts of the extent table are inconsistent"));
            }
            let end = at + (entries.end - entries.start) * 8;
            let whole = !cut && end <= m.len();
            if !whole && on_suspect == OnSuspect::Refuse {
                return Err(self.truncated_before(end));
            }
            if whole {
                found[part - 1] = word;
                *self.parts[part - 1].get_mut() = at;
            }
            cut |= !whole;
        }
        self.parts_lost = cut;
        Ok(found)
    }

    /// Stores these words in both copies of the words that refer to parts of the table: an
    /// interrupted growth may have stored only one of them, and a truncated file may have lost
    /// parts. Fenced together with the generation.
    pub(super) fn store_part_words(&self, words: [u64; PARTS]) {
        let cells = self.header().parts.iter().flat_map(|copy| copy.iter().zip(words));
        for (cell, word) in cells {
            if self.medium.load(cell) != word {
                self.medium.store(cell, word);
                self.medium.flush(cell);
            }
        }
    }

    /// Checks the entries of the extent table for units beyond the end of the file. The file never
    /// ends before a unit in use, so either it was truncated, or the entries are damaged.
    ///
    /// Returns what there is if any of these entries is not zero.
    ///
    /// # Errors
    ///
    /// `Damaged` if the file was truncated, unless `on_suspect` allows it.
    pub(super) fn check_length(&self, on_suspect: OnSuspect) -> Result<Option<Beyond>> {
        let (whole, count) = (self.units_in_file(), self.described());
        if self.entries_equal(whole..count, 0) {
            return Ok(None);
        }
        // Units are used in ascending order. So if the file was truncated, the entry of the first
        // unit beyond its end is valid; any other entry is damage, and never described a unit.
        let end = (whole..count).find(|&index| !self.is_used_entry(index));
        let end = end.unwrap_or(count);
        if end > whole && on_suspect == OnSuspect::Refuse {
            return Err(self.truncated_before(self.unit_offset(end)));
        }
        Ok(Some(Beyond { cut: end - whole, end }))
    }

    /// Makes a file that was cut off as long as it was before, with zeros. So what still refers to
    /// the units that it has lost finds nothing there, instead of what would be stored there once
    /// the file has grown again. Returns `true` if the file was cut off.
    ///
    /// # Errors
    ///
    /// `NoSpace`; then nothing has changed.
    pub(super) fn restore_length(&self, beyond: Option<Beyond>) -> Result<bool> {
        let Some(Beyond { cut, end }) = beyond else { return Ok(false) };
        if !self.medium.is_read_only() {
            self.medium.grow(self.unit_offset(end))?;
        }
        Ok(cut > 0)
    }

    /// Returns `true` if the file is longer by a quarter than the units that were ever used. It
    /// grows by less ahead of need, so either a process was killed while it allocated much, or the
    /// table is older than other parts of the file. O(units beyond those).
    pub fn is_longer_than_used(&self) -> bool {
        let units = self.units_in_file();
        let unused = self.entries(0..units).rev().take_while(|entry| self.medium.load(entry) == 0);
        let unused = unused.count() as u64 + units.saturating_sub(self.described());
        unused > (units - unused.min(units)) / 4 && unused * self.unit() > 1 << 20
    }

    /// Returns `true` if the table's entry for unit `index` is valid and says that the unit was in
    /// use at some time.
    fn is_used_entry(&self, index: u64) -> bool {
        let entry = self.medium.load(self.entry(index));
        entry != 0 && TableEntry::decode(entry, index, &self.geometry()).is_some()
    }

    /// Returns the error for a file that once extended to `end` at least.
    fn truncated_before(&self, end: u64) -> Error {
        let len = self.medium.file_len();
        let text = format!("the file has {len} bytes, but had {end} at least: it was cut off");
        Error::salvageable(len, text)
    }

    /// Clears the entries of the extent table for units that were never in the file, and for those
    /// that were cut off from a medium that cannot grow again.
    pub(super) fn clear_entries(&mut self, beyond: Option<Beyond>) {
        let Some(Beyond { cut, end }) = beyond else { return };
        let m = &self.medium;
        let first = if m.is_read_only() { end - cut } else { end };
        let mut faults = cut;
        for entry in (first..self.described()).map(|index| self.entry(index)) {
            if m.load(entry) != 0 {
                m.store(entry, 0);
                // Fenced together with the generation, before any request is served.
                m.flush(entry);
                faults += 1;
            }
        }
        self.table_faults = faults;
    }

    /// Returns the number of invalid entries that the extent table had when the region was opened,
    /// and of units that were cut off.
    pub(crate) fn table_faults(&self) -> u64 {
        self.table_faults
    }

    /// Returns the units that part `part` of the table describes. Empty if the region has too few
    /// units for that part.
    fn part_entries(&self, part: usize) -> std::ops::Range<u64> {
        let end = |part: usize| (FIRST_PART << (2 * part)).min(self.unit_count);
        if part == 0 { 0..end(0) } else { end(part - 1)..end(part) }
    }

    /// Returns the number of units that the table describes.
    pub(crate) fn described(&self) -> u64 {
        self.part_entries(self.count_parts()).end
    }

    /// Returns the words that refer to part `part` of the table.
    pub(crate) fn part_words(&self, part: usize) -> [&PmU64; 2] {
        self.header().parts.each_ref().map(|copy| &copy[part - 1])
    }

    fn count_parts(&self) -> usize {
        self.parts.iter().take_while(|at| at.load(Ordering::Acquire) != 0).count()
    }

    /// Returns the table's entry for unit `index`.
    ///
    /// # Panics
    ///
    /// If the table does not [describe](Region::described) it.
    pub(crate) fn entry(&self, index: u64) -> &PmU64 {
        &self.entries_from(index)[0]
    }

    /// Returns the entry for unit `index` and all those after it in the same part of the table.
    ///
    /// # Panics
    ///
    /// If the table does not [describe](Region::described) that unit.
    pub(crate) fn entries_from(&self, index: u64) -> &[PmU64] {
        // Each part ends at four times as many units as the previous one.
        let part = (index / FIRST_PART).checked_ilog2().map_or(0, |twos| twos as usize / 2 + 1);
        let (all, at) = (self.part_entries(part), self.part_at(part));
        assert!(at != 0 && all.contains(&index), "unit {index} is not described");
        let (before, count) = (index - all.start, all.end - index);
        self.medium.slice(at + before * 8, count).expect("checked when opened")
    }

    /// Returns the entries of those of these units that the table [describes](Region::described),
    /// in ascending order. Faster than calling [`entry`](Region::entry) for each of them.
    pub(crate) fn entries(&self, units: Range<u64>) -> impl DoubleEndedIterator<Item = &PmU64> {
        (0..=self.count_parts()).flat_map(move |part| {
            let all = self.part_entries(part);
            let wanted = units.start.clamp(all.start, all.end)..units.end.clamp(all.start, all.end);
            let (at, count) = (wanted.start - all.start, wanted.end.saturating_sub(wanted.start));
            let cells = self.medium.slice::<PmU64>(self.part_at(part) + at * 8, count);
            cells.expect("checked when opened")
        })
    }

    /// Returns `true` if the entries of all these units, which the table must
    /// [describe](Region::described), are `wanted`. An opening looks at most entries so: eight
    /// between two decisions.
    pub(crate) fn entries_equal(&self, units: Range<u64>, wanted: u64) -> bool {
        let differ = |entries: &[PmU64]| {
            let bits = entries.iter().map(|entry| self.medium.load(entry) ^ wanted);
            bits.fold(0, |all, one| all | one) != 0
        };
        let mut index = units.start;
        while index < units.end {
            let entries = self.entries_from(index);
            let here = (units.end - index).min(entries.len() as u64);
            let (eights, rest) = entries[..here as usize].as_chunks::<8>();
            if eights.iter().any(|entries| differ(entries)) || differ(rest) {
                return false;
            }
            index += here;
        }
        true
    }

    /// Returns the offset of part `part` of the table, or 0 if it does not exist.
    fn part_at(&self, part: usize) -> u64 {
        match part.checked_sub(1) {
            None => TABLE,
            // Acquire: the part was zeroed and made usable before its offset was stored.
            Some(later) => self.parts[later].load(Ordering::Acquire),
        }
    }

    /// Returns `true` if the file may have had a part of the table that was cut off. What still
    /// refers to the units of that part would find what is stored there now, so they must not be
    /// used again.
    pub(crate) fn may_lack_parts(&self) -> bool {
        self.parts_lost
    }

    /// Returns the byte ranges of the later parts of the table.
    pub(crate) fn parts(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        (1..=self.count_parts()).map(|part| {
            let at = self.parts[part - 1].load(Ordering::Acquire);
            let entries = self.part_entries(part);
            at..at + (entries.end - entries.start) * 8
        })
    }

    /// Returns the number of bytes that the next part of the table needs, or 0 if it describes all
    /// units.
    pub(crate) fn next_part_bytes(&self) -> u64 {
        let entries = self.part_entries(self.count_parts() + 1);
        (entries.end - entries.start) * 8
    }

    /// Makes the bytes at `at` the next part of the table. Durable on return. Must be called by one
    /// thread at a time, with [`next_part_bytes`](Region::next_part_bytes) usable there, which must
    /// not be 0.
    pub(crate) fn add_part(&self, at: u64) {
        let (m, part) = (&self.medium, self.count_parts() + 1);
        let cells = m.slice::<PmU64>(at, self.next_part_bytes() / 8).expect("made usable");
        for cell in cells {
            // An earlier process may have used the space and lost the reference to it in a crash.
            if m.load(cell) != 0 {
                m.store(cell, 0);
            }
        }
        m.flush(cells);
        m.fence();
        for copy in self.part_words(part) {
            m.store(copy, part_word(part, at));
            m.flush(copy);
        }
        m.fence();
        // Release: a thread that sees the part sees the zeros.
        self.parts[part - 1].store(at, Ordering::Release);
    }
}

/// Returns the word that says that part `part` of the table is at `at`. Never 0.
fn part_word(part: usize, at: u64) -> u64 {
    let check = crc32c::crc32c(&[at.to_le_bytes(), (part as u64).to_le_bytes()].concat());
    at | u64::from(check as u16 | 1) << PART_BITS
}
