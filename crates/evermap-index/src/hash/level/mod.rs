//! Level hashing: two levels of buckets, four places for a key.
//!
//! After "Write-Optimized and High-Performance Hashing Index Scheme for Persistent Memory" (Zuo, Hua, Wu; OSDI
//! 2018). The layout is in [`layout`]; a picture of the whole:
//!
//! ```text
//! top      [ 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 ]      two hash functions: one for the lower half of a level, one for
//!            \ /     \ /     \ /     \ /          the upper; so a key has two buckets in each. In large levels,
//! bottom   [   0   |   1   |   2   |   3   ]      of a region: see `levels`
//! ```
//!
//! The table grows by a level above the top, into which the bottom is emptied: a third of the records move. What
//! was the top is then the bottom, and none of its records had to move.
//!
//! What the paper describes is here: the two levels, tokens, movement within a level and from bottom to top,
//! updates without a log, resizing of the bottom level alone. What differs, and why:
//!
//! * **Tokens share a line with their slots**, so an insert takes one flush and one fence; a movement and the
//!   insert into the hole it leaves take two.
//! * **The two buckets of a key are near each other**, in the same region of a level, not anywhere in two halves of it. So
//!   the table can be walked through region by region, however records move, and a key's buckets share fewer pages.
//!   Regions fill less evenly than a level as a whole, so the table grows a little earlier.
//! * **A record's home is the first bucket where it can be**, and every change to it is made under the lock of
//!   that bucket, wherever it sits: so a lookup validates one version word, and stores nothing.
//! * **Growth by and by** ([`Resize::Incremental`]): the next level is written in instalments when buckets begin
//!   to be full, and the bottom is emptied one bucket a mutation. Lookups look into three levels meanwhile. The
//!   paper's way is [`Resize::Blocking`].
//! * **Growth is committed by single stores** to the root (see `levels`), and records are cleared below only
//!   when they are durable above. A crash can leave two copies of a record, never none; whoever next changes the
//!   record drops one (see `recover`).
//! * **Fingerprints** in the first line of each bucket tell most lookups that a key is elsewhere.
//! * **Keys with equal hashes** beyond what four buckets hold are refused, instead of growing the table for ever.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use evermap_pm::error::ErrorKind;
use evermap_pm::medium::{Note, prefetch};
use evermap_pm::region::Region;
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use crate::Key;
use crate::hash::FOUND_LATE;
use crate::hash::fresh::Fresh;
use crate::hash::lock_wait::LockWait;
use crate::hash::root;
use crate::index::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor};

mod bucket;
mod check;
pub mod layout;
mod levels;
mod recover;
mod resize;
mod room;
#[cfg(test)]
mod tests;
mod walk;

use bucket::{Locking, Locks, Probe, Record, Spot, find, meta_of, try_lock};
use layout::{LINE_SLOTS, Root, Version};
use levels::{LARGEST, Levels, SMALLEST, Site, View, first_of};
use resize::Growth;
use room::MakeRoom;
use walk::{KeptOut, Walks};

/// Shape of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The top level begins with `2^top_level` buckets of 128 bytes, the bottom with half as many. 2 to 40.
    pub top_level: u32,
    /// How the table grows.
    pub resize: Resize,
}

impl Default for Config {
    /// 768 buckets, 96 KiB.
    fn default() -> Self {
        Config { top_level: 9, resize: Resize::Incremental }
    }
}

/// How the table grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Mutations empty the bottom level bucket by bucket: bounded work for each.
    Incremental,
    /// The one that finds no room empties it at once, and all others wait: as in the paper.
    Blocking,
}

/// Level hashing over keys `K` in medium `M`, using `N` slots of each bucket; levels are allocated in chunks of
/// `2^C` buckets.
///
/// See the [module](self). The default is for use; [`Tiny`] is for tests.
pub struct Level<K: Key, M: Medium, const N: usize = { layout::SLOTS_MAX }, const C: u32 = 13> {
    pool: Arc<Pool<M>>,
    levels: Levels<M, C>,
    root: u64,
    resize: Resize,
    /// What every operation needs of the pool, close at hand.
    region: Arc<Region<M>>,
    generation: u64,
    seed: u64,
    /// Locks for recovering buckets.
    recovering: Box<[Mutex<()>]>,
    growth: Mutex<Growth>,
    /// The next bucket of the lowest level to be emptied.
    cursor: AtomicU64,
    /// Buckets of the lowest level that still have to be emptied.
    undrained: AtomicU64,
    /// There was no space for a further level: it is not prepared ahead of need.
    cramped: AtomicBool,
    walks: Walks,
    resizes: AtomicU64,
    recovered: AtomicU64,
    keys: PhantomData<fn(K) -> K>,
}

