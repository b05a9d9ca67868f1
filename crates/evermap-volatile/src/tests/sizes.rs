//! Keys and values of all kinds.

use std::fmt::Debug;
use std::hash::Hash;

use super::*;

fn round_trip<K: Hash + Eq + Debug, V: PartialEq + Debug>(
    count: u64,
    key: impl Fn(u64) -> K,
    value: impl Fn(u64) -> V,
) {
    let map = tiny::<K, V, RandomState>();
    for number in 0..count {
        assert_eq!(map.pin().insert(key(number), value(number)), None);
    }
    assert_eq!(map.len() as u64, count);
    let pinned = map.pin();
    for number in 0..count {
        let found = pinned.get(&key(number)).unwrap();
        assert_eq!(found, &value(number));
        assert!(std::ptr::from_ref(found).is_aligned());
    }
    assert_eq!(pinned.iter().count() as u64, count);
    for number in (0..count).step_by(2) {
        assert_eq!(pinned.remove(&key(number)), Some(&value(number)));
    }
    drop(pinned);
    assert_eq!(map.len() as u64, count / 2);
    map.shrink_to_fit();
    assert_eq!(map.into_iter().count() as u64, count / 2);
}

#[repr(align(256))]
#[derive(Debug, PartialEq)]
struct Aligned(u8);

#[repr(align(8192))]
#[derive(Debug, PartialEq)]
struct Page(u8);

#[test]
fn keys_and_values_may_have_any_size() {
    let count = if cfg!(miri) { 150 } else { 3000 };
    round_trip(1, |_| (), |_| ());
    round_trip(count, |number| number, |_| ());
    round_trip(200, |number| number as u8, |number| number as u8);
    round_trip(count, |number| number, |number| number);
    round_trip(count, |number| number.to_string(), |number| vec![number; 3]);
    round_trip(count, |number| [number; 2], |number| [number; 40]);
    round_trip(count, |number| number, |number| Aligned(number as u8));
    round_trip(100, |number| number, |number| Page(number as u8));
    round_trip(count, Box::new, Arc::new);
}

/// Borrowed keys need not be `'static`, nor values `Send`.
#[test]
fn a_map_may_borrow_and_need_not_be_sent() {
    let text = String::from("to be or not to be");
    let map: VolatileMap<&str, std::rc::Rc<usize>> = VolatileMap::new();
    for word in text.split(' ') {
        map.pin().update_or_insert(word, |count| (**count + 1).into(), 1.into());
    }
    assert_eq!(map.pin().get("to").map(|count| **count), Some(2));
    assert_eq!(map.len(), 4);
}

#[test]
fn a_large_map_has_few_bytes_for_each_pair() {
    let count = if cfg!(miri) { 1000 } else { tier().choose(100_000, 4_000_000) };
    let map = VolatileMap::<u64, u64>::new();
    for key in 0..count {
        map.pin().insert(key, key);
    }
    map.flush();
    let stats = map.stats();
    assert_eq!(stats.len as u64, count);
    // Blocks of entries are half empty at worst; pages that nobody touched take no memory.
    assert!(stats.bytes as u64 <= 32 * count + 12 * count + (200 << 10), "{stats:?}");
    assert!((0..count).step_by(97).all(|key| map.pin().get(&key) == Some(&key)));
    assert!((count..2 * count).step_by(97).all(|key| !map.pin().contains_key(&key)));
}
