//! Evermap's own store.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evermap::{Acknowledge, Durability, Evermap, Map, Options, Order};

use super::builder::IndexBuilder;
use evermap_lab_core::LabError;
use evermap_lab_core::machine;
use evermap_lab_core::subject::store::{Result, Store, Stored};
use evermap_lab_core::subject::{
    Entry, File, Found, Guards, MediumKind, Place, Setup, Size, Subject, Survives, unique_path,
};
use evermap_lab_core::workload::bytes::KeyValueLengths;

/// The entries of the registry.
pub static ENTRIES: [Entry; 7] = [
    Entry {
        name: "evermap",
        about: "Evermap's store: Dash-EH over checksummed records, with expiry and compaction",
        rival: false,
        factory: |name, setup| build(name, Kind::Plain, setup),
    },
    Entry {
        name: "evermap-ordered",
        about: "the same with a tree of its keys in ordinary memory, so that it can be scanned",
        rival: false,
        factory: |name, setup| build(name, Kind::Ordered, setup),
    },
    Entry {
        name: "evermap-ordered-persistent",
        about: "the same with that tree in the file",
        rival: false,
        factory: |name, setup| build(name, Kind::OrderedPersistent, setup),
    },
    Entry {
        name: "evermap-log",
        about: "the same with a log: every change is durable when it is acknowledged",
        rival: false,
        factory: |name, setup| build(name, Kind::Log, setup),
    },
    Entry {
        name: "evermap-log-memory",
        about: "the same with a log, and with its working copy in memory (/dev/shm)",
        rival: false,
        factory: |name, setup| build(name, Kind::LogMemory, setup),
    },
    Entry {
        name: "evermap-log-async",
        about: "the same with a log: changes are durable 10 ms after they are acknowledged",
        rival: false,
        factory: |name, setup| build(name, Kind::LogAsync, setup),
    },
    Entry {
        name: "evermap-unverified",
        about: "Evermap's store, but reads do not verify checksums",
        rival: false,
        factory: |name, setup| build(name, Kind::Unverified, setup),
    },
];

/// The options that differ between the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The usual ones.
    Plain,
    /// With an ordered index in ordinary memory.
    Ordered,
    /// With an ordered index in the file.
    OrderedPersistent,
    /// With a log, and changes that wait for it.
    Log,
    /// The same, and its file is in memory.
    LogMemory,
    /// With a log, and changes that do not wait for it.
    LogAsync,
    /// Reads do not verify checksums.
    Unverified,
}

impl Kind {
    fn has_log(self) -> bool {
        matches!(self, Kind::Log | Kind::LogMemory | Kind::LogAsync)
    }
}

fn build(
    name: &'static str,
    kind: Kind,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    let media = [MediumKind::Process, MediumKind::Dram, MediumKind::Adr, MediumKind::Eadr];
    setup.media_only(name, if kind.has_log() { &media[..2] } else { &media })?;
    let opened = Opened::new(name, kind, setup).map_err(|error| LabError::index(name, error))?;
    let lengths = setup.lengths.unwrap_or(KeyValueLengths::WORDS);
    Ok(Box::new(Stored::new(name, opened, lengths)))
}

/// The store, and where it is.
struct Opened {
    db: Evermap,
    map: Map,
    place: Place,
    ordered: bool,
    /// The files of a store with a log, which cannot be removed while it is open.
    _files: Option<Files>,
}

/// Removes a store and its log when it is dropped.
struct Files {
    store: PathBuf,
    log: PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        // Files that cannot be removed are not an error.
        let _ = std::fs::remove_file(&self.store);
        let _ = std::fs::remove_dir_all(&self.log);
    }
}

