//! A damaged store: its maps, as far as something leads to them.
//!
//! The file is mapped privately, so that what opening it recovers, and what is changed here, is in
//! the memory of this process only.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use evermap_index::record::OFFSET_MASK;
use evermap_pm::medium::Mapped;
use evermap_pm::region::{OnSuspect, Opened, Region};
use evermap_pm::{Medium, Pool, heap::DescribedExtent};

use super::report::RepairReport;
use crate::batch::intent;
use crate::durable::ensure_without_log;
use crate::file::{mapped_options, open_mapped, refuse_part_of_a_page};
use crate::index::PrimaryIndex;
use crate::map::catalog::catalogue_of;
use crate::map::header::{BYTES, MapHeader};
use crate::ordered::PersistentOrder;
use crate::record::cas::CasCounter;
use crate::record::flush_mark::FlushMark;
use crate::record::{Owner, Record};
use crate::{Durability, Error, IndexKind, Options, Result};

/// A root slot that names nothing.
const UNUSED_SLOT: usize = 1;
/// The number of records that show which map an index is of.
const SAMPLE: u64 = 8;

/// The pool of a damaged file, and what concerns all of its maps.
pub(super) struct Source {
    pub(super) pool: Arc<Pool<Mapped>>,
    pub(super) opened: Opened,
    pub(super) cas_counter: CasCounter,
    /// The blocks in use when the file was closed, in ascending order, if that is known.
    pub(super) in_use: Option<Vec<u64>>,
    pub(super) extents: Vec<DescribedExtent>,
    /// The root blocks of indexes, once a map has lost its own.
    index_roots: OnceCell<HashMap<Owner, u64>>,
    /// The time, in seconds since 1970.
    pub(super) now: u64,
}

/// A map of a damaged file.
pub(super) struct SourceMap {
    /// `None` for the default map.
    pub(super) name: Option<String>,
    pub(super) header: MapHeader,
    pub(super) index: Option<PrimaryIndex<Mapped>>,
    /// Records with a smaller CAS id are flushed.
    pub(super) mark: u64,
    /// When all of its records are flushed, in seconds since 1970; 0: that is not planned.
    pub(super) due: u64,
    /// Whether what its index leads to is certainly current, and not removed with the map, or by a
    /// flush.
    pub(super) certain: bool,
}

impl SourceMap {
    /// Returns the kind of its index, if that can be read.
    pub(super) fn kind(&self) -> Option<IndexKind> {
        self.index.as_ref().map(PrimaryIndex::kind)
    }

    /// Returns the number of records that the last clean shutdown has counted.
    pub(super) fn counted(&self, source: &Source) -> Option<u64> {
        let totals = self.header.read_totals(&source.pool).filter(|_| source.opened.clean);
        totals.map(|totals| totals.records)
    }
}

impl Source {
    /// Opens the file at `path`, and leaves it as it is.
    ///
    /// # Errors
    /// `NotFound`; `Storage` with `InUse`, with `Config` if it has a log, and with `NotAStore`,
    /// `NewerFormat` or `Damaged` if nothing can be told of its contents.
    #[track_caller]
    pub(super) fn open(path: &Path, options: &Options, report: &mut RepairReport) -> Result<Self> {
        ensure_without_log(path, options)?;
        let options = options.clone().create(false).read_only(true);
        let options = options.durability(Durability::Process);
        let (pool, opened) = match open_pool(map_file(path, &options)?) {
            Err(error) if error.is_damaged() => {
                report.lose_by(None, &error);
                let medium = map_file(path, &options)?;
                Region::mend_header(&medium);
                open_pool(medium)?
            }
            opened => opened?,
        };
        if opened.suspect {
            report.note(
                "the pages of the file may be of different ages, so records may be older than \
                 what was last acknowledged",
            );
        }
        let is_unused = CasCounter::is_unused(pool.region());
        let cas_counter = CasCounter::open(pool.region(), OnSuspect::Salvage)?;
        let in_use = (opened.clean && pool.is_swept()).then(|| pool.allocated());
        let extents = pool.heap().described_extents();
        let now = options.clock.seconds();
        let source = Source {
            pool,
            opened,
            cas_counter,
            in_use,
            extents,
            index_roots: OnceCell::new(),
            now,
        };
        if is_unused
            && source.pool.medium().load(MapHeader::of_default(&source.pool).root(&source.pool))
                == 0
        {
            // Its creation was interrupted, or its header is lost.
            report.note("the header says that nothing was ever stored, or is lost");
        }
        Ok(source)
    }

