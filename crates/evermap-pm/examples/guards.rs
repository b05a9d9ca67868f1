//! Measures guards and readers: `cargo run --release -p evermap-pm --example guards`.

use std::hint::black_box;
use std::time::Instant;

use evermap_pm::{Domain, Reader};

const ROUNDS: u32 = 10_000_000;
const REPEATS: usize = 9;

/// Creates and drops one guard, in a function of its own so that its instructions can be inspected.
#[inline(never)]
fn one_guard(domain: &Domain) {
    drop(black_box(domain.pin()));
}

#[inline(never)]
fn one_section(reader: &Reader<'_>) {
    black_box(reader.section());
}

#[inline(never)]
fn one_quiescent_state(reader: &mut Reader<'_>) {
    reader.quiescent();
}

/// Retires one block, in a function of its own likewise.
#[inline(never)]
fn one_block(domain: &Domain) {
    domain.retire_with_total(1, 128, 1 << 30);
}

/// Returns the nanoseconds of one call, the median of several runs.
fn time(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<_> = (0..REPEATS)
        .map(|_| {
            let began = Instant::now();
            (0..ROUNDS).for_each(|_| call());
            began.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPEATS / 2]
}

fn main() {
    let domain = Domain::new(Box::new(|_| {}));
    println!("a guard             {:6.2} ns", time(|| one_guard(&domain)));
    let outer = domain.pin();
    println!("a guard inside it   {:6.2} ns", time(|| one_guard(&domain)));
    drop(outer);
    // Small blocks of one size, retired as by one thread that replaces records.
    let retire = || {
        let _guard = domain.pin();
        one_block(&domain);
    };
    println!("retiring a block    {:6.2} ns", time(retire));
    // As a table defers the freeing of a node.
    println!("deferring a call    {:6.2} ns", time(|| domain.defer(128, || {})));
    let mut reader = domain.register();
    println!("a reader section    {:6.2} ns", time(|| one_section(&reader)));
    println!("a quiescent state   {:6.2} ns", time(|| one_quiescent_state(&mut reader)));
    println!("offline and back    {:6.2} ns", time(|| reader.offline(|| {})));
}
