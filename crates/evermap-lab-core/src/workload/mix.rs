//! Mixes of operations: YCSB's, and RECIPE's variants of them.
//!
//! Threads run at the same time and write to the same keys, so a read may find one of several
//! words: the last one that the reading thread wrote to the key, or a later one of another thread.
//! So every operation carries the place of its thread's last write to its key, which is computed
//! when the operations are written. With one thread the check is exact. At the end, each key must
//! be bound to the last write of one of the threads.

use std::fmt;
use std::str::FromStr;

use super::bytes::draw;
use super::keys::Workload;
use super::op::{Kind, Op, Writer};
use super::stream::Stream;
use super::zipf::{Zipf, scrambled};
use crate::LabError;

/// Which keys are popular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All keys are equally popular.
    Uniform,
    /// By Zipf's law of exactly as many ranks as there are keys.
    Zipfian,
    /// As YCSB's "scrambled zipfian": Zipf's law of ten billion ranks, hashed to the keys. Flatter.
    Scrambled,
    /// By Zipf's law, the newest key of a thread first.
    Latest,
}

impl Distribution {
    /// Every distribution.
    pub const ALL: [Distribution; 4] = [
        Distribution::Uniform,
        Distribution::Zipfian,
        Distribution::Scrambled,
        Distribution::Latest,
    ];

    /// Returns the name used on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
            Distribution::Scrambled => "scrambled",
            Distribution::Latest => "latest",
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Distribution {
    type Err = LabError;

    fn from_str(name: &str) -> Result<Self, LabError> {
        Distribution::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| {
            let known = Distribution::ALL.map(Distribution::name).join(", ");
            LabError::Config(format!("unknown distribution `{name}`; known are: {known}"))
        })
    }
}

/// The shares of operations, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// The name on command lines and in reports.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Lookups.
    pub read: u8,
    /// Updates of present keys.
    pub update: u8,
    /// Insertions of new keys.
    pub insert: u8,
    /// Lookups followed by an update.
    pub modify: u8,
    /// Scans of up to [`SCAN_MAX`] pairs.
    pub scan: u8,
    /// The least number of pairs that a scan reads.
    pub scan_least: u16,
    /// The distribution of the keys, unless another is requested.
    pub keys: Distribution,
}

/// The greatest number of pairs that a scan reads.
pub const SCAN_MAX: u16 = 100;

const NOTHING: Mix = Mix {
    name: "",
    about: "",
    read: 0,
    update: 0,
    insert: 0,
    modify: 0,
    scan: 0,
    scan_least: 1,
    keys: Distribution::Zipfian,
};

impl Mix {
    /// YCSB's workloads, then RECIPE's, which have insertions in place of updates, and uniform
    /// keys. Then scans alone.
    pub const ALL: [Mix; 11] = [
        Mix {
            name: "ycsb-a",
            about: "YCSB A: half reads, half updates",
            read: 50,
            update: 50,
            ..NOTHING
        },
        Mix {
            name: "ycsb-b",
            about: "YCSB B: 95 % reads, 5 % updates",
            read: 95,
            update: 5,
            ..NOTHING
        },
        Mix { name: "ycsb-c", about: "YCSB C: reads", read: 100, ..NOTHING },
        Mix {
            name: "ycsb-d",
            about: "YCSB D: 95 % reads of the latest, 5 % inserts",
            read: 95,
            insert: 5,
            keys: Distribution::Latest,
            ..NOTHING
        },
        Mix {
            name: "ycsb-e",
            about: "YCSB E: 95 % short scans, 5 % inserts",
            scan: 95,
            insert: 5,
            ..NOTHING
        },
        Mix {
            name: "ycsb-f",
            about: "YCSB F: half reads, half read-modify-writes",
            read: 50,
            modify: 50,
            ..NOTHING
        },
        Mix {
            name: "recipe-a",
            about: "RECIPE's A: half reads, half inserts, uniform",
            read: 50,
            insert: 50,
            keys: Distribution::Uniform,
            ..NOTHING
        },
        Mix {
            name: "recipe-b",
            about: "RECIPE's B: 95 % reads, 5 % inserts, uniform",
            read: 95,
            insert: 5,
            keys: Distribution::Uniform,
            ..NOTHING
        },
        Mix {
            name: "recipe-c",
            about: "RECIPE's C: reads, uniform",
            read: 100,
            keys: Distribution::Uniform,
            ..NOTHING
        },
        Mix {
            name: "recipe-e",
            about: "RECIPE's E: 95 % short scans, 5 % inserts, uniform",
            scan: 95,
            insert: 5,
            keys: Distribution::Uniform,
            ..NOTHING
        },
        Mix {
            name: "scans",
            about: "scans of 100 pairs, uniform",
            scan: 100,
            scan_least: SCAN_MAX,
            keys: Distribution::Uniform,
            ..NOTHING
        },
    ];

