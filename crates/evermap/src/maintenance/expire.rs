//! Removing what is expired or flushed.
//!
//! Such records count as absent at once, whoever looks; what remains to be done is to give their space back. There are two ways
//! to find them:
//!
//! * Each map keeps, in ordinary memory, the hashes of keys with the times at which they are *due* to be looked at: for every
//!   record that expires there is one that is not later than its expiry. So what has expired is found without looking at
//!   anything else.
//! * A *walk* through all records finds what was flushed, and what expires of which nobody knows: after opening, for the times
//!   are not kept in the file.
//!
//! Either asks, under the lock of each key that seems dead, whether what is there *then* is dead: so it cannot remove a newer
//! record. If what is there lives, the key becomes due again at its expiry.
//!
//! # Why nothing is forgotten
//!
//! A change that binds a key to a record makes the key due at the expiry of that record, after the record is there, unless
//! the record that it replaced expires as well and no later: then the key is due already, or somebody who has taken it out of
//! the list is about to look at it, will find the new record, and makes it due again. Nothing but such a look takes a key out
//! of the list, and a walk, which empties the list first and then looks at every key that was there throughout. Whoever stops
//! before looking puts back what was taken, or says that a walk is owed.
//!
//! What damage hides from a look waits for a walk, and so does one of two keys that share all 64 bits of their hash.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_index::{Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::sync::{Mutex, MutexGuard};

use crate::maintenance::census::Counters;
use crate::ops::commit::Verdict;
use crate::ops::read::Walk;
use crate::record::Record;
use crate::{Error, Evermap, Map, Result};

const SHARDS: usize = 8;
/// Keys that are looked at together.
const TOGETHER: usize = 32;
/// Keys that may be due beyond two for each record. More than that means that most are of records that are gone.
const SPARE: u64 = 1 << 16;
/// Room for fewer keys than this is not given back.
const KEPT: usize = 1 << 10;

/// A walk through all records is owed, is on its way, or would find nothing new.
const OWED: u8 = 0;
const WALKING: u8 = 1;
const DONE: u8 = 2;

/// A key that is to be looked at. 12 bytes, which two `u32` instead of a `u64` make it.
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

/// The keys of some hashes, on a line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Queue>);

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().expect("no panics while held")
    }
}

/// What is known about the records of a map that will expire.
pub(crate) struct Expiries {
    shards: [Shard; SHARDS],
    walk: AtomicU8,
    /// Held by whoever takes keys out and looks at them.
    turn: Mutex<()>,
}

impl Expiries {
    /// Of a map without records, or of one that nobody has looked through.
    pub(crate) fn new(is_empty: bool) -> Self {
        Expiries {
            shards: Default::default(),
            walk: AtomicU8::new(if is_empty { DONE } else { OWED }),
            turn: Mutex::new(()),
        }
    }

    /// Makes the key with this hash due at that time.
    fn expect(&self, at: u32, hash: u64, counters: &Counters) {
        let mut queue = self.shards[hash as usize % SHARDS].lock();
        // Asked where room has to be made anyway, so it costs nothing on the whole.
        if queue.len() == queue.capacity() && Self::is_too_long(queue.len() as u64, counters) {
            *queue = Queue::new();
            drop(queue);
            self.owe_walk();
        } else {
            queue.push(Reverse(Due::new(at, hash)));
        }
    }

    /// Whether so many keys in one shard are far more than what there are records for: where keys were removed again and again
    /// before they expired. A walk finds out anew, after at least as many changes as there are records.
    fn is_too_long(len: u64, counters: &Counters) -> bool {
        let (totals, exact) = counters.totals();
        exact && len * SHARDS as u64 > 2 * totals.records + SPARE
    }

    /// Waits until nobody takes keys out, and keeps it so.
    fn turn(&self) -> MutexGuard<'_, ()> {
        // A panic under it has put back what was taken.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out keys that are due by `now`, [`TOGETHER`] at most.
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

    /// When the first key is due.
    fn first(&self) -> Option<u32> {
        self.shards.iter().filter_map(|shard| shard.lock().peek().map(|first| first.0.at)).min()
    }

    /// There may be dead records that only a walk finds.
    pub(crate) fn owe_walk(&self) {
        // Release: whoever walks because of this sees what it is for.
        self.walk.store(OWED, Release);
    }

    /// Whether a walk is owed or on its way.
    pub(crate) fn is_walk_due(&self) -> bool {
        self.walk.load(Acquire) != DONE
    }

    fn begin_walk(&self) {
        // Acquire: see `owe_walk`. What is owed from here on, this walk may miss.
        self.walk.swap(WALKING, AcqRel);
        // The walk sees all records of which these are, so none is forgotten; and those of records that are gone go.
        self.shards.iter().for_each(|shard| *shard.lock() = Queue::new());
    }

