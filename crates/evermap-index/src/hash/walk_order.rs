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
//!
//! Ranks may begin with bits that choose a place in each part of the index, instead of the part.
//! The walk then passes over the other bits in this order, once for each value of these, and in
//! each pass shows another place in each part.

use std::ops::RangeInclusive;

use evermap_pm::{Guard, Medium, Pool, Result};

use super::hash_prefix::top_bits;

/// An index whose units, in the order of ranks, can be shown one by one. Units begin at ranks whose
/// last six bits are zero.
pub trait Ranked {
    /// The number of units that a [`scan`] shows.
    const UNITS_TOGETHER: usize = 1;
    /// The number of leading bits of a rank that choose a place in each part of the index.
    const PLACE_BITS: u32 = 0;

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
pub struct Position {
    bits: u32,
    /// How many of these choose a place in each part of the index, the same for all positions.
    place_bits: u32,
    order: u64,
}

impl Position {
    const BITS: u64 = (1 << 6) - 1;

    /// Returns the beginning of a walk through `2^bits` ranges. The first `place_bits` of these
    /// bits choose a place in each part of the index.
    pub fn first(bits: u32, place_bits: u32) -> Self {
        Position { bits: bits.min(40), place_bits, order: 0 }
    }

    /// Decodes a number that [`encode`](Self::encode) returned. Returns `None` for 0.
    pub fn decode(word: u64, place_bits: u32) -> Option<Self> {
        let (bits, order) = ((word & Self::BITS) as u32, word & !Self::BITS);
        (word != 0).then_some(Position { bits, place_bits, order })
    }

    /// Encodes the position, except the beginning of a walk, which is 0.
    pub fn encode(self) -> u64 {
        debug_assert!(self.order & Self::BITS == 0, "units begin at such ranks");
        self.order | u64::from(self.bits)
    }

    /// Returns the number of the range, in the order of the walk.
    fn number(self) -> u64 {
        top_bits(self.order, self.bits)
    }

    /// Returns the number of the range, in the order of ranks.
    fn range(self) -> u64 {
        let place_bits = self.place_bits.min(self.bits);
        let part_bits = self.bits - place_bits;
        let part = self.number() & ((1 << part_bits) - 1);
        let pass = self.number() >> part_bits;
        // In each pass, other places of other parts, in turn: an index with fewer parts receives
        // the records of some of them for the same part. The numbers of those agree in some of
        // their last bits, and the bits above count them.
        let turn = folded(part, place_bits);
        (reversed(pass, place_bits) ^ turn) << part_bits | reversed(part, part_bits)
    }

    /// Returns the ranks of the range that were not shown yet.
    pub fn ranks(self) -> RangeInclusive<u64> {
        let within = u64::MAX >> self.bits;
        let range = if self.bits == 0 { 0 } else { self.range() << (64 - self.bits) };
        range | self.order & within..=range | within
    }

    /// Returns the position after a unit of the range, given the first rank after that unit.
    /// Returns `None` after the last range.
    pub fn after(self, next: Option<u64>) -> Option<Self> {
        let (ranks, within) = (self.ranks(), u64::MAX >> self.bits);
        if let Some(next) = next.filter(|next| ranks.contains(next)) {
            return Some(Position { order: self.order & !within | next & within, ..self });
        }
        let number = self.number() + 1;
        (number >> self.bits == 0).then(|| Position { order: number << (64 - self.bits), ..self })
    }
}

/// Returns the last `bits` bits of a number, at most 63, in reverse order.
pub fn reversed(number: u64, bits: u32) -> u64 {
    top_bits(number.reverse_bits(), bits)
}

/// Returns the exclusive or of the groups of `bits` bits of a number: any `bits` neighbouring bits
/// determine it if the others are known.
fn folded(mut number: u64, bits: u32) -> u64 {
    let mut folded = 0;
    while bits > 0 && number > 0 {
        folded ^= number & ((1 << bits) - 1);
        number >>= bits;
    }
    folded
}

/// Implements [`Persistent::scan`](crate::Persistent::scan).
pub fn scan<T: Ranked>(
    index: &T,
    from: u64,
    guard: &Guard<'_>,
    each: &mut dyn FnMut(u64, u64),
) -> (Result<()>, Option<u64>) {
    let first = || Position::first(index.range_bits(), T::PLACE_BITS);
    let mut here = Position::decode(from, T::PLACE_BITS).unwrap_or_else(first);
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
pub fn for_each<T: Ranked, M: Medium>(
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
        let (mut here, mut firsts) = (Some(Position::first(bits, 0)), Vec::new());
        while let Some(position) = here {
            let decoded = Position::decode(position.encode(), 0);
            assert!(position.order == 0 || decoded == Some(position));
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

    /// Parts whose numbers agree in some last bits receive each place in turn.
    #[test]
    fn places_change_with_parts() {
        const BITS: u32 = 10;
        let mut here = Some(Position::first(BITS, 3));
        let ranges: Vec<u64> = std::iter::from_fn(|| {
            let range = *here?.ranks().start() >> (64 - BITS);
            here = here?.after(None);
            Some(range)
        })
        .collect();
        for same in 0..4 {
            let pass = ranges.iter().take(1 << 7);
            let of_one = pass.filter(|&range| reversed(*range, 7) & ((1 << same) - 1) == 0);
            let places: Vec<u64> = of_one.map(|range| range >> 7).collect();
            for eight in places.chunks(8) {
                assert_eq!(eight.iter().fold(0u8, |seen, place| seen | 1 << place), u8::MAX);
            }
        }
    }

    #[test]
    fn ranges_divide_the_ranks() {
        for (bits, place_bits) in (0..12).flat_map(|bits| [0, 1, 3].map(|more| (bits, more))) {
            let mut here = Some(Position::first(bits, place_bits));
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
            let mut here = Position::decode(word, 3);
            assert!(here.is_some());
            for _ in 0..100 {
                here = here.and_then(|position| position.after(None));
            }
        }
    }
}
