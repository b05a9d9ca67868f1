//! A summary as a plain text.

use std::fmt::Write as _;
use std::time::Duration;

use super::summary::{Summary, age, bytes, count, duration, percent};

/// The columns of the table of commands.
pub(super) const COLUMNS: [&str; 6] = ["command", "per second", "hits", "p50", "p99", "p99.9"];

/// Returns the cells of the table of commands, row by row.
pub(super) fn command_cells(summary: &Summary) -> Vec<[String; 6]> {
    let latency = |latency: Option<Duration>| latency.map_or_else(|| "-".into(), duration);
    let rows = summary.commands.iter().map(|row| {
        let [p50, p99, p999] = row.latencies.map(latency);
        let hits = row.hit_ratio.map_or_else(|| "-".into(), percent);
        [row.name.clone(), count(row.per_second), hits, p50, p99, p999]
    });
    rows.collect()
}

/// Returns the names and values of everything but the commands and keys.
pub(super) fn facts(summary: &Summary) -> Vec<(&'static str, String)> {
    let (used, limit) = summary.memory;
    let of = |limit: Option<String>| limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let share = limit.map(|limit| format!(" ({})", percent(used as f64 / limit as f64)));
    let memory = format!(
        "{}{}{}",
        bytes(used as f64),
        of(limit.map(|limit| bytes(limit as f64))),
        share.unwrap_or_default()
    );
    let (connections, max) = summary.connections;
    let max = of(max.map(|max| max.to_string()));
    let (received, sent) = summary.network;
    let mut facts = vec![
        ("items", count(summary.items as f64)),
        ("memory", memory),
        (
            "evictions",
            format!(
                "{}/s, {} in all",
                count(summary.evictions.per_second),
                count(summary.evictions.total as f64)
            ),
        ),
        ("connections", format!("{connections}{max}, {}/s new", count(summary.connects))),
        ("network", format!("{}/s in, {}/s out", bytes(received), bytes(sent))),
    ];
    if let Some(file) = summary.file {
        facts.insert(2, ("file", bytes(file as f64)));
    }
    if let Some(processor) = summary.processor {
        facts.push(("processor", percent(processor)));
    }
    facts
}

/// Returns the line that says which server this is.
pub(super) fn title(address: &str, summary: &Summary) -> String {
    format!("{address}, {}, up {}", summary.version, age(summary.uptime))
}

/// Returns everything as a text of several lines.
pub(super) fn table(address: &str, summary: &Summary) -> String {
    let mut text = format!("{}\n\n", title(address, summary));
    let mut append = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line).expect("writing to a string cannot fail");
    };
    let mut row = |cells: [&str; 6]| {
        let [name, rate, hits, p50, p99, p999] = cells;
        append(format_args!("{name:<16}{rate:>10}{hits:>8}{p50:>10}{p99:>10}{p999:>10}\n"));
    };
    row(COLUMNS);
    for cells in command_cells(summary) {
        row(cells.each_ref().map(String::as_str));
    }
    append(format_args!("\n"));
    for (name, value) in facts(summary) {
        append(format_args!("{name:<16}{value}\n"));
    }
    if let Some(keys) = summary.hot_keys.as_ref().filter(|keys| !keys.is_empty()) {
        append(format_args!("\n{:>8}{:>12}  hot key\n", "share", "per second"));
        for (key, share, rate) in keys.iter().take(20) {
            append(format_args!("{:>8}{:>12}  {key}\n", percent(*share), count(*rate)));
        }
    }
    text
}
