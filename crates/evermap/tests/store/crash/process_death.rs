//! The process dies, at any store: its memory stays as it is.

use super::{
    KEYS, Workload, campaign, campaign_in_a_cache, campaign_in_order, campaign_of_a_recovery,
    campaign_with_maps, config, evict,
};
use crate::common;
use evermap_index::testkit::{Tier, tier};
use evermap_pm::sim::mutants::Fate;
use evermap_pm::sim::{self, Model};

#[test]
fn process_death_at_every_store() {
    campaign(common::index(), Model::ProcessDeath, 100..103, 4_000);
}

#[test]
fn process_death_with_named_maps() {
    campaign_with_maps(Model::ProcessDeath, 300);
}

#[test]
fn process_death_with_a_persistent_order() {
    campaign_in_order(Model::ProcessDeath, 900);
}

#[test]
fn process_death_while_an_order_is_restored_loses_nothing() {
    campaign_of_a_recovery(Model::ProcessDeath);
}

#[test]
fn process_death_in_a_cache() {
    let workload = Workload::cache();
    campaign_in_a_cache(&workload, Model::ProcessDeath, 500);
    workload.work.assert_done();
}

#[test]
fn process_death_in_a_cache_with_two_threads() {
    campaign_in_a_cache(&Workload::shared_cache(), Model::ProcessDeath, 700);
}

/// A planted mistake: a record gets its tombstone while the index still refers to it, so that a
/// crash in between loses it.
#[test]
fn a_tombstone_that_is_too_early_is_found() {
    let workload = Workload::new(KEYS, 0, common::index());
    let config = config(Model::ProcessDeath, 20_000);
    let fate = sim::mutants::fate_of_planted(&workload, &config, "TO-1", 0..4);
    println!("TO-1: {fate:?}");
    assert!(matches!(fate, Fate::Killed(_)), "{fate:?}");
}

/// A planted mistake in caches: storing how a record was read leaves it without its lengths for a
/// moment (AC-1). It takes long to notice: in the full tier only.
#[test]
fn a_record_without_its_lengths_is_found() {
    if tier() == Tier::Default {
        return;
    }
    evict::assert_found(&Workload::cache(), &config(Model::ProcessDeath, 20_000), "AC-1", 0..4);
}
