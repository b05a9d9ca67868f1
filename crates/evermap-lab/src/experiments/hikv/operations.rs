//! Figures 5 and 6: each operation, beside the rivals.
//!
//! The paper gives HiKV one serving thread and one backend, and the rivals two threads for what
//! writes; for what only reads, all have one thread.

use super::bench::{
    Bench, CHANGES, Cost, FPTREE, FPTREE_C, NVSTORE, ONE_BACKEND, Part, RIVALS, SCANS,
    fences_of_changes, gained, operation, reduction, scans, table,
};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::experiments::tables::{blocks, lines, mark, notes_of_all, persists};
use crate::report::{Figure, Grid, Output, Record, significant};
use crate::subject::MediumKind;
use crate::workload::Phase;

/// The operations in the paper's order, by the names of their phases.
const OPERATIONS: [&str; 5] = ["insert", "positive", "update", "delete", "scan"];
const PHASES: [Phase; 4] = [Phase::Insert, Phase::Positive, Phase::Update, Phase::Delete];
/// Our stores with an order, which flush nothing.
const OURS: [&str; 2] = ["evermap-ordered", "evermap-ordered-persistent"];

/// By how many percent less time HiKV takes, beside NVStore and FPTree.
const LATENCIES: [(&str, f64, f64); 5] = [
    ("positive", 83.2, 86.6),
    ("insert", 54.5, 68.8),
    ("update", 58.4, 59.1),
    ("delete", 65.3, 45.0),
    ("scan", 77.7, 28.3),
];
/// How many percent more operations a second it does.
const THROUGHPUTS: [(&str, f64, f64); 5] = [
    ("delete", 43.2, -10.0),
    ("insert", 10.4, 55.9),
    ("update", 19.6, 19.6),
    ("positive", 500.0, 640.0),
    ("scan", 380.0, 41.2),
];
/// Persists of a put, an update and a removal.
const PERSISTS: [(&str, &str); 3] =
    [(ONE_BACKEND, "2 / 2 / 1"), (NVSTORE, "2 / 2 / 2"), (FPTREE, "3 / 3 / 1")];

/// What was measured.
struct Drives {
    /// With one thread: everything.
    alone: DriveReport,
    scans: DriveReport,
    /// The rivals with two threads: what writes.
    pair: DriveReport,
}

impl Drives {
    fn cost(&self, store: &str, operation: &str) -> Option<Cost> {
        let of = |driven| Cost::of(driven, store, operation);
        of(&self.alone).or_else(|| of(&self.scans))
    }

    /// Returns million operations a second with the paper's numbers of threads.
    fn speed(&self, store: &str, operation: &str) -> Option<(f64, bool)> {
        let find = |driven: &DriveReport| {
            let record = &driven.subject(store)?.phase(operation)?.summary;
            Some((record.mops?, record.void))
        };
        [&self.pair, &self.alone, &self.scans].into_iter().find_map(find)
    }

    fn record(&self, store: &str, operation: &str) -> Option<&Record> {
        let find = |driven: &DriveReport| driven.subject(store).is_some();
        let driven = [&self.alone, &self.scans]
            .into_iter()
            .find(|driven| find(driven) && phase(driven, store, operation).is_some())?;
        phase(driven, store, operation)
    }
}

fn phase<'d>(driven: &'d DriveReport, store: &str, operation: &str) -> Option<&'d Record> {
    Some(&driven.subject(store)?.phase(operation)?.summary)
}

/// Measures every operation of HiKV and of its rivals.
pub(super) fn operations(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let stores = [&[ONE_BACKEND][..], &RIVALS].concat();
    let config = Config {
        counts: bench.config.counts,
        latency: bench.config.latency,
        plan: Plan::Phases(PHASES.to_vec()),
        ..bench.stores(&stores)
    };
    let scans = Plan::Blend(scans(config.keys));
    let pair = Config { threads: 2, plan: Plan::Phases(CHANGES.to_vec()), ..bench.stores(&RIVALS) };
    let drives = Drives {
        alone: drive(&config, out)?,
        scans: drive(&Config { plan: scans.clone(), ..config.clone() }, out)?,
        pair: drive(&pair, out)?,
    };
    let ours = Config {
        medium: MediumKind::Process,
        ..bench.stores(&[&[ONE_BACKEND][..], &OURS].concat())
    };
    let ours = [
        drive(&Config { plan: config.plan.clone(), ..ours.clone() }, out)?,
        drive(&Config { plan: scans, ..ours.clone() }, out)?,
    ];
    let mut tables = tables(&drives, &stores);
    tables.push(beside_ours(&ours));
    let all = [&drives.alone, &drives.scans, &drives.pair].into_iter().chain(&ours);
    Ok(Part { tables, figures: figures(&drives), notes: notes_of_all(all), ..Part::default() })
}

