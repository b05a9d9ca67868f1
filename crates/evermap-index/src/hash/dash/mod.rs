//! Dash: hashing for persistent memory, extendible ([`DashEh`]) or linear (in `evermap-papers`).
//!
//! An implementation of "Dash: Scalable Hashing on Persistent Memory" (Lu, Hao, Wang, Lo; VLDB
//! 2020). An index consists of segments, whose layout is in [`layout`]. The two kinds differ in
//! which segment serves a hash, and in how the number of segments grows.
//!
//! ```text
//! segment    64 buckets of 14 slots, 2 stash buckets (, chain)
//! hash       bits 0..8 are the fingerprint, bits 8..14 select the bucket, higher ones the segment
//! ```
//!
//! The main parts are those of the paper: fingerprints, balanced insert, displacement, a stash with
//! overflow metadata, optimistic lookups that store nothing, lazy recovery. The differences, and
//! the reasons for them:
//!
//! * **One version word per lookup.** Every change to a record is made under the lock of its home
//!   bucket. So readers validate only the version of that bucket, and skip the next bucket if the
//!   home bucket's filter excludes the key.
//! * **Home first.** The home bucket is filled almost completely before the next one is used.
//!   A displacement may cause further ones, and a split moves records home.
//! * **The generation stamp is in each bucket**, in the word that contains the lock and the
//!   version. Lookups read this word anyway, and so see whether the segment was recovered.
//!
//! [`Paper`] is a geometry without these differences, but for the last one.
//!
//! The code that Dash shares with other indexes made of segments is in `hash/segmented`.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use evermap_pm::medium::{LINE, prefetch};
use evermap_pm::{ErrorKind, Guard, Medium, Pool, Result, region};

use crate::hash::mistakes;
use crate::hash::probe::Probe;
use crate::hash::segmented::apply::{
    self, BucketLocked, FreeSlot, HeldBucket, Home, LockingHome, Operation, Staged, apply_slow,
    apply_to,
};
use crate::hash::segmented::chain::Chain;
use crate::hash::segmented::core::{Core, HasCore};
use crate::hash::segmented::group;
use crate::hash::segmented::index::SegmentedIndex;
use crate::hash::segmented::map::SegmentMap;
use crate::hash::segmented::waiting::Waiting;
use crate::hash::segmented::{SegmentLayout, Segmented, chain};
use crate::index::{Action, BATCH_KEYS, Change, MutateMode};
use crate::{Key, record};

pub mod bucket;
mod check;
mod eh;
pub mod layout;
mod lock;
mod rebuild;
mod recover;
mod segment;
mod stage;

pub use eh::{DashBytes, DashEh, Extendible, Tiny, WideStash};
pub use layout::{Geometry, Paper, Sizes};

use bucket::{
    Belonging, Held, Locking, Record, find, fingerprint_of, free_slot, matching_slots, try_lock,
};
use layout::{Bucket, Buckets, HashPrefix, Meta, Slot, Version};
use segment::{Kind, Locks, SearchResult, Spot};

/// The options of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// A new index has `2^initial_depth` segments of 17 KiB. In Dash-EH this is the initial global
    /// depth. At most 20.
    pub initial_depth: u32,
}

impl Default for Config {
    /// Two segments.
    fn default() -> Self {
        Config { initial_depth: 1 }
    }
}

/// Dash over keys `K` in medium `M` that grows as `E` defines, with this geometry: the common type
/// of both kinds.
///
/// Methods on segments and buckets are for implementers of a [`SegmentMap`]. See the
/// [module](self).
pub struct Dash<K: Key, M: Medium, E, G: Geometry> {
    core: Core<M>,
    map: E,
    keys: PhantomData<fn(K) -> K>,
    geometry: PhantomData<fn() -> G>,
}

/// The greatest initial depth.
const INITIAL_DEPTH_MAX: u32 = 20;

/// Mistakes of other implementations that tests can enable in Dash-EH: see [`mistakes`].
pub const EH_MUTANTS: &[&str] = &[
    mistakes::CLEAN_MARK_STAYS,
    mistakes::GENERATION_UNFLUSHED,
    mistakes::SPLIT_UNFINISHED,
    mistakes::MERGE_LEFT_FIRST,
    mistakes::MERGE_UNFINISHED,
    mistakes::ROOT_TOO_EARLY,
    mistakes::LATCH_RELEASED_EARLY,
    mistakes::LOCKED_BUCKET_READ,
    mistakes::BOTH_COPIES_KEPT,
    mistakes::STASH_UNANNOUNCED,
    mistakes::REMOVAL_UNFLUSHED,
    mistakes::MISS_UNVERIFIED,
    mistakes::FIRST_ENTRY_DECIDES,
    mistakes::NEIGHBOUR_DECIDES,
];

