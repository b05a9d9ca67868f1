//! One measured thing, as it is written to JSON.

use std::path::PathBuf;

use serde::Serialize;

use crate::subject::facts::{Counts, Place};

/// One measured thing. What was not measured is nothing, and `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Record {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Name of the table.
    pub index: String,
    /// Name of the medium that it really was on.
    pub medium: String,
    /// Threads that shared the operations.
    pub threads: usize,
    /// Keys that were inserted before.
    pub keys: u64,
    /// What was done.
    pub phase: String,
    /// The round; nothing for the summary of all rounds.
    pub round: Option<usize>,
    /// Operations, over all threads.
    pub ops: u64,
    /// From the first thread's start to the last one's end.
    pub seconds: Option<f64>,
    /// Million operations a second, over all threads.
    pub mops: Option<f64>,
    /// In a summary: the range that holds the true median.
    pub mops_low: Option<f64>,
    /// Its upper end.
    pub mops_high: Option<f64>,
    /// Processor time of the process for an operation, nanoseconds: helpers of the table included.
    pub cpu_ns_per_op: Option<f64>,
    /// In a summary: the range that holds the true median.
    pub cpu_low: Option<f64>,
    /// Its upper end.
    pub cpu_high: Option<f64>,
    /// In a summary: what a twentieth of the rounds did not exceed. With enough rounds, what an operation takes while nobody else is at
    /// the core or the memory.
    pub cpu_least: Option<f64>,
    /// Median latency, nanoseconds; for `get_many` of a batch.
    pub p50_ns: Option<u64>,
    /// 99th percentile of latency, nanoseconds.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile of latency, nanoseconds.
    pub p999_ns: Option<u64>,
    /// Longest latency, nanoseconds.
    pub max_ns: Option<u64>,
    /// Lines flushed for an operation.
    pub flushes_per_op: Option<f64>,
    /// Fences for an operation.
    pub fences_per_op: Option<f64>,
    /// Distinct lines read in an operation.
    pub lines_read_per_op: Option<f64>,
    /// Distinct lines written in an operation.
    pub lines_written_per_op: Option<f64>,
    /// Pairs divided by places, after the phase.
    pub load_factor: Option<f64>,
    /// Bytes in ordinary memory, after the phase.
    pub dram_bytes: Option<u64>,
    /// Bytes in the medium, after the phase.
    pub pm_bytes: Option<u64>,
    /// Page size that most of the table's memory really had, bytes.
    pub page_size: Option<u64>,
    /// The directory of the medium's file.
    pub location: Option<PathBuf>,
    /// What a flush was.
    pub flush_kind: Option<String>,
    /// What an acknowledged change survives: `nothing`, `process` or `power`.
    pub survives: &'static str,
    /// Lengths of keys, bytes.
    pub key_bytes: Option<String>,
    /// Lengths of values, bytes.
    pub value_bytes: Option<String>,
    /// How popular the keys of a mix were.
    pub distribution: Option<&'static str>,
    /// Skew of that.
    pub theta: Option<f64>,
    /// On the emulated medium, nanoseconds that a persist took at least.
    pub persist_ns: Option<u64>,
    /// On the emulated medium, nanoseconds that a line from outside the cache took.
    pub read_ns: Option<u64>,
    /// In a series over time: seconds since its beginning.
    pub at_seconds: Option<f64>,
    /// What the keys follow from.
    pub seed: u64,
    /// Processors that others kept busy, on average.
    pub foreign_cpu: Option<f64>,
    /// Whether that was too much for the figures to be trusted.
    pub void: bool,
}

impl Record {
    /// Of something that lives at `place`.
    pub(crate) fn at(place: Place) -> Self {
        Record {
            medium: place.medium,
            flush_kind: place.flush_kind,
            location: place.location,
            survives: place.survives.name(),
            ..Record::default()
        }
    }

    /// Enters wall-clock time and processor time.
    pub(crate) fn time(&mut self, seconds: f64, cpu_seconds: f64) {
        let ops = self.ops as f64;
        self.seconds = Some(seconds);
        self.mops = Some(ops / seconds / 1e6);
        self.cpu_ns_per_op = Some(cpu_seconds * 1e9 / ops);
    }

    /// Enters what was counted during all operations.
    pub(crate) fn count(&mut self, counts: Counts) {
        let per_op = |count: u64| Some(count as f64 / self.ops as f64);
        self.flushes_per_op = per_op(counts.flushes);
        self.fences_per_op = per_op(counts.fences);
        self.lines_read_per_op = per_op(counts.lines_read);
        self.lines_written_per_op = per_op(counts.lines_written);
    }
}
