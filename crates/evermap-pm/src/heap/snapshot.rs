//! The snapshot that a clean shutdown saves, so that the next open need not sweep.
//!
//! A snapshot is a list of words: for each extent in use its table entry and then its bitmap, and
//! between extents the number of free units. Only the `snapshot` words of the region's header refer
//! to it, and these count only while the region is marked clean. So an open discards it, and its
//! extents are free as soon as it is read.

use std::ops::Range;

use super::extents::{Extent, ExtentState};
use super::{Heap, lock};
use crate::medium::Medium;
use crate::region::{TableEntry, Usage};
use crate::{PmU64, Result};

/// Marks an extent in use. No entry has this bit, because no extent of blocks has that number of
/// units, and no region has that number of free units.
const IN_USE: u64 = 1 << 31;

impl<M: Medium> Heap<M> {
    /// Saves which blocks are allocated, without making that durable. There must be no allocations
    /// and frees afterwards.
    ///
    /// # Errors
    ///
    /// `NoSpace`, in which case the next open sweeps.
    pub(crate) fn save_snapshot(&self) -> Result<()> {
        self.return_magazines(|_| true);
        let words = self.snapshot_words();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let offset = self.allocate_large(bytes.len() as u64, true)?;
        let m = self.region.medium();
        let cells = m.slice::<PmU64>(offset, words.len() as u64).expect("just allocated");
        m.write_bytes(cells, &bytes);
        let fields = &self.region.header().snapshot;
        m.store(&fields[0], offset);
        m.store(&fields[1], bytes.len() as u64);
        m.store(&fields[2], u64::from(crc32c::crc32c(&bytes)));
        Ok(())
    }

    fn snapshot_words(&self) -> Vec<u64> {
        let (mut words, mut end) = (Vec::new(), 0);
        self.for_each_extent(|index, extent| {
            words.extend((index > end).then_some(index - end));
            words.push(extent.entry.encode(index) | IN_USE);
            words.extend(&extent.bits);
            end = index + extent.entry.units;
        });
        words
    }

    /// Stores entries of the table again that were lost: nothing can be in their place, but the
    /// snapshot has them. Returns their number; the table has to be read again then. Durable on
    /// return. Looks at every unit, so it is for tables that do not agree with the snapshot.
    pub(super) fn restore_table(&self, words: &[u64]) -> u64 {
        let (m, end, parts) = (self.region.medium(), self.described(), self.table_parts());
        let (mut words, mut index, mut restored) = (words.iter(), 0, 0);
        while let Some(&word) = words.next() {
            let entry = match parts.get(&index) {
                _ if word & IN_USE == 0 => TableEntry { usage: Usage::Free, units: word },
                Some(&units) => TableEntry { usage: Usage::Table, units },
                None => match TableEntry::decode(word & !IN_USE, index, &self.geometry) {
                    Some(entry) => entry,
                    // It does not agree with the region, and is refused as a whole.
                    None => break,
                },
            };
            let units = index..index.saturating_add(entry.units).min(end);
            if entry.usage != Usage::Table {
                restored +=
                    units.clone().filter(|&it| self.restore_entry(index, entry, it)).count();
            }
            index = units.end;
            let bits = Extent::count_blocks(entry, &self.geometry).div_ceil(64) as usize;
            words.by_ref().take(bits).for_each(drop);
        }
        if restored > 0 {
            m.fence();
            let at = m.offset_of(self.region.entry(0));
            self.region.note_damage(at, || {
                format!(
                    "the extent table lacked {restored} entries, which the last close had saved"
                )
            });
        }
        restored as u64
    }

