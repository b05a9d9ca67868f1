//! Where experiments write: a progress bar while they run, a line of JSON for every figure, tables
//! at the end.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::model::Report;
use super::record::Record;
use crate::LabError;

/// Receives the output of an experiment. The default of each method does nothing.
pub trait Output {
    /// Starts an experiment with this number of steps.
    fn begin(&mut self, _steps: u64) {}

    /// Starts the next step.
    fn step(&mut self, _what: &str) {}

    /// Takes a measurement.
    ///
    /// # Errors
    ///
    /// `Io`.
    fn record(&mut self, _record: &Record) -> Result<(), LabError> {
        Ok(())
    }

    /// Takes the report of a complete experiment.
    ///
    /// # Errors
    ///
    /// `Io`.
    fn report(&mut self, _report: &Report) -> Result<(), LabError> {
        Ok(())
    }
}

/// Writes to both of two outputs.
impl<A: Output, B: Output> Output for (A, B) {
    fn begin(&mut self, steps: u64) {
        self.0.begin(steps);
        self.1.begin(steps);
    }

    fn step(&mut self, what: &str) {
        self.0.step(what);
        self.1.step(what);
    }

    fn record(&mut self, record: &Record) -> Result<(), LabError> {
        self.0.record(record)?;
        self.1.record(record)
    }

    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        self.0.report(report)?;
        self.1.report(report)
    }
}

/// Writes to an output if there is one.
impl<A: Output> Output for Option<A> {
    fn begin(&mut self, steps: u64) {
        if let Some(out) = self {
            out.begin(steps);
        }
    }

    fn step(&mut self, what: &str) {
        if let Some(out) = self {
            out.step(what);
        }
    }

    fn record(&mut self, record: &Record) -> Result<(), LabError> {
        self.as_mut().map_or(Ok(()), |out| out.record(record))
    }

    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        self.as_mut().map_or(Ok(()), |out| out.report(report))
    }
}

/// Writes every record as a line of JSON immediately, so that an interrupted run keeps what it had.
pub struct JsonLines<W>(pub W);

impl<W: Write> Output for JsonLines<W> {
    fn record(&mut self, record: &Record) -> Result<(), LabError> {
        let line = serde_json::to_string(record).map_err(io::Error::from);
        line.and_then(|line| {
            writeln!(self.0, "{line}")?;
            self.0.flush()
        })
        .map_err(cannot_write)
    }
}

/// Shows progress on standard error if that is a terminal, and tables for people at the end.
pub struct Terminal<W> {
    tables: W,
    progress: ProgressBar,
}

impl<W: Write> Terminal<W> {
    /// Creates an output that writes tables to `tables`.
    pub fn new(tables: W) -> Self {
        Terminal { tables, progress: ProgressBar::hidden() }
    }

    fn write(&mut self, text: &str) -> Result<(), LabError> {
        self.progress.finish_and_clear();
        self.tables
            .write_all(text.as_bytes())
            .and_then(|()| self.tables.flush())
            .map_err(cannot_write)
    }
}

impl<W: Write> Output for Terminal<W> {
    fn begin(&mut self, steps: u64) {
        self.progress.finish_and_clear();
        if io::stderr().is_terminal() {
            self.progress = ProgressBar::new(steps);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}] {msg}");
            self.progress.set_style(style.expect("valid template"));
        }
    }

    fn step(&mut self, what: &str) {
        // The bar shows finished steps; the first step begins when none is.
        if !self.progress.message().is_empty() {
            self.progress.inc(1);
        }
        self.progress.set_message(what.to_owned());
        self.progress.tick();
    }

    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        self.write(&report.text())
    }
}

#[cold]
pub(crate) fn cannot_write(source: io::Error) -> LabError {
    LabError::Io { action: "write results", path: None, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Config, Quiet, drive};
    use crate::registry::subject;
    use crate::subject::facts::Counts;
    use crate::testing::{Fault, faulty};
    use crate::workload::Phase;

    /// Programs that read the lines rely on these fields.
    const FIELDS: [&str; 63] = [
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
    ];

    #[test]
    fn figures_of_one_operation() {
        let mut record = Record { ops: 2_000_000, ..Record::default() };
        record.time(0.5, 0.25);
        assert_eq!(record.mops, Some(4.0));
        assert_eq!(record.cpu_ns_per_op, Some(125.0));
        record.count(Counts {
            flushes: 2_000_000,
            fences: 4_000_000,
            lines_read: 1_000_000,
            lines_written: 0,
        });
        assert_eq!((record.flushes_per_op, record.fences_per_op), (Some(1.0), Some(2.0)));
        assert_eq!((record.lines_read_per_op, record.lines_written_per_op), (Some(0.5), Some(0.0)));
    }

    #[test]
    fn lines_hold_every_field_and_null_where_nothing_was_measured() {
        let entries = [faulty(Fault::None), subject("reference").unwrap()];
        let config =
            Config { keys: 1000, rounds: 1, quiet: Quiet::NOT_NEEDED, ..Config::default() };
        let mut out = JsonLines(Vec::new());
        drive(&entries, &config, &mut out).unwrap();
        let text = String::from_utf8(out.0).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // For each table a round and a summary of seven phases, then the machine.
        assert_eq!(lines.iter().filter(|line| line["index"] != "machine").count(), 2 * 2 * 7);
        for line in &lines {
            let fields: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
            let (mut fields, mut expected) = (fields, FIELDS.to_vec());
            fields.sort();
            expected.sort();
            assert_eq!(fields, expected);
        }
        let summary = |index, phase| {
            let found = lines.iter().find(|line| {
                line["index"] == index && line["phase"] == phase && line["round"].is_null()
            });
            found.unwrap().clone()
        };
        let faulty = summary("faulty", Phase::Update.name());
        assert_eq!(faulty["experiment"], "micro");
        assert_eq!(faulty["ops"], 1000);
        assert_eq!(faulty["fences_per_op"], 2.0);
        assert_eq!(faulty["medium"], "dram");
        assert!(faulty["p50_ns"].is_u64() && faulty["mops"].is_f64());
        assert!(faulty["location"].is_null() && faulty["flush_kind"].is_null());
        let reference = summary("reference", Phase::Update.name());
        assert!(reference["fences_per_op"].is_null() && reference["pm_bytes"].is_null());
        assert_eq!(reference["void"], false);
    }

    /// A full disk must not look like a finished run.
    #[test]
    fn what_cannot_be_written_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = JsonLines(Full).record(&Record::default()).unwrap_err().to_string();
        assert!(error.starts_with("write results: "), "{error}");
    }
}
