//! What an experiment says: a progress bar while it runs, a line of JSON for every figure, a table at the end.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::LabError;
use crate::limits::Independent;
use crate::load_factor::{LoadFactorReport, Spread};
use crate::micro::{MicroReport, PhaseReport, Ratio, SubjectReport};
use crate::subject::Counts;

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
    /// Processor time of the process for an operation, nanoseconds: helpers of the table included.
    pub cpu_ns_per_op: Option<f64>,
    /// Median latency, nanoseconds; for `get_many` of a batch.
    pub p50_ns: Option<u64>,
    /// 99th percentile of latency, nanoseconds.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile of latency, nanoseconds.
    pub p999_ns: Option<u64>,
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
    /// What the keys follow from.
    pub seed: u64,
    /// Processors that others kept busy, on average.
    pub foreign_cpu: Option<f64>,
    /// Whether that was too much for the figures to be trusted.
    pub void: bool,
}

impl Record {
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

/// Where an experiment's words go. Each method does nothing unless it is overridden.
pub trait Output {
    /// The experiment begins; it has so many steps.
    fn begin(&mut self, _steps: u64) {}

    /// The next step begins.
    fn step(&mut self, _what: &str) {}

    /// Something was measured.
    ///
    /// # Errors
    /// `Io`.
    fn record(&mut self, _record: &Record) -> Result<(), LabError> {
        Ok(())
    }

    /// The micro experiment is complete.
    ///
    /// # Errors
    /// `Io`.
    fn micro(&mut self, _report: &MicroReport) -> Result<(), LabError> {
        Ok(())
    }

    /// The load factor experiment is complete.
    ///
    /// # Errors
    /// `Io`.
    fn load_factor(&mut self, _report: &LoadFactorReport) -> Result<(), LabError> {
        Ok(())
    }
}

/// Both of two outputs.
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

    fn micro(&mut self, report: &MicroReport) -> Result<(), LabError> {
        self.0.micro(report)?;
        self.1.micro(report)
    }

    fn load_factor(&mut self, report: &LoadFactorReport) -> Result<(), LabError> {
        self.0.load_factor(report)?;
        self.1.load_factor(report)
    }
}

/// An output, or none.
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

    fn micro(&mut self, report: &MicroReport) -> Result<(), LabError> {
        self.as_mut().map_or(Ok(()), |out| out.micro(report))
    }

    fn load_factor(&mut self, report: &LoadFactorReport) -> Result<(), LabError> {
        self.as_mut().map_or(Ok(()), |out| out.load_factor(report))
    }
}

/// Every record as a line of JSON, written at once, so that an interrupted run leaves what it had.
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

/// Progress on standard error where that is a terminal, and tables for people at the end.
pub struct Terminal<W> {
    tables: W,
    progress: ProgressBar,
}

impl<W: Write> Terminal<W> {
    /// Writes tables to `tables`.
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

    fn micro(&mut self, report: &MicroReport) -> Result<(), LabError> {
        self.write(&micro_tables(report))
    }

    fn load_factor(&mut self, report: &LoadFactorReport) -> Result<(), LabError> {
        self.write(&load_factor_table(report))
    }
}

#[cold]
fn cannot_write(source: io::Error) -> LabError {
    LabError::Io { action: "write results", path: None, source }
}

