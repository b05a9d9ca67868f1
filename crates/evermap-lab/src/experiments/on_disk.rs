//! The heterogeneous table in a file: reads for a lookup, and what the depth of the queue and the
//! order of the lookups change.
//!
//! The file is read by `O_DIRECT`, past the page cache of the system, and the table's own cache is
//! empty at the beginning of every phase and a small part of the file at its end. So every phase is
//! one of a table larger than memory, whatever memory there is.

use std::path::{Path, PathBuf};
use std::time::Instant;

use evermap_tranche_file::{Counters, Options, TrancheFile};

use super::definition::Experiment;
use super::settings::{Setting, Settings};
use crate::LabError;
use crate::driver::latency::histogram;
use crate::driver::{GET_AGAIN, GET_IN_ANOTHER, GET_IN_ORDER, HALF_PUTS, LOAD};
use crate::machine::CpuClock;
use crate::report::model::cell;
use crate::report::{Grid, Output, Record, Report, duration, significant};
use crate::subject::{Found, Place, Survives, unique_path};
use crate::workload::bytes::{Speller, draw, mean_bytes};
use crate::workload::{KeyValueLengths, Permutation, Phase, Workload};

pub(super) const ON_DISK: Experiment = Experiment {
    name: "on-disk",
    about: "the heterogeneous table in a file: reads for a lookup, by depth of the queue and order",
    takes: &[Setting::KEYS, Setting::OPS, Setting::KEY_BYTES, Setting::VALUE_BYTES],
    run: on_disk,
};

/// The name of the table in records.
const INDEX: &str = "tranche-file";
/// The cache of the table is this part of its keys and values.
const CACHED: u64 = 64;
/// The number of keys of a batch.
const BATCH: usize = 4096;
/// The queues in which all keys are looked up in another order than they were loaded: whether
/// through `io_uring`, and how deep.
const QUEUES: [(bool, usize); 5] = [(false, 1), (true, 1), (true, 8), (true, 32), (true, 128)];
/// The queue of the other phases.
const USUAL: (bool, usize) = (true, 32);

fn on_disk(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let keys = settings.keys.unwrap_or(if settings.quick { 50_000 } else { 20_000_000 });
    let ops = settings.ops.unwrap_or(if settings.quick { 20_000 } else { 200_000 }).min(keys);
    if keys == 0 || ops == 0 {
        return Err(LabError::Config("there must be at least one key and one operation".into()));
    }
    let bench = Bench {
        workload: Workload { keys, threads: 1, seed: settings.seed.unwrap_or(1) },
        ops,
        lengths: settings.lengths().unwrap_or(KeyValueLengths::WORDS),
        location: settings.location.clone().unwrap_or_else(std::env::temp_dir),
    };
    let mut tables = Vec::new();
    let mut notes = Vec::new();
    bench.table::<{ 32 << 10 }>(&mut tables, &mut notes, out)?;
    bench.table::<4096>(&mut tables, &mut notes, out)?;
    notes.push(
        "Wall-clock time: it includes waiting for the disk, and other users of that. Each phase \
         begins with an empty cache; the page cache of the system is bypassed."
            .into(),
    );
    Ok(Report {
        experiment: "on-disk",
        title: "the heterogeneous table in a file".into(),
        about: format!(
            "{keys} records, keys of {} bytes, values of {}, {ops} operations a phase, in {}, \
             seed {}",
            bench.lengths.keys,
            bench.lengths.values,
            bench.location.display(),
            bench.workload.seed
        ),
        tables,
        notes,
        ..Report::default()
    })
}

/// What is measured, in files of `T` bytes a tranche.
struct Bench {
    workload: Workload,
    /// Operations of a phase.
    ops: u64,
    lengths: KeyValueLengths,
    location: PathBuf,
}

/// The files of a table, which are removed at the end.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        // Files that cannot be removed are not an error.
        let _ = std::fs::remove_file(&self.0);
        let mut long = self.0.clone().into_os_string();
        long.push(".long");
        let _ = std::fs::remove_file(long);
    }
}

/// What a phase has used.
struct Cost {
    seconds: f64,
    cpu: f64,
    counters: Counters,
}

