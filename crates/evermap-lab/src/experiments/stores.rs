//! Evermap's store beside other projects', at equal durability: acknowledged changes survive the
//! death of the process.

use super::definition::{Experiment, drive};
use super::killed::{ChildLine, Job, KillPlan};
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::results::{DriveReport, PhaseReport, SubjectReport};
use crate::driver::{Config, Plan};
use crate::experiments::tables::{PLACES, bars, grids, notes_of_all, times};
use crate::registry::subject;
use crate::report::interval::median;
use crate::report::model::cell;
use crate::report::{Grid, Marks, Plot, Point, Report, Row, Series};
use crate::report::{Output, Record, counted, grouped};
use crate::subject::{MediumKind, Setup};
use crate::workload::{Act, KeyValueLengths, Lengths, Part};

pub(super) const STORES: Experiment = Experiment {
    name: "stores",
    about: "Evermap's store beside LMDB, redb, fjall and RocksDB: speed, space, kills",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::OPS,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::NO_LATENCIES,
    ],
    run: stores,
};

/// Evermap's stores.
const OURS: [&str; 2] = ["evermap", "evermap-ordered"];
/// Other projects' stores, at the weakest level at which acknowledged changes survive the death of
/// the process.
const THEIRS: [&str; 4] = ["lmdb-process", "redb-power", "fjall-process", "rocksdb-process"];
/// The store whose scans are the goal of Evermap's.
const SCANNER: &str = "lmdb-process";

const INSERT: &str = "insert";
const GET: &str = "get";
const MISS: &str = "get absent";
const SCAN: &str = "scan of 100";
const OVERWRITE: &str = "overwrite";

/// The number of pairs of a scan.
const PAIRS: u16 = 100;
/// The number of lookups for one insertion or one overwrite.
const READS: u64 = 4;
/// The number of insertions for one scan.
const WRITES_PER_SCAN: u64 = 10;

fn stores(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 5_000_000, rounds: 7, quick_keys: 20_000, quick_rounds: 1 };
    let usual = [&OURS[..], &THEIRS].concat();
    let config = settings.config("stores", &usual, scale);
    let lengths = KeyValueLengths {
        keys: settings.key_bytes.unwrap_or(Lengths::Fixed(16)),
        values: settings.value_bytes.unwrap_or(Lengths::Fixed(256)),
    };
    let most = settings.threads.unwrap_or(2);
    let base = Config {
        medium: MediumKind::Process,
        lengths: Some(lengths),
        threads: most,
        counts: false,
        limits: false,
        ..config
    };
    let (indexes, mut notes) = those_that_open(settings, &base, &usual)?;
    let base = Config { indexes, ..base };
    let mut thread_counts = vec![1, most];
    thread_counts.dedup();
    let sizes = match settings.keys {
        None if !settings.quick => vec![1_000_000, base.keys],
        _ => vec![base.keys],
    };
    let mut report = Report {
        experiment: "stores",
        title: "Evermap's store beside other projects'".into(),
        about: circumstances(&Config { keys: sizes[sizes.len() - 1], ..base.clone() }),
        ..Report::default()
    };
    let mut goals = Grid::new("Goals, missed ones first", &["goal", "here", ""]);
    let mut drives = Vec::new();
    for &keys in &sizes {
        let plan = plan(settings, keys, &thread_counts)?;
        let config = Config { keys, plan, ..base.clone() };
        let driven = drive(&config, out)?;
        for &threads in &thread_counts {
            let with_threads = with_threads(&driven, threads);
            let title = format!("{} records, {}", grouped(keys), counted(threads, "thread"));
            goals.rows.extend(goals_of(&with_threads, &title));
            for grid in grids(&with_threads) {
                if grid.title != PLACES {
                    let title = format!("{title}: {}", grid.title);
                    report.tables.push(Grid { title, ..grid });
                } else if report.tables.iter().all(|table| table.title != PLACES) {
                    // The places do not change.
                    report.tables.push(grid);
                }
            }
            report.plots.push(bars(&with_threads, &format!("Throughput: {title}")));
        }
        drives.push((keys, driven));
    }
    // A stable sort keeps the order otherwise.
    goals.rows.sort_by_key(|row| row.1[2] != MISSED);
    if !goals.rows.is_empty() {
        report.tables.insert(0, goals);
    }
    report.tables.push(pairs(&drives));
    match &settings.program {
        None => {
            notes.push("space and opening were not measured: there is no program to kill".into())
        }
        Some(_) => {
            let results = kill(settings, &base, &sizes, out)?;
            let (tables, plots) = tabulate(&results, &sizes);
            report.tables.extend(tables);
            report.plots.extend(plots);
        }
    }
    if base.indexes.iter().any(|name| name == "redb-power") {
        notes.push(
            "redb-power: the only commits of redb that survive a kill are synced; in a \
             directory in memory syncing costs next to nothing"
                .into(),
        );
    }
    notes.extend(notes_of_all(drives.iter().map(|(_, driven)| driven)));
    report.notes = notes;
    Ok(report)
}

