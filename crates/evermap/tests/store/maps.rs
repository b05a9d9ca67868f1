//! Named maps: many in one file, created and dropped.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::{self, Kept, Random, assert_sound, is_value_of, value_of};
use evermap::{
    Batch, Clock, Error, IndexKind, MAP_NAME_MAX, Map, MapOptions, Options, Order, SweepState,
};
use evermap_pm::Medium;
use evermap_pm::sim::Sim;

fn options() -> Options {
    common::options().capacity(256 << 20).extent_size(64 << 10).seed(5)
}

fn existing() -> MapOptions {
    MapOptions::new().create(false)
}

fn key_of(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn fill(store: &Map<Sim>, keys: std::ops::Range<u64>, version: u64) {
    for number in keys {
        let key = key_of(number);
        store.put(&key, &value_of(&key, version, 20 + number as usize % 300)).unwrap();
    }
}

/// Asserts that everything in the map has this version.
fn assert_filled(store: &Map<Sim>, keys: std::ops::Range<u64>, version: u64) {
    let mut shown = 0;
    for pair in store.iter() {
        let (key, value) = pair.unwrap();
        assert!(is_value_of(&key, &value));
        assert_eq!(value[key.len()..][..8], version.to_le_bytes());
        shown += 1;
    }
    assert_eq!(shown, keys.end - keys.start);
    assert!(keys.into_iter().all(|number| store.contains(&key_of(number)).unwrap()));
}

fn allocated(store: &Map<Sim>) -> u64 {
    store.space().unwrap().allocated_bytes
}

#[test]
fn maps_are_independent_of_each_other() {
    let store =
        Kept::new(256 << 20).open(&options().clock(Clock::manual(common::at(1000)))).unwrap();
    let [one, two] = ["one", "two"].map(|name| store.db().map(name, MapOptions::new()).unwrap());
    for (version, map) in [&store, &one, &two].into_iter().enumerate() {
        fill(map, 0..500, version as u64);
    }
    for (version, map) in [&store, &one, &two].into_iter().enumerate() {
        assert_filled(map, 0..500, version as u64);
        assert_eq!(map.len(), 500);
    }
    assert_eq!(store.db().maps().unwrap(), ["one", "two"]);
    assert_eq!((store.name(), one.name()), (None, Some("one")));
    let again = two.db().map("one", existing()).unwrap();
    again.put(b"new", b"value").unwrap();
    assert_eq!(one.get(b"new").unwrap().as_deref(), Some(&b"value"[..]), "it is the same map");
    assert!(one.delete(b"new").unwrap());
    let stat = one.stat();
    assert_eq!((stat.map.as_deref(), stat.maps, stat.records.value), (Some("one"), 2, 500));
    // No CAS id is assigned twice, not even in different maps.
    let [a, b] = [&one, &two].map(|map| map.set(b"k").put(b"v").unwrap());
    assert_ne!(a, b);
    // A flush concerns one map, and so does a batch without names of maps.
    one.clear().unwrap();
    assert_eq!(one.iter().count(), 0);
    assert_filled(&store, 0..500, 0);
    let mut batch = Batch::new();
    batch.put(b"a", b"1").add(b"b", 5).remove(b"k");
    assert!(two.apply(&batch).unwrap().is_done());
    assert_eq!(two.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(!two.contains(b"k").unwrap() && !one.contains(b"a").unwrap());
    // Expired records of every map are purged.
    two.set(b"gone").meta(common::meta(0, 1)).put(b"").unwrap();
    store.db().purge().unwrap();
    assert_eq!((one.len(), two.len()), (0, 502));
    assert_sound(&store);
}

#[test]
fn names_and_kinds_are_checked() {
    let store = Kept::new(64 << 20).open(&options()).unwrap();
    for name in ["", &"x".repeat(MAP_NAME_MAX + 1)] {
        let refused = store.db().map(name, MapOptions::new()).map(drop).unwrap_err();
        assert!(matches!(refused, Error::MapName { .. }), "{refused}");
    }
    for name in ["x", "ä b\n", &"x".repeat(MAP_NAME_MAX)] {
        store.db().map(name, MapOptions::new()).unwrap().put(b"key", name.as_bytes()).unwrap();
    }
    assert_eq!(store.db().maps().unwrap(), ["x", &"x".repeat(MAP_NAME_MAX), "ä b\n"]);
    let refused = store.db().map("none", existing()).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::NoSuchMap { name } if name == "none"), "{refused}");
    assert!(!store.db().drop_map("none").unwrap());
    for (asked, found) in [(IndexKind::Clht, IndexKind::Level), (IndexKind::Level, IndexKind::Clht)]
    {
        let name = found.name();
        store.db().map(name, MapOptions::new().index(found)).unwrap();
        let refused = store.db().map(name, MapOptions::new().index(asked)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::OtherIndex { .. }), "{refused}");
        assert_eq!(store.db().map(name, existing()).unwrap().stat().index, found);
    }
    let little = store.db().map("little", MapOptions::new().max_bytes(1000)).unwrap();
    assert!(matches!(little.put(b"key", &[0; 2000]), Err(Error::Full { .. })));
    store.put(b"key", &[0; 2000]).unwrap();
}

