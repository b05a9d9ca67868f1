//! The keys that a clean shutdown saves in order: they are used if nothing has changed since, and
//! never otherwise.

use std::collections::BTreeMap;

use crate::common::{self, Kept, Random, assert_sound, value_of};
use crate::ordered::scan_agrees;
use evermap::{Map, MapOptions, Options, OrderedStat};
use evermap_index::testkit::tier;
use evermap_pm::Medium;
use evermap_pm::sim::Sim;

/// Root slot of the default map's saved keys, and where slots are: part of the format.
const ROOT: u64 = 8192 + 8 * 64 + 13 * 8;

fn options() -> Options {
    common::options().capacity(64 << 20).extent_size(64 << 10).ordered(true)
}

/// Asserts that the ordered index agrees with the hash index, once it is built.
fn built<M: Medium>(store: &Map<M>) -> OrderedStat {
    scan_agrees(store).unwrap();
    store.stat().ordered.unwrap()
}

/// Returns keys of all lengths, which share much with their neighbours or nothing.
fn key_of(number: u64) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        1 => vec![b'x'; evermap::KEY_MAX],
        2 => [vec![b'x'; evermap::KEY_MAX - 1], vec![b'y']].concat(),
        _ if number.is_multiple_of(50) => vec![number as u8; (number * 37 % 3000) as usize],
        _ => format!("user:{:05}", number * 7919 % 100_000).into_bytes(),
    }
}

#[test]
fn a_clean_shutdown_saves_the_keys() {
    let memory = Kept::new(64 << 20);
    let mut random = Random::new(1);
    let mut expected = [BTreeMap::new(), BTreeMap::new()];
    for round in 0..6 {
        let store = memory.open(&options()).unwrap();
        let named = store.db().map("named", MapOptions::new()).unwrap();
        for (store, expected) in [&store, &named].into_iter().zip(&mut expected) {
            if round == 2 {
                // The tree is not used, and nothing changes.
                assert_eq!(store.len(), expected.len() as u64);
                continue;
            }
            let stat = built(store);
            assert_eq!(stat.from_saved, round > 0, "round {round}");
            assert_eq!(stat.keys_read, expected.len() as u64);
            assert_sound(store);
            for _ in 0..1000 {
                let key = key_of(random.below(3000));
                if random.below(3) == 0 {
                    assert_eq!(store.delete(&key).unwrap(), expected.remove(&key).is_some());
                } else {
                    store.put(&key, &value_of(&key, round, 30)).unwrap();
                    expected.insert(key, round);
                }
            }
        }
        assert_sound(&store);
        store.db().clone().close().unwrap();
        for (number, store) in [store, named].into_iter().enumerate() {
            assert!(store.scan(..).is_err(), "closed: {number}");
        }
    }
    let store = memory.open(&options()).unwrap();
    assert!(built(&store).from_saved);
    let keys = store.scan(..).unwrap().map(|pair| pair.unwrap().0);
    assert!(keys.eq(expected[0].keys().cloned()));
}

#[test]
fn saved_keys_are_used_only_if_nothing_came_after() {
    let memory = Kept::new(64 << 20);
    let fill = |store: &Map<Sim>, from: u64| {
        (from..from + 500).for_each(|number| store.put(&key_of(number), b"value").unwrap());
    };
    let open_named = |store: &Map<Sim>| store.db().map("named", MapOptions::new()).unwrap();
    let store = memory.open(&options()).unwrap();
    fill(&store, 0);
    fill(&open_named(&store), 0);
    store.into_db().close().unwrap();
    // Without the tree, whatever changes.
    let store = memory.open(&options().ordered(false)).unwrap();
    assert!(store.delete(&key_of(7)).unwrap());
    assert_sound(&store);
    store.into_db().close().unwrap();
    let store = memory.open(&options()).unwrap();
    assert!(!built(&store).from_saved);
    assert_sound(&store);
    store.into_db().close().unwrap();
    // A map that was not opened meanwhile has not changed.
    let store = memory.open(&options()).unwrap();
    assert!(built(&store).from_saved);
    assert!(built(&open_named(&store)).from_saved);
    store.into_db().close().unwrap();
    // As if the process had been killed, before and after the keys were loaded.
    for loads in [false, true] {
        let store = memory.open(&options()).unwrap();
        if loads {
            assert!(built(&store).from_saved);
        }
        fill(&store, 600);
        drop(store);
        let store = memory.open(&options()).unwrap();
        store.db().recover().unwrap();
        assert!(!built(&store).from_saved);
        assert_sound(&store);
        store.into_db().close().unwrap();
    }
    let store = memory.open(&options()).unwrap();
    assert!(!built(&open_named(&store)).from_saved, "its blocks were swept");
    assert_sound(&store);
    store.into_db().close().unwrap();
    // Dropping a map frees its saved keys.
    let store = memory.open(&options()).unwrap();
    assert!(store.db().drop_map("named").unwrap());
    store.db().reclaim_dropped().unwrap();
    assert_sound(&store);
    store.put(b"another", b"value").unwrap();
    // The tree is not built yet: the shutdown has nothing to save.
    store.into_db().close().unwrap();
    let store = memory.open(&options()).unwrap();
    assert!(!built(&store).from_saved);
}

