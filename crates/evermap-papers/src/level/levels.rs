//! The levels of the table, and the locations of their buckets.
//!
//! A level of `2^n` buckets is a table of chunks. Nothing larger than a chunk is allocated in one
//! piece, and the chunks of a level that is given up are reused for the next one. The root names
//! the tables. The entries that are set determine the state, so growth needs no log:
//!
//! ```text
//! settled    ... 0   live  live  0        0 ...     bottom and top
//! preparing  ... 0   live  live  prepared 0 ...     the next top is being written
//! growing    ... 0   live  live  live     0 ...     the lowest is being emptied
//! ```
//!
//! A level consists of *regions*: runs of a fixed number of buckets. The top bits of a key's first
//! hash choose its region in each level, so the regions of a level are in the order of these bits,
//! and a region covers the same hashes as two regions in the level above. Both buckets of a key are
//! in its region: one in the lower half, which other bits of the first hash choose, and one in the
//! upper, which the second hash chooses. A level that is smaller than a region is one region.
//!
//! So a record stays among the buckets that cover its part of the hashes, however it moves, and
//! whatever levels are added or removed. Walks rely on that: see [`walk`](super::walk).

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::medium::{Note, prefetch};
use evermap_pm::region::Region;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use super::bucket::KeyHashes;
use super::geometry::Geometry;
use super::layout::{BUCKET_BYTES, Bucket, CheckedOffset, OFFSET, Root, SIZES, Version};
use super::stripe::{STRIPE_LOG, Stripe};

/// The smallest top level: four buckets, so that the bottom has two.
pub(super) const SMALLEST: u32 = 2;
/// The largest top level.
pub(super) const LARGEST: u32 = SIZES as u32 - 2;

/// Why mistakes in writing a new level have no effect unless the memory was used before.
const NEEDED: Note =
    Note::Harmless("needed in reused memory: `a_level_is_durable_before_it_is_named`");

/// The levels that hold records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct View {
    /// The level of homes: the top, or the middle one of three. It has `2^level` buckets.
    pub(super) level: u32,
    /// `true` if there is a larger level above, into which the one below is being emptied.
    pub(super) growing: bool,
}

impl View {
    fn encode(self) -> u64 {
        u64::from(self.level) << 1 | u64::from(self.growing)
    }

    #[inline(always)]
    fn decode(word: u64) -> Self {
        View { level: (word >> 1) as u32, growing: word & 1 != 0 }
    }

    /// Returns the largest level that holds records.
    #[inline(always)]
    pub(super) fn highest(self) -> u32 {
        self.level + u32::from(self.growing)
    }

    /// Returns the smallest level that holds records.
    #[inline(always)]
    pub(super) fn lowest(self) -> u32 {
        self.level - 1
    }

    /// Returns the number of buckets in the level that is emptied. As many buckets of the middle
    /// level transfer their keys' homes to the level above.
    pub(super) fn steps(self) -> u64 {
        1 << self.lowest()
    }
}

/// A bucket, its level, and its index in the level.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) level: u32,
    pub(super) index: u64,
}

impl Site<'_> {
    /// Prefetches the bucket's first line.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        prefetch(std::ptr::from_ref(self.bucket).cast());
    }

    /// Returns a number that is unique among all buckets of all levels.
    pub(super) fn position(self) -> u64 {
        (1 << self.level) + self.index
    }
}

/// Returns the binary logarithm of the number of buckets in a region of a level, if chunks have
/// `2^chunk_bits` buckets.
///
/// Larger regions fill more evenly; smaller ones can be copied in a shorter time. With 256 buckets,
/// a walk copies 768 buckets at a time, or 1,792 while the table grows.
pub(super) const fn region_bits(level: u32, chunk_bits: u32) -> u32 {
    let bits = if chunk_bits < 6 { chunk_bits + 2 } else { 8 };
    if level < bits { level } else { bits }
}

