//! The order of keys in the file: from the first moment on, after every end of the process, and of
//! files that did not have it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use crate::common::{self, Kept, assert_sound, value_of};
use crate::ordered::{assert_scans, key_of, scan_agrees};
use evermap::{Batch, DamageMark, Error, Map, MapOptions, Options, Order, OrderedState};
use evermap_index::testkit::tier;
use evermap_pm::sim::{Mutation, Sim};
use evermap_pm::{Medium, PmU64};

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
        (0..2000).step_by(2).for_each(|number| assert!(store.delete(&key_of(number)).unwrap()));
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
    store.delete(&key_of(7)).unwrap();
    // Killed before anything was filled.
    let store = memory.open(&options(Order::None)).unwrap();
    assert_eq!(store.stat().persistent_order, Some(OrderedState::Pending));
    let (writer, remover) = (store.clone(), store.clone());
    thread::scope(|threads| {
        threads.spawn(|| put(&writer, 3500..6000));
        threads.spawn(move || {
            (1000..2000).for_each(|number| assert!(remover.delete(&key_of(number)).unwrap()));
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
                            0 => drop(store.delete(&key_of(number)).unwrap()),
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
                assert!(store.delete(&key_of(number)).unwrap());
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

/// Returns memory with a store that was not closed, and whose order lacks three keys.
fn lacking() -> (Kept, Options) {
    let (memory, options) = (Kept::new(64 << 20), options(Order::Persistent));
    let store = memory.open(&options).unwrap();
    put(&store, 0..2000);
    memory.mutate(Some(Mutation::Planted("OR-1")));
    put(&store, 2000..2003);
    memory.mutate(None);
    (memory, options)
}

/// Keys that are bound and not in the order are found by the sweep, and entered. The file is marked
/// until it was verified.
#[test]
fn keys_that_are_missing_are_entered_by_the_sweep() {
    let (memory, options) = lacking();
    let store = memory.open(&options).unwrap();
    assert!(scan_agrees(&store).is_err());
    store.db().recover().unwrap();
    assert_eq!(store.stat().damage, DamageMark::Found);
    assert_scans(&store, &pairs(0..2003));
    assert_sound(&store);
    assert_eq!(store.stat().damage, DamageMark::None);
    // A process that ends in between loses none of this.
    let store = memory.open(&options).unwrap();
    store.db().recover().unwrap();
    assert_eq!(store.stat().damage, DamageMark::None);
    assert_scans(&store, &pairs(0..2003));
}

/// Only a check finds them in a file that was closed. Then the next opening enters them.
#[test]
fn keys_that_a_check_finds_missing_are_entered_by_the_next_opening() {
    let (memory, options) = (Kept::new(64 << 20), options(Order::Persistent));
    let store = memory.open(&options).unwrap();
    put(&store, 0..2000);
    memory.mutate(Some(Mutation::Planted("OR-1")));
    put(&store, 2000..2003);
    memory.mutate(None);
    store.into_db().close().unwrap();
    let store = memory.open(&options).unwrap();
    assert!(store.stat().clean_open);
    assert_eq!(store.db().check(false).unwrap().problems.len(), 3);
    store.into_db().close().unwrap();
    let store = memory.open(&options).unwrap();
    assert_eq!(store.stat().damage, DamageMark::Found);
    store.db().recover().unwrap();
    assert_scans(&store, &pairs(0..2003));
    assert_sound(&store);
    store.into_db().close().unwrap();
    assert!(memory.open(&options).unwrap().stat().clean_open);
}

/// A tree that cannot be read is replaced by the next opening, with any option.
#[test]
fn an_order_that_cannot_be_read_is_replaced() {
    let memory = Kept::new(64 << 20);
    let store = memory.open(&options(Order::Persistent)).unwrap();
    put(&store, 0..2000);
    drop(store);
    break_tree(&*memory);
    let store = memory.open(&options(Order::None)).unwrap();
    store.db().recover().unwrap_err();
    assert!(scan_agrees(&store).is_err());
    assert_eq!(store.get(&key_of(1)).unwrap(), Some(value_of(&key_of(1), 1, 20)));
    store.into_db().close().unwrap();
    let store = memory.open(&options(Order::None)).unwrap();
    put(&store, 2000..2010);
    assert!(!store.stat().clean_open);
    assert_eq!(store.stat().persistent_order, Some(OrderedState::Pending));
    store.db().recover().unwrap();
    assert_scans(&store, &pairs(0..2010));
    // What the tree before took is free again.
    assert_sound(&store);
    assert_eq!(store.stat().damage, DamageMark::None);
}

/// Nothing is missing while keys come and go beside the sweep.
#[test]
fn a_sweep_beside_writers_misses_no_key() {
    for kind in common::every_index() {
        let memory = Kept::new(64 << 20);
        let options = options(Order::Persistent).index(kind);
        put(&memory.open(&options).unwrap(), 0..3000);
        for round in 0..tier().choose(3, 30) {
            let store = memory.open(&options).unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|threads| {
                for thread in 0..2u64 {
                    let (store, done) = (store.clone(), &done);
                    threads.spawn(move || {
                        for step in 0.. {
                            let number = (thread * 7919 + step * 31 + round) % 6000;
                            match store.delete(&key_of(number)).unwrap() {
                                true if step % 3 == 0 => {}
                                _ => put(&store, [number]),
                            }
                            if done.load(SeqCst) {
                                break;
                            }
                        }
                    });
                }
                store.db().recover().unwrap();
                done.store(true, SeqCst);
            });
            assert_eq!(store.stat().damage, DamageMark::None, "{kind}: {}", store.stat());
        }
        assert_sound(&memory.open(&options).unwrap());
    }
}

/// Makes the tree of the only map with one lead to nothing, from the first symbol with a child on.
pub(crate) fn break_tree(medium: &impl Medium) {
    let cell = |at| medium.at::<PmU64>(at).expect("inside");
    let word = |at| medium.load(cell(at));
    let mut all = (0..medium.len()).step_by(8);
    let complete = all.find(|&at| word(at) == u64::from_le_bytes(*b"complete")).unwrap();
    let node = word(word(complete + 8) + 8);
    // After four words that every node begins with.
    let children = (0..256).map(|symbol| node + 32 + symbol * 8);
    let child = children.into_iter().find(|&at| word(at) & 0xffff_ffff_fff0 != 0).unwrap();
    medium.store(cell(child), word(child) ^ 1 << 40);
    medium.persist(cell(child));
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
