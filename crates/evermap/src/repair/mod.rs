//! Repair: a new store of what is left of a damaged one.
//!
//! What was current is told by the indexes: what they lead to, and verifies, was neither removed
//! nor replaced. So this, and nothing else, goes to the new store.
//!
//! A second walk goes over all blocks of the heap. A record that nothing leads to may verify, but
//! whether it is current cannot be told for certain: a process that is killed can leave a record
//! without the tombstone that it was about to get, and one that was never published; and if a part
//! of an index was lost and nobody noticed, its keys could be removed since. Such records are
//! *uncertain*. A clean shutdown has saved which blocks are in use, which excludes most that are
//! not current; of those that are left, the newest of each key counts.

mod report;
mod sink;
mod source;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use evermap_index::Visitor;
use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

pub use report::{LostPart, RepairReport, RepairedMap};
use sink::{Copied, Sink};
use source::{Source, SourceMap};

use crate::error::shown;
use crate::map::header::MapHeader;
use crate::ops::read::MISMATCH;
use crate::record::control::Control;
use crate::record::{Owner, Record};
use crate::{Durability, Options, Order, Result};

/// The repair of a damaged store: a new store of all records of it that verify and are certainly
/// current, and a report of what is lost.
///
/// The damaged file is not changed. It may be one that cannot be opened, even with
/// [`OnSuspect::Salvage`](crate::OnSuspect::Salvage), as long as one copy of its superblock
/// verifies. Expiry, flags, marks and CAS ids of the records stay what they were, and so do kinds
/// of indexes, and orders in the file.
///
/// ```
/// use evermap::{Evermap, Options, Repair};
/// # let dir = tempfile::tempdir()?;
/// # let (damaged, new) = (dir.path().join("damaged"), dir.path().join("new"));
/// # let map = Evermap::open(&damaged, Options::new())?.default_map();
/// # map.put(b"key", b"value")?;
/// # map.into_db().close()?;
/// let report = Repair::of(&damaged, Options::new()).make(&new)?;
/// println!("{report}");
/// assert!(report.is_complete());
/// let map = Evermap::open(&new, Options::new())?.default_map();
/// assert_eq!(map.get(b"key")?.as_deref(), Some(&b"value"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Repair {
    path: PathBuf,
    options: Options,
    lost_and_found: Option<PathBuf>,
}

impl Repair {
    /// Plans the repair of the store at `path`. Of the options, these count: the
    /// [clock](Options::clock), by which records have expired; [`lock_wait`](Options::lock_wait);
    /// the [folder](Options::log_folder) in which there must be no log; what
    /// [is told](Options::on_progress) how far the repair is; and the [kind](Options::index) of an
    /// index that cannot be read.
    pub fn of(path: impl AsRef<Path>, options: Options) -> Self {
        Repair { path: path.as_ref().to_owned(), options, lost_and_found: None }
    }

    /// Makes another new store at `path`, of the [uncertain](RepairedMap::uncertain) records, in
    /// maps of the same names.
    pub fn lost_and_found(mut self, path: impl AsRef<Path>) -> Self {
        self.lost_and_found = Some(path.as_ref().to_owned());
        self
    }

    /// Makes the new store, durably, of what verifies. There must be no file at `new`; until the
    /// store is complete there is none. O(bytes of the damaged file), 16 bytes of memory a record,
    /// and as much as the indexes take if they are to be recovered.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound); [`Error::Storage`](crate::Error::Storage) with
    /// [`InUse`](crate::ErrorKind::InUse); with [`Config`](crate::ErrorKind::Config) if the store
    /// has a log, which it is to be rebuilt from; with
    /// [`NotAStore`](crate::ErrorKind::NotAStore), [`NewerFormat`](crate::ErrorKind::NewerFormat)
    /// or [`Damaged`](crate::ErrorKind::Damaged) if nothing can be told of its contents; with
    /// [`NoSpace`](crate::ErrorKind::NoSpace) or [`Io`](crate::ErrorKind::Io).
    #[track_caller]
    pub fn make(&self, new: impl AsRef<Path>) -> Result<RepairReport> {
        self.run(Some(new.as_ref()))
    }

