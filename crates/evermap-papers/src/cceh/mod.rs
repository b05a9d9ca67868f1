//! CCEH: cacheline-conscious extendible hashing.
//!
//! An implementation of "Write-Optimized Dynamic Hashing for Persistent Memory" (Nam, Cha, Choi,
//! Noh, Nam; FAST 2019). The layout is in [`layout`]. An overview:
//!
//! ```text
//! root ── directory ─┬─ segment ── header line, 256 buckets of one line: 4 slots each
//!                    ├─ segment
//!                    └─ ...          the top hash bits select the segment, the low 8 the bucket;
//!                                    a record is in that bucket or one of the three after it
//! ```
//!
//! The main parts are those of the paper: buckets of a cache line; linear probing over four of
//! them; an insert that takes one flush and one fence because storing the key commits it; lazy
//! deletion (a split does not change the slots of records that move: their hashes no longer have
//! the segment's prefix, which makes the slots free); and a directory in which the first entry of a
//! range commits a change. The differences, and the reasons for them:
//!
//! * **No key is reserved.** A slot is free if its key does not belong there, so a removed record
//!   is replaced by a key of another segment. The paper reserves two keys; one of them can block a
//!   slot permanently after a crash.
//! * **Readers need no lock.** They compare the version in the segment's lock word, and store
//!   nothing ([`Locking::Optimistic`]). A lock that readers share is optional, for comparison
//!   ([`Locking::Pessimistic`]).
//! * **Recovery is lazy** and changes no record: from the stamp of a segment, the first thread that
//!   uses it after a restart sees that it must first check for an unfinished split. The paper scans
//!   the directory at opening ([`Recovery::Eager`]).
//! * **A split is committed by one directory entry**, or by the root if the directory doubles, and
//!   never redone. No persistent word refers to a segment that is not committed, so a crash leaks
//!   no block.
//! * **A record that moves to a new segment keeps its slot number**, or gets one nearer to its home
//!   bucket, so a new segment always has room for all records.
//! * **At most 16 keys with equal hashes** are accepted, which fill the four buckets. Inserting
//!   more fails with `NoSpace`, because a larger directory would not help.
//!
//! Segments are not merged and the directory does not shrink, as in the paper.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use evermap_index::hash::hash_prefix::{DEPTH_MAX, HashPrefix};
use evermap_index::hash::probe::Probe;
use evermap_index::hash::segmented::Segmented;
use evermap_index::hash::segmented::core::{Core, HasCore};
use evermap_index::hash::segmented::extendible::{Extendible, root_at};
use evermap_index::hash::segmented::index::SegmentedIndex;
use evermap_index::hash::segmented::recover::for_each_named;
use evermap_index::hash::segmented::waiting::Waiting;
use evermap_index::index::{Action, BATCH_KEYS, Change, MutateMode};
use evermap_index::{FOUND_LATE, Key};
use evermap_pm::medium::Note;
use evermap_pm::{Error, ErrorKind, Guard, Medium, Pool, Result, region};

mod check;
pub mod layout;
mod lock;
mod segment;
mod split;
#[cfg(test)]
mod tests;

use layout::{BUCKET_BYTES, HEADER_BYTES, SLOTS, Segment, Slot};
use lock::Lock;
use segment::{Held, SearchResult};

/// The options of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The initial global depth, 1 to 40: the index begins with `2^initial_depth` segments of 16
    /// KiB.
    pub initial_depth: u32,
    /// How readers of a segment are synchronized with writers.
    pub locking: Locking,
    /// When segments are recovered after a restart.
    pub recovery: Recovery,
}

impl Default for Config {
    /// Two segments, optimistic locking and lazy recovery.
    fn default() -> Self {
        Config { initial_depth: 1, locking: Locking::Optimistic, recovery: Recovery::Lazy }
    }
}

/// How readers of a segment are synchronized with writers. Writers of one segment always exclude
/// each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locking {
    /// Readers store nothing: they search again if the segment's version has changed.
    #[default]
    Optimistic,
    /// Readers share the segment's lock, which takes two stores to it for each lookup, as in the
    /// published implementations. So lookups, too, return `Forked` in a forked child.
    Pessimistic,
}

/// When segments are recovered after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Each when it is first used: opening is O(1).
    #[default]
    Lazy,
    /// All when the index is opened, as in the paper: O(directory).
    Eager,
}

