//! Measures operations per second: `throughput PATH [RECORDS [THREADS [VALUE_BYTES]]]`.
//!
//! Puts records with 16-byte keys, overwrites them, and gets them one by one and in batches.

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use evermap::{Evermap, Options};

mod keys;

use keys::key;

/// Runs `work` for each thread's share of the records, and prints the rate.
fn phase(name: &str, records: u64, threads: u64, work: impl Fn(std::ops::Range<u64>) + Sync) {
    let began = Instant::now();
    let share = records / threads;
    std::thread::scope(|scope| {
        for me in 0..threads {
            let work = &work;
            scope.spawn(move || work(me * share..(me + 1) * share));
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    println!("{name:<12} {:>8.3} M/s", (share * threads) as f64 / seconds / 1e6);
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        arguments.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let path =
        arguments.first().ok_or("usage: throughput PATH [RECORDS [THREADS [VALUE_BYTES]]]")?;
    let (records, threads) = (number(1, 1_000_000)?, number(2, 1)?);
    let value = vec![7u8; number(3, 100)? as usize];
    let map = Evermap::open(path, Options::new())?.default_map();
    for name in ["insert", "overwrite"] {
        phase(name, records, threads, |range| {
            range.for_each(|number| map.put(key(number), &value).expect("put"));
        });
    }
    let scattered = |number: u64| key(number.wrapping_mul(7_919) % records);
    phase("get", records, threads, |range| {
        let mut out = Vec::new();
        for number in range {
            out.clear();
            assert!(map.get_into(scattered(number), &mut out).expect("get"));
        }
    });
    phase("get_many", records, threads, |range| {
        let numbers: Vec<u64> = range.collect();
        let mut found = 0;
        for batch in numbers.chunks(32) {
            let keys: Vec<_> = batch.iter().map(|&number| scattered(number)).collect();
            map.get_many(&keys, |_, item| {
                found += u64::from(item.is_ok());
                ControlFlow::Continue(())
            })
            .expect("get_many");
        }
        assert_eq!(found, numbers.len() as u64);
    });
    println!("{}", map.stat());
    Ok(map.into_db().close()?)
}