/// Returns those stores of `usual` that can be measured, and notes about the missing ones. A store
/// that the user names is required.
pub(super) fn those_that_open(
    settings: &Settings,
    config: &Config,
    usual: &[&str],
) -> Result<(Vec<String>, Vec<String>), LabError> {
    if settings.indexes.is_some() {
        return Ok((config.indexes.clone(), Vec::new()));
    }
    let setup = Setup { keys: 1, ..config.check(config.indexes.len())? };
    let (mut there, mut notes) = (Vec::new(), Vec::new());
    for name in usual.iter().map(|&name| name.to_owned()) {
        if !config.indexes.contains(&name) {
            notes.push(format!(
                "{name} is missing: this program was built without `--features stores`"
            ));
            continue;
        }
        match subject(&name)?.build(&setup) {
            Ok(_) => there.push(name),
            Err(error) => notes.push(format!("{name} is missing: {error}")),
        }
    }
    Ok((there, notes))
}

/// Returns what is measured of a filled store: by one thread, then by all.
fn plan(settings: &Settings, keys: u64, thread_counts: &[usize]) -> Result<Plan, LabError> {
    // Each of the kinds has half of the keys.
    let most = Part::most_ops(keys) / thread_counts.len() as u64;
    let usual = if settings.quick { 2000 } else { 100_000 };
    let writes = settings.ops.unwrap_or(usual.min(most));
    if writes > most {
        return Err(LabError::Config(format!(
            "{writes} operations are too many for {keys} keys: take at most {most}"
        )));
    }
    let reads = (READS * writes).min(most);
    let scans = writes.div_ceil(WRITES_PER_SCAN);
    let mut parts = Vec::new();
    for (nth, &threads) in thread_counts.iter().enumerate() {
        let part = |name, act, ops| Part { name, act, ops, threads, after: nth as u64 * ops };
        parts.extend([
            part(INSERT, Act::Insert, writes),
            part(GET, Act::Positive, reads),
            part(MISS, Act::Negative, reads),
            part(SCAN, Act::Scan(PAIRS), scans),
            part(OVERWRITE, Act::Update, writes),
        ]);
    }
    Ok(Plan::Parts(parts))
}

/// Returns what was measured with this number of threads. The space that a store takes is measured
/// in a child process.
fn with_threads(driven: &DriveReport, threads: usize) -> DriveReport {
    let spaceless = |phase: &PhaseReport| PhaseReport {
        summary: Record {
            load_factor: None,
            dram_bytes: None,
            pm_bytes: None,
            ..phase.summary.clone()
        },
        ..phase.clone()
    };
    let of = |subject: &SubjectReport| {
        let phases = subject.phases.iter().filter(|phase| phase.summary.threads == threads);
        SubjectReport { phases: phases.map(spaceless).collect(), ..subject.clone() }
    };
    DriveReport { subjects: driven.subjects.iter().map(of).collect(), limits: None }
}

const MISSED: &str = "missed";

