//! Space that other sizes cannot use becomes free.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::{self, is_value_of, value_of};
use evermap::{Clock, Map};
use evermap_pm::region::Identity;
use evermap_pm::sim::Sim;

const KEYS: u64 = 3000;

fn store(capacity: u64) -> Map<Sim> {
    let medium = common::exclusive(capacity);
    let options = common::small(capacity).clock(Clock::manual(common::at(1000)));
    common::open_medium(medium, Identity::default(), &options).unwrap()
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

/// Sizes shift again and again, and some records of every earlier size remain each time.
#[test]
fn shifting_sizes_do_not_grow_the_store() {
    let store = store(32 << 20);
    let mut extents = Vec::new();
    for round in 0..40u64 {
        for key in 0..KEYS {
            if (key * 31 + round * 17) % 10 < 9 {
                let size = 60 + (round * 7 % 10) * 25;
                store.put(&key_of(key), &value_of(&key_of(key), round, size as usize)).unwrap();
            }
        }
        store.db().compact().unwrap();
        let stat = store.space().unwrap();
        extents.push(stat.extent_bytes as f64 / stat.allocated_bytes as f64);
    }
    for key in 0..KEYS {
        let value = store.get(&key_of(key)).unwrap().unwrap();
        assert!(is_value_of(&key_of(key), &value));
    }
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    let worst = extents.iter().copied().fold(0.0, f64::max);
    assert!(worst < 1.25, "space in use / space needed: {extents:.2?}");
}

/// A record that is moved keeps its CAS id, flags, expiry and value.
#[test]
fn what_moves_stays_the_same() {
    let store = store(8 << 20);
    let put = |key: u64| {
        let meta = common::meta(key as u32, 2000 + key);
        store.set(&key_of(key)).meta(meta).put(&value_of(&key_of(key), key, 70)).unwrap()
    };
    let ids: Vec<_> = (0..KEYS).map(put).collect();
    for key in (0..KEYS).filter(|key| key % 10 != 0) {
        store.delete(&key_of(key)).unwrap();
    }
    store.touch(&key_of(0), common::at(7777)).unwrap();
    let (records, before) = (store.stat().record_bytes, store.space().unwrap());
    assert!(store.db().compact().unwrap() > KEYS / 20);
    let after = store.space().unwrap();
    // The blocks of the index, which differ between kinds, cannot be moved.
    let scattered = |stat: &evermap::SpaceStat| stat.extent_bytes - stat.allocated_bytes;
    assert!(scattered(&after) < scattered(&before) / 2, "{before:?} {after:?}");
    assert_eq!(store.stat().record_bytes, records);
    for key in (0..KEYS).step_by(10) {
        let expires_at = if key == 0 { 7777 } else { 2000 + key };
        let same = store.get_with(&key_of(key), |item| {
            item.value == value_of(&key_of(key), key, 70)
                && (item.flags, item.expires_at().map(common::seconds))
                    == (key as u32, Some(expires_at))
                && item.cas == ids[key as usize]
        });
        assert_eq!(same.unwrap(), Some(true));
    }
    let more = (0..5).map(|_| store.db().compact().unwrap()).find(|&moved| moved == 0);
    assert_eq!(more, Some(0), "it ends");
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A store whose space is all in blocks of sizes that are not requested any more compacts itself.
#[test]
fn a_full_store_with_scattered_space_compacts_itself() {
    let store = store(1 << 20);
    let mut stored = 0;
    while store.put(&key_of(stored), &[1; 100]).is_ok() {
        stored += 1;
    }
    for key in (0..stored).filter(|key| key % 8 != 0) {
        store.delete(&key_of(key)).unwrap();
    }
    for key in 0..100 {
        store.put(&key_of(stored + key), &[2; 3000]).unwrap();
    }
}

/// A full store is being checked, which waits for a reader, and the reader's thread needs space: it
/// gets an error instead of waiting.
#[test]
fn a_search_for_space_does_not_wait_for_a_check_that_waits_for_it() {
    let store = store(1 << 20);
    let full =
        |key: u64| store.put(&key_of(key), &[1; 3000]).is_err_and(|error| error.is_no_space());
    let last = (0..).find(|&key| full(key)).unwrap();
    let reader = store.reader().unwrap();
    std::thread::scope(|threads| {
        let check = threads.spawn(|| store.db().check(true).unwrap());
        for _ in 0..100 {
            assert!(full(last));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!check.is_finished(), "it waits for the reader");
        drop(reader);
        let report = check.join().unwrap();
        assert!(report.is_sound(), "{report}");
    });
}

/// A reader that is about to end prevents all reuse: a mutation that finds no space waits for it.
#[test]
fn space_that_a_reader_holds_up_is_waited_for() {
    let store = store(1 << 20);
    let put = |key: u64| store.put(&key_of(key), &[1; 3000]);
    let stored = (0..).find(|&key| put(key).is_err()).unwrap();
    for key in 0..20 {
        let (reads, over) = (std::sync::Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _reader = store.reader().unwrap();
                reads.wait();
                while !over.load(Relaxed) {
                    std::thread::yield_now();
                }
                // Usually the other thread has found no space by then.
                std::thread::sleep(std::time::Duration::from_millis(2));
            });
            reads.wait();
            store.delete(&key_of(key)).unwrap();
            over.store(true, Relaxed);
            put(stored + key).unwrap();
        });
    }
}

/// Readers and writers do not notice that records move.
#[test]
fn records_move_beside_readers_and_writers() {
    // Much more than is needed, because a thread that waits for a processor delays the reuse of
    // space.
    let store = store(256 << 20);
    let enough = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for worker in 0..3u64 {
            let (store, enough) = (&store, &enough);
            threads.spawn(move || {
                for round in (0..).take_while(|_| !enough.load(Relaxed)) {
                    let mine = || (worker..KEYS).step_by(3);
                    let size = 40 + (round * 37 % 300) as usize;
                    for key in mine() {
                        store.put(&key_of(key), &value_of(&key_of(key), round, size)).unwrap();
                        let other = key_of((key * 7 + round) % KEYS);
                        let value = store.get(&other).unwrap();
                        assert!(value.is_none_or(|value| is_value_of(&other, &value)));
                    }
                    let stays = |key: u64| (key / 3 + round).is_multiple_of(8);
                    for key in mine().filter(|&key| !stays(key)) {
                        assert!(store.delete(&key_of(key)).unwrap());
                    }
                    for key in mine() {
                        let expected = stays(key).then(|| value_of(&key_of(key), round, size));
                        assert_eq!(store.get(&key_of(key)).unwrap(), expected);
                    }
                }
            });
        }
        let mut moved = 0;
        while moved < 5 * KEYS {
            moved += store.db().compact().unwrap();
        }
        enough.store(true, Relaxed);
    });
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// The background thread of a store in a file compacts it without being asked.
#[test]
fn it_happens_in_the_background() {
    let map = common::in_memory(common::options().capacity(8 << 20).extent_size(4096)).unwrap();
    (0..KEYS).for_each(|key| map.put(&key_of(key), &[1; 100]).unwrap());
    let full = map.space().unwrap().extent_bytes;
    for key in (0..KEYS).filter(|key| key % 10 != 0) {
        map.delete(&key_of(key)).unwrap();
    }
    while map.space().unwrap().extent_bytes > full / 2 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    map.into_db().close().unwrap();
}
