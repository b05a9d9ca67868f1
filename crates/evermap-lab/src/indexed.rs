//! Evermap's own indexes as subjects, on every medium.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::hash::cceh::{self, Locking, Recovery};
use evermap_index::hash::{clht, dash, level, line};
use evermap_index::key::BytesRef;
use evermap_index::key::Quotient;
use evermap_index::{
    Bytes, Cceh, Clht, DashEh, DashLh, Index, Key, Level, LineHash, Persistent, Result,
};
use evermap_pm::medium::{
    self, Counted, Emulated, FlushKind, Mapped, MappedOptions, Note, line_flush,
};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::{Error, Guard, Medium, Pool};

use crate::LabError;
use crate::media::{Memory, Watched};
use crate::records::Recorded;
use crate::store::Stored;
use crate::subject::{
    Counts, Entry, File, Found, Guards, Measured, MediumKind, Place, Setup, Size, Subject,
    Survives, Table,
};
use crate::workload::Shape;

/// Every index of ours.
pub(crate) const ENTRIES: [Entry; 11] = [
    Entry {
        name: "dash-eh",
        about: "Dash-EH: extendible hashing, optimistic lookups; a guard for each operation",
        rival: false,
        build: |setup| build::<Dash<2>>("dash-eh", Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-eh-batch",
        about: "Dash-EH with one guard for 1024 operations",
        rival: false,
        build: |setup| words::<Dash<2>>("dash-eh-batch", Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "dash-eh-4-stash",
        about: "Dash-EH with four stash buckets a segment instead of two",
        rival: false,
        build: |setup| words::<Dash<4>>("dash-eh-4-stash", Guards::PerOperation, setup),
    },
    Entry {
        name: "dash-lh",
        about: "Dash-LH: linear hashing, the same segments; a guard for each operation",
        rival: false,
        build: |setup| build::<LinearDash>("dash-lh", Guards::PerOperation, setup),
    },
    Entry {
        name: "cceh",
        about: "CCEH: extendible hashing, buckets of one line, optimistic lookups",
        rival: false,
        build: |setup| build::<CcehOf<false>>("cceh", Guards::PerOperation, setup),
    },
    Entry {
        name: "cceh-paper",
        about: "CCEH whose lookups share the segment's lock, as in the released codes",
        rival: false,
        build: |setup| build::<CcehOf<true>>("cceh-paper", Guards::PerOperation, setup),
    },
    Entry {
        name: "level",
        about: "Level hashing, emptying its bottom level bucket by bucket",
        rival: false,
        build: |setup| build::<Levels<false>>("level", Guards::PerOperation, setup),
    },
    Entry {
        name: "level-paper",
        about: "Level hashing as in its paper: everybody waits while the bottom level is emptied",
        rival: false,
        build: |setup| build::<Levels<true>>("level-paper", Guards::PerOperation, setup),
    },
    Entry {
        name: "line-hash",
        about: "Line hash: extendible hashing, buckets of one line filled with records; a guard for each operation",
        rival: false,
        build: |setup| build::<Lines>("line-hash", Guards::PerOperation, setup),
    },
    Entry {
        name: "line-hash-batch",
        about: "Line hash with one guard for 1024 operations",
        rival: false,
        build: |setup| words::<Lines>("line-hash-batch", Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "p-clht",
        about: "P-CLHT: buckets of one cache line, lock-free lookups, one global table",
        rival: false,
        build: |setup| build::<PClht>("p-clht", Guards::PerOperation, setup),
    },
];

/// Dash-EH with segments of other sizes, for the experiment that is about them.
pub(crate) const SEGMENTS: [Entry; 4] = [
    Entry {
        name: "dash-eh-1k",
        about: "Dash-EH with segments of 4 buckets (1 KiB) and two stash buckets",
        rival: false,
        build: |setup| plain::<Dash<2, 4>>("dash-eh-1k", setup),
    },
    Entry {
        name: "dash-eh-2k",
        about: "Dash-EH with segments of 8 buckets (2 KiB) and two stash buckets",
        rival: false,
        build: |setup| plain::<Dash<2, 8>>("dash-eh-2k", setup),
    },
    Entry {
        name: "dash-eh-4k",
        about: "Dash-EH with segments of 16 buckets (4 KiB) and two stash buckets",
        rival: false,
        build: |setup| plain::<Dash<2, 16>>("dash-eh-4k", setup),
    },
    Entry {
        name: "dash-eh-8k",
        about: "Dash-EH with segments of 32 buckets (8 KiB) and two stash buckets",
        rival: false,
        build: |setup| plain::<Dash<2, 32>>("dash-eh-8k", setup),
    },
];

/// An index, as a function from keys and media to types.
pub(crate) trait Kind {
    /// The index over these keys on a medium.
    type On<K: Quotient, M: Medium>: Index<K> + Persistent<M> + 'static;

    /// Builds an empty one.
    fn create<K: Quotient, M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup)
    -> Result<Self::On<K, M>>;
}

/// Dash-EH with this many stash buckets and buckets a segment.
pub(crate) struct Dash<const STASHES: usize, const BUCKETS: usize = 64>;

impl<const STASHES: usize, const BUCKETS: usize> Kind for Dash<STASHES, BUCKETS> {
    type On<K: Quotient, M: Medium> = DashEh<K, M, BUCKETS, STASHES>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        DashEh::create(pool.clone(), pool.root(ROOT), dash_config(setup, BUCKETS))
    }
}

/// Dash-LH.
struct LinearDash;

impl Kind for LinearDash {
    type On<K: Quotient, M: Medium> = DashLh<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        DashLh::create(pool.clone(), pool.root(ROOT), dash_config(setup, 64))
    }
}

