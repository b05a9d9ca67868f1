//! Processes that are killed with `kill -9`: a log, a state machine, and a cluster of three.
//!
//! This program starts itself as the processes. A few kills by default, and many with
//! `EVERMAP_TEST_TIER=full`; `EVERMAP_TEST_SEED` is printed, and can be set.

#[path = "../../examples/three-nodes/client.rs"]
mod client;
#[path = "../../examples/three-nodes/network.rs"]
mod network;
#[path = "../../examples/three-nodes/node.rs"]
mod node;
#[path = "../../examples/three-nodes/protocol.rs"]
mod protocol;

mod cluster;
mod history;
mod install;
mod instants;
mod log;
mod victim;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use victim::Random;

/// Returns how often something is done.
fn times(few: u64, many: u64) -> u64 {
    match std::env::var("EVERMAP_TEST_TIER").as_deref() {
        Ok("full") => many,
        _ => few,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["as-log", file, seed] => log::work(Path::new(file), seed.parse().unwrap()),
        ["as-install", folder] => install::work(Path::new(folder)),
        ["as-node", id, file, addresses @ ..] => cluster::work(id, file, addresses),
        _ => run(words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or("")),
    }
}

/// Runs the tests whose names contain `filter`.
fn run(filter: &str) {
    let seed = match std::env::var("EVERMAP_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
    };
    println!("EVERMAP_TEST_SEED={seed}");
    type Test = fn(&mut Random);
    let tests: [(&str, Test); 5] = [
        ("log", log::test),
        ("log_at_instants", log::instants),
        ("install", install::test),
        ("install_at_instants", install::instants),
        ("cluster", cluster::test),
    ];
    let mut passed = 0;
    for (name, test) in tests {
        if name.contains(filter) {
            test(&mut Random::new(seed));
            println!("test {name} ... ok");
            passed += 1;
        }
    }
    println!("\ntest result: ok. {passed} passed; 0 failed");
}
