//! A page of the extent table that is lost: what the indexes lead to is never given out again.

use crate::common::{self, Kept};
use evermap::{DamageMark, IndexKind, Map, OnSuspect, Options};
use evermap_pm::sim::Sim;

const CAPACITY: u64 = 8 << 20;
/// The page of the file with the first part of the table.
const TABLE: u64 = 12288;
const PAGE: u64 = 4096;
/// The word with the checksum of what a clean shutdown has saved: part of the format.
const SAVED_CHECK: u64 = 8192 + 8 * 50;
const RECORDS: u64 = 3000;

fn options(index: IndexKind) -> Options {
    Options::small(CAPACITY).index(index)
}

/// Values of all kinds of places: small and large blocks, and objects of their own.
fn value_of(number: u64) -> Vec<u8> {
    let len = if number % 500 == 7 { 20_000 } else { 20 + number as usize % 70 };
    vec![number as u8; len]
}

fn put_all(store: &Map<Sim>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        store.put(&number.to_le_bytes(), &value_of(number)).unwrap();
    }
}

fn assert_there(store: &Map<Sim>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let value = store.get(&number.to_le_bytes()).unwrap();
        assert_eq!(value.as_deref(), Some(&value_of(number)[..]), "{number}");
    }
}

/// A store with records in memory whose table has lost its first page.
fn damaged(options: &Options, closes: bool) -> Kept {
    let memory = Kept::new(CAPACITY);
    let store = memory.open(options).unwrap();
    put_all(&store, 0..RECORDS);
    if closes {
        store.into_db().close().unwrap();
    } else {
        drop(store);
    }
    (TABLE..TABLE + PAGE).step_by(8).for_each(|at| memory.set_word(at, 0));
    memory
}

/// A clean shutdown saves the table.
#[test]
fn a_closed_file_has_its_table_again() {
    for index in common::campaign_indexes() {
        let options = options(index);
        let memory = damaged(&options, true);
        let store = memory.open(&options).unwrap();
        assert_there(&store, 0..RECORDS);
        assert_eq!(store.stat().damage, DamageMark::Found, "{index}");
        put_all(&store, RECORDS..2 * RECORDS);
        assert_there(&store, 0..2 * RECORDS);
        store.into_db().close().unwrap();
        let store = memory.open(&options).unwrap();
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert_eq!(report.records, 2 * RECORDS);
        assert_eq!(store.stat().damage, DamageMark::None, "{index}");
    }
}

/// Otherwise the file is refused; and who wants it nevertheless destroys nothing with what is put.
#[test]
fn nothing_is_put_over_what_the_index_leads_to() {
    for index in common::campaign_indexes() {
        let options = options(index);
        let memory = damaged(&options, false);
        let error = memory.copy().open(&options).unwrap_err();
        assert!(error.to_string().contains("leads to nothing"), "{index}: {error}");
        let store = memory.open(&options.on_suspect(OnSuspect::Salvage)).unwrap();
        store.db().recover().unwrap();
        put_all(&store, RECORDS..2 * RECORDS);
        assert_there(&store, 0..2 * RECORDS);
        assert_eq!(store.stat().damage, DamageMark::Widespread, "{index}");
    }
}

/// If what a clean shutdown has saved is lost too, it counts as none.
#[test]
fn a_closed_file_without_its_table_is_refused() {
    for index in common::campaign_indexes() {
        let options = options(index);
        let memory = damaged(&options, true);
        memory.set_word(SAVED_CHECK, !memory.word(SAVED_CHECK));
        let error = memory.open(&options).unwrap_err();
        assert!(error.to_string().contains("cannot be used"), "{index}: {error}");
    }
}
