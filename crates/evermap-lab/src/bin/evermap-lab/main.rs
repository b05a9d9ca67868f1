//! `evermap-lab`, the program that `evermap lab` starts: measures indexes and stores, Evermap's and
//! others'.

mod crash;
mod failure;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use evermap_lab::crash::CRASHABLE;
use evermap_lab::experiments::killed::{ChildJob, Job, run_child};
use evermap_lab::experiments::{serve_engine, speed_called};
use evermap_lab::machine::Portrait;
use evermap_lab::registry::{TRANSACTIONAL, missing_transactions};
use evermap_lab::report::changes;
use evermap_lab::report::html::Html;
use evermap_lab::report::{Format, Lines, Markdown, Origin, Terminal};
use evermap_lab::subject::MediumKind;
use evermap_lab::workload::bytes::KeyValueLengths;
use evermap_lab::workload::{Distribution, Lengths, Mix, Phase};
use evermap_lab::{EXPERIMENTS, Output, REVISION, Settings, experiment, load_plugin, subjects};
use evermap_pm::medium::Speed;

use crash::Crash;
use failure::Failure;

/// Exit code of success.
const DONE: ExitCode = ExitCode::SUCCESS;
/// Exit code if a campaign has found a violation.
const NO: ExitCode = ExitCode::FAILURE;

/// The name that stands for every experiment.
const ALL: &str = "all";

/// Measure indexes and stores, Evermap's and others'
#[derive(Parser)]
#[command(name = "evermap-lab", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(List),
    Run(Box<Run>),
    Compare(Compare),
    Fill(Fill),
    ServeEngine(ServeEngine),
    Crash(Crash),
}

impl Command {
    fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Command::List(list) => list.run()?,
            Command::Run(run) => run.run()?,
            Command::Compare(compare) => compare.run()?,
            Command::Fill(fill) => fill.run()?,
            Command::ServeEngine(serve) => serve.run()?,
            Command::Crash(crash) => return crash.run(),
        }
        Ok(DONE)
    }
}

fn main() -> ExitCode {
    let run = |arguments: Arguments| arguments.command.run();
    Arguments::try_parse().map_or_else(explain, run).unwrap_or_else(|failure| {
        if failure.is_closed_output() {
            // The reader of the output has closed it, as `head` does. That is no failure.
            return DONE;
        }
        // If standard error is closed too, the failure cannot be reported.
        let _ = writeln!(std::io::stderr(), "evermap-lab: {failure}");
        failure::EXIT_CODE.into()
    })
}

/// Prints the help or the version that was asked for, or what is wrong with the arguments.
fn explain(error: clap::Error) -> Result<ExitCode, Failure> {
    let printed = error.print();
    if error.use_stderr() {
        // If standard error is closed, the message is lost.
        return Ok(failure::EXIT_CODE.into());
    }
    printed.map_err(Failure::Output)?;
    Ok(DONE)
}

/// List the experiments, the indexes and stores that they measure, and the mixes of operations
#[derive(Args)]
struct List {
    #[command(flatten)]
    plugins: Plugins,
}

impl List {
    fn run(self) -> Result<(), Failure> {
        self.plugins.load()?;
        let mut out = io::stdout().lock();
        let experiments = EXPERIMENTS.iter().map(|one| (one.name, one.about));
        table(&mut out, "Experiments (`evermap lab run NAME`, or `all`)", experiments)?;
        let subjects = subjects();
        let subjects = subjects.iter().map(|entry| (entry.name, entry.about));
        table(&mut out, "Indexes and stores (`--index`)", subjects)?;
        if let Some(why) = missing_transactions() {
            let missing = TRANSACTIONAL.join(" and ");
            writeln!(out, "Not here: {missing}, because {why}\n").map_err(Failure::Output)?;
        }
        let mixes = Mix::ALL.iter().map(|mix| (mix.name, mix.about));
        table(&mut out, "Mixes of operations (`lab run ycsb --workloads`)", mixes)?;
        let crashable = CRASHABLE.iter().map(|one| (one.name, one.about));
        table(&mut out, "Indexes to crash (`evermap lab crash --index`)", crashable)?;
        out.flush().map_err(Failure::Output)
    }
}