impl Config {
    const PESSIMISTIC: u64 = 1;
    const EAGER: u64 = 2;

    /// Encodes the options of locking and recovery for the root.
    fn options(self) -> u64 {
        let locking = if self.locking == Locking::Pessimistic { Self::PESSIMISTIC } else { 0 };
        let recovery = if self.recovery == Recovery::Eager { Self::EAGER } else { 0 };
        locking | recovery
    }

    /// Decodes the options word of the root. Returns `None` if it contains other bits.
    fn switches(options: u64) -> Option<(Locking, Recovery)> {
        let locking = if options & Self::PESSIMISTIC == 0 {
            Locking::Optimistic
        } else {
            Locking::Pessimistic
        };
        let recovery = if options & Self::EAGER == 0 { Recovery::Lazy } else { Recovery::Eager };
        (options & !(Self::PESSIMISTIC | Self::EAGER) == 0).then_some((locking, recovery))
    }
}

/// CCEH over keys `K` in medium `M`, with segments of `B` buckets, of which `P` are probed for a
/// key.
///
/// See the [module](self). The paper's geometry is the default; [`Tiny`] is for tests.
pub struct Cceh<K: Key, M: Medium, const B: usize = 256, const P: usize = 4> {
    core: Core<M>,
    map: Extendible<M>,
    locking: Locking,
    recovery: Recovery,
    /// The slot keys of free slots, in segments whose hashes begin with the bit 0, and 1: keys
    /// whose hashes begin with the other bit.
    blanks: [u64; 2],
    keys: PhantomData<fn(K) -> K>,
}

/// Segments so small that a few keys cause every kind of structure change.
pub type Tiny<K, M> = Cceh<K, M, 4, 2>;

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// The number of records with equal hashes that can always be inserted: the number of slots in
    /// one window.
    pub const ALWAYS_HOLDS: usize = P * SLOTS;

    const GEOMETRY_IS_POSSIBLE: () =
        assert!(B.is_power_of_two() && B >= 2 && B <= 1 << 15 && P >= 1 && P <= B);

    #[inline(always)]
    fn medium(&self) -> &M {
        self.core.medium()
    }

    /// Returns the pool that contains the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.core.pool
    }

    /// Finds a slot key whose hash does not begin with this bit.
    fn blank(bit: u64, seed: u64) -> Result<u64> {
        /// The number of tries. Hashes are uniform, so two are enough on average.
        const TRIES: u64 = 1024;
        let mut keys = (0..TRIES).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        keys.find(|&key| K::slot_hash(key, seed) >> 63 != bit).ok_or_else(|| {
            ErrorKind::Config("a kind of key whose hashes all begin with the same bit".into())
                .into()
        })
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let segment = self.segment(self.map.directory.find(probe.hash).segment)?;
        match self.look(segment, probe) {
            SearchResult::Seen(found) => Ok(found),
            _ => self.lookup_slow(probe),
        }
    }

    /// Looks a key up in all cases: segments may be locked, stale or split meanwhile.
    #[cold]
    fn lookup_slow(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let mut waiting = Waiting::default();
        loop {
            let found = self.map.directory.find(probe.hash);
            let (offset, segment) = (found.segment, self.segment(found.segment)?);
            match self.look(segment, probe) {
                SearchResult::Seen(word) => return Ok(word),
                // A split changes the directory before the prefix: if the entry is unchanged, it is
                // damaged.
                SearchResult::Elsewhere if self.map.directory.is_current(m, &found) => {
                    return Err(misplaced(offset));
                }
                SearchResult::Elsewhere | SearchResult::Again => {}
                SearchResult::Busy => waiting.wait(self, segment)?,
                SearchResult::Stale => waiting.recover(self, offset)?,
            }
        }
    }

    #[inline(always)]
    fn change(
        &self,
        probe: &Probe<'_, K>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let m = self.medium();
        loop {
            let held = self.lock_serving(probe.hash)?;
            if let Some((slot, old)) = self.find(held.segment, probe) {
                return Ok(self.change_found(held, slot, old, decide));
            }
            if mode == MutateMode::ExistingOnly {
                held.release(m);
                return Ok(Change::default());
            }
            match self.free_slot(&held, probe.hash) {
                Some(slot) => return Ok(self.change_absent(held, slot, probe, decide)),
                None => {
                    let wanted = self.wanted(held, probe.hash);
                    self.split(&wanted, guard)?;
                }
            }
        }
    }

    /// Makes the change that `decide` chooses for a record that was found, and releases the
    /// segment.
    #[inline(always)]
    fn change_found(
        &self,
        held: Held<'_, B>,
        slot: &Slot,
        old: u64,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Change {
        let m = self.medium();
        let new = match decide(Some(old)) {
            Action::Keep => {
                held.release(m);
                return Change { old: Some(old), new: Some(old) };
            }
            Action::Put(word) => {
                m.store(&slot.word, word);
                Some(word)
            }
            Action::Remove => {
                m.store(&slot.key, self.blank_of(held.prefix));
                None
            }
        };
        // Durable before other threads can see it. It is a single store, so it is atomic.
        m.persist(slot);
        held.release_changed(m);
        Change { old: Some(old), new }
    }

    /// Makes the change that `decide` chooses for an absent key, with a free slot for it, and
    /// releases the segment.
    #[inline(always)]
    fn change_absent(
        &self,
        held: Held<'_, B>,
        slot: &Slot,
        probe: &Probe<'_, K>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Change {
        let m = self.medium();
        let Action::Put(word) = decide(None) else {
            held.release(m);
            return Change::default();
        };
        // Stores to one cache line persist in program order: after a crash, the slot has the key
        // only if it has its word.
        m.store(&slot.word, word);
        // The commit.
        m.store(&slot.key, probe.slot_key);
        m.persist(slot);
        held.release_changed(m);
        Change { old: None, new: Some(word) }
    }

    fn bucket_offset(bucket: usize) -> u64 {
        HEADER_BYTES + bucket as u64 * BUCKET_BYTES
    }

    /// Checks that this thread may look keys up: sharing a lock stores, which is not allowed in a
    /// forked child.
    #[inline(always)]
    fn ensure_may_look(&self) -> Result<()> {
        match self.locking {
            Locking::Optimistic => Ok(()),
            Locking::Pessimistic => self.core.region.ensure_writable(),
        }
    }
}

