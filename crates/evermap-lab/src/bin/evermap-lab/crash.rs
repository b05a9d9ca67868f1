//! `evermap lab crash`: crashes indexes everywhere, and tests mutants that this must detect.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use evermap_lab::crash::{CrashReport, Progress};
use evermap_lab::{CrashConfig, run_crash};
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;
use crate::{DONE, NO};

/// Crash indexes everywhere, recover them, and verify what is left
///
/// Runs workloads on simulated memory, crashes them at every point where that could matter, in
/// persistent memory, by the death of the process and above the page cache, and crashes the
/// recoveries too. Fails if anything is lost.
#[derive(Args)]
pub(crate) struct Crash {
    /// Indexes, separated by commas, of those that `list` shows to crash [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    index: Vec<String>,
    /// Workloads of each campaign; campaigns with parallel threads run 25 or more for one
    #[arg(long, value_name = "N", default_value_t = 4)]
    seeds: u64,
    /// Skip this many workloads before these, for long campaigns in pieces
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
    /// Test mutants, one at a time, that the campaigns must detect: takes about half an hour of one
    /// processor for each index
    #[arg(long)]
    mutants: bool,
    /// Measure how many images are verified in a second, by what is checked of each
    #[arg(long)]
    rates: bool,
    /// Threads that share the work
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Write a line of JSON for each index; with `-`, to standard output instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for a file of each violation, which tests can replay
    #[arg(long, value_name = "DIRECTORY", default_value = "failures")]
    failures: PathBuf,
}

struct Bar(ProgressBar);

impl Progress for Bar {
    fn more(&self, steps: u64) {
        self.0.inc_length(steps);
    }

    fn done(&self, what: &str) {
        self.0.inc(1);
        self.0.set_message(what.lines().next().unwrap_or_default().to_owned());
    }
}

impl Crash {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let config = CrashConfig {
            indexes: self.index.clone(),
            seeds: self.seeds,
            skip: self.skip,
            mutants: self.mutants,
            rates: self.rates,
            threads: self.threads,
        };
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")
        {
            bar.set_style(style);
        }
        let reports = run_crash(&config, &Bar(bar.clone()))?;
        bar.finish_and_clear();
        self.write(&reports)?;
        let clean = reports.iter().all(|report| report.violations == 0);
        Ok(if clean { DONE } else { NO })
    }

    fn write(&self, reports: &[CrashReport]) -> Result<(), Failure> {
        let failed = |path: &PathBuf| {
            let what = path.display().to_string();
            move |source| Failure::Io { what, source }
        };
        match &self.json {
            Some(path) if path.as_os_str() == "-" => {
                return json(&mut io::stdout().lock(), reports).map_err(Failure::Output);
            }
            Some(path) => {
                let mut file = File::create(path).map_err(failed(path))?;
                json(&mut file, reports).map_err(failed(path))?;
            }
            None => {}
        }
        for report in reports {
            for (at, found) in report.found.iter().enumerate() {
                let path = self.failures.join(format!("{}-{at}.crash", report.index));
                std::fs::create_dir_all(&self.failures).map_err(failed(&self.failures))?;
                let text = format!("# {}\n{}", found.message.replace('\n', " "), found.replay);
                std::fs::write(&path, text).map_err(failed(&path))?;
            }
        }
        let mut out = io::stdout().lock();
        reports.iter().try_for_each(|report| write!(out, "{report}")).map_err(Failure::Output)?;
        out.flush().map_err(Failure::Output)
    }
}

fn json(out: &mut impl Write, reports: &[CrashReport]) -> io::Result<()> {
    for report in reports {
        writeln!(out, "{}", serde_json::to_string(report)?)?;
    }
    out.flush()
}
