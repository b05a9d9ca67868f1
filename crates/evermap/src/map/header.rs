//! Where a map keeps its own words in the file.
//!
//! ```text
//! byte  0  own       says that this is a descriptor, and which
//! byte  8  root      names the index
//! byte 16  flush     the mark, and when a pending flush falls due
//! byte 32  counters  records and bytes, exact after a clean shutdown; after any other, the
//!                    bytes are an upper limit
//! byte 48  saved     names the keys in order, if a clean shutdown has saved them
//! byte 56  order     names the persistent ordered index, if there is one
//! byte 64  seed      of the hash function of its keys
//! byte 72  seal      says that this is the seed of this map
//! ```
//!
//! Every map but the default one has such a *descriptor*, a block of its own that never moves. The
//! default map has the same words in the region's header, where they were before there were named
//! maps. All of them are [checked words](crate::record::checked_word) except the root, which
//! belongs to the index, and the seed, which has all bits of a word.
//!
//! Each map has a seed of its own, so that the keys of one map, in the order in which it is walked
//! through, are in no order for another: that of the default map is the file's. Descriptors of
//! format 7 end before the seed, and the maps that they describe have the file's, too.

use evermap_pm::region::Region;
use evermap_pm::{Medium, PmU64, Pool, pod};

use crate::Result;
use crate::maintenance::census::Totals;
use crate::record::Owner;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::record::flush_mark::FlushMark;

pod! {
    struct Descriptor: 64 {
        own: PmU64,
        root: PmU64,
        flush: [PmU64; 2],
        counters: [PmU64; 2],
        saved: PmU64,
        order: PmU64,
    }
}

pod! {
    /// What follows the words that every descriptor has.
    struct Seed: 16 {
        seed: PmU64,
        seal: PmU64,
    }
}

/// Bytes of a descriptor with a seed.
pub(crate) const BYTES: u64 = (size_of::<Descriptor>() + size_of::<Seed>()) as u64;

/// Root slot of the default map's index.
const DEFAULT: usize = 0;
/// Root slot that names its saved keys.
const DEFAULT_SAVED: usize = 13;

/// Root slot that names its persistent ordered index.
const DEFAULT_ORDER: usize = 12;

/// The offsets of the words of a map that change in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapHeader {
    /// 0: the default map, which has no descriptor.
    descriptor: u64,
    root: u64,
    flush: u64,
    counters: u64,
    saved: u64,
    order: u64,
    owner: Owner,
    seed: u64,
}

impl MapHeader {
    /// Returns the offsets of the words of the default map.
    pub(crate) fn of_default<M: Medium>(pool: &Pool<M>) -> Self {
        let (m, words) = (pool.medium(), pool.region().header());
        MapHeader {
            descriptor: 0,
            root: m.offset_of(pool.root(DEFAULT)),
            flush: m.offset_of(&words.flush_mark),
            counters: m.offset_of(&words.counters),
            saved: m.offset_of(pool.root(DEFAULT_SAVED)),
            order: m.offset_of(pool.root(DEFAULT_ORDER)),
            owner: Owner::of(0),
            seed: pool.seed(),
        }
    }

    /// Returns the offsets of the words of the descriptor at `offset`, or `None` if there is no
    /// descriptor.
    pub(crate) fn described<M: Medium>(pool: &Pool<M>, offset: u64) -> Option<Self> {
        let m = pool.medium();
        let descriptor = m.at::<Descriptor>(offset)?;
        let own = m.load(&descriptor.own);
        let is = |kind| decode_checked(kind, own) == Some(offset);
        let seed = if is(WordKind::SeededDescriptor) {
            Self::read_seed(m, offset)?
        } else if is(WordKind::Descriptor) && !Self::has_seed(pool, offset) {
            pool.seed()
        } else {
            return None;
        };
        Some(MapHeader {
            descriptor: offset,
            root: m.offset_of(&descriptor.root),
            flush: m.offset_of(&descriptor.flush),
            counters: m.offset_of(&descriptor.counters),
            saved: m.offset_of(&descriptor.saved),
            order: m.offset_of(&descriptor.order),
            owner: Owner::of(offset),
            seed,
        })
    }

    /// Returns `true` if the descriptor has room for a seed. Then it has one, and a first word that
    /// says otherwise is damaged.
    fn has_seed<M: Medium>(pool: &Pool<M>, descriptor: u64) -> bool {
        pool.block_size_at(descriptor).is_some_and(|bytes| bytes >= BYTES)
    }

    /// Returns the seed in a descriptor, unless it was damaged.
    fn read_seed<M: Medium>(m: &M, descriptor: u64) -> Option<u64> {
        let words = Self::seed_words(m, descriptor)?;
        let seed = m.load(&words.seed);
        (m.load(&words.seal) == seal(descriptor, seed)).then_some(seed)
    }

    fn seed_words<M: Medium>(m: &M, descriptor: u64) -> Option<&Seed> {
        m.at::<Seed>(descriptor + size_of::<Descriptor>() as u64)
    }

    /// Returns the offsets of the words of the descriptor at `offset`, where there must be one.
    ///
    /// # Errors
    /// `Damaged`.
    pub(crate) fn at<M: Medium>(pool: &Pool<M>, offset: u64) -> Result<Self> {
        let header = Self::described(pool, offset);
        header.ok_or_else(|| evermap_pm::Error::damaged(offset, "no map is described here").into())
    }

