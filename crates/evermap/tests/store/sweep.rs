//! What a sweep reads.

use std::collections::HashSet;

use crate::common::{self, Kept, LINE};
use evermap::{IndexKind, MapOptions, Options};
use evermap_pm::medium::Medium;

/// The byte of which values consist, so that words of values are recognised at any alignment.
const FILLER: u8 = 0xab;

/// Returns memory with a store that was not closed. It has records in two maps, of at least this
/// length, and the lines that are full of their values are watched.
fn killed(index: IndexKind, records: u64, least: usize) -> (Kept, Options, [u64; 2]) {
    let memory = Kept::new(16 << 20);
    let options = Options::small(16 << 20).index(index).seed(3);
    let store = memory.open(&options).unwrap();
    let named = store.db().map("named", MapOptions::new()).unwrap();
    for (map, keys) in [(&store, records), (&named, 200)] {
        for key in 0..keys {
            let len = if key == 7 { 40_000 } else { least + key as usize % 3 * least / 6 };
            map.put(&key.to_le_bytes(), &vec![FILLER; len]).unwrap();
        }
        (0..keys).step_by(5).for_each(|key| assert!(map.delete(&key.to_le_bytes()).unwrap()));
    }
    let counts = [&store, &named].map(|map| map.len());
    drop((store, named));
    let filler = u64::from_le_bytes([FILLER; 8]);
    let is_full =
        |line: &u64| (0..LINE).step_by(8).all(|at| memory.word(line * LINE + at) == filler);
    let lines: HashSet<u64> = (0..memory.len() / LINE).filter(is_full).collect();
    memory.watch(lines);
    (memory, options, counts)
}

/// Large values are not read, and of small ones a sample.
#[test]
fn a_sweep_reads_no_large_value() {
    for index in common::every_index() {
        let (memory, options, counts) = killed(index, 1000, 4200);
        let store = memory.open(&options).unwrap();
        store.db().recover().unwrap();
        let named = store.db().map("named", MapOptions::new()).unwrap();
        assert_eq!([&store, &named].map(|map| map.len()), counts, "{index}");
        assert!(store.records().exact && named.records().exact);
        assert_eq!(memory.touched(), 0, "{index}");
        let report = store.db().check(false).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert_eq!(memory.touched(), 0, "{index}: a check that is not deep");
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert!(memory.touched() > 1000, "values are watched");
    }
}

#[test]
fn a_sweep_verifies_a_sample_of_many_records() {
    let (memory, options, _) = killed(common::index(), 60_000, 130);
    let store = memory.open(&options).unwrap();
    store.db().recover().unwrap();
    let swept = memory.touched();
    assert!(store.db().check(true).unwrap().is_sound());
    let checked = memory.touched() - swept;
    assert!(swept > 0 && swept < checked / 2, "{swept} of {checked}");
}
