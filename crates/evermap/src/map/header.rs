//! One of the maps in a file, and where its own words are.
//!
//! ```text
//! byte  0  own       says that this is a descriptor, and which
//! byte  8  root      names the index
//! byte 16  flush     the mark, and when a pending flush falls due
//! byte 32  counters  records and bytes; count after an orderly stop. After any other, the bytes are an upper bound
//! byte 48  saved     names the keys in order, if an orderly stop has saved them
//! byte 56  reserved
//! ```
//!
//! Every map but the default one has such a *descriptor*, a block of its own that never moves. The default map has the same
//! words in the region's header, where they were before there were others. All of them are [sealed](crate::record::checked_word) but
//! the root, which is the index's business.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64};

use evermap_pm::region::Region;
use evermap_pm::{Medium, PmU64, Pool, pod};

use crate::index::PrimaryIndex;
use crate::maintenance::census::{Counters, Totals};
use crate::maintenance::expire::Expiries;
use crate::ordered::{Ordered, Saved};
use crate::record::Owner;
use crate::record::cas::CasCounter;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::record::flush_mark::Flush;
use crate::record::size_hint::RecordSizeHint;
use crate::{Error, IndexKind, Options, Result};

pod! {
    struct Descriptor: 64 {
        own: PmU64,
        root: PmU64,
        flush: [PmU64; 2],
        counters: [PmU64; 2],
        saved: PmU64,
        reserved: PmU64,
    }
}

/// Root slot of the default map's index.
const DEFAULT: usize = 0;
/// Root slot that names its saved keys.
const DEFAULT_SAVED: usize = 13;

/// Where a map keeps the words that change in place: offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapHeader {
    /// 0: the default map, which has no descriptor.
    descriptor: u64,
    root: u64,
    flush: u64,
    counters: u64,
    saved: u64,
    owner: Owner,
}

impl MapHeader {
    /// The words of the default map.
    pub(crate) fn of_default<M: Medium>(pool: &Pool<M>) -> Self {
        let (m, words) = (pool.medium(), pool.region().words());
        MapHeader {
            descriptor: 0,
            root: m.offset_of(pool.root(DEFAULT)),
            flush: m.offset_of(&words.flush),
            counters: m.offset_of(&words.counters),
            saved: m.offset_of(pool.root(DEFAULT_SAVED)),
            owner: Owner::of(0),
        }
    }

    /// The words of the descriptor at `offset`, unless that is none.
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
                owner: Owner::of(offset),
            }
        })
    }

    /// The same where there has to be one.
    ///
    /// # Errors
    /// `Damaged`.
    pub(crate) fn at<M: Medium>(pool: &Pool<M>, offset: u64) -> Result<Self> {
        let header = Self::described(pool, offset);
        header.ok_or_else(|| evermap_pm::Error::damaged(offset, "no map is described here").into())
    }

    /// Makes a descriptor that nothing names yet, and that names no index yet. Durable on return.
    ///
    /// # Errors
    /// `NoSpace`.
    fn create<M: Medium>(pool: &Pool<M>) -> Result<Self> {
        let (m, offset) = (pool.medium(), pool.allocate_part(size_of::<Descriptor>() as u64)?);
        let descriptor = m.at::<Descriptor>(offset).expect("just allocated");
        let Descriptor { root, counters, saved, reserved, .. } = descriptor;
        for cell in [root, saved, reserved].into_iter().chain(counters) {
            m.store(cell, 0);
        }
        m.store(&descriptor.own, encode_checked(WordKind::Descriptor, offset));
        m.flush(descriptor);
        let header = Self::described(pool, offset).expect("just written");
        header.create_flush(pool.region());
        Ok(header)
    }

    /// Initial words for the flushes of a new map.
    pub(crate) fn create_flush<M: Medium>(&self, region: &Region<M>) {
        Flush::create(region, self.flush);
    }

    fn is_default(&self) -> bool {
        self.descriptor == 0
    }

    /// The block that these words are in; 0 for the default map.
    pub(crate) fn descriptor(&self) -> u64 {
        self.descriptor
    }

    /// The same as something that the map keeps in the heap.
    pub(crate) fn block(&self) -> Option<u64> {
        (!self.is_default()).then_some(self.descriptor)
    }

    /// What the checksums of its records begin with.
    #[inline]
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The cell that names the index.
    pub(crate) fn root<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p PmU64 {
        pool.medium().at(self.root).expect("checked with the header")
    }

    /// The cell that names the saved keys.
    pub(crate) fn saved<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p PmU64 {
        pool.medium().at(self.saved).expect("checked with the header")
    }

    fn counters<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p [PmU64; 2] {
        pool.medium().at(self.counters).expect("checked with the header")
    }

    /// What an orderly close saved; nothing if that does not verify.
    fn read_totals<M: Medium>(&self, pool: &Pool<M>) -> Option<Totals> {
        let (m, [records, bytes]) = (pool.medium(), self.counters(pool));
        let records = decode_checked(WordKind::Records, m.load(records))?;
        let bytes = decode_checked(WordKind::Bytes, m.load(bytes))?;
        Some(Totals { records, bytes })
    }

    /// Saves the counts. Without them, the next opening counts, and the bound stays what it is.
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

    /// The most bytes that the records took when the last stop came, however it did; nothing if that does not verify.
    fn read_bound<M: Medium>(&self, pool: &Pool<M>) -> Option<u64> {
        decode_checked(WordKind::Bytes, pool.medium().load(&self.counters(pool)[1]))
    }

    /// Says that the records take at most so many bytes, durably.
    fn write_bound<M: Medium>(&self, pool: &Pool<M>, bound: u64) {
        let cell = &self.counters(pool)[1];
        pool.medium()
            .store(cell, encode_checked(WordKind::Bytes, bound.min(WordKind::Bytes.limit() - 1)));
        pool.medium().persist(cell);
    }
}

