//! The store beside a model, with threads, over shutdowns and crashes, and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Visitor;
use evermap_index::testkit::crash_states::{are_kept, as_operation, for_each_image, word_in};
use evermap_pm::medium::Counter;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, ImageConfig, Mutation, Sim};

use super::item::{Draft, Item};
use super::queue::Request;
use super::*;

const SOUND: Vec<String> = Vec::new();

const HIKV: Config = Config {
    partition_bits: 6,
    base: 7,
    spares: 64,
    backends: Some(Backends::Adaptive),
    requests: 4096,
    trees: Trees::Optimistic,
    logs: 0,
    log_bytes: 2 << 20,
    rebuild: Rebuild::Bulk,
    rebuild_threads: 1,
};
const FIXED: Config = Config { backends: Some(Backends::Fixed(1)), ..HIKV };
const SYNC: Config = Config { backends: None, ..HIKV };
const PAR: Config = Config { trees: Trees::Ranges, ..HIKV };
const HTM: Config = Config { trees: Trees::Transactional, ..HIKV };
const WAL: Config = Config { logs: 16, ..HIKV };
/// Without threads, and with queues of few requests.
const ALONE: Config =
    Config { backends: Some(Backends::Fixed(0)), requests: 64, rebuild_threads: 0, ..HIKV };
const ONE_BY_ONE: Config = Config { rebuild: Rebuild::OneByOne, ..ALONE };
const VARIANTS: [Config; 8] = [HIKV, FIXED, SYNC, PAR, HTM, WAL, ALONE, ONE_BY_ONE];

fn memory() -> Sim {
    Sim::in_memory(1 << 28).unwrap()
}

fn pool_in(medium: Sim) -> Arc<Pool<Sim>> {
    let capacity = medium.capacity();
    let shape = RegionConfig { extent_size: 2 << 20, capacity, seed: Some(1) };
    Pool::create(medium, &shape, Identity::default()).unwrap()
}

fn store_in(medium: Sim, config: Config) -> HiKv<Sim> {
    let pool = pool_in(medium);
    HiKv::create(pool.clone(), pool.root(0), config).unwrap()
}

fn store(config: Config) -> HiKv<Sim> {
    store_in(memory(), config)
}

/// Opens the store in a medium, as after a crash or a shutdown.
fn opened(medium: &Sim, config: Config) -> HiKv<Sim> {
    let (pool, _) = Pool::open(medium.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
    HiKv::open(pool.clone(), pool.root(0), config).unwrap()
}

/// Shuts a store down and its pool.
fn shut_down(store: HiKv<Sim>) {
    store.close().unwrap();
    store.core.pool.epoch().drain();
    store.core.pool.close().unwrap();
}

/// Sweeps, and checks that exactly what is reachable is allocated.
fn sweep(store: &HiKv<Sim>) {
    struct Mark<'m>(&'m mut dyn FnMut(u64));
    impl Visitor for Mark<'_> {
        fn block(&mut self, offset: u64) {
            (self.0)(offset);
        }
        fn word(&mut self, _: u64) {}
    }
    let pool = &store.core.pool;
    let mut reachable = BTreeSet::new();
    pool.sweep(|mark| store.visit(&mut Mark(mark))).unwrap();
    store.visit(&mut Mark(&mut |block| assert!(reachable.insert(block)))).unwrap();
    pool.epoch().drain();
    let allocated: BTreeSet<_> = pool.allocated().into_iter().collect();
    assert_eq!(reachable, allocated);
    assert_eq!(pool.heap_stats().faults, 0);
}

/// Returns a key of 8 to 23 bytes; keys sort as their numbers.
fn key(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.extend(std::iter::repeat_n(b'k', number as usize % 16));
    key
}

/// Returns a value of which a part, or another key's value, is no value of this key.
fn value(number: u64, version: u64) -> Vec<u8> {
    let words = 2 + (number ^ version) % 30;
    (0..words)
        .flat_map(|at| (number << 32 | version).wrapping_add(at << 56).to_le_bytes())
        .collect()
}

