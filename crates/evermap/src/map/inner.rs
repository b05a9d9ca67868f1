//! What belongs to one map, and to no other of the same file.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use evermap_index::Visitor;
use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::{Medium, Pool};

use crate::index::PrimaryIndex;
use crate::maintenance::census::{Counters, Totals};
use crate::maintenance::evict::course::OwnEviction;
use crate::maintenance::expire::Expiries;
use crate::map::header::{MapHeader, mix};
use crate::ops::losses::Losses;
use crate::ordered::{OrderVisit, Ordered, PersistentOrder, Saved};
use crate::record::cas::CasCounter;
use crate::record::flush_mark::FlushMark;
use crate::record::size_hint::RecordSizeHint;
use crate::record::{Record, tombstone_of};
use crate::watch::feed::Feed;
use crate::{Error, IndexKind, Options, Order, Result};

/// Whether a map can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MapState {
    Open,
    Closed,
    Dropped,
    /// It is one of a snapshot that may not take more memory.
    TooOld,
}

/// What belongs to one map, and to no other of the same file.
pub(crate) struct MapInner<M: Medium> {
    /// `None` for the default map.
    pub(crate) name: Option<Box<str>>,
    pub(crate) header: MapHeader,
    pub(crate) index: PrimaryIndex<M>,
    pub(crate) flush: FlushMark,
    pub(crate) counters: Counters,
    pub(crate) max_bytes: AtomicU64,
    /// Whether its records are evicted, and keep how they were read.
    evicts: AtomicBool,
    pub(crate) own_eviction: OwnEviction,
    pub(crate) expiries: Expiries,
    /// The ordered index in ordinary memory, if [`Options::ordered`] asks for it.
    pub(crate) ordered: Option<Ordered>,
    /// The one in the file, if the map was ever opened with it.
    pub(crate) order: Option<PersistentOrder<M>>,
    /// The keys that the last clean shutdown has saved in order.
    pub(crate) saved: Saved,
    /// The number of reads that met a damaged record since opening.
    pub(crate) damage_met: AtomicU64,
    /// The bytes that a snapshot may take.
    snapshot_limit: AtomicU64,
    /// What was found missing while nothing had changed since opening.
    pub(crate) losses: Losses,
    /// The usual length of its records.
    pub(crate) size_hint: RecordSizeHint,
    /// Who is told of its changes.
    pub(crate) feed: Feed,
    state: AtomicU8,
}

/// What a map is opened with.
pub(crate) struct OpenContext<'s, M: Medium> {
    pub(crate) pool: &'s Arc<Pool<M>>,
    pub(crate) cas_counter: &'s CasCounter,
    pub(crate) options: &'s Options,
    /// Whether the last shutdown of the file was clean.
    pub(crate) clean: bool,
}

