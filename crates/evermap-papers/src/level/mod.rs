//! Level hashing: two levels of buckets, and four buckets for each key.
//!
//! After "Write-Optimized and High-Performance Hashing Index Scheme for Persistent Memory" (Zuo,
//! Hua, Wu; OSDI 2018). The layout is in [`layout`]. An overview:
//!
//! ```text
//! top      [ 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 ]
//!            \ /     \ /     \ /     \ /
//! bottom   [   0   |   1   |   2   |   3   ]
//! ```
//!
//! Of the two hash functions, one chooses a bucket in the lower half of a level and one in the
//! upper half, so a key has two buckets in each level. In large levels these are halves of a
//! region: see `levels`.
//!
//! The table grows by a level above the top, into which the bottom is emptied: a third of the
//! records move. The former top becomes the bottom, and none of its records has to move.
//!
//! The parts that the paper describes are all here: the two levels, tokens, movement within a level
//! and from bottom to top, updates without a log, resizing of the bottom level only. The
//! differences and their reasons:
//!
//! * **Tokens share a line with their slots**, so an insert takes one flush and one fence; a
//!   movement and the insert into the slot that it frees take two.
//! * **The two buckets of a key are near each other**, in the same region of a level instead of
//!   anywhere in its two halves. So the table can be walked region by region, however records move,
//!   and a key's buckets are on fewer pages. Regions fill less evenly than a whole level, so the
//!   table grows a little earlier.
//! * **A record's home is the first bucket that it can be in**, and every change to it is made
//!   under the lock of that bucket, wherever the record is stored. So a lookup validates one
//!   version word, and stores nothing. With [`Locking::Striped`] it shares locks, as published.
//! * **Incremental growth** ([`Resize::Incremental`]): the next level is written in parts when
//!   buckets begin to be full, and each mutation empties three buckets of the bottom: the two of
//!   its key, and the next in turn. Meanwhile lookups search three levels. The paper's method is
//!   [`Resize::Blocking`].
//! * **Growth is committed by single stores** to the root (see `levels`), and records are cleared
//!   below only when they are durable above. A crash can leave two copies of a record, but never
//!   none; the next thread that changes the record drops one (see `recover`).
//! * **Fingerprints** in the first line of each bucket show most lookups that a key is not in it.
//! * **Keys with equal hashes** are refused beyond what four buckets hold, instead of growing the
//!   table without limit.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use evermap_index::FOUND_LATE;
use evermap_index::Key;
use evermap_index::fresh::Fresh;
use evermap_index::hash::walk_order;
use evermap_index::index::{
    Action, BATCH_KEYS, Change, Index, MutateMode, Persistent, Stats, Visitor,
};
use evermap_index::lock_wait::LockWait;
use evermap_index::root;
use evermap_pm::error::ErrorKind;
use evermap_pm::medium::{Note, prefetch};
use evermap_pm::region::Region;
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

mod bucket;
mod check;
mod geometry;
pub mod layout;
mod levels;
mod placement;
mod recover;
mod resize;
mod stripe;
#[cfg(test)]
mod tests;
mod walk;

pub use geometry::{Geometry, Sizes};

use bucket::{KeyHashes, Locks, Probe, Record, Taking, find, meta_of, try_lock};
use layout::{LINE_SLOTS, Root, Version};
use levels::{LARGEST, Levels, SMALLEST, Site, View, first_index};
use placement::SlotSearch;
use resize::Growth;
use walk::{WalkBlock, Walks};

/// The configuration of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The binary logarithm of the initial number of buckets in the top level, 2 to 40. Buckets
    /// have 128 bytes; the bottom level has half as many.
    pub top_level: u32,
    /// How the table grows.
    pub resize: Resize,
    /// Which locks lookups take.
    pub locking: Locking,
}

impl Default for Config {
    /// 768 buckets: 96 KiB.
    fn default() -> Self {
        Config { top_level: 9, resize: Resize::Incremental, locking: Locking::Optimistic }
    }
}

/// How the table grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Mutations empty the bottom level bucket by bucket, with bounded work for each mutation.
    Incremental,
    /// The mutation that finds no free slot empties the whole bottom level while all others wait,
    /// as in the paper.
    Blocking,
}

