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
#[cfg(feature = "more-indexes")]
use evermap_papers::{Cceh, DashLh, Level, Tranche, cceh, level, line, tranche};
use evermap_pm::region::Region;
use evermap_pm::sync::{HeldRank, Rank};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use crate::Error;
use crate::error::storage;

/// A kind of index that finds records by their keys.
///
/// Those beside the default one and P-CLHT, which is small when it is empty, are there to be
/// compared, and need the feature `more-indexes`. Without it, maps of these kinds cannot be opened:
/// the error, of the kind [`Config`](crate::ErrorKind::Config), names what is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum IndexKind {
    /// Dash, extendible hashing: the default.
    #[default]
    DashEh,
    /// Dash, linear hashing: no directory, and it grows by small steps. It never shrinks.
    #[cfg(feature = "more-indexes")]
    DashLh,
    /// CCEH: extendible hashing with buckets of one cache line. It never shrinks.
    #[cfg(feature = "more-indexes")]
    Cceh,
    /// Level hashing: two levels of buckets, and four places for a record. It never shrinks.
    #[cfg(feature = "more-indexes")]
    Level,
    /// The line hash: extendible hashing with buckets of one cache line, which have no headers.
    #[cfg(feature = "more-indexes")]
    LineHash,
    /// P-CLHT: buckets of one cache line, and chains behind them.
    #[cfg_attr(feature = "serde", serde(rename = "p-clht"))]
    Clht,
    /// The heterogeneous table, of pairs: linear hashing, in tranches of four cache lines of which
    /// the first one has all fingerprints. It never shrinks.
    #[cfg(feature = "more-indexes")]
    Tranche,
}

/// Kinds that need the feature `more-indexes`: their names, and what their root blocks begin with.
/// The rest of the first word is about the format of keys and the geometry.
const MORE: [(&str, &[u8]); 5] = [
    ("dash-lh", b"DASHL"),
    ("cceh", b"CCEH"),
    ("level", b"LEV"),
    ("line-hash", b"LINEH"),
    ("tranche", b"TRAN"),
];

impl IndexKind {
    /// Every kind.
    pub const ALL: &'static [IndexKind] = &[
        IndexKind::DashEh,
        #[cfg(feature = "more-indexes")]
        IndexKind::DashLh,
        #[cfg(feature = "more-indexes")]
        IndexKind::Cceh,
        #[cfg(feature = "more-indexes")]
        IndexKind::Level,
        #[cfg(feature = "more-indexes")]
        IndexKind::LineHash,
        IndexKind::Clht,
        #[cfg(feature = "more-indexes")]
        IndexKind::Tranche,
    ];

    /// Its name, as the command line and the laboratory know it.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::DashEh => "dash-eh",
            #[cfg(feature = "more-indexes")]
            IndexKind::DashLh => "dash-lh",
            #[cfg(feature = "more-indexes")]
            IndexKind::Cceh => "cceh",
            #[cfg(feature = "more-indexes")]
            IndexKind::Level => "level",
            #[cfg(feature = "more-indexes")]
            IndexKind::LineHash => "line-hash",
            IndexKind::Clht => "p-clht",
            #[cfg(feature = "more-indexes")]
            IndexKind::Tranche => "tranche",
        }
    }

    /// Returns the number of bytes that an index of this kind takes on average for this many
    /// records: that of an empty one, or its mean over a doubling of the number of records. A test
    /// counts both.
    pub(crate) fn expected_bytes(self, records: u64) -> f64 {
        let (empty, a_record) = match self {
            IndexKind::DashEh => (34 << 10, 28.3),
            #[cfg(feature = "more-indexes")]
            IndexKind::DashLh => (38 << 10, 29.3),
            #[cfg(feature = "more-indexes")]
            IndexKind::Cceh => (33 << 10, 41.0),
            #[cfg(feature = "more-indexes")]
            IndexKind::Level => (7 << 10, 35.9),
            #[cfg(feature = "more-indexes")]
            IndexKind::LineHash => (33 << 10, 29.0),
            IndexKind::Clht => (4 << 10, 34.2),
            #[cfg(feature = "more-indexes")]
            IndexKind::Tranche => (9 << 10, 28.9),
        };
        f64::from(empty).max(a_record * records as f64)
    }
}

