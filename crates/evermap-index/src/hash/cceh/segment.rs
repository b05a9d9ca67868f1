//! One segment: finding a record, finding room for one, and holding the lock.

use std::sync::atomic::{Ordering, fence};

use evermap_pm::{Medium, Result};

use super::layout::{Header, SLOTS, Segment, Slot};
use super::lock::{Lock, Taking, give_up, leave, try_exclusive, try_shared};
use super::{Cceh, Locking, misplaced};
use crate::Key;
use crate::hash::directory::Found;
use crate::hash::hash_prefix::HashPrefix;
use crate::hash::lock_wait::LockWait;
use crate::hash::probe::Probe;
use crate::hash::segmented::Segmented;
use crate::hash::segmented::waiting::Waiting;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Record {
    pub(super) slot_key: u64,
    pub(super) word: u64,
}

/// What a look at a segment found.
pub(super) enum Look {
    /// The word of the key, if it is there.
    Seen(Option<u64>),
    /// The segment does not serve the key's hash.
    Elsewhere,
    /// Something changed meanwhile: look again.
    Again,
    /// A writer holds the segment.
    Busy,
    /// The segment was not recovered since the region was opened.
    Stale,
}

/// A segment that the calling thread has locked for writing.
#[must_use = "a segment stays locked until it is released"]
pub(crate) struct Held<'a, const B: usize> {
    pub(super) offset: u64,
    pub(super) segment: &'a Segment<B>,
    /// What it serves: does not change while it is locked, but by its holder.
    pub(super) prefix: HashPrefix,
    /// The lock word before it was taken.
    pub(super) lock: Lock,
}

