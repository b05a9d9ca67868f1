//! Recovery, one segment at a time, when it is first touched, or all at opening.
//!
//! Every opener begins with all segments stale: their lock words carry the number of an earlier one. The first to
//! meet a stale segment finishes what a crash may have interrupted, which is a split of this segment whose
//! directory range or shape was not finished: the first entry of the range tells that it was
//! committed, and the [directory](crate::hash::directory) which entry decides over each of the
//! others. Records need no recovery: each was committed by one store, and those that moved away are
//! no longer covered by the shape.
//!
//! Nothing is redone that was not committed, so recovery allocates nothing and can be interrupted and repeated.

use std::sync::atomic::Ordering;

use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Error, Medium, Result};

use super::Cceh;
use super::layout::{Header, Segment};
use super::lock::Lock;
use crate::Key;
use crate::hash::FOUND_LATE;
use crate::hash::directory::Shared;
use crate::hash::hash_prefix::{HashPrefix, behind};

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Recovers the segment at `offset`, or waits until someone else has. O(1), and O(its directory range) where a
    /// split was interrupted.
    ///
    /// # Errors
    /// `Damaged` if there is no segment, or one that contradicts the directory; it stays stale then.
    #[cold]
    pub(super) fn recover(&self, offset: u64) -> Result<()> {
        self.region.ensure_sound()?;
        let _one_at_a_time = self.recovering(offset);
        let m = self.medium();
        let segment = self.segment(offset)?;
        let header = &segment.header;
        if self.was_recovered(header) && Lock(m.load(&header.lock)).is_of(self.generation) {
            return Ok(());
        }
        let shape = self
            .shape_at(offset)
            .ok_or_else(|| Error::damaged(offset, "a directory entry names no segment"))?;
        // Whoever stored what is there may have died before it was durable. Fenced with the entries that lead here.
        m.note(Note::Harmless(FOUND_LATE));
        m.flush(segment);
        if let Err(error) = self.finish_split(offset, header, shape) {
            // Damage may have looked like our stamp: let everyone see that it is none.
            m.store_transient(&header.lock, Lock::fresh(self.generation.wrapping_sub(1)).0);
            return Err(error);
        }
        self.recovered.fetch_add(1, Ordering::Relaxed);
        // The lock comes last: until then everyone waits for us. Whoever takes it looks at the generation.
        m.store_transient(&header.generation, self.generation);
        m.store_transient(&header.lock, Lock::fresh(self.generation).0);
        Ok(())
    }

    fn recovering(&self, offset: u64) -> MutexGuard<'_, ()> {
        let stripe = &self.recovering[(offset / 64) as usize % self.recovering.len()];
        stripe.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Finishes a split of this segment that was committed.
    fn finish_split(&self, offset: u64, header: &Header, mut shape: HashPrefix) -> Result<()> {
        let (m, latch) = (self.medium(), &self.directory.share());
        if shape.depth > self.directory.depth() {
            return Err(Error::damaged(offset, "a segment is deeper than the directory"));
        }
        self.directory.keep_around(shape, latch);
        // The upper half was split off, but this segment does not say so yet.
        if shape.depth < self.directory.depth() && self.is_elsewhere(offset, shape.half(1), latch) {
            shape = shape.half(0);
            m.store(&header.shape, shape.encode());
            m.note(Note::Harmless(
                "needed by other threads: `a_split_that_recovery_finishes_is_durable_before_the_segment_is_used`",
            ));
            m.persist(&header.shape);
        }
        let sibling = shape.parent().map(|parent| parent.half(1)).filter(|&upper| upper != shape);
        if let Some(upper) = sibling
            && self.is_elsewhere(offset, upper, latch)
        {
            self.directory.finish_range(upper, offset, |named| self.shape_at(named), latch);
        }
        if self.directory.first(shape, latch) != offset {
            return Err(Error::damaged(
                offset,
                "the directory and a segment disagree on its place",
            ));
        }
        Ok(())
    }

    /// Whether `upper` is served by a segment of its own, not by the one at `offset`. That may have been split again
    /// since, and again.
    fn is_elsewhere(&self, offset: u64, upper: HashPrefix, latch: &Shared<'_>) -> bool {
        let named = self.directory.first(upper, latch);
        named != offset && self.shape_at(named).is_some_and(|shape| upper.contains(shape))
    }

    /// The shape of the segment at `offset`, if there is one.
    pub(super) fn shape_at(&self, offset: u64) -> Option<HashPrefix> {
        let m = self.medium();
        let header = m.at::<Header>(offset)?;
        (m.load(&header.magic) == Header::MAGIC)
            .then(|| HashPrefix::decode(m.load(&header.shape)))?
    }

    /// Recovers every segment. One that is damaged stays stale: whoever needs it is told.
    ///
    /// # Errors
    /// `Poisoned`.
    pub(super) fn recover_all(&self) -> Result<()> {
        self.for_each_named(|offset| {
            let _ = self.recover(offset);
        })?;
        self.region.ensure_sound()
    }

    /// Makes every segment stale, so that each is recovered before it is used.
    pub(super) fn make_all_stale(&self) -> Result<()> {
        let (m, earlier) = (self.medium(), self.generation.wrapping_sub(1));
        self.for_each_named(|offset| {
            if let Some(segment) = m.at::<Segment<B>>(offset) {
                m.store_transient(&segment.header.generation, earlier);
                m.store_transient(&segment.header.lock, Lock::fresh(earlier).0);
            }
        })
    }

    /// Calls `each` with what the directory's entries name, from left to right.
    fn for_each_named(&self, mut each: impl FnMut(u64)) -> Result<()> {
        let (mut cursor, mut last) = (Some(0), None);
        while let Some(hash) = cursor {
            let offset = self.directory.locate(hash);
            if last.replace(offset) != Some(offset) {
                each(offset);
            }
            cursor = behind(hash, self.directory.depth());
        }
        Ok(())
    }
}
