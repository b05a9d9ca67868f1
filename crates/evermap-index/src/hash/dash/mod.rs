//! Dash-EH: extendible hashing for persistent memory.
//!
//! After "Dash: Scalable Hashing on Persistent Memory" (Lu, Hao, Wang, Lo; VLDB 2020). The layout is in
//! [`layout`]; a picture of the whole:
//!
//! ```text
//! root ── directory ─┬─ segment ── 64 buckets of 14 slots, 2 stash buckets (, chain)
//!                    ├─ segment
//!                    └─ ...          top hash bits pick the segment, bits 8..14 the bucket,
//!                                    bits 0..8 are the fingerprint
//! ```
//!
//! What the paper describes is here: fingerprints, balanced insert, displacement, a stash with overflow metadata,
//! optimistic lookups that store nothing, lazy recovery. What differs, and why:
//!
//! * **One version word a lookup.** Every change to a record is made under the lock of its home bucket, so
//!   readers validate that alone, and skip the next bucket when the home bucket's filter says so.
//! * **Home first.** The home bucket is filled to four sevenths before the next one is used.
//! * **Splits are committed by the directory** and never redone. No persistent word names an uncommitted
//!   segment; moved records are cleared after the commit. The paper's protocol needs a state machine and a redo,
//!   in which its code loses data (see `recover`).
//! * **The generation stamp is in the bucket**, next to the lock, so that a lookup learns from the word it reads
//!   anyway whether the segment was recovered.
//! * **Keys with equal hashes** go to a chain behind the stash, instead of doubling the directory for ever.
//! * Merging happens below a quarter of a segment, and builds a new segment rather than changing one.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evermap_pm::region::Region;
use evermap_pm::sync::{Backoff, Mutex};
use evermap_pm::{Error, Guard, Medium, Pool, Result};

use crate::hash::directory::Directory;
use crate::index::{Action, Change, Index, Intent, Persistent, Stats, Visitor};
use crate::{Bytes, Key};

mod bucket;
mod check;
pub mod layout;
mod rebuild;
mod recover;
mod restructure;
mod segment;

use bucket::{
    Belonging, Held, Locking, Probe, Record, find, fingerprint_of, free_slot, matching_slots,
    try_lock,
};
use layout::{Root, Segment, Shape, Version};
use restructure::Split;
use segment::{Kind, Locks, Look, MakeRoom, Place};

/// Shape of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Global depth to begin with: `2^depth` segments of 17 KiB.
    pub initial_depth: u32,
}

impl Default for Config {
    /// Two segments.
    fn default() -> Self {
        Config { initial_depth: 1 }
    }
}

/// Dash-EH over keys `K` in medium `M`, with segments of `B` buckets and `S` stash buckets, using `N` slots of each.
///
/// See the [module](self). The paper's geometry is the default; [`Tiny`] is for tests.
pub struct DashEh<
    K: Key,
    M: Medium,
    const B: usize = 64,
    const S: usize = 2,
    const N: usize = { layout::SLOTS_MAX },
> {
    pool: Arc<Pool<M>>,
    directory: Directory<M>,
    root: u64,
    /// What every operation needs of the pool, close at hand.
    region: Arc<Region<M>>,
    generation: u64,
    seed: u64,
    /// Locks for recovering segments, by offset.
    recovering: Box<[Mutex<()>]>,
    segments: AtomicU64,
    splits: AtomicU64,
    merges: AtomicU64,
    recovered: AtomicU64,
    keys: PhantomData<fn(K) -> K>,
}

/// Segments so small that a handful of keys makes every structural change happen.
pub type Tiny<K, M> = DashEh<K, M, 4, 2, 4>;
/// The geometry of the paper's runs at 90 % load: four stash buckets.
pub type WideStash<K, M> = DashEh<K, M, 64, 4>;
/// For stores: variable-length keys.
pub type DashBytes<M> = DashEh<Bytes, M>;

