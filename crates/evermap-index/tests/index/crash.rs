//! Every persistent index survives every crash.

use evermap_index::crash_campaign;
use evermap_index::hash::dash::{EH_MUTANTS, NOTICED_ELSEWHERE};
use evermap_index::testkit::crash::{assert_replays, battery};
use evermap_index::testkit::tiny::{DashEh, DashEhPaper, PClht};
use evermap_index::testkit::{Tier, tier};
use evermap_pm::sim::mutants::Fate;

crash_campaign!(dash_eh, DashEh);
crash_campaign!(variant dash_eh_paper, DashEhPaper);
crash_campaign!(p_clht, PClht);

/// Replays of earlier failures find nothing any more.
#[test]
fn replays_of_earlier_failures_pass() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/index/crashes");
    assert_replays(directory, &[battery("dash-eh", EH_MUTANTS, DashEh)]);
}

/// Mistakes that take half a minute to notice, and are tried in the full tier only. DA-15 has a
/// test of its own in both.
const EXPENSIVE: [&str; 2] = ["DA-8", "DA-15"];

/// Declares a test for each mistake of other implementations that can be planted: it is noticed.
macro_rules! noticed {
    ($($test:ident: $mistake:literal),* $(,)?) => {
        mod mistakes {
            $(#[test]
            fn $test() {
                super::is_noticed($mistake);
            })*

            /// DA-7 is not tried here: it needs a directory that doubles during a split of a
            /// shallower segment, which is rare with segments of this size. Nor is DA-14: few
            /// schedules of few threads show it, and which ones do changes with every access. Nor
            /// DA-16, which needs two concurrent recoveries after two crashes.
            #[test]
            fn all_are_tried() {
                let elsewhere =
                    |mistake| super::NOTICED_ELSEWHERE.iter().any(|other| other.0 == mistake);
                for mistake in super::EH_MUTANTS {
                    let tried = [$($mistake),*].contains(mistake);
                    assert!(tried || elsewhere(*mistake), "{mistake} is not tried");
                }
            }
        }
    };
}

noticed! {
    da_1: "DA-1", da_2: "DA-2", da_3: "DA-3", da_4: "DA-4", da_5: "DA-5", da_6: "DA-6",
    da_8: "DA-8", da_9: "DA-9", da_10: "DA-10", da_11: "DA-11", da_15: "DA-15",
}

fn is_noticed(mistake: &'static str) {
    if EXPENSIVE.contains(&mistake) && tier() == Tier::Default {
        return;
    }
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("dash-eh", EH_MUTANTS, DashEh);
    let (fate, trial) = battery.fate_of_planted(mistake, 2);
    println!("{fate} {trial:?}");
    assert!(!matches!(fate, Fate::Survived(_)), "{fate}");
}

/// A mistake in the recovery of a directory.
#[test]
fn entries_of_a_split_within_an_unfinished_split_are_crashed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("dash-eh", &[], DashEh);
    let trial = battery.trials.iter().find(|trial| trial.name() == "one-sided").unwrap();
    let fate = trial.fate_of_planted("DA-15", 2);
    assert!(matches!(fate, Fate::Killed(_)), "{fate}");
}