/// Segments for all keys, if that is asked for: about two thirds full.
fn dash_config(setup: &Setup, buckets: usize) -> dash::Config {
    dash::Config { initial_depth: initial_depth(setup, buckets as u64 * 600 / 64) }
}

/// CCEH, with lookups that lock or without.
struct CcehOf<const PAPER: bool>;

impl<const PAPER: bool> Kind for CcehOf<PAPER> {
    type On<K: Quotient, M: Medium> = Cceh<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs in a segment of 1024 places that is as full as usual.
        const PAIRS_PER_SEGMENT: u64 = 400;
        let initial_depth = initial_depth(setup, PAIRS_PER_SEGMENT);
        let (locking, recovery) = match PAPER {
            true => (Locking::Pessimistic, Recovery::Eager),
            false => (Locking::Optimistic, Recovery::Lazy),
        };
        let config = cceh::Config { initial_depth, locking, recovery };
        Cceh::create(pool.clone(), pool.root(ROOT), config)
    }
}

/// The depth at which a directory names about one segment for `pairs_per_segment` of the keys to come; 1 where the
/// table is not to know how many.
fn initial_depth(setup: &Setup, pairs_per_segment: u64) -> u32 {
    let segments = if setup.presize { setup.keys / pairs_per_segment } else { 0 };
    segments.next_power_of_two().ilog2().max(1)
}

/// Level hashing, growing at once or by and by.
struct Levels<const BLOCKING: bool>;

impl<const BLOCKING: bool> Kind for Levels<BLOCKING> {
    type On<K: Quotient, M: Medium> = Level<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs for each bucket of the top level when both levels are four fifths full.
        const PAIRS_PER_BUCKET: u64 = 7;
        let mut config = level::Config::default();
        if BLOCKING {
            // As in the paper's runs and the released benchmark.
            config = level::Config { top_level: 13, resize: level::Resize::Blocking };
        }
        if setup.presize {
            let level = (setup.keys / PAIRS_PER_BUCKET).next_power_of_two().ilog2();
            config.top_level = level.max(config.top_level);
        }
        Level::create(pool.clone(), pool.root(ROOT), config)
    }
}

/// The line hash.
struct Lines;

impl Kind for Lines {
    type On<K: Quotient, M: Medium> = LineHash<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs in a segment of 1024 places that is about two thirds full.
        const PAIRS_PER_SEGMENT: u64 = 650;
        let initial_depth = initial_depth(setup, PAIRS_PER_SEGMENT);
        LineHash::create(pool.clone(), pool.root(ROOT), line::Config { initial_depth })
    }
}

/// P-CLHT.
struct PClht;

impl Kind for PClht {
    type On<K: Quotient, M: Medium> = Clht<K, M>;