/// Returns the goals of this project, and what was measured.
fn goals_of(with_threads: &DriveReport, title: &str) -> Vec<Row> {
    let fastest = |phase: &str| {
        let speed = |subject: &&SubjectReport| {
            subject.phase(phase).and_then(|phase| phase.summary.mops).unwrap_or(0.0)
        };
        let rivals = with_threads.subjects.iter().filter(|subject| subject.rival);
        rivals.max_by(|one, other| speed(one).total_cmp(&speed(other))).map(|best| best.name)
    };
    let mut rows = Vec::new();
    let mut goal = |of: &str, to: Option<&str>, phase: &str, factor: f64| {
        let Some(ratio) = to.and_then(|to| with_threads.ratio(of, to, phase)) else { return };
        let reached = if ratio.median >= factor { "reached" } else { MISSED };
        rows.push((
            format!("{title}: {phase}, {of} / {}", ratio.to),
            vec![format!("at least {factor}"), times(&ratio), reached.to_owned()],
        ));
    };
    for of in OURS {
        for (phase, factor) in [(INSERT, 10.0), (OVERWRITE, 10.0), (GET, 2.0), (MISS, 2.0)] {
            goal(of, fastest(phase), phase, factor);
        }
    }
    goal("evermap-ordered", Some(SCANNER), SCAN, 1.0);
    rows
}

/// Returns the time of one pair of a scan.
fn pairs(drives: &[(u64, DriveReport)]) -> Grid {
    let mut grid =
        Grid::new(format!("A pair of {PAIRS} that are scanned, ns, all threads together"), &[]);
    let Some((_, first)) = drives.first() else { return grid };
    for subject in &first.subjects {
        let mut cells = Vec::new();
        for (keys, driven) in drives {
            let phases = driven.subject(subject.name).map(|subject| &subject.phases[..]);
            for phase in phases.unwrap_or(&[]).iter().filter(|phase| phase.name == SCAN) {
                let threads = phase.summary.threads;
                let column = format!("{} records, {}", grouped(*keys), counted(threads, "thread"));
                if !grid.columns.contains(&column) {
                    grid.columns.push(column);
                }
                let ns = phase.summary.mops.map(|mops| 1e3 / mops / f64::from(PAIRS));
                cells.push(cell(ns, 1));
            }
        }
        grid.push(subject.name, cells);
    }
    grid
}

/// The measurements of a store in processes that were killed.
struct KillResults {
    index: &'static str,
    /// Bytes of a record on disk and in memory: after loading, and after every record was
    /// overwritten.
    space: Vec<(f64, f64)>,
    /// Milliseconds to the first lookups.
    gets: Vec<f64>,
    /// Milliseconds to the end of the first scans.
    scans: Vec<f64>,
}

/// Fills every store in a process that is killed while it inserts, then opens it several times in
/// others that are killed too.
fn kill(
    settings: &Settings,
    config: &Config,
    sizes: &[u64],
    out: &mut dyn Output,
) -> Result<Vec<KillResults>, LabError> {
    let mut results = Vec::new();
    out.begin((sizes.len() * config.indexes.len()) as u64);
    for &keys in sizes {
        let plan = KillPlan::new(settings, config.lengths, keys)?;
        for name in &config.indexes {
            let entry = subject(name)?;
            out.step(&format!("stores: {name}, {keys} keys, killed"));
            let mut result = KillResults {
                index: entry.name,
                space: Vec::new(),
                gets: Vec::new(),
                scans: Vec::new(),
            };
            let left = plan.place();
            let mut measured = plan.run_and_kill(&entry, keys, &left, Job::Overwrite)?;
            for times in 0..config.rounds as u64 {
                config.quiet.wait(out);
                measured.extend(plan.run_and_kill(&entry, keys, &left, Job::Open(times))?);
            }
            for line in measured {
                match line {
                    ChildLine::Space { disk, dram } => {
                        result.space.push((disk / keys as f64, dram / keys as f64));
                    }
                    ChildLine::FirstAnswers { get, scan } => {
                        result.gets.push(get * 1e3);
                        result.scans.extend(scan.map(|seconds| seconds * 1e3));
                    }
                }
            }
            let record = |phase| plan.record("stores", &entry, keys, phase);
            for (phase, &(disk, dram)) in ["loaded", "overwritten"].into_iter().zip(&result.space) {
                let bytes = |each: f64| Some((each * keys as f64) as u64);
                out.record(&Record {
                    dram_bytes: bytes(dram),
                    pm_bytes: bytes(disk),
                    ..record(phase)
                })?;
            }
            for (phase, all) in [("open", &result.gets), ("open and scan", &result.scans)] {
                for (round, ms) in all.iter().enumerate() {
                    out.record(&Record {
                        round: Some(round),
                        seconds: Some(ms / 1e3),
                        ops: 1,
                        ..record(phase)
                    })?;
                }
            }
            results.push(result);
        }
    }
    Ok(results)
}

