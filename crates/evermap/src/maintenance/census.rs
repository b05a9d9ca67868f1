//! The number of records, and of the bytes that they take.
//!
//! A clean shutdown saves the counts. After an unclean one they are determined in the background,
//! while mutations go on: a census counts the records of earlier openings that the index shows, and
//! mutators report those that they unlink meanwhile. Both together, without duplicates, are what
//! was there when the store was opened; what has changed since is counted as it happens.
//!
//! Until a census is complete, a limit has to hold for what it has not counted yet too. So a map
//! keeps in the file an upper limit of the bytes that its records take: a *bound*, some way above
//! what they take now, so that it is seldom raised.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use evermap_pm::epoch::thread_ordinal;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};

/// The first threads have a shard each, which no other thread writes, so that a change of it needs
/// no locked instruction. All others share the rest.
const OWN_SHARDS: usize = 12;
const SHARED_SHARDS: usize = 4;
const SHARDS: usize = OWN_SHARDS + SHARED_SHARDS;
/// The bytes by which each shard may grow before the bound in the file has to be raised: this part
/// of all bytes, but at least `SLACK_LEAST`.
const SLACK_PART: i64 = 128;
const SLACK_LEAST: i64 = 4096;

/// A number of records that may still be under count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Count {
    /// The number.
    pub value: u64,
    /// Whether it is exact. After an unclean shutdown it is not until the sweep in the background
    /// is complete; it then counts only what was stored since.
    pub exact: bool,
}

impl std::fmt::Display for Count {
    /// Writes the number, after a `~` if it is not exact.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = if self.exact { "" } else { "~" };
        f.pad(&format!("{mark}{}", self.value))
    }
}

/// Records and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    records: AtomicI64,
    bytes: AtomicI64,
    /// The value of `bytes` up to which the bound in the file covers it.
    covered: AtomicI64,
}

/// The counts of an open store.
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    /// While a census is due: the most bytes that records of earlier openings took. 0 afterwards.
    uncounted: AtomicU64,
    /// The bound in the file. The lock is held while it changes.
    bound: Mutex<u64>,
    exact: AtomicBool,
    /// The number of records when the store was opened; valid once `exact` is set.
    at_open: AtomicU64,
    /// While a census is due: where records of earlier openings were unlinked, and their bytes.
    departed: Mutex<Option<Vec<(u64, u64)>>>,
    counting: AtomicBool,
}

impl Counters {
    /// Returns counts that begin with `known`, or with a census to come, in a file that says that
    /// records take at most `bound` bytes.
    pub(crate) fn new(known: Option<Totals>, bound: u64) -> Self {
        let counters = Counters {
            shards: Default::default(),
            uncounted: AtomicU64::new(if known.is_some() { 0 } else { bound }),
            bound: Mutex::ranked(Rank::Bound, bound),
            exact: AtomicBool::new(known.is_some()),
            at_open: AtomicU64::new(known.unwrap_or_default().records),
            departed: Mutex::ranked(Rank::Leaf, known.is_none().then(Vec::new)),
            counting: AtomicBool::new(known.is_none()),
        };
        counters.add(known.unwrap_or_default());
        // The bound covers what is there, and nothing more.
        let first = &counters.shards[OWN_SHARDS];
        first.covered.store(first.bytes.load(Relaxed), Relaxed);
        counters
    }

    fn add(&self, totals: Totals) {
        let shared = &self.shards[OWN_SHARDS];
        shared.records.fetch_add(totals.records as i64, Relaxed);
        shared.bytes.fetch_add(totals.bytes as i64, Relaxed);
    }

    /// Counts a change. Returns `true` if the bound in the file has to be
    /// [raised](Counters::set_bound).
    #[inline]
    pub(crate) fn change(&self, records: i64, bytes: i64) -> bool {
        let number = thread_ordinal();
        let (shard, bytes_now) = if number < OWN_SHARDS {
            // No other living thread has this number. What an earlier thread with this number
            // stored happened before, because numbers are passed on under a lock.
            let shard = &self.shards[number];
            let add = |count: &AtomicI64, more| {
                let sum = count.load(Relaxed) + more;
                count.store(sum, Relaxed);
                sum
            };
            add(&shard.records, records);
            (shard, add(&shard.bytes, bytes))
        } else {
            let shard = &self.shards[OWN_SHARDS + number % SHARED_SHARDS];
            shard.records.fetch_add(records, Relaxed);
            (shard, shard.bytes.fetch_add(bytes, Relaxed) + bytes)
        };
        // This thread has the cache line already. A crash between the change and the new bound
        // costs one record per thread.
        bytes != 0 && bytes_now > shard.covered.load(Relaxed)
    }

    /// Chooses a new bound, and calls `keep` to store it in the file.
    pub(crate) fn set_bound(&self, keep: impl FnOnce(u64)) {
        let mut bound = self.hold_bound();
        let bytes = self.shards.each_ref().map(|shard| shard.bytes.load(Relaxed));
        let all = self.uncounted.load(Relaxed) as i64 + bytes.iter().sum::<i64>();
        let slack = (all / SLACK_PART).max(SLACK_LEAST);
        *bound = (all + slack * SHARDS as i64).max(0) as u64;
        keep(*bound);
        for (shard, bytes) in self.shards.iter().zip(bytes) {
            shard.covered.store(bytes + slack, Relaxed);
        }
    }

    fn hold_bound(&self) -> MutexGuard<'_, u64> {
        // A panic of the medium under it has poisoned the store.
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the bound in the file is so far above what is there that another one
    /// should be [chosen](Counters::set_bound).
    pub(crate) fn is_bound_loose(&self) -> bool {
        let bound = *self.hold_bound();
        let slack = SLACK_LEAST as u64 * SHARDS as u64;
        bound > self.most_bytes() / 4 * 5 + 2 * slack
    }

