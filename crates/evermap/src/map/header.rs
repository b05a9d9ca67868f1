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
//! ```
//!
//! Every map but the default one has such a *descriptor*, a block of its own that never moves. The
//! default map has the same words in the region's header, where they were before there were named
//! maps. All of them are [checked words](crate::record::checked_word) except the root, which
//! belongs to the index.

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
        }
    }

    /// Returns the offsets of the words of the descriptor at `offset`, or `None` if there is no
    /// descriptor.
    pub(crate) fn described<M: Medium>(pool: &Pool<M>, offset: u64) -> Option<Self> {
        let m = pool.medium();
        let descriptor = m.at::<Descriptor>(offset)?;
        (decode_checked(WordKind::Descriptor, m.load(&descriptor.own)) == Some(offset)).then(|| {
            MapHeader {
                descriptor: offset,
                root: m.offset_of(&descriptor.root),
                flush: m.offset_of(&descriptor.flush),
                counters: m.offset_of(&descriptor.counters),
                saved: m.offset_of(&descriptor.saved),
                order: m.offset_of(&descriptor.order),
                owner: Owner::of(offset),
            }
        })
    }

    /// Returns the offsets of the words of the descriptor at `offset`, where there must be one.
    ///
    /// # Errors
    /// `Damaged`.
    pub(crate) fn at<M: Medium>(pool: &Pool<M>, offset: u64) -> Result<Self> {
        let header = Self::described(pool, offset);
        header.ok_or_else(|| evermap_pm::Error::damaged(offset, "no map is described here").into())
    }

    /// Creates a descriptor that nothing names yet, and that names no index yet. Durable on return.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn create<M: Medium>(pool: &Pool<M>) -> Result<Self> {
        let (m, offset) = (pool.medium(), pool.allocate_fixed(size_of::<Descriptor>() as u64)?);
        let descriptor = m.at::<Descriptor>(offset).expect("just allocated");
        let Descriptor { root, counters, saved, order, .. } = descriptor;
        for cell in [root, saved, order].into_iter().chain(counters) {
            m.store(cell, 0);
        }
        m.store(&descriptor.own, encode_checked(WordKind::Descriptor, offset));
        m.flush(descriptor);
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
