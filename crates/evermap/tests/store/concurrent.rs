//! Several threads at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::common::{self, Kept, Random, is_value_of, value_of};
use evermap::{Edit, Error, IndexKind, Map, Meta, Options, Outcome};
use evermap_pm::sim::Sim;

fn small_extents() -> Options {
    common::options().capacity(256 << 20).extent_size(64 << 10)
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("eight bytes"))
}

/// No increment is lost or made twice, by `modify`, by `compare_exchange`, and in transfers.
#[test]
fn increments_are_conserved() {
    const KEYS: u64 = 8;
    const ROUNDS: u64 = 8_000;
    let map = common::in_memory(common::options()).unwrap();
    let ids = std::sync::Mutex::new(HashSet::new());
    thread::scope(|threads| {
        for me in 0..4u64 {
            let (map, ids) = (&map, &ids);
            threads.spawn(move || {
                let mut random = Random::new(me);
                let mut mine = Vec::new();
                for _ in 0..ROUNDS {
                    let key = random.below(KEYS).to_le_bytes();
                    if me % 2 == 0 {
                        let stored = map.modify(&key, |item| {
                            let count = item.map_or(0, |item| number(item.value));
                            Edit::Value((count + 1).to_le_bytes().to_vec())
                        });
                        mine.extend(stored.unwrap());
                        continue;
                    }
                    // The same by `compare_exchange`.
                    loop {
                        let seen =
                            map.get_with(&key, |item| (number(item.value), item.cas)).unwrap();
                        let meta = Meta::default();
                        let outcome = match seen {
                            None => map.set(&key).meta(meta).try_insert(&1u64.to_le_bytes()),
                            Some((count, cas)) => map
                                .set(&key)
                                .meta(meta)
                                .compare_exchange(cas, &(count + 1).to_le_bytes()),
                        };
                        if let Some(cas) = outcome.unwrap().stored() {
                            mine.push(cas);
                            break;
                        }
                    }
                }
                let mut ids = ids.lock().unwrap();
                assert!(mine.into_iter().all(|cas| ids.insert(cas)), "a CAS id was assigned twice");
            });
        }
    });
    let sum: u64 = map.iter().map(|pair| number(&pair.unwrap().1)).sum();
    assert_eq!(sum, 4 * ROUNDS);
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A thread that reads while values are overwritten, removed and inserted sees complete values of
/// the right key.
#[test]
fn readers_see_whole_values() {
    const KEYS: u64 = 200;
    let map = common::in_memory(small_extents()).unwrap();
    let done = AtomicBool::new(false);
    let key_of = |key: u64| format!("key {key}").into_bytes();
    thread::scope(|threads| {
        let writers: Vec<_> = (0..2u64)
            .map(|me| {
                let map = &map;
                threads.spawn(move || {
                    let mut random = Random::new(me);
                    for _ in 0..60_000 {
                        let key = key_of(random.below(KEYS));
                        if random.below(4) == 0 {
                            map.delete(&key).unwrap();
                        } else {
                            let len = random.below(2000) as usize;
                            map.put(&key, &value_of(&key, random.next(), len)).unwrap();
                        }
                    }
                })
            })
            .collect();
        for me in 0..3u64 {
            let (map, done) = (&map, &done);
            threads.spawn(move || {
                let keys: Vec<_> = (0..KEYS).map(key_of).collect();
                let mut random = Random::new(100 + me);
                while !done.load(SeqCst) {
                    let key = &keys[random.below(KEYS) as usize];
                    match me {
                        0 => assert!(map.get(key).unwrap().is_none_or(|v| is_value_of(key, &v))),
                        1 => map
                            .get_many(&keys, |at, item| {
                                assert!(is_value_of(&keys[at], item.unwrap().value));
                                ControlFlow::Continue(())
                            })
                            .unwrap(),
                        _ => {
                            let reader = map.reader().unwrap();
                            if let Some(value) = reader.get(key).unwrap() {
                                assert!(value.is_borrowed());
                                assert!(is_value_of(key, &value));
                            }
                        }
                    }
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, SeqCst);
    });
    assert_eq!(map.stat().damage_met, 0);
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// Tells the other threads to end, when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A record that is present throughout is shown exactly once, however the structure of the index
/// changes meanwhile. One that is inserted or removed is shown at most once. A key that is removed
/// and put again has another record, so it can be shown once with each value.
#[test]
fn iteration_shows_what_stays_exactly_once() {
    const STABLE: u64 = 3_000;
    let map = common::in_memory(small_extents()).unwrap();
    let key_of = |kind: &str, key: u64| format!("{kind} {key}").into_bytes();
    for key in 0..STABLE {
        map.put(&key_of("stable", key), b"here").unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        let (map, done) = (&map, &done);
        // The writer must end even if the rounds panic.
        let _ends = Ends(done);
        threads.spawn(move || {
            // Grows to ten times the size and shrinks again: splits, doublings, merges and
            // halvings.
            for cycle in 0u64.. {
                if done.load(SeqCst) {
                    break;
                }
                for key in 0..10 * STABLE {
                    map.put(&key_of("moving", key), &cycle.to_le_bytes()).unwrap();
                }
                (0..10 * STABLE).for_each(|key| {
                    map.delete(&key_of("moving", key)).unwrap();
                });
            }
        });
        for round in 0..40 {
            let mut shown: HashMap<(Vec<u8>, Vec<u8>), u32> = HashMap::new();
            if round % 2 == 0 {
                map.for_each(|item| {
                    let item = item.unwrap();
                    *shown.entry((item.key.to_vec(), item.value.to_vec())).or_default() += 1;
                    // The callback may use the store.
                    assert_eq!(
                        map.get(&key_of("stable", 7)).unwrap().as_deref(),
                        Some(&b"here"[..])
                    );
                    ControlFlow::Continue(())
                })
                .unwrap();
            } else {
                map.iter().for_each(|pair| *shown.entry(pair.unwrap()).or_default() += 1);
            }
            assert!(shown.values().all(|&times| times == 1), "a record was shown twice");
            let stable = |key| (key_of("stable", key), b"here".to_vec());
            assert!((0..STABLE).all(|key| shown.contains_key(&stable(key))));
        }
    });
    let space = map.space().unwrap();
    let shrinks =
        matches!(map.stat().index, IndexKind::DashEh | IndexKind::LineHash | IndexKind::Clht);
    assert!(space.merges > 0 || !shrinks, "the index never shrank");
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// Changes a thread's own keys, and records what they must contain.
type Own = BTreeMap<Vec<u8>, u64>;

fn churn(store: &evermap::Map<Sim>, own: &mut Own, me: u64, random: &mut Random) {
    let key = format!("{me}/{}", random.below(4_000)).into_bytes();
    match random.below(5) {
        0 | 1 => {
            assert_eq!(store.delete(&key).unwrap(), own.remove(&key).is_some());
        }
        _ => {
            let version = random.next();
            let len = random.below(300) as usize;
            let before = store.insert(&key, &value_of(&key, version, len)).unwrap();
            assert_eq!(before.is_none(), own.insert(key, version).is_none());
        }
    }
}

/// The sweep after an unclean shutdown runs beside mutations; afterwards the counts are exact,
/// nothing is lost, and nothing leaks.
#[test]
fn sweeping_under_load_ends_exact() {
    const THREADS: u64 = 3;
    for round in 0..6u64 {
        let memory = Kept::new(256 << 20);
        let options = small_extents().seed(round);
        let store = memory.open(&options).unwrap();
        let mut owns: Vec<Own> = vec![Own::new(); THREADS as usize];
        for (me, own) in owns.iter_mut().enumerate() {
            let mut random = Random::new(round * 10 + me as u64);
            (0..9_000).for_each(|_| churn(&store, own, me as u64, &mut random));
        }
        drop(store);
        let store = memory.open(&options).unwrap();
        assert!(!store.records().exact);
        let swept = AtomicBool::new(false);
        thread::scope(|threads| {
            let (store, swept) = (&store, &swept);
            for (me, own) in owns.iter_mut().enumerate() {
                threads.spawn(move || {
                    let mut random = Random::new(round * 10 + me as u64 + 5);
                    let mut after = 0;
                    // Until the sweep is complete, and a little longer, because then old blocks are
                    // reused.
                    while after < 2_000 {
                        churn(store, own, me as u64, &mut random);
                        after += u64::from(swept.load(SeqCst));
                    }
                });
            }
            store.db().recover().unwrap();
            swept.store(true, SeqCst);
        });
        let records: usize = owns.iter().map(Own::len).sum();
        assert_eq!((store.len(), store.records().exact), (records as u64, true));
        for (key, version) in owns.iter().flatten() {
            let value = store.get(key).unwrap().expect("acknowledged");
            assert_eq!(value, value_of(key, *version, value.len()));
        }
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        assert_eq!(report.records, records as u64);
    }
}

/// An insert that finds the old record flushed comes after the flush, so it must not be flushed
/// itself.
#[test]
fn inserts_beside_flushes_are_before_or_after() {
    let map = common::in_memory(common::options()).unwrap();
    let (begun, ended, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|threads| {
        let (map, begun, ended, done) = (&map, &begun, &ended, &done);
        threads.spawn(move || {
            while done.load(SeqCst) < 2 {
                begun.fetch_add(1, SeqCst);
                map.clear().unwrap();
                ended.fetch_add(1, SeqCst);
                thread::yield_now();
            }
        });
        for me in 0..2u8 {
            threads.spawn(move || {
                for _ in 0..30_000 {
                    let before = ended.load(SeqCst);
                    map.put(&[me], b"old").unwrap();
                    let outcome = map.try_insert(&[me], b"new").unwrap();
                    let found = map.get(&[me]).unwrap();
                    // At most one flush since before the put.
                    if begun.load(SeqCst) <= before + 1
                        && matches!(outcome, Outcome::Inserted { .. })
                    {
                        assert_eq!(
                            found.as_deref(),
                            Some(&b"new"[..]),
                            "flushed when it was stored"
                        );
                    }
                }
                done.fetch_add(1, SeqCst);
            });
        }
    });
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// Records that are purged while a check runs are not reported as problems.
#[test]
fn checks_beside_purges_are_sound() {
    let map = common::in_memory(common::options()).unwrap();
    for round in 0..300u64 {
        for key in 0..round % 20 {
            map.put(&key.to_le_bytes(), b"value").unwrap();
        }
        map.clear().unwrap();
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
    }
}

/// Closing waits for running operations, acknowledged changes are kept, and later operations get an
/// error.
#[test]
fn closing_under_load_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    for round in 0..5u64 {
        let map = common::open_file(&path, small_extents()).unwrap();
        let acknowledged = thread::scope(|threads| {
            let writers: Vec<_> = (0..3u64)
                .map(|me| {
                    let map = map.clone();
                    threads.spawn(move || {
                        for count in 0.. {
                            let key = format!("{round} {me} {count}").into_bytes();
                            match map.put(&key, &value_of(&key, count, 100)) {
                                Ok(()) => {}
                                Err(Error::Closed) => return count,
                                Err(error) => panic!("{error}"),
                            }
                        }
                        unreachable!()
                    })
                })
                .collect();
            while map.len() < 5_000 * (round + 1) {
                thread::yield_now();
            }
            map.into_db().close().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let map = common::open_file(&path, small_extents()).unwrap();
        assert!(map.stat().clean_open);
        for (me, &count) in acknowledged.iter().enumerate() {
            for number in 0..count {
                let key = format!("{round} {me} {number}").into_bytes();
                assert!(is_value_of(&key, &map.get(&key).unwrap().expect("acknowledged")));
            }
        }
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
    }
}

/// A panic in a caller's closure leaves the store usable, because closures run without locks.
#[test]
fn panics_of_callers_harm_nothing() {
    let map = common::in_memory(common::options()).unwrap();
    map.put(b"key", b"value").unwrap();
    let panics = |action: &dyn Fn(&Map)| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| action(&map)));
        assert!(caught.is_err());
    };
    panics(&|map| drop(map.modify(b"key", |_| panic!("caller"))));
    panics(&|map| drop(map.for_each(|_| panic!("caller"))));
    panics(&|map| drop(map.get_with(b"key", |_| panic!("caller"))));
    panics(&|map| drop(map.cache().get_and_touch(b"key", None, |_| panic!("caller"))));
    panics(&|map| drop(map.get_many(&[b"key"], |_, _| panic!("caller"))));
    assert_eq!(map.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    map.put(b"key", b"other").unwrap();
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    map.into_db().close().unwrap();
}

/// Threads store overlapping groups of records: each thread's own keys have its last values, and of
/// shared ones every value is a whole one that some thread has stored.
#[test]
fn groups_of_records_are_stored_by_several_threads() {
    const KEYS: u64 = 40;
    let map = common::in_memory(small_extents()).unwrap();
    thread::scope(|threads| {
        for me in 0..4u64 {
            let map = &map;
            threads.spawn(move || {
                let mut random = Random::new(me);
                for round in 0..400u64 {
                    let mut pairs = Vec::new();
                    for number in 0..random.below(50) {
                        let owner = if random.below(2) == 0 { me } else { 9 };
                        let key = format!("{owner}-{}", random.below(KEYS));
                        let value = value_of(key.as_bytes(), me << 32 | round << 8 | number, 60);
                        pairs.push((key, value));
                    }
                    map.put_many(&pairs).unwrap();
                    let last: HashMap<_, _> = pairs.into_iter().collect();
                    for (key, value) in last.iter().filter(|(key, _)| !key.starts_with('9')) {
                        assert_eq!(map.get(key).unwrap().as_ref(), Some(value), "{key}");
                    }
                }
            });
        }
    });
    let mut records = 0;
    for item in map.iter() {
        let (key, value) = item.unwrap();
        assert!(is_value_of(&key, &value), "{key:?}");
        records += 1;
    }
    assert_eq!(map.len(), records);
    assert!(map.db().check(true).unwrap().is_sound());
}
