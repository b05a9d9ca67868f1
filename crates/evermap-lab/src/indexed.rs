//! Evermap's own indexes as subjects, on every medium.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::hash::cceh::{self, Locking};
use evermap_index::hash::{clht, dash, level};
use evermap_index::{Cceh, Clht, DashEh, DashLh, Index, Level, Persistent, Result};
use evermap_pm::medium::{
    self, Counted, Dram, Emulated, FlushKind, Mapped, MappedOptions, Note, line_flush,
};
use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::{Error, Guard, Medium, Pool};

use crate::LabError;
use crate::subject::{
    Counts, Entry, Found, Guards, Measured, MediumKind, Place, Setup, Size, Subject, Table,
};

/// Every index of ours.
pub(crate) const ENTRIES: [Entry; 9] = [
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
        build: |setup| build::<Dash<2>>("dash-eh-batch", Guards::PerBatch(1024), setup),
    },
    Entry {
        name: "dash-eh-4-stash",
        about: "Dash-EH with four stash buckets a segment instead of two",
        rival: false,
        build: |setup| build::<Dash<4>>("dash-eh-4-stash", Guards::PerOperation, setup),
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
        name: "p-clht",
        about: "P-CLHT: buckets of one cache line, lock-free lookups, one global table",
        rival: false,
        build: |setup| build::<PClht>("p-clht", Guards::PerOperation, setup),
    },
];

/// An index, as a function from media to types.
trait Kind {
    /// The index on a medium.
    type On<M: Medium>: Index<u64> + 'static;

    /// Builds an empty one.
    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>>;
}

/// Dash-EH with this many stash buckets a segment.
struct Dash<const STASHES: usize>;

impl<const STASHES: usize> Kind for Dash<STASHES> {
    type On<M: Medium> = DashEh<u64, M, 64, STASHES>;

    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>> {
        DashEh::create(pool.clone(), ROOT, dash_config(setup))
    }
}

/// Dash-LH.
struct LinearDash;

impl Kind for LinearDash {
    type On<M: Medium> = DashLh<u64, M>;

    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>> {
        DashLh::create(pool.clone(), ROOT, dash_config(setup))
    }
}

/// Segments for all keys, if that is asked for.
fn dash_config(setup: &Setup) -> dash::Config {
    /// Pairs in a segment of the usual geometry that is about two thirds full.
    const PAIRS_PER_SEGMENT: u64 = 600;
    dash::Config { initial_depth: initial_depth(setup, PAIRS_PER_SEGMENT) }
}

/// CCEH, with lookups that lock or without.
struct CcehOf<const LOOKUPS_LOCK: bool>;

impl<const LOOKUPS_LOCK: bool> Kind for CcehOf<LOOKUPS_LOCK> {
    type On<M: Medium> = Cceh<u64, M>;

    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>> {
        /// Pairs in a segment of 1024 places that is as full as usual.
        const PAIRS_PER_SEGMENT: u64 = 400;
        let initial_depth = initial_depth(setup, PAIRS_PER_SEGMENT);
        let locking = if LOOKUPS_LOCK { Locking::Pessimistic } else { Locking::Optimistic };
        let config = cceh::Config { initial_depth, locking, ..Default::default() };
        Cceh::create(pool.clone(), ROOT, config)
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
    type On<M: Medium> = Level<u64, M>;

    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>> {
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
        Level::create(pool.clone(), ROOT, config)
    }
}

/// P-CLHT.
struct PClht;

impl Kind for PClht {
    type On<M: Medium> = Clht<u64, M>;

    fn create<M: Medium>(pool: &Arc<Pool<M>>, setup: &Setup) -> Result<Self::On<M>> {
        /// Pairs for each home bucket, of three places: between this and half of it, as tables are powers of two.
        const PAIRS_PER_BUCKET: u64 = 2;
        let presized = setup.keys / PAIRS_PER_BUCKET;
        let default = clht::Config::default().initial_buckets;
        let initial_buckets = if setup.presize { presized.max(default) } else { default };
        Clht::create(pool.clone(), ROOT, clht::Config { initial_buckets })
    }
}

/// Root slot of the index in its pool.
const ROOT: usize = 0;
/// Address space for a key, bytes. Memory is taken only when it is used.
const ADDRESSES_PER_KEY: u64 = 256;
/// Address space for an empty index, bytes.
const ADDRESSES_MIN: u64 = 1 << 30;

fn build<K: Kind>(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    let stage = Stage { name, guards, setup };
    let built = match setup.medium {
        // Calls are counted before they reach the medium inside, so it need not do what they ask for.
        _ if setup.counted => {
            let counts = |medium: &Counted<Dram>| Some(medium.counts().into());
            stage.put::<K, _>(stage.memory().map(Counted::new), counts)
        }
        MediumKind::Dram => stage.put::<K, _>(stage.memory(), |_| None),
        MediumKind::Process => stage.put::<K, _>(stage.file(FlushKind::Process), |_| None),
        MediumKind::Forced => stage.put::<K, _>(stage.file(FlushKind::Forced), |_| None),
        MediumKind::Emulated => {
            let slowed = |medium| Emulated::new(medium, setup.persist_ns, setup.read_ns);
            stage.put::<K, _>(stage.file(FlushKind::Forced).map(slowed), |_| None)
        }
    };
    built.map_err(|source| LabError::Index { index: name, source })
}

/// What an index is built on.
struct Stage<'a> {
    name: &'static str,
    guards: Guards,
    setup: &'a Setup,
}

