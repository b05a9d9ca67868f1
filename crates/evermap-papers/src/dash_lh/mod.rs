//! Dash-LH: linear hashing.
//!
//! ```text
//! root ─┬─ array of 61 segments ──┐            segment   as in Dash-EH; hash bits from 24 up
//!       ├─ ...                    ├ 16 arrays            number it
//!       ├─ array of 61 segments ──┘            extent    how many segments are in use, in one
//!       ├─ array of 122 segments ─┐                      word: 2^N + Next
//!       ├─ ...                    ├ 16 arrays
//!       └─ array of 244 segments, ...
//! ```
//!
//! There is no large directory whose entries would cause cache misses: 512 offsets locate all
//! segments, because the size of arrays doubles after each sixteen (the paper's hybrid expansion).
//! A full segment gets a chain of buckets, used when its stash is full. Lengthening a chain makes
//! the index *expand*: the next two segments come into use, without moving any record. A thread
//! that then changes a record in such a segment first *initialises* it: it splits its origin, the
//! segment that has held its records until then.
//!
//! The differences from the paper, and the reasons for them:
//!
//! * **The extent is durable before any thread uses it.** Searches use a copy in ordinary memory,
//!   which changes only then. The paper's code publishes the extent first, so a crash loses the
//!   records that were moved meanwhile.
//! * **A split is committed by the prefix of the new segment**, one word. A segment without a
//!   prefix is not initialised, and a crash during its split leaves it without one. There are no
//!   states to reset.
//! * **Lookups do not split segments**: if a segment is not initialised, they search the one that
//!   holds its records.
//! * **That an array is being allocated is not stored** in the region: a lock in ordinary memory
//!   protects the allocation, so it cannot appear to go on after a crash.
//! * **Arrays fit the extents of the heap**: 61 segments fit half an extent, and 122 a whole one.
//!   Arrays whose lengths are powers of two would leave up to half of their space unused. There are
//!   sixteen arrays of each size instead of eight, so that less space is allocated before it is
//!   used.
//! * **An index that is mostly empty does not expand** if hashes are equal, which only lengthens a
//!   chain, and hardly if they are not: once for an eighth of the records for which it then has
//!   space.
//! * **The index shrinks**, in the reverse order of its growth. The paper does not say how.
//!
//! # Shrinking
//!
//! When the records fill less than an eighth of all buckets, removals *merge* the last segments
//! into their origins, one after the other, until the records fill a quarter of what is left. A
//! merge copies the records of the last segment into free slots of its origin, stores the origin's
//! shorter prefix, and is committed by the lower extent, one word. Later removals free arrays
//! without a segment in use, after a grace period.
//!
//! All merges together cost no more than the splits before them: O(1) a removal. A single removal
//! merges at most eight segments, or one in 128 of more than a thousand; it moves fewer records
//! than two segments have slots.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evermap_index::FOUND_LATE;
use evermap_index::fresh::Fresh;
use evermap_index::hash::dash::layout::{HashPrefix, Header};
use evermap_index::hash::dash::{Dash, Geometry, Sizes};
use evermap_index::hash::mistakes;
use evermap_index::hash::segmented::chain::Chain;
use evermap_index::hash::segmented::map::{SegmentMap, Split};
use evermap_index::hash::segmented::{SegmentLayout, Segmented, prefix_at};
use evermap_index::{Key, Stats, Visitor};
use evermap_pm::medium::Note;
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Error, GracePeriod, Guard, Medium, PmU64, Pool, Result};

use expand::Growing;
use layout::{ARRAYS, Array, Extent, Root};
use shrink::Shrinking;

mod expand;
mod layout;
mod numbers;
#[cfg(test)]
mod pitfalls;
mod shrink;
#[cfg(test)]
mod shrinking;
#[cfg(test)]
mod tests;

/// Dash-LH over keys `K` in medium `M`. The first `T` arrays have `F` segments, the next `T` twice
/// as many, and so on.
///
/// See the [module](self). [`TinyLh`] is for tests.
pub type DashLh<K, M, G = Sizes, const F: usize = 61, const T: usize = 16> =
    Dash<K, M, Linear<M, F, T>, G>;

