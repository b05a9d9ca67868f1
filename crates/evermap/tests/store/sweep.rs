//! What a sweep reads.

use std::collections::HashSet;

use crate::common::{self, Kept, LINE};
use evermap::{IndexKind, MapOptions, Options};
use evermap_pm::medium::Medium;

/// The byte of which values consist, so that words of values are recognised at any alignment.
const FILLER: u8 = 0xab;

/// Returns memory with a store that was not closed. It has records of several sizes in two maps,
/// whose lines are watched.
fn killed(index: IndexKind) -> (Kept, Options, [u64; 2]) {
    let memory = Kept::new(16 << 20);
    let options = Options::small(16 << 20).index(index).seed(3);
    let store = memory.open(&options).unwrap();
    let named = store.db().map("named", MapOptions::new()).unwrap();
    for (map, keys) in [(&store, 1000u64), (&named, 200)] {
        for key in 0..keys {
            let len = if key == 7 { 40_000 } else { 100 + key as usize % 3 * 700 };
            map.put(&key.to_le_bytes(), &vec![FILLER; len]).unwrap();
        }
        (0..keys).step_by(5).for_each(|key| assert!(map.remove(&key.to_le_bytes()).unwrap()));
    }
    let counts = [&store, &named].map(|map| map.len().value);
    drop((store, named));
    let filler = u64::from_le_bytes([FILLER; 8]);
    let filled = (0..memory.len()).step_by(8).filter(|&at| memory.word(at) == filler);
    // The first line of a block is watched if the value begins in it, as it does in nearly all
    // blocks.
    let lines: HashSet<u64> = filled.map(|at| at / LINE).collect();
    memory.watch(lines);
    (memory, options, counts)
}

#[test]
fn a_sweep_reads_no_record() {
    for index in common::every_index() {
        let (memory, options, counts) = killed(index);
        let store = memory.open(&options).unwrap();
        store.db().recover().unwrap();
        let named = store.db().map("named", MapOptions::new()).unwrap();
        assert_eq!([&store, &named].map(|map| map.len().value), counts, "{index}");
        assert!(store.len().exact && named.len().exact);
        // The records of the catalogue are read, and are not watched.
        assert_eq!(memory.touched(), 0, "{index}");
        let report = store.db().check(false).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert_eq!(memory.touched(), 0, "{index}: a check that is not deep");
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert!(memory.touched() > 1000, "records are watched");
    }
}
