//! Several trees by ranges of keys, each with a lock, as HiKV-par has them, and how ranges move
//! when sizes diverge.
//!
//! ```text
//! part            0                1               2             3
//! serves          "" <= key < "g"  "g" <= < "q"    "q" <=        nothing yet
//! ```
//!
//! The keys are not known in advance, so the first part starts with all of them, and parts fill
//! from the left.

use std::ops::Bound;

use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex, Run};
use evermap_pm::sync::{Mutex, MutexGuard, Rank, RwLock};
use evermap_pm::{ErrorKind, Result};

/// The number of trees.
const PARTS: usize = 8;
/// The number of keys that are moved under one locking.
const BATCH: u64 = 256;
/// The difference in keys that neighbours may have, however few they have.
const SLACK: u64 = 1024;

/// A tree and its range.
struct Part {
    tree: BPlus,
    /// The first key that it serves; `None` if it serves none.
    least: Option<Vec<u8>>,
    /// The first key beyond its range; `None` if there is none.
    end: Option<Vec<u8>>,
}

impl Part {
    fn serves(&self, key: &[u8]) -> bool {
        self.least.as_deref().is_some_and(|least| least <= key)
            && self.end.as_deref().is_none_or(|end| key < end)
    }
}

/// Ordered trees that share the keys.
pub(super) struct Parts {
    parts: Vec<Mutex<Part>>,
    /// Where each part begins, ascending; the last ones may be `None`. The parts themselves are
    /// authoritative.
    least: RwLock<Vec<Option<Vec<u8>>>>,
}

type Held<'p> = MutexGuard<'p, Part>;

impl Parts {
    pub(super) fn new() -> Self {
        let least: Vec<_> = (0..PARTS).map(|part| (part == 0).then(Vec::new)).collect();
        let part = |least: &Option<Vec<u8>>| {
            Mutex::ranked(Rank::Part, Part { tree: BPlus::new(), least: least.clone(), end: None })
        };
        Parts { parts: least.iter().map(part).collect(), least: RwLock::ranked(Rank::Leaf, least) }
    }

    fn lock(&self, part: usize) -> Result<Held<'_>> {
        Ok(self.parts[part].lock_next().map_err(|_| ErrorKind::Poisoned)?)
    }

    /// Locks the part that serves `key`.
    fn lock_for(&self, key: &[u8]) -> Result<Held<'_>> {
        loop {
            let part = {
                let least = self.least.read().map_err(|_| ErrorKind::Poisoned)?;
                let after = least
                    .partition_point(|least| least.as_deref().is_some_and(|least| least <= key));
                after - 1
            };
            let held = self.lock(part)?;
            // The range may have moved before the lock was taken: then the routes have changed, or
            // are about to.
            if held.serves(key) {
                return Ok(held);
            }
        }
    }

    /// Calls `change` with the tree that serves `key`, locked.
    pub(super) fn with<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&BPlus) -> Result<R>,
    ) -> Result<R> {
        change(&self.lock_for(key)?.tree)
    }

    /// Adds up to `count` pairs in ascending order of keys to `run`, starting at `from`. Parts are
    /// locked one after the other; a range that moves at the same time is found in the next one.
    pub(super) fn collect(&self, from: &[u8], count: usize, run: &mut Run) -> Result<()> {
        let mut from = from.to_vec();
        loop {
            let part = self.lock_for(&from)?;
            let most = count - run.len();
            copy(&part.tree, Bound::Included(&from), Direction::Ascending, most, run)?;
            match &part.end {
                Some(end) if run.len() < count => from.clone_from(end),
                _ => return Ok(()),
            }
        }
    }

    /// Moves some keys between neighbours whose sizes differ by more than a half. Returns `true` if
    /// there were such.
    pub(super) fn balance(&self) -> Result<bool> {
        let mut moved = false;
        for left in 0..PARTS - 1 {
            let (mut low, mut high) = (self.lock(left)?, self.lock(left + 1)?);
            let (lows, highs) = (low.tree.len(), high.tree.len());
            let uneven = lows.abs_diff(highs) > lows.min(highs) / 2 + SLACK;
            if !uneven || low.least.is_none() {
                continue;
            }
            let count = BATCH.min(lows.abs_diff(highs) / 2) as usize;
            let edge = if lows > highs {
                shift(&low.tree, &high.tree, Direction::Descending, count)?
            } else {
                shift(&high.tree, &low.tree, Direction::Ascending, count)?
            };
            (low.end, high.least) = (Some(edge.clone()), Some(edge.clone()));
            // While both are locked: a thread that follows an old route finds a part that does not
            // serve its key, until this is done.
            self.least.write().map_err(|_| ErrorKind::Poisoned)?[left + 1] = Some(edge);
            moved = true;
        }
        Ok(moved)
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> Result<u64> {
        self.sum(OrderedIndex::len)
    }

    /// Returns the size of the trees in bytes.
    pub(super) fn dram_bytes(&self) -> Result<u64> {
        self.sum(|tree| tree.stats().dram_bytes)
    }

    fn sum(&self, of: impl Fn(&BPlus) -> u64) -> Result<u64> {
        // All are locked together, otherwise keys that move would be counted twice or not at all.
        // In the same order as in `balance`, so that there is no deadlock.
        let all: Vec<_> = (0..PARTS).map(|part| self.lock(part)).collect::<Result<_>>()?;
        Ok(all.iter().map(|part| of(&part.tree)).sum())
    }
}

