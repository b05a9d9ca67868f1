//! Guards: there can be any number of them, what a thread that holds one may do, and what waits for
//! them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use crate::common;
use evermap::{Batch, Edit, Error, Map, MapOptions, Options, Result};
use evermap_pm::region::Identity;
use evermap_pm::sim::Sim;

/// Opens a store without background threads, so that all guards are the test's own.
fn bare() -> Map<Sim> {
    let medium = common::exclusive(256 << 20);
    let options = common::options().capacity(256 << 20).extent_size(64 << 10);
    common::create_medium(medium, Identity::default(), &options).unwrap()
}

/// All threads are inside a closure, and have a reader, before any of them makes a lookup.
#[test]
fn any_number_of_threads_look_up_inside_closures() {
    const THREADS: usize = 520;
    let map = common::in_memory(common::options()).unwrap();
    (0..10u32).for_each(|key| map.put(&key.to_le_bytes(), b"1").unwrap());
    let (map, all) = (&map, &Barrier::new(THREADS));
    thread::scope(|threads| {
        for _ in 0..THREADS {
            let body = move || {
                let mut seen = 0;
                map.for_each(|item| {
                    let key = item.unwrap().key;
                    let reader = map.reader().unwrap();
                    if seen == 0 {
                        all.wait();
                    }
                    assert!(map.get(key).unwrap().is_some());
                    assert!(reader.get(key).unwrap().is_some());
                    if seen == 0 {
                        all.wait();
                    }
                    seen += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(seen, 10);
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(threads, body).unwrap();
        }
    });
}

#[test]
fn any_number_of_readers_and_iterators_nest_in_one_thread() {
    let store = bare();
    store.put(b"key", b"value").unwrap();
    let readers: Vec<_> = (0..10_000).map(|_| store.reader().unwrap()).collect();
    let mut iterators: Vec<_> = (0..300).map(|_| store.iter()).collect();
    assert!(iterators.iter_mut().all(|iterator| iterator.next().is_some()));
    assert!(readers.iter().all(|reader| reader.get(b"key").unwrap().is_some()));
    assert_eq!(store.stat().epoch.guards, 10_000);
    drop(readers);
    assert_eq!(store.stat().epoch.guards, 0, "paused iterators hold none");
    store.into_db().close().unwrap();
}

/// What the thread holds while an operation is called.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Held {
    Nothing,
    Guard,
    /// A guard, while the key is being modified.
    Key,
}

const KEY: &[u8] = b"key";

type Within = fn(&Map, &mut dyn FnMut());
type Operation = fn(&Map) -> Result<()>;

/// Where code of a caller runs, and what its thread holds there. The result of the method does not
/// matter, because the store may have been closed.
const PLACES: &[(&str, Held, Within)] = &[
    ("reader", Held::Guard, |map, run| {
        let reader = map.reader().unwrap();
        run();
        drop(reader);
    }),
    ("get_many", Held::Guard, |map, run| {
        let _ = map.get_many(&[KEY], |_, _| {
            run();
            ControlFlow::Continue(())
        });
    }),
    ("get_together", Held::Guard, |map, run| {
        let _ = map.get_together(&[KEY], |_, _| {
            run();
            ControlFlow::Continue(())
        });
    }),
    ("visit", Held::Guard, |map, run| {
        let _ = map.scan(..).unwrap().limit(1).visit(|_| {
            run();
            ControlFlow::Continue(())
        });
    }),
    ("modify", Held::Key, |map, run| {
        let _ = map.modify(KEY, |_| {
            run();
            Edit::Keep
        });
    }),
    ("modify another key", Held::Guard, |map, run| {
        let _ = map.modify(b"another", |_| {
            run();
            Edit::Keep
        });
    }),
    ("modify in modify", Held::Key, |map, run| {
        let _ = map.modify(KEY, |_| {
            let _ = map.modify(b"another", |_| {
                run();
                Edit::Keep
            });
            Edit::Keep
        });
    }),
    ("the same key of another map", Held::Guard, |map, run| {
        let other = map.db().map("other", MapOptions::new()).unwrap();
        let _ = other.modify(KEY, |_| {
            run();
            Edit::Keep
        });
    }),
    ("for_each", Held::Nothing, |map, run| {
        let _ = map.for_each(|_| {
            run();
            ControlFlow::Break(())
        });
    }),
    ("a begun iterator", Held::Nothing, |map, run| {
        let mut iterator = map.iter();
        iterator.next().unwrap().unwrap();
        run();
        let _ = iterator.next();
    }),
    ("a begun scan", Held::Nothing, |map, run| {
        let mut scan = map.scan(..).unwrap();
        scan.next().unwrap().unwrap();
        run();
        let _ = scan.next();
    }),
    ("get_with", Held::Nothing, |map, run| {
        map.get_with(KEY, |_| run()).unwrap();
    }),
    ("get_and_touch", Held::Nothing, |map, run| {
        map.cache().get_and_touch(KEY, None, |_| run()).unwrap();
    }),
];

/// Operations that wait for guards, or for other operations that do.
const WAITING: &[(&str, Operation)] = &[
    ("close", |map| map.db().clone().close()),
    ("check", |map| map.db().check(true).map(drop)),
    ("recover", |map| map.db().recover()),
    ("reclaim_dropped", |map| map.db().reclaim_dropped().map(drop)),
    ("purge", |map| map.db().purge().map(drop)),
    ("purge_if_due", |map| map.db().purge_if_due().map(drop)),
    ("compact", |map| map.db().compact().map(drop)),
];

/// Operations that change the key.
const CHANGING: &[(&str, Operation)] = &[
    ("put", |map| map.put(KEY, b"other")),
    ("put_with", |map| map.set(KEY).put(b"other").map(drop)),
    ("insert", |map| map.try_insert(KEY, b"other").map(drop)),
    ("update", |map| map.replace(KEY, b"other").map(drop)),
    ("compare_exchange", |map| map.compare_exchange(KEY, 1, b"other").map(drop)),
    ("remove", |map| map.delete(KEY).map(drop)),
    ("remove_if", |map| map.remove_if(KEY, 1).map(drop)),
    ("touch", |map| map.touch(KEY, evermap::Expiry::MAX).map(drop)),
    ("get_and_touch", |map| map.cache().get_and_touch(KEY, evermap::Expiry::MAX, |_| ()).map(drop)),
    ("modify", |map| map.modify(KEY, |_| Edit::Remove).map(drop)),
    ("fetch_add", |map| map.fetch_add(KEY, 1).map(drop)),
    ("append", |map| map.append(KEY, b"more").map(drop)),
    ("prepend", |map| map.prepend(KEY, b"more").map(drop)),
    ("apply", |map| map.apply(Batch::new().put(b"first", b"1").remove(KEY)).map(drop)),
];

/// Operations that do not wait for anything that their caller could hold.
const OTHERS: &[(&str, Operation)] = &[
    ("get", |map| map.get(KEY).map(drop)),
    ("get_into", |map| map.get_into(KEY, &mut Vec::new()).map(drop)),
    ("get_with", |map| map.get_with(KEY, |_| ()).map(drop)),
    ("contains", |map| map.contains(KEY).map(drop)),
    ("get_many", |map| map.get_many(&[KEY], |_, _| ControlFlow::Continue(()))),
    ("get_together", |map| map.get_together(&[KEY], |_, _| ControlFlow::Continue(()))),
    ("for_each", |map| map.for_each(|_| ControlFlow::Continue(()))),
    ("iter", |map| map.iter().try_for_each(|pair| pair.map(drop))),
    ("reader", |map| map.reader()?.get(KEY).map(drop)),
    ("scan", |map| map.scan(..)?.try_for_each(|pair| pair.map(drop))),
    ("visit", |map| map.scan(..)?.visit(|_| ControlFlow::Continue(()))),
    ("scan_relaxed", |map| map.scan_relaxed(..)?.try_for_each(|pair| pair.map(drop))),
    ("build_ordered", |map| map.build_ordered(1)),
    ("put another", |map| map.put(b"yet another", b"value")),
    ("remove another", |map| map.delete(b"yet another").map(drop)),
    ("apply to another", |map| map.apply(Batch::new().put(b"yet another", b"1")).map(drop)),
    ("the key of another map", |map| map.db().map("third", MapOptions::new())?.put(KEY, b"value")),
    ("map", |map| map.db().map("third", MapOptions::new()).map(drop)),
    ("maps", |map| map.db().maps().map(drop)),
    ("drop_map", |map| map.db().drop_map("dropped").map(drop)),
    ("clear", |map| map.clear()),
    ("space", |map| map.space().map(drop)),
    ("summary", |map| {
        map.stat();
        map.len();
        map.bytes();
        Ok(())
    }),
];

/// Every operation, at every place where code of a caller can run, succeeds or returns an error.
/// None waits for itself.
#[test]
fn whatever_a_thread_holds_every_operation_ends() {
    for &(place, held, within) in PLACES {
        for (operations, refused_by) in
            [(WAITING, &[Held::Guard, Held::Key][..]), (CHANGING, &[Held::Key]), (OTHERS, &[])]
        {
            for &(name, operation) in operations {
                let map = common::in_memory(common::options().ordered(true)).unwrap();
                map.fetch_add(KEY, 7).unwrap();
                drop(map.db().map("dropped", MapOptions::new()).unwrap());
                let mut answers = Vec::new();
                within(&map, &mut || answers.push(operation(&map)));
                assert!(!answers.is_empty(), "{name} in {place}");
                for answer in answers {
                    let refused = refused_by.contains(&held);
                    let as_expected = match &answer {
                        Ok(()) => !refused,
                        Err(Error::GuardHeld { operation }) => {
                            refused && name.starts_with(operation) && answer_names(&answer, name)
                        }
                        Err(Error::BeingModified { key }) => refused && key == "key",
                        Err(_) => false,
                    };
                    assert!(as_expected, "{name} in {place}: {answer:?}");
                }
                // What it was refused for has ended.
                assert!(!matches!(operation(&map), Err(Error::GuardHeld { .. })));
                assert!(!matches!(operation(&map), Err(Error::BeingModified { .. })));
            }
        }
    }
}

fn answer_names(answer: &Result<()>, name: &str) -> bool {
    let told = answer.as_ref().unwrap_err().to_string();
    told.contains("Reader") && name.starts_with(told.split(' ').next().unwrap())
}

/// A closure that tries to change its own key still determines the change, and one that panics
/// leaves nothing behind.
#[test]
fn modify_goes_on_after_a_refused_change() {
    let store = bare();
    let outcome = store.modify(KEY, |_| {
        let refused = store.put(KEY, b"from within").unwrap_err();
        assert!(refused.to_string().contains("key \"key\" is being modified"), "{refused}");
        Edit::Value(b"decided".to_vec())
    });
    assert!(outcome.unwrap().is_some());
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"decided"[..]));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = store.modify(KEY, |_| panic!("as planned"));
    }));
    assert!(panicked.is_err());
    store.put(KEY, b"afterwards").unwrap();
    assert!(store.db().check(true).unwrap().is_sound());
}

