//! A shard: a table that grows and shrinks, and its entries.
//!
//! Readers load the pointer to the table, then a bucket, then the entries whose tags match. Writers
//! hold the lock of the shard. Every change is one store: of a tag, which adds or removes an entry;
//! or of a reference, which replaces one.
//!
//! While the table is being replaced by another one, each write moves a few buckets: their slots
//! are copied into the new table, then the old bucket is marked as forwarded, and does not change
//! any more. Who finds a forwarded bucket continues in the new table. When all buckets are
//! forwarded, the new table is published, and the old one freed after a grace period. New tables
//! may have more buckets or fewer, or place keys by hashes with another seed.

use std::alloc::{Layout, handle_alloc_error};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::mem::needs_drop;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Domain, Guard};

use crate::bucket::{Bucket, ENTRY_LIMIT, OVERFLOW_LIMIT, SLOTS, Words};
use crate::garbage::{Batch, Garbage};
use crate::hashing::{Hashing, Place};
use crate::memory::Memory;
#[cfg(test)]
use crate::mistakes::Mistake;
use crate::order::reversed;
use crate::slab::{Id, Places, Slab, non_null};
use crate::step;
use crate::table::{Table, TablePtr};

#[cfg(test)]
mod check;
mod resize;
mod walk;

pub(crate) use walk::Cursor;

/// The mean number of entries in a bucket at which a table grows.
pub(crate) const GROW_AT: usize = 10;
/// A chain that has this many entries shows that keys are not distributed by their hashes. By
/// chance, less than one bucket in 10^20 has that many.
const CHAIN_MAX: usize = 64;
/// Entries of a slab without entries are given back to the system if they take more bytes.
const EMPTY_BYTES: usize = 64 << 10;

/// A pair, which is immutable and does not move while it can be found.
pub(crate) struct Entry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
}

/// What to do with a key.
pub(crate) enum Decision<V> {
    /// Leave it as it is.
    Keep,
    /// Bind it to this value.
    Put(V),
    /// Unbind it.
    Remove,
}

/// A key that is to be changed.
pub(crate) enum Subject<'k, K, Q: ?Sized> {
    /// One that can be stored.
    Owned(K),
    /// One that can only be compared, and so cannot be bound to a value.
    Borrowed(&'k Q),
}

impl<K: Borrow<Q>, Q: ?Sized> Subject<'_, K, Q> {
    fn key(&self) -> &Q {
        match self {
            Subject::Owned(key) => key.borrow(),
            Subject::Borrowed(key) => key,
        }
    }

    /// Returns the key if it can be stored.
    fn into_owned(self) -> Option<K> {
        match self {
            Subject::Owned(key) => Some(key),
            Subject::Borrowed(_) => None,
        }
    }
}

/// The entry of a key before and after a change.
pub(crate) struct Change<'g, K, V> {
    pub(crate) old: Option<&'g Entry<K, V>>,
    pub(crate) new: Option<&'g Entry<K, V>>,
    /// The key that was passed, if it could be stored and was not.
    pub(crate) key: Option<K>,
}

/// See the [module](self).
#[repr(align(128))]
pub(crate) struct Shard<K, V> {
    table: TablePtr,
    /// The number of entries. Changed only by the holder of the lock.
    len: AtomicUsize,
    entries: Slab<Entry<K, V>>,
    overflow: Slab<Bucket>,
    state: Mutex<State<K, V>>,
    #[cfg(test)]
    pub(crate) mistake: Option<Mistake>,
}

// SAFETY: it owns its entries; who has it can reach and drop them on another thread.
unsafe impl<K: Send, V: Send> Send for Shard<K, V> {}
// SAFETY: with `&Shard`, a thread can read the entries (`Sync`), and add entries that another
// thread drops (`Send`). Everything else is atomic or protected by the lock.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Shard<K, V> {}

/// What only the holder of the lock uses.
struct State<K, V> {
    /// The memory of the table, unless it is the empty one, and of its successor.
    memory: Option<Memory>,
    next_memory: Option<Memory>,
    /// The number of buckets that were moved to the successor.
    moved: usize,
    /// The number of bits below which the table does not shrink.
    bits_min: u32,
    /// The number of entries from which on the table may be seeded anew.
    reseed_from: usize,
    entries: Places<Entry<K, V>>,
    overflow: Places<Bucket>,
    garbage: Garbage,
    /// The entries of the buckets that are being moved, with what is known of their places.
    moving: Vec<(Place, Id)>,
    /// The number of tables that were replaced.
    resizes: usize,
}