/// The number of leading bits of the first hash that do not choose the home within a region. They
/// choose the region, in all but enormous tables. With other bits for the home, keys of a narrow
/// part of the hashes, which a walk over a larger table shows in succession, fill a region evenly.
const REGION_BITS_MAX: u32 = 29;

/// Returns the number of the region of a level that the first hash chooses.
#[inline(always)]
fn region<G: Geometry>(hashes: KeyHashes, level: u32) -> u64 {
    top_bits(hashes.first, level - region_bits(level, G::CHUNK_LOG))
}

/// Returns the index of the bucket that the first hash chooses, in the lower half of a region.
#[inline(always)]
pub(super) fn first_index<G: Geometry>(hashes: KeyHashes, level: u32) -> u64 {
    let half = region_bits(level, G::CHUNK_LOG) - 1;
    ((region::<G>(hashes, level) * 2) << half) + top_bits(hashes.first << REGION_BITS_MAX, half)
}

/// Returns the index of the bucket that the second hash chooses, in the upper half of the same
/// region.
#[inline(always)]
pub(super) fn second_index<G: Geometry>(hashes: KeyHashes, level: u32) -> u64 {
    let half = region_bits(level, G::CHUNK_LOG) - 1;
    ((region::<G>(hashes, level) * 2 + 1) << half) + top_bits(hashes.second, half)
}

/// Returns the index of the `n`th home of a level: of those buckets that are the first bucket of
/// some keys.
#[inline(always)]
pub(super) fn home_index<G: Geometry>(n: u64, level: u32) -> u64 {
    let half = region_bits(level, G::CHUNK_LOG) - 1;
    let region = n >> half;
    // Each region before has as many buckets that are not homes.
    n + (region << half)
}

/// Returns the top `bits` (at most 63) bits.
#[inline(always)]
pub(super) fn top_bits(product: u64, bits: u32) -> u64 {
    (product >> 1) >> (63 - (bits & 63))
}

/// The levels of a table. See the [module](self).
pub(super) struct Levels<M: Medium, G: Geometry> {
    pool: Arc<Pool<M>>,
    region: Arc<Region<M>>,
    root: u64,
    /// An encoded [`View`]. Changed only when the root's entry is durable, so that no thread acts
    /// on what a crash could take back.
    view: AtomicU64,
    /// The offset of each level's table; set before the level becomes part of the view, and not
    /// changed afterwards.
    tables: [AtomicU64; SIZES],
    geometry: PhantomData<fn() -> G>,
}

impl<M: Medium, G: Geometry> Levels<M, G> {
    /// Returns the size of a chunk of this level, bytes. A small level has one small chunk.
    fn chunk_bytes(level: u32) -> u64 {
        BUCKET_BYTES << level.min(G::CHUNK_LOG)
    }

    fn chunks(level: u32) -> u64 {
        1 << level.saturating_sub(G::CHUNK_LOG)
    }

    /// Writes two empty levels and the entries of the root at `root`, flushed without a fence.
    ///
    /// # Errors
    /// `NoSpace`; then nothing is allocated.
    pub(super) fn create(pool: Arc<Pool<M>>, root: u64, level: u32) -> Result<Self> {
        let levels = Self::assemble(pool, root);
        for part in [level - 1, level] {
            if let Err(error) = levels.create_level(part) {
                let tables = levels.tables.iter().map(|table| table.load(Ordering::Relaxed));
                for (level, _) in (0..).zip(tables).filter(|&(_, table)| table != 0) {
                    levels.blocks_of(level, |block, _| levels.pool.free_unpublished(block));
                }
                return Err(error);
            }
        }
        levels.set_view(View { level, growing: false });
        Ok(levels)
    }

    fn create_level(&self, level: u32) -> Result<()> {
        let table = self.new_table(level)?;
        self.tables[level as usize].store(table, Ordering::Relaxed);
        self.extend(level, 0, 1 << level)?;
        let entry = &self.root().levels[level as usize];
        self.medium().store(entry, CheckedOffset::new(table, CheckedOffset::live(level)).0);
        Ok(())
    }

