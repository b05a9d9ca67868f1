//! P-CLHT: a hash table whose buckets are cache lines, made persistent by the first condition of
//! RECIPE.
//!
//! After "Asynchronized Concurrency: The Secret to Scaling Concurrent Search Data Structures"
//! (David, Guerraoui, Trigonakis; ASPLOS 2015) and "RECIPE" (Lee, Mohan, Kashyap, Kim, Chidambaram;
//! SOSP 2019): the variant with locks that can be resized. The layout is in [`layout`]. An
//! overview:
//!
//! ```text
//! root ── table ─┬─ home bucket: lock, link, 3 pairs ── bucket ── bucket
//!                ├─ home bucket
//!                └─ ...                     the low bits of the hash choose the home bucket
//! ```
//!
//! The parts that the papers describe are all here: one line for a lookup and one flush for an
//! insert, lookups that store nothing and take no lock, chains of overflow buckets, and a resize in
//! which writers help. The differences and their reasons:
//!
//! * **Readers see what is durable.** Two words say which pairs a bucket holds: one that is
//!   persistent, and one that readers follow and that is updated when the first is durable. The
//!   papers' readers see a pair before it is durable, and a crash can take back what they returned.
//! * **Any key and any word.** Occupied slots are marked by bits, not by keys other than 0. A pair
//!   is read consistently by validating a version, not by reading its word twice, which does not
//!   notice a slot that was freed and filled with an equal word.
//! * **The table is published by one word** that is durable before any thread follows it. Lookups
//!   read a copy in ordinary memory.
//! * **Locks contain the generation**, so nothing is reset at opening. The first thread that
//!   reaches a bucket recovers it, without waiting for any other.
//! * **Empty overflow buckets are removed**, and a table that is nearly empty shrinks.
//! * **The hash is mixed**, and the table grows when many chains are long, not when there are many
//!   overflow buckets: keys with equal hashes make one chain longer, and nothing else.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use evermap_pm::medium::Note;
use evermap_pm::region::Region;
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Error, ErrorKind, Guard, Medium, PmU64, Pool, Result};

use crate::FOUND_LATE;
use crate::changes_by_apply;
use crate::fresh::Fresh;
use crate::hash::probe::Probe;
use crate::hash::walk_order;
use crate::index::{Action, BATCH_KEYS, Change, Index, MutateMode, Persistent, Stats, Visitor};
use crate::root;
use crate::{Key, recipe, record};

mod bucket;
mod chain;
mod check;
pub mod layout;
mod resize;
#[cfg(test)]
mod tests;
mod walk;

use bucket::{LockedChain, StoredPair, matching};
use chain::{PairRef, SearchResult};
use layout::{BITS_MAX, BITS_MIN, BUCKET_BYTES, Bucket, Link, PAIRS, Root, Table};
use resize::Resize;

/// The configuration of a new index.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The initial number of home buckets, 64 bytes each: rounded up to a power of two, at least 4.
    /// The table never has fewer.
    pub initial_buckets: u64,
}

impl Default for Config {
    /// 512 buckets: 32 KiB.
    fn default() -> Self {
        Config { initial_buckets: 512 }
    }
}

/// P-CLHT over keys `K` in medium `M`. See the [module](self).
pub struct Clht<K: Key, M: Medium> {
    pool: Arc<Pool<M>>,
    /// A copy of the pool's region, which every operation needs, to save an indirection.
    region: Arc<Region<M>>,
    /// A copy of the root's table word, changed only after that is durable.
    current: AtomicU64,
    generation: u64,
    seed: u64,
    root: u64,
    /// The binary logarithm of the smallest number of home buckets.
    floor: u32,
    resizing: Mutex<Option<Arc<Resize>>>,
    events: Events,
    keys: PhantomData<fn(K) -> K>,
}

/// Counters of events since opening. On separate cache lines, because every operation reads the
/// fields above.
#[derive(Default)]
#[repr(align(128))]
struct Events {
    /// Overflow buckets added.
    appended: AtomicU64,
    /// Overflow buckets added less those removed, also by replacing the table.
    overflow: AtomicI64,
    /// Chains that became empty.
    emptied: AtomicU64,
    grown: AtomicU64,
    shrunk: AtomicU64,
    recovered: AtomicU64,
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// Returns the first word of the root: "P-CLHT" and the key format.
    fn kind() -> u64 {
        u64::from_le_bytes(*b"P-CLHT\0\0") ^ u64::from(K::FORMAT) << 48
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    /// Returns the pool of the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64, table: Table, floor: u32) -> Self {
        Clht {
            region: pool.share_region(),
            current: AtomicU64::new(table.encode()),
            generation: pool.generation(),
            seed: pool.seed(),
            root,
            floor,
            resizing: Mutex::ranked(Rank::Resize, None),
            events: Events::default(),
            keys: PhantomData,
            pool,
        }
    }

