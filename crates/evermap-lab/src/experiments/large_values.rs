//! What it costs to get a value that is copied, and one that the store lends, by its length.
//!
//! Of each value only the ends are checked while the clock runs, because comparing a large value
//! costs more than copying it. All of it is compared before.

use std::sync::Arc;

use super::definition::Experiment;
use super::settings::{Scale, Setting, Settings};
use super::stores::those_that_open;
use super::tables::{mark, places, times};
use crate::LabError;
use crate::driver::results::{DriveReport, PhaseReport, SubjectReport, summary};
use crate::driver::task::Task;
use crate::driver::workers::{Race, Workers};
use crate::driver::{Config, foreign_shares, turns};
use crate::machine;
use crate::registry::subjects_called;
use crate::report::{Grid, Marks, Plot, Point, Report, Series};
use crate::report::{Output, Record, counted};
use crate::subject::work::Reading;
use crate::subject::{Entry, MediumKind, Setup, Subject};
use crate::workload::{KeyValueLengths, Lengths, Phase, Workload};

pub(super) const LARGE_VALUES: Experiment = Experiment {
    name: "large-values",
    about: "gets of values from 256 bytes to 1 MiB: copied, and lent by the store",
    takes: &[Setting::INDEX, Setting::ROUNDS, Setting::KEY_BYTES, Setting::VALUE_BYTES],
    run: large_values,
};

/// The stores of the experiment: Evermap's, and others at the weakest level at which acknowledged
/// changes survive the death of the process.
const STORES: [&str; 6] = [
    "evermap",
    "evermap-unverified",
    "lmdb-process",
    "redb-power",
    "fjall-process",
    "rocksdb-process",
];
/// The store that the others are compared with.
const LENDER: &str = "lmdb-process";
/// The lengths of values, in bytes.
const LENGTHS: [u32; 4] = [256, 4 << 10, 64 << 10, 1 << 20];
/// How values are read.
const READINGS: [(&str, Reading); 3] = [
    ("copied", Reading::Copied),
    ("lent", Reading::Lent(1)),
    ("lent, 64 per reader", Reading::Lent(64)),
];

/// The size of a measurement.
#[derive(Clone, Copy)]
struct Amount {
    /// Bytes of all values of one length.
    bytes: u64,
    /// The least duration of a reading: all keys are looked up again until it is reached.
    seconds: f64,
}

fn large_values(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let amount = if settings.quick {
        Amount { bytes: 4 << 20, seconds: 0.001 }
    } else {
        Amount { bytes: 64 << 20, seconds: 0.1 }
    };
    // The number of keys follows from the length of the values.
    let scale = Scale { keys: 1, rounds: 7, quick_keys: 1, quick_rounds: 1 };
    let config = settings.config("large-values", &STORES, scale);
    let keys = settings.key_bytes.unwrap_or(Lengths::Fixed(16));
    let all = match settings.value_bytes {
        Some(values) => vec![values],
        None => LENGTHS.map(Lengths::Fixed).to_vec(),
    };
    let of_length = |values: Lengths| Config {
        keys: (amount.bytes / u64::from(values.bounds().1)).max(1),
        threads: 1,
        medium: MediumKind::Process,
        lengths: Some(KeyValueLengths { keys, values }),
        ..config.clone()
    };
    let (indexes, mut notes) = those_that_open(settings, &of_length(all[0]), &STORES)?;
    let entries = subjects_called(&indexes)?;
    out.begin((all.len() * entries.len() * config.rounds) as u64);
    let workers = Workers::start(1)?;
    let mut drives = Vec::new();
    for &values in &all {
        let config = of_length(values);
        let setup = config.check(entries.len())?;
        let workload = Workload { keys: config.keys, threads: 1, seed: config.seed };
        let bench = Bench { config, setup, workload, workers: &workers, least: amount.seconds };
        drives.push((values, bench.measure(&entries, out)?));
    }
    let mut tables = READINGS.map(|(name, _)| costs(&drives, name)).to_vec();
    tables.extend(ratios(&drives));
    tables.extend(drives.first().and_then(|(_, driven)| places(driven)));
    notes.push(
        "What is copied or lent is read at its ends only. evermap reads all of a value to verify \
         its checksum; evermap-unverified does not, and returns what a damaged file holds."
            .into(),
    );
    let mut records = drives.iter().flat_map(|(_, driven)| &driven.subjects);
    if records.any(|subject| subject.phases.iter().any(|phase| phase.summary.void)) {
        let warning =
            "* other programs used the processors in every attempt: do not trust this figure";
        notes.push(warning.to_owned());
    }
    Ok(Report {
        experiment: "large-values",
        title: "what it costs to read a value, copied and lent".into(),
        about: format!(
            "{} MiB of values of each length, keys of {keys} bytes, 1 thread, {}, medium \
             {}, seed {}",
            amount.bytes >> 20,
            counted(config.rounds, "round"),
            MediumKind::Process.name(),
            config.seed
        ),
        tables,
        plots: READINGS.map(|(name, _)| plot(&drives, name)).to_vec(),
        notes,
        ..Report::default()
    })
}

