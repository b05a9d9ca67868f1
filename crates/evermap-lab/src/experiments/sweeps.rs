//! Experiments that vary the medium, or measure only space.

use evermap_pm::medium::Speed;

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use super::words::sizes;
use crate::LabError;
use crate::driver::{Config, Plan, Quiet};
use crate::experiments::tables::{notes_of_all, point, speed};
use crate::report::model::cell;
use crate::report::{Grid, Marks, Plot, Point, Report, Series};
use crate::report::{Output, grouped};
use crate::subject::MediumKind;
use crate::workload::Phase;

/// Nanoseconds of a persist.
const DELAYS: [u64; 8] = [0, 50, 200, 400, 600, 800, 1000, 1400];

pub(super) const LATENCY_SWEEP: Experiment = Experiment {
    name: "latency-sweep",
    about: "insert, update and delete on memory whose persists take 50 to 1400 ns (emulated)",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::READ_NS,
        Setting::NEAR_READ_NS,
        Setting::READ_MB_S,
        Setting::WRITE_MB_S,
        Setting::PHASES,
        Setting::PRESIZE,
    ],
    run: latency_sweep,
};

fn latency_sweep(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 1_000_000, rounds: 3, quick_keys: 100_000, quick_rounds: 1 };
    let usual = ["dash-eh", "dash-lh", "cceh", "level", "p-clht"];
    let all = vec![Phase::Insert, Phase::Positive, Phase::Update, Phase::Delete];
    let base = Config {
        medium: MediumKind::Emulated,
        plan: Plan::Phases(settings.phases.clone().unwrap_or(all)),
        latency: false,
        limits: false,
        ..settings.config("latency-sweep", &usual, scale)
    };
    let mut drives = Vec::new();
    for persist_ns in DELAYS {
        // The counts do not depend on the delay.
        let speed = Speed { persist_ns, ..base.speed };
        let config = Config { speed, counts: persist_ns == DELAYS[0], ..base.clone() };
        drives.push((persist_ns, drive(&config, out)?));
    }
    let (mut tables, mut plots) = (Vec::new(), Vec::new());
    let title = "By how much an operation slows down for each ns of a persist, and its fences";
    let mut slopes = Grid::new(title, &["slope", "fences counted"]);
    let columns: Vec<_> = DELAYS.iter().map(|delay| format!("{delay} ns")).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let first = &drives[0].1;
    let phases = first.subjects.first().map(|subject| subject.phases.clone()).unwrap_or_default();
    for phase in phases {
        let mut grid = Grid::new(format!("{}: million operations a second", phase.name), &columns);
        let mut series = Vec::new();
        for subject in &first.subjects {
            let records: Vec<_> = drives
                .iter()
                .filter_map(|(delay, driven)| {
                    Some((*delay, &driven.subject(subject.name)?.phase(phase.name)?.summary))
                })
                .collect();
            let cells =
                records.iter().map(|(_, record)| speed(record).unwrap_or_else(|| "-".into()));
            grid.push(subject.name, cells.collect());
            let points = records.iter();
            let points: Vec<_> =
                points.filter_map(|(delay, record)| point(*delay as f64, record)).collect();
            let counted = subject.phase(phase.name).and_then(|phase| phase.summary.fences_per_op);
            slopes.push(
                format!("{}, {}", phase.name, subject.name),
                vec![cell(slope(&points, base.threads), 2), cell(counted, 2)],
            );
            series.push(Series { name: subject.name.to_owned(), points });
        }
        tables.push(grid);
        plots.push(Plot {
            title: phase.name.to_owned(),
            x: "ns a persist takes at least".into(),
            y: "million operations/s".into(),
            log_x: false,
            marks: Marks::Lines,
            series,
        });
    }
    tables.push(slopes);
    Ok(Report {
        experiment: "latency-sweep",
        title: "what slower memory costs".into(),
        about: format!(
            "{}, and from {} to {} ns",
            circumstances(&base),
            DELAYS[0],
            DELAYS[DELAYS.len() - 1]
        ),
        figures: Vec::new(),
        tables,
        plots,
        notes: notes_of_all(drives.iter().map(|(_, driven)| driven)),
    })
}