/// Returns the error for a directory entry that refers to a segment with another prefix.
#[cold]
fn misplaced(offset: u64) -> Error {
    Error::damaged(offset, "a directory entry refers to a segment that serves other hashes")
}

impl<K: Key, M: Medium, const B: usize, const P: usize> HasCore for Cceh<K, M, B, P> {
    type Medium = M;

    #[inline(always)]
    fn core(&self) -> &Core<M> {
        &self.core
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Segmented for Cceh<K, M, B, P> {
    type Map = Extendible<M>;
    type Segment = Segment<B>;
    type Locked<'a> = Held<'a, B>;

    const SLOTS: usize = B * SLOTS;
    /// There are no chains.
    const LINK: (usize, u64) = (0, 0);

    #[inline(always)]
    fn map(&self) -> &Extendible<M> {
        &self.map
    }

    fn lock_whole(&self, offset: u64, hash: u64) -> Result<Option<Held<'_, B>>> {
        // Locking stores, which is not allowed in a forked child.
        self.core.region.ensure_writable()?;
        let held = self.lock_serving(hash)?;
        if held.offset == offset {
            return Ok(Some(held));
        }
        held.release(self.medium());
        Ok(None)
    }

    fn segment_in<'a>(held: &Held<'a, B>) -> &'a Segment<B>
    where
        Self: 'a,
    {
        held.segment
    }

    fn unlock_unchanged(&self, held: Held<'_, B>) {
        held.release(self.medium());
    }

    fn pairs_within(
        &self,
        segment: &Segment<B>,
        prefix: HashPrefix,
        ranks: &RangeInclusive<u64>,
    ) -> Vec<(u64, u64)> {
        let mut pairs = Vec::with_capacity(B * SLOTS);
        self.for_each_record(segment, prefix, |_, record| {
            if ranks.contains(&K::slot_hash(record.slot_key, self.core.seed)) {
                pairs.push((record.slot_key, record.word));
            }
        });
        pairs
    }

    fn check_segment(&self, segment: &Segment<B>, prefix: HashPrefix, problems: &mut Vec<String>) {
        self.check_contents(segment, prefix, problems);
    }

    fn make_stale(&self, segment: &Segment<B>) {
        let (m, stale) = (self.medium(), region::stale(self.core.generation));
        m.store_transient(&segment.header.generation, stale);
        m.store_transient(&segment.header.lock, Lock::fresh(stale).0);
    }

