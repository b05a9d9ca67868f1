//! The heterogeneous table in a file: reads for a lookup, and what the depth of the queue and the
//! order of the lookups change.
//!
//! The file is read by `O_DIRECT`, past the page cache of the system, and the table's own cache is
//! empty at the beginning of every phase and a small part of the file at its end. So every phase is
//! one of a table larger than memory, whatever memory there is.
//!
//! With `--shards`, several tables share the keys, each with one owner, as in the talk.

use std::path::PathBuf;

use evermap_tranche_file::{Counters, Options, TrancheFile};

use super::definition::Experiment;
use super::settings::{Setting, Settings};
use crate::LabError;
use crate::driver::{GET_AGAIN, GET_IN_ANOTHER, GET_IN_ORDER, HALF_PUTS, LOAD};
use crate::report::model::cell;
use crate::report::{Grid, Output, Record, Report, counted, duration, significant};
use crate::subject::{Found, Place, Survives};
use crate::workload::bytes::{Speller, draw, mean_bytes};
use crate::workload::{KeyValueLengths, Permutation, Phase, Workload};
use shards::{Cost, Division, Files, INDEX, Owned, failed};

mod shards;

pub(super) const ON_DISK: Experiment = Experiment {
    name: "on-disk",
    about: "the heterogeneous table in a file: reads for a lookup, by depth of the queue and order",
    takes: &[
        Setting::KEYS,
        Setting::OPS,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::SHARDS,
    ],
    run: on_disk,
};

/// The cache of the table is this part of its keys and values.
const CACHED: u64 = 64;
/// The number of keys of a batch.
const BATCH: usize = 4096;
/// The queues in which all keys are looked up in another order than they were loaded: whether
/// through `io_uring`, and how deep.
const QUEUES: [(bool, usize); 5] = [(false, 1), (true, 1), (true, 8), (true, 32), (true, 128)];
/// The queue of the other phases.
const USUAL: (bool, usize) = (true, 32);
/// The phase in which keys are added to a table that grows.
const GROWING: &str = "insert, growing";
/// How many keys that table has at most at the end; it has this part of them at the beginning.
const GROWN_MAX: u64 = 1_000_000;
const GROWN_FROM: u64 = 100;
/// The most tables: each has files that are open.
const SHARDS_MAX: usize = 256;

