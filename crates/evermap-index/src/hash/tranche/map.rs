//! The table as a map from byte strings to byte strings.

use std::sync::Arc;

use evermap_pm::{Guard, Medium, PmU64, Pool, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::group::Stored;
use super::image::bytes_of;
use super::items::Encoded;
use super::table::{Config, Format, Locked, Table};
use crate::index::{Stats, Visitor};
use crate::root;

/// Records of byte strings. A pair of 8 bytes each is one without lengths.
pub(super) enum Strings {}

impl Format for Strings {
    const KIND: [u8; 8] = *b"TRMAP\0\0\0";
    const KEYS: u16 = 0;
    const BYTE_STRINGS: bool = true;
    const WORDS_ARE_RECORDS: bool = false;

    fn pair_hash(slot_key: u64, seed: u64) -> u64 {
        xxh3_64_with_seed(&slot_key.to_le_bytes(), seed)
    }
}

/// A concurrent persistent map from byte strings to byte strings, of any lengths, in groups of `G`
/// tranches of `T` bytes that are allocated in chunks of `2^C`.
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
pub struct TrancheMap<M: Medium, const T: usize = 256, const G: usize = 16, const C: u32 = 8> {
    pub(super) table: Table<Strings, M, T, G, C>,
}

/// Groups that are so small that a few keys cause every structural change.
pub type TinyMap<M> = TrancheMap<M, 256, 2, 1>;

impl<M: Medium, const T: usize, const G: usize, const C: u32> TrancheMap<M, T, G, C> {
    /// Creates an empty map, and publishes it by storing the offset of its block in the root cell
    /// `root` of the pool's region. Crash-atomic.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        Ok(TrancheMap { table: Table::create(pool, root, config)? })
    }

    /// Returns `true` if the root cell `root` names a map with this geometry.
    pub fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Table::<Strings, M, T, G, C>::kind())
    }

    /// Opens the map that the root cell `root` names. O(1): a group is recovered when it is first
    /// used.
    ///
    /// # Errors
    /// `Damaged` if the root cell does not name such a map.
    pub fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(TrancheMap { table: Table::open(pool, root)? })
    }

    /// Returns the pool of the map.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.table.pool
    }

    /// Returns the table, for tests.
    #[cfg(test)]
    pub(super) fn table(&self) -> &Table<Strings, M, T, G, C> {
        &self.table
    }

    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.table.seed)
    }

    /// Returns the value of a key. Expected O(1), without a lock or a store.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read(key, <[u8]>::to_vec)
    }

    /// Calls `read` with the value of a key, and returns its result. `None` if the key is absent.
    /// `read` gets a copy that no other thread changes, and may use the map.
    pub fn read<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let hash = self.hash(key);
        let guard = self.pool().pin();
        let bytes = self.table.read(hash, |group| {
            let Some(stored) = self.find(group, key, hash)? else { return Ok(None) };
            self.table.bytes_of(&stored, |_, value| value.to_vec()).map(Some)
        })?;
        drop(guard);
        Ok(bytes.map(|value| read(&value)))
    }

    /// Returns whether a key is present. Expected O(1), without a lock or a store.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        let hash = self.hash(key);
        let _guard = self.pool().pin();
        self.table.read(hash, |group| Ok(self.find(group, key, hash)?.is_some()))
    }

    fn find<'s>(
        &'s self,
        group: super::arrays::Group<'s>,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<Stored<'s>>> {
        let mut damage = None;
        let found = self.table.groups().find(group, hash, |stored| {
            self.table.is_of(stored, key, hash).unwrap_or_else(|error| {
                damage = Some(error);
                false
            })
        });
        match (found?, damage) {
            (None, Some(error)) => Err(error),
            (found, _) => Ok(found),
        }
    }

    /// Adds a key with a value, unless the key is present. Returns whether it was added.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.store(key, value, false).map(|present| !present)
    }

    /// Stores a value for a key. Returns whether the key was present before.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.store(key, value, true)
    }

    /// Stores a record. Returns whether the key was present before; then nothing changes unless
    /// `replace`.
    fn store(&self, key: &[u8], value: &[u8], replace: bool) -> Result<bool> {
        self.table.region.ensure_writable()?;
        let poison = self.table.region.poison_on_panic();
        let guard = self.pool().pin();
        let hash = self.hash(key);
        let stored = self.table.encode(key, value, hash).and_then(|mut record| {
            let stored = self.store_encoded(key, hash, &mut record, replace, &guard);
            if let Some(unused) = record.block {
                self.pool().free_unpublished(unused);
            }
            stored
        });
        poison.disarm();
        stored
    }

    /// Stores a record, whose block is taken out as soon as something may refer to it.
    fn store_encoded(
        &self,
        key: &[u8],
        hash: u64,
        record: &mut Encoded,
        replace: bool,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        let mut locked = self.table.lock(hash)?;
        let old = self.find(locked.group, key, hash)?;
        if old.is_some() && !replace {
            return Ok(true);
        }
        if let Some(old) = &old
            && self.overwrite(&mut locked, old, record, guard)
        {
            return Ok(true);
        }
        let (kind, words) = (record.kind, record.payload.len());
        let room = self.table.make_room(&mut locked, hash, kind, words, guard)?;
        // Making room may have moved it.
        let old = if old.is_some() { self.find(locked.group, key, hash)? } else { None };
        locked.changed = true;
        record.block = None;
        self.table.groups().add(locked.group, &room, hash, kind, &record.payload)?;
        if let Some(old) = &old {
            self.drop_record(&locked, old, hash, guard)?;
        }
        let group = locked.group.index;
        drop(locked);
        self.table.grow_after(group, bytes_of(words), guard)?;
        Ok(old.is_some())
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
        let both = old.payload.iter().zip(&record.payload);
        let mut different = both.filter(|&(cell, &word)| m.load(cell) != word);
        let (first, second) = (different.next(), different.next());
        if second.is_some() {
            return false;
        }
        if let Some((cell, &word)) = first {
            locked.changed = true;
            let replaced = self.table.block_of(old);
            record.block = None;
            self.table.groups().overwrite(cell, word);
            self.retire(replaced, guard);
        }
        true
    }

    /// Removes a record of a locked group, with its block.
    fn drop_record(
        &self,
        locked: &Locked<'_, M>,
        old: &Stored<'_>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let block = self.table.block_of(old);
        self.table.groups().kill(locked.group, old, hash)?;
        self.table.fill.remove(locked.group.index, old.bytes());
        self.retire(block, guard);
        Ok(())
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
            locked.changed = true;
            self.drop_record(&locked, &stored, hash, &guard)?;
            Ok(true)
        });
        poison.disarm();
        removed
    }

    /// Calls `each` with every key and its value, until it returns `false`. A record that is
    /// present throughout is shown exactly once; one that is added or removed meanwhile is shown at
    /// most once. O(n).
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let records = std::cell::RefCell::new(Vec::new());
        self.table.walk(
            |group| {
                self.table.groups().records(group, |stored| {
                    if stored.entry.dead {
                        return Ok(());
                    }
                    let record = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
                    records.borrow_mut().push(self.table.bytes_of(&stored, record)?);
                    Ok(())
                })
            },
            || records.borrow_mut().drain(..).all(|(key, value)| each(&key, &value)),
        )
    }

    /// Calls `each` with the offsets of the blocks that a group names, and the number of its
    /// records, for one group after another.
    fn walk_blocks(&self, mut each: impl FnMut(&[u64], u64) -> bool) -> Result<()> {
        let unit = std::cell::RefCell::new((Vec::new(), 0));
        self.table.walk(
            |group| {
                let (blocks, records) = &mut *unit.borrow_mut();
                blocks.extend(self.table.groups().overflows(group)?);
                self.table.groups().records(group, |stored| {
                    if !stored.entry.dead {
                        *records += 1;
                        blocks.extend(self.table.block_of(&stored));
                    }
                    Ok(())
                })
            },
            || {
                let (blocks, records) = unit.take();
                each(&blocks, records)
            },
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
        self.walk_blocks(|_, records| {
            stats.len += records;
            true
        })?;
        self.table.add_stats(&mut stats);
        Ok(stats)
    }

    /// Shows every block to `visitor`, and recovers each group on the way: see
    /// [`Persistent::visit`](crate::Persistent::visit).
    pub fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.table.own_blocks(|block| visitor.block(block));
        self.walk_blocks(|blocks, _| {
            blocks.iter().for_each(|&block| visitor.block(block));
            !visitor.is_done()
        })
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
