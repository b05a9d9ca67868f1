//! `evermap serve` beside memcached: requests a second, and processor time of the server.
//!
//! Both run with two threads on this machine, one client thread keeps 16 connections busy, and the
//! servers take turns in every round. With fewer processors than threads the client takes part of
//! what it measures, so processor time says more than requests a second.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evermap_pm::sim::rng::Rng;

use super::definition::Experiment;
use super::settings::{Scale, Setting, Settings};
use super::tables::mark;
use crate::LabError;
use crate::driver::results::summary;
use crate::driver::{Config, turns};
use crate::report::interval::{median, median_interval};
use crate::report::{Grid, Output, Record, Report, counted};
use crate::subject::{MediumKind, Setup, unique_path};
use crate::workload::{KeyValueLengths, Lengths};
use load::{Act, CONNECTIONS, Client, Items, KEY_BYTES, Ran};
use process::{EVERMAP, MEMCACHED, Program, Server, THREADS};

mod engines;
mod load;
mod process;

pub(super) use engines::ENGINES;
pub use engines::serve_engine;

pub(super) const SERVERS: Experiment = Experiment {
    name: "servers",
    about: "evermap serve beside memcached: operations a second, processor time of the server",
    takes: &[Setting::KEYS, Setting::ROUNDS, Setting::VALUE_BYTES],
    run: servers,
};

/// What is measured, in this order.
const ACTS: [(&str, Act); 5] = [
    ("get", Act::Get { pipelined: 1 }),
    ("set", Act::Set { pipelined: 1 }),
    ("get, 16 at once", Act::Get { pipelined: 16 }),
    ("set, 16 at once", Act::Set { pipelined: 16 }),
    ("get of 50 keys", Act::MultiGet { keys: 50 }),
];

/// The probability with which intervals should hold the true median.
const CONFIDENCE: f64 = 0.9;

/// One measurement of one act.
#[derive(Clone)]
struct Sample {
    record: Record,
    /// Nanoseconds of the server for an operation, in user mode.
    user: f64,
    /// And in the kernel.
    system: f64,
}

impl Sample {
    fn speed(&self) -> f64 {
        self.record.mops.unwrap_or_default()
    }

    fn all(&self) -> f64 {
        self.user + self.system
    }
}

/// The rounds of one server, each with a sample of every act.
struct Rounds {
    program: Program,
    rounds: Vec<Vec<Sample>>,
}

impl Rounds {
    fn of(&self, act: usize) -> impl Iterator<Item = &Sample> {
        self.rounds.iter().map(move |round| &round[act])
    }
}

fn servers(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 1_000_000, rounds: 9, quick_keys: 1000, quick_rounds: 1 };
    let config = settings.config("servers", &[], scale);
    let values = settings.value_bytes.unwrap_or(Lengths::Fixed(100));
    let items = Items { keys: config.keys, value_bytes: values.bounds().1 as usize };
    let least = Duration::from_millis(if settings.quick { 20 } else { 1500 });
    let programs = Program::find(settings.program.as_deref());
    let missing = [EVERMAP, MEMCACHED].into_iter().filter(|&name| is_missing(&programs, name));
    let notes = missing.map(|name| format!("{name} is not here, so it is left out")).collect();
    let directory = Directory::create(settings, config.keys, values)?;
    out.begin((programs.len() * config.rounds) as u64);
    let measured = measure(&programs, &config, &items, least, &directory.0, out)?;
    Ok(Report {
        experiment: "servers",
        title: "servers of the memcached protocol".into(),
        about: format!(
            "{} keys of {KEY_BYTES} bytes, values of {} bytes; {CONNECTIONS} connections of one \
             client thread, {THREADS} threads of the server, {} of {} ms, seed {}; {}",
            items.keys,
            items.value_bytes,
            counted(config.rounds, "round"),
            least.as_millis(),
            config.seed,
            programs.iter().map(|it| it.version.as_str()).collect::<Vec<_>>().join(", "),
        ),
        tables: tables(&measured),
        notes,
        ..Report::default()
    })
}

fn is_missing(programs: &[Program], name: &str) -> bool {
    programs.iter().all(|program| program.name != name)
}

/// A directory for the file of Evermap's server, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn create(settings: &Settings, keys: u64, values: Lengths) -> Result<Self, LabError> {
        let lengths = KeyValueLengths { keys: Lengths::Fixed(KEY_BYTES), values };
        let (medium, location) = (MediumKind::Process, settings.location.clone());
        let setup = Setup::new(medium, location, settings.pages(), keys, Some(lengths))?;
        let path = unique_path(&setup.location);
        let made = fs::create_dir_all(&path);
        let action = "creating a directory";
        made.map_err(|source| LabError::Io { action, path: Some(path.clone()), source })?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is reported by nothing that the experiment measures.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts and fills all servers, and measures them in turns.
