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
//! There is no directory to miss the cache in: 512 offsets place every segment there can be,
//! because arrays double in size after each sixteen (the paper's hybrid expansion). A segment that
//! is full gets a chain of buckets behind its stash. That makes the index *expand*: the next two
//! segments come into use, without a record being moved. A thread that then changes something in
//! such a segment first *initialises* it: splits its origin, the segment that had its records so
//! far.
//!
//! What differs from the paper, and why:
//!
//! * **The extent is durable before anyone acts on it.** Searches go by a copy in ordinary
//!   memory, which changes only then. The paper's code publishes first, and a crash loses what was
//!   moved meanwhile.
//! * **A split is committed by the prefix of the new segment**, one word. A segment without a
//!   prefix is not initialised, which is also what a crash in the middle of its split leaves. There
//!   are no states to be reset.
//! * **Lookups split nothing**: where a segment is not initialised they ask the one that has its
//!   records.
//! * **No mark says that an array is being allocated.** That is known in ordinary memory, so a
//!   crash cannot keep it.
//! * **Arrays fit the extents of the heap**, 61 segments half of one and 122 the whole: arrays of
//!   powers of two would leave up to half of their space unused. There are sixteen of each size
//!   instead of eight, so that less is reserved ahead of use.
//! * **An index that is mostly empty does not expand**, so that keys with equal hashes lengthen a
//!   chain and nothing else.
//! * It does not shrink: segments and arrays once in use stay so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::medium::Note;
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use super::Dash;
use super::expansion::{Expansion, Found};
use super::layout::{HashPrefix, Header, SLOTS_MAX, Segment};
use crate::hash::FOUND_LATE;
use crate::hash::fresh::Fresh;
use crate::hash::segmented::apply::Chain;
use crate::hash::segmented::split::Split;
use crate::hash::segmented::{Segmented, prefix_at};
use crate::{Key, Stats, Visitor};
use layout::{ARRAYS, Array, Extent, Root};

mod expand;
mod layout;
mod numbers;
#[cfg(test)]
mod pitfalls;
#[cfg(test)]
mod tests;

/// Dash-LH over keys `K` in medium `M`, with segments of `B` buckets and `S` stash buckets, using
/// `N` slots of each. The first `T` arrays have `F` segments, the next `T` twice as many, and so
/// on.
///
/// See the [module](super). [`TinyLh`] is for tests.
pub type DashLh<
    K,
    M,
    const B: usize = 64,
    const S: usize = 2,
    const N: usize = { SLOTS_MAX },
    const F: usize = 61,
    const T: usize = 16,
> = Dash<K, M, Linear<M, F, T>, B, S, N>;

/// The number of segments that come into use together.
const STEP: u64 = 2;
/// Base of an array that is not there: no medium is as large, whatever the segment.
const NOWHERE: u64 = 1 << 62;

/// Segments and arrays so small that a handful of keys makes every structural change happen.
pub type TinyLh<K, M> = DashLh<K, M, 4, 2, 4, 2, 2>;

/// Growth by one segment after the other, in a fixed order.
pub struct Linear<M: Medium, const F: usize, const T: usize> {
    pool: Arc<Pool<M>>,
    /// Offset of the [`Root`].
    root: u64,
    /// Copy of the extent: segments in use.
    count: AtomicU64,
    /// Copies of the arrays' offsets, 0 for those that are not there yet.
    arrays: Box<[AtomicU64; ARRAYS]>,
    /// What searches use instead: where segment 0 would be if each array began with it, or
    /// [`NOWHERE`].
    bases: Box<[AtomicU64; ARRAYS]>,
    /// Held by the thread that extends the index.
    expanding: Mutex<()>,
}

/// Where a search was led.
#[derive(Clone, Copy)]
pub struct Led {
    /// Segments in use then.
    count: u64,
    /// The segment that serves the hash.
    number: u64,
    /// Where that is.
    target: u64,
    /// Where its records are: another place if it is not initialised.
    holder: u64,
}

impl Found for Led {
    #[inline(always)]
    fn segment(&self) -> u64 {
        self.holder
    }
}

impl<M: Medium, const F: usize, const T: usize> Linear<M, F, T> {
    /// Segments that there can be.
    const SEGMENTS_MAX: u64 = {
        assert!(F > 0 && T > 0 && T < ARRAYS);
        numbers::segments_in(ARRAYS, F as u64, T as u64)
    };

    /// The geometry word of the root.
    const GEOMETRY: u64 = F as u64 | (T as u64) << 32;

    /// With these arrays of segments of `bytes` bytes.
    fn new(pool: Arc<Pool<M>>, root: u64, count: u64, arrays: [u64; ARRAYS], bytes: u64) -> Self {
        let base = |array| AtomicU64::new(Self::base(array, arrays[array], bytes));
        Linear {
            pool,
            root,
            count: AtomicU64::new(count),
            arrays: Box::new(arrays.map(AtomicU64::new)),
            bases: Box::new(std::array::from_fn(base)),
            expanding: Mutex::new(()),
        }
    }