/// Mistakes that the workloads of the campaigns detect only by chance, and the tests that detect
/// them.
pub const NOTICED_ELSEWHERE: &[(&str, &str)] = &[
    (
        mistakes::LATCH_RELEASED_EARLY,
        "noticed by `a_split_is_not_lost_where_the_directory_doubles`",
    ),
    (
        mistakes::MISS_UNVERIFIED,
        "noticed by `p6_no_lookup_misses_a_record_that_moves`, whose threads run freely",
    ),
    (
        mistakes::NEIGHBOUR_DECIDES,
        "noticed by `what_decides_over_an_entry_does_not_depend_on_other_recoveries`",
    ),
];

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    const GEOMETRY_IS_POSSIBLE: () = assert!(
        G::BUCKETS.is_power_of_two()
            && G::BUCKETS >= 4
            && G::BUCKETS <= layout::BUCKETS_MAX
            && G::STASHES >= 1
            && G::STASHES <= layout::STASHES_MAX
            && G::BUCKET_SLOTS >= 2
            && G::BUCKET_SLOTS <= layout::SLOTS_MAX
    );

    /// Returns the medium that holds the index.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        self.core.medium()
    }

    /// Returns the pool that contains the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.core.pool
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let (offset, found) = self.map.find(m, probe.hash)?;
        match self.look(self.segment(offset)?, probe) {
            // No need to check the directory again: a record that was moved to another segment is
            // removed before its bucket is released.
            SearchResult::Found(word) => Ok(Some(word)),
            // The segment may have been split between reading the directory and the bucket.
            SearchResult::Absent if self.map.is_current(m, probe.hash, &found) => Ok(None),
            _ => self.lookup_slow(probe),
        }
    }

    /// Looks a key up in all cases: buckets may be locked or stale, and segments may be split
    /// meanwhile.
    #[cold]
    fn lookup_slow(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let mut waiting = Waiting::default();
        loop {
            // A lookup does not split segments: it searches the segment that holds the record now,
            // not the one that is to hold it.
            let (offset, found) = self.map.holder(m, probe.hash)?;
            let segment = self.segment(offset)?;
            match self.look(segment, probe) {
                SearchResult::Found(word) => return Ok(Some(word)),
                SearchResult::Absent if self.map.is_current(m, probe.hash, &found) => {
                    return Ok(None);
                }
                SearchResult::Absent | SearchResult::Again => {}
                SearchResult::Busy => waiting.wait(self, segment)?,
                SearchResult::Stale => waiting.recover(self, offset)?,
            }
        }
    }

    /// Prefetches the slot in the home bucket that matches a hash, and returns it. Returns `None`
    /// if there is none.
    #[inline(always)]
    fn prefetch_slot(&self, hash: u64) -> Option<&Slot> {
        let (offset, _) = self.map.find(self.medium(), hash).ok()?;
        self.prefetch_match(self.segment(offset).ok()?, hash)
    }

    fn bucket_offset(bucket: usize) -> u64 {
        layout::HEADER_BYTES + bucket as u64 * layout::BUCKET_BYTES
    }

    /// Prefetches what a search reads after the home bucket's header: the matching slot, which is
    /// returned, or else the next bucket.
    #[inline(always)]
    fn prefetch_match<'s>(&self, segment: &'s G::Segment, hash: u64) -> Option<&'s Slot> {
        let m = self.medium();
        let at = Self::home_of(hash);
        let home = &segment.normal()[at];
        let natives = bucket::meta_of(m, home).natives();
        let candidates = matching_slots(m, home, fingerprint_of(hash)) & natives;
        if candidates != 0 {
            let slot = &home.slots[candidates.trailing_zeros() as usize];
            prefetch(std::ptr::from_ref(slot).cast());
            return Some(slot);
        }
        if G::PAPER || Version(m.load_relaxed(&home.version)).may_be_next(hash) {
            let next = &segment.normal()[Self::next_of(at)];
            prefetch(std::ptr::from_ref(next).cast());
        }
        None
    }
}