    /// Returns what [`make`](Repair::make) would return, and makes nothing. Takes 40 bytes of
    /// memory a record.
    ///
    /// # Errors
    /// See [`make`](Repair::make).
    #[track_caller]
    pub fn list(&self) -> Result<RepairReport> {
        self.run(None)
    }

    #[track_caller]
    fn run(&self, new: Option<&Path>) -> Result<RepairReport> {
        let mut report = RepairReport::default();
        let opened = Source::open(&self.path, &self.options, &mut report);
        let source = opened.map_err(|error| error.with_path(&self.path))?;
        let mut walk = Walk { source: &source, options: &self.options, named: Vec::new(), read: 0 };
        let mut maps = vec![source.default_map(&mut report)?];
        let catalogue = source.catalogue(&mut report)?;
        walk.named_maps(catalogue.as_ref(), &mut maps, &mut report)?;
        let options = self.options_of_new(&source, &maps);
        let certain = Sink::create(new, &source, options.clone())?;
        let uncertain = self.lost_and_found.as_deref().filter(|_| new.is_some());
        let uncertain = Sink::create(uncertain, &source, options)?;
        let mut sinks = Sinks { certain, uncertain };
        for (number, map) in maps.iter().enumerate() {
            let repaired = walk.map(number, map, &mut sinks, &mut report)?;
            report.maps.push(repaired);
        }
        walk.unnamed(&maps, catalogue.as_ref(), &mut sinks, &mut report)?;
        for (number, map) in maps.iter().enumerate() {
            let repaired = &mut report.maps[number];
            repaired.missing = repaired.missing.saturating_sub(repaired.uncertain);
            if !map.certain && repaired.uncertain > 0 {
                report.note(why_uncertain(map));
            }
        }
        sinks.uncertain.publish()?;
        sinks.certain.publish()?;
        Ok(report)
    }

    /// Returns what the new stores are created with.
    fn options_of_new(&self, source: &Source, maps: &[SourceMap]) -> Options {
        let region = source.pool.region();
        // What is left needs no more space than before, but for other ends of extents.
        let capacity = region.created_capacity().max(2 * source.pool.medium().len());
        Options::new()
            .durability(Durability::Process)
            .clock(self.options.clock.clone())
            .index(maps[0].kind().unwrap_or(self.options.index))
            .extent_size(region.extent_size())
            .capacity(capacity)
            .ordered(if source.is_ordered(maps) { Order::Persistent } else { Order::None })
    }
}

fn why_uncertain(map: &SourceMap) -> String {
    match &map.name {
        None => "default map: it cannot be told which of its records were flushed".into(),
        Some(name) => {
            let name = name.escape_debug();
            format!("map \"{name}\": it cannot be told whether it was dropped, or records flushed")
        }
    }
}

/// Where records go that are current, and those of which that cannot be told.
struct Sinks {
    certain: Sink,
    uncertain: Sink,
}

/// What became of a record.
enum Reading<'m> {
    /// It is whole.
    Live(Record<'m, Mapped>, Control),
    /// It has expired, or was flushed.
    Dead,
    Unreadable(&'static str),
}

/// Buffers for a record.
#[derive(Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Buffers {
    fn copied(&self, record: &Record<'_, Mapped>, control: Control) -> Copied<'_> {
        let (key, value) = (&self.key[..], &self.value[..]);
        Copied { key, value, flags: record.flags(), control, cas: record.cas() }
    }
}

/// A walk over a damaged file.
struct Walk<'s> {
    source: &'s Source,
    options: &'s Options,
    /// The blocks that indexes consist of, and the records that they lead to.
    named: Vec<u64>,
    /// The bytes of records that were read so far.
    read: u64,
}

impl<'s> Walk<'s> {
    /// Adds the named maps: those of the catalogue, and those that nothing names any more.
    fn named_maps(
        &mut self,
        catalogue: Option<&SourceMap>,
        maps: &mut Vec<SourceMap>,
        report: &mut RepairReport,
    ) -> Result<()> {
        let mut known = HashSet::new();
        let mut names = HashMap::new();
        if let Some(catalogue) = catalogue {
            known.insert(catalogue.header.descriptor());
            let found = self.names(catalogue, report)?;
            for (name, header) in found {
                if known.insert(header.descriptor()) {
                    let map = self.source.map_of(Some(name), header, report)?;
                    maps.push(SourceMap { certain: map.certain && catalogue.certain, ..map });
                }
            }
            names = self.unnamed_names(catalogue)?;
        }
        for header in self.source.descriptors() {
            let at = header.descriptor();
            if known.insert(at) {
                let name = names.remove(&at).unwrap_or_else(|| format!("map at {at:#x}"));
                let map = self.source.map_of(Some(name), header, &mut RepairReport::default())?;
                maps.push(SourceMap { certain: false, ..map });
            }
        }
        Ok(())
    }

