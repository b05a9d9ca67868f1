//! The heterogeneous table allocates no memory of the process in its operations, and makes no
//! system call.

use std::hint::black_box;
use std::sync::Arc;

use evermap_index::{Index, Persistent};
use evermap_papers::tranche::Config;
use evermap_papers::{Tranche, TrancheMap};
use evermap_pm::Pool;
use evermap_pm::medium::{Dram, Pages};
use evermap_pm::region::{Identity, RegionConfig};

use crate::allocator::allocations_of;

const CAPACITY: u64 = 8 << 20;
const KEYS: u64 = 4000;

fn pool() -> Arc<Pool<Dram>> {
    let config = RegionConfig { extent_size: 2 << 20, capacity: CAPACITY, seed: Some(1) };
    Pool::create(Dram::reserve(CAPACITY, Pages::Base).unwrap(), &config, Identity::default())
        .unwrap()
}

/// Groups for twice as many pairs.
fn config() -> Config {
    Config { initial_depth: 6 }
}

#[test]
fn operations_on_pairs_allocate_nothing() {
    let pool = pool();
    let table = Tranche::<u64, Dram>::create(pool.clone(), pool.root(0), config()).unwrap();
    // What a thread allocates once is allocated here.
    table.insert(u64::MAX, 0, &pool.pin()).unwrap();
    let inserted = allocations_of(|| {
        for key in 0..KEYS {
            assert!(table.insert(key, key, &pool.pin()).unwrap().inserted());
        }
    });
    let others = allocations_of(|| {
        for key in 0..KEYS {
            assert_eq!(table.upsert(key, !key, &pool.pin()).unwrap().old, Some(key));
            assert_eq!(table.get(key, &pool.pin()).unwrap(), Some(!key));
            assert_eq!(table.get(KEYS + key, &pool.pin()).unwrap(), None);
        }
    });
    let (keys, mut found) = ((0..KEYS).collect::<Vec<_>>(), vec![None; KEYS as usize]);
    let many = allocations_of(|| table.get_many(&keys, &mut found, &pool.pin()).unwrap());
    assert!(found.iter().zip(0..).all(|(&found, key)| found == Some(!key)));
    assert_eq!((inserted, others, many), (0, 0, 0));
}

/// Of keys and values of 16 and 24 bytes, and of pairs of 8. `get` allocates the copy that it
/// returns.
#[test]
fn operations_on_short_records_allocate_nothing() {
    for (key_bytes, value_bytes) in [(8, 8), (16, 24)] {
        let pool = pool();
        let map = TrancheMap::<Dram>::create(pool.clone(), pool.root(0), config()).unwrap();
        let key = |number: u64| {
            let mut key = [7; 16];
            key[..8].copy_from_slice(&number.to_le_bytes());
            key
        };
        let value = |number: u64| {
            let mut value = [0; 24];
            value[..8].copy_from_slice(&number.to_le_bytes());
            value
        };
        map.insert(b"a thread's first operation", b"").unwrap();
        let inserted = allocations_of(|| {
            for number in 0..KEYS / 2 {
                let (key, value) = (key(number), value(number));
                assert!(map.insert(&key[..key_bytes], &value[..value_bytes]).unwrap());
            }
        });
        let others = allocations_of(|| {
            for number in 0..KEYS / 2 {
                let (key, value) = (key(number), value(!number));
                let (key, value) = (&key[..key_bytes], &value[..value_bytes]);
                assert!(map.upsert(key, value).unwrap());
                assert!(map.contains(key).unwrap());
                assert_eq!(map.read(key, |found| found == value).unwrap(), Some(true));
                assert_eq!(&*map.get_ref(key).unwrap().unwrap(), value);
            }
        });
        let keys: Vec<_> = (0..KEYS / 2).map(key).collect();
        let keys: Vec<_> = keys.iter().map(|key| &key[..key_bytes]).collect();
        let many = allocations_of(|| {
            map.get_many(&keys, |_, value| value.is_some_and(|value| value.len() == value_bytes))
                .unwrap();
        });
        assert_eq!((inserted, others, many), (0, 0, 0), "{key_bytes} and {value_bytes} bytes");
        let copies = allocations_of(|| {
            keys.iter().for_each(|key| drop(black_box(map.get(key).unwrap())));
        });
        assert_eq!(copies, KEYS / 2);
    }
}

/// Pairs in a table with space for twice as many.
#[cfg(target_os = "linux")]
#[test]
fn operations_on_pairs_make_no_system_call() {
    let prepare = || {
        let pool = pool();
        let table = Tranche::<u64, Dram>::create(pool.clone(), pool.root(0), config()).unwrap();
        // What a thread does once is done here.
        table.insert(u64::MAX, 0, &pool.pin()).unwrap();
        (pool, table)
    };
    let operations = |(pool, table): &(Arc<Pool<Dram>>, Tranche<u64, Dram>)| {
        for key in 0..KEYS {
            assert!(table.insert(key, key, &pool.pin()).unwrap().inserted());
            assert_eq!(table.upsert(key, !key, &pool.pin()).unwrap().old, Some(key));
            assert_eq!(table.get(key, &pool.pin()).unwrap(), Some(!key));
            assert_eq!(table.get(KEYS + key, &pool.pin()).unwrap(), None);
            let mut found = [None; 32];
            let keys = [key; 32];
            table.get_many(&keys, &mut found, &pool.pin()).unwrap();
            assert_eq!(found, [Some(!key); 32]);
        }
        (0..KEYS / 2).for_each(|key| {
            assert!(table.remove(key, &pool.pin()).unwrap().removed());
        });
    };
    assert!(crate::system_calls::makes_none(
        "tranche::operations_on_pairs_make_no_system_call",
        prepare,
        operations
    ));
}

/// Byte strings in a table with space for them.
#[cfg(target_os = "linux")]
#[test]
fn operations_on_short_records_make_no_system_call() {
    let prepare = || {
        let pool = pool();
        let map = TrancheMap::<Dram>::create(pool.clone(), pool.root(0), config()).unwrap();
        map.insert(b"a thread's first operation", b"").unwrap();
        map
    };
    let operations = |map: &TrancheMap<Dram>| {
        for number in 0..KEYS / 2 {
            let (key, value) = ([number.to_le_bytes(); 2], [number.to_be_bytes(); 3]);
            let (key, value) = (key.as_flattened(), value.as_flattened());
            assert!(map.insert(key, value).unwrap());
            assert!(map.upsert(key, value).unwrap());
            assert!(map.contains(key).unwrap());
            assert_eq!(&*map.get_ref(key).unwrap().unwrap(), value);
            map.get_many(&[key, value], |at, found| found.is_some() == (at == 0)).unwrap();
        }
    };
    let name = "tranche::operations_on_short_records_make_no_system_call";
    assert!(crate::system_calls::makes_none(name, prepare, operations));
}