impl Stage<'_> {
    fn capacity(&self) -> u64 {
        ADDRESSES_MIN.saturating_add(self.setup.keys.saturating_mul(ADDRESSES_PER_KEY))
    }

    fn memory(&self) -> Result<Dram> {
        Dram::reserve(self.capacity(), self.setup.pages)
    }

    /// A file that is gone when it is closed, or when the process dies.
    fn file(&self, flush: FlushKind) -> Result<Mapped> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("evermap-lab-{}-{number}", std::process::id());
        let path = self.setup.location.join(name);
        let options =
            MappedOptions { capacity: self.capacity(), flush, create: true, ..Default::default() };
        let medium = Mapped::open(&path, &options)?;
        std::fs::remove_file(&path).map_err(|error| Error::io("removing", &path, error))?;
        Ok(medium)
    }

    fn place(&self) -> Place {
        let medium = self.setup.medium;
        let flushes = matches!(medium, MediumKind::Forced | MediumKind::Emulated);
        Place {
            medium: medium.name().to_owned(),
            flush_kind: flushes.then(|| line_flush().to_string()),
            location: (medium != MediumKind::Dram).then(|| self.setup.location.clone()),
        }
    }

    /// Puts an empty index into `medium`.
    fn put<K: Kind, M: Medium>(
        &self,
        medium: Result<M>,
        counts: fn(&M) -> Option<Counts>,
    ) -> Result<Box<dyn Subject>> {
        let medium = medium?;
        // The rivals hash without a seed, too.
        let config =
            RegionConfig { capacity: medium.capacity(), seed: Some(0), ..Default::default() };
        let pool = Pool::create(medium, &config, Identity::default())?;
        let index = K::create(&pool, self.setup)?;
        let table = Indexed { pool, index, counts, place: self.place() };
        Ok(Box::new(Measured { name: self.name, table, guards: self.guards }))
    }
}

/// An index in a pool of its own.
///
/// Each operation is announced to the medium, which costs nothing on media that do not listen: that is how a
/// counting medium knows which lines belong together.
struct Indexed<M: Medium, I> {
    pool: Arc<Pool<M>>,
    index: I,
    counts: fn(&M) -> Option<Counts>,
    place: Place,
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

impl<M: Medium, I: Index<u64>> Indexed<M, I> {
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

// No closures: the compiler would make each of them a function of its own, which no user's loop would call.
impl<M: Medium, I: Index<u64> + 'static> Table for Indexed<M, I> {
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
        let stats = self.index.stats(&self.pool.pin())?;
        Ok(Size {
            len: Some(stats.len),
            load_factor: Some(stats.load_factor()),
            dram_bytes: Some(stats.dram_bytes),
            pm_bytes: Some(stats.pm_bytes),
        })
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
    use crate::micro::{MicroConfig, run_micro};
    use crate::testing::Kept;
    use crate::workload::Phase;

    fn config(medium: MediumKind) -> MicroConfig {
        MicroConfig {
            indexes: ENTRIES.map(|entry| entry.name.to_owned()).to_vec(),
            keys: 10_000,
            threads: 2,
            rounds: 1,
            medium,
            persist_ns: 50,
            foreign_limit: f64::INFINITY,
            patience: std::time::Duration::ZERO,
            limits: false,
            ..MicroConfig::default()
        }
    }

    #[test]
    fn our_indexes_pass_on_every_medium_and_leave_no_file() {
        let directory = std::env::temp_dir().join(format!("lab-media-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        for medium in MediumKind::ALL {
            let config = MicroConfig { location: Some(directory.clone()), ..config(medium) };
            let report = run_micro(&config, &mut Kept::default()).unwrap();
            for subject in report.subjects {
                for phase in subject.phases {
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
        let config = MicroConfig { threads: 1, latency: false, ..config(MediumKind::Dram) };
        let report = run_micro(&config, &mut Kept::default()).unwrap();
        for phase in &report.subjects[0].phases {
            let record = &phase.summary;
            let (flushes, fences) = (record.flushes_per_op.unwrap(), record.fences_per_op.unwrap());
            let (read, written) =
                (record.lines_read_per_op.unwrap(), record.lines_written_per_op.unwrap());
            match phase.phase {
                Phase::Positive | Phase::Negative | Phase::GetMany => {
                    assert_eq!((flushes, fences, written), (0.0, 0.0, 0.0), "{}", phase.phase);
                    assert!(read > 0.9, "{}: {read}", phase.phase);
                }
                Phase::Update | Phase::Delete | Phase::Insert => {
                    assert!(flushes >= 1.0 && fences >= 1.0 && written >= 1.0, "{}", phase.phase);
                    assert!(flushes < 8.0 && fences < 4.0, "{}: {flushes} {fences}", phase.phase);
                }
                Phase::Mixed => assert!(flushes > 0.2 && flushes < 2.0, "{flushes}"),
            }
        }
    }
}
