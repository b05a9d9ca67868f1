//! What is opened, refused, or replaced by a new store if a file is not what it was.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{self, Random};
use evermap::{Error, ErrorKind, IndexKind, Map, MapOptions, OnSuspect, Options};

const RECORDS: u32 = 300;
/// Where the extent table begins.
const TABLE: usize = 12288;

fn options() -> Options {
    common::options().capacity(1 << 30).extent_size(64 << 10)
}

fn open(path: &Path, on_suspect: OnSuspect) -> evermap::Result<Map> {
    common::open_file(path, options().on_suspect(on_suspect))
}

fn refusal(path: &Path, on_suspect: OnSuspect) -> Error {
    open(path, on_suspect).expect_err("must be refused")
}

/// Creates a directory with a closed store. Returns its bytes too.
fn closed_store() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let map = open(&path, OnSuspect::Refuse).unwrap();
    (0..RECORDS).for_each(|key| map.put(&key.to_le_bytes(), &[7; 500]).unwrap());
    map.into_db().close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (directory, path, bytes)
}

fn found(map: &Map) -> usize {
    (0..RECORDS).filter(|key| matches!(map.get(&key.to_le_bytes()), Ok(Some(_)))).count()
}

/// The offset of the word by which the header recognises the superblock.
const FIT: usize = 8192 + 512 + 384;

/// Changes a word of the superblock at `at`, and its checksum.
fn set_in_superblock(bytes: &mut [u8], at: usize, offset: usize, word: u64) {
    set_word(bytes, at + offset, word);
    let check = crc32c::crc32c(&bytes[at..at + 248]);
    set_word(bytes, at + 248, check.into());
}

/// A file that has no word by which its superblock is recognised gets one.
#[test]
fn a_file_of_an_older_program_is_opened_and_recognised_from_then_on() {
    let (_directory, path, mut bytes) = closed_store();
    let fit = bytes[FIT..FIT + 8].to_vec();
    assert_ne!(fit, [0; 8]);
    for word in [0, 1, u64::MAX] {
        set_word(&mut bytes, FIT, word);
        std::fs::write(&path, &bytes).unwrap();
        let map = open(&path, OnSuspect::Refuse).unwrap();
        assert_eq!(found(&map), RECORDS as usize);
        map.into_db().close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[FIT..FIT + 8], fit);
    }
}

fn set_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

#[test]
fn a_file_of_zeros_is_not_a_store_and_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    for bytes in [1, 8, 4095, 4096, 8192, 12288, 16384, 1 << 20] {
        let zeros = vec![0; bytes];
        std::fs::write(&path, &zeros).unwrap();
        for on_suspect in [OnSuspect::Refuse, OnSuspect::Salvage, OnSuspect::Discard] {
            let error = refusal(&path, on_suspect);
            assert!(error.kind() == ErrorKind::NotAStore, "{error}");
            let why = if bytes < TABLE { "it has only" } else { "only zeros" };
            assert!(error.to_string().contains(why), "{error}");
            assert!(std::fs::read(&path).unwrap() == zeros);
        }
    }
    std::fs::write(&path, "").unwrap();
    assert_eq!(found(&open(&path, OnSuspect::Refuse).unwrap()), 0);
}

/// If the table is wrong about extents that the file does not have, all records are present.
#[test]
fn damage_to_an_unused_word_of_the_extent_table_loses_nothing() {
    let (_directory, path, bytes) = closed_store();
    let mut random = Random::new(7);
    let is_used = |entry: &usize| bytes[TABLE + entry * 8..][..8] != [0; 8];
    let unused = 1 + (0..512).rfind(is_used).unwrap();
    assert!(unused < 500);
    // The first one after those in use could mean that the file was cut off.
    for entry in (unused + 1..511).step_by(60).chain([511]) {
        let at = TABLE + entry * 8;
        for word in [1, 2, u64::MAX, random.next(), 1 << 40] {
            let mut damaged = bytes.clone();
            set_word(&mut damaged, at, word);
            std::fs::write(&path, damaged).unwrap();
            let map = open(&path, OnSuspect::Refuse).unwrap();
            assert_eq!(found(&map), RECORDS as usize);
            assert!(map.space().unwrap().heap_faults > 0, "it is reported");
            assert!(!map.db().check(false).unwrap().is_sound(), "it is reported");
            map.put(b"new", b"value").unwrap();
            map.into_db().close().unwrap();
            let map = open(&path, OnSuspect::Refuse).unwrap();
            assert_eq!(found(&map), RECORDS as usize);
            assert!(map.db().check(true).unwrap().is_sound(), "it is repaired");
        }
    }
}

