//! Values of the map: many at once, borrowed, and changed through references and entries.

use std::sync::Arc;

use evermap_index::testkit::{beside_readers, tier};
use evermap_pm::medium::Counter;
use evermap_pm::sim::Sim;
use evermap_pm::sim::rng::Rng;
use evermap_pm::{Error, ErrorKind, Medium};

use super::super::{Config, Entry, Geometry, Sizes, TinyMap, TinySizes, TrancheMap};
use super::{in_memory, pool};

fn tiny() -> TinyMap<Sim> {
    let pool = in_memory(64 << 20);
    TinyMap::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap()
}

/// Returns a value whose length decides its kind.
fn value(number: u64) -> Vec<u8> {
    let len = [0, 8, 13, 40, 57, 58, 64, 300, 5000][number as usize % 9];
    (0..len).map(|at: u64| (number + at) as u8).collect()
}

fn key(number: u64) -> Vec<u8> {
    number.to_le_bytes()[..[8, 5, 3][number as usize % 3]].to_vec()
}

fn check_get_many<G: Geometry>() {
    let pool = in_memory(64 << 20);
    let map = TrancheMap::<_, G>::create(pool.clone(), pool.root(0), Config::default());
    let map = map.unwrap();
    for number in 0..2000 {
        map.upsert(&key(number), &value(number)).unwrap();
    }
    let random = &mut Rng::new(7);
    for count in [0, 1, 31, 32, 33, 100] {
        let numbers: Vec<u64> = (0..count).map(|_| random.below(4000)).collect();
        let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
        let mut shown = 0;
        map.get_many(&keys, |place, found| {
            assert_eq!(place, shown);
            shown += 1;
            let number = numbers[place];
            let due = (number < 2000).then(|| value(number));
            assert_eq!(found.as_deref(), due.as_deref(), "{}: {number}", G::TRANCHE_BYTES);
            // It may use the map.
            assert_eq!(map.get(&keys[place]).unwrap(), due);
            true
        })
        .unwrap();
        assert_eq!(shown, count as usize);
    }
    let mut shown = 0;
    let keys = vec![key(1); 70];
    map.get_many(&keys, |_, _| {
        shown += 1;
        shown < 40
    })
    .unwrap();
    assert_eq!(shown, 40, "stopped on request");
}

#[test]
fn many_values_are_those_of_single_lookups() {
    check_get_many::<TinySizes>();
    check_get_many::<Sizes<4096, 4, 2>>();
    check_get_many::<Sizes<{ 32 << 10 }, 2, 0>>();
}

/// What a batch prefetches may change meanwhile.
#[test]
fn batches_beside_changes() {
    const KEYS: u64 = 40;
    let map = tiny();
    let value = |number: u64, round: u64| {
        let len = [8, 20, 35, 300][((number + round) % 4) as usize];
        [vec![number as u8], vec![round as u8; len - 1]].concat()
    };
    for number in 0..KEYS {
        map.upsert(&key(number), &value(number, 0)).unwrap();
    }
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let change = |round| {
        for number in 0..KEYS {
            map.upsert(&key(number), &value(number, round)).unwrap();
            let other = [key(number), round.to_le_bytes().to_vec()].concat();
            map.upsert(&other, &value(number, round)).unwrap();
        }
    };
    beside_readers(tier().choose(30, 200), change, || {
        map.get_many(&keys, |place, found| {
            let found = found.expect("never removed");
            let whole = found[1..].iter().all(|&byte| byte == found[1]);
            assert!(usize::from(found[0]) == place && whole);
            true
        })
        .unwrap();
    });
    assert_eq!(map.verify(), Vec::<String>::new());
}

#[test]
fn a_value_stays_what_it_was() {
    for lends in [false, true] {
        let map = tiny();
        // SAFETY: the memory is that of this process, and nothing else writes it.
        let map = if lends { unsafe { map.assume_exclusive_memory() } } else { map };
        for number in 0..200 {
            map.upsert(&key(number), &value(number)).unwrap();
        }
        let values: Vec<_> = (0..200).map(|number| map.get_ref(&key(number)).unwrap()).collect();
        assert!(map.get_ref(&key(1000)).unwrap().is_none());
        // Their memory must not be used again.
        for number in 0..200 {
            map.remove(&key(number)).unwrap();
            map.upsert(&key(number), &value(number + 4)).unwrap();
        }
        for (number, found) in (0..).zip(values) {
            let found = found.expect("was present");
            assert_eq!(found[..], value(number)[..], "{number}");
            let is_long = key(number).len() + found.len() > 40;
            assert_eq!(found.is_borrowed(), lends && is_long, "{number}");
        }
    }
}

/// A block whose bytes are wrong is an error, whether it is lent or copied.
#[test]
fn a_damaged_long_value_is_an_error() {
    for lends in [false, true] {
        let map = tiny();
        // SAFETY: the memory is that of this process, and is changed while nothing is borrowed.
        let map = if lends { unsafe { map.assume_exclusive_memory() } } else { map };
        let pattern = *b"patterns";
        map.upsert(b"key", &pattern.repeat(100)).unwrap();
        let m = map.pool().medium();
        let word = u64::from_le_bytes(pattern);
        let mut cells = (0..m.len() / 8).filter_map(|at| m.at::<evermap_pm::PmU64>(at * 8));
        // The key is in front of the value, so the pattern is shifted by three bytes.
        let shifted = word.rotate_left(24);
        let cell = cells.find(|cell| m.load(cell) == shifted).expect("the value is in memory");
        m.store(cell, shifted ^ 1);
        let is_damage = |error: Error| matches!(error.kind(), ErrorKind::Damaged { .. });
        assert!(is_damage(map.get_ref(b"key").unwrap_err()));
        assert!(is_damage(map.get(b"key").unwrap_err()));
        m.store(cell, shifted);
        assert!(map.get_ref(b"key").unwrap().is_some());
    }
}

