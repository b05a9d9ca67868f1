//! Short records: the heterogeneous table beside other tables and stores.
//!
//! * here: records of three shapes through the same phases in every table;
//! * [`fills`]: how full the table is, and how many tranches lookups parse, beside a simulation;
//! * [`pieces`]: latencies while the table grows, beside those of a table with space for all;
//! * [`sizes`]: the cost of a lookup while the table grows by a factor of hundreds.

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings};
use super::tables::{blocks, lines, mark, notes_of_all, places, speed};
use crate::LabError;
use crate::driver::results::{DriveReport, PhaseReport};
use crate::driver::{Config, Plan};
use crate::report::model::cell;
use crate::report::{Grid, Output, Report, counted, duration};
use crate::workload::{Blend, Distribution, KeyValueLengths, Lengths, Mix, Zipf};

mod fills;
mod pieces;
mod sizes;

pub(super) const SHORT_RECORDS: Experiment = Experiment {
    name: "short-records",
    about: "records of 16 to 272 bytes: the heterogeneous table beside maps and stores",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::ROUNDS,
        Setting::MEDIUM,
        Setting::PM,
        Setting::HUGE_PAGES,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::NO_COUNTS,
        Setting::NO_LATENCIES,
        Setting::FROM,
        Setting::TO,
        Setting::SAMPLES,
    ],
    run: short_records,
};

/// The heterogeneous table with each size of its tranches, and what it is compared with: maps in
/// memory, a store of pages, an index with its pairs inside, and the store with the same index and
/// its records outside.
const USUAL: [&str; 10] = [
    "tranche-256",
    "tranche-512",
    "tranche-4k",
    "tranche-32k",
    "std-hashmap",
    "std-hashmap-fold",
    "rwlock-hashbrown",
    "dashmap",
    "dash-eh",
    "evermap",
];
/// A store of another project, if it is compiled in.
const LMDB: &str = "lmdb-process";

/// Lengths of keys and values of the talk's short and medium records, and of YCSB's.
const SHAPES: [(u32, u32); 3] = [(8, 8), (10, 100), (16, 256)];

fn short_records(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let mut usual = USUAL.to_vec();
    usual.push(LMDB);
    let scale = Scale { keys: 1_000_000, rounds: 5, quick_keys: 20_000, quick_rounds: 1 };
    let base = Config {
        threads: 1,
        limits: false,
        // A run of a small table is too short to be judged.
        ..settings.config("short-records", &usual, scale)
    };
    let mut drives = Vec::new();
    for shape in shapes(settings) {
        let config = Config { lengths: lengths_of(shape), plan: plan(&base), ..base.clone() };
        drives.push((shape, drive(&config, out)?));
    }
    let mut report = Report {
        experiment: "short-records",
        title: "short records".into(),
        about: format!(
            "{} records of each shape, 1 thread, {}, medium {}, seed {}",
            base.keys,
            counted(base.rounds, "round"),
            base.medium.name(),
            base.seed
        ),
        tables: drives.iter().flat_map(|(shape, driven)| tables(*shape, driven)).collect(),
        notes: notes_of_all(drives.iter().map(|(_, driven)| driven)),
        ..Report::default()
    };
    report.tables.extend(drives.first().and_then(|(_, driven)| places(driven)));
    report.tables.push(fills::compare(settings, &base, out)?);
    if base.latency {
        report.tables.push(pieces::measure(&base.indexes, &base, out)?);
    }
    let growth = sizes::measure(settings, &base, out)?;
    report.tables.push(growth.table());
    report.plots.push(growth.plot());
    report.notes.extend(growth.notes());
    report.notes.push(
        "Latencies are of one operation in sixteen, without the time that reading the clock takes. \
         Tables that report no bytes are measured by what the process has allocated. lmdb-process \
         and evermap take pairs of 8 bytes as byte strings too."
            .into(),
    );
    Ok(report)
}

/// Returns the lengths of keys and values to measure.
fn shapes(settings: &Settings) -> Vec<(Lengths, Lengths)> {
    match settings.lengths() {
        Some(lengths) => vec![(lengths.keys, lengths.values)],
        None => SHAPES.map(|(key, value)| (Lengths::Fixed(key), Lengths::Fixed(value))).to_vec(),
    }
}

/// Returns the lengths of byte strings, or `None` if keys and values are words.
fn lengths_of((keys, values): (Lengths, Lengths)) -> Option<KeyValueLengths> {
    let lengths = KeyValueLengths { keys, values };
    (lengths != KeyValueLengths::WORDS).then_some(lengths)
}

/// Returns the phases: at the end, half of the operations replace a value by one of its length.
fn plan(config: &Config) -> Plan {
    let half: Mix = "ycsb-a".parse().expect("a known mix");
    let keys = Distribution::Uniform;
    Plan::Orders(Blend { mix: half, keys, theta: Zipf::YCSB, ops: config.keys })
}

