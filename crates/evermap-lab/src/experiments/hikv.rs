//! HiKV's design beside its variants and beside Evermap's store: the ablations of its paper.

use evermap_pm::medium::Speed;

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::tables::{bars, grids, latency, mark, notes_of_all, speed};
use crate::report::{Figure, Grid, Marks, Plot, Point, Report, Series};
use crate::report::{Output, counted};
use crate::subject::MediumKind;
use crate::workload::{Blend, Distribution, KeyValueLengths, Lengths, Mix, Phase, Zipf};

pub(super) const HIKV: Experiment = Experiment {
    name: "hikv",
    about: "HiKV's design and its variants: all operations, and puts on memory of several speeds",
    takes: &[
        Setting::INDEX,
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

/// The variants. Evermap's store is added on media that it supports.
const VARIANTS: [&str; 5] = ["hikv", "hikv-1-1", "hikv-sync", "hikv-par", "hikv-wal"];
/// What the sweep compares: the design, and what each of its ideas is measured against.
const SWEPT: [&str; 4] = ["hikv", "hikv-sync", "hikv-par", "hikv-wal"];
/// Nanoseconds of a persist, as in the paper.
const DELAYS: [u64; 7] = [50, 200, 400, 600, 800, 1000, 1400];

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

fn hikv(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 1_000_000, rounds: 5, quick_keys: 100_000, quick_rounds: 1 };
    let medium = settings.medium(MediumKind::Process);
    let mut usual = VARIANTS.to_vec();
    // The store flushes nothing, so it supports no other medium.
    if matches!(medium, MediumKind::Dram | MediumKind::Process) {
        usual.extend(["evermap", "evermap-ordered"]);
    }
    let config = settings.config("hikv", &usual, scale);
    let lengths = KeyValueLengths {
        keys: settings.key_bytes.unwrap_or(Lengths::Fixed(16)),
        values: settings.value_bytes.unwrap_or(Lengths::Fixed(256)),
    };
    let config = Config { medium, lengths: Some(lengths), limits: false, ..config };
    let phases = vec![Phase::Insert, Phase::Positive, Phase::Update, Phase::Delete];
    let changes = drive(&Config { plan: Plan::Phases(phases), ..config.clone() }, out)?;
    let scans = scans(&config, out)?;
    let sweep = sweep(settings, &config, out)?;
    let (latencies, plot) = sweep_tables(&sweep, config.threads);
    let mut tables = grids(&changes);
    tables.extend(scans.as_ref().map(scan_table));
    tables.push(latencies);
    let drives = [&changes].into_iter().chain(&scans).chain(sweep.iter().map(|one| &one.1));
    let mut notes = vec![company(config.threads)];
    notes.extend(notes_of_all(drives));
    Ok(Report {
        experiment: "hikv",
        title: "a hash index in the medium, a B+tree beside it".into(),
        about: circumstances(&config),
        figures: figures(&changes, scans.as_ref(), &sweep, config.threads),
        tables,
        plots: vec![bars(&changes, "Throughput by phase"), plot],
        notes,
    })
}

/// Describes how threads share the processors, without which the figures cannot be interpreted.
fn company(threads: usize) -> String {
    format!(
        "{} processors for {}, the backends (all but hikv-sync) and the thread \
         that moves ranges (hikv-par). In the paper 16 threads had 16 cores. If threads share \
         processors, work that is passed to another thread still delays its sender, so \
         asynchronous updates save less than in the paper, or nothing.",
        Settings::processors(),
        counted(threads, "serving thread"),
    )
}

/// Measures scans of the stores that keep an order. Returns `None` if none does.
fn scans(config: &Config, out: &mut dyn Output) -> Result<Option<DriveReport>, LabError> {
    let indexes = super::ycsb::ordered(config)?;
    if indexes.is_empty() {
        return Ok(None);
    }
    // A scan costs as much as many lookups.
    let ops = (config.keys / 10).max(1);
    let blend = Blend { mix: SCANS, keys: SCANS.keys, theta: Zipf::YCSB, ops };
    drive(&Config { indexes, plan: Plan::Blend(blend), ..config.clone() }, out).map(Some)
}

/// Measures puts of the variants on memory of several speeds.
fn sweep(
    settings: &Settings,
    config: &Config,
    out: &mut dyn Output,
) -> Result<Vec<(u64, DriveReport)>, LabError> {
    let base = Config {
        indexes: settings.indexes(&SWEPT),
        medium: MediumKind::Emulated,
        plan: Plan::Phases(vec![Phase::Insert]),
        latency: false,
        counts: false,
        ..config.clone()
    };
    let at = |persist_ns| {
        let speed = Speed { persist_ns, ..base.speed };
        Ok((persist_ns, drive(&Config { speed, ..base.clone() }, out)?))
    };
    DELAYS.into_iter().map(at).collect()
}

/// A mean time, in nanoseconds.
#[derive(Clone, Copy)]
struct Mean {
    ns: f64,
    /// Whether other programs disturbed it.
    void: bool,
}

impl Mean {
    /// Returns the mean time of an operation of `index` in `phase`.
    fn of(driven: &DriveReport, index: &str, phase: &str, threads: usize) -> Option<Self> {
        let record = &driven.subject(index)?.phase(phase)?.summary;
        Some(Mean { ns: 1e3 * threads as f64 / record.mops?, void: record.void })
    }

    /// Formats a figure computed from this mean and another, marked if one of them was disturbed.
    fn with(self, other: Mean, figure: impl Fn(f64, f64) -> f64) -> String {
        format!("{:.1}{}", figure(self.ns, other.ns), mark(self.void || other.void))
    }
}

fn sweep_tables(sweep: &[(u64, DriveReport)], threads: usize) -> (Grid, Plot) {
    let columns: Vec<_> = DELAYS.iter().map(|delay| format!("{delay} ns")).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let mut grid = Grid::new("Mean time of a Put, ns, by what a persist takes", &columns);
    let mut series = Vec::new();
    for subject in sweep.first().iter().flat_map(|(_, driven)| &driven.subjects) {
        let means: Vec<_> = sweep
            .iter()
            .map(|(delay, driven)| (*delay, Mean::of(driven, subject.name, "insert", threads)))
            .collect();
        let cell = |mean: Option<Mean>| {
            mean.map_or("-".into(), |mean| format!("{:.0}{}", mean.ns, mark(mean.void)))
        };
        grid.push(subject.name, means.iter().map(|&(_, mean)| cell(mean)).collect());
        let points = means.iter().filter_map(|&(x, mean)| {
            let mean = mean?;
            Some(Point { void: mean.void, ..Point::new(x as f64, mean.ns) })
        });
        series.push(Series { name: subject.name.to_owned(), points: points.collect() });
    }
    let plot = Plot {
        title: "Put".into(),
        x: "ns a persist takes at least".into(),
        y: "mean time, ns".into(),
        log_x: false,
        marks: Marks::Lines,
        series,
    };
    (grid, plot)
}

fn scan_table(scans: &DriveReport) -> Grid {
    let title = "Scans of 1 to 100 pairs";
    let columns = ["million scans/s", "median", "99th percentile"];
    let mut grid = Grid::new(title, &columns);
    for subject in &scans.subjects {
        let Some(phase) = subject.phase(SCANS.name) else { continue };
        let record = &phase.summary;
        let cell = |figure: Option<u64>| figure.map_or("-".into(), |ns| latency(ns, record.void));
        let speed = speed(record).unwrap_or_else(|| "-".into());
        grid.push(subject.name, vec![speed, cell(record.p50_ns), cell(record.p99_ns)]);
    }
    grid
}

/// Returns the figures of the paper beside those measured here.
fn figures(
    changes: &DriveReport,
    scans: Option<&DriveReport>,
    sweep: &[(u64, DriveReport)],
    threads: usize,
) -> Vec<Figure> {
    let persists = |index: &str, paper: &str| {
        let fences = |phase| changes.subject(index)?.phase(phase)?.summary.fences_per_op;
        let all: Option<Vec<_>> = ["insert", "update", "delete"].into_iter().map(fences).collect();
        let cell = |all: Vec<f64>| {
            let each: Vec<_> = all.iter().map(|fences| format!("{fences:.2}")).collect();
            each.join(" / ")
        };
        Figure {
            what: format!("persists of a Put / an Update / a Delete: {index}"),
            paper: paper.to_owned(),
            here: all.map(cell),
        }
    };
    let saved = |other: &str, paper: &str| {
        let each: Vec<_> = sweep
            .iter()
            .filter_map(|(_, driven)| {
                let own = Mean::of(driven, "hikv", "insert", threads)?;
                Some(own.with(Mean::of(driven, other, "insert", threads)?, reduction))
            })
            .collect();
        let ends = each.first().zip(each.last());
        Figure {
            what: format!(
                "Put: by how much less time hikv takes than {other}, at {} and at {} ns, %",
                DELAYS[0],
                DELAYS[DELAYS.len() - 1]
            ),
            paper: paper.to_owned(),
            here: ends.map(|(first, last)| format!("{first} and {last}")),
        }
    };
    let scan = scans.and_then(|scans| Mean::of(scans, "hikv", SCANS.name, threads));
    let get = Mean::of(changes, "hikv", "positive", threads);
    vec![
        persists("hikv", "2 / 2 / 1"),
        persists("hikv-wal", "3 for a Put"),
        saved("hikv-sync", "46.7 to 57.8"),
        saved("hikv-par", "11.2 to 17.4"),
        saved("hikv-wal", "up to 27.4, at 1400 ns"),
        Figure {
            what: "a Scan takes how many times a Get: hikv".into(),
            paper: "14".into(),
            here: scan.zip(get).map(|(scan, get)| scan.with(get, |scan, get| scan / get)),
        },
    ]
}

/// Returns by how many percent `own` is less than `other`.
fn reduction(own: f64, other: f64) -> f64 {
    100.0 * (1.0 - own / other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Kept;

    #[test]
    fn reductions_are_in_percent() {
        assert_eq!(reduction(50.0, 100.0), 50.0);
        assert_eq!(reduction(150.0, 100.0), -50.0);
    }

    /// Everything is measured, and the counts, which do not depend on the machine, are those of the
    /// paper.
    #[test]
    fn the_ablations_are_reported() {
        let settings = Settings {
            quick: true,
            keys: Some(1000),
            medium: Some(MediumKind::Dram),
            no_latencies: true,
            ..Settings::default()
        };
        let report = HIKV.run(&settings, &mut Kept::default()).unwrap();
        assert!(report.figures.iter().all(|figure| figure.here.is_some()), "{:?}", report.figures);
        let persists = |at: usize| {
            let here = report.figures[at].here.clone().unwrap();
            here.split(" / ").map(|each| each.parse::<f64>().unwrap().round()).collect::<Vec<_>>()
        };
        assert_eq!(persists(0), [2.0, 2.0, 1.0]);
        assert_eq!(persists(1), [3.0, 3.0, 2.0]);
        let rows = |title: &str| {
            let table = report.tables.iter().find(|table| table.title.contains(title)).unwrap();
            table.rows.iter().map(|row| row.0.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(rows("Scans of"), [&VARIANTS[..], &["evermap-ordered"]].concat());
        assert_eq!(rows("Mean time of a Put"), SWEPT);
        assert!(rows("Million operations").contains(&"evermap"));
        assert!(report.notes[0].contains("processors for 1 serving thread,"));
    }
}
