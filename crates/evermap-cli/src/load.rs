//! `evermap load`

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use evermap::{Error, IndexKind, Map};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressBarIter, ProgressStyle};

use crate::failure::Failure;
use crate::format::{Format, Line, Lines};
use crate::open::{MapArguments, parse_size};
use crate::{DONE, NO};

/// Bad lines that are told of one by one.
const TOLD: u64 = 20;

/// Put many records, one from each line of a file
///
/// Makes the store if there is none; keys that are there already get the new value. Stops at the first line
/// that is no record, and says where it is and what is wrong; what was read before it stays. With
/// --skip-bad such lines are told of and passed over, and the answer is 1 if there were any.
#[derive(clap::Args)]
pub(crate) struct Load {
    #[command(flatten)]
    store: MapArguments,
    /// File with a record in each line; standard input if missing or `-`
    file: Option<PathBuf>,
    /// What the lines are [default: jsonl for *.jsonl, *.ndjson and *.json, otherwise tsv]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Kind of index for a new store: dash-eh, ...; one that exists keeps its own
    #[arg(long, value_name = "NAME", default_value_t)]
    index: IndexKind,
    /// Pass over lines that are no records
    #[arg(long)]
    skip_bad: bool,
    /// Longest line; memory for one is needed
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    max_line: u64,
}

impl Load {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let file = self.file.as_deref().filter(|file| *file != Path::new("-"));
        // The input first: where there is none, no store is made.
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
        let mut loading = Loading {
            map: &map,
            lines: Lines::new(BufReader::with_capacity(1 << 20, input), self.max_line),
            name,
            loaded: 0,
            bad: 0,
        };
        let loaded = loading.run(format, self.skip_bad);
        let (told, bad) = (loading.summary(), loading.bad);
        // In order too where something went wrong: what was loaded stays.
        map.into_db().close()?;
        loaded?;
        let _ = writeln!(io::stderr(), "{told}");
        Ok(if bad == 0 { DONE } else { NO })
    }
}

/// Progress on standard error, if that is a terminal.
fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{bar:30} {bytes}/{total_bytes} [{elapsed}, {eta} left] {msg}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} [{elapsed}] {msg}"),
    };
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.with_style(ProgressStyle::with_template(template).expect("a valid template"))
}

struct Loading<'a> {
    map: &'a Map,
    lines: Lines<BufReader<ProgressBarIter<Box<dyn Read>>>>,
    /// Of the input.
    name: String,
    loaded: u64,
    bad: u64,
}

impl Loading<'_> {
    fn run(&mut self, format: Format, skip_bad: bool) -> Result<(), Failure> {
        let mut line = Vec::new();
        loop {
            let record = match self.lines.next(&mut line) {
                Ok(Line::End) => return Ok(()),
                Ok(Line::Whole) => format.parse(&line),
                Ok(Line::TooLong) => Err("the line is too long; see --max-line".to_owned()),
                Err(source) => return Err(Failure::Io { what: self.name.clone(), source }),
            };
            let stored = record.and_then(|record| {
                match self.map.put_with(&record.key, &record.value, record.meta) {
                    Ok(_) => Ok(Ok(())),
                    Err(error @ (Error::KeyTooLong { .. } | Error::ValueTooLong { .. })) => {
                        Err(error.to_string())
                    }
                    Err(error) => Ok(Err(error)),
                }
            });
            match stored {
                Ok(Ok(())) => self.count(),
                Ok(Err(error)) => {
                    return Err(Failure::Other(format!(
                        "{}: {error} ({})",
                        self.place(),
                        self.summary()
                    )));
                }
                Err(reason) if skip_bad => self.tell(&reason),
                Err(reason) => {
                    let (place, summary) = (self.place(), self.summary());
                    return Err(Failure::Other(format!(
                        "{place}: {reason} ({summary}; --skip-bad passes over such lines)"
                    )));
                }
            }
        }
    }

    fn bar(&self) -> &ProgressBar {
        &self.lines.input().get_ref().progress
    }

    /// A line was loaded.
    fn count(&mut self) {
        const EVERY: u64 = 4096;
        self.loaded += 1;
        if self.loaded.is_multiple_of(EVERY) {
            self.bar().set_message(format!("{} records", HumanCount(self.loaded)));
        }
    }

    /// A line was passed over.
    fn tell(&mut self, reason: &str) {
        self.bad += 1;
        if self.bad <= TOLD {
            self.bar().suspend(|| {
                let _ = writeln!(io::stderr(), "{}: {reason}", self.place());
            });
        }
    }

    /// Where we are.
    fn place(&self) -> String {
        format!("{}:{}", self.name, self.lines.number())
    }

    fn summary(&self) -> String {
        let mut summary = format!(
            "{} records loaded from {}",
            HumanCount(self.loaded),
            HumanBytes(self.bar().position())
        );
        if self.bad > 0 {
            summary += &format!(", {} bad lines passed over", HumanCount(self.bad));
        }
        summary
    }
}
