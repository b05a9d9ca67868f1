//! The heterogeneous table: records of any length in tranches whose place is computed.
//!
//! After the talk "TwoMisses: a hash table for two memory accesses" (Heller) in what it fixes, and
//! after older designs in the rest: linear hashing (Litwin 1980; Larson), variable-length pairs in
//! pages with large ones elsewhere (Seltzer, Yigit 1991). The layout is in [`layout`]. An overview:
//!
//! ```text
//! hash     low bits: group             top bits: home in the group     others: fingerprint
//!
//! group    [ tranche 0 | tranche 1 | tranche 2 | tranche 3 ]  ->  overflow block, seldom
//!
//! tranche  [ header | fingerprints, entries -> | free | <- payloads ]
//! ```
//!
//! A *tranche* has a fixed size and is larger than any record in it. A key's search begins at its
//! home tranche and goes on to the next ones in the same group, wrapping around. Each tranche
//! counts the records that have passed it: with 0, a search stops there. So nearly all lookups read
//! one tranche, whether the key is present or not, and there are no tombstones.
//!
//! Records that are longer than a fifth of a tranche are stored in blocks of the heap, and the
//! table names these: one more access.
//!
//! The table grows in rounds in which one group after the other is split (see `grow`). Where a key
//! is follows from its hash and one word; nothing else is stored about it, and nothing forwards.
//!
//! * [`Tranche`] is an index of this crate: keys and words of 8 bytes.
//! * [`TrancheMap`] maps byte strings to byte strings.
//! * [`disk::TrancheFile`] does so in a file that may be larger than memory.
//!
//! # Crash safety
//!
//! | change | committed by | flushes, fences |
//! |---|---|---|
//! | a record is added | the word that counts the records of the tranche | 2, 2 |
//! | a record is added in the place of a dead one | the word with its entry | 2, 2 |
//! | one word of a record changes | that word | 1, 1 |
//! | a record is removed | the word with its entry | 1, 1 |
//! | a record is replaced | first like an addition, then like a removal | 3, 3 |
//! | a group is rewritten without dead records | `redo` in the root, see [`layout::Redo`] | |
//! | a group is split | `state` in the root, then `redo` in the same line | |
//!
//! Locks and counters of passed records are not flushed. The first thread that reaches a group
//! after opening recovers it: it drops records that a split has moved, and of two records with one
//! key (an update that was not acknowledged) the second, and counts anew.
//!
//! Readers take no lock, and validate the version of the group. They see nothing that a crash could
//! take back, because a group stays locked until its change is durable.

use std::marker::PhantomData;
use std::sync::Arc;

use evermap_pm::medium::prefetch;
use evermap_pm::{Guard, Medium, PmU64, Pool, Result};

use crate::Key;
use crate::index::{Action, BATCH_KEYS, Change, Index, MutateMode, Persistent, Stats, Visitor};
use crate::root;

mod arrays;
mod check;
pub mod disk;
mod fill;
mod group;
mod grow;
mod image;
mod items;
pub mod layout;
mod map;
mod placement;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use super::changes::changes_by_apply;
use super::probe::Probe;
use group::Stored;
use layout::{Kind, Shape};
use table::{Format, Locked, Table};

pub use map::{TinyMap, TrancheMap};
pub use placement::Placement;
pub use table::Config;

/// The deliberate mistakes that the crash campaigns of this index notice. There is also TM-2, which
/// few schedules of threads show; a test of its own looks for one.
pub const MUTANTS: &[&str] = &["TM-1"];

/// Pairs of the keys `K` and words.
struct Pairs<K>(PhantomData<fn(K) -> K>);

impl<K: Key> Format for Pairs<K> {
    const KIND: [u8; 8] = *b"TRANC\0\0\0";
    const KEYS: u16 = K::FORMAT;
    const BYTE_STRINGS: bool = false;
    const WORDS_ARE_RECORDS: bool = K::WORDS_ARE_RECORDS;

    #[inline(always)]
    fn pair_hash(slot_key: u64, seed: u64) -> u64 {
        K::slot_hash(slot_key, seed)
    }
}