    /// Opens the levels that the root at `root` names.
    pub(super) fn open(pool: Arc<Pool<M>>, root: u64) -> Result<Self> {
        let levels = Self::assemble(pool, root);
        let (mut live, mut prepared) = (Vec::new(), None);
        for level in 0..SIZES as u32 {
            let word = levels.medium().load(&levels.root().levels[level as usize]);
            if word == 0 {
                continue;
            }
            let (as_live, as_prepared) = (
                CheckedOffset(word).offset(CheckedOffset::live(level)),
                CheckedOffset(word).offset(CheckedOffset::prepared(level)),
            );
            let table = as_live.or(as_prepared).filter(|&table| levels.has_table(level, table));
            let Some(table) = table else {
                return Err(Error::damaged(root, format!("impossible level {level}: {word:#x}")));
            };
            levels.tables[level as usize].store(table, Ordering::Relaxed);
            if as_live.is_some() { live.push(level) } else { prepared = prepared.or(Some(level)) }
        }
        let view = match live[..] {
            [bottom, top] if top == bottom + 1 => View { level: top, growing: false },
            [bottom, middle, top] if middle == bottom + 1 && top == middle + 1 => {
                View { level: middle, growing: true }
            }
            _ => return Err(Error::damaged(root, format!("impossible levels {live:?}"))),
        };
        let beside = prepared.is_some_and(|level| view.growing || level != view.level + 1);
        if beside || view.lowest() < SMALLEST - 1 {
            return Err(Error::damaged(root, format!("impossible levels {live:?}, {prepared:?}")));
        }
        levels.set_view(view);
        Ok(levels)
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64) -> Self {
        let region = pool.share_region();
        let tables = [const { AtomicU64::new(0) }; SIZES];
        let view = AtomicU64::new(0);
        Levels { pool, region, root, view, tables, geometry: PhantomData }
    }

    fn has_table(&self, level: u32, table: u64) -> bool {
        self.medium().slice::<PmU64>(table, Self::chunks(level)).is_some()
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    fn root(&self) -> &Root {
        self.medium().at(self.root).expect("checked when opened")
    }

    /// Returns the current levels.
    #[inline(always)]
    pub(super) fn view(&self) -> View {
        // Acquire: pairs with the release in `set_view`, so that the tables are initialised.
        View::decode(self.view.load(Ordering::Acquire))
    }

    fn set_view(&self, view: View) {
        self.view.store(view.encode(), Ordering::Release);
    }

    /// Returns a bucket of a level in the view.
    #[inline(always)]
    pub(super) fn site(&self, level: u32, index: u64) -> Result<Site<'_>> {
        let m = self.medium();
        // Relaxed: the caller has loaded the view, which was stored after the table.
        let table = self.tables[level as usize].load(Ordering::Relaxed);
        let bucket = m.at::<PmU64>(table + (index >> G::CHUNK_LOG) * 8).and_then(|entry| {
            let chunk = m.load(entry) & OFFSET;
            m.at::<Bucket>(chunk + (index & ((1 << G::CHUNK_LOG) - 1)) * BUCKET_BYTES)
        });
        match bucket {
            Some(bucket) => Ok(Site { bucket, level, index }),
            None => Err(outside(table)),
        }
    }

    /// Returns the two buckets of a level in which a record can be.
    #[inline(always)]
    pub(super) fn pair(&self, level: u32, hashes: KeyHashes) -> Result<[Site<'_>; 2]> {
        let [first, second] = [first_index::<G>(hashes, level), second_index::<G>(hashes, level)];
        Ok([self.site(level, first)?, self.site(level, second)?])
    }

