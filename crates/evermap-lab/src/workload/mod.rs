//! Keys, their order, and what they are bound to.
//!
//! Everything follows from a seed: keys are a bijection of their index, so they are distinct
//! without a table to check them against, and every phase visits them in another permutation, which
//! is computed place by place. The share of a thread is written before the clock starts, so
//! generating it costs no measured time.
//!
//! * [`mix`]: mixes of operations on popular and less popular keys, YCSB's among them;
//! * [`part`]: operations of one kind on some of the keys;
//! * [`zipf`]: what "popular" means;
//! * [`bytes`]: keys and values as byte strings.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::LabError;

pub mod bytes;
pub mod mix;
pub mod part;
pub mod zipf;

pub use bytes::{KeyValueLengths, Lengths, Speller};
pub use mix::{Blend, Distribution, Kind, Mix, Op, Writer};
pub use part::{Act, Part};
pub use zipf::Zipf;

use bytes::Spelled;

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
}

impl Phase {
    /// All phases, in the order in which they run.
    pub const ALL: [Phase; 7] = [
        Phase::Insert,
        Phase::Positive,
        Phase::Negative,
        Phase::GetMany,
        Phase::Update,
        Phase::Mixed,
        Phase::Delete,
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
        }
    }

    /// Returns `true` if the phase changes the number of pairs.
    pub fn resizes(self) -> bool {
        matches!(self, Phase::Insert | Phase::Mixed | Phase::Delete)
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
fn splitmix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Odd, with an even spread of bits: consecutive multiples of it differ everywhere.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the `index`-th of a seeded sequence of random words, without computing those before it.
pub(crate) fn random(seed: u64, index: u64) -> u64 {
    splitmix(splitmix(seed).wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// A pseudo-random order of `0..n`, computed place by place.
pub(crate) struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); 3],
}

impl Permutation {
    /// Creates the order that belongs to `seed`.
    pub(crate) fn new(n: u64, seed: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation {
            n,
            mask: u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0),
            shift: (bits / 2).max(1),
            rounds: [0, 1, 2].map(|i| (random(seed, 2 * i) | 1, random(seed, 2 * i + 1))),
        }
    }

    /// Returns the element at `place`, which must be below `n`.
    pub(crate) fn at(&self, place: u64) -> u64 {
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
    fn insert_place(&self, group: u64) -> u64 {
        random(self.seed ^ Phase::Mixed as u64, group) % MIXED_GROUP
    }

    /// Returns the part of `0..total` that belongs to `thread`.
    fn share(&self, total: u64, thread: usize) -> Range<u64> {
        let bound = |t: usize| (u128::from(total) * t as u128 / self.threads as u128) as u64;
        bound(thread)..bound(thread + 1)
    }
}

/// The operations of one thread in one phase.
#[derive(Default)]
pub struct Stream {
    /// The keys, in order.
    pub keys: Vec<u64>,
    /// In `Mixed`, what is done with each key. Empty in other phases.
    pub ops: Vec<Op>,
    /// The same keys as byte strings, for tables that take those; see [`spell`](Stream::spell).
    pub spelled: Spelled,
}

impl Stream {
    /// Writes the operations of `thread` in `phase`.
    pub fn fill(&mut self, workload: &Workload, phase: Phase, thread: usize) {
        let share = workload.share(workload.keys, thread);
        self.clear();
        let order = Permutation::new(workload.keys, workload.seed ^ ((phase as u64) << 32));
        match phase {
            Phase::Insert => self.keys.extend(share.map(|i| workload.key(i))),
            Phase::Negative => self.keys.extend(share.map(|i| workload.key(workload.keys + i))),
            Phase::Positive | Phase::GetMany | Phase::Update | Phase::Delete => {
                self.keys.extend(share.map(|i| workload.key(order.at(i))));
            }
            Phase::Mixed => {
                for i in share {
                    let group = i / MIXED_GROUP;
                    let insert = workload.insert_place(group) == i % MIXED_GROUP;
                    let index = if insert { 2 * workload.keys + group } else { order.at(i) };
                    self.keys.push(workload.key(index));
                    self.ops
                        .push(Op { kind: if insert { Kind::Insert } else { Kind::Read }, own: 0 });
                }
            }
        }
    }

    /// Writes the share of `thread` in the keys that `Mixed` has added.
    pub fn fill_added(&mut self, workload: &Workload, thread: usize) {
        self.clear();
        let share = workload.share(workload.added(), thread);
        self.keys.extend(share.map(|i| workload.key(2 * workload.keys + i)));
    }

