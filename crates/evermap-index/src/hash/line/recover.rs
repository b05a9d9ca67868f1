//! Recovery, one segment at a time, when it is first touched.
//!
//! Every opener begins with all segments stale: the directory's entries carry the stamp of an earlier one. The first
//! to meet a stale entry finishes what a crash may have interrupted:
//!
//! * a split whose shape or directory range was not finished: the first entry of the upper half's
//!   range tells that it was committed, and the [directory](crate::hash::directory) which entry
//!   decides over each of the others;
//! * a merge whose ranges were not finished: the first entry of the right sibling's range decides;
//! * a move that left two copies of a record: the foreign one is dropped;
//! * filters and locks, which are never flushed: made from the slots.
//! * anything that a process stored and did not live to make durable: the segment, its chain and the entries that
//!   recovery goes by are flushed as they are found.
//!
//! Then it stamps the segment's whole range, so that a segment that was recovered never has a stale entry for long.
//! Nothing is redone that was not committed, so recovery allocates nothing and can be interrupted and repeated.

use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Error, Medium, Result};

use super::layout::{Geometry, OFFSET, Segment};
use super::{HashPrefix, LineHash, is_segment};
use crate::hash::directory::Shared;
use crate::key::Quotient;

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Recovers the segment at `offset`, or waits until someone else has. Afterwards its entries are stamped, or no
    /// entry names it any more.
    ///
    /// # Errors
    /// `Damaged` if there is no segment, or one that contradicts the directory; it stays stale then.
    #[cold]
    pub(super) fn recover(&self, offset: u64) -> Result<()> {
        self.region.ensure_sound()?;
        let _one_at_a_time = self.recovering(offset);
        let m = self.medium();
        let segment = self.segment(offset)?;
        if !is_segment(m, &segment.header) {
            return Err(Error::damaged(
                offset,
                "a directory entry names something that is no segment",
            ));
        }
        let mut shape = HashPrefix::decode(m.load(&segment.header.shape))
            .filter(|shape| shape.depth >= Geometry::<L, N>::DEPTH_MIN)
            .ok_or_else(|| Error::damaged(offset, "impossible shape of a segment"))?;
        if m.load(&segment.header.generation) != self.pool.generation() {
            let finished = self.finish_structure(offset, segment, shape);
            match self.directory.unless_gone(offset, finished)? {
                Some(finished) => shape = finished,
                None => return Ok(()),
            }
            self.rebuild(segment, shape);
            self.recovered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            m.store_transient(&segment.header.generation, self.pool.generation());
        }
        // Up to here everyone waits for us, because every entry is stale.
        self.stamp_range(offset, shape);
        Ok(())
    }

    fn recovering(&self, offset: u64) -> MutexGuard<'_, ()> {
        let stripe = &self.recovering[(offset / 64) as usize % self.recovering.len()];
        stripe.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The offset that the first entry of a range holds.
    fn first(&self, shape: HashPrefix, latch: &Shared<'_>) -> u64 {
        self.directory.first(shape, latch) & OFFSET
    }

    /// Finishes a split or merge of this segment that was committed. Answers its shape, `None` if it was merged
    /// away.
    ///
    /// Other segments change their entries meanwhile, so entries are only ever swapped from what must not be there.
    fn finish_structure(
        &self,
        offset: u64,
        segment: &Segment<L>,
        shape: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        let m = self.medium();
        let latch = self.directory.share();
        if shape.depth > self.directory.depth() {
            return Err(Error::damaged(offset, "a segment is deeper than the directory"));
        }
        m.note(Note::Harmless(
            "needed in the middle of a split: `a_split_that_recovery_finds_is_durable_before_it_is_used`",
        ));
        self.directory.keep_around(shape, &latch);
        if let Some(merged) = self.merged_into(offset, shape, &latch) {
            self.swap_entries(shape, &latch, merged, |named| named == offset);
            return Ok(None);
        }
        let mut shape = shape;
        if let Some(upper) = self.unfinished_split(offset, shape, &latch) {
            shape = upper.parent().expect("a half").half(0);
            // Durable with the rest of the segment, before anything is dropped from it.
            m.store(&segment.header.shape, shape.encode());
        }
        self.finish_sibling_range(offset, shape, &latch)?;
        self.finish_own_range(offset, shape, &latch);
        if self.first(shape, &latch) != offset {
            return Err(Error::damaged(
                offset,
                "the directory and a segment disagree on its place",
            ));
        }
        Ok(Some(shape))
    }

    /// The entry of the segment that this one was merged into, if it was.
    fn merged_into(&self, offset: u64, shape: HashPrefix, latch: &Shared<'_>) -> Option<u64> {
        let parent = shape.parent()?;
        let entry = self.directory.first(parent.half(1), latch);
        let named = entry & OFFSET;
        (named != offset && self.shape_at(named) == Some(parent)).then_some(entry)
    }

    /// The upper half of this segment, if it was split off but this segment does not say so yet. What got it may have
    /// been split again since, and again: nobody had to touch this segment for that.
    fn unfinished_split(
        &self,
        offset: u64,
        shape: HashPrefix,
        latch: &Shared<'_>,
    ) -> Option<HashPrefix> {
        let upper = (shape.depth < self.directory.depth()).then(|| shape.half(1))?;
        let named = self.first(upper, latch);
        let serves = |shape: HashPrefix| upper.contains(shape);
        (named != offset && self.shape_at(named).is_some_and(serves)).then_some(upper)
    }

    /// Entries of the upper half that still name this, the lower half. Parts of the upper half may
    /// have been split since.
    fn finish_sibling_range(
        &self,
        offset: u64,
        shape: HashPrefix,
        latch: &Shared<'_>,
    ) -> Result<()> {
        let Some(sibling) = shape.parent().map(|parent| parent.half(1)) else { return Ok(()) };
        if sibling == shape {
            return Ok(());
        }
        if self.first(sibling, latch) == offset {
            return Err(Error::damaged(
                offset,
                "the directory gives a segment more than its shape",
            ));
        }
        self.directory.finish_range(sibling, offset, |named| self.shape_at(named), latch);
        Ok(())
    }

    /// Entries that still name the two segments that were merged into this one.
    fn finish_own_range(&self, offset: u64, shape: HashPrefix, latch: &Shared<'_>) {
        if shape.depth >= self.directory.depth() || self.first(shape.half(1), latch) != offset {
            return;
        }
        self.swap_entries(shape, latch, offset, |named| {
            let old = self.shape_at(named);
            named != offset && (old == Some(shape.half(0)) || old == Some(shape.half(1)))
        });
    }

    /// Points those entries of a range that `wrong` picks by their offsets to `right`, durably.
    fn swap_entries(
        &self,
        range: HashPrefix,
        latch: &Shared<'_>,
        right: u64,
        wrong: impl Fn(u64) -> bool,
    ) {
        let m = self.medium();
        let mut changed = false;
        for entry in self.directory.range(range, latch) {
            let word = m.load(entry);
            if wrong(word & OFFSET) && m.cas(entry, word, right).is_ok() {
                m.flush(entry);
                changed = true;
            }
        }
        if changed {
            m.fence();
        }
    }

    /// Stamps the entries of `shape`'s range that name the segment at `offset`.
    fn stamp_range(&self, offset: u64, shape: HashPrefix) {
        let (m, latch) = (self.medium(), self.directory.share());
        if shape.depth > self.directory.depth() {
            return;
        }
        for entry in self.directory.range(shape, &latch) {
            let word = m.load(entry);
            if word & OFFSET == offset && word != offset | self.stamp {
                // A stamp need not persist. Where the swap fails, someone else has stamped or replaced the entry.
                let _ = m.cas_transient(entry, word, offset | self.stamp);
            }
        }
    }

    /// Takes the stamp from every directory entry, so that each segment is recovered before it is used.
    pub(super) fn unstamp_all(&self) {
        let (m, latch) = (self.medium(), self.directory.share());
        for entry in self.directory.range(HashPrefix { depth: 0, pattern: 0 }, &latch) {
            let word = m.load(entry);
            // Any stamp but ours will do.
            m.store_transient(entry, word & OFFSET | !self.stamp & !OFFSET);
            if let Some(segment) = m.at::<Segment<L>>(word & OFFSET) {
                m.store_transient(&segment.header.generation, !self.pool.generation());
            }
        }
    }
}