/// Where a key was found, or where it can be added.
struct Spot<'t> {
    /// The first bucket of the chain.
    first: &'t Bucket,
    bucket: &'t Bucket,
    /// `None` if an overflow bucket has to be appended to this one.
    slot: Option<usize>,
    found: Option<Id>,
    /// The number of entries that the chain has, at most.
    chain: usize,
}

impl<K, V> Shard<K, V> {
    pub(crate) fn new() -> Self {
        Shard {
            table: TablePtr::empty(),
            len: AtomicUsize::new(0),
            entries: Slab::new(),
            overflow: Slab::new(),
            state: Mutex::ranked(
                Rank::Shard,
                State {
                    memory: None,
                    next_memory: None,
                    moved: 0,
                    bits_min: 0,
                    reseed_from: 0,
                    entries: Places::new(),
                    overflow: Places::new(),
                    garbage: Garbage::new(size_of::<Entry<K, V>>(), needs_drop::<Entry<K, V>>()),
                    moving: Vec::new(),
                    resizes: 0,
                },
            ),
            #[cfg(test)]
            mistake: None,
        }
    }

    /// Returns `true` if a test plants this mistake.
    #[cfg(test)]
    fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Reclaims an entry at once if the test plants that mistake.
    #[cfg(test)]
    fn err_in_reclaiming(&self, retired: Option<Id>) {
        if retired.is_some() && self.errs(Mistake::FreesWithoutGracePeriod) {
            let entries = self.lock().garbage.take_entries();
            let batch = Batch { entries, overflow: Vec::new() };
            Reclaim { shard: self, batch, dropped: 0 }.drop_entries();
        }
    }

