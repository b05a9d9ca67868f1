//! Scans: against a model, beside writers, while the ordered index is built, and after every kind
//! of shutdown.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Kept, Random, is_value_of, value_of};
use evermap::{Clock, Error, Evermap, KeyRange, Map, Options, Order, OrderedState, OrderedUpdates};
use evermap_index::testkit::tier;
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, PmU64};

type Pair = (Vec<u8>, Vec<u8>);

const NOTICES: [OrderedUpdates; 3] =
    [OrderedUpdates::Batched, OrderedUpdates::Sync, OrderedUpdates::Background];

/// Returns options with the order that the seed selects. One in ordinary memory is updated in a way
/// that the seed selects too.
pub(crate) fn in_some_way(options: Options, seed: u64) -> Options {
    let order = [Order::Volatile, Order::None, Order::Persistent][seed as usize % 3];
    options.ordered(order).ordered_updates(NOTICES[seed as usize / 3 % 3])
}

fn pairs<M: Medium>(scan: evermap::Scan<'_, M>) -> Vec<Pair> {
    scan.map(|pair| pair.unwrap()).collect()
}

/// Asserts that every way of scanning shows exactly these pairs.
pub(crate) fn assert_scans<M: Medium>(store: &Map<M>, expected: &[Pair]) {
    let backwards: Vec<Pair> = expected.iter().rev().cloned().collect();
    assert_eq!(pairs(store.scan(..).unwrap()), expected);
    assert_eq!(pairs(store.scan(..).unwrap().reverse()), backwards);
    let mut visited = Vec::new();
    store
        .scan(..)
        .unwrap()
        .visit(|item| {
            let item = item.unwrap();
            visited.push((item.key.to_vec(), item.value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(visited, expected);
    let mut random = Random::new(expected.len() as u64);
    for _ in 0..20 {
        let any = |random: &mut Random| match random.below(4) {
            0 => vec![random.next() as u8; random.below(3) as usize],
            _ if expected.is_empty() => Vec::new(),
            _ => expected[random.below(expected.len() as u64) as usize].0.clone(),
        };
        let bound = |random: &mut Random| match random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(any(random)),
            _ => Bound::Excluded(any(random)),
        };
        let range = match random.below(4) {
            0 => {
                let mut prefix = any(&mut random);
                prefix.truncate(random.below(4) as usize);
                assert_eq!(
                    pairs(store.scan_prefix(&prefix).unwrap()),
                    within(expected, |key| key.starts_with(&prefix))
                );
                KeyRange::prefix(&prefix)
            }
            _ => KeyRange::new(bound(&mut random), bound(&mut random)),
        };
        let mut inside = within(expected, |key| range.contains(key));
        assert_eq!(pairs(store.scan(range.clone()).unwrap()), inside, "{range:?}");
        assert_eq!(store.count_range(range.clone()).unwrap(), inside.len() as u64, "{range:?}");
        let limit = random.below(50);
        let cut = &inside[..inside.len().min(limit as usize)];
        assert_eq!(pairs(store.scan(range.clone()).unwrap().limit(limit)), cut);
        assert_eq!(in_pieces(store, range.clone(), &mut random), inside);
        inside.reverse();
        assert_eq!(pairs(store.scan(range).unwrap().reverse()), inside);
    }
}

fn within(pairs: &[Pair], has: impl Fn(&[u8]) -> bool) -> Vec<Pair> {
    pairs.iter().filter(|(key, _)| has(key)).cloned().collect()
}

/// Scans in pieces, each by a new scan that continues where the last one ended. Reversing it twice
/// in between changes nothing.
fn in_pieces<M: Medium>(store: &Map<M>, mut range: KeyRange, random: &mut Random) -> Vec<Pair> {
    let mut all = Vec::new();
    loop {
        let mut scan = store.scan(range).unwrap();
        let (before, wanted) = (all.len(), random.below(80) as usize);
        while all.len() - before < wanted
            && let Some(pair) = scan.next()
        {
            all.push(pair.unwrap());
        }
        if random.below(3) == 0 {
            scan = scan.reverse().reverse();
        }
        let mut left = random.below(40);
        let visit = |item: evermap::Result<evermap::Item<'_>>| {
            let item = item.unwrap();
            all.push((item.key.to_vec(), item.value.to_vec()));
            left = left.saturating_sub(1);
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        scan.visit(visit).unwrap();
        range = scan.rest();
        if scan.next().is_none() {
            return all;
        }
    }
}

/// Asserts that, once expired and flushed records are removed, the ordered index has as many keys
/// as there are records.
pub(crate) fn assert_keys_are_counted<M: Medium>(store: &Map<M>) {
    if let Some(before) = store.stat().ordered {
        assert_eq!(before.unreadable, 0);
        drop(store.scan(..).unwrap());
        let ordered = store.stat().ordered.unwrap();
        assert_eq!((ordered.keys, ordered.notices_waiting), (store.len(), 0));
    }
}

/// Asserts that a scan shows the same as lookups and a walk over the hash index.
pub(crate) fn scan_agrees<M: Medium>(store: &Map<M>) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let (mut walked, mut failed) = (BTreeMap::new(), Ok(()));
    store
        .for_each(|item| match item {
            Ok(item) => {
                let value = (item.value.to_vec(), item.expires_at().is_some());
                walked.insert(item.key.to_vec(), value);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Err(text(error));
                ControlFlow::Break(())
            }
        })
        .map_err(text)?;
    failed?;
    let mut scanned = store.scan(..).map_err(text)?.collect::<Result<Vec<_>, _>>().map_err(text)?;
    let mut expired = BTreeSet::new();
    for (key, (value, can_expire)) in &walked {
        match store.get(key).map_err(text)? {
            Some(found) if found == *value => {}
            None if *can_expire => drop(expired.insert(key.clone())),
            _ => return Err(format!("a walk shows what a lookup does not find: {key:x?}")),
        }
    }
    // The clock has gone on since the walk. Whether the scan was before that does not matter.
    walked.retain(|key, _| !expired.contains(key));
    scanned.retain(|(key, _)| !expired.contains(key));
    if scanned
        .iter()
        .map(|(key, value)| (key, value))
        .eq(walked.iter().map(|(key, it)| (key, &it.0)))
    {
        Ok(())
    } else {
        Err(format!("a scan shows {scanned:x?}\na walk {walked:x?}"))
    }
}

fn volatile(notices: OrderedUpdates) -> Options {
    common::options().ordered(true).ordered_updates(notices)
}

pub(crate) fn key_of(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

#[test]
fn a_scan_without_an_ordered_index_is_an_error() {
    let map = common::in_memory(common::options()).unwrap();
    map.put(b"key", b"value").unwrap();
    for refused in [map.scan(..), map.scan_relaxed(..), map.scan_prefix("k")] {
        let error = refused.err().unwrap();
        assert!(matches!(error, Error::NotOrdered));
        assert!(error.to_string().contains("Options::ordered(true)"), "{error}");
    }
    assert!(matches!(map.build_ordered(1), Err(Error::NotOrdered)));
    assert!(map.stat().ordered.is_none() && map.stat().ordered.is_none());
}

/// Both ends of a scan meet, with a limit too, and what is damaged has its place.
#[test]
fn a_scan_goes_on_at_both_ends() {
    let store = Evermap::in_memory(Options::new().ordered(true)).unwrap().default_map();
    let all: Vec<Pair> = (0..300).map(|number| (key_of(number), vec![number as u8; 900])).collect();
    all.iter().for_each(|(key, value)| store.put(key, value).unwrap());
    let mut random = Random::new(7);
    for round in 0..40 {
        let (from, to) = (random.below(150) as usize, 150 + random.below(150) as usize);
        let limit = if round % 2 == 0 { usize::MAX } else { random.below(200) as usize };
        let mut scan = store.scan(&all[from].0[..]..&all[to].0[..]).unwrap().limit(limit as u64);
        let mut expected: VecDeque<&Pair> = all[from..to].iter().collect();
        let is_reversed = round % 5 == 0;
        if is_reversed {
            scan = scan.reverse();
            expected = expected.into_iter().rev().collect();
        }
        for _ in 0..limit.min(expected.len()) {
            let pair = if random.below(4) == 0 { scan.next_back() } else { scan.next() };
            let pair = pair.expect("there are more").unwrap();
            let at = if expected.front() == Some(&&pair) { 0 } else { expected.len() - 1 };
            assert_eq!(expected.remove(at), Some(&pair), "round {round}");
        }
        assert!(scan.next().is_none() && scan.next_back().is_none(), "round {round}");
    }
    assert_eq!(store.first().unwrap().as_ref(), all.first());
    assert_eq!(store.last().unwrap().as_ref(), all.last());
}

/// Threads that take keys from both ends get each of them once.
#[test]
fn each_key_is_popped_once() {
    let store = Evermap::in_memory(Options::new().ordered(true)).unwrap().default_map();
    (0..2000).for_each(|number| store.put(key_of(number), number.to_le_bytes()).unwrap());
    let pop_all = |at_front: bool| {
        let mut popped = Vec::new();
        loop {
            let pair = if at_front { store.pop_first() } else { store.pop_last() };
            let Some((key, value)) = pair.unwrap() else { return popped };
            let number = u64::from_le_bytes(value.try_into().unwrap());
            assert_eq!(key, key_of(number));
            popped.push(number);
        }
    };
    let mut popped = std::thread::scope(|scope| {
        let threads = [true, false, true].map(|at_front| scope.spawn(move || pop_all(at_front)));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    popped.sort_unstable();
    assert!(popped.into_iter().eq(0..2000));
    assert!(store.is_empty().unwrap());
}

#[test]
fn ranges_are_removed() {
    let store = Evermap::in_memory(Options::new().ordered(true)).unwrap().default_map();
    (0..500).for_each(|number| store.put(key_of(number), b"").unwrap());
    let (low, high) = (key_of(100), key_of(300));
    assert_eq!(store.remove_range(&low[..]..&high[..]).unwrap(), 200);
    assert_eq!(store.remove_range(&low[..]..&high[..]).unwrap(), 0);
    assert_eq!(store.len(), 300);
    assert_eq!(store.remove_prefix("").unwrap(), 300);
    assert!(store.is_empty().unwrap());
    common::assert_sound(&store);
}

/// What has expired, or was cleared, takes space until it is removed, and is not counted.
#[test]
fn what_no_scan_shows_is_not_counted() {
    let clock = Clock::manual(common::at(1000));
    for order in [Order::Volatile, Order::Persistent] {
        let options = common::options().clock(clock.clone()).ordered(order);
        let store = common::in_memory(options).unwrap();
        for number in 0..600 {
            let key = key_of(number);
            match number % 3 {
                0 => assert!(store.set(key).expires(common::at(1060)).put(b"").is_ok()),
                _ => store.put(key, b"").unwrap(),
            }
        }
        let ahead = key_of(300);
        assert_eq!(store.count_prefix("").unwrap(), 600);
        assert_eq!(store.count_range(&ahead[..]..).unwrap(), 300);
        clock.set(clock.now() + Duration::from_secs(61));
        assert_eq!((store.len(), store.count_range(..).unwrap()), (600, 400));
        assert_eq!(store.count_range(&ahead[..]..).unwrap(), 200);
        assert_eq!(store.scan(&ahead[..]..).unwrap().count(), 200);
        store.clear().unwrap();
        store.put("one", "").unwrap();
        assert_eq!(store.count_range(..).unwrap(), 1);
        clock.set(common::at(1000));
    }
    let unordered = common::in_memory(common::options()).unwrap();
    assert!(matches!(unordered.count_range(..), Err(Error::NotOrdered)));
}

#[test]
fn a_closed_store_ends_scans() {
    let map = common::in_memory(volatile(OrderedUpdates::default())).unwrap();
    (0..100).for_each(|key| map.put(&key_of(key), b"value").unwrap());
    let other = map.clone();
    let mut scan = other.scan(..).unwrap();
    assert_eq!(scan.next().unwrap().unwrap().0, key_of(0));
    map.into_db().close().unwrap();
    let rest: Vec<_> = scan.by_ref().collect();
    assert!(matches!(rest.last(), Some(Err(Error::Closed))) && rest.len() < 100);
    assert!(scan.next().is_none(), "an error ends it");
    assert!(matches!(other.scan(..).err(), Some(Error::Closed)));
}

/// Writers insert and remove pairs of keys, between keys that stay. A thread that scans meanwhile,
/// in either direction, sees the keys that stay exactly once, all in order, and no value of another
/// key.
#[test]
fn keys_that_stay_are_seen_exactly_once() {
    const KEYS: u64 = 3_000;
    const ROUNDS: u64 = 25_000;
    for notices in NOTICES {
        let map = &common::in_memory(volatile(notices)).unwrap();
        let stays = |number: u64| number.is_multiple_of(3);
        for number in (0..KEYS).filter(|&number| stays(number)) {
            map.put(&key_of(number), &value_of(&key_of(number), 0, 30)).unwrap();
        }
        let writing = &AtomicU64::new(2);
        thread::scope(|threads| {
            for me in 0..2u64 {
                threads.spawn(move || {
                    let mut random = Random::new(me);
                    for round in 0..ROUNDS {
                        let number = random.below(KEYS);
                        let key = key_of(number);
                        if stays(number) || random.below(2) == 0 {
                            map.put(&key, &value_of(&key, round, 30)).unwrap();
                        } else {
                            map.delete(&key).unwrap();
                        }
                        if round % 5_000 == 0 {
                            map.db().compact().unwrap();
                            map.db().purge().unwrap();
                        }
                    }
                    writing.fetch_sub(1, SeqCst);
                });
            }
            for me in 0..2 {
                threads.spawn(move || {
                    while writing.load(SeqCst) > 0 {
                        let mut seen = match me {
                            0 => pairs(map.scan(..).unwrap()),
                            _ => pairs(map.scan(..).unwrap().reverse()),
                        };
                        if me == 1 {
                            seen.reverse();
                        }
                        assert!(seen.is_sorted_by(|one, other| one.0 < other.0), "in order");
                        assert!(seen.iter().all(|(key, value)| is_value_of(key, value)));
                        let number =
                            |key: &[u8]| std::str::from_utf8(&key[4..]).unwrap().parse().unwrap();
                        let stayed = seen.iter().map(|(key, _)| number(key)).filter(|&n| stays(n));
                        assert!(stayed.eq((0..KEYS).filter(|&number| stays(number))));
                    }
                });
            }
        });
        scan_agrees(map).unwrap();
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{notices:?}: {report}");
    }
}

/// A scan sees everything that was acknowledged before it began, and nothing else of keys that only
/// the scanning thread changes. Other threads change keys of the same shards meanwhile.
#[test]
fn a_scan_sees_what_was_acknowledged() {
    for notices in NOTICES {
        let map = &common::in_memory(volatile(notices)).unwrap();
        thread::scope(|threads| {
            for me in 0..3u64 {
                threads.spawn(move || {
                    let mut random = Random::new(me);
                    let mut mine = BTreeMap::new();
                    for version in 0..2_500u64 {
                        let key = format!("{me}/{}", random.below(40)).into_bytes();
                        let value = value_of(&key, version, 20);
                        match random.below(3) {
                            0 => assert_eq!(map.delete(&key).unwrap(), mine.remove(&key).is_some()),
                            _ => {
                                map.put(&key, &value).unwrap();
                                mine.insert(key, value);
                            }
                        }
                        let prefix = format!("{me}/");
                        let seen = pairs(map.scan_prefix(prefix).unwrap());
                        assert!(seen.iter().map(|(key, value)| (key, value)).eq(&mine));
                    }
                });
            }
        });
    }
}

/// One thread sends another the keys that it has inserted; the other scans.
#[test]
fn changes_of_other_threads_are_seen_too() {
    for notices in NOTICES {
        let map = &common::in_memory(volatile(notices)).unwrap();
        let (added, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
        thread::scope(|threads| {
            threads.spawn(move || {
                for number in 0..40_000 {
                    map.put(&key_of(number), b"value").unwrap();
                    added.store(number + 1, SeqCst);
                }
                done.store(true, SeqCst);
            });
            threads.spawn(move || {
                while !done.load(SeqCst) {
                    let least = added.load(SeqCst);
                    let from = least.saturating_sub(300);
                    let seen = map.scan(key_of(from)..).unwrap().count() as u64;
                    assert!(seen >= least - from, "{notices:?}: {seen} from {from} of {least}");
                }
            });
        });
    }
}

/// One thread binds keys while another unbinds them, so that the notice of the first may come after
/// that of the second.
#[test]
fn threads_that_undo_each_other_leave_a_tree_that_agrees() {
    let keys = tier().choose(50_000, 200_000);
    for notices in NOTICES {
        let map = &common::in_memory(volatile(notices)).unwrap();
        let bound = &AtomicU64::new(0);
        thread::scope(|threads| {
            threads.spawn(move || {
                for number in 0..keys {
                    // Sent before the insert, so that the other thread finds the key as soon as it
                    // is bound, acknowledged or not.
                    bound.store(number, SeqCst);
                    map.put(&key_of(number), b"value").unwrap();
                }
            });
            threads.spawn(move || {
                for number in 0..keys {
                    while bound.load(SeqCst) < number {
                        std::hint::spin_loop();
                    }
                    let attempts = 0..200;
                    attempts.take_while(|_| !map.delete(&key_of(number)).unwrap()).for_each(drop);
                }
            });
        });
        assert_keys_are_counted(map);
    }
}

/// There are no scans, and the last batch is not full: background threads apply all notices, also
/// after they have slept.
#[test]
fn notices_are_applied_in_the_background() {
    let map = common::in_memory(volatile(OrderedUpdates::Background)).unwrap();
    for burst in 1..=3 {
        thread::sleep(Duration::from_millis(20));
        (0..2000).for_each(|number| map.put(&key_of(burst * 10_000 + number), b"").unwrap());
        let told = || map.stat().ordered.is_some_and(|ordered| ordered.notices_waiting == 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !told() {
            assert!(Instant::now() < deadline, "{:?}", map.stat().ordered);
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(map.stat().ordered.unwrap().keys, 6000);
}

/// After an unclean shutdown, records are written, removed and looked up immediately, while threads
/// build the ordered index.
#[test]
fn the_tree_is_built_beside_writers() {
    let keys: u64 = tier().choose(15_000, 60_000);
    for round in 0..tier().choose(3, 6) {
        let memory = Kept::new(64 << 20);
        let options = common::options()
            .capacity(64 << 20)
            .extent_size(64 << 10)
            .ordered(true)
            .ordered_updates(NOTICES[round as usize % 3]);
        let store = memory.open(&options).unwrap();
        for number in 0..keys {
            store.put(&key_of(number), &value_of(&key_of(number), 0, 30)).unwrap();
        }
        drop(store);
        let store = &memory.open(&options).unwrap();
        assert_eq!(store.stat().ordered.unwrap().state, OrderedState::Pending);
        let (start, built) = (&Barrier::new(3), &AtomicBool::new(false));
        thread::scope(|threads| {
            for me in 0..2u64 {
                threads.spawn(move || {
                    let mut random = Random::new(round * 2 + me);
                    start.wait();
                    // At least some changes are made while the tree is built, whichever is faster.
                    let mut changes = 0;
                    while !built.load(SeqCst) || changes < 5_000 {
                        let key = key_of(random.below(keys + 5_000));
                        match random.below(3) {
                            0 => drop(store.delete(&key).unwrap()),
                            _ => store.put(&key, &value_of(&key, changes, 30)).unwrap(),
                        };
                        changes += 1;
                    }
                });
            }
            start.wait();
            if round % 2 == 0 {
                store.build_ordered(2).unwrap();
            } else {
                // The first scan builds it.
                assert!(store.scan(..).unwrap().count() > 0);
            }
            built.store(true, SeqCst);
        });
        assert!(matches!(store.stat().ordered.unwrap().state, OrderedState::Ready(_)));
        scan_agrees(store).unwrap();
        store.db().recover().unwrap();
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        assert_keys_are_counted(store);
        store.db().clone().close().unwrap();
        let store = memory.open(&options).unwrap();
        scan_agrees(&store).unwrap();
    }
}

#[test]
fn a_file_is_scanned_after_opening_with_and_without() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let options = || common::options().capacity(1 << 30).lock_wait(Duration::from_secs(60));
    let mut expected = BTreeMap::new();
    for round in 0..6u64 {
        let ordered = round % 3 != 1;
        let way = NOTICES[round as usize % 3];
        let map =
            common::open_file(&path, options().ordered(ordered).ordered_updates(way)).unwrap();
        for number in 0..3_000 {
            let key = key_of(number * 7 % 5_000 + round * 400);
            if number % 4 == 0 {
                assert_eq!(map.delete(&key).unwrap(), expected.remove(&key).is_some());
            } else {
                let value = value_of(&key, round, 60);
                map.put(&key, &value).unwrap();
                expected.insert(key, value);
            }
        }
        if ordered {
            let seen = pairs(map.scan(..).unwrap());
            assert!(seen.iter().map(|(key, value)| (key, value)).eq(&expected));
        }
        map.into_db().close().unwrap();
    }
}

/// A thread that waits for the ordered index gets an error if the store is closed meanwhile.
#[test]
fn closing_ends_building() {
    let memory = Kept::new(64 << 20);
    let options = common::options().capacity(64 << 20).extent_size(64 << 10).ordered(true);
    let store = memory.open(&options).unwrap();
    (0..40_000).for_each(|number| store.put(&key_of(number), b"value").unwrap());
    drop(store);
    for round in 0..20 {
        let store = &memory.open(&options).unwrap();
        thread::scope(|threads| {
            let scans: Vec<_> =
                (0..2).map(|_| threads.spawn(|| store.scan(..).map(Iterator::count))).collect();
            thread::sleep(Duration::from_micros(200 * round));
            store.db().clone().close().unwrap();
            for scan in scans {
                assert!(matches!(scan.join().unwrap(), Err(Error::Closed) | Ok(_)));
            }
        });
    }
}

/// Records expire, are flushed, removed and purged: every key that leaves the hash index leaves the
/// tree too.
#[test]
fn purged_keys_leave_the_tree() {
    for notices in NOTICES {
        let (memory, clock) = (Kept::new(64 << 20), Clock::manual(common::at(1000)));
        let options = common::options().capacity(64 << 20).clock(clock.clone());
        let store = memory.open(&options.ordered(true).ordered_updates(notices)).unwrap();
        for number in 0..2_000 {
            let meta = common::meta(0, if number % 2 == 0 { 2000 } else { 0 });
            store.set(&key_of(number)).meta(meta).put(b"value").unwrap();
        }
        assert_eq!(store.scan(..).unwrap().count(), 2_000);
        clock.set(common::at(2000));
        assert_eq!(store.scan(..).unwrap().count(), 1_000);
        assert_eq!(store.stat().ordered.unwrap().keys, 2_000, "expired, but not purged");
        // An expired key is put again before it was purged.
        store.put(&key_of(0), b"again").unwrap();
        assert_eq!(store.scan(..).unwrap().limit(1).next().unwrap().unwrap().1, b"again");
        assert_eq!(store.db().purge().unwrap(), 999);
        assert_keys_are_counted(&store);
        assert_eq!(store.len(), 1_001);
        store.clear().unwrap();
        assert_eq!(store.scan(..).unwrap().count(), 0);
        store.put(b"after", b"the flush").unwrap();
        store.db().purge().unwrap();
        assert_keys_are_counted(&store);
        assert_eq!(pairs(store.scan(..).unwrap()), [(b"after".to_vec(), b"the flush".to_vec())]);
    }
}

/// Changes the word of a key's record that is this number of words after its CAS id.
fn damage(memory: &Kept, store: &Map<Sim>, key: &[u8], behind: u64) {
    let cas = store.get_with(key, |item| item.cas).unwrap().unwrap();
    let word = |at: u64| memory.load(memory.at::<PmU64>(at * 8).unwrap());
    let begins = u64::from_le_bytes(*key.first_chunk().unwrap());
    // The key begins three words after the CAS id.
    let is_it = |&at: &u64| word(at) == cas && word(at + 3) == begins;
    let at = (0..memory.len() / 8 - 3).find(is_it).expect("the record") + behind;
    memory.store(memory.at::<PmU64>(at * 8).unwrap(), word(at) ^ 1);
}

fn a_hundred_records(options: &Options) -> (Kept, Map<Sim>) {
    let memory = Kept::new(64 << 20);
    let store = memory.open(options).unwrap();
    for number in 0..100 {
        store.put(&key_of(number), &value_of(&key_of(number), 1, 40)).unwrap();
    }
    (memory, store)
}

/// A key whose record could not be read when the tree was built is inserted into it when the key is
/// put again.
#[test]
fn a_damaged_record_is_scanned_once_it_is_repaired() {
    // In the CAS id, so that index and record disagree; and in the key.
    for behind in [0, 3] {
        let options = common::options().capacity(64 << 20).ordered(true);
        let (memory, store) = a_hundred_records(&options);
        let wanted = key_of(50);
        damage(&memory, &store, &wanted, behind);
        drop(store);
        let store = memory.open(&options).unwrap();
        let (shown, missing): (Vec<_>, Vec<_>) =
            store.scan(..).unwrap().partition(|pair| pair.is_ok());
        assert_eq!((shown.len(), missing.len()), (99, 1));
        assert_eq!(store.stat().ordered.unwrap().unreadable, 1);
        assert!(!matches!(store.get(&wanted), Ok(Some(_))));
        store.put(&wanted, b"repaired").unwrap();
        // A record with another key stays, and could be any.
        let missing = store.iter().filter(Result::is_err).count();
        assert_eq!(missing, usize::from(behind == 3));
        assert_eq!(store.scan(..).unwrap().count(), 100 + missing);
        assert_eq!(store.scan(&wanted[..]..).unwrap().next().unwrap().unwrap().1, b"repaired");
    }
}

/// A damaged value is reported at its position, and the scan continues.
#[test]
fn a_damaged_value_is_reported_at_its_position() {
    let (memory, store) = a_hundred_records(&common::options().capacity(64 << 20).ordered(true));
    damage(&memory, &store, &key_of(42), 5);
    let seen: Vec<_> = store.scan(..).unwrap().collect();
    assert_eq!(seen.len(), 100);
    for (at, pair) in seen.iter().enumerate() {
        match pair {
            Ok((key, _)) => assert!(*key == key_of(at as u64) && at != 42),
            Err(error) => assert!(error.is_damaged() && at == 42),
        }
    }
    // Values are not read.
    assert_eq!(store.count_range(..).unwrap(), 100);
    // The CAS id, by which the record is known to be another one.
    damage(&memory, &store, &key_of(17), 0);
    let failed = store.scan(..).unwrap().filter(Result::is_err).count();
    assert_eq!(failed > 1, store.count_range(..).is_err());
}

/// Values that are larger than what an iterator copies in advance, between small ones.
#[test]
fn large_values_are_scanned_one_by_one() {
    let map = common::in_memory(volatile(OrderedUpdates::default())).unwrap();
    for number in 0..60 {
        let len = if number % 5 == 0 { 300_000 } else { 10 };
        map.put(&key_of(number), &vec![number as u8; len]).unwrap();
    }
    let seen = pairs(map.scan(..).unwrap());
    assert_eq!(seen.len(), 60);
    for (number, (key, value)) in seen.iter().enumerate() {
        assert_eq!(*key, key_of(number as u64));
        assert!(value.iter().all(|&byte| byte == number as u8));
    }
    assert_eq!(map.scan(..).unwrap().limit(7).count(), 7);
}