/// A report as text: one table for throughput, latency, counters and space each, then the ratios.
///
/// Figures marked `*` are from rounds that were disturbed, for want of others.
pub fn micro_tables(report: &MicroReport) -> String {
    let mut text = String::new();
    let Some(first) = report.subjects.first() else {
        return text;
    };
    let phases: Vec<_> = first.phases.iter().map(|phase| phase.phase.name().to_owned()).collect();
    let mut table = |title: String, cell: &dyn Fn(&PhaseReport) -> Option<String>| {
        let rows: Vec<_> =
            report.subjects.iter().filter_map(|subject| row(subject, cell)).collect();
        if !rows.is_empty() {
            text.push_str(&grid(&title, &phases, &rows));
        }
    };
    let record = &first.phases.first().map(|phase| phase.summary.clone()).unwrap_or_default();
    let run = format!("{} keys, {} threads, seed {}", record.keys, record.threads, record.seed);
    table(format!("Million operations a second, medians ({run})"), &|phase| {
        Some(format!("{:.2}{}", phase.summary.mops?, mark(phase.summary.void)))
    });
    table("Processor time of an operation, ns".into(), &|phase| {
        Some(format!("{:.0}", phase.summary.cpu_ns_per_op?))
    });
    type Quantile = (&'static str, fn(&Record) -> Option<u64>);
    let quantiles: [Quantile; 3] = [
        ("Median latency", |record| record.p50_ns),
        ("99th percentile of latency", |record| record.p99_ns),
        ("99.9th percentile of latency", |record| record.p999_ns),
    ];
    for (name, figure) in quantiles {
        let title = format!("{name}, ns; get_many: of a batch");
        table(title, &|phase| Some(figure(&phase.summary)?.to_string()));
    }
    table("Flushes / fences of an operation".into(), &|phase| {
        Some(format!("{:.2} / {:.2}", phase.summary.flushes_per_op?, phase.summary.fences_per_op?))
    });
    table("Lines read / written in an operation".into(), &|phase| {
        let Record { lines_read_per_op, lines_written_per_op, .. } = phase.summary;
        Some(format!("{:.2} / {:.2}", lines_read_per_op?, lines_written_per_op?))
    });
    table("Load factor after the phase".into(), &|phase| {
        Some(format!("{:.3}", phase.summary.load_factor?))
    });
    table("MiB in ordinary memory + in the medium, after the phase".into(), &|phase| {
        let mib = |bytes: Option<u64>| bytes.unwrap_or(0) >> 20;
        let Record { dram_bytes, pm_bytes, .. } = phase.summary;
        dram_bytes.or(pm_bytes)?;
        Some(format!("{} + {}", mib(dram_bytes), mib(pm_bytes)))
    });
    if let Some(limits) = &report.limits {
        table("Share of the machine's limit, %".into(), &|phase| {
            Some(format!("{:.0}", 100.0 * limits.share(phase.phase, &phase.summary)?))
        });
    }
    text.push_str(&ratio_table(&report.ratios, &phases));
    text.push_str(&notes(report));
    text
}

fn mark(void: bool) -> &'static str {
    if void { "*" } else { "" }
}

type Row = (String, Vec<String>);

/// A subject's cells; nothing where it has none.
fn row(subject: &SubjectReport, cell: &dyn Fn(&PhaseReport) -> Option<String>) -> Option<Row> {
    let cells: Vec<_> = subject.phases.iter().map(cell).collect();
    cells.iter().any(Option::is_some).then(|| {
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        (subject.name.to_owned(), cells.collect())
    })
}

fn ratio_table(ratios: &[Ratio], phases: &[String]) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for ratio in ratios {
        let name = format!("{} / {}", ratio.of, ratio.to);
        let at = phases.iter().position(|phase| phase == ratio.phase.name());
        if rows.last().is_none_or(|row| row.0 != name || at == Some(0)) {
            rows.push((name, vec!["-".to_owned(); phases.len()]));
        }
        if let (Some(at), Some(row)) = (at, rows.last_mut()) {
            let (low, high) = (ratio.interval.low, ratio.interval.high);
            row.1[at] = format!("{:.2} {low:.2}-{high:.2}{}", ratio.median, mark(ratio.void));
        }
    }
    let Some(least) = ratios.iter().map(|ratio| ratio.interval.coverage).min_by(f64::total_cmp)
    else {
        return String::new();
    };
    let title = format!(
        "Times as fast: median, and the range that holds the true one with at least {:.0} %",
        100.0 * least
    );
    grid(&title, phases, &rows)
}

/// The machine's limits, and how far the figures can be trusted.
fn notes(report: &MicroReport) -> String {
    let mut text = String::new();
    if let Some(limits) = &report.limits {
        let _ = write!(
            text,
            "\nThe machine{}, on {} MiB: a dependent load {:.0} ns; ",
            mark(limits.void),
            limits.bytes >> 20,
            limits.dependent_load_ns
        );
        if let Some(ns) = limits.persist_ns {
            let _ = write!(text, "an ordered persist {ns:.0} ns; ");
        }
        text.push_str("independent lines, million/s:\n");
        for one in &limits.independent {
            let Independent { threads, distance, mlines } = one;
            let _ = writeln!(text, "  {threads} threads, {distance:2} ahead: {mlines:.0}");
        }
    }
    for subject in &report.subjects {
        if subject.repeated > 0 {
            let _ =
                writeln!(text, "{}: {} disturbed runs repeated", subject.name, subject.repeated);
        }
    }
    let mut phases = report.subjects.iter().flat_map(|subject| &subject.phases);
    let void = report.limits.as_ref().is_some_and(|limits| limits.void);
    if void || phases.any(|phase| phase.summary.void) {
        text.push_str("* others used the processors in every attempt: do not trust this figure\n");
    }
    text
}