    /// Returns what the index of the catalogue leads to.
    fn names(
        &mut self,
        catalogue: &SourceMap,
        report: &mut RepairReport,
    ) -> Result<Vec<(String, MapHeader)>> {
        let (mut names, mut met) = (Vec::new(), 0);
        let source = self.source;
        self.each_named(catalogue, report, &mut |record, _, buffers, report| {
            met += 1;
            let name = String::from_utf8(buffers.key.clone());
            match name.ok().zip(source.described_by(record)) {
                Some(named) => names.push(named),
                None => report
                    .note(format!("there is no descriptor of the map \"{}\"", shown(&buffers.key))),
            }
            Ok(())
        })?;
        if catalogue.counted(source).is_some_and(|counted| counted > met) {
            report.note("names of maps are lost");
        }
        Ok(names)
    }

    /// Returns names of maps that nothing leads to, by the offsets of the maps' descriptors.
    fn unnamed_names(&self, catalogue: &SourceMap) -> Result<HashMap<u64, String>> {
        let (mut names, source) = (HashMap::new(), self.source);
        let named = sorted(self.named.clone());
        self.each_unnamed(&named, &mut |found, buffers| {
            if let Ok((record, _)) = found
                && let Some(header) = source.described_by(&record)
                && record.verifies(catalogue.header.owner(), &buffers.key, &buffers.value)
                && let Ok(name) = String::from_utf8(buffers.key.clone())
            {
                names.insert(header.descriptor(), name);
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// Copies what the index of a map leads to.
    fn map(
        &mut self,
        number: usize,
        map: &SourceMap,
        sinks: &mut Sinks,
        report: &mut RepairReport,
    ) -> Result<RepairedMap> {
        let mut repaired = RepairedMap { name: map.name.clone(), ..Default::default() };
        let (sink, count) = match map.certain {
            true => {
                sinks.certain.make_map(number, map)?;
                (&mut sinks.certain, &mut repaired.records)
            }
            false => (&mut sinks.uncertain, &mut repaired.uncertain),
        };
        let tally = self.each_named(map, report, &mut |record, control, buffers, _| {
            *count += u64::from(sink.bind(number, map, &buffers.copied(record, control))?);
            Ok(())
        })?;
        repaired.unreadable = tally.unreadable;
        // What nothing leads to may be among these.
        let found = repaired.records + repaired.unreadable + tally.dead;
        repaired.missing = map.counted(self.source).unwrap_or(0).saturating_sub(found);
        Ok(repaired)
    }

    /// Calls `each` with every live record that the index of a map leads to and that verifies, and
    /// reports the others.
    fn each_named(
        &mut self,
        map: &SourceMap,
        report: &mut RepairReport,
        each: &mut EachNamed<'_>,
    ) -> Result<Tally> {
        let (source, mut tally, mut done) = (self.source, Tally::default(), Ok(()));
        let Some(index) = &map.index else { return Ok(tally) };
        let mut buffers = Buffers::default();
        let mut seen = HashSet::new();
        source.each_pair(index, &mut |pair| {
            let (hash, word) = match pair {
                Ok(pair) => pair,
                Err(error) => {
                    report.lose_by(map.name.as_deref(), &error);
                    return true;
                }
            };
            let offset = word & OFFSET_MASK;
            self.named.push(offset);
            match self.read_named(map, hash, word, &mut buffers) {
                Reading::Live(record, control) => {
                    self.advance(record.bytes());
                    done = each(&record, control, &buffers, report);
                }
                Reading::Dead => tally.dead += 1,
                // Damage may lead to it a hundred times.
                Reading::Unreadable(_) if !seen.insert(offset) => {}
                Reading::Unreadable(why) => {
                    tally.unreadable += 1;
                    let is_key = BytesRef::new(&buffers.key, map.header.seed()).hash == hash;
                    report.lose(LostPart {
                        bytes: source.block_at(offset),
                        map: map.name.clone(),
                        key: is_key.then(|| shown(&buffers.key)),
                        why: why.into(),
                    });
                }
            }
            done.is_ok()
        });
        // What cannot be visited has been reported.
        let _ = index.visit(&mut Blocks(&mut self.named));
        for problem in index.check() {
            report.note(format!("{}index: {problem}", prefix(map)));
        }
        done.map(|()| tally)
    }

    /// Reads a record that the index of a map leads to.
    fn read_named(
        &self,
        map: &SourceMap,
        hash: u64,
        word: u64,
        buffers: &mut Buffers,
    ) -> Reading<'s> {
        buffers.key.clear();
        let (offset, pool) = (word & OFFSET_MASK, &self.source.pool);
        let record = match Record::at(pool.medium(), word) {
            Ok(record) => record,
            Err(why) => return Reading::Unreadable(why),
        };
        // Of what the table does not know, only the record tells its length.
        if pool.block_size_at(offset).is_some_and(|bytes| record.bytes() > bytes) {
            return Reading::Unreadable("it is longer than its block");
        }
        if record.copy_to(&mut buffers.key, &mut buffers.value).is_err() {
            return Reading::Unreadable("there is no memory for it");
        }
        if BytesRef::new(&buffers.key, map.header.seed()).hash != hash {
            return Reading::Unreadable("it is stored under the hash of another key");
        }
        if !record.verifies(map.header.owner(), &buffers.key, &buffers.value) {
            return Reading::Unreadable(MISMATCH);
        }
        match record.control() {
            None => Reading::Unreadable(record.why_unreadable()),
            Some(control) if self.is_dead(map, &record, control) => Reading::Dead,
            // The index is of an earlier time than the last shutdown.
            Some(_) if !self.source.was_in_use(offset) => {
                Reading::Unreadable("its block was free when the file was closed")
            }
            Some(control) => Reading::Live(record, control),
        }
    }

    /// Returns `true` if a record has expired, or was flushed.
    fn is_dead(&self, map: &SourceMap, record: &Record<'_, Mapped>, control: Control) -> bool {
        let expires_at = u64::from(control.expires_at);
        record.cas() < map.mark || expires_at != 0 && expires_at <= self.source.now
    }

    /// Copies the newest records that verify and that nothing leads to.
    fn unnamed(
        mut self,
        maps: &[SourceMap],
        catalogue: Option<&SourceMap>,
        sinks: &mut Sinks,
        report: &mut RepairReport,
    ) -> Result<()> {
        let mut owners = Owners::of(maps, catalogue);
        let named = sorted(std::mem::take(&mut self.named));
        self.each_unnamed(&named, &mut |found, buffers| {
            let (record, control) = match found {
                Ok(found) => found,
                Err(block) => {
                    report.lose_block(block, "nothing leads to it, and there is no whole record");
                    return Ok(());
                }
            };
            let number = match owners.find(&record, buffers) {
                Some(Owned::Map(number)) => number,
                Some(Owned::Catalogue) => return Ok(()),
                None if self.source.in_use.is_none() => return Ok(()),
                None => {
                    let block = self.source.block_at(record.offset());
                    report.lose_block(block, "nothing leads to it, and its record is of no map");
                    return Ok(());
                }
            };
            let (map, repaired) = (&maps[number], &mut report.maps[number]);
            if self.is_dead(map, &record, control) {
                repaired.missing = repaired.missing.saturating_sub(1);
                return Ok(());
            }
            let known = match map.certain {
                true => sinks.certain.cas_of(number, &buffers.key)?,
                false => None,
            };
            if known.is_none_or(|known| known < record.cas()) {
                let copied = buffers.copied(&record, control);
                repaired.uncertain += u64::from(sinks.uncertain.bind(number, map, &copied)?);
            }
            Ok(())
        })
    }

    /// Calls `each` with every record that no index leads to, that is in a block of records, and
    /// that is whole but for its checksum, which depends on its map. Where it is known that blocks
    /// are in use, also with those that have no such record, and no tombstone.
    fn each_unnamed(&self, named: &[u64], each: &mut EachUnnamed<'_>) -> Result<()> {
        let (source, m) = (self.source, self.source.pool.medium());
        let mut buffers = Buffers::default();
        for extent in source.extents.iter().filter(|extent| !extent.fixed) {
            for block in extent.blocks() {
                let at = block.start;
                if named.binary_search(&at).is_ok() || !source.was_in_use(at) {
                    continue;
                }
                let record = Record::in_block(m, block.clone()).ok();
                if record.is_some_and(|record| record.has_tombstone()) {
                    continue;
                }
                let whole = record.and_then(|record| Some((record, record.control()?)));
                let whole = whole.filter(|(record, _)| {
                    record.copy_to(&mut buffers.key, &mut buffers.value).is_ok()
                });
                match whole {
                    Some(found) => each(Ok(found), &buffers)?,
                    // A large object may be a part of a structure.
                    None if source.in_use.is_some() && !extent.is_large => {
                        each(Err(block), &buffers)?;
                    }
                    None => {}
                }
            }
            self.report_progress(m.len() + extent.bytes.end);
        }
        Ok(())
    }

    /// Adds to the number of bytes of records that were read.
    fn advance(&mut self, bytes: u64) {
        let before = self.read;
        self.read += bytes;
        if before >> PROGRESS_SHIFT != self.read >> PROGRESS_SHIFT {
            self.report_progress(self.read.min(self.source.pool.medium().len()));
        }
    }

    /// The file is read twice: in the order of the indexes, and in its own.
    fn report_progress(&self, done: u64) {
        self.options.on_progress.report(done, 2 * self.source.pool.medium().len());
    }
}

/// Binary logarithm of the bytes after which progress is reported.
const PROGRESS_SHIFT: u32 = 20;

type EachNamed<'e> =
    dyn FnMut(&Record<'_, Mapped>, Control, &Buffers, &mut RepairReport) -> Result<()> + 'e;

/// A live record in a block, or the block.
type InBlock<'m> = std::result::Result<(Record<'m, Mapped>, Control), Range<u64>>;

type EachUnnamed<'e> = dyn FnMut(InBlock<'_>, &Buffers) -> Result<()> + 'e;

/// Notes the blocks of an index, which are among those of records too.
struct Blocks<'v>(&'v mut Vec<u64>);

impl Visitor for Blocks<'_> {
    fn block(&mut self, offset: u64) {
        self.0.push(offset);
    }