/// Paused iterators and scans hold nothing. After the store is closed they return one error.
#[test]
fn closing_does_not_wait_for_paused_iterators() {
    let map = common::in_memory(common::options().ordered(true)).unwrap();
    (0..100u32).for_each(|key| map.put(&key.to_be_bytes(), b"value").unwrap());
    let (mut iterator, mut scan) = (map.iter(), map.scan(..).unwrap());
    let mut limited = map.scan(..).unwrap();
    assert!(iterator.next().unwrap().is_ok());
    assert!(scan.next().unwrap().is_ok() && limited.next().unwrap().is_ok());
    map.db().clone().close().unwrap();
    assert!(matches!(iterator.next(), Some(Err(Error::Closed))));
    assert!(matches!(scan.next(), Some(Err(Error::Closed))));
    assert!(matches!(limited.next(), Some(Err(Error::Closed))));
    assert!((0..3).all(|_| iterator.next().is_none() && scan.next().is_none()));
    // They stay at their end.
    assert!(limited.limit(5).next().is_none());
    assert!(scan.reverse().next().is_none());
    let mut shown = 0;
    let ended = map.for_each(|_| {
        shown += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(ended, Err(Error::Closed)) && shown == 0);
}

/// A closure of `for_each` may close the store, or drop the map.
#[test]
fn a_walk_ends_where_the_store_is_closed() {
    for drops in [false, true] {
        let store = bare();
        let map = store.db().map("map", MapOptions::new()).unwrap();
        (0..100u32).for_each(|key| map.put(&key.to_be_bytes(), b"value").unwrap());
        let mut shown = 0;
        let ended = map.for_each(|item| {
            item.unwrap();
            shown += 1;
            if drops {
                assert!(store.db().drop_map("map").unwrap());
                assert_eq!(store.db().reclaim_dropped().unwrap(), 1);
            } else {
                store.db().clone().close().unwrap();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(shown, 1);
        match drops {
            true => assert!(matches!(ended, Err(Error::Dropped { .. }))),
            false => assert!(matches!(ended, Err(Error::Closed))),
        }
    }
}

/// Each key that is present throughout is shown once, whatever is replaced and removed meanwhile.
#[test]
fn a_walk_shows_what_is_there_throughout_exactly_once() {
    // Values that are too large for one page, values that fit into it, and both.
    for sizes in [[40_000, 40_000], [10, 10], [10, 40_000]] {
        let store = bare();
        let value = |key: u32, version: u8| vec![version; sizes[key as usize % 2] + key as usize];
        const KEYS: u32 = 1000;
        (0..KEYS).for_each(|key| store.put(&key.to_be_bytes(), &value(key, 1)).unwrap());
        let (mut seen, mut step) = (BTreeMap::new(), 0);
        let mut removed = Vec::new();
        store
            .for_each(|item| {
                let item = item.unwrap();
                let key = u32::from_be_bytes(item.key.try_into().unwrap());
                assert_eq!(item.value.len(), value(key, 0).len());
                assert!(item.value.iter().all(|&byte| byte == item.value[0]));
                assert!(seen.insert(key, item.value[0]).is_none(), "key {key} is shown twice");
                // A third is replaced meanwhile, some are removed, and all space of replaced
                // records is reused.
                for other in (step..KEYS).step_by(100) {
                    match other % 10 {
                        0 => drop(
                            store
                                .delete(&other.to_be_bytes())
                                .unwrap()
                                .then(|| removed.push(other)),
                        ),
                        1..4 => store.put(&other.to_be_bytes(), &value(other, 2)).unwrap(),
                        _ => {}
                    }
                }
                step += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        for key in (0..KEYS).filter(|key| key % 10 != 0) {
            assert!(seen.contains_key(&key), "key {key} is not shown, with values of {sizes:?}");
        }
        assert_eq!(removed.len() as u32, KEYS / 10);
        assert!(store.db().check(true).unwrap().is_sound());
    }
}

/// A paused iterator does not prevent the reuse of space of records that are replaced meanwhile.
#[test]
fn a_paused_iterator_does_not_prevent_reuse() {
    let store = bare();
    (0..100u32).for_each(|key| store.put(&key.to_be_bytes(), &[0; 10_000]).unwrap());
    let mut iterator = store.iter();
    iterator.next().unwrap().unwrap();
    let before = store.space().unwrap().extent_bytes;
    for round in 1..=20 {
        (0..100u32).for_each(|key| store.put(&key.to_be_bytes(), &[round; 10_000]).unwrap());
    }
    let after = store.space().unwrap().extent_bytes;
    assert!(after < before + 5_000_000, "20 million bytes were replaced: {before} to {after}");
    assert_eq!(iterator.count(), 99);
}

/// Returns the bytes that the file takes on the disk.
fn occupied(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// However long a reader lives, the size of the file is bounded, and the error of the writer names
/// the reader's thread. After the reader has ended, the writer continues, and the additional space
/// is returned to the file system.
#[test]
fn a_reader_that_is_forgotten_holds_writers_up() {
    const LIMIT: u64 = 32 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let map = common::open_file(&path, Options::new().reader_backlog(LIMIT)).unwrap();
    let overwrite = |rounds: u32| -> Result<()> {
        (0..rounds * 1000).try_for_each(|put| map.put(&(put % 1000).to_be_bytes(), &[7; 4000]))
    };
    overwrite(2).unwrap();
    let small = occupied(&path);
    let (held, go_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|threads| {
        let forgetful = thread::Builder::new().name("forgetful".into());
        let body = || {
            let reader = map.reader().unwrap();
            held.wait();
            go_on.wait();
            // Its own mutations are refused immediately, and reads continue to work.
            let error = map.put(b"key", b"value").unwrap_err();
            assert!(matches!(&error, Error::HeldUp(_)), "{error}");
            assert!(reader.get(&0u32.to_be_bytes()).unwrap().is_some());
            assert!(map.get(b"key").unwrap().is_none());
        };
        let forgetful = forgetful.spawn_scoped(threads, body).unwrap();
        held.wait();
        let error = overwrite(1000).unwrap_err();
        let Error::HeldUp(backlog) = &error else { panic!("{error}") };
        assert!(backlog.waiting > backlog.limit && backlog.limit >= LIMIT);
        assert_eq!(backlog.holder.as_ref().unwrap().name.as_deref(), Some("forgetful"));
        assert!(error.to_string().contains("\"forgetful\""), "{error}");
        // The limit or a quarter of the file, and what the file grows in advance.
        assert!(occupied(&path) < small + 3 * LIMIT, "{small} to {}", occupied(&path));
        go_on.wait();
        forgetful.join().unwrap();
    });
    overwrite(2).unwrap();
    map.db().compact().unwrap();
    let compacted = occupied(&path);
    assert!(map.db().check(true).unwrap().is_sound());
    map.into_db().close().unwrap();
    let closed = occupied(&path);
    assert!(compacted < small + (24 << 20), "{small} before, {compacted} after");
    assert!(closed < small + (8 << 20), "{small} before, {closed} when closed");
    let map = common::open_file(&path, Options::new()).unwrap();
    assert!(map.stat().clean_open && map.db().check(true).unwrap().is_sound());
    assert_eq!(map.len(), 1000);
}