impl Bench {
    /// Loads a table, and takes it through all phases.
    fn table<const T: usize>(
        &self,
        tables: &mut Vec<Grid>,
        notes: &mut Vec<String>,
        out: &mut dyn Output,
    ) -> Result<(), LabError> {
        let files = Files(unique_path(&self.location));
        let columns = ["gets/s", "processor time, ns", "reads/get", "tranche writes", "p50", "p99"];
        let mut grid = Grid::new(format!("Tranches of {} KiB", T >> 10), &columns);
        let mut show = |name: String, record: &Record| {
            let time = |ns: Option<u64>| ns.map_or("-".into(), |ns| duration(ns as f64));
            grid.push(
                name,
                vec![
                    record.mops.map_or("-".into(), |mops| significant(mops * 1e6)),
                    cell(record.cpu_ns_per_op, 0),
                    cell(record.reads_per_op, 3),
                    cell(record.writes_per_op, 3),
                    time(record.p50_ns),
                    time(record.p99_ns),
                ],
            );
        };
        out.step(&format!("on-disk: {LOAD}, tranches of {} KiB", T >> 10));
        let (loaded, bytes, fill) = self.load::<T>(&files.0)?;
        let mut record = self.record::<T>(LOAD, self.workload.keys, USUAL, &loaded);
        record.pm_bytes = Some(bytes);
        record.bytes_per_record = Some(bytes as f64 / self.workload.keys as f64);
        record.load_factor = Some(fill);
        out.record(&record)?;
        show(LOAD.to_owned(), &record);
        let cache = (self.payload_bytes() / CACHED) as usize;
        let orders = [GET_IN_ORDER, GET_AGAIN, GET_IN_ANOTHER];
        let phases = orders.into_iter().chain([Phase::Negative.name(), HALF_PUTS]);
        let usual = phases.map(|phase| (phase, USUAL));
        let queues = QUEUES.into_iter().map(|queue| (GET_IN_ANOTHER, queue));
        for (phase, queue) in queues.chain(usual.filter(|(phase, _)| *phase != GET_IN_ANOTHER)) {
            let what = format!("{phase}, {}, depth {}", name_of(queue.0), queue.1);
            out.step(&format!("on-disk: {what}, tranches of {} KiB", T >> 10));
            let options = Options::new().cache_bytes(cache).queue_depth(queue.1);
            let options = options.io_uring(queue.0);
            let file = TrancheFile::<T>::open(&files.0, options).map_err(failed)?;
            self.note(&file, queue.0, notes);
            let record = self.phase(file, phase, queue)?;
            out.record(&record)?;
            show(what, &record);
        }
        let each = bytes as f64 / self.workload.keys as f64;
        grid.title.push_str(&format!(
            ": {:.1} MiB, {each:.1} bytes a record, fill {fill:.2}, a cache of {:.1} MiB",
            bytes as f64 / f64::from(1 << 20),
            cache as f64 / f64::from(1 << 20)
        ));
        tables.push(grid);
        Ok(())
    }

    /// Returns the number of bytes of all keys and values, about.
    fn payload_bytes(&self) -> u64 {
        (self.workload.keys as f64 * mean_bytes(self.lengths)) as u64
    }

    /// Notes what the system has refused.
    fn note<const T: usize>(&self, file: &TrancheFile<T>, io_uring: bool, notes: &mut Vec<String>) {
        let mut refused = |what: &str| {
            let note = format!("{what} is refused here: figures are without it.");
            if !notes.contains(&note) {
                notes.push(note);
            }
        };
        if !file.is_direct() {
            refused("O_DIRECT");
        }
        if io_uring && !file.uses_io_uring() {
            refused("io_uring");
        }
    }

    /// Loads all keys into a new table. Returns the size of the file and its fill, too.
    fn load<const T: usize>(&self, path: &Path) -> Result<(Cost, u64, f64), LabError> {
        let speller = Speller::new(self.lengths);
        let options = Options::new().expected(self.workload.keys, self.payload_bytes());
        let options = options.buffer_bytes(256 << 20);
        let mut file = TrancheFile::<T>::create(path, options).map_err(failed)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let (clock, begin) = (CpuClock::now(), Instant::now());
        for at in 0..self.workload.keys {
            let number = self.workload.key(at);
            key.clear();
            value.clear();
            speller.append_key(number, &mut key);
            speller.append_value(number, 0, &mut value);
            file.put(&key, &value).map_err(failed)?;
        }
        file.sync().map_err(failed)?;
        let (seconds, cpu) = (begin.elapsed().as_secs_f64(), clock.elapsed().own);
        let cost = Cost { seconds, cpu, counters: file.counters() };
        Ok((cost, file.file_bytes(), file.fill()))
    }

