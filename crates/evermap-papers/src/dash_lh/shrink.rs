//! Shrinking the index: merging its last segments into their origins, one after the other, and
//! freeing arrays that contain none.
//!
//! **When.** A removal that leaves its bucket empty looks, in one of eight cases, at a sample of
//! buckets. If the records would fill less than an eighth of all buckets, the index begins to
//! shrink: this removal and later ones merge segments, each a few, until the records fill a quarter
//! of what is left. If the index is nearly empty and one removal could not merge enough, the next
//! ones merge some whatever they leave; some of them, if there was no room.
//!
//! The index expands when a chain becomes longer. It does not if removals have shortened chains by
//! as many blocks before, and hardly if the segment that would be split is sparse. So between an
//! expansion and a merge most records must be removed, and as many be inserted between a merge and
//! an expansion.
//!
//! **What it costs.** A merge moves fewer records than a segment has, and undoes an expansion. So
//! all merges together cost no more than the splits before them: O(1) a removal. One removal merges
//! at most [`TOGETHER`] segments, or one in [`SHARE`] if there are more than a thousand, and none
//! after those that have moved as many records as a segment has slots.
//!
//! Segments are merged in one order only. If removals go in the order of ranks, the last segment
//! and its origin remain full until the end, and have no room for each other; the index shrinks
//! only then, when the others are empty and merges move nothing.
//!
//! **A merge.** The last segment is `2^N + i`, and its origin is `i`. Both are locked, the origin
//! first. Free slots of the origin get copies of the records, which are made durable; then the
//! headers, which allocate the slots, and the origin's shorter prefix, in any order; then the
//! extent, which no longer includes the segment. *Storing the extent is the commit.* Only when that
//! is durable do searches go by it, and is the origin unlocked. If the segment is not initialised,
//! there is nothing to copy, and the segment that holds its records is locked, so that no thread
//! splits it meanwhile.
//!
//! A crash before the commit leaves the segment in use and initialised. If the origin has the
//! shorter prefix, that looks like a split whose origin still has its old prefix, and recovery ends
//! both alike: the origin gets the longer prefix and drops the copies. A crash after the commit
//! leaves an origin that has all records. What is in the segment does not matter from then on: an
//! expansion durably removes its prefix before the segment comes into use again.
//!
//! **Searches by an earlier extent** find the merged segment locked, which it stays, and begin
//! again. Walks go by ranks, of which those of origin and segment follow one another: they see the
//! records that they have not seen yet. Two rules make sure that what was true when a search began
//! and is true when it ends was true all the time:
//!
//! 1. No segments are merged under a guard that is older than the last expansion or split.
//! 2. The index does not expand under a guard that is older than the last merge.
//!
//! So while a guard exists, the number of segments goes in one direction only, no segment comes
//! into use a second time, and no records come back to a segment that has lost them in a split.
//! Neither rule makes a thread wait: what is not allowed yet is left to later operations, and
//! records go to chains until then.
//!
//! **An array** with no segment in use stays until every guard is gone that existed when the extent
//! was lowered: a search that has read the old extent may still compute the place of a segment
//! there. A later removal then durably removes its offset from the root, and retires it. A crash in
//! between leaves an array that the root refers to, as one during an expansion does: it is used by
//! the next expansion, or freed.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use evermap_index::Key;
use evermap_index::hash::dash::Geometry;
use evermap_index::hash::dash::bucket::{Record, meta_of};
use evermap_index::hash::dash::layout::{Buckets, HashPrefix};
use evermap_index::hash::mistakes;
use evermap_index::hash::segmented::{SegmentLayout, Segmented, prefix_of};
use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{GracePeriod, Guard, Medium, Result};

use super::expand::Growing;
use super::layout::Extent;
use super::{DashLh, Linear, NOWHERE, Resizing, numbers, prefix_if_initialised};

/// The greatest number of segments that one removal merges, unless the index has very many.
const TOGETHER: u64 = 8;
/// One removal merges this part of all segments if that is more than [`TOGETHER`]: one in 128.
const SHARE: u64 = 128;
/// The number of buckets that are counted to estimate the number of records.
const SAMPLE: u64 = 64;
/// The index begins to shrink if it has at least this number of slots for each record.
const SPARSE: u64 = 8;
/// It ends to shrink before it has fewer slots than this for each record.
const DENSE: u64 = 4;
/// Every removal merges segments if the index has at least this number of slots for each record.
const NEARLY_EMPTY: u64 = 64;

