//! The table of records, whatever their keys are: locks, recovery, growth and walks.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use evermap_index::FOUND_LATE;
use evermap_index::fresh::Fresh;
use evermap_index::index::Stats;
use evermap_index::lock_wait::LockWait;
use evermap_index::root;
use evermap_pm::error::ErrorKind;
use evermap_pm::medium::Note;
use evermap_pm::region::{self, Region};
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::arrays::{Arrays, Group};
use super::fill::Fill;
use super::geometry::Geometry;
use super::group::{Groups, Reach, Room, Search, Stored};
use super::image::{Image, bytes_of, home};
use super::layout::{
    COMMIT, Commit, GROUP_WORD, Kind, LINK, Named, OVERFLOWS_MAX, Redo, Root, Shape, Version,
};
use super::mistakes;
use super::place::{DEPTH_MAX, State};

/// The configuration of a new table.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The binary logarithm of the initial number of groups, 0 to 30 at least. The table never has
    /// fewer.
    pub initial_depth: u32,
}

impl Default for Config {
    /// Four groups.
    fn default() -> Self {
        Config { initial_depth: 2 }
    }
}

/// What the records of a table are.
pub(super) trait Format: 'static {
    /// Identifies the kind of table in the persistent format.
    const KIND: [u8; 8];
    /// The same in the format before, in which tables had fewer parts.
    const EARLIER: [u8; 8];
    /// Identifies the kind of keys.
    const KEYS: u16;
    /// `true` if there are records of every kind, and the hash of a key is that of its bytes.
    /// Otherwise there are only pairs.
    const BYTE_STRINGS: bool;
    /// `true` if the words of pairs name records, so that several pairs may have the same key word.
    const WORDS_ARE_RECORDS: bool;

    /// Returns the hash of the key of a pair.
    fn pair_hash(slot_key: u64, seed: u64) -> u64;
}

/// A table of records.
pub(super) struct Table<F: Format, M: Medium, G: Geometry> {
    pub(super) pool: Arc<Pool<M>>,
    pub(super) arrays: Arrays<M, G>,
    root: u64,
    /// A reference to the pool's region, which every operation needs, to save an indirection.
    pub(super) region: Arc<Region<M>>,
    pub(super) generation: u64,
    pub(super) seed: u64,
    /// Locks for the recovery of groups.
    recovering: Box<[Mutex<()>]>,
    /// Held by the thread that moves a part. It alone locks two groups.
    pub(super) growth: Mutex<()>,
    /// The number of moves, in several counters by the sets in which they were.
    pub(super) moves: [AtomicU64; STRIPES],
    /// Held by the thread that rewrites a group. Such a thread waits for no other lock.
    redo: Mutex<()>,
    redo_block: u64,
    pub(super) fill: Fill,
    /// Pieces of growth that are due because a group has overflowed.
    pub(super) overfull: AtomicU64,
    /// Groups that were added.
    pub(super) splits: AtomicU64,
    /// Groups that were given up.
    pub(super) merges: AtomicU64,
    recovered: AtomicU64,
    format: PhantomData<fn(F) -> F>,
}

/// The number of counters of moves.
const STRIPES: usize = 64;

/// The group of a key, and the encoded state that led there.
#[derive(Clone, Copy)]
pub(super) struct Located<'t> {
    state: u64,
    pub(super) group: Group<'t>,
}

/// A group that this thread has locked. Dropping it unlocks the group.
pub(super) struct Locked<'t, M: Medium> {
    pub(super) medium: &'t M,
    pub(super) group: Group<'t>,
    /// The word of the group when it was not locked.
    pub(super) version: Version,
    /// `true` if anything was changed that readers of the whole group must notice.
    pub(super) changed: bool,
    /// The tranches that readers of only these must notice, as bits.
    tranches: u64,
    /// The number of tranches in the group.
    count: usize,
}

impl<'t, M: Medium> Locked<'t, M> {
    /// Returns a group of `count` tranches whose lock this thread has taken.
    pub(super) fn new(medium: &'t M, group: Group<'t>, version: Version, count: usize) -> Self {
        Locked { medium, group, version, changed: false, tranches: 0, count }
    }