    /// Does one phase with a table whose cache is empty.
    fn phase<const T: usize>(
        &self,
        mut file: TrancheFile<T>,
        phase: &'static str,
        queue: (bool, usize),
    ) -> Result<Record, LabError> {
        let mut keys = Keys::new(self, phase);
        let mut latencies = histogram();
        let (clock, begin) = (CpuClock::now(), Instant::now());
        let mut done = 0;
        while done < self.ops {
            // One at a time, if latencies mean anything.
            let most = if queue.1 == 1 { 1 } else { BATCH as u64 };
            let count = most.min(self.ops - done);
            keys.fill(done, count);
            let began = Instant::now();
            self.batch(&mut file, &keys, phase)?;
            if queue.1 == 1 {
                latencies.saturating_record(began.elapsed().as_nanos() as u64);
            }
            done += count;
        }
        if phase == HALF_PUTS {
            file.sync().map_err(failed)?;
        }
        let (seconds, cpu) = (begin.elapsed().as_secs_f64(), clock.elapsed().own);
        let cost = Cost { seconds, cpu, counters: file.counters() };
        let mut record = self.record::<T>(phase, self.ops, queue, &cost);
        if !latencies.is_empty() {
            record.p50_ns = Some(latencies.value_at_quantile(0.5));
            record.p95_ns = Some(latencies.value_at_quantile(0.95));
            record.p99_ns = Some(latencies.value_at_quantile(0.99));
            record.p999_ns = Some(latencies.value_at_quantile(0.999));
        }
        Ok(record)
    }

    /// Looks a batch of keys up and compares what is found. Of half puts, every other key is stored
    /// again instead.
    fn batch<const T: usize>(
        &self,
        file: &mut TrancheFile<T>,
        keys: &Keys,
        phase: &'static str,
    ) -> Result<(), LabError> {
        let puts = phase == HALF_PUTS;
        let is_put = |at: usize| puts && at % 2 == 1;
        let mut wanted: Vec<&[u8]> = Vec::new();
        for (at, key) in keys.spelled.iter().enumerate() {
            if is_put(at) {
                let mut value = Vec::new();
                keys.speller.append_value(keys.numbers[at], 0, &mut value);
                file.put(key, &value).map_err(failed)?;
            } else {
                wanted.push(key);
            }
        }
        let step = if puts { 2 } else { 1 };
        let mut wrong = None;
        file.get_many(&wanted, |at, value| {
            let number = keys.numbers[at * step];
            let word = value.map(|value| keys.speller.word_of(number, value));
            let expected = keys.present.then(|| crate::workload::word(number, 0));
            if word != expected.map(Some) {
                let found =
                    word.map_or(Found::Absent, |word| word.map_or(Found::Garbled, Found::Word));
                wrong = Some((number, expected.into(), found));
            }
        })
        .map_err(failed)?;
        match wrong {
            None => Ok(()),
            Some((key, expected, found)) => {
                Err(LabError::WrongAnswer { index: INDEX, phase, key, expected, found })
            }
        }
    }

    fn record<const T: usize>(
        &self,
        phase: &str,
        ops: u64,
        (io_uring, depth): (bool, usize),
        cost: &Cost,
    ) -> Record {
        let place = Place {
            medium: "files".into(),
            flush_kind: Some("fdatasync".into()),
            location: Some(self.location.clone()),
            survives: if crate::machine::is_in_memory(&self.location) {
                Survives::Process
            } else {
                Survives::Power
            },
        };
        let Counters { tranche_reads, long_reads, tranche_writes, .. } = cost.counters;
        let per_op = |count: u64| Some(count as f64 / ops as f64);
        let mut record = Record {
            experiment: "on-disk",
            index: INDEX.to_owned(),
            threads: 1,
            keys: self.workload.keys,
            phase: phase.to_owned(),
            ops,
            key_bytes: Some(self.lengths.keys.to_string()),
            value_bytes: Some(self.lengths.values.to_string()),
            case: Some(format!("{} KiB, {}, depth {depth}", T >> 10, name_of(io_uring))),
            reads_per_op: per_op(tranche_reads + long_reads),
            writes_per_op: per_op(tranche_writes),
            seed: self.workload.seed,
            ..Record::at(place)
        };
        record.time(cost.seconds, cost.cpu);
        record
    }
}