impl Resizing {
    /// Returns whether the grace period of the last merge is over.
    fn is_quiet(&mut self, is_over: impl Fn(GracePeriod) -> bool) -> bool {
        if self.shrunk.is_some_and(is_over) {
            self.shrunk = None;
        }
        self.shrunk.is_none()
    }
}

impl<M: Medium, const F: usize, const T: usize> Linear<M, F, T> {
    /// Waits until no other thread expands or shrinks the index.
    pub(super) fn lock(&self) -> MutexGuard<'_, Resizing> {
        self.resizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if another thread expands or shrinks the index.
    fn try_lock(&self) -> Option<MutexGuard<'_, Resizing>> {
        match self.resizing.try_lock() {
            Ok(resizing) => Some(resizing),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns whether no guard is older than the last merge.
    pub(super) fn may_expand(&self, resizing: &mut Resizing) -> bool {
        resizing.is_quiet(|period| self.pool.epoch().is_over(period))
    }

    /// Returns whether no guard is older than the last expansion or split.
    fn may_merge(&self) -> bool {
        if self.pool.medium().mutant(mistakes::MERGED_AT_ONCE) {
            return true;
        }
        let grown = *self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        grown.is_none_or(|period| self.pool.epoch().is_over(period))
    }

    /// Commits a merge: only `count` segments are in use.
    fn lower_to(&self, count: u64, resizing: &mut Resizing) {
        self.store_extent(count);
        // Searches go by the extent now that it is durable. Release: the records and the prefix of
        // the origin were stored before.
        self.count.store(count, Ordering::Release);
        // Relaxed: a hint.
        self.initialised.fetch_min(count, Ordering::Relaxed);
        // Where there are fewer segments, chains that become longer are a reason to expand.
        self.vacated.store(0, Ordering::Relaxed);
        resizing.shrunk = Some(self.pool.epoch().start());
        self.note_unused(resizing);
    }

    /// Stores the extent, durably.
    pub(super) fn store_extent(&self, count: u64) {
        let (m, cell) = (self.pool.medium(), &self.root().extent);
        m.store(cell, Extent(count).encode());
        m.persist(cell);
    }

    /// Starts the grace periods of arrays that contain no segment in use any more, and forgets
    /// those of arrays that do again.
    pub(super) fn note_unused(&self, resizing: &mut Resizing) {
        let period = self.pool.epoch().start();
        let known = std::mem::take(&mut resizing.unused);
        let first = Self::arrays_for(self.count());
        let is_there = |&number: &usize| self.arrays[number].load(Ordering::Relaxed) != 0;
        let there = (first..self.arrays.len()).take_while(is_there).count();
        let entry = |number| known.iter().find(|known| known.0 == number).copied();
        resizing.unused = (first..first + there)
            .rev()
            .map(|number| entry(number).unwrap_or((number, period)))
            .collect();
    }

    /// Frees the arrays that contain no segment in use, and that no search can lead to any more:
    /// those with the highest numbers first, so that the root always names the first ones.
    fn free_unused(&self, resizing: &mut Resizing, bytes: u64, guard: &Guard<'_>) {
        let m = self.pool.medium();
        while let Some(&(number, period)) = resizing.unused.front() {
            let early = m.mutant(mistakes::ARRAY_FREED_EARLY);
            if !early && !self.pool.epoch().is_over(period) {
                break;
            }
            resizing.unused.pop_front();
            let cell = &self.root().arrays[number];
            m.note(Note::Scope("array freed"));
            m.store(cell, 0);
            m.persist(cell);
            // Relaxed: no search reads it until an expansion publishes another one.
            self.bases[number].store(NOWHERE, Ordering::Relaxed);
            let offset = self.arrays[number].swap(0, Ordering::AcqRel);
            // Retired, because a visitor may be about to be shown the block.
            self.pool.retire(offset, Self::array_bytes(number, bytes), guard);
        }
    }
}

/// Shrinking of a [`DashLh`].
pub(super) trait Shrinking: Segmented {
    /// The number of records that an origin may hold after a merge: some room is left, so that
    /// inserts do not fill it at once.
    const FULL: usize;

    /// Frees arrays, and merges segments if the index holds few records. Called after removals.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn shrink(&self, guard: &Guard<'_>) -> Result<()>;

    /// Merges segments as long as more than `least` are in use, but only a bounded number of them.
    /// Returns `false` if it is not allowed to merge more now, or if there is no room.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn merge_some(&self, least: u64, resizing: &mut Resizing, guard: &Guard<'_>) -> Result<bool>;