/// Which locks lookups take. Writers of one bucket always exclude each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locking {
    /// None: lookups store nothing, and search again if the version of the key's home has changed.
    #[default]
    Optimistic,
    /// While it searches a bucket, a lookup shares a lock of 128 neighbouring ones, which writers
    /// hold alone: as in the program that the authors of Dash measured. So a lookup stores to a
    /// line of persistent memory for each bucket that it searches, and returns `Forked` in a forked
    /// child.
    ///
    /// There, a lookup can miss a record that moves from a bucket that it will search to one that
    /// it has searched. So the version is compared here, too.
    Striped,
}

impl Config {
    /// Encodes the options for the root.
    fn options(self) -> u64 {
        u64::from(self.resize == Resize::Blocking)
            | u64::from(self.locking == Locking::Striped) << 1
    }

    /// Decodes the options of the root. Returns `None` if there are others.
    fn decode(options: u64) -> Option<(Resize, Locking)> {
        let resize = if options & 1 == 0 { Resize::Incremental } else { Resize::Blocking };
        let locking = if options & 2 == 0 { Locking::Optimistic } else { Locking::Striped };
        (options < 4).then_some((resize, locking))
    }
}

/// Level hashing over keys `K` in medium `M`.
///
/// See the [module](self). The default geometry is for production use; [`Tiny`] is for tests.
pub struct Level<K: Key, M: Medium, G: Geometry = Sizes> {
    pool: Arc<Pool<M>>,
    levels: Levels<M, G>,
    root: u64,
    resize: Resize,
    locking: Locking,
    /// A reference to the pool's region, which every operation needs, to save an indirection.
    region: Arc<Region<M>>,
    generation: u64,
    seed: u64,
    /// Locks for the recovery of buckets.
    recovering: Box<[Mutex<()>]>,
    growth: Mutex<Growth>,
    /// The next bucket of the lowest level to be emptied.
    cursor: AtomicU64,
    /// Buckets of the lowest level that still have to be emptied.
    undrained: AtomicU64,
    /// `true` if there was no space for a further level: then it is not prepared in advance.
    no_space_ahead: AtomicBool,
    walks: Walks,
    resizes: AtomicU64,
    recovered: AtomicU64,
    keys: PhantomData<fn(K) -> K>,
}

/// Buckets and levels that are so small that a few keys cause every structural change.
pub type Tiny<K, M> = Level<K, M, Sizes<4, 2>>;

/// The number of keys that are looked up together in [`Index::lookup_batch`]: half of the usual
/// number, because two lines or more are prefetched for each key in each level.
const LOOKUP_BATCH: usize = BATCH_KEYS / 2;

/// The levels in which the records of a key can be, and the key's home.
#[derive(Clone, Copy)]
struct LevelRange<'a> {
    high: u32,
    low: u32,
    home: Site<'a>,
}

/// A record that was found.
struct FoundRecord<'a> {
    site: Site<'a>,
    slot: usize,
    word: u64,
}

