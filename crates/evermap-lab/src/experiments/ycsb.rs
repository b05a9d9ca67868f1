//! YCSB, and RECIPE's variants of it: words in tables, and byte strings in stores.

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::tables::{self, notes, point, speed};
use crate::registry::subject;
use crate::report::{Grid, Marks, Plot, Report, Series};
use crate::report::{Output, Record};
use crate::subject::{MediumKind, Setup};
use crate::workload::{Blend, KeyValueLengths, Lengths, Mix, Zipf};

pub(super) const YCSB: Experiment = Experiment {
    name: "ycsb",
    about: "YCSB's mixes A to F and RECIPE's variants, on tables of words and stores of bytes",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::MEDIUM,
        Setting::PM,
        Setting::PRESIZE,
        Setting::HUGE_PAGES,
        Setting::NO_COUNTS,
        Setting::NO_LATENCIES,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::WORKLOADS,
        Setting::DISTRIBUTION,
        Setting::THETA,
        Setting::OPS,
    ],
    run: ycsb,
};

/// Tables of words.
const TABLES: &[&str] = &[
    "dash-eh",
    "dash-lh",
    "cceh",
    "level",
    "p-clht",
    "bplus",
    "papaya",
    "dashmap",
    "rwlock-btreemap",
];
/// Stores of byte strings, by what their changes survive.
const STORES: &[&str] = &[
    "evermap",
    "evermap-ordered",
    "lmdb-process",
    "fjall-process",
    "rocksdb-process",
    "lmdb-power",
    "redb-power",
    "fjall-power",
    "rocksdb-power",
    "sled-power",
];

fn ycsb(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let mut report = Report {
        experiment: "ycsb",
        title: "mixes of operations on popular and less popular keys".into(),
        about: "Every table is filled before each mix; every read is checked against what its \
                thread wrote, and at the end every key against what all threads wrote."
            .into(),
        ..Report::default()
    };
    if settings.indexes.is_some() {
        let scale = Scale { keys: 1_000_000, rounds: 3, quick_keys: 500_000, quick_rounds: 1 };
        let config = settings.config("ycsb", &[], scale);
        section(&mut report, settings, config, "", out)?;
        return Ok(report);
    }
    let scale = Scale { keys: 5_000_000, rounds: 3, quick_keys: 500_000, quick_rounds: 1 };
    let words = settings.config("ycsb", TABLES, scale);
    section(&mut report, settings, words, "tables of words: ", out)?;
    // A commit that waits for the disk takes a tenth of a millisecond or more.
    let scale = Scale { keys: 200_000, rounds: 3, quick_keys: 20_000, quick_rounds: 1 };
    let mut stores = settings.config("ycsb", STORES, scale);
    // They are files, and so is Evermap's beside them.
    stores.medium = settings.medium(MediumKind::Process);
    if stores.lengths.is_none() {
        stores.lengths =
            Some(KeyValueLengths { keys: Lengths::Fixed(16), values: Lengths::Fixed(100) });
    }
    section(&mut report, settings, stores, "stores of byte strings: ", out)?;
    Ok(report)
}

/// Measures all mixes on one set of tables.
fn section(
    report: &mut Report,
    settings: &Settings,
    config: Config,
    title: &str,
    out: &mut dyn Output,
) -> Result<(), LabError> {
    let config = Config { limits: false, ..config };
    let mixes = settings.workloads.clone().unwrap_or_else(|| Mix::ALL.to_vec());
    let ordered = ordered(&config)?;
    if ordered.is_empty() && mixes.iter().all(Mix::scans) {
        return Err(LabError::Unordered { index: "every index that was named" });
    }
    let mut drives: Vec<(Mix, DriveReport)> = Vec::new();
    for mix in mixes {
        let indexes = if mix.scans() { ordered.clone() } else { config.indexes.clone() };
        if indexes.is_empty() {
            report
                .notes
                .push(format!("{title}{}: no table here keeps its keys in order", mix.name));
            continue;
        }
        let blend = Blend {
            mix,
            keys: settings.distribution.unwrap_or(mix.keys),
            theta: settings.theta.unwrap_or(Zipf::YCSB),
            ops: settings.ops.unwrap_or(config.keys),
        };
        let config = Config { indexes, plan: Plan::Blend(blend), ..config.clone() };
        drives.push((mix, drive(&config, out)?));
    }
    report.about.push_str(&format!("\n{title}{}", circumstances(&config)));
    let (tables, plot) = tabulate(&config.indexes, &drives, title);
    report.tables.extend(tables);
    report.plots.push(plot);
    for (_, driven) in &drives {
        for note in notes(driven) {
            if !report.notes.contains(&note) {
                report.notes.push(note);
            }
        }
    }
    Ok(())
}