fn measure(
    programs: &[Program],
    config: &Config,
    items: &Items,
    least: Duration,
    directory: &Path,
    out: &mut dyn Output,
) -> Result<Vec<Rounds>, LabError> {
    let start = |program: &Program| program.start(directory, THREADS);
    let servers: Vec<Server> = programs.iter().map(start).collect::<Result<_, _>>()?;
    let connect = |server| Client::connect(server, CONNECTIONS);
    let mut clients: Vec<Client> = servers.iter().map(connect).collect::<Result<_, _>>()?;
    clients.iter_mut().try_for_each(|client| client.fill(items))?;
    let new = |program: &Program| Rounds { program: program.clone(), rounds: Vec::new() };
    let mut measured: Vec<_> = programs.iter().map(new).collect();
    for round in 0..config.rounds {
        for at in turns(programs.len(), config.seed, round) {
            let name = programs[at].name;
            out.step(&format!("servers: {name}, round {}", round + 1));
            config.quiet.wait(out);
            let mut samples = Vec::new();
            for (phase, act) in ACTS {
                let mut random = Rng::new(config.seed + round as u64);
                let once = |_: &mut dyn Output| {
                    let ran = clients[at].run(items, act, &mut random, least)?;
                    Ok(sample(config, items, (name, phase, round), &ran))
                };
                let (sample, _) = config.quiet.measure(out, once, |sample| sample.record.void)?;
                out.record(&sample.record)?;
                samples.push(sample);
            }
            measured[at].rounds.push(samples);
        }
    }
    for rounds in &measured {
        for act in 0..ACTS.len() {
            let records: Vec<_> = rounds.of(act).map(|sample| sample.record.clone()).collect();
            out.record(&summary(&records))?;
        }
    }
    Ok(measured)
}

fn sample(
    config: &Config,
    items: &Items,
    (name, phase, round): (&str, &str, usize),
    ran: &Ran,
) -> Sample {
    let mut record = Record {
        experiment: config.experiment,
        index: name.into(),
        threads: THREADS,
        keys: items.keys,
        phase: phase.into(),
        round: Some(round),
        ops: ran.ops,
        survives: survives(name),
        value_bytes: Some(items.value_bytes.to_string()),
        seed: config.seed,
        foreign_cpu: ran.foreign,
        void: config.quiet.is_exceeded(ran.foreign),
        ..Record::default()
    };
    record.time(ran.seconds, ran.server.user + ran.server.system);
    let per_op = |seconds: f64| seconds * 1e9 / ran.ops as f64;
    Sample { record, user: per_op(ran.server.user), system: per_op(ran.server.system) }
}

/// Returns what the items of a server survive.
fn survives(name: &str) -> &'static str {
    if name == EVERMAP { "process" } else { "nothing" }
}

/// A figure of a sample.
type Figure = fn(&Sample) -> f64;

fn tables(measured: &[Rounds]) -> Vec<Grid> {
    let figures: [(&str, Figure); 3] = [
        ("thousand operations a second", |sample| sample.speed() * 1e3),
        ("processor time of the server in user mode, ns for an operation", |sample| sample.user),
        ("the same in the kernel", |sample| sample.system),
    ];
    let columns = ACTS.map(|(name, _)| name);
    let mut tables = Vec::new();
    for (title, figure) in figures {
        let title = format!("{title}: median, and the range that holds the true one");
        let mut grid = Grid::new(&title, &columns);
        for rounds in measured {
            let cell = |act| cell(rounds.of(act).map(|it| (figure(it), it.record.void)), 0);
            grid.push(rounds.program.name, (0..ACTS.len()).map(cell).collect());
        }
        tables.push(grid);
    }
    let of = |name| measured.iter().find(|rounds| rounds.program.name == name);
    if let (Some(own), Some(rival)) = (of(EVERMAP), of(MEMCACHED)) {
        let mut grid = Grid::new("evermap-serve / memcached, within rounds", &columns);
        let ratios: [(&str, Figure); 3] = [
            ("operations a second", Sample::speed),
            ("processor time in user mode", |sample| sample.user),
            ("all processor time", Sample::all),
        ];
        for (name, figure) in ratios {
            let cell = |act| {
                let pairs = own.of(act).zip(rival.of(act));
                cell(
                    pairs.map(|(own, rival)| {
                        (figure(own) / figure(rival), own.record.void || rival.record.void)
                    }),
                    2,
                )
            };
            grid.push(name, (0..ACTS.len()).map(cell).collect());
        }
        tables.push(grid);
    }
    tables
}

/// Returns the median of the values that are not void, or of all, marked, if all are.
fn cell(values: impl Iterator<Item = (f64, bool)>, digits: usize) -> String {
    let all: Vec<_> = values.collect();
    let clean: Vec<_> = all.iter().filter(|it| !it.1).map(|it| it.0).collect();
    let void = clean.is_empty();
    let used = if void { all.iter().map(|it| it.0).collect() } else { clean };
    let Some(middle) = median(&used) else { return "-".into() };
    let range = match median_interval(&used, CONFIDENCE) {
        Some(range) if used.len() > 1 => {
            format!(" {:.digits$}-{:.digits$}", range.low, range.high)
        }
        _ => String::new(),
    };
    format!("{middle:.digits$}{range}{}", mark(void))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_leave_out_void_rounds() {
        let of = |values: &[(f64, bool)]| cell(values.iter().copied(), 1);
        assert_eq!(of(&[]), "-");
        assert_eq!(of(&[(2.0, false)]), "2.0");
        assert_eq!(of(&[(2.0, false), (9.0, true), (4.0, false)]), "3.0 2.0-4.0");
        assert_eq!(of(&[(9.0, true)]), "9.0*");
    }
}
