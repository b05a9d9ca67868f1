//! Removing what is expired or flushed.
//!
//! Such records count as absent immediately; what remains to be done is to reclaim their space.
//! There are two ways to find them:
//!
//! * Each map keeps, in ordinary memory, the hashes of keys with the times at which they are *due*
//!   to be examined: for every record that expires there is one that is not later than its expiry.
//!   So what has expired is found without examining anything else.
//! * A *walk* through all records finds what was flushed, and what expires without being in the
//!   list: after opening, because the times are not kept in the file.
//!
//! Either asks, under the lock of each key that seems dead, whether the record that is there *then*
//! is dead: so it cannot remove a newer record. If that record is live, the key becomes due again
//! at its expiry.
//!
//! # Why nothing is forgotten
//!
//! A change that binds a key to a record makes the key due at the expiry of that record, after the
//! record is there, unless the record that it replaced expires as well and no later: then the key
//! is due already, or a thread that has taken it out of the list is about to examine it, will find
//! the new record, and makes it due again. Nothing but such an examination takes a key out of the
//! list, and a walk, which empties the list first and then examines every key that was there
//! throughout. A thread that stops before it has examined a key puts it back, or notes that a walk
//! is owed.
//!
//! What damage hides from an examination waits for a walk, and so does one of two keys that share
//! all 64 bits of their hash.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_index::{Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};

use crate::maintenance::census::Counters;
use crate::ops::commit::Verdict;
use crate::ops::read::Walk;
use crate::record::Record;
use crate::{Error, Evermap, Map, Result};

const SHARDS: usize = 8;
/// Keys that are examined together.
const TOGETHER: usize = 32;
/// The number of keys that may be due beyond two for each record. If there are more, most are of
/// records that are gone.
const SPARE: u64 = 1 << 16;
/// The capacity of a queue is not reduced below this number of keys.
const KEPT: usize = 1 << 10;

/// States of the walk through all records: it is owed, is running, or would find nothing new.
const OWED: u8 = 0;
const WALKING: u8 = 1;
const DONE: u8 = 2;

/// A key that is to be examined. Two `u32` instead of a `u64` make it 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: u32,
    hash: [u32; 2],
}

impl Due {
    fn new(at: u32, hash: u64) -> Self {
        Due { at, hash: [hash as u32, (hash >> 32) as u32] }
    }

    fn hash(self) -> u64 {
        u64::from(self.hash[0]) | u64::from(self.hash[1]) << 32
    }
}

type Queue = BinaryHeap<Reverse<Due>>;

/// The keys of some hashes, on cache lines of its own.
#[repr(align(128))]
struct Shard(Mutex<Queue>);

impl Default for Shard {
    fn default() -> Self {
        Shard(Mutex::ranked(Rank::Leaf, Queue::new()))
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().expect("no panics while held")
    }
}

/// What is known about the records of a map that will expire.
pub(crate) struct Expiries {
    shards: [Shard; SHARDS],
    walk: AtomicU8,
    /// Held by the thread that takes keys out and examines them.
    examining: Mutex<()>,
}

impl Expiries {
    /// Returns the state for a map without records, or for one that was not walked through yet.
    pub(crate) fn new(is_empty: bool) -> Self {
        Expiries {
            shards: Default::default(),
            walk: AtomicU8::new(if is_empty { DONE } else { OWED }),
            examining: Mutex::ranked(Rank::Expiry, ()),
        }
    }

    /// Makes the key with this hash due at that time.
    fn expect(&self, at: u32, hash: u64, counters: &Counters) {
        let mut queue = self.shards[hash as usize % SHARDS].lock();
        // Asked only when the queue has to grow, so the cost is amortized.
        if queue.len() == queue.capacity() && Self::is_too_long(queue.len() as u64, counters) {
            *queue = Queue::new();
            drop(queue);
            self.owe_walk();
        } else {
            queue.push(Reverse(Due::new(at, hash)));
        }
    }

    /// Returns `true` if `len` keys in one shard are far more than there are records: because keys
    /// were removed again and again before they expired. A walk finds out anew, after at least as
    /// many changes as there are records.
    fn is_too_long(len: u64, counters: &Counters) -> bool {
        let (totals, exact) = counters.totals();
        exact && len * SHARDS as u64 > 2 * totals.records + SPARE
    }

