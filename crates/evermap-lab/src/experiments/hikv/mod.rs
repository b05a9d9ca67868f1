//! The evaluation of HiKV's paper, figure by figure: HiKV beside what it was compared with.
//!
//! * [`kinds`]: figure 1, a hash table, a skip list and a B+tree in ordinary memory;
//! * [`operations`]: figures 5 and 6, each operation beside NVStore, FPTree and FPTree_C;
//! * [`mixes`]: figure 7, YCSB; [`model`]: the same on as many processors as the paper had;
//! * [`sweeps`]: figures 8, 9 and 12, by the time of a write, the number of keys, and the time of a
//!   read;
//! * [`ablations`]: figure 10, HiKV without each of its ideas;
//! * [`adaption`]: figure 11, how the threads of a [`pool`] are divided;
//! * [`space`]: figure 13, bytes in both memories;
//! * [`reopening`]: section 4.9, recovery.

use evermap_pm::medium::Speed;

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::Config;
use crate::driver::results::DriveReport;
use crate::experiments::tables::mark;
use crate::report::{Figure, Grid, Output, Plot, Record, Report, counted};
use crate::subject::MediumKind;
use crate::workload::{Blend, Distribution, KeyValueLengths, Lengths, Mix, Phase, Zipf};

mod ablations;
mod adaption;
mod kinds;
mod mixes;
mod model;
mod operations;
mod pool;
mod reopening;
mod space;
mod sweeps;
#[cfg(test)]
mod tests;

pub(super) const HIKV: Experiment = Experiment {
    name: "hikv",
    about: "HiKV beside NVStore, FPTree, FPTree_C and its own variants: the paper's figures",
    takes: &[
        Setting::FIGURES,
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::MEDIUM,
        Setting::PM,
        Setting::HUGE_PAGES,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::NO_COUNTS,
        Setting::NO_LATENCIES,
    ],
    run: hikv,
};

/// HiKV with one backend, and with as many as the load needs.
const ONE_BACKEND: &str = "hikv-1-1";
const ADAPTIVE: &str = "hikv";
/// NVStore: NV-Tree as its paper has it, over values of any length.
const NVSTORE: &str = "nv-tree-paper";
/// FPTree as published.
const FPTREE: &str = "fp-tree-paper";
/// FPTree with the ordinary memory of HiKV's tree as a cache of values.
const FPTREE_C: &str = "fp-tree-cache";
/// What the paper compares HiKV with.
const RIVALS: [&str; 3] = [NVSTORE, FPTREE, FPTREE_C];

/// One or more figures of the paper.
struct Section {
    /// The numbers of the figures.
    figures: &'static [&'static str],
    run: fn(&Bench<'_>, &mut dyn Output) -> Result<Part, LabError>,
}

/// All sections, in the order of the paper.
const SECTIONS: [Section; 9] = [
    Section { figures: &["1"], run: kinds::kinds },
    Section { figures: &["5", "6"], run: operations::operations },
    Section { figures: &["7"], run: mixes::mixes },
    Section { figures: &["8"], run: sweeps::write_latency },
    Section { figures: &["9"], run: sweeps::sizes },
    Section { figures: &["10"], run: ablations::ablations },
    Section { figures: &["11"], run: adaption::adaption },
    Section { figures: &["12"], run: sweeps::read_latency },
    Section { figures: &["13"], run: space::space },
];
/// The last section, which starts processes.
const RECOVERY: &str = "recovery";

/// What a section has found.
#[derive(Default)]
struct Part {
    tables: Vec<Grid>,
    plots: Vec<Plot>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// What all sections measure with.
struct Bench<'s> {
    settings: &'s Settings,
    /// One thread, keys of 16 bytes and values of 256 on the emulated medium, unless others are
    /// requested.
    config: Config,
}

impl Bench<'_> {
    /// Returns the number of threads beside which HiKV has one of its own: the processors.
    fn threads(&self) -> usize {
        self.settings.threads.unwrap_or_else(Settings::processors).max(2)
    }

    /// Returns the configuration for some stores. Fast ones, which are repeated often, need no
    /// counts and no latencies.
    fn stores(&self, names: &[&str]) -> Config {
        let indexes = names.iter().map(|&name| name.to_owned()).collect();
        Config { indexes, counts: false, latency: false, ..self.config.clone() }
    }
}

