//! Dash: hashing for persistent memory, extendible ([`DashEh`]) and linear ([`DashLh`]).
//!
//! After "Dash: Scalable Hashing on Persistent Memory" (Lu, Hao, Wang, Lo; VLDB 2020). An index is made of
//! segments, whose layout is in [`layout`]; which of them serves a hash, and how their number grows, is what its
//! kinds differ in.
//!
//! ```text
//! segment    64 buckets of 14 slots, 2 stash buckets (, chain)
//! hash       bits 0..8 are the fingerprint, bits 8..14 pick the bucket, higher ones the segment
//! ```
//!
//! What the paper describes is here: fingerprints, balanced insert, displacement, a stash with overflow metadata,
//! optimistic lookups that store nothing, lazy recovery. What differs, and why:
//!
//! * **One version word a lookup.** Every change to a record is made under the lock of its home bucket, so
//!   readers validate that alone, and skip the next bucket when the home bucket's filter says so.
//! * **Home first.** The home bucket is filled nearly up before the next one is used.
//! * **The generation stamp is in the bucket**, next to the lock, so that a lookup learns from the word it reads
//!   anyway whether the segment was recovered.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::medium::prefetch;
use evermap_pm::region::Region;
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, ErrorKind, Guard, Medium, PmU64, Pool, Result};

use crate::hash::changes::changes_by_apply;
use crate::hash::fresh::Fresh;
use crate::hash::hash_prefix::behind;
use crate::hash::patience::Patience;
use crate::hash::probe::Probe;
use crate::hash::root;
use crate::index::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor};
use crate::{Key, record};

mod bucket;
mod check;
mod eh;
mod expansion;
pub mod layout;
mod lh;
mod lock;
mod rebuild;
mod recover;
mod segment;

pub use eh::{DashBytes, DashEh, Extendible, Tiny, WideStash};
pub use lh::{DashLh, Linear, TinyLh};

use bucket::{
    Belonging, Held, Locking, Record, find, fingerprint_of, free_slot, matching_slots, try_lock,
};
use expansion::{Expansion, Found, Split};
use layout::{HashPrefix, Meta, Segment, Slot, Version};
use segment::{Chain, Kind, Locks, Look, MakeRoom, Place};

/// HashPrefix of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `2^depth` segments of 17 KiB to begin with; for Dash-EH this is the global depth. At most 20.
    pub initial_depth: u32,
}

impl Default for Config {
    /// Two segments.
    fn default() -> Self {
        Config { initial_depth: 1 }
    }
}

/// Dash over keys `K` in medium `M` that grows as `E` does, with segments of `B` buckets and `S` stash buckets, using
/// `N` slots of each: what is the same in [`DashEh`] and [`DashLh`].
///
/// See the [module](self).
pub struct Dash<K: Key, M: Medium, E, const B: usize, const S: usize, const N: usize> {
    pool: Arc<Pool<M>>,
    expansion: E,
    root: u64,
    /// What every operation needs of the pool, close at hand.
    region: Arc<Region<M>>,
    generation: u64,
    seed: u64,
    /// Locks for recovering segments, by offset.
    recovering: Box<[Mutex<()>]>,
    splits: AtomicU64,
    recovered: AtomicU64,
    keys: PhantomData<fn(K) -> K>,
}

/// Deepest index to begin with: two to this many segments.
const DEPTH_AT_FIRST: u32 = 20;

/// Mistakes of other implementations that Dash-EH carries in itself for tests: see [`Medium::mutant`]. `docs/dash.md`
/// tells what they are.
pub const EH_MUTANTS: &[&str] = &[
    "DA-1", "DA-2", "DA-3", "DA-4", "DA-5", "DA-6", "DA-7", "DA-8", "DA-9", "DA-10", "DA-11",
    "DA-14", "DA-15", "DA-16",
];

/// Those that the campaigns' workloads meet by chance only, and the tests that notice them.
pub const NOTICED_ELSEWHERE: &[(&str, &str)] = &[
    ("DA-7", "noticed by `a_split_is_not_lost_where_the_directory_doubles`"),
    ("DA-14", "noticed by `p6_no_lookup_misses_a_record_that_moves`, whose threads run freely"),
    ("DA-16", "noticed by `what_decides_over_an_entry_does_not_depend_on_other_recoveries`"),
];

/// Those that Dash-LH shares.
pub const LH_MUTANTS: &[&str] =
    &["DA-1", "DA-2", "DA-6", "DA-8", "DA-9", "DA-10", "DA-11", "DA-14"];