impl<M: Medium> OpenContext<'_, M> {
    /// Creates an empty map with a descriptor, all of it durable, that nothing names yet.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then.
    pub(crate) fn create(&self, kind: IndexKind, name: Option<&str>) -> Result<MapInner<M>> {
        let header = MapHeader::create(self.pool, self.new_seed(name))?;
        let discard = || self.pool.free_unpublished(header.descriptor());
        // Before the index, which cannot be freed as easily if there is no space for the order.
        let order = self.open_order(&header, self.order_of(&header, name), true);
        let order = order.inspect_err(|_| discard())?;
        let index = match PrimaryIndex::create(kind, true, self.pool, header.root(self.pool)) {
            Ok(index) => index,
            Err(error) => {
                order.into_iter().for_each(|order| order.discard(self.pool));
                discard();
                return Err(error.into());
            }
        };
        let map = self.assemble(header, index, order, name, true);
        // Out of memory: the contents are not tracked, which forces a sweep at the next opening.
        map.inspect_err(|_| self.pool.require_sweep())
    }

    /// Returns a seed that no other map of the file has, but by chance: one that is repeatable if
    /// the file's is, because [`Options::seed`] asks for that.
    fn new_seed(&self, name: Option<&str>) -> u64 {
        // The record of the name takes a CAS id, so no name is bound twice at one of them.
        let name = u64::from(crc32c::crc32c(name.unwrap_or_default().as_bytes()));
        let own = mix(self.pool.seed() ^ mix(self.cas_counter.next() ^ name << 32));
        match self.options.seed {
            Some(_) => own,
            None => own ^ RandomState::new().hash_one(own),
        }
    }

    /// Returns the order that the map with this name keeps its keys in.
    fn order_of(&self, header: &MapHeader, name: Option<&str>) -> Order {
        match header.is_default() || name.is_some() {
            true => self.options.ordered,
            // The catalogue.
            false => Order::None,
        }
    }

    /// Opens the map with these words. O(1).
    ///
    /// # Errors
    /// `Damaged` if they do not verify.
    pub(crate) fn open(&self, header: MapHeader, name: Option<&str>) -> Result<MapInner<M>> {
        let index = PrimaryIndex::open(self.pool, header.root(self.pool))?;
        self.assemble(header, index, None, name, false)
    }

    /// Returns an open map made of its parts. A persistent order that is not given is opened, or
    /// created if it is wanted.
    pub(crate) fn assemble(
        &self,
        header: MapHeader,
        index: PrimaryIndex<M>,
        order: Option<PersistentOrder<M>>,
        name: Option<&str>,
        is_new: bool,
    ) -> Result<MapInner<M>> {
        let known = match is_new {
            true => Some(Totals::default()),
            false if self.clean => header.read_totals(self.pool),
            false => None,
        };
        if is_new {
            header.write_bound(self.pool, 0);
        }
        // If it is damaged, records that are not counted yet may take all bytes from before.
        let bound = header.read_bound(self.pool);
        let bound = bound.unwrap_or_else(|| self.pool.heap_stats().closed_bytes);
        let (clean, records) =
            (self.clean && self.pool.is_swept(), known.map(|known| known.records));
        let saved = Saved::open(self.pool, header.saved(self.pool), clean, records);
        let wanted = self.order_of(&header, name);
        let order = match order {
            None => self.open_order(&header, wanted, is_new)?,
            created => created,
        };
        let ordered = wanted == Order::Volatile && order.is_none();
        Ok(MapInner {
            name: name.map(Box::from),
            header,
            index,
            flush: FlushMark::open(
                self.pool.region(),
                header.flush(),
                self.cas_counter,
                self.options.on_suspect,
            )?,
            counters: Counters::new(known, bound),
            max_bytes: AtomicU64::new(u64::MAX),
            evicts: AtomicBool::new(
                header.is_default() && self.options.evict && !self.options.read_only,
            ),
            own_eviction: OwnEviction::new(),
            expiries: Expiries::new(is_new),
            ordered: ordered
                .then(|| Ordered::new(self.options.ordered_updates, is_new))
                .transpose()?,
            order,
            saved,
            damage_met: AtomicU64::new(0),
            snapshot_limit: AtomicU64::new(u64::MAX),
            losses: Losses::default(),
            size_hint: RecordSizeHint::default(),
            feed: Feed::default(),
            state: AtomicU8::new(MapState::Open as u8),
        })
    }

    /// Opens the persistent ordered index of a map, or creates it if that is wanted.
    ///
    /// # Errors
    /// `NoSpace`. One that cannot be read is replaced: all of it follows from the hash index.
    fn open_order(
        &self,
        header: &MapHeader,
        wanted: Order,
        is_new: bool,
    ) -> Result<Option<PersistentOrder<M>>> {
        let (m, cell) = (self.pool.medium(), header.order(self.pool));
        match PersistentOrder::open(self.pool, cell) {
            Ok(None) => {}
            Ok(Some(order)) => return Ok(Some(order)),
            Err(error) if !error.is_damaged() => return Err(error),
            Err(_) if m.is_read_only() => return Ok(None),
            Err(_) if PersistentOrder::is_named_by(m, cell) => {
                return PersistentOrder::replace(self.pool, cell);
            }
            // Perhaps there was none.
            Err(_) => {
                self.pool.require_sweep();
                m.store(cell, 0);
                m.persist(cell);
            }
        }
        let creates = wanted == Order::Persistent && !m.is_read_only();
        creates.then(|| PersistentOrder::create(self.pool, cell, is_new)).transpose()
    }
}

impl<M: Medium> MapInner<M> {
    /// Returns `true` for the map with the names of the others.
    pub(crate) fn is_catalogue(&self) -> bool {
        self.name.is_none() && !self.header.is_default()
    }

    /// Returns `true` if its records are evicted, and keep how they were read.
    #[inline]
    pub(crate) fn evicts(&self) -> bool {
        // Relaxed: a read beside the call that sets it may be counted or not.
        self.evicts.load(Relaxed)
    }

    pub(crate) fn set_evicts(&self, evicts: bool) {
        self.evicts.store(evicts, Relaxed);
    }

