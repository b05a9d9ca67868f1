//! Noticing that records are missing when all of them were walked over.
//!
//! A page of the index that is overwritten with zeros looks like one whose buckets are free. What
//! it led to is noticed by the number of records, which a clean shutdown saves. The number says
//! something only while nothing was stored and nothing was removed since the file was opened:
//! otherwise another thread may have changed the map while it was walked over.

use std::time::{Duration, Instant};

use evermap_pm::Medium;
use evermap_pm::sync::{Mutex, Rank};

use crate::ops::read::Walk;
use crate::{Error, Map, Result};

/// How long a walk that has met too few records waits for operations that may be removing some.
const PATIENCE: Duration = Duration::from_millis(100);

/// After a walk that has met more records than this, the next one comes after some times as long as
/// that has taken, at the earliest.
const MANY: u64 = 1 << 14;
const PAUSE: u32 = 20;

/// What the last walk over the index has found, for all scans of a map.
pub(crate) struct Losses(Mutex<Option<Found>>);

impl Default for Losses {
    fn default() -> Self {
        Losses(Mutex::ranked(Rank::Leaf, None))
    }
}

#[derive(Clone)]
struct Found {
    /// The number of records that the index names.
    named: u64,
    /// The first part of the index, or the first record, that could not be read: where, and what is
    /// wrong.
    unreadable: Option<(u64, String)>,
    /// The next CAS id and the number of records when the walk began, and when it may be repeated.
    stamp: (u64, u64),
    until: Instant,
}

impl<M: Medium> Map<M> {
    /// Returns the number of records, expired ones included, if that is known, and nothing was
    /// stored or removed since the file was opened. O(1).
    pub(crate) fn unchanged_records(&self) -> Option<u64> {
        let records = self.inner.counters.at_open()?;
        // Whatever is stored gets a new CAS id before it is bound; and if nothing was stored, what
        // was removed makes the number smaller.
        let cas = &self.db.file.cas_counter;
        let unchanged =
            cas.next() == cas.first() && self.inner.counters.totals().0.records == records;
        unchanged.then_some(records)
    }

    /// Returns the error of a walk over all records that has met this number of them, of which some
    /// could be read, if there are more for certain. O(1), or waits for a moment.
    ///
    /// A record is met if the index names it, whether or not it has expired.
    #[cold]
    pub(crate) fn incomplete(&self, met: u64, readable: u64) -> Option<Error> {
        let records = self.unchanged_records().filter(|records| met < *records)?;
        // What is being removed is counted after it is unbound, under the same guard. A walk over
        // the catalogue holds the lock under which it changes, and must not wait for guards.
        let settled = self.db.file.read_only
            || self.inner.is_catalogue()
            || self.db.file.pool.epoch().synchronize_within(PATIENCE).is_ok();
        let lost = settled && self.unchanged_records() == Some(records);
        lost.then(|| self.met(Error::Incomplete { readable, records }))
    }

    /// Returns what a walk over the index shows to be missing, for a scan that cannot show all: it
    /// has met keys that the index does not name, or the ordered index lacks some. `deep`: records
    /// are read too. O(n), unless nothing has changed since the last call, or that was just before.
    #[cold]
    pub(crate) fn losses(&self, deep: bool) -> Result<Vec<Error>> {
        let last = self.inner.losses.0.lock().expect("no panics while held").clone();
        let is_current = |it: &Found| it.stamp == self.stamp() || Instant::now() < it.until;
        let found = match last.filter(is_current) {
            Some(found) => found,
            None => self.walk_for_losses(deep)?,
        };
        let damaged =
            |(at, what): &(u64, String)| evermap_pm::Error::damaged(*at, what.clone()).into();
        let mut errors: Vec<Error> = found.unreadable.iter().map(damaged).collect();
        // If nothing has changed until now, nothing had when it was counted.
        errors.extend(self.incomplete(found.named, found.named));
        Ok(errors)
    }

    /// Returns what changes whenever something is stored or removed.
    fn stamp(&self) -> (u64, u64) {
        (self.db.file.cas_counter.next(), self.inner.counters.totals().0.records)
    }

    fn walk_for_losses(&self, deep: bool) -> Result<Found> {
        let (began, stamp) = (Instant::now(), self.stamp());
        let (mut walk, mut pairs, mut key) = (Walk::new(self), Vec::new(), Vec::new());
        let mut found = Found { named: 0, unreadable: None, stamp, until: began };
        while let Some(guard) = walk.next(&mut pairs)? {
            found.named += pairs.len() as u64;
            let mut note = |error: Error| {
                found.unreadable.get_or_insert_with(|| error.damage());
            };
            let _ = walk.take_error().map_err(&mut note);
            for &(hash, word) in pairs.iter().filter(|_| deep) {
                key.clear();
                let _ = walk.named(hash, word, &guard, &mut key).map_err(&mut note);
            }
        }
        if found.named > MANY {
            found.until = Instant::now() + began.elapsed() * PAUSE;
        }
        let mut last = self.inner.losses.0.lock().expect("no panics while held");
        *last = Some(found.clone());
        Ok(found)
    }
}