fn table<'a>(
    out: &mut impl Write,
    title: &str,
    rows: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Result<(), Failure> {
    let width = rows.clone().map(|row| row.0.len()).max().unwrap_or(0);
    let mut text = format!("{title}:\n");
    for (name, about) in rows {
        text.push_str(&format!("{name:width$}  {about}\n"));
    }
    writeln!(out, "{text}").map_err(Failure::Output)
}

/// Indexes from shared libraries.
#[derive(Args)]
struct Plugins {
    /// A shared library with an index to be named by `--index`; may be repeated. Its code runs in
    /// this process
    #[arg(long = "plugin", value_name = "FILE")]
    plugins: Vec<PathBuf>,
}

impl Plugins {
    fn load(&self) -> Result<(), Failure> {
        for path in &self.plugins {
            // SAFETY: the user who names a library asks for its code to be run, and is responsible
            // for the promises of the header.
            unsafe { load_plugin(path) }?;
        }
        Ok(())
    }
}

/// Run experiments
///
/// Indexes take turns, and ratios are taken within each round, so that figures compare on a noisy
/// machine too. Every answer is checked while the clock runs: an index that loses, invents or
/// changes anything fails the run. An option that does not apply to an experiment is refused; `all`
/// ignores it.
#[derive(Args)]
struct Run {
    /// Experiments, or `all`; see `evermap lab list`
    #[arg(value_name = "EXPERIMENT", required = true)]
    experiments: Vec<String>,
    /// Use fewer keys and rounds: half a minute for each experiment
    #[arg(long)]
    quick: bool,
    /// Indexes and stores, separated by commas [default: those that the experiment is about]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    index: Option<Vec<String>>,
    #[command(flatten)]
    plugins: Plugins,
    /// Seed of all keys and orders [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of keys that are inserted [default: the experiment's own, mostly 1 to 20 million;
    /// with --quick at most 2 million]
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Number of threads that share the operations [default: 1; in `scale` and the experiments
    /// about Dash's ideas, all processors]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Number of times that each index is measured [default: the experiment's own, mostly 3 to 9;
    /// with --quick 1 to 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Where persistent indexes are stored: dram, process, forced, emulated, adr or eadr [default:
    /// dram; process if the experiment kills processes; emulated if its speed is given]
    #[arg(long, value_name = "MEDIUM")]
    medium: Option<MediumKind>,
    /// Directory for their files [default: one in memory, if there is one]
    #[arg(long, value_name = "DIRECTORY")]
    location: Option<PathBuf>,
    /// Write every figure as a line of JSON; with `-`, to standard output instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the same as lines of CSV, which spreadsheets read
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a page with plots, tables and facts about the machine; it needs no network.
    /// With `all`, the terminal then gets the first table of each experiment only
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Phases to report, separated by commas [default: the experiment's own]
    #[arg(long, value_name = "PHASE,...", value_delimiter = ',')]
    phases: Option<Vec<Phase>>,
    /// Number of keys in a batch of get_many [default: 32]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// How long to wait before each run until other programs leave the processors [default: 10;
    /// with --quick 0]
    #[arg(long, value_name = "SECONDS")]
    patience: Option<u64>,
    /// Number of times that a disturbed round is repeated [default: 3; with --quick 0]
    #[arg(long, value_name = "N")]
    retries: Option<usize>,
    /// Do not measure the limits of the machine, which takes about a second a round
    #[arg(long)]
    no_limits: bool,
    /// Do not count flushes, fences and lines, which takes longer than a round
    #[arg(long)]
    no_counts: bool,
    /// Do not measure latencies of single operations
    #[arg(long)]
    no_latencies: bool,
    /// Speed of the emulated medium: customary (a persist of 600 ns), optane (six modules) or
    /// optane-module; the next five options change it [default: customary]
    #[arg(long, value_name = "MEMORY", value_parser = speed_called)]
    pm: Option<Speed>,
    /// Least duration of a persist in nanoseconds
    #[arg(long, value_name = "NS")]
    persist_ns: Option<u64>,
    /// Duration in nanoseconds of a read of a line that is not in the emulated cache
    #[arg(long, value_name = "NS")]
    read_ns: Option<u64>,
    /// The same, if another line of its block of 256 bytes was just read [default: as --read-ns]
    #[arg(long, value_name = "NS")]
    near_read_ns: Option<u64>,
    /// Megabytes that all threads together read in a second, in blocks; 0 for no limit
    #[arg(long, value_name = "MB/S")]
    read_mb_s: Option<u64>,
    /// Megabytes that all threads together write in a second, in blocks; 0 for no limit
    #[arg(long, value_name = "MB/S")]
    write_mb_s: Option<u64>,
    /// Start at the final size, if the index can
    #[arg(long)]
    presize: bool,
    /// Request huge pages
    #[arg(long)]
    huge_pages: bool,
    /// Use byte strings of these lengths as keys: 16, 8-64 or zipfian:8-64 [default: keys of 8
    /// bytes]
    #[arg(long, value_name = "LENGTHS")]
    key_bytes: Option<Lengths>,
    /// Use byte strings of these lengths as values [default: values of 8 bytes]
    #[arg(long, value_name = "LENGTHS")]
    value_bytes: Option<Lengths>,
    /// Mixes of ycsb, separated by commas: a to f, recipe-a, ... [default: all]
    #[arg(long, value_name = "MIX,...", value_delimiter = ',')]
    workloads: Option<Vec<Mix>>,
    /// Distribution of the keys of a mix: uniform, zipfian, scrambled or latest [default: the mix's
    /// own]
    #[arg(long, value_name = "NAME")]
    distribution: Option<Distribution>,
    /// Skew of the distribution; 0 is uniform [default: 0.99]
    #[arg(long, value_name = "SKEW")]
    theta: Option<f64>,
    /// Operations of a mix [default: the number of keys]; insertions of stores [default: 100000]
    #[arg(long, value_name = "N")]
    ops: Option<u64>,
    /// Number of keys at the first sample of load-factor and short-records [default: the
    /// experiment's own]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Number of keys at the last sample
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Number of samples
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Number of tables of on-disk among which the keys are divided, each with one owner [default:
    /// 1]
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
    /// Figures of HiKV's paper, separated by commas: 1, 5 to 13, recovery [default: all]
    #[arg(long, value_name = "FIGURE,...", value_delimiter = ',')]
    figures: Option<Vec<String>>,
}

impl Run {
    fn run(self) -> Result<(), Failure> {
        self.plugins.load()?;
        let everything = self.experiments.iter().any(|name| name == ALL);
        let experiments = if everything {
            EXPERIMENTS.to_vec()
        } else {
            self.experiments.iter().map(|name| experiment(name)).collect::<Result<_, _>>()?
        };
        let mut out = self.output(everything)?;
        let settings = self.settings();
        for experiment in experiments {
            if everything {
                experiment.run_as_far_as_it_applies(&settings, &mut *out)?;
            } else {
                experiment.run(&settings, &mut *out)?;
            }
        }
        Ok(())
    }

    fn settings(self) -> Settings {
        Settings {
            quick: self.quick,
            seed: self.seed,
            location: self.location,
            patience: self.patience.map(Duration::from_secs),
            retries: self.retries,
            program: std::env::current_exe().ok(),
            indexes: self.index,
            keys: self.keys,
            threads: self.threads,
            rounds: self.rounds,
            medium: self.medium,
            pm: self.pm,
            persist_ns: self.persist_ns,
            read_ns: self.read_ns,
            near_read_ns: self.near_read_ns,
            read_mb_s: self.read_mb_s,
            write_mb_s: self.write_mb_s,
            phases: self.phases,
            batch: self.batch,
            presize: self.presize,
            huge_pages: self.huge_pages,
            no_limits: self.no_limits,
            no_counts: self.no_counts,
            no_latencies: self.no_latencies,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            workloads: self.workloads,
            distribution: self.distribution,
            theta: self.theta,
            ops: self.ops,
            from: self.from,
            to: self.to,
            samples: self.samples,
            shards: self.shards,
            figures: self.figures,
        }
    }

    /// Creates the outputs that were requested, for all experiments or some.
    fn output(&self, everything: bool) -> Result<Box<dyn Output>, Failure> {
        let portrait = Portrait::take(REVISION);
        let lines = |out, format| Lines::new(out, format, Origin::of(&portrait));
        let json = create_file(&self.json)?.map(|out| lines(out, Format::Json));
        let csv = create_file(&self.csv)?.map(|out| lines(out, Format::Csv));
        let markdown = create_file(&self.markdown)?.map(Markdown::new);
        // If the lines go to standard output, only the progress is shown; tables would be mixed
        // with the lines.
        let files = [&self.json, &self.csv, &self.markdown];
        let is_taken = files.into_iter().flatten().any(|path| path.as_os_str() == "-");
        let tables: Box<dyn Write> =
            if is_taken { Box::new(io::sink()) } else { Box::new(io::stdout()) };
        let terminal = Terminal::new(tables, everything && self.html.is_some());
        let create = |path| Html::create(path, command(), portrait.clone());
        let html = self.html.clone().map(create).transpose()?;
        Ok(Box::new((terminal, ((json, csv), (markdown, html)))))
    }
}

/// Creates the file at a path, if there is one; `-` stands for standard output.
fn create_file(path: &Option<PathBuf>) -> Result<Option<Box<dyn Write>>, Failure> {
    match path {
        None => Ok(None),
        Some(path) if path.as_os_str() == "-" => Ok(Some(Box::new(io::stdout()))),
        Some(path) => {
            let what = path.display().to_string();
            let file = File::create(path).map_err(|source| Failure::Io { what, source })?;
            Ok(Some(Box::new(file)))
        }
    }
}

/// Returns the command line, quoted for a shell.
fn command() -> String {
    let quoted = |argument: String| {
        let plain = |c: char| c.is_alphanumeric() || "-_./,:=".contains(c);
        if argument.chars().all(plain) && !argument.is_empty() {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    let arguments =
        std::env::args_os().skip(1).map(|one| quoted(one.to_string_lossy().into_owned()));
    ["evermap".to_owned(), "lab".to_owned()]
        .into_iter()
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Compare two runs of the same experiments: what repeats, and what differs
#[derive(Args)]
struct Compare {
    /// The file that the first run wrote with `--json`
    old: PathBuf,
    /// The file that the second run wrote
    new: PathBuf,
    /// Also show the figures that repeat
    #[arg(long)]
    all: bool,
}

impl Compare {
    fn run(self) -> Result<(), Failure> {
        let open = |path: &PathBuf| {
            let what = path.display().to_string();
            match File::open(path) {
                Ok(file) => Ok((what, BufReader::new(file))),
                Err(source) => Err(Failure::Io { what, source }),
            }
        };
        let (old, new) = (open(&self.old)?, open(&self.new)?);
        let report = changes::compare((&old.0, old.1), (&new.0, new.1), self.all)?;
        io::stdout().lock().write_all(report.text().as_bytes()).map_err(Failure::Output)
    }
}

/// Fill a table, or open it, and wait to be killed: the child process of experiments
#[derive(Args)]
#[command(hide = true)]
struct Fill {
    #[arg(long)]
    index: String,
    #[arg(long)]
    medium: MediumKind,
    #[arg(long)]
    keys: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    file: PathBuf,
    #[arg(long, requires = "value_bytes")]
    key_bytes: Option<Lengths>,
    #[arg(long, requires = "key_bytes")]
    value_bytes: Option<Lengths>,
    #[arg(long)]
    overwrite: bool,
    #[arg(long, conflicts_with = "overwrite")]
    open: Option<u64>,
}

/// Serve one engine until it is killed: the child process of `engines`
#[derive(Args)]
#[command(hide = true)]
struct ServeEngine {
    engine: String,
    address: String,
    threads: usize,
}

impl ServeEngine {
    fn run(self) -> Result<(), Failure> {
        Ok(serve_engine(&self.engine, &self.address, self.threads)?)
    }
}

impl Fill {
    fn run(self) -> Result<(), Failure> {
        let lengths = self
            .key_bytes
            .zip(self.value_bytes)
            .map(|(keys, values)| KeyValueLengths { keys, values });
        let job = match self.open {
            Some(times) => Job::Open(times),
            None if self.overwrite => Job::Overwrite,
            None => Job::Fill,
        };
        let Fill { index, medium, keys, seed, file, .. } = self;
        run_child(&ChildJob { index, medium, lengths, keys, seed, file, job })?;
        Ok(())
    }
}
