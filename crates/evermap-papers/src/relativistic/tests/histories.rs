//! Histories of concurrent calls, in many orders of the steps of their threads, while the table is
//! resized without a pause: each must be linearizable.

use std::collections::BTreeMap;

use evermap_index::testkit::call::{Call, Driver, Records, Verb};
use evermap_index::testkit::concurrent::thread_seed;
use evermap_index::testkit::linearizability::{Clock, Event, check};
use evermap_index::testkit::{Subject, tier};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::schedule::{self, Progress, Schedule, Strategy};

use super::kit::Make;
use super::*;

const CALLS: usize = 14;
const KEYS: u64 = 3;

/// Makes random calls on a few keys.
fn record(driver: &Driver<'_, u64>, clock: &Clock, thread: usize, seed: u64) -> Vec<Event> {
    let mut random = Rng::new(thread_seed(seed, thread));
    let (mut words, mut known) = (0, BTreeMap::new());
    let mut events = Vec::new();
    for _ in 0..CALLS {
        let key = random.below(KEYS);
        let mut word = |_: &mut Rng| {
            words += 1;
            (thread as u64 + 1) << 32 | words
        };
        let verb = Verb::random(&mut random, known.get(&key).copied(), 50, &mut word);
        let call = Call { key, verb };
        let begin = clock.tick();
        let answer = driver.call(&call).unwrap();
        let end = clock.tick();
        if let Some(word) = answer.and_then(|change| change.new) {
            known.insert(key, word);
        }
        events.push(Event { thread, call, begin, end, answer });
        schedule::after(Progress::End);
    }
    events
}

/// Runs three threads that make calls, and one that resizes.
fn history<K: Kind>(places: (Place, Place), seed: u64) -> Vec<Event> {
    let make = Make::<K>::new(places.0, places.1);
    let words: Words<u64, K::Table<KeyHash<u64>>> = make.fresh().unwrap();
    let (records, clock) = (Records::default(), Clock::default());
    let driver = Driver::new(&words, &records);
    // Others, so that chains have more than one node.
    for key in 10..14 {
        driver.call(&Call { key, verb: Verb::Insert(key) }).unwrap();
    }
    let (driver, clock, table) = (&driver, &clock, words.table());
    let mut bodies: Vec<Box<dyn FnOnce() -> Vec<Event> + Send>> = Vec::new();
    for thread in 0..3 {
        bodies.push(Box::new(move || record(driver, clock, thread, seed)));
    }
    bodies.push(Box::new(move || {
        for buckets in [8, 4, 16, 4] {
            table.resize(buckets).unwrap();
        }
        Vec::new()
    }));
    let (events, _) = schedule::run(Schedule { strategy: Strategy::Mixed, seed }, bodies);
    events.concat()
}

fn all_linearizable<K: Kind>(places: (Place, Place), seeds: u64) {
    for seed in 0..seeds {
        if let Err(violation) = check(&history::<K>(places, seed), &BTreeMap::new()) {
            panic!("{}, {places:?}, seed {seed}: {violation}", K::NAME);
        }
    }
}

#[test]
fn histories_under_resize_are_linearizable() {
    let seeds = tier().choose(20, 2000);
    for places in places() {
        all_linearizable::<Relativistic>(places, seeds);
        all_linearizable::<Sorted>(places, seeds);
    }
    all_linearizable::<Moving>((Place::New, Place::New), seeds);
    all_linearizable::<Locking>((Place::New, Place::New), seeds);
}
