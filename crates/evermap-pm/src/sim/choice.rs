//! How much of a granule survives a crash.

use super::durable::Entry;
use super::rng::Rng;

/// How many of a granule's undecided stores survived a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    /// This number of the oldest stores survived entirely.
    pub(crate) taken: u32,
    /// The words of the next store that survived.
    pub(crate) partial: u8,
}

impl Choice {
    /// Returns the words of the entry at position `at` that survived.
    pub(crate) fn of(&self, at: usize, entry: &Entry) -> u8 {
        match at.cmp(&(self.taken as usize)) {
            std::cmp::Ordering::Less => entry.mask,
            std::cmp::Ordering::Equal => entry.mask & self.partial,
            std::cmp::Ordering::Greater => 0,
        }
    }

    /// Returns the number of different choices for `entries`.
    pub(crate) fn count(entries: &[Entry]) -> u64 {
        1 + entries.iter().map(|entry| ways(entry.mask)).sum::<u64>()
    }

    /// Returns all choices for `entries`, from none to all.
    pub(crate) fn every(entries: &[Entry]) -> Vec<Self> {
        (0..Choice::count(entries)).map(|number| Choice::nth(entries, number)).collect()
    }

    /// Returns the `number`-th choice for `entries`, of [`count`](Choice::count).
    pub(crate) fn nth(entries: &[Entry], mut number: u64) -> Self {
        for (taken, entry) in entries.iter().enumerate() {
            let taken = taken as u32;
            if number < ways(entry.mask) {
                return Choice { taken, partial: deposit(number as u8, entry.mask) };
            }
            number -= ways(entry.mask);
        }
        Choice { taken: entries.len() as u32, partial: 0 }
    }

    /// Returns a random choice. A uniform one would hardly ever be none or all if a granule has
    /// many stores, so each of these gets a third.
    pub(crate) fn random(entries: &[Entry], rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Choice::default(),
            1 => Choice::all(entries),
            _ => Choice::nth(entries, rng.below(Choice::count(entries))),
        }
    }

    pub(crate) fn all(entries: &[Entry]) -> Self {
        Choice { taken: entries.len() as u32, partial: 0 }
    }
}

/// Returns the number of proper subsets of an entry's words. The full set is where the next entry
/// begins.
fn ways(mask: u8) -> u64 {
    (1 << mask.count_ones()) - 1
}

/// Spreads the low bits of `bits` over the set bits of `mask`.
fn deposit(mut bits: u8, mask: u8) -> u8 {
    let mut spread = 0;
    for bit in (0..8).filter(|bit| mask >> bit & 1 != 0) {
        spread |= (bits & 1) << bit;
        bits >>= 1;
    }
    spread
}
