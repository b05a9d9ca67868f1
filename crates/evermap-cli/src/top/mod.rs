//! `evermap top`

mod connection;
mod plain;
mod sample;
#[cfg(feature = "top")]
mod screen;
mod summary;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::failure::Failure;
use connection::Connection;
use sample::Sample;
use summary::Summary;

/// Show what a server does, live
///
/// Works with every server that speaks memcached's text protocol. Latencies and hot keys are shown
/// if the server is Evermap, which then samples one access of 64. Keys: q quits, p pauses and
/// continues, r forgets what was measured so far. Without a terminal, prints one table and ends.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Host and port of the server, or the path of its unix socket (with a slash)
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:11211")]
    address: String,
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
        #[cfg(feature = "top")]
        if !self.once && io::stdout().is_terminal() {
            return screen::run(&self.address, interval);
        }
        self.print_once(interval)
    }

    /// Takes two samples and prints what happened between them.
    fn print_once(&self, interval: Duration) -> Result<(), Failure> {
        let summary = || -> io::Result<Summary> {
            let mut connection = Connection::open(&self.address)?;
            let earlier = Sample::take(&mut connection)?;
            std::thread::sleep(interval);
            let later = Sample::take(&mut connection)?;
            Ok(Summary::between(&earlier, &later))
        };
        let summary =
            summary().map_err(|source| Failure::Io { what: self.address.clone(), source })?;
        let table = plain::table(&self.address, &summary);
        io::stdout().write_all(table.as_bytes()).map_err(Failure::Output)
    }
}

fn parse_interval(text: &str) -> Result<f64, String> {
    const RANGE: std::ops::RangeInclusive<f64> = 0.1..=3600.0;
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    let out_of_range = || format!("must be from {} to {}", RANGE.start(), RANGE.end());
    RANGE.contains(&seconds).then_some(seconds).ok_or_else(out_of_range)
}