    /// Returns about how many records the buckets hold.
    ///
    /// # Errors
    /// `Damaged`.
    fn estimate_records(&self) -> Result<u64>;

    /// Merges segment `last`, the last one in use, into the segment that holds its records or those
    /// of its origin. Returns the number of records that were moved. Returns `None`, with nothing
    /// changed, if that is not allowed now, or if there is no room.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn merge_last(
        &self,
        last: u64,
        resizing: &mut Resizing,
        guard: &Guard<'_>,
    ) -> Result<Option<usize>>;

    /// Merges segment `last`, the last one in use, which is initialised, into its origin, which is
    /// locked, and released in any case. Returns as [`merge_last`](Self::merge_last).
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn merge_into(
        &self,
        origin: &Self::Segment,
        last: u64,
        resizing: &mut Resizing,
        guard: &Guard<'_>,
    ) -> Result<Option<usize>>;

    /// Returns the prefix that two locked segments have together, and the records that are to be
    /// moved. Returns `None` if they are not origin and last segment, if part of a chain is
    /// missing, or if there are too many records.
    fn movable(
        &self,
        origin: &Self::Segment,
        segment: &Self::Segment,
    ) -> Option<(HashPrefix, Vec<Record>)>;
}

impl<K, M, G, const F: usize, const T: usize> Shrinking for DashLh<K, M, G, F, T>
where
    K: Key,
    M: Medium,
    G: Geometry,
{
    const FULL: usize = Self::SLOTS * 3 / 4;

    #[cold]
    fn shrink(&self, guard: &Guard<'_>) -> Result<()> {
        // Before the sweep is complete, segments may be stale, and records that were moved could be
        // missed by it.
        if !self.pool().is_swept() {
            return Ok(());
        }
        let linear = self.map();
        let Some(mut resizing) = linear.try_lock() else { return Ok(()) };
        if resizing.pause > 0 {
            resizing.pause -= 1;
            return Ok(());
        }
        linear.free_unused(&mut resizing, size_of::<G::Segment>() as u64, guard);
        if linear.count() == 1 {
            linear.behind.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let records = self.estimate_records()?;
        let slots_of = |count| count * (G::BUCKETS * G::BUCKET_SLOTS) as u64;
        let least = (DENSE * records).div_ceil(slots_of(1)).max(1);
        let is_sparse = SPARSE * records <= slots_of(linear.count());
        resizing.shrinking = linear.count() > least && (resizing.shrinking || is_sparse);
        let may_go_on = !resizing.shrinking || self.merge_some(least, &mut resizing, guard)?;
        let is_nearly_empty = NEARLY_EMPTY * records <= slots_of(linear.count());
        let is_behind = resizing.shrinking && linear.count() > least && is_nearly_empty;
        linear.behind.store(is_behind, Ordering::Relaxed);
        if is_behind && !may_go_on {
            // The next removals would not succeed either.
            resizing.pause = G::BUCKETS / 4;
        }
        Ok(())
    }

    fn merge_some(&self, least: u64, resizing: &mut Resizing, guard: &Guard<'_>) -> Result<bool> {
        let linear = self.map();
        let (mut merged, mut moved) = (0, 0);
        let most = TOGETHER.max(linear.count() / SHARE);
        while linear.count() > least {
            if merged == most || moved >= Self::SLOTS {
                break;
            }
            let Some(records) = self.merge_last(linear.count() - 1, resizing, guard)? else {
                return Ok(false);
            };
            (merged, moved) = (merged + 1, moved + records);
        }
        Ok(true)
    }

    fn estimate_records(&self) -> Result<u64> {
        let (m, linear) = (self.medium(), self.map());
        let buckets = linear.count() * G::BUCKETS as u64;
        let sample = buckets.min(SAMPLE);
        // One from each of as many equal parts of the index, at a place in it that differs for each
        // part and each time: segments at equal distances have similar ranks, and removals in the
        // order of ranks would empty all of them together or none.
        const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
        let turn = linear.sampled.fetch_add(SAMPLE, Ordering::Relaxed);
        let mut records = 0;
        for i in 0..sample {
            let fraction = turn.wrapping_add(i).wrapping_mul(GOLDEN_RATIO);
            let within = ((u128::from(fraction) * u128::from(buckets)) >> 64) as u64;
            let bucket = (i * buckets + within) / sample;
            let (number, at) = (bucket / G::BUCKETS as u64, bucket as usize % G::BUCKETS);
            let place = self.place(number);
            if prefix_if_initialised(m, number, place).is_some() {
                records += meta_of(m, &self.segment(place)?.normal()[at]).count() as u64;
            }
        }
        Ok(records * buckets / sample)
    }

    fn merge_last(
        &self,
        last: u64,
        resizing: &mut Resizing,
        guard: &Guard<'_>,
    ) -> Result<Option<usize>> {
        let (m, linear) = (self.medium(), self.map());
        let (nearest, _) = self.nearest(last)?;
        let into = if nearest == last { numbers::origin(last) } else { nearest };
        let offset = self.place(into);
        let origin = self.segment(offset)?;
        if !linear.may_merge() {
            return Ok(None);
        }
        self.prefetch_segment(offset);
        if nearest == last {
            self.prefetch_segment(self.place(last));
            // Not locked: only saves the time for the locks of two segments that are rather full.
            let segment = self.segment(self.place(last))?;
            if self.count_records(origin) + self.count_records(segment) > Self::FULL {
                return Ok(None);
            }
        }
        if !self.lock_all(offset, origin, numbers::hash_of(into))? {
            return Ok(None);
        }
        // Asked again: another thread may have split the origin before it was locked.
        let is_as_before = self.nearest(last).is_ok_and(|now| now.0 == nearest);
        if !is_as_before || !linear.may_merge() {
            self.unlock_as_before(origin);
            return Ok(None);
        }
        if nearest == last {
            return self.merge_into(origin, last, resizing, guard);
        }
        m.note(Note::Scope("merge"));
        linear.lower_to(last, resizing);
        self.unlock_as_before(origin);
        Ok(Some(0))
    }

    fn merge_into(
        &self,
        origin: &G::Segment,
        last: u64,
        resizing: &mut Resizing,
        guard: &Guard<'_>,
    ) -> Result<Option<usize>> {
        let (m, linear) = (self.medium(), self.map());
        let offset = self.place(last);
        let locked = self.segment(offset).and_then(|segment| {
            Ok((segment, self.lock_all(offset, segment, numbers::hash_of(last))?))
        });
        let segment = match locked {
            Ok((segment, true)) => segment,
            other => {
                self.unlock_as_before(origin);
                return other.map(|_| None);
            }
        };
        m.note(Note::Scope("merge"));
        if m.mutant(mistakes::EXTENT_TOO_EARLY) {
            linear.store_extent(last);
        }
        let moved = self.movable(origin, segment).and_then(|(prefix, records)| {
            Some((prefix, records.len(), self.absorb(origin, prefix, &records)?))
        });
        let Some((prefix, moved, headers)) = moved else {
            self.unlock_as_before(segment);
            self.unlock_as_before(origin);
            return Ok(None);
        };
        if !m.mutant(mistakes::PREFIX_TOO_LATE) {
            m.store(&origin.header().prefix, prefix.encode());
            m.flush(&origin.header().prefix);
        }
        m.fence();
        linear.lower_to(last, resizing);
        if m.mutant(mistakes::PREFIX_TOO_LATE) {
            m.store(&origin.header().prefix, prefix.encode());
            m.persist(&origin.header().prefix);
        }
        linear.merges.fetch_add(1, Ordering::Relaxed);
        // The segment stays locked: no search by this extent leads to it.
        let chain = self.chain_blocks(segment);
        linear.note_trimmed(chain.len() as u64);
        for block in chain {
            self.pool().retire(block, Self::LINK.1, guard);
        }
        self.unlock_all(origin, &headers);
        Ok(Some(moved))
    }

    fn movable(
        &self,
        origin: &G::Segment,
        segment: &G::Segment,
    ) -> Option<(HashPrefix, Vec<Record>)> {
        let m = self.medium();
        let prefix = prefix_of(m, segment)?.parent()?;
        let are_halves = [origin, segment]
            .iter()
            .zip([0, 1])
            .all(|(half, upper)| prefix_of(m, *half) == Some(prefix.half(upper)));
        let are_whole =
            [origin, segment].iter().all(|segment| self.ensure_chain_ends(segment).is_ok());
        if !are_halves || !are_whole {
            return None;
        }
        let records = self.all_records(segment);
        let fit = records.len() + self.count_records(origin) <= Self::FULL;
        fit.then_some((prefix, records))
    }
}
