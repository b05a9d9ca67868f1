//! Tables that share the keys, and the threads that own them.
//!
//! Each key belongs to one table by a hash of its own. Each table is used by one thread only, so
//! nothing is locked; if there are more tables than processors, a thread owns several.

use std::fs::remove_file;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use evermap_tranche_file::{Counters, Options, TrancheFile};
use hdrhistogram::Histogram;

use crate::LabError;
use crate::driver::latency::histogram;
use crate::machine::CpuClock;
use crate::subject::unique_path;
use crate::workload::bytes::draw;

/// The name of the table in records.
pub(super) const INDEX: &str = "tranche-file";

#[cold]
pub(super) fn failed(error: evermap_pm::Error) -> LabError {
    LabError::index(INDEX, error)
}

/// How the keys are divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Division {
    /// The number of tables.
    pub(super) shards: usize,
    /// The number of threads that own them.
    pub(super) threads: usize,
}

impl Division {
    /// Returns the table of a key.
    fn shard(self, number: u64) -> usize {
        (draw(0x51a7d, 0, number) % self.shards as u64) as usize
    }
}

/// The files of the tables, which are removed at the end.
pub(super) struct Files(Vec<PathBuf>);

impl Files {
    /// Returns names that no file has.
    pub(super) fn new(location: &Path, division: Division) -> Self {
        Files((0..division.shards).map(|_| unique_path(location)).collect())
    }

    /// Opens or creates all tables.
    pub(super) fn tables<const T: usize>(
        &self,
        get: impl Fn(&Path, Options) -> evermap_pm::Result<TrancheFile<T>>,
        options: &Options,
    ) -> Result<Vec<TrancheFile<T>>, LabError> {
        let all = self.0.iter().map(|path| get(path, options.clone()).map_err(failed));
        all.collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            // Files that cannot be removed are not an error.
            let _ = remove_file(path);
            let mut long = path.clone().into_os_string();
            long.push(".long");
            let _ = remove_file(long);
        }
    }
}

/// What all tables together have done, and have become.
pub(super) struct Cost {
    pub(super) seconds: f64,
    pub(super) cpu: f64,
    pub(super) counters: Counters,
    pub(super) latencies: Histogram<u64>,
    pub(super) file_bytes: u64,
    /// The share of the space in their tranches that is taken, on average.
    pub(super) fill: f64,
}

/// The tables of one thread.
pub(super) struct Owned<const T: usize> {
    division: Division,
    thread: usize,
    tables: Vec<TrancheFile<T>>,
    /// Durations of operations, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

impl<const T: usize> Owned<T> {
    /// Returns the position of the table of a key in [`tables`](Owned::table), if it is one of
    /// this thread.
    pub(super) fn place(&self, number: u64) -> Option<usize> {
        let shard = self.division.shard(number);
        (shard % self.division.threads == self.thread).then_some(shard / self.division.threads)
    }

    /// Returns the number of tables.
    pub(super) fn count(&self) -> usize {
        self.tables.len()
    }

    pub(super) fn table(&mut self, place: usize) -> &mut TrancheFile<T> {
        &mut self.tables[place]
    }

    /// Calls `operation` with a table, and records how long that takes.
    pub(super) fn timed(
        &mut self,
        place: usize,
        operation: impl FnOnce(&mut TrancheFile<T>) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let begin = Instant::now();
        operation(&mut self.tables[place])?;
        self.latencies.saturating_record(begin.elapsed().as_nanos() as u64);
        Ok(())
    }

    /// Makes all changes durable.
    pub(super) fn sync(&mut self) -> Result<(), LabError> {
        self.tables.iter_mut().try_for_each(|table| table.sync().map_err(failed))
    }
}

/// Divides tables among threads, and calls `work` in each. Adds up what the tables have done since
/// they were opened; time is counted from the first thread's start to the last one's end.
pub(super) fn run<const T: usize>(
    division: Division,
    tables: Vec<TrancheFile<T>>,
    work: impl Fn(&mut Owned<T>) -> Result<(), LabError> + Sync,
) -> Result<Cost, LabError> {
    let mut owners: Vec<Owned<T>> = (0..division.threads)
        .map(|thread| Owned { division, thread, tables: Vec::new(), latencies: histogram() })
        .collect();
    for (shard, table) in tables.into_iter().enumerate() {
        owners[shard % division.threads].tables.push(table);
    }
    let (clock, begin) = (CpuClock::now(), Instant::now());
    let work = &work;
    let results: Vec<Result<(), LabError>> = thread::scope(|scope| {
        let all = owners.iter_mut().map(|owned| scope.spawn(move || work(owned)));
        let all: Vec<_> = all.collect();
        all.into_iter().map(|one| one.join().expect("an owner has panicked")).collect()
    });
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), clock.elapsed().own);
    results.into_iter().collect::<Result<(), _>>()?;
    Ok(sum(seconds, cpu, &owners))
}

/// Adds up what tables have done.
fn sum<const T: usize>(seconds: f64, cpu: f64, owners: &[Owned<T>]) -> Cost {
    let (counters, latencies) = (Counters::default(), histogram());
    let mut cost = Cost { seconds, cpu, counters, latencies, file_bytes: 0, fill: 0.0 };
    let (all, mut count) = (&mut cost.counters, 0);
    for owned in owners {
        cost.latencies.add(&owned.latencies).expect("equal bounds");
        for table in &owned.tables {
            let one = table.counters();
            all.tranche_reads += one.tranche_reads;
            all.long_reads += one.long_reads;
            all.tranche_writes += one.tranche_writes;
            all.journal_writes += one.journal_writes;
            all.splits += one.splits;
            cost.file_bytes += table.file_bytes();
            cost.fill += table.fill();
            count += 1;
        }
    }
    cost.fill /= f64::from(count.max(1));
    cost
}
