//! Every index passes the conformance kit.

use evermap_index::hash::clht;
use evermap_index::hash::dash::{Config, Tiny};
use evermap_index::testkit::counters::{Cost, Kind, Promise, counters};
use evermap_index::testkit::{self, Failure, Numbered, PoolSubject};
use evermap_index::{Bytes, Clht, DashEh, conformance};
use evermap_pm::Medium;

struct TinyDash;

impl<K: Numbered> PoolSubject<K> for TinyDash {
    type Index<M: Medium> = Tiny<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config { initial_depth: 1 }
    }
}

conformance!(dash_eh, TinyDash);
/// The geometry for use, which is the one that costs are promised for.
struct FullDash;

impl<K: Numbered> PoolSubject<K> for FullDash {
    type Index<M: Medium> = DashEh<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config::default()
    }

    fn extent_size(&self) -> u64 {
        2 << 20
    }
}

/// Lookups store nothing; whatever changes one word flushes one line.
#[test]
fn dash_eh_costs() -> Result<(), Failure> {
    let promise = |kind, lines_read, persists, percent| {
        let (lines_flushed, fences) = (persists, persists);
        // A lock is a line written, and so is a lock of the next bucket.
        let lines_written = if persists == 0 { 0 } else { 4 };
        let most = Cost { lines_read, lines_written, lines_flushed, fences };
        Promise { kind, most, percent }
    };
    let promises = |record: u64| {
        [
            promise(Kind::Hit, 4 + record, 0, 95),
            promise(Kind::Hit, u64::MAX, 0, 100),
            promise(Kind::Miss, 3, 0, 95),
            promise(Kind::Miss, u64::MAX, 0, 100),
            // The rest moves another record, or splits a segment.
            promise(Kind::Insert, 4 + record, 2, 90),
            promise(Kind::Update, u64::MAX, 1, 100),
            promise(Kind::Remove, u64::MAX, 1, 95),
        ]
    };
    let config = &testkit::Config::default();
    counters::<u64, _>(&FullDash, config, 10_000, &promises(0))?;
    counters::<Bytes, _>(&FullDash, config, 10_000, &promises(4))
}

struct TinyClht;

impl<K: Numbered> PoolSubject<K> for TinyClht {
    type Index<M: Medium> = Clht<K, M>;

    fn config<M: Medium>(&self) -> clht::Config {
        clht::Config { initial_buckets: 4 }
    }
}

conformance!(p_clht, TinyClht);