    /// Waits until no thread examines keys, and keeps others from it until the guard is dropped.
    fn examining(&self) -> MutexGuard<'_, ()> {
        // A panic under it has put back what was taken.
        self.examining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out up to [`TOGETHER`] keys that are due by `now`.
    fn take(&self, now: u32) -> Vec<Due> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let queue = &mut *shard.lock();
            while taken.len() < TOGETHER && queue.peek().is_some_and(|first| first.0.at <= now) {
                taken.extend(queue.pop().map(|due| due.0));
            }
            if queue.capacity() > KEPT && queue.len() < queue.capacity() / 4 {
                queue.shrink_to(queue.len() * 2);
            }
        }
        taken
    }

    /// Returns when the first key is due.
    fn first(&self) -> Option<u32> {
        self.shards.iter().filter_map(|shard| shard.lock().peek().map(|first| first.0.at)).min()
    }

    /// Notes that there may be dead records that only a walk finds.
    pub(crate) fn owe_walk(&self) {
        // Release: the thread that walks because of this sees the records that it is for.
        self.walk.store(OWED, Release);
    }

    /// Returns `true` if a walk is owed or running.
    pub(crate) fn is_walk_due(&self) -> bool {
        self.walk.load(Acquire) != DONE
    }

    fn begin_walk(&self) {
        // Acquire: see `owe_walk`. This walk may miss what is owed from here on.
        self.walk.swap(WALKING, AcqRel);
        // The walk sees all records that these keys are of, so none is forgotten; keys of records
        // that are gone are dropped.
        self.shards.iter().for_each(|shard| *shard.lock() = Queue::new());
    }

    fn end_walk(&self, is_complete: bool) {
        match is_complete {
            // Unless another walk is owed by now.
            true => drop(self.walk.compare_exchange(WALKING, DONE, AcqRel, Relaxed)),
            false => self.owe_walk(),
        }
    }
}

/// Keys that were taken out to be examined. Those that are left when it is dropped are put back.
struct DueKeys<'e> {
    expiries: &'e Expiries,
    counters: &'e Counters,
    keys: Vec<Due>,
}

impl Drop for DueKeys<'_> {
    fn drop(&mut self) {
        for due in self.keys.drain(..) {
            self.expiries.expect(due.at, due.hash(), self.counters);
        }
    }
}

impl<M: Medium> Evermap<M> {
    /// Removes the records of all maps in the file that are expired or flushed. Returns their
    /// number. Other operations may go on meanwhile; a sweep, a compaction or a check has to end
    /// first, so the calling thread must not hold a [`Reader`](crate::Reader). O(n): examines every
    /// record, where [`purge_if_due`](Evermap::purge_if_due) does so only if it has to.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// map.touch("key", std::time::SystemTime::UNIX_EPOCH)?;
    /// map.db().purge()?;
    /// assert_eq!(map.len(), 0);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GuardHeld`], and see [`Map`].
    pub fn purge(&self) -> Result<u64> {
        self.ensure_no_guard("purge")?;
        self.file.ensure_writable()?;
        let sweeping = self.file.maintenance.sweeping();
        self.walk_maps(&sweeping)
    }

    /// [`purge_if_due`](Evermap::purge_if_due).
    pub(crate) fn purge_due(&self) -> Result<u64> {
        // What the caller may hold must not depend on whether a walk is due.
        self.ensure_no_guard("purge_if_due")?;
        if self.is_walk_due() { self.purge() } else { self.purge_expired() }
    }

    /// Returns `true` if only a walk finds what may be dead in some map.
    pub(crate) fn is_walk_due(&self) -> bool {
        let now = u64::from(self.file.clock.now());
        // The next operation on the map would flush it, but there may be none.
        let is_flush_due = |map: &Map<M>| map.inner.flush.due().is_some_and(|due| due <= now);
        let is_due = |map: &Map<M>| map.inner.expiries.is_walk_due() || is_flush_due(map);
        !self.file.maintenance.looked.load(Acquire) || self.open_maps().iter().any(is_due)
    }

    /// Returns when the next record can expire, 0 if that is not known yet, or `None` if none
    /// expires.
    pub(crate) fn next_expiry(&self) -> Option<u32> {
        if self.is_walk_due() {
            return Some(0);
        }
        self.open_maps().iter().filter_map(|map| map.inner.expiries.first()).min()
    }