/// The heterogeneous table as an index of pairs, with groups of `G` tranches of `T` bytes that are
/// allocated in chunks of `2^C`.
///
/// See the [module](self). [`Tiny`] is for tests.
pub struct Tranche<K: Key, M: Medium, const T: usize = 256, const G: usize = 16, const C: u32 = 8> {
    table: Table<Pairs<K>, M, T, G, C>,
}

/// Tranches of 256 bytes, for memory.
pub type Tranche256<K, M> = Tranche<K, M>;
/// Tranches of 512 bytes.
pub type Tranche512<K, M> = Tranche<K, M, 512, 16, 7>;
/// Tranches of 4 KiB, the unit of page caches.
pub type Tranche4K<K, M> = Tranche<K, M, 4096, 16, 4>;
/// Tranches of 32 KiB, for disks.
pub type Tranche32K<K, M> = Tranche<K, M, { 32 << 10 }, 8, 2>;
/// Groups that are so small that a few keys cause every structural change.
pub type Tiny<K, M> = Tranche<K, M, 256, 2, 1>;

impl<K: Key, M: Medium, const T: usize, const G: usize, const C: u32> Tranche<K, M, T, G, C> {
    /// Returns the pool of the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.table.pool
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.table.medium()
    }

    /// Returns whether a record is that of a key.
    #[inline(always)]
    fn is_of(&self, stored: &Stored<'_>, probe: &Probe<'_, K>) -> bool {
        let m = self.medium();
        stored.entry.kind == Kind::Pair
            && m.load_relaxed(&stored.payload[0]) == probe.slot_key
            && K::matches(m, m.load(&stored.payload[1]), probe.key)
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        self.table.read(probe.hash, |group| {
            let found =
                self.table.groups().find(group, probe.hash, |stored| self.is_of(stored, probe));
            Ok(found?.map(|stored| self.medium().load(&stored.payload[1])))
        })
    }

    fn apply(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool().epoch()), "a guard of another pool");
        self.table.region.ensure_writable()?;
        let poison = self.table.region.poison_on_panic();
        let probe = Probe::new(key, self.table.seed);
        let change = self.change(&probe, mode, guard, decide);
        poison.disarm();
        change
    }

    fn change(
        &self,
        probe: &Probe<'_, K>,
        mode: MutateMode,
        guard: &Guard<'_>,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let groups = self.table.groups();
        // Before the lock is taken: a locked instruction delays the loads after it.
        self.prefetch_home(probe.hash);
        let mut locked = self.table.lock(probe.hash)?;
        let found = groups.find(locked.group, probe.hash, |stored| self.is_of(stored, probe))?;
        if let Some(stored) = found {
            return self.change_found(locked, &stored, probe.hash, decide);
        }
        if mode == MutateMode::ExistingOnly {
            return Ok(Change::default());
        }
        let room = self.table.make_room(&mut locked, probe.hash, Kind::Pair, 2, guard)?;
        let Action::Put(word) = decide(None) else { return Ok(Change::default()) };
        locked.changed = true;
        let pair = [probe.slot_key, word];
        groups.add(locked.group, &room, probe.hash, Kind::Pair, &pair)?;
        let group = locked.group.index;
        drop(locked);
        self.table.grow_after(group, image::bytes_of(2), guard)?;
        Ok(Change { old: None, new: Some(word) })
    }

    fn change_found(
        &self,
        mut locked: Locked<'_, M>,
        stored: &Stored<'_>,
        hash: u64,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let groups = self.table.groups();
        let cell = &stored.payload[1];
        let old = Some(self.medium().load(cell));
        match decide(old) {
            Action::Keep => Ok(Change { old, new: old }),
            Action::Put(word) => {
                locked.changed = true;
                groups.overwrite(cell, word);
                Ok(Change { old, new: Some(word) })
            }
            Action::Remove => {
                locked.changed = true;
                groups.kill(locked.group, stored, hash)?;
                self.table.fill.remove(locked.group.index, stored.bytes());
                Ok(Change { old, new: None })
            }
        }
    }

    /// Prefetches what an operation reads first: the group's lock, and the header of the home.
    #[inline(always)]
    fn prefetch_home(&self, hash: u64) {
        let index = self.table.arrays.state().group_of(hash);
        if let Ok(group) = self.table.arrays.group(index) {
            prefetch(std::ptr::from_ref(&group.words[0]).cast());
            let home = &group.words[image::home::<G>(hash) * Shape::<T>::WORDS];
            prefetch(std::ptr::from_ref(home).cast());
        }
    }

    /// Calls `each` with the pairs and the overflow blocks of one group after another.
    fn walk_groups(&self, mut each: impl FnMut(&[(u64, u64)], &[u64]) -> bool) -> Result<()> {
        let (pairs, blocks) = (&mut Vec::new(), &mut Vec::new());
        let unit = std::cell::RefCell::new((pairs, blocks));
        self.table.walk(
            |group| {
                let (pairs, blocks) = &mut *unit.borrow_mut();
                blocks.extend(self.table.groups().overflows(group)?);
                self.copy_pairs(group, pairs)
            },
            || {
                let (pairs, blocks) = &mut *unit.borrow_mut();
                let more = each(pairs, blocks);
                pairs.clear();
                blocks.clear();
                more
            },
        )
    }

    fn copy_pairs(&self, group: arrays::Group<'_>, pairs: &mut Vec<(u64, u64)>) -> Result<()> {
        let m = self.medium();
        self.table.groups().records(group, |stored| {
            if !stored.entry.dead {
                // Checks that it is a pair.
                self.table.hash_of(&stored)?;
                pairs.push((m.load(&stored.payload[0]), m.load(&stored.payload[1])));
            }
            Ok(())
        })
    }
}