/// Returns the version in a value of this key.
fn version(number: u64, bytes: &[u8]) -> u64 {
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(first >> 32, number, "another key's value");
    let version = first & 0xffff_ffff;
    assert_eq!(bytes, value(number, version), "torn, or not there any more");
    version
}

fn number(key: &[u8]) -> u64 {
    let number = u64::from_be_bytes(key[..8].try_into().unwrap());
    assert_eq!(key, self::key(number));
    number
}

fn scanned(store: &HiKv<Sim>, from: &[u8], count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut see = |key: &[u8], value: &[u8]| seen.push((key.to_vec(), value.to_vec()));
    store.scan(from, count, &mut see).unwrap();
    seen
}

fn got(store: &HiKv<Sim>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store.get(key, &mut value).unwrap().then_some(value)
}

fn fill(store: &HiKv<Sim>, numbers: std::ops::Range<u64>, version: u64) {
    for number in numbers {
        store.put(&key(number), &value(number, version)).unwrap();
    }
}

/// One thread: every answer and every scan immediately equals that of a standard map, also after
/// shutdowns, and after the process has died.
#[test]
fn every_variant_is_a_sorted_map() {
    for config in VARIANTS {
        let medium = memory();
        let mut store = store_in(medium.clone(), config);
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(7));
        for round in 0..10_000u64 {
            let chosen = rng.below(1000);
            let (key, value) = (key(chosen), value(chosen, round));
            match rng.below(10) {
                0..5 => {
                    let found = store.put(&key, &value).unwrap();
                    assert_eq!(found, model.insert(key, value).is_some());
                }
                5..7 => assert_eq!(store.remove(&key).unwrap(), model.remove(&key).is_some()),
                7..9 => assert_eq!(got(&store, &key).as_ref(), model.get(&key)),
                _ => {
                    let count = rng.below(50) as usize;
                    let right: Vec<_> = model.range(key.clone()..).take(count).collect();
                    let seen = scanned(&store, &key, count);
                    assert!(seen.iter().map(|(key, value)| (key, value)).eq(right));
                }
            }
            if round % 1000 == 999 {
                match round % 2000 {
                    999 => shut_down(store),
                    _ => drop(store),
                }
                store = opened(&medium, config);
            }
        }
        assert!(scanned(&store, b"", usize::MAX).into_iter().eq(model.clone()), "{config:?}");
        assert_eq!(store.check(), SOUND, "{config:?}");
        assert_eq!(store.stats().unwrap().census.keys, model.len() as u64);
        sweep(&store);
    }
}