impl Opened {
    fn new(name: &'static str, kind: Kind, setup: &Setup) -> Result<Self> {
        let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
        let (capacity, mut place) = (builder.capacity(), builder.place());
        let order = match kind {
            Kind::Ordered => Order::Volatile,
            Kind::OrderedPersistent => Order::Persistent,
            _ => Order::None,
        };
        let ordered = order != Order::None;
        let options = Options::new().capacity(capacity).seed(0).ordered(order);
        let options = options.verify_reads(kind != Kind::Unverified);
        let options = match setup.medium {
            MediumKind::Adr => options.durability(Durability::Adr),
            MediumKind::Eadr => options.durability(Durability::Eadr),
            _ if kind.has_log() => {
                // As with other projects' stores: it has files whatever the indexes are on.
                place.medium = "files".into();
                place.location = Some(setup.location.clone());
                place.flush_kind = Some("fdatasync".into());
                place.survives = match machine::is_in_memory(&setup.location) {
                    true => Survives::Process,
                    false => Survives::Power,
                };
                options.durability(Durability::Log).log_in_memory(true).acknowledge(match kind {
                    Kind::LogAsync => Acknowledge::Async(Duration::from_millis(10)),
                    _ => Acknowledge::Each,
                })
            }
            _ => options,
        };
        // SAFETY: the file is the laboratory's own. Its processes have it open one after another,
        // no forked child uses what was borrowed, and nothing else writes to it.
        let options = unsafe { options.assume_exclusive_file() };
        let mut files = None;
        let db = match &setup.file {
            _ if setup.medium == MediumKind::Dram && !kind.has_log() => {
                Evermap::in_memory(options)?
            }
            File::New(path) => Evermap::open(path, options)?,
            File::Existing(path) => Evermap::open(path, options.create(false))?,
            File::Nameless if kind.has_log() => {
                let log = unique_path(&setup.location);
                let store = match kind {
                    Kind::LogMemory => unique_path(Path::new("/dev/shm")),
                    _ => unique_path(&setup.location),
                };
                let files = files.insert(Files { store, log });
                Evermap::open(&files.store, options.log_folder(&files.log))?
            }
            File::Nameless => {
                let path = unique_path(&setup.location);
                let db = Evermap::open(&path, options)?;
                std::fs::remove_file(&path)?;
                db
            }
        };
        Ok(Opened { map: db.default_map(), db, place, ordered, _files: files })
    }
}

impl Store for Opened {
    /// Lookups take guards themselves.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        Ok(self.map.get_into(key, value)?)
    }

    fn get_many(&self, keys: &[&[u8]], (): &(), each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let mut failure = None;
        self.map.get_many(keys, |place, item| {
            match item {
                Ok(item) => each(place, item.value),
                Err(error) => failure = Some(error),
            }
            if failure.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn lend(&self, keys: &[&[u8]], (): &(), each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let reader = self.map.reader()?;
        for (place, key) in keys.iter().enumerate() {
            if let Some(value) = reader.get(key)? {
                if !value.is_borrowed() {
                    return Err("the value was copied instead of lent".into());
                }
                each(place, &value);
            }
        }
        Ok(())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        self.map.put(key, value)?;
        Ok(Found::Unsaid)
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let map = self.db.without_waiting().default_map();
        for (key, value) in pairs {
            map.put(key, value)?;
        }
        Ok(self.db.sync()?)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(if self.map.delete(key)? { Found::Present } else { Found::Absent })
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut failure = None;
        self.map.scan(from..)?.limit(count as u64).visit(|item| {
            match item {
                Ok(item) => each(item.key, item.value),
                Err(error) => failure = Some(error),
            }
            if failure.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn is_ordered(&self) -> bool {
        self.ordered
    }

    fn size(&self) -> Result<Size> {
        let (stat, space) = (self.map.stat(), self.map.space()?);
        Ok(Size {
            len: Some(stat.records.value),
            load_factor: Some(space.load_factor),
            dram_bytes: stat.ordered.as_ref().map(|ordered| ordered.bytes),
            pm_bytes: Some(space.allocated_bytes),
            placement: None,
        })
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