fn hikv(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 500_000, rounds: 5, quick_keys: 20_000, quick_rounds: 1 };
    let config = settings.config("hikv", &[], scale);
    let lengths = KeyValueLengths {
        keys: settings.key_bytes.unwrap_or(Lengths::Fixed(16)),
        values: settings.value_bytes.unwrap_or(Lengths::Fixed(256)),
    };
    let medium = settings.medium(MediumKind::Emulated);
    let config = Config { medium, threads: 1, lengths: Some(lengths), limits: false, ..config };
    let bench = Bench { settings, config };
    let mut report = Report {
        experiment: "hikv",
        title: "a hash index in the medium, a B+tree beside it".into(),
        about: circumstances(&bench.config),
        notes: vec![company()],
        ..Report::default()
    };
    let wanted = wanted(settings)?;
    for section in &SECTIONS {
        if section.figures.iter().any(|figure| wanted.contains(figure)) {
            add(&mut report, (section.run)(&bench, out)?);
        }
    }
    if wanted.contains(&RECOVERY) {
        match settings.program {
            Some(_) => add(&mut report, reopening::reopening(&bench, out)?),
            None => {
                report.notes.push("recovery was not measured: there is no program to kill".into())
            }
        }
    }
    Ok(report)
}

/// Returns the names of the sections that are requested, or of all.
fn wanted(settings: &Settings) -> Result<Vec<&'static str>, LabError> {
    let known = || SECTIONS.iter().flat_map(|one| one.figures).copied().chain([RECOVERY]);
    let Some(names) = &settings.figures else { return Ok(known().collect()) };
    let find = |name: &String| {
        known().find(|figure| figure == name).ok_or_else(|| {
            let known: Vec<_> = known().collect();
            LabError::Config(format!("no figure `{name}`; known are: {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

fn add(report: &mut Report, part: Part) {
    report.tables.extend(part.tables);
    report.plots.extend(part.plots);
    report.figures.extend(part.figures);
    for note in part.notes {
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
    }
}

/// Describes how threads share the processors, without which the figures cannot be interpreted.
fn company() -> String {
    format!(
        "{} here; in the paper 16 threads had 16 cores. Backends (all but hikv-sync) and the \
         thread that moves ranges (hikv-par) are threads of their own. If threads share \
         processors, work that is passed to another thread still delays its sender in wall-clock \
         time, so the processor time of the serving thread is the figure that compares.",
        counted(Settings::processors(), "processor"),
    )
}

/// Scans alone.
const SCANS: Mix = Mix {
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
fn scans(keys: u64) -> Blend {
    Blend { mix: SCANS, keys: SCANS.keys, theta: Zipf::YCSB, ops: (keys / 10).max(1) }
}

/// Returns the name of a phase in the paper.
fn operation(phase: &str) -> &str {
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
struct Cost {
    /// Of wall-clock time, for a thread.
    wall: f64,
    /// Of processor time of the serving threads.
    serving: f64,
    /// Of processor time of all threads.
    all: f64,
    /// Whether other programs disturbed it.
    void: bool,
}

impl Cost {
    /// Returns the cost of an operation of `index` in `phase`.
    fn of(driven: &DriveReport, index: &str, phase: &str) -> Option<Self> {
        Cost::in_record(&driven.subject(index)?.phase(phase)?.summary)
    }

    fn in_record(record: &Record) -> Option<Self> {
        Some(Cost {
            wall: 1e3 * record.threads as f64 / record.mops?,
            serving: record.serving_ns_per_op?,
            all: record.cpu_ns_per_op?,
            void: record.void,
        })
    }

    /// Formats a figure of two costs, marked if one of them was disturbed.
    fn with(self, other: Cost, figure: impl Fn(Cost, Cost) -> f64) -> String {
        format!("{:.1}{}", figure(self, other), mark(self.void || other.void))
    }
}

/// Returns by how many percent `own` is less than `other`.
fn reduction(own: f64, other: f64) -> f64 {
    100.0 * (1.0 - own / other)
}

/// Returns by how many percent `own` is more than `other`.
fn gain(own: f64, other: f64) -> f64 {
    100.0 * (own / other - 1.0)
}

/// Returns a table of one cell for each store and column.
fn table(
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
fn speed(config: &Config, persist_ns: u64, read_ns: u64) -> Speed {
    Speed { persist_ns, read_ns, near_read_ns: read_ns, ..config.speed }
}

/// The phases that change something.
const CHANGES: [Phase; 3] = [Phase::Insert, Phase::Update, Phase::Delete];
