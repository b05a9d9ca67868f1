//! Every persistent index survives every crash.

use evermap_index::hash::cceh::{self, Locking, Recovery};
use evermap_index::hash::clht;
use evermap_index::hash::dash::{Config, EH_MUTANTS, Tiny, TinyLh};
use evermap_index::hash::level::{self, Resize};
use evermap_index::hash::line;
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::{Numbered, PoolSubject};
use evermap_index::{Clht, Quotient, crash_campaign};
use evermap_pm::Medium;
use evermap_pm::sim::mutants::Fate;

struct TinyDash;

impl<K: Numbered> PoolSubject<K> for TinyDash {
    type Index<M: Medium> = Tiny<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config { initial_depth: 0 }
    }
}

crash_campaign!(dash_eh, TinyDash);

struct TinyDashLh;

impl<K: Numbered> PoolSubject<K> for TinyDashLh {
    type Index<M: Medium> = TinyLh<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config { initial_depth: 0 }
    }
}

crash_campaign!(dash_lh, TinyDashLh);
struct TinyCceh(Locking, Recovery);

impl<K: Numbered> PoolSubject<K> for TinyCceh {
    type Index<M: Medium> = cceh::Tiny<K, M>;

    fn config<M: Medium>(&self) -> cceh::Config {
        cceh::Config { initial_depth: 1, locking: self.0, recovery: self.1 }
    }
}

crash_campaign!(cceh_optimistic, TinyCceh(Locking::Optimistic, Recovery::Lazy));
crash_campaign!(cceh_paper, TinyCceh(Locking::Pessimistic, Recovery::Eager));
/// Level hashing with two levels of four and two buckets to begin with.
struct TinyLevel(Resize);

impl<K: Numbered> PoolSubject<K> for TinyLevel {
    type Index<M: Medium> = level::Tiny<K, M>;

    fn config<M: Medium>(&self) -> level::Config {
        level::Config { top_level: 2, resize: self.0 }
    }
}

crash_campaign!(level_hashing, TinyLevel(Resize::Incremental));
crash_campaign!(level_hashing_paper, TinyLevel(Resize::Blocking));
struct TinyClht;

impl<K: Numbered> PoolSubject<K> for TinyClht {
    type Index<M: Medium> = Clht<K, M>;

    fn config<M: Medium>(&self) -> clht::Config {
        clht::Config { initial_buckets: 4 }
    }
}

crash_campaign!(p_clht, TinyClht);

struct TinyLine;

impl<K: Numbered + Quotient> PoolSubject<K> for TinyLine {
    type Index<M: Medium> = line::Tiny<K, M>;

    fn config<M: Medium>(&self) -> line::Config {
        line::Config { initial_depth: 0 }
    }
}

crash_campaign!(line_hash, TinyLine);

/// What was found once stays mended.
#[test]
fn what_was_found_stays_mended() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crashes");
    let battery = battery("dash_eh", &[], TinyDash);
    let mut replayed = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        battery.replay(&text).unwrap_or_else(|what| panic!("{}: {what}", path.display()));
        replayed += 1;
    }
    assert!(replayed > 0);
}

/// Each mistake of another implementation that can be made here is noticed.
#[test]
fn mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("dash_eh", EH_MUTANTS, TinyDash);
    let is_unnoticed = |&name: &&'static str| {
        let (fate, trial) = battery.fate_of_planted(name, 2);
        println!("{name}: {fate} {trial:?}");
        matches!(fate, Fate::Survived(_))
    };
    let survivors: Vec<_> = battery.planted.iter().copied().filter(is_unnoticed).collect();
    assert!(survivors.is_empty(), "not noticed: {survivors:?}");
}
