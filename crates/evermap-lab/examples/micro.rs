//! Measures the rivals: `cargo run --release --features rivals --example micro -- keys=1000000 threads=2`.

use std::fs::File;
use std::str::FromStr;
use std::time::Duration;

use evermap_lab::output::{JsonLines, Terminal};
use evermap_lab::{LabError, MicroConfig, run_micro, subjects};
use evermap_pm::medium::Pages;

fn main() {
    if let Err(error) = run() {
        eprintln!("micro: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), LabError> {
    let mut config = MicroConfig {
        indexes: subjects().iter().map(|entry| entry.name.to_owned()).collect(),
        ..MicroConfig::default()
    };
    let mut json = None;
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        match name {
            "indexes" => config.indexes = value.split(',').map(str::to_owned).collect(),
            "phases" => {
                config.phases = value.split(',').map(str::parse).collect::<Result<_, _>>()?
            }
            "keys" => config.keys = number(name, value)?,
            "threads" => config.threads = number(name, value)?,
            "rounds" => config.rounds = number(name, value)?,
            "retries" => config.retries = number(name, value)?,
            "patience" => config.patience = Duration::from_secs(number(name, value)?),
            "latency" => config.latency = number(name, value)?,
            "counts" => config.counts = number(name, value)?,
            "seed" => config.seed = number(name, value)?,
            "batch" => config.batch = number(name, value)?,
            "medium" => config.medium = value.parse()?,
            "pages" => config.pages = if value == "huge" { Pages::Huge } else { Pages::Base },
            "presize" => config.presize = number(name, value)?,
            "json" => json = Some(value.to_owned()),
            _ => return Err(LabError::Config(format!("unknown argument `{argument}`"))),
        }
    }
    let file = json.map(File::create).transpose().map_err(|source| LabError::Io {
        action: "create the file for results",
        path: None,
        source,
    })?;
    let mut out = (Terminal::new(std::io::stdout()), file.map(JsonLines));
    run_micro(&config, &mut out).map(drop)
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, LabError> {
    value.parse().map_err(|_| LabError::Config(format!("`{value}` is no value for {name}")))
}