/// Dash-LH for heaps of small extents and for named maps: its first arrays hold two segments
/// instead of a mebibyte of them.
#[cfg(feature = "more-indexes")]
type SmallDashLh<K, M> = DashLh<K, M, dash::Sizes, 2, 16>;
/// Level hashing for heaps of small extents and for named maps: its chunks hold 32 buckets instead
/// of a mebibyte of them.
#[cfg(feature = "more-indexes")]
type SmallLevel<K, M> = Level<K, M, level::Sizes<{ level::layout::SLOTS_MAX }, 5>>;
/// The heterogeneous table in chunks of 64 KiB, which small heaps hold too.
#[cfg(feature = "more-indexes")]
type Tranches<K, M> = Tranche<K, M, tranche::Sizes<256, 16, 4>>;
/// The line hash that begins with one segment or two.
#[cfg(feature = "more-indexes")]
type LineHash<K, M> = line::SmallLineHash<K, M>;
/// Extents from this size on hold the arrays of the usual Dash-LH, and the chunks of the usual
/// Level hashing.
#[cfg(feature = "more-indexes")]
const LARGE_EXTENT: u64 = 2 << 20;
/// Below this capacity two segments of Dash-EH, or of the line hash, would leave little for
/// records: they begin with one.
const ONE_SEGMENT: u64 = 256 << 10;

