//! The state of the server as metrics of Prometheus, over HTTP.
//!
//! The names are those of the usual exporter for memcached where it has them, so that its
//! dashboards and alerts work without the exporter. Further ones begin with `evermap_`.

mod http;
mod process;
mod stats;
mod text;

use std::fmt::Display;

use crate::latency::{Command, LatencyTotals};

pub use http::METRICS_CONNECTIONS_MAX;
pub(crate) use http::{Responder, Stopper};
use stats::{Stats, number};
use text::{Label, Text, Type};

/// Where the metrics come from.
pub(crate) trait Source: Send + Sync {
    /// Calls `each` with the name and value of each statistic of the command `stats`.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Calls `each` with the name and value of each statistic of the command `stats slabs`, for
    /// example `1:mem_requested`.
    fn slabs(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let _ = each;
    }

    /// Returns the latencies since the start of the server.
    fn latencies(&self) -> LatencyTotals;
}

/// The metrics that are one statistic each: name, type, help and the statistic.
const SINGLE: &[(&str, Type, &str, &str)] = {
    use Type::{Counter, Gauge};
    &[
        (
            "memcached_uptime_seconds",
            Counter,
            "Number of seconds since the server started.",
            "uptime",
        ),
        ("memcached_time_seconds", Gauge, "The time of the server, in seconds since 1970.", "time"),
        ("memcached_current_items", Gauge, "Number of items that are stored now.", "curr_items"),
        (
            "memcached_items_total",
            Counter,
            "Number of items stored since the start.",
            "total_items",
        ),
        ("memcached_current_bytes", Gauge, "Number of bytes that the items use.", "bytes"),
        (
            "memcached_limit_bytes",
            Gauge,
            "Number of bytes that the items may use; 0 if there is no limit.",
            "limit_maxbytes",
        ),
        (
            "memcached_items_evicted_total",
            Counter,
            "Number of live items that were removed to make space for others.",
            "evictions",
        ),
        (
            "memcached_items_reclaimed_total",
            Counter,
            "Number of items whose space was used again after they had expired.",
            "reclaimed",
        ),
        (
            "memcached_direct_reclaims_total",
            Counter,
            "Number of times that a worker had to make space itself.",
            "direct_reclaims",
        ),
        (
            "memcached_current_connections",
            Gauge,
            "Number of connections that are open now.",
            "curr_connections",
        ),
        (
            "memcached_max_connections",
            Gauge,
            "Maximum number of open connections.",
            "max_connections",
        ),
        (
            "memcached_connections_total",
            Counter,
            "Number of connections opened since the start.",
            "total_connections",
        ),
        (
            "memcached_connections_rejected_total",
            Counter,
            "Number of connections that were closed because there were too many.",
            "rejected_connections",
        ),
        (
            "memcached_connections_yielded_total",
            Counter,
            "Number of times that a connection with more requests had to wait for others.",
            "conn_yields",
        ),
        (
            "memcached_connections_listener_disabled_total",
            Counter,
            "Number of times that accepting connections was paused.",
            "listen_disabled_num",
        ),
        (
            "memcached_accepting_conns",
            Gauge,
            "Whether the server accepts connections.",
            "accepting_conns",
        ),
        (
            "memcached_read_bytes_total",
            Counter,
            "Number of bytes received from clients.",
            "bytes_read",
        ),
        (
            "memcached_written_bytes_total",
            Counter,
            "Number of bytes sent to clients.",
            "bytes_written",
        ),
        (
            "evermap_items_expired_unfetched_total",
            Counter,
            "Number of items that expired and had never been looked up.",
            "expired_unfetched",
        ),
        (
            "evermap_items_evicted_unfetched_total",
            Counter,
            "Number of items that were evicted and had never been looked up.",
            "evicted_unfetched",
        ),
    ]
};

/// The samples of `memcached_commands_total`: command, status and the statistic.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("get", "hit", "get_hits"),
    ("get", "miss", "get_misses"),
    ("delete", "hit", "delete_hits"),
    ("delete", "miss", "delete_misses"),
    ("incr", "hit", "incr_hits"),
    ("incr", "miss", "incr_misses"),
    ("decr", "hit", "decr_hits"),
    ("decr", "miss", "decr_misses"),
    ("touch", "hit", "touch_hits"),
    ("touch", "miss", "touch_misses"),
    ("cas", "hit", "cas_hits"),
    ("cas", "miss", "cas_misses"),
    ("cas", "badval", "cas_badval"),
    ("flush", "hit", "cmd_flush"),
];

/// Returns all metrics as a text.
pub(crate) fn render(source: &dyn Source) -> String {
    let mut stats = Stats::new();
    source.stats(&mut |name, value| {
        stats.insert(name.to_owned(), value.to_string());
    });
    let mut text = Text::default();
    text.single("memcached_up", Type::Gauge, "Whether the server can be reached.", 1);
    let version = stats.get("version").map_or("", String::as_str);
    text.family("memcached_version", Type::Gauge, "The version of the server.")
        .sample(&[("version", version)], 1);
    for &(name, kind, help, stat) in SINGLE {
        if let Some(value) = number(&stats, stat) {
            text.single(name, kind, help, value);
        }
    }
    commands(&stats, &mut text);
    own(&stats, &mut text);
    latencies(&source.latencies(), &mut text);
    classes(source, &mut text);
    process::append(&stats, &mut text);
    text.into_string()
}