    /// Returns the number of entries.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a count says nothing about the entries.
        self.len.load(Relaxed)
    }

    /// Returns the current table.
    #[inline(always)]
    fn table<'g>(&'g self, _guard: &'g Guard<'_>) -> Table<'g> {
        // SAFETY: a table is freed a grace period after it was replaced, and so not while a guard
        // lives that was created before.
        unsafe { self.table.load_set() }
    }

    /// Locks the shard. A panic of a caller's code under the lock leaves it consistent: this code
    /// is executed before anything is changed.
    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entry with this id.
    #[inline(always)]
    fn entry<'g>(&'g self, id: Id, _guard: &'g Guard<'_>) -> &'g Entry<K, V> {
        // SAFETY: the id was in a slot while the guard lived, so the entry was written before the
        // id, and is not dropped before a grace period has passed since the id was removed.
        unsafe { non_null(self.entries.at(id)).as_ref() }
    }

    /// Returns the overflow bucket with this id.
    #[inline(always)]
    fn overflow_bucket<'g>(&'g self, id: Id, _guard: &'g Guard<'_>) -> &'g Bucket {
        // SAFETY: the id was in a bucket while the guard lived. So the overflow bucket was
        // initialised before, and its memory is not freed before a grace period has passed.
        unsafe { non_null(self.overflow.at(id)).as_ref() }
    }

    /// Prefetches the bucket in which a search for this hash begins.
    #[inline(always)]
    pub(crate) fn prefetch<S>(&self, hash: u64, hashing: &Hashing<S>, guard: &Guard<'_>) {
        self.table(guard).prefetch(hashing.place(hash).prefix());
    }

    /// Returns the place of a key in a table.
    #[inline(always)]
    fn place<Q, S>(&self, key: &Q, hash: u64, table: Table<'_>, hashing: &Hashing<S>) -> Place
    where
        Q: Hash + ?Sized,
        S: BuildHasher,
    {
        // Returns a number and not a place, so that the caller's place stays in registers.
        #[cold]
        #[inline(never)]
        fn seeded_hash<Q, S>(key: &Q, table: Table<'_>, hashing: &Hashing<S>) -> u64
        where
            Q: Hash + ?Sized,
            S: BuildHasher,
        {
            hashing.seeded_hash(key, table.seed())
        }
        hashing.place(if table.is_seeded() { seeded_hash(key, table, hashing) } else { hash })
    }

    /// Returns the entry of a key. Wait-free: the number of steps is bounded by the length of a
    /// chain, and the number of times that the table is replaced meanwhile.
    #[inline(always)]
    pub(crate) fn get<'g, Q, S>(
        &'g self,
        key: &Q,
        hash: u64,
        hashing: &Hashing<S>,
        guard: &'g Guard<'_>,
    ) -> Option<&'g Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        S: BuildHasher,
    {
        // SAFETY: see `entry`.
        self.look_up(key, hash, hashing, guard).map(|entry| unsafe { entry.as_ref() })
    }

    #[inline(always)]
    fn look_up<Q, S>(
        &self,
        key: &Q,
        hash: u64,
        hashing: &Hashing<S>,
        guard: &Guard<'_>,
    ) -> Option<NonNull<Entry<K, V>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        S: BuildHasher,
    {
        let mut table = self.table(guard);
        loop {
            let place = self.place(key, hash, table, hashing);
            #[cfg_attr(not(test), allow(unused_mut))]
            let mut bucket = table.bucket(place.prefix());
            #[cfg(test)]
            if self.errs(Mistake::LoadsTheTableTwice) {
                let other = self.table(guard);
                let index = table.index(place.prefix()).min(other.buckets() - 1);
                (table, bucket) = (other, other.bucket_at(index));
            }
            let words = bucket.load();
            if words.is_forwarded() && !self.reads_forwarded_buckets() {
                table = table.next().expect("a forwarded bucket has a next table");
                continue;
            }
            let split = place.split(table.bits());
            if let Some(entry) = self.search(bucket, words, (place, split), key) {
                return Some(entry);
            }
            let overflow = words.overflow_for(place.mark())?;
            return self.search_overflow(overflow, (place, split), key, guard);
        }
    }

    /// Searches the slots of one bucket for a key with this place, and these split bits of it. The
    /// caller has a guard.
    #[inline(always)]
    fn search<Q>(
        &self,
        bucket: &Bucket,
        words: Words,
        (place, split): (Place, u32),
        key: &Q,
    ) -> Option<NonNull<Entry<K, V>>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        for slot in words.matching(place.tag()) {
            if let Some(id) = bucket.reference_if(slot, split) {
                let entry = non_null(self.entries.at(id));
                step();
                // SAFETY: see `entry`.
                if unsafe { entry.as_ref() }.key.borrow() == key {
                    return Some(entry);
                }
            }
        }
        None
    }

    /// Searches a chain from an overflow bucket on. Few lookups come here, and the others are
    /// faster if this is elsewhere.
    #[cold]
    #[inline(never)]
    fn search_overflow<Q>(
        &self,
        mut overflow: Id,
        place: (Place, u32),
        key: &Q,
        guard: &Guard<'_>,
    ) -> Option<NonNull<Entry<K, V>>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        loop {
            let bucket = self.overflow_bucket(overflow, guard);
            let words = bucket.load();
            if let Some(entry) = self.search(bucket, words, place, key) {
                return Some(entry);
            }
            overflow = words.overflow()?;
        }
    }

    /// Returns `true` if the mistake is planted of reading forwarded buckets.
    #[inline(always)]
    fn reads_forwarded_buckets(&self) -> bool {
        #[cfg(test)]
        return self.errs(Mistake::ReadsForwardedBuckets);
        #[cfg(not(test))]
        false
    }

    /// Changes the entry of a key as `decide` says, which is called once, under the lock, with the
    /// current entry. It must not panic, nor use the map, and must not put a value if the key is
    /// only borrowed.
    pub(crate) fn modify<'g, Q, S>(
        &'g self,
        subject: Subject<'_, K, Q>,
        hash: u64,
        hashing: &Hashing<S>,
        guard: &'g Guard<'_>,
        decide: impl FnOnce(Option<&'g Entry<K, V>>) -> Decision<V>,
    ) -> Change<'g, K, V>
    where
        K: Borrow<Q> + Hash,
        Q: Hash + Eq + ?Sized,
        S: BuildHasher,
    {
        self.prefetch(hash, hashing, guard);
        let mut state = self.lock();
        self.move_some(&mut state, hashing, guard);
        let (table, place) = self.newest_table(subject.key(), hash, hashing, guard);
        let spot = self.find(table, place, subject.key(), guard);
        let (found, old) = (spot.found, spot.found.map(|id| self.entry(id, guard)));
        let mut change = Change { old, new: old, key: None };
        let retired = match (decide(old), found) {
            (Decision::Put(value), _) => {
                let key = subject.into_owned().expect("only keys that can be stored are bound");
                let id = self.store(&mut state, Entry { key, value });
                #[cfg(test)]
                if found.is_some() && self.errs(Mistake::ReplacesInTwoSteps) {
                    spot.bucket.free(spot.slot.expect("found there"));
                    let split = place.split(table.bits());
                    spot.bucket.fill(spot.slot.expect("found there"), place.tag(), split, id);
                }
                match found {
                    Some(_) => spot.bucket.replace(spot.slot.expect("found there"), id),
                    None => self.add(&mut state, table, spot, place, id, guard),
                }
                change.new = Some(self.entry(id, guard));
                found
            }
            (Decision::Remove, Some(_)) => {
                spot.bucket.free(spot.slot.expect("found there"));
                self.set_len(self.len() - 1);
                self.shrink_if_sparse(&mut state, guard);
                (change.new, change.key) = (None, subject.into_owned());
                found
            }
            (Decision::Keep, _) | (Decision::Remove, None) => {
                change.key = subject.into_owned();
                None
            }
        };
        let collects = retired.is_some_and(|id| state.garbage.retire(id, guard.domain()));
        drop(state);
        #[cfg(test)]
        self.err_in_reclaiming(retired);
        if collects {
            self.collect(guard.domain());
        }
        change
    }

    /// Returns the table that has the bucket of a key, and the place of the key there. The caller
    /// holds the lock.
    fn newest_table<'g, Q, S>(
        &'g self,
        key: &Q,
        hash: u64,
        hashing: &Hashing<S>,
        guard: &'g Guard<'_>,
    ) -> (Table<'g>, Place)
    where
        Q: Hash + ?Sized,
        S: BuildHasher,
    {
        let table = self.table(guard);
        let place = self.place(key, hash, table, hashing);
        if !table.bucket(place.prefix()).load().is_forwarded() {
            return (table, place);
        }
        let next = table.next().expect("a forwarded bucket has a next table");
        (next, self.place(key, hash, next, hashing))
    }

    /// Finds a key, or where it can be added. The caller holds the lock.
    fn find<'g, Q>(
        &'g self,
        table: Table<'g>,
        place: Place,
        key: &Q,
        guard: &'g Guard<'_>,
    ) -> Spot<'g>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let (first, split) = (table.bucket(place.prefix()), place.split(table.bits()));
        let (mut bucket, mut free, mut chain) = (first, None, 0);
        loop {
            let words = bucket.load();
            for slot in words.matching(place.tag()) {
                let found = bucket.reference_if(slot, split);
                if found.is_some_and(|id| self.entry(id, guard).key.borrow() == key) {
                    return Spot { first, bucket, slot: Some(slot), found, chain };
                }
            }
            free = free.or(words.free().next().map(|slot| (bucket, slot)));
            chain += SLOTS;
            match words.overflow() {
                Some(id) => bucket = self.overflow_bucket(id, guard),
                None => break,
            }
        }
        match free {
            Some((bucket, slot)) => Spot { first, bucket, slot: Some(slot), found: None, chain },
            None => Spot { first, bucket, slot: None, found: None, chain },
        }
    }

    /// Writes an entry to a new place, where nobody can find it yet. The caller holds the lock.
    ///
    /// # Panics
    /// If no id is left.
    fn store(&self, state: &mut State<K, V>, entry: Entry<K, V>) -> Id {
        let Some(id) = state.entries.allocate(&self.entries, ENTRY_LIMIT) else {
            // Unless nearly all ids are in use, the reason is a lack of memory.
            assert!(state.entries.used() < ENTRY_LIMIT as usize / 2, "capacity overflow");
            handle_alloc_error(Layout::new::<Entry<K, V>>());
        };
        // SAFETY: the place was allocated for an entry, and nobody else knows it.
        unsafe { self.entries.at(id).write(entry) };
        id
    }

    /// Adds an entry, whose key is absent, and starts to replace the table if that is necessary.
    /// The caller holds the lock.
    fn add(
        &self,
        state: &mut State<K, V>,
        table: Table<'_>,
        spot: Spot<'_>,
        place: Place,
        id: Id,
        guard: &Guard<'_>,
    ) {
        if table.is_empty_table() {
            self.create_table(state, guard);
            self.link(state, self.table(guard), place, id, guard);
        } else {
            self.link_at(state, table, spot.first, (spot.bucket, spot.slot), place, id);
        }
        self.set_len(self.len() + 1);
        if spot.chain >= CHAIN_MAX && spot.slot.is_none() && self.len() >= state.reseed_from {
            self.reseed(state, guard);
        } else if self.len() > self.table(guard).buckets() * GROW_AT
            || state.overflow.used() > OVERFLOW_LIMIT as usize / 4 * 3
        {
            let bits = self.table(guard).bits() + 1;
            self.replace_table(state, bits, self.table(guard).seed(), guard);
        }
    }

    /// Adds an entry to the chain of a place. The caller holds the lock.
    fn link<'g>(
        &'g self,
        state: &mut State<K, V>,
        table: Table<'g>,
        place: Place,
        id: Id,
        guard: &'g Guard<'_>,
    ) {
        let first = table.bucket(place.prefix());
        let mut bucket = first;
        loop {
            let words = bucket.load();
            let slot = words.free().next();
            match words.overflow() {
                Some(next) if slot.is_none() => bucket = self.overflow_bucket(next, guard),
                _ => return self.link_at(state, table, first, (bucket, slot), place, id),
            }
        }
    }

    /// Adds an entry to a free slot of a chain, or if there is none, to a new overflow bucket after
    /// the last one. The caller holds the lock.
    fn link_at(
        &self,
        state: &mut State<K, V>,
        table: Table<'_>,
        first: &Bucket,
        (bucket, slot): (&Bucket, Option<usize>),
        place: Place,
        id: Id,
    ) {
        let split = place.split(table.bits());
        if let Some(slot) = slot {
            bucket.fill(slot, place.tag(), split, id);
        } else {
            let Some(overflow) = state.overflow.allocate(&self.overflow, OVERFLOW_LIMIT) else {
                handle_alloc_error(Layout::new::<Bucket>());
            };
            // SAFETY: the place was allocated for a bucket, in zeroed memory, and everybody
            // accesses places of this slab as buckets, which consist of atomics.
            let last = unsafe { non_null(self.overflow.at(overflow)).as_ref() };
            last.clear();
            last.fill(0, place.tag(), split, id);
            bucket.append(overflow);
        }
        if slot.is_none() || !ptr::eq(first, bucket) {
            first.mark(place.mark());
        }
    }

    fn set_len(&self, len: usize) {
        // Relaxed: see `len`. Only the holder of the lock stores.
        self.len.store(len, Relaxed);
    }

    /// Frees what was removed or replaced, as far as no guard prevents it.
    pub(crate) fn flush(&self, domain: &Domain) {
        self.lock().garbage.close(domain);
        self.collect(domain);
        loop {
            let more = self.lock().garbage.free_step(domain);
            if !more {
                return;
            }
        }
    }

    /// Drops the entries whose grace period is over. The caller does not hold the lock.
    #[cold]
    fn collect(&self, domain: &Domain) {
        loop {
            let oldest = self.lock().garbage.oldest();
            let Some(period) = oldest.filter(|&period| domain.is_over(period)) else { return };
            let taken = self.lock().garbage.take(period);
            if let Some(batch) = taken {
                Reclaim { shard: self, batch, dropped: 0 }.drop_entries();
            }
        }
    }

    /// Returns what the shard takes and does.
    pub(crate) fn usage(&self, guard: &Guard<'_>) -> Usage {
        let state = self.lock();
        let tables = state.memory.iter().chain(&state.next_memory);
        let memory_waiting = state.garbage.memory_waiting();
        Usage {
            slots: if state.memory.is_some() { self.table(guard).buckets() * SLOTS } else { 0 }
                + state.overflow.used() * SLOTS,
            bytes: tables.map(Memory::bytes).sum::<usize>()
                + state.entries.bytes()
                + state.overflow.bytes()
                + memory_waiting,
            entries_waiting: state.garbage.entries_waiting(),
            memory_waiting,
            is_resizing: state.next_memory.is_some(),
            resizes: state.resizes,
        }
    }

    /// Calls `each` with every entry that can be found.
    fn for_each_id(&mut self, mut each: impl FnMut(&Self, Id)) {
        // SAFETY: tables are freed only by methods of this shard, which is borrowed exclusively.
        let mut table = unsafe { self.table.load() };
        while let Some(current) = table {
            for number in 0..current.buckets() as u64 {
                // As iterators do, because a caller may insert what it takes into another map.
                let index = reversed(number, current.bits()) as usize;
                let mut bucket = Some(current.bucket_at(index));
                if bucket.is_some_and(|bucket| bucket.load().is_forwarded()) {
                    continue;
                }
                while let Some(current) = bucket {
                    let words = current.load();
                    for id in words.used().filter_map(|slot| current.reference(slot)) {
                        each(self, id);
                    }
                    bucket = words.overflow().map(|id| {
                        // SAFETY: as in `overflow_bucket`; no other thread uses the shard.
                        unsafe { non_null(self.overflow.at(id)).as_ref() }
                    });
                }
            }
            table = current.next();
        }
    }

    /// Moves all entries out of the shard, which is empty then.
    pub(crate) fn take_all(&mut self) -> Vec<Entry<K, V>> {
        let mut taken = Vec::with_capacity(self.len());
        self.for_each_id(|shard, id| {
            // SAFETY: it can be found, so it is initialised, and below it becomes unreachable.
            taken.push(unsafe { shard.entries.at(id).read() });
        });
        let mut waiting = std::mem::take(self);
        // What is left are the entries that wait for readers, of which there are none.
        waiting.table = TablePtr::empty();
        taken
    }

    /// Returns the entry of a key, for an owner that has no readers.
    pub(crate) fn get_mut<Q, S>(
        &mut self,
        key: &Q,
        hash: u64,
        hashing: &Hashing<S>,
        guard: &Guard<'_>,
    ) -> Option<&mut Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        S: BuildHasher,
    {
        // SAFETY: the entry can be found, so it is initialised; and the shard is borrowed
        // exclusively, so nobody else has a reference to it.
        self.look_up(key, hash, hashing, guard).map(|mut entry| unsafe { entry.as_mut() })
    }
}