/// Buckets and levels so small that a handful of keys makes every structural change happen.
pub type Tiny<K, M> = Level<K, M, 4, 2>;

/// Keys looked up together in [`Index::get_many`].
const BATCH: usize = 16;

/// The levels in which the records of a key can be, and its home among them.
#[derive(Clone, Copy)]
struct Reach<'a> {
    high: u32,
    low: u32,
    home: Site<'a>,
}

/// Where a record sits.
struct Place<'a> {
    site: Site<'a>,
    slot: usize,
    word: u64,
}

/// What a look without locks found.
enum Look<'a> {
    Found(u64),
    Absent,
    /// Something changed meanwhile: look again.
    Again(Site<'a>),
    /// The bucket was not recovered since the region was opened.
    Stale(Site<'a>),
}

/// What came of one attempt at a mutation.
enum Attempt<'a> {
    /// It is done; and whether it had to move a record.
    Done(Change, bool),
    /// Release everything, wait for this, and try again.
    Busy(InTheWay<'a>),
    /// The table must grow.
    Full,
}

/// What an operation has to wait for, without a lock.
enum InTheWay<'a> {
    /// A bucket that another thread holds, or that was given up.
    Bucket(Site<'a>),
    /// A walk that copies the records around this spot, which must not move until that is done.
    Walk(Spot),
}

/// A mutation: of which key, and under which guard.
struct Operation<'a, 'k, K: Key> {
    probe: &'a Probe<'k, K>,
    mode: MutateMode,
    guard: &'a Guard<'a>,
}

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    const GEOMETRY_IS_POSSIBLE: () = assert!(N >= 1 && N <= layout::SLOTS_MAX && C >= 1 && C <= 13);

    /// First word of the root: "LEVEL", key format, geometry.
    fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        let region = u64::from(levels::region_bits(u32::MAX, C));
        let geometry = (N as u64) << 8 | region << 4 | u64::from(C);
        u64::from_le_bytes(*b"LEVEL\0\0\0") ^ u64::from(K::FORMAT) << 56 ^ geometry << 40
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    /// The pool underneath.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64, resize: Resize, levels: Levels<M, C>) -> Self {
        let view = levels.view();
        Level {
            region: pool.share_region(),
            generation: pool.generation(),
            seed: pool.seed(),
            recovering: (0..64).map(|_| Mutex::new(())).collect(),
            growth: Mutex::new(Growth::default()),
            cursor: AtomicU64::new(0),
            undrained: AtomicU64::new(view.steps()),
            cramped: AtomicBool::new(false),
            walks: Walks::default(),
            resizes: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            keys: PhantomData,
            pool,
            levels,
            root,
            resize,
        }
    }

    /// Waits for what is in the way. Where that is a walk, the next one is kept out while the result lives, so that the
    /// caller gets on however many walks there are.
    #[cold]
    fn wait_out(&self, what: InTheWay<'_>, patience: &mut LockWait) -> Result<Option<KeptOut<'_>>> {
        match what {
            InTheWay::Bucket(site) => self.wait_with(site, patience).map(|()| None),
            InTheWay::Walk(spot) => {
                let kept_out = self.walks.keep_out(spot);
                self.region.ensure_sound().map(|()| Some(kept_out))
            }
        }
    }

    /// Waits for a bucket that another thread holds, or has given up.
    #[cold]
    fn wait_with(&self, site: Site<'_>, patience: &mut LockWait) -> Result<()> {
        patience.wait_at(&self.region, self.medium().offset_of(site.bucket))
    }

    /// The record in a slot of a bucket that is locked, or whose home is.
    fn record_at(&self, site: Site<'_>, slot: usize) -> Record {
        let (m, cells) = (self.medium(), bucket::slot_of(site.bucket, slot));
        let (slot_key, word) = (m.load(&cells.key), m.load(&cells.word));
        Record { slot_key, word, spot: Spot::of(K::slot_hash(slot_key, self.seed)) }
    }

    /// The records of a bucket that is locked.
    fn records_of(&self, site: Site<'_>) -> impl Iterator<Item = (usize, Record)> {
        let taken = meta_of(self.medium(), site.bucket).taken();
        (0..N)
            .filter(move |slot| taken >> slot & 1 == 1)
            .map(move |slot| (slot, self.record_at(site, slot)))
    }

    /// Looks for a key without a lock or a store.
    #[inline(always)]
    fn look(&self, probe: &Probe<'_, K>) -> Result<Look<'_>> {
        let view = self.levels.view();
        let [home, second] = self.levels.pair(view.level, probe.spot)?;
        let [third, fourth] = self.levels.pair(view.lowest(), probe.spot)?;
        // All at once: one miss takes as long as four.
        [second, third, fourth].into_iter().for_each(Site::prefetch);
        let version = Version(self.medium().load(&home.bucket.version));
        if version.is_home(self.generation) {
            // A key that is at home here cannot be in a level above.
            return Ok(self.look_into(&[home, second, third, fourth], version, probe));
        }
        self.look_above(view, home, version, probe)
    }

    /// Goes on where the first bucket is not the key's home, or cannot be used.
    #[cold]
    fn look_above<'a>(
        &'a self,
        view: View,
        first: Site<'a>,
        version: Version,
        probe: &Probe<'_, K>,
    ) -> Result<Look<'a>> {
        if !version.is_of(self.generation) {
            return Ok(Look::Stale(first));
        }
        if !version.is_handed() || !view.growing {
            // Locked, or the view is of yesterday.
            return Ok(Look::Again(first));
        }
        let above = self.levels.pair(view.level + 1, probe.spot)?;
        let middle = self.levels.pair(view.level, probe.spot)?;
        let below = self.levels.pair(view.lowest(), probe.spot)?;
        let version = Version(self.medium().load(&above[0].bucket.version));
        Ok(if version.is_home(self.generation) {
            let sites = [above[0], above[1], middle[0], middle[1], below[0], below[1]];
            self.look_into(&sites, version, probe)
        } else if version.is_of(self.generation) {
            Look::Again(above[0])
        } else {
            Look::Stale(above[0])
        })
    }

    /// Looks into all buckets where a key can be; the first of them is its home, whose version word has been read.
    #[inline(always)]
    fn look_into<'a>(
        &'a self,
        sites: &[Site<'a>],
        version: Version,
        probe: &Probe<'_, K>,
    ) -> Look<'a> {
        let m = self.medium();
        let mut found = None;
        for &site in sites {
            if !Version(m.load(&site.bucket.version)).is_of(self.generation) {
                return Look::Stale(site);
            }
            found = find(m, site.bucket, probe);
            if found.is_some() {
                break;
            }
        }
        match found {
            // Checked after a miss too: a record may have moved behind the search.
            _ if !self.is_unchanged(sites[0], version) => Look::Again(sites[0]),
            Some((_, word)) => Look::Found(word),
            None => Look::Absent,
        }
    }

    /// Whether nothing has changed with the records that are at home here since this version word was read.
    #[inline(always)]
    fn is_unchanged(&self, home: Site<'_>, version: Version) -> bool {
        // Acquire: everything read above is read before the version is read again. Whoever changes a record
        // locks its home first, so an unchanged version means that nothing changed.
        fence(Ordering::Acquire);
        self.medium().load_relaxed(&home.bucket.version) == version.0
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>, guard: &Guard<'_>) -> Result<Option<u64>> {
        if self.resize == Resize::Blocking && self.levels.view().growing {
            self.finish_growth(guard)?;
        }
        match self.look(probe)? {
            Look::Found(word) => Ok(Some(word)),
            Look::Absent => Ok(None),
            Look::Again(_) | Look::Stale(_) => self.lookup_again(probe),
        }
    }

    /// The same with every case: buckets that are locked or stale, levels that come and go meanwhile.
    #[cold]
    fn lookup_again(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let mut patience = LockWait::default();
        loop {
            match self.look(probe)? {
                Look::Found(word) => return Ok(Some(word)),
                Look::Absent => return Ok(None),
                Look::Again(site) => self.wait_with(site, &mut patience)?,
                Look::Stale(site) => self.recover(site)?,
            }
        }
    }

    /// Locks the home of the records at this spot. Where that is in the level above, makes sure that everybody
    /// knows. `None`, with the bucket in the way, if it cannot be had now; then the view may be of yesterday.
    #[inline(always)]
    fn lock_home<'a>(
        &'a self,
        view: View,
        spot: Spot,
        locks: &mut Locks<'a>,
    ) -> Result<std::result::Result<Reach<'a>, Site<'a>>> {
        let mut home = self.levels.site(view.level, first_of::<C>(spot, view.level))?;
        let mut high = view.level;
        if view.growing {
            if !self.hand_over(home)? {
                return Ok(Err(home));
            }
            high = view.level + 1;
            home = self.levels.site(high, first_of::<C>(spot, high))?;
        }
        let held = self.take(home, locks)?;
        let is_home = held && locks.of(home.bucket).is_some_and(|held| !held.version.is_handed());
        Ok(if is_home { Ok(Reach { high, low: view.lowest(), home }) } else { Err(home) })
    }

    /// Locks a bucket beside others, recovering it if need be; `false` if another thread holds it.
    #[inline(always)]
    fn take<'a>(&self, site: Site<'a>, locks: &mut Locks<'a>) -> Result<bool> {
        if locks.of(site.bucket).is_some() {
            return Ok(true);
        }
        loop {
            match try_lock(self.medium(), site.bucket, self.generation) {
                Locking::Held(held) => {
                    locks.add(held);
                    return Ok(true);
                }
                Locking::Busy => return Ok(false),
                Locking::Stale => self.recover(site)?,
            }
        }
    }

    /// Looks for a key whose home is locked, and recovers the buckets where it can be.
    #[inline(always)]
    fn find_held<'a>(
        &'a self,
        reach: Reach<'a>,
        probe: &Probe<'_, K>,
    ) -> Result<Option<Place<'a>>> {
        for level in (reach.low..=reach.high).rev() {
            for site in self.levels.pair(level, probe.spot)? {
                self.ensure_fresh(site)?;
                if let Some((slot, word)) = find(self.medium(), site.bucket, probe) {
                    return Ok(Some(Place { site, slot, word }));
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
        let (mut patience, mut kept_out) = (LockWait::default(), None);
        if self.levels.view().growing {
            self.help(guard)?;
        }
        loop {
            let mut locks = Locks::new();
            let attempt = self.attempt(&operation, &mut locks, decide);
            locks.release(self.medium());
            // Before anything is waited for.
            drop(kept_out.take());
            match attempt? {
                Attempt::Done(change, moved) => {
                    if moved {
                        self.prepare_ahead(guard)?;
                    }
                    return Ok(change);
                }
                Attempt::Busy(what) => kept_out = self.wait_out(what, &mut patience)?,
                Attempt::Full => self.make_larger(guard)?,
            }
        }
    }

    /// One attempt at a mutation, as the levels are now. The caller releases the locks.
    fn attempt<'a>(
        &'a self,
        operation: &Operation<'_, '_, K>,
        locks: &mut Locks<'a>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Attempt<'a>> {
        let (m, probe, view) = (self.medium(), operation.probe, self.levels.view());
        // Before the lock is asked for: a locked instruction lets nothing after it begin early.
        self.levels.prefetch(view, probe.spot)?;
        let reach = match self.lock_home(view, probe.spot, locks)? {
            Ok(reach) => reach,
            Err(site) => return Ok(Attempt::Busy(InTheWay::Bucket(site))),
        };
        if let Some(place) = self.find_held(reach, probe)? {
            if let Some(busy) = self.drop_copies(reach, &place, locks)? {
                return Ok(Attempt::Busy(InTheWay::Bucket(busy)));
            }
            // Removing changes the bucket's tokens, which its lock protects.
            if !self.take(place.site, locks)? {
                return Ok(Attempt::Busy(InTheWay::Bucket(place.site)));
            }
            return Ok(Attempt::Done(self.change(place, locks, decide), false));
        }
        if operation.mode == MutateMode::ExistingOnly {
            return Ok(Attempt::Done(Change::default(), false));
        }
        match self.make_room(reach, probe.spot, locks)? {
            MakeRoom::Room(room) => {
                let Action::Put(word) = decide(None) else {
                    return Ok(Attempt::Done(Change::default(), false));
                };
                locks.changed = true;
                let record = Record { slot_key: probe.slot_key, word, spot: probe.spot };
                let moved = room.victim.is_some();
                room::place(m, room, record);
                Ok(Attempt::Done(Change { old: None, new: Some(word) }, moved))
            }
            MakeRoom::Busy(what) => Ok(Attempt::Busy(what)),
            MakeRoom::Full => Ok(Attempt::Full),
        }
    }

    /// Does what `decide` says about a record whose home and bucket are locked.
    fn change(
        &self,
        place: Place<'_>,
        locks: &mut Locks<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Change {
        let (m, old) = (self.medium(), Some(place.word));
        match decide(old) {
            Action::Keep => Change { old, new: old },
            Action::Put(word) => {
                locks.changed = true;
                bucket::overwrite(m, place.site.bucket, place.slot, word);
                Change { old, new: Some(word) }
            }
            Action::Remove => {
                locks.changed = true;
                bucket::erase(m, place.site.bucket, place.slot);
                m.fence();
                Change { old, new: None }
            }
        }
    }

    /// Looks up to [`BATCH`] keys up with their cache misses overlapped.
    fn lookup_batch(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        let view = self.levels.view();
        let mut probes = [const { None }; BATCH];
        for (&key, probe) in keys.iter().zip(&mut probes) {
            let spot = probe.insert(Probe::<K>::new(key, self.seed)).spot;
            self.levels.prefetch(view, spot)?;
        }
        let probes = probes[..keys.len()].iter().flatten();
        for probe in probes.clone() {
            self.prefetch_match(view, probe.spot)?;
        }
        for (probe, out) in probes.zip(out) {
            *out = self.lookup(probe, guard)?;
        }
        Ok(())
    }

    /// Fetches what a look will read after the first lines of all buckets: a slot that matches, if it is in a second
    /// line.
    #[inline(always)]
    fn prefetch_match(&self, view: View, spot: Spot) -> Result<()> {
        for level in [view.level, view.lowest()] {
            for site in self.levels.pair(level, spot)? {
                let meta = meta_of(self.medium(), site.bucket);
                let matching = bucket::matching_slots(meta, spot.fingerprint);
                if matching >> LINE_SLOTS != 0 {
                    prefetch(std::ptr::from_ref(&site.bucket.tokens).cast());
                }
            }
        }
        Ok(())
    }
}

impl<K: Key, M: Medium, const N: usize, const C: u32> Index<K> for Level<K, M, N, C> {
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.seed), guard)
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
            self.lookup_batch(keys, out, guard)?;
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
        self.walk(|records| records.iter().all(|record| each(record.slot_key, record.word)))
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let mut stats = Stats::default();
        self.walk(|records| {
            stats.len += records.len() as u64;
            true
        })?;
        let view = self.levels.view();
        stats.capacity = self.levels.buckets(view) * N as u64;
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

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    /// Calls `each` with the offset and size of every block but the root.
    fn each_block(&self, each: impl FnMut(u64, u64)) {
        // A level that is given up meanwhile must stay what it is while we look at it.
        let _guard = self.pool.pin();
        self.levels.blocks(each);
    }
}

