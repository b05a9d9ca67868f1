//! Figure 1: why HiKV has two indexes.

use super::bench::{Bench, Part, SCANS, operation, scans, table};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::experiments::tables::{notes_of_all, speed};
use crate::experiments::ycsb::ordered;
use crate::report::Output;
use crate::subject::MediumKind;
use crate::workload::Phase;

/// A hash table, a skip list and a B+tree in ordinary memory.
const KINDS: [&str; 3] = ["papaya", "skiplist", "bplus"];
const PHASES: [Phase; 4] = [Phase::Insert, Phase::Positive, Phase::Update, Phase::Delete];

/// Measures the five operations of each kind of index.
pub(super) fn kinds(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let config = Config {
        indexes: bench.settings.indexes(&KINDS),
        medium: MediumKind::Dram,
        lengths: None,
        plan: Plan::Phases(PHASES.to_vec()),
        ..bench.stores(&[])
    };
    let changes = drive(&config, out)?;
    let indexes = ordered(&config)?;
    let plan = Plan::Blend(scans(config.keys));
    let scans = drive(&Config { indexes, plan, ..config.clone() }, out)?;
    let columns: Vec<_> = PHASES.iter().map(|phase| phase.name()).chain([SCANS.name]).collect();
    let names: Vec<_> = columns.iter().map(|phase| operation(phase).to_owned()).collect();
    let find = |driven: &DriveReport, index: &str, phase: &str| {
        speed(&driven.subject(index)?.phase(phase)?.summary)
    };
    let stores: Vec<_> = config.indexes.iter().map(String::as_str).collect();
    let title = "Figure 1: million operations a second in ordinary memory, keys of 8 bytes";
    let grid = table(title, &names, &stores, |store, at| {
        find(&changes, store, columns[at]).or_else(|| find(&scans, store, columns[at]))
    });
    let mut notes = notes_of_all([&changes, &scans].into_iter());
    notes.push("A hash table has no order: a scan would read all of it.".into());
    Ok(Part { tables: vec![grid], notes, ..Part::default() })
}
