//! Every persistent index survives every crash.

use evermap_index::crash_campaign;
use evermap_index::hash::cceh::{Locking, Recovery};
use evermap_index::hash::dash::EH_MUTANTS;
use evermap_index::hash::level::Resize;
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::tiny::{Cceh, DashEh, DashLh, Level, Line, PClht};
use evermap_pm::sim::mutants::Fate;

crash_campaign!(dash_eh, DashEh);
crash_campaign!(dash_lh, DashLh);
crash_campaign!(cceh_optimistic, Cceh(Locking::Optimistic, Recovery::Lazy));
crash_campaign!(cceh_paper, Cceh(Locking::Pessimistic, Recovery::Eager));
crash_campaign!(level_hashing, Level(Resize::Incremental));
crash_campaign!(level_hashing_paper, Level(Resize::Blocking));
crash_campaign!(p_clht, PClht);
crash_campaign!(line_hash, Line);

/// What was found once stays mended.
#[test]
fn what_was_found_stays_mended() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crashes");
    let battery = battery("dash_eh", &[], DashEh);
    let mut replayed = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        battery.replay(&text).unwrap_or_else(|what| panic!("{}: {what}", path.display()));
        replayed += 1;
    }
    assert!(replayed > 0);
}

/// Each mistake of another implementation that can be made here is noticed. DA-7 is not among them: it needs a
/// directory that doubles while a split of a shallower segment is under way, which segments of this size hardly show.
#[test]
fn mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("dash_eh", EH_MUTANTS, DashEh);
    let is_unnoticed = |&name: &&'static str| {
        let (fate, trial) = battery.fate_of_planted(name, 2);
        println!("{name}: {fate} {trial:?}");
        matches!(fate, Fate::Survived(_))
    };
    let made = battery.planted.iter().copied().filter(|&name| name != "DA-7");
    let survivors: Vec<_> = made.filter(is_unnoticed).collect();
    assert!(survivors.is_empty(), "not noticed: {survivors:?}");
}