    fn create<K: Quotient, M: Medium>(
        pool: &Arc<Pool<M>>,
        setup: &Setup,
    ) -> Result<Self::On<K, M>> {
        /// Pairs for each home bucket, of three places: between this and half of it, as tables are powers of two.
        const PAIRS_PER_BUCKET: u64 = 2;
        let presized = setup.keys / PAIRS_PER_BUCKET;
        let default = clht::Config::default().initial_buckets;
        let initial_buckets = if setup.presize { presized.max(default) } else { default };
        Clht::create(pool.clone(), pool.root(ROOT), clht::Config { initial_buckets })
    }
}

/// Root slot of the index in its pool.
const ROOT: usize = 0;
/// Address space for a key, bytes. Memory is taken only when it is used.
const ADDRESSES_PER_KEY: u64 = 256;
/// Address space for an empty index, bytes.
const ADDRESSES_MIN: u64 = 1 << 30;

/// An index over words or over byte strings, on every medium.
fn build<K: Kind>(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    match setup.shape {
        None => words::<K>(name, guards, setup),
        Some(shape) => byte_strings::<K>(name, shape, setup),
    }
}

/// An index over words, on every medium.
fn words<K: Kind>(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    let stage = Stage { name, guards, setup };
    let built = stage.memory().and_then(|memory| stage.table_in::<K, u64>(memory));
    built.map_err(|error| LabError::index(name, error))
}

/// An index over words in anonymous memory, and nowhere else.
fn plain<K: Kind>(name: &'static str, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    setup.media_only(name, &[MediumKind::Dram])?;
    let stage = Stage { name, guards: Guards::PerOperation, setup };
    let built = stage.nowhere().and_then(|medium| stage.table::<K, u64, _>(medium, |_| None));
    built.map_err(|error| LabError::index(name, error))
}

/// An index over byte strings, each pair a record in the heap.
fn byte_strings<K: Kind>(
    name: &'static str,
    shape: Shape,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    // Nobody counts what byte strings cost.
    let stage = Stage { name, guards: Guards::PerOperation, setup: &setup.uncounted() };
    let built = stage.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => stage.store::<K, Bytes, _>(medium, shape),
        Memory::Watched(medium) => stage.store::<K, Bytes, _>(medium, shape),
    });
    built.map_err(|error| LabError::index(name, error))
}

/// A pool, and the index in it.
type Pooled<M, I> = (Arc<Pool<M>>, I);

/// What an index is built on.
pub(crate) struct Stage<'a> {
    pub(crate) name: &'static str,
    pub(crate) guards: Guards,
    pub(crate) setup: &'a Setup,
}

