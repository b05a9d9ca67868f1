//! Counters by prefix: the part of a key before the first delimiter.

use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memchr::memchr;

/// The maximum number of prefixes that one worker counts apart from each other. Accesses with
/// further ones are counted together.
pub(super) const PREFIXES_MAX: usize = 4096;
/// The maximum length of those prefixes, in bytes: that of the keys of memcached.
const PREFIX_MAX: usize = 250;

/// The counters of one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Keys that were looked up.
    pub gets: u64,
    /// Keys that were found.
    pub hits: u64,
    /// Items that were stored.
    pub sets: u64,
    /// Keys that were to be deleted.
    pub deletes: u64,
}

impl AddAssign for PrefixCounts {
    fn add_assign(&mut self, more: PrefixCounts) {
        self.gets += more.gets;
        self.hits += more.hits;
        self.sets += more.sets;
        self.deletes += more.deletes;
    }
}

/// The counters of the prefixes that one worker has seen: at most [`PREFIXES_MAX`] prefixes of 250
/// bytes.
///
/// The lock is the worker's own. Another thread takes it only to read or reset the counters.
#[derive(Default)]
pub(super) struct Prefixes(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    of: HashMap<Box<[u8]>, PrefixCounts>,
    /// The counters of all further prefixes, and of longer ones.
    others: PrefixCounts,
}

impl Prefixes {
    /// Counts an access to a key, unless it has no delimiter.
    pub(super) fn count(&self, key: &[u8], delimiter: u8, counts: PrefixCounts) {
        let Some(len) = memchr(delimiter, key) else { return };
        let mut all = self.lock();
        let full = all.of.len() >= PREFIXES_MAX;
        match all.of.get_mut(&key[..len]) {
            Some(existing) => *existing += counts,
            None if full || len > PREFIX_MAX => all.others += counts,
            None => {
                all.of.insert(key[..len].into(), counts);
            }
        }
    }

    /// Removes all prefixes.
    pub(super) fn reset(&self) {
        *self.lock() = Counts::default();
    }

    /// Adds the counters to `totals`, and returns those of the further prefixes.
    pub(super) fn add_to(&self, totals: &mut BTreeMap<Box<[u8]>, PrefixCounts>) -> PrefixCounts {
        let all = self.lock();
        for (prefix, counts) in &all.of {
            *totals.entry(prefix.clone()).or_default() += *counts;
        }
        all.others
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // No code that can panic runs between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: PrefixCounts = PrefixCounts { gets: 1, hits: 0, sets: 0, deletes: 0 };

    #[test]
    fn prefixes_beyond_the_limit_are_counted_together() {
        let prefixes = Prefixes::default();
        for i in 0..2 * PREFIXES_MAX {
            for key in [format!("{i}:a"), format!("{i}:b:c"), format!("{i}")] {
                prefixes.count(key.as_bytes(), b':', GET);
            }
        }
        let mut totals = BTreeMap::new();
        assert_eq!(prefixes.add_to(&mut totals).gets, 2 * PREFIXES_MAX as u64);
        assert_eq!(totals.len(), PREFIXES_MAX);
        assert!(totals.values().all(|counts| counts.gets == 2));
        prefixes.count(b":x", b':', GET);
        prefixes.reset();
        prefixes.count(b":x", b':', GET);
        totals.clear();
        assert_eq!(prefixes.add_to(&mut totals), PrefixCounts::default());
        assert_eq!(totals, BTreeMap::from([([].into(), GET)]));
    }
}
