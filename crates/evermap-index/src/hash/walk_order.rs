//! The order in which walks over hash indexes show their records: one that suits insertions.
//!
//! A hash index stores its records in the order of *ranks*: of hashes, or of their bits in another
//! order. Inserting in this order is what a program does that copies one index into another, and
//! each part of the new index would be filled, and grow, before the next part received a record. So
//! a walk shows the ranks in `2^bits` equal ranges, of which the topmost bits change first:
//!
//! ```text
//! ranges of a walk, bits = 3     0 4 2 6 1 5 3 7
//! ranks                          |0  |1  |2  |3  |4  |5  |6  |7  |
//! ```
//!
//! An index with any number of parts then receives records for each of them in turn. Within a range
//! the walk goes upwards. How many ranges there are is chosen when the walk begins, and part of its
//! position. A rank is always in the same range, whatever the index does meanwhile, and a range is
//! walked like the whole would be. So a pair that is present throughout is shown exactly once.

use std::ops::RangeInclusive;

use evermap_pm::{Guard, Medium, Pool, Result};

use super::hash_prefix::top_bits;

/// An index whose units, in the order of ranks, can be shown one by one. Units begin at ranks whose
/// last six bits are zero.
pub(crate) trait Ranked {
    /// The number of units that a [`scan`] shows.
    const UNITS_TOGETHER: usize = 1;

    /// Returns the binary logarithm of the number of ranges for a walk: that of the number of
    /// units, or a little less.
    fn range_bits(&self) -> u32;

    /// Calls `each` with the slot keys and words of the pairs of one unit that have these ranks:
    /// the unit of the first of them. Returns the first rank after the unit, or `None` after the
    /// last one.
    ///
    /// # Errors
    /// `Damaged` if the unit cannot be read.
    fn show(
        &self,
        ranks: RangeInclusive<u64>,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>);

    /// Checks that walks can continue.
    ///
    /// # Errors
    /// `Poisoned`, `Forked`.
    fn ensure_usable(&self) -> Result<()>;
}

/// The position of a walk.
///
/// ```text
/// bit  0..6   bits: binary logarithm of the number of ranges
/// bit  6..64  the number of the range, in the order of the walk, in the topmost `bits` bits;
///             then the position in the range
/// ```
///
/// 0 is the beginning of any walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    bits: u32,
    place: u64,
}

impl Position {
    const BITS: u64 = (1 << 6) - 1;

    /// Returns the beginning of a walk through `2^bits` ranges.
    pub(crate) fn first(bits: u32) -> Self {
        Position { bits: bits.min(40), place: 0 }
    }

    /// Decodes a number that [`encode`](Self::encode) returned. Returns `None` for 0.
    fn decode(word: u64) -> Option<Self> {
        let position = Position { bits: (word & Self::BITS) as u32, place: word & !Self::BITS };
        (word != 0).then_some(position)
    }

    fn encode(self) -> u64 {
        debug_assert!(self.place & Self::BITS == 0, "units begin at such ranks");
        self.place | u64::from(self.bits)
    }

    /// Returns the number of the range, in the order of the walk.
    fn number(self) -> u64 {
        top_bits(self.place, self.bits)
    }

    /// Returns the ranks of the range that were not shown yet.
    pub(crate) fn ranks(self) -> RangeInclusive<u64> {
        if self.bits == 0 {
            return self.place..=u64::MAX;
        }
        let (number, within) = (self.number(), u64::MAX >> self.bits);
        // The last bit of the number is the last of the range's bits, and becomes the first.
        let range = number.reverse_bits() & !within;
        range | self.place & within..=range | within
    }

    /// Returns the position after a unit of the range, given the first rank after that unit.
    /// Returns `None` after the last range.
    pub(crate) fn after(self, next: Option<u64>) -> Option<Self> {
        let (ranks, within) = (self.ranks(), u64::MAX >> self.bits);
        if let Some(next) = next.filter(|next| ranks.contains(next)) {
            return Some(Position { place: self.place & !within | next & within, ..self });
        }
        let number = self.number() + 1;
        (number >> self.bits == 0)
            .then(|| Position { place: number << (64 - self.bits), ..self })
    }
}