    /// Stores the entry of one `unit` of the extent that begins with unit `first`, if that unit has
    /// none. Returns `true` if so.
    fn restore_entry(&self, first: u64, extent: TableEntry, unit: u64) -> bool {
        let (m, cell) = (self.region.medium(), self.region.entry(unit));
        let now = TableEntry::decode(m.load(cell), unit, &self.geometry);
        let is_lost = now.is_none_or(|entry| entry.usage == Usage::Unused);
        let entry = match extent.usage {
            Usage::Blocks(_) | Usage::Large if unit > first => TableEntry::TAIL.encode(unit),
            Usage::Free => TableEntry::FREE.encode(unit),
            _ => extent.encode(first),
        };
        // A unit that nothing is known of has no entry to be restored.
        if is_lost && entry != m.load(cell) {
            m.store(cell, entry);
            m.flush(cell);
            return true;
        }
        false
    }

    /// Opens the closed extents as the snapshot says. Returns `false` if it does not agree with the
    /// table: they stay closed then until they are swept.
    pub(super) fn restore_snapshot(&self, words: &[u64]) -> bool {
        let restored = self.parse_snapshot(words);
        restored.map(|restored| self.apply_snapshot(restored)).is_some()
    }

    /// Returns the words of the snapshot, if there is one that verifies.
    pub(super) fn read_snapshot(&self) -> Option<Vec<u64>> {
        let (m, fields) = (self.region.medium(), &self.region.header().snapshot);
        let (offset, length) = (m.load(&fields[0]), m.load(&fields[1]));
        // At most one bit per granule of the medium, and several words per extent.
        if offset == 0 || length > m.len() / 64 + 8 * self.extents.len {
            return None;
        }
        let cells = m.slice::<PmU64>(offset, length / 8)?;
        let mut bytes = vec![0; cells.len() * 8];
        m.read_bytes(cells, &mut bytes);
        if u64::from(crc32c::crc32c(&bytes)) != m.load(&fields[2]) {
            self.fault();
            return None;
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        Some(bytes.chunks_exact(8).map(word).collect())
    }

    /// Returns what the words say about each unit or extent, up to the last unit that was ever
    /// used. Returns `None` if they do not agree with the table.
    fn parse_snapshot(&self, words: &[u64]) -> Option<Vec<Restored>> {
        let frontier = lock(&self.shared).frontier;
        let mut words = words.iter().copied();
        let (mut restored, mut index) = (Vec::new(), 0);
        while let Some(word) = words.next() {
            if word & IN_USE == 0 {
                let end = index + word.min(frontier);
                restored.push(Restored::Free(index..end));
                index = end;
                continue;
            }
            if index >= frontier {
                return None;
            }
            let now = self.extents.lock(index);
            // Readers rely on the table, so a snapshot of a different table is not valid.
            if now.state == ExtentState::Free || now.entry.encode(index) | IN_USE != word {
                return None;
            }
            let bits: Vec<u64> = words.by_ref().take(now.words()).collect();
            let valid = |(i, bits): (usize, &u64)| bits & !now.valid_bits(i) == 0;
            if bits.len() != now.words() || !bits.iter().enumerate().all(valid) {
                return None;
            }
            restored.push(Restored::Used(index, bits));
            index += now.entry.units;
        }
        if index > frontier {
            return None;
        }
        // Units after the last extent were used for the snapshot itself.
        restored.push(Restored::Free(index..frontier));
        Some(restored)
    }

    fn apply_snapshot(&self, restored: Vec<Restored>) {
        for part in restored {
            match part {
                Restored::Used(index, bits) => {
                    let extent = &mut *self.extents.lock(index);
                    if extent.state == ExtentState::Closed {
                        extent.bits = bits;
                        self.reopen(index, extent);
                    }
                }
                Restored::Free(units) => {
                    for index in units.clone() {
                        if let Some(mut extent) = self.extents.lock_existing(index) {
                            extent.state = ExtentState::Free;
                        }
                    }
                    self.release_unclaimed(&mut lock(&self.shared), units);
                }
            }
        }
    }
}

/// A part of a parsed snapshot.
enum Restored {
    /// These units are free.
    Free(Range<u64>),
    /// The bitmap of the extent that begins at this unit.
    Used(u64, Vec<u64>),
}
