//! Where experiments write: progress while they run, a line of JSON or CSV for every figure, tables
//! at the end.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::model::Report;
use super::record::{FIELDS, Line, Origin, Record};
use crate::LabError;

/// Receives the output of an experiment. The default of each method does nothing.
pub trait Output {
    /// Starts an experiment with this number of steps.
    fn begin(&mut self, _steps: u64) {}

    /// Starts the next step.
    fn step(&mut self, _what: &str) {}

    /// Says what the step waits for, or why it is repeated. May be called often.
    fn wait(&mut self, _what: &str) {}

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

    fn wait(&mut self, what: &str) {
        self.0.wait(what);
        self.1.wait(what);
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

    fn wait(&mut self, what: &str) {
        if let Some(out) = self {
            out.wait(what);
        }
    }

    fn record(&mut self, record: &Record) -> Result<(), LabError> {
        self.as_mut().map_or(Ok(()), |out| out.record(record))
    }

    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        self.as_mut().map_or(Ok(()), |out| out.report(report))
    }
}

/// The format of the lines of [`Lines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An object with every field.
    Json,
    /// Values separated by commas, below a line with their names.
    Csv,
}

/// Writes every record as a line immediately, so that an interrupted run keeps what it had.
pub struct Lines<W> {
    out: W,
    format: Format,
    origin: Origin,
    /// Whether the names of the fields have been written.
    named: bool,
}

impl<W: Write> Lines<W> {
    /// Creates an output that writes lines to `out`, all with the same origin.
    pub fn new(out: W, format: Format, origin: Origin) -> Self {
        Lines { out, format, origin, named: format == Format::Json }
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let line = Line { record, origin: &self.origin };
        if !self.named {
            writeln!(self.out, "{}", FIELDS.join(","))?;
            self.named = true;
        }
        match self.format {
            Format::Json => writeln!(self.out, "{}", serde_json::to_string(&line)?)?,
            Format::Csv => {
                let line = serde_json::to_value(&line)?;
                writeln!(self.out, "{}", FIELDS.map(|field| csv(&line[field])).join(","))?;
            }
        }
        self.out.flush()
    }
}

impl<W: Write> Output for Lines<W> {
    fn record(&mut self, record: &Record) -> Result<(), LabError> {
        self.write(record).map_err(cannot_write)
    }
}