    /// Where segment 0 would be if `array`, which begins at `offset`, began with it.
    fn base(array: usize, offset: u64, bytes: u64) -> u64 {
        let before = numbers::segments_in(array, F as u64, T as u64);
        if offset == 0 { NOWHERE } else { offset.wrapping_sub(before * bytes) }
    }

    /// Segments in use.
    #[inline(always)]
    fn count(&self) -> u64 {
        // Acquire: pairs with the release in `extend_to`, so that their arrays are known, and a
        // thread that was led to one of them and changed it was so before.
        self.count.load(Ordering::Acquire)
    }

    /// Offset of segment `number` in an array of segments of `bytes` bytes; one that cannot be
    /// where there is none.
    #[inline(always)]
    fn place(&self, number: u64, bytes: u64) -> u64 {
        let base = self.bases.get(numbers::array_of(number, F as u64, T as u64));
        // Relaxed: never changes once the number is in use, and `count` has told of that.
        base.map_or(NOWHERE, |base| base.load(Ordering::Relaxed)).wrapping_add(number * bytes)
    }

    /// Segments in use after one more expansion than made it `count`.
    fn next(count: u64) -> u64 {
        (count + STEP).min(Self::SEGMENTS_MAX)
    }

    fn array_bytes(array: usize, bytes: u64) -> u64 {
        numbers::array_len(array, F as u64, T as u64) * bytes
    }

    /// Arrays that `count` segments take.
    fn arrays_for(count: u64) -> usize {
        numbers::array_of(count - 1, F as u64, T as u64) + 1
    }

    fn root(&self) -> &Root {
        self.pool.medium().at(self.root).expect("checked when opened")
    }
}

/// The prefix of segment `number` at `offset`, if it is initialised.
fn prefix_if_initialised<M: Medium>(m: &M, number: u64, offset: u64) -> Option<HashPrefix> {
    prefix_at::<Header, M>(m, offset).filter(|&prefix| {
        numbers::number_of_prefix(prefix) == number && prefix.depth >= numbers::least_depth(number)
    })
}

impl<K, M, const B: usize, const S: usize, const N: usize, const F: usize, const T: usize>
    Expansion<K, M, B, S, N> for Linear<M, F, T>
