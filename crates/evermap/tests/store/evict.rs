//! Caches: the memory limit holds at every moment, what is evicted was the right thing to evict,
//! and everything that is left is right.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use crate::common::{self, Kept, Random, is_value_of, value_of};
use crate::packed;
use evermap::{Batch, Clock, Error, IndexKind, Map, MapOptions, Options};
use evermap_index::testkit::tier;
use evermap_pm::Medium;
use evermap_pm::sim::Sim;

const MIB: u64 = 1 << 20;

fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Returns the options of a cache over the default index. The steps in which an index grows decide
/// how full a small cache becomes, so only what must hold for all is tested over the others.
fn cache(limit: u64) -> Options {
    Options::new().memory_limit(limit).evict(true).seed(1)
}

/// Opens a cache in memory that outlives it, without threads.
fn kept(limit: u64) -> (Kept, Map<Sim>) {
    kept_over(IndexKind::default(), limit)
}

fn kept_over(index: IndexKind, limit: u64) -> (Kept, Map<Sim>) {
    let memory = Kept::new(8 * limit);
    let map = memory.open(&cache(limit).index(index).capacity(8 * limit)).unwrap();
    (memory, map)
}

fn used<M: Medium>(map: &Map<M>) -> u64 {
    map.stat().memory_used
}

