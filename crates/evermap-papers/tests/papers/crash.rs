//! Every persistent structure survives every crash.

use evermap_index::crash_campaign;
use evermap_index::testkit::crash::{Workload, assert_replays, assert_survives, battery};
use evermap_index::testkit::{Tier, tier};
use evermap_papers::cceh::{Locking, Recovery};
use evermap_papers::level::{Locking as LevelLocking, Resize};
use evermap_papers::testkit::CRASHABLE;
use evermap_papers::testkit::tiny::{Cceh, DashLh, Level, Line, Tranche};
use evermap_papers::tranche::MUTANTS;
use evermap_pm::sim::Model;
use evermap_pm::sim::mutants::Fate;

crash_campaign!(dash_lh, DashLh);
crash_campaign!(cceh, Cceh(Locking::Optimistic, Recovery::Lazy));
crash_campaign!(variant cceh_paper, Cceh(Locking::Pessimistic, Recovery::Eager));
crash_campaign!(level, Level(Resize::Incremental, LevelLocking::Optimistic));
crash_campaign!(variant level_paper, Level(Resize::Blocking, LevelLocking::Striped));
crash_campaign!(line_hash, Line);
crash_campaign!(tranche_256, Tranche);

/// Replays of earlier failures find nothing any more.
#[test]
fn replays_of_earlier_failures_pass() {
    let paper = [
        battery("cceh-paper", &[], Cceh(Locking::Pessimistic, Recovery::Eager)),
        battery("level-paper", &[], Level(Resize::Blocking, LevelLocking::Striped)),
    ];
    let batteries: Vec<_> = CRASHABLE.iter().map(|index| (index.battery)()).chain(paper).collect();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/papers/crashes");
    assert_replays(directory, &batteries);
}

/// CCEH shares the directory of Dash-EH, and so this mistake. The default tier tries it in Dash-EH
/// only.
#[test]
fn entries_of_a_split_within_an_unfinished_split_are_crashed() {
    if tier() == Tier::Default {
        return;
    }
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("cceh", &[], Cceh(Locking::Optimistic, Recovery::Lazy));
    let trial = battery.trials.iter().find(|trial| trial.name() == "one-sided").unwrap();
    let fate = trial.fate_of_planted("DA-15", 2);
    assert!(matches!(fate, Fate::Killed(_)), "{fate}");
}

/// Recovery that leaves what moves have left over.
#[test]
fn mistakes_of_the_heterogeneous_table_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("tranche-256", MUTANTS, Tranche);
    for mistake in MUTANTS {
        let (fate, _) = battery.fate_of_planted(mistake, 2);
        assert!(matches!(fate, Fate::Killed(_)), "{mistake}: {fate}");
    }
}

/// Dash-LH grows and loses all records, so that segments are merged and arrays freed, and grows
/// again.
#[test]
fn an_index_that_is_emptied_survives() {
    let workload = Workload { universe: 64, ops: 300, ..Workload::GROWING };
    for (model, seed) in [(Model::Adr, 800), (Model::ProcessDeath, 900)] {
        assert_survives::<u64, _>(&DashLh, workload, model, seed..seed + tier().choose(1, 4));
    }
}

/// Mistakes of the merges of Dash-LH. No crash shows the others: see `NOTICED_ELSEWHERE`.
#[test]
fn mistakes_of_merges_of_the_last_segment_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("dash-lh", evermap_papers::dash_lh::MUTANTS, DashLh);
    for mistake in ["DA-17", "DA-18"] {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{fate} {trial:?}");
        assert!(matches!(fate, Fate::Killed(_)), "{mistake}: {fate}");
    }
}
