//! The arrays of groups, and how far the table has grown.
//!
//! The place of a group is computed from its number, and never changes. Array 0 has the groups that
//! the table begins with, and each further array as many as all before it. Nothing larger than a
//! chunk of groups is allocated in one piece, and only when its first group is
//! needed. A chunk is freed when its first group has left the table. Tables of arrays are kept.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::medium::Note;
use evermap_pm::region::Region;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use super::geometry::Geometry;
use super::layout::{ARRAYS, COMMIT, Commit, GROUP_WORD, Named, Root, Version};
use super::place::{DEPTH_MAX, Division, State};

/// The memory of a group: its number, and the words of its tranches.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) index: u64,
    pub(super) words: &'a [PmU64],
}

/// The arrays of a table.
pub(super) struct Arrays<M: Medium, G: Geometry> {
    pool: Arc<Pool<M>>,
    region: Arc<Region<M>>,
    root: u64,
    /// Binary logarithm of the number of groups in array 0.
    base: u32,
    /// An encoded [`State`]. Changed only when the root's word is durable, so that no thread acts
    /// on what a crash could take back.
    state: AtomicU64,
    /// The offset of the table of each array; set before the state first includes groups of the
    /// array, and not changed afterwards.
    tables: [AtomicU64; ARRAYS],
    geometry: PhantomData<fn() -> G>,
}

impl<M: Medium, G: Geometry> Arrays<M, G> {
    /// Bytes in a group.
    pub(super) const GROUP: u64 = (G::TRANCHE_BYTES * G::TRANCHES) as u64;
    /// What placement depends on.
    pub(super) const DIVISION: Division = Division::of(G::TRANCHE_BYTES, G::TRANCHES);
    /// Binary logarithm of a number that is greater than that of the groups of any table.
    const GROUPS_MAX: u32 = DEPTH_MAX + Self::DIVISION.groups + 1;

    /// Creates the object for the root at `root`.
    pub(super) fn assemble(pool: Arc<Pool<M>>, root: u64, base: u32, state: State) -> Self {
        let region = pool.share_region();
        let tables = [const { AtomicU64::new(0) }; ARRAYS];
        let state = AtomicU64::new(state.encode());
        Arrays { pool, region, root, base, state, tables, geometry: PhantomData }
    }

    /// Opens the arrays that the root at `root` names.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn open(pool: Arc<Pool<M>>, root: u64) -> Result<Self> {
        let m = pool.medium();
        let header: &Root = m.at(root).ok_or_else(|| outside(root))?;
        let base = m.load(&header.base);
        let possible = |state: &State| base <= u64::from(state.count().ilog2());
        let state = State::decode(m.load(&header.state), Self::DIVISION)
            .filter(possible)
            .ok_or_else(|| Error::damaged(root, "impossible state of a table"))?;
        let arrays = Self::assemble(pool.clone(), root, base as u32, state);
        let (last, _) = arrays.place(state.count() - 1);
        for (array, entry) in header.arrays.iter().enumerate() {
            let word = m.load(entry);
            if word == 0 && array > last {
                continue;
            }
            let inside = |&table: &u64| m.slice::<PmU64>(table, arrays.chunks(array)).is_some();
            let exists = array <= arrays.last_array();
            let table = Named::Table(array).decode(word).filter(|table| exists && inside(table));
            let table = table
                .ok_or_else(|| Error::damaged(m.offset_of(entry), "impossible array of groups"))?;
            arrays.tables[array].store(table, Ordering::Relaxed);
        }
        Ok(arrays)
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    pub(super) fn root(&self) -> &Root {
        self.medium().at(self.root).expect("checked when opened")
    }

    /// Returns the last array that a table can have.
    fn last_array(&self) -> usize {
        (Self::GROUPS_MAX - self.base) as usize
    }

    /// Returns the number of groups that the table had at first.
    pub(super) fn least(&self) -> u64 {
        1 << self.base
    }

    /// Returns how far the table has grown.
    #[inline(always)]
    pub(super) fn state(&self) -> State {
        State::decode_unchecked(self.state_word())
    }

