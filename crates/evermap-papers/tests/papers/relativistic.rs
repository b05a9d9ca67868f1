//! Relativistic tables and their rivals, at full speed: lookups of keys that are present, while
//! another thread resizes without a pause, and a third updates other keys. None may miss.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::testkit::tier;
use evermap_papers::relativistic::{
    Config, Ddds, Identity, KeyHash, Place, ResizableTable, Rp, RpSorted, RwLockTable,
};
use evermap_pm::Domain;
use evermap_pm::sim::rng::Rng;

/// The keys that stay. Others are above.
const KEYS: u64 = 1 << 12;

/// Looks up `count` random keys, and returns the number of those that were missed. `online` says
/// whether the thread announces quiescent states, or holds a guard for each lookup.
fn misses(table: &impl ResizableTable<u64, u64>, count: u64, online: bool) -> u64 {
    let mut random = Rng::new(count + u64::from(online));
    let mut reader = online.then(|| table.domain().register());
    let mut missed = 0;
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

/// Inserts, replaces and removes keys that no other thread changes, until it is told to stop.
/// Returns what is present in the end.
fn update(table: &impl ResizableTable<u64, u64>, done: &AtomicBool) -> BTreeMap<u64, u64> {
    let (mut random, mut present) = (Rng::new(7), BTreeMap::new());
    let mut round = 0;
    while !done.load(Relaxed) {
        round += 1;
        let key = KEYS + random.below(KEYS / 4);
        let guard = table.domain().pin();
        if random.one_in(10) {
            let was = table.remove(&key, &guard).unwrap();
            assert_eq!(was, present.remove(&key).is_some(), "remove {key}");
        } else {
            let absent = table.upsert(&key, round, &guard).unwrap();
            assert_eq!(absent, present.insert(key, round).is_none(), "upsert {key}");
        }
        assert_eq!(table.get_copied(&key, &guard), present.get(&key).copied(), "key {key}");
    }
    present
}

/// Tells other threads to stop when it is dropped, even by a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn none_is_missed<T: ResizableTable<u64, u64>>(name: &str, table: T, lookups: u64) {
    for key in 0..KEYS {
        table.insert(&key, !key, &table.domain().pin()).unwrap();
    }
    let buckets = table.stats().buckets;
    let (table, done) = (&table, &AtomicBool::new(false));
    let (missed, mut expected) = std::thread::scope(|threads| {
        threads.spawn(move || {
            while !done.load(Relaxed) {
                table.resize(2 * buckets).unwrap();
                table.resize(buckets).unwrap();
            }
        });
        let updater = threads.spawn(move || update(table, done));
        let stop = SetOnDrop(done);
        let readers =
            [false, true].map(|online| threads.spawn(move || misses(table, lookups / 2, online)));
        let missed: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        drop(stop);
        (missed, updater.join().unwrap())
    });
    assert_eq!(missed, 0, "{name}: of {lookups} lookups of keys that are present");
    expected.extend((0..KEYS).map(|key| (key, !key)));
    let mut shown = BTreeMap::new();
    table.for_each(&table.domain().pin(), &mut |&key, &value| {
        assert_eq!(shown.insert(key, value), None, "{name}: {key} shown twice");
        true
    });
    assert_eq!(shown, expected, "{name}");
    let stats = table.stats();
    let grown = (stats.expansions, stats.grace_periods_max);
    println!("{name}: {lookups} lookups, {} expansions, up to {} grace periods", grown.0, grown.1);
}

fn tables<S: BuildHasher + Clone + Send + Sync>(hasher: &S, [most, some, few]: [u64; 3]) {
    use Place::{New, Same};
    let domain = || Arc::new(Domain::new(Box::new(|_| {})));
    let config = |grow, shrink| {
        let buckets = KEYS / 8;
        Config { grow, shrink, buckets_max: 2 * buckets, ..Config::paper(buckets) }
    };
    let rp = |config| Rp::<u64, u64, _>::new(domain(), hasher.clone(), config).unwrap();
    let sorted = RpSorted::new(domain(), hasher.clone(), config(New, Same)).unwrap();
    let ddds = Ddds::new(domain(), hasher.clone(), config(New, New)).unwrap();
    let rwlock = RwLockTable::new(domain(), hasher.clone(), config(New, New)).unwrap();
    none_is_missed("rp", rp(config(New, Same)), most);
    none_is_missed("rp-sorted", sorted, some);
    none_is_missed("rp in new arrays", rp(config(New, New)), some);
    none_is_missed("rp in place", rp(config(Same, Same)), some);
    none_is_missed("ddds", ddds, some);
    none_is_missed("rwlock", rwlock, few);
}

#[test]
fn no_lookup_misses_a_key_that_is_present() {
    let random = tier().choose([100_000, 50_000, 5_000], [100_000_000, 10_000_000, 200_000]);
    tables(&KeyHash::<u64>::new(3), random);
    // As in the paper's benchmark.
    let regular = tier().choose([50_000, 20_000, 2_000], [10_000_000, 10_000_000, 100_000]);
    tables(&Identity, regular);
}
