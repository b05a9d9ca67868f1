//! How many records there are, and how many bytes they take.
//!
//! An orderly close saves the counts. After any other stop they are found out in the background, while
//! mutations go on: a census counts the records of earlier openings that the index shows, and mutators
//! report those that they unlink meanwhile. Both together, without duplicates, are what was there when
//! the store was opened; what has changed since is counted as it happens.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64};

use evermap_pm::epoch::thread_ordinal;
use evermap_pm::sync::Mutex;

const SHARDS: usize = 16;

/// A number of records that may still be under count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The number.
    pub value: u64,
    /// Whether it is right. After an unclean stop it is not until the background sweep is through; it then
    /// covers only what was stored since.
    pub exact: bool,
}

impl std::fmt::Display for Count {
    /// The number, after a `~` where it is not exact.
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
}

/// The counts of an open store.
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    exact: AtomicBool,
    /// While a census is due: where records of earlier openings were unlinked, and their bytes.
    departed: Mutex<Option<Vec<(u64, u64)>>>,
    counting: AtomicBool,
}

impl Counters {
    /// Counts that begin with `known`, or with a census to come.
    pub(crate) fn new(known: Option<Totals>) -> Self {
        let counters = Counters {
            shards: Default::default(),
            exact: AtomicBool::new(known.is_some()),
            departed: Mutex::new(known.is_none().then(Vec::new)),
            counting: AtomicBool::new(known.is_none()),
        };
        counters.add(known.unwrap_or_default());
        counters
    }

    fn add(&self, totals: Totals) {
        self.shards[0].records.fetch_add(totals.records as i64, Relaxed);
        self.shards[0].bytes.fetch_add(totals.bytes as i64, Relaxed);
    }

    /// Counts a change.
    #[inline]
    pub(crate) fn change(&self, records: i64, bytes: i64) {
        let shard = &self.shards[thread_ordinal() % SHARDS];
        if records != 0 {
            shard.records.fetch_add(records, Relaxed);
        }
        if bytes != 0 {
            shard.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Whether mutators have to report records of earlier openings that they unlink.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.counting.load(Relaxed)
    }

    /// A record of an earlier opening was unlinked. The guard of the unlinking is still alive.
    #[cold]
    pub(crate) fn departed(&self, offset: u64, bytes: u64) {
        let mut departed = self.departed.lock().expect("no panics while held");
        if let Some(list) = &mut *departed {
            list.push((offset, bytes));
        }
    }

    /// Takes over what a census found in this map, if one was due. Every guard that was alive while it ran is gone.
    pub(crate) fn settle(&self, census: &mut Census, mut found: Totals) {
        if !self.is_counting() {
            // An orderly stop that had no room to save which blocks are taken: swept, but the counts are known.
            return;
        }
        let departed = self.departed.lock().expect("no panics while held").take();
        for (offset, bytes) in departed.into_iter().flatten() {
            census.count(&mut found, offset, bytes);
        }
        self.add(found);
        self.counting.store(false, Relaxed);
        // Release: whoever sees this sees the sum.
        self.exact.store(true, Release);
    }

    /// The counts now, and whether they are exact.
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

/// What a census has seen, in whatever map: no two of them have the same record.
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
        let counters = Counters::new(None);
        assert!(counters.is_counting());
        // Three old records of 64 bytes; one goes before the census passes, one after, and one is added.
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
        counters.settle(&mut census, found);
        assert_eq!(counters.totals(), (Totals { records: 2, bytes: 164 }, true));
        assert!(!counters.is_counting());
        counters.departed(0, 64);
        assert_eq!(counters.totals(), (Totals { records: 2, bytes: 164 }, true));
    }

    #[test]
    fn inexact_counts_are_marked() {
        assert_eq!(Count { value: 12, exact: true }.to_string(), "12");
        assert_eq!(Count { value: 12, exact: false }.to_string(), "~12");
    }
}