/// Programs that do not know about named maps would take their blocks for free space.
#[test]
fn the_first_named_map_raises_the_format() {
    let memory = Kept::new(64 << 20);
    let format = || {
        use evermap_pm::PmU64;
        [0, 4096].map(|at| memory.load(&memory.at::<[PmU64; 2]>(at).unwrap()[1]) as u32)
    };
    let store = memory.open(&options()).unwrap();
    store.put(b"key", b"value").unwrap();
    assert!(store.db().map("none", existing()).is_err());
    assert_eq!((store.db().maps().unwrap().len(), format()), (0, [5, 5]));
    store.db().map("some", MapOptions::new()).unwrap();
    assert_eq!(format(), [11, 11]);
    store.into_db().close().unwrap();
    let store = memory.open(&options()).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn maps_are_kept_by_every_kind_of_shutdown() {
    for kind in common::every_index() {
        let (memory, options) = (Kept::new(256 << 20), options().index(kind));
        let mut store = memory.open(&options).unwrap();
        for round in 0..6u64 {
            let names: Vec<_> = (0..5).map(|number| format!("map {number}")).collect();
            for (number, name) in names.iter().enumerate() {
                let map = store.db().map(name, MapOptions::new()).unwrap();
                // Some maps are not used in every round, so that their saved counts are used.
                if round == 0 || (round + number as u64).is_multiple_of(3) {
                    fill(&map, 0..200 * (1 + number as u64), 7);
                }
            }
            if round % 2 == 0 {
                store.db().clone().close().unwrap();
            }
            drop(store);
            store = memory.open(&options).unwrap();
            if round == 4 {
                // Neither opened nor counted before the next shutdown.
                store.into_db().close().unwrap();
                store = memory.open(&options).unwrap();
            }
            if round % 2 == 1 {
                assert!(!store.db().map("map 1", existing()).unwrap().records().exact);
                if round == 3 {
                    // A clean shutdown before the sweep: counts that were saved earlier are not
                    // valid.
                    store.into_db().close().unwrap();
                    store = memory.open(&options).unwrap();
                }
                store.db().recover().unwrap();
            } else {
                assert_eq!(store.stat().sweep, SweepState::NotNeeded);
            }
            assert_eq!(store.db().maps().unwrap(), names);
            for (number, name) in names.iter().enumerate() {
                let (map, keys) =
                    (store.db().map(name, existing()).unwrap(), 200 * (1 + number as u64));
                assert_filled(&map, 0..keys, 7);
                assert_eq!((map.len(), map.records().exact), (keys, true), "{kind} {round}");
            }
            assert_sound(&store);
        }
    }
}

#[test]
fn an_empty_one_takes_at_most_64_kib() {
    const MAPS: u64 = 1000;
    for kind in common::every_index() {
        for extent_size in [64 << 10, 2 << 20] {
            let options = options().extent_size(extent_size).index(kind);
            let store = Kept::new(256 << 20).open(&options).unwrap();
            let before = allocated(&store);
            for number in 0..MAPS {
                store.db().map(&format!("map {number}"), MapOptions::new()).unwrap();
            }
            let each = (allocated(&store) - before) / MAPS;
            println!("{kind}, extents of {extent_size}: {each} bytes a map");
            assert!(each <= 64 << 10, "{kind}: {each} bytes");
            if extent_size > 64 << 10 {
                assert_sound(&store);
                assert_eq!(store.stat().maps, MAPS);
            }
        }
    }
}

#[test]
fn operations_on_a_dropped_map_return_an_error() {
    let store = Kept::new(64 << 20).open(&options().ordered(true)).unwrap();
    let map = store.db().map("map", MapOptions::new()).unwrap();
    fill(&map, 0..100, 1);
    let (mut iter, mut scan) = (map.iter(), map.scan(..).unwrap());
    assert!(iter.next().unwrap().is_ok() && scan.next().unwrap().is_ok());
    drop(iter);
    assert!(store.db().drop_map("map").unwrap());
    let is_dropped = |error: Error| matches!(error, Error::Dropped { name } if name == "map");
    assert!(is_dropped(map.get(b"key 1").unwrap_err()));
    assert!(is_dropped(map.put(b"key 1", b"").unwrap_err()));
    assert!(is_dropped(map.delete(b"key 1").unwrap_err()));
    assert!(is_dropped(map.clear().unwrap_err()));
    assert!(is_dropped(map.apply(Batch::new().add(b"n", 1)).unwrap_err()));
    assert!(is_dropped(map.get_together(&["n"], |_, _| ControlFlow::Continue(())).unwrap_err()));
    assert!(is_dropped(map.for_each(|_| ControlFlow::Continue(())).unwrap_err()));
    assert!(is_dropped(map.iter().next().unwrap().unwrap_err()));
    assert!(is_dropped(map.space().unwrap_err()));
    assert!(is_dropped(scan.by_ref().find_map(Result::err).unwrap()));
    assert!(is_dropped(map.scan(..).map(drop).unwrap_err()));
    assert!(is_dropped(map.reader().map(drop).unwrap_err()));
    // Another map, immediately.
    let new = store.db().map("map", MapOptions::new()).unwrap();
    assert_eq!(new.iter().count(), 0);
    fill(&new, 0..100, 2);
    assert!(is_dropped(map.get(b"key 1").unwrap_err()));
    store.db().reclaim_dropped().unwrap();
    assert_filled(&new, 0..100, 2);
    assert!(is_dropped(map.get(b"key 1").unwrap_err()));
    assert_sound(&store);
    assert!(!store.db().drop_map("other").unwrap());
    store.db().clone().close().unwrap();
    assert!(matches!(new.get(b"key 1"), Err(Error::Closed)));
    assert!(matches!(store.db().map("map", MapOptions::new()), Err(Error::Closed)));
    assert!(matches!(store.db().drop_map("map"), Err(Error::Closed)));
    assert!(matches!(store.db().maps(), Err(Error::Closed)));
}

/// How a store is stopped after a map was dropped.
#[derive(Clone, Copy, Debug)]
enum End {
    FreedAndClosed,
    /// The blocks of the map are still allocated when the store is closed.
    Closed,
    Killed,
    FreedAndKilled,
    /// The store was killed before, and has not been swept when the map is dropped.
    KilledAndClosed,
    KilledAndFreed,
    KilledAndSwept,
}

#[test]
fn dropping_leaks_nothing() {
    for kind in common::every_index() {
        for end in [
            End::FreedAndClosed,
            End::Closed,
            End::Killed,
            End::FreedAndKilled,
            End::KilledAndClosed,
            End::KilledAndFreed,
            End::KilledAndSwept,
        ] {
            let (memory, options) = (Kept::new(256 << 20), options().index(kind));
            let store = memory.open(&options).unwrap();
            fill(&store, 0..50, 0);
            fill(&store.db().map("stays", MapOptions::new()).unwrap(), 0..50, 1);
            store.db().recover().unwrap();
            let before = allocated(&store);
            fill(&store.db().map("goes", MapOptions::new()).unwrap(), 0..3000, 2);
            let full = allocated(&store);
            assert!(full > before + 3000 * 100);
            let store = match end {
                End::KilledAndClosed | End::KilledAndFreed | End::KilledAndSwept => {
                    drop(store);
                    memory.open(&options).unwrap()
                }
                _ => store,
            };
            assert!(store.db().drop_map("goes").unwrap());
            match end {
                End::FreedAndClosed | End::FreedAndKilled | End::KilledAndFreed => {
                    assert_eq!(store.db().reclaim_dropped().unwrap(), 1);
                }
                // The sweep must not free what is freed later.
                End::KilledAndSwept => {
                    store.db().recover().unwrap();
                    fill(&store.db().map("new", MapOptions::new()).unwrap(), 0..3000, 3);
                    assert_eq!(store.db().reclaim_dropped().unwrap(), 1);
                    assert_filled(&store.db().map("new", existing()).unwrap(), 0..3000, 3);
                    assert_sound(&store);
                    assert!(store.db().drop_map("new").unwrap());
                }
                _ => {}
            }
            if !matches!(end, End::Killed | End::FreedAndKilled) {
                store.db().clone().close().unwrap();
            }
            drop(store);
            let store = memory.open(&options).unwrap();
            if matches!(end, End::FreedAndClosed | End::Closed) {
                assert_eq!(store.stat().sweep, SweepState::NotNeeded);
            }
            store.db().recover().unwrap();
            assert_eq!(allocated(&store), before, "{kind} {end:?}");
            assert_filled(&store, 0..50, 0);
            assert_filled(&store.db().map("stays", existing()).unwrap(), 0..50, 1);
            assert_eq!(store.db().maps().unwrap(), ["stays"]);
            assert_sound(&store);
        }
    }
}

/// If there is no space to create a map, everything that was allocated for it is freed.
#[test]
fn a_map_that_finds_no_space_leaves_nothing() {
    no_space_for_maps(Order::None);
}

/// The same if there is space for the index but none for the order of the keys.
#[test]
fn a_map_that_finds_no_space_for_its_order_leaves_nothing() {
    no_space_for_maps(Order::Persistent);
}

fn no_space_for_maps(order: Order) {
    for kind in common::every_index() {
        let memory = Kept::new(1 << 20);
        let options = Options::small(1 << 20).index(kind).seed(3).ordered(order);
        let store = memory.open(&options).unwrap();
        store.db().map("first", MapOptions::new()).unwrap().put(b"key", b"value").unwrap();
        let mut filler = 0u64;
        for len in [9000, 700, 40] {
            while store.put(&filler.to_le_bytes(), &vec![1; len]).is_ok() {
                filler += 1;
            }
        }
        let mut made = Vec::new();
        // Space returns in small steps, so that it ends at each allocation for a map.
        for number in (0..filler).rev() {
            let name = format!("map {number}");
            match store.db().map(&name, MapOptions::new()) {
                Ok(_) => made.push(name),
                Err(error) => assert!(error.is_no_space(), "{error}"),
            }
            let _ = store.delete(&number.to_le_bytes());
        }
        assert!(!made.is_empty(), "{kind}");
        assert_eq!(store.db().maps().unwrap().len(), made.len() + 1);
        for name in made {
            assert!(store.db().drop_map(&name).unwrap());
        }
        store.db().reclaim_dropped().unwrap();
        assert_sound(&store);
        store.db().clone().close().unwrap();
        drop(store);
        let store = memory.open(&options).unwrap();
        assert_eq!(store.stat().sweep, SweepState::NotNeeded);
        store.db().recover().unwrap();
        assert_eq!(store.db().maps().unwrap(), ["first"]);
        assert_sound(&store);
    }
}

/// Maps are created, filled and dropped while the sweep after an unclean shutdown runs.
#[test]
fn maps_are_created_and_dropped_during_a_sweep() {
    for seed in 0..6u64 {
        let kind = IndexKind::ALL[seed as usize % IndexKind::ALL.len()];
        let (memory, options) = (Kept::new(256 << 20), options().index(kind).seed(seed));
        let store = memory.open(&options).unwrap();
        for number in 0..20 {
            let map = store.db().map(&format!("old {number}"), MapOptions::new()).unwrap();
            fill(&map, 0..600, number);
        }
        drop(store);
        let store = memory.open(&options).unwrap();
        let mut random = Random::new(seed + 1);
        let mut expected: BTreeMap<String, u64> =
            (0..20).map(|number| (format!("old {number}"), number)).collect();
        let swept = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                store.db().recover().unwrap();
                swept.store(true, SeqCst);
            });
            for version in 100u64.. {
                let number = random.below(30);
                let name = format!("{} {number}", if number < 20 { "old" } else { "new" });
                if expected.remove(&name).is_some() {
                    assert!(store.db().drop_map(&name).unwrap());
                    if random.below(3) == 0 {
                        // Waits for the sweep if it is still running.
                        std::thread::scope(|scope| {
                            scope.spawn(|| store.db().reclaim_dropped().unwrap());
                        });
                    }
                } else {
                    fill(&store.db().map(&name, MapOptions::new()).unwrap(), 0..600, version);
                    expected.insert(name, version);
                }
                if swept.load(SeqCst) && version > 140 {
                    break;
                }
            }
        });
        let names: Vec<_> = expected.keys().cloned().collect();
        assert_eq!(store.db().maps().unwrap(), names);
        for (name, &version) in &expected {
            assert_filled(&store.db().map(name, existing()).unwrap(), 0..600, version);
        }
        assert_sound(&store);
        store.db().clone().close().unwrap();
        drop(store);
        let store = memory.open(&options).unwrap();
        assert_eq!(store.stat().sweep, SweepState::NotNeeded);
        for (name, &version) in &expected {
            let map = store.db().map(name, existing()).unwrap();
            assert_eq!((map.len(), map.records().exact), (600, true));
            assert_filled(&map, 0..600, version);
        }
        assert_sound(&store);
    }
}

