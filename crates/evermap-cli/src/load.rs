//! `evermap load`

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evermap::{Error, IndexKind, Map};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressBarIter};

use crate::failure::{Failure, describe};
use crate::format::{Format, Line, Lines, Record};
use crate::open::{MapArguments, index_kind, parse_size};
use crate::print::progress_bar;
use crate::{NEGATIVE, SUCCESS};

/// The maximum number of bad lines that are reported individually.
const REPORTED_MAX: u64 = 20;

/// Store the records of a file, one per line
///
/// Creates the store if there is none. Replaces the values of existing keys. Stops at the first
/// invalid line and reports it; the records before it stay in the store. With --skip-bad, invalid
/// lines are reported and skipped, and the exit code is 1 if there are any.
#[derive(clap::Args)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// File with one record per line; standard input if missing or `-`
    file: Option<PathBuf>,
    /// Format of the lines [default: jsonl for *.jsonl, *.ndjson and *.json, otherwise tsv]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Kind of index, if this command creates the store; tranche is the heterogeneous table
    #[arg(long, value_name = "NAME", default_value_t, value_parser = index_kind())]
    index: IndexKind,
    /// Skip invalid lines
    #[arg(long)]
    skip_bad: bool,
    /// Maximum length of a line; a line of this length has to fit in memory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    max_line: u64,
}

impl Load {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let file = self.file.as_deref().filter(|file| *file != Path::new("-"));
        // Open the input first, so that no store is created if there is no input.
        let (input, bytes): (Box<dyn Read>, _) = match file {
            None => (Box::new(io::stdin().lock()), None),
            Some(path) => {
                let at = |source| Failure::Io { what: path.display().to_string(), source };
                let file = File::open(path).map_err(at)?;
                let metadata = file.metadata().map_err(at)?;
                (Box::new(file), Some(metadata.len()).filter(|_| metadata.is_file()))
            }
        };
        let name = file.map_or("standard input".to_owned(), |file| file.display().to_string());
        let format = self.format.or(file.map(Format::of)).unwrap_or(Format::Tsv);
        let map = self.store.open_or_create(self.index)?;
        let input = progress_bar(bytes).wrap_read(input);
        let mut loader = Loader {
            map: &map,
            store: self.store.path(),
            lines: Lines::new(BufReader::with_capacity(1 << 20, input), self.max_line),
            name,
            loaded: 0,
            bad: 0,
        };
        let loaded = loader.run(format, self.skip_bad);
        let (summary, bad) = (loader.summary(), loader.bad);
        // Close the store properly even after an error, to keep the loaded records.
        map.into_db().close()?;
        loaded?;
        let _ = writeln!(io::stderr(), "{summary}");
        Ok(if bad == 0 { SUCCESS } else { NEGATIVE })
    }
}

/// The reason why a line was not stored.
enum LoadError {
    /// The line is not a valid record.
    Invalid(String),
    /// The store could not store the record.
    Store(Error),
}

/// Stores the lines of an input.
struct Loader<'a> {
    map: &'a Map,
    /// The file of the store.
    store: &'a Path,
    lines: Lines<BufReader<ProgressBarIter<Box<dyn Read>>>>,
    /// The name of the input.
    name: String,
    loaded: u64,
    bad: u64,
}

impl Loader<'_> {
    fn run(&mut self, format: Format, skip_bad: bool) -> Result<(), Failure> {
        let mut line = Vec::new();
        loop {
            let record = match self.lines.next(&mut line) {
                Ok(Line::End) => return Ok(()),
                Ok(Line::Complete) => format.parse(&line),
                Ok(Line::TooLong) => Err("the line is too long; see --max-line".to_owned()),
                Err(source) => return Err(Failure::Io { what: self.name.clone(), source }),
            };
            match record.map_err(LoadError::Invalid).and_then(|record| self.store(&record)) {
                Ok(()) => self.count(),
                Err(LoadError::Invalid(reason)) if skip_bad => self.report(&reason),
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    fn store(&self, record: &Record) -> Result<(), LoadError> {
        match self.map.set(&record.key).meta(record.meta).put(&record.value) {
            Ok(_) => Ok(()),
            Err(error @ (Error::KeyTooLong { .. } | Error::ValueTooLong { .. })) => {
                Err(LoadError::Invalid(error.to_string()))
            }
            Err(error) => Err(LoadError::Store(error)),
        }
    }

    /// Describes the error that ends the command.
    fn failure(&self, error: &LoadError) -> Failure {
        let (location, summary) = (self.location(), self.summary());
        Failure::Other(match error {
            LoadError::Store(error) => {
                format!("{location}: {} ({summary})", describe(error, self.store))
            }
            LoadError::Invalid(reason) => {
                format!("{location}: {reason} ({summary}; use --skip-bad to skip invalid lines)")
            }
        })
    }

    fn progress(&self) -> &ProgressBar {
        &self.lines.input().get_ref().progress
    }

    /// Counts a stored record.
    fn count(&mut self) {
        const INTERVAL: u64 = 4096;
        self.loaded += 1;
        if self.loaded.is_multiple_of(INTERVAL) {
            self.progress().set_message(plural(self.loaded, "record"));
        }
    }

    /// Counts an invalid line, and reports it unless many were reported already.
    fn report(&mut self, reason: &str) {
        self.bad += 1;
        if self.bad <= REPORTED_MAX {
            self.progress().suspend(|| {
                let _ = writeln!(io::stderr(), "{}: {reason}", self.location());
            });
        }
    }

    /// Returns the name of the input and the number of the current line.
    fn location(&self) -> String {
        format!("{}:{}", self.name, self.lines.number())
    }

    fn summary(&self) -> String {
        let records = plural(self.loaded, "record");
        let bytes = HumanBytes(self.progress().position());
        let mut summary = format!("{records} loaded from {bytes}");
        if self.bad > 0 {
            summary += &format!(", {} skipped", plural(self.bad, "invalid line"));
        }
        summary
    }
}

/// Formats a count of things.
fn plural(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {thing}{ending}", HumanCount(count))
}