    /// Returns the version of a tranche that has one of its own.
    fn version_of(&self, place: usize) -> Option<&'t PmU64> {
        let own = place < self.count && place != 0 && place != LINK;
        own.then(|| &self.group.words[place * (self.group.words.len() / self.count) + GROUP_WORD])
    }

    /// Announces that records of a tranche change, or that keys whose home it is move. To be called
    /// before that: readers of the tranche wait until the group is unlocked.
    #[inline(always)]
    pub(super) fn change(&mut self, place: usize) {
        self.changed = true;
        if let Some(cell) = self.version_of(place)
            && self.tranches >> place & 1 == 0
            && !self.medium.mutant(mistakes::MOVE_UNANNOUNCED)
        {
            self.tranches |= 1 << place;
            // Nobody else stores it while the group is locked.
            let locked = Version(self.medium.load_relaxed(cell)).locked();
            // Release, as all further stores are: who reads any of them sees this one too.
            self.medium.store_transient(cell, locked.0);
        }
    }

    /// Announces that all tranches change.
    pub(super) fn change_all(&mut self) {
        (0..self.count).for_each(|place| self.change(place));
    }

    /// Makes the versions of all tranches those of a group that is not in the table, for good.
    pub(super) fn leave(&mut self, generation: u64) {
        for place in 0..self.count {
            if let Some(cell) = self.version_of(place) {
                let version = Version(self.medium.load_relaxed(cell)).advanced();
                self.medium.store_transient(cell, version.of_no_group(generation).0);
            }
        }
        self.tranches = 0;
    }

    /// Announces that all tranches of a group that joins the table change. Their words may be
    /// anything, and get later versions.
    pub(super) fn change_new(&mut self, generation: u64) {
        for place in 0..self.count {
            if let Some(cell) = self.version_of(place) {
                let version = Version(self.medium.load_relaxed(cell)).of_new_group(generation);
                self.medium.store_transient(cell, version.locked().0);
                self.tranches |= 1 << place;
            }
        }
    }
}

