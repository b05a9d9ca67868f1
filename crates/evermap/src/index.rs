//! The index that finds records by their keys: one of several kinds, chosen when the store is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::hash::{clht, dash};
use evermap_index::key::BytesRef;
use evermap_index::{
    Action, Bytes, Change, Clht, DashEh, Guard, Index, MutateMode, Persistent, Result, Stats,
    Visitor,
};
use evermap_papers::{Cceh, DashLh, Level, Tranche};
use evermap_papers::{cceh, level, tranche};
use evermap_pm::region::Region;
use evermap_pm::sync::{HeldRank, Rank};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use crate::Error;
use crate::error::storage;

/// A kind of index that finds records by their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IndexKind {
    /// Dash, extendible hashing: the default.
    #[default]
    DashEh,
    /// Dash, linear hashing: no directory, and it grows by small steps. It never shrinks.
    DashLh,
    /// CCEH: extendible hashing with buckets of one cache line. It never shrinks.
    Cceh,
    /// Level hashing: two levels of buckets, and four places for a record. It never shrinks.
    Level,
    /// P-CLHT: buckets of one cache line, and chains behind them.
    Clht,
    /// The heterogeneous table, of pairs: linear hashing, in tranches of four cache lines of which
    /// the first one has all fingerprints. It never shrinks.
    Tranche,
}

impl IndexKind {
    /// Every kind.
    pub const ALL: &'static [IndexKind] = &[
        IndexKind::DashEh,
        IndexKind::DashLh,
        IndexKind::Cceh,
        IndexKind::Level,
        IndexKind::Clht,
        IndexKind::Tranche,
    ];

    /// Its name, as the command line and the laboratory know it.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::DashEh => "dash-eh",
            IndexKind::DashLh => "dash-lh",
            IndexKind::Cceh => "cceh",
            IndexKind::Level => "level",
            IndexKind::Clht => "p-clht",
            IndexKind::Tranche => "tranche",
        }
    }

    /// Returns the number of bytes that an index of this kind takes on average for this many
    /// records: that of an empty one, or its mean over a doubling of the number of records. A test
    /// counts both.
    pub(crate) fn expected_bytes(self, records: u64) -> f64 {
        let (empty, a_record) = match self {
            IndexKind::DashEh => (34 << 10, 28.3),
            IndexKind::DashLh => (38 << 10, 29.3),
            IndexKind::Cceh => (33 << 10, 41.0),
            IndexKind::Level => (7 << 10, 35.9),
            IndexKind::Clht => (4 << 10, 34.2),
            IndexKind::Tranche => (9 << 10, 28.9),
        };
        f64::from(empty).max(a_record * records as f64)
    }
}

/// Dash-LH for heaps of small extents and for named maps: its first arrays hold two segments
/// instead of a mebibyte of them.
type SmallDashLh<K, M> = DashLh<K, M, 64, 2, 14, 2, 16>;
/// Level hashing for heaps of small extents and for named maps: its chunks hold 32 buckets instead
/// of a mebibyte of them.
type SmallLevel<K, M> = Level<K, M, { level::layout::SLOTS_MAX }, 5>;
/// The heterogeneous table in chunks of 64 KiB, which small heaps hold too.
type Tranches<K, M> = Tranche<K, M, 256, 16, 4>;
/// Extents from this size on hold the arrays of the usual Dash-LH, and the chunks of the usual
/// Level hashing.
const LARGE_EXTENT: u64 = 2 << 20;
/// Below this capacity two segments of Dash-EH would leave little for records: it begins with one.
const ONE_SEGMENT: u64 = 256 << 10;

/// Declares the types of index that a store can have. The rest of the store does not know them.
macro_rules! types {
    ($($variant:ident: $index:ident, $kind:ident;)+) => {
        /// An index of some kind: there is one in each store, so that its size does not matter.
        /// Every operation costs one well-predicted branch more than the index itself.
        #[allow(clippy::large_enum_variant)]
        enum AnyIndex<M: Medium> {
            $($variant($index<Bytes, M>),)+
        }

        impl<M: Medium> AnyIndex<M> {
            /// Opens the index that the root cell `root` names, whatever type it is.
            fn open(pool: &Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
                $(if <$index<Bytes, M>>::is_at(pool, root) {
                    return $index::open(pool.clone(), root).map(AnyIndex::$variant);
                })+
                let at = pool.medium().offset_of(root);
                let what = "the root refers to no index that a store can have";
                Err(evermap_pm::Error::damaged(at, what))
            }

            /// Which kind it is.
            fn kind(&self) -> IndexKind {
                match self {
                    $(AnyIndex::$variant(_) => IndexKind::$kind,)+
                }
            }
        }

        /// Evaluates the expression with the index, whatever its type.
        macro_rules! with {
            ($chosen:expr, $any:ident => $does:expr) => {
                match $chosen {
                    $(AnyIndex::$variant($any) => $does,)+
                }
            };
        }
    };
}

types! {
    DashEh: DashEh, DashEh;
    DashLh: DashLh, DashLh;
    SmallDashLh: SmallDashLh, DashLh;
    Cceh: Cceh, Cceh;
    Level: Level, Level;
    SmallLevel: SmallLevel, Level;
    Clht: Clht, Clht;
    Tranche: Tranches, Tranche;
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IndexKind {
    type Err = Error;

    fn from_str(name: &str) -> std::result::Result<Self, Error> {
        IndexKind::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = IndexKind::ALL.iter().map(|kind| kind.name()).collect();
            let known = known.join(", ");
            storage(ErrorKind::Config(format!("index `{name}` is unknown; there are {known}")))
        })
    }
}

