//! One bit for each bucket.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::{Error, Result};

/// A set of numbers. Numbers of one word may be changed by threads with different locks.
pub(super) struct Bits(Box<[AtomicU64]>);

impl Bits {
    /// Creates a set that contains all numbers below `count`, or none.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(count: u64, all: bool) -> Result<Self> {
        let words = count.div_ceil(64) as usize;
        let mut bits = Vec::new();
        let reserved = bits.try_reserve_exact(words);
        reserved.map_err(|_| Error::no_space("memory of the process", words as u64 * 8))?;
        let last = if count.is_multiple_of(64) { u64::MAX } else { (1 << (count % 64)) - 1 };
        bits.extend((1..=words).map(|word| match all {
            true if word == words => AtomicU64::new(last),
            true => AtomicU64::new(u64::MAX),
            false => AtomicU64::new(0),
        }));
        Ok(Bits(bits.into()))
    }

    // Relaxed everywhere: a number is read and changed under the lock of its bucket, except by
    // `next`, which only the thread calls that removes numbers.

    pub(super) fn contains(&self, number: u64) -> bool {
        self.0[(number / 64) as usize].load(Relaxed) >> (number % 64) & 1 == 1
    }

    pub(super) fn insert(&self, number: u64) {
        self.0[(number / 64) as usize].fetch_or(1 << (number % 64), Relaxed);
    }

    pub(super) fn remove(&self, number: u64) {
        self.0[(number / 64) as usize].fetch_and(!(1 << (number % 64)), Relaxed);
    }

    /// Returns the least number of the set that is not below `from`. O(distance / 64).
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        let mut word = (from / 64) as usize;
        let mut bits = self.0.get(word)?.load(Relaxed) & u64::MAX << (from % 64);
        while bits == 0 {
            word += 1;
            bits = self.0.get(word)?.load(Relaxed);
        }
        Some(word as u64 * 64 + u64::from(bits.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_their_order() {
        for count in [1, 2, 63, 64, 65, 128, 200] {
            let all = Bits::new(count, true).unwrap();
            let (mut at, mut seen) = (0, Vec::new());
            while let Some(number) = all.next(at) {
                seen.push(number);
                at = number + 1;
            }
            assert_eq!(seen, Vec::from_iter(0..count));
            let some = Bits::new(count, false).unwrap();
            assert_eq!(some.next(0), None);
            some.insert(count - 1);
            assert_eq!(some.next(0), Some(count - 1));
            assert!(some.contains(count - 1) && all.contains(count - 1));
            some.remove(count - 1);
            assert_eq!(some.next(0), None);
        }
    }
}