    fn is_fresh(&self, segment: &Segment<B>) -> bool {
        let lock = Lock(self.medium().load(&segment.header.lock));
        self.was_recovered(segment) && lock.is_of(self.core.generation)
    }

    fn persist_contents(&self, segment: &Segment<B>) {
        let m = self.medium();
        // An earlier process may have stored the contents and terminated before they were durable.
        // The fence follows with the flush of the directory entries.
        m.note(Note::Harmless(FOUND_LATE));
        m.flush(segment);
    }

    /// Records need no recovery: each was committed by one store, and those that were moved no
    /// longer have the segment's prefix.
    fn finish_contents(&self, segment: &Segment<B>, _: HashPrefix) {
        let (m, generation) = (self.medium(), self.core.generation);
        // The lock is stored last: until then, all other threads wait for this one. A thread that
        // takes the lock also checks the generation in the header.
        m.store_transient(&segment.header.generation, generation);
        m.store_transient(&segment.header.lock, Lock::fresh(generation).0);
    }

    fn recovery_failed(&self, segment: &Segment<B>) {
        // Damage may have set the stamp of this opener: make the segment stale for all threads.
        let stale = region::stale(self.core.generation);
        self.medium().store_transient(&segment.header.lock, Lock::fresh(stale).0);
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> SegmentedIndex for Cceh<K, M, B, P> {
    type Key = K;
    type Config = Config;

    fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        let geometry = (B.ilog2() as u64) << 40 | (P as u64 & 0xff) << 32;
        u64::from_le_bytes(*b"CCEH\0\0\0\0") ^ geometry ^ u64::from(K::FORMAT) << 48
    }

    fn initial_depth(config: &Config) -> Result<u32> {
        let depth = config.initial_depth;
        if !(1..=DEPTH_MAX).contains(&depth) {
            let text = format!("CCEH begins with a depth of 1 to {DEPTH_MAX}, not {depth}");
            return Err(ErrorKind::Config(text).into());
        }
        Ok(depth)
    }

    fn assemble(core: Core<M>, map: Extendible<M>, config: Option<Config>) -> Result<Self> {
        let (m, options) = (core.medium(), &root_at(core.medium(), core.root)?.options);
        if let Some(config) = config {
            // Flushed with the kind, which is in the same line.
            m.store(options, config.options());
        }
        let (locking, recovery) = Config::switches(m.load(options))
            .ok_or_else(|| Error::damaged(core.root, "impossible options of an index"))?;
        let blanks = [Self::blank(0, core.seed)?, Self::blank(1, core.seed)?];
        Ok(Cceh { core, map, locking, recovery, blanks, keys: PhantomData })
    }

    fn write_empty(&self, offset: u64, prefix: HashPrefix) -> Result<()> {
        self.build(offset, prefix, &self.no_records())?.release(self.medium());
        Ok(())
    }

    fn opened(&self) -> Result<()> {
        if self.recovery == Recovery::Lazy {
            return Ok(());
        }
        for_each_named(self, |offset| {
            // A damaged segment stays stale: operations that need it return the error.
            let _ = self.recover(offset);
        });
        self.core.region.ensure_sound()
    }

    #[inline(always)]
    fn look_up(&self, key: K::Ref<'_>) -> Result<Option<u64>> {
        self.ensure_may_look()?;
        self.lookup(&Probe::new(key, self.core.seed))
    }

    fn look_up_batch(&self, keys: &[K::Ref<'_>], out: &mut [Option<u64>]) -> Result<()> {
        self.ensure_may_look()?;
        let m = self.medium();
        let mut hashes = [0; BATCH_KEYS];
        for (&key, hash) in keys.iter().zip(&mut hashes) {
            *hash = K::hash(key, self.core.seed);
            // Only hints: that the segment exists is checked below.
            let segment = self.map.directory.find(*hash).segment;
            m.prefetch(segment);
            m.prefetch(segment.wrapping_add(Self::bucket_offset(Self::home_of(*hash))));
        }
        for ((&key, hash), out) in keys.iter().zip(hashes).zip(out) {
            *out = self.lookup(&Probe::hashed(key, hash))?;
        }
        Ok(())
    }

    #[inline(always)]
    fn apply(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let poison = self.core.begin_change(guard)?;
        let change = self.change(&Probe::new(key, self.core.seed), mode, guard, &mut decide);
        poison.disarm();
        change
    }
}
