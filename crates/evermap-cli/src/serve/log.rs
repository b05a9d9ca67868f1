//! The arguments about the log of a store.

use std::path::PathBuf;
use std::time::Duration;

use evermap::{Acknowledge, Evermap, Options};

use crate::open::parse_size;

/// How a store with a log is used.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LogArguments {
    /// With --durability log: when a change is acknowledged. `each`: when it is durable;
    /// `group=TIME`: the same, with syncs at least that far apart; `async=TIME`: at once, and it is
    /// durable about that much later, for example async=10ms
    #[arg(long, value_name = "WHEN", default_value = "each", value_parser = parse_acknowledge)]
    ack: Acknowledge,
    /// With --durability log: folder of the log [default: <PATH>.log]
    #[arg(long, value_name = "FOLDER")]
    log_folder: Option<PathBuf>,
    /// With --durability log: bytes of log after which the image is brought up to date [default:
    /// 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    checkpoint: Option<u64>,
}

impl LogArguments {
    /// Returns `options` with these.
    pub(super) fn add_to(&self, options: Options) -> Options {
        let mut options = options.acknowledge(self.ack);
        if let Some(bytes) = self.checkpoint {
            options = options.checkpoint_bytes(bytes);
        }
        match &self.log_folder {
            Some(folder) => options.log_folder(folder),
            None => options,
        }
    }

    /// Returns the handle by which the server changes the store. Several clients wait for one sync,
    /// so the operations themselves do not wait.
    pub(super) fn handle_of(&self, db: &Evermap) -> Evermap {
        match self.ack {
            Acknowledge::Async(_) => db.clone(),
            _ => db.without_waiting(),
        }
    }
}

fn parse_acknowledge(text: &str) -> Result<Acknowledge, String> {
    let (kind, time) = match text.split_once('=') {
        Some((kind, time)) => (kind, Some(time)),
        None => (text, None),
    };
    match (kind, time) {
        ("each", None) => Ok(Acknowledge::Each),
        ("group", Some(time)) => Ok(Acknowledge::Group(parse_time(time)?)),
        ("async", Some(time)) => Ok(Acknowledge::Async(parse_time(time)?)),
        _ => Err("must be each, group=TIME or async=TIME, for example async=10ms".into()),
    }
}

/// Parses a time with a unit: `us`, `ms` or `s`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let number = |unit: &str| text.strip_suffix(unit).and_then(|text| text.parse::<u64>().ok());
    let time = number("us")
        .map(Duration::from_micros)
        .or_else(|| number("ms").map(Duration::from_millis))
        .or_else(|| number("s").map(Duration::from_secs));
    time.filter(|time| *time <= Duration::from_secs(60))
        .ok_or_else(|| "a time has a unit, us, ms or s, and is at most 60s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_have_times() {
        for (text, expected) in [
            ("each", Some(Acknowledge::Each)),
            ("group=2ms", Some(Acknowledge::Group(Duration::from_millis(2)))),
            ("async=500us", Some(Acknowledge::Async(Duration::from_micros(500)))),
            ("async=1s", Some(Acknowledge::Async(Duration::from_secs(1)))),
            ("async", None),
            ("each=1s", None),
            ("async=5", None),
            ("async=61s", None),
        ] {
            assert_eq!(parse_acknowledge(text).ok(), expected, "{text}");
        }
    }
}