#[test]
fn a_value_of_the_same_length_replaces_another() {
    let mut map = tiny();
    for number in 0..90 {
        map.upsert(&key(number), &value(number)).unwrap();
    }
    for number in 0..90 {
        let (key, old) = (key(number), value(number));
        let new: Vec<u8> = old.iter().map(|byte| byte ^ 0x55).collect();
        let mut found = map.get_mut(&key).unwrap().expect("present");
        assert_eq!((found.key(), &found[..]), (&key[..], &old[..]));
        assert!(!found.set_same_len(&[&old[..], b"x"].concat()).unwrap());
        assert_eq!(found[..], old[..], "unchanged");
        assert!(found.set_same_len(&new).unwrap());
        assert_eq!(found[..], new[..]);
        assert_eq!(map.get(&key).unwrap(), Some(new));
        map.get_mut(&key).unwrap().unwrap().set(b"of another length").unwrap();
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&b"of another length"[..]));
    }
    assert!(map.get_mut(&key(91)).unwrap().is_none());
    assert_eq!(map.len().unwrap(), 90);
    assert_eq!(map.verify(), Vec::<String>::new());
}

/// One word of a short record is changed where it is.
#[test]
fn one_word_costs_one_flush() {
    let counter = Arc::new(Counter::default());
    let medium = Sim::in_memory(64 << 20).unwrap().observed_by(counter.clone());
    let pool = pool(medium, 1);
    let mut map = TinyMap::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    map.upsert(b"key", b"a value of 24 bytes.....").unwrap();
    let mut value = map.get_mut(b"key").unwrap().unwrap();
    counter.reset();
    assert!(value.set_same_len(b"a value of 24 bytes.!...").unwrap());
    let counts = counter.counts();
    assert_eq!((counts.flush_calls, counts.fences), (1, 1));
}

#[test]
fn entries_insert_change_and_remove() {
    let mut map = tiny();
    for number in 0..200 {
        let key = key(number);
        assert!(matches!(map.entry(&key).unwrap(), Entry::Vacant(_)));
        let filled = map.entry(&key).unwrap().or_insert(&value(number)).unwrap();
        assert_eq!(filled[..], value(number)[..]);
    }
    for number in 0..200 {
        let (key, due) = (key(number), value(number + 1));
        let entry = map.entry(&key).unwrap();
        assert_eq!(entry.key(), key);
        let changed = entry
            .and_modify(|found| found.set(&due))
            .unwrap()
            .or_insert_with(|| unreachable!("it is present"))
            .unwrap();
        assert_eq!(changed[..], due[..]);
        assert_eq!(map.get(&key).unwrap(), Some(due.clone()));
        let Entry::Occupied(mut entry) = map.entry(&key).unwrap() else { panic!("present") };
        assert_eq!(entry.get(), due);
        assert_eq!(entry.insert(b"new").unwrap(), due);
        assert!(entry.get_mut().set_same_len(b"old").unwrap());
        assert_eq!(entry.remove().unwrap(), b"old");
        assert_eq!(map.get(&key).unwrap(), None);
        let Entry::Vacant(entry) = map.entry(&key).unwrap() else { panic!("absent") };
        assert_eq!(entry.key(), key);
        if number % 2 == 0 {
            entry.insert(b"again").unwrap();
        }
    }
    assert_eq!(map.len().unwrap(), 100);
    assert_eq!(map.verify(), Vec::<String>::new());
}

/// After a reservation, as many records are added without a split.
#[test]
fn reserved_space_is_enough() {
    for (records, bytes) in [(5000, 16), (1000, 40), (3000, 900)] {
        let pool = in_memory(64 << 20);
        let map: TrancheMap<_> =
            TrancheMap::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap();
        for number in 0..500u64 {
            map.upsert(&number.to_le_bytes(), b"").unwrap();
        }
        map.reserve(records, bytes).unwrap();
        let reserved = map.stats().unwrap();
        let value = vec![7; bytes - 8];
        for number in 0..records {
            map.upsert(&(1000 + number).to_le_bytes(), &value).unwrap();
        }
        let filled = map.stats().unwrap();
        assert_eq!(filled.len, records + 500);
        assert_eq!(filled.splits, reserved.splits, "{records} of {bytes} bytes");
        assert_eq!(map.verify(), Vec::<String>::new());
        map.reserve(0, 16).unwrap();
        assert_eq!(map.stats().unwrap().splits, reserved.splits, "there is space for none");
    }
}

/// A reservation for which there is no space changes no record, and the map works on.
#[test]
fn an_impossible_reservation_is_refused() {
    let map = tiny();
    for number in 0..100u64 {
        map.upsert(&number.to_le_bytes(), b"8 bytes.").unwrap();
    }
    assert!(map.reserve(1 << 40, 16).unwrap_err().is_no_space());
    for number in 100..200u64 {
        map.upsert(&number.to_le_bytes(), b"8 bytes.").unwrap();
    }
    assert_eq!(map.len().unwrap(), 200);
    assert_eq!(map.verify(), Vec::<String>::new());
}