/// Keys looked up together in [`Index::get_many`].
const BATCH: usize = 32;

impl<K, M, E, const B: usize, const S: usize, const N: usize> Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    const GEOMETRY_IS_POSSIBLE: () = assert!(
        B.is_power_of_two()
            && B >= 4
            && B <= 64
            && S >= 1
            && S <= 4
            && N >= 2
            && N <= layout::SLOTS_MAX
    );

    /// First word of the root: the name of this kind of index, key format, geometry.
    fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        let geometry = (B as u64) << 8 | (S as u64) << 4 | N as u64;
        u64::from_le_bytes(E::NAME) ^ u64::from(K::FORMAT) << 56 ^ geometry << 40
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    /// The pool underneath.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64, expansion: E) -> Self {
        Dash {
            region: pool.share_region(),
            generation: pool.generation(),
            seed: pool.seed(),
            recovering: (0..64).map(|_| Mutex::new(())).collect(),
            splits: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            keys: PhantomData,
            pool,
            expansion,
            root,
        }
    }

    fn count_split(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    fn count_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> Waiting<'_, K, M, E, B, S, N> {
        Waiting { index: self, patience: Patience::default(), recoveries: 0 }
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let found = self.expansion.find(m, probe.hash)?;
        match self.look(self.segment(found.segment())?, probe) {
            // No need to look at the directory again: a record that moved away is cleared before its bucket
            // is released.
            Look::Found(word) => Ok(Some(word)),
            // The segment may have been split between the directory and the bucket.
            Look::Absent if self.expansion.still(m, probe.hash, &found) => Ok(None),
            _ => self.lookup_again(probe),
        }
    }

    /// The same with every case: buckets that are locked or stale, segments that are split meanwhile.
    #[cold]
    fn lookup_again(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let mut waiting = self.waiting();
        loop {
            // A lookup splits nothing: it asks the segment where the record is, not where it should be.
            let found = self.expansion.holder(m, probe.hash)?;
            let segment = self.segment(found.segment())?;
            match self.look(segment, probe) {
                Look::Found(word) => return Ok(Some(word)),
                Look::Absent if self.expansion.still(m, probe.hash, &found) => return Ok(None),
                Look::Absent | Look::Again => {}
                Look::Busy => waiting.wait(segment)?,
                Look::Stale => waiting.recover(found.segment())?,
            }
        }
    }

    /// Tries to lock the home bucket of a hash, in the segment that serves it, or where `at_holder` says so the one
    /// that holds its records.
    #[inline(always)]
    fn try_lock_home(
        &self,
        hash: u64,
        mode: MutateMode,
        at_holder: bool,
    ) -> Result<LockingHome<'_, B, S>> {
        let (m, expansion) = (self.medium(), &self.expansion);
        let found = if at_holder { expansion.holder(m, hash) } else { expansion.find(m, hash) }?;
        let (offset, segment) = (found.segment(), self.segment(found.segment())?);
        let at = Self::home_of(hash);
        if mode == MutateMode::MayInsert {
            // One insert in four needs the next bucket, and knows it only when the home bucket is here.
            m.prefetch(offset + Self::bucket_offset(Self::next_of(at)));
            // The line that a new record will most likely go to. Guessed before the lock is asked for: a locked
            // instruction lets nothing after it begin early.
            let meta = Meta(m.load_relaxed(&segment.normal[at].meta));
            let slot = (meta.allocated().trailing_ones() as usize).min(N - 1);
            prefetch(std::ptr::from_ref(&segment.normal[at].slots[slot]).cast());
        }
        match try_lock(m, &segment.normal[at], self.generation) {
            // As long as one bucket is locked, its segment is neither split nor merged.
            Locking::Held(home) if expansion.still(m, hash, &found) => {
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
        mode: MutateMode,
        guard: &Guard<'_>,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.region.ensure_writable()?;
        let poison = self.region.poison_on_panic();
        let probe = Probe::new(key, self.seed);
        let operation = Operation { probe: &probe, mode, guard };
        let change = match self.try_lock_home(probe.hash, mode, false) {
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
        let elsewhere =
            home.bucket.version.may_be_elsewhere(probe.hash) || K::WITHOUT.overflow_metadata;
        let absent = !elsewhere || self.find_held(home.segment, &home.bucket, probe).is_none();
        let room = free_slot(bucket::meta_of(m, bucket), Self::HOME_FIRST);
        match (absent, operation.mode, room) {
            (true, MutateMode::ExistingOnly, _) => {
                home.bucket.release(m);
                Ok(Change::default())
            }
            (true, MutateMode::MayInsert, Some(slot)) => {
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
                if place.kind == Kind::Chain && bucket::meta_of(m, place.bucket).count() == 0 {
                    self.trim_chain(home.segment, operation.guard);
                }
                let emptied = Self::may_be_sparse(m, &home.bucket);
                locks.release(m, true);
                home.bucket.release_changed(m);
                if emptied {
                    E::emptied(self, home.offset, hash, operation.guard)?;
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
        let mut chain = E::CHAIN;
        let change = self.apply_again(home, operation, &mut chain, decide);
        match chain {
            Chain::Lengthen(unused) => self.pool.free_unpublished(unused),
            Chain::Lengthened => E::lengthened(self)?,
            Chain::Avoid | Chain::Fill => {}
        }
        change
    }

    fn apply_again(
        &self,
        mut locked: Option<(Home<'_, B, S>, bool)>,
        operation: Operation<'_, '_, K>,
        chain: &mut Chain,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, probe) = (self.medium(), operation.probe);
        let mut waiting = self.waiting();
        let mut at_holder = false;
        loop {
            let (mut home, absent) = match locked.take() {
                Some(locked) => locked,
                None => match self.try_lock_home(probe.hash, operation.mode, at_holder)? {
                    LockingHome::Held(home) => (home, false),
                    LockingHome::Moved => continue,
                    LockingHome::Busy(segment) => {
                        waiting.wait(segment)?;
                        continue;
                    }
                    LockingHome::Stale(offset) if at_holder => {
                        waiting.recover(offset)?;
                        continue;
                    }
                    LockingHome::Stale(offset) => {
                        waiting.count_recovery(offset)?;
                        at_holder = !E::prepare(self, offset, probe.hash, operation.guard)?;
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
            if operation.mode == MutateMode::ExistingOnly {
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
                    match (E::split(self, home.offset, probe.hash, operation.guard)?, &chain) {
                        (Split::Done, _) => {}
                        (Split::Refused, Chain::Lengthen(_)) => return Err(chain_too_long()),
                        (Split::Refused, _) => {
                            *chain =
                                Chain::Lengthen(self.pool.allocate_fixed(layout::BUCKET_BYTES)?);
                        }
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
            *segment = self.expansion.find(m, *hash)?.segment();
            // A hint only: whether there is a segment is checked below.
            m.prefetch(segment.wrapping_add(Self::bucket_offset(Self::home_of(*hash))));
        }
        let mut slots = [None; BATCH];
        for ((&hash, &segment), slot) in
            hashes.iter().zip(&segments).zip(&mut slots).take(keys.len())
        {
            *slot = self.prefetch_match(self.segment(segment)?, hash);
        }
        // A slot says all there is to know of the other kinds of keys.
        if K::WORDS_ARE_RECORDS {
            for slot in slots.into_iter().flatten() {
                K::prefetch(m, m.load_relaxed(&slot.word), record::HEAD);
            }
        }
        for ((&key, hash), out) in keys.iter().zip(hashes).zip(out) {
            *out = self.lookup(&Probe::hashed(key, hash))?;
        }
        Ok(())
    }

    /// Fetches a home bucket; nothing where its segment cannot be found.
    #[inline(always)]
    fn prefetch_home(&self, hash: u64) -> Option<()> {
        let segment = self.expansion.find(self.medium(), hash).ok()?.segment();
        let bucket = segment.wrapping_add(Self::bucket_offset(Self::home_of(hash)));
        self.medium().prefetch_bytes(bucket, layout::BUCKET_BYTES);
        Some(())
    }

    /// Fetches so many bytes of the record that the home bucket has for a hash; nothing where it has none.
    #[inline(always)]
    fn prefetch_found(&self, hash: u64, bytes: u64) -> Option<()> {
        let m = self.medium();
        let segment = self.segment(self.expansion.find(m, hash).ok()?.segment()).ok()?;
        let slot = self.prefetch_match(segment, hash)?;
        K::prefetch(m, m.load_relaxed(&slot.word), bytes);
        Some(())
    }

    fn bucket_offset(bucket: usize) -> u64 {
        layout::HEADER_BYTES + bucket as u64 * layout::BUCKET_BYTES
    }

    /// Fetches what a look will read after the home bucket's header: the matching slot, which it answers, or else the
    /// next bucket.
    #[inline(always)]
    fn prefetch_match<'s>(&self, segment: &'s Segment<B, S>, hash: u64) -> Option<&'s Slot> {
        let m = self.medium();
        let at = Self::home_of(hash);
        let home = &segment.normal[at];
        let natives = bucket::meta_of(m, home).natives();
        let candidates = matching_slots(m, home, fingerprint_of(hash)) & natives;
        if candidates != 0 {
            let slot = &home.slots[candidates.trailing_zeros() as usize];
            prefetch(std::ptr::from_ref(slot).cast());
            return Some(slot);
        }
        if Version(m.load_relaxed(&home.version)).may_be_next(hash) {
            let next = &segment.normal[Self::next_of(at)];
            prefetch(std::ptr::from_ref(next).cast());
        }
        None
    }

    /// Visits every segment once, in the order of ranks, with all its buckets locked during `copy`; then calls
    /// `each` with what was copied, without locks but under a guard of its own. `copy` is also told the first
    /// rank that was not visited before: a merge can bring records back that were. Segments that cannot be
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
                Ok((copied, whole)) => {
                    result = result.and(whole);
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

    /// One step of a walk, under a guard of the caller: what `copy` makes of the segment that serves the rank
    /// `from`, whether that was all of the segment, and the first rank behind that segment, if there is one.
    fn step<T>(
        &self,
        from: u64,
        copy: &mut impl FnMut(u64, &Segment<B, S>, u64) -> T,
    ) -> (Result<(T, Result<()>)>, Option<u64>) {
        let (m, hash) = (self.medium(), E::unrank(from));
        loop {
            let offset = match self.expansion.holder(m, hash) {
                Ok(found) => found.segment(),
                Err(error) => return (Err(error), behind(from, self.expansion.depth())),
            };
            let locked = self
                .segment(offset)
                .and_then(|segment| Ok(self.lock_all(offset, segment, hash)?.then_some(segment)));
            match locked {
                // It was split or merged before we had it: look again.
                Ok(None) => {}
                Ok(Some(segment)) => {
                    let shape = HashPrefix::decode(m.load(&segment.header.shape))
                        .filter(|shape| shape.covers(from));
                    let copied = shape.map(|shape| {
                        let whole = self.ensure_chain_ends(segment);
                        ((copy(offset, segment, from), whole), shape.depth)
                    });
                    self.unlock_unchanged(segment);
                    return match copied {
                        Some((copied, depth)) => (Ok(copied), behind(from, depth)),
                        None => {
                            let error = Error::damaged(offset, "a segment of another place");
                            (Err(error), behind(from, self.expansion.depth()))
                        }
                    };
                }
                Err(error) => return (Err(error), behind(from, self.expansion.depth())),
            }
        }
    }

    /// The records of a segment with a rank of `from` or more.
    fn records_from(&self, segment: &Segment<B, S>, from: u64) -> Vec<Record> {
        let mut records = self.all_records(segment);
        records.retain(|record| E::rank(record.hash) >= from);
        records
    }
}

/// A mutation: for which key, and under which guard.
struct Operation<'a, 'k, K: Key> {
    probe: &'a Probe<'k, K>,
    mode: MutateMode,
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
struct Waiting<'a, K: Key, M: Medium, E, const B: usize, const S: usize, const N: usize> {
    index: &'a Dash<K, M, E, B, S, N>,
    patience: Patience,
    recoveries: u32,
}

impl<K, M, E, const B: usize, const S: usize, const N: usize> Waiting<'_, K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    /// Waits for a locked bucket.
    #[cold]
    fn wait(&mut self, segment: &Segment<B, S>) -> Result<()> {
        let region = &self.index.region;
        if !self.patience.wait(region)? {
            return Ok(());
        }
        // Damage can make a lock of nobody's look like one of ours. A segment that nobody has recovered cannot
        // have a holder.
        let m = self.index.medium();
        if m.load(&segment.header.generation) != self.index.generation {
            return self.recover(m.offset_of(segment));
        }
        self.patience.go_on(region, m.offset_of(segment))
    }

    /// Recovers the segment of a stale bucket.
    #[cold]
    fn recover(&mut self, offset: u64) -> Result<()> {
        self.count_recovery(offset)?;
        self.index.recover(offset)
    }

    /// Notes that a bucket was found stale.
    fn count_recovery(&mut self, offset: u64) -> Result<()> {
        const MANY: u32 = 100;
        self.recoveries += 1;
        if self.recoveries > MANY {
            let what = "a bucket stays stale though its segment was recovered";
            return Err(Error::damaged(offset, what));
        }
        Ok(())
    }
}

/// So many keys have equal hashes that following their chain would take too long.
#[cold]
fn chain_too_long() -> Error {
    let longest = format!("a chain of {} buckets for keys with equal hashes", segment::CHAIN_MAX);
    Error::no_space(longest, layout::BUCKET_BYTES)
}

impl<K, M, E, const B: usize, const S: usize, const N: usize> Index<K> for Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.seed))
    }

    #[inline]
    fn prefetch_bucket(&self, key: K::Ref<'_>) {
        let _ = self.prefetch_home(K::hash(key, self.seed));
    }

    #[inline]
    fn prefetch_record(&self, key: K::Ref<'_>, bytes: u64) {
        if K::WORDS_ARE_RECORDS {
            let _ = self.prefetch_found(K::hash(key, self.seed), bytes);
        }
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

    changes_by_apply!();

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.walk(
            |_, segment, from| self.records_from(segment, from),
            |records| records.iter().all(|record| each(record.slot_key, record.word)),
        )
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let (mut stats, mut segments) = (Stats::default(), 0);
        self.walk(
            |_, segment, from| {
                (self.records_from(segment, from).len() as u64, self.chain(segment).count() as u64)
            },
            |(records, chained)| {
                segments += 1;
                stats.len += records;
                stats.capacity += chained * N as u64;
                stats.pm_bytes += chained * layout::BUCKET_BYTES;
                true
            },
        )?;
        stats.pm_bytes += E::ROOT_BYTES;
        stats.dram_bytes =
            (size_of::<Self>() + self.recovering.len() * size_of::<Mutex<()>>()) as u64;
        stats.splits = self.splits.load(Ordering::Relaxed);
        stats.recovered = self.recovered.load(Ordering::Relaxed);
        self.expansion.complete(segments, &mut stats);
        Ok(stats)
    }
}

impl<K, M, E, const B: usize, const S: usize, const N: usize> Persistent<M>
    for Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        let m = pool.medium();
        let depth = config.initial_depth;
        if depth > DEPTH_AT_FIRST {
            return Err(ErrorKind::Config(format!("an initial depth of {depth}")).into());
        }
        // Nothing below is reachable until the root cell names it, so an error or a crash forgets it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate(E::ROOT_BYTES)?;
        let (expansion, segments) = E::create(&pool, block, depth)?;
        fresh.keep();
        let index = Self::assemble(pool.clone(), block, expansion);
        if m.mutant("DA-6") {
            m.store(root, block);
            m.persist(root);
        }
        for (pattern, offset) in segments.into_iter().enumerate() {
            let shape = HashPrefix { depth, pattern: pattern as u64 };
            let headers = index.build(offset, Some(shape), std::iter::empty())?;
            index.unlock_all(index.segment(offset)?, &headers);
        }
        let kind = m.at::<PmU64>(block).expect("just allocated");
        m.store(kind, Self::kind());
        m.flush(kind);
        m.fence();
        m.store(root, block);
        m.persist(root);
        Ok(index)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Self::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let block = root::block_of(&pool, root, Self::kind())?;
        let expansion = E::open(&pool, block)?;
        let everything = pool.region().must_recover_all();
        let index = Self::assemble(pool, block, expansion);
        if everything {
            // Stamps of an earlier opener could be taken for ours: make none be.
            E::make_all_stale(&index)?;
        }
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        {
            // What is replaced meanwhile must stay what it is while the visitor looks at it.
            let _guard = self.pool.pin();
            self.expansion.visit(visitor);
        }
        let mut segments = 0;
        let visited = self.walk(
            |offset, segment, from| {
                (offset, self.chain_blocks(segment), self.records_from(segment, from))
            },
            |(offset, chain, records)| {
                segments += 1;
                if E::SEGMENTS_ARE_BLOCKS {
                    visitor.block(offset);
                }
                chain.into_iter().for_each(|block| visitor.block(block));
                records.iter().for_each(|record| visitor.word(record.word));
                true
            },
        );
        if visited.is_ok() {
            self.expansion.visited(segments);
        }
        visited
    }

    /// The unit is a segment, `from` the least rank to show.
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
        let shown = records.and_then(|(records, whole)| {
            records.iter().for_each(|record| each(record.slot_key, record.word));
            whole
        });
        (shown, next)
    }

    fn check(&self) -> Vec<String> {
        self.check_everything()
    }
}
