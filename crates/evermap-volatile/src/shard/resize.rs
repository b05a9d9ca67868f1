//! Replacing the table of a shard, a few buckets at a time.

use std::alloc::{Layout, handle_alloc_error};
use std::hash::{BuildHasher, Hash};

use evermap_pm::Guard;

use super::{GROW_AT, Id, Shard, State};
use crate::bucket::Bucket;
use crate::hashing::{Hashing, Place, have_same_split_bits};
#[cfg(test)]
use crate::mistakes::Mistake;
use crate::table::{BITS_MAX, NewTable, Table, prefetch};

/// The mean number of entries in a bucket below which a table shrinks to half.
const SHRINK_BELOW: usize = 2;
/// The number of buckets that each write moves while a table is being replaced.
const MOVED: usize = 4;

impl<K, V> Shard<K, V> {
    /// Creates a small table instead of the empty one. The caller holds the lock.
    pub(super) fn create_table(&self, state: &mut State<K, V>, guard: &Guard<'_>) {
        self.replace_table(state, state.bits_min, None, guard);
        if self.table(guard).is_empty_table() {
            handle_alloc_error(Layout::new::<Bucket>());
        }
    }

    /// Starts to replace the table by one with hashes that depend on another seed, unless that has
    /// just been done. The caller holds the lock.
    #[cold]
    pub(super) fn reseed(&self, state: &mut State<K, V>, guard: &Guard<'_>) {
        if state.next_memory.is_none() {
            // A hasher may give all keys the same hash whatever the seed is. Then this is done once
            // for each doubling, which costs O(1) for each entry.
            state.reseed_from = self.len() * 2;
            let seed = std::hash::RandomState::new().hash_one(self.len());
            self.replace_table(state, self.table(guard).bits(), Some(seed), guard);
        }
    }

    /// Starts to replace the table by a smaller one, if it has few entries. The caller holds the
    /// lock.
    pub(super) fn shrink_if_sparse(&self, state: &mut State<K, V>, guard: &Guard<'_>) {
        let table = self.table(guard);
        if table.bits() > state.bits_min.max(1) && self.len() < table.buckets() * SHRINK_BELOW {
            self.replace_table(state, table.bits() - 1, table.seed(), guard);
        }
    }

    /// Starts to replace the table, unless it is already being replaced, or there is no memory:
    /// then chains become longer, and the next write tries again. The caller holds the lock.
    pub(super) fn replace_table(
        &self,
        state: &mut State<K, V>,
        bits: u32,
        seed: Option<u64>,
        guard: &Guard<'_>,
    ) {
        if state.next_memory.is_some() {
            return;
        }
        let Some(new) = NewTable::new(bits, seed) else { return };
        // SAFETY: the table is published, and freed a grace period after it was replaced.
        let next = unsafe { new.table() };
        let table = self.table(guard);
        if table.is_empty_table() {
            self.table.store(next);
            state.memory = Some(new.memory);
        } else {
            table.set_next(next);
            (state.next_memory, state.moved) = (Some(new.memory), 0);
        }
    }

    /// Moves a few buckets if the table is being replaced, or frees a part of an old table. The
    /// caller holds the lock.
    #[inline]
    pub(super) fn move_some<S>(
        &self,
        state: &mut State<K, V>,
        hashing: &Hashing<S>,
        guard: &Guard<'_>,
    ) where
        K: Hash,
        S: BuildHasher,
    {
        if state.next_memory.is_some() {
            self.move_buckets(state, MOVED, hashing, guard);
        } else {
            state.garbage.free_some(guard.domain());
        }
    }