    /// Returns `true` if the mix writes to present keys.
    pub fn updates(&self) -> bool {
        self.update + self.modify > 0
    }

    /// Returns `true` if the table must keep its keys in order.
    pub fn scans(&self) -> bool {
        self.scan > 0
    }

    fn scan_length(&self, uniform: u64) -> u16 {
        let lengths = SCAN_MAX - self.scan_least + 1;
        self.scan_least + (uniform % u64::from(lengths)) as u16
    }

    fn kind(&self, uniform: u64, length: u64) -> Kind {
        let mut percent = ((u128::from(uniform) * 100) >> 64) as u8;
        let shares = [
            (self.read, Kind::Read),
            (self.update, Kind::Update),
            (self.insert, Kind::Insert),
            (self.modify, Kind::ReadModifyWrite),
            (self.scan, Kind::Scan(self.scan_length(length))),
        ];
        for (share, kind) in shares {
            if percent < share {
                return kind;
            }
            percent -= share;
        }
        Kind::Read
    }
}

impl FromStr for Mix {
    type Err = LabError;

    fn from_str(name: &str) -> Result<Self, LabError> {
        let is_called =
            |mix: &Mix| mix.name == name || mix.name.strip_prefix("ycsb-") == Some(name);
        Mix::ALL.into_iter().find(is_called).ok_or_else(|| {
            let known = Mix::ALL.map(|mix| mix.name).join(", ");
            LabError::Config(format!("unknown workload `{name}`; known are: {known}"))
        })
    }
}

/// A mix with everything that its operations follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blend {
    /// The mix.
    pub mix: Mix,
    /// The distribution of the keys.
    pub keys: Distribution,
    /// The skew of the distributions by Zipf's law.
    pub theta: f64,
    /// The number of operations, over all threads.
    pub ops: u64,
}

impl Blend {
    /// Returns the writer that stands for `thread` of `workload`.
    pub fn writer(&self, workload: &Workload, thread: usize) -> Writer {
        // Shares differ by one at most.
        let longest = self.ops.div_ceil(workload.threads as u64);
        let most = if self.mix.updates() { longest * workload.threads as u64 } else { 0 };
        Writer { thread, threads: workload.threads, first: 0, most }
    }
}

impl Stream {
    /// Writes the operations of `thread` in a mix. Lookups go to keys that were present before, and
    /// to those that the thread has inserted.
    pub fn fill_mix(&mut self, workload: &Workload, blend: &Blend, thread: usize) {
        self.clear();
        let (seed, threads) = (workload.seed, workload.threads as u64);
        let zipf = Zipf::new(blend.theta);
        let mut inserted = 0;
        // The place of the last write for every index. The thread's own insertions follow the
        // others.
        let mut last = vec![0u32; workload.keys as usize];
        for place in workload.share(blend.ops, thread) {
            let number = |of| draw(seed, of, place);
            let mut kind = blend.mix.kind(number(1), number(2));
            let pick = match blend.keys {
                _ if kind == Kind::Insert => {
                    last.push(0);
                    inserted += 1;
                    last.len() as u64 - 1
                }
                Distribution::Uniform => number(3) % workload.keys,
                Distribution::Zipfian => zipf.rank(workload.keys, number(3)),
                Distribution::Scrambled => scrambled(&zipf, workload.keys, number(3)),
                Distribution::Latest => {
                    let all = workload.keys + inserted;
                    all - 1 - zipf.rank(all, number(3))
                }
            };
            let own = last[pick as usize];
            let here = self.keys.len() as u32 + 1;
            match kind {
                Kind::Update | Kind::ReadModifyWrite => last[pick as usize] = here,
                Kind::Scan(length) => {
                    kind = Kind::Scan(length.min(u16::try_from(workload.keys).unwrap_or(u16::MAX)));
                }
                Kind::Read | Kind::Insert => {}
            }
            let index = match pick.checked_sub(workload.keys) {
                None => pick,
                Some(nth) => 2 * workload.keys + nth * threads + thread as u64,
            };
            self.keys.push(workload.key(index));
            self.ops.push(Op { kind, own });
        }
    }

