//! `evermap lab`: measures indexes, ours and others'.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use evermap_lab::load_factor::{LoadFactorConfig, run_load_factor};
use evermap_lab::output::{JsonLines, Terminal};
use evermap_lab::subject::MediumKind;
use evermap_lab::workload::Phase;
use evermap_lab::{MicroConfig, Output, run_micro, subjects};
use evermap_pm::medium::Pages;

use crate::DONE;
use crate::failure::Failure;

/// Measure indexes, ours and others'
#[derive(Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    /// List the indexes that can be measured
    List,
    /// Run an experiment
    #[command(subcommand)]
    Run(Experiment),
}

#[derive(Subcommand)]
enum Experiment {
    Micro(Micro),
    LoadFactor(LoadFactor),
}

impl Lab {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            LabCommand::List => list()?,
            LabCommand::Run(Experiment::Micro(micro)) => micro.run()?,
            LabCommand::Run(Experiment::LoadFactor(load_factor)) => load_factor.run()?,
        }
        Ok(DONE)
    }
}

fn list() -> Result<(), Failure> {
    let entries = subjects();
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for entry in entries {
        writeln!(out, "{:width$}  {}", entry.name, entry.about).map_err(Failure::Output)?;
    }
    out.flush().map_err(Failure::Output)
}

/// What all experiments have in common.
#[derive(Args)]
struct Common {
    /// What all keys follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where indexes that can persist live: dram, process, forced or emulated
    #[arg(long, value_name = "MEDIUM", default_value = "dram")]
    medium: MediumKind,
    /// Directory for their files [default: in memory, where there is such a place]
    #[arg(long, value_name = "DIRECTORY")]
    location: Option<PathBuf>,
    /// Write every figure as a line of JSON; to standard output for `-`, in place of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Common {
    /// Where results go.
    fn output(&self) -> Result<Box<dyn Output>, Failure> {
        let stdout = io::stdout;
        Ok(match &self.json {
            None => Box::new(Terminal::new(stdout())),
            // The terminal's progress bar stays; its tables would be mixed up with the lines.
            Some(path) if path.as_os_str() == "-" => {
                Box::new((Terminal::new(io::sink()), JsonLines(stdout())))
            }
            Some(path) => {
                let file = File::create(path)
                    .map_err(|source| Failure::Io { what: path.display().to_string(), source })?;
                Box::new((Terminal::new(stdout()), JsonLines(file)))
            }
        })
    }
}

/// Measure insert, look-up, update and delete of random 64-bit keys
///
/// The indexes take turns, and ratios are taken within each round, so that figures compare on a noisy machine
/// too. Every answer is checked.
#[derive(Args)]
struct Micro {
    /// Indexes, separated by commas; see `evermap lab list`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "dash-eh")]
    index: Vec<String>,
    /// Keys that are inserted
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    keys: u64,
    /// Threads that share the operations
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// How often each index is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Phases to report, separated by commas [default: all]
    #[arg(long, value_name = "PHASE,...", value_delimiter = ',')]
    phases: Vec<Phase>,
    /// Keys in a batch of get_many
    #[arg(long, value_name = "N", default_value_t = 32)]
    batch: usize,
    /// How long to wait before each run for others to leave the processors
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    patience: u64,
    /// How often a round that others disturbed is repeated
    #[arg(long, value_name = "N", default_value_t = 3)]
    retries: usize,
    /// Leave out the machine's own limits, which take about a second a round
    #[arg(long)]
    no_limits: bool,
    /// On the emulated medium, nanoseconds that a persist takes at least
    #[arg(long, value_name = "NS", default_value_t = 600)]
    persist_ns: u64,
    /// On the emulated medium, nanoseconds that reading a line takes that is not in its small cache
    #[arg(long, value_name = "NS", default_value_t = 0)]
    read_ns: u64,
    /// Begin at the final size, where the index can
    #[arg(long)]
    presize: bool,
    /// Ask for huge pages
    #[arg(long)]
    huge_pages: bool,
    #[command(flatten)]
    common: Common,
}

impl Micro {
    fn run(self) -> Result<(), Failure> {
        let mut out = self.common.output()?;
        let config = MicroConfig {
            indexes: self.index,
            keys: self.keys,
            threads: self.threads,
            seed: self.common.seed,
            medium: self.common.medium,
            location: self.common.location,
            pages: if self.huge_pages { Pages::Huge } else { Pages::Base },
            persist_ns: self.persist_ns,
            read_ns: self.read_ns,
            rounds: self.rounds,
            phases: if self.phases.is_empty() { Phase::ALL.to_vec() } else { self.phases },
            batch: self.batch,
            presize: self.presize,
            patience: Duration::from_secs(self.patience),
            retries: self.retries,
            limits: !self.no_limits,
            ..MicroConfig::default()
        };
        run_micro(&config, &mut *out)?;
        Ok(())
    }
}

/// Measure how full an index is, and how much space a record takes, while it grows
#[derive(Args)]
struct LoadFactor {
    /// Index; see `evermap lab list`
    #[arg(long, value_name = "NAME", default_value = "dash-eh")]
    index: String,
    /// Keys at the first sample
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    from: u64,
    /// Keys at the last sample
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    to: u64,
    /// Samples between the two
    #[arg(long, value_name = "N", default_value_t = 200)]
    samples: u64,
    #[command(flatten)]
    common: Common,
}

impl LoadFactor {
    fn run(self) -> Result<(), Failure> {
        let mut out = self.common.output()?;
        let config = LoadFactorConfig {
            index: self.index,
            from: self.from,
            to: self.to,
            samples: self.samples,
            seed: self.common.seed,
            medium: self.common.medium,
            location: self.common.location,
        };
        run_load_factor(&config, &mut *out)?;
        Ok(())
    }
}