/// The load factor report as text.
pub fn load_factor_table(report: &LoadFactorReport) -> String {
    let cells = |spread: Option<Spread>, digits: usize| {
        let Some(Spread { min, mean, max }) = spread else {
            return vec!["-".to_owned(); 3];
        };
        [min, mean, max].map(|value| format!("{value:.digits$}")).to_vec()
    };
    let columns = ["min", "mean", "max"].map(str::to_owned);
    let rows = [
        ("load factor".to_owned(), cells(Some(report.load_factor), 3)),
        ("bytes for a pair".to_owned(), cells(report.bytes_per_record, 1)),
    ];
    let title = format!(
        "{}, from {} to {} keys, {} samples",
        report.index, report.from, report.to, report.samples
    );
    grid(&title, &columns, &rows)
}

/// Aligned columns under a title.
fn grid(title: &str, columns: &[String], rows: &[Row]) -> String {
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row.1[at].chars().count());
        cells.chain([columns[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns.len()).map(width).collect();
    let names = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let mut text = format!("\n{title}\n{:names$}", "");
    for (column, width) in columns.iter().zip(&widths) {
        let _ = write!(text, "  {column:>width$}");
    }
    text.push('\n');
    for (name, cells) in rows {
        let _ = write!(text, "{name:names$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::{MicroConfig, run_micro_on};
    use crate::subject::subject;
    use crate::testing::{Fault, faulty};
    use crate::workload::Phase;

    /// What programs that read the lines rely on.
    const FIELDS: [&str; 27] = [
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
        "cpu_ns_per_op",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "flushes_per_op",
        "fences_per_op",
        "lines_read_per_op",
        "lines_written_per_op",
        "load_factor",
        "dram_bytes",
        "pm_bytes",
        "page_size",
        "location",
        "flush_kind",
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
        let config = MicroConfig {
            keys: 1000,
            rounds: 1,
            foreign_limit: f64::INFINITY,
            patience: std::time::Duration::ZERO,
            ..MicroConfig::default()
        };
        let mut out = JsonLines(Vec::new());
        run_micro_on(&entries, &config, &mut out).unwrap();
        let text = String::from_utf8(out.0).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // For each table a round and a summary of seven phases; then the machine.
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

    #[test]
    fn tables_show_every_table_phase_and_ratio() {
        let entries = [faulty(Fault::None), subject("reference").unwrap()];
        let config = MicroConfig {
            keys: 1000,
            rounds: 1,
            foreign_limit: f64::INFINITY,
            patience: std::time::Duration::ZERO,
            ..MicroConfig::default()
        };
        let mut out = (Terminal::new(Vec::new()), Some(JsonLines(Vec::new())));
        run_micro_on(&entries, &config, &mut out).unwrap();
        assert!(!out.1.unwrap().0.is_empty());
        let text = String::from_utf8(out.0.tables).unwrap();
        let titles = [
            "Million operations a second, medians (1000 keys, 1 threads, seed 1)",
            "Processor time of an operation, ns",
            "Median latency, ns",
            "99.9th percentile of latency, ns",
            "Flushes / fences of an operation",
            "Lines read / written in an operation",
            "Load factor after the phase",
            "Share of the machine's limit, %",
            "Times as fast",
            "The machine, on 64 MiB: a dependent load ",
        ];
        for title in titles {
            assert!(text.contains(title), "no `{title}` in\n{text}");
        }
        assert!(text.contains("\nfaulty / reference  "), "{text}");
        assert!(text.contains("1.00 / 2.00"), "{text}");
        for phase in Phase::ALL {
            assert!(text.contains(phase.name()), "{phase}");
        }
    }

    #[test]
    fn columns_are_aligned() {
        let cells = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows =
            [("a".to_owned(), cells(["1", "22222"])), ("long".to_owned(), cells(["333", "4"]))];
        let text = grid("Title", &cells(["x", "y"]), &rows);
        assert_eq!(text, "\nTitle\n        x      y\na       1  22222\nlong  333      4\n");
    }

    #[test]
    fn load_factors_as_text() {
        let report = LoadFactorReport {
            index: "some",
            from: 10,
            to: 20,
            samples: 3,
            load_factor: Spread { min: 0.5, mean: 0.625, max: 0.75 },
            bytes_per_record: Some(Spread { min: 20.0, mean: 25.04, max: 30.0 }),
        };
        let text = load_factor_table(&report);
        assert!(text.starts_with("\nsome, from 10 to 20 keys, 3 samples\n"), "{text}");
        assert!(text.contains("load factor       0.500  0.625  0.750\n"), "{text}");
        assert!(text.contains("bytes for a pair   20.0   25.0   30.0\n"), "{text}");
    }

    /// A full disk must not pass for a finished run.
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