    fn root(&self) -> &Root {
        self.medium().at(self.root).expect("checked when opened")
    }

    /// Returns the current table. Its blocks are not reused while a guard lives that was pinned
    /// before this call.
    #[inline(always)]
    fn table(&self) -> Table {
        // Acquire: pairs with the release in `set_table`, so that the buckets are initialised.
        Table::decode(self.current.load(Ordering::Acquire))
    }

    fn set_table(&self, table: Table) {
        self.current.store(table.encode(), Ordering::Release);
    }

    fn count_resize(&self, from: Table, to: Table) {
        let counter = if from.bits < to.bits { &self.events.grown } else { &self.events.shrunk };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn count_recovered(&self) {
        self.events.recovered.fetch_add(1, Ordering::Relaxed);
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
        let change = match self.attempt(&probe, mode, &mut None, guard, &mut decide) {
            Ok(Some(change)) => Ok(change),
            Ok(None) => self.apply_with_bucket(&probe, mode, guard, &mut decide),
            Err(error) => Err(error),
        };
        poison.disarm();
        change
    }

    /// Carries out what `decide` returns for a key. Returns `None`, without having called `decide`,
    /// if an overflow bucket is needed and `fresh` is empty.
    #[inline(always)]
    fn attempt(
        &self,
        probe: &Probe<'_, K>,
        mode: MutateMode,
        fresh: &mut Option<&Bucket>,
        guard: &Guard<'_>,
        decide: &mut (impl FnMut(Option<u64>) -> Action + ?Sized),
    ) -> Result<Option<Change>> {
        let mut chain = self.lock(probe.hash, guard)?;
        let free = match self.search(&chain, probe) {
            Ok(SearchResult::Absent(free)) => free,
            Ok(SearchResult::Present(pair)) => {
                return Ok(Some(self.change_at(chain, &pair, probe, guard, decide)));
            }
            Err(error) => {
                chain.release();
                return Err(error);
            }
        };
        let may_insert = mode == MutateMode::MayInsert;
        if may_insert && free.is_none() && fresh.is_none() {
            chain.release();
            return Ok(None);
        }
        let action = if may_insert { decide(None) } else { Action::Keep };
        let mut change = Change::default();
        if let Action::Put(word) = action {
            let pair = StoredPair { slot_key: probe.slot_key, word };
            match free {
                Some((bucket, slot)) => chain.put(bucket, slot, pair),
                None => fresh.take().into_iter().for_each(|bucket| {
                    chain.append(bucket, pair, self.generation);
                }),
            }
            change.new = Some(word);
        }
        chain.release();
        Ok(Some(change))
    }

    /// Does the same as [`attempt`](Self::attempt) with a new bucket, which is allocated before the
    /// lock is taken.
    #[cold]
    fn apply_with_bucket(
        &self,
        probe: &Probe<'_, K>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let block = self.pool.allocate_fixed(BUCKET_BYTES)?;
        let mut fresh = Some(self.bucket(block)?);
        let change = self.attempt(probe, mode, &mut fresh, guard, decide);
        match fresh {
            Some(_) => self.pool.free_unpublished(block),
            None => self.grow_if_crowded(probe.hash, guard),
        }
        Ok(change?.expect("there was a bucket for the pair"))
    }

    /// Carries out what `decide` returns for a pair that was found, and releases the chain.
    #[inline(always)]
    fn change_at(
        &self,
        mut chain: LockedChain<'_, M>,
        found: &PairRef<'_>,
        probe: &Probe<'_, K>,
        guard: &Guard<'_>,
        decide: &mut (impl FnMut(Option<u64>) -> Action + ?Sized),
    ) -> Change {
        let old = Some(found.word);
        match decide(old) {
            Action::Keep => {
                chain.release();
                Change { old, new: old }
            }
            Action::Put(word) => {
                let pair = StoredPair { slot_key: probe.slot_key, word };
                chain.replace(found.bucket, found.slot, pair);
                chain.release();
                Change { old, new: Some(word) }
            }
            Action::Remove => {
                self.remove_at(&mut chain, found, guard);
                let emptied = Link(self.medium().load_relaxed(&chain.home.link)) == Link::default();
                chain.release();
                if emptied {
                    self.shrink_if_sparse(guard);
                }
                Change { old, new: None }
            }
        }
    }

    /// Prefetches what a lookup reads after the home bucket: the record of the first matching word,
    /// or else the next bucket.
    #[inline(always)]
    fn prefetch_match(&self, home: &Bucket, slot_key: u64) {
        let m = self.medium();
        let candidates = matching(m, home, slot_key);
        if candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            K::prefetch(m, m.load_relaxed(&home.pairs[slot].word), record::HEAD);
        } else {
            m.prefetch(Link(m.load_relaxed(&home.link)).rest());
        }
    }
}