/// Returns the tables of one shape.
fn tables((keys, values): (Lengths, Lengths), driven: &DriveReport) -> Vec<Grid> {
    let title = |what: &str| format!("{keys}/{values} bytes: {what}");
    let mut tables = vec![
        by_phase(driven, title("processor time of an operation, ns"), &|phase| {
            let summary = &phase.summary;
            Some(format!("{:.0}{}", summary.cpu_ns_per_op?, mark(summary.void)))
        }),
        by_phase(driven, title("million operations a second"), &|phase| speed(&phase.summary)),
        by_phase(driven, title("latency: p50 / p95 / p99 / p99.9"), &|phase| {
            let summary = &phase.summary;
            let quantiles = [summary.p50_ns, summary.p95_ns, summary.p99_ns, summary.p999_ns];
            let shown: Option<Vec<_>> =
                quantiles.into_iter().map(|ns| Some(duration(ns? as f64))).collect();
            Some(format!("{}{}", shown?.join(" / "), mark(summary.void)))
        }),
        by_phase(driven, title("lines read / written in an operation"), &|phase| {
            lines(&phase.summary)
        }),
        by_phase(driven, title("blocks of 256 bytes read / written in an operation"), &|phase| {
            blocks(&phase.summary)
        }),
    ];
    tables.retain(|grid| !grid.rows.is_empty());
    tables.push(space(driven, title("space after the insertions")));
    tables
}

/// Returns a table with a column for every phase. Subjects without any figure are left out.
fn by_phase(
    driven: &DriveReport,
    title: String,
    figure: &dyn Fn(&PhaseReport) -> Option<String>,
) -> Grid {
    let phases = driven.subjects.first().map(|subject| &subject.phases[..]).unwrap_or(&[]);
    let names: Vec<_> = phases.iter().map(|phase| phase.name).collect();
    let mut grid = Grid::new(title, &names);
    for subject in &driven.subjects {
        let cells: Vec<_> = subject.phases.iter().map(figure).collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into()));
            grid.push(subject.name, cells.collect());
        }
    }
    grid
}

/// Returns what a record takes, and how records are spread.
fn space(driven: &DriveReport, title: String) -> Grid {
    let columns = ["bytes/record", "fill", "displaced, %", "tranches/hit", "tranches/miss"];
    let mut grid = Grid::new(title, &columns);
    for subject in &driven.subjects {
        let Some(insert) = subject.phases.first() else { continue };
        let record = &insert.summary;
        grid.push(
            subject.name,
            vec![
                cell(record.bytes_per_record, 1),
                cell(record.load_factor, 3),
                cell(record.displaced.map(|share| 100.0 * share), 2),
                cell(record.tranches_per_hit, 3),
                cell(record.tranches_per_miss, 3),
            ],
        );
    }
    grid
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::driver::{GET_AGAIN, GET_IN_ANOTHER, GET_IN_ORDER, HALF_PUTS};
    use crate::experiments::experiment;
    use crate::testing::Kept;
    use crate::workload::Phase;

    fn brief() -> Settings {
        Settings {
            quick: true,
            keys: Some(3_000),
            rounds: Some(1),
            retries: Some(0),
            patience: Some(Duration::ZERO),
            from: Some(1_000),
            to: Some(4_000),
            samples: Some(3),
            ..Settings::default()
        }
    }

    /// Every table goes through every phase with every shape, and its records say what they are to
    /// say: with lengths, with bytes for a record, and with tranches where there are any.
    #[test]
    fn every_table_goes_through_every_phase() {
        let (experiment, mut kept) = (experiment("short-records").unwrap(), Kept::default());
        let indexes = ["tranche-256", "tranche-4k", "std-hashmap", "std-hashmap-fold", "evermap"];
        let indexes = Some(indexes.map(str::to_owned).to_vec());
        let report = experiment.run(&Settings { indexes, ..brief() }, &mut kept).unwrap();
        let phases = [
            Phase::Insert.name(),
            GET_IN_ORDER,
            GET_AGAIN,
            GET_IN_ANOTHER,
            Phase::Negative.name(),
            HALF_PUTS,
        ];
        for (key, value) in SHAPES {
            for index in ["tranche-256", "tranche-4k", "std-hashmap", "evermap"] {
                for phase in phases {
                    let is_it = |record: &&crate::report::Record| {
                        (&record.index[..], &record.phase[..]) == (index, phase)
                            && record.value_bytes == Some(value.to_string())
                            && record.key_bytes == Some(key.to_string())
                            && record.round.is_none()
                    };
                    let found = kept.records.iter().find(is_it);
                    let record = found.unwrap_or_else(|| panic!("{index}, {phase}, {value}"));
                    assert_eq!((record.keys, record.ops, record.threads), (3000, 3000, 1));
                    assert!(record.cpu_ns_per_op.is_some() && record.p95_ns.is_some());
                    let bytes = record.bytes_per_record.unwrap();
                    // That of the standard map is what the process has allocated since, and other
                    // tests allocate and free at the same time.
                    let known = index != "std-hashmap";
                    assert!(!known || bytes >= f64::from(key + value), "{index}, {value}: {bytes}");
                    assert_eq!(record.tranches_per_hit.is_some(), index.starts_with("tranche"));
                    assert_eq!(record.lines_read_per_op.is_some(), index.starts_with("tranche"));
                }
            }
        }
        let text = report.text();
        for title in [
            "8/8 bytes: space",
            "16/256 bytes: latency",
            "by fill",
            "look-up by size",
            "a thread grows",
        ] {
            assert!(text.contains(title), "no `{title}` in {text}");
        }
    }

    #[test]
    fn lengths_that_are_requested_are_the_only_ones() {
        let lengths = |text: &str| text.parse::<Lengths>().unwrap();
        let settings = Settings { value_bytes: Some(lengths("8-64")), ..brief() };
        assert_eq!(shapes(&settings), [(lengths("16"), lengths("8-64"))]);
        assert_eq!(shapes(&brief()).len(), 3);
        assert_eq!(lengths_of((lengths("8"), lengths("8"))), None);
        assert!(lengths_of((lengths("8"), lengths("9"))).is_some());
    }
}