fn name_of(io_uring: bool) -> &'static str {
    if io_uring { "io_uring" } else { "pread" }
}

#[cold]
fn failed(error: evermap_pm::Error) -> LabError {
    LabError::index(INDEX, error)
}

/// The keys of a batch.
struct Keys {
    workload: Workload,
    phase: &'static str,
    order: Permutation,
    speller: Speller,
    present: bool,
    numbers: Vec<u64>,
    spelled: Vec<Vec<u8>>,
}

impl Keys {
    fn new(bench: &Bench, phase: &'static str) -> Self {
        Keys {
            workload: bench.workload,
            phase,
            order: Permutation::new(bench.workload.keys, bench.workload.seed ^ 0x0d15),
            speller: Speller::new(bench.lengths),
            present: phase != Phase::Negative.name(),
            numbers: Vec::new(),
            spelled: Vec::new(),
        }
    }

    /// Writes the keys of the operations from `first` on.
    fn fill(&mut self, first: u64, count: u64) {
        self.numbers.clear();
        self.spelled.clear();
        for place in first..first + count {
            let index = match self.phase {
                GET_IN_ORDER | GET_AGAIN => place,
                GET_IN_ANOTHER => self.order.at(place),
                HALF_PUTS => draw(self.workload.seed, 7, place) % self.workload.keys,
                _ => self.workload.keys + place,
            };
            let number = self.workload.key(index);
            let mut key = Vec::new();
            self.speller.append_key(number, &mut key);
            self.numbers.push(number);
            self.spelled.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::experiment;
    use crate::testing::Kept;

    /// Every phase is recorded for both sizes, and reads what it should: hardly more than one
    /// tranche for a key.
    #[test]
    fn lookups_read_one_tranche() {
        let location = std::env::temp_dir().join(format!("lab-on-disk-{}", std::process::id()));
        std::fs::create_dir(&location).unwrap();
        let (experiment, mut kept) = (experiment("on-disk").unwrap(), Kept::default());
        let settings = Settings {
            quick: true,
            keys: Some(20_000),
            ops: Some(2_000),
            location: Some(location.clone()),
            ..Settings::default()
        };
        let report = experiment.run(&settings, &mut kept).unwrap();
        assert_eq!(report.tables.len(), 2);
        // For each size the load, five queues, and four more phases.
        assert_eq!(kept.records.len(), 2 * (1 + 5 + 4));
        for record in &kept.records {
            assert!(record.seconds.unwrap() > 0.0 && record.cpu_ns_per_op.is_some());
            let reads = record.reads_per_op.unwrap();
            let most = if record.phase == LOAD { 0.1 } else { 1.5 };
            assert!(reads <= most, "{}: {reads}", record.phase);
            assert_eq!(record.p99_ns.is_some(), record.case.as_ref().unwrap().ends_with(" 1"));
        }
        let one_by_one = kept.records.iter().find(|record| record.p99_ns.is_some()).unwrap();
        // A read takes longer than a microsecond.
        assert!(one_by_one.p50_ns.unwrap() > 1000, "{:?}", one_by_one.p50_ns);
        assert!(one_by_one.reads_per_op.unwrap() > 0.9, "{:?}", one_by_one.reads_per_op);
        let bytes = kept.records[0].bytes_per_record.unwrap();
        // The journal is larger than this table.
        assert!((20.0..4000.0).contains(&bytes), "{bytes}");
        assert_eq!(std::fs::read_dir(&location).unwrap().count(), 0, "files are left behind");
        std::fs::remove_dir(&location).unwrap();
    }
}