    /// Moves at least `count` buckets to the next table, or as many as are left. The caller holds
    /// the lock.
    pub(super) fn move_buckets<S>(
        &self,
        state: &mut State<K, V>,
        count: usize,
        hashing: &Hashing<S>,
        guard: &Guard<'_>,
    ) where
        K: Hash,
        S: BuildHasher,
    {
        let table = self.table(guard);
        let next = table.next().expect("the caller has seen it");
        // Buckets that become one are moved together, so that readers who come from any of them
        // find everything there.
        let ratio = 1 << table.bits().saturating_sub(next.bits());
        #[cfg(test)]
        let (count, ratio) =
            if self.errs(Mistake::ForwardsHalfOfAPair) { (1, 1) } else { (count, ratio) };
        let end = table.buckets().min(state.moved + count.next_multiple_of(ratio));
        // Together, before the first of them is waited for.
        for index in state.moved..end {
            let first = index << next.bits() >> table.bits();
            let last = ((index + 1) << next.bits() >> table.bits()).max(first + 1);
            (first..last).for_each(|index| prefetch(next.bucket_at(index)));
        }
        let mut moving = std::mem::take(&mut state.moving);
        moving.clear();
        (state.moved..end).for_each(|index| self.gather(table, index, &mut moving, guard));
        let known = table.seed() == next.seed() && have_same_split_bits(table.bits(), next.bits());
        if !known {
            moving.iter().for_each(|&(_, id)| prefetch(self.entries.at(id)));
            // Hashes come from a caller's code, which may panic. Nothing has changed so far.
            for (place, id) in &mut moving {
                *place = hashing.place_of(&self.entry(*id, guard).key, next.seed());
            }
        }
        #[cfg(test)]
        if self.errs(Mistake::ForwardsBeforeCopying) {
            (state.moved..end).for_each(|index| table.bucket_at(index).forward());
        }
        for &(place, id) in &moving {
            self.link(state, next, place, id, guard);
        }
        state.moving = moving;
        for index in state.moved..end {
            let bucket = table.bucket_at(index);
            bucket.forward();
            self.retire_chain(state, bucket, guard);
        }
        state.moved = end;
        // For the next write, which moves them.
        (end..table.buckets().min(end + MOVED)).for_each(|at| prefetch(table.bucket_at(at)));
        if end == table.buckets() {
            self.table.store(next);
            let new = state.next_memory.take();
            let old = std::mem::replace(&mut state.memory, new).expect("not the empty table");
            state.garbage.retire_table(old, guard.domain());
            state.resizes += 1;
        }
    }

    /// Adds the entries of a chain to `moving`, with what is known there of their places. The
    /// caller holds the lock.
    fn gather(
        &self,
        table: Table<'_>,
        index: usize,
        moving: &mut Vec<(Place, Id)>,
        guard: &Guard<'_>,
    ) {
        let mut bucket = table.bucket_at(index);
        loop {
            let words = bucket.load();
            for slot in words.used() {
                let Some(id) = bucket.reference(slot) else { continue };
                let (split, tag) = (bucket.split(slot), words.tag(slot));
                moving.push((Place::in_bucket(index, table.bits(), split, tag), id));
            }
            match words.overflow() {
                Some(id) => bucket = self.overflow_bucket(id, guard),
                None => return,
            }
        }
    }

    /// Retires the overflow buckets of a chain that was moved. They stay as they are until no
    /// reader can use them. The caller holds the lock.
    fn retire_chain(&self, state: &mut State<K, V>, first: &Bucket, guard: &Guard<'_>) {
        let mut next = first.load().overflow();
        while let Some(id) = next {
            next = self.overflow_bucket(id, guard).load().overflow();
            state.garbage.retire_overflow(id);
        }
    }

    /// Completes the replacement of the table, if there is one. Other writers can use the shard in
    /// the meantime.
    pub(crate) fn finish<S>(&self, hashing: &Hashing<S>, guard: &Guard<'_>)
    where
        K: Hash,
        S: BuildHasher,
    {
        loop {
            let mut state = self.lock();
            if state.next_memory.is_none() {
                return;
            }
            self.move_buckets(&mut state, MOVED, hashing, guard);
        }
    }

    /// Makes the table large enough for `entries` entries. It does not become smaller than that
    /// before [`shrink_to_fit`](Self::shrink_to_fit) is called.
    pub(crate) fn reserve<S>(&self, entries: usize, hashing: &Hashing<S>, guard: &Guard<'_>)
    where
        K: Hash,
        S: BuildHasher,
    {
        let bits = bits_for(entries);
        self.finish(hashing, guard);
        let mut state = self.lock();
        state.bits_min = state.bits_min.max(bits);
        let table = self.table(guard);
        if table.bits() < bits || table.is_empty_table() {
            self.replace_table(&mut state, bits, table.seed(), guard);
            drop(state);
            self.finish(hashing, guard);
        }
    }

    /// Makes the table as small as its entries allow, and frees what nobody uses any more.
    pub(crate) fn shrink_to_fit<S>(&self, hashing: &Hashing<S>, guard: &Guard<'_>)
    where
        K: Hash,
        S: BuildHasher,
    {
        /// The base-2 logarithm of the largest number of buckets that become one.
        const BITS_AT_ONCE: u32 = 4;
        loop {
            self.finish(hashing, guard);
            let mut state = self.lock();
            state.bits_min = 0;
            let (table, bits) = (self.table(guard), bits_for(self.len()));
            if table.bits() <= bits {
                return;
            }
            let bits = bits.max(table.bits().saturating_sub(BITS_AT_ONCE));
            self.replace_table(&mut state, bits, table.seed(), guard);
            if state.next_memory.is_none() {
                // There is no memory for it.
                return;
            }
        }
    }
}

/// Returns the number of bits of the smallest table that holds this number of entries.
fn bits_for(entries: usize) -> u32 {
    let buckets = entries.div_ceil(GROW_AT).max(2);
    buckets.checked_next_power_of_two().map_or(BITS_MAX, |buckets| buckets.ilog2()).min(BITS_MAX)
}