    /// Returns `true` if operations may begin.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // SeqCst: an operation pins a guard and then reads this; a thread that closes or drops the
        // map stores this and then looks for guards. One of the two sees the other.
        self.state.load(SeqCst) == MapState::Open as u8
    }

    /// Calls `each` with the offset of every block of the persistent ordered index, if there is
    /// one.
    ///
    /// # Errors
    /// `Damaged` if a part of it cannot be read.
    pub(crate) fn visit_order(&self, each: &mut dyn FnMut(u64)) -> evermap_pm::Result<()> {
        let Some(order) = &self.order else { return Ok(()) };
        order.visit(&mut OrderVisit { block: each, hash: &mut |_| {}, stops: &|| false })
    }

    pub(crate) fn set_state(&self, state: MapState) {
        self.state.store(state as u8, SeqCst);
        self.feed.wake();
    }

    /// Returns the error of an operation that may not begin.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        match &self.name {
            Some(name) if self.state.load(SeqCst) == MapState::Dropped as u8 => {
                Error::Dropped { name: name.to_string() }
            }
            _ if self.state.load(SeqCst) == MapState::TooOld as u8 => {
                Error::SnapshotTooOld { limit: self.snapshot_limit.load(Relaxed) }
            }
            _ => Error::Closed,
        }
    }

    /// Refuses operations of a snapshot that has reached its limit, unless it was closed.
    pub(crate) fn set_too_old(&self, limit: u64) {
        self.snapshot_limit.store(limit, Relaxed);
        let (open, too_old) = (MapState::Open as u8, MapState::TooOld as u8);
        let _ = self.state.compare_exchange(open, too_old, SeqCst, SeqCst);
    }

    /// Chooses a new bound for the bytes of its records, and stores it in the file.
    #[cold]
    pub(crate) fn set_bound(&self, pool: &Pool<M>) {
        // The change that called this is complete only when the bound is stored.
        let poison = pool.region().poison_on_panic();
        self.counters.set_bound(|bound| self.header.write_bound(pool, bound));
        poison.disarm();
    }

    /// Saves the counts for the next opening, if they are exact.
    pub(crate) fn save_totals(&self, pool: &Pool<M>) {
        let (totals, exact) = self.counters.totals();
        self.header.write_totals(pool, exact.then_some(totals));
    }
}

/// Records that are looked up under one guard.
const LOOKED_UP: usize = 256;

/// What a map has in the heap.
#[derive(Default)]
struct Contents {
    /// The offsets of the blocks of its indexes.
    blocks: Vec<u64>,
    /// The words of its records.
    records: Vec<u64>,
    /// Whether there are blocks that may be part of something else.
    is_unsure: bool,
}

impl Visitor for Contents {
    fn block(&mut self, offset: u64) {
        self.blocks.push(offset);
    }

    fn unrecognised_block(&mut self, _: u64) {
        self.is_unsure = true;
    }

    fn word(&mut self, word: u64) {
        self.records.push(word);
    }
}

/// Frees all blocks of a map that nothing leads to and no thread uses, and makes its records
/// unreadable. Returns `true` if all were freed. O(records), 8 bytes of memory each.
///
/// A damaged word may lead to a part of another map, and what is freed is used again. So if
/// anything is wrong with the map, nothing is freed: the next sweep finds out what is in use.
pub(crate) fn free_everything<M: Medium>(pool: &Pool<M>, map: &MapInner<M>) -> bool {
    let Some(Contents { mut blocks, records, .. }) = sound_contents(pool, map) else {
        return false;
    };
    let tombstone = tombstone_of(pool.generation());
    for &word in &records {
        // The descriptor of another map may be stored where this one was, and the records of this
        // one would verify there.
        if let Ok(record) = Record::at(pool.medium(), word) {
            record.set_tombstone(tombstone);
        }
    }
    blocks.extend(records.iter().map(|word| word & OFFSET_MASK));
    blocks.iter().for_each(|&block| pool.free_unpublished(block));
    true
}

/// Returns what a map has in the heap, or `None` if anything is wrong with it.
fn sound_contents<M: Medium>(pool: &Pool<M>, map: &MapInner<M>) -> Option<Contents> {
    let mut contents = Contents { blocks: vec![map.header.descriptor()], ..Contents::default() };
    map.visit_order(&mut |block| contents.blocks.push(block)).ok()?;
    map.index.visit(&mut contents).ok()?;
    contents.blocks.extend(map.saved.blocks(pool)?);
    let (known, exact) = map.counters.totals();
    let sound = !contents.is_unsure
        && (!exact || known.records == contents.records.len() as u64)
        && map.index.check().is_empty()
        && map.order.as_ref().is_none_or(|order| order.is_all_of(map.header.seed()))
        && are_distinct(&contents)
        && contents.records.chunks(LOOKED_UP).all(|words| are_bound(pool, map, words));
    sound.then_some(contents)
}

/// Returns `true` if no block is in use twice.
fn are_distinct(contents: &Contents) -> bool {
    let records = contents.records.iter().map(|word| word & OFFSET_MASK);
    let mut all: Vec<_> = contents.blocks.iter().copied().chain(records).collect();
    all.sort_unstable();
    all.windows(2).all(|pair| pair[0] != pair[1])
}

/// Returns `true` if these are the records that the keys in them are bound to.
fn are_bound<M: Medium>(pool: &Pool<M>, map: &MapInner<M>, words: &[u64]) -> bool {
    let (guard, mut key) = (pool.pin(), Vec::new());
    words.iter().all(|&word| {
        key.clear();
        let record = Record::at(pool.medium(), word);
        let read =
            record.is_ok_and(|record| !record.is_unbound() && record.append_key(&mut key).is_ok());
        let key = BytesRef::new(&key, map.header.seed());
        read && matches!(map.index.get(key, &guard), Ok(Some(bound)) if bound == word)
    })
}