    /// Returns the keys that the thread has inserted.
    pub fn inserted(&self) -> Vec<u64> {
        let all = self.keys.iter().zip(&self.ops);
        all.filter(|(_, op)| op.kind == Kind::Insert).map(|(&key, _)| key).collect()
    }

    /// Returns, for every key that the thread has written or inserted, the last version relative to
    /// the version of all keys.
    pub fn last_versions(&self, writer: Writer) -> Vec<(u64, u64)> {
        let mut last = std::collections::HashMap::new();
        for (place, (&key, op)) in self.keys.iter().zip(&self.ops).enumerate() {
            match op.kind {
                Kind::Update | Kind::ReadModifyWrite => {
                    last.insert(key, writer.version(place as u64 + 1));
                }
                Kind::Insert => {
                    last.insert(key, 0);
                }
                Kind::Read | Kind::Scan(_) => {}
            }
        }
        last.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    fn blend(name: &str, ops: u64) -> Blend {
        let mix: Mix = name.parse().unwrap();
        Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops }
    }

    fn stream(workload: &Workload, blend: &Blend, thread: usize) -> Stream {
        let mut stream = Stream::default();
        stream.fill_mix(workload, blend, thread);
        stream
    }

    #[test]
    fn every_mix_adds_up() {
        for mix in Mix::ALL {
            let Mix { read, update, insert, modify, scan, .. } = mix;
            assert_eq!(read + update + insert + modify + scan, 100, "{}", mix.name);
            assert_eq!(mix.name.parse::<Mix>().unwrap(), mix);
        }
        assert_eq!("f".parse::<Mix>().unwrap().name, "ycsb-f");
        let error = "z".parse::<Mix>().unwrap_err().to_string();
        assert!(error.contains("known are: ycsb-a, ycsb-b"), "{error}");
        let error = "normal".parse::<Distribution>().unwrap_err().to_string();
        assert!(error.contains("known are: uniform, zipfian, scrambled, latest"), "{error}");
    }

    #[test]
    fn kinds_come_in_their_shares() {
        let workload = Workload { keys: 1000, threads: 1, seed: 4 };
        for mix in Mix::ALL {
            let ops = stream(&workload, &blend(mix.name, 20_000), 0).ops;
            let share = |is: fn(Kind) -> bool| ops.iter().filter(|op| is(op.kind)).count() / 200;
            let shares = [
                share(|kind| kind == Kind::Read),
                share(|kind| kind == Kind::Update),
                share(|kind| kind == Kind::Insert),
                share(|kind| kind == Kind::ReadModifyWrite),
                share(|kind| matches!(kind, Kind::Scan(_))),
            ];
            let wanted = [mix.read, mix.update, mix.insert, mix.modify, mix.scan];
            for (share, wanted) in shares.iter().zip(wanted) {
                assert!(share.abs_diff(usize::from(wanted)) <= 2, "{}: {shares:?}", mix.name);
            }
        }
    }