/// The result of a search without locks.
enum SearchResult<'a> {
    Found(u64),
    Absent,
    /// Something changed meanwhile: search again.
    Retry(Site<'a>),
    /// The bucket has not been recovered since the region was opened.
    Stale(Site<'a>),
}

/// The result of one attempt at a mutation.
enum Attempt<'a> {
    /// The mutation is done. The flag is `true` if it had to move a record.
    Done(Change, bool),
    /// Release all locks, wait for this, and try again.
    Busy(Blocker<'a>),
    /// The table must grow.
    Full,
}

/// What an operation has to wait for while it holds no lock.
enum Blocker<'a> {
    /// A bucket that another thread has locked, or whose level is given up.
    Bucket(Site<'a>),
    /// A walk that copies the records with such hashes, which must not move until it is done.
    Walk(KeyHashes),
}

/// A mutation: its key, and the guard under which it runs.
struct Operation<'a, 'k, K: Key> {
    probe: &'a Probe<'k, K>,
    mode: MutateMode,
    guard: &'a Guard<'a>,
}

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    const GEOMETRY_IS_POSSIBLE: () = assert!(
        G::SLOTS >= 1 && G::SLOTS <= layout::SLOTS_MAX && G::CHUNK_LOG >= 1 && G::CHUNK_LOG <= 13
    );

    /// Returns the first word of the root: the name of the format, key format, geometry.
    fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        Self::first_word(*b"LEVL2\0\0\0")
    }

    /// Returns the first word of the root in the format with this name.
    fn first_word(name: [u8; 8]) -> u64 {
        let region = u64::from(levels::region_bits(u32::MAX, G::CHUNK_LOG));
        let geometry = (G::SLOTS as u64) << 8 | region << 4 | u64::from(G::CHUNK_LOG);
        u64::from_le_bytes(name) ^ u64::from(K::FORMAT) << 56 ^ geometry << 40
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    /// Returns the pool of the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn assemble(
        pool: Arc<Pool<M>>,
        root: u64,
        (resize, locking): (Resize, Locking),
        levels: Levels<M, G>,
    ) -> Self {
        let view = levels.view();
        Level {
            region: pool.share_region(),
            generation: pool.generation(),
            seed: pool.seed(),
            recovering: (0..64).map(|_| Mutex::ranked(Rank::Recovery, ())).collect(),
            growth: Mutex::ranked(Rank::Resize, Growth::default()),
            cursor: AtomicU64::new(0),
            undrained: AtomicU64::new(view.steps()),
            no_space_ahead: AtomicBool::new(false),
            walks: Walks::default(),
            resizes: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            keys: PhantomData,
            pool,
            levels,
            root,
            resize,
            locking,
        }
    }

    /// Waits for a blocker. If that is a walk, further walks are blocked while the result lives, so
    /// that the caller makes progress however many walks there are.
    #[cold]
    fn wait_for_blocker(
        &self,
        what: Blocker<'_>,
        lock_wait: &mut LockWait,
    ) -> Result<Option<WalkBlock<'_>>> {
        match what {
            Blocker::Bucket(site) => self.wait_for_bucket(site, lock_wait).map(|()| None),
            Blocker::Walk(hashes) => {
                let walk_block = self.walks.block_walks(hashes);
                self.region.ensure_sound().map(|()| Some(walk_block))
            }
        }
    }

    /// Waits for a bucket that another thread has locked, or whose level is given up.
    #[cold]
    fn wait_for_bucket(&self, site: Site<'_>, lock_wait: &mut LockWait) -> Result<()> {
        lock_wait.wait_at(&self.region, self.medium().offset_of(site.bucket))
    }

    /// Returns the record in a slot. Its bucket or its home is locked.
    fn record_at(&self, site: Site<'_>, slot: usize) -> Record {
        let (m, cells) = (self.medium(), bucket::slot_of(site.bucket, slot));
        let (slot_key, word) = (m.load(&cells.key), m.load(&cells.word));
        Record { slot_key, word, hashes: KeyHashes::of(K::slot_hash(slot_key, self.seed)) }
    }

    /// Returns the records of a locked bucket.
    fn records_of(&self, site: Site<'_>) -> impl Iterator<Item = (usize, Record)> {
        let taken = meta_of(self.medium(), site.bucket).taken();
        (0..G::SLOTS)
            .filter(move |slot| taken >> slot & 1 == 1)
            .map(move |slot| (slot, self.record_at(site, slot)))
    }

    /// Searches for a key, without a lock or a store.
    #[inline(always)]
    fn search(&self, probe: &Probe<'_, K>) -> Result<SearchResult<'_>> {
        let view = self.levels.view();
        let [home, second] = self.levels.pair(view.level, probe.hashes)?;
        let [third, fourth] = self.levels.pair(view.lowest(), probe.hashes)?;
        // All four together: the misses overlap.
        [second, third, fourth].into_iter().for_each(Site::prefetch);
        let version = Version(self.medium().load(&home.bucket.version));
        if version.is_home(self.generation) {
            // The records of a key whose home is here cannot be in a level above.
            return self.search_buckets(&[home, second, third, fourth], version, probe);
        }
        self.search_above(view, home, version, probe)
    }

    /// Continues a search if the first bucket is not the key's home, or cannot be used.
    #[cold]
    fn search_above<'a>(
        &'a self,
        view: View,
        first: Site<'a>,
        version: Version,
        probe: &Probe<'_, K>,
    ) -> Result<SearchResult<'a>> {
        if !version.is_of(self.generation) {
            return Ok(SearchResult::Stale(first));
        }
        if !version.is_promoted() || !view.growing {
            // Locked, or the view is outdated.
            return Ok(SearchResult::Retry(first));
        }
        let above = self.levels.pair(view.level + 1, probe.hashes)?;
        let middle = self.levels.pair(view.level, probe.hashes)?;
        let below = self.levels.pair(view.lowest(), probe.hashes)?;
        let version = Version(self.medium().load(&above[0].bucket.version));
        Ok(if version.is_home(self.generation) {
            let sites = [above[0], above[1], middle[0], middle[1], below[0], below[1]];
            return self.search_buckets(&sites, version, probe);
        } else if version.is_of(self.generation) {
            SearchResult::Retry(above[0])
        } else {
            SearchResult::Stale(above[0])
        })
    }

    /// Searches all buckets in which a key can be. The first is its home, whose version word has
    /// been read.
    #[inline(always)]
    fn search_buckets<'a>(
        &'a self,
        sites: &[Site<'a>],
        version: Version,
        probe: &Probe<'_, K>,
    ) -> Result<SearchResult<'a>> {
        let m = self.medium();
        let mut found = None;
        for &site in sites {
            if !Version(m.load(&site.bucket.version)).is_of(self.generation) {
                return Ok(SearchResult::Stale(site));
            }
            found = match self.locking {
                Locking::Optimistic => find(m, site.bucket, probe),
                Locking::Striped => match self.find_sharing(site, probe)? {
                    Some(found) => found,
                    None => return Ok(SearchResult::Retry(site)),
                },
            };
            if found.is_some() {
                break;
            }
        }
        Ok(match found {
            // Also checked if nothing was found: a record may have moved to a bucket that was
            // searched already.
            _ if !self.is_unchanged(sites[0], version) => SearchResult::Retry(sites[0]),
            Some((_, word)) => SearchResult::Found(word),
            None => SearchResult::Absent,
        })
    }

    /// Searches for a key in a bucket, which was recovered, while sharing the lock of its stripe.
    /// Returns `None` if a writer has that.
    fn find_sharing(
        &self,
        site: Site<'_>,
        probe: &Probe<'_, K>,
    ) -> Result<Option<Option<(usize, u64)>>> {
        let (m, cell) = (self.medium(), self.levels.stripe(site)?);
        if !stripe::share(m, cell, self.generation) {
            return Ok(None);
        }
        let found = find(m, site.bucket, probe);
        stripe::leave(m, cell);
        Ok(Some(found))
    }

    /// Returns `true` if no record with this home has changed since the version word was read.
    #[inline(always)]
    fn is_unchanged(&self, home: Site<'_>, version: Version) -> bool {
        // Acquire: everything above is read before the version is read again. A thread that changes
        // a record locks its home first, so an unchanged version means that nothing has changed.
        fence(Ordering::Acquire);
        self.medium().load_relaxed(&home.bucket.version) == version.0
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>, guard: &Guard<'_>) -> Result<Option<u64>> {
        if self.locking == Locking::Striped {
            // Sharing a lock stores, which is not allowed in a forked child.
            self.region.ensure_writable()?;
        }
        if self.resize == Resize::Blocking && self.levels.view().growing {
            self.finish_growth(guard)?;
        }
        match self.search(probe)? {
            SearchResult::Found(word) => Ok(Some(word)),
            SearchResult::Absent => Ok(None),
            SearchResult::Retry(_) | SearchResult::Stale(_) => self.lookup_slow(probe),
        }
    }

    /// Looks a key up in all cases: with buckets that are locked or stale, and levels that are
    /// added or removed meanwhile.
    #[cold]
    fn lookup_slow(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let mut lock_wait = LockWait::default();
        loop {
            match self.search(probe)? {
                SearchResult::Found(word) => return Ok(Some(word)),
                SearchResult::Absent => return Ok(None),
                SearchResult::Retry(site) => self.wait_for_bucket(site, &mut lock_wait)?,
                SearchResult::Stale(site) => self.recover(site)?,
            }
        }
    }

    /// Locks the home of the records with these hashes. If that is in the level above, marks the
    /// bucket below accordingly. Returns the bucket that another thread holds if the home cannot be
    /// locked now; then the view may be outdated.
    #[inline(always)]
    fn lock_home<'a>(
        &'a self,
        view: View,
        hashes: KeyHashes,
        locks: &mut Locks<'a>,
    ) -> Result<std::result::Result<LevelRange<'a>, Site<'a>>> {
        let mut home = self.levels.site(view.level, first_index::<G>(hashes, view.level))?;
        let mut high = view.level;
        if view.growing {
            if !self.promote_home(home)? {
                return Ok(Err(home));
            }
            high = view.level + 1;
            home = self.levels.site(high, first_index::<G>(hashes, high))?;
        }
        let locked = self.lock_bucket(home, locks)?;
        let is_home =
            locked && locks.of(home.bucket).is_some_and(|locked| !locked.version.is_promoted());
        Ok(if is_home { Ok(LevelRange { high, low: view.lowest(), home }) } else { Err(home) })
    }

    /// Adds the lock of a bucket to `locks`, and recovers the bucket if necessary. Returns `false`
    /// if another thread holds it.
    #[inline(always)]
    fn lock_bucket<'a>(&'a self, site: Site<'a>, locks: &mut Locks<'a>) -> Result<bool> {
        if locks.of(site.bucket).is_some() {
            return Ok(true);
        }
        if self.locking == Locking::Striped && !self.lock_stripe(site, locks)? {
            return Ok(false);
        }
        loop {
            match try_lock(self.medium(), site.bucket, self.generation) {
                Taking::Locked(locked) => {
                    locks.add(locked);
                    return Ok(true);
                }
                Taking::Busy => return Ok(false),
                Taking::Stale => self.recover(site)?,
            }
        }
    }

    /// Adds the lock of a bucket's stripe to `locks`. Returns `false` if another writer has it.
    ///
    /// Waits for readers while it holds other locks. They do not wait while they share one.
    #[inline(never)]
    fn lock_stripe<'a>(&'a self, site: Site<'a>, locks: &mut Locks<'a>) -> Result<bool> {
        // Nothing is stored to a chunk before it is known to be undamaged.
        self.ensure_recovered(site)?;
        let (m, cell) = (self.medium(), self.levels.stripe(site)?);
        if locks.has_stripe(cell) {
            return Ok(true);
        }
        if !stripe::try_lock(m, cell, self.generation) {
            return Ok(false);
        }
        locks.add_stripe(cell);
        let mut lock_wait = LockWait::default();
        while stripe::has_readers(m, cell) {
            lock_wait.wait_at(&self.region, m.offset_of(cell))?;
        }
        Ok(true)
    }

    /// Searches for a key whose home is locked, and recovers the buckets in which it can be.
    #[inline(always)]
    fn find_locked<'a>(
        &'a self,
        range: LevelRange<'a>,
        probe: &Probe<'_, K>,
    ) -> Result<Option<FoundRecord<'a>>> {
        for level in (range.low..=range.high).rev() {
            for site in self.levels.pair(level, probe.hashes)? {
                self.ensure_recovered(site)?;
                if let Some((slot, word)) = find(self.medium(), site.bucket, probe) {
                    return Ok(Some(FoundRecord { site, slot, word }));
                }
            }
        }
        Ok(None)
    }

    fn apply(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.region.ensure_writable()?;
        let poison = self.region.poison_on_panic();
        let probe = Probe::new(key, self.seed);
        let change = self.apply_until_done(Operation { probe: &probe, mode, guard }, decide);
        poison.disarm();
        change
    }

    fn apply_until_done(
        &self,
        operation: Operation<'_, '_, K>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let guard = operation.guard;
        let (mut lock_wait, mut walk_block) = (LockWait::default(), None);
        if self.levels.view().growing {
            self.help(operation.probe.hashes, guard)?;
        }
        loop {
            let mut locks = Locks::new();
            let attempt = self.attempt(&operation, &mut locks, decide);
            locks.release(self.medium());
            // Before this thread waits for anything.
            drop(walk_block.take());
            match attempt? {
                Attempt::Done(change, moved) => {
                    if moved {
                        self.prepare_ahead(guard)?;
                    }
                    return Ok(change);
                }
                Attempt::Busy(what) => walk_block = self.wait_for_blocker(what, &mut lock_wait)?,
                Attempt::Full => self.grow(guard)?,
            }
        }
    }

    /// Makes one attempt at a mutation, in the current levels. The caller releases the locks.
    fn attempt<'a>(
        &'a self,
        operation: &Operation<'_, '_, K>,
        locks: &mut Locks<'a>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Attempt<'a>> {
        let (m, probe, view) = (self.medium(), operation.probe, self.levels.view());
        // Before the lock is taken: a locked instruction delays the loads after it.
        self.levels.prefetch(view, probe.hashes)?;
        let range = match self.lock_home(view, probe.hashes, locks)? {
            Ok(range) => range,
            Err(site) => return Ok(Attempt::Busy(Blocker::Bucket(site))),
        };
        if let Some(found) = self.find_locked(range, probe)? {
            if let Some(busy) = self.drop_copies(range, &found, locks)? {
                return Ok(Attempt::Busy(Blocker::Bucket(busy)));
            }
            // Removing changes the bucket's tokens, which the bucket's own lock protects.
            if !self.lock_bucket(found.site, locks)? {
                return Ok(Attempt::Busy(Blocker::Bucket(found.site)));
            }
            return Ok(Attempt::Done(self.change(found, locks, decide), false));
        }
        if operation.mode == MutateMode::ExistingOnly {
            return Ok(Attempt::Done(Change::default(), false));
        }
        match self.find_slot(range, probe.hashes, locks)? {
            SlotSearch::Found(free) => {
                let Action::Put(word) = decide(None) else {
                    return Ok(Attempt::Done(Change::default(), false));
                };
                locks.changed = true;
                let record = Record { slot_key: probe.slot_key, word, hashes: probe.hashes };
                let moved = free.victim.is_some();
                placement::store_record(m, free, record);
                Ok(Attempt::Done(Change { old: None, new: Some(word) }, moved))
            }
            SlotSearch::Busy(what) => Ok(Attempt::Busy(what)),
            SlotSearch::Full => Ok(Attempt::Full),
        }
    }

    /// Carries out what `decide` returns for a record whose home and bucket are locked.
    fn change(
        &self,
        found: FoundRecord<'_>,
        locks: &mut Locks<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Change {
        let (m, old) = (self.medium(), Some(found.word));
        match decide(old) {
            Action::Keep => Change { old, new: old },
            Action::Put(word) => {
                locks.changed = true;
                bucket::overwrite(m, found.site.bucket, found.slot, word);
                Change { old, new: Some(word) }
            }
            Action::Remove => {
                locks.changed = true;
                bucket::erase(m, found.site.bucket, found.slot);
                m.fence();
                Change { old, new: None }
            }
        }
    }

    /// Looks up at most [`LOOKUP_BATCH`] keys with overlapping cache misses.
    fn lookup_together(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        let view = self.levels.view();
        let mut probes = [const { None }; LOOKUP_BATCH];
        for (&key, probe) in keys.iter().zip(&mut probes) {
            let hashes = probe.insert(Probe::<K>::new(key, self.seed)).hashes;
            self.levels.prefetch(view, hashes)?;
        }
        let probes = probes[..keys.len()].iter().flatten();
        for probe in probes.clone() {
            self.prefetch_match(view, probe.hashes)?;
        }
        for (probe, out) in probes.zip(out) {
            *out = self.lookup(probe, guard)?;
        }
        Ok(())
    }

    /// Prefetches what a lookup reads after the first lines of all buckets: a matching slot in a
    /// second line.
    #[inline(always)]
    fn prefetch_match(&self, view: View, hashes: KeyHashes) -> Result<()> {
        for level in [view.level, view.lowest()] {
            for site in self.levels.pair(level, hashes)? {
                let meta = meta_of(self.medium(), site.bucket);
                let matching = bucket::matching_slots(meta, hashes.fingerprint);
                if matching >> LINE_SLOTS != 0 {
                    prefetch(std::ptr::from_ref(&site.bucket.tokens).cast());
                }
            }
        }
        Ok(())
    }
}