/// Measures stores with values of one length.
struct Bench<'a> {
    config: Config,
    setup: Setup,
    workload: Workload,
    workers: &'a Workers,
    least: f64,
}

/// The rounds of one store. Each has a record for every reading that the store supports.
struct Rounds {
    entry: Entry,
    repeated: usize,
    rounds: Vec<Vec<Record>>,
}

impl Bench<'_> {
    /// Measures the stores in turns.
    fn measure(&self, entries: &[Entry], out: &mut dyn Output) -> Result<DriveReport, LabError> {
        let new = |&entry: &Entry| Rounds { entry, repeated: 0, rounds: Vec::new() };
        let mut stores: Vec<_> = entries.iter().map(new).collect();
        let Config { rounds, seed, .. } = self.config;
        for round in 0..rounds {
            for at in turns(stores.len(), seed, round) {
                let (store, values) = (&mut stores[at], self.lengths().values);
                let name = store.entry.name;
                out.step(&format!("large-values: {name}, {values} bytes, round {}", round + 1));
                let records = self.round(store, round, out)?;
                for record in &records {
                    out.record(record)?;
                }
                store.rounds.push(records);
            }
        }
        let mut subjects = Vec::new();
        for Rounds { entry, repeated, rounds } in stores {
            let mut phases = Vec::new();
            for (name, _) in READINGS {
                let of_reading = rounds.iter().flatten().filter(|record| record.phase == name);
                let rounds: Vec<_> = of_reading.cloned().collect();
                if !rounds.is_empty() {
                    let summary = summary(&rounds);
                    out.record(&summary)?;
                    phases.push(PhaseReport { name, summary, rounds });
                }
            }
            subjects.push(SubjectReport { name: entry.name, rival: entry.rival, repeated, phases });
        }
        Ok(DriveReport { subjects, limits: None })
    }

    fn lengths(&self) -> KeyValueLengths {
        self.config.lengths.unwrap_or_default()
    }

    /// Measures one store once, repeats that if it was disturbed, and keeps the best of each
    /// reading.
    fn round(
        &self,
        store: &mut Rounds,
        round: usize,
        out: &mut dyn Output,
    ) -> Result<Vec<Record>, LabError> {
        let once = |out: &mut dyn Output| self.once(&store.entry, out);
        let (mut best, repeated) = self.config.quiet.best_of_each(out, once)?;
        store.repeated += repeated;
        best.iter_mut().for_each(|record| record.round = Some(round));
        Ok(best)
    }

    /// Fills a store, verifies what is in it, and measures the readings that it supports.
    fn once(&self, entry: &Entry, out: &mut dyn Output) -> Result<Vec<Record>, LabError> {
        let (config, workload) = (&self.config, self.workload);
        machine::trim();
        config.quiet.wait(out);
        machine::warm_up(config.keys * self.lengths().most_bytes(), config.pages);
        let before = machine::resident();
        let subject: Arc<dyn Subject> = Arc::from(entry.build(&self.setup)?);
        self.all_keys(&subject, Task::of(Phase::Insert, workload).in_bulk())?;
        // Makes all pages present, too.
        let task = Task::of(Phase::Positive, workload);
        self.all_keys(&subject, task)?;
        let page_size = machine::growth(before).map(machine::page_size);
        let (mut records, mut uses) = (Vec::new(), Vec::new());
        for (name, reading) in READINGS {
            let Some((passes, race)) = self.repeat(&subject, task, reading)? else { continue };
            let mut record = Record {
                experiment: config.experiment,
                index: entry.name.to_owned(),
                threads: 1,
                keys: config.keys,
                phase: name.to_owned(),
                ops: passes * config.keys,
                page_size,
                key_bytes: Some(self.lengths().keys.to_string()),
                value_bytes: Some(self.lengths().values.to_string()),
                seed: config.seed,
                ..Record::at(subject.place())
            };
            record.time(race.seconds, race.used.own);
            records.push(record);
            uses.push(race.used);
        }
        for (record, share) in records.iter_mut().zip(foreign_shares(&uses)) {
            record.foreign_cpu = share;
            record.void = config.quiet.is_exceeded(share);
        }
        Ok(records)
    }

    /// Does `task` with all keys, which stay in the thread's stream.
    fn all_keys(&self, subject: &Arc<dyn Subject>, task: Task) -> Result<(), LabError> {
        let (subject, workload) = (subject.clone(), self.workload);
        self.workers.each(move |thread, stream| {
            stream.fill(&workload, task.phase(), thread);
            subject.speller().iter().for_each(|speller| stream.spell(speller));
            subject.run(task.on(stream, thread))
        })?;
        Ok(())
    }

    /// Looks up the keys of the thread's stream as often as takes `least` seconds. Returns how
    /// often, or `None` if the store does not support this reading.
    fn repeat(
        &self,
        subject: &Arc<dyn Subject>,
        task: Task,
        reading: Reading,
    ) -> Result<Option<(u64, Race<bool>)>, LabError> {
        let mut passes = 1;
        loop {
            let subject = subject.clone();
            let race = self.workers.race(move |thread, stream| {
                let work = task.on(stream, thread);
                for _ in 0..passes {
                    if !subject.read(work, reading)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
            if !race.results.iter().all(|&supported| supported) {
                return Ok(None);
            }
            if race.seconds >= self.least {
                return Ok(Some((passes, race)));
            }
            passes *= 2;
        }
    }
}

/// Returns the lengths of values with a unit.
fn with_unit(values: Lengths) -> String {
    match values {
        Lengths::Fixed(bytes) if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        Lengths::Fixed(bytes) if bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        _ => format!("{values} B"),
    }
}

/// Values of one length, and what was measured with them.
type Drive = (Lengths, DriveReport);

/// Returns an empty table with a column for every length.
fn grid(title: String, drives: &[Drive]) -> Grid {
    let columns = drives.iter().map(|(values, _)| with_unit(*values)).collect();
    Grid { title, columns, rows: Vec::new() }
}

/// Returns the names of the stores.
fn names(drives: &[Drive]) -> impl Iterator<Item = &'static str> {
    drives.first().into_iter().flat_map(|(_, driven)| &driven.subjects).map(|subject| subject.name)
}

/// Returns what was measured of a store with values of each length.
fn phases<'d>(
    drives: &'d [Drive],
    name: &'d str,
    reading: &'d str,
) -> impl Iterator<Item = (Lengths, Option<&'d PhaseReport>)> {
    drives.iter().map(move |(values, driven)| {
        (*values, driven.subject(name).and_then(|subject| subject.phase(reading)))
    })
}