/// A thread finds what it has put in its next scan, whatever the others do. Keys that stay are
/// shown exactly once and in order, and no retired item is shown. Writers share their keys, and the
/// queues are tiny beside what they send. The tree is being built when they begin.
#[test]
fn scans_beside_writers_show_what_was_acknowledged() {
    const KEYS: u64 = 600;
    for config in VARIANTS {
        let medium = memory();
        // Every third key stays; the others are written and removed by all threads.
        let before = store_in(medium.clone(), config);
        for number in (0..KEYS).step_by(3) {
            before.put(&key(number), &value(number, 0)).unwrap();
        }
        drop(before);
        let store = opened(&medium, config);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (1..=3u64)
                .map(|writer| {
                    let store = &store;
                    scope.spawn(move || {
                        let mut rng = Rng::new(writer);
                        // Only this writer puts versions that are its number modulo 4.
                        for round in 0..1500 {
                            let number = rng.below(KEYS);
                            let written = 4 * round + writer;
                            let stays = number.is_multiple_of(3);
                            if stays || rng.below(3) > 0 {
                                store.put(&key(number), &value(number, written)).unwrap();
                            } else {
                                store.remove(&key(number)).unwrap();
                            }
                            if round % 8 == 0 && stays {
                                let (found, value) = scanned(store, &key(number), 1).remove(0);
                                assert_eq!(self::number(&found), number);
                                let found = version(number, &value);
                                assert!(found == written || found % 4 != writer, "stale");
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let seen = scanned(&store, b"", usize::MAX);
                    assert!(seen.windows(2).all(|two| two[0].0 < two[1].0));
                    for (key, value) in &seen {
                        version(number(key), value);
                    }
                    let stay = seen.iter().map(|(key, _)| number(key)).filter(|n| n % 3 == 0);
                    assert!(stay.eq((0..KEYS).step_by(3)), "{config:?}");
                }
            });
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            over.store(true, Relaxed);
            ended.into_iter().for_each(|writer| writer.unwrap());
        });
        let all = scanned(&store, b"", usize::MAX);
        let looked_up =
            (0..KEYS).filter_map(|number| Some((key(number), got(&store, &key(number))?)));
        assert!(looked_up.eq(all.iter().cloned()), "{config:?}: hash and tree differ");
        assert_eq!(store.check(), SOUND);
    }
}

/// All items that were replaced or removed are freed, whichever thread has updated the tree.
#[test]
fn space_of_replaced_items_is_used_again() {
    for config in VARIANTS {
        let store = store(config);
        let allocated = || {
            store.settle(1).unwrap();
            store.core.pool.epoch().drain();
            store.core.pool.heap_stats().allocated_bytes
        };
        let empty = allocated();
        let write_all = |version| {
            for number in 0..2000 {
                store.put(&key(number), &[version; 200]).unwrap();
            }
        };
        write_all(0);
        let full = allocated();
        (1..10).for_each(write_all);
        assert!(allocated() < full + full / 50, "{config:?}");
        for number in 0..2000 {
            store.remove(&key(number)).unwrap();
        }
        // What remains are the buckets.
        assert!(allocated() < empty + 2000 * 50, "{config:?}: {} of {full}", allocated());
    }
}

/// The persists of the paper: two for a Put or an Update, one for a Delete; with a log one more
/// each. Puts that make the store grow take those of the splits in addition.
#[test]
fn persists_are_those_of_the_paper() {
    const KEYS: u64 = 4000;
    for config in VARIANTS {
        let counter = Arc::new(Counter::default());
        let medium = memory().observed_by(counter.clone());
        let store = store_in(medium, config.presized_for(KEYS));
        let fences = |change: &dyn Fn(u64)| {
            let before = counter.counts().fences;
            (0..KEYS).for_each(change);
            store.settle(1).unwrap();
            counter.counts().fences - before
        };
        let put = |number| {
            store.put(&key(number), &[7; 256]).unwrap();
        };
        let logged = if config.logs > 0 { KEYS } else { 0 };
        let buckets = || store.stats().unwrap().census.buckets;
        let before = buckets();
        let inserting = fences(&put) - logged;
        // Two for a split, one more if it leaves chained buckets without keys, and one if it is the
        // first of a doubling. The heap persists when it opens an extent, and 64 chained buckets
        // are zeroed with one persist.
        let splitting = 3 * (buckets() - before) + 2 * 64 + KEYS / 50;
        assert!((2 * KEYS..2 * KEYS + splitting).contains(&inserting), "{config:?} {inserting}");
        let updating = fences(&put) - logged;
        assert!((2 * KEYS..2 * KEYS + KEYS / 100).contains(&updating), "{config:?} {updating}");
        let deleting = fences(&|number| {
            store.remove(&key(number)).unwrap();
        }) - logged;
        assert_eq!(deleting, KEYS, "{config:?}");
        let looking = fences(&|number| {
            assert!(!store.get(&key(number), &mut Vec::new()).unwrap());
            store.scan(&key(number), 10, &mut |_, _| {}).unwrap();
        });
        assert_eq!(looking, 0);
    }
}

#[test]
fn what_cannot_be_is_explained_and_changes_nothing() {
    for config in VARIANTS {
        let store = store(config);
        let long = vec![b'x'; evermap_index::record::KEY_MAX + 1];
        let error = store.put(&long, b"value").unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        assert_eq!(got(&store, &long), None);
        assert!(!store.remove(&long).unwrap());
        // An unused reservation is released: removing absent keys never fills a queue.
        for number in 0..10_000 {
            assert!(!store.remove(&key(number)).unwrap());
        }
        store.put(&long[1..], b"value").unwrap();
        assert_eq!(scanned(&store, b"", 2), [(long[1..].to_vec(), b"value".to_vec())]);
    }
    let impossible = Config { base: 0, ..ALONE };
    let pool = pool_in(memory());
    let error = HiKv::create(pool.clone(), pool.root(0), impossible).err().unwrap().to_string();
    assert!(error.contains("configuration"), "{error}");
    // A record that does not fit into a log.
    let store = self::store(Config { log_bytes: 1 << 10, ..WAL });
    assert!(store.put(b"key", &[1; 1 << 10]).unwrap_err().is_no_space());
    assert_eq!(got(&store, b"key"), None);
}

/// If a thread that updates the tree meets an error, those who need the tree meet it too.
#[test]
fn what_a_backend_fails_at_fails_those_who_need_it() {
    let store = store(FIXED);
    let core = &store.core;
    // A change from a position that the tree never had.
    let draft = Draft::allocate(&core.pool, 3, 5).unwrap();
    draft.write(b"key", b"value");
    let position = draft.keep();
    let service = core.service.as_ref().unwrap();
    let reservation = service.reserve(0, &core.helpers, |_| Ok(())).unwrap();
    reservation.send(Request { old: position, new: position });
    let error = core.settle().unwrap_err().to_string();
    assert!(error.contains("in another order"), "{error}");
    let full = (0..).find_map(|number| store.put(&key(number), b"value").err());
    assert!(full.unwrap().to_string().contains("in another order"));
}

/// No two such keys are known, so the test uses the place of one key for all.
#[test]
fn keys_with_equal_signatures_are_kept_apart() {
    let store = store(ALONE);
    let (hash, pool) = (&store.core.hash, &store.core.pool);
    let place = hash.place(b"ant");
    let item = |key: &[u8]| {
        let draft = Draft::allocate(pool, key.len(), 5).unwrap();
        draft.write(key, b"value");
        draft.keep()
    };
    let (ant, bee, cow) = (item(b"ant"), item(b"bee"), item(b"cow"));
    let stripe = hash.lock(place).unwrap();
    let bind = |key, item| {
        let found = stripe.search(key).unwrap();
        let old = found.old();
        stripe.bind(found, item).unwrap();
        old
    };
    assert_eq!(bind(b"ant", ant), None);
    assert_eq!(bind(b"bee", bee), None);
    let found = |key: &[u8]| hash.find(place, key).unwrap();
    assert_eq!((found(b"ant"), found(b"bee"), found(b"cow")), (Some(ant), Some(bee), None));
    let hash::Found::Bound(entry, _) = stripe.search(b"ant").unwrap() else { panic!("lost") };
    stripe.unbind(entry);
    assert_eq!(bind(b"cow", cow), None);
    assert_eq!((found(b"ant"), found(b"bee"), found(b"cow")), (None, Some(bee), Some(cow)));
    drop(stripe);
    assert_eq!(hash.census().unwrap().keys, 2);
}

/// Partition and bucket come from different bits, and those who double buckets from others: no
/// partition uses only a few of its buckets, whatever their number.
#[test]
fn keys_spread_over_partitions_and_buckets() {
    let store = store(ALONE);
    let hash = &store.core.hash;
    for count in [7, 8, 100, 200, 7 << 5] {
        let mut used = vec![BTreeMap::new(); 64];
        for number in 0..64_000u64 {
            let place = hash.place(&number.to_be_bytes());
            let bucket = hash.bucket_of(place.signature, count);
            assert!(bucket < count);
            *used[place.partition].entry(bucket).or_insert(0) += 1;
        }
        for buckets in used {
            let keys: u64 = buckets.values().sum();
            assert!((800..1200).contains(&keys), "{keys}");
            // Those that are not split have twice as many.
            let most = 2 * keys / count;
            assert!(buckets.values().all(|&here| here < 3 * most + 20), "{count}: {buckets:?}");
            assert!(buckets.len() as u64 > count * 9 / 10, "{count}: {}", buckets.len());
        }
    }
}

/// A store that begins with one bucket becomes as large as needed, at the same load. Each bucket's
/// keys are those that belong there.
#[test]
fn a_store_grows_bucket_by_bucket() {
    const KEYS: u64 = 40_000;
    for (bits, base) in [(0, 1), (1, 3), (6, 7)] {
        let medium = memory();
        let config = Config { partition_bits: bits, base, ..ALONE };
        let store = store_in(medium.clone(), config);
        for number in 0..KEYS {
            store.put(&key(number), b"value").unwrap();
        }
        let census = store.stats().unwrap().census;
        assert_eq!(census.keys, KEYS);
        let load = census.keys as f64 / census.entries as f64;
        assert!((0.5..0.95).contains(&load), "{census:?}");
        assert!(census.chained < census.buckets * 3 / 10, "{census:?}");
        assert_eq!(store.check(), SOUND);
        drop(store);
        let store = opened(&medium, config);
        assert!((0..KEYS).all(|number| store.get(&key(number), &mut Vec::new()).unwrap()));
        assert_eq!(store.check(), SOUND);
        sweep(&store);
    }
}

/// Lookups beside splits find the keys that are there.
#[test]
fn lookups_beside_splits_miss_nothing() {
    let store = store(Config { partition_bits: 0, base: 1, ..ALONE });
    fill(&store, 0..200, 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fill(&store, 200..30_000, 0);
            over.store(true, Relaxed);
        });
        while !over.load(Relaxed) {
            for number in 0..200 {
                version(number, &got(&store, &key(number)).unwrap());
            }
        }
    });
    assert_eq!(store.check(), SOUND);
}

