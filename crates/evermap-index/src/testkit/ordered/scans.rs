//! Scans that run concurrently with writers.

use std::collections::HashMap;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use super::OrderedSubject;
use super::encoded::Encoding;
use super::model::Short;
use crate::ordered::{Cursor, Direction, OrderedIndex};
use crate::testkit::concurrent::{WriterDone, thread_seed, threads};
use crate::testkit::delays::Operation;
use crate::testkit::erased::AnyOrderedSubject;
use crate::testkit::{Config, Failure, chance};
use evermap_pm::Result;
use evermap_pm::sim::rng::Rng;

/// Lets some threads insert and remove keys in waves, so that the index splits and merges, while
/// others scan ranges in both directions, some of them with cursors that are abandoned and resumed.
/// The writer of a key announces the key's phase, so a scan can determine what it must, may and
/// must not show.
///
/// # Errors
/// A scan that is out of order, misses or repeats a key, or shows one that was absent.
pub fn scans<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    scans_of(subject, config)
}

fn scans_of(subject: &dyn AnyOrderedSubject, config: &Config) -> Result<(), Failure> {
    for round in 0..config.rounds(3, 12) {
        let encoding = [Encoding::Numbers, Encoding::Words][round % 2];
        let count = [40, 300, 900][round % 3];
        let seed = config.seed_of(round);
        let fail = |what: String| Failure::new::<[u8]>("scans", "waves", seed, what);
        let index = subject.fresh().map_err(|error| fail(error.to_string()))?;
        let scanned = Scanned::new(&*index, encoding, count);
        scanned.run(config, seed).map_err(fail)?;
    }
    Ok(())
}

/// The phases of a key, modulo 4. The odd phases are the changes between them.
const ABSENT: u64 = 0;
const PRESENT: u64 = 2;

/// The number of bits of a word below the index of its key.
const NONCE_BITS: u32 = 32;

/// An index, the keys that are inserted and removed, and their phases.
struct Scanned<'i> {
    index: &'i dyn OrderedIndex,
    keys: Vec<Vec<u8>>,
    phases: Vec<AtomicU64>,
}

impl<'i> Scanned<'i> {
    fn new(index: &'i dyn OrderedIndex, encoding: Encoding, count: u64) -> Self {
        // Not evenly distributed, so that prefixes differ in length.
        let mut keys: Vec<_> = (0..count).map(|n| encoding.encode(n * n * n)).collect();
        keys.sort();
        let phases = keys.iter().map(|_| AtomicU64::new(ABSENT)).collect();
        Scanned { index, keys, phases }
    }

    /// Returns `true` if the key is stable. Every seventh key is.
    fn stays(at: usize) -> bool {
        at.is_multiple_of(7)
    }

    fn run(&self, config: &Config, seed: u64) -> Result<(), String> {
        let (stable, transient): (Vec<_>, Vec<_>) =
            (0..self.keys.len()).partition(|&at| Self::stays(at));
        stable.iter().try_for_each(|&at| self.insert(at))?;
        let writers = config.threads.div_ceil(2);
        let writing = AtomicUsize::new(writers);
        threads(config.threads.max(2), |thread| {
            let random = &mut Rng::new(thread_seed(seed, thread));
            if thread < writers {
                let _done = WriterDone(&writing);
                let own: Vec<_> = transient.iter().skip(thread).step_by(writers).copied().collect();
                self.write_waves(own, random)
            } else {
                self.scan_while(&writing, random)
            }
        })?;
        let (len, due) = (self.index.len(), self.present());
        if len != due {
            return Err(format!("{len} pairs in the end, must be {due}"));
        }
        match self.index.check() {
            found if found.is_empty() => Ok(()),
            found => Err(format!("check: {}", found.join("; "))),
        }
    }

    fn present(&self) -> u64 {
        self.phases.iter().filter(|phase| phase.load(SeqCst) % 4 == PRESENT).count() as u64
    }

    /// Inserts and removes keys that no other thread changes, in waves of different orders.
    fn write_waves(&self, mut own: Vec<usize>, random: &mut Rng) -> Result<(), String> {
        const WAVES: u64 = 6;
        for wave in 0..WAVES {
            reorder(&mut own, random);
            own.iter().try_for_each(|&at| self.insert(at))?;
            reorder(&mut own, random);
            // Some keys stay until the next wave, or at the end.
            let kept = random.below(own.len() as u64 / 4 + 1) as usize;
            let gone = &own[kept..];
            gone.iter().try_for_each(|&at| self.remove(at))?;
            if wave + 1 < WAVES {
                own[..kept].iter().try_for_each(|&at| self.remove(at))?;
            }
        }
        Ok(())
    }

    fn word(at: usize, phase: u64) -> u64 {
        (at as u64) << NONCE_BITS | phase
    }

    fn insert(&self, at: usize) -> Result<(), String> {
        let _operation = Operation::begin();
        // SeqCst, here and in the loads: the announcements are ordered in real time.
        let phase = self.phases[at].fetch_add(1, SeqCst);
        let word = Self::word(at, phase);
        let change = self.index.insert(&self.keys[at], word);
        let change = change.map_err(|error| format!("insert: {error}"))?;
        if !change.inserted() || self.get(at)? != Some(word) {
            return Err(format!("insert of {:?}: {change:?}", Short(&self.keys[at])));
        }
        self.phases[at].fetch_add(1, SeqCst);
        Ok(())
    }

