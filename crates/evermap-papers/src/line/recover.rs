//! Recovery of the contents of a segment of a line hash. The other steps of recovery, and when it
//! happens, are in `hash/segmented/recover`.
//!
//! For every new opener, all segments are stale: the directory entries contain an earlier
//! generation. A crash can leave
//!
//! * two copies of a record that was being moved: the foreign one is dropped;
//! * any values in filters and locks, which are never flushed: filters are computed from the slots,
//!   and locks are released;
//! * data that the earlier process has stored, but that is not durable: the segment, its chain and
//!   the directory entries that recovery reads are flushed.
//!
//! Finally, the generation is stored in all entries of the segment's range.

use evermap_index::hash::segmented::Segmented;
use evermap_index::hash::segmented::recover::ensure_deep;
use evermap_index::hash::segmented::split::Directed;
use evermap_index::key::Quotient;
use evermap_pm::{Medium, Result};

use super::layout::{OFFSET, Segment};
use super::{HashPrefix, LineHash};

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    /// Stores the generation in the entries of a segment's range that refer to it. Until here, all
    /// other threads wait, because every entry is stale.
    pub(super) fn store_generation(&self, offset: u64) -> Result<()> {
        let prefix = self.prefix_at(offset)?;
        ensure_deep::<Self>(offset, prefix)?;
        let (m, directory) = (self.medium(), &self.map.directory);
        let latch = directory.share();
        if prefix.depth > directory.depth() {
            return Ok(());
        }
        let fresh = self.entry_for(offset);
        for entry in directory.range(prefix, &latch) {
            let word = m.load(entry);
            if word & OFFSET == offset && word != fresh {
                // The generation need not be durable. If the compare-and-swap fails, another thread
                // has changed the entry.
                let _ = m.cas_transient(entry, word, fresh);
            }
        }
        Ok(())
    }

    /// Makes every directory entry and segment stale, so that each segment is recovered before it
    /// is used.
    pub(super) fn make_entries_stale(&self) {
        let (m, latch) = (self.medium(), self.map.directory.share());
        for entry in self.map.directory.range(HashPrefix { depth: 0, pattern: 0 }, &latch) {
            let word = m.load(entry);
            // Any other generation makes the entry stale.
            m.store_transient(entry, word & OFFSET | !self.generation_tag & !OFFSET);
            if let Some(segment) = m.at::<Segment<L>>(word & OFFSET) {
                self.make_stale(segment);
            }
        }
    }
}