/// Adds up to `count` pairs of `tree` to `run`, in this direction, starting at `from`.
pub(super) fn copy(
    tree: &BPlus,
    from: Bound<&[u8]>,
    direction: Direction,
    count: usize,
    run: &mut Run,
) -> Result<()> {
    let range = match direction {
        Direction::Ascending => (from, Bound::Unbounded),
        Direction::Descending => (Bound::Unbounded, from),
    };
    let mut cursor = Cursor::new(tree, range, direction);
    for _ in 0..count {
        let Some((key, word)) = cursor.next()? else { break };
        run.push(key, word);
    }
    Ok(())
}

/// Moves `count` pairs from one tree to the other, from this end of it. Returns the new first key
/// of the upper range.
fn shift(from: &BPlus, to: &BPlus, direction: Direction, count: usize) -> Result<Vec<u8>> {
    let mut run = Run::new();
    copy(from, Bound::Unbounded, direction, count, &mut run)?;
    for (key, word) in run.iter() {
        to.insert(key, word)?;
        from.remove(key)?;
    }
    let mut edge = run.key(run.len() - 1).to_vec();
    if direction == Direction::Ascending {
        // The last key that was moved belongs to the lower range, so the upper one begins at the
        // least key after it.
        edge.push(0);
    }
    Ok(edge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn collected(parts: &Parts, from: &[u8], count: usize) -> Vec<(Vec<u8>, u64)> {
        let mut run = Run::new();
        parts.collect(from, count, &mut run).unwrap();
        run.iter().map(|(key, word)| (key.to_vec(), word)).collect()
    }

    fn sizes(parts: &Parts) -> Vec<u64> {
        (0..PARTS).map(|part| parts.lock(part).unwrap().tree.len()).collect()
    }

    /// Every change is visible as in one tree, whichever part the key is in.
    #[test]
    fn parts_are_one_tree_and_sizes_converge() {
        let parts = Parts::new();
        let mut model = BTreeMap::new();
        // First keys of a narrow range, then of all, then most of the upper ones are removed.
        for number in 0..60_000u64 {
            let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let key = if number < 30_000 { spread >> 20 } else { spread }.to_be_bytes();
            parts.with(&key, |tree| tree.upsert(&key, number)).unwrap();
            model.insert(key.to_vec(), number);
            if number % 64 == 0 {
                parts.balance().unwrap();
            }
        }
        let settle = || while parts.balance().unwrap() {};
        let check = |model: &BTreeMap<Vec<u8>, u64>| {
            assert_eq!(parts.len().unwrap(), model.len() as u64);
            let all = model.clone().into_iter().collect::<Vec<_>>();
            assert!(collected(&parts, b"", usize::MAX) == all);
            for from in (0..all.len()).step_by(7001) {
                let some: Vec<_> = all[from..].iter().take(100).cloned().collect();
                assert!(collected(&parts, &all[from].0, 100) == some);
            }
            for part in 0..PARTS {
                let part = parts.lock(part).unwrap();
                let mut run = Run::new();
                copy(&part.tree, Bound::Unbounded, Direction::Ascending, usize::MAX, &mut run)
                    .unwrap();
                assert!(run.iter().all(|(key, _)| part.serves(key)));
            }
        };
        settle();
        check(&model);
        let evenly = |sizes: Vec<u64>| {
            let near = |two: &[u64]| two[0].abs_diff(two[1]) <= two[0].min(two[1]) / 2 + SLACK;
            assert!(sizes.windows(2).all(near), "{sizes:?}");
            assert!(sizes.iter().all(|&size| size > 0), "{sizes:?}");
        };
        evenly(sizes(&parts));
        let upper: Vec<_> = model.keys().skip(10_000).step_by(2).cloned().collect();
        for key in upper {
            assert_eq!(parts.with(&key, |tree| tree.remove(&key)).unwrap().old, model.remove(&key));
        }
        settle();
        check(&model);
        evenly(sizes(&parts));
        // Emptied parts keep their ranges and take keys again.
        for key in model.keys() {
            parts.with(key, |tree| tree.remove(key)).unwrap();
        }
        settle();
        assert_eq!(parts.len().unwrap(), 0);
        for (key, word) in &model {
            parts.with(key, |tree| tree.insert(key, *word)).unwrap();
        }
        check(&model);
    }

    /// During migrations, scans see each key that stays once and in order, and changes reach the
    /// part that serves their key.
    #[test]
    fn scans_and_changes_beside_migrations_miss_nothing() {
        const KEYS: u64 = 20_000;
        let parts = Parts::new();
        let key = |number: u64| number.to_be_bytes();
        for number in (0..KEYS).step_by(2) {
            parts.with(&key(number), |tree| tree.insert(&key(number), number)).unwrap();
        }
        std::thread::scope(|scope| {
            let changing = Arc::new(scope.spawn(|| {
                for round in 0..6 {
                    for number in (1..KEYS).step_by(2) {
                        // All of them above the middle in one round, all below in the next.
                        let there = (number < KEYS / 2) == (round % 2 == 0);
                        let key = key(number);
                        let change = |tree: &BPlus| match there {
                            true => tree.upsert(&key, number),
                            false => tree.remove(&key),
                        };
                        parts.with(&key, change).unwrap();
                    }
                }
            }));
            let (parts, changed) = (&parts, changing.clone());
            scope.spawn(move || {
                while !changed.is_finished() {
                    parts.balance().unwrap();
                }
            });
            while !changing.is_finished() {
                let all = collected(parts, b"", usize::MAX);
                assert!(all.windows(2).all(|two| two[0].0 < two[1].0));
                let stay: Vec<_> = all.iter().map(|pair| pair.1).filter(|n| n % 2 == 0).collect();
                assert!(stay == (0..KEYS).step_by(2).collect::<Vec<_>>());
            }
        });
        let left = (0..KEYS).filter(|number| number % 2 == 0 || *number >= KEYS / 2);
        let left: Vec<_> = left.map(|number| (key(number).to_vec(), number)).collect();
        assert!(collected(&parts, b"", usize::MAX) == left);
        assert_eq!(parts.len().unwrap(), left.len() as u64);
    }

    /// Keys that move from one part to another are counted once.
    #[test]
    fn migrations_do_not_change_how_many_there_are() {
        const KEYS: u64 = 50_000;
        let parts = Parts::new();
        for number in 0..KEYS {
            let key = number.to_be_bytes();
            parts.with(&key, |tree| tree.insert(&key, number)).unwrap();
        }
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| while parts.balance().unwrap() {});
            while !moving.is_finished() {
                assert_eq!(parts.len().unwrap(), KEYS);
            }
        });
    }
}
