//! One measurement, as it is written to JSON and CSV.

use std::path::PathBuf;

use serde::Serialize;

use crate::machine::Portrait;
use crate::subject::facts::{Counts, Place, Size};

/// The names of all fields of a line, in their order: those of a [`Record`], then those of an
/// [`Origin`]. Programs that read the lines rely on them, and docs/measured/laboratory.md describes
/// them.
pub(crate) const FIELDS: [&str; 74] = [
    "experiment",
    "index",
    "medium",
    "threads",
    "keys",
    "phase",
    "round",
    "ops",
    "seconds",
    "mops",
    "mops_low",
    "mops_high",
    "cpu_ns_per_op",
    "cpu_low",
    "cpu_high",
    "cpu_least",
    "serving_ns_per_op",
    "p50_ns",
    "p95_ns",
    "p99_ns",
    "p999_ns",
    "p9999_ns",
    "max_ns",
    "gap_ns",
    "flushes_per_op",
    "fences_per_op",
    "lines_read_per_op",
    "lines_written_per_op",
    "blocks_read_per_op",
    "blocks_written_per_op",
    "cache_hits_per_op",
    "locked_per_op",
    "shared_stores_per_op",
    "stores_per_op",
    "load_factor",
    "dram_bytes",
    "pm_bytes",
    "bytes_per_record",
    "displaced",
    "tranches_per_hit",
    "tranches_per_miss",
    "reads_per_op",
    "writes_per_op",
    "page_size",
    "location",
    "flush_kind",
    "survives",
    "key_bytes",
    "value_bytes",
    "distribution",
    "theta",
    "persist_ns",
    "read_ns",
    "near_read_ns",
    "read_mb_s",
    "write_mb_s",
    "case",
    "readers",
    "oversubscribed",
    "hash",
    "misses",
    "resizes",
    "grace_periods",
    "grace_periods_max",
    "expansion_ms",
    "shrink_ms",
    "at_seconds",
    "seed",
    "foreign_cpu",
    "void",
    "machine",
    "kernel",
    "base_page",
    "revision",
];