/// Returns by how many nanoseconds an operation gets slower for each nanosecond of a persist,
/// between 600 and 1400 ns.
fn slope(points: &[Point], threads: usize) -> Option<f64> {
    let at = |delay: f64| points.iter().find(|point| point.x == delay);
    let (low, high) = (at(600.0)?, at(1400.0)?);
    Some(threads as f64 * (1e3 / high.y - 1e3 / low.y) / (high.x - low.x))
}

pub(super) const MEMORY: Experiment = Experiment {
    name: "memory",
    about: "bytes for a record, in ordinary memory and in the medium, at several sizes",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::MEDIUM,
        Setting::PRESIZE,
        Setting::HUGE_PAGES,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
    ],
    run: memory,
};

fn memory(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 8_000_000, rounds: 1, quick_keys: 2_000_000, quick_rounds: 1 };
    let usual = [
        "dash-eh",
        "dash-eh-4-stash",
        "dash-lh",
        "cceh",
        "level",
        "p-clht",
        "papaya",
        "dashmap",
        "scc-hashmap",
        "scc-hashindex",
        "rwlock-hashbrown",
    ];
    let base = Config {
        plan: Plan::Phases(vec![Phase::Insert]),
        latency: false,
        counts: false,
        limits: false,
        // Other programs do not change the space that a table takes.
        quiet: Quiet::NOT_NEEDED,
        ..settings.config("memory", &usual, scale)
    };
    let sizes = sizes(base.keys);
    let mut drives = Vec::new();
    for &keys in &sizes {
        drives.push((keys, drive(&Config { keys, ..base.clone() }, out)?));
    }
    let columns: Vec<_> = sizes.iter().map(|keys| format!("{} keys", grouped(*keys))).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let title = "Bytes for a record: in ordinary memory + in the medium";
    let mut grid = Grid::new(title, &columns);
    let mut series = Vec::new();
    for subject in &drives[0].1.subjects {
        let mut line = Series { name: subject.name.to_owned(), points: Vec::new() };
        let mut cells = Vec::new();
        for (keys, driven) in &drives {
            let record = driven.subject(subject.name).map(|one| &one.phases[0].summary);
            let each = |bytes: Option<u64>| bytes.unwrap_or(0) as f64 / *keys as f64;
            let (dram, pm) =
                record.map_or((0.0, 0.0), |one| (each(one.dram_bytes), each(one.pm_bytes)));
            cells.push(format!("{dram:.1} + {pm:.1}"));
            line.points.push(Point::new(*keys as f64, dram + pm));
        }
        grid.push(subject.name, cells);
        series.push(line);
    }
    let plot = Plot {
        title: "Bytes for a record".into(),
        x: "keys".into(),
        y: "bytes".into(),
        log_x: true,
        marks: Marks::Lines,
        series,
    };
    Ok(Report {
        experiment: "memory",
        title: "what a record takes".into(),
        about: circumstances(&base),
        figures: Vec::new(),
        tables: vec![grid],
        plots: vec![plot],
        notes: vec![
            "Tables that report no bytes are measured by what the process has allocated since they \
             were built."
                .into(),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_count_persists_of_an_operation() {
        // Two persists an operation, and 100 ns besides.
        let point = |delay: f64| Point::new(delay, 1e3 / (100.0 + 2.0 * delay));
        let points = [point(0.0), point(600.0), point(1400.0)];
        assert!((slope(&points, 1).unwrap() - 2.0).abs() < 1e-9);
        // Two threads do twice as many in the same time.
        let twice = points.map(|point| Point { y: 2.0 * point.y, ..point });
        assert!((slope(&twice, 2).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(slope(&points[..2], 1), None);
    }
}