#[test]
fn an_untrusted_file_is_refused_or_replaced_on_request() {
    let (_directory, path, bytes) = closed_store();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        bytes
    };
    let mut cases: Vec<_> = [100, 5000, 12_000, bytes.len() / 4]
        .map(|len| (format!("cut off at {len}"), with(&|bytes| bytes.truncate(len)), "cut off"))
        .into();
    let superblocks = with(&|bytes| {
        for at in [248, 4096 + 248] {
            set_word(bytes, at, 1);
        }
    });
    cases.push(("superblocks".into(), superblocks, "neither copy"));
    let root = with(&|bytes| set_word(bytes, 8192 + 512, u64::MAX));
    cases.push(("root".into(), root, "damaged"));
    for at in [0, 4096] {
        // As a program that repairs checksums leaves it.
        let seed = with(&|bytes| set_in_superblock(bytes, at, 48, 77));
        let superblock = with(&|bytes| {
            set_word(bytes, 4096 - at + 248, 1);
            set_in_superblock(bytes, at, 48, 77);
        });
        std::fs::write(&path, &seed).unwrap();
        assert_eq!(found(&open(&path, OnSuspect::Refuse).unwrap()), RECORDS as usize);
        cases.push((format!("seed at {at}"), superblock, "not the one"));
    }
    let seeds =
        with(&|bytes| [0, 4096].iter().for_each(|&at| set_in_superblock(bytes, at, 48, 77)));
    cases.push(("seeds".into(), seeds, "not the one"));
    let contradiction = with(&|bytes| {
        set_in_superblock(bytes, 0, 48, 77);
        // A file of an older program has no word that tells which one belongs to it.
        set_word(bytes, FIT, 0);
    });
    cases.push(("contradiction".into(), contradiction, "contradict"));
    for (name, bytes, why) in cases {
        std::fs::write(&path, &bytes).unwrap();
        let error = refusal(&path, OnSuspect::Refuse);
        assert!(error.is_damaged() && error.to_string().contains(why), "{name}: {error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{name}: {error}");
        // What is advised is possible with a file that cannot be opened.
        assert!(!error.to_string().contains("evermap check"), "{name}: {error}");
        assert!(error.to_string().contains("restore the file"), "{name}: {error}");
        match open(&path, OnSuspect::Salvage) {
            Ok(_) => assert!(error.to_string().contains("= salvage"), "{name}: {error}"),
            Err(salvaging) => {
                assert!(salvaging.to_string().contains("= discard"), "{name}: {salvaging}");
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), bytes.len());
        let map = open(&path, OnSuspect::Discard).unwrap();
        assert_eq!((found(&map), map.iter().count()), (0, 0), "{name}");
        map.put(b"new", b"value").unwrap();
        map.into_db().close().unwrap();
        // It is kept from then on.
        let map = open(&path, OnSuspect::Discard).unwrap();
        assert_eq!(map.iter().count(), 1, "{name}");
        assert!(map.db().check(true).unwrap().is_sound(), "{name}");
    }
}

#[test]
fn what_is_no_store_of_this_version_is_never_overwritten() {
    let (_directory, path, mut newer) = closed_store();
    // The format is the low half of the second word, and a checksum is the last word, of both
    // copies.
    for at in [0, 4096] {
        newer[at + 8] = 99;
        let check = crc32c::crc32c(&newer[at..at + 248]);
        set_word(&mut newer, at + 248, check.into());
    }
    let text = b"something of value".repeat(1000);
    for (bytes, is_newer) in [(newer, true), (text, false)] {
        std::fs::write(&path, &bytes).unwrap();
        for on_suspect in [OnSuspect::Refuse, OnSuspect::Salvage, OnSuspect::Discard] {
            let error = refusal(&path, on_suspect);
            let right = match error.kind() {
                ErrorKind::NewerFormat => {
                    is_newer && error.to_string().contains("format 99 is newer")
                }
                ErrorKind::NotAStore => !is_newer,
                _ => false,
            };
            assert!(right, "{error}");
            assert!(std::fs::read(&path).unwrap() == bytes);
        }
    }
}