    /// Replays the operations of each thread: lookups go to present keys, insertions to new ones,
    /// and `own` is the thread's last write.
    #[test]
    fn operations_make_sense_one_after_the_other() {
        for (mix, distribution) in Mix::ALL
            .iter()
            .flat_map(|&mix| Distribution::ALL.map(|distribution| (mix, distribution)))
        {
            let workload = Workload { keys: 500, threads: 3, seed: 8 };
            let blend = Blend { keys: distribution, ..blend(mix.name, 4000) };
            let loaded: HashSet<_> = (0..500).map(|i| workload.key(i)).collect();
            let mut all_inserted = HashSet::new();
            let mut total = 0;
            for thread in 0..3 {
                let stream = stream(&workload, &blend, thread);
                total += stream.ops.len();
                let (mut own, mut inserted) = (HashMap::new(), HashSet::new());
                for (place, (&key, op)) in stream.keys.iter().zip(&stream.ops).enumerate() {
                    if op.kind == Kind::Insert {
                        assert!(!loaded.contains(&key) && inserted.insert(key));
                        assert!(all_inserted.insert(key), "two threads insert one key");
                        assert_eq!(op.own, 0);
                        continue;
                    }
                    assert!(loaded.contains(&key) || inserted.contains(&key));
                    assert_eq!(op.own, own.get(&key).copied().unwrap_or(0));
                    if matches!(op.kind, Kind::Update | Kind::ReadModifyWrite) {
                        own.insert(key, place as u32 + 1);
                    }
                }
                let writer = blend.writer(&workload, thread);
                let versions: HashMap<_, _> = stream.last_versions(writer).into_iter().collect();
                for (key, place) in own {
                    assert_eq!(versions[&key], writer.version(u64::from(place)));
                    assert!(versions[&key] <= writer.most);
                }
                assert!(inserted.iter().all(|key| versions.contains_key(key)));
            }
            assert_eq!(total, 4000);
        }
    }

    #[test]
    fn skew_and_recency_show() {
        let workload = Workload { keys: 10_000, threads: 1, seed: 3 };
        let hottest = |distribution| {
            let blend = Blend { keys: distribution, ..blend("c", 50_000) };
            let mut counts = HashMap::new();
            for key in stream(&workload, &blend, 0).keys {
                *counts.entry(key).or_insert(0) += 1;
            }
            counts.into_iter().max_by_key(|&(_, count)| count).unwrap()
        };
        assert!(hottest(Distribution::Uniform).1 < 30);
        // By Zipf's law of 10,000 ranks the first has a tenth.
        let (key, count) = hottest(Distribution::Zipfian);
        assert!(key == workload.key(0) && (4500..6000).contains(&count), "{count}");
        assert!((1000..4000).contains(&hottest(Distribution::Scrambled).1));
        assert_eq!(hottest(Distribution::Latest).0, workload.key(9999));
        // With insertions, the newest key changes.
        let stream = stream(&workload, &blend("d", 10_000), 0);
        let loaded: HashSet<_> = (0..10_000).map(|i| workload.key(i)).collect();
        let reads_of_new = |range: std::ops::Range<usize>| {
            let reads = range.filter(|&at| stream.ops[at].kind == Kind::Read);
            reads.filter(|&at| !loaded.contains(&stream.keys[at])).count()
        };
        assert!(reads_of_new(9000..10_000) > 600, "{}", reads_of_new(9000..10_000));
        assert!(reads_of_new(0..1000) < reads_of_new(9000..10_000));
    }

    #[test]
    fn what_a_read_may_find() {
        let me = Writer { thread: 1, threads: 3, first: 0, most: 300 };
        let other = Writer { thread: 2, ..me };
        assert!(me.may_find(0, 0), "what was there before anybody wrote");
        assert!(!me.may_find(0, 5), "our own write got lost");
        assert!(me.may_find(me.version(5), 5));
        assert!(!me.may_find(me.version(4), 5), "our own write got lost, an older one is back");
        assert!(!me.may_find(me.version(6), 5), "we have not written that yet");
        for own in [0, 5] {
            assert!(me.may_find(other.version(9), own));
            assert!(!me.may_find(u64::MAX, own) && !me.may_find(301, own), "no thread wrote that");
        }
        let alone = Writer { thread: 0, threads: 1, first: 0, most: 300 };
        assert!(alone.may_find(7, 7) && !alone.may_find(6, 7) && !alone.may_find(8, 7));
    }

    /// Figures of two runs compare only if their operations are equal, so these values must never
    /// change.
    #[test]
    fn golden() {
        let workload = Workload { keys: 1000, threads: 1, seed: 42 };
        let stream = stream(&workload, &blend("a", 1000), 0);
        let sum = |words: &mut dyn Iterator<Item = u64>| {
            words.fold(0u64, |sum, word| sum.rotate_left(5) ^ word)
        };
        let keys = sum(&mut stream.keys.iter().copied());
        let own = sum(&mut stream.ops.iter().map(|op| u64::from(op.own)));
        assert_eq!((keys, own), GOLDEN_A);
    }

    const GOLDEN_A: (u64, u64) = (0x7325_aad4_1a0f_6c20, 0x9f2f_a5f3_5210_24eb);
}
