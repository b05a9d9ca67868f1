//! Phases, keys, their order, and the words that they are bound to.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::LabError;

/// What is done to a table. Phases run in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Every key is inserted.
    Insert,
    /// Every key is looked up.
    Positive,
    /// As many absent keys are looked up.
    Negative,
    /// Every key is looked up, a batch at a time.
    GetMany,
    /// Every key is bound to another word.
    Update,
    /// One of five operations inserts a new key, the others look up a present one.
    Mixed,
    /// Every key is removed, except those that `Mixed` added.
    Delete,
    /// As many new keys are inserted, a batch at a time.
    InsertMany,
}

impl Phase {
    /// All phases, in the order in which they run.
    pub const ALL: [Phase; 8] = [
        Phase::Insert,
        Phase::Positive,
        Phase::Negative,
        Phase::GetMany,
        Phase::Update,
        Phase::Mixed,
        Phase::Delete,
        Phase::InsertMany,
    ];

    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Insert => "insert",
            Phase::Positive => "positive",
            Phase::Negative => "negative",
            Phase::GetMany => "get_many",
            Phase::Update => "update",
            Phase::Mixed => "mixed",
            Phase::Delete => "delete",
            Phase::InsertMany => "insert_many",
        }
    }

    /// Returns `true` if the phase changes the number of pairs.
    pub fn resizes(self) -> bool {
        matches!(self, Phase::Insert | Phase::Mixed | Phase::Delete | Phase::InsertMany)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Phase {
    type Err = LabError;

    fn from_str(name: &str) -> Result<Self, LabError> {
        Phase::ALL.into_iter().find(|phase| phase.name() == name).ok_or_else(|| {
            let known = Phase::ALL.map(Phase::name).join(", ");
            LabError::Config(format!("unknown phase `{name}`; known are: {known}"))
        })
    }
}

/// In `Mixed`, one of this many operations is an insertion.
pub const MIXED_GROUP: u64 = 5;

/// Returns the word that `key` is bound to: by its insertion in version 0, by its update in version
/// 1.
///
/// A bijection of the key, so that the value of another key is detected.
#[inline(always)]
pub fn word(key: u64, version: u64) -> u64 {
    key.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(version)
}

/// Returns the version in which `key` is bound to `word`, a huge one if the word is another key's.
#[inline(always)]
pub fn version_of(key: u64, word: u64) -> u64 {
    word.wrapping_sub(self::word(key, 0))
}

/// The finaliser of splitmix64: a bijection that spreads every input bit over all output bits.
pub(super) fn splitmix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Odd, with an even spread of bits: consecutive multiples of it differ everywhere.
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the `index`-th of a seeded sequence of random words, without computing those before it.
pub fn random(seed: u64, index: u64) -> u64 {
    splitmix(splitmix(seed).wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// A pseudo-random order of `0..n`, computed place by place.
pub struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); 3],
}

impl Permutation {
    /// Creates the order that belongs to `seed`.
    pub fn new(n: u64, seed: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation {
            n,
            mask: u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0),
            shift: (bits / 2).max(1),
            rounds: [0, 1, 2].map(|i| (random(seed, 2 * i) | 1, random(seed, 2 * i + 1))),
        }
    }

    /// Returns the element at `place`, which must be below `n`.
    pub fn at(&self, place: u64) -> u64 {
        debug_assert!(place < self.n);
        let mut x = place;
        loop {
            // Each step is a bijection of the smallest power of two that holds `n`: an odd
            // multiple, a sum, and a word xored with its own high half. Results beyond `n` are
            // mapped again until one is inside, which keeps it a bijection of `0..n`.
            for (factor, term) in self.rounds {
                x = x.wrapping_mul(factor).wrapping_add(term) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.n {
                return x;
            }
        }
    }
}

/// All keys of one experiment.
///
/// Key indexes `0..keys` are inserted, the next `keys` stay absent, and `Mixed` adds those after
/// that.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The number of keys that are inserted.
    pub keys: u64,
    /// The number of threads that share them.
    pub threads: usize,
    /// The seed of all keys and orders.
    pub seed: u64,
}

impl Workload {
    /// Returns the key with this index. Different indexes give different keys.
    pub fn key(&self, index: u64) -> u64 {
        random(self.seed, index)
    }

    /// Returns the number of keys that `Mixed` adds.
    pub fn added(&self) -> u64 {
        let groups = self.keys / MIXED_GROUP;
        groups + u64::from(self.insert_place(groups) < self.keys % MIXED_GROUP)
    }

    /// Returns the place of the insertion in a group of `Mixed`.
    pub(super) fn insert_place(&self, group: u64) -> u64 {
        random(self.seed ^ Phase::Mixed as u64, group) % MIXED_GROUP
    }

    /// Returns the part of `0..total` that belongs to `thread`.
    pub(super) fn share(&self, total: u64, thread: usize) -> Range<u64> {
        let bound = |t: usize| (u128::from(total) * t as u128 / self.threads as u128) as u64;
        bound(thread)..bound(thread + 1)
    }
}
