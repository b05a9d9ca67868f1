//! The campaign notices mistakes.

use super::super::mistakes::{Mistake, PLANTED};
use super::campaign::campaigns;

/// Returns what the campaign says while `mistake` is planted.
fn campaign_with(mistake: Mistake) -> Option<String> {
    PLANTED.set(Some(mistake));
    let result = (0..60).find_map(|part| campaigns(2000 + part * 4..2004 + part * 4, 2).err());
    PLANTED.set(None);
    result
}

#[track_caller]
fn expect(mistake: Mistake, symptoms: &[&str]) {
    let symptom = campaign_with(mistake).unwrap_or_else(|| panic!("{mistake:?} is not noticed"));
    println!("{mistake:?}: {symptom}");
    assert!(symptoms.iter().any(|text| symptom.contains(text)), "{mistake:?}: {symptom}");
}

#[test]
fn segments_that_are_freed_early() {
    expect(Mistake::SegmentsFreedEarly, &["missing", "lost or damaged"]);
}

#[test]
fn a_control_before_its_image() {
    expect(Mistake::ControlBeforeImage, &["contents that were written", "wrong"]);
}

#[test]
fn old_records_in_segments_that_are_used_again() {
    expect(Mistake::IdentityUnchecked, &["never begun", "wrong", "lost or damaged", "numbered"]);
}

#[test]
fn names_that_are_not_synced() {
    expect(Mistake::NamesUnsynced, &["durable", "missing"]);
}

#[test]
fn a_sync_that_is_tried_again() {
    expect(Mistake::SyncRetried, &["durable", "contents that were written"]);
}

#[test]
fn a_checkpoint_ahead_of_the_log() {
    let symptoms = ["durable", "lost or damaged", "contents that were written"];
    expect(Mistake::CheckpointAhead, &symptoms);
}

#[test]
fn an_image_before_its_sums() {
    expect(Mistake::ImageBeforeSums, &["contents that were written"]);
}

#[test]
fn a_tail_that_is_trusted() {
    expect(Mistake::TailTrusted, &["durable", "lost or damaged"]);
}