    fn word(&mut self, _: u64) {}
}

/// What the index of a map leads to and is not live.
#[derive(Default)]
struct Tally {
    dead: u64,
    unreadable: u64,
}

/// What a record belongs to.
#[derive(Clone, Copy)]
enum Owned {
    /// The map with this number.
    Map(usize),
    Catalogue,
}

/// The maps of a file by the checksums of their records.
struct Owners {
    all: HashMap<Owner, Owned>,
    /// That of the record before.
    last: Owner,
}

impl Owners {
    fn of(maps: &[SourceMap], catalogue: Option<&SourceMap>) -> Self {
        let numbered = maps.iter().zip(0..).map(|(map, number)| (map, Owned::Map(number)));
        let all = numbered.chain(catalogue.map(|map| (map, Owned::Catalogue)));
        let all = all.map(|(map, owned)| (map.header.owner(), owned)).collect();
        Owners { all, last: Owner::of(0) }
    }

    /// Returns what a record belongs to, of which these are copies, if it verifies.
    fn find(&mut self, record: &Record<'_, Mapped>, buffers: &Buffers) -> Option<Owned> {
        // Most are of the same map, and computing the owner takes longer.
        if !record.verifies(self.last, &buffers.key, &buffers.value) {
            let owner = record.owner_of(&buffers.key, &buffers.value);
            self.last = self.all.get_key_value(&owner).map_or(self.last, |(owner, _)| *owner);
            return self.all.get(&owner).copied();
        }
        self.all.get(&self.last).copied()
    }
}

/// Returns offsets in ascending order.
fn sorted(mut offsets: Vec<u64>) -> Vec<u64> {
    offsets.sort_unstable();
    offsets
}

/// Returns what a note about a map begins with.
fn prefix(map: &SourceMap) -> String {
    map.name.as_ref().map_or(String::new(), |name| format!("map \"{}\": ", name.escape_debug()))
}
