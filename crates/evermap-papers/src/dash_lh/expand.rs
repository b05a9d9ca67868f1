//! Expanding the index, and initialising new segments.
//!
//! An expansion moves no records. It allocates an array if necessary, marks the next segments as
//! not initialised, makes that durable, and commits by storing the extent. A crash before the
//! commit leaves at most an array that the root refers to and that contains no segment in use: the
//! next expansion uses it.
//!
//! Initialising a segment splits the nearest initialised one among its origin, the origin's origin
//! and so on in half, under all locks of that one, until the segment itself is the upper half. Each
//! new segment is complete and durable before its prefix is stored, which is the commit; only then
//! are the moved records removed from the old one. A crash before the commit leaves a segment that
//! is not initialised, and its chain, if it has one, is not used. After a later crash, recovery of
//! the old segment removes the records that were moved.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use evermap_index::Key;
use evermap_index::hash::dash::Geometry;
use evermap_index::hash::dash::layout::HashPrefix;
use evermap_index::hash::hash_prefix::are_separable;
use evermap_index::hash::segmented::core::HasCore;
use evermap_index::hash::segmented::map::SegmentMap;
use evermap_index::hash::segmented::{SegmentLayout, Segmented};
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::layout::{ARRAYS, Array, Extent};
use super::{DashLh, Linear, STEP, numbers, prefix_if_initialised};

/// Why it must be durable that new segments have no prefix.
const NO_PREFIX: &str = "needed in reused memory: `a_segment_comes_into_use_without_a_prefix`";