    /// Returns the index of the bucket with the lock of the stripe of a bucket. It is in the same
    /// chunk.
    pub(super) fn stripe_start(index: u64) -> u64 {
        let bits = if G::CHUNK_LOG < STRIPE_LOG { G::CHUNK_LOG } else { STRIPE_LOG };
        index >> bits << bits
    }

    /// Returns the lock of the stripe of a bucket.
    pub(super) fn stripe(&self, site: Site<'_>) -> Result<&PmU64> {
        Ok(&self.site(site.level, Self::stripe_start(site.index))?.bucket.stripe)
    }

    /// Prefetches what a search for a record with these hashes reads.
    #[inline(always)]
    pub(super) fn prefetch(&self, view: View, hashes: KeyHashes) -> Result<()> {
        for level in [view.level, view.lowest()] {
            self.pair(level, hashes)?.into_iter().for_each(Site::prefetch);
        }
        Ok(())
    }

    /// Checks that the entry that leads to a bucket is undamaged. Nothing may be stored to a bucket
    /// before this is known.
    pub(super) fn ensure_named(&self, site: Site<'_>) -> Result<()> {
        let table = self.tables[site.level as usize].load(Ordering::Relaxed);
        let (chunk, m) = (site.index >> G::CHUNK_LOG, self.medium());
        let entry = m.at::<PmU64>(table + chunk * 8).ok_or_else(|| outside(table))?;
        match CheckedOffset(m.load(entry)).offset(CheckedOffset::chunk(site.level, chunk)) {
            Some(_) => Ok(()),
            None => Err(Error::damaged(m.offset_of(entry), "impossible chunk of a level")),
        }
    }

    /// Calls `each` with the offset and the size of every block that is reachable from the root,
    /// without the root itself. A block is shown if it is reachable throughout, whether its level
    /// is in preparation or live.
    pub(super) fn blocks(&self, mut each: impl FnMut(u64, u64)) {
        for level in 0..SIZES as u32 {
            if self.medium().load(&self.root().levels[level as usize]) != 0 {
                self.blocks_of(level, &mut each);
            }
        }
    }

    /// Calls `each` with the offset and the size of the chunks and the table of a level.
    fn blocks_of(&self, level: u32, mut each: impl FnMut(u64, u64)) {
        let m = self.medium();
        let table = self.tables[level as usize].load(Ordering::Relaxed);
        let entries = m.slice::<PmU64>(table, Self::chunks(level)).unwrap_or_default();
        for (chunk, entry) in entries.iter().enumerate() {
            // The last chunks of a level in preparation are missing.
            if let Some(offset) =
                CheckedOffset(m.load(entry)).offset(CheckedOffset::chunk(level, chunk as u64))
            {
                each(offset, Self::chunk_bytes(level));
            }
        }
        each(table, Self::chunks(level) * 8);
    }

    /// Returns `true` if the level above the top is in preparation.
    pub(super) fn is_prepared(&self, view: View) -> bool {
        self.medium().load(&self.root().levels[view.level as usize + 1]) != 0
    }

    /// Begins the preparation of a level: the root names an empty table for it.
    ///
    /// # Errors
    /// `NoSpace`; then nothing has changed.
    pub(super) fn begin_preparation(&self, level: u32) -> Result<()> {
        let m = self.medium();
        let table = self.new_table(level)?;
        m.note(NEEDED);
        m.fence();
        self.tables[level as usize].store(table, Ordering::Relaxed);
        self.set_entry(level, CheckedOffset::new(table, CheckedOffset::prepared(level)).0);
        Ok(())
    }

    /// Removes and retires the level in preparation.
    pub(super) fn abandon_preparation(&self, level: u32, guard: &Guard<'_>) {
        self.set_entry(level, 0);
        self.retire(level, guard);
    }

    /// Makes the level above, which is complete and durable, part of the table: the growth begins.
    pub(super) fn begin_growth(&self, view: View) -> View {
        let above = view.level + 1;
        let table = self.tables[above as usize].load(Ordering::Relaxed);
        self.set_entry(above, CheckedOffset::new(table, CheckedOffset::live(above)).0);
        let growing = View { growing: true, ..view };
        self.set_view(growing);
        growing
    }