/// Single keys are served before there is a tree, and what they change is in it.
#[test]
fn changes_before_the_tree_are_in_it() {
    for config in [ALONE, ONE_BY_ONE, Config { backends: None, ..ALONE }] {
        for clean in [true, false] {
            let medium = memory();
            let store = store_in(medium.clone(), config);
            fill(&store, 0..3000, 0);
            if clean {
                shut_down(store)
            } else {
                drop(store)
            }
            let store = opened(&medium, config);
            assert!(store.core.order.complete().is_none());
            fill(&store, 1000..2000, 1);
            for number in 2000..2500 {
                assert!(store.remove(&key(number)).unwrap());
            }
            fill(&store, 3000..3500, 1);
            assert_eq!(version(1500, &got(&store, &key(1500)).unwrap()), 1);
            assert!(store.core.order.complete().is_none(), "nothing has waited for the tree");
            let seen = scanned(&store, b"", usize::MAX);
            let right = (0..2000).chain(2500..3500);
            let right = right.map(|n| (n, u64::from((1000..2000).contains(&n) || n >= 3000)));
            assert!(
                seen.iter()
                    .map(|(key, value)| (number(key), version(number(key), value)))
                    .eq(right)
            );
            assert_eq!(store.check(), SOUND);
            sweep(&store);
        }
    }
}

