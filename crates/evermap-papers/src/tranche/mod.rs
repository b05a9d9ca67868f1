//! The heterogeneous table: records of any length in tranches whose place is computed.
//!
//! After the talk "TwoMisses: a hash table for two memory accesses" (Heller) in what it fixes, and
//! after older designs in the rest: linear hashing (Litwin 1980; Larson), variable-length pairs in
//! pages with large ones elsewhere (Seltzer, Yigit 1991). The layout is in [`layout`]. An overview:
//!
//! ```text
//! hash     low bits: set     mixed: group of the set     top bits: home     others: fingerprint
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
//! The table grows and shrinks by one group at a time, to which a share of the groups of a set
//! moves piece by piece (see [`place`] and `grow`). Where a key is follows from its hash and one
//! word; nothing else is stored about it, and nothing forwards.
//!
//! * [`Tranche`] is an index of this crate: keys and words of 8 bytes.
//! * [`TrancheMap`] maps byte strings to byte strings.
//! * `TrancheFile`, in the crate `evermap-tranche-file`, does so in a file that may be larger than
//!   memory.
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
//! | part of a group moves to a new group, or back | `state` in the root | 4 fences |
//!
//! Locks and counters of passed records are not flushed. The first thread that reaches a group
//! after opening recovers it: it drops records that have moved elsewhere, and of two records with
//! one key (an update that was not acknowledged, or a record that has returned to its home) the
//! second, and counts anew.
//!
//! Readers take no lock, and validate the version of the tranche in which the search ends if that
//! is the home, and otherwise that of the group. They see nothing that a crash could take back,
//! because both stay locked until a change is durable.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use evermap_index::Key;
use evermap_index::index::{
    Action, BATCH_KEYS, Change, Index, MutateMode, Persistent, Stats, Visitor,
};
use evermap_index::{record, root};
use evermap_pm::{Guard, Medium, PmU64, Pool, Result};

mod additions;
mod ahead;
mod arrays;
mod batch;
mod check;
mod entry;
mod fill;
mod geometry;
mod group;
mod grow;
mod image;
mod items;
pub mod layout;
mod map;
mod mistakes;
pub mod place;
mod placement;
mod reserve;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod walk;

use evermap_index::changes_by_apply;
use evermap_index::hash::probe::Probe;
use evermap_index::hash::walk_order::{self, Ranked};

use group::Stored;
use layout::Kind;
use table::{Format, Located, Locked, Table};

pub use batch::Batch;
pub use entry::{Entry, OccupiedEntry, VacantEntry, ValueMut};
pub use geometry::{Geometry, Sizes, TinySizes};
pub use map::{TinyMap, TrancheMap};
pub use placement::Placement;
pub use table::Config;
pub use value::ValueRef;

/// The deliberate mistakes that the crash campaigns of this index notice. Tests of their own look
/// for the others: TM-1, which shows only while a record is displaced although its home has room,
/// and growth returns such records; TM-2 and TM-6, which few schedules of threads show; and TM-5,
/// for walks.
pub const MUTANTS: &[&str] = &[mistakes::STRAYS_KEPT, mistakes::DUPLICATES_KEPT];

/// Pairs of the keys `K` and words.
struct Pairs<K>(PhantomData<fn(K) -> K>);

impl<K: Key> Format for Pairs<K> {
    const KIND: [u8; 8] = *b"TRAN3\0\0\0";
    const EARLIER: [u8; 8] = *b"TRAN2\0\0\0";
    const KEYS: u16 = K::FORMAT;
    const BYTE_STRINGS: bool = false;
    const WORDS_ARE_RECORDS: bool = K::WORDS_ARE_RECORDS;

    #[inline(always)]
    fn pair_hash(slot_key: u64, seed: u64) -> u64 {
        K::slot_hash(slot_key, seed)
    }
}

