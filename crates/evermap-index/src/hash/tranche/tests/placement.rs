//! What the table reports about the places of its records.

use evermap_pm::sim::Sim;

use super::super::{Config, Tranche, TrancheMap};
use super::in_memory;
use crate::{Index, Persistent};

/// An empty table has nothing displaced; a table that is grown to a known number of records
/// reports those, within what the talk promises: hardly more than one tranche a lookup.
#[test]
fn what_is_counted_is_there() {
    let pool = in_memory(64 << 20);
    let table = Tranche::<u64, Sim>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    let empty = table.placement().unwrap();
    assert_eq!((empty.records, empty.fill, empty.displaced), (0, 0.0, 0.0));
    assert_eq!((empty.tranches_per_hit, empty.tranches_per_miss), (1.0, 1.0));
    for key in 0..5000u64 {
        table.insert(key, key, &pool.pin()).unwrap();
    }
    let full = table.placement().unwrap();
    assert_eq!(full.records, 5000);
    assert!((0.35..0.85).contains(&full.fill), "{full:?}");
    assert!(full.displaced < 0.1 && full.tranches_per_hit < 1.2, "{full:?}");
    assert!((1.0..3.0).contains(&full.tranches_per_miss), "{full:?}");
    // What is displaced is at least one tranche away.
    assert!(full.tranches_per_hit >= 1.0 + full.displaced, "{full:?}");
}

/// The fill is that of the bytes, whatever the lengths of the records.
#[test]
fn fill_is_in_bytes() {
    let pool = in_memory(64 << 20);
    let map = TrancheMap::<Sim, 4096, 16, 4>::create(
        pool.clone(),
        pool.root(0),
        Config { initial_depth: 2 },
    );
    let map = map.unwrap();
    for key in 0..400u32 {
        map.insert(&key.to_le_bytes(), &[7; 100]).unwrap();
    }
    let found = map.placement().unwrap();
    // 8 bytes of lengths, 104 of key and value, 3 of fingerprint and entry.
    let bytes = 400.0 * 115.0;
    let share = bytes / (4.0 * 65536.0);
    assert!((share..share * 1.1).contains(&found.fill), "{found:?}, {share}");
}
