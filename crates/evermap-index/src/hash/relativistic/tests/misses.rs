//! Lookups of keys that are present, by threads that the system schedules, while another thread
//! resizes without a pause: none may miss.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::testkit::tier;
use evermap_pm::sim::rng::Rng;

const KEYS: u64 = 1 << 12;

/// Looks up `count` random keys, and returns the number of those that were missed.
fn misses<T: ResizableTable<u64, u64>>(table: &T, count: u64, online: bool, seed: u64) -> u64 {
    let mut random = Rng::new(seed);
    let mut missed = 0;
    let mut reader = online.then(|| table.domain().register());
    for round in 0..count {
        let key = random.below(KEYS);
        let found = match &mut reader {
            Some(reader) => {
                if round % 64 == 0 {
                    reader.quiescent();
                }
                table.get_copied(&key, reader.section())
            }
            None => table.get_copied(&key, &table.domain().pin()),
        };
        missed += u64::from(found != Some(!key));
    }
    missed
}

fn none_is_missed<K: Kind>(config: Config, lookups: u64) {
    let domain = domain();
    let table = K::create(domain.clone(), KeyHash::<u64>::new(3), config).unwrap();
    for key in 0..KEYS {
        table.insert(&key, !key, &domain.pin()).unwrap();
    }
    let (table, done) = (&table, &AtomicBool::new(false));
    let missed: u64 = std::thread::scope(|threads| {
        threads.spawn(move || {
            while !done.load(Relaxed) {
                table.resize(2 * config.buckets).unwrap();
                table.resize(config.buckets).unwrap();
            }
        });
        let readers = [false, true]
            .map(|online| threads.spawn(move || misses(table, lookups / 2, online, 5)));
        let missed = readers.map(|reader| reader.join());
        done.store(true, Relaxed);
        missed.into_iter().map(|missed| missed.unwrap()).sum()
    });
    assert_eq!(missed, 0, "{} of {lookups} lookups missed a key that is present", K::NAME);
    let stats = table.stats();
    println!("{}: {} expansions, {:?}", K::NAME, stats.expansions, stats.last_expansion);
}

#[test]
fn no_lookup_misses_a_key_that_is_present() {
    let config = |places: (Place, Place)| {
        let buckets = KEYS / 8;
        Config {
            grow: places.0,
            shrink: places.1,
            buckets_max: 2 * buckets,
            ..Config::paper(buckets)
        }
    };
    let lookups = tier().choose(100_000, 100_000_000);
    none_is_missed::<Relativistic>(config((Place::New, Place::Same)), lookups);
    none_is_missed::<Sorted>(config((Place::New, Place::Same)), lookups);
    // As long as the others, these would take hours.
    let fewer = tier().choose(50_000, 10_000_000);
    none_is_missed::<Relativistic>(config((Place::Same, Place::Same)), fewer);
    none_is_missed::<Relativistic>(config((Place::New, Place::New)), fewer);
    none_is_missed::<Moving>(config((Place::New, Place::New)), fewer);
    none_is_missed::<Locking>(config((Place::New, Place::New)), tier().choose(20_000, 1_000_000));
}