/// One measurement. What was not measured is `None`, and `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Record {
    /// The name of the experiment.
    pub experiment: &'static str,
    /// The name of the table.
    pub index: String,
    /// The name of the medium that the table really was on.
    pub medium: String,
    /// The number of threads that shared the operations.
    pub threads: usize,
    /// The number of keys that were inserted before.
    pub keys: u64,
    /// What was done.
    pub phase: String,
    /// The round; `None` for the summary of all rounds.
    pub round: Option<usize>,
    /// The number of operations, over all threads.
    pub ops: u64,
    /// Seconds from the start of the first thread to the end of the last one.
    pub seconds: Option<f64>,
    /// Million operations per second, over all threads.
    pub mops: Option<f64>,
    /// In a summary, the lower end of the range that holds the true median.
    pub mops_low: Option<f64>,
    /// The upper end of that range.
    pub mops_high: Option<f64>,
    /// Nanoseconds of processor time of the process per operation, including helper threads of the
    /// table.
    pub cpu_ns_per_op: Option<f64>,
    /// In a summary, the lower end of the range that holds the true median.
    pub cpu_low: Option<f64>,
    /// The upper end of that range.
    pub cpu_high: Option<f64>,
    /// In a summary, the value that a twentieth of the rounds did not exceed. With enough rounds,
    /// this is the cost of an operation while no other program uses the core or the memory.
    pub cpu_least: Option<f64>,
    /// Nanoseconds of processor time per operation of the threads that operate, without helper
    /// threads of the table.
    pub serving_ns_per_op: Option<f64>,
    /// Median latency in nanoseconds; for `get_many`, of a batch.
    pub p50_ns: Option<u64>,
    /// 95th percentile of latency, in nanoseconds.
    pub p95_ns: Option<u64>,
    /// 99th percentile of latency, in nanoseconds.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile of latency, in nanoseconds.
    pub p999_ns: Option<u64>,
    /// 99.99th percentile of latency, in nanoseconds.
    pub p9999_ns: Option<u64>,
    /// Longest latency, in nanoseconds.
    pub max_ns: Option<u64>,
    /// The longest time between the ends of two operations of a thread, in nanoseconds.
    pub gap_ns: Option<u64>,
    /// Flushed lines per operation.
    pub flushes_per_op: Option<f64>,
    /// Fences per operation.
    pub fences_per_op: Option<f64>,
    /// Distinct lines read per operation.
    pub lines_read_per_op: Option<f64>,
    /// Distinct lines written per operation.
    pub lines_written_per_op: Option<f64>,
    /// Distinct blocks of 256 bytes read per operation.
    pub blocks_read_per_op: Option<f64>,
    /// Distinct blocks of 256 bytes written per operation.
    pub blocks_written_per_op: Option<f64>,
    /// Lookups per operation that a cache in front of the store has answered.
    pub cache_hits_per_op: Option<f64>,
    /// Instructions that lock a line per operation, with fences.
    pub locked_per_op: Option<f64>,
    /// Stores per operation to lines that other threads use when they do the same.
    pub shared_stores_per_op: Option<f64>,
    /// Stores per operation outside of the stack.
    pub stores_per_op: Option<f64>,
    /// The number of pairs divided by the number of slots, after the phase.
    pub load_factor: Option<f64>,
    /// Bytes in ordinary memory, after the phase.
    pub dram_bytes: Option<u64>,
    /// Bytes in the medium, after the phase.
    pub pm_bytes: Option<u64>,
    /// All these bytes, divided by the number of pairs.
    pub bytes_per_record: Option<f64>,
    /// The share of the pairs that are not in their home tranche, after the phase.
    pub displaced: Option<f64>,
    /// Tranches that a lookup of a present key parses, on average.
    pub tranches_per_hit: Option<f64>,
    /// Tranches that a lookup of an absent key parses, on average.
    pub tranches_per_miss: Option<f64>,
    /// Reads of a file per operation.
    pub reads_per_op: Option<f64>,
    /// Pages of a file written per operation.
    pub writes_per_op: Option<f64>,
    /// The page size that most of the table's memory really had, in bytes.
    pub page_size: Option<u64>,
    /// The directory of the medium's file.
    pub location: Option<PathBuf>,
    /// The instruction or call that flushed.
    pub flush_kind: Option<String>,
    /// What an acknowledged change survives: `nothing`, `process` or `power`.
    pub survives: &'static str,
    /// Lengths of keys, in bytes.
    pub key_bytes: Option<String>,
    /// Lengths of values, in bytes.
    pub value_bytes: Option<String>,
    /// The distribution of the keys of a mix.
    pub distribution: Option<&'static str>,
    /// The skew of that distribution.
    pub theta: Option<f64>,
    /// On the emulated medium, the least duration of a persist, in nanoseconds.
    pub persist_ns: Option<u64>,
    /// On the emulated medium, the duration of a read of a line that is not in its cache, in
    /// nanoseconds.
    pub read_ns: Option<u64>,
    /// The same, if the thread has just read another line of its block.
    pub near_read_ns: Option<u64>,
    /// On the emulated medium, megabytes of blocks that all threads can read in a second; 0 without
    /// a limit.
    pub read_mb_s: Option<u64>,
    /// The same for writes.
    pub write_mb_s: Option<u64>,
    /// While tables are resized or not: `fixed-8192` and the like, or `resizing`.
    pub case: Option<String>,
    /// The number of threads besides the one that resizes.
    pub readers: Option<usize>,
    /// Whether there were more threads than processors.
    pub oversubscribed: Option<bool>,
    /// How hashes follow from keys: `identity` or `random`.
    pub hash: Option<&'static str>,
    /// Wrong answers: lookups that did not find a key that is present, and others.
    pub misses: Option<u64>,
    /// The number of times that the table was doubled or halved meanwhile.
    pub resizes: Option<u64>,
    /// Grace periods that an expansion waited for, on average.
    pub grace_periods: Option<f64>,
    /// The most grace periods that one expansion waited for.
    pub grace_periods_max: Option<u64>,
    /// Milliseconds of wall-clock time of an expansion, on average.
    pub expansion_ms: Option<f64>,
    /// Milliseconds of wall-clock time of a shrink, on average.
    pub shrink_ms: Option<f64>,
    /// In a series over time, seconds since its start.
    pub at_seconds: Option<f64>,
    /// The seed of the keys.
    pub seed: u64,
    /// The average number of processors that other programs kept busy.
    pub foreign_cpu: Option<f64>,
    /// Whether that was too much for the figures to be trusted.
    pub void: bool,
}