    /// Returns the default map, with the batch carried out that was in progress.
    pub(super) fn default_map(&self, report: &mut RepairReport) -> Result<SourceMap> {
        let map = self.map_of(None, MapHeader::of_default(&self.pool), report)?;
        let batch = match &map.index {
            Some(index) => intent::resume(&self.pool, index, OnSuspect::Salvage)?,
            None => u64::from(intent::is_pending(&self.pool)),
        };
        if batch > 0 {
            report.note("a batch was in progress, and a part of it cannot be carried out");
        }
        Ok(SourceMap { certain: map.certain && !self.opened.outdated, ..map })
    }

    /// Returns the catalogue of named maps, if there is one. If nothing leads to it, the one that
    /// looks like it: then what it names is uncertain.
    pub(super) fn catalogue(&self, report: &mut RepairReport) -> Result<Option<SourceMap>> {
        match catalogue_of(&self.pool) {
            Ok(Some(header)) => return self.map_of(None, header, report).map(Some),
            Ok(None) => {}
            Err(error) if error.is_damaged() => report.lose_by(None, &error),
            Err(error) => return Err(error),
        }
        for header in self.descriptors() {
            let map = self.map_of(None, header, &mut RepairReport::default())?;
            if self.names_maps(&map) {
                report.note(
                    "nothing leads to the catalogue of the named maps but what it looks like",
                );
                return Ok(Some(SourceMap { certain: false, ..map }));
            }
        }
        Ok(None)
    }

    /// Returns the map with these words.
    pub(super) fn map_of(
        &self,
        name: Option<String>,
        header: MapHeader,
        report: &mut RepairReport,
    ) -> Result<SourceMap> {
        let (index, mut certain) = match PrimaryIndex::open(&self.pool, header.root(&self.pool)) {
            Ok(index) => (Some(index), true),
            Err(error) => {
                let error = Error::from(error);
                if !error.is_damaged() {
                    return Err(error);
                }
                report.lose_by(name.as_deref(), &error);
                // Another map may have had the descriptor before.
                (self.find_index(&header), header.is_default())
            }
        };
        let flush = FlushMark::open(
            self.pool.region(),
            header.flush(),
            &self.cas_counter,
            OnSuspect::Refuse,
        );
        let (mut mark, mut due) = (0, 0);
        match flush {
            Ok(flush) => {
                (mark, due) = (flush.mark(), flush.due().unwrap_or(0));
                if due != 0 && due <= self.now {
                    (mark, due) = (u64::MAX, 0);
                }
            }
            Err(error) if error.is_damaged() => {
                certain = false;
                report.lose_by(name.as_deref(), &error);
            }
            Err(error) => return Err(error),
        }
        Ok(SourceMap { name, header, index, mark, due, certain })
    }

    /// Returns whether any map keeps its order in the file.
    pub(super) fn is_ordered(&self, maps: &[SourceMap]) -> bool {
        let m = self.pool.medium();
        maps.iter().any(|map| PersistentOrder::is_named_by(m, map.header.order(&self.pool)))
    }

    /// Returns all descriptors of maps in the file, named or not.
    pub(super) fn descriptors(&self) -> Vec<MapHeader> {
        let size = self.pool.block_size(BYTES);
        let described = |block| MapHeader::described(&self.pool, block);
        self.blocks(|extent| extent.fixed && extent.block_size == size)
            .filter_map(described)
            .collect()
    }

    /// Returns the offsets of all blocks in some extents, except those that were free when the file
    /// was closed.
    fn blocks(&self, of: impl Fn(&DescribedExtent) -> bool) -> impl Iterator<Item = u64> {
        let extents = self.extents.iter().filter(move |extent| of(extent));
        let blocks = extents.flat_map(|extent| extent.blocks().map(|block| block.start));
        blocks.filter(|block| self.was_in_use(*block))
    }