    fn remove(&self, at: usize) -> Result<(), String> {
        let _operation = Operation::begin();
        let phase = self.phases[at].fetch_add(1, SeqCst);
        let change = self.index.remove(&self.keys[at]);
        let change = change.map_err(|error| format!("remove: {error}"))?;
        if change.old != Some(Self::word(at, phase - PRESENT)) || self.get(at)?.is_some() {
            return Err(format!("remove of {:?}: {change:?}", Short(&self.keys[at])));
        }
        self.phases[at].fetch_add(1, SeqCst);
        Ok(())
    }

    fn get(&self, at: usize) -> Result<Option<u64>, String> {
        self.index.get(&self.keys[at]).map_err(|error| format!("get: {error}"))
    }

    /// Scans until all writers have finished.
    fn scan_while(&self, writing: &AtomicUsize, random: &mut Rng) -> Result<(), String> {
        loop {
            // Acquire: pairs with `WriterDone`, so that the last scans see the final state.
            let last = writing.load(Acquire) == 0;
            for _ in 0..8 {
                self.scan(random)?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Scans a random range once, and checks the result.
    fn scan(&self, random: &mut Rng) -> Result<(), String> {
        let direction = *random.pick(&[Direction::Ascending, Direction::Descending]);
        let edge = |random: &mut Rng| match random.below(4) {
            0 | 1 => Bound::Unbounded,
            2 => Bound::Included(random.pick(&self.keys).clone()),
            _ => Bound::Excluded(random.pick(&self.keys).clone()),
        };
        let (lower, upper) = (edge(random), edge(random));
        let range = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        let before: Vec<u64> = self.phases.iter().map(|phase| phase.load(SeqCst)).collect();
        let shown = self.shown(range, direction, random)?;
        let after: Vec<u64> = self.phases.iter().map(|phase| phase.load(SeqCst)).collect();
        let fail = |at: usize, what: &str| {
            let key = Short(&self.keys[at]);
            Err(format!(
                "{direction:?} scan of {range:?}: {what} {key:?}, phases {} to {}",
                before[at], after[at]
            ))
        };
        let mut words: HashMap<usize, u64> = HashMap::new();
        let mut last: Option<usize> = None;
        for (key, word) in shown {
            let Ok(at) = self.keys.binary_search(&key) else {
                return Err(format!("{:?} was never inserted", Short(&key)));
            };
            let on = last.is_none_or(|last| match direction {
                Direction::Ascending => last < at,
                Direction::Descending => last > at,
            });
            if !on {
                return fail(at, "out of order, or twice:");
            }
            if !range.contains(&key[..]) {
                return fail(at, "beyond the range:");
            }
            last = Some(at);
            words.insert(at, word);
        }
        for (at, key) in self.keys.iter().enumerate() {
            let unchanged = before[at] == after[at];
            match (words.get(&at), before[at] % 4) {
                (None, PRESENT) if unchanged && range.contains(&key[..]) => {
                    return fail(at, "misses");
                }
                (Some(_), ABSENT) if unchanged => return fail(at, "shows the absent"),
                // The word contains the key and the phase in which it was inserted.
                (Some(&word), _) => {
                    let (place, phase) = (word >> NONCE_BITS, word & ((1 << NONCE_BITS) - 1));
                    // A pair that was present before the scan was inserted at most three phases
                    // before.
                    let current = phase + 3 >= before[at] && phase <= after[at];
                    if place != at as u64 || !current {
                        return fail(at, &format!("shows a wrong word ({place}, {phase}) for"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the pairs that a scan shows.
    fn shown(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        random: &mut Rng,
    ) -> Result<Vec<(Vec<u8>, u64)>, String> {
        let (mut lower, mut upper) = (range.0.map(<[u8]>::to_vec), range.1.map(<[u8]>::to_vec));
        let resumes = chance(random, 50);
        let mut shown = Vec::new();
        loop {
            let range = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            let mut cursor = Cursor::new(self.index, range, direction);
            let mut left = if resumes { 1 + random.below(30) } else { u64::MAX };
            while left > 0 {
                let _operation = Operation::begin();
                match cursor.next().map_err(|error| format!("scan: {error}"))? {
                    Some((key, word)) => shown.push((key.to_vec(), word)),
                    None => return Ok(shown),
                }
                left -= 1;
            }
            let position = cursor.position().map(<[u8]>::to_vec);
            match direction {
                Direction::Ascending => lower = position,
                Direction::Descending => upper = position,
            }
        }
    }
}

/// Sorts indexes in ascending, descending or random order.
fn reorder(places: &mut [usize], random: &mut Rng) {
    match random.below(4) {
        0 => places.sort_unstable(),
        1 => places.sort_unstable_by_key(|&place| std::cmp::Reverse(place)),
        _ => {
            for at in (1..places.len()).rev() {
                places.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
    }
}
