//! Options by name, as text.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use evermap::{Acknowledge, Durability, IndexKind, OnSuspect, Options, Order};

use crate::{Fault, Result};

/// The name of each option, and what it takes.
pub const OPTIONS: [(&str, &str); 19] = [
    ("create", "true or false"),
    ("read_only", "true or false"),
    ("beside_writers", "true or false"),
    ("offers_copies", "true or false"),
    ("ordered", "false, true or persistent"),
    ("durability", "process, log, adr or eadr"),
    ("acknowledge", "each, group=TIME or async=TIME"),
    ("log_folder", "a path"),
    ("log_in_memory", "true or false"),
    ("checkpoint_bytes", "a size"),
    ("memory_limit", "a size"),
    ("evict", "true or false"),
    ("max_bytes", "a size"),
    ("capacity", "a size"),
    ("on_suspect", "refuse, salvage or discard"),
    ("lock_wait", "a time"),
    ("verify_reads", "true or false"),
    ("exclusive", "true or false"),
    ("index", "the name of an index"),
];

/// How to open a store.
#[derive(Clone, Debug, Default)]
pub struct Settings(Options);

impl Settings {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the options of the library.
    pub fn options(&self) -> Options {
        self.0.clone()
    }

    /// Sets the option `name`. A size is a number of bytes, with K, M, G or T behind it for
    /// multiples of 1024; a time is a number of seconds, or has `ms`, `s` or `min` behind it.
    ///
    /// `exclusive` is the promise of [`Options::assume_exclusive_file`]: the program that sets it
    /// says that no other program writes to the file.
    ///
    /// # Errors
    /// `Usage` for a name that is unknown, and for a value that it cannot have.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some((_, takes)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = OPTIONS.iter().map(|(name, _)| *name).collect();
            let known = known.join(", ");
            return Err(Fault::Usage(format!("there is no option \"{name}\"; there are {known}")));
        };
        let refused = || Fault::Usage(format!("option {name} is {takes}, not \"{value}\""));
        self.0 = with(self.0.clone(), name, value).ok_or_else(refused)?;
        Ok(())
    }
}

/// Returns `options` with one changed, or `None` if it cannot have this value.
fn with(options: Options, name: &str, value: &str) -> Option<Options> {
    Some(match name {
        "create" => options.create(switch(value)?),
        "read_only" => options.read_only(switch(value)?),
        "beside_writers" => options.beside_writers(switch(value)?),
        "offers_copies" => options.offers_copies(switch(value)?),
        "ordered" => options.ordered(match value {
            "persistent" => Order::Persistent,
            other => match switch(other)? {
                true => Order::Volatile,
                false => Order::None,
            },
        }),
        "durability" => options.durability(Durability::from_str(value).ok()?),
        "acknowledge" => options.acknowledge(acknowledge(value)?),
        "log_folder" => options.log_folder(PathBuf::from(value)),
        "log_in_memory" => options.log_in_memory(switch(value)?),
        "checkpoint_bytes" => options.checkpoint_bytes(size(value)?),
        "memory_limit" => options.memory_limit(size(value)?),
        "evict" => options.evict(switch(value)?),
        "max_bytes" => options.max_bytes(size(value)?),
        "capacity" => options.capacity(size(value)?),
        "on_suspect" => options.on_suspect(match value {
            "refuse" => OnSuspect::Refuse,
            "salvage" => OnSuspect::Salvage,
            "discard" => OnSuspect::Discard,
            _ => return None,
        }),
        "lock_wait" => options.lock_wait(time(value)?),
        "verify_reads" => options.verify_reads(switch(value)?),
        "exclusive" => match switch(value)? {
            // SAFETY: the program promises it by the name of the option, and both bindings say what
            // it means.
            true => unsafe { options.assume_exclusive_file() },
            false => options,
        },
        "index" => options.index(IndexKind::from_str(value).ok()?),
        _ => return None,
    })
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "true" | "on" | "yes" | "1" => Some(true),
        "false" | "off" | "no" | "0" => Some(false),
        _ => None,
    }
}

fn size(value: &str) -> Option<u64> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &value[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn time(value: &str) -> Option<Duration> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &value[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "min" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(digits.parse::<f64>().ok()? * seconds).ok()
}

fn acknowledge(value: &str) -> Option<Acknowledge> {
    match value.split_once('=') {
        None => (value == "each").then_some(Acknowledge::Each),
        Some(("group", after)) => Some(Acknowledge::Group(time(after)?)),
        Some(("async", after)) => Some(Acknowledge::Async(time(after)?)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_takes_what_it_says() {
        let right = [
            "true",
            "false",
            "persistent",
            "log",
            "async=10ms",
            "/tmp/log",
            "64M",
            "discard",
            "1.5s",
            "dash-eh",
        ];
        for (name, takes) in OPTIONS {
            let mut settings = Settings::new();
            assert!(right.iter().any(|value| settings.set(name, value).is_ok()), "{name}");
            if takes != "a path" {
                let refused = Settings::new().set(name, "nonsense").unwrap_err().to_string();
                assert!(refused.contains(name) && refused.contains(takes), "{refused}");
            }
        }
        let unknown = Settings::new().set("speed", "high").unwrap_err().to_string();
        assert!(unknown.contains("speed") && unknown.contains("memory_limit"), "{unknown}");
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(
            (size("7"), size("64M"), size("1GiB")),
            (Some(7), Some(64 << 20), Some(1 << 30))
        );
        assert_eq!((size("1X"), size("-1"), size("20000000T")), (None, None, None));
        assert_eq!(time("10ms"), Some(Duration::from_millis(10)));
        assert_eq!((time("2"), time("x")), (Some(Duration::from_secs(2)), None));
        assert_eq!(acknowledge("group=1ms"), Some(Acknowledge::Group(Duration::from_millis(1))));
    }
}