/// Whichever part of the saved keys is damaged, no key is missing from a scan, and their space is
/// freed.
#[test]
fn damaged_keys_are_read_from_the_hash_index() {
    const FLIPS: [u64; 3] = [1 << 3, 1 << 40, u64::MAX];
    let template = Kept::new(64 << 20);
    let store = template.open(&options()).unwrap();
    (3..3000).for_each(|number| store.put(&key_of(number), b"value").unwrap());
    store.into_db().close().unwrap();
    let last = template.word(ROOT) & ((1 << 48) - 1);
    let first_words = (last..last + 30 * 8).step_by(8);
    let end = last + 24 + (template.word(last + 8) >> 32) / 8 * 8;
    let further = (last + 30 * 8..end).step_by(tier().choose(400, 40) * 8);
    let mut used = 0;
    for at in std::iter::once(ROOT).chain(first_words).chain(further) {
        for flip in tier().choose(&FLIPS[..1], &FLIPS[..]) {
            let memory = template.copy();
            memory.set_word(at, memory.word(at) ^ flip);
            let store = memory.open(&options()).unwrap();
            let stat = built(&store);
            used += u64::from(stat.from_saved);
            assert_eq!(stat.keys, store.len());
            store.into_db().close().unwrap();
            let store = memory.open(&options()).unwrap();
            store.db().recover().unwrap();
            assert_sound(&store);
        }
    }
    assert_eq!(used, 0, "every flipped bit was noticed");
}

/// Saved keys are freed if records need their space.
#[test]
fn saved_keys_are_freed_if_space_is_needed() {
    let memory = Kept::new(4 << 20);
    let options = options().capacity(4 << 20);
    let store = memory.open(&options).unwrap();
    let put = |store: &Map<Sim>, number: u64| {
        let key = key_of(number);
        store.put(&key, &value_of(&key, number, 300))
    };
    let full = (3..).find(|&number| put(&store, number).is_err()).unwrap();
    (full - 2000..full).for_each(|number| assert!(store.delete(&key_of(number)).unwrap()));
    store.db().compact().unwrap();
    store.into_db().close().unwrap();
    assert_ne!(memory.word(ROOT), 0, "they are saved");
    let store = memory.open(&options).unwrap();
    // As many records as there is space for. Their number differs by a split or two, between
    // indexes and seeds.
    let full_again = (full - 2000..).find(|&number| put(&store, number).is_err()).unwrap();
    assert!(full_again > full - 200, "{full_again} of {full}");
    assert_eq!(memory.word(ROOT), 0);
    assert!(!built(&store).from_saved);
    assert_sound(&store);
}

#[test]
fn a_full_store_saves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let options = || common::options().capacity(4 << 20).extent_size(64 << 10).ordered(true);
    let first = 3;
    let mut stored = first;
    {
        let store = common::open_file(&path, options()).unwrap();
        let full = loop {
            match store.put(&value_of(&key_of(stored), stored, 300), b"") {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(full.is_no_space(), "{full}");
        store.into_db().close().unwrap();
    }
    let store = common::open_file(&path, options()).unwrap();
    store.build_ordered(1).unwrap();
    assert!(!built(&store).from_saved);
    assert_eq!(store.scan(..).unwrap().count() as u64, stored - first);
    assert_sound(&store);
}