    /// Removes the lowest level, which is empty and takes no records: the growth ends.
    pub(super) fn end_growth(&self, view: View, guard: &Guard<'_>) {
        self.set_entry(view.lowest(), 0);
        self.set_view(View { level: view.level + 1, growing: false });
        self.retire(view.lowest(), guard);
    }

    /// Changes an entry of the root durably.
    fn set_entry(&self, level: u32, word: u64) {
        let (m, entry) = (self.medium(), &self.root().levels[level as usize]);
        m.store(entry, word);
        m.persist(entry);
    }

    /// Retires the blocks of a level that the root does not name any more.
    fn retire(&self, level: u32, guard: &Guard<'_>) {
        self.blocks_of(level, |offset, bytes| self.pool.retire(offset, bytes, guard));
    }

    /// Creates a table without chunks, flushed without a fence.
    fn new_table(&self, level: u32) -> Result<u64> {
        let m = self.medium();
        let table = self.pool.allocate(Self::chunks(level) * 8)?;
        let entries = m.slice::<PmU64>(table, Self::chunks(level)).expect("just allocated");
        entries.iter().for_each(|entry| m.store(entry, 0));
        m.note(NEEDED);
        m.flush(entries);
        Ok(table)
    }

    /// Writes `count` empty buckets, from bucket `from` on, of a level that is not in the view, and
    /// flushes them without a fence. Allocates the chunks that are missing.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn extend(&self, level: u32, from: u64, count: u64) -> Result<()> {
        let m = self.medium();
        let table = self.tables[level as usize].load(Ordering::Relaxed);
        for index in from..from + count {
            if index & ((1 << G::CHUNK_LOG) - 1) == 0 || index == from {
                let entry = m
                    .at::<PmU64>(table + (index >> G::CHUNK_LOG) * 8)
                    .ok_or_else(|| outside(table))?;
                self.ensure_chunk(entry, level, index >> G::CHUNK_LOG)?;
            }
            let bucket = self.site(level, index)?.bucket;
            m.store_transient(&bucket.version, Version::fresh(self.region.generation()).0);
            m.store(&bucket.meta, 0);
            m.store(&bucket.tokens, 0);
            if index == Self::stripe_start(index) {
                m.store_transient(&bucket.stripe, Stripe::free(self.region.generation()).0);
            }
            m.flush(&bucket.meta);
            m.note(NEEDED);
            m.flush(&bucket.tokens);
        }
        Ok(())
    }

    /// Allocates the chunk for `entry`, unless it exists since an attempt that a crash ended.
    fn ensure_chunk(&self, entry: &PmU64, level: u32, chunk: u64) -> Result<()> {
        let (m, tag) = (self.medium(), CheckedOffset::chunk(level, chunk));
        if CheckedOffset(m.load(entry)).offset(tag).is_none() {
            let offset = self.pool.allocate_fixed(Self::chunk_bytes(level))?;
            m.store(entry, CheckedOffset::new(offset, tag).0);
        }
        // Also flushed if it exists: the process that stored it may have died before it was
        // durable.
        m.note(Note::Harmless("late, it still comes before the fence: a bucket is stored first"));
        m.flush(entry);
        Ok(())
    }

    /// Returns the number of buckets of all levels in the view.
    pub(super) fn buckets(&self, view: View) -> u64 {
        (view.lowest()..=view.highest()).map(|level| 1 << level).sum()
    }

    /// Returns the size of the next level without tables, bytes.
    pub(super) fn next_bytes(&self, view: View) -> u64 {
        BUCKET_BYTES << (view.level + 1)
    }
}

#[cold]
fn outside(table: u64) -> Error {
    Error::damaged(table, "a level outside the region")
}
