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

use evermap_index::hash::segmented::recover::{Recoverable, finish_structure, prefix_of};
use evermap_index::hash::segmented::split::Directed;
use evermap_index::key::Quotient;
use evermap_pm::{Medium, Result};

use super::layout::{Geometry, OFFSET, Segment};
use super::{HashPrefix, LineHash};

impl<K: Quotient, M: Medium, const L: usize, const N: usize> Recoverable for LineHash<K, M, L, N> {
    // `rebuild` makes the contents durable.
    fn persist_contents(&self, _segment: &Segment<L>) {}

    fn finish_structure(
        &self,
        offset: u64,
        segment: &Segment<L>,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        self.ensure_deep(offset, prefix)?;
        finish_structure(self, offset, segment, prefix)
    }

    fn finish_contents(&self, segment: &Segment<L>, prefix: HashPrefix) {
        self.rebuild(segment, prefix);
        self.medium().store_transient(&segment.header.generation, self.core.generation);
    }

    /// Stores the generation in the entries of the segment's range that refer to it. Until here,
    /// all other threads wait, because every entry is stale.
    fn admit(&self, offset: u64) -> Result<()> {
        let prefix = prefix_of(self, offset)?;
        self.ensure_deep(offset, prefix)?;
        let (m, latch) = (self.medium(), self.directory().share());
        if prefix.depth > self.directory().depth() {
            return Ok(());
        }
        let fresh = self.entry_for(offset);
        for entry in self.directory().range(prefix, &latch) {
            let word = m.load(entry);
            if word & OFFSET == offset && word != fresh {
                // The generation need not be durable. If the compare-and-swap fails, another thread
                // has changed the entry.
                let _ = m.cas_transient(entry, word, fresh);
            }
        }
        Ok(())
    }
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Checks that the prefix of a segment is at least as deep as the geometry requires.
    ///
    /// # Errors
    /// `Damaged`.
    fn ensure_deep(&self, offset: u64, prefix: HashPrefix) -> Result<()> {
        if prefix.depth >= Geometry::<L, N>::DEPTH_MIN {
            return Ok(());
        }
        Err(evermap_pm::Error::damaged(offset, "impossible prefix of a segment"))
    }

    /// Makes every directory entry and segment stale, so that each segment is recovered before it
    /// is used.
    pub(super) fn make_entries_stale(&self) {
        let (m, latch) = (self.medium(), self.directory().share());
        for entry in self.directory().range(HashPrefix { depth: 0, pattern: 0 }, &latch) {
            let word = m.load(entry);
            // Any other generation makes the entry stale.
            m.store_transient(entry, word & OFFSET | !self.generation_tag & !OFFSET);
            if let Some(segment) = m.at::<Segment<L>>(word & OFFSET) {
                m.store_transient(&segment.header.generation, !self.core.generation);
            }
        }
    }
}