impl<K: Key, M: Medium, const T: usize, const G: usize, const C: u32> Index<K>
    for Tranche<K, M, T, G, C>
{
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool().epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.table.seed))
    }

    fn get_many(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        _guard: &Guard<'_>,
    ) -> Result<()> {
        let out = &mut out[..keys.len()];
        for (keys, out) in keys.chunks(BATCH_KEYS).zip(out.chunks_mut(BATCH_KEYS)) {
            let mut probes = [const { None }; BATCH_KEYS];
            for (&key, probe) in keys.iter().zip(&mut probes) {
                let probe = probe.insert(Probe::<K>::new(key, self.table.seed));
                self.prefetch_home(probe.hash);
            }
            for (probe, out) in probes.iter().flatten().zip(out) {
                *out = self.lookup(probe)?;
            }
        }
        Ok(())
    }

    fn prefetch_bucket(&self, key: K::Ref<'_>) {
        self.prefetch_home(K::hash(key, self.table.seed));
    }

    changes_by_apply!();

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.walk_groups(|pairs, _| pairs.iter().all(|&(key, word)| each(key, word)))
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let mut stats = Stats::default();
        self.walk_groups(|pairs, blocks| {
            stats.len += pairs.len() as u64;
            stats.segments += blocks.len() as u64;
            stats.pm_bytes += blocks.len() as u64 * (T * G) as u64;
            true
        })?;
        self.table.add_stats(&mut stats);
        Ok(stats)
    }
}

impl<K: Key, M: Medium, const T: usize, const G: usize, const C: u32> Persistent<M>
    for Tranche<K, M, T, G, C>
{
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        Ok(Tranche { table: Table::create(pool, root, config)? })
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Table::<Pairs<K>, M, T, G, C>::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(Tranche { table: Table::open(pool, root)? })
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.table.own_blocks(|block| visitor.block(block));
        self.walk_groups(|pairs, blocks| {
            blocks.iter().for_each(|&block| visitor.block(block));
            pairs.iter().for_each(|&(_, word)| visitor.word(word));
            !visitor.is_done()
        })
    }

    /// A unit is a group.
    fn scan(
        &self,
        from: u64,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let mut pairs = Vec::new();
        let (read, next) = self.table.read_unit(from, |group| self.copy_pairs(group, &mut pairs));
        pairs.iter().for_each(|&(key, word)| each(key, word));
        (read, next)
    }

    fn check(&self) -> Vec<String> {
        self.table.check_groups()
    }
}