/// Many threads create, use and drop the same few maps.
#[test]
fn threads_create_and_drop_the_same_maps() {
    let directory = tempfile::tempdir().unwrap();
    let store = common::open_file(directory.path().join("map"), options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = store.clone();
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                for step in 0..1500u64 {
                    let name = format!("map {}", random.below(3));
                    let map = match random.below(20) {
                        0 => {
                            store.db().drop_map(&name).unwrap();
                            continue;
                        }
                        1 => {
                            store.db().compact().unwrap();
                            continue;
                        }
                        2 => {
                            store.db().purge().unwrap();
                            continue;
                        }
                        _ => store.db().map(&name, MapOptions::new()).unwrap(),
                    };
                    let key = key_of(random.below(50));
                    let used = match random.below(4) {
                        0 => map.delete(&key).map(drop),
                        1 => {
                            let mut batch = Batch::new();
                            for number in 0..3 {
                                batch.put(&key_of(number), &value_of(&key_of(number), step, 60));
                            }
                            map.apply(&batch).map(drop)
                        }
                        2 => map.for_each(|item| {
                            let item = item.unwrap_or_else(|error| panic!("{error}"));
                            assert!(is_value_of(item.key, item.value));
                            ControlFlow::Continue(())
                        }),
                        _ => map.put(&key, &value_of(&key, step, random.below(500) as usize)),
                    };
                    match used {
                        Ok(()) | Err(Error::Dropped { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    for name in store.db().maps().unwrap() {
        store.db().drop_map(&name).unwrap();
    }
    store.into_db().close().unwrap();
    let store = common::open_file(directory.path().join("map"), options()).unwrap();
    assert_eq!(store.stat().sweep, SweepState::NotNeeded);
    assert!(store.db().maps().unwrap().is_empty());
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// A handle of a named map keeps the store open, and the space of a dropped map is freed in the
/// background.
#[test]
fn handles_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let users =
        common::open_file(&path, options()).unwrap().db().map("users", MapOptions::new()).unwrap();
    users.put(b"1", b"ann").unwrap();
    let other = users.db().map("other", MapOptions::new()).unwrap();
    let before = users.space().unwrap().allocated_bytes;
    (0..2000).for_each(|number| other.put(&key_of(number), &[7; 200]).unwrap());
    assert!(users.db().drop_map("other").unwrap());
    while users.space().unwrap().allocated_bytes >= before {
        std::thread::yield_now();
    }
    drop(other);
    users.into_db().close().unwrap();
    let users = common::open_file(&path, options().create(false))
        .unwrap()
        .db()
        .map("users", existing())
        .unwrap();
    assert_eq!(users.get(b"1").unwrap().as_deref(), Some(&b"ann"[..]));
    assert_eq!(users.db().maps().unwrap(), ["users"]);
}

/// Damage to any word of the descriptor, or of what leads to it, causes errors of that map, and of
/// no other.
#[test]
fn damage_concerns_one_map() {
    const ROOTS: u64 = 8192 + 8 * 64;
    let options = options().index(IndexKind::Clht);
    let template = Kept::new(64 << 20);
    let store = template.open(&options).unwrap();
    fill(&store, 0..100, 0);
    fill(&store.db().map("good", MapOptions::new()).unwrap(), 0..100, 1);
    let bad = store.db().map("bad", MapOptions::new()).unwrap();
    fill(&bad, 0..100, 2);
    // A flush in the distant future, by which the descriptor is found.
    bad.expire_all_at(common::at(u64::from(u32::MAX))).unwrap();
    store.db().clone().close().unwrap();
    drop(store);
    let offset = |word: u64| word & ((1 << 48) - 1);
    let catalogue = offset(template.word(ROOTS + 14 * 8));
    let own = |at: u64| offset(template.word(at)) == at && template.word(at) >> 48 != 0;
    let mut descriptors: Vec<u64> = (0..template.len()).step_by(8).filter(|&at| own(at)).collect();
    descriptors.retain(|&at| at != catalogue);
    assert_eq!(descriptors.len(), 2, "{descriptors:x?}");
    let is_bad = |at: u64| template.word(at + 24) as u32 == u32::MAX;
    let bad = descriptors.into_iter().find(|&at| is_bad(at)).unwrap();
    let mut refused = 0;
    for at in (bad..bad + 80).step_by(8).chain((catalogue..catalogue + 48).step_by(8)) {
        for value in [0, u64::MAX, template.word(at) ^ 1, template.word(at) ^ 1 << 40] {
            let memory = template.copy();
            memory.set_word(at, value);
            let store = memory.open(&options).unwrap();
            assert_filled(&store, 0..100, 0);
            for name in ["good", "bad"] {
                match store.db().map(name, existing()) {
                    Ok(map) => {
                        assert!(map.iter().filter(Result::is_ok).count() <= 100);
                    }
                    Err(error) => {
                        assert!(error.is_damaged() || matches!(error, Error::NoSuchMap { .. }));
                        assert!(name == "bad" || at >= catalogue && at < catalogue + 48);
                        refused += 1;
                    }
                }
            }
            let _ = store.db().recover();
            let _ = store.db().purge();
            let _ = store.db().check(true).unwrap();
            let dropped = store.db().drop_map("bad");
            if !(catalogue..catalogue + 48).contains(&at) {
                assert!(dropped.unwrap());
                store.db().reclaim_dropped().unwrap();
                fill(&store.db().map("bad", MapOptions::new()).unwrap(), 0..100, 3);
                store.db().clone().close().unwrap();
                drop(store);
                // All damage has been noticed by now.
                let store = memory.open(&options).unwrap();
                assert_filled(&store, 0..100, 0);
                assert_filled(&store.db().map("good", existing()).unwrap(), 0..100, 1);
                assert_filled(&store.db().map("bad", existing()).unwrap(), 0..100, 3);
                store.db().recover().unwrap();
                assert_sound(&store);
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

/// Returns the keys of a map in the order in which it is walked through.
fn order_of(map: &Map<Sim>) -> Vec<Vec<u8>> {
    map.keys().collect::<Result<_, _>>().unwrap()
}

/// What one map shows in its order comes to another one in no order.
#[test]
fn each_map_hashes_keys_in_its_own_way() {
    let orders = |options: &Options| {
        let store = Kept::new(256 << 20).open(options).unwrap();
        let db = store.db();
        let make = |name: &str| {
            let map = db.map(name, MapOptions::new()).unwrap();
            fill(&map, 0..2000, 0);
            order_of(&map)
        };
        fill(&store, 0..2000, 0);
        let mut orders = vec![order_of(&store), make("one"), make("two")];
        assert!(db.drop_map("one").unwrap());
        db.reclaim_dropped().unwrap();
        orders.push(make("one"));
        assert_sound(&store);
        for (at, order) in orders.iter().enumerate() {
            let same = |other: &&Vec<Vec<u8>>| {
                other.iter().zip(order).filter(|it| it.0 == it.1).count() > 100
            };
            assert_eq!(orders[at + 1..].iter().filter(same).count(), 0);
        }
        orders
    };
    for kind in common::every_index() {
        let options = options().index(kind);
        assert_eq!(
            orders(&options),
            orders(&options),
            "a seed that is given makes runs repeatable"
        );
    }
    let random = common::options().capacity(256 << 20).extent_size(64 << 10);
    assert_ne!(orders(&random), orders(&random));
}

/// Batches, and what recovery makes of them, find keys by the seed of their map.
#[test]
fn maps_are_the_same_after_each_kind_of_shutdown() {
    for close in [true, false] {
        let memory = Kept::new(256 << 20);
        let store = memory.open(&options()).unwrap();
        fill(&store.db().map("one", MapOptions::new()).unwrap(), 0..500, 0);
        let before = order_of(&store.db().map("one", existing()).unwrap());
        if close {
            store.db().clone().close().unwrap();
        }
        drop(store);
        // The seed that is given now is of no importance.
        let store = memory.open(&options().seed(77)).unwrap();
        let one = store.db().map("one", existing()).unwrap();
        assert_eq!(order_of(&one), before);
        assert_filled(&one, 0..500, 0);
        fill(&one, 0..600, 1);
        assert_filled(&one, 0..600, 1);
        store.db().recover().unwrap();
        assert_sound(&store);
    }
}

/// A changed bit of a seed would make all keys of its map unreachable.
#[test]
fn a_damaged_seed_is_noticed() {
    let options = options().index(IndexKind::Clht);
    let template = Kept::new(16 << 20);
    let options = options.capacity(16 << 20);
    let store = template.open(&options).unwrap();
    fill(&store, 0..10, 0);
    fill(&store.db().map("one", MapOptions::new()).unwrap(), 0..10, 1);
    store.db().clone().close().unwrap();
    drop(store);
    const ROOTS: u64 = 8192 + 8 * 64;
    let offset = |word: u64| word & ((1 << 48) - 1);
    let catalogue = offset(template.word(ROOTS + 14 * 8));
    let own = |at: u64| offset(template.word(at)) == at && template.word(at) >> 48 != 0;
    let descriptors: Vec<u64> = (0..template.len()).step_by(8).filter(|&at| own(at)).collect();
    assert!(descriptors.len() == 2 && descriptors.contains(&catalogue), "{descriptors:x?}");
    for descriptor in descriptors {
        for at in [descriptor, descriptor + 64, descriptor + 72] {
            let right = template.word(at);
            for bit in 0..64 {
                template.set_word(at, right ^ 1 << bit);
                let memory = template.copy();
                let store = memory.open(&options).unwrap();
                let error = store.db().map("one", existing()).unwrap_err();
                assert!(error.is_damaged(), "{at:#x}, bit {bit}: {error}");
                assert!(!store.db().check(false).unwrap().is_sound());
                assert_filled(&store, 0..10, 0);
            }
            template.set_word(at, right);
        }
    }
}

/// A map that is dropped while all maps are walked through is passed over.
#[test]
fn walks_pass_over_maps_that_are_dropped() {
    type Walk = fn(&Map<Sim>);
    let walks: [Walk; 4] = [
        |store| {
            let report = store.db().check(true).unwrap();
            assert_eq!(report.records - 1, store.len() + 500, "{report}");
        },
        |store| _ = store.db().purge().unwrap(),
        |store| _ = store.db().compact().unwrap(),
        |store| _ = store.db().purge_if_due().unwrap(),
    ];
    for walk in walks {
        let memory = Kept::new(64 << 20);
        let store = memory.open(&options()).unwrap();
        let [gone, kept] =
            ["gone", "kept"].map(|name| store.db().map(name, MapOptions::new()).unwrap());
        fill(&store, 0..3000, 0);
        fill(&gone, 0..500, 1);
        fill(&kept, 0..500, 2);
        // Something to compact.
        (0..3000).filter(|number| number % 8 != 0).for_each(|number| {
            store.delete(&key_of(number)).unwrap();
        });
        let (db, dropped) = (store.db().clone(), Arc::new(AtomicBool::new(false)));
        let done = dropped.clone();
        memory.at_next_prefetch(move || {
            let drop_map = || done.store(db.drop_map("gone").unwrap(), SeqCst);
            std::thread::scope(|threads| threads.spawn(drop_map).join().unwrap());
        });
        walk(&store);
        if !dropped.load(SeqCst) {
            store.db().drop_map("gone").unwrap();
        }
        assert_filled(&kept, 0..500, 2);
        store.db().reclaim_dropped().unwrap();
        assert_sound(&store);
    }
}

#[test]
fn records_of_all_maps_move_together() {
    let memory = Kept::new(64 << 20);
    let options = Options::small(64 << 20).index(common::index()).seed(9);
    let store = memory.open(&options).unwrap();
    let names = ["one", "two", "three"];
    let maps = names.map(|name| store.db().map(name, MapOptions::new()).unwrap());
    for number in 0..9000 {
        fill(&maps[number as usize % 3], number..number + 1, 4);
    }
    for number in (0..9000).filter(|number| number % 10 != 0) {
        assert!(maps[number as usize % 3].delete(&key_of(number)).unwrap());
    }
    let cas = |map: &Map<Sim>| {
        let mut ids = BTreeMap::new();
        let shown = map.for_each(|item| {
            let item = item.unwrap();
            assert!(is_value_of(item.key, item.value));
            assert_eq!(ids.insert(item.key.to_vec(), item.cas), None);
            ControlFlow::Continue(())
        });
        shown.unwrap();
        ids
    };
    let before = maps.each_ref().map(cas);
    store.db().clone().close().unwrap();
    drop((store, maps));
    // They were not opened since.
    let store = memory.open(&options).unwrap();
    let extent_bytes = store.space().unwrap().extent_bytes;
    assert!(store.db().compact().unwrap() > 100);
    assert!(store.space().unwrap().extent_bytes < extent_bytes / 2);
    for (name, before) in names.iter().zip(before) {
        assert_eq!(cas(&store.db().map(name, existing()).unwrap()), before);
    }
    assert_sound(&store);
}

/// Expired and flushed records are also removed from maps that were not opened since.
#[test]
fn expired_records_are_removed_from_all_maps() {
    let (memory, clock) = (Kept::new(64 << 20), Clock::manual(common::at(1000)));
    let options = options().clock(clock.clone());
    let store = memory.open(&options).unwrap();
    let mortal = store.db().map("mortal", MapOptions::new()).unwrap();
    for number in 0..50 {
        let meta = common::meta(0, if number < 20 { 2000 } else { 0 });
        mortal.set(&key_of(number)).meta(meta).put(b"value").unwrap();
    }
    let flushed = store.db().map("flushed", MapOptions::new()).unwrap();
    fill(&flushed, 0..30, 1);
    flushed.expire_all_at(common::at(2000)).unwrap();
    store.into_db().close().unwrap();
    let store = memory.open(&options).unwrap();
    assert_eq!(store.db().purge().unwrap(), 0);
    assert_eq!(store.db().purge_if_due().unwrap(), 0);
    clock.set(common::at(2000));
    assert_eq!(store.db().purge_if_due().unwrap(), 50);
    assert_eq!(store.db().map("mortal", existing()).unwrap().len(), 30);
    assert_eq!(store.db().map("flushed", existing()).unwrap().len(), 0);
    assert_sound(&store);
}
