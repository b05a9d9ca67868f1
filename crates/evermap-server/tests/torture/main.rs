//! Clients of all manners at once, each of which checks every byte that it gets.
//!
//! A value names its key and its generation from the first byte to the last, so a byte that belongs
//! to another key, version or client is seen. `EVERMAP_TORTURE` is the number of requests, for one
//! worker and again for two; without it there are few, for the tests of every day.

mod manners;
mod script;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evermap::{Evermap, Options};
use evermap_server::{Config, Server};

use manners::{Client, MANNERS};
use values::Values;

const CLIENTS: usize = 64;
const REQUESTS: u64 = 50_000;

/// What has happened so far.
#[derive(Default)]
struct Tally {
    requests: AtomicU64,
    connections: [AtomicU64; MANNERS.len()],
    /// Bytes of values that were compared.
    checked: AtomicU64,
}

fn torture(threads: usize) {
    let wanted = std::env::var("EVERMAP_TORTURE")
        .map_or(REQUESTS, |text| text.parse().expect("EVERMAP_TORTURE is a number of requests"));
    let map = Evermap::in_memory(Options::new().capacity(8 << 30)).unwrap().default_map();
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads, ..Config::default() };
    let server = Server::start(Arc::new(map), config).unwrap();
    let (values, tally) = (Values::default(), Tally::default());
    let client = |number| Client::new(number, server.local_addr(), &values, &tally);
    client(CLIENTS).store_all_shared_values();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = client(number);
            let tally = &tally;
            scope.spawn(move || {
                while tally.requests.load(Relaxed) < wanted {
                    client.connect_and_behave();
                }
            });
        }
    });
    // Everybody has left. Nothing was lost, no payload was run, and no memory is held for those who
    // left.
    let mut last = client(CLIENTS);
    last.check_all_shared_values();
    while last.stat("curr_connections") > 1 {
        std::thread::yield_now();
    }
    for nothing in ["cmd_flush", "evermap_upload_bytes", "evermap_unsent_bytes"] {
        assert_eq!(last.stat(nothing), 0, "{nothing}");
    }
    println!(
        "{threads} workers: {} requests, {} MB of values checked; connections:",
        tally.requests.load(Relaxed),
        tally.checked.load(Relaxed) >> 20
    );
    for (manner, connections) in MANNERS.iter().zip(&tally.connections) {
        println!("{:>9} {manner:?}", connections.load(Relaxed));
    }
}

#[test]
fn one_worker() {
    torture(1);
}

#[test]
fn two_workers() {
    torture(2);
}
