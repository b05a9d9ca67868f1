//! One segment: finding records and free slots, and locking.

use std::sync::atomic::{Ordering, fence};

use evermap_index::Key;
use evermap_index::hash::directory::Found;
use evermap_index::hash::hash_prefix::HashPrefix;
use evermap_index::hash::probe::Probe;
use evermap_index::hash::segmented::Segmented;
use evermap_index::hash::segmented::waiting::Waiting;
use evermap_index::lock_wait::LockWait;
use evermap_pm::{Medium, Result};

use super::layout::{Header, SLOTS, Segment, Slot};
use super::lock::{Lock, Taking, give_up, leave, try_exclusive, try_shared};
use super::{Cceh, Locking, misplaced};

/// The contents of a slot that holds a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Record {
    pub(super) slot_key: u64,
    pub(super) word: u64,
}

/// The outcome of a search in a segment.
pub(super) enum SearchResult {
    /// The word of the key, or `None` if the key is absent.
    Seen(Option<u64>),
    /// The segment does not serve the key's hash.
    Elsewhere,
    /// The segment changed meanwhile: the caller searches again.
    Again,
    /// A writer has locked the segment.
    Busy,
    /// The segment was not recovered since the region was opened.
    Stale,
}

/// A segment that the calling thread has locked for writing.
#[must_use = "a segment stays locked until it is released"]
pub struct Held<'a, const B: usize> {
    pub(super) offset: u64,
    pub(super) segment: &'a Segment<B>,
    /// The prefix. Only the holder of the lock changes it.
    pub(super) prefix: HashPrefix,
    /// The lock word before it was taken.
    pub(super) lock: Lock,
}

