//! Operations of one kind on some of the keys, done on a filled table by various numbers of
//! threads.
//!
//! Filling a large store takes longer than measuring it, so it is filled once and measured often.
//! No key is written twice, and no written key is looked up, so what every key is bound to is known
//! whatever the order of the parts.

use super::keys::{Permutation, Phase, Workload};
use super::op::{Kind, Op};
use super::stream::Stream;

/// What is done in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// New keys are inserted.
    Insert,
    /// Present keys are looked up.
    Positive,
    /// Absent keys are looked up.
    Negative,
    /// This many pairs are read in the order of keys, starting at a present key.
    Scan(u16),
    /// Present keys are bound to something else.
    Update,
}

/// Operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The name in reports.
    pub name: &'static str,
    /// What is done.
    pub act: Act,
    /// Operations, over all threads.
    pub ops: u64,
    /// Threads that share them.
    pub threads: usize,
    /// The number of operations of the same kind in the parts before.
    pub after: u64,
}

impl Part {
    /// Returns the phase that a table is asked for.
    pub fn phase(&self) -> Phase {
        match self.act {
            Act::Insert => Phase::Insert,
            Act::Positive => Phase::Positive,
            Act::Negative => Phase::Negative,
            Act::Scan(_) => Phase::Mixed,
            Act::Update => Phase::Update,
        }
    }

    /// Returns the greatest number of operations of each kind, over all parts: updates and lookups
    /// have half of the keys each.
    pub fn most_ops(keys: u64) -> u64 {
        keys / 2
    }

    /// Returns the workload for the threads of this part.
    pub fn workload(&self, workload: &Workload) -> Workload {
        Workload { threads: self.threads, ..*workload }
    }
}

impl Stream {
    /// Writes the operations of `thread` in `part`, none if the part has fewer threads.
    pub fn fill_part(&mut self, workload: &Workload, part: &Part, thread: usize) {
        self.clear();
        if thread >= part.threads {
            return;
        }
        let keys = workload.keys;
        let order = Permutation::new(keys, workload.seed ^ ((Phase::Update as u64) << 32));
        let share = part.workload(workload).share(part.ops, thread);
        for place in share.start + part.after..share.end + part.after {
            let index = match part.act {
                Act::Insert => 2 * keys + place,
                Act::Negative => keys + place,
                // From both ends of one order, so that they do not meet.
                Act::Update => order.at(place),
                Act::Positive | Act::Scan(_) => order.at(keys - 1 - place),
            };
            self.keys.push(workload.key(index));
            if let Act::Scan(count) = part.act {
                self.ops.push(Op { kind: Kind::Scan(count), own: 0 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn parts_share_their_keys_and_never_meet() {
        let workload = Workload { keys: 1001, threads: 3, seed: 9 };
        let part = |act, threads, after| Part { name: "", act, ops: 250, threads, after };
        let keys = |part: Part| -> Vec<u64> {
            (0..workload.threads)
                .flat_map(|thread| {
                    let mut stream = Stream::default();
                    stream.fill_part(&workload, &part, thread);
                    assert_eq!(stream.keys.is_empty(), thread >= part.threads);
                    let scans = matches!(part.act, Act::Scan(_));
                    assert_eq!(stream.ops.len(), if scans { stream.keys.len() } else { 0 });
                    stream.keys
                })
                .collect()
        };
        let there: HashSet<_> = (0..1001).map(|index| workload.key(index)).collect();
        let mut all = HashSet::new();
        let acts = [Act::Insert, Act::Positive, Act::Negative, Act::Update];
        for act in acts {
            for (threads, after) in [(1, 0), (3, 250)] {
                let keys = keys(part(act, threads, after));
                assert_eq!(keys.len(), 250);
                for key in keys {
                    let is_there = matches!(act, Act::Positive | Act::Update);
                    assert_eq!(there.contains(&key), is_there);
                    assert!(all.insert(key), "{act:?} meets another");
                }
            }
        }
        let scanned = keys(part(Act::Scan(100), 2, 0));
        assert_eq!(scanned, keys(part(Act::Positive, 1, 0)));
        assert_eq!(Part::most_ops(1001), 500);
    }
}