impl<M: Medium, const F: usize, const T: usize> Linear<M, F, T> {
    /// Allocates the missing arrays for `count` segments. The caller holds `resizing`.
    fn reserve(&self, count: u64, bytes: u64) -> Result<()> {
        let m = self.pool.medium();
        for number in 0..Self::arrays_for(count) {
            if self.arrays[number].load(Ordering::Relaxed) != 0 {
                continue;
            }
            let offset = self.pool.allocate_exact(Self::array_bytes(number, bytes))?;
            // From here on the array is reachable. After a crash, either the root refers to it, or
            // its block is free.
            let cell = &self.root().arrays[number];
            m.store(cell, Array { number, offset }.encode());
            // Made durable by the fence in `expand` that precedes storing the extent.
            m.note(Note::Harmless("late, it still comes before the fence: marks are stored first"));
            m.flush(cell);
            // Release: for visitors, which also read arrays whose segments are not in use yet.
            self.arrays[number].store(offset, Ordering::Release);
            // Relaxed: searches read it only once the segments are in use, which `count` publishes.
            self.bases[number].store(Self::base(number, offset, bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Commits an expansion: `count` segments are in use. The caller holds `resizing`.
    fn extend_to(&self, count: u64) {
        self.store_extent(count);
        // Other threads may use the extent now that it is durable. Release: the arrays and the
        // headers of the new segments were stored before.
        self.count.store(count, Ordering::Release);
        self.note_growth();
    }

    /// Takes `blocks` from the number of those by which chains have become longer.
    pub(super) fn note_trimmed(&self, blocks: u64) {
        let fewer = |chained: u64| Some(chained.saturating_sub(blocks));
        let _ = self.chained.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    /// Returns whether a block that was appended to a chain only makes up for one that a removal
    /// has taken out of a chain.
    fn has_vacated(&self) -> bool {
        let fewer = |vacated: u64| vacated.checked_sub(1);
        self.vacated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }

    /// Starts a grace period after an expansion, or after a split whose segments are still locked.
    fn note_growth(&self) {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        *grown = Some(self.pool.epoch().start());
    }
}

/// Growth of a [`DashLh`].
pub(super) trait Growing {
    /// The number of records in the segment that is to be split next, below which the index does
    /// not expand.
    const SPARSE: usize;
    /// The number of additional blocks in chains for which it does expand. A table to which records
    /// are added in the order of their numbers gets all of them in few segments, and must expand
    /// for these to be split.
    const CHAINED: u64;

    /// Returns the offset of segment `number`.
    fn place(&self, number: u64) -> u64;

    /// Brings the next segments into use after the chain with the records of `hash` became longer,
    /// unless the index contains so few records that this is probably due to equal hashes.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    fn expand(&self, hash: u64) -> Result<()>;

    /// Brings the next segments into use. Returns whether only the length of chains has justified
    /// that.
    fn expand_once(&self, hash: u64) -> Result<bool>;

    /// Brings the segments from `before`, the number of those in use, to `after` into use. The
    /// caller holds `resizing`.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    fn bring_into_use(&self, before: u64, after: u64) -> Result<()>;

    /// Initialises a few segments, so that their records leave chains even if no change ever
    /// concerns them again.
    fn initialise_some(&self) -> Result<()>;

    /// Returns whether segment `number`, or the one that holds its records, holds so few records
    /// that splitting it would not help.
    fn is_sparse(&self, number: u64) -> Result<bool>;

    /// Returns the first initialised segment among `number`, its origin, the origin's origin and so
    /// on, with its prefix.
    fn nearest(&self, number: u64) -> Result<(u64, HashPrefix)>;

    /// Makes segment `number` usable for changes. Does nothing if it is no longer in use.
    ///
    /// # Errors
    /// `NoSpace` if a chain is needed and cannot be allocated; segment `number` is not initialised
    /// then.
    fn initialise(&self, number: u64, guard: &Guard<'_>) -> Result<()>;

    /// Splits segment `origin`, if it still has this prefix, by the next bit of the ranks, unless
    /// the upper half is no longer in use.
    fn split_origin(&self, origin: u64, prefix: HashPrefix, guard: &Guard<'_>) -> Result<()>;

    /// Checks that every segment in use has an array, and that it is initialised if and only if its
    /// origin was split.
    fn check_numbers(&self, problems: &mut Vec<String>);
}

impl<K, M, G, const F: usize, const T: usize> Growing for DashLh<K, M, G, F, T>
where
    K: Key,
    M: Medium,
    G: Geometry,
{
    const SPARSE: usize = Self::SLOTS / 4;
    const CHAINED: u64 = ((G::BUCKETS + G::STASHES) as u64 * STEP).div_ceil(8);

    fn place(&self, number: u64) -> u64 {
        self.map().place(number, size_of::<G::Segment>() as u64)
    }

    #[cold]
    fn expand(&self, hash: u64) -> Result<()> {
        if self.expand_once(hash)? { self.initialise_some() } else { Ok(()) }
    }

    fn expand_once(&self, hash: u64) -> Result<bool> {
        let linear = self.map();
        let mut resizing = linear.lock();
        let before = linear.count();
        let after = Linear::<M, F, T>::next(before);
        let chained = linear.chained.fetch_add(1, Ordering::Relaxed) + 1;
        if after == before || !linear.may_expand(&mut resizing) || linear.has_vacated() {
            return Ok(false);
        }
        let is_uneven = self.is_sparse(numbers::origin(before))?;
        if is_uneven {
            if chained < Self::CHAINED {
                return Ok(false);
            }
            linear.chained.store(0, Ordering::Relaxed);
            // Not locked: if another thread changes the segment, either answer is good enough.
            let (offset, _) = SegmentMap::<Self>::holder(linear, self.medium(), hash)?;
            let holder = self.segment(offset)?;
            let hashes = self.all_records(holder).into_iter().map(|record| record.hash);
            if !are_separable(hashes.map(numbers::rank)) {
                return Ok(false);
            }
        }
        let expanded = self.bring_into_use(before, after);
        linear.note_unused(&mut resizing);
        (resizing.shrinking, resizing.pause) = (false, 0);
        linear.behind.store(false, Ordering::Relaxed);
        expanded.map(|()| is_uneven)
    }

    fn bring_into_use(&self, before: u64, after: u64) -> Result<()> {
        let (m, linear) = (self.medium(), self.map());
        linear.reserve(after, size_of::<G::Segment>() as u64)?;
        for number in before..after {
            let segment = self.segment(self.place(number))?;
            // The memory may have been used before: it must not look like an initialised segment.
            m.store(&segment.header().prefix, 0);
            m.note(Note::Harmless(NO_PREFIX));
            m.flush(&segment.header().prefix);
            self.make_stale(segment);
        }
        m.note(Note::Harmless(NO_PREFIX));
        m.fence();
        linear.extend_to(after);
        Ok(())
    }

    fn initialise_some(&self) -> Result<()> {
        let linear = self.map();
        // More than an expansion brings into use, so that they do not fall behind.
        let first = linear.initialised.fetch_add(2 * STEP, Ordering::Relaxed);
        let behind = first + 2 * STEP;
        let (m, guard) = (self.medium(), self.core().pool.pin());
        for number in first..behind.min(linear.count()) {
            if prefix_if_initialised(m, number, self.place(number)).is_none() {
                self.initialise(number, &guard)?;
            }
        }
        // The others are not in use yet.
        linear.initialised.fetch_min(linear.count(), Ordering::Relaxed);
        Ok(())
    }

    fn is_sparse(&self, number: u64) -> Result<bool> {
        let (holder, _) = self.nearest(number)?;
        Ok(self.count_records(self.segment(self.place(holder))?) < Self::SPARSE)
    }

    fn nearest(&self, number: u64) -> Result<(u64, HashPrefix)> {
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

    #[cold]
    fn initialise(&self, number: u64, guard: &Guard<'_>) -> Result<()> {
        // Each step splits an origin by one more bit, or finds that another thread has split it.
        const MANY: usize = 100;
        for _ in 0..MANY {
            if number >= self.map().count() {
                return Ok(());
            }
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

    fn split_origin(&self, origin: u64, prefix: HashPrefix, guard: &Guard<'_>) -> Result<()> {
        let m = self.medium();
        let offset = self.place(origin);
        let segment = self.segment(offset)?;
        let (lower, upper) = (prefix.half(0), prefix.half(1));
        self.prefetch_segment(offset);
        if !self.lock_all(offset, segment, numbers::hash_of(origin))? {
            return Ok(());
        }
        // While the segment is locked, the upper half stays in use if it is.
        let number = numbers::number_of_prefix(upper);
        let is_in_use = number < self.map().count();
        if !is_in_use || m.load(&segment.header().prefix) != prefix.encode() {
            // Another thread has split it, or recovery has finished a split.
            self.unlock_as_before(segment);
            return Ok(());
        }
        let new = self.place(number);
        self.prefetch_segment(new);
        let [staying, moving] = self.halves_of(segment, upper);
        // Without a prefix, the segment is not initialised, whatever its contents are.
        let headers = match self.build(new, None, moving.iter().map(|placed| placed.record)) {
            Ok(headers) => headers,
            Err(error) => {
                self.unlock_as_before(segment);
                return Err(error);
            }
        };
        m.fence();
        let initialised = self.segment(new)?;
        // The commit. All buckets of the segment are locked, so that no thread uses it before the
        // prefix is durable.
        m.note(Note::Harmless("torn, it is the prefix of another number, or none: uninitialised"));
        m.store(&initialised.header().prefix, upper.encode());
        m.persist(&initialised.header().prefix);
        // Made durable by the fence in `settle`. After an earlier crash, recovery sees from the new
        // segment that the origin was split.
        m.store(&segment.header().prefix, lower.encode());
        m.note(Note::Harmless("late, it still comes before the segment is unlocked"));
        m.flush(&segment.header().prefix);
        // The moved records are removed from this segment only now that the move is durable.
        let remaining = self.settle(segment, lower, &staying, &moving);
        m.note(Note::Harmless(
            "needed by other threads: `a_split_is_durable_whatever_comes_of_the_record`",
        ));
        m.fence();
        let trimmed = self.trim_chain(segment, guard);
        self.core().count_split();
        self.map().note_trimmed(trimmed);
        self.map().note_growth();
        self.unlock_all(initialised, &headers);
        self.unlock_all(segment, &remaining);
        Ok(())
    }

    fn check_numbers(&self, problems: &mut Vec<String>) {
        let (m, linear) = (self.medium(), self.map());
        let root = linear.root();
        let count = linear.count();
        if m.load(&root.extent) != Extent(count).encode() {
            problems.push(format!("the extent is not {count}, as searches assume"));
        }
        for number in 0..ARRAYS {
            let offset = linear.arrays[number].load(Ordering::Acquire);
            let word = if offset == 0 { 0 } else { Array { number, offset }.encode() };
            if m.load(&root.arrays[number]) != word {
                problems.push(format!("array {number} is not at {offset:#x}, as searches assume"));
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
                problems
                    .push(format!("segment {number} was split, but the other half is not in use"));
            }
        }
    }
}