/// The index of a store. Every error of its about damage passes through here, and is counted.
pub(crate) struct PrimaryIndex<M: Medium> {
    index: AnyIndex<M>,
    damage_met: AtomicU64,
    region: Arc<Region<M>>,
}

impl<M: Medium> AnyIndex<M> {
    fn create(kind: IndexKind, small: bool, pool: &Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let pool = pool.clone();
        let small = small || pool.region().extent_size() < LARGE_EXTENT;
        match kind {
            IndexKind::DashEh => {
                let initial_depth = u32::from(pool.region().capacity() >= ONE_SEGMENT);
                DashEh::create(pool, root, dash::Config { initial_depth }).map(AnyIndex::DashEh)
            }
            IndexKind::DashLh if small => {
                let index = SmallDashLh::create(pool, root, dash::Config::default());
                index.map(AnyIndex::SmallDashLh)
            }
            IndexKind::DashLh => {
                DashLh::create(pool, root, dash::Config::default()).map(AnyIndex::DashLh)
            }
            IndexKind::Cceh => {
                Cceh::create(pool, root, cceh::Config::default()).map(AnyIndex::Cceh)
            }
            IndexKind::Level => {
                let config = level::Config { top_level: 5, ..level::Config::default() };
                match small {
                    true => SmallLevel::create(pool, root, config).map(AnyIndex::SmallLevel),
                    false => Level::create(pool, root, config).map(AnyIndex::Level),
                }
            }
            IndexKind::Clht => {
                let config = clht::Config { initial_buckets: 64 };
                Clht::create(pool, root, config).map(AnyIndex::Clht)
            }
            IndexKind::Tranche => {
                let config = tranche::Config { initial_depth: 0 };
                Tranches::create(pool, root, config).map(AnyIndex::Tranche)
            }
        }
    }
}

impl<M: Medium> PrimaryIndex<M> {
    fn new(index: AnyIndex<M>, pool: &Pool<M>) -> Self {
        PrimaryIndex { index, damage_met: AtomicU64::new(0), region: pool.share_region() }
    }

    /// Makes an empty index of this kind for the root cell `root` to name: enough for the smallest
    /// store, and with `small` not above 64 KiB in any store.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn create(
        kind: IndexKind,
        small: bool,
        pool: &Arc<Pool<M>>,
        root: &PmU64,
    ) -> Result<Self> {
        AnyIndex::create(kind, small, pool, root).map(|index| Self::new(index, pool))
    }

    /// Opens the index that the root cell `root` names, whatever type it is.
    pub(crate) fn open(pool: &Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        AnyIndex::open(pool, root).map(|index| Self::new(index, pool))
    }

    /// Which kind it is.
    pub(crate) fn kind(&self) -> IndexKind {
        self.index.kind()
    }

    /// Returns the number of operations that found the index damaged.
    pub(crate) fn damage_met(&self) -> u64 {
        self.damage_met.load(Relaxed)
    }

    #[cold]
    fn met(&self, error: &evermap_pm::Error) {
        if let ErrorKind::Damaged { offset, .. } = error.kind() {
            self.damage_met.fetch_add(1, Relaxed);
            self.region.note_damage(*offset, || format!("index: {error}"));
        }
    }

    /// Returns what `key` is bound to. Not compiled into its callers: see
    /// [`get_inline`](PrimaryIndex::get_inline).
    #[inline(never)]
    pub(crate) fn get(&self, key: BytesRef<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        self.get_inline(key, guard)
    }

    /// [`get`](PrimaryIndex::get) for reads that must not cost a call more. The reads of all types
    /// of index are compiled into each caller, so there should be few.
    #[inline(always)]
    pub(crate) fn get_inline(&self, key: BytesRef<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        with!(&self.index, index => index.get(key, guard)).inspect_err(|error| self.met(error))
    }

    pub(crate) fn get_many(
        &self,
        keys: &[BytesRef<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        with!(&self.index, index => index.get_many(keys, out, guard))
            .inspect_err(|error| self.met(error))
    }

    #[inline]
    pub(crate) fn prefetch_bucket(&self, key: BytesRef<'_>) {
        with!(&self.index, index => index.prefetch_bucket(key));
    }

    #[inline]
    pub(crate) fn prefetch_record(&self, key: BytesRef<'_>, bytes: u64) {
        with!(&self.index, index => index.prefetch_record(key, bytes));
    }

    pub(crate) fn mutate(
        &self,
        key: BytesRef<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        // The bucket of the key is locked while `decide` runs.
        let _key = HeldRank::acquire(Rank::Key);
        with!(&self.index, index => index.mutate(key, mode, guard, decide))
            .inspect_err(|error| self.met(error))
    }

    pub(crate) fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let (shown, next) = with!(&self.index, index => index.scan(from, guard, each));
        (shown.inspect_err(|error| self.met(error)), next)
    }

    pub(crate) fn stats(&self, guard: &Guard<'_>) -> Result<Stats> {
        with!(&self.index, index => index.stats(guard)).inspect_err(|error| self.met(error))
    }

    pub(crate) fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        with!(&self.index, index => index.visit(visitor)).inspect_err(|error| self.met(error))
    }

    pub(crate) fn check(&self) -> Vec<String> {
        with!(&self.index, index => index.check())
    }
}