/// Implements [`Persistent::scan`](crate::Persistent::scan).
pub(crate) fn scan<T: Ranked>(
    index: &T,
    from: u64,
    guard: &Guard<'_>,
    each: &mut dyn FnMut(u64, u64),
) -> (Result<()>, Option<u64>) {
    let mut here = Position::decode(from).unwrap_or_else(|| Position::first(index.range_bits()));
    let mut units = 1..T::UNITS_TOGETHER;
    loop {
        let (shown, next) = index.show(here.ranks(), guard, each);
        if let Err(unusable) = index.ensure_usable() {
            return (Err(unusable), None);
        }
        match here.after(next) {
            Some(next) if shown.is_ok() && units.next().is_some() => here = next,
            next => return (shown, next.map(Position::encode)),
        }
    }
}

/// Implements [`Index::for_each`](crate::Index::for_each).
pub(crate) fn for_each<T: Ranked, M: Medium>(
    index: &T,
    pool: &Pool<M>,
    each: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let (mut from, mut result, mut pairs) = (Some(0), Ok(()), Vec::new());
    while let Some(here) = from {
        // The guard keeps what records name valid while `each` uses it.
        let guard = pool.pin();
        pairs.clear();
        let (shown, next) = scan(index, here, &guard, &mut |key, word| pairs.push((key, word)));
        result = result.and(shown);
        if !pairs.iter().all(|&(key, word)| each(key, word)) {
            break;
        }
        from = next;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks through units of this depth, and returns their first ranks.
    fn firsts(bits: u32, depth: u32) -> Vec<u64> {
        let (mut here, mut firsts) = (Some(Position::first(bits)), Vec::new());
        while let Some(position) = here {
            assert!(position.place == 0 || Position::decode(position.encode()) == Some(position));
            let rank = *position.ranks().start();
            firsts.push(rank);
            here = position.after(crate::hash::hash_prefix::first_hash_after(rank, depth));
        }
        firsts
    }

    #[test]
    fn the_topmost_bits_change_first() {
        let ranges: Vec<u64> = firsts(3, 3).iter().map(|rank| rank >> 61).collect();
        assert_eq!(ranges, [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(firsts(0, 0), [0]);
        assert_eq!(firsts(0, 2), [0, 1 << 62, 2 << 62, 3 << 62]);
        assert_eq!(firsts(1, 2), [0, 1 << 62, 2 << 62, 3 << 62]);
        // Units that are larger than ranges are visited once for each range.
        assert_eq!(firsts(2, 1), [0, 2 << 62, 1 << 62, 3 << 62]);
        assert_eq!(firsts(2, 3).len(), 8);
    }

    #[test]
    fn ranges_divide_the_ranks() {
        for bits in 0..12 {
            let mut here = Some(Position::first(bits));
            let mut ranges: Vec<RangeInclusive<u64>> = std::iter::from_fn(|| {
                let ranks = here?.ranks();
                here = here?.after(None);
                Some(ranks)
            })
            .collect();
            ranges.sort_unstable_by_key(|ranks| *ranks.start());
            assert_eq!(ranges.len(), 1 << bits);
            assert_eq!((*ranges[0].start(), *ranges.last().unwrap().end()), (0, u64::MAX));
            assert!(ranges.windows(2).all(|two| two[0].end() + 1 == *two[1].start()));
        }
    }

    /// A number that no walk has returned leads to some position, from which a walk ends.
    #[test]
    fn any_number_is_a_position() {
        for word in [1, 63, 40, 1 << 63 | 63, u64::MAX, 1 << 6] {
            let mut here = Position::decode(word);
            assert!(here.is_some());
            for _ in 0..100 {
                here = here.and_then(|position| position.after(None));
            }
        }
    }
}
