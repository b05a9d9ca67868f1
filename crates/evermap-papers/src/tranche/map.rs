//! The table as a map from byte strings to byte strings.

use std::sync::Arc;

use evermap_index::index::{BATCH_KEYS, Stats, Visitor};
use evermap_index::root;
use evermap_pm::{Guard, Medium, PmU64, Pool, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::arrays::Group;
use super::batch::Batch;
use super::geometry::{Geometry, Sizes, TinySizes};
use super::group::{Reach, Search, Stored};
use super::image::bytes_of;
use super::items::Encoded;
use super::table::{Config, Format, Located, Locked, Table};
use super::value::{Copied, Found, ValueRef};

/// Records of byte strings. A pair of 8 bytes each is one without lengths.
pub(super) enum Strings {}

impl Format for Strings {
    const KIND: [u8; 8] = *b"TRMP3\0\0\0";
    const EARLIER: [u8; 8] = *b"TRMP2\0\0\0";
    const KEYS: u16 = 0;
    const BYTE_STRINGS: bool = true;
    const WORDS_ARE_RECORDS: bool = false;

    fn pair_hash(slot_key: u64, seed: u64) -> u64 {
        xxh3_64_with_seed(&slot_key.to_le_bytes(), seed)
    }
}

/// A concurrent persistent map from byte strings to byte strings, of any lengths.
///
/// Records of up to a fifth of a tranche are in the table, and longer ones each in a block of the
/// heap that the table names; the methods do not distinguish them. All operations are linearizable
/// per key, and changes are durable when they return, as far as the medium provides that.
///
/// See the [module](super).
///
/// # Errors
///
/// Every operation can return `Poisoned` (a thread panicked during a change) or `Damaged` (a word
/// or a checksum in the region is impossible). Changes can also return `Forked` and, if they store
/// a record, `NoSpace`; then nothing has changed.
pub struct TrancheMap<M: Medium, G: Geometry = Sizes<256, 16, 7>> {
    pub(super) table: Table<Strings, M, G>,
    /// Whether values of long records are lent.
    lends: bool,
}

/// Groups that are so small that a few keys cause every structural change.
pub type TinyMap<M> = TrancheMap<M, TinySizes>;

/// When a record is stored.
#[derive(Clone, Copy)]
pub(super) enum When {
    /// If the key is absent.
    Absent,
    Always,
    /// If the key has a value of the same length.
    SameLength,
}

/// What became of a record that was to be stored.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    /// Whether the key was present before.
    pub(super) present: bool,
    pub(super) stored: bool,
}