    /// Returns the same, encoded. Equal words lead each key to the same group.
    #[inline(always)]
    pub(super) fn state_word(&self) -> u64 {
        // Acquire: pairs with the release in `set_state`, so that the tables and the new group are
        // initialised.
        self.state.load(Ordering::Acquire)
    }

    /// Publishes a state that is durable.
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state.encode(), Ordering::Release);
    }

    /// Returns the array of a group, and its index there.
    #[inline(always)]
    fn place(&self, group: u64) -> (usize, u64) {
        match (group >> self.base).checked_ilog2() {
            None => (0, group),
            Some(doublings) => (doublings as usize + 1, group - (1 << (self.base + doublings))),
        }
    }

    /// Returns the first group of an array.
    fn first(&self, array: usize) -> u64 {
        if array == 0 { 0 } else { 1 << (self.base as usize + array - 1) }
    }

    /// Returns the number of groups in an array.
    fn groups(&self, array: usize) -> u64 {
        1 << (self.base as usize + array.saturating_sub(1))
    }

    /// Returns the binary logarithm of the number of groups in a chunk of an array.
    #[inline(always)]
    fn chunk_log(&self, array: usize) -> u32 {
        (self.base + array.saturating_sub(1) as u32).min(G::CHUNK_LOG)
    }

    fn chunks(&self, array: usize) -> u64 {
        self.groups(array) >> self.chunk_log(array)
    }

    fn chunk_bytes(&self, array: usize) -> u64 {
        Self::GROUP << self.chunk_log(array)
    }

    /// Returns a group of the table.
    ///
    /// # Errors
    /// `Damaged` if what leads to it is damaged.
    #[inline(always)]
    pub(super) fn group(&self, index: u64) -> Result<Group<'_>> {
        let (m, (array, at)) = (self.medium(), self.place(index));
        // Relaxed: the caller has loaded the state, which was stored after the table.
        let (table, log) = (self.tables[array].load(Ordering::Relaxed), self.chunk_log(array));
        let words = m.at::<PmU64>(table + (at >> log) * 8).and_then(|entry| {
            let first = index - at + (at >> log << log);
            let chunk = Named::Chunk(first).decode(m.load(entry))?;
            m.slice(chunk + (index - first) * Self::GROUP, Self::GROUP / 8)
        });
        match words {
            Some(words) => Ok(Group { index, words }),
            None => Err(Error::damaged(table, "impossible chunk of groups")),
        }
    }

    /// Ensures that there is space for a group behind the last one. What leads to it is flushed,
    /// without a fence.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn extend_to(&self, group: u64) -> Result<()> {
        let (m, (array, at)) = (self.medium(), self.place(group));
        if self.tables[array].load(Ordering::Relaxed) == 0 {
            let table = self.new_table(array)?;
            // The zeros are durable before the table is reachable.
            m.fence();
            m.store(&self.root().arrays[array], Named::Table(array).encode(table));
            // Release: pairs with the acquire in `blocks`, so that the zeros are visible.
            self.tables[array].store(table, Ordering::Release);
        }
        let (table, log) = (self.tables[array].load(Ordering::Relaxed), self.chunk_log(array));
        let entry = m.at::<PmU64>(table + (at >> log) * 8).ok_or_else(|| outside(table))?;
        if m.load(entry) == 0 {
            self.new_chunk(array, at >> log, entry)?;
        }
        // Also if another thread has stored these words and then failed, or an earlier process,
        // which may have died before they were durable: no group that they lead to may count before
        // they are.
        if at == 0 {
            m.flush(&self.root().arrays[array]);
        }
        if at.is_multiple_of(1 << log) {
            m.flush(entry);
        }
        Ok(())
    }

    /// Allocates array 0, and names it in the root. Flushed, without a fence.
    ///
    /// # Errors
    /// `NoSpace`; then nothing is allocated.
    pub(super) fn create(&self) -> Result<()> {
        let m = self.medium();
        let table = self.new_table(0)?;
        self.tables[0].store(table, Ordering::Relaxed);
        let entries = m.slice::<PmU64>(table, self.chunks(0)).ok_or_else(|| outside(table))?;
        for (chunk, entry) in entries.iter().enumerate() {
            if let Err(error) = self.new_chunk(0, chunk as u64, entry) {
                self.blocks(|block, _| self.pool.free_unpublished(block));
                return Err(error);
            }
        }
        m.flush(entries);
        m.store(&self.root().arrays[0], Named::Table(0).encode(table));
        Ok(())
    }

    /// Frees the chunk that begins with this group and those behind it, once no reader is left that
    /// could arrive there. Does nothing if the group is in the middle of a chunk, or in array 0.
    ///
    /// No group of these chunks is in the table, durably.
    pub(super) fn give_up(&self, group: u64, guard: &Guard<'_>) {
        let (m, (array, at)) = (self.medium(), self.place(group));
        if array == 0 || !at.is_multiple_of(1 << self.chunk_log(array)) {
            return;
        }
        // Usually one. A process that has named a chunk, and another that could not free one, may
        // each have left one behind it.
        let mut group = group;
        loop {
            let (array, at) = self.place(group);
            let table = self.tables.get(array).map_or(0, |table| table.load(Ordering::Relaxed));
            let log = self.chunk_log(array);
            let entry = m.at::<PmU64>(table + (at >> log) * 8).filter(|_| table != 0);
            let chunk = entry.and_then(|entry| Named::Chunk(group).decode(m.load(entry)));
            let (Some(entry), Some(chunk)) = (entry, chunk) else { return };
            m.store(entry, 0);
            m.persist(entry);
            self.pool.retire(chunk, self.chunk_bytes(array), guard);
            group += 1 << log;
        }
    }

    /// Allocates a chunk and stores its name in `entry`, without flushing that.
    fn new_chunk(&self, array: usize, chunk: u64, entry: &PmU64) -> Result<()> {
        let block = self.pool.allocate_fixed(self.chunk_bytes(array))?;
        // A thread that still has an earlier state may look here for a group that has left the
        // table. It must not take what it finds for a version.
        for group in 0..self.chunk_bytes(array) / Self::GROUP {
            let m = self.medium();
            let tranche = m.slice(block + group * Self::GROUP, G::TRANCHE_BYTES as u64 / 8);
            let tranche: &[PmU64] = tranche.ok_or_else(|| outside(block))?;
            // Before the first load: a page that is new to the process and is read gets memory only
            // when it is written, and then all threads are interrupted.
            m.store_transient(&tranche[COMMIT], Commit::empty(tranche.len()).encode());
            let version = Version(m.load(&tranche[GROUP_WORD]));
            let version = version.of_no_group(self.pool.generation());
            m.store_transient(&tranche[GROUP_WORD], version.0);
        }
        let name = Named::Chunk(self.first(array) + (chunk << self.chunk_log(array)));
        self.medium().store(entry, name.encode(block));
        Ok(())
    }

    /// Allocates a table and fills it with zeros. Flushed, without a fence.
    fn new_table(&self, array: usize) -> Result<u64> {
        let (m, entries) = (self.medium(), self.chunks(array));
        let table = self.pool.allocate_fixed(entries * 8)?;
        let entries = m.slice::<PmU64>(table, entries).ok_or_else(|| outside(table))?;
        m.note(Note::Harmless("torn, it is complete before the table is reachable"));
        entries.iter().for_each(|entry| m.store(entry, 0));
        m.flush(entries);
        Ok(table)
    }

    /// Calls `each` with the offset and the size of every chunk and every table. A block is shown
    /// if it is reachable throughout.
    pub(super) fn blocks(&self, mut each: impl FnMut(u64, u64)) {
        let m = self.medium();
        for (array, table) in self.tables.iter().enumerate() {
            // Acquire: pairs with the release in `extend_to`.
            let table = table.load(Ordering::Acquire);
            if table == 0 {
                continue;
            }
            let entries = m.slice::<PmU64>(table, self.chunks(array)).unwrap_or_default();
            for (chunk, entry) in entries.iter().enumerate() {
                let first = self.first(array) + ((chunk as u64) << self.chunk_log(array));
                // The last chunks of the last array are missing.
                if let Some(offset) = Named::Chunk(first).decode(m.load(entry)) {
                    each(offset, self.chunk_bytes(array));
                }
            }
            each(table, self.chunks(array) * 8);
        }
    }
}

fn outside(offset: u64) -> Error {
    Error::damaged(offset, "a block of the table ends outside the region")
}
