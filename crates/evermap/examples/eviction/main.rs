//! Compares eviction policies: simulations of several on the same traces, beside the store itself.
//!
//! `cargo run --release -p evermap --example eviction [-- --json] [requests]`
//!
//! Every policy gets the same bytes, and every item takes what it takes in the store, except in the
//! model of memcached, which has its own slab classes, pages and headers. The store is not
//! simulated: it runs in memory with a limit of that many bytes, index included.

mod policies;
mod store;
mod trace;

use policies::Policy;
use trace::Trace;

/// The bytes of caches, as parts of the bytes of all items of the trace.
const PARTS: [f64; 3] = [0.05, 0.10, 0.25];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|it| it == "--json");
    let requests = arguments.iter().find_map(|it| it.parse().ok()).unwrap_or(2_000_000);
    let mut header_shown = false;
    for trace in trace::all(requests) {
        for part in PARTS {
            let bytes = (trace.footprint() as f64 * part) as u64;
            let mut row = Vec::new();
            for mut policy in policies::all(bytes) {
                let ratio = hit_ratio(&trace, &mut *policy);
                row.push((policy.name(), ratio));
            }
            let mut store = store::Store::new(bytes)?;
            row.push((store.name(), hit_ratio(&trace, &mut store)));
            store.report(&trace.name, bytes)?;
            if json {
                let cells: Vec<_> =
                    row.iter().map(|(name, ratio)| format!("\"{name}\": {ratio:.4}")).collect();
                let name = &trace.name;
                println!("{{\"trace\": \"{name}\", \"bytes\": {bytes}, {}}}", cells.join(", "));
                continue;
            }
            if !header_shown {
                let names: Vec<_> = row.iter().map(|(name, _)| *name).collect();
                println!("| trace | cache | {} |", names.join(" | "));
                println!("|---|---|{}", "---|".repeat(names.len()));
                header_shown = true;
            }
            let cells: Vec<_> =
                row.iter().map(|(_, ratio)| format!("{:.2}", ratio * 100.0)).collect();
            println!("| {} | {:.0} % | {} |", trace.name, part * 100.0, cells.join(" | "));
        }
    }
    Ok(())
}

/// Returns the part of the requests that found their key. What is not found is stored.
fn hit_ratio(trace: &Trace, policy: &mut dyn Policy) -> f64 {
    let (mut hits, mut counted) = (0u64, 0u64);
    // The first fifth fills the cache.
    let warm = trace.requests.len() / 5;
    for (now, request) in trace.requests.iter().enumerate() {
        let hit = policy.get(request, now as u64);
        if !hit {
            policy.put(request, now as u64);
        }
        if now >= warm {
            counted += 1;
            hits += u64::from(hit);
        }
    }
    hits as f64 / counted as f64
}