/// On which machine, and with which program, all lines of a run were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Origin {
    /// The processor, the number of them that the program may use, the memory and the architecture.
    pub machine: String,
    /// The operating system and its version.
    pub kernel: String,
    /// The usual page size of the machine. [`Record::page_size`] is that of a table.
    pub base_page: String,
    /// The revision of the program's source.
    pub revision: String,
}

impl Origin {
    /// Returns what a portrait shows.
    pub fn of(portrait: &Portrait) -> Self {
        let fact = |what| portrait.value(what);
        let processors = match fact("processors") {
            "1" => "1 processor".to_owned(),
            more => format!("{more} processors"),
        };
        let parts = [fact("processor"), &processors, fact("memory"), fact("architecture")];
        Origin {
            machine: parts.join(", "),
            kernel: fact("kernel").to_owned(),
            base_page: fact("page size").to_owned(),
            revision: fact("revision").to_owned(),
        }
    }
}

/// A record with its origin.
#[derive(Serialize)]
pub(crate) struct Line<'r> {
    /// What was measured.
    #[serde(flatten)]
    pub(crate) record: &'r Record,
    /// Where.
    #[serde(flatten)]
    pub(crate) origin: &'r Origin,
}

impl Record {
    /// Creates a record of something that is stored at `place`.
    pub(crate) fn at(place: Place) -> Self {
        Record {
            medium: place.medium,
            flush_kind: place.flush_kind,
            location: place.location,
            survives: place.survives.name(),
            ..Record::default()
        }
    }

    /// Sets wall-clock time and processor time.
    pub(crate) fn time(&mut self, seconds: f64, cpu_seconds: f64) {
        let ops = self.ops as f64;
        self.seconds = Some(seconds);
        self.mops = Some(ops / seconds / 1e6);
        self.cpu_ns_per_op = Some(cpu_seconds * 1e9 / ops);
    }

    /// Sets the processor time of the threads that operated.
    pub(crate) fn serving(&mut self, cpu_seconds: f64) {
        self.serving_ns_per_op = Some(cpu_seconds * 1e9 / self.ops as f64);
    }

    /// Sets the size of the table.
    pub(crate) fn size(&mut self, size: Size) {
        self.load_factor = size.load_factor;
        self.dram_bytes = size.dram_bytes;
        self.pm_bytes = size.pm_bytes;
        let reported = size.dram_bytes.is_some() || size.pm_bytes.is_some();
        let bytes = size.dram_bytes.unwrap_or(0) + size.pm_bytes.unwrap_or(0);
        let per_record = |&len: &u64| bytes as f64 / len as f64;
        self.bytes_per_record =
            size.len.filter(|&len| reported && len > 0).as_ref().map(per_record);
        if let Some(placement) = size.placement {
            self.displaced = Some(placement.displaced);
            self.tranches_per_hit = Some(placement.tranches_per_hit);
            self.tranches_per_miss = Some(placement.tranches_per_miss);
        }
    }

    /// Returns what can be counted, in the order of the fields of [`Counts`].
    fn counted(&mut self) -> [&mut Option<f64>; 7] {
        [
            &mut self.flushes_per_op,
            &mut self.fences_per_op,
            &mut self.lines_read_per_op,
            &mut self.lines_written_per_op,
            &mut self.blocks_read_per_op,
            &mut self.blocks_written_per_op,
            &mut self.cache_hits_per_op,
        ]
    }

    /// Sets what was counted for `other`.
    pub(crate) fn copy_counts(&mut self, other: &Record) {
        let mut other = other.clone();
        for (own, other) in self.counted().into_iter().zip(other.counted()) {
            *own = *other;
        }
    }

    /// Sets what was counted during all operations.
    pub(crate) fn count(&mut self, counts: Counts) {
        let Counts {
            flushes,
            fences,
            lines_read,
            lines_written,
            blocks_read,
            blocks_written,
            cache_hits,
        } = counts;
        let ops = self.ops as f64;
        let all =
            [flushes, fences, lines_read, lines_written, blocks_read, blocks_written, cache_hits];
        for (own, count) in self.counted().into_iter().zip(all) {
            *own = Some(count as f64 / ops);
        }
    }
}