fn tabulate(results: &[KillResults], sizes: &[u64]) -> (Vec<Grid>, Vec<Plot>) {
    let mut space = Grid::new("Bytes of a record", &[]);
    let mut open = Grid::new("Milliseconds from opening, after a kill; medians", &[]);
    let mut opening = Plot {
        title: "From opening after a kill to the first answer".into(),
        x: String::new(),
        y: "ms".into(),
        log_x: false,
        marks: Marks::Bars(
            sizes.iter().map(|keys| format!("{} records", grouped(*keys))).collect(),
        ),
        series: Vec::new(),
    };
    let mut disk = Plot {
        title: "On disk after every record was overwritten".into(),
        y: "bytes of a record".into(),
        ..opening.clone()
    };
    for keys in sizes {
        for what in ["on disk, loaded", "overwritten", "in memory, loaded", "overwritten"] {
            space.columns.push(format!("{} records: {what}", grouped(*keys)));
        }
        for what in ["first get", "first scan"] {
            open.columns.push(format!("{} records: {what}", grouped(*keys)));
        }
    }
    let mut names: Vec<_> = results.iter().map(|result| result.index).collect();
    names.dedup();
    names.truncate(results.len() / sizes.len().max(1));
    for name in names {
        let own = || results.iter().filter(|result| result.index == name);
        let bytes = |result: &KillResults| {
            let of = |at: usize| result.space.get(at).copied().unzip();
            let ((loaded, small), (overwritten, large)) = (of(0), of(1));
            [loaded, overwritten, small, large].map(|bytes| cell(bytes, 0))
        };
        space.push(name, own().flat_map(bytes).collect());
        let soon =
            |result: &KillResults| [&result.gets, &result.scans].map(|ms| cell(median(ms), 2));
        open.push(name, own().flat_map(soon).collect());
        let series = |figure: &dyn Fn(&KillResults) -> Option<f64>| Series {
            name: name.to_owned(),
            points: own()
                .enumerate()
                .filter_map(|(at, result)| Some(Point::new(at as f64, figure(result)?)))
                .collect(),
        };
        opening.series.push(series(&|result| median(&result.gets)));
        disk.series.push(series(&|result| Some(result.space.get(1)?.0)));
    }
    (vec![space, open], vec![opening, disk])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Kept;

    fn measured(name: &'static str, rival: bool, mops: f64) -> SubjectReport {
        let phase = |name| {
            let record = Record { mops: Some(mops), threads: 1, ..Record::default() };
            PhaseReport { name, summary: record.clone(), rounds: vec![record] }
        };
        let phases = [INSERT, GET, MISS, SCAN, OVERWRITE].map(phase).to_vec();
        SubjectReport { name, rival, repeated: 0, phases }
    }

    #[test]
    fn goals_are_ratios_to_the_best_of_the_others() {
        let subjects = vec![
            measured("evermap", false, 5.0),
            measured("evermap-ordered", false, 22.0),
            measured("lmdb-process", true, 1.0),
            measured("fjall-process", true, 2.0),
        ];
        let goals = goals_of(&DriveReport { subjects, limits: None }, "here");
        let cells = |of: &str, phase: &str| {
            let name = format!("here: {phase}, {of} / ");
            let found = goals.iter().find(|row| row.0.starts_with(&name)).unwrap();
            (found.0[name.len()..].to_owned(), found.1.clone())
        };
        let (best, of_ours) = cells("evermap", GET);
        assert_eq!(
            (&best[..], &of_ours[1][..], &of_ours[2][..]),
            ("fjall-process", "2.50", "reached")
        );
        assert_eq!(cells("evermap", INSERT).1[2], MISSED);
        assert_eq!(cells("evermap-ordered", OVERWRITE).1[2], "reached");
        let (scanner, scan) = cells("evermap-ordered", SCAN);
        assert_eq!((&scanner[..], &scan[1][..]), ("lmdb-process", "22.00"));
        assert_eq!(goals.len(), 9);
    }

    /// Everything that needs no child process, with and without the others.
    #[test]
    fn stores_are_compared() {
        let settings = Settings {
            quick: true,
            keys: Some(4000),
            ops: Some(200),
            no_latencies: true,
            ..Settings::default()
        };
        let report = STORES.run(&settings, &mut Kept::default()).unwrap();
        let missing: Vec<_> =
            report.notes.iter().filter(|note| note.contains(" is missing: ")).collect();
        let others = THEIRS.len() - missing.len();
        if cfg!(not(feature = "stores")) {
            assert_eq!(others, 0);
            assert!(missing.iter().all(|note| note.contains("without `--features stores`")));
        }
        for title in ["4,000 records, 1 thread: Million", "4,000 records, 2 threads: Million"] {
            let table = report.tables.iter().find(|table| table.title.starts_with(title)).unwrap();
            assert_eq!(table.rows.len(), 2 + others, "{table:?}");
            let scan = table.columns.iter().position(|column| column == SCAN).unwrap();
            // Tables without an order are not asked to scan.
            assert_eq!(table.rows.iter().filter(|row| row.1[scan] == "-").count(), 1);
        }
        assert_eq!(report.tables[0].title.contains("Goals"), others > 0);
        assert_eq!(report.plots.len(), 2);
        assert!(report.notes.iter().any(|note| note.contains("no program to kill")));
        let pairs = report.tables.last().unwrap();
        assert_eq!((pairs.columns.len(), pairs.rows.len()), (2, 2 + others));
    }

    #[test]
    fn more_operations_than_keys_are_refused() {
        let settings = Settings { keys: Some(1000), ops: Some(251), ..Settings::default() };
        let error = STORES.run(&settings, &mut Kept::default()).unwrap_err().to_string();
        assert!(error.contains("take at most 250"), "{error}");
    }

    #[test]
    fn space_and_openings_are_tabulated() {
        let result = |index, ms: f64, scans| KillResults {
            index,
            space: vec![(300.0, 10.0), (400.0, 11.0)],
            gets: vec![ms, ms + 2.0, ms + 1.0],
            scans,
        };
        let results = [
            result("a", 1.0, vec![]),
            result("b", 2.0, vec![5.0]),
            result("a", 3.0, vec![]),
            result("b", 4.0, vec![7.0]),
        ];
        let (tables, plots) = tabulate(&results, &[10, 20]);
        let row = |at: usize, name: &str| {
            let row = tables[at].rows.iter().find(|row| row.0 == name).unwrap();
            row.1.join(" ")
        };
        assert_eq!(row(0, "a"), "300 400 10 11 300 400 10 11");
        assert_eq!((&row(1, "a")[..], &row(1, "b")[..]), ("2.00 - 4.00 -", "3.00 5.00 5.00 7.00"));
        assert!(tables.iter().all(|table| table.rows.len() == 2));
        assert!(plots.iter().all(|plot| plot.series.len() == 2));
        assert_eq!(plots[0].series[1].points, [Point::new(0.0, 3.0), Point::new(1.0, 5.0)]);
    }
}