/// Mistakes of other implementations that tests can enable: see [`mistakes`].
pub const MUTANTS: &[&str] = &[
    mistakes::CLEAN_MARK_STAYS,
    mistakes::GENERATION_UNFLUSHED,
    mistakes::ROOT_TOO_EARLY,
    mistakes::LOCKED_BUCKET_READ,
    mistakes::BOTH_COPIES_KEPT,
    mistakes::STASH_UNANNOUNCED,
    mistakes::REMOVAL_UNFLUSHED,
    mistakes::MISS_UNVERIFIED,
    mistakes::EXTENT_TOO_EARLY,
    mistakes::PREFIX_TOO_LATE,
    mistakes::ARRAY_FREED_EARLY,
    mistakes::MERGED_AT_ONCE,
];

/// Mistakes that no crash shows, and the tests that detect them.
pub const NOTICED_ELSEWHERE: &[(&str, &str)] = &[
    (
        mistakes::ARRAY_FREED_EARLY,
        "noticed by `an_array_stays_while_a_search_may_still_lead_there`",
    ),
    (mistakes::MERGED_AT_ONCE, "noticed by `what_a_search_has_seen_split_is_not_merged_under_it`"),
];

/// The number of segments that come into use together.
const STEP: u64 = 2;
/// The base of an array that does not exist. No medium contains the offset of any of its segments.
const NOWHERE: u64 = 1 << 62;

/// Segments and arrays so small that a few keys cause every kind of structure change.
pub type TinyLh<K, M> = DashLh<K, M, Sizes<4, 2, 4>, 2, 2>;

/// Growth by bringing segments into use in a fixed order.
pub struct Linear<M: Medium, const F: usize, const T: usize> {
    pool: Arc<Pool<M>>,
    /// The offset of the [`Root`].
    root: u64,
    /// A copy of the extent: the number of segments in use.
    count: AtomicU64,
    /// Copies of the arrays' offsets, 0 for those that do not exist yet.
    arrays: Box<[AtomicU64; ARRAYS]>,
    /// For searches, the base of each array: the offset at which segment 0 would be if numbers were
    /// counted back from the array's first segment, or [`NOWHERE`].
    bases: Box<[AtomicU64; ARRAYS]>,
    /// Held by a thread that expands or shrinks the index.
    resizing: Mutex<Resizing>,
    /// The grace period of the last expansion or split.
    grown: Mutex<Option<GracePeriod>>,
    /// The number of blocks by which chains became longer since such an expansion that only they
    /// justified, less those that were removed.
    chained: AtomicU64,
    /// The number of blocks that removals have taken out of chains since the last merge, less those
    /// that were appended again; at most the number of segments. Only the others justify an
    /// expansion, so that removing and inserting the same records again and again does not.
    vacated: AtomicU64,
    /// Whether every removal is to merge segments.
    behind: AtomicBool,
    /// The number of the first segments that such expansions have initialised.
    initialised: AtomicU64,
    /// Chooses the buckets that are counted next, to estimate how many records there are.
    sampled: AtomicU64,
    merges: AtomicU64,
}

/// What only the thread needs to know that expands or shrinks the index.
#[derive(Default)]
struct Resizing {
    /// Whether the index has become sparse, and was not made dense again since.
    shrinking: bool,
    /// How many removals are not to merge segments, because an earlier one could not.
    pause: usize,
    /// The grace period of the last merge.
    shrunk: Option<GracePeriod>,
    /// The arrays that contain no segment in use, those with the highest numbers first. Each can be
    /// freed when its grace period is over.
    unused: VecDeque<(usize, GracePeriod)>,
}

/// The result of a search for a segment.
#[derive(Clone, Copy)]
pub struct FoundSegment {
    /// The number of segments in use at the time.
    count: u64,
    /// The number of the segment that serves the hash.
    number: u64,
    /// The offset of that segment.
    target: u64,
    /// The offset of the segment that holds the records: another one if that segment is not
    /// initialised.
    holder: u64,
}

impl<M: Medium, const F: usize, const T: usize> Linear<M, F, T> {
    /// The greatest number of segments.
    const SEGMENTS_MAX: u64 = {
        assert!(F > 0 && T > 0 && T < ARRAYS);
        numbers::segments_in(ARRAYS, F as u64, T as u64)
    };

    /// The geometry word of the root.
    const GEOMETRY: u64 = F as u64 | (T as u64) << 32;