    /// Returns `false` if a block was free when the file was closed.
    pub(super) fn was_in_use(&self, block: u64) -> bool {
        self.in_use.as_ref().is_none_or(|blocks| blocks.binary_search(&block).is_ok())
    }

    /// Looks for the index of a map that its root does not name any more.
    fn find_index(&self, header: &MapHeader) -> Option<PrimaryIndex<Mapped>> {
        let roots = self.index_roots.get_or_init(|| self.find_index_roots());
        let root = header.root(&self.pool);
        self.pool.medium().store(root, *roots.get(&header.owner())?);
        PrimaryIndex::open(&self.pool, root).ok()
    }

    /// Returns the root blocks of all indexes in the file, by the maps that their first records
    /// are of.
    fn find_index_roots(&self) -> HashMap<Owner, u64> {
        let (m, slot, mut roots) =
            (self.pool.medium(), self.pool.root(UNUSED_SLOT), HashMap::new());
        let before = m.load(slot);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for block in self.blocks(|_| true) {
            m.store(slot, block);
            let Ok(index) = PrimaryIndex::open(&self.pool, slot) else { continue };
            let mut seen = 0;
            self.each_pair(&index, &mut |pair| {
                let record = pair.ok().and_then(|(_, word)| Record::at(m, word).ok());
                // A damaged one has any owner, which no map is.
                if let Some(record) = record
                    && record.copy_to(&mut key, &mut value).is_ok()
                {
                    roots.entry(record.owner_of(&key, &value)).or_insert(block);
                    seen += 1;
                }
                seen < SAMPLE
            });
        }
        m.store(slot, before);
        roots
    }

    /// Returns whether all records of a map that can be read are names of maps.
    fn names_maps(&self, map: &SourceMap) -> bool {
        let (m, mut names, mut others) = (self.pool.medium(), 0, 0);
        let Some(index) = &map.index else { return false };
        self.each_pair(index, &mut |pair| {
            if let Ok((_, word)) = pair
                && let Ok(record) = Record::at(m, word)
                && record.verify(map.header.owner())
            {
                let is_name = self.described_by(&record).is_some();
                *if is_name { &mut names } else { &mut others } += 1;
            }
            others == 0
        });
        names > 0 && others == 0
    }

    /// Returns the words of the map that a record of the catalogue names.
    pub(super) fn described_by(&self, record: &Record<'_, Mapped>) -> Option<MapHeader> {
        if record.value_len() != 8 {
            return None;
        }
        let mut value = [0; 8];
        record.read_value(0, &mut value);
        MapHeader::described(&self.pool, u64::from_le_bytes(value))
    }

    /// Calls `each` with every pair of hash and word of an index, and with the errors of the parts
    /// that cannot be read, until it returns `false`.
    pub(super) fn each_pair(
        &self,
        index: &PrimaryIndex<Mapped>,
        each: &mut dyn FnMut(Result<(u64, u64)>) -> bool,
    ) {
        let (mut from, mut pairs) = (Some(0), Vec::new());
        while let Some(at) = from {
            let guard = self.pool.pin();
            let (shown, next) = index.scan(at, &guard, &mut |hash, word| pairs.push((hash, word)));
            drop(guard);
            let failed = shown.err().map(|error| Err(Error::from(error)));
            if !failed.into_iter().chain(pairs.drain(..).map(Ok)).all(&mut *each) {
                return;
            }
            from = next;
        }
    }

    /// Returns the bytes of the block at an offset, as far as that is known.
    pub(super) fn block_at(&self, offset: u64) -> std::ops::Range<u64> {
        let offset = offset & OFFSET_MASK;
        offset..offset + self.pool.block_size_at(offset).unwrap_or(8)
    }
}

#[track_caller]
fn map_file(path: &Path, options: &Options) -> Result<Mapped> {
    let medium = open_mapped(path, &mapped_options(options), options)?;
    refuse_part_of_a_page(path, &medium)?;
    match Region::is_blank(&medium) {
        true => Err(Error::NotFound { path: Some(path.to_owned()) }),
        false => Ok(medium),
    }
}

fn open_pool(medium: Mapped) -> Result<(Arc<Pool<Mapped>>, Opened)> {
    let identity = medium.identity();
    Ok(Pool::open(medium, identity, OnSuspect::Salvage)?)
}