fn tables(drives: &Drives, stores: &[&str]) -> Vec<Grid> {
    let columns = OPERATIONS.map(|phase| operation(phase).to_owned());
    let ns = |title: &str, part: fn(Cost) -> f64| {
        table(title, &columns, stores, |store, at| {
            let cost = drives.cost(store, OPERATIONS[at])?;
            Some(format!("{:.0}{}", part(cost), mark(cost.void)))
        })
    };
    let counted = |title: &str, cell: fn(&Record) -> Option<String>| {
        table(title, &columns, stores, |store, at| cell(drives.record(store, OPERATIONS[at])?))
    };
    vec![
        ns("Figure 5: mean time of an operation with one serving thread, ns", |cost| cost.wall),
        ns("Figure 5: processor time of the serving thread, ns", |cost| cost.serving),
        ns("Figure 6 with equal processor time: ns of all threads for an operation", |cost| {
            cost.all
        }),
        table(
            "Figure 6: million operations a second; writes of the rivals by two threads",
            &columns,
            stores,
            |store, at| {
                let (mops, void) = drives.speed(store, OPERATIONS[at])?;
                Some(format!("{}{}", significant(mops), mark(void)))
            },
        ),
        counted("Flushes / fences of an operation", persists),
        counted("Lines read / written in an operation", lines),
        counted("Blocks of 256 bytes read / written in an operation", blocks),
        counted("Lookups that a cache has answered, of an operation", |record| {
            Some(format!("{:.2}", record.cache_hits_per_op?))
        }),
    ]
}

/// Returns our stores beside HiKV, in a file without emulation.
fn beside_ours(drives: &[DriveReport]) -> Grid {
    let columns = OPERATIONS.map(|phase| operation(phase).to_owned());
    let stores = [&[ONE_BACKEND][..], &OURS].concat();
    let title = "Beside our stores, in a file whose page cache is trusted: mean time, ns";
    table(title, &columns, &stores, |store, at| {
        let cost = drives.iter().find_map(|driven| Cost::of(driven, store, OPERATIONS[at]))?;
        Some(format!("{:.0}{}", cost.wall, mark(cost.void)))
    })
}

fn figures(drives: &Drives) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (phase, nvstore, fptree) in THROUGHPUTS {
        for (rival, paper) in [(NVSTORE, nvstore), (FPTREE, fptree)] {
            let both = drives.speed(ONE_BACKEND, phase).zip(drives.speed(rival, phase));
            figures.push(Figure {
                what: format!("{}, operations a second beside {rival}, %", operation(phase)),
                paper: format!("{paper:+}"),
                here: both.map(|(own, other)| gained(own, other)),
            });
        }
    }
    for (phase, nvstore, fptree) in LATENCIES {
        for (rival, paper) in [(NVSTORE, nvstore), (FPTREE, fptree)] {
            let both = drives.cost(ONE_BACKEND, phase).zip(drives.cost(rival, phase));
            let less = |part: fn(Cost) -> f64| {
                both.map(|(own, other)| {
                    own.with(other, |own, other| -reduction(part(own), part(other)))
                })
            };
            figures.push(Figure {
                what: format!(
                    "{}, time beside {rival}, %; and the serving thread's processor time",
                    operation(phase)
                ),
                paper: format!("-{paper}"),
                here: less(|cost| cost.wall)
                    .zip(less(|cost| cost.serving))
                    .map(|(wall, serving)| format!("{wall} and {serving}")),
            });
        }
    }
    figures.extend(PERSISTS.map(|(store, paper)| Figure {
        what: format!("persists of a Put / an Update / a Delete: {store}"),
        paper: paper.to_owned(),
        here: fences_of_changes(|phase| drives.record(store, phase)),
    }));
    figures.push(Figure {
        what: format!("Get beside {FPTREE}: {FPTREE_C}, time, %"),
        paper: "more (uniform keys)".into(),
        here: drives
            .cost(FPTREE_C, "positive")
            .zip(drives.cost(FPTREE, "positive"))
            .map(|(own, other)| own.with(other, |own, other| -reduction(own.wall, other.wall))),
    });
    let both = drives.cost(ONE_BACKEND, SCANS.name).zip(drives.cost(ONE_BACKEND, "positive"));
    figures.push(Figure {
        what: format!("a Scan takes how many times a Get: {ONE_BACKEND}"),
        paper: "14".into(),
        here: both.map(|(scan, get)| scan.with(get, |scan, get| scan.wall / get.wall)),
    });
    figures
}