impl<K, V> Default for Shard<K, V> {
    fn default() -> Self {
        Shard::new()
    }
}

impl<K, V> Drop for Shard<K, V> {
    fn drop(&mut self) {
        if !needs_drop::<Entry<K, V>>() {
            return;
        }
        self.for_each_id(|shard, id| {
            // SAFETY: it can be found, so it is initialised, and nobody will find it any more.
            unsafe { shard.entries.at(id).drop_in_place() };
        });
        let waiting = self.lock().garbage.take_entries();
        for id in waiting {
            // SAFETY: as above; and each entry is retired once.
            unsafe { self.entries.at(id).drop_in_place() };
        }
    }
}

/// What a shard takes and does.
pub(crate) struct Usage {
    /// The number of slots of the current table.
    pub(crate) slots: usize,
    /// Bytes of tables and entries, including those that are free or wait.
    pub(crate) bytes: usize,
    /// The number of entries that wait for readers.
    pub(crate) entries_waiting: usize,
    /// Bytes of tables that wait for readers.
    pub(crate) memory_waiting: usize,
    pub(crate) is_resizing: bool,
    /// The number of tables that were replaced.
    pub(crate) resizes: usize,
}

/// A batch whose grace period is over. If dropping an entry panics, the rest is dropped too.
struct Reclaim<'s, K, V> {
    shard: &'s Shard<K, V>,
    batch: Batch,
    dropped: usize,
}

impl<K, V> Reclaim<'_, K, V> {
    fn drop_entries(&mut self) {
        while needs_drop::<Entry<K, V>>() && self.dropped < self.batch.entries.len() {
            let id = self.batch.entries[self.dropped];
            // First, so that no entry is dropped twice.
            self.dropped += 1;
            // SAFETY: an entry is retired once, and no reader has it any more.
            unsafe { self.shard.entries.at(id).drop_in_place() };
        }
    }
}

impl<K, V> Drop for Reclaim<'_, K, V> {
    fn drop(&mut self) {
        self.drop_entries();
        let mut state = self.shard.lock();
        let state = &mut *state;
        for &id in &self.batch.entries {
            // SAFETY: allocated from this slab, retired once, and dropped.
            unsafe { state.entries.free(&self.shard.entries, id) };
        }
        for &id in &self.batch.overflow {
            // SAFETY: as above.
            unsafe { state.overflow.free(&self.shard.overflow, id) };
        }
        state.garbage.put_back(std::mem::take(&mut self.batch));
        state.garbage.add_unused(state.entries.take_blocks(&self.shard.entries, EMPTY_BYTES));
        state.garbage.add_unused(state.overflow.take_blocks(&self.shard.overflow, EMPTY_BYTES));
    }
}
