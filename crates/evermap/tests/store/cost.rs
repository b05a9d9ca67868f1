//! What records cost, and what they would cost with other indexes.

use evermap::{IndexKind, MapOptions, Options};

use crate::common::{self, Kept};

/// The number of records at which means begin to be taken.
const FROM: u64 = 1 << 14;

#[test]
fn the_parts_of_a_record_are_those_that_were_stored() {
    let map = common::in_memory(common::options()).unwrap();
    let empty = map.cost().unwrap();
    assert_eq!((empty.records, empty.sampled, empty.content_bytes), (0, 0, 0.0));
    for number in 0..5000u32 {
        map.put(&number.to_be_bytes(), &[7; 57]).unwrap();
    }
    let cost = map.cost().unwrap();
    assert_eq!((cost.index, cost.records), (common::index(), 5000));
    assert!(cost.sampled >= 1024, "{}", cost.sampled);
    assert_eq!((cost.header_bytes, cost.content_bytes), (32.0, 61.0));
    // The count of bytes is that of blocks, which are all of one size.
    let block = map.bytes().value as f64 / 5000.0;
    assert_eq!(cost.header_bytes + cost.content_bytes + cost.slack_bytes, block);
    assert_eq!(cost.total(), cost.index_bytes + block);
    assert!(cost.index_bytes > 16.0, "{}", cost.index_bytes);
    let shown = cost.to_string();
    assert!(shown.contains("key and value 61.0") && shown.contains("p-clht"), "{shown}");
}

#[test]
fn the_smallest_kind_is_named() {
    for kind in common::every_index() {
        let map = common::in_memory(Options::new().index(kind)).unwrap();
        (0..3000u32).for_each(|number| map.put(&number.to_be_bytes(), b"").unwrap());
        let cost = map.cost().unwrap();
        assert_eq!(cost.kinds.len(), IndexKind::ALL.len());
        assert!(cost.kinds.is_sorted_by(|one, other| one.1 <= other.1));
        match cost.smaller() {
            Some((smaller, saved)) => assert!(smaller != kind && saved > 0.0),
            None => assert_eq!(cost.kinds[0].0, kind),
        }
    }
}

/// Returns the bytes of an index when it is empty, and its mean bytes a record while it grows to
/// twice as many as at the beginning.
fn counted(kind: IndexKind) -> (f64, f64) {
    const SAMPLES: u64 = 16;
    let memory = Kept::new(64 << 20);
    let options = Options::new().capacity(64 << 20).seed(1);
    let map = memory.open(&options).unwrap();
    let map = map.db().map("map", MapOptions::new().index(kind)).unwrap();
    let (empty, mut sum) = (map.cost().unwrap().index_bytes, 0.0);
    for number in 0..2 * FROM {
        map.put(&number.to_le_bytes(), b"").unwrap();
        if number >= FROM && number % (FROM / SAMPLES) == 0 {
            sum += map.cost().unwrap().index_bytes;
        }
    }
    (empty, sum / SAMPLES as f64)
}

/// The figures behind the estimates.
#[test]
fn expected_bytes_are_those_that_are_counted() {
    let expected = |records: u64, kind: IndexKind| {
        let map = common::in_memory(Options::new().index(kind)).unwrap();
        (0..records).for_each(|number| map.put(&number.to_le_bytes(), b"").unwrap());
        let kinds = map.cost().unwrap().kinds;
        kinds.into_iter().find(|(other, _)| *other == kind).unwrap().1
    };
    for kind in common::every_index() {
        let (empty, mean) = counted(kind);
        // The means are those of any number of records, but for an empty index.
        let (least, usual) = (expected(1, kind), expected(FROM / 2, kind));
        println!("{kind}: {empty} bytes empty, {mean:.1} a record; {least}, {usual:.1} expected");
        assert!((mean / usual - 1.0).abs() < 0.1, "{kind}: {mean}, not {usual}");
        assert!((empty / least - 1.0).abs() < 0.2, "{kind}: {empty}, not {least}");
    }
}
