//! Finishing splits and merges that were committed before a crash.
//!
//! * A split whose shape or directory range was not finished: the first entry of the upper half's
//!   range tells that it was committed, and the [directory](crate::hash::directory) which entry
//!   decides over each of the others.
//! * A merge whose ranges were not finished: the first entry of the right sibling's range.

use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, Result};

use super::DashEh;
use crate::Key;
use crate::hash::dash::layout::{HashPrefix, Segment};
use crate::hash::directory::Shared;

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> DashEh<K, M, B, S, N> {
    /// Finishes a split or merge of this segment that was committed. Answers its shape, `None` if it was merged
    /// away.
    ///
    /// Other segments change their entries meanwhile, so entries are only ever swapped from what must not be there.
    pub(super) fn finish_directory(
        &self,
        offset: u64,
        segment: &Segment<B, S>,
        shape: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        let m = self.medium();
        let latch = self.expansion.directory.share();
        if shape.depth > self.expansion.directory.depth() {
            return Err(Error::damaged(offset, "a segment is deeper than the directory"));
        }
        self.expansion.directory.keep_around(shape, &latch);
        if let Some(merged) = self.merged_into(offset, shape, &latch) {
            m.note(Note::Scope("merge found"));
            self.swap_entries(shape, &latch, merged, |entry| entry == offset);
            return Ok(None);
        }
        let mut shape = shape;
        if let Some(upper) = self.unfinished_split(offset, shape, &latch) {
            m.note(Note::Scope("split finished"));
            shape = upper.parent().expect("a half").half(0);
            m.store(&segment.header.shape, shape.encode());
            m.note(Note::Harmless(
                "late, a crash finds the split in the directory, and finishes it again",
            ));
            m.flush(&segment.header.shape);
        }
        self.finish_sibling_range(offset, shape, &latch)?;
        self.finish_own_range(offset, shape, &latch);
        if self.expansion.directory.first(shape, &latch) != offset {
            return Err(Error::damaged(
                offset,
                "the directory and a segment disagree on its place",
            ));
        }
        Ok(Some(shape))
    }

    /// The segment that this one was merged into, if it was.
    fn merged_into(&self, offset: u64, shape: HashPrefix, latch: &Shared<'_>) -> Option<u64> {
        let parent = shape.parent()?;
        let named = self.expansion.directory.first(parent.half(1), latch);
        (named != offset && self.shape_at(named) == Some(parent)).then_some(named)
    }

    /// The upper half of this segment, if it was split off but this segment does not say so yet. What got it may have
    /// been split again since, and again: nobody had to touch this segment for that.
    fn unfinished_split(
        &self,
        offset: u64,
        shape: HashPrefix,
        latch: &Shared<'_>,
    ) -> Option<HashPrefix> {
        let splits = shape.depth < self.expansion.directory.depth();
        let upper = (splits && !self.medium().mutant("DA-3")).then(|| shape.half(1))?;
        let named = self.expansion.directory.first(upper, latch);
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
        let directory = &self.expansion.directory;
        if directory.first(sibling, latch) == offset {
            return Err(Error::damaged(
                offset,
                "the directory gives a segment more than its shape",
            ));
        }
        directory.finish_range(sibling, offset, |named| self.shape_at(named), latch);
        Ok(())
    }

    /// Entries that still name the two segments that were merged into this one.
    fn finish_own_range(&self, offset: u64, shape: HashPrefix, latch: &Shared<'_>) {
        if shape.depth >= self.expansion.directory.depth()
            || self.expansion.directory.first(shape.half(1), latch) != offset
            || self.medium().mutant("DA-5")
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
        range: HashPrefix,
        latch: &Shared<'_>,
        right: u64,
        wrong: impl Fn(u64) -> bool,
    ) {
        let m = self.medium();
        let mut changed = false;
        for entry in self.expansion.directory.range(range, latch) {
            let named = m.load(entry);
            if wrong(named) && m.cas(entry, named, right).is_ok() {
                m.flush(entry);
                changed = true;
            }
        }
        if changed {
            m.note(Note::Scope("directory range finished"));
            m.fence();
        }
    }
}
