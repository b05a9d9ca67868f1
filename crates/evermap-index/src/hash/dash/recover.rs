//! Recovery, one segment at a time, when it is first touched.
//!
//! Every opener begins with all segments stale: their version words carry the number of an earlier one. The
//! first to meet a stale bucket finishes what a crash may have interrupted:
//!
//! * a split whose directory range or shape was not finished: the first entry of the range decides;
//! * a merge whose ranges were not finished: the first entry of the right sibling's range decides;
//! * a displacement that left two copies of a record: one is dropped;
//! * headers that are never flushed (filters, overflow fingerprints, locks): made from the slots.
//!
//! Nothing is redone that was not committed, so recovery allocates nothing and can be interrupted and repeated.

use evermap_pm::sync::MutexGuard;
use evermap_pm::{Error, Medium, Result};

use super::DashEh;
use super::layout::{Header, Segment, Shape, Version};
use crate::Key;
use crate::hash::directory::Shared;

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> DashEh<K, M, B, S, N> {
    /// Recovers the segment at `offset`, or waits until someone else has. Afterwards it is fresh, or no entry of
    /// the directory names it any more.
    ///
    /// # Errors
    /// `Damaged` if there is no segment, or one that contradicts the directory; nothing is changed then.
    #[cold]
    pub(super) fn recover(&self, offset: u64) -> Result<()> {
        self.pool.region().ensure_sound()?;
        let _one_at_a_time = self.recovering(offset);
        let m = self.medium();
        let segment = self.segment(offset)?;
        if m.load(&segment.header.generation) == self.generation {
            return Ok(());
        }
        if m.load(&segment.header.magic) != Header::MAGIC {
            return Err(Error::damaged(
                offset,
                "a directory entry names something that is no segment",
            ));
        }
        let shape = Shape::decode(m.load(&segment.header.shape))
            .ok_or_else(|| Error::damaged(offset, "impossible shape of a segment"))?;
        if let Some(shape) = self.finish_structure(offset, segment, shape)? {
            self.finish_contents(segment, shape);
            self.count_recovered();
        }
        Ok(())
    }

    fn recovering(&self, offset: u64) -> MutexGuard<'_, ()> {
        let stripe = &self.recovering[(offset / 256) as usize % self.recovering.len()];
        stripe.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Finishes a split or merge of this segment that was committed. Answers its shape, `None` if it was merged
    /// away.
    ///
    /// Other segments change their entries meanwhile, so entries are only ever swapped from what must not be there.
    fn finish_structure(
        &self,
        offset: u64,
        segment: &Segment<B, S>,
        shape: Shape,
    ) -> Result<Option<Shape>> {
        let m = self.medium();
        let latch = self.directory.share();
        if shape.depth > self.directory.depth() {
            return Err(Error::damaged(offset, "a segment is deeper than the directory"));
        }
        if let Some(merged) = self.merged_into(offset, shape, &latch) {
            self.swap_entries(shape, &latch, merged, |entry| entry == offset);
            return Ok(None);
        }
        let mut shape = shape;
        if let Some(upper) = self.unfinished_split(offset, shape, &latch) {
            shape = upper.parent().expect("a half").half(0);
            m.store(&segment.header.shape, shape.encode());
            m.persist(&segment.header.shape);
        }
        self.finish_sibling_range(offset, shape, &latch)?;
        self.finish_own_range(offset, shape, &latch);
        if self.directory.first(shape, &latch) != offset {
            return Err(Error::damaged(
                offset,
                "the directory and a segment disagree on its place",
            ));
        }
        Ok(Some(shape))
    }

    /// The segment that this one was merged into, if it was.
    fn merged_into(&self, offset: u64, shape: Shape, latch: &Shared<'_>) -> Option<u64> {
        let parent = shape.parent()?;
        let named = self.directory.first(parent.half(1), latch);
        (named != offset && self.shape_at(named) == Some(parent)).then_some(named)
    }

    /// The upper half of this segment, if it was split off but this segment does not say so yet.
    fn unfinished_split(&self, offset: u64, shape: Shape, latch: &Shared<'_>) -> Option<Shape> {
        let upper = (shape.depth < self.directory.depth()).then(|| shape.half(1))?;
        let named = self.directory.first(upper, latch);
        (named != offset && self.shape_at(named) == Some(upper)).then_some(upper)
    }

    /// Entries of the upper half that still name this, the lower half.
    fn finish_sibling_range(&self, offset: u64, shape: Shape, latch: &Shared<'_>) -> Result<()> {
        let Some(sibling) = shape.parent().map(|parent| parent.half(1)) else { return Ok(()) };
        if sibling == shape {
            return Ok(());
        }
        let named = self.directory.first(sibling, latch);
        if named == offset {
            return Err(Error::damaged(
                offset,
                "the directory gives a segment more than its shape",
            ));
        }
        self.swap_entries(sibling, latch, named, |entry| entry == offset);
        Ok(())
    }

    /// Entries that still name the two segments that were merged into this one.
    fn finish_own_range(&self, offset: u64, shape: Shape, latch: &Shared<'_>) {
        if shape.depth >= self.directory.depth()
            || self.directory.first(shape.half(1), latch) != offset
        {
            return;
        }
        self.swap_entries(shape, latch, offset, |entry| {
            let old = self.shape_at(entry);
            entry != offset && (old == Some(shape.half(0)) || old == Some(shape.half(1)))
        });
    }

    /// Points those entries of a range that `wrong` picks to `right`, durably.
    fn swap_entries(
        &self,
        range: Shape,
        latch: &Shared<'_>,
        right: u64,
        wrong: impl Fn(u64) -> bool,
    ) {
        let m = self.medium();
        let mut changed = false;
        for entry in self.directory.range(range, latch) {
            let named = m.load(entry);
            if wrong(named) && m.cas(entry, named, right).is_ok() {
                m.flush(entry);
                changed = true;
            }
        }
        if changed {
            m.fence();
        }
    }

    /// The shape of the segment at `offset`, if there is one.
    pub(super) fn shape_at(&self, offset: u64) -> Option<Shape> {
        let m = self.medium();
        let header = m.at::<Header>(offset)?;
        (m.load(&header.magic) == Header::MAGIC).then(|| Shape::decode(m.load(&header.shape)))?
    }

    /// Drops what does not belong, makes all headers anew, and declares the segment fresh.
    fn finish_contents(&self, segment: &Segment<B, S>, shape: Shape) {
        let m = self.medium();
        let headers = self.rebuild(segment, shape);
        m.fence();
        // Up to here everyone waits, because every version word is stale. The header comes last: as long as it
        // is stale, whoever meets a stale bucket waits for us.
        for bucket in &segment.stash {
            m.store_transient(&bucket.version, Version::fresh(self.generation).0);
        }
        for (bucket, version) in segment.normal.iter().zip(&headers.versions) {
            m.store_transient(&bucket.version, version.0);
        }
        m.store_transient(&segment.header.generation, self.generation);
    }
}
