//! Power is lost: what was not flushed may be lost, line by line.

use super::{
    KEYS, Workload, campaign, campaign_in_a_cache, campaign_in_order, campaign_of_a_recovery,
    campaign_with_maps, config, evict,
};
use crate::common;
use evermap::{IndexKind, Order};
use evermap_index::testkit::{Tier, tier};
use evermap_pm::sim::mutants::Fate;
use evermap_pm::sim::{self, Model};

#[test]
fn power_loss_with_persistent_memory() {
    campaign(common::index(), Model::Adr, 0..3, 4_000);
}

#[test]
fn power_loss_with_named_maps() {
    campaign_with_maps(Model::Adr, 200);
}

#[test]
fn power_loss_with_a_persistent_order() {
    campaign_in_order(Model::Adr, 800);
}

/// A planted mistake: a key is bound although the persistent order does not have it (1). Another
/// one, for which two threads have to meet: it leaves the order although it is bound again (2).
#[test]
fn keys_that_are_missing_in_a_persistent_order_are_found() {
    let found = |workload: Workload, images, mistake, seeds| {
        let workload = Workload { order: Order::Persistent, ..workload };
        evict::assert_found(&workload, &config(Model::Adr, images), mistake, seeds);
    };
    found(Workload::new(KEYS, 0, common::index()), 20_000, "OR-1", 0..4);
    found(Workload::shared_cache(), 100, "OR-2", 0..300);
}

#[test]
fn power_loss_while_an_order_is_restored_loses_nothing() {
    campaign_of_a_recovery(Model::Adr);
}

#[test]
fn power_loss_in_a_cache() {
    let workload = Workload::cache();
    campaign_in_a_cache(&workload, Model::Adr, 400);
    workload.work.assert_done();
}

#[test]
fn power_loss_in_a_cache_with_two_threads() {
    campaign_in_a_cache(&Workload::shared_cache(), Model::Adr, 600);
}

/// Planted mistakes in batches: the intent is not durable at the decision (1), new keys are visible
/// before it (2), the intent is cleared before its changes are durable (3), or before a recovery
/// has executed it (4).
#[test]
fn mistakes_in_batches_are_found() {
    let workload = Workload::new(KEYS, 0, common::index());
    for mistake in ["BA-1", "BA-2", "BA-3", "BA-4"] {
        let config = config(Model::Adr, 20_000);
        let fate = sim::mutants::fate_of_planted(&workload, &config, mistake, 0..4);
        assert!(matches!(fate, Fate::Killed(_)), "{mistake} {fate:?}");
        println!("{mistake}: {fate:?}");
    }
}

/// Planted mistakes in values that are written in pieces: the record is published before the value
/// is durable (1), and a clean shutdown saves blocks of unfinished values as allocated (2).
#[test]
fn mistakes_in_values_in_pieces_are_found() {
    let workload = Workload::new(KEYS, 0, common::index());
    for mistake in ["VW-1", "VW-2"] {
        let config = config(Model::Adr, 20_000);
        let fate = sim::mutants::fate_of_planted(&workload, &config, mistake, 0..4);
        println!("{mistake}: {fate:?}");
        assert!(matches!(fate, Fate::Killed(_)), "{mistake} {fate:?}");
    }
}

/// A planted mistake: a change of marks is not durable when it was acknowledged.
#[test]
fn marks_that_are_not_durable_are_found() {
    let workload = Workload::new(KEYS, 0, common::index());
    let config = config(Model::Adr, 20_000);
    let fate = sim::mutants::fate_of_planted(&workload, &config, "MK-1", 0..4);
    println!("MK-1: {fate:?}");
    assert!(matches!(fate, Fate::Killed(_)), "{fate:?}");
}

/// Planted mistakes in named maps: a dropped map is freed before its name is removed (1), a clean
/// shutdown saves blocks of a dropped map as allocated (2), a sweep does not visit dropped maps
/// that are freed later (3).
#[test]
fn mistakes_in_named_maps_are_found() {
    let workload = Workload::new(4, 2, IndexKind::Clht);
    for mistake in ["MA-1", "MA-2", "MA-3"] {
        let config = sim::Config { capacity: 512 << 10, ..config(Model::Adr, 20_000) };
        let fate = sim::mutants::fate_of_planted(&workload, &config, mistake, 0..4);
        println!("{mistake}: {fate:?}");
        assert!(matches!(fate, Fate::Killed(_)), "{mistake} {fate:?}");
    }
}

/// Planted mistakes in caches: the block of a record is given up before its eviction is durable
/// (EV-2), a record that is moved out of a sparse extent is published before it is durable (EV-3).
#[test]
fn mistakes_in_caches_are_found() {
    let all = ["EV-2", "EV-3"];
    // The other one takes long to notice.
    for &mistake in tier().choose(&all[..1], &all[..]) {
        evict::assert_found(&Workload::cache(), &config(Model::Adr, 20_000), mistake, 0..4);
    }
}

/// A planted mistake: an eviction removes what the key is bound to by then, instead of the record
/// that was chosen. Threads have to meet for that, which needs many runs, and no crash: in the full
/// tier only.
#[test]
fn the_eviction_of_a_newer_record_is_found() {
    if tier() == Tier::Default {
        return;
    }
    evict::assert_found(&Workload::shared_cache(), &config(Model::Adr, 100), "EV-1", 0..300);
}