/// Returns the space that a file takes.
fn space_of(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Collects the keys that are evicted.
fn listen<M: Medium>(map: &Map<M>) -> Arc<Mutex<HashSet<Vec<u8>>>> {
    let evicted = Arc::new(Mutex::new(HashSet::new()));
    let seen = evicted.clone();
    map.db().on_evict(Some(Box::new(move |it| {
        assert!(it.bytes > 0);
        seen.lock().unwrap().insert(it.key.to_vec());
    })));
    evicted
}

/// Every key that is missing was evicted, everything else is right, and the limit holds at every
/// operation.
#[test]
fn a_cache_agrees_with_a_model() {
    for index in common::campaign_indexes() {
        for (seed, limit) in [(1, MIB), (2, 3 * MIB), (3, 8 * MIB)] {
            // The other indexes are larger from the beginning.
            if index == IndexKind::default() || limit > MIB {
                agrees_with_a_model(index, seed, limit);
            }
        }
    }
}

fn agrees_with_a_model(index: IndexKind, seed: u64, limit: u64) {
    let (_memory, map) = kept_over(index, limit);
    let evicted = listen(&map);
    let (mut model, mut random) = (HashMap::<u64, u64>::new(), Random::new(seed));
    for step in 0..60_000u64 {
        let number = random.below(40_000);
        let key = key_of(number);
        match random.below(10) {
            0..=4 => {
                let len = [20, 100, 700, 5_000][random.below(4) as usize];
                match map.put(&key, &value_of(&key, step, len)) {
                    Ok(()) => drop(model.insert(number, step)),
                    // The others may grow in steps for which there is no room.
                    Err(error) if index != IndexKind::default() => assert!(error.is_no_space()),
                    Err(error) => panic!("{error}"),
                }
            }
            5 => {
                map.delete(&key).unwrap();
                model.remove(&number);
            }
            6 => assert!(map.db().evict_if_due().unwrap() < 40_000),
            _ => {
                if let Some(value) = map.get(&key).unwrap() {
                    assert!(is_value_of(&key, &value) && model.contains_key(&number));
                }
            }
        }
        for key in evicted.lock().unwrap().drain() {
            let number = u64::from_be_bytes(key.try_into().unwrap());
            // A put that evicted is in the model already, and its own key may have been what
            // it evicted before.
            if map.cache().peek(&key_of(number), |_| ()).unwrap().is_none() {
                model.remove(&number);
            }
        }
        assert!(used(&map) <= limit, "{} of {limit} after {step} steps", used(&map));
    }
    let stat = map.stat();
    assert!(stat.evictions > 1_000 && stat.evicted_unfetched <= stat.evictions);
    assert_eq!(map.len(), model.len() as u64);
    for &number in model.keys() {
        let key = key_of(number);
        assert!(is_value_of(&key, &map.get(&key).unwrap().expect("not evicted")));
    }
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// The number of evictions is the number of keys that are missing.
#[test]
fn evictions_are_counted() {
    let (_memory, map) = kept(2 * MIB);
    for number in 0..50_000 {
        let key = key_of(number);
        map.put(&key, &value_of(&key, number, 100)).unwrap();
    }
    let present = (0..50_000).filter(|&number| map.contains(&key_of(number)).unwrap()).count();
    let stat = map.stat();
    assert_eq!(stat.evictions, 50_000 - present as u64);
    assert_eq!((stat.evicted_unfetched, map.len()), (stat.evictions, present as u64));
    assert_eq!(stat.purged, 0);
    assert!(present > 8_000, "{present} records of about 150 bytes in {}", 2 * MIB);
}

#[test]
fn space_follows_the_sizes_of_values() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("map");
    let limit = tier().choose(12, 24) * MIB;
    let map = common::open_file(&path, cache(limit)).unwrap();
    follows_the_sizes_of_values(&map, limit, || space_of(&path));
}

/// Without a thread in the background, mutations make all of the space.
#[test]
fn mutations_make_space_for_values_of_all_sizes() {
    let limit = 12 * MIB;
    let (_memory, map) = kept(limit);
    follows_the_sizes_of_values(&map, limit, || used(&map));
}

/// Values of each length in turn fill the cache, although their predecessors had other lengths.
fn follows_the_sizes_of_values<M: Medium>(map: &Map<M>, limit: u64, taken: impl Fn() -> u64) {
    let mut next = 0;
    let all = [100, 10_000, 300_000, 50, 1_000_000, 3_000, 64];
    for &len in tier().choose(&all[..5], &all[..]) {
        let count = 3 * limit / (len as u64 + 40);
        let mut used_lately = Vec::new();
        for number in 0..count {
            let key = key_of(next);
            map.put(&key, &value_of(&key, next, len)).unwrap();
            next += 1;
            let every = (count / 64).clamp(1, 64);
            if next % every == 0 {
                assert!(used(map) <= limit);
                let t = taken();
                if t > limit {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                    let t2 = taken();
                    std::thread::sleep(std::time::Duration::from_millis(30));
                    let t3 = taken();
                    eprintln!(
                        "OVER {len} {} {} {} used {}",
                        t - limit,
                        t2 as i64 - limit as i64,
                        t3 as i64 - limit as i64,
                        limit - used(map)
                    );
                }
                used_lately.extend((number >= count / 4 * 3).then(|| map.stat().memory_used));
            }
        }
        // At times less is in use, because space was made for what needs neighbouring units. Values
        // of a megabyte leave more, because one of them is more than that.
        used_lately.sort_unstable();
        let usual = used_lately[used_lately.len() / 2];
        let least = limit - (limit * 3 / 100).max(2 * len as u64);
        assert!(usual >= least, "{usual} with values of {len}");
        // What is read now was stored lately. Of a dozen values that are all there is room for,
        // some go early to make neighbouring units free.
        let found = (next - count / 4..next).filter(|&it| map.contains(&key_of(it)).unwrap());
        let (found, bytes) = (found.count() as u64, map.space().unwrap().allocated_bytes);
        let least = if len as u64 > limit / 16 { 3 } else { 7 };
        assert!(found * 10 >= count / 4 * least, "{found} of {} of {len}, {bytes}", count / 4);
    }
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A value that takes most of a cache finds space, and one for which there never is any changes
/// nothing.
#[test]
fn large_values_find_space_or_are_refused() {
    let limit = 16 * MIB;
    let (_memory, map) = kept(limit);
    let fill = || {
        for number in 0..20_000 {
            let key = key_of(number);
            map.put(&key, &value_of(&key, number, 1_000)).unwrap();
            map.get(&key).unwrap();
        }
    };
    for len in [MIB as usize, 5 << 20, 12 << 20] {
        fill();
        map.put(b"large", &vec![7; len]).unwrap();
        assert!(used(&map) <= limit);
        assert_eq!(map.get(b"large").unwrap().map(|value| value.len()), Some(len));
        map.delete(b"large").unwrap();
    }
    fill();
    let (records, evictions) = (map.len(), map.stat().evictions);
    for len in [16 << 20, 100 << 20] {
        let error = map.put(b"huge", &vec![7; len]).unwrap_err();
        assert!(error.is_no_space(), "{error}");
    }
    assert!(map.len() + 2 > records && map.stat().evictions <= evictions + 2);
}

#[test]
fn without_eviction_the_limit_is_an_error() {
    let limit = 2 * MIB;
    let memory = Kept::new(16 * MIB);
    let map = memory.open(&Options::new().memory_limit(limit).capacity(16 * MIB)).unwrap();
    let mut stored = 0;
    let error = loop {
        let key = key_of(stored);
        match map.put(&key, &value_of(&key, stored, 500)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(used(&map) <= limit);
    };
    assert!(error.is_no_space() && error.to_string().contains("memory limit"), "{error}");
    assert!(stored * 560 > limit * 8 / 10, "only {stored} records");
    for number in 0..stored {
        let key = key_of(number);
        assert!(is_value_of(&key, &map.get(&key).unwrap().unwrap()));
    }
    // A higher limit, or removing something, makes space.
    map.db().set_memory_limit(limit + MIB).unwrap();
    map.put(b"more", &[1; 500]).unwrap();
    map.db().set_memory_limit(0).unwrap();
    (0..10_000).for_each(|number| map.put(&key_of(number), &[1; 500]).unwrap());
    assert_eq!((map.stat().evictions, map.stat().memory_limit), (0, None));
}

/// What was read stays, what was not goes.
#[test]
fn records_that_are_read_outlive_the_others() {
    let (_memory, map) = kept(4 * MIB);
    let hot = 0..2_000u64;
    for number in hot.clone() {
        map.put(&key_of(number), &[1; 100]).unwrap();
    }
    for round in 0..20 {
        for number in hot.clone() {
            map.get(&key_of(number)).unwrap();
        }
        for number in 0..5_000 {
            map.put(&key_of(1_000_000 + round * 5_000 + number), &[2; 100]).unwrap();
        }
    }
    let kept = hot.filter(|&number| map.contains(&key_of(number)).unwrap()).count();
    assert!(kept >= 1_990, "{kept} of 2000 records that were read in every round");
    assert!(map.stat().evictions > 50_000);
}

/// How records were read survives the death of the process.
#[test]
fn a_killed_cache_remembers_what_was_read() {
    let limit = 4 * MIB;
    let (memory, map) = kept(limit);
    for number in 0..2_000 {
        map.put(&key_of(number), &[1; 100]).unwrap();
        (0..3).for_each(|_| drop(map.get(&key_of(number)).unwrap()));
    }
    for number in 2_000..15_000 {
        map.put(&key_of(number), &[1; 100]).unwrap();
    }
    drop(map);
    let map = memory.open(&cache(limit)).unwrap();
    map.db().recover().unwrap();
    assert_eq!(map.cache().peek(&key_of(7), |item| item.access().fetched).unwrap(), Some(true));
    for number in 15_000..30_000 {
        map.put(&key_of(number), &[1; 100]).unwrap();
        assert!(used(&map) <= limit);
    }
    let kept = (0..2_000).filter(|&number| map.contains(&key_of(number)).unwrap()).count();
    assert!(kept >= 1_900, "{kept} of 2000");
}

/// A cache is stopped at any flush in the middle of evicting. What it had acknowledged and has not
/// evicted is there, nothing else is, and the cache goes on.
#[test]
fn a_stop_in_the_middle_of_evicting_loses_nothing_else() {
    let (limit, mut random) = (MIB, Random::new(5));
    let memory = Kept::new(16 * MIB);
    let open = || memory.open(&cache(limit).capacity(16 * MIB)).unwrap();
    let (mut map, mut next) = (open(), 0u64);
    let mut stored = HashSet::new();
    for round in 0..60 {
        let evicted = listen(&map);
        for _ in 0..3_000 {
            let key = key_of(next);
            map.put(&key, &value_of(&key, next, 50 + round)).unwrap();
            stored.insert(key);
            next += 1;
        }
        memory.panic_at_flush(random.below(200) as i64);
        let interrupted = (next..next + 500).find_map(|number| {
            let key = key_of(number);
            let put = || map.put(&key, &value_of(&key, number, 50 + round)).unwrap();
            let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(put)).is_err();
            stored.insert(key.clone());
            stopped.then_some(key)
        });
        next += 500;
        assert!(memory.cancel_panic() && interrupted.is_some(), "the planned panic");
        let counted = map.stat().evictions;
        drop(map);
        map = open();
        map.db().recover().unwrap();
        // What was evicted was listed; the last one may not have been any more.
        let gone = stored.iter().filter(|key| !map.contains(key).unwrap()).count() as u64;
        let listed = evicted.lock().unwrap().len() as u64;
        assert!((listed..=listed + 130).contains(&gone), "{gone} gone, {listed} listed");
        assert!(counted <= gone, "{counted} counted");
        stored.retain(|key| map.contains(key).unwrap());
        assert_eq!(map.len(), stored.len() as u64);
        for key in &stored {
            assert!(is_value_of(key, &map.get(key).unwrap().unwrap()));
        }
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        assert!(used(&map) <= limit);
    }
}

#[test]
fn accesses_are_shown_as_they_were_before() {
    let clock = Clock::manual(common::at(1_000_000));
    let memory = Kept::new(64 * MIB);
    let map = memory.open(&cache(4 * MIB).clock(clock.clone())).unwrap();
    let shown = |read: fn(&Map<Sim>) -> Option<(bool, u64)>| read(&map).unwrap();
    let peek = || {
        shown(|map| {
            map.cache()
                .peek(b"key", |item| (item.access().fetched, item.access().idle.as_secs()))
                .unwrap()
        })
    };
    map.put(b"key", b"value").unwrap();
    clock.set(common::at(1_000_080));
    assert_eq!((peek(), peek()), ((false, 80), (false, 80)));
    map.for_each(|item| {
        assert!(!item.unwrap().access().fetched);
        ControlFlow::Continue(())
    })
    .unwrap();
    let many = || {
        let mut found = None;
        map.cache()
            .find_many(&[b"key"], |_, record| {
                let record = record.unwrap();
                found = Some((record.access().fetched, record.access().idle.as_secs()));
                ControlFlow::Continue(())
            })
            .unwrap();
        found.unwrap()
    };
    assert_eq!(many(), (false, 80));
    clock.set(common::at(1_000_160));
    assert_eq!((many(), many()), ((true, 80), (true, 0)));
    clock.set(common::at(1_000_240));
    assert!(map.touch(b"key", None).unwrap());
    assert_eq!(peek(), (true, 0));
    // A change of the value is one, too; a new value is not.
    clock.set(common::at(1_000_320));
    map.modify(b"key", |item| {
        assert_eq!(
            item.map(|item| (item.access().fetched, item.access().idle.as_secs())),
            Some((true, 80))
        );
        evermap::Edit::Value(b"other".to_vec())
    })
    .unwrap();
    assert_eq!(peek(), (true, 0));
    map.put(b"key", b"new").unwrap();
    assert_eq!(peek(), (false, 0));
    map.cache().get_and_touch(b"key", None, |item| assert!(!item.access().fetched)).unwrap();
    assert!(peek().0);
}

/// A map that evicts nothing stores nothing when it is read.
#[test]
fn other_stores_keep_no_accesses() {
    let map = common::in_memory(common::options()).unwrap();
    map.put(b"key", b"value").unwrap();
    map.get(b"key").unwrap();
    let shown =
        map.get_with(b"key", |item| (item.access().fetched, item.access().idle.as_secs())).unwrap();
    assert_eq!(shown, Some((false, 0)));
}

#[test]
fn what_has_expired_goes_first() {
    let clock = Clock::manual(common::at(1_000_000));
    let memory = Kept::new(64 * MIB);
    let map = memory.open(&cache(4 * MIB).clock(clock.clone())).unwrap();
    let mut number = 0;
    while map.stat().evictions == 0 {
        let meta = common::meta(0, if number % 2 == 0 { 1_000_100 } else { 0 });
        map.set(&key_of(number)).meta(meta).put(&[1; 200]).unwrap();
        number += 1;
    }
    let evicted = map.stat().evictions;
    clock.set(common::at(1_000_100));
    for more in 0..number / 3 {
        map.put(&key_of(1_000_000 + more), &[1; 200]).unwrap();
    }
    let stat = map.stat();
    assert_eq!(stat.evictions, evicted, "half of the cache has expired");
    assert!(stat.purged > number / 4 && stat.expired_unfetched == stat.purged);
}

/// Only the map that asked for it loses records.
#[test]
fn named_maps_and_the_catalogue_are_not_evicted() {
    let (memory, map) = kept(4 * MIB);
    let names = ["users", "orders", "items"];
    let maps = names.map(|name| map.db().map(name, MapOptions::new()).unwrap());
    for store in &maps {
        (0..500).for_each(|number| store.put(&key_of(number), &[3; 300]).unwrap());
    }
    for number in 0..100_000 {
        map.put(&key_of(number), &[1; 100]).unwrap();
    }
    assert!(map.stat().evictions > 50_000);
    assert_eq!(map.db().maps().unwrap().len(), 3);
    for store in &maps {
        assert_eq!(store.len(), 500);
        (0..500).for_each(|number| {
            assert_eq!(store.get(&key_of(number)).unwrap(), Some(vec![3; 300]));
        });
    }
    drop(maps);
    drop(map);
    let map = memory.open(&cache(4 * MIB)).unwrap();
    map.db().recover().unwrap();
    assert_eq!(map.db().maps().unwrap(), ["items", "orders", "users"]);
    assert!(map.db().check(true).unwrap().is_sound());
}

/// Batches are applied as a whole while others are evicted.
#[test]
fn batches_find_space() {
    let (_memory, map) = kept(4 * MIB);
    for round in 0..2_000u64 {
        let mut batch = Batch::new();
        for part in 0..10 {
            batch.put(&key_of(round * 10 + part), &[round as u8; 300]);
        }
        assert!(map.apply(&batch).unwrap().is_done());
        let values = (0..10).map(|part| map.get(&key_of(round * 10 + part)).unwrap());
        assert!(values.into_iter().all(|value| value == Some(vec![round as u8; 300])));
        assert!(used(&map) <= 4 * MIB);
    }
    assert!(map.stat().evictions > 5_000);
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A limit that becomes lower, while the file is open or between two openings.
#[test]
fn a_lower_limit_is_reached_in_the_background() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("map");
    let map = common::open_file(&path, cache(16 * MIB)).unwrap();
    for number in 0..100_000 {
        map.put(&key_of(number), &[1; 100]).unwrap();
    }
    map.db().set_memory_limit(12 * MIB).unwrap();
    while used(&map) > 12 * MIB || space_of(&path) > 12 * MIB {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let left = map.len();
    assert!(left > 50_000, "{left} records left");
    map.into_db().close().unwrap();
    let map = common::open_file(&path, cache(8 * MIB)).unwrap();
    while used(&map) > 8 * MIB || space_of(&path) > 8 * MIB {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(map.len() > 30_000, "{}", map.len());
    map.put(b"key", b"value").unwrap();
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// The capacity of the file is used up before the limit is, but for units at its end that were
/// never used: no memory of them can be returned. Eviction ends nevertheless.
#[test]
fn a_cache_takes_the_capacity_of_its_file_as_its_limit() {
    let memory = Kept::new(2 * MIB);
    let map = memory.open(&cache(8 * MIB).capacity(2 * MIB)).unwrap();
    for number in 0..100 {
        map.put(&key_of(number), &value_of(&key_of(number), number, 300_000)).unwrap();
        map.db().evict_if_due().unwrap();
    }
    let limit = map.stat().memory_limit.unwrap();
    assert!((MIB..2 * MIB).contains(&limit), "{limit}");
    assert!(map.contains(&key_of(99)).unwrap() && map.len() >= 3);
}

/// Threads store and read while the thread in the background evicts.
#[test]
fn threads_share_a_cache() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("map");
    let limit = 8 * MIB;
    let map = common::open_file(&path, cache(limit)).unwrap();
    let hits = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for thread in 0..4u64 {
            let (map, path, hits) = (&map, &path, &hits);
            threads.spawn(move || {
                let mut random = Random::new(thread);
                for step in 0..20_000 {
                    let number = random.below(50_000);
                    let key = key_of(number);
                    match map.get(&key).unwrap() {
                        Some(value) => {
                            assert!(is_value_of(&key, &value));
                            hits.fetch_add(1, SeqCst);
                        }
                        None => {
                            let len = 50 + random.below(2_000) as usize;
                            map.put(&key, &value_of(&key, step, len)).unwrap();
                        }
                    }
                    if step % 100 == 0 {
                        assert!(used(map) <= limit && space_of(path) <= limit);
                    }
                }
            });
        }
    });
    assert!(hits.into_inner() > 0 && map.stat().evictions > 0);
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A reader keeps what was evicted from being used again. Mutations fail then, and nothing more is
/// evicted than what could be enough.
#[test]
fn readers_do_not_empty_a_cache() {
    let (_memory, map) = kept(4 * MIB);
    (0..60_000).for_each(|number| map.put(&key_of(number), &[1; 100]).unwrap());
    let before = map.len();
    let reader = map.reader().unwrap();
    let refused = (0..60_000u64).find_map(|number| map.put(&key_of(number), &[2; 100]).err());
    assert!(refused.is_some_and(|error| error.is_no_space() || matches!(error, Error::HeldUp(_))));
    assert!(map.len() > before * 8 / 10, "{} of {before}", map.len());
    drop(reader);
    (0..60_000).for_each(|number| map.put(&key_of(number), &[2; 100]).unwrap());
}

/// A file of format 8 is read and written as before, and can become a cache.
#[test]
fn a_file_of_an_older_format_becomes_a_cache() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    std::fs::write(&path, packed::unpacked(include_bytes!("../fixtures/format-8.words"))).unwrap();
    let key = |number: u32| format!("key {number}").into_bytes();
    let check = |map: &Map| {
        for number in 0..100u32 {
            let found = map.get_with(&key(number), |item| {
                assert_eq!(item.value, vec![number as u8; number as usize * 3]);
                let expires_at = (number % 10 == 9).then_some(4_000_000_000);
                assert_eq!(
                    (item.flags, item.expires_at().map(common::seconds)),
                    (number, expires_at)
                );
            });
            assert_eq!(found.unwrap().is_some(), number % 7 != 0, "key {number}");
        }
        assert_eq!(map.get(b"batch").unwrap().as_deref(), Some(&b"whole"[..]));
        let users = map.db().map("users", MapOptions::new().create(false)).unwrap();
        assert_eq!(users.get(b"1").unwrap().as_deref(), Some(&b"ann"[..]));
        assert_eq!(users.get(b"2").unwrap().as_deref(), Some(&b"bob"[..]));
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
    };
    let format = || std::fs::read(&path).unwrap()[8];
    assert_eq!(format(), 8);
    // Without eviction the format stays, so that older programs can still open the file.
    let map = common::open_file(&path, Options::new()).unwrap();
    check(&map);
    map.put(b"new", b"value").unwrap();
    map.into_db().close().unwrap();
    assert_eq!(format(), 8);
    let map = common::open_file(&path, Options::new().memory_limit(MIB).evict(true)).unwrap();
    check(&map);
    check(&map);
    assert_eq!(map.cache().peek(&key(1), |item| item.access().fetched).unwrap(), Some(true));
    map.into_db().close().unwrap();
    assert_eq!(format(), 9);
    // A cache can be opened as something else again.
    let map = common::open_file(&path, Options::new()).unwrap();
    check(&map);
    assert_eq!(map.get(b"new").unwrap().as_deref(), Some(&b"value"[..]));
    map.into_db().close().unwrap();
    let map = common::open_file(&path, Options::new().evict(true).read_only(true)).unwrap();
    check(&map);
    drop(map);
    // As a cache it can be filled again and again, up to the capacity of the file.
    let map = common::open_file(&path, Options::new().evict(true)).unwrap();
    for number in 0..20_000u64 {
        map.put(&key_of(number), &[1; 100]).unwrap();
    }
    assert!(map.stat().evictions > 10_000);
}

/// Returns the length that the file of a cache may have, but for its largest value.
fn length_for(limit: u64) -> u64 {
    limit + limit / 4
}

/// What holds the longest value of a [mix that drifts](drifting_len): a file grows by extents.
const LARGEST: u64 = 128 << 10;

/// Returns a length of a value in a mix that drifts: most values are small, a few take several
/// units, and what is common changes with `step`.
fn drifting_len(random: &mut Random, step: u64) -> usize {
    let drift = [1, 3, 2, 5][(step / 4_000 % 4) as usize];
    match random.below(100) {
        0..=4 => 0,
        5..=11 => random.below(3_000 * drift) as usize,
        12..=14 => (20_000 + random.below(3) * 5_500 * drift) as usize,
        _ => random.below(80 * drift) as usize,
    }
}

/// Puts values whose lengths drift, and checks after each that it is there, and that limit, length
/// and contents stay what they should be.
fn churn<M: Medium>(map: &Map<M>, limit: u64, seed: u64, steps: u64) {
    churn_within(length_for(limit) + LARGEST, map, limit, seed, steps);
}

fn churn_within<M: Medium>(length: u64, map: &Map<M>, limit: u64, seed: u64, steps: u64) {
    let mut random = Random::new(seed);
    for step in 0..steps {
        let key = key_of(random.below(20_000) << 8 | seed);
        let len = drifting_len(&mut random, step);
        map.put(&key, &value_of(&key, step, len)).unwrap();
        if step % 64 == 0 {
            let stat = map.stat();
            assert_eq!(stat.memory_limit, Some(limit));
            assert!(stat.memory_used <= limit);
            assert!(stat.file_bytes <= length, "{} bytes long", stat.file_bytes);
        }
        if step % 4_096 == 4_095 {
            let (bytes, evictions) = (map.bytes().value, map.stat().evictions);
            // With this number of sizes, small caches have much unused space in extents.
            let least = (limit / 4).saturating_sub(MIB / 2);
            assert!(evictions == 0 || bytes > least, "{bytes} bytes of records after {step} steps");
        }
    }
}

/// Free space that is scattered is put together, whatever the capacity is. The file does not grow
/// up to it.
#[test]
fn a_cache_works_within_any_capacity_above_its_limit() {
    for (limit, capacity) in [(2 * MIB, 16 * MIB), (4 * MIB, 8 * MIB), (6 * MIB, 7_864_320)] {
        let memory = Kept::new(capacity);
        let map = memory.open(&cache(limit).capacity(capacity)).unwrap();
        churn(&map, limit, 1, tier().choose(20_000, 200_000));
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        drop(map);
        // A crash in between changes nothing about that.
        let map = memory.open(&cache(limit).capacity(capacity)).unwrap();
        map.db().recover().unwrap();
        churn(&map, limit, 2, 6_000);
    }
}

/// The same with threads, and a thread in the background.
#[test]
fn threads_share_a_cache_of_little_capacity() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for (limit, capacity) in [(2 * MIB, 16 * MIB), (4 * MIB, 5 * MIB)] {
        let path = directory.path().join("map");
        let map = common::open_file(&path, cache(limit).capacity(capacity)).unwrap();
        std::thread::scope(|threads| {
            for seed in 0..2 {
                let map = &map;
                threads.spawn(move || churn(map, limit, seed, tier().choose(16_000, 160_000)));
            }
        });
        let longest = length_for(limit) + LARGEST;
        assert!(space_of(&path) <= limit && path.metadata().unwrap().len() <= longest);
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        map.into_db().close().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

/// Values that need many neighbouring units, between small ones.
#[test]
fn large_values_of_changing_lengths_do_not_lengthen_a_file() {
    let (limit, capacity) = (8 * MIB, 32 * MIB);
    let memory = Kept::new(capacity);
    let map = memory.open(&cache(limit).capacity(capacity)).unwrap();
    let mut random = Random::new(4);
    let largest = 3 * MIB;
    for step in 0..tier().choose(1_000, 30_000) {
        let len = if step % 10 == 0 { 1 + random.below(largest) } else { random.below(20_000) };
        map.put(&key_of(step), &vec![step as u8; len as usize]).unwrap();
        assert_eq!(map.get_with(&key_of(step), |item| item.value.len() as u64).unwrap(), Some(len));
        let stat = map.stat();
        assert!(stat.memory_used <= limit && stat.memory_limit == Some(limit));
        assert!(stat.file_bytes <= length_for(limit) + largest, "{} bytes", stat.file_bytes);
    }
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A limit for which the capacity is too small is lowered once, and said to be.
#[test]
fn a_limit_is_lowered_to_what_the_capacity_allows() {
    let capacity = 4 * MIB;
    let memory = Kept::new(capacity);
    for asked in [4 * MIB, 1 << 40] {
        let map = memory.open(&cache(asked).capacity(capacity)).unwrap();
        map.db().recover().unwrap();
        let stat = map.stat();
        let limit = stat.memory_limit.unwrap();
        assert_eq!(stat.memory_limit_asked, Some(asked));
        assert!(limit >= capacity / 2 && length_for(limit) <= capacity, "{limit}");
        assert!(stat.to_string().contains(&format!("{asked}, for which the capacity")));
        churn(&map, limit, 3, 10_000);
        // No limit is as much as possible.
        map.db().set_memory_limit(0).unwrap();
        assert_eq!((map.stat().memory_limit, map.stat().memory_limit_asked), (Some(limit), None));
        churn(&map, limit, 3, 5_000);
        map.db().set_memory_limit(MIB).unwrap();
        assert_eq!(map.stat().memory_limit, Some(MIB));
    }
}

/// A value for which there can be no place is refused, and nothing is evicted for it.
#[test]
fn what_finds_no_place_in_the_file_evicts_nothing() {
    let (limit, capacity) = (4 * MIB, 6 * MIB);
    let memory = Kept::new(capacity);
    let map = memory.open(&cache(limit).capacity(capacity)).unwrap();
    churn(&map, limit, 5, 10_000);
    let (mut stored, mut refused) = (0, 0);
    for len in (0..40).map(|step| MIB as usize + step * 100_000) {
        let before = map.stat().evictions;
        match map.put(b"large", &vec![1; len]) {
            Ok(()) => stored += 1,
            Err(Error::Full { .. }) => {
                refused += 1;
                assert_eq!(map.stat().evictions, before, "evicted for {len} bytes");
            }
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
        map.delete(b"large").unwrap();
    }
    assert!(stored > 5 && refused > 5, "{stored} stored, {refused} refused");
    churn_within(capacity, &map, limit, 5, 10_000);
}

/// A file that takes far more than a new limit is reduced to it although nothing is written.
#[test]
fn a_limit_that_is_lowered_by_much_needs_no_writes() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("map");
    let (high, low) = (24 * MIB, 3 * MIB);
    let reached = |map: &Map| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while space_of(&path) > low || used(map) > low {
            let space = space_of(&path);
            assert!(std::time::Instant::now() < end, "{space} of {low}, {} used", used(map));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(map.records().value > 0);
    };
    for len in [200_000, 1_000] {
        let map = common::open_file(&path, cache(high)).unwrap();
        for number in 0..20 * MIB / len as u64 {
            map.put(&key_of(number), &vec![1; len]).unwrap();
        }
        map.into_db().close().unwrap();
        let map = common::open_file(&path, cache(low)).unwrap();
        reached(&map);
        map.db().set_memory_limit(high).unwrap();
        for number in 0..20 * MIB / len as u64 {
            map.put(&key_of(number), &vec![1; len]).unwrap();
        }
        map.db().set_memory_limit(low).unwrap();
        reached(&map);
        map.into_db().close().unwrap();
    }
}