/// The heterogeneous table as an index of pairs.
///
/// See the [module](self). [`Tiny`] is for tests.
pub struct Tranche<K: Key, M: Medium, G: Geometry = Sizes<256, 16, 7>> {
    table: Table<Pairs<K>, M, G>,
}

/// Tranches of 256 bytes, for memory.
pub type Tranche256<K, M> = Tranche<K, M>;
/// Tranches of 512 bytes.
pub type Tranche512<K, M> = Tranche<K, M, Sizes<512, 16, 6>>;
/// Tranches of 4 KiB, the unit of page caches.
pub type Tranche4K<K, M> = Tranche<K, M, Sizes<4096, 16, 3>>;
/// Tranches of 32 KiB, for disks.
pub type Tranche32K<K, M> = Tranche<K, M, Sizes<{ 32 << 10 }, 4, 2>>;
/// Groups that are so small that a few keys cause every structural change.
pub type Tiny<K, M> = Tranche<K, M, TinySizes>;
/// The same with four tranches in a group, of which two have versions of their own.
pub type Small<K, M> = Tranche<K, M, Sizes<256, 4, 1>>;

impl<K: Key, M: Medium, G: Geometry> Tranche<K, M, G> {
    /// Returns the pool of the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.table.pool
    }

    /// Does up to `pieces` pieces of the growth that insertions would do soon: those that the fill
    /// asks for, and then those that complete the step under way, which adds a group to one set.
    /// Returns how many it did; less than `pieces` only if nothing is left. Each reads one part of
    /// a group: O(pieces). See [`TrancheMap::rehash_step`] for a thread that does all growth.
    ///
    /// How full the table is, is known from the groups that were used since it was opened.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`, `Poisoned`, `Forked`; the pieces that were done before remain done.
    pub fn rehash_step(&self, pieces: u64) -> Result<u64> {
        self.table.rehash(pieces)
    }

    /// Does all growth that insertions would do soon, and completes the step under way: see
    /// [`rehash_step`](Self::rehash_step). Returns the number of pieces. O(their number).
    ///
    /// # Errors
    /// The same.
    pub fn rehash_all(&self) -> Result<u64> {
        self.table.rehash(u64::MAX)
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
        self.lookup_at(self.table.locate(probe.hash), probe)
    }

    #[inline(always)]
    fn lookup_at(&self, located: Option<Located<'_>>, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        self.table.read_at(located, probe.hash, |group, reach| {
            let is_it = |stored: &Stored<'_>| self.is_of(stored, probe);
            let found = self.table.groups().search(group, probe.hash, reach, is_it)?;
            found.map(|stored| Ok(self.medium().load(&stored.payload[1])))
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
        self.table.prefetch_bucket(probe.hash);
        let mut locked = self.table.lock(probe.hash)?;
        let found = groups.find(locked.group, probe.hash, |stored| self.is_of(stored, probe))?;
        if let Some(stored) = found {
            return self.change_found(locked, &stored, probe.hash, guard, decide);
        }
        if mode == MutateMode::ExistingOnly {
            return Ok(Change::default());
        }
        let room = self.table.make_room(&mut locked, probe.hash, Kind::Pair, 2, guard)?;
        let Action::Put(word) = decide(None) else { return Ok(Change::default()) };
        locked.change(room.place);
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
        guard: &Guard<'_>,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let groups = self.table.groups();
        let cell = &stored.payload[1];
        let old = Some(self.medium().load(cell));
        match decide(old) {
            Action::Keep => Ok(Change { old, new: old }),
            Action::Put(word) => {
                locked.change(stored.place);
                groups.overwrite(cell, word);
                Ok(Change { old, new: Some(word) })
            }
            Action::Remove => {
                locked.change(stored.place);
                groups.kill(locked.group, stored, hash)?;
                let group = locked.group.index;
                drop(locked);
                let looks = self.table.removed(group, stored.bytes());
                self.table.shrink_after(looks, guard)?;
                Ok(Change { old, new: None })
            }
        }
    }

    /// Returns a record as a pair.
    ///
    /// # Errors
    /// `Damaged` if it is none.
    fn pair(&self, stored: &Stored<'_>) -> Result<(u64, u64)> {
        let m = self.medium();
        match stored.entry.kind {
            Kind::Pair => Ok((m.load(&stored.payload[0]), m.load(&stored.payload[1]))),
            _ => Err(self.table.groups().damaged(stored.tranche, "impossible kind of a record")),
        }
    }
}

