//! Expanding, and initialising the segments that have come into use.
//!
//! An expansion moves nothing. It reserves an array if need be, marks the segments behind the last
//! as not initialised, makes that durable, and commits by the extent. A crash before that leaves at
//! most an array that the root names but no segment in use: the next expansion takes it.
//!
//! Initialising a segment splits its origin in half, as often as it has fallen behind, under all
//! its locks. The new segment is complete and durable before its prefix, the commit, and only then
//! do the moved records go from the origin. A crash before the commit leaves a segment that is not
//! initialised, and whose chain, if it has one, is not believed in; after it, recovery of the
//! origin drops what the new segment has.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::layout::{ARRAYS, Array, Extent};
use super::{DashLh, Linear, numbers, prefix_if_initialised};
use crate::Key;
use crate::hash::dash::layout::{HashPrefix, Segment};
use crate::hash::segmented::Segmented;

/// Why the marks of segments that come into use must be durable.
const NO_PREFIX: &str = "needed in memory with a past: `a_segment_comes_into_use_without_a_prefix`";

impl<M: Medium, const F: usize, const T: usize> Linear<M, F, T> {
    /// Makes sure that the arrays of `count` segments are there. The caller holds `expanding`.
    fn reserve(&self, count: u64, bytes: u64) -> Result<()> {
        let m = self.pool.medium();
        for number in 0..Self::arrays_for(count) {
            if self.arrays[number].load(Ordering::Relaxed) != 0 {
                continue;
            }
            let offset = self.pool.allocate_exact(Self::array_bytes(number, bytes))?;
            // From here on the array is reachable: a crash finds it either named, or forgotten.
            let cell = &self.root().arrays[number];
            m.store(cell, Array { number, offset }.encode());
            // Durable with what `expand` fences before the extent says that it is used.
            m.note(Note::Harmless("late, it still comes before the fence: marks are stored first"));
            m.flush(cell);
            // Release: for visitors, which do not wait until its segments are in use.
            self.arrays[number].store(offset, Ordering::Release);
            // Relaxed: searches come here once the segments are in use.
            self.bases[number].store(Self::base(number, offset, bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The commit of an expansion: `count` segments are in use. The caller holds `expanding`.
    fn extend_to(&self, count: u64) {
        let (m, cell) = (self.pool.medium(), &self.root().extent);
        m.store(cell, Extent(count).encode());
        m.persist(cell);
        // Durable, so others may act on it now. Release: arrays and marks of the new segments come
        // before.
        self.count.store(count, Ordering::Release);
    }
}

impl<K, M, const B: usize, const S: usize, const N: usize, const F: usize, const T: usize>
    DashLh<K, M, B, S, N, F, T>
where
    K: Key,
    M: Medium,
{
    /// Records in the segment that is to be split next, below which the index does not expand.
    const SPARSE: usize = (B + S) * N / 4;

    /// Where segment `number` is.
    pub(super) fn place(&self, number: u64) -> u64 {
        self.expansion.place(number, size_of::<Segment<B, S>>() as u64)
    }

    /// Brings the next segments into use, unless the index is so empty that chains must have
    /// another reason.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    #[cold]
    pub(super) fn expand(&self) -> Result<()> {
        let linear = &self.expansion;
        let _one_at_a_time = linear.expanding.lock().unwrap_or_else(PoisonError::into_inner);
        let before = linear.count();
        let after = Linear::<M, F, T>::next(before);
        if after == before || self.is_sparse(numbers::origin(before))? {
            return Ok(());
        }
        linear.reserve(after, size_of::<Segment<B, S>>() as u64)?;
        let m = self.medium();
        for number in before..after {
            let segment = self.segment(self.place(number))?;
            // The space may have been another structure's: nothing in it is to look like a segment
            // in use.
            m.store(&segment.header.prefix, 0);
            m.note(Note::Harmless(NO_PREFIX));
            m.flush(&segment.header.prefix);
            self.make_stale(segment);
        }
        m.note(Note::Harmless(NO_PREFIX));
        m.fence();
        linear.extend_to(after);
        Ok(())
    }

    /// Returns whether segment `number`, or the one that has its records, holds so little that
    /// splitting it is of no use.
    fn is_sparse(&self, number: u64) -> Result<bool> {
        let (holder, _) = self.nearest(number)?;
        Ok(self.count_records(self.segment(self.place(holder))?) < Self::SPARSE)
    }

    /// The nearest initialised segment among `number`, its origin, that one's origin and so on.
    pub(super) fn nearest(&self, number: u64) -> Result<(u64, HashPrefix)> {
        let mut at = number;
        loop {
            if let Some(prefix) = prefix_if_initialised(self.medium(), at, self.place(at)) {
                return Ok((at, prefix));
            }
            if at == 0 {
                return Err(Error::damaged(self.place(0), "the first segment has lost its prefix"));
            }
            at = numbers::origin(at);
        }
    }

    /// Makes segment `number`, which is in use, fit for changes.
    ///
    /// # Errors
    /// `NoSpace` where a chain is needed and cannot be had; nothing has changed then.
    #[cold]
    pub(super) fn initialise(&self, number: u64, guard: &Guard<'_>) -> Result<()> {
        // Each step brings an origin one bit nearer, or finds that another thread has.
        const MANY: usize = 100;
        for _ in 0..MANY {
            let (origin, prefix) = self.nearest(number)?;
            if origin == number {
                return self.recover(self.place(number));
            }
            if prefix.covers(numbers::rank(numbers::hash_of(number))) {
                self.split_origin(origin, prefix, guard)?;
            }
        }
        Err(Error::damaged(self.place(number), "a segment has lost its prefix"))
    }

    /// Splits segment `origin` if it still has this prefix, into itself and the segment that the
    /// next bit tells from it.
    fn split_origin(&self, origin: u64, prefix: HashPrefix, guard: &Guard<'_>) -> Result<()> {
        let m = self.medium();
        let offset = self.place(origin);
        let segment = self.segment(offset)?;
        let (lower, upper) = (prefix.half(0), prefix.half(1));
        let new = self.place(numbers::number_of_prefix(upper));
        if !self.lock_all(offset, segment, numbers::hash_of(origin))? {
            return Ok(());
        }
        if m.load(&segment.header.prefix) != prefix.encode() {
            // Another thread split it, or recovery has found that it was.
            self.unlock_as_before(segment);
            return Ok(());
        }
        let [staying, moving] = self.halves_of(segment, upper);
        // Without a prefix as yet: whatever is in it, it counts as not initialised.
        let headers = match self.build(new, None, moving.iter().map(|placed| placed.record)) {
            Ok(headers) => headers,
            Err(error) => {
                self.unlock_as_before(segment);
                return Err(error);
            }
        };
        m.fence();
        let initialised = self.segment(new)?;
        // The commit. All its buckets are locked, so that no thread acts on it before it is
        // durable.
        m.note(Note::Harmless("torn, it is the prefix of another number, or none: no segment yet"));
        m.store(&initialised.header.prefix, upper.encode());
        m.persist(&initialised.header.prefix);
        // Durable with the fence in `settle`; a crash before that is recognised by the new segment.
        m.store(&segment.header.prefix, lower.encode());
        m.note(Note::Harmless("late, it still comes before the segment is unlocked"));
        m.flush(&segment.header.prefix);
        // Only now, with the move durable, do the moved records go from here.
        let remaining = self.settle(segment, lower, &staying, &moving);
        m.note(Note::Harmless(
            "needed by other threads: `a_split_is_durable_whatever_comes_of_the_record`",
        ));
        m.fence();
        self.trim_chain(segment, guard);
        self.core.count_split();
        self.unlock_all(initialised, &headers);
        self.unlock_all(segment, &remaining);
        Ok(())
    }

    /// Every segment in use must have an array, and be initialised exactly if its origin has given
    /// it its records.
    pub(super) fn check_numbers(&self, problems: &mut Vec<String>) {
        let (m, linear) = (self.medium(), &self.expansion);
        let root = linear.root();
        let count = linear.count();
        if m.load(&root.extent) != Extent(count).encode() {
            problems.push(format!("the extent is not {count} segments, to which searches are led"));
        }
        for number in 0..ARRAYS {
            let offset = linear.arrays[number].load(Ordering::Acquire);
            let word = if offset == 0 { 0 } else { Array { number, offset }.encode() };
            if m.load(&root.arrays[number]) != word {
                problems.push(format!("array {number} is not at {offset:#x}, where searches go"));
            }
        }
        let depth_of = |number| {
            prefix_if_initialised(m, number, self.place(number)).map(|prefix| prefix.depth)
        };
        for number in 1..count {
            let origin = numbers::origin(number);
            let given = depth_of(origin).is_some_and(|depth| depth >= numbers::least_depth(number));
            if given != depth_of(number).is_some() {
                problems.push(format!("segment {number} and its origin {origin} disagree"));
            }
        }
        for number in (0..count).filter(|&number| depth_of(number).is_some()) {
            let depth = depth_of(number).unwrap_or_default();
            if depth > 0 && number | 1 << (depth - 1) >= count {
                problems.push(format!("segment {number} has given records to one not in use"));
            }
        }
    }
}
