//! Pages of a closed file that are overwritten with zeros: whatever cannot be shown any more is
//! reported, by walks and by scans, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common;
use evermap_index::record;
use evermap_index::testkit::tier;
use evermap_pm::Medium;

use evermap::{Evermap, IndexKind, Map, MapOptions, OnSuspect, Options, Order};

const PAGE: usize = 4096;
const RECORDS: u32 = 3000;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

/// Creates a closed file with records, and with a number of others that have expired.
fn create(path: &Path, index: IndexKind, order: Order, expired: u32) {
    let options = Options::new().index(index).ordered(order).capacity(64 << 20);
    let db = Evermap::open(path, options).unwrap();
    let map = db.default_map();
    for number in 0..RECORDS {
        map.put(&key(number), b"value").unwrap();
    }
    for number in 0..expired {
        let expired = common::meta(0, 1);
        map.set(&[b"expired", &key(number)[..]].concat()).meta(expired).put(b"").unwrap();
    }
    db.close().unwrap();
}

/// The keys that could be shown, and what else was said.
#[derive(Debug, Default)]
struct Shown {
    keys: BTreeSet<Vec<u8>>,
    errors: Vec<String>,
}

impl Shown {
    fn of(pairs: impl Iterator<Item = evermap::Result<Vec<u8>>>) -> Self {
        let mut shown = Shown::default();
        for key in pairs {
            match key {
                Ok(key) => assert!(shown.keys.insert(key)),
                Err(error) => {
                    assert!(error.is_damaged(), "{error}");
                    shown.errors.push(error.to_string());
                }
            }
        }
        shown
    }

    /// Whether everything was shown, or it was said that it was not.
    #[track_caller]
    fn assert_honest(&self, page: usize, what: &str) {
        let all = self.keys.len() == RECORDS as usize;
        assert!(all || !self.errors.is_empty(), "page {page}, {what}: {}", self.keys.len());
    }
}

/// Damages each page of a file that was created with this order and is opened with that one.
fn every_page(index: IndexKind, order: Order, opened: Order, read_only: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    // A thread in the background would remove them.
    create(&path, index, order, if read_only { 10 } else { 0 });
    let options = Options::new().read_only(read_only).ordered(opened).capacity(64 << 20);
    let bytes = std::fs::read(&path).unwrap();
    let damaged = directory.path().join("damaged");
    let mut lost = 0;
    for page in 0..bytes.len() / PAGE {
        let mut bytes = bytes.clone();
        bytes[page * PAGE..][..PAGE].fill(0);
        std::fs::write(&damaged, bytes).unwrap();
        let Ok(db) = Evermap::open(&damaged, options.clone()) else { continue };
        let map = db.default_map();
        let walked = Shown::of(map.iter().map(|pair| Ok(pair?.0)));
        walked.assert_honest(page, "iter");
        Shown::of(map.keys()).assert_honest(page, "keys");
        lost += u32::from(walked.keys.len() < RECORDS as usize);
        let Ok(scan) = map.scan(..) else { continue };
        let scanned = Shown::of(scan.map(|pair| Ok(pair?.0)));
        scanned.assert_honest(page, "scan");
        let reversed = map.scan(..).unwrap().reverse();
        Shown::of(reversed.map(|pair| Ok(pair?.0))).assert_honest(page, "reverse");
        if order != Order::Persistent {
            assert_eq!(scanned.keys, walked.keys, "page {page}");
        }
    }
    assert!(lost > 10, "{lost} pages");
}

#[test]
fn walks_and_scans_say_what_they_lack() {
    // The others are large, even with few records.
    let few = [IndexKind::DashEh, IndexKind::Tranche];
    for index in tier().choose(&few[..], IndexKind::ALL) {
        every_page(*index, Order::None, Order::Volatile, true);
    }
}

#[test]
fn so_do_scans_of_saved_keys() {
    every_page(IndexKind::default(), Order::Volatile, Order::Volatile, true);
}

#[test]
fn so_do_scans_of_a_persistent_order() {
    every_page(IndexKind::default(), Order::Persistent, Order::None, true);
}

#[test]
fn so_do_those_of_a_store_that_can_be_changed() {
    every_page(IndexKind::default(), Order::None, Order::Volatile, false);
}

/// Shows all records in both ways, and fails if anything is said to be missing. Returns their
/// numbers.
#[track_caller]
fn shown_whole<M: evermap_pm::Medium>(map: &Map<M>) -> (usize, usize) {
    let keys = |pairs: Vec<evermap::Result<(Vec<u8>, Vec<u8>)>>| {
        pairs.into_iter().map(Result::unwrap).collect::<Vec<_>>().len()
    };
    (keys(map.iter().collect()), keys(map.scan(..).unwrap().collect()))
}

/// Removals take no id, and are counted after the key is unbound.
#[test]
fn removals_meanwhile_are_no_losses() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    for order in [Order::Volatile, Order::Persistent] {
        for round in 0..tier().choose(3, 50) {
            let _ = std::fs::remove_file(&path);
            create(&path, IndexKind::default(), order, 0);
            let options = Options::new().ordered(order).capacity(64 << 20);
            let map = Evermap::open(&path, options).unwrap().default_map();
            map.build_ordered(1).unwrap();
            let removed = round * 7;
            std::thread::scope(|scope| {
                let remover = scope.spawn(|| {
                    (removed..RECORDS).for_each(|number| assert!(map.delete(&key(number)).unwrap()))
                });
                while !remover.is_finished() {
                    shown_whole(&map);
                }
            });
            assert_eq!(shown_whole(&map), (removed as usize, removed as usize));
        }
    }
}