#[test]
fn a_suspect_file_says_why_and_what_can_be_done() {
    let (directory, path, _) = closed_store();
    let copy = directory.path().join("copy");
    let map = open(&path, OnSuspect::Refuse).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    let text = refusal(&copy, OnSuspect::Refuse).to_string();
    for part in ["copy: contents are suspect", "a copy of it", "salvage", "discard", "normally"] {
        assert!(text.contains(part), "{text}");
    }
    let salvaged = open(&copy, OnSuspect::Salvage).unwrap();
    assert_eq!(found(&salvaged), RECORDS as usize);
    drop(map);
}

/// The count of damage includes every kind of damage.
#[test]
fn every_operation_that_meets_damage_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    // Level hashing takes buckets of zeros for empty ones, so it is not among these.
    let small = || Options::small(256 << 10).index(IndexKind::DashEh);
    let map = common::open_file(&path, small()).unwrap();
    (0..RECORDS).for_each(|key| map.put(&key.to_le_bytes(), &[7; 100]).unwrap());
    map.into_db().close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let mut of_index = 0;
    for part in (16384..bytes.len()).step_by(8192) {
        let mut damaged = bytes.clone();
        let end = (part + bytes.len() / 4).min(bytes.len());
        damaged[part..end].fill(0);
        std::fs::write(&path, damaged).unwrap();
        let Ok(map) = common::open_file(&path, small()) else { continue };
        let mut met = map.stat().damage_met;
        let mut count = |failed: Option<Error>| {
            let now = map.stat().damage_met;
            if let Some(error) = failed.filter(Error::is_damaged) {
                assert!(now > met, "not counted: {error}");
                of_index += u32::from(matches!(error, Error::Storage(_)));
            }
            met = now;
        };
        for key in (0..RECORDS).map(u32::to_le_bytes) {
            count(map.get(&key).err());
            count(map.contains(&key).err());
        }
        count(map.put(&1u32.to_le_bytes(), b"value").err());
        count(map.delete(&2u32.to_le_bytes()).err());
        count(map.get_many(&[3u32.to_le_bytes()], |_, _| ControlFlow::Continue(())).err());
        // A walk reads all of a page before it shows any of it.
        let failed: Vec<_> = map.iter().filter_map(Result::err).filter(Error::is_damaged).collect();
        assert!(map.stat().damage_met >= met + failed.len() as u64, "not all are counted");
        of_index += failed.iter().filter(|error| matches!(error, Error::Storage(_))).count() as u32;
    }
    assert!(of_index > 100, "only {of_index}");
}

#[test]
fn a_map_that_cannot_be_opened_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let store = open(&path, OnSuspect::Refuse).unwrap();
    store.db().map("named", MapOptions::new()).unwrap();
    store.into_db().close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The root slot of the catalogue.
    bytes[8192 + 512 + 14 * 8] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = open(&path, OnSuspect::Refuse).unwrap();
    let met = store.stat().damage_met;
    let error = store.db().map("named", MapOptions::new()).map(drop).unwrap_err();
    assert!(error.is_damaged(), "{error}");
    assert!(store.stat().damage_met > met);
}

#[test]
fn all_space_can_be_allocated_at_opening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let map = open(&path, OnSuspect::Refuse).unwrap();
    (0..5000u32).for_each(|key| map.put(&key.to_le_bytes(), &[7; 1000]).unwrap());
    (0..5000u32).for_each(|key| assert!(map.delete(&key.to_le_bytes()).unwrap()));
    map.into_db().close().unwrap();
    let holes = || {
        let file = std::fs::metadata(&path).unwrap();
        file.len().saturating_sub(file.blocks() * 512)
    };
    open(&path, OnSuspect::Refuse).unwrap().into_db().close().unwrap();
    assert!(holes() > 1 << 20, "free space was returned to the file system");
    common::open_file(&path, options().allocate_holes(true)).unwrap();
    assert_eq!(holes(), 0);
}