/// Returns the processor time of a get with this reading.
fn costs(drives: &[Drive], reading: &str) -> Grid {
    let what = "processor time of a get, ns: median, and the range that holds the true one";
    let mut grid = grid(format!("Values {reading}: {what}"), drives);
    for name in names(drives) {
        let cell = |(_, phase): (Lengths, Option<&PhaseReport>)| {
            let PhaseReport { summary, rounds, .. } = phase?;
            let range = match rounds.len() {
                0 | 1 => String::new(),
                _ => format!(" {:.0}-{:.0}", summary.cpu_low?, summary.cpu_high?),
            };
            Some(format!("{:.0}{range}{}", summary.cpu_ns_per_op?, mark(summary.void)))
        };
        let cells = phases(drives, name, reading).map(cell);
        grid.push(name, cells.map(|cell| cell.unwrap_or_else(|| "-".into())).collect());
    }
    grid
}

/// Returns how much faster the other stores are than [`LENDER`] with the same reading, if that was
/// measured.
fn ratios(drives: &[Drive]) -> Option<Grid> {
    names(drives).find(|&name| name == LENDER)?;
    let mut grid = grid(format!("Times as fast as {LENDER}"), drives);
    for name in names(drives).filter(|&name| name != LENDER) {
        for (reading, _) in READINGS {
            let ratio = |(_, driven): &Drive| driven.ratio(name, LENDER, reading);
            let cells =
                drives.iter().map(|drive| ratio(drive).map_or("-".into(), |one| times(&one)));
            grid.push(format!("{name}, {reading}"), cells.collect());
        }
    }
    Some(grid)
}

