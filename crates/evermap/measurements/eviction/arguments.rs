//! The arguments of the command line.

use std::error::Error;

/// What to do.
pub(crate) struct Arguments {
    pub(crate) json: bool,
    pub(crate) requests: usize,
    pub(crate) scale: f64,
    /// The only trace to run, if any.
    pub(crate) trace: Option<String>,
    pub(crate) footprint: bool,
    pub(crate) server: Option<String>,
    /// Requests in a second; `None`: the rate of the trace, or none.
    pub(crate) pace: Option<f64>,
    pub(crate) window: usize,
    /// The request before which the server will be started again.
    pub(crate) pause: Option<usize>,
    pub(crate) keys: u64,
    pub(crate) fill: bool,
    pub(crate) sets: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) churn: Option<f64>,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut it = Arguments {
            json: false,
            requests: 2_000_000,
            scale: 1.0,
            trace: None,
            footprint: false,
            server: None,
            pace: None,
            window: 50_000,
            pause: None,
            keys: 200_000,
            fill: false,
            sets: None,
            seed: 1,
            churn: None,
        };
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--json" => it.json = true,
                "--scale" => it.scale = value()?.parse()?,
                "--trace" => it.trace = Some(value()?),
                "--footprint" => it.footprint = true,
                "--server" => it.server = Some(value()?),
                "--pace" => it.pace = Some(value()?.parse()?),
                "--window" => it.window = value()?.parse::<usize>()?.max(1),
                "--pause" => it.pause = Some(value()?.parse()?),
                "--keys" => it.keys = value()?.parse::<u64>()?.max(1),
                "--fill" => it.fill = true,
                "--sets" => it.sets = Some(value()?.parse()?),
                "--seed" => it.seed = value()?.parse()?,
                "--churn" => it.churn = Some(value()?.parse()?),
                requests => it.requests = requests.parse()?,
            }
        }
        Ok(it)
    }
}
