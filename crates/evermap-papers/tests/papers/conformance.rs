//! Every hash index passes the conformance kit.

use evermap_index::hash::dash::Config;
use evermap_index::testkit::counters::{Cost, OperationKind, Promise, counters};
use evermap_index::testkit::order::{OrderOfPlaces, crowd, order};
use evermap_index::testkit::{self, Failure, Numbered, Plain, PoolSubject};
use evermap_index::{Bytes, Quotient, conformance};
use evermap_papers::cceh::{self, Cceh, Locking};
use evermap_papers::dash_lh::TinyLh;
use evermap_papers::level::{self, Resize};
use evermap_papers::line::SmallLineHash;
use evermap_papers::{DashLh, LineHash, Tranche, line, tranche};
use evermap_pm::sim::Sim;

struct TinyDashLh;

impl<K: Numbered> PoolSubject<K> for TinyDashLh {
    type Index = TinyLh<K, Sim>;

    fn config(&self) -> Config {
        Config { initial_depth: 1 }
    }
}

conformance!(dash_lh, TinyDashLh);
struct TinyCceh(Locking);

impl<K: Numbered> PoolSubject<K> for TinyCceh {
    type Index = cceh::Tiny<K, Sim>;

    fn config(&self) -> cceh::Config {
        cceh::Config { locking: self.0, ..Default::default() }
    }

    fn always_holds(&self) -> usize {
        cceh::Tiny::<K, Sim>::ALWAYS_HOLDS
    }
}

conformance!(cceh_optimistic, TinyCceh(Locking::Optimistic));
conformance!(cceh_pessimistic, TinyCceh(Locking::Pessimistic));
/// Level hashing with two levels of four and two buckets to begin with.
struct TinyLevel(Resize, level::Locking);

impl<K: Numbered> PoolSubject<K> for TinyLevel {
    type Index = level::Tiny<K, Sim>;

    fn config(&self) -> level::Config {
        level::Config { top_level: 2, resize: self.0, locking: self.1 }
    }

    /// What the four buckets of a key hold.
    fn always_holds(&self) -> usize {
        16
    }
}

conformance!(level_hashing, TinyLevel(Resize::Incremental, level::Locking::Optimistic));
conformance!(level_hashing_paper, TinyLevel(Resize::Blocking, level::Locking::Striped));

struct TinyLine;

impl<K: Numbered + Quotient> PoolSubject<K> for TinyLine {
    type Index = line::Tiny<K, Sim>;

    fn config(&self) -> line::Config {
        line::Config { initial_depth: 0 }
    }
}

conformance!(line_hash, TinyLine, [u64, Plain, Bytes]);

struct TinyTranche;

impl<K: Numbered> PoolSubject<K> for TinyTranche {
    type Index = tranche::Tiny<K, Sim>;

    fn config(&self) -> tranche::Config {
        tranche::Config { initial_depth: 0 }
    }
}

conformance!(tranche_table, TinyTranche);

/// Groups in which some tranches have versions of their own.
struct SmallTranche;

impl<K: Numbered> PoolSubject<K> for SmallTranche {
    type Index = tranche::Small<K, Sim>;

    fn config(&self) -> tranche::Config {
        tranche::Config { initial_depth: 0 }
    }
}

conformance!(tranche_table_with_versions, SmallTranche, [u64]);

/// The default geometry of Dash-LH, for which the costs are promised.
struct FullDashLh;

impl<K: Numbered> PoolSubject<K> for FullDashLh {
    type Index = DashLh<K, Sim>;