fn on_disk(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let keys = settings.keys.unwrap_or(if settings.quick { 50_000 } else { 20_000_000 });
    let ops = settings.ops.unwrap_or(if settings.quick { 20_000 } else { 200_000 }).min(keys);
    if keys == 0 || ops == 0 {
        return Err(LabError::Config("there must be at least one key and one operation".into()));
    }
    let shards = settings.shards.unwrap_or(1);
    if !(1..=SHARDS_MAX).contains(&shards) {
        let what = format!("{shards} shards: there must be 1 to {SHARDS_MAX}");
        return Err(LabError::Config(what));
    }
    let bench = Bench {
        workload: Workload { keys, threads: 1, seed: settings.seed.unwrap_or(1) },
        ops,
        lengths: settings.lengths().unwrap_or(KeyValueLengths::WORDS),
        location: settings.location.clone().unwrap_or_else(std::env::temp_dir),
        division: Division { shards, threads: shards.min(Settings::processors()) },
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
            "{keys} records, keys of {} bytes, values of {}, {ops} operations a phase, in {}, {}, \
             {}, seed {}",
            bench.lengths.keys,
            bench.lengths.values,
            bench.location.display(),
            counted(shards, "shard"),
            counted(bench.division.threads, "thread"),
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
    division: Division,
}

impl Bench {
    /// Loads a table, and takes it through all phases.
    fn table<const T: usize>(
        &self,
        tables: &mut Vec<Grid>,
        notes: &mut Vec<String>,
        out: &mut dyn Output,
    ) -> Result<(), LabError> {
        let files = Files::new(&self.location, self.division);
        let columns = [
            "operations/s",
            "processor time, ns",
            "reads/op",
            "tranche writes",
            "p50",
            "p99",
            "p99.9",
            "longest",
        ];
        let mut grid = Grid::new(format!("Tranches of {} KiB", T >> 10), &columns);
        let mut show = |name: String, record: &Record| grid.push(name, row(record));
        out.step(&format!("on-disk: {LOAD}, tranches of {} KiB", T >> 10));
        let loaded = self.load::<T>(&files)?;
        let mut record = self.record::<T>(LOAD, self.workload.keys, USUAL, &loaded);
        let bytes = loaded.file_bytes;
        record.pm_bytes = Some(bytes);
        record.bytes_per_record = Some(bytes as f64 / self.workload.keys as f64);
        record.load_factor = Some(loaded.fill);
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
            let options = Options::new().cache_bytes(cache / self.division.shards);
            let options = options.queue_depth(queue.1).io_uring(queue.0);
            let opened = files.tables(TrancheFile::<T>::open, &options)?;
            self.note(&opened[0], queue.0, notes);
            let record = self.phase(opened, phase, queue)?;
            out.record(&record)?;
            show(what, &record);
        }
        out.step(&format!("on-disk: {GROWING}, tranches of {} KiB", T >> 10));
        let record = self.growing::<T>()?;
        out.record(&record)?;
        show(format!("{GROWING} to {}", record.keys), &record);
        let each = bytes as f64 / self.workload.keys as f64;
        grid.title.push_str(&format!(
            ": {:.1} MiB, {each:.1} bytes a record, fill {:.2}, a cache of {:.1} MiB",
            bytes as f64 / f64::from(1 << 20),
            loaded.fill,
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

    /// Loads all keys into new tables.
    fn load<const T: usize>(&self, files: &Files) -> Result<Cost, LabError> {
        let shards = self.division.shards as u64;
        let expected = (self.workload.keys / shards, self.payload_bytes() / shards);
        let options = Options::new().expected(expected.0, expected.1);
        let options = options.buffer_bytes((256 << 20) / self.division.shards);
        let tables = files.tables(TrancheFile::<T>::create, &options)?;
        shards::run(self.division, tables, |owned| self.insert(owned, 0, self.workload.keys))
    }

    /// Puts the keys with these indices into their tables.
    fn insert<const T: usize>(
        &self,
        owned: &mut Owned<T>,
        first: u64,
        end: u64,
    ) -> Result<(), LabError> {
        let speller = Speller::new(self.lengths);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for at in first..end {
            let number = self.workload.key(at);
            let Some(place) = owned.place(number) else { continue };
            key.clear();
            value.clear();
            speller.append_key(number, &mut key);
            speller.append_value(number, 0, &mut value);
            owned.timed(place, |table| table.put(&key, &value).map_err(failed))?;
        }
        owned.sync()
    }

    /// Adds keys to small tables, so that they grow a hundredfold, each change durable after a
    /// crash as soon as it is written.
    fn growing<const T: usize>(&self) -> Result<Record, LabError> {
        let files = Files::new(&self.location, self.division);
        let end = self.workload.keys.min(GROWN_MAX);
        let begin = (end / GROWN_FROM).max(1).min(end);
        let options = Options::new().buffer_bytes((8 << 20) / self.division.shards);
        let tables = files.tables(TrancheFile::<T>::create, &options)?;
        shards::run(self.division, tables, |owned| self.insert(owned, 0, begin))?;
        let tables = files.tables(TrancheFile::<T>::open, &options)?;
        let cost = shards::run(self.division, tables, |owned| self.insert(owned, begin, end))?;
        let record = self.record::<T>(GROWING, (end - begin).max(1), USUAL, &cost);
        Ok(Record { keys: end, resizes: Some(cost.counters.splits), ..record })
    }

    /// Does one phase with tables whose caches are empty.
    fn phase<const T: usize>(
        &self,
        tables: Vec<TrancheFile<T>>,
        phase: &'static str,
        queue: (bool, usize),
    ) -> Result<Record, LabError> {
        // One at a time, if latencies mean anything.
        let most = if queue.1 == 1 { 1 } else { BATCH };
        let sequence = Sequence::new(self, phase);
        let cost = shards::run(self.division, tables, |owned| {
            let mut batches: Vec<_> = (0..owned.count()).map(|_| Keys::new(self, phase)).collect();
            for at in 0..self.ops {
                let number = sequence.number(at);
                let Some(place) = owned.place(number) else { continue };
                batches[place].push(number);
                if batches[place].numbers.len() < most {
                    continue;
                }
                let batch = |file: &mut _| self.batch(file, &batches[place], phase);
                if most == 1 {
                    owned.timed(place, batch)?;
                } else {
                    batch(owned.table(place))?;
                }
                batches[place].clear();
            }
            for (place, keys) in batches.iter().enumerate() {
                self.batch(owned.table(place), keys, phase)?;
            }
            if phase == HALF_PUTS { owned.sync() } else { Ok(()) }
        })?;
        Ok(self.record::<T>(phase, self.ops, queue, &cost))
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
            threads: self.division.threads,
            keys: self.workload.keys,
            phase: phase.to_owned(),
            ops,
            key_bytes: Some(self.lengths.keys.to_string()),
            value_bytes: Some(self.lengths.values.to_string()),
            case: Some(self.case::<T>(io_uring, depth)),
            reads_per_op: per_op(tranche_reads + long_reads),
            writes_per_op: per_op(tranche_writes),
            seed: self.workload.seed,
            ..Record::at(place)
        };
        record.time(cost.seconds, cost.cpu);
        if !cost.latencies.is_empty() {
            let quantile = |part| Some(cost.latencies.value_at_quantile(part));
            record.p50_ns = quantile(0.5);
            record.p95_ns = quantile(0.95);
            record.p99_ns = quantile(0.99);
            record.p999_ns = quantile(0.999);
            record.max_ns = Some(cost.latencies.max());
        }
        record
    }

    fn case<const T: usize>(&self, io_uring: bool, depth: usize) -> String {
        let shards = match self.division.shards {
            1 => String::new(),
            more => format!("{more} shards, "),
        };
        format!("{} KiB, {shards}{}, depth {depth}", T >> 10, name_of(io_uring))
    }
}

/// Returns the cells of a row.
fn row(record: &Record) -> Vec<String> {
    let time = |ns: Option<u64>| ns.map_or("-".into(), |ns| duration(ns as f64));
    vec![
        record.mops.map_or("-".into(), |mops| significant(mops * 1e6)),
        cell(record.cpu_ns_per_op, 0),
        cell(record.reads_per_op, 3),
        cell(record.writes_per_op, 3),
        time(record.p50_ns),
        time(record.p99_ns),
        time(record.p999_ns),
        time(record.max_ns),
    ]
}

fn name_of(io_uring: bool) -> &'static str {
    if io_uring { "io_uring" } else { "pread" }
}

/// The keys of the operations of a phase.
struct Sequence {
    workload: Workload,
    phase: &'static str,
    order: Permutation,
}

impl Sequence {
    fn new(bench: &Bench, phase: &'static str) -> Self {
        let order = Permutation::new(bench.workload.keys, bench.workload.seed ^ 0x0d15);
        Sequence { workload: bench.workload, phase, order }
    }

    /// Returns the key of an operation.
    fn number(&self, at: u64) -> u64 {
        let index = match self.phase {
            GET_IN_ORDER | GET_AGAIN => at,
            GET_IN_ANOTHER => self.order.at(at),
            HALF_PUTS => draw(self.workload.seed, 7, at) % self.workload.keys,
            _ => self.workload.keys + at,
        };
        self.workload.key(index)
    }
}

/// The keys of a batch.
struct Keys {
    speller: Speller,
    present: bool,
    numbers: Vec<u64>,
    spelled: Vec<Vec<u8>>,
}

impl Keys {
    fn new(bench: &Bench, phase: &'static str) -> Self {
        Keys {
            speller: Speller::new(bench.lengths),
            present: phase != Phase::Negative.name(),
            numbers: Vec::new(),
            spelled: Vec::new(),
        }
    }

    fn push(&mut self, number: u64) {
        let mut key = Vec::new();
        self.speller.append_key(number, &mut key);
        self.numbers.push(number);
        self.spelled.push(key);
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.spelled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::experiment;
    use crate::testing::Kept;

    /// Runs the experiment with few keys, and returns its records.
    fn run(shards: usize) -> Vec<Record> {
        let name = format!("lab-on-disk-{shards}-{}", std::process::id());
        let location = std::env::temp_dir().join(name);
        std::fs::create_dir(&location).unwrap();
        let (experiment, mut kept) = (experiment("on-disk").unwrap(), Kept::default());
        let settings = Settings {
            quick: true,
            keys: Some(20_000),
            ops: Some(2_000),
            location: Some(location.clone()),
            shards: Some(shards),
            ..Settings::default()
        };
        let report = experiment.run(&settings, &mut kept).unwrap();
        assert_eq!(report.tables.len(), 2);
        // For each size the load, five queues, four more phases, and growth.
        assert_eq!(kept.records.len(), 2 * (1 + 5 + 4 + 1));
        assert_eq!(std::fs::read_dir(&location).unwrap().count(), 0, "files are left behind");
        std::fs::remove_dir(&location).unwrap();
        kept.records
    }

    /// Every phase is recorded for both sizes, and reads what it should: hardly more than one
    /// tranche for a key.
    #[test]
    fn lookups_read_one_tranche() {
        let records = run(1);
        for record in &records {
            assert!(record.seconds.unwrap() > 0.0 && record.cpu_ns_per_op.is_some());
            let (reads, puts) = (record.reads_per_op.unwrap(), [LOAD, GROWING]);
            let puts = puts.contains(&record.phase.as_str());
            assert!(reads <= if puts { 0.1 } else { 1.5 }, "{}: {reads}", record.phase);
            let alone = record.case.as_ref().unwrap().ends_with(" 1");
            assert_eq!(record.p99_ns.is_some(), alone || puts);
            assert_eq!(record.resizes.is_some_and(|splits| splits > 0), record.phase == GROWING);
        }
        let one_by_one = records.iter().find(|record| record.phase == GET_IN_ANOTHER).unwrap();
        // A read takes longer than a microsecond.
        assert!(one_by_one.p50_ns.unwrap() > 1000, "{:?}", one_by_one.p50_ns);
        assert!(one_by_one.reads_per_op.unwrap() > 0.9, "{:?}", one_by_one.reads_per_op);
        let bytes = records[0].bytes_per_record.unwrap();
        // The journal is larger than this table.
        assert!((20.0..4000.0).contains(&bytes), "{bytes}");
    }

    /// Every key is found in the table that it was put into, whichever thread owns that.
    #[test]
    fn shards_have_one_owner_each() {
        let records = run(5);
        let threads = Settings::processors().min(5);
        for record in &records {
            assert_eq!(record.threads, threads);
            assert!(record.case.as_ref().unwrap().contains("KiB, 5 shards, "));
            if record.phase == GET_IN_ANOTHER {
                let reads = record.reads_per_op.unwrap();
                // Keys of a batch share the few tranches of such small tables.
                assert!(reads > 0.0 && reads < 1.5, "{reads}");
            }
        }
    }
}
