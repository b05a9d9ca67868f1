//! What an orderly close saves, so that the next open need not sweep.
//!
//! A snapshot is a list of words: for each extent in use its table entry, then its bits, and between them how many
//! units are free. It is named only by the region's `snapshot` words, which count only while the region is
//! marked clean: so opening forgets it, and its extents are free as soon as it is read.

use std::ops::Range;

use super::{Heap, Life, hold};
use crate::medium::Medium;
use crate::{PmU64, Result};

/// Marks an extent in use. No entry has this bit, since no extent of blocks has so many units; and no region so many
/// free ones.
const IN_USE: u64 = 1 << 31;

impl<M: Medium> Heap<M> {
    /// Saves which blocks are taken, without making that durable. Nothing may be allocated or freed any more.
    ///
    /// # Errors
    /// `NoSpace`, after which the next open sweeps.
    pub(crate) fn save_snapshot(&self) -> Result<()> {
        self.put_back_hands(|_| true);
        let words = self.snapshot_words();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let offset = self.allocate_large(bytes.len() as u64)?;
        let m = self.region.medium();
        let cells = m.slice::<PmU64>(offset, words.len() as u64).expect("just allocated");
        m.write_bytes(cells, &bytes);
        let place = &self.region.header().snapshot;
        m.store(&place[0], offset);
        m.store(&place[1], bytes.len() as u64);
        m.store(&place[2], u64::from(crc32c::crc32c(&bytes)));
        Ok(())
    }

    fn snapshot_words(&self) -> Vec<u64> {
        let (mut words, mut end) = (Vec::new(), 0);
        self.for_each_extent(|index, extent| {
            words.extend((index > end).then_some(index - end));
            words.push(extent.shape.encode(index) | IN_USE);
            words.extend(&extent.bits);
            end = index + extent.shape.units;
        });
        words
    }

    /// Opens the closed extents as the snapshot says. Leaves them closed, to be swept, if it does not verify.
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
        let (m, place) = (self.region.medium(), &self.region.header().snapshot);
        let (offset, length) = (m.load(&place[0]), m.load(&place[1]));
        // At most a bit for each granule of the medium, and some words an extent.
        if offset == 0 || length > m.len() / 64 + 8 * self.extents.len {
            return None;
        }
        let cells = m.slice::<PmU64>(offset, length / 8)?;
        let mut bytes = vec![0; cells.len() * 8];
        m.read_bytes(cells, &mut bytes);
        if u64::from(crc32c::crc32c(&bytes)) != m.load(&place[2]) {
            self.fault();
            return None;
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        Some(bytes.chunks_exact(8).map(word).collect())
    }

    /// What the words say of each unit or extent, up to the last that was ever used. `None` if they do not agree with the
    /// table.
    fn parse_snapshot(&self, words: &[u64]) -> Option<Vec<Restored>> {
        let frontier = hold(&self.shared).frontier;
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
            let now = self.extents.hold(index);
            // The table is what readers go by; a snapshot of another table is none.
            if now.life == Life::Free || now.shape.encode(index) | IN_USE != word {
                return None;
            }
            let bits: Vec<u64> = words.by_ref().take(now.bits.len()).collect();
            let valid = |(i, bits): (usize, &u64)| bits & !now.valid_bits(i) == 0;
            if bits.len() != now.bits.len() || !bits.iter().enumerate().all(valid) {
                return None;
            }
            restored.push(Restored::Used(index, bits));
            index += now.shape.units;
        }
        if index > frontier {
            return None;
        }
        // What lies behind was taken for the snapshot itself.
        restored.push(Restored::Free(index..frontier));
        Some(restored)
    }

    fn apply_snapshot(&self, restored: Vec<Restored>) {
        for part in restored {
            match part {
                Restored::Used(index, bits) => {
                    let extent = &mut *self.extents.hold(index);
                    if extent.life == Life::Closed {
                        extent.bits = bits;
                        self.reopen(index, extent);
                    }
                }
                Restored::Free(units) => {
                    for index in units.clone() {
                        if let Some(mut extent) = self.extents.hold_known(index) {
                            extent.life = Life::Free;
                        }
                    }
                    self.put_into_unclaimed(&mut hold(&self.shared), units);
                }
            }
        }
    }
}

/// What a snapshot says.
enum Restored {
    /// These units are free.
    Free(Range<u64>),
    /// The blocks of the extent that begins here which are taken.
    Used(u64, Vec<u64>),
}