    /// Creates the state for these arrays of segments of `bytes` bytes each.
    fn new(pool: Arc<Pool<M>>, root: u64, count: u64, arrays: [u64; ARRAYS], bytes: u64) -> Self {
        let base = |array| AtomicU64::new(Self::base(array, arrays[array], bytes));
        Linear {
            pool,
            root,
            count: AtomicU64::new(count),
            arrays: Box::new(arrays.map(AtomicU64::new)),
            bases: Box::new(std::array::from_fn(base)),
            resizing: Mutex::ranked(Rank::Resize, Resizing::default()),
            grown: Mutex::ranked(Rank::Leaf, None),
            chained: AtomicU64::new(0),
            vacated: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            initialised: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            merges: AtomicU64::new(0),
        }
    }

    /// Returns the base of `array`, which begins at `offset`: to this, searches add the bytes of
    /// all segments before the one that they look for.
    fn base(array: usize, offset: u64, bytes: u64) -> u64 {
        let before = numbers::segments_in(array, F as u64, T as u64);
        if offset == 0 { NOWHERE } else { offset.wrapping_sub(before * bytes) }
    }

    /// Returns the number of segments in use.
    #[inline(always)]
    fn count(&self) -> u64 {
        // Acquire: pairs with the release in `extend_to`, so that the arrays and headers of these
        // segments are visible; and with that in `lower_to`, so that merged records are.
        self.count.load(Ordering::Acquire)
    }

    /// Returns the offset of segment `number`, if segments have `bytes` bytes each. If the segment
    /// does not exist, returns an offset outside of every medium.
    #[inline(always)]
    fn place(&self, number: u64, bytes: u64) -> u64 {
        let base = self.bases.get(numbers::array_of(number, F as u64, T as u64));
        // Relaxed: the caller knows from `count` that the segment is in use or was in use under the
        // guard that it holds, and the base does not change before that guard is dropped.
        base.map_or(NOWHERE, |base| base.load(Ordering::Relaxed)).wrapping_add(number * bytes)
    }

    /// Returns the number of segments in use after an expansion of `count` segments.
    fn next(count: u64) -> u64 {
        (count + STEP).min(Self::SEGMENTS_MAX)
    }

    fn array_bytes(array: usize, bytes: u64) -> u64 {
        numbers::array_len(array, F as u64, T as u64) * bytes
    }

    /// Returns the number of arrays that contain the first `count` segments.
    fn arrays_for(count: u64) -> usize {
        numbers::array_of(count - 1, F as u64, T as u64) + 1
    }

    fn root(&self) -> &Root {
        self.pool.medium().at(self.root).expect("checked when opened")
    }
}

/// Returns the prefix of segment `number` at `offset`. Returns `None` if it is not initialised.
fn prefix_if_initialised<M: Medium>(m: &M, number: u64, offset: u64) -> Option<HashPrefix> {
    prefix_at::<Header, M>(m, offset).filter(|&prefix| {
        numbers::number_of_prefix(prefix) == number && prefix.depth >= numbers::least_depth(number)
    })
}

/// Returns whether the segment at `holder` still serves `hash`, which belongs to another segment
/// that is not initialised.
///
/// The prefix of that other segment does not decide this: a segment between the two in the order of
/// origins may have been split off meanwhile.
#[cold]
fn still_serves<M: Medium>(m: &M, holder: u64, hash: u64) -> bool {
    prefix_at::<Header, M>(m, holder).is_some_and(|prefix| prefix.covers(numbers::rank(hash)))
}