impl<K: Key, M: Medium, G: Geometry> Index<K> for Tranche<K, M, G> {
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool().epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.table.seed))
    }

    fn lookup_batch(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        _guard: &Guard<'_>,
    ) -> Result<()> {
        let mut hashes = [0; BATCH_KEYS];
        for (hash, &key) in hashes.iter_mut().zip(keys) {
            *hash = K::hash(key, self.table.seed);
        }
        let batch = self.table.prefetch_batch(&hashes[..keys.len()], |word| {
            // Keys of other kinds are in the pair itself.
            if K::WORDS_ARE_RECORDS {
                K::prefetch(self.medium(), word, record::HEAD);
            }
        });
        for (at, ((&key, hash), out)) in keys.iter().zip(hashes).zip(out).enumerate() {
            *out = self.lookup_at(batch.located(at), &Probe::hashed(key, hash))?;
        }
        Ok(())
    }

    fn prefetch_bucket(&self, key: K::Ref<'_>) {
        self.table.prefetch_bucket(K::hash(key, self.table.seed));
    }

    fn prefetch_record(&self, key: K::Ref<'_>, bytes: u64) {
        if K::WORDS_ARE_RECORDS
            && let Some(word) = self.table.likely_word(K::hash(key, self.table.seed))
        {
            K::prefetch(self.medium(), word, bytes);
        }
    }

    changes_by_apply!();

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        walk_order::for_each(self, &self.table.pool, each)
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let mut stats = Stats::default();
        self.table.walk(
            |_| Ok(()),
            |page| {
                let blocks = page.overflows.len() as u64;
                stats.len += page.records.len() as u64;
                stats.segments += blocks;
                stats.pm_bytes += blocks * (G::TRANCHE_BYTES * G::TRANCHES) as u64;
                true
            },
        )?;
        self.table.add_stats(&mut stats);
        Ok(stats)
    }
}

impl<K: Key, M: Medium, G: Geometry> Ranked for Tranche<K, M, G> {
    const PLACE_BITS: u32 = Table::<Pairs<K>, M, G>::WALK.parts;

    fn range_bits(&self) -> u32 {
        self.table.range_bits()
    }

    fn show(
        &self,
        ranks: RangeInclusive<u64>,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let (read, page, next) = self.table.page(&ranks, |stored| self.pair(stored));
        if self.ensure_usable().is_ok() {
            page.records.iter().for_each(|&(key, word)| each(key, word));
        }
        (read, next)
    }

    fn ensure_usable(&self) -> Result<()> {
        self.table.region.ensure_writable()
    }
}

impl<K: Key, M: Medium, G: Geometry> Persistent<M> for Tranche<K, M, G> {
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        Ok(Tranche { table: Table::create(pool, root, config)? })
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Table::<Pairs<K>, M, G>::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(Tranche { table: Table::open(pool, root)? })
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.table.own_blocks(|block| visitor.block(block));
        let word = |stored: &Stored<'_>| self.pair(stored).map(|(_, word)| word);
        self.table.walk(word, |page| {
            page.overflows.iter().for_each(|&block| visitor.block(block));
            page.records.iter().for_each(|&word| visitor.word(word));
            !visitor.is_done()
        })
    }

    /// A unit is a part of all groups of a set: some thousand pairs at most, unless hashes collide.
    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        walk_order::scan(self, from, guard, each)
    }

    fn check(&self) -> Vec<String> {
        self.table.check_groups()
    }
}
