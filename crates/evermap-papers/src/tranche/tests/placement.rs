//! What the table reports about the places of its records.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use evermap_index::{Index, Persistent};
use evermap_pm::sim::{Access, Observer, Sim};

use super::super::{Config, Geometry, Sizes, Tranche, TrancheMap};
use super::{in_memory, pool};

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
    let map = TrancheMap::<Sim, Sizes<4096, 16, 3>>::create(
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

/// The lines and the pages of 4 KiB that were loaded from.
#[derive(Default)]
struct Touched(Mutex<(BTreeSet<u64>, BTreeSet<u64>)>);

impl Observer for Touched {
    fn observe(&self, access: Access) {
        if let Access::Load(offset) = access {
            let (lines, pages) = &mut *self.0.lock().unwrap();
            lines.insert(offset / 64);
            pages.insert(offset / 4096);
        }
    }
}

/// Returns the lines and the pages that lookups touch, on average: of present keys, and of absent.
fn touched<G: Geometry>(keys: u64) -> [(f64, f64); 2] {
    let touched = Arc::new(Touched::default());
    let medium = Sim::in_memory(64 << 20).unwrap().observed_by(touched.clone());
    let pool = pool(medium, 1);
    let table = Tranche::<u64, Sim, G>::create(pool.clone(), pool.root(0), Config::default());
    let table = table.unwrap();
    for key in 0..keys {
        table.insert(key, key, &pool.pin()).unwrap();
    }
    [0, keys].map(|first| {
        let (mut lines, mut pages) = (0, 0);
        for key in first..first + 2000 {
            *touched.0.lock().unwrap() = Default::default();
            assert_eq!(table.get(key, &pool.pin()).unwrap().is_some(), key < keys);
            let sets = touched.0.lock().unwrap();
            lines += sets.0.len();
            pages += sets.1.len();
        }
        let mean = (lines as f64 / 2000.0, pages as f64 / 2000.0);
        let found = if first == 0 { "hits" } else { "misses" };
        println!("{}: {found} {mean:?}", G::TRANCHE_BYTES);
        mean
    })
}

/// A lookup touches the page of the group and the one of the word that locates its chunk, and of
/// each as few lines: what can miss in a translation buffer. A tranche of 4 KiB is in another page
/// than the lock of its group, which few lookups need.
#[test]
fn lookups_touch_few_lines_and_pages() {
    let [hit, miss] = touched::<Sizes<256, 16, 7>>(20_000);
    assert!(hit.0 < 3.6 && hit.1 < 2.1, "{hit:?}");
    assert!(miss.0 < 3.6 && miss.1 < 2.1, "{miss:?}");
    let [hit, miss] = touched::<Sizes<4096, 16, 3>>(100_000);
    assert!(hit.0 < 8.0 && hit.1 < 2.2, "{hit:?}");
    // A table of few groups is as full as it becomes, and a third of the misses go on to another
    // tranche.
    assert!(miss.0 < 17.0 && miss.1 < 3.3, "{miss:?}");
}