/// Returns the tables of `config` that keep their keys in order.
pub(super) fn ordered(config: &Config) -> Result<Vec<String>, LabError> {
    let setup = Setup { keys: 1, ..config.check(config.indexes.len())? };
    let mut ordered = Vec::new();
    for name in &config.indexes {
        if subject(name)?.build(&setup)?.is_ordered() {
            ordered.push(name.clone());
        }
    }
    Ok(ordered)
}

fn tabulate(indexes: &[String], drives: &[(Mix, DriveReport)], title: &str) -> (Vec<Grid>, Plot) {
    let names: Vec<_> = drives.iter().map(|(mix, _)| mix.name).collect();
    let with_place = ["survives", "flush"].iter().chain(&names).copied().collect::<Vec<_>>();
    let upper = |text: &str| format!("{title}{text}");
    let mut throughput = Grid::new(upper("million operations a second, medians"), &with_place);
    let mut cpu = Grid::new(upper("processor time of an operation, ns, medians"), &names);
    let mut tail = Grid::new(upper("99th percentile of latency"), &names);
    let mut end = Grid::new(upper("99.9th percentile of latency"), &names);
    let mut persists = Grid::new(upper("flushes / fences of an operation"), &names);
    let mut lines = Grid::new(upper("lines read / written in an operation"), &names);
    let mut blocks = Grid::new(upper("blocks of 256 bytes read / written in an operation"), &names);
    let mut series = Vec::new();
    for index in indexes {
        let records: Vec<_> = drives
            .iter()
            .map(|(_, driven)| Some(&driven.subject(index)?.phases.first()?.summary))
            .collect();
        let Some(any) = records.iter().flatten().next() else { continue };
        let cells = |cell: fn(&Record) -> Option<String>| {
            let cell = |record: &Option<&Record>| record.and_then(cell);
            records
                .iter()
                .map(|record| cell(record).unwrap_or_else(|| "-".into()))
                .collect::<Vec<_>>()
        };
        let place = vec![any.survives.to_owned(), any.flush_kind.clone().unwrap_or("-".into())];
        throughput.push(index, [place, cells(speed)].concat());
        cpu.push(
            index,
            cells(|record| {
                Some(format!("{:.0}{}", record.cpu_ns_per_op?, tables::mark(record.void)))
            }),
        );
        tail.push(index, cells(|record| Some(tables::latency(record.p99_ns?, record.void))));
        end.push(index, cells(|record| Some(tables::latency(record.p999_ns?, record.void))));
        persists.push(index, cells(tables::persists));
        lines.push(index, cells(tables::lines));
        blocks.push(index, cells(tables::blocks));
        let points = records.iter().enumerate();
        let points = points.filter_map(|(at, record)| point(at as f64, (*record)?)).collect();
        series.push(Series { name: index.clone(), points });
    }
    let plot = Plot {
        title: upper("throughput by mix"),
        x: String::new(),
        y: "million operations/s".into(),
        log_x: false,
        marks: Marks::Bars(names.iter().map(|&name| name.to_owned()).collect()),
        series,
    };
    let says_something = |grid: &Grid| {
        let mut cells = grid.rows.iter().flat_map(|(_, cells)| cells);
        cells.any(|cell| cell != "-")
    };
    let tables = [throughput, cpu, tail, end, persists, lines, blocks].into_iter();
    (tables.filter(says_something).collect(), plot)
}
