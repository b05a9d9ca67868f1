//! Compares eviction policies: simulations of several on the same traces, beside the store itself,
//! or a running server.
//!
//! `cargo run --release -p evermap --example eviction [-- OPTIONS] [requests]`
//!
//! Every policy gets the same bytes, and every item takes what it takes in the store, except in the
//! model of memcached, which has its own slab classes, pages and headers. The store is not
//! simulated: it runs in memory with a limit of that many bytes, index included.
//!
//! * `--json`: one object a line instead of a table.
//! * `--scale N`: N times as many keys and requests; parts of N are possible.
//! * `--trace NAME`: this trace only.
//! * `--footprint`: only the bytes of all items of each trace.
//! * `--server ADDRESS`: a server that speaks memcached's text protocol, whatever its memory,
//!   instead of all other policies. `tests/hit-ratio/run.sh` starts servers and runs this.
//!
//! With a server:
//!
//! * `--pace R`: at most R requests in a second. The times for which items are valid are made
//!   longer or shorter accordingly. A trace whose items expire runs at its own rate otherwise.
//! * `--window N`: hits are also given for every N requests.
//! * `--pause AT`: before this request, which has to be a multiple of the window, writes `paused`
//!   to the standard output, waits for a line of the standard input, and connects again.
//! * `--fill`, `--sets N`, `--keys K`, `--seed S`: instead of traces, stores each of K keys once;
//!   stores N of them at random, one at a time, and prints how long that took.
//! * `--churn SECONDS`: instead of traces, keys that come and go, of which the lengths drift.

mod arguments;
mod load;
mod policies;
mod server;
mod store;
mod trace;

use std::error::Error;
use std::io::stdin;
use std::time::Instant;

use arguments::Arguments;
use policies::Policy;
use server::Server;
use trace::{Trace, Traces};

/// The bytes of caches, as parts of the bytes of all items of the trace.
const PARTS: [f64; 3] = [0.05, 0.10, 0.25];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    if let Some(server) = &arguments.server {
        let mut server = Server::new(server, None)?;
        if arguments.fill || arguments.sets.is_some() || arguments.churn.is_some() {
            return apply_load(&mut server, &arguments);
        }
    }
    let traces = Traces::new(arguments.requests, arguments.scale);
    let mut header_shown = false;
    for name in trace::NAMES {
        if arguments.trace.as_deref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let trace = traces.make(name);
        if arguments.footprint {
            println!("{{\"trace\": \"{name}\", \"footprint\": {}}}", trace.footprint());
        } else if let Some(address) = &arguments.server {
            ask_server(address, trace, &arguments)?;
        } else {
            compare(&trace, arguments.json, &mut header_shown)?;
        }
    }
    Ok(())
}

/// Runs a trace with all policies and the store.
fn compare(trace: &Trace, json: bool, header_shown: &mut bool) -> Result<(), Box<dyn Error>> {
    for part in PARTS {
        let bytes = (trace.footprint() as f64 * part) as u64;
        let mut row = Vec::new();
        for mut policy in policies::all(bytes, trace.per_second) {
            let ratio = hit_ratio(trace, &mut *policy);
            row.push((policy.name(), ratio));
        }
        let mut store = store::Store::new(bytes, trace.per_second)?;
        row.push((store.name(), hit_ratio(trace, &mut store)));
        store.report(trace.name, bytes)?;
        if json {
            let cells: Vec<_> =
                row.iter().map(|(name, ratio)| format!("\"{name}\": {ratio:.4}")).collect();
            let name = &trace.name;
            println!("{{\"trace\": \"{name}\", \"bytes\": {bytes}, {}}}", cells.join(", "));
            continue;
        }
        if !*header_shown {
            let names: Vec<_> = row.iter().map(|(name, _)| *name).collect();
            println!("| trace | cache | {} |", names.join(" | "));
            println!("|---|---|{}", "---|".repeat(names.len()));
            *header_shown = true;
        }
        let cells: Vec<_> = row.iter().map(|(_, ratio)| format!("{:.2}", ratio * 100.0)).collect();
        println!("| {} | {:.0} % | {} |", trace.name, part * 100.0, cells.join(" | "));
    }
    Ok(())
}

/// Returns the number of the first request that counts: the first fifth fills the cache.
fn warm(trace: &Trace) -> usize {
    trace.requests.len() / 5
}

/// Returns the part of the requests that found their key. What is not found is stored.
fn hit_ratio(trace: &Trace, policy: &mut dyn Policy) -> f64 {
    let (first, counted) = trace.requests.split_at(warm(trace));
    policy.run(first, 0);
    let hits = policy.run(counted, first.len() as u64);
    hits as f64 / counted.len() as f64
}

/// Runs a trace with a server, and prints what it found.
fn ask_server(
    address: &str,
    mut trace: Trace,
    arguments: &Arguments,
) -> Result<(), Box<dyn Error>> {
    let own = trace.per_second as f64;
    let pace = arguments.pace.or(trace.expires().then_some(own));
    if let Some(pace) = pace {
        trace.stretch(own / pace);
    }
    let mut server = Server::new(address, pace)?;
    let (first, begin) = (warm(&trace), Instant::now());
    let (mut hits, mut now, mut windows) = (0, 0, Vec::new());
    for window in trace.requests.chunks(arguments.window) {
        if arguments.pause == Some(now) {
            println!("paused");
            stdin().read_line(&mut String::new())?;
            server.reconnect()?;
        }
        let (before, counted) = window.split_at(first.saturating_sub(now).min(window.len()));
        let found = server.run(before, now as u64);
        let counted = server.run(counted, (now + before.len()) as u64);
        hits += counted;
        windows.push((found + counted).to_string());
        now += window.len();
    }
    println!(
        "{{\"trace\": \"{}\", \"requests\": {now}, \"ratio\": {:.6}, \"refused\": {}, \
         \"seconds\": {:.1}, \"late\": {:.3}, \"windows\": [{}]}}",
        trace.name,
        hits as f64 / (now - first) as f64,
        server.refused,
        begin.elapsed().as_secs_f64(),
        server.late.as_secs_f64(),
        windows.join(", "),
    );
    Ok(())
}

/// Applies a load that is not a trace.
fn apply_load(server: &mut Server, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    if arguments.fill {
        load::fill(server, arguments.keys)?;
    }
    if let Some(count) = arguments.sets {
        let times = load::sets(server, arguments.keys, count.max(1), arguments.seed)?;
        let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
        println!(
            "{{\"p50\": {:.1}, \"p99\": {:.1}, \"p99.9\": {:.1}, \"refused\": {}}}",
            at(0.5),
            at(0.99),
            at(0.999),
            server.refused,
        );
    }
    if let Some(seconds) = arguments.churn {
        let (requests, hits) = load::churn(server, seconds)?;
        let refused = server.refused;
        println!("{{\"requests\": {requests}, \"hits\": {hits}, \"refused\": {refused}}}");
    }
    Ok(())
}
