//! Measures what an ordered index costs: `ordered PATH [RECORDS [THREADS [VALUE_BYTES [ROUNDS]]]]`.
//!
//! Puts records with 16-byte keys, overwrites them, scans, and opens the store again, for each kind
//! of `OrderedUpdates`, with the order in the file, and without one; then arranges the records in
//! the order of their keys, and scans again. These take turns, so that
//! other load on the machine affects all of them; medians are printed, of the time that passed and
//! of the processor time of the threads that call the store, as far as the system says that.

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use evermap::{Evermap, Map, Options, Order, OrderedState, OrderedUpdates};

mod keys;

use keys::key;

/// The number of pairs of a short scan.
const SHORT: u64 = 100;

/// Nanoseconds per operation: those that passed, all threads together, and those of processor time.
type Nanos = [f64; 2];

const CLOCKS: [&str; 2] = ["ns", "ns of processor time"];

/// Returns the nanoseconds for which this thread has run.
fn processor_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// Returns what `operations` take that the threads share.
fn phase(operations: u64, threads: u64, work: impl Fn(Range<u64>) + Sync) -> Nanos {
    let (began, share) = (Instant::now(), operations / threads);
    let run = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for me in 0..threads {
            let (work, run) = (&work, &run);
            scope.spawn(move || {
                let began = processor_time();
                work(me * share..(me + 1) * share);
                run.fetch_add(processor_time() - began, Relaxed);
            });
        }
    });
    [began.elapsed().as_nanos() as f64, run.into_inner() as f64]
        .map(|nanos| nanos / (share * threads) as f64)
}

/// By clock, phase and way.
type Figures = BTreeMap<(usize, usize, usize), Vec<f64>>;

const PHASES: [&str; 10] = [
    "insert",
    "overwrite",
    "get",
    "scan 100",
    "scan all",
    "build",
    "get+insert",
    "arrange",
    "scan 100 ..",
    "scan all ..",
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        arguments.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let usage = "usage: ordered PATH [RECORDS [THREADS [VALUE_BYTES [ROUNDS]]]]";
    let path = arguments.first().ok_or(usage)?;
    let (records, threads) = (number(1, 1_000_000)?, number(2, 1)?);
    let value = vec![7u8; number(3, 100)? as usize];
    let ways: [(&str, Order, OrderedUpdates); 5] = [
        ("without", Order::None, OrderedUpdates::Sync),
        ("at once", Order::Volatile, OrderedUpdates::Sync),
        ("in batches", Order::Volatile, OrderedUpdates::Batched),
        ("in background", Order::Volatile, OrderedUpdates::Background),
        ("in the file", Order::Persistent, OrderedUpdates::Sync),
    ];
    let mut figures = Figures::new();
    for _ in 0..number(4, 3)? {
        for (way, &(_, order, updates)) in ways.iter().enumerate() {
            let options = || Options::new().ordered(order).ordered_updates(updates);
            let _ = std::fs::remove_file(path);
            let map = Evermap::open(path, options())?.default_map();
            let mut note = |phase: usize, nanos: Nanos| {
                for (clock, nanos) in nanos.into_iter().enumerate() {
                    figures.entry((clock, phase, way)).or_default().push(nanos);
                }
            };
            let put = |range: Range<u64>| {
                range.for_each(|number| map.put(key(number), &value).expect("put"));
            };
            note(0, phase(records, threads, put));
            note(1, phase(records, threads, put));
            let scattered = |number| scattered(number, records);
            note(
                2,
                phase(records, threads, |range| {
                    range.for_each(|number| {
                        drop(black_box(map.get(scattered(number)).expect("get")))
                    });
                }),
            );
            if order != Order::None {
                note(3, scan_shortly(&map, records, threads));
                note(4, scan_all(&map, records));
                let moving = phase(1, 1, |_| assert!(map.arrange().is_ok()));
                note(7, moving.map(|nanos| nanos / records as f64));
                note(8, scan_shortly(&map, records, threads));
                note(9, scan_all(&map, records));
            }
            map.into_db().close()?;
            let map = Evermap::open(path, options())?.default_map();
            if order == Order::Volatile {
                map.build_ordered(1)?;
                let Some(OrderedState::Ready(took)) = map.stat().ordered.map(|o| o.state) else {
                    return Err("not built".into());
                };
                // By threads of the store.
                note(5, [took.as_nanos() as f64 / records as f64, 0.0]);
            }
            // Reads and inserts in turns, in a store that is filled already.
            note(
                6,
                phase(records / 4, threads, |range| {
                    for number in range {
                        drop(black_box(map.get(scattered(number)).expect("get")));
                        map.put(key(records + number), &value).expect("put");
                    }
                }),
            );
            map.into_db().close()?;
        }
    }
    println!("{records} records, {threads} threads, values of {} bytes", value.len());
    for (clock, name) in CLOCKS.iter().enumerate() {
        println!("{name}:");
        print(&mut figures, clock, &ways.map(|(name, ..)| name));
    }
    std::fs::remove_file(path)?;
    Ok(())
}

/// Returns keys in an order without a pattern.
fn scattered(number: u64, records: u64) -> [u8; 16] {
    key(number.wrapping_mul(7_919) % records)
}

/// Returns what a pair of a scan of 100 takes.
fn scan_shortly(map: &Map, records: u64, threads: u64) -> Nanos {
    let scans = (records / SHORT).min(20_000);
    let short = phase(scans, threads, |range| {
        for number in range {
            let from = scattered(number * 31, records);
            let mut scan = map.scan(&from[..]..).expect("scan").limit(SHORT);
            scan.visit(|item| {
                black_box(item).expect("sound");
                ControlFlow::Continue(())
            })
            .expect("scan");
        }
    });
    short.map(|nanos| nanos / SHORT as f64)
}

/// Returns what a pair of a scan of the whole map takes.
fn scan_all(map: &Map, records: u64) -> Nanos {
    let whole = phase(1, 1, |_| {
        let mut seen = 0;
        let scanned = map.scan(..).expect("scan").visit(|item| {
            seen += u64::from(black_box(item).is_ok());
            ControlFlow::Continue(())
        });
        scanned.expect("scan");
        assert_eq!(seen, records);
    });
    whole.map(|nanos| nanos / records as f64)
}

/// Prints a table of medians.
fn print(figures: &mut Figures, clock: usize, ways: &[&str]) {
    print!("{:<12}", "");
    ways.iter().for_each(|name| print!("{name:>15}"));
    for (phase, name) in PHASES.iter().enumerate() {
        print!("\n{name:<12}");
        for way in 0..ways.len() {
            match figures.get_mut(&(clock, phase, way)) {
                Some(nanos) => {
                    nanos.sort_by(f64::total_cmp);
                    print!("{:>15.0}", nanos[nanos.len() / 2]);
                }
                None => print!("{:>15}", "-"),
            }
        }
    }
    println!();
}