    /// Removes what is known to have expired in all maps that are open.
    pub(crate) fn purge_expired(&self) -> Result<u64> {
        self.file.ensure_writable()?;
        let (held, mut purged) = (self.file.clock.held(), 0);
        for map in self.open_maps() {
            // Beginning an operation carries out a flush that is due.
            match map.enter().map(drop).and_then(|()| map.remove_expired(u64::MAX)) {
                Ok(removed) => purged += removed,
                Err(Error::Dropped { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.release_time(held);
        Ok(purged)
    }

    /// Lets the time go back to that of the clock, if it was held at `held` and everything that had
    /// expired by then is removed.
    fn release_time(&self, held: Option<u32>) {
        if let Some(held) =
            held.filter(|_| !self.is_walk_due() && !self.file.maintenance.is_stopping())
        {
            self.file.clock.release(held);
        }
    }

    /// Walks through all maps. The caller keeps other maintenance from interfering. Returns the
    /// number of records removed.
    pub(crate) fn walk_maps(&self, _sweeping: &MutexGuard<'_, ()>) -> Result<u64> {
        let (file, held, mut purged) = (&self.file, self.file.clock.held(), 0);
        file.maintenance.purges.fetch_add(1, Relaxed);
        // Nothing can be removed from a map that cannot be opened.
        for map in self.all_maps()?.0 {
            // A flush that is due comes before the walk, so that it does not make another walk due.
            let walked = map.enter().map(drop).and_then(|()| {
                map.inner.expiries.begin_walk();
                map.walk(&mut purged)
            });
            map.inner.expiries.end_walk(matches!(walked, Ok(true)));
            match walked {
                Ok(true) | Err(Error::Dropped { .. }) => {}
                Ok(false) => return Ok(purged),
                Err(error) => return Err(error),
            }
        }
        // Release: a thread that sees this sees the lists of all maps.
        file.maintenance.looked.store(true, Release);
        file.maintenance.has_purged();
        self.release_time(held);
        Ok(purged)
    }
}

impl<M: Medium> Map<M> {
    /// Removes what is known to have expired in this map: up to `most` records, or few more.
    /// Returns their number.
    pub(crate) fn remove_expired(&self, most: u64) -> Result<u64> {
        let (expiries, counters) = (&self.inner.expiries, &self.inner.counters);
        if expiries.first().is_none_or(|first| first > self.db.file.clock.now()) {
            return Ok(0);
        }
        let mut purged = 0;
        while purged < most && !self.db.file.maintenance.is_stopping() {
            // A few at a time, so that a mutation that lacks space waits for those only, and they
            // are reused soon.
            let (_examining, guard) = (expiries.examining(), self.enter()?);
            let keys = expiries.take(self.db.file.clock.now());
            let mut due_keys = DueKeys { expiries, counters, keys };
            if due_keys.keys.is_empty() {
                break;
            }
            purged += self.examine(&mut due_keys, &guard)?;
        }
        Ok(purged)
    }

    /// Examines keys that are due. Returns the number of those that it removed.
    fn examine(&self, due_keys: &mut DueKeys<'_>, guard: &Guard<'_>) -> Result<u64> {
        let (index, m) = (&self.inner.index, self.db.file.pool.medium());
        let key_of = |due: &Due| BytesRef::any(due.hash());
        due_keys.keys.iter().for_each(|due| index.prefetch_bucket(key_of(due)));
        let mut words = Vec::with_capacity(due_keys.keys.len());
        for due in &due_keys.keys {
            // Nothing can be removed from a part of the index that cannot be read.
            let word =
                unless_damaged(index.get(key_of(due), guard).map_err(Error::from))?.flatten();
            word.iter().for_each(|word| m.prefetch(word & OFFSET_MASK));
            words.push(word);
        }
        let (mark, mut purged) = (self.inner.flush.mark(), 0);
        while let Some(word) = words.pop() {
            if let (Some(due), Some(word)) = (due_keys.keys.last(), word) {
                purged += u64::from(self.examine_one(due.hash(), word, mark, guard)?);
            }
            due_keys.keys.pop();
        }
        Ok(purged)
    }

    /// Removes the record of a key if it is dead; `word` is what the key was bound to a moment ago.
    /// Returns `true` if it did. The key of a live record becomes due at its expiry.
    fn examine_one(&self, hash: u64, word: u64, mark: u64, guard: &Guard<'_>) -> Result<bool> {
        let Ok(record) = Record::at(self.db.file.pool.medium(), word) else { return Ok(false) };
        match self.is_dead(&record, mark) {
            Some(true) => Ok(unless_damaged(self.remove_dead(&record, guard))?.unwrap_or(false)),
            Some(false) => {
                self.expect(hash, record.expires_at());
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Removes what the key of `record` is bound to if that is dead. Returns `true` if it did.
    fn remove_dead(&self, record: &Record<'_, M>, guard: &Guard<'_>) -> Result<bool> {
        let mut key = Vec::new();
        record.append_key(&mut key)?;
        let key = self.key(&key)?;
        let mut expires_at = None;
        let change = self.commit(key, MutateMode::ExistingOnly, guard, None, &mut |live| {
            expires_at = live.and_then(|live| live.expires_at());
            Verdict::Keep
        })?;
        if change.removed() {
            self.count_dead(record);
        } else {
            self.expect(key.hash, expires_at);
        }
        Ok(change.removed())
    }

    /// Removes what `key` is bound to, which was `record`, if that is dead and no batch is about to
    /// change it. Returns `true` if it did.
    pub(crate) fn remove_dead_unless_reserved(
        &self,
        key: BytesRef<'_>,
        record: &Record<'_, M>,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        let change = self.commit_unless_reserved(key, guard, &mut |_| Verdict::Keep)?;
        let removed = change.is_some_and(|change| change.removed());
        if removed {
            self.count_dead(record);
        }
        Ok(removed)
    }

    /// Counts a record that was removed because it was dead.
    fn count_dead(&self, record: &Record<'_, M>) {
        let maintenance = &self.db.file.maintenance;
        maintenance.purged.fetch_add(1, Relaxed);
        if self.inner.evicts() && !record.access().is_fetched() {
            maintenance.evictor.counts.expired_unfetched.fetch_add(1, Relaxed);
        }
    }

    /// Makes the key with this hash due at its expiry, if it has one.
    fn expect(&self, hash: u64, expires_at: Option<u32>) {
        if let Some(at) = expires_at.filter(|&at| at != 0) {
            self.inner.expiries.expect(at, hash, &self.inner.counters);
        }
    }

    /// Makes a key due whose record, which expired at `before`, was replaced by one that expires at
    /// `now`.
    #[inline]
    pub(crate) fn expect_replacement(&self, hash: u64, before: Option<u32>, now: Option<u32>) {
        // It is due already if the record before expires no later: see the module.
        if now.is_some_and(|now| before.is_none_or(|before| before == 0 || before > now)) {
            self.expect(hash, now);
        }
    }

    /// Walks through this map, and adds the number of records that it removes to `purged`. Returns
    /// `true` if it came to the end.
    fn walk(&self, purged: &mut u64) -> Result<bool> {
        let mut walk = Walk::new(self);
        let mut pairs = Vec::new();
        while let Some(guard) = walk.next(&mut pairs)? {
            // Nothing can be removed from a segment that cannot be read.
            let _ = walk.take_error();
            pairs
                .iter()
                .for_each(|(_, word)| self.db.file.pool.medium().prefetch(word & OFFSET_MASK));
            let (mark, before) = (self.inner.flush.mark(), *purged);
            for &(hash, word) in &pairs {
                *purged += u64::from(self.examine_one(hash, word, mark, &guard)?);
            }
            if *purged > before {
                self.db.file.maintenance.has_purged();
            }
            if self.db.file.maintenance.is_stopping() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns `None` instead of an error of damage, which is skipped.
pub(crate) fn unless_damaged<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.is_damaged() => Ok(None),
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::census::Totals;

    fn counters(records: u64) -> Counters {
        Counters::new(Some(Totals { records, bytes: 0 }), 0)
    }

    #[test]
    fn keys_come_out_when_they_are_due() {
        let (expiries, counters) = (Expiries::new(true), counters(1_000));
        assert_eq!(size_of::<Due>(), 12);
        for i in 0..1_000u64 {
            expiries.expect(1_000 - i as u32, i << 40 | i, &counters);
        }
        assert_eq!((expiries.first(), expiries.take(0).len()), (Some(1), 0));
        let mut seen = Vec::new();
        for now in [10, 500, u32::MAX] {
            loop {
                let taken = expiries.take(now);
                if taken.is_empty() {
                    break;
                }
                assert!(taken.iter().all(|due| due.at <= now && taken.len() <= TOGETHER));
                seen.extend(taken.iter().map(|due| due.hash() & 0xffff));
            }
            assert_eq!(seen.len(), now.min(1_000) as usize);
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1_000));
        assert_eq!(expiries.first(), None);
    }

    #[test]
    fn what_was_taken_and_not_examined_is_put_back() {
        let (expiries, counters) = (Expiries::new(true), counters(3));
        (0..3).for_each(|hash| expiries.expect(5, hash, &counters));
        let mut due_keys =
            DueKeys { expiries: &expiries, counters: &counters, keys: expiries.take(5) };
        assert_eq!((due_keys.keys.len(), expiries.first()), (3, None));
        due_keys.keys.pop();
        drop(due_keys);
        assert_eq!(expiries.take(5).len(), 2);
    }

    /// Keys that are written and removed without end, long before they expire, take bounded memory.
    #[test]
    fn keys_of_records_that_are_gone_do_not_pile_up() {
        let (expiries, counters) = (Expiries::new(true), counters(10));
        let held = || expiries.shards.iter().map(|shard| shard.lock().capacity()).sum::<usize>();
        for i in 0..2_000_000u64 {
            expiries.expect(9, i, &counters);
            assert!(held() as u64 <= 4 * SPARE || i % 1_000 != 0);
        }
        assert!(expiries.is_walk_due(), "only a walk can tell now");
        expiries.begin_walk();
        assert_eq!(held(), 0);
        expiries.end_walk(true);
        assert!(!expiries.is_walk_due());
        // One that was cut short is owed, and so is one that was asked for in the middle.
        expiries.begin_walk();
        expiries.end_walk(false);
        assert!(expiries.is_walk_due());
        expiries.begin_walk();
        expiries.owe_walk();
        expiries.end_walk(true);
        assert!(expiries.is_walk_due());
    }
}