impl<K, M, E, G> BucketLocked for Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    type Probe<'k> = Probe<'k, K>;
    type Held<'a> = Held<'a>;
    type Spot<'a> = Spot<'a>;
    type Locks<'a> = Locks<'a>;

    fn rank(probe: &Probe<'_, K>) -> u64 {
        E::rank(probe.hash)
    }

    #[inline(always)]
    fn try_lock_home(
        &self,
        probe: &Probe<'_, K>,
        mode: MutateMode,
        at_holder: bool,
    ) -> Result<LockingHome<'_, Self>> {
        let (m, hash, map) = (self.medium(), probe.hash, &self.map);
        let (offset, found) = if at_holder { map.holder(m, hash) } else { map.find(m, hash) }?;
        let segment = self.segment(offset)?;
        let at = Self::home_of(hash);
        if mode == MutateMode::MayInsert {
            // One insert in four needs the next bucket, but this is known only once the home bucket
            // was read.
            m.prefetch(offset + Self::bucket_offset(Self::next_of(at)));
            // The slot that a new record will most likely use. Prefetched before locking: no later
            // load begins before a locked instruction is complete.
            let meta = Meta(m.load_relaxed(&segment.normal()[at].meta));
            let slot = (meta.allocated().trailing_ones() as usize).min(G::BUCKET_SLOTS - 1);
            prefetch(std::ptr::from_ref(&segment.normal()[at].slots[slot]).cast());
        } else {
            // The record is in one of the other lines of the bucket, most likely: which one is
            // known only once the header was read.
            let bucket = offset + Self::bucket_offset(at);
            (1..4).for_each(|line| m.prefetch(bucket + line * LINE));
        }
        match try_lock(m, &segment.normal()[at], self.core.generation) {
            // While one of its buckets is locked, a segment is neither split nor merged.
            Locking::Held(held) if map.is_current(m, hash, &found) => {
                Ok(LockingHome::Held(Home { segment, held }))
            }
            Locking::Held(held) => {
                held.release(m);
                Ok(LockingHome::Moved)
            }
            Locking::Busy => Ok(LockingHome::Busy(segment)),
            Locking::Stale => Ok(LockingHome::Stale(offset)),
        }
    }

    #[inline(always)]
    fn apply_at_home<'a>(
        &'a self,
        home: Home<'a, Self>,
        operation: Operation<'_, Probe<'_, K>>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        if G::PAPER {
            return apply_slow(self, Some((home, false)), operation, decide);
        }
        let (m, probe) = (self.medium(), operation.probe);
        let bucket = home.held.bucket;
        if let Some((slot, word)) = find(m, bucket, probe, Belonging::Native) {
            let spot = Spot::new(bucket, slot, Kind::Home);
            return apply_to(self, (&spot, word), Locks::default(), home, operation, decide);
        }
        // No thread moves records of this bucket while it is locked, so other buckets need not be
        // locked.
        let elsewhere =
            home.held.version.may_be_elsewhere(probe.hash) || K::WITHOUT.overflow_metadata;
        let absent = !elsewhere || self.find_held(&home, probe).is_none();
        let room = free_slot(bucket::meta_of(m, bucket), Self::HOME_FIRST);
        match (absent, operation.mode, room) {
            (true, MutateMode::ExistingOnly, _) => {
                home.held.release(m);
                Ok(Change::default())
            }
            (true, MutateMode::MayInsert, Some(slot)) => {
                let Action::Put(word) = decide(None) else {
                    home.held.release(m);
                    return Ok(Change::default());
                };
                let record = Record { hash: probe.hash, slot_key: probe.slot_key, word };
                self.store_record(bucket, slot, record, false);
                home.held.release_changed(m);
                Ok(Change { old: None, new: Some(word) })
            }
            _ => apply_slow(self, Some((home, absent)), operation, decide),
        }
    }

    #[inline]
    fn prefetch_for_change(&self, probe: &Probe<'_, K>, _mode: MutateMode) {
        let m = self.medium();
        if let Ok((segment, _)) = self.map.find(m, probe.hash) {
            // If its segment cannot be found, an operation on the key reports it.
            m.prefetch(segment.wrapping_add(Self::bucket_offset(Self::home_of(probe.hash))));
        }
    }

    #[inline]
    fn stage<'a>(
        &'a self,
        home: &mut Home<'a, Self>,
        operation: Operation<'_, Probe<'_, K>>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Option<Staged<'a, Self>> {
        self.stage_in(home.segment, &mut home.held, operation, decide)
    }

    #[inline(always)]
    fn find_held<'a>(
        &'a self,
        home: &Home<'a, Self>,
        probe: &Probe<'_, K>,
    ) -> Option<(Spot<'a>, u64)> {
        self.find_under_lock(home.segment, &home.held, probe)
    }

    fn lock_for_removal<'a>(
        &'a self,
        home: &Home<'a, Self>,
        probe: &Probe<'_, K>,
        spot: &Spot<'a>,
    ) -> Result<Option<Locks<'a>>> {
        self.lock_beside(home.segment, probe.hash, spot.kind)
    }

    #[inline(always)]
    fn overwrite(&self, spot: &Spot<'_>, word: u64) {
        bucket::overwrite(self.medium(), spot.bucket, spot.slot, word);
    }

    #[inline(always)]
    fn remove(
        &self,
        home: &mut Home<'_, Self>,
        spot: &Spot<'_>,
        operation: Operation<'_, Probe<'_, K>>,
    ) {
        self.remove_at(home.segment, &mut home.held, operation.probe.hash, spot);
        if spot.kind == Kind::Chain && bucket::meta_of(self.medium(), spot.bucket).count() == 0 {
            self.map.shortened(self.trim_chain(home.segment, operation.guard));
        }
    }

    #[inline(always)]
    fn may_be_sparse(&self, held: &Held<'_>) -> bool {
        const ONE_IN: u64 = 8;
        let turn = (held.version.0 >> 33).is_multiple_of(ONE_IN) || G::BUCKETS < 64;
        turn && bucket::meta_of(self.medium(), held.bucket).count() == 0 || self.map.is_behind()
    }

    #[inline(always)]
    fn find_free_slot<'a>(
        &'a self,
        home: &mut Home<'a, Self>,
        probe: &Probe<'_, K>,
        chain: &mut Chain,
    ) -> Result<FreeSlot<Spot<'a>, Locks<'a>>> {
        self.find_room(home.segment, &mut home.held, probe.hash, chain)
    }

    #[inline(always)]
    fn fill(
        &self,
        home: &mut Home<'_, Self>,
        spot: &Spot<'_>,
        _: &Locks<'_>,
        probe: &Probe<'_, K>,
        word: Option<u64>,
    ) {
        if let Some(word) = word {
            let record = Record { hash: probe.hash, slot_key: probe.slot_key, word };
            self.place_in(home.segment, &mut home.held, spot, record);
        } else if spot.vacated {
            self.medium().persist(&spot.bucket.meta);
        }
    }

    fn allocate_link(&self) -> Result<u64> {
        self.core.pool.allocate_fixed(layout::BUCKET_BYTES)
    }
}