/// Declares the types of index that a store can have. The rest of the store does not know them.
macro_rules! types {
    ($($(#[$feature:meta])? $variant:ident: $index:ident, $kind:ident;)+) => {
        /// An index of some kind: there is one in each store, so that its size does not matter.
        /// Every operation costs one well-predicted branch more than the index itself.
        #[allow(clippy::large_enum_variant)]
        enum AnyIndex<M: Medium> {
            $($(#[$feature])? $variant($index<Bytes, M>),)+
        }

        impl<M: Medium> AnyIndex<M> {
            /// Opens the index that the root cell `root` names, whatever type it is.
            fn open(pool: &Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
                $($(#[$feature])? if <$index<Bytes, M>>::is_at(pool, root) {
                    return $index::open(pool.clone(), root).map(AnyIndex::$variant);
                })+
                Err(unknown_at(pool, root))
            }

            /// Which kind it is.
            fn kind(&self) -> IndexKind {
                match self {
                    $($(#[$feature])? AnyIndex::$variant(_) => IndexKind::$kind,)+
                }
            }
        }

        /// Evaluates the expression with the index, whatever its type.
        macro_rules! with {
            ($chosen:expr, $any:ident => $does:expr) => {
                match $chosen {
                    $($(#[$feature])? AnyIndex::$variant($any) => $does,)+
                }
            };
        }
    };
}

types! {
    DashEh: DashEh, DashEh;
    #[cfg(feature = "more-indexes")]
    DashLh: DashLh, DashLh;
    #[cfg(feature = "more-indexes")]
    SmallDashLh: SmallDashLh, DashLh;
    #[cfg(feature = "more-indexes")]
    Cceh: Cceh, Cceh;
    #[cfg(feature = "more-indexes")]
    Level: Level, Level;
    #[cfg(feature = "more-indexes")]
    SmallLevel: SmallLevel, Level;
    #[cfg(feature = "more-indexes")]
    LineHash: LineHash, LineHash;
    Clht: Clht, Clht;
    #[cfg(feature = "more-indexes")]
    Tranche: Tranches, Tranche;
}

/// Returns the error for a root cell `root` that names no index of this program: it names none at
/// all, which is damage, or one that this program was built without.
#[cold]
fn unknown_at<M: Medium>(pool: &Pool<M>, root: &PmU64) -> evermap_pm::Error {
    let m = pool.medium();
    let first = m.at::<PmU64>(m.load(root)).map(|first| m.load(first).to_le_bytes());
    match first.and_then(named_by) {
        Some(name) if !IndexKind::ALL.iter().any(|kind| kind.name() == name) => {
            ErrorKind::Config(needs_feature(name)).into()
        }
        _ => {
            let what = "the root refers to no index that a store can have";
            evermap_pm::Error::damaged(m.offset_of(root), what)
        }
    }
}

/// Returns the name of the kind of an index whose root block begins with `first`, if it is one of
/// [`MORE`].
fn named_by(first: [u8; 8]) -> Option<&'static str> {
    MORE.into_iter().find(|(_, begins)| first.starts_with(begins)).map(|(name, _)| name)
}

fn needs_feature(name: &str) -> String {
    format!("this index is `{name}`; build evermap with the feature `more-indexes` to use it")
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
            if MORE.iter().any(|(missing, _)| *missing == name) {
                return storage(ErrorKind::Config(needs_feature(name)));
            }
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
        #[cfg(feature = "more-indexes")]
        let small = small || pool.region().extent_size() < LARGE_EXTENT;
        #[cfg(not(feature = "more-indexes"))]
        let _ = small;
        let initial_depth = u32::from(pool.region().capacity() >= ONE_SEGMENT);
        match kind {
            IndexKind::DashEh => {
                DashEh::create(pool, root, dash::Config { initial_depth }).map(AnyIndex::DashEh)
            }
            #[cfg(feature = "more-indexes")]
            IndexKind::DashLh if small => {
                let index = SmallDashLh::create(pool, root, dash::Config::default());
                index.map(AnyIndex::SmallDashLh)
            }
            #[cfg(feature = "more-indexes")]
            IndexKind::DashLh => {
                DashLh::create(pool, root, dash::Config::default()).map(AnyIndex::DashLh)
            }
            #[cfg(feature = "more-indexes")]
            IndexKind::Cceh => {
                Cceh::create(pool, root, cceh::Config::default()).map(AnyIndex::Cceh)
            }
            #[cfg(feature = "more-indexes")]
            IndexKind::Level => {
                let config = level::Config { top_level: 5, ..level::Config::default() };
                match small {
                    true => SmallLevel::create(pool, root, config).map(AnyIndex::SmallLevel),
                    false => Level::create(pool, root, config).map(AnyIndex::Level),
                }
            }
            #[cfg(feature = "more-indexes")]
            IndexKind::LineHash => {
                LineHash::create(pool, root, line::Config { initial_depth }).map(AnyIndex::LineHash)
            }
            IndexKind::Clht => {
                let config = clht::Config { initial_buckets: 64 };
                Clht::create(pool, root, config).map(AnyIndex::Clht)
            }
            #[cfg(feature = "more-indexes")]
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

    pub(crate) fn mutate_many(
        &self,
        keys: &[BytesRef<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        let _keys = HeldRank::acquire(Rank::Key);
        with!(&self.index, index => index.mutate_many(keys, mode, guard, decide, out));
        out[..keys.len()].iter().filter_map(|done| done.as_ref().err()).for_each(|e| self.met(e));
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

#[cfg(test)]
mod tests {
    use evermap_pm::medium::{Dram, Pages};
    use evermap_pm::region::{Identity, RegionConfig};

    use super::*;

    /// A program that was built without a kind knows its name from the file.
    #[test]
    fn kinds_are_named_by_what_their_root_blocks_begin_with() {
        const CAPACITY: u64 = 16 << 20;
        for &kind in IndexKind::ALL {
            for (small, extent_size) in [(true, 16 << 10), (false, LARGE_EXTENT)] {
                let config = RegionConfig { extent_size, capacity: CAPACITY, seed: Some(1) };
                let medium = Dram::reserve(CAPACITY, Pages::Base).unwrap();
                let pool = Pool::create(medium, &config, Identity::default()).unwrap();
                let (m, root) = (pool.medium(), pool.root(0));
                PrimaryIndex::create(kind, small, &pool, root).unwrap();
                let first = m.load(m.at::<PmU64>(m.load(root)).unwrap()).to_le_bytes();
                let is_always_there = matches!(kind, IndexKind::DashEh | IndexKind::Clht);
                assert_eq!(named_by(first), (!is_always_there).then(|| kind.name()));
            }
        }
        assert_eq!(MORE.len() + 2, IndexKind::ALL.len());
    }
}