/// Whether a map can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MapState {
    Open,
    Closed,
    Dropped,
}

/// What belongs to one map, and to no other of the same file.
pub(crate) struct Map<M: Medium> {
    /// Nothing for the default map.
    pub(crate) name: Option<Box<str>>,
    pub(crate) header: MapHeader,
    pub(crate) index: PrimaryIndex<M>,
    pub(crate) flush: Flush,
    pub(crate) counters: Counters,
    pub(crate) max_bytes: AtomicU64,
    pub(crate) expiries: Expiries,
    /// Nothing unless [`Options::ordered`] asks for it.
    pub(crate) ordered: Option<Ordered>,
    /// What the last stop has left of the tree.
    pub(crate) saved: Saved,
    /// Reads that met a damaged record since opening.
    pub(crate) damage_met: AtomicU64,
    /// How long its records are.
    pub(crate) size_hint: RecordSizeHint,
    state: AtomicU8,
}

/// What a map is opened with.
pub(crate) struct OpenContext<'s, M: Medium> {
    pub(crate) pool: &'s Arc<Pool<M>>,
    pub(crate) cas_counter: &'s CasCounter,
    pub(crate) options: &'s Options,
    /// Whether the file was closed in order before.
    pub(crate) clean: bool,
}

impl<M: Medium> OpenContext<'_, M> {
    /// Makes an empty map with a descriptor, all of it durable, that nothing names yet.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then.
    pub(crate) fn create(&self, kind: IndexKind, name: Option<&str>) -> Result<Map<M>> {
        let header = MapHeader::create(self.pool)?;
        let index = PrimaryIndex::create(kind, true, self.pool, header.root(self.pool));
        let index = index.inspect_err(|_| self.pool.free_unpublished(header.descriptor))?;
        let map = self.assemble(header, index, name, true);
        // There was no memory for what is not in the file: what is there, nobody knows any more.
        map.inspect_err(|_| self.pool.lose_track())
    }

    /// Opens the map whose words are there. O(1).
    ///
    /// # Errors
    /// `Damaged` if they do not verify.
    pub(crate) fn open(&self, header: MapHeader, name: Option<&str>) -> Result<Map<M>> {
        let index = PrimaryIndex::open(self.pool, header.root(self.pool))?;
        self.assemble(header, index, name, false)
    }

    /// An open map of its parts.
    pub(crate) fn assemble(
        &self,
        header: MapHeader,
        index: PrimaryIndex<M>,
        name: Option<&str>,
        is_new: bool,
    ) -> Result<Map<M>> {
        let known = match is_new {
            true => Some(Totals::default()),
            false if self.clean => header.read_totals(self.pool),
            false => None,
        };
        if is_new {
            header.write_bound(self.pool, 0);
        }
        // Where it is damaged, what nobody has counted may be all that there is from before.
        let bound = header.read_bound(self.pool);
        let bound = bound.unwrap_or_else(|| self.pool.heap_stats().closed_bytes);
        let (orderly, records) =
            (self.clean && self.pool.is_swept(), known.map(|known| known.records));
        let saved = Saved::open(self.pool, header.saved(self.pool), orderly, records);
        let ordered = self.options.ordered && (header.is_default() || name.is_some());
        Ok(Map {
            name: name.map(Box::from),
            header,
            index,
            flush: Flush::open(
                self.pool.region(),
                header.flush,
                self.cas_counter,
                self.options.on_suspect,
            )?,
            counters: Counters::new(known, bound),
            max_bytes: AtomicU64::new(u64::MAX),
            expiries: Expiries::new(is_new),
            ordered: ordered
                .then(|| Ordered::new(self.options.ordered_updates, is_new))
                .transpose()?,
            saved,
            damage_met: AtomicU64::new(0),
            size_hint: RecordSizeHint::default(),
            state: AtomicU8::new(MapState::Open as u8),
        })
    }
}

impl<M: Medium> Map<M> {
    /// Whether operations may begin.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // SeqCst: an operation pins a guard and then reads this; who ends the map's state stores it and then looks for
        // guards. One of the two sees the other.
        self.state.load(SeqCst) == MapState::Open as u8
    }

    pub(crate) fn set_state(&self, state: MapState) {
        self.state.store(state as u8, SeqCst);
    }

    /// Why no operation may begin.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        match &self.name {
            Some(name) if self.state.load(SeqCst) == MapState::Dropped as u8 => {
                Error::Dropped { name: name.to_string() }
            }
            _ => Error::Closed,
        }
    }

    /// Chooses a new bound for the bytes of its records, and puts it into the file.
    #[cold]
    pub(crate) fn set_bound(&self, pool: &Pool<M>) {
        // A change is complete only with what follows this.
        let poison = pool.region().poison_on_panic();
        self.counters.set_bound(|bound| self.header.write_bound(pool, bound));
        poison.disarm();
    }

    /// Saves the counts for the next opening, if they are right.
    pub(crate) fn save_totals(&self, pool: &Pool<M>) {
        let (totals, exact) = self.counters.totals();
        self.header.write_totals(pool, exact.then_some(totals));
    }
}