impl<K, M, E, G> HasCore for Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    G: Geometry,
{
    type Medium = M;

    #[inline(always)]
    fn core(&self) -> &Core<M> {
        &self.core
    }
}

impl<K, M, E, G> Segmented for Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    type Map = E;
    type Segment = G::Segment;
    type Locked<'a> = &'a G::Segment;

    const SLOTS: usize = (G::BUCKETS + G::STASHES) * G::BUCKET_SLOTS;
    const LINK: (usize, u64) = (G::BUCKET_SLOTS, layout::BUCKET_BYTES);

    #[inline(always)]
    fn map(&self) -> &E {
        &self.map
    }

    fn lock_whole(&self, offset: u64, hash: u64) -> Result<Option<&G::Segment>> {
        let segment = self.segment(offset)?;
        Ok(self.lock_all(offset, segment, hash)?.then_some(segment))
    }

    fn segment_in<'a>(locked: &&'a G::Segment) -> &'a G::Segment
    where
        Self: 'a,
    {
        locked
    }

    fn unlock_unchanged(&self, segment: &G::Segment) {
        self.unlock_as_before(segment);
    }

    fn pairs_within(
        &self,
        segment: &G::Segment,
        _: HashPrefix,
        ranks: &RangeInclusive<u64>,
    ) -> Vec<(u64, u64)> {
        let mut pairs = Vec::with_capacity(Self::SLOTS);
        self.for_each_placed(segment, |placed| {
            if ranks.contains(&E::rank(placed.record.hash)) {
                pairs.push((placed.record.slot_key, placed.record.word));
            }
        });
        pairs
    }

    fn ensure_chain_ends(&self, segment: &G::Segment) -> Result<()> {
        chain::ensure_ends::<Bucket, M>(self.medium(), &segment.header().chain)
    }

    fn chain_blocks(&self, segment: &G::Segment) -> Vec<u64> {
        chain::blocks::<Bucket, M>(self.medium(), &segment.header().chain)
    }

    fn check_segment(&self, segment: &G::Segment, prefix: HashPrefix, problems: &mut Vec<String>) {
        self.check_contents(segment, prefix, problems);
    }

    fn make_stale(&self, segment: &G::Segment) {
        let (m, stale) = (self.medium(), region::stale(self.core.generation));
        m.store_transient(&segment.header().generation, stale);
        for bucket in segment.normal().iter().chain(segment.stash()) {
            m.store_transient(&bucket.version, Version::fresh(stale).0);
        }
    }

    fn persist_contents(&self, segment: &G::Segment) {
        self.make_contents_durable(segment);
    }

    fn finish_contents(&self, segment: &G::Segment, prefix: HashPrefix) {
        self.rebuild_contents(segment, prefix);
    }
}