impl<K: Key, M: Medium> Index<K> for Clht<K, M> {
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.seed))
    }

    /// First prefetches all home buckets, then what they lead to.
    fn lookup_batch(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        let m = self.medium();
        let (mut hashes, mut homes) = ([0; BATCH_KEYS], [0; BATCH_KEYS]);
        let table = self.table();
        for ((&key, hash), home) in keys.iter().zip(&mut hashes).zip(&mut homes) {
            *hash = K::hash(key, self.seed);
            *home = table.home(table.home_of(*hash));
            m.prefetch(*home);
        }
        for ((&key, &hash), &home) in keys.iter().zip(&hashes).zip(&homes) {
            self.prefetch_match(self.bucket(home)?, K::slot_key(key, hash));
        }
        for ((&key, hash), out) in keys.iter().zip(hashes).zip(out) {
            *out = self.lookup(&Probe::hashed(key, hash))?;
        }
        Ok(())
    }

    changes_by_apply!();

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        walk_order::for_each(self, &self.pool, each)
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let mut stats = Stats::default();
        let mut overflow = 0;
        self.walk(|chain| {
            stats.len += chain.pairs.len() as u64;
            overflow += chain.overflow.len() as u64;
            true
        })?;
        let table = self.table();
        let buckets = table.buckets() + overflow;
        Ok(Stats {
            capacity: buckets * PAIRS as u64,
            segments: 1 + overflow,
            pm_bytes: size_of::<Root>() as u64 + buckets * BUCKET_BYTES,
            dram_bytes: size_of::<Self>() as u64,
            depth: table.bits,
            splits: self.events.grown.load(Ordering::Relaxed),
            merges: self.events.shrunk.load(Ordering::Relaxed),
            recovered: self.events.recovered.load(Ordering::Relaxed),
            ..stats
        })
    }
}

impl<K: Key, M: Medium> Persistent<M> for Clht<K, M> {
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        let m = pool.medium();
        let bits = config.initial_buckets.max(1 << BITS_MIN).next_power_of_two().trailing_zeros();
        if bits > BITS_MAX {
            let text = format!("{} home buckets are too many", config.initial_buckets);
            return Err(ErrorKind::Config(text).into());
        }
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate(size_of::<Root>() as u64)?;
        let table = Table { offset: 0, bits };
        let table = Table { offset: fresh.allocate(table.bytes())?, bits };
        fresh.keep();
        let index = Self::assemble(pool.clone(), block, table, bits);
        for number in 0..table.buckets() {
            index.write_bucket(table.home(number), &[], 0)?;
        }
        let header = index.root();
        m.store(&header.kind, Self::kind());
        m.store(&header.table, table.encode());
        m.store(&header.floor, u64::from(bits));
        m.flush(header);
        m.fence();
        recipe::commit(m, root, block);
        Ok(index)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Self::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let m = pool.medium();
        let block = root::block_of(&pool, root, Self::kind())?;
        let header = m
            .at::<Root>(block)
            .ok_or_else(|| Error::damaged(block, "the index's root ends outside the region"))?;
        // The process that stored the table word may have died before the flush.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(header);
        let table = Table::decode(m.load(&header.table));
        if !table.is_possible() || m.slice::<Bucket>(table.offset, table.buckets()).is_none() {
            return Err(Error::damaged(block, "the index's root names an impossible table"));
        }
        // Lookups store to the table. If the heap knows of another block there, that is damage.
        if pool.block_size_at(table.offset).is_some_and(|bytes| bytes < table.bytes()) {
            return Err(Error::damaged(
                block,
                "the index's root names something else than a table",
            ));
        }
        let floor = m.load(&header.floor).clamp(BITS_MIN.into(), BITS_MAX.into()) as u32;
        let everything = pool.region().must_recover_all();
        let index = Self::assemble(pool, block, table, floor);
        if everything {
            // Generations of an earlier opener could equal the current one: makes all buckets
            // stale.
            index.make_stale()?;
        }
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        {
            // Keeps a table that is replaced meanwhile unchanged while the visitor uses it.
            let _guard = self.pool.pin();
            visitor.block(self.table().offset);
        }
        self.walk(|chain| {
            chain.overflow.iter().for_each(|&block| visitor.block(block));
            chain.unrecognised.iter().for_each(|&block| visitor.unrecognised_block(block));
            chain.pairs.iter().for_each(|pair| visitor.word(pair.word));
            !visitor.is_done()
        })
    }

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
