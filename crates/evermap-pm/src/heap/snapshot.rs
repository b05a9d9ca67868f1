//! What an orderly close saves, so that the next open need not sweep.
//!
//! A snapshot is a list of words: for each extent that was ever used its table entry, then its bits if it
//! is in use. It is named only by the region's `snapshot` words, which count only while the region is
//! marked clean: so opening forgets it, and its extents are free as soon as it is read.

use super::{Extent, Heap, Life, Use, hold};
use crate::medium::Medium;
use crate::{PmU64, Result};

/// Marks an extent in use; free ones have an entry of 0.
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
        let place = &self.region.words().snapshot;
        m.store(&place[0], offset);
        m.store(&place[1], bytes.len() as u64);
        m.store(&place[2], u64::from(crc32c::crc32c(&bytes)));
        Ok(())
    }

    fn snapshot_words(&self) -> Vec<u64> {
        let mut words = Vec::new();
        for index in self.frontier_extents() {
            let extent = self.extents.hold(index);
            match extent.life {
                Life::Free => words.push(0),
                Life::Open | Life::Closed => {
                    words.push(extent.used.encode(index) | IN_USE);
                    words.extend(&extent.bits);
                }
            }
        }
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
        let (m, place) = (self.region.medium(), &self.region.words().snapshot);
        let (offset, length) = (m.load(&place[0]), m.load(&place[1]));
        // At most a bit for each granule of the medium, and an entry an extent.
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

    /// The bits of every extent, `None` for a free one.
    fn parse_snapshot(&self, words: &[u64]) -> Option<Vec<Option<Vec<u64>>>> {
        let frontier = hold(&self.shared).frontier;
        let mut words = words.iter().copied();
        let mut restored = Vec::new();
        // Extents from the end of the list on were taken for the snapshot itself: free.
        while let Some(entry) = words.next() {
            let index = restored.len() as u64;
            if entry == 0 {
                restored.push(None);
                continue;
            }
            let used = (entry & IN_USE != 0).then_some(entry & !IN_USE)?;
            if index >= frontier {
                return None;
            }
            let used = Use::decode(used, index, self.region.extent_size(), frontier)?;
            let mut fresh = Extent::UNUSED;
            fresh.begin(used, Life::Closed, self.region.extent_size());
            let bits: Vec<u64> = words.by_ref().take(fresh.bits.len()).collect();
            // The table is what readers go by; a snapshot of another table is none.
            let now = self.extents.hold(index);
            let valid = |(i, bits): (usize, &u64)| bits & !fresh.valid_bits(i) == 0;
            if now.used != used
                || bits.len() != fresh.bits.len()
                || !bits.iter().enumerate().all(valid)
            {
                return None;
            }
            restored.push(Some(bits));
        }
        restored.resize(frontier as usize, None);
        Some(restored)
    }

    fn apply_snapshot(&self, restored: Vec<Option<Vec<u64>>>) {
        for (index, bits) in restored.into_iter().enumerate() {
            let extent = &mut *self.extents.hold(index as u64);
            match bits {
                Some(bits) => {
                    extent.bits = bits;
                    self.reopen(index as u64, extent);
                }
                None => {
                    extent.life = Life::Free;
                    self.offer_extents(index as u64, 1, false);
                }
            }
        }
    }
}
