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
//! words in the region's header, where they were before there were others. All of them are [sealed](crate::sealed) but
//! the root, which is the index's business.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64};

use evermap_pm::region::Region;
use evermap_pm::{Medium, PmU64, Pool, pod};

use crate::census::{Counters, Totals};
use crate::expire::Expiries;
use crate::flush::Flush;
use crate::ordered::{Ordered, Saved};
use crate::primary::Primary;
use crate::record::Owner;
use crate::sealed::{Place, seal, unseal};
use crate::stamps::Stamps;
use crate::usual::Usual;
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
pub(crate) struct Seat {
    /// 0: the default map, which has no descriptor.
    descriptor: u64,
    root: u64,
    flush: u64,
    counters: u64,
    saved: u64,
    owner: Owner,
}

impl Seat {
    /// The words of the default map.
    pub(crate) fn of_default<M: Medium>(pool: &Pool<M>) -> Self {
        let (m, words) = (pool.medium(), pool.region().header());
        Seat {
            descriptor: 0,
            root: m.offset_of(pool.root(DEFAULT)),
            flush: m.offset_of(&words.flush_mark),
            counters: m.offset_of(&words.counters),
            saved: m.offset_of(pool.root(DEFAULT_SAVED)),
            owner: Owner::of(0),
        }
    }

    /// The words of the descriptor at `offset`, unless that is none.
    pub(crate) fn described<M: Medium>(pool: &Pool<M>, offset: u64) -> Option<Self> {
        let m = pool.medium();
        let descriptor = m.at::<Descriptor>(offset)?;
        (unseal(Place::Descriptor, m.load(&descriptor.own)) == Some(offset)).then(|| Seat {
            descriptor: offset,
            root: m.offset_of(&descriptor.root),
            flush: m.offset_of(&descriptor.flush),
            counters: m.offset_of(&descriptor.counters),
            saved: m.offset_of(&descriptor.saved),
            owner: Owner::of(offset),
        })
    }

    /// The same where there has to be one.
    ///
    /// # Errors
    /// `Damaged`.
    pub(crate) fn at<M: Medium>(pool: &Pool<M>, offset: u64) -> Result<Self> {
        let seat = Self::described(pool, offset);
        seat.ok_or_else(|| evermap_pm::Error::damaged(offset, "no map is described here").into())
    }

    /// Makes a descriptor that nothing names yet, and that names no index yet. Durable on return.
    ///
    /// # Errors
    /// `NoSpace`.
    fn create<M: Medium>(pool: &Pool<M>) -> Result<Self> {
        let (m, offset) = (pool.medium(), pool.allocate_fixed(size_of::<Descriptor>() as u64)?);
        let descriptor = m.at::<Descriptor>(offset).expect("just allocated");
        let Descriptor { root, counters, saved, reserved, .. } = descriptor;
        for cell in [root, saved, reserved].into_iter().chain(counters) {
            m.store(cell, 0);
        }
        m.store(&descriptor.own, seal(Place::Descriptor, offset));
        m.flush(descriptor);
        let seat = Self::described(pool, offset).expect("just written");
        seat.create_flush(pool.region());
        Ok(seat)
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
        pool.medium().at(self.root).expect("checked with the seat")
    }

    /// The cell that names the saved keys.
    pub(crate) fn saved<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p PmU64 {
        pool.medium().at(self.saved).expect("checked with the seat")
    }

    fn counters<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p [PmU64; 2] {
        pool.medium().at(self.counters).expect("checked with the seat")
    }

    /// What an orderly close saved; nothing if that does not verify.
    fn read_totals<M: Medium>(&self, pool: &Pool<M>) -> Option<Totals> {
        let (m, [records, bytes]) = (pool.medium(), self.counters(pool));
        let records = unseal(Place::Records, m.load(records))?;
        let bytes = unseal(Place::Bytes, m.load(bytes))?;
        Some(Totals { records, bytes })
    }

    /// Saves the counts. Without them, the next opening counts, and the bound stays what it is.
    pub(crate) fn write_totals<M: Medium>(&self, pool: &Pool<M>, totals: Option<Totals>) {
        let (m, cells) = (pool.medium(), self.counters(pool));
        let [records, bytes] = cells;
        match totals {
            None => m.store(records, 0),
            Some(totals) => {
                m.store(records, seal(Place::Records, totals.records));
                m.store(bytes, seal(Place::Bytes, totals.bytes));
            }
        }
        m.persist(cells);
    }

    /// The most bytes that the records took when the last stop came, however it did; nothing if that does not verify.
    fn read_bound<M: Medium>(&self, pool: &Pool<M>) -> Option<u64> {
        unseal(Place::Bytes, pool.medium().load(&self.counters(pool)[1]))
    }