impl<K: Key, M: Medium, G: Geometry> Index<K> for Level<K, M, G> {
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.seed), guard)
    }

    fn lookup_batch(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        for (keys, out) in keys.chunks(LOOKUP_BATCH).zip(out.chunks_mut(LOOKUP_BATCH)) {
            self.lookup_together(keys, out, guard)?;
        }
        Ok(())
    }

    fn mutate(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.apply(key, mode, guard, decide)
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        walk_order::for_each(self, &self.pool, each)
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let mut stats = Stats::default();
        self.walk(|records| {
            stats.len += records.len() as u64;
            true
        })?;
        let view = self.levels.view();
        stats.capacity = self.levels.buckets(view) * G::SLOTS as u64;
        stats.depth = view.highest();
        stats.pm_bytes = size_of::<Root>() as u64;
        let (segments, pm_bytes) = (&mut stats.segments, &mut stats.pm_bytes);
        self.each_block(|_, bytes| {
            *segments += 1;
            *pm_bytes += bytes;
        });
        stats.dram_bytes =
            (size_of::<Self>() + self.recovering.len() * size_of::<Mutex<()>>()) as u64;
        stats.splits = self.resizes.load(Ordering::Relaxed);
        stats.recovered = self.recovered.load(Ordering::Relaxed);
        Ok(stats)
    }
}

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    /// Calls `each` with the offset and the size of every block except the root.
    fn each_block(&self, each: impl FnMut(u64, u64)) {
        // The guard keeps a level that is given up meanwhile unchanged.
        let _guard = self.pool.pin();
        self.levels.blocks(each);
    }
}

