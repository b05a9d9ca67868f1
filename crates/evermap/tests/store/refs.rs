//! Borrowed values: when values are borrowed, and that they stay unchanged whatever happens to
//! their key.

use std::thread;

use crate::common::{self, Kept, value_of};
use evermap::{Batch, Clock, Error, Map, MapOptions, OnSuspect, Options};
use evermap_pm::medium::Medium;
use evermap_pm::region::Identity;
use evermap_pm::sim::Sim;

const KEY: &[u8] = b"key";
const LEN: usize = 10_000;
const CAPACITY: u64 = 32 << 20;
/// The time at which the clock of the tests starts.
const NOW: u64 = 1000;

fn options() -> Options {
    common::small(CAPACITY)
}

/// Returns [`options`] with the promise that no other program writes to the file.
fn promised() -> Options {
    // SAFETY: the memory of the tests belongs to one store at a time, and is not damaged while
    // values are borrowed.
    unsafe { options().assume_exclusive_file() }
}

fn value() -> Vec<u8> {
    value_of(KEY, 1, LEN)
}

/// Creates a store in memory, which lends values, and its clock.
fn store() -> (Map<Sim>, Clock) {
    let clock = Clock::manual(common::at(NOW));
    let medium = common::exclusive(CAPACITY);
    let options = options().clock(clock.clone());
    (common::create_medium(medium, Identity::default(), &options).unwrap(), clock)
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

/// Reuses space that has become free, with bytes that differ from those of [`value`].
fn reuse(store: &Map<Sim>) {
    let fillers = (0..300u32).map(u32::to_le_bytes);
    fillers.clone().for_each(|key| store.put(&key, &[0xee; LEN]).unwrap());
    fillers.for_each(|key| assert!(store.delete(&key).unwrap()));
}

/// Borrows a value during `change`, which another thread makes to `map`, until `is_made` returns
/// `true`. The change may wait for the guard afterwards.
fn held_through(
    name: &str,
    store: &Map<Sim>,
    map: &Map<Sim>,
    change: impl FnOnce() + Send,
    is_made: impl Fn() -> bool,
) {
    map.set(KEY).meta(common::meta(7, NOW + 10)).put(&value()).unwrap();
    let before = store.space().unwrap().allocated_bytes;
    let held = map.get_ref(KEY).unwrap().unwrap();
    assert!(
        held.is_borrowed() && (held.flags(), held.expires_at()) == (7, Some(common::at(NOW + 10))),
        "{name}"
    );
    let cas = held.cas();
    thread::scope(|threads| {
        let changing = threads.spawn(change);
        while !changing.is_finished() && !is_made() {
            thread::yield_now();
        }
        assert!(is_made(), "{name}");
        reuse(store);
        assert!(held[..] == value()[..], "{name}");
        assert!(store.stat().epoch.bytes_waiting >= LEN, "{name}");
        assert_eq!(held.cas(), cas);
        drop(held);
        changing.join().unwrap();
    });
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{name}: {report}");
    let stat = store.space().unwrap();
    assert_eq!(store.stat().epoch.bytes_waiting, 0, "{name}");
    // The catalogue and the index of a dropped map are freed, too; the index of the default map may
    // have grown.
    assert!(stat.allocated_bytes <= before + LEN as u64, "{name}: {before} {stat:?}");
}

#[test]
fn a_borrowed_value_stays_through_every_change_of_its_key() {
    type Change = fn(&Map<Sim>);
    let changes: [(&str, Change); 7] = [
        ("put", |map| map.put(KEY, &[1; LEN]).unwrap()),
        ("remove", |map| assert!(map.delete(KEY).unwrap())),
        ("append", |map| assert!(map.append(KEY, b"more").unwrap() > 0)),
        ("modify", |map| {
            let _ = map.modify(KEY, |_| evermap::Edit::Value(vec![2; LEN])).unwrap();
        }),
        ("batch", |map| drop(map.apply(Batch::new().put(KEY, &[3; LEN])).unwrap())),
        ("batch that removes", |map| drop(map.apply(Batch::new().remove(KEY)).unwrap())),
        ("touch and put", |map| {
            assert!(map.touch(KEY, common::at(NOW + 99)).unwrap());
            map.put(KEY, &[4; LEN]).unwrap();
        }),
    ];
    for (name, change) in changes {
        let (store, _) = store();
        let is_made = || store.get(KEY).unwrap() != Some(value());
        held_through(name, &store, &store, || change(&store), is_made);
    }
}

#[test]
fn a_borrowed_value_stays_when_its_record_expires_or_is_flushed() {
    let (store, clock) = store();
    let expire = || {
        clock.set(common::at(NOW + 10));
        store.db().purge().unwrap();
    };
    held_through("expiry", &store, &store, expire, || store.records().value == 0);
    let (store, _) = self::store();
    let flush = || {
        store.clear().unwrap();
        store.db().purge().unwrap();
    };
    held_through("flush", &store, &store, flush, || store.records().value == 0);
}

#[test]
fn a_borrowed_value_stays_when_its_map_is_dropped() {
    let (store, _) = store();
    let map = store.db().map("users", MapOptions::new()).unwrap();
    let drop_map = || {
        store.db().drop_map("users").unwrap();
        store.db().reclaim_dropped().unwrap();
    };
    map.put(KEY, &value()).unwrap();
    let held = map.get_ref(KEY).unwrap().unwrap();
    thread::scope(|threads| {
        let dropping = threads.spawn(drop_map);
        while matches!(map.get(KEY), Ok(Some(_))) {
            thread::yield_now();
        }
        reuse(&store);
        assert!(held[..] == value()[..]);
        assert!(!dropping.is_finished(), "it waits for the guard");
        drop(held);
        dropping.join().unwrap();
    });
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn a_borrowed_value_stays_when_its_record_is_moved() {
    let (store, _) = store();
    for key in 0..3000 {
        store.put(&key_of(key), &value_of(&key_of(key), 1, 70)).unwrap();
    }
    for key in (0..3000).filter(|key| key % 10 != 0) {
        store.delete(&key_of(key)).unwrap();
    }
    let reader = store.reader().unwrap();
    let all: Vec<_> = (0..3000).step_by(10).collect();
    let held: Vec<_> = all.iter().map(|&key| reader.get(&key_of(key)).unwrap().unwrap()).collect();
    let address = |value: &[u8]| value.as_ptr().addr();
    let before: Vec<_> = held.iter().map(|value| address(value)).collect();
    thread::scope(|threads| {
        assert!(threads.spawn(|| store.db().compact().unwrap()).join().unwrap() > 0);
    });
    reuse(&store);
    let has_moved = |(key, before): (&u64, &usize)| {
        address(&reader.get(&key_of(*key)).unwrap().unwrap()) != *before
    };
    assert!(all.iter().zip(&before).any(has_moved));
    for (&key, value) in all.iter().zip(&held) {
        assert!(value[..] == value_of(&key_of(key), 1, 70)[..]);
    }
    drop(held);
    drop(reader);
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(store.stat().epoch.bytes_waiting, 0);
}

/// A sweep frees old blocks, but must not free the borrowed one.
#[test]
fn a_borrowed_value_stays_through_a_sweep() {
    let memory = Kept::new(CAPACITY);
    let killed = memory.open(&options()).unwrap();
    killed.put(KEY, &value()).unwrap();
    drop(killed);
    let store = memory.open(&promised()).unwrap();
    let held = store.get_ref(KEY).unwrap().unwrap();
    assert!(held.is_borrowed());
    store.delete(KEY).unwrap();
    thread::scope(|threads| {
        let sweeping = threads.spawn(|| store.db().recover().unwrap());
        for key in 0..300 {
            store.put(&key_of(key), &[0xee; LEN]).unwrap();
        }
        assert!(held[..] == value()[..]);
        assert!(!sweeping.is_finished(), "it waits for the guard");
        drop(held);
        sweeping.join().unwrap();
    });
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(store.space().unwrap().closed_bytes, 0);
}

#[test]
fn a_borrowed_value_prevents_its_thread_from_closing() {
    let (store, _) = store();
    store.put(KEY, &value()).unwrap();
    let held = store.get_ref(KEY).unwrap().unwrap();
    assert!(matches!(store.db().clone().close(), Err(Error::GuardHeld { operation: "close" })));
    assert_eq!(held.into_vec(), value());
    store.db().clone().close().unwrap();
    assert!(matches!(store.get_ref(KEY), Err(Error::Closed)));
}

#[test]
fn a_copy_holds_no_guard() {
    let memory = Kept::new(CAPACITY);
    let store = memory.open(&options()).unwrap();
    store.put(KEY, &value()).unwrap();
    let copy = store.get_ref(KEY).unwrap().unwrap();
    assert!(!copy.is_borrowed());
    store.db().clone().close().unwrap();
    assert!(copy[..] == value()[..]);
    assert_eq!(copy.into_vec(), value());
}

#[test]
fn a_file_lends_values_after_a_promise_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    for (options, borrowed) in [(options(), false), (promised(), true), (options(), false)] {
        let map = common::open_file(&path, options).unwrap();
        map.put(KEY, &value()).unwrap();
        for value_ref in [map.get_ref(KEY).unwrap(), map.reader().unwrap().get(KEY).unwrap()] {
            let value_ref = value_ref.unwrap();
            assert_eq!(value_ref.is_borrowed(), borrowed);
            assert!(value_ref[..] == value()[..]);
        }
        assert!(map.get_ref(b"other").unwrap().is_none());
        map.db().clone().close().unwrap();
    }
}

/// Memory that had contents before the store was opened may be damaged, because safe code can store
/// anything there.
#[test]
fn memory_lends_values_if_its_store_was_created_here() {
    for creates in [true, false] {
        let memory = Kept::new(CAPACITY).claiming_to_be_exclusive();
        if !creates {
            memory.open(&options()).unwrap().db().clone().close().unwrap();
        }
        let store = memory.open(&options()).unwrap();
        store.put(KEY, &value()).unwrap();
        assert_eq!(store.get_ref(KEY).unwrap().unwrap().is_borrowed(), creates);
    }
}

#[test]
fn a_suspect_store_lends_nothing() {
    let memory = Kept::new(CAPACITY);
    memory.open(&promised()).unwrap().put(KEY, &value()).unwrap();
    let later = Identity { boot: [1, 2], ..Identity::default() };
    let options = promised().on_suspect(OnSuspect::Salvage);
    let store = common::open_medium((*memory).clone(), later, &options).unwrap();
    assert!(store.stat().suspect);
    assert!(!store.get_ref(KEY).unwrap().unwrap().is_borrowed());
}

#[test]
fn a_borrowed_value_is_verified() {
    for verifies in [true, false] {
        let memory = Kept::new(CAPACITY);
        let store = memory.open(&promised().verify_reads(verifies)).unwrap();
        store.put(KEY, &value()).unwrap();
        let first = u64::from_le_bytes(value()[5..13].try_into().unwrap());
        // The key takes three bytes, so the value's sixth byte begins a word.
        let at = (0..memory.len()).step_by(8).find(|&at| memory.word(at) == first).unwrap();
        memory.set_word(at, !first);
        match store.get_ref(KEY) {
            Ok(found) => assert!(!verifies && found.unwrap()[..] != value()[..]),
            Err(error) => assert!(verifies && error.is_damaged(), "{error}"),
        }
        assert_eq!(store.stat().damage_met, u64::from(verifies));
    }
}

/// A borrowed value is aligned as its key's length is, up to 16 bytes, however long both are.
#[test]
fn borrowed_values_are_aligned_as_the_length_of_their_key_is() {
    let map = evermap::Evermap::in_memory(evermap::Options::new()).unwrap().default_map();
    for len in (0..5000).chain([70_000, 3 << 20]) {
        for key_len in [2, 4, 8, 16, 32, 48, 256] {
            let key = vec![b'k'; key_len];
            map.put(&key, vec![1; len]).unwrap();
            let value = map.get_ref(&key).unwrap().unwrap();
            assert!(value.is_borrowed());
            let alignment = key_len.min(16);
            assert_eq!(value.as_ptr() as usize % alignment, 0, "{key_len}, {len}");
        }
    }
}