#[test]
fn what_is_dead_or_not_counted_is_no_loss() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("map"), directory.path().join("copy"));
    create(&path, IndexKind::default(), Order::None, 500);
    let options = Options::new().ordered(Order::Volatile).capacity(64 << 20);
    let reading = options.clone().read_only(true);
    let all = RECORDS as usize;
    let read = |path: &Path, expected: usize| {
        let db = Evermap::open(path, reading.clone()).unwrap();
        assert_eq!(shown_whole(&db.default_map()), (expected, expected));
        // Counts what a kill has left.
        db.recover().unwrap();
        assert_eq!(shown_whole(&db.default_map()), (expected, expected));
        for name in db.maps().unwrap() {
            assert_eq!(shown_whole(&db.map(&name, MapOptions::new()).unwrap()), (10, 10));
        }
        db.close().unwrap();
    };
    read(&path, all);

    let db = Evermap::open(&path, options.clone()).unwrap();
    let map = db.default_map();
    assert_eq!(shown_whole(&map), (all, all));
    let users = db.map("users", MapOptions::new()).unwrap();
    (0..10).for_each(|number| users.put(&key(number), b"").unwrap());
    db.purge().unwrap();
    assert_eq!((shown_whole(&map), shown_whole(&users)), ((all, all), (10, 10)));
    // As a kill leaves it.
    std::fs::copy(&path, &copy).unwrap();
    drop((map, users));
    db.close().unwrap();
    read(&path, all);
    let killed = reading.clone().on_suspect(evermap::OnSuspect::Salvage);
    let db = Evermap::open(&copy, killed).unwrap();
    assert_eq!(shown_whole(&db.default_map()), (all, all));
    db.close().unwrap();

    // A flush hides all of them, and the next opening removes them.
    let map = Evermap::open(&path, options).unwrap().default_map();
    map.clear().unwrap();
    assert_eq!(shown_whole(&map), (0, 0));
    map.into_db().close().unwrap();
    read(&path, 0);
}

/// A walk over the names of maps holds the lock of their table, and waits for no guard.
#[test]
fn names_that_are_lost_are_noticed() {
    const MAPS: usize = 40;
    let options = common::small(4 << 20);
    let memory = common::Kept::new(4 << 20);
    let db = memory.open(&options).unwrap().into_db();
    for number in 0..MAPS {
        db.map(&format!("map {number}"), MapOptions::new()).unwrap();
    }
    db.close().unwrap();
    let mut noticed = 0;
    for page in (4..memory.len() / 4096).map(|page| page * 4096) {
        let damaged = memory.copy();
        (page..page + 4096).step_by(8).for_each(|at| damaged.set_word(at, 0));
        let Ok(map) = damaged.open(&options) else { continue };
        match map.db().maps() {
            Ok(names) => assert_eq!(names.len(), MAPS, "page {page:#x}"),
            Err(error) => {
                noticed += 1;
                assert!(error.is_damaged(), "page {page:#x}: {error}");
                assert!(!map.db().check(false).unwrap().is_sound(), "page {page:#x}");
            }
        }
    }
    assert!(noticed > 0);
}

/// The places of pairs of a hash and a word in a file, by the line in which they are. A record is
/// recognised by its key.
fn pairs_by_line(bytes: &[u8]) -> BTreeMap<usize, Vec<usize>> {
    let is_key =
        |at: usize| bytes[at..].starts_with(b"key") && bytes[at + 8..].starts_with(b"value");
    let records: BTreeSet<u64> = (0..bytes.len() - 16)
        .step_by(8)
        .filter(|&at| is_key(at))
        .map(|at| at as u64 - record::HEADER)
        .collect();
    let mut lines = BTreeMap::<usize, Vec<usize>>::new();
    for at in (8..bytes.len()).step_by(8) {
        let word = u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        if word >> 48 != 0 && records.contains(&(word & record::OFFSET_MASK)) {
            lines.entry(at / 64).or_default().push(at - 8);
        }
    }
    lines.retain(|_, pairs| pairs.len() > 1);
    lines
}

/// Damage has bound a key twice to the same record. Walks show it once, also if it is replaced.
#[test]
fn keys_that_are_bound_twice_are_shown_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for index in common::every_index() {
        let _ = std::fs::remove_file(&path);
        create(&path, index, Order::None, 0);
        let mut bytes = std::fs::read(&path).unwrap();
        let lines = pairs_by_line(&bytes);
        assert!(lines.len() > 20, "{index}: {} lines", lines.len());
        for pairs in lines.values() {
            bytes.copy_within(pairs[0]..pairs[0] + 16, pairs[1]);
        }
        std::fs::write(&path, &bytes).unwrap();
        let open = || {
            let salvage = Options::new().capacity(64 << 20).on_suspect(OnSuspect::Salvage);
            Evermap::open(&path, salvage).unwrap().default_map()
        };
        let map = open();
        // `Shown` refuses a key that is shown twice.
        let shown = Shown::of(map.keys());
        assert!(shown.keys.len() < RECORDS as usize, "{index}: nothing is missing");
        for key in &shown.keys {
            let _ = map.put(key, b"other");
        }
        Shown::of(map.keys());
        map.into_db().close().unwrap();
        Shown::of(open().keys());
    }
}