/// A shutdown saves the tree: the next opening reads no item for it, and what was saved is freed.
#[test]
fn a_shutdown_saves_the_tree() {
    for config in VARIANTS {
        let medium = memory();
        let store = store_in(medium.clone(), config);
        fill(&store, 0..20_000, 0);
        shut_down(store);
        let config = Config { rebuild_threads: 0, ..config };
        // It is kept as long as nothing changes.
        for _ in 0..2 {
            shut_down(opened(&medium, config));
        }
        let store = opened(&medium, config);
        let core = &store.core;
        let runs = core.image.read(&core.pool, 2).unwrap().expect("it was saved");
        assert_eq!(runs.iter().map(evermap_index::ordered::Run::len).sum::<usize>(), 20_000);
        store.settle(2).unwrap();
        assert!(core.image.read(&core.pool, 2).unwrap().is_none(), "it is freed");
        assert_eq!(store.check(), SOUND);
        sweep(&store);
    }
}

/// What was saved is outdated by a change, of this opener or of one that dies, and by damage.
#[test]
fn an_outdated_or_damaged_image_is_not_used() {
    let medium = memory();
    let store = store_in(medium.clone(), ALONE);
    fill(&store, 0..2000, 0);
    store.close().unwrap();
    fill(&store, 2000..2100, 0);
    assert!(!store.core.image.is_own());
    drop(store);
    assert_eq!(scanned(&opened(&medium, ALONE), b"", usize::MAX).len(), 2100);
    let store = opened(&medium, ALONE);
    store.settle(1).unwrap();
    sweep(&store);
    shut_down(store);
    // The next opener changes something, and dies without having used it.
    fill(&opened(&medium, ALONE), 2100..2200, 0);
    let store = opened(&medium, ALONE);
    assert_eq!(scanned(&store, b"", usize::MAX).len(), 2200);
    sweep(&store);
    shut_down(store);
    // The file is opened and closed again, and not the store in it.
    let (pool, _) = Pool::open(medium.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
    pool.close().unwrap();
    drop(pool);
    let store = opened(&medium, ALONE);
    assert!(store.core.pool.is_swept());
    assert_eq!(scanned(&store, b"", usize::MAX).len(), 2200);
    sweep(&store);
    shut_down(store);
    // A word of the last block is damaged.
    let store = opened(&medium, ALONE);
    let block = medium.load(&store.core.root().unwrap().image);
    let cell = medium.at::<PmU64>(block + 64).unwrap();
    medium.store(cell, medium.load(cell) ^ 1);
    assert_eq!(scanned(&store, b"", usize::MAX).len(), 2200);
    assert_eq!(store.check(), SOUND);
}

/// Calls `judge` with the store after each crash during `change`, and whether the change had
/// returned.
fn crash_during(
    config: Config,
    fill: &dyn Fn(&HiKv<Sim>),
    change: &dyn Fn(&HiKv<Sim>),
    judge: &mut dyn FnMut(&HiKv<Sim>, bool),
) {
    const BYTES: u64 = 1 << 20;
    let sim = Sim::new(BYTES).unwrap();
    let shape = RegionConfig { extent_size: 16 << 10, capacity: BYTES, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &shape, Identity::default()).unwrap();
    let store = HiKv::create(pool.clone(), pool.root(0), config).unwrap();
    fill(&store);
    store.core.settle().unwrap();
    sim.checkpoint();
    change(&store);
    let trace = sim.trace();
    let mut images = 0;
    sim::for_each_image(&trace, &ImageConfig::default(), |image| {
        let ended = image.point.record() + 1 >= trace.records().len();
        let crashed = Sim::from_image(image.bytes, BYTES).unwrap();
        judge(&opened(&crashed, config), ended);
        images += 1;
        std::ops::ControlFlow::Continue(())
    });
    assert!(images > 3, "{images}");
}

const SMALL: Config = Config { partition_bits: 1, base: 1, spares: 1, ..ALONE };

/// What the paper leaves as future work: a crash between the allocation of an item and the store of
/// its entry. Nothing reaches the item, so the sweep frees it.
#[test]
fn an_item_without_entry_is_swept() {
    let mut without = 0;
    let put = |store: &HiKv<Sim>| assert!(!store.put(b"new", &[7; 300]).unwrap());
    crash_during(SMALL, &|store| fill(store, 0..9, 0), &put, &mut |store, _| {
        let pool = &store.core.pool;
        sweep(store);
        let free = || pool.heap_stats().allocated_bytes;
        let before = free();
        if got(store, b"new").is_none() {
            without += 1;
            // As much as the other keys take, and no item.
            for number in 0..9 {
                assert!(store.remove(&key(number)).unwrap());
            }
            store.core.settle().unwrap();
            pool.epoch().drain();
            assert!(free() < before);
            sweep(store);
        }
    });
    assert!(without > 1);
}

/// A crash after a record is durable and before the entry is: the change is there afterwards.
#[test]
fn the_log_is_carried_out_again() {
    let config = Config { logs: 2, log_bytes: 1 << 10, ..SMALL };
    for removes in [false, true] {
        let (mut redone, mut old) = (0, 0);
        let change = |store: &HiKv<Sim>| {
            let changed = match removes {
                false => store.put(&key(3), &value(3, 1)),
                true => store.remove(&key(3)),
            };
            assert!(changed.unwrap());
        };
        crash_during(config, &|store| fill(store, 0..9, 0), &change, &mut |store, _| {
            let core = &store.core;
            let m = core.pool.medium();
            let root = core.root().unwrap();
            let (_, newest) = Log::open(m, m.load(&root.logs), m.load(&root.log_count)).unwrap();
            let is_recorded = newest.iter().any(|record| {
                record.key == key(3) && record.value == (!removes).then(|| value(3, 1))
            });
            let found = got(store, &key(3)).map(|value| version(3, &value));
            match is_recorded {
                true if removes => assert_eq!(found, None),
                true => assert_eq!(found, Some(1)),
                false => assert_eq!(found, Some(0)),
            }
            *(if is_recorded { &mut redone } else { &mut old }) += 1;
            // All others stay.
            assert!((0..9).filter(|&n| n != 3).all(|n| got(store, &key(n)).is_some()));
            assert_eq!(store.check(), SOUND);
            sweep(store);
        });
        assert!(redone > 1 && old > 0, "{redone} {old}");
    }
}

type Act<'a> = (&'a str, &'a dyn Fn(&HiKv<Sim>));

/// A process has stored an entry, or has removed a key, and has died before that was durable. The
/// next one acts on it only when it is.
#[test]
fn what_a_dead_process_has_stored_is_durable_before_it_is_acted_on() {
    let acts: [Act<'_>; 4] = [
        ("get", &|store| drop(got(store, b"key"))),
        ("scan", &|store| drop(scanned(store, b"", 9))),
        ("remove", &|store| _ = store.remove(b"key").unwrap()),
        ("put", &|store| _ = store.put(b"other", b"value").unwrap()),
    ];
    for (name, act) in acts {
        for removed in [false, true] {
            let sim = Sim::new(1 << 20).unwrap();
            sim.pause();
            let shape = RegionConfig { extent_size: 16 << 10, capacity: 1 << 20, seed: Some(1) };
            let pool = Pool::create(sim.clone(), &shape, Identity::default()).unwrap();
            // All keys in one bucket.
            let config = Config { partition_bits: 0, ..SMALL };
            let store = HiKv::create(pool.clone(), pool.root(0), config).unwrap();
            store.put(b"key", b"value").unwrap();
            let (_, bucket) = store.core.hash.chain(0, 0).next().unwrap().unwrap();
            let cell = sim.offset_of(&bucket.entries[0].position);
            drop((store, pool));
            let cell = sim.at::<PmU64>(cell).unwrap();
            let position = sim.load(cell);
            let (before, after) = if removed { (position, 0) } else { (0, position) };
            sim.store(cell, before);
            sim.checkpoint();
            sim.store(cell, after | layout::MARK);
            let store = opened(&sim, config);
            as_operation(&sim, || act(&store));
            for_each_image(&sim, true, |image| {
                let word = word_in(image, sim.offset_of(cell)) & !layout::MARK;
                let acted = match (name, removed) {
                    // The removal of the key, or the key that has its place.
                    ("remove", false) => word == 0,
                    ("put", true) => word != position,
                    // It has no business with the key.
                    ("put", false) => true,
                    _ => word == after,
                };
                assert!(acted, "{name} {removed}: {word:#x}");
            });
        }
    }
}

/// The number of buckets, which an opener finds, is durable before it is used.
#[test]
fn the_number_of_buckets_is_durable_before_it_is_used() {
    let sim = Sim::new(1 << 20).unwrap();
    sim.pause();
    let shape = RegionConfig { extent_size: 16 << 10, capacity: 1 << 20, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &shape, Identity::default()).unwrap();
    let store = HiKv::create(pool.clone(), pool.root(0), SMALL).unwrap();
    fill(&store, 0..100, 0);
    let count = &store.core.hash.descriptor(0).unwrap().count;
    let now = sim.load(count);
    assert!(now > 2);
    let cell = sim.at::<PmU64>(sim.offset_of(count)).unwrap();
    drop((store, pool));
    sim.store(cell, now - 1);
    sim.checkpoint();
    sim.store(cell, now);
    as_operation(&sim, || drop(opened(&sim, SMALL)));
    are_kept(&sim, [cell], !0);
}

/// Records wrap around, and have numbers that only ascend, over openings too.
#[test]
fn a_log_is_a_circle() {
    let config = Config { logs: 1, log_bytes: 1 << 10, ..SMALL };
    let medium = memory();
    let mut store = store_in(medium.clone(), config);
    for round in 0..200 {
        store.put(&key(round % 7), &value(round % 7, round)).unwrap();
        if round % 9 == 0 {
            drop(store);
            store = opened(&medium, config);
        }
        let found = got(&store, &key(round % 7)).unwrap();
        assert_eq!(version(round % 7, &found), round);
    }
    assert_eq!(store.check(), SOUND);
}

/// An item that is replaced is not free as long as the tree names it.
#[test]
fn an_item_that_is_retired_early_is_noticed() {
    for is_early in [false, true] {
        let medium = memory();
        medium.mutate(is_early.then_some(Mutation::Planted(mistakes::ITEM_RETIRED_EARLY)));
        let store = store_in(medium, ALONE);
        let (core, pool) = (&store.core, &store.core.pool);
        store.put(b"key", b"before").unwrap();
        store.settle(1).unwrap();
        store.put(b"key", b"after").unwrap();
        pool.epoch().drain();
        let named = core.order.complete().unwrap().get(b"key").unwrap().unwrap();
        assert_eq!(pool.allocated().contains(&named), !is_early);
    }
}

/// Any word of the store may be wrong: what follows are errors, at worst.
#[test]
fn chains_that_lead_nowhere_are_errors() {
    let store = store(SMALL);
    fill(&store, 0..200, 0);
    let m = store.core.pool.medium();
    let hash = &store.core.hash;
    let place = hash.place(&key(5));
    let count = hash.partitions[place.partition].count.load(Relaxed);
    let number = hash.bucket_of(place.signature, count);
    let (offset, bucket) = hash.chain(place.partition, number).next().unwrap().unwrap();
    // A ring, and no bucket at all.
    for next in [offset, !layout::MARK, 8] {
        m.store(&bucket.next, next);
        assert!(store.put(b"absent", b"value").is_ok() || store.check() != SOUND);
        assert_ne!(store.check(), SOUND);
        assert!(store.stats().is_err());
    }
    m.store(&bucket.next, 0);
    // An item elsewhere.
    let entry = &bucket.entries[0];
    let was = m.load(&entry.position);
    m.store(&entry.position, u64::MAX - 15);
    assert_ne!(store.check(), SOUND);
    assert!(Item::at(m, u64::MAX - 15).is_err());
    m.store(&entry.position, was);
}