where
    K: Key,
    M: Medium,
{
    /// With the geometry of the arrays, so that another one is another kind.
    const NAME: [u8; 8] = [b'D', b'A', b'S', b'H', b'L', b'H', F as u8, T as u8];
    const ROOT_BYTES: u64 = size_of::<Root>() as u64;
    const SEGMENTS_ARE_BLOCKS: bool = false;
    const CHAIN: Chain = Chain::Fill;

    type Found<'a> = Led;

    fn rank(hash: u64) -> u64 {
        numbers::rank(hash)
    }

    fn unrank(rank: u64) -> u64 {
        numbers::unrank(rank)
    }

    fn create(pool: &Arc<Pool<M>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)> {
        let (m, count) = (pool.medium(), 1 << depth);
        let bytes = size_of::<Segment<B, S>>() as u64;
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
        let header = m.at::<Root>(root).ok_or_else(|| damaged("the index's root ends outside"))?;
        // The thread that stored what it says may have died before it was durable.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(header);
        if m.load(&header.geometry) != Self::GEOMETRY {
            return Err(damaged("arrays of another geometry"));
        }
        let extent = Extent::decode(m.load(&header.extent))
            .filter(|extent| extent.0 <= Self::SEGMENTS_MAX)
            .ok_or_else(|| damaged("impossible extent of an index"))?;
        let (in_use, reserved) =
            (Self::arrays_for(extent.0), Self::arrays_for(Self::next(extent.0)));
        let mut arrays = [0; ARRAYS];
        for (number, offset) in arrays.iter_mut().enumerate().take(reserved) {
            let bytes = Self::array_bytes(number, size_of::<Segment<B, S>>() as u64);
            let array = Array::decode(number, m.load(&header.arrays[number]))
                .filter(|array| m.contains(array.offset, bytes, align_of::<PmU64>() as u64));
            *offset = match array {
                Some(array) => array.offset,
                // There is one here only if a crash came before the extent reached it.
                None if number >= in_use => 0,
                None => return Err(damaged("impossible place of an array")),
            };
        }
        let bytes = size_of::<Segment<B, S>>() as u64;
        Ok(Linear::new(pool.clone(), root, extent.0, arrays, bytes))
    }

    #[inline(always)]
    fn find<'a>(&'a self, _m: &'a M, hash: u64) -> Result<Led> {
        let count = self.count();
        let number = numbers::number_of(hash, count);
        let target = self.place(number, size_of::<Segment<B, S>>() as u64);
        Ok(Led { count, number, target, holder: target })
    }

    #[cold]
    fn holder<'a>(&'a self, m: &'a M, hash: u64) -> Result<Led> {
        // A segment can be split while we look for it, once for each bit that numbers have.
        const MANY: usize = 100;
        let bytes = size_of::<Segment<B, S>>() as u64;
        let count = self.count();
        let number = numbers::number_of(hash, count);
        let target = self.place(number, bytes);
        for _ in 0..MANY {
            let mut at = number;
            loop {
                let holder = self.place(at, bytes);
                match prefix_if_initialised(m, at, holder) {
                    // A segment that serves less than it did when we read the count is found out by
                    // `still`.
                    Some(prefix) if at == number || prefix.covers(numbers::rank(hash)) => {
                        return Ok(Led { count, number, target, holder });
                    }
                    // It gave these records away, so the segment that got them is initialised by
                    // now.
                    Some(_) => break,
                    None if at == 0 => break,
                    None => at = numbers::origin(at),
                }
            }
        }
        Err(Error::damaged(target, "a segment has lost its prefix"))
    }

    #[inline(always)]
    fn is_current(&self, m: &M, hash: u64, found: &Led) -> bool {
        let count = self.count();
        (count == found.count || numbers::number_of(hash, count) == found.number)
            && (found.holder == found.target
                || prefix_if_initialised(m, found.number, found.target).is_none())
    }

    fn depth(&self) -> u32 {
        numbers::least_depth(self.count() - 1)
    }

    fn prepare(
        dash: &DashLh<K, M, B, S, N, F, T>,
        _offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        let number = numbers::number_of(hash, dash.expansion.count());
        match dash.initialise(number, guard) {
            Ok(()) => Ok(true),
            Err(error) if error.is_no_space() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A split whose new segment was initialised, but whose origin does not say so yet.
    fn finish_structure(
        dash: &DashLh<K, M, B, S, N, F, T>,
        offset: u64,
        segment: &Segment<B, S>,
        mut prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        let (m, count) = (dash.medium(), dash.expansion.count());
        let number = numbers::number_of_prefix(prefix);
        if number >= count || dash.place(number) != offset {
            return Err(Error::damaged(offset, "a segment does not serve the hash that led to it"));
        }
        let child = number | 1 << prefix.depth;
        let split = child < count && prefix_if_initialised(m, child, dash.place(child)).is_some();
        if split {
            // Before anything goes from here.
            m.persist(&dash.segment(dash.place(child))?.header.prefix);
            prefix = prefix.half(0);
            m.store(&segment.header.prefix, prefix.encode());
            // Durable with the contents: until then the new segment says the same.
            m.flush(&segment.header.prefix);
        }
        Ok(Some(prefix))
    }

    fn split(
        _dash: &DashLh<K, M, B, S, N, F, T>,
        _segment: &Segment<B, S>,
        _hash: u64,
        _guard: &Guard<'_>,
    ) -> Result<Split> {
        // Which segment is split next does not depend on which is full.
        Ok(Split::Refused)
    }

    fn lengthened(dash: &DashLh<K, M, B, S, N, F, T>) -> Result<()> {
        match dash.expand() {
            // The pair that was too many has its place already.
            Err(error) if error.is_no_space() => Ok(()),
            expanded => expanded,
        }
    }

    fn emptied(
        _dash: &DashLh<K, M, B, S, N, F, T>,
        _segment: &Segment<B, S>,
        _hash: u64,
        _guard: &Guard<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn make_all_stale(dash: &DashLh<K, M, B, S, N, F, T>) -> Result<()> {
        for number in 0..dash.expansion.count() {
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

    fn visited(&self, _segments: u64) {}

    /// Counts what all arrays have room for, as the paper's evaluation does, not only what is in
    /// use.
    fn complete(&self, _initialised: u64, stats: &mut Stats) {
        let there = self.arrays.iter().filter(|array| array.load(Ordering::Acquire) != 0).count();
        let segments = numbers::segments_in(there, F as u64, T as u64);
        stats.depth = self.count().ilog2();
        stats.segments = self.count();
        stats.capacity += segments * ((B + S) * N) as u64;
        stats.pm_bytes += size_of::<Root>() as u64 + segments * size_of::<Segment<B, S>>() as u64;
        stats.dram_bytes += 2 * size_of::<[AtomicU64; ARRAYS]>() as u64;
    }

    fn check(
        dash: &DashLh<K, M, B, S, N, F, T>,
        _found: &HashMap<u64, HashPrefix>,
        problems: &mut Vec<String>,
    ) {
        dash.check_numbers(problems);
    }
}