    fn config(&self) -> Config {
        Config::default()
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// Lookups store nothing, and a change of one word flushes one line. `directory` and `record` are
/// the numbers of lines that these take; `updates` is the percentage of updates that keep the
/// promise.
fn dash_promises(directory: u64, record: u64, updates: usize) -> [Promise; 7] {
    let promise = |kind, lines_read, persists, percent| {
        let (lines_flushed, fences) = (persists, persists);
        // The lock of the bucket is a line written, and so is that of the next bucket.
        let lines_written = if persists == 0 { 0 } else { 4 };
        let most = Cost { lines_read, lines_written, lines_flushed, fences };
        Promise { kind, most, percent }
    };
    [
        promise(OperationKind::Hit, 3 + directory + record, 0, 95),
        promise(OperationKind::Hit, u64::MAX, 0, 100),
        promise(OperationKind::Miss, 2 + directory, 0, 95),
        promise(OperationKind::Miss, u64::MAX, 0, 100),
        // The rest moves another record, or splits a segment.
        promise(OperationKind::Insert, 3 + directory + record, 2, 90),
        promise(OperationKind::Update, u64::MAX, 1, updates),
        promise(OperationKind::Remove, u64::MAX, 1, 95),
    ]
}

/// The locations of the segments are in ordinary memory. Any change may be the first in a new
/// segment.
#[test]
fn dash_lh_costs() -> Result<(), Failure> {
    let config = &testkit::Config::default();
    counters::<u64, _>(&FullDashLh, config, 10_000, &dash_promises(0, 0, 99))?;
    counters::<Bytes, _>(&FullDashLh, config, 10_000, &dash_promises(0, 4, 99))
}

/// The default geometry.
struct FullCceh(Locking);

impl<K: Numbered> PoolSubject<K> for FullCceh {
    type Index = Cceh<K, Sim>;

    fn config(&self) -> cceh::Config {
        cceh::Config { locking: self.0, ..Default::default() }
    }

    fn always_holds(&self) -> usize {
        Cceh::<K, Sim>::ALWAYS_HOLDS
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// Every operation reads the directory's entry, the segment's header and up to four buckets; a
/// change flushes one line. Readers that share the lock store to its line twice.
#[test]
fn cceh_costs() -> Result<(), Failure> {
    let config = &testkit::Config::default();
    for locking in [Locking::Optimistic, Locking::Pessimistic] {
        let promise = |kind, lines_read, persists: u64, percent| {
            let lines_written = if persists == 0 && locking == Locking::Optimistic {
                0
            } else {
                // The lock, and what changed.
                1 + persists
            };
            let (lines_flushed, fences) = (persists, persists);
            let most = Cost { lines_read, lines_written, lines_flushed, fences };
            Promise { kind, most, percent }
        };
        let promises = |record: u64| {
            [
                promise(OperationKind::Hit, 3 + record, 0, 75),
                promise(OperationKind::Hit, 6 + record, 0, 100),
                promise(OperationKind::Miss, 6, 0, 100),
                // The rest splits a segment.
                promise(OperationKind::Insert, 6, 1, 98),
                promise(OperationKind::Update, 6 + record, 1, 99),
                promise(OperationKind::Remove, 6 + record, 1, 99),
            ]
        };
        counters::<u64, _>(&FullCceh(locking), config, 10_000, &promises(0))?;
        counters::<Bytes, _>(&FullCceh(locking), config, 10_000, &promises(4))?;
    }
    Ok(())
}

/// The default geometry of Level hashing.
struct FullLevel(level::Locking);

impl<K: Numbered> PoolSubject<K> for FullLevel {
    type Index = evermap_papers::Level<K, Sim>;

    fn config(&self) -> level::Config {
        level::Config { locking: self.0, ..level::Config::default() }
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// Lookups store nothing, a change of one word flushes one line, and so does an insert into any
/// bucket. Lookups that share locks store to one line for each bucket that they search, and changes
/// to two more.
#[test]
fn level_costs() -> Result<(), Failure> {
    level_promises(level::Locking::Optimistic)?;
    level_promises(level::Locking::Striped)
}

fn level_promises(locking: level::Locking) -> Result<(), Failure> {
    let [for_lookups, for_changes] = match locking {
        level::Locking::Optimistic => [0, 0],
        level::Locking::Striped => [4, 2],
    };
    let promise = |kind, lines_read: u64, persists, percent| {
        // Its bucket's lock and its home's, two lines of the bucket.
        let lines_written = if persists == 0 { for_lookups } else { 4 + for_changes };
        let lines_read = lines_read.saturating_add(for_lookups);
        let most = Cost { lines_read, lines_written, lines_flushed: persists, fences: persists };
        Promise { kind, most, percent }
    };
    let promises = |record: u64| {
        [
            promise(OperationKind::Hit, 9 + record, 0, 95),
            promise(OperationKind::Hit, u64::MAX, 0, 100),
            // The first lines of four buckets, and the tables that locate them.
            promise(OperationKind::Miss, 8, 0, 90),
            promise(OperationKind::Miss, u64::MAX, 0, 100),
            // The rest moves another record, or takes part in growing the table.
            promise(OperationKind::Insert, u64::MAX, 1, 80),
            promise(OperationKind::Update, u64::MAX, 1, 95),
            promise(OperationKind::Remove, u64::MAX, 1, 95),
        ]
    };
    let config = &testkit::Config::default();
    let subject = FullLevel(locking);
    counters::<u64, _>(&subject, config, 10_000, &promises(0))?;
    counters::<Bytes, _>(&subject, config, 10_000, &promises(4))
}

/// The default geometry.
struct FullLine;

impl<K: Numbered + Quotient> PoolSubject<K> for FullLine {
    type Index = LineHash<K, Sim>;

    fn config(&self) -> line::Config {
        line::Config::default()
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// That of stores, which begins with one segment.
struct SmallLine;

impl<K: Numbered + Quotient> PoolSubject<K> for SmallLine {
    type Index = SmallLineHash<K, Sim>;

    fn config(&self) -> line::Config {
        line::Config::default()
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// A lookup reads the directory's line and one more; a change of one word flushes one line.
#[test]
fn line_hash_costs() -> Result<(), Failure> {
    let promise = |kind, lines_read, persists, percent| {
        let (lines_flushed, fences) = (persists, persists);
        let lines_written = if persists == 0 { 0 } else { 2 };
        let most = Cost { lines_read, lines_written, lines_flushed, fences };
        Promise { kind, most, percent }
    };
    let promises = |record: u64| {
        [
            promise(OperationKind::Hit, 2 + record, 0, 90),
            promise(OperationKind::Hit, 4 + record, 0, 100),
            promise(OperationKind::Miss, 2, 0, 90),
            promise(OperationKind::Miss, 3, 0, 100),
            // The rest moves another record, or splits a segment.
            promise(OperationKind::Insert, 3 + record, 1, 80),
            promise(OperationKind::Update, 4 + record, 1, 100),
            promise(OperationKind::Remove, 3 + record, 1, 99),
        ]
    };
    let config = &testkit::Config::default();
    counters::<u64, _>(&FullLine, config, 10_000, &promises(0))?;
    counters::<Bytes, _>(&FullLine, config, 10_000, &promises(4))?;
    counters::<u64, _>(&SmallLine, config, 10_000, &promises(0))?;
    counters::<Bytes, _>(&SmallLine, config, 10_000, &promises(4))
}

/// The default geometry.
struct FullTranche;

impl<K: Numbered> PoolSubject<K> for FullTranche {
    type Index = Tranche<K, Sim>;

    fn config(&self) -> tranche::Config {
        tranche::Config::default()
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// A lookup reads the line that locates the chunk, the first line of the home tranche, and the
/// payload; for one home of sixteen also that of the group's lock. An insert flushes the payload
/// and then the first line.
#[test]
fn tranche_costs() -> Result<(), Failure> {
    let promise = |kind, lines_read, persists, percent| {
        let (lines_flushed, fences) = (persists, persists);
        // The lock, the first line of the tranche, and the payload.
        let lines_written = if persists == 0 { 0 } else { 3 };
        let most = Cost { lines_read, lines_written, lines_flushed, fences };
        Promise { kind, most, percent }
    };
    let promises = |record: u64| {
        [
            promise(OperationKind::Hit, 3 + record, 0, 80),
            promise(OperationKind::Hit, 4 + record, 0, 87),
            promise(OperationKind::Hit, u64::MAX, 0, 100),
            promise(OperationKind::Miss, 2, 0, 55),
            promise(OperationKind::Miss, 6, 0, 90),
            promise(OperationKind::Miss, u64::MAX, 0, 100),
            // The rest moves a part, or passes a full tranche.
            promise(OperationKind::Insert, u64::MAX, 2, 50),
            promise(OperationKind::Update, u64::MAX, 1, 99),
            promise(OperationKind::Remove, u64::MAX, 1, 80),
        ]
    };
    let config = &testkit::Config::default();
    counters::<u64, _>(&FullTranche, config, 10_000, &promises(0))?;
    counters::<Bytes, _>(&FullTranche, config, 10_000, &promises(4))
}

/// Inserting in the order of a walk, of hashes, or of the places of records costs what it costs in
/// a random order.
fn orders<P: PoolSubject<Plain>>(subject: &P, places: OrderOfPlaces) -> Result<(), Failure> {
    let config = testkit::Config::from_env();
    order(subject, &config, config.tier.choose(20_000, 1_000_000), places)
}

#[test]
fn dash_lh_orders() -> Result<(), Failure> {
    orders(&FullDashLh, OrderOfPlaces::Include)
}

#[test]
fn cceh_orders() -> Result<(), Failure> {
    orders(&FullCceh(Locking::Optimistic), OrderOfPlaces::Include)
}

/// A region is full before another one has a record, and a larger table would not help at first.
#[test]
fn level_orders() -> Result<(), Failure> {
    orders(&FullLevel(level::Locking::Optimistic), OrderOfPlaces::Leave)
}

#[test]
fn line_hash_orders() -> Result<(), Failure> {
    orders(&FullLine, OrderOfPlaces::Include)?;
    orders(&SmallLine, OrderOfPlaces::Include)
}

#[test]
fn tranche_orders() -> Result<(), Failure> {
    orders(&FullTranche, OrderOfPlaces::Include)
}

/// Keys whose hashes begin with equal bits, more than a segment holds. A prefix can have 40 bits; a
/// directory that separates those with 25 would be out of proportion.
#[test]
fn a_refused_split_is_not_tried_again_by_each_insertion() -> Result<(), Failure> {
    let config = testkit::Config::from_env();
    Failure::any([44, 25].into_iter().flat_map(|common| [crowd(&FullLine, &config, 3000, common)]))
}
