//! The operations of one thread.

use super::bytes::{Spelled, Speller};
use super::keys::{MIXED_GROUP, Permutation, Phase, Workload};
use super::op::{Kind, Op};

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
            Phase::InsertMany => {
                self.keys.extend(share.map(|i| workload.key(3 * workload.keys + i)));
            }
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

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.ops.clear();
        self.spelled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::keys::{version_of, word};
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

    const GOLDEN_FIRST: [u64; 8] = [
        0x97ea_87f7_e45c_00a5,
        0xea05_9242_a5ad_3422,
        0xfb16_b4ac_08c7_b90a,
        0xfaf8_899a_ae7a_1461,
        0xb362_d3c7_cafb_8e56,
        0x7736_e721_cb57_6560,
        0x17b4_244f_8b9f_1823,
        0x1838_aa91_7180_c470,
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
        let new: HashSet<_> = keys(&workload, Phase::InsertMany).into_iter().collect();
        assert_eq!(new.len(), 20_003);
        assert!(new.is_disjoint(&present) && new.is_disjoint(&absent));
        assert!(new.is_disjoint(&keys(&workload, Phase::Mixed).into_iter().collect()));
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