/// Mistakes that this index carries in itself for tests: see [`Medium::mutant`]. The names are those of `docs/dash.md`.
pub const MUTANTS: &[&str] = &[];

/// Keys looked up together in [`Index::get_many`].
const BATCH: usize = 32;

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> DashEh<K, M, B, S, N> {
    const GEOMETRY_IS_POSSIBLE: () = assert!(
        B.is_power_of_two()
            && B >= 4
            && B <= 64
            && S >= 1
            && S <= 4
            && N >= 2
            && N <= layout::SLOTS_MAX
    );

    /// First word of the root: "DASHEH", key format, geometry.
    fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        let geometry = (B as u64) << 8 | (S as u64) << 4 | N as u64;
        u64::from_le_bytes(*b"DASHEH\0\0") ^ u64::from(K::FORMAT) << 56 ^ geometry << 40
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    /// The pool underneath.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64, directory: Directory<M>, segments: u64) -> Self {
        DashEh {
            region: pool.share_region(),
            generation: pool.generation(),
            seed: pool.seed(),
            recovering: (0..64).map(|_| Mutex::new(())).collect(),
            segments: AtomicU64::new(segments),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            keys: PhantomData,
            pool,
            directory,
            root,
        }
    }

    fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    fn count_split(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    fn count_merge(&self) {
        // An estimate until everything was visited: more may be merged away than it counts.
        let less = |segments: u64| Some(segments.saturating_sub(1));
        let _ = self.segments.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.merges.fetch_add(1, Ordering::Relaxed);
    }

    fn count_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> Waiting<'_, K, M, B, S, N> {
        Waiting { index: self, backoff: Backoff::new(), since: None, recoveries: 0 }
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let found = self.directory.find(m, probe.hash)?;
        match self.look(self.segment(found.segment)?, probe) {
            // No need to look at the directory again: a record that moved away is cleared before its bucket
            // is released.
            Look::Found(word) => Ok(Some(word)),
            // The segment may have been split between the directory and the bucket.
            Look::Absent if self.directory.still(m, &found) => Ok(None),
            _ => self.lookup_again(probe),
        }
    }

    /// The same with every case: buckets that are locked or stale, segments that are split meanwhile.
    #[cold]
    fn lookup_again(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let mut waiting = self.waiting();
        loop {
            let found = self.directory.find(m, probe.hash)?;
            let segment = self.segment(found.segment)?;
            match self.look(segment, probe) {
                Look::Found(word) => return Ok(Some(word)),
                Look::Absent if self.directory.still(m, &found) => return Ok(None),
                Look::Absent | Look::Again => {}
                Look::Busy => waiting.wait(segment)?,
                Look::Stale => waiting.recover(found.segment)?,
            }
        }
    }

    /// Tries to lock the home bucket of a hash, in the segment that serves it.
    #[inline(always)]
    fn try_lock_home(&self, hash: u64, intent: Intent) -> Result<LockingHome<'_, B, S>> {
        let m = self.medium();
        let found = self.directory.find(m, hash)?;
        let (offset, segment) = (found.segment, self.segment(found.segment)?);
        let at = Self::home_of(hash);
        if intent == Intent::MayInsert {
            // One insert in four needs the next bucket, and knows it only when the home bucket is here.
            m.prefetch(offset + Self::bucket_offset(Self::next_of(at)));
        }
        match try_lock(m, &segment.normal[at], self.generation) {
            // As long as one bucket is locked, its segment is neither split nor merged.
            Locking::Held(home) if self.directory.still(m, &found) => {
                Ok(LockingHome::Held(Home { offset, segment, bucket: home }))
            }
            Locking::Held(home) => {
                home.release(m);
                Ok(LockingHome::Moved)
            }
            Locking::Busy => Ok(LockingHome::Busy(segment)),
            Locking::Stale => Ok(LockingHome::Stale(offset)),
        }
    }

    #[inline(always)]
    fn apply(
        &self,
        key: K::Ref<'_>,
        intent: Intent,
        guard: &Guard<'_>,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.region.ensure_writable()?;
        let poison = self.region.poison_on_panic();
        let probe = Probe::new(key, self.seed);
        let operation = Operation { probe: &probe, intent, guard };
        let change = match self.try_lock_home(probe.hash, intent) {
            Ok(LockingHome::Held(home)) => self.apply_at_home(home, operation, &mut decide),
            Ok(_) => self.apply_anywhere(None, operation, &mut decide),
            Err(error) => Err(error),
        };
        poison.disarm();
        change
    }

    /// The common cases, in one short piece: those that concern the home bucket alone.
    #[inline(always)]
    fn apply_at_home(
        &self,
        home: Home<'_, B, S>,
        operation: Operation<'_, '_, K>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, probe) = (self.medium(), operation.probe);
        let bucket = home.bucket.bucket;
        if let Some((slot, old)) = find(m, bucket, probe, Belonging::Native) {
            let place = Place { bucket, slot, word: old, kind: Kind::Home };
            return self.apply_to(place, Locks::default(), home, operation, decide);
        }
        // Nobody moves records of this bucket while it is locked, so the others need not be.
        let absent = !home.bucket.version.may_be_elsewhere(probe.hash)
            || self.find_held(home.segment, &home.bucket, probe).is_none();
        let room = free_slot(bucket::meta_of(m, bucket), Self::HOME_FIRST);
        match (absent, operation.intent, room) {
            (true, Intent::ExistingOnly, _) => {
                home.bucket.release(m);
                Ok(Change::default())
            }
            (true, Intent::MayInsert, Some(slot)) => {
                let Action::Put(word) = decide(None) else {
                    home.bucket.release(m);
                    return Ok(Change::default());
                };
                let record = Record { hash: probe.hash, slot_key: probe.slot_key, word };
                bucket::place(m, bucket, slot, record, false);
                home.bucket.release_changed(m);
                Ok(Change { old: None, new: Some(word) })
            }
            _ => self.apply_anywhere(Some((home, absent)), operation, decide),
        }
    }

    /// Does what `decide` says about a record that was found, and releases the bucket.
    #[inline(always)]
    fn apply_to(
        &self,
        place: Place<'_>,
        locks: Locks<'_>,
        mut home: Home<'_, B, S>,
        operation: Operation<'_, '_, K>,
        decide: &mut (impl FnMut(Option<u64>) -> Action + ?Sized),
    ) -> Result<Change> {
        let m = self.medium();
        let old = Some(place.word);
        match decide(old) {
            Action::Keep => {
                locks.release(m, false);
                home.bucket.release(m);
                Ok(Change { old, new: old })
            }
            Action::Put(word) => {
                bucket::overwrite(m, place.bucket, place.slot, word);
                locks.release(m, true);
                home.bucket.release_changed(m);
                Ok(Change { old, new: Some(word) })
            }
            Action::Remove => {
                let hash = operation.probe.hash;
                self.remove_at(home.segment, &mut home.bucket, hash, &place);
                let emptied = Self::may_be_sparse(m, &home.bucket);
                locks.release(m, true);
                home.bucket.release_changed(m);
                if emptied {
                    self.merge_if_sparse(home.offset, hash, operation.guard)?;
                }
                Ok(Change { old, new: None })
            }
        }
    }

    /// Does what `decide` says about a key, wherever its record is or is to be. The home bucket may be locked
    /// already, and the key known to be absent.
    #[inline(never)]
    fn apply_anywhere(
        &self,
        home: Option<(Home<'_, B, S>, bool)>,
        operation: Operation<'_, '_, K>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let mut chain = None;
        let change = self.apply_again(home, operation, &mut chain, decide);
        if let Some(unused) = chain {
            self.pool.free_unpublished(unused);
        }
        change
    }

    fn apply_again(
        &self,
        mut locked: Option<(Home<'_, B, S>, bool)>,
        operation: Operation<'_, '_, K>,
        chain: &mut Option<u64>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, probe) = (self.medium(), operation.probe);
        let mut waiting = self.waiting();
        loop {
            let (mut home, absent) = match locked.take() {
                Some(locked) => locked,
                None => match self.try_lock_home(probe.hash, operation.intent)? {
                    LockingHome::Held(home) => (home, false),
                    LockingHome::Moved => continue,
                    LockingHome::Busy(segment) => {
                        waiting.wait(segment)?;
                        continue;
                    }
                    LockingHome::Stale(offset) => {
                        waiting.recover(offset)?;
                        continue;
                    }
                },
            };
            let segment = home.segment;
            if !absent && let Some(place) = self.find_held(segment, &home.bucket, probe) {
                match self.lock_for_removal(segment, probe.hash, place.kind)? {
                    Some(locks) => return self.apply_to(place, locks, home, operation, decide),
                    // Holding one lock, we only try others: give way, and begin again.
                    None => {
                        home.bucket.release(m);
                        waiting.wait(segment)?;
                        continue;
                    }
                }
            }
            if operation.intent == Intent::ExistingOnly {
                home.bucket.release(m);
                return Ok(Change::default());
            }
            match self.make_room(segment, &mut home.bucket, probe.hash, chain)? {
                MakeRoom::Room(room) => {
                    let action = decide(None);
                    if let Action::Put(word) = action {
                        let record = Record { hash: probe.hash, slot_key: probe.slot_key, word };
                        self.place_in(segment, &mut home.bucket, &room, record);
                    }
                    // Changed in any case: making room may have moved a record.
                    room.locks.release(m, true);
                    home.bucket.release_changed(m);
                    let new = if let Action::Put(word) = action { Some(word) } else { None };
                    return Ok(Change { old: None, new });
                }
                MakeRoom::Busy => {
                    home.bucket.release(m);
                    waiting.wait(segment)?;
                }
                MakeRoom::Full => {
                    home.bucket.release(m);
                    match self.split(home.offset, probe.hash, operation.guard)? {
                        Split::Done => {}
                        Split::Refused if chain.is_some() => {}
                        Split::Refused => *chain = Some(self.pool.allocate(layout::BUCKET_BYTES)?),
                    }
                }
            }
        }
    }

    /// Whether a removal left its bucket empty: a sign, looked at now and then, that the segment may be sparse.
    fn may_be_sparse(m: &M, home: &Held<'_>) -> bool {
        const ONE_IN: u64 = 8;
        let turn = (home.version.0 >> 33).is_multiple_of(ONE_IN) || B < 64;
        turn && bucket::meta_of(m, home.bucket).count() == 0
    }

    /// Looks up to [`BATCH`] keys up with their cache misses overlapped: first all home buckets are fetched, then
    /// all slots that match, then all keys behind them.
    fn lookup_batch(&self, keys: &[K::Ref<'_>], out: &mut [Option<u64>]) -> Result<()> {
        let m = self.medium();
        let (mut hashes, mut segments) = ([0; BATCH], [0; BATCH]);
        for ((&key, hash), segment) in keys.iter().zip(&mut hashes).zip(&mut segments) {
            *hash = K::hash(key, self.seed);
            *segment = self.directory.find(m, *hash)?.segment;
            // A hint only: whether there is a segment is checked below.
            m.prefetch(segment.wrapping_add(Self::bucket_offset(Self::home_of(*hash))));
        }
        for (&hash, &segment) in hashes.iter().zip(&segments).take(keys.len()) {
            self.prefetch_match(self.segment(segment)?, hash);
        }
        for ((&key, hash), out) in keys.iter().zip(hashes).zip(out) {
            *out = self.lookup(&Probe { key, hash, slot_key: K::slot_key(key, hash) })?;
        }
        Ok(())
    }

    fn bucket_offset(bucket: usize) -> u64 {
        layout::HEADER_BYTES + bucket as u64 * layout::BUCKET_BYTES
    }

    /// Fetches what a look will read after the home bucket's header: the matching slot, or else the next bucket.
    #[inline(always)]
    fn prefetch_match(&self, segment: &Segment<B, S>, hash: u64) {
        let m = self.medium();
        let at = Self::home_of(hash);
        let home = &segment.normal[at];
        let natives = bucket::meta_of(m, home).natives();
        let candidates = matching_slots(m, home, fingerprint_of(hash)) & natives;
        if candidates != 0 {
            let slot = &home.slots[candidates.trailing_zeros() as usize];
            evermap_pm::medium::prefetch(std::ptr::from_ref(slot).cast());
        } else if Version(m.load_relaxed(&home.version)).may_be_next(hash) {
            let next = &segment.normal[Self::next_of(at)];
            evermap_pm::medium::prefetch(std::ptr::from_ref(next).cast());
        }
    }

    /// Visits every segment once, in the order of hashes, with all its buckets locked during `copy`; then calls
    /// `each` with what was copied, without locks but under a guard of its own. `copy` is also told the first
    /// hash that was not visited before: a merge can bring records back that were. Segments that cannot be
    /// read are passed over; the first error is answered at the end.
    fn walk<T>(
        &self,
        mut copy: impl FnMut(u64, &Segment<B, S>, u64) -> T,
        mut each: impl FnMut(T) -> bool,
    ) -> Result<()> {
        let mut cursor = Some(0);
        let mut result = Ok(());
        while let Some(from) = cursor {
            // A segment that is merged away while we wait for it must stay what it is.
            let _guard = self.pool.pin();
            let (copied, next) = self.step(from, &mut copy);
            cursor = next;
            match copied {
                Ok(copied) => {
                    if !each(copied) {
                        break;
                    }
                }
                Err(error) => {
                    self.pool.region().ensure_sound()?;
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// One step of a walk, under a guard of the caller: what `copy` makes of the segment that serves the hash
    /// `from`, and the first hash behind that segment, if there is one.
    fn step<T>(
        &self,
        from: u64,
        copy: &mut impl FnMut(u64, &Segment<B, S>, u64) -> T,
    ) -> (Result<T>, Option<u64>) {
        let behind = |depth: u32| {
            let width = 1u64.checked_shl(64 - depth)?;
            (from / width * width).checked_add(width)
        };
        loop {
            let offset = match self.directory.locate(from) {
                Ok(offset) => offset,
                Err(error) => return (Err(error), behind(self.directory.depth())),
            };
            let locked = self
                .segment(offset)
                .and_then(|segment| Ok(self.lock_all(offset, segment, from)?.then_some(segment)));
            match locked {
                // It was split or merged before we had it: look again.
                Ok(None) => {}
                Ok(Some(segment)) => {
                    let shape = Shape::decode(self.medium().load(&segment.header.shape))
                        .filter(|shape| shape.covers(from));
                    let copied = shape.map(|shape| (copy(offset, segment, from), shape.depth));
                    self.unlock_unchanged(segment);
                    return match copied {
                        Some((copied, depth)) => (Ok(copied), behind(depth)),
                        None => {
                            let what = "a directory entry names a segment of another place";
                            let error = Error::damaged(offset, what);
                            (Err(error), behind(self.directory.depth()))
                        }
                    };
                }
                Err(error) => return (Err(error), behind(self.directory.depth())),
            }
        }
    }

    /// The records of a segment with a hash of `from` or more.
    fn records_from(&self, segment: &Segment<B, S>, from: u64) -> Vec<Record> {
        let mut records = self.all_records(segment);
        records.retain(|record| record.hash >= from);
        records
    }
}

/// A mutation: for which key, and under which guard.
struct Operation<'a, 'k, K: Key> {
    probe: &'a Probe<'k, K>,
    intent: Intent,
    guard: &'a Guard<'a>,
}

impl<K: Key> Clone for Operation<'_, '_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Key> Copy for Operation<'_, '_, K> {}

/// The locked home bucket of a key, and the segment that it is in.
struct Home<'a, const B: usize, const S: usize> {
    offset: u64,
    segment: &'a Segment<B, S>,
    bucket: Held<'a>,
}

/// What an attempt to lock a home bucket found.
enum LockingHome<'a, const B: usize, const S: usize> {
    Held(Home<'a, B, S>),
    /// The directory was changed meanwhile: try again.
    Moved,
    /// Another thread holds it, in this segment.
    Busy(&'a Segment<B, S>),
    /// The segment at this offset was not recovered since the region was opened.
    Stale(u64),
}

/// Waits for a bucket that cannot be used yet, with an eye on why it may never be.
struct Waiting<'a, K: Key, M: Medium, const B: usize, const S: usize, const N: usize> {
    index: &'a DashEh<K, M, B, S, N>,
    backoff: Backoff,
    /// Since when, from the first long wait on.
    since: Option<Instant>,
    recoveries: u32,
}

/// Nobody holds a bucket for so long.
const PATIENCE: Duration = Duration::from_secs(20);

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> Waiting<'_, K, M, B, S, N> {
    /// Waits for a locked bucket.
    #[cold]
    fn wait(&mut self, segment: &Segment<B, S>) -> Result<()> {
        const LONG: u32 = 1024;
        // Its holder may have panicked.
        self.index.pool.region().ensure_sound()?;
        if !self.backoff.wait().is_multiple_of(LONG) {
            return Ok(());
        }
        // Damage can make a lock of nobody's look like one of ours. A segment that nobody has recovered cannot
        // have a holder.
        let m = self.index.medium();
        if m.load(&segment.header.generation) != self.index.generation {
            return self.recover(m.offset_of(segment));
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(());
        }
        // Something has overwritten the lock. Reopening repairs it; until then nobody else is to wait so long.
        drop(self.index.pool.region().poison_on_panic());
        Err(Error::damaged(m.offset_of(segment), "a bucket stays locked"))
    }

    /// Recovers the segment of a stale bucket.
    #[cold]
    fn recover(&mut self, offset: u64) -> Result<()> {
        const MANY: u32 = 100;
        self.recoveries += 1;
        if self.recoveries > MANY {
            let what = "a bucket stays stale though its segment was recovered";
            return Err(Error::damaged(offset, what));
        }
        self.index.recover(offset)
    }
}

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> Index<K>
    for DashEh<K, M, B, S, N>
{
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.seed))
    }

    fn get_many(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        let out = &mut out[..keys.len()];
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.lookup_batch(keys, out)?;
        }
        Ok(())
    }

    fn mutate(
        &self,
        key: K::Ref<'_>,
        intent: Intent,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.apply(key, intent, guard, decide)
    }

    fn insert(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
        self.apply(key, Intent::MayInsert, guard, |old| match old {
            None => Action::Put(word),
            Some(_) => Action::Keep,
        })
    }

    fn update(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
        self.apply(key, Intent::ExistingOnly, guard, |_| Action::Put(word))
    }

    fn upsert(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
        self.apply(key, Intent::MayInsert, guard, |_| Action::Put(word))
    }

    fn remove(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Change> {
        self.apply(key, Intent::ExistingOnly, guard, |_| Action::Remove)
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.walk(
            |_, segment, from| self.records_from(segment, from),
            |records| records.iter().all(|record| each(record.slot_key, record.word)),
        )
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let segment_bytes = size_of::<Segment<B, S>>() as u64;
        let depth = self.directory.depth();
        let mut stats = Stats { depth, pm_bytes: 64 + (8 << depth), ..Default::default() };
        self.walk(
            |_, segment, from| {
                (self.records_from(segment, from).len() as u64, self.chain(segment).count() as u64)
            },
            |(records, chained)| {
                stats.len += records;
                stats.segments += 1;
                stats.capacity += ((B + S) as u64 + chained) * N as u64;
                stats.pm_bytes += segment_bytes + chained * layout::BUCKET_BYTES;
                true
            },
        )?;
        stats.dram_bytes =
            (size_of::<Self>() + self.recovering.len() * size_of::<Mutex<()>>()) as u64;
        stats.splits = self.splits.load(Ordering::Relaxed);
        stats.merges = self.merges.load(Ordering::Relaxed);
        stats.recovered = self.recovered.load(Ordering::Relaxed);
        Ok(stats)
    }
}

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> Persistent<M>
    for DashEh<K, M, B, S, N>
{
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: usize, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        let m = pool.medium();
        let depth = config.initial_depth;
        let size = size_of::<Segment<B, S>>() as u64;
        // Nothing below is reachable until the root slot names it, so an error or a crash forgets it all.
        let block = pool.allocate(size_of::<Root>() as u64)?;
        let segments: Vec<u64> =
            (0..1 << depth).map(|_| pool.allocate_exact(size)).collect::<Result<_>>()?;
        let directory = Directory::create(
            pool.clone(),
            block + std::mem::offset_of!(Root, directory) as u64,
            depth,
            &segments,
        )?;
        let count = segments.len() as u64;
        let index = Self::assemble(pool.clone(), block, directory, count);
        for (pattern, offset) in segments.into_iter().enumerate() {
            let shape = Shape { depth, pattern: pattern as u64 };
            let headers = index.build(offset, shape, std::iter::empty())?;
            index.unlock_all(index.segment(offset)?, &headers);
        }
        let header = m.at::<Root>(block).expect("just allocated");
        m.store(&header.kind, Self::kind());
        m.flush(header);
        m.fence();
        m.store(pool.root(root), block);
        m.persist(pool.root(root));
        Ok(index)
    }

    fn open(pool: Arc<Pool<M>>, root: usize) -> Result<Self> {
        let m = pool.medium();
        let block = m.load(pool.root(root));
        let header = m
            .at::<Root>(block)
            .filter(|_| block != 0)
            .ok_or_else(|| Error::damaged(block, "the root names no index"))?;
        if m.load(&header.kind) != Self::kind() {
            return Err(Error::damaged(block, "the root names another kind of index"));
        }
        let cell = block + std::mem::offset_of!(Root, directory) as u64;
        let directory = Directory::open(pool.clone(), cell)?;
        // Exact once everything has been visited; low until then, which only postpones doubling.
        let estimate = (1u64 << directory.depth()).div_ceil(4);
        let everything = pool.region().must_recover_all();
        let index = Self::assemble(pool, block, directory, estimate);
        if everything {
            // Stamps of an earlier opener could be taken for ours: make none be.
            index.walk_stale()?;
        }
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        {
            // A directory that is replaced meanwhile must stay what it is while the visitor looks at it.
            let _guard = self.pool.pin();
            visitor.block(self.directory.block());
        }
        let mut segments = 0;
        let visited = self.walk(
            |offset, segment, from| {
                (offset, self.chain_blocks(segment), self.records_from(segment, from))
            },
            |(offset, chain, records)| {
                segments += 1;
                visitor.block(offset);
                chain.into_iter().for_each(|block| visitor.block(block));
                records.iter().for_each(|record| visitor.word(record.word));
                true
            },
        );
        if visited.is_ok() {
            self.segments.store(segments, Ordering::Relaxed);
        }
        visited
    }

    /// The unit is a segment, `from` the least hash to show.
    fn scan(
        &self,
        from: u64,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let (records, next) =
            self.step(from, &mut |_, segment, from| self.records_from(segment, from));
        if let Err(poisoned) = self.pool.region().ensure_sound() {
            return (Err(poisoned), None);
        }
        let shown = records.map(|records| {
            records.iter().for_each(|record| each(record.slot_key, record.word));
        });
        (shown, next)
    }

    fn check(&self) -> Vec<String> {
        self.check_everything()
    }
}