fn plot(drives: &[Drive], reading: &str) -> Plot {
    let series = names(drives).map(|name| {
        let points = phases(drives, name, reading).filter_map(|(values, phase)| {
            let summary = &phase?.summary;
            let range = summary.cpu_low.zip(summary.cpu_high);
            let (x, void) = (f64::from(values.bounds().1), summary.void);
            Some(Point { x, y: summary.cpu_ns_per_op?, range, void })
        });
        Series { name: name.to_owned(), points: points.collect() }
    });
    Plot {
        title: format!("Values {reading}"),
        x: "bytes of a value".into(),
        y: "processor time of a get, ns".into(),
        log_x: true,
        marks: Marks::Lines,
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiments::experiment;
    use crate::testing::Kept;

    fn brief(indexes: &[&str]) -> Settings {
        Settings {
            quick: true,
            rounds: Some(2),
            retries: Some(0),
            patience: Some(Duration::ZERO),
            indexes: Some(indexes.iter().map(|&name| name.to_owned()).collect()),
            value_bytes: Some(Lengths::Fixed(64 << 10)),
            ..Settings::default()
        }
    }

    #[test]
    fn stores_that_cannot_lend_have_no_figure() {
        let (experiment, mut kept) = (experiment("large-values").unwrap(), Kept::default());
        let report =
            experiment.run(&brief(&["evermap", "evermap-unverified", "dash-eh"]), &mut kept);
        let report = report.unwrap();
        let of = |index: &str, reading: &str| {
            let is_it = |record: &&Record| record.index == index && record.phase == reading;
            kept.records.iter().filter(is_it).collect::<Vec<_>>()
        };
        for (table, (reading, _)) in report.tables.iter().zip(READINGS) {
            assert_eq!(table.columns, ["64 KiB"]);
            for (name, cells) in &table.rows {
                let is_there = name != "dash-eh" || reading == "copied";
                assert_eq!(cells[0] != "-", is_there, "{name}, {reading}: {}", cells[0]);
                // Two rounds and their summary.
                let records = of(name, reading);
                assert_eq!(records.len(), if is_there { 3 } else { 0 }, "{name}, {reading}");
                for record in records {
                    assert_eq!((record.keys, record.ops % 64), (64, 0));
                    assert!(record.cpu_ns_per_op.is_some() && record.page_size.is_some());
                    assert_eq!(record.value_bytes.as_deref(), Some("65536"));
                    assert_eq!(record.medium, "process");
                }
            }
        }
        assert_eq!((kept.steps, kept.stepped.len()), (6, 6));
    }

    #[test]
    fn lengths_are_shown_with_a_unit() {
        let shown = |text: &str| with_unit(text.parse().unwrap());
        let lengths = ["256", "4096", "65536", "1048576", "1500", "8-64"];
        assert_eq!(lengths.map(shown), ["256 B", "4 KiB", "64 KiB", "1 MiB", "1500 B", "8-64 B"]);
    }
}
