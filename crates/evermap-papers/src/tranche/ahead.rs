//! Matching records that are on their way from memory.
//!
//! In a large tranche several records have the fingerprint that is sought, each in another line.
//! The processor does not get far enough ahead in the strip to wait for these lines together. So a
//! record that matches is prefetched, and read when some more have been found.

use std::marker::PhantomData;

use super::batch::prefetch_word;
use super::geometry::Geometry;
use super::group::Stored;

/// The last records of a tranche that matched, in the order in which they were found.
pub(super) struct Ahead<'m, G: Geometry> {
    records: [Option<Stored<'m>>; MOST],
    /// Where the oldest one is.
    oldest: usize,
    geometry: PhantomData<fn() -> G>,
}

/// The number of records that are prefetched before the first of them is read. With four, lookups
/// of absent keys would take less time, but those of present keys more in a table that is larger
/// than the cache: they would read nearly all of a strip instead of half of it.
const MOST: usize = 2;

impl<'m, G: Geometry> Ahead<'m, G> {
    /// The same for this size: with few fingerprints, seldom more than one matches.
    const COUNT: usize = if G::TRANCHE_BYTES > 4096 { MOST } else { 0 };

    #[inline(always)]
    pub(super) fn new() -> Self {
        Ahead { records: [None; MOST], oldest: 0, geometry: PhantomData }
    }

    /// Prefetches a record. Returns the oldest one if there are enough.
    #[inline(always)]
    pub(super) fn exchange(&mut self, stored: Stored<'m>) -> Option<Stored<'m>> {
        if Self::COUNT == 0 {
            return Some(stored);
        }
        stored.payload.first().into_iter().for_each(prefetch_word);
        let oldest = self.records[self.oldest].replace(stored);
        self.oldest = (self.oldest + 1) % Self::COUNT;
        oldest
    }

    /// Returns the records that were not returned yet.
    #[inline(always)]
    pub(super) fn rest(self) -> impl Iterator<Item = Stored<'m>> {
        let nth = move |at| self.records[(self.oldest + at) % Self::COUNT.max(1)];
        (0..Self::COUNT).filter_map(nth)
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Sizes;
    use super::super::layout::{Entry, Kind};
    use super::*;

    /// Returns the numbers of `count` records in the order in which they come back.
    fn order<const T: usize>(count: usize) -> Vec<usize> {
        let entry = Entry { start: 0, kind: Kind::Pair, dead: false };
        let record = |at| Stored { tranche: &[], place: 0, at, entry, payload: &[] };
        let mut ahead = Ahead::<Sizes<T, 2, 0>>::new();
        let mut returned: Vec<_> = (0..count).filter_map(|at| ahead.exchange(record(at))).collect();
        assert_eq!(returned.len(), count.saturating_sub(Ahead::<Sizes<T, 2, 0>>::COUNT));
        returned.extend(ahead.rest());
        returned.iter().map(|stored| stored.at).collect()
    }

    #[test]
    fn all_records_come_back_in_order() {
        for count in 0..10 {
            let expected: Vec<_> = (0..count).collect();
            assert_eq!(order::<256>(count), expected);
            assert_eq!(order::<4096>(count), expected);
            assert_eq!(order::<32768>(count), expected);
        }
    }
}