impl Stage<'_> {
    /// Address space for everything.
    pub(crate) fn capacity(&self) -> u64 {
        let each = ADDRESSES_PER_KEY + self.setup.shape.map_or(0, |shape| 4 * shape.most_bytes());
        ADDRESSES_MIN.saturating_add(self.setup.keys.saturating_mul(each))
    }

    /// What was asked for. Calls are counted before they reach the medium inside, so that need not do what they
    /// ask for.
    pub(crate) fn memory(&self) -> Result<Memory> {
        if self.setup.counted {
            return Ok(Memory::Watched(Watched::Counted(Counted::new(self.nowhere()?))));
        }
        Ok(match self.setup.medium {
            MediumKind::Dram => Memory::Plain(self.nowhere()?),
            MediumKind::Process => Memory::Plain(self.file(FlushKind::Process)?),
            MediumKind::Forced => Memory::Plain(self.file(FlushKind::Forced)?),
            MediumKind::Emulated => {
                let (medium, setup) = (self.file(FlushKind::Forced)?, self.setup);
                let slowed = Emulated::new(medium, setup.persist_ns, setup.read_ns);
                Memory::Watched(Watched::Emulated(slowed))
            }
        })
    }

    /// Anonymous memory.
    pub(crate) fn nowhere(&self) -> Result<Mapped> {
        Mapped::anonymous(self.capacity(), self.setup.pages, FlushKind::Process)
    }

    /// A file that is gone when it is closed, or when the process dies; or the one that was asked for.
    pub(crate) fn file(&self, flush: FlushKind) -> Result<Mapped> {
        let create = !matches!(self.setup.file, File::Existing(_));
        let options =
            MappedOptions { capacity: self.capacity(), flush, create, ..Default::default() };
        match &self.setup.file {
            File::New(path) | File::Existing(path) => Mapped::open(path, &options),
            File::Nameless => {
                let path = nameless(&self.setup.location);
                let medium = Mapped::open(&path, &options)?;
                std::fs::remove_file(&path).map_err(|error| Error::io("removing", &path, error))?;
                Ok(medium)
            }
        }
    }

    /// Where it all is.
    pub(crate) fn place(&self) -> Place {
        let medium = self.setup.medium;
        let flushes = matches!(medium, MediumKind::Forced | MediumKind::Emulated);
        Place {
            medium: medium.name().to_owned(),
            flush_kind: flushes.then(|| line_flush().to_string()),
            location: (medium != MediumKind::Dram).then(|| self.setup.location.clone()),
            survives: match medium {
                MediumKind::Dram => Survives::Nothing,
                _ => Survives::Process,
            },
        }
    }

    /// Puts an empty index over words into `memory`, or opens the one in it.
    pub(crate) fn table_in<K: Kind, Keys>(&self, memory: Memory) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = u64>,
    {
        match memory {
            Memory::Plain(medium) => self.table::<K, Keys, _>(medium, |_| None),
            Memory::Watched(medium) => self.table::<K, Keys, _>(medium, Watched::counts),
        }
    }

    /// The same on a medium of one type.
    pub(crate) fn table<K: Kind, Keys, M: Medium>(
        &self,
        medium: M,
        counts: fn(&M) -> Option<Counts>,
    ) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = u64>,
    {
        let (pool, index) = self.pool::<K, Keys, M>(medium)?;
        let (place, keys) = (self.place(), PhantomData::<fn() -> Keys>);
        let table = Indexed { pool, index, counts, place, keys };
        Ok(Box::new(Measured { name: self.name, table, guards: self.guards }))
    }

    /// The same over byte strings.
    pub(crate) fn store<K: Kind, Keys, M: Medium>(
        &self,
        medium: M,
        shape: Shape,
    ) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = BytesRef<'k>>,
    {
        let (pool, index) = self.pool::<K, Keys, M>(medium)?;
        let store = Recorded::<_, _, Keys>::new(pool, index, self.place());
        Ok(Box::new(Stored::new(self.name, store, shape)))
    }

    pub(crate) fn pool<K: Kind, Keys: Quotient, M: Medium>(
        &self,
        medium: M,
    ) -> Result<Pooled<M, K::On<Keys, M>>> {
        if matches!(self.setup.file, File::Existing(_)) {
            let (pool, _) = Pool::open(medium, Identity::default(), OnSuspect::Refuse)?;
            let index = Persistent::open(pool.clone(), pool.root(ROOT))?;
            return Ok((pool, index));
        }
        // The rivals hash without a seed, too.
        let config =
            RegionConfig { capacity: medium.capacity(), seed: Some(0), ..Default::default() };
        let pool = Pool::create(medium, &config, Identity::default())?;
        let index = K::create(&pool, self.setup)?;
        Ok((pool, index))
    }
}

/// A path in `directory` that nothing has.
pub(crate) fn nameless(directory: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    directory.join(format!("evermap-lab-{}-{number}", std::process::id()))
}

/// An index in a pool of its own.
///
/// Each operation is announced to the medium, which costs nothing on media that do not listen: that is how a
/// counting medium knows which lines belong together.
pub(crate) struct Indexed<M: Medium, I, K> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) index: I,
    pub(crate) counts: fn(&M) -> Option<Counts>,
    pub(crate) place: Place,
    pub(crate) keys: PhantomData<fn() -> K>,
}

impl From<medium::Counts> for Counts {
    fn from(counts: medium::Counts) -> Self {
        Counts {
            flushes: counts.lines_flushed,
            fences: counts.fences,
            lines_read: counts.lines_read,
            lines_written: counts.lines_written,
        }
    }
}

impl<M: Medium, I, K> Indexed<M, I, K> {
    #[inline(always)]
    fn begin(&self) {
        self.pool.medium().note(Note::Begin(0));
    }

    #[inline(always)]
    fn end<R>(&self, result: R) -> R {
        self.pool.medium().note(Note::End(0));
        result
    }
}

