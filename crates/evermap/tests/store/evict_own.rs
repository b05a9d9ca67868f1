//! Maps that evict their own records: what is stored fits, what goes is theirs, and what is read
//! often stays.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::common::{self, Kept, Random, is_value_of, value_of};
use evermap::{Batch, Error, Evermap, Map, MapOptions, Options};
use evermap_pm::Medium;

const MIB: u64 = 1 << 20;

fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn own(limit: u64) -> MapOptions {
    MapOptions::new().max_bytes(limit).evict(true)
}

fn fill<M: Medium>(map: &Map<M>, numbers: std::ops::Range<u64>, len: usize) {
    for number in numbers {
        let key = key_of(number);
        map.put(&key, value_of(&key, number, len)).unwrap();
        let limit = map.stat().max_bytes.unwrap_or(u64::MAX);
        assert!(map.bytes().value <= limit);
    }
}

/// Asserts that everything that is there is right. Returns how many of the keys are.
fn present<M: Medium>(map: &Map<M>, numbers: std::ops::Range<u64>) -> u64 {
    let is_there = |number: &u64| {
        let key = key_of(*number);
        map.cache().peek(&key, |item| assert!(is_value_of(&key, item.value))).unwrap().is_some()
    };
    numbers.filter(is_there).count() as u64
}