impl<M: Medium> Drop for Locked<'_, M> {
    fn drop(&mut self) {
        // After a panic in the middle of a change the group stays locked: nothing may read it.
        if std::thread::panicking() {
            return;
        }
        while self.tranches != 0 {
            let place = self.tranches.trailing_zeros() as usize;
            self.tranches &= self.tranches - 1;
            if let Some(cell) = self.version_of(place) {
                let version = Version(self.medium.load_relaxed(cell)).advanced();
                self.medium.store_transient(cell, version.0);
            }
        }
        let released = if self.changed { self.version.locked().advanced() } else { self.version };
        self.medium.store_transient(&self.group.words[GROUP_WORD], released.0);
    }
}

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    const GEOMETRY_IS_POSSIBLE: () = {
        let tranches = G::TRANCHES;
        assert!(tranches >= 2 && tranches <= 64 && tranches.is_power_of_two());
        assert!(G::CHUNK_LOG <= 15);
        assert!(Self::DIVISION.is_possible());
    };
    /// The number of pairs that a group holds.
    pub(super) const PAIRS: u64 = (G::TRANCHES * Shape::<G>::PAIRS) as u64;
    /// The bytes of these pairs, of which fill is a share.
    pub(super) const CAPACITY: u64 = Self::PAIRS * bytes_of(2);

    /// Returns the first word of the root: kind, key format, geometry.
    pub(super) fn kind() -> u64 {
        let () = Self::GEOMETRY_IS_POSSIBLE;
        Self::first_word(F::KIND)
    }

    fn first_word(kind: [u8; 8]) -> u64 {
        let [tranche, tranches] = [G::TRANCHE_BYTES, G::TRANCHES].map(|size| size.ilog2());
        let geometry = u64::from(tranche) << 8 | u64::from(tranches) << 4 | u64::from(G::CHUNK_LOG);
        u64::from_le_bytes(kind) ^ u64::from(F::KEYS) << 56 ^ geometry << 40
    }

    #[inline(always)]
    pub(super) fn medium(&self) -> &M {
        self.region.medium()
    }

    #[inline(always)]
    pub(super) fn groups(&self) -> Groups<'_, M, G> {
        Groups(self.medium(), PhantomData)
    }

    /// Creates an empty table and publishes it: see
    /// [`Persistent::create`](evermap_index::Persistent).
    pub(super) fn create(pool: Arc<Pool<M>>, cell: &PmU64, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        let state = State::new(config.initial_depth, Self::DIVISION).ok_or_else(|| {
            let most = DEPTH_MAX + Self::DIVISION.groups;
            let exponent = config.initial_depth;
            ErrorKind::Config(format!("2^{exponent} groups: the exponent must be 0 to {most}"))
        })?;
        let m = pool.medium();
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate_fixed(size_of::<Root>() as u64)?;
        let redo_block = fresh.allocate_fixed(Arrays::<M, G>::GROUP)?;
        let header: &Root = m.at(block).expect("just allocated");
        header.arrays.iter().for_each(|entry| m.store(entry, 0));
        m.store(&header.base, u64::from(config.initial_depth));
        m.store(&header.state, state.encode());
        m.store(&header.redo, 0);
        m.store(&header.redo_block, Named::Redo.encode(redo_block));
        let arrays = Arrays::assemble(pool.clone(), block, config.initial_depth, state);
        arrays.create()?;
        fresh.keep();
        let table = Self::assemble(pool.clone(), block, redo_block, arrays);
        for index in 0..state.count() {
            let group = table.arrays.group(index)?;
            table.store_empty(group.words);
            table.store_versions(group.words, Version::fresh(table.generation));
            table.fill.add_group(index, 0);
        }
        m.flush(header);
        root::publish(&pool, cell, block, Self::kind());
        Ok(table)
    }

    /// Opens the table that a root cell names: see [`Persistent::open`](evermap_index::Persistent).
    pub(super) fn open(pool: Arc<Pool<M>>, cell: &PmU64) -> Result<Self> {
        if root::is_of(&pool, cell, Self::first_word(F::EARLIER)) {
            let what = "the table is of an earlier format, which this version cannot read";
            return Err(ErrorKind::Config(what.into()).into());
        }
        let block = root::block_of(&pool, cell, Self::kind())?;
        let m = pool.medium();
        let header: &Root = m
            .at(block)
            .ok_or_else(|| Error::damaged(block, "the index's root ends outside the region"))?;
        // The process that stored the root may have died before it was durable, and the root
        // decides where records are and which blocks are free.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(header);
        let redo_block = Named::Redo
            .decode(m.load(&header.redo_block))
            .filter(|&at| m.slice::<PmU64>(at, Arrays::<M, G>::GROUP / 8).is_some())
            .ok_or_else(|| Error::damaged(block, "impossible block for rewriting groups"))?;
        let arrays = Arrays::open(pool.clone(), block)?;
        let everything = pool.region().must_recover_all();
        let table = Self::assemble(pool, block, redo_block, arrays);
        table.finish_rewriting()?;
        if everything {
            // Generations of an earlier opener could equal the current one: makes all groups stale.
            table.make_all_stale()?;
        }
        Ok(table)
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64, redo_block: u64, arrays: Arrays<M, G>) -> Self {
        Table {
            region: pool.share_region(),
            generation: pool.generation(),
            seed: pool.seed(),
            recovering: (0..64).map(|_| Mutex::ranked(Rank::Recovery, ())).collect(),
            growth: Mutex::ranked(Rank::Resize, ()),
            redo: Mutex::ranked(Rank::Redo, ()),
            redo_block,
            fill: Fill::default(),
            moves: [const { AtomicU64::new(0) }; STRIPES],
            overfull: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            format: PhantomData,
            pool,
            arrays,
            root,
        }
    }

    fn make_all_stale(&self) -> Result<()> {
        let stale = Version::fresh(region::stale(self.generation));
        for index in 0..self.arrays.state().count() {
            self.store_versions(self.arrays.group(index)?.words, stale);
        }
        Ok(())
    }

    /// Stores the version of a group in all of its tranches, that of the group itself last.
    fn store_versions(&self, words: &[PmU64], version: Version) {
        for (place, tranche) in words.chunks(Shape::<G>::WORDS).enumerate().rev() {
            if place != LINK {
                self.medium().store_transient(&tranche[GROUP_WORD], version.0);
            }
        }
    }

    /// Stores empty tranches in a block, flushed without a fence. The words for versions are left
    /// out.
    pub(super) fn store_empty(&self, words: &[PmU64]) {
        let m = self.medium();
        for (place, tranche) in words.chunks(Shape::<G>::WORDS).enumerate() {
            if place == LINK {
                m.store(&tranche[GROUP_WORD], 0);
            }
            m.store(&tranche[COMMIT], Commit::empty(Shape::<G>::WORDS).encode());
            m.flush(&tranche[..2]);
        }
    }

    /// Returns the hash of the key of a record.
    pub(super) fn hash_of(&self, stored: &Stored<'_>) -> Result<u64> {
        let m = self.medium();
        let load = |at: usize| m.load_relaxed(&stored.payload[at]);
        match stored.entry.kind {
            Kind::Pair => Ok(F::pair_hash(load(0), self.seed)),
            Kind::Direct if F::BYTE_STRINGS => {
                let key = self
                    .key_of(stored)
                    .ok_or_else(|| self.groups().damaged(stored.tranche, "impossible lengths"))?;
                Ok(xxh3_64_with_seed(&key, self.seed))
            }
            Kind::Indirect if F::BYTE_STRINGS => Ok(load(1)),
            _ => Err(self.groups().damaged(stored.tranche, "impossible kind of a record")),
        }
    }

    /// Looks something up without a lock or a store: calls `search` with the group of keys with
    /// this hash until no change interferes. Nearly always it ends in the home of the key.
    #[inline(always)]
    pub(super) fn read<R>(
        &self,
        hash: u64,
        search: impl FnMut(Group<'_>, Reach) -> Result<Search<R>>,
    ) -> Result<Option<R>> {
        self.read_at(self.locate(hash), hash, search)
    }

    /// Returns where keys with this hash are at the moment.
    #[inline(always)]
    pub(super) fn locate(&self, hash: u64) -> Option<Located<'_>> {
        let state = self.arrays.state_word();
        let index = State::decode_unchecked(state).group_of(hash, Self::DIVISION);
        let group = self.arrays.group(index).ok()?;
        Some(Located { state, group })
    }

    /// Does the same as [`read`](Self::read). The key was `located` before, under a guard that is
    /// still held.
    #[inline(always)]
    pub(super) fn read_at<R>(
        &self,
        located: Option<Located<'_>>,
        hash: u64,
        mut search: impl FnMut(Group<'_>, Reach) -> Result<Search<R>>,
    ) -> Result<Option<R>> {
        match located.and_then(|located| self.read_home(located, hash, &mut search)) {
            Some(result) => result,
            None => self.read_group(hash, search),
        }
    }

    /// Looks something up in the home of the key only, and validates the version that is there: the
    /// lock of the group would be another miss of the cache. Returns `None` if the search goes on
    /// behind the home, or a change interferes, or the home has no version.
    #[inline(always)]
    fn read_home<R>(
        &self,
        Located { state, group }: Located<'_>,
        hash: u64,
        search: &mut impl FnMut(Group<'_>, Reach) -> Result<Search<R>>,
    ) -> Option<Result<Option<R>>> {
        let (m, place) = (self.medium(), home::<G>(hash));
        if place == LINK {
            return None;
        }
        let cell = &group.words[place * Shape::<G>::WORDS + GROUP_WORD];
        let version = Version(m.load(cell));
        if !version.is_readable(self.generation) {
            return None;
        }
        // Asked again now: a move of the key has published the new state before it stored this
        // version. A group that has joined the table meanwhile has a later version, and what a
        // group had that has left has none.
        let moved = self.arrays.state_word() != state && self.group_of(hash) != group.index;
        if moved && !m.mutant(mistakes::GROUP_NOT_CHECKED) {
            return None;
        }
        let result = match search(group, Reach::Home) {
            Ok(Search::GoesOn) => return None,
            Ok(Search::Ended(found)) => Ok(found),
            Err(error) => Err(error),
        };
        // Acquire: everything above is read before the version is read again.
        fence(Ordering::Acquire);
        (m.load_relaxed(cell) == version.0).then_some(result)
    }

    /// Looks something up in the group of the key, and validates the version of that.
    #[cold]
    fn read_group<R>(
        &self,
        hash: u64,
        mut search: impl FnMut(Group<'_>, Reach) -> Result<Search<R>>,
    ) -> Result<Option<R>> {
        let m = self.medium();
        let mut lock_wait = LockWait::default();
        loop {
            let index = self.group_of(hash);
            let Some(group) = self.group(index)? else { continue };
            let cell = &group.words[GROUP_WORD];
            let version = Version(m.load(cell));
            if version.is_readable(self.generation) {
                // Asked again now: a move of the key has published the new state before it stored
                // this version.
                if self.group_of(hash) != index && !m.mutant(mistakes::GROUP_NOT_CHECKED) {
                    continue;
                }
                let result = search(group, Reach::Group);
                // Acquire: everything above is read before the version is read again.
                fence(Ordering::Acquire);
                if m.load_relaxed(cell) == version.0 {
                    return match result? {
                        Search::Ended(found) => Ok(found),
                        Search::GoesOn => Ok(None),
                    };
                }
            } else if !version.is_of(self.generation) {
                self.recover(index)?;
            } else {
                lock_wait.wait_at(&self.region, m.offset_of(cell))?;
            }
        }
    }

    /// Locks the group of keys with this hash.
    #[inline(always)]
    pub(super) fn lock(&self, hash: u64) -> Result<Locked<'_, M>> {
        loop {
            let state = self.arrays.state_word();
            let index = State::decode_unchecked(state).group_of(hash, Self::DIVISION);
            let Some(locked) = self.try_lock_group(index)? else { continue };
            // While a group is locked, nothing moves from it or to it.
            if self.arrays.state_word() == state || self.group_of(hash) == index {
                return Ok(locked);
            }
        }
    }

    /// Locks a group that is in the table and stays there, and recovers it if necessary.
    pub(super) fn lock_group(&self, index: u64) -> Result<Locked<'_, M>> {
        self.try_lock_group(index)?
            .ok_or_else(|| Error::damaged(self.root, "a group is not in the table"))
    }

    /// Locks a group, and recovers it if necessary. Returns `None` if it is not in the table any
    /// more. It may have left the table before it was locked.
    pub(super) fn try_lock_group(&self, index: u64) -> Result<Option<Locked<'_, M>>> {
        let m = self.medium();
        let mut lock_wait = LockWait::default();
        loop {
            if index >= self.arrays.state().count() {
                return Ok(None);
            }
            let Some(group) = self.group(index)? else { return Ok(None) };
            let cell = &group.words[GROUP_WORD];
            let version = Version(m.load(cell));
            if version.is_readable(self.generation) {
                if m.cas_transient(cell, version.0, version.locked().0).is_ok() {
                    return Ok(Some(Locked::new(m, group, version, G::TRANCHES)));
                }
            } else if !version.is_of(self.generation) {
                self.recover(index)?;
                continue;
            }
            lock_wait.wait_at(&self.region, m.offset_of(cell))?;
        }
    }

    /// Returns room for a record in a locked group. Rewrites the group, or adds an overflow block,
    /// if that is necessary.
    ///
    /// # Errors
    /// `NoSpace`; `Damaged`.
    pub(super) fn make_room<'t>(
        &'t self,
        locked: &mut Locked<'t, M>,
        hash: u64,
        kind: Kind,
        words: usize,
        guard: &Guard<'_>,
    ) -> Result<Room<'t>> {
        let groups = self.groups();
        let room = groups.room(locked.group, hash, kind, words)?;
        if let Some(room) = room
            && !groups.is_fragmented(locked.group, hash, &room)?
        {
            return Ok(room);
        }
        if groups.has_dead(locked.group)? {
            match self.compact(locked, guard) {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
            if let Some(room) = groups.room(locked.group, hash, kind, words)? {
                return Ok(room);
            }
        }
        self.add_overflow(locked)?;
        self.note_overflow();
        groups
            .room(locked.group, hash, kind, words)?
            .ok_or_else(|| Error::no_space("a tranche of a table", words as u64 * 8))
    }

    /// Adds an empty overflow block to a locked group.
    pub(super) fn add_overflow(&self, locked: &mut Locked<'_, M>) -> Result<()> {
        let (m, groups) = (self.medium(), self.groups());
        let blocks = groups.overflows(locked.group)?;
        if blocks.len() == OVERFLOWS_MAX {
            let bytes = Arrays::<M, G>::GROUP;
            return Err(Error::no_space("the overflow blocks of a group", bytes));
        }
        let last = match blocks.len().checked_sub(1) {
            None => locked.group.words,
            Some(last) => groups.overflow(locked.group, last)?.map_or(&[][..], |(_, words)| words),
        };
        let Some(cell) = last.get(LINK * Shape::<G>::WORDS + GROUP_WORD) else {
            return Err(groups.damaged(locked.group.words, "impossible overflow block of a group"));
        };
        let block = self.new_overflow()?;
        let words = self.overflow_words(block)?;
        self.store_empty(words);
        m.fence();
        // Searches arrive there only past full tranches whose counters say so, but they may be
        // under way.
        locked.changed = true;
        m.note(Note::Harmless(
            "needed by other threads: \
             `a_link_to_an_overflow_block_is_durable_whatever_comes_of_the_record`",
        ));
        evermap_index::recipe::commit(
            m,
            cell,
            Named::Overflow(locked.group.index, blocks.len()).encode(block),
        );
        Ok(())
    }

    fn new_overflow(&self) -> Result<u64> {
        self.pool.allocate_fixed(Arrays::<M, G>::GROUP)
    }

    fn overflow_words(&self, block: u64) -> Result<&[PmU64]> {
        self.medium()
            .slice(block, Arrays::<M, G>::GROUP / 8)
            .ok_or_else(|| Error::damaged(block, "a block ends outside the region"))
    }

    /// Allocates and writes the overflow blocks of a new image of a group. Flushed, without a
    /// fence.
    ///
    /// # Errors
    /// `NoSpace`; then nothing is allocated.
    pub(super) fn store_overflows<'p>(
        &'p self,
        group: u64,
        image: &mut Image<G>,
        fresh: &mut Fresh<'p, M>,
    ) -> Result<()> {
        let bytes = Arrays::<M, G>::GROUP;
        let blocks: Vec<u64> =
            (0..image.overflows()).map(|_| fresh.allocate_fixed(bytes)).collect::<Result<_>>()?;
        image.link(group, &blocks);
        for (place, &block) in blocks.iter().enumerate() {
            image.store(self.medium(), 1 + place, self.overflow_words(block)?);
        }
        Ok(())
    }

    /// Rewrites a locked group without its dead records.
    pub(super) fn compact(&self, locked: &mut Locked<'_, M>, guard: &Guard<'_>) -> Result<()> {
        let groups = self.groups();
        let items = groups.items(locked.group, |stored| self.hash_of(stored))?;
        let old = groups.overflows(locked.group)?;
        let mut fresh = Fresh::new(&self.pool);
        let mut image = Image::compose(self.medium(), &items)
            .ok_or_else(|| Error::no_space("the overflow blocks of a group", 0))?;
        self.store_overflows(locked.group.index, &mut image, &mut fresh)?;
        let redo = self.prepare_rewriting(&image)?;
        fresh.keep();
        self.medium().fence();
        let header = self.arrays.root();
        evermap_index::recipe::commit(
            self.medium(),
            &header.redo,
            Redo::encode(locked.group.index),
        );
        self.rewrite(locked, &image, &old, redo, guard);
        Ok(())
    }

    /// Writes an image to the block for rewriting, flushed without a fence. No other group is
    /// rewritten while the result lives.
    pub(super) fn prepare_rewriting(&self, image: &Image<G>) -> Result<MutexGuard<'_, ()>> {
        // A panic under the lock poisons the region, which every caller checks.
        let redo = self.redo.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        image.store(self.medium(), 0, self.overflow_words(self.redo_block)?);
        Ok(redo)
    }

    /// Replaces the content of a locked group by an image, after the root's word has committed
    /// that, and gives up its former overflow blocks.
    pub(super) fn rewrite(
        &self,
        locked: &mut Locked<'_, M>,
        image: &Image<G>,
        old: &[u64],
        redo: MutexGuard<'_, ()>,
        guard: &Guard<'_>,
    ) {
        locked.change_all();
        self.apply(locked.group, image);
        drop(redo);
        for &block in old {
            self.pool.retire(block, Arrays::<M, G>::GROUP, guard);
        }
    }

    /// Copies a committed image to its group, durably, and ends the rewriting.
    fn apply(&self, group: Group<'_>, image: &Image<G>) {
        let m = self.medium();
        image.store(m, 0, group.words);
        m.fence();
        let header = self.arrays.root();
        m.store(&header.redo, 0);
        m.persist(&header.redo);
    }

    /// Completes what a crash has interrupted after its commit.
    fn finish_rewriting(&self) -> Result<()> {
        let m = self.medium();
        let header = self.arrays.root();
        let word = m.load(&header.redo);
        if word == 0 {
            return Ok(());
        }
        let known = |&index: &u64| index < self.arrays.state().count();
        let index = Redo::decode(word)
            .filter(known)
            .ok_or_else(|| Error::damaged(self.root, "impossible rewriting of a group"))?;
        let words = self.overflow_words(self.redo_block)?;
        // The process that committed this may have died before the image was durable; another
        // crash must not find a group that is half of an image without that.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(words);
        let image = Image::read(m, words)
            .ok_or_else(|| Error::damaged(self.redo_block, "impossible image of a group"))?;
        self.apply(self.arrays.group(index)?, &image);
        Ok(())
    }

    /// Returns the group of keys with this hash.
    #[inline(always)]
    pub(super) fn group_of(&self, hash: u64) -> u64 {
        self.arrays.state().group_of(hash, Self::DIVISION)
    }

    /// Returns a group. Returns `None` if it is not in the table any more.
    #[inline(always)]
    fn group(&self, index: u64) -> Result<Option<Group<'_>>> {
        match self.arrays.group(index) {
            Ok(group) => Ok(Some(group)),
            Err(_) => self.group_of_now(index),
        }
    }

    /// Returns the same: a group that could not be read may have left the table meanwhile.
    #[cold]
    fn group_of_now(&self, index: u64) -> Result<Option<Group<'_>>> {
        let moves = || self.moves.iter().map(|moves| moves.load(Ordering::Acquire)).sum::<u64>();
        loop {
            let before = moves();
            if index >= self.arrays.state().count() {
                return Ok(None);
            }
            match self.arrays.group(index) {
                // A chunk that is missing while nothing moves is damage.
                Err(error) if moves() == before => return Err(error),
                Err(_) => {}
                Ok(group) => return Ok(Some(group)),
            }
        }
    }

    /// Returns the counter of moves in a set; it is also that of some other sets.
    pub(super) fn moves_in(&self, set: u64) -> &AtomicU64 {
        &self.moves[set as usize % STRIPES]
    }

    /// Recovers a stale group, or waits until another thread has. Does nothing if it is not in the
    /// table.
    ///
    /// # Errors
    /// `Damaged`; then the group stays stale.
    #[cold]
    fn recover(&self, index: u64) -> Result<()> {
        self.region.ensure_sound()?;
        let m = self.medium();
        let stripe = index as usize % self.recovering.len();
        let _one_at_a_time =
            self.recovering[stripe].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // In this order: a group that joins the table has its version before. While it is stale, it
        // does not leave the table, because it is recovered before that.
        let in_table = index < self.arrays.state().count();
        let Some(group) = self.group(index)?.filter(|_| in_table) else { return Ok(()) };
        let cell = &group.words[GROUP_WORD];
        if Version(m.load(cell)).is_of(self.generation) {
            return Ok(());
        }
        let live = self.rebuild(group)?;
        self.fill.add_group(index, live);
        self.recovered.fetch_add(1, Ordering::Relaxed);
        // The version is stored last: until then other threads wait.
        self.store_versions(group.words, Version::fresh(self.generation));
        Ok(())
    }

    /// Drops what a crash has left over, counts anew what is not flushed, and makes everything
    /// found durable. Returns the number of bytes of live records.
    fn rebuild(&self, group: Group<'_>) -> Result<u64> {
        let (m, groups) = (self.medium(), self.groups());
        let (mut live, mut dropped): (Vec<(u64, Stored<'_>)>, Vec<Stored<'_>>) = Default::default();
        groups.records(group, |stored| {
            if stored.entry.dead {
                return Ok(());
            }
            let hash = self.hash_of(&stored)?;
            // Otherwise searches would pass over it, and a walk would show what they do not find.
            let is_right = groups.mend_fingerprint(&stored, hash);
            // Left over by a move that a crash has interrupted before or after its commit. If its
            // fingerprint is wrong, it is damaged, and not there by mistake.
            let stray =
                self.group_of(hash) != group.index && is_right && !m.mutant(mistakes::STRAYS_KEPT);
            if stray {
                dropped.push(stored)
            } else {
                live.push((hash, stored))
            }
            Ok(())
        })?;
        if !m.mutant(mistakes::DUPLICATES_KEPT) {
            self.drop_duplicates(&mut live, &mut dropped);
        }
        dropped.iter().for_each(|stored| groups.mark_dead(stored));
        groups.recount(group, |stored| self.hash_of(stored))?;
        // The process that stored this may have died before it was durable. It is used only
        // afterwards.
        m.note(Note::Harmless(FOUND_LATE));
        for tranche in groups.tranches(group)? {
            m.flush(tranche);
        }
        m.note(Note::Harmless(FOUND_LATE));
        m.fence();
        Ok(live.iter().map(|(_, stored)| stored.bytes()).sum())
    }

    /// Moves records from `live` to `dropped` so that each key has one: an update that was not
    /// acknowledged, or a return of a record to its home, can leave two. O(n log n).
    fn drop_duplicates<'s>(
        &'s self,
        live: &mut Vec<(u64, Stored<'s>)>,
        dropped: &mut Vec<Stored<'s>>,
    ) {
        // Stable: of two records the first one stays.
        live.sort_by_key(|(hash, _)| *hash);
        let mut kept: Vec<(u64, Stored<'s>)> = Vec::with_capacity(live.len());
        for (hash, stored) in live.drain(..) {
            let alike = kept.iter().rev().take_while(|(other, _)| *other == hash);
            if alike.map(|(_, other)| other).any(|other| self.are_same(other, &stored)) {
                dropped.push(stored);
            } else {
                kept.push((hash, stored));
            }
        }
        *live = kept;
    }

    /// Returns whether two records of one group are of the same key. Several pairs may have the
    /// same key word if words name records; then they are only the same if the words are too.
    fn are_same(&self, one: &Stored<'_>, other: &Stored<'_>) -> bool {
        if F::BYTE_STRINGS {
            let key = self.key_of(one);
            return key.is_some() && key == self.key_of(other);
        }
        let m = self.medium();
        let words = if F::WORDS_ARE_RECORDS { 2 } else { 1 };
        let mut both = one.payload.iter().zip(other.payload).take(words);
        both.all(|(one, other)| m.load_relaxed(one) == m.load_relaxed(other))
    }

    /// Adds what the table is made of to `stats`, apart from its records.
    pub(super) fn add_stats(&self, stats: &mut Stats) {
        let state = self.arrays.state();
        stats.capacity += state.count() * Self::PAIRS;
        stats.segments += state.count();
        stats.depth = state.depth;
        stats.pm_bytes += size_of::<Root>() as u64 + Arrays::<M, G>::GROUP;
        self.arrays.blocks(|_, bytes| stats.pm_bytes += bytes);
        stats.dram_bytes =
            (size_of::<Self>() + self.recovering.len() * size_of::<Mutex<()>>()) as u64;
        stats.splits = self.splits.load(Ordering::Relaxed);
        stats.merges = self.merges.load(Ordering::Relaxed);
        stats.recovered = self.recovered.load(Ordering::Relaxed);
    }

    /// Calls `each` with the blocks that are not part of a group.
    pub(super) fn own_blocks(&self, mut each: impl FnMut(u64)) {
        // The guard keeps what is given up meanwhile unchanged.
        let _guard = self.pool.pin();
        each(self.root);
        each(self.redo_block);
        self.arrays.blocks(|block, _| each(block));
    }
}