/// Size and shape of an index. Walks it.
pub(crate) fn size_of<K: Key, M: Medium>(pool: &Pool<M>, index: &impl Index<K>) -> Result<Size> {
    let stats = index.stats(&pool.pin())?;
    Ok(Size {
        len: Some(stats.len),
        load_factor: Some(stats.load_factor()),
        dram_bytes: Some(stats.dram_bytes),
        pm_bytes: Some(stats.pm_bytes),
    })
}

// No closures: the compiler would make each of them a function of its own, which no user's loop would call.
impl<M: Medium, I: Index<K> + 'static, K: for<'k> Key<Ref<'k> = u64>> Table for Indexed<M, I, K> {
    type Guard<'a> = Guard<'a>;

    #[inline(always)]
    fn guard(&self) -> Guard<'_> {
        self.pool.pin()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        self.begin();
        Ok(self.end(self.index.insert(key, word, guard))?.old.into())
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        self.begin();
        self.end(self.index.get(key, guard))
    }

    #[inline(always)]
    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], guard: &Guard<'_>) -> Result<()> {
        self.begin();
        self.end(self.index.get_many(keys, out, guard))
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        self.begin();
        Ok(self.end(self.index.update(key, word, guard))?.old.into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<Found> {
        self.begin();
        Ok(self.end(self.index.remove(key, guard))?.old.into())
    }

    fn size(&self) -> Result<Size> {
        size_of::<K, M>(&self.pool, &self.index)
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{Config, drive};
    use crate::testing::Kept;
    use crate::workload::Phase;

    fn config(medium: MediumKind) -> Config {
        Config {
            indexes: ENTRIES.map(|entry| entry.name.to_owned()).to_vec(),
            keys: 10_000,
            threads: 2,
            rounds: 1,
            medium,
            persist_ns: 50,
            foreign_limit: f64::INFINITY,
            patience: std::time::Duration::ZERO,
            limits: false,
            ..Config::default()
        }
    }

    #[test]
    fn our_indexes_pass_on_every_medium_and_leave_no_file() {
        let directory = std::env::temp_dir().join(format!("lab-media-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        for medium in MediumKind::ALL {
            for shape in [None, Some(Shape::default())] {
                let mut config = Config { shape, ..config(medium) };
                config.location = Some(directory.clone());
                if shape.is_some() {
                    config.indexes = vec!["dash-eh".into()];
                    if matches!(medium, MediumKind::Dram | MediumKind::Process) {
                        config.indexes.push("evermap".into());
                    }
                }
                let driven = drive(&config, &mut Kept::default()).unwrap();
                for phase in driven.subjects.into_iter().flat_map(|subject| subject.phases) {
                    let record = phase.summary;
                    let flushes = matches!(medium, MediumKind::Forced | MediumKind::Emulated);
                    assert_eq!(record.medium, medium.name());
                    assert_eq!(record.flush_kind.is_some(), flushes, "{}", medium.name());
                    assert_eq!(record.location.is_some(), medium != MediumKind::Dram);
                    assert!(record.load_factor.is_some() && record.pm_bytes.is_some());
                }
            }
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }

    /// Counts are the same on every machine: more of them would be a regression of the index or of the counting.
    #[test]
    fn counters_of_dash_are_in_their_bounds() {
        let config = Config { threads: 1, latency: false, ..config(MediumKind::Dram) };
        let driven = drive(&config, &mut Kept::default()).unwrap();
        for phase in &driven.subjects[0].phases {
            let record = &phase.summary;
            let (flushes, fences) = (record.flushes_per_op.unwrap(), record.fences_per_op.unwrap());
            let (read, written) =
                (record.lines_read_per_op.unwrap(), record.lines_written_per_op.unwrap());
            match phase.name.parse().unwrap() {
                Phase::Positive | Phase::Negative | Phase::GetMany => {
                    assert_eq!((flushes, fences, written), (0.0, 0.0, 0.0), "{}", phase.name);
                    assert!(read > 0.9, "{}: {read}", phase.name);
                }
                Phase::Update | Phase::Delete | Phase::Insert => {
                    assert!(flushes >= 1.0 && fences >= 1.0 && written >= 1.0, "{}", phase.name);
                    assert!(flushes < 8.0 && fences < 4.0, "{}: {flushes} {fences}", phase.name);
                }
                Phase::Mixed => assert!(flushes > 0.2 && flushes < 2.0, "{flushes}"),
            }
        }
    }
}