    /// Returns an upper limit of the bytes that records take, whether or not all of them are
    /// counted.
    pub(crate) fn most_bytes(&self) -> u64 {
        let sum: i64 = self.shards.iter().map(|shard| shard.bytes.load(Relaxed)).sum();
        (self.uncounted.load(Acquire) as i64 + sum).max(0) as u64
    }

    /// Returns `true` if mutators have to report records of earlier openings that they unlink.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.counting.load(Relaxed)
    }

    /// Notes that a record of an earlier opening was unlinked. The guard of the unlinking is still
    /// alive.
    #[cold]
    pub(crate) fn departed(&self, offset: u64, bytes: u64) {
        let mut departed = self.departed.lock().expect("no panics while held");
        if let Some(list) = &mut *departed {
            list.push((offset, bytes));
        }
    }

    /// Takes over what a census found in this map, if one was due. Every guard that was alive while
    /// it ran has ended.
    pub(crate) fn settle(&self, census: &mut Census, mut found: Totals) {
        if !self.is_counting() {
            // A clean shutdown that had no space to save which blocks are allocated: swept, but the
            // counts are known.
            return;
        }
        let departed = self.departed.lock().expect("no panics while held").take();
        for (offset, bytes) in departed.into_iter().flatten() {
            census.count(&mut found, offset, bytes);
        }
        self.add(found);
        // Relaxed: `exact` publishes it.
        self.at_open.store(found.records, Relaxed);
        // Release: a thread that sees this sees the sum.
        self.uncounted.store(0, Release);
        self.counting.store(false, Relaxed);
        // Release: a thread that sees this sees the sum.
        self.exact.store(true, Release);
    }

    /// Returns the number of records when the store was opened, or `None` while a census is due.
    pub(crate) fn at_open(&self) -> Option<u64> {
        // Acquire pairs with the release in `settle`.
        self.exact.load(Acquire).then(|| self.at_open.load(Relaxed))
    }

    /// Returns the counts now, and whether they are exact.
    pub(crate) fn totals(&self) -> (Totals, bool) {
        let exact = self.exact.load(Acquire);
        let sum = |each: fn(&Shard) -> &AtomicI64| {
            let sum: i64 = self.shards.iter().map(|shard| each(shard).load(Relaxed)).sum();
            // Negative while records from before the census are removed.
            sum.max(0) as u64
        };
        let (records, bytes) = (sum(|shard| &shard.records), sum(|shard| &shard.bytes));
        (Totals { records, bytes }, exact)
    }
}

/// The records that a census has seen, in any map: no two maps have a record in common.
#[derive(Default)]
pub(crate) struct Census {
    /// A bit for each 32 bytes, in chunks of 2 MiB: blocks are at least 32 bytes apart.
    seen: HashMap<u64, Box<[u64; Self::WORDS]>>,
}

impl Census {
    const WORDS: usize = 1024;

    /// Adds the record at `offset` to `found`, unless it was counted before.
    pub(crate) fn count(&mut self, found: &mut Totals, offset: u64, bytes: u64) {
        let block = (offset / 32) as usize;
        let chunk = self
            .seen
            .entry((block / 64 / Self::WORDS) as u64)
            .or_insert_with(|| Box::new([0; Self::WORDS]));
        let (word, bit) = (&mut chunk[block / 64 % Self::WORDS], 1 << (block % 64));
        if *word & bit == 0 {
            *word |= bit;
            found.records += 1;
            found.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_and_the_departed_make_what_was_there() {
        let counters = Counters::new(None, 1_000);
        assert!(counters.is_counting());
        // Three old records of 64 bytes; one goes before the census passes, one after, and one is
        // added.
        let (mut census, mut found) = (Census::default(), Totals::default());
        counters.departed(4096, 64);
        counters.change(-1, -64);
        for offset in [8192, 8192 + (2 << 20), 8192] {
            census.count(&mut found, offset, 64);
        }
        counters.departed(8192, 64);
        counters.change(-1, -64);
        counters.change(1, 100);
        assert!(!counters.totals().1);
        assert_eq!(counters.at_open(), None);
        assert_eq!(counters.most_bytes(), 1_000 - 28);
        counters.settle(&mut census, found);
        assert_eq!(counters.totals(), (Totals { records: 2, bytes: 164 }, true));
        assert_eq!(counters.most_bytes(), 164);
        assert!(!counters.is_counting());
        assert_eq!(counters.at_open(), Some(3));
        counters.departed(0, 64);
        assert_eq!(counters.totals(), (Totals { records: 2, bytes: 164 }, true));
    }

    #[test]
    fn the_bound_is_never_below_what_is_there() {
        let counters = Counters::new(Some(Totals { records: 1, bytes: 100 }), 100);
        let (mut there, mut bound, mut raised) = (100, 100, 0);
        for bytes in (0..20_000).map(|i| if i % 3 == 2 { -700 } else { 600 }) {
            there += bytes;
            if counters.change(1, bytes) {
                counters.set_bound(|to| bound = to as i64);
                raised += 1;
            }
            assert!(there <= bound && bound <= there + there / 5 + 80_000, "{there} of {bound}");
        }
        assert!(raised < 1_000, "raised {raised} times");
        counters.change(-1, 100_000 - there);
        assert!(counters.is_bound_loose());
        counters.set_bound(|to| bound = to as i64);
        assert!(bound < 200_000 && !counters.is_bound_loose());
    }

    #[test]
    fn inexact_counts_are_marked() {
        assert_eq!(Count { value: 12, exact: true }.to_string(), "12");
        assert_eq!(Count { value: 12, exact: false }.to_string(), "~12");
    }
}