    /// Says that the records take at most so many bytes, durably.
    fn write_bound<M: Medium>(&self, pool: &Pool<M>, bound: u64) {
        let cell = &self.counters(pool)[1];
        pool.medium().store(cell, seal(Place::Bytes, bound.min(Place::Bytes.limit() - 1)));
        pool.medium().persist(cell);
    }
}

/// Whether a map can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Life {
    Open,
    Closed,
    Dropped,
}

/// What belongs to one map, and to no other of the same file.
pub(crate) struct Map<M: Medium> {
    /// Nothing for the default map.
    pub(crate) name: Option<Box<str>>,
    pub(crate) seat: Seat,
    pub(crate) index: Primary<M>,
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
    pub(crate) usual: Usual,
    life: AtomicU8,
}

/// What a map is opened with.
pub(crate) struct Setting<'s, M: Medium> {
    pub(crate) pool: &'s Arc<Pool<M>>,
    pub(crate) stamps: &'s Stamps,
    pub(crate) options: &'s Options,
    /// Whether the file was closed in order before.
    pub(crate) clean: bool,
}

impl<M: Medium> Setting<'_, M> {
    /// Makes an empty map with a descriptor, all of it durable, that nothing names yet.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then.
    pub(crate) fn create(&self, kind: IndexKind, name: Option<&str>) -> Result<Map<M>> {
        let seat = Seat::create(self.pool)?;
        let index = Primary::create(kind, true, self.pool, seat.root(self.pool));
        let index = index.inspect_err(|_| self.pool.free_unpublished(seat.descriptor))?;
        let map = self.assemble(seat, index, name, true);
        // There was no memory for what is not in the file: what is there, nobody knows any more.
        map.inspect_err(|_| self.pool.require_sweep())
    }

    /// Opens the map whose words are there. O(1).
    ///
    /// # Errors
    /// `Damaged` if they do not verify.
    pub(crate) fn open(&self, seat: Seat, name: Option<&str>) -> Result<Map<M>> {
        let index = Primary::open(self.pool, seat.root(self.pool))?;
        self.assemble(seat, index, name, false)
    }

    /// An open map of its parts.
    pub(crate) fn assemble(
        &self,
        seat: Seat,
        index: Primary<M>,
        name: Option<&str>,
        is_new: bool,
    ) -> Result<Map<M>> {
        let known = match is_new {
            true => Some(Totals::default()),
            false if self.clean => seat.read_totals(self.pool),
            false => None,
        };
        if is_new {
            seat.write_bound(self.pool, 0);
        }
        // Where it is damaged, what nobody has counted may be all that there is from before.
        let bound = seat.read_bound(self.pool);
        let bound = bound.unwrap_or_else(|| self.pool.heap_stats().closed_bytes);
        let (orderly, records) =
            (self.clean && self.pool.is_swept(), known.map(|known| known.records));
        let saved = Saved::open(self.pool, seat.saved(self.pool), orderly, records);
        let ordered = self.options.ordered && (seat.is_default() || name.is_some());
        Ok(Map {
            name: name.map(Box::from),
            seat,
            index,
            flush: Flush::open(
                self.pool.region(),
                seat.flush,
                self.stamps,
                self.options.on_suspect,
            )?,
            counters: Counters::new(known, bound),
            max_bytes: AtomicU64::new(u64::MAX),
            expiries: Expiries::new(is_new),
            ordered: ordered.then(|| Ordered::new(self.options.notices, is_new)).transpose()?,
            saved,
            damage_met: AtomicU64::new(0),
            usual: Usual::default(),
            life: AtomicU8::new(Life::Open as u8),
        })
    }
}

impl<M: Medium> Map<M> {
    /// Whether operations may begin.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // SeqCst: an operation pins a guard and then reads this; who ends the map's life stores it and then looks for
        // guards. One of the two sees the other.
        self.life.load(SeqCst) == Life::Open as u8
    }

    pub(crate) fn set_life(&self, life: Life) {
        self.life.store(life as u8, SeqCst);
    }

    /// Why no operation may begin.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        match &self.name {
            Some(name) if self.life.load(SeqCst) == Life::Dropped as u8 => {
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
        self.counters.set_bound(|bound| self.seat.write_bound(pool, bound));
        poison.disarm();
    }

    /// Saves the counts for the next opening, if they are right.
    pub(crate) fn save_totals(&self, pool: &Pool<M>) {
        let (totals, exact) = self.counters.totals();
        self.seat.write_totals(pool, exact.then_some(totals));
    }
}