    /// Creates a descriptor with this seed, that nothing names yet, and that names no index yet.
    /// Durable on return.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn create<M: Medium>(pool: &Pool<M>, seed: u64) -> Result<Self> {
        let (m, offset) = (pool.medium(), pool.allocate_fixed(BYTES)?);
        let descriptor = m.at::<Descriptor>(offset).expect("just allocated");
        let Descriptor { root, counters, saved, order, .. } = descriptor;
        for cell in [root, saved, order].into_iter().chain(counters) {
            m.store(cell, 0);
        }
        m.store(&descriptor.own, encode_checked(WordKind::SeededDescriptor, offset));
        m.flush(descriptor);
        let words = Self::seed_words(m, offset).expect("just allocated");
        m.store(&words.seed, seed);
        m.store(&words.seal, seal(offset, seed));
        m.flush(words);
        let header = Self::described(pool, offset).expect("just written");
        header.create_flush(pool.region());
        Ok(header)
    }

    /// Stores the initial words for the flushes of a new map.
    pub(crate) fn create_flush<M: Medium>(&self, region: &Region<M>) {
        FlushMark::create(region, self.flush);
    }

    pub(crate) fn is_default(&self) -> bool {
        self.descriptor == 0
    }

    /// Returns the offset of the descriptor; 0 for the default map.
    pub(crate) fn descriptor(&self) -> u64 {
        self.descriptor
    }

    /// Returns the block of the descriptor; `None` for the default map.
    pub(crate) fn block(&self) -> Option<u64> {
        (!self.is_default()).then_some(self.descriptor)
    }

    /// Returns the seed of the hash function of its keys.
    #[inline]
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns what the checksums of its records begin with.
    #[inline]
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the offset of the words for flushes.
    pub(crate) fn flush(&self) -> u64 {
        self.flush
    }

    /// Returns the cell that names the index.
    pub(crate) fn root<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p PmU64 {
        pool.medium().at(self.root).expect("checked with the header")
    }

    /// Returns the cell that names the saved keys.
    pub(crate) fn saved<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p PmU64 {
        pool.medium().at(self.saved).expect("checked with the header")
    }

    /// Returns the cell that names the persistent ordered index.
    pub(crate) fn order<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p PmU64 {
        pool.medium().at(self.order).expect("checked with the header")
    }

    fn counters<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p [PmU64; 2] {
        pool.medium().at(self.counters).expect("checked with the header")
    }

    /// Returns the counts that a clean shutdown has saved, or `None` if they do not verify.
    pub(crate) fn read_totals<M: Medium>(&self, pool: &Pool<M>) -> Option<Totals> {
        let (m, [records, bytes]) = (pool.medium(), self.counters(pool));
        let records = decode_checked(WordKind::Records, m.load(records))?;
        let bytes = decode_checked(WordKind::Bytes, m.load(bytes))?;
        Some(Totals { records, bytes })
    }

    /// Saves the counts. With `None`, the next opening counts, and the bound stays as it is.
    pub(crate) fn write_totals<M: Medium>(&self, pool: &Pool<M>, totals: Option<Totals>) {
        let (m, cells) = (pool.medium(), self.counters(pool));
        let [records, bytes] = cells;
        match totals {
            None => m.store(records, 0),
            Some(totals) => {
                m.store(records, encode_checked(WordKind::Records, totals.records));
                m.store(bytes, encode_checked(WordKind::Bytes, totals.bytes));
            }
        }
        m.persist(cells);
    }

    /// Returns the upper limit of the bytes that the records took at the last shutdown, clean or
    /// not, or `None` if it does not verify.
    pub(crate) fn read_bound<M: Medium>(&self, pool: &Pool<M>) -> Option<u64> {
        decode_checked(WordKind::Bytes, pool.medium().load(&self.counters(pool)[1]))
    }

    /// Stores the upper limit of the bytes that the records take, durably.
    pub(crate) fn write_bound<M: Medium>(&self, pool: &Pool<M>, bound: u64) {
        let cell = &self.counters(pool)[1];
        pool.medium()
            .store(cell, encode_checked(WordKind::Bytes, bound.min(WordKind::Bytes.limit() - 1)));
        pool.medium().persist(cell);
    }
}

/// Returns a word that differs for any two seeds of a descriptor, and between descriptors.
fn seal(descriptor: u64, seed: u64) -> u64 {
    mix(seed ^ mix(descriptor))
}

/// Mixes the bits of a word: different words stay different.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use evermap_pm::region::{Identity, RegionConfig};
    use evermap_pm::sim::Sim;

    use super::*;

    /// A descriptor without a seed is read as before, and one with a seed is never taken for it.
    #[test]
    fn descriptors_without_a_seed_have_that_of_the_file() {
        let config = RegionConfig { extent_size: 16384, capacity: 1 << 20, seed: Some(7) };
        let medium = Sim::in_memory(config.capacity).unwrap();
        let pool = Pool::create(medium, &config, Identity::default()).unwrap();
        let m = pool.medium();
        let old = pool.allocate_fixed(size_of::<Descriptor>() as u64).unwrap();
        let own = |at| &m.at::<Descriptor>(at).unwrap().own;
        m.store(own(old), encode_checked(WordKind::Descriptor, old));
        assert_eq!(MapHeader::at(&pool, old).unwrap().seed(), 7);
        let new = MapHeader::create(&pool, 8).unwrap().descriptor();
        assert_eq!(MapHeader::at(&pool, new).unwrap().seed(), 8);
        m.store(own(new), encode_checked(WordKind::Descriptor, new));
        assert!(MapHeader::at(&pool, new).is_err());
    }
}
