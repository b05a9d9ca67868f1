//! Evermap's store beside other projects', at the level at which acknowledged changes survive a
//! loss of power: by the number of threads that write, and what is written to the disk for that.

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use super::stores::those_that_open;
use super::tables::{grids, notes_of_all, times};
use crate::LabError;
use crate::driver::results::{DriveReport, SubjectReport};
use crate::driver::{Config, Plan};
use crate::machine;
use crate::report::model::cell;
use crate::report::{Grid, Output, Report};
use crate::subject::MediumKind;
use crate::workload::bytes::mean_bytes;
use crate::workload::{Act, KeyValueLengths, Lengths, Part, Phase};

pub(super) const DURABLE: Experiment = Experiment {
    name: "durable",
    about: "writes that survive a loss of power, by 1, 8 and 64 threads, beside other stores",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::ROUNDS,
        Setting::OPS,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::NO_LATENCIES,
    ],
    run: durable,
};

/// The store whose rate the others are compared with that promise less.
const PROCESS: &str = "evermap";
/// Evermap's stores: what is promised when a change is acknowledged differs.
const OURS: [&str; 4] = ["evermap-log-memory", "evermap-log", "evermap-log-async", PROCESS];
/// Other projects' stores: every commit is synced.
const THEIRS: [&str; 6] =
    ["lmdb-power", "redb-power", "fjall-power", "rocksdb-power", "sled-power", "sqlite-power"];

/// What is measured, by the number of threads.
const INSERTS: [(usize, &str); 3] =
    [(1, "insert, 1 thread"), (8, "insert, 8 threads"), (64, "insert, 64 threads")];
const OVERWRITES: [(usize, &str); 3] =
    [(1, "overwrite, 1 thread"), (8, "overwrite, 8 threads"), (64, "overwrite, 64 threads")];
const GETS: [(usize, &str); 1] = [(1, "get, 1 thread")];

/// The number of threads that write while the bytes that reach the disk are counted.
const COUNTED_THREADS: usize = 8;

fn durable(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 200_000, rounds: 7, quick_keys: 8_000, quick_rounds: 1 };
    let usual = [&OURS[..], &THEIRS].concat();
    let config = settings.config("durable", &usual, scale);
    let lengths = KeyValueLengths {
        keys: settings.key_bytes.unwrap_or(Lengths::Fixed(16)),
        values: settings.value_bytes.unwrap_or(Lengths::Fixed(256)),
    };
    let base = Config {
        medium: MediumKind::Process,
        lengths: Some(lengths),
        threads: INSERTS[INSERTS.len() - 1].0,
        counts: false,
        limits: false,
        ..config
    };
    let (indexes, mut notes) = those_that_open(settings, &base, &usual)?;
    let base = Config { indexes, ..base };
    let driven = drive(&Config { plan: plan(settings, base.keys)?, ..base.clone() }, out)?;
    let mut report = Report {
        experiment: "durable",
        title: "Writes that survive a loss of power".into(),
        about: circumstances(&base),
        ..Report::default()
    };
    report.tables.push(beside_others(&driven));
    report.tables.extend(grids(&driven));
    report.tables.push(written(&base, lengths, out)?);
    if base.location.as_deref().is_some_and(machine::is_in_memory) {
        notes.push("the files are in memory, where a sync costs next to nothing".into());
    }
    notes.extend(notes_of_all([&driven].into_iter()));
    report.notes = notes;
    Ok(report)
}

/// Inserts and overwrites by more and more threads, and lookups.
fn plan(settings: &Settings, keys: u64) -> Result<Plan, LabError> {
    let usual = if settings.quick { 200 } else { 4_000 };
    let most = Part::most_ops(keys) / INSERTS.len() as u64;
    // Threads that share a sync are measured for as long as one that waits for it.
    let ops = |threads: usize| (settings.ops.unwrap_or(usual) * threads.min(4) as u64).min(most);
    let mut parts = Vec::new();
    for (act, named) in [(Act::Insert, &INSERTS[..]), (Act::Update, &OVERWRITES)] {
        let mut after = 0;
        for &(threads, name) in named {
            parts.push(Part { name, act, ops: ops(threads), threads, after });
            after += ops(threads);
        }
    }
    let gets = Part::most_ops(keys).min(if settings.quick { 2_000 } else { 50_000 });
    let reads =
        GETS.map(|(threads, name)| Part { name, act: Act::Positive, ops: gets, threads, after: 0 });
    parts.extend(reads);
    Ok(Plan::Parts(parts))
}

/// Returns how many times as fast Evermap's stores are as the fastest other one, and what durable
/// ones are of the one that survives the death of the process only.
fn beside_others(driven: &DriveReport) -> Grid {
    let mut grid = Grid::new(
        "Times as fast as the best of the others, and as `evermap`",
        &["others", PROCESS],
    );
    for of in OURS {
        for (_, phase) in INSERTS.into_iter().chain(OVERWRITES).chain(GETS) {
            let speed = |subject: &&SubjectReport| {
                subject.phase(phase).and_then(|phase| phase.summary.mops).unwrap_or(0.0)
            };
            let rivals = driven.subjects.iter().filter(|subject| subject.rival);
            let best = rivals.max_by(|one, other| speed(one).total_cmp(&speed(other)));
            let to_best = best.and_then(|best| driven.ratio(of, best.name, phase));
            let to_process = driven.ratio(of, PROCESS, phase).filter(|_| of != PROCESS);
            if to_best.is_none() && to_process.is_none() {
                continue;
            }
            let beside = |ratio| format!("{} ({})", times(&ratio), ratio.to);
            let cells = [to_best.map(beside), to_process.map(|ratio| times(&ratio))];
            grid.push(format!("{of}: {phase}"), cells.map(Option::unwrap_or_default).to_vec());
        }
    }
    grid
}

/// Returns how many bytes are written to the disk for a byte that each store is given. Those that
/// other programs write are counted too.
fn written(
    config: &Config,
    lengths: KeyValueLengths,
    out: &mut dyn Output,
) -> Result<Grid, LabError> {
    let location = &config.check(config.indexes.len())?.location;
    let title = format!("Written to the disk, inserted by {COUNTED_THREADS} threads");
    let mut grid = Grid::new(title, &["bytes for a byte of keys and values"]);
    for name in &config.indexes {
        let config = Config {
            indexes: vec![name.clone()],
            threads: COUNTED_THREADS,
            keys: config.keys / 4,
            rounds: 1,
            latency: false,
            plan: Plan::Phases(vec![Phase::Insert]),
            ..config.clone()
        };
        let before = machine::written_bytes(location);
        drive(&config, out)?;
        let bytes =
            machine::written_bytes(location).zip(before).map(|(after, before)| after - before);
        let stored = config.keys as f64 * mean_bytes(lengths);
        grid.push(name.clone(), vec![cell(bytes.map(|bytes| bytes as f64 / stored), 2)]);
    }
    Ok(grid)
}
