//! Dash-EH without one of its ideas.

use evermap_lab_indexes::ablated::ENTRIES;

use crate::driver::{Config, Plan, Quiet};
use crate::experiments::drive;
use crate::testing::Kept;
use crate::workload::{KeyValueLengths, Phase};

fn config(indexes: &[&str]) -> Config {
    Config {
        indexes: indexes.iter().map(|&name| name.to_owned()).collect(),
        keys: 20_000,
        rounds: 1,
        quiet: Quiet::NOT_NEEDED,
        latency: false,
        limits: false,
        plan: Plan::Phases(Phase::ALL.to_vec()),
        ..Config::default()
    }
}

/// An idea that is left out costs lines. Counts are equal on every machine.
#[test]
fn what_is_left_out_costs_lines() {
    let names = ["dash-eh", ENTRIES[0].name, ENTRIES[1].name];
    let driven = drive(&config(&names), &mut Kept::default()).unwrap();
    let lines = |name, phase| {
        let summary = &driven.subject(name).unwrap().phase(phase).unwrap().summary;
        summary.lines_read_per_op.unwrap()
    };
    // Every record of a bucket instead of one in 256.
    assert!(lines(names[1], "negative") > lines(names[0], "negative") + 2.0);
    assert!(lines(names[1], "positive") > lines(names[0], "positive") + 0.5);
    // Headers of at least two stash buckets.
    assert!(lines(names[2], "negative") > lines(names[0], "negative") + 1.5);
}

#[test]
fn byte_strings_are_found_without_them_too() {
    let lengths = Some(KeyValueLengths::default());
    let names = ENTRIES.map(|entry| entry.name);
    drive(&Config { lengths, ..config(&names[..3]) }, &mut Kept::default()).unwrap();
    let error = drive(&Config { lengths, ..config(&names[3..]) }, &mut Kept::default());
    assert!(error.unwrap_err().to_string().contains("keys and values of 8 bytes"));
}
