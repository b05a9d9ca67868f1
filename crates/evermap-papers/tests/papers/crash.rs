//! Every persistent structure survives every crash.

use evermap_index::hash::cceh::{Locking, Recovery};
use evermap_index::hash::level::Resize;
use evermap_index::testkit::crash::{assert_replays, battery};
use evermap_index::testkit::tiny::{Cceh, Level};
use evermap_papers::testkit::CRASHABLE;

/// Replays of earlier failures find nothing any more.
#[test]
fn replays_of_earlier_failures_pass() {
    let paper = [
        battery("cceh-paper", &[], Cceh(Locking::Pessimistic, Recovery::Eager)),
        battery("level-paper", &[], Level(Resize::Blocking)),
    ];
    let batteries: Vec<_> = CRASHABLE.iter().map(|index| (index.battery)()).chain(paper).collect();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/papers/crashes");
    assert_replays(directory, &batteries);
}
