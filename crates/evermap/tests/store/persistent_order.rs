//! The order of keys in the file: from the first moment on, after every end of the process, and of
//! files that did not have it.

use std::thread;

use crate::common::{self, Kept, assert_sound, value_of};
use crate::ordered::{assert_scans, key_of, scan_agrees};
use evermap::{Batch, Error, Map, MapOptions, Options, Order, OrderedState};
use evermap_pm::sim::Sim;

fn options(order: Order) -> Options {
    common::options().capacity(64 << 20).extent_size(64 << 10).ordered(order)
}

fn put(store: &Map<Sim>, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let key = key_of(number);
        store.put(&key, &value_of(&key, number, 20)).unwrap();
    }
}

fn pairs(numbers: impl IntoIterator<Item = u64>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |number| (key_of(number), value_of(&key_of(number), number, 20));
    numbers.into_iter().map(pair).collect()
}

fn is_ready(store: &Map<Sim>) -> bool {
    matches!(store.stat().persistent_order, Some(OrderedState::Ready(_)))
}

/// Nothing is built after a process that closed nothing, and the option need not be repeated.
#[test]
fn scans_need_nothing_to_be_built() {
    for kind in common::every_index() {
        let memory = Kept::new(64 << 20);
        let store = memory.open(&options(Order::Persistent).index(kind)).unwrap();
        let named = store.db().map("named", MapOptions::new()).unwrap();
        put(&store, 0..2000);
        put(&named, 500..600);
        (0..2000).step_by(2).for_each(|number| assert!(store.remove(&key_of(number)).unwrap()));
        let batch = (3000..3010).fold(Batch::new(), |mut batch, number| {
            batch.put(&key_of(number), &value_of(&key_of(number), number, 20));
            batch.remove(&key_of(number - 2999));
            batch
        });
        assert!(store.apply(&batch).unwrap().is_done());
        let expected = pairs((11..2000).step_by(2).chain(3000..3010));
        for order in [Order::Persistent, Order::None, Order::Volatile] {
            // As after a kill: the one before was not closed.
            let store = memory.open(&options(order)).unwrap();
            assert!(is_ready(&store) && store.stat().ordered.is_none());
            assert_scans(&store, &expected);
            let named = store.db().map("named", MapOptions::new()).unwrap();
            assert_scans(&named, &pairs(500..600));
            store.db().recover().unwrap();
            assert_sound(&store);
        }
        let store = memory.open(&options(Order::None)).unwrap();
        store.into_db().close().unwrap();
        let store = memory.open(&options(Order::None)).unwrap();
        assert_scans(&store, &expected);
        drop(named);
        assert!(store.db().drop_map("named").unwrap());
        store.db().reclaim_dropped().unwrap();
        assert_sound(&store);
    }
}

/// A file without it gets it, beside writers that have begun. A process that ends before that is
/// done changes nothing.
#[test]
fn a_file_without_order_is_filled_beside_writers() {
    let memory = Kept::new(64 << 20);
    let store = memory.open(&options(Order::None)).unwrap();
    put(&store, 0..3000);
    assert!(matches!(store.scan(..), Err(Error::NotOrdered)));
    let store = memory.open(&options(Order::Persistent)).unwrap();
    assert_eq!(store.stat().persistent_order, Some(OrderedState::Pending));
    put(&store, 3000..3500);
    store.remove(&key_of(7)).unwrap();
    // Killed before anything was filled.
    let store = memory.open(&options(Order::None)).unwrap();
    assert_eq!(store.stat().persistent_order, Some(OrderedState::Pending));
    let (writer, remover) = (store.clone(), store.clone());
    thread::scope(|threads| {
        threads.spawn(|| put(&writer, 3500..6000));
        threads.spawn(move || {
            (1000..2000).for_each(|number| assert!(remover.remove(&key_of(number)).unwrap()));
        });
        store.build_ordered(1).unwrap();
    });
    assert!(is_ready(&store));
    let left = (0..1000).chain(2000..6000).filter(|&number| number != 7);
    assert_scans(&store, &pairs(left));
    assert_sound(&store);
}

/// Keys come and go on several threads, the same ones.
#[test]
fn threads_that_undo_each_other_leave_an_order_that_agrees() {
    for kind in common::every_index() {
        let memory = Kept::new(64 << 20);
        let store = memory.open(&options(Order::Persistent).index(kind)).unwrap();
        thread::scope(|threads| {
            for thread in 0..4u64 {
                let store = store.clone();
                threads.spawn(move || {
                    for round in 0..4000 {
                        let number = round * 7 % 13;
                        match (round + thread) % 3 {
                            0 => drop(store.remove(&key_of(number)).unwrap()),
                            _ => put(&store, [number]),
                        }
                    }
                });
            }
        });
        scan_agrees(&store).unwrap();
        assert_sound(&store);
    }
}

/// Where there is no space for a key in the order, it is not bound either.
#[test]
fn a_full_file_has_all_of_its_keys_in_order() {
    for capacity in (0..20).map(|step| (256 << 10) + step * 12_000) {
        let memory = Kept::new(capacity);
        let options = Options::small(1 << 20).ordered(Order::Persistent);
        let store = memory.open(&options).unwrap();
        for round in 0..3 {
            let fits = |number: &u64| {
                let refused = store.put(&key_of(*number), b"").err();
                refused.map(|error| assert!(error.is_no_space(), "{error}")).is_none()
            };
            let stored = (round * 100_000..).take_while(fits).count() as u64;
            assert!(stored > 10);
            scan_agrees(&store).unwrap();
            assert_sound(&store);
            for number in round * 100_000..round * 100_000 + stored {
                assert!(store.remove(&key_of(number)).unwrap());
            }
            assert_eq!(store.scan(..).unwrap().count(), 0);
            assert_sound(&store);
        }
    }
}

/// The tree follows from the hash index, so a file whose tree is lost can be used all the same.
#[test]
fn a_lost_order_is_made_anew() {
    let memory = Kept::new(64 << 20);
    let store = memory.open(&options(Order::Persistent)).unwrap();
    put(&store, 0..1000);
    let at = cell(&memory);
    for wrong in [memory.word(at) ^ 8, 0xffff, u64::MAX] {
        let memory = memory.copy();
        memory.set_word(at, wrong);
        let store = memory.open(&options(Order::None)).unwrap();
        assert!(matches!(store.scan(..), Err(Error::NotOrdered)));
        assert_eq!(store.get(&key_of(1)).unwrap(), Some(value_of(&key_of(1), 1, 20)));
        let store = memory.open(&options(Order::Persistent)).unwrap();
        assert_scans(&store, &pairs(0..1000));
        store.db().recover().unwrap();
        assert_sound(&store);
    }
}

/// Returns the offset of the word that names the order of the default map: the root slots follow
/// each other, and only those of the index and of the order are in use.
fn cell(memory: &Kept) -> u64 {
    let without = Kept::new(64 << 20);
    without.open(&options(Order::None).seed(5)).unwrap();
    let with = Kept::new(64 << 20);
    with.open(&options(Order::Persistent).seed(5)).unwrap();
    let differ =
        (8192..12_288).step_by(8).filter(|&at| without.word(at) == 0 && with.word(at) != 0);
    let found: Vec<u64> = differ.collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_ne!(memory.word(found[0]), 0);
    found[0]
}