fn assert_sound<M: Medium>(db: &Evermap<M>) {
    let report = db.check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn a_full_map_takes_new_keys_and_others_lose_nothing() {
    for index in common::campaign_indexes() {
        for evicts in [false, true] {
            let limit = if evicts { 64 * MIB } else { 0 };
            let memory = Kept::new(128 * MIB);
            let options = Options::new().memory_limit(limit).evict(evicts).seed(1).index(index);
            let map = memory.open(&options.capacity(128 * MIB)).unwrap();
            let [little, full] =
                ["little", "full"].map(|name| map.db().map(name, own(2 * MIB)).unwrap());
            fill(&map, 0..5_000, 300);
            fill(&full, 0..5_000, 300);
            // Its limit is reached as well, but nothing is stored in it any more.
            let in_full = present(&full, 0..5_000);
            assert!(full.stat().map_evictions == 0 && in_full == 5_000);
            fill(&full, 5_000..6_500, 300);
            let (in_full, evicted) = (present(&full, 0..6_500), full.stat().map_evictions);
            assert_eq!(evicted, 6_500 - in_full);
            for round in 0..20 {
                let numbers = round * 5_000..(round + 1) * 5_000;
                fill(&little, numbers.clone(), 300);
                // What was stored last stays.
                assert!(present(&little, numbers.end - 200..numbers.end) >= 190, "{index}");
            }
            let left = present(&little, 0..100_000);
            assert_eq!(little.stat().map_evictions, 100_000 - left);
            assert!(left * 384 > MIB, "{left} records are left over {index}");
            assert_eq!(present(&full, 0..6_500), in_full);
            assert_eq!((present(&map, 0..5_000), map.stat().map_evictions), (5_000, 0));
            assert_eq!(map.stat().evictions, 100_000 - left + evicted);
            assert_sound(map.db());
        }
    }
}

/// As in the file as a whole: what is read once, or never, displaces nothing that is read often.
#[test]
fn what_is_read_often_stays() {
    let db = common::in_memory(Options::new().seed(1)).unwrap().into_db();
    let map = db.map("little", own(MIB)).unwrap();
    fill(&map, 0..1_000, 300);
    for round in 0..20 {
        for number in 0..1_000 {
            map.get(key_of(number)).unwrap();
        }
        fill(&map, (round + 1) * 5_000..(round + 2) * 5_000, 300);
    }
    let often = present(&map, 0..1_000);
    assert!(often > 950, "{often} of 1000 are left");
}

#[test]
fn a_map_of_a_few_records_keeps_the_last_ones() {
    let db = common::in_memory(Options::new().seed(1)).unwrap().into_db();
    let map = db.map("tiny", own(10_000)).unwrap();
    for number in 0..1_000_u64 {
        fill(&map, number..number + 1, 1_000);
        assert!(present(&map, number.saturating_sub(1)..number + 1) >= 1);
        assert!(map.contains(key_of(number)).unwrap());
    }
    assert!(present(&map, 900..1_000) >= 7);
}

/// A record that cannot fit displaces nothing.
#[test]
fn what_is_larger_than_the_limit_is_refused() {
    let db = common::in_memory(Options::new()).unwrap().into_db();
    let map = db.map("little", own(20_000)).unwrap();
    fill(&map, 0..10, 1_000);
    let refused = map.put("large", [0; 30_000]);
    assert!(matches!(refused, Err(Error::Full { limit: 20_000, .. })));
    assert_eq!((present(&map, 0..10), map.stat().evictions), (10, 0));
    map.put("large", [0; 15_000]).unwrap();
    assert!(map.contains("large").unwrap());
    // Without, the limit is an error, as it is for every other map.
    let map = db.map("little", MapOptions::new().evict(false)).unwrap();
    assert!(matches!(map.put("more", [0; 10_000]), Err(Error::Full { limit: 20_000, .. })));
}

/// Keys that a batch is about to change are passed over, and what it needs is made room for.
#[test]
fn batches_find_room_in_each_of_their_maps() {
    let db = common::in_memory(Options::new()).unwrap().into_db();
    let maps = ["a", "b"].map(|name| db.map(name, own(100_000)).unwrap());
    for round in 0..500_u64 {
        let mut batch = Batch::new();
        for part in 0..5 {
            for name in ["a", "b"] {
                let key = key_of(round * 5 + part);
                let value = value_of(&key, round, 300);
                batch.in_map(Some(name)).put(key, value);
            }
        }
        assert!(db.default_map().apply(&batch).unwrap().is_done());
        for map in &maps {
            assert_eq!(present(map, round * 5..round * 5 + 5), 5);
            assert!(map.bytes().value <= 100_000);
        }
    }
}

/// A map is opened that a process has left full: its records are not counted yet, and how they were
/// read is known.
#[test]
fn it_goes_on_after_a_kill() {
    let memory = Kept::new(64 * MIB);
    let open = || memory.open(&Options::new().seed(1).capacity(64 * MIB)).unwrap();
    let map = open();
    let little = map.db().map("little", own(MIB)).unwrap();
    fill(&map, 0..1_000, 300);
    fill(&little, 0..1_000, 300);
    (0..1_000).for_each(|number| drop(little.get(key_of(number)).unwrap()));
    fill(&little, 1_000..4_000, 300);
    let evicted = little.stat().map_evictions;
    assert!(evicted > 0);
    let before = present(&little, 0..4_000);
    // As after a kill: nothing is closed.
    std::mem::forget((map, little));
    let map = open();
    let little = map.db().map("little", own(MIB)).unwrap();
    assert_eq!(present(&little, 0..4_000), before);
    for number in 4_000..10_000 {
        let key = key_of(number);
        little.put(&key, value_of(&key, number, 300)).unwrap();
    }
    map.db().recover().unwrap();
    assert!(little.bytes().exact && little.bytes().value <= MIB);
    assert!(present(&little, 9_800..10_000) >= 190);
    // Of the 9,000 that were never read, a sixth is left.
    assert!(present(&little, 0..1_000) > 700, "{}", present(&little, 0..1_000));
    assert_eq!(present(&map, 0..1_000), 1_000);
    assert_sound(map.db());
}

/// The limits of the maps leave the file less than their indexes take. So the file is full before
/// they are, and records of the map go that is nearest to its limit.
#[test]
fn a_cache_without_other_records_takes_those_of_its_maps() {
    let memory = Kept::new(32 * MIB);
    let options = Options::new().memory_limit(8 * MIB).evict(true).seed(1);
    let map = memory.open(&options.capacity(32 * MIB)).unwrap();
    let [large, little] = [("large", 6 * MIB), ("little", 2 * MIB)]
        .map(|(name, limit)| map.db().map(name, own(limit)).unwrap());
    fill(&little, 0..1_000, 300);
    fill(&large, 0..100_000, 100);
    let stat = large.stat();
    assert!(stat.memory_used <= 8 * MIB && stat.map_evictions > 50_000, "{stat}");
    assert!(present(&large, 99_800..100_000) >= 190);
    assert_eq!(present(&little, 0..1_000), 1_000);
    // Of other sizes, too.
    fill(&large, 100_000..102_000, 5_000);
    assert!(present(&large, 101_980..102_000) >= 18);
    assert_eq!(present(&little, 0..1_000), 1_000);
    assert_sound(map.db());
}

#[test]
fn what_goes_is_reported() {
    let db = common::in_memory(Options::new()).unwrap().into_db();
    let map = db.map("little", own(100_000)).unwrap();
    let evicted = Arc::new(Mutex::new(HashSet::new()));
    let seen = evicted.clone();
    db.on_evict(Some(Box::new(move |it| assert!(seen.lock().unwrap().insert(it.key.to_vec())))));
    fill(&map, 0..1_000, 300);
    let (gone, left) = (evicted.lock().unwrap().len() as u64, present(&map, 0..1_000));
    assert_eq!(gone + left, 1_000);
}

#[test]
fn threads_share_a_full_map() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let db = common::open_file(directory.path().join("map"), Options::new()).unwrap().into_db();
    let (map, other) = (db.map("little", own(MIB)).unwrap(), db.default_map());
    fill(&other, 0..1_000, 300);
    std::thread::scope(|threads| {
        for thread in 0..4_u64 {
            let map = &map;
            threads.spawn(move || {
                let mut random = Random::new(thread);
                for step in 0..20_000 {
                    let key = key_of(random.below(20_000));
                    match map.get(&key).unwrap() {
                        Some(value) => assert!(is_value_of(&key, &value)),
                        None => {
                            let len = 50 + random.below(2_000) as usize;
                            map.put(&key, value_of(&key, step, len)).unwrap();
                        }
                    }
                }
            });
        }
    });
    // Four threads can be on their way at a time.
    assert!(map.bytes().value <= MIB + 4 * 2_200 && map.stat().map_evictions > 1_000);
    assert_eq!(present(&other, 0..1_000), 1_000);
    assert_sound(&db);
}