impl<K, M, G, const F: usize, const T: usize> SegmentMap<DashLh<K, M, G, F, T>> for Linear<M, F, T>
where
    K: Key,
    M: Medium,
    G: Geometry,
{
    /// Contains the geometry of the arrays, so that indexes with different geometries are of
    /// different kinds.
    const NAME: [u8; 4] = [b'L', b'H', F as u8, T as u8];
    const ROOT_BYTES: u64 = size_of::<Root>() as u64;
    const SEGMENTS_ARE_BLOCKS: bool = false;
    const CHAIN: Chain = Chain::Fill;

    type Found<'a> = FoundSegment;

    fn rank(hash: u64) -> u64 {
        numbers::rank(hash)
    }

    fn unrank(rank: u64) -> u64 {
        numbers::unrank(rank)
    }

    fn create(pool: &Arc<Pool<M>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)> {
        let (m, count) = (pool.medium(), 1 << depth);
        let bytes = size_of::<G::Segment>() as u64;
        let (mut fresh, mut arrays) = (Fresh::new(pool), [0; ARRAYS]);
        for (number, offset) in arrays.iter_mut().enumerate().take(Self::arrays_for(count)) {
            *offset = fresh.allocate_exact(Self::array_bytes(number, bytes))?;
        }
        fresh.keep();
        let header = m.at::<Root>(root).expect("just allocated");
        m.store(&header.geometry, Self::GEOMETRY);
        m.store(&header.extent, Extent(count).encode());
        for (number, (cell, &offset)) in header.arrays.iter().zip(&arrays).enumerate() {
            m.store(cell, if offset == 0 { 0 } else { Array { number, offset }.encode() });
        }
        m.flush(header);
        let linear = Linear::new(pool.clone(), root, count, arrays, bytes);
        let number = |pattern| numbers::number_of_prefix(HashPrefix { depth, pattern });
        let places = (0..count).map(|pattern| linear.place(number(pattern), bytes)).collect();
        Ok((linear, places))
    }

    fn open(pool: &Arc<Pool<M>>, root: u64) -> Result<Self> {
        let m = pool.medium();
        let damaged = |what| Error::damaged(root, what);
        let header = m
            .at::<Root>(root)
            .ok_or_else(|| damaged("the index's root ends outside the region"))?;
        // An earlier process may have stored its words and terminated before they were durable.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(header);
        if m.load(&header.geometry) != Self::GEOMETRY {
            return Err(damaged("the arrays have another geometry"));
        }
        let extent = Extent::decode(m.load(&header.extent))
            .filter(|extent| extent.0 <= Self::SEGMENTS_MAX)
            .ok_or_else(|| damaged("impossible extent of an index"))?;
        let (in_use, most) = (Self::arrays_for(extent.0), Self::arrays_for(Self::SEGMENTS_MAX));
        let mut arrays = [0; ARRAYS];
        for (number, offset) in arrays.iter_mut().enumerate().take(most) {
            let bytes = || Self::array_bytes(number, size_of::<G::Segment>() as u64);
            let array = Array::decode(number, m.load(&header.arrays[number]))
                .filter(|array| m.contains(array.offset, bytes(), align_of::<PmU64>() as u64));
            *offset = match array {
                Some(array) => array.offset,
                // A crash before the extent was raised, or after it was lowered, leaves an array
                // here that contains no segment in use.
                None if number >= in_use => 0,
                None => return Err(damaged("impossible offset of an array")),
            };
        }
        let bytes = size_of::<G::Segment>() as u64;
        let linear = Linear::new(pool.clone(), root, extent.0, arrays, bytes);
        linear.note_unused(&mut linear.lock());
        Ok(linear)
    }

    #[inline(always)]
    fn find<'a>(&'a self, _m: &'a M, hash: u64) -> Result<(u64, FoundSegment)> {
        let count = self.count();
        let number = numbers::number_of(hash, count);
        let target = self.place(number, size_of::<G::Segment>() as u64);
        Ok((target, FoundSegment { count, number, target, holder: target }))
    }

    #[cold]
    fn holder<'a>(&'a self, m: &'a M, hash: u64) -> Result<(u64, FoundSegment)> {
        // A segment can be split during the search, once for each number bit.
        const MANY: usize = 100;
        let bytes = size_of::<G::Segment>() as u64;
        let count = self.count();
        let number = numbers::number_of(hash, count);
        let target = self.place(number, bytes);
        for _ in 0..MANY {
            let mut at = number;
            loop {
                let holder = self.place(at, bytes);
                match prefix_if_initialised(m, at, holder) {
                    // If the segment was split since the count was read, `is_current` returns
                    // `false`.
                    Some(prefix) if at == number || prefix.covers(numbers::rank(hash)) => {
                        return Ok((holder, FoundSegment { count, number, target, holder }));
                    }
                    // These records were moved to another segment, which is initialised by now:
                    // search again.
                    Some(_) => break,
                    None if at == 0 => break,
                    None => at = numbers::origin(at),
                }
            }
        }
        Err(Error::damaged(target, "a segment has lost its prefix"))
    }

    #[inline(always)]
    fn is_current(&self, m: &M, hash: u64, found: &FoundSegment) -> bool {
        let count = self.count();
        (count == found.count || numbers::number_of(hash, count) == found.number)
            && (found.holder == found.target || still_serves(m, found.holder, hash))
    }

    fn depth(&self) -> u32 {
        numbers::least_depth(self.count() - 1)
    }

    fn segments(&self) -> u64 {
        self.count()
    }

    fn prepare(
        dash: &DashLh<K, M, G, F, T>,
        _offset: u64,
        rank: u64,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        let number = numbers::number_of(numbers::unrank(rank), dash.map().count());
        match dash.initialise(number, guard) {
            Ok(()) => Ok(true),
            Err(error) if error.is_no_space() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finishes a split whose new segment is initialised, but whose origin still has its old
    /// prefix.
    fn finish_structure(
        dash: &DashLh<K, M, G, F, T>,
        offset: u64,
        segment: &G::Segment,
        mut prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        let (m, count) = (dash.medium(), dash.map().count());
        let number = numbers::number_of_prefix(prefix);
        if number >= count || dash.place(number) != offset {
            return Err(Error::damaged(offset, "a segment does not serve the hash that led to it"));
        }
        let child = number | 1 << prefix.depth;
        let split = child < count && prefix_if_initialised(m, child, dash.place(child)).is_some();
        if split {
            // Must be durable before records are removed from this segment.
            m.persist(&dash.segment(dash.place(child))?.header().prefix);
            prefix = prefix.half(0);
            m.store(&segment.header().prefix, prefix.encode());
            // Made durable together with the contents. After an earlier crash, recovery sees from
            // the new segment again that this one was split.
            m.flush(&segment.header().prefix);
        }
        Ok(Some(prefix))
    }

    fn split(
        _dash: &DashLh<K, M, G, F, T>,
        _segment: &G::Segment,
        _rank: u64,
        _guard: &Guard<'_>,
    ) -> Result<Split> {
        // Segments are split in a fixed order, which does not depend on which one is full.
        Ok(Split::Refused)
    }

    fn lengthened(dash: &DashLh<K, M, G, F, T>, rank: u64) -> Result<()> {
        match dash.expand(numbers::unrank(rank)) {
            // Not an error: the record that made the chain longer is stored already.
            Err(error) if error.is_no_space() => Ok(()),
            expanded => expanded,
        }
    }

    fn shortened(&self, blocks: u64) {
        self.note_trimmed(blocks);
        let (most, order) = (self.count(), Ordering::Relaxed);
        let more = |vacated: u64| Some((vacated + blocks).min(most));
        let _ = self.vacated.fetch_update(order, order, more);
    }

    #[inline]
    fn is_behind(&self) -> bool {
        // Relaxed: a hint.
        self.behind.load(Ordering::Relaxed)
    }

    fn emptied(
        dash: &DashLh<K, M, G, F, T>,
        _segment: &G::Segment,
        _rank: u64,
        guard: &Guard<'_>,
    ) -> Result<()> {
        // Which segments are merged does not depend on which one has lost its records.
        dash.shrink(guard)
    }

    fn make_all_stale(dash: &DashLh<K, M, G, F, T>) -> Result<()> {
        for number in 0..dash.map().count() {
            dash.make_stale(dash.segment(dash.place(number))?);
        }
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn Visitor) {
        for array in self.arrays.iter() {
            match array.load(Ordering::Acquire) {
                0 => {}
                offset => visitor.block(offset),
            }
        }
    }

    /// Counts the capacity of all arrays, as the paper's evaluation does, not only of the segments
    /// in use.
    fn complete_stats(&self, _initialised: u64, stats: &mut Stats) {
        let there = self.arrays.iter().filter(|array| array.load(Ordering::Acquire) != 0).count();
        let segments = numbers::segments_in(there, F as u64, T as u64);
        stats.depth = self.count().ilog2();
        stats.segments = self.count();
        stats.merges = self.merges.load(Ordering::Relaxed);
        stats.capacity += segments * DashLh::<K, M, G, F, T>::SLOTS as u64;
        stats.pm_bytes += size_of::<Root>() as u64 + segments * size_of::<G::Segment>() as u64;
        stats.dram_bytes += 2 * size_of::<[AtomicU64; ARRAYS]>() as u64;
    }

    fn check(
        dash: &DashLh<K, M, G, F, T>,
        _found: &HashMap<u64, HashPrefix>,
        problems: &mut Vec<String>,
    ) {
        dash.check_numbers(problems);
    }
}