impl<K: Key, M: Medium, const N: usize, const C: u32> Persistent<M> for Level<K, M, N, C> {
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
        // Nothing below is reachable until the root cell names it, so an error or a crash forgets it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate(size_of::<Root>() as u64)?;
        let header = m.at::<Root>(block).expect("just allocated");
        header.levels.iter().for_each(|entry| m.store(entry, 0));
        m.store(&header.resize, config.resize as u64);
        m.store(&header.kind, Self::kind());
        let levels = Levels::create(pool.clone(), block, config.top_level)?;
        fresh.keep();
        m.flush(header);
        m.fence();
        m.store(root, block);
        m.persist(root);
        Ok(Self::assemble(pool, block, config.resize, levels))
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Self::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let block = root::block_of(&pool, root, Self::kind())?;
        let m = pool.medium();
        let header = m
            .at::<Root>(block)
            .ok_or_else(|| Error::damaged(block, "the index's root ends outside"))?;
        // Whoever stored it may have died before it was durable, and which levels there are decides where records go,
        // and which blocks are free.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(header);
        let resize = match m.load(&header.resize) {
            0 => Resize::Incremental,
            1 => Resize::Blocking,
            other => return Err(Error::damaged(block, format!("impossible resizing {other:#x}"))),
        };
        let levels = Levels::open(pool.clone(), block)?;
        let everything = pool.region().must_recover_all();
        let index = Self::assemble(pool, block, resize, levels);
        if everything {
            // Stamps of an earlier opener could be taken for ours: make none be.
            index.make_all_stale()?;
        }
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        self.each_block(|offset, _| visitor.block(offset));
        self.walk(|records| {
            records.iter().for_each(|record| visitor.word(record.word));
            true
        })
    }

    /// The unit is what one region of the lowest level covers: 768 buckets, or 1,792 while the table grows.
    fn scan(
        &self,
        from: u64,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        self.walk_unit(from, each)
    }

    fn check(&self) -> Vec<String> {
        self.check_everything()
    }
}