/// Returns a value as a field of CSV: nothing if it was not measured, and texts in quotation marks
/// if they have to be.
fn csv(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains(['"', ',', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Writes the tables of every experiment as Markdown.
pub struct Markdown<W>(W);

impl<W: Write> Markdown<W> {
    /// Creates an output that writes to `out`.
    pub fn new(out: W) -> Self {
        Markdown(out)
    }
}

impl<W: Write> Output for Markdown<W> {
    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        for grid in report.tables.iter().chain(&report.figures_table()) {
            let text = format!("\n## {}\n\n{}", grid.title, grid.markdown());
            self.0.write_all(text.as_bytes()).map_err(cannot_write)?;
        }
        self.0.flush().map_err(cannot_write)
    }
}

/// Shows on standard error what is being done, and tables for people at the end.
pub struct Terminal<W> {
    tables: W,
    /// Whether tables that are on the page too are left out.
    brief: bool,
    progress: ProgressBar,
    /// The step that has begun last, and when something was last said without a terminal.
    step: String,
    said: Option<Instant>,
}

/// Without a terminal, progress is reported once in this time.
const PAUSE: Duration = Duration::from_secs(10);

impl<W: Write> Terminal<W> {
    /// Creates an output that writes tables to `tables`. If `brief`, only the first of each
    /// experiment, because all are on a page.
    pub fn new(tables: W, brief: bool) -> Self {
        let (progress, step) = (ProgressBar::hidden(), String::new());
        Terminal { tables, brief, progress, step, said: None }
    }

    fn write(&mut self, text: &str) -> Result<(), LabError> {
        self.progress.finish_and_clear();
        self.tables
            .write_all(text.as_bytes())
            .and_then(|()| self.tables.flush())
            .map_err(cannot_write)
    }

    /// Says on standard error what is being done: in the bar, or now and then in a line.
    fn say(&mut self, what: String) {
        if io::stderr().is_terminal() {
            self.progress.set_message(what);
            self.progress.tick();
        } else if self.said.is_none_or(|said| said.elapsed() >= PAUSE) {
            self.said = Some(Instant::now());
            let (done, all) = (self.progress.position(), self.progress.length().unwrap_or(0));
            // If standard error is closed, nobody reads it.
            let _ = writeln!(io::stderr(), "evermap-lab: {done} of {all} steps done; {what}");
        }
    }
}

impl<W: Write> Output for Terminal<W> {
    fn begin(&mut self, steps: u64) {
        self.progress.finish_and_clear();
        self.step.clear();
        if io::stderr().is_terminal() {
            self.progress = ProgressBar::new(steps);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}] {wide_msg}");
            self.progress.set_style(style.expect("valid template"));
        } else {
            self.progress = ProgressBar::hidden();
            self.progress.set_length(steps);
        }
    }

    fn step(&mut self, what: &str) {
        // The bar shows finished steps; the first step begins when none is.
        if !self.step.is_empty() {
            self.progress.inc(1);
        }
        self.step = what.to_owned();
        self.say(self.step.clone());
    }

    fn wait(&mut self, what: &str) {
        self.say(format!("{}: {what}", self.step));
    }

    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        let text = if self.brief { report.brief().text() } else { report.text() };
        self.write(&text)
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
            ..Counts::default()
        });
        assert_eq!((record.flushes_per_op, record.fences_per_op), (Some(1.0), Some(2.0)));
        assert_eq!((record.lines_read_per_op, record.lines_written_per_op), (Some(0.5), Some(0.0)));
    }

    #[test]
    fn lines_hold_every_field_and_null_where_nothing_was_measured() {
        let entries = [faulty(Fault::None), subject("reference").unwrap()];
        let config =
            Config { keys: 1000, rounds: 1, quiet: Quiet::NOT_NEEDED, ..Config::default() };
        let origin = Origin { revision: "12ab".into(), ..Origin::default() };
        let mut out = Lines::new(Vec::new(), Format::Json, origin);
        drive(&entries, &config, &mut out).unwrap();
        let text = String::from_utf8(out.out).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // For each table a round and a summary of eight phases, then the machine.
        assert_eq!(lines.iter().filter(|line| line["index"] != "machine").count(), 2 * 2 * 8);
        for line in &lines {
            assert_eq!(line["revision"], "12ab");
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
        for format in [Format::Json, Format::Csv] {
            let mut full = Lines::new(Full, format, Origin::default());
            let error = full.record(&Record::default()).unwrap_err().to_string();
            assert!(error.starts_with("write results: "), "{error}");
        }
    }

    #[test]
    fn values_are_separated_by_commas_below_their_names() {
        let origin = Origin { machine: "some, \"fast\"".into(), ..Origin::default() };
        let mut out = Lines::new(Vec::new(), Format::Csv, origin);
        let record = Record { index: "one".into(), keys: 7, mops: Some(0.5), ..Record::default() };
        out.record(&record).unwrap();
        out.record(&Record { void: true, ..record }).unwrap();
        let text = String::from_utf8(out.out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], FIELDS.join(","));
        assert!(lines[1].starts_with(",one,,0,7,,,0,,0.5,,"), "{}", lines[1]);
        assert!(lines[1].ends_with(",false,\"some, \"\"fast\"\"\",,,"), "{}", lines[1]);
        assert!(lines[2].contains(",true,"), "{}", lines[2]);
    }

    /// Each field has a row of a table there.
    #[test]
    fn every_field_is_described() {
        let manual = include_str!("../../../../docs/measured/laboratory.md");
        for field in FIELDS {
            let named =
                |line: &&str| line.starts_with("| ") && line.contains(&format!("`{field}`"));
            assert!(manual.lines().any(|line| named(&line)), "{field}");
        }
    }
}