fn commands(stats: &Stats, text: &mut Text) {
    let help = "Number of commands, by command and outcome.";
    let mut family = text.family("memcached_commands_total", Type::Counter, help);
    for &(command, status, stat) in COMMANDS {
        if let Some(value) = number(stats, stat) {
            family.sample(&[("command", command), ("status", status)], value);
        }
    }
    // `cmd_set` counts cas commands too, which have samples of their own.
    let count = |name: &str| stats.get(name).and_then(|value| value.parse().ok()).unwrap_or(0u64);
    let cas: u64 = ["cas_hits", "cas_misses", "cas_badval"].map(count).iter().sum();
    let sets = count("cmd_set").saturating_sub(cas);
    family.sample(&[("command", "set"), ("status", "hit")], sets);
}

/// Adds the statistics whose names begin with `evermap_`: a gauge for each number, with times in
/// seconds, and one metric with the texts as labels.
fn own(stats: &Stats, text: &mut Text) {
    const PREFIX: &str = "evermap_";
    let own = || stats.iter().filter(|(name, _)| is_own(name));
    let mut texts: Vec<Label<'_>> = Vec::new();
    for (name, value) in own() {
        match number(stats, name) {
            Some(value) => {
                let help = format!("The statistic {name} of the command stats.");
                let milliseconds = name.strip_suffix("_ms").zip(value.parse::<f64>().ok());
                match milliseconds {
                    None => text.single(name, Type::Gauge, &help, value),
                    Some((name, value)) => {
                        let name = format!("{name}_seconds");
                        text.single(&name, Type::Gauge, &help, value / 1e3);
                    }
                }
            }
            None => texts.push((&name[PREFIX.len()..], value)),
        }
    }
    let help = "The statistics of the store that are texts.";
    text.family("evermap_info", Type::Gauge, help).sample(&texts, 1);

    fn is_own(name: &str) -> bool {
        let rest = name.strip_prefix(PREFIX).unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        rest.starts_with(|first: char| first.is_ascii_lowercase()) && rest.bytes().all(plain)
    }
}

/// Adds the latencies as a histogram. The limits are powers of two, at which the counters are
/// exact.
fn latencies(latencies: &LatencyTotals, text: &mut Text) {
    /// From a microsecond to two seconds.
    const EXPONENTS: std::ops::RangeInclusive<u32> = 10..=31;
    let help = "Time from the arrival of a command to the hand-over of its reply to the socket.";
    let mut family = text.family("evermap_command_seconds", Type::Histogram, help);
    for command in Command::ALL {
        let label = ("command", command.name());
        let count = latencies.count(command);
        for exponent in EXPONENTS {
            let limit = format!("{:e}", (1u64 << exponent) as f64 / 1e9);
            let below = latencies.count_below(command, exponent).min(count);
            family.sample_of("_bucket", &[label, ("le", &limit)], below);
        }
        family.sample_of("_bucket", &[label, ("le", "+Inf")], count);
        family.sample_of("_sum", &[label], latencies.sum(command).as_secs_f64());
        family.sample_of("_count", &[label], count);
    }
}

/// Adds what is known by size class.
fn classes(source: &dyn Source, text: &mut Text) {
    const METRICS: &[(&str, &str, &str)] = &[
        (
            "memcached_slab_mem_requested_bytes",
            "Number of bytes of the items of this size class.",
            "mem_requested",
        ),
        ("memcached_slab_chunks_used", "Number of items of this size class.", "used_chunks"),
        (
            "memcached_slab_chunk_size_bytes",
            "Maximum size of an item of this size class.",
            "chunk_size",
        ),
    ];
    let mut stats = Stats::new();
    source.slabs(&mut |name, value| {
        stats.insert(name.to_owned(), value.to_string());
    });
    for &(name, help, stat) in METRICS {
        let mut samples = stats.iter().filter_map(|(name, value)| {
            let (class, found) = name.split_once(':')?;
            (found == stat && value.parse::<u64>().is_ok()).then_some((class, value))
        });
        let mut next = samples.next();
        if next.is_none() {
            continue;
        }
        let mut family = text.family(name, Type::Gauge, help);
        while let Some((class, value)) = next {
            family.sample(&[("slab", class)], value);
            next = samples.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_seconds() {
        let stats = [("evermap_open_ms", "2.5"), ("evermap_age", "7"), ("evermap_opened", "new")];
        let stats = stats.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut text = Text::default();
        own(&Stats::from(stats), &mut text);
        let text = text.into_string();
        assert!(text.contains("\nevermap_open_seconds 0.0025\n"), "{text}");
        assert!(text.contains("\nevermap_age 7\n") && text.contains("opened=\"new\""), "{text}");
    }
}
