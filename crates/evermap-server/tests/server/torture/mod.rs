//! Concurrent clients with all behaviors, each of which checks every byte that it receives.
//!
//! A value repeats its key and its version from the first byte to the last, so a byte that belongs
//! to another key, version or client is detected. `EVERMAP_TORTURE` is the number of requests, for
//! one worker and again for two. Without it the number is small.

mod behaviors;
mod packets;
mod script;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use evermap::{Evermap, Options};
use evermap_server::{Cache, Config, ModelCache, Server};

use behaviors::{BEHAVIORS, Client};
use values::Values;

const CLIENTS: usize = 64;
const REQUESTS: u64 = 50_000;

/// Totals over all clients.
#[derive(Default)]
struct Totals {
    requests: AtomicU64,
    connections: [AtomicU64; BEHAVIORS.len()],
    /// Bytes of values that were compared.
    checked: AtomicU64,
}

fn store() -> Arc<dyn Cache> {
    Arc::new(Evermap::in_memory(Options::new().capacity(8 << 30)).unwrap().default_map())
}

fn torture(threads: usize, cache: Arc<dyn Cache>) {
    let wanted = std::env::var("EVERMAP_TORTURE")
        .map_or(REQUESTS, |text| text.parse().expect("EVERMAP_TORTURE is a number of requests"));
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads, ..Config::default() };
    let server = Server::start(cache, config).unwrap();
    let (values, totals) = (Values::default(), Totals::default());
    let client = |number| Client::new(number, server.local_addr(), &values, &totals);
    client(CLIENTS).store_all_shared_values();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = client(number);
            let totals = &totals;
            scope.spawn(move || {
                while totals.requests.load(Relaxed) < wanted {
                    client.connect_and_behave();
                }
            });
        }
    });
    // All clients have disconnected. No value was lost, no data was executed as commands, and no
    // memory is reserved for the clients that are gone.
    let mut last = client(CLIENTS);
    last.check_all_shared_values();
    while last.stat("curr_connections") > 1 {
        std::thread::yield_now();
    }
    for name in ["cmd_flush", "evermap_upload_bytes", "evermap_unsent_bytes"] {
        assert_eq!(last.stat(name), 0, "{name}");
    }
    println!(
        "{threads} workers: {} requests, {} MB of values checked; connections:",
        totals.requests.load(Relaxed),
        totals.checked.load(Relaxed) >> 20
    );
    for (behavior, connections) in BEHAVIORS.iter().zip(&totals.connections) {
        println!("{:>9} {behavior:?}", connections.load(Relaxed));
    }
}

#[test]
fn one_worker() {
    torture(1, store());
}

#[test]
fn two_workers() {
    torture(2, store());
}

/// What the script expects is true of the model too.
#[test]
fn a_model() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    torture(1, Arc::new(ModelCache::new(now as u32)));
}