impl<const B: usize> Held<'_, B> {
    /// Releases the segment as it was.
    #[inline(always)]
    pub(super) fn release<M: Medium>(self, m: &M) {
        m.store_transient(&self.segment.header.lock, self.lock.released().0);
    }

    /// Releases the segment after a change that readers must notice.
    #[inline(always)]
    pub(super) fn release_changed<M: Medium>(self, m: &M) {
        m.store_transient(&self.segment.header.lock, self.lock.advanced().0);
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// The bucket where probing for a hash begins.
    #[inline(always)]
    pub(super) fn home_of(hash: u64) -> usize {
        hash as usize % B
    }

    /// The slot key that makes a slot of a segment free.
    #[inline(always)]
    pub(super) fn blank_of(&self, prefix: HashPrefix) -> u64 {
        self.blanks[(prefix.first_hash() >> 63) as usize]
    }

    /// The slots where a record with this hash can be, in the order of probing.
    #[inline(always)]
    fn window(segment: &Segment<B>, hash: u64) -> impl Iterator<Item = (usize, &Slot)> {
        let buckets = (0..P).map(move |step| (Self::home_of(hash) + step) % B);
        buckets.flat_map(|at| segment.buckets[at].slots.iter().map(move |slot| (at, slot)))
    }

    /// The record with the probe's key: its slot and its word.
    ///
    /// A slot with this key belongs there, because the key tells the hash, so it need not be asked.
    /// Without the lock this is a guess, to be validated by the lock's version.
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

    /// The record in a slot of bucket `at`, if what is in there belongs there, and its hash.
    #[inline(always)]
    fn record_in(&self, at: usize, slot: &Slot, prefix: HashPrefix) -> Option<(u64, Record)> {
        let m = self.medium();
        let slot_key = m.load_relaxed(&slot.key);
        // Most free slots are blank, and need no hashing.
        if slot_key == self.blank_of(prefix) {
            return None;
        }
        let hash = K::slot_hash(slot_key, self.core.seed);
        let belongs = prefix.covers(hash) && at.wrapping_sub(Self::home_of(hash)) % B < P;
        belongs.then(|| (hash, Record { slot_key, word: m.load_relaxed(&slot.word) }))
    }

    /// The first free slot for a record with this hash.
    #[inline(always)]
    pub(super) fn free_slot<'a>(&self, held: &Held<'a, B>, hash: u64) -> Option<&'a Slot> {
        Self::window(held.segment, hash)
            .find(|&(at, slot)| self.record_in(at, slot, held.prefix).is_none())
            .map(|(_, slot)| slot)
    }

    /// Hash bits, from the top, that it takes to tell some record in the full window of `hash` from
    /// `hash`.
    pub(super) fn bits_apart(&self, held: &Held<'_, B>, hash: u64) -> u32 {
        let records = Self::window(held.segment, hash)
            .filter_map(|(at, slot)| self.record_in(at, slot, held.prefix));
        let equal = records.map(|(other, _)| (other ^ hash).leading_zeros()).min();
        equal.unwrap_or(0) + 1
    }

    /// Calls `each` with the position and the record of every slot that holds one, in a segment
    /// that the caller holds.
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

    /// Looks for a key, as the index's [`Locking`] says.
    #[inline(always)]
    pub(super) fn look(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> Look {
        match self.locking {
            Locking::Optimistic => self.look_freely(segment, probe),
            Locking::Pessimistic => self.look_locked(segment, probe),
        }
    }

    /// Looks for a key without a lock or a store.
    #[inline(always)]
    fn look_freely(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> Look {
        let m = self.medium();
        let lock = Lock(m.load(&segment.header.lock));
        if !lock.is_readable(self.core.generation) {
            return if lock.is_of(self.core.generation) { Look::Busy } else { Look::Stale };
        }
        let seen = self.see(segment, probe);
        // Acquire: everything read above is read before the lock is read again. A thread that
        // changes anything holds the lock until the change is durable, so an unchanged word means
        // that what was read is durable, too.
        fence(Ordering::Acquire);
        if m.load_relaxed(&segment.header.lock) == lock.0 { seen } else { Look::Again }
    }

    /// Looks for a key while sharing the lock.
    fn look_locked(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> Look {
        let m = self.medium();
        match try_shared(m, &segment.header, self.core.generation) {
            // Recovery resets the lock, so there is nothing to give back.
            Taking::Taken(_) if !self.was_recovered(segment) => Look::Stale,
            Taking::Taken(_) => {
                let seen = self.see(segment, probe);
                leave(m, &segment.header);
                seen
            }
            Taking::Busy => Look::Busy,
            Taking::Stale => Look::Stale,
        }
    }

    #[inline(always)]
    fn see(&self, segment: &Segment<B>, probe: &Probe<'_, K>) -> Look {
        // Records that moved away are still in their slots: only the prefix tells that they do not
        // count.
        let prefix = self.medium().load_relaxed(&segment.header.prefix);
        if HashPrefix::word_covers(prefix, probe.hash) {
            Look::Seen(self.find(segment, probe).map(|(_, word)| word))
        } else {
            Look::Elsewhere
        }
    }

    /// Locks the segment that serves a hash.
    ///
    /// # Errors
    /// `Damaged` if there is none; `Poisoned`.
    #[inline(always)]
    pub(super) fn lock_serving(&self, hash: u64) -> Result<Held<'_, B>> {
        let m = self.medium();
        let found = self.expansion.directory.find(hash);
        let (offset, segment) = (found.segment, self.segment(found.segment)?);
        // Taking the lock holds up all later loads until its line is there.
        for step in 0..P {
            m.prefetch(offset + Self::bucket_offset((Self::home_of(hash) + step) % B));
        }
        let header = &segment.header;
        let Taking::Taken(lock) = try_exclusive(m, header, self.core.generation) else {
            return self.lock_serving_slowly(hash);
        };
        // The common case: no other thread is there, and nothing has changed.
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

    /// Does what [`lock_serving`](Self::lock_serving) does, waiting for a holder or recovering
    /// first.
    #[cold]
    #[inline(never)]
    fn lock_serving_slowly(&self, hash: u64) -> Result<Held<'_, B>> {
        let m = self.medium();
        let mut waiting = Waiting::default();
        loop {
            let found = self.expansion.directory.find(hash);
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

    /// Makes sure that the lock which was taken is the right one, and that no thread reads there
    /// any more. Gives it up where the segment does not serve the hash, or must be recovered first.
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
            // Damage looked like our stamp. Recovery resets the lock, so there is nothing to give
            // up.
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
                // A split changes the directory before anything else.
                let damaged = self.expansion.directory.is_current(m, found);
                give_up(m, header);
                if damaged { Err(misplaced(offset)) } else { Ok(None) }
            }
        }
    }

    /// Waits until the readers have left that were there when the lock was taken; no more come.
    fn wait_for_readers(&self, offset: u64, header: &Header) -> Result<()> {
        let mut patience = LockWait::default();
        while Lock(self.medium().load(&header.lock)).has_readers() {
            if let Err(error) = patience.wait_at(&self.core.region, offset) {
                give_up(self.medium(), header);
                return Err(error);
            }
        }
        Ok(())
    }
}
