//! Pages of a closed file that are overwritten with zeros: whatever cannot be shown any more is
//! reported, by walks and by scans, and nothing else is.

use std::collections::BTreeSet;
use std::path::Path;

use evermap::{Evermap, IndexKind, Meta, Options, Order};

const PAGE: usize = 4096;
const RECORDS: u32 = 3000;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

/// Creates a closed file with records, and with so many that have expired.
fn create(path: &Path, index: IndexKind, order: Order, expired: u32) {
    let options = Options::new().index(index).ordered(order).capacity(64 << 20);
    let db = Evermap::open(path, options).unwrap();
    let map = db.default_map();
    for number in 0..RECORDS {
        map.put(&key(number), b"value").unwrap();
    }
    for number in 0..expired {
        let expired = Meta::new().with_expiry(Some(1));
        map.put_with(&[b"expired", &key(number)[..]].concat(), b"", expired).unwrap();
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
    for index in IndexKind::ALL {
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