impl<M: Medium, G: Geometry> TrancheMap<M, G> {
    /// Creates an empty map, and publishes it by storing the offset of its block in the root cell
    /// `root` of the pool's region. Crash-atomic.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        Ok(TrancheMap { table: Table::create(pool, root, config)?, lends: false })
    }

    /// Returns `true` if the root cell `root` names a map with this geometry.
    pub fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Table::<Strings, M, G>::kind())
    }

    /// Opens the map that the root cell `root` names. O(1): a group is recovered when it is first
    /// used.
    ///
    /// # Errors
    /// `Damaged` if the root cell does not name such a map.
    pub fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(TrancheMap { table: Table::open(pool, root)?, lends: false })
    }

    /// Lets [`get_ref`](Self::get_ref) return the values of long records without copying them.
    ///
    /// # Safety
    /// As long as such a value lives, no other process and no other program writes the memory of
    /// the pool. It is so if the memory is this process's own, like that of
    /// [`Dram`](evermap_pm::medium::Dram), and if nothing else opens the file.
    pub unsafe fn assume_exclusive_memory(mut self) -> Self {
        self.lends = true;
        self
    }

    /// Returns the pool of the map.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.table.pool
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.table.seed)
    }

    /// Returns the value of a key. Expected O(1), without a lock or a store.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.copy_value(key)?.map(Copied::into_vec))
    }

    /// Calls `read` with the value of a key, and returns its result. `None` if the key is absent.
    /// `read` gets a copy that no other thread changes, and may use the map.
    pub fn read<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        Ok(self.copy_value(key)?.map(|value| read(&value)))
    }

    /// Returns the value of a key, to be read where it is if that is possible, and otherwise
    /// copied. Expected O(1), O(length) for the checksum of a long record; no lock, no store.
    ///
    /// Short records are always copied; long ones are unless
    /// [`assume_exclusive_memory`](Self::assume_exclusive_memory) was called. A value of up to 57
    /// bytes is copied without allocating memory.
    pub fn get_ref(&self, key: &[u8]) -> Result<Option<ValueRef<'_>>> {
        let guard = self.pool().pin();
        match self.find_lent(key)? {
            None => Ok(None),
            Some(Found::Copied(bytes)) => Ok(Some(ValueRef::copied(bytes))),
            Some(Found::Block(block)) => {
                // SAFETY: the block was found under the guard; the rest is a promise of the caller
                // of `assume_exclusive_memory`, without which no block is returned.
                unsafe { ValueRef::lent(self.pool().medium(), block, guard) }.map(Some)
            }
        }
    }

    /// Looks up many keys with overlapping cache misses: calls `each` with the number of each key
    /// in `keys` and its value, in this order, until `each` returns `false`. [`BATCH_KEYS`] keys at
    /// a time are looked up under one guard, without a lock or a store; `each` may use the map.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<ValueRef<'_>>) -> bool,
    ) -> Result<()> {
        for (batch, keys) in keys.chunks(BATCH_KEYS).enumerate() {
            let _guard = self.pool().pin();
            let mut hashes = [0; BATCH_KEYS];
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = self.hash(key.as_ref());
            }
            let found = self.table.prefetch_batch(&hashes[..keys.len()], |_| {});
            for (place, (key, &hash)) in keys.iter().zip(&hashes).enumerate() {
                let located = found.located(place);
                let value = match self.find_value(located, key.as_ref(), hash, false)? {
                    Some(Found::Copied(value)) => Some(ValueRef::copied(value)),
                    _ => None,
                };
                if !each(batch * BATCH_KEYS + place, value) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Prefetches what operations on up to [`BATCH_KEYS`] keys read first. A hint that these
    /// operations follow. Returns what has the locks for those that change something.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Batch<'_> {
        let mut hashes = [0; BATCH_KEYS];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
            count += 1;
        }
        let batch = self.table.prefetch_batch(&hashes[..count], |_| {});
        batch.prefetch_first();
        batch
    }

    /// Returns the value of a key in the form that [`get_ref`](Self::get_ref) returns. The caller
    /// holds a guard.
    fn find_lent(&self, key: &[u8]) -> Result<Option<Found>> {
        // In a forked child, a guard means nothing to the threads of the parent.
        let lends = self.lends && self.table.region.ensure_writable().is_ok();
        let hash = self.hash(key);
        self.find_value(self.table.locate(hash), key, hash, lends)
    }

    pub(super) fn copy_value(&self, key: &[u8]) -> Result<Option<Copied>> {
        let (_guard, hash) = (self.pool().pin(), self.hash(key));
        let found = self.find_value(self.table.locate(hash), key, hash, false)?;
        Ok(found.and_then(|found| match found {
            Found::Copied(value) => Some(value),
            Found::Block(_) => None,
        }))
    }

    /// Returns the value of a key, copied unless `lends`. The caller holds a guard.
    #[inline(always)]
    fn find_value(
        &self,
        located: Option<Located<'_>>,
        key: &[u8],
        hash: u64,
        lends: bool,
    ) -> Result<Option<Found>> {
        self.table.read_at(located, hash, |group, reach| {
            let found = self.search(group, key, hash, reach)?;
            found.map(|stored| self.table.value_of(&stored, lends))
        })
    }

    /// Returns whether a key is present. Expected O(1), without a lock or a store.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        let hash = self.hash(key);
        let _guard = self.pool().pin();
        let found = |group: Group<'_>, reach| self.search(group, key, hash, reach)?.map(|_| Ok(()));
        Ok(self.table.read(hash, found)?.is_some())
    }

    /// Returns the record of a key in a locked group.
    pub(super) fn find<'s>(
        &'s self,
        group: Group<'s>,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<Stored<'s>>> {
        match self.search(group, key, hash, Reach::Group)? {
            Search::Ended(found) => Ok(found),
            Search::GoesOn => Ok(None),
        }
    }

    #[inline(always)]
    fn search<'s>(
        &'s self,
        group: Group<'s>,
        key: &[u8],
        hash: u64,
        reach: Reach,
    ) -> Result<Search<Stored<'s>>> {
        let mut damage = None;
        let found = self.table.groups().search(group, hash, reach, |stored| {
            self.table.is_of(stored, key, hash).unwrap_or_else(|error| {
                damage = Some(error);
                false
            })
        });
        match (found?, damage) {
            (Search::Ended(None), Some(error)) => Err(error),
            (found, _) => Ok(found),
        }
    }

    /// Adds a key with a value, unless the key is present. Returns whether it was added.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.store(key, value, When::Absent).map(|outcome| !outcome.present)
    }

    /// Stores a value for a key. Returns whether the key was present before.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.store(key, value, When::Always).map(|outcome| outcome.present)
    }

    /// Stores a record, if what the key has permits it.
    pub(super) fn store(&self, key: &[u8], value: &[u8], when: When) -> Result<Outcome> {
        self.table.region.ensure_writable()?;
        let poison = self.table.region.poison_on_panic();
        let guard = self.pool().pin();
        let hash = self.hash(key);
        // Arrives while the record is encoded.
        self.table.prefetch_bucket(hash);
        let outcome = self.table.encode(key, value, hash).and_then(|mut record| {
            let permits = |old: Option<&Stored<'_>>| match when {
                When::Always => true,
                When::Absent => old.is_none(),
                When::SameLength => {
                    old.and_then(|old| self.table.value_len(old)) == Some(value.len())
                }
            };
            let outcome = self.store_encoded(key, hash, &mut record, permits, &guard);
            if let Some(unused) = record.block {
                self.pool().free_unpublished(unused);
            }
            outcome
        });
        poison.disarm();
        outcome
    }

    /// Stores a record if `permits` says so of the record that the key has. The block of the record
    /// is taken out as soon as something may refer to it.
    fn store_encoded(
        &self,
        key: &[u8],
        hash: u64,
        record: &mut Encoded,
        permits: impl FnOnce(Option<&Stored<'_>>) -> bool,
        guard: &Guard<'_>,
    ) -> Result<Outcome> {
        let mut locked = self.table.lock(hash)?;
        let old = self.find(locked.group, key, hash)?;
        let outcome = Outcome { present: old.is_some(), stored: permits(old.as_ref()) };
        if !outcome.stored {
            return Ok(outcome);
        }
        let words = record.payload.len();
        if self.store_locked(&mut locked, key, hash, record, old, guard)? {
            let group = locked.group.index;
            drop(locked);
            self.table.grow_after(group, bytes_of(words), guard)?;
        }
        Ok(outcome)
    }

    /// Stores a record in a locked group, where the key's record is `old`. Returns whether one was
    /// added, so that the table may have to grow.
    fn store_locked<'t>(
        &'t self,
        locked: &mut Locked<'t, M>,
        key: &[u8],
        hash: u64,
        record: &mut Encoded,
        old: Option<Stored<'t>>,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        if let Some(old) = &old
            && self.overwrite(locked, old, record, guard)
        {
            return Ok(false);
        }
        let (kind, words) = (record.kind, record.payload.len());
        let room = self.table.make_room(locked, hash, kind, words, guard)?;
        // Making room may have moved it.
        let old = if old.is_some() { self.find(locked.group, key, hash)? } else { None };
        locked.change(room.place);
        record.block = None;
        self.table.groups().add(locked.group, &room, hash, kind, &record.payload)?;
        if let Some(old) = &old {
            locked.change(old.place);
            // Whether the table should shrink is left to removals.
            self.drop_record(locked, old, hash, guard)?;
        }
        Ok(true)
    }

    /// Replaces a record by storing one word, if the two differ in no more.
    fn overwrite(
        &self,
        locked: &mut Locked<'_, M>,
        old: &Stored<'_>,
        record: &mut Encoded,
        guard: &Guard<'_>,
    ) -> bool {
        let m = self.table.medium();
        if old.entry.kind != record.kind || old.payload.len() != record.payload.len() {
            return false;
        }
        let both = old.payload.iter().zip(record.payload.iter());
        let mut different = both.filter(|&(cell, &word)| m.load(cell) != word);
        let (first, second) = (different.next(), different.next());
        if second.is_some() {
            return false;
        }
        if let Some((cell, &word)) = first {
            locked.change(old.place);
            let replaced = self.table.block_of(old);
            record.block = None;
            self.table.groups().overwrite(cell, word);
            self.retire(replaced, guard);
        }
        true
    }

    /// Removes a record of a locked group, with its block. Returns what
    /// [`shrink_after`](Table::shrink_after) needs.
    fn drop_record(
        &self,
        locked: &Locked<'_, M>,
        old: &Stored<'_>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<u64> {
        let block = self.table.block_of(old);
        self.table.groups().kill(locked.group, old, hash)?;
        self.retire(block, guard);
        Ok(self.table.removed(locked.group.index, old.bytes()))
    }

    fn retire(&self, block: Option<u64>, guard: &Guard<'_>) {
        if let Some(block) = block {
            let bytes = self.pool().block_size_at(block).unwrap_or_default();
            self.pool().retire(block, bytes, guard);
        }
    }

    /// Removes a key. Returns whether it was present.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.table.region.ensure_writable()?;
        let poison = self.table.region.poison_on_panic();
        let guard = self.pool().pin();
        let hash = self.hash(key);
        let removed = self.table.lock(hash).and_then(|mut locked| {
            let Some(stored) = self.find(locked.group, key, hash)? else { return Ok(false) };
            locked.change(stored.place);
            let looks = self.drop_record(&locked, &stored, hash, &guard)?;
            drop(locked);
            self.table.shrink_after(looks, &guard)?;
            Ok(true)
        });
        poison.disarm();
        removed
    }

    /// Grows the table until it has space for this many more records, each with `bytes` bytes of
    /// key and value together, so that adding them splits no group. O(records). Records that are
    /// stored in blocks take their space there when they are added.
    ///
    /// # Errors
    /// `NoSpace`; the table may have grown, and goes on when records are added.
    pub fn reserve(&self, records: u64, bytes: usize) -> Result<()> {
        self.table.region.ensure_writable()?;
        let poison = self.table.region.poison_on_panic();
        let words = match 1 + bytes.div_ceil(8) {
            words if words <= Table::<Strings, M, G>::DIRECT_WORDS => words,
            _ => 2,
        };
        let reserved = self.table.reserve(records.saturating_mul(bytes_of(words)));
        poison.disarm();
        reserved
    }

    /// Does up to `pieces` pieces of the growth that insertions would do soon: those that the fill
    /// asks for, and then those that complete the step under way, which adds a group to one set.
    /// Returns how many it did; less than `pieces` only if nothing is left. Each reads one part of
    /// a group: O(pieces).
    ///
    /// So a program can grow the map while it has nothing else to do, or in a thread that does this
    /// only. The map is then a 128th less full, and insertions find no growth to do unless they
    /// come faster than that thread works:
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # use std::time::Duration;
    /// # use evermap_papers::tranche::{Config, TrancheMap};
    /// # use evermap_pm::region::{Identity, RegionConfig};
    /// # use evermap_pm::Pool;
    /// # use evermap_pm::medium::{Dram, Pages};
    /// # let config = RegionConfig { extent_size: 1 << 20, capacity: 16 << 20, seed: None };
    /// # let medium = Dram::reserve(16 << 20, Pages::Base)?;
    /// # let pool = Pool::create(medium, &config, Identity::default())?;
    /// # let cell = pool.root(0);
    /// # let map: TrancheMap<_> = TrancheMap::create(pool.clone(), cell, Config::default())?;
    /// let done = AtomicBool::new(false);
    /// std::thread::scope(|scope| {
    ///     let growth = scope.spawn(|| {
    ///         while !done.load(Ordering::Relaxed) {
    ///             if map.rehash_step(64)? < 64 {
    ///                 std::thread::sleep(Duration::from_micros(100));
    ///             }
    ///         }
    ///         evermap_pm::Result::Ok(())
    ///     });
    ///     let inserted = (0..50_000u32).try_for_each(|key| {
    ///         map.insert(&key.to_le_bytes(), b"value").map(|_| ())
    ///     });
    ///     done.store(true, Ordering::Relaxed);
    ///     growth.join().expect("a thread that does not panic").and(inserted)
    /// })?;
    /// # Ok::<(), evermap_pm::Error>(())
    /// ```
    ///
    /// How full the map is, is known from the groups that were used since it was opened.
    ///
    /// # Errors
    /// `NoSpace`; the pieces that were done before remain done.
    pub fn rehash_step(&self, pieces: u64) -> Result<u64> {
        self.table.rehash(pieces)
    }

    /// Does all growth that insertions would do soon, and completes the step under way: see
    /// [`rehash_step`](Self::rehash_step). Returns the number of pieces. O(their number).
    ///
    /// # Errors
    /// `NoSpace`; the same.
    pub fn rehash_all(&self) -> Result<u64> {
        self.table.rehash(u64::MAX)
    }

    /// Calls `each` with every key and its value, until it returns `false`. A record that is
    /// present throughout is shown exactly once; one that is added or removed meanwhile is shown at
    /// most once. O(n).
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let record = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        self.table.walk_scattered(
            |stored| self.table.bytes_of(stored, record),
            |records| records.iter().all(|(key, value)| each(key, value)),
        )
    }

    /// Returns the number of records. O(n).
    pub fn len(&self) -> Result<u64> {
        self.stats().map(|stats| stats.len)
    }

    /// Returns whether there are no records. O(n).
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Returns the current size and structure. `capacity` is in records of 8 and 8 bytes, and
    /// `pm_bytes` is without the blocks of long records. O(n).
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = Stats::default();
        self.table.walk(
            |_| Ok(()),
            |page| {
                stats.len += page.records.len() as u64;
                true
            },
        )?;
        self.table.add_stats(&mut stats);
        Ok(stats)
    }

    /// Shows every block to `visitor`, and recovers each group on the way: see
    /// [`Persistent::visit`](evermap_index::Persistent::visit).
    pub fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.table.own_blocks(|block| visitor.block(block));
        self.table.walk(
            |stored| Ok(self.table.block_of(stored)),
            |page| {
                let blocks = page.overflows.iter().chain(page.records.iter().flatten());
                blocks.for_each(|&block| visitor.block(block));
                !visitor.is_done()
            },
        )
    }

    /// Walks the whole map, with the checksums of long records, and describes each violated
    /// invariant; returns an empty list if there is none. Must not run concurrently with changes.
    pub fn verify(&self) -> Vec<String> {
        let mut problems = self.table.check_groups();
        if let Err(error) = self.for_each(|_, _| true) {
            problems.push(error.to_string());
        }
        problems
    }
}
