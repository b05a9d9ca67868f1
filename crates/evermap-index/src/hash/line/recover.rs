//! Recovery of what is inside a segment of a line hash. When it happens, and the rest, is in
//! `hash/segmented/recover`.
//!
//! Every opener begins with all segments stale: the directory's entries carry the generation of an
//! earlier one. A crash may have left
//!
//! * two copies of a record that was being moved: the foreign one is dropped;
//! * filters and locks, which are never flushed, in any state: they are made from the slots;
//! * anything that a thread stored before its process died and before it was durable: the segment,
//!   its chain and the entries that recovery goes by are flushed as they are found.
//!
//! In the end the entries of the segment's whole range get the generation, so that a segment that
//! was recovered never has a stale entry for long.

use evermap_pm::{Medium, Result};

use super::layout::{Geometry, OFFSET, Segment};
use super::{HashPrefix, LineHash};
use crate::hash::segmented::recover::{Recoverable, finish_structure, prefix_of};
use crate::hash::segmented::split::Directed;
use crate::key::Quotient;

impl<K: Quotient, M: Medium, const L: usize, const N: usize> Recoverable for LineHash<K, M, L, N> {
    // Contents are made durable when they are made consistent.
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

    /// Gives the generation to the entries of the segment's range that name it. Up to here all
    /// threads wait, because every entry is stale.
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
                // A generation need not persist. If the swap fails, another thread has changed the
                // entry.
                let _ = m.cas_transient(entry, word, fresh);
            }
        }
        Ok(())
    }
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Checks that the prefix of a segment is as deep as the geometry implies.
    ///
    /// # Errors
    /// `Damaged`.
    fn ensure_deep(&self, offset: u64, prefix: HashPrefix) -> Result<()> {
        if prefix.depth >= Geometry::<L, N>::DEPTH_MIN {
            return Ok(());
        }
        Err(evermap_pm::Error::damaged(offset, "impossible prefix of a segment"))
    }

    /// Takes the generation from every directory entry, so that each segment is recovered before it
    /// is used.
    pub(super) fn make_all_stale(&self) {
        let (m, latch) = (self.medium(), self.directory().share());
        for entry in self.directory().range(HashPrefix { depth: 0, pattern: 0 }, &latch) {
            let word = m.load(entry);
            // Any generation but this one will do.
            m.store_transient(entry, word & OFFSET | !self.generation_tag & !OFFSET);
            if let Some(segment) = m.at::<Segment<L>>(word & OFFSET) {
                m.store_transient(&segment.header.generation, !self.core.generation);
            }
        }
    }
}