impl<const B: usize> Held<'_, B> {
    /// Releases the segment, which was not changed.
    #[inline(always)]
    pub(super) fn release<M: Medium>(self, m: &M) {
        m.store_transient(&self.segment.header.lock, self.lock.released().0);
    }

    /// Releases the segment after a change, so that concurrent readers notice the change.
    #[inline(always)]
    pub(super) fn release_changed<M: Medium>(self, m: &M) {
        m.store_transient(&self.segment.header.lock, self.lock.advanced().0);
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Returns the bucket at which probing for a hash begins.
    #[inline(always)]
    pub(super) fn home_of(hash: u64) -> usize {
        hash as usize % B
    }

    /// Returns the slot key that makes a slot of a segment free.
    #[inline(always)]
    pub(super) fn blank_of(&self, prefix: HashPrefix) -> u64 {
        self.blanks[(prefix.first_hash() >> 63) as usize]
    }

    /// Returns the slots in which a record with this hash can be, in the order of probing: its
    /// *window*.
    #[inline(always)]
    fn window(segment: &Segment<B>, hash: u64) -> impl Iterator<Item = (usize, &Slot)> {
        let buckets = (0..P).map(move |step| (Self::home_of(hash) + step) % B);
        buckets.flat_map(|at| segment.buckets[at].slots.iter().map(move |slot| (at, slot)))
    }

    /// Finds the record with the probe's key. Returns its slot and its word.
    ///
    /// Does not check that the key belongs to the slot: equal slot keys have equal hashes, so it
    /// does. If the caller does not hold the lock, it must validate the result by the lock's
    /// version.
    #[inline(always)]
    pub(super) fn find<'a>(
        &self,
        segment: &'a Segment<B>,
        probe: &Probe<'_, K>,
    ) -> Option<(&'a Slot, u64)> {
        let m = self.medium();
        for step in 0..P {
            let bucket = &segment.buckets[(Self::home_of(probe.hash) + step) % B];
            for slot in &bucket.slots {
                if m.load_relaxed(&slot.key) == probe.slot_key {
                    let word = m.load_relaxed(&slot.word);
                    if K::matches(m, word, probe.key) {
                        return Some((slot, word));
                    }
                }
            }
        }
        None
    }

    /// Returns the hash and the record of a slot of bucket `at`. Returns `None` if the slot is
    /// free.
    #[inline(always)]
    fn record_in(&self, at: usize, slot: &Slot, prefix: HashPrefix) -> Option<(u64, Record)> {
        let m = self.medium();
        let slot_key = m.load_relaxed(&slot.key);
        // Most free slots have this key, which need not be hashed.
        if slot_key == self.blank_of(prefix) {
            return None;
        }
        let hash = K::slot_hash(slot_key, self.core.seed);
        let belongs = prefix.covers(hash) && at.wrapping_sub(Self::home_of(hash)) % B < P;
        belongs.then(|| (hash, Record { slot_key, word: m.load_relaxed(&slot.word) }))
    }

    /// Returns the first free slot for a record with this hash.
    #[inline(always)]
    pub(super) fn free_slot<'a>(&self, held: &Held<'a, B>, hash: u64) -> Option<&'a Slot> {
        Self::window(held.segment, hash)
            .find(|&(at, slot)| self.record_in(at, slot, held.prefix).is_none())
            .map(|(_, slot)| slot)
    }

    /// Returns the least number of leading hash bits by which some record in the full window of
    /// `hash` differs from `hash`.
    pub(super) fn bits_apart(&self, held: &Held<'_, B>, hash: u64) -> u32 {
        let records = Self::window(held.segment, hash)
            .filter_map(|(at, slot)| self.record_in(at, slot, held.prefix));
        let equal = records.map(|(other, _)| (other ^ hash).leading_zeros()).min();
        equal.unwrap_or(0) + 1
    }

    /// Calls `each` with the position and the record of every slot that holds a record, in a
    /// segment that the caller has locked.
    pub(super) fn for_each_record(
        &self,
        segment: &Segment<B>,
        prefix: HashPrefix,
        mut each: impl FnMut(usize, Record),
    ) {
        for (at, bucket) in segment.buckets.iter().enumerate() {
            for (i, slot) in bucket.slots.iter().enumerate() {
                if let Some((_, record)) = self.record_in(at, slot, prefix) {
                    each(at * SLOTS + i, record);
                }
            }
        }
    }

    /// Searches for a key, with the index's kind of [`Locking`].
    #[inline(always)]
    pub(super) fn look(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> SearchResult {
        match self.locking {
            Locking::Optimistic => self.look_freely(segment, probe),
            Locking::Pessimistic => self.look_locked(segment, probe),
        }
    }

    /// Searches for a key without taking a lock or storing anything.
    #[inline(always)]
    fn look_freely(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> SearchResult {
        let m = self.medium();
        let lock = Lock(m.load(&segment.header.lock));
        if !lock.is_readable(self.core.generation) {
            return if lock.is_of(self.core.generation) {
                SearchResult::Busy
            } else {
                SearchResult::Stale
            };
        }
        let seen = self.see(segment, probe);
        // Acquire: everything read above is read before the lock is read again. A thread that
        // changes the segment holds the lock until the change is durable. So if the word is
        // unchanged, what was read is also durable.
        fence(Ordering::Acquire);
        if m.load_relaxed(&segment.header.lock) == lock.0 { seen } else { SearchResult::Again }
    }

    /// Searches for a key while sharing the lock.
    fn look_locked(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> SearchResult {
        let m = self.medium();
        match try_shared(m, &segment.header, self.core.generation) {
            // Recovery resets the lock, so it need not be released.
            Taking::Taken(_) if !self.was_recovered(segment) => SearchResult::Stale,
            Taking::Taken(_) => {
                let seen = self.see(segment, probe);
                leave(m, &segment.header);
                seen
            }
            Taking::Busy => SearchResult::Busy,
            Taking::Stale => SearchResult::Stale,
        }
    }

    #[inline(always)]
    fn see(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> SearchResult {
        // Records that were moved are still in their slots: only the prefix shows that they do not
        // belong to this segment any more.
        let prefix = self.medium().load_relaxed(&segment.header.prefix);
        if HashPrefix::word_covers(prefix, probe.hash) {
            SearchResult::Seen(self.find(segment, probe).map(|(_, word)| word))
        } else {
            SearchResult::Elsewhere
        }
    }

    /// Locks the segment that serves a hash.
    ///
    /// # Errors
    /// `Damaged` if there is no such segment; `Poisoned`.
    #[inline(always)]
    pub(super) fn lock_serving(&self, hash: u64) -> Result<Held<'_, B>> {
        let m = self.medium();
        let found = self.map.directory.find(hash);
        let (offset, segment) = (found.segment, self.segment(found.segment)?);
        // No later load begins before the lock is taken, so the buckets are prefetched first.
        for step in 0..P {
            m.prefetch(offset + Self::bucket_offset((Self::home_of(hash) + step) % B));
        }
        let header = &segment.header;
        let Taking::Taken(lock) = try_exclusive(m, header, self.core.generation) else {
            return self.lock_serving_slowly(hash);
        };
        // The common case: there are no readers, and the segment serves the hash.
        let prefix =
            HashPrefix::decode(m.load_relaxed(&header.prefix)).filter(|it| it.covers(hash));
        match prefix {
            Some(prefix) if !lock.has_readers() && self.was_recovered(segment) => {
                Ok(Held { offset, segment, prefix, lock })
            }
            _ => match self.take_over(&found, segment, lock, hash)? {
                Some(held) => Ok(held),
                None => self.lock_serving_slowly(hash),
            },
        }
    }

    /// Does what [`lock_serving`](Self::lock_serving) does, after waiting for another thread or
    /// recovering the segment.
    #[cold]
    #[inline(never)]
    fn lock_serving_slowly(&self, hash: u64) -> Result<Held<'_, B>> {
        let m = self.medium();
        let mut waiting = Waiting::default();
        loop {
            let found = self.map.directory.find(hash);
            let (offset, segment) = (found.segment, self.segment(found.segment)?);
            match try_exclusive(m, &segment.header, self.core.generation) {
                Taking::Taken(lock) => {
                    if let Some(held) = self.take_over(&found, segment, lock, hash)? {
                        return Ok(held);
                    }
                }
                Taking::Busy => waiting.wait(self, segment)?,
                Taking::Stale => waiting.recover(self, offset)?,
            }
        }
    }

    /// Completes locking for writing: waits until there are no readers. Releases the lock, and
    /// returns `None`, if the segment does not serve the hash, or had to be recovered first.
    #[cold]
    fn take_over<'a>(
        &'a self,
        found: &Found<'_>,
        segment: &'a Segment<B>,
        lock: Lock,
        hash: u64,
    ) -> Result<Option<Held<'a, B>>> {
        let (m, offset, header) = (self.medium(), found.segment, &segment.header);
        if !self.was_recovered(segment) {
            // Damage has set the stamp of this opener. Recovery resets the lock, so it need not be
            // released.
            self.recover(offset)?;
            return Ok(None);
        }
        match HashPrefix::decode(m.load_relaxed(&header.prefix))
            .filter(|prefix| prefix.covers(hash))
        {
            Some(prefix) => {
                self.wait_for_readers(offset, header)?;
                Ok(Some(Held { offset, segment, prefix, lock }))
            }
            None => {
                // A split changes the directory before the prefix: if the entry is unchanged, it is
                // damaged.
                let damaged = self.map.directory.is_current(m, found);
                give_up(m, header);
                if damaged { Err(misplaced(offset)) } else { Ok(None) }
            }
        }
    }

    /// Waits until all readers that shared the lock when it was taken have left; no further ones
    /// can enter.
    fn wait_for_readers(&self, offset: u64, header: &Header) -> Result<()> {
        let mut lock_wait = LockWait::default();
        while Lock(self.medium().load(&header.lock)).has_readers() {
            if let Err(error) = lock_wait.wait_at(&self.core.region, offset) {
                give_up(self.medium(), header);
                return Err(error);
            }
        }
        Ok(())
    }
}