    fn end_walk(&self, whole: bool) {
        match whole {
            // Unless another is owed by now.
            true => drop(self.walk.compare_exchange(WALKING, DONE, AcqRel, Relaxed)),
            false => self.owe_walk(),
        }
    }
}

/// Keys that were taken out, to be looked at. Those that are left when it is dropped are put back.
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
    /// Removes the records of all maps in the file that are expired or flushed; returns how many. Other operations may go on
    /// meanwhile; a sweep, a compaction or a check has to end first, so the calling thread must not hold a
    /// [`Reader`](crate::Reader). O(n): looks at every record, where [`purge_if_due`](Evermap::purge_if_due) does so only if
    /// it has to.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// map.touch(b"key", 1)?;
    /// map.purge()?;
    /// assert_eq!(map.len().value, 0);
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

    /// Removes the records of all maps in the file that have expired, and, if a walk is owed, what it finds; returns how
    /// many. Without a walk the cost is proportional to what has expired. [`Evermap`](crate::Evermap) calls it in the
    /// background, every second or as often as other maintenance lets it.
    ///
    /// ```
    /// use evermap::{Clock, Evermap, Meta, Options};
    /// let clock = Clock::manual(1_000);
    /// let map = Evermap::in_memory(Options::new().clock(clock.clone()))?.default_map();
    /// map.put_with(b"session", b"alice", Meta::new().with_expiry(1_060))?;
    /// assert_eq!(map.purge_if_due()?, 0);
    /// clock.set(1_060);
    /// assert_eq!(map.purge_if_due()?, 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GuardHeld`], and see [`Map`].
    pub fn purge_if_due(&self) -> Result<u64> {
        // Whether a walk is due must not decide over what the caller may hold.
        self.ensure_no_guard("purge_if_due")?;
        if self.is_walk_due() { self.purge() } else { self.purge_expired() }
    }

    /// Whether only a walk finds what may be dead in some map.
    pub(crate) fn is_walk_due(&self) -> bool {
        let now = u64::from(self.file.clock.now());
        // The next operation on the map is going to flush it, but there may be none.
        let is_flush_due = |map: &Map<M>| map.inner.flush.due().is_some_and(|due| due <= now);
        let is_due = |map: &Map<M>| map.inner.expiries.is_walk_due() || is_flush_due(map);
        !self.file.maintenance.looked.load(Acquire) || self.open_maps().iter().any(is_due)
    }

    /// When the next record can expire; nothing if none does. 0: it is not known yet.
    pub(crate) fn next_expiry(&self) -> Option<u32> {
        if self.is_walk_due() {
            return Some(0);
        }
        self.open_maps().iter().filter_map(|store| store.inner.expiries.first()).min()
    }

    /// Removes what is known to have expired in any map that is open.
    pub(crate) fn purge_expired(&self) -> Result<u64> {
        self.file.ensure_writable()?;
        let (held, mut purged) = (self.file.clock.held(), 0);
        for store in self.open_maps() {
            // Beginning an operation carries out a flush that is due.
            match store.enter().map(drop).and_then(|()| store.remove_expired(u64::MAX)) {
                Ok(removed) => purged += removed,
                Err(Error::Dropped { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.release_time(held);
        Ok(purged)
    }

    /// Lets time go back to what the clock shows, if it was held at `held` and all that had expired by then is removed.
    fn release_time(&self, held: Option<u32>) {
        if let Some(held) =
            held.filter(|_| !self.is_walk_due() && !self.file.maintenance.is_stopping())
        {
            self.file.clock.release(held);
        }
    }

    /// Walks through all maps. The caller holds off whatever must not come in between.
    pub(crate) fn walk_maps(&self, _sweeping: &MutexGuard<'_, ()>) -> Result<u64> {
        let (file, held, mut purged) = (&self.file, self.file.clock.held(), 0);
        file.maintenance.purges.fetch_add(1, Relaxed);
        // In a map that cannot be opened there is nothing that could be removed.
        for store in self.all_maps()?.0 {
            // A flush that is due comes before the walk, so that no other is owed because of it.
            let walked = store.enter().map(drop).and_then(|()| {
                store.inner.expiries.begin_walk();
                store.walk(&mut purged)
            });
            store.inner.expiries.end_walk(matches!(walked, Ok(true)));
            match walked {
                Ok(true) | Err(Error::Dropped { .. }) => {}
                Ok(false) => return Ok(purged),
                Err(error) => return Err(error),
            }
        }
        // Release: whoever sees this sees what each map knows.
        file.maintenance.looked.store(true, Release);
        file.maintenance.has_purged();
        self.release_time(held);
        Ok(purged)
    }
}

impl<M: Medium> Map<M> {
    /// Removes what is known to have expired in this map: `most` records, or little more; returns how many.
    pub(crate) fn remove_expired(&self, most: u64) -> Result<u64> {
        let (expiries, counters) = (&self.inner.expiries, &self.inner.counters);
        if expiries.first().is_none_or(|first| first > self.db.file.clock.now()) {
            return Ok(0);
        }
        let mut purged = 0;
        while purged < most && !self.db.file.maintenance.is_stopping() {
            // Anew for each few, so that a mutation that needs room waits for those only, and they are reused soon.
            let (_turn, guard) = (expiries.turn(), self.enter()?);
            let keys = expiries.take(self.db.file.clock.now());
            let mut due_keys = DueKeys { expiries, counters, keys };
            if due_keys.keys.is_empty() {
                break;
            }
            purged += self.look_at(&mut due_keys, &guard)?;
        }
        Ok(purged)
    }

    /// Looks at keys that are due; returns how many of them it removed.
    fn look_at(&self, due_keys: &mut DueKeys<'_>, guard: &Guard<'_>) -> Result<u64> {
        let (index, m) = (&self.inner.index, self.db.file.pool.medium());
        let key_of = |due: &Due| BytesRef::any(due.hash());
        due_keys.keys.iter().for_each(|due| index.prefetch_bucket(key_of(due)));
        let mut words = Vec::with_capacity(due_keys.keys.len());
        for due in &due_keys.keys {
            // In a part of the index that cannot be read there is nothing that could be removed.
            let word =
                unless_damaged(index.get(key_of(due), guard).map_err(Error::from))?.flatten();
            word.iter().for_each(|word| m.prefetch(word & OFFSET_MASK));
            words.push(word);
        }
        let (mark, mut purged) = (self.inner.flush.mark(), 0);
        while let Some(word) = words.pop() {
            if let (Some(due), Some(word)) = (due_keys.keys.last(), word) {
                purged += u64::from(self.look_at_one(due.hash(), word, mark, guard)?);
            }
            due_keys.keys.pop();
        }
        Ok(purged)
    }

    /// Removes what a key is bound to if it is dead, given what a look has shown; returns whether it did. What lives becomes due
    /// at its expiry.
    fn look_at_one(&self, hash: u64, word: u64, mark: u64, guard: &Guard<'_>) -> Result<bool> {
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

    /// Removes what the key of `record` is bound to, if it is dead.
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
            self.db.file.maintenance.purged.fetch_add(1, Relaxed);
        } else {
            self.expect(key.hash, expires_at);
        }
        Ok(change.removed())
    }

    /// Makes the key with this hash due at its expiry, if it has one.
    fn expect(&self, hash: u64, expires_at: Option<u32>) {
        if let Some(at) = expires_at.filter(|&at| at != 0) {
            self.inner.expiries.expect(at, hash, &self.inner.counters);
        }
    }

    /// The same for a key whose record, which expired at `before`, has given way to one that expires at `now`.
    #[inline]
    pub(crate) fn expect_instead(&self, hash: u64, before: Option<u32>, now: Option<u32>) {
        // Due already if the one before expires no later: see the module.
        if now.is_some_and(|now| before.is_none_or(|before| before == 0 || before > now)) {
            self.expect(hash, now);
        }
    }

    /// Walks through this map, and adds to `purged` how many records it removes; returns whether it came to the end.
    fn walk(&self, purged: &mut u64) -> Result<bool> {
        let mut walk = Walk::new(self);
        let mut pairs = Vec::new();
        while let Some(guard) = walk.next(&mut pairs)? {
            // A segment that cannot be read has nothing that could be removed.
            let _ = walk.take_error();
            pairs
                .iter()
                .for_each(|(_, word)| self.db.file.pool.medium().prefetch(word & OFFSET_MASK));
            let (mark, before) = (self.inner.flush.mark(), *purged);
            for &(hash, word) in &pairs {
                *purged += u64::from(self.look_at_one(hash, word, mark, &guard)?);
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

/// Nothing instead of damage: the rest goes on without.
fn unless_damaged<T>(found: Result<T>) -> Result<Option<T>> {
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
    fn what_was_taken_and_not_looked_at_is_put_back() {
        let (expiries, counters) = (Expiries::new(true), counters(3));
        (0..3).for_each(|hash| expiries.expect(5, hash, &counters));
        let mut due_keys =
            DueKeys { expiries: &expiries, counters: &counters, keys: expiries.take(5) };
        assert_eq!((due_keys.keys.len(), expiries.first()), (3, None));
        due_keys.keys.pop();
        drop(due_keys);
        assert_eq!(expiries.take(5).len(), 2);
    }

    /// Keys that are written and removed for ever, long before they expire: memory has an end.
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
