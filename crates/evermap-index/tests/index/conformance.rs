//! Every index passes the conformance kit.

use std::marker::PhantomData;

use evermap_index::hash::clht;
use evermap_index::hash::dash::{Config, Geometry, Paper, Sizes, Tiny};
use evermap_index::testkit::counters::{Cost, OperationKind, Promise, counters};
use evermap_index::testkit::order::{OrderOfPlaces, crowd, order};
use evermap_index::testkit::tiny::DashEhPaper;
use evermap_index::testkit::{self, Failure, Numbered, Plain, PoolSubject};
use evermap_index::{Bytes, Clht, DashEh, conformance};
use evermap_pm::sim::Sim;

struct TinyDash;

impl<K: Numbered> PoolSubject<K> for TinyDash {
    type Index = Tiny<K, Sim>;

    fn config(&self) -> Config {
        Config { initial_depth: 1 }
    }
}

conformance!(dash_eh, TinyDash);
conformance!(dash_eh_paper, DashEhPaper, [u64]);

/// The sizes of the paper, for which the costs are promised.
struct FullDash<G = Sizes>(PhantomData<fn() -> G>);

impl<K: Numbered, G: Geometry> PoolSubject<K> for FullDash<G> {
    type Index = DashEh<K, Sim, G>;

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

#[test]
fn dash_eh_costs() -> Result<(), Failure> {
    let config = &testkit::Config::default();
    let subject = FullDash::<Sizes>(PhantomData);
    counters::<u64, _>(&subject, config, 10_000, &dash_promises(1, 0, 100))?;
    counters::<Bytes, _>(&subject, config, 10_000, &dash_promises(1, 4, 100))
}

/// In the paper's form, a lookup reads the headers of two buckets, and a change locks both.
#[test]
fn dash_eh_paper_costs() -> Result<(), Failure> {
    let promise = |kind, lines_read, lines_written, persists, percent| {
        let most = Cost { lines_read, lines_written, lines_flushed: persists, fences: persists };
        Promise { kind, most, percent }
    };
    let promises = [
        // The directory, two headers, a slot.
        promise(OperationKind::Hit, 4, 0, 0, 90),
        promise(OperationKind::Hit, u64::MAX, 0, 0, 100),
        promise(OperationKind::Miss, 3, 0, 0, 90),
        promise(OperationKind::Miss, u64::MAX, 0, 0, 100),
        // The rest moves another record, or splits a segment.
        promise(OperationKind::Insert, u64::MAX, 3, 2, 85),
        promise(OperationKind::Update, u64::MAX, 3, 1, 95),
        promise(OperationKind::Remove, u64::MAX, 3, 1, 95),
    ];
    let subject = FullDash::<Paper>(PhantomData);
    counters::<u64, _>(&subject, &testkit::Config::default(), 10_000, &promises)
}

struct TinyClht;

impl<K: Numbered> PoolSubject<K> for TinyClht {
    type Index = Clht<K, Sim>;

    fn config(&self) -> clht::Config {
        clht::Config { initial_buckets: 4 }
    }
}

conformance!(p_clht, TinyClht);

/// A table of the default size.
struct FullClht;

impl<K: Numbered> PoolSubject<K> for FullClht {
    type Index = Clht<K, Sim>;

    fn config(&self) -> clht::Config {
        clht::Config::default()
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// Most operations concern one line, which is read, and flushed once. At this size chains are
/// nearly as long as they can be.
#[test]
fn p_clht_costs() -> Result<(), Failure> {
    let promise = |kind, lines_read, persists: u64, percent| {
        // An overflow bucket is a line written, and so is the home bucket with its lock.
        let lines_written = 2 * persists.min(1);
        let most = Cost { lines_read, lines_written, lines_flushed: persists, fences: persists };
        Promise { kind, most, percent }
    };
    let promises = |record: u64| {
        [
            promise(OperationKind::Hit, 1 + record, 0, 70),
            promise(OperationKind::Hit, 3 + record, 0, 98),
            promise(OperationKind::Hit, u64::MAX, 0, 100),
            promise(OperationKind::Miss, 1, 0, 50),
            promise(OperationKind::Miss, u64::MAX, 0, 100),
            promise(OperationKind::Insert, 3 + record, 1, 70),
            // A bucket is added. The rest then examine a sample of the table, or replace it.
            promise(OperationKind::Insert, 3 + record, 2, 98),
            promise(OperationKind::Update, u64::MAX, 1, if record == 0 { 100 } else { 99 }),
            // The rest also free records that were replaced earlier. If the last record of an
            // extent is freed, the table of extents changes too, and is not flushed.
            Promise {
                kind: OperationKind::Update,
                most: Cost {
                    lines_read: u64::MAX,
                    lines_written: u64::MAX,
                    lines_flushed: 1,
                    fences: 1,
                },
                percent: 100,
            },
            // An overflow bucket becomes empty, and is removed from its chain.
            promise(OperationKind::Remove, u64::MAX, 1, 75),
            promise(OperationKind::Remove, u64::MAX, 2, 99),
        ]
    };
    let config = &testkit::Config::default();
    counters::<u64, _>(&FullClht, config, 10_000, &promises(0))?;
    counters::<Bytes, _>(&FullClht, config, 10_000, &promises(5))
}

/// Inserting in the order of a walk, of hashes, or of the places of records costs what it costs in
/// a random order.
fn orders<P: PoolSubject<Plain>>(subject: &P, places: OrderOfPlaces) -> Result<(), Failure> {
    let config = testkit::Config::from_env();
    order(subject, &config, config.tier.choose(20_000, 1_000_000), places)
}

#[test]
fn dash_eh_orders() -> Result<(), Failure> {
    orders(&FullDash::<Sizes>(PhantomData), OrderOfPlaces::Include)
}

#[test]
fn p_clht_orders() -> Result<(), Failure> {
    orders(&FullClht, OrderOfPlaces::Include)
}

/// Keys whose hashes begin with equal bits, more than a segment holds. A prefix can have 40 bits; a
/// directory that separates those with 25 would be out of proportion.
#[test]
fn a_refused_split_is_not_tried_again_by_each_insertion() -> Result<(), Failure> {
    let config = testkit::Config::from_env();
    let subject = FullDash::<Sizes>(PhantomData);
    Failure::any([44, 25].into_iter().flat_map(|common| [crowd(&subject, &config, 1500, common)]))
}