    /// Writes the keys as byte strings, too.
    pub fn spell(&mut self, speller: &Speller) {
        self.spelled.fill(speller, &self.keys);
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.ops.clear();
        self.spelled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn streams(workload: &Workload, phase: Phase) -> Vec<Stream> {
        let fill = |thread| {
            let mut stream = Stream::default();
            stream.fill(workload, phase, thread);
            stream
        };
        (0..workload.threads).map(fill).collect()
    }

    fn keys(workload: &Workload, phase: Phase) -> Vec<u64> {
        streams(workload, phase).into_iter().flat_map(|stream| stream.keys).collect()
    }

    /// Figures of two runs compare only if their keys are equal, so these values must never change.
    #[test]
    fn golden() {
        let workload = Workload { keys: 1000, threads: 1, seed: 42 };
        let first = |phase| keys(&workload, phase)[0];
        assert_eq!(Phase::ALL.map(first), GOLDEN_FIRST);
        let ops = &streams(&workload, Phase::Mixed)[0].ops;
        let places: Vec<_> = (0..20).filter(|&at| ops[at].kind == Kind::Insert).collect();
        assert_eq!(places, GOLDEN_INSERTS);
        assert_eq!(word(1, 0), 0xd134_2543_de82_ef95);
        assert_eq!(word(2, 1), 0xa268_4a87_bd05_df2b);
        assert_eq!(version_of(2, word(2, 1)), 1);
    }

    const GOLDEN_FIRST: [u64; 7] = [
        0x97ea_87f7_e45c_00a5,
        0xea05_9242_a5ad_3422,
        0xfb16_b4ac_08c7_b90a,
        0xfaf8_899a_ae7a_1461,
        0xb362_d3c7_cafb_8e56,
        0x7736_e721_cb57_6560,
        0x17b4_244f_8b9f_1823,
    ];
    const GOLDEN_INSERTS: [usize; 4] = [0, 9, 11, 17];

    #[test]
    fn keys_are_distinct_and_phases_use_the_right_ones() {
        let workload = Workload { keys: 20_003, threads: 2, seed: 7 };
        let inserted = keys(&workload, Phase::Insert);
        let present: HashSet<_> = inserted.iter().copied().collect();
        assert_eq!(present.len(), 20_003);
        for phase in [Phase::Positive, Phase::GetMany, Phase::Update, Phase::Delete] {
            let order = keys(&workload, phase);
            assert_eq!(order.len(), 20_003);
            assert_eq!(order.iter().copied().collect::<HashSet<_>>(), present, "{phase}");
            assert_ne!(order, inserted, "{phase} is in the order of insertion");
        }
        assert_ne!(keys(&workload, Phase::Positive), keys(&workload, Phase::Update));
        let absent: HashSet<_> = keys(&workload, Phase::Negative).into_iter().collect();
        assert_eq!(absent.len(), 20_003);
        assert!(absent.is_disjoint(&present));
    }

    #[test]
    fn mixed_inserts_one_in_five_and_looks_up_the_rest_once() {
        for count in [1, 4, 5, 9_998, 10_000] {
            let workload = Workload { keys: count, threads: 3, seed: 11 };
            let present: HashSet<_> = keys(&workload, Phase::Insert).into_iter().collect();
            let absent: HashSet<_> = keys(&workload, Phase::Negative).into_iter().collect();
            let (mut new, mut old) = (HashSet::new(), HashSet::new());
            for stream in streams(&workload, Phase::Mixed) {
                for (key, op) in stream.keys.iter().zip(&stream.ops) {
                    let of_its_kind = if op.kind == Kind::Insert { &mut new } else { &mut old };
                    assert!(of_its_kind.insert(*key), "twice");
                }
            }
            assert_eq!(new.len() as u64, workload.added());
            assert!(new.len() as u64 >= count / 5 && new.len() as u64 <= count.div_ceil(5));
            assert_eq!((new.len() + old.len()) as u64, count);
            assert!(old.is_subset(&present));
            assert!(new.is_disjoint(&present) && new.is_disjoint(&absent));
            let mut added = HashSet::new();
            for thread in 0..3 {
                let mut stream = Stream::default();
                stream.fill_added(&workload, thread);
                added.extend(stream.keys);
            }
            assert_eq!(added, new);
        }
    }

    /// The number of threads changes which thread does an operation, not the operations.
    #[test]
    fn threads_share_one_sequence() {
        for phase in Phase::ALL {
            let of = |threads| keys(&Workload { keys: 1009, threads, seed: 3 }, phase);
            assert_eq!(of(1), of(2), "{phase}");
            assert_eq!(of(1), of(7), "{phase}");
        }
        let sizes = streams(&Workload { keys: 10, threads: 4, seed: 3 }, Phase::Insert);
        assert_eq!(sizes.iter().map(|stream| stream.keys.len()).collect::<Vec<_>>(), [2, 3, 2, 3]);
        assert_eq!(streams(&Workload { keys: 1, threads: 4, seed: 3 }, Phase::Mixed).len(), 4);
    }

    #[test]
    fn seeds_matter() {
        let of = |seed| keys(&Workload { keys: 100, threads: 1, seed }, Phase::Insert);
        assert_eq!(of(1), of(1));
        let (one, two): (HashSet<_>, HashSet<_>) =
            (of(1).into_iter().collect(), of(2).into_iter().collect());
        assert!(one.is_disjoint(&two));
    }

    #[test]
    fn permutations_hit_every_place_once() {
        for n in (1..70).chain([127, 128, 129, 1000, 4096, 10_007]) {
            let order = Permutation::new(n, n ^ 99);
            let seen: HashSet<_> = (0..n).map(|place| order.at(place)).collect();
            assert_eq!(seen.len() as u64, n);
            assert!(seen.iter().all(|&at| at < n));
        }
    }

    /// Neighbours in the order must not be neighbours in memory: the step between them takes all
    /// sizes.
    #[test]
    fn permutations_scatter() {
        let n = 1 << 16;
        let order = Permutation::new(n, 5);
        let mut steps = [0u32; 16];
        for place in 1..n {
            let step = order.at(place).wrapping_sub(order.at(place - 1)) & (n - 1);
            steps[(step >> 12) as usize] += 1;
        }
        // 65,535 steps over 16 boxes: mean 4096, standard deviation 62.
        assert!(steps.iter().all(|&count| count.abs_diff(4096) < 700), "{steps:?}");
    }

    #[test]
    fn names_go_both_ways() {
        for phase in Phase::ALL {
            assert_eq!(phase.name().parse::<Phase>().unwrap(), phase);
        }
        let error = "inset".parse::<Phase>().unwrap_err().to_string();
        assert!(error.contains("inset") && error.contains("insert, positive, negative"), "{error}");
    }
}
