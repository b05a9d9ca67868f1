//! `evermap top`

mod connection;
#[cfg(feature = "top")]
mod hangup;
mod plain;
mod sample;
#[cfg(feature = "top")]
mod screen;
mod summary;
mod target;
#[cfg(feature = "top")]
mod terminal;
#[cfg(feature = "tls")]
mod tls;

#[cfg(feature = "top")]
use std::io::IsTerminal;
use std::io::{self, Write};
use std::time::Duration;

use crate::failure::Failure;
use sample::Sample;
use summary::Summary;
use target::{Target, TargetArguments};

/// Show what a server does, live
///
/// Works with every server that speaks memcached's text protocol. Latencies and hot keys are shown
/// if the server is Evermap, which then samples one access of 64. Keys: q quits, p pauses and
/// continues, r forgets what was measured so far. Without a terminal, prints one table and ends.
/// SIGTERM and the end of the terminal end it too.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: TargetArguments,
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// Seconds from one measurement to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
}

impl Arguments {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let interval = Duration::from_secs_f64(self.interval);
        let target = self.target.read()?;
        #[cfg(feature = "top")]
        if !self.once && io::stdout().is_terminal() {
            return screen::run(target, interval);
        }
        print_once(&target, interval)
    }
}

/// Takes two samples and prints what happened between them.
fn print_once(target: &Target, interval: Duration) -> Result<(), Failure> {
    let summary = || -> io::Result<Summary> {
        let mut connection = target.connect()?;
        let earlier = Sample::take(&mut connection)?;
        std::thread::sleep(interval);
        let later = Sample::take(&mut connection)?;
        Ok(Summary::between(&earlier, &later))
    };
    let failure = |source| Failure::Io { what: target.address().to_owned(), source };
    let table = plain::table(target.address(), &summary().map_err(failure)?);
    let mut out = io::stdout();
    out.write_all(table.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

fn parse_interval(text: &str) -> Result<f64, String> {
    const RANGE: std::ops::RangeInclusive<f64> = 0.1..=3600.0;
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    let out_of_range = || format!("must be from {} to {}", RANGE.start(), RANGE.end());
    RANGE.contains(&seconds).then_some(seconds).ok_or_else(out_of_range)
}
