//! The snapshot that a clean shutdown saves, so that the next open need not sweep.
//!
//! A snapshot is a list of words: for each extent in use its table entry and then its bitmap, and
//! between extents the number of free units. Only the `snapshot` words of the region's header refer
//! to it, and these count only while the region is marked clean. So an open discards it, and its
//! extents are free as soon as it is read.

use std::ops::Range;

use super::extents::ExtentState;
use super::{Heap, lock};
use crate::medium::Medium;
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

    /// Opens the closed extents as the snapshot says. If it does not verify, they stay closed until
    /// they are swept.
    pub(super) fn restore_snapshot(&self) {
        if let Some(words) = self.read_snapshot() {
            if let Some(restored) = self.parse_snapshot(&words) {
                self.apply_snapshot(restored);
            } else {
                self.fault();
            }
        }
    }

    fn read_snapshot(&self) -> Option<Vec<u64>> {
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