impl<K: Key, M: Medium, G: Geometry> Persistent<M> for Level<K, M, G> {
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        if !(SMALLEST..=LARGEST).contains(&config.top_level) {
            let what = format!(
                "a top level of 2^{} buckets: the exponent must be {SMALLEST} to {LARGEST}",
                config.top_level
            );
            return Err(ErrorKind::Config(what).into());
        }
        let m = pool.medium();
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate(size_of::<Root>() as u64)?;
        let header = m.at::<Root>(block).expect("just allocated");
        header.levels.iter().for_each(|entry| m.store(entry, 0));
        m.store(&header.options, config.options());
        m.store(&header.kind, Self::kind());
        let levels = Levels::create(pool.clone(), block, config.top_level)?;
        fresh.keep();
        m.flush(header);
        m.fence();
        m.store(root, block);
        m.persist(root);
        Ok(Self::assemble(pool, block, (config.resize, config.locking), levels))
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Self::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        if root::is_of(&pool, root, Self::first_word(*b"LEVEL\0\0\0")) {
            let what = "the index is of an earlier format, which this version cannot read";
            return Err(ErrorKind::Config(what.into()).into());
        }
        let block = root::block_of(&pool, root, Self::kind())?;
        let m = pool.medium();
        let header = m
            .at::<Root>(block)
            .ok_or_else(|| Error::damaged(block, "the index's root ends outside the region"))?;
        // The process that stored the root may have died before it was durable, and the levels
        // decide where records are stored and which blocks are free.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(header);
        let options = m.load(&header.options);
        let options = Config::decode(options)
            .ok_or_else(|| Error::damaged(block, format!("impossible options {options:#x}")))?;
        let levels = Levels::open(pool.clone(), block)?;
        let everything = pool.region().must_recover_all();
        let index = Self::assemble(pool, block, options, levels);
        if everything {
            // Generations of an earlier opener could equal the current one: makes all buckets
            // stale.
            index.make_all_stale()?;
        }
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        self.each_block(|offset, _| visitor.block(offset));
        self.walk(|records| {
            records.iter().for_each(|record| visitor.word(record.word));
            !visitor.is_done()
        })
    }

    /// A unit is what one region of the lowest level covers: 768 buckets, or 1,792 while the table
    /// grows.
    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        walk_order::scan(self, from, guard, each)
    }

    fn check(&self) -> Vec<String> {
        self.check_everything()
    }
}
