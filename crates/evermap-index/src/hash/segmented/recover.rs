//! Recovery, one segment at a time, when it is first used.
//!
//! For every new opener, all segments are stale. The first thread that finds a stale segment
//! finishes what a crash may have interrupted:
//!
//! * a split that was committed, but whose prefix or other directory entries were not yet stored:
//!   the first entry of the upper half's range shows that it was committed, and the
//!   [directory](crate::hash::directory) describes which entry decides what each of the others must
//!   be;
//! * a merge whose other directory entries were not yet stored: the first entry of the right
//!   sibling's range shows that it was committed;
//! * a change inside the segment, which each index recovers in its own way.
//!
//! An operation that was not committed is not redone. So recovery allocates nothing, and can be
//! interrupted and repeated.

use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, Result};

use super::split::Directed;
use super::{HeaderOf, prefix_at};
use crate::hash::directory::Shared;
use crate::hash::hash_prefix::{HashPrefix, first_hash_after};
use crate::hash::mistakes;

/// Finishes a structure change that a crash has interrupted, under a directory. See
/// [`SegmentMap`](super::map::SegmentMap::finish_structure).
///
/// # Errors
/// See there.
pub fn finish_structure<T: Directed>(
    index: &T,
    offset: u64,
    segment: &T::Segment,
    prefix: HashPrefix,
) -> Result<Option<HashPrefix>> {
    ensure_deep::<T>(offset, prefix)?;
    let latch = index.map().directory.share();
    let finished = Finishing { index, offset, latch: &latch }.finish(segment, prefix);
    drop(latch);
    if T::MERGES { index.map().directory.none_if_unreferenced(offset, finished) } else { finished }
}

/// Checks that the prefix of a segment is at least as deep as the index requires.
///
/// # Errors
/// `Damaged`.
pub fn ensure_deep<T: Directed>(offset: u64, prefix: HashPrefix) -> Result<()> {
    if prefix.depth < T::DEPTH_MIN {
        return Err(Error::damaged(offset, "impossible prefix of a segment"));
    }
    Ok(())
}

/// The recovery of the directory entries of one segment.
///
/// Other threads change entries meanwhile, so an entry is only changed by a compare-and-swap from a
/// value that it must not have.
struct Finishing<'a, T: Directed> {
    index: &'a T,
    offset: u64,
    latch: &'a Shared<'a>,
}

impl<T: Directed> Finishing<'_, T> {
    fn finish(&self, segment: &T::Segment, mut prefix: HashPrefix) -> Result<Option<HashPrefix>> {
        let (m, directory) = (self.index.core().medium(), &self.index.map().directory);
        if prefix.depth > directory.depth() {
            return Err(Error::damaged(self.offset, "a segment is deeper than the directory"));
        }
        directory.persist_around(prefix, self.latch);
        if let Some(merged) = self.merged_into(prefix) {
            m.note(Note::Scope("merge found"));
            self.swap_entries(prefix, merged, |named| named == self.offset);
            return Ok(None);
        }
        if self.is_split_unfinished(prefix) {
            m.note(Note::Scope("split finished"));
            prefix = prefix.half(0);
            self.index.store_finished_prefix(segment, prefix);
        }
        self.finish_sibling_range(prefix)?;
        self.finish_own_range(prefix);
        if self.first(prefix) != self.offset {
            return Err(Error::damaged(
                self.offset,
                "the directory and a segment disagree on its place",
            ));
        }
        Ok(Some(prefix))
    }

    /// Returns the offset of the segment that the first entry of a range refers to.
    fn first(&self, range: HashPrefix) -> u64 {
        T::offset_in(self.index.map().directory.first(range, self.latch))
    }

    fn prefix_at(&self, offset: u64) -> Option<HashPrefix> {
        prefix_at::<HeaderOf<T>, _>(self.index.core().medium(), offset)
    }

    /// Returns the entry of the segment that this one was merged into. Returns `None` if it was not
    /// merged.
    fn merged_into(&self, prefix: HashPrefix) -> Option<u64> {
        let parent = prefix.parent().filter(|_| T::MERGES)?;
        let entry = self.index.map().directory.first(parent.half(1), self.latch);
        let named = T::offset_in(entry);
        (named != self.offset && self.prefix_at(named) == Some(parent)).then_some(entry)
    }

    /// Returns whether the upper half of this segment was split off, but the prefix of this segment
    /// does not show it yet. The upper half may have been split again since, any number of times,
    /// as that does not involve this segment.
    fn is_split_unfinished(&self, prefix: HashPrefix) -> bool {
        let splits = prefix.depth < self.index.map().directory.depth();
        if !splits || self.index.core().medium().mutant(mistakes::SPLIT_UNFINISHED) {
            return false;
        }
        let upper = prefix.half(1);
        let named = self.first(upper);
        named != self.offset && self.prefix_at(named).is_some_and(|prefix| upper.contains(prefix))
    }

    /// If this segment is a lower half: corrects the entries in the upper half's range that still
    /// refer to this segment. Parts of the upper half may have been split since.
    fn finish_sibling_range(&self, prefix: HashPrefix) -> Result<()> {
        let Some(sibling) = prefix.parent().map(|parent| parent.half(1)) else { return Ok(()) };
        if sibling == prefix {
            return Ok(());
        }
        if self.first(sibling) == self.offset {
            let what = "the directory gives a segment more than its prefix";
            return Err(Error::damaged(self.offset, what));
        }
        let prefix_of = |named| self.prefix_at(named);
        self.index.map().directory.finish_range(sibling, self.offset, prefix_of, self.latch);
        Ok(())
    }

    /// Corrects the entries that still refer to the two segments that were merged into this one.
    fn finish_own_range(&self, prefix: HashPrefix) {
        if !T::MERGES
            || prefix.depth >= self.index.map().directory.depth()
            || self.first(prefix.half(1)) != self.offset
            || self.index.core().medium().mutant(mistakes::MERGE_UNFINISHED)
        {
            return;
        }
        let halves = [0, 1].map(|upper| Some(prefix.half(upper)));
        self.swap_entries(prefix, self.index.entry_for(self.offset), |named| {
            named != self.offset && halves.contains(&self.prefix_at(named))
        });
    }

    /// Replaces the entries of a range that refer to a `wrong` segment by `right`, durably.
    fn swap_entries(&self, range: HashPrefix, right: u64, wrong: impl Fn(u64) -> bool) {
        let m = self.index.core().medium();
        let mut changed = false;
        for entry in self.index.map().directory.range(range, self.latch) {
            let word = m.load(entry);
            if wrong(T::offset_in(word)) && m.cas(entry, word, right).is_ok() {
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

/// Calls `each` with the offsets of the segments that the entries of the directory refer to, from
/// left to right, once for each run of equal entries.
pub fn for_each_named<T: Directed>(index: &T, mut each: impl FnMut(u64)) {
    let (mut cursor, mut last) = (Some(0), None);
    while let Some(hash) = cursor {
        let offset = T::offset_in(index.map().directory.locate(hash));
        if last.replace(offset) != Some(offset) {
            each(offset);
        }
        cursor = first_hash_after(hash, index.map().directory.depth());
    }
}
