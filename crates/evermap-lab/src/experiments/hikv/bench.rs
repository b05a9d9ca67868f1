//! What all sections measure with, and how they show it.

use std::cell::OnceCell;

use evermap_pm::medium::Speed;

use super::alone;
use super::model::Demand;
use crate::LabError;
use crate::driver::Config;
use crate::driver::results::DriveReport;
use crate::experiments::settings::Settings;
use crate::experiments::tables::mark;
use crate::report::{Figure, Grid, Output, Plot, Record};
use crate::workload::{Blend, Distribution, Mix, Phase, Zipf};

/// HiKV with one backend, and with as many as the load needs.
pub(super) const ONE_BACKEND: &str = "hikv-1-1";
pub(super) const ADAPTIVE: &str = "hikv";
/// NVStore: NV-Tree as its paper has it, over values of any length.
pub(super) const NVSTORE: &str = "nv-tree-paper";
/// FPTree as published.
pub(super) const FPTREE: &str = "fp-tree-paper";
/// FPTree with the ordinary memory of HiKV's tree as a cache of values.
pub(super) const FPTREE_C: &str = "fp-tree-cache";
/// What the paper compares HiKV with.
pub(super) const RIVALS: [&str; 3] = [NVSTORE, FPTREE, FPTREE_C];

/// The mixes of YCSB, in the order in which the paper has them.
pub(super) const YCSB: [&str; 6] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"];

/// What a section has found.
#[derive(Default)]
pub(super) struct Part {
    pub(super) tables: Vec<Grid>,
    pub(super) plots: Vec<Plot>,
    pub(super) figures: Vec<Figure>,
    pub(super) notes: Vec<String>,
}

/// What all sections measure with.
pub(super) struct Bench<'s> {
    pub(super) settings: &'s Settings,
    /// One thread, keys of 16 bytes and values of 256 on the emulated medium, unless others are
    /// requested.
    pub(super) config: Config,
    /// What operations of HiKV take, once that was measured.
    alone: OnceCell<Vec<(&'static str, Demand)>>,
}

impl<'s> Bench<'s> {
    /// Returns a bench that has measured nothing.
    pub(super) fn new(settings: &'s Settings, config: Config) -> Self {
        Bench { settings, config, alone: OnceCell::new() }
    }

    /// Returns what operations of HiKV take in each of the [mixes](YCSB): see [`alone`]. Several
    /// figures need it; it is measured once.
    pub(super) fn alone(
        &self,
        out: &mut dyn Output,
    ) -> Result<&[(&'static str, Demand)], LabError> {
        if let Some(demands) = self.alone.get() {
            return Ok(demands);
        }
        let demands = alone::demands(&self.stores(&[ADAPTIVE]), &YCSB, out)?;
        Ok(self.alone.get_or_init(|| demands))
    }

    /// Returns the number of threads beside which HiKV has one of its own: the processors.
    pub(super) fn threads(&self) -> usize {
        self.settings.threads.unwrap_or_else(Settings::processors).max(2)
    }

    /// Returns the configuration for some stores. Fast ones, which are repeated often, need no
    /// counts and no latencies.
    pub(super) fn stores(&self, names: &[&str]) -> Config {
        let indexes = names.iter().map(|&name| name.to_owned()).collect();
        Config { indexes, counts: false, latency: false, ..self.config.clone() }
    }
}

/// Scans alone.
pub(super) const SCANS: Mix = Mix {
    name: "scan",
    about: "scans of 1 to 100 pairs from keys that are there",
    read: 0,
    update: 0,
    insert: 0,
    modify: 0,
    scan: 100,
    scan_least: 1,
    keys: Distribution::Uniform,
};

/// Returns the scans of a table with this many keys. A scan costs as much as many lookups.
pub(super) fn scans(keys: u64) -> Blend {
    Blend { mix: SCANS, keys: SCANS.keys, theta: Zipf::YCSB, ops: (keys / 10).max(1) }
}

/// Returns the name of a phase in the paper.
pub(super) fn operation(phase: &str) -> &str {
    match phase {
        "insert" => "Put",
        "positive" => "Get",
        "update" => "Update",
        "delete" => "Delete",
        "scan" => "Scan",
        other => other,
    }
}

/// What an operation of a store takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Of wall-clock time, for a thread.
    pub(super) wall: f64,
    /// Of processor time of the serving threads.
    pub(super) serving: f64,
    /// Of processor time of all threads.
    pub(super) all: f64,
    /// Whether other programs disturbed it.
    pub(super) void: bool,
}

impl Cost {
    /// Returns the cost of an operation of `index` in `phase`.
    pub(super) fn of(driven: &DriveReport, index: &str, phase: &str) -> Option<Self> {
        Cost::in_record(&driven.subject(index)?.phase(phase)?.summary)
    }

    pub(super) fn in_record(record: &Record) -> Option<Self> {
        Some(Cost {
            wall: 1e3 * record.threads as f64 / record.mops?,
            serving: record.serving_ns_per_op?,
            all: record.cpu_ns_per_op?,
            void: record.void,
        })
    }

    /// Formats a figure of two costs, marked if one of them was disturbed.
    pub(super) fn with(self, other: Cost, figure: impl Fn(Cost, Cost) -> f64) -> String {
        format!("{:.1}{}", figure(self, other), mark(self.void || other.void))
    }
}

/// Returns by how many percent `own` is less than `other`.
pub(super) fn reduction(own: f64, other: f64) -> f64 {
    100.0 * (1.0 - own / other)
}

/// Returns by how many percent `own` is more than `other`.
pub(super) fn gain(own: f64, other: f64) -> f64 {
    100.0 * (own / other - 1.0)
}

/// Formats by how many percent a speed is more than another, marked if one of them was disturbed.
pub(super) fn gained((own, own_void): (f64, bool), (other, other_void): (f64, bool)) -> String {
    format!("{:+.1}{}", gain(own, other), mark(own_void || other_void))
}

/// Formats the fences of a put, an update and a removal, if all of them were counted.
pub(super) fn fences_of_changes<'r>(
    record: impl Fn(&'static str) -> Option<&'r Record>,
) -> Option<String> {
    let fences = |phase: &Phase| Some(format!("{:.2}", record(phase.name())?.fences_per_op?));
    Some(CHANGES.iter().map(fences).collect::<Option<Vec<_>>>()?.join(" / "))
}

/// Returns a table of one cell for each store and column.
pub(super) fn table(
    title: impl Into<String>,
    columns: &[String],
    stores: &[&str],
    cell: impl Fn(&str, usize) -> Option<String>,
) -> Grid {
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let mut grid = Grid::new(title, &columns);
    for store in stores {
        let cells = (0..columns.len()).map(|at| cell(store, at).unwrap_or_else(|| "-".into()));
        grid.push(*store, cells.collect());
    }
    grid
}

/// Returns the speed of memory that takes this long for a persist and a read, as the paper has it.
pub(super) fn speed(config: &Config, persist_ns: u64, read_ns: u64) -> Speed {
    Speed { persist_ns, read_ns, near_read_ns: read_ns, ..config.speed }
}

/// The phases that change something.
pub(super) const CHANGES: [Phase; 3] = [Phase::Insert, Phase::Update, Phase::Delete];