impl<K, M, E, G> SegmentedIndex for Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    type Key = K;
    type Config = Config;

    fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        let geometry = (G::BUCKETS as u64) << 8 | (G::STASHES as u64) << 4 | G::BUCKET_SLOTS as u64;
        let [dash, map] = [*b"DASH", E::NAME].map(|name| u64::from(u32::from_le_bytes(name)));
        dash ^ map << 32
            ^ u64::from(K::FORMAT) << 56
            ^ geometry << 40
            ^ layout::TOLD_BY_FINGERPRINTS
    }

    fn earlier_kind() -> Option<u64> {
        Some(Self::kind() ^ layout::TOLD_BY_FINGERPRINTS)
    }

    fn initial_depth(config: &Config) -> Result<u32> {
        match config.initial_depth {
            depth @ 0..=INITIAL_DEPTH_MAX => Ok(depth),
            depth => Err(ErrorKind::Config(format!("an initial depth of {depth}")).into()),
        }
    }

    fn assemble(core: Core<M>, map: E, _: Option<Config>) -> Result<Self> {
        Ok(Dash { core, map, keys: PhantomData, geometry: PhantomData })
    }

    fn write_empty(&self, offset: u64, prefix: HashPrefix) -> Result<()> {
        let headers = self.build(offset, Some(prefix), std::iter::empty())?;
        self.unlock_all(self.segment(offset)?, &headers);
        Ok(())
    }

    #[inline(always)]
    fn look_up(&self, key: K::Ref<'_>) -> Result<Option<u64>> {
        self.lookup(&Probe::new(key, self.core.seed))
    }

    /// First prefetches all home buckets, then all matching slots, then all keys that the slots
    /// refer to.
    fn look_up_batch(&self, keys: &[K::Ref<'_>], out: &mut [Option<u64>]) -> Result<()> {
        let m = self.medium();
        let (mut hashes, mut segments) = ([0; BATCH_KEYS], [0; BATCH_KEYS]);
        for ((&key, hash), segment) in keys.iter().zip(&mut hashes).zip(&mut segments) {
            *hash = K::hash(key, self.core.seed);
            (*segment, _) = self.map.find(m, *hash)?;
            // Only a hint: that the segment exists is checked below.
            m.prefetch(segment.wrapping_add(Self::bucket_offset(Self::home_of(*hash))));
        }
        let mut slots = [None; BATCH_KEYS];
        for ((&hash, &segment), slot) in
            hashes.iter().zip(&segments).zip(&mut slots).take(keys.len())
        {
            *slot = self.prefetch_match(self.segment(segment)?, hash);
        }
        // Keys of other kinds are in the slot itself.
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

    #[inline]
    fn prefetch_home(&self, key: K::Ref<'_>) {
        let hash = K::hash(key, self.core.seed);
        // If its segment cannot be found, an operation on the key reports it.
        if let Ok((segment, _)) = self.map.find(self.medium(), hash) {
            let bucket = segment.wrapping_add(Self::bucket_offset(Self::home_of(hash)));
            self.medium().prefetch_bytes(bucket, layout::BUCKET_BYTES);
        }
    }

    #[inline]
    fn prefetch_found(&self, key: K::Ref<'_>, bytes: u64) {
        if K::WORDS_ARE_RECORDS
            && let Some(slot) = self.prefetch_slot(K::hash(key, self.core.seed))
        {
            let m = self.medium();
            K::prefetch(m, m.load_relaxed(&slot.word), bytes);
        }
    }

    #[inline(always)]
    fn apply(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        apply::apply(self, &Probe::new(key, self.core.seed), mode, guard, decide)
    }

    fn apply_batch(
        &self,
        keys: &[K::Ref<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        if G::PAPER {
            for (at, (&key, out)) in keys.iter().zip(out).enumerate() {
                *out = self.apply(key, mode, guard, |old| decide(at, old));
            }
            return;
        }
        let probes = keys.iter().map(|&key| Probe::new(key, self.core.seed));
        group::apply_batch(self, probes, mode, guard, decide, out);
    }
}
